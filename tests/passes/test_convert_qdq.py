# SPDX-License-Identifier: Apache-2.0
"""Quantized models become integer ones: no float tensor left, results within one step of onnxruntime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto
from onnx_models import (
    MICROSOFT,
    Net,
    assert_within_one,
    check_everywhere,
    check_quantized,
    numpy_outputs,
    onnxruntime_outputs,
    operators,
    optimized,
    random_feeds,
)

from mcugen.core.errors import UnsupportedError
from mcugen.hir.graph import Graph

ACTIVATIONS = [np.int8, np.uint8]
WEIGHTS = [(np.int8, 0), (np.uint8, 128), (np.uint8, 117), (np.int8, 5)]


def rng() -> np.random.Generator:
    return np.random.default_rng(4)


def zero_of(dtype: type, offset: int = 7) -> int:
    return offset if dtype is np.int8 else 128 + offset


def codes(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    limits = np.iinfo(dtype)
    return rng().integers(max(limits.min, -127), limits.max + 1, shape).astype(dtype)


def assert_integer(graph: Graph) -> None:
    floats = [value for value in graph.values() if value.type.dtype.is_float]
    assert not floats, f"{floats}\n{graph}"


def check_integer(net: Net) -> None:
    model = net.model()
    assert_integer(optimized(model))
    check_quantized(model)


# --------------------------------------------------------------------------------------------------- QDQ


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
def test_qdq_network(activation: type, per_channel: bool):
    """conv → depthwise conv → add → concat → dense, of every kind of weights."""
    net = Net()
    zero = zero_of(activation)
    x = net.dequantize(net.input("x", 1, 3, 8, 8, dtype=activation), 0.05, zero, activation)
    for index, (dtype, weight_zero) in enumerate(WEIGHTS):
        a = net.fake(net.op("Relu", qdq_conv(net, x, 4, 3, per_channel, dtype, weight_zero)), 0.04, zero, activation)
        b = net.fake(qdq_conv(net, a, 4, 4, per_channel, dtype, weight_zero, group=4), 0.06, zero - 5, activation)
        added = net.fake(net.op("Add", a, b), 0.07, zero, activation)
        joined = net.fake(net.op("Concat", added, b, axis=1), 0.07, zero, activation)
        net.output(net.quantize(joined, 0.07, zero, activation, out=f"y{index}"), dtype=activation)
    model = net.model()
    assert_integer(optimized(model))
    feeds = random_feeds(model)
    # a step more or less grows from layer to layer: each is within one, in all few differ
    found, expected = numpy_outputs(model, feeds), onnxruntime_outputs(model, feeds)
    for name, array in expected.items():
        difference = np.abs(found[name].astype(int) - array.astype(int))
        assert difference.max() <= 2
        assert (difference > 0).mean() < 0.02


def qdq_conv(
    net: Net, x: str, channels: int, inputs: int, per_channel: bool, dtype: type, zero: int, group: int = 1
) -> str:
    shape = (channels, inputs // group, 3, 3)
    scales = rng().uniform(0.001, 0.004, channels if per_channel else ()).astype(np.float32)
    zeros = net.const(np.full(scales.shape, zero), dtype)
    weights = net.op("DequantizeLinear", net.const(codes(shape, dtype), dtype), net.const(scales), zeros, axis=0)
    return net.op("Conv", x, weights, group=group, pads=[1, 1, 1, 1])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("dtype", "zero"), WEIGHTS, ids=str)
@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
def test_qdq_layers(activation: type, dtype: type, zero: int, per_channel: bool):
    """Each layer for itself, on many elements: within one step."""
    net = Net()
    x = net.dequantize(net.input("x", 1, 6, 20, 20, dtype=activation), 0.05, zero_of(activation), activation)
    plain = qdq_conv(net, x, 8, 6, per_channel, dtype, zero)
    net.output(net.quantize(plain, 0.03, zero_of(activation), activation, out="conv"), dtype=activation)
    grouped = net.op("Relu", qdq_conv(net, x, 6, 6, per_channel, dtype, zero, group=6))
    low = 0 if activation is np.uint8 else -128
    net.output(net.quantize(grouped, 0.01, low, activation, out="depthwise"), dtype=activation)
    model = net.model()
    assert_integer(optimized(model))
    feeds = random_feeds(model)
    assert_within_one(numpy_outputs(model, feeds), onnxruntime_outputs(model, feeds))


def test_scales_as_pytorch_stores_them():
    """Scales and zero points of shape [1], and a bias that is quantized per channel."""
    net = Net()
    net.input("x", 30, 12, dtype=np.int8)
    real = net.op("DequantizeLinear", "x", net.const([0.05]), net.const([3], np.int8))
    scales = rng().uniform(0.001, 0.01, 5).astype(np.float32)
    zeros = net.const([0] * 5, np.int8)
    weights = net.op("DequantizeLinear", net.const(codes((5, 12), np.int8), np.int8), net.const(scales), zeros, axis=0)
    bias = net.op(
        "DequantizeLinear",
        net.const(rng().integers(-999, 999, 5), np.int32),
        net.const(scales * np.float32(0.05)),
        net.const([0] * 5, np.int32),
        axis=0,
    )
    gemm = net.op("Gemm", real, weights, bias, transB=1)
    net.output(net.op("QuantizeLinear", gemm, net.const([0.1]), net.const([-9], np.int8), out="y"), dtype=np.int8)
    check_integer(net)


def test_float_bias_is_rounded_to_the_accumulators_unit():
    net = Net()
    x = net.dequantize(net.input("x", 1, 3, 6, 6, dtype=np.int8), 0.05, 3)
    weights = net.dequantize(net.const(codes((4, 3, 3, 3), np.int8), np.int8), 0.01)
    conv = net.op("Conv", x, weights, net.const([0.5, -1.25, 3.0, 0.0]))
    net.output(net.quantize(conv, 0.1, 2, out="y"), dtype=np.int8)
    check_integer(net)


def test_quantized_statistics_of_a_normalization_are_constants():
    """ONNX Runtime's quantizer rounds the scale and bias of a batch normalization that it does not compute in codes."""
    net = Net()
    x = net.dequantize(net.input("x", 1, 6, 5, 7, dtype=np.int8), 0.05, 3)
    scale = net.dequantize(net.const(rng().integers(40, 127, 6), np.int8), 0.01)
    bias = net.dequantize(net.const(rng().integers(-99, 99, 6), np.int8), 0.005)
    mean, variance = net.const(rng().normal(size=6)), net.const(rng().uniform(0.5, 2, 6))
    real = net.op("Relu", net.op("BatchNormalization", x, scale, bias, mean, variance))
    net.output(net.quantize(real, 0.03, -128, out="y"), dtype=np.int8)
    assert "affine" in operators(optimized(net.model()))
    check_integer(net)


