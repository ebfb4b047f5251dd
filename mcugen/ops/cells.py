# SPDX-License-Identifier: Apache-2.0
"""Recognition of recurrent cells (a time step of an LSTM, GRU or RNN) in loop bodies and unrolled steps.

The gates of a cell are sums of products with what a step reads, which exporters write in different ways: with the
weights of x and h in one matrix or in several, and split before or after their sum. So the argument of each activation
is read as such a sum (AffineSum).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np

from mcugen.hir.graph import Node, Value, constant_data
from mcugen.hir.interpreter import evaluate_node
from mcugen.hir.types import Array, DType
from mcugen.ops.matmul import MatMul
from mcugen.ops.movement import Reshape, Slice
from mcugen.ops.onnx_node import OnnxNode
from mcugen.ops.pointwise import Binary, argument_of, operands_of

CELL_MARKER_OPERATOR = "Tanh"
"""Name of an ONNX operator that every recurrent cell contains; models without it are not searched for cells."""

_DEEPEST = 40
"""Largest depth of nested sums that are read."""

_MAX_SUM_VALUES = 200
"""Largest number of values that are visited to find the terms of a sum."""

_WIDEST = 2048
"""Numbers of x and h, and a quarter of all gates': a layer of more has weights of tens of megabytes."""


@dataclass(frozen=True)
class RecurrentCell:
    """The operator and the weights of a recurrent layer in one direction, as recognized in a graph.

    Attributes:
        op: ONNX operator: "RNN", "GRU" or "LSTM".
        w: Weights of the input, [gates · hidden, depth].
        r: Weights of the hidden state, [gates · hidden, hidden].
        b: Biases of w, then biases of r.
        states: Index of the hidden state h, and of the cell state c of an LSTM, in the argument `states` of `cell_of`.
        is_linear: Whether a GRU has linear_before_reset.
    """

    op: str
    w: Array
    r: Array
    b: Array
    states: tuple[int, ...]
    is_linear: bool = False

    @property
    def constants(self) -> list[Array]:
        """Return the weights W and R and the biases B for an ONNX node: axis 0, of length 1, counts directions."""
        return [array[None].astype(np.float32) for array in (self.w, self.r, self.b)]

    def attributes(self, backwards: bool) -> dict[str, Any]:
        """Return the attributes of the ONNX node (RNN, LSTM or GRU) that computes a layer of this cell.

        Args:
            backwards: Whether the layer goes from the last step to the first.
        """
        onnx_attributes = {"hidden_size": self.r.shape[1], "direction": "reverse" if backwards else "forward"}
        return onnx_attributes | ({"linear_before_reset": int(self.is_linear)} if self.op == "GRU" else {})

    def is_same(self, other: RecurrentCell) -> bool:
        """Return whether two cells have the same operator and equal weights, so that they can be steps of one layer."""
        arrays = zip((self.w, self.r, self.b), (other.w, other.r, other.b), strict=True)
        alike = (self.op, self.states, self.is_linear) == (other.op, other.states, other.is_linear)
        return alike and all(np.array_equal(a, b) for a, b in arrays)


@dataclass(frozen=True)
class CellStep:
    """One time step of a recurrent layer, as recognized in a graph.

    Attributes:
        found: The recurrent cell that computes the step.
        x: The input of the step.
        before: The states before the step: h, and also c for an LSTM.
        after: The states after the step.
    """

    found: RecurrentCell
    x: Value
    before: tuple[Value, ...]
    after: tuple[Value, ...]


@dataclass(frozen=True)
class AffineSum:
    """A value written as Σ x · M + bias over several tensors x, whose rows are multiplied by constant matrices.

    Attributes:
        matrices: The matrix M [size of the last axis of x, n], by tensor x.
        bias: The constant term, [n].
    """

    matrices: Mapping[Value, Array]
    bias: Array

    def plus(self, other: AffineSum, sign: float = 1.0) -> AffineSum:
        """Return this sum Σ x · M + bias plus `sign` times another such sum; `sign` is 1 or −1."""
        theirs = {v: sign * m for v, m in other.matrices.items()}
        both = {v: self.matrices[v] + theirs[v] for v in self.matrices if v in theirs}
        return AffineSum({**self.matrices, **theirs, **both}, self.bias + sign * other.bias)

    def times(self, matrix: Array) -> AffineSum:
        """Return this sum Σ x · M + bias, multiplied from the right by a matrix [n, m]."""
        return AffineSum({v: m @ matrix for v, m in self.matrices.items()}, self.bias @ matrix)

    def part(self, begin: int, size: int) -> AffineSum:
        """Return the sum Σ x · M + bias with only the columns `begin` to before `begin + size` of M and bias."""
        window = slice(begin, begin + size)
        return AffineSum({v: m[:, window] for v, m in self.matrices.items()}, self.bias[window])


