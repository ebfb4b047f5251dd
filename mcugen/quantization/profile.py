# SPDX-License-Identifier: Apache-2.0
"""Profile of a model's tensors on calibration samples, independent of any quantization scheme."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from mcugen.core.errors import McugenError, ModelError, UsageError
from mcugen.evaluation.session import Session
from mcugen.hir.graph import Node
from mcugen.hir.interpreter import interpret
from mcugen.hir.traits import Cell
from mcugen.hir.types import Array
from mcugen.quantization.float_model import FloatModel, all_tensors
from mcugen.quantization.samples import Sample, number_samples

RANGE_HISTOGRAM_BINS = 2048
"""Number of bins of the histogram of a tensor's values: eight for each int8 value."""

FEW_CALIBRATION_SAMPLES = 10
"""Number of distinct samples below which the user is warned and ranges get a margin.

With fewer samples, later inputs are likely to exceed the ranges of the samples.
"""

NUM_FOLDS = 2
"""Number of parts ("folds") that the samples are split into, each with its own profile.

The error of a range that one fold suggests is measured on the next fold.
"""

RECURRENT_BATCH_SAMPLES = 32
"""Number of samples that numpy computes together in recurrent layers."""

MAX_KEPT_PROFILE_ELEMENTS = 2**25
"""Largest number of tensor elements that the first pass over the samples keeps for the second pass.

Samples whose tensors are not kept run again.
"""

MAX_SILENT_DEFECT_SHARE = 0.05
"""Largest share of constant samples, or of repeated samples, for which no warning is given."""


@dataclass(frozen=True)
class TensorProfile:
    """Statistics of the values of one tensor over all samples.

    Attributes:
        lows: The smallest value of each sample. Samples are sorted by content, those of a stream by time.
        highs: The largest value of each sample.
        histogram: Counts in equal bins from the smallest to the largest value of all samples.
        means: The mean over samples and all axes but one: one mean for each index of axis 1 (of a vector: axis 0).
    """

    lows: tuple[float, ...]
    highs: tuple[float, ...]
    histogram: tuple[int, ...]
    means: tuple[float, ...]

    @property
    def low(self) -> float:
        """Return the tensor's smallest value over all samples."""
        return min(self.lows)

    @property
    def high(self) -> float:
        """Return the tensor's largest value over all samples."""
        return max(self.highs)

    @cached_property
    def edges(self) -> Array:
        """Return the edges of the histogram's bins, all equal if every element is the same. Do not write to them."""
        return np.linspace(self.low, self.high, len(self.histogram) + 1)

    @cached_property
    def counts(self) -> Array:
        """Return the histogram as float64. Do not write to it."""
        return np.asarray(self.histogram, np.float64)

    @cached_property
    def filled_bins(self) -> tuple[Array, Array]:
        """Return the centres of all bins that are not empty, and their counts. Do not write to them."""
        used = self.counts > 0
        return ((self.edges[1:] + self.edges[:-1]) / 2)[used], self.counts[used]


@dataclass(frozen=True)
class Profile:
    """The profile of a float model's tensors on calibration samples.

    Attributes:
        sha256: The fingerprint of the float model.
        samples: The number of samples.
        tensors: The profile of each tensor, by name.
        folds: The tensors' profiles on each fold, which is one of NUM_FOLDS parts of the samples. The error of a range
            that one fold suggests is measured on the next. Empty if there are few samples, or if the profile was read
            from a file.
    """

    sha256: str
    samples: int
    tensors: Mapping[str, TensorProfile]
    folds: Sequence[Mapping[str, TensorProfile]] = ()

    @property
    def distinct(self) -> int:
        """Return the number of distinct samples, at least 1. Samples with equal extremes of all tensors count once."""
        ends = [side for tensor in self.tensors.values() for side in (tensor.lows, tensor.highs)]
        return max(len(set(zip(*ends, strict=True))), 1)


