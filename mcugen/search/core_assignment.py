# SPDX-License-Identifier: Apache-2.0
"""Which layers two cores share: as many as have room together, those that save most before others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile

from mcugen.hir.graph import Graph, Node
from mcugen.kernels.choose import all_fitting
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import MOVE, Control, Program
from mcugen.ops.branches import side_by_side
from mcugen.ops.fork import Forked
from mcugen.search.core_partition import MOST_FLASH, Form, Forms
from mcugen.search.parallel_branches import Pair, pairs

MOST_RAM = 1.1
"""A layer stays whole where its portions would make RAM grow beyond so many times what one core takes, unless speed is
all that counts.
"""

STACK = 300
"""Bytes of RAM, stack above all, that most models take at least besides the arena."""

LEAST_GAIN = 0.02
"""Two cores that save less than such a share of the time by estimate are not taken: estimates err by as much."""

WORTH_FLASH = 0.75
"""Portions whose constants take much more flash than others' are taken for at most such a share of their time."""

MOST_TRIES = 32
"""Programs that are made in search of what has room together."""

Offer = tuple[Node, Sequence[Form]]
"""The forms of a layer, the fastest first: those behind take less memory, perhaps."""

Build = Callable[[Graph, Mapping[Node, Kernel], int], Program]
"""A planned program by these kernels, within so many bytes if such a plan is found; for 0 the least one."""


@dataclass(frozen=True)
class Room:
    """Bytes that two cores may take beyond what one takes; None: no limit but our own, of `times` its RAM and
    MOST_FLASH its constants.
    """

    ram: int | None = None
    flash: int | None = None
    times: float = MOST_RAM


def shared_program(graph: Graph, whole: Program, forms: Forms, build: Build, room: Room = Room()) -> Program:
    """See shared."""
    return shared(graph, whole, forms, build, room)[0]


def shared(graph: Graph, whole: Program, forms: Forms, build: Build, room: Room = Room()) -> tuple[Program, float]:
    """The program for two cores, and its time by estimate, in instructions of the first.

    It is like `whole`, which is one core's, but for the layers that they share, and keeps to `room`. One of layers row
    by row stays as it is, and so does one of which the other core would save less than LEAST_GAIN.
    """
    kernels = kernels_of(graph, whole, forms.first.features)
    alone = {node: forms.first.time(node, kernels.get(node.outputs[0].name)) for node in graph.nodes if node.outputs}
    time = sum(alone.values())
    if any(instr.control is Control.STREAM for instr in whole.instrs):
        return whole, time
    own = room.times * (whole.arena_size + STACK) - STACK
    limit = int(own if room.ram is None else min(own, whole.arena_size + max(room.ram, 0)))
    spare = int((MOST_FLASH - 1) * whole.weights_size)
    spare = spare if room.flash is None else min(spare, max(room.flash, 0))
    found = {node: forms.of(node, kernels.get(node.outputs[0].name), spare) for node in graph.nodes}
    offers = sorted(((node, faster) for node, (_, faster) in found.items() if faster), key=lambda o: -found[o[0]][0])
    search = _Search(graph, kernels, build, limit, spare, _living_beside(whole))
    taken = search.most({}, offers)
    saved = sum(alone[node] - form.time for node, form in taken.items())
    search.beside_each_other(taken, forms, alone)
    saved += search.saved
    if saved < LEAST_GAIN * time:
        return whole, time
    taken = {node: form for node, form in taken.items() if node not in search.inside}
    program = search.program(taken, 0)
    return (program, time - saved) if program.arena_size <= limit and not _copied(program) else (whole, time)


def kernels_of(graph: Graph, program: Program, features: frozenset[str]) -> dict[str, Kernel]:
    """By output the kernel that a program computes a node with, where it has a choice."""
    used = {(instr.name, instr.kernel) for instr in program.instrs}
    fitting = all_fitting(graph, features)
    return {n.outputs[0].name: k for n, found in fitting.items() for k in found if (n.outputs[0].name, k.name) in used}


