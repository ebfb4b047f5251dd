# SPDX-License-Identifier: Apache-2.0
"""Convolutions and dense layers for the DSP extension (Armv7E-M, Armv8-M Mainline): two products per instruction.

    y[r][n] = requantize(bias[n] + sum over k of x[r][k] · w[n][k]), where a row r of x is a window (im2col).

SMLAD multiplies pairs of 16-bit values. A tile is two pixels by two or four channels for convolutions, one row by four
channels for dense layers, so that four or eight sums stay in registers. Activations are widened to an int16 patch once
per tile row. The schemes of the inner loops and their registers are described in templates/kernels/dsp.j2; this module
packs the weights for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from mcugen.hir.types import Array, DType
from mcugen.kernels.common.conv_shape import ConvGeometry, ConvShape
from mcugen.kernels.common.loop_options import Loops
from mcugen.kernels.common.reading_order import in_turn, windows
from mcugen.kernels.common.reading_order import rows as ring_rows
from mcugen.kernels.common.specs import ConvSpec
from mcugen.kernels.common.weighted_layers import INT4_RANGE, DoubleRounding, four_bits, int8_tensors, int16_tensors
from mcugen.kernels.portable.weighted import is_not_depthwise
from mcugen.lir.kernel import (
    SHORT_LOOPS,
    UPDATABLE,
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
from mcugen.numerics.tflite_arithmetic import layer_requantizer, rounds_as_tflite

GROUP = 4
"""Number of elements of a group: four products that are adjacent along the depth, in im2col patches and packed
weights."""

SXTB16_ORDER = (0, 2, 1, 3)
"""Order of four int8 activations after widening: SXTB16 extracts bytes 0 and 2 of a word, and bytes 1 and 3 after a
rotation by 8."""

NIBBLE_OFFSET_ELEMENTS = 2
"""Number of int16 elements at the end of a pixel's im2col patch that hold one int32: the correction of the pixel's sums
for the 8 that is added to each packed 4-bit weight."""

MAX_REQUANTIZE_SHIFT = 40
"""Largest right shift of a 64-bit requantization product: with a larger one, 256 times the term that rounds it no
longer fits 32 bits."""

MAX_UNROLLED_GROUPS = 18
"""Largest number of groups (of four elements) in a patch for which the loop over the groups is fully unrolled."""

_DSP = frozenset({"dsp"})


# ------------------------------------------------------------------------------------------------- streams


class HighWord(Params):
    """Kernel parameters that requantize accumulators by the high words of 64-bit products (accumulator · multiplier).

    A clamped int8 result is saturated twice: after `pre_saturation_offset` is added, and again after
    `post_saturation_offset` is subtracted. The two offsets make these saturations apply the lower and the upper limit.
    `second_shift` is the right shift of the high word if the product is shifted by more than 32 bits. Otherwise, it is
    the left shift of accumulators for 4-bit weights, and 256 * upper_word_offset + 128 for weights that are packed in
    pairs.
    """

    upper_word_offset: Annotated[
        Trained, "added to the upper word of a product: zero point of y less the lowest value, and rounding"
    ]
    pre_saturation_offset: Annotated[
        Trained, "added before the first saturation, which cuts off values below the lower limit"
    ]
    post_saturation_offset: Annotated[
        Trained, "subtracted after it, so that the second saturation cuts off values above the upper limit"
    ]
    second_shift: Annotated[
        Trained,
        "shift after the upper word, or of sums before the product; if none, 256 * upper_word_offset + 128",
    ]


@dataclass(frozen=True)
class SumConversion:
    """The constants that requantize a layer's accumulators (sums of products), or store them as int32 results.

    Attributes:
        bias: Biases with x's zero point folded in, int64 [out_channels].
        multiplier: Requantization multipliers, int32 [out_channels]; None if the accumulators themselves are the
            result. If results are rounded twice, [out_channels, 3]: multiplier, offset before the right shift, shift.
        gain: Left shift, in bits, of weights and biases, so that the right shift after the multiplication is at least
            32.
        params: Kernel parameters of the requantization.
    """

    bias: Array
    multiplier: Array | None
    gain: int
    params: HighWord


def sum_conversion(spec: ConvSpec, packed: bool = False, nibbles: bool = False) -> SumConversion:
    """Return the constants that requantize a layer's accumulators, or store them as int32 results.

    An int8 result is usually the rounded high word of the product accumulator · multiplier, plus the zero point. If the
    product is shifted right by more than 32 bits, as for most int16 results, the result is (high word +
    upper_word_offset) >> second_shift.

    Args:
        spec: The layer.
        packed: Whether the weights of two output channels share 16 bits as 256 · odd + even, so that the accumulators
            of odd channels are 256 times as large.
        nibbles: Whether weights have 4 bits. They cannot be shifted left in advance, so the kernel shifts the
            accumulators left by `second_shift` instead.
    """
    if spec.is_sums:
        return SumConversion(
            spec.folded_bias,
            None,
            0,
            HighWord(upper_word_offset=0, pre_saturation_offset=0, post_saturation_offset=0, second_shift=0),
        )
    (low, high), (lowest, highest) = spec.limits, spec.y.dtype.limits
    value_range = highest - lowest
    if rounds_as_tflite(spec.y):
        params = HighWord(
            upper_word_offset=0,
            pre_saturation_offset=value_range - (high - low),
            post_saturation_offset=high - value_range,
            second_shift=0,
        )
        return SumConversion(spec.folded_bias, _double_rounding(spec), 0, params)
    extra_shift = spec.high_word.shift - 32
    zero = spec.y.q.zero_point - (low if spec.is_clamped else 0)
    gain = max(-extra_shift, 0)
    second = 256 * zero + 128 if packed else gain * nibbles
    if extra_shift > 0:
        zero, second = (zero << extra_shift) + (1 << (extra_shift - 1)), extra_shift
    params = HighWord(
        upper_word_offset=zero,
        pre_saturation_offset=value_range - (high - low),
        post_saturation_offset=high - value_range,
        second_shift=second,
    )
    return SumConversion(spec.folded_bias, spec.multipliers, gain, params)


def _double_rounding(spec: ConvSpec) -> Array:
    """Return multipliers, offsets and right shifts of results that are rounded twice, int32 [out_channels, 3].

    An offset is half a unit of the result and, times 2^shift, the zero point less the lower limit of a clamp.
    """
    requantize = layer_requantizer(spec.sig)
    multiplier, shift = (np.broadcast_to(a, spec.channels) for a in (requantize.multiplier, requantize.shift))
    zero = requantize.zero_point - (spec.limits[0] if spec.is_clamped else 0)
    offset = (np.int64(zero) << shift) + (np.int64(1) << (shift - 1))
    return np.stack([multiplier, offset, shift], 1).astype(np.int32)


MAX_SECOND_SHIFT = 21
"""Largest right shift in bits of results that are rounded twice: the zero point times 2^shift is below 2^30."""


def _fits_double_rounding(spec: ConvSpec) -> bool:
    """Return whether the kernels can round the results of a layer twice: int8, with right shifts, and short sums."""
    shift = layer_requantizer(spec.sig).shift
    return spec.is_int8 and spec.largest_sum < 2**30 and 1 <= shift.min() <= shift.max() <= MAX_SECOND_SHIFT


def pack_weights(
    weights: Array, sums: SumConversion, channels: int, packed: bool, *, are_sums_joined: bool = True
) -> Array:
    """Pack weights, biases and multipliers as int32 words in the order in which the kernel reads them.

    A block of `channels` output channels is stored as

        bias[channels] | group 0 | group 1 | … | multiplier[channels]

    where a group has the weights of four inputs for each channel, channel by channel, 16 bits each; with `packed`, one
    16-bit value per pair of channels and input. Multipliers are absent if int32 sums are the layer's result.

    Args:
        weights: The weights, [out_channels, groups, 4] or [out_channels, groups, 2], in the element order of an im2col
            patch.
        sums: Biases, multipliers and gain.
        channels: Output channels of a block.
        packed: Whether the int8 weights of two adjacent channels are packed into 16 bits as 256 · odd + even.
        are_sums_joined: With `packed`, whether the biases of the odd channels are also stored as 256 · odd + even.

    Returns:
        int32 [blocks, words]: biases, weights and, if results are requantized, multipliers of each block of channels.
    """
    missing = -len(weights) % channels
    blocks = len(weights) + missing
    w = np.pad(weights.astype(np.int64) << sums.gain, ((0, missing), (0, 0), (0, 0)))
    bias = np.pad(sums.bias.astype(np.int64) << sums.gain, (0, missing))
    if packed:
        w = w[0::2] + 256 * w[1::2]
        if are_sums_joined:
            bias[1::2] = (256 * bias[1::2] + bias[0::2]).astype(np.int32)
    halves = w.reshape(blocks // channels, -1, *w.shape[1:]).transpose(0, 2, 1, 3).astype("<i2")
    words = np.ascontiguousarray(halves).view("<i4").reshape(len(halves), -1)
    return _in_blocks(bias.reshape(-1, channels), words, sums)


def _in_blocks(bias: Array, words: Array, sums: SumConversion) -> Array:
    """Return [blocks, words]: biases, weights and, if there are any, multipliers of each block of channels."""
    parts = [bias, words]
    if sums.multiplier is not None:
        columns = sums.multiplier.astype(np.int64).reshape(len(sums.multiplier), -1)
        padded = np.pad(columns, ((0, bias.size - len(columns)), (0, 0))).reshape(*bias.shape, -1)
        parts.append(padded.transpose(0, 2, 1).reshape(len(bias), -1))
    return np.concatenate(parts, axis=1).astype(np.uint32).view(np.int32)


def pack_nibble_pairs(weights: Array, sums: SumConversion) -> Array:
    """Pack 4-bit weights in blocks of two output channels: one int32 word has a block's weights of four inputs.

    A weight is stored plus 8, as an unsigned number. The template dsp.j2 describes the order of the eight weights in a
    word.

    Args:
        weights: 4-bit weights, [out_channels, groups, 4], where a group is four inputs.
        sums: Biases and multipliers, which are packed with the weights.

    Returns:
        int32 [blocks, words]: biases, weights and, if results are requantized, multipliers of each block.
    """
    pairs = _whole_blocks(weights.astype(np.int64), 2) - INT4_RANGE[0]
    words = _joined(pairs, np.add.outer([0, 8], [0, 16, 4, 20])[:, None], (1, 3))
    return _in_blocks(_whole_blocks(sums.bias.astype(np.int64), 2), words, sums)


def pack_nibble_fours(weights: Array, sums: SumConversion) -> Array:
    """Pack 4-bit weights in blocks of four output channels: two int32 words have a block's weights of four inputs.

    Weights of the first three channels are stored plus 8, those of the fourth as signed numbers. The kernel multiplies
    an input by the weights of all four channels at once, so that the sums of the channels overlap in one word. It
    computes each channel's accumulator by subtracting those of the channels before it; therefore, each stored bias also
    includes the biases of the channels before it.

    Args:
        weights: 4-bit weights, [out_channels, groups, 4], where a group is four inputs.
        sums: Biases and multipliers, which are packed with the weights.

    Returns:
        int32 [blocks, words]: biases, weights and, if results are requantized, multipliers of each block.
    """
    fours = _whole_blocks(weights.astype(np.int64), 4)
    codes = np.concatenate([fours[:, :3] - INT4_RANGE[0], fours[:, 3:] & 15], axis=1)
    halves = codes.reshape(len(codes), 4, -1, 2)  # Two elements of a group share a word.
    words = _joined(halves, np.add.outer([0, 4, 8, 12], [0, 16])[:, None], (1, 3))
    bias = np.cumsum(_whole_blocks(sums.bias.astype(np.int64), 4) << [0, 4, 8, 12], axis=1)
    return _in_blocks(bias, words, sums)


def _whole_blocks(by_channel: Array, channels: int) -> Array:
    """Return [N, ...] as [blocks, channels, ...], padded with zeros."""
    padding = [(0, -len(by_channel) % channels), *[(0, 0)] * (by_channel.ndim - 1)]
    return np.pad(by_channel, padding).reshape(-1, channels, *by_channel.shape[1:])


def _joined(codes: Array, bits: Array, axes: tuple[int, int]) -> Array:
    """Return the words [blocks, words] that hold the values at these bit positions, summed along `axes`."""
    words: Array = (codes << bits).sum(axes)
    return words


# ---------------------------------------------------------------------------------------------- conditions


def ungrouped(spec: ConvSpec) -> bool:
    """Require that the channels form one group.

    Return whether the layer meets this condition of a kernel: it is no grouped or depthwise convolution.
    """
    return spec.shape.groups == 1


def fits_high_word(spec: ConvSpec) -> bool:
    """Require int32 accumulators as the result, or int8 or int16 from the high word of a 64-bit product.

    Return whether the layer meets this condition of a kernel. A layer whose result is its int32 accumulators does. A
    layer with quantized int8 or int16 results does if its accumulators fit 32 bits, and if the requantization shifts
    the product accumulator · multiplier right by 32 to MAX_REQUANTIZE_SHIFT bits.
    """
    if rounds_as_tflite(spec.y):
        return _fits_double_rounding(spec)
    codes = (
        _has_codes(spec, DType.INT8, DType.INT16) and _short_sums(spec) and 32 <= _shift(spec) <= MAX_REQUANTIZE_SHIFT
    )
    return spec.is_sums or codes


def fits_high_word_of_shifted_sums(spec: ConvSpec) -> bool:
    """Require int32 accumulators as the result, or int8 or int16 from a high word of accumulators shifted left.

    Return whether the layer meets this condition of a kernel. A layer whose result is its int32 accumulators does. For
    a layer with quantized int8 or int16 results, the kernel shifts the accumulators left, so that the product
    accumulator · multiplier is shifted right by 32 bits or more. The layer meets the condition if the shifted
    accumulators fit 32 bits, and if the right shift is at most MAX_REQUANTIZE_SHIFT bits.
    """
    is_short = _short_sums(spec) and _short_sums(spec, max(32 - _shift(spec), 0))
    codes = _has_codes(spec, DType.INT8, DType.INT16) and _shift(spec) <= MAX_REQUANTIZE_SHIFT and is_short
    return spec.is_sums or codes


def fits_high_word_of_scaled_weights(spec: ConvSpec) -> bool:
    """Require int32 accumulators as the result, or int8 or int16 from a high word, with weights times up to 2⁸.

    Return whether the layer meets this condition of a kernel. A layer whose result is its int32 accumulators does. For
    a layer with quantized int8 or int16 results, weights are multiplied by a power of two, so that the product
    accumulator · multiplier is shifted right by 32 bits or more. The layer meets the condition if a power of at most 2⁸
    suffices, and if the scaled weights fit 16 bits and their accumulators 32 bits.
    """
    if spec.is_sums:
        return True
    if rounds_as_tflite(spec.y):
        return _fits_double_rounding(spec)
    if not _has_codes(spec, DType.INT8, DType.INT16) or not _short_sums(spec):
        return False
    gain = max(32 - _shift(spec), 0)
    scaled = spec.weights.astype(np.int64) << min(gain, 8)
    lowest, highest = DType.INT16.limits
    is_short = lowest <= scaled.min(initial=0) and scaled.max(initial=0) <= highest
    return bool(gain <= 8 and is_short and _short_sums(spec, gain))


def fits_shifted_high_word(spec: ConvSpec) -> bool:
    """Require int32 accumulators as the result, or int8 or int16 from a high word shifted right.

    Return whether the layer meets this condition of a kernel. A layer whose result is its int32 accumulators does. A
    layer with quantized int8 or int16 results does if its accumulators fit 32 bits, and if the requantization shifts
    the 64-bit product accumulator · multiplier right by more than 32 bits.
    """
    codes = _has_codes(spec, DType.INT8, DType.INT16) and _short_sums(spec) and spec.high_word.shift > 32
    return spec.is_sums or codes


def pad_groups_to_blocks(spec: ConvSpec, by_channel: Array, block: int = 2) -> Array:
    """Append zero output channels to each group of a grouped convolution, so that the group consists of whole blocks.

    Args:
        spec: The layer; if it has a single group of channels, nothing is appended.
        by_channel: The array to pad, [out_channels, ...], such as weights or biases.
        block: Number of output channels that are computed together (a block).

    Returns:
        The padded array, or `by_channel` itself if all blocks are whole.
    """
    groups = spec.shape.groups
    missing = -(spec.channels // groups) % block
    if groups == 1 or missing == 0:
        return by_channel
    grouped = by_channel.reshape(groups, -1, *by_channel.shape[1:])
    padded = np.pad(grouped, [(0, 0), (0, missing), *[(0, 0)] * (by_channel.ndim - 1)])
    return padded.reshape(-1, *by_channel.shape[1:])


def fits_packed_pairs(spec: ConvSpec) -> bool:
    """Require sums of 24 bits in odd channels, and int8 weights of two channels that share 16 bits.

    Return whether the layer meets this condition of a kernel. The kernel packs the weights of two adjacent output
    channels as 256 · odd + even, and multiplies an input by both at once. In the 32-bit result, the sum of the odd
    channel has the upper 24 bits.
    """
    odd = pad_groups_to_blocks(spec, spec.rows.astype(np.int64))[1::2]
    products = np.stack([code * odd for code in spec.x.dtype.limits])
    max_sums, min_sums = products.max(0).sum(1), products.min(0).sum(1)
    first = pad_groups_to_blocks(spec, spec.folded_bias)[1::2]
    return fits_packed_pairs_by_part(spec) and bool(
        (first + min_sums >= -(2**23)).all() and (first + max_sums < 2**23).all()
    )


def fits_packed_pairs_by_part(spec: ConvSpec) -> bool:
    """Require that 256 · odd + even fits int16 for the weights of each pair of channels.

    Return whether the layer meets this condition of a kernel: `even` and `odd` are the int8 weights of two adjacent
    output channels for one input, which the kernel multiplies at once. The sum of an odd channel may exceed the 24 bits
    that it has in the result, because the kernel separates the sums of both channels after each part of the inputs
    (PACKED_PART_DEPTH).
    """
    weights = pad_groups_to_blocks(spec, spec.rows.astype(np.int64))
    even, odd = weights[0::2], weights[1::2]
    joined = 256 * odd + even[: len(odd)]  # Only -128 beside a negative odd weight exceeds 16 bits.
    return bool(np.abs(weights + 0.5).max(initial=0) < 128 and (joined >= -(2**15)).all())


PACKED_PART_DEPTH = 448
"""Number of inputs after which the packed sums of two channels are separated: seven iterations of 64 inputs. Sums over
as many inputs fit 24 bits for any int8 weights."""


def fits_packed_fours(spec: ConvSpec) -> bool:
    """Require sums of 31, 27, 23 and 19 bits in each four channels, whose 4-bit weights share 16 bits.

    Return whether the accumulators of each four adjacent output channels fit in these numbers of bits, with signs. The
    kernel packs the weights of four channels into 16 bits, that of channel i at bit 4 · i, and multiplies an input by
    several of them at once. The 32-bit accumulator of channel i holds the sums of channels 0 to i, each shifted like
    its weights, so that 4 · i bits less are left for the last one. In the end, the other sums are subtracted.
    """
    rows = np.abs(pad_groups_to_blocks(spec, spec.rows.astype(np.int64), 4))
    places, bias = np.arange(len(rows)) % 4, np.abs(pad_groups_to_blocks(spec, spec.folded_bias, 4))
    max_sums = (rows + np.where(places < 3, -INT4_RANGE[0], 0)[:, None]).sum(1) * 128 + bias
    return bool((max_sums < 1 << (31 - 4 * places)).all())


def has_more_than_two_channels(spec: ConvSpec) -> bool:
    """Require more than two output channels in each group.

    Return whether the layer meets this condition of a kernel. The kernel computes four channels at a time, and so
    wastes half of its products on fewer channels.
    """
    return spec.channels // spec.shape.groups > 2


def _shift(spec: ConvSpec) -> int:
    """Return the right shift of products with the multipliers."""
    return spec.high_word.shift


def _has_codes(spec: ConvSpec, *dtypes: DType) -> bool:
    return spec.y.quant is not None and spec.y.dtype in dtypes


def _short_sums(spec: ConvSpec, gain: int = 0) -> bool:
    return spec.largest_sum << gain < 2**31


# --------------------------------------------------------------------------------------------- convolutions


UNUSED_GEOMETRY = frozenset({"kernel_width", "stride_width", "dilation_width", "padding_left"})
"""Parameters of ConvGeometry that the kernels do not read, because PixelWalk describes rows of windows instead."""


class PixelWalk(Params):
    """Kernel parameters of the loops over output rows and pixels, and of the input elements that each window reads.

    A run is a piece of a window whose elements are adjacent in memory. The ring buffer holds padded copies of the rows
    of x that the current windows cover. The kernel computes two output pixels (a pair) at a time.
    """

    runs_per_kernel_row: Annotated[int, "runs of adjacent elements in a row of the window"]
    run_stride: Annotated[int, "elements from run to run"]
    loads_per_run: Annotated[int, "loads of load_size elements in which a run is read"]
    load_size: Annotated[int, "elements of a load: 4 or 8"]
    copies_rows: Annotated[int, "1 if rows of x are copied to the ring buffer and padded"]
    ring_rows: Annotated[int, "rows of the ring buffer, or of x if that is read in place"]
    input_row_stride: Annotated[int, "elements from row to row of the ring buffer, or of x"]
    ring_padding_left: Annotated[int, "elements of a row of the ring buffer before those of x"]
    first_window_offset: Annotated[
        int, "elements of a row before the first window; negative if the window begins outside of the row"
    ]
    rows_per_pair: Annotated[int, "rows of y that a pair of pixels covers: 2 if one pixel is above the other"]
    window_stride: Annotated[int, "elements from window to window within a row"]


class InnerLoop(Params):
    """Kernel parameters of the im2col patch of two pixels, and of the inner loop that multiplies it by weights."""

    x_zero_point: Annotated[Trained, "zero point of x, the value of padding"]
    patch_bytes: Annotated[int, "bytes of the im2col patch of a pixel"]
    inner_iterations: Annotated[int, "iterations of the inner loop"]


class GroupCount(Params):
    """Kernel parameter with the number of groups of a grouped convolution; None for a single group."""

    groups: Annotated[int | None, "groups of channels, if there are several"] = None


class StreamOptions(Options):
    """Template options of DSP kernels that read weights packed by `pack_weights`: how results are stored."""

    y_t: Annotated[str, "C type of the output"]
    clamp: Annotated[bool, "whether results are limited further than by their type"]
    post_shifted: Annotated[bool, "whether the upper words of products are shifted right"]

    @staticmethod
    def of(spec: ConvSpec) -> StreamOptions:
        """Return the template options for storing a layer's results: C type, clamp and right shift."""
        shifted = not spec.is_sums and not rounds_as_tflite(spec.y) and spec.high_word.shift > 32
        return StreamOptions(y_t=spec.y.dtype.c, clamp=spec.is_clamped, post_shifted=shifted)


