# SPDX-License-Identifier: Apache-2.0
"""Methods of ranges against loops over bins and samples, and choices by noises that are given."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from mcugen.hir.types import DType, QuantParams
from mcugen.quantization import ranges
from mcugen.quantization.profile import TensorProfile
from mcugen.quantization.ranges import (
    RangeChoice,
    candidate_ranges,
    expected_noise,
    round_outward,
)
from mcugen.quantization.scheme import Scheme

INT8 = Scheme()
Range = tuple[float, float]


def profile(counts: Sequence[int], low: float, high: float, samples: int = 3) -> TensorProfile:
    """All samples have the extremes of the histogram."""
    return TensorProfile((low,) * samples, (high,) * samples, tuple(counts), ())


def bins(tensor: TensorProfile) -> list[tuple[float, float, int]]:
    """Ends of each bin and its count."""
    width = (tensor.high - tensor.low) / len(tensor.histogram)
    return [(tensor.low + k * width, tensor.low + (k + 1) * width, n) for k, n in enumerate(tensor.histogram)]


def heavy(seed: int, count: int = 256, zeros: int = 0, low: float = -7.0, high: float = 5.0) -> TensorProfile:
    """A histogram with heavy tails, empty bins, and a peak at 0."""
    random = np.random.default_rng(seed)
    data = random.standard_t(2, 5000).clip(low, high)
    counts = np.histogram(np.concatenate([data, np.zeros(zeros)]), count, (low, high))[0]
    return profile(counts.tolist(), low, high)


def int8_params(low: float, high: float) -> tuple[float, int]:
    """Scale and zero point for [low, high], by the definition."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = float(np.float32(max((high - low) / 255, 2.0**-40)))
    return scale, max(-128, min(127, round(-128 - low / scale)))


# ------------------------------------------------------------------------------------------------- expected noise


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("scale", "zero_point"), [(0.08, 3), (0.02, -128), (0.047, 100), (0.0468, 0), (1.7, 0)])
def test_the_noise_of_a_histogram(seed: int, scale: float, zero_point: int) -> None:
    """Bin by bin: clipping, and rounding of the middle; of steps finer than bins a twelfth of their square."""
    tensor = heavy(seed)
    width = bins(tensor)[0][1] - bins(tensor)[0][0]
    total = noise = 0.0
    for start, end, n in bins(tensor):
        middle = (start + end) / 2
        inside = max((-128 - zero_point) * scale, min((127 - zero_point) * scale, middle))
        rounding = scale**2 / 12 if scale <= width else (round(inside / scale) * scale - inside) ** 2
        noise += n * ((middle - inside) ** 2 + rounding)
        total += n
    params = QuantParams((scale,), zero_point)
    assert expected_noise(tensor, params, DType.INT8) == pytest.approx(noise / total, rel=1e-9)


def test_noise_of_many_scales_is_that_of_each() -> None:
    tensor = heavy(5)
    for count in (1, ranges.NOISE_BATCH_RANGES, ranges.NOISE_BATCH_RANGES + 1, 2 * ranges.NOISE_BATCH_RANGES + 3):
        scales, zeros = np.linspace(0.01, 0.3, count), np.linspace(-128, 100, count).round()
        found = ranges._noises(tensor, scales, zeros, DType.INT8)
        each = [
            expected_noise(tensor, QuantParams((float(s),), int(z)), DType.INT8)
            for s, z in zip(scales, zeros, strict=True)
        ]
        assert found.tolist() == each


def test_each_fold_is_judged_by_the_one_before() -> None:
    parts = [heavy(1), heavy(2), heavy(3)]
    suggested = [QuantParams((scale,), 0) for scale in (0.05, 0.07, 0.1)]
    pairs = [(parts[0], suggested[2]), (parts[1], suggested[0]), (parts[2], suggested[1])]
    wanted = sum(expected_noise(part, params, DType.INT8) for part, params in pairs)
    assert ranges._expected_noise(suggested, parts, DType.INT8) == pytest.approx(wanted)


# ------------------------------------------------------------------------------------------------- methods


