# SPDX-License-Identifier: Apache-2.0
"""Derivatives of matrix products and convolutions, whose gradients are products again."""

from __future__ import annotations

import math
from collections.abc import Callable

from mcugen.hir.graph import Node, Value
from mcugen.hir.traits import clamp_of
from mcugen.hir.types import Shape
from mcugen.numerics.window import Window
from mcugen.ops.conv import Conv, DirectConv
from mcugen.ops.conv_transpose import ConvTranspose
from mcugen.ops.gradient.rule import Backward, Parts, derivative_of
from mcugen.ops.matmul import Dense, MatMul
from mcugen.ops.movement import Slice
from mcugen.ops.onnx_node import Refusal
from mcugen.ops.packed import DequantizeBlocks, PackedDense


def _turned(back: Backward, x: Value) -> Value:
    """Return matrices with rows and columns exchanged."""
    rank = x.type.rank
    return back.transposed(x, [*range(rank - 2), rank - 1, rank - 2])


@derivative_of(MatMul)
def _of_matmul(back: Backward, op: MatMul, node: Node, gradient: Value) -> Parts:
    """y = f·a·b: ∂a = f·∂y·bᵀ, ∂b = f·aᵀ·∂y."""
    a, b = node.input(0), node.input(1)
    return {0: lambda: back.emit(op, gradient, _turned(back, b)), 1: lambda: back.emit(op, _turned(back, a), gradient)}


@derivative_of(Dense)
def _of_dense(back: Backward, _op: Dense, node: Node, gradient: Value) -> Parts:
    """y = x·wᵀ + bias: ∂x = ∂y·w, ∂w = ∂yᵀ·x, ∂bias the sum of ∂y's rows."""
    x, w = node.input(0), node.input(1)
    _require_plain(node, x)
    rows = math.prod(x.type.shape[:-1])
    wide = back.reshaped(gradient, (rows, w.type.shape[0]))

    def by_weights() -> Value:
        if rows == 1:  # an outer product, which joins the loop that adds it to the weights
            return back.mul(back.reshaped(wide, (w.type.shape[0], 1)), back.reshaped(x, (1, w.type.shape[1])))
        return back.emit(MatMul(), _turned(back, wide), back.reshaped(x, (rows, w.type.shape[1])))

    return {
        0: lambda: back.reshaped(back.emit(MatMul(), wide, w), x.type.shape),
        1: by_weights,
        2: lambda: back.reshaped(back.reduced("sum", wide, [0]), (w.type.shape[0],)),
    }


@derivative_of(Conv)
def _of_conv(back: Backward, op: Conv, node: Node, gradient: Value) -> Parts:
    """y = x ∗ w + bias, channels first: ∂x scatters ∂y by w, ∂w correlates x with ∂y."""
    x, w = node.input(0), node.input(1)
    _require_plain(node, x)
    if op.is_channels_last:
        raise Refusal("convolutions are differentiated channels first", node.place, "report this as a bug of mcugen")
    axes = [axis for axis in range(gradient.type.rank) if axis != 1]
    return {
        0: lambda: back.emit(ConvTranspose(op.window, x.type.shape[2:], op.groups), gradient, w),
        1: lambda: _by_weights(back, op, x, w, gradient),
        2: lambda: back.reshaped(back.reduced("sum", gradient, axes), (w.type.shape[0],)),
    }


@derivative_of(ConvTranspose)
def _of_conv_transpose(back: Backward, op: ConvTranspose, node: Node, gradient: Value) -> Parts:
    """Return the convolution of ∂y with w for x, and the correlation of ∂y with x for w."""
    x, w = node.input(0), node.input(1)
    _require_plain(node, x)
    conv = Conv(_reaching(op.window, op.space, w.type.shape[2:], x.type.shape[2:]), groups=op.groups)
    axes = [axis for axis in range(gradient.type.rank) if axis != 1]

    def by_x() -> Value:
        kind = conv if w.is_constant else DirectConv(conv.window, groups=op.groups)
        full = back.emit(kind, gradient, w)
        starts, steps = (0,) * x.type.rank, (1,) * x.type.rank
        return full if full.type.shape == x.type.shape else back.emit(Slice(starts, x.type.shape, steps), full)

    return {
        0: by_x,
        1: lambda: _by_weights(back, conv, gradient, w, x),
        2: lambda: back.reshaped(back.reduced("sum", gradient, axes), (gradient.type.shape[1],)),
    }


