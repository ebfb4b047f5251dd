# SPDX-License-Identifier: Apache-2.0
"""Importers of crops of images, and of pools under a mask, of domain com.microsoft."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mcugen.core.limits import check_size
from mcugen.hir.graph import Value
from mcugen.ops.microsoft.common import axes, composed, shaped
from mcugen.ops.onnx_node import OnnxNode, Refusal
from mcugen.ops.spatial import window_of

LOWEST = np.finfo(np.float32).min
"""Lowest float32 number, which is neutral for a maximum."""


# ------------------------------------------------------------------------------------------------------ crops


@dataclass(frozen=True)
class _Axis:
    """Positions of the rows (or columns) of crops in an image, each of shape (R, size)."""

    inside: Value
    """Whether the position lies in the image."""
    place: Value
    """The position, clipped to the image."""


@composed("CropAndResize", limits="constant crop_size")
@axes("N C H W", "R 4", "R", "2")
def _import_crop(node: OnnxNode) -> list[Value]:
    """Pixels between, or next to, the corners of boxes, which are shares of the image's height and width."""
    x, mode = node.input(0), str(node.attr("mode", "bilinear"))
    images, channels, height, width = x.type.shape
    node.require(mode in ("bilinear", "nearest"), "the mode must be known", f"'{mode}'", "use bilinear")
    rows, columns = node.ints("crop_size", 3) or (0, 0)
    node.require(min(rows, columns) >= 1, "crop_size must be positive", f"{rows} x {columns}")
    check_size("CropAndResize", node.outputs[0], node.input(1).type.shape[0] * rows * columns * channels)
    ys, xs = _axis(node, 0, rows, height), _axis(node, 1, columns, width)
    boxes = node.input(1).type.shape[0]
    ys = _Axis(*(shaped(node, v, boxes, rows, 1) for v in (ys.inside, ys.place)))
    xs = _Axis(*(shaped(node, v, boxes, 1, columns) for v in (xs.inside, xs.place)))
    pixels = node.call("Transpose", x, perm=[0, 2, 3, 1])
    pixels = shaped(node, pixels, images * height * width, channels)
    first = node.call("Mul", node.call("Cast", node.input(2), to=7), np.int64(height * width))
    first = shaped(node, first, boxes, 1, 1)

    def at(y: Value, x: Value) -> Value:
        row = node.call("Mul", node.call("Cast", y, to=7), np.int64(width))
        place = node.call("Add", node.call("Add", first, row), node.call("Cast", x, to=7))
        return node.call("Gather", pixels, place)

    crops = _between(node, ys.place, xs.place, at) if mode == "bilinear" else at(_near(node, ys), _near(node, xs))
    inside = shaped(node, node.call("And", ys.inside, xs.inside), boxes, rows, columns, 1)
    crops = node.call("Where", inside, crops, np.float32(node.attr("extrapolation_value", 0.0)))
    return [node.call("Transpose", crops, perm=[0, 3, 1, 2])]


def _axis(node: OnnxNode, index: int, size: int, length: int) -> _Axis:
    """Return positions from one end of each box to the other; a single position is the middle."""
    low, high = (_column(node, i) for i in (index, index + 2))
    ends = [node.call("Mul", v, np.float32(length - 1)) for v in (low, high)]
    if size == 1:
        middle = node.call("Mul", node.call("Add", low, high), np.float32(0.5))
        place = node.call("Mul", middle, np.float32(length - 1))
    else:
        step = node.call("Mul", node.call("Sub", high, low), np.float32(length - 1))
        step = node.call("Div", step, np.float32(size - 1))
        steps = np.arange(size, dtype=np.float32)[None]
        place = node.call("Add", ends[0], node.call("Mul", step, steps))
        place = node.call("Where", steps == size - 1, ends[1], place)
    outside = node.call(
        "Or", node.call("Less", place, np.float32(0)), node.call("Greater", place, np.float32(length - 1))
    )
    return _Axis(node.call("Not", outside), node.call("Clip", place, np.float32(0), np.float32(length - 1)))


def _column(node: OnnxNode, index: int) -> Value:
    """One coordinate of all boxes: (R, 1)."""
    return node.call("Slice", node.input(1), *(np.array([n], np.int64) for n in (index, index + 1, 1)))


def _near(node: OnnxNode, axis: _Axis) -> Value:
    """Return the nearest pixel, rounding halves up."""
    return node.call("Floor", node.call("Add", axis.place, np.float32(0.5)))


