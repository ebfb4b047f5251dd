# SPDX-License-Identifier: Apache-2.0
"""Weights of 8 and 16 bits with any zero point: their differences may leave the 16 bits that integer kernels read."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx_models import Net, assert_close, numpy_outputs, onnxruntime_outputs, outputs_in_c

from mcugen.driver.compiler import compile_model

LAYERS = ("MatMul", "Gemm", "Conv", "depthwise Conv", "ConvTranspose")
CHANNELS = 4
ZEROS = {
    np.int8: ((0,), (-128,), (127,), (-128, 127, 5, 0)),
    np.uint8: ((128,), (0,), (255,), (0, 255, 128, 7)),
    np.int16: ((0,), (11653,), (-32768,), (32767,), (-32768, 32767, 5, 0)),
    np.uint16: ((32768,), (0,), (65535,), (0, 65535, 32768, 7)),
}
CASES = [(layer, kind, zeros) for layer in LAYERS for kind, choices in ZEROS.items() for zeros in choices]


def network(layer: str, kind: type, zeros: tuple[int, ...], activations: type = np.int16) -> onnx.ModelProto:
    """One layer between int16 tensors, all of whose weights are extreme or random."""
    random, net, limits = np.random.default_rng(0), Net(21), np.iinfo(kind)
    is_flat = layer in ("MatMul", "Gemm")
    shape = {"depthwise Conv": (CHANNELS, 1, 3, 3), "ConvTranspose": (CHANNELS, CHANNELS, 2, 2)}.get(
        layer, (CHANNELS, CHANNELS) if is_flat else (CHANNELS, CHANNELS, 3, 3)
    )
    codes = random.choice((limits.min, limits.max, *random.integers(limits.min, limits.max, 6)), shape)
    axis = 1 if layer in ("MatMul", "Gemm", "ConvTranspose") else 0
    scale = 2.0 / (limits.max - limits.min) * np.ones(len(zeros))
    params = [net.const(v if len(zeros) > 1 else v[0], t) for v, t in ((scale, np.float32), (np.asarray(zeros), kind))]
    weights = net.op("DequantizeLinear", net.const(codes, kind), *params, axis=axis)
    unit = 1 / 2 ** (8 * np.dtype(activations).itemsize - 2)
    x = net.dequantize(
        net.input("x", *((2, CHANNELS) if is_flat else (2, CHANNELS, 5, 3)), dtype=activations), unit, 0, activations
    )
    how = {"depthwise Conv": {"group": CHANNELS}}.get(layer, {})
    y = net.op(layer.split()[-1], x, weights, **how)
    net.output(net.fake(y, 16 * unit, 0, activations, out="y"))
    return net.model()


def check(model: onnx.ModelProto) -> None:
    """Real results of int16 are as fine as a few steps of 2^-10."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    limits = np.iinfo(dtype)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": np.random.default_rng(1).integers(limits.min // 4, limits.max // 4, shape).astype(dtype)}
    step = 16 / 2 ** (8 * np.dtype(dtype).itemsize - 2)
    wanted, found = onnxruntime_outputs(model, feeds), numpy_outputs(model, feeds)
    np.testing.assert_allclose(found["y"], wanted["y"], rtol=0, atol=1.01 * step)
    assert_close(outputs_in_c(compile_model(model), feeds), found, 1e-4)


@pytest.mark.spread(4)
@pytest.mark.parametrize(("layer", "kind", "zeros"), CASES, ids=lambda v: getattr(v, "__name__", str(v)))
def test_any_zero_point_of_weights(layer: str, kind: type, zeros: tuple[int, ...]):
    check(network(layer, kind, zeros, np.int16 if np.dtype(kind).itemsize == 2 else np.int8))


@pytest.mark.parametrize("kind", ZEROS)
def test_any_zero_point_of_a_block_of_weights(kind: type):
    random, net, limits = np.random.default_rng(0), Net(21), np.iinfo(kind)
    codes = random.choice((limits.min, limits.max), (32, CHANNELS))
    zeros = random.choice((limits.min, limits.max, 5), (2, CHANNELS))
    scales = net.const(random.uniform(1, 2, (2, CHANNELS)) / limits.max)
    operands = [net.const(codes, kind), scales, net.const(zeros, kind)]
    weights = net.op("DequantizeLinear", *operands, axis=0, block_size=16)
    net.output(net.op("MatMul", net.input("x", 2, 32), weights, out="y"))
    model = net.model()
    feeds = {"x": random.standard_normal((2, 32)).astype(np.float32)}
    found = numpy_outputs(model, feeds)
    assert_close(found, onnxruntime_outputs(model, feeds), 1e-5)
    assert_close(outputs_in_c(compile_model(model), feeds), found, 1e-5)
