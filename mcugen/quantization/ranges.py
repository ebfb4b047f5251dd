# SPDX-License-Identifier: Apache-2.0
"""Which range of each activation its integers span: candidates by its profile, the choice by measured error."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from mcugen.core.options import METHODS
from mcugen.hir.types import Array, DType, QuantParams
from mcugen.quantization.float_model import FloatModel
from mcugen.quantization.profile import FEW, Profile, TensorProfile, merge_profiles
from mcugen.quantization.samples import Sample
from mcugen.quantization.scheme import Scheme, activation_codes, activation_params
from mcugen.quantization.scores import tensors_of_scores
from mcugen.quantization.sensitivity import OutputNoise, judged_tensors, saturated_tensors

Range = tuple[float, float]

AVERAGING = 0.01
"""Weight of each new sample in the moving average, as in PyTorch's MovingAverageMinMaxObserver."""

PERCENT = 99.99
"""Of the elements that the percentile method keeps; both ends lose equally many. Other shares stand in names."""

ENTROPY_SHARES = tuple(2.0 ** (-k / 6) for k in range(43))
"""Of the largest magnitude: the ranges that the entropy method compares, down to a 128th."""

MSE_POINTS, MSE_ROUNDS = 9, 5
"""Ends tried a round, and rounds: each looks four times as closely where the last found the least error."""

ABREAST = 16
"""Ranges whose expected noise is computed at once: as many as stay in a CPU's cache."""

LEAST_EXTRAPOLATED = 20
"""Samples below which their extremes say too little of a tail."""

LEAST_PEAKS = 4
"""Extremes from which a range is extrapolated; of many samples it is the square root of their number."""

EXPECTED_SAMPLES, MOST_GROWTH = 2000, 16.0
"""Samples whose extremes an extrapolated range is expected to hold, and at most so many times those that there are.

With 100 samples, four small regressions gain at least 4 dB on average against the extremes of the samples
(tests/quant/test_regressions.py).
"""

SCORE_HEADROOM = 1.5
"""Times the extrapolated range that a tensor spans from which an anomaly score is computed.

Calibration samples are normal, and the samples to be detected are not. The area under the ROC curve of six autoencoders
in int8 is 0.014 below that of float32 without headroom, 0.001 with 1.25, 0.0003 with 1.5 (tests/quant/test_scores.py).
"""

INT16_HEADROOM = 1.25
"""Times the extrapolated range that int16 spans: a third of a bit of sixteen, while weights of 8 bits are coarser."""

SAME = 0.01
"""Candidates whose ends differ by less than this share of the range are one."""

VERY_FEW = 4
"""Samples that hardly tell how far others reach."""

STEADY_BITS = 11
"""Of the ends of ranges."""

LIKELY = 1.5
"""Times the least noise on samples of others: candidates beyond that are not judged by their own."""

TOGETHER = ("minmax", "extrapolated", "percentile")
"""Methods that are tried for all tensors at once."""

CHANCE = 0.1
"""Measured noises that differ by less are equal, as a few samples tell them: then the histogram of all decides."""


@dataclass(frozen=True)
class Choice:
    """A range and the method that found it. `sqnr_db`: of the model's outputs if this is all that is quantized."""

    method: str
    low: float
    high: float
    sqnr_db: float | None = None


