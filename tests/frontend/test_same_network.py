# SPDX-License-Identifier: Apache-2.0
"""One network through ONNX, .tflite, PyTorch and Keras, with the same weights, gives the same results.

In float32 they are equal within rounding. Quantized by mcugen with the same samples, they are equal within one
quantized value.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import Net, numpy_outputs
from tflite_models import LiteModel, Number, converted, i8, i32

import mcugen
from mcugen.hir.types import Array

IMAGE, FRAMES, VECTOR = (8, 8, 3), (6, 5), (12,)
NUM_SAMPLES = 12


@dataclass(frozen=True)
class Conv:
    """A convolution with ReLU; weights [height, width, in, out]. With stride 1, the result has the input's size."""

    weights: Array
    bias: Array
    stride: int = 1

    @property
    def padding(self) -> int:
        return self.weights.shape[0] // 2 if self.stride == 1 else 0


@dataclass(frozen=True)
class Depthwise:
    """A depthwise 3x3 convolution with ReLU that keeps the size; weights [height, width, channels]."""

    weights: Array
    bias: Array


@dataclass(frozen=True)
class Residual:
    """A sum of a tensor and the result of layers on it."""

    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Mean:
    """The mean over all pixels."""


@dataclass(frozen=True)
class Dense:
    """A dense layer; weights [in, out]."""

    weights: Array
    bias: Array
    relu: bool = False


@dataclass(frozen=True)
class Gru:
    """A GRU with gates z, r, h, whose last state is the result; bias [2, 3 units]."""

    weights: Array
    recurrent: Array
    bias: Array


Layer = Conv | Depthwise | Residual | Mean | Dense | Gru


def numbers(*shape: int) -> Array:
    """Return weights that keep the magnitude of activations."""
    scale = 1 / np.sqrt(max(np.prod(shape[:-1]), 1)) if len(shape) > 1 else 0.1
    return (np.random.default_rng(sum(shape)).standard_normal(shape) * scale).astype(np.float32)


def conv(size: int, inputs: int, outputs: int, stride: int = 1) -> Conv:
    return Conv(numbers(size, size, inputs, outputs), numbers(outputs), stride)


def dense(inputs: int, outputs: int, relu: bool = False) -> Dense:
    return Dense(numbers(inputs, outputs), numbers(outputs), relu)


def depthwise(channels: int) -> Depthwise:
    return Depthwise(numbers(3, 3, channels) * 2, numbers(channels))


NETWORKS: dict[str, tuple[tuple[int, ...], tuple[Layer, ...]]] = {
    "cnn": (IMAGE, (conv(3, 3, 8), conv(2, 8, 8, 2), Mean(), dense(8, 4))),
    "ds_cnn": (
        IMAGE,
        (conv(2, 3, 8, 2), depthwise(8), conv(1, 8, 8), depthwise(8), conv(1, 8, 8), Mean(), dense(8, 4)),
    ),
    "residual": (IMAGE, (conv(3, 3, 8), Residual((conv(3, 8, 8), conv(3, 8, 8))), Mean(), dense(8, 4))),
    "mlp": (VECTOR, (dense(12, 16, True), dense(16, 16, True), dense(16, 4))),
    "gru": (FRAMES, (Gru(numbers(5, 24), numbers(8, 24), numbers(2, 24)), dense(8, 4))),
}


# ------------------------------------------------------------------------------------------------ formats


def as_onnx(shape: tuple[int, ...], layers: Sequence[Layer]) -> onnx.ModelProto:
    net = Net()
    x = net.input("x", 1, *(np.roll(shape, 1).tolist() if shape == IMAGE else shape))
    net.output(onnx_layers(net, x, layers))
    return net.model()


