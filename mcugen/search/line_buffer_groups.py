# SPDX-License-Identifier: Apache-2.0
"""Graphs with line-buffered groups: their groupings, and the order of nodes that allows groups."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.traits import row_form
from mcugen.ops.row_groups import ends_of, group_of
from mcugen.ops.stream import Streamed


@dataclass(frozen=True)
class GraphSegment:
    """Consecutive nodes of a graph: a line-buffered group, or a single node that is computed as a whole.

    The nodes of a line-buffered group are computed together row by row, so that only a few rows of the tensors between
    them are live.

    Attributes:
        first: Index of the first node.
        end: Index after the last node.
        op: The operator that computes the group; None for a single node.
        ram: Estimated largest number of live bytes while the segment runs.
        instructions: Estimated instructions in addition to those of the nodes computed one by one.
    """

    first: int
    end: int
    op: Streamed | None
    ram: int
    instructions: float


Grouping = Sequence[GraphSegment]
"""A division of all nodes of a graph into line-buffered groups and single nodes, in the order of the nodes."""


def plan_ram_bytes(grouping: Grouping) -> int:
    """Return the estimated largest number of live bytes while the segments of a graph are computed one by one.

    Args:
        grouping: The segments: line-buffered groups, whose layers are computed together row by row, and single nodes.
    """
    return max(segment.ram for segment in grouping)


def in_order_of_rows(graph: Graph) -> Graph:
    """Return the graph with its nodes sorted so that layers that can be computed row by row together are neighbours.

    Nodes that only move outputs of the model come last. Tensors that are read as a whole, such as keys and values of
    attention, are computed before those that are read by rows.
    """
    order = _wholes_first(graph)
    late: set[Node] = set()
    for node in reversed(order):
        ends = node.op.moves_data or row_form(node.op, node.sig) is None
        if ends and all(user in late for value in node.outputs for user in value.users):
            late.add(node)
    order.sort(key=lambda node: node in late)
    if order == list(graph.nodes):
        return graph
    places = {node: place for place, node in enumerate(graph.nodes)}
    reordered = graph.copy()
    nodes = list(reordered.nodes)
    reordered.nodes = [nodes[places[node]] for node in order]
    return reordered


def _wholes_first(graph: Graph) -> list[Node]:
    """Return the nodes in an order that computes operands that are read as a whole before those that are read by rows.

    Among operands read by rows, the smaller ones come first, so that rows of the largest one can stream on. The order
    stays as it is if no node has operands of different kinds.
    """
    ranks = {node: _ranks(node) for node in graph.nodes}
    if not any(len(set(node_ranks.values())) > 1 for node_ranks in ranks.values()):
        return list(graph.nodes)
    order: dict[Node, None] = {}
    ends = [v.producer for v in graph.outputs if v.producer is not None]
    stack = [(node, False) for node in (*reversed(graph.nodes), *reversed(ends))]
    while stack:
        node, is_ready = stack.pop()
        if is_ready:
            order[node] = None
        elif node not in order:
            stack.append((node, True))
            makers = sorted(ranks[node], key=lambda v: ranks[node][v], reverse=True)  # A stack pops the last one first.
            stack += [(v.producer, False) for v in makers if v.producer is not None and v.producer not in order]
    return list(order)


def _ranks(node: Node) -> dict[Value, int]:
    """Return the rank of each computed operand: its bytes if read by rows, 0 if each row reads all of it.

    All ranks of a node that only moves data are 0.
    """
    form = None if node.op.moves_data else row_form(node.op, node.sig)
    windows = form.windows if form else (None,) * len(node.inputs)
    pairs = zip(node.inputs, windows, strict=True)
    return {v: v.type.nbytes if window else 0 for v, window in pairs if v is not None and v.producer is not None}


def with_groups(graph: Graph, segments: Grouping, *, is_streamed_in: bool = False) -> Graph:
    """Return a copy of the graph in which each line-buffered group (layers computed row by row) is one node.

    The graph itself is returned if there are no groups.

    Args:
        graph: The graph to copy.
        segments: The line-buffered groups and single nodes; single nodes may be left out.
        is_streamed_in: Whether the caller passes the input of the first group row by row.
    """
    if not any(s.op for s in segments):
        return graph
    graph = graph.copy()
    groups = [(s.op, graph.nodes[s.first : s.end]) for s in segments if s.op]
    for index, (op, nodes) in enumerate(groups):
        _join(graph, replace(op, from_caller=is_streamed_in and index == 0), nodes)
    return graph


def with_single_layer_groups(graph: Graph, names: Collection[str], *, is_streamed_in: bool = False) -> Graph:
    """Return the graph in which each named node is computed row by row, as a line-buffered group of one node.

    Nodes that cannot be computed row by row stay as they are. So do nodes that read an input which the caller passes
    row by row, as they are in a group anyway.

    Args:
        graph: The optimized graph.
        names: Names of the nodes' first outputs.
        is_streamed_in: Whether the caller passes the first input row by row.
    """
    streamed_inputs = graph.inputs[:is_streamed_in]
    segments = [
        GraphSegment(index, index + 1, op, 0, 0.0)
        for index, node in enumerate(graph.nodes)
        if node.outputs[0].name in names and not set(streamed_inputs) & set(node.inputs)
        if (op := single_node_group(node, graph)) is not None
    ]
    return with_groups(graph, segments)


def single_node_group(node: Node, graph: Graph) -> Streamed | None:
    """Return the operator that computes a node row by row, as a line-buffered group of one node.

    Return None if the node cannot be computed row by row. Rows without padding columns are used only if rows with
    padding columns are impossible.
    """
    groups = (group_of([node], graph.outputs, is_narrow=is_narrow) for is_narrow in (False, True))
    return next((op for op in groups if op and all(t.is_contiguous for t in op.tensors[: op.sources])), None)


def _join(graph: Graph, op: Streamed, nodes: Sequence[Node]) -> None:
    """Replace nodes by one node of the group; a reduction over rows is followed by its finishing operator."""
    last, (read, results) = nodes[-1], ends_of(nodes, graph.outputs)
    origin = [name for node in nodes for name in node.origin]
    for value in results:
        graph.release_name(value)
    names = [value.name for value in results]
    whole = graph.add(op, op.ordered(read), origin, names=names, types=op.outputs, before=nodes[0])
    for old, new in zip(results, whole.outputs, strict=True):
        result = new
        if op.adds:
            form = row_form(last.op, last.sig)
            assert form is not None and form.finish is not None
            result = graph.add(form.finish, [new], last.origin, types=[last.output.type], before=nodes[0]).output
        graph.replace(old, result)
    for node in reversed(nodes):
        graph.remove(node)