def test_operators_without_an_integer_form_are_islands():
    net = Net()
    x = net.dequantize(net.input("x", 2, 30, dtype=np.int8), 0.05, 3)
    y = net.dequantize(net.input("y", 2, 30, dtype=np.int8), 0.03, -9)
    real = net.op("Div", x, net.op("Exp", y))
    net.output(net.quantize(real, 0.05, 2, out="q"), dtype=np.int8)
    model = net.model()
    assert "div" in " ".join(operators(optimized(model)))
    check_quantized(model)


def test_an_activation_that_a_float_output_reads_stays_float_there():
    net = Net()
    x = net.dequantize(net.input("x", 40, dtype=np.int8), 0.05, 3)
    real = net.op("Sigmoid", x, out="real")
    net.output(real)
    net.output(net.quantize(real, 0.01, 2, out="q"), dtype=np.int8)
    model = net.model()
    feeds = random_feeds(model)
    found, expected = numpy_outputs(model, feeds), onnxruntime_outputs(model, feeds)
    np.testing.assert_allclose(found["real"], expected["real"], atol=1e-6)
    assert_within_one({"q": found["q"]}, {"q": expected["q"]}, share=0.05)


def test_two_readers_of_different_scale():
    net = Net()
    x = net.dequantize(net.input("x", 600, dtype=np.int8), 0.05, 3)
    real = net.op("Tanh", x)
    net.output(net.quantize(real, 0.01, 2, out="fine"), net.quantize(real, 0.1, -5, out="coarse"), dtype=np.int8)
    check_quantized(net.model())


def test_a_layer_that_two_read_in_different_scales_is_exact_for_both():
    net = Net()
    x = net.dequantize(net.input("x", 1, 3, 20, 20, dtype=np.int8), 0.05, 3)
    real = qdq_conv(net, x, 8, 3, True, np.int8, 0)
    net.output(net.quantize(real, 0.1, -5, out="coarse"), net.quantize(real, 0.03, 2, out="fine"), dtype=np.int8)
    model = net.model()
    assert_integer(optimized(model))
    check_quantized(model)


