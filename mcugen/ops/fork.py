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
from mcugen.lir.program import MOVE, WORD, Access, Buffer, Control, Instr, Operand, Overlap


@dataclass(frozen=True)
class Share:
    """A portion of a layer as one core computes it.

    `reads` are, by input of the body, the number of the layer's input and the run of it that is read (None: all of it);
    `makes` is the run of the output. What is made `aside` is copied to its place once the whole layer is done.
    """

    body: Graph = field(repr=False)
    reads: tuple[tuple[int, Run | None], ...]
    makes: Run
    aside: bool = False


@dataclass(frozen=True)
class Forked(Operator):
    """One layer, of which two cores compute portions at once, in one or several stages with a barrier behind each.

    Its inputs are those of the layer but for constants, `output` is the type of what all shares make together.
    """

    mnemonic: ClassVar[str] = "forked"
    stages: tuple[tuple[Share, Share], ...] = field(repr=False)
    output: TensorType = field(repr=False)

    @property
    def shares(self) -> list[Share]:
        """Of all stages."""
        return [share for stage in self.stages for share in stage]

    @property
    def bodies(self) -> tuple[Graph, ...]:
        """Those of the shares."""
        return tuple(share.body for share in self.shares)

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """As the whole layer."""
        for share in self.shares:
            for formal, (index, part) in zip(share.body.inputs, share.reads, strict=True):
                x = inputs[index]
                at = part.at if part else 0
                if x is None or x.dtype is not formal.type.dtype or at + formal.type.count > x.count:
                    raise ModelError("forked: inputs must have the runs that portions read", str(x), "repair it")
        return (self.output,)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Portion by portion."""
        made = np.empty(self.output.count, self.output.dtype.numpy)
        for share in self.shares:
            flat = (arrays[index].reshape(-1)[part.at if part else 0 :] for index, part in share.reads)
            given = [x[: f.type.count].reshape(f.type.shape) for x, f in zip(flat, share.body.inputs, strict=True)]
            (result,) = run(share.body, given)
            made[share.makes.at : share.makes.at + result.size] = result.reshape(-1)
        return (made.reshape(self.output.shape),)

    def macs(self, sig: Signature) -> int:
        """Those of all portions."""
        return sum(node.op.macs(node.sig) for body in self.bodies for node in body.nodes)

    def lower(self, node: Node, builder: Builder) -> None:
        """A block of two sides a stage. What portions read and make are parts of the layer's tensors, if not aside."""
        made = [builder.buffer(body.outputs[0]) for body in self.bodies]
        with builder.one_unit():
            for number, (first, second) in enumerate(self.stages):
                with builder.one_layer():
                    for share in self.shares if number == 0 else ():
                        _take(node, builder, share)
                    builder.mark(node, Control.FORK)
                    marker = builder.program.instrs[-1]
                    lower_nodes(first.body, builder)
                with builder.one_layer():
                    builder.mark(node, Control.ELSE)
                    lower_nodes(second.body, builder)
                    builder.mark(node, Control.END)
                    _declare(marker, builder.program.instrs, made[2 * number : 2 * number + 2])
                    if number == len(self.stages) - 1:
                        self._put(node, builder, aside=False)
            if any(share.aside for share in self.shares):
                with builder.one_layer():
                    self._put(node, builder, aside=True)

    def _put(self, node: Node, builder: Builder, *, aside: bool) -> None:
        """Portions become parts of the output."""
        for share in self.shares:
            if share.aside is aside:
                part, at = builder.buffer(share.body.outputs[0]), share.makes.at * self.output.dtype.nbytes
                whole = builder.buffer(node.output)
                builder.move(node, part, whole, "portion", y_at=at, nbytes=part.nbytes, stays=aside)


def _take(node: Node, builder: Builder, share: Share) -> None:
    """The buffers of what a portion reads."""
    for formal, (index, part) in zip(share.body.inputs, share.reads, strict=True):
        whole = builder.buffer(node.input(index))
        if part is None:
            builder.bind(formal, whole)
        else:
            target, at = builder.buffer(formal), part.at * formal.type.dtype.nbytes
            builder.move(node, whole, target, "portion", x_at=at, nbytes=target.nbytes)


def _declare(marker: Instr, instrs: Sequence[Instr], made: Sequence[Buffer]) -> None:
    """Lets the marker say what portions' results may lie over: what only the instruction reads that makes them."""
    inside = [i for i in instrs[next(i for i, instr in enumerate(instrs) if instr is marker) + 1 :] if i.kernel != MOVE]
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


Cut = tuple[int, int, bool]
"""Of a portion: its units from the first to before the last, and whether it is made aside."""


def forked(node: Node, division: Division, stages: Sequence[tuple[Cut, Cut]]) -> Forked | None:
    """The layer in portions of these units; None where a portion would begin within a word, or would be empty."""
    cuts = [cut for stage in stages for cut in stage]
    if any(start >= stop for start, stop, _ in cuts):
        return None
    portions = [(division.portion(start, stop), aside) for start, stop, aside in cuts]
    computed = [(v, [p.reads[i] for p, _ in portions]) for i, v in enumerate(node.inputs) if v and not v.is_constant]
    computed.append((node.output, [p.makes for p, _ in portions]))
    if any(r is not None and r.at * v.type.dtype.nbytes % WORD for v, runs in computed for r in runs):
        return None
    shares = [_share(node, portion, f"part{i + 1}", aside) for i, (portion, aside) in enumerate(portions)]
    pairs = [(shares[i], shares[i + 1]) for i in range(0, len(shares), 2)]
    return Forked(tuple(pairs), node.output.type)


def _share(node: Node, portion: Portion, suffix: str, aside: bool) -> Share:
    inputs = zip(node.inputs, portion.reads, strict=True)
    reads = tuple(enumerate(r for v, r in inputs if v is not None and not v.is_constant))
    return Share(_body(node, portion, suffix), reads, portion.makes, aside)


def _body(node: Node, portion: Portion, suffix: str) -> Graph:
    body = Graph(f"{node.output.name}.{suffix}")
    inputs: list[Value | None] = []
    for value, part in zip(node.inputs, portion.reads, strict=True):
        if value is None:
            inputs.append(None)
        elif value.data is not None:
            inputs.append(_constant(body, value, part))
        else:
            shape = value.type.shape if part is None else part.shape
            inputs.append(body.add_input(f"{value.name}.{suffix}", replace(value.type, shape=shape)))
    type_ = replace(node.output.type, shape=portion.makes.shape)
    name = f"{node.output.name}.{suffix}"
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
