# SPDX-License-Identifier: Apache-2.0
"""Recognition of quantized LSTMs: loops whose body is one LSTM step (mcugen.quantization.recurrent), for kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.types import DType, QuantParams
from mcugen.kernels.common.weighted_layers import clamp_of
from mcugen.ops.elementwise import Interpolate, Stack
from mcugen.ops.movement import Slice
from mcugen.ops.pointwise import Binary

INPUT_GATE, OUTPUT_GATE, FORGET_GATE, CELL_GATE = range(4)
"""Indices of the gates (input, output, forget, cell) in the rows of ONNX LSTM's weights."""

GATE_QUANT = QuantParams((2.0**-15,), 0)
"""Quantization of the results of sigmoid and tanh: int16 with scale 2⁻¹⁵."""


@dataclass(frozen=True)
class LstmStep:
    """The parts of a loop body that computes one step of a quantized LSTM.

    Attributes:
        inner: Node that computes the sums of all gates from the input x.
        recurrent: Node that computes the sums of all gates from the hidden state.
        hidden: The hidden state h before the step.
        cell: The cell state c before the step.
    """

    inner: Node
    recurrent: Node
    hidden: Value
    cell: Value

    @property
    def size(self) -> int:
        """Return the size of the hidden state."""
        return self.hidden.type.shape[-1]


Term = tuple[object, ...]
"""Nested description of how a value is computed, to compare it with a pattern: (operator, result's quantization,
operands' terms)."""


def lstm_step(body: Graph) -> LstmStep | None:
    """Match a loop body against a quantized LSTM step; return its parts, or None if it computes something else.

    The body reads its step number, h, c and x, and returns h, c and optionally h again: i, o, f = σ(sums), g =
    tanh(sums), c' = f · c + i · g, h' = o · tanh(c'), with h and x in int8.
    """
    if len(body.inputs) != 4 or len(body.outputs) not in (2, 3):
        return None
    h, c, x = body.inputs[1:]
    layers = {n.inputs[0]: n for n in body.nodes if n.op.name == "dense"}
    types = (h.type.dtype, c.type.dtype, x.type.dtype)
    if types != (DType.INT8, DType.INT16, DType.INT8) or layers.keys() != {h, x}:
        return None
    step = LstmStep(layers[x], layers[h], h, c)
    shape = (*h.type.shape[:-1], 4 * step.size)
    if any(n.output.type.shape != shape or clamp_of(n) is not None for n in layers.values()):
        return None
    terms, (result, new) = _terms(body), _wanted(step)
    return step if [terms.get(v) for v in body.outputs] == [result, new, result][: len(body.outputs)] else None


def _wanted(step: LstmStep) -> tuple[Term, Term]:
    """Return the terms of the next hidden state and of the next cell state."""
    h, c, sums = (v.type.quant for v in (step.hidden, step.cell, step.inner.output))
    total = _term(Binary("Add"), sums, frozenset(_term(n, sums, ()) for n in (step.inner, step.recurrent)))

    def gate(of: str, index: int) -> Term:
        part = Slice((0, index * step.size), step.hidden.type.shape, (1, 1))
        return _term(of, GATE_QUANT, (_term(part, sums, (total,)),))

    def binary(function: str, quant: QuantParams | None, *terms: Term) -> Term:
        return _term(Binary(function), quant, frozenset(terms))

    kept = binary("Mul", c, gate("sigmoid", FORGET_GATE), _input(step.cell))
    fresh = binary("Mul", c, gate("sigmoid", INPUT_GATE), gate("tanh", CELL_GATE))
    new = binary("Add", c, kept, fresh)
    return binary("Mul", h, gate("sigmoid", OUTPUT_GATE), _term("tanh", GATE_QUANT, (new,))), new


def _terms(body: Graph) -> dict[Value, Term]:
    """Return the terms of a body's values; an empty term for operators that no LSTM has."""
    terms = {v: _input(v) for v in body.inputs}
    for node in body.nodes:
        args = [terms.get(v, ()) if v is not None else () for v in node.inputs]
        if isinstance(node.op, Stack):
            for step in node.op.steps:
                args.append(_made(step.op, step.quant, [args[a] for a in step.args], node))
            terms[node.outputs[0]] = args[-1]
        else:
            terms[node.outputs[0]] = _made(node.op, node.outputs[0].type.quant, args, node)
    return terms


def _made(op: object, quant: QuantParams | None, args: Sequence[Term], node: Node) -> Term:
    if isinstance(op, Interpolate):
        return _term(op.of, quant, (args[0],))
    if isinstance(op, Binary):
        return _term(op, quant, frozenset(args))
    if isinstance(op, Slice):
        return _term(op, quant, tuple(args))
    return _term(node, quant, ())


def _input(value: Value) -> Term:
    return (value,)


def _term(op: object, quant: QuantParams | None, parts: object) -> Term:
    return (op, quant, parts)
