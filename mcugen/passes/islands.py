# SPDX-License-Identifier: Apache-2.0
"""Layers of a model with integers that compute in float32."""

from __future__ import annotations

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Operator
from mcugen.ops.conversion import Cast, Dequantize, FlipSign, Quantize
from mcugen.ops.elementwise import Stack


def float_islands(graph: Graph) -> dict[str, str]:
    """Return the float layers between integer layers (islands): after a Dequantize and before a later Quantize.

    Layers after the last Dequantize are left out: the model returns real numbers there. So are layers before the first
    Quantize.

    Returns:
        The name of each layer's operator, by the name of its output.
    """
    return {node.outputs[0].name: node.op.name for part in graph.nested() for node in _islands(part)}


def float_layers(graph: Graph) -> dict[str, str]:
    """Return all layers that compute in float32 in a graph that is partly quantized.

    Returns:
        The name of each layer's operator, by the name of its output; empty if nothing in the graph is quantized.
    """
    parts = list(graph.nested())
    if not any(value.type.quant is not None for part in parts for value in part.values() if not value.is_constant):
        return {}
    islands = float_islands(graph)
    real = {n.outputs[0].name: n.op.name for part in parts for n in part.nodes if _is_real(n)}
    return {**real, **islands}


def _is_real(node: Node) -> bool:
    """Return whether a layer computes with reals, which it may convert itself."""
    if not _computes(node):
        return False
    if _has(node, Dequantize) or _has(node, Quantize):
        return True
    read = [v for v in node.inputs if v is not None and not v.is_constant]
    return bool(read) and all(v.type.dtype.is_float for v in (*read, *node.outputs))


def _islands(graph: Graph) -> list[Node]:
    dequantized, quantized = set[Value](), set[Value]()
    for node in graph.nodes:
        if _has(node, Dequantize) or not dequantized.isdisjoint(v for v in node.inputs if v is not None):
            dequantized |= {v for v in node.outputs if v.type.dtype.is_float}
    for node in reversed(list(graph.nodes)):
        if _has(node, Quantize) or not quantized.isdisjoint(node.outputs):
            quantized |= {v for v in node.inputs if v is not None and v.type.dtype.is_float}
    return [node for node in graph.nodes if _computes(node) and _is_between(node, dequantized, quantized)]


def _is_between(node: Node, dequantized: set[Value], quantized: set[Value]) -> bool:
    reads = _has(node, Dequantize) or not dequantized.isdisjoint(v for v in node.inputs if v is not None)
    return reads and (_has(node, Quantize) or not quantized.isdisjoint(node.outputs))


def _operators(node: Node) -> list[Operator]:
    """Return the operators that a node computes one after the other."""
    return [step.op for step in node.op.steps] if isinstance(node.op, Stack) else [node.op]


def _has(node: Node, conversion: type[Operator]) -> bool:
    return any(isinstance(op, conversion) for op in _operators(node))


def _computes(node: Node) -> bool:
    conversions = (Cast, Dequantize, FlipSign, Quantize)
    return not all(op.moves_data or isinstance(op, conversions) for op in _operators(node))
