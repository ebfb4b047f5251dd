# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolution on CPUs without Helium.

The DSP kernels cut the input to strips: a few adjacent *lines* (columns or rows), streamed along their *points*. Four
channels of a strip are spread to pairs of 16 bits, which SMLAD multiplies two at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from mcugen.hir.types import Array, DType
from mcugen.kernels.conv_shape import ConvGeometry, ConvShape
from mcugen.kernels.portable import Ring, depthwise, ring_of, ring_size
from mcugen.kernels.reading_order import lanes, rows, windows
from mcugen.kernels.specs import ConvSpec
from mcugen.kernels.weighted import CodeLimits, float_tensors, int8_tensors, int8_weights, int16_tensors
from mcugen.lir.kernel import Call, Kernel, Options, Params, Role, Site, reads, scratch, writes

WORD = 4
"""Channels that are loaded at once."""

SHORT_SUM = 2**19 - 2**8
"""Below, products of sums with pieces of 12 bits fit 32 bits, with what is carried on."""


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a tensor: sizes of input and output, padding before, elements to the next of each."""

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
        """Positions that taps read, padding included."""
        return (self.out - 1) * self.stride + (self.taps - 1) * self.dilation + 1


@dataclass(frozen=True)
class Strips:
    """How a depthwise convolution is cut: strips along `points`, next to each other along `lines`."""

    lines: Axis
    points: Axis
    columns: bool
    """Whether lines are columns of the image: points follow its height."""

    @property
    def stride(self) -> int:
        """From output to output: one for both axes of a 3×3 kernel."""
        return self.lines.stride

    def instructions(self) -> float:
        """About how many a channel takes: a block is two points of two lines, or of one."""
        blocks = (self.points.out + 1) // 2
        pairs, odd = divmod(self.lines.out, 2) if self.stride == 1 else (0, self.lines.out)
        return pairs * (25 + 46 * blocks) + odd * (25 + 26 * blocks) + (pairs + odd) * 5 * self.points.size

    def may_overwrite_input(self) -> bool:
        """Whether all outputs of a strip lie before (or where lay) the first input that the next one reads."""
        return stays_behind(self, 2 // self.stride, 5 - self.stride)


def stays_behind(way: Strips, at_once: int, window: int) -> bool:
    """Whether no output overwrites an input that is still to be read: strips give `at_once` lines, read by 2 more each.

    The first strip reads `window` lines, padding included.
    """
    lines, points = way.lines, way.points
    if way.columns:
        return (lines.size, points.size) == (lines.out, points.out) and lines.pad <= window - at_once
    written = [min(k, lines.out) for k in range(at_once, lines.out + at_once, at_once)]
    read = [min(2 * k + window - lines.pad, lines.size) for k in range(len(written))]
    return all(r * points.size >= w * points.out for r, w in zip(read, written, strict=True))


def axes(shape: ConvShape) -> tuple[Axis, Axis]:
    """Height and width."""
    s, row, out_row = shape, shape.in_w * shape.in_c, shape.out_w * shape.out_c
    return (
        Axis(s.in_h, s.out_h, s.pad_h, row, out_row, s.k_h, s.stride_h, s.dilation_h),
        Axis(s.in_w, s.out_w, s.pad_w, s.in_c, s.out_c, s.k_w, s.stride_w, s.dilation_w),
    )


def strips(shape: ConvShape) -> Strips:
    """The better of the two ways to cut; a strip has at least two output points."""
    height, width = axes(shape)
    ways = [Strips(height, width, False), Strips(width, height, True)]
    return min((way for way in ways if way.points.out > 1), key=Strips.instructions)


# --------------------------------------------------------------------------------------------------- conditions


def three_by_three(spec: ConvSpec) -> bool:
    """3×3 weights, all pixels, padding below 3"""
    shape = spec.shape
    return shape.k_h == shape.k_w == 3 and shape.dilation_h == shape.dilation_w == 1 and shape.pad_h < 3 > shape.pad_w


def stride_one_or_two(spec: ConvSpec) -> bool:
    """stride 1 or 2, more than one output pixel"""
    shape = spec.shape
    return shape.stride_h == shape.stride_w < 3 and max(shape.out_h, shape.out_w) > 1


def a_word_of_channels(spec: ConvSpec) -> bool:
    """four channels or more"""
    return spec.shape.in_c >= WORD


def high_word(spec: ConvSpec) -> bool:
    """sums that, scaled by a power of two, have the result in the upper half of a 64-bit product"""
    shift = _scaled(spec)
    if shift is None:
        return False
    sums = spec.largest_sum * 2**shift
    return bool(sums < 2**31 and np.abs(spec.weights.astype(np.int64)).max(initial=0) << shift < 2**15)


def one_word(spec: ConvSpec) -> bool:
    """32-bit sums, whose result is in the upper half of a 64-bit product"""
    if not _is_short(spec):
        return False
    return high_word(spec) if spec.high_word.shift <= 32 else abs(_end_word(spec)) < 2**31


def _is_short(spec: ConvSpec) -> bool:
    """Whether codes are made of sums of 32 bits."""
    return spec.is_requantized and spec.acc is DType.INT32


def _end_word(spec: ConvSpec) -> int:
    """What is added to the upper word of a product before it is shifted: zero point (less the low limit, if results are
    limited, which is added last) and, where any bits are left to be cut off, rounding."""
    zero = spec.y.q.zero_point - (spec.limits[0] if spec.is_clamped else 0)
    more = max(spec.high_word.shift - 32, 0)
    return (zero << more) + (1 << more >> 1)


def _scaled(spec: ConvSpec) -> int | None:
    """By how many bits sums must be scaled so that requantization takes their product's upper word, and just that."""
    if not _is_short(spec) or spec.high_word.shift > 32:
        return None
    return 32 - spec.high_word.shift


