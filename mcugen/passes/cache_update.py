# SPDX-License-Identifier: Apache-2.0
"""Recognition of updates of a cache at a position, which TensorScatter writes in place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.types import Array, Shape
from mcugen.ops.gather import flat_positions
from mcugen.ops.movement import Reshape
from mcugen.ops.pointwise import Binary
from mcugen.ops.scatter import ScatterElements, ScatterND, TensorScatter
from mcugen.passes.positions import evaluate_each, positions_of, probes
from mcugen.passes.rewrite import RewriteOutcome, pattern


@pattern(ScatterND, ScatterElements)
def recognize_cache_update(graph: Graph, node: Node) -> RewriteOutcome:
    """Scatter(x, indices, updates) → TensorScatter(x, position, updates).

    The indices must follow from one integer with one element, the position, and mean consecutive entries of one axis of
    x, all of them. The law holds wherever the indices are valid, for negative ones and for rings of entries, too: it is
    tested for each position of the axis and for some outside of it. A Where is left as it is, since it writes nothing
    at positions outside of the axis.
    """
    update = _of_scatter(node)
    if not isinstance(update, _Update):
        return update
    _replace(graph, node, update)
    return True


@dataclass(frozen=True)
class _Update:
    """An update of consecutive entries of an axis.

    Attributes:
        x: The tensor that is updated.
        updates: The new entries; they have as many elements as `shape`.
        axis: The axis.
        length: Number of new entries.
        position: The integer with the position.
        start: The rule by which the first written entry follows from the position.
    """

    x: Value
    updates: Value
    axis: int
    length: int
    position: Value
    start: _Start

    @property
    def shape(self) -> Shape:
        """Return the shape of the updates, with the axes of x."""
        shape = self.x.type.shape
        return (*shape[: self.axis], self.length, *shape[self.axis + 1 :])


@dataclass(frozen=True)
class _Start:
    """A rule by which the first written entry of an axis follows from a position.

    Attributes:
        offset: First written entry, less the position.
        circular: Whether entries beyond the axis, and negative ones, are counted around it; else they are limited.
    """

    offset: int
    circular: bool

    def at(self, position: int, size: int, length: int) -> int:
        """Return the first of `length` entries that are written to an axis of `size` entries."""
        entry = position + self.offset
        return entry % size if self.circular else min(max(entry, 0), size - length)


def _of_scatter(node: Node) -> _Update | RewriteOutcome:
    """Return the update of a scatter, or the outcome if it is none."""
    if node.input(1).data is not None or not isinstance(node.op, ScatterND | ScatterElements):
        return False
    positions = list(positions_of(node.input(1))) if node.op.reduction == "none" else []
    depths = node.input(1).type.shape[-1] if isinstance(node.op, ScatterND) else node.output.type.rank
    for position, axis in product(positions, range(depths)):
        update = _along(node, position, axis, node.output.type.shape[:depths])
        if not isinstance(update, bool):
            return update
    return "its indices are no entries of one axis behind a position" if positions else False


def _along(node: Node, position: Value, axis: int, shape: Shape) -> _Update | RewriteOutcome:
    """Return the update that a scatter makes along an axis of those that its indices count, or the outcome if none."""
    x, updates, size = node.input(0), node.input(2), shape[axis]
    length, remainder = divmod(updates.type.count, max(x.type.count // max(size, 1), 1))
    if remainder or not 0 < length <= size:
        return False
    numbers = probes(size)
    tables = evaluate_each(node.input(1), position, numbers)
    if tables is None:
        return "its indices are too many to be evaluated for each position"
    valid = ((p, table) for p, table in zip(numbers, tables, strict=True) if table is not None)
    starts = {p: _entries(node, t, shape, axis, length) for p, t in valid if _is_inside(node, t, shape)}
    start = _rule(starts, size, length)
    return start is not None and _Update(x, updates, axis, length, position, start)


def _is_inside(node: Node, index: Array, shape: Shape) -> bool:
    """Return whether the indices of a scatter are valid: within the axes, or negative ones that count from the end."""
    limits = np.array(shape[node.op.axis] if isinstance(node.op, ScatterElements) else shape)
    return bool(((index >= -limits) & (index < limits)).all())


def _entries(node: Node, index: Array, shape: Shape, axis: int, length: int) -> int | None:
    """Return the first entry of `axis` that a scatter writes, if it writes `length` whole entries in order.

    Behind the last entry follows the first one.
    """
    if isinstance(node.op, ScatterElements):
        places: list[Array] = list(np.indices(index.shape))
        places[node.op.axis] = index % shape[node.op.axis]
        flat: Array = np.ravel_multi_index(places, shape)
    else:
        flat = flat_positions(index, shape)
    flat = flat.reshape(-1)
    start = int(np.unravel_index(int(flat[0]), shape)[axis])
    whole = np.arange(math.prod(shape)).reshape(shape)
    expected = whole.take((start + np.arange(length)) % shape[axis], axis)
    return start if np.array_equal(flat, expected.reshape(-1)) else None


def _rule(starts: Mapping[int, int | None], size: int, length: int) -> _Start | None:
    """Return the rule that gives the first written entry at all positions; None if there is none.

    Args:
        starts: First written entry at each position where the indices are valid; None if no such entries are written.
        size: Number of entries of the axis.
        length: Number of entries that are written.
    """
    valid_starts = [(p, starts.get(p)) for p in (0, size // 2, size - length)]
    offsets = sorted({start - p for p, start in valid_starts if start is not None}, key=abs)
    for rule in (_Start(offset, circular) for circular in (False, True) for offset in offsets):
        if all(start == rule.at(p, size, length) for p, start in starts.items()):
            return rule
    return None


def _replace(graph: Graph, node: Node, update: _Update) -> None:
    """Put the operator in the place of a node; the cache has one sample, so that its first axis may be any."""
    x, shape = update.x, node.output.type.shape

    def shaped(value: Value, *sizes: int) -> Value:
        if value.type.shape == sizes:
            return value
        return graph.add(Reshape(sizes), [value], node.origin, before=node).output

    first = shaped(update.position, 1)
    if update.start.offset:
        offset = np.full(1, update.start.offset, first.type.dtype.numpy)
        constant = graph.constant(f"{node.output.name}.offset", offset)
        first = graph.add(Binary("Add"), [first, constant], node.origin, before=node).output
    lead = () if not update.axis or shape[0] == 1 else (1,)
    operands = [shaped(x, *lead, *shape), first, shaped(update.updates, *lead, *update.shape)]
    graph.release_name(node.output)
    op = TensorScatter(update.axis + len(lead), update.start.circular)
    result = graph.add(op, operands, node.origin, names=[node.output.name], before=node).output
    graph.replace(node.output, shaped(result, *shape))
    graph.remove(node)
