# SPDX-License-Identifier: Apache-2.0
"""Float convolutions whose weights are int8 values times a scale per channel: they stay int8 in flash."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx_models import Net, random_feeds
from test_conv import WINDOWS, float_conv
from test_half_weights import FLOATS, weight_types

from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.hir.types import int8_multiples

SCALED = ("conv2d_f32_w8", "depthwise_f32_w8")


def rounded(array: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the products of int8 values and scales that are near to an array."""
    rows = array.reshape(len(array), -1)
    levels = random.integers(1, 128, (len(rows), 1))
    scales = (np.abs(rows).max(1, keepdims=True) / levels).astype(np.float32)
    return (np.rint(rows / scales).astype(np.float32) * scales).reshape(array.shape)


def windows() -> onnx.ModelProto:
    """Return a model of convolutions of all kinds, with weights that are products of int8 values."""
    net, random = Net(), np.random.default_rng(0)
    for name, case in WINDOWS.items():
        float_conv(net, name, case)
    model = net.model()
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.ndim > 2:
            tensor.CopyFrom(numpy_helper.from_array(rounded(array, random), tensor.name))
    return model


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["host", "rp2040", "nrf52840", "corstone300", "rv32imc"])
def test_results_are_those_of_float_weights(board: str):
    model = windows()
    feeds = random_feeds(model)
    found = {}
    for kernels in (FLOATS, SCALED):
        compiled = compile_model(model, board, CompileOptions(kernels=kernels))
        assert weight_types(compiled) == {"float32" if kernels is FLOATS else "int8"}
        found[kernels] = compiled.simulate([feeds], measure=False).outputs[0]
    for name, array in found[FLOATS].items():
        np.testing.assert_allclose(found[SCALED][name], array, rtol=1e-5, atol=1e-6 * np.abs(array).max())


def test_flash_takes_int8_and_other_weights_stay_floats():
    net, random = Net(), np.random.default_rng(0)
    weights = [random.standard_normal((24, 24, 3, 3)).astype(np.float32) for _ in range(2)]
    weights[0] = rounded(weights[0], random)
    x = net.input("x", 1, 24, 8, 8)
    for array in weights:
        x = net.op("Conv", x, net.const(array), pads=[1] * 4)
    net.output(x)
    model = net.model()
    compiled = compile_model(model, "nrf52840", CompileOptions(optimize="flash"))
    kernels = [i.kernel for i in compiled.program.instrs if "w" in {o.role for o in i.operands}]
    assert kernels[0] == SCALED[0] and kernels[1].startswith("conv2d_f32") and kernels[1] != SCALED[0]
    assert weight_types(compile_model(model, "nrf52840", CompileOptions(optimize="speed"))) == {"float32"}


