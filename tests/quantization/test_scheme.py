# SPDX-License-Identifier: Apache-2.0
"""Scales and zero points from ranges and weights, by fractions; moments of a layer's inputs, by loops over rows."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from mcugen.hir.types import DType, QuantParams
from mcugen.quantization.moments import Moments
from mcugen.quantization.rounding import (
    best_scales,
    choose_scales,
    fit_group_scales,
    fit_scales,
    quadratic_error,
    round_to_nearest,
    round_weights,
)
from mcugen.quantization.scheme import (
    Scheme,
    activation_params,
    activation_params_of_ranges,
    represented_range,
    usable_scales,
    weight_scales,
)

RANGES = [(-1.0, 1.0), (0.0, 6.0), (0.5, 3.0), (-4.0, -1.0), (-0.1, 12.7), (0.0, 0.0), (-1e-30, 1e-30)]


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_int8_codes_reach_a_range_and_have_nought(low: float, high: float):
    found = activation_params(low, high, DType.INT8, Scheme())
    scale = max((max(high, 0.0) - min(low, 0.0)) / 255, 2.0**-40)
    assert found.scale == (float(np.float32(scale)),)
    assert found.zero_point == max(-128, min(127, round(-128 - min(low, 0.0) / found.scale[0])))
    least, most = represented_range(found, DType.INT8)
    assert least <= low + scale / 2 and most >= high - scale / 2
    assert least == (-128 - found.zero_point) * found.scale[0] and most == (127 - found.zero_point) * found.scale[0]


@pytest.mark.parametrize(("low", "high"), RANGES)
@pytest.mark.parametrize(("dtype", "symmetric"), [(DType.INT16, False), (DType.INT16, True), (DType.INT8, True)])
def test_symmetric_codes_have_no_zero_point(low: float, high: float, dtype: DType, symmetric: bool):
    found = activation_params(low, high, dtype, Scheme(symmetric=symmetric))
    scale = max(max(-low, high, 0.0) / dtype.limits[1], 2.0**-40)
    assert found == QuantParams((float(np.float32(scale)),), 0)


def test_many_ranges_at_once():
    lows, highs = (np.asarray(ends) for ends in zip(*RANGES, strict=True))
    scales, zeros = activation_params_of_ranges(lows, highs, DType.INT8, Scheme())
    each = [activation_params(*r, DType.INT8, Scheme()) for r in RANGES]
    assert [(s,) for s in scales] == [q.scale for q in each] and zeros.tolist() == [q.zero_point for q in each]
    assert activation_params_of_ranges(lows, highs, DType.INT16, Scheme())[1].tolist() == [0.0] * len(RANGES)


def test_all_that_makes_results_better_is_done_by_default():
    scheme = Scheme()
    assert scheme.per_channel and scheme.equalize and scheme.correct_bias and scheme.optimize_rounding
    assert not (scheme.symmetric or scheme.power_of_two or scheme.integer_io or scheme.group or scheme.method)


def test_powers_of_two_clip_nothing():
    steps = np.asarray([0.3, 0.5, 0.51, 3.0, 0.0, 2.0**-41])
    assert usable_scales(steps, Scheme(power_of_two=True)).tolist() == [0.5, 0.5, 1.0, 4.0, 2.0**-40, 2.0**-40]
    assert usable_scales(steps, Scheme())[:2].tolist() == [float(np.float32(0.3)), 0.5]


@pytest.mark.parametrize(("dtype", "most"), [(DType.INT8, 127), (DType.INT4, 7), (DType.INT2, 1)])
@pytest.mark.parametrize("axis", [0, 1])
def test_scales_of_weights(axis: int, dtype: DType, most: int):
    weights = np.asarray([[0.5, -2.0, 0.25], [1e-6, 1e-6, -1e-6]], np.float32)
    rows = weights if axis == 0 else weights.T
    least = 2.0 * 2.0**-12
    wanted = [max(float(np.abs(row).max()), least) / most for row in rows]
    found = weight_scales(weights, axis, Scheme(), dtype)
    assert found.tolist() == [float(np.float32(w)) for w in wanted]
    assert weight_scales(weights, axis, Scheme(per_channel=False), dtype).tolist() == [float(np.float32(2.0 / most))]
    assert weight_scales(np.zeros((2, 3)), axis, Scheme(), dtype).tolist() == [2.0**-40] * len(rows)


# ---------------------------------------------------------------------------------------------------------- moments


def rows_of(number: int, samples: int = 60, offset: float = 0.3) -> list[np.ndarray]:
    """One group, four rows a sample, three inputs of a row."""
    random = np.random.default_rng(number)
    mix = random.normal(0, 1, (3, 3))
    return [random.normal(offset, 1, (1, 4, 3)) @ mix for _ in range(samples)]


def added(real: list[np.ndarray], seen: list[np.ndarray], crossed: bool = False) -> Moments:
    found = Moments(crossed)
    for x, y in zip(real, seen, strict=True):
        found.add(x, y)
    return found


def shrunk(gram: np.ndarray, count: int, least: float) -> np.ndarray:
    """Correlations as far as rows are seen, and a hundredth of the mean variance besides."""
    kept = count / (count + 3 / 3)
    result = np.where(np.eye(3) > 0, gram, gram * kept)
    return result + 0.01 * max(np.trace(gram), least) / 3 * np.eye(3)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize(("samples", "trust"), [(60, 1.0), (50, 1.0), (49, 48 / 49), (1, 0.0)])
def test_second_moments(samples: int, trust: float, centred: bool):
    real = rows_of(1, samples)
    seen = [np.round(x * 4) / 4 for x in real]
    found, rows = added(real, seen), np.concatenate([y[0] for y in seen])
    np.testing.assert_allclose(found.quantized_mean[0], rows.mean(0))
    np.testing.assert_allclose(found.float_mean[0], np.concatenate([x[0] for x in real]).mean(0))
    assert found.trust == trust
    square, mean = rows.T @ rows / len(rows), rows.mean(0)
    gram = square - trust * np.outer(mean, mean) * centred
    np.testing.assert_allclose(found.gram(centred)[0], shrunk(gram, len(rows), 1e-3 * np.trace(square)), rtol=1e-9)


def test_samples_that_hardly_differ_are_not_believed():
    alike = [np.full((1, 2, 3), 5.0) + 0.01 * x[:, :2] for x in rows_of(2)]
    assert added(alike, alike).trust == 1 - 1 / 60
    whole = Moments()
    whole.add(alike[0], alike[0], samples=60)
    assert whole.trust < 1
    np.testing.assert_allclose(added(alike, alike).gram(True)[0], added(alike, alike).gram(True)[0].T)
    constant = [np.full((1, 2, 3), 5.0)] * 60
    assert (np.linalg.eigvalsh(added(constant, constant).gram(True)[0]) > 0).all()


@pytest.mark.parametrize(("share", "trust"), [(0.0101, 1.0), (0.0099, 59 / 60)])
def test_samples_are_believed_whose_means_vary_by_a_hundredth(share: float, trust: float):
    """Of the square of the mean, which is 75 here."""
    size = 5 * share**0.5
    samples = [np.full((1, 2, 3), 5.0 + size * (-1) ** k) for k in range(60)]
    assert added(samples, samples).trust == pytest.approx(trust)


@pytest.mark.parametrize("centred", [False, True])
def test_compensation_is_the_best_linear_map(centred: bool):
    real = rows_of(3)
    seen = [0.8 * x + 0.1 * np.roll(x, 1, -1) + 0.2 for x in real]
    found = added(real, seen, crossed=True)
    x, y = (np.concatenate([each[0] for each in rows]) for rows in (real, seen))
    cross = (x - y).T @ y / len(x)
    if centred:
        cross = cross - np.outer((x - y).mean(0), y.mean(0))
    wanted = len(x) / (len(x) + 1) * cross @ np.linalg.inv(found.gram(centred)[0])
    np.testing.assert_allclose(found.compensation(centred)[0], wanted, rtol=1e-6, atol=1e-9)
    assert not added(real, [x * 0 for x in real], crossed=True).compensation(centred).any()


# --------------------------------------------------------------------------------------------------------- rounding


def problem(number: int, depth: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(number)
    rows = random.normal(0, 1, (20, depth)) @ random.normal(0, 1, (depth, depth))
    return random.normal(0, 1, (1, 3, depth)), np.full((1, 3), 0.4), (rows.T @ rows)[None]


def error_of(difference: np.ndarray, gram: np.ndarray) -> float:
    return float(sum(difference[i] * gram[i, j] * difference[j] for i, j in product(range(len(gram)), repeat=2)))


@pytest.mark.parametrize("number", range(12))
def test_codes_are_near_the_best_of_all(number: int):
    weights, scales, gram = problem(number)
    limits = (-2, 2)
    codes = round_weights(weights, scales, gram, limits)
    assert codes.dtype == np.int8 and codes.min() >= -2 and codes.max() <= 2
    plain = round_to_nearest(weights, scales, limits)
    assert plain.tolist() == np.clip(np.rint(weights / 0.4), -2, 2).tolist()
    errors = quadratic_error(weights, codes, scales, gram)[0]
    for output in range(3):
        every = [np.asarray(c) for c in product(range(-2, 3), repeat=4)]
        best = min(error_of(weights[0, output] - 0.4 * c, gram[0]) for c in every)
        mine = error_of(weights[0, output] - 0.4 * codes[0, output], gram[0])
        assert mine == pytest.approx(errors[output]) and best <= mine + 1e-9
        assert mine <= error_of(weights[0, output] - 0.4 * plain[0, output], gram[0]) + 1e-9
        moves = [codes[0, output] + by * np.eye(4)[k] for k in range(4) for by in (-1, 1)]
        inside = [c for c in moves if np.abs(c).max() <= 2]
        assert all(error_of(weights[0, output] - 0.4 * c, gram[0]) >= mine - 1e-9 for c in inside)


@pytest.mark.parametrize("number", range(4))
def test_scales_of_codes_leave_least(number: int):
    weights, scales, gram = problem(number)
    codes = round_to_nearest(weights, scales, (-2, 2))
    fitted = fit_scales(weights, codes, scales, gram)
    least = quadratic_error(weights, codes, fitted, gram)
    for by in (0.99, 1.01):
        assert (quadratic_error(weights, codes, fitted * by, gram) >= least).all()
    assert fit_scales(weights, codes * 0, scales, gram).tolist() == np.float32(scales).astype(float).tolist()
    assert fit_scales(weights, -codes, scales, gram).tolist() == np.float32(scales).astype(float).tolist()


@pytest.mark.parametrize(("limits", "shares"), [((-2, 1), range(20, 3, -1)), ((-8, 7), range(20, 9, -1))])
def test_the_share_that_clips_best_is_found(limits: tuple[int, int], shares: range):
    weights, _, gram = problem(5)
    scales = np.abs(weights).max(-1) / limits[1]
    found = best_scales(weights, scales, gram, limits)
    tried = [np.float32(scales * (share / 20)).astype(np.float64) for share in shares]
    errors = [quadratic_error(weights, round_to_nearest(weights, s, limits), s, gram) for s in tried]
    np.testing.assert_array_equal(
        quadratic_error(weights, round_to_nearest(weights, found, limits), found, gram), np.min(errors, 0)
    )
    codes, best = choose_scales(tried, weights, gram, limits)
    each = [quadratic_error(weights, round_weights(weights, s, gram, limits), s, gram) for s in tried]
    np.testing.assert_allclose(quadratic_error(weights, codes, best, gram), np.min(each, 0))


def test_scales_of_groups_of_inputs():
    weights, _, gram = problem(7, depth=6)
    start = np.full((3, 3), 0.3)
    codes = round_to_nearest(weights, np.full((1, 3), 0.3), (-7, 7))[0].astype(float)

    def error(scales: np.ndarray) -> np.ndarray:
        return quadratic_error(weights[0][None], codes[None], np.repeat(scales, 2, 1)[None], gram)[0]

    found = fit_group_scales(weights[0], codes, start, gram[0], 2)
    assert (error(found) <= error(start)).all() and (found > 0).all()
    for group, by in product(range(2, 3), (0.98, 1.02)):  # the last one was fitted last
        moved = found.copy()
        moved[:, group] *= by
        assert (error(moved) >= error(found) - 1e-9).all()
