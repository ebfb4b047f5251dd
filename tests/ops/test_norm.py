# SPDX-License-Identifier: Apache-2.0
"""Normalizations: onnxruntime, numpy and C agree."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from checks import Cases, check_c
from onnx_models import (
    Net,
    assert_close,
    check_everywhere,
    check_quantized,
    imported,
    numpy_outputs,
    operators,
    optimized,
)
from onnx_models import random_feeds as feeds_of

from mcugen.core.errors import McugenError
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret

RANDOM = np.random.default_rng(7)


def some(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.asarray(RANDOM.standard_normal(shape), dtype)


def test_normalize():
    cases = Cases(opset=21)
    for axis in (0, 1, 2, 3, -1, -2):
        inner = (2, 6, 5, 3)[axis:]
        cases.add("LayerNormalization", (2, 6, 5, 3), some(*inner), some(*inner), axis=axis)
    cases.add("LayerNormalization", (4, 7), some(7), epsilon=0.5)
    cases.add("LayerNormalization", (4, 3, 7), some(1), some(7), axis=1)
    cases.add("LayerNormalization", (7,), some(7))
    cases.add("LayerNormalization", (3, 1), some(1), some(1))
    for groups in (1, 2, 3, 6):
        cases.add("GroupNormalization", (2, 6, 5, 3), some(6), some(6), num_groups=groups)
    cases.add("GroupNormalization", (2, 6), some(6), some(6), num_groups=2)
    cases.add("InstanceNormalization", (2, 3, 5), some(3), some(3))
    cases.add("InstanceNormalization", (2, 3, 5, 4), some(3), some(3), epsilon=0.1)
    cases.add("MeanVarianceNormalization", (2, 3, 5, 4))
    cases.add("MeanVarianceNormalization", (2, 3, 5, 4), axes=[1, -1])
    for axis in (0, 1, -1):
        for p in (1, 2):
            cases.add("LpNormalization", (3, 4, 5), axis=axis, p=p)
    cases.check_float()


def test_statistics_over_large_values():
    """The variance is computed from differences to the mean: squares would lose it."""
    net = Net(17)
    net.output(net.op("LayerNormalization", net.input("x", 4, 64), net.const(np.ones(64)), out="y"))
    feeds = {"x": np.asarray(1000 + RANDOM.standard_normal((4, 64)), np.float32)}
    compiled = compile_model(net.model())
    x = feeds["x"].astype(np.float64)
    exact = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    check_c(compiled, feeds, {"y": exact.astype(np.float32)}, 1e-4)


def test_root_mean_square():
    net = Net(23)
    x = net.input("x", 2, 5, 6)
    for number, (axis, scale) in enumerate([(-1, some(6)), (1, some(5, 6)), (0, some(1)), (1, some(6))]):
        y = net.op("RMSNormalization", x, net.const(scale), out=f"y{number}", axis=axis, epsilon=0.01)
        net.output(y, shape=(2, 5, 6))
    model = net.plain_model()
    feeds = feeds_of(model)
    x = feeds["x"].astype(np.float64)
    scales = {t.name: np.frombuffer(t.raw_data, np.float32).reshape(t.dims) for t in net.constants}
    expected = {}
    for node in model.graph.node:
        (axis,) = [a.i for a in node.attribute if a.name == "axis"]
        axes = tuple(range(axis % 3, 3))
        y = x / np.sqrt((x * x).mean(axes, keepdims=True) + 0.01) * scales[node.input[1]]
        expected[node.output[0]] = y.astype(np.float32)
    check_c(compile_model(model), feeds, expected)


def test_mean_and_inverse_deviation_are_outputs_where_asked_for():
    net = Net(17)
    x, scale = net.input("x", 2, 3, 4), net.const(some(4))
    net.output(*net.ops("LayerNormalization", x, scale, "", outs=["y", "mean", "inverse"]))
    check_everywhere(net.model())
    lone = Net(17)
    lone.output(lone.ops("LayerNormalization", lone.input("x", 2, 3), lone.const(some(3)), outs=["y", "", ""])[0])
    assert operators(optimized(lone.model())) == ["normalize"]


def test_computed_scales():
    net = Net(17)
    x, scale, bias = net.input("x", 2, 3, 4), net.input("scale", 3), net.input("bias", 3)
    net.output(net.op("InstanceNormalization", x, scale, bias, out="y"))
    check_everywhere(net.model())


def test_normalization_stays_channels_last_between_convolutions():
    net = Net(21)
    weights = [net.const(some(4, 4, 3, 3)) for _ in range(3)]
    scale, bias = net.const(some(4)), net.const(some(4))
    y = net.op("Conv", net.input("x", 1, 4, 8, 8), weights[0])
    y = net.op("InstanceNormalization", y, scale, bias)
    y = net.op("Conv", net.op("Relu", y), weights[1])
    y = net.op("GroupNormalization", y, scale, bias, num_groups=2)
    net.output(net.op("Conv", y, weights[2], out="y"))
    model = net.model()
    names = operators(optimized(model))
    assert names.count("transpose") == 2
    assert names[0] == names[-1] == "transpose"
    check_everywhere(model, relative=1e-4)


# --------------------------------------------------------------------------------------------------- integers


def quant() -> tuple[float, int]:
    return float(RANDOM.uniform(0.01, 0.05)), int(RANDOM.integers(-50, 50))


def test_int8():
    cases = Cases(opset=21)
    for axis in (1, 2, 3, -1):
        inner = (2, 6, 5, 30)[axis:]
        cases.add_int8("LayerNormalization", (2, 6, 5, 30), quant(), quant(), some(*inner), some(*inner), axis=axis)
    cases.add_int8("LayerNormalization", (4, 64), quant(), quant(), some(64), epsilon=0.5)
    cases.add_int8("LayerNormalization", (3, 1), quant(), quant(), some(1), some(1))
    cases.add_int8("InstanceNormalization", (2, 3, 5, 9), quant(), quant(), some(3), some(3))
    cases.add_int8("GroupNormalization", (2, 6, 5, 9), quant(), quant(), some(6), some(6), num_groups=2)
    cases.add_int8("MeanVarianceNormalization", (2, 6, 25, 29), quant(), quant())
    cases.check_int8()


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["nrf52840", "corstone300", "rp2040"])
def test_groups_of_pixels_have_the_same_bits_on_every_cpu(board: str):
    """Between pools, which have channels last: groups in pieces of each pixel, that do not fill vectors."""
    net = Net(21)
    net.input("q", 2, 21, 7, 5, dtype=np.int8)
    pooled = net.op("MaxPool", net.dequantize("q", 0.04, 9), kernel_shape=[3, 3])
    for groups in (1, 3, 21):
        normal = net.op("GroupNormalization", pooled, net.const(some(21)), net.const(some(21)), num_groups=groups)
        again = net.op("MaxPool", net.fake(normal, 0.02, -6), kernel_shape=[2, 1])
        net.output(net.quantize(again, 0.02, -6, out=f"y{groups}"), dtype=np.int8)
    compiled = compile_model(net.model(), board)
    assert operators(compiled.graph).count("transpose") == 4  # the input, and each result
    feeds = feeds_of(net.model())
    (found,) = compiled.simulate([feeds], measure=False).outputs
    assert_close(found, interpret(compiled.graph, feeds))


def test_int16_in_and_out():
    net = Net(21)
    for number, (op_type, shape, scale, types) in enumerate(
        [
            ("LayerNormalization", (4, 64), (64,), (np.int16, np.int16)),
            ("InstanceNormalization", (2, 3, 500), (3,), (np.int16, np.int16)),
            ("LayerNormalization", (8, 7), (7,), (np.int16, np.int8)),
            ("LayerNormalization", (8, 7), (7,), (np.int8, np.int16)),
        ]
    ):
        x = net.input(f"x{number}", *shape, dtype=types[0])
        real = net.op(op_type, net.dequantize(x, 4.1e-4, 0, types[0]), net.const(some(*scale)), net.const(some(*scale)))
        step = 3.1e-4 if types[1] is np.int16 else 0.031
        net.output(net.quantize(real, step, 0, types[1], out=f"y{number}"), dtype=types[1])
    model = net.model()
    assert set(operators(optimized(model))) == {"normalize"}
    check_quantized(model)


def test_root_mean_square_of_int8():
    net = Net(23)
    x = net.dequantize(net.input("x", 5, 6, 16, dtype=np.int8), 0.03, -7)
    scale = some(16)
    net.output(net.quantize(net.op("RMSNormalization", x, net.const(scale), epsilon=0.01), 0.02, 5, out="y"))
    net.outputs[0] = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT8, (5, 6, 16))
    model = net.plain_model()
    feeds = feeds_of(model)
    compiled = compile_model(model)
    assert operators(compiled.graph) == ["normalize"]
    found = interpret(compiled.graph, feeds)
    real = (feeds["x"].astype(np.float64) + 7) * np.float32(0.03)
    exact = real / np.sqrt((real * real).mean(-1, keepdims=True) + 0.01) * scale / np.float32(0.02) + 5
    assert np.abs(found["y"] - np.clip(exact, -128, 127)).max() < 0.51
    check_c(compiled, feeds, found)


def test_extreme_rows_of_int8():
    """Constant rows give the bias; one element of many that differs is as exact as any other row."""
    net = Net(21)
    x = net.dequantize(net.input("x", 6, 3000, dtype=np.int8), 0.05, 100)
    normal = net.op("LayerNormalization", x, net.const(np.full(3000, 0.5)), net.const(np.full(3000, 0.25)))
    net.output(net.quantize(normal, 0.125, -4, out="y"), dtype=np.int8)
    rows = np.zeros((6, 3000), np.int8)
    rows[1], rows[2], rows[3, 7], rows[4, ::2], rows[5, ::2] = -128, 127, 1, -128, 127
    rows[4, 1::2] = 127
    model = net.model()
    check_quantized(model, {"x": rows})
    assert (numpy_outputs(model, {"x": rows})["y"][:3] == -2).all()


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e10, 1e30])
def test_extreme_scales(scale: float):
    """Where precision would be lost, it stays a float island."""
    net = Net(21)
    for number, (before, after) in enumerate([(scale, 0.1), (0.1, scale)]):
        x = net.dequantize(net.input(f"x{number}", 4, 30, dtype=np.int8), before, 3)
        normal = net.op("LayerNormalization", x, net.const(some(30)))
        net.output(net.quantize(normal, after, 0, out=f"y{number}"), dtype=np.int8)
    model = net.model()
    feeds = feeds_of(model)
    check_c(compile_model(model), feeds, numpy_outputs(model, feeds))


# ------------------------------------------------------------------------------------------ batch normalization


def batch_net(*constant: bool, opset: int = 15, **attributes: object) -> Net:
    """BatchNormalization of x; which of scale, bias, mean and variance are constants."""
    net = Net(opset)
    x = net.input("x", 3, 2, 4)
    names = ["scale", "bias", "mean", "var"]
    values = [net.const(np.abs(some(2)) + 0.5) if c else net.input(n, 2) for n, c in zip(names, constant, strict=True)]
    outs = ["y", "mean_out", "var_out"] if attributes.get("training_mode") else ["y"]
    net.output(*net.ops("BatchNormalization", x, *values, outs=outs, **attributes))
    return net


@pytest.mark.parametrize("constant", [(True,) * 4, (False,) * 4, (False, True, True, True), (True, True, False, True)])
def test_batch_normalization(constant: tuple[bool, ...]):
    model = batch_net(*constant, epsilon=0.01).model()
    feeds = {name: np.abs(array) if name == "var" else array for name, array in feeds_of(model).items()}
    check_everywhere(model, feeds)


@pytest.mark.parametrize("shape", [(4, 2), (3,), ()])
@pytest.mark.parametrize("training", [0, 1])
def test_a_batch_normalization_has_a_parameter_a_channel(shape: tuple[int, ...], training: int):
    net = Net()
    good = [net.const(np.ones(4)) for _ in range(3)]
    values = [*good[:2], net.const(np.ones(shape)), good[2]]
    net.output(net.op("BatchNormalization", net.input("x", 2, 4, 3), *values, training_mode=training))
    with pytest.raises(McugenError, match="BatchNormalization"):
        imported(net.plain_model())


def test_batch_normalization_in_training():
    check_everywhere(batch_net(*(True,) * 4, training_mode=1, momentum=0.7).model())
    model = batch_net(*(False,) * 4, training_mode=1).model()
    assert "normalize" in operators(optimized(model))


def test_doubles():
    net = Net(15)
    x = net.input("x", 2, 3, 4, dtype=np.float64)
    net.output(
        net.op("InstanceNormalization", x, *[net.const(some(3), np.float64) for _ in "sb"], out="y"), dtype=float
    )
    model = net.model()
    feeds = feeds_of(model)
    check_c(compile_model(model), feeds, numpy_outputs(model, feeds), 1e-12)


# --------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("op_type", "operands", "attributes"),
    [
        ("LayerNormalization", 1, {"axis": 3}),
        ("LayerNormalization", 1, {"axis": -4}),
        ("GroupNormalization", 2, {"num_groups": 4}),
        ("GroupNormalization", 2, {"num_groups": 0}),
        ("LpNormalization", 0, {"p": 3}),
        ("LpNormalization", 0, {"axis": 9}),
        ("MeanVarianceNormalization", 0, {"axes": [3]}),
        ("MeanVarianceNormalization", 0, {}),
        ("BatchNormalization", 4, {}),
    ],
)
def test_refused(op_type: str, operands: int, attributes: dict[str, object]):
    net = Net(21)
    constants = [net.const(some(3)) for _ in range(operands)]
    outs = ["y", "extra"] if op_type == "BatchNormalization" else ["y"]
    net.ops(op_type, net.input("x", 2, 3, 4), *constants, outs=outs, **attributes)
    net.output("y", shape=(2, 3, 4))
    with pytest.raises(McugenError):
        imported(net.plain_model())


def test_scales_of_another_shape_are_refused():
    net = Net(17)
    net.output(net.op("LayerNormalization", net.input("x", 2, 3), net.const(some(5)), out="y"), shape=(2, 3))
    with pytest.raises(McugenError, match="broadcast"):
        imported(net.plain_model())
