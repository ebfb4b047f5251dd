# SPDX-License-Identifier: Apache-2.0
"""Channels that hold the zero point whatever the input are neither computed nor read; results stay as they are."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_models import Net, imported, optimized, random_feeds

from mcugen.hir.graph import Graph
from mcugen.hir.interpreter import interpret
from mcugen.pipeline import convert_integers

STEP = 0.05


class Chain:
    """Quantized convolutions after one another, each with a ReLU, from an input of 3 channels, 6 by 5 pixels."""

    def __init__(self, seed: int = 3) -> None:
        self.random = np.random.default_rng(seed)
        self.net = Net()
        self.channels = 3
        self.last = self.net.dequantize(self.net.input("x", 1, 3, 6, 5, dtype=np.int8), STEP, 4)

    def conv(self, channels: int, idle: int = 0, bias: float = -0.5, kernel: int = 3, depthwise: bool = False) -> None:
        """The first `idle` filters have no weights, and a bias of their own."""
        depth = 1 if depthwise else self.channels
        weights = self.random.integers(-90, 91, (channels, depth, kernel, kernel))
        weights[:idle] = 0
        biases = self.random.normal(0, 0.3, channels)
        biases[:idle] = bias
        real = self.net.dequantize(self.net.const(weights, np.int8), 0.01)
        groups = channels if depthwise else 1
        y = self.net.op("Conv", self.last, real, self.net.const(biases), group=groups, pads=[kernel // 2] * 4)
        self.last = self.net.fake(self.net.op("Relu", y), STEP, -128)
        self.channels = channels

    def finished(self) -> Net:
        """With the last tensor as output."""
        self.net.output(self.net.quantize(self.last, STEP, -128, out="y"), dtype=np.int8)
        return self.net


def widths(graph: Graph) -> list[int]:
    return [node.output.type.shape[-1] for node in graph.nodes if node.op.mnemonic in ("conv", "dense")]


def check(net: Net) -> list[int]:
    """Equal before and after; the channels of the convolutions after."""
    model = net.model()
    feeds = random_feeds(model)
    plain = imported(model)
    convert_integers(plain)
    graph = optimized(model)
    np.testing.assert_array_equal(interpret(graph, feeds)["y"], interpret(plain, feeds)["y"])
    return widths(graph)


def test_idle_channels_vanish_with_their_depthwise_followers():
    chain = Chain()
    chain.conv(24, idle=13)
    chain.conv(24, depthwise=True)
    chain.conv(9, idle=5, kernel=1)
    chain.conv(5, kernel=1)
    first, second, *rest = check(chain.finished())
    assert first == second < 24
    assert rest == [8, 5]


def test_a_multiple_of_eight_stays():
    chain = Chain()
    chain.conv(24, idle=13)
    chain.conv(5)
    assert check(chain.finished()) == [16, 5]


def test_what_follows_from_idle_inputs_is_idle():
    chain = Chain()
    chain.conv(32, idle=24)
    chain.conv(32, idle=24, depthwise=True, bias=0.0)
    chain.conv(4)
    assert check(chain.finished()) == [8, 8, 4]


def test_other_constants_stay():
    chain = Chain()
    chain.conv(24, idle=13, bias=1.0)
    chain.conv(5)
    assert check(chain.finished()) == [24, 5]


def test_outputs_keep_their_shape():
    chain = Chain()
    chain.conv(24, idle=16)
    assert check(chain.finished()) == [24]


def test_other_readers_need_all_channels():
    chain = Chain()
    chain.conv(24, idle=16)
    chain.last = chain.net.op("Concat", chain.last, chain.last, axis=1)
    chain.last = chain.net.fake(chain.last, STEP, -128)
    chain.channels = 48
    chain.conv(3)
    assert check(chain.finished()) == [24, 3]


def test_averages_and_dense_layers_read_fewer():
    chain = Chain()
    chain.conv(40, idle=30)
    net = chain.net
    pooled = net.fake(net.op("GlobalAveragePool", chain.last), STEP / 2, -128)
    flat = net.op("Flatten", pooled)
    weights = net.dequantize(net.const(chain.random.integers(-90, 91, (7, 40)), np.int8), 0.01)
    chain.last = net.op("Gemm", flat, weights, net.const(chain.random.normal(0, 1, 7)), transB=1)
    assert check(chain.finished()) == [16, 7]


def test_all_may_be_idle():
    chain = Chain()
    chain.conv(16, idle=16)
    chain.conv(16, idle=16, depthwise=True)
    chain.conv(3)
    assert check(chain.finished()) == [8, 8, 3]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_results_stay(data: st.DataObject):
    chain = Chain(data.draw(st.integers(0, 999)))
    for _ in range(data.draw(st.integers(2, 5))):
        depthwise = data.draw(st.booleans())
        channels = chain.channels if depthwise else data.draw(st.integers(1, 40))
        idle, bias = data.draw(st.integers(0, channels)), data.draw(st.sampled_from([-0.5, 0.0, 0.02, 1.0]))
        chain.conv(channels, idle, bias, kernel=data.draw(st.sampled_from([1, 3])), depthwise=depthwise)
    check(chain.finished())
