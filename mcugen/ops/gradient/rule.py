# SPDX-License-Identifier: Apache-2.0
"""How operators say what their derivatives are, and what rules make them with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Operator
from mcugen.hir.types import Array, Shape, TensorType
from mcugen.ops.movement import Expand, Reshape, Transpose
from mcugen.ops.pattern import Zeros
from mcugen.ops.pointwise import Binary
from mcugen.ops.reduce import Reduce

FEW = 32
"""Elements of constants that take about as much flash as the call that would fill them."""


def zeros(graph: Graph, name: str, type_: TensorType) -> Value:
    """A constant, if they are few."""
    if type_.count <= FEW:
        return graph.constant(name, np.zeros(type_.shape, type_.dtype.numpy))
    return graph.add(Zeros(type_.shape, type_.dtype), [], names=[name]).output


@dataclass(frozen=True)
class Backward:
    """Adds the nodes of one node's derivative to its graph. `varying` are the values that gradients are wanted by."""

    graph: Graph
    node: Node
    varying: Collection[Value] = ()

    def emit(self, op: Operator, *inputs: Value, suffix: str = "") -> Value:
        """The only output of a new node."""
        return self.emit_all(op, inputs, [f"{self._stem}.{suffix or op.name}"])[0]

    def emit_all(self, op: Operator, inputs: Sequence[Value], names: Sequence[str]) -> tuple[Value, ...]:
        """The outputs of a new node."""
        return self.graph.add(op, inputs, self.node.origin, names=names).outputs

    def constant(self, name: str, data: Array) -> Value:
        """A new constant."""
        return self.graph.constant(f"{self._stem}.{name}", data)

    def number(self, value: float, like: Value) -> Value:
        """A constant of one element, with the type and rank of another value."""
        return self.constant("number", np.full((1,) * like.type.rank, value, like.type.dtype.numpy))

    def zeros(self, like: TensorType, shape: Shape | None = None) -> Value:
        """Zeros: a constant if they are few."""
        return zeros(self.graph, f"{self._stem}.zeros", like if shape is None else like.with_shape(shape))

    def add(self, x: Value, y: Value) -> Value:
        """The sum."""
        return self.emit(Binary("Add"), x, y)

    def sub(self, x: Value, y: Value) -> Value:
        """The difference."""
        return self.emit(Binary("Sub"), x, y)

    def mul(self, x: Value, y: Value) -> Value:
        """The product."""
        return self.emit(Binary("Mul"), x, y)

    def div(self, x: Value, y: Value) -> Value:
        """The quotient."""
        return self.emit(Binary("Div"), x, y)

    def scaled(self, x: Value, factor: float) -> Value:
        """A multiple."""
        return x if factor == 1 else self.mul(x, self.number(factor, x))

    def reshaped(self, x: Value, shape: Shape) -> Value:
        """In another shape."""
        return x if x.type.shape == shape else self.emit(Reshape(shape), x)

    def transposed(self, x: Value, perm: Sequence[int]) -> Value:
        """With its axes in another order."""
        return x if list(perm) == sorted(perm) else self.emit(Transpose(tuple(perm)), x)

    def reduced(self, function: str, x: Value, axes: Sequence[int]) -> Value:
        """A reduction along axes, which stay."""
        return self.emit(Reduce(function, tuple(axes)), x) if axes else x

    def spread(self, x: Value, shape: Shape) -> Value:
        """Repeated along axes of length 1."""
        return x if x.type.shape == shape else self.emit(Expand(shape), x)

    def summed_to(self, x: Value, shape: Shape) -> Value:
        """The gradient of what was broadcast from `shape`: the sum over its copies."""
        aligned = (1,) * (x.type.rank - len(shape)) + shape
        axes = [a for a, (n, m) in enumerate(zip(x.type.shape, aligned, strict=True)) if n != m]
        return self.reshaped(self.reduced("sum", x, axes), shape)

    @property
    def _stem(self) -> str:
        return f"{self.node.outputs[0].name}.backward"


Parts = Mapping[int, Callable[[], Value | None]]
"""By input: what makes the gradient by it; None: nothing changes with it. Inputs that are left out have none."""
Rule = Callable[[Backward, Node, Value], Parts]
"""The gradients by a node's inputs, of the node and that by its first output. Refusal where it has none."""
Gradients = Sequence[Value | None]
"""By each output; None: nothing depends on it."""


@dataclass(frozen=True)
class Derivative:
    """The gradients by a node's inputs. Unless it is `of_all` outputs, none but the first is asked for."""

    rule: Callable[[Backward, Node, Gradients], Parts]
    of_all: bool


_DERIVATIVES: dict[type[Operator], Derivative] = {}


def derivative_of(*classes: type[Operator]) -> Callable[[Rule], Rule]:
    """Declares the derivative of operators, and of those that inherit them, by their first output."""

    def register(rule: Rule) -> Rule:
        def of_first(back: Backward, node: Node, gradients: Gradients) -> Parts:
            first = gradients[0]
            return {} if first is None else rule(back, node, first)

        _DERIVATIVES.update(dict.fromkeys(classes, Derivative(of_first, of_all=False)))
        return rule

    return register


WholeRule = Callable[[Backward, Node, Gradients], Parts]


def derivative_of_all(*classes: type[Operator]) -> Callable[[WholeRule], WholeRule]:
    """The same by all outputs."""

    def register(rule: WholeRule) -> WholeRule:
        _DERIVATIVES.update(dict.fromkeys(classes, Derivative(rule, of_all=True)))
        return rule

    return register


def derivative_for(op: Operator) -> Derivative | None:
    """That of the nearest class that has one; None: it cannot be differentiated."""
    return next((_DERIVATIVES[c] for c in type(op).__mro__ if c in _DERIVATIVES), None)


def rules() -> Iterator[type[Operator]]:
    """The classes that have a rule of their own."""
    yield from _DERIVATIVES
