# SPDX-License-Identifier: Apache-2.0
"""The operator of a layer that two cores compute in parallel: in shards, which read and write runs of its tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.interpreter import run
from mcugen.hir.operator import ElementRun, Operator, Partition, Shard, Signature
from mcugen.hir.types import Array, DType, QuantParams, TensorType
from mcugen.lir.builder import Builder
from mcugen.lir.copies import CopyRange
from mcugen.lir.lower import lower_nodes
from mcugen.lir.program import MOVE, WORD, Access, Buffer, Control, Instr, Lanes, Operand, Overlap


@dataclass(frozen=True)
class ForkShard:
    """The part of a layer that one core computes between two barriers, if two cores share the layer.

    Attributes:
        body: The layer as a graph that reads parts of the layer's inputs and computes a part of its output.
        reads: For each input of the body, the index of the layer's input, and its elements that are read (None: all).
        writes: The elements of the layer's output that are computed.
        is_copied_later: Whether the result is first kept in its own buffer, and copied once the whole layer is done.
    """

    body: Graph = field(repr=False)
    reads: tuple[tuple[int, ElementRun | None], ...]
    writes: ElementRun
    is_copied_later: bool = False


class Forked(Operator):
    """A layer whose output two cores compute in parallel, in one or several stages with a barrier after each stage.

    Attributes:
        stages: For each stage, the parts of the output (shards): one per core, or a single one for the first core.
        output: The type of the layer's output.
    """

    mnemonic: ClassVar[str] = "forked"
    stages: tuple[tuple[ForkShard, ...], ...] = field(repr=False)
    output: TensorType = field(repr=False)

    @property
    def shards(self) -> list[ForkShard]:
        """Return the parts of the layer that single cores compute (shards), stage by stage."""
        return [shard for stage in self.stages for shard in stage]

    @property
    def bodies(self) -> tuple[Graph, ...]:
        """Return the graphs that compute the parts of the layer's output, stage by stage."""
        return tuple(shard.body for shard in self.shards)

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: that of the whole layer."""
        for shard in self.shards:
            for formal, (index, part) in zip(shard.body.inputs, shard.reads, strict=True):
                x = inputs[index]
                end = part.end if part else formal.type.count
                if x is None or x.dtype is not formal.type.dtype or end > x.count:
                    raise ModelError("forked: inputs must have the runs that shards read", str(x), "repair it")
        return (self.output,)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output by interpreting the graph of each part (shard) of the layer."""
        output = np.empty(self.output.count, self.output.dtype.numpy)
        for shard in self.shards:
            flat = (arrays[i].reshape(-1)[part.elements if part else slice(None)] for i, part in shard.reads)
            inputs = [x.reshape(formal.type.shape) for x, formal in zip(flat, shard.body.inputs, strict=True)]
            (result,) = run(shard.body, inputs)
            output[shard.writes.elements] = result.reshape(-1)
        return (output.reshape(self.output.shape),)

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates of all parts of the layer together, on both cores."""
        return sum(node.op.macs(node.sig) for body in self.bodies for node in body.nodes)

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit a fork/join block, in which two cores work in parallel, for each stage of the layer.

        The cores read and write the layer's own buffers where possible; other parts of the inputs and the output are
        copied.
        """
        for shard in self.shards:
            if shard.writes.pitch is not None:
                builder.bind(shard.body.outputs[0], builder.buffer(node.output))
        with builder.one_unit():
            for number, stage in enumerate(self.stages):
                with builder.one_layer():
                    for shard in self.shards if number == 0 else ():
                        _take(node, builder, shard)
                    if len(stage) == 1:
                        _lower_shard(stage[0], builder)
                        continue
                    builder.mark(node, Control.FORK)
                    marker = builder.program.instrs[-1]
                    _lower_shard(stage[0], builder)
                with builder.one_layer():
                    builder.mark(node, Control.ELSE)
                    _lower_shard(stage[1], builder)
                    builder.mark(node, Control.END)
                    results = [builder.buffer(shard.body.outputs[0]) for shard in stage]
                    _declare(marker, builder.program.instrs, results)
                    if number == len(self.stages) - 1:
                        self._put(node, builder, is_copied_later=False)
            if any(shard.is_copied_later for shard in self.shards):
                with builder.one_layer():
                    self._put(node, builder, is_copied_later=True)

    def _put(self, node: Node, builder: Builder, *, is_copied_later: bool) -> None:
        """Move the results of shards to their places in the output, if they are not there already."""
        for shard in self.shards:
            if shard.is_copied_later is is_copied_later and shard.writes.pitch is None:
                part, at = builder.buffer(shard.body.outputs[0]), shard.writes.at * self.output.dtype.nbytes
                whole = builder.buffer(node.output)
                builder.move(node, part, whole, "portion", part=CopyRange(0, at, part.nbytes), stays=is_copied_later)


def _take(node: Node, builder: Builder, shard: ForkShard) -> None:
    """Bind the inputs of a shard to buffers; copy contiguous parts."""
    for formal, (index, part) in zip(shard.body.inputs, shard.reads, strict=True):
        whole = builder.buffer(node.input(index))
        if part is None or part.pitch is not None:
            builder.bind(formal, whole)
        else:
            target, at = builder.buffer(formal), part.at * formal.type.dtype.nbytes
            builder.move(node, whole, target, "portion", part=CopyRange(at, 0, target.nbytes))


