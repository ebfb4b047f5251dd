# SPDX-License-Identifier: Apache-2.0
"""Derivatives of what moves elements: gradients go the way back, and add up where elements were read several times."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from mcugen.hir.graph import Node, Value
from mcugen.ops.gather import Gather, GatherElements, GatherND
from mcugen.ops.gradient.rule import Backward, Parts, derivative_of
from mcugen.ops.movement import Concat, Expand, Pad, Reshape, Slice, Transpose, inverse
from mcugen.ops.onnx_node import Refusal
from mcugen.ops.padding import Extend
from mcugen.ops.scatter import ScatterElements, ScatterND


@derivative_of(Reshape)
def _of_reshape(back: Backward, node: Node, gradient: Value) -> Parts:
    return {0: lambda: back.reshaped(gradient, node.input(0).type.shape)}


@derivative_of(Transpose)
def _of_transpose(back: Backward, node: Node, gradient: Value) -> Parts:
    assert isinstance(node.op, Transpose)
    perm = inverse(node.op.perm)
    return {0: lambda: back.transposed(gradient, perm)}


@derivative_of(Expand)
def _of_expand(back: Backward, node: Node, gradient: Value) -> Parts:
    return {0: lambda: back.summed_to(gradient, node.input(0).type.shape)}


@derivative_of(Slice)
def _of_slice(back: Backward, node: Node, gradient: Value) -> Parts:
    """Zeros around, or between."""
    op, x = node.op, node.input(0).type
    assert isinstance(op, Slice)
    if any(step != 1 for step in op.steps):
        return {0: lambda: _scattered(back, node, gradient)}
    after = tuple(n - start - size for n, start, size in zip(x.shape, op.starts, op.sizes, strict=True))
    return {0: lambda: back.emit(Pad(op.starts, after), gradient)}


@derivative_of(Extend)
def _of_extend(back: Backward, node: Node, gradient: Value) -> Parts:
    return {0: lambda: _scattered(back, node, gradient)}


def _scattered(back: Backward, node: Node, gradient: Value) -> Value:
    """Each element is added to where it came from, which one sees by moving positions."""
    x = node.input(0).type
    positions = np.arange(x.count, dtype=np.int32).reshape(x.shape)
    (moved,) = node.op.evaluate(node.sig, positions)
    index = back.constant("positions", np.ascontiguousarray(moved).reshape(-1))
    flat = back.reshaped(gradient, (moved.size,))
    total = back.emit(ScatterElements(0, "add"), back.zeros(x, (x.count,)), index, flat)
    return back.reshaped(total, x.shape)


@derivative_of(Pad)
def _of_pad(back: Backward, node: Node, gradient: Value) -> Parts:
    """What lies within."""
    op, x = node.op, node.input(0).type
    assert isinstance(op, Pad)
    return {0: lambda: back.emit(Slice(op.before, x.shape, (1,) * x.rank), gradient)}


@derivative_of(Concat)
def _of_concat(back: Backward, node: Node, gradient: Value) -> Parts:
    """To each its part."""
    assert isinstance(node.op, Concat)
    axis, at = node.op.axis, 0
    parts: dict[int, Callable[[], Value]] = {}
    for index in range(len(node.inputs)):
        shape = node.input(index).type.shape
        starts = (*(0,) * axis, at, *(0,) * (len(shape) - axis - 1))
        parts[index] = partial(back.emit, Slice(starts, shape, (1,) * len(shape)), gradient)
        at += shape[axis]
    return parts


@derivative_of(Gather)
def _of_gather(back: Backward, node: Node, gradient: Value) -> Parts:
    """Rows are added to where they were taken from: an embedding is one of these."""
    assert isinstance(node.op, Gather)
    axis = node.op.axis
    return {0: lambda: _rows_added(back, node, gradient, axis)}


def _rows_added(back: Backward, node: Node, gradient: Value, axis: int) -> Value:
    x, index = node.input(0).type, node.input(1)
    places = range(axis, axis + index.type.rank)
    rows = back.transposed(gradient, [*places, *(a for a in range(gradient.type.rank) if a not in places)])
    order = [axis, *(a for a in range(x.rank) if a != axis)]
    zeros = back.zeros(x, tuple(x.shape[a] for a in order))
    at = back.reshaped(index, (*index.type.shape, 1))
    return back.transposed(back.emit(ScatterND("add"), zeros, at, rows), inverse(tuple(order)))


@derivative_of(GatherElements)
def _of_gather_elements(back: Backward, node: Node, gradient: Value) -> Parts:
    assert isinstance(node.op, GatherElements)
    op, x, index = ScatterElements(node.op.axis, "add"), node.input(0).type, node.input(1)
    return {0: lambda: back.emit(op, back.zeros(x), index, gradient)}


@derivative_of(GatherND)
def _of_gather_nd(back: Backward, node: Node, gradient: Value) -> Parts:
    x, index = node.input(0).type, node.input(1)
    assert isinstance(node.op, GatherND)
    if node.op.batch:
        raise Refusal("GatherND is differentiated without batch axes", node.place, "train what lies behind it")
    return {0: lambda: back.emit(ScatterND("add"), back.zeros(x), index, gradient)}
