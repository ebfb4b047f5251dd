# SPDX-License-Identifier: Apache-2.0
"""Geometry of a convolution as its kernels see it: always two spatial axes, channels last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from mcugen.hir.types import Shape
from mcugen.lir.kernel import Params
from mcugen.numerics.window import Window


class ConvGeometry(Params):
    """Kernel parameters with the geometry of a window that slides over rows and columns of channels-last tensors.

    x is the input, y the output. A one-dimensional window slides over images of one row.
    """

    batch: Annotated[int, "images"]
    in_channels: Annotated[int, "channels of a pixel of x"]
    out_channels: Annotated[int, "channels of a pixel of y"]
    in_height: Annotated[int, "rows of x"]
    in_width: Annotated[int, "pixels of a row of x"]
    out_height: Annotated[int, "rows of y"]
    out_width: Annotated[int, "pixels of a row of y"]
    kernel_height: Annotated[int, "rows of the window"]
    kernel_width: Annotated[int, "columns of the window"]
    stride_height: Annotated[int, "rows from window to window"]
    stride_width: Annotated[int, "pixels from window to window"]
    dilation_height: Annotated[int, "rows from tap to tap"]
    dilation_width: Annotated[int, "pixels from tap to tap"]
    padding_top: Annotated[int, "rows above x that the first window begins at"]
    padding_left: Annotated[int, "pixels before a row that the first window begins at"]


_BY_AXIS = {
    "height": ("in_height", "out_height", "kernel_height", "stride_height", "dilation_height", "padding_top"),
    "width": ("in_width", "out_width", "kernel_width", "stride_width", "dilation_width", "padding_left"),
}
"""Fields of ConvShape by axis: sizes of input, output and kernel, stride, dilation, and padding before the input."""


@dataclass(frozen=True)
class ConvShape:
    """Geometry of a convolution, channels last; a one-dimensional convolution has height 1.

    Heights are in rows, widths in pixels. x is the input, y the output.

    Attributes:
        batch: Number of images.
        in_height: Rows of x.
        in_width: Pixels of a row of x.
        in_channels: Channels of a pixel of x.
        out_height: Rows of y.
        out_width: Pixels of a row of y.
        out_channels: Channels of a pixel of y.
        kernel_height: Rows of the window.
        kernel_width: Columns of the window.
        stride_height: Rows of x from window to window.
        stride_width: Pixels of x from window to window.
        dilation_height: Rows of x from tap to tap; 1 means adjacent.
        dilation_width: Pixels of x from tap to tap; 1 means adjacent.
        padding_top: Rows of padding above x.
        padding_left: Pixels of padding before a row of x.
        groups: Groups of channels.
        pixel_channels: Channels of a pixel in memory, of both x and y, if the convolution covers only some of them;
            None if it covers all.
    """

    batch: int
    in_height: int
    in_width: int
    in_channels: int
    out_height: int
    out_width: int
    out_channels: int
    kernel_height: int
    kernel_width: int
    stride_height: int
    stride_width: int
    dilation_height: int
    dilation_width: int
    padding_top: int
    padding_left: int
    groups: int
    pixel_channels: int | None = None

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
        """Return the geometry of a fully connected layer, seen as a 1×1 convolution over one row of `rows` pixels.

        Args:
            rows: Rows of x and y (the batch of vectors).
            depth: Elements of a row of x.
            channels: Elements of a row of y.
        """
        return ConvShape(1, 1, rows, depth, 1, rows, channels, 1, 1, 1, 1, 1, 1, 0, 0, 1)

    @property
    def geometry(self) -> ConvGeometry:
        """Return all fields but `groups` and `pixel_channels` as kernel parameters, under the same names."""
        return ConvGeometry(**{member.name: getattr(self, member.name) for member in ConvGeometry.declared()})

    def along(self, axis: str) -> tuple[int, int, int, int, int, int]:
        """Return the geometry along one spatial axis.

        Args:
            axis: "height" or "width".

        Returns:
            Input size, output size, kernel size, stride, dilation, and padding before the input.
        """
        size, out, taps, stride, dilation, pad = (getattr(self, name) for name in _BY_AXIS[axis])
        return size, out, taps, stride, dilation, pad

    def as_row(self) -> ConvShape:
        """Return the geometry with height and width exchanged if all images are one pixel wide; else unchanged.

        Each image then is a single row. The elements keep their order in memory.
        """
        if self.in_width != 1 or self.out_width != 1 or self.kernel_width != 1 or self.padding_left:
            return self
        return self.transposed()

    def as_few_rows(self) -> ConvShape:
        """Return the geometry of a one-dimensional convolution as one row, or as a few rows without dilation.

        If the stride is 1, and the sizes of input, output and padding are multiples of the dilation d, the row of n
        pixels is seen as an image of n / d rows of d pixels, in the same memory order. Taps that are d pixels apart in
        the row are then adjacent in a column, so that the window is a column without dilation. Other one-dimensional
        geometries become one row. Two-dimensional geometries are returned unchanged.
        """
        row, between = self.as_row(), self.as_row().dilation_width
        one_row = row.in_height == row.out_height == row.kernel_height == row.stride_width == 1 and not row.padding_top
        if (
            not one_row
            or between == 1
            or row.in_width % between
            or row.out_width % between
            or row.padding_left % between
        ):
            return row
        names = ("in_width", "out_width", "padding_left")
        sizes = {name: getattr(row, name) // between for name in names}
        columns = replace(row, **sizes, dilation_width=1).transposed()
        return replace(columns, in_width=between, out_width=between)

    def transposed(self) -> ConvShape:
        """Return the geometry of the same convolution on transposed images: height and width exchange their roles.

        Tensors keep their element order in memory if one of the two axes has length 1 in all of them.
        """
        rows, columns = _BY_AXIS["height"], _BY_AXIS["width"]
        swapped = {**dict(zip(rows, columns, strict=True)), **dict(zip(columns, rows, strict=True))}
        return replace(self, **{name: getattr(self, other) for name, other in swapped.items()})

    @property
    def pixel(self) -> int:
        """Return the distance in elements between adjacent pixels of x in memory (also of y, if as large).

        It is larger than `in_channels` if the convolution covers only some of the channels of a pixel.
        """
        return self.pixel_channels or self.in_channels

    @property
    def is_depthwise(self) -> bool:
        """Return whether the convolution is depthwise: each channel has one filter of its own."""
        return self.groups > 1 and self.groups == self.in_channels == self.out_channels

    @property
    def is_inside(self) -> bool:
        """Return whether every window is inside the input, so that no padding is needed."""
        right = self.stride_width * (self.out_width - 1) + (self.kernel_width - 1) * self.dilation_width + 1
        below = self.stride_height * (self.out_height - 1) + (self.kernel_height - 1) * self.dilation_height + 1
        return not (self.padding_top or self.padding_left) and right <= self.in_width and below <= self.in_height

    @property
    def is_one_window(self) -> bool:
        """Return whether there is a single window that covers all of x, as in a fully connected layer.

        True only for one image with one row or one column, and one group of channels.
        """
        sizes = (self.in_height, self.in_width) == (
            self.kernel_height,
            self.kernel_width,
        ) and self.batch == self.groups == 1
        return sizes and 1 in (self.in_height, self.in_width) and self.is_inside

    @property
    def reads_pixels(self) -> bool:
        """Return whether each output pixel depends on exactly one input pixel (1×1 window, no padding).

        A kernel can then read the pixels of x where they are, without an im2col copy.
        """
        same = (self.in_height - 1) // self.stride_height + 1 == self.out_height and (
            self.in_width - 1
        ) // self.stride_width + 1 == self.out_width
        return self.kernel_height == self.kernel_width == 1 and not (self.padding_top or self.padding_left) and same
