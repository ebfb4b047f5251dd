# SPDX-License-Identifier: Apache-2.0
"""Channels that are constant, or that nobody reads, are neither computed nor read; results stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_models import Net, imported, optimized, random_feeds

from mcugen.backends.cpu.pipeline import convert_integers
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.hir.graph import Graph
from mcugen.hir.interpreter import interpret
from mcugen.hir.parser import parse_graph
from mcugen.passes import prune
from mcugen.passes.bounds import bounds_of

STEP = 0.05


@pytest.fixture(scope="module", autouse=True)
def multiples_of_four() -> Iterator[None]:
    """Whatever kernels like best."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prune, "CHANNEL_MULTIPLE", 4)
        yield


class Chain:
    """Quantized layers after one another, from an input of 3 channels, 6 by 5 pixels; convolutions have a ReLU."""

    def __init__(self, seed: int = 3, dtype: type = np.int8) -> None:
        self.random = np.random.default_rng(seed)
        self.net = Net(opset=21)
        self.dtype, self.zero = dtype, -128 if dtype is np.int8 else 0
        self.channels = 3
        first = self.net.input("x", 1, 3, 6, 5, dtype=dtype)
        self.last = self.net.dequantize(first, STEP, 4 if dtype is np.int8 else 0, dtype)

    def conv(
        self,
        channels: int,
        idle: int = 0,
        bias: float = -0.5,
        kernel: int = 3,
        depthwise: bool = False,
        pad: bool = True,
        unread: int = 0,
        scale: object = 0.01,
    ) -> None:
        """The first `idle` filters have no weights, and a bias of their own; the first `unread` inputs have none."""
        depth = 1 if depthwise else self.channels
        weights = self.random.integers(-90, 91, (channels, depth, kernel, kernel))
        weights[:idle] = 0
        weights[:, :unread] = 0
        biases = self.random.normal(0, 0.3, channels)
        biases[:idle] = bias
        self.weigh(weights, biases, scale=scale, group=channels if depthwise else 1, pads=[kernel // 2 * pad] * 4)

    def weigh(self, weights: object, biases: object, scale: object = 0.01, **attributes: object) -> None:
        """A convolution with these weights."""
        scales = np.broadcast_to(scale, len(np.asarray(weights)))
        name, zeros = self.net.const(weights, np.int8), self.net.const(np.zeros(len(scales)), np.int8)
        real = self.net.op("DequantizeLinear", name, self.net.const(scales), zeros, axis=0)
        y = self.net.op("Conv", self.last, real, self.net.const(biases), **attributes)
        self.fake(self.net.op("Relu", y))
        self.channels = len(scales)

    def fake(self, real: str, step: float = STEP) -> None:
        """Goes on from a real tensor, as codes."""
        self.last = self.net.fake(real, step, self.zero, self.dtype)

    def finished(self) -> Net:
        """With the last tensor as output."""
        self.net.output(self.net.quantize(self.last, STEP, self.zero, self.dtype, out="y"), dtype=self.dtype)
        return self.net


def widths(graph: Graph) -> list[int]:
    return [node.output.type.shape[-1] for node in graph.nodes if node.op.mnemonic in ("conv", "dense")]


def check(net: Net) -> Graph:
    """Equal before and after, of which it is the latter; all tensors are within their bounds."""
    model = net.model()
    plain, graph = imported(model), optimized(model)
    convert_integers(plain)
    bounds = {value.name: found for value, found in bounds_of(plain).items()}
    for seed in range(3):
        feeds = random_feeds(model, seed)

        def within(node, arrays) -> None:
            for value, array in zip(node.inputs, arrays, strict=True):
                low, high = bounds.get(value.name, (array, array))
                assert (low <= array).all() and (array <= high).all()

        expected = interpret(plain, feeds, within)["y"]
        np.testing.assert_array_equal(interpret(graph, feeds)["y"], expected)
    return graph


def check_widths(net: Net) -> list[int]:
    return widths(check(net))


def test_idle_channels_vanish_with_their_depthwise_followers():
    chain = Chain()
    chain.conv(24, idle=13)
    chain.conv(24, depthwise=True)
    chain.conv(9, idle=5, kernel=1)
    chain.conv(5, kernel=1)
    first, second, *rest = check_widths(chain.finished())
    assert first == second < 24
    assert rest == [4, 5]


def test_a_multiple_stays():
    chain = Chain()
    chain.conv(24, idle=13)
    chain.conv(5)
    assert check_widths(chain.finished()) == [12, 5]


def test_what_follows_from_idle_inputs_is_idle():
    chain = Chain()
    chain.conv(32, idle=24)
    chain.conv(32, idle=24, depthwise=True, bias=0.0)
    chain.conv(4)
    assert check_widths(chain.finished()) == [8, 8, 4]


@pytest.mark.parametrize(("pad", "kept"), [(True, 24), (False, 12)])
def test_other_constants_go_into_biases_where_no_window_leaves_the_input(pad: bool, kept: int):
    chain = Chain()
    chain.conv(24, idle=13, bias=1.0)
    chain.conv(5, pad=pad)
    assert check_widths(chain.finished()) == [kept, 5]


def test_a_constant_is_none_where_padding_changes_it():
    chain = Chain()
    chain.conv(24, idle=16, bias=1.0, kernel=1)
    chain.conv(24, depthwise=True)
    chain.conv(5, kernel=1)
    assert check_widths(chain.finished()) == [24, 24, 5]


def test_what_saturates_whatever_the_input_is_constant():
    chain = Chain()
    weights, bias = np.ones((8, 3, 1, 1)), np.zeros(8)
    bias[2:] = -1000
    chain.weigh(weights, bias)
    chain.conv(5)
    assert check_widths(chain.finished()) == [4, 5]


def test_unread_channels_vanish_transitively():
    chain = Chain()
    chain.conv(24)
    chain.conv(24, unread=8)
    chain.conv(5, unread=20)
    assert check_widths(chain.finished()) == [16, 4, 5]


def test_single_elements_have_no_channels():
    chain = Chain()
    chain.conv(1, pad=False)
    net = chain.net
    single = net.op("ReduceMean", chain.last, keepdims=0)
    net.output(net.quantize(net.op("Add", single, net.fake(single, STEP, -128)), STEP, -128, out="y"), dtype=np.int8)
    check(net)


def test_outputs_keep_their_shape():
    chain = Chain()
    chain.conv(24, idle=16)
    assert check_widths(chain.finished()) == [24]


def test_parts_of_a_concatenation_lose_channels():
    chain = Chain()
    chain.conv(24, idle=16)
    chain.fake(chain.net.op("Concat", chain.last, chain.last, axis=1))
    chain.channels = 48
    chain.conv(3)
    assert check_widths(chain.finished()) == [8, 3]


@pytest.mark.parametrize(("idle", "kept"), [((16, 16), 8), ((16, 4), 20), ((16, 0), 24)])
def test_a_sum_loses_what_both_of_its_operands_can_do_without(idle: tuple[int, int], kept: int):
    chain = Chain()
    chain.conv(24, idle=idle[0])
    skipped = chain.last
    chain.conv(24, idle=idle[1])
    chain.fake(chain.net.op("Add", chain.last, skipped))
    chain.conv(5)
    assert check_widths(chain.finished()) == [kept, kept, 5]


def test_other_readers_need_all_channels():
    chain = Chain()
    chain.conv(24, idle=16)
    real = chain.net.op("Softmax", chain.last, axis=1)
    chain.fake(chain.net.op("Add", chain.last, chain.net.fake(real, 1 / 256, -128)))
    chain.conv(5)
    assert check_widths(chain.finished()) == [24, 5]


def test_averages_and_dense_layers_read_fewer():
    chain = Chain()
    chain.conv(40, idle=30)
    net = chain.net
    pooled = net.fake(net.op("GlobalAveragePool", chain.last), STEP / 2, -128)
    flat = net.op("Flatten", pooled)
    weights = net.dequantize(net.const(chain.random.integers(-90, 91, (7, 40)), np.int8), 0.01)
    chain.last = net.op("Gemm", flat, weights, net.const(chain.random.normal(0, 1, 7)), transB=1)
    assert check_widths(chain.finished()) == [12, 7]


def test_flat_images_lose_channels_at_every_position():
    chain = Chain()
    chain.conv(16, idle=8)
    net = chain.net
    weights = net.dequantize(net.const(chain.random.integers(-9, 10, (7, 16 * 6 * 5)), np.int8), 0.01)
    chain.last = net.op("Gemm", net.op("Flatten", chain.last), weights, transB=1)
    assert check_widths(chain.finished()) == [8, 7]


def test_all_may_be_idle():
    chain = Chain()
    chain.conv(16, idle=16)
    chain.conv(16, idle=16, depthwise=True)
    chain.conv(3)
    assert check_widths(chain.finished()) == [4, 4, 3]


def test_a_layer_whose_rounding_would_change_stays():
    """The first channel's scale, which only saturates, leaves the multipliers of all others some bits less."""
    chain = Chain()
    weights, biases = chain.random.integers(-90, 91, (8, 3, 1, 1)), np.zeros(8)
    biases[:4] = -1e6
    chain.weigh(weights, biases, scale=[100.0] + [0.01] * 7)
    chain.conv(3)
    chain.weigh(weights, biases)
    chain.conv(3)
    assert check_widths(chain.finished()) == [8, 3, 4, 3]


def test_what_was_dropped_is_reported():
    chain = Chain()
    chain.conv(24, idle=16, kernel=1)
    chain.conv(5, kernel=1)
    graph = check(chain.finished())
    assert graph.dropped.channels == 16
    assert graph.dropped.macs == 30 * (16 * 3 + 16 * 5)
    compiled = compile_model(chain.net.model(), "nrf52840")
    assert compiled.report.model.dropped_channels == 16
    assert compiled.report.model.macs + compiled.report.model.dropped_macs == 30 * (24 * 3 + 24 * 5)


def test_models_of_several_sizes_lose_what_nobody_reads():
    """What is constant may depend on the size."""
    net = Net()
    x = net.dequantize(net.input("x", "n", 8, dtype=np.int8), STEP)
    for weights in (np.ones((8, 8)), np.eye(8)[:, :3], np.ones((3, 2))):
        real = net.dequantize(net.const(weights, np.int8), 0.01)
        x = net.fake(net.op("MatMul", x, real), STEP)
    net.output(net.quantize(x, STEP, out="y"), dtype=np.int8)
    options = CompileOptions(dims={"n": (1, 4)})
    compiled = compile_model(net.model(), "nrf52840", options)
    assert widths(compiled.graph) == [4, 3, 2]


def test_weights_of_few_bits_stay_such():
    text = """graph net {
  input %x : 1x2 int8(0.5, 0)
  const %w : 8x2 int4(0.5, 0) = ...
  const %b : 8 int32 = [9, 9, 9, 9, -90000, -90000, -90000, -90000]
  const %v : 1x8 int4(0.5, 0) = [1, 2, 3, 4, 5, 6, 7, 7]
  const %c : 1 int32 = [0]
  %hidden = dense(%x, %w, %b) : 1x8 int8(0.5, -128)
  %y = dense(%hidden, %v, %c) : 1x1 int8(64.0, 0)
  output y = %y
}
"""
    graph = parse_graph(text)
    assert prune.drop_channels(graph)
    assert widths(graph) == [4, 1]
    assert [str(node.input(i).type.dtype.value) for node in graph.nodes for i in (1, 2)] == ["int4", "int32"] * 2


def test_clamps_that_nothing_reaches_vanish():
    for bias, expected in ((0.0, [True]), (5.0, [False])):
        chain = Chain()
        chain.zero = 0
        chain.weigh(np.full((4, 3, 1, 1), 10), np.full(4, bias))
        graph = check(chain.finished())
        assert [node.op.clamp is not None for node in graph.nodes if node.op.mnemonic == "conv"] == expected


def residual(chain: Chain, draw: Callable) -> None:
    skipped = chain.last
    convolution(chain, draw, channels=chain.channels)
    chain.fake(chain.net.op(draw(st.sampled_from(["Add", "Sub", "Mul", "Max", "PRelu"])), chain.last, skipped))


def concatenation(chain: Chain, draw: Callable) -> None:
    skipped, channels = chain.last, chain.channels
    convolution(chain, draw)
    chain.fake(chain.net.op("Concat", skipped, chain.last, axis=1))
    chain.channels += channels


def function(chain: Chain, draw: Callable) -> None:
    name = draw(st.sampled_from(["Sigmoid", "HardSwish", "Abs", "Neg", "Softmax", "MaxPool", "AveragePool", "Pad"]))
    attributes: dict[str, object] = {}
    if name == "Softmax":
        attributes["axis"] = 1
    if name.endswith("Pool"):
        attributes |= {"kernel_shape": [2, 2], "pads": [1, 0, 0, 1]}
    inputs = [chain.net.const([0, 0, 1, 0, 0, 0, 0, 1], np.int64)] if name == "Pad" else []
    chain.fake(chain.net.op(name, chain.last, *inputs, **attributes), draw(st.sampled_from([STEP, 0.01])))


def convolution(chain: Chain, draw: Callable, channels: int = 0) -> None:
    depthwise = draw(st.booleans())
    channels = chain.channels if depthwise else channels or draw(st.integers(1, 20))
    chain.conv(
        channels,
        idle=draw(st.integers(0, channels)),
        bias=draw(st.sampled_from([-0.5, 0.0, 0.02, 1.0, 1e5])),
        kernel=draw(st.sampled_from([1, 3])),
        depthwise=depthwise,
        unread=0 if depthwise else draw(st.integers(0, chain.channels)),
        scale=draw(st.sampled_from([0.001, 0.01, [*[0.01] * (channels - 1), 10.0]])),
    )


def read_flat(chain: Chain, draw: Callable) -> None:
    net = chain.net
    if draw(st.booleans()):
        chain.fake(net.op("GlobalAveragePool", chain.last))
    flat = net.op("Flatten", chain.last)
    weights = chain.random.integers(-90, 91, (5, 2000)) * (chain.random.random((5, 2000)) < 0.3)
    columns = net.op("Shape", flat, start=1)
    cut = net.op("Slice", net.const(weights, np.int8), net.const([0], np.int64), columns, net.const([1], np.int64))
    chain.last = net.op("MatMul", flat, net.op("Transpose", net.dequantize(cut, 0.01), perm=[1, 0]))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_results_stay(data: st.DataObject):
    chain = Chain(data.draw(st.integers(0, 999)), data.draw(st.sampled_from([np.int8, np.int16])))
    for _ in range(data.draw(st.integers(1, 5))):
        data.draw(st.sampled_from([convolution, convolution, residual, concatenation, function]))(chain, data.draw)
    if data.draw(st.booleans()):
        read_flat(chain, data.draw)
    check(chain.finished())
