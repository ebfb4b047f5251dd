# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers as Keras exports them, loops that count their steps themselves: found again, and computed so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from float_models import quantized
from onnx import helper
from onnx_models import Net, assert_close, imported, onnxruntime_outputs, operators, optimized, random_feeds
from test_control import check, loop_body, scan_body, scoped

from mcugen.core.errors import UnsupportedError
from mcugen.hir.interpreter import interpret
from mcugen.hir.types import DType
from mcugen.ops.control import Repeat

RANDOM = np.random.default_rng(11)
STEPS, DEPTH, HIDDEN = 7, 3, 4

Write = Callable[[Net, str, Sequence[str]], Sequence[str]]
"""What a step computes of x and the states: the next states, of which the first one is stacked."""


def numbers(*shape: int) -> np.ndarray:
    return RANDOM.uniform(-1, 1, shape).astype(np.float32)


@dataclass(frozen=True)
class While:
    """TensorFlow's `while` as tf2onnx writes it: with a counter of its own, by which it gathers rows of x."""

    write: Write
    states: int = 1
    steps: int = STEPS
    batch: int = 1
    first: tuple[np.ndarray, ...] = ()
    last: int = STEPS
    """Before which number it stops."""
    axis: int = 0
    """Of x, along which steps lie."""

    def model(self, of_last: bool = False) -> onnx.ModelProto:
        """y: all rows, or the states in the end."""
        net, inner = Net(), Net()
        x = net.input("x", *((self.steps, self.batch) if self.axis == 0 else (self.batch, self.steps)), DEPTH)
        inner.input("i", dtype=np.int64)
        inner.input("going", dtype=np.bool_)
        counter = inner.input("counter", dtype=np.int32)
        states = [inner.input(f"state{k}", self.batch, HIDDEN) for k in range(self.states)]
        following = inner.op("Add", counter, inner.const(1, np.int32))
        row = inner.op("Gather", x, counter, axis=self.axis)
        after = self.write(inner, row, states)
        less = inner.op("Less", inner.op("Cast", following, to=1), inner.const(float(self.last)))
        inner.output(inner.op("Identity", less, out="go_on"), dtype=np.bool_)
        inner.output(inner.op("Identity", following, out="next"), dtype=np.int32)
        results = [inner.op("Identity", v, out=f"after{k}") for k, v in enumerate(after)]
        inner.output(*results, inner.op("Identity", after[0], out="row"))
        body = scoped(helper.make_graph(inner.nodes, "body", inner.inputs, inner.outputs, inner.constants))
        first = self.first or (np.zeros((self.batch, HIDDEN), np.float32),) * self.states
        trips, going = net.const(self.steps, np.int64), net.const(True, np.bool_)
        inputs = [trips, going, net.const(0, np.int32), *(net.const(v) for v in first)]
        outs = ["count", *(f"state{k}_out" for k in range(self.states)), "rows"]
        net.ops("Loop", *inputs, outs=outs, body=body)
        if of_last:
            net.output(*(net.op("Mul", name, net.const(2.0)) for name in outs[1:-1]))
            net.output("count", dtype=np.int32)
        else:
            net.output(net.op("Neg", "rows", out="y"))
        return net.model()


def product(net: Net, value: str, matrix: np.ndarray, bias: np.ndarray | None = None) -> str:
    found = net.op("MatMul", value, net.const(matrix))
    return found if bias is None else net.op("Add", found, net.const(bias))


def lstm(net: Net, x: str, states: Sequence[str]) -> Sequence[str]:
    """As Keras: one sum of both products, and a bias; its parts are i, f, g, o."""
    h, c = states
    total = net.op("Add", product(net, x, numbers(DEPTH, 4 * HIDDEN)), product(net, h, numbers(HIDDEN, 4 * HIDDEN)))
    total = net.op("Add", total, net.const(numbers(4 * HIDDEN)))
    parts = net.const([HIDDEN] * 4, np.int64)
    i, f, g, o = net.ops("Split", total, parts, outs=[f"gate{k}" for k in range(4)], axis=1)
    kept = net.op("Mul", net.op("Sigmoid", f), c)
    cell = net.op("Add", kept, net.op("Mul", net.op("Sigmoid", i), net.op("Tanh", g)))
    return [net.op("Mul", net.op("Sigmoid", o), net.op("Tanh", cell)), cell]


def columns(net: Net, value: str, begin: int, end: int) -> str:
    begins, ends = net.const([0, begin], np.int64), net.const([2**31 - 1, end], np.int64)
    return net.op("Slice", value, begins, ends, net.const([0, 1], np.int64))


