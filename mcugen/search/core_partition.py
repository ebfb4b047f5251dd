# SPDX-License-Identifier: Apache-2.0
"""Partitions of a layer over two cores: those whose two shards and a barrier take less time than the layer."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise

from mcugen.hir.graph import Node
from mcugen.hir.operator import Partition
from mcugen.hir.traits import partitions
from mcugen.kernels.choose import fitting_kernels
from mcugen.kernels.common.library import own_kernel
from mcugen.kernels.cost import INSTRUCTIONS_PER_ELEMENT, CostTable
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import WORD
from mcugen.lir.trial import trial
from mcugen.ops.fork import Forked, ShardRange, Stages, fork_layer
from mcugen.search.objective import TOLERANCES

BARRIER_INSTRUCTIONS = 60
"""Instructions of the slower core to start and join a layer on two cores once (fork and join).

The instructions of the layer itself and the time of waiting are not included. See docs/explanation/two_cores.md.
"""

NUM_EVEN_CUTS = 8
"""Number of positions at which a layer is cut into two shards that are tried: those nearest to the ideal division of
work."""

EXTRA_BORDER_UNITS = ((0, 0), (1, 0), (1, 1))
"""Output units (such as rows) by which the border is widened before and after a cut between the cores' shards.

The border is the part of the output whose input both shards read; both cores compute it first. A wider border lets the
remaining shards overwrite their input. Each pair (before, after) is tried.
"""

MAX_STAGES = 4
"""Largest number of stages for a layer whose output overwrites its input; each stage computes half of the remaining
units."""

EQUAL_STAGES = (3, 4, 6, 8, 12, 16)
"""Numbers of equally long stages that are tried for a layer whose output overwrites its input.

In each stage both cores compute one part, so that the output only overwrites input that neither core reads any more.
"""

UNITS_AT_ONCE = (6, 4)
"""Numbers of output units (such as rows) that kernels compute at once.

