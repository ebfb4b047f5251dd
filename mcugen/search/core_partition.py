# SPDX-License-Identifier: Apache-2.0
"""Partitions of a layer over two cores: the forms in which two portions and a barrier take less time than the layer."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise

from mcugen.hir.graph import Node
from mcugen.hir.operator import Division
from mcugen.hir.traits import divisions
from mcugen.kernels.choose import fitting_kernels
from mcugen.kernels.common.library import own_kernel
from mcugen.kernels.cost import INSTRUCTIONS_PER_ELEMENT, CostTable
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import WORD
from mcugen.lir.trial import trial
from mcugen.ops.fork import Cut, Forked, Stages, forked
from mcugen.search.objective import TOLERANCES

BARRIER_INSTRUCTIONS = 60
"""Instructions of the slower core to fork and join once, without its part of the layer and without waiting.

See docs/two_cores.md.
"""

NUM_EVEN_CUTS = 8
"""Number of places to cut a layer that are tried, those nearest to the ideal share of the first core."""

EXTRA_BORDER_UNITS = ((0, 0), (1, 0), (1, 1))
"""Output units (such as rows) by which the border is widened before and behind a cut; each pair is tried.

The border is the part of the output whose input both portions read; both cores compute it first. A wider border lets
the remaining portions overwrite their input.
"""

MAX_STAGES = 4
"""Largest number of stages in which the output overwrites the input; each stage computes half of the remaining units.
"""

EQUAL_STAGES = (3, 4, 6, 8, 12, 16)
"""Numbers of equally long stages that are tried.

In each stage both cores compute one part, so that the output overwrites input that is no longer read, as on one core.
"""

UNITS_AT_ONCE = (6, 4)
"""Numbers of output units (such as rows) that kernels compute at once.

Portions consist of whole groups of that many units; a last stage computes the remaining units.
"""

MAX_KERNELS_TRIED = 7
"""Largest number of kernels that are tried for the portions: others than the whole layer's may need less memory."""

MIN_UNEVEN_INSTRUCTIONS = 50_000
"""Least instructions of a layer for which portions by two different kernels are tried."""

NUM_UNEVEN_CUTS = 3
"""Number of places to cut that are tried for portions by two different kernels."""

INSTRUCTIONS_PER_COPIED_BYTE = 0.5
"""Estimated instructions to copy one byte within RAM: two bytes per instruction."""


@dataclass(frozen=True)
class Form:
    """One way to partition a layer over two cores, with the kernels of its parts and its estimated time."""

    fork: Forked
    """The operator that computes the layer in portions, one per core and stage."""
    kernels: Mapping[Node, Kernel]
    """The kernels of the nodes in the fork's bodies, where these have a choice."""
    time: float
    """Time in instructions of the first core."""
    flash: int = 0
    """Bytes of constants beyond those of the layer, if the portions exceed max_constants_ratio; else 0."""


ByCore = tuple[Kernel | None, Kernel | None]
"""The kernels by which the first and the second core compute their portions."""


