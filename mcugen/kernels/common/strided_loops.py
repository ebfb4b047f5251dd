# SPDX-License-Identifier: Apache-2.0
"""Loop nests over tensors: strides, merged loops, and walks along one axis or under a window."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

from mcugen.hir.types import Shape
from mcugen.lir.kernel import ByAxis, Params
from mcugen.numerics.window import Window


class AxisWalk(Params):
    """Kernel parameters of loops along one axis of a dense tensor, seen as [outer_size, axis_size, inner_size]."""

    outer_size: Annotated[int, "product of the sizes of the axes before the axis"]
    axis_size: Annotated[int, "size of the axis of x"]
    inner_size: Annotated[int, "elements from one index to the next along the axis"]

    @classmethod
    def of(cls, shape: Shape, axis: int) -> AxisWalk:
        """Return the loop parameters for one axis of a dense tensor.

        Args:
            shape: Shape of the tensor.
            axis: Index of the axis.
        """
        return cls(outer_size=math.prod(shape[:axis]), axis_size=shape[axis], inner_size=math.prod(shape[axis + 1 :]))


def numbered(name: str, values: Sequence[int]) -> dict[str, int]:
    """Return kernel parameters called `name`0, `name`1, … with these values, one for each axis.

    Args:
        name: The common part of the parameter names.
        values: The value for each axis, from axis 0 on.
    """
    return {f"{name}{axis}": value for axis, value in enumerate(values)}


def dense_strides(shape: Shape) -> list[int]:
    """Return the row-major strides, in elements, of a dense tensor of this shape."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def merge_walks(shape: Shape, source: Sequence[int], target: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return a minimal loop nest that copies a tensor between two layouts.

    Dimensions of size 1 are dropped, and adjacent dimensions are merged if one loop covers both.

    Args:
        shape: Sizes of the dimensions.
        source: Strides of the source, in elements.
        target: Strides of the target, in elements.

    Returns:
        (size, source stride, target stride) of each loop, from the outermost; at least one loop.
    """
    dims: list[tuple[int, int, int]] = []
    for size, xs, ys in zip(shape, source, target, strict=True):
        if size == 1:
            continue
        if dims and dims[-1][1] == size * xs and dims[-1][2] == size * ys:
            dims[-1] = (dims[-1][0] * size, xs, ys)
        else:
            dims.append((size, xs, ys))
    return dims or [(1, 1, 1)]


def outer_strides(name: str, shape: Shape) -> dict[str, int]:
    """Return kernel parameters called `name`0, `name`1, … with the strides of all axes of a dense tensor but the last.

    Args:
        name: The common part of the parameter names.
        shape: Shape of the tensor; strides are in elements.
    """
    return numbered(name, [math.prod(shape[axis + 1 :]) for axis in range(len(shape) - 1)])


class WindowWalk(ByAxis):
    """Kernel parameters of a window that slides over any number of spatial axes of x, channels first.

    Each field holds one parameter per axis, whose name ends with the number of the axis (in_size0, in_size1, …).
    """

    in_size: Annotated[Mapping[str, int], "elements of x along the axis"]
    out_size: Annotated[Mapping[str, int], "elements of y along the axis"]
    kernel_size: Annotated[Mapping[str, int], "taps along the axis"]
    stride: Annotated[Mapping[str, int], "elements from window to window"]
    padding: Annotated[Mapping[str, int], "elements of padding before x"]
    dilation: Annotated[Mapping[str, int], "elements from tap to tap"]
    x_stride: Annotated[Mapping[str, int], "elements of x from one index along the axis to the next"]

    @staticmethod
    def of(window: Window, space: Shape, out: Shape, kernel: Shape) -> WindowWalk:
        """Return the loop parameters of a window that slides over x, channels first.

        Args:
            window: Strides, dilations and padding.
            space: Spatial sizes of x.
            out: Spatial sizes of y.
            kernel: Number of taps along each axis.
        """
        return WindowWalk(
            in_size=numbered("in_size", space),
            out_size=numbered("out_size", out),
            kernel_size=numbered("kernel_size", kernel),
            stride=numbered("stride", window.strides),
            padding=numbered("padding", window.before),
            dilation=numbered("dilation", window.dilations),
            x_stride=outer_strides("x_stride", space),
        )


class Nests(Params):
    """Kernel parameters of a nest of loops over kept axes around loops over reduced axes, as in a reduction.

    Each mapping holds several parameters. Their names begin with k (kept) or r (reduced) and the number of the loop,
    from the outermost: k0_size is the trip count, k0_stride a stride.
    """

    k: Annotated[
        Mapping[str, int], "of a loop over a kept axis: its trip count, and the stride of each operand in elements"
    ]
    r: Annotated[
        Mapping[str, int], "of a loop over a reduced axis: its trip count, and the stride of each operand in elements"
    ]
