# SPDX-License-Identifier: Apache-2.0
"""int8 convolutions and dense layers on CPUs that multiply one pair of numbers at a time: Cortex-M3, M0, M0+, RISC-V.

Two pixels (or two channels) share a word, so that one product serves both: (a + b · 2^s) · w = a·w + b·w · 2^s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Annotated

import numpy as np

from mcugen.hir.types import Array, DType
from mcugen.kernels.common.conv_shape import ConvGeometry
from mcugen.kernels.common.loop_options import WeightLoads
from mcugen.kernels.common.reading_order import in_turn, windows
from mcugen.kernels.common.specs import ConvSpec
from mcugen.kernels.common.weighted_layers import (
    INT4_RANGE,
    CodeLimits,
    four_bits,
    has_int8_output,
    has_one_group,
    nibbles,
    nine_bits,
    of_four_bits,
    uint8_example,
)
from mcugen.kernels.portable.weighted import DenseSizes, RestOptions
from mcugen.lir.kernel import (
    CHECKED,
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
from mcugen.lir.program import Wide
from mcugen.numerics.fixedpoint import Requantizer

PIXELS_PER_PASS = 6
"""Number of output pixels that a convolution computes together (unroll factor)."""

DENSE_UNROLL = 4
"""Unroll factor of the loop over the inputs of a dense layer on Thumb-2; one unrolled step takes four inputs."""

MAX_CHUNK_INPUTS = 24
"""Largest number of inputs in a chunk of weights, and unroll factor of the loop over a chunk.

