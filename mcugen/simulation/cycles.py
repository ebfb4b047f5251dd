# SPDX-License-Identifier: Apache-2.0
"""Estimated cycles of a call, from an execution profile, the CPU's timing, and the stalls of memories."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mcugen.codegen.bundle import Bundle
from mcugen.core.board import Board
from mcugen.core.errors import ToolMissingError, VerificationError
from mcugen.simulation.build import TargetImages
from mcugen.simulation.disassembly import Instruction
from mcugen.simulation.elf import AddressRange, functions
from mcugen.simulation.profile import AWAIT_FUNCTION, COPY_FUNCTION, HARNESS_FUNCTIONS, Edge, Profiler, Span
from mcugen.simulation.timings import REPLACED_PARTS, TIMINGS, Timing
from mcugen.simulation.waits import Wait, memories_with_waits, memories_without_timing, read_wait


@dataclass(frozen=True)
class Cycles:
    """Estimated cycles of one call of the model.

    If the simulator cannot estimate cycles, `total`, `layers` and `layer_waits` are None, and `note` has the reason.
    """

    total: int | None
    """Cycles of the call, with stall cycles; None if they cannot be estimated."""
    layers: tuple[int, ...] | None
    """Cycles of each layer, with stall cycles; None if layers were not profiled."""
    note: str
    """Name of the timing model and the assumption about memory, or the reason why there is no estimate."""
    layer_units: tuple[Mapping[str, int], ...] | None = None
    """For each layer, the number of executed instructions by CPU unit (see Instruction.unit); None if not profiled."""
    waits: tuple[Wait, ...] = ()
    """Stall cycles of the call by memory, which are part of `total`."""
    layer_waits: tuple[tuple[Wait, ...], ...] | None = None
    """For each layer, the stall cycles by memory; None if layers were not profiled."""

    @property
    def without_waits(self) -> int | None:
        """Return the cycles of the call without stalls on memory; None if cycles are not estimated."""
        return None if self.total is None else self.total - sum(wait.cycles for wait in self.waits)

    @property
    def layers_without_waits(self) -> tuple[int, ...] | None:
        """Return the cycles of each layer without stalls on memory; None if layers were not profiled."""
        if self.layers is None or self.layer_waits is None:
            return self.layers
        pairs = zip(self.layers, self.layer_waits, strict=True)
        return tuple(cycles - sum(wait.cycles for wait in waits) for cycles, waits in pairs)


STAND_IN = "ethosu_invoke_v3"
"""Name of the function of an accelerator's driver that test firmware with an accelerator has."""

STAND_IN_FUNCTIONS = ("ethosu_", "npu_", "harness_", "pass", "semihosting", "go_to_start")
"""Beginnings of the names of functions that play an accelerator's driver, whose estimated time counts instead of theirs
(templates/harness); a call of the model runs no other function of the test firmware with such a name."""


@dataclass(frozen=True)
class Disassembly:
    """The instructions of a firmware, and the address ranges in it that the estimate of cycles treats separately."""

    instructions: Mapping[int, Instruction]
    """Instructions by address."""
    ignored: Sequence[AddressRange] = ()
    """Address ranges of the test firmware's own functions, which are not counted."""
    copies: Sequence[AddressRange] = ()
    """Address ranges of the functions that stand for a DMA controller: one begins a copy, one waits for its end."""
    replaced: Mapping[AddressRange, int] = field(default_factory=dict)
    """Cycles of the core's instructions in place of functions, by the functions' address ranges (Timing.replaced)."""

    def block(self, edge: Edge) -> list[Instruction]:
        """Return the instructions of the basic block that a counted jump between blocks starts from, in order.

        Args:
            edge: The jump, from an execution profile.
        """
        block = [self.at(edge.begin)]
        while block[-1].address < edge.last:
            block.append(self.at(block[-1].end))
        return block

    def at(self, address: int) -> Instruction:
        """Return the instruction at an address.

        Raises:
            VerificationError: No instruction begins at the address.
        """
        if address not in self.instructions:
            raise VerificationError("what ran must be code of the program", f"address {address:#x}")
        return self.instructions[address]

    def branches(self, edge: Edge) -> bool:
        """Return whether a transition between basic blocks is a taken branch, and not a step to the next address."""
        return edge.to != self.at(edge.last).end

    def edges(self, span: Span) -> list[Edge]:
        """Return the transitions between basic blocks of an execution profile, without those in ignored functions."""
        return [edge for edge in span.edges if not any(edge.begin in area for area in self.ignored)]


