# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers that come step after step, as PyTorch writes loops over cells: found again, and computed as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from float_models import quantized
from onnx_models import Net, check_quantized, operators, optimized
from test_control import check

from mcugen.hir.types import DType
from mcugen.ops.control import Repeat

STEPS, DEPTH, HIDDEN = 6, 3, 4
GATES = {"lstm": 4, "gru": 3, "gru, blended": 3, "rnn": 1}


@dataclass
class Layer:
    """Cells whose weights all steps share: two products, each with a bias."""

    net: Net
    kind: str
    depth: int = DEPTH
    seed: int = 3
    w: str = field(init=False)
    r: str = field(init=False)
    b: tuple[str, str] = field(init=False)

    def __post_init__(self) -> None:
        random, rows = np.random.default_rng(self.seed), GATES[self.kind] * HIDDEN
        self.w, self.r = (self.net.const(random.uniform(-1, 1, (rows, n))) for n in (self.depth, HIDDEN))
        self.b = (self.net.const(random.uniform(-1, 1, rows)), self.net.const(random.uniform(-1, 1, rows)))

    @property
    def zeros(self) -> list[str]:
        """The first states."""
        return [self.net.const(np.zeros((1, HIDDEN))) for _ in range(2 if self.kind == "lstm" else 1)]

    def step(self, x: str, states: Sequence[str]) -> list[str]:
        """The next states."""
        own, kept = self._parts(x, self.w, self.b[0]), self._parts(states[0], self.r, self.b[1])
        return self.cell(own, kept, states)

    def _parts(self, value: str, matrix: str, bias: str) -> list[str]:
        total, count = self.net.op("Gemm", value, matrix, bias, transB=1), GATES[self.kind]
        if count == 1:
            return [total]
        sizes = self.net.const([HIDDEN] * count, np.int64)
        return self.net.ops("Split", total, sizes, outs=[f"{total}.{k}" for k in range(count)], axis=1)

    def cell(self, own: Sequence[str], kept: Sequence[str], states: Sequence[str]) -> list[str]:
        """Of the sums of x and of h: i, f, g, o; or r, z, candidate."""
        op = self.net.op
        if self.kind == "rnn":
            return [op("Tanh", op("Add", own[0], kept[0]))]
        sums = [op("Add", a, b) for a, b in zip(own, kept, strict=True)]
        if self.kind == "lstm":
            i, f, o = (op("Sigmoid", sums[k]) for k in (0, 1, 3))
            c = op("Add", op("Mul", f, states[1]), op("Mul", i, op("Tanh", sums[2])))
            return [op("Mul", o, op("Tanh", c)), c]
        r, z = (op("Sigmoid", v) for v in sums[:2])
        n = op("Tanh", op("Add", own[2], op("Mul", r, kept[2])))
        if self.kind == "gru":
            return [op("Add", op("Mul", op("Sub", self.net.const(1.0), z), n), op("Mul", z, states[0]))]
        return [op("Add", op("Mul", op("Sub", states[0], n), z), n)]


def rows_of(net: Net, x: str, steps: int = STEPS) -> list[str]:
    """x [1, steps, depth] row by row."""
    return [net.op("Gather", x, net.const(t, np.int64), axis=1) for t in range(steps)]


def stacked(net: Net, rows: Sequence[str]) -> str:
    """As torch.stack."""
    return net.op("Concat", *(net.op("Unsqueeze", row, net.const([1], np.int64)) for row in rows), axis=1)


def run(layer: Layer, rows: Sequence[str], states: Sequence[str]) -> tuple[list[str], Sequence[str]]:
    """h after each step, and the last states."""
    every = []
    for row in rows:
        states = layer.step(row, states)
        every.append(states[0])
    return every, states


def layers_of(model: onnx.ModelProto) -> list[str]:
    """Its recurrent layers and what they would consist of."""
    return [op for op in operators(optimized(model)) if op in ("lstm", "gru", "rnn", "dense")]


@pytest.mark.parametrize("of_last", [False, True])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("kind", GATES)
def test_steps_are_the_layer(kind: str, backwards: bool, of_last: bool) -> None:
    net = Net()
    rows = rows_of(net, net.input("x", 1, STEPS, DEPTH))
    layer = Layer(net, kind)
    every, states = run(layer, rows[::-1] if backwards else rows, layer.zeros)
    if of_last:
        net.output(*(net.op("Neg", v) for v in states))
    else:
        net.output(net.op("Neg", stacked(net, every[::-1] if backwards else every)))
    model = net.model()
    assert layers_of(model) == [kind.partition(",")[0]]
    assert len(optimized(model).nodes) < 10
    check(model)


def test_backwards_as_keras_stacks_it() -> None:
    """In the order of steps, and then turned."""
    net = Net()
    rows = rows_of(net, net.input("x", 1, STEPS, DEPTH))
    layer = Layer(net, "lstm")
    every = [net.op("Unsqueeze", row, net.const([0], np.int64)) for row in run(layer, rows[::-1], layer.zeros)[0]]
    lens = net.const([STEPS], np.int64)
    turned = net.op("ReverseSequence", net.op("Concat", *every, axis=0), lens, batch_axis=1, time_axis=0)
    net.output(net.op("Neg", turned))
    model = net.model()
    assert set(operators(optimized(model))) == {"reshape", "lstm", "neg"}
    check(model)


