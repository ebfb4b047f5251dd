# SPDX-License-Identifier: Apache-2.0
"""Weights compressed by a Rice code (1979), which is decoded as weights are multiplied, or to the arena before a layer.

A Rice code has one parameter, the number of remainder bits, and no tables. An int8 weight is mapped to a zigzag number
(0, -1, 1, -2 to 0, 1, 2, 3); the number's upper bits are written in unary, as a prefix of zeros and a 1, and its lower
`remainder` bits follow. For trained weights, whose distribution is near Laplace or normal, the code is within a few
percent of the entropy; if most weights are 0, it needs little more than one bit for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np

from mcugen.hir.types import Array, DType
from mcugen.kernels.common.reading_order import in_turn, windows
from mcugen.kernels.common.specs import ConvSpec
from mcugen.kernels.common.weighted_layers import IntegerStore, Requantization, integer_store
from mcugen.kernels.portable.weighted import is_single_pixel
from mcugen.lir.kernel import CHECKED, UPDATABLE, Call, Kernel, Options, Params, Site, Trained, reads, scratch, writes
from mcugen.lir.program import DECODE_WEIGHTS, Buffer, Space

ESCAPE_PREFIX_ZEROS = 16
"""Number of zero bits of the prefix that announces an uncoded number in 8 bits."""

REMAINDER_BITS = range(8)
"""Possible numbers of remainder bits, the parameter of the Rice code."""

DECODING_TABLE_SIZE = 256
"""Number of entries of the decoding table, by which codes of at most 8 bits are decoded at once."""

MIN_SAVED_CODE_BYTES = 128
"""Smallest saving, in bytes of flash, for which a layer's weights are compressed: the call and its parameters need
flash, and decoding has a fixed cost."""

READ_AHEAD = 4
"""Number of bytes that the decoder may read beyond the last code; encoded data is padded with as many zeros."""


def zigzag(codes: Array) -> Array:
    """Map int8 values 0, -1, 1, -2, … to the numbers 0, 1, 2, 3, …, so that small magnitudes have short Rice codes."""
    wide = codes.astype(np.int64)
    numbers: Array = np.where(wide < 0, -2 * wide - 1, 2 * wide)
    return numbers


def code_lengths(numbers: Array, remainder: int) -> Array:
    """Return the length, in bits, of the Rice code of each number.

    Args:
        numbers: Numbers from 0 to 255 (zigzag).
        remainder: Number of remainder bits, the code's parameter.
    """
    prefixes = numbers >> remainder
    lengths: Array = np.where(prefixes < ESCAPE_PREFIX_ZEROS, prefixes + 1 + remainder, ESCAPE_PREFIX_ZEROS + 8)
    return lengths


@lru_cache(maxsize=1 << 8)
def _best(histogram: tuple[int, ...]) -> tuple[int, int]:
    """Return the parameter of fewest bits for a histogram of zigzag numbers, and these bits."""
    numbers, counts = np.arange(len(histogram)), np.array(histogram)
    bits = {remainder: int((code_lengths(numbers, remainder) * counts).sum()) for remainder in REMAINDER_BITS}
    best = min(bits, key=bits.__getitem__)
    return best, bits[best]


def choose_remainder_bits(codes: Array) -> tuple[int, int]:
    """Choose the parameter of the Rice code for which int8 values are encoded in the fewest bits.

    The parameter is the number of remainder bits: lower bits of each number that are stored as they are.

    Returns:
        The number of remainder bits, and the total length of the encoded values in bits.
    """
    return _best(tuple(np.bincount(zigzag(codes.reshape(-1)), minlength=256).tolist()))


def encode(codes: Array, remainder: int) -> Array:
    """Encode int8 values by a Rice code as a string of bits.

    Values are mapped to numbers as by `zigzag` (0, -1, 1, -2, … to 0, 1, 2, 3, …). Let n be the number without its
    `remainder` lower bits. The code is n zeros, a 1, and the lower bits; for n of 16 or more, it is 16 zeros and the
    whole number in 8 bits.

    Args:
        codes: The values, int8 of any shape.
        remainder: Number of remainder bits, the code's parameter.

    Returns:
        uint8: the bits of all numbers, highest bit first, followed by READ_AHEAD zero bytes.
    """
    numbers = zigzag(codes.reshape(-1))
    lengths = code_lengths(numbers, remainder)
    is_long = numbers >> remainder >= ESCAPE_PREFIX_ZEROS
    values = np.where(is_long, numbers, 1 << remainder | numbers & (1 << remainder) - 1)
    ends = np.cumsum(lengths)
    bits = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    for place in range(max(8, remainder + 1)):  # Bits from the lowest up; higher bits are 0.
        inside = place < lengths
        bits[ends[inside] - 1 - place] = values[inside] >> place & 1
    return np.concatenate([np.packbits(bits), np.zeros(READ_AHEAD, np.uint8)])


def has_int8_weights(spec: ConvSpec) -> bool:
    """Require int8 weights, and quantized activations.

    Return whether the layer's input is quantized, and all its weights are integers from −128 to 127.
    """
    low, high = DType.INT8.limits
    in_range = spec.rows.min(initial=0) >= low and spec.rows.max(initial=0) <= high
    return spec.x.quant is not None and spec.w.dtype.is_integer and bool(in_range)


def is_compressible(spec: ConvSpec) -> bool:
    """Require that a Rice code takes fewer than seven bits per weight.

    Return whether the best Rice code of the layer's weights takes fewer than seven bits per weight.
    """
    return choose_remainder_bits(spec.rows)[1] < 7 * spec.rows.size


class CodedRow(Params):
    """Kernel parameters of a fully connected layer with one row of x and Rice-coded weights: sizes, code parameter.

    A Rice code writes the upper bits of a number as a prefix of zeros and a 1, and then its lower `remainder_bits`
    bits.
    """

    depth: Annotated[int, "elements of x"]
    out_channels: Annotated[int, "elements of y"]
    remainder_bits: Annotated[Trained, "lower bits of a number, which follow its prefix"]


class RiceOptions(Options):
    """Template options of a fully connected layer with Rice-coded weights: escape prefix of the code, and output type.

    A code begins with a prefix of zeros and a 1, whose length is the number's upper bits. A prefix of `max_prefix`
    zeros (escape) means that the number follows in 8 bits.
    """

    max_prefix: Annotated[int, "zeros of the escape prefix, after which a number has 8 plain bits"]
    y_t: Annotated[str, "C type of the output"]


def emit_coded(spec: ConvSpec, site: Site) -> Call:
    """Return the call of a fully connected layer whose Rice-coded weights are decoded as they are multiplied.

    The layer has one row of x. Its weights are stored output channel by output channel.
    """
    remainder, _ = choose_remainder_bits(spec.rows)
    row = CodedRow(depth=spec.depth, out_channels=spec.channels, remainder_bits=remainder)
    order = windows(spec.shape, in_turn(1, 1), last=1)
    store = integer_store(spec)
    operands = {"x": site.x, "w": site.const("weights", encode(spec.rows, remainder))}
    operands |= {role: site.const(role, array) for role, array in store.constants.items()}
    options = [RiceOptions(max_prefix=ESCAPE_PREFIX_ZEROS, y_t=spec.y.dtype.c), store.options]
    return site.call(
        operands | {"y": site.y}, [row, store.params], options, overlaps=spec.overlaps(order), variant=store.variant
    )


def count_coded_bits(spec: ConvSpec) -> int:
    """Return the total number of bits of the layer's Rice-coded weights, a term of the cost model."""
    return choose_remainder_bits(spec.rows)[1]


