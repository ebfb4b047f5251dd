# SPDX-License-Identifier: Apache-2.0
"""Orders in which kernels of convolutions read x and write y, from which their allowed overlap in memory follows."""

from __future__ import annotations

import numpy as np

from mcugen.hir.types import Array
from mcugen.kernels.common.conv_shape import ConvShape
from mcugen.lir.traversal import Traversal


def in_turn(pixels: int, at_once: int) -> Array:
    """Return pixel numbers 0 to `pixels` − 1, ascending, in blocks of pixels that a kernel computes together.

    Args:
        pixels: Number of pixels.
        at_once: Number of pixels of a block.

    Returns:
        int [blocks, at_once]; a last block that is not full repeats the last pixel.
    """
    starts = np.arange(0, pixels, at_once)
    blocks: Array = np.minimum(starts[:, None] + np.arange(at_once), pixels - 1)
    return blocks


def windows(shape: ConvShape, blocks: Array, last: int = 0) -> Traversal:
    """Return the order of reads and writes of a convolution that computes blocks of output pixels in the given order.

    The order tells how far y may overlap x in memory. Within each block, the groups of channels (of a grouped
    convolution) are computed one after the other. By default, the kernel copies the windows of a block before it writes
    any of the block's outputs.

    Args:
        shape: Geometry of the convolution.
        blocks: Indices of the output pixels of each block, int [blocks, pixels].
        last: If not 0, the kernel does not copy the windows but reads them again for every few output channels; this
            many channels are written after the last read.
    """
    group = np.arange(shape.groups)
    first = _first_elements(shape)[blocks].min(1)[:, None] + group * (shape.in_channels // shape.groups)
    end = blocks.max(1)[:, None] * shape.out_channels + (group + 1) * (shape.out_channels // shape.groups)
    first, end = first.reshape(-1), end.reshape(-1)
    if 0 < last < shape.out_channels:
        first, end = np.repeat(first, 2), np.stack([end - last, end], 1).reshape(-1)
    return by_image(shape, first, end)


def lanes(shape: ConvShape, starts: Array, count: int) -> Traversal:
    """Return the order of reads and writes of a depthwise kernel that computes a row by blocks of channels.

    The order tells how far y may overlap x in memory. The kernel computes the first block of channels of an output row,
    pixel by pixel, then the next block of channels of the same row.

    Args:
        shape: Geometry of the convolution.
        starts: The first channel of each block.
        count: Number of channels of a block.
    """
    space = (shape.out_height, 1, shape.out_width)
    first = _first_elements(shape).reshape(space) + starts[:, None]
    end = np.arange(shape.out_height * shape.out_width).reshape(space) * shape.out_channels + starts[:, None] + count
    return by_image(shape, first.reshape(-1), end.reshape(-1))


def pixels_in_lanes(shape: ConvShape, count: int) -> Traversal:
    """Return the order of reads and writes of a depthwise kernel that computes a pixel by blocks of channels.

    The order tells how far y may overlap x in memory. All channels of an output pixel are computed before the next
    pixel.

    Args:
        shape: Geometry of the convolution.
        count: Number of channels of a block; the last block may have fewer.
    """
    starts, pixels = np.arange(0, shape.out_channels, count), np.arange(shape.out_height * shape.out_width)[:, None]
    first = _first_elements(shape)[:, None] + starts
    end = pixels * shape.out_channels + np.minimum(starts + count, shape.out_channels)
    return by_image(shape, first.reshape(-1), end.reshape(-1))


def rows(shape: ConvShape, at_once: int = 1, writes: Array | None = None) -> Traversal:
    """Return the order of reads and writes of a kernel that computes whole output rows from copies of input rows.

    The order tells how far y may overlap x in memory. In each step, the kernel copies input rows to a buffer, then
    writes `at_once` output rows.

    Args:
        shape: Geometry of the convolution.
        at_once: Output rows per step.
        writes: For each step, the index behind the last written element of y; None if this is the end of the step's
            rows.
    """
    oy = np.arange(0, shape.out_height, at_once)
    span = (shape.kernel_height - 1) * shape.dilation_height + 1
    reach = (oy + at_once - 1) * shape.stride_height + span - shape.padding_top
    row, column = (_read_positions(shape, axis) for axis in ("height", "width"))
    row, column = (
        np.unique(position[position < size]) for position, size in ((row, shape.in_height), (column, shape.in_width))
    )
    next_row = np.append(row, shape.in_height)[np.searchsorted(row, np.append(0, reach[:-1]))]
    first = (next_row * shape.in_width + column.min(initial=shape.in_width)) * shape.in_channels
    end = np.minimum(oy + at_once, shape.out_height) * shape.out_width * shape.out_channels
    return by_image(shape, first, end if writes is None else writes)


def by_image(shape: ConvShape, first: Array, end: Array) -> Traversal:
    """Return the order of reads and writes for a batch of images, from the order in which a kernel computes one image.

    The order tells how far y may overlap x in memory. A step reads some elements of x, then writes some of y; `first`
    and `end` have an entry for each step of one image.

    Args:
        shape: Geometry of the convolution.
        first: For each step, the index of the first element of x that this or a later step reads.
        end: For each step, the index behind the last element of y that is written after the step.
    """
    in_size, out_size = (
        shape.in_height * shape.in_width * shape.in_channels,
        shape.out_height * shape.out_width * shape.out_channels,
    )
    image = np.arange(shape.batch)[:, None]
    reads = np.where(first < in_size, first + image * in_size, shape.batch * in_size)
    return Traversal(reads.reshape(-1), (end + image * out_size).reshape(-1))


def _first_elements(shape: ConvShape) -> Array:
    """Return the first element of x under each output pixel's window, or the size of x if the window is all padding."""
    top, left = (_read_positions(shape, axis).min(1) for axis in ("height", "width"))
    outside = (top == shape.in_height)[:, None] | (left == shape.in_width)
    first = (
        np.where(outside, shape.in_height * shape.in_width, top[:, None] * shape.in_width + left) * shape.in_channels
    )
    return first.reshape(-1)


def _read_positions(shape: ConvShape, axis: str) -> Array:
    """Return the positions that taps read along an axis, [outputs, taps]; the axis' size for those in the padding."""
    size, out, taps, stride, dilation, pad = shape.along(axis)
    at = np.arange(out)[:, None] * stride + np.arange(taps) * dilation - pad
    positions: Array = np.where((at >= 0) & (at < size), at, size)
    return positions