def _between(node: OnnxNode, y: Value, x: Value, at: object) -> Value:
    """Interpolate bilinearly between four pixels."""
    assert callable(at)
    top, left = node.call("Floor", y), node.call("Floor", x)
    bottom, right = node.call("Ceil", y), node.call("Ceil", x)
    down, along = (shaped(node, node.call("Sub", v, w), *v.type.shape, 1) for v, w in ((y, top), (x, left)))

    def mixed(a: Value, b: Value, share: Value) -> Value:
        return node.call("Add", a, node.call("Mul", node.call("Sub", b, a), share))

    upper = mixed(at(top, left), at(top, right), along)
    lower = mixed(at(bottom, left), at(bottom, right), along)
    return mixed(upper, lower, down)


# --------------------------------------------------------------------------------------------- masked maxima


@composed("MaxpoolWithMask")
@axes("N C _ ...", "_ _ _ ...")
def _import_masked_pool(node: OnnxNode) -> list[Value]:
    """Import MaxpoolWithMask: the maximum of a window whose rows end before the first masked element.

    As in ONNX Runtime, the mask of channel c begins at element c · size modulo the number of all mask elements, and
    with several axes the first element's mask is ignored.
    """
    x = node.input(0)
    kernel = node.integers("kernel_shape")
    rank = len(kernel)
    if min(kernel, default=0) < 1 or x.type.rank != rank + 2:
        raise Refusal(
            "MaxpoolWithMask: the kernel must have all axes", f"{kernel} for {x.type.shape}", "repair the model"
        )
    window = window_of(node, x.type.shape[2:], tuple(kernel))
    strides, pads = window.strides, (*window.before, *window.after)
    if min(window.output(x.type.shape[2:], tuple(kernel))) < 1:
        raise Refusal(
            "MaxpoolWithMask: windows must lie in the image", f"{kernel} on {x.type.shape}", "repair the model"
        )
    visible = _mask(node, x.type.shape, rank)
    sides = [0] * (x.type.rank - 1) + [pads[rank - 1]] + [0] * (x.type.rank - 1) + [pads[-1]]
    rows = node.call("Pad", x, np.array(sides, np.int64), np.float32(LOWEST)) if any(sides) else x
    seen = node.call("Pad", visible, np.array(sides, np.int64), np.int32(1)) if any(sides) else visible
    rows = _row_maxima(node, rows, seen, kernel[-1], strides[-1])
    if rank == 1:
        return [rows]
    outer = [*pads[: rank - 1], 0, *pads[rank:-1], 0]
    return [node.call("MaxPool", rows, kernel_shape=[*kernel[:-1], 1], strides=[*strides[:-1], 1], pads=outer)]


def _mask(node: OnnxNode, shape: Sequence[int], rank: int) -> Value:
    """Return the mask in the shape of x, or of one image if all channels share it."""
    mask, size = node.input(1), math.prod(shape[2:])
    if mask.type.shape[2:] != tuple(shape[2:]):
        shapes = f"{mask.type.shape} for {tuple(shape)}"
        raise Refusal("MaxpoolWithMask: the mask must be as large as the image", shapes, "repair the model")
    first = np.arange(shape[0] * shape[1]) * size % (mask.type.shape[0] * mask.type.shape[1])
    flat = shaped(node, mask, mask.type.count)
    if first.any():
        whole = node.call("Gather", flat, (first[:, None] + np.arange(size)).astype(np.int64))
        whole = shaped(node, whole, *shape)
    else:
        whole = shaped(node, node.call("Gather", flat, np.arange(size).astype(np.int64)), 1, 1, *shape[2:])
    if rank == 1:
        return whole
    corner = np.zeros((1, 1, *shape[2:]), bool)
    corner.reshape(-1)[0] = True
    return node.call("Where", corner, np.int32(1), whole)


def _row_maxima(node: OnnxNode, x: Value, visible: Value, size: int, stride: int) -> Value:
    """Return, for each window along the last axis, the largest element before the first masked one."""
    count = (x.type.shape[-1] - size) // stride + 1
    best: Value | None = None
    open_: Value | None = None
    for offset in range(size):
        span = [np.array([n], np.int64) for n in (offset, offset + (count - 1) * stride + 1, -1, stride)]
        seen = node.call("Not", node.call("Equal", node.call("Slice", visible, *span), np.int32(0)))
        open_ = seen if open_ is None else node.call("And", open_, seen)
        part = node.call("Where", open_, node.call("Slice", x, *span), np.float32(LOWEST))
        best = part if best is None else node.call("Max", best, part)
    assert best is not None
    return best