Shards consist of whole groups of that many units; a last stage computes the remaining units.
"""

MAX_KERNELS_TRIED = 7
"""Largest number of kernels that are tried for a layer's shards: kernels other than that of the whole layer may need
less memory."""

NUM_UNEVEN_CUTS = 3
"""Number of positions of the cut that are tried if the two shards use different kernels."""

INSTRUCTIONS_PER_COPIED_BYTE = 0.5
"""Estimated instructions to copy one byte within RAM: two bytes per instruction."""


@dataclass(frozen=True)
class LayerPartition:
    """One way to partition a layer over two cores, with the kernels of its parts and its estimated time."""

    fork: Forked
    """The operator that computes the layer in shards: parts of its result that two cores compute at the same time."""
    kernels: Mapping[Node, Kernel]
    """The chosen kernels of the nodes in the shards, for nodes that several kernels can compute."""
    time: float
    """Estimated time of the layer on both cores, in instructions of the first core."""
    flash: int = 0
    """Bytes by which the shards' constants exceed the layer's; 0 up to the ratio Tolerances.max_constants_ratio."""


ByCore = tuple[Kernel | None, Kernel | None]
"""The kernels with which the first and the second core compute their shards; None for a node without a choice of
kernels."""


@dataclass(frozen=True)
class CoreCostModel:
    """The cost model of one of two cores: the kernels that can compute a node on the core, and their times.

    Attributes:
        features: Names of the CPU features that kernels may use.
        costs: Instructions of kernels on this CPU.
        pace: Time of one instruction relative to the first core; 2.0 means half as fast.
        paces: The value of `pace` for single kernels, by their names, for which it differs.
    """

    features: frozenset[str]
    costs: CostTable
    pace: float = 1.0
    paces: Mapping[str, float] = field(default_factory=dict)
    _representatives: dict[Hashable, Node] = field(default_factory=dict, repr=False, compare=False)
    _fitting: dict[Node, list[Kernel]] = field(default_factory=dict, repr=False, compare=False)
    _times: dict[tuple[Node, str], float] = field(default_factory=dict, repr=False, compare=False)

    def representative(self, node: Node) -> Node:
        """Return the first node passed to this method that has the same operator, types and constants as `node`.

        Kernels and times that are cached for that node then apply to all equal nodes, such as those of equal parts of a
        layer.
        """
        inputs = tuple(v and (v.type, None if v.data is None else id(v.data)) for v in node.inputs)
        return self._representatives.setdefault((node.op, inputs, tuple(v.type for v in node.outputs)), node)

    def fitting(self, node: Node) -> list[Kernel]:
        """Return the kernels that can compute a node on this core; an empty list if there is no choice of kernels."""
        node = self.representative(node)
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
        node = self.representative(node)
        if (node, kernel.name) not in self._times:
            self._times[node, kernel.name] = self.costs.time(node, kernel)
        return self.paces.get(kernel.name, self.pace) * self._times[node, kernel.name]

    def preferred_or_fastest(self, node: Node, preferred: Kernel | None) -> Kernel | None:
        """Return the preferred kernel if it can compute the node on this core, else the fastest kernel that can.

        Return None for a node without a choice of kernels.
        """
        fitting = self.fitting(node)
        preferred_kernels = [kernel for kernel in fitting if kernel is preferred]
        return min(preferred_kernels or fitting, key=lambda kernel: self.time(node, kernel), default=None)


@dataclass(frozen=True)
class ParallelRun:
    """The estimated cost of two sets of nodes that run in parallel, one on each core."""

    time: float
    """Time until both cores are done, fork and join included, in instructions of the first core."""
    kernels: Mapping[str, Kernel]
    """The kernels of the nodes of both sets, by the name of the first output."""


@dataclass(frozen=True)
class PartitionSearch:
    """The search for partitions of layers over two cores that take less time than the layer on one core.

    A partition divides a layer into shards: parts of its result, which the cores compute at the same time.
    """

    first: CoreCostModel
    """The core that runs whole layers."""
    other: CoreCostModel
    """The second core, which computes one of the shards of a layer."""
    chosen_kernels: Collection[str] = ()
    """Names of kernels that the user chose; shards keep them."""
    contention: float = 0.0
    """Share (0 to 1) of its time that each core loses to the other while both compute (mcugen.search.contention)."""
    max_constants_ratio: float = TOLERANCES.max_constants_ratio
    """Ratio of the shards' constants to the layer's up to which LayerPartition.flash is 0."""

    def of(self, node: Node, kernel: Kernel | None, spare: int = 0) -> tuple[float, list[LayerPartition]]:
        """Return the partitions of a layer that are faster than one core, and the time that the best one saves.

        A partition divides the layer into shards: parts of its result, which the cores compute at the same time.

        Args:
            node: The layer.
            kernel: The kernel that computes the whole layer, or None if there is no choice.
            spare: Bytes of constants that shards may take beyond those of the whole layer.

        Returns:
            The time that the fastest partition saves, in instructions of the first core (0.0 if there is no partition),
            and the partitions, the fastest first.
        """
        if len(node.outputs) != 1 or node.op.bodies or not node.inputs:
            return 0.0, []
        whole = self.first.time(node, kernel)
        if whole <= 2 * self.barrier:
            return 0.0, []
        kernels = self._as_small(node, kernel) if kernel else [None]
        cutter = _Ways(node)
        partitions = list(self._even(cutter, kernels))
        if whole > TOLERANCES.min_uneven_instructions:
            partitions += self._uneven(cutter, [k for k in kernels if k])
            partitions += self._with_rest(cutter, [k for k in kernels if k])
        if kernel and kernel.name not in self.chosen_kernels and whole > TOLERANCES.min_uneven_instructions:
            partitions += self._with_more_flash(cutter, kernel, spare)
        faster = sorted(
            (partition for partition in partitions if partition.time < whole), key=lambda partition: partition.time
        )
        return whole - faster[0].time if faster else 0.0, faster

    @property
    def barrier(self) -> float:
        """Return the time that two cores take to begin and end a common layer, in instructions of the first core.

        It is the time of one fork and one join, without the computation of the layer's parts.
        """
        return BARRIER_INSTRUCTIONS * max(self.first.pace, self.other.pace)

    def _even(self, cutter: _Ways, kernels: Sequence[Kernel | None]) -> Iterator[LayerPartition]:
        """Yield shards by one kernel on both cores, where both CPUs support it, that take both cores equally long."""
        for kernel in kernels:
            kinds = cutter.kinds(self._share(cutter.node, kernel, kernel))
            yield from (self._best(kind, (kernel, kernel)) for kind in kinds if kind)

    def _share(self, node: Node, kernel: Kernel | None, other_kernel: Kernel | None) -> float:
        """Return the share of the layer for the first core that lets both cores finish at the same time."""
        first_time, other_time = (
            self.first.time(node, kernel),
            self.other.time(node, self.other.preferred_or_fastest(node, other_kernel)),
        )
        return other_time / (first_time + other_time)

    def _as_small(self, node: Node, kernel: Kernel) -> Sequence[Kernel]:
        """Return kernels with few enough constants, the fastest first, each with less scratch memory than those before.

        The given kernel is always among them. A kernel that the user chose by name is the only one.
        """
        if kernel.name in self.chosen_kernels:
            return [kernel]
        features = self.first.features
        max_flash = self.max_constants_ratio * trial(node, kernel, features).program.weights_size
        fitting = sorted(self.first.fitting(node), key=lambda k: self.first.time(node, k))
        kernels, least_scratch = list[Kernel](), math.inf
        for candidate in fitting:
            program = trial(node, candidate, features).program
            if candidate is kernel or (program.weights_size <= max_flash and program.scratch_size < least_scratch):
                kernels.append(candidate)
                least_scratch = min(least_scratch, program.scratch_size)
        return kernels[:MAX_KERNELS_TRIED]

    def _with_more_flash(self, cutter: _Ways, kernel: Kernel, spare: int) -> Iterator[LayerPartition]:
        """Yield even shards by the fastest kernel whose constants exceed the usual ratio but fit `spare` bytes."""
        node, features = cutter.node, self.first.features
        base_flash = trial(node, kernel, features).program.weights_size
        faster = [k for k in self.first.fitting(node) if self.first.time(node, k) < self.first.time(node, kernel)]
        extra_flash = {k: trial(node, k, features).program.weights_size - base_flash for k in faster}
        large = [k for k in faster if (self.max_constants_ratio - 1) * base_flash < extra_flash[k] <= spare]
        if large:
            fastest = min(large, key=lambda k: self.first.time(node, k))
            yield from (replace(partition, flash=extra_flash[fastest]) for partition in self._even(cutter, [fastest]))

    def _uneven(self, cutter: _Ways, kernels: Sequence[Kernel]) -> Iterator[LayerPartition]:
        """Yield shards by two kernels, of which the other core's mostly needs less scratch memory.

        This serves layers where RAM suffices for a faster kernel on one core only. That core computes the larger
        shard.
        """
        for kernel, smaller in combinations(kernels, 2):
            kinds = cutter.in_two(self._share(cutter.node, kernel, smaller), NUM_UNEVEN_CUTS)
            yield from (self._best(kind, (kernel, smaller)) for kind in kinds if kind)

    def _with_rest(self, cutter: _Ways, kernels: Sequence[Kernel]) -> Iterator[LayerPartition]:
        """Yield shards of whole groups of units by one kernel, and the remaining units by one with smaller groups."""
        for kernel, smaller in combinations(kernels, 2):
            forks = cutter.with_rest(self._share(cutter.node, kernel, kernel))
            yield from (self._partition(fork, (kernel, kernel), (smaller, smaller)) for fork in forks)

    def _best(self, forks: Sequence[Forked], by_core: ByCore) -> LayerPartition:
        """Return the fastest partition of several cuts of one kind."""
        return min((self._partition(fork, by_core) for fork in forks), key=lambda partition: partition.time)

    def _partition(self, fork: Forked, by_core: ByCore, at_last: ByCore | None = None) -> LayerPartition:
        """Return a partition with one kernel per core, and optionally other kernels in its last stage.

        Portions that such a kernel does not fit are computed by the fastest kernel.
        """
        kernels, time = dict[Node, Kernel](), 0.0
        for number, stage in enumerate(fork.stages, 1):
            times, chosen_by = list[float](), at_last if at_last and number == len(fork.stages) else by_core
            for shard, core, preferred in zip(stage, (self.first, self.other), chosen_by, strict=False):
                chosen = {node: core.preferred_or_fastest(node, preferred) for node in shard.body.nodes}
                times.append(sum(core.time(node, kernel) for node, kernel in chosen.items()))
                kernels |= {node: kernel for node, kernel in chosen.items() if kernel}
            time += self.parallel_time(*times) if len(times) > 1 else times[0]
        copied_bytes = (
            sum(shard.writes.count for shard in fork.shards if shard.is_copied_later) * fork.output.dtype.nbytes
        )
        return LayerPartition(fork, kernels, time + INSTRUCTIONS_PER_COPIED_BYTE * copied_bytes)

    def parallel_run(
        self, first: Sequence[Node], second: Sequence[Node], preferred: Mapping[str, Kernel]
    ) -> ParallelRun:
        """Return the time and the chosen kernels of two sets of nodes that the cores compute at the same time.

        Args:
            first: Nodes of the first core.
            second: Nodes of the second core.
            preferred: Kernels to use, by output name; other nodes use their fastest kernel.
        """
        times, kernels = list[float](), dict[str, Kernel]()
        for core, nodes in ((self.first, first), (self.other, second)):
            chosen = [(node, core.preferred_or_fastest(node, preferred.get(node.outputs[0].name))) for node in nodes]
            times.append(sum(core.time(node, kernel) for node, kernel in chosen))
            kernels |= {node.outputs[0].name: kernel for node, kernel in chosen if kernel}
        return ParallelRun(self.parallel_time(times[0], times[1]), kernels)

    def parallel_time(self, first_time: float, other_time: float) -> float:
        """Return the time of a layer whose parts two cores compute at once, with memory contention, fork and join.

        Args:
            first_time: Time of the first core's part alone, in instructions of the first core.
            other_time: Time of the second core's part alone, in instructions of the first core.
        """
        return max(first_time, other_time) + self.contention * min(first_time, other_time) + self.barrier


# ------------------------------------------------------------------------------------------------------- kinds


class _Ways:
    """The ways to cut one layer. Forks are cached, since many kernels are tried with few cuts."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._partitions = partitions(node.op, node.sig, node.inputs)
        self._forks: dict[tuple[int, tuple[tuple[ShardRange, ...], ...]], Forked | None] = {}

    def kinds(self, share: float) -> Iterator[list[Forked]]:
        """Yield the forks of each kind of cut: in two shards, with borders computed apart, and in stages.

        The second shard is computed apart and copied at the end in two cases: its place begins within a word, or the
        output is smaller than the input. It then lies over the beginning of the input, and the first shard over its
        own input.

        Args:
            share: Share of the units that the first core computes.
        """
        yield from self.in_two(share, NUM_EVEN_CUTS)
        size, input_size = self.node.output.type.nbytes, self.node.input(0).type.nbytes
        for number, partition in enumerate(self._partitions):
            length, overlap = partition.length, _overlap(partition)
            cuts = _nearest(length, share, NUM_EVEN_CUTS)
            if size < input_size or not self._made(number, [_halves(0, cut, length) for cut in cuts]):
                yield self._made(number, [[((0, cut, False), (cut, length, True))] for cut in cuts])[:1]
            if overlap or size > input_size:
                yield from (self._made(number, [_staged(length, n, share)]) for n in range(2, MAX_STAGES + 1))
            if overlap:
                words = _units_of_words(self.node, partition)
                yield from (self._made(number, [stages]) for stages in _equal(length, words, share))

    def in_two(self, share: float, nearby: int) -> Iterator[list[Forked]]:
        """Yield forks in two shards, with and without borders computed apart.

        Args:
            share: Share of the units that the first core computes.
            nearby: Number of places to cut around that share.
        """
        for number, partition in enumerate(self._partitions):
            length = partition.length
            cuts = _nearest(length, share, nearby)
            yield self._made(number, [_halves(0, cut, length) for cut in cuts])
            for units_before, units_behind in dict.fromkeys(_borders(self.node, partition, share)):
                yield self._made(number, [_bordered(cut, length, units_before, units_behind) for cut in cuts])
            for units_before in dict.fromkeys(_lone_borders(self.node, partition)):
                yield self._made(number, [_bordered(cut, length, units_before, 0) for cut in cuts])

    def with_rest(self, share: float) -> list[Forked]:
        """Return forks in two stages, of which the first consists of whole groups of units."""
        return [
            fork
            for number, partition in enumerate(self._partitions)
            for fork in self._made(number, list(_rests(partition.length, _units_of_words(self.node, partition), share)))
        ]

    def _made(self, number: int, stage_lists: Sequence[Stages]) -> list[Forked]:
        """Return the forks of one partition that the layer's operator supports."""
        partitions = (self._fork(number, stages) for stages in stage_lists)
        return [partition for partition in partitions if partition is not None]

    def _fork(self, number: int, stages: Stages) -> Forked | None:
        key = number, tuple(stages)
        if key not in self._forks:
            self._forks[key] = fork_layer(self.node, self._partitions[number], stages)
        return self._forks[key]