A chunk is a part of the weights of an output channel whose sums fit 16 bits (split_into_chunks)."""

UNROLLED_INPUT_HALFWORDS = 9
"""Code size of one unrolled input, in halfwords, on Thumb-1 and on Thumb-2."""

EXIT_HALFWORDS_THUMB1 = 18
"""Distance from the last unrolled input to the code behind the loop, in halfwords, on Thumb-1."""

EXIT_HALFWORDS_THUMB2 = 20
"""Distance from the last unrolled input to the code behind the loop, in halfwords, on Thumb-2."""

CHUNK_COUNT_BITS = 9
"""Bits of a channel's number of chunks, which shares a word with the channel's bias on Thumb-2."""

MAX_CHUNK_PAIRS = 11
"""Largest number of pairs of 4-bit weights in a chunk, and unroll factor of the loop over them: on all of these CPUs,
one byte holds the jump distance into the unrolled code."""

UNROLLED_PAIR_HALFWORDS = {"thumb1": 19, "thumb2": 21}
"""Code size of one unrolled pair of 4-bit weights, in halfwords, by instruction set."""

EXIT_PAIRS_HALFWORDS = MAX_CHUNK_PAIRS * UNROLLED_PAIR_HALFWORDS["thumb1"] + 20
"""Distance from the first unrolled pair of 4-bit weights to the code behind the loop, in halfwords of code, on
Thumb-1."""

MAX_CHUNK_WEIGHT_SUM = 255
"""Largest sum of the magnitudes of the weights in a chunk: sums of their products with int8 inputs then fit 16 bits."""


def has_int8_tensors(spec: ConvSpec) -> bool:
    """Require int8 input, weights and output.

    Return whether the layer meets this condition of a kernel.
    """
    return all(t.dtype is DType.INT8 for t in (spec.x, spec.w, spec.y)) and spec.y.quant is not None


def fits_upper_word(spec: ConvSpec) -> bool:
    """Require 32-bit accumulators that are requantized by the upper word of a 64-bit product.

    Return whether the layer meets this condition of a kernel.
    """
    return spec.acc is DType.INT32 and spec.high_word.shift == 32


def is_unstrided_pointwise(spec: ConvSpec) -> bool:
    """Require a pointwise convolution with stride 1 and one group of channels.

    Return whether the layer meets this condition of a kernel.
    """
    shape = spec.shape
    return shape.groups == 1 and shape.reads_pixels and shape.stride_height == shape.stride_width == 1


def _tails(spec: ConvSpec) -> Array:
    """Return [channels, 3] words: bias · multiplier + offset as two words, the lower first, and the multiplier."""
    multiplier = spec.multipliers.astype(np.int64)
    start = spec.folded_bias * multiplier + spec.high_word.offset
    offset = np.ascontiguousarray(start, "<i8").view("<i4").reshape(-1, 2)
    return np.concatenate([offset, multiplier[:, None]], axis=1).astype(np.int32)


def _padded(rows: Array, multiple: int, axis: int = 1) -> Array:
    """Append zeros along an axis up to a multiple."""
    missing = -rows.shape[axis] % multiple
    return np.pad(rows, [(0, missing if a == axis else 0) for a in range(rows.ndim)])


def count_mla_instructions(spec: ConvSpec) -> int:
    """Estimate the instructions per inference of a convolution on Thumb-2, for int8 weights.

    They are 5 per input of six pixels and an output channel, 14 per chunk of weights (split_into_chunks), and 11 to
    pack an input.
    """
    return _steps_of_chunks(spec, per_weight=5, chunk=14, channel=62, pack=11)


def count_muls_instructions(spec: ConvSpec) -> int:
    """Estimate the instructions per inference of a convolution on Thumb-1, for int8 weights.

    They are 9 per input of six pixels and an output channel, 22 per chunk of weights (split_into_chunks), and 21 to
    pack an input.
    """
    return _steps_of_chunks(spec, per_weight=9, chunk=22, channel=190, pack=21)


def count_muls_instructions_of_few(spec: ConvSpec, pixels: int) -> int:
    """Estimate the instructions per inference of Thumb-1 convolutions that compute fewer than six pixels at a time.

    They are 7 per input and output channel for four pixels, 5 for two, plus those per chunk of weights
    (split_into_chunks) and per channel.

    Args:
        spec: The layer.
        pixels: Pixels that the kernel computes at a time.
    """
    twos = pixels // 2
    return _steps_of_chunks(
        spec, per_weight=3 + 2 * twos, chunk=7 + 5 * twos, channel=22 + 56 * twos, pack=3 + 6 * twos, pixels=pixels
    )


def count_mul_instructions(spec: ConvSpec) -> int:
    """Estimate the instructions per inference of a convolution on RISC-V, for int8 weights.

    They are 10 per input of six pixels and an output channel, 23 per chunk of weights (split_into_chunks), and 24 to
    pack an input, which C code does.
    """
    return _steps_of_chunks(spec, per_weight=10, chunk=23, channel=90, pack=24)


def count_mla_instructions_int4(spec: ConvSpec) -> int:
    """Estimate the instructions per inference of a convolution on Thumb-2, for 4-bit weights.

    The inner loop has 12 per two inputs of six pixels and an output channel.
    """
    return _steps_of_chunks(spec, per_weight=6, chunk=14, channel=62, pack=11, few_bits=True)


def count_muls_instructions_int4(spec: ConvSpec) -> int:
    """Estimate the instructions per inference of a convolution on Thumb-1, for 4-bit weights.

    The inner loop has 19 per two inputs of six pixels and an output channel.
    """
    return _steps_of_chunks(spec, per_weight=9.5, chunk=24, channel=190, pack=21, few_bits=True)


def count_mul_instructions_int4(spec: ConvSpec) -> int:
    """Estimate the instructions per inference of a convolution on RISC-V, for 4-bit weights.

    The inner loop has 22 per two inputs of six pixels and an output channel.
    """
    return _steps_of_chunks(spec, per_weight=11, chunk=23, channel=90, pack=24, few_bits=True)


def _with_sums(steps: Callable[[ConvSpec], int], spec: ConvSpec) -> int:
    """Count instructions with 9-bit weights: 9 more to sum up an input of six pixels, about 20 more a channel."""
    return steps(spec) + _blocks_of_pixels(spec, PIXELS_PER_PASS) * (9 * spec.depth + 20 * spec.channels)


def _steps_of_chunks(
    spec: ConvSpec,
    per_weight: float,
    chunk: int,
    channel: int,
    pack: int,
    few_bits: bool = False,
    pixels: int = PIXELS_PER_PASS,
) -> int:
    rows = spec.int8_rows
    around = sum(chunk * len(_chunks(row, few_bits)) + channel for row in rows)
    return int(_blocks_of_pixels(spec, pixels) * (per_weight * rows.size + around + pack * spec.depth))


def count_dense_smlal_instructions(spec: ConvSpec) -> int:
    """Estimate the instructions per inference of a dense layer on Thumb-2.

    The inner loop has 21 per four inputs of four output channels.
    """
    rows, channels, depth = _dense_shape(spec)
    return rows * -(-channels // 4) * (21 * depth // 4 + 60)


def count_dense_muls_instructions(spec: ConvSpec) -> int:
    """Estimate the instructions per inference of a dense layer on Thumb-1.

    The inner loop has 81 per four inputs of six output channels.
    """
    rows, channels, depth = _dense_shape(spec)
    return rows * -(-channels // 6) * (81 * depth // 4 + 240)


def _dense_shape(spec: ConvSpec) -> tuple[int, int, int]:
    """Return (rows, channels, depth) of a dense layer."""
    return spec.y.count // spec.channels, spec.channels, spec.depth


def _blocks_of_pixels(spec: ConvSpec, pixels: int) -> int:
    shape = spec.shape
    return shape.batch * -(-shape.out_height * shape.out_width // pixels)


class PixelPairs(Params):
    """Kernel parameters of the im2col step, which packs the windows of several pixels into words of two pixels.

    A run is a sequence of adjacent pixels in a row of the window.
    """

    reads_in_place: Annotated[int, "1 if the pixels of x are read in place, without im2col"]
    runs_per_kernel_row: Annotated[int, "runs of adjacent pixels in a row of the window"]
    taps_per_run: Annotated[int, "pixels of a run"]
    x_zero_point: Annotated[Trained, "zero point of x, the value of padding"]


class OutputCodes(CodeLimits):
    """Kernel parameters of the quantized output: its limits (inherited), and its zero point."""

    y_zero_point: Annotated[Trained, "zero point of y"]


class ThumbOffset(Params):
    """Kernel parameter of the requantization by 32-bit products on Thumb-1: the sum of zero point and rounding term."""

    requantize_offset: Annotated[Trained, "zero point of y less the lowest value, plus one half, before the last shift"]


class ThumbOptions(Options):
    """Template options of the requantization on Thumb-1: pieces of the multiplier, and limits of results."""

    piece_bits: Annotated[int, "bits of each of the three pieces into which a multiplier is split"]
    low: Annotated[int, "lowest quantized value of y"]
    high: Annotated[int, "highest quantized value of y"]


class ThumbLoop(Options):
    """Template options of the loop over a chunk of weights on Thumb-1: its unroll factor, and code sizes for jumps.

    A chunk is a part of an output channel's weights (split_into_chunks).
    """

    unroll: Annotated[int, "inputs for which the loop is unrolled"]
    input_halfwords: Annotated[int, "halfwords of code of an unrolled input"]
    exit_halfwords: Annotated[int, "halfwords from the first unrolled input to the code behind the loop"]


def thumb1_loop(pixels: int) -> ThumbLoop:
    """Return the template options of the loop of a Thumb-1 convolution over a chunk of an output channel's weights.

    The code of an unrolled step and the code behind the loop are longer if more pixels are computed.

    Args:
        pixels: Pixels that the kernel computes at a time: 2, 4 or 6.
    """
    missing = (PIXELS_PER_PASS - pixels) // 2
    size = UNROLLED_INPUT_HALFWORDS - 2 * missing
    return ThumbLoop(
        unroll=MAX_CHUNK_INPUTS,
        input_halfwords=size,
        exit_halfwords=MAX_CHUNK_INPUTS * size + EXIT_HALFWORDS_THUMB1 - 5 * missing,
    )


class ChunkLoop(Options):
    """Template options of the loop over a chunk of weights: its unroll factor, and whether results are clamped.

    A chunk is a part of an output channel's weights (split_into_chunks).
    """

    max_chunk: Annotated[int, "inputs for which the loop is unrolled"]
    clamp: Annotated[bool, "whether results are limited further than by their type"]


class ChunkCode(Options):
    """Template options with code sizes of the loop over a chunk of weights on Thumb-2, for jumps into unrolled code.

    A chunk is a part of an output channel's weights (split_into_chunks).
    """

    exit_halfwords: Annotated[int, "halfwords from the last unrolled input to the code behind the loop"]
    input_halfwords: Annotated[int, "halfwords of code of an unrolled input"]


class DenseLoop(Options):
    """Template options of the loop over the inputs of a dense layer on Thumb-2: its unroll factor, and the clamp."""

    unroll: Annotated[int, "unroll factor, in units of four inputs"]
    clamp: Annotated[bool, "whether results are limited further than by their type"]


def _conv_call(
    spec: ConvSpec,
    site: Site,
    packed: Array,
    tails: Array,
    params: Params,
    options: Sequence[Options],
    pixels: int = PIXELS_PER_PASS,
) -> Call:
    """Return the call of a convolution that packs the windows of `pixels` output pixels into words of two pixels.

    Args:
        spec: The layer.
        site: Operands and CPU features of the call.
        packed: The weights in reading order.
        tails: The requantization constants, by channel.
        params: Parameters of the requantization.
        options: Template options of the loops and the requantization.
        pixels: Output pixels that are computed together.
    """
    shape, direct = spec.shape, is_unstrided_pointwise(spec)
    runs, taps = (1, shape.kernel_width) if shape.dilation_width == 1 else (shape.kernel_width, 1)
    pairs = PixelPairs(
        reads_in_place=int(direct), runs_per_kernel_row=runs, taps_per_run=taps, x_zero_point=spec.x.q.zero_point
    )
    tail_bytes = pixels * shape.out_channels if shape.out_height * shape.out_width % pixels else 0
    copies = max(tail_bytes, 0 if direct else pixels * taps * shape.in_channels)
    inputs = spec.depth + int(_is_packed(site))
    operands = {
        "x": site.x,
        "w": site.const("w", packed),
        "tails": site.const("tails", tails),
        "y": site.y,
        "words": site.scratch("words", DType.INT32, inputs * pixels // 2),
        "copies": site.scratch("copies", DType.INT8, copies),
    }
    order = windows(shape, in_turn(shape.out_height * shape.out_width, pixels))
    return site.call(operands, [shape.geometry, params, pairs], options, overlaps=spec.overlaps(order))


def split_into_chunks(row: Array) -> list[Array]:
    """Split the weights of an output channel into the longest chunks whose sums of products fit 16 bits.

    The products are those with any int8 inputs. A chunk has at most MAX_CHUNK_INPUTS weights.

    Args:
        row: Weights of the channel, in order.

    Returns:
        The chunks, in order.
    """
    ends = _ends_of_chunks(row.astype(np.int16).tobytes())
    return [row[start:end] for start, end in pairwise((0, *ends, len(row)))]


@lru_cache(maxsize=1 << 15)
def _ends_of_chunks(row: bytes) -> tuple[int, ...]:
    """Return the ends of all chunks of a row but the last.

    The row is given as the bytes of int16 weights. Results are cached, because every kernel and trial asks for each
    row.
    """
    ends, start, total = [], 0, 0
    for end, size in enumerate(np.abs(np.frombuffer(row, np.int16).astype(int)).tolist()):
        if total + size > MAX_CHUNK_WEIGHT_SUM or end - start == MAX_CHUNK_INPUTS:
            ends.append(end)
            start, total = end, 0
        total += size
    return tuple(ends)


def _chunks(row: Array, few_bits: bool) -> list[Array]:
    """Split a row of weights into chunks; 4-bit weights are packed in pairs, at most PAIRS per chunk.

    PAIRS is small enough for the sums of any such chunk to fit 16 bits.
    """
    if not few_bits:
        return split_into_chunks(row)
    pairs = np.pad(row, (0, len(row) % 2)).reshape(-1, 2).astype(np.int8)
    joined = (pairs[:, 0] & 15 | pairs[:, 1] << 4).astype(np.int8)
    return [joined[at : at + MAX_CHUNK_PAIRS] for at in range(0, len(joined), MAX_CHUNK_PAIRS)]


def _stream(row: Array, site: Site, entries: Array, leave: int) -> bytes:
    """Return the bytes that the loop over a channel's chunks reads.

    Each chunk is preceded by the jump distance to the unrolled code for its length; the distance out of the loop
    follows at the end.
    """
    parts = [bytes([entries[len(c)]]) + c.astype(np.int8).tobytes() for c in _chunks(row, _is_packed(site))]
    return b"".join(parts) + bytes([leave])


def _is_packed(site: Site) -> bool:
    """Return whether two weights share a byte."""
    return four_bits in site.kernel.when


def has_few_chunks(spec: ConvSpec) -> bool:
    """Require at most 255 chunks of weights per output channel.

    Return whether the layer meets this condition of a kernel. A chunk is a part of the channel's weights
    (split_into_chunks).
    """
    rows = spec.int8_rows
    max_row_sum = np.abs(rows.astype(np.int64)).sum(1).max(initial=0)  # Two neighbouring chunks exceed CHUNK_SUM.
    if 2 * max_row_sum // (MAX_CHUNK_WEIGHT_SUM + 1) + spec.depth // MAX_CHUNK_INPUTS + 1 < 256:
        return True
    return all(len(split_into_chunks(row)) < 256 for row in rows)


def fits_head_word(spec: ConvSpec) -> bool:
    """Require that a channel's bias fits 23 bits and its number of chunks 9 bits, since both share a word.

    Return whether the layer meets this condition of a kernel. A chunk is a part of the channel's weights
    (split_into_chunks).
    """
    bias = np.abs(spec.folded_bias).max(initial=0)
    return bias < 2 ** (31 - CHUNK_COUNT_BITS) and all(
        len(split_into_chunks(row)) < 2**CHUNK_COUNT_BITS for row in spec.int8_rows
    )


def fits_32_bit_products(spec: ConvSpec) -> bool:
    """Require a requantization that products of 32 bits can compute.

    Return whether the layer meets this condition of a kernel. The kernel splits the requantization multiplier into
    three pieces of 8 to 10 bits, and multiplies an accumulator by each piece. All three products must fit 32 bits
    (choose_piece_bits).
    """
    return choose_piece_bits(spec.requantizer, spec.largest_sum, spec.limits[0]) > 0


def choose_piece_bits(requantize: Requantizer, max_sum: int, low: int) -> int:
    """Choose the size of the three pieces of a requantization multiplier, so that products fit 32 bits.

    9 bits are preferred, so that layers share their code.

    Args:
        requantize: The requantization.
        max_sum: Upper bound of the magnitude of accumulators.
        low: The lowest quantized result.

    Returns:
        The bits of a piece, or 0 if no size fits.
    """
    if requantize.shift != 31:
        return 0
    for piece in (9, 8, 10):
        shift = requantize.shift - 2 * piece
        last = (max_sum * int(requantize.multiplier.max()) >> 2 * piece) + _offset(requantize, low, shift)
        if max_sum << piece < 2**31 and last + 1 < 2**31:
            return piece
    return 0


def _offset(requantize: Requantizer, low: int, shift: int) -> int:
    """Return (zero point − lowest result) and the rounding term, scaled for a right shift by `shift`."""
    return ((requantize.zero_point - low) << shift) + (1 << (shift - 1))


def _thumb1(spec: ConvSpec) -> tuple[Array, ThumbOffset, ThumbOptions]:
    """Return the requantization on Thumb-1: [channels, 2] of bias and multiplier, parameters and options."""
    folded, requantize = spec.folded_bias, spec.requantizer
    tails = np.stack([folded, np.broadcast_to(requantize.multiplier, folded.shape)], axis=1).astype(np.int32)
    return tails, *thumb1_requantization(requantize, spec.largest_sum, spec.limits)


def thumb1_requantization(
    requantize: Requantizer, max_sum: int, limits: tuple[int, int]
) -> tuple[ThumbOffset, ThumbOptions]:
    """Return the kernel parameter and the template options that requantize accumulators on Thumb-1.

    Args:
        requantize: The requantization.
        max_sum: Upper bound of the magnitude of accumulators.
        limits: Lowest and highest quantized result.
    """
    low, high = limits
    piece = choose_piece_bits(requantize, max_sum, low)
    offset = ThumbOffset(requantize_offset=_offset(requantize, low, requantize.shift - 2 * piece))
    return offset, ThumbOptions(piece_bits=piece, low=low, high=high)


def _codes(spec: ConvSpec) -> OutputCodes:
    low, high = spec.limits
    return OutputCodes(low=low, high=high, y_zero_point=spec.y.q.zero_point)


def emit_conv_mla(spec: ConvSpec, site: Site) -> Call:
    """Emit a convolution for Thumb-2 (instruction MLA), with the weights in chunks (split_into_chunks).

    A chunk is a part of an output channel's weights. The number of a channel's chunks shares a word with its bias.
    """
    few_bits = _is_packed(site)
    longest, body = (
        (MAX_CHUNK_PAIRS, UNROLLED_PAIR_HALFWORDS["thumb2"])
        if few_bits
        else (MAX_CHUNK_INPUTS, UNROLLED_INPUT_HALFWORDS)
    )
    entries = EXIT_HALFWORDS_THUMB2 + body * np.arange(longest + 1)
    rows = spec.int8_rows
    packed = np.frombuffer(b"".join(_stream(row, site, entries, 0) for row in rows), np.uint8)
    heads = spec.folded_bias * 2**CHUNK_COUNT_BITS + [len(_chunks(row, few_bits)) for row in rows]
    tails = _with_common_parts(spec, np.stack([heads, spec.multipliers], axis=1).astype(np.int32))
    options = [
        ChunkLoop(max_chunk=longest, clamp=spec.is_clamped),
        ChunkCode(exit_halfwords=EXIT_HALFWORDS_THUMB2, input_halfwords=body),
    ]
    return _conv_call(spec, site, packed, tails, _codes(spec), options)


def emit_conv_muls(spec: ConvSpec, site: Site, pixels: int = PIXELS_PER_PASS) -> Call:
    """Emit a convolution for Thumb-1 (instruction MULS), with the weights in chunks (split_into_chunks).

    A chunk is a part of an output channel's weights. The number of a channel's chunks is the low byte of its bias word.

    Args:
        spec: The layer.
        site: Operands and CPU features of the call.
        pixels: Pixels that are computed together: 6, 4 or 2.
    """
    few_bits, loop = _is_packed(site), thumb1_loop(pixels)
    if few_bits:
        loop = ThumbLoop(
            unroll=MAX_CHUNK_PAIRS,
            input_halfwords=UNROLLED_PAIR_HALFWORDS["thumb1"],
            exit_halfwords=EXIT_PAIRS_HALFWORDS,
        )
    tails, params, options = _thumb1(spec)
    rows = spec.int8_rows
    tails[:, 0] = tails[:, 0] * 256 + [len(_chunks(row, few_bits)) for row in rows]
    entries = loop.input_halfwords * np.arange(loop.unroll, -1, -1)
    packed = np.frombuffer(b"".join(_stream(row, site, entries, loop.exit_halfwords) for row in rows), np.uint8)
    return _conv_call(spec, site, packed, _with_common_parts(spec, tails), params, [options, loop], pixels)


def emit_conv_mul(spec: ConvSpec, site: Site) -> Call:
    """Emit a convolution for RISC-V (instruction mul), with the weights in chunks (split_into_chunks).

    A chunk is a part of an output channel's weights; each is preceded by its length.
    """
    few_bits = _is_packed(site)
    longest = MAX_CHUNK_PAIRS if few_bits else MAX_CHUNK_INPUTS
    rows = spec.int8_rows
    packed = np.frombuffer(b"".join(_stream(row, site, np.arange(longest + 1), 0) for row in rows), np.int8)
    bias, count = spec.folded_bias, np.array([len(_chunks(row, few_bits)) for row in rows])
    whole = (bias * 0x10001 - (count << 15)).astype(np.uint32).view(np.int32)
    tails = np.stack([bias, whole, spec.multipliers], axis=1).astype(np.int32)
    options = [ChunkLoop(max_chunk=longest, clamp=spec.is_clamped)]
    return _conv_call(spec, site, packed, _with_common_parts(spec, tails), _codes(spec), options)


def _with_common_parts(spec: ConvSpec, tails: Array) -> Array:
    """Append the offset of each channel's weights to the requantization constants, if weights have 9 bits."""
    if spec.w.dtype is DType.INT8:
        return tails
    return np.concatenate([tails, spec.channel_offsets[:, None]], axis=1)


