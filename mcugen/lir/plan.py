# SPDX-License-Identifier: Apache-2.0
"""Static memory planning: in-place merging, then greedy placement of regions in the arena."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mcugen.lir.program import ALIGNMENT, MOVE, Buffer, Instr, Program


@dataclass
class Region:
    """Buffers that share one start address, live from `first` to `last` (instruction numbers, inclusive)."""

    buffers: list[Buffer]
    first: int
    last: int
    accesses: set[int] = field(default_factory=set)
    """The instructions that use it (-1 and their number stand for the caller): between two of them, in a loop,
    its contents may be without interest."""

    @property
    def nbytes(self) -> int:
        """Aligned size."""
        largest = max(b.nbytes for b in self.buffers)
        return -(-largest // ALIGNMENT) * ALIGNMENT

    @property
    def area(self) -> int:
        """The one of all its buffers."""
        return self.buffers[0].area

    def overlaps(self, other: Region) -> bool:
        """Whether both are alive at some instruction, in one area."""
        return self.area == other.area and self.first <= other.last and other.first <= self.last


def plan_memory(program: Program) -> None:
    """Sets the offset of every planned buffer and the sizes of the areas of `program`."""
    mergings = [_merge_inplace(program, share) for share in _SHARES]
    best = min((_place(regions, order) for regions in mergings for order in _ORDERS), key=_extent)
    for region, offset in best:
        for buffer in region.buffers:
            buffer.offset = offset
    areas = range(1 + max((r.area for r, _ in best), default=0))
    program.area_sizes = [max((o + r.nbytes for r, o in best if r.area == a), default=0) for a in areas]


def peak_live_bytes(program: Program) -> int:
    """The lower bound of any plan that merges the same buffers: the most bytes alive at one instruction."""
    steps = range(-1, len(program.instrs) + 1)

    def peak(regions: list[Region]) -> int:
        return max((sum(r.nbytes for r in regions if r.first <= i <= r.last) for i in steps), default=0)

    return min(peak(_merge_inplace(program, share)) for share in _SHARES)


_SHARES = (0.0, 0.5, 1.0)
"""How much of an input an output may have to fill to take its place: small ones keep large regions occupied."""


def _merge_inplace(program: Program, share: float) -> list[Region]:
    ranges = program.live_ranges()
    region_of = {b: Region([b], first, last) for b, (first, last) in ranges.items()}
    _merge_moves(program, region_of)
    for index, instr in enumerate(program.instrs):
        for out_role, in_role in instr.inplace:
            target, source = instr.operand(out_role).buffer, instr.operand(in_role).buffer
            if not (source.planned and target.planned) or not _may_merge(
                instr, index, region_of[target], region_of[source]
            ):
                continue
            if not share * source.nbytes <= max(b.nbytes for b in region_of[target].buffers) <= source.nbytes:
                continue
            _join(region_of, region_of[source], region_of[target])
            break
    return list({id(r): r for r in region_of.values()}.values())


def _join(region_of: dict[Buffer, Region], into: Region, other: Region) -> None:
    into.first, into.last = min(into.first, other.first), max(into.last, other.last)
    into.buffers += other.buffers
    into.accesses |= other.accesses
    region_of.update(dict.fromkeys(other.buffers, into))


def _merge_moves(program: Program, region_of: dict[Buffer, Region]) -> None:
    """Gives source and target of a move one place where the source ends there and nobody uses the target meanwhile.

    So the results of branches, and the values that loops carry from step to step, are mostly computed in place.
    A move overwrites all of its target: what the target held, from its last use until the move, is of no interest.
    """
    if all(instr.kernel != MOVE for instr in program.instrs):
        return
    for index, instr in enumerate(program.instrs):
        for operand in instr.operands:
            if operand.buffer.planned:
                region_of[operand.buffer].accesses.add(index)
    for endpoints, index in ((program.inputs, -1), (program.outputs, len(program.instrs))):
        for endpoint in endpoints:
            if endpoint.buffer.planned:
                region_of[endpoint.buffer].accesses.add(index)
    for index, instr in enumerate(program.instrs):
        if instr.kernel == MOVE and instr.inplace and all(o.buffer.planned for o in instr.operands):
            source, target = (region_of[instr.operand(role).buffer] for role in "xy")
            if source is target or source.area != target.area:
                continue
            if source.last == index and _idle(program, target, source, index):
                _join(region_of, target, source)


def _idle(program: Program, target: Region, source: Region, end: int) -> bool:
    """Whether nobody uses `target` while `source` lives, but perhaps who writes `source` in its place."""
    used = {i for i in target.accesses if source.first <= i < end}
    if not used:
        return True
    if used != {source.first} or source.first < 0:
        return False
    writer = program.instrs[source.first]
    pairs = [(writer.operand(o).buffer, writer.operand(i).buffer) for o, i in writer.inplace]
    allowed = [i for o, i in pairs if o in source.buffers and i in target.buffers and o.nbytes <= i.nbytes]
    return len(allowed) == 1 and sum(o.buffer in target.buffers for o in writer.operands) == 1


def _may_merge(instr: Instr, index: int, target: Region, source: Region) -> bool:
    """The output starts its life here, and the input ends its own here and is read by one operand only."""
    fresh = target.first == index
    reads = sum(o.buffer in source.buffers for o in instr.operands)
    return fresh and source.last == index and reads == 1 and target.area == source.area


_Order = Callable[[Region], tuple[object, ...]]
_ORDERS: tuple[_Order, ...] = (
    lambda r: (-r.nbytes, r.first, r.buffers[0].name),
    lambda r: (-r.nbytes * (r.last - r.first + 1), r.first, r.buffers[0].name),
    lambda r: (r.first, -r.nbytes, r.buffers[0].name),
    lambda r: (-(r.last - r.first), -r.nbytes, r.buffers[0].name),
)
"""Largest first is the classic order; the others win on some graphs, and all are cheap to try."""

_Placement = list[tuple[Region, int]]


def _place(regions: list[Region], order: _Order) -> _Placement:
    placed: _Placement = []
    for region in sorted(regions, key=order):
        rivals = sorted((offset, offset + other.nbytes) for other, offset in placed if other.overlaps(region))
        placed.append((region, _lowest_gap(rivals, region.nbytes)))
    return placed


def _lowest_gap(taken: list[tuple[int, int]], nbytes: int) -> int:
    start = 0
    for begin, end in taken:
        if begin - start >= nbytes:
            return start
        start = max(start, end)
    return start


def _extent(placement: _Placement) -> int:
    """Bytes of all areas."""
    ends: dict[int, int] = {}
    for region, offset in placement:
        ends[region.area] = max(ends.get(region.area, 0), offset + region.nbytes)
    return sum(ends.values())
