# SPDX-License-Identifier: Apache-2.0
"""Parser of a pipeline's text.

Examples: `image=rgb565, crop=center, rgb, scale=1/255`, or `sound=16000, frame=640/320, mel=40:20:4000`. Keys are
separated by commas or line ends; `#` begins a comment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from mcugen.core.errors import UsageError, shortened
from mcugen.core.limits import open_regular
from mcugen.evaluation.preprocess import number, numbers, parse_preprocessing
from mcugen.pipelines.image import COLOR_CHANNELS, PIXEL_FORMATS, ImageStages
from mcugen.pipelines.spectrum import BANDS, LOGARITHMS, WINDOWS, Bands
from mcugen.pipelines.statistics import STATISTICS
from mcugen.pipelines.stream import StreamStages

Stages = ImageStages | StreamStages
"""A parsed pipeline: ImageStages for images, or StreamStages for a stream of samples."""
MAX_PIPELINE_CHARACTERS = 4096
"""Largest number of characters of a pipeline's text."""

PREPROCESS = "preprocess"
"""Keyword in the text of an image pipeline. It is replaced by the steps of the option `--preprocess`."""

MAX_FRAME_SAMPLES = 1 << 13
"""Largest number of samples in a frame, so that sums of squares and of fourth powers fit in 64 bits."""


@dataclass(frozen=True)
class Keyword:
    """A keyword in the text of an input pipeline, and how to read its value.

    Attributes:
        field: Name of the attribute of ImageStages or StreamStages that the keyword sets.
        read: Parses the keyword's value.
        example: Example of a value for messages; "" if the keyword has no value.
    """

    field: str
    read: Callable[[str], Any]
    example: str = ""


def read_pipeline(text: str) -> str:
    """Return a pipeline's text on one line without comments; the text may also name a file that contains it.

    Raises:
        UsageError: The file cannot be read.
    """
    return ", ".join(_parts(text if "=" in text else _file_text(text)))


def takes_preprocessing(text: str) -> bool:
    """Return whether a pipeline's text, or the file that it names, contains the keyword `preprocess`."""
    return PREPROCESS in _parts(text if "=" in text else _file_text(text))


def with_preprocessing(text: str, preprocess: str) -> str:
    """Return a pipeline's text with the keyword `preprocess` replaced by the steps of `--preprocess`.

    Each step has the same name in both texts, and gives the same results, bit by bit.

    Args:
        text: The text of the pipeline.
        preprocess: The value of `--preprocess`.

    Raises:
        UsageError: The keyword does not occur, or a step has no equivalent in pipelines.
    """
    parse_preprocessing(preprocess)
    steps = _parts(preprocess)
    parts = _parts(text if "=" in text else _file_text(text))
    if PREPROCESS not in parts:
        remedy = f"leave it out, or write `{PREPROCESS}` in the pipeline for it: 'image=rgb888, {PREPROCESS}'"
        raise UsageError("samples are prepared by --input-pipeline alone", "--preprocess", remedy)
    for step in steps:
        if step.partition("=")[0].strip() not in _SAME:
            rule = "each step of --preprocess must have a form in C with the same bits"
            remedy = f"leave it out there, and say {step} in the pipeline: it makes samples as the firmware does"
            raise UsageError(rule, f"'{shortened(step, 80)}', which smooths by Pillow's rules", remedy)
    at = parts.index(PREPROCESS)
    if not any(part.partition("=")[0].strip() == "image" for part in parts[:at]):
        rule = f"'{PREPROCESS}' of --input-pipeline must stand behind image=FORMAT"
        remedy = "write scale, mean and std of features in the pipeline itself"
        raise UsageError(rule, f"'{shortened(parts[0], 80)}'", remedy)
    return ", ".join([*parts[:at], *steps, *parts[at + 1 :]])


