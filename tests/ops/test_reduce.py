# SPDX-License-Identifier: Apache-2.0
"""Reductions and positions of extremes: onnxruntime, numpy and C agree."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from checks import SPREAD, Cases, check_c
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_models import (
    Net,
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

SHAPE = (2, 3, 5, 4)
AXES = [[1], [-1], [1, 2], [0, 2], [1, 3], [0, 1, 2, 3], [2, -2, 3]]
EXACT = ("Max", "Min", "Prod", "SumSquare", "L1", "L2", "LogSumExp")


@pytest.mark.parametrize("functions", [("Mean", "Sum"), EXACT])
def test_reduce(functions: tuple[str, ...]):
    cases = Cases()
    for function in functions:
        for number, axes in enumerate(AXES):
            axes = sorted({a % 4 for a in axes})
            cases.add(f"Reduce{function}", SHAPE, np.asarray(axes), keepdims=number % 2)
        cases.add(f"Reduce{function}", (7, 1, 3), np.asarray([1]), keepdims=0)
        if function != "LogSumExp":
            cases.add(f"Reduce{function}", (7, 3), keepdims=0)
    cases.check_float(1e-5 if functions is EXACT else 1e-4)  # sums of both signs cancel


def test_axes_may_be_an_attribute():
    cases = Cases(opset=13)
    for function in ("Mean", "Max", "L2"):
        cases.add(f"Reduce{function}", SHAPE, axes=[1, -1], keepdims=0)
    cases.add("ReduceSum", SHAPE, np.asarray([-2]), keepdims=0)
    cases.check_float()


def test_log_sum():
    net = Net(20)
    positive = net.op("Exp", net.input("x", 3, 5))
    net.output(net.op("ReduceLogSum", positive, net.const([1], np.int64), out="y", keepdims=0))
    check_everywhere(net.model())


def test_no_axes_may_mean_nothing_to_do():
    cases = Cases()
    cases.add("ReduceSum", SHAPE, np.asarray([], np.int64), noop_with_empty_axes=1)
    assert operators(optimized(cases.net.model())) == []
    cases.add("ReduceSum", SHAPE, np.asarray([2]))
    cases.check_float()


def test_reduce_integers():
    cases = Cases()
    for dtype in (np.int32, np.int64):
        for function in ("Sum", "Max", "Min"):
            cases.add(f"Reduce{function}", SHAPE, np.asarray([1, 3]), dtype=dtype)
        cases.add("ReduceProd", SHAPE, np.asarray([0]), dtype=dtype)
    cases.add("ReduceMax", SHAPE, np.asarray([2]), dtype=np.int8)
    cases.add("ReduceMin", SHAPE, np.asarray([2]), dtype=np.uint8)
    cases.check_float()


def test_reduce_int8():
    cases = Cases()
    for y_scale, (x_zero, y_zero) in [(0.00437, (-128, 127)), (0.0371, (127, -128)), (0.313, (3, -7))]:
        x, y = (SPREAD, x_zero), (y_scale, y_zero)
        for function in ("Mean", "Sum", "Max", "Min"):
            for axes in AXES[:5]:
                cases.add_int8(f"Reduce{function}", (2, 7, 9, 11), x, y, np.asarray(axes))
            cases.add_int8(f"Reduce{function}", (3, 50), x, x, np.asarray([0]))
    cases.check_int8()


def test_largest_of_pixels_is_a_pool():
    """Of codes, on every CPU by words or vectors; reals have NaN, which pools do not know."""
    cases = Cases()
    for dtype in (np.int8, np.uint8):
        for shape, axes in (((2, 9, 21), [1]), ((1, 5, 7, 6), [1, 2]), ((30, 3), [0]), ((2, 3, 1, 4), [1])):
            cases.add("ReduceMax", shape, np.asarray(axes), dtype=dtype)
    cases.add("ReduceMax", (2, 9, 21), np.asarray([1]))
    program = compile_model(cases.net.model()).program
    kernels = [instr.kernel for instr in program.instrs]
    assert {"max_pool_s8", "max_pool_u8"} <= set(kernels) and kernels.count("reduce") == 1
    cases.check_float()


def test_arg():
    cases = Cases()
    for dtype in (np.float32, np.int32, np.int8, np.uint8):
        for axis in (0, 1, -1):
            for op_type in ("ArgMax", "ArgMin"):
                cases.add(op_type, (3, 5, 4), dtype=dtype, out=np.int64, axis=axis, keepdims=axis % 2)
    cases.check_float()


def test_arg_of_equal_elements():
    cases = Cases()
    net = cases.net
    equal = net.op("Clip", net.input("x", 4, 30), net.const(-0.5), net.const(0.5))
    for op_type in ("ArgMax", "ArgMin"):
        for last in (0, 1):
            net.output(net.op(op_type, equal, axis=1, select_last_index=last), dtype=np.int64)
    cases.check_float()


def test_arg_of_a_quantized_tensor_reads_integers():
    net = Net()
    real = net.dequantize(net.input("x", 4, 30, dtype=np.int8), 0.1, -128)
    net.output(net.op("ArgMax", real, axis=1, out="y"), dtype=np.int64)
    assert operators(optimized(net.model())) == ["arg_max"]
    check_quantized(net.model())


def test_spatial_mean_needs_no_transposition():
    net = Net()
    x = net.op("Conv", net.input("x", 1, 3, 6, 6), net.const(np.ones((4, 3, 3, 3))))
    x = net.op("ReduceMean", x, axes=[2, 3], keepdims=0)
    net.output(net.op("Gemm", x, net.const(np.ones((4, 2))), out="y"))
    assert "transpose" not in operators(optimized(net.model()))[1:]


REDUCTIONS = ("Sum", "Mean", "Prod", "Max", "Min", "SumSquare", "L1", "L2", "LogSum", "LogSumExp")
TYPES = (np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int64, np.uint32, np.uint64, np.int8, np.uint8, bool)


@pytest.mark.spread(6)
@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: np.dtype(t).name)
def test_reductions_and_positions_of_every_element_type(dtype: type):
    random = np.random.default_rng(8)
    net = Net(opset=28)
    net.input("x", 3, 4, 5, dtype=dtype)
    name = TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(np.dtype(dtype))).lower()
    for function in REDUCTIONS:
        if f"tensor({name})" in onnx.defs.get_schema(f"Reduce{function}").inputs[0].types:
            for number, axes in enumerate(([1], [0, 2], [0, 1, 2])):
                y = net.op(
                    f"Reduce{function}", "x", net.const(axes, np.int64), keepdims=number % 2, out=f"{function}{number}"
                )
                net.output(y, dtype=dtype)
    for op_type in ("ArgMax", "ArgMin", "Hardmax"):
        if f"tensor({name})" in onnx.defs.get_schema(op_type).inputs[0].types:
            y = net.op(op_type, "x", axis=1, out=op_type)
            net.output(y, dtype=dtype if op_type == "Hardmax" else np.int64)
    model = net.model()
    small = random.integers(1, 4, (3, 4, 5)) if np.dtype(dtype).kind != "i" else random.integers(-3, 4, (3, 4, 5))
    feeds = {"x": small.astype(dtype)}
    compiled = compile_model(model)
    found = interpret(compiled.graph, feeds)
    relative = {np.float16: 2e-3, ml_dtypes.bfloat16: 2e-2}.get(dtype, 1e-10)
    with np.errstate(all="ignore"):
        reference = ReferenceEvaluator(model).run(None, feeds)
    for (key, array), wanted in zip(found.items(), reference, strict=True):
        if np.isfinite(wanted.astype(np.float64)).all():
            wanted = wanted.astype(np.float64)
            np.testing.assert_allclose(array.astype(np.float64), wanted, rtol=relative * 2, atol=relative, err_msg=key)
    check_c(compiled, feeds, found, relative)


def test_integer_sums_wrap_and_means_do_not():
    net = Net()
    net.input("x", 2, 3, dtype=np.int32)
    for function in ("Sum", "Prod", "SumSquare", "L1", "Mean"):
        net.output(
            net.op(f"Reduce{function}", "x", axes=[1], out=function)
            if function != "Sum"
            else net.op("ReduceSum", "x", net.const([1], np.int64), out=function),
            dtype=np.int32,
        )
    least, most = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    feeds = {"x": np.array([[most, most, -7], [least, least, 4]], np.int32)}
    compiled = compile_model(net.model())
    found = interpret(compiled.graph, feeds)
    assert found["Mean"].reshape(-1).tolist() == [(2 * most - 7) // 3, -(-(2 * least + 4) // 3)]
    check_c(compiled, feeds, found)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_what_is_not_finite(dtype: type):
    """Extremes of a row with a NaN are NaN, as in numpy; sums of exponentials know infinities."""
    net = Net()
    net.input("x", 5, 3, dtype=dtype)
    for function in ("Max", "Min", "LogSumExp", "Sum"):
        axes = net.const([1], np.int64) if function == "Sum" else None
        attributes = {} if axes else {"axes": [1]}
        net.output(net.op(f"Reduce{function}", *filter(None, ["x", axes]), out=function, **attributes), dtype=dtype)
    inf, nan = np.inf, np.nan
    rows = [[nan, 1, 2], [1, nan, 2], [1, 2, nan], [-inf, -inf, -inf], [inf, 1, 2]]
    feeds = {"x": np.array(rows, dtype)}
    compiled = compile_model(net.model())
    found = interpret(compiled.graph, feeds)
    np.testing.assert_array_equal(found["Max"][:, 0], feeds["x"].max(1))
    np.testing.assert_array_equal(found["LogSumExp"][3:, 0], [-inf, inf])
    check_c(compiled, feeds, found)


def test_computed_axes_follow_from_the_declared_shape():
    net = Net()
    net.input("x", 2, 3, 4)
    net.input("axes", 1, dtype=np.int64)
    net.output(net.op("ReduceSum", "x", "axes", out="y"), shape=(2, 1, 4))
    model = net.plain_model()
    feeds = {"x": random_feeds(model)["x"], "axes": np.array([1])}
    np.testing.assert_allclose(numpy_outputs(model, feeds)["y"], feeds["x"].sum(1, keepdims=True), rtol=1e-5)


def test_refusal():
    net = Net()
    net.input("x", 2, 3, dtype=bool)
    net.output(net.op("ReduceSum", net.op("Identity", "x"), out="y"), dtype=bool)
    with pytest.raises(McugenError):
        imported(net.plain_model())


@pytest.mark.parametrize("operator", ["ReduceL1", "ReduceMax", "ReduceSum"])
def test_a_scalar_has_no_axis_to_reduce(operator: str):
    net = Net()
    net.output(net.op(operator, net.input("x"), keepdims=1))
    (expected,) = numpy_outputs(net.model(), {"x": np.float32(-2)}).values()
    assert expected == (2 if operator == "ReduceL1" else -2)
    assert compile_model(net.model(), "host").program.outputs[0].shape == ()
