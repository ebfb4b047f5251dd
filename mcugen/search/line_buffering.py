# SPDX-License-Identifier: Apache-2.0
"""Which layers are computed together, row by row, so that a model needs less RAM: a shortest path through its nodes.

Nodes run one by one or, where several that follow one another can, as a group (mcugen.ops.stream). What is alive around
them depends on neither.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import groupby, islice, takewhile

from mcugen.core.board import Board
from mcugen.hir.graph import Graph, Node, Value, with_bodies
from mcugen.hir.operator import RowForm
from mcugen.hir.traits import Rowwise, row_form
from mcugen.kernels.choose import LEAST_BESIDES, all_fitting, fitting_kernels, offers_of
from mcugen.kernels.cost import CostTable, cost_table
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.lower import lower_nodes
from mcugen.lir.overlap import extent
from mcugen.lir.program import ALIGNMENT, Program, Space
from mcugen.lir.trial import trial
from mcugen.memory.plan import peak_live_bytes
from mcugen.ops.movement import Slice
from mcugen.ops.row_groups import RowGroups, ends_of, group_of
from mcugen.ops.stream import Layer, Streamed
from mcugen.search.line_buffer_groups import Stretch, alone, in_order_of_rows, ram_of, with_groups

MOST_NODES = 24
"""Of a group: the search grows with its square."""

MOST_GROUPS = 3_000
"""Of a graph, that are made to see what they take, about twice those of any network of some hundred layers: a second or
two, or three. Those that may need the least RAM come first, and the rest is left out.
"""

PAIRS_GAIN = 0.8
"""Two rows are made at once where that takes at most so many times the instructions, by the fastest kernels of both."""

PER_EVENT = 40
PER_BYTE = 0.5
"""Instructions that the loop over events takes, and the shifting of windows."""


class Streaming:
    """The ways to divide a graph into stretches, for a CPU with `features` and these costs.

    `is_streamed_in`: the caller hands over the first input row by row; it must be in the first group. `in_pairs`: who
    has faster kernels for two rows at once makes two.
    """

    def __init__(
        self,
        graph: Graph,
        features: frozenset[str],
        costs: CostTable,
        *,
        is_streamed_in: bool = False,
        in_pairs: bool = False,
    ) -> None:
        self.graph = graph
        self._features = features
        self._costs = costs
        self._is_streamed_in = is_streamed_in
        self._in_pairs = in_pairs
        self._bodies: dict[Graph, tuple[float, int]] = {}
        self._made: dict[tuple[int, int, bool], Stretch | None] = {}
        self._known_ends: dict[tuple[int, int], tuple[list[Value], list[Value]]] = {}

    def plans(self, most: float = math.inf) -> Iterator[list[Stretch]]:
        """From the least RAM to all that layer by layer takes, each with the fewest instructions for its RAM.

        Groups of more than `most` bytes are left out. Others are made when they may be the next to fit.
        """
        tried: set[tuple[tuple[int, int], ...]] = set()
        ending: defaultdict[int, list[tuple[int, Stretch]]] = defaultdict(list)
        best: dict[int, _Way] = {0: (0.0, 0, 0, None)}
        for _, stretches in groupby(self._by_ram(most), key=lambda numbered: numbered[1].ram):
            better = []
            for number, stretch in stretches:
                ending[stretch.end].append((number, stretch))
                if stretch.first in best and _way(best, number, stretch) < best.get(stretch.end, _NO_WAY):
                    better.append(stretch.end)
            if not better:
                continue
            self._improve(best, ending, min(better))
            path = self._path(best)
            groups = tuple((s.first, s.end) for s in path if s.op)
            if path and groups not in tried:
                tried.add(groups)
                yield path

    @property
    def looked_at(self) -> int:
        """How many groups so far."""
        return len(self._made)

    def product(self, plan: Sequence[Stretch]) -> float:
        """Instructions · RAM of a plan, by estimate."""
        plain = sum(instructions for _, instructions in self._plain)
        return (plain + sum(s.instructions for s in plan)) * (ram_of(plan) + LEAST_BESIDES)

    @cached_property
    def least(self) -> int:
        """Bytes that no plan does without."""
        best = {0: self.borders}
        ending: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for first, end, ram in self._spans:
            ending[end].append((first, ram))
        for end, (ram, _) in enumerate(self._plain, 1):
            best[end] = min(max(best[first], least) for first, least in [(end - 1, ram), *ending[end]])
        return best[len(self._plain)]

    @cached_property
    def _lives(self) -> Mapping[Value, tuple[int, int]]:
        """By tensor: the number of the node that makes it (−1: none) and that of the last one that reads it.

        Parts that lie together stay where the whole was, each as long as it is read.
        """
        found = dict.fromkeys(self.graph.inputs, (-1, -1))
        for index, node in enumerate(self.graph.nodes):
            if isinstance(node.op, Slice) and node.op.is_run(node.input(0).type):
                made, _ = found[node.input(0)]
                found[node.output] = made, index
                continue
            found.update((value, (index, index)) for value in node.outputs)
            found.update((v, (found[v][0], index)) for v in node.inputs if v is not None and not v.is_constant)
        found.update((v, (found[v][0], len(self.graph.nodes))) for v in self.graph.outputs if v in found)
        return found

    def _nbytes(self, value: Value) -> int:
        """What a tensor takes of the arena."""
        is_end = value in self.graph.inputs or self.graph.is_output(value)
        return 0 if self.graph.external_io and is_end else value.type.nbytes

    def _around(self, first: int, end: int) -> int:
        """Bytes of tensors that are made before these nodes and read after them."""
        return sum(self._nbytes(v) for v, last in self._standing[first] if last >= end)

    @cached_property
    def _standing(self) -> list[list[tuple[Value, int]]]:
        """By node: tensors that are made before it and read by it or later, each with the number of its last reader."""
        found: list[list[tuple[Value, int]]] = [[] for _ in self.graph.nodes]
        for value, (made, last) in self._lives.items():
            for index in range(made + 1, min(last + 1, len(found))):
                found[index].append((value, last))
        return found

    @cached_property
    def _plain(self) -> list[tuple[int, float]]:
        """By node: bytes alive while it runs, and its instructions."""
        fitting = all_fitting(self.graph, self._features)
        offers, others = offers_of(self.graph, self._features, self._costs, fitting, in_any_order=True)
        best = {node: min(offer, key=lambda c: (c.ram, c.instructions)) for node, offer in offers.items()}
        return [
            (best[node].ram, best[node].instructions) if node in best else (others.get(node.outputs[0].name, 0), 0.0)
            for node in self.graph.nodes
        ]

    def _lightest(self, node: Node, found: Sequence[Kernel]) -> Kernel:
        """The kernel with the least scratch memory, and of those the fastest."""
        return min(found, key=lambda k: (self._scratch(node, k), self._costs.time(node, k)))

    def _fastest(self, node: Node, found: Sequence[Kernel]) -> Kernel:
        return min(found, key=lambda k: self._costs.time(node, k))

    def _scratch(self, node: Node, kernel: Kernel) -> int:
        return trial(node, kernel, self._features).program.scratch_size

    # ---------------------------------------------------------------------------------------------- groups

    def _by_ram(self, most: float) -> Iterator[tuple[int, Stretch]]:
        """Numbered stretches, from the least RAM on: single nodes, and groups that may take at most `most` bytes."""
        singles = [Stretch(i, i + 1, None, ram, 0.0) for i, (ram, _) in enumerate(self._plain)]
        ready = [(single.ram, number, single) for number, single in enumerate(singles)]
        ready = ready[self._is_streamed_in :]
        heapify(ready)
        spans = sorted((least, number) for number, (_, _, least) in enumerate(self._spans) if least <= most)
        for least, place in [*spans, (math.inf, 0)]:
            while ready and ready[0][0] < least:
                _, number, stretch = heappop(ready)
                yield number, stretch
            if least < math.inf:
                for number, group in self._groups(place):
                    heappush(ready, (group.ram, len(singles) + number, group))

    def _groups(self, place: int) -> Iterator[tuple[int, Stretch]]:
        """Those of a span, numbered among those of all."""
        first, end, _ = self._spans[place]
        for narrow in self._widths(first, end):
            if (first, end, narrow) not in self._made:
                if len(self._made) >= MOST_GROUPS:
                    return
                op = self._group(first, end, narrow)
                made = None if op is None else Stretch(first, end, op, *self._cost(op, first, end))
                self._made[first, end, narrow] = made
            stretch = self._made[first, end, narrow]
            if stretch is not None:
                yield 2 * place + narrow, stretch

    @cached_property
    def _spans(self) -> list[tuple[int, int, int]]:
        """The first node and the end of groups that may help, and the bytes that they need in any case."""
        found = []
        for first in range(len(self.graph.nodes)):
            rowwise = takewhile(lambda i: self._forms[i][0] is not None, range(first, len(self.graph.nodes)))
            for last in islice(rowwise, MOST_NODES):
                least = self._least(first, last + 1)
                if least is not None:
                    found.append((first, last + 1, least))
        return found

    def _least(self, first: int, end: int) -> int | None:
        """Bytes that a group needs in any case, or None if its nodes one by one need no more, nor the whole graph."""
        sources, results = self._ends_of(first, end)
        dying = sum(self._nbytes(v) for v in sources if self._lives[v][1] < end)
        ends = max(dying, sum(self._nbytes(v) for v in results))
        least = self._around(first, end) + ends + self._least_windows(first, end)
        if self._comes_by_rows(first):
            return 0
        helps = end - first > 1 and max(ram for ram, _ in self._plain[first:end]) > max(least, self.borders)
        return least if helps else None

    def _ends_of(self, first: int, end: int) -> tuple[list[Value], list[Value]]:
        """What these nodes read of others, and what others read of them."""
        if (first, end) not in self._known_ends:
            self._known_ends[first, end] = ends_of(self.graph.nodes[first:end], self.graph.outputs)
        return self._known_ends[first, end]

    def _least_windows(self, first: int, end: int) -> int:
        """Bytes of the rows that lie between the nodes of a group at least: those that somebody reads at once."""
        found: dict[Value, int] = {}
        for index in range(first, end):
            for value, nbytes in self._windows[index]:
                found[value] = max(found.get(value, 0), nbytes)
        return sum(found.values())

    @cached_property
    def _windows(self) -> list[list[tuple[Value, int]]]:
        """By node what it reads several rows of, and the bytes of these."""
        return [
            [
                (value, window.span * (value.type.nbytes // value.type.shape[window.axis]))
                for value, window in zip(node.inputs, form.windows if form else (), strict=False)
                if value is not None and window is not None and window.span > window.stride
            ]
            for node, (form, _) in zip(self.graph.nodes, self._forms, strict=True)
        ]

    @cached_property
    def borders(self) -> int:
        """Bytes that the inputs of the graph take in any case, or its outputs."""
        inputs = self.graph.inputs[self._is_streamed_in :]
        return max(sum(self._nbytes(v) for v in values) for values in (inputs, self.graph.outputs))

    def _widths(self, first: int, end: int) -> tuple[bool, ...]:
        """The ways to have rows in memory: with columns at their sides, and narrow, if that is another way."""
        return (False, True) if any(wide != narrow for wide, narrow in self._forms[first:end]) else (False,)

    @cached_property
    def _forms(self) -> list[tuple[RowForm | None, RowForm | None]]:
        """By node, how it computes rows with columns at their sides, and narrow ones."""
        return list(zip(*(groups.forms for groups in self._ways), strict=True))

    @cached_property
    def _ways(self) -> tuple[RowGroups, RowGroups]:
        """Groups with columns at the sides of rows, and narrow ones."""
        nodes, outputs, pairs = self.graph.nodes, self.graph.outputs, self.pairs
        return RowGroups(nodes, outputs, pairs=pairs), RowGroups(nodes, outputs, narrow=True, pairs=pairs)

    @cached_property
    def pairs(self) -> frozenset[str]:
        """Outputs of which two rows are made at once: convolutions of stride 1 that this makes faster."""
        found = [node for node in self.graph.nodes if self._in_pairs and self._gains_by_twos(node)]
        return frozenset(node.output.name for node in found)

    def _gains_by_twos(self, node: Node) -> bool:
        form = row_form(node.op, node.sig)
        if form is None or not any(w and w.span > w.stride == 1 for w in form.windows):
            return False
        one, two = (group_of([node], pairs=pairs) for pairs in ((), (node.output.name,)))
        if one is None or two is None or one.layers[0].rows == two.layers[0].rows:
            return False
        return self._least_time(two) < PAIRS_GAIN * self._least_time(one)

    def _least_time(self, op: Streamed) -> float:
        """Of a group of one layer, by its fastest kernels: instructions."""
        ((times, body),) = zip(op.repeats, op.bodies, strict=True)
        offers = [(node, fitting_kernels(node, self._features, any_size=False)) for node in body.nodes]
        return times * sum(self._costs.time(node, self._fastest(node, found)) for node, found in offers if found)

    def _group(self, first: int, end: int, narrow: bool) -> Streamed | None:
        op = self._ways[narrow].group(first, end)
        if op is None or not all(t.is_contiguous for t in op.tensors[self._comes_by_rows(first) : op.sources]):
            return None
        if not self._comes_by_rows(first):
            return op
        x = self.graph.inputs[0]
        return op if self.graph.nodes[first].inputs[0] is x and self._lives[x][1] < end else None

    def _comes_by_rows(self, first: int) -> bool:
        """Whether the caller hands over what a group that begins there reads."""
        return self._is_streamed_in and first == 0

    def _cost(self, op: Streamed, first: int, end: int) -> tuple[int, float]:
        """Bytes alive while a group runs, and its instructions beyond those of its nodes one by one."""
        schedule = op.schedule
        rows = [window * tensor.pitch for window, tensor in zip(schedule.windows, op.tensors, strict=True)]
        bodies = [self._body(layer) for layer in op.layers]
        read = {t for layer in op.layers for t, _ in layer.reads}
        put = {} if op.adds else {t: op.tensors[t].nbytes * schedule.step(t) for t in op.results if t not in read}
        local = max(ram + put.get(i, 0) for i, (_, ram) in enumerate(bodies, op.sources))
        moved = sum(
            tensor.height * nbytes // schedule.step(t)
            for t, (tensor, nbytes) in enumerate(zip(op.tensors, rows, strict=True))
            if schedule.windows[t] > schedule.step(t)
        )
        instructions = sum(times * body[0] for times, body in zip(op.repeats, bodies, strict=True))
        instructions += PER_EVENT * len(schedule.events) + PER_BYTE * moved
        plain = sum(self._plain[i][1] for i in range(first, end))
        windows = sum(rows[t] for t in read)
        return self._ends(op, first, end) + windows + local + 2 * ALIGNMENT, instructions - plain

    def _ends(self, op: Streamed, first: int, end: int) -> int:
        """Bytes of the inputs and outputs of a group, one of which may lie over another, and of all around it."""
        read, results = self._ends_of(first, end)
        sources = op.ordered(read)
        dying = {i: self._nbytes(v) for i, v in enumerate(sources) if self._lives[v][1] < end}
        around = self._around(first, end)
        if self._comes_by_rows(first):
            dying.pop(0, None)
        callers = [self.graph.external_io and not op.adds and self.graph.is_output(v) for v in results]
        ends = zip(op.results, op.outputs, callers, strict=True)
        outputs = {t: 0 if is_callers else out.nbytes for t, out, is_callers in ends}
        saved = (
            x + y - extent(x, y, lead)
            for i, x in dying.items()
            if i < op.sources
            for t, y in outputs.items()
            if (lead := op.lead(t, i)) is not None
        )
        return around + sum(dying.values()) + sum(outputs.values()) - max(saved, default=0)

    def _body(self, layer: Layer) -> tuple[float, int]:
        """Instructions of a layer's body, and the bytes that it needs besides its inputs and its output."""
        if layer.body not in self._bodies:
            choices = {
                node: self._fastest(node, found) if node.output.name in self.pairs else self._lightest(node, found)
                for node in layer.body.nodes
                if (found := fitting_kernels(node, self._features, any_size=False))
            }
            instructions = sum(self._costs.time(node, k) for node, k in choices.items())
            self._bodies[layer.body] = instructions, self._working_memory(layer.body, choices)
        return self._bodies[layer.body]

    def _working_memory(self, body: Graph, choices: Mapping[Node, Kernel]) -> int:
        builder = Builder(Program("trial"), self._features, choices=choices)
        for value in (*body.inputs, *body.outputs):
            builder.buffer(value).space = Space.GIVEN  # the group has them
        lower_nodes(body, builder)
        return peak_live_bytes(builder.program)

    # ---------------------------------------------------------------------------------------------- path

    def _improve(self, best: dict[int, _Way], ending: Mapping[int, Sequence[tuple[int, Stretch]]], start: int) -> None:
        """Finds the ways to the nodes from `start` on anew, by the stretches that end there."""
        for end in range(start, len(self.graph.nodes) + 1):
            ways = [_way(best, number, s) for number, s in ending.get(end, ()) if s.first in best]
            if ways:
                best[end] = min(ways)

    def _path(self, best: Mapping[int, _Way]) -> list[Stretch]:
        """From the start to the end, by what leads to each node; empty if nothing does."""
        path: list[Stretch] = []
        last = best.get(len(self.graph.nodes), _NO_WAY)[3]
        while last is not None:
            path.append(last)
            last = best[last.first][3]
        return path[::-1]


