# SPDX-License-Identifier: Apache-2.0
"""Two rows per step in some layers of line-buffered groups, in the RAM that these groups leave free.

Some kernels compute two rows at once much faster than one after the other. A layer with such a kernel needs longer line
buffers, so that a group with the least RAM computes single rows. Groups that need less RAM than the busiest one have
room for longer line buffers: their layers compute two rows per step at no cost.
"""

from __future__ import annotations

from collections.abc import Iterator

from mcugen.hir.graph import Graph
from mcugen.search.graph_transformations import GroupedVariant, GroupingSearch, GroupingTransformation
from mcugen.search.line_buffer_groups import GraphSegment, Grouping, plan_ram_bytes
from mcugen.search.line_buffering import Streaming, Streamings
from mcugen.search.plan import NO_CHANGES


class RowPairs(GroupingTransformation):
    """The transformation that lets layers in line-buffered groups compute two rows per step, if this is faster.

    A line-buffered group consists of layers that are computed together row by row. The largest RAM of any group must
    not grow.
    """

    kind = "two rows per step"

    def propose(self, grouped: GroupedVariant, search: GroupingSearch) -> Iterator[GroupedVariant]:
        """Yield the variant in which some layers of line-buffered groups compute two rows per step, if that is faster.

        A line-buffered group consists of layers that are computed together row by row. Only the division into groups
        with the least RAM is changed.
        """
        for grouping in grouped.groupings[:1]:
            paired = with_row_pairs(search.streamings, grouped.variant.graph, grouping, plan_ram_bytes(grouping))
            if paired != grouping:
                variant = grouped.variant.changed(grouped.variant.graph, NO_CHANGES, self.kind)
                yield GroupedVariant(variant, [paired])


def with_row_pairs(streamings: Streamings, graph: Graph, grouping: Grouping, max_ram: float) -> Grouping:
    """Return a division into line-buffered groups in which some layers compute two rows per step.

    A line-buffered group consists of layers that are computed together row by row, so that only a few rows of the
    tensors between them are in memory.

    Args:
        streamings: Cached searches for line-buffered groups.
        graph: The graph.
        grouping: The division of the graph into line-buffered groups, which compute one row per step, and single nodes.
        max_ram: Largest RAM of a group in bytes.

    Returns:
        The faster division of the same nodes, or one that equals `grouping` if no group can be faster within the limit.
    """
    search = streamings.of(graph, in_pairs=True)
    return [_paired(search, segment, max_ram) if segment.op else segment for segment in grouping]


def _paired(search: Streaming, group: GraphSegment, max_ram: float) -> GraphSegment:
    """Return the group with two rows per step in as many of its layers as save instructions within `max_ram` bytes.

    Each layer is tried once, in the order of the group.
    """
    best, chosen = group, frozenset[str]()
    for node in search.graph.nodes[group.first : group.end]:
        name = node.outputs[0].name
        if name not in search.pairs:
            continue
        for candidate in search.groups_with_pairs(group.first, group.end, chosen | {name}):
            if candidate.ram <= max_ram and candidate.instructions < best.instructions:
                best, chosen = candidate, chosen | {name}
    return best
