# SPDX-License-Identifier: Apache-2.0
"""What was seen of each tensor while a model ran on calibration samples: independent of any quantization scheme."""

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
from mcugen.quantization.samples import Sample, numbered

BINS = 2048
"""Of each histogram: eight for each code of int8."""

FEW = 10
"""Samples below which the user is told, and ranges get a margin: the next sample will reach further than these did."""

FOLDS = 2
"""Parts of the samples that are profiled for themselves: what one of them suggests is judged by the others."""

ABREAST = 32
"""Samples that recurrent layers compute side by side."""

MOST_KEPT = 2**25
"""Elements of tensors that are kept from the first look for the second; other samples are run again."""

TOLD = 0.05
"""Share of constant or repeated samples above which the user is told."""


@dataclass(frozen=True)
class TensorProfile:
    """`lows`, `highs`: extremes of each sample, in an order of their own (a stream's in time).

    `histogram`: counts in equal bins over all of them. `means`: of each index of axis 1 (of a vector: of axis 0), over
    samples and all other axes.
    """

    lows: tuple[float, ...]
    highs: tuple[float, ...]
    histogram: tuple[int, ...]
    means: tuple[float, ...]

    @property
    def low(self) -> float:
        """The least value."""
        return min(self.lows)

    @property
    def high(self) -> float:
        """The greatest value."""
        return max(self.highs)

    @cached_property
    def edges(self) -> Array:
        """Where bins begin and end (all at the same place if every element is the same), not to be written to."""
        return np.linspace(self.low, self.high, len(self.histogram) + 1)

    @cached_property
    def counts(self) -> Array:
        """The histogram as float64, not to be written to."""
        return np.asarray(self.histogram, np.float64)

    @cached_property
    def filled(self) -> tuple[Array, Array]:
        """The middles of all bins that are not empty, and their counts, not to be written to."""
        used = self.counts > 0
        return ((self.edges[1:] + self.edges[:-1]) / 2)[used], self.counts[used]


@dataclass(frozen=True)
class Profile:
    """Of the float model with this fingerprint, on so many samples.

    `folds`: of every FOLDS-th sample, from each of the first on; none where samples are few, or not known any more.
    """

    sha256: str
    samples: int
    tensors: Mapping[str, TensorProfile]
    folds: Sequence[Mapping[str, TensorProfile]] = ()

    @property
    def distinct(self) -> int:
        """How many samples differ from all others in the extremes of some tensor; at least 1."""
        ends = [side for tensor in self.tensors.values() for side in (tensor.lows, tensor.highs)]
        return max(len(set(zip(*ends, strict=True))), 1)


def profile_notes(model: FloatModel, profile: Profile) -> list[str]:
    """Return a line for each reason why these samples say little."""
    count, different = profile.samples, profile.distinct
    notes = profile_warnings(model, profile)
    if different < FEW:
        description = f"{different} {'different ' * (different < count)}sample{'s' * (different != 1)}"
        notes.append(f"calibrated by {description}: ranges and weights are guesses by so few; give 100 or more")
    return notes


def profile_warnings(model: FloatModel, profile: Profile) -> list[str]:
    """Return a line for each thing that is wrong with these samples."""
    count, different = profile.samples, profile.distinct
    inputs_given = [v for v in model.graph.inputs if v.type.count > 1 and v.name not in model.states.values()]
    inputs = [profile.tensors[v.name] for v in inputs_given if v.name in profile.tensors]
    flat = sum(all(t.lows[i] == t.highs[i] for t in inputs) for i in range(count)) if inputs else 0
    notes = []
    if flat > TOLD * count:
        what = f"{flat} of {count} calibration samples are constant: each has one number everywhere"
        notes.append(f"{what}; check how they were recorded and read")
    if count - different > TOLD * count:
        what = f"{count - different} of {count} calibration samples repeat others, and count for nothing"
        notes.append(f"{what}; give samples that differ")
    return notes


def fingerprint(model: FloatModel) -> str:
    """SHA-256 of what decides about activations: the inputs' shapes and all constants, as fused and equalized."""
    digest = hashlib.sha256()
    for value in model.graph.values():
        digest.update(f"{value.name}: {value.type}\n".encode())
        if value.data is not None:
            digest.update(np.ascontiguousarray(value.data).tobytes())
    return digest.hexdigest()