class PreShiftOption(Options):
    """Template option of kernels with 4-bit weights: whether accumulators are shifted left before requantization."""

    pre_shifted: Annotated[bool, "whether sums are shifted left before they are multiplied"]


class UnrollOptions(Options):
    """Template options of convolutions: how im2col patches are gathered and how far loops are unrolled.

    A patch is a copy of the elements of one window. If its code is unrolled, `unrolled_patch` gives its runs (pieces of
    the window with adjacent elements): their number `runs`, the loads `units` of `unit_size` elements that read a run,
    and the `tail_size` elements of a run that are left over. `is_pointwise` tells whether each window is a single
    pixel.
    """

    x_t: Annotated[str, "C type of the input"]
    unrolled_patch: Annotated[
        Mapping[str, int] | None,
        "runs, units, unit_size, tail_size and is_pointwise of an unrolled patch (see Runs); None: a loop",
    ]
    unrolled_steps: Annotated[int, "groups of four elements whose code is unrolled; 0: a loop"]
    grouped: Annotated[bool, "whether channels are in several groups"]
    has_partial_windows: Annotated[bool, "whether windows cross the ends of the rows of x, which are read in place"] = (
        False
    )


@dataclass(frozen=True)
class Runs:
    """The runs of a window: pieces of adjacent elements, which im2col copies one after the other to a patch.

    A run is read by loads of `unit` elements. If its last elements do not fill a load, there are two ways to read them.
    The load may include the elements that follow in memory, which are then multiplied by 0. Or the last elements are
    `gathered`: those of four runs form groups of four at the end of the patch.

    Attributes:
        count: Number of runs in a window.
        length: Number of elements of one run.
        unit: Number of elements that one load reads: 4 or 8.
        gathered: Whether the elements of a run that do not fill a load are collected at the end of the patch; else they
            are loaded together with the elements that follow in memory.
    """

    count: int
    length: int
    unit: int
    gathered: bool = False

    @property
    def rest(self) -> int:
        """Return the number of elements at the end of a run that fill no load and are copied to the end of the patch.

        A run is a piece of a window whose elements are adjacent in memory; im2col copies the runs of a window to a
        patch. The result is 0 if all elements of a run are read by loads of `unit` elements.
        """
        return self.length % self.unit if self.gathered else 0

    @property
    def units(self) -> int:
        """Return the number of loads of `unit` elements in which im2col reads one run, a piece of adjacent elements.

        Elements at the end of the run that are copied separately (`rest`) do not count.
        """
        return (self.length - self.rest + self.unit - 1) // self.unit

    @property
    def groups(self) -> int:
        """Return the number of groups of four elements in an im2col patch, which is the copy of one window.

        Groups that are filled up with zeros count, and so do groups of elements from the ends of several runs.
        """
        return self.count * self.units * (self.unit // GROUP) + self.rest * -(-self.count // GROUP)

    @property
    def are_exact(self) -> bool:
        """Return whether im2col reads no element behind the end of a run, a piece of adjacent elements of a window.

        If False, the last load of a run also reads elements that follow the run in memory.
        """
        return self.units * self.unit + self.rest == self.length

    def elements(self, slots: tuple[int, ...]) -> Array:
        """Return the order in which an im2col patch (the copy of a window) holds the window's elements.

        Args:
            slots: For each place in a group of four, the number (0 to 3) of the element that is stored there.

        Returns:
            int [groups, 4]: the index of the window's element at each place, or −1 for padding.
        """
        order = np.full((self.groups, GROUP), -1)
        per_run = self.units * (self.unit // GROUP)
        for run in range(self.count):
            for k in range(self.length - self.rest):
                order[run * per_run + k // GROUP, slots.index(k % GROUP)] = run * self.length + k
            for i in range(self.rest):
                group = self.count * per_run + i + self.rest * (run // GROUP)
                order[group, run % GROUP] = run * self.length + per_run * GROUP + i
        return order


def runs_of(shape: ConvShape, is_unrolled: bool) -> Runs:
    """Return the runs in which im2col reads a window: the pieces of the window that are contiguous in memory.

    A run is a row of the window if the row is contiguous, else the channels of one tap. In a grouped convolution, it is
    the channels of one tap that belong to a group.

    Args:
        shape: Geometry of the convolution.
        is_unrolled: Whether the inner loop is fully unrolled. Elements at the ends of runs that fill no load are then
            gathered at the end of the im2col patch, if this makes the patch smaller.
    """
    joined, channels = (
        shape.groups == 1 and (shape.dilation_width == 1 or shape.kernel_width == 1),
        shape.in_channels // shape.groups,
    )
    count, length = (
        (shape.kernel_height, shape.kernel_width * shape.in_channels)
        if joined
        else (shape.kernel_height * shape.kernel_width, channels)
    )
    padded = Runs(count, length, 8 if channels % 8 == 0 else GROUP)
    gathered = replace(padded, gathered=True)
    return gathered if is_unrolled and gathered.groups < padded.groups else padded


def is_small_window(spec: ConvSpec) -> bool:
    """Require windows of at most 18 groups of four elements, whose code is unrolled.

    Return whether the layer meets this condition of a kernel. A group is the four elements of a window that one step of
    the inner loop multiplies; partial groups count, too.
    """
    runs = runs_of(spec.shape, is_unrolled=True)
    return runs.groups <= MAX_UNROLLED_GROUPS


def flatten_pixels(shape: ConvShape) -> ConvShape:
    """Return the geometry of a pointwise convolution with all pixels of the batch in one row.

    A geometry is returned unchanged if it is not pointwise, has a stride above 1, or has a number of input channels
    that is not a multiple of four.
    """
    if not shape.reads_pixels or shape.stride_height != 1 or shape.stride_width != 1 or shape.in_channels % GROUP:
        return shape
    pixels = shape.batch * shape.in_height * shape.in_width
    return replace(shape, batch=1, in_height=1, in_width=pixels, out_height=1, out_width=pixels)


def is_flat_pointwise(shape: ConvShape) -> bool:
    """Return whether a convolution is pointwise, ungrouped and of stride 1, with a multiple of four input channels.

    Args:
        shape: A geometry that flatten_pixels returned: the pixels of such a convolution are in one row.
    """
    return (
        shape.reads_pixels
        and shape.in_height == shape.stride_width == shape.groups == 1
        and shape.in_channels % GROUP == 0
    )


@dataclass(frozen=True)
class RowSource:
    """Source of the input rows that a convolution reads: x itself, or a ring buffer of padded copies of rows.

    Attributes:
        is_padded: Whether rows are copied to the ring buffer and padded there.
        ring_h: Number of rows of the ring buffer, or of x if rows are read in place.
        pitch: Number of elements from the start of a row to the start of the next.
        margin: Elements of a row of the ring before those of x: at least the padding, and a multiple of four for whole
            words.
        rows_per_pair: Rows of y per pair of pixels, which are computed together: 2 if the pixels are one above the
            other, where that leaves fewer single pixels. In an odd last row the pairs are side by side.
        is_edged: Whether windows leave the rows of x; elements outside are then padded within the im2col patches.
    """

    is_padded: bool
    ring_h: int
    pitch: int
    margin: int
    rows_per_pair: int
    is_edged: bool = False

    @property
    def ring_elements(self) -> int:
        """Return the number of elements of the ring buffer; 0 if rows are read in x."""
        return self.ring_h * self.pitch if self.is_padded else 0


def choose_row_source(shape: ConvShape, is_unrolled: bool = False) -> RowSource:
    """Choose where input rows are read: in x if possible, else in a ring buffer of padded copies of rows.

    Rows are read in x if neither the windows nor the words in which they are loaded extend beyond x. As an exception,
    windows may extend beyond the left and right sides of x if a grouped convolution has a single output row.

    Args:
        shape: Geometry of the convolution.
        is_unrolled: Whether the loop over a window's groups of four elements is fully unrolled.
    """
    rows_per_pair = 2 if shape.out_height % 2 * shape.out_width < shape.out_width % 2 * shape.out_height else 1
    span_h = (shape.kernel_height - 1) * shape.dilation_height + 1
    right = shape.stride_width * (shape.out_width - 1) + (shape.kernel_width - 1) * shape.dilation_width + 1
    if shape.is_inside and runs_of(shape, is_unrolled).are_exact:
        return RowSource(False, shape.in_height, shape.in_width * shape.in_channels, 0, rows_per_pair)
    if _leaves_sides_only(shape) and runs_of(shape, is_unrolled).are_exact:
        return RowSource(False, shape.in_height, shape.in_width * shape.in_channels, 0, 1, is_edged=True)
    margin = -(-shape.padding_left * shape.in_channels // GROUP) * GROUP
    extent = margin + (max(right - shape.padding_left, shape.in_width)) * shape.in_channels
    pitch = -(-(extent + GROUP - 1) // GROUP) * GROUP
    return RowSource(True, span_h + (rows_per_pair - 1) * shape.stride_height, pitch, margin, rows_per_pair)


def _leaves_sides_only(shape: ConvShape) -> bool:
    """Return whether the windows of a single output row leave x at the left and right only, tap by tap."""
    span_h = (shape.kernel_height - 1) * shape.dilation_height + 1
    return shape.groups > 1 and shape.out_height == 1 and not shape.padding_top and span_h <= shape.in_height


def traversal_of(shape: ConvShape, rows: RowSource) -> Traversal:
    """Return the order in which a convolution reads x and writes y, from which follows how far both may overlap.

    The order is a sequence of steps. A step computes a pair of pixels if windows are read in x. Otherwise, it computes
    one or two output rows from the ring buffer, which holds padded copies of rows of x.

    Args:
        shape: Geometry of the convolution.
        rows: Where the convolution reads its input rows.
    """
    if rows.is_padded:
        return ring_rows(shape, rows.rows_per_pair)
    stacked = shape.out_height // 2 * 2 if rows.rows_per_pair == 2 else 0
    pixels = np.arange(shape.out_height * shape.out_width).reshape(shape.out_height, shape.out_width)
    pairs = [pixels[oy : oy + 2].T for oy in range(0, stacked, 2)]
    pairs += [row[in_turn(shape.out_width, 2)] for row in pixels[stacked:]]
    return windows(shape, np.concatenate(pairs))


def order_weights_by_patch(spec: ConvSpec, runs: Runs, twos: bool) -> Array:
    """Return the weights in the order in which an im2col patch holds the activations that they are multiplied with.

    Args:
        spec: The layer.
        runs: The pieces of adjacent elements in which im2col reads a window.
        twos: Whether an iteration of the inner loop multiplies two groups of four elements; an odd number of groups is
            then padded with a group of zeros.

    Returns:
        The weights, [out_channels, groups, 4], with zeros for padding.
    """
    order = runs.elements(SXTB16_ORDER if spec.x.dtype is DType.INT8 else tuple(range(GROUP)))
    if twos:
        order = np.pad(order, ((0, len(order) % 2), (0, 0)), constant_values=-1)
    flat = spec.rows
    return np.where(order >= 0, flat[:, order], 0)


def emit_conv(spec: ConvSpec, site: Site) -> Call:
    """Emit a convolution that computes two pixels by two (or four) channels per step of four or eight inputs.

    Loops: pairs of pixels (neighbours in a row or a column), blocks of channels, steps (unrolled up to 16 times). The
    operands are packed weights, a ring buffer of rows where x must be padded, and the im2col patches of two pixels.
    """
    packed, is_unrolled = fits_packed_pairs in site.kernel.when, is_small_window in site.kernel.when
    nibbles = four_bits in site.kernel.when
    block = 4 if {fits_packed_fours, has_more_than_two_channels} & set(site.kernel.when) else 2
    shape, sums = flatten_pixels(spec.shape), sum_conversion(spec, packed, nibbles)
    runs, rows, pixels = (
        runs_of(shape, is_unrolled),
        choose_row_source(shape, is_unrolled),
        is_unrolled and is_flat_pointwise(shape),
    )
    twos = nibbles or (packed and block == 2)
    laid = order_weights_by_patch(spec, runs, twos)
    multiplier = None if sums.multiplier is None else pad_groups_to_blocks(spec, sums.multiplier, block)
    paired = replace(sums, bias=pad_groups_to_blocks(spec, sums.bias, block), multiplier=multiplier)
    by_blocks = pad_groups_to_blocks(spec, laid, block)
    if nibbles:
        words = (pack_nibble_fours if block == 4 else pack_nibble_pairs)(by_blocks, paired)
    else:
        words = pack_weights(by_blocks.reshape(len(by_blocks), -1, 8 // block), paired, block, packed)
    depth, steps = laid[0].size, laid.shape[1] // (2 if twos else 1)
    operands = {
        "x": site.x,
        "w": site.const("weights", words),
        "y": site.y,
        **({} if pixels or rows.is_edged else {"ring": site.scratch("ring", spec.x.dtype, rows.ring_elements)}),
        "patch": site.scratch("patch", DType.INT16, 2 * depth + (NIBBLE_OFFSET_ELEMENTS * 2 if nibbles else 0)),
        "table": site.scratch("table", DType.INT32, 2 * runs.count),
    }
    loop = InnerLoop(x_zero_point=spec.x.q.zero_point, patch_bytes=2 * depth, inner_iterations=steps)
    types = StreamOptions.of(spec)
    patch = {
        "runs": runs.count,
        "units": runs.units,
        "unit_size": runs.unit,
        "tail_size": runs.rest,
        "is_pointwise": pixels,
    }
    written, turns = (patch, steps) if is_unrolled else (None, 0)
    grouped, edged = shape.groups if shape.groups > 1 else None, rows.is_edged
    unrolled = UnrollOptions(
        x_t=spec.x.dtype.c,
        unrolled_patch=written,
        unrolled_steps=turns,
        grouped=grouped is not None,
        has_partial_windows=edged,
    )
    free = spec.overlaps(traversal_of(shape, rows))
    raised = nibbles and sums.gain > 0
    variant = _variant(spec, runs, is_unrolled, raised, edged)
    rounding = DoubleRounding(rounds_twice=rounds_as_tflite(spec.y))
    options = [types, Loops.of(site), unrolled, rounding, *[PreShiftOption(pre_shifted=raised)] * nibbles]
    walk = [] if pixels else [_walk(shape, runs, rows)]
    params = [shape.geometry, *walk, sums.params, loop, GroupCount(groups=grouped)]
    return site.call(operands, params, options, overlaps=free, variant=variant)


def count_steps(spec: ConvSpec, is_unrolled: bool = False, channels: int = 2) -> int:
    """Count a convolution's inner-loop steps per inference, for the cost model.

    A step multiplies four inputs of two pixels by the weights of `channels` output channels.

    Args:
        spec: The layer.
        is_unrolled: Whether the inner loop is fully unrolled.
        channels: Output channels that are computed together.
    """
    shape = flatten_pixels(spec.shape)
    pixels = shape.batch * -(-shape.out_height * shape.out_width // 2)
    blocks = shape.groups * -(-shape.out_channels // shape.groups // channels)
    return pixels * blocks * runs_of(shape, is_unrolled).groups


def count_four_channel_steps(spec: ConvSpec) -> int:
    """Count the inner-loop steps per inference of kernels that compute two pixels by four output channels at a time.

    A step multiplies four inputs of each pixel.
    """
    return count_steps(spec, channels=4)


def count_unrolled_steps(spec: ConvSpec) -> int:
    """Count the inner-loop steps per inference of kernels whose inner loop is fully unrolled, for the cost model.

    A step multiplies four inputs of two pixels by the weights of two output channels.
    """
    return count_steps(spec, is_unrolled=True)


def unrolled_layer_bytes(spec: ConvSpec) -> int:
    """Estimate the flash bytes of a layer whose inner loop is fully unrolled: its own C function and its parameters."""
    shape = flatten_pixels(spec.shape)
    around = POINTWISE_BASE_BYTES if is_flat_pointwise(shape) else WINDOW_BASE_BYTES
    return around + UNROLLED_STEP_BYTES * runs_of(shape, is_unrolled=True).groups


UNROLLED_STEP_BYTES = 62
"""Flash bytes of one step (a group of four elements) of a fully unrolled loop, by nm for layers on a Cortex-M4
(tests/kernels/test_written_out.py)."""

POINTWISE_BASE_BYTES = 620
"""Flash bytes of a pointwise layer without its unrolled steps: the code around them and the layer's parameters."""

WINDOW_BASE_BYTES = 783
"""Flash bytes of a fully unrolled layer that is not pointwise, without its unrolled steps (POINTWISE_BASE_BYTES)."""


def _walk(shape: ConvShape, runs: Runs, rows: RowSource) -> PixelWalk:
    return PixelWalk(
        runs_per_kernel_row=runs.count // shape.kernel_height,
        run_stride=shape.dilation_width * shape.in_channels,
        loads_per_run=runs.units,
        load_size=runs.unit,
        copies_rows=int(rows.is_padded),
        ring_rows=rows.ring_h,
        input_row_stride=rows.pitch,
        ring_padding_left=rows.margin,
        first_window_offset=rows.margin - shape.padding_left * shape.in_channels
        if rows.is_padded or rows.is_edged
        else 0,
        rows_per_pair=rows.rows_per_pair,
        window_stride=shape.stride_width * shape.in_channels,
    )


def _variant(spec: ConvSpec, runs: Runs, is_unrolled: bool, raised: bool, is_edged: bool) -> str:
    size = f"{runs.count}x{runs.length}" if is_unrolled else ""
    grouped = "edged" if is_edged else "grouped" if spec.shape.groups > 1 else ""
    shifted = "raised" if raised else ""
    return "_".join(part for part in (size, grouped, shifted, "clamped" if spec.is_clamped else "") if part)


# -------------------------------------------------------------------------------------------------- dense


def is_one_row(spec: ConvSpec) -> bool:
    """Require one row of outputs, each of which depends on all inputs.

    Return whether the layer meets this condition of a kernel: it is a dense layer of a single input vector.
    """
    shape = spec.shape
    return shape.groups == 1 and shape.reads_pixels and spec.y.count == shape.out_channels


def has_depth_multiple_of_8(spec: ConvSpec) -> bool:
    """Require that the number of inputs is a multiple of eight.

    Return whether the layer meets this condition of a kernel. The inputs are those that each output depends on.
    """
    return spec.depth % 8 == 0


def has_several_pixels(spec: ConvSpec) -> bool:
    """Require a layer that is not a single row of outputs (is_one_row).

    Return whether the layer meets this condition of a kernel: it is no dense layer of a single input vector.
    """
    return not is_one_row(spec)


class SingleRowParams(Params):
    """Kernel parameters with the numbers of inputs and outputs of a dense layer of a single input vector.

    The kernel may compute the sums of two output channels in one word. If these could overflow, the inputs are divided
    into parts, after each of which the sums are separated (SingleRowOptions); the parameters then include the sizes of
    the parts.
    """

    depth: Annotated[int, "elements of x"]
    padded_depth: Annotated[int, "depth rounded up to a multiple of eight"]
    out_channels: Annotated[int, "elements of y"]
    first_part_size: Annotated[int | None, "elements of x in the first part, if there are several parts"] = None
    part_size: Annotated[int | None, "elements of x in each other part"] = None


class SingleRowOptions(StreamOptions):
    """Template options of a dense layer of a single input vector.

    The kernel may compute the sums of two output channels in one word, as 256 · odd + even. With `sums_by_part`, the
    sum of the odd channel over all inputs might exceed its 24 bits. The inputs are then divided into parts
    (PACKED_PART_DEPTH), and the sums of both channels are separated after each part.
    """

    sums_by_part: Annotated[bool, "whether the sums of odd channels are separated after each part of x"]


def emit_dense(spec: ConvSpec, site: Site) -> Call:
    """Emit a dense layer of a single input vector, which computes four channels by eight inputs per step.

    Loops: blocks of four channels, steps (unrolled 8 times). The inputs are copied to scratch memory, widened and
    padded to a multiple of eight, or read in place.
    """
    packed, is_direct = fits_packed_pairs_by_part in site.kernel.when, has_depth_multiple_of_8 in site.kernel.when
    nibbles = four_bits in site.kernel.when
    parts = packed and not fits_packed_pairs(spec)
    sums, depth = sum_conversion(spec, packed and not parts, nibbles), spec.depth
    padded = -(-depth // 8) * 8
    laid = np.pad(spec.rows, ((0, 0), (0, padded - depth))).reshape(spec.channels, -1, GROUP)
    if spec.x.dtype is DType.INT8:
        laid = laid[:, :, SXTB16_ORDER]
    words = pack_nibble_fours(laid, sums) if nibbles else pack_weights(laid, sums, 4, packed, are_sums_joined=not parts)
    operands = {"x": site.x, "w": site.const("weights", words), "y": site.y}
    if not is_direct:
        size = -(-depth // 16) * 16 + (NIBBLE_OFFSET_ELEMENTS if nibbles else 0)
        operands["patch"] = site.scratch("patch", DType.INT16, size)
    first, part = ((padded - 8) % PACKED_PART_DEPTH + 8, PACKED_PART_DEPTH) if parts else (None, None)
    row = SingleRowParams(
        depth=depth, padded_depth=padded, out_channels=spec.channels, first_part_size=first, part_size=part
    )
    raised = nibbles and sums.gain > 0
    types = SingleRowOptions(**vars(StreamOptions.of(spec)), sums_by_part=parts)
    rounding = DoubleRounding(rounds_twice=rounds_as_tflite(spec.y))
    options = [types, Loops.of(site), rounding, *[PreShiftOption(pre_shifted=raised)] * nibbles]
    last = (spec.channels % GROUP or GROUP) if is_direct else 0
    free = spec.overlaps(windows(spec.shape, in_turn(1, 1), last))
    variant = "_".join(["parts"] * parts + ["raised"] * raised + ["clamped"] * spec.is_clamped)
    return site.call(operands, [row, sums.params], options, overlaps=free, variant=variant)


def count_dense_steps(spec: ConvSpec) -> int:
    """Count the inner-loop steps per inference of a dense layer of a single input vector, for the cost model.

    A step multiplies eight inputs by the weights of four output channels.
    """
    return -(-spec.channels // 4) * -(-spec.depth // 8)


# ---------------------------------------------------------------------------------------------- pointwise

STRIP_ACTIVATIONS = 256
"""Number of int16 activations in a strip: the inputs of all pixels that are processed while registers hold the weights
of one channel."""


def has_4_or_8_channels(spec: ConvSpec) -> bool:
    """Require a pointwise convolution of pixels of four or eight channels.

    Return whether the layer meets this condition of a kernel: the channels are those of x, and the stride is 1.
    """
    shape = flatten_pixels(spec.shape)
    return shape.out_height == 1 and shape.reads_pixels and shape.stride_width == 1 and shape.in_channels in (4, 8)


def is_saturated_int8(spec: ConvSpec) -> bool:
    """Require int8 results without a clamp or a shift of the high word, and at most 255 output channels.

    Return whether the layer meets this condition of a kernel. The high word is the upper half of the 64-bit product
    accumulator · multiplier. The kernel adds the zero point to it, and limits the result only by saturation to int8.
    """
    return spec.is_int8 and not spec.is_clamped and _shift(spec) <= 32 and spec.shape.out_channels < 256


class Strip(Params):
    """Kernel parameters of the loop over strips: pixels whose inputs are widened to 16 bits together."""

    pixels: Annotated[int, "pixels of x and y"]
    strip_pixels: Annotated[int, "pixels that are widened to 16 bits at a time"]
    out_channels: Annotated[int, "channels of a pixel of y"]
    upper_word_offset: Annotated[Trained, "added to the upper word of a product: zero point of y"]


class PointwiseOptions(Options):
    """Template option of the pointwise kernel: the input channels of a pixel, 4 or 8."""

    in_channels: Annotated[int, "channels of a pixel of x: 4 or 8"]


def emit_pointwise(spec: ConvSpec, site: Site) -> Call:
    """Emit a pointwise convolution that holds a channel's weights in registers for a strip (a sequence of pixels).

    The inputs of a strip are widened to 16 bits together. Loops: strips of pixels, output channels, pixels (unrolled 8
    times). Packed weights, per output channel:

        w[0], w[2] | w[1], w[3] | (the same of w[4] to w[7]) | bias | multiplier
    """
    shape, sums = flatten_pixels(spec.shape), sum_conversion(spec)
    strip = min(STRIP_ACTIVATIONS // shape.in_channels, shape.out_width)
    laid = spec.weights.reshape(shape.out_channels, -1, GROUP)[:, :, SXTB16_ORDER]
    words = pack_weights(laid, sums, 1, packed=False).reshape(shape.out_channels, -1)
    words = np.hstack([words[:, 1:-1], words[:, :1], words[:, -1:]])  # The bias follows the weights.
    operands = {
        "x": site.x,
        "w": site.const("weights", words),
        "y": site.y,
        "patch": site.scratch("patch", DType.INT16, -(-strip * shape.in_channels // 16) * 16),
    }
    params = Strip(
        pixels=shape.out_width,
        strip_pixels=strip,
        out_channels=shape.out_channels,
        upper_word_offset=sums.params.upper_word_offset,
    )
    free = spec.overlaps(windows(shape, in_turn(shape.out_width, strip)))
    options = PointwiseOptions(in_channels=shape.in_channels)
    return site.call(operands, [params], [options], overlaps=free, variant=f"{shape.in_channels}")


_CODES8 = (int8_tensors, fits_high_word)
_CODES8_WIDENED = (int8_tensors, fits_high_word_of_scaled_weights)
_CODES16 = (int16_tensors, fits_shifted_high_word)

_X = reads("x", "input, channels last", DType.INT8, DType.INT16)
_Y = writes("y", "output, channels last; int32: the sums", DType.INT8, DType.INT16, DType.INT32)
_PATCH = scratch("patch", "widened elements in the order of the weights", DType.INT16)


def _weights(channels: int, when: Sequence[Callable[[ConvSpec], bool]]) -> Role:
    """Declare packed weights by blocks of `channels` output channels; their packing follows from the conditions."""
    words = "16-bit weights, four inputs of each channel in turn"
    if has_more_than_two_channels in when:
        channels, words = 4, "16 bits for each two channels (256 * odd + even), two inputs in turn"
    elif fits_packed_fours in when:
        channels, words = 4, "two words of sixteen 4-bit weights for each four inputs"
    elif four_bits in when:
        words = "a word of eight 4-bit weights for each four inputs"
    elif {fits_packed_pairs, fits_packed_pairs_by_part} & set(when):
        words = "16 bits for each two channels (256 * odd + even), four inputs in turn"
    layout = f"by {channels} output channels: biases; {words}; multipliers, if any"
    return reads("w", layout, DType.INT32, holds=(1, 2))


def _lacks(when: Sequence[Callable[[ConvSpec], bool]]) -> frozenset[str]:
    """Return the tuning flags that the kernel lacks: updated weights may need more than 4 bits."""
    return frozenset({UPDATABLE} if four_bits in when else ())


def narrow_row_slowdown(spec: ConvSpec) -> float:
    """Return the factor by which the cycles of a layer increase if x has one pixel per row, for the cost model.

    The kernel copies each row of x and looks up its address, which takes long relative to the products of a single
    pixel. The factor is 1 if x has wider rows, or if windows have a single row.
    """
    shape = spec.shape
    products = shape.in_channels // shape.groups * shape.out_channels
    return 1.0 + NARROW_ROW_PRODUCTS / products if shape.in_width == 1 < shape.kernel_height else 1.0


NARROW_ROW_PRODUCTS = 30.0
"""Cost of copying and looking up an input row of one pixel, as the number of products per output pixel that take as
long (measured on the model dory_tcn_int, docs/explanation/two_cores.md)."""


def _row(name: str, what: str, *when: Callable[[ConvSpec], bool]) -> Kernel:
    return Kernel(
        name,
        what=what,
        operands=(_X, _weights(4, when), _Y, *[_PATCH] * (has_depth_multiple_of_8 not in when)),
        params=(SingleRowParams, HighWord),
        options=(SingleRowOptions, Loops, DoubleRounding, *[PreShiftOption] * (four_bits in when)),
        needs=_DSP,
        lacks=_lacks(when),
        when=(is_one_row, *when),
        as_tflite="_s8_" in name,
        stalls=STALLS.get(name, {}),
        emit=emit_dense,
        extra=count_dense_steps,
    )


UNIFORM = frozenset(
    {
        "batch",
        "dilation_height",
        "padding_top",
        "runs_per_kernel_row",
        "ring_padding_left",
        "first_window_offset",
        "upper_word_offset",
        "pre_saturation_offset",
        "post_saturation_offset",
        "second_shift",
        "x_zero_point",
    }
)
"""Names of parameters that become literals if all convolutions that share a C function agree on them (`uniform` of
Kernel)."""


def _conv(
    name: str,
    what: str,
    *when: Callable[[ConvSpec], bool],
    extra: Callable[[ConvSpec], int] = count_steps,
    code: Callable[[ConvSpec], int] | None = None,
) -> Kernel:
    return Kernel(
        name,
        what=what,
        operands=(
            *(
                _X,
                _weights(2, when),
                _Y,
                scratch("ring", "padded rows of x", DType.INT8, DType.INT16, optional=True),
                _PATCH,
            ),
            scratch("table", "addresses of the runs of two pixels' windows", DType.INT32),
        ),
        params=(ConvGeometry, PixelWalk, HighWord, InnerLoop, GroupCount),
        optional=(PixelWalk,),
        uniform=UNIFORM,
        without=UNUSED_GEOMETRY,
        options=(StreamOptions, Loops, UnrollOptions, DoubleRounding, *[PreShiftOption] * (four_bits in when)),
        needs=_DSP,
        lacks=_lacks(when),
        when=(has_several_pixels, is_not_depthwise, *when),
        loads=0.125 if fits_packed_pairs in when else 0.25,
        stalls=STALLS.get(name, {}),
        slowdown=narrow_row_slowdown,
        code=code,
        as_tflite="_s8_" in name,
        emit=emit_conv,
        extra=extra,
    )


STALLS = {
    kernel: dict(zip(("cortex-m4", "cortex-m33", "cortex-m7"), cycles, strict=True))
    for kernel, cycles in {
        "dense_s8_dsp": (12.0, 11.0, -9.0),
        "dense_s8_dsp_direct": (10.0, 9.7, 1.0),
        "dense_s8_dsp16": (20.0, 19.0, -2.9),
        "dense_s4_dsp": (8.0, 7.0, -5.9),
        "conv2d_s8_dsp": (6.7, 5.7, -3.0),
        "conv2d_s8_dsp_fours": (3.1, 0.2, -11.6),
        "conv2d_s8_dsp16": (8.7, 7.2, -1.0),
        "conv2d_s8_dsp_few": (8.7, 7.2, -1.0),
        "conv2d_s4_dsp": (5.9, 4.2, -2.0),
        "conv2d_s4_dsp_fours": (7.8, 5.6, -2.4),
    }.items()
}
"""Stall cycles per inner-loop step, by kernel and core (measured by tests/kernels/test_stalls.py).

They are cycles beyond one per instruction: for the further words of multi-word loads, and for waiting on the last
word loaded. Each step includes its share of the stalls of im2col. The Cortex-M7 issues two instructions at once and has
loops of its own (PAIRED_LOADS): its figures are cycles minus the instructions of the loops for the other cores, and may
be negative."""


_PAIRS = "of which two int8 weights lie in 16 bits, so that a product serves two channels"

DSP_ROW: tuple[Kernel, ...] = (
    _row("dense_s8_dsp", f"one row, four channels at a time, {_PAIRS}", *_CODES8, fits_packed_pairs_by_part),
    _row(
        "dense_s8_dsp_direct",
        f"one row, four channels at a time, x read in place, {_PAIRS}",
        *_CODES8,
        fits_packed_pairs_by_part,
        has_depth_multiple_of_8,
    ),
    _row("dense_s8_dsp16", "one row, four channels at a time, weights widened to 16 bits", *_CODES8_WIDENED),
    _row(
        "dense_s4_dsp",
        "one row, four channels at a time, whose weights lie in 16 bits",
        *(int8_tensors, four_bits, fits_high_word_of_shifted_sums, fits_packed_fours),
    ),
    _row("dense_s16_dsp", "one row of int16, four channels at a time", *_CODES16),
)
"""DSP kernels of dense layers with a single row of outputs, in order of preference."""

_OF_BYTES = _conv("conv2d_s8_dsp", f"two pixels by two channels, {_PAIRS}", *_CODES8, fits_packed_pairs)
_OF_FOUR_BYTES = _conv(
    "conv2d_s8_dsp_fours",
    f"two pixels by four channels, {_PAIRS}",
    *_CODES8,
    fits_packed_pairs,
    has_more_than_two_channels,
    extra=count_four_channel_steps,
)
_OF_NIBBLES = _conv(
    "conv2d_s4_dsp",
    "two pixels by two channels, eight weights per word",
    int8_tensors,
    four_bits,
    fits_high_word_of_shifted_sums,
)


_OF_FOURS = _conv(
    "conv2d_s4_dsp_fours",
    "two pixels by four channels, whose weights lie in 16 bits",
    *(int8_tensors, four_bits, fits_high_word_of_shifted_sums, fits_packed_fours),
    extra=count_four_channel_steps,
)


def _short(kernel: Kernel) -> Kernel:
    """Return the variant of a kernel with few unrolled steps."""
    return replace(
        kernel,
        name=f"{kernel.name}_short",
        what=f"{kernel.what}; the loop is unrolled only a few times",
        needs=kernel.needs | {SHORT_LOOPS},
    )


DSP_PIXELS: tuple[Kernel, ...] = (
    _OF_BYTES,
    _short(_OF_BYTES),
    _OF_FOUR_BYTES,
    _short(_OF_FOUR_BYTES),
    _conv("conv2d_s8_dsp16", "two pixels by two channels, weights widened to 16 bits", *_CODES8_WIDENED),
    _conv(
        "conv2d_s8_dsp_few",
        "two pixels by two channels, with an unrolled loop over windows of few elements",
        *_CODES8_WIDENED,
        is_small_window,
        extra=count_unrolled_steps,
        code=unrolled_layer_bytes,
    ),
    _OF_FOURS,
    _OF_NIBBLES,
    _short(_OF_NIBBLES),
    Kernel(
        "pointwise_s8_dsp",
        what="pixels of four or eight channels, a strip at a time, with the weights of a channel in registers",
        operands=(
            reads("x", "input", DType.INT8),
            reads("w", "by output channel: 16-bit weights, bias, multiplier", DType.INT32, holds=(1, 2)),
            writes("y", "output", DType.INT8),
            _PATCH,
        ),
        params=(Strip,),
        options=(PointwiseOptions,),
        uniform=frozenset({"out_channels"}),
        needs=_DSP,
        when=(has_several_pixels, ungrouped, *_CODES8_WIDENED, has_4_or_8_channels, is_saturated_int8),
        loads=0.0,
        emit=emit_pointwise,
    ),
    _conv("conv2d_s16_dsp", "two pixels of int16 by two channels", *_CODES16),
)
"""DSP kernels of convolutions and of dense layers with several rows, in order of preference."""

DSP_KERNELS: tuple[Kernel, ...] = (*DSP_ROW, *DSP_PIXELS)
"""DSP kernels of convolutions and dense layers, in order of preference; a dense layer is a pointwise convolution."""
