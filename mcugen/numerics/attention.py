# SPDX-License-Identifier: Apache-2.0
"""Attention to a cache in integers: the specification that every kernel meets bit-exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mcugen.hir.operator import Signature
from mcugen.hir.types import Array, DType
from mcugen.numerics.fixedpoint import is_quantized

OCTAVE_BITS = 8
"""Fraction bits of the binary logarithm of an exponential: its table has 2^8 entries, and errors of 0.14 %."""
MAX_EXPONENTIAL_BITS = 14
"""Largest number of fraction bits of an exponential, which then fits a signed half word."""
MAX_POSITIONS = 1 << 13
"""Largest number of positions of a cache: exponentials then have 10 fraction bits."""


@dataclass(frozen=True)
class FixedAttention:
    """Attention of one query to int8 keys and values.

    s[t] = Σ (q − zero point) · k[t]; the zero point of k would add the same to each score. x[t] = ((max s − s[t]) ·
    2^score_shift · score_multiplier + 2^31) >> 32 is a binary logarithm with 8 fraction bits, and e[t] =
    exponentials[x & 255] >> (x >> 8). r = ⌊numerator · 2^bits / Σ e⌋. y = clamp((Σ e[t] · (v[t] − zero point) · r +
    offset) >> shift).

    Attributes:
        q_zero_point: Zero point of the queries.
        v_zero_point: Zero point of the values.
        score_multiplier: Multiplier of differences of scores, below 2^31.
        score_shift: Left shift of differences of scores.
        bits: Fraction bits of exponentials, so that a sum of products fits 32 bits.
        numerator: scale of v / scale of y, with shift − bits fraction bits; 31 bits.
        shift: Right shift of the result.
        zero_point: Zero point of y.
    """

    q_zero_point: int
    v_zero_point: int
    score_multiplier: int
    score_shift: int
    bits: int
    numerator: int
    shift: int
    zero_point: int

    @staticmethod
    def of(sig: Signature, scale: float, positions: int) -> FixedAttention | None:
        """Return the constants for these types; None if they are no int8, or if scales are out of range.

        Args:
            sig: Types of queries, keys, values and the output.
            scale: Real factor of the scores.
            positions: Number of positions of the cache.
        """
        q, k, v, y = sig.input(0), sig.input(1), sig.input(2), sig.output
        types = (q, k, v, y)
        if not all(is_quantized(t) and t.dtype is DType.INT8 and t.q.axis is None for t in types):
            return None
        factor = scale * q.q.scale[0] * k.q.scale[0] * math.log2(math.e) * 2**OCTAVE_BITS
        if not factor > 2.0**-40 or positions > MAX_POSITIONS:
            return None
        score_shift = max(0, math.floor(math.log2(factor)) + 2)
        multiplier = round(factor * 2.0 ** (32 - score_shift))
        gain = v.q.scale[0] / y.q.scale[0]
        fraction = 30 - math.floor(math.log2(gain))
        bits = min(MAX_EXPONENTIAL_BITS, 23 - math.ceil(math.log2(positions)))
        shift = bits + fraction
        if (2 * 255 * 128 * q.shape[-1]) << score_shift >= 2**31 or not 32 <= shift <= 54:
            return None
        numerator = min(round(gain * 2.0**fraction), 2**31 - 1)
        return FixedAttention(
            q.q.zero_point, v.q.zero_point, multiplier, score_shift, bits, numerator, shift, y.q.zero_point
        )

    @property
    def exponentials(self) -> Array:
        """Return the table of exponentials: 2^(bits − i / 256)."""
        steps = np.arange(2**OCTAVE_BITS) / 2**OCTAVE_BITS
        return np.asarray(np.rint(2.0 ** (self.bits - steps)), np.int16)

    @property
    def offset(self) -> int:
        """Return the zero point and rounding term that are added before the right shift."""
        return (self.zero_point << self.shift) + (1 << (self.shift - 1))

    def __call__(self, q: Array, k: Array, v: Array) -> Array:
        """Return the attention of queries (n, size) to keys (t, size) and values (t, size of a value), as int8."""
        scores = (q.astype(np.int64) - self.q_zero_point) @ k.astype(np.int64).T
        below = (scores.max(-1, keepdims=True) - scores) << self.score_shift
        x = (below * self.score_multiplier + 2**31) >> 32
        e = self.exponentials.astype(np.int64)[x & 255] >> np.minimum(x >> OCTAVE_BITS, 31)
        ratio = (self.numerator << self.bits) // e.sum(-1, keepdims=True)
        sums = e @ (v.astype(np.int64) - self.v_zero_point)
        return np.asarray(np.clip((sums * ratio + self.offset) >> self.shift, -128, 127), np.int8)
