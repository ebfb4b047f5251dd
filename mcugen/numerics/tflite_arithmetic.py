# SPDX-License-Identifier: Apache-2.0
"""Integer arithmetic with the bits of TensorFlow Lite Micro's reference kernels (`Rounding.TFLITE`).

These kernels round a product with a scale twice: to the upper 32 bits of a 64-bit product, half up; then by a right
shift, half away from zero. Exponentials and quotients are polynomials and Newton steps in fixed point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mcugen.expressions.functions import rounded_twice
from mcugen.hir.operator import Signature
from mcugen.hir.types import Array, DType, QuantParams, Rounding, TensorType
from mcugen.numerics.fixedpoint import Int64Array, Requantizer, is_quantized

MAX_MULTIPLIER_EXPONENT = 30
"""Largest exponent of a factor 0.5 … 1 · 2^exponent; larger factors are limited to it."""
SUM_FRACTION_BITS = 20
"""Number of bits by which operands of ADD and SUB are shifted left before they are multiplied by their scales."""
MAX_SOFTMAX_ROW = 256
"""Largest number of elements of a softmax: their sum leaves a right shift of at most 31 bits for the results."""


def rounds_as_tflite(tensor: TensorType) -> bool:
    """Return whether the operator that computes a tensor must have the bits of TensorFlow Lite Micro's kernels."""
    return tensor.quant is not None and tensor.quant.rounding is Rounding.TFLITE


@dataclass(frozen=True)
class DoubleRequantizer:
    """A requantization that rounds twice: q = clamp(rounded_twice(acc, multiplier, shift) + zero_point).

    See `mcugen.expressions.functions.rounded_twice`.

    Attributes:
        multiplier: Integers of 31 bits, one for each channel of the last axis, or a single one.
        shift: Right shift behind the product with each multiplier; a negative one is a left shift of the accumulator.
        zero_point: Zero point of the result.
    """

    multiplier: Int64Array
    shift: Int64Array
    zero_point: int

    @staticmethod
    def of(scale: Array | float, zero_point: int) -> DoubleRequantizer:
        """Return the requantizer for real factors (unit of the accumulator ÷ unit of the output).

        Args:
            scale: One factor, or one per channel, of type float64.
            zero_point: The zero point of the output.
        """
        mantissa, exponent = np.frexp(np.atleast_1d(np.asarray(scale, np.float64)))
        multiplier = np.floor(mantissa * 2.0**31 + 0.5).astype(np.int64)
        is_one = multiplier == 2**31
        multiplier, exponent = np.where(is_one, 2**30, multiplier), exponent.astype(np.int64) + is_one
        multiplier = np.where(exponent > MAX_MULTIPLIER_EXPONENT, 2**31 - 1, multiplier)
        multiplier = np.where(exponent < -31, 0, multiplier)
        return DoubleRequantizer(multiplier, -np.clip(exponent, -31, MAX_MULTIPLIER_EXPONENT), zero_point)

    def __call__(self, acc: Array, low: int = -128, high: int = 127) -> Array:
        """Return integers in [low, high], as int64; `acc` is any integer array, channels last."""
        q: Array = np.clip(rounded_twice(acc, self.multiplier, self.shift) + self.zero_point, low, high)
        return q

    def table(self, channels: int) -> Array:
        """Return the multipliers of all channels, and behind them their shifts, as int32."""
        columns = [np.broadcast_to(column, channels) for column in (self.multiplier, self.shift)]
        return np.concatenate(columns).astype(np.int32)


def layer_requantizer(sig: Signature) -> DoubleRequantizer:
    """Return the requantization of a layer's accumulators to its output type.

    FULLY_CONNECTED, whose weights are a matrix with one scale, rounds the product of the scales of input and weights to
    float32; all other layers compute it in float64.

    Args:
        sig: The types of x, weights and output.
    """
    x, w, out = sig.input(0).q, sig.input(1), sig.output.q
    product = x.scales * w.q.scales
    if w.rank == 2 and w.q.axis is None:
        product = product.astype(np.float32).astype(np.float64)
    return DoubleRequantizer.of(product / out.scales, out.zero_point)


