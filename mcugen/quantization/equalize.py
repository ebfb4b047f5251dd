# SPDX-License-Identifier: Apache-2.0
"""Cross-layer equalization (Nagel et al. 2019): channels of a tensor are scaled to similar ranges at no run-time cost.

A channel may be divided by any s > 0 under three conditions. All layers that write it can divide their weights and
biases. All layers that read it can multiply their weights. All nodes between them commute with the scaling: f(x / s) =
f(x) / s. Tensors that must be scaled together, such as those of a residual stage, form a space.

With a weight scale per output channel, layers that write a space lose no precision. Layers that read it do, because the
weights of their input channels then differ more (measured: up to 3 dB at the output of an autoencoder). Depthwise
layers are the exception: the weights of an output channel meet only one input channel. Therefore only spaces that are
read by depthwise layers alone are scaled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.traits import onnx_form
from mcugen.hir.types import Array, DType
from mcugen.ops.conv import Conv
from mcugen.ops.matmul import Dense
from mcugen.ops.movement import Pad, Slice
from mcugen.ops.pointwise import Binary, Clamp, Unary
from mcugen.ops.pool import AveragePool, MaxPool

_HOMOGENEOUS = (None, (-math.inf, math.inf), (0.0, math.inf))
"""Clamps that commute with positive factors."""

_ROUNDS = 100
"""Largest number of rounds of the iteration."""
_CONVERGED = 1e-3
"""Largest change of a factor's logarithm in a round that ends the iteration."""

_DEAD = 1e-6
"""Size of a channel's weights, relative to the largest of the space, below which the channel keeps its scale."""


@dataclass
class _Space:
    """Tensors whose channels (axis 1) are scaled together, and the nodes that write and read them."""

    values: list[Value] = field(default_factory=list)
    writers: list[Node] = field(default_factory=list)
    readers: list[Node] = field(default_factory=list)
    reads_only_input: bool = True

    def can_be_scaled(self, graph: Graph) -> bool:
        """Return whether all writers and readers can absorb the factors and gain by them."""
        inside = all(v.producer is not None and not graph.is_output(v) for v in self.values)
        ends = inside and self.reads_only_input and self.writers and self.readers
        return bool(ends) and all(map(_can_divide, self.writers)) and all(map(_is_depthwise, self.readers))


def equalize(graph: Graph) -> bool:
    """Equalize the ranges of channels that only depthwise layers read, by scaling the weights on both sides.

    For each channel, the weights and bias of the layer that computes the channel are divided by a factor. The weights
    of the depthwise layers that read the channel are multiplied by that factor. The factor makes both equally large
    (cross-layer equalization).

    Args:
        graph: The float graph, changed in place; its outputs stay the same except for rounding.

    Returns:
        Whether the graph changed.
    """
    spaces = [space for space in _spaces(graph) if space.can_be_scaled(graph)]
    layers = dict.fromkeys(node for space in spaces for node in (*space.writers, *space.readers))
    before = {node: np.ones(node.output.type.shape[1]) for node in layers}
    """Divisors of the weights and bias of each output channel, by layer."""
    behind = {node: np.ones(node.input(0).type.shape[1]) for node in layers}
    """Factors of the weights of each input channel, by layer."""
    largest = {node: _largest(node) for node in layers}
    for _ in range(_ROUNDS):
        change = 0.0
        for space in spaces:
            written = [largest[n] * _by_weight(n, behind[n]) / before[n][:, None] for n in space.writers]
            read = [largest[n] * _by_weight(n, behind[n]) / before[n][:, None] for n in space.readers]
            by_input = [w.reshape(len(behind[n]), -1).max(1) for n, w in zip(space.readers, read, strict=True)]
            factors = _factors(np.max([w.max(1) for w in written], 0), np.max(by_input, 0))
            before |= {n: before[n] * factors for n in space.writers}
            behind |= {n: behind[n] * factors for n in space.readers}
            change = max(change, float(np.abs(np.log(factors)).max()))
        if change < _CONVERGED:
            break
    for node in layers:
        _scale(graph, node, before[node], behind[node])
    return bool(layers)