@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_moving_average(count: int) -> None:
    random = np.random.default_rng(count)
    lows, highs = -random.uniform(1, 2, count), random.uniform(1, 2, count)
    wanted = []
    for ends in (lows, highs):
        average = ends[0]
        for end in ends[1:]:
            average = 0.99 * average + 0.01 * end
        wanted.append(average)
    tensor = TensorProfile(tuple(lows.tolist()), tuple(highs.tolist()), (1,) * 8, ())
    assert candidate_ranges(tensor, DType.INT8, INT8)["moving_average"] == pytest.approx(tuple(wanted), rel=1e-12)


PERCENTS = {"percentile": 99.99, "percentile99.9": 99.9, "percentile99.5": 99.5}


@pytest.mark.parametrize("method", PERCENTS)
@pytest.mark.parametrize("tail", [0, 1, 2, 3, 30])
def test_percentiles_drop_outer_bins_of_so_few_elements(method: str, tail: int) -> None:
    """Whole bins, from both ends, whose elements are at most half of what may be lost."""
    tensor = profile([0, tail, 1, 2, 40, 10000, 10000, 9, 3, 1, tail, 0], -6.0, 6.0)
    total, lost = sum(tensor.histogram), (1 - PERCENTS[method] / 100) / 2
    low, high = -6.0, 6.0
    for direction in (1, -1):
        dropped = 0
        for start, end, n in bins(tensor)[::direction]:
            dropped += n
            if dropped > lost * total * (1 + 1e-9):
                break
            low, high = (end, high) if direction == 1 else (low, start)
    assert candidate_ranges(tensor, DType.INT8, INT8)[method] == pytest.approx((low, high), abs=1e-9)


def peak_cut(tensor: TensorProfile) -> list[float]:
    """Counts, of which that of the bin of 0 is at most that of the greater one beside it."""
    counts = [float(n) for n in tensor.histogram]
    for k, (start, end, _) in enumerate(bins(tensor)):
        if start <= 1e-12 and end > 1e-12:
            beside = [counts[i] for i in (k - 1, k + 1) if 0 <= i < len(counts)]
            counts[k] = min(counts[k], max(beside))
    return counts


@pytest.mark.parametrize(
    "tensor",
    [
        profile([5, 900, 7, 3], -1.5, 2.5),
        profile([9, 4, 900, 6, 3], -2.0, 3.0),
        profile([900, 6, 3], 0.0, 3.0),
        profile([2, 5, 900], -2.5, 0.5),
        profile([4, 3, 6], -4.0, -1.0),
        profile([4, 3, 6], 1.0, 4.0),
        profile([5, 3, 7], -1.5, 1.5),
        profile([4, 6], -2.0, 0.0),
    ],
)
def test_the_peak_at_zero_is_cut(tensor: TensorProfile) -> None:
    before = tensor.histogram
    assert ranges._without_zeros(tensor).tolist() == peak_cut(tensor)
    assert tensor.counts.tolist() == list(before)


