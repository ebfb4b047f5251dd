# SPDX-License-Identifier: Apache-2.0
"""Functions of one int16 value in integer arithmetic: a straight line, or linear interpolation in a table.

The hyperbolic tangent and the sigmoid share one table, TANH_TABLE, for all scales.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from mcugen.expressions.functions import CLAMP, INTERPOLATE, REQUANTIZE, REQUANTIZE_HIGH, SATURATE, SHIFT_RIGHT
from mcugen.expressions.nodes import Argument, Convert, Entry, Expression, Parameter, Shared, Table, call
from mcugen.expressions.values import evaluate
from mcugen.hir.types import Array, DType, QuantParams, TensorType
from mcugen.lir.program import Param, param_dtype

MakeParameter = Callable[[Param], Parameter]
"""Function that returns the expression of a kernel parameter with a given value."""

INT8_TABLE_ORDER = np.arange(256).astype(np.uint8).view(np.int8)
"""All int8 values in the order of table entries, which are indexed by the value as an unsigned byte."""

CURVE_INPUTS = np.arange(-(2**15), 2**15 + 1)
"""The inputs at which curves are tabulated: all int16 values, and 2^15, the end of the last segment."""

_STRAIGHT = 1 / 32
"""Largest difference, in codes, of a function from a line: float32 rounding explains that much."""

_MIN_LOG_SEGMENTS, _MAX_LOG_SEGMENTS = 5, 11
"""Least and largest binary logarithm of the number of segments."""

_GOAL = {DType.INT16: 1 / 2, DType.INT8: 1 / 16}
"""Largest error before rounding, in output codes, with which a smaller table is preferred to a better one."""

_WORST = {DType.INT16: 4.0, DType.INT8: 1 / 2}
"""Largest error before rounding, in output codes, that is accepted: larger ones mean that the function jumps."""

_BEYOND = 4
"""Factor by which entries may exceed the output's range: the clamp's corner then needs no segment border."""


@dataclass(frozen=True)
class Line:
    """A linear function of integers in 64-bit arithmetic: q = clamp((x · slope + offset) >> shift, low, high).

    The result is rounded once, half up.

    Attributes:
        slope: Factor of x, scaled by 2^shift.
        offset: Constant term, scaled by 2^shift, with the rounding term.
        shift: Right shift in bits.
        low: Lower limit of the result.
        high: Upper limit of the result.
    """

    slope: int
    offset: int
    shift: int
    low: int
    high: int

    @staticmethod
    def of(slope: float, constant: float, low: int, high: int) -> Line:
        """Return the line q = round(slope · x + constant), clamped to [low, high].

        Args:
            slope: Slope; it is limited to ±2^29.
            constant: Value at x = 0.
            low: Lower limit of the result.
            high: Upper limit of the result.
        """
        slope = float(np.clip(slope, -(2.0**29), 2.0**29))
        shift = 32
        while abs(round(slope * 2.0**shift)) >= 2**31:
            shift -= 1
        offset = round(constant * 2.0**shift) + (1 << (shift - 1))
        return Line(round(slope * 2.0**shift), offset, shift, low, high)

    @staticmethod
    def requantization(x: TensorType, y: TensorType) -> Line:
        """Return the linear function that requantizes integers of quantized type `x` to quantized type `y`."""
        ratio = min(x.q.scale[0] / y.q.scale[0], 2.0**29)
        return Line.of(ratio, y.q.zero_point - ratio * x.q.zero_point, *y.dtype.limits)

    @staticmethod
    def through(values: Array, dtype: DType) -> Line | None:
        """Return the clamped line through given values of a function; None if no line is accurate enough.

        Args:
            values: The real, unrounded outputs for all int16 inputs (CURVE_INPUTS).
            dtype: Type of the output, to which the line rounds and clamps.
        """
        y = np.clip(values, *dtype.limits)
        low, high = y.min(), y.max()
        inside = np.flatnonzero((y > low) & (y < high))
        if len(inside) < 2:
            return None
        first, last = inside[0], inside[-1]
        slope = (y[last] - y[first]) / (last - first)
        constant = y[first] - slope * CURVE_INPUTS[first]
        if not np.abs(np.clip(slope * CURVE_INPUTS + constant, low, high) - y).max() < _STRAIGHT:
            return None
        return Line.of(slope, constant, round(low), round(high))

    def expression(self, x: Expression, scalar: MakeParameter) -> Expression:
        """Return this linear function as an expression of an int32 `x`.

        Args:
            x: The input.
            scalar: Returns a number as a kernel parameter; it is called for each constant of the function.
        """
        up = 32 - self.shift  # where there is room for it, the upper word of 64 bits is the result
        fits = 2**15 * abs(self.slope) + abs(self.offset) < 2 ** (63 - up)
        if up <= 15 and fits:
            x, offset = (x * 2**up if up else x), Convert(DType.INT64, scalar(self.offset << up))
            return limited(call(REQUANTIZE_HIGH, x, scalar(self.slope), offset), self.low, self.high, scalar)
        constants = scalar(self.slope), Convert(DType.INT64, scalar(self.offset)), scalar(self.shift)
        return limited(call(REQUANTIZE, x, *constants), self.low, self.high, scalar)


def limited(value: Expression, low: int, high: int, scalar: MakeParameter) -> Expression:
    """Return an expression that limits an int32 to [low, high].

    Args:
        value: Expression of the int32.
        low: Lower limit.
        high: Upper limit.
        scalar: Returns a number as a kernel parameter; it is called for each limit.
    """
    for bits in (8, 16):
        if (low, high) == DType(f"int{bits}").limits:
            return call(SATURATE[bits], value)
    return call(CLAMP, value, scalar(low), scalar(high))


@dataclass(frozen=True)
class Segments:
    """A piecewise linear function of an int16 x that interpolates in a table t of equally spaced values.

    The result is q = clamp((t[i] · 2^bits + (t[i + 1] − t[i]) · rest + 2^(shift−1)) >> shift) with the index i = (x +
    2^15) >> bits and the lower `bits` bits of x as `rest`. Entries are in units of 2^(bits − shift) output steps. All
    intermediate results fit in int32.

    Attributes:
        bits: Binary logarithm of the number of inputs from entry to entry of the table.
        shift: Right shift of the result in bits.
        low: Lower limit of the result.
        high: Upper limit of the result.
        within: Whether no result exceeds the limits, so that a clamp is not needed.
    """

    bits: int
    shift: int
    low: int
    high: int
    within: bool = False

    def expression(self, x: Expression, table: Expression, scalar: MakeParameter) -> Expression:
        """Return this interpolation in a lookup table as a scalar expression of an int16 `x`.

        Args:
            x: The input.
            table: The lookup table.
            scalar: Returns a number as a kernel parameter; it is called for each constant of the function.
        """
        bits, shift = scalar(self.bits), scalar(self.shift)
        at = Shared(x + 32768)
        start, end = Entry(table, at >> bits), Entry(table, (at >> bits) + 1)
        value = call(INTERPOLATE, start, end, at, bits, shift)
        return value if self.within else limited(value, self.low, self.high, scalar)

    def vector(self, x: Expression, table: Expression, scalar: MakeParameter) -> Expression:
        """Return this interpolation in a lookup table as an expression of Helium vectors of four elements.

        Args:
            x: The input.
            table: The lookup table.
            scalar: Returns a number as a kernel parameter; it is called for each constant of the function.
        """
        at = x + 32768
        start, end = Entry(table, at >> self.bits), Entry(table, (at >> self.bits) + 1)
        rise = (end - start) * (at & ((1 << self.bits) - 1))
        value = ((start << self.bits) + rise + (1 << (self.shift - 1))) >> self.shift
        return value if self.within else call(CLAMP, value, scalar(self.low), scalar(self.high))


# ------------------------------------------------------------------------------------ one table for tanh and sigmoid

TANH_ENTRIES = 512
"""Number of entries of TANH_TABLE."""
TANH_STEP = 1 / 48
"""Distance between the arguments of successive entries of TANH_TABLE.

