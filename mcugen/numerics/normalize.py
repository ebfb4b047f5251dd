# SPDX-License-Identifier: Apache-2.0
"""Layer normalization of quantized tensors in integers: the specification that the kernel meets bit-exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mcugen.hir.operator import Signature
from mcugen.hir.types import Array, DType, TensorType
from mcugen.numerics.fixedpoint import inverse_sqrt, is_quantized, rounded_shift


@dataclass(frozen=True)
class FixedNormalize:
    """A layer normalization of integers: exact statistics, then products with three factors of 31 bits.

    Of the `count` n elements x (zero point subtracted) of a row: S = Σ x (0 if not centered), D = n · Σ x² − S², which
    is n² times the variance, d = n · x − S. Then (x − mean) / √(variance + ε) = d / √(D + n² · ε), with ε in squared
    units of x. Each product is cut to its upper word:

        root · 2^(half − 62) = 1 / √(D · 2^fraction + epsilon)                 (inverse_sqrt)
        v = ((d · 2^lift · root) >> 32) · 2^(half + shift)                     (rounded down)
        q = clamp((((v · gain) >> 32) + bias) >> bits)

    Attributes:
        count: Number n of elements with common statistics.
        centered: Whether the mean is subtracted.
        lift: Left shift of d in bits, so that it fills 32 bits.
        fraction: Fraction bits of n² times the variance; even.
        epsilon: n² · ε · 2^fraction, as an integer.
        shift: Exponent of the normalized integers v, in addition to half.
        bits: Fraction bits of results before the last shift.
        gain: Factors of v: those of the layer, divided by the output's scale; one per element, or a single one.
        bias: Summands of the layer, with the zero point and the rounding term, scaled by 2^bits.
    """

    count: int
    centered: bool
    lift: int
    fraction: int
    epsilon: int
    shift: int
    bits: int
    gain: Array
    bias: Array

    @staticmethod
    def of(
        sig: Signature, count: int, epsilon: float, centered: bool, scale: Array | None, bias: Array | None
    ) -> FixedNormalize | None:
        """Return the integer constants of a layer normalization, or None if integer arithmetic would lose precision.

        Args:
            sig: The types of the input and the output.
            count: The number of elements with common statistics.
            epsilon: The constant that is added to the variance, in real units.
            centered: Whether the mean is subtracted.
            scale: The factors that the normalized elements are multiplied by, or None for no factors.
            bias: The summands that are added after the factors, or None for no summands.

        Returns:
            The constants. None for types that are not quantized, for too many elements with common statistics, and for
            factors whose magnitudes differ too much.
        """
        x, y = sig.input(0), sig.output
        if x.quant is None or y.quant is None or x.quant.axis is not None or count * span(x) >= 2**31:
            return None
        if not {x.dtype, y.dtype} <= {DType.INT8, DType.INT16}:
            return None
        floor = epsilon / x.quant.scale[0] ** 2 * count**2
        fraction = math.floor(62 - math.log2((count * span(x)) ** 2 + floor + 1)) // 2 * 2
        lift = 31 - (count * span(x)).bit_length()
        root = math.ceil(math.log2(count) / 2)  # |v| < 2^root
        gain, shift = (np.ones(1) if a is None else a.astype(np.float64) / y.quant.scale[0] for a in (scale, bias))
        gain = gain if scale is not None else gain / y.quant.scale[0]
        shift = shift if bias is not None else np.zeros(1)
        reach = 2.0**root * np.abs(gain).max() + np.abs(shift).max() + abs(y.quant.zero_point) + 1
        bits = min(16, math.floor(29 - math.log2(reach)))
        if fraction < 0 or bits < 8:
            return None
        gain, shift = np.broadcast_arrays(gain, shift)
        return FixedNormalize(
            count,
            centered,
            lift,
            fraction,
            round(floor * 2.0**fraction),
            fraction // 2 - lift - root,
            bits,
            np.rint(gain * 2.0 ** (bits + 2 + root)).astype(np.int64),
            np.rint((shift + y.quant.zero_point + 0.5) * 2.0**bits).astype(np.int64),
        )

    def normalized(self, x: Array, axes: tuple[int, ...]) -> Array:
        """Return the normalized integers v (see the class), before the layer's factors and summands are applied.

        Args:
            x: Quantized input, int64, with its zero point subtracted.
            axes: Axes over which the statistics are computed.
        """
        total = x.sum(axes, keepdims=True) * self.centered
        spread = self.count * (x * x).sum(axes, keepdims=True) - total * total
        root, half = inverse_sqrt(np.where(spread == 0, 0, (spread << self.fraction) + self.epsilon))
        v = ((self.count * x - total) << self.lift) * root >> 32
        shift = np.where(root == 0, 0, half + self.shift)
        result: Array = (v << np.maximum(shift, 0)) >> np.maximum(-shift, 0)
        return result

    def finish(self, v: Array, dtype: DType) -> Array:
        """Apply the layer's factors and summands, shift and clamp to normalized integers v.

        Args:
            v: The result of `normalized`.
            dtype: Type of the output.
        """
        q: Array = np.clip(((v * self.gain >> 32) + self.bias) >> self.bits, *dtype.limits).astype(dtype.numpy)
        return q


@dataclass(frozen=True)
class ShortNormalize:
    """A layer normalization of int8 tensors by tables and products of 32-bit words: the form for NPUs.

    Results differ from those of `FixedNormalize` by at most one step. Of the `count` n integers x of a row: S = Σ x (0
    if not centered), V = (n · Σ x² − S²) · 2^raise / 2^lower + epsilon. A power of two h, from a table of V's leading
    zeros, brings V' = V · h² into 2^28 ≤ V' < 2^30; a second table, which is interpolated, gives r = 2^29 / √V'. Then

        v = ((n · x − S) · h · r) >> shift
        q = clamp(((v · gain + bias) >> bits) + zero_point)

    with all right shifts rounded half up. v and gain have 16 bits.

    Attributes:
        count: Number n of elements with common statistics.
        centered: Whether the mean is subtracted.
        raise_bits: Left shift of n² times the variance in bits.
        lower_bits: Right shift of both of its terms in bits, which applies to long rows.
        epsilon: Number that is added to V.
        shift: Right shift of v in bits.
        bits: Fraction bits of results before the last shift.
        gain: Factors of v, one per element of a row, or a single one.
        bias: Summands, with `bits` fraction bits; one per element of a row, or a single one.
        zero_point: Zero point of the output.
    """

    count: int
    centered: bool
    raise_bits: int
    lower_bits: int
    epsilon: int
    shift: int
    bits: int
    gain: Array
    bias: Array
    zero_point: int

    @staticmethod
    def of(
        sig: Signature, count: int, epsilon: float, centered: bool, scale: Array | None, bias: Array | None
    ) -> ShortNormalize | None:
        """Return the constants of a layer normalization of int8 tensors; None if 32-bit words lose precision.

        Args:
            sig: The types of the input and the output.
            count: The number of elements with common statistics, all in one row.
            epsilon: The constant that is added to the variance, in real units.
            centered: Whether the mean is subtracted.
            scale: The factors of the normalized elements, one per element of a row; None for no factors.
            bias: The summands that are added after the factors; None for no summands.
        """
        x, y = sig.input(0), sig.output
        if not is_quantized(x) or not is_quantized(y) or not x.dtype is y.dtype is DType.INT8:
            return None
        largest = 128 if centered else max(127 - x.q.zero_point, x.q.zero_point + 128)
        room = _SPREAD_BITS - (count * largest - 1).bit_length() * 2
        raise_bits, lower_bits = max(room, 0), max(-room, 0)
        floor = max(round(epsilon / x.q.scale[0] ** 2 * count**2 * 2.0**room), 1)
        if not 2 <= count <= _LONGEST_ROW or floor >= 2**_SPREAD_BITS:
            return None
        shift = math.ceil(29 - room / 2 + math.log2(count) / 2 - math.log2(_LARGEST_NORMALIZED))
        unit = 2.0 ** (29 - room / 2 - shift)
        gain = np.ones(1) / y.q.scale[0] if scale is None else scale.reshape(-1).astype(np.float64) / y.q.scale[0]
        offset = np.zeros(1) if bias is None else bias.reshape(-1).astype(np.float64) / y.q.scale[0]
        reach = math.sqrt(count) * np.abs(gain).max() + np.abs(offset).max() + 1
        steepest = max(np.abs(gain).max() / unit, 2.0**-30)
        bits = min(math.floor(math.log2(_LARGEST_NORMALIZED / steepest)), math.floor(30 - math.log2(reach)))
        if not 1 <= shift <= 31 or not _LEAST_BITS <= bits <= 40:
            return None
        gains = np.rint(gain / unit * 2.0**bits).astype(np.int64)
        biases = np.rint(offset * 2.0**bits).astype(np.int64)
        sizes = (raise_bits, lower_bits, floor, shift, bits)
        return ShortNormalize(count, centered, *sizes, gains, biases, y.q.zero_point)

    def __call__(self, x: Array) -> Array:
        """Return the normalization of rows x [rows, count] of int8 values, less their zero point if not centered."""
        x = x.astype(np.int64)
        total = x.sum(1, keepdims=True) * self.centered
        square, mean = self.count * (x * x).sum(1, keepdims=True), total * total
        if self.lower_bits:
            square, mean = rounded_shift(square, self.lower_bits), rounded_shift(mean, self.lower_bits)
        spread = ((square - mean) << self.raise_bits) + self.epsilon
        power = np.asarray(powers_of_zeros(), np.int64)[32 - np.frexp(spread.astype(np.float64))[1]]
        index = rounded_shift((spread * power * power - ROOTS_CENTER) * ROOTS_SCALE[0], ROOTS_SCALE[1]) + 2**15
        base = np.asarray(inverse_roots(), np.int64)
        root = base[index >> 7] + rounded_shift(np.diff(base)[index >> 7] * (index & 127), 7)
        v = rounded_shift((self.count * x - total) * (power * root), self.shift)
        q = rounded_shift(v * self.gain + self.bias, self.bits) + self.zero_point
        return np.asarray(np.clip(q, *DType.INT8.limits).astype(np.int8))


_SPREAD_BITS = 29
"""Bits of n² times the variance in ShortNormalize; with epsilon, 30."""

_LONGEST_ROW = 1024
"""Largest number of elements of a row in ShortNormalize."""

_LARGEST_NORMALIZED = 2**15 - 8
"""Largest magnitude of normalized elements and factors, without rounding errors, in ShortNormalize."""

_LEAST_BITS = 10
"""Least number of fraction bits of results in ShortNormalize: 2^14 / 2^bits steps is an error of gain."""

ROOTS_CENTER = 5 << 27
"""V' in the middle of the table of inverse roots in ShortNormalize."""

ROOTS_SCALE = (round(65534 / (3 << 28) * 2.0**44), 44)
"""Multiplier and right shift from V', less ROOTS_CENTER, to an index of 16 bits of the inverse roots."""


def powers_of_zeros() -> tuple[int, ...]:
    """Return h for each number of leading zeros from 0 to 32: V · h² has two or three of them, or V is 0."""
    return (*(1 << max((zeros - 2) // 2, 0) for zeros in range(32)), 1)


def inverse_roots() -> tuple[int, ...]:
    """Return the table of 513 inverse roots in equal distances, from 2^15 − 1 for V' = 2^28 to 2^14 for 2^30."""
    squares = ROOTS_CENTER + (np.arange(513) * 128 - 2.0**15) * ((3 << 28) / 65534)
    return tuple(int(root) for root in np.minimum(np.rint(2.0**29 / np.sqrt(squares)), 2**15 - 1))


def span(x: TensorType) -> int:
    """Return the difference between the largest and the smallest integer of a quantized tensor type, such as 255."""
    low, high = x.dtype.limits
    return high - low
