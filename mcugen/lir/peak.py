# SPDX-License-Identifier: Apache-2.0
"""How much of the arena is in use, and when it is most."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mcugen.lir.program import Buffer, Program


@dataclass(frozen=True)
class Moment:
    """What is alive during instruction `index` (−1 before the first, their number behind the last).

    `nbytes` are the bytes in use: those that buffers share count once.
    """

    index: int
    buffers: tuple[Buffer, ...]
    nbytes: int


def moments(program: Program) -> list[Moment]:
    """All of a planned program, from the call to its end; buffers in order of their addresses."""
    ranges = program.live_ranges()
    found = []
    for index in range(-1, len(program.instrs) + 1):
        alive = [b for b, (first, last) in ranges.items() if first <= index <= last]
        ordered = tuple(sorted(alive, key=lambda b: (address(program, b), -b.nbytes, b.name)))
        found.append(Moment(index, ordered, _occupied(program, ordered)))
    return found


def busiest(moments: Iterable[Moment]) -> Moment:
    """The one with the most bytes in use; of several that with the most buffers, and of those the first."""
    return max(moments, key=lambda moment: (moment.nbytes, len(moment.buffers)))


def address(program: Program, buffer: Buffer) -> int:
    """Of a planned buffer, in bytes, as if the areas of the arena lay one behind the other."""
    return sum(program.area_sizes[: buffer.area]) + (buffer.offset or 0)


def _occupied(program: Program, buffers: Iterable[Buffer]) -> int:
    """Bytes of the arena that these buffers take together."""
    total = end = 0
    for start, stop in sorted((at := address(program, b), at + b.nbytes) for b in buffers):
        total += max(stop - max(start, end), 0)
        end = max(end, stop)
    return total
