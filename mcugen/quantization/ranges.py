# SPDX-License-Identifier: Apache-2.0
"""Choice of the range of each activation: its profile gives candidates, and the measured error chooses among them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from mcugen.core.options import RANGE_METHODS
from mcugen.hir.types import Array, DType, QuantParams
from mcugen.quantization.float_model import FloatModel
from mcugen.quantization.profile import FEW_CALIBRATION_SAMPLES, Profile, TensorProfile, merge_profiles
from mcugen.quantization.samples import Sample
from mcugen.quantization.scheme import Scheme, activation_params, activation_params_of_ranges
from mcugen.quantization.scores import tensors_of_scores
from mcugen.quantization.sensitivity import OutputNoise, measured_tensors, saturated_tensors

Range = tuple[float, float]
"""The smallest and the largest real value that an activation's integers represent."""

MOVING_AVERAGE_WEIGHT = 0.01
"""Weight of each new sample in the moving average, as in PyTorch's MovingAverageMinMaxObserver."""

KEPT_PERCENTAGE = 99.99
"""Percentage of elements that the `percentile` method keeps; both ends lose equally many.

Methods with other percentages have them in their names.
"""

ENTROPY_SHARES = tuple(2.0 ** (-k / 6) for k in range(43))
"""Upper ends of the ranges that the `entropy` method compares, as shares of the tensor's largest magnitude: 1 to 1/128.
"""

MSE_POINTS = 9
"""Number of candidates for each end of the range in a round of the grid search of the `mse` method."""

MSE_ROUNDS = 5
"""Number of rounds of the `mse` method's grid search.

Each round searches a grid that is four times as fine, around the best range of the round before.
"""

NOISE_BATCH_RANGES = 16
"""Number of candidate ranges whose expected noise is computed at once, so that the data stay in a CPU's cache."""

MIN_EXTRAPOLATION_SAMPLES = 20
"""Smallest number of samples from whose extremes a range is extrapolated.

Fewer samples show too little of the distribution's tail.
"""

MIN_EXTRAPOLATION_PEAKS = 4
"""Smallest number of largest values from which a range is extrapolated.

With many samples, the number is the square root of the number of samples.
"""

EXPECTED_SAMPLES = 2000
"""Number of new samples of which an extrapolated range is expected to hold all values.

With 100 samples, four small regressions gain at least 4 dB on average against the extremes of the samples
(tests/quantization/test_regressions.py).
"""

MAX_RANGE_GROWTH = 16.0
"""Largest number of new samples that an extrapolated range is expected to hold, divided by the number of given samples.

If few samples are given, the range is thus extrapolated for fewer than EXPECTED_SAMPLES new ones.
"""

SCORE_HEADROOM = 1.5
"""Factor by which the extrapolated range of a tensor is widened if an anomaly score is computed from the tensor.

Calibration samples are normal, and the samples to be detected are not. The area under the ROC curve of six autoencoders
in int8 is 0.014 below that of float32 without headroom, 0.001 with 1.25, 0.0003 with 1.5
(tests/quantization/test_scores.py).
"""

INT16_HEADROOM = 1.25
"""Factor by which the extrapolated range of an int16 tensor is widened.

It costs a third of one of sixteen bits, which is harmless because the 8-bit weights are coarser.
"""

MAX_EQUAL_RANGE_DIFFERENCE = 0.01
"""Largest difference of both ends, relative to the length of the range, for which two candidate ranges count as one."""

VERY_FEW_SAMPLES = 4
"""Largest number of samples n for which ranges are widened by the share 1 / n of their length.

For more samples, the share is 1 / n².
"""

RANGE_SIGNIFICANT_BITS = 11
"""Number of significant bits that the ends of a range are rounded to, so that all host CPUs give equal ends."""

MAX_LIKELY_NOISE_RATIO = 1.5
"""Largest noise of a candidate range, divided by the least noise of all candidates, for which the candidate is kept.

The noise is measured on other samples than those that suggested the range. The noise on all samples then decides
between the candidates that are kept.
"""

JOINT_METHODS = ("minmax", "extrapolated", "percentile")
"""Methods of RANGE_METHODS that are also tried with all tensors of the model using the same method."""

