# SPDX-License-Identifier: Apache-2.0
"""Softmax: onnxruntime, numpy and C agree along any axis; the int8 form is exact integer arithmetic."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from checks import Cases
from onnx_models import Net, check_everywhere, check_quantized, operators, optimized

from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.hir.operator import Signature
from mcugen.hir.types import DType, QuantParams, TensorType
from mcugen.numerics.softmax import FixedSoftmax

ROWS = [((4, 10), -1), ((1, 1), 1), ((2, 7, 5), 1), ((3, 4, 2, 3), 0), ((2, 300), 1), ((2, 5, 3), -2)]


def test_softmax():
    cases = Cases()
    for op_type in ("Softmax", "LogSoftmax"):
        for shape, axis in ROWS:
            cases.add(op_type, shape, axis=axis)
    cases.check_float()


def test_softmax_of_double():
    cases = Cases()
    for op_type in ("Softmax", "LogSoftmax"):
        for shape, axis in ROWS:
            cases.add(op_type, shape, dtype=np.float64, axis=axis)
    cases.check_float(1e-13)


def test_large_logits_do_not_overflow():
    net = Net()
    x = net.op("Mul", net.input("x", 5, 9), net.const(200.0))
    net.output(*(net.op(op_type, x, axis=1) for op_type in ("Softmax", "LogSoftmax")))
    check_everywhere(net.model())


def test_old_softmax_flattens():
    """Before opset 13 all axes from `axis` on are one."""
    net = Net(opset=11)
    net.output(net.op("Softmax", net.input("x", 2, 3, 4), axis=1, out="y"))
    check_everywhere(net.model())


@pytest.mark.parametrize("x", [(0.003, 0), (0.0625, -128), (0.1, 127), (0.9, 5)])
@pytest.mark.parametrize("y", [(1 / 256, -128), (1 / 255, -128), (0.0123, 127), (0.002, -20)])
def test_softmax_int8(x: tuple[float, int], y: tuple[float, int]):
    """Softmax is the function of many elements whose rounding is hardest to get right: few may differ."""
    scale, zero = float(np.float32(x[0])), x[1]
    random = np.random.default_rng(0)
    for shape, axis in [((2000, 10), 1), ((40, 5, 100), 2), ((3, 1000), 1), ((2, 4000), 1), ((50, 3, 7), 1)]:
        types = TensorType(shape, DType.INT8, QuantParams((scale,), zero))
        out = TensorType(shape, DType.INT8, QuantParams((float(np.float32(y[0])),), y[1]))
        fixed = FixedSoftmax.of(Signature((types,), (out,)), axis)
        assert fixed is not None
        q = random.integers(-128, 128, shape).astype(np.int8)
        e = np.exp((q.astype(np.float64) - q.max(axis, keepdims=True)) * scale)
        exact = e / e.sum(axis, keepdims=True) / out.q.scale[0] + y[1]
        difference = np.abs(fixed(q, axis) - np.clip(exact, -128, 127))
        assert difference.max() < 0.505
        literal = np.clip(np.rint(exact), -128, 127)
        assert (fixed(q, axis) != literal).mean() < 0.001


def test_softmax_int8_in_c():
    cases = Cases()
    for y in ((1 / 256, -128), (0.0071, 127)):
        for number, (shape, axis) in enumerate(ROWS):
            cases.add_int8("Softmax", shape, (0.02 * 2**number, (-128, 127, 3)[number % 3]), y, axis=axis)
        cases.add_int8("Softmax", (500, 10), (0.05, 1), y, axis=1)
    cases.check_int8()


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["nrf52840", "corstone300"])
def test_softmax_int8_where_it_takes_four_at_a_time(board: str):
    """Rows of any length, wherever the largest is, of all codes, of one alone, and with one that is clamped."""
    net, feeds, random = Net(), {}, np.random.default_rng(2)
    for depth in (*range(1, 14), 64, 251):
        rows = random.integers(-128, 128, (12, depth)).astype(np.int8)
        rows[0], rows[1], rows[2] = -128, 127, -1
        rows[3:] //= 3
        rows[4], rows[4, depth // 2] = -128, 127  # which is more than the largest code says
        feeds[f"x{depth}"] = rows
        real = net.dequantize(net.input(f"x{depth}", *rows.shape, dtype=np.int8), 0.05, 3)
        y = net.quantize(net.op("Softmax", real, axis=1), 1 / 256, -128, out=f"y{depth}")
        net.output(y, dtype=np.int8)
    compiled = compile_model(net.model(), board)
    wanted = interpret(compiled.graph, feeds)
    (found,) = compiled.simulate([feeds], measure=False).outputs
    for name, codes in wanted.items():
        assert np.array_equal(found[name], codes), name


def test_long_rows_stay_in_float():
    net = Net()
    real = net.dequantize(net.input("x", 1, 5000, dtype=np.int8), 0.05)
    net.output(net.quantize(net.op("Softmax", real, axis=1), 1 / 4096, -128, out="y"), dtype=np.int8)
    assert "softmax" in "".join(operators(optimized(net.model())))
    check_quantized(net.model())


def test_a_table_that_has_changed_ends_no_later():
    """Where the powers of all elements are 0, whose sum is looked at bit by bit."""
    net = Net(opset=21)
    for dtype in (np.int8, np.int16):
        x = net.dequantize(net.input(f"x_{dtype.__name__}", 1, 4, dtype=dtype), 1.0, 0, dtype)
        for op in ("Softmax", "LogSoftmax"):
            net.output(net.quantize(net.op(op, x, axis=-1), 1 / 256, 0, dtype), dtype=dtype)
    model = compile_model(net.model(), options=CompileOptions(name="net"))
    intact = model.bundle.files["net_weights.c"]
    zeros, count = re.subn(r"(?s)(exp_table\w*\[\d+\] = \{).*?\}", r"\1 0 }", intact)
    assert count >= 2
    changed = replace(model, given_bundle=replace(model.bundle, files=model.bundle.files | {"net_weights.c": zeros}))
    row = [[[127, -128, -128, -128]]]
    found = changed.run({"x_int8": np.array(row, np.int8), "x_int16": np.array(row, np.int16)}, sanitize=True)
    assert [array.shape for array in found.values()] == [(1, 1, 4)] * 4
