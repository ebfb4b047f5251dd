# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolution on CPUs without Helium.

The DSP kernels cut the input to strips: a few adjacent *lines* (columns or rows), streamed along their *points*. Four
channels of a strip are spread to pairs of 16 bits, which SMLAD multiplies two at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType
from mcugen.kernels.conv_shape import ConvShape
from mcugen.kernels.portable import depthwise, ring_params, ring_size
from mcugen.kernels.reading_order import lanes, overlaps, rows, windows
from mcugen.kernels.weighted import (
    Store,
    clamp_of,
    float_tensors,
    int8_tensors,
    int16_tensors,
    largest_sums_of,
    store_of,
    weights_of,
)
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Access, Param

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


def three_by_three(node: Node) -> bool:
    """3×3 weights, all pixels, padding below 3"""
    shape = ConvShape.of(node)
    return shape.k_h == shape.k_w == 3 and shape.dilation_h == shape.dilation_w == 1 and shape.pad_h < 3 > shape.pad_w


def stride_one_or_two(node: Node) -> bool:
    """stride 1 or 2, more than one output pixel"""
    shape = ConvShape.of(node)
    return shape.stride_h == shape.stride_w < 3 and max(shape.out_h, shape.out_w) > 1


def a_word_of_channels(node: Node) -> bool:
    """four channels or more"""
    return ConvShape.of(node).in_c >= WORD


def high_word(node: Node) -> bool:
    """sums that, scaled by a power of two, have the result in the upper half of a 64-bit product"""
    shift = _scaled(node)
    if shift is None:
        return False
    sums = largest_sums_of(node).max(initial=0) * 2**shift
    return bool(sums < 2**31 and np.abs(weights_of(node).astype(np.int64)).max(initial=0) << shift < 2**15)


def one_word(node: Node) -> bool:
    """32-bit sums, whose result is in the upper half of a 64-bit product"""
    store = store_of(node)
    if store.code["store"] != "requantize" or store.code["acc_t"] != "int32_t":
        return False
    return high_word(node) if int(str(store.code["shift"])) <= 32 else abs(_end_word(node, store)) < 2**31


def _end_word(node: Node, store: Store) -> int:
    """What is added to the upper word of a product before it is shifted: zero point (less the low limit, if results are
    limited, which is added last) and, where any bits are left to be cut off, rounding."""
    zero = node.output.type.q.zero_point - (int(store.params["low"]) if _is_clamped(node, store) else 0)
    more = max(int(str(store.code["shift"])) - 32, 0)
    return (zero << more) + (1 << more >> 1)


def _scaled(node: Node) -> int | None:
    """By how many bits sums must be scaled so that requantization takes their product's upper word, and just that."""
    code = store_of(node).code
    if code["store"] != "requantize" or code["acc_t"] != "int32_t" or int(str(code["shift"])) > 32:
        return None
    return 32 - int(str(code["shift"]))


def int8_results(node: Node) -> bool:
    """int8 results"""
    return node.output.type.dtype is DType.INT8


# --------------------------------------------------------------------------------------------------- emission


def packed_taps(taps: Array, bias: Array, multiplier: Array) -> Array:
    """[C, line, point] 3×3 taps of 16 bits → int32 [C, 7], as the strip kernels read them.

    Taps (0, 2) of the lines for points 0, 1 and 2; taps (1) for points (0, 1) and (2); bias; multiplier.
    """
    pairs = [(taps[:, 0, j], taps[:, 2, j]) for j in range(3)] + [(taps[:, 1, 0], taps[:, 1, 1])]
    words = [(low & 0xFFFF) | (high << 16) for low, high in pairs]
    packed = np.stack([*words, taps[:, 1, 2] & 0xFFFF, bias.astype(np.int64), multiplier.astype(np.int64)], 1)
    return _words(packed)


def emit_strips(node: Node, builder: Builder, kernel: Kernel) -> None:
    """3×3 on strips: weights, bias and multiplier in one stream."""
    shape, store, name = ConvShape.of(node), store_of(node), node.output.name
    way, scale = strips(shape), _scaled(node)
    assert scale is not None
    taps = weights_of(node).reshape(-1, 3, 3).astype(np.int64) << scale
    bias = store.constants["bias"].astype(np.int64) << scale
    packed = packed_taps(taps.transpose(0, 2, 1) if way.columns else taps, bias, store.constants["multiplier"])
    builder.emit(
        node,
        kernel,
        [
            ("x", Access.IN, builder.buffer(node.input(0))),
            ("w", Access.IN, builder.const(f"{name}.weights", packed)),
            ("y", Access.OUT, builder.buffer(node.output)),
            ("strip", Access.SCRATCH, builder.scratch(f"{name}.strip", DType.INT32, 10 * way.points.extent)),
        ],
        _strip_params(shape, way, store) | {"y_zero": node.output.type.q.zero_point},
        code={"stride": way.stride, "clamp": _is_clamped(node, store)},
        inplace=[("y", "x")] if way.may_overwrite_input() else [],
        variant=f"stride{way.stride}",
    )


