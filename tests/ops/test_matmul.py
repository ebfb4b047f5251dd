# SPDX-License-Identifier: Apache-2.0
"""Matrix products: constant weights and two activations, batches and vectors, float and int8."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import (
    Net,
    assert_close,
    c_outputs,
    check_everywhere,
    check_quantized,
    numpy_outputs,
    operators,
    optimized,
    random_feeds,
)

from mcugen.errors import UnsupportedError
from mcugen.hir.types import DType


def rng(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


def weights(net: Net, *shape: int) -> str:
    return net.const(rng().standard_normal(shape))


def test_constant_matrices_of_every_width():
    net = Net()
    net.input("x", 3, 7)
    for columns in range(1, 10):
        net.output(net.op("MatMul", "x", weights(net, 7, columns), out=f"y{columns}"))
    model = net.model()
    assert set(operators(optimized(model))) == {"dense"}
    check_everywhere(model)


def test_depths():
    net = Net()
    for depth in (1, 2, 3, 4, 5, 8, 33):
        x = net.input(f"x{depth}", 2, depth)
        net.output(net.op("MatMul", x, weights(net, depth, 6), out=f"y{depth}"))
    check_everywhere(net.model())


MATMUL_SHAPES = [
    ((3, 4), (4, 5)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((1, 3, 4), (6, 4, 5)),
    ((2, 1, 3, 4), (1, 3, 4, 2)),
    ((3, 4), (2, 4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 3)),
    ((1, 1), (1, 1)),
]


@pytest.mark.parametrize("second", ["computed", "constant"])
def test_matmul_shapes(second: str):
    net = Net()
    for case, (a, b) in enumerate(MATMUL_SHAPES):
        left = net.input(f"a{case}", *a)
        right = net.input(f"b{case}", *b) if second == "computed" else weights(net, *b)
        net.output(net.op("MatMul", left, right, out=f"y{case}"))
    check_everywhere(net.model())


def test_constant_on_the_left():
    net = Net()
    net.input("x", 4, 5)
    net.output(
        net.op("MatMul", weights(net, 3, 4), "x", out="y"),
        net.op("MatMul", weights(net, 2, 3, 4), "x", out="z"),
    )
    check_everywhere(net.model())


def test_gemm_forms():
    net = Net()
    net.input("x", 3, 4)
    net.input("xt", 4, 3)
    net.input("w", 4, 5)
    bias = weights(net, 5)
    for name, b, attributes in (
        ("plain", weights(net, 4, 5), {}),
        ("transB", weights(net, 5, 4), {"transB": 1}),
        ("scaled", weights(net, 5, 4), {"transB": 1, "alpha": 0.5, "beta": -2.0}),
        ("computed", "w", {"beta": 0.0}),
    ):
        net.output(net.op("Gemm", "x", b, bias, out=name, **attributes))
    net.output(net.op("Gemm", "xt", weights(net, 4, 5), transA=1, out="transA"))
    for shape in ((1,), (), (3, 1), (1, 5), (3, 5)):
        net.output(net.op("Gemm", "x", weights(net, 4, 5), weights(net, *shape), out=f"bias{shape}"))
    net.output(net.op("Gemm", "x", weights(net, 4, 5), net.op("Relu", net.input("c", 5)), out="computed bias"))
    check_everywhere(net.model())


def test_activations_are_fused():
    net = Net()
    net.input("x", 2, 6)
    for name, bounds in (("relu", (0.0,)), ("relu6", (0.0, 6.0)), ("upper", ("", 0.3)), ("odd", (-0.4, 0.4))):
        limits = [b if b == "" else net.const(b) for b in bounds]
        net.output(net.op("Clip", net.op("Gemm", "x", weights(net, 6, 5), weights(net, 5)), *limits, out=name))
    model = net.model()
    assert set(operators(optimized(model))) == {"dense"}
    check_everywhere(model)


def test_a_scalar_bias_that_is_stored_quantized():
    net = Net()
    net.input("x", 2, 6)
    scalar = net.dequantize(net.const([3], np.int8), 0.5)
    net.output(net.op("Add", net.op("MatMul", "x", weights(net, 6, 5)), scalar, out="y"))
    check_everywhere(net.model())


# ------------------------------------------------------------------------------------------------- int8


def int8_weights(net: Net, rows: int, columns: int, axis: int | None) -> str:
    """Quantized [rows, columns], with a scale per index of `axis`."""
    random = rng(rows * columns)
    codes = net.const(random.integers(-127, 128, (rows, columns)), np.int8)
    if axis is None:
        return net.dequantize(codes, 0.02)
    scales = net.const(random.uniform(0.005, 0.03, (rows, columns)[axis]))
    zeros = net.const([0] * (rows, columns)[axis], np.int8)
    return net.op("DequantizeLinear", codes, scales, zeros, axis=axis)


@pytest.mark.parametrize("per_channel", [False, True])
def test_int8_dense(per_channel: bool):
    net = Net()
    for columns in range(1, 10):
        x = net.dequantize(net.input(f"x{columns}", 8, 13, dtype=np.int8), 0.05, columns - 5)
        product = net.op("MatMul", x, int8_weights(net, 13, columns, 1 if per_channel else None))
        net.output(net.quantize(product, 0.2, 5 - columns, out=f"y{columns}"), dtype=np.int8)
    x = net.dequantize(net.input("x", 8, 13, dtype=np.int8), 0.05, -128)
    gemm = net.op("Gemm", x, int8_weights(net, 6, 13, 0 if per_channel else None), transB=1)
    net.output(net.quantize(net.op("Relu", gemm), 0.1, -128, out="gemm"), dtype=np.int8)
    model = net.model()
    assert set(operators(optimized(model))) == {"dense"}
    check_quantized(model)


def test_int8_bias():
    net = Net()
    x = net.dequantize(net.input("x", 40, 13, dtype=np.int8), 0.05, 3)
    codes = net.const(rng().integers(-3000, 3000, 7), np.int32)
    bias = net.op("DequantizeLinear", codes, net.const(np.float32(0.05) * np.float32(0.02)), net.const(0, np.int32))
    added = net.op("Add", net.op("MatMul", x, int8_weights(net, 13, 7, None)), bias)
    net.output(net.quantize(added, 0.2, 1, out="y"), dtype=np.int8)
    model = net.model()
    assert operators(optimized(model)) == ["dense"]
    check_quantized(model)


def test_a_quantized_sum_after_a_dense_layer_is_not_taken_for_its_bias():
    net = Net()
    x = net.dequantize(net.input("x", 40, 13, dtype=np.int8), 0.05, 3)
    dense = net.fake(net.op("MatMul", x, int8_weights(net, 13, 7, None)), 0.1, 9)
    row = net.dequantize(net.const(rng().integers(-128, 128, (1, 7)), np.int8), 0.07, 4)
    net.output(net.quantize(net.op("Add", dense, row), 0.15, 1, out="y"), dtype=np.int8)
    check_quantized(net.model())


def test_an_integer_bias_stays_exact():
    """2^24 + 1 is no float32."""
    net = Net()
    net.input("x", 4, 6, dtype=np.uint8)
    product = net.op(
        "MatMulInteger", "x", net.const(rng().integers(-128, 128, (6, 5)), np.int8), net.const(3, np.uint8)
    )
    bias = net.const([2**24 + 1, -(2**24) - 1, 2**30 + 1, 0, 1], np.int32)
    net.output(net.op("Add", product, bias, out="y"), dtype=np.int32)
    check_everywhere(net.model())


def test_int8_product_of_two_activations():
    net = Net()
    a = net.dequantize(net.input("a", 4, 9, 11, dtype=np.int8), 0.05, 3)
    b = net.dequantize(net.input("b", 4, 11, 10, dtype=np.int8), 0.03, -7)
    net.output(net.quantize(net.op("MatMul", a, b), 0.1, 5, out="y"), dtype=np.int8)
    model = net.model()
    assert operators(optimized(model)) == ["matmul"]
    check_quantized(model)


def test_sums_that_could_overflow_stay_float():
    """255 · 127 · depth may exceed 31 bits."""
    depth = 70_000
    net = Net()
    x = net.dequantize(net.input("x", 1, depth, dtype=np.int8), 0.01, 0)
    codes = net.dequantize(net.const(np.full((depth, 1), 127), np.int8), 0.01)
    net.output(net.quantize(net.op("MatMul", x, codes), 10.0, 0, out="y"), dtype=np.int8)
    model = net.model()
    dense = next(node for node in optimized(model).nodes if "dense" in node.op.name)
    assert dense.input(0).type.dtype is DType.FLOAT32
    check_quantized(model, {"x": np.full((1, depth), -128, np.int8)})


@pytest.mark.parametrize("op_type", ["MatMul", "Gemm"])
def test_other_element_types_are_refused(op_type: str):
    net = Net()
    net.input("x", 2, 3, dtype=np.int32)
    net.output(net.op(op_type, "x", net.const(np.ones((3, 2)), np.int32)), dtype=np.int32)
    with pytest.raises(UnsupportedError, match=rf"{op_type}: .*float32\. found: int32"):
        optimized(net.model())


def test_special_values_pass_through():
    net = Net()
    net.input("x", 4, 2)
    net.output(net.op("MatMul", "x", net.const([[1.0, 2.0], [0.5, -1.0]]), out="y"))
    net.output(net.op("Relu", net.op("MatMul", "x", net.const([[1.0, 2.0], [0.5, 1.0]])), out="relu"))
    feeds = {"x": np.array([[np.inf, 1], [np.nan, 0], [-np.inf, 3], [1e38, 1e38]], np.float32)}
    model = net.model()
    assert_close(c_outputs(model, feeds), numpy_outputs(model, feeds))
    assert random_feeds(model).keys() == {"x"}
