# SPDX-License-Identifier: Apache-2.0
"""Which layers two cores share: those of which two portions and a barrier take less than the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from mcugen.hir.graph import Graph, Node
from mcugen.hir.traits import divisions
from mcugen.kernels.choose import fitting_kernels
from mcugen.kernels.cost import CostTable
from mcugen.kernels.library import own_kernel
from mcugen.lir.program import MOVE, Control, Program
from mcugen.ops.fork import Forked, forked

BARRIER = 150
"""Instructions that posting a portion and waiting for it take the slower core, a little more than measured."""

MOST_RAM = 1.1
"""A layer stays whole where its portions would make the arena grow beyond so many times what one core takes."""

NEARBY_CUTS = 8
"""So many places to cut are looked at, on both sides of the middle."""


@dataclass(frozen=True)
class Sharing:
    """The forms of layers for two cores, by node."""

    forms: Mapping[Node, Forked]

    def without(self, names: frozenset[str]) -> Sharing:
        """The same where these layers stay whole."""
        return Sharing({node: form for node, form in self.forms.items() if node.output.name not in names})

    def applied(self, graph: Graph) -> Graph:
        """A copy of the graph whose shared layers are forks."""
        if not self.forms:
            return graph
        forms = {node.output.name: form for node, form in self.forms.items()}
        other = graph.copy()
        for node in list(other.nodes):
            form = forms.get(node.outputs[0].name)
            if form is not None:
                inputs = [v for v in node.inputs if v is not None and not v.is_constant]
                other.rewrite(node, form, inputs, types=[node.output.type])
        return other


def sharing(graph: Graph, features: frozenset[str], costs: CostTable) -> Sharing:
    """The layers of a graph that two equal cores compute faster than one."""
    found = {}
    for node in graph.nodes:
        form = _best(node, features, costs)
        if form is not None:
            found[node] = form
    return Sharing(found)


def _best(node: Node, features: frozenset[str], costs: CostTable) -> Forked | None:
    """The fork whose longer portion takes least, if it is worth its barrier."""
    if len(node.outputs) != 1 or node.op.bodies or not node.inputs:
        return None
    whole = _instructions(node, features, costs)
    if whole <= 2 * BARRIER:
        return None
    ways = ((_slower(form, features, costs) + BARRIER, form) for form in _forks(node))
    best = min(ways, key=lambda way: way[0], default=None)
    return best[1] if best is not None and best[0] < whole else None


def _forks(node: Node) -> Iterator[Forked]:
    """Those near the middle."""
    for division in divisions(node.op, node.sig, node.inputs):
        middle = division.length / 2
        cuts = sorted(range(1, division.length), key=lambda cut: (abs(cut - middle), cut))
        for cut in cuts[:NEARBY_CUTS]:
            form = forked(node, division, cut)
            if form is not None:
                yield form


def _slower(form: Forked, features: frozenset[str], costs: CostTable) -> float:
    """Instructions of the longer portion."""
    return max(sum(_instructions(n, features, costs) for n in body.nodes) for body in form.portions)


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

    A layer stays whole whose portions would be copied, as they cannot lie in place, or for which there is no room:
    the arena may have `room` bytes more at most.
    """
    limit = int(MOST_RAM * whole.arena_size)
    limit = limit if room is None else min(limit, whole.arena_size + max(room, 0))
    while found.forms:
        program = build(found.applied(graph))
        worse = _copied(program) or _largest(program, limit)
        if not worse:
            return program
        found = found.without(worse)
    return whole


def _copied(program: Program) -> frozenset[str]:
    """The layers of forks around which something is moved."""
    moves = (i for i in program.instrs if i.op == Forked.mnemonic and i.kernel == MOVE)
    return frozenset(move.name for move in moves if not move.moves_nothing)


def _largest(program: Program, limit: int) -> frozenset[str]:
    """Of a program that is too large the fork during which most is alive; the last one if that is too little."""
    if program.arena_size <= limit:
        return frozenset()
    ranges = program.live_ranges()
    forks = [i for i, instr in enumerate(program.instrs) if instr.control is Control.FORK]

    def reach(fork: int) -> int:
        return max((b.offset or 0) + b.nbytes for b, (first, last) in ranges.items() if first <= fork <= last)

    return frozenset({program.instrs[max(forks, key=reach)].name}) if forks else frozenset()
