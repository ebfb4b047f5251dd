# SPDX-License-Identifier: Apache-2.0
"""Derivatives of recurrent layers, as those of equivalent loops over time steps, one for each direction.

Inference keeps the layers' own kernels; only the backward part recomputes their steps from what the layer reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mcugen.hir.graph import Graph, Node, Value
from mcugen.ops.control import STEP_COUNTER_TYPE, Repeat, Walk, plain
from mcugen.ops.gradient.reverse import gradients_of_several
from mcugen.ops.gradient.rule import Backward, Gradients, Parts, derivative_of_all
from mcugen.ops.matmul import MatMul
from mcugen.ops.movement import Concat, Slice
from mcugen.ops.onnx_node import Refusal
from mcugen.ops.pointwise import Clamp, Unary
from mcugen.ops.recurrent import C0, H0, LENS, Activation, B, Gru, Lstm, P, R, Recurrent, Rnn, W, X


@derivative_of_all(Recurrent)
def _of_recurrent(back: Backward, op: Recurrent, node: Node, gradients: Gradients) -> Parts:
    """Return the gradients with respect to all inputs, built together."""
    if len(node.inputs) > LENS and node.inputs[LENS] is not None:
        raise Refusal(f"{op.name} is differentiated over whole windows", f"{node.place} has lengths", "leave them out")
    varying_inputs = [i for i, v in enumerate(node.inputs) if v is not None and v in back.varying]
    input_gradients: list[Value] = []

    def by(place: int) -> Value:
        if not input_gradients:
            results = _Layer(back, node, op).results()
            seeds = [(results[i], g) for i, g in enumerate(gradients) if g is not None]
            input_gradients.extend(gradients_of_several(back.graph, seeds, [node.input(i) for i in varying_inputs]))
        return input_gradients[place]

    return {index: partial(by, place) for place, index in enumerate(varying_inputs)}


@dataclass(frozen=True)
class _Layer:
    """A layer as loops."""

    back: Backward
    node: Node
    op: Recurrent

    def results(self) -> list[Value]:
        """Values that are equal to the node's outputs."""
        back, first = self.back, self.op.batch_first
        directions = [self._direction(d) for d in range(len(self.op.backwards))]
        outputs = []
        for result, output in zip(self.op.results, self.node.outputs, strict=True):
            shape, axis = output.type.shape, int(first) + (result == "Y")
            parts = [
                back.reshaped(direction[result], (*shape[:axis], 1, *shape[axis + 1 :])) for direction in directions
            ]
            outputs.append(parts[0] if len(parts) == 1 else back.emit(Concat(axis), *parts))
        return outputs

    def _direction(self, d: int) -> Mapping[str, Value]:
        """All results of one direction, without its axis."""
        x, walk = self.node.input(X), Walk(int(self.op.batch_first), self.op.backwards[d])
        states = [self._first(index, d) for index in range(len(self.op.states))]
        seen = self._weights(d)
        body = Graph(f"{self.node.outputs[0].name}.step")
        body.add_input("step", STEP_COUNTER_TYPE)
        inner = [body.add_input(v.name, plain(v.type)) for v in states]
        part = body.add_input(x.name, plain(x.type.with_shape(walk.part(x.type.shape))))
        weights = {role: body.add_input(v.name, plain(v.type)) for role, v in seen.items()}
        cell = _Cell(replace(self.back, graph=body), self.op, d, weights, self._hidden)
        after = _STEPS[type(self.op)](cell, part, inner)
        for value in (*after, after[0]):
            body.add_output(value.name, value)
        loop = Repeat(body, x.type.shape[walk.axis], len(states), (walk,), (walk,))
        names = [f"{self.node.outputs[0].name}.again.{d}"] * (len(after) + 1)
        loop_outputs = self.back.emit_all(loop, [*states, x, *seen.values()], names)
        return {**{f"Y_{s}": v for s, v in zip(self.op.states, loop_outputs, strict=False)}, "Y": loop_outputs[-1]}

    def _weights(self, d: int) -> dict[str, Value]:
        """Return the weights of a direction by name; matrices are split by gates and named after the first gate."""
        back, weights = self.back, {}
        for index, name in ((W, "w"), (R, "r")):
            whole = self._of_direction(index, d, 0)
            for gates in _PARTS.get(type(self.op), (slice(self.op.gates),)):
                weights[f"{name}{gates.start or 0}"] = _gates_of(back, whole, gates, self._hidden)
        for index, name in ((B, "b"), (P, "p")):
            if self._has(index):
                weights[name] = self._of_direction(index, d, 0)
        return weights

    @property
    def _hidden(self) -> int:
        return self.node.input(R).type.shape[2]

    def _has(self, index: int) -> bool:
        return len(self.node.inputs) > index and self.node.inputs[index] is not None

    def _of_direction(self, index: int, d: int, axis: int) -> Value:
        """Return the part of an input that belongs to one direction."""
        value = self.node.input(index)
        shape = value.type.shape
        starts = tuple(d if a == axis else 0 for a in range(len(shape)))
        sizes = tuple(1 if a == axis else n for a, n in enumerate(shape))
        one = value if sizes == shape else self.back.emit(Slice(starts, sizes, (1,) * len(shape)), value)
        return self.back.reshaped(one, (*shape[:axis], *shape[axis + 1 :]))

    def _first(self, index: int, d: int) -> Value:
        """Return an initial state [batch, hidden]."""
        place = (H0, C0)[index]
        if self._has(place):
            return self._of_direction(place, d, int(self.op.batch_first))
        x = self.node.input(X).type
        return self.back.zeros(x, (x.shape[0 if self.op.batch_first else 1], self._hidden))


