# SPDX-License-Identifier: Apache-2.0
"""Functions of one 16-bit code in integers: a straight line, or straight lines between the entries of a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from mcugen.expressions.functions import CLAMP, INTERPOLATE, REQUANTIZE, REQUANTIZE_HIGH, SATURATE
from mcugen.expressions.nodes import Convert, Entry, Expression, Parameter, Shared, call
from mcugen.hir.types import Array, DType, TensorType
from mcugen.lir.program import Param

Scalar = Callable[[Param], Parameter]
"""Makes a number a parameter of the kernel."""

BYTES = np.arange(256).astype(np.uint8).view(np.int8)
"""All codes of int8 in the order of tables, whose entries are found by the byte of a code."""

CODES = np.arange(-(2**15), 2**15 + 1)
"""All codes of int16, and the end of the last segment."""

_STRAIGHT = 1 / 32
"""Codes by which a function may differ from a line: rounding of float32 explains that much."""

_FEWEST, _MOST = 5, 11
"""Binary logarithm of the number of segments."""

_GOAL = {DType.INT16: 1 / 2, DType.INT8: 1 / 16}
"""Largest error before rounding, in output codes, with which a smaller table is preferred to a better one."""

_WORST = {DType.INT16: 4.0, DType.INT8: 1 / 2}
"""Larger errors are not accepted: the function jumps."""

_BEYOND = 4
"""Entries reach so many times beyond the output's codes: the clamp's corner then needs no segment border."""


@dataclass(frozen=True)
class Line:
    """q = clamp((x · slope + offset) >> shift, low, high) in 64 bits: one rounding, half up."""

    slope: int
    offset: int
    shift: int
    low: int
    high: int

    @staticmethod
    def of(slope: float, constant: float, low: int, high: int) -> Line:
        """q = round(slope · x + constant); a steeper line than 2^29 is cut to that."""
        slope = float(np.clip(slope, -(2.0**29), 2.0**29))
        shift = 32
        while abs(round(slope * 2.0**shift)) >= 2**31:
            shift -= 1
        offset = round(constant * 2.0**shift) + (1 << (shift - 1))
        return Line(round(slope * 2.0**shift), offset, shift, low, high)

    @staticmethod
    def requantization(x: TensorType, y: TensorType) -> Line:
        """The same reals in the parameters of `y`."""
        ratio = min(x.q.scale[0] / y.q.scale[0], 2.0**29)
        return Line.of(ratio, y.q.zero_point - ratio * x.q.zero_point, *y.dtype.limits)

    @staticmethod
    def through(wanted: Array, dtype: DType) -> Line | None:
        """The line, cut off above and below, on which wanted[i] (real) of CODES[i] lies; None: they are on no line."""
        y = np.clip(wanted, *dtype.limits)
        least, most = y.min(), y.max()
        inside = np.flatnonzero((y > least) & (y < most))
        if len(inside) < 2:
            return None
        first, last = inside[0], inside[-1]
        slope = (y[last] - y[first]) / (last - first)
        constant = y[first] - slope * CODES[first]
        if not np.abs(np.clip(slope * CODES + constant, least, most) - y).max() < _STRAIGHT:
            return None
        return Line.of(slope, constant, round(least), round(most))

    def expression(self, x: Expression, scalar: Scalar) -> Expression:
        """The line at `x`, an int32."""
        up = 32 - self.shift  # where there is room for it, the upper word of 64 bits is the result
        fits = 2**15 * abs(self.slope) + abs(self.offset) < 2 ** (63 - up)
        if up <= 15 and fits:
            x, offset = (x * 2**up if up else x), Convert(DType.INT64, scalar(self.offset << up))
            return limited(call(REQUANTIZE_HIGH, x, scalar(self.slope), offset), self.low, self.high, scalar)
        constants = scalar(self.slope), Convert(DType.INT64, scalar(self.offset)), scalar(self.shift)
        return limited(call(REQUANTIZE, x, *constants), self.low, self.high, scalar)


def limited(value: Expression, low: int, high: int, scalar: Scalar) -> Expression:
    """An int32 limited to [low, high]."""
    for bits in (8, 16):
        if (low, high) == DType(f"int{bits}").limits:
            return call(SATURATE[bits], value)
    return call(CLAMP, value, scalar(low), scalar(high))


@dataclass(frozen=True)
class Segments:
    """How a table is read: q = clamp((t[i] · 2^bits + (t[i + 1] − t[i]) · rest + 2^(shift−1)) >> shift).

    i = (x + 2^15) >> bits and `rest` the bits below. Entries are in units of 2^(bits − shift) codes; all fits int32.
    """

    bits: int
    shift: int
    low: int
    high: int
    within: bool = False
    """Whether lines stay between the limits anyhow, so that nothing is clamped."""

    def expression(self, x: Expression, table: Expression, scalar: Scalar) -> Expression:
        """The function at `x`, an int16."""
        bits, shift = scalar(self.bits), scalar(self.shift)
        at = Shared(x + 32768)
        start, end = Entry(table, at >> bits), Entry(table, (at >> bits) + 1)
        value = call(INTERPOLATE, start, end, at, bits, shift)
        return value if self.within else limited(value, self.low, self.high, scalar)


def interpolation(wanted: Array, dtype: DType) -> tuple[Segments, Array] | None:
    """The smallest table that gives wanted[i] (real) for CODES[i] within the goal, else the best; None: all are bad."""
    low, high = dtype.limits
    wanted = np.nan_to_num(wanted, nan=low)
    span = _BEYOND * (high - low) / 2
    exact = np.clip(wanted, low, high)
    best: tuple[int, Array] | None = None
    least = _WORST[dtype]
    for bits, nodes in _candidates(np.clip(wanted, -span, span)):
        reached = np.clip(np.interp(CODES, CODES[:: 1 << bits], nodes), exact.min(), exact.max())
        error = float(np.abs(reached - exact).max())
        if error <= least:
            best, least = (bits, nodes), error
        if error <= _GOAL[dtype]:
            break
    return None if best is None else _table(*best, exact, dtype)


def _candidates(y: Array) -> Iterator[tuple[int, Array]]:
    """Segments of 2^bits codes, and values at their ends: moved by half of how much the function bends, or not."""
    for bits in range(16 - _FEWEST, 15 - _MOST, -1):
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
    """Where y reaches its extreme within a segment, what lies before goes straight on: the clamp cuts it off there."""
    inside = (y > y.min()) & (y < y.max())
    for end in np.flatnonzero(inside[:-1:step] & ~inside[step::step]) + 1:
        start = int(end - 1) * step
        last = start + int(np.argmin(inside[start:])) - 1
        before = max(last - step, 0)
        if last > before:
            ends[end] = y[last] + (y[last] - y[before]) / (last - before) * (end * step - last)


def _table(bits: int, nodes: Array, exact: Array, dtype: DType) -> tuple[Segments, Array]:
    """Entries with as many fractional bits as fit their type and, times 2^bits, an int32."""
    magnitude = math.log2(max(float(np.abs(nodes).max()), 1.0))
    stored, room = (np.int16, math.log2(2**15 - 1)) if dtype is DType.INT8 else (np.int32, 30 - bits)
    fraction = math.floor(room - magnitude)
    entries = np.rint(nodes * 2.0**fraction).astype(stored)
    low, high, shift = round(float(exact.min())), round(float(exact.max())), bits + fraction
    ends = (entries.astype(np.int64) << bits) + (1 << (shift - 1)) >> shift  # lines reach no farther than their ends
    within = low <= int(ends.min()) and int(ends.max()) <= high
    return Segments(bits, shift, low, high, within), entries