@dataclass(frozen=True)
class Side:
    """One of the two cores, with what is needed to estimate the time of kernels on it.

    Attributes:
        features: Names of the CPU features that kernels may use.
        costs: Instructions of kernels on this CPU.
        pace: Time of one instruction relative to the first core; 2.0 means half as fast.
        paces: The pace of single kernels, by their names, where it differs from `pace`.
    """

    features: frozenset[str]
    costs: CostTable
    pace: float = 1.0
    paces: Mapping[str, float] = field(default_factory=dict)
    _alike: dict[Hashable, Node] = field(default_factory=dict, repr=False, compare=False)
    _fitting: dict[Node, list[Kernel]] = field(default_factory=dict, repr=False, compare=False)
    _times: dict[tuple[Node, str], float] = field(default_factory=dict, repr=False, compare=False)

    def alike(self, node: Node) -> Node:
        """Return the first node passed to this method that has equal operator, types and constants.

        Cached kernels and times of that node then serve all equal portions of a layer.
        """
        inputs = tuple(v and (v.type, None if v.data is None else id(v.data)) for v in node.inputs)
        return self._alike.setdefault((node.op, inputs, tuple(v.type for v in node.outputs)), node)

    def fitting(self, node: Node) -> list[Kernel]:
        """Return the kernels that can compute a node on this core; an empty list if there is no choice."""
        node = self.alike(node)
        if node not in self._fitting:
            self._fitting[node] = fitting_kernels(node, self.features, any_size=False)
        return self._fitting[node]

    def time(self, node: Node, kernel: Kernel | None) -> float:
        """Return the estimated time of a node on this core, in instructions of the first core.

        `kernel` is None for a node without a choice of kernels: then its only kernel or its generic code counts.
        """
        kernel = kernel or own_kernel(node, self.features)
        if kernel is None:
            return self.pace * INSTRUCTIONS_PER_ELEMENT * sum(value.type.count for value in node.outputs)
        node = self.alike(node)
        if (node, kernel.name) not in self._times:
            self._times[node, kernel.name] = self.costs.time(node, kernel)
        return self.paces.get(kernel.name, self.pace) * self._times[node, kernel.name]

    def nearest(self, node: Node, preferred: Kernel | None) -> Kernel | None:
        """Return the preferred kernel if it can compute the node here, else the fastest one; None without a choice."""
        fitting = self.fitting(node)
        alike = [kernel for kernel in fitting if kernel is preferred]
        return min(alike or fitting, key=lambda kernel: self.time(node, kernel), default=None)


@dataclass(frozen=True)
class ParallelRun:
    """The estimated cost of two sets of nodes that run in parallel, one on each core."""

    time: float
    """Time until both cores are done, fork and join included, in instructions of the first core."""
    kernels: Mapping[str, Kernel]
    """The kernels of the nodes of both sets, by the name of the first output."""


