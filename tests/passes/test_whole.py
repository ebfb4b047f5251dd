# SPDX-License-Identifier: Apache-2.0
"""Integer networks kept in float tensors: the layers' types, their bits beside ONNX Runtime's, and what is no proof."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from onnx_models import Net, c_outputs, numpy_outputs, onnxruntime_outputs, optimized
from shared_models import SHARED

from mcugen.hir.graph import Graph
from mcugen.hir.types import DType
from mcugen.ops.conv import Conv
from mcugen.ops.matmul import Dense
from mcugen.ops.whole import Cut, exact_cut, exact_steps


def draw(*shape: int, most: int = 60, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-most, most + 1, shape).astype(np.float32)


def whole(net: Net, x: str, exporter: str, channels: int, low: int = 0, high: int = 255) -> str:
    """What exporters write between the sums of two layers."""
    shape = (channels, 1, 1)
    factors = net.const(np.abs(draw(*shape, most=900, seed=1)) + 700)
    shifts = net.const(draw(*shape, most=90000, seed=2))
    y = net.op("Add", net.op("Mul", x, factors), shifts)
    if exporter == "NEMO":
        y = net.op("Cast", y, to=onnx.TensorProto.INT64)
        y = net.op("Mul", y, net.const(52, np.int64))
        y = net.op("Cast", net.op("Div", y, net.const(2**22 - 1, np.int64)), to=onnx.TensorProto.FLOAT)
    else:
        y = net.op("Floor", net.op("Div", y, net.const(2.0**15)))
    return net.op("Clip", y, net.const(float(low)), net.const(float(high)))


def network(exporter: str, low: int = 0, high: int = 255, residual: bool = False) -> onnx.ModelProto:
    net = Net(17)
    x = net.op("Conv", net.input("x", 1, 2, 9, 9), net.const(draw(6, 2, 3, 3)), pads=[1] * 4)
    a = net.op("MaxPool", whole(net, x, exporter, 6, low, high), kernel_shape=[2, 2])
    b = whole(net, net.op("Conv", a, net.const(draw(6, 6, 3, 3, seed=3)), pads=[1] * 4), exporter, 6, low, high)
    if residual:
        sums = net.op("Add", net.op("Mul", a, net.const(37.0)), net.op("Mul", b, net.const(21.0)))
        b = net.op("Floor", net.op("Div", sums, net.const(32.0)))
    flat = net.op("Flatten", net.op("Conv", b, net.const(draw(3, 6, 1, 1, seed=4))))
    net.output(net.op("MatMul", flat, net.const(draw(192, 4, most=9, seed=5)), out="y"))
    return net.model()


def layer_types(graph: Graph) -> list[DType]:
    """Of what layers read."""
    return [node.input(0).type.dtype for node in graph.nodes if isinstance(node.op, Conv | Dense)]


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("exporter", ["NEMO", "QuantLab"])
def test_layers_become_integer_ones_of_the_same_bits(exporter: str, residual: bool) -> None:
    model = network(exporter, residual=residual)
    types = layer_types(optimized(model))
    assert types[:2] == [DType.FLOAT32, DType.INT8]  # the first reads what the user gives
    assert types[2] is (DType.INT16 if residual else DType.INT8)  # up to 255 · (37 + 21) / 32
    for seed in range(3):
        feeds = {"x": np.random.default_rng(seed).integers(0, 256, (1, 2, 9, 9)).astype(np.float32)}
        expected = onnxruntime_outputs(model, feeds)["y"]
        np.testing.assert_array_equal(numpy_outputs(model, feeds)["y"], expected)
        np.testing.assert_array_equal(c_outputs(model, feeds)["y"], expected)


def test_limits_below_zero_have_codes_too() -> None:
    """Rounding down is not cutting off there: the formula stays."""
    model = network("QuantLab", -128, 127)
    graph = optimized(model)
    assert layer_types(graph)[1] is DType.INT8
    feeds = {"x": draw(1, 2, 9, 9, most=100, seed=9)}
    np.testing.assert_array_equal(c_outputs(model, feeds)["y"], onnxruntime_outputs(model, feeds)["y"])


def test_what_is_no_proof_stays_in_float() -> None:
    """Numbers that are not rounded, have no limits, or are too far apart; weights that are not whole."""
    for low, high, scale, rounds in ((0, 255, 1.0, False), (0, 70000, 1.0, True), (0, 255, 0.5, True)):
        net = Net(17)
        x = net.input("x", 1, 2, 5, 5)
        y = net.op("Clip", net.op("Floor", x) if rounds else x, net.const(float(low)), net.const(float(high)))
        net.output(net.op("Conv", y, net.const(draw(3, 2, 3, 3) * np.float32(scale)), out="y"))
        assert layer_types(optimized(net.model())) == [DType.FLOAT32], (low, high, scale, rounds)


def test_bytes_that_are_cast_are_codes() -> None:
    """So the first layer is an integer one, too, in networks that take pixels as they are."""
    net = Net(17)
    x = net.op("Cast", net.input("x", 1, 2, 9, 9, dtype=np.uint8), to=onnx.TensorProto.FLOAT)
    net.output(net.op("Conv", x, net.const(draw(6, 2, 3, 3)), out="y"))
    model = net.model()
    assert layer_types(optimized(model)) == [DType.INT8]
    feeds = {"x": np.random.default_rng(0).integers(0, 256, (1, 2, 9, 9)).astype(np.uint8)}
    np.testing.assert_array_equal(c_outputs(model, feeds)["y"], onnxruntime_outputs(model, feeds)["y"])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("codes", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("zero", [0, 3, 128, -128])
def test_bytes_are_codes_of_any_type_and_zero_point(dtype: type, codes: type, zero: int) -> None:
    if not np.iinfo(codes).min <= zero <= np.iinfo(codes).max:
        pytest.skip("no zero point of that type")
    net = Net(21)
    x = net.op("Cast", net.input("x", 1, 6, dtype=dtype), to=onnx.TensorProto.FLOAT)
    net.op("QuantizeLinear", x, net.const(1.0), net.const(zero, codes), out="y")
    net.output("y", dtype=codes)
    numbers = np.array([[0, 1, 5, 127, -128, 200]]).astype(dtype)
    limits = np.iinfo(codes)
    expected = np.clip(numbers.astype(np.int64) + zero, limits.min, limits.max)
    np.testing.assert_array_equal(numpy_outputs(net.model(), {"x": numbers})["y"], expected)


def test_bytes_are_codes_of_16_bits_in_c() -> None:
    """The sum with the zero point needs more bits than the bytes have."""
    net = Net(21)
    x = net.op("Cast", net.input("x", 1, 4, dtype=np.uint8), to=onnx.TensorProto.FLOAT)
    net.op("QuantizeLinear", x, net.const(1.0), net.const(-128, np.int16), out="y")
    net.output("y", dtype=np.int16)
    found = c_outputs(net.model(), {"x": np.array([[5, 0, 200, 255]], np.uint8)})
    np.testing.assert_array_equal(found["y"], [[-123, -128, 72, 127]])


def test_codes_that_saturate_stay_as_they_are() -> None:
    """Limits beyond what the model's own codes hold; and what is scaled is no whole number."""
    net = Net(17)
    x = net.op("Clip", net.op("Floor", net.input("x", 2, 4)), net.const(0.0), net.const(300.0))
    net.output(net.dequantize(net.quantize(x, 1.0, -128), 1.0, -128, out="y"))
    codes = net.op("DequantizeLinear", net.op("Cast", "x", to=onnx.TensorProto.INT32), net.const(0.5))
    net.output(net.op("Mul", net.op("Clip", codes, net.const(0.0), net.const(9.0)), net.const(3.0), out="z"))
    feeds = {"x": np.array([[299, 12.7, -3, 254], [255, 256, 3, 7]], np.float32)}
    expected = onnxruntime_outputs(net.model(), feeds)
    for name, found in c_outputs(net.model(), feeds).items():
        np.testing.assert_array_equal(found, expected[name])