class AwayMean(Requantizer):
    """The rounding of a mean whose result has the scale and the zero point of the elements: half away from zero.

    The mean of the stored integers is rounded, zero points included. `multiplier` holds the possible numbers of summed
    elements, from 1 on, or the single one; `shift` is 0.
    """

    @staticmethod
    def by(divisors: Array, zero_point: int) -> AwayMean:
        """Return the mean of sums of these numbers of elements, which have a zero point."""
        return AwayMean(np.asarray(divisors, np.int64), 0, zero_point)

    @property
    def offset(self) -> int:
        """Return 0: nothing is added before the division."""
        return 0

    def __call__(self, acc: Array, low: int = -128, high: int = 127) -> Array:
        """Return means in [low, high], as int64; `acc` is sums of elements less their zero points."""
        total = acc.astype(np.int64) + self.zero_point * self.multiplier
        magnitude = (np.abs(total) + self.multiplier // 2) // self.multiplier
        mean: Array = np.clip(np.where(total > 0, magnitude, -magnitude), low, high)
        return mean

    def for_high_word(self) -> Requantizer:
        """Return this mean, which is computed by a division."""
        return self


# ------------------------------------------------------------------------------------------------------ softmax

_EXP_FACTORS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
"""The numbers exp(-2^k) for k = -2 … 4, with 31 fraction bits."""
_EXP_OF_EIGHTH, _THIRD = 1895147668, 715827883
"""The numbers exp(-1/8) and 1/3, with 31 fraction bits."""
_INPUT_BITS = 5
"""Number of integer bits of the exponents of a softmax."""


def double_high_product(a: Array, b: Array | int) -> Array:
    """Return round(a · b / 2^31) of int32 numbers, half up, as int64; both must not be −2^31."""
    product: Array = (np.asarray(a, np.int64) * b + 2**30) >> 31
    return product


def _divide_by_power(x: Array, bits: int) -> Array:
    """Return x ÷ 2^bits, rounded half away from zero."""
    half = (1 << bits) >> 1
    quotient: Array = (x + half - (x < 0)) >> bits
    return quotient


def exp_of_negative(x: Array, integer_bits: int) -> Array:
    """Return exp(x) with 31 fraction bits, for x ≤ 0 with `integer_bits` integer bits in an int32, as int64."""
    fraction_bits = 31 - integer_bits
    quarter = 1 << (fraction_bits - 2)
    low = (x & (quarter - 1)) - quarter
    t = (low << integer_bits) + 2**28  # The exponent, from −1/4 on, relative to −1/8.
    t2 = double_high_product(t, t)
    t3, t4 = double_high_product(t2, t), double_high_product(t2, t2)
    series = _divide_by_power(double_high_product(_divide_by_power(t4, 2) + t3, _THIRD) + t2, 1)
    result = _EXP_OF_EIGHTH + double_high_product(t + series, _EXP_OF_EIGHTH)
    remaining_bits = low - x
    for power, factor in zip(range(-2, integer_bits), _EXP_FACTORS, strict=False):
        result = np.where(remaining_bits & (1 << (fraction_bits + power)), double_high_product(result, factor), result)
    return np.where(x == 0, 2**31 - 1, result)


def inverse_of_one_plus(x: Array) -> Array:
    """Return 1 / (1 + x) for 0 ≤ x < 1, both with 31 fraction bits, as int64."""
    limited: Array = np.clip(_newton_inverse(x) << 1, -(2**31), 2**31 - 1)
    return limited


def _newton_inverse(x: Array) -> Array:
    """Return 2 / (1 + x) with 29 fraction bits, by three steps of Newton's method."""
    half = (x + 2**31) >> 1
    y = 1515870810 + double_high_product(half, -1010580540)  # 48/17 − 32/17 · half, 29 fraction bits.
    for _ in range(3):
        step = double_high_product(y, 2**29 - double_high_product(half, y))
        y = y + np.clip(step << 2, -(2**31), 2**31 - 1)
    return y


@dataclass(frozen=True)
class TfliteSoftmax:
    """A softmax of int8 rows by fixed-point exponentials and a Newton reciprocal.

    Attributes:
        exponentials: exp(−scale · beta · d) with 31 fraction bits for the difference d = 0 … 255 of an element from the
            largest; 0 where the exponent does not fit.
    """

    exponentials: tuple[int, ...]

    @staticmethod
    def of(sig: Signature, axis: int) -> TfliteSoftmax | None:
        """Return the constants of a softmax along `axis`; None for types or sizes that are not supported."""
        x, y = sig.input(0), sig.output
        is_int8 = x.dtype is y.dtype is DType.INT8 and is_quantized(x) and is_quantized(y)
        if not is_int8 or x.shape[axis] > MAX_SOFTMAX_ROW or (y.q.scale[0], y.q.zero_point) != (2.0**-8, -128):
            return None
        gain = min(x.q.scale[0] * 2.0 ** (31 - _INPUT_BITS), 2.0**31 - 1)
        if gain <= 1:
            return None
        requantize = DoubleRequantizer.of(gain, 0)
        left = -int(requantize.shift[0])
        radius = input_radius(_INPUT_BITS, left)
        d = np.arange(256)
        exponents = double_high_product(-np.minimum(d, radius) << left, requantize.multiplier)
        values = np.where(d <= radius, exp_of_negative(exponents, _INPUT_BITS), 0)
        return TfliteSoftmax(tuple(map(int, values)))

    def __call__(self, x: Array, axis: int) -> Array:
        """Return the softmax of x along `axis` as int8."""
        d = x.max(axis, keepdims=True).astype(np.int64) - x
        e = np.asarray(self.exponentials, np.int64)[d]
        total = ((e + 2**11) >> 12).sum(axis, keepdims=True)  # 19 fraction bits
        headroom = 32 - np.frexp(total.astype(np.float64))[1].astype(np.int64)
        scale = inverse_of_one_plus((total << headroom) - 2**31)
        q = rounded_twice(e, scale, 35 - headroom) - 128
        limited: Array = np.clip(q, *DType.INT8.limits).astype(np.int8)
        return limited


# ------------------------------------------------------------------------------------------------ curves of int8

_CURVE_BITS = 4
"""Number of integer bits of the arguments of a sigmoid or hyperbolic tangent."""


def rescaled_codes(d: Array, scale: Array | float, out: QuantParams) -> Array:
    """Return int8 values x · scale in the quantization `out`, for integers d = q − zero point of x."""
    requantize = DoubleRequantizer.of(scale, out.zero_point)
    return requantize(d, *DType.INT8.limits)


def sigmoid_codes(d: Array, x: QuantParams, out: QuantParams) -> Array | None:
    """Return the sigmoid of int8 values; None unless the output has the scale 1/256 and the zero point −128.

    Args:
        d: Stored integers less their zero point.
        x: Quantization of the input.
        out: Quantization of the output.
    """
    if (out.scale[0], out.zero_point) != (2.0**-8, -128):
        return None
    argument, is_inside = _curve_arguments(d, x)
    positive = inverse_of_one_plus(exp_of_negative(-np.abs(argument), _CURVE_BITS))
    result = np.where(argument > 0, positive, np.where(argument < 0, 2**31 - 1 - positive, 2**30))
    return _limited(_divide_by_power(result, 31 - 8) - 128, d, is_inside)


def tanh_codes(d: Array, x: QuantParams, out: QuantParams) -> Array | None:
    """Return the hyperbolic tangent of int8 values; None unless the output has the scale 1/128 and the zero point 0.

    Args:
        d: Stored integers less their zero point.
        x: Quantization of the input.
        out: Quantization of the output.
    """
    if (out.scale[0], out.zero_point) != (2.0**-7, 0):
        return None
    argument, is_inside = _curve_arguments(d, x)
    e = exp_of_negative(-np.abs(argument), _CURVE_BITS + 1)  # exp(−2 |x|): the same bits with one more integer bit
    positive = np.clip((_newton_inverse(e) - 2**29) << 2, -(2**31), 2**31 - 1)
    result = np.where(argument > 0, positive, np.where(argument < 0, -positive, 0))
    return _limited(_divide_by_power(result, 31 - 7), d, is_inside)


def _curve_arguments(d: Array, x: QuantParams) -> tuple[Array, Array]:
    """Return d · scale with _CURVE_BITS integer bits, and where these suffice."""
    requantize = DoubleRequantizer.of(x.scale[0] * 2.0 ** (31 - _CURVE_BITS), 0)
    radius = input_radius(_CURVE_BITS, -int(requantize.shift[0]))
    is_inside = np.abs(d) < radius
    return rounded_twice(np.where(is_inside, d, 0), requantize.multiplier, requantize.shift), is_inside


def _limited(q: Array, d: Array, is_inside: Array) -> Array:
    low, high = DType.INT8.limits
    limited: Array = np.where(is_inside, np.clip(q, low, high), np.where(d > 0, high, low))
    return limited


def input_radius(integer_bits: int, left_shift: int) -> int:
    """Return the largest integer whose left shift fits an argument with `integer_bits` integer bits."""
    return math.floor((2.0**integer_bits - 1) * 2.0 ** (31 - integer_bits) / 2.0**left_shift)
