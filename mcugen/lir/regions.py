# SPDX-License-Identifier: Apache-2.0
"""Buffers at fixed distances from each other: so moves between them, of wholes or of parts, move nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd

from mcugen.lir.program import ALIGNMENT, MOVE, WORD, Access, Buffer, Control, Instr, Program


@dataclass(frozen=True)
class Freedom:
    """At which distances (bytes from the beginning of `into` to that of `out`) an output may lie over an input."""

    at: frozenset[int]
    """These."""
    up_to: int | None
    """And all up to this one."""

    def allows(self, distance: int) -> bool:
        """Whether it is among them."""
        return distance in self.at or (self.up_to is not None and distance <= self.up_to)

    def most_shared(self, out: int, into: int, granule: int = ALIGNMENT) -> int:
        """The most bytes that they have in common, for these sizes, at distances that are multiples of `granule`."""
        distances = [*self.at]
        if self.up_to is not None:
            distances.append(min(self.up_to // granule * granule, max(into - out, 0)))
        return max(max(min(at + out, into) - max(at, 0), 0) for at in distances)


def freedom(instr: Instr, out: Buffer, into: Buffer) -> Freedom | None:
    """What the instruction allows to its output, if nobody reads the input later."""
    pairs = [(o.role, i.role) for o in instr.operands if o.buffer is out for i in instr.operands if i.buffer is into]
    if len(pairs) != 1:
        return None
    (pair,) = pairs
    at = {0} if pair in instr.inplace and out.nbytes <= into.nbytes else set()
    if instr.kernel == MOVE and instr.has_fixed_parts:
        at.add(instr.distance)
    leads = [overlap.lead for overlap in instr.overlaps if (overlap.out, overlap.into) == pair]
    return Freedom(frozenset(at), -min(leads) if leads else None) if at or leads else None


@dataclass(frozen=True)
class Uses:
    """Which instructions use a buffer, and which of these write it; -1 and their number stand for the caller."""

    all: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)


def _between(sorted_numbers: list[int], first: int, end: int) -> list[int]:
    """Those from `first` to before `end`."""
    return sorted_numbers[bisect_left(sorted_numbers, first) : bisect_left(sorted_numbers, end)]


class Lives:
    """When which buffers of an area are alive and used."""

    def __init__(self, program: Program, area: int) -> None:
        self.program = program
        self.ranges = {b: life for b, life in program.live_ranges().items() if b.area == area and b.nbytes}
        self.uses = {b: Uses() for b in self.ranges}
        for endpoint in program.inputs:
            self._use(endpoint.buffer, -1, True)
        for index, instr in enumerate(program.instrs):
            for operand in instr.operands:
                self._use(operand.buffer, index, operand.access is not Access.IN)
        for endpoint in program.outputs:
            self._use(endpoint.buffer, len(program.instrs), False)

    def _use(self, buffer: Buffer, index: int, writes: bool) -> None:
        if buffer in self.uses:
            self.uses[buffer].all.append(index)
            self.uses[buffer].writes.extend([index] * writes)

    def meet(self, a: Buffer, b: Buffer) -> bool:
        """Whether both are alive at some instruction."""
        (first, last), (begin, end) = self.ranges[a], self.ranges[b]
        return first <= end and begin <= last

    @cached_property
    def blocks(self) -> list[tuple[int, ...]]:
        """By instruction: the markers that begin the blocks around it (of a branch, also the one between its sides)."""
        around: list[tuple[int, ...]] = []
        path: tuple[int, ...] = ()
        for index, instr in enumerate(self.program.instrs):
            path = path[:-1] if instr.control in (Control.ELSE, Control.END) else path
            around.append(path)
            path = path if instr.control in (Control.NONE, Control.END) else (*path, index)
        return around

    def is_certain(self, index: int, after: int) -> bool:
        """Whether instruction `index` runs whenever `after` has run, which comes before it."""
        around = self.blocks[index]
        return not around if after < 0 else self.blocks[after][: len(around)] == around


@dataclass(eq=False)
class Region:
    """Buffers, and how many bytes after the beginning of the region each begins."""

    members: dict[Buffer, int]

    @property
    def nbytes(self) -> int:
        """Aligned size."""
        return -(-max(at + b.nbytes for b, at in self.members.items()) // ALIGNMENT) * ALIGNMENT

    @property
    def granule(self) -> int:
        """All members begin at multiples of it."""
        return gcd(ALIGNMENT, *self.members.values())


def joined_regions(lives: Lives, joins: bool) -> list[Region]:
    """Each buffer is one, but for those that moves join, if `joins`."""
    region_of = {b: Region({b: 0}) for b in lives.ranges}
    for move in _moves(lives) if joins else ():
        source, target = region_of[move.x], region_of[move.y]
        if source is target:
            continue
        by = source.members[move.x] + move.distance - target.members[move.y]
        joined = source.members | {b: at + by for b, at in target.members.items()}
        start = min(joined.values())
        region = Region({b: at - start for b, at in joined.items()})
        if _is_aligned(region) and _may_join(lives, move, source, target, by):
            region_of.update(dict.fromkeys(joined, region))
    return list(dict.fromkeys(region_of.values()))


@dataclass(frozen=True)
class _Move:
    """`nbytes` bytes at `x_at` become those at `y_at`."""

    index: int
    x: Buffer
    y: Buffer
    x_at: int
    y_at: int
    nbytes: int

    @property
    def distance(self) -> int:
        return self.x_at - self.y_at


def _moves(lives: Lives) -> Iterator[_Move]:
    """Those that may vanish."""
    for index, instr in enumerate(lives.program.instrs):
        if instr.kernel == MOVE and instr.has_fixed_parts:
            x, y = instr.operand("x").buffer, instr.operand("y").buffer
            if x is not y and x in lives.ranges and y in lives.ranges:
                x_at, y_at = int(instr.params.get("x_at", 0)), int(instr.params.get("y_at", 0))
                yield _Move(index, x, y, x_at, y_at, int(instr.params["nbytes"]))


def _is_aligned(region: Region) -> bool:
    """No kernel needs more than words, or the type's own size: see WORD."""
    return all(at % max(WORD, b.dtype.nbytes) == 0 for b, at in region.members.items())


