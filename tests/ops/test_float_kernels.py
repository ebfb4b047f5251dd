# SPDX-License-Identifier: Apache-2.0
"""float32 kernels in register blocks: every remainder, on every CPU with an FPU, and their plain C on this computer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from checks import check_c
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_models import Feeds, Net, assert_close, numpy_outputs, random_feeds

from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.lir.kernel import HALF_SEPARATE_SUMS, SEPARATE_SUMS
from mcugen.lir.spec import own_kernels

BOARDS = ["nrf52840", "rt1060", "nrf5340", "corstone300"]
HELIUM = "corstone300"
BLOCKED = ("conv2d_f32_fpu", "dense_f32_fpu")
CLAMPS: dict[str, tuple[float | None, float | None]] = {
    "": (None, None),
    "relu": (0.0, None),
    "relu6": (0.0, 6.0),
    "low": (-0.5, None),
    "high": (None, 1.25),
    "band": (-1.0, 0.5),
}


class Layers:
    """A model of independent layers with random weights: layer i reads x{i} and gives y{i}."""

    def __init__(self) -> None:
        self.net = Net()
        self.random = np.random.default_rng(5)
        self.count = 0

    def conv(
        self,
        x: tuple[int, ...],
        channels: int,
        *kernel: int,
        strides: tuple[int, ...] | None = None,
        pads: tuple[int, ...] | None = None,
        dilations: tuple[int, ...] | None = None,
        group: int = 1,
        clamp: str = "",
    ) -> None:
        """A convolution of x [N, C, *space]."""
        given = {"strides": strides, "pads": pads, "dilations": dilations, "group": group}
        weights = self.constant(channels, x[1] // group, *kernel)
        attributes = {key: value for key, value in given.items() if value is not None}
        self.clamped(self.net.op("Conv", self.input(*x), weights, self.constant(channels), **attributes), clamp)

    def depthwise(self, x: tuple[int, ...], *kernel: int, clamp: str = "", **attributes: tuple[int, ...]) -> None:
        """A convolution with one filter a channel."""
        self.conv(x, x[1], *kernel, group=x[1], clamp=clamp, **attributes)

    def dense(self, rows: int, depth: int, channels: int, clamp: str = "") -> None:
        """A fully connected layer."""
        product = self.net.op("MatMul", self.input(rows, depth), self.constant(depth, channels))
        self.clamped(self.net.op("Add", product, self.constant(channels)), clamp)

    def matmul(self, batch: int, rows: int, depth: int, columns: int, factor: float = 1.0) -> None:
        """A product of two activations."""
        a, b = self.input(batch, rows, depth), self.net.input(f"b{self.count}", batch, depth, columns)
        product = self.net.op("MatMul", a, b)
        self.clamped(self.net.op("Mul", product, self.net.const(factor)) if factor != 1.0 else product, "")

    def recurrent(self, op_type: str, gates: int, depth: int, hidden: int, steps: int = 3) -> None:
        """An LSTM, GRU or RNN of one direction."""
        x = self.input(steps, 1, depth)
        w, r = self.constant(1, gates * hidden, depth), self.constant(1, gates * hidden, hidden)
        bias = self.constant(1, 2 * gates * hidden)
        self.clamped(self.net.op(op_type, x, w, r, bias, hidden_size=hidden), "")

    def input(self, *shape: int) -> str:
        """The layer's input."""
        return self.net.input(f"x{self.count}", *shape)

    def constant(self, *shape: int) -> str:
        """Random weights or biases."""
        return self.net.const(self.random.standard_normal(shape).astype(np.float32))

    def clamped(self, result: str, clamp: str) -> None:
        """Ends the layer."""
        name, (low, high) = f"y{self.count}", CLAMPS[clamp]
        limits = ["" if v is None else self.net.const(v) for v in (low, high)]
        self.net.output(self.net.op(*(("Clip", result, *limits) if clamp else ("Identity", result)), out=name))
        self.count += 1

    def compile(self, board: str, *kernels: str, goal: str = "balanced") -> CompiledModel:
        """With those kernels wherever they fit."""
        return compile_model(self.net.model(), board, CompileOptions(kernels=kernels, optimize=goal))