def profile_notes(model: FloatModel, profile: Profile) -> list[str]:
    """Return a note for each reason why the samples may not represent later inputs, such as their small number.

    Args:
        model: The float model.
        profile: The profile of its tensors on the samples.
    """
    count, num_distinct = profile.samples, profile.distinct
    notes = profile_warnings(model, profile)
    if num_distinct < FEW_CALIBRATION_SAMPLES:
        description = f"{num_distinct} {'different ' * (num_distinct < count)}sample{'s' * (num_distinct != 1)}"
        notes.append(f"calibrated by {description}: too few samples for good ranges and weights; give 100 or more")
    return notes


def profile_warnings(model: FloatModel, profile: Profile) -> list[str]:
    """Return a warning for each defect of the samples, such as constant or repeated samples.

    Args:
        model: The float model.
        profile: The profile of its tensors on the samples.
    """
    count, num_distinct = profile.samples, profile.distinct
    inputs_given = [v for v in model.graph.inputs if v.type.count > 1 and v.name not in model.states.values()]
    inputs = [profile.tensors[v.name] for v in inputs_given if v.name in profile.tensors]
    flat = sum(all(t.lows[i] == t.highs[i] for t in inputs) for i in range(count)) if inputs else 0
    notes = []
    if flat > MAX_SILENT_DEFECT_SHARE * count:
        problem = f"{flat} of {count} calibration samples are constant: all elements of a sample are equal"
        notes.append(f"{problem}; check how they were recorded and read")
    if count - num_distinct > MAX_SILENT_DEFECT_SHARE * count:
        problem = f"{count - num_distinct} of {count} calibration samples are duplicates and are not used"
        notes.append(f"{problem}; give samples that differ")
    return notes


def fingerprint(model: FloatModel) -> str:
    """Return a SHA-256 that identifies the model to which a profile belongs.

    It covers the names and types of all values and the data of all constants, after fusion and equalization.
    """
    digest = hashlib.sha256()
    for value in model.graph.values():
        digest.update(f"{value.name}: {value.type}\n".encode())
        if value.data is not None:
            digest.update(np.ascontiguousarray(value.data).tobytes())
    return digest.hexdigest()


def profile_model(model: FloatModel, samples: Sequence[Sample], progress: Callable[[int, int], None]) -> Profile:
    """Profile all tensors in two passes over the samples: extremes and means, then histograms.

    Args:
        model: The float model.
        samples: The calibration samples.
        progress: Called with the number of finished steps and with their total, two for each sample.

    Raises:
        ModelError: A constant makes a tensor NaN or infinite.
        UsageError: A sample makes a tensor NaN or infinite.
    """
    observer = _Observer(model)
    seen: dict[str, _Extremes] = {}
    in_order = list(enumerate(samples)) if model.states else number_samples(samples)
    for number, (index, tensors) in enumerate(observer.look(in_order), 1):
        for name, array in tensors:
            if not np.isfinite(array).all():
                raise _not_finite(model, name, index)
            seen.setdefault(name, _Extremes()).add(array)
        progress(number, 2 * len(samples))
    spans = {name: (min(extremes.lows), max(extremes.highs)) for name, extremes in seen.items()}
    counts = {name: np.zeros((NUM_FOLDS, RANGE_HISTOGRAM_BINS), np.int64) for name in seen}
    for number, (_, tensors) in enumerate(observer.look(in_order)):
        for name, array in tensors:
            counts[name][number % NUM_FOLDS] += histogram(array, *spans[name])
        progress(len(samples) + number + 1, 2 * len(samples))
    profiled = {name: extremes.profile(counts[name].sum(0)) for name, extremes in seen.items()}
    whole = Profile(fingerprint(model), len(samples), profiled)
    if whole.distinct < FEW_CALIBRATION_SAMPLES:
        return whole
    folds = [
        {name: tensor_extremes.fold(k, counts[name][k]) for name, tensor_extremes in seen.items()}
        for k in range(NUM_FOLDS)
    ]
    return replace(whole, folds=folds)


