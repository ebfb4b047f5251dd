# SPDX-License-Identifier: Apache-2.0
"""Use of the arena over time, and its peak."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from mcugen.hir.layer_names import shorten_name
from mcugen.lir.layer_titles import buffer_names
from mcugen.lir.program import Buffer, Program
from mcugen.memory.regions import covered_bytes

NUM_NAMED_BUFFERS = 4
"""Number of buffers that an error message about the peak names."""


@dataclass(frozen=True)
class Moment:
    """The use of the arena during one instruction, or before or after the program.

    Attributes:
        index: Index of the instruction; −1 before the first one, the number of instructions after the last one.
        buffers: The live buffers, by address.
        nbytes: Bytes in use; bytes that buffers share count once.
    """

    index: int
    buffers: tuple[Buffer, ...]
    nbytes: int


def moments(program: Program) -> list[Moment]:
    """Return the use of the arena before the first instruction, during each one, and after the last one.

    The program must have a memory plan.
    """
    ranges = program.live_ranges()
    beginning: dict[int, list[Buffer]] = defaultdict(list)
    for buffer, (first, _) in ranges.items():
        beginning[first].append(buffer)
    moments_of_run, alive = [], list[Buffer]()
    for index in range(-1, len(program.instrs) + 1):
        alive = [b for b in alive if index <= ranges[b][1]] + beginning[index]
        ordered = tuple(sorted(alive, key=lambda b: (address(program, b), -b.nbytes, b.name)))
        spans = ((b.area, b.offset or 0, (b.offset or 0) + b.nbytes) for b in alive)
        moments_of_run.append(Moment(index, ordered, covered_bytes(spans)))
    return moments_of_run


def busiest(moments: Iterable[Moment]) -> Moment:
    """Return the moment with the most bytes of the arena in use.

    If several moments use as many bytes, it is the first one of those with the most live buffers.
    """
    return max(moments, key=lambda moment: (moment.nbytes, len(moment.buffers)))


def address(program: Program, buffer: Buffer) -> int:
    """Return the address of a planned buffer in bytes, as if the arena's areas were adjacent and began at 0."""
    return sum(program.area_sizes[: buffer.area]) + (buffer.offset or 0)


def largest(program: Program, buffers: Iterable[Buffer]) -> str:
    """Return a text for an error message with the names and sizes in bytes of the largest of some buffers.

    It names at most NUM_NAMED_BUFFERS buffers, by the layer or tensor that they belong to.
    """
    names = buffer_names(program)
    ordered = sorted(buffers, key=lambda b: (-b.nbytes, b.name))
    listing = ", ".join(f"'{shorten_name(names[b])}' {b.nbytes:,}" for b in ordered[:NUM_NAMED_BUFFERS])
    return f"{listing} …" if len(ordered) > NUM_NAMED_BUFFERS else listing
