# SPDX-License-Identifier: Apache-2.0
"""Quantization beyond int8 per tensor: plain arithmetic, as ONNX's reference has it."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import onnx
import pytest
from checks import check_c
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_models import Net, imported, operators, optimized

from mcugen.core.errors import McugenError
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.hir.types import DType

Array = np.ndarray
TYPES = [np.int8, np.uint8, np.int16, np.uint16, ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2]


class Forms:
    """Nodes with all parameters as inputs or as constants, and what is fed to them."""

    def __init__(self) -> None:
        self.net = Net(opset=25)
        self.feeds: dict[str, Array] = {}

    def operand(self, array: Array, constant: bool) -> str:
        if constant:
            name = f"k{len(self.net.constants)}"
            self.net.constants.append(onnx.numpy_helper.from_array(array, name))
            return name
        name = f"x{len(self.feeds)}"
        self.feeds[name] = array
        return self.net.input(name, *array.shape, dtype=array.dtype)

    def add(self, op_type: str, x: Array, *params: Array, dtype: type, constant: bool, **attributes: object) -> None:
        names = [self.operand(x, False), *(self.operand(p, constant) for p in params)]
        y = self.net.op(op_type, *names, out=f"y{len(self.net.outputs)}", **attributes)
        self.net.output(y, dtype=dtype)

    def check(self, tolerance: float = 1e-6, wanted: Sequence[Array] = ()) -> None:
        """By default ONNX's reference says what is wanted."""
        model = self.net.model()
        compiled = compile_model(model)
        feeds = {e.name: self.feeds[e.name].astype(e.dtype.numpy) for e in compiled.program.inputs}
        found = interpret(compiled.graph, feeds)
        wanted = wanted or ReferenceEvaluator(model).run(None, self.feeds)
        for (name, array), expected in zip(found.items(), wanted, strict=True):
            np.testing.assert_allclose(
                array.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance, err_msg=name
            )
        check_c(compiled, feeds, found)


def parameters(random: np.random.Generator, shape: tuple[int, ...], dtype: type) -> tuple[Array, Array]:
    scale = (random.uniform(0.1, 0.9, shape) + 0.0123).astype(np.float32)
    return scale, random.integers(0, 2, shape).astype(dtype)


GRANULARITIES = [((), {}), ((3,), {"axis": 1}), ((4,), {"axis": -1}), ((2, 2, 4), {"axis": 1, "block_size": 2})]


@pytest.mark.parametrize("constant", [False, True], ids=["computed", "constant"])
def test_all_types_and_granularities(constant: bool):
    random, forms = np.random.default_rng(1), Forms()
    for dtype in TYPES:
        low, high = -2 if np.dtype(dtype).name[0] == "i" else 0, 2
        for shape, attributes in GRANULARITIES:
            real = (random.standard_normal((2, 3, 4)) * 8).astype(np.float32)
            scale, zero = parameters(random, shape, dtype)
            forms.add("QuantizeLinear", real, scale, zero, dtype=dtype, constant=constant, **attributes)
            codes = random.integers(low, high, (2, 3, 4)).astype(dtype)
            forms.add("DequantizeLinear", codes, scale, zero, dtype=np.float32, constant=constant, **attributes)
    forms.check()


def test_types_by_attribute():
    random, forms = np.random.default_rng(2), Forms()
    real = (random.standard_normal((3, 4)) * 8).astype(np.float32)
    scale = np.asarray(0.31, np.float32)
    forms.add("QuantizeLinear", real, scale, dtype=np.uint8, constant=False)
    for dtype in (np.uint16, ml_dtypes.int4):
        number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        forms.add("QuantizeLinear", real, scale, dtype=dtype, constant=True, output_dtype=number)
    codes = random.integers(-128, 128, (3, 4)).astype(np.int8)
    for half in (np.float16, ml_dtypes.bfloat16):
        number = helper.np_dtype_to_tensor_dtype(np.dtype(half))
        forms.add("DequantizeLinear", codes, scale, dtype=half, constant=True, output_dtype=number)
        forms.add("DequantizeLinear", codes, scale.astype(half), dtype=half, constant=False)
        forms.add(
            "DequantizeLinear",
            codes,
            scale.astype(half),
            dtype=np.float32,
            constant=True,
            output_dtype=TensorProto.FLOAT,
        )
    forms.check(1e-2)


