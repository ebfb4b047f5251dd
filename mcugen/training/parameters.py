# SPDX-License-Identifier: Apache-2.0
"""Parameters of layers as values that change: inputs that hold what was learned, in place of constants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.interpreter import evaluate_node
from mcugen.hir.types import Array, DType, TensorType
from mcugen.ops.conv import Conv, DirectConv
from mcugen.ops.matmul import Dense, DirectDense
from mcugen.ops.movement import Reshape
from mcugen.ops.pointwise import Binary
from mcugen.training.layers import Layer, layer_name


@dataclass(frozen=True)
class Parameter:
    """A tensor that is trained, and what it holds at first."""

    value: Value
    first: Array


def with_parameters(graph: Graph, layers: Iterable[Layer]) -> list[Parameter]:
    """Makes layers read parameters, in place; in order."""
    return [parameter for layer in layers for parameter in _of_layer(graph, layer)]


def _of_layer(graph: Graph, layer: Layer) -> Iterator[Parameter]:
    node = layer.node
    channels = node.input(1).type.shape[0]
    bias = _numbers(node.inputs[2]) if len(node.inputs) > 2 else np.zeros(channels, np.float32)
    bias_of = _parameter(graph, node, "bias", bias.reshape(-1))
    yield bias_of
    if layer.weights:
        weights = _parameter(graph, node, "weights", _numbers(node.inputs[1]))
        yield weights
        _make_direct(graph, node, weights.value, bias_of.value)
    else:
        _add_behind(graph, node, bias_of.value)


def _parameter(graph: Graph, node: Node, role: str, first: Array) -> Parameter:
    type_ = TensorType(first.shape, DType.FLOAT32)
    return Parameter(graph.add_input(f"{layer_name(node)}.{role}", type_), first)


def _numbers(value: Value | None) -> Array:
    """The reals of a constant, or of codes behind their Dequantize."""
    assert value is not None
    if value.data is not None:
        return value.data.astype(np.float32)
    source = value.producer
    assert source is not None
    stored = source.input(0).data
    assert stored is not None
    return evaluate_node(source, [stored])[0]


def _make_direct(graph: Graph, node: Node, weights: Value, bias: Value) -> None:
    """The layer with weights that are no constants."""
    op = node.op
    if isinstance(op, Conv):
        graph.rewrite(node, DirectConv(op.window, groups=op.groups), [node.inputs[0], weights, bias])
        return
    assert isinstance(op, Dense)
    graph.rewrite(node, DirectDense(), [node.inputs[0], weights, bias])


def _add_behind(graph: Graph, node: Node, bias: Value) -> None:
    """The layer without a bias, whose weights stay, and the bias behind it."""
    type_, channels = node.output.type, bias.type.count
    layer = graph.add(node.op, node.inputs[:2], node.origin, types=[type_], before=node)
    axis = 1 if isinstance(node.op, Conv) else type_.rank - 1
    shape = tuple(channels if a == axis else 1 for a in range(type_.rank))
    column = graph.add(Reshape(shape), [bias], node.origin, before=node)
    graph.rewrite(node, Binary("Add"), [layer.output, column.output], types=[type_])
