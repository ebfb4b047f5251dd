# SPDX-License-Identifier: Apache-2.0
"""Expansion of sparse constants."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mcugen.core.limits import check_size
from mcugen.frontend.tflite.flatbuffer import FlatBuffer
from mcugen.frontend.tflite.schema import INDEX_TABLES, DimensionTable, ElementType, SparsityTable
from mcugen.hir.types import Array


def densify(
    buffer: FlatBuffer, sparsity: SparsityTable, kind: ElementType, data: memoryview, shape: Sequence[int]
) -> Array:
    """Return a sparse constant as a dense one.

    Dimensions are stored in an order of their own (`traversal`), blocks behind the tensor's own dimensions; each is
    either dense, or has the indices of its elements for each element of the dimensions before it.

    Args:
        buffer: The file.
        sparsity: How the constant is stored.
        kind: Its element type.
        data: The bytes of its elements.
        shape: Its shape.

    Raises:
        ModelError: The description is inconsistent.
    """
    check_size(buffer.place, "a sparse constant", math.prod(shape))
    rank, blocks, order = len(shape), sparsity.block_map, sparsity.traversal
    if (
        sorted(order) != list(range(rank + len(blocks)))
        or len(sparsity.dimensions) != len(order)
        or any(not 0 <= dimension < rank for dimension in blocks)
    ):
        raise buffer.damaged("a sparse tensor of unknown order")
    places = np.zeros((1, 0), np.int64)
    parents = np.zeros(1, np.int64)
    for dimension in sparsity.dimensions:
        parents, indices = _expand(buffer, dimension, parents)
        if len(parents) > max(math.prod(shape), 1):
            raise buffer.damaged("a sparse tensor with too many elements")
        places = np.column_stack([places[parents], indices])
        parents = np.arange(len(parents))
    coordinates = np.zeros((len(places), rank), np.int64)
    sizes = {order[n]: max(dimension.dense_size, 1) for n, dimension in enumerate(sparsity.dimensions)}
    for axis in range(rank):
        coordinates[:, axis] = places[:, order.index(axis)]
    for number, axis in enumerate(blocks):
        coordinates[:, axis] *= sizes[rank + number]
        coordinates[:, axis] += places[:, order.index(rank + number)]
    if len(data) != -(-len(places) * kind.bits // 8) or (coordinates < 0).any() or (coordinates >= shape).any():
        raise buffer.damaged("a sparse tensor whose elements do not fit its shape")
    dense = np.zeros(shape, kind.array)
    dense[tuple(coordinates.T)] = kind.decode(data, len(places))
    return dense


def _expand(buffer: FlatBuffer, dimension: DimensionTable, parents: Array) -> tuple[Array, Array]:
    """Return, for each element behind a dimension, its parent before the dimension, and its index."""
    count = len(parents)
    if not dimension.form:
        if not 0 <= dimension.dense_size * count <= len(buffer.data) * 8:
            raise buffer.damaged("a dense dimension of a sparse tensor that is too large")
        return np.repeat(np.arange(count), dimension.dense_size), np.tile(np.arange(dimension.dense_size), count)
    segments = np.asarray(_indices(buffer, dimension.segments_kind, dimension.segments), np.int64)
    indices = np.asarray(_indices(buffer, dimension.indices_kind, dimension.indices), np.int64)
    lengths = np.diff(segments)
    if len(segments) != count + 1 or segments[0] != 0 or segments[-1] != len(indices) or (lengths < 0).any():
        raise buffer.damaged("segments of a sparse tensor that do not fit")
    return np.repeat(np.arange(count), lengths), indices


def _indices(buffer: FlatBuffer, kind: int, place: int | None) -> tuple[int, ...]:
    table = INDEX_TABLES.get(kind)
    if table is None or place is None:
        raise buffer.damaged("a sparse tensor without indices")
    return buffer.read(table, place).values
