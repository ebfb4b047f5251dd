# SPDX-License-Identifier: Apache-2.0
"""Clamps and scalings between layers of integer networks in float tensors, in integers and without division."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from mcugen.expressions import functions as fn
from mcugen.expressions.nodes import Convert, Expression, call
from mcugen.hir.operator import Signature
from mcugen.hir.types import Array, DType
from mcugen.kernels.portable.elementwise import Scalars
from mcugen.ops.elementwise import Elementwise

_WORD = 32
_MAX_FRACTION_BITS = 54
"""Bits behind the point with which zero points of bytes leave room in 64, beside products of 62 bits."""
_LARGEST = 2**31 - 128
"""The largest float32 below 2³¹: beyond, real numbers saturate as they become integers."""


class Cut(Elementwise):
    """y = min(max((⌊x⌋ · multiplier + offset) >> shift, low), high): round down, scale, and clamp to integers.

    The result is int32, or quantized with scale 1.

    Attributes:
        low: Least result; for real x, it must be ≥ 0.
        high: Greatest result.
        multiplier: Integer factor; None if y is ⌊x⌋ clamped.
        offset: Integer that is added to the product.
        shift: Right shift of the sum.
    """

    mnemonic: ClassVar[str] = "cut"
    low: int = 0
    high: int = 255
    multiplier: int | None = None
    offset: int = 0
    shift: int = 0

    def result_dtype(self, *dtypes: DType) -> DType:
        """Return the result's element type: int32; the node's output type overrides it."""
        return DType.INT32

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return the multiplication, shift and clamp; the zero point of a quantized result is part of the offset."""
        out = sig.output
        zero = 0 if out.quant is None else out.q.zero_point
        (x,) = args
        y = call(fn.TRUNCATE, x, *map(scalar, DType.INT32.limits)) if x.dtype.is_float else x
        low, high = scalar(self.low + zero), scalar(self.high + zero)
        if self.multiplier is None:
            lowest, highest = DType.INT32.limits if x.dtype.is_float else x.dtype.limits
            is_within = self.low <= lowest and highest <= self.high
            limited = y if is_within else call(fn.CLAMP, y, scalar(self.low), scalar(self.high))
            if zero and out.dtype.nbytes > limited.dtype.nbytes:  # else it may wrap around and back
                limited = Convert(DType.INT32, limited)
            return Convert(out.dtype, limited + scalar(zero) if zero else limited)
        factors = (y, scalar(self.multiplier), scalar(self.offset + (zero << self.shift)))
        if self.shift < _WORD:
            return Convert(out.dtype, call(fn.CLAMP, call(fn.REQUANTIZE, *factors, scalar(self.shift)), low, high))
        y = call(fn.SHIFT_RIGHT, call(fn.REQUANTIZE_HIGH, *factors), scalar(self.shift - _WORD))
        return Convert(out.dtype, call(fn.CLAMP, y, low, high))


