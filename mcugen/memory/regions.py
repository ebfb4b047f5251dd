# SPDX-License-Identifier: Apache-2.0
"""Regions: groups of buffers at fixed distances, so that moves between them need no code."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from mcugen.lir.program import ALIGNMENT, MOVE, WORD, Access, Buffer, Control, Instr, Program, aligned


@dataclass(frozen=True)
class Freedom:
    """The distances at which an output of an instruction may overlap an input in memory.

    A distance is measured in bytes from the start of the input to the start of the output; it is negative if the output
    begins first.

    Attributes:
        at: Distances that are allowed, in addition to those up to `up_to`.
        up_to: Distance up to which all distances are allowed; None if only those in `at` are.
    """

    at: frozenset[int]
    up_to: int | None

    def allows(self, distance: int) -> bool:
        """Return whether the output may begin `distance` bytes behind the start of the input."""
        return distance in self.at or (self.up_to is not None and distance <= self.up_to)

    def max_shared_bytes(self, out: int, into: int, granule: int = ALIGNMENT) -> int:
        """Return the most bytes that an output and an input of given sizes can share at an allowed distance.

        Args:
            out: Bytes of the output.
            into: Bytes of the input.
            granule: Bytes of which distances below `up_to` must be multiples.
        """
        distances = [*self.at]
        if self.up_to is not None:
            distances.append(min(self.up_to // granule * granule, max(into - out, 0)))
        return max(max(min(at + out, into) - max(at, 0), 0) for at in distances)


def freedom(instr: Instr, out: Buffer, into: Buffer) -> Freedom | None:
    """Return the distances at which an instruction's output may overlap its input, if the input is not read later.

    Args:
        instr: The instruction.
        out: The buffer of the output.
        into: The buffer of the input.

    Returns:
        The distances; None if the buffers must not overlap.
    """
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
class BufferUse:
    """A read or write of some bytes of a buffer by an instruction.

    Attributes:
        index: Index of the instruction; −1 and the number of instructions stand for the caller, before and after the
            program.
        writes: Whether the bytes are written; else they are read.
        low: Offset in the buffer of the first byte.
        high: Offset in the buffer after the last byte.
    """

    index: int
    writes: bool
    low: int
    high: int


class LiveRanges:
    """The live ranges of all buffers in one area of the arena, and the instructions that use them.

    Args:
        program: The program.
        area: Index of the area.
    """

    def __init__(self, program: Program, area: int) -> None:
        self.program = program
        self.ranges = {b: life for b, life in program.live_ranges().items() if b.area == area and b.nbytes}
        self._uses: dict[Buffer, list[BufferUse]] = {b: [] for b in self.ranges}
        for endpoint in program.inputs:
            self._add(endpoint.buffer, -1, True)
        for index, instr in enumerate(program.instrs):
            for operand in instr.operands:
                at, nbytes = instr.part(operand.role) if instr.kernel == MOVE else (0, operand.buffer.nbytes)
                self._add(operand.buffer, index, operand.access is not Access.IN, at, nbytes)
        for endpoint in program.outputs:
            self._add(endpoint.buffer, len(program.instrs), False)

    def _add(self, buffer: Buffer, index: int, writes: bool, at: int = 0, nbytes: int | None = None) -> None:
        if buffer in self._uses:
            end = buffer.nbytes if nbytes is None else at + nbytes
            self._uses[buffer].append(BufferUse(index, writes, at, end))

    def uses(self, buffer: Buffer, first: int, end: int, low: int, high: int) -> list[BufferUse]:
        """Return the reads and writes of some bytes of a buffer by a range of instructions, in their order.

        Args:
            buffer: The buffer.
            first: Index of the first instruction of the range.
            end: Index after the last instruction of the range.
            low: Offset in the buffer of the first byte.
            high: Offset in the buffer after the last byte.
        """
        uses = self._uses[buffer]
        start, stop = (bisect_left(uses, index, key=lambda use: use.index) for index in (first, end))
        return [use for use in uses[start:stop] if use.low < high and low < use.high]

    def writers(self, buffer: Buffer) -> list[int]:
        """Return the indices of the instructions that write a buffer; −1 stands for the caller."""
        return [use.index for use in self._uses[buffer] if use.writes]

    def meet(self, a: Buffer, b: Buffer) -> bool:
        """Return whether the live ranges of two buffers overlap."""
        (first, last), (begin, end) = self.ranges[a], self.ranges[b]
        return first <= end and begin <= last

    @cached_property
    def blocks(self) -> list[tuple[int, ...]]:
        """Return, for each instruction, the indices of the markers that begin its enclosing blocks, outermost first.

        A block is a range of instructions between two markers, such as a loop or a branch. For an instruction on the
        second side of a branch, the marker between the sides (ELSE) takes the place of the marker that begins the
        block.
        """
        around: list[tuple[int, ...]] = []
        path: tuple[int, ...] = ()
        for index, instr in enumerate(self.program.instrs):
            path = path[:-1] if instr.control in (Control.ELSE, Control.END) else path
            around.append(path)
            path = path if instr.control in (Control.NONE, Control.END) else (*path, index)
        return around

    def is_certain(self, index: int, after: int) -> bool:
        """Return whether instruction `index` always runs if the earlier instruction `after` has run.

        Args:
            index: Index of the instruction.
            after: Index of the earlier instruction; negative for the start of the program.
        """
        around = self.blocks[index]
        return not around if after < 0 else self.blocks[after][: len(around)] == around


@dataclass(eq=False)
class Region:
    """Buffers that are placed together in the arena, at fixed distances.

    Attributes:
        members: Offset in bytes of each buffer from the region's start.
    """

    members: dict[Buffer, int]

    @property
    def nbytes(self) -> int:
        """Return the aligned bytes of the region, up to the end of its last buffer."""
        return aligned(max(at + b.nbytes for b, at in self.members.items()))

    @property
    def granule(self) -> int:
        """Return the step in bytes of the addresses at which the region's buffers may overlap other buffers.

        It is the greatest common divisor of the buffers' offsets in the region and of ALIGNMENT.
        """
        return gcd(ALIGNMENT, *self.members.values())


def joined_regions(live_ranges: LiveRanges, joins: bool) -> list[Region]:
    """Return the regions (groups of buffers at fixed distances) to place: one for each buffer, or larger ones.

    Args:
        live_ranges: The live ranges of the buffers.
        joins: Whether the buffers of a move (a copy of bytes) form one region, where that is safe. A move within a
            region needs no code, as its source and target have the same address.
    """
    region_of = {b: Region({b: 0}) for b in live_ranges.ranges}
    for move in _moves(live_ranges) if joins else ():
        source, target = region_of[move.x], region_of[move.y]
        if source is target:
            continue
        by = source.members[move.x] + move.x_at - move.y_at - target.members[move.y]
        joined = source.members | {b: at + by for b, at in target.members.items()}
        start = min(joined.values())
        region = Region({b: at - start for b, at in joined.items()})
        if _is_aligned(region) and _may_join(live_ranges, move, source, target, by):
            region_of.update(dict.fromkeys(joined, region))
    return list(dict.fromkeys(region_of.values()))


def covered_bytes(spans: Iterable[tuple[int, int, int]]) -> int:
    """Return the total bytes of spans of memory; bytes that several spans share count once.

    Args:
        spans: For each span, the number of its region of memory, the first byte, and the byte after the last one.
    """
    total, reached = 0, (-1, 0)
    for region, start, end in sorted(spans):
        begin = max(start, reached[1]) if region == reached[0] else start
        total += max(end - begin, 0)
        reached = (region, max(end, begin))
    return total


@dataclass(frozen=True)
class _Move:
    """A move of `nbytes` bytes from `x_at` in one buffer to `y_at` in another."""

    index: int
    x: Buffer
    y: Buffer
    x_at: int
    y_at: int
    nbytes: int


def _moves(live_ranges: LiveRanges) -> Iterator[_Move]:
    """Yield the moves that can be eliminated."""
    for index, instr in enumerate(live_ranges.program.instrs):
        if instr.kernel == MOVE and instr.has_fixed_parts and not instr.stays:
            x, y = instr.operand("x").buffer, instr.operand("y").buffer
            if x is not y and x in live_ranges.ranges and y in live_ranges.ranges:
                yield _Move(index, x, y, instr.part("x")[0], *instr.part("y"))


def _is_aligned(region: Region) -> bool:
    """Return whether all members are aligned to words and to their element size, as kernels need: see WORD."""
    return all(at % max(WORD, b.dtype.nbytes) == 0 for b, at in region.members.items())


def _may_join(live_ranges: LiveRanges, move: _Move, source: Region, target: Region, by: int) -> bool:
    """Return whether `target` may begin `by` bytes after `source` without changing results.

    There are two cases. The owner of the shared bytes dies by the move, and until then no instruction uses the bytes
    that the move overwrites. Or the target is a view of the source: only the move writes the target, and no instruction
    writes the source while the target lives.
    """
    is_view = (
        len(target.members) == 1
        and live_ranges.writers(move.y) == [move.index] == [live_ranges.ranges[move.y][0]]
        and move.nbytes == move.y.nbytes
    )
    for m, m_at in source.members.items():
        for t, t_at in target.members.items():
            low, high = max(m_at, t_at + by), min(m_at + m.nbytes, t_at + by + t.nbytes)
            if low >= high or not live_ranges.meet(m, t):
                continue
            common = _Common(m, low - m_at, low - t_at - by, high - low)
            if t is not move.y or not (
                _ends_in(live_ranges, move, common) or (is_view and not _is_written_under(live_ranges, move, common))
            ):
                return False
    return True


@dataclass(frozen=True)
class _Common:
    """The bytes that a buffer would share with a move's target, with their offsets in both."""

    m: Buffer
    m_at: int
    y_at: int
    nbytes: int


