# SPDX-License-Identifier: Apache-2.0
"""How two cores can share a layer: the forms of which two portions and a barrier take less than the whole."""

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
from mcugen.kernels.cost import PER_ELEMENT, CostTable
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import WORD
from mcugen.lir.trial import trial
from mcugen.ops.fork import Cut, Forked, Stages, forked

BARRIER = 60
"""Instructions that a fork takes the slower core besides its portion, waiting aside: see docs/two_cores.md."""

NEARBY_CUTS = 8
"""So many places to cut are looked at, on both sides of the middle."""

WIDER_BORDERS = ((0, 0), (1, 0), (1, 1))
"""Units before and behind the cut that are made aside beyond those that need what both portions read, so that the rest
can lie over what it reads."""

MOST_STAGES = 4
"""In which an output takes the place of what it is made of, half of the rest each."""

EQUAL_STAGES = (3, 4, 6, 8, 12, 16)
"""Stages of as many units each: an output follows what it is made of at a short distance, as on one core."""

UNITS_AT_ONCE = (6, 4)
"""That kernels compute: portions are whole such groups, where the rest is a stage of its own by a kernel of fewer."""

MOST_KERNELS = 7
"""Kernels that are tried for portions: others than the layer's may need less memory."""

UNEVEN_FROM = 50_000
"""Instructions of a layer from which on portions by two kernels are looked at."""

UNEVEN_CUTS = 3
"""Places to cut that are looked at for those."""

MOST_FLASH = 4 / 3
"""So many times the flash of the layer's constants those of its portions may take, or those of all layers together."""

PER_BYTE = 0.5
"""Instructions of copying."""


@dataclass(frozen=True)
class Form:
    """A layer in portions, each by one of its kernels where it has a choice, and what the slower core takes for it."""

    fork: Forked
    kernels: Mapping[Node, Kernel]
    """Of the bodies' nodes."""
    time: float
    """In instructions of the first core."""
    flash: int = 0
    """Bytes of constants beyond those of the layer, where these are more than MOST_FLASH times as many."""


ByCore = tuple[Kernel | None, Kernel | None]
"""What each core computes its portions with."""


@dataclass(frozen=True)
class Side:
    """A core: what its CPU has, what kernels take there, and the time of an instruction by that of the first core, of
    some kernels by another pace.
    """

    features: frozenset[str]
    costs: CostTable
    pace: float = 1.0
    paces: Mapping[str, float] = field(default_factory=dict)
    _alike: dict[Hashable, Node] = field(default_factory=dict, repr=False, compare=False)
    _fitting: dict[Node, list[Kernel]] = field(default_factory=dict, repr=False, compare=False)
    _times: dict[tuple[Node, str], float] = field(default_factory=dict, repr=False, compare=False)

    def alike(self, node: Node) -> Node:
        """The first one seen that computes the same, as portions in the middle of a layer do; kept, as are its data."""
        inputs = tuple(v and (v.type, None if v.data is None else id(v.data)) for v in node.inputs)
        return self._alike.setdefault((node.op, inputs, tuple(v.type for v in node.outputs)), node)

    def fitting(self, node: Node) -> list[Kernel]:
        """The kernels that its CPU can compute a node with."""
        node = self.alike(node)
        if node not in self._fitting:
            self._fitting[node] = fitting_kernels(node, self.features, any_size=False)
        return self._fitting[node]

    def time(self, node: Node, kernel: Kernel | None) -> float:
        """Of a node by a kernel, or as its operator writes it, in instructions of the first core."""
        kernel = kernel or own_kernel(node, self.features)
        if kernel is None:
            return self.pace * PER_ELEMENT * sum(value.type.count for value in node.outputs)
        node = self.alike(node)
        if (node, kernel.name) not in self._times:
            self._times[node, kernel.name] = self.costs.time(node, kernel)
        return self.paces.get(kernel.name, self.pace) * self._times[node, kernel.name]

    def nearest(self, node: Node, wanted: Kernel | None) -> Kernel | None:
        """That kernel where it fits, else the fastest one; None where there is no choice."""
        fitting = self.fitting(node)
        alike = [kernel for kernel in fitting if kernel is wanted]
        return min(alike or fitting, key=lambda kernel: self.time(node, kernel), default=None)


@dataclass(frozen=True)
class BothSides:
    """What the slower core takes for nodes side by side, and the kernels by their outputs' names."""

    time: float
    kernels: Mapping[str, Kernel]


