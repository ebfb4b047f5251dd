# SPDX-License-Identifier: Apache-2.0
"""Binary digits of floating-point numbers, by fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from mcugen.numerics.digits import MAX_SHORT_FACTOR_BITS, fits_float32, has_digits, is_float32

NUMBERS = [0.0, 1.0, -1.0, 0.1, 1 / 3, 4095.0, 4097.0, -8190.0, 2.0**60, 2.0**-90, 3 * 2.0**-40, 1 + 2.0**-23]


def digits_of(number: float) -> int:
    """By dividing by 2 what is even."""
    numerator = abs(Fraction(number).numerator)
    while numerator and numerator % 2 == 0:
        numerator //= 2
    return numerator.bit_length()


@pytest.mark.parametrize("digits", [1, 2, MAX_SHORT_FACTOR_BITS, 13, 24])
def test_numbers_of_few_digits(digits: int):
    assert has_digits(np.asarray(NUMBERS), digits).tolist() == [digits_of(n) <= digits for n in NUMBERS]


def test_products_of_few_digits_are_exact_in_float32():
    assert MAX_SHORT_FACTOR_BITS == 12 and has_digits(
        np.asarray([2.0**12 - 1, 2.0**12 + 1]), MAX_SHORT_FACTOR_BITS
    ).tolist() == [True, False]
    assert Fraction(float(np.float32(4095) * np.float32(4095))) == 4095 * 4095


def test_numbers_of_float32():
    found = is_float32(np.asarray([*NUMBERS, 1e39, 1 + 2.0**-24, 2.0**-149, 2.0**-150]))
    assert found.tolist() == [digits_of(n) <= 24 for n in NUMBERS] + [False, False, True, False]


@pytest.mark.parametrize(
    ("number", "fits"),
    [
        (0.0, True),
        (0.1, True),
        (-1e38, True),
        (3.5e38, False),
        (-3.5e38, False),
        (1e-40, False),
        (2.0**-126, True),
        (-(2.0**-127), False),
        (float(np.finfo(np.float32).max), True),
    ],
)
def test_magnitudes_of_float32(number: float, fits: bool):
    assert fits_float32(np.asarray([number])) is fits
    assert fits_float32(np.asarray([1.0, number, 0.0])) is fits