def int8_results(spec: ConvSpec) -> bool:
    """int8 results"""
    return spec.y.dtype is DType.INT8


# ------------------------------------------------------------------------------------------------- declarations


@dataclass(frozen=True, kw_only=True)
class StripWalk(Params):
    """How strips are cut: lines are rows of the image and points the pixels of a row, or the other way round."""

    batch: Annotated[int, "images"]
    channels: Annotated[int, "elements of a pixel"]
    x_size: Annotated[int, "elements of an image of x"]
    y_size: Annotated[int, "elements of an image of y"]
    lines: Annotated[int, "lines of x"]
    out_lines: Annotated[int, "lines of y"]
    line_pad: Annotated[int, "lines before x that the first window begins at"]
    x_line: Annotated[int, "elements from line to line of x"]
    y_line: Annotated[int, "elements from line to line of y"]
    extent: Annotated[int, "points that the windows of a strip reach, padding included"]
    points: Annotated[int, "points of a line of x that are read"]
    out_points: Annotated[int, "points of a line of y"]
    point_pad: Annotated[int, "points before a line that the first window begins at"]
    x_point: Annotated[int, "elements from point to point of x"]
    y_point: Annotated[int, "elements from point to point of y"]
    x_zero: Annotated[int | None, "zero point of x: what padding holds; of int16 it is 0"] = None


@dataclass(frozen=True, kw_only=True)
class EndShift(Params):
    """Behind the upper word of a product."""

    shift: Annotated[int | None, "to the right, where any bits are left to be cut off"] = None


@dataclass(frozen=True, kw_only=True)
class YZero(Params):
    """What the code of zero is in the output."""

    y_zero: Annotated[int, "zero point of y"]


@dataclass(frozen=True, kw_only=True)
class Zeros(YZero):
    """Of codes on both sides."""

    x_zero: Annotated[int, "zero point of x: what padding holds"]


@dataclass(frozen=True, kw_only=True)
class StrideOptions(Options):
    """Of 3 x 3 windows."""

    stride: Annotated[int, "pixels from window to window: 1 or 2"]
    clamp: Annotated[bool, "whether results are limited further than by their type"]


@dataclass(frozen=True, kw_only=True)
class RowOptions(Options):
    """Of three pixels in a row."""

    short: Annotated[bool, "whether sums are so small that products of 32 bits requantize them"]


@dataclass(frozen=True, kw_only=True)
class TapOptions(Options):
    """Of strips of any window."""

    x_t: Annotated[str, "C type of the input"]
    y_t: Annotated[str, "C type of the output"]
    shifted: Annotated[bool, "whether upper words of products are shifted"]
    folded: Annotated[bool, "whether a row is folded by two: neighbours are lines"]
    clamp: Annotated[bool, "whether results are limited further than by their type"]
    stride: Annotated[int, "points from window to window"]
    dilation: Annotated[int, "points from tap to tap"]
    pairs: Annotated[int, "pairs of lines that a strip reads"]
    lines: Annotated[int, "lines of y that it computes: 1 or 2"]
    k_lines: Annotated[int, "lines of the window"]
    k_points: Annotated[int, "points of a line of the window"]