def test_a_tensor_that_is_an_output_stays_one() -> None:
    net = Net(17)
    x = net.op("Clip", net.op("Floor", net.input("x", 1, 2, 5, 5)), net.const(0.0), net.const(255.0), out="c")
    net.output("c", net.op("Conv", x, net.const(draw(3, 2, 3, 3)), out="y"))
    feeds = {"x": draw(1, 2, 5, 5, most=300) + np.float32(0.5)}
    expected = onnxruntime_outputs(net.model(), feeds)
    for name, found in c_outputs(net.model(), feeds).items():
        np.testing.assert_array_equal(found, expected[name])


def test_no_division_is_left_of_64_bits() -> None:
    graph = optimized(network("NEMO"))
    assert not any(v.type.dtype is DType.INT64 for v in graph.values())


@pytest.mark.parametrize("low", [0, -128])
def test_a_cut_is_the_quotient(low: int) -> None:
    """Of whole numbers, wherever a code begins, and far from it."""
    pick = random.Random(0)
    found = 0
    for _ in range(60):
        numerator, denominator = pick.randint(1, 70), pick.choice([2 ** pick.randint(1, 26), pick.randint(2, 2**26)])
        op = exact_cut(numerator, denominator, low, low + 255)
        if op is None or op.multiplier is None:
            continue
        found += 1
        begins = [-(-code * denominator // numerator) for code in range(low, low + 256)]
        xs = [b + d for b in begins for d in (-1, 0, 1)] + [pick.randint(-(2**31), 2**31 - 1) for _ in range(50)]
        for x in (x for x in xs if abs(x) < 2**31):
            limited = (min(max(v, low), low + 255) for v in (x * numerator // denominator, _as_computed(op, x)))
            assert len(set(limited)) == 1, (numerator, denominator, x)
    assert found > 40


def _as_computed(op: Cut, x: int) -> int:
    assert op.multiplier is not None
    return x * op.multiplier + op.offset >> op.shift


@pytest.mark.parametrize("name", ["dory_frontnet_int", "dory_eegnet_int", "dory_tcn_int"])
def test_networks_of_pulp(name: str) -> None:
    """Beyond their first layer they hold no float weights."""
    path = SHARED / "zoo" / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    graph = optimized(onnx.load(path))
    assert DType.FLOAT32 not in layer_types(graph)[1:]


def _codes(x: np.ndarray, factors: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """As a network of whole numbers has them, in float32."""
    real = x.astype(np.float32) * factors.astype(np.float32) + shifts.astype(np.float32)
    return np.clip(np.floor(real / np.float32(2**16)), 0, 255).astype(np.int64)


@pytest.mark.parametrize("most", [200, 30_000])
def test_steps_begin_where_each_code_does(most: int) -> None:
    """Codes of factors that floats hold exactly, and of sums that they round: the same, or no steps at all."""
    draw = np.random.default_rng(most)
    fitted = 0
    for _ in range(8):
        factors, shifts = draw.integers(1, most, 6), draw.integers(-(10**6), 10**6, 6)
        found = exact_steps(lambda x, f=factors, s=shifts: _codes(x, f, s), (6,), 0, 255)
        if found is None:
            continue
        fitted += 1
        near = np.floor((np.arange(256)[:, None] * 2**16 - shifts) / factors).astype(np.int64)
        x = np.concatenate([near + k for k in range(-3, 4)] + [draw.integers(-(2**31), 2**31, (2000, 6))])
        x = np.clip(x, -(2**31), 2**31 - 1)
        y = np.clip((x * found.multipliers + found.offsets) >> found.shift, 0, 255)
        np.testing.assert_array_equal(y, _codes(x, factors, shifts))
    assert fitted or most > 200


def test_steps_of_a_constant_and_of_what_rises_too_fast() -> None:
    assert exact_steps(lambda x: np.full(x.shape, 7), (2,), 0, 255) is not None
    assert exact_steps(lambda x: np.clip(x.astype(np.int64) * 3, 0, 255), (2,), 0, 255) is None


def test_steps_of_wide_codes_that_rise_slowly() -> None:
    """Codes of 16 bits, which leave fewer bits behind the point."""
    for rise in (1, 2**21, 2**24):

        def wanted(x: np.ndarray, rise: int = rise) -> np.ndarray:
            return np.clip(x.astype(np.int64) // rise + 700, 0, 32767) if rise > 1 else np.full(x.shape, 700)

        found = exact_steps(wanted, (1,), 0, 32767)
        assert found is not None
        x = np.concatenate([np.arange(-40, 41) * rise + k for k in (-1, 0, 1)] + [[-(2**31), 2**31 - 1]])
        x = np.clip(x, -(2**31), 2**31 - 1)
        offset = int(found.offsets[0])
        y = [min(max((int(v) * int(found.multipliers[0]) + offset) >> found.shift, 0), 32767) for v in x]
        np.testing.assert_array_equal(y, wanted(x))


def test_sums_are_scaled_in_integers() -> None:
    """With the bits that floats had: no float is left between two layers."""
    model = network("NEMO")
    cuts = [node for node in optimized(model).nodes if "ChannelCut" in repr(node.op)]
    assert cuts
