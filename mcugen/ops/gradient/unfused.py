# SPDX-License-Identifier: Apache-2.0
"""Splitting of fused nodes before differentiation: layers with clamps, and stacks of functions."""

from __future__ import annotations

from collections.abc import Iterable

from mcugen.hir.graph import Graph, Node
from mcugen.hir.operator import Operator
from mcugen.ops.conv import Conv
from mcugen.ops.elementwise import Stack
from mcugen.ops.matmul import Dense
from mcugen.ops.pointwise import Clamp


def unfuse(graph: Graph, part: Iterable[Node]) -> None:
    """Split fused nodes of a graph in place, because derivatives need the operand of each function.

    Stacks become one node per step, and clamps of convolutions and dense layers become their own nodes.

    Args:
        graph: The graph, changed in place.
        part: The nodes to split, where they are fused.
    """
    for node in list(part):
        if isinstance(node.op, Stack) and not node.op.tables:
            _part_steps(graph, node, node.op)
        elif isinstance(node.op, Conv | Dense) and node.op.clamp is not None:
            _part_clamp(graph, node, node.op.without_clamp(), node.op.clamp)
    graph.sort()


def _part_clamp(graph: Graph, node: Node, plain: Operator | None, clamp: tuple[float, float]) -> None:
    """Split a layer that clamps its result into the layer and a Clamp node."""
    assert plain is not None
    layer = graph.rewrite(node, plain, node.inputs, types=[node.output.type]).output
    limited = graph.add(Clamp(*clamp), [layer], node.origin, types=[layer.type])
    graph.replace(layer, limited.output)
    limited.set_input(0, layer)


def _part_steps(graph: Graph, node: Node, stack: Stack) -> None:
    """Replace a stack by one node for each step."""
    values = [node.input(i) for i in range(len(node.inputs))]
    for step, sig in stack.signatures(node.sig):
        inputs = [values[a] for a in step.args]
        values.append(graph.add(step.op, inputs, node.origin, types=sig.outputs, before=node).output)
    graph.replace(node.output, values[-1])
    graph.remove(node)