def test_order_is_that_of_the_codes():
    """What compares elements of one tensor alone needs no reals, though its results include positions."""
    net = Net()
    x = net.dequantize(net.input("x", 4, 30, dtype=np.int8), 0.05, 3)
    top, at = net.ops("TopK", x, net.const([5], np.int64), outs=["top", "at"])
    net.output(net.quantize(top, 0.05, 3, out="best"), dtype=np.int8)
    net.output(at, net.op("ArgMax", x, axis=1, out="arg"), dtype=np.int64)
    least = net.op("Expand", net.op("ReduceMin", x, axes=[1]), net.const([4, 30], np.int64))
    net.output(net.quantize(least, 0.05, 3, out="least"), dtype=np.int8)
    image = net.dequantize(net.input("image", 1, 2, 8, 9, dtype=np.int8), 0.05, 3)
    most, where = net.ops("MaxPool", image, outs=["most", "where"], kernel_shape=[2, 2], strides=[2, 2])
    net.output(net.quantize(net.op("Relu", most), 0.05, 3, out="pooled"), dtype=np.int8)
    net.output(where, dtype=np.int64)
    volume = net.dequantize(net.input("volume", 1, 2, 4, 5, 6, dtype=np.int8), 0.05, 3)
    net.output(net.quantize(net.op("MaxPool", volume, kernel_shape=[2, 2, 2]), 0.05, 3, out="deep"), dtype=np.int8)
    model = net.model()
    assert_integer(optimized(model))
    check_quantized(model)


def test_a_real_constant_moves_among_codes():
    net = Net()
    x = net.dequantize(net.input("x", 1, 3, 5, dtype=np.int8), 0.05, 3)
    joined = net.op("Concat", x, net.const(rng().uniform(-9, 9, (1, 2, 5))), axis=1)
    net.output(net.quantize(joined, 0.05, 3, out="y"), dtype=np.int8)
    check_integer(net)


def test_exporters_place_one_pair_behind_each_tensor():
    """All readers, the model's output among them, read the one dequantized tensor; int16 readers a further pair."""
    net = Net(opset=21)
    x = net.dequantize(net.input("x", 1, 3, 12, 12, dtype=np.int8), 0.05, 3)
    a = net.fake(qdq_conv(net, x, 4, 3, True, np.int8, 0), 0.03, 2, out="a")
    b = net.fake(net.op("Sigmoid", a), 0.004, -128)
    wide = net.fake(a, 2e-4, 0, np.int16)
    net.output(a, net.op("Div", a, net.op("Exp", b), out="float"))
    net.output(net.quantize(net.op("Tanh", wide), 4e-5, 0, np.int16, out="wide"), dtype=np.int16)
    model = net.model()
    names = operators(optimized(model))
    assert "conv" in names
    feeds = random_feeds(model)
    found, expected = numpy_outputs(model, feeds), onnxruntime_outputs(model, feeds)
    np.testing.assert_allclose(found["a"], expected["a"], atol=0.0301)
    assert np.isclose(found["a"], expected["a"], atol=1e-6).mean() > 0.995
    assert np.isclose(found["float"], expected["float"], atol=1e-5).mean() > 0.98


@pytest.mark.parametrize(("function", "zero"), [("Round", 0), ("ReduceSum", 100), ("Softmax", 100)])
def test_int16_without_an_integer_form_stays_float_and_right(function: str, zero: int):
    """Functions that jump; zero points other than 0, unless a table takes them in."""
    net = Net(opset=21)
    net.input("x", 60, dtype=np.int16)
    real = net.dequantize("x", 1e-4, zero, np.int16)
    net.output(net.quantize(net.op(function, real), 1e-4, 0, np.int16, out="y"), dtype=np.int16)
    model = net.model()
    assert "quantize" in " ".join(operators(optimized(model)))
    feeds = random_feeds(model)
    assert_within_one(numpy_outputs(model, feeds), onnxruntime_outputs(model, feeds), share=0.2)


