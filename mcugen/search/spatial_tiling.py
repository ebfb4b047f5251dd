# SPDX-License-Identifier: Apache-2.0
"""Spatial tiling: the left half of an image is computed through several layers, then the right half.

Only half of each row is in memory. The columns that both halves read are computed twice, as in MCUNetV2 (Lin et al.,
2021).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Operator
from mcugen.hir.traits import Columnwise
from mcugen.ops.movement import Concat, Slice
from mcugen.search.graph_transformations import GraphVariant, GroupedVariant, GroupingSearch, GroupingTransformation
from mcugen.search.line_buffer_groups import plan_ram_bytes
from mcugen.search.objective import TOLERANCES
from mcugen.search.plan import GraphChanges, divided_layers

COLUMN_AXIS = 2
"""Index of the axis of columns in a tensor with the axes samples, rows, columns and channels."""

NUM_PATCHES = 2
"""Number of patches (ranges of columns) that the width of a chain's output is divided into."""

MIN_PATCH_COLUMNS = 8
"""Least number of output columns in a patch: narrower patches compute too many columns twice at their edges."""


class _Step(NamedTuple):
    """A node's operator for one patch, and the range of input columns that it reads."""

    op: Operator
    first: int
    end: int


class SpatialTiling(GroupingTransformation):
    """The transformation that computes the line-buffered group with the most RAM in tiles of image columns.

    A line-buffered group consists of layers that are computed together row by row. The transformation is applied
    repeatedly as long as this saves RAM.
    """

    kind = "spatial tiling"

    def propose(self, grouped: GroupedVariant, search: GroupingSearch) -> Iterator[GroupedVariant]:
        """Yield the variant with one, two, … line-buffered groups in tiles of image columns, as long as that saves RAM.

        A line-buffered group consists of layers that are computed together row by row. Each time, the group that needs
        the most RAM by estimate is tiled.
        """
        while grouped.groupings and (tiled := self._tiled(grouped)) is not None:
            previous_ram, grouped = plan_ram_bytes(grouped.groupings[0]), search.find(tiled)
            max_ram = TOLERANCES.max_patched_ram_ratio * previous_ram
            if not grouped.groupings or plan_ram_bytes(grouped.groupings[0]) > max_ram:
                return
            yield grouped

    def _tiled(self, grouped: GroupedVariant) -> GraphVariant | None:
        """Return the variant with tiles in the group that needs most RAM, or None if it cannot be tiled."""
        variant, busiest = grouped.variant, max(grouped.groupings[0], key=lambda segment: segment.ram)
        nodes = variant.graph.nodes[busiest.first : busiest.end]
        tiled_graph = tile_columns(variant.graph, nodes) if busiest.op else None
        if tiled_graph is None:
            return None
        changes = GraphChanges(spatial_tiles=divided_layers(variant.graph, tiled_graph))
        return variant.changed(tiled_graph, changes, self.kind)


def tile_columns(graph: Graph, nodes: Sequence[Node]) -> Graph | None:
    """Return a copy of the graph in which the longest tileable chain among `nodes` is computed in tiles of columns.

    A tile is a range of image columns. Return None if `nodes` contain no chain of layers that can compute a part of
    their columns alone (`Columnwise`).
    """
    chain = max(_chains(graph, nodes), key=len, default=[])
    if len(chain) < 2:
        return None
    width = chain[-1].output.type.shape[COLUMN_AXIS]
    borders = [width * number // NUM_PATCHES for number in range(NUM_PATCHES + 1)]
    steps = [_steps(chain, start, stop) for start, stop in pairwise(borders)]
    if not all(steps):
        return None
    places = {node: place for place, node in enumerate(graph.nodes)}
    tiled = graph.copy()
    copied = [tiled.nodes[places[node]] for node in chain]
    last = copied[-1]
    parts = [_patch(tiled, copied, patch, number) for number, patch in enumerate(steps)]
    name, type_ = last.output.name, last.output.type
    tiled.release_name(last.output)
    whole = tiled.add(Concat(COLUMN_AXIS), parts, last.origin, names=[name], types=[type_], before=last)
    tiled.replace(last.output, whole.output)
    for node in reversed(copied):
        tiled.remove(node)
    return tiled


def _chains(graph: Graph, nodes: Sequence[Node]) -> Iterator[list[Node]]:
    """Yield chains of tileable nodes, each the only reader of the one before."""
    chain: list[Node] = []
    for node in nodes:
        if chain and not (node.inputs[0] is chain[-1].output and _is_read_once(graph, chain[-1].output)):
            yield chain
            chain = []
        if _has_patches(node):
            chain = [*chain, node]
        elif chain:
            yield chain
            chain = []
    yield chain


def _has_patches(node: Node) -> bool:
    """Return whether a node can be tiled and its output is wide enough."""
    shape = node.outputs[0].type.shape
    return isinstance(node.op, Columnwise) and len(shape) == 4 and shape[COLUMN_AXIS] >= NUM_PATCHES * MIN_PATCH_COLUMNS


def _is_read_once(graph: Graph, value: Value) -> bool:
    return len(value.uses) == 1 and not graph.is_output(value)


def _steps(chain: Sequence[Node], start: int, stop: int) -> list[_Step]:
    """Return how the chain computes some columns of its last output, or [] if it cannot."""
    steps: list[_Step] = []
    for node in reversed(chain):
        assert isinstance(node.op, Columnwise)
        step = node.op.some_columns(node.sig, start, stop)
        if step is None:
            return []
        steps.append(_Step(*step))
        _, start, stop = step
    return steps[::-1]


def _patch(graph: Graph, chain: Sequence[Node], steps: Sequence[_Step], number: int) -> Value:
    """Add the nodes that compute the chain for one patch, and return their result."""
    x, last_node, (_, first, end) = chain[0].input(0), chain[-1], steps[0]
    shape, rank = x.type.shape, x.type.rank
    sizes = (*shape[:COLUMN_AXIS], end - first, *shape[COLUMN_AXIS + 1 :])
    op = Slice(tuple(first if axis == COLUMN_AXIS else 0 for axis in range(rank)), sizes, (1,) * rank)
    name, type_ = f"{x.name}.{last_node.output.name}.{number}", x.type.with_shape(sizes)
    value = graph.add(op, [x], chain[0].origin, names=[name], types=[type_], before=last_node).output
    for node, step in zip(chain, steps, strict=True):
        inputs = [value, *node.inputs[1:]]
        (inferred,) = step.op.infer(*(v.type if v else None for v in inputs))
        name, type_ = f"{node.output.name}.{number}", node.output.type.with_shape(inferred.shape)
        value = graph.add(step.op, inputs, node.origin, names=[name], types=[type_], before=last_node).output
    return value
