# SPDX-License-Identifier: Apache-2.0
"""Convolution: every window on odd sizes, float and int8; onnxruntime, numpy and C agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checks import check_by_reference, check_c, check_model
from onnx import numpy_helper
from onnx_models import (
    Net,
    assert_close,
    check_everywhere,
    check_quantized,
    numpy_outputs,
    onnxruntime_outputs,
    operators,
    optimized,
    random_feeds,
)

from mcugen.core.errors import McugenError
from mcugen.driver.compiler import compile_model

# name: (input shape, output channels, kernel, attributes)
Case = tuple[tuple[int, ...], int, tuple[int, ...], dict[str, Any]]
WINDOWS: dict[str, Case] = {
    "plain": ((1, 3, 7, 6), 5, (3, 3), {}),
    "padded": ((1, 4, 5, 5), 8, (3, 3), {"pads": [1, 1, 1, 1]}),
    "asymmetric": ((1, 2, 6, 5), 3, (3, 2), {"pads": [0, 1, 2, 0]}),
    "strided": ((1, 3, 9, 8), 4, (3, 3), {"strides": [2, 3], "pads": [1, 0, 1, 2]}),
    "dilated": ((1, 2, 9, 9), 4, (3, 3), {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    "dilated and strided": ((1, 2, 11, 9), 4, (3, 2), {"dilations": [2, 2], "strides": [2, 1]}),
    "window as large as the input": ((1, 3, 4, 4), 6, (4, 4), {}),
    "window mostly outside": ((1, 2, 2, 2), 3, (5, 5), {"pads": [3, 3, 3, 3]}),
    "pointwise": ((1, 5, 4, 3), 6, (1, 1), {}),
    "pointwise strided": ((1, 5, 5, 7), 6, (1, 1), {"strides": [2, 3]}),
    "pointwise padded": ((1, 5, 3, 3), 4, (1, 1), {"pads": [1, 0, 0, 1]}),
    "one pixel": ((1, 9, 1, 1), 7, (1, 1), {}),
    "grouped": ((1, 6, 5, 5), 9, (3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),
    "grouped pointwise": ((1, 6, 4, 3), 4, (1, 1), {"group": 2}),
    "depthwise": ((1, 5, 6, 7), 5, (3, 3), {"group": 5, "pads": [1, 1, 1, 1]}),
    "depthwise strided": ((1, 4, 7, 8), 4, (3, 3), {"group": 4, "strides": [2, 2], "pads": [0, 1, 1, 0]}),
    "depthwise dilated": ((1, 3, 9, 9), 3, (3, 3), {"group": 3, "dilations": [2, 2], "pads": [2, 2, 2, 2]}),
    "depthwise large": ((1, 3, 9, 9), 3, (7, 5), {"group": 3, "pads": [3, 2, 3, 2]}),
    "depthwise multiplied": ((1, 3, 5, 5), 6, (3, 3), {"group": 3}),
    "depthwise of one": ((1, 1, 6, 6), 1, (3, 3), {"group": 1, "pads": [1, 1, 1, 1]}),
    "batch": ((2, 3, 5, 4), 4, (3, 3), {"pads": [1, 1, 1, 1]}),
    "batch depthwise": ((2, 3, 5, 4), 3, (3, 3), {"group": 3}),
    "batch pointwise": ((2, 3, 3, 3), 5, (1, 1), {}),
    "line": ((1, 3, 11), 5, (3,), {"pads": [1, 1]}),
    "line strided": ((2, 3, 12), 5, (4,), {"strides": [3], "dilations": [2]}),
    "line depthwise": ((1, 4, 9), 4, (3,), {"group": 4, "pads": [2, 0]}),
    "same upper": ((1, 2, 6, 7), 3, (3, 4), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    "same lower": ((1, 2, 6, 7), 3, (2, 4), {"auto_pad": "SAME_LOWER", "strides": [1, 2]}),
    "valid": ((1, 2, 6, 7), 3, (3, 3), {"auto_pad": "VALID"}),
}


def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def weight_shape(case: Case) -> tuple[int, ...]:
    shape, channels, kernel, attributes = case
    return (channels, shape[1] // attributes.get("group", 1), *kernel)


def float_conv(net: Net, name: str, case: Case) -> None:
    x = net.input(f"x {name}", *case[0])
    weights, bias = (
        net.const(rng().standard_normal(weight_shape(case))),
        net.const(rng().standard_normal(case[1])),
    )
    net.output(net.op("Conv", x, weights, bias, out=name, **case[3]))


Types = tuple[type, type]
INT8: Types = (np.int8, np.int8)
MIXED = [(np.int16, np.int16), (np.int8, np.int16), (np.int16, np.int8)]
"""Element types of input and output."""


def quantized_conv(net: Net, name: str, case: Case, per_channel: bool, types: Types = INT8) -> None:
    """Codes of 16 bits have 256 times smaller steps, and no zero point."""
    random, channels = rng(), case[1]
    zeros = [int(random.integers(-100, 100)) if dtype is np.int8 else 0 for dtype in types]
    x_scale = 0.05 if types[0] is np.int8 else 0.05 / 256
    x = net.dequantize(net.input(f"x {name}", *case[0], dtype=types[0]), x_scale, zeros[0], types[0])
    codes = net.const(random.integers(-127, 128, weight_shape(case)), np.int8)
    scales = random.uniform(0.005, 0.02, channels if per_channel else ()).astype(np.float32)
    weights = net.op("DequantizeLinear", codes, net.const(scales), net.const(0 * scales, np.int8), axis=0)
    bias_scales = np.broadcast_to(np.float32(0.05) * scales, channels)  # of 16 bits, not the products' unit
    bias = net.op(
        "DequantizeLinear",
        net.const(random.integers(-2000, 2000, channels), np.int32),
        net.const(bias_scales),
        net.const([0] * channels, np.int32),
        axis=0,
    )
    size = 0.05 * 0.015 * 75 * 75 * np.sqrt(np.prod(weight_shape(case)[1:]))
    result = net.op("Conv", x, weights, bias, **case[3])
    step = float(size / 50 if types[1] is np.int8 else size / 50 / 256)
    net.output(net.quantize(result, step, zeros[1], types[1], out=name), dtype=types[1])


def half(part: int) -> list[str]:
    return list(WINDOWS)[part::2]


@pytest.mark.parametrize("part", [0, 1])
def test_float_windows(part: int):
    net = Net()
    for name in half(part):
        float_conv(net, name, WINDOWS[name])
    check_everywhere(net.model())


@pytest.mark.spread(6)
@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
def test_int8_windows(part: int, per_channel: bool):
    net = Net()
    for name in half(part):
        quantized_conv(net, name, WINDOWS[name], per_channel)
    model = net.model()
    assert "quantize" not in " ".join(operators(optimized(model)))
    check_quantized(model)


@pytest.mark.spread(6)
@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("types", MIXED, ids=lambda types: " to ".join(t.__name__ for t in types))
def test_int16_windows(part: int, types: Types):
    net = Net(opset=21)
    for name in half(part):
        quantized_conv(net, name, WINDOWS[name], per_channel=True, types=types)
    model = net.model()
    assert "quantize" not in " ".join(operators(optimized(model)))
    check_quantized(model, share=0.02)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.int16])
def test_channel_counts(dtype: type):
    net = Net(opset=21)
    for count in range(1, 10):
        case: Case = ((1, count, 4, 5), 10 - count, (2, 3), {"pads": [1, 1, 0, 1]})
        depthwise: Case = ((1, count, 4, 5), count, (2, 3), {"group": count})
        for name, one in ((f"{count} channels", case), (f"{count} depthwise", depthwise)):
            if dtype is np.float32:
                float_conv(net, name, one)
            else:
                quantized_conv(net, name, one, per_channel=True, types=(dtype, dtype))
    if dtype is np.float32:
        check_everywhere(net.model())
    else:
        check_quantized(net.model(), share=0.05 if dtype is np.int16 else 0.005)  # some tensors have 20 elements


@pytest.mark.spread(5)
@pytest.mark.qemu
@pytest.mark.parametrize("board", ["rp2040", "stm32f103", "nrf52840", "rt1060", "nrf5340", "corstone300"])
def test_int16_has_the_same_bits_on_every_cpu(board: str):
    """Convolutions, with sums of 32 and 64 bits."""
    net = Net(opset=21)
    cases = {name: WINDOWS[name] for name in ("padded", "one pixel", "grouped", "depthwise", "depthwise large")}
    deep: dict[str, Case] = {"deep": ((1, 150, 3, 3), 5, (3, 3), {"pads": [1, 1, 1, 1]})}
    for types in MIXED:
        for name, case in (cases | deep).items():
            quantized_conv(net, f"{name} {types[0].__name__} {types[1].__name__}", case, per_channel=True, types=types)
    model = net.model()
    compiled = compile_model(model, board)
    feeds = random_feeds(model)
    sums = {instr.code["acc_t"] for instr in compiled.program.instrs if "acc_t" in instr.code}
    assert sums == {"int32_t", "int64_t"}
    outputs = compiled.simulate([feeds], measure=False).outputs[0]
    assert_close(outputs, numpy_outputs(model, feeds))


def test_fused_activations():
    net = Net()
    x = net.input("x", 1, 3, 6, 6)
    for index, bounds in enumerate(((0.0,), (0.0, 1.0), ("", 0.5), (-0.25, 0.75))):
        for groups in (1, 3):
            weights = net.const(rng().standard_normal((3, 3 // groups, 3, 3)))
            limits = [b if b == "" else net.const(b) for b in bounds]
            conv = net.op("Conv", x, weights, group=groups)
            net.output(net.op("Clip", conv, *limits, out=f"clip{index} in {groups}"))
    model = net.model()
    assert set(operators(optimized(model))) <= {"conv", "transpose", "reshape"}
    check_everywhere(model)


def test_fused_activations_of_int8():
    net = Net()
    x = net.dequantize(net.input("x", 1, 3, 6, 6, dtype=np.int8), 0.05, -3)
    for index, (low, high) in enumerate(((0.0, 6.0), (0.0, 0.7), (-0.5, 0.5))):
        weights = net.dequantize(net.const(rng().integers(-127, 128, (4, 3, 3, 3)), np.int8), 0.005)
        clip = net.op("Clip", net.op("Conv", x, weights), net.const(low), net.const(high))
        net.output(net.quantize(clip, 0.01, -20, out=f"y{index}"), dtype=np.int8)
    check_quantized(net.model())


def test_scales_of_one_and_above():
    """The accumulator's unit is coarser than the output's."""
    net = Net()
    for index, scale in enumerate((0.9, 1.0, 3.7, 100.0)):
        x = net.dequantize(net.input(f"x{index}", 1, 2, 3, 3, dtype=np.int8), 1.0, 5)
        weights = net.dequantize(net.const(rng().integers(-2, 3, (3, 2, 2, 2)), np.int8), scale)
        net.output(net.quantize(net.op("Conv", x, weights), 1.0, 3, out=f"y{index}"), dtype=np.int8)
    check_quantized(net.model())


DIRECT: list[tuple[Case, bool]] = [
    (((1, 2, 4, 5, 6), 3, (2, 3, 2), {"pads": [1, 0, 1, 0, 2, 0], "strides": [2, 1, 2]}), False),
    (((2, 4, 5, 4, 5), 6, (3, 2, 2), {"group": 2, "dilations": [2, 1, 3]}), False),
    (((1, 3, 4, 4, 4), 3, (3, 3, 3), {"group": 3, "auto_pad": "SAME_LOWER", "strides": [2, 2, 2]}), True),
    (((2, 4, 7, 6), 6, (3, 2), {"group": 2, "pads": [2, 0, 1, 3], "strides": [1, 2], "dilations": [2, 1]}), True),
    (((1, 3, 9), 4, (3,), {"dilations": [2], "pads": [4, 1]}), True),
    (((1, 1, 2, 2), 1, (2, 2), {"pads": [3, 3, 3, 3], "dilations": [2, 2]}), True),
]
"""With computed weights or without."""


def test_any_number_of_axes_and_computed_weights():
    net = Net()
    for number, (case, computed) in enumerate(DIRECT):
        x = net.input(f"x{number}", *case[0])
        shape = weight_shape(case)
        w = net.input(f"w{number}", *shape) if computed else net.const(rng().standard_normal(shape))
        bias = [net.input(f"b{number}", case[1])] if number % 2 else []
        y = net.op("Conv", x, w, *bias, out=f"y{number}", **case[3])
        net.output(net.op("Clip", y, net.const(-0.5), net.const(1.5), out=f"z{number}") if number < 2 else y)
    model = net.model()
    assert set(operators(optimized(model))) == {"direct_conv"}
    check_model(model, random_feeds(model))


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_volumes_of_codes(dtype: type):
    """Three axes: windows, groups, clamps; zero points that padding must not add."""
    net = Net(21)
    unit, zeros = (1, (40, -9)) if dtype is np.int8 else (2**-8, (0, 0))
    random = np.random.default_rng(3)
    for number, (channels, group, attributes) in enumerate(
        [
            (5, 1, {}),
            (4, 2, {"pads": [1, 0, 1, 1, 2, 0], "strides": [2, 1, 2]}),
            (6, 1, {"dilations": [1, 2, 1], "pads": [1, 1, 1, 1, 1, 1]}),
        ]
    ):
        x = net.dequantize(net.input(f"x{number}", 1, 4, 6, 7, 8, dtype=dtype), 0.05 * unit, zeros[0], dtype)
        codes = net.const(random.integers(-127, 128, (channels, 4 // group, 3, 2, 3)), np.int8)
        scales = net.const(random.uniform(0.002, 0.01, channels))
        w = net.op("DequantizeLinear", codes, scales, net.const([0] * channels, np.int8), axis=0)
        bias = [net.const(random.standard_normal(channels))] if number else []
        y = net.op("Conv", x, w, *bias, group=group, **attributes)
        y = net.op("Relu", y) if number else y
        net.output(net.quantize(y, 0.1013 * unit, zeros[1], dtype, out=f"y{number}"), dtype=dtype)
    model = net.model()
    assert set(operators(optimized(model))) == {"direct_conv"}
    check_quantized(model, share=0.02)
    check_c(compile_model(model), random_feeds(model), numpy_outputs(model, random_feeds(model)))


def test_float64():
    net = Net(22)
    x, w, bias = (
        net.input(n, *s, dtype=np.float64) for n, s in (("x", (1, 4, 6, 5)), ("w", (4, 2, 3, 3)), ("b", (4,)))
    )
    net.output(net.op("Conv", x, w, bias, group=2, pads=[1, 1, 0, 1], out="y"), dtype=np.float64)
    check_by_reference(net, relative=1e-12)


def test_integers_with_zero_points():
    """Constant or computed, one or many; onnxruntime wants x unsigned."""
    net = Net()
    for number, (case, computed) in enumerate(DIRECT[2:]):
        channels, computed = case[1], computed and number % 2 == 0
        x = net.input(f"x{number}", *case[0], dtype=np.uint8)
        data = rng().integers(0, 256, weight_shape(case))
        w = net.input(f"w{number}", *data.shape, dtype=np.uint8) if computed else net.const(data, np.uint8)
        x_zero = net.input(f"xz{number}", dtype=np.uint8) if computed else net.const(77, np.uint8)
        w_zero = net.const(3, np.uint8) if number % 2 else net.const(rng().integers(0, 256, channels), np.uint8)
        net.output(net.op("ConvInteger", x, w, x_zero, w_zero, out=f"y{number}", **case[3]), dtype=np.int32)
    model = net.model()
    feeds = random_feeds(model)
    expected = {}
    for number, (case, _) in enumerate(DIRECT[2:]):
        constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        x, w, xz, wz = (({**constants, **feeds})[n].astype(np.float64) for n in model.graph.node[number].input)
        one = Net(22)
        y = one.op("Conv", one.input("x", *x.shape), one.input("w", *w.shape), out="y", **case[3])
        one.output(y)
        centered = {"x": x - xz, "w": w - wz.reshape(-1, *[1] * (w.ndim - 1))}
        exact = onnxruntime_outputs(one.model(), {k: v.astype(np.float32) for k, v in centered.items()})["y"]
        expected[f"y{number}"] = exact.astype(np.int32)  # below 2^24: float32 is exact
    check_model(model, feeds, expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("several", [False, True], ids=["one zero point", "one a channel"])
def test_integers_of_constant_weights_and_a_computed_zero_point(dtype: type, several: bool):
    """As dynamically quantized models have them: padding is what the zero point stands for."""
    net = Net(opset=21)
    x, zero = net.input("x", 1, 4, 7, 6, dtype=np.uint8), net.input("zero", dtype=np.uint8)
    limits = np.iinfo(dtype)
    shapes = [((8, 4, 3, 3), 1, {"pads": [1, 1, 1, 0]}), ((4, 1, 3, 3), 4, {"pads": [1] * 4}), ((5, 4, 1, 1), 1, {})]
    for at, (shape, group, attributes) in enumerate(shapes):
        data = rng().integers(limits.min, limits.max + 1, shape)
        data.reshape(-1)[:2] = limits.min, limits.max
        w_zero = rng().integers(limits.min // 2, limits.max, shape[0] if several else ())
        operands = (net.const(data, dtype), zero, net.const(w_zero, dtype))
        net.output(net.op("ConvInteger", x, *operands, out=f"y{at}", group=group, **attributes), dtype=np.int32)
    check_by_reference(net, {"zero": np.asarray(93, np.uint8)})
    kernels = {i.kernel for i in compile_model(net.model(), "nrf52840").program.instrs if i.macs}
    assert "conv_direct" not in kernels


def test_quantized_with_computed_weights():
    net = Net()
    x, w = net.input("x", 1, 2, 5, 6, dtype=np.uint8), net.input("w", 3, 2, 3, 3, dtype=np.uint8)
    params = [net.const(0.02), net.const(100, np.uint8), net.const(0.01), net.const(120, np.uint8)]
    y = net.op("QLinearConv", x, *params[:2], w, *params[2:], net.const(0.1), net.const(128, np.uint8), out="y")
    net.output(y, dtype=np.uint8)
    model = net.model()
    check_quantized(model)


def test_computed_bias():
    net = Net()
    x, bias = net.input("x", 1, 2, 4, 4), net.op("Relu", net.input("b", 3))
    net.output(net.op("Conv", x, net.const(rng().standard_normal((3, 2, 3, 3))), bias))
    check_everywhere(net.model())


@pytest.mark.parametrize(
    ("shape", "weights", "attributes"),
    [
        ((1, 2), (3, 2), {}),
        ((1, 2, 4, 4), (3, 2, 2), {}),
        ((1, 2, 2, 4, 4), (3, 3, 2, 2, 2), {}),
        ((1, 2, 4, 4), (3, 3, 2, 2), {}),
        ((1, 4, 4, 4), (3, 2, 2, 2), {"group": 2}),
        ((1, 2, 2, 2), (3, 2, 3, 3), {}),
        ((1, 2, 4, 4), (3, 2, 3, 3), {"strides": [0, 1]}),
        ((1, 2, 4, 4), (3, 2, 3, 3), {"pads": [1, 1]}),
        ((1, 2, 4, 4), (3, 2, 3, 3), {"pads": [1, 1, 1, -1]}),
        ((1, 2, 4, 4), (3, 2, 3, 3), {"pads": [1, 1, 1, 2**40], "strides": [1, 2**40]}),
        ((1, 2, 4, 4), (3, 2, 3, 3), {"group": 0}),
        ((1, 2, 4, 4), (3, 2, 3, 3), {"kernel_shape": [2, 2]}),
    ],
    ids=[
        "no spatial axes",
        "weights of fewer axes",
        "channels in space",
        "channels",
        "outputs not divisible by groups",
        "kernel larger than the input",
        "stride 0",
        "too few pads",
        "negative pads",
        "huge pads",
        "no groups",
        "kernel of another shape",
    ],
)
def test_inconsistent_convolutions_are_refused(
    shape: tuple[int, ...], weights: tuple[int, ...], attributes: dict[str, Any]
):
    net = Net()
    net.op("Conv", net.input("x", *shape), net.const(np.ones(weights)), out="y", **attributes)
    net.output("y", shape=(1, 1, 1, 1))
    with pytest.raises(McugenError) as error:
        optimized(net.plain_model())
    assert error.value.exit_code in (3, 4)


@pytest.mark.parametrize("board", ["rp2040", "nrf52840", "corstone300"])
def test_equal_layers_have_their_packed_constants_once(board: str):
    random = np.random.default_rng(0)
    weights, bias = random.integers(-90, 91, (8, 8, 3, 3)), random.normal(0, 0.3, 8)

    def constants(layers: int) -> int:
        net = Net()
        x = net.dequantize(net.input("x", 1, 8, 6, 5, dtype=np.int8), 0.05, -128)
        for _ in range(layers):
            real = net.dequantize(net.const(weights, np.int8), 0.01)
            x = net.fake(net.op("Relu", net.op("Conv", x, real, net.const(bias), pads=[1] * 4)), 0.05, -128)
        net.output(net.quantize(x, 0.05, -128, out="y"), dtype=np.int8)
        compiled = compile_model(net.model(), board)
        assert len({layer.kernel for layer in compiled.report.layers if layer.macs}) == 1
        return compiled.program.weights_size

    assert constants(3) == constants(1) > weights.size