def emit_dense_smlal(spec: ConvSpec, site: Site) -> Call:
    """Emit a dense layer for Thumb-2 (instruction SMLAL), four output channels at a time.

    A word holds the weights of four channels for one input: channels 0 and 1 in the outer bytes, 2 and 3 in the inner
    bytes. Weights of channels 0 and 2 are stored plus 128.
    """
    blocks = _blocks(spec, 4).astype(np.int16)
    packed = (blocks + np.array([128, 0, 128, 0], np.int16))[..., [0, 3, 2, 1]].astype(np.uint8)
    if _is_packed(site):
        packed = np.concatenate([_words(block) for block in blocks])
    loop = DenseLoop(unroll=DENSE_UNROLL, clamp=spec.is_clamped)
    tails = _padded(_tails(spec), 4, axis=0)
    return _dense_call(spec, site, packed, tails, CodeLimits.of(spec.limits), [loop], block=4)


def _words(block: Array) -> Array:
    """Pack 4-bit weights [depth, 4] into the bytes of words: two inputs per word, the last up to three inputs one each.

    Weights of channels 0 and 2 are stored plus 8. After its bytes are rotated, a word begins with one of these and ends
    with one of channels 1 and 3.
    """
    codes = block + np.array([-INT4_RANGE[0], 0, -INT4_RANGE[0], 0], np.int16) & 15
    whole = len(codes) // 4 * 4
    pairs = np.concatenate([codes[:whole].reshape(-1, 8), np.pad(codes[whole:], ((0, 0), (0, 4)))])
    laid = pairs[:, [0, 3, 2, 5, 4, 7, 6, 1]]  # Channel 1 of the first input is uppermost.
    joined: Array = (laid[:, 0::2] | laid[:, 1::2] << 4).astype(np.uint8).reshape(-1)
    return joined