def divergence(counts: Sequence[float], start: int, stop: int, levels: int) -> float:
    """Kullback-Leibler, bin by bin: each level has the mean of its bins that are not empty after clipping."""
    inner = list(counts[start:stop])
    if not any(inner):
        return math.inf
    clipped = list(inner)
    clipped[0] += sum(counts[:start])
    clipped[-1] += sum(counts[stop:])
    length, coded = len(inner), [0.0] * len(inner)
    for level in range(levels):
        members = range(level * length // levels, (level + 1) * length // levels)
        filled = [i for i in members if clipped[i] > 0]
        for i in filled:
            coded[i] = sum(inner[j] for j in members) / len(filled)
    found = 0.0
    for p, q in zip(clipped, coded, strict=True):
        if p > 0:
            share = p / sum(clipped)
            found += share * math.log(share / (0.9999 * q / sum(coded) + 0.0001 / length))
    return found


@pytest.mark.parametrize(
    ("start", "stop", "levels"), [(0, 256, 100), (30, 200, 64), (100, 180, 7), (1, 255, 128), (0, 10, 3)]
)
def test_the_divergence_of_a_clipped_histogram(start: int, stop: int, levels: int) -> None:
    counts = np.asarray(heavy(6).histogram, float)
    counts[40:60] = 0
    assert ranges._divergence(counts, start, stop, levels) == pytest.approx(divergence(counts, start, stop, levels))
    assert ranges._divergence(0 * counts, start, stop, levels) == math.inf


def entropy(tensor: TensorProfile) -> Range:
    """The clipping at ±t of least divergence, for t from the largest magnitude down by sixths of octaves."""
    counts, edges = peak_cut(tensor), [b[0] for b in bins(tensor)] + [tensor.high]
    best, least = (tensor.low, tensor.high), math.inf
    for k in range(43):
        reach = 2.0 ** (-k / 6) * max(-tensor.low, tensor.high)
        start = max(i for i, edge in enumerate(edges) if edge <= max(-reach, tensor.low) + 1e-12)
        stop = min(i for i, edge in enumerate(edges) if edge >= min(reach, tensor.high) - 1e-12)
        scale, _ = int8_params(edges[start], edges[stop])
        levels = round((edges[stop] - edges[start]) / scale) + 1
        if stop - start <= levels:
            break
        found = divergence(counts, start, stop, levels)
        if found < least - 1e-12:
            best, least = (edges[start], edges[stop]), found
    return min(best[0], 0.0), max(best[1], 0.0)


@pytest.mark.parametrize(
    "tensor",
    [
        heavy(7, 2048),
        heavy(8, 2048, low=-60.0, high=50.0),
        heavy(9, 2048, zeros=3000, low=-20.0, high=90.0),
        heavy(10, 2048, zeros=3000, low=0.0, high=40.0),
        heavy(11, 2048, low=-40.0, high=-0.5),
        heavy(12, 300),
        heavy(13, 256),
        heavy(14, 257),
        profile([1, *[0] * 1022, 1000, *[0] * 1023, 1], -8.0, 8.0),
    ],
)
def test_the_range_of_least_divergence(tensor: TensorProfile) -> None:
    found = candidate_ranges(tensor, DType.INT8, INT8)["entropy"]
    assert found == pytest.approx(entropy(tensor), abs=1e-9)


def least_squares(tensor: TensorProfile) -> Range:
    """Both ends by a grid of nine points each, then by grids a quarter as wide around the best point, five in all."""
    low, high = min(tensor.low, 0.0), max(tensor.high, 0.0)
    best, centre, reach = (1.0, 1.0), (0.5, 0.5), 0.5

    def noise(shares: tuple[float, float]) -> float:
        scale, zero = int8_params(low * shares[0], high * shares[1])
        return expected_noise(tensor, QuantParams((scale,), zero), DType.INT8)

    for _ in range(5):
        grids = [sorted({min(1.0, max(0.0, c + reach * k / 4)) for k in range(-4, 5)}) for c in centre]
        axes = [grid if end else [1.0] for grid, end in zip(grids, (low, high), strict=True)]
        best = min([best, *itertools.product(*axes)], key=noise)
        centre, reach = best, reach / 4
    return low * best[0], high * best[1]


@pytest.mark.parametrize(
    "tensor", [heavy(15), heavy(16, low=0.0, high=30.0), heavy(17, low=-30.0, high=-0.5), heavy(18, 2048)]
)
def test_the_range_of_least_squares(tensor: TensorProfile) -> None:
    found = candidate_ranges(tensor, DType.INT8, INT8)["mse"]
    assert found == pytest.approx(least_squares(tensor), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("end", [1.0, 3.0, -0.3, 2.3223814694210887, 1e-5, -255.5, 1 + 2.0**-11, 1 - 2.0**-12])
def test_steady_ends_have_eleven_bits_of_which_the_last_is_set(end: float) -> None:
    """But for those that have so few bits anyhow, but for rounding: a hundredth of a unit."""
    unit = 2.0 ** (math.floor(math.log2(abs(end))) - 10)
    steps = abs(end) / unit
    up = math.ceil(steps - 0.01)
    wanted = up if up - steps <= 0.01 else up + (up % 2 == 0)
    assert abs(round_outward(end)) == wanted * unit and math.copysign(1, round_outward(end)) == math.copysign(1, end)


# ------------------------------------------------------------------------------------------------- choices


@pytest.mark.parametrize(("noise", "sqnr"), [(0.01, 20.0), (2.0, -3.0103), (0.0, None), (math.inf, -math.inf)])
def test_noise_in_decibels(noise: float, sqnr: float | None) -> None:
    assert ranges._sqnr_db(noise) == (sqnr if sqnr is None else pytest.approx(sqnr, abs=1e-4))


@pytest.mark.parametrize(
    ("measured", "expected", "widths", "least", "widest"),
    [
        ([1.0, 1.05, 1.2], [3.0, 2.0, 1.0], [1, 2, 3], 1, 1),
        ([1.0, 1.1, 1.1001], [3.0, 2.0, 1.0], [1, 2, 3], 1, 1),
        ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [2, 2, 2], 0, 0),
        ([1.0, 0.5, 0.52], [1.0, 2.0, 1.5], [9, 2, 1], 2, 1),
        ([0.0, 0.0, 0.1], [2.0, 1.0, 0.0], [2, 1, 9], 1, 0),
        ([math.inf, 2.0], [0.0, 9.0], [9, 1], 1, 1),
    ],
)
def test_what_measures_about_the_least_noise(
    measured: list[float], expected: list[float], widths: list[float], least: int, widest: int
) -> None:
    choices = [RangeChoice("minmax", -width / 3, width * 2 / 3) for width in widths]
    assert ranges._least_noisy(measured, expected) == least
    assert ranges._widest(measured, choices) == widest


def test_the_widest_is_that_of_both_ends() -> None:
    choices = [RangeChoice("minmax", -2.0, 2.0), RangeChoice("mse", -4.0, 1.0), RangeChoice("entropy", 0.0, 3.0)]
    assert ranges._widest([1.0, 1.0, 1.0], choices) == 1


@pytest.mark.parametrize(
    ("samples", "margin"), [(1, 1.0), (2, 0.5), (4, 0.25), (5, 0.04), (9, 1 / 81), (10, 0.0), (500, 0.0)]
)
def test_margins(samples: int, margin: float) -> None:
    assert ranges._margin(samples) == pytest.approx(margin)


@pytest.mark.parametrize(
    ("high", "margin", "most", "wanted"),
    [(0.8, 0.5, 1.0, 1.0), (0.6, 0.5, 1.0, 0.9), (2.0, 0.5, 1.0, 2.0), (2.0, 0.5, math.inf, 3.0), (0.0, 1.0, 1.0, 0.0)],
)
def test_ranges_are_widened_to_what_is_possible(high: float, margin: float, most: float, wanted: float) -> None:
    found = ranges._widen(RangeChoice("mse", -0.5, high, 3.0), margin, most)
    assert (found.method, found.low, found.sqnr_db) == ("mse", -0.5 * (1 + margin), 3.0)
    assert found.high == pytest.approx(wanted)


@dataclass
class Measured:
    """Noises by the first parameter's scale; what is beyond a limit is infinite, and calls are noted."""

    noises: dict[float, float]
    calls: list[tuple[float, float]] = field(default_factory=list)

    def __call__(self, params: Sequence[QuantParams], limit: float = math.inf) -> float:
        (scale,) = params[0].scale
        self.calls.append((scale, limit))
        return self.noises[scale] if self.noises[scale] <= limit else math.inf


def scales(*values: float) -> list[QuantParams]:
    return [QuantParams((value,), 0) for value in values]


@pytest.mark.parametrize(
    ("others", "own", "expected", "wanted"),
    [
        ([1.0, 1.2, 9.0], [2.0, 1.0, 0.0], [1.0, 2.0, 3.0], [1.5, 1.1, math.inf]),
        ([1.0, 1.5, 1.51], [2.0, 1.7, 0.0], [1.0, 2.0, 3.0], [1.5, 1.6, math.inf]),
        ([1.0, 1.5, 9.0], [2.0, 1.9, 0.0], [1.0, 2.0, 3.0], [1.5, math.inf, math.inf]),
        ([1.0, 1.6, 9.0], [2.0, 1.0, 0.0], [1.0, 2.0, 3.0], [1.0, math.inf, math.inf]),
        ([1.4, 1.0, 1.2], [0.5, 1.0, 3.0], [1.0, 2.0, 3.0], [0.95, 1.0, math.inf]),
        ([1.6, 1.0, 1.2], [0.1, 1.0, 0.5], [1.0, 2.0, 3.0], [math.inf, 1.0, 0.85]),
        ([9.0, 1.0, 1.2], [0.1, 1.0, 0.5], [3.0, 1.0, 2.0], [math.inf, 1.0, 0.85]),
    ],
)
def test_the_mean_of_both_noises(
    others: list[float], own: list[float], expected: list[float], wanted: list[float]
) -> None:
    """By folds, and by the range that will be used: of those that are within half as much again of the best."""
    by_folds, whole = scales(0.1, 0.2, 0.3), scales(1.0, 2.0, 3.0)
    noise = Measured(dict(zip((0.1, 0.2, 0.3, 1.0, 2.0, 3.0), others + own, strict=True)))
    found = ranges._measure_noises(noise, [[each] for each in by_folds], whole, expected)
    assert found == pytest.approx(wanted)
    assert [scale for scale, _ in noise.calls][:3] == [
        s for _, s in sorted(zip(expected, (0.1, 0.2, 0.3), strict=True))
    ]
    assert noise.calls[0][1] == math.inf
    firsts = dict(zip((0.1, 0.2, 0.3), others, strict=True))
    for k in (1, 2):
        reached = [firsts[s] for s, limit in noise.calls[:k] if firsts[s] <= limit]
        assert noise.calls[k][1] == pytest.approx(1.5 * min(reached))
    later, least = noise.calls[3:], math.inf
    for scale, limit in later:
        k = round(scale) - 1
        assert limit == (math.inf if least == math.inf else pytest.approx(2.2 * least - others[k]))
        least = min(least, wanted[k])


@dataclass
class Judge:
    """The noise of all groups together: by scales, first those of folds (below 1), then of whole ranges."""

    noises: dict[tuple[float, ...], float]
    limits: list[float] = field(default_factory=list)

    def joint_noise(self, params: Sequence[Sequence[QuantParams]], dtypes: Sequence[DType], limit: float) -> float:
        assert list(dtypes) == [DType.INT8, DType.INT16]
        self.limits.append(limit)
        found = self.noises[tuple(round(each[0].scale[0], 3) for each in params)]
        return found if found <= limit else math.inf


def offer(dtype: DType, methods: dict[str, float], best: str, *, is_output: bool = False) -> Any:
    """Choices of ranges with these tenths of scales; folds suggest a hundredth of the scale."""
    most = {DType.INT8: 127, DType.INT16: 2**15 - 1}[dtype]
    choices = [RangeChoice(m, -scale * most, scale * most) for m, scale in methods.items()]
    suggested = [scales(scale / 100) for scale in methods.values()]
    names = list(methods)
    return ranges._Offer(("t",), dtype, choices, suggested, [0.0] * len(names), names.index(best), math.inf, is_output)


def together(noises: dict[tuple[int, int], tuple[float, float]], *, is_output: bool = False) -> tuple[list[int], Judge]:
    """What is taken of two groups, by both noises of each pair of candidates."""
    first = offer(DType.INT8, {"minmax": 1, "percentile": 2, "mse": 3}, "mse")
    second = offer(DType.INT16, {"minmax": 4, "extrapolated": 5, "mse": 6}, "mse", is_output=is_output)
    table: dict[tuple[float, ...], float] = {}
    for (i, j), (folds, whole) in noises.items():
        a, b = (1, 2, 3)[i], (4, 5, 6)[j]
        table[a / 100, b / 100], table[a, b] = folds, whole
    judge = Judge(table)
    scheme = Scheme(symmetric=True)
    original: Callable[..., QuantParams] = ranges._params

    def params(choice: RangeChoice, dtype: DType, scheme: Scheme) -> QuantParams:
        return QuantParams((round(original(choice, dtype, scheme).scale[0]),), 0)

    ranges._params = params
    try:
        return ranges._choose_all(judge, [first, second], scheme), judge  # type: ignore[arg-type]
    finally:
        ranges._params = original


@pytest.mark.parametrize(
    ("best", "minmax", "extrapolated", "percentile", "wanted"),
    [
        ((1.0, 1.2), (0.9, 1.09), (9.0, 9.0), (9.0, 9.0), (0, 0)),
        ((1.0, 1.2), (0.9, 1.2), (9.0, 9.0), (9.0, 9.0), (2, 2)),
        ((1.0, 1.0), (0.8, 0.8), (0.7, 0.7), (9.0, 9.0), (0, 1)),
        ((1.0, 1.0), (0.8, 0.8), (0.7, 0.9), (0.5, 1.0), (1, 0)),
        ((1.0, 1.0), (0.1, 9.0), (9.0, 0.1), (2.0, 2.0), (2, 2)),
    ],
)
def test_one_method_for_all_must_leave_clearly_less_noise(
    best: Range, minmax: Range, extrapolated: Range, percentile: Range, wanted: tuple[int, int]
) -> None:
    """By a tenth; a group without the method takes its first candidate."""
    noises = {(2, 2): best, (0, 0): minmax, (0, 1): extrapolated, (1, 0): percentile}
    found, judge = together(noises)
    assert tuple(found) == wanted
    assert judge.limits[:2] == [math.inf, math.inf]
    assert judge.limits[2] == pytest.approx(2 * (sum(best) / 2 / 1.1))
    if minmax[0] <= judge.limits[2]:
        assert judge.limits[3] == pytest.approx(judge.limits[2] - minmax[0])


def test_an_output_keeps_its_best_whatever_the_method_of_others() -> None:
    noises = {(2, 2): (1.0, 1.0), (0, 2): (0.5, 0.5), (1, 2): (0.4, 0.4)}
    assert together(noises, is_output=True)[0] == [1, 2]


def test_where_all_methods_are_the_best_anyhow_nothing_is_measured() -> None:
    same = offer(DType.INT8, {"minmax": 1}, "minmax"), offer(DType.INT16, {"minmax": 4}, "minmax")
    judge: Any = Judge({})
    assert ranges._choose_all(judge, same, Scheme()) == [0, 0] and not judge.limits


# ------------------------------------------------------------------------------------------------- candidates


def test_candidates_that_differ_by_a_hundredth_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    spans: dict[str, Range] = {
        "first": (-1.0, 1.0),
        "low alike": (-1.0199, 1.0),
        "low apart": (-1.0204, 1.0),
        "high alike": (-1.0, 1.0199),
        "high apart": (-1.0, 1.0206),
        "both": (-2.0, 2.0),
    }
    monkeypatch.setattr(ranges, "candidate_ranges", lambda *_: spans)
    found = ranges._candidates(heavy(0), DType.INT8, INT8)
    assert [choice.method for choice in found] == ["first", "low apart", "high apart", "both"]
    assert [(choice.low, choice.high) for choice in found] == [spans[choice.method] for choice in found]


def test_int16_and_forced_methods_leave_no_choice() -> None:
    tensor = heavy(1)
    found = candidate_ranges(tensor, DType.INT16, INT8)
    assert ranges._candidates(tensor, DType.INT16, INT8) == [RangeChoice("extrapolated", *found["extrapolated"])]
    for dtype in (DType.INT8, DType.INT16):
        (choice,) = ranges._candidates(tensor, dtype, Scheme(method="percentile"))
        assert choice == RangeChoice("percentile", *candidate_ranges(tensor, dtype, INT8)["percentile"])


def test_scores_have_headroom() -> None:
    tensor = heavy(2)
    low, high = candidate_ranges(tensor, DType.INT8, INT8)["extrapolated"]
    found = ranges._with_headroom(tensor, DType.INT8, INT8)
    assert (found.method, found.low, found.high) == ("extrapolated", 1.5 * low, 1.5 * high)


@pytest.mark.parametrize(("low", "high", "wanted"), [(0.1, 0.9, (0, 0.9)), (-0.5, -0.1, (-0.5, 0)), (-1, 1, (-1, 1))])
def test_whole_ranges_hold_zero(low: float, high: float, wanted: Range) -> None:
    found = ranges._whole(profile([1, 2, 3], low, high))
    assert (found.method, found.low, found.high) == ("minmax", *wanted)


def test_refitted_ranges_are_steady() -> None:
    tensor = heavy(3)
    found = ranges.refit_range("mse", tensor, DType.INT8, INT8)
    assert found == tuple(map(round_outward, candidate_ranges(tensor, DType.INT8, INT8)["mse"]))
