# SPDX-License-Identifier: Apache-2.0
"""Quantization without a division: the codes of x / scale, rounded twice as ONNX defines it, by multiplications.

QuantizeLinear rounds x / scale to a float, and that half to even to a whole number q. Both methods here map every
float to the same q, for these reasons.

*By floats* (`Reciprocal`). f(x) = fl(x · inverse + fl(x · rest)) by a fused multiplication and addition, where inverse
and rest are positive and add up to 48 bits of 1 / scale. Products by positive numbers, sums and roundings are monotone:
so are f and x / scale, and both after rounding to whole numbers. Two monotone functions with whole values are equal if
they step from each q to the next at the same float. These floats are few: one for each q. `Reciprocal.of` finds and
compares them; both functions are odd, which saves the negative half. Infinities stay, as no term has the other sign; a
NaN stays one.

*By whole numbers* (`WholeScale`), for CPUs without floats: see mcugen_quantize8 in runtime_c/functions.h.
It finds the q below and above the ratio by a short product, and decides between both by the exact remainder.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mcugen.hir.types import Array

_NEIGHBOURS = np.arange(-4, 5)
"""Offsets, in units in the last place, of the floats near (q + 1/2) · scale that contain the step (it is checked)."""

_MIN_SCALE = 2.0**-60
"""Least scale, and the reciprocal of the largest one: all floats that are computed near a step are then normal."""


@dataclass(frozen=True)
class Reciprocal:
    """The number 1 / scale as the sum of two positive floats, to quantize by multiplications instead of a division.

    Attributes:
        inverse: The number, rounded down to float32.
        rest: The remainder, in float32: some 24 further bits.
    """

    inverse: float
    rest: float

    @staticmethod
    @lru_cache(maxsize=256)
    def of(scale: float, max_code: int) -> Reciprocal | None:
        """Return a reciprocal with which quantization gives the same results as with the division by `scale`.

        Args:
            scale: The scale of the quantization.
            max_code: The largest magnitude of the quantized values.

        Returns:
            The reciprocal; None if there is none.
        """
        divisor = np.float32(scale)
        if not _MIN_SCALE < divisor < 1 / _MIN_SCALE:
            return None
        exact = 1 / np.float64(divisor)
        inverse = np.float32(exact)
        if inverse > exact:
            inverse = np.nextafter(inverse, np.float32(0))
        remainder = np.float32(exact - np.float64(inverse)) or np.float32(inverse * 2.0**-60)
        candidates = (Reciprocal(float(inverse), float(r)) for r in (remainder, np.nextafter(remainder, np.float32(1))))
        return next((candidate for candidate in candidates if candidate._agrees(divisor, max_code)), None)

    def ratio(self, x: Array) -> Array:
        """Return x / scale in float32, bit by bit as a CPU with fused multiply-add computes it with this reciprocal."""
        x64 = x.astype(np.float64)
        high, low = x64 * self.inverse, (x * np.float32(self.rest)).astype(np.float64)
        return _rounded_sum(high, low)

    def _agrees(self, divisor: np.float32, max_code: int) -> bool:
        """Return whether both step from q to q + 1 at the same floats, for q from 0 to max_code - 1."""
        q = np.arange(max_code, dtype=np.float64)[:, None]
        near = ((q + 0.5) * np.float64(divisor)).astype(np.float32)
        x = (near.view(np.int32) + _NEIGHBOURS).astype(np.int32).view(np.float32)
        divided, approximated = (np.rint(ratio) > q for ratio in (x / divisor, self.ratio(x)))
        is_around = not divided[:, 0].any() and divided[:, -1].all()
        return bool(is_around and (divided == approximated).all())


def _rounded_sum(high: Array, low: Array) -> Array:
    """Return the sum of float64 numbers, rounded once to float32: an inexact float64 sum is first rounded to odd."""
    total = high + low
    part = total - high
    error = (high - (total - part)) + (low - part)
    bits = total.view(np.int64)
    is_inexact = np.isfinite(error) & (error != 0)
    odd = np.where(is_inexact & (bits & 1 == 0), bits + np.where((error > 0) == (total > 0), 1, -1), bits)
    return odd.view(np.float64).astype(np.float32)


@dataclass(frozen=True)
class WholeScale:
    """A quantization scale in integers, for CPUs without FPU: scale = significand · 2^(exponent − 150).

    Attributes:
        significand: Integer of 24 bits.
        inverse: 2^54 / significand, rounded down, at most 2^31 − 1.
        exponent: Biased exponent of the scale.
    """

    significand: int
    inverse: int
    exponent: int

    @staticmethod
    def of(scale: float) -> WholeScale | None:
        """Return a quantization scale in integers; None if it is so large or small that float32 would overflow."""
        fraction, exponent = math.frexp(np.float32(scale))
        if not -100 < exponent < 100:
            return None
        significand = int(fraction * 2**24)
        return WholeScale(significand, min(2**54 // significand, 2**31 - 1), exponent + 126)