@dataclass(frozen=True)
class Forms:
    """The forms that pay on two cores; kernels `wanted` are kept."""

    first: Side
    other: Side
    wanted: Collection[str] = ()
    contention: float = 0.0
    """By which share both are slower while both compute: see mcugen.search.contention."""
    most_flash: float = MOST_FLASH
    """So many times the flash of a layer's constants those of its portions may take without being counted."""

    def of(self, node: Node, kernel: Kernel | None, spare: int = 0) -> tuple[float, list[Form]]:
        """Those that take less than the whole by `kernel`, the fastest first, and how much less the first does.

        Constants may take `spare` bytes beyond those of the whole.
        """
        if len(node.outputs) != 1 or node.op.bodies or not node.inputs:
            return 0.0, []
        whole = self.first.time(node, kernel)
        if whole <= 2 * self.barrier:
            return 0.0, []
        kernels = self._as_small(node, kernel) if kernel else [None]
        ways = _Ways(node)
        made = list(self._even(ways, kernels))
        if whole > UNEVEN_FROM:
            made += self._uneven(ways, [k for k in kernels if k])
            made += self._with_rest(ways, [k for k in kernels if k])
        if kernel and kernel.name not in self.wanted and whole > UNEVEN_FROM:
            made += self._with_more_flash(ways, kernel, spare)
        faster = sorted((form for form in made if form.time < whole), key=lambda form: form.time)
        return whole - faster[0].time if faster else 0.0, faster

    @property
    def barrier(self) -> float:
        """What a fork takes besides portions."""
        return BARRIER * max(self.first.pace, self.other.pace)

    def _even(self, ways: _Ways, kernels: Sequence[Kernel | None]) -> Iterator[Form]:
        """Portions by one kernel each, if both CPUs have it, that take both cores as long."""
        for kernel in kernels:
            kinds = ways.kinds(self._share(ways.node, kernel, kernel))
            yield from (self._best(kind, (kernel, kernel)) for kind in kinds if kind)

    def _share(self, node: Node, kernel: Kernel | None, others: Kernel | None) -> float:
        """Of the layer, for the first core."""
        ours, theirs = self.first.time(node, kernel), self.other.time(node, self.other.nearest(node, others))
        return theirs / (ours + theirs)

    def _as_small(self, node: Node, kernel: Kernel) -> Sequence[Kernel]:
        """This kernel and those whose constants take not much more flash, the fastest first: each takes less working
        memory than those before it.
        """
        if kernel.name in self.wanted:
            return [kernel]
        features = self.first.features
        most = self.most_flash * trial(node, kernel, features).program.weights_size
        fitting = sorted(self.first.fitting(node), key=lambda k: self.first.time(node, k))
        found, least = list[Kernel](), math.inf
        for each in fitting:
            program = trial(node, each, features).program
            if each is kernel or (program.weights_size <= most and program.scratch_size < least):
                found.append(each)
                least = min(least, program.scratch_size)
        return found[:MOST_KERNELS]

    def _with_more_flash(self, ways: _Ways, kernel: Kernel, spare: int) -> Iterator[Form]:
        """Even portions by the fastest kernel whose constants are larger by far."""
        node, features = ways.node, self.first.features
        least = trial(node, kernel, features).program.weights_size
        faster = [k for k in self.first.fitting(node) if self.first.time(node, k) < self.first.time(node, kernel)]
        more = {k: trial(node, k, features).program.weights_size - least for k in faster}
        large = [k for k in faster if (self.most_flash - 1) * least < more[k] <= spare]
        if large:
            fastest = min(large, key=lambda k: self.first.time(node, k))
            yield from (replace(form, flash=more[fastest]) for form in self._even(ways, [fastest]))

    def _uneven(self, ways: _Ways, kernels: Sequence[Kernel]) -> Iterator[Form]:
        """Portions by two kernels, of which the other core's takes less working memory, mostly: where there is room
        for a faster one on one core only, which computes more.
        """
        for kernel, smaller in combinations(kernels, 2):
            kinds = ways.in_two(self._share(ways.node, kernel, smaller), UNEVEN_CUTS)
            yield from (self._best(kind, (kernel, smaller)) for kind in kinds if kind)

    def _with_rest(self, ways: _Ways, kernels: Sequence[Kernel]) -> Iterator[Form]:
        """Portions of whole groups of units by a kernel, and the rest by one of fewer at once."""
        for kernel, smaller in combinations(kernels, 2):
            forks = ways.with_rest(self._share(ways.node, kernel, kernel))
            yield from (self._form(fork, (kernel, kernel), (smaller, smaller)) for fork in forks)

    def _best(self, ways: Sequence[Forked], by_core: ByCore) -> Form:
        """Of cuts of one kind, that which takes least."""
        return min((self._form(fork, by_core) for fork in ways), key=lambda form: form.time)

    def _form(self, fork: Forked, by_core: ByCore, at_last: ByCore | None = None) -> Form:
        """Portions by a kernel for each core, and those of the last stage by others; where one does not fit, by the
        fastest.
        """
        kernels, time = dict[Node, Kernel](), 0.0
        for number, stage in enumerate(fork.stages, 1):
            each, chosen_by = list[float](), at_last if at_last and number == len(fork.stages) else by_core
            for share, side, wanted in zip(stage, (self.first, self.other), chosen_by, strict=False):
                chosen = {node: side.nearest(node, wanted) for node in share.body.nodes}
                each.append(sum(side.time(node, kernel) for node, kernel in chosen.items()))
                kernels |= {node: kernel for node, kernel in chosen.items() if kernel}
            time += self.both(*each) if len(each) > 1 else each[0]
        aside = sum(share.makes.count for share in fork.shares if share.aside) * fork.output.dtype.nbytes
        return Form(fork, kernels, time + PER_BYTE * aside)

    def together(self, first: Sequence[Node], second: Sequence[Node], wanted: Mapping[str, Kernel]) -> BothSides:
        """Nodes side by side, by the kernels that are wanted or their fastest."""
        times, kernels = list[float](), dict[str, Kernel]()
        for side, nodes in ((self.first, first), (self.other, second)):
            chosen = [(node, side.nearest(node, wanted.get(node.outputs[0].name))) for node in nodes]
            times.append(sum(side.time(node, kernel) for node, kernel in chosen))
            kernels |= {node.outputs[0].name: kernel for node, kernel in chosen if kernel}
        return BothSides(self.both(times[0], times[1]), kernels)

    def both(self, ours: float, theirs: float) -> float:
        """Of portions at once, and the barrier: the slower core also waits for the other one in memory."""
        return max(ours, theirs) + self.contention * min(ours, theirs) + self.barrier