def histogram(array: Array, low: float, high: float) -> Array:
    """Return the counts of elements in RANGE_HISTOGRAM_BINS equal bins from `low` to `high`.

    Args:
        array: The elements, all in [low, high].
        low: The lower end of the first bin.
        high: The upper end of the last bin. If it equals `low`, all elements are counted in the first bin.
    """
    if high == low:
        return np.bincount([0], [array.size], RANGE_HISTOGRAM_BINS).astype(np.int64)
    place = (array.reshape(-1).astype(np.float64) - low) * (RANGE_HISTOGRAM_BINS / (high - low))
    return np.bincount(
        np.minimum(place.astype(np.int64), RANGE_HISTOGRAM_BINS - 1), minlength=RANGE_HISTOGRAM_BINS
    ).astype(np.int64)


def merge_profiles(tensors: Sequence[TensorProfile]) -> TensorProfile:
    """Return the profile of the elements of several tensors together.

    It has no means, because the channels of different tensors need not correspond.
    """
    if len(tensors) == 1:
        return tensors[0]
    lows, highs = (np.asarray([getattr(t, side) for t in tensors]) for side in ("lows", "highs"))
    merged_lows, merged_highs = tuple(map(float, lows.min(0))), tuple(map(float, highs.max(0)))
    counts = sum(_rebin(t, min(merged_lows), max(merged_highs)) for t in tensors)
    return TensorProfile(merged_lows, merged_highs, tuple(np.asarray(counts).tolist()), ())


def _rebin(tensor: TensorProfile, low: float, high: float) -> Array:
    """Return the histogram over a range that holds the tensor's own, as if elements were evenly spread within a bin."""
    if tensor.low == tensor.high:
        counts: Array = histogram(np.asarray(tensor.low), low, high) * sum(tensor.histogram)
        return counts
    below = np.concatenate([[0.0], np.cumsum(tensor.counts)])
    at_edges = np.rint(np.interp(np.linspace(low, high, RANGE_HISTOGRAM_BINS + 1), tensor.edges, below))
    return np.diff(at_edges.astype(np.int64))


@dataclass
class _Extremes:
    """The extremes of one tensor by sample, and the sum of its means."""

    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    total: Array | float = 0.0

    def add(self, array: Array) -> None:
        """Add the extremes and the means by channel of one sample."""
        self.lows.append(float(array.min()))
        self.highs.append(float(array.max()))
        axis = min(1, array.ndim - 1)
        other_axes = tuple(a for a in range(array.ndim) if a != axis)
        self.total = self.total + array.mean(other_axes, dtype=np.float64)

    def profile(self, counts: Array) -> TensorProfile:
        """Return the profile of all samples so far, with the histogram `counts`."""
        means = np.atleast_1d(self.total) / len(self.lows)
        return TensorProfile(tuple(self.lows), tuple(self.highs), tuple(counts.tolist()), tuple(means.tolist()))

    def fold(self, number: int, counts: Array) -> TensorProfile:
        """Return the profile of one fold, whose `counts` have the bins of all samples.

        The range of the fold ends at the edges of its first and its last bin that is not empty.
        """
        edges, (used,) = np.linspace(min(self.lows), max(self.highs), RANGE_HISTOGRAM_BINS + 1), counts.nonzero()
        first, last = int(used[0]), int(used[-1]) + 1
        lows, highs = np.asarray(self.lows[number::NUM_FOLDS]), np.asarray(self.highs[number::NUM_FOLDS])
        lows = np.where(lows == lows.min(), edges[first], lows)
        highs = np.where(highs == highs.max(), edges[last], highs)
        return TensorProfile(tuple(lows.tolist()), tuple(highs.tolist()), tuple(counts[first:last].tolist()), ())