def profile_model(model: FloatModel, samples: Sequence[Sample], progress: Callable[[int, int], None]) -> Profile:
    """Looks at every sample twice: for extremes and means, then for histograms. An error for NaN or infinity."""
    observer = _Observer(model)
    seen: dict[str, _Extremes] = {}
    in_order = list(enumerate(samples)) if model.states else numbered(samples)
    for done, (index, tensors) in enumerate(observer.look(in_order), 1):
        for name, array in tensors:
            if not np.isfinite(array).all():
                raise _not_finite(model, name, index)
            seen.setdefault(name, _Extremes()).add(array)
        progress(done, 2 * len(samples))
    spans = {name: (min(extremes.lows), max(extremes.highs)) for name, extremes in seen.items()}
    counts = {name: np.zeros((FOLDS, BINS), np.int64) for name in seen}
    for done, (_, tensors) in enumerate(observer.look(in_order)):
        for name, array in tensors:
            counts[name][done % FOLDS] += histogram(array, *spans[name])
        progress(len(samples) + done + 1, 2 * len(samples))
    profiled = {name: extremes.profile(counts[name].sum(0)) for name, extremes in seen.items()}
    whole = Profile(fingerprint(model), len(samples), profiled)
    if whole.distinct < FEW:
        return whole
    folds = [{name: each.fold(k, counts[name][k]) for name, each in seen.items()} for k in range(FOLDS)]
    return replace(whole, folds=folds)


def histogram(array: Array, low: float, high: float) -> Array:
    """Counts in BINS equal bins of [low, high], of elements that lie there."""
    if high == low:
        return np.bincount([0], [array.size], BINS).astype(np.int64)
    place = (array.reshape(-1).astype(np.float64) - low) * (BINS / (high - low))
    return np.bincount(np.minimum(place.astype(np.int64), BINS - 1), minlength=BINS).astype(np.int64)


def merge_profiles(tensors: Sequence[TensorProfile]) -> TensorProfile:
    """The profile of all their elements together; there are no means, as channels need not correspond."""
    if len(tensors) == 1:
        return tensors[0]
    lows, highs = (np.asarray([getattr(t, side) for t in tensors]) for side in ("lows", "highs"))
    merged_lows, merged_highs = tuple(map(float, lows.min(0))), tuple(map(float, highs.max(0)))
    counts = sum(_rebinned(t, min(merged_lows), max(merged_highs)) for t in tensors)
    return TensorProfile(merged_lows, merged_highs, tuple(np.asarray(counts).tolist()), ())


def _rebinned(tensor: TensorProfile, low: float, high: float) -> Array:
    """The histogram over a range that contains the tensor's own; elements lie evenly within a bin."""
    if tensor.low == tensor.high:
        counts: Array = histogram(np.asarray(tensor.low), low, high) * sum(tensor.histogram)
        return counts
    below = np.concatenate([[0.0], np.cumsum(tensor.counts)])
    at_edges = np.rint(np.interp(np.linspace(low, high, BINS + 1), tensor.edges, below))
    return np.diff(at_edges.astype(np.int64))


@dataclass
class _Extremes:
    """Of one tensor, sample by sample."""

    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    total: Array | float = 0.0

    def add(self, array: Array) -> None:
        """Takes the extremes and the means by channel of one more sample."""
        self.lows.append(float(array.min()))
        self.highs.append(float(array.max()))
        axis = min(1, array.ndim - 1)
        others = tuple(a for a in range(array.ndim) if a != axis)
        self.total = self.total + array.mean(others, dtype=np.float64)

    def profile(self, counts: Array) -> TensorProfile:
        """The profile of all samples so far, with the histogram `counts`."""
        means = np.atleast_1d(self.total) / len(self.lows)
        return TensorProfile(tuple(self.lows), tuple(self.highs), tuple(counts.tolist()), tuple(means.tolist()))

    def fold(self, number: int, counts: Array) -> TensorProfile:
        """Of one fold, whose `counts` are in the bins of all: it reaches to the ends of its own first and last."""
        edges, (used,) = np.linspace(min(self.lows), max(self.highs), BINS + 1), counts.nonzero()
        first, last = int(used[0]), int(used[-1]) + 1
        lows, highs = np.asarray(self.lows[number::FOLDS]), np.asarray(self.highs[number::FOLDS])
        lows = np.where(lows == lows.min(), edges[first], lows)
        highs = np.where(highs == highs.max(), edges[last], highs)
        return TensorProfile(tuple(lows.tolist()), tuple(highs.tolist()), tuple(counts[first:last].tolist()), ())