def onnx_layers(net: Net, x: str, layers: Sequence[Layer]) -> str:
    for layer in layers:
        match layer:
            case Conv(weights, bias, stride):
                operands = [net.const(weights.transpose(3, 2, 0, 1)), net.const(bias)]
                x = net.op("Relu", net.op("Conv", x, *operands, strides=[stride] * 2, pads=[layer.padding] * 4))
            case Depthwise(weights, bias):
                operands = [net.const(weights.transpose(2, 0, 1)[:, None]), net.const(bias)]
                x = net.op("Relu", net.op("Conv", x, *operands, group=len(bias), pads=[1] * 4))
            case Residual(inner):
                x = net.op("Add", x, onnx_layers(net, x, inner))
            case Mean():
                x = net.op("Flatten", net.op("GlobalAveragePool", x))
            case Dense(weights, bias, relu):
                x = net.op("Gemm", x, net.const(weights), net.const(bias))
                x = net.op("Relu", x) if relu else x
            case Gru(weights, recurrent, bias):
                frames = net.op("Transpose", x, perm=[1, 0, 2])
                operands = [net.const(weights.T[None]), net.const(recurrent.T[None]), net.const(bias.reshape(1, -1))]
                size = recurrent.shape[0]
                _, last = net.ops("GRU", frames, *operands, outs=["", "last"], hidden_size=size, linear_before_reset=1)
                x = net.op("Reshape", last, net.const([1, size], np.int64))
    return x


def as_tflite(shape: tuple[int, ...], layers: Sequence[Layer]) -> onnx.ModelProto:
    model = LiteModel()
    x = model.graph.input(1, *shape, name="x")
    model.graph.output(tflite_layers(model, x, (1, *shape), layers)[0])
    return converted(model.data())


def tflite_layers(
    model: LiteModel, x: int, shape: tuple[int, ...], layers: Sequence[Layer]
) -> tuple[int, tuple[int, ...]]:
    graph = model.graph
    for layer in layers:
        operands, union = [], 0
        match layer:
            case Conv(weights, bias, stride):
                size = shape[1] // stride
                shape = (1, size, size, len(bias))
                operands, union = [graph.const(weights.transpose(3, 0, 1, 2)), graph.const(bias)], 1
                kind, options = "CONV_2D", {0: i8(stride > 1), 1: i32(stride), 2: i32(stride), 3: i8(1)}
            case Depthwise(weights, bias):
                operands, union = [graph.const(weights[None]), graph.const(bias)], 2
                kind, options = "DEPTHWISE_CONV_2D", {0: i8(0), 1: i32(1), 2: i32(1), 3: i32(1), 4: i8(1)}
            case Residual(inner):
                operands, union, kind, options = [tflite_layers(model, x, shape, inner)[0]], 11, "ADD", {}
            case Mean():
                shape = (1, shape[-1])
                operands, union = [graph.const([1, 2], "int32")], 27
                kind, options = "MEAN", {0: Number("B", 0)}
            case Dense(weights, bias, relu):
                shape = (1, len(bias))
                operands, union = [graph.const(weights.T), graph.const(bias)], 8
                kind, options = "FULLY_CONNECTED", {0: i8(relu)}
            case _:
                pytest.skip("TensorFlow Lite has no GRU")
        y = graph.tensor(*shape)
        graph.op(kind, [x, *operands], [y], union, options)
        x = y
    return x, shape


def as_torch(shape: tuple[int, ...], layers: Sequence[Layer]) -> onnx.ModelProto:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'mcugen[torch]')")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed (pip install 'mcugen[torch]')")
    from mcugen.frontend.torch.program import convert

    class Wrapped(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, function: Any, inner: Any) -> None:
            super().__init__()
            self.function, self.inner = function, inner

        def forward(self, x: Any) -> Any:
            return self.function(self.inner, x)

    def module(layer: Layer) -> Any:
        nn = torch.nn
        match layer:
            case Conv(weights, bias, stride):
                made = nn.Conv2d(weights.shape[2], len(bias), weights.shape[0], stride, layer.padding)
                return nn.Sequential(filled(made, weight=weights.transpose(3, 2, 0, 1), bias=bias), nn.ReLU())
            case Depthwise(weights, bias):
                made = nn.Conv2d(len(bias), len(bias), 3, padding=1, groups=len(bias))
                return nn.Sequential(filled(made, weight=weights.transpose(2, 0, 1)[:, None], bias=bias), nn.ReLU())
            case Residual(inner):
                return Wrapped(lambda part, x: x + part(x), nn.Sequential(*map(module, inner)))
            case Mean():
                return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
            case Dense(weights, bias, relu):
                made = filled(nn.Linear(*weights.shape), weight=weights.T, bias=bias)
                return nn.Sequential(made, nn.ReLU()) if relu else made
            case Gru(weights, recurrent, bias):
                made = filled(
                    nn.GRU(len(weights), len(recurrent), batch_first=True),
                    **{"weight_ih_l0": gates(weights.T), "weight_hh_l0": gates(recurrent.T)},
                    **{"bias_ih_l0": gates(bias[0]), "bias_hh_l0": gates(bias[1])},
                )
                return Wrapped(lambda part, x: part(x)[0][:, -1], made)

    def gates(array: Array) -> Array:
        z, r, h = np.split(array, 3)
        return np.concatenate([r, z, h])

    def filled(part: Any, **arrays: Array) -> Any:
        with torch.no_grad():
            for name, array in arrays.items():
                getattr(part, name).copy_(torch.from_numpy(np.ascontiguousarray(array)))
        return part

    example = torch.zeros(1, *(np.roll(shape, 1).tolist() if shape == IMAGE else shape))
    return convert(torch.nn.Sequential(*map(module, layers)), example)


