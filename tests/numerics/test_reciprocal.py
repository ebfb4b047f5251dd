# SPDX-License-Identifier: Apache-2.0
"""Quantizing without a division gives what the division does, for every float near a step and many others."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from mcugen.numerics.reciprocal import Reciprocal, WholeScale, _rounded_sum

SCALES = [float(np.float32(s)) for s in (1 / 3, 0.1, 0.0173, 1.0, 0.5, 3.0, 7.77e-9, 255.1, 1e12, 2.0**-59, 1.9999999)]


def near_steps(scale: float, most: int) -> np.ndarray:
    """The floats around (q + 1/2) · scale, of both signs, and some beyond."""
    with np.errstate(over="ignore"):
        ends = np.asarray([0.0, -0.0, np.inf, -np.inf, 1e30 * scale, -1e30 * scale, 1e-30 * scale], np.float64)
        ends = ends.astype(np.float32)
    steps = ((np.arange(-most - 2, most + 2) + 0.5) * scale).astype(np.float32)
    around = steps.view(np.int32)[:, None] + np.arange(-9, 10, dtype=np.int32)
    random = np.random.default_rng(0).normal(0, most * scale, 4000).astype(np.float32)
    return np.concatenate([around.view(np.float32).reshape(-1), random, ends])


@pytest.mark.parametrize("most", [255, 4000])
@pytest.mark.parametrize("scale", SCALES)
def test_the_product_rounds_as_the_ratio_does(scale: float, most: int):
    found = Reciprocal.of(scale, most)
    assert found is not None
    assert found.inverse > 0 and found.rest > 0
    error = Fraction(found.inverse) + Fraction(found.rest) - 1 / Fraction(scale)
    assert abs(error) * Fraction(scale) < Fraction(1, 2**46) and Fraction(found.inverse) <= 1 / Fraction(scale)
    x = near_steps(scale, most)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = np.rint(x / np.float32(scale))
        got = np.rint(found.ratio(x))
    inside = np.abs(wanted) <= most
    assert (got[inside] == wanted[inside]).all()
    assert (np.abs(got[~inside]) >= most).all() and (np.sign(got) == np.sign(wanted)).all()
    assert np.isnan(found.ratio(np.asarray([np.nan], np.float32))).all()


def test_the_fused_product_is_rounded_once():
    """f(x) = fl(x · inverse + fl(x · rest)), by fractions."""
    found = Reciprocal.of(SCALES[0], 255)
    assert found is not None
    x = np.concatenate([near_steps(SCALES[0], 20)[:-7], np.asarray([1e-3, 0.7], np.float32)])
    for value, got in zip(x.tolist(), found.ratio(x).tolist(), strict=True):
        low = Fraction(float(np.float32(value) * np.float32(found.rest)))
        assert Fraction(got) == nearest_float(Fraction(value) * Fraction(found.inverse) + low)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("units", [0, 1, 2, 3])
def test_a_sum_beside_the_middle_of_two_floats_is_rounded_once(units: int, sign: float):
    """The float64 that is nearest is the middle itself, which would be rounded to even."""
    middle = sign * (1 + (units + 0.5) * 2.0**-23)
    for low in (2.0**-80, -(2.0**-80), 2.0**-60, 0.0):
        found = _rounded_sum(np.asarray([middle]), np.asarray([low]))
        assert Fraction(float(found[0])) == nearest_float(Fraction(middle) + Fraction(low))


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("units", [0, 1, 2, 3])
def test_both_parts_of_a_sum_may_be_rounded(units: int, sign: float):
    """Of the lower one, what the sum loses lies beside the middle of two floats."""
    middle = sign * (1 + (units + 0.5) * 2.0**-23)
    for step, rest in product((2.0**-50, -(2.0**-50)), (2.0**-90, -(2.0**-90), 0.0)):
        found = _rounded_sum(np.asarray([middle + step]), np.asarray([rest - step]))
        assert Fraction(float(found[0])) == nearest_float(Fraction(middle) + Fraction(rest))


def nearest_float(exact: Fraction) -> Fraction:
    """The nearest float32 of a normal number, half to even."""
    if exact == 0:
        return exact
    exponent = 0
    while abs(exact) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(exact) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (exponent - 23)
    return round(exact / unit) * unit


@pytest.mark.parametrize("scale", [2.0**-60, 2.0**60, 2.0**-100, 1e-44, 2.0**100])
def test_scales_whose_inverse_leaves_the_normal_floats(scale: float):
    assert Reciprocal.of(scale, 127) is None


def test_scales_just_within():
    assert Reciprocal.of(float(np.nextafter(np.float32(2.0**-60), np.float32(1))), 127) is not None
    assert Reciprocal.of(float(np.nextafter(np.float32(2.0**60), np.float32(1))), 127) is not None


def test_a_sum_that_misses_a_step_is_refused():
    poor = Reciprocal(float(np.float32(1 / 3.0)), 1e-3)
    assert not poor._agrees(np.float32(3.0), 127)
    assert not Reciprocal(0.1, 1e-12)._agrees(np.float32(3.0), 127)


@pytest.mark.parametrize("scale", [*SCALES, 2.0**-90, 2.0**90])
def test_a_scale_as_whole_numbers(scale: float):
    found = WholeScale.of(scale)
    assert found is not None
    assert Fraction(found.significand) * Fraction(2) ** (found.exponent - 150) == Fraction(float(np.float32(scale)))
    assert 2**23 <= found.significand < 2**24
    assert found.inverse == min(2**54 // found.significand, 2**31 - 1)


def test_scales_too_large_or_small_for_whole_numbers():
    assert [WholeScale.of(2.0**e) is None for e in (-102, -101, -100, 98, 99, 100)] == [
        True,
        True,
        False,
        False,
        True,
        True,
    ]