def _reaching(window: Window, space: Shape, kernel: Shape, output: Shape) -> Window:
    """Return the window with enough padding at the end to have at least `output` positions."""
    after = []
    rows = zip(space, kernel, output, window.strides, window.dilations, window.before, strict=True)
    for n, k, out, stride, dilation, before in rows:
        after.append(max(0, (out - 1) * stride + dilation * (k - 1) + 1 - before - n))
    return Window(window.strides, window.before, tuple(after), window.dilations)


@derivative_of(PackedDense)
def _of_packed_dense(back: Backward, op: PackedDense, node: Node, gradient: Value) -> Parts:
    """Return the gradient with respect to x alone; packed weights are not trained."""
    x, codes, scales = (node.input(i) for i in range(3))
    _require_plain(node, x)
    rows, channels = math.prod(x.type.shape[:-1]), codes.type.shape[0]

    def by_x() -> Value:
        w = back.emit(DequantizeBlocks(1, op.group), codes, scales)
        return back.reshaped(back.emit(MatMul(), back.reshaped(gradient, (rows, channels)), w), x.type.shape)

    return {0: by_x}


def _require_plain(node: Node, x: Value) -> None:
    """Refuse quantized layers, and layers with a fused activation, which are not differentiated."""
    if x.type.quant is not None or clamp_of(node.op) is not None:
        raise Refusal("layers are differentiated before they are fused", node.place, "train only the layers after it")


_EACH = {rank + 2: Window((1,) * rank, (0,) * rank, (0,) * rank, (1,) * rank) for rank in (1, 2, 3)}
"""The window that sees single positions, by the rank of images: such convolutions are products of matrices."""


def _by_weights(back: Backward, op: Conv, x: Value, w: Value, gradient: Value) -> Value:
    """Return the gradient of the weights: a matrix product for 1×1 kernels, else a convolution."""
    batch = x.type.shape[0]
    if batch == op.groups == 1 and op.window == _EACH.get(x.type.rank) and math.prod(w.type.shape[2:]) == 1:
        rows, columns = (back.reshaped(v, (v.type.shape[1], math.prod(v.type.shape[2:]))) for v in (gradient, x))
        return back.reshaped(back.emit(MatMul(), rows, _turned(back, columns)), w.type.shape)
    return correlated(back, op, x, w.type.shape[2:], gradient, lambda *how: _of_images(back, *how))


def _of_images(back: Backward, window: Window, groups: int, images: Value, filters: Value) -> Value:
    return back.emit(DirectConv(window, groups=groups), images, filters)


Convolve = Callable[[Window, int, Value, Value], Value]
"""Function that emits a convolution, given window, number of groups, images and filters, and returns its output."""


def correlated(back: Backward, op: Conv, x: Value, kernel: Shape, gradient: Value, convolve: Convolve) -> Value:
    """Return the gradient of a convolution's weights: a convolution of the input x with the output's gradient.

    Batch and channels change roles in this convolution, and so do strides and dilations.

    Args:
        back: Emits nodes.
        op: The forward convolution.
        x: Its input.
        kernel: Spatial shape of its weights.
        gradient: Gradient of its output.
        convolve: Emits the convolution.
    """
    groups, batch = op.groups, x.type.shape[0]
    window, whole = _exchanged(op.window, x.type.shape[2:], kernel, gradient.type.shape[2:])
    starts, steps = (0,) * x.type.rank, (1,) * x.type.rank
    shape = (*x.type.shape[:2], *whole)
    read = x if shape == x.type.shape else back.emit(Slice(starts, shape, steps), x)
    depth = shape[1] // groups
    spatial_axes = range(3, x.type.rank + 1)
    parted = back.reshaped(read, (batch, groups, depth, *whole))
    images = back.reshaped(back.transposed(parted, [2, 1, 0, *spatial_axes]), (depth, groups * batch, *whole))
    filters = back.transposed(gradient, [1, 0, *range(2, x.type.rank)])
    return back.transposed(convolve(window, groups, images, filters), [1, 0, *range(2, x.type.rank)])


def _exchanged(window: Window, space: Shape, kernel: Shape, output: Shape) -> tuple[Window, Shape]:
    """Return the window of the weight gradient, whose positions are the kernel taps, and the input lengths it reads."""
    after, seen = [], []
    rows = zip(space, kernel, output, window.strides, window.dilations, window.before, strict=True)
    for n, k, out, stride, dilation, before in rows:
        last = dilation * (k - 1) + stride * (out - 1) - before  # the last position that a tap reads
        after.append(max(0, last + 1 - n))
        seen.append(min(n, last + 1))
    return Window(window.dilations, window.before, tuple(after), window.strides), tuple(seen)
