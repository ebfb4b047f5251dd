# SPDX-License-Identifier: Apache-2.0
"""Line-buffer fusion: which layers are computed together, row by row, to save RAM.

The choice is a shortest path through the nodes. Nodes run one by one or, where consecutive nodes allow it, as a group
(mcugen.ops.stream). The tensors that are live around a run of nodes do not depend on that choice.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import groupby, islice, takewhile

from mcugen.core.board import Board
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import RowForm
from mcugen.hir.traits import Rowwise, row_form
from mcugen.kernels.choose import MAX_GOAL_OFFSET_BYTES, all_fitting, fitting_kernels, offers_of
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
from mcugen.search.line_buffer_groups import GraphSegment, in_order_of_rows, plan_ram_bytes, single_node_group
from mcugen.search.objective import TOLERANCES

MAX_GROUP_NODES = 24
"""Largest number of nodes in a line-buffered group: the time of the search grows with its square."""

MAX_EVALUATED_GROUPS = 3_000
"""Largest number of line-buffered groups of a graph whose cost is computed, which takes one to three seconds.

Networks of some hundred layers have at most half as many. Groups that may need the least RAM are evaluated first.
"""

INSTRUCTIONS_PER_EVENT = 40
"""Estimated instructions of a group's scheduling loop per event; in one event, one layer computes its next rows."""

INSTRUCTIONS_PER_MOVED_BYTE = 0.5
"""Estimated instructions to move one byte of a line buffer (the live rows of a tensor) when its rows shift."""