def _may_join(lives: Lives, move: _Move, source: Region, target: Region, by: int) -> bool:
    """Whether `target`, if it begins `by` bytes after `source`, shares bytes only where that changes nothing.

    Either what holds the bytes of `source` ends by the move, and until then nobody uses what the move overwrites. Or
    the target is nothing but a view of the source: nobody else writes it, and nobody writes the source while it lives.
    """
    is_view = (
        len(target.members) == 1
        and lives.uses[move.y].writes == [move.index] == [lives.ranges[move.y][0]]
        and move.nbytes == move.y.nbytes
    )
    for m, m_at in source.members.items():
        for t, t_at in target.members.items():
            low, high = max(m_at, t_at + by), min(m_at + m.nbytes, t_at + by + t.nbytes)
            if low >= high or not lives.meet(m, t):
                continue
            begin = target.members[move.y] + by + move.y_at
            inside = begin <= low and high <= begin + move.nbytes
            if not (
                (t is move.y and _ends_in(lives, move, m, inside, t_at + by - m_at))
                or (is_view and not _between(lives.uses[m].writes, move.index + 1, lives.ranges[t][1] + 1))
            ):
                return False
    return True


def _ends_in(lives: Lives, move: _Move, m: Buffer, inside: bool, distance: int) -> bool:
    """Whether `m` may share bytes with the move's target, `distance` bytes before it, until the move at the latest.

    What these held is overwritten by the move, if it runs and if they are `inside` of its part; or it is nothing yet.
    """
    first, last = lives.ranges[m]
    is_fresh = lives.ranges[move.y][0] == move.index
    if last > move.index or not (is_fresh or (inside and lives.is_certain(move.index, first))):
        return False
    used = _between(lives.uses[move.y].all, first, move.index)
    if not used:
        return True
    if used != [first] or first < 0 or lives.program.instrs[first].control is not Control.NONE:
        return False
    free = freedom(lives.program.instrs[first], m, move.y)  # who computes it reads the old value
    return free is not None and free.allows(-distance)
