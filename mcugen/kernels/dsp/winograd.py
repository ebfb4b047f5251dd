# SPDX-License-Identifier: Apache-2.0
"""Winograd's F(2×2, 3×3), exact in integers: 3×3 convolutions with 16 products for 4 outputs instead of 36.

Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A with G doubled, so that U = (2G) g (2G)ᵀ is an integer matrix and Y is 4 times the
convolution (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016). M is the product U ⊙ V with the
transformed inputs V = Bᵀ d B.
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

FILTER_TRANSFORM = np.asarray([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]])
"""Matrix 2 · G, int [4, 3], that transforms a row or column of 3 filter taps to 4 numbers; G is the filter transform of
Winograd's F(2, 3)."""

COLUMN_ORDER = (1, 2, 3, 0)
"""Order in which the kernels compute the four columns of a row of M, the elementwise product of transformed inputs and
weights (summed over channels).

With this order, the sums of products of the output transform need no extra instructions.
"""


# ------------------------------------------------------------------------------------------------ conditions


def is_3x3(spec: ConvSpec) -> bool:
    """Require 3 x 3 windows, stride 1, 8, 12, 16, … input channels and at least two output channels.

    Return whether the layer meets this condition of a kernel.
    """
    s = spec.shape
    steps = (s.stride_height, s.stride_width, s.dilation_height, s.dilation_width, s.groups)
    return (
        (s.kernel_height, s.kernel_width) == (3, 3)
        and set(steps) == {1}
        and s.in_channels >= 8
        and s.in_channels % 4 == 0
        and s.out_channels >= 2
    )


def has_int8_tensors(spec: ConvSpec) -> bool:
    """Require int8 tensors, and weights of at most nine bits.

    Return whether the layer meets this condition of a kernel: x and y are int8, and weights have a magnitude below 256.
    """
    if not spec.x.dtype is spec.y.dtype is DType.INT8:  # Float weights may be NaN.
        return False
    return bool(np.abs(spec.weights.astype(np.int64)).max(initial=0) < 256)


def fits_fourfold_sums(spec: ConvSpec) -> bool:
    """Require that four times the accumulators fit 32 bits, and a requantization shift of at least 31 bits.

    Return whether the layer meets this condition of a kernel. The transformed weights, and so the sums, have a factor
    of 4 (transform_weights).
    """
    return 4 * spec.largest_sum < 2**31 and spec.high_word.shift >= 31


WINOGRAD_CONDITIONS = (has_int8_tensors, is_3x3, fits_fourfold_sums)
"""Conditions (Kernel.when) of all integer Winograd kernels."""


# --------------------------------------------------------------------------------------------------- packing


def transform_weights(weights: Array) -> Array:
    """Transform weights to U = 4 · G · w · Gᵀ as integers, where G is the filter transform of F(2×2, 3×3).

    The factor 4 keeps all elements integers: each side is multiplied by FILTER_TRANSFORM, which is 2 · G.

    Args:
        weights: The filters, [out_channels, 3, 3, in_channels].

    Returns:
        The transformed weights U, int64 [out_channels, 4, 4, in_channels].
    """
    product: Array = np.einsum(
        "ir,orsc,js->oijc", FILTER_TRANSFORM, weights.astype(np.int64), FILTER_TRANSFORM, optimize=True
    )
    return product


def pair_channels(channels: int) -> Array:
    """Return the numbers of the output channels that are computed together, [pairs, 2].

    With an odd number of channels, the last pair contains the second-last channel once more.

    Args:
        channels: Number of output channels.
    """
    first = np.minimum(np.arange(0, channels, 2), channels - 2)
    return np.stack([first, first + 1], 1)


def pack_for_sxtb16(values: Array) -> Array:
    """Pack int16 values [..., C] into 32-bit words [..., C/4, 2]: channels (0, 2), (1, 3) of each four channels.

    This is the order in which SXTB16 extracts four bytes.
    """
    fours = values.astype(np.int16).reshape(*values.shape[:-1], -1, 4)[..., [0, 2, 1, 3]]
    return np.ascontiguousarray(fours).view(np.int32)


