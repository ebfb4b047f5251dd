# SPDX-License-Identifier: Apache-2.0
"""Winograd's F(2×2, 3×3), exact in integers: 3×3 convolutions with 16 products for 4 outputs instead of 36.

Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A with G doubled, so that U = (2G) g (2G)ᵀ is whole and Y is 4 times the convolution
(Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np

from mcugen.hir.types import Array, DType
from mcugen.kernels.common.conv_shape import ConvGeometry, ConvShape
from mcugen.kernels.common.loop_options import Loops
from mcugen.kernels.common.reading_order import in_turn, rows, windows
from mcugen.kernels.common.specs import ConvSpec
from mcugen.kernels.common.weighted_layers import int8_weights
from mcugen.kernels.dsp.dsp_conv import STALLS
from mcugen.lir.kernel import (
    CHECKED,
    SHORT_LOOPS,
    Call,
    Kernel,
    Options,
    Params,
    Role,
    Site,
    Trained,
    reads,
    scratch,
    writes,
)
from mcugen.lir.traversal import Traversal

FILTER = np.asarray([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]])
"""2G."""

COLUMNS = (1, 2, 3, 0)
"""The order in which the products of a row of M are made: sums of products come for free then."""


# ------------------------------------------------------------------------------------------------ conditions


def is_3x3(spec: ConvSpec) -> bool:
    """3×3 with stride 1, of 8 or more input channels by fours"""
    s = spec.shape
    steps = (s.stride_h, s.stride_w, s.dilation_h, s.dilation_w, s.groups)
    return (s.k_h, s.k_w) == (3, 3) and set(steps) == {1} and s.in_c >= 8 and s.in_c % 4 == 0 and s.out_c >= 2


def int8_codes(spec: ConvSpec) -> bool:
    """int8 tensors; weights of at most nine bits"""
    if not spec.x.dtype is spec.y.dtype is DType.INT8:  # weights of floats are not to be looked at: some are no numbers
        return False
    return bool(np.abs(spec.weights.astype(np.int64)).max(initial=0) < 256)


def small_sums(spec: ConvSpec) -> bool:
    """four times the sums fit in 32 bits; scales below 1"""
    return 4 * spec.largest_sum < 2**31 and spec.high_word.shift >= 31


FITS = (int8_codes, is_3x3, small_sums)


# --------------------------------------------------------------------------------------------------- packing


def transformed(weights: Array) -> Array:
    """U of [O, 3, 3, C] as [O, 4, 4, C], int64."""
    product: Array = np.einsum("ir,orsc,js->oijc", FILTER, weights.astype(np.int64), FILTER, optimize=True)
    return product


def pairs(channels: int) -> Array:
    """Channels two by two as [pairs, 2]; an odd last one is computed together with its neighbour, once more."""
    first = np.minimum(np.arange(0, channels, 2), channels - 2)
    return np.stack([first, first + 1], 1)


def packed_groups(values: Array) -> Array:
    """[…, C] int16 → […, C/4, 2] words (k0, k2), (k1, k3): what SXTB16 makes of four bytes."""
    fours = values.astype(np.int16).reshape(*values.shape[:-1], -1, 4)[..., [0, 2, 1, 3]]
    return np.ascontiguousarray(fours).view(np.int32)


def chunk_of(groups: int) -> int:
    """How many groups of four channels are written out: a divisor."""
    return max(n for n in range(1, 9) if groups % n == 0)


def at_once(groups: int) -> bool:
    """Whether all groups of all products of a row are written out, so that the stream needs no steps."""
    return groups <= 4


def next_steps(groups: int) -> Array:
    """What comes after each chunk, [4 rows, 4 columns, chunks, 1]: more of the same, or the column's (or row's) end."""
    if at_once(groups):
        return np.zeros((4, 4, 1, 0), np.int32)
    steps = np.zeros((4, 4, groups // chunk_of(groups), 1), np.int32)
    steps[:, :, -1, 0] = np.arange(1, 5)
    steps[3, 3, -1] = 5
    return steps


def sum_starts(biases: Array, groups: int) -> Array:
    """Before each row, [pairs, 4 rows, 4]: both channels' bias at row 1, and either again or whether rows follow."""
    starts = np.zeros((len(biases), 4, 4), np.int64)
    starts[:, 1] = np.tile(biases, 2)
    if at_once(groups):
        starts[:, :, 2:] = [[1, 0], [1, 0], [1, 0], [0, 0]]
    return starts


