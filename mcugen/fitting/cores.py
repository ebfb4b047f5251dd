# SPDX-License-Identifier: Apache-2.0
"""How two cores can share a layer: the forms of which two portions and a barrier take less than the whole."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, pairwise

from mcugen.hir.graph import Node
from mcugen.hir.operator import Division
from mcugen.hir.traits import divisions
from mcugen.kernels.choose import fitting_kernels
from mcugen.kernels.cost import CostTable
from mcugen.kernels.library import own_kernel
from mcugen.lir.builder import trial
from mcugen.lir.kernel import Kernel
from mcugen.ops.fork import Cut, Forked, forked

BARRIER = 60
"""Instructions that a fork takes the slower core besides its portion, waiting aside: see docs/two_cores.md."""

NEARBY_CUTS = 8
"""So many places to cut are looked at, on both sides of the middle."""

BORDERS = ((1, 1), (2, 1), (2, 2))
"""Units before and behind the cut that are made aside, so that the rest can lie over what it reads."""

MOST_STAGES = 4
"""In which an output takes the place of what it is made of, half of the rest each."""

MOST_KERNELS = 5
"""Kernels that are tried for portions: others than the layer's may need less memory."""

UNEVEN_FROM = 50_000
"""Instructions of a layer from which on portions by two kernels are looked at."""

UNEVEN_CUTS = 3
"""Places to cut that are looked at for those."""

MOST_FLASH = 1.25
"""So many times the flash of the layer's constants those of its portions may take."""

_PER_BYTE = 0.5
"""Instructions of copying."""

_PER_ELEMENT = 8.0
"""Instructions of a layer without measured kernels, by what it makes."""


@dataclass(frozen=True)
class Form:
    """A layer in portions, each by one of its kernels where it has a choice, and what the slower core takes for it."""

    fork: Forked
    kernels: Mapping[Node, Kernel]
    """Of the bodies' nodes."""
    instructions: float


ByCore = tuple[Kernel | None, Kernel | None]
"""What each core computes its portions with."""


@dataclass(frozen=True)
class Forms:
    """The forms that pay on two equal cores with these features, by these costs; kernels `wanted` are kept."""

    features: frozenset[str]
    costs: CostTable
    wanted: Collection[str] = ()

    def of(self, node: Node, kernel: Kernel | None) -> tuple[float, list[Form]]:
        """Those that take less than the whole by `kernel`, the fastest first, and how much less the first does."""
        if len(node.outputs) != 1 or node.op.bodies or not node.inputs:
            return 0.0, []
        whole = self.instructions(node, kernel)
        if whole <= 2 * BARRIER:
            return 0.0, []
        kernels = self._as_small(node, kernel) if kernel else [None]
        made = [self._best(ways, (way, way)) for ways in _kinds(node) if ways for way in kernels]
        made += self._uneven(node, [k for k in kernels if k]) if whole > UNEVEN_FROM else []
        faster = sorted((form for form in made if form.instructions < whole), key=lambda form: form.instructions)
        return whole - faster[0].instructions if faster else 0.0, faster

    def instructions(self, node: Node, kernel: Kernel | None) -> float:
        """Of a node by a kernel, or as its operator writes it."""
        kernel = kernel or own_kernel(node, self.features)
        return _PER_ELEMENT * node.output.type.count if kernel is None else self.costs.instructions(node, kernel)

    def _as_small(self, node: Node, kernel: Kernel) -> Sequence[Kernel]:
        """The kernels whose constants take not much more flash than those of this one, the fastest first."""
        if kernel.name in self.wanted:
            return [kernel]
        most = MOST_FLASH * trial(node, kernel, self.features).program.weights_size
        fitting = sorted(self._fitting(node), key=lambda k: self.costs.instructions(node, k))
        small = (k for k in fitting if k is kernel or trial(node, k, self.features).program.weights_size <= most)
        return list(islice(small, MOST_KERNELS))

    def _uneven(self, node: Node, kernels: Sequence[Kernel]) -> Iterator[Form]:
        """Portions by two kernels, of which the other core's takes the least working memory: where there is room for a
        faster one on one core only, which computes more.
        """
        least = min(kernels, key=lambda k: trial(node, k, self.features).program.scratch_size, default=None)
        for kernel in kernels:
            if least is not None and kernel is not least:
                taken, other = self.instructions(node, kernel), self.instructions(node, least)
                for ways in _in_two(node, other / (taken + other), UNEVEN_CUTS):
                    if ways:
                        yield self._best(ways, (kernel, least))

    def _fitting(self, node: Node) -> list[Kernel]:
        return fitting_kernels(node, self.features, any_size=False)

    def _best(self, ways: Sequence[Forked], by_core: ByCore) -> Form:
        """Of cuts of one kind, that which takes least."""
        return min((self._form(fork, by_core) for fork in ways), key=lambda form: form.instructions)

    def _form(self, fork: Forked, by_core: ByCore) -> Form:
        """Portions by a kernel for each core; those that it does not fit by their fastest."""
        kernels = {}
        for body, wanted in zip(fork.bodies, cycle(by_core)):
            for node in body.nodes:
                if fitting := self._fitting(node):
                    alike = [k for k in fitting if k is wanted]
                    kernels[node] = min(alike or fitting, key=lambda k: self.costs.instructions(node, k))
        each = [sum(self.instructions(n, kernels.get(n)) for n in body.nodes) for body in fork.bodies]
        pairs = zip(each[::2], each[1::2], strict=True)
        aside = sum(share.makes.count for share in fork.shares if share.aside) * fork.output.dtype.nbytes
        return Form(fork, kernels, sum(max(pair) + BARRIER for pair in pairs) + _PER_BYTE * aside)


