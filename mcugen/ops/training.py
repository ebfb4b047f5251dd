# SPDX-License-Identifier: Apache-2.0
"""Importers of ONNX's optimizers (ai.onnx.preview.training), which update weights by their gradients.

A model whose outputs are fed back to its inputs (`--state`) learns by them on the device.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import helper

from mcugen.hir.graph import Value
from mcugen.hir.types import DType
from mcugen.ops.onnx_node import COMPOSED_TEXT, FLOATS, OnnxNode, Operand, Refusal, onnx_operator

TRAINING = "ai.onnx.preview.training"
"""Name of the domain of ONNX's operators for training."""

_RATE, _COUNT, _TENSORS = 0, 1, 2
"""Indices of the inputs: learning rate R, number of updates T, then all tensors X, all gradients G and all states."""


class Formula:
    """A builder of an optimizer's arithmetic: its methods add ONNX operators to the graph and return their results.

    Numbers become constants of the element type of the trained tensors.
    """

    def __init__(self, node: OnnxNode) -> None:
        self._node = node
        self._dtype = node.input(_TENSORS).type.dtype.numpy

    def __call__(self, op_type: str, *operands: Operand | float) -> Value:
        """Add an operator and return its result."""
        return self._node.call(op_type, *(self._operand(v) for v in operands))

    def sum(self, *terms: Operand | float) -> Value:
        """Add the nodes that compute the sum of two or more terms, each a tensor or a number, and return the sum."""
        first, second, *further_terms = terms
        total = self("Add", first, second)
        return self.sum(total, *further_terms) if further_terms else total

    def scaled(self, factor: float, x: Value) -> Value:
        """Add the nodes that compute x · factor, and return the result; return x itself if the factor is 1."""
        return x if factor == 1 else self("Mul", x, factor)

    @property
    def updates(self) -> Value:
        """Return the number T of earlier updates, the node's input, converted to the element type of the tensors."""
        return self._node.call("Cast", self._node.input(_COUNT), to=helper.np_dtype_to_tensor_dtype(self._dtype))

    def updated_before(self, yes: Operand | float, no: Operand | float) -> Value:
        """Return a value that is selected at run time by whether the model was updated before.

        Args:
            yes: The value if there was an update before (T > 0).
            no: The value before the first update (T = 0).
        """
        began = self._node.call("Greater", self._node.input(_COUNT), np.zeros((), np.int64))
        return self._node.call("Where", began, self._operand(yes), self._operand(no))

    def _operand(self, value: Operand | float) -> Operand:
        return np.asarray(value, self._dtype) if isinstance(value, int | float) else value


Update = Callable[[OnnxNode, Formula, list[Value]], list[Value]]
"""Function that emits one update of an optimizer.

It returns [new X, new states] for a tensor, given [tensor X, gradient G, old states].
"""


def _update_each(node: OnnxNode, memories: int, update: Update) -> list[Value | None]:
    """Apply `update` to every tensor, and return the results grouped as the inputs are."""
    num_tensors = len(node.inputs) - _TENSORS
    if num_tensors <= 0 or num_tensors % (2 + memories):
        mismatch, rule = (
            f"{max(num_tensors, 0)} tensors",
            f"each tensor comes with its gradient and {memories} of the past",
        )
        raise Refusal(f"{node.op_type}: {rule}", mismatch, "repair the model")
    count, formula = num_tensors // (2 + memories), Formula(node)
    node.require_dtype(node.input(_RATE), *FLOATS)
    node.require_dtype(node.input(_COUNT), DType.INT64)
    for index in range(_TENSORS, len(node.inputs)):
        node.require_dtype(node.input(index), *FLOATS)
        tensor = node.input(_TENSORS + (index - _TENSORS) % count)
        if node.input(index).type.shape != tensor.type.shape:
            mismatch = f"'{node.input(index).name}' has {node.input(index).type.shape}, not {tensor.type.shape}"
            raise Refusal(f"{node.op_type}: what belongs to a tensor must have its shape", mismatch, "repair the model")
    groups = [[node.input(_TENSORS + i + count * part) for part in range(2 + memories)] for i in range(count)]
    results = [update(node, formula, group) for group in groups]
    return [row[part] for part in range(1 + memories) for row in results]


