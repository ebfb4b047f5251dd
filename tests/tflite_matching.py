# SPDX-License-Identifier: Apache-2.0
"""Models of many layers each, for `--match tflite`; `tflite_matching.tsv` has TensorFlow Lite Micro's outputs.

    python tests/tflite_matching.py

writes that file anew. It needs the extra `tflite-oracle`. Scales, zero points and sizes are random: multipliers have
all signs of exponents, and results reach both ends of their range.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tflite_cases import Case, Maker, image_sizes, write_expected
from tflite_models import LiteModel, Number, f32, i8, i32

from mcugen.hir.types import Array

EXPECTED_BITS = Path(__file__).with_name("tflite_matching.tsv")
"""Outputs by name of the model, as in `tflite_cases.EXPECTED`."""


def quantization(m: Maker, low: float = 1e-3, high: float = 0.5) -> tuple[float, int]:
    """Return a random scale, uniform in its logarithm, and a random zero point of int8."""
    scale = np.exp(m.random.uniform(np.log(low), np.log(high)))
    return float(np.float32(scale)), int(m.random.integers(-128, 128))


def constants(
    m: Maker, weights: Array, axis: int, *, is_per_channel: bool, scale: float, gain: float, reach: int = 2000
) -> tuple[list[int], float]:
    """Add weights and bias of a layer; return their numbers, and a scale for its output.

    Args:
        m: What makes the model.
        weights: Integer weights.
        axis: Axis of the output channels.
        is_per_channel: Whether each channel has a scale.
        scale: Scale of the input.
        gain: Factor of the results in units of the output; results of 1 use about half of its range.
        reach: Largest magnitude of a bias.
    """
    channels, depth = weights.shape[axis], weights.size // weights.shape[axis]
    scales = np.float32(np.exp(m.random.uniform(-7, -3, channels if is_per_channel else 1)))
    w = m.graph.const(weights, "int8", scale=scales.tolist(), axis=axis if is_per_channel else 0)
    bias = m.random.integers(-reach, reach + 1, channels)
    b = m.graph.const(bias, "int32", scale=(scales * np.float32(scale)).tolist())
    step = max(70 * np.sqrt(depth), reach / 100)
    return [w, b], float(np.float32(scale * np.median(scales) * step / gain))


def convolutions(m: Maker) -> None:
    """Build convolutions over strides, paddings, dilations, activations, and scales by channel or tensor."""
    choices = itertools.product((0, 1), ((1, 1), (2, 1), (2, 2)), (0, 1, 2, 3), (True, False))
    for number, (padding, strides, activation, is_per_channel) in enumerate(choices):
        shape = (1, *m.random.integers(4, 7, 2).tolist(), int(m.random.integers(1, 6)))
        kernel = tuple(m.random.integers(1, 3, 2).tolist())
        dilations = (2, 1) if strides == (1, 1) and number % 3 == 0 else (1, 1)
        channels = int(m.random.integers(1, 8))
        scale, zero = quantization(m)
        x = m.input(*shape, kind="int8", scale=scale, zero=zero)
        weights = m.random.integers(-127, 128, (channels, *kernel, shape[3]))
        gain = 300.0 if number % 7 == 0 else 1.0
        held, out = constants(m, weights, 0, is_per_channel=is_per_channel, scale=scale, gain=gain)
        sizes = image_sizes(shape, kernel, strides, dilations, padding)
        y = m.result(1, *sizes, channels, kind="int8", scale=out, zero=int(m.random.integers(-128, 128)))
        numbers = {1: strides[1], 2: strides[0], 4: dilations[1], 5: dilations[0]}
        options = {0: i8(padding), 3: i8(activation)} | {key: i32(value) for key, value in numbers.items()}
        m.graph.op("CONV_2D", [x, *held[: 1 + (number % 5 > 0)]], [y], 1, dict(sorted(options.items())))


def depthwise_convolutions(m: Maker) -> None:
    """Build depthwise convolutions over strides, paddings, multipliers, activations, and scales."""
    choices = itertools.product((0, 1), ((1, 1), (2, 2)), (1, 2), (0, 1, 3), (True, False))
    for number, (padding, strides, multiplier, activation, is_per_channel) in enumerate(choices):
        shape = (1, *m.random.integers(4, 7, 2).tolist(), int(m.random.integers(1, 6)))
        kernel = tuple(m.random.integers(1, 5, 2).tolist())
        channels = shape[3] * multiplier
        scale, zero = quantization(m)
        x = m.input(*shape, kind="int8", scale=scale, zero=zero)
        weights = m.random.integers(-127, 128, (1, *kernel, channels))
        gain = 100.0 if number % 7 == 0 else 1.0
        held, out = constants(m, weights, 3, is_per_channel=is_per_channel, scale=scale, gain=gain)
        sizes = image_sizes(shape, kernel, strides, (1, 1), padding)
        y = m.result(1, *sizes, channels, kind="int8", scale=out, zero=int(m.random.integers(-128, 128)))
        numbers = {1: strides[1], 2: strides[0], 3: multiplier, 5: 1, 6: 1}
        options = {0: i8(padding), 4: i8(activation)} | {key: i32(value) for key, value in numbers.items()}
        m.graph.op("DEPTHWISE_CONV_2D", [x, *held], [y], 2, dict(sorted(options.items())))


def dense_layers(m: Maker) -> None:
    """Build fully connected layers over ranks, activations, and scales by channel or tensor."""
    for number, (activation, is_per_channel, rank) in enumerate(itertools.product((0, 1, 3), (False, True), (2, 3))):
        rows, depth, channels = (int(n) for n in m.random.integers(1, 20, 3))
        shape = (rows, depth) if rank == 2 else (2, rows, depth)
        scale, zero = quantization(m)
        x = m.input(*shape, kind="int8", scale=scale, zero=zero)
        weights = m.random.integers(-127, 128, (channels, depth))
        gain, reach = 300.0 if number % 5 == 0 else 1.0, 2**30 if number % 4 == 3 else 2000
        held, out = constants(m, weights, 0, is_per_channel=is_per_channel, scale=scale, gain=gain, reach=reach)
        sizes = (rows, channels) if rank == 2 else (2, rows, channels)
        y = m.result(*sizes, kind="int8", scale=out, zero=int(m.random.integers(-128, 128)))
        m.graph.op("FULLY_CONNECTED", [x, *held], [y], 8, {0: i8(activation), 2: Number("B", rank == 3)})


def arithmetic(m: Maker) -> None:
    """Build sums, differences and products over activations, ratios of scales, and broadcasting."""
    for kind, union in (("ADD", 11), ("SUB", 28), ("MUL", 21)):
        for activation, other in itertools.product((0, 1, 3), ((2, 5, 8), (1, 1, 8), ())):
            first, zero = quantization(m, 1e-2, 0.3)
            second, other_zero = quantization(m, 1e-2, 0.3)
            out = first * second * 64 if kind == "MUL" else max(first, second)
            x = m.input(2, 5, 8, kind="int8", scale=first, zero=zero)
            if other:
                b = m.input(*other, kind="int8", scale=second, zero=other_zero)
            else:
                values = m.values(2, 5, 8, kind="int8", is_quantized=True)
                b = m.graph.const(values, "int8", scale=second, zero=other_zero)
            scale = float(np.float32(out * m.random.uniform(0.5, 2)))
            y = m.result(2, 5, 8, kind="int8", scale=scale, zero=int(m.random.integers(-128, 128)))
            m.graph.op(kind, [x, b], [y], union, {0: i8(activation)})


def pools(m: Maker) -> None:
    """Build pools over windows, strides, paddings, and kinds; those over the whole image too."""
    for kind, padding, window in itertools.product(
        ("AVERAGE_POOL_2D", "MAX_POOL_2D"), (0, 1), ((2, 2), (3, 2), (2, 1), (6, 7))
    ):
        for strides in ((1, 1), (2, 2)):
            channels = int(m.random.integers(1, 9))
            scale, zero = quantization(m)
            x = m.input(1, 6, 7, channels, kind="int8", scale=scale, zero=zero)
            sizes = image_sizes((1, 6, 7, channels), window, strides, (1, 1), padding)
            y = m.result(1, *sizes, channels, kind="int8", scale=scale, zero=zero)
            numbers = {1: strides[1], 2: strides[0], 3: window[1], 4: window[0]}
            options = {0: i8(padding), 5: i8(0)} | {key: i32(value) for key, value in numbers.items()}
            m.graph.op(kind, [x], [y], 5, dict(sorted(options.items())))


def softmaxes(m: Maker) -> None:
    """Build softmaxes over lengths of rows and scales."""
    for length, low in itertools.product((1, 2, 3, 10, 100, 256), (2e-3, 2e-2, 0.2)):
        scale, zero = quantization(m, low, 10 * low)
        x = m.input(3, length, kind="int8", scale=scale, zero=zero)
        y = m.result(3, length, kind="int8", scale=1 / 256, zero=-128)
        m.graph.op("SOFTMAX", [x], [y], 9, {0: f32(1.0)})


def functions(m: Maker) -> None:
    """Build functions of one tensor, of all codes."""
    codes = np.arange(-128, 128, dtype=np.int8)
    ends = {"LOGISTIC": (1 / 256, -128), "TANH": (1 / 128, 0)}
    for kind in ("LOGISTIC", "TANH", "RELU", "RELU6", "LEAKY_RELU", "QUANTIZE"):
        for low in (1e-3, 1e-2, 0.1):
            scale, zero = quantization(m, low, 10 * low)
            x = m.graph.input(256, dtype="int8", scale=scale, zero=zero)
            m.feeds.append(codes)
            same = (scale, zero)
            to = ends.get(kind) or (
                same if kind == "RELU6" else (scale * float(m.random.uniform(0.3, 3)), 3 - zero // 2)
            )
            y = m.result(256, kind="int8", scale=float(np.float32(to[0])), zero=to[1])
            union, options = (75, {0: f32(0.3)}) if kind == "LEAKY_RELU" else (0, None)
            m.graph.op(kind, [x], [y], union, options)


MODELS: dict[str, Callable[[Maker], None]] = {
    "convolutions": convolutions,
    "depthwise_convolutions": depthwise_convolutions,
    "dense_layers": dense_layers,
    "arithmetic": arithmetic,
    "pools": pools,
    "softmaxes": softmaxes,
    "functions": functions,
}
"""Functions that build models by their names."""


def make_model(name: str, seed: int = 0) -> Case:
    """Return a model with inputs; other seeds give other sizes, scales and values."""
    maker = Maker(LiteModel().graph, np.random.default_rng([len(name), seed]), [])
    MODELS[name](maker)
    return Case(maker.graph.model.data(), tuple(maker.feeds), 0, 0.0, "tflm", 1)


if __name__ == "__main__":
    write_expected({name: lambda name=name: make_model(name) for name in MODELS}, EXPECTED_BITS)