def _file_text(name: str) -> str:
    path = Path(name)
    try:
        with TextIOWrapper(open_regular(path), encoding="utf-8") as file:
            return file.read(MAX_PIPELINE_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "no text"
        remedy = "give a text as in --input-pipeline 'image=rgb565, rgb, scale=1/255', or a file with one"
        raise UsageError(f"--input-pipeline {path}: the file must be readable", str(reason), remedy) from error


def parse_pipeline(text: str) -> Stages:
    """Parse the text of an input pipeline.

    Raises:
        UsageError: The text is wrong; the message names the keyword.
    """
    parts = _parts(text)
    source = parts[0].partition("=")[0].strip() if parts else ""
    if source not in _SOURCES:
        first_part = f"'{shortened(parts[0], 80)}'" if parts else "nothing"
        raise UsageError(
            "an input pipeline must begin with the format of the raw data", first_part, f"one of: {', '.join(_SOURCES)}"
        )
    keys, make = _SOURCES[source]
    return make(**_fields(parts, keys))


def _parts(text: str) -> list[str]:
    """Return the parts between commas and line ends, without comments."""
    if len(text) > MAX_PIPELINE_CHARACTERS:
        raise UsageError(
            f"an input pipeline must have at most {MAX_PIPELINE_CHARACTERS:,} characters", f"{len(text):,}"
        )
    lines = (line.partition("#")[0] for line in text.splitlines())
    return [part for line in lines for part in map(str.strip, line.split(",")) if part]


def _fields(parts: list[str], keys: Mapping[str, Keyword]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for part in parts:
        word, equals, value = (t.strip() for t in part.partition("="))
        known = ", ".join(f"{name}={key.example}" if key.example else name for name, key in keys.items())
        if word == PREPROCESS:
            rule = f"--input-pipeline: '{PREPROCESS}' must be given once, with --preprocess"
            raise UsageError(rule, "no steps of --preprocess", "give --preprocess, or write its steps here")
        if word not in keys or bool(equals) != bool(keys[word].example):
            raise UsageError("--input-pipeline must hold known keys", f"'{shortened(part, 80)}'", f"keys are {known}")
        key = keys[word]
        meaning = key.read(value or word)
        if meaning is None:
            rule = f"--input-pipeline: '{word}' must be as in {word}={key.example}"
            raise UsageError(rule, f"'{shortened(value, 80)}'")
        if key.field in fields:
            raise UsageError(
                f"--input-pipeline: '{word}' must be given once", f"'{shortened(part, 80)}'", "leave one out"
            )
        fields[key.field] = meaning
    return fields


def _one_of(*allowed: str) -> Callable[[str], str | None]:
    return lambda value: value if value in allowed else None


def _integers(pattern: str, max_value: int) -> Callable[[str], tuple[int, ...] | None]:
    """Positive numbers where the pattern has `N`; what stands in brackets may be absent."""
    form = re.compile(pattern.replace("N", "([1-9][0-9]{0,6})"))

    def read(value: str) -> tuple[int, ...] | None:
        match = form.fullmatch(value)
        values = tuple(int(n) for n in match.groups() if n and n.isdecimal()) if match else (max_value + 1,)
        return values if max(values) <= max_value else None

    return read


def _one(pattern: str, max_value: int) -> Callable[[str], int | None]:
    read = _integers(pattern, max_value)
    return lambda value: (read(value) or (None,))[0]


def _crop(value: str) -> tuple[int, ...] | str | None:
    if value == "center":
        return value
    match = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})(?:\+(\d{1,5})\+(\d{1,5}))?", value, re.ASCII)
    return tuple(int(n) for n in match.groups() if n is not None) if match else None


def _scale(value: str) -> float | None:
    return number(value) or None


def _floor(value: str) -> float | None:
    floor = number(value)
    return floor if floor is not None and 1e-30 <= floor <= 1e6 else None


def _bands(kind: str) -> Callable[[str], Bands | None]:
    def read(value: str) -> Bands | None:
        parts = [number(part) for part in value.split(":")]
        if len(parts) != 3 or None in parts:
            return None
        count, low, high = (float(p or 0) for p in parts)
        return (
            Bands(kind, int(count), low, high)
            if count == int(count) and 1 <= count <= 256 and 0 <= low < high
            else None
        )

    return read


def _statistics(value: str) -> tuple[str, ...] | None:
    names = tuple(name.strip() for name in value.split(";"))
    return names if len(set(names)) == len(names) and set(names) <= STATISTICS.keys() else None


_NUMBERS = {
    "scale": Keyword("scale", _scale, "1/255"),
    "mean": Keyword("mean", lambda value: numbers(value, may_be_zero=True), "0.5 or 0.5;0.5;0.5"),
    "std": Keyword("std", lambda value: numbers(value, may_be_zero=False), "0.25 or 0.25;0.25;0.25"),
}

_IMAGE = {
    "image": Keyword("format", _one_of(*PIXEL_FORMATS), " or ".join(PIXEL_FORMATS)),
    "crop": Keyword("crop", _crop, "center or 240x240 or 240x240+40+0 (width x height + left + top)"),
    "resize": Keyword("size", _integers("NxN", 1 << 13), "96x96 (width x height)"),
    **dict.fromkeys(("nearest", "bilinear"), Keyword("method", _one_of("nearest", "bilinear"))),
    **dict.fromkeys(COLOR_CHANNELS, Keyword("colors", _one_of(*COLOR_CHANNELS))),
    **_NUMBERS,
    "layout": Keyword("layout", _one_of("chw", "hwc"), "chw (or hwc)"),
}

_SAME = ("gray", "rgb", "scale", "mean", "std", "layout")
"""Words that say the same to the bit here and in `--preprocess`: not `resize`, which smooths there."""

_STREAM = {
    "frame": Keyword(
        "frame", _integers("N/N", MAX_FRAME_SAMPLES), "640/320 (samples of a frame / from frame to frame)"
    ),
    "window": Keyword("window", _one_of(*WINDOWS), " or ".join(WINDOWS)),
    "fft": Keyword("fft", _one("N", 1 << 13), "1024"),
    "spectrum": Keyword("spectrum", _one_of("power", "magnitude"), "power or magnitude"),
    **{kind: Keyword("bands", _bands(kind), "40:20:4000 (bands : Hz : Hz)") for kind in BANDS},
    "log": Keyword("log", _one_of(*LOGARITHMS), " or ".join(LOGARITHMS)),
    "floor": Keyword("floor", _floor, "1e-10"),
    "dct": Keyword("dct", _one("N", 256), "10"),
    "stats": Keyword("stats", _statistics, ";".join(STATISTICS)),
    "stack": Keyword("stack", _integers("N(?:/N)?", 4096), "49 or 49/10 (frames of a window / from window to window)"),
    "features-first": Keyword("features_first", bool),
    **_NUMBERS,
}

_SOURCES: dict[str, tuple[Mapping[str, Keyword], Callable[..., Stages]]] = {
    "image": (_IMAGE, ImageStages),
    "sound": ({"sound": Keyword("source", _integers("N", 1 << 20), "16000 (Hz)"), **_STREAM}, StreamStages),
    "vibration": (
        {"vibration": Keyword("source", _integers("N(?:xN)?", 1 << 20), "3200 or 3200x3 (Hz x axes)"), **_STREAM},
        StreamStages,
    ),
}