EQUAL_NOISE_DIFFERENCE = 0.1
"""Relative difference below which the noises of two candidate ranges, measured on few samples, count as equal.

The histogram of all samples then decides between the candidates.
"""


@dataclass(frozen=True)
class RangeChoice:
    """The chosen range of a tensor.

    Attributes:
        method: Name of the method that found it, one of RANGE_METHODS.
        low: Smallest real value.
        high: Largest real value.
        sqnr_db: SQNR in dB of the model's outputs if only this tensor is quantized; None if it was not measured.
    """

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
    fixed_groups: Sequence[tuple[str, ...]] | None = None,
) -> dict[str, RangeChoice]:
    """Choose the range of each tensor, equal within each group: the candidate of least error at the model's outputs.

    Without samples, the error of the tensor itself decides, as expected by the profile. A method forced by
    `scheme.method` is the only candidate. Outputs of softmax or sigmoid keep their extremes, whose largest values tell
    classes apart. Ranges from few samples get a margin.

    Args:
        model: The float model.
        profile: The profile of its tensors.
        groups: The tensors that share a range.
        dtypes: The integer type of each tensor.
        scheme: The quantization scheme.
        samples: The samples by which the candidates are compared; may be empty.
        progress: Called with the number of finished groups, and with their total.
        fixed_groups: Groups whose ranges were chosen before. Each of `groups` is then chosen separately. None to choose
            all groups together.

    Returns:
        The choice by the name of the tensor.
    """
    judged = groups if fixed_groups is None else fixed_groups
    judge = OutputNoise(model, judged, samples, profile) if samples and not scheme.method else None
    whole = saturated_tensors(model)
    scored = tensors_of_scores(model.graph)
    inputs, outputs = {v.name for v in model.graph.inputs}, set(measured_tensors(model))
    margin = _margin(profile.distinct) if not scheme.method else 0.0
    offers: list[_Offer] = []
    for number, group in enumerate(groups, 1):
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
        expected = [_expected_noise(params, parts, dtype) for params in suggested]
        noises = expected
        if judge:
            noise = partial(judge.noise, group, dtype=dtype)
            noises = _measure_noises(noise, suggested, [_params(c, dtype, scheme) for c in choices], expected)
        limit = 1.0 if whole.intersection(group) else math.inf
        best = _widest(noises, choices) if is_outside else _least_noisy(noises, expected)
        offers.append(_Offer(group, dtype, choices, suggested, noises, best, limit, not outputs.isdisjoint(group)))
        progress(number, len(groups))
    chosen = _choose_all(judge, offers, scheme) if judge and fixed_groups is None else [offer.best for offer in offers]
    return {
        name: _widen(offer.choice(k, is_measured=judge is not None), margin, offer.upper_limit)
        for offer, k in zip(offers, chosen, strict=True)
        for name in offer.group
    }


@dataclass(frozen=True)
class _Offer:
    """The candidates of a group, and their noise if only this group is quantized.

    Attributes:
        group: The tensors of the group.
        dtype: The integer type.
        choices: The candidates.
        suggested: For each candidate, the parameters that its method finds on each fold.
        noises: The noise of each candidate.
        best: The index of the candidate of least noise.
        upper_limit: The upper limit of the range, which no margin exceeds.
        is_output: Whether the model is judged by some tensor of the group.
    """

    group: tuple[str, ...]
    dtype: DType
    choices: Sequence[RangeChoice]
    suggested: Sequence[Sequence[QuantParams]]
    noises: Sequence[float]
    best: int
    upper_limit: float
    is_output: bool

    def choice(self, k: int, *, is_measured: bool) -> RangeChoice:
        """Return a candidate with the ends and the SQNR that are used.

        The noise of a candidate that came with a method for all groups may not have been measured: then that of the
        best candidate stands for the group.
        """
        noise = self.noises[k] if self.noises[k] < math.inf else self.noises[self.best]
        sqnr = _sqnr_db(noise) if is_measured else None
        choice = self.choices[k]
        return RangeChoice(choice.method, round_outward(choice.low), round_outward(choice.high), sqnr)

    def by(self, method: str) -> int:
        """Return the index of a method's candidate; of an output, of the best one.

        If the method has no candidate, the first one hardly differs from it.
        """
        if self.is_output:
            return self.best
        return next((k for k, choice in enumerate(self.choices) if choice.method == method), 0)


