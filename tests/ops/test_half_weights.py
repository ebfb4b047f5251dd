# SPDX-License-Identifier: Apache-2.0
"""Weights that are float16 numbers, stored as such: the same bits as with floats, in half the flash."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx_models import Net, random_feeds
from test_conv import WINDOWS, float_conv

from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model

FLOATS = ("conv2d_f32", "dense_f32", "depthwise_f32")
HALVES = ("conv2d_f16", "dense_f16", "depthwise_f16")
SPECIAL = np.array([65504, -65504, 2**-14, -(2**-14), 2**-24, -(2**-24), 1023 * 2**-24, -0.0, 0.0], np.float32)
"""The largest, the smallest, those without a leading bit, zeros."""


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """With weights that are float16 numbers, special ones among them."""
    for index, tensor in enumerate(model.graph.initializer):
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32:
            near = array.astype(np.float16).astype(np.float32)
            if near.size > 20:
                near.reshape(-1)[index % 8] = SPECIAL[index % len(SPECIAL)]
            tensor.CopyFrom(numpy_helper.from_array(near, tensor.name))
    return model


def windows() -> onnx.ModelProto:
    """Convolutions of all kinds, and rows by matrices."""
    net = Net()
    for name, case in WINDOWS.items():
        float_conv(net, name, case)
    for rows, depth, channels in ((1, 37, 18), (3, 20, 7)):
        x = net.input(f"x{rows}", rows, depth)
        weights = np.random.default_rng(rows).standard_normal((depth, channels))
        net.output(net.op("MatMul", x, net.const(weights)))
    return halved(net.model())


def weight_types(compiled: CompiledModel) -> set[str]:
    """Of the layers' weights."""
    operands = [o for i in compiled.program.instrs for o in i.operands if o.role == "w"]
    return {o.buffer.dtype.value for o in operands}


@pytest.mark.spread(6)
@pytest.mark.qemu
@pytest.mark.parametrize("board", ["host", "rp2040", "nrf52840", "corstone300", "rv32imc"])
def test_bits_are_those_of_floats(board: str):
    model = windows()
    feeds = random_feeds(model)
    found = {}
    for kernels in (FLOATS, HALVES):
        compiled = compile_model(model, board, CompileOptions(kernels=kernels))
        assert weight_types(compiled) == {"float32" if kernels is FLOATS else "float16"}
        found[kernels] = compiled.simulate([feeds], measure=False).outputs[0]
    for name, array in found[FLOATS].items():
        assert array.tobytes() == found[HALVES][name].tobytes(), name


@pytest.mark.qemu
def test_vectors_of_halves_have_the_bits_of_vectors_of_floats():
    """Of depths around eights; and the plain C beside them has the values."""
    net = Net()
    for name, case in WINDOWS.items():
        float_conv(net, name, case)
    for rows, depth, channels in ((1, 37, 18), (3, 20, 7), (9, 24, 16), (1, 8, 4), (1, 7, 3)):
        weights = np.random.default_rng(rows).standard_normal((depth, channels))
        net.output(net.op("MatMul", net.input(f"x{rows}_{depth}", rows, depth), net.const(weights)))
    model = halved(net.model())
    feeds, found = random_feeds(model), []
    for kernels in (("conv2d_f32_fpu", "dense_f32_fpu"), ("conv2d_f16_mve", "dense_f16_mve")):
        compiled = compile_model(model, "corstone300", CompileOptions(kernels=kernels))
        assert set(kernels) <= {instr.kernel for instr in compiled.program.instrs}
        found.append(compiled.simulate([feeds], measure=False).outputs[0])
    plain = compiled.run({name: array[None] for name, array in feeds.items()}, sanitize=True)
    for name, array in found[0].items():
        assert array.tobytes() == found[1][name].tobytes(), name
        np.testing.assert_allclose(plain[name][0], array, rtol=1e-4, atol=1e-5 * np.abs(array).max())