@dataclass(frozen=True)
class Forms:
    """Finds the partitions of layers over two cores that are faster than one core."""

    first: Side
    """The core that runs whole layers."""
    other: Side
    wanted: Collection[str] = ()
    """Names of kernels that the user chose; portions keep them."""
    contention: float = 0.0
    """Share of the time by which both cores slow each other while both compute: see mcugen.search.contention."""
    most_flash: float = TOLERANCES.max_constants_ratio
    """Largest ratio of the constants of portions to those of the layer at which Form.flash is 0."""

    def of(self, node: Node, kernel: Kernel | None, spare: int = 0) -> tuple[float, list[Form]]:
        """Return the partitions of a layer that are faster than one core, and the time that the best one saves.

        Args:
            node: The layer.
            kernel: The kernel that computes the whole layer, or None if there is no choice.
            spare: Bytes of constants that portions may take beyond those of the whole layer.

        Returns:
            The time that the fastest partition saves, in instructions of the first core (0.0 without any), and the
            partitions, the fastest first.
        """
        if len(node.outputs) != 1 or node.op.bodies or not node.inputs:
            return 0.0, []
        whole = self.first.time(node, kernel)
        if whole <= 2 * self.barrier:
            return 0.0, []
        kernels = self._as_small(node, kernel) if kernel else [None]
        cutter = _Ways(node)
        forms = list(self._even(cutter, kernels))
        if whole > MIN_UNEVEN_INSTRUCTIONS:
            forms += self._uneven(cutter, [k for k in kernels if k])
            forms += self._with_rest(cutter, [k for k in kernels if k])
        if kernel and kernel.name not in self.wanted and whole > MIN_UNEVEN_INSTRUCTIONS:
            forms += self._with_more_flash(cutter, kernel, spare)
        faster = sorted((form for form in forms if form.time < whole), key=lambda form: form.time)
        return whole - faster[0].time if faster else 0.0, faster

    @property
    def barrier(self) -> float:
        """Return the time to fork and join once, without the portions, in instructions of the first core."""
        return BARRIER_INSTRUCTIONS * max(self.first.pace, self.other.pace)

    def _even(self, cutter: _Ways, kernels: Sequence[Kernel | None]) -> Iterator[Form]:
        """Yield portions by one kernel on both cores, where both CPUs support it, that take both cores equally long."""
        for kernel in kernels:
            kinds = cutter.kinds(self._share(cutter.node, kernel, kernel))
            yield from (self._best(kind, (kernel, kernel)) for kind in kinds if kind)

    def _share(self, node: Node, kernel: Kernel | None, other_kernel: Kernel | None) -> float:
        """Return the share of the layer for the first core that lets both cores finish at the same time."""
        first_time, other_time = (
            self.first.time(node, kernel),
            self.other.time(node, self.other.nearest(node, other_kernel)),
        )
        return other_time / (first_time + other_time)

    def _as_small(self, node: Node, kernel: Kernel) -> Sequence[Kernel]:
        """Return kernels with few enough constants, the fastest first, each with less scratch memory than those before.

        The given kernel is always among them. A kernel that the user chose by name is the only one.
        """
        if kernel.name in self.wanted:
            return [kernel]
        features = self.first.features
        max_flash = self.most_flash * trial(node, kernel, features).program.weights_size
        fitting = sorted(self.first.fitting(node), key=lambda k: self.first.time(node, k))
        kernels, least_scratch = list[Kernel](), math.inf
        for candidate in fitting:
            program = trial(node, candidate, features).program
            if candidate is kernel or (program.weights_size <= max_flash and program.scratch_size < least_scratch):
                kernels.append(candidate)
                least_scratch = min(least_scratch, program.scratch_size)
        return kernels[:MAX_KERNELS_TRIED]

    def _with_more_flash(self, cutter: _Ways, kernel: Kernel, spare: int) -> Iterator[Form]:
        """Yield even portions by the fastest kernel whose constants exceed the usual ratio but fit `spare` bytes."""
        node, features = cutter.node, self.first.features
        base_flash = trial(node, kernel, features).program.weights_size
        faster = [k for k in self.first.fitting(node) if self.first.time(node, k) < self.first.time(node, kernel)]
        extra_flash = {k: trial(node, k, features).program.weights_size - base_flash for k in faster}
        large = [k for k in faster if (self.most_flash - 1) * base_flash < extra_flash[k] <= spare]
        if large:
            fastest = min(large, key=lambda k: self.first.time(node, k))
            yield from (replace(form, flash=extra_flash[fastest]) for form in self._even(cutter, [fastest]))

    def _uneven(self, cutter: _Ways, kernels: Sequence[Kernel]) -> Iterator[Form]:
        """Yield portions by two kernels, of which the other core's mostly needs less scratch memory.

        This serves layers where RAM suffices for a faster kernel on one core only. That core computes the larger
        portion.
        """
        for kernel, smaller in combinations(kernels, 2):
            kinds = cutter.in_two(self._share(cutter.node, kernel, smaller), NUM_UNEVEN_CUTS)
            yield from (self._best(kind, (kernel, smaller)) for kind in kinds if kind)

    def _with_rest(self, cutter: _Ways, kernels: Sequence[Kernel]) -> Iterator[Form]:
        """Yield portions of whole groups of units by one kernel, and the remaining units by one with smaller groups."""
        for kernel, smaller in combinations(kernels, 2):
            forks = cutter.with_rest(self._share(cutter.node, kernel, kernel))
            yield from (self._form(fork, (kernel, kernel), (smaller, smaller)) for fork in forks)

    def _best(self, forks: Sequence[Forked], by_core: ByCore) -> Form:
        """Return the fastest form of several cuts of one kind."""
        return min((self._form(fork, by_core) for fork in forks), key=lambda form: form.time)

    def _form(self, fork: Forked, by_core: ByCore, at_last: ByCore | None = None) -> Form:
        """Return a form with one kernel per core, and optionally other kernels in its last stage.

        Portions that such a kernel does not fit are computed by the fastest kernel.
        """
        kernels, time = dict[Node, Kernel](), 0.0
        for number, stage in enumerate(fork.stages, 1):
            times, chosen_by = list[float](), at_last if at_last and number == len(fork.stages) else by_core
            for share, side, preferred in zip(stage, (self.first, self.other), chosen_by, strict=False):
                chosen = {node: side.nearest(node, preferred) for node in share.body.nodes}
                times.append(sum(side.time(node, kernel) for node, kernel in chosen.items()))
                kernels |= {node: kernel for node, kernel in chosen.items() if kernel}
            time += self.both(*times) if len(times) > 1 else times[0]
        copied_bytes = sum(share.makes.count for share in fork.shares if share.aside) * fork.output.dtype.nbytes
        return Form(fork, kernels, time + INSTRUCTIONS_PER_COPIED_BYTE * copied_bytes)

    def together(self, first: Sequence[Node], second: Sequence[Node], preferred: Mapping[str, Kernel]) -> ParallelRun:
        """Return the time and kernels of two sets of nodes that run in parallel.

        Args:
            first: Nodes of the first core.
            second: Nodes of the second core.
            preferred: Kernels to use, by output name; other nodes use their fastest kernel.
        """
        times, kernels = list[float](), dict[str, Kernel]()
        for side, nodes in ((self.first, first), (self.other, second)):
            chosen = [(node, side.nearest(node, preferred.get(node.outputs[0].name))) for node in nodes]
            times.append(sum(side.time(node, kernel) for node, kernel in chosen))
            kernels |= {node.outputs[0].name: kernel for node, kernel in chosen if kernel}
        return ParallelRun(self.both(times[0], times[1]), kernels)

    def both(self, first_time: float, other_time: float) -> float:
        """Return the time of two portions that run in parallel, with memory contention and with fork and join.

        All times are in instructions of the first core.
        """
        return max(first_time, other_time) + self.contention * min(first_time, other_time) + self.barrier


