# SPDX-License-Identifier: Apache-2.0
"""Models of weighted layers for tests of calls of CMSIS-NN."""

from __future__ import annotations

import numpy as np
import onnx
from onnx_models import Net
from test_conv import Case

SMALL, WIDE = (-8, 8), (-127, 128)
"""What weights are drawn from: they fit 4 bits, or take 8."""


def quantized_conv(net: Net, name: str, case: Case, per_channel: bool, weights: tuple[int, int] = WIDE) -> None:
    """Add an int8 convolution to a network; a case with one spatial axis is a 1-D convolution."""
    shape, channels, kernel, attributes = case
    w_shape = (channels, shape[1] // attributes.get("group", 1), *kernel)
    x, scales, result = _ends(net, name, shape, channels, per_channel, weights, w_shape)
    w, bias = _constants(net, w_shape, scales, weights)
    _finish(net, name, net.op("Conv", x, w, bias, **attributes), result)


def quantized_dense(
    net: Net, name: str, rows: tuple[int, ...], depth: int, channels: int, per_channel: bool, weights: tuple[int, int]
) -> None:
    """Add the product of rows, of any number of axes, with an int8 matrix [channels, depth]."""
    w_shape = (channels, depth)
    x, scales, result = _ends(net, name, (*rows, depth), channels, per_channel, weights, w_shape)
    w, bias = _constants(net, w_shape, scales, weights)
    product = net.op("MatMul", x, net.op("Transpose", w, perm=[1, 0]))
    _finish(net, name, net.op("Add", product, bias), result)


def int4_dense(net: Net, name: str, rows: int, depth: int, channels: int, unsigned: bool) -> None:
    """Add a fully connected layer whose weights are INT4 or UINT4 in the model."""
    random = np.random.default_rng(5)
    kind = onnx.TensorProto.UINT4 if unsigned else onnx.TensorProto.INT4
    codes = random.integers(0, 16, channels * depth) if unsigned else random.integers(-8, 8, channels * depth)
    for constant, values, dims in ((f"{name}.w", codes, (channels, depth)), (f"{name}.zero", [8 * unsigned], ())):
        net.constants.append(onnx.helper.make_tensor(constant, kind, dims, [int(v) for v in values]))
    x, _, step = _ends(net, name, (rows, depth), channels, False, SMALL, (channels, depth))
    w = net.op("DequantizeLinear", f"{name}.w", net.const(np.float32(0.1)), f"{name}.zero")
    _finish(net, name, net.op("Gemm", x, w, transB=1), step * 10)


def _ends(
    net: Net,
    name: str,
    shape: tuple[int, ...],
    channels: int,
    per_channel: bool,
    weights: tuple[int, int],
    w_shape: tuple[int, ...],
) -> tuple[str, np.ndarray, float]:
    """The real input, the weights' scales, and a step for the output, of which few saturate."""
    random = np.random.default_rng(len(name))
    x = net.dequantize(net.input(f"x {name}", *shape, dtype=np.int8), 0.05, int(random.integers(-100, 100)), np.int8)
    scales = random.uniform(0.005, 0.02, channels if per_channel else ()).astype(np.float32)
    return x, scales, float(0.05 * 0.015 * 75 * weights[1] * 0.6 * np.sqrt(np.prod(w_shape[1:])) / 50)


def _constants(net: Net, shape: tuple[int, ...], scales: np.ndarray, weights: tuple[int, int]) -> tuple[str, str]:
    random, channels = np.random.default_rng(sum(shape)), shape[0]
    codes = random.integers(*weights, shape)
    zeros = np.zeros_like(scales)
    w = net.op("DequantizeLinear", net.const(codes, np.int8), net.const(scales), net.const(zeros, np.int8), axis=0)
    unit = np.broadcast_to(np.float32(0.05) * scales, channels)
    sums = net.const(random.integers(-2000, 2000, channels), np.int32)
    bias = net.op("DequantizeLinear", sums, net.const(unit), net.const([0] * channels, np.int32), axis=0)
    return w, bias


def _finish(net: Net, name: str, real: str, step: float) -> None:
    net.output(net.quantize(real, step, -7, np.int8, out=name), dtype=np.int8)