def emit_dense_muls(spec: ConvSpec, site: Site) -> Call:
    """Emit a dense layer for Thumb-1 (MULS), six output channels at a time.

    Weights plus 128 are stored as [block of channels][input][6]; each block also has six biases, then six multipliers.
    """
    packed, joined = pack_in_sixes(spec)
    params, options = _thumb1(spec)[1:]
    return _dense_call(spec, site, packed, joined, params, [options, WeightLoads.of(spec, site)], block=6)


def emit_dense_muls_4(spec: ConvSpec, site: Site) -> Call:
    """Emit a dense layer for Thumb-1 with 4-bit weights, six output channels at a time.

    The weights are stored two per byte, each plus 8, as [block of channels][input][6].
    """
    params, options = _thumb1(spec)[1:]
    return _dense_call(spec, site, _nibbles_in_sixes(spec), pack_in_sixes(spec)[1], params, [options], block=6)


def _nibbles_in_sixes(spec: ConvSpec) -> Array:
    """Pack 4-bit weights plus 8 as [block][depth][6], two per byte."""
    blocks = _blocks(spec, 6).astype(np.int16)
    return nibbles(blocks[..., 0::2], blocks[..., 1::2])


def pack_in_sixes(spec: ConvSpec) -> tuple[Array, Array]:
    """Pack the weights and requantization constants of a dense layer for Thumb-1, by blocks of six output channels.

    Returns:
        Weights plus 128, uint8 [blocks, depth, 6], and biases and multipliers, int32 [blocks, 2, 6].
    """
    packed = (_blocks(spec, 6).astype(np.int16) + 128).astype(np.uint8)
    return packed, _padded(_thumb1(spec)[0], 6, axis=0).reshape(-1, 6, 2).transpose(0, 2, 1)