def stream(spec: ConvSpec) -> Array:
    """All that the products of all pairs of channels read, int32, in reading order."""
    channels = pairs(spec.shape.out_c)
    u = packed_groups(transformed(spec.weights)[channels])[:, :, :, list(COLUMNS)]  # [pair, 2, 4, 4, groups, 2]
    groups, count = u.shape[4], len(channels)
    u = u.transpose(0, 2, 3, 4, 1, 5).reshape(count, 4, 4, -1, 4 * chunk_of(groups))
    steps = np.broadcast_to(next_steps(groups), (count, *next_steps(groups).shape))
    starts = sum_starts(_biases(spec)[channels], groups)
    by_row = np.concatenate([starts, np.concatenate([u, steps], -1).reshape(count, 4, -1)], -1)
    tails = np.empty((count, 6), np.int64)
    tails[:, :2] = spec.multipliers[channels]
    tails[:, 2], tails[:, 4], tails[:, 5] = _limits(spec)
    tails[:, 3] = np.append(np.diff(channels[:, 0]), 0)
    return np.concatenate([by_row.reshape(count, -1), tails], -1).astype(np.int32).reshape(-1)


def int8_stream(spec: ConvSpec) -> Array:
    """By pairs of channels: biases, multipliers, then for each four inputs nine words of the second's taps, and of
    the first's; int32."""
    weights, channels = spec.weights, pairs(spec.shape.out_c)
    fours = weights.reshape(len(weights), 9, -1, 4)[channels[:, ::-1]].transpose(0, 3, 1, 2, 4)
    words = np.ascontiguousarray(fours.astype(np.int8)).view(np.int32).reshape(len(channels), -1)
    head = np.concatenate([_biases(spec)[channels], spec.multipliers[channels]], -1)
    return np.concatenate([head, words], -1).astype(np.int32)


def plain_stream(spec: ConvSpec) -> Array:
    """The same for one channel at a time."""
    u = transformed(spec.weights)[:, :, list(COLUMNS)]
    words = np.ascontiguousarray(u.astype(np.int16)).view(np.int32).reshape(len(u), 4, -1)
    starts = np.zeros((len(u), 4, 1), np.int64)
    starts[:, 1, 0] = _biases(spec)
    tails = np.empty((len(u), 5), np.int64)
    tails[:, 0] = spec.multipliers
    tails[:, 1], tails[:, 3], tails[:, 4] = _limits(spec)
    tails[:, 2] = np.arange(len(u)) < len(u) - 1
    by_row = np.concatenate([starts, words], -1).reshape(len(u), -1)
    return np.concatenate([by_row, tails], -1).astype(np.int32).reshape(-1)


def plain_int8_stream(spec: ConvSpec) -> Array:
    """By channels: bias, multiplier, then for each two inputs nine taps of both; int32."""
    weights = spec.weights
    twos = weights.reshape(len(weights), 9, -1, 2).transpose(0, 2, 1, 3)
    words = np.ascontiguousarray(twos.astype(np.int8)).reshape(len(weights), -1).view(np.int32)
    head = np.stack([_biases(spec), spec.multipliers], -1)
    return np.concatenate([head, words], -1).astype(np.int32)


def _biases(spec: ConvSpec) -> Array:
    """Of sums four times as large as the convolution, the input's zero point folded in."""
    return 4 * spec.folded_bias


def _limits(spec: ConvSpec) -> tuple[int, int, int]:
    """Zero point and rounding of the upper words of products four times as large; the lowest and highest code."""
    requantize = spec.high_word
    down = requantize.shift - 30
    rounding = (requantize.zero_point << down) + (1 << (down - 1))
    return (rounding, *spec.limits)


# --------------------------------------------------------------------------------------------------- kernels


@dataclass(frozen=True, kw_only=True)
class PaddedRows(Params):
    """A ring of four rows."""

    pitch: Annotated[int, "elements of a row: whole blocks"]
    x_zero: Annotated[Trained, "zero point of x: what padding holds"]


@dataclass(frozen=True, kw_only=True)
class StripOfBlocks(Params):
    """Of weights that are transformed for every strip."""

    blocks: Annotated[int, "blocks of a strip"]
    rounding: Annotated[Trained, "zero point of y and half a step, before the last shift to the right"]
    low: Annotated[Trained, "the lowest code of y"]
    high: Annotated[Trained, "the highest code of y"]