def strip_count(node: Node) -> int:
    """Strips of four channels: what their start costs is the `extra` of 3×3 kernels on strips."""
    shape = ConvShape.of(node)
    way = strips(shape)
    return shape.batch * -(-shape.in_c // WORD) * -(-way.lines.out * way.stride // 2)


def _is_clamped(node: Node, store: Store) -> bool:
    """Whether results are limited to less than their type holds."""
    return (store.params["low"], store.params["high"]) != node.output.type.dtype.limits


def _strip_params(shape: ConvShape, way: Strips, store: Store) -> dict[str, Param]:
    lines, points = way.lines, way.points
    return {
        "batch": shape.batch,
        "channels": shape.in_c,
        "x_size": shape.in_h * shape.in_w * shape.in_c,
        "y_size": shape.out_h * shape.out_w * shape.out_c,
        "lines": lines.size,
        "out_lines": lines.out,
        "line_pad": lines.pad,
        "x_line": lines.step,
        "y_line": lines.out_step,
        "extent": way.points.extent,
        "points": min(points.size, way.points.extent - points.pad),
        "out_points": points.out,
        "point_pad": points.pad,
        "x_point": points.step,
        "y_point": points.out_step,
        **{key: store.params[key] for key in ("x_zero", "low", "high") if key in store.params},
    }


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


def neighbouring_lines(node: Node) -> bool:
    """rows or columns whose neighbours are read together"""
    return tap_strips(ConvShape.of(node).as_row()) is not None


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


def emit_tap_strips(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Any kernel on strips."""
    shape, store, name = ConvShape.of(node).as_row(), store_of(node), node.output.name
    row, shift, clamp = folded(shape), int(str(store.code["shift"])), _is_clamped(node, store)
    way, scale = row or tap_strips(shape), max(32 - shift, 0)
    assert way is not None
    taps = weights_of(node).reshape(-1, shape.k_h, shape.k_w).astype(np.int64) << scale
    pairs = paired_taps(taps.transpose(0, 2, 1) if way.columns or row else taps, way.at_once, 1 if row else 4)
    bias, multiplier = (store.constants[key].astype(np.int64)[:, None] for key in ("bias", "multiplier"))
    ends = np.full_like(bias, _end_word(node, store))
    packed = np.concatenate([bias << scale, bias << scale, pairs, multiplier, ends], 1)
    builder.emit(
        node,
        kernel,
        [
            ("x", Access.IN, builder.buffer(node.input(0))),
            ("w", Access.IN, builder.const(f"{name}.weights", _words(packed))),
            ("y", Access.OUT, builder.buffer(node.output)),
            ("strip", Access.SCRATCH, builder.scratch(f"{name}.strip", DType.INT32, 4 * way.pairs * way.points.extent)),
        ],
        _strip_params(shape, way, store)
        | (_fold_params(shape, way) if row else {})
        | ({"shift": shift - 32} if shift > 32 else {}),
        code={
            "x_t": node.sig.input(0).dtype.c,
            "y_t": node.output.type.dtype.c,
            "shifted": shift > 32,
            "folded": row is not None,
            "clamp": clamp,
            "stride": way.points.stride,
            "dilation": way.points.dilation,
            "pairs": way.pairs,
            "lines": way.at_once,
            "k_lines": way.lines.taps,
            "k_points": way.points.taps,
        },
        inplace=[("y", "x")] if _taps_stay_behind(node, shape, row, way) else [],
        variant=f"row{shape.k_w}" if row else f"{way.lines.taps}x{way.points.taps}",
    )


def _taps_stay_behind(node: Node, shape: ConvShape, row: TapStrips | None, way: TapStrips) -> bool:
    if node.sig.input(0).dtype is not node.output.type.dtype:
        return False
    return shape.out_w <= shape.in_w if row else stays_behind(way, way.at_once, 2 * way.pairs)


def _fold_params(shape: ConvShape, way: TapStrips) -> dict[str, Param]:
    """What differs where a row is folded: points are single again."""
    return {"points": min(shape.in_w, 2 * way.points.extent - shape.pad_w), "out_points": shape.out_w}


def _words(packed: Array) -> Array:
    """32 bits of each element."""
    return (packed & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def rows_of_three(node: Node) -> bool:
    """3×3 weights, three output pixels or more in a row; sums of which 32 bits are the result"""
    shape = ConvShape.of(node)
    near = shape.dilation_w == 1 and shape.stride_w < 3
    return shape.k_h == shape.k_w == 3 and near and shape.out_w > 2 and _scaled(node) == 0


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


def emit_rows_of_three(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Three pixels of a channel at a time, from a ring of padded rows."""
    shape, store, name = ConvShape.of(node), store_of(node), node.output.name
    weights = weights_of(node).reshape(-1, 3, 3)
    bias, multiplier = small_constants(weights, store.constants["bias"], store.constants["multiplier"])
    packed = packed_rows(weights, bias, multiplier)
    sums = np.abs(weights.astype(np.int64)).sum((1, 2)) * 128 + np.abs(bias)
    short = bool(sums.max(initial=0) < SHORT_SUM)
    params = shape.params() | ring_params(shape, shape.is_inside) | {"y_zero": node.output.type.q.zero_point}
    threes = np.minimum(np.arange(0, shape.out_w, 3), shape.out_w - 3)[:, None] + np.arange(3)
    pixels = np.arange(shape.out_h)[:, None, None] * shape.out_w + threes
    order = windows(shape, pixels.reshape(-1, 3)) if shape.is_inside else rows(shape)
    builder.emit(
        node,
        kernel,
        [
            ("x", Access.IN, builder.buffer(node.input(0))),
            ("w", Access.IN, builder.const(f"{name}.weights", packed)),
            ("y", Access.OUT, builder.buffer(node.output)),
            ("rows", Access.SCRATCH, builder.scratch(f"{name}.rows", DType.INT8, ring_size(shape, shape.is_inside))),
        ],
        params | {key: store.params[key] for key in ("x_zero", "low", "high")},
        code={"stride": shape.stride_w, "clamp": _is_clamped(node, store), "short": short},
        overlaps=overlaps(node, order),
        variant=f"stride{shape.stride_w}",
    )


# --------------------------------------------------------------------------------------------------- float


def _lane_shape(node: Node) -> ConvShape:
    """A column of up to 9 taps as a row, whose taps are written out."""
    shape = ConvShape.of(node)
    return shape.as_row() if shape.as_row().k_w <= 9 else shape


def short_rows(node: Node) -> bool:
    """at most 9 weights in a row, four channels or more, no other clamp than at 0 and above"""
    shape, clamp = _lane_shape(node), clamp_of(node)
    simple = clamp is None or clamp[0] == 0 or (math.isinf(clamp[0]) and math.isinf(clamp[1]))
    return shape.k_w <= 9 and shape.k_h * shape.k_w <= 121 and shape.in_c >= WORD and simple


def blocks_of(channels: int, lanes: int) -> list[slice]:
    """The channels in blocks of `lanes`; the last one may overlap that before."""
    starts = [min(first, channels - lanes) for first in range(0, channels, lanes)]
    return [slice(first, first + lanes) for first in starts]


def emit_lanes(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Eight (or four) channels of a pixel at a time, from a ring of padded rows."""
    shape, weights, store, name = _lane_shape(node), weights_of(node), store_of(node), node.output.name
    count = 2 * WORD if shape.in_c >= 2 * WORD else WORD
    taps = np.concatenate([store.constants["bias"][None], weights.reshape(shape.in_c, -1).T])
    packed = np.concatenate([taps[:, block].reshape(-1) for block in blocks_of(shape.in_c, count)])
    params = shape.params() | ring_params(shape, shape.is_inside)
    starts = np.asarray([block.start for block in blocks_of(shape.in_c, count)])
    order = lanes(shape, starts, count) if shape.is_inside else rows(shape)
    relu = not math.isinf(float(store.params["low"]))
    builder.emit(
        node,
        kernel,
        [
            ("x", Access.IN, builder.buffer(node.input(0))),
            ("w", Access.IN, builder.const(f"{name}.weights", packed)),
            ("y", Access.OUT, builder.buffer(node.output)),
            ("rows", Access.SCRATCH, builder.scratch(f"{name}.rows", DType.FLOAT32, ring_size(shape, shape.is_inside))),
        ],
        params | {key: store.params[key] for key in ("high",) if key in store.params},
        code={"lanes": count, "k_h": shape.k_h, "k_w": shape.k_w, "relu": relu, "high": "high" in store.params}
        | {"written_out": shape.k_h <= 3 and shape.k_h * shape.k_w <= 9},
        overlaps=overlaps(node, order),
        variant=f"{shape.k_h}x{shape.k_w}" + "_relu" * relu,
    )


DEPTHWISE: tuple[Kernel, ...] = (
    Kernel(
        "depthwise_s8_dsp",
        needs=frozenset({"dsp"}),
        when=(int8_tensors, depthwise, three_by_three, stride_one_or_two, a_word_of_channels, int8_results, high_word),
        emit=emit_strips,
        extra=strip_count,
    ),
    Kernel(
        "depthwise_s8_taps_dsp",
        needs=frozenset({"dsp"}),
        when=(int8_tensors, depthwise, neighbouring_lines, a_word_of_channels, one_word),
        emit=emit_tap_strips,
    ),
    Kernel(
        "depthwise_s16_taps_dsp",
        needs=frozenset({"dsp"}),
        when=(int16_tensors, depthwise, neighbouring_lines, a_word_of_channels, one_word),
        emit=emit_tap_strips,
    ),
    Kernel(
        "depthwise_f32_fpu",
        needs=frozenset({"fpu"}),
        when=(float_tensors, depthwise, short_rows),
        emit=emit_lanes,
    ),
    Kernel("depthwise_s8_3x3", when=(int8_tensors, depthwise, rows_of_three, int8_results), emit=emit_rows_of_three),
)