_Way = tuple[float, int, int, Stretch | None]
"""To a node: instructions, groups, and the stretch that ends there, with its number; the least of these is the best."""

_NO_WAY: _Way = (math.inf, 0, 0, None)


def _way(best: Mapping[int, _Way], number: int, stretch: Stretch) -> _Way:
    """That by a stretch, behind the best one to its first node."""
    instructions, groups, *_ = best[stretch.first]
    return instructions + max(stretch.instructions, 0.0), groups + (stretch.op is not None), number, stretch


class Streamings:
    """Those of graphs for a board, each made once: several goals ask for the same."""

    def __init__(self, board: Board, *, is_streamed_in: bool = False) -> None:
        self._board = board
        self._is_streamed_in = is_streamed_in
        self._found: dict[tuple[Graph, bool], Streaming] = {}
        self._ordered: dict[Graph, Graph] = {}

    @property
    def looked_at(self) -> int:
        """How many groups of all graphs."""
        return sum(streaming.looked_at for streaming in self._found.values())

    def ordered(self, graph: Graph) -> Graph:
        """See in_order_of_rows."""
        if graph not in self._ordered:
            self._ordered[graph] = in_order_of_rows(graph)
        return self._ordered[graph]

    def of(self, graph: Graph, *, is_body: bool = False, in_pairs: bool = False) -> Streaming:
        """That of a graph, or of a node's body, whose inputs the caller knows nothing of."""
        if (graph, in_pairs) not in self._found:
            costs = cost_table(self._board.cpu, self._board.features)
            is_streamed_in = self._is_streamed_in and not is_body
            made = Streaming(graph, self._board.features, costs, is_streamed_in=is_streamed_in, in_pairs=in_pairs)
            self._found[graph, in_pairs] = made
        return self._found[graph, in_pairs]

    def with_pairs(self, graph: Graph) -> tuple[Streaming, ...]:
        """That of a graph, and that where two rows are made at once, if kernels are faster at that."""
        pairs = self.of(graph, in_pairs=True)
        return (self.of(graph), pairs) if pairs.pairs else (self.of(graph),)

    def bodies_in_groups(self, graph: Graph) -> Graph:
        """The graph with layers of branches' and loops' bodies in groups that promise the least RAM; itself if there
        are none.
        """
        found = {
            node: {body: self._in_groups(body) for body in node.op.bodies} for node in graph.nodes if node.op.bodies
        }
        if all(body is other for bodies in found.values() for body, other in bodies.items()):
            return graph
        places = {node: place for place, node in enumerate(graph.nodes)}
        made = graph.copy()
        for node, bodies in found.items():
            made.nodes[places[node]].op = with_bodies(node.op, bodies.__getitem__)
        return made

    def _in_groups(self, body: Graph) -> Graph:
        body = self.ordered(self.bodies_in_groups(body))
        plan = next(self.of(body, is_body=True).plans(), [])
        return with_groups(body, plan)


def whole_layers(graph: Graph) -> dict[str, str]:
    """By the name of its first output, why a node cannot be computed row by row."""
    found = {}
    for node in graph.nodes:
        if node.op.bodies or (row_form(node.op, node.sig) is not None and len(node.outputs) == 1):
            continue
        if not isinstance(node.op, Rowwise):
            reason = f"{node.op.name} has no form by rows"
        elif len(node.outputs) > 1:
            reason = f"{node.op.name} has several outputs"
        else:
            shapes = ", ".join(str(v.type) for v in node.inputs if v is not None and not v.is_constant)
            reason = f"{node.op.name} of {shapes} to {node.output.type} has no form by rows"
        found[node.outputs[0].name] = reason
    return found


def undivided_layers(graph: Graph) -> dict[str, str]:
    """By the name of its first output, why a node cannot be a group of its own."""
    apart = {node.outputs[0].name: "its rows lie in parts" for node in graph.nodes if alone(node, graph) is None}
    return apart | whole_layers(graph)