def choose_ranges(
    model: FloatModel,
    profile: Profile,
    groups: Sequence[tuple[str, ...]],
    dtypes: Mapping[str, DType],
    scheme: Scheme,
    samples: Sequence[Sample],
    progress: Callable[[int, int], None],
    beside: Sequence[tuple[str, ...]] | None = None,
) -> dict[str, Choice]:
    """By tensor, equal within each group: the candidate of least error at the model's outputs.

    Without samples, the one of least expected error of the tensor itself. `scheme.method` leaves no choice; nor has an
    output of softmax or sigmoid one, whose greatest values tell the classes apart. Few samples get a margin.

    All groups are chosen together; where others were, `beside` these, each for itself.
    """
    judged = groups if beside is None else beside
    judge = OutputNoise(model, judged, samples, profile) if samples and not scheme.method else None
    whole = saturated_tensors(model)
    scored = tensors_of_scores(model.graph)
    inputs, outputs = {v.name for v in model.graph.inputs}, set(judged_tensors(model))
    margin = _margin(profile.distinct) if not scheme.method else 0.0
    offers: list[_Offer] = []
    for done, group in enumerate(groups, 1):
        tensor, dtype = merge_profiles([profile.tensors[name] for name in group]), dtypes[group[0]]
        parts = [merge_profiles([fold[name] for name in group]) for fold in profile.folds] or [tensor]
        is_outside = not (inputs | outputs).isdisjoint(group)
        if whole.intersection(group):
            choices = [_whole(tensor)]
        elif scored.intersection(group) and not scheme.method:
            choices = [_with_headroom(tensor, dtype, scheme)]
        else:
            choices = _candidates(tensor, dtype, scheme)
        suggested = [[_suggestion(c.method, part, dtype, scheme) for part in parts] for c in choices]
        expected = [_expected(each, parts, dtype) for each in suggested]
        noises = expected
        if judge:
            noise = partial(judge.noise, group, dtype=dtype)
            noises = _measured(noise, suggested, [_params(c, dtype, scheme) for c in choices], expected)
        most = 1.0 if whole.intersection(group) else math.inf
        best = _widest(noises, choices) if is_outside else _least(noises, expected)
        offers.append(_Offer(group, dtype, choices, suggested, noises, best, most, not outputs.isdisjoint(group)))
        progress(done, len(groups))
    taken = _together(judge, offers, scheme) if judge and beside is None else [offer.best for offer in offers]
    return {
        name: _widened(offer.choice(k, is_measured=judge is not None), margin, offer.most)
        for offer, k in zip(offers, taken, strict=True)
        for name in offer.group
    }


@dataclass(frozen=True)
class _Offer:
    """The candidates of a group, what each fold suggests by them, the noise of each if nothing else is quantized, and
    which of them that leaves the least; no range is to reach beyond `most`.

    `is_output`: some tensor of the group is one by which the model is judged.
    """

    group: tuple[str, ...]
    dtype: DType
    choices: Sequence[Choice]
    suggested: Sequence[Sequence[QuantParams]]
    noises: Sequence[float]
    best: int
    most: float
    is_output: bool

    def choice(self, k: int, *, is_measured: bool) -> Choice:
        """Return a candidate as it is used.

        The noise of a candidate that came with a method for all groups may not have been measured: then that of the
        best candidate stands for the group.
        """
        noise = self.noises[k] if self.noises[k] < math.inf else self.noises[self.best]
        sqnr = _sqnr_db(noise) if is_measured else None
        choice = self.choices[k]
        return Choice(choice.method, steady(choice.low), steady(choice.high), sqnr)

    def by(self, method: str) -> int:
        """The candidate of a method, or the first, which it hardly differs from; of an output the best."""
        if self.is_output:
            return self.best
        return next((k for k, choice in enumerate(self.choices) if choice.method == method), 0)


def _sqnr_db(noise: float) -> float | None:
    """Return relative noise in dB: minus infinity where outputs are no numbers, None where there is no noise."""
    return -10 * math.log10(noise) if 0 < noise < math.inf else -math.inf if noise else None


