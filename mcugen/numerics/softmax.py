# SPDX-License-Identifier: Apache-2.0
"""Softmax and its logarithm in integers: the specification that every kernel meets bit-exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mcugen.hir.operator import Signature
from mcugen.hir.types import Array, DType, TensorType
from mcugen.numerics.fixedpoint import is_quantized, rounded_shift


@dataclass(frozen=True)
class FixedExp:
    """Lookup tables of the exponentials of a quantized softmax: e = exp(−scale · d) · 2^bits for d = max − x[k] ≥ 0.

    The sum of a row's exponentials is at most 2^31. For int8, e = low[d]. For int16, e = (high[d >> 8] · low[d & 255] +
    2^31) >> 32, with high in units of 2^−30.

    Attributes:
        low: Table of 256 entries, for the difference d or its lower 8 bits.
        high: Table of 256 entries for the upper 8 bits of d; empty for int8.
        bits: Fraction bits of the exponentials.
    """

    low: tuple[int, ...]
    high: tuple[int, ...]
    bits: int

    @staticmethod
    def of(x: TensorType, axis: int) -> FixedExp:
        """Return the tables for a softmax along `axis` of a quantized tensor of type `x`."""
        room = 31 - math.ceil(math.log2(x.shape[axis]))
        codes, scale = np.arange(256), x.q.scale[0]
        if x.dtype is DType.INT8:
            bits = min(30, room)
            return FixedExp(_whole(np.exp(-scale * codes) * 2.0**bits), (), bits)
        bits = min(28, room)
        low, high = np.exp(-scale * codes) * 2.0 ** (bits + 2), np.exp(-scale * 256 * codes) * 2.0**30
        return FixedExp(_whole(low), _whole(high), bits)

    def __call__(self, x: Array, axis: int, visible: Array | None = None) -> Array:
        """Return the exponentials of x, as int64; 0 for elements that are not visible."""
        seen = np.ones((), np.bool_) if visible is None else visible
        d = np.where(seen, x, np.iinfo(x.dtype).min).max(axis, keepdims=True).astype(np.int64) - x
        d, low = np.maximum(d, 0), np.asarray(self.low, np.int64)
        e = (np.asarray(self.high, np.int64)[d >> 8] * low[d & 255] + 2**31) >> 32 if self.high else low[d]
        return np.asarray(e * seen)


def _whole(reals: Array) -> tuple[int, ...]:
    return tuple(int(e) for e in np.rint(reals))


@dataclass(frozen=True)
class FixedSoftmax:
    """A softmax in integers, rounded once, half up.

    e[k] = exp(scale_in · (x[k] − max)) · 2^bits comes from tables (`exp`); Σ e ≤ 2^31. r = ⌊numerator · 2^bits / Σ e⌋ <
    2^31. q = clamp((e[k] · r + (zero_point << shift) + 2^(shift−1)) >> shift).

    Attributes:
        exp: Tables of the exponentials.
        numerator: 2^(shift − bits) / scale_out, an integer of 31 bits.
        shift: Right shift of the result in bits.
        zero_point: Zero point of the output.
        dtype: Type of the output.
    """

    exp: FixedExp
    numerator: int
    shift: int
    zero_point: int
    dtype: DType

    @staticmethod
    def of(sig: Signature, axis: int) -> FixedSoftmax | None:
        """Return the constants of an integer softmax along `axis` for these input and output types.

        Returns:
            The constants. None if rows are so long that the table loses precision, or if the input or output scale is
            outside of the range that softmax needs.
        """
        x, y = sig.input(0), sig.output
        if not is_quantized(x) or not is_quantized(y) or x.shape[axis] > _LONGEST:
            return None
        exp = FixedExp.of(x, axis)
        gain = 1.0 / y.q.scale[0]
        fraction = 30 - math.floor(math.log2(gain))
        numerator = round(gain * 2**fraction)
        if numerator == 2**31:
            numerator, fraction = 2**30, fraction - 1
        shift = exp.bits + fraction
        if not 32 <= shift <= 54:
            return None
        return FixedSoftmax(exp, numerator, shift, y.q.zero_point, y.dtype)

    @property
    def offset(self) -> int:
        """Return the zero point and rounding term that are added before the right shift."""
        return (self.zero_point << self.shift) + (1 << (self.shift - 1))

    def __call__(self, x: Array, axis: int, visible: Array | None = None) -> Array:
        """Return the softmax of x along `axis`, as the kernel computes it."""
        e = self.exp(x, axis, visible)
        ratio = (self.numerator << self.exp.bits) // e.sum(axis, keepdims=True)
        q: Array = np.clip((e * ratio + self.offset) >> self.shift, *self.dtype.limits).astype(self.dtype.numpy)
        return q


@dataclass(frozen=True)
class ShortSoftmax:
    """A softmax in integers of 16 bits, by tables and multiplications: the form for NPUs, which have no division.

    Results differ from those of `FixedSoftmax` by at most one step. e[k] = exp(scale_in · (x[k] − max)) · 2^15, limited
    to 2^15 − 1, comes from a table. A second table, which is interpolated, gives 2^30 / Σ e; 2^14 times that is the
    first inverse. Each of `steps` steps of Newton's method, all products rounded half up, squares its relative error:
    inverse ← inverse + inverse · (2^30 − Σ e · inverse / 2^14) / 2^30. Then r = inverse · numerator >> numerator_shift,
    limited to 2^15 − 1, and q = clamp(((e[k] · r + 2^(shift−1)) >> shift) + zero_point).

    Attributes:
        low: Table of 256 entries for the difference max − x[k].
        refinement: Table of 256 entries that are added to the sum in units of 2^-REFINEMENT_BITS; empty where the
            rounded exponentials give a sum that is precise enough.
        length: Number of elements of a row.
        inverses: Table of 513 entries for Σ e from 0 to length · 2^14, in equal distances.
        steps: Number of steps of Newton's method.
        numerator: 1 / scale_out as an integer of 31 bits.
        numerator_shift: Right shift of the inverse with its numerator in bits.
        shift: Right shift of the result in bits.
        zero_point: Zero point of the output.
    """

    low: tuple[int, ...]
    refinement: tuple[int, ...]
    length: int
    inverses: tuple[int, ...]
    steps: int
    numerator: int
    numerator_shift: int
    shift: int
    zero_point: int

    @staticmethod
    def of(sig: Signature, axis: int) -> ShortSoftmax | None:
        """Return the constants of a softmax along `axis`; None for types other than int8, or too long or short rows."""
        x, y = sig.input(0), sig.output
        length = x.shape[axis]
        if not is_quantized(x) or not is_quantized(y) or x.dtype is not DType.INT8 or y.dtype is not DType.INT8:
            return None
        gain = 1.0 / y.q.scale[0]
        if not 2 <= length <= _LONGEST or not 2.0**2 < gain < 2.0**16:
            return None
        e = np.exp(-x.q.scale[0] * np.arange(256)) * 2.0**SHORT_EXP_BITS
        low = np.minimum(np.rint(e), 2.0**15 - 1)
        worst = np.abs(e - low) * (length - 1) / (2.0**SHORT_EXP_BITS + e * (length - 1)) * gain
        refinement = _whole((e - low) * 2.0**REFINEMENT_BITS) if worst.max() > _MAX_SUM_ERROR else ()
        sums = np.maximum(np.arange(513) * (length * 2.0**SHORT_EXP_BITS / 512), 2.0**SHORT_EXP_BITS)
        inverses = np.minimum(2.0 ** (15 + SHORT_EXP_BITS) / sums, 2.0**15 - 1)
        error = (length / 1024) ** 2  # of a line between two entries where the inverse is bent most
        steps = 1
        while error < 1 / 2 and (error := error**2) > _MAX_INVERSE_ERROR:
            steps += 1
        if error >= 1 / 2:
            return None
        shift = 15 + SHORT_EXP_BITS - math.ceil(math.log2(gain))
        numerator_bits = 30 - math.floor(math.log2(gain))
        numerator = min(round(gain * 2.0**numerator_bits), 2**31 - 1)
        numerator_shift = numerator_bits + INVERSE_BITS + 15 + SHORT_EXP_BITS - shift
        tables = (_whole(low), refinement, length, _whole(inverses))
        return ShortSoftmax(*tables, steps, numerator, numerator_shift, shift, y.q.zero_point)

    @property
    def center(self) -> int:
        """Return the sum in the middle of the table of inverses."""
        return self.length << (SHORT_EXP_BITS - 1)

    @property
    def index_scale(self) -> tuple[int, int]:
        """Return multiplier and right shift from a sum, less `center`, to an index from −32767 to 32767."""
        return (1 << 16) * (2**15 - 1) // self.length, 30

    def __call__(self, x: Array, axis: int) -> Array:
        """Return the softmax of x along `axis`."""
        d = x.max(axis, keepdims=True).astype(np.int64) - x
        e = np.asarray(self.low, np.int64)[d]
        total = e.sum(axis, keepdims=True)
        if self.refinement:
            refinements = np.asarray(self.refinement, np.int64)[d].sum(axis, keepdims=True)
            total = total + rounded_shift(refinements, REFINEMENT_BITS)
        multiplier, shift = self.index_scale
        index = rounded_shift((total - self.center) * multiplier, shift) + 2**15
        base, fraction = np.asarray(self.inverses, np.int64), index & 127
        slope = np.diff(base)
        inverse = (base[index >> 7] + rounded_shift(slope[index >> 7] * fraction, 7)) << INVERSE_BITS
        for _ in range(self.steps):
            error = 2**30 - rounded_shift(total * inverse, SUM_SHIFT)
            inverse = inverse + rounded_shift(inverse * error, 30)
        factor = np.minimum(rounded_shift(inverse * self.numerator, self.numerator_shift), 2**15 - 1)
        q = np.clip(rounded_shift(e * factor, self.shift) + self.zero_point, *DType.INT8.limits).astype(np.int8)
        return np.asarray(q)


SHORT_EXP_BITS = 15
"""Number of fraction bits of the exponentials in ShortSoftmax."""

INVERSE_BITS = 14
"""Left shift of an inverse from the table before Newton's method in ShortSoftmax."""