# ------------------------------------------------------------------------------------------------------- kinds


def _kinds(node: Node) -> Iterator[list[Forked]]:
    """The forms of each kind: in two halves, with borders made aside, in stages."""
    yield from _in_two(node, 0.5, NEARBY_CUTS)
    for division in divisions(node.op, node.sig, node.inputs):
        length, overlap = division.length, _overlaps(division)
        if overlap or node.output.type.nbytes > node.input(0).type.nbytes:
            yield from (_made(node, division, [_staged(length, n)]) for n in range(2, MOST_STAGES + 1))


def _in_two(node: Node, share: float, nearby: int) -> Iterator[list[Forked]]:
    """In two portions, of which the first is about that share, and the same with borders made aside."""
    for division in divisions(node.op, node.sig, node.inputs):
        length = division.length
        cuts = sorted(range(1, length), key=lambda cut: (abs(cut - share * length), cut))[:nearby]
        yield _made(node, division, [_halves(0, cut, length) for cut in cuts])
        for before, behind in BORDERS if _overlaps(division) else ():
            yield _made(node, division, [_bordered(cut, length, before, behind) for cut in cuts])


Stages = list[tuple[Cut, Cut]]


def _made(node: Node, division: Division, ways: Sequence[Stages]) -> list[Forked]:
    forms = (forked(node, division, stages) for stages in ways)
    return [form for form in forms if form is not None]


def _halves(start: int, cut: int, stop: int) -> Stages:
    return [((start, cut, False), (cut, stop, False))]


def _bordered(cut: int, length: int, before: int, behind: int) -> Stages:
    return [
        ((cut - before, cut, True), (cut, cut + behind, True)),
        ((0, cut - before, False), (cut + behind, length, False)),
    ]


def _staged(length: int, count: int) -> Stages:
    """Each stage takes half of what is left, as if the output were twice the input, and the last one all."""
    room = length / (1 - 0.5**count)
    ends = [0, *(round(room * (1 - 0.5**n)) for n in range(1, count)), length]
    return [stage for a, b in pairwise(ends) for stage in _halves(a, (a + b + 1) // 2, b)]


def _overlaps(division: Division) -> bool:
    """Whether portions side by side read the same."""
    if division.length < 2:
        return False
    (first, *_), (second, *_) = division.portion(0, 1).reads, division.portion(1, division.length).reads
    return first is not None and second is not None and first.pitch is None and second.at < first.at + first.count