def _sqnr_db(noise: float) -> float | None:
    """Return relative noise in dB: minus infinity if outputs are not finite, None without noise."""
    return -10 * math.log10(noise) if 0 < noise < math.inf else -math.inf if noise else None


def _choose_all(judge: OutputNoise, offers: Sequence[_Offer], scheme: Scheme) -> list[int]:
    """Return the best candidate of each group, or one method for all groups if that is clearly better.

    Errors do not add up as they are measured one by one. Each group clips a little of what the other groups pass on,
    and shifted means are shifted to the same side.
    """
    dtypes = [offer.dtype for offer in offers]

    def noise(plan: Sequence[int], limit: float = math.inf) -> float:
        suggested = [offer.suggested[k] for offer, k in zip(offers, plan, strict=True)]
        whole = [[_params(offer.choices[k], offer.dtype, scheme)] for offer, k in zip(offers, plan, strict=True)]
        crossed_noise = judge.joint_noise(suggested, dtypes, 2 * limit)
        return (
            (crossed_noise + judge.joint_noise(whole, dtypes, 2 * limit - crossed_noise)) / 2
            if crossed_noise < math.inf
            else crossed_noise
        )

    best = [offer.best for offer in offers]
    plans = [plan for method in JOINT_METHODS if (plan := [offer.by(method) for offer in offers]) != best]
    best_noise = noise(best) / (1 + EQUAL_NOISE_DIFFERENCE) if plans else 0.0
    for plan in plans:
        plan_noise = noise(plan, best_noise)
        if plan_noise < best_noise:
            best, best_noise = plan, plan_noise
    return best


def _measure_noises(
    noise: Callable[..., float],
    suggested: Sequence[Sequence[QuantParams]],
    whole: Sequence[QuantParams],
    expected: Sequence[float],
) -> list[float]:
    """Return for each candidate the mean of two noises, measured at the outputs.

    The first noise is that of each fold with the range that the other fold suggests: it shows how the next samples will
    behave. The second is that of all samples with the final range. A noise that is too high to be chosen is infinite.
    The likely best candidate runs first, because its noise soon shows that others are worse. If the first noise leaves
    only one candidate, the first noise is returned.

    Args:
        noise: Returns the noise of parameters, or infinity above `limit`.
        suggested: For each candidate, the parameters that its method finds on each fold.
        whole: The final parameters of each candidate.
        expected: The noise of each candidate that the profile lets expect.
    """
    crossed = [math.inf] * len(suggested)
    for k in sorted(range(len(crossed)), key=expected.__getitem__):
        crossed[k] = noise(suggested[k], limit=MAX_LIKELY_NOISE_RATIO * min(crossed))
    likely = [
        k
        for k in sorted(range(len(crossed)), key=crossed.__getitem__)
        if crossed[k] <= MAX_LIKELY_NOISE_RATIO * min(crossed)
    ]
    if len(likely) == 1:
        return crossed
    measured = [math.inf] * len(crossed)
    for k in likely:
        own = noise([whole[k]], limit=2 * (1 + EQUAL_NOISE_DIFFERENCE) * min(measured) - crossed[k])
        measured[k] = (crossed[k] + own) / 2
    return measured


def _params(choice: RangeChoice, dtype: DType, scheme: Scheme) -> QuantParams:
    return activation_params(round_outward(choice.low), round_outward(choice.high), dtype, scheme)


def _suggestion(method: str, tensor: TensorProfile, dtype: DType, scheme: Scheme) -> QuantParams:
    """Return the parameters that a method finds for a tensor."""
    low, high = _range(method, tensor, dtype, scheme)
    return activation_params(round_outward(low), round_outward(high), dtype, scheme)


def _expected_noise(suggested: Sequence[QuantParams], parts: Sequence[TensorProfile], dtype: DType) -> float:
    """Return the expected noise of the tensor itself: each part is judged by the parameters of the part before it."""
    return sum(expected_noise(part, suggested[k - 1], dtype) for k, part in enumerate(parts))


def candidate_ranges(tensor: TensorProfile, dtype: DType, scheme: Scheme) -> dict[str, Range]:
    """Return the range of a tensor that each calibration method finds, by the method's name; each range holds 0.

    Args:
        tensor: The profile of the tensor.
        dtype: The integer type.
        scheme: The quantization scheme.
    """
    return {method: _range(method, tensor, dtype, scheme) for method in RANGE_METHODS}