# ------------------------------------------------------------------------------------------------------- kinds


class _Ways:
    """The ways to cut one layer. Forks are cached, since many kernels are tried with few cuts."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._divisions = divisions(node.op, node.sig, node.inputs)
        self._forks: dict[tuple[int, tuple[tuple[Cut, ...], ...]], Forked | None] = {}

    def kinds(self, share: float) -> Iterator[list[Forked]]:
        """Yield the forks of each kind of cut: in two portions, with borders computed apart, and in stages.

        The second portion is computed apart and copied at the end in two cases: its place begins within a word, or the
        output is smaller than the input. It then lies over the beginning of the input, and the first portion over its
        own input.

        Args:
            share: Share of the units that the first core computes.
        """
        yield from self.in_two(share, NUM_EVEN_CUTS)
        size, input_size = self.node.output.type.nbytes, self.node.input(0).type.nbytes
        for number, division in enumerate(self._divisions):
            length, overlap = division.length, _overlap(division)
            cuts = _nearest(length, share, NUM_EVEN_CUTS)
            if size < input_size or not self._made(number, [_halves(0, cut, length) for cut in cuts]):
                yield self._made(number, [[((0, cut, False), (cut, length, True))] for cut in cuts])[:1]
            if overlap or size > input_size:
                yield from (self._made(number, [_staged(length, n, share)]) for n in range(2, MAX_STAGES + 1))
            if overlap:
                words = _units_of_words(self.node, division)
                yield from (self._made(number, [stages]) for stages in _equal(length, words, share))

    def in_two(self, share: float, nearby: int) -> Iterator[list[Forked]]:
        """Yield forks in two portions, with and without borders computed apart.

        Args:
            share: Share of the units that the first core computes.
            nearby: Number of places to cut around that share.
        """
        for number, division in enumerate(self._divisions):
            length = division.length
            cuts = _nearest(length, share, nearby)
            yield self._made(number, [_halves(0, cut, length) for cut in cuts])
            for units_before, units_behind in dict.fromkeys(_borders(self.node, division, share)):
                yield self._made(number, [_bordered(cut, length, units_before, units_behind) for cut in cuts])
            for units_before in dict.fromkeys(_lone_borders(self.node, division)):
                yield self._made(number, [_bordered(cut, length, units_before, 0) for cut in cuts])

    def with_rest(self, share: float) -> list[Forked]:
        """Return forks in two stages, of which the first consists of whole groups of units."""
        return [
            fork
            for number, division in enumerate(self._divisions)
            for fork in self._made(number, list(_rests(division.length, _units_of_words(self.node, division), share)))
        ]

    def _made(self, number: int, stage_lists: Sequence[Stages]) -> list[Forked]:
        """Return the forks of one division that the layer's operator supports."""
        forms = (self._fork(number, stages) for stages in stage_lists)
        return [form for form in forms if form is not None]

    def _fork(self, number: int, stages: Stages) -> Forked | None:
        key = number, tuple(stages)
        if key not in self._forks:
            self._forks[key] = forked(self.node, self._divisions[number], stages)
        return self._forks[key]