@dataclass(frozen=True, kw_only=True)
class HighLimit(Params):
    """An upper limit of float results; the lower one is an option."""

    high: Annotated[float | None, "the largest result, where there is one"] = None


@dataclass(frozen=True, kw_only=True)
class LaneOptions(Options):
    """Of channels side by side."""

    lanes: Annotated[int, "channels that are computed together: 4 or 8"]
    k_h: Annotated[int, "rows of the window"]
    k_w: Annotated[int, "columns of the window"]
    relu: Annotated[bool, "whether results are at least 0"]
    high: Annotated[bool, "whether there is an upper limit"]
    written_out: Annotated[bool, "whether all taps are written out, and not those of a row"]


# --------------------------------------------------------------------------------------------------- emission


def packed_taps(taps: Array, bias: Array, multiplier: Array) -> Array:
    """[C, line, point] 3×3 taps of 16 bits → int32 [C, 7], as the strip kernels read them.

    Taps (0, 2) of the lines for points 0, 1 and 2; taps (1) for points (0, 1) and (2); bias; multiplier.
    """
    pairs = [(taps[:, 0, j], taps[:, 2, j]) for j in range(3)] + [(taps[:, 1, 0], taps[:, 1, 1])]
    words = [(low & 0xFFFF) | (high << 16) for low, high in pairs]
    packed = np.stack([*words, taps[:, 1, 2] & 0xFFFF, bias.astype(np.int64), multiplier.astype(np.int64)], 1)
    return _words(packed)


def emit_strips(spec: ConvSpec, site: Site) -> Call:
    """3×3 on strips: weights, bias and multiplier in one stream."""
    shape, way, scale = spec.shape, strips(spec.shape), _scaled(spec)
    assert scale is not None
    taps = spec.weights.reshape(-1, 3, 3).astype(np.int64) << scale
    turned = taps.transpose(0, 2, 1) if way.columns else taps
    packed = packed_taps(turned, spec.folded_bias << scale, spec.multipliers)
    operands = {
        "x": site.x,
        "w": site.const("weights", packed),
        "y": site.y,
        "strip": site.scratch("strip", DType.INT32, 10 * way.points.extent),
    }
    params = [_strip_walk(spec, shape, way), CodeLimits.of(spec.limits), YZero(y_zero=spec.y.q.zero_point)]
    options = StrideOptions(stride=way.stride, clamp=spec.is_clamped)
    inplace = [("y", "x")] if way.may_overwrite_input() else []
    return site.call(operands, params, [options], inplace=inplace, variant=f"stride{way.stride}")