The table ends at ±5.32, where tanh is ±32766 · 2^-15. With this step, the factor from quantized inputs to table
positions is an integer for every scale that is a power of two.
"""

_ARGUMENTS = (np.arange(TANH_ENTRIES) - (TANH_ENTRIES - 1) / 2) * TANH_STEP

_BEND = TANH_STEP**2 / 8 * -2 * np.tanh(_ARGUMENTS) / np.cosh(_ARGUMENTS) ** 2
"""Error of lines between entries above tanh halfway: its second derivative times an eighth of the step's square."""

TANH_TABLE: Array = np.rint((np.tanh(_ARGUMENTS) - _BEND / 2) * 2.0**15).astype(np.int16)
"""int16 values of tanh in units of 2^-15: 1 KB, which all layers of a program share.

Entries are shifted by half of the largest deviation of the connecting lines from the curve, so that interpolation is
off by at most 1.2 units.
"""

_UNITS = QuantParams((2.0**-15,), 0)
"""Quantization parameters of the entries of TANH_TABLE."""

_PLACE_BITS = 22
"""Fraction bits of an argument in steps of TANH_TABLE: with nine bits of index, it fills an int32."""

_MIDDLE = (TANH_ENTRIES - 1) << (_PLACE_BITS - 1)
"""Position of tanh(0) in the table, with _PLACE_BITS fraction bits."""