def _lower_shard(shard: ForkShard, builder: Builder) -> None:
    """Emit the instructions of a shard; those on some channels of pixels record which lanes of tensors they use."""
    begun = len(builder.program.instrs)
    lower_nodes(shard.body, builder)
    runs = [(formal, part) for formal, (_, part) in zip(shard.body.inputs, shard.reads, strict=True)]
    runs.append((shard.body.outputs[0], shard.writes))
    lanes = {builder.buffer(v): _lanes(part) for v, part in runs if part is not None and part.pitch is not None}
    for instr in builder.program.instrs[begun:] if lanes else ():
        instr.operands = tuple(replace(o, lanes=lanes.get(o.buffer)) for o in instr.operands)
        instr.overlaps = ()  # they count bytes of tensors without other channels between


def _lanes(part: ElementRun) -> Lanes:
    assert part.pitch is not None
    return Lanes(part.at, part.shape[-1], part.pitch)


def _declare(marker: Instr, instrs: Sequence[Instr], results: Sequence[Buffer]) -> None:
    """Declare at the fork marker which inputs the results of the shards may overlap.

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


ShardRange = tuple[int, int, bool]
"""The units that one core computes: the first, the one behind the last, and whether the result has its own buffer.

A result with its own buffer is copied to the output later. A unit is for example a row or a group of channels
(Partition.length).
"""


Stages = Sequence[tuple[ShardRange, ...]]
"""The stages of a fork, with a barrier behind each stage: one shard (ShardRange) for each core, or one for the first
core only."""


def fork_layer(node: Node, partition: Partition, stages: Stages) -> Forked | None:
    """Return the layer divided over two cores by a partition, or None if that is impossible.

    It is impossible if a shard is empty, or if a shard's part of a tensor does not begin at a word boundary. A part
    of the output may begin anywhere if the shard writes to its own buffer.

    Args:
        node: The layer.
        partition: The way to divide the output into units.
        stages: The shards that the cores compute in each stage, as ranges of units.
    """
    cuts = [cut for stage in stages for cut in stage]
    if any(start >= stop for start, stop, _ in cuts):
        return None
    pairs = [(partition.shard(start, stop), is_copied_later) for start, stop, is_copied_later in cuts]
    computed = [
        (v, [shard.reads[i] for shard, _ in pairs]) for i, v in enumerate(node.inputs) if v and not v.is_constant
    ]
    computed.append((node.output, [shard.writes for shard, is_copied_later in pairs if not is_copied_later]))
    if any(r is not None and _splits_words(r, v.type.dtype) for v, runs in computed for r in runs):
        return None
    shards = iter(
        [_fork_shard(node, shard, f"part{i + 1}", is_copied_later) for i, (shard, is_copied_later) in enumerate(pairs)]
    )
    return Forked(tuple(tuple(next(shards) for _ in stage) for stage in stages), node.output.type)


def _splits_words(part: ElementRun, dtype: DType) -> bool:
    """Return whether it begins within a word, or some of its lanes begin or end there."""
    places = (part.at,) if part.pitch is None else (part.at, part.shape[-1], part.pitch)
    return any(place * dtype.nbytes % WORD for place in places)


def _fork_shard(node: Node, shard: Shard, suffix: str, is_copied_later: bool) -> ForkShard:
    inputs = zip(node.inputs, shard.reads, strict=True)
    reads = tuple(enumerate(r for v, r in inputs if v is not None and not v.is_constant))
    return ForkShard(_body(node, shard, suffix), reads, shard.writes, is_copied_later)


def _body(node: Node, shard: Shard, suffix: str) -> Graph:
    body = Graph(f"{node.output.name}.{suffix}")
    inputs: list[Value | None] = []
    for value, part in zip(node.inputs, shard.reads, strict=True):
        if value is None:
            inputs.append(None)
        elif value.data is not None:
            inputs.append(_constant(body, value, part))
        else:
            shape = value.type.shape if part is None else part.shape
            inputs.append(body.add_input(f"{value.name}.{suffix}", replace(value.type, shape=shape)))
    type_ = replace(node.output.type, shape=shard.writes.shape)
    name = f"{node.output.name}.{suffix}"
    body.add_output(name, body.add(shard.op, inputs, node.origin, names=[name], types=[type_]).output)
    return body


def _constant(body: Graph, value: Value, part: ElementRun | None) -> Value:
    """Return a constant, or some entries of its axis 0, with the scales of these entries."""
    assert value.data is not None
    if part is None:
        return body.constant(value.name, value.data, value.type.quant, value.type.dtype, of=[value])
    data = value.data.reshape(-1)[part.at : part.at + math.prod(part.shape)].reshape(part.shape)
    first = part.at // max(math.prod(part.shape[1:]), 1)
    quant = _some(value.type.quant, first, first + part.shape[0])
    return body.constant(value.name, data, quant, value.type.dtype, of=[value])


def _some(quant: QuantParams | None, start: int, stop: int) -> QuantParams | None:
    if quant is None or quant.axis != 0:
        return quant
    return replace(quant, scale=quant.scale[start:stop])