def _blocks(spec: ConvSpec, size: int) -> Array:
    """Return the weights as [block of channels][depth][size], padded with zeros."""
    rows = spec.rows
    return _padded(rows, size, axis=0).reshape(-1, size, rows.shape[1]).transpose(0, 2, 1)


def has_int16_results(spec: ConvSpec) -> bool:
    """Require int8 input and weights, int16 results, and accumulators of 32 bits.

    Return whether the layer meets this condition of a kernel.
    """
    types = (spec.x.dtype, spec.w.dtype, spec.y.dtype)
    return types == (DType.INT8, DType.INT8, DType.INT16) and spec.is_requantized and spec.acc is DType.INT32


def has_sum_results(spec: ConvSpec) -> bool:
    """Require int8 input and weights, and int32 accumulators as the result.

    Return whether the layer meets this condition of a kernel, which does not requantize.
    """
    return spec.x.dtype is spec.w.dtype is DType.INT8 and spec.is_sums


class WideOffset(Params):
    """Kernel parameter of the requantization by 64-bit products: the sum of zero point and rounding term."""

    requantize_offset: Annotated[Wide, "zero point of y plus one half, at the scale of products before the right shift"]


class ShiftOptions(Options):
    """Template option of the requantization: the right shift of products of accumulators and multipliers."""

    shift: Annotated[int, "right shift of products with the multiplier"]


