# SPDX-License-Identifier: Apache-2.0
"""Drift: how far the statistics of a snapshot are from those of the samples of compilation, and what it looks like.

Two distances are computed for each histogram. The population stability index (PSI) is the sum of
(p - q) · ln(p / q) over the bins, the Kolmogorov-Smirnov distance (KS) is the largest difference of cumulative shares.
Both are positive without any drift, since a snapshot covers some runs only. A limit is therefore the user's threshold
plus what that chance explains, which follows from the variance from run to run among the samples of compilation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
import numpy.typing as npt

from mcugen.codegen.monitor import Distribution, MonitoredClasses, MonitoredTensor
from mcugen.core.options import MAX_KS, MAX_PSI
from mcugen.deploy.monitoring.snapshots import Snapshot
from mcugen.measurement.observations import Observation

MIN_RUNS = 8
"""Smallest number of runs of a snapshot that is compared."""

PSI_CHANCE = 7.0
"""Factor by which the PSI of chance may exceed its mean: a chi-squared number with one degree of freedom exceeds seven
times its mean in 0.8 % of the cases, and one with more degrees more rarely."""
DEVIATIONS = 3.0
"""Standard deviations by which a mean may differ by chance (0.3 % of the cases if it is normal)."""
MIN_SHARE = 1e-4
"""Share that stands for an empty bin in the PSI, whose logarithm needs one."""
NAMED_DEVIATIONS = 2.0
"""Standard deviations by which a statistic must differ to name an alarm that another statistic gave."""

RELATIVE_CHANGE = 0.1
"""Smallest relative change of spread or roughness, and of the mean in units of the spread, that has a name."""
ROUGHNESS_ALARM = 0.25
"""Relative change of the roughness that is an alarm, even if the histogram is the same."""
MISFIT_DEVIATIONS = 4.0
"""Standard deviations by which means of parts must differ to count as swapped."""
SWAP_GAIN = 4.0
"""Factor by which another order of parts or inputs must fit better to count as swapped."""

Numbers = npt.NDArray[np.float64]
"""An array of statistics."""


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of the distances of a histogram beyond chance.

    Attributes:
        psi: Threshold of the population stability index.
        ks: Threshold of the Kolmogorov-Smirnov distance.
    """

    psi: float = MAX_PSI
    ks: float = MAX_KS


@dataclass(frozen=True)
class Distance:
    """Distances of a histogram from its reference, and the limits beyond which they are alarms.

    Attributes:
        psi: Population stability index.
        psi_limit: Its limit.
        ks: Kolmogorov-Smirnov distance.
        ks_limit: Its limit.
        shares: Share of each bin.
    """

    psi: float
    psi_limit: float
    ks: float
    ks_limit: float
    shares: tuple[float, ...]

    @property
    def is_alarm(self) -> bool:
        """Return whether a distance exceeds its limit."""
        return self.psi > self.psi_limit or self.ks > self.ks_limit


def distance(counts: Sequence[int], reference: Distribution, runs: int, thresholds: Thresholds) -> Distance:
    """Return the distances of counts from a reference.

    Args:
        counts: Number of elements in each bin.
        reference: Shares of the bins, and their variance from run to run.
        runs: Number of runs that the counts are of.
        thresholds: Thresholds beyond chance.
    """
    shares = np.asarray(counts, np.float64) / max(sum(counts), 1)
    expected = np.array(reference.shares)
    chance = 1 / max(runs, 1) + 1 / max(reference.samples, 1)
    used = expected > 0
    psi_mean = chance * float((np.array(reference.variances)[used] / np.maximum(expected[used], MIN_SHARE)).sum())
    p, q = np.maximum(shares, MIN_SHARE), np.maximum(expected, MIN_SHARE)
    return Distance(
        float(((p - q) * np.log(p / q)).sum()),
        thresholds.psi + PSI_CHANCE * psi_mean,
        float(np.abs(shares.cumsum() - expected.cumsum()).max()),
        thresholds.ks + DEVIATIONS * float(np.sqrt(chance * max(reference.cumulative_variances))),
        tuple(map(float, shares)),
    )


