# SPDX-License-Identifier: Apache-2.0
"""Geometry of a convolution as its kernels see it: always two spatial axes, channels last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from mcugen.hir.types import Shape
from mcugen.lir.kernel import Params
from mcugen.numerics.window import Window


@dataclass(frozen=True, kw_only=True)
class ConvGeometry(Params):
    """Parameters of a window that slides over rows and columns, channels last.

    With one spatial axis there is one row.
    """

    batch: Annotated[int, "images"]
    in_c: Annotated[int, "channels of a pixel of x"]
    out_c: Annotated[int, "channels of a pixel of y"]
    in_h: Annotated[int, "rows of x"]
    in_w: Annotated[int, "pixels of a row of x"]
    out_h: Annotated[int, "rows of y"]
    out_w: Annotated[int, "pixels of a row of y"]
    k_h: Annotated[int, "rows of the window"]
    k_w: Annotated[int, "columns of the window"]
    stride_h: Annotated[int, "rows from window to window"]
    stride_w: Annotated[int, "pixels from window to window"]
    dilation_h: Annotated[int, "rows from tap to tap"]
    dilation_w: Annotated[int, "pixels from tap to tap"]
    pad_h: Annotated[int, "rows above x that the first window begins at"]
    pad_w: Annotated[int, "pixels before a row that the first window begins at"]


_BY_AXIS = ("in", "out", "k", "stride", "dilation", "pad")


@dataclass(frozen=True)
class ConvShape:
    """Geometry of a convolution in elements, channels last; a one-dimensional one has height 1.

    `pad_h` and `pad_w` are the padding above and to the left.
    """

    batch: int
    in_h: int
    in_w: int
    in_c: int
    out_h: int
    out_w: int
    out_c: int
    k_h: int
    k_w: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    pad_h: int
    pad_w: int
    groups: int
    whole_c: int | None = None
    """Channels of a pixel in memory, of both x and y, if the convolution covers only some of them."""

    @staticmethod
    def of_layer(x: Shape, w: Shape, y: Shape, window: Window, groups: int) -> ConvShape:
        """Return the geometry of a convolution, channels last, from the shapes of its tensors.

        Args:
            x: Shape of the input, [N, H, W, C] or [N, W, C].
            w: Shape of the weights, [O, H, W, C / groups] or [O, W, C / groups].
            y: Shape of the output, [N, H, W, O] or [N, W, O].
            window: Strides, dilations and padding.
            groups: Groups of channels.
        """
        flat = len(x) == 3

        def both(values: Sequence[int], missing: int) -> tuple[int, int]:
            return (missing, values[0]) if flat else (values[0], values[1])

        return ConvShape(
            x[0],
            *(*both(x[1:-1], 1), x[-1]),
            *(*both(y[1:-1], 1), y[-1]),
            *both(w[1:-1], 1),
            *both(window.strides, 1),
            *both(window.dilations, 1),
            *both(window.before, 0),
            groups,
        )

    @staticmethod
    def of_rows(rows: int, depth: int, channels: int) -> ConvShape:
        """Return the geometry of a fully connected layer: a 1×1 convolution over one row of `rows` pixels.

        Args:
            rows: Rows of x and y.
            depth: Elements of a row of x.
            channels: Elements of a row of y.
        """
        return ConvShape(1, 1, rows, depth, 1, rows, channels, 1, 1, 1, 1, 1, 1, 0, 0, 1)

    @property
    def geometry(self) -> ConvGeometry:
        """Return the geometry as parameters of a kernel."""
        return ConvGeometry(**{member.name: getattr(self, member.name) for member in ConvGeometry.declared()})

    def along(self, axis: str) -> tuple[int, int, int, int, int, int]:
        """Return the sizes of input, output and kernel, stride, dilation and padding along the axis "h" or "w"."""
        size, out, taps, stride, dilation, pad = (getattr(self, f"{name}_{axis}") for name in _BY_AXIS)
        return size, out, taps, stride, dilation, pad

    def as_row(self) -> ConvShape:
        """Return the geometry of an image one pixel wide as one row; elements keep their order.

        Other geometries are returned unchanged.
        """
        if self.in_w != 1 or self.out_w != 1 or self.k_w != 1 or self.pad_w:
            return self
        return self.turned()

    def as_few_rows(self) -> ConvShape:
        """Return the geometry as one row if it is one.

        In a dilated row whose length, output and padding are multiples of the dilation, the pixels between two taps
        become columns, so that the dilation disappears.
        """
        row, between = self.as_row(), self.as_row().dilation_w
        one_row = row.in_h == row.out_h == row.k_h == row.stride_w == 1 and not row.pad_h
        if not one_row or between == 1 or row.in_w % between or row.out_w % between or row.pad_w % between:
            return row
        sizes = {f"{name}_w": getattr(row, f"{name}_w") // between for name in ("in", "out", "pad")}
        columns = replace(row, **sizes, dilation_w=1).turned()
        return replace(columns, in_w=between, out_w=between)

    def turned(self) -> ConvShape:
        """Return the geometry with its axes exchanged.

        Elements keep their order where one axis has length 1 everywhere.
        """
        axes = {f"{name}_{new}": getattr(self, f"{name}_{old}") for name in _BY_AXIS for new, old in ("hw", "wh")}
        return replace(self, **axes)

    @property
    def pixel(self) -> int:
        """Return the elements from pixel to pixel of x, and of y where both have the same number of channels."""
        return self.whole_c or self.in_c

    @property
    def is_depthwise(self) -> bool:
        """Return whether each channel has one filter of its own."""
        return self.groups > 1 and self.groups == self.in_c == self.out_c

    @property
    def is_inside(self) -> bool:
        """Return whether no window leaves the input."""
        right = self.stride_w * (self.out_w - 1) + (self.k_w - 1) * self.dilation_w + 1
        below = self.stride_h * (self.out_h - 1) + (self.k_h - 1) * self.dilation_h + 1
        return not (self.pad_h or self.pad_w) and right <= self.in_w and below <= self.in_h

    @property
    def is_one_window(self) -> bool:
        """Return whether one window covers all of a one-line input, as in one step of a convolution over time."""
        sizes = (self.in_h, self.in_w) == (self.k_h, self.k_w) and self.batch == self.groups == 1
        return sizes and 1 in (self.in_h, self.in_w) and self.is_inside

    @property
    def reads_pixels(self) -> bool:
        """Return whether each output pixel reads exactly one input pixel (1×1, no padding).

        Im2col is not needed then.
        """
        same = (self.in_h - 1) // self.stride_h + 1 == self.out_h and (self.in_w - 1) // self.stride_w + 1 == self.out_w
        return self.k_h == self.k_w == 1 and not (self.pad_h or self.pad_w) and same