def as_keras(shape: tuple[int, ...], layers: Sequence[Layer]) -> onnx.ModelProto:
    pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'mcugen[keras]')")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed (pip install 'mcugen[keras]')")
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="Keras is not installed (pip install 'mcugen[keras]')")
    from mcugen.frontend.keras.model import convert

    weights: dict[Any, list[Array]] = {}

    def apply(x: Any, layer: Layer) -> Any:
        part = keras.layers
        match layer:
            case Conv(kernel, bias, stride):
                padding = "same" if stride == 1 else "valid"
                made = part.Conv2D(len(bias), kernel.shape[0], stride, padding, activation="relu")
                weights[made] = [kernel, bias]
            case Depthwise(kernel, bias):
                made = part.DepthwiseConv2D(3, padding="same", activation="relu")
                weights[made] = [kernel[..., None], bias]
            case Residual(inner):
                y = x
                for each in inner:
                    y = apply(y, each)
                return part.Add()([x, y])
            case Mean():
                made = part.GlobalAveragePooling2D()
            case Dense(kernel, bias, relu):
                made = part.Dense(len(bias), activation="relu" if relu else None)
                weights[made] = [kernel, bias]
            case Gru(kernel, recurrent, bias):
                made = part.GRU(len(recurrent))
                weights[made] = [kernel, recurrent, bias]
        return made(x)

    x = y = keras.Input(shape, name="x")
    for layer in layers:
        y = apply(y, layer)
    net = keras.Model(x, y)
    for layer, arrays in weights.items():
        layer.set_weights(arrays)
    return convert(net)


FORMATS = {"tflite": as_tflite, "torch": as_torch, "keras": as_keras}
CHANNELS_FIRST = ("onnx", "torch")


# ------------------------------------------------------------------------------------------------ tests


def samples(name: str, form: str) -> Array:
    """Return the samples of a network in the layout of a format."""
    shape = NETWORKS[name][0]
    array = np.random.default_rng(0).standard_normal((NUM_SAMPLES, 1, *shape)).astype(np.float32)
    return np.moveaxis(array, -1, 2) if shape == IMAGE and form in CHANNELS_FIRST else array


def results(model: onnx.ModelProto, given: Array) -> Array:
    name = model.graph.input[0].name
    return np.stack([next(iter(numpy_outputs(model, {name: sample}).values())).reshape(-1) for sample in given])


@cache
def expected(name: str) -> tuple[Array, Array, float]:
    """Return the results of the ONNX model, those after quantization, and the quantization step of the output."""
    model = as_onnx(*NETWORKS[name])
    given = samples(name, "onnx")
    found, step = quantized(model, given)
    return results(model, given), found, step


def quantized(model: onnx.ModelProto, given: Array) -> tuple[Array, float]:
    """Return the results of a model that mcugen quantized with the samples, and the quantization step of its output."""
    proto = mcugen.quantize(model, given).proto
    last = next(node for node in reversed(proto.graph.node) if node.op_type == "DequantizeLinear")
    scale = next(tensor for tensor in proto.graph.initializer if tensor.name == last.input[1])
    return results(proto, given), float(onnx.numpy_helper.to_array(scale).max())


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_gives_the_same_from_each_format(name: str, form: str) -> None:
    model, given = FORMATS[form](*NETWORKS[name]), samples(name, form)
    floats, integers, step = expected(name)
    np.testing.assert_allclose(results(model, given), floats, atol=1e-5)
    found, own_step = quantized(model, given)
    assert own_step == pytest.approx(step, rel=0.02)
    steps = np.abs(found - integers) / step
    assert steps.max() <= 1.01
