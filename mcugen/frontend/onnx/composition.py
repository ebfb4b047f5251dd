# SPDX-License-Identifier: Apache-2.0
"""Recording of operators that importers compose of other ONNX operators, so that a model in ONNX can replace them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mcugen.frontend.onnx.nodes import rename, tensors_read
from mcugen.hir.graph import Graph, Value
from mcugen.hir.types import Array
from mcugen.ops.onnx_node import Operand


@dataclass
class Parts:
    """ONNX nodes that together compute what one composed node computes.

    A composed node is an ONNX node that its importer expands to other ONNX operators.

    Attributes:
        nodes: The nodes in order.
        ends: Identity nodes that give the results the names of the composed node's outputs.
        constants: The constants that the nodes read.
    """

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    ends: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def call(
        self, prefix: str, op_type: str, inputs: Sequence[str], outputs: int, domain: str = "", **attributes: object
    ) -> Sequence[str]:
        """Add a node and return the names of its outputs.

        Args:
            prefix: Prefix of the names of the node and its outputs.
            op_type: Operator of the node.
            inputs: Names of the inputs; "" for absent ones.
            outputs: Number of outputs.
            domain: Domain of the operator.
            attributes: Attributes of the node.
        """
        stem = f"{prefix}/{op_type}{len(self.nodes)}"
        results = [stem, *(f"{stem}.{index}" for index in range(1, outputs))]
        self.nodes.append(helper.make_node(op_type, inputs, results, stem, domain=domain, **attributes))
        return results

    def keep(self, name: str, array: Array) -> str:
        """Add a constant of this name to those that the nodes read, and return the name."""
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return name


Composed = dict[str, Parts]
"""The ONNX nodes (Parts) that replace each composed node, by the name of the composed node's first output."""


@dataclass
class Recorder:
    """A recorder of one composed node: it imports the operators that the node consists of, and keeps them.

    A composed node is an ONNX node that its importer expands to other ONNX operators. The recorded nodes can replace it
    in the ONNX model, for programs that do not know its operator.

    Attributes:
        graph: The HIR graph.
        prefix: Prefix of the names of recorded nodes and tensors.
        names: ONNX names of the node's inputs and of the results of recorded nodes, by HIR value.
        compose: Function that imports one node, given the values of its inputs by name.
        parts: The recorded nodes.
        complete: Whether every value that the recorded nodes read has a name in ONNX, so that they can be written.
    """

    graph: Graph
    prefix: str
    names: dict[Value, str]
    compose: Callable[[onnx.NodeProto, dict[str, Value | None]], list[Value]]
    parts: Parts = field(default_factory=Parts)
    complete: bool = True

    def __call__(
        self, op_type: str, inputs: Sequence[Operand], outputs: int, domain: str, **attributes: object
    ) -> tuple[Value, ...]:
        """Import an operator and record it; see `ops.onnx_node.Composition`."""
        operands = [v if v is None or isinstance(v, Value) else self._new(np.asarray(v)) for v in inputs]
        env = {self._name(v): v for v in operands if v is not None}
        names = ["" if v is None else self._name(v) for v in operands]
        results = self.parts.call(self.prefix, op_type, names, outputs, domain, **attributes)
        values = self.compose(self.parts.nodes[-1], dict(env))
        self.names |= dict(zip(values, results, strict=True))
        return tuple(values)

    def finish(self, outputs: Sequence[str], results: Sequence[Value | None], composed: Composed) -> None:
        """Add the recorded nodes to `composed`, unless they cannot replace the composed node.

        A composed node is an ONNX node that its importer expands to other ONNX operators. The recorded nodes cannot
        replace it if nodes that were not recorded computed a result or an operand.

        Args:
            outputs: The ONNX names of the composed node's outputs.
            results: The imported values of the outputs.
            composed: Receives the nodes, under the name of the composed node's first output.
        """
        named_results = [(name, value) for name, value in zip(outputs, results, strict=False) if name and value]
        if not self.parts.nodes or not self.complete or any(value not in self.names for _, value in named_results):
            return
        names = [(name, self.names[value]) for name, value in named_results if value is not None]
        composed[next(filter(None, outputs))] = replace(self.parts, ends=_named(names))

    def _new(self, array: Array) -> Value:
        return self.graph.constant(f"{self.prefix}/constant{len(self.parts.constants)}", array)

    def _name(self, value: Value) -> str:
        """Return the ONNX name of a value; a constant without one is added to the parts."""
        if value not in self.names:
            self.names[value] = value.name
            if value.data is None:
                self.complete = False
            else:
                self.parts.keep(value.name, value.data)
        return self.names[value]


def selected_branch_parts(branch: onnx.GraphProto, outputs: Sequence[str], full_name: Callable[[str], str]) -> Parts:
    """Return the ONNX nodes that replace an If whose condition is constant.

    Args:
        branch: The branch that the condition selects.
        outputs: Names of the outputs of the If.
        full_name: Returns the model-wide name of a tensor of the branch.
    """
    nodes, constants = [], []
    for node in branch.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        rename(copy, {name: full_name(name) for name in (*tensors_read(node), *node.output) if name})
        nodes.append(copy)
    for tensor in branch.initializer:
        stored = onnx.TensorProto()
        stored.CopyFrom(tensor)
        stored.name = full_name(tensor.name)
        constants.append(stored)
    results = (full_name(value.name) for value in branch.output)
    return Parts(nodes, _named([(name, own) for name, own in zip(outputs, results, strict=True) if name]), constants)


def _named(names: Sequence[tuple[str, str]]) -> list[onnx.NodeProto]:
    """Return Identity nodes that give tensors the names of a node's outputs."""
    return [helper.make_node("Identity", [own], [name], f"{name}/Identity") for name, own in names]


def replace_composed_nodes(model: onnx.ModelProto, composed: Mapping[str, Parts]) -> onnx.ModelProto:
    """Return a model in which composed nodes are replaced by the ONNX nodes that compute the same.

    A composed node is an ONNX node that its importer expands to other ONNX operators.

    Args:
        model: The model, which is not changed.
        composed: The nodes that replace each composed node, by the name of its first output. A node without a
            replacement stays.
    """
    if not composed:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(_spelled(model.graph.node, composed))
    written = {name for node in result.graph.node for name in node.input}
    result.graph.initializer.extend(t for parts in composed.values() for t in parts.constants if t.name in written)
    domains = {entry.domain for entry in result.opset_import}
    used = dict.fromkeys(node.domain for node in result.graph.node)
    result.opset_import.extend(helper.make_opsetid(d, 1) for d in used if d and d not in domains and d != "ai.onnx")
    return result


def _spelled(nodes: Sequence[onnx.NodeProto], composed: Mapping[str, Parts]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        parts = composed.get(next(filter(None, node.output), ""))
        if parts is None:
            yield node
        else:
            yield from _spelled(parts.nodes, composed)
            yield from parts.ends
