# SPDX-License-Identifier: Apache-2.0
"""Replacement of recurrent layers that were unrolled into time steps (ops/written_out.py) by recurrent ONNX layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

from mcugen.frontend.onnx.composition import Composed, Parts
from mcugen.hir.graph import Graph, Value
from mcugen.hir.layer_names import module_path
from mcugen.hir.names import Names
from mcugen.hir.types import Array
from mcugen.ops.cells import CELL_MARKER_OPERATOR
from mcugen.ops.written_out import MIN_ROLLED_STEPS, UnrolledLayer, unrolled_layers


def may_be_steps(model: onnx.ModelProto) -> bool:
    """Return whether a model may contain an unrolled recurrent layer: one whose time steps are separate nodes.

    This is a fast test by the number of nodes of one operator; `roll_up_steps` then looks for the steps themselves.
    """
    return len([node for node in model.graph.node if node.op_type == CELL_MARKER_OPERATOR]) >= MIN_ROLLED_STEPS


def roll_up_steps(model: onnx.ModelProto, graph: Graph, env: Mapping[str, Value | None]) -> Composed:
    """Find unrolled time steps among a model's nodes, and return the recurrent layers that replace them.

    Args:
        model: The model.
        graph: The imported graph of the model.
        env: Values by ONNX name, without float16 values, which are rounded between the steps.

    Returns:
        The ONNX nodes of each recurrent layer, by the first output of a node that they replace. Other nodes whose
        results the layer computes are replaced by nothing.
    """
    places = {name: index for index, node in enumerate(model.graph.node) for name in node.output[:1]}
    names = {v: name for name, v in reversed(list(env.items())) if v is not None}
    modules = {name: module_path(node.name) for node in model.graph.node for name in node.output[:1]}
    used_nodes = Names((node.name for node in model.graph.node), separator="_")
    used_names = {*env, *(name for node in model.graph.node for name in node.output)}
    composed: Composed = {}
    for layer in unrolled_layers(graph):
        outputs = [*layer.outputs, *([layer.cell] if layer.cell else [])]
        read = [layer.first.whole, *(v for v in layer.initial if v is not None)]
        output_names = [names.get(v, "") for v in outputs]
        if any(name not in places for name in output_names) or any(v not in names and v.data is None for v in read):
            continue
        output_names.sort(key=places.__getitem__)
        prefix = next(
            p for i in range(len(used_names) + 1) if (p := f"{output_names[0]}/layer{i or ''}") not in used_names
        )
        used_names.add(prefix)
        parts = _Writer(layer, prefix, names).parts()
        module = modules[output_names[0]]
        for node in parts.nodes:
            if module and node.op_type == layer.found.op:
                node.name = used_nodes.take(f"{module}:{node.op_type}")
        composed |= {name: Parts() for name in output_names} | {output_names[0]: parts}
    return composed


@dataclass
class _Writer:
    """A writer of a layer's ONNX nodes under names that begin with `prefix`; outputs keep their names."""

    layer: UnrolledLayer
    prefix: str
    names: Mapping[Value, str]
    made: Parts = field(default_factory=Parts)

    def parts(self) -> Parts:
        """Return the layer's nodes, and one node for each of its outputs."""
        layer, recurrence = self.layer, self.layer.found
        hidden, count = recurrence.r.shape[1], len(layer.outputs)
        weights = [self._constant(array) for array in recurrence.constants]
        first = [
            "" if v is None else self._node("Reshape", [self._name(v), self._shape(1, layer.batch, hidden)])
            for v in layer.initial
        ]
        attributes = recurrence.attributes(layer.stride < 0)
        inputs = [self._rows(), *weights, "", *first]
        every, _, *cells = self.made.call(self.prefix, recurrence.op, inputs, 1 + len(layer.initial), "", **attributes)
        joined = self._node("Reshape", [every, self._shape(count, layer.batch, hidden)])
        for step, output in enumerate(layer.outputs):
            at = step if layer.stride > 0 else count - 1 - step
            begin, end = (self._constant(np.asarray([n])) for n in (at, at + 1))
            self._end(self._node("Slice", [joined, begin, end]), output)
        if layer.cell is not None:
            self._end(cells[0], layer.cell)
        return self.made

    def _rows(self) -> str:
        """Add nodes that give the input the shape [steps, batch, depth], and return the name of the result."""
        layer, part = self.layer, self.layer.first
        shape, count = part.whole.type.shape, len(layer.outputs)
        order = [part.axis, *(i for i in range(len(shape)) if i != part.axis)]
        x = self._name(part.whole)
        if part.axis:
            x = self._node("Transpose", [x], perm=order)
        begin = min(part.index, part.index + (count - 1) * layer.stride)
        if count < shape[part.axis]:
            ends = [self._constant(np.asarray([n])) for n in (begin, begin + count, 0)]
            x = self._node("Slice", [x, *ends])
        return self._node("Reshape", [x, self._shape(count, layer.batch, layer.found.w.shape[1])])

    def _name(self, value: Value) -> str:
        return self.names[value] if value in self.names else self._constant(np.asarray(value.data))

    def _shape(self, *sizes: int) -> str:
        return self._constant(np.asarray(sizes))

    def _constant(self, array: Array) -> str:
        return self.made.keep(f"{self.prefix}/constant{len(self.made.constants)}", array)

    def _node(self, op: str, inputs: Sequence[str], **attributes: object) -> str:
        return self.made.call(self.prefix, op, inputs, 1, "", **attributes)[0]

    def _end(self, value: str, output: Value) -> None:
        """Add a node that gives an output its own shape and name."""
        name = self.names[output]
        self.made.ends.append(helper.make_node("Reshape", [value, self._shape(*output.type.shape)], [name], name))