def cell_of(x: Value, states: Sequence[Value], after: Sequence[Value]) -> RecurrentCell | None:
    """Match the recurrent cell that computes the states `after` from an input and the states before.

    Any of the values may have further axes of length 1.

    Args:
        x: Input of the step, [batch, depth].
        states: States before the step, each [batch, hidden].
        after: States after the step.

    Returns:
        The cell; None if the states are not computed by an RNN, GRU or LSTM.
    """
    if any(v.type.rank < 2 or v.type.dtype is not DType.FLOAT32 or v.type.shape[-1] > _WIDEST for v in (x, *states)):
        return None
    if any(v.type.count * x.type.shape[-1] != x.type.count * v.type.shape[-1] for v in states):
        return None
    if len(states) == 1:
        return _gru(x, states[0], after[0]) or _rnn(x, states[0], after[0])
    if len(states) == 2:
        return next((f for pair in permutations((0, 1)) if (f := _lstm(x, states, after, pair)) is not None), None)
    return None


def steps_to(new: Value, is_read: Callable[[Value], object]) -> Iterator[CellStep]:
    """Yield the recurrent time steps that may compute a value as their next state h.

    Args:
        new: The value.
        is_read: Returns whether a tensor may be the input x of a step.
    """
    for states, after, gate in (*_lstm_states(new), *_gru_states(new), *_rnn_states(new)):
        terms = _terms(gate, {v for v in states if v is not None})
        for x, h in permutations(terms) if len(terms) == 2 else ():
            if states[0] not in (None, h) or not is_read(x):
                continue
            before = (h, *states[1:])
            cell = cell_of(x, before, after)
            if cell is not None and cell.states == tuple(range(len(before))):
                yield CellStep(cell, x, before, after)


States = tuple[tuple[Any, ...], tuple[Value, ...], Value]
"""States before a step (None if arbitrary), states after the step, and the argument of one gate."""


def _lstm_states(new: Value) -> Iterator[States]:
    for out, squashed in operands_of(new, "Mul"):
        cell, gate = argument_of(squashed, "Tanh"), argument_of(out, "Sigmoid")
        for kept, _ in operands_of(cell, "Add") if cell is not None and gate is not None else ():
            for forget, c in operands_of(kept, "Mul"):
                if gate is not None and cell is not None and argument_of(forget, "Sigmoid") is not None:
                    yield (None, c), (new, cell), gate


def _gru_states(new: Value) -> Iterator[States]:
    for update, h, _ in _blends(new):
        if (gate := argument_of(update, "Sigmoid")) is not None:
            yield (h,), (new,), gate


def _rnn_states(new: Value) -> Iterator[States]:
    if (argument := argument_of(new, "Tanh")) is not None:
        yield (None,), (new,), argument


def _blends(new: Value) -> Iterator[tuple[Value, Value, Value]]:
    """Yield z, a and b for each way in which the value is z · a + (1 - z) · b, or z · (a - b) + b."""
    for kept, fresh in operands_of(new, "Add"):
        for gate, a in operands_of(kept, "Mul"):
            yield from ((gate, a, b) for complement, b in operands_of(fresh, "Mul") if _is_one_less(complement, gate))
            if a.producer is not None and a.producer.op == Binary("Sub") and a.producer.input(1) is fresh:
                yield gate, a.producer.input(0), fresh


def hoist_projection(cell: RecurrentCell, whole: Value, axis: int) -> tuple[RecurrentCell, Value]:
    """Merge a projection (constant matrix product) of the cell's input into the cell's weights.

    A loop's body, or the graph around the loop, computes the projection for all steps.

    Args:
        cell: The recurrent cell.
        whole: Input of all steps, which may be a projection of another tensor.
        axis: Axis of steps in `whole`.

    Returns:
        The cell with merged weights, and the tensor that is projected; the arguments if they cannot be merged.
    """
    total = _Sums()(whole)
    takes_rows = np.array_equal(cell.w.sum(0), np.ones(cell.w.shape[1])) and (cell.w != 0).sum() == len(cell.w)
    if not takes_rows or cell.w.shape[0] != cell.w.shape[1] or len(total.matrices) != 1:
        return cell, whole
    ((x, matrix),) = total.matrices.items()
    if x is whole or x.type.shape[:-1] != whole.type.shape[:-1] or axis == whole.type.rank - 1:
        return cell, whole
    b = np.concatenate([cell.w @ _full(total.bias, whole.type.shape[-1]), np.zeros(len(cell.w))])
    return replace(cell, w=cell.w @ matrix.T, b=cell.b + b), x