def strip_count(spec: ConvSpec) -> int:
    """Strips of four channels: what their start costs is the `extra` of 3×3 kernels on strips."""
    shape = spec.shape
    way = strips(shape)
    return shape.batch * -(-shape.in_c // WORD) * -(-way.lines.out * way.stride // 2)


def _strip_walk(spec: ConvSpec, shape: ConvShape, way: Strips) -> StripWalk:
    lines, points = way.lines, way.points
    return StripWalk(
        batch=shape.batch,
        channels=shape.in_c,
        x_size=shape.in_h * shape.in_w * shape.in_c,
        y_size=shape.out_h * shape.out_w * shape.out_c,
        lines=lines.size,
        out_lines=lines.out,
        line_pad=lines.pad,
        x_line=lines.step,
        y_line=lines.out_step,
        extent=points.extent,
        points=min(points.size, points.extent - points.pad),
        out_points=points.out,
        point_pad=points.pad,
        x_point=points.step,
        y_point=points.out_step,
        x_zero=spec.x.q.zero_point if spec.x.dtype is DType.INT8 else None,
    )


@dataclass(frozen=True)
class TapStrips(Strips):
    """Strips for any number of taps: pairs of neighbouring lines."""

    @property
    def at_once(self) -> int:
        """Output lines of a strip."""
        return 2 if self.lines.stride == 1 and self.lines.out > 1 else 1

    @property
    def pairs(self) -> int:
        """Pairs of input lines that they read."""
        return (self.lines.taps + self.at_once) // 2

    @property
    def words(self) -> int:
        """32-bit words of w, by channel."""
        return 4 + self.points.taps * self.pairs * self.at_once

    @property
    def fits(self) -> bool:
        """Whether neighbouring lines are what it takes, and distances fit the offsets of instructions."""
        lines, points = self.lines, self.points
        dense = (lines.taps == 1 or lines.dilation == 1) and (lines.stride < 3 or lines.out == 1)
        short = (
            points.taps * (2 + 3 * self.pairs * self.at_once // 2) <= 100
            and self.pairs <= 16
            and 16 * self.pairs * points.taps * points.dilation < 4096
        )
        return dense and short and lines.pad < 2 * self.pairs and 4 * self.words < 4096

    def instructions(self) -> float:
        """About how many a channel takes."""
        loads = -(-self.pairs // 4)
        tap = 1 + loads + self.at_once * (loads + self.pairs)
        strip = 30 + 6 * self.points.size + self.points.out * (16 + self.points.taps * tap)
        return strip * -(-self.lines.out // self.at_once)


def tap_strips(shape: ConvShape) -> TapStrips | None:
    """The better way to cut, if there is one."""
    height, width = axes(shape)
    ways = [way for way in (TapStrips(height, width, False), TapStrips(width, height, True)) if way.fits]
    return min(ways, key=TapStrips.instructions, default=None)


def folded(shape: ConvShape) -> TapStrips | None:
    """A single row folded by two, if it is one: neighbours are lines, their pairs are points."""
    height, row = axes(shape)
    if height.size * height.taps != 1 or row.stride > 2 or row.dilation > 1:
        return None
    at_once = 2 // row.stride
    taps = (row.taps + at_once) // 2
    lines = Axis(row.size, at_once, 0, row.step, row.out_step, 1, row.stride, 1)
    points = Axis(row.size, -(-row.out // at_once), row.pad, row.step, at_once * row.out_step, taps, 1, 1)
    return TapStrips(lines, points, False)


def neighbouring_lines(spec: ConvSpec) -> bool:
    """rows or columns whose neighbours are read together"""
    return tap_strips(spec.shape.as_row()) is not None


def paired_taps(taps: Array, at_once: int, together: int) -> Array:
    """[C, line, point] taps of 16 bits → [C, words of point taps]: pairs for the first line, then for the second.

    They alternate after as many pairs as are read `together`.
    """
    count = (taps.shape[1] + at_once) // 2
    room = 2 * count - taps.shape[1]
    words = []
    for point in range(taps.shape[2]):
        by_line = [np.pad(taps[:, :, point], ((0, 0), (shift, room - shift))) for shift in range(at_once)]
        pairs = [(line[:, 0::2] & 0xFFFF) | (line[:, 1::2] << 16) for line in by_line]
        words += [line[:, start : start + together] for start in range(0, count, together) for line in pairs]
    return np.concatenate(words, 1)


def emit_tap_strips(spec: ConvSpec, site: Site) -> Call:
    """Any kernel on strips."""
    shape = spec.shape.as_row()
    row, more = folded(shape), spec.high_word.shift - 32
    way = row or tap_strips(shape)
    assert way is not None
    walk = _strip_walk(spec, shape, way)
    if row:  # points are single again
        points = min(shape.in_w, 2 * way.points.extent - shape.pad_w)
        walk = replace(walk, points=points, out_points=shape.out_w)
    operands = {
        "x": site.x,
        "w": site.const("weights", _tap_stream(spec, shape, way, row is not None)),
        "y": site.y,
        "strip": site.scratch("strip", DType.INT32, 4 * way.pairs * way.points.extent),
    }
    options = TapOptions(
        x_t=spec.x.dtype.c,
        y_t=spec.y.dtype.c,
        shifted=more > 0,
        folded=row is not None,
        clamp=spec.is_clamped,
        stride=way.points.stride,
        dilation=way.points.dilation,
        pairs=way.pairs,
        lines=way.at_once,
        k_lines=way.lines.taps,
        k_points=way.points.taps,
    )
    params = [walk, CodeLimits.of(spec.limits), EndShift(shift=more if more > 0 else None)]
    inplace = [("y", "x")] if _taps_stay_behind(spec, shape, row, way) else []
    variant = f"row{shape.k_w}" if row else f"{way.lines.taps}x{way.points.taps}"
    return site.call(operands, params, [options], inplace=inplace, variant=variant)


def _tap_stream(spec: ConvSpec, shape: ConvShape, way: TapStrips, is_folded: bool) -> Array:
    """By channel: the bias for each of two lines, pairs of taps, multiplier, and what is added in the end."""
    scale = max(32 - spec.high_word.shift, 0)
    taps = spec.weights.reshape(-1, shape.k_h, shape.k_w).astype(np.int64) << scale
    turned = taps.transpose(0, 2, 1) if way.columns or is_folded else taps
    pairs = paired_taps(turned, way.at_once, 1 if is_folded else 4)
    bias, multiplier = spec.folded_bias[:, None] << scale, spec.multipliers.astype(np.int64)[:, None]
    return _words(np.concatenate([bias, bias, pairs, multiplier, np.full_like(bias, _end_word(spec))], 1))


def _taps_stay_behind(spec: ConvSpec, shape: ConvShape, row: TapStrips | None, way: TapStrips) -> bool:
    if spec.x.dtype is not spec.y.dtype:
        return False
    return shape.out_w <= shape.in_w if row else stays_behind(way, way.at_once, 2 * way.pairs)


def _words(packed: Array) -> Array:
    """32 bits of each element."""
    return (packed & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def rows_of_three(spec: ConvSpec) -> bool:
    """3×3 weights, three output pixels or more in a row; sums of which 32 bits are the result"""
    shape = spec.shape
    near = shape.dilation_w == 1 and shape.stride_w < 3
    return shape.k_h == shape.k_w == 3 and near and shape.out_w > 2 and _scaled(spec) == 0


def packed_rows(weights: Array, bias: Array, multiplier: Array) -> Array:
    """int8 [C, 3, 3] → int32 [C, 5]: the rows in the upper bytes of words; bias; multiplier. The last word says so."""
    codes = weights.astype(np.int64) & 0xFF
    words = codes[..., 0] << 8 | codes[..., 1] << 16 | codes[..., 2] << 24
    words[-1, 0] |= 1
    packed = np.concatenate([words, bias.astype(np.int64)[:, None], multiplier.astype(np.int64)[:, None]], 1)
    return _words(packed)


def small_constants(weights: Array, bias: Array, multiplier: Array) -> tuple[Array, Array]:
    """Bias and multiplier; channels without weights, whose results are their bias alone, get one of few bits."""
    dead = ~weights.reshape(len(weights), -1).any(1)
    result = (bias.astype(np.int64) * multiplier.astype(np.int64) + 2**31) >> 32
    few = np.clip(result, -(2**10), 2**10)  # more saturates as well
    return np.where(dead, few * 4, bias.astype(np.int64)), np.where(dead, 2**30, multiplier.astype(np.int64))


def emit_rows_of_three(spec: ConvSpec, site: Site) -> Call:
    """Three pixels of a channel at a time, from a ring of padded rows."""
    shape, weights = spec.shape, spec.weights.reshape(-1, 3, 3)
    bias, multiplier = small_constants(weights, spec.folded_bias, spec.multipliers)
    sums = np.abs(weights.astype(np.int64)).sum((1, 2)) * 128 + np.abs(bias)
    threes = np.minimum(np.arange(0, shape.out_w, 3), shape.out_w - 3)[:, None] + np.arange(3)
    pixels = np.arange(shape.out_h)[:, None, None] * shape.out_w + threes
    order = windows(shape, pixels.reshape(-1, 3)) if shape.is_inside else rows(shape)
    operands = {
        "x": site.x,
        "w": site.const("weights", packed_rows(weights, bias, multiplier)),
        "y": site.y,
        "rows": site.scratch("rows", DType.INT8, ring_size(shape, shape.is_inside)),
    }
    zeros = Zeros(y_zero=spec.y.q.zero_point, x_zero=spec.x.q.zero_point)
    params = [shape.geometry, ring_of(shape, shape.is_inside), zeros, CodeLimits.of(spec.limits)]
    options = [
        StrideOptions(stride=shape.stride_w, clamp=spec.is_clamped),
        RowOptions(short=bool(sums.max(initial=0) < SHORT_SUM)),
    ]
    return site.call(operands, params, options, overlaps=spec.overlaps(order), variant=f"stride{shape.stride_w}")


# --------------------------------------------------------------------------------------------------- float


def _lane_shape(spec: ConvSpec) -> ConvShape:
    """A column of up to 9 taps as a row, whose taps are written out."""
    shape = spec.shape
    return shape.as_row() if shape.as_row().k_w <= 9 else shape


def short_rows(spec: ConvSpec) -> bool:
    """at most 9 weights in a row, four channels or more, no other clamp than at 0 and above"""
    shape, (low, high) = _lane_shape(spec), spec.float_limits
    simple = low == 0 or (math.isinf(low) and math.isinf(high))
    return shape.k_w <= 9 and shape.k_h * shape.k_w <= 121 and shape.in_c >= WORD and simple


def blocks_of(channels: int, lanes: int) -> list[slice]:
    """The channels in blocks of `lanes`; the last one may overlap that before."""
    starts = [min(first, channels - lanes) for first in range(0, channels, lanes)]
    return [slice(first, first + lanes) for first in starts]


def emit_lanes(spec: ConvSpec, site: Site) -> Call:
    """Eight (or four) channels of a pixel at a time, from a ring of padded rows."""
    shape, (low, high) = _lane_shape(spec), spec.float_limits
    count = 2 * WORD if shape.in_c >= 2 * WORD else WORD
    taps = np.concatenate([spec.float_bias[None], spec.rows.T])
    packed = np.concatenate([taps[:, block].reshape(-1) for block in blocks_of(shape.in_c, count)])
    starts = np.asarray([block.start for block in blocks_of(shape.in_c, count)])
    order = lanes(shape, starts, count) if shape.is_inside else rows(shape)
    operands = {
        "x": site.x,
        "w": site.const("weights", packed),
        "y": site.y,
        "rows": site.scratch("rows", DType.FLOAT32, ring_size(shape, shape.is_inside)),
    }
    limit = HighLimit(high=None if math.isinf(high) else high)
    options = LaneOptions(
        lanes=count,
        k_h=shape.k_h,
        k_w=shape.k_w,
        relu=not math.isinf(low),
        high=not math.isinf(high),
        written_out=shape.k_h <= 3 and shape.k_h * shape.k_w <= 9,
    )
    params = [shape.geometry, ring_of(shape, shape.is_inside), limit]
    variant = f"{shape.k_h}x{shape.k_w}" + "_relu" * options.relu
    return site.call(operands, params, [options], overlaps=spec.overlaps(order), variant=variant)


def _operands(dtypes: tuple[DType, ...], weights: DType, *working: Role) -> tuple[Role, ...]:
    return (
        reads("x", "input, channels last", *dtypes),
        reads("w", "weights, biases and multipliers in reading order", weights),
        writes("y", "output, channels last", *dtypes),
        *working,
    )


_STRIP = scratch("strip", "some lines of four channels, spread to pairs of 16 bits", DType.INT32)
_CODES = (DType.INT8, DType.INT16)


def _taps(name: str, tensors: Callable[[ConvSpec], bool]) -> Kernel:
    return Kernel(
        name,
        what="any window of one filter a channel, on strips of two lines, two taps an instruction",
        operands=_operands(_CODES, DType.INT32, _STRIP),
        params=(StripWalk, CodeLimits, EndShift),
        options=(TapOptions,),
        needs=frozenset({"dsp"}),
        when=(tensors, depthwise, neighbouring_lines, a_word_of_channels, one_word),
        emit=emit_tap_strips,
    )


DEPTHWISE: tuple[Kernel, ...] = (
    Kernel(
        "depthwise_s8_dsp",
        what="3 x 3 windows of one filter a channel, on strips of four or five lines, two taps an instruction",
        operands=_operands((DType.INT8,), DType.INT32, _STRIP),
        params=(StripWalk, CodeLimits, YZero),
        options=(StrideOptions,),
        needs=frozenset({"dsp"}),
        when=(int8_tensors, depthwise, three_by_three, stride_one_or_two, a_word_of_channels, int8_results, high_word),
        emit=emit_strips,
        extra=strip_count,
    ),
    _taps("depthwise_s8_taps_dsp", int8_tensors),
    _taps("depthwise_s16_taps_dsp", int16_tensors),
    Kernel(
        "depthwise_f32_fpu",
        what="one filter a channel, eight or four channels of a pixel at a time",
        operands=_operands((DType.FLOAT32,), DType.FLOAT32, scratch("rows", "a ring of padded rows", DType.FLOAT32)),
        params=(ConvGeometry, Ring, HighLimit),
        without=frozenset({"k_w"}),
        options=(LaneOptions,),
        needs=frozenset({"fpu"}),
        when=(float_tensors, depthwise, short_rows),
        emit=emit_lanes,
    ),
    Kernel(
        "depthwise_s8_3x3",
        what="3 x 3 windows of one filter a channel, three pixels of a row at a time",
        operands=_operands((DType.INT8,), DType.INT32, scratch("rows", "a ring of padded rows", DType.INT8)),
        params=(ConvGeometry, Ring, Zeros, CodeLimits),
        without=frozenset({"out_c", "k_w", "stride_w", "dilation_w"}),
        options=(StrideOptions, RowOptions),
        when=(int8_tensors, int8_weights, depthwise, rows_of_three, int8_results),
        emit=emit_rows_of_three,
    ),
)
