# SPDX-License-Identifier: Apache-2.0
"""Stacks of elementwise operators as graphs: the CPU computes a stack in one loop, the NPU one operator at a time."""

from __future__ import annotations

from mcugen.hir.graph import Graph, Node, Value
from mcugen.ops.elementwise import Stack


def unstacked(node: Node) -> Graph:
    """Return the operators of a stack as nodes of a graph; its inputs are the stack's inputs that are no constants."""
    stack, body = node.op, Graph("stack")
    assert isinstance(stack, Stack)
    values = list[Value]()
    for index in range(len(node.inputs)):
        value = node.input(index)
        if value.data is not None:
            values.append(body.constant(value.name, value.data, value.type.quant, value.type.dtype, of=[value]))
        else:
            values.append(body.add_input(value.name, value.type))
    for number, (step, sig) in enumerate(stack.signatures(node.sig)):
        names = [f"{node.output.name}.step{number}"]
        values.append(body.add(step.op, [values[a] for a in step.args], names=names, types=list(sig.outputs)).output)
    body.add_output(node.output.name, values[-1])
    return body