def _factors(written: Array, read: Array) -> Array:
    """Return √(written / read) per channel, which makes both sides equal."""
    alive = (written > _DEAD * written.max()) & (read > _DEAD * read.max())
    return np.sqrt(np.where(alive, written, 1.0) / np.where(alive, read, 1.0))


def _largest(node: Node) -> Array:
    """Return the largest weight magnitude over the taps of a kernel, [outputs, inputs of a group]."""
    data = node.input(1).data
    assert data is not None
    magnitudes: Array = np.abs(data.astype(np.float64)).reshape(*data.shape[:2], -1).max(2)
    return magnitudes


def _by_weight(node: Node, by_input: Array) -> Array:
    """Return one number per input channel as an array [outputs, inputs of a group]."""
    groups = node.op.groups if isinstance(node.op, Conv) else 1
    return np.repeat(by_input.reshape(groups, -1), node.output.type.shape[1] // groups, 0)


def _scale(graph: Graph, node: Node, before: Array, behind: Array) -> None:
    """Replace the constants of a node by scaled copies: other layers may share the present constants."""
    factors = _by_weight(node, behind) / before[:, None]
    for index, by in ((1, factors), (2, 1 / before)):
        old = node.inputs[index] if index < len(node.inputs) else None
        if old is not None:
            assert old.data is not None
            scaled = old.data * by.reshape(*by.shape, *[1] * (old.data.ndim - by.ndim))
            node.set_input(index, graph.constant(f"{old.name}.equalized", scaled.astype(np.float32), of=[old]))


def _can_divide(node: Node) -> bool:
    """Return whether the output's channels can be scaled by the node's constants alone."""
    op = node.op
    return (
        type(op) in (Conv, Dense)
        and isinstance(op, Conv | Dense)
        and op.clamp in _HOMOGENEOUS
        and node.input(0).type.rank >= 2
        and node.input(0).type.dtype is DType.FLOAT32
        and all(v is None or v.is_constant for v in node.inputs[1:])
        and op.onnx_form(node.sig) is not None
    )


def _is_depthwise(node: Node) -> bool:
    """Return whether each output channel reads one input channel, with constant weights."""
    weights = node.inputs[1] if type(node.op) is Conv else None
    is_written = weights is not None and weights.is_constant and onnx_form(node.op, node.sig) is not None
    return weights is not None and is_written and weights.type.shape[1] == 1 and weights.type.dtype is DType.FLOAT32


def _spaces(graph: Graph) -> list[_Space]:
    """Return all float32 activations in spaces, joined by the nodes that pass channels through (union-find)."""
    parent: dict[Value, Value] = {}

    def root(value: Value) -> Value:
        while parent.setdefault(value, value) is not value:
            value = parent[value]
        return value

    carriers = {node for node in graph.nodes if _carries(node)}
    for node in carriers:
        for value in node.inputs:
            assert value is not None
            parent[root(value)] = root(node.output)
    spaces: dict[Value, _Space] = {}
    for value in (v for v in graph.values() if not v.is_constant):
        space = spaces.setdefault(root(value), _Space())
        space.values.append(value)
        if value.producer is not None and value.producer not in carriers:
            space.writers.append(value.producer)
        readers = [(node, index) for node, index in value.uses if node not in carriers]
        space.readers += [node for node, _ in readers]
        space.reads_only_input &= all(index == 0 for _, index in readers)
    return list(spaces.values())


def _carries(node: Node) -> bool:
    """Return whether scaling the channels of all inputs scales the same channels of the output."""
    op, tensors = node.op, [*node.inputs, *node.outputs]
    if any(v is None or v.is_constant or v.type.rank < 2 or v.type.dtype is not DType.FLOAT32 for v in tensors):
        return False
    if len({v.type.shape[:2] for v in tensors if v is not None}) != 1:
        return False
    match op:
        case Binary():
            return op.function == "Add" and op.clamp in _HOMOGENEOUS and node.input(0).type == node.input(1).type
        case Unary():
            return op.function == "LeakyRelu"
        case Clamp():
            return (op.low, op.high) in _HOMOGENEOUS
        case Pad():
            return op.value == 0.0 and not any(op.before[:2])
        case MaxPool() | AveragePool():
            return not op.is_channels_last
        case Slice():
            return op.steps[:2] == (1, 1)
    return False
