# SPDX-License-Identifier: Apache-2.0
"""Synthetic calibration samples: noise of a known range, or noise that fits the statistics of batch normalizations.

A batch normalization holds the means and variances of its input during training. Of many candidates of noise, those are
chosen that together have these statistics most nearly. They are chosen one after the other, each the best complement of
those before it (herding). Further rounds choose from these samples and from sums of them. Half of all noise is smooth,
as images, sound and spectra are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from mcugen.core.errors import UsageError
from mcugen.core.options import MATCH_STATISTICS
from mcugen.evaluation.session import Session
from mcugen.hir.graph import Value
from mcugen.hir.types import Array, DType, Shape
from mcugen.quantization.float_model import FloatModel

NUM_SYNTHETIC_SAMPLES = 64
"""Number of synthetic samples that replace calibration samples."""

NUM_CANDIDATES_PER_ROUND = 256
"""Number of noise samples that are drawn in a round; those that match the batch normalizations' statistics are kept."""

NUM_CANDIDATE_ROUNDS = 4
"""Number of rounds of noise candidates, for samples that match the statistics of batch normalizations."""

NUM_NOISE_OCTAVES = 3
"""Number of octaves of smooth noise.

The coarsest octave has independent values at distances of 2^NUM_NOISE_OCTAVES elements.
"""

MIN_SMOOTH_AXIS = 8
"""Smallest length, in elements, of an axis along which synthetic noise is smooth."""

LOG2_AMPLITUDES = (-6.0, 8.0)
"""Binary logarithms of the smallest and largest amplitude of noise that is tried for an input of unknown range."""


@dataclass(frozen=True)
class InputRange:
    """The range of all elements of synthetic inputs, as the user gives it in `--synthetic LOW..HIGH`.

    Attributes:
        low: Smallest element.
        high: Largest element.
    """

    low: float
    high: float

    @staticmethod
    def parsed(text: str) -> InputRange | None:
        """Parse the argument of `--synthetic`: a range `LOW..HIGH`, or MATCH_STATISTICS, for which None is returned.

        Raises:
            UsageError: The text is neither.
        """
        if text == MATCH_STATISTICS:
            return None
        try:
            low, high = map(float, text.split(".."))
        except ValueError:
            low, high = 0.0, 0.0
        if not (np.isfinite([low, high]).all() and low < high):
            remedy = f"LOW..HIGH, e.g. --synthetic -1..1; or {MATCH_STATISTICS}"
            raise UsageError("--synthetic must be the range of inputs", f"'{text}'", remedy)
        return InputRange(low, high)


def synthetic_samples(model: FloatModel, source: onnx.ModelProto, argument: str) -> tuple[list[dict[str, Array]], str]:
    """Return synthetic samples, and a note that describes them.

    Args:
        model: The float model.
        source: The model before it was fused.
        argument: The argument of `--synthetic`.

    Raises:
        UsageError: An input is not real, or the model has no batch normalization with statistics.
    """
    for value in model.graph.inputs:
        if value.type.dtype is not DType.FLOAT32:
            rule = "synthetic samples are of real inputs"
            raise UsageError(rule, f"'{value.name}' of {value.type.dtype.value}", "give --calibration SAMPLES")
    bounds, random = InputRange.parsed(argument), np.random.default_rng(0)
    if bounds is not None:
        samples, kind = (
            _of_range(model.graph.inputs, bounds, random),
            f"with inputs of {bounds.low:g} to {bounds.high:g}",
        )
    else:
        norms = list(_normalizations(source))
        if not norms:
            remedy = "give the range of inputs: --synthetic LOW..HIGH"
            raise UsageError(
                "the statistics of inputs are taken from batch normalizations", "a model without any", remedy
            )
        samples = _by_statistics(model.graph.inputs, source, norms, random)
        kind = f"whose statistics are nearest to those of {len(norms)} batch normalization{'s' * (len(norms) > 1)}"
    note = f"calibrated without data, by {len(samples)} synthetic samples {kind}"
    return samples, f"{note}: ranges and weights are guesses; give --calibration SAMPLES if there are any"


def _of_range(inputs: Sequence[Value], bounds: InputRange, random: np.random.Generator) -> list[dict[str, Array]]:
    """Return samples of different levels and contrasts; every fourth one reaches both ends of the range."""

    def made(shape: Shape, index: int) -> Array:
        noise = _noise(shape, index, random, random.uniform)
        low, high = (0.0, 1.0) if index % 4 == 0 else np.sort(random.uniform(size=2))
        span = noise.max() - noise.min() if noise.size else 0.0
        unit = (noise - noise.min()) / span if span else noise
        return np.asarray(bounds.low + (bounds.high - bounds.low) * (low + (high - low) * unit), np.float32)

    return [{v.name: made(v.type.shape, index) for v in inputs} for index in range(NUM_SYNTHETIC_SAMPLES)]