def check_on(board: str, layers: Layers, *kernels: str, feeds: Feeds | None = None, goal: str = "balanced") -> None:
    """The C on the board's CPU gives what numpy gives."""
    model = layers.net.model()
    feeds = random_feeds(model) if feeds is None else feeds
    found = layers.compile(board, *kernels, goal=goal).simulate([feeds], measure=False).outputs[0]
    assert_close(found, numpy_outputs(model, feeds), 2e-5)


def check_plain(board: str, layers: Layers, *kernels: str) -> None:
    """The same folder on this computer, under the sanitizers and without warnings."""
    model = layers.net.model()
    feeds = random_feeds(model)
    compiled = replace(layers.compile(board, *kernels), board=load_board("host"))
    check_c(compiled, feeds, numpy_outputs(model, feeds), 2e-5)


def windows() -> Layers:
    """Convolutions: remainders of pixels, channels and depth; all kinds of windows."""
    layers = Layers()
    for size, channels in ((1, 5), (2, 4), (3, 1), (4, 2), (5, 3), (6, 8), (7, 7)):
        layers.conv((1, 3, size, size), channels, 3, 3, pads=(1, 1, 1, 1), clamp="relu")
    for depth in (1, 2, 5, 8, 12, 19):
        layers.conv((1, depth, 3, 3), 6, 1, 1)
    layers.conv((1, 1, 9, 7), 12, 5, 4, strides=(2, 2), pads=(2, 1, 2, 2), clamp="relu6")
    layers.conv((1, 4, 8, 9), 8, 3, 3, strides=(2, 3), pads=(0, 1, 1, 0))
    layers.conv((1, 5, 9, 9), 4, 3, 3, dilations=(2, 3), pads=(2, 3, 2, 3), clamp="low")
    layers.conv((1, 6, 5, 7), 9, 1, 1, strides=(2, 2), clamp="high")
    layers.conv((2, 3, 5, 4), 4, 3, 3, pads=(1, 1, 1, 1), clamp="band")
    layers.conv((2, 7, 3, 3), 5, 1, 1, clamp="relu")
    layers.conv((1, 2, 2, 2), 3, 5, 5, pads=(3, 3, 3, 3))
    layers.conv((1, 3, 4, 5), 6, 4, 5)  # one pixel of the whole input
    layers.conv((2, 3, 11), 5, 4, strides=(3,), dilations=(2,), pads=(1, 2))
    return layers


def borders() -> Layers:
    """Windows over all borders: of few and many channels, of outputs in one row or two, wholly outside, with gaps."""
    layers = Layers()
    for depth in (1, 4, 5, 9):
        layers.conv((1, depth, 7, 12), 4, 3, 3, pads=(1, 1, 1, 1))
        layers.conv((1, depth, 4, 7), 5, 5, 5, pads=(2, 2, 2, 2), clamp="relu")
        layers.conv((1, depth, 2, 12), 4, 2, 3, pads=(3, 0, 4, 0))
        layers.conv((1, depth, 3, 4), 3, 2, 2, pads=(4, 3, 3, 4))
        layers.conv((1, depth, 6, 13), 4, 3, 3, dilations=(2, 1), pads=(4, 1, 1, 2))
        layers.conv((1, depth, 6, 9), 4, 2, 3, strides=(1, 2), dilations=(1, 3), pads=(1, 4, 1, 3))
    return layers


def matrices() -> Layers:
    """Fully connected and recurrent layers, products of activations."""
    layers = Layers()
    for channels in range(1, 10):
        layers.dense(1, 5 + channels, channels, list(CLAMPS)[channels % len(CLAMPS)])
    for rows in range(2, 9):
        layers.dense(rows, 17, 12, "relu")
    layers.dense(5, 3, 7, "relu6")
    for columns in range(1, 18, 3):
        layers.matmul(2, 3, 4 + columns, columns, 0.25 if columns % 2 else 1.0)
    for hidden in (1, 3, 4, 9):
        layers.recurrent("LSTM", 4, 5, hidden)
        layers.recurrent("GRU", 3, 8, hidden)
        layers.recurrent("RNN", 1, 11, hidden)
    return layers


