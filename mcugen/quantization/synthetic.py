# SPDX-License-Identifier: Apache-2.0
"""Samples for a model of whose inputs there are none: of a range that is known, or such as batch normalizations saw.

A batch normalization holds the means and variances of what it read while the model was trained. Of many candidates of
noise, those are taken that together have these statistics most nearly (one after the other, each the best beside those
before it: herding); then of these and of sums of them, some times. Half of all noise is smooth, as images, sound and
spectra are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from mcugen.core.errors import UsageError
from mcugen.core.options import STATISTICS
from mcugen.evaluation.session import Session
from mcugen.hir.graph import Value
from mcugen.hir.types import Array, DType, Shape
from mcugen.quantization.float_model import FloatModel

COUNT = 64
"""Samples that are made."""

CANDIDATES, ROUNDS = 256, 4
"""Of which they are chosen by statistics, and how often."""

OCTAVES = 3
"""The smoothest noise changes from one of 2 ** OCTAVES elements to the next."""

LEAST_SMOOTH = 8
"""Elements of an axis along which noise may be smooth."""

AMPLITUDES = (-6.0, 8.0)
"""Powers of two that candidates reach where nobody knows a range."""


@dataclass(frozen=True)
class Range:
    """Of the elements of all inputs."""

    low: float
    high: float

    @staticmethod
    def parsed(text: str) -> Range | None:
        """LOW..HIGH; None for STATISTICS. UsageError for anything else."""
        if text == STATISTICS:
            return None
        try:
            low, high = map(float, text.split(".."))
        except ValueError:
            low, high = 0.0, 0.0
        if not (np.isfinite([low, high]).all() and low < high):
            remedy = f"LOW..HIGH, e.g. --synthetic -1..1; or {STATISTICS}"
            raise UsageError("--synthetic must be the range of inputs", f"'{text}'", remedy)
        return Range(low, high)


def synthetic_samples(model: FloatModel, source: onnx.ModelProto, wanted: str) -> tuple[list[dict[str, Array]], str]:
    """Samples as `--synthetic` says, and a note that tells of them. `source` is the model before it was fused.

    UsageError where inputs are no reals, or no batch normalization tells of them.
    """
    for value in model.graph.inputs:
        if value.type.dtype is not DType.FLOAT32:
            rule = "synthetic samples are of real inputs"
            raise UsageError(rule, f"'{value.name}' of {value.type.dtype.value}", "give --calibration SAMPLES")
    within, random = Range.parsed(wanted), np.random.default_rng(0)
    if within is not None:
        samples, kind = (
            _of_range(model.graph.inputs, within, random),
            f"with inputs of {within.low:g} to {within.high:g}",
        )
    else:
        norms = list(_normalizations(source))
        if not norms:
            remedy = "say what inputs reach: --synthetic LOW..HIGH"
            raise UsageError("statistics of inputs stand in batch normalizations", "a model without any", remedy)
        samples = _by_statistics(model.graph.inputs, source, norms, random)
        kind = f"whose statistics are nearest to those of {len(norms)} batch normalization{'s' * (len(norms) > 1)}"
    note = f"calibrated without data, by {len(samples)} synthetic samples {kind}"
    return samples, f"{note}: ranges and weights are guesses; give --calibration SAMPLES if there are any"


def _of_range(inputs: Sequence[Value], within: Range, random: np.random.Generator) -> list[dict[str, Array]]:
    """Each of its own level and contrast; every fourth reaches to both ends."""

    def made(shape: Shape, index: int) -> Array:
        noise = _noise(shape, index, random, random.uniform)
        low, high = (0.0, 1.0) if index % 4 == 0 else np.sort(random.uniform(size=2))
        span = noise.max() - noise.min() if noise.size else 0.0
        unit = (noise - noise.min()) / span if span else noise
        return np.asarray(within.low + (within.high - within.low) * (low + (high - low) * unit), np.float32)

    return [{v.name: made(v.type.shape, index) for v in inputs} for index in range(COUNT)]


def _noise(shape: Shape, index: int, random: np.random.Generator, draw: Callable[..., Array]) -> Array:
    """Of the index-th sample: white if it is even, else smooth along all long axes."""
    if index % 2 == 0:
        return np.asarray(draw(size=shape))
    step = 2 ** int(random.integers(1, OCTAVES + 1))
    coarse = [-(-n // step) + 1 if n >= LEAST_SMOOTH else n for n in shape]
    noise = np.asarray(draw(size=coarse))
    for axis, (few, many) in enumerate(zip(coarse, shape, strict=True)):
        if few != many:
            noise = _stretched(noise, axis, many, step)
    return noise


def _stretched(array: Array, axis: int, size: int, step: int) -> Array:
    """With straight lines between elements, `step` to each."""
    place = np.arange(size) / step
    left = place.astype(int)
    share = (place - left).reshape([-1 if a == axis else 1 for a in range(array.ndim)])
    stretched: Array = array.take(left, axis) * (1 - share) + array.take(left + 1, axis) * share
    return stretched


# ------------------------------------------------------------------------------------------------- statistics


@dataclass(frozen=True)
class _Norm:
    """A batch normalization: the tensor that it reads, and what it knows of its channels."""

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
    """The candidates whose statistics together are nearest."""
    known = {norm.tensor: norm for norm in norms}

    def made(value: Value, index: int) -> Array:
        noise = _noise(value.type.shape, index, random, random.normal)
        if value.name in known and value.type.rank > 1:  # then they are the input's own
            norm = known[value.name]
            shape = [-1 if a == 1 else 1 for a in range(value.type.rank)]
            return np.asarray(noise * np.sqrt(norm.variance).reshape(shape) + norm.mean.reshape(shape), np.float32)
        level = random.normal() + random.normal(size=[n if a < 2 else 1 for a, n in enumerate(value.type.shape)]) / 2
        return np.asarray(2 ** random.uniform(*AMPLITUDES) * (noise + 2 * level), np.float32)

    def summed(samples: Sequence[dict[str, Array]]) -> dict[str, Array]:
        a, b = (samples[place] for place in random.integers(len(samples), size=2))
        shares = random.normal(0.5, 0.5, 2)
        return {name: np.asarray(shares[0] * a[name] + shares[1] * b[name], np.float32) for name in a}

    statistics = _Statistics.of(source, norms)
    candidates = [{v.name: made(v, index) for v in inputs} for index in range(CANDIDATES)]
    chosen = statistics.nearest(candidates)
    for _ in range(ROUNDS - 1):
        chosen = statistics.nearest([*chosen, *(summed(chosen) for _ in range(CANDIDATES - COUNT))])
    return chosen


@dataclass(frozen=True)
class _Statistics:
    """Of samples, beside those that are wanted; `computed` are the tensors that a session gives."""

    norms: Sequence[_Norm]
    computed: Sequence[str]
    session: Session | None

    @staticmethod
    def of(source: onnx.ModelProto, norms: Sequence[_Norm]) -> _Statistics:
        """Of what the normalizations of a model read."""
        proto = onnx.ModelProto()
        proto.CopyFrom(source)
        given = {v.name for v in proto.graph.input}
        computed = list(dict.fromkeys(norm.tensor for norm in norms if norm.tensor not in given))
        del proto.graph.output[:]
        proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in computed)
        return _Statistics(norms, computed, Session(proto, literal=False) if computed else None)

    def nearest(self, candidates: Sequence[dict[str, Array]]) -> list[dict[str, Array]]:
        """Those whose statistics together are nearest."""
        return [candidates[place] for place in _herded(np.stack([self._apart(sample) for sample in candidates]))]

    def _apart(self, sample: dict[str, Array]) -> Array:
        """How far means and squares of all channels are from those wanted, in units of these."""
        found = {**sample, **(self.session.run(self.computed, sample) if self.session else {})}
        return np.concatenate([_apart(found[norm.tensor], norm) for norm in self.norms])


def _apart(x: Array, norm: _Norm) -> Array:
    deviation = np.sqrt(np.maximum(norm.variance, np.finfo(np.float32).tiny))
    centred = (x.astype(np.float64).swapaxes(1, -1) - norm.mean) / deviation
    axes = tuple(range(x.ndim - 1))
    return np.concatenate([centred.mean(axes), np.square(centred).mean(axes) - 1])


def _herded(rows: Array) -> list[int]:
    """The places of COUNT candidates, the mean of whose rows is nearest to 0; each is taken once."""
    rows = np.clip(rows, -1e6, 1e6)  # nothing is lost among the wildest
    total, left, chosen = np.zeros(rows.shape[1]), np.ones(len(rows), bool), list[int]()
    for _ in range(COUNT):
        error = np.square(total + rows).sum(1)
        best = int(np.where(left, error, np.inf).argmin())
        total, left[best] = total + rows[best], False
        chosen.append(best)
    return chosen
