# SPDX-License-Identifier: Apache-2.0
"""Image pipelines: from a camera's pixels to a model's input.

Colors are computed in integers. A table finally maps each of the 256 color values to an element of the input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mcugen.core.errors import UsageError
from mcugen.evaluation.preprocess import Preprocessing
from mcugen.hir.types import Array

COLOR_CHANNELS = {"gray": 1, "rgb": 3, "bgr": 3}
"""Number of channels of the model's input, by color order ("gray", "rgb", "bgr")."""

MAX_IMAGE_SIDE = 1 << 13
"""Largest width and height of an image in pixels, so that positions in 1/65536 of a pixel fit in 32 bits."""

POSITION_FRACTION_BITS = 11
"""Fraction bits of a position between two pixels: the product of two fractions and a color fits in 31 bits."""


@dataclass(frozen=True)
class PixelFormat:
    """A pixel format of cameras.

    Attributes:
        nbytes: Bytes of a pixel.
        decode: Converts bytes [height, width, nbytes] to red, green and blue, or gray, as int32 [height, width,
            channels].
        is_gray: Whether pixels have only a gray value.
    """

    nbytes: int
    decode: Callable[[Array], Array]
    is_gray: bool = False


def _rgb565(high: int, low: int) -> Callable[[Array], Array]:
    """Five, six and five bits become eight by repeating their upper ones."""

    def decode(pixels: Array) -> Array:
        word = (pixels[..., high] << 8) | pixels[..., low]
        red, green, blue = word >> 11, (word >> 5) & 63, word & 31
        return np.stack([(red << 3) | (red >> 2), (green << 2) | (green >> 4), (blue << 3) | (blue >> 2)], -1)

    return decode