def test_saturation_and_strange_numbers():
    net = Net(opset=25)
    net.input("x", 6)
    net.input("s")
    for dtype in TYPES:
        zero = onnx.numpy_helper.from_array(np.asarray(1).astype(dtype), f"z{np.dtype(dtype).name}")
        net.constants.append(zero)
        net.output(net.op("QuantizeLinear", "x", "s", zero.name), dtype=dtype)
    feeds = {"x": np.array([np.inf, -np.inf, 1e30, -1e30, np.nan, 0.0], np.float32), "s": np.float32(0.5)}
    compiled = compile_model(net.model())
    found = interpret(compiled.graph, feeds)
    limits = [(e.dtype.limits, found[e.name].tolist()) for e in compiled.program.outputs]
    assert [y[:4] for _, y in limits] == [[high, low, high, low] for (low, high), _ in limits]
    check_c(compiled, feeds, found)


def test_dynamic_quantization():
    forms = Forms()
    for scale in (1.0, 30.0):
        x = (np.random.default_rng(4).standard_normal((3, 4)) * scale + scale).astype(np.float32)
        names = forms.net.ops("DynamicQuantizeLinear", forms.operand(x, False), outs=[f"{o}{scale}" for o in "qsz"])
        for name, dtype in zip(names, (np.uint8, np.float32, np.uint8), strict=True):
            forms.net.output(name, dtype=dtype)
    forms.check()


ZERO_POINTS = [
    ((3, 5), (5, 4), (), ()),
    ((3, 5), (5, 4), (3,), (4,)),
    ((2, 3, 5), (2, 5, 4), (2, 3, 1), (2, 1, 4)),
    ((2, 3, 5), (5, 4), (), (1, 4)),
]


@pytest.mark.parametrize("constant", [False, True], ids=["computed", "constant"])
def test_integer_matrix_products_with_any_zero_points(constant: bool):
    random, forms = np.random.default_rng(5), Forms()
    wanted = []
    for types in ((np.uint8, np.int8), (np.int8, np.int8), (np.uint8, np.uint8)):
        for shapes in ZERO_POINTS:
            a, b, a_zero, b_zero = (
                random.integers(0, 100, shape).astype(dtype) for shape, dtype in zip(shapes, types * 2, strict=True)
            )
            names = [forms.operand(array, constant and i > 1) for i, array in enumerate((a, b, a_zero, b_zero))]
            forms.net.output(forms.net.op("MatMulInteger", *names, out=f"y{len(wanted)}"), dtype=np.int32)
            column = a_zero[:, None] if a_zero.ndim == 1 else a_zero
            wanted.append((a.astype(int) - column) @ (b.astype(int) - b_zero))
            forms.net.output(forms.net.op("MatMulInteger", *names[:2], out=f"plain{len(wanted)}"), dtype=np.int32)
            wanted.append(a.astype(int) @ b.astype(int))
    forms.check(wanted=wanted)


