# SPDX-License-Identifier: Apache-2.0
"""Transposed convolution and Col2Im: onnxruntime, numpy and C agree over windows, groups and output sizes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from checks import Cases, check_by_reference, check_c, check_model
from onnx_models import Net, check_quantized, imported, numpy_outputs, operators, optimized, random_feeds
from shared_models import roomy

from mcugen.core.errors import McugenError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model

# (input shape, output channels of a group, kernel, attributes)
CASES: list[tuple[tuple[int, ...], int, tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 4, 5), 2, (3, 3), {}),
    ((2, 3, 4, 5), 2, (2, 2), {"strides": [2, 2]}),
    ((1, 2, 4, 3), 3, (4, 3), {"strides": [2, 1], "pads": [1, 0, 1, 2]}),
    ((1, 4, 3, 4), 2, (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 0], "group": 2}),
    ((1, 3, 4, 4), 1, (3, 2), {"group": 3, "dilations": [2, 3]}),
    ((1, 2, 3, 3), 2, (2, 2), {"strides": [3, 3], "dilations": [2, 1]}),
    ((1, 2, 3, 4), 2, (3, 3), {"strides": [3, 2], "output_shape": [10, 8]}),
    ((1, 2, 4, 4), 2, (4, 4), {"strides": [2, 2], "output_shape": [7, 8], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 3, 4), 2, (3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 3, 4), 2, (3, 4), {"strides": [2, 3], "auto_pad": "SAME_LOWER"}),
    ((1, 2, 3, 3), 2, (3, 3), {"pads": [2, 2, 2, 2]}),
    ((2, 2, 5), 3, (4,), {"strides": [2], "pads": [1, 0]}),
    ((1, 2, 3, 2, 3), 2, (2, 3, 2), {"strides": [2, 1, 2], "pads": [0, 1, 0, 1, 0, 1]}),
]


def is_turned(attributes: dict[str, Any]) -> bool:
    """Whether it is a convolution by the kernel turned around, if its weights are known."""
    return max(attributes.get("strides", [1])) == 1


@pytest.mark.parametrize("computed", [False, True])
def test_windows(computed: bool):
    net = Net()
    random = np.random.default_rng(3)
    for number, (shape, channels, kernel, attributes) in enumerate(CASES):
        size = (shape[1], channels, *kernel)
        x = net.input(f"x{number}", *shape)
        w = net.input(f"w{number}", *size) if computed else net.const(random.standard_normal(size))
        bias = [net.const(random.standard_normal(channels * attributes.get("group", 1)))] if number % 2 else []
        y = net.op("ConvTranspose", x, w, *bias, out=f"y{number}", **attributes)
        net.output(net.op("Clip", y, net.const(-0.5), net.const(2.0), out=f"z{number}") if number < 2 else y)
    model = net.model()
    found = Counter(operators(optimized(model)))
    turned = 0 if computed else sum(is_turned(attributes) for *_, attributes in CASES)
    assert (found["conv_transpose"], found["conv"]) == (len(CASES) - turned, turned)  # with their clamps
    assert found.keys() <= {"conv_transpose", "conv", "transpose", "reshape"}
    check_model(model, random_feeds(model))


@pytest.mark.spread(6)
@pytest.mark.parametrize("dtype", [np.int8, np.int16])
@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
def test_codes(per_channel: bool, dtype: type):
    """Every window of one or two axes, and enough channels for blocks of four and a rest."""
    net = Net(21)
    random = np.random.default_rng(3)
    unit, zeros = (1, (7, -9)) if dtype is np.int8 else (2**-8, (0, 0))
    for number, (shape, channels, kernel, attributes) in enumerate(c for c in CASES if len(c[0]) < 5):
        channels += 4 * (number % 3)
        groups = attributes.get("group", 1)
        x = net.dequantize(net.input(f"x{number}", *shape, dtype=dtype), 0.05 * unit, zeros[0], dtype)
        scales = random.uniform(0.005, 0.02, channels if per_channel else ()).astype(np.float32)
        codes = net.const(random.integers(-127, 128, (shape[1], channels, *kernel)), np.int8)
        symmetric = net.const(np.zeros(scales.shape), np.int8)
        w = net.op("DequantizeLinear", codes, net.const(scales), symmetric, axis=1)
        bias = [net.const(random.standard_normal(channels * groups))] if number % 2 else []
        y = net.op("ConvTranspose", x, w, *bias, **attributes)
        y = net.op("Relu", y) if number < 2 else y
        net.output(net.quantize(y, 0.1013 * unit, zeros[1], dtype, out=f"y{number}"), dtype=dtype)
    model = net.model()
    assert set(operators(optimized(model))) == {"conv_transpose", "conv", "transpose", "reshape"}
    check_quantized(model, share=0.02)
    check_c(compile_model(model), random_feeds(model), numpy_outputs(model, random_feeds(model)))


PHASES = [
    ("conv_transpose_s8_dsp", "nrf52840", "balanced"),
    ("conv_transpose_s8_dsp", "rt1060", "speed"),  # for which a Cortex-M7 has loops of its own
    ("conv_transpose_s8_mve", "corstone300", "balanced"),
    ("conv_transpose_s8_thumb1", "rp2040", "balanced"),
]
# (input shape, output channels, kernel, attributes)
BY_PHASES: list[tuple[tuple[int, ...], int, tuple[int, ...], dict[str, Any]]] = [
    *(case for case in CASES if len(case[0]) < 5 and "group" not in case[3] and not is_turned(case[3])),
    ((1, 8, 3, 4), 3, (2, 2), {"strides": [2, 2]}),
    ((2, 16, 3, 3), 8, (2, 2), {"strides": [2, 2]}),
    ((1, 20, 3, 5), 5, (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    ((1, 24, 2, 3), 4, (4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((1, 7, 4, 9), 6, (1, 1), {"strides": [3, 2]}),
    ((1, 24, 1, 40), 2, (3, 4), {"strides": [1, 4], "pads": [1, 2, 1, 0]}),
    ((1, 12, 19), 4, (8,), {"strides": [4], "pads": [2, 2]}),
]


def _by_phases() -> Net:
    net, random = Net(21), np.random.default_rng(7)
    for number, (shape, out, kernel, attributes) in enumerate(BY_PHASES):
        x = net.dequantize(net.input(f"x{number}", *shape, dtype=np.int8), 0.05, (3, -128, 127)[number % 3])
        codes = net.const(random.integers(-127, 128, (shape[1], out, *kernel)), np.int8)
        scales = random.uniform(0.005, 0.02, out).astype(np.float32)
        w = net.op("DequantizeLinear", codes, net.const(scales), net.const(0 * scales, np.int8), axis=1)
        y = net.op("ConvTranspose", x, w, net.const(random.standard_normal(out)), **attributes)
        y = net.op("Relu", y) if number % 4 == 1 else y
        net.output(net.quantize(y, (0.7013, 1.3, 4.0)[number % 3], -9, out=f"y{number}"), dtype=np.int8)
    return net


@pytest.mark.spread(6)
@pytest.mark.parametrize(("kernel", "target", "goal"), PHASES)
@pytest.mark.parametrize("host", [True, pytest.param(False, marks=pytest.mark.qemu)], ids=["twin", "assembly"])
def test_phases(kernel: str, target: str, goal: str, host: bool):
    """Rows as products of windows and parts of the kernel: the same bits, in plain C under the sanitizers and not."""
    model, board = _by_phases().model(), roomy(target)
    board = replace(board, qemu="") if host else board
    compiled = compile_model(model, board, CompileOptions(kernels=(kernel,), optimize=goal))
    assert [i.kernel for i in compiled.program.instrs if i.macs] == [kernel] * len(BY_PHASES)
    feeds = random_feeds(model)
    (found,) = compiled.simulate([feeds], measure=False, sanitize=host).outputs
    for name, wanted in numpy_outputs(model, feeds).items():
        np.testing.assert_array_equal(found[name].reshape(wanted.shape), wanted, err_msg=name)


GROUPED = [
    (16, 2, 8, (1, 5), (1, 2)),
    (12, 4, 5, (3, 3), (2, 2)),
    (6, 3, 3, (2, 4), (2, 1)),
    (16, 16, 1, (3, 3), (2, 2)),
]
"""Channels, groups, output channels of a group, kernel, stride."""


@pytest.mark.parametrize(
    ("board", "kernel", "goal"), [("corstone300", "mve", "balanced"), ("nrf52840", "dsp", "speed")]
)
@pytest.mark.parametrize("host", [True, pytest.param(False, marks=pytest.mark.qemu)], ids=["twin", "assembly"])
def test_few_groups_are_one_with_zeros_between_them(host: bool, board: str, kernel: str, goal: str):
    """On Helium and with the DSP extension; many groups stay loops."""
    net, random = Net(21), np.random.default_rng(3)
    for number, (channels, groups, out, size, stride) in enumerate(GROUPED):
        x = net.dequantize(net.input(f"x{number}", 1, channels, 5, 9, dtype=np.int8), 0.05, 3)
        codes = net.const(random.integers(-127, 128, (channels, out, *size)), np.int8)
        bias = net.const(random.standard_normal(out * groups))
        y = net.op("ConvTranspose", x, net.dequantize(codes, 0.01), bias, strides=list(stride), group=groups)
        net.output(net.quantize(y, 0.7, -9, out=f"y{number}"), dtype=np.int8)
    model, target = net.model(), roomy(board)
    options = CompileOptions(optimize=goal)
    compiled = compile_model(model, replace(target, qemu="") if host else target, options)
    kernels = {i.name: i.kernel for i in compiled.program.instrs if i.macs}
    few = dict.fromkeys(["y0", "y1", "y2"], f"conv_transpose_s8_{kernel}")
    assert kernels == {**few, "y3": "conv_transpose_int"}
    feeds = random_feeds(model)
    (found,) = compiled.simulate([feeds], measure=False, sanitize=host).outputs
    for name, wanted in numpy_outputs(model, feeds).items():
        np.testing.assert_array_equal(found[name].reshape(wanted.shape), wanted, err_msg=name)


def test_upsampling_between_convolutions_stays_channels_last():
    net = Net()
    random = np.random.default_rng(3)

    def layer(op_type: str, x: str, size: tuple[int, ...], **attributes: Any) -> str:
        w = net.dequantize(net.const(random.integers(-127, 128, size), np.int8), 0.01)
        return net.fake(net.op(op_type, x, w, **attributes), 0.2, 3)

    y = layer("Conv", net.dequantize(net.input("x", 1, 4, 6, 6, dtype=np.int8), 0.05, 7), (6, 4, 3, 3))
    y = layer("ConvTranspose", y, (6, 5, 2, 2), strides=[2, 2])
    y = layer("Conv", y, (4, 5, 3, 3))
    net.output(net.quantize(y, 0.2, 3, out="y"), dtype=np.int8)
    assert operators(optimized(net.model())) == ["transpose", "conv", "conv_transpose", "conv", "transpose"]


def test_float64():
    net = Net(22)
    x, w = net.input("x", 1, 2, 4, 5, dtype=np.float64), net.input("w", 2, 3, 3, 2, dtype=np.float64)
    net.output(net.op("ConvTranspose", x, w, out="y", strides=[2, 1]), dtype=np.float64)
    check_by_reference(net, relative=1e-12)


def test_col2im():
    cases = Cases()
    for image, block, attributes in (
        ([5, 5], [1, 5], {}),
        ([6, 5], [3, 2], {"strides": [2, 1], "pads": [1, 0, 0, 1]}),
        ([6, 6], [2, 2], {"dilations": [2, 3], "pads": [1, 1, 1, 1]}),
        ([7], [3], {"strides": [2]}),
        ([4, 3, 5], [2, 2, 3], {"pads": [1, 0, 1, 0, 0, 1]}),
    ):
        rank = len(image)
        row = {key: attributes.get(key, [n] * rank) for key, n in (("strides", 1), ("dilations", 1))}
        pads = attributes.get("pads", [0] * 2 * rank)
        positions = [
            (n + pads[a] + pads[a + rank] - d * (k - 1) - 1) // s + 1
            for a, (n, k, s, d) in enumerate(zip(image, block, row["strides"], row["dilations"], strict=True))
        ]
        shape = (2, 3 * int(np.prod(block)), int(np.prod(positions)))
        cases.add("Col2Im", shape, np.asarray(image), np.asarray(block), **attributes)
    cases.check_float()


@pytest.mark.parametrize(
    ("op_type", "shapes", "attributes"),
    [
        ("ConvTranspose", ((1, 2, 4), (3, 2, 2)), {}),
        ("ConvTranspose", ((1, 2, 4), (2, 2, 2, 2)), {}),
        ("ConvTranspose", ((1, 2), (2, 2)), {}),
        ("ConvTranspose", ((1, 2, 4), (2, 2, 2)), {"group": 3}),
        ("ConvTranspose", ((1, 2, 4), (2, 2, 2)), {"group": 0}),
        ("ConvTranspose", ((1, 2, 4), (2, 2, 2), (3,)), {}),
        ("ConvTranspose", ((1, 2, 4), (2, 2, 2)), {"pads": [9, 9]}),
        ("ConvTranspose", ((1, 2, 4), (2, 2, 2)), {"pads": [1]}),
        ("ConvTranspose", ((1, 2, 4), (2, 2, 2)), {"strides": [0]}),
        ("ConvTranspose", ((1, 2, 4), (2, 2, 2)), {"strides": [2**40]}),
        ("ConvTranspose", ((1, 2, 4), (2, 2, 2)), {"output_shape": [-1]}),
        ("ConvTranspose", ((1, 2, 4), (2, 2, 2)), {"kernel_shape": [3]}),
        ("Col2Im", ((1, 4, 4), [5, 5], [2, 2]), {}),
        ("Col2Im", ((1, 5, 4), [3, 3], [2, 2]), {}),
        ("Col2Im", ((1, 4, 4), [3, 3], [2, 2]), {"strides": [0, 1]}),
        ("Col2Im", ((1, 4, 4), [3, 3], [0, 2]), {}),
        ("Col2Im", ((1, 4, 4), [3], [2, 2]), {}),
    ],
)
def test_what_cannot_be_right(op_type: str, shapes: tuple[Any, ...], attributes: dict[str, Any]):
    net = Net(20)
    x = net.input("x", *shapes[0])
    rest = [net.const(np.ones(s)) if isinstance(s, tuple) else net.const(s, np.int64) for s in shapes[1:]]
    net.op(op_type, x, *rest, out="y", **attributes)
    net.output("y", shape=(1, 1, 1))
    with pytest.raises(McugenError) as error:
        imported(net.plain_model())
    assert error.value.exit_code in (3, 4)
