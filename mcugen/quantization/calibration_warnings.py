# SPDX-License-Identifier: Apache-2.0
"""Warnings about calibration samples: repeated or constant samples, inputs that never change, raw bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx

from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.evaluation.metrics import Judged, classes, names_classes
from mcugen.evaluation.samples import Samples, spread
from mcugen.hir.graph import Node, Value
from mcugen.hir.traits import bias_input, readers_behind, weight_axes
from mcugen.hir.types import Array, DType
from mcugen.quantization.float_model import FloatModel
from mcugen.quantization.profile import Profile, profile_warnings

MIN_RAW_ELEMENTS = 64
"""Smallest number of elements of an input that may be an image or sound in raw bytes.

Shorter inputs are features, which may well be whole numbers.
"""

MIN_RAW_MAXIMUM = 200
"""Smallest maximum of an input's values for which the input may hold raw bytes (0 to 255)."""

MIN_RAW_LEVELS = 32
"""Smallest number of distinct values of an input for which the input may hold raw bytes."""

MAX_BYTE_VALUE = 255.0
"""Largest value of a raw byte."""

MAX_RAW_SUM_RATIO = 64.0
"""Largest ratio of the first layer's sums of products to its bias for which the network counts as trained on raw bytes.

The ratio is measured on samples of bytes (0 to 255). ResNet-8 for CIFAR-10, which was trained on bytes, has 2. A
network that was trained on numbers from 0 to 1 has a ratio of some hundreds: MobileNetV1 for visual wake words has 270.
"""

MAX_SCALE_TEST_SAMPLES = 64
"""Largest number of labelled samples on which the accuracy is compared for inputs as given and for scaled inputs."""

MIN_CORRECTED_SHARE = 0.05
"""Smallest share of samples whose wrong class must become right by scaling the inputs, for a warning.

The warning says that the network was trained on scaled inputs.
"""