def _together(judge: OutputNoise, offers: Sequence[_Offer], scheme: Scheme) -> list[int]:
    """The best candidate of each group, unless one method for all leaves clearly less noise when all are quantized.

    Errors add up otherwise than they are measured one by one: each group clips a little what the others pass, and
    means that are shifted are so to one side.
    """
    dtypes = [offer.dtype for offer in offers]

    def noise(plan: Sequence[int], limit: float = math.inf) -> float:
        suggested = [offer.suggested[k] for offer, k in zip(offers, plan, strict=True)]
        whole = [[_params(offer.choices[k], offer.dtype, scheme)] for offer, k in zip(offers, plan, strict=True)]
        others = judge.together(suggested, dtypes, 2 * limit)
        return (others + judge.together(whole, dtypes, 2 * limit - others)) / 2 if others < math.inf else others

    best = [offer.best for offer in offers]
    plans = [plan for method in TOGETHER if (plan := [offer.by(method) for offer in offers]) != best]
    least = noise(best) / (1 + CHANCE) if plans else 0.0
    for plan in plans:
        found = noise(plan, least)
        if found < least:
            best, least = plan, found
    return best


def _measured(
    noise: Callable[..., float],
    suggested: Sequence[Sequence[QuantParams]],
    whole: Sequence[QuantParams],
    expected: Sequence[float],
) -> list[float]:
    """Of each candidate, the mean of two noises: each fold by what the other suggests, and all by the whole range.

    The first tells what the next samples will be like, the second is of the range that will be used. Infinite where
    either is too much to be chosen. What is likely best comes first, as that soon shows that others are worse. Where
    the first noise leaves one candidate only, it is that noise.
    """
    others = [math.inf] * len(suggested)
    for k in sorted(range(len(others)), key=expected.__getitem__):
        others[k] = noise(suggested[k], limit=LIKELY * min(others))
    likely = [k for k in sorted(range(len(others)), key=others.__getitem__) if others[k] <= LIKELY * min(others)]
    if len(likely) == 1:
        return others
    measured = [math.inf] * len(others)
    for k in likely:
        own = noise([whole[k]], limit=2 * (1 + CHANCE) * min(measured) - others[k])
        measured[k] = (others[k] + own) / 2
    return measured


def _params(choice: Choice, dtype: DType, scheme: Scheme) -> QuantParams:
    return activation_params(steady(choice.low), steady(choice.high), dtype, scheme)


def _suggestion(method: str, tensor: TensorProfile, dtype: DType, scheme: Scheme) -> QuantParams:
    """What a method makes of a tensor."""
    low, high = _range(method, tensor, dtype, scheme)
    return activation_params(steady(low), steady(high), dtype, scheme)


def _expected(suggested: Sequence[QuantParams], parts: Sequence[TensorProfile], dtype: DType) -> float:
    """The noise of the tensor itself: of each part by what the one before suggests."""
    return sum(expected_noise(part, suggested[k - 1], dtype) for k, part in enumerate(parts))


def candidate_ranges(tensor: TensorProfile, dtype: DType, scheme: Scheme) -> dict[str, Range]:
    """By method; 0 is within each."""
    return {method: _range(method, tensor, dtype, scheme) for method in METHODS}


def _range(method: str, tensor: TensorProfile, dtype: DType, scheme: Scheme) -> Range:
    """Return the range that a method finds, extended to hold 0."""
    low, high = _FINDERS[method](tensor, dtype, scheme)
    return min(low, 0.0), max(high, 0.0)


def steady(end: float) -> float:
    """An end of a range, moved outward to so few bits that it is the same where float kernels round otherwise.

    They do on every kind of CPU. What has these bits but for rounding stays, as the 1 of a softmax or the 6 of a ReLU6.
    The last bit of all else is set: between scales that are multiples of odd numbers, sums and means seldom lie halfway
    between two codes, where one rounds up and another to even.
    """
    share, exponent = math.frexp(end)
    exact = abs(share) * 2**STEADY_BITS
    steps = math.ceil(exact - 0.01)
    if steps - exact > 0.01:
        steps |= 1
    return math.copysign(math.ldexp(steps, exponent - STEADY_BITS), end)


def refit_range(method: str, tensor: TensorProfile, dtype: DType, scheme: Scheme) -> Range:
    """Return the range that a method finds for another profile of the same tensor, as `choose_ranges` stores it."""
    low, high = _range(method, tensor, dtype, scheme)
    return steady(low), steady(high)