SUM_SHIFT = SHORT_EXP_BITS + INVERSE_BITS - 15
"""Right shift of the product of a sum and its inverse in ShortSoftmax: 2^30 remains."""

REFINEMENT_BITS = 14
"""Number of further fraction bits of the sum of exponentials in ShortSoftmax."""

_MAX_SUM_ERROR = 0.9
"""Largest error of a result, in output steps, by the rounding of the exponentials in the sum in ShortSoftmax."""

_MAX_INVERSE_ERROR = 2.0**-15
"""Largest relative error of an inverse in ShortSoftmax."""


SOFTMAX_LOG_BITS = 20
"""Number of fraction bits of the logarithms in FixedLogSoftmax."""

_LONGEST = 4096
"""Largest number of elements of a row: longer rows lose precision in the sum."""


def fixed_log2(v: Array) -> Array:
    """Return log2(v) · 2^20, rounded down, for integers 1 ≤ v < 2^32.

    The algorithm squares the mantissa (Q1.31) repeatedly; each squaring gives one bit.
    """
    whole = np.frexp(v.astype(np.float64))[1] - 1
    mantissa, y = v.astype(np.uint64) << (31 - whole).astype(np.uint64), whole.astype(np.int64)
    for _ in range(SOFTMAX_LOG_BITS):
        square = mantissa * mantissa
        bit = square >> np.uint64(63)
        mantissa, y = square >> (np.uint64(31) + bit), 2 * y + bit.astype(np.int64)
    return y


