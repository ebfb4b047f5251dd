# SPDX-License-Identifier: Apache-2.0
"""Floats of 8 and 4 bits: stored as such, converted bit by bit as ONNX and ml_dtypes have it."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
from checks import check_by_reference, outputs_in_c
from onnx import TensorProto, helper, numpy_helper
from onnx_models import Net

from mcugen.core.errors import McugenError
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret

Array = np.ndarray
FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
SMALL = (*FLOAT8, "float4_e2m1fn", "float8_e8m0fnu")


def codes(name: str) -> Array:
    """Every number of a type."""
    return np.arange(16 if "4_" in name else 256, dtype=np.uint8).view(name)


def reals() -> Array:
    """Every number of every type, what lies between and beside neighbours, extremes, and any bits."""
    random = np.random.default_rng(0)
    known = np.concatenate([codes(name).astype(np.float32) for name in SMALL])
    known = np.unique(known[np.isfinite(known)])
    ties = (known[1:].astype(np.float64) + known[:-1]) / 2
    near = np.concatenate([known, ties.astype(np.float32)])
    beside = [np.nextafter(near, np.float32(end)) for end in (-np.inf, np.inf)]
    extremes = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, -3e38], np.float32)
    wild = random.integers(0, 2**32, 2000, np.uint32).view(np.float32)
    return np.concatenate([near, *beside, extremes, wild])


def number(name: str) -> int:
    """ONNX's of a type."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(name)))


def rounded(x: Array, name: str, saturate: int) -> Array:
    """By ml_dtypes, of which ONNX's own conversions are made."""
    target = np.dtype(name)
    with np.errstate(all="ignore"):
        return numpy_helper.saturate_cast(x, target) if saturate else x.astype(target)


def both(net: Net, feeds: dict[str, Array]) -> Iterator[tuple[str, Array, Array]]:
    """Each output's bits, of numpy and of C."""
    compiled = compile_model(net.model())
    found, in_c = interpret(compiled.graph, feeds), outputs_in_c(compiled, feeds)
    yield from ((name, array.view(np.uint8), in_c[name].view(np.uint8)) for name, array in found.items())


def test_every_number_becomes_a_float_and_comes_back():
    net, feeds = Net(opset=25), {}
    for name in SMALL:
        feeds[name] = codes(name)
        x = net.input(name, len(feeds[name]), dtype=np.dtype(name))
        net.output(net.op("Cast", x, to=TensorProto.FLOAT, out=f"{name}.real"), dtype=np.float32)
        net.output(net.op("Cast", x, to=TensorProto.BOOL, out=f"{name}.bool"), dtype=bool)
        net.output(net.op("Cast", x, to=TensorProto.FLOAT16, out=f"{name}.half"), dtype=np.float16)
    compiled = compile_model(net.model())
    for found in (interpret(compiled.graph, feeds), outputs_in_c(compiled, feeds)):
        for name, array in feeds.items():
            np.testing.assert_array_equal(found[f"{name}.real"], array.astype(np.float32))
            np.testing.assert_array_equal(found[f"{name}.bool"], array.astype(np.float32) != 0)
            with np.errstate(over="ignore"):
                np.testing.assert_array_equal(found[f"{name}.half"], array.astype(np.float32).astype(np.float16))


def test_floats_are_rounded_as_ml_dtypes_rounds_them():
    net, x = Net(opset=25), reals()
    net.input("x", len(x))
    wanted = {}
    for name in (*FLOAT8, "float4_e2m1fn"):
        for saturate in (0, 1) if name in FLOAT8 else (0,):
            y = f"{name}.{saturate}"
            net.output(net.op("Cast", "x", to=number(name), saturate=saturate, out=y), dtype=np.dtype(name))
            wanted[y] = rounded(x, name, saturate).view(np.uint8)
    for name, found, in_c in both(net, {"x": x}):
        np.testing.assert_array_equal(found, wanted[name], name)
        np.testing.assert_array_equal(in_c, wanted[name], name)


def test_powers_of_two_by_each_way_of_rounding():
    net, x = Net(opset=25), reals()
    net.input("x", len(x))
    wanted = {}
    for mode in ("up", "down", "nearest"):
        for saturate in (0, 1):
            y = f"{mode}.{saturate}"
            power = net.op("Cast", "x", to=TensorProto.FLOAT8E8M0, saturate=saturate, round_mode=mode, out=y)
            net.output(power, dtype=ml_dtypes.float8_e8m0fnu)
            wanted[y] = numpy_helper.to_float8e8m0(x, bool(saturate), mode).view(np.uint8)
    for name, found, in_c in both(net, {"x": x}):
        np.testing.assert_array_equal(found, wanted[name], name)
        np.testing.assert_array_equal(in_c, wanted[name], name)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float4_e2m1fn"])
def test_what_moves_numbers_takes_them(name: str):
    net, dtype = Net(opset=25), np.dtype(name)
    net.input("x", 4, 4, dtype=dtype)
    for y in (
        net.op("Transpose", "x"),
        net.op("Reshape", "x", net.const([2, 8], np.int64)),
        net.op("Concat", "x", net.op("Identity", "x"), axis=0),
        net.op("ConstantOfShape", net.const([3], np.int64), value=numpy_helper.from_array(np.array([1.5], dtype))),
    ):
        net.output(y, dtype=dtype)
    check_by_reference(net, {"x": codes(name)[:16].reshape(4, 4)})


def test_quantization_to_small_floats():
    """With a scale a tensor and a channel, as constants and computed; weights that are constants."""
    random, feeds = np.random.default_rng(1), {}
    net = Net(opset=25)
    feeds["x"] = (random.standard_normal((3, 8)) * 40).astype(np.float32)
    net.input("x", 3, 8)
    for name in (*FLOAT8, "float4_e2m1fn"):
        dtype, scales = np.dtype(name), np.array([0.5, 0.1, 2.0], np.float32)
        q = net.op("QuantizeLinear", "x", net.const(scales), net.const(np.zeros(3), dtype.type), axis=0, saturate=1)
        net.output(q, dtype=dtype)
        net.output(net.op("DequantizeLinear", q, net.const(scales), axis=0))
        weights = net.const(random.standard_normal((8, 4)) * 3, dtype.type)
        real = net.op("DequantizeLinear", weights, net.const(np.float32(0.3)))
        net.output(net.op("MatMul", "x", real))
    check_by_reference(net, feeds)


def test_unknown_rounding_is_refused():
    net = Net(opset=25)
    net.input("x", 3)
    net.output(net.op("Cast", "x", to=TensorProto.FLOAT8E8M0, round_mode="odd"), dtype=ml_dtypes.float8_e8m0fnu)
    with pytest.raises(McugenError, match="round_mode"):
        compile_model(net.plain_model())
