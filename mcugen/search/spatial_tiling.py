# SPDX-License-Identifier: Apache-2.0
"""Layers computed in patches: the left half of an image through several layers, then the right one.

Of rows that several layers read, half is in memory; what both halves read is computed twice, as in MCUNetV2 (Lin et
al., 2021).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Operator
from mcugen.hir.traits import Columnwise
from mcugen.ops.movement import Concat, Slice

COLUMNS = 2
"""The axis that counts them, channels last."""

PATCHES = 2

LEAST_COLUMNS = 8
"""Of a patch: of fewer, too much is computed twice."""


class _Step(NamedTuple):
    """A node's operator for a patch, and the columns that it reads: the first, and the end."""

    op: Operator
    first: int
    end: int


def in_patches(graph: Graph, nodes: Sequence[Node]) -> Graph | None:
    """A copy of the graph whose longest chain among these nodes is computed in patches; None if there is no chain."""
    chain = max(_chains(graph, nodes), key=len, default=[])
    if len(chain) < 2:
        return None
    width = chain[-1].output.type.shape[COLUMNS]
    borders = [width * number // PATCHES for number in range(PATCHES + 1)]
    steps = [_steps(chain, start, stop) for start, stop in pairwise(borders)]
    if not all(steps):
        return None
    places = {node: place for place, node in enumerate(graph.nodes)}
    other = graph.copy()
    copied = [other.nodes[places[node]] for node in chain]
    last = copied[-1]
    parts = [_patch(other, copied, patch, number) for number, patch in enumerate(steps)]
    name, type_ = last.output.name, last.output.type
    other.release_name(last.output)
    whole = other.add(Concat(COLUMNS), parts, last.origin, names=[name], types=[type_], before=last)
    other.replace(last.output, whole.output)
    for node in reversed(copied):
        other.remove(node)
    return other


def _chains(graph: Graph, nodes: Sequence[Node]) -> Iterator[list[Node]]:
    """Nodes of which each alone reads the one before."""
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
    """Whether its output is wide enough for some."""
    shape = node.outputs[0].type.shape
    return isinstance(node.op, Columnwise) and len(shape) == 4 and shape[COLUMNS] >= PATCHES * LEAST_COLUMNS


def _is_read_once(graph: Graph, value: Value) -> bool:
    return len(value.uses) == 1 and not graph.is_output(value)


def _steps(chain: Sequence[Node], start: int, stop: int) -> list[_Step]:
    """How the chain computes columns of its last output; [] if it cannot."""
    steps: list[_Step] = []
    for node in reversed(chain):
        assert isinstance(node.op, Columnwise)
        found = node.op.some_columns(node.sig, start, stop)
        if found is None:
            return []
        steps.append(_Step(*found))
        _, start, stop = found
    return steps[::-1]


def _patch(graph: Graph, chain: Sequence[Node], steps: Sequence[_Step], number: int) -> Value:
    """What the chain makes of one patch."""
    x, before, (_, first, end) = chain[0].input(0), chain[-1], steps[0]
    shape, rank = x.type.shape, x.type.rank
    sizes = (*shape[:COLUMNS], end - first, *shape[COLUMNS + 1 :])
    op = Slice(tuple(first if axis == COLUMNS else 0 for axis in range(rank)), sizes, (1,) * rank)
    name, type_ = f"{x.name}.{before.output.name}.{number}", x.type.with_shape(sizes)
    value = graph.add(op, [x], chain[0].origin, names=[name], types=[type_], before=before).output
    for node, step in zip(chain, steps, strict=True):
        inputs = [value, *node.inputs[1:]]
        (made,) = step.op.infer(*(v.type if v else None for v in inputs))
        name, type_ = f"{node.output.name}.{number}", node.output.type.with_shape(made.shape)
        value = graph.add(step.op, inputs, node.origin, names=[name], types=[type_], before=before).output
    return value
