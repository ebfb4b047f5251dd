# SPDX-License-Identifier: Apache-2.0
"""Which layers two cores share: those of which two portions and a barrier take less than the whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from mcugen.hir.graph import Graph, Node
from mcugen.hir.operator import Division
from mcugen.hir.traits import divisions
from mcugen.kernels.choose import fitting_kernels
from mcugen.kernels.cost import CostTable
from mcugen.kernels.library import own_kernel
from mcugen.lir.program import MOVE, Control, Program
from mcugen.memory.regions import bytes_taken
from mcugen.ops.fork import Cut, Forked, forked

BARRIER = 150
"""Instructions that posting a portion and waiting for it take the slower core: a guess, not measured."""

MOST_RAM = 1.1
"""A layer stays whole where its portions would make RAM grow beyond so many times what one core takes."""

STACK = 300
"""Bytes of RAM besides the arena, as most models take at least."""

NEARBY_CUTS = 8
"""So many places to cut are looked at, on both sides of the middle."""

BORDERS = ((1, 1), (2, 1), (2, 2))
"""Units before and behind the cut that are made aside, so that the rest can lie over what it reads."""

MOST_STAGES = 4
"""In which a larger output takes the place of what it is made of, half of the rest each."""

MOST_TRIES = 16
"""So often a layer that was given up is tried again."""

_PER_BYTE = 0.5
"""Instructions of copying."""


@dataclass(frozen=True)
class Sharing:
    """By node its forms for two cores, the fastest first: those behind take less memory, perhaps."""

    forms: Mapping[Node, tuple[Forked, ...]]

    def without(self, names: frozenset[str]) -> Sharing:
        """The same where these layers have their next form, or stay whole."""
        rest = {n: forms[1:] if n.output.name in names else forms for n, forms in self.forms.items()}
        return Sharing({node: forms for node, forms in rest.items() if forms})

    def having(self, node: Node, forms: tuple[Forked, ...]) -> Sharing:
        """The same with these forms of a node."""
        return Sharing({**self.forms, node: forms})

    def given_up(self, before: Sharing) -> Iterator[tuple[Node, tuple[Forked, ...]]]:
        """The forms that nodes had before, the fastest first."""
        for node, forms in before.forms.items():
            for first in range(len(forms) - len(self.forms.get(node, ()))):
                yield node, forms[first:]

    def applied(self, graph: Graph) -> Graph:
        """A copy of the graph whose shared layers are forks."""
        chosen = {node.output.name: forms[0] for node, forms in self.forms.items()}
        other = graph.copy()
        for node in list(other.nodes):
            form = chosen.get(node.outputs[0].name)
            if form is not None:
                inputs = [v for v in node.inputs if v is not None and not v.is_constant]
                other.rewrite(node, form, inputs, types=[node.output.type])
        return other


def sharing(graph: Graph, features: frozenset[str], costs: CostTable) -> Sharing:
    """The layers of a graph that two equal cores compute faster than one."""
    found = {node: tuple(_faster(node, features, costs)) for node in graph.nodes}
    return Sharing({node: forms for node, forms in found.items() if forms})


def _faster(node: Node, features: frozenset[str], costs: CostTable) -> list[Forked]:
    """The forms that take less than the whole, by time; of each kind the best cut."""
    if len(node.outputs) != 1 or node.op.bodies or not node.inputs:
        return []
    whole = _instructions(node, features, costs)
    if whole <= 2 * BARRIER:
        return []
    found = []
    for kind in _kinds(node):
        ways = [(_time(form, features, costs), form) for form in kind]
        found += [min(ways, key=lambda way: way[0])] if ways else []
    return [form for time, form in sorted(found, key=lambda way: way[0]) if time < whole]


def _kinds(node: Node) -> Iterator[list[Forked]]:
    """The forms of each kind: in two halves, with borders made aside, in stages."""
    for division in divisions(node.op, node.sig, node.inputs):
        length = division.length
        cuts = sorted(range(1, length), key=lambda cut: (abs(2 * cut - length), cut))[:NEARBY_CUTS]
        yield _made(node, division, [_halves(0, cut, length) for cut in cuts])
        for before, behind in BORDERS if _overlaps(division) else ():
            yield _made(node, division, [_bordered(cut, length, before, behind) for cut in cuts])
        if node.output.type.nbytes > node.input(0).type.nbytes:
            yield from (_made(node, division, [_staged(length, n)]) for n in range(2, MOST_STAGES + 1))


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
    return first is not None and second is not None and second.at < first.at + math.prod(first.shape)


def _time(form: Forked, features: frozenset[str], costs: CostTable) -> float:
    """Instructions of the slower core, barriers and copies included."""
    each = [sum(_instructions(n, features, costs) for n in body.nodes) for body in form.bodies]
    aside = sum(math.prod(share.makes.shape) for share in form.shares if share.aside) * form.output.dtype.nbytes
    pairs = zip(each[::2], each[1::2], strict=True)
    return sum(max(pair) + BARRIER for pair in pairs) + _PER_BYTE * aside


def _instructions(node: Node, features: frozenset[str], costs: CostTable) -> float:
    """Of a node by the fastest kernel that fits."""
    kernels = fitting_kernels(node, features, any_size=False)
    if not kernels:
        alone = own_kernel(node, features)
        kernels = [alone] if alone else []
    known = [costs.instructions(node, kernel) for kernel in kernels]
    return min(known, default=_PER_ELEMENT * node.outputs[0].type.count)


_PER_ELEMENT = 8.0
"""Instructions of a layer without measured kernels, by what it makes."""


# ------------------------------------------------------------------------------------------------ what it takes


def shared_program(
    graph: Graph, found: Sharing, whole: Program, build: Callable[[Graph], Program], room: int | None = None
) -> Program:
    """The program for two cores, made by `build` and planned, within MOST_RAM of the arena that `whole` takes.

    A layer takes its next form, or stays whole, where portions would be copied, as they cannot lie in place, or where
    there is no room: the arena may have `room` bytes more at most. What was given up for others is tried once more.
    """
    limit = int(MOST_RAM * (whole.arena_size + STACK)) - STACK
    limit = limit if room is None else min(limit, whole.arena_size + max(room, 0))
    best, taken = whole, found
    while taken.forms:
        program = build(taken.applied(graph))
        worse = _copied(program) or _too_large(program, limit)
        if not worse:
            best = program
            break
        taken = taken.without(worse)
    for node, forms in islice(taken.given_up(found), MOST_TRIES):
        if len(forms) <= len(taken.forms.get(node, ())):
            continue
        other = taken.having(node, forms)
        program = build(other.applied(graph))
        if program.arena_size <= limit and not _copied(program):
            best, taken = program, other
    return best


def _copied(program: Program) -> frozenset[str]:
    """The layers of forks around which something is moved that was to lie in place."""
    moves = (i for i in program.instrs if i.op == Forked.mnemonic and i.kernel == MOVE and not i.stays)
    return frozenset(move.name for move in moves if not move.moves_nothing)


def _too_large(program: Program, limit: int) -> frozenset[str]:
    """Of a program that is too large the forks that are so by themselves, or else the one that reaches farthest."""
    if program.arena_size <= limit:
        return frozenset()
    ranges = program.live_ranges()
    alive = {
        index: [(b.offset or 0, (b.offset or 0) + b.nbytes) for b, (a, z) in ranges.items() if a <= index <= z]
        for index, instr in enumerate(program.instrs)
        if instr.control is Control.FORK
    }
    large = frozenset(program.instrs[i].name for i, spans in alive.items() if _taken(spans) > limit)
    if large or not alive:
        return large
    return frozenset({program.instrs[max(alive, key=lambda i: max(end for _, end in alive[i]))].name})


def _taken(spans: Sequence[tuple[int, int]]) -> int:
    """Bytes in any of these spans."""
    return bytes_taken((0, start, end) for start, end in spans)
