# SPDX-License-Identifier: Apache-2.0
"""Kernels for Helium: on this computer by their twins in plain C, under QEMU by vectors; both give numpy's bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_models import Net, assert_close, random_feeds

from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.simulation import Setup, simulate

# input shape, output channels, kernel, attributes
Case = tuple[tuple[int, ...], int, tuple[int, ...], dict[str, Any]]
SAME = {"pads": [1, 1, 1, 1]}
HALVED = {"strides": [2, 2], "pads": [0, 0, 1, 1]}

MATRICES: Sequence[Case] = (
    *(((1, depth, 3, 5), 8, (1, 1), {}) for depth in (1, 8, 15, 16, 17, 32, 48, 64, 80, 130)),
    *(((1, 16, 1, 3), channels, (1, 1), {}) for channels in range(1, 10)),
    *(((1, depth, 1, 1), 20, (1, 1), {}) for depth in (1, 15, 16, 31, 32, 64, 100, 128)),
    *(((1, 16, 1, 1), channels, (1, 1), {}) for channels in range(1, 19)),
    ((2, 5, 5, 3), 6, (1, 1), {}),
    ((2, 20, 5, 7), 7, (1, 1), {"strides": [2, 3]}),
)
WINDOWS: Sequence[Case] = (
    ((1, 16, 6, 6), 5, (3, 3), SAME),
    ((1, 32, 5, 8), 8, (3, 3), HALVED),
    ((1, 64, 4, 4), 4, (3, 3), SAME),
    ((2, 16, 3, 10), 6, (1, 3), {}),
    ((1, 3, 8, 7), 16, (3, 3), SAME),
    ((1, 3, 9, 9), 8, (3, 3), {"strides": [2, 2], "pads": [1, 1, 0, 0]}),
    ((1, 1, 21, 6), 10, (10, 4), {"strides": [2, 2], "pads": [4, 1, 5, 1]}),
    ((1, 1, 19, 3), 5, (18, 2), {}),
    ((1, 7, 9, 9), 9, (3, 2), {"dilations": [2, 2], "strides": [2, 1]}),
    ((2, 12, 6, 5), 10, (3, 3), SAME),
    ((1, 130, 3, 5), 3, (3, 3), SAME),
    ((1, 33, 5, 5), 3, (1, 3), {}),
    ((1, 4, 2, 2), 6, (5, 5), {"pads": [3, 3, 3, 3]}),
    ((1, 2, 3, 9), 4, (2, 2), {"strides": [3, 4]}),
)
DEPTHWISE: Sequence[Case] = (
    *(((1, 3, 4, width), 3, (3, 3), SAME) for width in range(1, 14)),
    *(((1, 3, height, 5), 3, (3, 3), SAME) for height in range(1, 8)),
    *(((1, 3, 5, width), 3, (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}) for width in range(1, 40, 3)),
    *(((1, channels, 3, 4), channels, (3, 3), SAME) for channels in (2, 8, 15, 16, 17, 33)),
    ((1, 20, 25, 5), 20, (3, 3), SAME),
    ((1, 5, 40, 2), 5, (3, 3), SAME),
    ((2, 10, 9, 9), 10, (3, 3), {}),
    ((2, 17, 7, 8), 17, (4, 4), {"strides": [2, 1], "pads": [0, 1, 1, 0]}),
    ((1, 12, 1, 9), 12, (1, 4), {}),
    ((1, 6, 1, 30), 6, (1, 3), {"dilations": [1, 5], "pads": [0, 2, 0, 2]}),
    ((1, 5, 7, 6), 5, (2, 3), {"pads": [2, 2, 2, 2]}),
)
WIDE_DEPTHWISE: Sequence[Case] = (
    ((2, 10, 9, 9), 10, (5, 5), {"pads": [2, 2, 2, 2]}),
    ((1, 20, 11, 7), 20, (7, 3), {"strides": [2, 1], "dilations": [1, 2], "pads": [3, 2, 3, 2]}),
    ((1, 3, 9, 9), 3, (7, 5), {"pads": [3, 2, 3, 2]}),
    ((1, 9, 1, 40), 9, (1, 9), {"pads": [0, 8, 0, 0]}),
)
FIVE = {"pads": [2, 2, 2, 2]}
LARGE_DEPTHWISE: Sequence[Case] = (
    *(((1, 3, 5, width), 3, (5, 5), FIVE) for width in range(1, 18)),
    *(((1, channels, 3, 4), channels, (5, 5), FIVE) for channels in (2, 8, 15, 16, 17, 33)),
    ((2, 10, 9, 9), 10, (7, 7), {}),
    ((1, 6, 12, 11), 6, (5, 5), {"strides": [2, 2], "pads": [1, 2, 2, 1]}),
    ((1, 6, 10, 23), 6, (8, 8), {"strides": [3, 2], "pads": [4, 3, 0, 4]}),
    ((1, 5, 6, 9), 5, (5, 3), FIVE),
    ((1, 5, 6, 9), 5, (2, 7), {"pads": [0, 3, 0, 3]}),
    ((1, 12, 1, 40), 12, (1, 8), {"pads": [0, 7, 0, 0]}),
)
ROW_DEPTHWISE: Sequence[Case] = (
    *(((1, 5, 1, width), 5, (1, 5), {"pads": [0, 2, 0, 2]}) for width in (1, 3, 4, 5, 8, 11, 12, 33)),
    *(((1, channels, 1, 9), channels, (1, 3), {"pads": [0, 1, 0, 1]}) for channels in (2, 15, 16, 17, 33)),
    ((1, 7, 1, 80), 7, (1, 16), {"pads": [0, 15, 0, 0]}),
    ((1, 6, 1, 170), 6, (1, 17), {"pads": [0, 8, 0, 8], "strides": [1, 2]}),
    ((1, 5, 1, 145), 5, (1, 32), {"pads": [0, 31, 0, 31], "dilations": [1, 2]}),
    ((1, 20, 250, 1), 20, (13, 1), {"pads": [12, 0, 0, 0], "dilations": [3, 1]}),
    ((1, 9, 1, 20), 9, (1, 3), {"pads": [0, 5, 0, 3], "dilations": [1, 4]}),
    ((2, 18, 3, 37), 18, (1, 4), {}),
    ((1, 4, 1, 630), 4, (1, 2), {"strides": [1, 7], "pads": [0, 1, 0, 3]}),
    ((1, 3, 1, 1), 3, (1, 9), {"pads": [0, 4, 0, 4]}),
    ((1, 3, 1, 100), 3, (1, 64), {"pads": [0, 20, 0, 20]}),
)
COLUMNS: Sequence[Case] = (
    *(((1, 16, 3, width), 6, (3, 3), SAME) for width in range(4, 10)),
    *(((2, 32, 5, width), 4, (3, 3), HALVED) for width in range(8, 12)),
    ((1, 48, 4, 4), 2, (3, 3), SAME),
    ((1, 80, 2, 5), 2, (3, 3), SAME),
    ((1, 16, 9, 6), 8, (3, 3), {"dilations": [2, 1], "pads": [0, 1, 3, 1]}),
    ((1, 32, 8, 7), 4, (3, 3), {"strides": [3, 1]}),
)
EIGHT: Sequence[Case] = (
    *(((1, 8, 1, width), 6, (1, 1), {}) for width in range(4, 10)),
    *(((1, 8, 2, 3), channels, (1, 1), {}) for channels in (2, 4, 8, 10)),
    ((3, 8, 3, 1), 4, (1, 1), {}),
)
NARROWING: Sequence[Case] = (
    *(((2, 20, 3, width), 20, (1, 1), {}) for width in range(1, 12)),
    *(((1, depth, 1, 3), 7, (1, 1), {}) for depth in (7, 8, 16, 33, 64, 130)),
)
GROUPED: Sequence[Case] = (
    ((1, 48, 4, 5), 48, (1, 1), {"group": 3}),
    ((1, 20, 3, 3), 30, (1, 1), {"group": 5}),
    ((2, 34, 5, 5), 6, (1, 1), {"group": 2, "strides": [2, 1]}),
    ((1, 80, 1, 3), 8, (1, 1), {"group": 2}),
    ((1, 64, 5, 4), 12, (3, 3), {"group": 4, **SAME}),
    ((1, 12, 7, 6), 18, (3, 2), {"group": 6, "dilations": [2, 2]}),
    ((2, 40, 5, 6), 8, (3, 3), {"group": 2, **HALVED}),
    ((1, 4, 9, 3), 8, (3, 3), {"group": 2, **SAME}),
    ((1, 6, 1, 20), 3, (1, 5), {"group": 3, "pads": [0, 2, 0, 2]}),
)
KERNELS: dict[str, Sequence[Case]] = {
    "conv2d_s8_mve": [*MATRICES[:19], *MATRICES[-2:], *WINDOWS, *GROUPED],
    "conv2d_s8_mve_8": EIGHT,
    "conv2d_s8_mve_columns": COLUMNS,
    "conv2d_s8_mve_inplace": NARROWING,
    "dense_s8_mve": MATRICES[19:-2],
    "depthwise_s8_mve_4x4": DEPTHWISE,
    "depthwise_s8_mve_8x8": [*LARGE_DEPTHWISE, *DEPTHWISE[-9:-2]],
    "depthwise_s8_mve_row": [*ROW_DEPTHWISE, DEPTHWISE[-2], WIDE_DEPTHWISE[-1]],
    "depthwise_s8_mve": [*WIDE_DEPTHWISE, *DEPTHWISE[-12:]],
}

FOUR_BITS: dict[str, Sequence[Case]] = {
    "depthwise_s4_mve_4x4": DEPTHWISE[1::3],
    "depthwise_s4_mve_8x8": LARGE_DEPTHWISE[1::3],
    "depthwise_s4_mve_row": ROW_DEPTHWISE[2::3],
    "depthwise_s4_mve": [*WIDE_DEPTHWISE, *DEPTHWISE[-12::4]],
}


def add_layer(
    net: Net,
    name: str,
    case: Case,
    seed: int,
    relu: bool = False,
    spread: float = 1.0,
    bits: int = 8,
    result: type = np.int8,
) -> None:
    """A layer with random weights, bias, zero points and scales; `spread` stretches what is not clamped."""
    shape, channels, kernel, attributes = case
    random = np.random.default_rng(seed)
    x = net.dequantize(net.input(f"x{name}", *shape, dtype=np.int8), 0.05, int(random.integers(-128, 128)))
    depth = shape[1] // attributes.get("group", 1)
    codes = random.integers(-127, 128, (channels, depth, *kernel)) >> 8 - bits
    scales = random.uniform(0.002, 0.02, channels).astype(np.float32) * 2 ** (8 - bits)
    w = net.op("DequantizeLinear", net.const(codes, np.int8), net.const(scales), net.const(0 * scales, np.int8), axis=0)
    steps = net.const(random.integers(-3000, 3000, channels), np.int32)
    zeros = net.const([0] * channels, np.int32)
    bias = net.op("DequantizeLinear", steps, net.const(np.float32(0.05) * scales), zeros, axis=0)
    y = net.op("Conv", x, w, bias, **attributes)
    size = 0.05 * 0.011 * 75 * 75 * np.sqrt(depth * np.prod(kernel))
    y = net.op("Clip", y, net.const(0.0), net.const(size)) if relu else y
    zero = int(random.integers(-128, 128)) if result is np.int8 else 0
    net.output(net.quantize(y, float(size / 50 / spread), zero, result, out=name), dtype=result)


def compiled(model: onnx.ModelProto, kernel: str) -> CompiledModel:
    """For Helium, every layer by that kernel."""
    found = compile_model(model, "corstone300", CompileOptions(name="net", kernels=(kernel,)))
    assert {i.kernel for i in found.program.instrs if i.macs} == {kernel}
    return found


def by_twins(model: CompiledModel, feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """What the plain C of the same folder gives on this computer, under the sanitizers."""
    return simulate(model.bundle, load_board("host"), [feeds], setup=Setup(sanitize=True)).outputs[0]


def with_groups(case: Case, depthwise: bool) -> Case:
    shape, channels, kernel, attributes = case
    return (shape, channels, kernel, {"group": channels, **attributes} if depthwise else attributes)


def layers_of(kernel: str) -> Net:
    """All its cases, some of them clamped, one stretched so that sums are shifted."""
    net, bits = Net(), 4 if kernel in FOUR_BITS else 8
    for number, case in enumerate((KERNELS | FOUR_BITS)[kernel]):
        spread = 3000.0 if number % 7 == 3 else 1.0
        add_layer(net, f"y{number}", with_groups(case, "depthwise" in kernel), number, number % 3 == 1, spread, bits)
    return net


@pytest.mark.spread(11)
@pytest.mark.parametrize("kernel", [*KERNELS, *FOUR_BITS])
def test_twins(kernel: str) -> None:
    model = compiled(layers_of(kernel).model(), kernel)
    feeds = random_feeds(model.model)
    assert_close(by_twins(model, feeds), interpret(model.graph, feeds))


@pytest.mark.spread(11)
@pytest.mark.qemu
@pytest.mark.parametrize("kernel", [*KERNELS, *FOUR_BITS])
def test_vectors(kernel: str) -> None:
    model = compiled(layers_of(kernel).model(), kernel)
    feeds = random_feeds(model.model)
    (found,) = model.simulate([feeds], measure=False).outputs
    assert_close(found, interpret(model.graph, feeds))


@pytest.mark.spread(4)
@pytest.mark.qemu
@pytest.mark.parametrize("bits", [4, 8])
def test_results_of_16_bits(bits: int) -> None:
    """Of windows that are read from strips or gathered, in groups too: shifted on, and shifted before they are
    multiplied.
    """
    net, kernel = Net(), f"conv2d_s{bits}_mve"
    for number, case in enumerate([*KERNELS["conv2d_s8_mve"], ((1, 8, 6, 5), 12, (3, 3), {"group": 2})]):
        add_layer(net, f"y{number}", case, number, number % 3 == 1, 3000.0 if number % 2 else 100.0, bits, np.int16)
    model = compiled(net.model(), kernel)
    feeds = random_feeds(model.model)
    expected = interpret(model.graph, feeds)
    assert any(np.abs(y).max() > 127 for y in expected.values())
    assert_close(by_twins(model, feeds), expected)
    (found,) = model.simulate([feeds], measure=False).outputs
    assert_close(found, expected)


EXTREMES = (-128, -1, 0, 127)


@pytest.mark.spread(4)
@pytest.mark.qemu
@pytest.mark.parametrize("kernel", KERNELS)
def test_extreme_inputs(kernel: str) -> None:
    """All inputs alike, so that every sum is as large as it can be; the same bits by twins and by vectors."""
    model = compiled(layers_of(kernel).model(), kernel)
    samples = [
        {name: np.full_like(array, value) for name, array in random_feeds(model.model).items()} for value in EXTREMES
    ]
    found = model.simulate(samples, measure=False).outputs
    for sample, outputs in zip(samples, found, strict=True):
        assert_close(outputs, interpret(model.graph, sample))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A convolution of any small shape."""

    def pair(low: int, high: int) -> tuple[int, int]:
        return draw(st.integers(low, high)), draw(st.integers(low, high))

    depthwise = draw(st.booleans())
    channels = draw(st.integers(2 if depthwise else 1, 20))
    kernel, strides, dilations, before, after = pair(1, 5), pair(1, 3), pair(1, 2), pair(0, 2), pair(0, 2)
    least = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    space = [draw(st.integers(max(1, n - b - a), 12)) for n, b, a in zip(least, before, after, strict=True)]
    attributes = {"strides": strides, "dilations": dilations, "pads": [*before, *after]}
    if depthwise:
        return (1, channels, *space), channels, kernel, attributes | {"group": channels}
    groups = draw(st.sampled_from([n for n in range(1, channels) if channels % n == 0] or [1]))
    shape, each = (draw(st.integers(1, 2)), channels, *space), draw(st.integers(1, 9))
    return shape, groups * each, kernel, attributes | {"group": groups}


