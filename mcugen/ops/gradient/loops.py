# SPDX-License-Identifier: Apache-2.0
"""Derivatives of loops (Scan, Loop), by backpropagation through time.

A first loop recomputes the states before each step and keeps them (rematerialization). A second loop runs backwards;
each of its steps recomputes one forward step from these states, and then the gradients through it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.types import TensorType
from mcugen.ops.control import STEP_COUNTER_TYPE, Repeat, Walk, plain
from mcugen.ops.gradient.reverse import gradients_of_several, zero_gradient
from mcugen.ops.gradient.rule import Backward, Gradients, Parts, derivative_of_all
from mcugen.ops.gradient.unfused import unfuse
from mcugen.ops.matmul import MatMul
from mcugen.ops.movement import Transpose
from mcugen.ops.onnx_node import Refusal
from mcugen.ops.pointwise import Binary


@derivative_of_all(Repeat)
def _of_repeat(back: Backward, op: Repeat, node: Node, gradients: Gradients) -> Parts:
    """Return the gradients with respect to states, sliced inputs, and inputs that all steps read."""
    if op.conditional or any(v is not None and v.type.quant is not None for v in (*node.inputs, *node.outputs)):
        what = "loops are differentiated that compute with reals, in a number of steps that is known"
        raise Refusal(what, node.place, "train only the layers after it")
    through = _Through(back, node, op, gradients)
    return {index: partial(through.by, index) for index in range(len(node.inputs))}


@dataclass
class _Loop:
    """A loop while its body is made."""

    back: Backward
    name: str
    steps: int
    graph: Graph = field(init=False)
    states: list[tuple[Value, Value]] = field(default_factory=list)
    """In the body, and what it is at first."""
    parts: list[tuple[Value, Value, Walk]] = field(default_factory=list)
    """In the body, and of what."""
    seen: list[tuple[Value, Value]] = field(default_factory=list)
    """In the body, and around it."""

    def __post_init__(self) -> None:
        self.graph = Graph(self.name)
        self.step = self.graph.add_input("step", STEP_COUNTER_TYPE)

    def state(self, first: Value) -> Value:
        """Add a state with this initial value, and return it as the body reads it."""
        inner = self.graph.add_input(first.name, plain(first.type))
        self.states.append((inner, first))
        return inner

    def part(self, whole: Value, walk: Walk) -> Value:
        """One step's part of a tensor."""
        inner = self.graph.add_input(whole.name, _part(whole.type, walk))
        self.parts.append((inner, whole, walk))
        return inner

    def everywhere(self, value: Value) -> Value:
        """Return, inside the body, an outer value that all steps read."""
        if value.data is not None:
            return self.graph.constant(value.name, value.data)
        inner = self.graph.add_input(value.name, plain(value.type))
        self.seen.append((inner, value))
        return inner

    def results(self, states: Iterable[Value], rows: Sequence[Value], walks: Sequence[Walk]) -> tuple[Value, ...]:
        """Add the loop to the outer graph; return its last states and stacked rows."""
        after, kept = list(states), dict.fromkeys(zip(rows, walks, strict=True))
        read = [*self.states, *((inner, outer) for inner, outer, _ in self.parts), *self.seen]
        self.graph.inputs = [self.step, *(inner for inner, _ in read)]
        for value in (*after, *(row for row, _ in kept)):
            self.graph.add_output(value.name, value)
        op = Repeat(
            self.graph, self.steps, len(after), tuple(w for *_, w in self.parts), tuple(walk for _, walk in kept)
        )
        names = [f"{self.name}.{index}" for index in range(len(after) + len(kept))]
        loop_outputs = self.back.emit_all(op, [outer for _, outer in read], names)
        stacked = dict(zip(kept, loop_outputs[len(after) :], strict=True))
        return *loop_outputs[: len(after)], *(stacked[row] for row in zip(rows, walks, strict=True))


def _part(whole: TensorType, walk: Walk) -> TensorType:
    return plain(whole.with_shape(walk.part(whole.shape)))


def _products(value: Value) -> list[Node]:
    """Return the products a·bᵀ with this matrix b; an empty list if b has other readers."""
    turned = [node.output for node in value.users if node.op == Transpose((1, 0))]
    users = [node for v in turned for node in v.users]
    plain = all(node.op == MatMul() and node.input(0) not in turned and node.output.type.rank == 2 for node in users)
    return users if plain and len(turned) == len(value.users) else []