def test_quantize_without_a_zero_point_gives_the_declared_type():
    net = Net(opset=21)
    real = net.op("Tanh", net.input("x", 60))
    net.output(net.op("QuantizeLinear", real, net.const(0.01), out="u"), dtype=np.uint8)
    net.output(net.op("QuantizeLinear", real, net.const(0.01), output_dtype=3, out="s"), dtype=np.int8)
    check_quantized(net.model(), share=0.05)


LAYERS: dict[str, Callable[[Net, str], str]] = {
    "sigmoid": lambda net, x: net.op("Sigmoid", x),
    "relu": lambda net, x: net.op("Relu", x),
    "conv": lambda net, x: qdq_conv(net, x, 4, 3, False, np.int8, 0),
    "matmul": lambda net, x: net.op("MatMul", x, net.dequantize(net.const(codes((6, 5), np.int8), np.int8), 0.01)),
    "reshape": lambda net, x: net.op("Reshape", x, net.const([3, -1], np.int64)),
    "add": lambda net, x: net.op("Add", x, x),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_cast_of_reals_truncates_the_reals(layer: str):
    """A cast to int32 is no QuantizeLinear: scales other than 1 count, and it does not round."""
    net = Net()
    x = net.dequantize(net.input("x", 1, 3, 6, 6, dtype=np.int8), 0.35, 3)
    net.output(net.op("Cast", LAYERS[layer](net, x), to=6, out="y"), dtype=np.int32)
    model = net.model()
    feeds = random_feeds(model)
    found, expected = numpy_outputs(model, feeds)["y"], onnxruntime_outputs(model, feeds)["y"]
    assert (found != expected).mean() < 0.01
    assert np.abs(found - expected).max() <= 1


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e10, 1e30])
def test_extreme_scales_do_not_break_the_compiler(scale: float):
    net = Net()
    for function in ("Add", "Mul"):
        a, b = (net.dequantize(net.input(f"{n}{function}", 50, dtype=np.int8), 0.1, 3) for n in "ab")
        net.output(net.quantize(net.op(function, a, b), scale, 0, out=function), dtype=np.int8)
    x = net.dequantize(net.input("x", 4, 6, dtype=np.int8), 0.1, 3)
    weights = net.dequantize(net.const(codes((6, 5), np.int8), np.int8), 0.1)
    net.output(net.quantize(net.op("MatMul", x, weights), scale, 0, out="dense"), dtype=np.int8)
    check_quantized(net.model())


# --------------------------------------------------------------------------------------------- QOperator


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
def test_qlinear_conv(activation: type, per_channel: bool):
    net = Net()
    x = net.input("x", 1, 3, 12, 12, dtype=activation)
    kinds = [(np.int8, 0)] if activation is np.int8 else [(np.int8, 0), (np.uint8, 128), (np.uint8, 117)]
    for index, (dtype, zero) in enumerate(kinds):
        if per_channel and zero == 117:
            continue  # onnxruntime has symmetric weights only there
        scales = rng().uniform(0.001, 0.01, 5 if per_channel else ())
        params = [
            *(net.const(0.05), net.const(zero_of(activation), activation)),
            *(net.const(codes((5, 3, 3, 3), dtype), dtype), net.const(scales)),
            *(net.const(np.full(scales.shape, zero), dtype),),
            *(net.const(0.05), net.const(zero_of(activation, -9), activation)),
        ]
        bias = net.const(rng().integers(-500, 500, 5), np.int32)
        y = net.op("QLinearConv", x, *params, bias, pads=[1, 1, 1, 1], out=f"y{index}")
        net.output(y, net.op("QLinearConv", x, *params, strides=[2, 2], out=f"z{index}"), dtype=activation)
    check_integer(net)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("per_column", [False, True], ids=["per tensor", "per column"])
