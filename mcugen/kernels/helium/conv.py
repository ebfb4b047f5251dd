# SPDX-License-Identifier: Apache-2.0
"""Convolutions for Helium: products of two pixels by four channels, or of four pixels by two channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import numpy as np

from mcugen.hir.types import Array
from mcugen.kernels.common.conv_shape import ConvShape
from mcugen.kernels.common.reading_order import in_turn, rows, windows
from mcugen.kernels.common.specs import ConvSpec
from mcugen.kernels.common.weighted_layers import four_bits
from mcugen.kernels.helium.layer import (
    CHANNELS_PER_BLOCK,
    VECTOR,
    LoopFlags,
    NineBits,
    RequantizationTable,
    RowJumpOption,
    StackFrame,
    VectorLoop,
    call,
    gemm_frame,
    has_nine_bits,
    pack_vectors,
    padding,
    strip_of,
)
from mcugen.lir.kernel import Call, Options, Params, Site, Trained

MAX_UNROLLED_ROW_VECTORS = 12
"""Longest kernel row, in vectors of 16 bytes, over which the loop is unrolled: 3 taps of 64 channels."""

MAX_BYTE_OFFSET = 127
"""Largest immediate offset of a vector load of bytes, in bytes."""

MAX_WORD_OFFSET = 508
"""Largest immediate offset of a vector load of words, in bytes."""

MAX_PATCHES = 16
"""Largest number of output pixels whose im2col patches are gathered, or whose inputs are copied, at a time."""


def is_not_depthwise(spec: ConvSpec) -> bool:
    """Require one group of channels, or groups of several input channels.

    Return whether the layer meets this condition of a kernel.
    """
    return spec.shape.groups < spec.shape.in_channels or spec.shape.groups == 1


def is_unstrided_pointwise(shape: ConvShape) -> bool:
    """Return whether a convolution is pointwise and ungrouped, with stride 1."""
    return shape.groups == 1 and shape.reads_pixels and shape.stride_height == shape.stride_width == 1


class PixelRows(Params):
    """Kernel parameters of the loops over the input pixels of a convolution that reads x in place."""

    batch: Annotated[int, "images; 1 if all pixels are adjacent"]
    image_stride_bytes: Annotated[int, "bytes from image to image of x"]
    rows: Annotated[int, "rows of pixels of an image that are read"]
    row_stride_bytes: Annotated[int, "bytes of x from row to row that is read"]
    row_pixels: Annotated[int, "pixels of a row"]
    out_channels: Annotated[int, "channels of a pixel of y"]


class PatchRows(Params):
    """Kernel parameters of the im2col step, which gathers the inputs of a few windows in patches of adjacent bytes.

    A run is a piece of a window whose elements are adjacent in memory.
    """

    run_bytes: Annotated[int, "bytes of a run of adjacent taps"]
    runs_per_kernel_row: Annotated[int, "runs in a row of the window"]
    run_stride_bytes: Annotated[int, "bytes from run to run"]
    kernel_row_stride_bytes: Annotated[int, "bytes from row to row of the window"]
    patch_bytes: Annotated[int, "bytes of an im2col patch, in whole vectors"]
    max_patches: Annotated[int, "largest number of patches that are gathered at a time"]
    window_stride_bytes: Annotated[int, "bytes from window to window"]


class ChannelGroupSizes(Params):
    """Kernel parameters with the sizes of the groups of a grouped convolution."""

    groups: Annotated[int, "groups of channels"]
    group_in_channels: Annotated[int, "input channels of a group"]
    group_out_channels: Annotated[int, "output channels of a group"]
    group_weight_bytes: Annotated[int, "bytes of the weights of a group"]


class ModeOptions(Options):
    """Template options that say where a convolution reads its windows: in x, in padded rows, or in im2col patches.

    The strip is a scratch buffer of the padded input rows that one row of y depends on.
    """

    mode: Annotated[str, "direct: in x; rows: from a strip of padded rows; patch: from patches gathered from the strip"]
    gather: Annotated[
        Mapping[str, object] | None,
        "unrolled offsets that gather short kernel rows (see plan_unrolled_gather); None: a loop",
    ]
    grouped: Annotated[bool, "whether channels are in several groups"] = False


def emit_conv(spec: ConvSpec, site: Site) -> Call:
    """Emit a convolution by the method that fits its shape.

    Windows are read from a strip, a scratch buffer of padded rows, if a row of the window fills its vectors well; else
    from im2col patches. Pointwise convolutions read x directly.
    """
    shape = spec.shape
    if shape.reads_pixels:
        return emit_pointwise(spec, site)
    if shape.groups > 1:
        return emit_patches(spec, site)
    run = shape.kernel_width * shape.in_channels
    vectors = -(-run // VECTOR)
    filled = shape.dilation_width == 1 and vectors * VECTOR <= 1.1 * run and vectors <= MAX_UNROLLED_ROW_VECTORS
    even = shape.out_width % 2 == 0 or shape.out_width > MAX_PATCHES
    return (emit_rows if filled and even else emit_patches)(spec, site)


def emit_rows(spec: ConvSpec, site: Site) -> Call:
    """Emit a convolution that reads windows from padded rows in scratch memory, one row of the window per iteration.

    Weights are zero where a vector reads past the row of the window.
    """
    shape, strip, table = spec.shape, strip_of(spec.shape), RequantizationTable(spec)
    vectors, several = -(-shape.kernel_width * shape.in_channels // VECTOR), shape.kernel_height > 1
    jump = shape.dilation_height * strip.strip_row_stride - vectors * VECTOR
    frame = replace(
        gemm_frame(table, VectorLoop(0), 2 * shape.stride_width * shape.in_channels),
        inner_iterations=shape.kernel_height,
        iteration_gap_bytes=jump,
    )
    flags = LoopFlags(unroll=vectors, has_loop=several, has_tail_vector=False)
    packed = pack_vectors(spec.weights.reshape(shape.out_channels, shape.kernel_height, -1), CHANNELS_PER_BLOCK)
    return call(
        site,
        packed,
        table,
        [frame, padding(spec), shape.geometry, strip],
        [ModeOptions(mode="rows", gather=None), flags, RowJumpOption(has_row_jumps=several)],
        working=("strip", strip.strip_rows * strip.strip_row_stride + VECTOR),
        orders=[rows(shape)],
    )


def plan_unrolled_gather(shape: ConvShape, patch: PatchRows) -> dict[str, object] | None:
    """Plan an unrolled im2col step that copies each row of a window by one vector load and one store.

    The rows are divided among pointers, each of which reaches MAX_BYTE_OFFSET bytes by immediate offsets.

    Args:
        shape: Geometry of the convolution.
        patch: Sizes of the im2col patch.

    Returns:
        Template options: `run`, the bytes of a row; `x_step`, bytes from window to window; `depth`, bytes of a patch;
        `pointers`, each with its `offset` and its `rows` (number, offset from the pointer, offset `target` in the
        patch). None if a row exceeds a vector or offsets exceed their limits.
    """
    run, row_step = patch.run_bytes, patch.kernel_row_stride_bytes
    rows_per_pointer = MAX_BYTE_OFFSET // row_step + 1
    starts = range(0, shape.kernel_height, rows_per_pointer)
    if (
        run > VECTOR
        or (shape.kernel_height - 1) * run > MAX_BYTE_OFFSET
        or len(starts) > 7
        or max(patch.window_stride_bytes, patch.patch_bytes) > 255
    ):
        return None
    if starts[-1] * row_step >= 4096:
        return None
    pointers = [
        {
            "offset": start * row_step,
            "rows": [
                {"number": row, "offset": (row - start) * row_step, "target": row * run}
                for row in range(start, min(start + rows_per_pointer, shape.kernel_height))
            ],
        }
        for start in starts
    ]
    return {"run": run, "x_step": patch.window_stride_bytes, "depth": patch.patch_bytes, "pointers": pointers}


def emit_pointwise(spec: ConvSpec, site: Site) -> Call:
    """Emit a pointwise convolution that reads pixels in x, without a copy.

    All pixels are adjacent, or they are read row by row if a stride skips some.
    """
    shape = spec.shape
    in_row, pixels = shape.in_width * shape.in_channels, shape.out_height * shape.out_width
    walk = adjacent_pixels(shape.batch * pixels, shape.out_channels)
    if not shape.stride_height == shape.stride_width == 1:
        walk = PixelRows(
            batch=shape.batch,
            image_stride_bytes=shape.in_height * in_row,
            rows=shape.out_height,
            row_stride_bytes=shape.stride_height * in_row,
            row_pixels=shape.out_width,
            out_channels=shape.out_channels,
        )
    return emit_direct(spec, site, walk)


def adjacent_pixels(pixels: int, channels: int) -> PixelRows:
    """Return the loop parameters for a row of adjacent pixels, which are read in x.

    Args:
        pixels: Number of pixels.
        channels: Output channels of each pixel.
    """
    return PixelRows(
        batch=1, image_stride_bytes=0, rows=1, row_stride_bytes=0, row_pixels=pixels, out_channels=channels
    )


def emit_direct(spec: ConvSpec, site: Site, walk: PixelRows) -> Call:
    """Emit a pointwise convolution that reads two pixels at a time in x (one by one in plain C).

    Pixels are read again for every four output channels.

    Args:
        spec: The layer.
        site: Operands and CPU features of the call.
        walk: Parameters of the loops over pixels.
    """
    shape, loop = spec.shape, VectorLoop(*divmod(spec.depth, VECTOR))
    table = RequantizationTable(spec, groups=shape.groups, nine_bits=has_nine_bits(spec))
    frame = gemm_frame(table, loop, 2 * shape.stride_width * shape.in_channels)
    if shape.groups > 1:
        packed, groups = _by_groups(spec, site, 1)
        mode = ModeOptions(mode="direct", gather=None, grouped=True)
        return call(site, packed, table, [frame, walk, groups], [mode, loop.flags, RowJumpOption()])
    if shape.stride_height == shape.stride_width == 1:
        shape = pixels_as_row(shape)
    pairs = (np.arange(shape.out_height)[:, None, None] * shape.out_width + in_turn(shape.out_width, 2)).reshape(-1, 2)
    last = (shape.out_channels - 1) % CHANNELS_PER_BLOCK + 1
    orders = [windows(shape, blocks, last) for blocks in (pairs, in_turn(shape.out_height * shape.out_width, 1))]
    options = [ModeOptions(mode="direct", gather=None), loop.flags, RowJumpOption()]
    params = [frame, walk, *NineBits.of(spec)]
    return call(site, pack_vectors(spec.int8_rows, CHANNELS_PER_BLOCK), table, params, options, orders=orders)


def _by_groups(spec: ConvSpec, site: Site, taps: int) -> tuple[Array, ChannelGroupSizes]:
    """Return the weights packed group by group, with whole vectors for each of `taps`, and the group parameters."""
    shape = spec.shape
    parts = np.split(spec.rows.reshape(shape.out_channels, taps, -1), shape.groups)
    packed = np.concatenate([pack_vectors(part, CHANNELS_PER_BLOCK) for part in parts])
    return packed, ChannelGroupSizes(
        groups=shape.groups,
        group_in_channels=shape.in_channels // shape.groups,
        group_out_channels=shape.out_channels // shape.groups,
        group_weight_bytes=len(packed) // shape.groups // (2 if four_bits in site.kernel.when else 1),
    )


def pixels_as_row(shape: ConvShape) -> ConvShape:
    """Return the geometry of a pointwise convolution with all pixels of all images in one row."""
    pixels = shape.batch * shape.out_height * shape.out_width
    return replace(shape, batch=1, in_height=1, in_width=pixels, out_height=1, out_width=pixels)


def emit_patches(spec: ConvSpec, site: Site) -> Call:
    """Emit a convolution by im2col: the inputs of up to 16 windows are gathered in patches before the multiplications.

    In a grouped convolution, an iteration of the inner loop multiplies one tap.
    """
    shape, strip = spec.shape, strip_of(spec.shape)
    table = RequantizationTable(spec, groups=shape.groups, nine_bits=has_nine_bits(spec))
    pack_nibbles_apart, taps = shape.dilation_width == 1, shape.kernel_height * shape.kernel_width
    depth = -(-taps * shape.in_channels // VECTOR) * VECTOR
    loop = VectorLoop(depth // VECTOR)
    patch = PatchRows(
        run_bytes=shape.in_channels * (shape.kernel_width if pack_nibbles_apart else 1),
        runs_per_kernel_row=1 if pack_nibbles_apart else shape.kernel_width,
        run_stride_bytes=shape.dilation_width * shape.in_channels,
        kernel_row_stride_bytes=shape.dilation_height * strip.strip_row_stride,
        patch_bytes=depth,
        max_patches=min(MAX_PATCHES, shape.batch * shape.out_height * shape.out_width),
        window_stride_bytes=shape.stride_width * shape.in_channels,
    )
    size = strip.strip_rows * strip.strip_row_stride + patch.max_patches * patch.patch_bytes + 2 * VECTOR
    pixels = (np.arange(shape.out_height) + 1) * shape.out_width
    written = pixels // patch.max_patches * patch.max_patches * shape.out_channels if shape.batch == 1 else None
    gather = plan_unrolled_gather(shape, patch) if pack_nibbles_apart else None
    frame, params = gemm_frame(table, loop, 2 * patch.patch_bytes), [padding(spec), shape.geometry, strip, patch]
    params += NineBits.of(spec)
    packed, flags, jump = pack_vectors(spec.int8_rows, CHANNELS_PER_BLOCK), loop.flags, RowJumpOption()
    if shape.groups > 1:
        packed, groups = _by_groups(spec, site, taps)
        vectors = -(-groups.group_in_channels // VECTOR)
        frame = replace(frame, inner_iterations=taps, iteration_gap_bytes=shape.in_channels - vectors * VECTOR)
        params.append(groups)
        flags, jump = LoopFlags(unroll=vectors, has_loop=True, has_tail_vector=False), RowJumpOption(has_row_jumps=True)
    return call(
        site,
        packed,
        table,
        [frame, *params],
        [ModeOptions(mode="patch", gather=gather, grouped=shape.groups > 1), flags, jump],
        working=("strip", size),
        orders=[rows(shape, writes=written)],
    )


def emit_nine_bits(spec: ConvSpec, site: Site) -> Call:
    """Emit an ungrouped convolution with nine-bit weights, stored as int8 values and an offset per output channel.

    It is pointwise, or reads im2col patches. In both, a window's inputs are adjacent, so that the kernel can add them
    up: it adds this sum times the channel's offset to each accumulator.
    """
    return (emit_pointwise if spec.shape.reads_pixels else emit_patches)(spec, site)


def can_overwrite_pixels(spec: ConvSpec) -> bool:
    """Require a pointwise convolution with at most as many output channels as input channels.

    Return whether the layer meets this condition of a kernel, which writes y over x.
    """
    return is_unstrided_pointwise(spec.shape) and spec.shape.out_channels <= spec.shape.in_channels


class CopiedPixels(Params):
    """Kernel parameters of an in-place pointwise convolution, which copies pixels before it overwrites them."""

    in_channels: Annotated[int, "channels of a pixel of x"]
    out_channels: Annotated[int, "channels of a pixel of y"]
    pixels: Annotated[int, "pixels of x and y"]
    max_copied_pixels: Annotated[int, "largest number of pixels that are copied at a time"]


def emit_in_place(spec: ConvSpec, site: Site) -> Call:
    """Emit a pointwise convolution in place: up to 16 pixels at a time are copied before they are overwritten."""
    shape, table = spec.shape, RequantizationTable(spec)
    pixels = shape.batch * shape.out_height * shape.out_width
    loop, num_copied = VectorLoop(-(-shape.in_channels // VECTOR)), min(MAX_PATCHES, pixels)
    copied = CopiedPixels(
        in_channels=shape.in_channels, out_channels=shape.out_channels, pixels=pixels, max_copied_pixels=num_copied
    )
    return call(
        site,
        pack_vectors(spec.rows, CHANNELS_PER_BLOCK),
        table,
        [gemm_frame(table, loop, 2 * shape.in_channels), copied],
        [loop.flags, RowJumpOption()],
        working=("patches", num_copied * shape.in_channels + VECTOR),
        orders=[windows(pixels_as_row(shape), in_turn(pixels, MAX_PATCHES))],
    )


def has_eight_channels(spec: ConvSpec) -> bool:
    """Require a pointwise convolution of 8 input channels, an even number of output channels, and 4 pixels or more.

    Return whether the layer meets this condition of a kernel.
    """
    shape = spec.shape
    has_enough_pixels = shape.batch * shape.out_height * shape.out_width >= 4
    return (
        is_unstrided_pointwise(shape)
        and shape.in_channels == VECTOR // 2
        and shape.out_channels % 2 == 0
        and has_enough_pixels
    )


class EightFrame(StackFrame):
    """Parameters of a pointwise convolution of eight input channels, in the order in which assembly code reads them.

    The table holds the biases and multipliers of all output channels.
    """

    y_zero_point: Annotated[Trained, "zero point of y"]
    table_bytes: Annotated[int, "bytes of the table"]
    y_step_bytes: Annotated[int, "bytes of y from four pixels to the next four"]
    left_shift: Annotated[Trained, "left shift of sums before the product"]
    low: Annotated[Trained, "lowest quantized value of y"]
    high: Annotated[Trained, "highest quantized value of y"]


class Pixels(Params):
    """Kernel parameters of a pointwise convolution of adjacent pixels: channels of y, and number of pixels."""

    out_channels: Annotated[int, "channels of a pixel of y"]
    pixels: Annotated[int, "pixels of x and y"]


def emit_eight_channels(spec: ConvSpec, site: Site) -> Call:
    """Emit a pointwise convolution of eight input channels, with the inputs of two pixels in a vector.

    The weights of two output channels stay in registers for all pixels.
    """
    shape, table = spec.shape, RequantizationTable(spec, 2)
    packed = np.stack([np.pad(spec.rows, [(0, 0), (0, 8)]), np.pad(spec.rows, [(0, 0), (8, 0)])], 1).reshape(-1)
    codes = table.codes.values()
    frame = EightFrame(table_bytes=table.data.nbytes, y_step_bytes=4 * shape.out_channels, **codes)  # type: ignore[arg-type]
    pixels = Pixels(out_channels=shape.out_channels, pixels=shape.batch * shape.out_height * shape.out_width)
    return call(site, packed, table, [frame, pixels], [])


def is_3x3_in_vectors(spec: ConvSpec) -> bool:
    """Require 3 x 3 windows, input channels by 16, output channels by two, and output rows of 4 pixels or more.

    Return whether the layer meets this condition of a kernel: input channels are a multiple of 16, output channels
    even. A horizontal stride of at most 2 is required, too, and few enough channels for the immediate offsets of loads.
    """
    shape = spec.shape
    window = (shape.kernel_height, shape.kernel_width, shape.dilation_width) == (3, 3, 1) and shape.stride_width <= 2
    columns = 3 * shape.stride_width + 3
    reachable = shape.in_channels % VECTOR == 0 and columns * shape.in_channels - VECTOR <= MAX_WORD_OFFSET
    return shape.groups == 1 and window and reachable and shape.out_channels % 2 == 0 and shape.out_width >= 4


class ColumnsFrame(StackFrame):
    """Parameters of the loop that computes four pixels by two channels, in the order in which assembly code reads them.

    The table holds the biases and multipliers of all output channels.
    """

    y_zero_point: Annotated[Trained, "zero point of y"]
    table_bytes: Annotated[int, "bytes of the table"]
    x_step_bytes: Annotated[int, "bytes of x from four pixels to the next four"]
    y_step_bytes: Annotated[int, "bytes of y from four pixels to the next four"]
    kernel_row_stride_bytes: Annotated[int, "bytes of x from row to row of the window"]
    left_shift: Annotated[Trained, "left shift of sums before the product"]
    low: Annotated[Trained, "lowest quantized value of y"]
    high: Annotated[Trained, "highest quantized value of y"]


class ColumnsOptions(Options):
    """Template options of 3×3 convolutions that compute four pixels by two channels.

    A pixel of x has a multiple of 16 channels, and so consists of `chunks` vectors. Nine-bit weights (`nine_bits`) are
    stored as int8 values and an offset per output channel.
    """

    chunks: Annotated[int, "vectors of a pixel of x"]
    stride: Annotated[int, "pixels from window to window: 1 or 2"]
    unrolled_rows: Annotated[bool, "whether the loop over the rows of the window is unrolled"]
    nine_bits: Annotated[bool, "whether weights have nine bits (stored as int8 less a common part of the channel)"]


def emit_columns(spec: ConvSpec, site: Site) -> Call:
    """Emit a 3×3 convolution that computes four adjacent pixels by two output channels at a time.

    Loops: rows of y, groups of four pixels, pairs of channels, rows of the window (unrolled if a pixel is one vector),
    columns. A column of inputs is loaded once and multiplied with the taps of all windows that contain it. Weights are
    packed as [pair of channels][row][vector][column][2][16].
    """
    shape, strip, table = spec.shape, strip_of(spec.shape), RequantizationTable(spec, 2, nine_bits=has_nine_bits(spec))
    chunks, codes = shape.in_channels // VECTOR, table.codes.values()
    frame = ColumnsFrame(
        table_bytes=table.data.nbytes,
        x_step_bytes=4 * shape.stride_width * shape.in_channels,
        y_step_bytes=4 * shape.out_channels,
        kernel_row_stride_bytes=shape.dilation_height * strip.strip_row_stride,
        **codes,  # type: ignore[arg-type]
    )
    pairs = spec.int8_rows.reshape(shape.out_channels // 2, 2, 3, 3, chunks, VECTOR)
    packed = np.ascontiguousarray(pairs.transpose(0, 2, 4, 3, 1, 5)).reshape(-1)
    return call(
        site,
        packed,
        table,
        [frame, padding(spec), shape.geometry, strip],
        [
            ColumnsOptions(
                chunks=chunks, stride=shape.stride_width, unrolled_rows=chunks == 1, nine_bits=has_nine_bits(spec)
            )
        ],
        working=("strip", strip.strip_rows * strip.strip_row_stride + VECTOR),
        orders=[rows(shape)],
    )