def _gates_of(at: Backward, x: Value, gates: slice, hidden: int) -> Value:
    """Return the rows of some gates."""
    start, stop, _ = gates.indices(x.type.shape[0] // hidden)
    shape = ((stop - start) * hidden, *x.type.shape[1:])
    starts = (start * hidden, *(0 for _ in shape[1:]))
    return x if shape == x.type.shape else at.emit(Slice(starts, shape, (1,) * len(shape)), x)


_PARTS: Mapping[type[Recurrent], tuple[slice, ...]] = {Gru: (slice(2), slice(2, 3))}
"""Ranges of gates whose rows of R are multiplied by h separately; other layers multiply all gates at once."""


@dataclass(frozen=True)
class _Cell:
    """One direction's step while its body is made."""

    at: Backward
    op: Recurrent
    d: int
    weights: Mapping[str, Value]
    hidden: int

    def product(self, x: Value, matrix: str) -> Value:
        """Rows of x by those of a matrix."""
        return self.at.emit(MatMul(), x, self.at.transposed(self.weights[matrix], [1, 0]))

    def bias(self, sums: Value, gates: slice) -> Value:
        """Add the biases of some gates to sums. The second half of the biases belongs to R."""
        if "b" not in self.weights:
            return sums
        bias = _gates_of(self.at, self.weights["b"], gates, self.hidden)
        return self.at.add(sums, self.at.reshaped(bias, (1, sums.type.shape[1])))

    def sums(self, x: Value, h: Value) -> Value:
        """Return both products with all biases added."""
        both, gates = self.at.add(self.product(x, "w0"), self.product(h, "r0")), self.op.gates
        return self.bias(self.bias(both, slice(gates)), slice(gates, 2 * gates))

    def gates(self, sums: Value) -> list[Value]:
        """One tensor each."""
        size = (sums.type.shape[0], self.hidden)
        starts = range(0, sums.type.shape[1], self.hidden)
        return [self.at.emit(Slice((0, start), size, (1, 1)), sums) for start in starts]

    def gate(self, x: Value, activation: int) -> Value:
        """Clipped, then activated."""
        clip = self.op.clip
        return self.activated(x if math.isinf(clip) else self.at.emit(Clamp(-clip, clip), x), activation)

    def activated(self, x: Value, activation: int) -> Value:
        """Apply an activation function of this direction."""
        return _activated(self.at, self.op.activations[self.d][activation], x)

    def peephole(self, x: Value, gate: int, c: Value) -> Value:
        """x + p · c."""
        if "p" not in self.weights:
            return x
        p = self.at.reshaped(
            _gates_of(self.at, self.weights["p"], slice(gate, gate + 1), self.hidden), (1, self.hidden)
        )
        return self.at.add(x, self.at.mul(p, c))

    def mixed(self, gate: Value, a: Value, b: Value) -> Value:
        """Return gate · a + (1 − gate) · b."""
        return self.at.add(b, self.at.mul(gate, self.at.sub(a, b)))


def _activated(at: Backward, activation: Activation, x: Value) -> Value:
    """Apply an ONNX activation function, expressed by differentiable operators."""
    name, a, b = activation.function, activation.alpha, activation.beta
    match name:
        case "Relu":
            return at.emit(Clamp(0.0), x)
        case "Affine":
            return at.add(at.scaled(x, a), at.number(b, x))
        case "ScaledTanh":
            return at.scaled(at.emit(Unary("Tanh"), at.scaled(x, b)), a)
    count = {"HardSigmoid": 2, "LeakyRelu": 1, "ThresholdedRelu": 1, "Elu": 1}.get(name, 0)
    return at.emit(Unary(name, (a, b)[:count]), x)


def _rnn(cell: _Cell, x: Value, states: Sequence[Value]) -> list[Value]:
    return [cell.gate(cell.sums(x, states[0]), 0)]


def _lstm(cell: _Cell, x: Value, states: Sequence[Value]) -> list[Value]:
    op, at, (h, c) = cell.op, cell.at, states
    assert isinstance(op, Lstm)
    i, o, f, g = cell.gates(cell.sums(x, h))
    i = cell.gate(cell.peephole(i, 0, c), 0)
    fresh = cell.gate(g, 1)
    forget = None if op.coupled else cell.gate(cell.peephole(f, 2, c), 0)
    new = cell.mixed(i, fresh, c) if forget is None else at.add(at.mul(forget, c), at.mul(i, fresh))
    return [at.mul(cell.gate(cell.peephole(o, 1, new), 0), cell.activated(new, 2)), new]


def _gru(cell: _Cell, x: Value, states: Sequence[Value]) -> list[Value]:
    op, at, (h,) = cell.op, cell.at, states
    assert isinstance(op, Gru)
    first = at.add(cell.product(x, "w0"), cell.product(h, "r0"))
    z, r = cell.gates(cell.bias(cell.bias(first, slice(2)), slice(3, 5)))
    z, r = cell.gate(z, 0), cell.gate(r, 0)
    inner = cell.bias(cell.product(x, "w2"), slice(2, 3))
    if op.linear:
        outer = at.mul(r, cell.bias(cell.product(h, "r2"), slice(5, 6)))
    else:
        outer = cell.bias(cell.product(at.mul(r, h), "r2"), slice(5, 6))
    return [cell.mixed(z, h, cell.gate(at.add(inner, outer), 1))]


_STEPS: Mapping[type[Recurrent], Callable[[_Cell, Value, Sequence[Value]], list[Value]]] = {
    Rnn: _rnn,
    Lstm: _lstm,
    Gru: _gru,
}
"""For each layer type: computes the next states from a step's input and states, as `Recurrent.step` does in numpy."""