@pytest.mark.parametrize("columns", [5, 12])
def test_qlinear_matmul(activation: type, per_column: bool, columns: int):
    net = Net()
    net.input("x", 30, 12, dtype=activation)
    dtype = np.int8
    scales = rng().uniform(0.001, 0.02, columns if per_column else ())
    params = [
        *(net.const(0.05), net.const(zero_of(activation), activation)),
        *(net.const(codes((12, columns), dtype), dtype), net.const(scales)),
        *(net.const(np.zeros(scales.shape), dtype),),
        *(net.const(0.1), net.const(zero_of(activation, -9), activation)),
    ]
    net.output(net.op("QLinearMatMul", "x", *params, out="y"), dtype=activation)
    check_integer(net)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_qlinear_matmul_of_two_activations(activation: type):
    net = Net()
    a, b = net.input("a", 2, 30, 12, dtype=activation), net.input("b", 2, 12, 20, dtype=activation)
    params = [
        (net.const(s), net.const(zero_of(activation, z), activation)) for s, z in ((0.05, 3), (0.03, -8), (0.1, 0))
    ]
    net.output(net.op("QLinearMatMul", a, *params[0], b, *params[1], *params[2], out="y"), dtype=activation)
    check_integer(net)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_integer_products_are_exact(activation: type):
    net = Net()
    net.input("x", 30, 12, dtype=activation)
    zero = net.const(zero_of(activation), activation)
    matrices = {
        "s8": net.const(codes((12, 5), np.int8), np.int8),
        "u8": net.const(codes((12, 5), np.uint8), np.uint8),
    }
    zeros = {"s8": net.const(0, np.int8), "u8": net.const(131, np.uint8)}
    for kind, matrix in matrices.items():
        if activation is np.int8 and kind == "u8":
            continue  # onnxruntime has no such kernel
        net.output(net.op("MatMulInteger", "x", matrix, zero, zeros[kind], out=f"matmul {kind}"), dtype=np.int32)
        bare = net.input(f"bare {kind}", 30, 12, dtype=activation)
        net.output(net.op("MatMulInteger", bare, matrix, out=f"matmul {kind} bare"), dtype=np.int32)
    if activation is np.uint8:
        image = net.input("image", 1, 3, 7, 7, dtype=activation)
        kernel, kernel_zero = net.const(codes((4, 3, 3, 3), np.uint8), np.uint8), net.const(120, np.uint8)
        net.output(
            net.op("ConvInteger", image, kernel, zero, kernel_zero, pads=[1, 1, 1, 1], out="conv"),
            dtype=np.int32,
        )
        bare = net.input("bare image", 1, 3, 7, 7, dtype=activation)
        net.output(net.op("ConvInteger", bare, kernel, strides=[2, 2], out="conv bare"), dtype=np.int32)
    assert_integer(optimized(net.model()))
    check_everywhere(net.model())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_microsofts_operators(activation: type):
    net = Net()
    a, b = (net.input(name, 30, 12, dtype=activation) for name in "ab")
    qa, qb, qy = (
        (net.const(s), net.const(zero_of(activation, z), activation))
        for s, z in ((0.0511, 3), (0.0307, -8), (0.0613, 0))
    )
    for function in ("QLinearAdd", "QLinearMul"):
        net.op(function, a, *qa, b, *qb, *qy, out=function, domain=MICROSOFT)
    net.op("QLinearSigmoid", a, *qa, net.const(1 / 256), qy[1], out="QLinearSigmoid", domain=MICROSOFT)
    net.op("QLinearLeakyRelu", a, *qa, *qy, out="QLinearLeakyRelu", domain=MICROSOFT, alpha=0.2)
    net.op("QLinearConcat", *qy, a, *qa, b, *qb, out="QLinearConcat", domain=MICROSOFT, axis=1)
    matrix = net.const(codes((5, 12), np.int8), np.int8)
    for name, scales in (
        ("per tensor", rng().uniform(0.005, 0.02)),
        ("per channel", rng().uniform(0.005, 0.02, 5)),
    ):
        params = (net.const(scales), net.const(np.zeros(np.shape(scales)), np.int8))
        bias = net.const(rng().integers(-500, 500, 5), np.int32)
        net.op("QGemm", a, *qa, matrix, *params, bias, *qy, out=name, domain=MICROSOFT, transB=1)
    for node in net.nodes:
        net.output(
            node.output[0],
            dtype=activation,
            shape=[30, {"QLinearConcat": 24, "QGemm": 5}.get(node.op_type, 12)],
        )
    check_integer(net)


# ---------------------------------------------------------------------------------------------- refusals


def test_one_tensor_of_two_scales_is_converted_twice():
    net = Net()
    net.input("x", 4, dtype=np.int8)
    net.output(net.op("Add", net.dequantize("x", 0.5), net.dequantize("x", 0.25)))
    check_everywhere(net.model())


