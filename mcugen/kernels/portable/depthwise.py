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
    paired_nibbles,
)
from mcugen.kernels.portable.weighted import Ring, depthwise, filters, reads_in_place, ring_of, ring_size
from mcugen.lir.kernel import Call, Kernel, Options, Params, Role, Site, Trained, reads, scratch, writes
from mcugen.lir.program import Buffer, Gathered

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
        """About how many a channel takes: a block is two points of two lines, or of one; a point may be left over."""
        blocks = self.points.out / 2
        pairs, odd = divmod(self.lines.out, 2) if self.stride == 1 else (0, self.lines.out)
        gathering = (5.0 if self.stride == 1 else 3.5) * self.points.size
        return pairs * (25 + 46 * blocks) + odd * (25 + 26 * blocks) + (pairs + odd) * gathering

    @property
    def strip(self) -> int:
        """32-bit words of a strip; with stride 2 also those on which it slides."""
        return 10 * self.points.extent if self.stride == 1 else 8 * self.points.extent + self.lines.out

    def may_overwrite_input(self) -> bool:
        """Whether all outputs of a strip lie before (or where lay) the first input that the next one reads."""
        return stays_behind(self, 2 // self.stride, 4, 2)


def stays_behind(way: Strips, at_once: int, window: int, step: int) -> bool:
    """Whether no output overwrites an input that is still to be read: strips give `at_once` lines, read by `step` more.

    The first strip reads `window` lines, padding included.
    """
    lines, points = way.lines, way.points
    if way.columns:
        same = (lines.size, points.size) == (lines.out, points.out)
        return same and step == at_once and lines.pad <= window - at_once
    written = [min(k, lines.out) for k in range(at_once, lines.out + at_once, at_once)]
    read = [min(step * k + window - lines.pad, lines.size) for k in range(len(written))]
    return all(r * points.size >= w * points.out for r, w in zip(read, written, strict=True))


def axes(shape: ConvShape) -> tuple[Axis, Axis]:
    """Height and width."""
    s, row, out_row = shape, shape.in_w * shape.pixel, shape.out_w * shape.pixel
    return (
        Axis(s.in_h, s.out_h, s.pad_h, row, out_row, s.k_h, s.stride_h, s.dilation_h),
        Axis(s.in_w, s.out_w, s.pad_w, s.pixel, s.pixel, s.k_w, s.stride_w, s.dilation_w),
    )


MOST_SLOWDOWN = 1.25
"""Some channels for one of two cores take so many times the instructions at most, so that both strips are short."""


def strips(shape: ConvShape) -> Strips:
    """The better of the two ways to cut; a strip has at least two output points."""
    ways = _ways_to_cut(shape)
    fastest = min(ways, key=Strips.instructions)
    if shape.whole_c is None:
        return fastest
    enough = MOST_SLOWDOWN * fastest.instructions()
    return min((way for way in ways if way.instructions() <= enough), key=lambda way: way.points.extent)


def _ways_to_cut(shape: ConvShape) -> list[Strips]:
    height, width = axes(shape)
    return [way for way in (Strips(height, width, False), Strips(width, height, True)) if way.points.out > 1]


def slower_strips(spec: ConvSpec) -> float:
    """How many times the instructions of the faster way to cut the one takes that is taken."""
    ways = _ways_to_cut(spec.shape)
    return strips(spec.shape).instructions() / min(way.instructions() for way in ways)


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
    return high_word(spec) if spec.high_word.shift <= 32 else abs(end_word(spec, _least(spec))) < 2**31


def _is_short(spec: ConvSpec) -> bool:
    """Whether codes are made of sums of 32 bits."""
    return spec.is_requantized and spec.acc is DType.INT32


def end_word(spec: ConvSpec, least: int = 0) -> int:
    """What is added to the upper word of a product before it is shifted: zero point, less the `least` result where that
    is added last, and, where any bits are left to be cut off, rounding."""
    zero = spec.y.q.zero_point - least
    more = max(spec.high_word.shift - 32, 0)
    return (zero << more) + (1 << more >> 1)


def biases_and_multipliers(spec: ConvSpec, site: Site) -> Buffer:
    """By channel, side by side."""
    return site.const("table", np.stack([spec.folded_bias.astype(np.int32), spec.multipliers], 1))


def _least(spec: ConvSpec) -> int:
    """The low limit, if results are limited."""
    return spec.limits[0] if spec.is_clamped else 0


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
    x_zero: Annotated[Trained | None, "zero point of x: what padding holds; of int16 it is 0"] = None


@dataclass(frozen=True, kw_only=True)
class EndWord(Params):
    """Behind the upper word of a product."""

    end: Annotated[Trained, "what is added: zero point of y (less a low limit that is added last), and rounding"]
    shift: Annotated[Trained | None, "to the right, where any bits are left to be cut off"] = None


@dataclass(frozen=True, kw_only=True)
class YZero(Params):
    """What the code of zero is in the output."""

    y_zero: Annotated[Trained, "zero point of y"]


@dataclass(frozen=True, kw_only=True)
class Zeros(YZero):
    """Of codes on both sides."""

    x_zero: Annotated[Trained, "zero point of x: what padding holds"]


@dataclass(frozen=True, kw_only=True)
class StrideOptions(Options):
    """Of 3 x 3 windows."""

    stride: Annotated[int, "pixels from window to window: 1 or 2"]
    clamp: Annotated[bool, "whether results are limited further than by their type"]


@dataclass(frozen=True, kw_only=True)
class Gain(Options):
    """Of weights that are not stored with it."""

    gain: Annotated[int, "a shift of weights to the left, with which sums become codes"]


@dataclass(frozen=True, kw_only=True)
class RowOptions(Options):
    """Of three pixels in a row."""

    short: Annotated[bool, "whether sums are so small that products of 32 bits requantize them"]
    bits: Annotated[int, "of a weight: 8, or 10 where some do not fit a byte"]


@dataclass(frozen=True, kw_only=True)
class TapOptions(Options):
    """Of strips of any window."""

    x_t: Annotated[str, "C type of the input"]
    w_t: Annotated[str, "C type of the weights"]
    y_t: Annotated[str, "C type of the output"]
    shifted: Annotated[bool, "whether upper words of products are shifted"]
    clamp: Annotated[bool, "whether results are limited further than by their type"]
    gain: Annotated[int, "a shift of weights and biases to the left, with which sums become codes"]
    looped: Annotated[bool, "whether there is a loop over the points of a window; else they are written out"]
    folded: Annotated[bool, "whether a row is folded by two: neighbours are lines"]
    stride: Annotated[int, "points from window to window"]
    dilation: Annotated[int, "points from tap to tap"]
    line_stride: Annotated[int, "lines from window to window"]
    line_dilation: Annotated[int, "lines from tap to tap"]
    afresh: Annotated[bool, "whether a strip shares no pairs with the one before"]
    alone: Annotated[bool, "whether there is one strip only"]
    pairs: Annotated[int, "pairs of lines that a strip reads"]
    tap_pairs: Annotated[int, "pairs of taps in a line of the window"]
    lines: Annotated[int, "lines of y that are computed together: 1 or 2"]
    points: Annotated[int, "points of y that are computed together: 1 or 2"]
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


def paired_taps(taps: Array, stride: int) -> Array:
    """[C, line, point] 3×3 taps → [C, 5, 2], as the strip kernels multiply them.

    Taps of two lines for points 0, 1 and 2; those of the third for points (0, 1) and (2), with nothing. Lines are
    (0, 2) and 1; with stride 2, where what follows a pair of lines is the next pair, (0, 1) and 2.
    """
    last, alone = (2, 1) if stride == 1 else (1, 2)
    outer = np.stack([taps[:, 0], taps[:, last]], -1)
    inner = np.pad(taps[:, alone], ((0, 0), (0, 1))).reshape(-1, 2, 2)
    return np.concatenate([outer, inner], 1)


def packed_taps(pairs: Array, bias: Array, multiplier: Array) -> Array:
    """Paired taps of 16 bits → int32 [C, 7]: a word of each pair; bias; multiplier."""
    words = (pairs[..., 0] & 0xFFFF) | (pairs[..., 1] << 16)
    return _words(np.concatenate([words, _constants(bias, multiplier)], 1))


def _constants(bias: Array, multiplier: Array) -> Array:
    """By channel, of 32 bits each."""
    return np.stack([bias.astype(np.int64), multiplier.astype(np.int64)], 1)


def emit_strips(spec: ConvSpec, site: Site) -> Call:
    """3×3 on strips: weights, bias and multiplier in one stream."""
    shape, way, scale = spec.shape, strips(spec.shape), _scaled(spec)
    assert scale is not None
    taps = spec.weights.reshape(-1, 3, 3).astype(np.int64)
    turned = taps.transpose(0, 2, 1) if way.columns else taps
    bias, pairs = spec.folded_bias << scale, paired_taps(turned, way.stride)
    strip = site.scratch("strip", DType.INT32, way.strip)
    if Gain in site.kernel.options:
        in_bytes = pairs.reshape(-1, 10)[:, :9].astype(np.int8)  # the tenth is nothing
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
        stream = packed_taps(pairs << scale, bias, spec.multipliers)
        operands = {"x": site.x, "w": site.const("weights", stream), "y": site.y, "strip": strip}
    params = [strip_walk(spec, shape, way), CodeLimits.of(spec.limits), YZero(y_zero=spec.y.q.zero_point)]
    options = [StrideOptions(stride=way.stride, clamp=spec.is_clamped), Loops.of(site), Gain(gain=scale)]
    used = [each for each in options if type(each) in site.kernel.options]
    inplace = [("y", "x")] if way.may_overwrite_input() else []
    return site.call(operands, params, used, inplace=inplace, variant=f"stride{way.stride}", gathers=_gathered(spec))


def _gathered(spec: ConvSpec) -> Gathered:
    """Strips of the whole image have four channels at a time."""
    nbytes = spec.x.dtype.nbytes
    return Gathered(spec.shape.pixel * nbytes, WORD * nbytes)


def strip_count(spec: ConvSpec) -> int:
    """Strips of four channels: what their start costs is the `extra` of 3×3 kernels on strips."""
    shape = spec.shape
    way = strips(shape)
    return shape.batch * -(-shape.in_c // WORD) * -(-way.lines.out * way.stride // 2)


def stride_way(spec: ConvSpec) -> str:
    """Strips of stride 1 give two lines at once, those of stride 2 one."""
    return f"stride{spec.shape.stride_h}"


def strip_walk(spec: ConvSpec, shape: ConvShape, way: Strips) -> StripWalk:
    """The numbers of a way to cut."""
    lines, points = way.lines, way.points
    return StripWalk(
        batch=shape.batch,
        channels=shape.in_c,
        x_size=shape.in_h * shape.in_w * shape.pixel,
        y_size=shape.out_h * shape.out_w * shape.pixel,
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
    """Strips for any number of taps: pairs of lines that follow one another in the window."""

    is_folded: bool = False
    """Whether lines are neighbours in a row, and points their pairs."""

    @property
    def afresh(self) -> bool:
        """Whether all lines are read for each line of y: those of the one before are others, or paired otherwise."""
        return self.lines.stride > 2 or (self.lines.taps > 1 and self.lines.dilation > 1)

    @property
    def at_once(self) -> int:
        """Output lines of a strip."""
        is_wide = self.lines.stride == 2 and (self.is_folded or self.tap_pairs > 6)
        return 1 if self.afresh or is_wide or self.lines.out == 1 else 2

    @property
    def together(self) -> int:
        """Output points that are computed together: more than one where each line is computed by itself."""
        return 2 if self.points.out > 1 and (self.at_once == 1 or (self.pairs == 1 and self.sets == 2)) else 1

    @property
    def sets(self) -> int:
        """How often taps are paired: for windows that begin with the first line of a pair, and with the second."""
        return 2 if self.at_once == 2 and self.lines.stride == 1 else 1

    @property
    def tap_pairs(self) -> int:
        """Pairs of taps at a point of the window."""
        return (self.lines.taps + (1 if self.lines.stride > 1 or self.afresh or self.lines.out == 1 else 2)) // 2

    @property
    def pairs(self) -> int:
        """Pairs of input lines that a strip reads."""
        return self.tap_pairs + (self.at_once == 2 and self.sets == 1)

    @property
    def step(self) -> int:
        """Pairs of lines from strip to strip."""
        return self.at_once * self.lines.stride // 2 if self.sets == 1 else 1

    @property
    def strips(self) -> int:
        """How many there are."""
        return -(-self.lines.out // self.at_once)

    @property
    def is_alone(self) -> bool:
        """Whether there is one strip only: channels then follow one another, and their constants take one place."""
        return self.strips == 1

    @property
    def words(self) -> int:
        """32-bit words of a channel's constants, spread."""
        return 4 + self.points.taps * self.tap_pairs * self.sets

    @property
    def strip(self) -> int:
        """32-bit words of a strip, and of what it slides on."""
        extent = self.points.extent + (self.together - 1) * self.points.stride
        return 4 * self.pairs * extent + (0 if self.afresh or self.is_alone else self.step * self.strips)

    @property
    def is_looped(self) -> bool:
        """Whether the code of all taps would be too long."""
        tap = 2 + 3 * self.tap_pairs * self.at_once * self.together // 2
        return self.points.taps * tap > 100

    @property
    def fits(self) -> bool:
        """Whether distances are those of instructions, and some input is read at all."""
        inside = self.points.pad < self.points.extent * (2 if self.is_folded else 1)
        reach = 16 * self.pairs * (self.points.taps * self.points.dilation + 2 * self.points.stride)
        return inside and self.pairs <= 16 and reach < 4096 and 4 * self.words < 4096

    def instructions(self) -> float:
        """About how many a channel takes: its weights and inputs are spread, and strips streamed."""
        taps, spread = self.lines.taps * self.points.taps, self.points.taps * self.tap_pairs * self.sets
        gathered = self.pairs * self.strips if self.afresh else self.pairs + self.step * (self.strips - 1)
        points = self.points.size // 2 if self.is_folded else self.points.size
        gathering = gathered * (4 * points + 12) + self.points.extent * self.pairs
        blocks = -(-self.points.out // self.together)
        return 30 + 30 * self.is_alone + taps + 3 * spread + gathering + self.strips * (20 + blocks * self._block)

    @property
    def _block(self) -> float:
        """Of what is computed together."""
        sums, loads = self.at_once * self.together, -(-self.tap_pairs // 4)
        if self.pairs == 1:
            column = 1 + self.together + sums
        else:
            column = loads * (self.sets + 2 * self.together) + sums * self.tap_pairs
        return 10 + 3.5 * sums + self.points.taps * (column + 3 * self.is_looped)

    def may_overwrite_input(self) -> bool:
        """Whether all outputs of a strip lie before (or where lay) the first input that the next one reads."""
        if self.is_folded:
            return self.points.size >= self.points.out
        return not self.afresh and stays_behind(self, self.at_once, 2 * self.pairs, 2 * self.step)


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
    way = TapStrips(lines, points, False, True)
    return way if way.fits else None


def strip_instructions(spec: ConvSpec) -> int:
    """About how many: what follows from how strips are cut is the `extra` of kernels for any window."""
    shape = spec.shape.as_few_rows()
    way = folded(shape) or tap_strips(shape)
    assert way is not None
    return round(shape.batch * shape.in_c * way.instructions())


def other_windows(spec: ConvSpec) -> bool:
    """not 3×3 with stride 1 or 2, of which there is a kernel"""
    return not all(holds(spec) for holds in (int8_tensors, three_by_three, stride_one_or_two, int8_results, high_word))


def short_strips(spec: ConvSpec) -> bool:
    """windows of few taps"""
    shape = spec.shape.as_few_rows()
    return (folded(shape) or tap_strips(shape)) is not None


def emit_tap_strips(spec: ConvSpec, site: Site) -> Call:
    """Any kernel on strips."""
    shape = spec.shape.as_few_rows()
    row, more = folded(shape), spec.high_word.shift - 32
    way = row or tap_strips(shape)
    assert way is not None
    walk = strip_walk(spec, shape, way)
    if row:  # points are single again
        points = min(shape.in_w, 2 * way.points.extent - shape.pad_w)
        walk = replace(walk, points=points, out_points=shape.out_w)
    taps = spec.weights.reshape(-1, shape.k_h, shape.k_w)
    weights = taps.transpose(0, 2, 1) if not way.columns else taps
    if four_bits in site.kernel.when:
        weights = paired_nibbles(weights.reshape(-1, shape.k_w if row else way.lines.taps))
    elif spec.w.dtype is not DType.INT8:
        weights = weights.astype(np.int16)
    operands = {
        "x": site.x,
        "w": site.const("weights", weights),
        "table": biases_and_multipliers(spec, site),
        "y": site.y,
        "strip": site.scratch("strip", DType.INT32, way.strip),
        "spread": site.scratch("spread", DType.INT32, way.words * (1 if way.is_alone else WORD)),
    }
    options = TapOptions(
        x_t=spec.x.dtype.c,
        w_t=DType.of(weights).c,
        y_t=spec.y.dtype.c,
        shifted=more > 0,
        clamp=spec.is_clamped,
        gain=max(-more, 0),
        looped=way.is_looped,
        folded=row is not None,
        stride=way.points.stride,
        dilation=way.points.dilation,
        line_stride=way.lines.stride,
        line_dilation=way.lines.dilation if way.lines.taps > 1 else 1,
        afresh=way.afresh,
        alone=way.is_alone,
        pairs=way.pairs,
        tap_pairs=way.tap_pairs,
        lines=way.at_once,
        points=way.together,
        k_lines=shape.k_w if row else way.lines.taps,
        k_points=way.points.taps,
    )
    ending = EndWord(end=end_word(spec, _least(spec)), shift=more if more > 0 else None)
    inplace = [("y", "x")] if spec.x.dtype is spec.y.dtype and way.may_overwrite_input() else []
    variant = f"row{shape.k_w}" if row else f"{way.lines.taps}x{way.points.taps}"
    params = [walk, CodeLimits.of(spec.limits), ending]
    return site.call(operands, params, [options], inplace=inplace, variant=variant, gathers=_gathered(spec))


def _words(packed: Array) -> Array:
    """32 bits of each element."""
    return (packed & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def rows_of_three(spec: ConvSpec) -> bool:
    """3×3 weights, three output pixels or more in a row; sums of which 32 bits are the result"""
    shape = spec.shape
    near = shape.dilation_w == 1 and shape.stride_w < 3
    return shape.k_h == shape.k_w == 3 and near and shape.out_w > 2 and _scaled(spec) == 0


def ten_bits(spec: ConvSpec) -> bool:
    """weights of ten bits"""
    return bool(spec.weights.min(initial=0) >= -512 and spec.weights.max(initial=0) < 512)


def packed_rows(weights: Array, bias: Array, multiplier: Array, bits: int) -> Array:
    """[C, 3, 3] → int32 [C, 5]: the rows in the upper 3 · `bits` of words; bias; multiplier. Bit 0 marks the last."""
    codes = weights.astype(np.int64) & (1 << bits) - 1
    words = (codes << 32 - bits * (3 - np.arange(3))).sum(-1)
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
    shape, direct, weights = spec.shape, reads_in_place(spec.shape), spec.weights.reshape(-1, 3, 3)
    bias, multiplier = small_constants(weights, spec.folded_bias, spec.multipliers)
    sums = np.abs(weights.astype(np.int64)).sum((1, 2)) * 128 + np.abs(bias)
    bits = 8 if spec.w.dtype is DType.INT8 else 10
    threes = np.minimum(np.arange(0, shape.out_w, 3), shape.out_w - 3)[:, None] + np.arange(3)
    pixels = np.arange(shape.out_h)[:, None, None] * shape.out_w + threes
    order = windows(shape, pixels.reshape(-1, 3)) if direct else rows(shape)
    operands = {
        "x": site.x,
        "w": site.const("weights", packed_rows(weights, bias, multiplier, bits)),
        "y": site.y,
        "rows": site.scratch("rows", DType.INT8, ring_size(shape, direct)),
    }
    zeros = Zeros(y_zero=spec.y.q.zero_point, x_zero=spec.x.q.zero_point)
    params = [shape.geometry, ring_of(shape, direct), zeros, CodeLimits.of(spec.limits)]
    options = [
        StrideOptions(stride=shape.stride_w, clamp=spec.is_clamped),
        RowOptions(short=bool(sums.max(initial=0) < SHORT_SUM), bits=bits),
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
    return site.call(operands, params, [options, FloatLoops.of(site)], overlaps=spec.overlaps(order), variant=variant)


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
        what="any window of one filter a channel, on strips of a few lines, two taps an instruction",
        operands=(
            reads("x", "input, channels last", *_CODES),
            reads("w", "weights by channel, point after point of the window", *_CODES),
            reads("table", "bias and multiplier by channel", DType.INT32),
            writes("y", "output, channels last", *_CODES),
            _STRIP,
            scratch("spread", "constants of four channels, weights in pairs of 16 bits", DType.INT32),
        ),
        params=(StripWalk, CodeLimits, EndWord),
        options=(TapOptions,),
        needs=frozenset({"dsp"}),
        when=(tensors, filters, other_windows, short_strips, a_word_of_channels, one_word),
        loads=0.0,
        emit=emit_tap_strips,
        extra=strip_instructions,
    )


def _stored_apart(results: tuple[DType, ...], weights: DType = DType.UINT8) -> tuple[Role, ...]:
    """Operands of strips whose weights lie apart from what else a channel needs."""
    return (
        reads("x", "input, channels last", DType.INT8),
        reads("w", "weights in reading order", weights),
        reads("table", "bias and multiplier by channel", DType.INT32),
        writes("y", "output, channels last", *results),
        _STRIP,
        scratch("spread", "constants of four channels, weights in pairs of 16 bits", DType.INT32),
    )


_THREE_BY_THREE = Kernel(
    "depthwise_s8_dsp",
    what="3 x 3 windows of one filter a channel, on strips of four or five lines, two taps an instruction",
    operands=_operands((DType.INT8,), DType.INT32, _STRIP),
    params=(StripWalk, CodeLimits, YZero),
    uniform=frozenset({"batch", "line_pad", "point_pad", "x_zero", "low", "high", "y_zero"}),
    options=(StrideOptions, Loops),
    needs=frozenset({"dsp"}),
    when=(int8_tensors, filters, three_by_three, stride_one_or_two, a_word_of_channels, int8_results, high_word),
    loads=0.0,
    emit=emit_strips,
    extra=strip_count,
    way=stride_way,
    slowdown=slower_strips,
)

_ANY_WINDOW = _taps("depthwise_s8_taps_dsp", int8_tensors)

DEPTHWISE: tuple[Kernel, ...] = (
    _THREE_BY_THREE,
    replace(
        _THREE_BY_THREE,
        name="depthwise_s8_dsp_bytes",
        what=f"{_THREE_BY_THREE.what}, of a byte each in flash",
        operands=_stored_apart((DType.INT8,), DType.INT8),
        options=(StrideOptions, Loops, Gain),
        when=(*_THREE_BY_THREE.when, int8_weights),
    ),
    of_four_bits(_THREE_BY_THREE, operands=_stored_apart((DType.INT8,)), options=(StrideOptions, Loops, Gain)),
    _ANY_WINDOW,
    of_four_bits(_ANY_WINDOW, operands=_stored_apart(_CODES)),
    _taps("depthwise_s16_taps_dsp", int16_tensors),
    Kernel(
        "depthwise_f32_fpu",
        what="one filter a channel, eight or four channels of a pixel at a time",
        operands=_operands((DType.FLOAT32,), DType.FLOAT32, scratch("rows", "a ring of padded rows", DType.FLOAT32)),
        params=(ConvGeometry, Ring, HighLimit),
        without=frozenset({"k_w"}),
        options=(LaneOptions, FloatLoops),
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
        when=(int8_tensors, ten_bits, filters, rows_of_three, int8_results),
        loads=0.5,
        emit=emit_rows_of_three,
    ),
)
