# SPDX-License-Identifier: Apache-2.0
"""Conversion of the trained layers, and of all nodes that depend on them, to float."""

from __future__ import annotations

from collections.abc import Iterable

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.layer_names import find_layer
from mcugen.ops.conversion import Dequantize, Quantize
from mcugen.ops.movement import Movement


def dependent_nodes(graph: Graph, first: Iterable[Node]) -> list[Node]:
    """Return the nodes `first` and all nodes that depend on their results, in the order of the graph."""
    dependent = dict.fromkeys(first)
    for node in graph.nodes:
        if any(v is not None and v.producer in dependent for v in node.inputs):
            dependent[node] = None
    return [node for node in graph.nodes if node in dependent]


def remove_requantization(graph: Graph, part: Iterable[Node]) -> None:
    """Replace Dequantize(Quantize(x)) by x among the nodes `part`, so that they compute in float.

    Operators that only move data may stand between both conversions. Quantized outputs of the model stay quantized.
    """
    real: dict[Value, Value] = {}
    for node in part:
        if isinstance(node.op, Quantize):
            real[node.output] = node.input(0)
            continue
        source = real.get(node.input(0)) if node.inputs and node.inputs[0] is not None else None
        if source is not None and isinstance(node.op, Dequantize):
            graph.replace(node.output, source)
        elif source is not None and isinstance(node.op, Movement):
            real[node.output] = graph.add(node.op, [source, *node.inputs[1:]], node.origin, before=node).output


def real_result(value: Value) -> Value:
    """Return the float value before a final Quantize; `value` itself if it is not the result of a Quantize."""
    node = value.producer
    return node.input(0) if node is not None and isinstance(node.op, Quantize) else value


def real_result_of(graph: Graph, layer: str) -> Value:
    """Return the float output of the layer called `layer`; if the layer has only a quantized output, dequantize that.

    Raises:
        UsageError: The model has no such layer, or several.
    """
    node = find_layer(graph, layer, "--train: the layer before a head", _computes)
    value = node.outputs[0]
    codes = next((node.output for node in value.users if isinstance(node.op, Quantize)), value)
    return codes if codes.type.quant is None else graph.add(Dequantize(), [codes], node.origin).output


def _computes(node: Node) -> bool:
    return not isinstance(node.op, Quantize | Dequantize)