def gru(reset_after: bool) -> Write:
    """As Keras: z, r, candidate; `reset_after` with a bias of each product."""

    def write(net: Net, x: str, states: Sequence[str]) -> Sequence[str]:
        (h,) = states
        inner = product(net, x, numbers(DEPTH, 3 * HIDDEN), numbers(3 * HIDDEN))
        parts = net.const([HIDDEN] * 3, np.int64)
        xz, xr, xh = net.ops("Split", inner, parts, outs=["xz", "xr", "xh"], axis=-1)
        recurrent = numbers(HIDDEN, 3 * HIDDEN)
        if reset_after:
            sums = product(net, h, recurrent, numbers(3 * HIDDEN))
        else:
            sums = product(net, h, recurrent[:, : 2 * HIDDEN])
        z, r = (
            net.op("Sigmoid", net.op("Add", own, columns(net, sums, k * HIDDEN, (k + 1) * HIDDEN)))
            for k, own in enumerate((xz, xr))
        )
        if reset_after:
            late = net.op("Mul", r, columns(net, sums, 2 * HIDDEN, 3 * HIDDEN))
        else:
            late = product(net, net.op("Mul", r, h), recurrent[:, 2 * HIDDEN :])
        candidate = net.op("Tanh", net.op("Add", xh, late))
        fresh = net.op("Mul", net.op("Sub", net.const(1.0), z), candidate)
        return [net.op("Add", net.op("Mul", z, h), fresh)]

    return write


def rnn(net: Net, x: str, states: Sequence[str]) -> Sequence[str]:
    inner = product(net, x, numbers(DEPTH, HIDDEN), numbers(HIDDEN))
    return [net.op("Tanh", net.op("Add", product(net, states[0], numbers(HIDDEN, HIDDEN)), inner))]


LAYERS = {"lstm": (lstm, 2), "gru": (gru(True), 1), "gru, reset first": (gru(False), 1), "rnn": (rnn, 1)}


