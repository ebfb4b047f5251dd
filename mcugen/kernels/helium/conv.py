# SPDX-License-Identifier: Apache-2.0
"""Convolutions for Helium: products of two pixels by four channels, or four by two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from mcugen.hir.graph import Node
from mcugen.kernels.conv_shape import ConvShape, shape_of
from mcugen.kernels.helium.layer import BLOCK, VECTOR, emit, loop, pack_vectors, strip_params
from mcugen.kernels.reading_order import in_turn, rows, windows
from mcugen.kernels.weighted import weights_of
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Param

LONGEST_ROW = 12
"""Vectors of a kernel's row that are written out at most: what 64 channels of a 3 x 3 kernel have."""

OFFSET = 127
"""How far immediate offsets of bytes reach."""

WORD_OFFSET = 508
"""And those of words."""

PATCHES = 16
"""Pixels whose taps are gathered at a time."""


def ungrouped(node: Node) -> bool:
    """one group"""
    return ConvShape.of(node).groups == 1


def dense_pixels(shape: ConvShape) -> bool:
    """Whether output pixels read the same input pixels."""
    return shape.groups == 1 and shape.reads_pixels and shape.stride_h == shape.stride_w == 1


def emit_conv(node: Node, builder: Builder, kernel: Kernel) -> None:
    """From a strip of padded rows, directly where a kernel's row fills its vectors well, else from gathered patches."""
    shape = ConvShape.of(node)
    if shape.reads_pixels:
        emit_pointwise(node, builder, kernel)
        return
    run = shape.k_w * shape.in_c
    vectors = -(-run // VECTOR)
    filled = shape.dilation_w == 1 and vectors * VECTOR <= 1.1 * run and vectors <= LONGEST_ROW
    even = shape.out_w % 2 == 0 or shape.out_w > PATCHES
    (emit_rows if filled and even else emit_patches)(node, builder, kernel, shape)


def emit_rows(node: Node, builder: Builder, kernel: Kernel, shape: ConvShape) -> None:
    """A turn of the inner loop is a row of the kernel; weights are zero where a vector reads past it."""
    params = strip_params(shape)
    span, pitch, vectors = int(params["span"]), int(params["pitch"]), -(-shape.k_w * shape.in_c // VECTOR)
    params |= {"turns": shape.k_h, "jump": shape.dilation_h * pitch - vectors * VECTOR, "tail": 0}
    params["x_next"] = 2 * shape.stride_w * shape.in_c
    flags = {"mode": "rows", "unroll": vectors, "looped": shape.k_h > 1, "tail": False, "jump": shape.k_h > 1}
    packed = pack_vectors(weights_of(node).reshape(shape.out_c, shape.k_h, -1), BLOCK)
    emit(node, builder, kernel, packed, params, flags, scratch=("strip", span * pitch + VECTOR), orders=[rows(shape)])


def written_out_gather(shape: ConvShape, params: Mapping[str, Param]) -> dict[str, object] | None:
    """How short rows of a kernel are gathered by one load and one store each, if immediate offsets reach them all.

    Rows are shared out among pointers, of which each reaches OFFSET bytes.
    """
    run, row_step, x_step, depth = (int(params[name]) for name in ("run", "row_step", "x_step", "depth"))
    each = OFFSET // row_step + 1
    starts = range(0, shape.k_h, each)
    if run > VECTOR or (shape.k_h - 1) * run > OFFSET or len(starts) > 7 or max(x_step, depth) > 255:
        return None
    if starts[-1] * row_step >= 4096:
        return None
    pointers = [
        {
            "offset": start * row_step,
            "rows": [
                {"number": row, "offset": (row - start) * row_step, "target": row * run}
                for row in range(start, min(start + each, shape.k_h))
            ],
        }
        for start in starts
    ]
    return {"run": run, "x_step": x_step, "depth": depth, "pointers": pointers}


def emit_pointwise(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Pixels are read where they lie: all of them in one run, or row by row if some are skipped."""
    shape = ConvShape.of(node)
    in_row, pixels = shape.in_w * shape.in_c, shape.out_h * shape.out_w
    params, flags = loop(*divmod(shape.in_c, VECTOR))
    params |= {"x_next": 2 * shape.stride_w * shape.in_c, "out_c": shape.out_c}
    if shape.stride_h == shape.stride_w == 1:
        params |= {"batch": 1, "image": 0, "rows": 1, "row_step": 0, "row_pixels": shape.batch * pixels}
    else:
        params |= {"batch": shape.batch, "image": shape.in_h * in_row, "rows": shape.out_h}
        params |= {"row_step": shape.stride_h * in_row, "row_pixels": shape.out_w}
    emit_direct(node, builder, kernel, params, flags)


def emit_direct(
    node: Node, builder: Builder, kernel: Kernel, params: Mapping[str, Param], flags: Mapping[str, object]
) -> None:
    """Two pixels at a time, or one by one in plain C; they are read again for every four channels."""
    shape, weights = shape_of(node), weights_of(node)
    if shape.stride_h == shape.stride_w == 1:
        shape = in_a_row(shape)
    pairs = (np.arange(shape.out_h)[:, None, None] * shape.out_w + in_turn(shape.out_w, 2)).reshape(-1, 2)
    last = (shape.out_c - 1) % BLOCK + 1
    orders = [windows(shape, blocks, last) for blocks in (pairs, in_turn(shape.out_h * shape.out_w, 1))]
    packed = pack_vectors(weights.reshape(len(weights), -1), BLOCK)
    emit(node, builder, kernel, packed, params, {**flags, "mode": "direct"}, orders=orders)


def in_a_row(shape: ConvShape) -> ConvShape:
    """A pointwise convolution with all pixels of all images in one row."""
    pixels = shape.batch * shape.out_h * shape.out_w
    return replace(shape, batch=1, in_h=1, in_w=pixels, out_h=1, out_w=pixels)


def emit_patches(node: Node, builder: Builder, kernel: Kernel, shape: ConvShape) -> None:
    """The taps of some pixels are brought together first."""
    params = strip_params(shape)
    joined = shape.dilation_w == 1
    run = shape.in_c * (shape.k_w if joined else 1)
    vectors = -(-shape.k_h * shape.k_w * shape.in_c // VECTOR)
    most = min(PATCHES, shape.batch * shape.out_h * shape.out_w)
    inner, flags = loop(vectors)
    params |= {"run": run, "runs": 1 if joined else shape.k_w, "run_step": shape.dilation_w * shape.in_c}
    params |= {"row_step": shape.dilation_h * int(params["pitch"]), "depth": vectors * VECTOR, "most": most, **inner}
    params["x_next"] = 2 * vectors * VECTOR
    params["x_step"] = shape.stride_w * shape.in_c
    flags |= {"mode": "patch", "gather": written_out_gather(shape, params) if joined else None}
    size = int(params["span"]) * int(params["pitch"]) + most * vectors * VECTOR + 2 * VECTOR
    packed = pack_vectors(weights_of(node).reshape(shape.out_c, -1), BLOCK)
    pixels = (np.arange(shape.out_h) + 1) * shape.out_w
    written = pixels // most * most * shape.out_c if shape.batch == 1 else None
    order = rows(shape, writes=written)
    emit(node, builder, kernel, packed, params, flags, scratch=("strip", size), orders=[order])


def overwriting(node: Node) -> bool:
    """pointwise, output channels no more than input channels: in place"""
    shape = ConvShape.of(node)
    return dense_pixels(shape) and shape.out_c <= shape.in_c


def emit_overwriting(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Some pixels are copied before they are overwritten."""
    shape = ConvShape.of(node)
    pixels = shape.batch * shape.out_h * shape.out_w
    params, flags = loop(-(-shape.in_c // VECTOR))
    params |= {"x_next": 2 * shape.in_c, "in_c": shape.in_c, "out_c": shape.out_c}
    params |= {"pixels": pixels, "most": min(PATCHES, pixels)}
    packed = pack_vectors(weights_of(node).reshape(shape.out_c, -1), BLOCK)
    scratch = ("patches", min(PATCHES, pixels) * shape.in_c + VECTOR)
    order = windows(in_a_row(shape), in_turn(pixels, PATCHES))
    emit(node, builder, kernel, packed, params, flags, scratch=scratch, orders=[order])


def eight_channels(node: Node) -> bool:
    """pointwise, 8 channels to an even number"""
    shape = ConvShape.of(node)
    enough = shape.batch * shape.out_h * shape.out_w >= 4
    return dense_pixels(shape) and shape.in_c == VECTOR // 2 and shape.out_c % 2 == 0 and enough


def emit_eight_channels(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Two pixels lie in a vector; weights stay where they are while all pixels pass."""
    shape = ConvShape.of(node)
    rows = weights_of(node).reshape(shape.out_c, VECTOR // 2)
    packed = np.stack([np.pad(rows, [(0, 0), (0, 8)]), np.pad(rows, [(0, 0), (8, 0)])], 1).reshape(-1)
    pixels = shape.batch * shape.out_h * shape.out_w
    params: dict[str, Param] = {"y_next": 4 * shape.out_c, "out_c": shape.out_c, "pixels": pixels}
    emit(node, builder, kernel, packed, params, {}, block=2)


def three_columns(node: Node) -> bool:
    """3 x 3, input channels by 16, outputs by two"""
    shape = ConvShape.of(node)
    window = (shape.k_h, shape.k_w, shape.dilation_w) == (3, 3, 1) and shape.stride_w <= 2
    columns = 3 * shape.stride_w + 3
    reachable = shape.in_c % VECTOR == 0 and columns * shape.in_c - VECTOR <= WORD_OFFSET
    return shape.groups == 1 and window and reachable and shape.out_c % 2 == 0 and shape.out_w >= 4


def emit_columns(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Four pixels by two channels, which share the columns of a row."""
    shape = ConvShape.of(node)
    params, chunks = strip_params(shape), shape.in_c // VECTOR
    params |= {"x_next": 4 * shape.stride_w * shape.in_c, "y_next": 4 * shape.out_c}
    params["jump"] = shape.dilation_h * int(params["pitch"])
    flags = {"chunks": chunks, "stride": shape.stride_w, "unrolled": chunks == 1}
    pairs = weights_of(node).reshape(shape.out_c // 2, 2, 3, 3, chunks, VECTOR)
    packed = np.ascontiguousarray(pairs.transpose(0, 2, 4, 3, 1, 5)).reshape(-1)
    size = int(params["span"]) * int(params["pitch"]) + VECTOR
    emit(node, builder, kernel, packed, params, flags, block=2, scratch=("strip", size), orders=[rows(shape)])
