# SPDX-License-Identifier: Apache-2.0
"""Derivatives of reductions, pools, softmax and normalization, whose results depend on many elements."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from mcugen.hir.graph import Node, Value
from mcugen.hir.operator import Signature
from mcugen.ops.conv_transpose import ConvTranspose
from mcugen.ops.conversion import Cast
from mcugen.ops.gradient.rule import Backward, Parts, derivative_of
from mcugen.ops.movement import to_channels_last
from mcugen.ops.norm import Normalize
from mcugen.ops.onnx_node import Refusal
from mcugen.ops.pointwise import Binary, Unary
from mcugen.ops.pool import AveragePool, DirectPool, MaxPool, Pool
from mcugen.ops.reduce import Reduce
from mcugen.ops.scatter import ScatterElements
from mcugen.ops.softmax import Softmax


def _refuse(node: Node, what: str) -> Refusal:
    return Refusal(
        "an operator on the way must have a derivative", f"{node.place}: {what}", "train only the layers after it"
    )


@derivative_of(Reduce)
def _of_reduce(back: Backward, op: Reduce, node: Node, gradient: Value) -> Parts:
    """Give each element its share of the gradient; equal extremes share one gradient."""
    x, y = node.input(0), node.output

    def by_x() -> Value:
        share = back.scaled(gradient, y.type.count / x.type.count) if op.function == "mean" else gradient
        wide = back.spread(share, x.type.shape)
        match op.function:
            case "mean" | "sum":
                return wide
            case "sumsquare":
                return back.mul(wide, back.scaled(x, 2.0))
            case "l1":
                return back.mul(wide, back.emit(Unary("Sign"), x))
            case "max" | "min":
                is_extreme = back.emit(Cast(x.type.dtype), back.emit(Binary("Equal"), x, y))
                return back.mul(back.div(gradient, back.reduced("sum", is_extreme, op.axes)), is_extreme)
        raise _refuse(node, op.function)

    return {0: by_x}


@derivative_of(Softmax)
def _of_softmax(back: Backward, op: Softmax, node: Node, gradient: Value) -> Parts:
    """Return y·(∂y − Σ ∂y·y), or, for the logarithm, ∂y − exp(y)·Σ ∂y."""
    y = node.output
    axes = (op.axis,)

    def by_x() -> Value:
        if op.log:
            total = back.reduced("sum", gradient, axes)
            return back.sub(gradient, back.mul(back.emit(Unary("Exp"), y), total))
        total = back.reduced("sum", back.mul(gradient, y), axes)
        return back.mul(y, back.sub(gradient, total))

    return {0: by_x}


@derivative_of(Normalize)
def _of_normalize(back: Backward, op: Normalize, node: Node, gradient: Value) -> Parts:
    """Return ∂x = (∂n − mean(∂n) − n · mean(∂n · n)) / deviation, where n is the normalized x and ∂n its gradient."""
    x = node.input(0)
    shape, axes = op.view(x.type.shape)
    affine = {i: v for i, v in enumerate(node.inputs) if i and v is not None}

    def normalized() -> tuple[Value, Value]:
        """Return the normalized x and the deviation, both split by groups where groups have statistics."""
        parted = back.reshaped(x, shape)
        centered = back.sub(parted, back.reduced("mean", parted, axes)) if op.centered else parted
        variance = back.reduced("mean", back.mul(centered, centered), axes)
        deviation = back.emit(Unary("Sqrt"), back.add(variance, back.number(op.epsilon, variance)))
        return back.div(centered, deviation), deviation

    def by_x() -> Value:
        n, deviation = normalized()
        inner = back.reshaped(back.mul(gradient, affine[1]) if 1 in affine else gradient, shape)
        part = back.mul(n, back.reduced("mean", back.mul(inner, n), axes))
        centered_gradient = back.sub(inner, back.reduced("mean", inner, axes)) if op.centered else inner
        return back.reshaped(back.div(back.sub(centered_gradient, part), deviation), x.type.shape)

    def by_scale() -> Value:
        n = back.reshaped(normalized()[0], x.type.shape)
        return back.summed_to(back.mul(gradient, n), affine[1].type.shape)

    return {0: by_x, 1: by_scale, 2: lambda: back.summed_to(gradient, affine[2].type.shape)}


@derivative_of(MaxPool)
def _of_max_pool(back: Backward, op: MaxPool, node: Node, gradient: Value) -> Parts:
    """Pass the gradient to the first largest element of each window."""
    return {0: lambda: _to_largest(back, node, op, gradient)}


@derivative_of(DirectPool)
def _of_direct_pool(back: Backward, op: DirectPool, node: Node, gradient: Value) -> Parts:
    """Use the rule of the maximum or the average."""
    if op.function == "lp":
        raise _refuse(node, "an Lp norm")
    return {0: lambda: (_to_largest if op.function == "max" else _to_all)(back, node, op, gradient)}


@derivative_of(AveragePool)
def _of_average_pool(back: Backward, op: AveragePool, node: Node, gradient: Value) -> Parts:
    """Give all elements of a window an equal share."""
    return {0: lambda: _to_all(back, node, op, gradient)}


def _to_largest(back: Backward, node: Node, op: Pool, gradient: Value) -> Value:
    x = node.input(0)
    _require_channels_first(node, op)
    where = DirectPool(op.window, kernel=op.kernel, function="max", order="row")
    names = [f"{node.outputs[0].name}.backward.{name}" for name in ("largest", "positions")]
    _, positions = back.emit_all(where, [x], names)
    count = gradient.type.count
    flat = (back.reshaped(v, (count,)) for v in (positions, gradient))
    total = back.emit(ScatterElements(0, "add"), back.zeros(x.type, (x.type.count,)), *flat)
    return back.reshaped(total, x.type.shape)


def _to_all(back: Backward, node: Node, op: Pool, gradient: Value) -> Value:
    x = node.input(0).type
    _require_channels_first(node, op)
    channels, dtype = x.shape[1], x.dtype.numpy
    window = op.window
    shares = back.constant("shares", average_shares(node, op).astype(dtype))
    ones = back.constant("ones", np.ones((channels, 1, *op.kernel), dtype))
    return back.emit(ConvTranspose(window, x.shape[2:], channels), back.mul(gradient, shares), ones)


def average_shares(node: Node, op: Pool) -> np.ndarray:
    """Return the derivative of each output of an average pool (`op` of `node`) by an element under its window.

    It is 1 / the divisor of the window: the average of a tensor of ones, divided by the number of elements under the
    window.
    """
    x = node.input(0).type
    one = replace(x, shape=(1, 1, *x.shape[2:]))
    (average,) = op.evaluate(Signature((one,), op.infer(one)), np.ones(one.shape, np.float32))[:1]
    taps = op.window.patches(np.ones((1, *x.shape[2:], 1)), op.kernel, 0)
    count = taps.reshape(*taps.shape[: x.rank], math.prod(op.kernel)).sum(-1)
    return np.asarray(average / count.transpose(np.argsort(to_channels_last(x.rank))))


def _require_channels_first(node: Node, op: Pool) -> None:
    if op.is_channels_last:
        raise Refusal("pools are differentiated channels first", node.place, "report this as a bug of mcugen")
