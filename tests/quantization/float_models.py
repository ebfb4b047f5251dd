# SPDX-License-Identifier: Apache-2.0
"""Small float networks with samples, and their quantization, for the tests of mcugen.quantization."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx_models import Net, onnxruntime_outputs

from mcugen.core.options import CompileOptions
from mcugen.frontend.onnx.load import load
from mcugen.hir.graph import Graph
from mcugen.hir.interpreter import interpret
from mcugen.hir.types import Array, DType
from mcugen.quantization.quantize import Quantization, Quantizer, create_quantizer, import_float_model
from mcugen.quantization.scheme import Scheme


def random_weights(seed: int, *shape: int) -> Array:
    """Return normal weights, scaled so that a layer keeps the variance of its input."""
    fan_in = max(int(np.prod(shape[1:])), 1)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / np.sqrt(fan_in).astype(np.float32)


def conv_net(opset: int = 17) -> onnx.ModelProto:
    """Return a network: convolution, batch normalization, ReLU6, residual depthwise block, pool, dense, softmax."""
    net = Net(opset)
    x = net.input("x", 1, 3, 8, 8)
    y = net.op("Conv", x, net.const(random_weights(1, 8, 3, 3, 3)), pads=[1, 1, 1, 1], out="stem")
    norm = [net.const(v) for v in (np.full(8, 1.5), np.linspace(-1, 1, 8), np.zeros(8), np.ones(8))]
    y = net.op("BatchNormalization", y, *norm, out="norm")
    y = net.op("Clip", y, net.const(0.0), net.const(6.0), out="relu6")
    z = net.op("Conv", y, net.const(random_weights(2, 8, 1, 3, 3)), group=8, pads=[1, 1, 1, 1], out="depthwise")
    z = net.op("Relu", z, out="relu")
    z = net.op("Conv", z, net.const(random_weights(3, 8, 8, 1, 1)), net.const(random_weights(4, 8)), out="pointwise")
    y = net.op("Add", y, z, out="sum")
    y = net.op("GlobalAveragePool", y, out="pool")
    y = net.op("Flatten", y, out="flat")
    weights, bias = net.const(random_weights(5, 5, 8) * 4), net.const(random_weights(6, 5))
    y = net.op("Gemm", y, weights, bias, transB=1, out="logits")
    net.op("Softmax", y, out="scores")
    net.output("scores")
    return net.model()


def normal_samples(model: onnx.ModelProto, count: int = 24, seed: int = 0) -> list[dict[str, Array]]:
    """Return samples of standard normal inputs for a model."""
    random = np.random.default_rng(seed)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    return [{n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()} for _ in range(count)]


def quantizer_of(model: onnx.ModelProto, scheme: Scheme | None = None, wide: bool = False) -> Quantizer:
    """Return the quantizer of a model, profiled on normal samples."""
    source, scheme = load(model), scheme or Scheme()
    fused = import_float_model(source, CompileOptions(), scheme, wide)
    return create_quantizer(source, fused, scheme, normal_samples(model))


def quantized(
    model: onnx.ModelProto, scheme: Scheme | None = None, wanted: Mapping[str, DType] | None = None
) -> Quantization:
    """Quantize a model by its profile on normal samples."""
    return quantizer_of(model, scheme, wide=DType.INT16 in (wanted or {}).values()).quantize(wanted)


def sqnr(wanted: list[Array], found: list[Array]) -> float:
    """Return the signal-to-noise ratio of all samples together, in dB."""
    a, b = (np.concatenate([x.reshape(-1) for x in arrays]).astype(np.float64) for arrays in (wanted, found))
    return float(10 * np.log10(np.square(a).sum() / max(np.square(a - b).sum(), 1e-30)))


def check_integer_graph(model: onnx.ModelProto, quantization: Quantization, graph: Graph, min_sqnr_db: float) -> None:
    """Check that the integer graph's y is within a step of the QDQ model's in ONNX Runtime, and near the float one."""
    samples = normal_samples(model, 8, seed=5)
    exact = [onnxruntime_outputs(model, s)["y"] for s in samples]
    expected = [onnxruntime_outputs(quantization.proto, s)["y"] for s in samples]
    found = [interpret(graph, s)["y"] for s in samples]
    step = quantization.plan.activations["y"].quant.scale[0]
    assert max(np.abs(a - b).max() for a, b in zip(expected, found, strict=True)) <= 1.01 * step
    assert sqnr(exact, found) > min_sqnr_db
