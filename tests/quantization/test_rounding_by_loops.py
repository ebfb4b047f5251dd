# SPDX-License-Identifier: Apache-2.0
"""Rounding of weights against loops over single weights, and against the definition of its error."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mcugen.hir.types import Array
from mcugen.quantization import rounding
from mcugen.quantization.rounding import (
    best_scales,
    choose_scales,
    fit_group_scales,
    fit_scales,
    quadratic_error,
    round_to_nearest,
    round_weights,
)

Limits = tuple[int, int]


def cost(weights: Array, decoded: Array, gram: Array) -> float:
    """(w − ŵ)ᵀ G (w − ŵ) of one output, element by element."""
    difference = [float(w) - float(d) for w, d in zip(weights, decoded, strict=True)]
    pairs = itertools.product(range(len(difference)), repeat=2)
    return sum(difference[i] * float(gram[i, j]) * difference[j] for i, j in pairs)


def clamped(value: float, limits: Limits) -> int:
    return max(limits[0], min(limits[1], round(value)))


def case(seed: int, groups: int, outputs: int, depth: int) -> tuple[Array, Array, Array]:
    """Weights with heavy tails, scales that clip none by codes up to 7, and Gram matrices of few small causes."""
    random = np.random.default_rng(seed)
    weights = random.standard_t(2, (groups, outputs, depth))
    rows = random.standard_normal((groups, 40, 3)) @ random.standard_normal((groups, 3, depth))
    rows += 0.3 * random.standard_normal(rows.shape)
    return weights, np.abs(weights).max(-1) / 7, rows.swapaxes(1, 2) @ rows / 4000


def outputs_of(weights: Array) -> list[tuple[int, int]]:
    return list(np.ndindex(weights.shape[:2]))


@pytest.mark.parametrize("limits", [(-127, 127), (-8, 7), (-2, 1)])
def test_nearest_codes(limits: Limits) -> None:
    weights, scales, _ = case(0, 2, 3, 20)
    found = round_to_nearest(weights, scales, limits)
    assert found.dtype == np.int8
    for index, code in np.ndenumerate(found):
        assert code == clamped(weights[index] / scales[index[:2]], limits)


def test_nearest_codes_are_bytes_by_default() -> None:
    assert round_to_nearest(np.array([[[500.0, -500.0, 1.5, 2.5]]]), np.ones((1, 1))).tolist() == [[[127, -127, 2, 2]]]


def test_the_quadratic_error_is_its_definition() -> None:
    weights, scales, gram = case(1, 2, 3, 7)
    codes = round_to_nearest(weights, scales, (-8, 7))
    steps = scales[..., None] * np.linspace(0.5, 1.5, 7)
    for given, by_weight in ((scales, np.repeat(scales[..., None], 7, 2)), (steps, steps)):
        found = quadratic_error(weights, codes, given, gram)
        for g, o in outputs_of(weights):
            assert found[g, o] == pytest.approx(cost(weights[g, o], by_weight[g, o] * codes[g, o], gram[g]))


# ------------------------------------------------------------------------------------------------------ scales


@pytest.mark.parametrize(("limits", "least_share"), [((-8, 7), 10), ((-2, 2), 10), ((-2, 1), 4), ((-1, 1), 4)])
def test_scales_that_clip_are_the_best_of_twentieths(limits: Limits, least_share: int) -> None:
    """Of four codes and less down to a fifth, else down to a half of the scale that clips nothing."""
    chosen = set()
    for seed in range(8):
        weights, scales, gram = case(seed, 2, 6, 30)
        scales = scales * 7 / limits[1]
        if seed % 2:
            weights[..., 0] *= 10  # the best share is low, and its own weight does not count
            gram[:, 0] = gram[:, :, 0] = 0
        found = best_scales(weights, scales, gram, limits)
        for g, o in outputs_of(weights):
            tried = [float(np.float32(scales[g, o] * (k / 20))) for k in range(20, least_share - 1, -1)]
            errors = [cost(weights[g, o], [s * clamped(w / s, limits) for w in weights[g, o]], gram[g]) for s in tried]
            least = int(np.argmin(errors))
            assert found[g, o] == tried[least]
            chosen.add(20 - least)
    assert least_share in chosen and len(chosen) > 3


def test_the_scale_that_clips_nothing_stays_where_others_are_no_better() -> None:
    """Of equal errors, here none, the widest scale is kept."""
    weights = np.array([[[7.0, 3.5, 0.0]]])
    assert best_scales(weights, np.array([[1.0]]), np.zeros((1, 3, 3)), (-8, 7)).tolist() == [[1.0]]


def test_of_several_scales_each_output_gets_its_best() -> None:
    weights, scales, gram = case(4, 2, 9, 12)
    tried = [scales * share for share in (1.0, 0.8, 1.2, 0.8)]
    codes, best = choose_scales(tried, weights, gram, (-8, 7))
    rounded = [round_weights(weights, each, gram, (-8, 7)) for each in tried]
    chosen = set()
    for g, o in outputs_of(weights):
        errors = [cost(weights[g, o], t[g, o] * r[g, o], gram[g]) for t, r in zip(tried, rounded, strict=True)]
        first = int(np.argmin(np.asarray(errors) - 1e-9 * np.arange(4)[::-1]))
        assert best[g, o] == tried[first][g, o] and codes[g, o].tolist() == rounded[first][g, o].tolist()
        chosen.add(first)
    assert chosen == {0, 1, 2}
    alone = choose_scales(tried[:1], weights, gram, (-8, 7))
    assert (alone[0] == rounded[0]).all() and (alone[1] == scales).all()
    assert (choose_scales(tried, weights, 0 * gram, (-8, 7))[1] == scales).all()  # of equal errors the first


def vertex(error_at: list[float]) -> float | None:
    """Where a parabola through its values at −1, 0 and 1 is least; None if it is flat."""
    curve = (error_at[2] + error_at[0]) / 2 - error_at[1]
    return (error_at[0] - error_at[2]) / 4 / curve if abs(curve) > 1e-12 else None


def test_fitted_scales_have_the_least_error() -> None:
    weights, scales, gram = case(5, 2, 4, 9)
    codes = round_to_nearest(weights, scales * 0.7, (-8, 7)).astype(float)
    codes[0, 1] = 0  # nothing to fit
    codes[1, 2] *= -1  # fits best by a negative scale
    found = fit_scales(weights, codes, scales, gram)
    for g, o in outputs_of(weights):
        best = vertex([cost(weights[g, o], s * codes[g, o], gram[g]) for s in (-1, 0, 1)])
        wanted = scales[g, o] if (g, o) in ((0, 1), (1, 2)) else best
        assert found[g, o] == pytest.approx(wanted, rel=1e-6) and found[g, o] == np.float32(found[g, o])


@pytest.mark.parametrize(("depth", "size"), [(12, 4), (10, 4), (3, 5), (6, 1)])
def test_scales_of_groups_are_fitted_one_after_the_other_twice(depth: int, size: int) -> None:
    weights, _, gram = (a[0] for a in case(6, 1, 5, depth))
    count = -(-depth // size)
    scales = np.abs(np.random.default_rng(7).normal(0.4, 0.1, (5, count)))
    codes = np.clip(np.rint(weights / 0.3), -8, 7)
    codes[1, :size] = 0  # nothing to fit
    codes[2, -1:] *= -1
    codes[3] *= -1  # negative scales would fit, and are none
    found = fit_group_scales(weights, codes, scales, gram, size)
    for o in range(5):
        wanted = scales[o].tolist()
        for _, g in itertools.product(range(2), range(count)):

            def error(scale: float, o: int = o, g: int = g, fitted: list[float] = wanted) -> float:
                each = [scale if k // size == g else fitted[k // size] for k in range(depth)]
                return cost(weights[o], np.multiply(each, codes[o]), gram)

            best = vertex([error(s) for s in (-1, 0, 1)])
            if best is not None and best > 0:
                wanted[g] = best
        assert found[o].tolist() == pytest.approx(wanted, rel=1e-5)
        assert (found[o] == found[o].astype(np.float32)).all()
    assert (found[3] == scales[3].astype(np.float32)).any()


def test_codes_that_tell_nothing_of_the_weights_keep_their_scales() -> None:
    """The best scale would be 0: codes of inputs without weights, or of none that weights have a part in."""
    gram, scales = np.eye(2), np.array([[0.5]])
    for weights, codes in (([0.0, 0.0], [1.0, 1.0]), ([1.0, 0.0], [0.0, 1.0])):
        by_group = fit_group_scales(np.array([weights]), np.array([codes]), scales, gram, 2)
        assert by_group.tolist() == [[0.5]]
        assert fit_scales(np.array([[weights]]), np.array([[codes]]), scales, gram[None]).tolist() == [[0.5]]


# ----------------------------------------------------------------------------------------------- least error


def by_feedback(weights: Array, steps: Array, gram: Array, limits: Limits) -> list[int]:
    """Codes input by input, those of most energy first: each of what is best once all before it are fixed.

    What is best solves the equations of least damped error by the inputs that are left, for real numbers.
    """
    mean = float(np.diag(gram).mean())
    damped = gram + (0.01 * mean if mean > 0 else 1.0) * np.eye(len(gram))
    order = sorted(range(len(gram)), key=lambda k: -gram[k, k])
    codes = [0] * len(gram)
    for place, k in enumerate(order):
        free, fixed = order[place:], order[:place]
        off = np.array([weights[i] - codes[i] * steps[i] for i in fixed])
        moved = np.linalg.solve(damped[np.ix_(free, free)], damped[np.ix_(free, fixed)] @ off) if fixed else [0.0]
        codes[k] = clamped((weights[k] + moved[0]) / steps[k], limits)
    return codes


def descended(weights: Array, start: list[int], steps: Array, gram: Array, limits: Limits, sweeps: int) -> list[int]:
    """Codes moved one after the other to the least error, in so many rounds at most."""
    codes = list(start)
    for _ in range(sweeps):
        before = list(codes)
        for k in range(len(codes)):
            if gram[k, k] > 0:
                left = sum(float(gram[k, i]) * (weights[i] - codes[i] * steps[i]) for i in range(len(codes)))
                codes[k] = clamped(codes[k] + left / (gram[k, k] * steps[k]), limits)
        if codes == before:
            break
    return codes


@pytest.mark.parametrize("limits", [(-127, 127), (-8, 7), (-2, 1)])
@pytest.mark.parametrize(("groups", "outputs", "depth"), [(1, 6, 6), (3, 2, 9), (1, 3, 70)])
@pytest.mark.parametrize("by_weight", [False, True])
def test_codes_are_those_of_the_better_start(
    groups: int, outputs: int, depth: int, limits: Limits, by_weight: bool
) -> None:
    weights, scales, gram = case(depth, groups, outputs, depth)
    scales = scales * 7 / limits[1] * 0.8
    given = scales[..., None] * np.random.default_rng(3).uniform(0.3, 1, (1, 1, depth)) if by_weight else scales
    steps = given if by_weight else np.repeat(scales[..., None], depth, 2)
    found = round_weights(weights, given, gram, limits)
    assert found.dtype == np.int8
    better = set()
    for g, o in outputs_of(weights):
        w, s, gr = weights[g, o], steps[g, o], gram[g]
        starts = [[clamped(a / b, limits) for a, b in zip(w, s, strict=True)], by_feedback(w, s, gr, limits)]
        ends = [descended(w, start, s, gr, limits, rounding.MAX_SWEEPS) for start in starts]
        errors = [cost(w, np.multiply(s, end), gr) for end in ends]
        better.add(errors[1] < errors[0])
        assert found[g, o].tolist() == ends[int(errors[1] < errors[0])]
    assert better == {True, False} or outputs < 6


def test_descent_ends_after_ten_sweeps() -> None:
    """Two inputs that are nearly one: each sweep carries a little from the one to the other."""
    gram = np.array([[[1.0, 0.98], [0.98, 1.0]]])
    weights, start, ones = np.array([[[120.0, -120.0]]]), np.zeros((1, 1, 2)), np.ones((1, 1, 2))
    found = rounding._descend(weights, start, ones, gram, (-127, 127))
    wanted = [descended(weights[0, 0], [0, 0], ones[0, 0], gram[0], (-127, 127), n) for n in (9, 10, 11)]
    assert found[0, 0].tolist() == wanted[1]
    assert wanted[0] != wanted[1] != wanted[2]


def test_inputs_that_were_never_seen_are_rounded_to_nearest() -> None:
    """Where nothing at all was seen, and beside inputs that were."""
    weights, scales, gram = case(9, 2, 3, 8)
    gram[0] = 0
    gram[1, :2] = gram[1, :, :2] = 0
    found, plain = round_weights(weights, scales, gram, (-8, 7)), round_to_nearest(weights, scales, (-8, 7))
    assert (found[0] == plain[0]).all() and (found[1, :, :2] == plain[1, :, :2]).all()
