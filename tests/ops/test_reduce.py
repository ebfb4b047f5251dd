# SPDX-License-Identifier: Apache-2.0
"""Reductions and positions of extremes: onnxruntime, numpy and C agree."""

from __future__ import annotations

import numpy as np
import pytest
from checks import SPREAD, Cases
from onnx_models import Net, check_everywhere, check_quantized, imported, operators, optimized

from mcugen.errors import UnsupportedError

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


def test_refusal():
    cases = Cases()
    cases.add("ReduceMean", (2, 3), dtype=np.int32)
    with pytest.raises(UnsupportedError, match="element type must be one of float32"):
        imported(cases.net.model())