def clipping_share(tensor: TensorProfile, low: float, high: float) -> float:
    """Of the elements outside [low, high], as far as the histogram tells."""
    if tensor.low == tensor.high:
        return float(not low <= tensor.low <= high)
    share = np.concatenate([[0.0], np.cumsum(tensor.counts)]) / tensor.counts.sum()
    below, upto = np.interp([low, high], tensor.edges, share)
    return float(below + 1.0 - upto)


def expected_noise(tensor: TensorProfile, params: QuantParams, dtype: DType) -> float:
    """Mean squared error of clipping and rounding a tensor.

    Elements lie in the middle of their bin; where the steps are finer than the bins, anywhere between two codes.
    """
    return float(_noises(tensor, np.array(params.scale), np.array([params.zero_point], float), dtype)[0])


def _noises(tensor: TensorProfile, scales: Array, zero_points: Array, dtype: DType) -> Array:
    """The same for many scales and zero points: in blocks of rows, and in place, since time is all that this takes."""
    (middle, counts), (least, most) = tensor.filled, dtype.limits
    width = tensor.edges[1] - tensor.edges[0]
    noises = np.empty(len(scales))
    for at in (slice(first, first + ABREAST) for first in range(0, len(scales), ABREAST)):
        scale, zero_point = scales[at, None], zero_points[at, None]
        inside = np.minimum(np.maximum(middle, (least - zero_point) * scale), (most - zero_point) * scale)
        rounding = inside / scale
        np.rint(rounding, out=rounding)
        rounding *= scale
        rounding -= inside
        rounding *= rounding
        is_fine = scales[at] <= width
        rounding[is_fine] = np.square(scale[is_fine]) / 12
        np.subtract(middle, inside, out=inside)
        inside *= inside
        inside += rounding
        inside *= counts
        noises[at] = inside.sum(-1)
    noises /= counts.sum()
    return noises


def expected_sqnr(tensor: TensorProfile, params: QuantParams, dtype: DType) -> float:
    """Signal to noise in dB."""
    middle, counts = tensor.filled
    signal = float(np.average(middle**2, weights=counts))
    noise = expected_noise(tensor, params, dtype)
    return 10 * math.log10(signal / noise) if signal and noise else math.inf


# ----------------------------------------------------------------------------------------------------- methods


def _minmax(tensor: TensorProfile, dtype: DType, scheme: Scheme) -> Range:
    return tensor.low, tensor.high


def _extrapolated(tensor: TensorProfile, dtype: DType, scheme: Scheme) -> Range:
    """Return the extremes that many more samples would have; int16 has headroom besides.

    No end crosses 0: what was never negative, such as a sum of squares, is taken to stay so.
    """
    headroom = INT16_HEADROOM if dtype is DType.INT16 else 1.0
    low = min(-_expected_extreme([-low for low in tensor.lows]), 0.0) if tensor.low < 0 else 0.0
    high = max(_expected_extreme(tensor.highs), 0.0) if tensor.high > 0 else 0.0
    return headroom * low, headroom * high


def _expected_extreme(maxima: Sequence[float]) -> float:
    """Return the expected maximum of so many more samples, at least the greatest of the given maxima.

    Peaks over a threshold: the k greatest maxima exceed the one after them by amounts that are taken as exponentially
    distributed, so their number times F has an expected maximum of `mean excess · (ln(k · F) + Euler's constant)`
    above that threshold (Coles, "An Introduction to Statistical Modeling of Extreme Values", 2001, chapter 4). A tensor
    with a bound, as that of ReLU6, has no excess and keeps it.
    """
    count = len(maxima)
    if not LEAST_EXTRAPOLATED <= count < EXPECTED_SAMPLES:
        return max(maxima)
    peaks = max(LEAST_PEAKS, round(math.sqrt(count)))
    *_, threshold = ordered = sorted(maxima, reverse=True)[: peaks + 1]
    excess = sum(ordered[:-1]) / peaks - threshold
    growth = min(EXPECTED_SAMPLES / count, MOST_GROWTH)
    reach = math.log(peaks * growth) + np.euler_gamma
    return max(ordered[0], threshold + excess * reach)