# ------------------------------------------------------------------------------------------------------- kinds


class _Ways:
    """To cut a layer; what was made once is kept, as kernels differ and cuts are few."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._divisions = divisions(node.op, node.sig, node.inputs)
        self._forks: dict[tuple[int, tuple[tuple[Cut, ...], ...]], Forked | None] = {}

    def kinds(self, share: float) -> Iterator[list[Forked]]:
        """The forms of each kind: in two, of which the first is about that share, with borders made aside, in stages.

        The second portion is made aside, and copied to its place at the end, where its place begins within a word, or
        where the output is smaller than the input: it lies over the beginning of that, and the portion over its own.
        """
        yield from self.in_two(share, NEARBY_CUTS)
        size, given = self.node.output.type.nbytes, self.node.input(0).type.nbytes
        for number, division in enumerate(self._divisions):
            length, overlap = division.length, _overlap(division)
            cuts = _nearest(length, share, NEARBY_CUTS)
            if size < given or not self._made(number, [_halves(0, cut, length) for cut in cuts]):
                yield self._made(number, [[((0, cut, False), (cut, length, True))] for cut in cuts])[:1]
            if overlap or size > given:
                yield from (self._made(number, [_staged(length, n, share)]) for n in range(2, MOST_STAGES + 1))
            if overlap:
                words = _units_of_words(self.node, division)
                yield from (self._made(number, [ways]) for ways in _equal(length, words, share))

    def in_two(self, share: float, nearby: int) -> Iterator[list[Forked]]:
        """In two portions, of which the first is about that share, and the same with borders made aside."""
        for number, division in enumerate(self._divisions):
            length = division.length
            cuts = _nearest(length, share, nearby)
            yield self._made(number, [_halves(0, cut, length) for cut in cuts])
            for before, behind in dict.fromkeys(_borders(self.node, division, share)):
                yield self._made(number, [_bordered(cut, length, before, behind) for cut in cuts])
            for before in dict.fromkeys(_lone_borders(self.node, division)):
                yield self._made(number, [_bordered(cut, length, before, 0) for cut in cuts])

    def with_rest(self, share: float) -> list[Forked]:
        """In two stages, of which the first is of whole groups of units."""
        return [
            fork
            for number, division in enumerate(self._divisions)
            for fork in self._made(number, list(_rests(division.length, _units_of_words(self.node, division), share)))
        ]

    def _made(self, number: int, ways: Sequence[Stages]) -> list[Forked]:
        forms = (self._fork(number, stages) for stages in ways)
        return [form for form in forms if form is not None]

    def _fork(self, number: int, stages: Stages) -> Forked | None:
        key = number, tuple(stages)
        if key not in self._forks:
            self._forks[key] = forked(self.node, self._divisions[number], stages)
        return self._forks[key]


def _nearest(length: int, share: float, count: int) -> list[int]:
    """Places to cut so many units, by their distance from that share of them."""
    return sorted(range(1, length), key=lambda cut: (abs(cut - share * length), cut))[:count]


def _halves(start: int, cut: int, stop: int) -> Stages:
    return [((start, cut, False), (cut, stop, False))]


def _bordered(cut: int, length: int, before: int, behind: int) -> Stages:
    """With units before and behind a cut aside, if any are behind it: else the first core makes the others alone."""
    aside = ((cut - before, cut, True), (cut, cut + behind, True))
    return [
        aside if behind else aside[:1],
        ((0, cut - before, False), (cut + behind, length, False)),
    ]


def _staged(length: int, count: int, share: float) -> Stages:
    """Each stage takes half of what is left, as if the output were twice the input, and the last one all."""
    room = length / (1 - 0.5**count)
    ends = [0, *(round(room * (1 - 0.5**n)) for n in range(1, count)), length]
    cuts = [(a, min(a + math.ceil(share * (b - a)), max(b - 1, a + 1)), b) for a, b in pairwise(ends)]
    return [stage for a, cut, b in cuts for stage in _halves(a, cut, b)]


def _rests(length: int, words: int, share: float) -> Iterator[Stages]:
    """In two stages: as many whole groups as go into two portions at multiples of `words`, and the rest."""
    for units in UNITS_AT_ONCE:
        group = math.lcm(units, words)
        groups = length // (2 * group) * 2
        end, first = groups * group, round(share * groups) * group
        middle = end + round(share * (length - end) / words) * words
        if 0 < first < end < middle < length:
            yield [*_halves(0, first, end), *_halves(end, middle, length)]


def _equal(length: int, words: int, share: float) -> Iterator[Stages]:
    """In stages of as many units each, the last one perhaps of fewer; portions begin at multiples of `words`."""
    for step in dict.fromkeys(-(-length // (2 * words * n)) * 2 * words for n in EQUAL_STAGES):
        ends = [*range(0, length, step), length]
        cuts = [(a, a + max(round(share * (b - a) / words), 1) * words, b) for a, b in pairwise(ends)]
        if all(a < cut < b for a, cut, b in cuts):
            yield [stage for a, cut, b in cuts for stage in _halves(a, cut, b)]


def _borders(node: Node, division: Division, share: float) -> Iterator[tuple[int, int]]:
    """Units before and behind a cut, in whole words, that cover what the portions both read, and somewhat more: that
    share of them for the first core.
    """
    overlap, words = _overlap(division), _units_of_words(node, division)
    if overlap:
        for more in WIDER_BORDERS:
            first = min(max(math.ceil(share * overlap), 1), overlap)
            before, behind = first + more[0], max(overlap - first, 1) + more[1]
            yield -(-before // words) * words, -(-behind // words) * words


def _lone_borders(node: Node, division: Division) -> Iterator[int]:
    """Units before a cut that cover half of what the portions both read, and all of that."""
    overlap, words = _overlap(division), _units_of_words(node, division)
    return (-(-units // words) * words for units in ((overlap + 1) // 2, overlap) if units)


def _units_of_words(node: Node, division: Division) -> int:
    """The fewest that are whole words of the output."""
    return WORD // math.gcd(WORD, division.portion(0, 1).makes.count * node.output.type.dtype.nbytes)


def _overlap(division: Division) -> int:
    """Units, rounded up, whose input both of two portions side by side read; 0 of those that read nothing together."""
    if division.length < 2:
        return 0
    middle = division.length // 2
    (first, *_), (second, *_) = division.portion(middle - 1, middle).reads, division.portion(middle, middle + 1).reads
    if first is None or second is None or first.pitch is not None or second.pitch is not None:
        return 0
    return -(-max(first.end - second.at, 0) // max(second.at - first.at, 1))