def _range(method: str, tensor: TensorProfile, dtype: DType, scheme: Scheme) -> Range:
    """Return the range that a method finds, extended to hold 0."""
    low, high = _FINDERS[method](tensor, dtype, scheme)
    return min(low, 0.0), max(high, 0.0)


def round_outward(end: float) -> float:
    """Round an end of a range outward to RANGE_SIGNIFICANT_BITS bits, so that it is equal on all host CPUs.

    Float kernels round differently on each kind of CPU. A number that has at most these bits except for rounding
    errors, such as the 1 of a softmax or the 6 of a ReLU6, is kept. The last bit of all other numbers is set. Scales
    are then multiples of odd numbers, so sums and means seldom lie halfway between two integers, where kernels differ
    in rounding.
    """
    share, exponent = math.frexp(end)
    exact = abs(share) * 2**RANGE_SIGNIFICANT_BITS
    steps = math.ceil(exact - 0.01)
    if steps - exact > 0.01:
        steps |= 1
    return math.copysign(math.ldexp(steps, exponent - RANGE_SIGNIFICANT_BITS), end)


def refit_range(method: str, tensor: TensorProfile, dtype: DType, scheme: Scheme) -> Range:
    """Return the range that a calibration method finds for a tensor's profile, rounded outward like all ranges.

    It is for a profile of more samples, if `choose_ranges` chose the method by another profile of the tensor.

    Args:
        method: The calibration method, one of RANGE_METHODS.
        tensor: The profile.
        dtype: The integer type.
        scheme: The quantization scheme.
    """
    low, high = _range(method, tensor, dtype, scheme)
    return round_outward(low), round_outward(high)


def expected_noise(tensor: TensorProfile, params: QuantParams, dtype: DType) -> float:
    """Return the expected mean squared error of clipping and rounding a tensor, estimated from its histogram.

    Each element is assumed at the centre of its bin. If the scale is finer than the bins, rounding errors are assumed
    to be evenly distributed.

    Args:
        tensor: The profile.
        params: The scale and the zero point.
        dtype: The integer type.
    """
    return float(_noises(tensor, np.array(params.scale), np.array([params.zero_point], float), dtype)[0])


def _noises(tensor: TensorProfile, scales: Array, zero_points: Array, dtype: DType) -> Array:
    """Return `expected_noise` for many scales and zero points.

    Rows are computed in blocks and in place, because this function takes most of the time of the choice.
    """
    (middle, counts), (min_int, max_int) = tensor.filled_bins, dtype.limits
    width = tensor.edges[1] - tensor.edges[0]
    noises = np.empty(len(scales))
    for at in (slice(first, first + NOISE_BATCH_RANGES) for first in range(0, len(scales), NOISE_BATCH_RANGES)):
        scale, zero_point = scales[at, None], zero_points[at, None]
        inside = np.minimum(np.maximum(middle, (min_int - zero_point) * scale), (max_int - zero_point) * scale)
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


# ----------------------------------------------------------------------------------------------------- methods


def _minmax(tensor: TensorProfile, dtype: DType, scheme: Scheme) -> Range:
    return tensor.low, tensor.high


def _extrapolate(tensor: TensorProfile, dtype: DType, scheme: Scheme) -> Range:
    """Return the extremes that many more samples would have; int16 has additional headroom.

    No end crosses 0: a tensor that was never negative, such as a sum of squares, is assumed to stay so.
    """
    headroom = INT16_HEADROOM if dtype is DType.INT16 else 1.0
    low = min(-_expected_extreme([-low for low in tensor.lows]), 0.0) if tensor.low < 0 else 0.0
    high = max(_expected_extreme(tensor.highs), 0.0) if tensor.high > 0 else 0.0
    return headroom * low, headroom * high


