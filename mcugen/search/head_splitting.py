# SPDX-License-Identifier: Apache-2.0
"""Attention of several heads, one after the other: of the scores, those of one head are in memory, or some rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Division, RowForm
from mcugen.hir.traits import each_for_itself, row_form
from mcugen.ops.matmul import MatMul
from mcugen.ops.movement import Concat, Slice

MOST_HEADS = 16
"""Each has calls of its own."""


def heads_apart(graph: Graph) -> Graph:
    """The graph with all from one product of several matrices each to the next computed matrix by matrix.

    What is read of whole tensors are parts that lie together, and so are the results: nothing is copied. Without such
    products, the graph itself.
    """
    chains = list(_chains(graph))
    if not chains:
        return graph
    places = {node: place for place, node in enumerate(graph.nodes)}
    other = graph.copy()
    nodes = list(other.nodes)
    for chain in chains:
        _divide(other, [nodes[places[node]] for node in chain])
    return other


def _chains(graph: Graph) -> Iterator[list[Node]]:
    """Products, and what alone reads them, up to the next product."""
    taken: set[Node] = set()
    for node in graph.nodes:
        if isinstance(node.op, MatMul) and node not in taken and _heads(node):
            chain = list(_from(node, graph))
            if len(chain) > 1 and isinstance(chain[-1].op, MatMul):
                taken.update(chain)
                yield chain


def _from(node: Node, graph: Graph) -> Iterator[Node]:
    """A product and what follows it, each reading the one before, with as many heads."""
    heads, is_first = _heads(node), True
    while _heads(node) == heads:
        yield node
        value, is_last = node.output, isinstance(node.op, MatMul) and not is_first
        if is_last or len(value.uses) != 1 or graph.is_output(value):
            return
        (node,), is_first = value.users, False


def _heads(node: Node) -> int:
    """How many matrices a node computes each for itself; 0 where it does not, or there are too many."""
    by_matrix = _by_matrix(node)
    return by_matrix[1].length if by_matrix else 0


def _by_matrix(node: Node) -> tuple[RowForm, Division] | None:
    """How a node computes matrices, as rows of matrices."""
    form = row_form(node.op, node.sig) if len(node.outputs) == 1 else None
    if form is None or form.axis >= node.output.type.rank - 2:
        return None
    if any(v is not None and v.is_constant and window for v, window in zip(node.inputs, form.windows, strict=True)):
        return None
    return next(((form, d) for d in each_for_itself(form, node.sig) if 1 < d.length <= MOST_HEADS), None)


def _divide(graph: Graph, chain: Sequence[Node]) -> None:
    """Each matrix by nodes of its own, whose results are joined."""
    last = chain[-1]
    form = row_form(last.op, last.sig)
    assert form is not None
    parts = [_part(graph, chain, index) for index in range(_heads(last))]
    name = last.output.name
    graph.release_name(last.output)
    joined = graph.add(Concat(form.axis), parts, last.origin, names=[name], types=[last.output.type], before=last)
    graph.replace(last.output, joined.output)
    for node in reversed(chain):
        graph.remove(node)


def _part(graph: Graph, chain: Sequence[Node], index: int) -> Value:
    """What the chain makes of one matrix."""
    made: dict[Value, Value] = {}
    for node in chain:
        by_matrix = _by_matrix(node)
        assert by_matrix is not None
        form, portion = by_matrix[0], by_matrix[1].portion(index, index + 1)
        inputs: list[Value | None] = []
        for value, window in zip(node.inputs, form.windows, strict=True):
            if value is None or window is None or value in made:
                inputs.append(made.get(value, value) if value else None)
            else:
                inputs.append(_matrix(graph, value, window.axis, index, chain[-1]))
        name, type_ = f"{node.output.name}.{index}", node.output.type.with_shape(portion.makes.shape)
        added = graph.add(portion.op, inputs, node.origin, names=[name], types=[type_], before=chain[-1])
        made[node.output] = added.output
    return made[chain[-1].output]


def _matrix(graph: Graph, value: Value, axis: int, index: int, before: Node) -> Value:
    """One matrix of a tensor."""
    shape = value.type.shape
    starts = tuple(index if a == axis else 0 for a in range(len(shape)))
    sizes = tuple(1 if a == axis else size for a, size in enumerate(shape))
    op = Slice(starts, sizes, (1,) * len(shape))
    origin = value.producer.origin if value.producer else ()
    return graph.add(op, [value], origin, names=[f"{value.name}.{index}"], before=before).output