def _noise(shape: Shape, index: int, random: np.random.Generator, draw: Callable[..., Array]) -> Array:
    """Return noise for a sample: white if its index is even, else smooth along all long axes."""
    if index % 2 == 0:
        return np.asarray(draw(size=shape))
    step = 2 ** int(random.integers(1, NUM_NOISE_OCTAVES + 1))
    coarse = [-(-n // step) + 1 if n >= MIN_SMOOTH_AXIS else n for n in shape]
    noise = np.asarray(draw(size=coarse))
    for axis, (few, many) in enumerate(zip(coarse, shape, strict=True)):
        if few != many:
            noise = _interpolate(noise, axis, many, step)
    return noise


def _interpolate(array: Array, axis: int, size: int, step: int) -> Array:
    """Interpolate an array linearly along an axis, with `step` positions per element."""
    place = np.arange(size) / step
    left = place.astype(int)
    share = (place - left).reshape([-1 if a == axis else 1 for a in range(array.ndim)])
    stretched: Array = array.take(left, axis) * (1 - share) + array.take(left + 1, axis) * share
    return stretched


# ------------------------------------------------------------------------------------------------- statistics


@dataclass(frozen=True)
class _Norm:
    """A batch normalization: the tensor that it reads, and the mean and variance of each channel."""

    tensor: str
    mean: Array
    variance: Array


def _normalizations(source: onnx.ModelProto) -> Iterator[_Norm]:
    stored = {t.name: t for t in source.graph.initializer}
    for node in source.graph.node:
        if node.op_type == "BatchNormalization" and all(name in stored for name in node.input[3:5]):
            mean, variance = (numpy_helper.to_array(stored[name]).astype(np.float64) for name in node.input[3:5])
            yield _Norm(node.input[0], mean, variance)


def _by_statistics(
    inputs: Sequence[Value], source: onnx.ModelProto, norms: Sequence[_Norm], random: np.random.Generator
) -> list[dict[str, Array]]:
    """Return the candidates whose joint statistics are nearest to those of the batch normalizations."""
    known = {norm.tensor: norm for norm in norms}

    def made(value: Value, index: int) -> Array:
        noise = _noise(value.type.shape, index, random, random.normal)
        if value.name in known and value.type.rank > 1:  # The statistics are those of the input itself.
            norm = known[value.name]
            shape = [-1 if a == 1 else 1 for a in range(value.type.rank)]
            return np.asarray(noise * np.sqrt(norm.variance).reshape(shape) + norm.mean.reshape(shape), np.float32)
        level = random.normal() + random.normal(size=[n if a < 2 else 1 for a, n in enumerate(value.type.shape)]) / 2
        return np.asarray(2 ** random.uniform(*LOG2_AMPLITUDES) * (noise + 2 * level), np.float32)

    def summed(samples: Sequence[dict[str, Array]]) -> dict[str, Array]:
        a, b = (samples[place] for place in random.integers(len(samples), size=2))
        shares = random.normal(0.5, 0.5, 2)
        return {name: np.asarray(shares[0] * a[name] + shares[1] * b[name], np.float32) for name in a}

    statistics = _Statistics.of(source, norms)
    candidates = [{v.name: made(v, index) for v in inputs} for index in range(NUM_CANDIDATES_PER_ROUND)]
    chosen = statistics.nearest(candidates)
    for _ in range(NUM_CANDIDATE_ROUNDS - 1):
        chosen = statistics.nearest(
            [*chosen, *(summed(chosen) for _ in range(NUM_CANDIDATES_PER_ROUND - NUM_SYNTHETIC_SAMPLES))]
        )
    return chosen


@dataclass(frozen=True)
class _Statistics:
    """A comparison of samples with the statistics of batch normalizations.

    `computed` are the tensors that the session computes; the others are inputs.
    """

    norms: Sequence[_Norm]
    computed: Sequence[str]
    session: Session | None

    @staticmethod
    def of(source: onnx.ModelProto, norms: Sequence[_Norm]) -> _Statistics:
        """Return the comparison for the tensors that the normalizations of a model read."""
        proto = onnx.ModelProto()
        proto.CopyFrom(source)
        input_names = {v.name for v in proto.graph.input}
        computed = list(dict.fromkeys(norm.tensor for norm in norms if norm.tensor not in input_names))
        del proto.graph.output[:]
        proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in computed)
        return _Statistics(norms, computed, Session(proto, literal=False) if computed else None)

    def nearest(self, candidates: Sequence[dict[str, Array]]) -> list[dict[str, Array]]:
        """Return the candidates whose joint statistics are nearest."""
        return [
            candidates[place] for place in _choose_herd(np.stack([self._deviations(sample) for sample in candidates]))
        ]

    def _deviations(self, sample: dict[str, Array]) -> Array:
        """Return the deviations of the means and mean squares of all channels, in units of the statistics."""
        tensors = {**sample, **(self.session.run(self.computed, sample) if self.session else {})}
        return np.concatenate([_mean_deviations(tensors[norm.tensor], norm) for norm in self.norms])


def _mean_deviations(x: Array, norm: _Norm) -> Array:
    deviation = np.sqrt(np.maximum(norm.variance, np.finfo(np.float32).tiny))
    centred = (x.astype(np.float64).swapaxes(1, -1) - norm.mean) / deviation
    axes = tuple(range(x.ndim - 1))
    return np.concatenate([centred.mean(axes), np.square(centred).mean(axes) - 1])


def _choose_herd(rows: Array) -> list[int]:
    """Return the places of NUM_SYNTHETIC_SAMPLES candidates whose mean row is nearest to 0; each is chosen once."""
    rows = np.clip(rows, -1e6, 1e6)  # Sums stay finite, and such candidates are not chosen anyway.
    total, left, chosen = np.zeros(rows.shape[1]), np.ones(len(rows), bool), list[int]()
    for _ in range(NUM_SYNTHETIC_SAMPLES):
        error = np.square(total + rows).sum(1)
        best = int(np.where(left, error, np.inf).argmin())
        total, left[best] = total + rows[best], False
        chosen.append(best)
    return chosen
