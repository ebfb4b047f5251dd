# SPDX-License-Identifier: Apache-2.0
"""Line-buffered groups in the bodies of branches and loops."""

from __future__ import annotations

from collections.abc import Iterator

from mcugen.hir.graph import Graph, with_bodies
from mcugen.search.graph_transformations import GraphTransformation, GraphVariant, GroupingSearch
from mcugen.search.line_buffer_groups import with_groups
from mcugen.search.line_buffering import Streamings
from mcugen.search.plan import NO_CHANGES


class LineBufferedBodies(GraphTransformation):
    """The graph transformation to layers computed row by row in the bodies of branches and loops.

    The layers of a body are divided into line-buffered groups (layers that are computed together row by row) and single
    layers, such that the body needs the least RAM.
    """

    kind = "line-buffer fusion of bodies"

    def propose(self, variant: GraphVariant, search: GroupingSearch) -> Iterator[GraphVariant]:
        """Yield the variant with line-buffered groups in the bodies of its branches and loops.

        A line-buffered group consists of layers that are computed together row by row, so that only a few rows of the
        tensors between them are in memory. Nothing is yielded if groups save no RAM in any body.
        """
        grouped_graph = group_bodies(variant.graph, search.streamings)
        if grouped_graph is not variant.graph:
            yield variant.changed(grouped_graph, NO_CHANGES, self.kind)


def group_bodies(graph: Graph, streamings: Streamings) -> Graph:
    """Return a graph in which the bodies of branches and loops have the line-buffered groups of least RAM.

    A line-buffered group consists of layers that are computed together row by row, so that only a few rows of the
    tensors between them are in memory. Bodies within bodies are included. The same graph is returned if groups save no
    RAM in any body.

    Args:
        graph: The graph.
        streamings: Cached searches for line-buffered groups.
    """
    bodies_by_node = {
        node: {body: _grouped_body(body, streamings) for body in node.op.bodies}
        for node in graph.nodes
        if node.op.bodies
    }
    if all(body is grouped for bodies in bodies_by_node.values() for body, grouped in bodies.items()):
        return graph
    places = {node: place for place, node in enumerate(graph.nodes)}
    grouped_graph = graph.copy()
    for node, bodies in bodies_by_node.items():
        grouped_graph.nodes[places[node]].op = with_bodies(node.op, bodies.__getitem__)
    return grouped_graph


def _grouped_body(body: Graph, streamings: Streamings) -> Graph:
    body = streamings.ordered(group_bodies(body, streamings))
    return with_groups(body, next(streamings.of(body, is_body=True).plans(), []))
