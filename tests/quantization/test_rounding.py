# SPDX-License-Identifier: Apache-2.0
"""Rounding by the error on data: codes are valid, errors small, groups independent."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mcugen.hir.types import Array
from mcugen.quantization.moments import ASSUMED_VARIANCE, Moments
from mcugen.quantization.rounding import quadratic_error, round_to_nearest, round_weights


def layer(seed: int, groups: int, outputs: int, depth: int) -> tuple[Array, Array, Array]:
    """Weights, scales, and the Gram matrices of inputs that have a few common causes."""
    random = np.random.default_rng(seed)
    weights = random.standard_normal((groups, outputs, depth)).astype(np.float32)
    scales = np.abs(weights).max(-1) / 127
    causes = random.standard_normal((groups, 500, max(depth // 3, 1)))
    rows = causes @ random.standard_normal((groups, max(depth // 3, 1), depth))
    rows += 0.1 * random.standard_normal(rows.shape)
    return weights, scales, rows.swapaxes(1, 2) @ rows / 500


@pytest.mark.parametrize(("groups", "outputs", "depth"), [(1, 16, 40), (1, 1, 1), (8, 1, 9), (3, 4, 12), (1, 5, 300)])
def test_never_worse_than_nearest(groups: int, outputs: int, depth: int) -> None:
    weights, scales, gram = layer(depth, groups, outputs, depth)
    codes = round_weights(weights, scales, gram)
    assert codes.dtype == np.int8 and codes.shape == weights.shape and np.abs(codes.astype(int)).max() <= 127
    found = quadratic_error(weights, codes, scales, gram)
    plain = quadratic_error(weights, round_to_nearest(weights, scales), scales, gram)
    assert (found <= plain * (1 + 1e-9)).all()
    if depth >= 9:
        assert found.sum() < 0.7 * plain.sum()


def test_uncorrelated_inputs_are_rounded_to_nearest() -> None:
    weights, scales, gram = layer(1, 2, 6, 20)
    diagonal = gram * np.eye(20)
    np.testing.assert_array_equal(round_weights(weights, scales, diagonal), round_to_nearest(weights, scales))


def test_as_good_as_the_best_choice_of_up_and_down() -> None:
    """By trying them all."""
    weights, scales, gram = layer(3, 1, 30, 8)
    floor = np.floor(weights / scales[..., None])
    choices = [np.clip(floor + up, -127, 127) for up in itertools.product((0, 1), repeat=8)]
    best = np.min([quadratic_error(weights, codes, scales, gram) for codes in choices], 0)
    found = quadratic_error(weights, round_weights(weights, scales, gram), scales, gram)
    assert found.sum() < 1.05 * best.sum()


def test_groups_are_independent() -> None:
    weights, scales, gram = layer(4, 3, 4, 12)
    together = round_weights(weights, scales, gram)
    alone = [round_weights(*(a[g : g + 1] for a in (weights, scales, gram))) for g in range(3)]
    np.testing.assert_array_equal(together, np.concatenate(alone))


def test_inputs_that_were_never_seen() -> None:
    """G is 0 for all or some inputs."""
    weights, scales, gram = layer(5, 2, 4, 10)
    gram[0] = 0
    gram[1, :3] = gram[1, :, :3] = 0
    codes = round_weights(weights, scales, gram)
    np.testing.assert_array_equal(codes[0], round_to_nearest(weights, scales)[0])
    np.testing.assert_array_equal(codes[1, :, :3], round_to_nearest(weights, scales)[1, :, :3])


def test_equal_inputs_give_equal_bytes() -> None:
    assert round_weights(*layer(6, 1, 8, 60)).tobytes() == round_weights(*layer(6, 1, 8, 60)).tobytes()


def test_moments() -> None:
    random = np.random.default_rng(7)
    samples = [(x, x + 0.1) for x in random.standard_normal((5, 2, 250, 3)) + 1]
    moments = Moments()
    for real, seen in samples:
        moments.add(real, seen)
    real, seen = (np.concatenate(rows, 1) for rows in zip(*samples, strict=True))
    np.testing.assert_allclose(moments.float_mean, real.mean(1))
    np.testing.assert_allclose(moments.quantized_mean, seen.mean(1))
    for group in range(2):
        mean = seen[group].mean(0)
        centred = np.cov(seen[group].T, bias=True) + np.outer(mean, mean) / len(samples)  # what five do not tell
        np.testing.assert_allclose(moments.gram(True)[group], centred, rtol=0.02, atol=1e-9)
        np.testing.assert_allclose(moments.gram(False)[group], seen[group].T @ seen[group] / 1250, rtol=0.02)


def test_one_sample_centres_nothing() -> None:
    """Its mean is no mean of others: a bias by it would suit this sample alone."""
    rows = np.random.default_rng(11).standard_normal((1, 1, 6)) + 3
    moments = Moments()
    moments.add(rows, rows)
    assert moments.trust == 0
    np.testing.assert_array_equal(moments.gram(True), moments.gram(False))
    assert np.linalg.eigvalsh(moments.gram(True)[0]).min() > 0


def test_chance_correlations_of_few_rows_are_distrusted() -> None:
    moments = Moments()
    rows = np.random.default_rng(8).standard_normal((1, 4, 100))
    moments.add(rows, rows)
    gram, exact = moments.gram(False)[0], rows[0].T @ rows[0] / 4
    np.testing.assert_allclose(np.diag(gram), np.diag(exact) + ASSUMED_VARIANCE * np.diag(exact).mean())
    assert 0 < np.abs(gram - np.diag(np.diag(gram))).sum() < 0.5 * np.abs(exact - np.diag(np.diag(exact))).sum()


def test_inputs_that_were_constant_may_change() -> None:
    """Else their weights could take any error of the others."""
    rows = np.random.default_rng(9).standard_normal((1, 400, 30))
    rows[:, :, 10:] = 1.0
    moments = Moments()
    moments.add(rows, rows)
    weights, scales, _ = layer(10, 1, 20, 30)
    codes = round_weights(weights, scales, moments.gram(True))
    assert np.abs(codes - round_to_nearest(weights, scales).astype(int))[..., 10:].max() <= 1


def test_weights_make_good_what_layers_before_have_lost() -> None:
    """By what a layer gets, compensated weights come as near to its real outputs as least squares do."""
    random = np.random.default_rng(5)
    weights, real = random.standard_normal((4, 12)), random.standard_normal((1, 4000, 12))
    seen = real @ (np.eye(12) + 0.2 * random.standard_normal((12, 12))) + 0.05 * random.standard_normal(real.shape)
    moments = Moments(crossed=True)
    for rows in np.split(np.concatenate([real, seen]), 80, 1):
        moments.add(rows[:1], rows[1:])
    wanted = real[0] @ weights.T
    compensated = weights + weights @ moments.compensation(centred=False)[0]
    best = np.linalg.lstsq(seen[0], wanted, rcond=None)[0].T
    plain, found, least = (np.square(seen[0] @ w.T - wanted).sum() for w in (weights, compensated, best))
    assert found < 0.1 * plain and found < 1.2 * least