class Streaming:
    """The search for divisions of a graph into line-buffered groups and single nodes, for one CPU.

    A line-buffered group consists of layers that are computed together row by row, so that only a few rows of the
    tensors between them are in memory.

    Args:
        graph: The graph to divide.
        features: Features of the CPU.
        costs: Costs of kernels on the CPU.
        is_streamed_in: Whether the caller passes the first input row by row; the node that reads it must then be in the
            first group.
        in_pairs: Whether layers with faster kernels for two rows at once compute two rows per step.
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
        self._made: dict[tuple[int, int, bool], GraphSegment | None] = {}
        self._num_paired = 0
        self._known_ends: dict[tuple[int, int], tuple[list[Value], list[Value]]] = {}

    def plans(self, max_ram: float = math.inf) -> Iterator[list[GraphSegment]]:
        """Yield divisions of the graph into segments, in the order of their RAM, the one with the least RAM first.

        A segment is a line-buffered group (layers that are computed together row by row) or a single node. Each
        division is the fastest one for its RAM; the last one has single nodes only, if its RAM is allowed. The cost of
        a group is computed only when it may be the next to fit.

        Args:
            max_ram: Largest estimated RAM of a segment in bytes; larger ones are left out.
        """
        tried: set[tuple[tuple[int, int], ...]] = set()
        ending: defaultdict[int, list[tuple[int, GraphSegment]]] = defaultdict(list)
        best: dict[int, _Way] = {0: (0.0, 0, 0, None)}
        for _, segments in groupby(self._by_ram(max_ram), key=lambda numbered: numbered[1].ram):
            better = []
            for number, segment in segments:
                ending[segment.end].append((number, segment))
                if segment.first in best and _way(best, number, segment) < best.get(segment.end, _NO_WAY):
                    better.append(segment.end)
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
        """Return the number of line-buffered groups whose cost this search has computed so far.

        A line-buffered group consists of layers that are computed together row by row. The number measures the work of
        the search.
        """
        return len(self._made) + self._num_paired

    def product(self, plan: Sequence[GraphSegment]) -> float:
        """Return the estimated instructions of a plan times its RAM in bytes, which `--optimize balanced` minimizes.

        Args:
            plan: The segments that the graph is divided into: groups of layers that are computed row by row, and single
                nodes.
        """
        plain = sum(instructions for _, instructions in self._plain)
        return (plain + sum(s.instructions for s in plan)) * (plan_ram_bytes(plan) + MAX_GOAL_OFFSET_BYTES)

    @cached_property
    def least(self) -> int:
        """Return a lower bound of the RAM in bytes that any division of the graph into groups and nodes needs."""
        best = {0: self.borders}
        ending: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for first, end, ram in self._spans:
            ending[end].append((first, ram))
        for end, (ram, _) in enumerate(self._plain, 1):
            best[end] = min(max(best[first], stretch_ram) for first, stretch_ram in [(end - 1, ram), *ending[end]])
        return best[len(self._plain)]

    @cached_property
    def _lives(self) -> Mapping[Value, tuple[int, int]]:
        """Return the live range of each tensor: the numbers of its producer (-1 for inputs) and of its last reader.

        Slices that are contiguous parts of a tensor stay where the whole tensor was, each as long as it is read.
        """
        ranges = dict.fromkeys(self.graph.inputs, (-1, -1))
        for index, node in enumerate(self.graph.nodes):
            if isinstance(node.op, Slice) and node.op.is_run(node.input(0).type):
                maker, _ = ranges[node.input(0)]
                ranges[node.output] = maker, index
                continue
            ranges.update((value, (index, index)) for value in node.outputs)
            ranges.update((v, (ranges[v][0], index)) for v in node.inputs if v is not None and not v.is_constant)
        ranges.update((v, (ranges[v][0], len(self.graph.nodes))) for v in self.graph.outputs if v in ranges)
        return ranges

    def _nbytes(self, value: Value) -> int:
        """Return the bytes of a tensor in the arena."""
        is_end = value in self.graph.inputs or self.graph.is_output(value)
        return 0 if self.graph.external_io and is_end else value.type.nbytes

    def _around(self, first: int, end: int) -> int:
        """Return the bytes of tensors that are made before these nodes and read after them."""
        return sum(self._nbytes(v) for v, last in self._standing[first] if last >= end)

    @cached_property
    def _standing(self) -> list[list[tuple[Value, int]]]:
        """Return for each node the earlier tensors that it or a later node reads, each with its last reader."""
        alive: list[list[tuple[Value, int]]] = [[] for _ in self.graph.nodes]
        for value, (maker, last) in self._lives.items():
            for index in range(maker + 1, min(last + 1, len(alive))):
                alive[index].append((value, last))
        return alive

    @cached_property
    def _plain(self) -> list[tuple[int, float]]:
        """Return for each node the bytes live while it runs, and its instructions."""
        fitting = all_fitting(self.graph, self._features)
        offers, bytes_without_choice = offers_of(self.graph, self._features, self._costs, fitting, in_any_order=True)
        best = {node: min(offer, key=lambda c: (c.ram, c.instructions)) for node, offer in offers.items()}
        return [
            (best[node].ram, best[node].instructions)
            if node in best
            else (bytes_without_choice.get(node.outputs[0].name, 0), 0.0)
            for node in self.graph.nodes
        ]

    def _lightest(self, node: Node, kernels: Sequence[Kernel]) -> Kernel:
        """Return the kernel with the least scratch memory, and the fastest of several."""
        return min(kernels, key=lambda k: (self._scratch(node, k), self._costs.time(node, k)))

    def _fastest(self, node: Node, kernels: Sequence[Kernel]) -> Kernel:
        return min(kernels, key=lambda k: self._costs.time(node, k))

    def _scratch(self, node: Node, kernel: Kernel) -> int:
        return trial(node, kernel, self._features).program.scratch_size

    # ------------------------------------------------------------------------------------------ Cost of groups

    def _by_ram(self, max_ram: float) -> Iterator[tuple[int, GraphSegment]]:
        """Yield numbered segments in the order of their RAM: single nodes, and groups of at most `max_ram` bytes."""
        singles = [GraphSegment(i, i + 1, None, ram, 0.0) for i, (ram, _) in enumerate(self._plain)]
        ready = [(single.ram, number, single) for number, single in enumerate(singles)]
        ready = ready[self._is_streamed_in :]
        heapify(ready)
        spans = sorted((min_ram, number) for number, (_, _, min_ram) in enumerate(self._spans) if min_ram <= max_ram)
        for min_ram, place in [*spans, (math.inf, 0)]:
            while ready and ready[0][0] < min_ram:
                _, number, segment = heappop(ready)
                yield number, segment
            if min_ram < math.inf:
                for number, group in self._groups(place):
                    heappush(ready, (group.ram, len(singles) + number, group))

    def _groups(self, place: int) -> Iterator[tuple[int, GraphSegment]]:
        """Yield the groups of one span with their numbers."""
        first, end, _ = self._spans[place]
        for is_narrow in self._widths(first, end):
            if (first, end, is_narrow) not in self._made:
                if len(self._made) >= MAX_EVALUATED_GROUPS:
                    return
                self._made[first, end, is_narrow] = self._group(first, end, self._ways[is_narrow])
            segment = self._made[first, end, is_narrow]
            if segment is not None:
                yield 2 * place + is_narrow, segment

    @cached_property
    def _spans(self) -> list[tuple[int, int, int]]:
        """Return the first node, the end and the least RAM of each group that may save RAM."""
        spans = []
        for first in range(len(self.graph.nodes)):
            rowwise = takewhile(lambda i: self._forms[i][0] is not None, range(first, len(self.graph.nodes)))
            for last in islice(rowwise, MAX_GROUP_NODES):
                min_ram = self._least(first, last + 1)
                if min_ram is not None:
                    spans.append((first, last + 1, min_ram))
        return spans

    def _least(self, first: int, end: int) -> int | None:
        """Return a lower bound of a group's RAM in bytes, or None if the group cannot save RAM.

        A group saves nothing if its nodes one by one, or the inputs and outputs of the graph, need no more than the
        group.
        """
        sources, results = self._ends_of(first, end)
        dying = sum(self._nbytes(v) for v in sources if self._lives[v][1] < end)
        ends = max(dying, sum(self._nbytes(v) for v in results))
        min_ram = self._around(first, end) + ends + self._least_windows(first, end)
        if self._comes_by_rows(first):
            return 0
        helps = end - first > 1 and max(ram for ram, _ in self._plain[first:end]) > max(min_ram, self.borders)
        return min_ram if helps else None

    def _ends_of(self, first: int, end: int) -> tuple[list[Value], list[Value]]:
        """Return the tensors that these nodes read from other nodes, and those that other nodes read from them."""
        if (first, end) not in self._known_ends:
            self._known_ends[first, end] = ends_of(self.graph.nodes[first:end], self.graph.outputs)
        return self._known_ends[first, end]

    def _least_windows(self, first: int, end: int) -> int:
        """Return the least bytes of the rows between the nodes of a group: the windows that readers need at once."""
        window_bytes: dict[Value, int] = {}
        for index in range(first, end):
            for value, nbytes in self._windows[index]:
                window_bytes[value] = max(window_bytes.get(value, 0), nbytes)
        return sum(window_bytes.values())

    @cached_property
    def _windows(self) -> list[list[tuple[Value, int]]]:
        """Return for each node the inputs that it reads in overlapping windows of rows, with the bytes of a window."""
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
        """Return the larger of two sums: the bytes of all inputs, and those of all outputs, of the graph in the arena.

        Either is a lower bound of the RAM that the graph needs.
        """
        inputs = self.graph.inputs[self._is_streamed_in :]
        return max(sum(self._nbytes(v) for v in values) for values in (inputs, self.graph.outputs))

    def _widths(self, first: int, end: int) -> tuple[bool, ...]:
        """Return whether rows are tried with padding columns (False) and also without (True), if that differs."""
        return (
            (False, True)
            if any(wide_form != narrow_form for wide_form, narrow_form in self._forms[first:end])
            else (False,)
        )

    @cached_property
    def _forms(self) -> list[tuple[RowForm | None, RowForm | None]]:
        """Return each node's row form with padding columns, and its row form without."""
        return list(zip(*(groups.forms for groups in self._ways), strict=True))

    @cached_property
    def _ways(self) -> tuple[RowGroups, RowGroups]:
        """Return the groups of rows with padding columns, and those of rows without."""
        nodes, outputs, pairs = self.graph.nodes, self.graph.outputs, self.pairs
        return RowGroups(nodes, outputs, pairs=pairs), RowGroups(nodes, outputs, is_narrow=True, pairs=pairs)

    @cached_property
    def pairs(self) -> frozenset[str]:
        """Return the layers that compute two rows per step since this is much faster, by their first outputs' names."""
        nodes = [node for node in self.graph.nodes if self._in_pairs and self._gains_by_twos(node)]
        return frozenset(node.output.name for node in nodes)

    def _gains_by_twos(self, node: Node) -> bool:
        """Return whether a layer computes two rows at once much faster than single rows."""
        form = row_form(node.op, node.sig)
        if form is None or not any(w and w.span > w.stride == 1 for w in form.windows):
            return False
        one, two = (group_of([node], pairs=pairs) for pairs in ((), (node.output.name,)))
        if one is None or two is None or one.layers[0].rows == two.layers[0].rows:
            return False
        return self._least_time(two) < TOLERANCES.max_pairs_time_ratio * self._least_time(one)

    def _least_time(self, op: Streamed) -> float:
        """Return the instructions of a group of one layer, by its fastest kernels."""
        ((times, body),) = zip(op.repeats, op.bodies, strict=True)
        offers = [(node, fitting_kernels(node, self._features, any_size=False)) for node in body.nodes]
        return times * sum(self._costs.time(node, self._fastest(node, kernels)) for node, kernels in offers if kernels)

    def groups_with_pairs(self, first: int, end: int, pairs: frozenset[str]) -> Iterator[GraphSegment]:
        """Yield the line-buffered groups of consecutive nodes in which some layers compute two rows per step.

        A line-buffered group consists of layers that are computed together row by row. There are up to two groups: one
        whose rows have padding columns, and one whose rows have none.

        Args:
            first: Index of the first node.
            end: Index after the last node.
            pairs: First outputs' names of the layers that compute two rows per step.
        """
        for is_narrow in (False, True):
            row_groups = RowGroups(self.graph.nodes, self.graph.outputs, is_narrow=is_narrow, pairs=pairs)
            group = self._group(first, end, row_groups)
            self._num_paired += 1
            if group is not None:
                yield group

    def _group(self, first: int, end: int, row_groups: RowGroups) -> GraphSegment | None:
        """Return the group of some nodes with its cost, or None if these nodes cannot be a group.

        A group that the caller passes its input row by row must be the only reader of that input.
        """
        op = row_groups.group(first, end)
        if op is None or not all(t.is_contiguous for t in op.tensors[self._comes_by_rows(first) : op.sources]):
            return None
        if self._comes_by_rows(first):
            x = self.graph.inputs[0]
            if self.graph.nodes[first].inputs[0] is not x or self._lives[x][1] >= end:
                return None
        return GraphSegment(first, end, op, *self._cost(op, first, end, row_groups.pairs))

    def _comes_by_rows(self, first: int) -> bool:
        """Return whether the caller passes the input of a group that begins there row by row."""
        return self._is_streamed_in and first == 0

    def _cost(self, op: Streamed, first: int, end: int, pairs: frozenset[str]) -> tuple[int, float]:
        """Return the bytes live while a group runs, and its instructions beyond those of its nodes one by one.

        `pairs` are the output names of the layers that compute two rows per step, by their fastest kernels.
        """
        schedule = op.schedule
        rows = [window * tensor.pitch for window, tensor in zip(schedule.windows, op.tensors, strict=True)]
        bodies = [self._body(layer, pairs) for layer in op.layers]
        read = {t for layer in op.layers for t, _ in layer.reads}
        put = {} if op.adds else {t: op.tensors[t].nbytes * schedule.step(t) for t in op.results if t not in read}
        local = max(ram + put.get(i, 0) for i, (_, ram) in enumerate(bodies, op.sources))
        moved = sum(
            tensor.height * nbytes // schedule.step(t)
            for t, (tensor, nbytes) in enumerate(zip(op.tensors, rows, strict=True))
            if schedule.windows[t] > schedule.step(t)
        )
        instructions = sum(times * body[0] for times, body in zip(op.repeats, bodies, strict=True))
        instructions += INSTRUCTIONS_PER_EVENT * len(schedule.events) + INSTRUCTIONS_PER_MOVED_BYTE * moved
        plain = sum(self._plain[i][1] for i in range(first, end))
        windows = sum(rows[t] for t in read)
        return self._ends(op, first, end) + windows + local + 2 * ALIGNMENT, instructions - plain

    def _ends(self, op: Streamed, first: int, end: int) -> int:
        """Return the bytes of a group's inputs and outputs and of all tensors around it.

        One output may overlap one input that dies in the group.
        """
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

    def _body(self, layer: Layer, pairs: frozenset[str]) -> tuple[float, int]:
        """Return the instructions of a layer's body, and its scratch bytes besides its inputs and its output."""
        if layer.body not in self._bodies:
            choices = {
                node: self._fastest(node, kernels) if node.output.name in pairs else self._lightest(node, kernels)
                for node in layer.body.nodes
                if (kernels := fitting_kernels(node, self._features, any_size=False))
            }
            instructions = sum(self._costs.time(node, k) for node, k in choices.items())
            self._bodies[layer.body] = instructions, self._working_memory(layer.body, choices)
        return self._bodies[layer.body]

    def _working_memory(self, body: Graph, choices: Mapping[Node, Kernel]) -> int:
        """Return the bytes that a layer's body needs besides its inputs and its output."""
        builder = Builder(Program("trial"), self._features, choices=choices)
        for value in (*body.inputs, *body.outputs):
            builder.buffer(value).space = Space.GIVEN  # They belong to the group.
        lower_nodes(body, builder)
        return peak_live_bytes(builder.program)

    # ------------------------------------------------------------------------------------------- Shortest path

    def _improve(
        self, best: dict[int, _Way], ending: Mapping[int, Sequence[tuple[int, GraphSegment]]], start: int
    ) -> None:
        """Update the best paths to the nodes from `start` on, by the segments that end there."""
        for end in range(start, len(self.graph.nodes) + 1):
            paths = [_way(best, number, s) for number, s in ending.get(end, ()) if s.first in best]
            if paths:
                best[end] = min(paths)

    def _path(self, best: Mapping[int, _Way]) -> list[GraphSegment]:
        """Return the best path through all nodes, or an empty list if there is none."""
        path: list[GraphSegment] = []
        last = best.get(len(self.graph.nodes), _NO_WAY)[3]
        while last is not None:
            path.append(last)
            last = best[last.first][3]
        return path[::-1]


