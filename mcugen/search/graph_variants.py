# SPDX-License-Identifier: Apache-2.0
"""The registry of graph transformations, and the variants of a graph for which programs are built."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mcugen.hir.graph import Graph
from mcugen.search.graph_transformations import (
    GraphTransformation,
    GraphVariant,
    GroupedVariant,
    GroupingSearch,
    GroupingTransformation,
)
from mcugen.search.head_projection import HeadProjection
from mcugen.search.head_splitting import HeadSplitting
from mcugen.search.line_buffer_bodies import LineBufferedBodies
from mcugen.search.line_buffering import Streamings
from mcugen.search.problem import SearchProblem
from mcugen.search.row_pairs import RowPairs
from mcugen.search.spatial_tiling import SpatialTiling

GRAPH_TRANSFORMATIONS: tuple[GraphTransformation, ...] = (HeadSplitting(), HeadProjection(), LineBufferedBodies())
"""Transformations of graphs for the goal `ram`, in their order; each one changes the result of the previous one."""

GROUPING_TRANSFORMATIONS: tuple[GroupingTransformation, ...] = (SpatialTiling(),)
"""Transformations of the groupings of each graph for the goal `ram`, which may need less RAM."""

FASTER_GROUPINGS: tuple[GroupingTransformation, ...] = (RowPairs(),)
"""Transformations for the goal `ram` that make groupings faster in equal RAM; they are tried after all others."""


def graph_variants(problem: SearchProblem, streamings: Streamings) -> Iterator[GraphVariant]:
    """Yield the variants of a problem's graph for which programs are to be built.

    For the goal `ram`, these are the graph and the results of the registered transformations, with their line-buffered
    groups as nodes. Other goals yield only the graph as it is. If the caller passes the input row by row, the first
    layers are a line-buffered group for every goal. A line-buffered group consists of layers that are computed together
    row by row, so that only a few rows of the tensors between them are in memory.

    Args:
        problem: The graph with its options.
        streamings: Cached searches for line-buffered groups.
    """
    search, options = GroupingSearch(problem, streamings), problem.options
    variants = [GraphVariant(problem.graph, changes=problem.changes)]
    if options.optimize != "ram" and not options.stream_input:
        yield from variants
        return
    is_for_ram = options.optimize == "ram"
    for transformation in GRAPH_TRANSFORMATIONS if is_for_ram else ():
        variants = [*transformation.propose(variants[0], search), *variants]
    known = list[GroupedVariant]()
    for variant in _in_order_of_rows(variants, streamings):
        known.append(search.find(variant))
        grouped_graphs = search.graphs(known[-1])
        yield from grouped_graphs
        if not grouped_graphs or not options.stream_input:
            yield variant
        for grouped in _proposals(GROUPING_TRANSFORMATIONS if is_for_ram else (), known[-1:], search):
            known.append(grouped)
            yield from search.graphs(grouped)
    for grouped in _proposals(FASTER_GROUPINGS if is_for_ram else (), known, search):
        yield from search.graphs(grouped)


def _in_order_of_rows(variants: Sequence[GraphVariant], streamings: Streamings) -> list[GraphVariant]:
    """Return the variants with neighbouring layers that rows can pass through; of equal graphs, the first variant."""
    ordered = dict[Graph, GraphVariant]()
    for variant in variants:
        ordered.setdefault(streamings.ordered(variant.graph), variant)
    return [replace(variant, graph=graph) for graph, variant in ordered.items()]


def _proposals(
    transformations: Sequence[GroupingTransformation], known: Sequence[GroupedVariant], search: GroupingSearch
) -> Iterator[GroupedVariant]:
    for transformation in transformations:
        for grouped in known:
            yield from transformation.propose(grouped, search)