_FINEST_SCALE, _COARSEST_SCALE = 2.0**-25, 2.0**-3
"""Limits of arguments' scales (powers of two).

Finer scales have no whole factor, coarser ones no code near the table's end.
"""

_SHARED_WORST = {DType.INT16: 8.0, DType.INT8: 1 / 16}
"""Largest error before rounding, in output codes, with which the shared table is used.

Only int16 outputs with a scale below 2^-17 reach it; their error of 8 codes is -72 dB.
"""


@dataclass(frozen=True)
class ShortLine:
    """A linear function of an int16 x in 32-bit arithmetic: q = clamp((x · slope + offset) >> shift, low, high).

    Attributes:
        slope: Factor of x, scaled by 2^shift.
        offset: Constant term, scaled by 2^shift, with the rounding term.
        shift: Right shift in bits.
        low: Lower limit of the result.
        high: Upper limit of the result.
    """

    slope: int
    offset: int
    shift: int
    low: int
    high: int

    @staticmethod
    def of(slope: float, zero_point: int, dtype: DType) -> ShortLine | None:
        """Return the line q = round(slope · x) + zero_point; None if it does not fit in 32-bit arithmetic.

        Args:
            slope: Slope.
            zero_point: Value at x = 0.
            dtype: Type of the result, to which it is clamped.
        """
        fraction, exponent = math.frexp(slope)
        shift = (1 if fraction == 1 / 2 else 15) - exponent  # a power of two is a factor of 1
        factor = round(slope * 2.0**shift)
        factor, shift = (factor, shift) if shift >= 0 else (factor << -shift, 0)
        offset = (zero_point << shift) + ((1 << shift) >> 1)
        return ShortLine(factor, offset, shift, *dtype.limits) if 2**15 * factor + abs(offset) < 2**31 else None

    def expression(self, x: Expression, scalar: MakeParameter) -> Expression:
        """Return this linear function as a scalar expression of an int32 `x`.

        Args:
            x: The input.
            scalar: Returns a number as a kernel parameter; it is called for each constant of the function.
        """
        return limited(self._sum(x, scalar), self.low, self.high, scalar)

    def vector(self, x: Expression, scalar: MakeParameter) -> Expression:
        """Return this linear function as an expression of Helium vectors of four elements.

        Args:
            x: The input.
            scalar: Returns a number as a kernel parameter; it is called for each constant of the function.
        """
        return call(CLAMP, self._sum(x, scalar), scalar(self.low), scalar(self.high))

    def _sum(self, x: Expression, scalar: MakeParameter) -> Expression:
        total = x if self.slope == 1 else x * scalar(self.slope)
        return call(SHIFT_RIGHT, total + scalar(self.offset), scalar(self.shift)) if self.shift else total + self.offset