_Way = tuple[float, int, int, GraphSegment | None]
"""A path to a node: instructions, groups, and its last segment with that segment's number; the least tuple is best."""

_NO_WAY: _Way = (math.inf, 0, 0, None)


def _way(best: Mapping[int, _Way], number: int, segment: GraphSegment) -> _Way:
    """Return the best path to a segment's first node, extended by that segment."""
    instructions, groups, *_ = best[segment.first]
    return instructions + max(segment.instructions, 0.0), groups + (segment.op is not None), number, segment


class Streamings:
    """A cache of the searches for line-buffered groups of graphs for one board: one Streaming for each graph.

    A line-buffered group consists of layers that are computed together row by row, so that only a few rows of the
    tensors between them are in memory.

    Args:
        board: The board.
        is_streamed_in: Whether the caller passes the first input of the model row by row.
    """

    def __init__(self, board: Board, *, is_streamed_in: bool = False) -> None:
        self._board = board
        self._is_streamed_in = is_streamed_in
        self._found: dict[tuple[Graph, bool], Streaming] = {}
        self._ordered: dict[Graph, Graph] = {}

    @property
    def looked_at(self) -> int:
        """Return the number of line-buffered groups whose cost was computed so far, in the searches of all graphs.

        A line-buffered group consists of layers that are computed together row by row. The number measures the work of
        the searches.
        """
        return sum(streaming.looked_at for streaming in self._found.values())

    def ordered(self, graph: Graph) -> Graph:
        """Return the graph with layers that can be computed row by row together as neighbours.

        The nodes are sorted by `in_order_of_rows`; the result is cached.
        """
        if graph not in self._ordered:
            self._ordered[graph] = in_order_of_rows(graph)
        return self._ordered[graph]

    def of(self, graph: Graph, *, is_body: bool = False, in_pairs: bool = False) -> Streaming:
        """Return the search for line-buffered groups of a graph; a later call returns the same search.

        A line-buffered group consists of layers that are computed together row by row, so that only a few rows of the
        tensors between them are in memory.

        Args:
            graph: The graph to divide.
            is_body: Whether it is the body of a node, whose inputs the caller never passes row by row.
            in_pairs: Whether layers compute two rows per step where this is faster.
        """
        if (graph, in_pairs) not in self._found:
            costs = cost_table(self._board.cpu, self._board.features)
            is_streamed_in = self._is_streamed_in and not is_body
            streaming = Streaming(graph, self._board.features, costs, is_streamed_in=is_streamed_in, in_pairs=in_pairs)
            self._found[graph, in_pairs] = streaming
        return self._found[graph, in_pairs]

    def with_pairs(self, graph: Graph) -> tuple[Streaming, ...]:
        """Return the searches for a graph's line-buffered groups with one row per step and, if faster, with two.

        A line-buffered group consists of layers that are computed together row by row. The second search, in which some
        layers compute two rows per step, is returned only if these layers are much faster so.

        Args:
            graph: The graph.
        """
        pairs = self.of(graph, in_pairs=True)
        return (self.of(graph), pairs) if pairs.pairs else (self.of(graph),)


def reasons_against_rows(graph: Graph) -> dict[str, str]:
    """Return the nodes that cannot be computed row by row, by their first output's name, each with the reason.

    The reason is a phrase for messages.
    """
    reasons = {}
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
        reasons[node.outputs[0].name] = reason
    return reasons


def reasons_against_own_group(graph: Graph) -> dict[str, str]:
    """Return the nodes that cannot be computed row by row on their own, by the name of their first output.

    The value is the reason, as a phrase for messages.
    """
    apart = {
        node.outputs[0].name: "its rows lie in parts" for node in graph.nodes if single_node_group(node, graph) is None
    }
    return apart | reasons_against_rows(graph)