COMPRESSED_DENSE: tuple[Kernel, ...] = (
    Kernel(
        "dense_coded",
        what="one row by a matrix whose weights are stored by a Rice code, decoded as they are multiplied",
        operands=(
            reads("x", "input", DType.INT8, DType.INT16),
            reads("w", "weights by a Rice code, channel by channel", DType.UINT8, holds=(1,)),
            reads("bias", "bias of each channel", DType.INT32, DType.INT64, holds=(2,)),
            reads("multiplier", "requantization multiplier of each channel", DType.INT32, optional=True),
            writes("y", "output", DType.INT8, DType.INT16, DType.INT32),
        ),
        params=(CodedRow, Requantization),
        without=frozenset({"x_zero_point", "max_int32_products"}),
        options=(RiceOptions, IntegerStore),
        lacks=frozenset({UPDATABLE, CHECKED}),
        when=(has_int8_weights, is_single_pixel, is_compressible),
        emit=emit_coded,
        extra=count_coded_bits,
    ),
)
"""Kernels of fully connected layers that decode compressed weights as they multiply them."""


class CodedWeights(Params):
    """Kernel parameters of the decompression of a Rice-coded constant y, whose rows have equal length.

    Words at both ends of each row may be stored without compression. A Rice code writes the upper bits of a number as a
    prefix of zeros and a 1, and then its lower `remainder_bits` bits.
    """

    rows: Annotated[int, "rows of y"]
    words_before: Annotated[int | None, "words of a row before the compressed ones"] = None
    coded_size: Annotated[int, "words or bytes of a row that are compressed"]
    words_after: Annotated[int | None, "words of a row after the compressed ones"] = None
    remainder_bits: Annotated[Trained, "lower bits of a number, which follow its prefix"]


class DecodeOptions(Options):
    """Template options of the decoder of Rice-coded constants: escape prefix, and whether it decodes words or int8.

    A code begins with a prefix of zeros and a 1, whose length is the number's upper bits. A prefix of `max_prefix`
    zeros (escape) means that the number follows in 8 bits.
    """

    max_prefix: Annotated[int, "zeros of the escape prefix, after which a number has 8 plain bits"]
    words: Annotated[bool, "whether y has words, each of four decoded numbers"]