def depthwise() -> Layers:
    """Depthwise convolutions of all widths, heights of kernels, strides and remainders of channels."""
    layers = Layers()
    for width, channels in enumerate((4, 3, 5, 8, 2, 7, 16, 23, 36), 1):
        layers.depthwise((1, channels, 5, width), 3, 3, pads=(1, 1, 1, 1), clamp="relu")
    for stride in (2, 3):
        layers.depthwise((1, 20, 8, 9), 3, 3, strides=(stride, stride), pads=(0, 1, 1, 1), clamp="relu6")
    layers.depthwise((1, 4, 7, 9), 5, 5, pads=(2, 2, 2, 2), clamp="band")
    layers.depthwise((1, 6, 9, 9), 7, 6, pads=(3, 3, 3, 3))
    layers.depthwise((2, 5, 9, 8), 2, 4, dilations=(3, 2), pads=(1, 2, 1, 2), clamp="low")
    layers.depthwise((1, 9, 12), 5, strides=(2,), pads=(2, 2), clamp="high")
    layers.depthwise((1, 3, 6, 1), 4, 1)
    return layers


@pytest.mark.spread(6)
@pytest.mark.qemu
@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("layers", [windows, matrices])
def test_blocks_on_every_cpu(board: str, layers):
    built = layers()
    used = {instr.kernel for instr in built.compile(board, *BLOCKED[layers is matrices :]).program.instrs}
    assert used & set(BLOCKED)
    check_on(board, built, *BLOCKED[layers is matrices :], goal="speed")  # for which M4 and M33 have loops of their own


@pytest.mark.qemu
@pytest.mark.parametrize("board", BOARDS)
def test_windows_over_borders(board: str):
    check_on(board, borders(), "conv2d_f32_fpu")


def test_windows_over_borders_in_plain_c():
    check_plain(HELIUM, borders(), "conv2d_f32_fpu")


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("board", "depth", "most"),
    [("nrf52840", 1, 1.25), ("rt1060", 1, 1.25), (HELIUM, 1, 1.4), (HELIUM, 8, 1.05)],
)
def test_borders_cost_little(board: str, depth: int, most: float):
    """Beside an image that holds the padding."""

    def instructions(pad: int) -> int:
        layers = Layers()
        layers.conv((1, depth, 28 - 2 * pad, 28 - 2 * pad), 8, 5, 5, pads=(pad,) * 4)
        feeds = [random_feeds(layers.net.model())]
        found = layers.compile(board, "conv2d_f32_fpu").simulate(feeds).instructions
        assert found is not None
        return found

    assert instructions(2) < most * instructions(0)


@pytest.mark.parametrize(
    ("x", "kernel", "pad", "wanted"),
    [
        ((1, 1, 28, 28), 5, 2, 2 * 28),  # the first and the last group of each row
        ((1, 1, 32, 32), 5, 0, 0),
        ((2, 8, 9, 9), 3, 1, 2 * 11),  # of nine groups in four rows five, and the first of the last row
        ((1, 8, 9, 9), 1, 0, 0),  # read where they lie
    ],
)
def test_groups_gathered_apart(x: tuple[int, ...], kernel: int, pad: int, wanted: int):
    layers = Layers()
    layers.conv(x, 4, kernel, kernel, pads=(pad,) * 4)
    (node,) = [node for node in layers.compile(BOARDS[0]).graph.nodes if node.op.macs(node.sig)]
    (found,) = [kernel for kernel in own_kernels(node.op) if kernel.name == "conv2d_f32_fpu"]
    assert found.extra_of(node) == wanted


