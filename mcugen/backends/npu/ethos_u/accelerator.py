# SPDX-License-Identifier: Apache-2.0
"""Ethos-U as an accelerator: segments compiled by Vela, and the calls of Arm's driver that run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from mcugen.backends.accelerator import Accelerator, SegmentRefused
from mcugen.backends.npu.ethos_u import vela
from mcugen.backends.npu.ethos_u.command_stream import listing_of
from mcugen.backends.npu.ethos_u.legalization import adapted, fault_of, write_segment
from mcugen.backends.npu.ethos_u.segment_check import commands_fault, execute_commands
from mcugen.core.board import Board, Npu
from mcugen.hir.graph import Graph, Node
from mcugen.hir.operator import Operator
from mcugen.hir.types import DType
from mcugen.kernels.ethos_u import ETHOS_U_INVOKE, Regions, RegionSizes
from mcugen.lir.builder import Builder
from mcugen.lir.copies import CopyRange
from mcugen.lir.kernel import Call
from mcugen.lir.program import ALIGNMENT, Buffer, OffloadedWork
from mcugen.ops.offload import CommandListing, CompiledSegment

INVOCATION_CYCLES = 3000
"""CPU cycles of one invocation besides the NPU's work: reservation, registers, power, interrupt, release.

An assumption: Arm's driver runs some 1,000 instructions, and wakes up from an interrupt twice.
"""

MAINTENANCE_CYCLES = 4
"""CPU cycles to clean or invalidate a cache line without data to be written: a store and a loop. An assumption."""

WRITE_BACK_CYCLES = 16
"""CPU cycles of a cache line that is written to memory besides. An assumption: 32 bytes through a port of 64 bits."""


@dataclass(frozen=True, eq=False)
class EthosUSegment(CompiledSegment):
    """A segment that Vela compiled.

    Attributes:
        compiled: The commands, the weights and the places of all tensors.
    """

    compiled: vela.CompiledTosa = field(repr=False)

    def emit(self, node: Node, builder: Builder) -> None:
        """Append one instruction that invokes the NPU, and the moves of several inputs and outputs.

        Several inputs lie one behind the other in one buffer, since the NPU has few base addresses. The memory planner
        places them there, or else they are copied; so are several outputs.
        """
        compiled, name = self.compiled, node.outputs[0].name
        x, y = (self._joined(builder, name, role) for role in ("inputs", "outputs"))
        for index, place in enumerate(compiled.inputs):
            source = builder.buffer(node.input(index))
            if x is not None:
                builder.move(node, source, x, "input of the NPU", part=CopyRange(0, place.offset, source.nbytes))
        operands = {
            "x": x or builder.buffer(node.input(0)),
            "commands": builder.const(f"{name}.commands", compiled.commands, alignment=ALIGNMENT),
        }
        if compiled.weights.size:
            operands["weights"] = builder.const(f"{name}.npu_weights", compiled.weights, alignment=ALIGNMENT)
        operands["y"] = y or builder.buffer(node.outputs[0])
        if compiled.scratch.nbytes:
            operands["scratch"] = builder.scratch(f"{name}.scratch", DType.UINT8, compiled.scratch.nbytes)
        by_number = {number: role for role, number in self._regions.items()}
        regions = tuple(by_number.get(number, "") for number in range(max(by_number) + 1))
        call = Call(ETHOS_U_INVOKE, operands, [_sizes(regions, operands)], [Regions(regions=regions)], note=self.note)
        inputs = tuple((place.offset, place.nbytes) for place in compiled.inputs)
        builder.call(node, call).offloaded = OffloadedWork(self.cpu_cycles, self.execute, inputs)
        for value, place in zip(node.outputs, compiled.outputs, strict=True):
            target = builder.buffer(value)
            if y is not None:
                builder.move(node, y, target, "output of the NPU", part=CopyRange(place.offset, 0, target.nbytes))

    @property
    def _regions(self) -> dict[str, int]:
        """Return the numbers of the regions by the kernel's operands."""
        compiled = self.compiled
        regions = {"x": compiled.inputs[0].region, "y": compiled.outputs[0].region}
        regions |= {"weights": compiled.weights_region} if compiled.weights.size else {}
        return regions | ({"scratch": compiled.scratch.region} if compiled.scratch.nbytes else {})

    def execute(self, operands: Mapping[str, bytes]) -> bytes:
        """Return the bytes of the operand `y`, by executing the commands among the operands on the others."""
        contents = {self._regions[role]: data for role, data in operands.items() if role != "commands"}
        return execute_commands(self.compiled, operands["commands"], contents)

    def listing(self) -> CommandListing:
        """Return the operations of the command stream."""
        return listing_of(self.compiled.commands.tobytes())

    def _joined(self, builder: Builder, name: str, role: str) -> Buffer | None:
        """Return a new buffer for all inputs or outputs; None if there is only one, which has its own."""
        places = self.compiled.inputs if role == "inputs" else self.compiled.outputs
        if len(places) == 1 and places[0].offset == 0:
            return None
        return builder.scratch(f"{name}.{role}", DType.UINT8, max(place.offset + place.nbytes for place in places))

    @property
    def note(self) -> str:
        """Return the description of the segment in listings."""
        return f"{self.accelerator}, {self.accelerator_cycles:,.0f} cycles of its clock by Vela's estimate"


