# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers that come as loops, as Keras exports them: a body that is a step of an LSTM, a GRU or an RNN.

Its gates are sums of products with what a step reads, however they are spelled: those of x and h in one matrix or in
several, parts of them taken before or after their sum. So each argument of an activation is read as such a sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from mcugen.hir.graph import Node, Value
from mcugen.hir.types import Array, DType
from mcugen.ops.matmul import MatMul
from mcugen.ops.movement import Reshape, Slice
from mcugen.ops.onnx_node import OnnxNode
from mcugen.ops.pointwise import Binary, argument_of, operands_of

_DEEPEST = 40
"""Sums of sums that are read."""

_WIDEST = 2048
"""Numbers of x and h, and a quarter of all gates': a layer of more has weights of tens of megabytes."""


@dataclass(frozen=True)
class Found:
    """A layer of one direction: W and R [gates · hidden, …], B (those of W, then those of R), and its states."""

    op: str
    w: Array
    r: Array
    b: Array
    states: tuple[int, ...]
    """Numbers of h and c among the loop's."""
    is_linear: bool = False
    """Of a GRU: whether R's product is scaled, not h."""


@dataclass(frozen=True)
class Sum:
    """Σ value · matrix + bias: matrices [size of the value, n] by value, which are rows, and n numbers."""

    matrices: Mapping[Value, Array]
    bias: Array

    def plus(self, other: Sum, sign: float = 1.0) -> Sum:
        """The sum of both, or their difference."""
        theirs = {v: sign * m for v, m in other.matrices.items()}
        both = {v: self.matrices[v] + theirs[v] for v in self.matrices if v in theirs}
        return Sum({**self.matrices, **theirs, **both}, self.bias + sign * other.bias)

    def times(self, matrix: Array) -> Sum:
        """By a matrix [n, m]."""
        return Sum({v: m @ matrix for v, m in self.matrices.items()}, self.bias @ matrix)

    def part(self, begin: int, size: int) -> Sum:
        """Of its n columns."""
        window = slice(begin, begin + size)
        return Sum({v: m[:, window] for v, m in self.matrices.items()}, self.bias[window])


def cell_of(x: Value, states: Sequence[Value], after: Sequence[Value]) -> Found | None:
    """Of a step that reads rows x [batch, depth] and states [batch, hidden], and what these are `after` it."""
    if any(v.type.rank != 2 or v.type.dtype is not DType.FLOAT32 or v.type.shape[1] > _WIDEST for v in (x, *states)):
        return None
    if any(v.type.shape[0] != x.type.shape[0] for v in states):
        return None
    if len(states) == 1:
        return _gru(x, states[0], after[0]) or _rnn(x, states[0], after[0])
    if len(states) == 2:
        return next((f for pair in permutations((0, 1)) if (f := _lstm(x, states, after, pair)) is not None), None)
    return None


def compose_layer(node: OnnxNode, found: Found, x: Value, initial: Sequence[Value], backwards: bool) -> list[Value]:
    """All h, the last h, the last c, as loops have them: without an axis of directions.

    x is [steps, batch, depth]; `initial` are h and c.
    """
    batch, size = initial[0].type.shape
    firsts: list[Value | None] = []
    for value in initial:
        is_zero = value.data is not None and not value.data.any()
        firsts.append(None if is_zero else node.call("Reshape", value, np.asarray((1, batch, size))))
    constants = [array[None].astype(np.float32) for array in (found.w, found.r, found.b)]
    attributes: dict[str, Any] = {"hidden_size": size, "direction": "reverse" if backwards else "forward"}
    if found.op == "GRU":
        attributes["linear_before_reset"] = int(found.is_linear)
    results = node.calls(found.op, [x, *constants, None, *firsts], 1 + len(initial), **attributes)
    shapes = [(*x.type.shape[:2], size), *[(batch, size)] * len(initial)]
    return [node.call("Reshape", v, np.asarray(shape)) for v, shape in zip(results, shapes, strict=True)]


def _lstm(x: Value, states: Sequence[Value], after: Sequence[Value], order: tuple[int, ...]) -> Found | None:
    """h' = σ(o) · tanh(c'), c' = σ(f) · c + σ(i) · tanh(g)."""
    h, c, new_h, new_c = *(states[i] for i in order), *(after[i] for i in order)
    for out, squashed in operands_of(new_h, "Mul"):
        for kept, fresh in operands_of(new_c, "Add") if argument_of(squashed, "Tanh") is new_c else ():
            for forget, cell in operands_of(kept, "Mul"):
                for take, candidate in operands_of(fresh, "Mul") if cell is c else ():
                    gates = [argument_of(v, "Sigmoid") for v in (take, out, forget)]
                    found = _of_gates("LSTM", x, h, [*gates, argument_of(candidate, "Tanh")], order)
                    if found is not None:
                        return found
    return None


def _gru(x: Value, h: Value, new: Value) -> Found | None:
    """h' = z · h + (1 - z) · tanh(g), where g is a sum of x and r · h, or of x and r · (a sum of h)."""
    for kept, fresh in operands_of(new, "Add"):
        for update, old in operands_of(kept, "Mul"):
            for rest, candidate in operands_of(fresh, "Mul") if old is h else ():
                argument = argument_of(candidate, "Tanh") if _is_one_less(rest, update) else None
                z = argument_of(update, "Sigmoid")
                if argument is not None and z is not None and (found := _reset(x, h, z, argument)) is not None:
                    return found
    return None