@pytest.mark.qemu
def test_estimates_know_of_borders():
    """Small images, which have most of them."""
    layers = Layers()
    for size, depth, window in ((6, 8, 3), (10, 4, 5), (7, 24, 3), (28, 1, 5), (14, 8, 3)):
        layers.conv((1, depth, size, size), 8, window, window, pads=(window // 2,) * 4)
    compiled = layers.compile("nrf5340", "conv2d_f32_fpu")
    run = compiled.simulate([random_feeds(layers.net.model())], per_layer=True)
    assert run.layer_instructions is not None
    program = compiled.program
    found = zip(map(program.head, program.layers()), run.layer_instructions, strict=True)
    counts = {head.name: count for head, count in found if head.kernel == "conv2d_f32_fpu"}
    assert len(counts) == layers.count
    for name, count in counts.items():
        assert program.layer_estimates[name] == pytest.approx(count, rel=0.08)


@pytest.mark.qemu
def test_depthwise_on_helium():
    check_on(HELIUM, depthwise(), "depthwise_f32_mve")


def test_blocks_in_plain_c():
    check_plain(BOARDS[0], windows(), *BLOCKED)
    check_plain(BOARDS[0], matrices(), "dense_f32_fpu")
    check_plain(HELIUM, depthwise(), "depthwise_f32_mve")


def test_pointwise_overwrites_its_input():
    """Which takes less than both apart: the other layer needs less than these two."""
    layers = Layers()
    x = layers.net.op("Conv", layers.input(2, 1, 5, 5), layers.constant(8, 1, 3, 3), layers.constant(8))
    layers.clamped(layers.net.op("Conv", x, layers.constant(6, 8, 1, 1), layers.constant(6)), "relu")
    pointwise = layers.compile(BOARDS[0], "conv2d_f32_fpu").program.instrs[-2]
    assert pointwise.params["reads_in_place"]
    assert pointwise.operand("x").buffer.offset == pointwise.operand("y").buffer.offset
    check_plain(BOARDS[0], layers, "conv2d_f32_fpu")


def unusual(layers: Layers) -> Feeds:
    """Inputs with infinities and NaNs of both signs."""
    feeds = random_feeds(layers.net.model())
    for index, x in enumerate(feeds.values()):
        flat = x.reshape(-1)
        flat[index % flat.size] = np.inf * (-1) ** index
        flat[(3 * index + 1) % flat.size] = np.copysign(np.float32(np.nan), (-1) ** index)
    return feeds


@pytest.mark.spread(6)
@pytest.mark.qemu
@pytest.mark.parametrize("board", BOARDS)
def test_nan_and_infinity_pass(board: str):
    layers = Layers()
    for clamp in CLAMPS:
        for _ in range(2):  # both signs
            layers.conv((1, 2, 4, 9), 5, 1, 3, pads=(0, 1, 0, 1), clamp=clamp)
            layers.dense(6, 3, 6, clamp)
            layers.dense(1, 1, 6, clamp)
            layers.depthwise((1, 5, 4, 9), 3, 3, clamp=clamp)
    kernels = (*BLOCKED, *(["depthwise_f32_mve"] if board == HELIUM else []))
    with np.errstate(invalid="ignore"):
        check_on(board, layers, *kernels, feeds=unusual(layers), goal="speed" if board == "nrf5340" else "balanced")


def layer_of(kernel: str, rows: int, depth: int, channels: int) -> Layers:
    """One that a kernel computes: fully connected, or a convolution."""
    layers = Layers()
    if kernel.startswith("dense"):
        layers.dense(rows, depth, channels)
    else:
        layers.conv((1, 8, 6, 5 + rows), 8, 3, 3, group=8 if kernel.startswith("depthwise") else 1)
    return layers


@pytest.mark.qemu
@pytest.mark.parametrize("kernel", ["conv2d_f32_fpu", "dense_f32_fpu", "depthwise_f32_fpu"])
def test_sums_apart_from_products_take_less_time(kernel: str, monkeypatch: pytest.MonkeyPatch):
    layers = layer_of(kernel, 1, 32, 16)
    feeds = [random_feeds(layers.net.model())]

    def cycles() -> int:
        found = layers.compile("nrf52840", kernel, goal="speed").simulate(feeds, cycles=True).cycles
        assert found is not None
        assert found.total is not None
        return found.total

    apart = cycles()
    monkeypatch.setattr("mcugen.memory.loop_tuning.SLOW_FMA", frozenset())
    assert apart < 0.95 * cycles()


@pytest.mark.qemu
@pytest.mark.parametrize("kernel", ["conv2d_f32_fpu", "dense_f32_fpu", "depthwise_f32_fpu"])
def test_every_second_sum_apart_is_half_way(kernel: str, monkeypatch: pytest.MonkeyPatch):
    layers = layer_of(kernel, 5, 33, 18)
    feeds, instructions, cycles = [random_feeds(layers.net.model())], list[int](), list[int]()
    for wishes in ((), (HALF_SEPARATE_SUMS,), (SEPARATE_SUMS,)):
        run = wishing(monkeypatch, layers, kernel, *wishes).simulate(feeds, cycles=True)
        assert run.cycles is not None and run.cycles.total is not None and run.instructions is not None
        instructions.append(run.instructions)
        cycles.append(run.cycles.total)
    assert instructions[0] < instructions[1] < instructions[2]
    assert cycles[0] > cycles[1] > cycles[2]
    assert 2 * cycles[1] == pytest.approx(cycles[0] + cycles[2], rel=0.03)


@pytest.mark.spread(2)
@pytest.mark.qemu
def test_every_second_sum_apart_leaves_no_remainder_out(monkeypatch: pytest.MonkeyPatch):
    layers = windows()
    for count in range(1, 10):
        layers.dense(count, 9 - count % 4, count)
        layers.depthwise((1, count, 4, 5), 1 + count % 3, 1 + count % 4)
    model = layers.net.model()
    feeds = random_feeds(model)
    found = (
        wishing(monkeypatch, layers, "conv2d_f32_fpu", HALF_SEPARATE_SUMS).simulate([feeds], measure=False).outputs[0]
    )
    assert_close(found, numpy_outputs(model, feeds), 2e-5)


def wishing(monkeypatch: pytest.MonkeyPatch, layers: Layers, kernel: str, *wishes: str) -> CompiledModel:
    """By that kernel, of loops that are wished for."""
    monkeypatch.setattr("mcugen.driver.target.tuning_flags", lambda *_: frozenset(wishes))
    return layers.compile("nrf52840", kernel)


@st.composite
def convolutions(draw: st.DrawFn) -> Layers:
    """Three random convolutions, one of them depthwise."""
    layers = Layers()
    for grouped in (False, False, True):
        kernel = [draw(st.integers(1, 4)) for _ in range(2)]
        dilations = tuple(draw(st.integers(1, 2)) for _ in range(2))
        strides = tuple(draw(st.integers(1, 3)) for _ in range(2))
        pads = tuple(draw(st.integers(0, 2)) for _ in range(4))
        shortest = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        space = [draw(st.integers(least, least + 6)) for least in shortest]
        batch, inputs, clamp = draw(st.integers(1, 2)), draw(st.integers(2, 9)), draw(st.sampled_from(list(CLAMPS)))
        channels = inputs if grouped else draw(st.integers(1, 9))
        layers.conv(
            (batch, inputs, *space),
            channels,
            *kernel,
            strides=strides,
            pads=pads,
            dilations=dilations,
            group=inputs if grouped else 1,
            clamp=clamp,
        )
    return layers


@settings(max_examples=8, deadline=None)
@given(convolutions())
def test_any_convolution(layers: Layers):
    check_plain(HELIUM, layers, "conv2d_f32_fpu", "depthwise_f32_mve")


@pytest.mark.spread(2)
@pytest.mark.qemu
@pytest.mark.parametrize("board", [BOARDS[0], HELIUM])
@settings(max_examples=3, deadline=None)
@given(layers=convolutions())
def test_any_convolution_on_the_cpu(board: str, layers: Layers):
    check_on(board, layers, "conv2d_f32_fpu", *(["depthwise_f32_mve"] if board == HELIUM else []))