def _sizes(regions: Sequence[str], operands: dict[str, Buffer]) -> RegionSizes:
    sizes = {f"region_bytes{i}": operands[role].nbytes for i, role in enumerate(regions) if role}
    return RegionSizes(command_bytes=operands["commands"].nbytes, region_bytes=sizes)


class EthosU(Accelerator):
    """Arm's Ethos-U55, U65 and U85."""

    family: ClassVar[str] = "ethos"

    def why_missing(self) -> tuple[str, str] | None:
        """Return that Vela is missing, if it is not installed."""
        return None if vela.is_installed() else ("Arm's compiler Vela (package ethos-u-vela)", vela.EXTRA)

    def fault(self, node: Node, npu: Npu) -> str:
        """Return why the NPU does not compute a node with our bits, as a phrase; "" if it does."""
        return fault_of(node)

    def adapt(self, node: Node, npu: Npu) -> Operator | None:
        """Return an operator that the NPU computes (`adapted`); None to keep that of the node."""
        return adapted(node, npu)

    def compile(self, bodies: Sequence[Graph], board: Board) -> list[CompiledSegment | SegmentRefused]:
        """Compile several segments by Vela; those whose commands compute other bits than numpy are refused."""
        replies = vela.compile_tosa([write_segment(body).serialize() for body in bodies], board)
        return [_checked(body, reply, board) for body, reply in zip(bodies, replies, strict=True)]


def _checked(body: Graph, reply: vela.CompiledTosa | str, board: Board) -> CompiledSegment | SegmentRefused:
    if isinstance(reply, str):
        return SegmentRefused(f"Vela refuses it: {reply.strip().splitlines()[-1][:200]}")
    fault = commands_fault(body, reply)
    return SegmentRefused(fault) if fault else _segment(reply, board)


def _segment(compiled: vela.CompiledTosa, board: Board) -> EthosUSegment:
    npu = board.npu
    assert npu is not None
    cpu_cycles = compiled.cycles * board.clock_hz / npu.clock_hz + INVOCATION_CYCLES
    return EthosUSegment(
        accelerator=vela.title_of(npu),
        accelerator_cycles=compiled.cycles,
        cpu_cycles=cpu_cycles + _cache_cycles(compiled, board),
        scratch_bytes=compiled.scratch.nbytes,
        constant_bytes=compiled.commands.nbytes + compiled.weights.nbytes,
        compiled=compiled,
    )


def _cache_cycles(compiled: vela.CompiledTosa, board: Board) -> float:
    """Return the CPU cycles of cache maintenance around one invocation; 0 without a data cache.

    Inputs, outputs and working memory are cleaned before, of which the CPU wrote the inputs; outputs are invalidated
    after.
    """
    npu = board.npu
    assert npu is not None
    cache = board.cache(board.memory(npu.activations.memory), "data")
    if cache is None:
        return 0.0
    inputs, outputs = (sum(place.nbytes for place in places) for places in (compiled.inputs, compiled.outputs))
    maintained = inputs + 2 * outputs + compiled.scratch.nbytes
    return (MAINTENANCE_CYCLES * maintained + WRITE_BACK_CYCLES * min(inputs, cache.size)) / cache.line


ETHOS_U = EthosU()
"""The accelerator Ethos-U."""