def _expected_extreme(maxima: Sequence[float]) -> float:
    """Return the expected maximum of EXPECTED_SAMPLES samples, at least the largest of the given maxima.

    Peaks over a threshold: the k greatest maxima exceed the one after them by amounts that are taken as exponentially
    distributed. The expected maximum of F times as many samples is then `mean excess · (ln(k · F) + Euler's constant)`
    above that threshold. The source is Coles, "An Introduction to Statistical Modeling of Extreme Values", 2001,
    chapter 4. A tensor with a bound, such as the result of a ReLU6, has no excess and keeps its bound.
    """
    count = len(maxima)
    if not MIN_EXTRAPOLATION_SAMPLES <= count < EXPECTED_SAMPLES:
        return max(maxima)
    peaks = max(MIN_EXTRAPOLATION_PEAKS, round(math.sqrt(count)))
    *_, threshold = ordered = sorted(maxima, reverse=True)[: peaks + 1]
    excess = sum(ordered[:-1]) / peaks - threshold
    growth = min(EXPECTED_SAMPLES / count, MAX_RANGE_GROWTH)
    reach = math.log(peaks * growth) + np.euler_gamma
    return max(ordered[0], threshold + excess * reach)


def _moving_average(tensor: TensorProfile, dtype: DType, scheme: Scheme) -> Range:
    ends = np.asarray([tensor.lows, tensor.highs])
    average = ends[:, 0]
    for sample in ends[:, 1:].T:
        average = average + MOVING_AVERAGE_WEIGHT * (sample - average)
    return float(average[0]), float(average[1])


def _percentile(tensor: TensorProfile, dtype: DType, scheme: Scheme, percent: float = KEPT_PERCENTAGE) -> Range:
    tail = (1 - percent / 100) / 2
    share = np.concatenate([[0.0], np.cumsum(tensor.counts)]) / tensor.counts.sum()
    first, last = np.searchsorted(share, tail, side="right") - 1, np.searchsorted(share, 1 - tail)
    return float(tensor.edges[first]), float(tensor.edges[last])


def _entropy(tensor: TensorProfile, dtype: DType, scheme: Scheme) -> Range:
    """Return the range clipped at ±t with the least Kullback-Leibler divergence.

    The method is that of Migacz, "8-bit inference with TensorRT" (GTC 2017).
    """
    edges, counts = tensor.edges, _without_zeros(tensor)
    best, best_divergence = (tensor.low, tensor.high), math.inf
    for share in ENTROPY_SHARES:
        reach = share * max(-tensor.low, tensor.high)
        start = int(np.searchsorted(edges, -reach, side="right")) - 1 if -reach > tensor.low else 0
        stop = int(np.searchsorted(edges, reach)) if reach < tensor.high else len(counts)
        low, high = float(edges[start]), float(edges[stop])
        levels = round((high - low) / activation_params(low, high, dtype, scheme).scale[0]) + 1
        if stop - start <= levels:
            break  # Integers finer than the bins lose nothing.
        divergence = _divergence(counts, start, stop, levels)
        if divergence < best_divergence:
            best, best_divergence = (low, high), divergence
    return best


def _without_zeros(tensor: TensorProfile) -> Array:
    """Return the histogram without a peak at 0, such as that of a ReLU: 0 is exact in any range."""
    counts = tensor.counts.copy()
    zero = int(np.searchsorted(tensor.edges, 0.0, side="right")) - 1
    if 0 <= zero < len(counts):
        neighbours = [counts[i] for i in (zero - 1, zero + 1) if 0 <= i < len(counts)]
        counts[zero] = min(counts[zero], max(neighbours))
    return counts


def _divergence(counts: Array, start: int, stop: int, levels: int) -> float:
    """Return the Kullback-Leibler divergence of a clipped and quantized histogram from the clipped one.

    Args:
        counts: The histogram.
        start: The first bin that is kept.
        stop: The bin after the last one that is kept.
        levels: The number of integers that represent the kept bins.
    """
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
    q = 0.9999 * q + 0.0001 / len(inner)  # No bin may have a probability of 0.
    return float(np.sum(p * np.log(p / q)))


