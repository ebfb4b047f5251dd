# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's transposed convolution: arm_transpose_conv_wrapper_s8.

It has two ways, by strides and input channels. One is a convolution, with the weights turned around, of the input with
zeros between its pixels. The other adds each input row's products to a ring of rows of sums; before version 7.1 it goes
wrong unless the padding above is a multiple of the stride. Rows and columns of zeros make any kernel one that is right.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mcugen.hir.graph import Node
from mcugen.kernels.cmsis.common import by_variant, call, emit_call, int8_layer, multipliers, small_axes
from mcugen.kernels.conv_shape import ConvShape
from mcugen.kernels.weighted import bias_of, clamp_of, largest_sums_of, weights_of
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Access, Param
from mcugen.numerics.fixedpoint import clamp_range
from mcugen.numerics.sums import requantizer

MOST_CHANNELS_IN_ROWS = 16
"""Of the input: with more, and strides up to 2, the library computes a convolution."""


def is_convolved(shape: ConvShape) -> bool:
    """Whether the library goes the way of the convolution."""
    return max(shape.stride_h, shape.stride_w) <= 2 and shape.in_c > MOST_CHANNELS_IN_ROWS


def zeros_above(shape: ConvShape) -> int:
    """Rows of weights that make the padding above a multiple of the stride."""
    return 0 if is_convolved(shape) else -shape.pad_h % shape.stride_h


def widened(shape: ConvShape) -> ConvShape:
    """With a kernel, widened by zeros, for which the library's sums are right."""
    above = zeros_above(shape)
    high, wide, pad_h = shape.k_h + above, shape.k_w, shape.pad_h + above
    if is_convolved(shape):  # pads by kernel - 1 - padding
        return replace(shape, k_h=max(high, pad_h + 1), k_w=max(wide, shape.pad_w + 1))
    below = shape.out_h + pad_h - (shape.in_h - 1) * shape.stride_h  # the rows of sums must reach the last output
    right = shape.out_w + shape.pad_w - (shape.in_w - 1) * shape.stride_w
    return replace(shape, k_h=max(high, below), k_w=max(wide, right), pad_h=pad_h)


def scratch_of(shape: ConvShape, builder: Builder) -> tuple[int, int]:
    """Bytes of the two buffers: columns of the input and the weights turned around, or rows of sums and nothing."""
    depth = shape.k_h * shape.k_w * shape.in_c
    if is_convolved(shape):
        columns = 4 * (-(-depth // 4) * 4)
        return by_variant(builder, columns, columns, 4 * (-(-depth // 16) * 16)), depth * shape.out_c
    spread = max(shape.k_w, shape.stride_w, shape.stride_h)  # the library asks by one stride and takes by the other
    row = ((shape.in_w - 1) * shape.stride_w + spread) * shape.out_c
    return 4 * row * max(shape.k_h, shape.stride_h), 0


def is_plain(node: Node) -> bool:
    """one group, no dilation"""
    shape = ConvShape.of(node)
    return shape.groups == 1 and all(d == 1 or k == 1 for d, k in _dilated(shape))


def stays_inside(node: Node) -> bool:
    """no rows before the first input or beyond the output"""
    wide = widened(ConvShape.of(node))
    return is_convolved(wide) or 0 <= wide.in_h * wide.stride_h - wide.pad_h <= wide.out_h


def _dilated(shape: ConvShape) -> tuple[tuple[int, int], ...]:
    return (shape.dilation_h, shape.k_h), (shape.dilation_w, shape.k_w)


def emit(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Weights [O, H, W, I], widened by zeros."""
    shape, weights, name = ConvShape.of(node), weights_of(node), node.output.name
    wide, above = widened(shape), zeros_above(shape)
    weights = weights.reshape(shape.out_c, shape.k_h, shape.k_w, shape.in_c)
    below = (above, wide.k_h - shape.k_h - above)
    weights = np.pad(weights, ((0, 0), below, (0, wide.k_w - shape.k_w), (0, 0)))
    x, y, bias = node.input(0).type, node.output.type, bias_of(node)
    assert bias is not None
    multiplier, shift = multipliers(requantizer(node.sig, largest_sums_of(node)), shape.out_c)
    low, high = clamp_range(clamp_of(node), y.q, y.dtype)
    first, second = scratch_of(wide, builder)
    params: dict[str, Param] = wide.params() | {"first_size": first}
    params |= {"x_zero": x.q.zero_point, "y_zero": y.q.zero_point, "low": low, "high": high}
    operands = [
        ("x", Access.IN, builder.buffer(node.input(0))),
        ("w", Access.IN, builder.const(f"{name}.weights", weights)),
        ("bias", Access.IN, builder.const(f"{name}.bias", bias)),
        ("multiplier", Access.IN, builder.const(f"{name}.multiplier", multiplier)),
        ("shift", Access.IN, builder.const(f"{name}.shift", shift)),
        ("y", Access.OUT, builder.buffer(node.output)),
    ]
    emit_call(node, builder, kernel, operands, params, scratch=first + second)


def way(node: Node) -> str:
    """Which of the library's two ways it is."""
    return "convolved" if is_convolved(ConvShape.of(node)) else "rows"


def products(node: Node) -> int:
    """Of the convolution, with the zeros between pixels; else rows of windows that are added to rows of sums."""
    shape = ConvShape.of(node)
    if is_convolved(shape):
        return node.output.type.count * shape.k_h * shape.k_w * shape.in_c
    return shape.batch * shape.in_h * shape.in_w * shape.k_h * shape.k_w


CONV_TRANSPOSE: tuple[Kernel, ...] = (
    call("cmsis_transpose_conv_s8", (int8_layer, is_plain, stays_inside, small_axes), emit, way=way, extra=products),
)