class _Observer:
    """A run of the float model that gives every tensor, and keeps the tensors of some samples for the second pass."""

    def __init__(self, model: FloatModel) -> None:
        self.model = model
        self.session = Session(all_tensors(model))
        inputs = {v.name for v in model.graph.inputs}
        self.inputs = [v.name for v in model.tensors if v.name in inputs]
        self.computed = [v.name for v in model.tensors if v.name not in inputs]
        self._abreast = RECURRENT_BATCH_SAMPLES if any(isinstance(node.op, Cell) for node in model.graph.nodes) else 1
        self._kept: dict[int, list[tuple[str, Array]]] = {}
        self._room = MAX_KEPT_PROFILE_ELEMENTS

    def look(self, samples: Sequence[tuple[int, Sample]]) -> Iterator[tuple[int, list[tuple[str, Array]]]]:
        """Yield the index of each sample with all its tensors that are not empty."""
        for start in range(0, len(samples), self._abreast):
            batch = samples[start : start + self._abreast]
            tensors_of = {index: self._kept.pop(index) for index, _ in batch if index in self._kept}
            new_samples = [(index, sample) for index, sample in batch if index not in tensors_of]
            for (index, _), tensors in zip(
                new_samples, self._tensors([sample for _, sample in new_samples]), strict=True
            ):
                tensors_of[index] = tensors
                size = sum(array.size for _, array in tensors)
                if size <= self._room:
                    self._room -= size
                    self._kept[index] = tensors
            yield from ((index, tensors_of.pop(index)) for index, _ in batch)

    def _tensors(self, samples: Sequence[Sample]) -> Iterator[list[tuple[str, Array]]]:
        """Yield the tensors of samples by running the model."""
        computed = [{n: s[n] for n in self.inputs} | self.session.run(self.computed, s) for s in samples]
        for tensors, inner in zip(computed, internal_tensors(self.model, samples, computed), strict=True):
            yield [(name, array) for name, array in (tensors | inner).items() if array.size]


def internal_tensors(
    model: FloatModel, samples: Sequence[Sample], known: Sequence[Mapping[str, Array]]
) -> list[dict[str, Array]]:
    """Return, for each sample, the tensors inside recurrent layers, such as gates.

    Their names are `<first output of the layer>.<role>`; a role names a kind of tensor, such as "hidden". ONNX Runtime
    does not give these tensors, so numpy computes them. If a layer reads a tensor that is not in `known`, the whole
    model is computed.

    Args:
        model: The float model.
        samples: The inputs of the model.
        known: The tensors of each sample that were computed before.
    """
    by_sample: list[dict[str, Array]] = [{} for _ in samples]
    cells = [node for node in model.graph.nodes if isinstance(node.op, Cell)]
    read = [[v for v in node.inputs if v is not None] for node in cells]
    if not all(v.is_constant or v.name in tensors for tensors in known for values in read for v in values):
        for sample, inner in zip(samples, by_sample, strict=True):
            interpret(model.graph, sample, partial(_observe, inner))
        return by_sample
    for node, values in zip(cells, read, strict=True):
        assert isinstance(node.op, Cell)
        operands = [[t[v.name].reshape(v.type.shape) if v.data is None else v.data for v in values] for t in known]
        for inner, (_, internals) in zip(by_sample, node.op.evaluate_batch(node.sig, operands), strict=True):
            inner |= _by_tensor_name(node, internals)
    return by_sample


def _observe(observed: dict[str, Array], node: Node, arrays: list[Array]) -> None:
    if isinstance(node.op, Cell):
        observed |= _by_tensor_name(node, node.op.internals(node.sig, *arrays))


def _by_tensor_name(node: Node, internals: Mapping[str, Array]) -> dict[str, Array]:
    return {f"{node.outputs[0].name}.{role}": array for role, array in internals.items()}


def _not_finite(model: FloatModel, name: str, sample: int) -> McugenError:
    """Return the error for a NaN or infinite tensor: a constant that its producer reads is bad, or else a sample."""
    producer = next((v.producer for v in model.graph.values() if v.name == name), None)
    place = f"{producer.place}: '{name}'" if producer else f"'{name}'"
    constants = {v.name: v.data for v in (producer.inputs if producer else ()) if v is not None and v.data is not None}
    bad_constant = next((name for name, data in constants.items() if not np.isfinite(data).all()), None)
    if bad_constant is not None:
        rule = f"{place} must be finite to be quantized"
        return ModelError(rule, f"NaN or infinity in the constant '{bad_constant}'", "train or export the model again")
    remedy = "check the calibration samples and how they are preprocessed"
    return UsageError(f"{place} must be finite on every sample", f"NaN or infinity on sample {sample}", remedy)
