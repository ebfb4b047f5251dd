# SPDX-License-Identifier: Apache-2.0
"""Layer normalization of quantized tensors in integers: the specification that the kernel meets bit-exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mcugen.hir.operator import Signature
from mcugen.hir.types import Array, DType, TensorType
from mcugen.numerics.fixedpoint import inverse_sqrt


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


def span(x: TensorType) -> int:
    """Return the difference between the largest and the smallest integer of a quantized tensor type, such as 255."""
    low, high = x.dtype.limits
    return high - low
