# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's transposed convolution: arm_transpose_conv_wrapper_s8.

The library selects one of two algorithms by strides and input channels. The first convolves the input, with zeros
between its pixels, with the flipped weights. The second adds the products of each input row to a ring of rows of sums.
Before version 7.1, the second algorithm is wrong unless the padding above is a multiple of the stride. Rows and columns
of zeros that this module adds to the weights avoid the error for any kernel size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np

from mcugen.hir.types import DType
from mcugen.kernels.cmsis_nn.common import (
    SCRATCH,
    Scratch,
    ZeroPoints,
    has_small_axes,
    is_int8_layer,
    layer_operands,
    library_kernel,
    library_multipliers,
    select_by_variant,
    with_scratch,
)
from mcugen.kernels.common.conv_shape import ConvGeometry, ConvShape
from mcugen.kernels.common.specs import ConvSpec
from mcugen.kernels.common.weighted_layers import CodeLimits
from mcugen.lir.kernel import Call, Kernel, Params, Site

MAX_CHANNELS_IN_ROWS = 16
"""Largest number of input channels for which the library, at strides up to 2, adds products to rows of sums instead of
computing a convolution."""


def is_convolved(shape: ConvShape) -> bool:
    """Return whether CMSIS-NN computes a transposed convolution as a convolution of x with zeros between its pixels."""
    return max(shape.stride_height, shape.stride_width) <= 2 and shape.in_channels > MAX_CHANNELS_IN_ROWS


def num_zero_rows_above(shape: ConvShape) -> int:
    """Return the number of zero rows to add above the weights to make the padding above a multiple of the stride."""
    return 0 if is_convolved(shape) else -shape.padding_top % shape.stride_height


def with_zero_taps(shape: ConvShape) -> ConvShape:
    """Return the geometry with zero taps added to the kernel, to a size for which CMSIS-NN's results are right."""
    above = num_zero_rows_above(shape)
    high, wide, padding_top = shape.kernel_height + above, shape.kernel_width, shape.padding_top + above
    if is_convolved(shape):  # The library pads by kernel - 1 - padding.
        return replace(shape, kernel_height=max(high, padding_top + 1), kernel_width=max(wide, shape.padding_left + 1))
    below = (
        shape.out_height + padding_top - (shape.in_height - 1) * shape.stride_height
    )  # The rows of sums must reach the last output.
    right = shape.out_width + shape.padding_left - (shape.in_width - 1) * shape.stride_width
    return replace(shape, kernel_height=max(high, below), kernel_width=max(wide, right), padding_top=padding_top)


def scratch_bytes_of(shape: ConvShape, features: frozenset[str]) -> tuple[int, int]:
    """Return the bytes of each of CMSIS-NN's two scratch buffers for a transposed convolution.

    The algorithm "convolved" (is_convolved) needs im2col columns of the input and the flipped weights; the other
    algorithm needs rows of sums, and no second buffer.
    """
    depth = shape.kernel_height * shape.kernel_width * shape.in_channels
    if is_convolved(shape):
        columns = 4 * (-(-depth // 4) * 4)
        return select_by_variant(features, columns, columns, 4 * (-(-depth // 16) * 16)), depth * shape.out_channels
    # The library sizes the rows by one stride and fills them by the other.
    spread = max(shape.kernel_width, shape.stride_width, shape.stride_height)
    row = ((shape.in_width - 1) * shape.stride_width + spread) * shape.out_channels
    return 4 * row * max(shape.kernel_height, shape.stride_height), 0


def is_plain(spec: ConvSpec) -> bool:
    """Require one group of channels and no dilation.

    Return whether a transposed convolution meets this condition of a kernel.
    """
    shape = spec.shape
    return shape.groups == 1 and all(d == 1 or k == 1 for d, k in _dilated(shape))


def stays_inside(spec: ConvSpec) -> bool:
    """Require that the library's row algorithm reads no rows before the input and writes none beyond the output.

    Return whether a transposed convolution meets this condition of a kernel. The row algorithm adds the products of
    input pixels to rows of sums. If CMSIS-NN uses its other algorithm (is_convolved), the condition is always met.
    """
    wide = with_zero_taps(spec.shape)
    return is_convolved(wide) or 0 <= wide.in_height * wide.stride_height - wide.padding_top <= wide.out_height


def _dilated(shape: ConvShape) -> tuple[tuple[int, int], ...]:
    return (shape.dilation_height, shape.kernel_height), (shape.dilation_width, shape.kernel_width)


class FirstScratch(Params):
    """Kernel parameter with the bytes of the first of two buffers in CMSIS-NN's scratch memory."""

    first_scratch_bytes: Annotated[int, "bytes of the first scratch buffer"]


def emit(spec: ConvSpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's transposed convolution, with weights [O, H, W, I].

    The weights are padded with zero taps to a size for which CMSIS-NN's results are right (with_zero_taps).
    """
    shape, wide, above = spec.shape, with_zero_taps(spec.shape), num_zero_rows_above(spec.shape)
    weights = spec.weights.reshape(shape.out_channels, shape.kernel_height, shape.kernel_width, shape.in_channels)
    below = (above, wide.kernel_height - shape.kernel_height - above)
    weights = np.pad(weights, ((0, 0), below, (0, wide.kernel_width - shape.kernel_width), (0, 0)))
    multiplier, shift = library_multipliers(spec.requantizer, shape.out_channels)
    first, second = scratch_bytes_of(wide, site.features)
    operands = {
        "x": site.x,
        "w": site.const("weights", weights),
        "bias": site.const("bias", spec.integer_bias),
        "multiplier": site.const("multiplier", multiplier),
        "shift": site.const("shift", shift),
        "y": site.y,
    }
    sizes = FirstScratch(first_scratch_bytes=first), Scratch(scratch_bytes=first + second)
    return site.call(
        with_scratch(operands, site, first + second),
        [wide.geometry, sizes[0], ZeroPoints.of(spec), CodeLimits.of(spec.limits), sizes[1]],
    )


def transpose_algorithm(spec: ConvSpec) -> str:
    """Return the algorithm by which CMSIS-NN computes a transposed convolution; the cost model has costs for each.

    It is "convolved" (a convolution of x with inserted zeros, see is_convolved) or "rows" (products are added to rows
    of sums).
    """
    return "convolved" if is_convolved(spec.shape) else "rows"


def count_work(spec: ConvSpec) -> int:
    """Return the work of CMSIS-NN's algorithm for a transposed convolution, for the cost model.

    Where CMSIS-NN computes a convolution (is_convolved), this is its multiplications, including those by zeros between
    pixels. Elsewhere it is the taps of all input pixels, each of which is added to a row of sums.
    """
    shape = spec.shape
    if is_convolved(shape):
        return spec.y.count * shape.kernel_height * shape.kernel_width * shape.in_channels
    return shape.batch * shape.in_height * shape.in_width * shape.kernel_height * shape.kernel_width


CMSIS_CONV_TRANSPOSE: tuple[Kernel, ...] = (
    library_kernel(
        "cmsis_transpose_conv_s8",
        what="a transposed convolution of int8 tensors: arm_transpose_conv_wrapper_s8",
        operands=(*layer_operands(DType.INT8, DType.INT32), SCRATCH),
        params=(ConvGeometry, FirstScratch, ZeroPoints, CodeLimits, Scratch),
        without=frozenset({"dilation_height", "dilation_width"}),
        when=(is_int8_layer, is_plain, stays_inside, has_small_axes),
        emit=emit,
        way=transpose_algorithm,
        extra=count_work,
    ),
)
"""CMSIS-NN's kernels of int8 transposed convolutions."""
