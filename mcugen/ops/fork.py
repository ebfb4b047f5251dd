# SPDX-License-Identifier: Apache-2.0
"""A layer in two portions, which two cores compute at once: the same operator on runs of its tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from mcugen.errors import ModelError
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.interpreter import run
from mcugen.hir.operator import Division, Operator, Portion, Run, Signature
from mcugen.hir.types import Array, QuantParams, TensorType
from mcugen.lir.builder import Builder
from mcugen.lir.lower import lower_nodes
from mcugen.lir.program import WORD, Access, Buffer, Control, Instr, Operand, Overlap

SIDES = ("first", "second")
"""What the names of the portions' tensors end in."""


@dataclass(frozen=True)
class Forked(Operator):
    """One layer, of which each of two cores computes a portion. Its inputs are those of the layer but for constants.

    `reads` are, by portion and input of its body, the number of the layer's input and the run of it that is read (None:
    all of it); `makes` are the runs of the output, one behind the other, whose type is `output`.
    """

    mnemonic: ClassVar[str] = "forked"
    portions: tuple[Graph, Graph] = field(repr=False)
    reads: tuple[tuple[tuple[int, Run | None], ...], ...] = field(repr=False)
    makes: tuple[Run, Run] = field(repr=False)
    output: TensorType = field(repr=False)

    @property
    def bodies(self) -> tuple[Graph, ...]:
        """The portions."""
        return self.portions

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """As the whole layer."""
        for body, reads in zip(self.portions, self.reads, strict=True):
            for formal, (index, part) in zip(body.inputs, reads, strict=True):
                x = inputs[index]
                at = part.at if part else 0
                if x is None or x.dtype is not formal.type.dtype or at + formal.type.count > x.count:
                    raise ModelError("forked: inputs must have the runs that portions read", str(x), "repair it")
        return (self.output,)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Portion by portion."""
        made = []
        for body, reads in zip(self.portions, self.reads, strict=True):
            flat = (arrays[index].reshape(-1)[part.at if part else 0 :] for index, part in reads)
            given = [x[: f.type.count].reshape(f.type.shape) for x, f in zip(flat, body.inputs, strict=True)]
            made += [result.reshape(-1) for result in run(body, given)]
        return (np.concatenate(made).reshape(self.output.shape),)

    def macs(self, sig: Signature) -> int:
        """Those of both."""
        return sum(node.op.macs(node.sig) for body in self.portions for node in body.nodes)

    def lower(self, node: Node, builder: Builder) -> None:
        """A block with two sides. What portions read and make are parts of the layer's tensors: nothing is moved."""
        made = [builder.buffer(body.outputs[0]) for body in self.portions]
        with builder.one_layer():
            for side in range(2):
                self._take(node, builder, side)
            builder.mark(node, Control.FORK)
            marker = builder.program.instrs[-1]
            lower_nodes(self.portions[0], builder)
        with builder.one_layer():
            builder.mark(node, Control.ELSE)
            lower_nodes(self.portions[1], builder)
            builder.mark(node, Control.END)
            for part, run_ in zip(made, self.makes, strict=True):
                at = run_.at * self.output.dtype.nbytes
                builder.move(node, part, builder.buffer(node.output), "portion", y_at=at, nbytes=part.nbytes)
        _declare(marker, builder.program.instrs, made)

    def _take(self, node: Node, builder: Builder, side: int) -> None:
        """The buffers of what a portion reads."""
        for formal, (index, part) in zip(self.portions[side].inputs, self.reads[side], strict=True):
            whole = builder.buffer(node.input(index))
            if part is None:
                builder.bind(formal, whole)
            else:
                target, at = builder.buffer(formal), part.at * formal.type.dtype.nbytes
                builder.move(node, whole, target, "portion", x_at=at, nbytes=target.nbytes)


def _declare(marker: Instr, instrs: Sequence[Instr], made: Sequence[Buffer]) -> None:
    """Lets the marker say what portions' results may lie over: what only the instruction reads that makes them."""
    inside = instrs[next(i for i, instr in enumerate(instrs) if instr is marker) + 1 :]
    operands, overlaps = list[Operand](), list[Overlap]()
    for side, result in enumerate(made):
        makers = [i for i in inside if i.control is Control.NONE and any(o.buffer is result for o in i.operands)]
        (maker, *_) = makers
        out = next(o.role for o in maker.operands if o.buffer is result)
        operands.append(Operand(f"y{side}", Access.OUT, result))
        for lead in (o for o in maker.overlaps if o.out == out):
            source = maker.operand(lead.into).buffer
            users = [i for i in inside if any(o.buffer is source for o in i.operands)]
            if users == [maker] and source.planned:
                overlaps.append(Overlap(f"y{side}", f"x{len(overlaps)}", lead.lead))
                operands.append(Operand(overlaps[-1].into, Access.IN, source))
    marker.operands, marker.overlaps = tuple(operands), tuple(overlaps)
    marker.inplace = tuple((o.out, o.into) for o in overlaps if o.lead <= 0)


# --------------------------------------------------------------------------------------------------- making


def forked(node: Node, division: Division, cut: int) -> Forked | None:
    """The layer with its units before `cut` in the first portion; None where a portion would begin within a word."""
    portions = [division.portion(0, cut), division.portion(cut, division.length)]
    runs = [(v, r) for p in portions for v, r in zip(node.inputs, p.reads, strict=True) if v and not v.is_constant]
    runs += [(node.output, p.makes) for p in portions]
    if any(r is not None and r.at * v.type.dtype.nbytes % WORD for v, r in runs):
        return None
    first, second = (p.makes for p in portions)
    if (first.at, second.at) != (0, math.prod(first.shape)):
        return None
    bodies = [_body(node, portion, side) for portion, side in zip(portions, SIDES, strict=True)]
    reads = [
        tuple(enumerate(r for v, r in zip(node.inputs, p.reads, strict=True) if v and not v.is_constant))
        for p in portions
    ]
    return Forked((bodies[0], bodies[1]), tuple(reads), (first, second), node.output.type)


def _body(node: Node, portion: Portion, side: str) -> Graph:
    body = Graph(f"{node.output.name}.{side}")
    inputs: list[Value | None] = []
    for value, part in zip(node.inputs, portion.reads, strict=True):
        if value is None:
            inputs.append(None)
        elif value.data is not None:
            inputs.append(_constant(body, value, part))
        else:
            shape = value.type.shape if part is None else part.shape
            inputs.append(body.add_input(f"{value.name}.{side}", replace(value.type, shape=shape)))
    type_ = replace(node.output.type, shape=portion.makes.shape)
    name = f"{node.output.name}.{side}"
    body.add_output(name, body.add(portion.op, inputs, node.origin, names=[name], types=[type_]).output)
    return body


def _constant(body: Graph, value: Value, part: Run | None) -> Value:
    """All of a constant, or some entries of its axis 0, with their scales."""
    assert value.data is not None
    if part is None:
        return body.constant(value.name, value.data, value.type.quant, value.type.dtype)
    data = value.data.reshape(-1)[part.at : part.at + math.prod(part.shape)].reshape(part.shape)
    first = part.at // max(math.prod(part.shape[1:]), 1)
    quant = _some(value.type.quant, first, first + part.shape[0])
    return body.constant(value.name, data, quant, value.type.dtype)


def _some(quant: QuantParams | None, start: int, stop: int) -> QuantParams | None:
    if quant is None or quant.axis != 0:
        return quant
    return replace(quant, scale=quant.scale[start:stop])
