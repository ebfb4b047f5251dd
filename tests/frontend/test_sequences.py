# SPDX-License-Identifier: Apache-2.0
"""Sequences of known length vanish at import."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx_models import Net, assert_close, c_outputs, imported, numpy_outputs, onnxruntime_outputs, random_feeds

from mcugen.core.errors import UnsupportedError


def split_and_join(net: Net, x: str) -> str:
    parts = net.op("SplitToSequence", x, net.const([1, 3, 2], np.int64), axis=1)
    return net.op("ConcatFromSequence", parts, axis=1)


def unbind(net: Net, x: str) -> str:
    rows = net.op("SplitToSequence", x, axis=0, keepdims=0)
    return net.op("SequenceAt", rows, net.const(-1, np.int64))


def chunks_of_one_size(net: Net, x: str) -> str:
    parts = net.op("SplitToSequence", x, net.const(4, np.int64), axis=1)
    return net.op("SequenceAt", parts, net.const(1, np.int64))


def edited(net: Net, x: str) -> str:
    negative, double = net.op("Neg", x), net.op("Add", x, x)
    items = net.op("SequenceConstruct", x, negative)
    items = net.op("SequenceInsert", items, double, net.const(1, np.int64))
    items = net.op("SequenceErase", items, net.const(0, np.int64))
    items = net.op("Identity", items)
    return net.op("ConcatFromSequence", items, axis=0, new_axis=1)


def length(net: Net, x: str) -> str:
    items = net.op("SequenceInsert", net.op("SequenceEmpty"), x)
    count = net.op("Cast", net.op("SequenceLength", items), to=1)
    return net.op("Mul", x, count)


def optional(net: Net, x: str) -> str:
    wrapped = net.op("Optional", x)
    there = net.op("Cast", net.op("OptionalHasElement", wrapped), to=1)
    return net.op("Add", net.op("OptionalGetElement", wrapped), there)


@pytest.mark.parametrize("build", [split_and_join, unbind, chunks_of_one_size, edited, length, optional])
def test_numpy_and_c_equal_onnxruntime(build: Callable[[Net, str], str]):
    net = Net(18)
    net.output(build(net, net.input("x", 2, 6)))
    model = net.model()
    feeds = random_feeds(model)
    wanted = onnxruntime_outputs(model, feeds)
    assert_close(numpy_outputs(model, feeds), wanted)
    assert_close(c_outputs(model, feeds), wanted)


def test_a_length_known_only_at_run_time_is_refused():
    net = Net(18)
    x, n = net.input("x", 2, 6), net.input("n", dtype=np.int64)
    net.op("SequenceAt", net.op("SequenceConstruct", x, x), n, out="y")
    net.output("y", shape=[2, 6])
    with pytest.raises(UnsupportedError, match=r"SequenceAt.*the position must be constant\. found: 'n'"):
        imported(net.plain_model())


@pytest.mark.parametrize(("position", "message"), [(2, "2 of 2"), (-3, "-3 of 2")])
def test_a_position_outside_is_refused(position: int, message: str):
    net = Net(18)
    x = net.input("x", 2, 6)
    net.op("SequenceAt", net.op("SequenceConstruct", x, x), net.const(position, np.int64), out="y")
    net.output("y", shape=[2, 6])
    with pytest.raises(UnsupportedError, match=message):
        imported(net.plain_model())