def _nearest(length: int, share: float, count: int) -> list[int]:
    """Return the `count` places to cut `length` units that are nearest to a share of them."""
    return sorted(range(1, length), key=lambda cut: (abs(cut - share * length), cut))[:count]


def _halves(start: int, cut: int, stop: int) -> Stages:
    """Return one stage of two portions, divided at `cut`."""
    return [((start, cut, False), (cut, stop, False))]


def _bordered(cut: int, length: int, units_before: int, units_behind: int) -> Stages:
    """Return stages that compute the units around a cut apart, then the portions on both sides.

    Without units behind the cut, the first core alone computes the border.
    """
    border = ((cut - units_before, cut, True), (cut, cut + units_behind, True))
    return [
        border if units_behind else border[:1],
        ((0, cut - units_before, False), (cut + units_behind, length, False)),
    ]


def _staged(length: int, count: int, share: float) -> Stages:
    """Return `count` stages, each of half of the remaining units; the last stage takes all of them.

    Stages are as long as if the output had twice the size of the input.
    """
    room = length / (1 - 0.5**count)
    ends = [0, *(round(room * (1 - 0.5**n)) for n in range(1, count)), length]
    cuts = [(a, min(a + math.ceil(share * (b - a)), max(b - 1, a + 1)), b) for a, b in pairwise(ends)]
    return [stage for a, cut, b in cuts for stage in _halves(a, cut, b)]


def _rests(length: int, words: int, share: float) -> Iterator[Stages]:
    """Yield two stages: as many whole groups as fit two portions at multiples of `words`, and the remaining units."""
    for units in UNITS_AT_ONCE:
        group = math.lcm(units, words)
        groups = length // (2 * group) * 2
        end, first = groups * group, round(share * groups) * group
        middle = end + round(share * (length - end) / words) * words
        if 0 < first < end < middle < length:
            yield [*_halves(0, first, end), *_halves(end, middle, length)]


def _equal(length: int, words: int, share: float) -> Iterator[Stages]:
    """Yield stages of equal length, the last one possibly shorter; portions begin at multiples of `words`."""
    for step in dict.fromkeys(-(-length // (2 * words * n)) * 2 * words for n in EQUAL_STAGES):
        ends = [*range(0, length, step), length]
        cuts = [(a, a + max(round(share * (b - a) / words), 1) * words, b) for a, b in pairwise(ends)]
        if all(a < cut < b for a, cut, b in cuts):
            yield [stage for a, cut, b in cuts for stage in _halves(a, cut, b)]


def _borders(node: Node, division: Division, share: float) -> Iterator[tuple[int, int]]:
    """Yield the units before and behind a cut, in whole words, that cover what both portions read and a little more.

    `share` of them lie before the cut.
    """
    overlap, words = _overlap(division), _units_of_words(node, division)
    if overlap:
        for extra in EXTRA_BORDER_UNITS:
            first = min(max(math.ceil(share * overlap), 1), overlap)
            units_before, units_behind = first + extra[0], max(overlap - first, 1) + extra[1]
            yield -(-units_before // words) * words, -(-units_behind // words) * words


def _lone_borders(node: Node, division: Division) -> Iterator[int]:
    """Return the units before a cut that cover half of what both portions read, and all of it."""
    overlap, words = _overlap(division), _units_of_words(node, division)
    return (-(-units // words) * words for units in ((overlap + 1) // 2, overlap) if units)


def _units_of_words(node: Node, division: Division) -> int:
    """Return the least number of units that fill whole words of the output."""
    return WORD // math.gcd(WORD, division.portion(0, 1).makes.count * node.output.type.dtype.nbytes)


def _overlap(division: Division) -> int:
    """Return the units, rounded up, whose input two adjacent portions both read; 0 if they share no input."""
    if division.length < 2:
        return 0
    middle = division.length // 2
    (first, *_), (second, *_) = division.portion(middle - 1, middle).reads, division.portion(middle, middle + 1).reads
    if first is None or second is None or first.pitch is not None or second.pitch is not None:
        return 0
    return -(-max(first.end - second.at, 0) // max(second.at - first.at, 1))