def _yuv422(luma: int, first: int, second: int) -> Callable[[Array], Array]:
    """ITU-R BT.601 in its full range, as JPEG has it; two pixels share their colors. Offsets in a group of 4 bytes."""

    def decode(pixels: Array) -> Array:
        height, width = pixels.shape[:2]
        groups = pixels.reshape(height, width // 2, 4)
        y = groups[..., [luma, luma + 2]].reshape(height, width)
        u, v = (np.repeat(groups[..., k], 2, axis=1) - 128 for k in (first, second))
        red = y + ((91881 * v + 32768) >> 16)
        green = y - ((22554 * u + 46802 * v + 32768) >> 16)
        blue = y + ((116130 * u + 32768) >> 16)
        return np.asarray(np.clip(np.stack([red, green, blue], -1), 0, 255))

    return decode


PIXEL_FORMATS = {
    "rgb565": PixelFormat(2, _rgb565(1, 0)),
    "rgb565be": PixelFormat(2, _rgb565(0, 1)),
    "rgb888": PixelFormat(3, lambda pixels: pixels),
    "bgr888": PixelFormat(3, lambda pixels: pixels[..., ::-1]),
    "yuyv": PixelFormat(2, _yuv422(0, 1, 3)),
    "uyvy": PixelFormat(2, _yuv422(1, 0, 2)),
    "gray": PixelFormat(1, lambda pixels: pixels, is_gray=True),
}
"""Pixel formats by name, such as "rgb888" or "gray".

rgb565 has the low byte first, rgb565be the high byte; yuyv and uyvy are YUV 4:2:2.
"""

_LUMA = {"yuyv": 0, "uyvy": 1}


@dataclass(frozen=True)
class Picture:
    """Size and memory layout of the image that a model reads.

    Attributes:
        height: Rows.
        width: Columns.
        channels: Channels.
        distances: Strides of rows, columns and channels, in elements.
    """

    height: int
    width: int
    channels: int
    distances: tuple[int, int, int]


@dataclass(frozen=True)
class ImageStages:
    """An image pipeline: pixels are cropped, resized to the model's size, and become (color · scale − mean) / std.

    Attributes:
        format: Name of the pixel format.
        crop: "center" (the largest part with the aspect ratio of the input), (width, height) in the middle, or (width,
            height, left, top); None takes the whole image.
        size: Width and height of the input; None takes them from the input's shape.
        method: Resizing method: "bilinear" or "nearest".
        colors: Color order of the input; "" for that of the pixel format.
        scale: Factor of colors.
        mean: Number that is subtracted from scaled colors: one for all channels, or one for each channel.
        std: Number by which the differences are divided: one for all channels, or one for each channel.
        layout: Order of the input's axes: "chw" or "hwc"; "" takes the one that fits its shape.
    """

    format: str
    crop: str | tuple[int, ...] | None = None
    size: tuple[int, ...] | None = None
    method: str = "bilinear"
    colors: str = ""
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: str = ""

    raw_dtype = np.dtype(np.uint8)
    template = "pipeline/image.c.j2"

    @staticmethod
    def state_bytes_of(element: int) -> int:
        """Return 0: an image pipeline keeps no data between calls.

        `element` is the size of an input element in bytes.
        """
        return 0

    def table_bytes_of(self, element: int) -> int:
        """Return the bytes of the table of color values in flash, for input elements of `element` bytes."""
        return 256 * element * max(len(self.mean), len(self.std))

    @property
    def channels(self) -> int:
        """Return the number of channels that the model reads."""
        return COLOR_CHANNELS[self._colors]

    @property
    def _colors(self) -> str:
        return self.colors or ("gray" if PIXEL_FORMATS[self.format].is_gray else "rgb")

    def picture(self, shape: Sequence[int]) -> Picture:
        """Return size and strides of the image in an input of this shape.

        Raises:
            UsageError: The shape is not that of an image with the pipeline's number of channels.
        """
        sides = tuple(shape)[-3:] if len(shape) >= 3 else ()
        fits = [layout for layout in ("chw", "hwc") if sides and sides[_CHANNEL_AXIS[layout]] == self.channels]
        layouts = [layout for layout in fits if self.layout in ("", layout)]
        if self.size is not None:
            width, height = self.size
            layout = next((x for x in layouts if _sides(sides, x) == (height, width)), self.layout or "hwc")
        elif layouts:
            layout = layouts[0]
            height, width = _sides(sides, layout)
        else:
            height, width, layout = 0, 0, ""
        known = self.channels == 1 or bool(layouts)
        if math.prod(shape) != height * width * self.channels or not known or max(height, width) > MAX_IMAGE_SIDE:
            fault = f"an input of {tuple(shape)} for {self.channels} channel{'s' * (self.channels > 1)}"
            remedy = "say gray or rgb, and resize=WIDTHxHEIGHT, as the model was trained"
            raise UsageError("an image pipeline must give the type and shape of the model's input", fault, remedy)
        plane = height * width
        distances = (width, 1, plane) if layout == "chw" else (width * self.channels, self.channels, 1)
        return Picture(height, width, self.channels, distances)

    def require(self, shape: Sequence[int]) -> None:
        """Check that the pipeline can compute an input of this shape.

        Raises:
            UsageError: The shape is no image, or `mean` or `std` has numbers for another number of channels.
        """
        self.picture(shape)
        for key, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.channels):
                fault = f"{len(values)} for {self.channels}"
                raise UsageError(f"--input-pipeline: {key} must have one number, or one a channel", fault)

    def reals(self, place: str, raw: Array, shape: Sequence[int]) -> Array:
        """Convert a raw image to the model's float32 input.

        Args:
            place: Name of the image for messages.
            raw: The image, uint8 [height, width, bytes of a pixel].
            shape: Shape of the input.
        """
        return self.rendered(place, raw, shape, self.table())

    def rendered(self, place: str, raw: Array, shape: Sequence[int], table: Array) -> Array:
        """Convert a raw image to an input of any element type.

        Args:
            place: Name of the image for messages.
            raw: The image, uint8 [height, width, bytes of a pixel].
            shape: Shape of the input.
            table: The input element for each of the 256 color values, [1, 256] for all channels or [channels, 256].
        """
        picture = self.picture(shape)
        colors = self._resized(self._cut(place, self.pixels(place, raw), picture), picture)
        channel = np.arange(picture.channels) % len(table)
        out = np.empty(math.prod(shape), table.dtype)
        rows, columns, planes = np.indices(colors.shape)
        down, right, across = picture.distances
        out[rows * down + columns * right + planes * across] = table[channel, colors]
        return out.reshape(tuple(shape))

    def table(self) -> Array:
        """Return the input element (color · scale − mean) / std for each color value, as float32.

        The shape is [1, 256] if all channels have the same `mean` and `std`, else [channels, 256].
        """
        count = max(len(self.mean), len(self.std))
        steps = Preprocessing(scale=self.scale, mean=self.mean, std=self.std)
        values = np.broadcast_to(np.arange(256, dtype=np.uint8)[:, None, None], (256, 1, count))
        return np.ascontiguousarray(steps.numbers("--input-pipeline", values, "hwc")[:, 0].T.astype(np.float32))

    def pixels(self, place: str, raw: Array) -> Array:
        """Return a raw image as bytes [height, width, bytes of a pixel].

        Args:
            place: Name of the image for messages.
            raw: The image in any supported form, such as [height, width] words of a 16-bit pixel format.
        """
        nbytes = PIXEL_FORMATS[self.format].nbytes
        if raw.dtype == np.uint16 and nbytes == 2 and raw.ndim == 2:  # RGB565 as numbers
            order = ">u2" if self.format == "rgb565be" else "<u2"
            raw = raw.astype(order).view(np.uint8).reshape(*raw.shape, 2)
        image = raw[..., None] if raw.ndim == 2 and nbytes == 1 else raw
        if image.ndim == 3 and image.shape[-1] != nbytes and image.shape[0] == nbytes and nbytes != 2:
            image = np.moveaxis(image, 0, -1)
        height, width = image.shape[:2] if image.ndim == 3 else (0, 0)
        sound = (
            image.ndim == 3
            and image.shape[-1] == nbytes
            and 0 < height <= MAX_IMAGE_SIDE
            and 0 < width <= MAX_IMAGE_SIDE
        )
        if image.dtype != np.uint8 or not sound or (width % 2 and self.format in _LUMA):
            remedy = f"uint8 of [height, width, {nbytes}], of even width for YUV, each side at most {MAX_IMAGE_SIDE:,}"
            raise UsageError(f"{place} must be a raw image ({self.format})", f"{raw.dtype} of {raw.shape}", remedy)
        return np.ascontiguousarray(image)

    def stored(self, raw: Array) -> Array:
        """Return a raw image as the array of bytes that the generated C code takes."""
        return self.pixels("", raw)

    def min_raw_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the smallest shape, [height, width, bytes of a pixel], of a raw image for a model input of `shape`."""
        picture = self.picture(shape)
        width, height = picture.width, picture.height
        if isinstance(self.crop, tuple):
            left, top = self.crop[2:] if len(self.crop) > 2 else (0, 0)
            width, height = self.crop[0] + left, self.crop[1] + top
        return height, width + width % 2, PIXEL_FORMATS[self.format].nbytes

    def _cut(self, place: str, pixels: Array, picture: Picture) -> Array:
        """Return the cropped image as int32 [height, width, channels]."""
        height, width = pixels.shape[:2]
        left, top, right, bottom = 0, 0, width, height
        if self.crop == "center":
            wide = min(width, max(1, height * picture.width // picture.height))
            high = min(height, max(1, width * picture.height // picture.width))
            left, top = (width - wide) // 2, (height - high) // 2
            right, bottom = left + wide, top + high
        elif self.crop is not None:
            wide, high = int(self.crop[0]), int(self.crop[1])
            left, top = (
                (int(n) for n in self.crop[2:]) if len(self.crop) > 2 else ((width - wide) // 2, (height - high) // 2)
            )
            right, bottom = left + wide, top + high
        if left < 0 or top < 0 or right > width or bottom > height:
            raise UsageError(f"{place} must be at least as large as the part that is cut out", f"{width} x {height}")
        return self._decoded(pixels)[top:bottom, left:right]

    def _decoded(self, pixels: Array) -> Array:
        """Return the image in the colors that the model reads."""
        wide = pixels.astype(np.int32)
        pixel_format = PIXEL_FORMATS[self.format]
        if self._colors == "gray" and self.format in _LUMA:
            return wide[..., _LUMA[self.format], None]
        colors = pixel_format.decode(wide)
        if pixel_format.is_gray:
            return np.repeat(colors, self.channels, axis=-1)
        if self._colors == "gray":  # the weights of ITU-R BT.601
            red, green, blue = np.moveaxis(colors, -1, 0)
            return np.asarray((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16)[..., None]
        return colors[..., ::-1] if self._colors == "bgr" else colors

    def _resized(self, colors: Array, picture: Picture) -> Array:
        (height, width), one = colors.shape[:2], 1 << POSITION_FRACTION_BITS
        if self.method == "nearest":
            return colors[nearest_positions(height, picture.height)][:, nearest_positions(width, picture.width)]
        top, bottom, v = bilinear_positions(height, picture.height)
        left, right, u = bilinear_positions(width, picture.width)
        u, v = u[None, :, None], v[:, None, None]
        above = colors[top][:, left] * (one - u) + colors[top][:, right] * u
        below = colors[bottom][:, left] * (one - u) + colors[bottom][:, right] * u
        return np.asarray(
            (above * (one - v) + below * v + (1 << (2 * POSITION_FRACTION_BITS - 1))) >> (2 * POSITION_FRACTION_BITS)
        )

    def context(self, shape: Sequence[int]) -> dict[str, object]:
        """Return the variables of the pipeline's C template, by name, for a model input of this shape."""
        picture = self.picture(shape)
        crop = self.crop if isinstance(self.crop, tuple) else ()
        return {
            "format": self.format,
            "pixel_bytes": PIXEL_FORMATS[self.format].nbytes,
            "colors": self._colors,
            "picture": picture,
            "is_even": self.format in _LUMA,
            "centered": self.crop == "center",
            "crop": crop,
            "bilinear": self.method == "bilinear",
            "most": MAX_IMAGE_SIDE,
            "fraction": POSITION_FRACTION_BITS,
        }


