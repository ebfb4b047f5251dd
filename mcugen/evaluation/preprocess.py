# SPDX-License-Identifier: Apache-2.0
"""Preprocessing of samples before the model sees them, as one line of text: `resize=96x96, gray, scale=1/255`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mcugen.core.errors import UsageError
from mcugen.core.limits import MAX_PIXELS, open_regular
from mcugen.core.packages import optional_package
from mcugen.hir.types import Array

if TYPE_CHECKING:
    from PIL import Image

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of samples, as `--preprocess` gives it.

    Attributes:
        size: Width and height that images are resized to (bilinear).
        mode: Pillow's mode that images are converted to: "L" (gray) or "RGB"; "" to keep it.
        scale: Factor of all samples, which become (sample · scale − mean) / std.
        mean: One number, or one for each channel.
        std: One number, or one for each channel.
        layout: Axis of the channels of arrays: "chw" or "hwc"; "" for the axis with the right length. Images are hwc.
    """

    size: tuple[int, int] | None = None
    mode: str = ""
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: str = ""

    @property
    def changes_numbers(self) -> bool:
        """Return whether samples are scaled or normalized."""
        return (self.scale, self.mean, self.std) != (1.0, (0.0,), (1.0,))

    def numbers(self, place: str, sample: Array, layout: str = "") -> Array:
        """Return (sample · scale − mean) / std as float32, or the given sample if preprocessing does not change it.

        Args:
            place: Names the sample in messages.
            sample: The sample. One that does not hold numbers is returned as given.
            layout: The axis of the channels: "chw" or "hwc"; "" for `self.layout`.
        """
        if not self.changes_numbers or sample.dtype.kind not in "fiub":
            return sample
        mean, std = (self._along(place, key, sample, layout or self.layout) for key in ("mean", "std"))
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused with the sample's name
            return np.asarray((sample.astype(np.float64) * self.scale - mean) / std).astype(np.float32)

    def _along(self, place: str, key: str, sample: Array, layout: str) -> Array:
        """Return `mean` or `std` in a shape that broadcasts to the sample's channels."""
        values: tuple[float, ...] = getattr(self, key)
        if len(values) == 1:
            return np.asarray(values[0])
        axes = [_AXES[layout]] if layout else list(dict.fromkeys(_AXES.values()))
        fitting = [a for a in axes if sample.ndim >= 3 and sample.shape[a] == len(values)]
        if len(fitting) != 1:
            fault = f"{len(values)} for a sample of {sample.shape}"
            remedy = "give one number, or say which axis the channels are: layout=chw or layout=hwc"
            raise UsageError(f"{place}: --preprocess {key} must have a number for each channel", fault, remedy)
        shape = [1] * sample.ndim
        shape[fitting[0]] = len(values)
        return np.asarray(values).reshape(shape)

    def read_image(self, path: Path) -> Array:
        """Return the pixels of a PNG file as uint8 [height, width, channels].

        Raises:
            UsageError: The file cannot be read.
            ToolMissingError: Pillow is not installed.
        """
        with optional_package("report", "an image file"):
            from PIL import Image
        try:
            with open_regular(path) as file, Image.open(file, formats=("PNG",)) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise ValueError(f"{image.width} x {image.height} pixels")
                if image.mode.startswith(("I", "F")):
                    raise ValueError("more than 8 bits a channel")
                return self._pixels(image)
        except OSError as error:
            reason = error.strerror or "no PNG, or a damaged one"
            raise _unreadable(path, reason) from error
        except Exception as error:  # Pillow raises a dozen types for corrupt and hostile files
            raise _unreadable(path, str(error)[:120]) from error

    def _pixels(self, image: Image.Image) -> Array:
        colorless = image.mode in ("1", "L", "LA")
        shown = image.convert(self.mode or ("L" if colorless else "RGB"))
        if self.size:
            from PIL.Image import Resampling

            shown = shown.resize(self.size, Resampling.BILINEAR)
        pixels = np.asarray(shown)
        return pixels.reshape(*pixels.shape[:2], -1)


_AXES = {"chw": -3, "hwc": -1}


def _unreadable(path: Path, reason: str) -> UsageError:
    remedy = f"8-bit PNG of at most {MAX_PIXELS:,} pixels"
    return UsageError(f"{path}: an image must be a readable PNG file", reason, remedy)


def parse_preprocessing(text: str) -> Preprocessing:
    """Return the preprocessing that a line of text describes, such as "resize=96x96, gray, scale=1/255, mean=0.5".

    Raises:
        UsageError: A key or its value is wrong.
    """
    fields: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, equals, value = (t.strip() for t in part.partition("="))
        if key not in _KEYS or bool(equals) != (key not in _MODES):
            known = ", ".join(f"{k}={example}" if k not in _MODES else k for k, (_, example) in _KEYS.items())
            raise UsageError("--preprocess must hold known keys", f"'{part}'", f"keys are {known}")
        read, example = _KEYS[key]
        field, meaning = read(key, value)
        if meaning is None:
            raise UsageError(f"--preprocess: '{key}' must be as in {key}={example}", f"'{value}'")
        if field in fields:
            raise UsageError(f"--preprocess: '{key}' must be given once", f"'{text}'", "leave one out")
        fields[field] = meaning
    return Preprocessing(**fields)


def _read_size(key: str, value: str) -> tuple[str, tuple[int, int] | None]:
    match = re.fullmatch(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})", value)
    size = (int(match[1]), int(match[2])) if match else None
    return "size", size if size and size[0] * size[1] <= MAX_PIXELS else None


def _read_mode(key: str, value: str) -> tuple[str, str | None]:
    return "mode", _MODES[key]


def _read_layout(key: str, value: str) -> tuple[str, str | None]:
    return "layout", value if value in _AXES else None


def _read_scale(key: str, value: str) -> tuple[str, float | None]:
    return "scale", number(value) or None


def _read_numbers(key: str, value: str) -> tuple[str, tuple[float, ...] | None]:
    return key, numbers(value, may_be_zero=key == "mean")


def numbers(text: str, may_be_zero: bool) -> tuple[float, ...] | None:
    """Parse numbers or fractions separated by semicolons.

    Returns:
        The numbers; None if one is not a number, or is zero and `may_be_zero` is False.
    """
    values = [number(part) for part in text.split(";")]
    usable = all(n is not None and (n or may_be_zero) for n in values)
    return tuple(n for n in values if n is not None) if usable else None


def number(text: str) -> float | None:
    """Parse a number or a fraction (such as 0.5 or 1/255); return None if the text is neither."""
    parts = [part.strip() for part in text.split("/")]
    if len(parts) > 2 or not all(_NUMBER.fullmatch(part) for part in parts):
        return None
    values = [float(part) for part in parts]
    if len(values) == 2 and not values[1]:
        return None
    value = values[0] / values[1] if len(values) == 2 else values[0]
    return value if abs(value) < 1e38 else None


_MODES = {"gray": "L", "rgb": "RGB"}

_KEYS: dict[str, tuple[Callable[[str, str], tuple[str, Any]], str]] = {
    "resize": (_read_size, "96x96 (width x height)"),
    "gray": (_read_mode, ""),
    "rgb": (_read_mode, ""),
    "scale": (_read_scale, "1/255"),
    "mean": (_read_numbers, "0.5 or 0.5;0.5;0.5"),
    "std": (_read_numbers, "0.25 or 0.25;0.25;0.25"),
    "layout": (_read_layout, "chw (or hwc)"),
}
