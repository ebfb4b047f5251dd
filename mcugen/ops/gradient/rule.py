# SPDX-License-Identifier: Apache-2.0
"""Registry of derivatives: how operators declare their rules, and the helpers that rules build gradients with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Operator
from mcugen.hir.types import Array, Shape, TensorType
from mcugen.ops.movement import Expand, Reshape, Transpose
from mcugen.ops.pattern import Zeros
from mcugen.ops.pointwise import Binary
from mcugen.ops.reduce import Reduce

MAX_CONSTANT_ELEMENTS = 32
"""Largest number of zeros that are stored as a constant: as many take as much flash as a call that fills a buffer with
zeros."""


def zeros(graph: Graph, name: str, type_: TensorType) -> Value:
    """Add a tensor of zeros to a graph, and return it: a constant if it is small, else computed at run time.

    Args:
        graph: The graph, changed in place.
        name: Preferred name of the tensor.
        type_: Shape and element type of the tensor.
    """
    if type_.count <= MAX_CONSTANT_ELEMENTS:
        return graph.constant(name, np.zeros(type_.shape, type_.dtype.numpy))
    return graph.add(Zeros(type_.shape, type_.dtype), [], names=[name]).output


@dataclass(frozen=True)
class Backward:
    """Helper of a derivative rule: it adds the nodes of the gradient of one forward node to a graph.

    Attributes:
        graph: The graph to which nodes are added.
        node: The forward node that is differentiated.
        varying: The values that need gradients: those that were asked for, and all between them and the result.
    """

    graph: Graph
    node: Node
    varying: Collection[Value] = ()

    def emit(self, op: Operator, *inputs: Value, suffix: str = "") -> Value:
        """Add a node and return its only output, whose name ends with `suffix` or the operator's name."""
        return self.emit_all(op, inputs, [f"{self._stem}.{suffix or op.name}"])[0]

    def emit_all(self, op: Operator, inputs: Sequence[Value], names: Sequence[str]) -> tuple[Value, ...]:
        """Add a node with several outputs, called `names`, and return its outputs.

        Args:
            op: Operator with its attributes.
            inputs: Operands.
            names: Names of the outputs.
        """
        return self.graph.add(op, inputs, self.node.origin, names=names).outputs

    def constant(self, name: str, data: Array) -> Value:
        """Add a constant with the elements `data`, and return it."""
        return self.graph.constant(f"{self._stem}.{name}", data)

    def number(self, value: float, like: Value) -> Value:
        """Add a constant of one element, with the type and rank of `like`."""
        return self.constant("number", np.full((1,) * like.type.rank, value, like.type.dtype.numpy))

    def zeros(self, like: TensorType, shape: Shape | None = None) -> Value:
        """Add a tensor of zeros of type `like` (with another `shape`, if given), and return it.

        It is a constant if it is small, else computed.
        """
        return zeros(self.graph, f"{self._stem}.zeros", like if shape is None else like.with_shape(shape))

    def add(self, x: Value, y: Value) -> Value:
        """Add nodes that compute x + y, and return the result."""
        return self.emit(Binary("Add"), x, y)

    def sub(self, x: Value, y: Value) -> Value:
        """Add nodes that compute x − y, and return the result."""
        return self.emit(Binary("Sub"), x, y)

    def mul(self, x: Value, y: Value) -> Value:
        """Add nodes that compute x · y, elementwise, and return the result."""
        return self.emit(Binary("Mul"), x, y)

    def div(self, x: Value, y: Value) -> Value:
        """Add nodes that compute x / y, and return the result."""
        return self.emit(Binary("Div"), x, y)

    def scaled(self, x: Value, factor: float) -> Value:
        """Add nodes that compute x · factor, and return the result."""
        return x if factor == 1 else self.mul(x, self.number(factor, x))

    def reshaped(self, x: Value, shape: Shape) -> Value:
        """Add nodes that compute x in another shape, and return the result."""
        return x if x.type.shape == shape else self.emit(Reshape(shape), x)

    def transposed(self, x: Value, perm: Sequence[int]) -> Value:
        """Add nodes that compute x with permuted axes, and return the result."""
        return x if list(perm) == sorted(perm) else self.emit(Transpose(tuple(perm)), x)

    def reduced(self, function: str, x: Value, axes: Sequence[int]) -> Value:
        """Add nodes that reduce x along axes, which keep length 1, and return the result.

        Args:
            function: Name of the reduction, a key of REDUCTIONS.
            x: Value to reduce.
            axes: Axes to reduce.
        """
        return self.emit(Reduce(function, tuple(axes)), x) if axes else x

    def spread(self, x: Value, shape: Shape) -> Value:
        """Add nodes that compute x broadcast to `shape`, which differs in axes of length 1, and return the result."""
        return x if x.type.shape == shape else self.emit(Expand(shape), x)

    def summed_to(self, x: Value, shape: Shape) -> Value:
        """Return x summed to `shape`: the gradient of a tensor that was broadcast from `shape`."""
        aligned = (1,) * (x.type.rank - len(shape)) + shape
        axes = [a for a, (n, m) in enumerate(zip(x.type.shape, aligned, strict=True)) if n != m]
        return self.reshaped(self.reduced("sum", x, axes), shape)

    @property
    def _stem(self) -> str:
        return f"{self.node.outputs[0].name}.backward"


