# SPDX-License-Identifier: Apache-2.0
"""Recognition of updates of a cache at a position, which TensorScatter writes in place."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.types import Array, Shape
from mcugen.ops.gather import flat_positions
from mcugen.ops.movement import Reshape
from mcugen.ops.pointwise import Binary
from mcugen.ops.scatter import ScatterElements, ScatterND, TensorScatter
from mcugen.passes.positions import evaluate_each, position_of
from mcugen.passes.rewrite import RewriteOutcome, pattern


@pattern(ScatterND, ScatterElements)
def recognize_cache_update(graph: Graph, node: Node) -> RewriteOutcome:
    """Scatter(x, indices, updates) → TensorScatter(x, position, updates).

    The indices must follow from one integer input with one element, the position, and mean consecutive entries of one
    axis of x, all of them. Positions are those of the axis: what negative ones mean is not kept. A Where is left as it
    is, since it writes nothing at positions beyond the axis, where TensorScatter writes the last entries.
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
        position: The input with the position.
        offset: First entry that is written, less the position.
    """

    x: Value
    updates: Value
    axis: int
    length: int
    position: Value
    offset: int

    @property
    def shape(self) -> Shape:
        """Return the shape of the updates, with the axes of x."""
        shape = self.x.type.shape
        return (*shape[: self.axis], self.length, *shape[self.axis + 1 :])


def _of_scatter(node: Node) -> _Update | RewriteOutcome:
    """Return the update of a scatter, or the outcome if it is none."""
    position = position_of(node.input(1)) if node.input(1).data is None else None
    if position is None or not isinstance(node.op, ScatterND | ScatterElements) or node.op.reduction != "none":
        return False
    x, updates = node.input(0), node.input(2)
    depths = node.input(1).type.shape[-1] if isinstance(node.op, ScatterND) else x.type.rank
    shape = x.type.shape[:depths]
    for axis in range(depths):
        num_lines = math.prod(shape[:axis] + shape[axis + 1 :])
        length, remainder = divmod(updates.type.count, max(num_lines * math.prod(x.type.shape[depths:]), 1))
        if remainder or not 0 < length <= shape[axis]:
            continue
        tables = evaluate_each(node.input(1), position, shape[axis])
        if tables is None:
            return "its indices are too many to be evaluated for each position"
        written = (_entries(node, numbers, shape, axis, length) for numbers in tables)
        offset = _offset(written, shape[axis], length)
        if offset is not None:
            return _Update(x, updates, axis, length, position, offset)
    return "its indices are no entries of one axis behind a position"


def _entries(node: Node, index: Array, shape: Shape, axis: int, length: int) -> int | None:
    """Return the first entry of `axis` that a scatter writes, if it writes `length` whole entries in order."""
    if isinstance(node.op, ScatterElements):
        places: list[Array] = list(np.indices(index.shape))
        places[node.op.axis] = index
        flat: Array = np.ravel_multi_index([np.clip(p, 0, n - 1) for p, n in zip(places, shape, strict=True)], shape)
    else:
        flat = flat_positions(index, shape)
    flat = flat.reshape(-1)
    start = int(np.unravel_index(int(flat[0]), shape)[axis])
    whole = np.arange(math.prod(shape)).reshape(shape)
    expected = whole[(slice(None),) * axis + (slice(start, start + length),)].reshape(-1)
    return start if np.array_equal(flat, expected) else None


def _offset(starts: Iterator[int | None], size: int, length: int) -> int | None:
    """Return the distance of the written entries from the position, if it is the same for all valid positions.

    Args:
        starts: First written entry for each position; None if no such entries are written.
        size: Number of entries of the axis.
        length: Number of entries that are written.
    """
    entries = list(starts)
    if len(entries) < size:
        return None
    offsets = {start - position for position, start in enumerate(entries) if start is not None}
    candidates = [o for o in offsets if all(entries[p] == p + o for p in range(size) if 0 <= p + o <= size - length)]
    valid = [o for o in candidates if any(0 <= p + o <= size - length for p in range(size))]
    return min(valid, key=abs) if valid else None


def _replace(graph: Graph, node: Node, update: _Update) -> None:
    """Put the operator in the place of a node; the cache has one sample, so that its first axis may be any."""
    x, shape = update.x, node.output.type.shape

    def shaped(value: Value, *sizes: int) -> Value:
        if value.type.shape == sizes:
            return value
        return graph.add(Reshape(sizes), [value], node.origin, before=node).output

    first = shaped(update.position, 1)
    if update.offset:
        offset = np.full(1, update.offset, first.type.dtype.numpy)
        constant = graph.constant(f"{node.output.name}.offset", offset)
        first = graph.add(Binary("Add"), [first, constant], node.origin, before=node).output
    lead = () if not update.axis or shape[0] == 1 else (1,)
    operands = [shaped(x, *lead, *shape), first, shaped(update.updates, *lead, *update.shape)]
    graph.release_name(node.output)
    op = TensorScatter(update.axis + len(lead))
    result = graph.add(op, operands, node.origin, names=[node.output.name], before=node).output
    graph.replace(node.output, shaped(result, *shape))
    graph.remove(node)