@dataclass(frozen=True)
class SharedTanh:
    """tanh(x), or the sigmoid (1 + tanh(x / 2)) / 2, by interpolation in TANH_TABLE, which all layers share.

    The result has units of 2^-15; `line` (if not None) then maps it to the output. The position in the table is at = x
    · factor + _MIDDLE, for x limited to ±`reach`; _MIDDLE is the position of x = 0. `start` is the table's entry with
    the index at >> 22, `end` the next entry, and `rest` the upper 16 bits of the lower 22 bits of `at`. Then tanh is
    (start · 2^16 + (end − start) · rest + 2^15) >> 16, and the sigmoid is 2^14 + ((start · 2^16 + (end − start) · rest
    + 2^16) >> 17).

    Attributes:
        factor: Integer factor from the quantized input x to a position in the table with 22 fraction bits.
        reach: Largest magnitude of x within the table.
        is_sigmoid: Whether the function is the sigmoid; else tanh.
        line: Requantization of the result to the output type; None if the output has units of 2^-15.
    """

    factor: int
    reach: int
    is_sigmoid: bool
    line: ShortLine | None

    @staticmethod
    def of(function: str, x: QuantParams, out: TensorType) -> SharedTanh | None:
        """Return how to compute a function by TANH_TABLE for given input and output types.

        Args:
            function: Name of the function, such as "tanh".
            x: Quantization of the int16 input.
            out: Type of the output.

        Returns:
            The computation; None if the function is neither tanh nor sigmoid, or if no integer factor maps the inputs
            to table positions exactly.
        """
        is_exact = math.frexp(x.scale[0])[0] == 1 / 2 and _FINEST_SCALE <= x.scale[0] <= _COARSEST_SCALE
        if function not in ("tanh", "sigmoid") or x.zero_point or not is_exact:
            return None
        is_sigmoid = function == "sigmoid"
        factor = round(x.scale[0] / (1 + is_sigmoid) / TANH_STEP * 2.0**_PLACE_BITS)
        reach = min(-(-_MIDDLE // factor) - 1, 2**15)
        if out.q == _UNITS and out.dtype is DType.INT16:
            return SharedTanh(factor, reach, is_sigmoid, None)
        line = ShortLine.of(_UNITS.scale[0] / out.q.scale[0], out.q.zero_point, out.dtype)
        return None if line is None else SharedTanh(factor, reach, is_sigmoid, line)

    def is_near(self, exact: Array, dtype: DType) -> bool:
        """Return whether the error of the shared table is small enough for the output type.

        Args:
            exact: The function's real, unrounded outputs for all int16 inputs (CURVE_INPUTS).
            dtype: Type of the output.
        """
        inputs = {"x": CURVE_INPUTS[:-1], "table": TANH_TABLE}
        arguments = Argument("x", DType.INT16, exact=True), Table("table", DType.INT16)
        actual = evaluate(self.expression(*arguments, _constant), inputs)
        error = np.abs(actual - np.clip(exact[:-1], *dtype.limits)).max()
        return bool(error <= 1 / 2 + _SHARED_WORST[dtype])

    def expression(self, x: Expression, table: Expression, scalar: MakeParameter) -> Expression:
        """Return this tanh or sigmoid as a scalar expression of an int16 `x`.

        Args:
            x: The input.
            table: TANH_TABLE as an expression.
            scalar: Returns a number as a kernel parameter; it is called for each constant of the function.
        """
        at = self._place(x if self.reach == 2**15 else limited(x, -self.reach, self.reach, scalar), scalar)
        start, end = Entry(table, at >> _PLACE_BITS), Entry(table, (at >> _PLACE_BITS) + 1)
        value = self._placed(call(INTERPOLATE, start, end, at >> (_PLACE_BITS - 16), 16, self._shift))
        return value if self.line is None else self.line.expression(value, scalar)

    def vector(self, x: Expression, table: Expression, scalar: MakeParameter) -> Expression:
        """Return this tanh or sigmoid as an expression of Helium vectors of four elements.

        Args:
            x: The input.
            table: TANH_TABLE as an expression.
            scalar: Returns a number as a kernel parameter; it is called for each constant of the function.
        """
        at = self._place(x if self.reach == 2**15 else call(CLAMP, x, *map(scalar, (-self.reach, self.reach))), scalar)
        start, end = Entry(table, at >> _PLACE_BITS), Entry(table, (at >> _PLACE_BITS) + 1)
        rise = (end - start) * ((at >> (_PLACE_BITS - 16)) & 0xFFFF)
        value = self._placed(((start << 16) + rise + (1 << (self._shift - 1))) >> self._shift)
        return value if self.line is None else self.line.vector(value, scalar)

    @property
    def _shift(self) -> int:
        return 17 if self.is_sigmoid else 16

    def _place(self, x: Expression, scalar: MakeParameter) -> Expression:
        return Shared(x * scalar(self.factor) + _MIDDLE)

    def _placed(self, value: Expression) -> Expression:
        return value + 2**14 if self.is_sigmoid else value


def _constant(value: Param) -> Parameter:
    return Parameter(str(value), value, param_dtype(value))


# --------------------------------------------------------------------------------------------- tables of their own


def interpolation(values: Array, dtype: DType) -> tuple[Segments, Array] | None:
    """Find the smallest lookup table that approximates a function of an int16 by linear interpolation.

    If no table meets the target accuracy, the most accurate one is returned.

    Args:
        values: The function's real, unrounded outputs for all int16 inputs (CURVE_INPUTS), in output steps.
        dtype: Type of the output.

    Returns:
        How to interpolate the table, and its entries; None if every table is off by more than 4 steps (int16) or half a
        step (int8).
    """
    low, high = dtype.limits
    values = np.nan_to_num(values, nan=low)
    span = _BEYOND * (high - low) / 2
    exact = np.clip(values, low, high)
    best: tuple[int, Array] | None = None
    best_error = _WORST[dtype]
    for bits, nodes in _candidates(np.clip(values, -span, span)):
        reached = np.clip(np.interp(CURVE_INPUTS, CURVE_INPUTS[:: 1 << bits], nodes), exact.min(), exact.max())
        error = float(np.abs(reached - exact).max())
        if error <= best_error:
            best, best_error = (bits, nodes), error
        if error <= _GOAL[dtype]:
            break
    return None if best is None else _table(*best, exact, dtype)


def _candidates(y: Array) -> Iterator[tuple[int, Array]]:
    """Yield candidates: segments have 2^bits codes, and values at their ends are moved by half of the bend, or not."""
    for bits in range(16 - _MIN_LOG_SEGMENTS, 15 - _MAX_LOG_SEGMENTS, -1):
        step = 1 << bits
        ends = y[::step]
        straight = ends.copy()
        _extend(y, straight, step)
        _extend(y[::-1], straight[::-1], step)
        bend = y[step // 2 :: step] - (ends[:-1] + ends[1:]) / 2
        yield bits, straight + (np.append(bend[0], bend) + np.append(bend, bend[-1])) / 4
        yield bits, straight
        yield bits, ends


def _extend(y: Array, ends: Array, step: int) -> None:
    """Extrapolate the line of a segment within which y reaches its extreme; the clamp limits it there."""
    inside = (y > y.min()) & (y < y.max())
    for end in np.flatnonzero(inside[:-1:step] & ~inside[step::step]) + 1:
        start = int(end - 1) * step
        last = start + int(np.argmin(inside[start:])) - 1
        before = max(last - step, 0)
        if last > before:
            ends[end] = y[last] + (y[last] - y[before]) / (last - before) * (end * step - last)


def _table(bits: int, nodes: Array, exact: Array, dtype: DType) -> tuple[Segments, Array]:
    """Return entries with as many fraction bits as fit their type and, times 2^bits, an int32."""
    magnitude = math.log2(max(float(np.abs(nodes).max()), 1.0))
    stored, room = (np.int16, math.log2(2**15 - 1)) if dtype is DType.INT8 else (np.int32, 30 - bits)
    fraction = math.floor(room - magnitude)
    entries = np.rint(nodes * 2.0**fraction).astype(stored)
    low, high, shift = round(float(exact.min())), round(float(exact.max())), bits + fraction
    ends = (entries.astype(np.int64) << bits) + (1 << (shift - 1)) >> shift  # lines reach no farther than their ends
    is_bounded = low <= int(ends.min()) and int(ends.max()) <= high
    return Segments(bits, shift, low, high, is_bounded), entries