def estimate_cycles(images: TargetImages, profiler: Profiler, instructions: int) -> Cycles:
    """Return estimated cycles of one call of the model and, if there is an image with hooks, of each layer.

    The cycles of a layer include the call of its hook. Without a timing of the CPU, a compiler for the plugin, or a
    QEMU that loads plugins, the result has a note instead of cycles.

    Args:
        images: The firmware, with and without hooks.
        profiler: Runs the images under QEMU with the profiling plugin.
        instructions: The counted instructions of a call, which the profile must agree with.

    Raises:
        VerificationError: The plugin saw another number of instructions.
    """
    board = profiler.board
    timing = TIMINGS.get(board.core)
    if timing is None:
        return Cycles(None, None, f"there is no timing of a {board.core}: kernels are chosen by instructions alone")
    known = {image: read_code(image, timing) for image in (images.model, images.layers) if image}
    try:
        spans = {image: profiler.spans(image, _prices(code, timing)) for image, code in known.items()}
    except (ToolMissingError, VerificationError) as error:
        return Cycles(None, None, f"no profile: {error}")
    run, code = spans[images.model][0], known[images.model]
    if (seen := instructions_of(run, code)) != instructions:
        raise VerificationError("the profile must agree with QEMU's timer", f"{seen} and {instructions} instructions")
    note = f"{timing.title}, {_memory(profiler, images.model)}"
    total, waits = _core_cycles(run, code, timing, board), _waits(run, board)
    total += sum(wait.cycles for wait in waits)
    if not images.layers:
        return Cycles(total, None, note, None, waits)
    layers, code = spans[images.layers][:-1], known[images.layers]  # The last span returns to the harness.
    layer_waits = tuple(_waits(span, board) for span in layers)
    layer_cycles = tuple(
        _core_cycles(span, code, timing, board) + sum(wait.cycles for wait in waits)
        for span, waits in zip(layers, layer_waits, strict=True)
    )
    return Cycles(
        total, layer_cycles, note, tuple(instructions_by_unit(span, code) for span in layers), waits, layer_waits
    )


def with_accelerators(cycles: Cycles, bundle: Bundle) -> Cycles:
    """Return the cycles of a call and its layers with the estimated time of accelerators, for which the CPU waits."""
    if cycles.total is None:
        return cycles
    times = Counter[int]()
    for invocation in bundle.invocations:
        times[invocation.layer] += invocation.runs * round(invocation.work.cpu_cycles)
    layers = cycles.layers and tuple(own + times[layer] for layer, own in enumerate(cycles.layers))
    note = f"{cycles.note}; NPU by its compiler's estimate"
    return replace(cycles, total=cycles.total + sum(times.values()), layers=layers, note=note)


def _core_cycles(span: Span, code: Disassembly, timing: Timing, board: Board) -> int:
    """Return the cycles on memory without wait states, multiplied by the measured core factor."""
    return round(cycles_of(span, code, timing) * board.core_factor)


def _memory(profiler: Profiler, image: Path) -> str:
    """Return the assumption about the memories that the firmware uses."""
    board = profiler.board
    unknown = memories_without_timing(board, image, profiler.bundle, profiler.machine)
    if unknown:
        return f"no wait states known of {', '.join(unknown)}"
    return f"{board.name}'s memories" if memories_with_waits(board) else "no wait states"


def _waits(span: Span, board: Board) -> tuple[Wait, ...]:
    return tuple(wait for wait in (read_wait(board, values) for values in span.waits) if wait.fetches or wait.reads)


