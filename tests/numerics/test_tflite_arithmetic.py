# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of TensorFlow Lite's kernels, against its definition in whole numbers of any size and in reals."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from mcugen.expressions.functions import rounded_twice
from mcugen.numerics.tflite_arithmetic import (
    AwayMean,
    DoubleRequantizer,
    exp_of_negative,
    inverse_of_one_plus,
)

ENDS = (-(2**31), -(2**31) + 1, -(2**30), -12345, -1, 0, 1, 999, 2**30, 2**31 - 1)
MULTIPLIERS = (0, 2**30, 2**30 + 1, 3 * 2**29, 2**31 - 1)


def half_up(value: Fraction) -> int:
    return math.floor(value + Fraction(1, 2))


def half_away(value: Fraction) -> int:
    return half_up(value) if value >= 0 else -half_up(-value)


@pytest.mark.parametrize("shift", [0, 1, 2, 7, 22, 30, 31])
@pytest.mark.parametrize("multiplier", MULTIPLIERS)
def test_products_are_rounded_half_up_and_then_half_away_from_zero(multiplier: int, shift: int):
    xs = [*ENDS, *(sign * (2**shift // 2 + 2**shift * k) for sign in (-1, 1) for k in range(4))]
    xs = [x for x in xs if -(2**31) <= x < 2**31]
    expected = [half_away(Fraction(half_up(Fraction(x * multiplier, 2**31)), 2**shift)) for x in xs]
    np.testing.assert_array_equal(rounded_twice(np.asarray(xs), np.int64(multiplier), np.int64(shift)), expected)


@pytest.mark.parametrize("left", [1, 3, 12])
def test_a_negative_shift_is_a_left_shift_of_32_bits(left: int):
    xs = np.asarray([-5, -1, 0, 1, 77, 2**30])
    wrapped = [(x * 2**left + 2**31) % 2**32 - 2**31 for x in xs.tolist()]
    expected = [half_up(Fraction(x * 1500000001, 2**31)) for x in wrapped]
    np.testing.assert_array_equal(rounded_twice(xs, np.int64(1500000001), np.int64(-left)), expected)


@pytest.mark.parametrize("scale", [1e-9, 3.7e-4, 0.25, 0.5 - 2**-40, 0.999999999999, 1.0, 1.7, 1000.3])
def test_a_factor_has_31_bits(scale: float):
    requantize = DoubleRequantizer.of(scale, 0)
    (multiplier,), (shift,) = requantize.multiplier.tolist(), requantize.shift.tolist()
    assert 2**30 <= multiplier < 2**31
    assert abs(multiplier * 2.0 ** (-31 - shift) / scale - 1) <= 2.0**-31


def test_factors_outside_of_the_range_become_0_or_the_largest():
    requantize = DoubleRequantizer.of(np.asarray([2.0**-33, 2.0**40, 0.0]), 0)
    assert requantize.multiplier.tolist() == [0, 2**31 - 1, 0]
    assert requantize(np.asarray([1000, 1, 1000])).tolist() == [0, 127, 0]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 49])
@pytest.mark.parametrize("zero_point", [-128, -3, 0, 127])
def test_means_are_rounded_half_away_from_zero(count: int, zero_point: int):
    totals = np.arange(-128 * count, 127 * count + 1)
    expected = [half_away(Fraction(int(total), count)) for total in totals]
    found = AwayMean.by(np.asarray([count]), zero_point)(totals - zero_point * count)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("integer_bits", [4, 5])
def test_exponentials(integer_bits: int):
    x = -np.unique(np.geomspace(1, 2**31 - 1, 3000).astype(np.int64))
    expected = np.exp(x * 2.0 ** (integer_bits - 31))
    assert np.abs(exp_of_negative(x, integer_bits) * 2.0**-31 - expected).max() < 4e-7
    assert exp_of_negative(np.asarray([0]), integer_bits).tolist() == [2**31 - 1]


def test_reciprocals():
    x = np.linspace(0, 2**31 - 1, 5000).astype(np.int64)
    assert np.abs(inverse_of_one_plus(x) * 2.0**-31 - 1 / (1 + x * 2.0**-31)).max() < 2e-8