@pytest.mark.parametrize("kind", ["int8", "float16"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("size", [(5, 6), (7,)])
def test_transposed_convolutions(kind: str, groups: int, size: tuple[int, ...]):
    net, random = Net(), np.random.default_rng(0)
    by_output = random.standard_normal((6 // groups, groups, 8 // groups, *[3] * len(size)))
    by_output = by_output.reshape(6, 8 // groups, *by_output.shape[3:]).astype(np.float32)
    by_output = rounded(by_output, random) if kind == "int8" else by_output.astype(np.float16).astype(np.float32)
    weights = by_output.reshape(groups, 6 // groups, *by_output.shape[1:]).swapaxes(1, 2)
    weights = weights.reshape(8, 6 // groups, *by_output.shape[2:])
    x, bias = net.input("x", 2, 8, *size), net.const(random.standard_normal(6))
    y = net.op("ConvTranspose", x, net.const(weights), bias, strides=[2] * len(size), group=groups)
    net.output(net.op("Relu", y))
    model, found = net.model(), []
    feeds = {name: array[None] for name, array in random_feeds(model).items()}
    for updatable in (False, True):
        compiled = compile_model(model, "host", CompileOptions(updatable=updatable))
        assert weight_types(compiled) == {"float32" if updatable else kind}
        (y,) = compiled.run(feeds, sanitize=True).values()
        found.append(y)
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-5)


def test_weights_that_may_be_updated_stay_floats():
    net, random = Net(), np.random.default_rng(0)
    weights = rounded(random.standard_normal((24, 24, 3, 3)).astype(np.float32), random)
    net.output(net.op("Conv", net.input("x", 1, 24, 8, 8), net.const(weights)))
    options = CompileOptions(optimize="flash", updatable=True)
    assert weight_types(compile_model(net.model(), "nrf52840", options)) == {"float32"}


@pytest.mark.parametrize("largest", [1, 2, 63, 64, 126, 127, 128])
def test_values_and_scales_are_found(largest: int):
    random = np.random.default_rng(largest)
    values = random.integers(-largest, min(largest, 127) + 1, (5, 40))
    values[:4, 0], values[4] = -largest, 0
    rows = values.astype(np.float32) * random.uniform(1e-30, 1e9, (5, 1)).astype(np.float32)
    found = int8_multiples(rows)
    assert found is not None
    np.testing.assert_allclose(found[0] * found[1][:, None], rows, rtol=3e-7)


@pytest.mark.parametrize("odd", [1.5, 127.5, 1e-6, np.inf, np.nan])
def test_other_rows_have_none(odd: float):
    rows = np.arange(-127.0, 128.0, dtype=np.float32)[None].repeat(3, 0) * np.float32(0.37)
    assert int8_multiples(rows) is not None
    rows[2, 200] = np.float32(odd) * np.float32(0.37)
    assert int8_multiples(rows) is None


@pytest.mark.qemu
@pytest.mark.parametrize("kind", ["int8", "float16"])
@pytest.mark.parametrize("op", ["RNN", "GRU", "GRU linear", "LSTM"])
def test_recurrent_layers(op: str, kind: str):
    """Two directions, and a number of hidden elements that is no multiple of four."""
    op, _, linear = op.partition(" ")
    net, random, gates = Net(), np.random.default_rng(0), {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    matrices = []
    for columns in (11, 7):
        rows = 0.5 * random.standard_normal((2 * gates * 7, columns)).astype(np.float32)
        narrow = rounded(rows, random) if kind == "int8" else rows.astype(np.float16).astype(np.float32)
        matrices.append(net.const(narrow.reshape(2, gates * 7, columns)))
    bias = net.const(random.standard_normal((2, 2 * gates * 7)))
    options = {"linear_before_reset": 1} if linear else {}
    x = net.input("x", 5, 2, 11)
    net.output(net.op(op, x, *matrices, bias, hidden_size=7, direction="bidirectional", **options))
    model, found = net.model(), []
    feeds = random_feeds(model)
    for goal in ("speed", "flash"):
        compiled = compile_model(model, "nrf52840", CompileOptions(optimize=goal))
        assert weight_types(compiled) == {"float32" if goal == "speed" else kind}
        found.append(compiled.simulate([feeds], measure=False).outputs[0])
        (y,) = compiled.run({name: array[None] for name, array in feeds.items()}, sanitize=True).values()
        np.testing.assert_allclose(y[0], next(iter(found[-1].values())), rtol=1e-4, atol=1e-5)
    for name, array in found[0].items():
        np.testing.assert_allclose(found[1][name], array, rtol=1e-4, atol=1e-5)


def test_flash_need_not_hold_floats():
    """Weights that fit as int8 are not refused, and no note tells of floats."""
    net, random = Net(), np.random.default_rng(0)
    codes, scale = random.integers(-127, 128, (48, 48, 3, 3)), net.const(random.uniform(0.01, 0.02, 48))
    w = net.op("DequantizeLinear", net.const(codes, np.int8), scale, axis=0)
    net.output(net.op("Conv", net.input("x", 1, 48, 5, 5), w))
    model = net.model()
    options = CompileOptions(optimize="flash", max_flash=40_000)
    compiled = compile_model(model, "nrf52840", options)
    assert not any("are floats in flash" in note for note in compiled.report.notes)
    compiled = compile_model(model, "nrf52840", CompileOptions(optimize="speed"))
    assert any("are floats in flash" in note for note in compiled.report.notes)
