# SPDX-License-Identifier: Apache-2.0
"""Matrix products: constant weights and two activations, batches and vectors, float and int8."""

from __future__ import annotations

import numpy as np
import pytest
from checks import check_c
from onnx_models import (
    Net,
    assert_close,
    c_outputs,
    check_everywhere,
    check_quantized,
    imported,
    numpy_outputs,
    operators,
    optimized,
    random_feeds,
)

from mcugen.core.errors import McugenError
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
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


def test_quantized_layer_of_depth_one_is_a_layer():
    net = Net()
    x = net.dequantize(net.input("x", 1, 1, dtype=np.int8), 0.05, 3)
    w = net.dequantize(net.const(rng().integers(-128, 128, (1, 6)), np.int8), 0.03)
    net.output(net.quantize(net.op("MatMul", x, w), 0.1, 5, out="y"), dtype=np.int8)
    model = net.model()
    assert operators(optimized(model)) == ["dense"]
    check_quantized(model)


def test_products_of_depth_one_are_those_of_elements():
    """Of reals, and of codes between conversions."""
    for dtype in (np.float32, np.int8):
        net = Net()
        a, b = net.input("a", 2, 3, 1, dtype=dtype), net.input("b", 2, 1, 4, dtype=dtype)
        if dtype is np.int8:
            a, b = net.dequantize(a, 0.05, 3), net.dequantize(b, 0.03, -7)
            net.output(net.quantize(net.op("MatMul", a, b), 0.1, 5, out="y"), dtype=np.int8)
        else:
            net.output(net.op("MatMul", a, b, out="y"))
        model = net.model()
        assert "matmul" not in operators(optimized(model))
        check_quantized(model) if dtype is np.int8 else check_everywhere(model)


# ------------------------------------------------------------------------------------------------- int16

PAIRS = [(np.int16, np.int16), (np.int8, np.int16), (np.int16, np.int8)]
pairs = pytest.mark.parametrize("types", PAIRS, ids=lambda types: " ".join(t.__name__ for t in types))


def stored(net: Net, name: str, *shape: int, scale: float, dtype: type) -> str:
    """An input in codes, read as reals. Codes of 16 bits have no zero point, and 256 times smaller steps."""
    wide = dtype is np.int16
    codes = net.input(name, *shape, dtype=dtype)
    return net.dequantize(codes, scale / 256 if wide else scale, 0 if wide else 3, dtype)


def result(net: Net, real: str, scale: float, dtype: type, out: str) -> None:
    """An output in codes."""
    wide = dtype is np.int16
    codes = net.quantize(real, scale / 256 if wide else scale, 0 if wide else -7, dtype, out)
    net.output(codes, dtype=dtype)


@pytest.mark.spread(6)
@pairs
@pytest.mark.parametrize("per_channel", [False, True])
def test_int16_dense(types: tuple[type, type], per_channel: bool):
    net = Net(opset=21)
    for columns in range(1, 10):
        x = stored(net, f"x{columns}", 8, 10 + columns, scale=0.05, dtype=types[0])
        product = net.op("MatMul", x, int8_weights(net, 10 + columns, columns, 1 if per_channel else None))
        result(net, product, 0.2, types[1], f"y{columns}")
    x = stored(net, "x", 8, 13, scale=0.05, dtype=types[0])
    gemm = net.op("Gemm", x, int8_weights(net, 6, 13, 0 if per_channel else None), transB=1)
    result(net, net.op("Relu", gemm), 0.1, types[1], "gemm")
    model = net.model()
    assert set(operators(optimized(model))) == {"dense"}
    check_quantized(model, share=0.05)


@pytest.mark.parametrize("out", [np.int8, np.int16])
@pairs
def test_int16_product_of_two_activations(types: tuple[type, type], out: type):
    net = Net(opset=21)
    a = stored(net, "a", 4, 9, 11, scale=0.05, dtype=types[0])
    b = stored(net, "b", 4, 11, 10, scale=0.03, dtype=types[1])
    result(net, net.op("MatMul", a, b), 0.3, out, "y")
    model = net.model()
    assert operators(optimized(model)) == ["matmul"]
    check_quantized(model, share=0.02)