def test_parts_in_another_order_stay() -> None:
    net = Net()
    x = net.input("x", 4, 3)
    rows = [net.op("Gather", x, net.const([t], np.int64), axis=0) for t in (3, 2, 0, 1)]
    net.output(net.op("Concat", *rows, axis=0), net.op("Concat", *sorted(rows[:2]), axis=0))
    model = net.model()
    assert operators(optimized(model)).count("concat") == 2
    check(model)


@pytest.mark.parametrize("kind", GATES)
def test_states_come_from_outside(kind: str) -> None:
    net = Net()
    rows = rows_of(net, net.input("x", 1, STEPS, DEPTH))
    layer = Layer(net, kind)
    first = [net.input(f"state{k}", 1, HIDDEN) for k in range(len(layer.zeros))]
    every, states = run(layer, rows, first)
    net.output(net.op("Neg", stacked(net, every)), *(net.op("Neg", v) for v in states))
    model = net.model()
    assert layers_of(model) == [kind.partition(",")[0]]
    check(model)


def test_what_zeros_leave_of_the_first_step_belongs_to_it() -> None:
    """PyTorch folds R · 0 + b, and drops f · 0."""
    net = Net()
    rows = rows_of(net, net.input("x", 1, STEPS, DEPTH))
    layer = Layer(net, "lstm")
    own = layer._parts(rows[0], layer.w, layer.b[0])
    folded = net.constants[[t.name for t in net.constants].index(layer.b[1])]
    bias = onnx.numpy_helper.to_array(folded).reshape(4, 1, HIDDEN)
    i, g, o = (net.op("Add", own[k], net.const(bias[k])) for k in (0, 2, 3))
    c = net.op("Mul", net.op("Sigmoid", i), net.op("Tanh", g))
    h = net.op("Mul", net.op("Sigmoid", o), net.op("Tanh", c))
    every, _ = run(layer, rows[1:], [h, c])
    net.output(net.op("Neg", stacked(net, [h, *every])))
    model = net.model()
    assert layers_of(model) == ["lstm"]
    check(model)


def test_a_first_step_of_its_own_stays() -> None:
    """Its states are not those that zeros would give: they come from x, but otherwise."""
    net = Net()
    rows = rows_of(net, net.input("x", 1, STEPS, DEPTH))
    layer = Layer(net, "gru")
    first = net.op("Gemm", rows[0], net.const(np.random.default_rng(1).uniform(-1, 1, (DEPTH, HIDDEN))))
    every, _ = run(layer, rows[1:], [first])
    net.output(net.op("Neg", stacked(net, [first, *every])))
    model = net.model()
    assert sorted(layers_of(model)) == ["dense", "gru"]
    check(model)


def test_products_of_all_steps_at_once() -> None:
    """As PyTorch takes an nn.RNN apart: W · x + b before all steps, whose states have a further axis."""
    net = Net()
    x = net.input("x", 1, STEPS, DEPTH)
    layer = Layer(net, "rnn")
    turned = net.op("Transpose", net.op("Transpose", x, perm=[1, 0, 2]), perm=[0, 1, 2])
    inner = net.op("MatMul", turned, net.op("Transpose", layer.w))
    inner = net.op("Add", inner, layer.b[0])
    recurrent, h, every = net.op("Transpose", layer.r), net.const(np.zeros((1, 1, HIDDEN))), []
    for t in range(STEPS):
        row = net.op("Gather", inner, net.const([t], np.int64), axis=0)
        h = net.op("Tanh", net.op("Add", row, net.op("Add", net.op("MatMul", h, recurrent), layer.b[1])))
        every.append(h)
    net.output(net.op("Neg", net.op("Concat", *every, axis=0)))
    model = net.model()
    assert layers_of(model) == ["rnn"]
    check(model)


@pytest.mark.parametrize("interleaved", [False, True])
def test_layers_on_each_other(interleaved: bool) -> None:
    net = Net()
    rows = rows_of(net, net.input("x", 1, STEPS, DEPTH))
    below, above = Layer(net, "lstm"), Layer(net, "gru", HIDDEN, 4)
    if interleaved:
        low, high, every = below.zeros, above.zeros, []
        for row in rows:
            low = below.step(row, low)
            high = above.step(low[0], high)
            every.append(high[0])
    else:
        between, _ = run(below, rows, below.zeros)
        every, _ = run(above, rows_of(net, stacked(net, between)), above.zeros)
    net.output(net.op("Neg", stacked(net, every)))
    model = net.model()
    assert layers_of(model) == ["lstm", "gru"]
    check(model)


def _other_weights(net: Net, layer: Layer, rows: list[str]) -> list[str]:
    other = Layer(net, layer.kind, seed=5)
    states, every = layer.zeros, []
    for t, row in enumerate(rows):
        states = (other if t == 3 else layer).step(row, states)
        every.append(states[0])
    return every


