# SPDX-License-Identifier: Apache-2.0
"""Which layers are computed together, row by row, so that a model needs less RAM: a shortest path through its cuts.

A cut is a place in the order of nodes where only one tensor is of interest. Between two cuts, nodes run one by one or,
where they can, as a group (mcugen.ops.stream).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, takewhile

from mcugen.hir.graph import Graph, Node, Value
from mcugen.kernels.choose import LEAST_BESIDES, all_fitting, fitting_kernels, offers_of
from mcugen.kernels.cost import CostTable
from mcugen.lir.builder import Builder, trial
from mcugen.lir.kernel import Kernel
from mcugen.lir.lower import lower_nodes
from mcugen.lir.overlap import extent
from mcugen.lir.program import ALIGNMENT, Program
from mcugen.ops.row_groups import group_of
from mcugen.ops.stream import Layer, Streamed

MOST_NODES = 24
"""Of a group: the search grows with its square."""

PER_EVENT = 40
PER_BYTE = 0.5
"""Instructions that the loop over events takes, and the shifting of windows."""


@dataclass(frozen=True)
class Stretch:
    """What is between two cuts: nodes from `first` up to `end`, as a group if there is an `op`.

    `ram` are bytes alive at its busiest moment; `instructions` are those that it takes more than layer by layer.
    """

    first: int
    end: int
    op: Streamed | None
    ram: int
    instructions: float


class Streaming:
    """The ways to cut a graph into stretches, for a CPU with `features` and these costs.

    `is_streamed_in`: the caller hands over the first input row by row; it must be in the first group.
    """

    def __init__(
        self, graph: Graph, features: frozenset[str], costs: CostTable, *, is_streamed_in: bool = False
    ) -> None:
        self.graph = graph
        self._features = features
        self._costs = costs
        self._is_streamed_in = is_streamed_in
        self._bodies: dict[tuple[str, ...], tuple[float, int]] = {}

    def plans(self) -> Iterator[list[Stretch]]:
        """From the least RAM to all that layer by layer takes, each with the fewest instructions for its RAM."""
        tried: set[tuple[tuple[int, int], ...]] = set()
        for limit in sorted({s.ram for s in self.stretches}):
            path = self._shortest(limit)
            groups = tuple((s.first, s.end) for s in path or () if s.op)
            if path and groups not in tried:
                tried.add(groups)
                yield path

    def product(self, plan: Sequence[Stretch]) -> float:
        """Instructions · RAM of a plan, by estimate."""
        plain = sum(instructions for _, instructions in self._plain)
        return (plain + sum(s.instructions for s in plan)) * (max(s.ram for s in plan) + LEAST_BESIDES)

    @cached_property
    def cuts(self) -> list[int]:
        """Numbers of nodes before which there is a cut; the end is one."""
        crossing = self._crossing()
        inner = (i for i in range(1, len(crossing)) if crossing[i] == 1)
        return list(dict.fromkeys([0, *inner, len(crossing)]))

    @cached_property
    def stretches(self) -> list[Stretch]:
        """All of them: single ones, then groups."""
        singles = [
            Stretch(a, b, None, max(self._plain[i][0] for i in range(a, b)), 0.0)
            for a, b in zip(self.cuts, self.cuts[1:], strict=False)
        ]
        if self._is_streamed_in:
            singles = singles[1:]
        return singles + list(self._groups())

    def _crossing(self) -> list[int]:
        """By node, how many tensors are made or read before it and read from it on."""
        first: dict[Value, int] = {}
        last: dict[Value, int] = {}
        for index, node in enumerate(self.graph.nodes):
            for value in filter(None, (*node.inputs, *node.outputs)):
                first.setdefault(value, index)
            last.update((value, index) for value in node.inputs if value is not None)
        last.update((value, len(self.graph.nodes)) for value in self.graph.outputs)
        changes = [0] * (len(self.graph.nodes) + 2)
        for value, index in first.items():
            if not value.is_constant and last.get(value, -1) > index:
                changes[index + 1] += 1
                changes[last[value] + 1] -= 1
        return list(accumulate(changes[: len(self.graph.nodes)]))

    @cached_property
    def _plain(self) -> list[tuple[int, float]]:
        """By node: bytes alive while it runs, and its instructions."""
        offers, others = offers_of(self.graph, self._features, self._costs, all_fitting(self.graph, self._features))
        best = {node: min(offer, key=lambda c: (c.ram, c.instructions)) for node, offer in offers.items()}
        return [
            (best[node].ram, best[node].instructions) if node in best else (others.get(node.outputs[0].name, 0), 0.0)
            for node in self.graph.nodes
        ]

    def _lightest(self, node: Node, found: Sequence[Kernel]) -> Kernel:
        """The kernel with the least scratch memory, and of those the fastest."""
        return min(found, key=lambda k: (self._scratch(node, k), self._costs.instructions(node, k)))

    def _scratch(self, node: Node, kernel: Kernel) -> int:
        return trial(node, kernel, self._features).program.scratch_size

    # ---------------------------------------------------------------------------------------------- groups

    def _groups(self) -> Iterator[Stretch]:
        for number, first in enumerate(self.cuts):
            behind = (self.cuts[i] for i in range(number + 1, len(self.cuts)))
            for end in takewhile(lambda end: end - first <= MOST_NODES, behind):  # noqa: B023  (used at once)
                if end - first > 1 or self._comes_by_rows(first):
                    op = self._group(first, end)
                    if op is not None:
                        yield Stretch(first, end, op, *self._cost(op, first, end))

    def _group(self, first: int, end: int) -> Streamed | None:
        op = group_of(self.graph.nodes[first:end])
        if op is None or (op.tensors[0].axis != 1 and not self._comes_by_rows(first)):
            return None
        return op if op.tensors[0].axis == 1 or op.schedule.windows[0] == 1 else None

    def _comes_by_rows(self, first: int) -> bool:
        """Whether the caller hands over what a group that begins there reads."""
        return self._is_streamed_in and first == 0

    def _cost(self, op: Streamed, first: int, end: int) -> tuple[int, float]:
        """Bytes alive while a group runs, and its instructions beyond those of its nodes one by one."""
        rows = [window * tensor.pitch for window, tensor in zip(op.schedule.windows, op.tensors, strict=True)]
        bodies = [self._body(layer) for layer in op.layers]
        whole = op.tensors[0].nbytes * op.tensors[0].height
        if self._comes_by_rows(first):
            whole = 0
        out = op.output.count * op.output.dtype.nbytes
        ends = whole + out if op.layers[-1].adds else extent(whole, out, op.lead) if whole else out
        last_row = 0 if op.layers[-1].adds else op.tensors[-1].nbytes
        local = max(ram + (last_row if i == len(bodies) - 1 else 0) for i, (_, ram) in enumerate(bodies))
        moved = sum(
            tensor.height * nbytes
            for tensor, nbytes, n in zip(op.tensors, rows, op.schedule.windows, strict=True)
            if n > 1
        )
        instructions = sum(times * body[0] for times, body in zip(op.repeats, bodies, strict=True))
        instructions += PER_EVENT * len(op.schedule.events) + PER_BYTE * moved
        plain = sum(self._plain[i][1] for i in range(first, end))
        return ends + sum(rows[:-1]) + local + 2 * ALIGNMENT, instructions - plain

    def _body(self, layer: Layer) -> tuple[float, int]:
        """Instructions of a layer's body, and the bytes that it needs besides its inputs and its output."""
        key = tuple(node.output.name for node in layer.body.nodes)
        if key not in self._bodies:
            choices = {
                node: self._lightest(node, found)
                for node in layer.body.nodes
                if (found := fitting_kernels(node, self._features, any_size=False))
            }
            instructions = sum(self._costs.instructions(node, k) for node, k in choices.items())
            self._bodies[key] = instructions, self._working_memory(layer.body, choices)
        return self._bodies[key]

    def _working_memory(self, body: Graph, choices: Mapping[Node, Kernel]) -> int:
        builder = Builder(Program("trial"), self._features, choices=choices)
        ends = {builder.buffer(v) for v in (*body.inputs, *body.outputs)}
        lower_nodes(body, builder)
        ranges = builder.program.live_ranges()
        alive = (
            sum(b.nbytes for b, (first, last) in ranges.items() if b not in ends and first <= i <= last)
            for i in range(len(builder.program.instrs))
        )
        return max(alive, default=0)

    # ---------------------------------------------------------------------------------------------- path

    def _shortest(self, limit: int) -> list[Stretch] | None:
        """Stretches from start to end within `limit` bytes, with the fewest instructions; then the fewest groups."""
        best: dict[int, tuple[float, int, Stretch | None]] = {0: (0.0, 0, None)}
        for cut in self.cuts[1:]:
            ways = [
                (best[s.first][0] + max(s.instructions, 0.0), best[s.first][1] + (s.op is not None), s)
                for s in self._ending[cut]
                if s.ram <= limit and s.first in best
            ]
            if ways:
                best[cut] = min(ways, key=lambda way: way[:2])
        return self._path(best) if self.cuts[-1] in best else None

    def _path(self, best: Mapping[int, tuple[float, int, Stretch | None]]) -> list[Stretch]:
        """From the start to the end, by what leads to each cut."""
        path: list[Stretch] = []
        last = best[self.cuts[-1]][2]
        while last is not None:
            path.append(last)
            last = best[last.first][2]
        return path[::-1]

    @cached_property
    def _ending(self) -> Mapping[int, list[Stretch]]:
        """The stretches by their ends."""
        found: defaultdict[int, list[Stretch]] = defaultdict(list)
        for stretch in self.stretches:
            found[stretch.end].append(stretch)
        return found


def with_groups(graph: Graph, stretches: Sequence[Stretch], *, is_streamed_in: bool = False) -> Graph:
    """A copy of the graph whose groups are nodes; of the first, the caller may hand over the input.

    Without groups, the graph itself.
    """
    if not any(s.op for s in stretches):
        return graph
    graph = graph.copy()
    groups = [(s.op, graph.nodes[s.first : s.end]) for s in stretches if s.op]
    for index, (op, nodes) in enumerate(groups):
        _join(graph, replace(op, from_caller=is_streamed_in and index == 0), nodes)
    return graph


def _join(graph: Graph, op: Streamed, nodes: Sequence[Node]) -> None:
    source, last = nodes[0].input(0), nodes[-1]
    origin = [name for node in nodes for name in node.origin]
    graph.release_name(last.output)
    whole = graph.add(op, [source], origin, names=[last.output.name], types=[op.output], before=nodes[0])
    result = whole.output
    if op.layers[-1].adds:
        form = last.op.by_rows(last.sig)
        assert form is not None and form.finish is not None
        result = graph.add(form.finish, [result], last.origin, types=[last.output.type], before=nodes[0]).output
    graph.replace(last.output, result)
    for node in reversed(nodes):
        graph.remove(node)