@dataclass(frozen=True, kw_only=True)
class FlyOptions(Options):
    """Of kernels that transform weights."""

    together: Annotated[int, "output channels that are computed at once"]
    v_t: Annotated[str, "C type of transformed inputs"]
    v_size: Annotated[int, "transformed inputs of a block and channel"]
    one_strip: Annotated[bool, "whether a strip is all: weights then come where the rows were"]


@dataclass(frozen=True, kw_only=True)
class TileOptions(Options):
    """What the C functions are made for."""

    across: Annotated[int, "pixels of a block, two of a tile"]
    shift: Annotated[int, "of products with the multiplier to the right, but for the two bits of the transformation"]
    clamp_low: Annotated[bool, "whether results are limited below further than by their type"]
    clamp_high: Annotated[bool, "whether they are above"]
    cut: Annotated[bool, "whether some blocks reach over the border"]
    copied: Annotated[bool, "whether rows are copied and padded; else blocks are read where x lies"]
    chunk: Annotated[int, "turns that are written out of the loop over input channels"]
    once: Annotated[bool, "whether that is all of it"]


DIRECT_PRODUCTS = 36
"""Of the direct form, for which there are 16 here: a step of two pixels and two channels by four elements."""

SHORT = 4
"""At most so many groups are written out where little code is wished."""

FILTER_WORK = 14
"""Products that take as long as to transform a weight, for the cost model."""


