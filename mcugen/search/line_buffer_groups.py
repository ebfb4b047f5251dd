# SPDX-License-Identifier: Apache-2.0
"""Graphs with layers in groups, row by row: how a graph is divided, and in which order its layers stand for that."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.traits import row_form
from mcugen.ops.row_groups import ends_of, group_of
from mcugen.ops.stream import Streamed


@dataclass(frozen=True)
class Stretch:
    """Nodes from `first` up to `end`, as a group if there is an `op`.

    `ram` are bytes alive at its busiest moment; `instructions` are those that it takes more than layer by layer.
    """

    first: int
    end: int
    op: Streamed | None
    ram: int
    instructions: float


def ram_of(plan: Sequence[Stretch]) -> int:
    """Bytes at the busiest moment of a way to divide a graph, by estimate."""
    return max(stretch.ram for stretch in plan)


def in_order_of_rows(graph: Graph) -> Graph:
    """The graph in an order that parts no layers which rows could pass through.

    What only moves outputs of the model stands behind all else; what is read as a whole, as keys and values of
    attention are, stands before what is read by rows.
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
    other = graph.copy()
    nodes = list(other.nodes)
    other.nodes = [nodes[places[node]] for node in order]
    return other


def _wholes_first(graph: Graph) -> list[Node]:
    """The nodes as they stand, or, where operands differ, as the outputs need them: what is read as a whole first.

    Of operands that are read by rows the smaller ones come first: rows of the largest one are to go on.
    """
    ranks = {node: _ranks(node) for node in graph.nodes}
    if not any(len(set(found.values())) > 1 for found in ranks.values()):
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
            makers = sorted(ranks[node], key=lambda v: ranks[node][v], reverse=True)  # of a stack the last comes first
            stack += [(v.producer, False) for v in makers if v.producer is not None and v.producer not in order]
    return list(order)


def _ranks(node: Node) -> dict[Value, int]:
    """By computed operand: its bytes if it is read by rows, 0 if each row takes all; all alike for what moves data."""
    form = None if node.op.moves_data else row_form(node.op, node.sig)
    windows = form.windows if form else (None,) * len(node.inputs)
    pairs = zip(node.inputs, windows, strict=True)
    return {v: v.type.nbytes if window else 0 for v, window in pairs if v is not None and v.producer is not None}


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


def each_by_rows(graph: Graph, names: Collection[str], *, is_streamed_in: bool = False) -> Graph:
    """The graph with the nodes of these outputs in groups of their own, as far as they have a form by rows.

    What reads an input that the caller hands over by rows is in a group in any case.
    """
    given = graph.inputs[:is_streamed_in]
    found = [
        Stretch(index, index + 1, op, 0, 0.0)
        for index, node in enumerate(graph.nodes)
        if node.outputs[0].name in names and not set(given) & set(node.inputs)
        if (op := alone(node, graph)) is not None
    ]
    return with_groups(graph, found)


def alone(node: Node, graph: Graph) -> Streamed | None:
    """The node by rows, which are narrow if it has no others."""
    ways = (group_of([node], graph.outputs, narrow=narrow) for narrow in (False, True))
    return next((op for op in ways if op and all(t.is_contiguous for t in op.tensors[: op.sources])), None)


def _join(graph: Graph, op: Streamed, nodes: Sequence[Node]) -> None:
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