@pytest.mark.parametrize("of_last", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", LAYERS)
def test_a_loop_is_the_layer(name: str, batch: int, of_last: bool) -> None:
    write, states = LAYERS[name]
    first = tuple(numbers(batch, HIDDEN) for _ in range(states)) if of_last else ()
    model = While(write, states, batch=batch, first=first).model(of_last)
    graph = optimized(model)
    assert name.partition(",")[0] in operators(graph) and not any(node.op.bodies for node in graph.nodes)
    check(model)


def test_more_steps_than_may_be_written_out() -> None:
    """Growing outputs with a condition that the body computes were refused beyond 128 steps."""
    model = While(lstm, 2, steps=300, last=300).model()
    assert "lstm" in operators(optimized(model))
    check(model)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_it_is_quantized(name: str) -> None:
    write, states = LAYERS[name]
    model = While(write, states, steps=20, last=20).model()
    graph = optimized(quantized(model).proto)
    layers = [n for body in graph.nested() for n in body.nodes if n.op.name == "dense"]
    assert layers and all(n.input(1).type.dtype is DType.INT8 for n in layers)


def test_another_cell_stays_a_loop() -> None:
    """h' = tanh(x · W) + h: steps and rows are known, and no layer of ONNX is."""

    def write(net: Net, x: str, states: Sequence[str]) -> Sequence[str]:
        return [net.op("Add", net.op("Tanh", product(net, x, numbers(DEPTH, HIDDEN))), states[0])]

    model = While(write, steps=200, last=200).model()
    (node,) = (n for n in optimized(model).nodes if isinstance(n.op, Repeat))
    assert node.op.steps == 200 and not node.op.conditional and len(node.op.taken) == 1
    check(model)


def spread(net: Net, x: str, states: Sequence[str]) -> Sequence[str]:
    """One number of x for all of h."""
    one = net.op("ReduceSum", x, net.const([1], np.int64))
    return [net.op("Tanh", net.op("Add", one, product(net, states[0], numbers(HIDDEN, HIDDEN))))]


def one_gate(net: Net, x: str, states: Sequence[str]) -> Sequence[str]:
    """A GRU whose update gate is one number for all of h, without an axis."""
    (h,) = states
    z = net.op("Sigmoid", net.op("ReduceSum", x, keepdims=0))
    candidate = net.op("Tanh", net.op("Add", product(net, x, numbers(DEPTH, HIDDEN)), net.op("Mul", z, h)))
    fresh = net.op("Mul", net.op("Sub", net.const(1.0), z), candidate)
    return [net.op("Add", net.op("Mul", z, h), fresh)]


def far(net: Net, x: str, states: Sequence[str]) -> Sequence[str]:
    """Of a row of 20,000 numbers, for which no matrix of all by all is made."""
    wide = net.op("Expand", net.op("ReduceSum", x), net.const([1, 20000], np.int64))
    inner = product(net, wide, np.eye(20000, HIDDEN, dtype=np.float32))
    return [net.op("Tanh", net.op("Add", inner, product(net, states[0], numbers(HIDDEN, HIDDEN))))]


@pytest.mark.parametrize("write", [spread, one_gate, far])
def test_what_is_not_quite_a_layer(write: Write) -> None:
    model = While(write).model()
    assert not {"rnn", "gru"} & {*operators(optimized(model))}
    check(model)


@pytest.mark.parametrize("batch", [1, STEPS])
def test_rows_along_another_axis_are_a_layer_behind_a_transposition(batch: int) -> None:
    model = While(lstm, 2, batch=batch, axis=1).model()
    assert "lstm" in operators(optimized(model))
    check(model)


def scan(write: Write, states: int, batch: int, axes: tuple[int, int], direction: int) -> onnx.ModelProto:
    """A Scan over x along one axis, whose rows are stacked along another, and its last states."""
    net = Net()
    x = net.input("x", *((STEPS, batch) if axes[0] == 0 else (batch, STEPS)), DEPTH)

    def body(inner: Net, before: list[str], parts: list[str]) -> tuple[list[str], list[str]]:
        after = list(write(inner, parts[0], before))
        return after, after[:1]

    inner = scan_body(body, [(batch, HIDDEN)] * states, [(batch, DEPTH)])
    outs = [*(f"last{k}" for k in range(states)), "rows"]
    first = [net.input(f"first{k}", batch, HIDDEN) for k in range(states)]
    net.ops(
        "Scan",
        *first,
        x,
        outs=outs,
        body=inner,
        num_scan_inputs=1,
        scan_input_axes=axes[:1],
        scan_output_axes=axes[1:],
        scan_input_directions=[direction],
        scan_output_directions=[direction],
    )
    net.output(*outs)
    return net.model()


@pytest.mark.parametrize(("axes", "batch", "direction"), [((0, 0), 1, 0), ((1, 1), 2, 1), ((0, 1), 2, 0)])
@pytest.mark.parametrize("name", LAYERS)
def test_a_scan_is_the_layer(name: str, axes: tuple[int, int], batch: int, direction: int) -> None:
    model = scan(*LAYERS[name], batch, axes, direction)
    graph = optimized(model)
    assert name.partition(",")[0] in operators(graph) and not any(node.op.bodies for node in graph.nodes)
    assert_close(interpret(graph, random_feeds(model)), onnxruntime_outputs(model, random_feeds(model)))


def test_a_scan_of_a_cell_is_quantized_like_the_layer() -> None:
    graph = optimized(quantized(scan(gru(True), 1, 1, (0, 0), 0)).proto)
    layers = [n for body in graph.nested() for n in body.nodes if n.op.name == "dense"]
    assert layers and all(n.input(1).type.dtype is DType.INT8 for n in layers)


def test_a_great_many_steps_are_not_played() -> None:
    """Of a body without a counter, too: it is told that they are too many, and at once."""

    def write(net: Net, states: list[str]) -> tuple[list[str], list[str]]:
        return [net.op("Mul", states[0], net.const(0.5))], []

    net = Net()
    trips, going = net.const(2**60, np.int64), net.const(True, np.bool_)
    net.output(net.op("Loop", trips, going, net.input("x", 3), out="y", body=loop_body(write, (3,))))
    with pytest.raises(UnsupportedError, match="operators"):
        imported(net.model())


def test_a_loop_that_ends_before_its_trips_are_made() -> None:
    model = While(rnn, steps=9, last=5).model(of_last=True)
    graph = imported(model)
    (node,) = (n for n in graph.nodes if isinstance(n.op, Repeat))
    assert node.op.steps == 5  # of 9 rows: no layer of all of them
    check(model)
    assert onnxruntime_outputs(model, random_feeds(model))["count"] == 5


def test_a_condition_of_data_is_still_refused_where_outputs_grow() -> None:
    def write(net: Net, x: str, states: Sequence[str]) -> Sequence[str]:
        return [net.op("Add", states[0], net.op("ReduceSum", x))]

    model = While(write, steps=200, last=200).model()
    (loop,) = (n for n in model.graph.node if n.op_type == "Loop")
    (body,) = (a.g for a in loop.attribute if a.name == "body")
    less = next(n for n in body.node if n.op_type == "Less")
    state = body.input[3].name
    body.node.insert(0, helper.make_node("ReduceSum", [state], ["of_data"], keepdims=0))
    less.input[0] = "of_data"
    with pytest.raises(UnsupportedError, match="condition must be constant"):
        imported(model)
