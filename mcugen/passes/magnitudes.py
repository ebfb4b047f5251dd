# SPDX-License-Identifier: Apache-2.0
"""Bounds of the magnitudes of real tensors that hold for every input, as far as their operators imply them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from mcugen.hir.graph import Node, Value
from mcugen.hir.traits import clamp_of
from mcugen.hir.types import Array
from mcugen.ops.affine import Affine
from mcugen.ops.conv import Conv
from mcugen.ops.conversion import Cast, Dequantize
from mcugen.ops.elementwise import Elementwise, real_data
from mcugen.ops.matmul import Dense, MatMul
from mcugen.ops.movement import Pad, Reshape
from mcugen.ops.norm import Normalize
from mcugen.ops.pointwise import Binary, Clamp, Unary, Where
from mcugen.ops.pool import AveragePool, MaxPool
from mcugen.ops.reduce import Reduce
from mcugen.ops.softmax import Softmax

MAX_PRODUCERS = 48
"""Largest number of consecutive operators that the analysis of magnitudes follows back from a tensor.

It covers several layers of a transformer.
"""
ROUNDING_GROWTH = 1 + 2.0**-10
"""Factor by which bounds of sums are enlarged, because float32 rounds: enough for sums of 2¹² products."""

_LIMITED: Mapping[str, float] = {
    "Sigmoid": 1,
    "HardSigmoid": 1,
    "Tanh": 1,
    "Erf": 1,
    "Softsign": 1,
    "Sin": 1,
    "Cos": 1,
    "Sign": 1,
    "Atan": 2,
}
"""Upper bound of the magnitude of each bounded function."""
_CONTRACTING = frozenset({"Abs", "Neg", "Relu", "Gelu", "GeluTanh", "HardSwish", "Mish"})
"""Functions whose magnitude is at most that of their argument."""
_COMBINED: Mapping[str, Callable[[float, float], float]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a + b,
    "Mul": lambda a, b: a * b if a and b else 0.0,
    "Max": max,
    "Min": max,
}


class Magnitudes:
    """Analysis of upper bounds of the absolute values of real tensors; infinity stands for no known bound.

    Real model inputs may be any finite numbers.
    """

    def __init__(self) -> None:
        self._known: dict[Value, float] = {}

    def of(self, value: Value, depth: int = 0) -> float:
        """Return an upper bound of the absolute values of a tensor's elements; infinity if no bound is known.

        `depth` is the number of operators that the analysis has followed so far; callers leave it at 0.
        """
        if value.data is not None:
            return _largest(real_data(value))
        if value not in self._known:
            self._known[value] = math.inf  # The bound until it is known.
            self._known[value] = self._computed(value, depth)
        return self._known[value]

    def _computed(self, value: Value, depth: int) -> float:
        node, dtype = value.producer, value.type.dtype
        widest = float(max(map(abs, dtype.limits))) if dtype.is_integer else math.inf
        if node is None or depth >= MAX_PRODUCERS:
            return widest
        with np.errstate(all="ignore"):
            bound = self._result(node, depth + 1) * ROUNDING_GROWTH
        low, high = clamp_of(node.op) or (-math.inf, math.inf)
        bound = min(bound, max(abs(low), abs(high)))
        return widest if math.isnan(bound) or (dtype.is_integer and bound > widest) else bound

    def _result(self, node: Node, depth: int) -> float:
        op = node.op
        if isinstance(op, Dequantize):
            return self._dequantized(node)
        if op.moves_data or isinstance(op, Cast | AveragePool | MaxPool):
            padding = abs(float(op.value)) if isinstance(op, Pad) else 0.0
            moved = [v for v in node.inputs if v is not None and (isinstance(op, Cast) or _is_alike(v, node))]
            return max([padding, *(self.of(v, depth) for v in moved)])
        if isinstance(op, Softmax):
            return math.inf if op.log else 1.0
        if isinstance(op, Normalize):
            return self._normalized(node, depth)
        if isinstance(op, Dense | Conv | MatMul):
            return self._products(node, depth)
        if isinstance(op, Reduce):
            return self._reduced(node, op, depth)
        return self._elementwise(node, depth) if isinstance(op, Elementwise) else math.inf

    def _dequantized(self, node: Node) -> float:
        stored = node.input(0).type
        if stored.quant is None:
            return math.inf
        largest = max(abs(limit - stored.quant.zero_point) for limit in stored.dtype.limits)
        return float(largest * np.max(stored.quant.scale))

    def _elementwise(self, node: Node, depth: int) -> float:
        op = node.op
        operands = [self.of(v, depth) for v in node.inputs if v is not None and v.type.dtype.is_float]
        if isinstance(op, Clamp):
            return min(operands[0], max(abs(op.low), abs(op.high)))
        if isinstance(op, Unary):
            limit = operands[0] if op.function in _CONTRACTING and operands else math.inf
            return _LIMITED.get(op.function, limit)
        if isinstance(op, Where):
            return max(operands)
        if isinstance(op, Affine):
            x, *constants = operands
            for step, number in zip(op.steps, constants, strict=True):
                x = _COMBINED[step](x, number)
            return x
        if not isinstance(op, Binary) or len(operands) != len(node.inputs):
            return math.inf
        if op.function == "Div":
            divisor = real_data(node.input(1)) if node.input(1).data is not None else np.zeros(1)
            smallest = float(np.abs(divisor).min(initial=math.inf))
            return operands[0] / smallest if smallest else math.inf
        return _COMBINED[op.function](*operands) if op.function in _COMBINED else math.inf

    def _reduced(self, node: Node, op: Reduce, depth: int) -> float:
        x = node.input(0)
        count = math.prod(x.type.shape[axis] for axis in op.axes)
        factors = {"mean": 1, "max": 1, "min": 1, "sum": count, "l1": count}
        return self.of(x, depth) * factors.get(op.function, math.inf)

    def _normalized(self, node: Node, depth: int) -> float:
        """Return a bound of a normalization's result: none of n numbers with a variance of 1 exceeds √n."""
        assert isinstance(node.op, Normalize)
        scale, bias = self._affine(node, depth)
        return math.sqrt(_normalized_count(node)) * scale + bias

    def _affine(self, node: Node, depth: int) -> tuple[float, float]:
        """Return the magnitudes of a normalization's scale and bias."""
        _, scale, bias = (*node.inputs, None, None)[:3]
        return 1.0 if scale is None else self.of(scale, depth), 0.0 if bias is None else self.of(bias, depth)

    def _products(self, node: Node, depth: int) -> float:
        """Return a bound of sums of products: |Σ w · x| ≤ ‖w‖ · ‖x‖ (Cauchy and Schwarz)."""
        op, x, w = node.op, node.input(0), node.input(1)
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        more = 0.0 if bias is None else self.of(bias, depth)
        if isinstance(op, Conv):
            count = math.prod(w.type.shape[1:])
            return math.sqrt(count) * self.of(x, depth) * self._rows(w, count, depth, by_first=True) + more
        count, factor = x.type.shape[-1], abs(op.factor) if isinstance(op, MatMul) else 1.0
        columns = self._rows(w, count, depth, by_first=not isinstance(op, MatMul))
        return self._row_norm(x, depth) * columns * factor + more

    def _rows(self, w: Value, count: int, depth: int, *, by_first: bool) -> float:
        """Return the largest Euclidean norm of the vectors of weights: by the first axis, or along the last but one."""
        if w.data is None:
            return math.sqrt(count) * self.of(w, depth)
        numbers = real_data(w).astype(np.float64)
        squares = np.square(numbers.reshape(len(numbers), -1)).sum(1) if by_first else np.square(numbers).sum(-2)
        return float(np.sqrt(squares.max(initial=0.0)))

    def _row_norm(self, x: Value, depth: int) -> float:
        """Return an upper bound of the Euclidean norms of the rows (along the last axis)."""
        count, node = x.type.shape[-1], x.producer
        plain = math.sqrt(count) * self.of(x, depth)
        if node is None or depth >= MAX_PRODUCERS:
            return plain
        if isinstance(node.op, Reshape) and node.input(0).type.shape[-1:] == (count,):
            return min(plain, self._row_norm(node.input(0), depth + 1))
        if isinstance(node.op, Normalize) and _normalized_count(node) == count and node.op.axes == (x.type.rank - 1,):
            scale, bias = self._affine(node, depth)
            return min(plain, math.sqrt(count) * (scale + bias))
        return plain


def _is_alike(value: Value, node: Node) -> bool:
    """Return whether an operand has the type of the results, as positions do not."""
    return value.type.dtype is node.outputs[0].type.dtype


def _normalized_count(node: Node) -> int:
    """Return how many elements share their statistics."""
    assert isinstance(node.op, Normalize)
    shape, axes = node.op.view(node.input(0).type.shape)
    return math.prod(shape[axis] for axis in axes)


def _largest(numbers: Array) -> float:
    """Return the largest magnitude; infinity if there are NaN."""
    largest = float(np.abs(numbers.astype(np.float64)).max(initial=0.0)) if numbers.dtype.kind in "iufb" else math.inf
    return math.inf if math.isnan(largest) else largest