def test_int16_parameters_of_a_product_are_not_rounded_away():
    """Sums of 2^40 shrink to 16 bits: a multiplier of 31 bits of fraction would have 7 of its own."""
    net = Net(opset=21)
    a = net.dequantize(net.input("a", 8, 1000, dtype=np.int16), 2e-6, 0, np.int16)
    b = net.dequantize(net.input("b", 1000, 9, dtype=np.int16), 2e-6, 0, np.int16)
    net.output(net.quantize(net.op("MatMul", a, b), 1e-4, 0, np.int16, "y"), dtype=np.int16)
    random = rng()
    feeds = {"a": random.integers(20_000, 32_768, (8, 1000)), "b": random.integers(20_000, 32_768, (1000, 9))}
    check_quantized(net.model(), {name: array.astype(np.int16) for name, array in feeds.items()}, share=0.05)


@pytest.mark.parametrize("beyond", [False, True])
def test_the_last_sum_of_32_bits(beyond: bool):
    """2^31 - 1, or one more: 32768 · 65535, and the bias gives the rest."""
    net = Net(opset=21)
    x = net.dequantize(net.input("x", 5, 517, dtype=np.int16), 1.0, 0, np.int16)
    codes = np.full((517, 5), -127)
    codes[-1] = 516 * 127 - 65_535
    w = net.dequantize(net.const(codes, np.int8), 1.0)
    bias = net.dequantize(net.const(np.full(5, 2**15 - 1 + beyond), np.int32), 1.0, 0, np.int32)
    net.output(net.quantize(net.op("Add", net.op("MatMul", x, w), bias), 2.0**16, 0, np.int16, "y"), dtype=np.int16)
    model = net.model()
    (instr,) = compile_model(model).program.instrs
    assert instr.code["acc_t"] == ("int64_t" if beyond else "int32_t")
    feeds = random_feeds(model)
    feeds["x"][0], feeds["x"][1] = -(2**15), 2**15 - 1
    check_quantized(model, feeds, share=0.05)


@pytest.mark.spread(6)
@pytest.mark.parametrize("types", [*PAIRS, (np.int8, np.int8)], ids=lambda types: " ".join(t.__name__ for t in types))
@pytest.mark.parametrize("depth", [1999, 3001])
def test_64_bit_sums(types: tuple[type, type], depth: int):
    """Runs of products that 32 bits hold, in whole and in part; four channels and some more; some results saturate.

    It is the depth that makes sums of int16 long, and the bias those of int8.
    """
    net = Net(opset=21)
    x = stored(net, "x", 6, depth, scale=0.01, dtype=types[0])
    codes = rng().integers(-127, 128, (depth, 7))
    codes[:, :5] = 127
    w = net.dequantize(net.const(codes, np.int8), 1e-3)
    size, scale = (3e4, 300.0) if types[0] is np.int8 else (1.0, 0.5)
    bias = net.const(np.linspace(-size, size, 7))
    result(net, net.op("Add", net.op("MatMul", x, w), bias), scale, types[1], "y")
    model = net.model()
    (instr,) = compile_model(model).program.instrs
    assert instr.code["acc_t"] == "int64_t"
    feeds = random_feeds(model)
    limits = np.iinfo(types[0])
    feeds["x"][0], feeds["x"][1] = limits.min, limits.max
    codes = numpy_outputs(model, feeds)["y"]
    assert (np.abs(codes.astype(np.int64)) < np.iinfo(types[1]).max).mean() > 0.5  # the sums are seen
    check_quantized(model, feeds, share=0.05)