def _moving_average(tensor: TensorProfile, dtype: DType, scheme: Scheme) -> Range:
    ends = np.asarray([tensor.lows, tensor.highs])
    average = ends[:, 0]
    for sample in ends[:, 1:].T:
        average = average + AVERAGING * (sample - average)
    return float(average[0]), float(average[1])


def _percentile(tensor: TensorProfile, dtype: DType, scheme: Scheme, percent: float = PERCENT) -> Range:
    tail = (1 - percent / 100) / 2
    share = np.concatenate([[0.0], np.cumsum(tensor.counts)]) / tensor.counts.sum()
    first, last = np.searchsorted(share, tail, side="right") - 1, np.searchsorted(share, 1 - tail)
    return float(tensor.edges[first]), float(tensor.edges[last])


def _entropy(tensor: TensorProfile, dtype: DType, scheme: Scheme) -> Range:
    """Migacz, "8-bit inference with TensorRT" (GTC 2017): clipping at ±t, t of least Kullback-Leibler divergence."""
    edges, counts = tensor.edges, _without_zeros(tensor)
    best, least = (tensor.low, tensor.high), math.inf
    for share in ENTROPY_SHARES:
        reach = share * max(-tensor.low, tensor.high)
        start = int(np.searchsorted(edges, -reach, side="right")) - 1 if -reach > tensor.low else 0
        stop = int(np.searchsorted(edges, reach)) if reach < tensor.high else len(counts)
        low, high = float(edges[start]), float(edges[stop])
        levels = round((high - low) / activation_params(low, high, dtype, scheme).scale[0]) + 1
        if stop - start <= levels:
            break  # nothing is lost by codes finer than bins
        divergence = _divergence(counts, start, stop, levels)
        if divergence < least:
            best, least = (low, high), divergence
    return best


def _without_zeros(tensor: TensorProfile) -> Array:
    """The histogram without the peak at 0 (of ReLU, say): 0 is exact in any range, so it is no argument for one."""
    counts = tensor.counts.copy()
    zero = int(np.searchsorted(tensor.edges, 0.0, side="right")) - 1
    if 0 <= zero < len(counts):
        beside = [counts[i] for i in (zero - 1, zero + 1) if 0 <= i < len(counts)]
        counts[zero] = min(counts[zero], max(beside))
    return counts


def _divergence(counts: Array, start: int, stop: int, levels: int) -> float:
    """Kullback-Leibler: the distribution clipped to bins start..stop from what `levels` codes tell of it."""
    inner = counts[start:stop]
    clipped = inner.copy()
    clipped[0] += counts[:start].sum()
    clipped[-1] += counts[stop:].sum()
    if not inner.any():
        return math.inf
    places = np.arange(levels + 1) * len(inner) // levels
    filled = clipped > 0
    mean = np.add.reduceat(inner, places[:-1]) / np.maximum(np.add.reduceat(filled, places[:-1], dtype=np.int64), 1)
    coded = np.repeat(mean, np.diff(places)) * filled
    p, q = clipped[filled] / clipped.sum(), coded[filled] / coded.sum()
    q = 0.9999 * q + 0.0001 / len(inner)  # nothing is impossible
    return float(np.sum(p * np.log(p / q)))