def emit_dense_muls_16(spec: ConvSpec, site: Site) -> Call:
    """Emit a dense layer for Thumb-1 with int16 results, six channels at a time; accumulators are requantized in C.

    Weights are stored plus 128, or, with 4 bits, two per byte, each plus 8.
    """
    packs = four_bits in site.kernel.when
    packed = _nibbles_in_sixes(spec) if packs else (_blocks(spec, 6).astype(np.int16) + 128).astype(np.uint8)
    tails = np.stack([spec.folded_bias, spec.multipliers], axis=1).astype(np.int32)
    joined = _padded(tails, 6, axis=0).reshape(-1, 6, 2).transpose(0, 2, 1)
    operands = {"x": site.x, "w": site.const("w", packed), "tails": site.const("tails", joined), "y": site.y}
    order = windows(spec.shape, in_turn(spec.shape.out_height * spec.shape.out_width, 1), last=1)
    params = [
        WideOffset(requantize_offset=Wide(spec.high_word.offset)),
        CodeLimits.of(spec.limits),
        DenseSizes.of(spec),
    ]
    options = [ShiftOptions(shift=spec.high_word.shift), *[WeightLoads.of(spec, site)] * (not packs)]
    return site.call(operands, params, options, overlaps=spec.overlaps(order))


def emit_dense_muls_32(spec: ConvSpec, site: Site) -> Call:
    """Emit a dense layer for Thumb-1 with int32 results, six output channels at a time.

    Weights plus 128 are stored as [block of channels][input][6], with six biases per block.
    """
    packed = (_blocks(spec, 6).astype(np.int16) + 128).astype(np.uint8)
    bias = _padded(spec.folded_bias.astype(np.int32), 6, axis=0)
    operands = {"x": site.x, "w": site.const("w", packed), "bias": site.const("bias", bias), "y": site.y}
    order = windows(spec.shape, in_turn(spec.shape.out_height * spec.shape.out_width, 1), last=1)
    tail_options = RestOptions(has_tail_channels=spec.channels % 6 != 0)
    options = [tail_options, WeightLoads.of(spec, site)]
    return site.call(operands, [DenseSizes.of(spec)], options, overlaps=spec.overlaps(order))


