# SPDX-License-Identifier: Apache-2.0
"""Sliding windows of convolutions and pools: sizes, padding, patches, and the parts of the input they read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mcugen.hir.crop import overlap_of
from mcugen.hir.operator import RowWindow
from mcugen.hir.types import Array, Shape


def height_and_width(values: Sequence[int], missing: int) -> tuple[int, int]:
    """Return the vertical and the horizontal number of a setting with one number per spatial axis, such as strides.

    Args:
        values: One or two numbers. A single number is the horizontal one.
        missing: The vertical number if `values` has only one.
    """
    return (missing, values[0]) if len(values) == 1 else (values[0], values[1])


def pad(x: Array, widths: Sequence[tuple[int, int]], fill: float) -> Array:
    """Return x padded with the constant `fill`, or x itself if nothing is added.

    The result is that of np.pad, in a tenth of its time for small arrays.

    Args:
        x: The array.
        widths: Numbers of elements to add before and after each axis.
        fill: Value of the added elements.
    """
    if not any(map(any, widths)):
        return x
    result = np.full([n + before + after for n, (before, after) in zip(x.shape, widths, strict=True)], fill, x.dtype)
    result[tuple(slice(before, before + n) for n, (before, _) in zip(x.shape, widths, strict=True))] = x
    return result


@dataclass(frozen=True)
class Window:
    """Strides, padding and dilations of a convolution's or pool's window, with one entry per spatial axis.

    Attributes:
        strides: Elements of the input from window to window.
        before: Elements of padding before the input.
        after: Elements of padding behind the input.
        dilations: Elements of the input from tap to tap.
    """

    strides: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilations: tuple[int, ...]

    def __str__(self) -> str:
        rows = (("stride", self.strides), ("pad", (*self.before, *self.after)), ("dilation", self.dilations))
        return "(" + " ".join(f"{name} {'x'.join(map(str, row))}" for name, row in rows) + ")"

    def output(self, space: Shape, kernel: Shape) -> Shape:
        """Return the output's spatial sizes, rounded down, for an input and a kernel of these spatial sizes.

        Args:
            space: Spatial sizes of the input.
            kernel: Spatial sizes of the kernel.
        """
        rows = zip(space, kernel, self.strides, self.before, self.after, self.dilations, strict=True)
        return tuple((n + b + a - d * (k - 1) - 1) // s + 1 for n, k, s, b, a, d in rows)

    def padded(self, before: Sequence[int], after: Sequence[int]) -> Window:
        """Return the window with more padding.

        Args:
            before: Elements to add to the padding before each spatial axis.
            after: Elements to add to the padding behind each spatial axis.
        """
        rows = (self.before, before), (self.after, after)
        grown = [tuple(a + b for a, b in zip(*row, strict=True)) for row in rows]
        return replace(self, before=grown[0], after=grown[1])

    def leaves(self, space: Shape, kernel: Shape) -> bool:
        """Return whether the window extends beyond the input at some position, so that padding is read.

        Args:
            space: Spatial sizes of the input.
            kernel: Spatial sizes of the kernel.
        """
        rows = zip(space, kernel, self.strides, self.before, self.output(space, kernel), self.dilations, strict=True)
        return any(b or (out - 1) * s + d * (k - 1) >= n for n, k, s, b, out, d in rows)

    def patches(self, x: Array, kernel: Shape, pad_value: float) -> Array:
        """Return the part of x under each window position: [N, *space, C] → [N, *output, C, *kernel].

        Args:
            x: The input, channels last.
            kernel: Spatial sizes of the kernel.
            pad_value: Value of padding.
        """
        widths = [(0, 0), *zip(self.before, self.after, strict=True), (0, 0)]
        padded = pad(x, widths, pad_value)
        first, *along, last = padded.strides
        shape = (x.shape[0], *self.output(x.shape[1:-1], kernel), x.shape[-1], *kernel)
        steps = [n * s for n, s in zip(along, self.strides, strict=True)]
        taps = [n * d for n, d in zip(along, self.dilations, strict=True)]
        # one view where sliding_window_view needs slices besides, in a third of its time for small arrays
        return np.lib.stride_tricks.as_strided(padded, shape, (first, *steps, last, *taps), writeable=False)

    def rows(self, taps: int, fill: float, axis: int = 0) -> RowWindow:
        """Return which input rows an output row depends on, for a layer that is computed row by row.

        A row is a position along one spatial axis. The result states how many rows a window has, how far it moves from
        one output row to the next, and how much padding precedes the first row.

        Args:
            taps: Size of the kernel along the axis.
            fill: Value of padding.
            axis: The spatial axis, whose rows are meant; axis 1 + `axis` of a channels-last tensor.
        """
        return RowWindow(1 + axis, self.dilations[axis] * (taps - 1) + 1, self.strides[axis], self.before[axis], fill)

    def of_one_row(self, axis: int = 0) -> Window:
        """Return the window without its padding along a spatial axis, for a layer that is computed row by row.

        In such a computation, the caller provides the padding rows among the input rows.

        Args:
            axis: The spatial axis along which rows are counted.
        """
        before, after = (tuple(0 if a == axis else n for a, n in enumerate(ns)) for ns in (self.before, self.after))
        return replace(self, before=before, after=after)

    def band(self, axis: int, start: int, stop: int, size: int, taps: int) -> tuple[Window, int, int]:
        """Return the window for only some output positions along an axis, and the part of the input that they read.

        Padding that these positions do not reach is removed.

        Args:
            axis: The spatial axis.
            start: The first output position.
            stop: The output position after the last one.
            size: The size of the input along the axis.
            taps: The size of the kernel along the axis.

        Returns:
            The window, the first input index that is read, and the input index after the last one.
        """
        low = start * self.strides[axis] - self.before[axis]
        high = (stop - 1) * self.strides[axis] - self.before[axis] + self.dilations[axis] * (taps - 1) + 1
        before, after = list(self.before), list(self.after)
        before[axis], after[axis] = max(-low, 0), max(high - size, 0)
        return replace(self, before=tuple(before), after=tuple(after)), max(low, 0), min(high, size)

    def cropped(self, axis: int, region: range, size: int, taps: int, dilates: bool) -> tuple[Window, range] | None:
        """Return the window for some output positions along an axis, and the input positions that they read.

        Padding that these positions do not reach is removed. The window's strides count the read positions. A single
        position keeps its stride, for which kernels may be faster.

        Args:
            axis: The spatial axis.
            region: The output positions.
            size: The size of the input along the axis.
            taps: The size of the kernel along the axis.
            dilates: Whether input positions between the taps may be left out; else the read positions are contiguous.

        Returns:
            The window and the input positions; None if all windows lie in the padding.
        """
        stride = self.strides[axis] * region.step if len(region) > 1 else 0
        dilation = self.dilations[axis] if taps > 1 else 0
        step = math.gcd(stride, dilation) or 1 if dilates else 1
        first = region[0] * self.strides[axis] - self.before[axis]
        last = region[-1] * self.strides[axis] - self.before[axis] + dilation * (taps - 1)
        read = overlap_of(range(first, last + 1, step), 0, size)
        if not read:
            return None
        sides = (read[0] - first) // step, (last - read[-1]) // step
        rows = (stride // step or self.strides[axis], *sides, dilation // step or 1)
        olds = (self.strides, self.before, self.after, self.dilations)
        news = [(*old[:axis], row, *old[axis + 1 :]) for old, row in zip(olds, rows, strict=True)]
        return Window(*news), read

    def upright(self) -> Window:
        """Return the window with its last axis moved to the front, so that a row of pixels is processed as a column.

        A 1-D window becomes a 2-D window of width 1.
        """
        axes = ((self.strides, 1), (self.before, 0), (self.after, 0), (self.dilations, 1))
        return Window(*((row[-1], *(row[:-1] or (none,))) for row, none in axes))

    @property
    def sides(self) -> tuple[int, int]:
        """Return the padding before and after the second axis (columns); (0, 0) if there is only one axis."""
        return (self.before[1], self.after[1]) if len(self.before) > 1 else (0, 0)