_MOVES = {"Cast", "Flatten", "Identity", "Pad", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
"""ONNX operators that leave an input's numbers as they are."""
_WEIGHTED = {"Conv", "ConvTranspose", "Gemm", "GRU", "LSTM", "MatMul", "RNN"}
"""ONNX operators with weights. All operators in neither set may scale an input."""


def calibration_warnings(
    model: FloatModel, source: onnx.ModelProto, profile: Profile, samples: Samples | None
) -> list[str]:
    """Return a warning, as a text, for each problem of the calibration samples.

    Args:
        model: The float model.
        source: The model before layers are fused, which shows whether an operator scales an input.
        profile: The profile of the model's tensors on the samples.
        samples: The samples and labels; None if only their profile is known.
    """
    warnings = profile_warnings(model, profile)
    if samples is None:
        return warnings
    inputs = [v for v in model.graph.inputs if v.type.dtype is DType.FLOAT32 and v.type.count > 1]
    sampled_inputs = [v for v in inputs if v.name not in model.states.values() and v.name in samples.inputs[0]]
    if profile.distinct > 1:  # `profile_warnings` has reported samples that are all equal.
        warnings += _unchanging(sampled_inputs, samples)
    unscaled = [value for value in sampled_inputs if _first_operators(source, value.name) <= _WEIGHTED]
    return warnings + [text for value in unscaled for text in _raw_bytes(model, value, samples)]


def _first_operators(source: onnx.ModelProto, name: str) -> set[str]:
    """Return the types of the operators that compute with an input, directly or behind operators that move data."""
    aliases, operators = {name}, set[str]()
    for node in source.graph.node:
        if aliases.isdisjoint(node.input[:1] if node.op_type in _MOVES else node.input):
            continue
        if node.op_type in _MOVES:
            aliases.update(node.output)
        else:
            operators.add(node.op_type)
    return operators


def _unchanging(inputs: Sequence[Value], samples: Samples) -> Iterator[str]:
    first, count = samples.inputs[0], len(samples.inputs)
    for value in inputs:
        if all(np.array_equal(first[value.name], sample[value.name]) for sample in samples.inputs[1:]):
            what = f"input '{value.name}' is the same in all {count} calibration samples"
            remedy = "give samples in which it changes, or fix it: --bind NAME=VALUE"
            yield f"{what}: other values may lie outside the range that it is quantized for; {remedy}"


def _raw_bytes(model: FloatModel, value: Value, samples: Samples) -> Iterator[str]:
    """Yield a warning if an input gets whole numbers from 0 to 255 and the network seems to expect other numbers."""
    arrays = [np.asarray(sample[value.name]) for sample in samples.inputs]
    if value.type.count < MIN_RAW_ELEMENTS or not all(_are_bytes(array) for array in arrays):
        return
    levels = np.unique(np.concatenate([np.unique(array) for array in arrays]))
    layers = readers_behind(value)
    if (
        levels.max() < MIN_RAW_MAXIMUM
        or len(levels) < MIN_RAW_LEVELS
        or not layers
        or not all(weight_axes(n.op) for n in layers)
    ):
        return
    if _expects_bytes(model, value, layers, samples):
        return
    what = f"all calibration samples of '{value.name}' are whole numbers from {levels.min():g} to {levels.max():g}"
    remedy = f"if it was trained on other numbers, scale them: --preprocess scale=1/{MAX_BYTE_VALUE:g} or --pixel-scale"
    yield f"{what}, like raw bytes, and the network does not scale them; {remedy}"


def _are_bytes(array: Array) -> bool:
    low, high = array.min(initial=0), array.max(initial=0)
    return bool(low >= 0 and high <= MAX_BYTE_VALUE and (array == np.rint(array)).all())


def _expects_bytes(model: FloatModel, value: Value, layers: Sequence[Node], samples: Samples) -> bool:
    """Return whether labels or biases say that the network was trained on bytes.

    With labels, bytes are right if the network classifies bytes as well as scaled samples. Without labels, the sums of
    the first layers and their biases must have the same order of magnitude.
    """
    labels = samples.labels
    if labels is not None and labels.ndim == 1 and len(model.graph.inputs) == 1:
        gain = _gain_by_scaling(model, value, samples)
        if gain is not None:
            return gain <= MIN_CORRECTED_SHARE
    return all(_sum_to_bias(node, _moments(value, samples)) <= MAX_RAW_SUM_RATIO for node in layers)


def _gain_by_scaling(model: FloatModel, value: Value, samples_given: Samples) -> float | None:
    """Return the share of samples that become correct if scaled; None if the outputs are no classes."""
    indices = spread(len(samples_given.inputs), MAX_SCALE_TEST_SAMPLES)
    samples = [samples_given.inputs[place] for place in indices]
    scaled = [{**s, value.name: np.asarray(s[value.name] / np.float32(MAX_BYTE_VALUE), np.float32)} for s in samples]
    shares = []
    for inputs in (samples, scaled):
        outputs = run_onnxruntime(model.proto, inputs)
        if samples_given.labels is None or not names_classes(Judged(outputs, outputs)):
            return None
        shares.append(float((classes(outputs, list(outputs[0])) == samples_given.labels[indices]).mean()))
    return shares[1] - shares[0]


def _moments(value: Value, samples: Samples) -> tuple[float, float]:
    """Return the mean and the variance of an input's elements."""
    values = np.concatenate(
        [np.asarray(s[value.name], np.float64).reshape(-1) for s in samples.inputs[:MAX_SCALE_TEST_SAMPLES]]
    )
    return float(values.mean()), float(values.var())


def _sum_to_bias(node: Node, moments: tuple[float, float]) -> float:
    """Return the median ratio, over output channels, of a layer's sums to its biases; infinity without biases."""
    mean, variance = moments
    index, axis = next(iter(weight_axes(node.op).items()))
    place = bias_input(node.op)
    weights, bias = node.input(index).data, None if place is None else node.inputs[place]
    if weights is None or bias is None or bias.data is None:
        return float("inf")
    rows = np.moveaxis(weights.astype(np.float64), axis, 0).reshape(weights.shape[axis], -1)
    sums = np.sqrt((rows.sum(1) * mean) ** 2 + (rows**2).sum(1) * variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = sums / np.abs(bias.data.reshape(-1).astype(np.float64))
    return float(np.nanmedian(ratios)) if np.isfinite(ratios).any() else float("inf")