@dataclass
class _Search:
    """For the forms of layers that have room together, beside what else lives."""

    graph: Graph
    kernels: Mapping[str, Kernel]
    """Of whole layers, by output."""
    build: Build
    limit: int
    """Bytes of the arena."""
    spare: int
    """Bytes of constants beyond those of one core's program, all layers together."""
    beside: Mapping[str, int]
    tries: int = MOST_TRIES
    branches: list[tuple[Pair, Mapping[str, Kernel]]] = field(default_factory=list)
    """That are computed side by side, and the kernels by outputs."""
    saved: float = 0.0
    """By these, beyond what sharing their layers saves."""

    @property
    def inside(self) -> set[Node]:
        """The nodes of branches."""
        return {node for pair, _ in self.branches for node in pair.nodes}

    def beside_each_other(self, taken: Mapping[Node, Form], forms: Forms, alone: Mapping[Node, float]) -> None:
        """Takes branches side by side where that takes less than their layers, shared where they are."""
        found = []
        for pair in pairs(self.graph, lambda node: alone[node], forms.other.pace):
            if pair.first and pair.second:
                sides = forms.together(pair.first, pair.second, self.kernels)
                now = sum(taken[node].time if node in taken else alone[node] for node in pair.nodes)
                found.append((now - sides.time, pair, sides))
        for gain, pair, sides in sorted(found, key=lambda each: -each[0]):
            if gain <= 0 or self.inside & {*pair.nodes} or not self.tries:
                continue
            self.tries -= 1
            self.branches.append((pair, sides.kernels))
            program = self.program({n: form for n, form in taken.items() if n not in self.inside}, self.limit)
            if program.arena_size <= self.limit and not _copied(program) and not _has_idle_side(program):
                self.saved += gain
            else:
                self.branches.pop()

    def most(self, taken: Mapping[Node, Form], offers: Sequence[Offer]) -> Mapping[Node, Form]:
        """What is taken and, of what is offered, as much as has room: all at once, or one half after the other.

        A layer for itself takes its next form where one has no room. Portions that would be copied, as they cannot lie
        in place, are in the second half.
        """
        offers = [(node, kept) for node, forms in offers if (kept := self._fitting(node, forms))]
        if not offers or not self.tries:
            return taken
        self.tries -= 1
        more = {**taken, **{node: forms[0] for node, forms in offers}}
        program = self.program(more, self.limit)
        copied = _copied(program)
        has_room = program.arena_size <= self.limit and sum(form.flash for form in more.values()) <= self.spare
        if has_room and not copied:
            return more
        if len(offers) == 1:
            ((node, forms),) = offers
            return self.most(taken, [(node, forms[1:])])
        bad = [offer for offer in offers if offer[0].output.name in copied]
        good = [offer for offer in offers if offer not in bad]
        if not good or not bad:
            good, bad = offers[: len(offers) // 2], offers[len(offers) // 2 :]
        return self.most(self.most(taken, good), bad)

    def program(self, taken: Mapping[Node, Form], enough: int) -> Program:
        """Of the graph, whose layers are forks where these forms are taken."""
        other = self.graph.copy()
        forms = {node.output.name: form for node, form in taken.items()}
        kernels = {node: kernel for form in forms.values() for node, kernel in form.kernels.items()}
        for node in list(other.nodes):
            name = node.outputs[0].name
            if name in forms:
                inputs = [v for v in node.inputs if v is not None and not v.is_constant]
                other.rewrite(node, forms[name].fork, inputs, types=[node.output.type])
            elif name in self.kernels:
                kernels[node] = self.kernels[name]
        self._put_side_by_side(other, kernels)
        return self.build(other, kernels, enough)

    def _put_side_by_side(self, graph: Graph, kernels: dict[Node, Kernel]) -> None:
        """The branches that are taken, in a copy of the graph."""
        for pair, chosen in self.branches:
            parts = [{node.outputs[0].name for node in part} for part in (pair.first, pair.second)]
            first, second = ([n for n in graph.nodes if n.outputs[0].name in part] for part in parts)
            made = side_by_side(graph, first, second)
            inner = [node for body in made.op.bodies for node in body.nodes]
            kernels |= {n: chosen[n.outputs[0].name] for n in inner if n.outputs[0].name in chosen}

    def _fitting(self, node: Node, forms: Sequence[Form]) -> Sequence[Form]:
        """These from the first on that has room if no other layer is shared: programs of one layer are made fast.

        Of those that take much more flash the first, if it is worth that.
        """
        room = self.limit - self.beside.get(node.output.name, 0)
        small, large = (
            list(dropwhile(lambda form: not self._fits_alone(node, form, room), some))
            for some in ([form for form in forms if not form.flash], [form for form in forms if form.flash])
        )
        return [form for form in large[:1] if not small or form.time <= WORTH_FLASH * small[0].time] + small

    def _fits_alone(self, node: Node, form: Form, room: int) -> bool:
        program = self.build(_alone(node, form.fork), form.kernels, max(room, 1))
        return program.arena_size <= room and not _copied(program)


def _living_beside(program: Program) -> dict[str, int]:
    """By layer the bytes that live while it is computed, and that it does not use; the most of several instructions."""
    ranges = program.live_ranges()
    found: dict[str, int] = {}
    for index, instr in enumerate(program.instrs):
        used = {operand.buffer for operand in instr.operands}
        others = sum(b.nbytes for b, (first, last) in ranges.items() if first <= index <= last and b not in used)
        found[instr.name] = max(found.get(instr.name, 0), others)
    return found


def _alone(node: Node, form: Forked) -> Graph:
    """A graph of a layer alone, in this form."""
    graph = Graph("layer")
    inputs = [graph.add_input(v.name, v.type) for v in node.inputs if v is not None and not v.is_constant]
    made = graph.add(form, inputs, node.origin, names=[node.output.name], types=[node.output.type])
    graph.add_output(node.output.name, made.output)
    return graph


def _has_idle_side(program: Program) -> bool:
    """Return whether one side of a fork computes nothing: its layers are views of what the other side uses."""
    sides = [span for start, middle, end in program.forks() for span in ((start, middle), (middle, end))]
    return any(
        all(i.control is not Control.NONE or i.moves_nothing for i in program.instrs[first + 1 : last])
        for first, last in sides
    )


def _copied(program: Program) -> frozenset[str]:
    """The layers of forks around which something is moved that was to lie in place."""
    moves = (i for i in program.instrs if i.op == Forked.mnemonic and i.kernel == MOVE and not i.stays)
    return frozenset(move.name for move in moves if not move.moves_nothing)