def _mse(tensor: TensorProfile, dtype: DType, scheme: Scheme) -> Range:
    """Return the range of least expected error: on a grid of both ends, then on finer grids around the best point."""
    ends = np.array([min(tensor.low, 0.0), max(tensor.high, 0.0)])
    centre, reach = np.array([0.5, 0.5]), 0.5
    best = (1.0, 1.0)
    for _ in range(MSE_ROUNDS):
        tried = np.clip(np.linspace(centre - reach, centre + reach, MSE_POINTS), 0.0, 1.0)
        lows, highs = (np.unique(t) if end else [1.0] for t, end in zip(tried.T, ends, strict=True))
        shares = [best, *itertools.product(lows, highs)]
        ranges = ends * shares
        scales, zero_points = activation_params_of_ranges(ranges[:, 0], ranges[:, 1], dtype, scheme)
        best = shares[int(np.argmin(_noises(tensor, scales, zero_points, dtype)))]
        centre, reach = np.asarray(best), reach / 4
    return float(ends[0] * best[0]), float(ends[1] * best[1])


_FINDERS: Mapping[str, Callable[[TensorProfile, DType, Scheme], Range]] = {
    "minmax": _minmax,
    "extrapolated": _extrapolate,
    "moving_average": _moving_average,
    "percentile": _percentile,
    "percentile99.9": partial(_percentile, percent=99.9),
    "percentile99.5": partial(_percentile, percent=99.5),
    "entropy": _entropy,
    "mse": _mse,
}


# ------------------------------------------------------------------------------------------------------ choice


def _least_noisy(measured: Sequence[float], expected: Sequence[float]) -> int:
    """Return the candidate of least expected noise among those of about least measured noise.

    Of equal candidates the first one is returned, which is min-max.
    """
    limit = min(measured) * (1 + EQUAL_NOISE_DIFFERENCE)
    return min((i for i, noise in enumerate(measured) if noise <= limit), key=lambda i: expected[i])


def _widest(measured: Sequence[float], choices: Sequence[RangeChoice]) -> int:
    """Return the widest range among those of about least measured noise, for an input or output of the model.

    Inputs may well exceed their calibrated range later. Whoever reads an output is served worse by one clipped value
    than by a slightly coarser scale of all.
    """
    limit = min(measured) * (1 + EQUAL_NOISE_DIFFERENCE)
    likely = [i for i, noise in enumerate(measured) if noise <= limit]
    return max(likely, key=lambda i: choices[i].high - choices[i].low)


def _margin(samples: int) -> float:
    """Return the share of itself by which a range is widened: one bit for one sample, an eighth of a bit for five.

    The samples to come often exceed the extremes of up to VERY_FEW_SAMPLES samples. Their clipping costs more than a
    coarser scale.
    """
    if samples <= VERY_FEW_SAMPLES:
        return 1 / samples
    return 1 / samples**2 if samples < FEW_CALIBRATION_SAMPLES else 0.0


def _widen(choice: RangeChoice, margin: float, upper_limit: float) -> RangeChoice:
    """Return a wider range that does not exceed the tensor's upper limit."""
    high = max(choice.high, min(choice.high * (1 + margin), upper_limit))
    return replace(choice, low=choice.low * (1 + margin), high=high)


def _whole(tensor: TensorProfile) -> RangeChoice:
    return RangeChoice("minmax", min(tensor.low, 0.0), max(tensor.high, 0.0))


def _with_headroom(tensor: TensorProfile, dtype: DType, scheme: Scheme) -> RangeChoice:
    """Return the range of a tensor that an anomaly score is computed from, because anomalies exceed the usual range."""
    low, high = _range("extrapolated", tensor, dtype, scheme)
    return RangeChoice("extrapolated", SCORE_HEADROOM * low, SCORE_HEADROOM * high)


def _candidates(tensor: TensorProfile, dtype: DType, scheme: Scheme) -> list[RangeChoice]:
    """Return the different ranges to choose from, in the order of RANGE_METHODS; only one range if a method is forced.

    int16 has only one candidate: with such fine scales, clipping never pays.
    """
    if scheme.method:
        return [RangeChoice(scheme.method, *_range(scheme.method, tensor, dtype, scheme))]
    if dtype is DType.INT16:
        return [RangeChoice("extrapolated", *_range("extrapolated", tensor, dtype, scheme))]
    kept: list[RangeChoice] = []
    for method, (low, high) in candidate_ranges(tensor, dtype, scheme).items():
        min_distance = MAX_EQUAL_RANGE_DIFFERENCE * (high - low)
        if all(abs(low - k.low) > min_distance or abs(high - k.high) > min_distance for k in kept):
            kept.append(RangeChoice(method, low, high))
    return kept