def _prices(code: Disassembly, timing: Timing) -> Iterator[str]:
    """Yield the setup lines of instruction costs for the plugin, which overlaps memory accesses with instructions.

    A cost holds for the order of addresses, as the executed order is not known before.
    """
    addresses = sorted(code.instructions)
    prices = timing.pipeline.each([code.instructions[address] for address in addresses])
    first = code.instructions[addresses[0]]
    yield f"refill {timing.refill(first, first)}"
    yield from (f"price {address:x} {max(price, 0)}" for address, price in zip(addresses, prices, strict=True))


def read_code(image: Path, timing: Timing) -> Disassembly:
    """Disassemble a firmware, and mark the test firmware's own functions, which are not counted.

    Args:
        image: The ELF file of the firmware.
        timing: The timing rules of the core, which name the disassembler.
    """
    known = functions(image)
    copies = [known[name] for name in (COPY_FUNCTION, AWAIT_FUNCTION) if name in known]
    ignored = [area for name, area in known.items() if name in HARNESS_FUNCTIONS]
    parts = {area: 0 for name, area in known.items() if timing.replaced and name.startswith(REPLACED_PARTS)}
    if STAND_IN in known:
        parts |= {area: 0 for name, area in known.items() if name.startswith(STAND_IN_FUNCTIONS)}
    replaced = parts | {known[name]: cycles for name, cycles in timing.replaced.items() if name in known}
    return Disassembly(timing.read(image), ignored, copies, replaced)


def instructions_of(span: Span, code: Disassembly) -> int:
    """Return the number of instructions in an execution profile, without the test firmware's own functions."""
    return sum(edge.count * len(code.block(edge)) for edge in code.edges(span))


def instructions_by_unit(span: Span, code: Disassembly) -> Mapping[str, int]:
    """Return the number of instructions of an execution profile by CPU unit: the names of Instruction.unit."""
    units: Counter[str] = Counter()
    for edge in code.edges(span):
        for instruction in code.block(edge):
            units[instruction.unit] += edge.count
    return units


def cycles_of(span: Span, code: Disassembly, timing: Timing) -> int:
    """Return the estimated cycles of an execution profile, on memory without wait states.

    Args:
        span: The profile of a call or of a layer.
        code: The firmware's instructions.
        timing: The timing rules of the core.
    """
    cycles = sum(edge.count * _edge_cycles(edge, code, timing) for edge in _whole_blocks(code.edges(span), code))
    return cycles + (span.unaligned if timing.splits_unaligned else 0)


def _whole_blocks(edges: Sequence[Edge], code: Disassembly) -> list[Edge]:
    """Merge blocks where the first always continues to the second and nothing else leads there.

    QEMU also begins a block inside straight code: at a page, or after a number of instructions. Page boundaries depend
    on the linker; the timing of instruction pairs must not.
    """
    begun, led = defaultdict[int, list[Edge]](list), Counter[int](edge.to for edge in edges)
    for edge in edges:
        begun[edge.begin].append(edge)
    for begin in sorted(begun, reverse=True):  # Blocks behind are merged already.
        first, *other_exits = begun[begin]
        continuation = begun.get(first.to, [])
        is_alone = not other_exits and led[first.to] == 1 and sum(edge.count for edge in continuation) == first.count
        if is_alone and begin < first.to and not code.branches(first):
            del begun[first.to]
            begun[begin] = [replace(edge, begin=begin) for edge in continuation]
    return [edge for block_edges in begun.values() for edge in block_edges]


def _edge_cycles(edge: Edge, code: Disassembly, timing: Timing) -> int:
    """Return the cycles of an executed block, and of the transition to the next block.

    The next instruction, or the target of a branch without refill, issues as if it were part of the block.
    """
    if any(edge.begin in area for area in code.copies):
        return 0  # A DMA controller would run this code's work on the board.
    if any(edge.begin in area for area in code.replaced):
        return 0  # The call counts as the instruction that the core has.
    block, target = code.block(edge), code.at(edge.to)
    instruction_cycles = next((cycles for area, cycles in code.replaced.items() if edge.to == area.begin), None)
    if instruction_cycles is not None:
        return timing.cycles(block) - 1 + instruction_cycles
    refill = timing.refill(block[-1], target) if code.branches(edge) else 0
    if refill:
        return timing.cycles(block) + refill
    return timing.cycles([*block, target]) - timing.cycles([target])