@pytest.mark.parametrize("columns", [(), (6,)], ids=["one zero point", "one a column"])
@pytest.mark.parametrize("types", [(np.uint8, np.int8), (np.int8, np.int8), (np.uint8, np.uint8)])
def test_constant_weights_of_integer_products_keep_a_byte_each(types: tuple[type, type], columns: tuple[int, ...]):
    """Whatever the zero point of the other matrix, which is computed."""
    random, forms, wanted = np.random.default_rng(7), Forms(), []
    limits = np.iinfo(types[1])
    for zero_shape in ((), (3,)):
        w = random.integers(limits.min, limits.max + 1, (40, 6)).astype(types[1])
        w[:2, 0] = limits.min, limits.max
        w_zero = random.integers(limits.min // 2, limits.max // 2, columns).astype(types[1])
        x = random.integers(np.iinfo(types[0]).min, np.iinfo(types[0]).max + 1, (3, 40)).astype(types[0])
        x_zero = random.integers(0, 100, zero_shape).astype(types[0])
        names = [forms.operand(a, at % 2 == 1) for at, a in enumerate((x, w, x_zero, w_zero))]
        forms.net.output(forms.net.op("MatMulInteger", *names, out=f"y{len(wanted)}"), dtype=np.int32)
        row = x_zero[:, None] if x_zero.ndim else x_zero
        wanted.append((x.astype(int) - row) @ (w.astype(int) - w_zero))
    forms.check(wanted=wanted)
    program = compile_model(forms.net.model(), "host").program
    weights = [o.buffer for i in program.instrs if i.macs for o in i.operands if o.role == "w"]
    assert {b.dtype for b in weights} == {DType.INT8}


def test_quantized_matrix_product_of_computed_parameters():
    random, forms = np.random.default_rng(6), Forms()
    wanted = []
    for dtype in (np.int8, np.uint8):
        a, b = (random.integers(0, 100, shape).astype(dtype) for shape in ((2, 3, 5), (2, 5, 4)))
        scales = [np.asarray(s, np.float32) for s in (0.013, 0.021, 1.7)]
        zeros = [np.asarray(z, dtype) for z in (3, 5, 7)]
        operands = (a, scales[0], zeros[0], b, scales[1], zeros[1], scales[2], zeros[2])
        names = [forms.operand(array, False) for array in operands]
        forms.net.output(forms.net.op("QLinearMatMul", *names, out=f"y{len(wanted)}"), dtype=dtype)
        exact = ((a.astype(int) - 3) @ (b.astype(int) - 5)) * float(scales[0]) * float(scales[1]) / float(scales[2])
        wanted.append(np.clip(np.rint(exact) + 7, np.iinfo(dtype).min, np.iinfo(dtype).max))
    forms.check(wanted=wanted)


def test_weights_in_blocks_are_constants_of_float():
    net = Net(opset=21)
    net.input("x", 2, 8)
    random = np.random.default_rng(7)
    names = []
    for name, array in (
        ("w", random.integers(-8, 8, (8, 3)).astype(ml_dtypes.int4)),
        ("s", random.uniform(0.1, 1, (2, 3)).astype(np.float32)),
    ):
        net.constants.append(onnx.numpy_helper.from_array(array, name))
        names.append(name)
    weights = net.op("DequantizeLinear", *names, axis=0, block_size=4)
    net.output(net.op("MatMul", "x", weights))
    assert operators(optimized(net.model())) == ["dense"]


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((0,), {}),
        ((3,), {"axis": 7}),
        ((3,), {"axis": 0}),
        ((2, 2), {"axis": 1}),
        ((2, 3), {"axis": 1, "block_size": 3}),
    ],
)
@pytest.mark.parametrize("constant", [False, True], ids=["computed", "constant"])
def test_scales_that_do_not_fit_are_refused(shape: tuple[int, ...], attributes: dict[str, int], constant: bool):
    net = Net(opset=21)
    net.input("x", 4, 5)
    scale = net.const(np.ones(shape)) if constant else net.input("s", *shape)
    net.output(net.op("QuantizeLinear", "x", scale, **attributes), dtype=np.uint8, shape=(4, 5))
    with pytest.raises(McugenError):
        imported(net.plain_model())


BLOCKS = [((2, 6), 1, 2), ((2, 7), 1, 3), ((5, 3), 0, 2), ((2, 3, 4), -1, 4), ((7,), 0, 3), ((3, 2, 2, 5), 3, 2)]
"""Shape, axis and size of blocks, of which the last may be short: integers of 4 bits have odd counts, too."""