def compose_layer(
    node: OnnxNode, cell: RecurrentCell, x: Value, initial: Sequence[Value], backwards: bool
) -> list[Value]:
    """Add an ONNX RNN, GRU or LSTM node for a cell, and return its results, without the axis that counts directions.

    Args:
        node: Node in whose place the layer is imported.
        cell: Operator and weights.
        x: Input, [steps, batch, depth].
        initial: Initial h, and c of an LSTM, [batch, hidden].
        backwards: Whether the layer goes from the last step to the first.

    Returns:
        The hidden states of all steps, [steps, batch, hidden]; the last hidden state; and the last c of an LSTM.
    """
    batch, size = initial[0].type.shape
    firsts: list[Value | None] = []
    for value in initial:
        is_zero = value.data is not None and not value.data.any()
        firsts.append(None if is_zero else node.call("Reshape", value, np.asarray((1, batch, size))))
    inputs = [x, *cell.constants, None, *firsts]
    results = node.calls(cell.op, inputs, 1 + len(initial), **cell.attributes(backwards))
    shapes = [(*x.type.shape[:2], size), *[(batch, size)] * len(initial)]
    return [node.call("Reshape", v, np.asarray(shape)) for v, shape in zip(results, shapes, strict=True)]


def _lstm(x: Value, states: Sequence[Value], after: Sequence[Value], order: tuple[int, ...]) -> RecurrentCell | None:
    """Match h' = σ(o) · tanh(c'), c' = σ(f) · c + σ(i) · tanh(g), and return the cell; None if it does not match."""
    h, c, new_h, new_c = *(states[i] for i in order), *(after[i] for i in order)
    for out, squashed in operands_of(new_h, "Mul"):
        for kept, fresh in operands_of(new_c, "Add") if argument_of(squashed, "Tanh") is new_c else ():
            for forget, cell in operands_of(kept, "Mul"):
                for take, candidate in operands_of(fresh, "Mul") if cell is c else ():
                    gates = [argument_of(v, "Sigmoid") for v in (take, out, forget)]
                    lstm = _of_gates("LSTM", x, h, [*gates, argument_of(candidate, "Tanh")], order)
                    if lstm is not None:
                        return lstm
    return None


def _gru(x: Value, h: Value, new: Value) -> RecurrentCell | None:
    """Match h' = z · h + (1 - z) · tanh(g), where g is a sum of x and r · h, or of x and r · (a sum of h)."""
    for update, old, candidate in _blends(new):
        argument, z = argument_of(candidate, "Tanh"), argument_of(update, "Sigmoid")
        if old is h and argument is not None and z is not None and (gru := _reset(x, h, z, argument)) is not None:
            return gru
    return None


def _reset(x: Value, h: Value, z: Value, argument: Value) -> RecurrentCell | None:
    """Return the GRU whose candidate state is the tanh of `argument`."""
    sums = _Sums(x, h)
    total = sums(argument)
    (scaled, *further_terms) = (v for v in total.matrices if v is not x) if len(total.matrices) == 2 else (None,)
    if scaled is None or further_terms:
        return None
    for gate, of in operands_of(scaled, "Mul"):
        r = argument_of(gate, "Sigmoid")
        inner = sums(of)
        first = None if r is None else _of_gates("GRU", x, h, [z, r], (0,))
        if first is None or set(inner.matrices) != {h}:
            continue
        size, outer = h.type.shape[-1], total.matrices[scaled]
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
        return RecurrentCell("GRU", w, np.concatenate([first.r, recurrent.T]), b, (0,), is_linear)
    return None


def _rnn(x: Value, h: Value, new: Value) -> RecurrentCell | None:
    """Match h' = tanh(a sum of x and h), and return the cell; None if it does not match."""
    return _of_gates("RNN", x, h, [argument_of(new, "Tanh")], (0,))


def _of_gates(
    op: str, x: Value, h: Value, gates: Sequence[Value | None], states: tuple[int, ...]
) -> RecurrentCell | None:
    """Return the layer with these gate sums, if the sums contain only x and h."""
    size, read = h.type.shape[-1], _Sums(x, h)
    sums = [read(v) for v in gates if v is not None]
    is_complete = len(sums) == len(gates) and all(set(s.matrices) == {x, h} for s in sums)
    if not is_complete or any(m.shape[1] != size for s in sums for m in s.matrices.values()):
        return None
    w, r = (np.concatenate([s.matrices[v].T for s in sums]) for v in (x, h))
    b = np.concatenate([*(_full(s.bias, size) for s in sums), np.zeros(len(sums) * size)])
    return RecurrentCell(op, w, r, b, states)