def _dense_call(
    spec: ConvSpec, site: Site, packed: Array, tails: Array, params: Params, options: Sequence[Options], block: int
) -> Call:
    """Return the call of a dense layer that computes several channels of a row together.

    Args:
        spec: The layer.
        site: Operands and CPU features of the call.
        packed: The weights in reading order.
        tails: The requantization constants, by block.
        params: Parameters of the requantization.
        options: Template options of the loops and the requantization.
        block: Channels that are computed together.
    """
    count, channels, depth = _dense_shape(spec)
    operands = {"x": site.x, "w": site.const("w", packed), "tails": site.const("tails", tails), "y": site.y}
    remaining_channels, shape = channels % block, spec.shape
    # Plain C stores channels one by one.
    order = windows(shape, in_turn(shape.out_height * shape.out_width, 1), last=remaining_channels or 1)
    size = DenseSizes(rows=count, depth=depth, out_channels=channels)
    free = spec.overlaps(order)
    return site.call(
        operands, [params, size], [*options, RestOptions(has_tail_channels=remaining_channels != 0)], overlaps=free
    )


def has_few_pixels(spec: ConvSpec) -> bool:
    """Require at most three output pixels: a convolution computes six together.

    Return whether the layer meets this condition of a kernel. Kernels of six pixels at a time would waste half of their
    work.
    """
    shape = spec.shape
    return shape.out_height * shape.out_width <= PIXELS_PER_PASS // 2


def has_many_pixels(spec: ConvSpec) -> bool:
    """Require more than three output pixels.

    Return whether the layer meets this condition of a kernel, which computes six pixels at a time.
    """
    return not has_few_pixels(spec)


def has_four_inputs(spec: ConvSpec) -> bool:
    """Require at least four inputs per output (depth).

    Return whether the layer meets this condition of a kernel. The depth is the number of products in an accumulator.
    """
    return spec.depth >= 4


_CHUNKS = "weights by output channel, in chunks: before each chunk a byte for its length, after the last one a byte"
_BY_CHUNKS = (_CHUNKS, "by output channel: bias with the number of chunks, multiplier; offset of nine-bit weights")
_BY_CHUNKS_RV32 = (
    _CHUNKS,
    "by output channel: bias, bias with the number of chunks, multiplier; offset of nine-bit weights",
)
_BY_FOUR = (
    "by four output channels: their weights of each input in turn, with an offset for channels 0 and 2",
    "bias and multiplier by output channel",
)
_BY_SIX = (
    "by six output channels: their weights of each input in turn, plus 128 (4-bit weights: plus 8)",
    "by six output channels: biases, then multipliers",
)


def _operands(weights: DType, order: tuple[str, str], *working: Role, result: DType = DType.INT8) -> tuple[Role, ...]:
    """Return the operands of a kernel; `order` describes the order of weights and of requantization constants."""
    return (
        reads("x", "input, channels last", DType.INT8),
        reads("w", order[0], weights, holds=(1,)),
        reads("tails", order[1], DType.INT32, holds=(2,)),
        writes("y", "output, channels last", result),
        *working,
    )


_WORKING = (
    scratch("words", "inputs of six windows, two pixels per word", DType.INT32),
    scratch("copies", "copied windows, or results of pixels beyond the last one", DType.INT8),
)

_CONV = "six pixels at a time as three words of two, so that one product serves both pixels of a word"

_BY_VALUE = frozenset({CHECKED, UPDATABLE})
"""Tuning flags that chunked kernels lack: the bytes of a row's chunks depend on the values of its weights."""

_DENSE_SMLAL = Kernel(
    "dense_s8_thumb2",
    what="rows by a matrix, four channels at a time, weights of two channels in a word",
    operands=_operands(DType.UINT8, _BY_FOUR),
    params=(CodeLimits, DenseSizes),
    options=(DenseLoop, RestOptions),
    needs=frozenset({"thumb2"}),
    when=(has_int8_tensors, has_four_inputs, fits_upper_word),
    emit=emit_dense_smlal,
    extra=count_dense_smlal_instructions,
)

_DENSE_MULS = Kernel(
    "dense_s8_thumb1",
    what="rows by a matrix, six channels at a time",
    operands=_operands(DType.UINT8, _BY_SIX),
    params=(ThumbOffset, DenseSizes),
    options=(ThumbOptions, WeightLoads, RestOptions),
    needs=frozenset({"thumb1"}),
    when=(has_int8_tensors, fits_32_bit_products),
    emit=emit_dense_muls,
    extra=count_dense_muls_instructions,
)

_DENSE_MULS_16 = Kernel(
    "dense_s8_s16_thumb1",
    what="rows by a matrix, six channels at a time, to 16 bits",
    operands=_operands(DType.UINT8, _BY_SIX, result=DType.INT16),
    params=(WideOffset, CodeLimits, DenseSizes),
    options=(ShiftOptions, WeightLoads),
    needs=frozenset({"thumb1"}),
    when=(has_int16_results,),
    emit=emit_dense_muls_16,
    extra=count_dense_muls_instructions,
)

