# SPDX-License-Identifier: Apache-2.0
"""Parts of a graph as graphs of their own."""

from __future__ import annotations

from collections.abc import Sequence

from mcugen.hir.graph import Graph, Node, Value


def body_of(graph: Graph, nodes: Sequence[Node], name: str = "segment") -> tuple[Graph, list[Value], list[Value]]:
    """Return a copy of some nodes as a graph of its own.

    Args:
        graph: The graph that contains the nodes.
        nodes: The nodes in the order of the graph.
        name: Name of the new graph.

    Returns:
        The new graph, the outer values that are its inputs, and the values of `graph` that are its outputs.
    """
    body, values = Graph(name), dict[Value, Value]()
    outer = list[Value]()

    def here(value: Value) -> Value:
        if value not in values:
            if value.data is not None:
                values[value] = body.constant(value.name, value.data, value.type.quant, value.type.dtype, of=[value])
            else:
                values[value] = body.add_input(value.name, value.type)
                outer.append(value)
        return values[value]

    for node in nodes:
        inputs = [here(value) if value is not None else None for value in node.inputs]
        names, types = [v.name for v in node.outputs], [v.type for v in node.outputs]
        copy = body.add(node.op, inputs, node.origin, names=names, types=types)
        values.update(zip(node.outputs, copy.outputs, strict=True))
    inside = set(nodes)
    results = [
        value
        for node in nodes
        for value in node.outputs
        if graph.is_output(value) or any(user not in inside for user in value.users)
    ]
    for value in results:
        body.add_output(value.name, values[value])
    return body, outer, results