def test_whoever_reads_the_integers_themselves_sees_no_scale():
    net = Net()
    net.input("x", 4, dtype=np.int8)
    codes = net.op("Relu", net.op("Cast", "x", to=TensorProto.FLOAT))
    net.output(net.quantize(codes, 2.5, 3, out="codes"), dtype=np.int8)
    net.output(net.op("Relu", net.dequantize("x", 0.25, 7), out="reals"))
    check_everywhere(net.model())


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan])
def test_scales_that_are_no_positive_numbers_are_refused(scale: float):
    net = Net()
    net.input("x", 4, dtype=np.int8)
    net.output(net.dequantize("x", scale))
    with pytest.raises(UnsupportedError, match="scales must be positive and finite"):
        optimized(net.model())


def test_data_moves_as_it_is_stored():
    """Dequantize → movements → layer: the conversion follows the data, and the layer is an integer one."""
    net = Net()
    x = net.dequantize(net.input("x", 1, 2, 3, 4, dtype=np.int8), 0.1, 5)
    turned = net.op("Transpose", x, perm=[0, 2, 3, 1])
    halves = net.ops("Split", net.op("Flatten", turned), outs=["a", "b"], axis=1)
    padded = net.op("Pad", halves[0], net.const([0, 1, 0, 1], np.int64))
    weights = net.dequantize(net.const(codes((14, 3), np.int8), np.int8), 0.02)
    net.output(net.quantize(net.op("MatMul", padded, weights), 0.3, 1, out="y"), dtype=np.int8)
    net.output(net.quantize(net.op("Relu", halves[1]), 0.1, 5, out="z"), dtype=np.int8)
    check_integer(net)


def test_padding_value_without_a_code_stays_real():
    net = Net()
    x = net.dequantize(net.input("x", 1, 4, dtype=np.int8), 0.1, 5)
    padded = net.op("Pad", x, net.const([0, 1, 0, 1], np.int64), net.const(1000.0))
    net.output(net.op("Exp", padded, out="y"))
    assert "pad" in operators(optimized(net.model()))
    check_everywhere(net.model())


PADS = [0, 0, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "of_codes",
    [
        *(lambda net, q, v=v: net.op("Pad", q, net.const(PADS, np.int64), net.const(v, np.int8)) for v in (7, 0, -128)),
        lambda net, q: net.op("Pad", q, net.const(PADS, np.int64)),
        lambda net, q: net.op("Max", q, net.const(9, np.int8)),
        lambda net, q: net.op("Clip", q, net.const(-3, np.int8), net.const(5, np.int8)),
        lambda net, q: net.op("Where", net.op("Less", q, net.const(3, np.int8)), q, net.const(4, np.int8)),
        lambda net, q: net.op("Concat", q, net.const(np.full((1, 1, 9, 8), 3), np.int8), axis=1),
    ],
    ids=["pad7", "pad0", "pad-128", "pad", "max", "clip", "where", "concat"],
)
def test_operators_between_conversions_compute_with_codes(of_codes: Callable[[Net, str], str]):
    net = Net()
    codes = of_codes(net, net.quantize(net.input("x", 1, 4, 9, 8), 0.1, 7))
    net.dequantize(codes, 0.1, 7, out="y")
    net.output("y")
    check_everywhere(net.model())


@pytest.mark.parametrize("kind", ["dense", "conv"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
def test_a_channel_without_weights_keeps_its_bias_where_the_result_is_real(dtype: type, kind: str):
    net = Net(21)
    zero = {np.int8: -5, np.uint8: 100, np.int16: 0}[dtype]
    shape = (1, 3) if kind == "dense" else (1, 3, 2, 2)
    x = net.dequantize(net.quantize(net.input("x", *shape), 0.03, zero, dtype), 0.03, zero, dtype)
    weights = np.asarray([[50, -100, 3], [0, 0, 0], [1, 2, 3]], np.int8)
    scales = np.asarray([0.1, 1e-7, 0.02], np.float32)

    def constant(data: np.ndarray, unit: np.ndarray) -> str:
        zeros = net.const(np.zeros(3), data.dtype.type)
        return net.op("DequantizeLinear", net.const(data, data.dtype.type), net.const(unit), zeros, axis=0)

    bias = constant(np.asarray([7, 2**30, -9], np.int32), np.float32(0.03) * scales)
    w = constant(weights.reshape(3, 3, *[1] * (len(shape) - 2)), scales)
    y = net.op("Gemm", x, w, bias, transB=1) if kind == "dense" else net.op("Conv", x, w, bias)
    net.output(y)
    check_everywhere(net.model())
