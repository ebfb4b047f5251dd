# SPDX-License-Identifier: Apache-2.0
"""Sampling a tensor at computed positions: GridSample, and convolution with computed offsets (DeformConv)."""

from __future__ import annotations

import itertools
import math
from typing import Any, ClassVar

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.core.limits import check_size
from mcugen.hir.graph import Node, Value
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.types import Array, DType, Layout, Shape, TensorType, required
from mcugen.kernels.common.strided_loops import dense_strides, numbered
from mcugen.kernels.portable.sampling import (
    DEFORM_CONV,
    GRID_SAMPLE,
    DeformOptions,
    DeformParams,
    DeformWindow,
    GridOptions,
    GridParams,
    PlaneAxes,
)
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call
from mcugen.numerics.window import Window
from mcugen.ops.conv import conv_window
from mcugen.ops.onnx_node import OnnxNode, Refusal, onnx_operator

_FLOATS = (DType.FLOAT32, DType.FLOAT64)
_TAPS = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}
"""Neighbours of a position, from the element at or below it."""
_MODES = {"bilinear": "linear", "bicubic": "cubic"}
_SLOPE = -0.75
"""Slope of the cubic interpolation kernel at distance 1 (parameter a of ONNX Resize; -0.75 as in PyTorch)."""


class GridSample(Operator):
    """y[n, c, p...] = x[n, c] sampled at the position grid[n, p...].

    The last axis of the grid holds a position, last spatial axis first, in [−1, 1].

    Attributes:
        mode: Interpolation between elements, as in ONNX: nearest, linear or cubic.
        padding: Elements outside of x: zeros, the element on the border, or the reflected tensor.
        align: Whether −1 and 1 are the centres of the outermost elements; else their outer edges.
    """

    mnemonic: ClassVar[str] = "grid_sample"
    mode: str = "linear"
    padding: str = "zeros"
    align: bool = False

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: batch and channels of x with the spatial shape of the grid."""
        x, grid = required(inputs)
        if x.rank < 3 or grid.rank != x.rank or grid.shape[0] != x.shape[0] or grid.shape[-1] != x.rank - 2:
            raise ModelError("grid_sample: the grid must fit the input", f"{grid.shape} on {x.shape}", "repair it")
        return (TensorType((*x.shape[:2], *grid.shape[1:-1]), x.dtype, layout=Layout.CHANNELS_FIRST),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy, by adding one weighted neighbour of all positions after the other."""
        x, grid = arrays[0], arrays[1].astype(arrays[0].dtype)
        batch, rank = np.arange(len(x)), x.ndim - 2
        points = grid.reshape(len(x), -1, rank)
        axes = [self._taps(points[..., rank - 1 - a], x.shape[2 + a]) for a in range(rank)]
        y = np.zeros((len(x), points.shape[1], x.shape[1]), x.dtype)
        for chosen in itertools.product(*axes):
            weight = math.prod((w for _, w in chosen), start=np.ones((), x.dtype))
            at = [np.clip(i, 0, n - 1) for (i, _), n in zip(chosen, x.shape[2:], strict=True)]
            index: tuple[Any, ...] = (batch[:, None], slice(None), *at)
            y += np.where(weight[..., None] == 0, 0, weight[..., None] * x[index])
        return (np.moveaxis(y, 2, 1).reshape(sig.output.shape),)

    def _taps(self, g: Array, size: int) -> list[tuple[Array, Array]]:
        """Index and weight of each tap along one axis."""
        real = g.dtype.type
        half = real(0.5)
        at = (g + 1) * half * real(size - 1) if self.align else ((g + 1) * real(size) - 1) * half
        if self.mode == "nearest":
            at = np.rint(at)
        low, high = (real(0), real(size - 1)) if self.align else (-half, real(size) - half)
        outside = ~((at >= low) & (at <= high))
        if self.padding == "border":
            at = np.where(outside, np.where(at > 0, real(size - 1), real(0)), at)
        elif self.padding == "reflection":
            at = np.where(outside, _reflect(at, low, high), at)
        at = np.where(at > -3, np.where(at < size + 3, at, real(size + 3)), real(-3))
        base = np.floor(at)
        t = at - base
        weights = [np.ones_like(t)] if self.mode == "nearest" else [1 - t, t] if self.mode == "linear" else _cubic(t)
        taps = []
        for step, weight in zip(_TAPS[self.mode], weights, strict=True):
            index = base.astype(np.int64) + step
            if self.padding == "zeros":
                weight = np.where((index >= 0) & (index < size), weight, real(0))
            elif self.padding == "reflection":
                index = self._reflected_index(index, size)
            taps.append((index, weight))
        return taps

    def _reflected_index(self, index: Array, size: int) -> Array:
        if self.align and size == 1:
            return np.zeros_like(index)
        period = 2 * size - 2 * self.align
        inner: Array = index % period
        return np.where(inner < size, inner, period - (0 if self.align else 1) - inner)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that computes indices and weights once per position, for all channels."""
        x, y = node.input(0).type, node.output.type
        space = x.shape[2:]
        operands = builder.operands(node, "x", "grid")
        params = GridParams(
            batch=x.shape[0], channels=x.shape[1], points=math.prod(y.shape[2:]), plane_size=math.prod(space)
        )
        axes = PlaneAxes(in_size=numbered("in_size", space), stride=numbered("stride", dense_strides(space)))
        options = GridOptions(
            t=x.dtype.c,
            f="" if x.dtype is DType.FLOAT64 else "f",
            rank=len(space),
            mode=self.mode,
            padding=self.padding,
            align=self.align,
            steps=_TAPS[self.mode],
        )
        variant = f"{self.mode}_{self.padding}_{len(space)}d_{x.dtype.tag}"
        builder.call(node, Call(GRID_SAMPLE, operands, [params, axes], [options], variant=variant))


def _reflect(at: Array, low: Array, high: Array) -> Array:
    """Reflect positions at the ends of [low, high] until they are inside; NaN and infinity become low."""
    span = high - low
    if span <= 0:
        return np.full_like(at, low)
    phase = np.fmod(np.where(at < low, low - at, at - low), 2 * span)
    reflected = low + np.where(phase <= span, phase, 2 * span - phase)
    return np.where(reflected >= low, reflected, low)


def _cubic(t: Array) -> list[Array]:
    a = t.dtype.type(_SLOPE)

    def near(d: Array) -> Array:
        weight: Array = ((a + 2) * d - (a + 3)) * d * d + 1
        return weight

    def far(d: Array) -> Array:
        weight: Array = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return weight

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


# ------------------------------------------------------------------------------------- deformable convolution


class DeformConv(Operator):
    """A 2-D convolution whose kernel taps are moved by computed offsets and weighted by a computed mask.

    Inputs x [N, C, H, W], w [O, C/groups, kh, kw], offset [N, 2 · offset_groups · kh · kw, oh, ow] (row offset before
    column offset for each tap), optional bias [O], optional mask [N, offset_groups · kh · kw, oh, ow]. Between elements
    x is interpolated linearly; outside, x is 0.

    Attributes:
        window: Strides, padding and dilations.
        groups: Number of groups of channels.
        offset_groups: Number of groups of input channels that have offsets and a mask of their own.
    """

    mnemonic: ClassVar[str] = "deform_conv"
    window: Window
    groups: int = 1
    offset_groups: int = 1

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: O channels with the spatial shape of the offsets."""
        x, w, offset = inputs[:3]
        bias, mask = (*inputs[3:], None, None)[:2]
        assert x is not None and w is not None and offset is not None
        kernel = w.shape[2:]
        space = self.window.output(x.shape[2:], kernel)
        taps = math.prod(kernel) * self.offset_groups
        out = (x.shape[0], w.shape[0], *space)
        fits = (
            x.shape[1] == w.shape[1] * self.groups
            and w.shape[0] % self.groups == 0
            and x.shape[1] % self.offset_groups == 0
            and offset.shape == (x.shape[0], 2 * taps, *space)
            and (bias is None or bias.shape == w.shape[:1])
            and (mask is None or mask.shape == (x.shape[0], taps, *space))
            and min(space) > 0
        )
        if not fits:
            shapes = f"{x.shape} by {w.shape}, offsets {offset.shape}"
            raise ModelError("deform_conv: weights, offsets and mask must fit the input", shapes, "repair the model")
        return (TensorType(out, x.dtype, layout=Layout.CHANNELS_FIRST),)

    def _split(self, sig: Signature, arrays: tuple[Array, ...]) -> tuple[Array | None, Array | None]:
        """Bias and mask, which may be absent."""
        optional_arrays = iter(arrays[3:])
        present = [i < len(sig.inputs) and sig.inputs[i] is not None for i in (3, 4)]
        bias, mask = (next(optional_arrays) if is_present else None for is_present in present)
        return bias, mask

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy: the im2col matrix at the moved positions, and a matrix product."""
        x, w, offset = arrays[:3]
        bias, mask = self._split(sig, arrays)
        count, channels, kernel, space = len(x), x.shape[1], w.shape[2:], sig.output.shape[2:]
        taps = math.prod(kernel)
        moved = offset.reshape(count, self.offset_groups, taps, 2, *space)
        factor = np.ones((), x.dtype) if mask is None else mask.reshape(count, self.offset_groups, taps, *space)
        at = [moved[:, :, :, a] + self._origin(a, kernel, space).astype(x.dtype) for a in (0, 1)]
        apart = x.reshape(count, self.offset_groups, -1, *x.shape[2:])
        patches = (_bilinear(apart, at[0], at[1]) * np.expand_dims(np.broadcast_to(factor, at[0].shape), 2)).astype(
            x.dtype
        )
        rows = patches.reshape(count, self.groups, channels // self.groups * taps, *space)
        filters = w.reshape(self.groups, len(w) // self.groups, -1)
        y = np.einsum("ngkhw,gok->ngohw", rows, filters).reshape(sig.output.shape)
        return (y if bias is None else y + bias.reshape(-1, 1, 1),)

    def _origin(self, axis: int, kernel: Shape, space: Shape) -> Array:
        """[taps, oh, ow]: where each tap lies without offsets."""
        w = self.window
        tap = np.unravel_index(np.arange(math.prod(kernel)), kernel)[axis] * w.dilations[axis]
        start = np.indices(space)[axis] * w.strides[axis] - w.before[axis]
        origin: Array = tap[:, None, None] + start
        return origin

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates: outputs · kernel size · input channels of a group."""
        return sig.output.count * math.prod(sig.input(1).shape[1:])

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that gathers the moved patch of each output pixel once for all filters."""
        x, w, y = node.input(0).type, node.input(1).type, node.output.type
        input_buffers = builder.operands(node, "x", "w", "offset", "bias", "mask", outputs=())
        depth = math.prod(w.shape[1:])
        params = DeformParams(
            batch=x.shape[0],
            groups=self.groups,
            offset_groups=self.offset_groups,
            group_out_channels=w.shape[0] // self.groups,
            filter_size=depth,
            taps=math.prod(w.shape[2:]),
            channels_per_offset_group=x.shape[1] // self.offset_groups,
            y_plane_size=math.prod(y.shape[2:]),
        )
        window = DeformWindow(
            in_size=numbered("in_size", x.shape[2:]),
            out_size=numbered("out_size", y.shape[2:]),
            kernel_size=numbered("kernel_size", w.shape[2:]),
            stride=numbered("stride", self.window.strides),
            padding=numbered("padding", self.window.before),
            dilation=numbered("dilation", self.window.dilations),
        )
        options = DeformOptions(
            t=x.dtype.c,
            f="" if x.dtype is DType.FLOAT64 else "f",
            bias="bias" in input_buffers,
            mask="mask" in input_buffers,
        )
        patch = builder.scratch(f"{node.output.name}.patch", x.dtype, depth * self.groups)
        operands = {**input_buffers, "y": builder.buffer(node.output), "patch": patch}
        builder.call(node, Call(DEFORM_CONV, operands, [params, window], [options], variant=x.dtype.tag))


def _bilinear(x: Array, row: Array, column: Array) -> Array:
    """Sample x [N, G, C, H, W] at rows and columns [N, G, *points]; return [N, G, C, *points], 0 outside."""
    height, width = x.shape[-2:]
    n, g = (i.reshape(*x.shape[:2], *[1] * (row.ndim - 2)) for i in np.indices(x.shape[:2]))
    near = (row > -1) & (row < height) & (column > -1) & (column < width)
    row, column = np.where(near, row, 0), np.where(near, column, 0)
    top, left = np.floor(row).astype(np.int64), np.floor(column).astype(np.int64)
    total = np.zeros((*row.shape, x.shape[2]), x.dtype)
    for dy, dx in itertools.product((0, 1), (0, 1)):
        r, c = top + dy, left + dx
        weight = (row - top if dy else top + 1 - row) * (column - left if dx else left + 1 - column)
        inside = near & (r >= 0) & (r < height) & (c >= 0) & (c < width)
        part = x[n, g, :, np.clip(r, 0, height - 1), np.clip(c, 0, width - 1)]
        total += (np.where(inside, weight, 0)[..., None] * part).astype(x.dtype)
    return np.moveaxis(total, -1, 2)


# --------------------------------------------------------------------------------------------------- import


@onnx_operator("GridSample", types=_FLOATS, kernels=("grid_sample",))
def _import_grid_sample(node: OnnxNode) -> list[Value]:
    x, grid = node.input(0), node.input(1)
    node.require_dtype(x, *_FLOATS)
    node.require_dtype(grid, *_FLOATS)
    mode = str(node.attr("mode", "linear"))
    mode, padding = _MODES.get(mode, mode), str(node.attr("padding_mode", "zeros"))
    if mode not in _TAPS or padding not in ("zeros", "border", "reflection"):
        raise Refusal("GridSample: mode and padding_mode must be known", f"'{mode}', '{padding}'", "repair the model")
    return [node.emit(GridSample(mode, padding, bool(node.attr("align_corners", 0))), x, grid)]


@onnx_operator("AffineGrid", kernels=("matmul_f32", "matmul_f64"), limits="a known size")
def _import_affine_grid(node: OnnxNode) -> list[Value]:
    """θ · (x, y, 1) of the elements' places, all at once: ONNX's function takes a batch of one for an axis too many."""
    theta, size = node.input(0), node.const(1, "the size").astype(np.int64).reshape(-1)
    space = tuple(int(n) for n in size[2:])
    if len(space) not in (2, 3) or theta.type.shape != (int(size[0]), len(space), len(space) + 1):
        rule = "AffineGrid: theta must be a matrix for each image or volume"
        raise Refusal(rule, f"{theta.type.shape} for a size of {size.tolist()}", "repair the model")
    check_size("AffineGrid", node.outputs[0], math.prod(space) * (len(space) + 1))
    places = [_places(count, bool(node.attr("align_corners", 0))) for count in space]
    axes = [*reversed(np.meshgrid(*places, indexing="ij")), np.ones(space)]
    points = np.stack(axes, -1).reshape(-1, len(axes)).astype(theta.type.dtype.numpy)
    grid = node.call("MatMul", points, node.call("Transpose", theta, perm=[0, 2, 1]))
    return [node.call("Reshape", grid, np.asarray([size[0], *space, len(space)]))]


def _places(count: int, align: bool) -> Array:
    """Return the coordinates of an axis's elements.

    −1 and 1 are the centers of the outermost elements with `align`, else their outer edges.
    """
    if align:
        return np.linspace(-1.0, 1.0, count) if count > 1 else np.zeros(count)
    return (2 * np.arange(count) + 1) / count - 1


@onnx_operator("DeformConv", types=_FLOATS, kernels=("deform_conv",), limits="images")
def _import_deform_conv(node: OnnxNode) -> list[Value]:
    x = node.input(0)
    node.require_dtype(x, *_FLOATS)
    node.require(x.type.rank == 4, "two spatial axes are supported", f"{x.type.rank - 2}", "add an axis of size 1")
    op = DeformConv(conv_window(node), int(node.attr("group", 1)), int(node.attr("offset_group", 1)))
    if min(op.groups, op.offset_groups) < 1:
        groups = f"{op.groups} and {op.offset_groups}"
        raise Refusal("DeformConv: group and offset_group must be positive", groups, "repair the model")
    inputs = [node.optional(i) for i in range(5)]
    for value in inputs[1:]:
        if value is not None:
            node.require_dtype(value, x.type.dtype)
    return [node.emit(op, *inputs)]
