# SPDX-License-Identifier: Apache-2.0
"""Kernels of depthwise convolutions on CPUs without Helium.

The DSP kernels cut the input into strips of a few adjacent *lines*, which they traverse along the *points* of a line.
Either lines are rows of the image and points the pixels of a row, or lines are columns and points the pixels of a
column. Four channels of a strip are widened to pairs of 16 bits, which SMLAD multiplies two at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from mcugen.hir.types import Array, DType
from mcugen.kernels.common.conv_shape import ConvGeometry, ConvShape
from mcugen.kernels.common.loop_options import FloatLoops, Loops
from mcugen.kernels.common.reading_order import lanes, rows, windows
from mcugen.kernels.common.specs import ConvSpec
from mcugen.kernels.common.weighted_layers import (
    CodeLimits,
    float_tensors,
    four_bits,
    int8_tensors,
    int8_weights,
    int16_tensors,
    nibbles,
    of_four_bits,
    pack_adjacent_nibbles,
)
from mcugen.kernels.portable.weighted import Ring, depthwise, is_depthwise, reads_in_place, ring_of, ring_size
from mcugen.lir.kernel import Call, Kernel, Options, Params, Role, Site, Trained, reads, scratch, writes
from mcugen.lir.program import Buffer, Gathered

WORD = 4
"""Number of int8 channels in a 32-bit word, which are loaded at once."""

SHORT_SUM = 2**19 - 2**8
"""Exclusive bound of the magnitude of accumulators that are requantized by 32-bit products: products with 12-bit pieces
of the multiplier then fit 32 bits, carries included."""


@dataclass(frozen=True)
class ConvAxis:
    """Geometry of a convolution along one spatial axis.

    A position along the axis is a row of the image (vertical axis) or a pixel of a row (horizontal axis).

    Attributes:
        size: Size of the input along the axis, in positions.
        out: Size of the output along the axis, in positions.
        pad: Number of positions of padding before the input.
        step: Distance in elements between adjacent positions of the input in memory.
        out_step: Distance in elements between adjacent positions of the output in memory.
        taps: Number of taps of the window along the axis.
        stride: Stride of the window along the axis, in positions.
        dilation: Positions from tap to tap; 1 means adjacent.
    """

    size: int
    out: int
    pad: int
    step: int
    out_step: int
    taps: int
    stride: int
    dilation: int

    @property
    def extent(self) -> int:
        """Return the number of positions from the first tap of all windows to the last one, padding included."""
        return (self.out - 1) * self.stride + (self.taps - 1) * self.dilation + 1


@dataclass(frozen=True)
class Strips:
    """A division of a 3×3 depthwise convolution into strips, each a few adjacent lines of the image.

    Lines are rows and points are the pixels of a row, or lines are columns and points the pixels of a column. A kernel
    copies some channels of a strip to a strip buffer in scratch memory, and computes one or two output lines from it.

    Attributes:
        lines: Geometry of the axis across the lines: from strip to strip; vertical if lines are rows.
        points: Geometry of the axis along the lines, over which each strip extends from end to end of the image.
        columns: Whether lines are columns of the image, so that points run along its height.
    """

    lines: ConvAxis
    points: ConvAxis
    columns: bool

    @property
    def stride(self) -> int:
        """Return the stride of the windows, which must be the same along both axes."""
        return self.lines.stride

    def instructions(self) -> float:
        """Estimate the instructions per channel and image if the layer is computed by these strips, for 3×3 windows.

        A strip is a few adjacent lines (rows or columns of the image). With stride 1, the kernel computes two pixels of
        two output lines at a time; with stride 2, and for the last of an odd number of lines, two pixels of one line.
        """
        blocks = self.points.out / 2
        pairs, odd = divmod(self.lines.out, 2) if self.stride == 1 else (0, self.lines.out)
        gathering = (5.0 if self.stride == 1 else 3.5) * self.points.size
        return pairs * (25 + 46 * blocks) + odd * (25 + 26 * blocks) + (pairs + odd) * gathering

    @property
    def strip_words(self) -> int:
        """Return the size, in 32-bit words, of the scratch buffer that holds four channels of a strip.

        A strip is the adjacent input rows or columns from which one or two output lines are computed. With stride 2,
        the buffer is larger by one word per strip, because each strip begins one word further.
        """
        return 10 * self.points.extent if self.stride == 1 else 8 * self.points.extent + self.lines.out

    def may_overwrite_input(self) -> bool:
        """Return whether the output y may occupy the same memory as the input x.

        This is so if no output of a strip (a few adjacent rows or columns) is stored over an input that a later strip
        reads.
        """
        return may_overwrite_input_of(self, 2 // self.stride, 4, 2)


def may_overwrite_input_of(tiling: Strips, at_once: int, window: int, step: int) -> bool:
    """Return whether y may occupy the memory of x: no output is stored over an input that is still to be read.

    Lines are rows or columns of the image; a strip is the adjacent input lines from which `at_once` output lines are
    computed.

    Args:
        tiling: How the layer is divided into strips.
        at_once: Output lines that are computed from a strip.
        window: Input lines that the first strip reads, padding included.
        step: Additional input lines that each later strip reads.
    """
    lines, points = tiling.lines, tiling.points
    if tiling.columns:
        same = (lines.size, points.size) == (lines.out, points.out)
        return same and step == at_once and lines.pad <= window - at_once
    written = [min(k, lines.out) for k in range(at_once, lines.out + at_once, at_once)]
    read = [min(step * k + window - lines.pad, lines.size) for k in range(len(written))]
    return all(r * points.size >= w * points.out for r, w in zip(read, written, strict=True))


def axes(shape: ConvShape) -> tuple[ConvAxis, ConvAxis]:
    """Return the geometry of a convolution along its two spatial axes, (vertical, horizontal)."""
    s, row, out_row = shape, shape.in_width * shape.pixel, shape.out_width * shape.pixel
    return (
        ConvAxis(
            s.in_height, s.out_height, s.padding_top, row, out_row, s.kernel_height, s.stride_height, s.dilation_height
        ),
        ConvAxis(
            s.in_width, s.out_width, s.padding_left, s.pixel, s.pixel, s.kernel_width, s.stride_width, s.dilation_width
        ),
    )


MAX_SHARD_SLOWDOWN = 1.25
"""Largest slowdown (ratio of instructions) for which a tiling into shorter strips is chosen, for a layer whose channels
are divided between two cores: the strip buffers of both cores are then small."""


def choose_strips(shape: ConvShape) -> Strips:
    """Choose whether a 3×3 depthwise layer is computed by strips of rows or of columns of the image.

    A strip is a few adjacent rows or columns, from which one or two output lines are computed. The division with fewer
    instructions is returned, among those whose output lines have several pixels. If the layer covers only some channels
    of a pixel, as in one core's part of a divided layer, the division with the shortest lines is returned if it has at
    most MAX_SHARD_SLOWDOWN times as many instructions, because its buffer is smallest.

    Args:
        shape: Geometry of the convolution.
    """
    tilings = _ways_to_cut(shape)
    fastest = min(tilings, key=Strips.instructions)
    if shape.pixel_channels is None:
        return fastest
    max_instructions = MAX_SHARD_SLOWDOWN * fastest.instructions()
    return min(
        (tiling for tiling in tilings if tiling.instructions() <= max_instructions),
        key=lambda tiling: tiling.points.extent,
    )


def _ways_to_cut(shape: ConvShape) -> list[Strips]:
    height, width = axes(shape)
    return [tiling for tiling in (Strips(height, width, False), Strips(width, height, True)) if tiling.points.out > 1]


def shard_slowdown(spec: ConvSpec) -> float:
    """Return the factor by which a depthwise 3×3 layer is slower than by its fastest division into strips.

    A strip is a few adjacent rows or columns of the image. The factor exceeds 1 only for one core's part of a layer
    that is divided by channels, for which choose_strips prefers small buffers. The cost model multiplies by the factor.
    """
    tilings = _ways_to_cut(spec.shape)
    return choose_strips(spec.shape).instructions() / min(tiling.instructions() for tiling in tilings)


# --------------------------------------------------------------------------------------------------- conditions


def is_3x3(spec: ConvSpec) -> bool:
    """Require 3 x 3 windows without dilation, and padding below 3.

    Return whether the convolution has 3×3 windows, no dilation, and at most two rows and pixels of padding before x.
    """
    shape = spec.shape
    return (
        shape.kernel_height == shape.kernel_width == 3
        and shape.dilation_height == shape.dilation_width == 1
        and shape.padding_top < 3 > shape.padding_left
    )


def stride_one_or_two(spec: ConvSpec) -> bool:
    """Require the same stride of 1 or 2 along both axes, and more than one output pixel.

    Return whether both strides of the convolution are 1, or both are 2, and y has more than one row or column.
    """
    shape = spec.shape
    return shape.stride_height == shape.stride_width < 3 and max(shape.out_height, shape.out_width) > 1


def has_four_channels(spec: ConvSpec) -> bool:
    """Require four channels or more.

    Return whether pixels of the input have four channels or more, a condition of kernels (Kernel.when).
    """
    return spec.shape.in_channels >= WORD


def fits_scaled_high_word(spec: ConvSpec) -> bool:
    """Require results in the high word of a 64-bit product, with weights times a power of two that fit 16 bits.

    Return whether there is a power of two by which weights and biases can be multiplied, such that the high word of
    accumulator · multiplier is the result without a further shift. The multiplied weights must fit 16 bits, and the
    accumulators 32 bits.
    """
    shift = _scaled(spec)
    if shift is None:
        return False
    sums = spec.largest_sum * 2**shift
    return bool(sums < 2**31 and np.abs(spec.weights.astype(np.int64)).max(initial=0) << shift < 2**15)


def fits_high_word(spec: ConvSpec) -> bool:
    """Require 32-bit accumulators, and results from the high word of a 64-bit product.

    Return whether the layer is requantized, its accumulators fit 32 bits, and a kernel can compute results from the
    high word of accumulator · multiplier in one of two ways. Either the high word is the result after weights and
    biases are multiplied by a power of two (fits_scaled_high_word), or it becomes the result by an offset and a right
    shift.
    """
    if not _is_short(spec):
        return False
    return (
        fits_scaled_high_word(spec) if spec.high_word.shift <= 32 else abs(high_word_offset(spec, _least(spec))) < 2**31
    )


def _is_short(spec: ConvSpec) -> bool:
    """Return whether quantized results are computed from 32-bit sums."""
    return spec.is_requantized and spec.acc is DType.INT32


def high_word_offset(spec: ConvSpec, lowest: int = 0) -> int:
    """Return the offset that a kernel adds to the high word of accumulator · multiplier before a right shift.

    The offset is the zero point of y, shifted left by as many bits as the right shift, plus the rounding term one half
    (0 if there is no shift).

    Args:
        spec: The layer.
        lowest: A lower limit that the kernel adds last, and that is therefore subtracted here.
    """
    zero = spec.y.q.zero_point - lowest
    more = max(spec.high_word.shift - 32, 0)
    return (zero << more) + (1 << more >> 1)


def biases_and_multipliers(spec: ConvSpec, site: Site) -> Buffer:
    """Return the constant operand `table` of depthwise kernels: bias and multiplier by channel, int32 [channels, 2].

    The zero point of x is folded into the biases.
    """
    return site.const("table", np.stack([spec.folded_bias.astype(np.int32), spec.multipliers], 1))


def _least(spec: ConvSpec) -> int:
    """Return the lowest quantized result if results are clamped, else 0."""
    return spec.limits[0] if spec.is_clamped else 0


def _scaled(spec: ConvSpec) -> int | None:
    """Return the left shift of accumulators after which the high word of a product is the result; None if none is."""
    if not _is_short(spec) or spec.high_word.shift > 32:
        return None
    return 32 - spec.high_word.shift


def has_int8_results(spec: ConvSpec) -> bool:
    """Require int8 results.

    Return whether the output of the layer is int8, a condition of kernels (Kernel.when).
    """
    return spec.y.dtype is DType.INT8


# ------------------------------------------------------------------------------------------------- declarations


class StripWalk(Params):
    """Kernel parameters of a depthwise layer that is computed strip by strip: sizes and strides of x and y.

    A strip is a few adjacent lines of the image. Lines are its rows, and points are the pixels of a row; or lines are
    its columns, and points are the pixels of a column.
    """

    batch: Annotated[int, "images"]
    channels: Annotated[int, "elements of a pixel"]
    x_image_size: Annotated[int, "elements of an image of x"]
    y_image_size: Annotated[int, "elements of an image of y"]
    in_lines: Annotated[int, "lines of x"]
    out_lines: Annotated[int, "lines of y"]
    padding_lines: Annotated[int, "lines of padding before x"]
    x_line_stride: Annotated[int, "elements from line to line of x"]
    y_line_stride: Annotated[int, "elements from line to line of y"]
    strip_points: Annotated[int, "points of a line that the windows of a strip cover, including padding"]
    in_points: Annotated[int, "points of a line of x that are read"]
    out_points: Annotated[int, "points of a line of y"]
    padding_points: Annotated[int, "points of padding before a line of x"]
    x_point_stride: Annotated[int, "elements from point to point of x"]
    y_point_stride: Annotated[int, "elements from point to point of y"]
    x_zero_point: Annotated[Trained | None, "zero point of x, the value of padding; 0 for int16"] = None


class UpperWordParams(Params):
    """Kernel parameters that requantize an accumulator by the upper word of its 64-bit product with the multiplier.

    The result is (upper word + upper_word_offset) >> right_shift, with no shift if right_shift is None.
    """

    upper_word_offset: Annotated[
        Trained,
        "added to the upper word of a product: zero point of y (less a low limit that is added last), and rounding",
    ]
    right_shift: Annotated[Trained | None, "right shift after the addition, if there is one"] = None


class OutputZeroPoint(Params):
    """Kernel parameter with the zero point of the output."""

    y_zero_point: Annotated[Trained, "zero point of y"]


class InputOutputZeros(OutputZeroPoint):
    """Kernel parameters with the zero points of input and output."""

    x_zero_point: Annotated[Trained, "zero point of x, the value of padding"]


class StrideOptions(Options):
    """Template options of kernels for 3×3 windows: stride, and clamp of results."""

    stride: Annotated[int, "pixels from window to window: 1 or 2"]
    clamp: Annotated[bool, "whether results are limited further than by their type"]


class GainOption(Options):
    """Template option of kernels that unpack the weights of a 3×3 depthwise layer at run time: the weights' left shift.

    The shift is chosen such that the high word of the 64-bit product of accumulator and multiplier is the result.
    """

    gain: Annotated[int, "left shift of weights, so that the high word of a product is the result"]


class ThreePixelOptions(Options):
    """Template options of depthwise 3×3 kernels that compute three pixels of a row together.

    `has_short_sums`: Whether accumulators are so small that the kernel can requantize them by multiplications with
    32-bit results, instead of 64-bit results. `bits`: Bits of a packed weight, 8 or 10.
    """

    has_short_sums: Annotated[bool, "whether accumulators are so small that products of 32 bits requantize them"]
    bits: Annotated[int, "bits of a packed weight: 8, or 10 if some weights do not fit a byte"]


class TapOptions(Options):
    """Template options of depthwise kernels that compute windows of any size from strips of adjacent lines.

    Lines are rows (or columns) of the image, points are the pixels of a line. Two adjacent lines of a strip are held as
    pairs of 16-bit values, which are multiplied by pairs of taps at a time (SMLAD). If the image is a single row, it is
    folded: adjacent pixels take the place of the two lines of a pair.
    """

    x_t: Annotated[str, "C type of the input"]
    w_t: Annotated[str, "C type of the weights"]
    y_t: Annotated[str, "C type of the output"]
    post_shifted: Annotated[bool, "whether the high words of products are shifted right"]
    clamp: Annotated[bool, "whether results are limited further than by their type"]
    gain: Annotated[int, "left shift of weights and biases, so that the high word of a product is the result"]
    has_point_loop: Annotated[bool, "whether there is a loop over the points of a window; else it is unrolled"]
    folded: Annotated[bool, "whether a row is folded by two: adjacent pixels are lines, pairs of pixels are points"]
    stride: Annotated[int, "points from window to window"]
    dilation: Annotated[int, "points from tap to tap"]
    line_stride: Annotated[int, "lines from window to window"]
    line_dilation: Annotated[int, "lines from tap to tap"]
    reloads_pairs: Annotated[bool, "whether a strip shares no pairs of lines with the strip before"]
    single_strip: Annotated[bool, "whether the layer is a single strip"]
    pairs: Annotated[int, "pairs of input lines that a strip reads"]
    tap_pairs: Annotated[int, "pairs of taps (of two lines) at a point of the window"]
    lines: Annotated[int, "lines of y that are computed together: 1 or 2"]
    points: Annotated[int, "points of y that are computed together: 1 or 2"]
    k_lines: Annotated[int, "lines of the window"]
    k_points: Annotated[int, "points of a line of the window"]


class HighLimit(Params):
    """Kernel parameter of float depthwise layers: the upper limit of results, or None if there is none.

    The lower limit is no parameter: it is 0 or absent (LaneOptions.relu).
    """

    high: Annotated[float | None, "highest result, if there is an upper limit"] = None


class LaneOptions(Options):
    """Template options of float depthwise kernels that compute 4 or 8 adjacent channels of a pixel together.

    They describe the window, the limits of results, and which loops over the taps are unrolled.
    """

    lanes: Annotated[int, "channels that are computed together: 4 or 8"]
    kernel_height: Annotated[int, "rows of the window"]
    kernel_width: Annotated[int, "columns of the window"]
    relu: Annotated[bool, "whether results are at least 0"]
    high: Annotated[bool, "whether results have an upper limit"]
    written_out: Annotated[bool, "whether the loop over all taps is unrolled; else only that over the taps of a row"]


# --------------------------------------------------------------------------------------------------- emission


def pair_taps(taps: Array, stride: int) -> Array:
    """Return 3×3 filters as pairs of taps, [channels, 5, 2], in the order in which SMLAD multiplies two taps at a time.

    A line is a row or a column of the filter, a point is a tap of a line. Pairs 0 to 2 join two lines: the taps of both
    at points 0, 1 and 2. Pairs 3 and 4 are the taps of the remaining line: points 0 and 1, and point 2 with a zero. The
    remaining line is line 1 with stride 1. It is line 2 with stride 2, because lines 0 and 1 of the next window then
    are a pair of input lines too.

    Args:
        taps: Weights, [channels, line, point].
        stride: Stride of the windows, 1 or 2.
    """
    last, alone = (2, 1) if stride == 1 else (1, 2)
    outer = np.stack([taps[:, 0], taps[:, last]], -1)
    inner = np.pad(taps[:, alone], ((0, 0), (0, 1))).reshape(-1, 2, 2)
    return np.concatenate([outer, inner], 1)


def pack_pairs(pairs: Array, bias: Array, multiplier: Array) -> Array:
    """Pack taps, bias and multiplier of each channel in the 3×3 kernel's reading order, as int32 [channels, 7].

        pair 0 | pair 1 | pair 2 | pair 3 | pair 4 | bias | multiplier      (first tap of a pair in the lower half)

    Args:
        pairs: 16-bit taps in pairs, [channels, 5, 2] (pair_taps).
        bias: Biases by channel.
        multiplier: Requantization multipliers by channel.
    """
    words = (pairs[..., 0] & 0xFFFF) | (pairs[..., 1] << 16)
    return _words(np.concatenate([words, _constants(bias, multiplier)], 1))


def _constants(bias: Array, multiplier: Array) -> Array:
    """Return (bias, multiplier) by channel, as int64."""
    return np.stack([bias.astype(np.int64), multiplier.astype(np.int64)], 1)


def emit_strips(spec: ConvSpec, site: Site) -> Call:
    """Return the call of a kernel that computes a 3×3 depthwise convolution on strips of adjacent rows (or columns).

    Loops: images, blocks of four channels, strips of two output lines (stride 2: one), channels, pairs of pixels.
    Weights are 16-bit pairs, followed by the bias and multiplier of the channel (pack_pairs). Kernels that have a
    GainOption read int8 or 4-bit weights, and a separate table of biases and multipliers.
    """
    shape, tiling, scale = spec.shape, choose_strips(spec.shape), _scaled(spec)
    assert scale is not None
    taps = spec.weights.reshape(-1, 3, 3).astype(np.int64)
    turned = taps.transpose(0, 2, 1) if tiling.columns else taps
    bias, pairs = spec.folded_bias << scale, pair_taps(turned, tiling.stride)
    strip = site.scratch("strip", DType.INT32, tiling.strip_words)
    if GainOption in site.kernel.options:
        in_bytes = pairs.reshape(-1, 10)[:, :9].astype(np.int8)  # The tenth element is padding.
        stored = nibbles(pairs[..., 0], pairs[..., 1]) if four_bits in site.kernel.when else in_bytes
        operands = {
            "x": site.x,
            "w": site.const("weights", stored),
            "table": site.const("table", _words(_constants(bias, spec.multipliers))),
            "y": site.y,
            "strip": strip,
            "spread": site.scratch("spread", DType.INT32, 7 * WORD),
        }
    else:
        stream = pack_pairs(pairs << scale, bias, spec.multipliers)
        operands = {"x": site.x, "w": site.const("weights", stream), "y": site.y, "strip": strip}
    params = [
        strip_walk(spec, shape, tiling),
        CodeLimits.of(spec.limits),
        OutputZeroPoint(y_zero_point=spec.y.q.zero_point),
    ]
    options = [StrideOptions(stride=tiling.stride, clamp=spec.is_clamped), Loops.of(site), GainOption(gain=scale)]
    used = [option for option in options if type(option) in site.kernel.options]
    inplace = [("y", "x")] if tiling.may_overwrite_input() else []
    return site.call(operands, params, used, inplace=inplace, variant=f"stride{tiling.stride}", gathers=_gathered(spec))


def _gathered(spec: ConvSpec) -> Gathered:
    """Return the gather pattern: strips over the whole image read four channels at a time."""
    nbytes = spec.x.dtype.nbytes
    return Gathered(spec.shape.pixel * nbytes, WORD * nbytes)


def count_strips(spec: ConvSpec) -> int:
    """Count the strips of four channels that a depthwise 3×3 layer is divided into, for the cost model.

    A strip is the adjacent input rows (or columns) from which one or two output lines are computed. The cost model
    multiplies the count by a measured fixed cost per strip.
    """
    shape = spec.shape
    tiling = choose_strips(shape)
    return shape.batch * -(-shape.in_channels // WORD) * -(-tiling.lines.out * tiling.stride // 2)


def stride_variant(spec: ConvSpec) -> str:
    """Return the kernel's variant in the cost table, "stride1" or "stride2", after the stride of the windows.

    The variants differ in cost because a kernel computes two output lines together with stride 1, and one with stride
    2.
    """
    return f"stride{spec.shape.stride_height}"


def strip_walk(spec: ConvSpec, shape: ConvShape, tiling: Strips) -> StripWalk:
    """Return the kernel parameters of a depthwise layer that is computed strip by strip.

    A strip is a few adjacent rows or columns of the image.

    Args:
        spec: The layer.
        shape: Geometry that the kernel uses, perhaps with a row seen as a few rows (ConvShape.as_few_rows).
        tiling: How the layer is divided into strips.
    """
    lines, points = tiling.lines, tiling.points
    return StripWalk(
        batch=shape.batch,
        channels=shape.in_channels,
        x_image_size=shape.in_height * shape.in_width * shape.pixel,
        y_image_size=shape.out_height * shape.out_width * shape.pixel,
        in_lines=lines.size,
        out_lines=lines.out,
        padding_lines=lines.pad,
        x_line_stride=lines.step,
        y_line_stride=lines.out_step,
        strip_points=points.extent,
        in_points=min(points.size, points.extent - points.pad),
        out_points=points.out,
        padding_points=points.pad,
        x_point_stride=points.step,
        y_point_stride=points.out_step,
        x_zero_point=spec.x.q.zero_point if spec.x.dtype is DType.INT8 else None,
    )


@dataclass(frozen=True)
class TapStrips(Strips):
    """A division of a depthwise convolution with any window into strips, each a few adjacent lines of the image.

    Lines are rows or columns, points are the pixels of a line. The kernel holds the input lines of a strip in pairs:
    two values of 16 bits, one of each line, in a word, so that the instruction SMLAD multiplies two taps at a time. If
    the image is a single row, adjacent pixels take the place of the two lines.

    Attributes:
        is_folded: Whether the image is a single row: lines are adjacent pixels of the row, and points are pairs of
            pixels.
    """

    is_folded: bool = False

    @property
    def reloads_lines(self) -> bool:
        """Return whether successive strips share no pairs of input lines, so that each strip loads all its lines.

        A strip is the adjacent input lines (rows or columns) from which one or two output lines are computed.
        """
        return self.lines.stride > 2 or (self.lines.taps > 1 and self.lines.dilation > 1)

    @property
    def lines_per_strip(self) -> int:
        """Return the number of output lines, 1 or 2, that are computed from a strip of adjacent input lines.

        Lines are rows or columns of the image.
        """
        is_wide = self.lines.stride == 2 and (self.is_folded or self.tap_pairs > 6)
        return 1 if self.reloads_lines or is_wide or self.lines.out == 1 else 2

    @property
    def points_per_pass(self) -> int:
        """Return how many pixels of an output line, 1 or 2, an iteration of the inner loop computes together.

        Lines are rows or columns of the image. The result is 2 if the line has several pixels, and a strip of input
        lines gives one output line or is a single pair of input lines.
        """
        return (
            2
            if self.points.out > 1 and (self.lines_per_strip == 1 or (self.line_pairs == 1 and self.num_pairings == 2))
            else 1
        )

    @property
    def num_pairings(self) -> int:
        """Return in how many ways, 1 or 2, the taps of adjacent lines of the window are joined to pairs.

        Input lines (rows or columns) are held in fixed pairs, and two taps are multiplied by a pair at a time. The
        result is 2 if one output line needs a window that begins with the first line of a pair, and the next output
        line needs one that begins with the second.
        """
        return 2 if self.lines_per_strip == 2 and self.lines.stride == 1 else 1

    @property
    def tap_pairs(self) -> int:
        """Return the number of pairs of taps in one column of the window (one row, if lines are columns of the image).

        The kernel multiplies the two taps of a pair, which belong to adjacent lines, at a time.
        """
        return (self.lines.taps + (1 if self.lines.stride > 1 or self.reloads_lines or self.lines.out == 1 else 2)) // 2

    @property
    def line_pairs(self) -> int:
        """Return the number of pairs of adjacent input lines in a strip; a line is a row or a column of the image.

        A strip is the input from which one or two output lines are computed.
        """
        return self.tap_pairs + (self.lines_per_strip == 2 and self.num_pairings == 1)

    @property
    def strip_step_pairs(self) -> int:
        """Return how many pairs of input lines a strip begins after the previous strip.

        A strip is the adjacent input lines (rows or columns) from which one or two output lines are computed.
        """
        return self.lines_per_strip * self.lines.stride // 2 if self.num_pairings == 1 else 1

    @property
    def num_strips(self) -> int:
        """Return the number of strips of the image; each gives one or two output rows (or columns)."""
        return -(-self.lines.out // self.lines_per_strip)

    @property
    def is_single_strip(self) -> bool:
        """Return whether a single strip (adjacent rows or columns that are computed together) covers the whole image.

        The kernel then computes one channel after the other, so that the constants of all channels share one scratch
        buffer.
        """
        return self.num_strips == 1

    @property
    def channel_words(self) -> int:
        """Return the size of one channel's constants in scratch memory, in 32-bit words.

        They are the bias, the multiplier and the weights, which are widened to pairs of 16 bits.
        """
        return 4 + self.points.taps * self.tap_pairs * self.num_pairings

    @property
    def strip_words(self) -> int:
        """Return the size, in 32-bit words, of the scratch buffer that holds four channels of a strip.

        A strip is the adjacent input rows or columns from which one or two output lines are computed. If successive
        strips share lines, each begins some words further in the buffer; the size includes these words.
        """
        extent = self.points.extent + (self.points_per_pass - 1) * self.points.stride
        return 4 * self.line_pairs * extent + (
            0 if self.reloads_lines or self.is_single_strip else self.strip_step_pairs * self.num_strips
        )

    @property
    def is_looped(self) -> bool:
        """Return whether the kernel loops over the pixels of a line of the window, as unrolled code would be too long.

        A line is a row or a column of the window.
        """
        tap = 2 + 3 * self.tap_pairs * self.lines_per_strip * self.points_per_pass // 2
        return self.points.taps * tap > 100

    @property
    def fits(self) -> bool:
        """Return whether a kernel can compute the layer by these strips (a few adjacent rows or columns at a time).

        The offsets of load instructions must fit 12 bits, a strip may have at most 16 pairs of lines, and not all
        windows may lie in the padding.
        """
        inside = self.points.pad < self.points.extent * (2 if self.is_folded else 1)
        reach = 16 * self.line_pairs * (self.points.taps * self.points.dilation + 2 * self.points.stride)
        return inside and self.line_pairs <= 16 and reach < 4096 and 4 * self.channel_words < 4096

    def instructions(self) -> float:
        """Estimate the instructions per channel and image if the layer is computed by these strips.

        A strip is a few adjacent lines (rows or columns of the image). The estimate includes the instructions that
        widen weights and inputs to 16 bits.
        """
        taps, spread = self.lines.taps * self.points.taps, self.points.taps * self.tap_pairs * self.num_pairings
        gathered = (
            self.line_pairs * self.num_strips
            if self.reloads_lines
            else self.line_pairs + self.strip_step_pairs * (self.num_strips - 1)
        )
        points = self.points.size // 2 if self.is_folded else self.points.size
        gathering = gathered * (4 * points + 12) + self.points.extent * self.line_pairs
        blocks = -(-self.points.out // self.points_per_pass)
        return (
            30
            + 30 * self.is_single_strip
            + taps
            + 3 * spread
            + gathering
            + self.num_strips * (20 + blocks * self._block)
        )

    @property
    def _block(self) -> float:
        """Estimate the instructions of a block of outputs that are computed together."""
        sums, loads = self.lines_per_strip * self.points_per_pass, -(-self.tap_pairs // 4)
        if self.line_pairs == 1:
            column = 1 + self.points_per_pass + sums
        else:
            column = loads * (self.num_pairings + 2 * self.points_per_pass) + sums * self.tap_pairs
        return 10 + 3.5 * sums + self.points.taps * (column + 3 * self.is_looped)

    def may_overwrite_input(self) -> bool:
        """Return whether the output y may occupy the same memory as the input x.

        This is so if no output of a strip (a few adjacent rows or columns) is stored over an input that a later strip
        reads.
        """
        if self.is_folded:
            return self.points.size >= self.points.out
        return not self.reloads_lines and may_overwrite_input_of(
            self, self.lines_per_strip, 2 * self.line_pairs, 2 * self.strip_step_pairs
        )


def choose_tap_strips(shape: ConvShape) -> TapStrips | None:
    """Choose whether a depthwise layer with any window is computed by strips of rows or of columns of the image.

    A strip is a few adjacent rows or columns, from which one or two output lines are computed.

    Returns:
        The division into strips with fewer instructions; None if a kernel can use neither (TapStrips.fits).
    """
    height, width = axes(shape)
    tilings = [tiling for tiling in (TapStrips(height, width, False), TapStrips(width, height, True)) if tiling.fits]
    return min(tilings, key=TapStrips.instructions, default=None)


def fold_row(shape: ConvShape) -> TapStrips | None:
    """Return the division into strips of a depthwise layer on a single row of pixels, or None.

    Strips are usually adjacent rows or columns; here, two adjacent pixels of the row take the place of two rows, so
    that the instruction SMLAD multiplies two adjacent taps of the row at a time.

    Returns:
        The division; None if x or the window has several rows, the stride exceeds 2, taps are dilated, or a kernel
        cannot use the division (TapStrips.fits).
    """
    height, row = axes(shape)
    if height.size * height.taps != 1 or row.stride > 2 or row.dilation > 1:
        return None
    at_once = 2 // row.stride
    taps = (row.taps + at_once) // 2
    lines = ConvAxis(row.size, at_once, 0, row.step, row.out_step, 1, row.stride, 1)
    points = ConvAxis(row.size, -(-row.out // at_once), row.pad, row.step, at_once * row.out_step, taps, 1, 1)
    tiling = TapStrips(lines, points, False, True)
    return tiling if tiling.fits else None


def count_strip_instructions(spec: ConvSpec) -> int:
    """Estimate the instructions per inference of a depthwise layer that is computed by strips, for the cost model.

    A strip is a few adjacent rows or columns of the image; the window has any size.
    """
    shape = spec.shape.as_few_rows()
    tiling = fold_row(shape) or choose_tap_strips(shape)
    assert tiling is not None
    return round(shape.batch * shape.in_channels * tiling.instructions())


def is_not_3x3(spec: ConvSpec) -> bool:
    """Require windows other than those of depthwise_s8_dsp: 3 x 3 with stride 1 or 2.

    Return whether the kernel depthwise_s8_dsp cannot compute the layer. That kernel needs int8 input and output, 3×3
    windows without dilation, stride 1 or 2, and results from the high word of a product (fits_scaled_high_word).
    """
    return not all(
        holds(spec) for holds in (int8_tensors, is_3x3, stride_one_or_two, has_int8_results, fits_scaled_high_word)
    )


def fits_tap_strips(spec: ConvSpec) -> bool:
    """Require windows so small that a strip has at most 16 pairs of lines, and load offsets fit 12 bits.

    Return whether a kernel can compute the layer by strips of a few adjacent rows or columns of the image, whose
    offsets from the start of the strip fit the load instructions (TapStrips.fits).
    """
    shape = spec.shape.as_few_rows()
    return (fold_row(shape) or choose_tap_strips(shape)) is not None


def emit_tap_strips(spec: ConvSpec, site: Site) -> Call:
    """Return the call of a kernel that computes a depthwise convolution with any window on strips of adjacent lines.

    Lines are rows (or columns) of the image. Loops: images, blocks of four channels, strips of one or two output lines,
    channels, one or two pixels, taps. The weights of a channel are stored column by column of the window (row by row,
    if lines are columns).
    """
    shape = spec.shape.as_few_rows()
    row, more = fold_row(shape), spec.high_word.shift - 32
    tiling = row or choose_tap_strips(shape)
    assert tiling is not None
    walk = strip_walk(spec, shape, tiling)
    if row:  # In a folded row, the walk counts single points.
        points = min(shape.in_width, 2 * tiling.points.extent - shape.padding_left)
        walk = replace(walk, in_points=points, out_points=shape.out_width)
    taps = spec.weights.reshape(-1, shape.kernel_height, shape.kernel_width)
    weights = taps.transpose(0, 2, 1) if not tiling.columns else taps
    if four_bits in site.kernel.when:
        weights = pack_adjacent_nibbles(weights.reshape(-1, shape.kernel_width if row else tiling.lines.taps))
    elif spec.w.dtype is not DType.INT8:
        weights = weights.astype(np.int16)
    operands = {
        "x": site.x,
        "w": site.const("weights", weights),
        "table": biases_and_multipliers(spec, site),
        "y": site.y,
        "strip": site.scratch("strip", DType.INT32, tiling.strip_words),
        "spread": site.scratch("spread", DType.INT32, tiling.channel_words * (1 if tiling.is_single_strip else WORD)),
    }
    options = TapOptions(
        x_t=spec.x.dtype.c,
        w_t=DType.of(weights).c,
        y_t=spec.y.dtype.c,
        post_shifted=more > 0,
        clamp=spec.is_clamped,
        gain=max(-more, 0),
        has_point_loop=tiling.is_looped,
        folded=row is not None,
        stride=tiling.points.stride,
        dilation=tiling.points.dilation,
        line_stride=tiling.lines.stride,
        line_dilation=tiling.lines.dilation if tiling.lines.taps > 1 else 1,
        reloads_pairs=tiling.reloads_lines,
        single_strip=tiling.is_single_strip,
        pairs=tiling.line_pairs,
        tap_pairs=tiling.tap_pairs,
        lines=tiling.lines_per_strip,
        points=tiling.points_per_pass,
        k_lines=shape.kernel_width if row else tiling.lines.taps,
        k_points=tiling.points.taps,
    )
    ending = UpperWordParams(
        upper_word_offset=high_word_offset(spec, _least(spec)), right_shift=more if more > 0 else None
    )
    inplace = [("y", "x")] if spec.x.dtype is spec.y.dtype and tiling.may_overwrite_input() else []
    variant = f"row{shape.kernel_width}" if row else f"{tiling.lines.taps}x{tiling.points.taps}"
    params = [walk, CodeLimits.of(spec.limits), ending]
    return site.call(operands, params, [options], inplace=inplace, variant=variant, gathers=_gathered(spec))


def _words(packed: Array) -> Array:
    """Return the low 32 bits of each element, as int32."""
    return (packed & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def has_rows_of_three(spec: ConvSpec) -> bool:
    """Require 3 x 3 windows, rows of three outputs or more, and results from the high word without a shift.

    Return whether all of these hold: the windows are 3×3; their horizontal stride is 1 or 2, and their horizontal
    dilation 1; output rows have three pixels or more; and the layer is requantized such that the high word of a 32-bit
    accumulator times the multiplier is the result, without a further shift.
    """
    shape = spec.shape
    near = shape.dilation_width == 1 and shape.stride_width < 3
    return shape.kernel_height == shape.kernel_width == 3 and near and shape.out_width > 2 and _scaled(spec) == 0


def has_ten_bit_weights(spec: ConvSpec) -> bool:
    """Require weights from −512 to 511 (10 bits).

    Return whether all weights of the layer are from −512 to 511, a condition of kernels (Kernel.when).
    """
    return bool(spec.weights.min(initial=0) >= -512 and spec.weights.max(initial=0) < 512)


def pack_rows_of_three(weights: Array, bias: Array, multiplier: Array, bits: int) -> Array:
    """Pack 3×3 weights with biases and multipliers as int32 [channels, 5]: a row of taps per word, bias, multiplier.

    A row is in the upper 3 · `bits` bits of its word. Bit 0 of the last channel's first word marks the end.

        bits 31 …  w[0][2] | w[0][1] | w[0][0] | 0 … end      word 0
        bits 31 …  w[1][2] | w[1][1] | w[1][0] | 0            word 1, and word 2 likewise; then bias and multiplier

    Args:
        weights: Weights, [channels, 3, 3].
        bias: Biases by channel.
        multiplier: Requantization multipliers by channel.
        bits: Bits of a packed weight.
    """
    codes = weights.astype(np.int64) & (1 << bits) - 1
    words = (codes << 32 - bits * (3 - np.arange(3))).sum(-1)
    words[-1, 0] |= 1
    packed = np.concatenate([words, bias.astype(np.int64)[:, None], multiplier.astype(np.int64)[:, None]], 1)
    return _words(packed)


def shrink_unused_constants(weights: Array, bias: Array, multiplier: Array) -> tuple[Array, Array]:
    """Return biases and multipliers that are small, but give the same results, in channels whose weights are all 0.

    If the biases of all channels are small, accumulators can be requantized by 32-bit products, which is faster
    (SHORT_SUM).

    Args:
        weights: Weights, [channels, ...].
        bias: Biases by channel.
        multiplier: Requantization multipliers by channel.

    Returns:
        Biases and multipliers, int64 by channel.
    """
    dead = ~weights.reshape(len(weights), -1).any(1)
    result = (bias.astype(np.int64) * multiplier.astype(np.int64) + 2**31) >> 32
    few = np.clip(result, -(2**10), 2**10)  # Larger results saturate just the same.
    return np.where(dead, few * 4, bias.astype(np.int64)), np.where(dead, 2**30, multiplier.astype(np.int64))


def emit_rows_of_three(spec: ConvSpec, site: Site) -> Call:
    """Return the call of a kernel that computes a 3×3 depthwise convolution, three pixels of a channel at a time.

    If windows extend beyond x, its rows are copied to a ring buffer with padding. Loops: images, rows, blocks of three
    pixels, channels; the nine weights of a channel are loaded once per block.
    """
    shape, direct, weights = spec.shape, reads_in_place(spec.shape), spec.weights.reshape(-1, 3, 3)
    bias, multiplier = shrink_unused_constants(weights, spec.folded_bias, spec.multipliers)
    sums = np.abs(weights.astype(np.int64)).sum((1, 2)) * 128 + np.abs(bias)
    bits = 8 if spec.w.dtype is DType.INT8 else 10
    threes = np.minimum(np.arange(0, shape.out_width, 3), shape.out_width - 3)[:, None] + np.arange(3)
    pixels = np.arange(shape.out_height)[:, None, None] * shape.out_width + threes
    order = windows(shape, pixels.reshape(-1, 3)) if direct else rows(shape)
    operands = {
        "x": site.x,
        "w": site.const("weights", pack_rows_of_three(weights, bias, multiplier, bits)),
        "y": site.y,
        "rows": site.scratch("rows", DType.INT8, ring_size(shape, direct)),
    }
    zeros = InputOutputZeros(y_zero_point=spec.y.q.zero_point, x_zero_point=spec.x.q.zero_point)
    params = [shape.geometry, ring_of(shape, direct), zeros, CodeLimits.of(spec.limits)]
    options = [
        StrideOptions(stride=shape.stride_width, clamp=spec.is_clamped),
        ThreePixelOptions(has_short_sums=bool(sums.max(initial=0) < SHORT_SUM), bits=bits),
    ]
    return site.call(operands, params, options, overlaps=spec.overlaps(order), variant=f"stride{shape.stride_width}")


# --------------------------------------------------------------------------------------------------- float


def _lane_shape(spec: ConvSpec) -> ConvShape:
    """Return a column of up to 9 taps as a row, whose taps are unrolled; other geometries unchanged."""
    shape = spec.shape
    return shape.as_row() if shape.as_row().kernel_width <= 9 else shape


def has_short_rows(spec: ConvSpec) -> bool:
    """Require at most 9 taps in a row and 121 in all, four channels or more, and no lower limit other than 0.

    Return whether the layer has four channels or more, windows of at most 9 taps in a row and 121 in all, and results
    that have the lower limit 0 or no limits. A window of one column, of at most 9 taps, on images of one column counts
    as a row.
    """
    shape, (low, high) = _lane_shape(spec), spec.float_limits
    simple = low == 0 or (math.isinf(low) and math.isinf(high))
    return (
        shape.kernel_width <= 9
        and shape.kernel_height * shape.kernel_width <= 121
        and shape.in_channels >= WORD
        and simple
    )


def blocks_of(channels: int, lanes: int) -> list[slice]:
    """Divide channels 0 to `channels` − 1 into slices of `lanes` channels; the last one may overlap the one before it.

    Args:
        channels: Number of channels, at least `lanes`.
        lanes: Number of channels that a kernel computes together.
    """
    starts = [min(first, channels - lanes) for first in range(0, channels, lanes)]
    return [slice(first, first + lanes) for first in starts]


def emit_lanes(spec: ConvSpec, site: Site) -> Call:
    """Return the call of a kernel that computes a float depthwise convolution, eight (or four) channels at a time.

    If windows extend beyond x, its rows are copied to a ring buffer with padding. Weights are packed as [block][bias,
    taps][lanes], where a block is the eight (or four) channels that are computed together.
    """
    shape, (low, high) = _lane_shape(spec), spec.float_limits
    count = 2 * WORD if shape.in_channels >= 2 * WORD else WORD
    taps = np.concatenate([spec.float_bias[None], spec.rows.T])
    packed = np.concatenate([taps[:, block].reshape(-1) for block in blocks_of(shape.in_channels, count)])
    starts = np.asarray([block.start for block in blocks_of(shape.in_channels, count)])
    order = lanes(shape, starts, count) if shape.is_inside else rows(shape)
    operands = {
        "x": site.x,
        "w": site.const("weights", packed, len(taps) * count),
        "y": site.y,
        "rows": site.scratch("rows", DType.FLOAT32, ring_size(shape, shape.is_inside)),
    }
    limit = HighLimit(high=None if math.isinf(high) else high)
    options = LaneOptions(
        lanes=count,
        kernel_height=shape.kernel_height,
        kernel_width=shape.kernel_width,
        relu=not math.isinf(low),
        high=not math.isinf(high),
        written_out=shape.kernel_height <= 3 and shape.kernel_height * shape.kernel_width <= 9,
    )
    params = [shape.geometry, ring_of(shape, shape.is_inside), limit]
    variant = f"{shape.kernel_height}x{shape.kernel_width}" + "_relu" * options.relu
    return site.call(operands, params, [options, FloatLoops.of(site)], overlaps=spec.overlaps(order), variant=variant)


def _operands(dtypes: tuple[DType, ...], weights: DType, order: str, *working: Role) -> tuple[Role, ...]:
    return (
        reads("x", "input, channels last", *dtypes),
        reads("w", order, weights, holds=(1, 2)),
        writes("y", "output, channels last", *dtypes),
        *working,
    )


_STRIP = scratch("strip", "a few lines of four channels, widened to pairs of 16 bits", DType.INT32)
_CODES = (DType.INT8, DType.INT16)


def _taps(name: str, tensors: Callable[[ConvSpec], bool]) -> Kernel:
    return Kernel(
        name,
        what="any window of one filter per channel, on strips of a few lines, two taps per instruction",
        operands=(
            reads("x", "input, channels last", *_CODES),
            reads("w", "weights by channel, point after point of the window", *_CODES, holds=(1,)),
            reads("table", "bias and multiplier by channel", DType.INT32, holds=(2,)),
            writes("y", "output, channels last", *_CODES),
            _STRIP,
            scratch("spread", "constants of four channels, weights in pairs of 16 bits", DType.INT32),
        ),
        params=(StripWalk, CodeLimits, UpperWordParams),
        options=(TapOptions,),
        needs=frozenset({"dsp"}),
        when=(tensors, is_depthwise, is_not_3x3, fits_tap_strips, has_four_channels, fits_high_word),
        loads=0.0,
        emit=emit_tap_strips,
        extra=count_strip_instructions,
    )


def _stored_apart(results: tuple[DType, ...], weights: DType = DType.UINT8) -> tuple[Role, ...]:
    """Return the operands of strip kernels whose weights are stored apart from biases and multipliers."""
    return (
        reads("x", "input, channels last", DType.INT8),
        reads("w", "weights by channel, in the order in which the kernel widens them", weights, holds=(1,)),
        reads("table", "bias and multiplier by channel", DType.INT32, holds=(2,)),
        writes("y", "output, channels last", *results),
        _STRIP,
        scratch("spread", "constants of four channels, weights in pairs of 16 bits", DType.INT32),
    )


_THREE_BY_THREE = Kernel(
    "depthwise_s8_dsp",
    what="3 x 3 windows of one filter per channel, on strips of four or five lines, two taps per instruction",
    operands=_operands(
        (DType.INT8,), DType.INT32, "by channel: five words of two 16-bit weights, bias, multiplier", _STRIP
    ),
    params=(StripWalk, CodeLimits, OutputZeroPoint),
    uniform=frozenset({"batch", "padding_lines", "padding_points", "x_zero_point", "low", "high", "y_zero_point"}),
    options=(StrideOptions, Loops),
    needs=frozenset({"dsp"}),
    when=(
        int8_tensors,
        is_depthwise,
        is_3x3,
        stride_one_or_two,
        has_four_channels,
        has_int8_results,
        fits_scaled_high_word,
    ),
    loads=0.0,
    emit=emit_strips,
    extra=count_strips,
    way=stride_variant,
    slowdown=shard_slowdown,
)

_ANY_WINDOW = _taps("depthwise_s8_taps_dsp", int8_tensors)

DEPTHWISE_STRIPS: tuple[Kernel, ...] = (
    _THREE_BY_THREE,
    replace(
        _THREE_BY_THREE,
        name="depthwise_s8_dsp_bytes",
        what=f"{_THREE_BY_THREE.what}, with weights of one byte each in flash",
        operands=_stored_apart((DType.INT8,), DType.INT8),
        options=(StrideOptions, Loops, GainOption),
        when=(*_THREE_BY_THREE.when, int8_weights),
    ),
    of_four_bits(_THREE_BY_THREE, operands=_stored_apart((DType.INT8,)), options=(StrideOptions, Loops, GainOption)),
    _ANY_WINDOW,
    of_four_bits(_ANY_WINDOW, operands=_stored_apart(_CODES)),
    _taps("depthwise_s16_taps_dsp", int16_tensors),
    Kernel(
        "depthwise_f32_fpu",
        what="one filter per channel, eight or four channels of a pixel at a time",
        operands=_operands(
            (DType.FLOAT32,),
            DType.FLOAT32,
            "by four or eight channels: their biases, then their weights of each tap in turn",
            scratch("rows", "a ring of padded rows", DType.FLOAT32),
        ),
        params=(ConvGeometry, Ring, HighLimit),
        without=frozenset({"kernel_width"}),
        options=(LaneOptions, FloatLoops),
        needs=frozenset({"fpu"}),
        when=(float_tensors, depthwise, has_short_rows),
        emit=emit_lanes,
    ),
    Kernel(
        "depthwise_s8_3x3",
        what="3 x 3 windows of one filter per channel, three pixels of a row at a time",
        operands=_operands(
            (DType.INT8,),
            DType.INT32,
            "by channel: three words of the three weights of a row, bias, multiplier",
            scratch("rows", "a ring of padded rows", DType.INT8),
        ),
        params=(ConvGeometry, Ring, InputOutputZeros, CodeLimits),
        without=frozenset({"out_channels", "kernel_width", "stride_width", "dilation_width"}),
        options=(StrideOptions, ThreePixelOptions),
        when=(int8_tensors, has_ten_bit_weights, is_depthwise, has_rows_of_three, has_int8_results),
        loads=0.5,
        emit=emit_rows_of_three,
    ),
)
"""Depthwise kernels for the DSP extension and FPUs, and of 3 x 3 windows in C, in order of preference."""
