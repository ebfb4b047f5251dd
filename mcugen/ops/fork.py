# SPDX-License-Identifier: Apache-2.0
"""A layer in two shards, which two cores compute at once: the same operator on runs of its tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.interpreter import run
from mcugen.hir.operator import Division, Operator, Portion, Run, Signature
from mcugen.hir.types import Array, DType, QuantParams, TensorType
from mcugen.lir.builder import Builder
from mcugen.lir.copies import CopyRange
from mcugen.lir.lower import lower_nodes
from mcugen.lir.program import MOVE, WORD, Access, Buffer, Control, Instr, Lanes, Operand, Overlap


@dataclass(frozen=True)
class Share:
    """The part of a layer that one core computes in one stage of a fork.

    Attributes:
        body: The layer as a graph that reads parts of the layer's inputs and computes a part of its output.
        reads: For each input of the body, the index of the layer's input and the run that is read (None: all of it).
        makes: The run of the layer's output that is computed.
        aside: Whether the result is first kept in its own buffer, and copied once the whole layer is done.
    """

    body: Graph = field(repr=False)
    reads: tuple[tuple[int, Run | None], ...]
    makes: Run
    aside: bool = False


@dataclass(frozen=True)
class Forked(Operator):
    """One layer whose tiles two cores compute in parallel, in one or several stages with a barrier behind each.

    Attributes:
        stages: The shards of each stage: one per core, or a single shard, which the first core computes.
        output: The type of the layer's output.
    """

    mnemonic: ClassVar[str] = "forked"
    stages: tuple[tuple[Share, ...], ...] = field(repr=False)
    output: TensorType = field(repr=False)

    @property
    def shares(self) -> list[Share]:
        """Return the shards of the layer, stage by stage."""
        return [share for stage in self.stages for share in stage]

    @property
    def bodies(self) -> tuple[Graph, ...]:
        """Return the graph of each shard."""
        return tuple(share.body for share in self.shares)

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output type of the whole layer."""
        for share in self.shares:
            for formal, (index, part) in zip(share.body.inputs, share.reads, strict=True):
                x = inputs[index]
                end = part.end if part else formal.type.count
                if x is None or x.dtype is not formal.type.dtype or end > x.count:
                    raise ModelError("forked: inputs must have the runs that portions read", str(x), "repair it")
        return (self.output,)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Interpret the graph of each shard, and assemble the output."""
        output = np.empty(self.output.count, self.output.dtype.numpy)
        for share in self.shares:
            flat = (arrays[i].reshape(-1)[part.elements if part else slice(None)] for i, part in share.reads)
            inputs = [x.reshape(formal.type.shape) for x, formal in zip(flat, share.body.inputs, strict=True)]
            (result,) = run(share.body, inputs)
            output[share.makes.elements] = result.reshape(-1)
        return (output.reshape(self.output.shape),)

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates of all shards."""
        return sum(node.op.macs(node.sig) for body in self.bodies for node in body.nodes)

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit a fork/join block for each stage.

        Shares read and write the layer's own buffers, except for parts that must be copied.
        """
        for share in self.shares:
            if share.makes.pitch is not None:
                builder.bind(share.body.outputs[0], builder.buffer(node.output))
        with builder.one_unit():
            for number, stage in enumerate(self.stages):
                with builder.one_layer():
                    for share in self.shares if number == 0 else ():
                        _take(node, builder, share)
                    if len(stage) == 1:
                        _lower_share(stage[0], builder)
                        continue
                    builder.mark(node, Control.FORK)
                    marker = builder.program.instrs[-1]
                    _lower_share(stage[0], builder)
                with builder.one_layer():
                    builder.mark(node, Control.ELSE)
                    _lower_share(stage[1], builder)
                    builder.mark(node, Control.END)
                    results = [builder.buffer(share.body.outputs[0]) for share in stage]
                    _declare(marker, builder.program.instrs, results)
                    if number == len(self.stages) - 1:
                        self._put(node, builder, aside=False)
            if any(share.aside for share in self.shares):
                with builder.one_layer():
                    self._put(node, builder, aside=True)

    def _put(self, node: Node, builder: Builder, *, aside: bool) -> None:
        """Move the results of shares to their places in the output, if they are not there already."""
        for share in self.shares:
            if share.aside is aside and share.makes.pitch is None:
                part, at = builder.buffer(share.body.outputs[0]), share.makes.at * self.output.dtype.nbytes
                whole = builder.buffer(node.output)
                builder.move(node, part, whole, "portion", part=CopyRange(0, at, part.nbytes), stays=aside)


def _take(node: Node, builder: Builder, share: Share) -> None:
    """Bind the inputs of a share to buffers; copy contiguous parts."""
    for formal, (index, part) in zip(share.body.inputs, share.reads, strict=True):
        whole = builder.buffer(node.input(index))
        if part is None or part.pitch is not None:
            builder.bind(formal, whole)
        else:
            target, at = builder.buffer(formal), part.at * formal.type.dtype.nbytes
            builder.move(node, whole, target, "portion", part=CopyRange(at, 0, target.nbytes))


def _lower_share(share: Share, builder: Builder) -> None:
    """Emit the instructions of a share; those on some channels of pixels record which lanes of tensors they use."""
    begun = len(builder.program.instrs)
    lower_nodes(share.body, builder)
    runs = [(formal, part) for formal, (_, part) in zip(share.body.inputs, share.reads, strict=True)]
    runs.append((share.body.outputs[0], share.makes))
    lanes = {builder.buffer(v): _lanes(part) for v, part in runs if part is not None and part.pitch is not None}
    for instr in builder.program.instrs[begun:] if lanes else ():
        instr.operands = tuple(replace(o, lanes=lanes.get(o.buffer)) for o in instr.operands)
        instr.overlaps = ()  # they count bytes of tensors without other channels between


def _lanes(part: Run) -> Lanes:
    assert part.pitch is not None
    return Lanes(part.at, part.shape[-1], part.pitch)


def _declare(marker: Instr, instrs: Sequence[Instr], results: Sequence[Buffer]) -> None:
    """Declare at the fork marker which inputs the results of the shares may overlap.

    An input may be overlapped if only the instructions that compute the result read it.
    """
    inside = [i for i in instrs[next(i for i, instr in enumerate(instrs) if instr is marker) + 1 :] if i.kernel != MOVE]
    operands, overlaps, inplace = list[Operand](), list[Overlap](), list[tuple[str, str]]()
    for result in dict.fromkeys(results):
        makers = [i for i in inside if i.control is Control.NONE and any(o.buffer is result for o in i.operands)]
        if not makers:  # a shard that is computed by no instruction: its bytes are its input's
            continue
        maker = makers[0]
        out = Operand(f"y{len(operands)}", Access.OUT, result)
        operands.append(out)
        role = next(o.role for o in maker.operands if o.buffer is result)
        leads = {o.into: o.lead for o in maker.overlaps if o.out == role}
        for into in dict.fromkeys([*leads, *(x for y, x in maker.inplace if y == role)]):
            source = maker.operand(into).buffer
            users = [i for i in inside if any(o.buffer is source for o in i.operands)]
            near = all((role, into) in writer.inplace for writer in makers)
            if source.planned and all(user in makers for user in users) and (near or into in leads):
                operands.append(Operand(f"x{len(operands)}", Access.IN, source))
                inplace += [(out.role, operands[-1].role)] * near
                overlaps += [Overlap(out.role, operands[-1].role, lead) for x, lead in leads.items() if x == into]
    marker.operands, marker.overlaps, marker.inplace = tuple(operands), tuple(overlaps), tuple(inplace)


# --------------------------------------------------------------------------------------------------- making


Cut = tuple[int, int, bool]
"""A core's shard: its first unit, the unit behind its last, and whether its output has a buffer of its own.

