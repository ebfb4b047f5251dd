# SPDX-License-Identifier: Apache-2.0
"""Byte offsets of the elements of feature maps, and their reading and writing.

A map consists of up to four tiles, each with its own base, so that Vela can place it in a ring of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mcugen.backends.npu.ethos_u.command_stream.arithmetic import Array
from mcugen.backends.npu.ethos_u.command_stream.errors import CommandStreamError, UndocumentedOperation
from mcugen.backends.npu.ethos_u.command_stream.operations import (
    BRICK_DEPTH,
    FeatureMap,
    KernelOperation,
    MapLayout,
    MapStorage,
)

Memory = npt.NDArray[np.uint8]
"""The bytes of a region."""
MAX_MAP_ELEMENTS = 1 << 24
"""Largest number of elements of a feature map that the interpreter reads or writes."""


@dataclass(frozen=True)
class TileColumn:
    """The left or the right tiles of a feature map: the offset of an element is rows[y] + columns[x] + channels[c].

    Attributes:
        rows: Offset of each row, with the base of its tile.
        columns: Offset of each column of these tiles.
        channels: Offset of each channel.
        split: Number of rows of the upper tile.
    """

    rows: Array
    columns: Array
    channels: Array
    split: int

    def intervals(self) -> list[tuple[int, int]]:
        """Return first and last offset of the elements in the upper and in the lower tile."""
        parts = [rows for rows in (self.rows[: self.split], self.rows[self.split :]) if rows.size]
        low, high = self.columns.min() + self.channels.min(), self.columns.max() + self.channels.max()
        return [(int(rows.min() + low), int(rows.max() + high)) for rows in parts]


def tile_columns(feature_map: FeatureMap) -> list[TileColumn]:
    """Return the left and, if the map is wide enough, the right tiles of a map.

    Raises:
        UndocumentedOperation: The map is stored in tiles of 3x1.
    """
    if feature_map.storage is not MapStorage.TILES_2X2:
        raise UndocumentedOperation("feature maps in memory must be stored in tiles of 2x2", str(feature_map.storage))
    height, width, depth = feature_map.shape
    stride_y, stride_x, stride_c = feature_map.strides
    left_height, right_height, left_width = feature_map.split
    base0, base1, base2, base3 = feature_map.addresses
    size = feature_map.type.num_bytes
    c = np.arange(depth, dtype=np.int64)
    is_brick = feature_map.layout is MapLayout.NHCWB16
    channels = c // BRICK_DEPTH * stride_c + c % BRICK_DEPTH * size if is_brick else c * size
    tiles = []
    for upper, lower, split, num_columns in (
        (base0, base2, left_height, min(width, left_width)),
        (base1, base3, right_height, max(0, width - left_width)),
    ):
        if num_columns:
            y = np.arange(height, dtype=np.int64)
            rows = np.where(y < split, upper + y * stride_y, lower + (y - split) * stride_y)
            tiles.append(TileColumn(rows, np.arange(num_columns, dtype=np.int64) * stride_x, channels, split))
    return tiles


def element_offsets(feature_map: FeatureMap, memory: Memory) -> Array:
    """Return the byte offset of each element, as an array of the map's shape.

    Raises:
        CommandStreamError: An element lies outside of the memory, or the map is too large.
    """
    if np.prod(np.array(feature_map.shape, dtype=np.float64)) > MAX_MAP_ELEMENTS:
        raise CommandStreamError(f"a feature map has at most {MAX_MAP_ELEMENTS} elements", str(feature_map.shape))
    parts = []
    for tile in tile_columns(feature_map):
        for first, last in tile.intervals():
            if first < 0 or last + feature_map.type.num_bytes > memory.size:
                detail = f"bytes {first} to {last} of {memory.size} in region {feature_map.region}"
                raise CommandStreamError("feature maps must lie inside their region", detail)
        parts.append(tile.rows[:, None, None] + tile.columns[None, :, None] + tile.channels[None, None, :])
    return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]


def read(feature_map: FeatureMap, memory: Memory) -> Array:
    """Return the stored values of a map as integers of 64 bits."""
    offsets = element_offsets(feature_map, memory)
    size = feature_map.type.num_bytes
    stored = memory[offsets[..., None] + np.arange(size)] if size > 1 else memory[offsets][..., None]
    typed = np.ascontiguousarray(stored).view(f"<{'i' if feature_map.type.is_signed else 'u'}{size}")
    return typed[..., 0].astype(np.int64)


def write(feature_map: FeatureMap, memory: Memory, values: Array) -> None:
    """Store integers of 64 bits, which must fit the map's type, as the map's elements."""
    offsets = element_offsets(feature_map, memory)
    size = feature_map.type.num_bytes
    code = f"<{'i' if feature_map.type.is_signed else 'u'}{size}"
    stored = np.ascontiguousarray(values.astype(code)).view(np.uint8).reshape(*offsets.shape, size)
    memory[offsets[..., None] + np.arange(size)] = stored


def stored_output(operation: KernelOperation) -> FeatureMap:
    """Return the result of an operation as it lies in memory: its axes in the order of the transposition."""
    height, width, depth = (operation.ofm.shape[axis] for axis in operation.transpose.value)
    return replace(operation.ofm, shape=(height, width, depth))