_CHANNEL_AXIS = {"chw": 0, "hwc": 2}


def _sides(image: tuple[int, ...], layout: str) -> tuple[int, int]:
    """Height and width."""
    return (image[1], image[2]) if layout == "chw" else (image[0], image[1])


def bilinear_positions(size: int, count: int) -> tuple[Array, Array, Array]:
    """Return the source pixels of each resized pixel, for bilinear resizing along an axis.

    The center of resized pixel o is at (o + 1/2) · size / count − 1/2 in the source.

    Args:
        size: Number of source pixels.
        count: Number of resized pixels.

    Returns:
        For each resized pixel: the source pixel before its center, the one after it, and the fraction between both in
        units of 2^-POSITION_FRACTION_BITS.
    """
    step = (size << 16) // count
    at = np.clip(np.arange(count, dtype=np.int64) * step + (step >> 1) - 32768, 0, (size - 1) << 16)
    low = at >> 16
    return (
        low,
        np.minimum(low + 1, size - 1),
        ((at >> (16 - POSITION_FRACTION_BITS)) & ((1 << POSITION_FRACTION_BITS) - 1)).astype(np.int32),
    )


def nearest_positions(size: int, count: int) -> Array:
    """Return the index of the source pixel of each resized pixel, for nearest-neighbor resizing along an axis.

    Args:
        size: Number of source pixels.
        count: Number of resized pixels.
    """
    step = (size << 16) // count
    return (np.arange(count, dtype=np.int64) * step + (step >> 1)) >> 16
