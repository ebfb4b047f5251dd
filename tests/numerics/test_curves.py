# SPDX-License-Identifier: Apache-2.0
"""Lines and tables for functions of one code: within what they promise, and nothing where they cannot be."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from mcugen.expressions.nodes import Argument, Expression, Table
from mcugen.expressions.values import evaluate
from mcugen.hir.types import Array, DType, QuantParams, TensorType
from mcugen.kernels.portable.elementwise import Scalars
from mcugen.numerics.curves import CURVE_INPUTS, Line, Segments, interpolation, limited

CODE = Argument("q", DType.INT16, exact=True)
ALL = CURVE_INPUTS[:-1].astype(np.int16)
LIMITS = {DType.INT8: (-128, 127), DType.INT16: (-32768, 32767)}


def values(expression: Expression, codes: Array = ALL, **tables: Array) -> list[int]:
    return np.broadcast_to(evaluate(expression, {"q": codes, **tables}), codes.shape).tolist()


@pytest.mark.parametrize(("low", "high"), [(-128, 127), (-32768, 32767), (-5, 90)])
@pytest.mark.parametrize("constant", [-40000.0, -7.25, 0.0, 0.5, 1e6])
@pytest.mark.parametrize("slope", [0.0, 1e-8, -0.0003, 0.1, 0.5, -0.9999, 1.0, 3.7, -260.0, 1e6, 2.0**33, -(2.0**33)])
def test_a_line_is_the_real_one_rounded_once(slope: float, constant: float, low: int, high: int):
    line = Line.of(slope, constant, low, high)
    cut = Fraction(max(-(2.0**29), min(2.0**29, slope)))
    assert line.shift == max(s for s in range(1, 33) if abs(round(cut * 2**s)) < 2**31)
    assert line.slope == round(cut * 2**line.shift)
    assert line.offset == round(Fraction(constant) * 2**line.shift) + 2 ** (line.shift - 1)
    codes = np.asarray([-32768, -32767, -4097, -255, -2, -1, 0, 1, 2, 3, 100, 9999, 32766, 32767], np.int16)
    wanted = [max(low, min(high, (int(x) * line.slope + line.offset) >> line.shift)) for x in codes]
    found = values(line.expression(CODE, Scalars()), codes)
    saturated = [max(low, min(high, q)) for q in (max(-(2**31), min(2**31 - 1, q)) for q in wanted)]
    assert found == saturated


def test_the_upper_word_is_taken_only_where_64_bits_have_room():
    """At the border of the room, and beyond the 15 bits by which a code may be moved."""
    for shift in (16, 17, 18, 31, 32):
        room = 2**63 >> (32 - shift)
        offsets = [room // 2, room - 2**46, 2 ** (shift - 1), *([room - 2**40] if 17 <= shift < 32 else [])]
        for offset in offsets:
            line = Line(2**31 - 1 if shift < 32 else 2**30, offset, shift, -32768, 32767)
            wanted = [max(-32768, min(32767, (int(x) * line.slope + offset) >> shift)) for x in ALL[::4095]]
            assert values(line.expression(CODE, Scalars()), ALL[::4095]) == wanted


def quantized(scale: float, zero_point: int, dtype: DType = DType.INT8) -> TensorType:
    return TensorType((4,), dtype, QuantParams((scale,), zero_point))


@pytest.mark.parametrize(
    ("x", "y"), [((0.5, 3), (0.25, -7)), ((0.013, -128), (0.7, 127)), ((1e6, 0), (1e-6, 5)), ((1e6, 3), (1e-6, 5))]
)
def test_other_parameters_of_the_same_reals(x: tuple[float, int], y: tuple[float, int]):
    line = Line.requantization(quantized(*x), quantized(*y))
    codes = np.arange(-128, 128).astype(np.int16)
    ratio = min(Fraction(x[0]) / Fraction(y[0]), 2**29)
    found = values(line.expression(CODE, Scalars()), codes)
    for code, q in zip(codes.tolist(), found, strict=True):
        exact = (code - x[1]) * ratio + y[1]
        assert q in (max(-128, min(127, round(exact + by))) for by in (Fraction(-1, 10**5), Fraction(1, 10**5)))


@pytest.mark.parametrize("bend", [0.0, 0.02, 0.04])
@pytest.mark.parametrize(("low", "high"), [(-400.0, 500.0), (-20.0, 30.0), (-128.0, 127.0)])
def test_a_function_is_taken_for_a_line_if_it_differs_by_little(low: float, high: float, bend: float):
    wanted = np.clip(0.01 * CURVE_INPUTS + 3.2, low, high)
    wanted[31000:35000:7] += bend
    line = Line.through(wanted, DType.INT8)
    assert (line is not None) is (bend < 1 / 32)
    if line is not None:
        found = np.asarray(values(line.expression(CODE, Scalars())))
        exact = np.clip(wanted, -128, 127)[:-1]
        assert np.abs(found - np.clip(exact, round(max(low, -128)), round(min(high, 127)))).max() <= 0.5 + 1 / 32
        assert (line.low, line.high) == (round(max(low, -128)), round(min(high, 127)))


def test_what_never_moves_is_no_line():
    assert Line.through(np.zeros(len(CURVE_INPUTS)), DType.INT8) is None
    step = np.where(CURVE_INPUTS > 0, 100.0, -100.0)
    assert Line.through(step, DType.INT8) is None
    step[CURVE_INPUTS == 0] = 0  # a single code between
    assert Line.through(step, DType.INT8) is None
    step[CURVE_INPUTS == 1] = 50
    step[CURVE_INPUTS == 0] = -50
    assert Line.through(step, DType.INT8) is not None


@pytest.mark.parametrize(("low", "high"), [(-128, 127), (-32768, 32767), (-128, 126), (-127, 127), (0, 32767), (-3, 9)])
def test_limits(low: int, high: int):
    assert values(limited(CODE, low, high, Scalars())) == np.clip(ALL, low, high).tolist()


CURVES: dict[str, Callable[[Array], Array]] = {
    "tanh": lambda x: 120 * np.tanh(x / 9000),
    "exponential": lambda x: np.exp(x / 6000),
    "root": lambda x: np.sqrt(np.maximum(x, 0) + 4000) / 2,
    "parabola": lambda x: (x / 3000) ** 2 - 50,
    "falling": lambda x: -100 / (1 + np.exp(-x / 3000)) + 3,
}


@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16])
@pytest.mark.parametrize("name", CURVES)
def test_tables_meet_curves(name: str, dtype: DType):
    wanted = CURVES[name](CURVE_INPUTS.astype(np.float64)) * (1 if dtype is DType.INT8 else 250)
    low, high = LIMITS[dtype]
    found = interpolation(wanted, dtype)
    assert found is not None
    segments, entries = found
    assert len(entries) == (2**16 >> segments.bits) + 1 and 5 <= segments.bits <= 11
    assert entries.dtype == (np.int16 if dtype is DType.INT8 else np.int32)
    exact = np.clip(wanted, low, high)
    q = np.asarray(values(segments.expression(CODE, Table("t", DType.of(entries)), Scalars()), t=entries))
    worst = {DType.INT8: 1 / 2, DType.INT16: 4.0}[dtype]
    error = np.abs(q - exact[:-1]).max()
    assert error <= 0.5 + worst + 0.02
    goal = {DType.INT8: 1 / 16, DType.INT16: 1 / 2}[dtype]
    assert segments.bits == 5 or error <= 0.5 + goal + 0.02  # the smallest table is taken only if it is good enough
    assert (segments.low, segments.high) == (round(exact.min()), round(exact.max()))
    assert q.tolist() == by_formula(segments, entries)


def by_formula(segments: Segments, entries: Array) -> list[int]:
    """What the class says of how a table is read, in whole numbers."""
    table, found = entries.tolist(), []
    for x in ALL.tolist():
        at = x + 2**15
        i, rest = at >> segments.bits, at & ((1 << segments.bits) - 1)
        value = table[i] * 2**segments.bits + (table[i + 1] - table[i]) * rest + 2 ** (segments.shift - 1)
        assert abs(value) < 2**31
        found.append(max(segments.low, min(segments.high, value >> segments.shift)))
    return found


def test_a_smaller_table_is_taken_where_it_is_good_enough():
    bits = [
        interpolation(120 * np.tanh(CURVE_INPUTS / width), DType.INT8)[0].bits for width in (30000, 9000, 3000, 1000)
    ]
    assert bits == sorted(bits, reverse=True) and bits[0] > bits[-1]


def test_jumps_have_no_table():
    assert interpolation(np.where(CURVE_INPUTS > 77, 100.0, -100.0), DType.INT8) is None
    assert interpolation(np.where(CURVE_INPUTS % 2 == 0, 3.0, -3.0), DType.INT8) is None
    steps = 2.0 * (CURVE_INPUTS // 64)
    assert interpolation(steps, DType.INT16) is not None  # which int16 may miss by some codes


def test_a_curve_that_is_cut_off_within_a_segment_keeps_its_corner():
    """A steep line between limits: the corner is met although no segment begins there."""
    wanted = np.clip(0.3 * (CURVE_INPUTS - 101), -100, 100) + 5 * np.sin(CURVE_INPUTS / 9000)
    found = interpolation(wanted, DType.INT8)
    assert found is None or np.abs(np.asarray(by_formula(*found)) - wanted[:-1]).max() <= 1.02
    for rise in (0.011, -0.011):
        wanted = np.clip(rise * (CURVE_INPUTS - 1234), -100, 100)
        segments, entries = interpolation(wanted, DType.INT8)
        assert np.abs(np.asarray(by_formula(segments, entries)) - wanted[:-1]).max() <= 0.57
        assert segments.bits == 11 and not segments.within


def test_nothing_is_clamped_where_lines_stay_between_the_limits():
    segments, entries = interpolation(100 * np.sin(CURVE_INPUTS / 9000), DType.INT8)
    loose = Segments(segments.bits, segments.shift, -(2**15), 2**15 - 1)
    same = by_formula(loose, entries) == by_formula(segments, entries)
    assert segments.within is same


def test_the_greatest_entry_fits_its_type():
    """Straight lines to 128, a power of two beyond the codes."""
    wanted = 128 - 200 * np.abs(CURVE_INPUTS) / 2**15
    segments, entries = interpolation(wanted, DType.INT8)
    assert 2**14 <= np.abs(entries.astype(int)).max() < 2**15
    assert np.abs(np.asarray(by_formula(segments, entries)) - np.minimum(wanted[:-1], 127)).max() <= 0.57


def test_undefined_values_are_the_least():
    wanted = 50 * np.tanh(CURVE_INPUTS / 9000)
    wanted[:20000] = np.nan
    found = interpolation(np.where(np.isnan(wanted), -128, wanted), DType.INT8)
    undefined = interpolation(wanted, DType.INT8)
    assert (found is None) == (undefined is None)


@pytest.mark.parametrize(("shift", "is_high"), [(32, True), (31, True), (17, True), (16, False)])
def test_the_upper_word_is_taken_where_there_is_room(shift: int, is_high: bool):
    functions = str(Line(1000, 2**10, shift, -128, 127).expression(CODE, Scalars()))
    assert ("mcugen_requantize_high" in functions) is is_high


TABLES = {
    "tanh int8": (9, 0.02),
    "tanh int16": (7, 0.294),
    "exponential int8": (9, 0.057),
    "exponential int16": (6, 0.232),
    "root int8": (10, 0.377),
    "root int16": (7, 0.306),
    "parabola int8": (11, 0.305),
    "parabola int16": (8, 0.232),
    "falling int8": (9, 0.019),
    "falling int16": (7, 0.275),
}


def errors() -> dict[str, tuple[int, float]]:
    """By curve, the binary logarithm of the segments' length and the largest error, in codes before rounding."""
    found = {}
    for (name, curve), dtype in product(CURVES.items(), LIMITS):
        wanted = curve(CURVE_INPUTS.astype(np.float64)) * (1 if dtype is DType.INT8 else 250)
        segments, entries = interpolation(wanted, dtype)
        unit = 2.0 ** (segments.bits - segments.shift)
        reached = np.interp(CURVE_INPUTS, CURVE_INPUTS[:: 1 << segments.bits], entries * unit).clip(
            segments.low, segments.high
        )
        error = np.abs(reached - np.clip(wanted, *dtype.limits)).max()
        found[f"{name} {dtype.value}"] = (segments.bits, round(float(error), 3))
    return found


def test_which_tables_are_taken():
    """A larger table, or a larger error, is a loss; a smaller one may be noted here."""
    assert errors() == TABLES
