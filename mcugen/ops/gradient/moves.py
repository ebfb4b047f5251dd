# SPDX-License-Identifier: Apache-2.0
"""Derivatives of data movements: the gradient is moved back, and added up for elements that were read several times.

Interpolation is treated as a movement with weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from mcugen.hir.graph import Node, Value
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.types import TensorType
from mcugen.ops.cumulative import Cumulative
from mcugen.ops.gather import Gather, GatherElements, GatherND, ReverseSequence
from mcugen.ops.gradient.rule import Backward, Parts, derivative_of
from mcugen.ops.matmul import MatMul
from mcugen.ops.movement import Concat, Expand, Pad, Reshape, Slice, Transpose, inverse
from mcugen.ops.onnx_node import Refusal
from mcugen.ops.order import TopK
from mcugen.ops.padding import Extend, PadWith
from mcugen.ops.pattern import Trilu
from mcugen.ops.resize import Resample, ResizeLinear, ResizeNearest
from mcugen.ops.scatter import ScatterElements, ScatterND


@derivative_of(Reshape)
def _of_reshape(back: Backward, _op: Reshape, node: Node, gradient: Value) -> Parts:
    return {0: lambda: back.reshaped(gradient, node.input(0).type.shape)}


@derivative_of(Transpose)
def _of_transpose(back: Backward, op: Transpose, node: Node, gradient: Value) -> Parts:
    return {0: lambda: back.transposed(gradient, inverse(op.perm))}


@derivative_of(Expand)
def _of_expand(back: Backward, _op: Expand, node: Node, gradient: Value) -> Parts:
    return {0: lambda: back.summed_to(gradient, node.input(0).type.shape)}


@derivative_of(Slice)
def _of_slice(back: Backward, op: Slice, node: Node, gradient: Value) -> Parts:
    """Pad the gradient with zeros around, and between elements if there are steps."""
    x = node.input(0).type
    if any(step != 1 for step in op.steps):
        return {0: lambda: _scattered(back, node, gradient)}
    after = tuple(n - start - size for n, start, size in zip(x.shape, op.starts, op.sizes, strict=True))
    return {0: lambda: back.emit(Pad(op.starts, after), gradient)}


@derivative_of(Extend)
def _of_extend(back: Backward, _op: Extend, node: Node, gradient: Value) -> Parts:
    return {0: lambda: _scattered(back, node, gradient)}


def _scattered(back: Backward, node: Node, gradient: Value) -> Value:
    """Add each element of the gradient at the position in x that it was moved from.

    Moving an array of positions shows where each element comes from.
    """
    x = node.input(0).type
    positions = np.arange(x.count, dtype=np.int32).reshape(x.shape)
    (moved,) = node.op.evaluate(node.sig, positions)
    index = back.constant("positions", np.ascontiguousarray(moved).reshape(-1))
    flat = back.reshaped(gradient, (moved.size,))
    total = back.emit(ScatterElements(0, "add"), back.zeros(x, (x.count,)), index, flat)
    return back.reshaped(total, x.shape)


@derivative_of(Pad)
def _of_pad(back: Backward, op: Pad, node: Node, gradient: Value) -> Parts:
    """Slice the inner part."""
    x = node.input(0).type
    return {0: lambda: back.emit(Slice(op.before, x.shape, (1,) * x.rank), gradient)}


@derivative_of(PadWith)
def _of_pad_with(back: Backward, op: PadWith, node: Node, gradient: Value) -> Parts:
    """Slice the inner part for x; sum the border for the padding value."""
    x, around = node.input(0).type, node.input(1).type
    axes = range(x.rank)

    def within() -> Value:
        return back.emit(Slice(op.before, x.shape, (1,) * x.rank), gradient)

    def outside() -> Value:
        border = back.sub(back.reduced("sum", gradient, axes), back.reduced("sum", within(), axes))
        return back.reshaped(border, around.shape)

    return {0: within, 1: outside}


@derivative_of(Concat)
def _of_concat(back: Backward, op: Concat, node: Node, gradient: Value) -> Parts:
    """Slice the part of each input."""
    axis, at = op.axis, 0
    parts: dict[int, Callable[[], Value]] = {}
    for index in range(len(node.inputs)):
        shape = node.input(index).type.shape
        starts = (*(0,) * axis, at, *(0,) * (len(shape) - axis - 1))
        parts[index] = partial(back.emit, Slice(starts, shape, (1,) * len(shape)), gradient)
        at += shape[axis]
    return parts


@derivative_of(Gather)
def _of_gather(back: Backward, op: Gather, node: Node, gradient: Value) -> Parts:
    """Add each row of the gradient to the row that it was taken from, as for an embedding."""
    return {0: lambda: _rows_added(back, node, gradient, op.axis)}


def _rows_added(back: Backward, node: Node, gradient: Value, axis: int) -> Value:
    x, index = node.input(0).type, node.input(1)
    places = range(axis, axis + index.type.rank)
    rows = back.transposed(gradient, [*places, *(a for a in range(gradient.type.rank) if a not in places)])
    order = [axis, *(a for a in range(x.rank) if a != axis)]
    zeros = back.zeros(x, tuple(x.shape[a] for a in order))
    at = back.reshaped(index, (*index.type.shape, 1))
    return back.transposed(back.emit(ScatterND("add"), zeros, at, rows), inverse(tuple(order)))


@derivative_of(GatherElements)
def _of_gather_elements(back: Backward, op: GatherElements, node: Node, gradient: Value) -> Parts:
    add, x, index = ScatterElements(op.axis, "add"), node.input(0).type, node.input(1)
    return {0: lambda: back.emit(add, back.zeros(x), index, gradient)}


@derivative_of(GatherND)
def _of_gather_nd(back: Backward, op: GatherND, node: Node, gradient: Value) -> Parts:
    x, index = node.input(0).type, node.input(1)
    if op.batch:
        raise Refusal("GatherND is differentiated without batch axes", node.place, "train only the layers after it")
    return {0: lambda: back.emit(ScatterND("add"), back.zeros(x), index, gradient)}


@derivative_of(ScatterElements, ScatterND)
def _of_scatter(back: Backward, op: Operator, node: Node, gradient: Value) -> Parts:
    """Return the gradient at the indices for the updates; replaced elements of x get 0."""
    index, updates = node.input(1), node.input(2).type
    assert isinstance(op, ScatterElements | ScatterND)
    if op.reduction not in ("none", "add"):
        raise Refusal("scatter is differentiated that replaces or adds", node.place, "train only the layers after it")
    gather = GatherElements(op.axis) if isinstance(op, ScatterElements) else GatherND()

    def by_x() -> Value:
        return gradient if op.reduction == "add" else back.emit(op, gradient, index, back.zeros(updates))

    return {0: by_x, 2: lambda: back.emit(gather, gradient, index)}


@derivative_of(TopK)
def _of_top_k(back: Backward, op: TopK, node: Node, gradient: Value) -> Parts:
    """Scatter the gradient to the positions of the values."""
    add, x = ScatterElements(op.axis, "add"), node.input(0).type
    return {0: lambda: back.emit(add, back.zeros(x), node.outputs[1], gradient)}


@derivative_of(Trilu)
def _of_trilu(back: Backward, op: Trilu, node: Node, gradient: Value) -> Parts:
    return {0: lambda: back.emit(op, gradient, node.input(1))}


@derivative_of(ReverseSequence)
def _of_reverse_sequence(back: Backward, op: ReverseSequence, node: Node, gradient: Value) -> Parts:
    """Reverse the gradient."""
    return {0: lambda: back.emit(op, gradient, node.input(1))}


@derivative_of(Cumulative)
def _of_cumulative(back: Backward, op: Cumulative, node: Node, gradient: Value) -> Parts:
    """Sum the gradient in the opposite direction, since each element is part of all sums behind it."""
    if op.function != "CumSum":
        raise Refusal(
            "cumulative sums are differentiated", f"{node.place}, a product", "train only the layers after it"
        )
    return {0: lambda: back.emit(replace(op, reverse=not op.reverse), gradient)}


@derivative_of(ResizeNearest)
def _of_nearest(back: Backward, op: ResizeNearest, node: Node, gradient: Value) -> Parts:
    axes = {axis: ResizeNearest((None, row)) for axis, row in enumerate(op.indices) if row is not None}
    return {0: lambda: _resized(back, node, gradient, axes)}


@derivative_of(ResizeLinear)
def _of_linear(back: Backward, op: ResizeLinear, node: Node, gradient: Value) -> Parts:
    axes = {axis: ResizeLinear((None, taps)) for axis, taps in enumerate(op.taps) if taps is not None}
    return {0: lambda: _resized(back, node, gradient, axes)}


@derivative_of(Resample)
def _of_resample(back: Backward, op: Resample, node: Node, gradient: Value) -> Parts:
    return {0: lambda: _resized(back, node, gradient, {op.axis: replace(op, axis=1)})}


def _resized(back: Backward, node: Node, gradient: Value, axes: Mapping[int, Operator]) -> Value:
    """Multiply by the transposed matrices of operators that map [1, n] to [1, m] linearly, axis by axis."""
    x = node.input(0).type
    for axis, op in axes.items():
        eye = np.eye(x.shape[axis], dtype=x.dtype.numpy)
        type_ = TensorType(eye.shape, x.dtype)
        (matrix,) = op.evaluate(Signature((type_,), op.infer(type_)), eye)
        order = [*(a for a in range(x.rank) if a != axis), axis]
        rows = back.transposed(gradient, order)
        shape = rows.type.shape[:-1]
        flat = back.reshaped(rows, (math.prod(shape), rows.type.shape[-1]))
        turned = back.constant("matrix", np.ascontiguousarray(matrix.T))
        product = back.reshaped(back.emit(MatMul(), flat, turned), (*shape, x.shape[axis]))
        gradient = back.transposed(product, inverse(tuple(order)))
    return gradient
