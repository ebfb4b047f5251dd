# SPDX-License-Identifier: Apache-2.0
"""Attention computed head by head: only the scores of one head, or some of their rows, are in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Partition, RowForm
from mcugen.hir.traits import partition_by_rows, row_form
from mcugen.ops.matmul import MatMul
from mcugen.ops.movement import Concat, Slice
from mcugen.search.graph_transformations import GraphTransformation, GraphVariant, GroupingSearch
from mcugen.search.plan import GraphChanges, divided_layers

MAX_HEADS = 16
"""Largest number of attention heads that are computed one by one, as each head adds kernel calls."""


class HeadSplitting(GraphTransformation):
    """The graph transformation to attention head by head: the scores of only one head are in memory at a time."""

    kind = "attention head by head"

    def propose(self, variant: GraphVariant, search: GroupingSearch) -> Iterator[GraphVariant]:
        """Yield the variant with attention computed head by head; nothing without attention of several heads."""
        split_graph = split_attention_heads(variant.graph)
        if split_graph is not variant.graph:
            changes = GraphChanges(split_heads=divided_layers(variant.graph, split_graph))
            yield variant.changed(split_graph, changes, self.kind)


def split_attention_heads(graph: Graph) -> Graph:
    """Return a graph in which attention is computed head by head, so that the intermediates of only one head are live.

    Attention of several heads is a chain of nodes between two batched matrix products. The chain is repeated for each
    matrix of the batch (head), which reads and writes contiguous parts of the tensors, so that no data are copied. A
    graph without such chains is returned unchanged.
    """
    chains = list(_chains(graph))
    if not chains:
        return graph
    places = {node: place for place, node in enumerate(graph.nodes)}
    split_graph = graph.copy()
    nodes = list(split_graph.nodes)
    for chain in chains:
        _divide(split_graph, [nodes[places[node]] for node in chain])
    return split_graph


def _chains(graph: Graph) -> Iterator[list[Node]]:
    """Yield the batched products with the nodes that are their only readers, up to the next product."""
    chained: set[Node] = set()
    for node in graph.nodes:
        if isinstance(node.op, MatMul) and node not in chained and _heads(node):
            chain = list(_from(node, graph))
            if len(chain) > 1 and isinstance(chain[-1].op, MatMul):
                chained.update(chain)
                yield chain


def _from(node: Node, graph: Graph) -> Iterator[Node]:
    """Yield a product and the single readers that follow it, as long as they have the same number of heads."""
    heads, is_first = _heads(node), True
    while _heads(node) == heads:
        yield node
        value, is_last = node.output, isinstance(node.op, MatMul) and not is_first
        if is_last or len(value.uses) != 1 or graph.is_output(value):
            return
        (node,), is_first = value.users, False


def _heads(node: Node) -> int:
    """Return how many matrices a node computes independently; 0 where it does not, or where there are too many."""
    by_matrix = _by_matrix(node)
    return by_matrix[1].length if by_matrix else 0


def _by_matrix(node: Node) -> tuple[RowForm, Partition] | None:
    """Return the row form and partition by which a node computes matrices independently, or None."""
    form = row_form(node.op, node.sig) if len(node.outputs) == 1 else None
    if form is None or form.axis >= node.output.type.rank - 2:
        return None
    if any(v is not None and v.is_constant and window for v, window in zip(node.inputs, form.windows, strict=True)):
        return None
    return next(((form, d) for d in partition_by_rows(form, node.sig) if 1 < d.length <= MAX_HEADS), None)


def _divide(graph: Graph, chain: Sequence[Node]) -> None:
    """Replace a chain by one chain per matrix, whose results are concatenated."""
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
    """Add the nodes that compute the chain for one matrix, and return their result."""
    matrix_of: dict[Value, Value] = {}
    for node in chain:
        by_matrix = _by_matrix(node)
        assert by_matrix is not None
        form, shard = by_matrix[0], by_matrix[1].shard(index, index + 1)
        inputs: list[Value | None] = []
        for value, window in zip(node.inputs, form.windows, strict=True):
            if value is None or window is None or value in matrix_of:
                inputs.append(matrix_of.get(value, value) if value else None)
            else:
                inputs.append(_matrix(graph, value, window.axis, index, chain[-1]))
        name, type_ = f"{node.output.name}.{index}", node.output.type.with_shape(shard.writes.shape)
        added = graph.add(shard.op, inputs, node.origin, names=[name], types=[type_], before=chain[-1])
        matrix_of[node.output] = added.output
    return matrix_of[chain[-1].output]


def _matrix(graph: Graph, value: Value, axis: int, index: int, next_node: Node) -> Value:
    """Add a slice that reads one matrix of a tensor."""
    shape = value.type.shape
    starts = tuple(index if a == axis else 0 for a in range(len(shape)))
    sizes = tuple(1 if a == axis else size for a, size in enumerate(shape))
    op = Slice(starts, sizes, (1,) * len(shape))
    origin = value.producer.origin if value.producer else ()
    return graph.add(op, [value], origin, names=[f"{value.name}.{index}"], before=next_node).output