def _is_written_under(live_ranges: LiveRanges, move: _Move, common: _Common) -> bool:
    """Return whether an instruction writes the common bytes through `m` while the target, a view of them, lives."""
    _, last = live_ranges.ranges[move.y]
    uses = live_ranges.uses(common.m, move.index + 1, last + 1, common.m_at, common.m_at + common.nbytes)
    return any(use.writes for use in uses)


def _ends_in(live_ranges: LiveRanges, move: _Move, common: _Common) -> bool:
    """Return whether `m` may use the common bytes, which it no longer needs after the move.

    The bytes of the target must not be needed before: the target is not alive yet, or the move certainly runs and
    overwrites them.
    """
    first, last = live_ranges.ranges[common.m]
    is_fresh = live_ranges.ranges[move.y][0] == move.index
    inside = move.y_at <= common.y_at and common.y_at + common.nbytes <= move.y_at + move.nbytes
    if last > move.index or not (is_fresh or (inside and live_ranges.is_certain(move.index, first))):
        return False
    used = live_ranges.uses(move.y, first, move.index, common.y_at, common.y_at + common.nbytes)
    if not used:
        return True
    if (
        [use.index for use in used] != [first]
        or first < 0
        or live_ranges.program.instrs[first].control is not Control.NONE
    ):
        return False
    # The instruction that computes `m` reads the target's old value.
    free = freedom(live_ranges.program.instrs[first], common.m, move.y)
    return free is not None and free.allows(common.y_at - common.m_at)