@pytest.mark.spread(3)
@pytest.mark.qemu
@pytest.mark.parametrize("board", ["rp2040", "stm32f103", "nrf52840", "rt1060", "nrf5340", "corstone300"])
def test_int16_has_the_same_bits_on_every_cpu(board: str):
    """Layers and products, with sums of 32 and 64 bits."""
    net = Net(opset=21)
    for number, types in enumerate(PAIRS):
        for depth in (13, 1300):
            x = stored(net, f"x{number} {depth}", 2, depth, scale=0.05, dtype=types[0])
            result(net, net.op("MatMul", x, int8_weights(net, depth, 7, 1)), 3.0, types[1], f"dense{number} {depth}")
        a = stored(net, f"a{number}", 3, 11, scale=0.05, dtype=types[0])
        b = stored(net, f"b{number}", 11, 5, scale=0.03, dtype=types[1])
        result(net, net.op("MatMul", a, b), 0.3, types[1], f"product{number}")
    model = net.model()
    feeds = random_feeds(model)
    compiled = compile_model(model, board)
    sums = {(instr.kernel, instr.code.get("acc_t")) for instr in compiled.program.instrs}
    assert {("dense_s16", "int64_t"), ("dense_s16", "int32_t"), ("matmul_s16", "int64_t")} <= sums
    assert_close(compiled.simulate([feeds], measure=False).outputs[0], numpy_outputs(model, feeds))


def test_a_bias_beyond_32_bits():
    """In its own unit it fits; in that of small steps of weights and input it does not."""
    net = Net(opset=21)
    x = net.dequantize(net.input("x", 4, 6, dtype=np.int16), 1e-5, 0, np.int16)
    product = net.op("MatMul", x, net.dequantize(net.const(rng().integers(-127, 128, (6, 5)), np.int8), 1e-6))
    bias = net.dequantize(net.const([3e8, -3e8, 1e9, 0, 5], np.int32), 1e-9, 0, np.int32)
    net.output(net.quantize(net.op("Add", product, bias), 5e-5, 0, np.int16, "y"), dtype=np.int16)
    model = net.model()
    assert operators(optimized(model)) == ["dense"]
    check_quantized(model, share=0.05)


def test_int16_weights_by_int16_activations():
    """uint8 weights with a zero point take 16 bits."""
    net = Net(opset=21)
    x = net.dequantize(net.input("x", 9, 40, dtype=np.int16), 1e-3, 0, np.int16)
    w = net.dequantize(net.const(rng().integers(0, 256, (40, 6)), np.uint8), 0.01, 17, np.uint8)
    net.output(net.quantize(net.op("MatMul", x, w), 0.02, 0, np.int16, "y"), dtype=np.int16)
    model = net.model()
    assert operators(optimized(model)) == ["dense"]
    check_quantized(model, share=0.02)


def test_sums_without_end_are_scaled_as_reals():
    """Beyond 2^43 multipliers have no room left."""
    net = Net(opset=21)
    x = net.dequantize(net.input("x", 1, 128, dtype=np.int16), 1e-5, 0, np.int16)
    w = net.dequantize(net.const(rng().integers(-127, 128, (128, 5)), np.int8), 1e-9)
    real = net.op("Add", net.op("MatMul", x, w), net.const([0.09, 0.1, 0.095, 0.092, 0.098]))
    net.output(net.quantize(real, 3.2e-6, 0, np.int16, "y"), dtype=np.int16)
    model = net.model()
    dense = next(node for node in optimized(model).nodes if "dense" in node.op.name)
    assert (dense.input(0).type.dtype, dense.output.type.dtype) == (DType.INT16, DType.INT32)
    check_quantized(model)


def test_products_that_move_no_result_leave_a_constant():
    """Beside biases of more than 2^43 units, which is not reason enough to leave integers."""
    net = Net(opset=21)
    x = net.dequantize(net.input("x", 1, 6, dtype=np.int16), 1e-5, 0, np.int16)
    w = net.dequantize(net.const(rng().integers(-127, 128, (6, 5)), np.int8), 1e-9)
    real = net.op("Add", net.op("MatMul", x, w), net.const([1.0, 2.0, 3.0, 4.0, 5.0]))
    net.output(net.quantize(real, 2e-4, 0, np.int16, "y"), dtype=np.int16)
    model = net.model()
    assert operators(optimized(model)) == ["dense"]
    check_quantized(model)