def _reset(x: Value, h: Value, z: Value, argument: Value) -> Found | None:
    """The layer whose candidate is tanh of `argument`."""
    sums = _Sums()
    total = sums(argument)
    (scaled, *others) = (v for v in total.matrices if v is not x) if len(total.matrices) == 2 else (None,)
    if scaled is None or others:
        return None
    for gate, of in operands_of(scaled, "Mul"):
        r = argument_of(gate, "Sigmoid")
        inner = sums(of)
        first = None if r is None else _of_gates("GRU", x, h, [z, r], (0,))
        if first is None or set(inner.matrices) != {h}:
            continue
        size, outer = h.type.shape[1], total.matrices[scaled]
        if total.matrices[x].shape[1] != size or outer.shape != (size, size):
            continue
        if of is h:
            recurrent, bias, is_linear = outer, np.zeros(size), False
        elif np.array_equal(outer, np.eye(size)):
            recurrent, bias, is_linear = inner.matrices[h], inner.bias, True
        else:
            continue
        w = np.concatenate([first.w, total.matrices[x].T])
        b = np.concatenate([first.b[: 2 * size], _full(total.bias, size), np.zeros(2 * size), bias])
        return Found("GRU", w, np.concatenate([first.r, recurrent.T]), b, (0,), is_linear)
    return None


def _rnn(x: Value, h: Value, new: Value) -> Found | None:
    """h' = tanh(a sum of x and h)."""
    return _of_gates("RNN", x, h, [argument_of(new, "Tanh")], (0,))


def _of_gates(op: str, x: Value, h: Value, gates: Sequence[Value | None], states: tuple[int, ...]) -> Found | None:
    """The layer whose gates are these sums, if nothing but x and h is in them."""
    size, read = h.type.shape[1], _Sums()
    sums = [read(v) for v in gates if v is not None]
    is_complete = len(sums) == len(gates) and all(set(s.matrices) == {x, h} for s in sums)
    if not is_complete or any(m.shape[1] != size for s in sums for m in s.matrices.values()):
        return None
    w, r = (np.concatenate([s.matrices[v].T for s in sums]) for v in (x, h))
    b = np.concatenate([*(_full(s.bias, size) for s in sums), np.zeros(len(sums) * size)])
    return Found(op, w, r, b, states)


class _Sums:
    """Values as sums. What is no sum, product with a constant matrix, or part of one, counts as a number of its own."""

    def __init__(self) -> None:
        self._known: dict[Value, Sum] = {}

    def __call__(self, value: Value, depth: int = 0) -> Sum:
        """Of a value; deeper ones than any cell's are not read."""
        if value not in self._known:
            node = value.producer
            found = _constant(value) if value.data is not None or node is None else self._composed(node, depth + 1)
            self._known[value] = found or Sum(
                {value: np.eye(value.type.shape[-1] if value.type.rank else 1)}, np.zeros(1)
            )
        return self._known[value]

    def _composed(self, node: Node, depth: int) -> Sum | None:
        op, x = node.op, node.inputs[0]
        if x is None or not x.type.rank or x.type.shape[-1] > 4 * _WIDEST or depth > _DEEPEST:
            return None
        if op == MatMul() and (matrix := node.input(1).data) is not None and matrix.ndim == 2:
            return _wide(self(x, depth), x).times(matrix.astype(np.float64))
        if op in (Binary("Add"), Binary("Sub")) and all(_is_whole(node.input(i), node.output) for i in (0, 1)):
            return self(x, depth).plus(self(node.input(1), depth), 1.0 if op == Binary("Add") else -1.0)
        if isinstance(op, Reshape) and node.output.type.shape[-1:] == x.type.shape[-1:]:
            return self(x, depth)
        if isinstance(op, Slice) and op.sizes[:-1] == x.type.shape[:-1] and set(op.steps) == {1}:
            return _wide(self(x, depth), x).part(op.starts[-1], op.sizes[-1])
        return None


def _is_whole(part: Value, total: Value) -> bool:
    """Whether a term is not repeated in the sum, unless it is a constant."""
    return part.type.rank > 0 and (part.data is not None or part.type.shape[-1] == total.type.shape[-1])


def _constant(value: Value) -> Sum | None:
    if value.data is None or value.data.size not in (1, value.type.shape[-1]):
        return None
    return Sum({}, value.data.reshape(-1).astype(np.float64))


def _wide(found: Sum, value: Value) -> Sum:
    """With a bias for each number of the value."""
    return Sum(found.matrices, _full(found.bias, value.type.shape[-1]))


def _full(bias: Array, size: int) -> Array:
    return np.broadcast_to(bias, (size,))


def _is_one_less(rest: Value, gate: Value) -> bool:
    """Whether it is 1 - gate."""
    node = rest.producer
    if node is None or node.op != Binary("Sub") or node.input(1) is not gate:
        return False
    one = node.input(0).data
    return one is not None and bool((np.asarray(one) == 1).all())
