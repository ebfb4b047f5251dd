# SPDX-License-Identifier: Apache-2.0
"""Windows that slide over space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mcugen.hir.operator import RowWindow
from mcugen.hir.types import Array, Shape


def both(values: Sequence[int], missing: int) -> tuple[int, int]:
    """Numbers for the vertical and the horizontal axis, of which one-dimensional operators lack the first."""
    return (missing, values[0]) if len(values) == 1 else (values[0], values[1])


def pad(x: Array, widths: Sequence[tuple[int, int]], fill: float) -> Array:
    """What np.pad gives with a constant, in a tenth of its time for small arrays; `x` itself where nothing is added."""
    if not any(map(any, widths)):
        return x
    result = np.full([n + before + after for n, (before, after) in zip(x.shape, widths, strict=True)], fill, x.dtype)
    result[tuple(slice(before, before + n) for n, (before, _) in zip(x.shape, widths, strict=True))] = x
    return result


@dataclass(frozen=True)
class Window:
    """How a kernel slides over the spatial axes: shared by convolution and pooling. One entry an axis."""

    strides: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilations: tuple[int, ...]

    def __str__(self) -> str:
        rows = (("stride", self.strides), ("pad", (*self.before, *self.after)), ("dilation", self.dilations))
        return "(" + " ".join(f"{name} {'x'.join(map(str, row))}" for name, row in rows) + ")"

    def output(self, space: Shape, kernel: Shape) -> Shape:
        """Output sizes (rounded down)."""
        rows = zip(space, kernel, self.strides, self.before, self.after, self.dilations, strict=True)
        return tuple((n + b + a - d * (k - 1) - 1) // s + 1 for n, k, s, b, a, d in rows)

    def padded(self, before: Sequence[int], after: Sequence[int]) -> Window:
        """With more padding."""
        rows = (self.before, before), (self.after, after)
        grown = [tuple(a + b for a, b in zip(*row, strict=True)) for row in rows]
        return replace(self, before=grown[0], after=grown[1])

    def leaves(self, space: Shape, kernel: Shape) -> bool:
        """Whether it reaches beyond the input somewhere."""
        rows = zip(space, kernel, self.strides, self.before, self.output(space, kernel), self.dilations, strict=True)
        return any(b or (out - 1) * s + d * (k - 1) >= n for n, k, s, b, out, d in rows)

    def patches(self, x: Array, kernel: Shape, pad_value: float) -> Array:
        """[N, *space, C] → [N, *output, C, *kernel], padded with `pad_value`."""
        widths = [(0, 0), *zip(self.before, self.after, strict=True), (0, 0)]
        padded = pad(x, widths, pad_value)
        first, *along, last = padded.strides
        shape = (x.shape[0], *self.output(x.shape[1:-1], kernel), x.shape[-1], *kernel)
        steps = [n * s for n, s in zip(along, self.strides, strict=True)]
        taps = [n * d for n, d in zip(along, self.dilations, strict=True)]
        # one view where sliding_window_view needs slices besides, in a third of its time for small arrays
        return np.lib.stride_tricks.as_strided(padded, shape, (first, *steps, last, *taps), writeable=False)

    def rows(self, taps: int, fill: float, axis: int = 0) -> RowWindow:
        """What one position on an axis reads, with as many taps, of a channels-last tensor."""
        return RowWindow(1 + axis, self.dilations[axis] * (taps - 1) + 1, self.strides[axis], self.before[axis], fill)

    def of_one_row(self, axis: int = 0) -> Window:
        """The window of one position on an axis, whose padding is rows like others."""
        before, after = (tuple(0 if a == axis else n for a, n in enumerate(ns)) for ns in (self.before, self.after))
        return replace(self, before=before, after=after)

    def band(self, axis: int, start: int, stop: int, size: int, taps: int) -> tuple[Window, int, int]:
        """For the positions on an axis from `start` to before `stop`: the window, and what of the input it reads.

        `size` is that of the input, `taps` that of the kernel; padding that these positions do not reach is gone.
        """
        low = start * self.strides[axis] - self.before[axis]
        high = (stop - 1) * self.strides[axis] - self.before[axis] + self.dilations[axis] * (taps - 1) + 1
        before, after = list(self.before), list(self.after)
        before[axis], after[axis] = max(-low, 0), max(high - size, 0)
        return replace(self, before=tuple(before), after=tuple(after)), max(low, 0), min(high, size)

    def upright(self) -> Window:
        """Of a line: with its axis first, and another one behind it."""
        axes = ((self.strides, 1), (self.before, 0), (self.after, 0), (self.dilations, 1))
        return Window(*((row[-1], *(row[:-1] or (none,))) for row, none in axes))

    @property
    def sides(self) -> tuple[int, int]:
        """The padding of the second axis, if there is one."""
        return (self.before[1], self.after[1]) if len(self.before) > 1 else (0, 0)