def _halves(values: Sequence[Value]) -> tuple[Sequence[Value], Sequence[Value]]:
    return values[: len(values) // 2], values[len(values) // 2 :]


def _turned(walk: Walk) -> Walk:
    return replace(walk, backwards=not walk.backwards)


@dataclass(frozen=True)
class _Through:
    """The gradients by the inputs of one loop."""

    back: Backward
    node: Node
    op: Repeat
    gradients: Gradients

    def by(self, index: int) -> Value | None:
        """Return the gradient with respect to input `index`; all gradients are built together."""
        return self._made.get(index)

    @cached_property
    def _body(self) -> Graph:
        """One step, as it is differentiated."""
        body = self.op.body.copy()
        unfuse(body, body.nodes)
        return body

    @cached_property
    def _inputs(self) -> tuple[list[Value], list[Value], list[Value]]:
        """First states, what is read by parts, and what all steps read."""
        values = [self.node.input(index) for index in range(len(self.node.inputs))]
        states, num_scan_inputs = self.op.states, len(self.op.taken)
        return values[:states], values[states : states + num_scan_inputs], values[states + num_scan_inputs :]

    def _loop(self, name: str) -> _Loop:
        return _Loop(self.back, f"{self.node.outputs[0].name}.{name}", self.op.steps)

    def _states(self) -> tuple[Value, ...]:
        """Return the states before each step, stacked along the first axis."""
        first, scan_inputs, seen = self._inputs
        if not first:
            return ()
        loop = self._loop("states")
        states = [loop.state(value) for value in first]
        parts = [loop.part(value, walk) for value, walk in zip(scan_inputs, self.op.taken, strict=True)]
        whole = [loop.everywhere(value) for value in seen]
        after = loop.graph.inline(self._body, [loop.step, *states, *parts, *whole])[: len(first)]
        return loop.results(after, states, [Walk()] * len(first))[len(first) :]

    @cached_property
    def _made(self) -> dict[int, Value]:
        """Build the gradients by input.

        The gradient with respect to an input of all steps is a sum, kept as a state of the loop, unless products after
        the loop compute it.
        """
        first, scan_inputs, seen = self._inputs
        loop, stacks = self._loop("backward"), self.gradients[len(first) :]
        before = [loop.part(value, Walk(backwards=True)) for value in self._states()]
        parts = [loop.part(value, _turned(walk)) for value, walk in zip(scan_inputs, self.op.taken, strict=True)]
        inner = [*before, *parts, *map(loop.everywhere, seen)]
        after = loop.graph.inline(self._body, [self._counted(loop), *inner])
        seen_indices = self._wanted(seen, len(first) + len(scan_inputs))
        factors = {i: users for i in seen_indices if (users := _products(inner[i]))}
        products = [node for nodes in factors.values() for node in nodes]
        real, summed = self._places(first, 0), [i for i in seen_indices if i not in factors]
        scan_indices = self._wanted(scan_inputs, len(first))
        seeds = [(after[i], loop.state(self._seed(i))) for i in real]
        sums = [loop.state(self._zero(i)) for i in summed]
        for place, (gradient, walk) in enumerate(zip(stacks, self.op.stacked, strict=True), len(first)):
            if gradient is not None:
                seeds.append((after[place], loop.part(gradient, _turned(walk))))
        by = [*(inner[i] for i in (*real, *summed, *scan_indices)), *(node.output for node in products)]
        input_gradients = gradients_of_several(loop.graph, seeds, by)
        totals = [
            loop.graph.add(Binary("Add"), pair).output for pair in zip(sums, input_gradients[len(real) :], strict=False)
        ]
        rows = [*input_gradients[len(real) + len(summed) :], *(node.input(0) for node in products)]
        walks = [*(_turned(self.op.taken[i - len(first)]) for i in scan_indices), *[Walk()] * (2 * len(products))]
        loop_outputs = loop.results([*input_gradients[: len(real)], *totals], rows, walks)
        places = [*real, *summed, *scan_indices]
        ends = dict(zip(products, zip(*_halves(loop_outputs[len(places) :]), strict=True), strict=True))
        by_input = dict(zip(places, loop_outputs, strict=False))
        return by_input | {i: self._summed([ends[node] for node in nodes]) for i, nodes in factors.items()}

    def _summed(self, pairs: Sequence[tuple[Value, Value]]) -> Value:
        """Return the gradient by b of products a·bᵀ, from the stacked gradients of the products and the stacked a."""
        back, products = self.back, list[Value]()
        for pair in pairs:
            gradient, a = (back.reshaped(v, (v.type.count // v.type.shape[-1], v.type.shape[-1])) for v in pair)
            products.append(back.emit(MatMul(), back.transposed(gradient, [1, 0]), a))
        return reduce(back.add, products)

    def _counted(self, loop: _Loop) -> Value:
        """Return the number that this step has in the forward loop."""
        last = loop.graph.constant("last", np.asarray(self.op.steps - 1, np.int64))
        return loop.graph.add(Binary("Sub"), [last, loop.step]).output

    def _places(self, values: Sequence[Value], start: int) -> list[int]:
        """Return the input indices of the real values among `values`."""
        return [start + i for i, value in enumerate(values) if value.type.dtype.is_float]

    def _wanted(self, values: Sequence[Value], start: int) -> list[int]:
        """Return the input indices of the values that need a gradient."""
        return [i for i in self._places(values, start) if self.node.input(i) in self.back.varying]

    def _seed(self, index: int) -> Value:
        """Return the gradient with respect to a last state."""
        return self.gradients[index] or self._zero(index)

    def _zero(self, index: int) -> Value:
        return zero_gradient(self.back.graph, self.node.input(index))