@dataclass(frozen=True)
class FixedLogSoftmax:
    """The logarithm of a softmax in integers, rounded once, half up.

    With e from `exp`, l = ((log2(Σ e) − bits · 2^20) · unit) >> unit_shift is the logarithm of the sum in output steps
    · 2^shift. q = clamp(((x[k] − max) · slope − l + (zero_point << shift) + 2^(shift−1)) >> shift).

    Attributes:
        exp: Tables of the exponentials.
        slope: Input scale divided by output scale, times 2^shift.
        unit: Factor of 31 bits from binary logarithms (20 fraction bits) to output steps.
        unit_shift: Right shift in bits after the multiplication by `unit`.
        shift: Right shift of the result in bits.
        zero_point: Zero point of the output.
        dtype: Type of the output.
    """

    exp: FixedExp
    slope: int
    unit: int
    unit_shift: int
    shift: int
    zero_point: int
    dtype: DType

    @staticmethod
    def of(sig: Signature, axis: int) -> FixedLogSoftmax | None:
        """Return the constants of an integer log-softmax along `axis` for these input and output types.

        Returns:
            The constants. None if rows are too long, or if the output's scale is so small that all results saturate.
        """
        x, y = sig.input(0), sig.output
        if not is_quantized(x) or not is_quantized(y) or x.shape[axis] > _LONGEST:
            return None
        ratio, unit = x.q.scale[0] / y.q.scale[0], math.log(2) / y.q.scale[0]
        if not 2.0**-16 < ratio < 2.0**16 or not 2.0**-16 < unit < 2.0**20:
            return None
        shift = 30 - max(math.floor(math.log2(ratio)), 0)
        unit_shift = 30 - math.floor(math.log2(unit)) - (shift - SOFTMAX_LOG_BITS)
        slope, unit = round(ratio * 2**shift), round(unit * 2.0 ** (shift - SOFTMAX_LOG_BITS + unit_shift))
        return FixedLogSoftmax(FixedExp.of(x, axis), slope, unit, unit_shift, shift, y.q.zero_point, y.dtype)

    @property
    def offset(self) -> int:
        """Return the zero point and rounding term that are added before the right shift."""
        return (self.zero_point << self.shift) + (1 << (self.shift - 1))

    def __call__(self, x: Array, axis: int) -> Array:
        """Return the logarithm of the softmax of x along `axis`, as the kernel computes it."""
        below = x.astype(np.int64) - x.max(axis, keepdims=True)
        log2 = fixed_log2(self.exp(x, axis).sum(axis, keepdims=True)) - (self.exp.bits << SOFTMAX_LOG_BITS)
        base = self.offset - ((log2 * self.unit) >> self.unit_shift)
        q: Array = np.clip((below * self.slope + base) >> self.shift, *self.dtype.limits).astype(self.dtype.numpy)
        return q