DECODE = Kernel(
    DECODE_WEIGHTS,
    what="decompressed weights of a layer, which are stored by a Rice code",
    operands=(
        reads("x", "weights by a Rice code, in the order in which the layer reads them", DType.UINT8),
        reads("plain", "words at the beginning and end of each row, biases perhaps", DType.INT32, optional=True),
        writes("y", "decompressed weights, in the arena", DType.INT8, DType.INT32),
        scratch("table", "for each 8 bits, the number that they begin with", DType.UINT16),
    ),
    params=(CodedWeights,),
    options=(DecodeOptions,),
    lacks=frozenset({UPDATABLE, CHECKED}),
    example="""<ir_version: 10, opset_import: ["": 21]>
    coarse (int8[1, 16, 6, 6] x) => (int8[1, 16, 6, 6] y)
    <float s = {0.05}, float t = {0.5}, int8 z = {0}, int64 first = {0}, int64 end = {2304}, int64 one = {1},
     int64 most = {19}, int64 half = {9}, int64[4] shape = {16, 16, 3, 3}> {
      n = Range(first, end, one)
      r = Mod(n, most)
      d = Sub(r, half)
      c = Cast<to = 3>(d)
      q = Reshape(c, shape)
      w = DequantizeLinear(q, s, z)
      a = DequantizeLinear(x, s, z)
      p = Conv<pads = [1, 1, 1, 1]>(a, w)
      y = QuantizeLinear(p, t, z)
    }""",
)
"""Kernel that decompresses a layer's weights; chosen for a whole program (mcugen.search.weight_decompression)."""


@dataclass(frozen=True)
class CompressedConstant:
    """A constant of a layer that is compressed by a Rice code, except for words at both ends of its rows.

    Attributes:
        coded: The Rice-coded part of the constant, uint8.
        plain: Words at both ends of each row that are not compressed, int32 [rows, words]; None if all are compressed.
        params: Kernel parameters of the decompression.
    """

    coded: Array
    plain: Array | None
    params: CodedWeights

    @property
    def nbytes(self) -> int:
        """Return the bytes of the compressed constant in flash."""
        return self.coded.nbytes + (0 if self.plain is None else self.plain.nbytes)

    def call(self, held: Buffer, coded: Buffer, plain: Buffer | None) -> Call:
        """Return the kernel call that decompresses the constant to working memory (the arena) before the layer runs.

        Args:
            held: Buffer of the decompressed constant, which the layer reads.
            coded: Buffer of the compressed part.
            plain: Buffer of the words that are not compressed; None if there are none.
        """
        operands = {"x": coded, **({} if plain is None else {"plain": plain}), "y": held}
        operands["table"] = Buffer(f"{held.name}.table", DType.UINT16, DECODING_TABLE_SIZE, Space.ARENA)
        options = DecodeOptions(max_prefix=ESCAPE_PREFIX_ZEROS, words=plain is not None)
        return Call(DECODE, operands, [self.params], [options], variant=held.dtype.tag)


def compress_constant(weights: Array) -> CompressedConstant | None:
    """Compress a constant of a layer, such as packed weights, by a Rice code.

    Each word of an int32 constant is encoded as four int8 numbers. Words at both ends of all rows, such as biases, stay
    plain if that takes fewer bits.

    Args:
        weights: The constant: int8 of any shape, or int32 with at least two axes.

    Returns:
        The compressed constant; None for other types.
    """
    if weights.dtype == np.int8:
        remainder, _ = choose_remainder_bits(weights)
        params = CodedWeights(rows=1, coded_size=weights.size, remainder_bits=remainder)
        return CompressedConstant(encode(weights, remainder), None, params)
    if weights.dtype != np.int32 or weights.ndim < 2:
        return None
    words = weights.reshape(-1, weights.shape[-1])
    numbers = split_base_256(words)
    remainder, _ = choose_remainder_bits(numbers)
    saved = np.cumsum(32 * len(words) - code_lengths(zigzag(numbers), remainder).sum((0, -1)))
    end = int(saved.argmax()) + 1
    first = int(np.append(0, saved[: end - 1]).argmin())
    inner, plain = numbers[:, first:end], np.delete(words, np.s_[first:end], 1)
    remainder, _ = choose_remainder_bits(inner)
    params = CodedWeights(
        rows=len(words),
        words_before=first,
        coded_size=end - first,
        words_after=words.shape[1] - end,
        remainder_bits=remainder,
    )
    return CompressedConstant(encode(inner, remainder), plain, params)


def split_base_256(words: Array) -> Array:
    """Split int32 words [...] into signed base-256 digits, int8 [..., 4], the lowest first, each from -128 to 127.

    The word is Σ digit · 256^position, modulo 2^32. Kernels may pack several weights into a word as a sum, such as 256
    · odd + even. Signed digits are then equal or near to these weights, so that their Rice code is short.
    """
    remainder, digits = words.astype(np.int64), list[Array]()
    for _ in range(4):
        digits.append(remainder.astype(np.int8))
        remainder = (remainder - digits[-1]) >> 8
    return np.stack(digits, -1)