def _regularized(node: OnnxNode, formula: Formula, x: Value, gradient: Value) -> Value:
    """Add the gradient of half the coefficient times the squared norm."""
    coefficient = float(node.attr("norm_coefficient", 0.0))
    return formula("Add", formula.scaled(coefficient, x), gradient) if coefficient else gradient


def _adagrad(node: OnnxNode, formula: Formula, group: list[Value]) -> list[Value]:
    x, gradient, squares = group
    gradient = _regularized(node, formula, x, gradient)
    squares = formula("Add", squares, formula("Mul", gradient, gradient))
    rate = node.input(_RATE)
    decay = float(node.attr("decay_factor", 0.0))
    if decay:
        rate = formula("Div", rate, formula("Add", formula.scaled(decay, formula.updates), 1.0))
    root = formula("Add", formula("Sqrt", squares), float(node.attr("epsilon", 1e-6)))
    return [formula("Sub", x, formula("Div", formula("Mul", gradient, rate), root)), squares]


def _adam(node: OnnxNode, formula: Formula, group: list[Value]) -> list[Value]:
    x, gradient, mean, squares = group
    alpha, beta = float(node.attr("alpha", 0.9)), float(node.attr("beta", 0.999))
    gradient = _regularized(node, formula, x, gradient)
    mean = formula("Add", formula.scaled(alpha, mean), formula.scaled(1 - alpha, gradient))
    square = formula("Mul", gradient, gradient)
    squares = formula("Add", formula.scaled(beta, squares), formula.scaled(1 - beta, square))
    root = formula("Add", formula("Sqrt", squares), float(node.attr("epsilon", 1e-6)))
    new = formula("Sub", x, formula("Div", formula("Mul", mean, _unbiased_rate(node, formula)), root))
    return [formula.scaled(1 - float(node.attr("norm_coefficient_post", 0.0)), new), mean, squares]


def _unbiased_rate(node: OnnxNode, formula: Formula) -> Value:
    """Averages begin at 0: they are too small at first."""
    missing = [
        formula("Sub", 1.0, formula("Pow", float(node.attr(name, default)), formula.updates))
        for name, default in (("alpha", 0.9), ("beta", 0.999))
    ]
    factor = formula("Div", formula("Sqrt", missing[1]), missing[0])
    return formula.updated_before(formula("Mul", node.input(_RATE), factor), node.input(_RATE))


def _momentum(node: OnnxNode, formula: Formula, group: list[Value]) -> list[Value]:
    x, gradient, velocity = group
    alpha, beta = float(node.attr("alpha", 0.0)), float(node.attr("beta", 1.0))
    gradient = _regularized(node, formula, x, gradient)
    share = gradient if beta == 1 else formula("Mul", gradient, formula.updated_before(beta, 1.0))
    velocity = formula("Add", formula.scaled(alpha, velocity), share)
    nesterov = node.attr("mode", "standard") == "nesterov"
    step = formula("Add", formula.scaled(alpha, velocity), gradient) if nesterov else velocity
    return [formula("Sub", x, formula("Mul", step, node.input(_RATE))), velocity]


@onnx_operator("Adagrad", domain=TRAINING, types=FLOATS, kernels=(COMPOSED_TEXT,))
def _import_adagrad(node: OnnxNode) -> list[Value | None]:
    return _update_each(node, 1, _adagrad)


@onnx_operator("Adam", domain=TRAINING, types=FLOATS, kernels=(COMPOSED_TEXT,))
def _import_adam(node: OnnxNode) -> list[Value | None]:
    return _update_each(node, 2, _adam)


@onnx_operator("Momentum", domain=TRAINING, types=FLOATS, kernels=(COMPOSED_TEXT,))
def _import_momentum(node: OnnxNode) -> list[Value | None]:
    mode = node.attr("mode", "standard")
    node.require(mode in ("standard", "nesterov"), "mode must be standard or nesterov", str(mode)[:40])
    return _update_each(node, 1, _momentum)
