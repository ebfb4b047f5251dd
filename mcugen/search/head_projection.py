# SPDX-License-Identifier: Apache-2.0
"""Projections of attention head by head: queries, keys and values of only one head are in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Operator
from mcugen.hir.types import Array
from mcugen.ops.matmul import Dense
from mcugen.ops.movement import Reshape, Slice, Transpose
from mcugen.ops.norm import Normalize
from mcugen.search.channel_tiling import channels_of_constant
from mcugen.search.graph_transformations import GraphTransformation, GraphVariant, GroupingSearch
from mcugen.search.plan import GraphChanges, added_layers


class HeadProjection(GraphTransformation):
    """The graph transformation to projections head by head, behind attention that is computed head by head.

    The normalization in front of the projections is computed again for each of them, row by row.
    """

    kind = "projections head by head"

    def propose(self, variant: GraphVariant, search: GroupingSearch) -> Iterator[GraphVariant]:
        """Yield the variant with projections computed head by head; nothing if no projection is read by heads."""
        graph = project_by_heads(variant.graph)
        if graph is not variant.graph:
            changes = GraphChanges(channel_tiles=added_layers(variant.graph, graph))
            yield variant.changed(graph, changes, self.kind)


def project_by_heads(graph: Graph) -> Graph:
    """Return a graph in which dense layers whose output channels are read head by head are computed head by head.

    Slices of the layer's output, which may be transposed before, become layers with fewer output channels. A graph
    without such layers is returned unchanged.
    """
    projections = [node for node in graph.nodes if isinstance(node.op, Dense) and _heads_of(node) is not None]
    if not projections:
        return graph
    places = {node: place for place, node in enumerate(graph.nodes)}
    projected = graph.copy()
    nodes = list(projected.nodes)
    for node in projections:
        _divide(projected, nodes[places[node]])
    for node in reversed(list(projected.nodes)):
        if not any(value.uses or projected.is_output(value) for value in node.outputs):
            projected.remove(node)
    return projected


def _heads_of(node: Node) -> list[tuple[Node, Array]] | None:
    """Return the slices that read a layer, each with the numbers of the layer's elements; None if others read it."""
    assert isinstance(node.op, Dense)
    if node.output.type.rank != 2 or not node.op.has_channels_alone(node.sig, node.inputs):
        return None
    slices = list[tuple[Node, Array]]()
    stack = [(node.output, np.arange(node.output.type.count).reshape(node.output.type.shape))]
    while stack:
        value, at = stack.pop()
        for reader in value.users:
            if not isinstance(reader.op, Reshape | Transpose | Slice):
                return None
            (read,) = reader.op.evaluate(reader.sig, at)
            if not isinstance(reader.op, Slice):
                stack.append((reader.output, read))
            elif _moves(node, read) is None:
                return None
            else:
                slices.append((reader, read))
        if not value.users:
            return None
    return slices if len(slices) > 1 else None


def _moves(node: Node, at: Array) -> tuple[int, int, list[Operator]] | None:
    """Return the output channels of a layer that a slice holds, and how they are moved; None for other elements."""
    rows, channels = node.output.type.shape
    start, stop = int(at.min()) % channels, int(at.max()) % channels + 1
    matrix = np.arange(rows * channels).reshape(rows, channels)[:, start:stop]
    if np.array_equal(at.reshape(-1), matrix.reshape(-1)):
        return start, stop, [Reshape(at.shape)]
    if np.array_equal(at.reshape(-1), matrix.T.reshape(-1)):
        return start, stop, [Transpose((1, 0)), Reshape(at.shape)]
    return None


def _divide(graph: Graph, node: Node) -> None:
    """Replace the slices of a layer by layers with some of its output channels."""
    layer = node.layer or 1 + max(other.layer for other in graph.nodes)
    for reader, at in _heads_of(node) or ():
        moves = _moves(node, at)
        assert moves is not None
        start, stop, operators = moves
        rows = _recomputed(graph, node.input(0), reader)
        inputs = [rows, *(v and channels_of_constant(graph, v, start, stop) for v in node.inputs[1:])]
        name, type_ = f"{node.output.name}.{start}", node.output.type.with_shape((rows.type.shape[0], stop - start))
        part = graph.add(node.op, inputs, node.origin, names=[name], types=[type_], before=reader)
        part.layer = layer
        value = part.output
        for operator in operators[:-1]:
            value = graph.add(operator, [value], reader.origin, before=reader).output
        graph.rewrite(reader, operators[-1], [value], types=[reader.output.type])


def _recomputed(graph: Graph, value: Value, reader: Node) -> Value:
    """Return a value computed again before a node, if a normalization computes it, perhaps reshaped; else itself."""
    chain = list[Node]()
    source: Value | None = value
    while source is not None and source.producer is not None and isinstance(source.producer.op, Reshape | Normalize):
        chain.insert(0, source.producer)
        source = source.producer.input(0)
        if isinstance(chain[0].op, Normalize):
            return _repeated(graph, chain, source, reader)
    return value


def _repeated(graph: Graph, chain: Sequence[Node], source: Value, reader: Node) -> Value:
    """Add copies of a chain of nodes before a node, and return the last result."""
    layer = 1 + max(other.layer for other in graph.nodes)
    for node in chain:
        inputs, types = [source, *node.inputs[1:]], [node.output.type]
        node.layer = node.layer or layer
        copy = graph.add(node.op, inputs, node.origin, names=[f"{node.output.name}.again"], types=types, before=reader)
        copy.layer = node.layer
        source = copy.output
    return source