def _rows_twice(net: Net, layer: Layer, rows: list[str]) -> list[str]:
    return run(layer, [row for row in rows[:3] for _ in range(2)], layer.zeros)[0]


def _every_cell(net: Net, layer: Layer, rows: list[str]) -> list[str]:
    states, every = layer.zeros, []
    for row in rows:
        states = layer.step(row, states)
        every.append(states[1])
    return every


@pytest.mark.parametrize("write", [_other_weights, _rows_twice, _every_cell])
def test_what_is_not_quite_a_layer(write: Callable[[Net, Layer, list[str]], list[str]]) -> None:
    """Weights of its own in between, rows that are read twice, c that is read after each step."""
    net = Net()
    rows = rows_of(net, net.input("x", 1, STEPS, DEPTH))
    net.output(net.op("Neg", stacked(net, write(net, Layer(net, "lstm"), rows))))
    model = net.model()
    assert "lstm" not in layers_of(model)
    check(model)


def test_a_long_network_before_the_first_step() -> None:
    """The first states come of more operators than Python's stack has frames."""
    net = Net()
    x = net.input("x", 1, STEPS, DEPTH)
    layer, h = Layer(net, "gru"), net.input("h", 1, HIDDEN)
    for _ in range(1500):
        h = net.op("Neg", h)
    every, _ = run(layer, rows_of(net, x)[1:], [net.op("Tanh", h)])
    net.output(net.op("Neg", stacked(net, every)))
    assert layers_of(net.model()) == ["gru"]


def test_halves_round_in_every_step() -> None:
    """Of float16, each step's states do; a layer would keep more of them."""
    net = Net()
    rows = rows_of(net, net.op("Cast", net.input("x", 1, STEPS, DEPTH), to=onnx.TensorProto.FLOAT16))
    random, h, every = np.random.default_rng(2), net.const(np.zeros((1, HIDDEN)), np.float16), []
    w, r = (net.const(random.uniform(-1, 1, (n, HIDDEN)), np.float16) for n in (DEPTH, HIDDEN))
    for row in rows:
        h = net.op("Tanh", net.op("Add", net.op("MatMul", row, w), net.op("MatMul", h, r)))
        every.append(h)
    net.output(net.op("Cast", stacked(net, every), to=onnx.TensorProto.FLOAT))
    model = net.model()
    assert "rnn" not in operators(optimized(model))
    check(model, relative=1e-2)


def test_too_few_steps_stay() -> None:
    net = Net()
    rows = rows_of(net, net.input("x", 1, 3, DEPTH), 3)
    layer = Layer(net, "lstm")
    net.output(net.op("Neg", run(layer, rows, layer.zeros)[0][-1]))
    assert "lstm" not in layers_of(net.model())


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_it_is_quantized_as_the_layer(kind: str) -> None:
    """One matrix of int8 for all steps."""
    net = Net()
    rows = rows_of(net, net.input("x", 1, STEPS, DEPTH))
    layer = Layer(net, kind)
    net.output(net.op("Neg", stacked(net, run(layer, rows, layer.zeros)[0])))
    graph = optimized(quantized(net.model()).proto)
    layers = [n for body in graph.nested() for n in body.nodes if n.op.name == "dense"]
    weights = {v.name: v.type for n in layers for v in n.inputs if v is not None and v.is_constant}
    assert all(n.input(1).type.dtype is DType.INT8 for n in layers)
    assert sum(t.count for t in weights.values() if t.dtype is DType.INT8) == GATES[kind] * HIDDEN * (DEPTH + HIDDEN)


@pytest.mark.parametrize("kind", GATES)
def test_of_the_last_step_alone_the_others_are_not_kept(kind: str) -> None:
    net = Net()
    rows = rows_of(net, net.input("x", 1, STEPS, DEPTH))
    layer = Layer(net, kind)
    net.output(net.op("Neg", run(layer, rows, layer.zeros)[0][-1]))
    (node,) = (n for n in optimized(net.model()).nodes if n.op.name == kind.partition(",")[0])
    assert [v.type.count for v in node.outputs] == [HIDDEN]


def test_of_the_last_step_alone_an_integer_loop_keeps_no_others() -> None:
    net = Net()
    rows = rows_of(net, net.input("x", 1, STEPS, DEPTH))
    layer = Layer(net, "lstm")
    net.output(net.op("Neg", run(layer, rows, layer.zeros)[0][-1]))
    model = quantized(net.model()).proto
    (node,) = (n for n in optimized(model).nodes if isinstance(n.op, Repeat))
    assert not node.op.stacked
    check_quantized(model)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_a_slice_of_another_step(direction: str) -> None:
    net, random = Net(), np.random.default_rng(4)
    w, r = (net.const(random.uniform(-1, 1, (1, HIDDEN, n))) for n in (DEPTH, HIDDEN))
    (every,) = net.ops(
        "RNN", net.input("x", STEPS, 1, DEPTH), w, r, outs=["all"], hidden_size=HIDDEN, direction=direction
    )
    net.output(net.op("Neg", net.op("Gather", every, net.const(1, np.int64), axis=0)))
    check(net.model())
