# SPDX-License-Identifier: Apache-2.0
"""Static memory planning: addresses of buffers in the arena, for the smallest arena.

Buffers that moves connect are first joined to regions, so that the moves vanish. Regions that are alive at once must
keep certain distances.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from mcugen.lir.frames import join_areas, separate_areas
from mcugen.lir.program import ALIGNMENT, MOVE, Buffer, Control, Program, aligned
from mcugen.memory.exact import Interval, Problem, solve
from mcugen.memory.regions import Freedom, LiveRanges, Region, covered_bytes, freedom, joined_regions

MAX_LIVE_PAIRS = 100_000
"""Largest number of pairs of simultaneously live buffers for the full search; with more, each buffer gets the first gap
that fits.

It is hundreds of times the number for any shared test model.
"""


def plan_memory(program: Program, target_bytes: int = 0, max_bytes: float = math.inf) -> None:
    """Place the buffers of a program in its arena, for the smallest arena.

    This sets the offset of every planned buffer, and the sizes of the program's areas with their lower bounds.

    Args:
        program: The program, changed in place.
        target_bytes: Size of an area in bytes at which the search stops, because it is small enough; 0 for the least
            size.
        max_bytes: Size limit of an area in bytes: if no plan can meet it, the search stops early with some valid plan.
    """
    planned = [b for b in program.buffers if b.planned]
    if program.handover is not None:
        separate_areas(program)
    areas = range(1 + max((b.area for b in planned), default=0))
    for buffer in planned:
        buffer.offset = 0  # Buffers without elements may lie anywhere.
    plans = [_plan_area(program, area, target_bytes // ALIGNMENT * ALIGNMENT, max_bytes) for area in areas]
    unit = program.arena_alignment
    program.area_sizes = [-(-plan.nbytes // unit) * unit for plan in plans]
    program.area_bounds = [-(-plan.bound // unit) * unit for plan in plans]
    if program.handover is not None:
        join_areas(program)


@dataclass(frozen=True)
class Planned:
    """A snapshot of a program's memory plan, which can be restored after another plan was tried.

    Attributes:
        places: Area and offset (bytes) of each buffer.
        sizes: Bytes of each area.
        bounds: Lower bound of each area's bytes.
    """

    places: Mapping[Buffer, tuple[int, int | None]]
    sizes: Sequence[int]
    bounds: Sequence[int]

    @classmethod
    def of(cls, program: Program) -> Planned:
        """Return a snapshot of the program's present memory plan."""
        places = {b: (b.area, b.offset) for b in program.buffers}
        return cls(places, program.area_sizes, program.area_bounds)

    def restore(self, program: Program) -> None:
        """Replace the program's memory plan by this one: areas and offsets of buffers, and sizes of areas."""
        for buffer, (area, offset) in self.places.items():
            buffer.area, buffer.offset = area, offset
        program.area_sizes, program.area_bounds = list(self.sizes), list(self.bounds)


def peak_live_bytes(program: Program) -> int:
    """Return the peak of live bytes in a program's first arena area.

    It is a lower bound of the area's size for all plans that eliminate the same moves.
    """
    return _Layout(LiveRanges(program, 0), True).peak


def _plan_area(program: Program, area: int, target_bytes: int, max_bytes: float) -> _Plan:
    """Return the best plan that joins what moves connect, or one that does not, if that is smaller."""
    live_ranges = LiveRanges(program, area)
    if _meetings(live_ranges) > MAX_LIVE_PAIRS:
        crowd = _first_fit(live_ranges)
        crowd.apply()
        return crowd
    best = _best_plan(_Layout(live_ranges, True), target_bytes, max_bytes)
    copies_pay = not any(instr.control is Control.FORK for instr in program.instrs)  # Copies take one core's time.
    if copies_pay and any(instr.kernel == MOVE for instr in program.instrs):
        layout_without_sharing = _Layout(live_ranges, False)
        if layout_without_sharing.peak < best.nbytes:
            best = min(best, _best_plan(layout_without_sharing, target_bytes, max_bytes), key=lambda plan: plan.nbytes)
    best.apply()
    return best


