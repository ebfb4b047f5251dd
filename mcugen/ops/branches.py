# SPDX-License-Identifier: Apache-2.0
"""Independent branches of a network, which two cores compute in parallel."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field
from typing import ClassVar

from mcugen.core.errors import ModelError
from mcugen.hir.graph import Graph, Node
from mcugen.hir.interpreter import run
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.subgraph import body_of
from mcugen.hir.types import Array, TensorType
from mcugen.lir.builder import Builder
from mcugen.lir.lower import lower_nodes
from mcugen.lir.program import Control


class Branches(Operator):
    """Two independent graphs that two cores compute in parallel.

    The inputs are those of the first graph, then those of the second; so are the outputs.

    Attributes:
        first: Graph that the first core computes.
        second: Graph that the second core computes.
    """

    mnemonic: ClassVar[str] = "branches"
    first: Graph = field(repr=False)
    second: Graph = field(repr=False)

    @property
    def bodies(self) -> tuple[Graph, ...]:
        """Return the graphs of both branches: the first core's, then the second core's."""
        return (self.first, self.second)

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the types of the outputs of both graphs."""
        formals = [value.type for body in self.bodies for value in body.inputs]
        if list(inputs) != formals:
            raise ModelError("branches: inputs must have the types of the graphs' inputs", str(inputs), "repair it")
        return tuple(value.type for body in self.bodies for value in body.outputs)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the outputs by interpreting the first graph, then the second."""
        count = len(self.first.inputs)
        return (*run(self.first, list(arrays[:count])), *run(self.second, list(arrays[count:])))

    def macs(self, sig: Signature) -> int:
        """Return the sum of the multiply-accumulates of both graphs."""
        return sum(node.op.macs(node.sig) for body in self.bodies for node in body.nodes)

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit a fork/join block that runs each graph on one core."""
        outer_inputs = iter(node.inputs)
        for body in self.bodies:
            for formal, value in zip(body.inputs, outer_inputs, strict=False):
                assert value is not None
                builder.bind(formal, builder.buffer(value))
        with builder.one_unit():
            for body, control in zip(self.bodies, (Control.FORK, Control.ELSE), strict=True):
                with builder.one_layer():
                    builder.mark(node, control)
                    lower_nodes(body, builder)
                    if control is Control.ELSE:
                        builder.mark(node, Control.END)
        for value, result in zip(node.outputs, (v for body in self.bodies for v in body.outputs), strict=True):
            builder.bind(value, builder.buffer(result))


def side_by_side(graph: Graph, first: Collection[Node], second: Collection[Node]) -> Node:
    """Replace two independent groups of nodes by one node, whose two branches two cores compute in parallel.

    No node of one group may read a result of the other group. All other nodes that read a result must come after both
    groups in the graph.

    Args:
        graph: The graph, changed in place.
        first: Nodes of the first core's branch.
        second: Nodes of the second core's branch.

    Returns:
        The new node.
    """
    inside = {*first, *second}
    bodies = [body_of(graph, [node for node in graph.nodes if node in part], "branch") for part in (first, second)]
    inputs = [value for body in bodies for value in body[1]]
    results = [value for body in bodies for value in body[2]]
    place = next((n for n in graph.nodes if n not in inside and any(v in results for v in n.inputs)), None)
    origin = [name for node in graph.nodes if node in inside for name in node.origin]
    types = [value.type for value in results]
    names = [f"{value.name}.branch" for value in results]
    op = Branches(bodies[0][0], bodies[1][0])
    node = graph.add(op, inputs, tuple(dict.fromkeys(origin)), names=names, types=types, before=place)
    for old, new in zip(results, node.outputs, strict=True):
        graph.replace(old, new)
    for old_node in [n for n in reversed(list(graph.nodes)) if n in inside]:
        graph.remove(old_node)
    return node