A unit is for example a row or a group of channels (Division.length)."""


Stages = Sequence[tuple[Cut, ...]]
"""Stages with a barrier behind each: one shard for each of both cores, or a single shard for the first core."""


def forked(node: Node, division: Division, stages: Stages) -> Forked | None:
    """Return the layer divided over two cores by a division, or None if that is impossible.

    It is impossible if a shard is empty, or if a shard's part of a tensor does not begin at a word boundary. A part
    of the output may begin anywhere if the shard writes to its own buffer.

    Args:
        node: The layer.
        division: The way to divide the output into units.
        stages: The shards that the cores compute in each stage, as ranges of units.
    """
    cuts = [cut for stage in stages for cut in stage]
    if any(start >= stop for start, stop, _ in cuts):
        return None
    portions = [(division.portion(start, stop), aside) for start, stop, aside in cuts]
    computed = [(v, [p.reads[i] for p, _ in portions]) for i, v in enumerate(node.inputs) if v and not v.is_constant]
    computed.append((node.output, [p.makes for p, is_aside in portions if not is_aside]))
    if any(r is not None and _splits_words(r, v.type.dtype) for v, runs in computed for r in runs):
        return None
    shares = iter([_share(node, portion, f"part{i + 1}", aside) for i, (portion, aside) in enumerate(portions)])
    return Forked(tuple(tuple(next(shares) for _ in stage) for stage in stages), node.output.type)


def _splits_words(part: Run, dtype: DType) -> bool:
    """Return whether it begins within a word, or some of its lanes begin or end there."""
    places = (part.at,) if part.pitch is None else (part.at, part.shape[-1], part.pitch)
    return any(place * dtype.nbytes % WORD for place in places)


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
    """Return a constant, or some entries of its axis 0, with the scales of these entries."""
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