SHAPES = [
    ((2, 3), (3, 4)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((3,), (3,)),
    ((2, 1, 5, 3), (4, 3, 2)),
    ((2, 5, 3), (3, 2)),
]


@pytest.mark.spread(6)
@pytest.mark.parametrize(
    "dtype", [np.float64, np.float16, np.int32, np.int64, np.uint32, np.uint64], ids=lambda t: np.dtype(t).name
)
def test_products_of_every_element_type(dtype: type):
    """Integers wrap."""
    net, wanted, feeds = Net(opset=24), {}, {}
    random = np.random.default_rng(9)

    def operand(*shape: int) -> str:
        if np.dtype(dtype).kind == "f":
            array = random.standard_normal(shape).astype(dtype)
        else:
            array = random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
        feeds[f"x{len(feeds)}"] = array
        return net.input(f"x{len(feeds) - 1}", *shape, dtype=dtype)

    def output(y: str, array: np.ndarray) -> None:
        net.output(y, dtype=dtype)
        wanted[y] = np.asarray(array, dtype)

    for number, (a_shape, b_shape) in enumerate(SHAPES):
        a, b = operand(*a_shape), operand(*b_shape)
        output(net.op("MatMul", a, b, out=f"matmul{number}"), feeds[a] @ feeds[b])
        if len(b_shape) == 2:
            constant = net.const(feeds[b], dtype)
            output(net.op("MatMul", a, constant, out=f"constant{number}"), feeds[a] @ feeds[b])
    a, b, c = operand(3, 2), operand(4, 3), operand(4)
    product = feeds[a].T @ feeds[b].T
    output(net.op("Gemm", a, b, c, out="gemm", transA=1, transB=1), product + feeds[c])
    if np.dtype(dtype).kind == "f":
        y = net.op("Gemm", a, b, c, out="scaled", transA=1, transB=1, alpha=0.5, beta=0.25)
        output(y, product * 0.5 + feeds[c] * 0.25)
    compiled = compile_model(net.model())
    found = interpret(compiled.graph, feeds)
    assert_close(found, wanted, 5e-3 if dtype is np.float16 else 1e-12)
    check_c(compiled, feeds, found, 5e-3 if dtype is np.float16 else 1e-12)


def test_integers_times_a_real_factor_are_cut_off():
    net = Net()
    net.input("a", 2, 3, dtype=np.int32)
    net.input("b", 3, 2, dtype=np.int32)
    net.output(net.op("Gemm", "a", "b", net.const([[3, -3]], np.int32), out="y", alpha=0.5, beta=1.5), dtype=np.int32)
    model = net.model()
    feeds = random_feeds(model)
    expected = np.trunc(feeds["a"].astype(int) @ feeds["b"] * 0.5).astype(int) + np.array([4, -4])
    np.testing.assert_array_equal(numpy_outputs(model, feeds)["y"], expected.astype(np.int32))
    assert_close(c_outputs(model, feeds), numpy_outputs(model, feeds))


# -------------------------------------------------------------------------------------------- einsum and det

EQUATIONS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("bij,bjk->bik", (5, 2, 3), (5, 3, 4)),
    ("...ij,...jk->...ik", (5, 1, 2, 3), (4, 3, 4)),
    ("...ii->...i", (2, 3, 3)),
    ("ii", (3, 3)),
    ("iji->j", (3, 2, 3)),
    ("ij->ji", (2, 3)),
    ("ij->", (2, 3)),
    ("i,i->i", (4,), (4,)),
    ("i,j->ji", (4,), (3,)),
    ("i,i", (4,), (4,)),
    ("ij,kj,lm->ilk", (2, 3), (4, 3), (2, 5)),
    ("bhqd,bhkd->bhqk", (1, 2, 3, 4), (1, 2, 5, 4)),
    ("a...,b...->ab...", (2, 3), (4, 3)),
    (" ij , jk , kl -> il ", (2, 3), (3, 4), (4, 2)),
    (",ij->ij", (), (2, 3)),
    ("...,...", (2, 3), (3,)),
    ("ijj,jk->ki", (2, 3, 3), (3, 2)),
    ("Ab,bC->AC", (2, 3), (3, 2)),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int8], ids=lambda t: np.dtype(t).name)