def exact_cut(numerator: int, denominator: int, low: int, high: int) -> Cut | None:
    """Return the operator that computes min(max(⌊⌊x⌋ · numerator / denominator⌋, low), high) exactly.

    It is exact for every integer x and, if low ≥ 0, for every real x, as division by multiplication is (Granlund
    and Montgomery 1994). Return None if no multiplier is exact.
    """
    if low >= high or -(-max(high, -low) * denominator // numerator) > _LARGEST:
        return None
    if numerator == denominator:
        return Cut(low, high)
    steps = [(code, -(-code * denominator // numerator)) for code in range(low + 1, high + 1)]
    for shift in (*range(_WORD, _MAX_FRACTION_BITS + 1), *range(_WORD - 1, 0, -1)):
        multiplier = round(Fraction(numerator << shift, denominator))
        if multiplier >= 2**31:
            continue
        offset = max((code << shift) - x * multiplier for code, x in steps)
        if all((x - 1) * multiplier + offset < code << shift for code, x in steps):
            return Cut(low, high, multiplier, offset, shift)
    return None


class ChannelCut(Elementwise):
    """y = min(max((x · multiplier + 2³² · above + below) >> shift, low), high) for int32 x, with constants per channel.

    multiplier (int32), above (int32) and below (uint32), the two words of a 64-bit offset, are inputs that broadcast to
    x: one element per channel, or a single element. The result is int32, or quantized with scale 1.

    Attributes:
        low: Least result.
        high: Greatest result.
        shift: Right shift of the sum, for all channels.
    """

    mnemonic: ClassVar[str] = "channel_cut"
    low: int = 0
    high: int = 255
    shift: int = _WORD

    def result_dtype(self, *dtypes: DType) -> DType:
        """Return the result's element type: int32; the node's output type overrides it."""
        return DType.INT32

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return min(max((x · multiplier + 2³² · above + below) >> shift, low), high) as an expression.

        The 64-bit sum x · multiplier + below is reduced to its upper word, to which `above` is added. The result is
        shifted right by `shift` − 32 bits and clamped.
        """
        out = sig.output
        zero = 0 if out.quant is None else out.q.zero_point
        x, multiplier, above, below = args
        y = call(fn.REQUANTIZE_HIGH, x, multiplier, Convert(DType.INT64, below)) + above
        if self.shift > _WORD:
            y = call(fn.SHIFT_RIGHT, y, scalar(self.shift - _WORD))
        y = y + scalar(zero) if zero else y
        return Convert(out.dtype, call(fn.CLAMP, y, scalar(self.low + zero), scalar(self.high + zero)))


@dataclass(frozen=True)
class Steps:
    """Integer functions f(x) = (x · multiplier + offset) >> shift that share one shift, as constants.

    Attributes:
        multipliers: Multiplier of each function.
        offsets: Offset of each function.
        shift: Right shift of all functions.
    """

    multipliers: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    shift: int


_ENDS = (-(2**31), 2**31)
"""Least int32, and the number after the greatest."""
_FAR = 2**62
"""A number larger than all offsets."""
_WIDEST = 60
"""Bits of codes before they are shifted back: sums of them, of products of 62 bits and of what is beyond fit int64."""
_ROUNDS = 64
"""Iterations of the ternary search: enough for 31 bits."""


def exact_steps(function: Callable[[Array], Array], shape: tuple[int, ...], low: int, high: int) -> Steps | None:
    """Express non-decreasing functions of int32 as one multiplication and shift each, with constants for each function.

    The result is exact: each result value begins at the same x as in the function. Return None if no multipliers are
    exact.

    Args:
        function: Evaluates all functions at once on an array of shape (high − low, *shape): the element at [i, j…] is
            an argument of the function at index [j…].
        shape: Shape of an array with one element for each function.
        low: Least result.
        high: Greatest result.
    """
    codes = np.arange(low + 1, high + 1, dtype=np.int64).reshape(-1, *[1] * len(shape))
    begins = _begins(function, np.broadcast_to(codes, (high - low, *shape)))
    inner = (begins > _ENDS[0]) & (begins < _ENDS[1])
    first, last = np.where(inner, begins, _ENDS[1]).min(0), np.where(inner, begins, _ENDS[0]).max(0)
    rise = np.maximum(inner.sum(0) - 1, 0)
    if ((rise == 0) & inner.any(0)).any():
        return None
    slope = np.where(rise > 0, rise / np.maximum(last - first, 1), 0.0)
    max_shift = min(_MAX_FRACTION_BITS, _WIDEST - max(-low, high).bit_length())
    for shift in range(max_shift, _WORD - 1, -1):
        guess = np.rint(np.ldexp(slope, shift))
        if guess.max(initial=0.0) < 2**30:
            return _fitted(codes, begins, guess.astype(np.int64), shift)
    return None


def _begins(function: Callable[[Array], Array], codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the least x of each quantized value, by bisection."""
    below, at = np.full(codes.shape, _ENDS[0] - 1), np.full(codes.shape, _ENDS[1])
    while (at - below > 1).any():
        middle = (below + at) // 2
        numbers = np.clip(middle, _ENDS[0], _ENDS[1] - 1).astype(np.int32)
        is_there = (middle == numbers) & (function(numbers) >= codes)
        below, at = np.where(is_there, below, middle), np.where(is_there, middle, at)
    return at


def _fitted(
    codes: npt.NDArray[np.int64], begins: npt.NDArray[np.int64], guess: npt.NDArray[np.int64], shift: int
) -> Steps | None:
    """Return the steps with the multipliers that leave the widest range of offsets.

    The range is concave in the multiplier, so a ternary search finds its maximum.
    """
    targets = codes << shift

    def room(multipliers: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        min_offset = np.where(begins < _ENDS[1], targets - multipliers * begins, -_FAR).max(0)
        max_offset = np.where(begins > _ENDS[0], targets - multipliers * (begins - 1) - 1, _FAR).min(0)
        return min_offset, max_offset

    apart = np.maximum(guess >> 6, 2) * (guess > 0)
    left, right = np.maximum(guess - apart, 0), guess + apart
    for _ in range(_ROUNDS):
        third = (right - left) // 3
        a, b = left + third, right - third
        (min_offset_a, max_offset_a), (min_offset_b, max_offset_b) = room(a), room(b)
        rises = max_offset_a - min_offset_a < max_offset_b - min_offset_b
        left, right = np.where(rises, np.minimum(a + 1, right), left), np.where(rises, right, b)
    best_multipliers = left
    min_offset, max_offset = room(best_multipliers)
    for candidate in ((left + right) // 2, right):
        low, high = room(candidate)
        better = high - low > max_offset - min_offset
        best_multipliers, min_offset, max_offset = (
            np.where(better, candidate, best_multipliers),
            np.where(better, low, min_offset),
            np.where(better, high, max_offset),
        )
    if (min_offset > max_offset).any():
        return None
    return Steps(best_multipliers, np.where(min_offset > -_FAR, min_offset, max_offset), shift)
