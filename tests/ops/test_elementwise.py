# SPDX-License-Identifier: Apache-2.0
"""Elementwise operators: onnxruntime, numpy and C agree; quantized ones are tables or fixed point."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from checks import check_c
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
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

from mcugen.core.errors import UnsupportedError
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.hir.types import DType
from mcugen.ops.pointwise import BINARY_FUNCTIONS, INTERNAL_FUNCTIONS, UNARY_FUNCTIONS

TESTS = {"IsNaN", "IsInf"}
FLOAT_UNARY = sorted(
    name for name, row in UNARY_FUNCTIONS.items() if row.floats and name not in INTERNAL_FUNCTIONS | TESTS
)
COMPARISONS = {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}
LOGICAL = {"And", "Or", "Xor"}
FLOAT_BINARY = sorted(
    name for name, row in BINARY_FUNCTIONS.items() if row.floats and name not in INTERNAL_FUNCTIONS | {"Mod"}
)
ATTRIBUTES = {
    "LeakyRelu": {"alpha": 0.3},
    "Elu": {"alpha": 0.7},
    "Celu": {"alpha": 1.7},
    "Selu": {"alpha": 1.5, "gamma": 1.25},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
    "ThresholdedRelu": {"alpha": 0.6},
}


# ------------------------------------------------------------------------------------------------ float


def unary_net(*shape: int, attributes: dict[str, dict[str, float]]) -> Net:
    net = Net(opset=24)
    net.input("x", *shape)
    for function in FLOAT_UNARY:
        net.output(net.op(function, "x", out=function, **attributes.get(function, {})))
    return net


@pytest.mark.parametrize("attributes", [{}, ATTRIBUTES], ids=["defaults", "attributes"])
def test_every_unary_function(attributes: dict[str, dict[str, float]]):
    model = unary_net(2, 3, 7, attributes=attributes).model()
    check_everywhere(model, random_feeds(model, spread=3))


def test_every_unary_function_of_special_values():
    special = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-38, 80.0, -80.0, np.inf, -np.inf, np.nan]
    model = unary_net(len(special), attributes={}).model()
    feeds = {"x": np.array(special, np.float32)}
    assert_close(c_outputs(model, feeds), numpy_outputs(model, feeds))


def test_every_binary_function_of_special_values():
    special = [0.0, -0.0, 1.5, -2.0, 1e-38, 3e38, np.inf, -np.inf, np.nan]
    net = Net()
    net.input("x", len(special), 1)
    net.input("y", len(special))
    for function in FLOAT_BINARY:
        net.output(net.op(function, "x", "y", out=function), dtype=bool if function in COMPARISONS else np.float32)
    values = np.array(special, np.float32)
    feeds = {"x": values[:, None], "y": values}
    model = net.model()
    assert_close(c_outputs(model, feeds), numpy_outputs(model, feeds))


def operands(net: Net, function: str, inputs: list[str]) -> list[str]:
    if function == "Pow":  # of positive numbers
        return [net.op("Abs", inputs[0]), inputs[1]]
    if function == "Equal":  # often equal
        return [net.op("Round", x) for x in inputs]
    return inputs


SHAPES = [
    ((2, 3, 4), (2, 3, 4)),
    ((2, 3, 4), (4,)),
    ((2, 3, 4), (3, 1)),
    ((2, 3, 4), ()),
    ((1, 3, 1), (2, 1, 4)),
    ((5,), (2, 1)),
    ((2, 1, 3, 1, 2), (1, 4, 1, 5, 1)),
]


@pytest.mark.parametrize("functions", [FLOAT_BINARY[::2], FLOAT_BINARY[1::2]], ids=" ".join)
def test_every_binary_function_broadcasts(functions: list[str]):
    net = Net()
    for case, (x, y) in enumerate(SHAPES):
        inputs = [net.input(f"x{case}", *x), net.input(f"y{case}", *y)]
        for function in functions:
            if function == "PRelu" and np.broadcast_shapes(x, y) != x:
                continue  # its slope must broadcast to x, not the other way
            result = net.op(function, *operands(net, function, inputs), out=f"{function}.{case}")
            net.output(result, dtype=bool if function in COMPARISONS else np.float32)
    check_everywhere(net.model())


def test_both_orders_of_a_constant_operand():
    net = Net()
    net.input("x", 2, 3)
    row = net.const([[0.5, -2.0, 3.0]])
    for function in ("Add", "Sub", "Mul", "Div", "Max", "Min"):
        net.output(net.op(function, "x", row, out=f"{function}.right"))
        net.output(net.op(function, row, "x", out=f"{function}.left"))
    check_everywhere(net.model())


def test_variadic_operators():
    net = Net()
    for name, shape in (("a", (2, 3)), ("b", (3,)), ("c", (2, 1))):
        net.input(name, *shape)
    for function in ("Sum", "Max", "Min"):
        for count in (1, 2, 3):
            net.output(net.op(function, *"abc"[:count], out=f"{function}{count}"))
    check_everywhere(net.model())


def test_clip_bounds():
    net = Net()
    net.input("x", 30)
    for low, high in ((0.0, 6.0), (-0.5, 0.25), (None, 0.5), (-0.5, None), (None, None), (0.0, None), (0.5, -0.5)):
        bounds = ["" if b is None else net.const(b) for b in (low, high)]
        net.output(net.op("Clip", "x", *bounds, out=f"from {low} to {high}"))
    check_everywhere(net.model())


def test_where():
    net = Net()
    net.input("c", 2, 1, 4, dtype=bool)
    net.input("x", 3, 4)
    net.input("y", 1)
    net.output(net.op("Where", "c", "x", "y", out="floats"))
    net.output(net.op("Where", net.op("Greater", "x", "y"), "x", net.const(1.5), out="computed"))
    check_everywhere(net.model())


def test_pow_of_constants():
    net = Net()
    net.input("x", 20)
    positive = net.op("Abs", "x")
    for exponent in (0.0, 0.5, 1.0, 2.0, 3.0, -1.0):
        net.output(net.op("Pow", positive, net.const(exponent), out=f"to{exponent}"))
    net.output(net.op("Pow", "x", net.const(2.0), out="square"))
    check_everywhere(net.model())


# --------------------------------------------------------------------------------------------- integers


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_integer_arithmetic(dtype: type):
    net = Net()
    net.input("x", 4, 50, dtype=dtype)
    net.input("y", 50, dtype=dtype)
    nonzero = net.op("Where", net.op("Equal", "y", net.const(0, dtype)), net.const(7, dtype), "y")
    net.output(net.op("Div", "x", nonzero, out="Div"), dtype=dtype)
    for function in ("Add", "Sub", "Mul", "Max", "Min"):
        net.output(net.op(function, "x", "y", out=function), dtype=dtype)
    for function in ("Abs", "Neg", "Sign") if dtype is not np.uint8 else ():
        net.output(net.op(function, "x", out=function), dtype=dtype)
    for function in sorted(COMPARISONS):
        net.output(net.op(function, "x", "y", out=function), dtype=bool)
    low, high = net.const(3, dtype), net.const(9, dtype)
    for name, bounds in (("both", (low, high)), ("low", (low,)), ("high", ("", high))):
        net.output(net.op("Clip", "x", *bounds, out=name), dtype=dtype)
    check_everywhere(net.model())


@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.int32, np.uint32, np.int64])
def test_integers_wrap_without_undefined_behaviour(dtype: type):
    net = Net()
    net.input("x", 7, dtype=dtype)
    net.input("y", 7, dtype=dtype)
    for function in ("Add", "Sub", "Mul", "Div"):
        net.output(net.op(function, "x", "y", out=function), dtype=dtype)
    for function in ("Neg", "Abs") if np.dtype(dtype).kind == "i" else ():
        net.output(net.op(function, "x", out=function), dtype=dtype)
    limits = np.iinfo(dtype)
    minus_one = np.array(-1).astype(dtype)
    x = [limits.max, limits.max, limits.min, limits.min, limits.min, 5, limits.max]
    y = [1, limits.max, 1, minus_one, limits.min, 0, minus_one]
    feeds = {"x": np.array(x, dtype), "y": np.array(y, dtype)}
    model = net.model()
    assert_close(c_outputs(model, feeds), numpy_outputs(model, feeds))


def test_logic():
    net = Net()
    net.input("x", 4, 5, dtype=bool)
    net.input("y", 5, dtype=bool)
    for function in sorted(LOGICAL):
        net.output(net.op(function, "x", "y", out=function), dtype=bool)
    net.output(net.op("Not", "x", out="Not"), dtype=bool)
    check_everywhere(net.model())


def test_casts():
    net = Net()
    net.input("f", 60)
    net.input("i", 60, dtype=np.int32)
    net.input("b", 60, dtype=bool)
    wide = net.op("Mul", "f", net.const(40.0))
    for source in (wide, "i", "b"):
        for to, dtype in (
            (TensorProto.INT32, np.int32),
            (TensorProto.FLOAT, np.float32),
            (TensorProto.BOOL, bool),
        ):
            net.output(net.op("Cast", source, to=to, out=f"{source}.{to}"), dtype=dtype)
    net.output(net.op("Cast", wide, to=TensorProto.INT64, out="wide"), dtype=np.int64)
    net.output(net.op("Cast", net.op("Mul", wide, net.const(1e9)), to=TensorProto.INT64, out="wider"), dtype=np.int64)
    check_everywhere(net.model())


def test_float_to_integer_saturates():
    net = Net()
    net.input("x", 6)
    for to, dtype in (
        (TensorProto.INT8, np.int8),
        (TensorProto.UINT8, np.uint8),
        (TensorProto.INT32, np.int32),
        (TensorProto.INT64, np.int64),
        (TensorProto.UINT32, np.uint32),
    ):
        net.output(net.op("Cast", "x", to=to, out=f"to{to}"), dtype=dtype)
    feeds = {"x": np.array([1e20, -1e20, np.inf, -np.inf, np.nan, -7.9], np.float32)}
    model = net.model()
    found = c_outputs(model, feeds)
    assert found[f"to{TensorProto.INT8}"].tolist() == [127, -128, 127, -128, 0, -7]
    assert found[f"to{TensorProto.UINT8}"].tolist() == [255, 0, 255, 0, 0, 0]
    assert_close(found, numpy_outputs(model, feeds))


def test_function_without_integer_kernel_is_refused():
    net = Net()
    net.input("x", 3, dtype=np.int32)
    net.output(net.op("Exp", "x"), dtype=np.int32)
    with pytest.raises(UnsupportedError, match=r"Exp: input 0 must be of a type that ONNX allows\. found: int32"):
        optimized(net.model())


# ------------------------------------------------------------------------------------- every element type

FLOATS = (np.float64, np.float16, ml_dtypes.bfloat16)
INTEGERS = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)
CALLS: list[tuple[str, int, dict[str, object]]] = [
    *((name, 1, {}) for name in UNARY_FUNCTIONS if name not in INTERNAL_FUNCTIONS),
    *((name, 2, {}) for name in BINARY_FUNCTIONS if name not in INTERNAL_FUNCTIONS | {"Mod"}),
    *((name, count, {}) for name in ("Sum", "Max", "Min", "Mean") for count in (1, 3)),
    ("Gelu", 1, {"approximate": "tanh"}),
    ("Swish", 1, {"alpha": 0.7}),
    ("Shrink", 1, {"lambd": 1.5, "bias": 0.5}),
    ("IsInf", 1, {"detect_negative": 0}),
    ("IsInf", 1, {"detect_positive": 0}),
    ("Mod", 2, {"fmod": 1}),
    ("Mod", 2, {}),
    ("BitShift", 2, {"direction": "LEFT"}),
    ("BitShift", 2, {"direction": "RIGHT"}),
    ("Relu", 1, {}),
    ("Clip", 3, {}),
]
BENIGN = 40


def allowed(op_type: str, dtype: type) -> bool:
    """Whether ONNX and its reference allow the operator on that element type."""
    if op_type == "Pow" and np.dtype(dtype).kind == "i":
        return False  # its reference knows no negative exponents: see below
    schema = onnx.defs.get_schema(op_type)
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    if op_type == "Mod" and np.dtype(dtype).kind not in "iu":
        return False
    return f"tensor({TensorProto.DataType.Name(number).lower()})" in schema.inputs[0].types


def operand(random: np.random.Generator, dtype: type) -> np.ndarray:
    """Small numbers, then extremes."""
    kind = np.dtype(dtype).kind
    if kind == "b":
        return random.integers(0, 2, BENIGN + 9).astype(dtype)
    if kind not in "iu":
        extremes = [0.0, -0.0, 1.0, -1.5, 2.5, 300.0, -300.0, np.inf, -np.inf, np.nan]
        return np.concatenate([random.standard_normal(BENIGN) * 2, random.permutation(extremes)]).astype(dtype)
    limits = np.iinfo(dtype)
    small = random.integers(max(limits.min, -20), 20, BENIGN)
    extremes = np.array([0, 1, limits.max, limits.min, limits.max - 1, limits.min + 1, limits.max, limits.min], dtype)
    return np.concatenate([np.where(small == 0, 1, small).astype(dtype), random.permutation(extremes)])


@pytest.mark.spread(3)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, bool], ids=lambda t: np.dtype(t).name)
def test_every_function_of_every_element_type(dtype: type):
    random = np.random.default_rng(3)
    operands = [operand(random, dtype) for _ in range(3)]
    net = Net(opset=28)
    names = [net.input(name, len(operands[0]), dtype=dtype) for name in "xyz"]
    for op_type, count, attributes in CALLS:
        if not allowed(op_type, dtype):
            continue
        inputs = names[:count]
        if op_type == "Clip":
            inputs = [
                "x",
                *(
                    net.op("Squeeze", net.op("Slice", n, net.const([0], np.int64), net.const([1], np.int64)))
                    for n in "yz"
                ),
            ]
        test = op_type in TESTS or (
            op_type in UNARY_FUNCTIONS | BINARY_FUNCTIONS and (UNARY_FUNCTIONS | BINARY_FUNCTIONS)[op_type].tests
        )
        net.output(
            net.op(op_type, *inputs, out=f"{op_type}{len(net.outputs)}", **attributes), dtype=bool if test else dtype
        )
    model = net.model()
    feeds = dict(zip("xyz", operands, strict=True))
    compiled = compile_model(model)
    found = interpret(compiled.graph, feeds)
    small = {np.float16: 2e-3, ml_dtypes.bfloat16: 2e-2}
    with np.errstate(all="ignore"):
        reference = ReferenceEvaluator(model).run(None, {name: array[:BENIGN] for name, array in feeds.items()})
    for (name, array), wanted in zip(found.items(), reference, strict=True):
        part, wanted = (np.asarray(a[:BENIGN], np.float64) for a in (array, wanted))
        np.testing.assert_allclose(part, wanted, rtol=small.get(dtype, 1e-5), atol=small.get(dtype, 1e-6), err_msg=name)
    check_c(compiled, feeds, found, small.get(dtype, 1e-12))


@pytest.mark.parametrize("base", [np.float32, np.float64, np.int32, np.int64], ids=lambda t: np.dtype(t).name)
def test_powers_of_mixed_types(base: type):
    x = np.array([1, 2, 3, -1, -2, 0, 7, 1, -1, 5, 2, 3], base)
    y = np.array([0, 10, 3, 3, 2, 2, 1, -3, -2, -1, -1, 2])
    net = Net(opset=24)
    net.input("x", len(x), dtype=base)
    feeds = {"x": x}
    for dtype in (np.int32, np.int64, np.uint8, np.float32, np.float64):
        name = net.input(f"y{np.dtype(dtype).name}", len(y), dtype=dtype)
        feeds[name] = np.abs(y).astype(dtype) if dtype is np.uint8 else y.astype(dtype)
        net.output(net.op("Pow", "x", name), dtype=base)
    compiled = compile_model(net.model())
    found = interpret(compiled.graph, feeds)
    for array, exponent in zip(found.values(), list(feeds.values())[1:], strict=True):
        exact = np.trunc(x.astype(np.float64) ** exponent) if np.dtype(base).kind == "i" else x ** exponent.astype("f8")
        np.testing.assert_allclose(array, exact, rtol=1e-6)
    check_c(compiled, feeds, found)


# -------------------------------------------------------------------------------------------------- casts

ALL_TYPES = [np.float32, *FLOATS, *INTEGERS, bool]
NARROW = [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2]


@pytest.mark.spread(3)
@pytest.mark.parametrize("source", [*ALL_TYPES, *NARROW], ids=lambda t: np.dtype(t).name)
def test_casts_between_all_types(source: type):
    """As numpy converts; where that is undefined (floats beyond integers), C equals our reference."""
    random = np.random.default_rng(7)
    kind = np.dtype(source).kind
    values = random.integers(-8, 8, 40) if source in NARROW else operand(random, source)
    if kind not in "iub" and source not in NARROW:  # halves' ties, denormals and overflows
        more = [2049.0, 2051.0, 65519.9, 65520.0, 1e-7, 6e-8, 2.9e-8, 1e-40, 1.00390625, 1.01171875, 1e5, 1e39, 1e300]
        more += [1 + 2**-11 + 2**-40, 1 + 2**-11 - 2**-40, 2.0**-25, 2.0**-25 * 1.0001, 3 * 2.0**-25]
        with np.errstate(over="ignore"):
            values = np.concatenate([values, np.array(more).astype(source), -np.array(more).astype(source)])
    x = np.asarray(values).astype(source)
    net = Net(opset=25)
    net.input("x", len(x), dtype=source)
    for to in ALL_TYPES + NARROW:
        number = helper.np_dtype_to_tensor_dtype(np.dtype(to))
        net.output(net.op("Cast", "x", to=number, out=f"to {np.dtype(to).name}"), dtype=to)
    compiled = compile_model(net.model())
    feeds = {"x": x.astype(compiled.program.inputs[0].dtype.numpy)}
    found = interpret(compiled.graph, feeds)
    for to in ALL_TYPES:
        name = f"to {np.dtype(to).name}"
        with np.errstate(all="ignore"):
            wanted = x.astype(to) if source not in NARROW else x.astype(np.int8).astype(to)
            inside = np.isfinite(x.astype(np.float64)) & (np.abs(x.astype(np.float64)) < 100)
            inside &= np.ones(len(x), bool) if np.dtype(to).kind != "u" else x.astype(np.float64) >= 0
        if np.dtype(to).kind not in "iu" or kind in "iu":
            inside[:] = True
        np.testing.assert_array_equal(found[name][inside].astype(np.float64), wanted[inside].astype(np.float64), name)
    check_c(compiled, feeds, found, 1e-30)


# ------------------------------------------------------------------------------------------------- int8


def test_every_unary_function_of_int8_is_a_table():
    net = Net(opset=24)
    net.input("q", 256, dtype=np.int8)
    real = net.dequantize("q", 0.05, -13)
    for function in FLOAT_UNARY:
        net.output(net.quantize(net.op(function, real), 0.04, 21, out=function), dtype=np.int8)
    model = net.model()
    assert set(operators(optimized(model))) == {"lookup"}
    feeds = {"q": np.arange(-128, 128).astype(np.int8)}
    check_quantized(model, feeds, share=0.02)


def test_table_of_uint8():
    net = Net()
    net.input("q", 256, dtype=np.uint8)
    real = net.op("Sigmoid", net.dequantize("q", 0.05, 130, np.uint8))
    net.output(net.quantize(real, 1 / 256, 0, np.uint8, out="y"), dtype=np.uint8)
    check_quantized(net.model(), {"q": np.arange(256).astype(np.uint8)})


def test_a_chain_of_functions_and_scalars_is_one_table():
    net = Net()
    net.input("q", 256, dtype=np.int8)
    real = net.op("Add", net.op("Mul", net.dequantize("q", 0.1, 5), net.const(0.3)), net.const(1.0))
    net.output(net.quantize(net.op("Tanh", net.op("Relu", real)), 0.01, -100, out="y"), dtype=np.int8)
    model = net.model()
    assert operators(optimized(model)) == ["lookup"]
    check_quantized(model, {"q": np.arange(-128, 128).astype(np.int8)})


def random_quant(random: np.random.Generator) -> tuple[float, int]:
    zero = random.choice([-128, 127, 0, *random.integers(-128, 128, 3)])
    return float(np.float32(10 ** random.uniform(-3, 0))), int(zero)


@pytest.mark.parametrize("function", ["Add", "Sub", "Mul"])
def test_int8_arithmetic_over_random_scales_and_zero_points(function: str):
    random = np.random.default_rng(5)
    net = Net()
    for case in range(16):
        (sa, za), (sb, zb), (sy, zy) = (random_quant(random) for _ in range(3))
        if function != "Mul":  # of a size that the sum does not saturate everywhere
            sy = max(sa, sb) * float(random.uniform(0.5, 2))
        a, b = (net.input(f"{name}{case}", 50, 20, dtype=np.int8) for name in "ab")
        result = net.op(function, net.dequantize(a, sa, za), net.dequantize(b, sb, zb))
        net.output(net.quantize(result, sy, zy, out=f"y{case}"), dtype=np.int8)
    model = net.model()
    assert set(operators(optimized(model))) == {function.lower()}
    check_quantized(model)


@pytest.mark.qemu
def test_products_of_all_codes_in_pieces_of_32_bits():
    """Where the CPU has no longer products; scales with little room in the pieces, and with none."""
    net, codes, feeds = Net(), np.arange(-128, 128).astype(np.int8), {}
    cases = ((3.1, (-128, 127, 5)), (2.02, (-128, -128, -128)), (300.0, (0, 0, 127)), (1.5, (5, 7, 0)))
    for case, (scale, zeros) in enumerate(cases):
        feeds |= {f"a{case}": codes.reshape(-1, 1), f"b{case}": codes.reshape(1, -1)}
        a, b = (net.input(f"{name}{case}", *feeds[f"{name}{case}"].shape, dtype=np.int8) for name in "ab")
        real = net.op("Mul", net.dequantize(a, 0.5, zeros[0]), net.dequantize(b, 0.5, zeros[1]))
        net.output(net.quantize(real, scale / 4, zeros[2], out=f"y{case}"), dtype=np.int8)
    compiled = compile_model(net.model(), "rp2040")
    kernels = compiled.bundle.files["net_kernels.h"]
    assert ", 15)" in " ".join(kernels.split()) and "mcugen_scale(" in kernels
    (found,) = compiled.simulate([feeds], measure=False).outputs
    assert_close(found, interpret(compiled.graph, feeds))


# ------------------------------------------------------------------------------------ functions of our own


def near_and_far() -> np.ndarray:
    """Floats of every size and sign, and where ways part."""
    random = np.random.default_rng(11)
    some = np.concatenate(
        [random.uniform(-88.7, 88.7, 4000), random.uniform(-2, 2, 4000), 10 ** random.uniform(-30, 1, 999)]
    )
    ends = [0.625, 86.9, 88.72, 88.8, 1e30, np.inf, np.nan, 0.0, 9.1]
    return np.concatenate([some, -some, ends, np.negative(ends)]).astype(np.float32)


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["host", "nrf52840", "rp2040"])
def test_exponentials_are_right_to_the_last_places(board: str):
    """Of e^x and tanh(x), 2 units; what has no normal number is 0 or infinite."""
    net, x = Net(), near_and_far()
    net.input("x", len(x))
    net.output(net.op("Exp", "x", out="e"))
    net.output(net.op("Tanh", "x", out="t"))
    (found,) = compile_model(net.model(), board).simulate([{"x": x}], measure=False).outputs
    with np.errstate(all="ignore"):
        wanted = {"e": np.exp(x.astype(np.float64)), "t": np.tanh(x.astype(np.float64))}
        wanted["e"] = np.where(x < np.float32(-86.9), 0, np.where(x > np.float32(88.73), np.inf, wanted["e"]))
        for name, exact in wanted.items():
            nearest = exact.astype(np.float32)
            off = np.abs(found[name] - exact) / np.spacing(np.abs(nearest))
            assert np.array_equal(np.isnan(found[name]), np.isnan(x))
            finite = np.isfinite(nearest)
            assert (off[finite] <= 2).all(), (name, x[finite][np.argmax(off[finite])])
            assert np.array_equal(np.isinf(found[name]), np.isinf(nearest))


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["host", "nrf52840", "rp2040"])
def test_logarithms_are_right_to_the_last_places(board: str):
    """Within 1.5 units: of every exponent, of denormal numbers, and near 1; not of what has no logarithm."""
    net, random = Net(), np.random.default_rng(12)
    some = [np.exp2(random.uniform(-149, 128, 4000)), random.uniform(0.5, 2, 4000), 1 + random.normal(0, 1e-5, 999)]
    ends = [0.0, -0.0, -1.0, -1e-40, np.inf, -np.inf, np.nan, 1.0, 2**-149, 2**-126, 3e38, 0.70710677, 1.4142135]
    x = np.concatenate([*some, ends]).astype(np.float32)
    net.input("x", len(x))
    net.output(net.op("Log", "x", out="y"))
    (found,) = compile_model(net.model(), board).simulate([{"x": x}], measure=False).outputs
    with np.errstate(all="ignore"):
        exact = np.log(x.astype(np.float64))
        nearest = exact.astype(np.float32)
        off = np.abs(found["y"] - exact) / np.spacing(np.abs(nearest))
    finite = np.isfinite(nearest)
    assert (off[finite] <= 1.5).all(), x[finite][np.argmax(off[finite])]
    np.testing.assert_array_equal(found["y"][~finite], nearest[~finite])


def by_channel_net(
    function: str, dtype: type = np.int8, constant: np.ndarray | None = None, first: bool = False
) -> Net:
    """A function of codes and a constant of six channels that nobody quantized."""
    net = Net(21)
    zeros, scale = ((3, -7), 1.0) if dtype is np.int8 else ((0, 0), 2.0**-8)
    x = net.fake(net.input("x", 1, 6, 5, 4), 0.031 * scale, zeros[0], dtype)
    numbers = np.random.default_rng(0).standard_normal((6, 1, 1)) * 0.3 if constant is None else constant
    operands = (net.const(numbers), x) if first else (x, net.const(numbers))
    net.output(net.fake(net.op(function, *operands), 0.027 * scale, zeros[1], dtype))
    return net


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("function", ["PRelu", "Mul", "Add", "Sub", "Div"])
def test_a_constant_by_channel_makes_lines_of_int8(function: str, first: bool):
    constant = np.random.default_rng(1).uniform(0.4, 1.3, (6, 1, 1)) * np.sign(np.arange(6) - 2.5).reshape(6, 1, 1)
    model = by_channel_net(function, constant=constant, first=first).model()
    names = operators(optimized(model))
    if first and function in ("PRelu", "Div"):  # the constant is not what each channel has a line by
        assert "affine" not in names
        return
    name = "prelu" if function == "PRelu" else "affine"
    assert names == [f"quantize+{name}+dequantize"]
    check_quantized(model)


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["nrf52840", "corstone300", "rp2040", "rv32imc"])
def test_lines_of_channels_have_the_same_bits_on_every_cpu(board: str):
    """All codes; channels that fill vectors and those that do not; a clamp behind one."""
    net = Net()
    net.input("q", 1, 16, 16, 7, dtype=np.int8)
    x, slopes = net.dequantize("q", 0.031, 3), np.linspace(-0.9, 1.7, 7)
    for function in ("PRelu", "Mul", "Sub"):
        y = net.op(function, x, net.const(slopes))
        net.output(net.quantize(net.op("Relu", y) if function == "Sub" else y, 0.027, -7, out=function), dtype=np.int8)
    feeds = {"q": np.resize(np.arange(-128, 128), (1, 16, 16, 7)).astype(np.int8)}
    compiled = compile_model(net.model(), board)
    assert {node.op.name for node in compiled.graph.nodes} == {"prelu", "affine"}
    (found,) = compiled.simulate([feeds], measure=False).outputs
    assert_close(found, interpret(compiled.graph, feeds))


def test_lines_that_are_too_steep_for_32_bits_stay_products():
    constant = np.asarray([3e5, 1, 1, 1, 1, 1]).reshape(6, 1, 1)
    for function in ("PRelu", "Mul"):
        model = by_channel_net(function, constant=constant).model()
        (node,) = optimized(model).nodes
        assert node.op.name == f"quantize+{function.lower()}+dequantize"
        assert node.input(1).type.dtype is DType.INT16


def test_a_constant_of_each_element_is_no_line_of_a_channel():
    constant = np.random.default_rng(0).standard_normal((6, 5, 4))
    (node,) = optimized(by_channel_net("Mul", constant=constant).model()).nodes
    assert node.input(1).type.dtype is DType.INT16


def test_a_constant_by_channel_that_nobody_quantized_has_codes_of_16_bits():
    model = by_channel_net("PRelu", np.int16).model()
    (node,) = optimized(model).nodes
    assert node.op.name == "quantize+prelu+dequantize"
    assert node.input(1).type.dtype is DType.INT16
    check_quantized(model)