@dataclass(frozen=True)
class Grid:
    """Blocks of two rows that cover an image."""

    across: int
    """Pixels of a row of a block, two of a tile."""

    def blocks(self, shape: ConvShape) -> int:
        """How many."""
        return -(-shape.out_w // self.across) * -(-shape.out_h // 2)

    def work(self, spec: ConvSpec) -> int:
        """Products of whole blocks, by the direct form: what is computed, some of it to be thrown away."""
        shape = spec.shape
        return shape.batch * self.blocks(shape) * 2 * self.across * 9 * shape.in_c * shape.out_c


@dataclass(frozen=True)
class Tiles(Grid):
    """A family of kernels: how much its products' function computes at a time, and what it reads."""

    together: int
    """Output channels."""
    v: DType
    """Of transformed inputs: 16 for each tile and channel."""
    loop: Callable[[int], tuple[int, bool]]
    """How many turns are written out of a loop over so many input channels, and whether these are all."""
    words: Callable[[int], int]
    """int32 words of the stream of one pass over so many input channels."""
    stream: Callable[[ConvSpec], Array]
    """Transformed weights, biases and multipliers."""
    int8_stream: Callable[[ConvSpec], Array]
    """The same from int8 weights."""

    def v_size(self, channels: int) -> int:
        """Elements of V of a block."""
        return 8 * self.across * channels

    def strip_work(self, spec: ConvSpec, strip: int) -> int:
        """The same, and what it costs to transform the weights for every strip of so many tiles."""
        shape = spec.shape
        strips = shape.batch * -(-self.blocks(shape) * self.across // (2 * strip))
        return self.work(spec) + strips * FILTER_WORK * spec.weights.size

    def written(self, shape: ConvShape, strip: int) -> Array:
        """By pair of rows of blocks' inputs: where the outputs end that full strips of so many blocks give by then."""
        width, count = -(-shape.out_w // self.across), self.blocks(shape)
        done = np.arange(width, count + 1, width) // strip * strip
        done[-1] = count
        oy, ox = done // width * 2, done % width * self.across
        above = np.minimum(oy, shape.out_h) * shape.out_w
        within = (np.minimum(oy + 2, shape.out_h) - 1) * shape.out_w + np.minimum(ox, shape.out_w)
        ends: Array = np.where(ox > 0, within, above) * shape.out_c
        return ends

    def is_cut(self, shape: ConvShape) -> bool:
        """Whether some blocks reach over the border."""
        return shape.out_w % self.across != 0 or shape.out_h % 2 != 0

    def is_copied(self, shape: ConvShape) -> bool:
        """Whether blocks read more than x has: padding, or columns and rows behind it."""
        has_all = (shape.in_h, shape.in_w) == (shape.out_h + 2, shape.out_w + 2)  # so there is no padding either
        return not has_all or self.is_cut(shape)

    def traversal(self, shape: ConvShape, strip: int = 1) -> Traversal:
        """Of `strip` blocks at once."""
        if self.is_copied(shape):
            return rows(shape, 2, self.written(shape, strip) if strip > 1 else None)
        pixels = np.arange(shape.out_h * shape.out_w).reshape(shape.out_h // 2, 2, -1, self.across)
        blocks = pixels.transpose(0, 2, 1, 3).reshape(self.blocks(shape), -1)
        return windows(shape, blocks[in_turn(len(blocks), strip)].reshape(-1, strip * blocks.shape[1]))


def _dsp_loop(channels: int) -> tuple[int, bool]:
    """In groups of four."""
    return chunk_of(channels // 4), at_once(channels // 4)


def _dsp_words(channels: int) -> int:
    """Rows of M, each with starts and steps, and a tail."""
    return 16 * (1 + channels) + next_steps(channels // 4).size + 6


def _short_loop(channels: int) -> tuple[int, bool]:
    """In up to four groups of four, whatever else: layers of most depths have a function together."""
    return math.gcd(channels // 4, SHORT), False


def _short_words(channels: int) -> int:
    """As above, with a step behind each chunk."""
    groups = channels // 4
    return 16 * (1 + channels) + 16 * groups // math.gcd(groups, SHORT) + 6


def _plain_loop(channels: int) -> tuple[int, bool]:
    """In single channels."""
    return math.gcd(channels, 8), False


def _plain_words(channels: int) -> int:
    """Rows of M, each with a start, and a tail."""
    return 4 * (1 + 2 * channels) + 5


DSP = Tiles(4, 2, DType.INT16, _dsp_loop, _dsp_words, stream, int8_stream)
LITTLE = replace(DSP, loop=_short_loop, words=_short_words)
PLAIN = Tiles(8, 1, DType.INT32, _plain_loop, _plain_words, plain_stream, plain_int8_stream)


def emit_flash(spec: ConvSpec, site: Site, tiles: Tiles) -> Call:
    """Transformed weights in flash, one block at a time."""
    shape = spec.shape
    working = {"rows": _ring(shape, tiles)} if tiles.is_copied(shape) else {}
    working["v"] = tiles.v, tiles.v_size(shape.in_c)
    if tiles.is_cut(shape):
        working["patch"] = (DType.INT8, 2 * tiles.across * shape.out_c)
    return _call(spec, site, tiles, tiles.stream(spec), working, ((), ()), tiles.traversal(shape))


def emit_fly(spec: ConvSpec, site: Site, tiles: Tiles, strip: int) -> Call:
    """int8 weights in flash, transformed for every strip of so many tiles; with LITTLE code no case is apart."""
    shape = spec.shape
    blocks = min(2 * strip // tiles.across, tiles.blocks(shape))
    one_strip = shape.batch == 1 and blocks == tiles.blocks(shape) and tiles is not LITTLE
    ring, words = _ring(shape, tiles), tiles.words(shape.in_c)
    is_copied = tiles.is_copied(shape)
    working = {"rows": ring} if is_copied and not one_strip else {}
    working["v"] = tiles.v, tiles.v_size(shape.in_c) * blocks
    working["u"] = DType.INT32, max(words, ring[1] // DType.INT32.nbytes) if is_copied and one_strip else words
    rounding, low, high = _limits(spec)
    params = StripOfBlocks(blocks=blocks, rounding=rounding, low=low, high=high)
    order = tiles.traversal(shape, blocks)
    fly = FlyOptions(together=tiles.together, v_t=tiles.v.c, v_size=tiles.v_size(1), one_strip=one_strip)
    return _call(spec, site, tiles, tiles.int8_stream(spec), working, ([params], [fly]), order)


def _ring(shape: ConvShape, tiles: Tiles) -> tuple[DType, int]:
    """Four rows, padded to whole blocks."""
    width = max(shape.pad_w + shape.in_w, -(-shape.out_w // tiles.across) * tiles.across + 2)
    return DType.INT8, 4 * width * shape.in_c


def _call(
    spec: ConvSpec,
    site: Site,
    tiles: Tiles,
    packed: Array,
    working: Mapping[str, tuple[DType, int]],
    more: tuple[Sequence[Params], Sequence[Options]],
    order: Traversal,
) -> Call:
    shape = spec.shape
    operands = {"x": site.x, "w": site.const("winograd", packed), "y": site.y}
    for role, size in working.items():
        operands[role] = site.scratch(role, *size)
    padded = PaddedRows(pitch=_ring(shape, tiles)[1] // 4, x_zero=spec.x.q.zero_point)
    variant = "cut" if tiles.is_cut(shape) else "" if tiles.is_copied(shape) else "valid"
    free = spec.overlaps(order)
    loops = [Loops.of(site)] * (Loops in site.kernel.options)
    params, options = [shape.geometry, padded, *more[0]], [_options(spec, tiles), *more[1], *loops]
    return site.call(operands, params, options, overlaps=free, variant=variant)


def _options(spec: ConvSpec, tiles: Tiles) -> TileOptions:
    chunk, once = tiles.loop(spec.shape.in_c)
    low, high = spec.limits
    return TileOptions(
        across=tiles.across,
        shift=spec.high_word.shift,
        clamp_low=low > -128,
        clamp_high=high < 127,
        cut=tiles.is_cut(spec.shape),
        copied=tiles.is_copied(spec.shape),
        chunk=chunk,
        once=once,
    )


_STALLS = {core: cycles / DIRECT_PRODUCTS for core, cycles in STALLS["conv2d_s8_dsp16"].items()}


def _kernel(
    name: str, tiles: Tiles, needs: tuple[str, ...], more: tuple[type[Params], ...], working: tuple[Role, ...]
) -> Kernel:
    return Kernel(
        name,
        what="3 x 3 windows by Winograd's F(2 x 2, 3 x 3): 16 products for four results; exact in integers",
        operands=(
            reads("x", "input, channels last", DType.INT8),
            reads("w", "weights, biases and multipliers in reading order", DType.INT32),
            writes("y", "output, channels last", DType.INT8),
            scratch("rows", "a ring of four padded rows", DType.INT8, optional=True),
            scratch("v", "transformed inputs", tiles.v),
            *working,
        ),
        params=(ConvGeometry, PaddedRows, *more),
        uniform=frozenset({"batch", "pad_h", "pad_w", "x_zero"}),
        without=frozenset({"k_h", "k_w", "stride_h", "stride_w", "dilation_h", "dilation_w"}),
        options=(TileOptions, *[Loops] * bool(needs)),
        needs=frozenset(needs),
        when=FITS,
        stalls=_STALLS if needs else {},
    )


def _flash(name: str, tiles: Tiles, *needs: str) -> Kernel:
    patch = scratch("patch", "a block of the border, of which a part is copied", DType.INT8, optional=True)
    kernel = _kernel(name, tiles, needs, (), (patch,))
    lacks = frozenset({CHECKED})  # the stream tells how far the next channel's results are, and which is the last
    return replace(
        kernel, emit=partial(emit_flash, tiles=tiles), extra=tiles.work, lacks=lacks, loads=4 / (9 * tiles.across)
    )  # a word has two of 16 transformed weights for nine; it serves a block of two rows


def _fly(name: str, tiles: Tiles, strip: int, *needs: str) -> Kernel:
    weights = scratch("u", "transformed weights of the channels that are computed at once", DType.INT32)
    emit, work = partial(emit_fly, tiles=tiles, strip=strip), partial(tiles.strip_work, strip=strip)
    kernel = _kernel(f"{name}_t{strip}", tiles, needs, (StripOfBlocks,), (weights,))
    when = (*FITS, int8_weights)
    options = (TileOptions, FlyOptions, *kernel.options[1:])
    sweeps = 1 / (16 * strip)  # a word has four weights, which serve the strip's tiles of four pixels
    loads = sweeps if needs else 4 * sweeps  # by words, or by bytes
    return replace(kernel, options=options, when=when, emit=emit, extra=work, loads=loads, sweeps=sweeps)


CONV: tuple[Kernel, ...] = (
    _flash("conv2d_s8_winograd_dsp", DSP, "dsp"),
    *(_fly("conv2d_s8_winograd_fly_dsp", DSP, strip, "dsp") for strip in (4, 8, 16, 32)),
    _fly("conv2d_s8_winograd_short_dsp", LITTLE, 16, "dsp", SHORT_LOOPS),
    _flash("conv2d_s8_winograd", PLAIN),
    *(_fly("conv2d_s8_winograd_fly", PLAIN, strip) for strip in (4, 8, 16)),
)