def _best_plan(layout: _Layout, target_bytes: int, max_bytes: float) -> _Plan:
    """Return the best plan of a layout: greedy in several orders, then exact.

    A greedy plan that reaches the lower bound ends the search. The exact solver runs only if the best greedy plan
    exceeds `target_bytes`, and a plan within `target_bytes` and `max_bytes` is still possible.
    """
    plans = []
    for order in _ORDERS:
        plans.append(_greedy(layout, order))
        if plans[-1].nbytes == plans[-1].bound:
            return plans[-1]
    plan = min(plans, key=lambda plan: plan.nbytes)
    if plan.nbytes <= target_bytes or 0 < target_bytes < plan.bound or max_bytes < plan.bound:
        return plan
    hint, bound = [at // ALIGNMENT for at in plan.offsets], layout.peak // ALIGNMENT
    offsets, bound = solve(layout.problem, hint, bound, target_bytes // ALIGNMENT)
    return _Plan(layout.regions, [at * ALIGNMENT for at in offsets], bound * ALIGNMENT)


@dataclass(frozen=True)
class _Plan:
    """The start of each region, and a lower bound of all plans of these regions."""

    regions: Sequence[Region]
    offsets: Sequence[int]
    bound: int

    @property
    def nbytes(self) -> int:
        return max((at + r.nbytes for at, r in zip(self.offsets, self.regions, strict=True)), default=0)

    def apply(self) -> None:
        """Set the offset of every buffer of the plan."""
        for start, region in zip(self.offsets, self.regions, strict=True):
            for buffer, at in region.members.items():
                buffer.offset = start + at


# ----------------------------------------------------------------------------------------------- constraints


class _Layout:
    """The regions of an area, and how far apart they must be."""

    def __init__(self, live_ranges: LiveRanges, joins: bool) -> None:
        self.live_ranges = live_ranges
        self.regions = joined_regions(live_ranges, joins)
        self._region_of = {b: (i, at) for i, region in enumerate(self.regions) for b, at in region.members.items()}
        self.problem = Problem([r.nbytes // ALIGNMENT for r in self.regions], self._forbidden())

    @cached_property
    def lifetimes(self) -> list[Interval]:
        """Return the first and last moment of each region's members."""
        ranges = self.live_ranges.ranges
        firsts_and_lasts = [zip(*(ranges[b] for b in region.members), strict=True) for region in self.regions]
        return [(min(firsts), max(lasts)) for firsts, lasts in firsts_and_lasts]

    @cached_property
    def rivals(self) -> list[list[tuple[int, list[Interval]]]]:
        """Return, for each region, the regions it must avoid, with the forbidden distances."""
        rivals: list[list[tuple[int, list[Interval]]]] = [[] for _ in self.regions]
        for (p, q), units in self.problem.forbidden.items():
            rivals[q].append((p, units))
            rivals[p].append((q, [(-high, -low) for low, high in reversed(units)]))
        return rivals

    @cached_property
    def freedoms(self) -> dict[tuple[Buffer, Buffer], Freedom]:
        """Return how outputs may overlap inputs whose lives end where the outputs' lives begin."""
        program, ranges = self.live_ranges.program, self.live_ranges.ranges
        wholes = (Control.STREAM, Control.FORK)
        ends = {start: end for start, end in program.blocks() if program.instrs[start].control in wholes}
        freedoms = {}
        for index, instr in enumerate(program.instrs):
            buffers = list(dict.fromkeys(o.buffer for o in instr.operands if o.buffer in ranges))
            for out in (b for b in buffers if ranges[b][0] == index):
                for into in (b for b in buffers if b is not out and ranges[b][1] == ends.get(index, index)):
                    free = freedom(instr, out, into)
                    if free is not None:
                        freedoms[out, into] = free
        return freedoms

    @cached_property
    def _intos(self) -> dict[Buffer, list[Buffer]]:
        """Return the inputs that each output may overlap."""
        inputs_of: defaultdict[Buffer, list[Buffer]] = defaultdict(list)
        for out, into in self.freedoms:
            inputs_of[out].append(into)
        return inputs_of

    def _forbidden(self) -> dict[tuple[int, int], list[Interval]]:
        """Return, for pairs of regions, the forbidden distances of their starts in units of ALIGNMENT."""
        distances: defaultdict[tuple[int, int], list[Interval]] = defaultdict(list)
        alive: list[Buffer] = []
        for b in sorted(self.live_ranges.ranges, key=lambda b: self.live_ranges.ranges[b][0]):
            alive = [a for a in alive if self.live_ranges.meet(a, b)]
            for a in alive:
                (p, a_at), (q, b_at) = self._region_of[a], self._region_of[b]
                if p != q:
                    distances_of_pair = self._conflict_distances(a, b) if p < q else self._conflict_distances(b, a)
                    by = a_at - b_at if p < q else b_at - a_at
                    distances[min(p, q), max(p, q)] += [(low + by, high + by) for low, high in distances_of_pair]
            alive.append(b)
        return {pair: units for pair in sorted(distances) if (units := _in_units(distances[pair]))}

    def _conflict_distances(self, a: Buffer, b: Buffer) -> list[Interval]:
        """Return the distances from `a` to `b` at which they conflict, in bytes, without the ends of the intervals."""
        low, high = -b.nbytes, a.nbytes
        if (b, a) in self.freedoms:
            free = self.freedoms[b, a]
            low = low if free.up_to is None else max(low, free.up_to)
            cuts = free.at
        elif (a, b) in self.freedoms:
            free = self.freedoms[a, b]
            high = high if free.up_to is None else min(high, -free.up_to)
            cuts = frozenset(-at for at in free.at)
        else:
            return [(low, high)]
        points = [low, *sorted(at for at in cuts if low < at < high), high]
        return list(pairwise(points))

    # -------------------------------------------------------------------------------------------- lower bound

    @cached_property
    def peak(self) -> int:
        """Return the lower bound of the area: the most bytes at one instruction that cannot overlap each other."""
        granule = math.gcd(ALIGNMENT, *(r.granule for r in self.regions))
        starting: defaultdict[int, list[Buffer]] = defaultdict(list)
        for buffer, (first, _) in self.live_ranges.ranges.items():
            starting[first].append(buffer)
        peak, alive = 0, list[Buffer]()
        for index in sorted(starting):
            alive = [b for b in alive if self.live_ranges.ranges[b][1] >= index] + starting[index]
            peak = max(peak, self._min_extent(alive, granule))
        return aligned(peak)

    def _min_extent(self, alive: Sequence[Buffer], granule: int) -> int:
        """Return a lower bound of the bytes that simultaneously live buffers take.

        It is the sum of their sizes minus what outputs may share with inputs, and at least the sum of all inputs and of
        all outputs.
        """
        now = set(alive)
        pairs = [(out, into) for out in alive for into in self._intos.get(out, ()) if into in now]
        outs, intos = {out for out, _ in pairs}, {into for _, into in pairs}
        rounded = {b: -(-b.nbytes // granule) * granule for b in (*outs, *intos)}
        shared = sum(self.freedoms[y, x].max_shared_bytes(rounded[y], rounded[x], granule) for y, x in pairs)
        return max(
            self._extent(alive, granule) - shared,
            self._extent([b for b in alive if b not in outs], granule),
            self._extent([b for b in alive if b not in intos], granule),
        )

    def _extent(self, alive: Sequence[Buffer], granule: int) -> int:
        """Return the bytes that buffers take together if different regions do not overlap."""
        return covered_bytes(self._span(b, granule) for b in alive)

    def _span(self, buffer: Buffer, granule: int) -> tuple[int, int, int]:
        """Return a buffer's region and its bytes there in whole granules; no other buffer begins within a granule."""
        region, at = self._region_of[buffer]
        return region, at, -(-(at + buffer.nbytes) // granule) * granule


def _in_units(intervals: list[Interval]) -> list[Interval]:
    """Return the multiples of ALIGNMENT strictly inside the intervals, as sorted disjoint intervals."""
    units = sorted((low // ALIGNMENT + 1, -(-high // ALIGNMENT) - 1) for low, high in intervals)
    merged: list[Interval] = []
    for low, high in units:
        if low <= high:
            if merged and low <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], high))
            else:
                merged.append((low, high))
    return merged


# ---------------------------------------------------------------------------------------------------- greedy


_Order = Callable[[Region, int, int], tuple[object, ...]]
_ORDERS: tuple[_Order, ...] = (
    lambda r, first, last: (-r.nbytes, first),
    lambda r, first, last: (-r.nbytes * (last - first + 1), first),
    lambda r, first, last: (first, -r.nbytes),
    lambda r, first, last: (-first, -r.nbytes),
    lambda r, first, last: (first - last, -r.nbytes),
)
"""Keys for placing regions, of a region and its life. Largest first is the classic order; others win on some graphs."""


def _greedy(layout: _Layout, order: _Order) -> _Plan:
    """Return the plan that places region after region, each at the lowest offset that earlier regions allow."""
    keys = [
        (order(region, *life), number)
        for number, (region, life) in enumerate(zip(layout.regions, layout.lifetimes, strict=True))
    ]
    offsets: dict[int, int] = {}
    for _, number in sorted(keys):
        occupied = [
            (offsets[r] + low, offsets[r] + high)
            for r, units in layout.rivals[number]
            if r in offsets
            for low, high in units
        ]
        offsets[number] = _lowest_free(occupied)
    return _Plan(layout.regions, [offsets[i] * ALIGNMENT for i in range(len(keys))], layout.peak)


def _meetings(live_ranges: LiveRanges) -> int:
    """Return the number of pairs of buffers that are alive at the same time."""
    first, last = (np.sort([life[end] for life in live_ranges.ranges.values()]) for end in (0, 1))
    begun = np.arange(len(live_ranges.ranges))
    return int((begun - np.searchsorted(last, first)).sum())  # Count earlier buffers that are still alive.


def _first_fit(live_ranges: LiveRanges) -> _Plan:
    """Return the plan that places each buffer, the largest first, at the lowest free offset, without any overlap."""
    buffers = sorted(live_ranges.ranges, key=lambda b: (-b.nbytes, live_ranges.ranges[b][0]))
    placed = np.empty((4, 0), np.int64)  # Rows: begin, end, first and last moment.
    offsets = []
    for buffer in buffers:
        (first, last), size = live_ranges.ranges[buffer], aligned(buffer.nbytes)
        begins, ends = placed[:2, (placed[2] <= last) & (placed[3] >= first)]
        reached = np.maximum.accumulate(np.concatenate([[0], ends]))
        gaps = np.flatnonzero(np.concatenate([begins, [np.iinfo(np.int64).max]]) - reached >= size)
        offset = int(reached[gaps[0]])
        at = np.searchsorted(placed[0], offset)
        placed = np.insert(placed, at, (offset, offset + size, first, last), axis=1)
        offsets.append(offset)
    return _Plan([Region({b: 0}) for b in buffers], offsets, aligned(max(b.nbytes for b in buffers)))


def _lowest_free(occupied: list[Interval]) -> int:
    """Return the least non-negative number outside all intervals."""
    start = 0
    for low, high in sorted(occupied):
        if low > start:
            return start
        start = max(start, high + 1)
    return start
