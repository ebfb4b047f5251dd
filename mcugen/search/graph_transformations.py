# SPDX-License-Identifier: Apache-2.0
"""Changes of a graph before it is lowered: bases of the transformations, and the variants that these propose."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

from mcugen.hir.graph import Graph
from mcugen.search.line_buffer_groups import Grouping, plan_ram_bytes, with_groups
from mcugen.search.line_buffering import Streamings
from mcugen.search.plan import NO_CHANGES, GraphChanges
from mcugen.search.problem import SearchProblem

MAX_PLANNED_GROUPINGS = 4
"""Number of groupings of a graph for which memory is planned: those with the least estimated RAM.

A few suffice, because estimates of their RAM are right within a few percent. See Grouping for the term.
"""


@dataclass(frozen=True)
class GraphVariant:
    """A graph that the search derives from the problem's graph by transformations, to build a program from it."""

    graph: Graph
    ram: int = 0
    """Estimated RAM in bytes; 0 (no estimate) if no layers are computed together row by row."""
    changes: GraphChanges = NO_CHANGES
    """The changes by which it differs from the optimized graph of the model."""
    kind: str = ""
    """Name, in the trace, of the last transformation that changed the graph; "" if there was none."""

    def changed(self, graph: Graph, changes: GraphChanges, kind: str) -> GraphVariant:
        """Return a variant with further changes.

        Args:
            graph: The changed graph.
            changes: The changes that turned this variant's graph into it.
            kind: Name of the transformation in the trace.
        """
        return GraphVariant(graph, changes=self.changes.merged(changes), kind=kind)


@dataclass(frozen=True)
class GroupedVariant:
    """A variant of the graph, with its most promising divisions into line-buffered groups and single nodes.

    A line-buffered group consists of layers that are computed together row by row, so that only a few rows of the
    tensors between them are in memory.
    """

    variant: GraphVariant
    groupings: Sequence[Grouping]
    """The divisions ("groupings"); for the goal `ram`, the one with the least RAM comes first."""


@dataclass(frozen=True)
class GroupingSearch:
    """The search for the most promising divisions of graphs into line-buffered groups and single nodes.

    A line-buffered group consists of layers that are computed together row by row, so that only a few rows of the
    tensors between them are in memory.
    """

    problem: SearchProblem
    """The search problem: its goal decides which divisions are promising."""
    streamings: Streamings
    """Cached searches for line-buffered groups, one for each graph."""

    def find(self, variant: GraphVariant) -> GroupedVariant:
        """Divide the graph of a variant into line-buffered groups, and return it with the most promising divisions.

        A line-buffered group consists of layers that are computed together row by row, so that only a few rows of the
        tensors between them are in memory. For the goal `ram`, the divisions with the least RAM are returned; for other
        goals, the one with the least product of estimated time and RAM.
        """
        streaming = self.streamings.of(variant.graph)
        if self.problem.options.optimize == "ram":
            return GroupedVariant(variant, list(islice(streaming.plans(), MAX_PLANNED_GROUPINGS)))
        return GroupedVariant(variant, sorted(streaming.plans(), key=streaming.product)[:1])

    def graphs(self, grouped: GroupedVariant) -> list[GraphVariant]:
        """Return a graph variant for each division, whose graph has each line-buffered group as one node.

        A line-buffered group consists of layers that are computed together row by row, so that only a few rows of the
        tensors between them are in memory. Divisions without such groups are left out.

        Args:
            grouped: The variant with its divisions into line-buffered groups and single nodes.
        """
        variant, is_streamed_in = grouped.variant, self.problem.options.stream_input
        graphs = [
            (with_groups(variant.graph, g, is_streamed_in=is_streamed_in), plan_ram_bytes(g)) for g in grouped.groupings
        ]
        return [replace(variant, graph=graph, ram=ram) for graph, ram in graphs if graph is not variant.graph]


class GraphTransformation(ABC):
    """A way to change a graph, so that its program may need less RAM, before line-buffered groups are searched in it.

    A line-buffered group consists of layers that are computed together row by row, so that only a few rows of the
    tensors between them are in memory.
    """

    kind: ClassVar[str]
    """Name, in the trace, of the kind of decision that this transformation makes."""

    @abstractmethod
    def propose(self, variant: GraphVariant, search: GroupingSearch) -> Iterator[GraphVariant]:
        """Yield the changed variant, or nothing if there is nothing to change.

        Args:
            variant: The variant to change.
            search: Finds line-buffered groups (layers that are computed together row by row) of a graph.
        """


class GroupingTransformation(ABC):
    """A way to change the line-buffered groups that were found for a graph, or the layers in them.

    A line-buffered group consists of layers that are computed together row by row, so that only a few rows of the
    tensors between them are in memory.
    """

    kind: ClassVar[str]
    """Name, in the trace, of the kind of decision that this transformation makes."""

    @abstractmethod
    def propose(self, grouped: GroupedVariant, search: GroupingSearch) -> Iterator[GroupedVariant]:
        """Yield changed variants with their divisions into line-buffered groups; nothing if there is nothing to change.

        A line-buffered group consists of layers that are computed together row by row, so that only a few rows of the
        tensors between them are in memory.

        Args:
            grouped: The variant to change, with the divisions that were found for it.
            search: Finds the divisions of changed graphs.
        """