def test_einsum(dtype: type):
    random = np.random.default_rng(10)
    net, wanted, feeds = Net(opset=28), {}, {}
    for number, (equation, *shapes) in enumerate(EQUATIONS):
        names = []
        for operand, shape in enumerate(shapes):
            name = net.input(f"x{number}.{operand}", *shape, dtype=dtype)
            feeds[name] = random.integers(-4, 5, shape).astype(dtype)
            names.append(name)
        y = net.op("Einsum", *names, out=f"y{number}", equation=equation)
        wanted[y] = np.einsum(equation.replace(" ", ""), *(feeds[n] for n in names), dtype=dtype)
        net.output(y, dtype=dtype, shape=wanted[y].shape)
    compiled = compile_model(net.plain_model())
    found = interpret(compiled.graph, feeds)
    assert_close(found, {name: np.asarray(array) for name, array in wanted.items()}, 1e-6)
    check_c(compiled, feeds, found, 1e-6)


@pytest.mark.parametrize("equation", ["ij", "ij,jk->ik", "iii->i", "i1->i", "ij->ik", "ij->iji", "ijk->i"])
def test_einsum_that_does_not_fit_is_refused(equation: str):
    net = Net()
    net.input("x", 2, 3)
    net.output(net.op("Einsum", *["x"] * (2 if equation == "ij" else 1), equation=equation, out="y"), shape=())
    with pytest.raises(McugenError):
        imported(net.plain_model())


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_det(dtype: type):
    net, feeds = Net(opset=22), {}
    random = np.random.default_rng(11)
    for number, shape in enumerate([(3, 3), (1, 1), (2, 3, 5, 5), (4, 2, 2)]):
        feeds[f"x{number}"] = random.standard_normal(shape).astype(dtype)
        net.output(net.op("Det", net.input(f"x{number}", *shape, dtype=dtype), out=f"y{number}"), dtype=dtype)
    net.output(net.op("Det", net.input("s", 3, 3, 3, dtype=dtype), out="special"), dtype=dtype)
    singular = [[1, 2, 3], [2, 4, 6], [1, 1, 1]]
    swapped = [[0, 1, 0], [1, 0, 0], [0, 0, 2]]
    feeds["s"] = np.array([singular, swapped, np.zeros((3, 3))], dtype)
    compiled = compile_model(net.model())
    found = interpret(compiled.graph, feeds)
    for number in range(4):
        np.testing.assert_allclose(found[f"y{number}"], np.linalg.det(feeds[f"x{number}"].astype("f8")), rtol=1e-4)
    assert np.abs(found["special"] - [0, -2, 0]).max() < 1e-6
    check_c(compiled, feeds, found, 1e-5)


def test_special_values_pass_through():
    net = Net()
    net.input("x", 4, 2)
    net.output(net.op("MatMul", "x", net.const([[1.0, 2.0], [0.5, -1.0]]), out="y"))
    net.output(net.op("Relu", net.op("MatMul", "x", net.const([[1.0, 2.0], [0.5, 1.0]])), out="relu"))
    feeds = {"x": np.array([[np.inf, 1], [np.nan, 0], [-np.inf, 3], [1e38, 1e38]], np.float32)}
    model = net.model()
    assert_close(c_outputs(model, feeds), numpy_outputs(model, feeds))
    assert random_feeds(model).keys() == {"x"}


@pytest.mark.parametrize("kind", ["dense", "product", "convolution"])
def test_real_products_are_rounded_once(kind: str) -> None:
    """The same bits in whatever order they are summed, which is another on each CPU; codes are chosen by them."""

    def found(order: np.ndarray) -> np.ndarray:
        net, columns = Net(), rng().standard_normal((300, 8)).astype(np.float32)[order]
        feeds = {"x": rng(4).standard_normal((6, 300)).astype(np.float32)[:, order]}
        if kind == "product":
            feeds["w"], w = columns, net.input("w", 300, 8)
        else:
            w = net.const(columns if kind == "dense" else columns.T[..., None])
        if kind == "convolution":
            feeds["x"] = np.ascontiguousarray(feeds["x"].T[None])
        x = net.input("x", *feeds["x"].shape)
        net.output(net.op("Conv" if kind == "convolution" else "MatMul", x, w, out="y"))
        return numpy_outputs(net.model(), feeds)["y"]

    forward = np.arange(300)
    for order in (forward[::-1], rng(5).permutation(300)):
        np.testing.assert_array_equal(found(forward), found(order))