@pytest.mark.qemu
def test_vectors_of_halves_by_channel_have_the_bits_of_vectors_of_floats():
    """Windows of few and many rows, channels that are left over, outputs that are no whole groups."""
    net = Net()
    for channels, size, kernel, stride, dilation in (
        (8, (9, 9), (3, 3), 1, 1),
        (6, (9, 10), (3, 3), 2, 1),
        (13, (8, 11), (5, 5), 1, 1),
        (4, (12, 9), (7, 7), 1, 1),
        (9, (1, 20), (1, 9), 1, 1),
        (5, (9, 9), (3, 3), 1, 2),
        (7, (9, 1), (9, 1), 1, 1),
        (8, (4, 4), (2, 2), 1, 1),
    ):
        weights = np.random.default_rng(channels).standard_normal((channels, 1, *kernel))
        bias = net.const(np.random.default_rng(1).standard_normal(channels))
        x = net.input(f"x{channels}_{kernel[0]}_{kernel[1]}_{stride}_{dilation}", 1, channels, *size)
        pads = [dilation * (k - 1) // 2 for k in kernel] * 2
        given = {"group": channels, "strides": [stride] * 2, "dilations": [dilation] * 2, "pads": pads}
        net.output(net.op("Relu", net.op("Conv", x, net.const(weights), bias, **given)))
    model = halved(net.model())
    feeds, found = random_feeds(model), []
    for kernel in ("depthwise_f32_mve", "depthwise_f16_mve"):
        compiled = compile_model(model, "corstone300", CompileOptions(kernels=(kernel,)))
        assert sum(instr.kernel == kernel for instr in compiled.program.instrs) == 8
        found.append(compiled.simulate([feeds], measure=False).outputs[0])
    plain = compiled.run({name: array[None] for name, array in feeds.items()}, sanitize=True)
    for name, array in found[0].items():
        assert array.tobytes() == found[1][name].tobytes(), name
        np.testing.assert_allclose(plain[name][0], array, rtol=1e-4, atol=1e-5 * np.abs(array).max())


def test_flash_takes_halves_and_other_weights_stay_floats():
    net = Net()
    weights = np.random.default_rng(0).standard_normal((2, 64, 64)).astype(np.float32)
    weights[0] = weights[0].astype(np.float16)
    y = net.op("MatMul", net.input("x", 1, 64), net.const(weights[0]))
    net.output(net.op("MatMul", y, net.const(weights[1])))
    compiled = compile_model(net.model(), "nrf52840", CompileOptions(optimize="flash"))
    kernels = [i.kernel for i in compiled.program.instrs if "w" in {o.role for o in i.operands}]
    assert kernels[0] == "dense_f16" and kernels[1].startswith("dense_f32")
    assert compiled.program.weights_size < 2 * 64 * 64 + 4 * 64 * 64 + 4 * 128 + 1


def test_weights_are_rounded_where_the_user_asks():
    """Behind what is folded into them; what float16 cannot hold stays."""
    random, net = np.random.default_rng(1), Net()
    x = net.op("Conv", net.input("x", 1, 16, 6, 6), net.const(random.standard_normal((32, 16, 3, 3))))
    statistics = [net.const(random.uniform(0.5, 2, 32)) for _ in range(4)]
    net.output(net.op("BatchNormalization", x, *statistics))
    net.output(net.op("Conv", x, net.const(random.uniform(1e5, 2e5, (1, 32, 1, 1)))))
    model = net.model()
    plain = compile_model(model, "nrf52840", CompileOptions(optimize="flash"))
    halves = compile_model(model, "nrf52840", CompileOptions(optimize="flash", float16_weights=True))
    assert weight_types(plain) == {"float32"}
    assert weight_types(halves) == {"float16", "float32"}
    feeds = random_feeds(model)
    found = [c.run({"x": feeds["x"][None]}) for c in (plain, halves)]
    for name, array in found[0].items():
        assert not np.array_equal(array, found[1][name])
        np.testing.assert_allclose(found[1][name], array, rtol=2**-9, atol=2**-9 * np.abs(array).max())


@pytest.mark.parametrize("goal", ["balanced", "speed"])
def test_the_wish_wins_over_kernels_of_floats(goal: str):
    net = Net()
    weights = np.random.default_rng(2).standard_normal((64, 64))
    net.output(net.op("MatMul", net.input("x", 1, 64), net.const(weights)))
    compiled = compile_model(net.model(), "nrf52840", CompileOptions(optimize=goal, float16_weights=True))
    assert weight_types(compiled) == {"float16"}