class _Observer:
    """The float model with every tensor among its outputs."""

    def __init__(self, model: FloatModel) -> None:
        self.model = model
        self.session = Session(all_tensors(model))
        inputs = {v.name for v in model.graph.inputs}
        self.inputs = [v.name for v in model.tensors if v.name in inputs]
        self.computed = [v.name for v in model.tensors if v.name not in inputs]
        self._abreast = ABREAST if any(isinstance(node.op, Cell) for node in model.graph.nodes) else 1
        self._kept: dict[int, list[tuple[str, Array]]] = {}
        self._room = MOST_KEPT

    def look(self, samples: Sequence[tuple[int, Sample]]) -> Iterator[tuple[int, list[tuple[str, Array]]]]:
        """Every tensor that is not empty, by the samples' indices."""
        for at in range(0, len(samples), self._abreast):
            some = samples[at : at + self._abreast]
            known = {index: self._kept.pop(index) for index, _ in some if index in self._kept}
            new = [(index, sample) for index, sample in some if index not in known]
            for (index, _), made in zip(new, self._tensors([sample for _, sample in new]), strict=True):
                known[index] = made
                size = sum(array.size for _, array in made)
                if size <= self._room:
                    self._room -= size
                    self._kept[index] = made
            yield from ((index, known.pop(index)) for index, _ in some)

    def _tensors(self, samples: Sequence[Sample]) -> Iterator[list[tuple[str, Array]]]:
        """The same of samples that were not looked at."""
        found = [{n: s[n] for n in self.inputs} | self.session.run(self.computed, s) for s in samples]
        for tensors, inner in zip(found, internal_tensors(self.model, samples, found), strict=True):
            yield [(name, array) for name, array in (tensors | inner).items() if array.size]


def internal_tensors(
    model: FloatModel, samples: Sequence[Sample], known: Sequence[Mapping[str, Array]]
) -> list[dict[str, Array]]:
    """What layers compute within (`Cell.internals`), as `<first output>.<role>`: known to no runtime but ours.

    It computes all other nodes, too, where a layer reads what is not among the `known` tensors.
    """
    found: list[dict[str, Array]] = [{} for _ in samples]
    cells = [node for node in model.graph.nodes if isinstance(node.op, Cell)]
    read = [[v for v in node.inputs if v is not None] for node in cells]
    if not all(v.is_constant or v.name in tensors for tensors in known for values in read for v in values):
        for sample, inner in zip(samples, found, strict=True):
            interpret(model.graph, sample, partial(_observe, inner))
        return found
    for node, values in zip(cells, read, strict=True):
        assert isinstance(node.op, Cell)
        given = [[t[v.name].reshape(v.type.shape) if v.data is None else v.data for v in values] for t in known]
        for inner, (_, internals) in zip(found, node.op.abreast(node.sig, given), strict=True):
            inner |= _named(node, internals)
    return found


def _observe(found: dict[str, Array], node: Node, arrays: list[Array]) -> None:
    if isinstance(node.op, Cell):
        found |= _named(node, node.op.internals(node.sig, *arrays))


def _named(node: Node, internals: Mapping[str, Array]) -> dict[str, Array]:
    return {f"{node.outputs[0].name}.{role}": array for role, array in internals.items()}


def _not_finite(model: FloatModel, name: str, sample: int) -> McugenError:
    """Whose fault it is: that of a constant which is read there, or that of the samples."""
    producer = next((v.producer for v in model.graph.values() if v.name == name), None)
    place = f"{producer.place}: '{name}'" if producer else f"'{name}'"
    constants = {v.name: v.data for v in (producer.inputs if producer else ()) if v is not None and v.data is not None}
    bad = next((name for name, data in constants.items() if not np.isfinite(data).all()), None)
    if bad is not None:
        rule = f"{place} must be finite to be quantized"
        return ModelError(rule, f"NaN or infinity in the constant '{bad}'", "train or export the model again")
    remedy = "check the calibration samples and how they are preprocessed"
    return UsageError(f"{place} must be finite on every sample", f"NaN or infinity on sample {sample}", remedy)
