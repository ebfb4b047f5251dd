# SPDX-License-Identifier: Apache-2.0
"""int16 by int8 kernels for Helium, 8 products per instruction: weights are widened as they are read."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from mcugen.hir.types import DType
from mcugen.kernels.common.conv_shape import ConvGeometry
from mcugen.kernels.common.reading_order import in_turn, pixels_in_lanes, windows
from mcugen.kernels.common.specs import ConvSpec
from mcugen.kernels.common.weighted_layers import int8_weights, int16_tensors
from mcugen.kernels.dsp.dsp_conv import fits_shifted_high_word, ungrouped
from mcugen.kernels.helium.conv import is_unstrided_pointwise, pixels_as_row
from mcugen.kernels.helium.layer import (
    CHANNELS_PER_BLOCK,
    TABLE_ORDER,
    RequantizationTable,
    VectorLoop,
    pack_vectors,
)
from mcugen.kernels.portable.weighted import depthwise
from mcugen.lir.kernel import Call, Kernel, Options, Params, Site, Trained, reads, scratch, writes

INT16_LANES = 8
"""Number of int16 elements of a vector, whose products one instruction adds up."""

PIXELS_PER_WEIGHT = 2
"""Output pixels that each load of weights serves."""


def has_int16_results(spec: ConvSpec) -> bool:
    """Require quantized int16 results.

    Return whether the layer meets this condition of a kernel.
    """
    return spec.y.dtype is DType.INT16 and spec.y.quant is not None


class WideCodes(Params):
    """Kernel parameters of the requantization of accumulators to int16 values, by the upper words of 64-bit products.

    The products are accumulator · multiplier.
    """

    upper_word_offset: Annotated[Trained, "added to the upper word of a product: zero point of y, and rounding"]
    right_shift: Annotated[Trained, "right shift after the addition"]
    low: Annotated[Trained, "lowest quantized value of y"]
    high: Annotated[Trained, "highest quantized value of y"]

    @staticmethod
    def of(spec: ConvSpec) -> WideCodes:
        """Return the requantization parameters of a layer whose products are shifted right by more than 32 bits."""
        low, high = spec.limits
        return WideCodes(
            upper_word_offset=spec.high_word.offset >> 32, right_shift=spec.high_word.shift - 32, low=low, high=high
        )


class WideWindow(Params):
    """Kernel parameters of an int16 convolution: products and vectors per accumulator, pixels, and channels."""

    depth: Annotated[int, "products of a sum"]
    vectors_per_sum: Annotated[int, "vectors of eight products of a sum; the last one may be partial"]
    pixels: Annotated[int, "pixels of y"]
    y_channels: Annotated[int, "channels of a pixel of y"]


class WideOptions(Options):
    """Template options of the int16 kernel: how x is read, whether y has one pixel, and the unroll factor."""

    reads_in_place: Annotated[bool, "whether pixels are read in x, in whole vectors"]
    single_pixel: Annotated[bool, "whether y has a single pixel"]
    unroll: Annotated[int, "vectors of an inner loop iteration"]


def emit_wide(spec: ConvSpec, site: Site) -> Call:
    """Emit an int16 convolution that computes two pixels by four output channels at a time.

    Pointwise convolutions of whole vectors read x directly; other windows are gathered by im2col first.
    """
    shape, vectors = spec.shape, -(-spec.depth // INT16_LANES)
    pixels = shape.batch * shape.out_height * shape.out_width
    direct = is_unstrided_pointwise(shape) and spec.depth % INT16_LANES == 0
    operands = {
        "x": site.x,
        "w": site.const("weights", pack_vectors(spec.rows, CHANNELS_PER_BLOCK, INT16_LANES)),
        "table": site.const("table", RequantizationTable(spec).data),
        "y": site.y,
    }
    if not direct:
        operands["patch"] = site.scratch(
            "patch", DType.INT16, (1 if pixels == 1 else PIXELS_PER_WEIGHT) * vectors * INT16_LANES
        )
    walked = pixels_as_row(shape) if direct else shape  # Gathered pairs of pixels do not cross images.
    last = (spec.channels - 1) % CHANNELS_PER_BLOCK + 1 if direct else 0
    order = windows(walked, in_turn(walked.out_height * walked.out_width, PIXELS_PER_WEIGHT), last)
    window = WideWindow(depth=spec.depth, vectors_per_sum=vectors, pixels=pixels, y_channels=spec.channels)
    geometry = [] if direct else [shape.geometry]
    options = WideOptions(reads_in_place=direct, single_pixel=pixels == 1, unroll=VectorLoop(vectors).flags.unroll)
    return site.call(operands, [*geometry, window, WideCodes.of(spec)], [options], overlaps=spec.overlaps(order))


class WideTaps(Options):
    """Template options of the loops over taps of the int16 depthwise kernel: window size, and partial last block."""

    kernel_height: Annotated[int, "rows of the window"]
    kernel_width: Annotated[int, "columns of the window"]
    has_tail_channels: Annotated[bool, "whether the last block has fewer than eight channels"]


def emit_wide_depthwise(spec: ConvSpec, site: Site) -> Call:
    """Emit an int16 depthwise convolution pixel by pixel, with eight channels in the lanes of a vector.

    The table of biases and multipliers has the even channels before the odd ones, the order in which Helium widens
    16-bit products.
    """
    shape = spec.shape
    operands = {
        "x": site.x,
        "w": site.const("weights", pack_vectors(spec.rows, INT16_LANES, 1)),
        "table": site.const("table", RequantizationTable(spec, INT16_LANES, order=(0, 2, 4, 6, 1, 3, 5, 7)).data),
        "y": site.y,
    }
    order = pixels_in_lanes(shape, INT16_LANES)
    options = WideTaps(
        kernel_height=shape.kernel_height,
        kernel_width=shape.kernel_width,
        has_tail_channels=spec.channels % INT16_LANES != 0,
    )
    return site.call(operands, [shape.geometry, WideCodes.of(spec)], [options], overlaps=spec.overlaps(order))


def count_wide_instructions(spec: ConvSpec) -> int:
    """Estimate the instructions per inference of an int16 convolution: its inner loops, and the im2col code.

    Windows are gathered row by row where a row is inside x, else tap by tap.
    """
    shape, vectors = spec.shape, -(-spec.depth // INT16_LANES)
    pixels, blocks = spec.y.count // spec.channels, -(-spec.channels // CHANNELS_PER_BLOCK)
    products = (9 if pixels == 1 else 14) * vectors + 3 * VectorLoop(vectors).num_iterations + 36
    total = -(-pixels // PIXELS_PER_WEIGHT) * (60 + blocks * products)
    if not (is_unstrided_pointwise(shape) and spec.depth % INT16_LANES == 0):
        left = np.arange(shape.out_width) * shape.stride_width - shape.padding_left
        whole = (
            int(((left >= 0) & (left + shape.kernel_width <= shape.in_width)).sum()) if shape.dilation_width == 1 else 0
        )
        by_taps = shape.kernel_width * (40 + shape.in_channels)
        row = whole * min(40 + shape.kernel_width * shape.in_channels, by_taps) + (shape.out_width - whole) * by_taps
        total += shape.batch * shape.out_height * shape.kernel_height * row
    return total


def count_wide_vectors(spec: ConvSpec) -> int:
    """Count vectors of eight channels in all output pixels of an int16 depthwise convolution, for the cost model."""
    return spec.y.count // spec.channels * -(-spec.channels // INT16_LANES)


_OPERANDS = (
    reads("x", "input, channels last", DType.INT16),
    reads(
        "w", "weights by blocks of channels, in reading order, with zeros for what is missing", DType.INT8, holds=(1,)
    ),
    reads("table", TABLE_ORDER, DType.INT32, holds=(2,)),
    writes("y", "output, channels last", DType.INT16),
)
_MVE, _WHEN = frozenset({"mve"}), (int16_tensors, int8_weights, fits_shifted_high_word, has_int16_results)

WIDE = Kernel(
    "conv2d_s16_mve",
    what="two pixels of int16 by four channels of int8 weights, 8 products per instruction",
    operands=(*_OPERANDS, scratch("patch", "windows of two pixels, in whole vectors", DType.INT16, optional=True)),
    params=(ConvGeometry, WideWindow, WideCodes),
    optional=(ConvGeometry,),
    without=frozenset({"out_channels"}),
    options=(WideOptions,),
    needs=_MVE,
    when=(*_WHEN, ungrouped),
    emit=emit_wide,
    extra=count_wide_instructions,
)
"""Helium kernel of int16 convolutions and dense layers with int8 weights."""

WIDE_DEPTHWISE = Kernel(
    "depthwise_s16_mve",
    what="one filter per channel, eight channels of int16 in lanes",
    operands=_OPERANDS,
    params=(ConvGeometry, WideCodes),
    without=frozenset({"out_channels", "kernel_height", "kernel_width"}),
    options=(WideTaps,),
    needs=_MVE,
    when=(*_WHEN, depthwise),
    emit=emit_wide_depthwise,
    extra=count_wide_vectors,
)
"""Helium kernel of int16 depthwise convolutions with int8 weights."""
