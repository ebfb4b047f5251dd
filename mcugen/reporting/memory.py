# SPDX-License-Identifier: Apache-2.0
"""The memory map: addresses and live ranges of all buffers in the arena."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mcugen.lir.layer_titles import buffer_names, layer_names
from mcugen.lir.program import Access, Buffer, Program, Space
from mcugen.memory.peak import Moment, address, busiest, moments
from mcugen.reporting.figures import ArenaBuffer

BUFFER_KINDS = ("input", "output", "activation", "scratch")
"""Kinds of buffers in the arena, by what they hold."""


@dataclass(frozen=True)
class Block:
    """A buffer in the arena: its place, and the instructions of the program during which it is live.

    Attributes:
        name: Name of the buffer: that of the layer that computes it, with its role, or that of an input or output.
        kind: One of BUFFER_KINDS.
        offset: Address of the buffer in the arena, in bytes.
        nbytes: Size of the buffer in bytes.
        first: First instruction that needs the buffer; −1 for the call of the model.
        last: Last instruction that needs the buffer; the number of instructions for the return.
    """

    name: str
    kind: str
    offset: int
    nbytes: int
    first: int
    last: int

    @property
    def end(self) -> int:
        """Return the first byte address in the arena after the buffer."""
        return self.offset + self.nbytes


@dataclass(frozen=True)
class LayerPeak:
    """The use of the arena while one layer runs, at the moment of most bytes.

    Attributes:
        name: Name of the layer.
        op: Its operator.
        kernel: Its kernel.
        first: Number of its first instruction in the program.
        last: Number of its last instruction in the program.
        nbytes: Bytes in use.
        scratch: Bytes among them of the layer's scratch memory.
        blocks: The live buffers by address.
        whole: Why the layer cannot be computed row by row; "" if it can.
    """

    name: str
    op: str
    kernel: str
    first: int
    last: int
    nbytes: int
    scratch: int
    blocks: tuple[Block, ...]
    whole: str = ""


@dataclass(frozen=True)
class Peak:
    """The moment with the most bytes of the arena in use.

    Attributes:
        index: Number of the program's instruction; −1 for the call, the number of instructions for the return.
        layer: Number of the layer; None before the first and after the last layer.
        name: Name of the layer.
        nbytes: Bytes in use.
    """

    index: int
    layer: int | None
    name: str
    nbytes: int
    blocks: tuple[Block, ...]
    """The buffers in use at the peak, the largest first."""


@dataclass(frozen=True)
class MemoryMap:
    """The use of the arena by a planned program over time.

    Attributes:
        model: Name of the model.
        board: Name of the board.
        areas: Bytes of each part of the arena, each of which is in another memory; addresses count through all parts.
        bound: Proven lower bound of the arena's bytes.
        peak: The moment with the most bytes in use.
        rows: The use by each layer, in order.
    """

    model: str
    board: str
    areas: tuple[int, ...]
    bound: int
    peak: Peak
    rows: tuple[LayerPeak, ...]
    blocks: tuple[Block, ...]
    """All buffers, in the order of their first use."""

    @property
    def arena(self) -> int:
        """Return the bytes of the arena: the sum over its parts in all memories."""
        return sum(self.areas)

    def layer_at(self, index: int) -> int:
        """Return the number of the layer that an instruction of the program belongs to.

        It is −1 before the first layer, and the number of layers after the last one.

        Args:
            index: Number of the instruction in the program.
        """
        return next((i for i, row in enumerate(self.rows) if index <= row.last), len(self.rows)) if index >= 0 else -1

    def to_json(self) -> dict[str, Any]:
        """Return the map as plain data for JSON; live ranges are given as layer numbers."""
        peak = self.peak
        return {
            "model": self.model,
            "board": self.board,
            "arena": self.arena,
            "areas": list(self.areas),
            "bound": self.bound,
            "peak": {
                "layer": peak.layer,
                "name": peak.name,
                "bytes": peak.nbytes,
                "buffers": [{"name": b.name, "kind": b.kind, "bytes": b.nbytes} for b in peak.blocks],
            },
            "layers": [
                {
                    "name": row.name,
                    "op": row.op,
                    "kernel": row.kernel,
                    "bytes": row.nbytes,
                    "scratch": row.scratch,
                    "whole": row.whole,
                    "buffers": [
                        {"name": b.name, "kind": b.kind, "offset": b.offset, "bytes": b.nbytes} for b in row.blocks
                    ],
                }
                for row in self.rows
            ],
            "buffers": [
                {
                    "name": b.name,
                    "kind": b.kind,
                    "offset": b.offset,
                    "bytes": b.nbytes,
                    "first": self.layer_at(b.first),
                    "last": self.layer_at(b.last),
                }
                for b in self.blocks
            ],
        }


def arena_buffers(program: Program, board: str) -> list[ArenaBuffer]:
    """Return the buffers in the arena of a planned program for its report; live ranges are given as layer numbers."""
    memory = memory_map(program, board)
    return [
        ArenaBuffer(b.name, b.kind, b.offset, b.nbytes, memory.layer_at(b.first), memory.layer_at(b.last))
        for b in memory.blocks
    ]


def memory_map(program: Program, board: str, whole: Mapping[str, str] | None = None) -> MemoryMap:
    """Return the memory map of a planned program.

    Args:
        program: The program.
        board: The name of the board.
        whole: Reasons why layers cannot be computed row by row, by the name of the layer's instruction; None if
            unknown.
    """
    scratch, names = _scratch(program), buffer_names(program)
    block_of = {
        b: Block(names[b], _kind(b, scratch), address(program, b), b.nbytes, first, last)
        for b, (first, last) in program.live_ranges().items()
        if b.nbytes
    }
    times = moments(program)
    layers = zip(layer_names(program), program.layers(), strict=True)
    rows = tuple(_row(program, name, layer, times, block_of, whole or {}) for name, layer in layers)
    peak = busiest(times)
    layer = next((i for i, row in enumerate(rows) if row.first <= peak.index <= row.last), None)
    outside = "the call" if peak.index < 0 else "the return"
    largest = sorted((block_of[b] for b in peak.buffers if b.nbytes), key=lambda b: (-b.nbytes, b.offset, b.name))
    return MemoryMap(
        model=program.name,
        board=board,
        areas=tuple(program.area_sizes),
        bound=sum(program.area_bounds),
        peak=Peak(peak.index, layer, outside if layer is None else rows[layer].name, peak.nbytes, tuple(largest)),
        rows=rows,
        blocks=tuple(sorted(block_of.values(), key=lambda b: (b.first, b.offset, -b.nbytes, b.name))),
    )


def _row(
    program: Program,
    name: str,
    layer: range,
    times: list[Moment],
    block_of: dict[Buffer, Block],
    whole: Mapping[str, str],
) -> LayerPeak:
    head = program.head(layer)
    peak = busiest(times[index + 1] for index in layer)
    blocks = tuple(block_of[b] for b in peak.buffers if b.nbytes)
    scratch = sum(b.nbytes for b in blocks if b.kind == "scratch")
    reason = whole.get(program.completing(layer).name, "")
    return LayerPeak(name, head.op, head.kernel, layer[0], layer[-1], peak.nbytes, scratch, blocks, reason)


def _scratch(program: Program) -> set[Buffer]:
    """Return the buffers that are used as scratch only."""
    uses = [o for instr in program.instrs for o in instr.operands]
    return {o.buffer for o in uses if o.access is Access.SCRATCH} - {
        o.buffer for o in uses if o.access is not Access.SCRATCH
    }


def _kind(buffer: Buffer, scratch: Collection[Buffer]) -> str:
    if buffer.space in (Space.INPUT, Space.OUTPUT):
        return str(buffer.space.value)
    return "scratch" if buffer in scratch else "activation"
