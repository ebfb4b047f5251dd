# SPDX-License-Identifier: Apache-2.0
"""Estimated cycles of a call: a profile of what ran, priced by the CPU's timing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcugen.board import Board
from mcugen.errors import ToolMissingError, VerificationError
from mcugen.simulate.build import TargetImages
from mcugen.simulate.disassembly import Instruction, disassemble
from mcugen.simulate.elf import Range, functions
from mcugen.simulate.profile import HARNESS, Edge, Profiler, Span
from mcugen.simulate.timings import TIMINGS, Timing, unit_of


@dataclass(frozen=True)
class Cycles:
    """Estimated cycles of one call, None where they are not known; `note` says by which timing, or why not."""

    total: int | None
    layers: tuple[int, ...] | None
    note: str
    layer_units: tuple[Mapping[str, int], ...] | None = None
    """Of each layer, how many instructions occupied which part of the CPU (see timings.unit_of)."""


@dataclass(frozen=True)
class Code:
    """A program's instructions by address, and the ranges of addresses that do not count."""

    instructions: Mapping[int, Instruction]
    ignored: Sequence[Range] = ()

    def block(self, edge: Edge) -> list[Instruction]:
        """The instructions that ran."""
        block = [self.at(edge.begin)]
        while block[-1].address < edge.last:
            block.append(self.at(block[-1].end))
        return block

    def at(self, address: int) -> Instruction:
        """The instruction there; VerificationError if there is none."""
        if address not in self.instructions:
            raise VerificationError("what ran must be code of the program", f"address {address:#x}")
        return self.instructions[address]

    def branches(self, edge: Edge) -> bool:
        """Whether the block did not go on to what lies behind it."""
        return edge.to != self.at(edge.last).end

    def edges(self, span: Span) -> list[Edge]:
        """Those of blocks that count."""
        return [edge for edge in span.edges if not any(edge.begin in area for area in self.ignored)]


def estimate_cycles(
    images: TargetImages, board: Board, profiler: Profiler, instructions: int, wait_states: int
) -> Cycles:
    """Cycles of one call of the model, and of each layer, its hook's call included, if there is an image with hooks.

    Without a timing of the CPU, a compiler for the plugin or a QEMU that loads it, there is a note instead.
    VerificationError: the plugin did not see the `instructions` that were counted.
    """
    timing = TIMINGS.get(board.cpu)
    if timing is None:
        return Cycles(None, None, f"there is no timing of a {board.cpu}")
    try:
        spans = {image: profiler.spans(image) for image in (images.model, images.layers) if image}
    except (ToolMissingError, VerificationError) as error:
        return Cycles(None, None, f"no profile: {error}")
    (run,), code = spans[images.model], read_code(images.model)
    if (seen := instructions_of(run, code)) != instructions:
        raise VerificationError("the profile must agree with QEMU's timer", f"{seen} and {instructions} instructions")
    note = f"{timing.title}, {_memory(timing, wait_states)}"
    total = cycles_of(run, code, timing, wait_states)
    if not images.layers:
        return Cycles(total, None, note)
    *layers, _ = spans[images.layers]  # the last span is the way out
    code = read_code(images.layers)
    each = tuple(cycles_of(span, code, timing, wait_states) for span in layers)
    return Cycles(total, each, note, tuple(units_of(span, code) for span in layers))


def _memory(timing: Timing, wait_states: int) -> str:
    if not timing.uncached:
        return "caches hit"
    return f"flash waits {wait_states}" if wait_states else "no wait states"


def read_code(image: Path) -> Code:
    """The code of firmware, of which the harness's own does not count."""
    return Code(disassemble(image), [area for name, area in functions(image).items() if name in HARNESS])


def instructions_of(span: Span, code: Code) -> int:
    """How many instructions ran."""
    return sum(edge.count * len(code.block(edge)) for edge in code.edges(span))


def units_of(span: Span, code: Code) -> Mapping[str, int]:
    """How many instructions ran, by the part of the CPU that they occupy."""
    units: Counter[str] = Counter()
    for edge in code.edges(span):
        for instruction in code.block(edge):
            units[unit_of(instruction)] += edge.count
    return units


def cycles_of(span: Span, code: Code, timing: Timing, wait_states: int = 0) -> int:
    """Estimated cycles. Each read of the watched ranges and each taken branch waits `wait_states` cycles for flash."""
    edges = code.edges(span)
    cycles = sum(edge.count * _edge_cycles(edge, code, timing) for edge in edges)
    if not timing.uncached:
        return cycles
    taken = sum(edge.count for edge in edges if code.branches(edge))
    return cycles + span.unaligned + wait_states * (span.reads + taken)


def _edge_cycles(edge: Edge, code: Code, timing: Timing) -> int:
    """Cycles of the block that ran, and of the way to the next."""
    block, pipeline = code.block(edge), timing.pipeline
    cycles = pipeline.cycles(block)
    if code.branches(edge):
        return cycles + timing.refill
    # QEMU begins a new block in the middle of straight code too: at a page, or after so many instructions.
    seam = [block[-1], code.at(edge.to)]
    return cycles + pipeline.cycles(seam) - sum(pipeline.cycles([instruction]) for instruction in seam)
