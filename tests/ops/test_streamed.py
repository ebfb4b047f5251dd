# SPDX-License-Identifier: Apache-2.0
"""Groups of layers, row by row: the same bits as layer by layer, by numpy and in C, for the least RAM."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_models import Net, assert_close, imported, numpy_outputs, outputs_in_c, random_feeds

from mcugen.backends.cpu.pipeline import optimize, plan_program
from mcugen.core.board import load_board
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.graph import Graph
from mcugen.hir.interpreter import interpret
from mcugen.kernels.cost import cost_table
from mcugen.lir.program import Control
from mcugen.memory.verify_plan import verify_plan
from mcugen.ops.row_groups import group_of
from mcugen.ops.stream import Streamed
from mcugen.search import goal_program, line_buffering
from mcugen.search.graph_transformations import GraphVariant
from mcugen.search.line_buffer_groups import GraphSegment, in_order_of_rows, with_groups
from mcugen.search.line_buffering import Streaming
from mcugen.search.problem import SearchProblem

STEP = 0.05
ROWS = CompileOptions(optimize="ram")


class Image:
    """Layers after one another on an image, int8 or float32."""

    def __init__(self, height: int, width: int, channels: int, seed: int = 1, real: bool = False) -> None:
        self.random, self.net, self.real = np.random.default_rng(seed), Net(), real
        self.channels, self.size = channels, (height, width)
        x = self.net.input("x", 1, channels, height, width, dtype=np.float32 if real else np.int8)
        self.last = x if real else self.net.dequantize(x, STEP, 3)

    def _fake(self, y: str, zero: int) -> None:
        self.last = y if self.real else self.net.fake(y, STEP, zero)

    def conv(
        self,
        channels: int,
        kernel: Sequence[int] = (3, 3),
        stride: int = 1,
        pads: Sequence[int] = (1, 1, 1, 1),
        *,
        depthwise: bool = False,
        dilation: int = 1,
    ) -> Image:
        """Pads are above, left, below, right."""
        shape = (channels, 1 if depthwise else self.channels, *kernel)
        weights = self.random.integers(-90, 91, shape)
        scale = 0.3 / (90 * np.sqrt(np.prod(shape[1:])))
        w = (
            self.net.const(weights * scale)
            if self.real
            else self.net.dequantize(self.net.const(weights, np.int8), scale)
        )
        bias = self.net.const(self.random.normal(0, 0.2, channels))
        y = self.net.op(
            "Conv",
            *(self.last, w, bias),
            group=channels if depthwise else 1,
            strides=[stride] * 2,
            dilations=[dilation] * 2,
            pads=list(pads),
        )
        self.channels = channels
        padded = (self.size[0] + pads[0] + pads[2], self.size[1] + pads[1] + pads[3])
        height, width = ((n - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(padded, kernel, strict=True))
        self.size = height, width
        self._fake(y, 7)
        return self

    def residual(self, channels: int, stride: int = 1) -> Image:
        """Two convolutions and what passes them by, which a third one brings to size where it must be."""
        before, width, size = self.last, self.channels, self.size
        self.conv(channels, stride=stride).relu().conv(channels)
        main = self.last
        if stride > 1 or channels != width:
            self.last, self.channels, self.size = before, width, size
            self.conv(channels, (1, 1), stride, (0, 0, 0, 0))
            before = self.last
        self._fake(self.net.op("Add", before, main), -5)
        return self

    def relu(self) -> Image:
        self._fake(self.net.op("Relu", self.last), -128)
        return self

    def max_pool(self, kernel: int, stride: int, pads: Sequence[int]) -> Image:
        y = self.net.op("MaxPool", self.last, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=list(pads))
        self._fake(y, 7)
        return self

    def average_pool(self, kernel: int, stride: int) -> Image:
        self._fake(self.net.op("AveragePool", self.last, kernel_shape=[kernel] * 2, strides=[stride] * 2), 2)
        return self

    def mean(self) -> Image:
        self._fake(self.net.op("GlobalAveragePool", self.last), -9)
        return self

    def pad(self, above: int, left: int, below: int, right: int, value: float = 0.3) -> Image:
        """Other than with zeros: no window can take that in."""
        widths = self.net.const([0, 0, above, left, 0, 0, below, right], np.int64)
        self._fake(self.net.op("Pad", self.last, widths, self.net.const(value)), 7)
        self.size = self.size[0] + above + below, self.size[1] + left + right
        return self

    def grown(self, times: int = 2) -> Image:
        """Each pixel becomes several."""
        scales = self.net.const([1, 1, times, times])
        attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        self._fake(self.net.op("Resize", self.last, "", scales, **attributes), 7)
        self.size = self.size[0] * times, self.size[1] * times
        return self

    def interpolated(self, high: float, wide: float, mode: str = "half_pixel") -> Image:
        """By its neighbours, along both axes."""
        scales = self.net.const([1, 1, high, wide])
        y = self.net.op("Resize", self.last, "", scales, mode="linear", coordinate_transformation_mode=mode)
        self._fake(y, -3)
        self.size = int(self.size[0] * high), int(self.size[1] * wide)
        return self

    def thinned(self, steps: int = 2) -> Image:
        """Every n-th row from the second one on, and a column less."""
        ends = [np.asarray(row, np.int64) for row in ([1, 1], [self.size[0], self.size[1]], [2, 3], [steps, 1])]
        self._fake(self.net.op("Slice", self.last, *(self.net.const(row, np.int64) for row in ends)), 7)
        self.size = (self.size[0] - 2) // steps + 1, self.size[1] - 1
        return self

    def transposed(self, channels: int, kernel: int, stride: int, before: int, dilation: int = 1) -> Image:
        """A transposed convolution that makes its input `stride` times as large."""
        reach = dilation * (kernel - 1) + 1
        weights = self.net.const(self.random.integers(-90, 91, (self.channels, channels, kernel, kernel)), np.int8)
        w = self.net.dequantize(weights, 0.3 / (90 * np.sqrt(self.channels)))
        after = reach - before - stride
        pads, more = [before, before, max(after, 0), max(after, 0)], [max(-after, 0)] * 2
        attributes = {"strides": [stride] * 2, "pads": pads, "output_padding": more, "dilations": [dilation] * 2}
        self._fake(self.net.op("ConvTranspose", self.last, w, **attributes), -4)
        self.channels, self.size = channels, (self.size[0] * stride, self.size[1] * stride)
        return self

    def beside(self, build: Callable[[Image], Image]) -> Image:
        """What `build` makes of it, with what it was as further channels."""
        before, channels = self.last, self.channels
        build(self)
        self._fake(self.net.op("Concat", self.last, before, axis=1), 7)
        self.channels += channels
        return self

    def below(self) -> Image:
        """Down and up again, as in a U-Net."""
        return self.max_pool(2, 2, (0, 0, 0, 0)).conv(6).transposed(5, 2, 2, 0)

    def given(self, name: str) -> Image:
        """What there is so far is an output of the model, too."""
        self.net.quantize(self.last, STEP, 2, out=name)
        self.net.output(name, dtype=np.int8)
        return self

    def finished(self) -> Net:
        if self.real:
            self.net.output(self.net.op("Identity", self.last, out="y"))
        else:
            self.net.output(self.net.quantize(self.last, STEP, 1, out="y"), dtype=np.int8)
        return self.net


def optimized(net: Net) -> Graph:
    graph = imported(net.model())
    optimize(graph)
    return graph


def groups(graph: Graph) -> list[tuple[int, int]]:
    """All nodes that follow one another and can be a group."""
    count = len(graph.nodes)
    spans = ((first, end) for first in range(count) for end in range(first + 2, count + 1))
    return [
        span for span in spans if (op := _group(graph, span)) and all(t.axis == 1 for t in op.tensors[: op.sources])
    ]


def _group(graph: Graph, span: tuple[int, int]) -> Streamed | None:
    """Rows are narrow, or made two at a time, in some of them."""
    pairs = [node.outputs[0].name for node in graph.nodes] if span[0] % 2 else ()
    return group_of(graph.nodes[slice(*span)], graph.outputs, is_narrow=sum(span) % 2 == 0, pairs=pairs)


def check_groups(net: Net) -> int:
    """Every group gives what its layers give; the length of the longest."""
    graph = optimized(net)
    feeds = random_feeds(net.model())
    expected = interpret(graph, feeds)
    spans = groups(graph)
    for span in spans:
        assert_close(interpret(with_groups(graph, [_segment(graph, span)]), feeds), expected)
    return max((end - first for first, end in spans), default=0)


def _segment(graph: Graph, span: tuple[int, int]) -> GraphSegment:
    return GraphSegment(*span, _group(graph, span), 0, 0.0)


NETS = {
    "residual": lambda: Image(12, 11, 3).conv(8).residual(8).residual(16, 2).mean(),
    "separable": lambda: (
        Image(14, 9, 3)
        .conv(8, stride=2, pads=(0, 0, 1, 1))
        .conv(8, depthwise=True)
        .conv(16, (1, 1), pads=(0, 0, 0, 0))
        .conv(16, stride=2, pads=(0, 0, 1, 1), depthwise=True)
        .conv(8, (1, 1), pads=(0, 0, 0, 0))
    ),
    "speech": lambda: (
        Image(25, 10, 1)
        .conv(16, (10, 4), 2, (4, 1, 5, 1))
        .conv(16, depthwise=True)
        .conv(12, (1, 1), pads=(0, 0, 0, 0))
        .mean()
    ),
    "pools": lambda: Image(15, 12, 4).conv(8).max_pool(3, 2, (1, 1, 1, 1)).conv(8).average_pool(2, 2).relu(),
    "one-sided": lambda: Image(9, 8, 5).conv(7, (2, 3), 1, (1, 0, 0, 2)).conv(5, (3, 1), 1, (0, 1, 2, 0)),
    "dilated": lambda: Image(13, 13, 4).conv(8, dilation=2, pads=(2, 2, 2, 2)).conv(8, dilation=3, pads=(3, 3, 3, 3)),
    "up": lambda: (
        Image(6, 5, 4).conv(6).transposed(5, 3, 2, 1).conv(4).transposed(3, 2, 2, 0).conv(4, pads=(2, 1, 0, 1))
    ),
    "up by three": lambda: Image(5, 5, 3).transposed(4, 5, 3, 1).conv(4).transposed(4, 2, 3, 0, 2).conv(3),
    "grown": lambda: Image(7, 6, 4).conv(6).grown().conv(5).grown(3).max_pool(3, 2, (1, 1, 1, 1)).conv(4),
    "interpolated": lambda: (
        Image(6, 5, 4)
        .conv(4)
        .interpolated(4, 1.5)
        .interpolated(0.5, 2)
        .conv(5)
        .interpolated(2, 2)
        .conv(3)
        .interpolated(3, 1, "asymmetric")
        .interpolated(1, 2, "align_corners")
        .conv(4)
    ),
    "beside": lambda: Image(9, 8, 3).conv(5).beside(lambda x: x.conv(4).conv(3)).conv(6).beside(Image.relu).conv(4),
    "u": lambda: (
        Image(8, 8, 3).conv(5).beside(lambda x: x.max_pool(2, 2, (0, 0, 0, 0)).conv(6).transposed(5, 2, 2, 0)).conv(4)
    ),
    "outputs": lambda: Image(9, 7, 3).conv(5).given("a").conv(4, stride=2).given("b").conv(6),
    "padded": lambda: (
        Image(9, 7, 3).conv(5).pad(2, 1, 0, 2).conv(4, pads=(0, 0, 0, 0)).pad(0, 0, 3, 0).conv(4).pad(0, 2, 0, 0)
    ),
    "begun by padding": lambda: (
        Image(9, 7, 3).conv(5).pad(1, 1, 1, 2).conv(4, pads=(0, 0, 0, 0)).pad(2, 0, 0, 0).conv(4)
    ),
    "thinned": lambda: Image(17, 9, 3).conv(5).thinned().conv(4).thinned(3).conv(4),
    "time steps": lambda: (
        Image(40, 1, 6)
        .conv(8, (7, 1), pads=(3, 0, 3, 0))
        .conv(9, (5, 1), 2, (2, 0, 2, 0))
        .conv(7, (3, 1), pads=(4, 0, 0, 0), dilation=2)
        .conv(5, (4, 1), pads=(3, 0, 0, 0))
    ),
    "large steps": lambda: Image(17, 13, 3).conv(6, stride=3).conv(6, (1, 1), 2, (0, 0, 0, 0)).conv(4),
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", NETS)
def test_every_group_of_a_network_gives_what_its_layers_give(name: str) -> None:
    assert check_groups(NETS[name]().finished()) > 1


@st.composite
def random_images(draw: st.DrawFn) -> Net:
    size = (draw(st.integers(14, 19)), draw(st.integers(13, 17)), draw(st.integers(1, 6)))
    image = Image(*size, seed=draw(st.integers(0, 99)))
    for _ in range(draw(st.integers(2, 5))):
        kind = draw(st.sampled_from(("conv", "depthwise", "pointwise", "residual", "pool")))
        steps = st.integers(1, 2 if min(image.size) > 7 else 1)
        if kind == "conv":
            kernel = (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
            pads = [draw(st.integers(0, k - 1)) for k in (*kernel, *kernel)]
            image.conv(draw(st.integers(1, 9)), kernel, draw(steps), pads)
        elif kind == "depthwise":
            image.conv(image.channels, depthwise=True) if image.channels > 1 else image.relu()
        elif kind == "pointwise":
            image.conv(draw(st.integers(1, 9)), (1, 1), pads=(0, 0, 0, 0))
        elif kind == "residual":
            image.residual(draw(st.integers(1, 8)), draw(steps))
        else:
            image.max_pool(2, 1, (0, 1, 1, 0))
    return image.finished()


@settings(max_examples=25, deadline=None, derandomize=True)
@given(net=random_images())
def test_random_networks(net: Net) -> None:
    check_groups(net)


def in_groups(net: Net, board: str, spans: Sequence[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> CompiledModel:
    """The model with chosen segments as groups."""

    def variants(problem: SearchProblem, *_: object) -> list[GraphVariant]:
        return [GraphVariant(with_groups(problem.graph, [_segment(problem.graph, s) for s in spans]))]

    monkeypatch.setattr(goal_program, "graph_variants", variants)
    return compile_model(net.model(), board, ROWS)


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", NETS)
def test_the_longest_group_in_c(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = NETS[name]().finished()
    longest = max(groups(optimized(net)), key=lambda span: span[1] - span[0])
    compiled = in_groups(net, "host", [longest], monkeypatch)
    assert any(instr.control is Control.STREAM for instr in compiled.program.instrs)
    feeds = random_feeds(net.model(), seed=5)
    found = compiled.run({name: array[None] for name, array in feeds.items()}, sanitize=True)
    assert_close({name: array[0] for name, array in found.items()}, interpret(compiled.graph, feeds))


@pytest.mark.spread(4)
@pytest.mark.parametrize("board", ["rp2040", "stm32f103", "nrf52840", "corstone300"])
@pytest.mark.parametrize("name", ["residual", "speech", "time steps"])
def test_the_same_bits_on_every_cpu(name: str, board: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = NETS[name]().finished()
    longest = max(groups(optimized(net)), key=lambda span: span[1] - span[0])
    compiled = in_groups(net, board, [longest], monkeypatch)
    feeds = random_feeds(net.model(), seed=6)
    found = compiled.simulate([feeds], measure=False).outputs[0]
    assert_close(found, interpret(compiled.graph, feeds))


def test_float_networks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Image(10, 9, 3, real=True).conv(8).conv(8, depthwise=True).conv(6, stride=2).finished()
    assert check_groups(net) > 2
    longest = max(groups(optimized(net)), key=lambda span: span[1] - span[0])
    compiled = in_groups(net, "host", [longest], monkeypatch)
    feeds = random_feeds(net.model())
    found = compiled.run({name: array[None] for name, array in feeds.items()}, sanitize=True)
    assert_close({name: array[0] for name, array in found.items()}, interpret(compiled.graph, feeds))


def test_two_groups_in_a_row_may_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    net = NETS["residual"]().finished()
    spans = groups(optimized(net))
    pair = next((a, b) for a in spans for b in spans if a[1] == b[0])
    compiled = in_groups(net, "host", pair, monkeypatch)
    assert sum(instr.control is Control.STREAM for instr in compiled.program.instrs) == 2
    feeds = random_feeds(net.model())
    found = compiled.run({"x": feeds["x"][None]}, sanitize=True)
    assert_close({name: array[0] for name, array in found.items()}, interpret(compiled.graph, feeds))


def test_the_output_of_a_group_may_lie_over_its_input_just_as_far_as_it_says() -> None:
    graph = optimized(Image(12, 12, 8).conv(8).conv(16, (1, 1), pads=(0, 0, 0, 0)).finished())
    first, end = max(groups(graph), key=lambda span: span[1] - span[0])
    op = group_of(graph.nodes[first:end], graph.outputs)
    assert op is not None
    lead = op.lead(op.results[0], 0)
    assert lead is not None
    assert _survives(op, lead)
    assert not _survives(op, lead - 1)


def _survives(op: Streamed, lead: int) -> bool:
    """Whether no row is written over one yet to be read, if the output begins so many bytes before the input."""
    row, out = op.tensors[0].nbytes, op.tensors[-1].nbytes
    got = put = 0
    for tensor, is_row, _ in op.schedule.events:
        got += tensor == 0 and is_row
        if tensor == len(op.layers):
            put += 1
            if got < op.tensors[0].height and put * out - lead > got * row:
                return False
    return True


def test_ram_takes_groups_where_they_need_less() -> None:
    net = Image(24, 20, 3).conv(8).residual(8).residual(16, 2).mean().finished()
    plain = compile_model(net.model(), "nrf52840", CompileOptions())
    least = compile_model(net.model(), "nrf52840", ROWS)
    assert least.program.arena_size < 0.7 * plain.program.arena_size
    verify_plan(least.program)
    assert not any(instr.control is Control.STREAM for instr in plain.program.instrs)
    assert least.bundle.files == compile_model(net.model(), "nrf52840", ROWS).bundle.files


@pytest.mark.parametrize("board", ["nrf52840", "corstone300"])
def test_a_window_of_time_steps_is_a_fully_connected_layer(board: str) -> None:
    """One step of a convolution over time reads all of its window, in the order of the weights: nothing is gathered."""
    image = Image(128, 1, 8)
    for channels in (24, 24, 8):
        image.conv(channels, (9, 1), pads=(4, 0, 4, 0))
    net = image.finished()
    compiled = compile_model(net.model(), board, ROWS)
    products = [instr.kernel for instr in compiled.program.instrs if instr.kernel.startswith(("conv", "dense"))]
    assert any(instr.control is Control.STREAM for instr in compiled.program.instrs)
    assert len(products) == 3 and all(name.startswith("dense_s8") for name in products)
    feeds = random_feeds(net.model(), seed=3)
    run = compiled.simulate([feeds])
    assert_close(run.outputs[0], interpret(compiled.graph, feeds))
    macs = 128 * 9 * (8 * 24 + 24 * 24 + 24 * 8)
    assert run.instructions is not None and run.instructions < 1.6 * macs


def _convolutions(net: Net, x: str) -> str:
    """Three, each of more channels than the last has."""
    random = np.random.default_rng(1)
    for inputs, outputs in ((4, 12), (12, 12), (12, 4)):
        w = net.const(random.normal(0, 0.1, (outputs, inputs, 3, 3)))
        x = net.op("Relu", net.op("Conv", x, w, pads=[1] * 4))
    return x


def branching() -> onnx.ModelProto:
    net, bodies = Net(), []
    net.input("x", 1, 4, 20, 20)
    condition = net.input("condition", dtype=np.bool_)
    for prefix in "ab":
        body = Net(prefix=prefix)
        body.output(_convolutions(body, "x"), shape=(1, 4, 20, 20))
        bodies.append(body.graph(prefix))
    net.output(net.op("If", condition, out="y", then_branch=bodies[0], else_branch=bodies[1]), shape=(1, 4, 20, 20))
    return net.model()


def looping() -> onnx.ModelProto:
    net, body = Net(), Net(prefix="body")
    x = net.input("x", 1, 4, 20, 20)
    body.input("step", dtype=np.int64)
    going = body.input("going", dtype=np.bool_)
    state = body.input("state", 1, 4, 20, 20)
    body.output(body.op("Identity", going), dtype=np.bool_, shape=())
    body.output(_convolutions(body, state), shape=(1, 4, 20, 20))
    net.output(net.op("Loop", net.const(3, np.int64), "", x, out="y", body=body.graph("body")), shape=(1, 4, 20, 20))
    return net.model()


@pytest.mark.parametrize("make", [branching, looping])
def test_layers_of_bodies_by_rows(make: Callable[[], onnx.ModelProto]) -> None:
    """In each branch, and in each step of a loop."""
    model = make()
    compiled, plain = compile_model(model, "host", ROWS), compile_model(model, "host", CompileOptions(optimize="speed"))
    blocks = [instr.control for instr in compiled.program.instrs if instr.control in (Control.STREAM, Control.FOR)]
    assert blocks.count(Control.STREAM) == (2 if make is branching else 1)
    assert compiled.program.arena_size < 0.7 * plain.program.arena_size
    feeds = random_feeds(model)
    found = compiled.run({name: array[None] for name, array in feeds.items()}, sanitize=True)
    assert_close({name: array[0] for name, array in found.items()}, numpy_outputs(model, feeds))


def test_outputs_on_the_way_part_no_group() -> None:
    net = Image(16, 14, 3).conv(8).given("a").conv(8).given("b").conv(8, stride=2).given("c").conv(4).finished()
    graph = optimized(net)
    moved = in_order_of_rows(graph)
    assert max(end - first for first, end in groups(graph)) < max(end - first for first, end in groups(moved))
    feeds = random_feeds(net.model())
    assert_close(interpret(moved, feeds), interpret(graph, feeds))
    compiled = compile_model(net.model(), "host", replace(ROWS, stream_input=True))
    assert_close(outputs_in_c(compiled, feeds), interpret(graph, feeds))


def test_a_model_without_layers_needs_no_groups() -> None:
    net = Net()
    net.output(net.op("Identity", net.input("x", 1, 4, 4, 3), out="y"))
    compiled = compile_model(net.model(), "host", ROWS)
    assert not compiled.program.instrs


def test_plans_trade_instructions_for_ram() -> None:
    graph = optimized(NETS["residual"]().finished())
    board = load_board("nrf52840")
    plans = list(Streaming(graph, board.features, cost_table(board.cpu)).plans())
    ram = [max(s.ram for s in plan) for plan in plans]
    cost = [sum(s.instructions for s in plan) for plan in plans]
    assert len(plans) > 1
    assert all(a < b for a, b in pairwise(ram))
    assert all(a >= b for a, b in pairwise(cost))


def _streaming(name: str) -> Streaming:
    graph, board = optimized(NETS[name]().finished()), load_board("nrf52840")
    return Streaming(graph, board.features, cost_table(board.cpu))


def _groups(plans: Iterable[Sequence[GraphSegment]]) -> list[list[tuple[int, int]]]:
    return [[(s.first, s.end) for s in plan] for plan in plans]


def test_groups_are_made_as_plans_are_asked_for() -> None:
    """What has been looked at for one plan changes none that is asked for later."""
    whole, asked = _streaming("residual"), _streaming("residual")
    everything = _groups(whole.plans())
    first = next(asked.plans())
    assert 0 < asked.looked_at < whole.looked_at
    assert _groups([first]) == everything[:1]
    assert _groups(asked.plans()) == everything


@pytest.mark.parametrize("most", [0, 2, 5])
def test_no_more_groups_are_looked_at_than_a_bound(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_buffering, "MAX_EVALUATED_GROUPS", most)
    found = _streaming("residual")
    for plan in found.plans():
        assert [s.first for s in plan] == [0, *(s.end for s in plan[:-1])]
        assert plan[-1].end == len(found.graph.nodes)
    assert found.looked_at == most


def test_the_best_so_far_is_taken_where_the_search_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    model = NETS["residual"]().finished().model()
    balanced, best = compile_model(model, "nrf52840"), compile_model(model, "nrf52840", ROWS)
    monkeypatch.setattr(goal_program, "MAX_SEARCH_WORK", 0)
    made = []
    monkeypatch.setattr(
        goal_program, "plan_program", lambda *args, **more: made.append(0) or plan_program(*args, **more)
    )
    first = compile_model(model, "nrf52840", ROWS)
    assert len(made) == 2  # the first way, and layers one by one for `balanced`
    assert best.program.arena_size <= first.program.arena_size < balanced.program.arena_size


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", ["residual", "separable", "speech"])
def test_the_input_row_by_row(name: str) -> None:
    net = NETS[name]().finished()
    options = replace(ROWS, stream_input=True)
    compiled = compile_model(net.model(), "host", options)
    feeds = random_feeds(net.model(), seed=2)
    found = compiled.run({"x": feeds["x"][None]}, sanitize=True)
    assert_close({name: array[0] for name, array in found.items()}, interpret(compiled.graph, feeds))
    held = compile_model(net.model(), "host", ROWS)
    assert compiled.program.arena_size <= held.program.arena_size


def test_an_input_that_is_needed_as_a_whole_cannot_come_row_by_row() -> None:
    net = Net()
    x = net.dequantize(net.input("x", 1, 24, dtype=np.int8), STEP)
    w = net.dequantize(net.const(np.arange(-60, 60).reshape(24, 5), np.int8), 0.01)
    net.output(net.quantize(net.op("MatMul", x, w), STEP, out="y"), dtype=np.int8)
    with pytest.raises(UsageError, match="stream-input"):
        compile_model(net.model(), "host", CompileOptions(stream_input=True))


def test_a_scalar_beside_rows():
    """It has no axes at all, and is whole in every row."""
    net = Net()
    weights = net.const(np.random.default_rng(1).standard_normal((4, 4, 3, 3)))
    first = net.op("Conv", net.input("x", 1, 4, 9, 9), weights, pads=[1, 1, 1, 1])
    scaled = net.op("Floor", net.op("Mul", first, net.input("s")))
    net.output(net.op("Conv", scaled, weights, pads=[1, 1, 1, 1]))
    model = net.model()
    feeds = random_feeds(model)
    found = outputs_in_c(compile_model(model, "host", ROWS), feeds)
    assert_close(found, interpret(imported(model), feeds))


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("board", "kernel"),
    [("host", "conv2d_s8"), ("rp2040", "conv2d_s8_winograd"), ("nrf52840", "conv2d_s8_winograd_fly_dsp_t8")],
)
def test_two_rows_at_once_in_c(board: str, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Image(12, 16, 8).conv(16).residual(16).residual(16).max_pool(2, 2, (0, 0, 0, 0)).finished()
    names = {node.output.name for node in optimized(net).nodes if node.op.mnemonic == "conv"}

    def in_pairs(problem: SearchProblem, *_: object) -> list[GraphVariant]:
        graph = problem.graph
        end = next(i for i, node in enumerate(graph.nodes) if node.op.mnemonic == "max_pool") + 1
        op = group_of(graph.nodes[1:end], graph.outputs, pairs=names)
        assert op is not None and {layer.rows for layer in op.layers} == {1, 2}  # behind the transposition
        return [GraphVariant(with_groups(graph, [GraphSegment(1, end, op, 0, 0.0)]))]

    monkeypatch.setattr(goal_program, "graph_variants", in_pairs)
    compiled = compile_model(net.model(), board, replace(ROWS, kernels=(kernel,)))
    assert kernel in {instr.kernel for instr in compiled.program.instrs}
    feeds = random_feeds(net.model(), seed=3)
    if board == "host":
        found = compiled.run({name: array[None] for name, array in feeds.items()}, sanitize=True)
        outputs = {name: array[0] for name, array in found.items()}
    else:
        outputs = compiled.simulate([feeds], measure=False).outputs[0]
    assert_close(outputs, interpret(compiled.graph, feeds))
