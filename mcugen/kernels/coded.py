# SPDX-License-Identifier: Apache-2.0
"""Fully connected layers whose weights are stored by a Rice code (1979), decoded as they are multiplied.

A code has a parameter and no tables. For weights spread like a Laplace distribution or a normal one, as trained
ones are, it comes within a few percent of the entropy; where most are 0, it spends little more than a bit on each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np

from mcugen.hir.types import Array, DType
from mcugen.kernels.portable import single_row, weighted_call
from mcugen.kernels.reading_order import in_turn, windows
from mcugen.kernels.specs import ConvSpec
from mcugen.kernels.weighted import ElementTypes, IntegerStore, Requantization
from mcugen.lir.kernel import CHECKED, UPDATABLE, Call, Kernel, Options, Params, Site, Trained, reads, writes

LONGEST_PREFIX = 16
"""Zeros behind which a number follows as it is."""

REMAINDERS = range(8)
"""Bits that numbers may have behind the prefix and its 1."""

READ_AHEAD = 4
"""Bytes that decoding may read beyond the last code."""


def zigzag(codes: Array) -> Array:
    """int8 as 0, 1, 2, … for 0, -1, 1, …"""
    wide = codes.astype(np.int64)
    numbers: Array = np.where(wide < 0, -2 * wide - 1, 2 * wide)
    return numbers


def code_lengths(numbers: Array, remainder: int) -> Array:
    """Bits that each number takes."""
    prefixes = numbers >> remainder
    lengths: Array = np.where(prefixes < LONGEST_PREFIX, prefixes + 1 + remainder, LONGEST_PREFIX + 8)
    return lengths


@lru_cache(maxsize=1 << 8)
def _best(histogram: tuple[int, ...]) -> tuple[int, int]:
    """The remainder that takes fewest bits for so many of each number, and these bits."""
    numbers, counts = np.arange(len(histogram)), np.array(histogram)
    bits = {remainder: int((code_lengths(numbers, remainder) * counts).sum()) for remainder in REMAINDERS}
    best = min(bits, key=bits.__getitem__)
    return best, bits[best]


def best_code(codes: Array) -> tuple[int, int]:
    """Of int8: the remainder that takes fewest bits, and these bits."""
    return _best(tuple(np.bincount(zigzag(codes.reshape(-1)), minlength=256).tolist()))


def encode(codes: Array, remainder: int) -> Array:
    """uint8: the bits of all int8 one after the other, the first in the uppermost of a byte, and READ_AHEAD bytes.

    A number is as many zeros as its upper bits say, a 1, and its `remainder` lower bits; or LONGEST_PREFIX zeros and
    8 bits.
    """
    numbers = zigzag(codes.reshape(-1))
    lengths = code_lengths(numbers, remainder)
    is_long = numbers >> remainder >= LONGEST_PREFIX
    values = np.where(is_long, numbers, 1 << remainder | numbers & (1 << remainder) - 1)
    ends = np.cumsum(lengths)
    bits = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    for place in range(max(8, remainder + 1)):  # from the end of each number on; what lies above it is 0
        inside = place < lengths
        bits[ends[inside] - 1 - place] = values[inside] >> place & 1
    return np.concatenate([np.packbits(bits), np.zeros(READ_AHEAD, np.uint8)])


def eight_bits(spec: ConvSpec) -> bool:
    """weights of 8 bits, integer activations"""
    low, high = DType.INT8.limits
    in_range = spec.rows.min(initial=0) >= low and spec.rows.max(initial=0) <= high
    return spec.x.quant is not None and spec.w.dtype.is_integer and bool(in_range)


def compressible(spec: ConvSpec) -> bool:
    """a Rice code of the weights is shorter than seven bits each"""
    return best_code(spec.rows)[1] < 7 * spec.rows.size


@dataclass(frozen=True, kw_only=True)
class CodedRow(Params):
    """Of a layer with one row of outputs."""

    depth: Annotated[int, "elements of x"]
    channels: Annotated[int, "elements of y"]
    remainder: Annotated[Trained, "lower bits of a number, which follow the prefix"]


@dataclass(frozen=True, kw_only=True)
class RiceOptions(Options):
    """Of the code."""

    longest: Annotated[int, "zeros behind which a number follows as it is"]


def emit_coded(spec: ConvSpec, site: Site) -> Call:
    """Channel by channel, in the order of the weights."""
    remainder, _ = best_code(spec.rows)
    row = CodedRow(depth=spec.depth, channels=spec.channels, remainder=remainder)
    order = windows(spec.shape, in_turn(1, 1), last=1)
    packed = encode(spec.rows, remainder)
    return weighted_call(spec, site, packed, [row], RiceOptions(longest=LONGEST_PREFIX), spec.overlaps(order))


def coded_bits(spec: ConvSpec) -> int:
    """Of the weights."""
    return best_code(spec.rows)[1]


DENSE: tuple[Kernel, ...] = (
    Kernel(
        "dense_coded",
        what="one row by a matrix whose weights are stored by a Rice code, decoded as they are multiplied",
        operands=(
            reads("x", "input", DType.INT8, DType.INT16),
            reads("w", "weights by a Rice code, channel by channel", DType.UINT8),
            reads("bias", "what the sum of each channel starts with", DType.INT32, DType.INT64),
            reads("multiplier", "of sums, by channel", DType.INT32, optional=True),
            writes("y", "output", DType.INT8, DType.INT16, DType.INT32),
        ),
        params=(CodedRow, Requantization),
        without=frozenset({"x_zero", "run"}),
        options=(ElementTypes, RiceOptions, IntegerStore),
        lacks=frozenset({UPDATABLE, CHECKED}),
        when=(eight_bits, single_row, compressible),
        emit=emit_coded,
        extra=coded_bits,
    ),
)
"""Whose lengths follow from the weights."""