@pytest.mark.parametrize("given_zero", [False, True], ids=["no zero point", "zero point"])
def test_constants_in_blocks_keep_all_values_of_their_type(given_zero: bool):
    random, forms, wanted = np.random.default_rng(2), Forms(), []
    for dtype in TYPES[:6]:
        info = ml_dtypes.iinfo(dtype)
        for shape, axis, size in BLOCKS:
            codes = random.integers(info.min, info.max + 1, shape).astype(dtype)
            codes.reshape(-1)[:2] = info.min, info.max
            blocks = [-(-n // size) if a == axis % len(shape) else n for a, n in enumerate(shape)]
            scale = random.uniform(0.5, 1, blocks).astype(np.float32)
            zero = random.integers(info.min, info.max + 1, blocks).astype(dtype) if given_zero else None
            names = [forms.operand(array, True) for array in (codes, scale, zero) if array is not None]
            real = forms.net.op("DequantizeLinear", *names, axis=axis, block_size=size)
            x = forms.operand(random.standard_normal(shape).astype(np.float32), False)
            forms.net.output(forms.net.op("Add", x, real, out=f"y{len(wanted)}"))
            scales, zeros = (
                np.take(a, np.arange(shape[axis]) // size, axis)
                for a in (scale, np.zeros(blocks) if zero is None else zero.astype(np.float64))
            )
            wanted.append(forms.feeds[x] + (codes.astype(np.float64) - zeros) * scales)
    forms.check(wanted=wanted)


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, ml_dtypes.int4])
@pytest.mark.parametrize("scale", [0.0, -0.1, np.nan, np.inf])
@pytest.mark.parametrize("place", ["tensor", "channel", "block", "constant", "constant block"])
@pytest.mark.parametrize("op_type", ["QuantizeLinear", "DequantizeLinear"])
def test_scales_must_be_positive_and_finite(op_type: str, place: str, scale: float, dtype: type):
    """Only a block of zeros may have scale 0: its numbers are 0 then."""
    net, is_quantize = Net(opset=21), op_type == "QuantizeLinear"
    if is_quantize and place.startswith("constant"):
        return
    shape, attributes = {"tensor": ((), {}), "channel": ((4,), {"axis": 1}), "constant": ((4,), {"axis": 1})}.get(
        place, ((2, 2), {"axis": 1, "block_size": 2})
    )
    scales = np.full(shape, 0.1)
    scales.reshape(-1)[-1] = scale
    params = net.const(scales), net.const(np.zeros(shape), dtype)
    given = np.float32 if is_quantize else dtype
    x = net.const(np.ones((2, 4)), given) if place.startswith("constant") else net.input("x", 2, 4, dtype=given)
    y = net.op(op_type, x, *params, **attributes)
    net.output(net.op("Add", net.input("other", 2, 4), y) if place.startswith("constant") else y, dtype=np.float32)
    if is_quantize:
        net.outputs[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    if scale == 0 and "block" in place and not is_quantize:
        imported(net.model())
        return
    with pytest.raises(McugenError, match="scales must be positive and finite") as error:
        imported(net.model())
    assert error.value.exit_code == 4
    assert str(np.float32(scale)) in str(error.value)


@pytest.mark.parametrize("dtype", TYPES[:6])
def test_padding_of_integers_is_an_integer(dtype: type):
    """Between QuantizeLinear and DequantizeLinear, and where two readers take one tensor for different reals."""
    net, wanted = Net(opset=21), {}
    low, high = (int(end) for end in (ml_dtypes.iinfo(dtype).min, ml_dtypes.iinfo(dtype).max))
    zero, step, widths = (low + high) // 2 - 1, 12.8 / (high - low), net.const([0, 1, 0, 1], np.int64)
    random = np.random.default_rng(3)
    x, real = random.integers(low, high + 1, (2, 3)), random.uniform(-6, 6, (2, 3)).astype(np.float32)
    net.input("x", 2, 3, dtype=dtype)
    for number, (factor, shift) in enumerate(((1.0, 0), (1.3, 1))):
        padded = net.op("Pad", net.dequantize("x", step * factor, zero + shift, dtype), widths, net.const(2.2))
        net.output(net.quantize(padded, step * factor, zero + shift, dtype, out=f"y{number}"), dtype=dtype)
        border = np.rint(np.float32(2.2) / np.float32(step * factor)) + zero + shift
        wanted[f"y{number}"] = np.pad(x, ((0, 0), (1, 1)), constant_values=int(border))
    padded = net.op("Pad", net.quantize(net.input("real", 2, 3), step, zero, dtype), widths, net.const(zero + 1, dtype))
    net.output(net.op("Relu", net.dequantize(padded, step, zero, dtype), out="y2"))
    codes = np.clip(np.rint(real / np.float32(step)) + zero, low, high)
    wanted["y2"] = np.maximum(np.pad(codes, ((0, 0), (1, 1)), constant_values=zero + 1) - zero, 0) * step
    compiled = compile_model(net.model())
    feeds = {e.name: {"x": x, "real": real}[e.name].astype(e.dtype.numpy) for e in compiled.program.inputs}
    found = interpret(compiled.graph, feeds)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name].astype(np.float64), array, rtol=1e-6, err_msg=name)
    check_c(compiled, feeds, found)
