# SPDX-License-Identifier: Apache-2.0
"""The networks of the measured programs, quantized by ONNX Runtime: time does not depend on what weights say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType
from ort_quantizer import quantized

from hardware.measured import Network

_SAMPLES = 8


class _Graph:
    """A chain of layers with random weights."""

    def __init__(self, shape: list[int]) -> None:
        self.shape, self.top, self.channels = shape, "x", shape[1]
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def conv(self, channels: int, window: tuple[int, int], strides: tuple[int, int], pads: list[int], group: int = 1):
        """Add a convolution and a ReLU."""
        depth = self.channels // group
        names = self._constants((channels, depth, *window), depth * window[0] * window[1])
        self._add("Conv", names, kernel_shape=window, strides=strides, pads=pads, group=group)
        self._add("Relu", [])
        self.channels = channels

    def dense(self, depth: int, outputs: int, relu: bool):
        """Add a fully connected layer."""
        self._add("Gemm", self._constants((outputs, depth), depth), transB=1)
        if relu:
            self._add("Relu", [])

    def pool(self):
        """Add the mean of each channel."""
        self._add("GlobalAveragePool", [])
        self._add("Flatten", [])

    def model(self, outputs: int) -> onnx.ModelProto:
        """Return the float model."""
        self.nodes[-1].output[0] = "y"
        ports = [("x", self.shape), ("y", [1, outputs])]
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ports)
        graph = helper.make_graph(self.nodes, "network", [x], [y], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def _constants(self, shape: tuple[int, ...], depth: int) -> list[str]:
        values = (self.random.normal(size=shape) * np.sqrt(2 / depth), self.random.normal(size=shape[0]) * 0.1)
        names = [f"{what}{len(self.nodes)}" for what in ("w", "b")]
        self.weights += [
            numpy_helper.from_array(value.astype(np.float32), name) for name, value in zip(names, values, strict=True)
        ]
        return names

    def _add(self, op: str, inputs: list[str], **attributes: object) -> None:
        self.nodes.append(helper.make_node(op, [self.top, *inputs], [f"v{len(self.nodes)}"], **attributes))
        self.top = self.nodes[-1].output[0]


def _ds_cnn() -> onnx.ModelProto:
    graph = _Graph([1, 1, 49, 10])
    graph.conv(64, (10, 4), (2, 2), [4, 1, 5, 1])
    for _ in range(4):
        graph.conv(64, (3, 3), (1, 1), [1, 1, 1, 1], group=64)
        graph.conv(64, (1, 1), (1, 1), [0, 0, 0, 0])
    graph.pool()
    graph.dense(64, 12, relu=False)
    return graph.model(12)


def _autoencoder() -> onnx.ModelProto:
    graph, depth = _Graph([1, 640]), 640
    for outputs in (128, 128, 128, 128, 8, 128, 128, 128, 128):
        graph.dense(depth, outputs, relu=True)
        depth = outputs
    graph.dense(depth, 640, relu=False)
    return graph.model(640)


def _time_series() -> onnx.ModelProto:
    """Return a network for 64 steps of 8 channels."""
    graph = _Graph([1, 8, 64, 1])
    for channels in (16, 32, 32):
        graph.conv(channels, (3, 1), (2, 1), [0, 0, 1, 0])
    graph.pool()
    graph.dense(32, 10, relu=False)
    return graph.model(10)


_NETWORKS = {"ds_cnn": _ds_cnn, "ad": _autoencoder, "ts": _time_series}


def write_network(network: Network, folder: Path) -> Path:
    """Write a network as an int8 QDQ model and return its path.

    Convolutions have a scale per channel, dense layers one scale, as in TensorFlow Lite.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, model, random = folder / f"{network}.onnx", _NETWORKS[network](), np.random.default_rng(1)
    shape = [axis.dim_value for axis in model.graph.input[0].type.tensor_type.shape.dim]
    samples = [{"x": random.normal(size=shape).astype(np.float32)} for _ in range(_SAMPLES)]
    settings = {"quant_format": QuantFormat.QDQ, "per_channel": network != "ad", "activation_type": QuantType.QInt8}
    onnx.save(quantized(model, samples, **settings), path)
    return path