def _nearest(length: int, share: float, count: int) -> list[int]:
    """Return the `count` places to cut `length` units that are nearest to a share of them."""
    return sorted(range(1, length), key=lambda cut: (abs(cut - share * length), cut))[:count]


def _halves(start: int, cut: int, stop: int) -> Stages:
    """Return one stage of two shards, divided at `cut`."""
    return [((start, cut, False), (cut, stop, False))]


def _bordered(cut: int, length: int, units_before: int, units_behind: int) -> Stages:
    """Return stages that compute the units around a cut apart, then the shards on both sides.

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
    """Yield two stages: as many whole groups as fit two shards at multiples of `words`, and the remaining units."""
    for units in UNITS_AT_ONCE:
        group = math.lcm(units, words)
        groups = length // (2 * group) * 2
        end, first = groups * group, round(share * groups) * group
        middle = end + round(share * (length - end) / words) * words
        if 0 < first < end < middle < length:
            yield [*_halves(0, first, end), *_halves(end, middle, length)]


def _equal(length: int, words: int, share: float) -> Iterator[Stages]:
    """Yield stages of equal length, the last one possibly shorter; shards begin at multiples of `words`."""
    for step in dict.fromkeys(-(-length // (2 * words * n)) * 2 * words for n in EQUAL_STAGES):
        ends = [*range(0, length, step), length]
        cuts = [(a, a + max(round(share * (b - a) / words), 1) * words, b) for a, b in pairwise(ends)]
        if all(a < cut < b for a, cut, b in cuts):
            yield [stage for a, cut, b in cuts for stage in _halves(a, cut, b)]


def _borders(node: Node, partition: Partition, share: float) -> Iterator[tuple[int, int]]:
    """Yield the units before and behind a cut, in whole words, that cover what both shards read and a little more.

    `share` of them lie before the cut.
    """
    overlap, words = _overlap(partition), _units_of_words(node, partition)
    if overlap:
        for extra in EXTRA_BORDER_UNITS:
            first = min(max(math.ceil(share * overlap), 1), overlap)
            units_before, units_behind = first + extra[0], max(overlap - first, 1) + extra[1]
            yield -(-units_before // words) * words, -(-units_behind // words) * words


def _lone_borders(node: Node, partition: Partition) -> Iterator[int]:
    """Return the units before a cut that cover half of what both shards read, and all of it."""
    overlap, words = _overlap(partition), _units_of_words(node, partition)
    return (-(-units // words) * words for units in ((overlap + 1) // 2, overlap) if units)


def _units_of_words(node: Node, partition: Partition) -> int:
    """Return the least number of units that fill whole words of the output."""
    return WORD // math.gcd(WORD, partition.shard(0, 1).writes.count * node.output.type.dtype.nbytes)


def _overlap(partition: Partition) -> int:
    """Return the units, rounded up, whose input two adjacent shards both read; 0 if they share no input."""
    if partition.length < 2:
        return 0
    middle = partition.length // 2
    (first, *_), (second, *_) = partition.shard(middle - 1, middle).reads, partition.shard(middle, middle + 1).reads
    if first is None or second is None or first.pitch is not None or second.pitch is not None:
        return 0
    return -(-max(first.end - second.at, 0) // max(second.at - first.at, 1))