class _Sums:
    """Values as sums. What is no sum, product with a constant matrix, or part of one, counts as a number of its own."""

    def __init__(self, *apart: Value) -> None:
        """Treat the values `apart` as terms of their own, however they are computed."""
        self._known = {value: _itself(value) for value in apart}

    def __call__(self, value: Value, depth: int = 0) -> AffineSum:
        """Return the sum that computes a value. The recursion is bounded by the depth of the largest cell."""
        if value not in self._known:
            node = value.producer
            known_sum = _constant(value) if node is None else self._composed(node, depth + 1) or _constant(value)
            self._known[value] = known_sum or _itself(value)
        return self._known[value]

    def _composed(self, node: Node, depth: int) -> AffineSum | None:
        op, terms = node.op, _summed(node)
        if not terms or depth > _DEEPEST:
            return None
        x, first = terms[0], self(terms[0], depth)
        if op == MatMul() and (matrix := _known(node.input(1))) is not None:
            return _wide(first, x).times(matrix.astype(np.float64))
        if isinstance(op, Slice):
            return _wide(first, x).part(op.starts[-1], op.sizes[-1])
        return first if len(terms) == 1 else first.plus(self(terms[1], depth), 1.0 if op == Binary("Add") else -1.0)


def _summed(node: Node) -> list[Value]:
    """Return the operands in which a node is linear (constant matrix product, sum, slice); else an empty list."""
    op, x = node.op, node.inputs[0] if node.inputs else None
    if x is None or not x.type.rank or x.type.shape[-1] > 4 * _WIDEST:
        return []
    if op == MatMul():
        matrix = _known(node.input(1))
        return [x] if matrix is not None and matrix.ndim == 2 else []
    if op in (Binary("Add"), Binary("Sub")):
        both = [x, node.input(1)]
        return both if all(_is_whole(v, node.output) for v in both) else []
    if isinstance(op, Reshape):
        return [x] if node.output.type.shape[-1:] == x.type.shape[-1:] else []
    if isinstance(op, Slice):
        return [x] if op.sizes[:-1] == x.type.shape[:-1] and set(op.steps) == {1} else []
    return []


def _terms(value: Value, apart: Set[Value]) -> list[Value]:
    """Return the non-constant terms of the sum that computes a value. Values in `apart` are not expanded."""
    terms, seen, pending = list[Value](), set[Value](), [value]
    while pending and len(seen) < _MAX_SUM_VALUES:
        term = pending.pop()
        if term in seen or _known(term) is not None:
            continue
        seen.add(term)
        inner = _summed(term.producer) if term.producer is not None and term not in apart else []
        pending += inner
        terms += [] if inner else [term]
    return terms


def _itself(value: Value) -> AffineSum:
    return AffineSum({value: np.eye(value.type.shape[-1] if value.type.rank else 1)}, np.zeros(1))


def _is_whole(part: Value, total: Value) -> bool:
    """Return whether a term is not repeated in the sum, unless it is a constant."""
    return part.type.rank > 0 and (_known(part) is not None or part.type.shape[-1] == total.type.shape[-1])


def _constant(value: Value) -> AffineSum | None:
    array = _known(value)
    if array is None or array.size not in (1, *value.type.shape[-1:]):
        return None
    return AffineSum({}, array.reshape(-1).astype(np.float64))


def _known(value: Value) -> Array | None:
    """Return the data of a constant, also if it is moved first (as the weights of Gemm are)."""
    node = value.producer
    if node is None or not node.op.moves_data:
        return value.data
    inputs = constant_data(node.inputs)
    return evaluate_node(node, inputs)[0] if len(inputs) == len(node.inputs) else None


def _wide(total: AffineSum, value: Value) -> AffineSum:
    """Return the sum with one bias for each element of the value's last axis."""
    return AffineSum(total.matrices, _full(total.bias, value.type.shape[-1]))


def _full(bias: Array, size: int) -> Array:
    return np.broadcast_to(bias, (size,))


def _is_one_less(complement: Value, gate: Value) -> bool:
    """Return whether `complement` is 1 - gate."""
    node = complement.producer
    if node is None or node.op != Binary("Sub") or node.input(1) is not gate:
        return False
    one = node.input(0).data
    return one is not None and bool((np.asarray(one) == 1).all())