ALWAYS: Sequence[Case] = (
    MATRICES[0],
    with_groups(DEPTHWISE[0], True),
    with_groups(LARGE_DEPTHWISE[0], True),
    with_groups(WIDE_DEPTHWISE[1], True),
)
"""A layer for every kernel that is wanted."""


def any_layers(layers: Sequence[Case], seed: int) -> CompiledModel:
    net = Net()
    for number, case in enumerate([*ALWAYS, *layers]):
        add_layer(net, f"y{number}", case, seed + number, bool(number % 2))
    kernels = ("conv2d_s8_mve", "depthwise_s8_mve_4x4", "depthwise_s8_mve_8x8", "depthwise_s8_mve")
    model = compile_model(net.model(), "corstone300", CompileOptions(name="net", kernels=kernels))
    assert {i.kernel for i in model.program.instrs if i.macs} == set(kernels)
    return model


@settings(max_examples=4, deadline=None, derandomize=True)
@given(st.lists(cases(), min_size=8, max_size=8), st.integers(0, 2**16))
def test_twins_on_any_shape(layers: list[Case], seed: int) -> None:
    model = any_layers(layers, seed)
    feeds = random_feeds(model.model, seed)
    assert_close(by_twins(model, feeds), interpret(model.graph, feeds))


@pytest.mark.qemu
@settings(max_examples=4, deadline=None, derandomize=True)
@given(st.lists(cases(), min_size=12, max_size=12), st.integers(0, 2**16))
def test_vectors_on_any_shape(layers: list[Case], seed: int) -> None:
    model = any_layers(layers, seed)
    feeds = random_feeds(model.model, seed)
    (found,) = model.simulate([feeds], measure=False).outputs
    assert_close(found, interpret(model.graph, feeds))