@dataclass(frozen=True)
class TensorDrift:
    """A tensor of a snapshot beside its reference; means and the like in real units.

    Attributes:
        name: Name of the tensor.
        is_input: Whether it is an input; else it is an output or the result of a layer.
        kind: "input", "output" or "layer".
        distance: Distances of the histogram.
        reference_shares: Share of each bin of the histogram for the samples.
        mean: Mean.
        reference_mean: Mean of the samples.
        spread: Standard deviation.
        reference_spread: Standard deviation of the samples.
        roughness: Mean absolute difference of neighbors, relative to that of the samples.
        clipped: Share of clipped elements.
        reference_clipped: Share of clipped elements of the samples.
        low: Smallest value.
        high: Largest value.
        edges: Edges of the histogram's bins.
        names: What the drift looks like; empty without an alarm.
    """

    name: str
    is_input: bool
    kind: str
    distance: Distance
    reference_shares: tuple[float, ...]
    mean: float
    reference_mean: float
    spread: float
    reference_spread: float
    roughness: float
    clipped: float
    reference_clipped: float
    low: float
    high: float
    edges: tuple[float, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class ClassDrift:
    """Predictions of a snapshot beside those for the samples.

    Attributes:
        name: Name of the output.
        classes: Distances of the predicted classes.
        reference_classes: Shares of the counters of classes for the samples.
        confidence: Distances of the confidence: by how much the largest score exceeds the next one.
        reference_confidence: Shares of the bins of confidence for the samples.
        names: What the drift looks like; empty without an alarm.
    """

    name: str
    classes: Distance
    reference_classes: tuple[float, ...]
    confidence: Distance
    reference_confidence: tuple[float, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class SnapshotDrift:
    """A snapshot beside the reference of its model.

    Attributes:
        source: Where the snapshot comes from.
        model: Name of the model.
        model_hash: Hash of the model and its monitor.
        weights: CRC-32 of the file of weights; 0 if there is none.
        version: Version of the file of weights.
        device: Number of the device.
        time: Time of the snapshot.
        runs: Successful runs.
        errors: Runs with an error.
        longest_cycles: Cycles of the longest run; 0 if unknown.
        self_test_failures: Failed self-tests.
        checksum_failures: Failed comparisons with checksums.
        tensors: The tensors.
        outputs: The outputs with classes.
        alarms: Sentences on drift and failures; empty if there are none.
    """

    source: str
    model: str
    model_hash: str
    weights: int
    version: int
    device: int
    time: int
    runs: int
    errors: int
    longest_cycles: int
    self_test_failures: int
    checksum_failures: int
    tensors: tuple[TensorDrift, ...]
    outputs: tuple[ClassDrift, ...]
    alarms: tuple[str, ...]


@dataclass(frozen=True)
class _Statistics:
    """Statistics of a tensor in codes, of a snapshot or of its reference."""

    mean: float
    spread: float
    roughness: float
    parts: Numbers

    @classmethod
    def of(cls, seen: Observation, tensor: MonitoredTensor) -> _Statistics:
        """Return the statistics of an observation of at least one element."""
        parts = tensor.elements.parts
        mean = sum(seen.sums) / seen.count
        spread = float(np.sqrt(max(seen.squares / seen.count - mean**2, 0.0)))
        means = np.array(seen.sums[:parts]) / (seen.count / parts)
        return cls(mean + tensor.center, spread, seen.steps / seen.count, means + tensor.center)

    @classmethod
    def of_reference(cls, tensor: MonitoredTensor) -> _Statistics:
        """Return the statistics of the samples."""
        reference = tensor.reference
        return cls(reference.mean, reference.spread, reference.roughness, np.array(reference.part_means))


def compare_snapshot(snapshot: Snapshot, thresholds: Thresholds) -> SnapshotDrift:
    """Return a snapshot beside the reference of its model, with alarms for drift and failures.

    Args:
        snapshot: The snapshot.
        thresholds: Thresholds of distances beyond chance.
    """
    monitor = snapshot.model.monitor
    pairs = list(zip(monitor.tensors, snapshot.tensors, strict=True))
    tensors = [_tensor_drift(tensor, seen, snapshot.runs, thresholds) for tensor, seen in pairs if seen.count]
    tensors = _with_swapped_inputs(tensors, [pair for pair in pairs if pair[1].count])
    outputs = [
        _class_drift(output, predicted, confidence, snapshot.runs, thresholds)
        for output, predicted, confidence in zip(
            monitor.outputs, snapshot.predictions, snapshot.confidence, strict=True
        )
    ]
    return SnapshotDrift(
        snapshot.source,
        snapshot.model.name,
        monitor.model,
        snapshot.weights,
        snapshot.version,
        snapshot.device,
        snapshot.time,
        snapshot.runs,
        snapshot.errors,
        snapshot.longest,
        snapshot.self_tests,
        snapshot.checksums,
        tuple(tensors),
        tuple(outputs),
        tuple(_alarms(snapshot, tensors, outputs)),
    )


def _alarms(snapshot: Snapshot, tensors: Sequence[TensorDrift], outputs: Sequence[ClassDrift]) -> list[str]:
    failures = (
        (snapshot.self_tests, "self-tests failed"),
        (snapshot.checksums, "comparisons with checksums failed"),
        (snapshot.errors, "runs returned an error"),
    )
    alarms = [f"{count:,} {text}" for count, text in failures if count]
    alarms += [f"{t.kind} '{t.name}': {', '.join(t.names)}" for t in tensors if t.names]
    return alarms + [f"output '{o.name}': {', '.join(o.names)}" for o in outputs if o.names]


def _tensor_drift(tensor: MonitoredTensor, seen: Observation, runs: int, thresholds: Thresholds) -> TensorDrift:
    now, before = _Statistics.of(seen, tensor), _Statistics.of_reference(tensor)
    away = distance(seen.bins, tensor.reference.histogram, runs, thresholds)
    clipped = seen.clipped / seen.count
    chance = 1 / max(runs, 1) + 1 / tensor.reference.histogram.samples
    change = _Change(tensor, now, before, away, clipped - tensor.reference.clipped, chance)
    unit = tensor.real_unit
    return TensorDrift(
        tensor.name,
        tensor.is_input,
        tensor.kind,
        away,
        tensor.reference.histogram.shares,
        tensor.real(now.mean),
        tensor.real(before.mean),
        now.spread * unit,
        before.spread * unit,
        _ratio(now.roughness, before.roughness),
        clipped,
        tensor.reference.clipped,
        tensor.real(seen.low),
        tensor.real(seen.high),
        tuple(tensor.real(edge) for edge in tensor.edges),
        change.names() if runs >= MIN_RUNS else (),
    )


def _ratio(now: float, before: float) -> float:
    return now / before if before else 1.0 if not now else float(now)


@dataclass(frozen=True)
class _Change:
    """The statistics of a tensor before and now, and what may differ by chance."""

    tensor: MonitoredTensor
    now: _Statistics
    before: _Statistics
    away: Distance
    clipped: float
    """Share of clipped elements, less that of the samples."""
    chance: float
    """Factor from a variance from run to run to that of the difference of the two means."""

    @property
    def shift(self) -> float:
        """Return the difference of the means, as a code; 0 if it is small, or too small for the name of an alarm."""
        difference = self.now.mean - self.before.mean
        smallest = max(RELATIVE_CHANGE * max(self.before.spread, 0.5), NAMED_DEVIATIONS * self._mean_deviation)
        return difference if abs(difference) > smallest else 0.0

    @property
    def _mean_deviation(self) -> float:
        return float(np.sqrt(self.chance * self.tensor.reference.mean_variance))

    @property
    def gain(self) -> float:
        """Return the factor by which the spread changed; 1 if the change is small or may be chance.

        If the spread depends much on few large values, the inner half and the roughness tell, if they agree.
        """
        gain = _ratio(self.now.spread, self.before.spread)
        deviation = float(np.sqrt(self.chance * self.tensor.reference.square_variance))
        is_clear = abs(self.now.spread**2 - self.before.spread**2) > NAMED_DEVIATIONS * deviation
        if self.is_cut and gain < 1:
            return 1.0  # elements reach the ends of the range by a shift, not by a smaller gain
        if is_clear and abs(gain - 1) > RELATIVE_CHANGE:
            return gain
        is_alike = 1 / NOISE_GAIN < self.inner / max(self.rougher, 1e-9) < NOISE_GAIN
        return self.rougher if is_alike and abs(self.rougher - 1) > 2 * RELATIVE_CHANGE else 1.0

    @property
    def inner(self) -> float:
        """Return the factor by which the spread of the inner half changed; 1 if a shift or a limit hides it."""
        return 1.0 if self.shift or self.is_cut else _inner_spread(self.away.shares, self.tensor)

    @property
    def is_cut(self) -> bool:
        """Return whether clearly more elements are clipped, so that gains seem smaller than they are."""
        return self.clipped > CLIPPED_CHANGE

    @property
    def rougher(self) -> float:
        """Return the factor by which the roughness changed."""
        return _ratio(self.now.roughness, self.before.roughness)

    @property
    def is_alarm(self) -> bool:
        """Return whether the histogram, the mean or the roughness exceeds its limit."""
        is_rough = self._is_roughness_clear and abs(self.rougher - 1) > ROUGHNESS_ALARM
        limit = max(SHIFT_ALARM * self.before.spread, DEVIATIONS * self._mean_deviation)
        return self.away.is_alarm or is_rough or abs(self.shift) > limit

    @property
    def _is_roughness_clear(self) -> bool:
        difference = abs(self.now.roughness - self.before.roughness)
        return bool(difference > DEVIATIONS * np.sqrt(self.chance * self.tensor.reference.roughness_variance))

    def names(self) -> tuple[str, ...]:
        """Return what the drift looks like; nothing if no statistic exceeds its limit."""
        same_values = not (self.away.is_alarm or self.shift or self.is_cut)
        swapped = _swapped_parts(self.tensor, self.now, self.before, self.chance, same_values=same_values)
        if not (self.is_alarm or swapped):
            return ()
        texture = self._texture()
        gain = 1.0 if texture or (swapped and not self.away.is_alarm) else self.gain
        names = list(dict.fromkeys([*swapped, *texture])) + [f"scaled by {gain:.2f}"] * (gain != 1.0)
        if self.shift and not self._scaling_explains_shift(gain):
            names.append(f"shifted by {self.shift * self.tensor.real_unit:+.3g}")
        return tuple(names) or ("changed in its distribution",)

    def _texture(self) -> list[str]:
        """Return how the roughness changed beyond the change of the spread.

        Independent noise of variance s² adds 2s² to the variance of the difference of neighbors but s² to that of the
        elements. A permutation of elements changes the former only; a gain changes both alike.
        """
        if self.now.spread < STUCK_SHARE * self.before.spread:
            return ["stuck at one value"]
        gain, rougher = self.gain, self.rougher
        if rougher * (1 + 2 * RELATIVE_CHANGE) < min(gain, 1.0) - 2 * max(self.clipped, 0.0):
            return ["smoother"]
        if rougher > 1 and self.inner > NOISE_GAIN * max(gain, rougher):
            return ["noisy"]
        is_rough = rougher > max(gain, 1.0) * (NOISE_GAIN if self.is_cut or gain > 1 else 1 + RELATIVE_CHANGE)
        if not (is_rough and self._is_roughness_clear):
            return []
        noise = (rougher**2 - 1) * (self.before.roughness / MEAN_TO_DEVIATION) ** 2 / 2
        expected_gain = float(np.sqrt(1 + noise / max(self.before.spread, 1e-9) ** 2))
        measured_gain = _ratio(self.now.spread, self.before.spread)
        if self.away.is_alarm or measured_gain > 1 + PERMUTED_SHARE * (expected_gain - 1):
            return ["noisy"]
        is_clear = expected_gain > 1 + RELATIVE_CHANGE
        return [PERMUTED if is_clear else f"noisy, or {PERMUTED}"]

    def _scaling_explains_shift(self, gain: float) -> bool:
        """Return whether a gain about zero moved the mean as far; clipped elements hide a part of a gain above 1."""
        if gain == 1.0:
            return False
        zero = self.tensor.zero_point / 2.0**self.tensor.unit
        scaled = zero + (self.before.mean - zero) * gain
        if gain > 1 and self.is_cut:
            return (self.shift > 0) == (self.before.mean > zero)
        return abs(self.now.mean - scaled) < 2 * RELATIVE_CHANGE * max(self.before.spread, 0.5) * max(gain, 1.0)


SHIFT_ALARM = 0.3
"""Difference of the means, in units of the spread, that is an alarm even if the histogram is within its limits."""
STUCK_SHARE = 0.025
"""Spread, as a share of that of the samples, below which a tensor counts as stuck."""
CLIPPED_CHANGE = 0.02
"""Increase of the share of clipped elements above which a measured gain is too small."""
NOISE_GAIN = 1.25
"""Factor by which the roughness, or the spread of the inner half, must exceed the gain of the whole to count as noise:
noise widens a narrow peak more than long tails, and a limited range makes gains seem smaller than they are."""
MEAN_TO_DEVIATION = 0.8
"""Mean absolute value of a normal number in standard deviations: sqrt(2 / pi)."""
PERMUTED_SHARE = 0.3
"""Share of the gain expected of noise below which rougher elements count as permuted."""


def _inner_spread(shares: Sequence[float], tensor: MonitoredTensor) -> float:
    """Return the width of the inner half of a histogram, divided by that of the samples."""
    reference = tensor.reference
    edges = np.minimum([reference.low - 1, *tensor.edges, reference.high], reference.high).astype(float)
    now, before = (
        float(np.diff(np.interp([0.25, 0.75], np.concatenate([[0.0], np.cumsum(s)]), edges))[0])
        for s in (shares, reference.histogram.shares)
    )
    return _ratio(now, max(before, 1.0))


PERMUTED = "in another order of elements"
"""Name of the drift of a tensor with the same values at other places."""


def _swapped_parts(
    tensor: MonitoredTensor, now: _Statistics, before: _Statistics, chance: float, *, same_values: bool
) -> list[str]:
    """Return how the parts of a tensor are swapped, if their means fit much better in another order.

    Without such an order, means that do not fit are a change of the order of elements, if the values are the same.
    """
    variances = chance * np.array(tensor.reference.part_variances) + 1e-3
    seen, known = now.parts - now.mean, before.parts - before.mean
    count = len(seen)
    misfits = {
        order: float(((seen - known[list(order)]) ** 2 / variances[list(order)]).sum())
        for order in permutations(range(count))
    }
    own, best = misfits[tuple(range(count))], min(misfits, key=lambda order: misfits[order])
    if own < count + MISFIT_DEVIATIONS**2:
        return []
    if misfits[best] * SWAP_GAIN < own:
        return [f"swapped parts {','.join(map(str, best))}"]
    return [PERMUTED] * same_values


def _with_swapped_inputs(
    drifts: Sequence[TensorDrift], pairs: Sequence[tuple[MonitoredTensor, Observation]]
) -> list[TensorDrift]:
    """Return the tensors' drift, with inputs that have each other's statistics named as swapped."""
    named = list(drifts)
    places = [i for i, drift in enumerate(drifts) if drift.is_input and drift.names]
    for a in places:
        for b in (b for b in places if b > a):
            crossed = _misfit(*pairs[a], pairs[b][0]) + _misfit(*pairs[b], pairs[a][0])
            if crossed * SWAP_GAIN < _misfit(*pairs[a], pairs[a][0]) + _misfit(*pairs[b], pairs[b][0]):
                named[a] = replace(named[a], names=(f"swapped with '{drifts[b].name}'",))
                named[b] = replace(named[b], names=(f"swapped with '{drifts[a].name}'",))
    return named


def _misfit(tensor: MonitoredTensor, seen: Observation, other: MonitoredTensor) -> float:
    """Return how far the statistics of an observed tensor are from the reference of another one, in real units."""
    now, known = _Statistics.of(seen, tensor), _Statistics.of_reference(other)
    unit, other_unit = tensor.real_unit, other.real_unit
    spread = max(known.spread * other_unit, 1e-9)
    scales = ((now.spread, known.spread), (now.roughness, known.roughness))
    ratios = sum(abs(np.log(max(a * unit, 1e-9) / max(b * other_unit, 1e-9))) for a, b in scales)
    return float(abs(tensor.real(now.mean) - other.real(known.mean)) / spread + ratios)


def _class_drift(
    output: MonitoredClasses,
    predicted: Sequence[int],
    confidence: Sequence[int],
    runs: int,
    thresholds: Thresholds,
) -> ClassDrift:
    classes = distance(predicted, output.predictions, runs, thresholds)
    margins = distance(confidence, output.confidence, runs, thresholds)
    names = []
    if runs >= MIN_RUNS and classes.is_alarm:
        increased = int(np.argmax(np.array(classes.shares) - output.predictions.shares))
        names.append(f"other classes than the samples', above all {_class_name(output, increased)}")
    if runs >= MIN_RUNS and margins.is_alarm:
        lower = np.cumsum(margins.shares).sum() > np.cumsum(output.confidence.shares).sum()
        names.append("less confident" if lower else "more confident")
    return ClassDrift(output.name, classes, output.predictions.shares, margins, output.confidence.shares, tuple(names))


def _class_name(output: MonitoredClasses, counter: int) -> str:
    first = counter * output.classes_per_bin
    last = min(first + output.classes_per_bin, output.classes) - 1
    if first == last:
        return f"'{output.labels[first]}'" if output.labels else f"class {first}"
    return f"classes {first} to {last}"
