# SPDX-License-Identifier: Apache-2.0
"""Fixed-point arithmetic of the integer operators: the specification that every kernel meets bit-exactly."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mcugen.hir.types import Array, DType, QuantParams, Rounding, TensorType

Int64Array = npt.NDArray[np.int64]
"""A numpy array of int64 elements."""

Range = tuple[float, float]
"""Limits (low, high) to which real values are clamped."""

MAX_ACCUMULATOR = 2**43
"""Exclusive bound of the magnitude of integer accumulators (sums of products).

Below it, float64 represents all sums exactly, and products with requantization multipliers fit in 64 bits.
"""

DEFAULT_REQUANTIZE_SHIFT = 31
"""Right shift in bits after the multiplication of a requantization, if all its real factors are below 1.

It equals the number of fraction bits of the multipliers (Q0.31).
"""


@dataclass(frozen=True)
class Requantizer:
    """A requantization: q = clamp((acc · multiplier + (zero_point << shift) + 2^(shift−1)) >> shift), rounded half up.

    Attributes:
        multiplier: Integers below 2^31 that the accumulator acc is multiplied by: one per channel of the last axis, or
            a single one.
        shift: Right shift in bits: 31; less where a scale is 1 or above (which equals shifting the accumulator first),
            and more where 16-bit results need all bits of the multiplier.
        zero_point: Zero point of the result.
        ties_to_even: Whether ties round to even instead of up, as ONNX defines it. Averages need this, because sums
            over a power of two elements often hit ties.
    """

    multiplier: Int64Array
    shift: int
    zero_point: int
    ties_to_even: bool = False

    @staticmethod
    def of(scale: Array | float, zero_point: int, ties_to_even: bool = False, sums: Array | None = None) -> Requantizer:
        """Return the requantizer for real factors `scale` (unit of the accumulator ÷ unit of the output).

        Factors are limited to 2^29, or to 2^17 if `sums` is given: beyond that, every accumulator except 0 saturates.

        Args:
            scale: One factor, or one per channel.
            zero_point: The zero point of the output.
            ties_to_even: Whether ties round to even instead of up.
            sums: The largest magnitude of the accumulators by channel, below MAX_ACCUMULATOR. Multipliers then get as
                many of their 31 bits as fit in 64-bit products.
        """
        scales = np.minimum(np.atleast_1d(np.asarray(scale, np.float64)), 2.0**29 if sums is None else 2.0**17)
        largest = scales.max() if sums is None else max(scales.max(), (scales * sums).max() / 2**31)
        shift = DEFAULT_REQUANTIZE_SHIFT if sums is None else 61 - zero_point.bit_length()
        while np.rint(largest * 2.0**shift) >= 2**31:
            shift -= 1
        return Requantizer(np.rint(scales * 2.0**shift).astype(np.int64), shift, zero_point, ties_to_even)

    @property
    def offset(self) -> int:
        """Return the zero point and rounding term that are added to accumulator · multiplier before the shift."""
        return (self.zero_point << self.shift) + (1 << (self.shift - 1))

    def __call__(self, acc: Array, low: int = -128, high: int = 127) -> Array:
        """Return integers in [low, high], as int64; `acc` is any integer array, channels last."""
        wide = acc.astype(np.int64) * self.multiplier + self.offset
        rounded = wide >> self.shift
        if self.ties_to_even:
            tie = (wide & ((1 << self.shift) - 1)) == 0
            rounded = rounded - (tie & ((rounded - self.zero_point) & 1))
        q: Array = np.clip(rounded, low, high)
        return q

    def shortened(self, bits: int) -> Requantizer:
        """Return a requantizer whose multipliers have at most `bits` significant bits, which NPUs need for 48-bit sums.

        Args:
            bits: Number of bits; 0 to keep all.
        """
        if not bits:
            return self
        excess = np.maximum(np.frexp(self.multiplier.astype(np.float64))[1] - bits, 0)
        short = np.rint(self.multiplier / np.exp2(excess)).astype(np.int64)
        return replace(self, multiplier=np.minimum(short, 2**bits - 1) << excess)

    def for_high_word(self) -> Requantizer:
        """Return an equal requantizer with shift 32, for which a 32-bit CPU needs only the upper word of the product.

        If no such requantizer exists, return this one.
        """
        if self.shift == 31 and int(self.multiplier.max()) < 2**30:
            return replace(self, multiplier=self.multiplier * 2, shift=32)
        return self


def rounded_shift(x: Array, shift: int) -> Array:
    """Return x / 2^shift, rounded half up, for integers x and a shift of at least one bit."""
    return np.asarray((x + (1 << (shift - 1))) >> shift)


def is_quantized(tensor: TensorType | None) -> bool:
    """Return whether integer kernels support a tensor's quantization; False for None and real tensors.

    They support int8, and int16 with zero point 0, both with one scale for the whole tensor.
    """
    if tensor is None or tensor.quant is None or tensor.quant.axis is not None:
        return False
    return tensor.dtype is DType.INT8 or (tensor.dtype is DType.INT16 and tensor.quant.zero_point == 0)


def max_code_magnitude(dtype: DType) -> int:
    """Return an upper bound, a power of two, of the magnitude of q − zero_point for quantized values q.

    It is 2^8 for int8, where any zero point is possible, and 2^15 for int16, whose zero point is 0.
    """
    return 2**15 if dtype is DType.INT16 else 2**8


def has_same_quantization(x: TensorType, y: TensorType) -> bool:
    """Return whether equal integers of quantized types x and y represent the same reals."""
    return (x.quant, x.dtype) == (y.quant, y.dtype)


def quantize(real: Array, quant: QuantParams, dtype: DType) -> Array:
    """Quantize real values as ONNX QuantizeLinear does: real ÷ scale in float32, rounded half to even, saturated.

    Args:
        real: Real values.
        quant: Scale and zero point.
        dtype: Integer type of the result.
    """
    q: Array = (_steps(real, quant, dtype) + quant.zero_point).astype(dtype.numpy)
    return q


def fake_quantize(real: Array, quant: QuantParams, dtype: DType) -> Array:
    """Return real values rounded and saturated by a quantization: `dequantize` of `quantize`.

    Args:
        real: Real values.
        quant: Scale and zero point.
        dtype: Integer type of the quantization.
    """
    scale = broadcast_scale(quant, real.ndim).astype(np.float32)
    stored: Array = _steps(real, quant, dtype).astype(np.float32, copy=False) * scale
    return stored


def _steps(real: Array, quant: QuantParams, dtype: DType) -> Array:
    """Return q − zero point, in a float type that represents all codes exactly; NaN becomes the least code."""
    limits = np.iinfo(dtype.numpy)
    scale = broadcast_scale(quant, real.ndim).astype(np.float32)
    exact = np.float32 if limits.bits <= 16 else np.float64
    rounded = np.rint(real.astype(np.float32, copy=False) / scale).astype(exact, copy=False)
    # fmax and fmin pass over NaN; the sum turns −0 into 0
    lowest, highest = (exact(end - quant.zero_point) for end in (int(limits.min), int(limits.max)))
    steps: Array = np.fmin(np.fmax(rounded, lowest), highest) + exact(0)
    return steps


def dequantize(q: Array, quant: QuantParams) -> Array:
    """Dequantize integers as ONNX DequantizeLinear does: (q − zero_point) · scale in float32."""
    scale = broadcast_scale(quant, q.ndim).astype(np.float32)
    real: Array = (q.astype(np.int64) - quant.zero_point).astype(np.float32) * scale
    return real


def broadcast_scale(quant: QuantParams, rank: int) -> Array:
    """Return the scales of a quantization in a shape that broadcasts to a tensor of `rank` axes.

    Scales per channel lie along `quant.axis`; a single scale has no axis.
    """
    if quant.axis is None:
        return quant.scales.reshape(())
    shape = [1] * rank
    shape[quant.axis] = -1
    return quant.scales.reshape(shape)


def clamp_range(clamp: Range | None, quant: QuantParams, dtype: DType) -> tuple[int, int]:
    """Return the smallest and the largest quantized value of a tensor whose real values are clamped.

    Args:
        clamp: Limits of the real values; None for no clamp.
        quant: Scale and zero point.
        dtype: Integer type.
    """
    limits = np.iinfo(dtype.numpy)
    if clamp is None:
        return int(limits.min), int(limits.max)
    if quant.rounding is Rounding.TFLITE:
        steps = np.asarray(clamp, np.float32) / np.float32(quant.scale[0])
        bounds = np.clip(np.trunc(steps + np.copysign(0.5, steps)) + quant.zero_point, limits.min, limits.max)
    else:
        bounds = quantize(np.asarray(clamp, np.float64), QuantParams(quant.scale, quant.zero_point), dtype)
    return int(bounds[0]), int(bounds[1])


def inverse_sqrt(square: Array) -> tuple[Int64Array, Int64Array]:
    """Return integers root and half with 1 / √square ≈ root · 2^(half − 62), for integers 0 < square < 2^62.

    root is below 2^31, and half is above 0. A square of 0 is also allowed; then root and half are 0.

    The leading bits m of square · 4^half, 2^30 ≤ m < 2^32, stand for M = m / 2^32. A line approximates 1 / √M within 9
    %, and each of four steps of Newton's method, R ← R · (3 − M · R²) / 2, squares the error, down to some 2^-27.
    """
    half = np.zeros(square.shape, np.int64)
    wide = square.astype(np.int64)
    for step in (16, 8, 4, 2, 1):
        small = (wide >> (62 - 2 * step)) == 0
        wide, half = np.where(small, wide << (2 * step), wide), half + small * step
    m = (wide >> 30).astype(np.uint64)  # of 62 bits, the upper 32
    root = _LINE[0] - ((_LINE[1] * m) >> np.uint64(32))  # 30 bits of fraction
    for _ in range(4):
        error = (m * ((root * root) >> np.uint64(32))) >> np.uint64(32)  # M · R², 28 bits of fraction
        root = (root * (np.uint64(3 << 28) - error)) >> np.uint64(29)
    limited = np.minimum(root, np.uint64(2**31 - 1)).astype(np.int64)
    return np.where(square == 0, 0, limited), np.where(square == 0, 0, half + 1)


_LINE = (np.uint64(2290055013), np.uint64(1308601352))
"""Coefficients of 2.13278 - 1.21873 · M with 30 fraction bits.

The greatest errors to both sides are equal for 1/4 ≤ M ≤ 1.
"""
