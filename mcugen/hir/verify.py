# SPDX-License-Identifier: Apache-2.0
"""Checks that a graph is well formed; the pipeline runs it after every pass."""

from __future__ import annotations

from mcugen.errors import VerificationError
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.types import Layout


def verify_graph(graph: Graph) -> None:
    """Raises VerificationError, naming the node, if an invariant of the HIR does not hold."""
    known: set[Value] = set(graph.inputs)
    for node in graph.nodes:
        for index, value in enumerate(node.inputs):
            if value is not None:
                _check_input(node, index, value, known)
        _check_types(node)
        for body in node.op.bodies:
            verify_graph(body)
        known.update(node.outputs)
    for value in graph.outputs:
        _require(value in known or value.is_constant, "graph", f"output %{value.name} is computed by no node")
    live = set(graph.nodes)
    for value in graph.values():
        _require(all(user in live for user in value.users), "graph", f"%{value.name} is used by a removed node")
    names = [v.name for v in graph.values()]
    _require(len(names) == len(set(names)), "graph", "two values share a name")


def _check_input(node: Node, index: int, value: Value, known: set[Value]) -> None:
    _require((node, index) in value.uses, node.place, f"input %{value.name} does not know of its use")
    _require(value in known or value.is_constant, node.place, f"input %{value.name} is used before it is computed")
    if value.data is not None:
        same = value.data.shape == value.type.shape and value.data.dtype == value.type.dtype.numpy
        _require(same, node.place, f"constant %{value.name} holds {value.data.dtype}{value.data.shape}")


def _check_types(node: Node) -> None:
    inferred = node.op.infer(*node.sig.inputs)
    for value, expected in zip(node.outputs, inferred, strict=True):
        found = value.type
        message = f"%{value.name} has shape {found.shape}, the operator gives {expected.shape}"
        _require(found.shape == expected.shape, node.place, message)
        tags = {found.layout, expected.layout} - {Layout.NONE}
        _require(len(tags) <= 1, node.place, f"%{value.name} is {found.layout}, the operator gives {expected.layout}")
        quant = found.quant
        if quant is not None:
            channels = 1 if quant.axis is None else found.shape[quant.axis]
            _require(len(quant.scale) == channels, node.place, f"%{value.name} has {len(quant.scale)} scales")
            _require(all(s > 0 for s in quant.scale), node.place, f"%{value.name} has a scale that is not positive")
        elif expected.quant is None:
            message = f"%{value.name} is {found.dtype.value}, the operator gives {expected.dtype.value}"
            _require(found.dtype == expected.dtype, node.place, message)
    if node.op.moves_data and node.outputs[0].type.quant is not None:
        quants = {v.type.quant for v in node.inputs[:1] if v is not None}
        _require(
            quants == {node.outputs[0].type.quant},
            node.place,
            "a data movement changes quantization parameters",
        )


def _require(condition: bool, place: str, message: str) -> None:
    if not condition:
        raise VerificationError(
            "the graph must be well formed", f"{place}: {message}", "report this as a bug of mcugen"
        )