def unroll_factor(groups: int) -> int:
    """Return the unroll factor of the loop over groups of four input channels: the largest divisor of `groups` up to 8.

    Args:
        groups: Number of groups of four input channels.
    """
    return max(n for n in range(1, 9) if groups % n == 0)


def is_fully_unrolled(groups: int) -> bool:
    """Return whether the loop over `groups` groups of four input channels is fully unrolled.

    If so, the packed weights need no words that tell the kernel how to continue after each chunk of weights
    (step_words).
    """
    return groups <= 4


def step_words(groups: int) -> Array:
    """Return the words in the packed weights that tell the kernel how to continue after each unrolled chunk of weights.

    A step word is 0 between chunks of a column of M (the product of transformed inputs and weights), the column's
    number from 1 at its end, and 5 at the end of the last row.

    Args:
        groups: Groups of four input channels.

    Returns:
        int32 [4 rows, 4 columns, chunks, 1]; [4, 4, 1, 0] if the loop is fully unrolled.
    """
    if is_fully_unrolled(groups):
        return np.zeros((4, 4, 1, 0), np.int32)
    steps = np.zeros((4, 4, groups // unroll_factor(groups), 1), np.int32)
    steps[:, :, -1, 0] = np.arange(1, 5)
    steps[3, 3, -1] = 5
    return steps


def accumulator_starts(biases: Array, groups: int) -> Array:
    """Return the start values of the accumulators of each pair of output channels: four words for each row of M.

    M is the 4×4 matrix of products of transformed inputs and weights. The words for row 1 (of the rows 0 to 3) are the
    biases of both channels, twice; those for the other rows are 0. If the loop over input channels is fully unrolled,
    the last two words of each row are replaced by a flag, which is 1 if another row follows, and by 0.

    Args:
        biases: Biases by pair of output channels, [pairs, 2].
        groups: Groups of four input channels.

    Returns:
        int64 [pairs, 4 rows, 4].
    """
    starts = np.zeros((len(biases), 4, 4), np.int64)
    starts[:, 1] = np.tile(biases, 2)
    if is_fully_unrolled(groups):
        starts[:, :, 2:] = [[1, 0], [1, 0], [1, 0], [0, 0]]
    return starts


def pack_transformed(spec: ConvSpec) -> Array:
    """Pack the transformed weights of all pairs of output channels as a flat int32 array in reading order.

    M is the product of transformed inputs and weights, U the transformed weights. Each pair has, for every row of M,
    the start values of its accumulators and the chunks of U with their step words (step_words); then both multipliers,
    the rounding term, the distance to the next pair in words, and the limits of results.
    """
    channels = pair_channels(spec.shape.out_channels)
    u = pack_for_sxtb16(transform_weights(spec.weights)[channels])[
        :, :, :, list(COLUMN_ORDER)
    ]  # [pair, 2, 4, 4, groups, 2]
    groups, count = u.shape[4], len(channels)
    u = u.transpose(0, 2, 3, 4, 1, 5).reshape(count, 4, 4, -1, 4 * unroll_factor(groups))
    steps = np.broadcast_to(step_words(groups), (count, *step_words(groups).shape))
    starts = accumulator_starts(_biases(spec)[channels], groups)
    by_row = np.concatenate([starts, np.concatenate([u, steps], -1).reshape(count, 4, -1)], -1)
    tails = np.empty((count, 6), np.int64)
    tails[:, :2] = spec.multipliers[channels]
    tails[:, 2], tails[:, 4], tails[:, 5] = _limits(spec)
    tails[:, 3] = np.append(np.diff(channels[:, 0]), 0)
    return np.concatenate([by_row.reshape(count, -1), tails], -1).astype(np.int32).reshape(-1)


def pack_int8(spec: ConvSpec) -> Array:
    """Pack untransformed int8 weights as int32 [pairs of output channels, words], for kernels that transform them.

    Each pair has two biases, two multipliers and its taps. For every four inputs there are nine words of taps of the
    second channel, then nine of the first.
    """
    weights, channels = spec.weights, pair_channels(spec.shape.out_channels)
    fours = weights.reshape(len(weights), 9, -1, 4)[channels[:, ::-1]].transpose(0, 3, 1, 2, 4)
    words = np.ascontiguousarray(fours.astype(np.int8)).view(np.int32).reshape(len(channels), -1)
    head = np.concatenate([_biases(spec)[channels], spec.multipliers[channels]], -1)
    return np.concatenate([head, words], -1).astype(np.int32)


def pack_transformed_by_channel(spec: ConvSpec) -> Array:
    """Pack the transformed weights of single output channels as a flat int32 array in reading order.

    M is the product of transformed inputs and weights, U the transformed weights. Each channel has, for every row of M,
    the start value of its accumulators and U; then the multiplier, the rounding term, whether another channel follows,
    and the limits of results.
    """
    u = transform_weights(spec.weights)[:, :, list(COLUMN_ORDER)]
    words = np.ascontiguousarray(u.astype(np.int16)).view(np.int32).reshape(len(u), 4, -1)
    starts = np.zeros((len(u), 4, 1), np.int64)
    starts[:, 1, 0] = _biases(spec)
    tails = np.empty((len(u), 5), np.int64)
    tails[:, 0] = spec.multipliers
    tails[:, 1], tails[:, 3], tails[:, 4] = _limits(spec)
    tails[:, 2] = np.arange(len(u)) < len(u) - 1
    by_row = np.concatenate([starts, words], -1).reshape(len(u), -1)
    return np.concatenate([by_row, tails], -1).astype(np.int32).reshape(-1)


def pack_int8_by_channel(spec: ConvSpec) -> Array:
    """Pack untransformed int8 weights as int32 [output channels, words], for kernels that transform them at run time.

    Each channel has its bias, its multiplier, and nine words of taps for each two inputs.
    """
    weights = spec.weights
    twos = weights.reshape(len(weights), 9, -1, 2).transpose(0, 2, 1, 3)
    words = np.ascontiguousarray(twos.astype(np.int8)).reshape(len(weights), -1).view(np.int32)
    head = np.stack([_biases(spec), spec.multipliers], -1)
    return np.concatenate([head, words], -1).astype(np.int32)


def _biases(spec: ConvSpec) -> Array:
    """Return the biases of sums four times as large as the convolution, with the input's zero point folded in."""
    return 4 * spec.folded_bias


def _limits(spec: ConvSpec) -> tuple[int, int, int]:
    """Return (zero point and rounding term of high words for fourfold sums, lowest result, highest result)."""
    requantize = spec.high_word
    down = requantize.shift - 30
    rounding = (requantize.zero_point << down) + (1 << (down - 1))
    return (rounding, *spec.limits)


# --------------------------------------------------------------------------------------------------- kernels


class PaddedRows(Params):
    """Kernel parameters of the ring buffer of four padded input rows: elements of a row, and padding value.

    A block is the output pixels that are computed together, two rows high.
    """

    padded_row_size: Annotated[int, "elements of a padded row, a multiple of the block width"]
    x_zero_point: Annotated[Trained, "zero point of x, the value of padding"]


class StripOfBlocks(Params):
    """Kernel parameters of kernels that transform the weights once for every strip of blocks.

    A block is the output pixels that are computed together, two rows high; a strip is a sequence of blocks.
    """

    strip_blocks: Annotated[int, "blocks of a strip, which share one transformation of the weights"]
    requantize_offset: Annotated[Trained, "zero point of y plus one half, before the last right shift"]
    low: Annotated[Trained, "lowest quantized value of y"]
    high: Annotated[Trained, "highest quantized value of y"]


class TransformingOptions(Options):
    """Template options of kernels that transform the weights at run time.

    They also describe the transformed inputs: their C type and their number per block and channel. A block is the
    output pixels that are computed together, two rows high; a strip is a sequence of blocks.
    """

    channels_per_pass: Annotated[int, "output channels that are computed at once"]
    v_t: Annotated[str, "C type of transformed inputs"]
    v_size: Annotated[int, "transformed inputs of a block and channel"]
    one_strip: Annotated[bool, "whether one strip covers the image: transformed weights then overwrite the copied rows"]


class WinogradOptions(Options):
    """Template options of all integer Winograd kernels: blocks, padding, limits of results, and loops.

    A block is the output pixels that are computed together, two rows high; a tile is 2×2 output pixels.
    """

    block_width: Annotated[int, "output pixels in a row of a block; a tile has two"]
    shift: Annotated[int, "right shift of products with the multiplier, without the two bits of the transformation"]
    clamp_low: Annotated[bool, "whether results are limited below further than by their type"]
    clamp_high: Annotated[bool, "whether results are limited above further than by their type"]
    has_partial_blocks: Annotated[bool, "whether some blocks extend beyond the border of the image"]
    pads_rows: Annotated[bool, "whether rows are copied and padded; else blocks are read in x"]
    unrolled_turns: Annotated[int, "unroll factor of the loop over groups of input channels"]


class FullUnroll(Options):
    """Template option of the DSP kernels: whether the loop over input channels is fully unrolled.

    If so, the packed weights need no words that tell the kernel how to continue after each chunk of weights
    (step_words).
    """

    fully_unrolled: Annotated[bool, "whether the loop over input channels is fully unrolled"]


MAX_SHORT_UNROLL = 4
"""Largest unroll factor, in groups of four channels, under the tuning flag SHORT_LOOPS."""

FILTER_TRANSFORM_PRODUCTS = 14
"""Time to transform one weight, in products (multiply-accumulates) that take as long, for the cost model."""


@dataclass(frozen=True)
class Grid:
    """A division of images into blocks of output pixels, two rows high, which a Winograd kernel computes one by one.

    Attributes:
        block_width: Output pixels per row of a block: 2 for each tile of 2×2 output pixels.
    """

    block_width: int

    def blocks(self, shape: ConvShape) -> int:
        """Return the number of blocks that cover an output image; a block is two rows of `block_width` pixels.

        Blocks that extend beyond the border of the image count, too.
        """
        return -(-shape.out_width // self.block_width) * -(-shape.out_height // 2)

    def work(self, spec: ConvSpec) -> int:
        """Count the multiply-accumulates by which a direct convolution would compute all blocks, for the cost model.

        A block is two rows of `block_width` output pixels, which a Winograd kernel computes together. Its pixels beyond
        the border of the image count, since they are computed and discarded.
        """
        shape = spec.shape
        return shape.batch * self.blocks(shape) * 2 * self.block_width * 9 * shape.in_channels * shape.out_channels


@dataclass(frozen=True)
class Tiles(Grid):
    """A family of Winograd kernels: how much the inner function computes at a time, and the weight packing.

    A tile is 2×2 output pixels, and a block one or more tiles side by side.

    Attributes:
        channels_per_pass: Number of output channels that the inner function computes together.
        v: Type of the transformed inputs V; there are 16 for each tile and channel.
        loop: Function that returns, for a number of input channels, the unroll factor of the loop over them (in groups
            of four channels; in plain C, in channels), and whether the loop is fully unrolled.
        words: Function that returns, for a number of input channels, the int32 words of transformed weights that the
            inner function reads for `channels_per_pass` output channels.
        pack_transformed: Function that packs a layer's transformed weights, biases and multipliers, for kernels that
            read them from flash.
        pack_int8: Function that packs a layer's int8 weights, biases and multipliers, for kernels that transform the
            weights at run time.
    """

    channels_per_pass: int
    v: DType
    loop: Callable[[int], tuple[int, bool]]
    words: Callable[[int], int]
    pack_transformed: Callable[[ConvSpec], Array]
    pack_int8: Callable[[ConvSpec], Array]

    def v_size(self, channels: int) -> int:
        """Return the number of transformed inputs (V) of one block of output pixels, for `channels` input channels."""
        return 8 * self.block_width * channels

    def strip_work(self, spec: ConvSpec, strip: int) -> int:
        """Count the multiply-accumulates of a kernel that transforms the weights at run time, for the cost model.

        These are those of a direct convolution of all blocks, plus the transformation of the weights for every strip,
        counted as the multiply-accumulates that take as long (FILTER_TRANSFORM_PRODUCTS).

        Args:
            spec: The layer.
            strip: Number of tiles (2×2 output pixels) that share one transformation of the weights.
        """
        shape = spec.shape
        strips = shape.batch * -(-self.blocks(shape) * self.block_width // (2 * strip))
        return self.work(spec) + strips * FILTER_TRANSFORM_PRODUCTS * spec.weights.size

    def written_ends(self, shape: ConvShape, strip: int) -> Array:
        """Return how much of y is written after each row of blocks, as the index behind the last written element.

        A block is two rows of `block_width` output pixels. The kernel writes the results of `strip` blocks together, so
        the outputs of a block count only when all blocks of its strip are computed.

        Args:
            shape: Geometry of the convolution.
            strip: Number of blocks that are computed together.
        """
        width, count = -(-shape.out_width // self.block_width), self.blocks(shape)
        finished_blocks = np.arange(width, count + 1, width) // strip * strip
        finished_blocks[-1] = count
        oy, ox = finished_blocks // width * 2, finished_blocks % width * self.block_width
        ends_above = np.minimum(oy, shape.out_height) * shape.out_width
        ends_in_row = (np.minimum(oy + 2, shape.out_height) - 1) * shape.out_width + np.minimum(ox, shape.out_width)
        ends: Array = np.where(ox > 0, ends_in_row, ends_above) * shape.out_channels
        return ends

    def has_partial_blocks(self, shape: ConvShape) -> bool:
        """Return whether some blocks of output pixels extend beyond the border of the image."""
        return shape.out_width % self.block_width != 0 or shape.out_height % 2 != 0

    def pads_rows(self, shape: ConvShape) -> bool:
        """Return whether the kernel reads padded copies of the input rows instead of reading them in x.

        It does so if some block, which is two rows of output pixels, depends on padding or on rows or columns beyond x.
        """
        has_all = (shape.in_height, shape.in_width) == (
            shape.out_height + 2,
            shape.out_width + 2,
        )  # This excludes padding.
        return not has_all or self.has_partial_blocks(shape)

    def traversal(self, shape: ConvShape, strip: int = 1) -> Traversal:
        """Return the order in which a kernel reads x and writes y, from which follows how far both may overlap.

        Args:
            shape: Geometry of the convolution.
            strip: Number of blocks that the kernel computes at once; a block is two rows of `block_width` output
                pixels.
        """
        if self.pads_rows(shape):
            return rows(shape, 2, self.written_ends(shape, strip) if strip > 1 else None)
        pixels = np.arange(shape.out_height * shape.out_width).reshape(shape.out_height // 2, 2, -1, self.block_width)
        blocks = pixels.transpose(0, 2, 1, 3).reshape(self.blocks(shape), -1)
        return windows(shape, blocks[in_turn(len(blocks), strip)].reshape(-1, strip * blocks.shape[1]))


def _dsp_loop(channels: int) -> tuple[int, bool]:
    """Return the unroll factor in groups of four channels, and whether it covers all."""
    return unroll_factor(channels // 4), is_fully_unrolled(channels // 4)


def _dsp_words(channels: int) -> int:
    """Count the words of one pass: four rows of M with start and step words, and a tail of six."""
    return 16 * (1 + channels) + step_words(channels // 4).size + 6


def _short_loop(channels: int) -> tuple[int, bool]:
    """Return an unroll factor of up to four groups, so that layers of most depths share a function."""
    return math.gcd(channels // 4, MAX_SHORT_UNROLL), False


def _short_words(channels: int) -> int:
    """Count the words of one pass, with a step word behind each chunk."""
    groups = channels // 4
    return 16 * (1 + channels) + 16 * groups // math.gcd(groups, MAX_SHORT_UNROLL) + 6


def _plain_loop(channels: int) -> tuple[int, bool]:
    """Return the unroll factor in single channels, and that a loop remains."""
    return math.gcd(channels, 8), False


def _plain_words(channels: int) -> int:
    """Count the words of one pass: four rows of M with a start word each, and a tail of five."""
    return 4 * (1 + 2 * channels) + 5


DSP_TILES = Tiles(4, 2, DType.INT16, _dsp_loop, _dsp_words, pack_transformed, pack_int8)
"""Winograd kernels for the DSP extension, which compute two tiles by two output channels at a time."""

DSP_SHORT_TILES = replace(DSP_TILES, loop=_short_loop, words=_short_words)
"""Winograd kernels for the DSP extension whose loops are unrolled less, to save code (tuning flag SHORT_LOOPS)."""

PLAIN_TILES = Tiles(8, 1, DType.INT32, _plain_loop, _plain_words, pack_transformed_by_channel, pack_int8_by_channel)
"""Winograd kernels in plain C, which compute four tiles by one output channel at a time."""


def emit_flash(spec: ConvSpec, site: Site, tiles: Tiles) -> Call:
    """Emit the Winograd kernel that reads transformed weights from flash, and computes one block of pixels at a time.

    Args:
        spec: The layer.
        site: Operands and CPU features of the call.
        tiles: The family of the kernel: its blocks, loops and weight packing.
    """
    shape = spec.shape
    working = {"rows": _ring(shape, tiles)} if tiles.pads_rows(shape) else {}
    working["v"] = tiles.v, tiles.v_size(shape.in_channels)
    if tiles.has_partial_blocks(shape):
        working["patch"] = (DType.INT8, 2 * tiles.block_width * shape.out_channels)
    return _call(spec, site, tiles, tiles.pack_transformed(spec), working, ((), ()), tiles.traversal(shape))


def emit_transforming(spec: ConvSpec, site: Site, tiles: Tiles, strip: int) -> Call:
    """Emit the Winograd kernel that reads int8 weights from flash and transforms them for every strip of tiles.

    Under the tuning flag SHORT_LOOPS (less code), no C function is specialized for images of a single strip.

    Args:
        spec: The layer.
        site: Operands and CPU features of the call.
        tiles: The family of the kernel: its blocks, loops and weight packing.
        strip: Number of tiles (2×2 output pixels) that share one transformation of the weights.
    """
    shape = spec.shape
    blocks = min(2 * strip // tiles.block_width, tiles.blocks(shape))
    one_strip = shape.batch == 1 and blocks == tiles.blocks(shape) and tiles is not DSP_SHORT_TILES
    ring, words = _ring(shape, tiles), tiles.words(shape.in_channels)
    pads_rows = tiles.pads_rows(shape)
    working = {"rows": ring} if pads_rows and not one_strip else {}
    working["v"] = tiles.v, tiles.v_size(shape.in_channels) * blocks
    working["u"] = DType.INT32, max(words, ring[1] // DType.INT32.nbytes) if pads_rows and one_strip else words
    rounding, low, high = _limits(spec)
    params = StripOfBlocks(strip_blocks=blocks, requantize_offset=rounding, low=low, high=high)
    order = tiles.traversal(shape, blocks)
    fly = TransformingOptions(
        channels_per_pass=tiles.channels_per_pass, v_t=tiles.v.c, v_size=tiles.v_size(1), one_strip=one_strip
    )
    return _call(spec, site, tiles, tiles.pack_int8(spec), working, ([params], [fly]), order)


def _ring(shape: ConvShape, tiles: Tiles) -> tuple[DType, int]:
    """Return type and size of a ring buffer of four rows, padded to whole blocks."""
    width = max(shape.padding_left + shape.in_width, -(-shape.out_width // tiles.block_width) * tiles.block_width + 2)
    return DType.INT8, 4 * width * shape.in_channels


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
    row_size = packed.size // -(-shape.out_channels // tiles.channels_per_pass)
    operands = {"x": site.x, "w": site.const("winograd", packed, row_size), "y": site.y}
    for role, size in working.items():
        operands[role] = site.scratch(role, *size)
    padded = PaddedRows(padded_row_size=_ring(shape, tiles)[1] // 4, x_zero_point=spec.x.q.zero_point)
    variant = "cut" if tiles.has_partial_blocks(shape) else "" if tiles.pads_rows(shape) else "valid"
    free = spec.overlaps(order)
    loops: list[Options] = []
    if Loops in site.kernel.options:
        loops = [FullUnroll(fully_unrolled=tiles.loop(shape.in_channels)[1]), Loops.of(site)]
    params, options = [shape.geometry, padded, *more[0]], [_options(spec, tiles), *more[1], *loops]
    return site.call(operands, params, options, overlaps=free, variant=variant)


def _options(spec: ConvSpec, tiles: Tiles) -> WinogradOptions:
    low, high = spec.limits
    return WinogradOptions(
        block_width=tiles.block_width,
        shift=spec.high_word.shift,
        clamp_low=low > -128,
        clamp_high=high < 127,
        has_partial_blocks=tiles.has_partial_blocks(spec.shape),
        pads_rows=tiles.pads_rows(spec.shape),
        unrolled_turns=tiles.loop(spec.shape.in_channels)[0],
    )


_STALLS = {"cortex-m4": 0.31, "cortex-m33": 0.26, "cortex-m7": -0.02}
"""Stall cycles per replaced product, by core (measured without waits on layers of ResNet8, which differ by 14 %)."""

_STALLS_ON_THE_FLY = {"cortex-m4": 0.26, "cortex-m33": 0.2, "cortex-m7": -0.01}
"""Stall cycles, as in _STALLS, of kernels that transform the weights of each strip."""


def _kernel(
    name: str,
    tiles: Tiles,
    needs: tuple[str, ...],
    more: tuple[type[Params], ...],
    working: tuple[Role, ...],
    order: str,
) -> Kernel:
    return Kernel(
        name,
        what="3 x 3 windows by Winograd's F(2 x 2, 3 x 3): 16 products for four results; exact in integers",
        operands=(
            reads("x", "input, channels last", DType.INT8),
            reads("w", f"by {tiles.channels_per_pass} output channels: {order}", DType.INT32, holds=(1, 2)),
            writes("y", "output, channels last", DType.INT8),
            scratch("rows", "a ring of four padded rows", DType.INT8, optional=True),
            scratch("v", "transformed inputs", tiles.v),
            *working,
        ),
        params=(ConvGeometry, PaddedRows, *more),
        uniform=frozenset({"batch", "padding_top", "padding_left", "x_zero_point"}),
        without=frozenset(
            {"kernel_height", "kernel_width", "stride_height", "stride_width", "dilation_height", "dilation_width"}
        ),
        options=(WinogradOptions, *((FullUnroll, Loops) if needs else ())),
        needs=frozenset(needs),
        when=WINOGRAD_CONDITIONS,
        stalls=_STALLS if needs else {},
    )


def _flash(name: str, tiles: Tiles, *needs: str) -> Kernel:
    patch = scratch("patch", "a block of the border, of which a part is copied", DType.INT8, optional=True)
    order = "start values and transformed weights of each row; then multipliers, rounding, distance or end, limits"
    kernel = _kernel(name, tiles, needs, (), (patch,), order)
    lacks = frozenset({CHECKED})  # The weights hold distances of results.
    return replace(
        kernel, emit=partial(emit_flash, tiles=tiles), extra=tiles.work, lacks=lacks, loads=4 / (9 * tiles.block_width)
    )  # A word holds two of the 16 weights that replace nine, and serves a block of two rows.


def _fly(name: str, tiles: Tiles, strip: int, *needs: str) -> Kernel:
    weights = scratch("u", "transformed weights of the channels that are computed at once", DType.INT32)
    emit, work = partial(emit_transforming, tiles=tiles, strip=strip), partial(tiles.strip_work, strip=strip)
    order = "biases, multipliers, int8 weights of a few inputs at a time"
    kernel = _kernel(f"{name}_t{strip}", tiles, needs, (StripOfBlocks,), (weights,), order)
    when = (*WINOGRAD_CONDITIONS, int8_weights)
    options = (WinogradOptions, TransformingOptions, *kernel.options[1:])
    sweeps = 1 / (16 * strip)  # A word holds four weights, which serve all tiles of a strip.
    loads = sweeps if needs else 4 * sweeps  # Weights are loaded by words, or by bytes.
    stalls = _STALLS_ON_THE_FLY if needs else {}
    return replace(kernel, options=options, when=when, emit=emit, extra=work, loads=loads, sweeps=sweeps, stalls=stalls)


WINOGRAD_CONV: tuple[Kernel, ...] = (
    _flash("conv2d_s8_winograd_dsp", DSP_TILES, "dsp"),
    *(_fly("conv2d_s8_winograd_fly_dsp", DSP_TILES, strip, "dsp") for strip in (4, 8, 16, 32)),
    _fly("conv2d_s8_winograd_short_dsp", DSP_SHORT_TILES, 16, "dsp", SHORT_LOOPS),
    _flash("conv2d_s8_winograd", PLAIN_TILES),
    *(_fly("conv2d_s8_winograd_fly", PLAIN_TILES, strip) for strip in (4, 8, 16)),
)
"""Winograd kernels of int8 convolutions, in order of preference."""