Parts = Mapping[int, Callable[[], Value | None]]
"""Builder of the gradient with respect to each input of a node, by input index; it returns None for a zero gradient."""
Op = TypeVar("Op", bound=Operator)
"""Type variable of an operator class."""
Rule = Callable[[Backward, Op, Node, Value], Parts]
"""Derivative rule of a node: returns builders of the gradients of its inputs, given the gradient of its first output.

The arguments are the helper, the operator, the node, and the gradient. It raises Refusal if there is no derivative.
"""
Gradients = Sequence[Value | None]
"""Gradient of each output of a node; None for an output that does not influence the result."""


@dataclass(frozen=True)
class Derivative:
    """The rule that computes the gradients of a node's inputs.

    Attributes:
        rule: Function of the Backward helper, the operator, the node, and the gradients of its outputs.
        of_all: Whether the rule takes the gradients of all outputs; if False, it takes only that of the first output.
    """

    rule: Callable[[Backward, Any, Node, Gradients], Parts]
    of_all: bool


_DERIVATIVES: dict[type[Operator], Derivative] = {}


def derivative_of(*classes: type[Op]) -> Callable[[Rule[Op]], Rule[Op]]:
    """Return a decorator that registers the derivative rule of operator classes and their subclasses.

    The rule uses the gradient of the first output only.
    """

    def register(rule: Rule[Op]) -> Rule[Op]:
        def of_first(back: Backward, op: Op, node: Node, gradients: Gradients) -> Parts:
            first = gradients[0]
            return {} if first is None else rule(back, op, node, first)

        _DERIVATIVES.update(dict.fromkeys(classes, Derivative(of_first, of_all=False)))
        return rule

    return register


WholeRule = Callable[[Backward, Op, Node, Gradients], Parts]
"""Derivative rule of a node like `Rule`, but given the gradients of all outputs."""


def derivative_of_all(*classes: type[Op]) -> Callable[[WholeRule[Op]], WholeRule[Op]]:
    """Return a decorator that registers the derivative rule of operator classes and their subclasses.

    The rule uses the gradients of all outputs.
    """

    def register(rule: WholeRule[Op]) -> WholeRule[Op]:
        _DERIVATIVES.update(dict.fromkeys(classes, Derivative(rule, of_all=True)))
        return rule

    return register


def derivative_for(op: Operator) -> Derivative | None:
    """Return the derivative rule of an operator's nearest base class that has one; None if there is none."""
    return next((_DERIVATIVES[c] for c in type(op).__mro__ if c in _DERIVATIVES), None)


def rules() -> Iterator[type[Operator]]:
    """Yield the operator classes for which a derivative rule is registered."""
    yield from _DERIVATIVES
