# SPDX-License-Identifier: Apache-2.0
"""Cross-layer equalization (Nagel et al. 2019): channels of a tensor scaled against each other, for nothing.

A channel may be divided by any s > 0 where all layers that write it can divide their weights and biases, all layers
that read it can multiply theirs, and what lies between commutes with it: f(x / s) = f(x) / s. Tensors that must be
scaled together, as those of a residual stage, form a space.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.types import Array, DType
from mcugen.ops.conv import Conv
from mcugen.ops.matmul import Dense
from mcugen.ops.movement import Reshape, Slice
from mcugen.ops.pointwise import Binary, Clamp, Unary
from mcugen.ops.pool import AveragePool, MaxPool
from mcugen.ops.reduce import Reduce

HOMOGENEOUS = (None, (0.0, math.inf))
"""Clamps that commute with positive factors."""

ROUNDS = 20
X: dict[str, str] = {}


@dataclass
class _Space:
    """Tensors [N, channels, ...] (or flattened) and the layers at their ends."""

    values: list[Value] = field(default_factory=list)
    writers: list[Node] = field(default_factory=list)
    readers: list[Node] = field(default_factory=list)
    free: bool = True

    @property
    def channels(self) -> int:
        return min(v.type.shape[1] for v in self.values)


def equalize(graph: Graph, ranges: Mapping[str, Array] | None = None) -> bool:
    """Scales the channels of all spaces. Whether something changed."""
    spaces = [s for s in _spaces(graph) if s.free and s.writers and s.readers]
    weights = {n: _by_channel(n) for s in spaces for n in (*s.writers, *s.readers)}
    rows = {n: np.ones(w.shape[0]) for n, w in weights.items()}
    columns = {n: np.ones(_inputs(n)) for n in weights}
    for _ in range(ROUNDS):
        for space in spaces:
            s = _scales(space, weights, rows, columns, ranges)
            for n in space.writers:
                rows[n] = rows[n] / s
            for n in space.readers:
                columns[n] = columns[n] * np.repeat(s, _inputs(n) // len(s))
    for n in weights:
        _apply(graph, n, rows[n], columns[n])
    return bool(weights)


def _inputs(node: Node) -> int:
    return node.input(0).type.shape[1]


def _by_channel(node: Node) -> Array:
    """Magnitudes [outputs, inputs of a group]: the largest of all taps."""
    data = node.input(1).data
    return np.abs(data.astype(np.float64)).reshape(*data.shape[:2], -1).max(2)


def _scaled(weights, node, rows, columns):
    return weights[node] * rows[node][:, None] * _spread(node, columns[node])


def _spread(node: Node, columns: Array) -> Array:
    """One factor an input channel as [outputs, inputs of a group]."""
    outputs = node.output.type.shape[1]
    groups = getattr(node.op, "groups", 1)
    return np.repeat(columns.reshape(groups, -1), outputs // groups, 0)


def _scales(space, weights, rows, columns, ranges):
    c = space.channels
    mode = X.get("mode", "nagel")
    def reader_max(n, w):
        """[inputs]: largest magnitude that meets each input channel."""
        groups = getattr(n.op, "groups", 1)
        return w.reshape(groups, -1, w.shape[1]).max(1).reshape(-1)
    dw = all(getattr(n.op, "groups", 1) > 1 for n in space.readers)
    if mode.startswith("dw"):
        if not dw: return np.ones(c)
        r1 = np.max([_scaled(weights, n, rows, columns).max(1) for n in space.writers], 0)
        if mode == "dwsum":
            r1 = np.max([np.sqrt((_scaled(weights, n, rows, columns)**2).sum(1)) for n in space.writers], 0)
        if mode == "dwb":
            r1 = np.max([np.sqrt((_scaled(weights, n, rows, columns)**2).sum(1)) for n in space.writers], 0)
        ok = r1 > 1e-3 * r1.max()
        s = np.where(ok, r1, 1) ** float(X.get("p", 1)); s[~ok] = 1
        return s/ np.exp(np.log(s).mean())
    if mode == "nagel":
        if X.get("dw") and not dw: return np.ones(c)
        r1 = np.max([_scaled(weights, n, rows, columns).max(1) for n in space.writers], 0)
        r2 = np.max([reader_max(n, _scaled(weights, n, rows, columns)).reshape(c, -1).max(1) for n in space.readers], 0)
        ok = (r1 > 1e-12 * r1.max()) & (r2 > 1e-12 * r2.max())
        s = np.sqrt(np.where(ok, r1, 1) / np.where(ok, r2, 1))
        s[~ok] = 1
        s = s ** float(X.get("p", 1))
    else:
        cur = np.prod([rows[space.writers[0]]], 0)
        a = np.max([ranges[v.name].reshape(c, -1).max(1) for v in space.values if v.name in ranges], 0) * cur
        def norm(n):
            w = _scaled(weights, n, rows, columns)
            w = w / np.maximum(w.max(1, keepdims=True), 1e-30)
            return reader_max(n, w)
        r2 = np.max([norm(n).reshape(c, -1).max(1) for n in space.readers], 0)
        alpha = float(X.get("alpha", 1))
        floor = float(X.get("floor", 1e-3))
        a = np.maximum(a, floor * a.max()); r2 = np.maximum(r2, floor * r2.max())
        s = a**alpha / r2 ** (1 - alpha)
    lim = float(X.get("limit", 0))
    s = s / np.exp(np.log(s).mean())
    return s


def _apply(graph, node, rows, columns):
    w = node.input(1)
    shape = (*node.input(1).data.shape[:2], *[1] * (w.data.ndim - 2))
    new = w.data * (rows[:, None] * _spread(node, columns)).reshape(shape)
    node.set_input(1, graph.constant(f"{w.name}.equalized", new.astype(np.float32)))
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        b = node.input(2)
        node.set_input(2, graph.constant(f"{b.name}.equalized", (b.data * rows.reshape(b.data.shape)).astype(np.float32)))


def _is_layer(node: Node) -> bool:
    """Whether its weights are constants that its ONNX form is written with."""
    return (
        type(node.op) in (Conv, Dense)
        and all(v is None or v.is_constant for v in node.inputs[1:])
        and node.input(0).type.rank >= 2 and node.input(0).type.dtype is DType.FLOAT32
        and node.op.onnx_form(node.sig) is not None
    )


def _spaces(graph: Graph) -> Iterator[_Space]:
    parent: dict[Value, Value] = {}

    def root(value: Value) -> Value:
        while parent.setdefault(value, value) is not value:
            value = parent[value]
        return value

    carriers = {n for n in graph.nodes if _carries(n)}
    for node in carriers:
        for v in node.inputs:
            if not v.is_constant:
                parent[root(v)] = root(node.output)
    spaces: dict[Value, _Space] = {}
    for value in graph.values():
        if value.is_constant or value.type.rank < 2:
            continue
        space = spaces.setdefault(root(value), _Space())
        space.values.append(value)
        if value.producer is None or graph.is_output(value):
            space.free = False
        elif value.producer not in carriers:
            space.writers.append(value.producer)
            space.free &= _is_layer(value.producer) and value.producer.op.clamp in HOMOGENEOUS
        for node, index in value.uses:
            if node not in carriers:
                space.readers.append(node)
                space.free &= _is_layer(node) and index == 0
    yield from spaces.values()


def _carries(node: Node) -> bool:
    """Whether a scaled channel of the inputs gives the same channel of the output, scaled."""
    op = node.op
    if any(v is None or v.type.rank < 2 or v.type.dtype is not DType.FLOAT32 for v in (*node.inputs, *node.outputs)): 
        return False
    x, y = node.input(0).type.shape, node.output.type.shape
    if type(op) is Binary:
        return op.function in ("Add", "Sub") and op.clamp in HOMOGENEOUS and not any(v.is_constant for v in node.inputs) and all(v.type.shape == y for v in node.inputs)
    if type(op) is Unary:
        return op.function == "LeakyRelu"
    if type(op) is Clamp:
        return (op.low, op.high) in HOMOGENEOUS
    if type(op) in (MaxPool, AveragePool):
        return not op.is_channels_last
    if type(op) is Reduce:
        return op.function in ("mean", "sum", "max", "min") and not {0, 1} & set(op.axes)
    if type(op) is Slice:
        return x[1] == y[1] and x[0] == y[0]
    if type(op) is Reshape:
        return len(y) == 2 and x[0] == y[0]
    return False
