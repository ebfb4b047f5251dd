# SPDX-License-Identifier: Apache-2.0
"""Kernels for Helium, the vector extension of Cortex-M55 and M85: 16 products of int8 per instruction.

    y[r][n] = requantize(bias[n] + sum over k of x[r][k] · w[n][k])

VMLADAV adds 16 products to a 32-bit accumulator in a general register. A tile has eight of them: two pixels by four
channels, four pixels by two channels, or one row by eight channels. Packed weights alternate a vector of 16 weights of
each channel of a block (mcugen.kernels.helium.layer.pack_vectors). Loads and products alternate, because the core
executes a load together with a product.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np

from mcugen.hir.types import DType
from mcugen.kernels.common.conv_shape import ConvGeometry
from mcugen.kernels.common.specs import ConvSpec
from mcugen.kernels.common.weighted_layers import DoubleRounding, has_int8_output, of_four_bits, uint8_example
from mcugen.kernels.dsp.dsp_conv import ungrouped
from mcugen.kernels.helium import conv, layer
from mcugen.kernels.helium import depthwise as patches
from mcugen.kernels.helium.layer import (
    CHANNELS_PER_BLOCK,
    VECTOR,
    RequantizationTable,
    StackFrame,
    VectorLoop,
    count_vector_steps,
    fits_27_bits,
    has_int8_products,
    has_nine_bit_products,
    is_int8_in_32_bits,
)
from mcugen.kernels.helium.wide import WIDE, WIDE_DEPTHWISE
from mcugen.kernels.portable.weighted import depthwise, is_single_pixel
from mcugen.lir.kernel import Call, Kernel, Role, Site, Trained, reads, scratch
from mcugen.lir.traversal import Traversal

_MVE = frozenset({"mve"})


def is_single_row(spec: ConvSpec) -> bool:
    """Require one row of outputs.

    Return whether the layer meets this condition of a kernel: it is a dense layer of a single input vector.
    """
    return spec.y.count == spec.channels


class RowFrame(StackFrame):
    """Parameters of a dense layer of a single input vector, in the order in which assembly code reads them."""

    y_zero_point: Annotated[Trained, "zero point of y; for right shifts, plus one half"]
    channel_blocks: Annotated[int, "blocks of eight output channels"]
    inner_iterations: Annotated[int, "iterations of the inner loop"]
    tail_products: Annotated[int, "products beyond whole vectors of 16"]
    last_block_channels: Annotated[int, "output channels of the last block"]
    left_shift: Annotated[Trained, "left shift of sums before the product; negative: right shift after the product"]
    low: Annotated[Trained, "lowest quantized value of y"]
    high: Annotated[Trained, "highest quantized value of y"]


def emit_row(spec: ConvSpec, site: Site) -> Call:
    """Emit a dense layer of one input vector, eight output channels at a time.

    Weights are packed as [block of 8 channels][vector of 16 inputs][8][16].
    """
    loop, table = VectorLoop(*divmod(spec.depth, VECTOR)), RequantizationTable(spec, 2 * CHANNELS_PER_BLOCK)
    codes = table.codes.values()
    frame = RowFrame(
        channel_blocks=table.blocks,
        inner_iterations=loop.num_iterations,
        tail_products=loop.tail,
        last_block_channels=table.last,
        **codes,  # type: ignore[arg-type]
    )
    order = Traversal.runs(np.zeros(spec.channels, np.int64), 1)  # In plain C, each result reads all of x.
    return layer.call(
        site, layer.pack_vectors(spec.rows, 2 * CHANNELS_PER_BLOCK), table, [frame], [loop.flags], orders=[order]
    )


def emit_vectors(spec: ConvSpec, site: Site) -> Call:
    """Emit a dense layer of several input vectors as a pointwise convolution, in which each vector is a pixel."""
    return conv.emit_direct(spec, site, conv.adjacent_pixels(spec.y.count // spec.channels, spec.channels))


def count_pair_steps(spec: ConvSpec) -> int:
    """Count the inner-loop steps per inference of kernels of two pixels by four output channels, for the cost model.

    A step multiplies 16 inputs for each of the eight results.
    """
    return count_vector_steps(spec, 2, CHANNELS_PER_BLOCK)


def count_row_steps(spec: ConvSpec) -> int:
    """Count the inner-loop steps per inference of the kernel of one pixel by eight output channels, for the cost model.

    A step multiplies 16 inputs for each of the eight results.
    """
    return count_vector_steps(spec, 1, 2 * CHANNELS_PER_BLOCK)


def _strip(optional: bool = False) -> tuple[Role, ...]:
    return (scratch("strip", "padded rows under one row of y", DType.INT8, optional=optional),)


_ROW = Kernel(
    "dense_s8_mve",
    what="one row by a matrix, eight channels at a time",
    operands=layer.operands(results=(DType.INT8, DType.INT16, DType.INT32)),
    params=(RowFrame,),
    options=(layer.LoopFlags, layer.TailChannelsOption, layer.Clamped, layer.Shifted, layer.ResultOptions),
    needs=_MVE,
    when=(has_int8_products, is_single_row),
    emit=emit_row,
    extra=count_row_steps,
)

_GEMM = Kernel(
    "conv2d_s8_mve",
    what="two pixels by four channels, read in place, from a strip of padded rows, or from gathered patches",
    operands=layer.operands(working=_strip(optional=True), results=(DType.INT8, DType.INT16, DType.INT32)),
    params=(
        *(layer.GemmFrame, layer.Padding, ConvGeometry, layer.StripRows),
        *(conv.PixelRows, conv.PatchRows, conv.ChannelGroupSizes),
    ),
    optional=(layer.Padding, ConvGeometry, layer.StripRows, conv.PixelRows, conv.PatchRows, conv.ChannelGroupSizes),
    without=frozenset({"kernel_width", "stride_width", "dilation_height", "dilation_width"}),
    options=(
        conv.ModeOptions,
        layer.LoopFlags,
        layer.RowJumpOption,
        layer.TailChannelsOption,
        layer.Clamped,
        layer.Shifted,
        layer.ResultOptions,
        DoubleRounding,
    ),
    needs=_MVE,
    when=(has_int8_products,),
    as_tflite=True,
    emit=emit_vectors,
    extra=count_pair_steps,
)

_NINE = replace(
    _GEMM,
    name="conv2d_s8_mve_nine",
    what="two pixels by four channels, nine-bit weights: int8 weights plus a channel's offset times the inputs' sum",
    operands=layer.operands(working=_strip(optional=True), results=(DType.INT8, DType.INT16)),
    params=(*_GEMM.params, layer.NineBits),
    when=(has_nine_bit_products,),
    as_tflite=False,
    example=uint8_example(3, 5),
)

_IN_PLACE = Kernel(
    "conv2d_s8_mve_inplace",
    what="two pixels by four channels of pointwise convolutions, pixels copied before they are overwritten",
    operands=layer.operands(working=(scratch("patches", "copies of pixels", DType.INT8),)),
    params=(layer.GemmFrame, conv.CopiedPixels),
    options=(
        layer.LoopFlags,
        layer.RowJumpOption,
        layer.TailChannelsOption,
        layer.Clamped,
        layer.Shifted,
        layer.ResultOptions,
        DoubleRounding,
    ),
    needs=_MVE,
    when=(is_int8_in_32_bits, conv.can_overwrite_pixels),
    as_tflite=True,
    emit=conv.emit_in_place,
    extra=count_pair_steps,
)

_EIGHT = Kernel(
    "conv2d_s8_mve_8",
    what="pointwise convolutions of pixels of eight channels, two in a vector, while weights stay in registers",
    operands=layer.operands(),
    params=(conv.EightFrame, conv.Pixels),
    options=(layer.Clamped, layer.Shifted),
    needs=_MVE,
    when=(is_int8_in_32_bits, conv.has_eight_channels),
    emit=conv.emit_eight_channels,
)

_COLUMNS = Kernel(
    "conv2d_s8_mve_columns",
    what="3 x 3 windows, four pixels by two channels, which share the columns of a row",
    operands=layer.operands(working=_strip()),
    params=(conv.ColumnsFrame, layer.Padding, ConvGeometry, layer.StripRows),
    without=frozenset({"kernel_height", "kernel_width", "stride_width", "dilation_height", "dilation_width"}),
    options=(conv.ColumnsOptions, layer.Clamped, layer.Shifted),
    needs=_MVE,
    when=(is_int8_in_32_bits, conv.is_3x3_in_vectors),
    emit=conv.emit_columns,
)

_COLUMNS_NINE = replace(
    _COLUMNS,
    name="conv2d_s8_mve_columns_nine",
    what=f"{_COLUMNS.what}; nine-bit weights: int8 weights, plus each channel's offset times the sum of a window",
    when=(has_nine_bit_products, has_int8_output, conv.is_3x3_in_vectors),
    example=uint8_example(16, 2),
)

_SINGLE = replace(_ROW, when=(has_int8_products, is_single_pixel))

_NINE_WINDOWS = replace(_NINE, when=(has_nine_bit_products, ungrouped), emit=conv.emit_nine_bits)

_WINDOWS = replace(_GEMM, when=(has_int8_products, conv.is_not_depthwise), emit=conv.emit_conv)

HELIUM_DENSE: tuple[Kernel, ...] = (
    _ROW,
    _GEMM,
    _NINE,
    WIDE,
    *(of_four_bits(kernel, fits_27_bits) for kernel in (_ROW, _GEMM)),
)
"""Helium kernels of fully connected layers, in order of preference."""

HELIUM_CONV: tuple[Kernel, ...] = (
    *(_SINGLE, _EIGHT, _COLUMNS, _WINDOWS, _IN_PLACE, _NINE_WINDOWS, _COLUMNS_NINE, WIDE),
    *(of_four_bits(kernel, fits_27_bits) for kernel in (_SINGLE, _WINDOWS)),
)
"""Helium kernels of convolutions, in order of preference."""

_DEPTHWISE = (
    Kernel(
        "depthwise_s8_mve_4x4",
        what="windows of up to 4 x 4 of one filter per channel: a patch of one channel is a vector",
        operands=layer.operands(working=(scratch("columns", "columns of four rows, by channels", DType.INT8),)),
        params=(
            *(patches.PatchesFrame, layer.Padding, ConvGeometry),
            *(patches.HalfGroupMask, patches.Sections, patches.StrideParams),
        ),
        without=frozenset({"out_channels", "kernel_height", "kernel_width", "stride_height", "dilation_height"}),
        options=(patches.PatchOptions, layer.UnpackedNibblesOption, layer.Clamped, layer.Shifted),
        needs=_MVE,
        when=(is_int8_in_32_bits, depthwise, patches.is_small_patch_window),
        loads=0.0,
        emit=patches.emit_small_depthwise,
        extra=patches.count_half_groups,
    ),
    Kernel(
        "depthwise_s8_mve_8x8",
        what="windows of up to 8 x 8 of one filter per channel, as 2 x 2 patches",
        operands=layer.operands(working=_strip()),
        params=(patches.LargeFrame, layer.Padding, ConvGeometry, layer.StripRows, patches.ColumnsBufferParams),
        without=frozenset({"dilation_height", "dilation_width"}),
        options=(patches.LargeOptions, layer.UnpackedNibblesOption, layer.Clamped, layer.Shifted),
        needs=_MVE,
        when=(is_int8_in_32_bits, depthwise, patches.is_large_window),
        loads=0.0,
        emit=patches.emit_large_depthwise,
        extra=patches.count_patches,
    ),
    Kernel(
        "depthwise_s8_mve_row",
        what="rows of up to 64 taps of one filter per channel: 16 taps of one channel are a vector",
        operands=layer.operands(working=(scratch("planes", "pixels under some of y, by channels", DType.INT8),)),
        params=(
            layer.RequantizationParams,
            layer.Padding,
            ConvGeometry,
            patches.PlaneSizes,
            patches.RowPhase,
            patches.LastVector,
        ),
        without=frozenset(
            {
                "in_height",
                "kernel_height",
                "kernel_width",
                "stride_height",
                "stride_width",
                "dilation_height",
                "dilation_width",
                "padding_top",
            }
        ),
        options=(patches.RowLoopOptions, layer.UnpackedNibblesOption, layer.Clamped, layer.Shifted),
        needs=_MVE,
        when=(is_int8_in_32_bits, depthwise, patches.is_row_window),
        loads=0.0,
        emit=patches.emit_row_depthwise,
        extra=patches.count_row_instructions,
    ),
    Kernel(
        "depthwise_s8_mve",
        what="any window of one filter per channel: channels in lanes, two taps at a time",
        operands=layer.operands(
            reads("offsets", "offset of each tap in the strip, in bytes", DType.INT32), working=_strip()
        ),
        params=(layer.RequantizationParams, layer.Padding, ConvGeometry, layer.StripRows, patches.TapPairs),
        without=frozenset({"out_channels", "kernel_height", "kernel_width", "dilation_height", "dilation_width"}),
        options=(layer.UnpackedNibblesOption, layer.Shifted, DoubleRounding),
        needs=_MVE,
        when=(is_int8_in_32_bits, depthwise, patches.has_no_smallest_weight),
        as_tflite=True,
        emit=patches.emit_depthwise,
    ),
)

_DEPTHWISE_NINE = replace(
    _DEPTHWISE[0],
    name="depthwise_s8_mve_4x4_nine",
    what=f"{_DEPTHWISE[0].what}; channels with weights beyond int8 are computed again, four pixels at a time",
    operands=layer.operands(
        reads("which", "channels with weights beyond int8, then the number of all channels", DType.INT32),
        reads("whole", "weights of these channels, column by column", DType.INT16, holds=(1,)),
        working=(scratch("columns", "columns of four rows, by channels", DType.INT8),),
    ),
    options=(patches.PatchOptions, patches.RecomputedTaps, layer.UnpackedNibblesOption, layer.Clamped, layer.Shifted),
    when=(has_nine_bit_products, has_int8_output, depthwise, patches.is_small_patch_window),
    extra=patches.count_repaired_half_groups,
    example=uint8_example(16, 16, group=16),
)

HELIUM_DEPTHWISE: tuple[Kernel, ...] = (*_DEPTHWISE, *map(of_four_bits, _DEPTHWISE), _DEPTHWISE_NINE, WIDE_DEPTHWISE)
"""Helium kernels of depthwise convolutions, in order of preference."""