_DENSE_MULS_32 = Kernel(
    "dense_s8_s32_thumb1",
    what="rows by a matrix, six channels at a time, to sums of 32 bits",
    operands=(
        reads("x", "input, channels last", DType.INT8),
        reads("w", _BY_SIX[0], DType.UINT8, holds=(1,)),
        reads("bias", "bias by output channel, in blocks of six", DType.INT32, holds=(2,)),
        writes("y", "output, channels last", DType.INT32),
    ),
    params=(DenseSizes,),
    options=(RestOptions, WeightLoads),
    needs=frozenset({"thumb1"}),
    when=(has_sum_results,),
    emit=emit_dense_muls_32,
    extra=count_dense_muls_instructions,
)

_PIXELS: tuple[Kernel, ...] = (
    Kernel(
        "conv2d_s8_thumb2",
        what=_CONV,
        operands=_operands(DType.UINT8, _BY_CHUNKS, *_WORKING),
        params=(ConvGeometry, OutputCodes, PixelPairs),
        options=(ChunkLoop, ChunkCode),
        needs=frozenset({"thumb2"}),
        lacks=_BY_VALUE,
        when=(has_int8_tensors, has_one_group, fits_upper_word, fits_head_word),
        emit=emit_conv_mla,
        extra=count_mla_instructions,
    ),
    Kernel(
        "conv2d_s8_thumb1",
        what=_CONV,
        operands=_operands(DType.UINT8, _BY_CHUNKS, *_WORKING),
        params=(ConvGeometry, ThumbOffset, PixelPairs),
        options=(ThumbOptions, ThumbLoop),
        needs=frozenset({"thumb1"}),
        lacks=_BY_VALUE,
        when=(has_int8_tensors, has_one_group, fits_32_bit_products, has_few_chunks),
        emit=emit_conv_muls,
        extra=count_muls_instructions,
    ),
    Kernel(
        "conv2d_s8_rv32",
        what=_CONV,
        operands=_operands(DType.INT8, _BY_CHUNKS_RV32, *_WORKING),
        params=(ConvGeometry, OutputCodes, PixelPairs),
        options=(ChunkLoop,),
        needs=frozenset({"rv32"}),
        lacks=_BY_VALUE,
        when=(has_int8_tensors, has_one_group, fits_upper_word),
        emit=emit_conv_mul,
        extra=count_mul_instructions,
    ),
)

_FEW_PIXELS = tuple(
    replace(
        _PIXELS[1],
        name=f"conv2d_s8_thumb1_{pixels}",
        what=f"{pixels} pixels at a time, with {pixels} sixths of the scratch memory of six",
        emit=partial(emit_conv_muls, pixels=pixels),
        extra=partial(count_muls_instructions_of_few, pixels=pixels),
    )
    for pixels in (4, 2)
)

_PIXELS_9 = tuple(
    replace(
        kernel,
        name=f"{kernel.name}_nine",
        what=f"{_CONV}; nine-bit weights: int8 weights, plus each channel's offset times the sum of a pixel's inputs",
        when=(nine_bits, has_int8_output, *(holds for holds in kernel.when if holds is not has_int8_tensors)),
        extra=partial(_with_sums, steps),
        example=uint8_example(16, 16),
    )
    for kernel, steps in zip(
        _PIXELS, (count_mla_instructions, count_muls_instructions, count_mul_instructions), strict=True
    )
)

_PIXELS_4 = tuple(
    of_four_bits(kernel, extra=extra)
    for kernel, extra in zip(
        _PIXELS, (count_mla_instructions_int4, count_muls_instructions_int4, count_mul_instructions_int4), strict=True
    )
)

_DENSE_4 = (
    of_four_bits(_DENSE_SMLAL),
    of_four_bits(_DENSE_MULS, options=(ThumbOptions, RestOptions), emit=emit_dense_muls_4),
    of_four_bits(_DENSE_MULS_16, options=(ShiftOptions,)),
)

SCALAR_DENSE: tuple[Kernel, ...] = (
    _DENSE_SMLAL,
    _DENSE_MULS,
    _DENSE_MULS_16,
    _DENSE_MULS_32,
    *_DENSE_4,
    *(
        replace(kernel, when=(has_many_pixels, *kernel.when))
        for kernel in (*_PIXELS, *_FEW_PIXELS, *_PIXELS_4, *_PIXELS_9)
    ),
)
"""Integer kernels of dense layers for CPUs without DSP instructions (Thumb-1, Thumb-2, RISC-V), in order of preference.

Layers of more than three rows can also use the convolution kernels, which take each row for a pixel.
"""

SCALAR_CONV: tuple[Kernel, ...] = (
    *_PIXELS,
    *_FEW_PIXELS,
    replace(_DENSE_SMLAL, when=(is_unstrided_pointwise, has_few_pixels, *_DENSE_SMLAL.when)),
    replace(_DENSE_MULS, when=(is_unstrided_pointwise, *_DENSE_MULS.when)),
    replace(_DENSE_MULS_32, when=(is_unstrided_pointwise, *_DENSE_MULS_32.when)),
    *_PIXELS_4,
    *_PIXELS_9,
    replace(_DENSE_4[0], when=(is_unstrided_pointwise, has_few_pixels, *_DENSE_4[0].when)),
    replace(_DENSE_4[1], when=(is_unstrided_pointwise, *_DENSE_4[1].when)),
)
"""Integer kernels of convolutions for CPUs without DSP instructions (Thumb-1, Thumb-2, RISC-V), in order of
preference."""