def _mse(tensor: TensorProfile, dtype: DType, scheme: Scheme) -> Range:
    """Least expected error: of a grid of both ends, then of finer ones around its best point."""
    ends = np.array([min(tensor.low, 0.0), max(tensor.high, 0.0)])
    centre, reach = np.array([0.5, 0.5]), 0.5
    best = (1.0, 1.0)
    for _ in range(MSE_ROUNDS):
        tried = np.clip(np.linspace(centre - reach, centre + reach, MSE_POINTS), 0.0, 1.0)
        lows, highs = (np.unique(t) if end else [1.0] for t, end in zip(tried.T, ends, strict=True))
        shares = [best, *itertools.product(lows, highs)]
        ranges = ends * shares
        scales, zero_points = activation_codes(ranges[:, 0], ranges[:, 1], dtype, scheme)
        best = shares[int(np.argmin(_noises(tensor, scales, zero_points, dtype)))]
        centre, reach = np.asarray(best), reach / 4
    return float(ends[0] * best[0]), float(ends[1] * best[1])


_FINDERS: Mapping[str, Callable[[TensorProfile, DType, Scheme], Range]] = {
    "minmax": _minmax,
    "extrapolated": _extrapolated,
    "moving_average": _moving_average,
    "percentile": _percentile,
    "percentile99.9": partial(_percentile, percent=99.9),
    "percentile99.5": partial(_percentile, percent=99.5),
    "entropy": _entropy,
    "mse": _mse,
}


# ------------------------------------------------------------------------------------------------------ choice


def _least(measured: Sequence[float], expected: Sequence[float]) -> int:
    """Of those that measure about the least noise, the one of least expected noise; the first of equals: min-max."""
    limit = min(measured) * (1 + CHANCE)
    return min((i for i, noise in enumerate(measured) if noise <= limit), key=lambda i: expected[i])


def _widest(measured: Sequence[float], choices: Sequence[Choice]) -> int:
    """Return the widest range of an input or output of the model among those that measure about the least noise.

    What comes from outside may well reach further next time, and who reads a number is served worse by one clipped
    output than by slightly coarser steps in all.
    """
    limit = min(measured) * (1 + CHANCE)
    likely = [i for i, noise in enumerate(measured) if noise <= limit]
    return max(likely, key=lambda i: choices[i].high - choices[i].low)


def _margin(samples: int) -> float:
    """By which share of itself a range is widened: one bit for a single sample, an eighth of one for five.

    Of up to VERY_FEW samples much of what comes lies beyond their extremes: clipping that costs more than coarse steps.
    """
    if samples <= VERY_FEW:
        return 1 / samples
    return 1 / samples**2 if samples < FEW else 0.0


def _widened(choice: Choice, margin: float, most: float) -> Choice:
    """A wider range, not beyond what the tensor can be at most."""
    high = max(choice.high, min(choice.high * (1 + margin), most))
    return replace(choice, low=choice.low * (1 + margin), high=high)


def _whole(tensor: TensorProfile) -> Choice:
    return Choice("minmax", min(tensor.low, 0.0), max(tensor.high, 0.0))


def _with_headroom(tensor: TensorProfile, dtype: DType, scheme: Scheme) -> Choice:
    """Return the range of a tensor that a score is computed from, which anomalies reach beyond."""
    low, high = _range("extrapolated", tensor, dtype, scheme)
    return Choice("extrapolated", SCORE_HEADROOM * low, SCORE_HEADROOM * high)


def _candidates(tensor: TensorProfile, dtype: DType, scheme: Scheme) -> list[Choice]:
    """Return the ranges to choose from: those that differ, in the order of METHODS, or the only one of a forced method.

    int16 has one: clipping never pays where steps are so fine.
    """
    if scheme.method:
        return [Choice(scheme.method, *_range(scheme.method, tensor, dtype, scheme))]
    if dtype is DType.INT16:
        return [Choice("extrapolated", *_range("extrapolated", tensor, dtype, scheme))]
    kept: list[Choice] = []
    for method, (low, high) in candidate_ranges(tensor, dtype, scheme).items():
        least = SAME * (high - low)
        if all(abs(low - k.low) > least or abs(high - k.high) > least for k in kept):
            kept.append(Choice(method, low, high))
    return kept
