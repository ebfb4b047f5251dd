# SPDX-License-Identifier: Apache-2.0
"""Elimination of dead elements: only those elements of each tensor are computed that an output depends on.

A backward dataflow analysis finds the box of each tensor that its readers read, such as the last time steps in front
of a classifier. Operators say which elements of their inputs they need (trait Croppable). One rewrite then makes each
operator compute its box only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from mcugen.hir.crop import Box, Crop, join, shape_of, whole, within
from mcugen.hir.graph import DroppedWork, Graph, Node, Value
from mcugen.hir.operator import Signature
from mcugen.hir.traits import crop_of
from mcugen.hir.types import Array, TensorType
from mcugen.ops.movement import Movement, Slice


def drop_elements(graph: Graph) -> bool:
    """Tensors of which some elements are never read → smaller tensors; their readers slice what they do not need.

    An operator is left whole if copying parts of its inputs would cost more than it saves. Return whether the graph
    changed.
    """
    if graph.shapes_vary:
        return False
    before = _computed(graph)
    plan = _Plan(graph)
    while costly := {node for node in plan.crops if plan.costs_more(node)}:
        plan = _Plan(graph, plan.left | costly)
    changes = [(node, plan.change(node)) for node in graph.nodes if plan.is_narrower(node)]
    for node, change in changes:
        change.apply(graph, node)
    after = _computed(graph)
    graph.dropped += DroppedWork(elements=before.elements - after.elements, macs=before.macs - after.macs)
    return bool(changes)


def _computed(graph: Graph) -> DroppedWork:
    """Return the elements that all nodes compute, data movements left out, and their MACs."""
    nodes = [node for node in graph.nodes if not node.op.bodies and not isinstance(node.op, Movement)]
    elements = sum(value.type.count for node in nodes for value in node.outputs)
    return DroppedWork(elements=elements, macs=sum(node.op.macs(node.sig) for node in nodes))


@dataclass
class _Plan:
    """The elements that each node computes and reads, if only what outputs depend on is computed.

    Attributes:
        graph: The graph.
        left: Nodes that compute everything, because cropping them does not pay.
        crops: How each node with one output is computed.
        kept: The elements of each tensor that are computed.
    """

    graph: Graph
    left: frozenset[Node] = frozenset()
    crops: dict[Node, Crop] = field(init=False, default_factory=dict)
    kept: dict[Value, Box] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        read = {value: whole(value.type.shape) for value in self.graph.outputs}
        for node in reversed(self.graph.nodes):
            for value, box in zip(node.inputs, self._reads(node, read), strict=True):
                if value is not None and box is not None:
                    read[value] = join(read[value], box) if value in read else box
        self.kept |= {value: whole(value.type.shape) for value in self.graph.values() if value not in self.kept}

    def _reads(self, node: Node, read: Mapping[Value, Box]) -> tuple[Box | None, ...]:
        """Return what a node reads of each input, given what its readers read; note what it computes."""
        everything = tuple(None if v is None else whole(v.type.shape) for v in node.inputs)
        region = read.get(node.outputs[0])
        if node in self.left or len(node.outputs) > 1 or region is None or 0 in shape_of(region):
            return everything
        crop = crop_of(node, region)
        self.crops[node], self.kept[node.output] = crop, crop.writes
        return crop.reads

    def is_narrower(self, node: Node) -> bool:
        """Return whether a node computes less than its whole output, or reads inputs of which less is computed."""
        computed = [node.output, *(v for v in node.inputs if v is not None)] if node in self.crops else []
        return any(self.kept[value] != whole(value.type.shape) for value in computed)

    def costs_more(self, node: Node) -> bool:
        """Return whether slices of inputs copy more elements than the node has less to compute.

        A slice that is one run of elements costs nothing, because the memory planner can place it in the whole tensor.
        Neither does one in front of another slice, as both become one.
        """
        crop = self.crops[node]
        if isinstance(node.op, Slice) or not self.is_narrower(node):
            return False
        copied = sum(
            math.prod(shape_of(box))
            for value, box in zip(node.inputs, crop.reads, strict=True)
            if value is not None and value.data is None and box is not None and not self._is_run(value, box)
        )
        if not copied:
            return False
        inputs = zip(node.sig.inputs, crop.reads, strict=True)
        types = tuple(None if t is None or box is None else crop_type(t, box) for t, box in inputs)
        sig = Signature(types, (crop_type(node.output.type, crop.writes),))
        saved = max(node.op.macs(node.sig) - crop.op.macs(sig), node.output.type.count - sig.output.count)
        return saved < copied

    def _is_run(self, value: Value, box: Box) -> bool:
        """Return whether the elements in a box of a tensor are all that is computed of it, or contiguous in memory."""
        if box == self.kept[value]:
            return True
        part = _slice(self.kept[value], box)
        return part.is_run(crop_type(value.type, self.kept[value]))

    def change(self, node: Node) -> _Change:
        """Return the replacement of a node that computes only what is kept of its output."""
        kept = tuple(None if v is None else self.kept[v] for v in node.inputs)
        return _Change(self.crops[node], kept, crop_type(node.output.type, self.crops[node].writes))


@dataclass(frozen=True)
class _Change:
    """The replacement of a node.

    Attributes:
        crop: What it computes and reads.
        kept: The elements of each original input that are computed.
        type: The type of the output.
    """

    crop: Crop
    kept: tuple[Box | None, ...]
    type: TensorType

    def apply(self, graph: Graph, node: Node) -> None:
        """Put the replacement in the node's place."""
        inputs = []
        for index, (value, kept, box) in enumerate(zip(node.inputs, self.kept, self.crop.reads, strict=True)):
            if value is None or kept is None:
                inputs.append(value)
            elif box is not None:
                inputs.append(part_of(graph, node, value, kept, box, self.crop.constants.get(index)))
        graph.rewrite(node, self.crop.op, inputs, types=[self.type])


def part_of(
    graph: Graph, reader: Node | None, value: Value, kept: Box, box: Box, constant: Array | None = None
) -> Value:
    """Return the elements in a box of a tensor: the tensor itself, a part of a constant, or a slice.

    Args:
        graph: The graph, to which a slice is added.
        reader: The node that will read the part, which the slice must precede; None for the end of the graph.
        value: The elements that are computed of the tensor.
        kept: The box of these elements in the whole tensor.
        box: The box of the wanted elements in the whole tensor.
        constant: Elements that replace those in the box of a constant.
    """
    if kept == box and constant is None:
        return value
    type_ = crop_type(value.type, tuple(map(within, box, kept)))
    if value.data is not None:
        part = value.data[np.ix_(*box)] if box else value.data
        data = part if constant is None else constant
        return graph.constant(value.name, data, type_.quant, value.type.dtype, of=[value])
    origin = reader.origin if reader is not None else ()
    return graph.add(_slice(kept, box), [value], origin, types=[type_], before=reader).output


def _slice(kept: Box, box: Box) -> Slice:
    """Return the slice that takes the elements in a box from a tensor that has only the elements in `kept`."""
    places = tuple(map(within, box, kept))
    return Slice(tuple(p[0] for p in places), shape_of(box), tuple(p.step for p in places))


def crop_type(type_: TensorType, box: Box) -> TensorType:
    """Return the type of the elements in a box of a tensor; scales along an axis are those of its indices."""
    quant = type_.quant
    if quant is not None and quant.axis is not None:
        quant = replace(quant, scale=tuple(quant.scales[list(box[quant.axis])].tolist()))
    return replace(type_, shape=shape_of(box), quant=quant)
