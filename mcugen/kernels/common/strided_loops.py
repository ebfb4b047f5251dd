# SPDX-License-Identifier: Apache-2.0
"""How kernels walk through tensors: strides, loops that are one, and an axis between those before and behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from mcugen.hir.types import Shape
from mcugen.lir.kernel import ByAxis, Params
from mcugen.numerics.window import Window


@dataclass(frozen=True, kw_only=True)
class AxisWalk(Params):
    """One axis of a tensor: blocks of entries that lie apart."""

    outer: Annotated[int, "blocks before the axis"]
    depth: Annotated[int, "entries along the axis of x"]
    inner: Annotated[int, "elements from entry to entry"]

    @classmethod
    def of(cls, shape: Shape, axis: int) -> AxisWalk:
        """Along an axis of a dense tensor."""
        return cls(outer=math.prod(shape[:axis]), depth=shape[axis], inner=math.prod(shape[axis + 1 :]))


def numbered(name: str, values: Sequence[int]) -> dict[str, int]:
    """A member an axis: name0, name1, …"""
    return {f"{name}{axis}": value for axis, value in enumerate(values)}


def dense_strides(shape: Shape) -> list[int]:
    """Row-major strides in elements."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def merge_walks(shape: Shape, source: Sequence[int], target: Sequence[int]) -> list[tuple[int, int, int]]:
    """(size, source stride, target stride) per dimension, neighbours merged where one walk covers both."""
    dims: list[tuple[int, int, int]] = []
    for size, xs, ys in zip(shape, source, target, strict=True):
        if size == 1:
            continue
        if dims and dims[-1][1] == size * xs and dims[-1][2] == size * ys:
            dims[-1] = (dims[-1][0] * size, xs, ys)
        else:
            dims.append((size, xs, ys))
    return dims or [(1, 1, 1)]


def pitches(name: str, shape: Shape) -> dict[str, int]:
    """How far apart neighbours along each axis but the last lie in a dense tensor."""
    return numbered(name, [math.prod(shape[axis + 1 :]) for axis in range(len(shape) - 1)])


@dataclass(frozen=True, kw_only=True)
class WindowWalk(ByAxis):
    """A window over any number of axes, channels first; names end with an axis's number. See kernels/window.j2."""

    in_: Annotated[Mapping[str, int], "elements along the axis of x"]
    out: Annotated[Mapping[str, int], "elements along the axis of y"]
    k: Annotated[Mapping[str, int], "taps along the axis"]
    stride: Annotated[Mapping[str, int], "elements from window to window"]
    pad: Annotated[Mapping[str, int], "elements before x that the first window begins at"]
    dilation: Annotated[Mapping[str, int], "elements from tap to tap"]
    x_pitch: Annotated[Mapping[str, int], "elements of x from one index along the axis to the next"]

    @staticmethod
    def of(window: Window, space: Shape, out: Shape, kernel: Shape) -> WindowWalk:
        """From `space` to `out`, the axes behind the channels, with `kernel` taps."""
        return WindowWalk(
            in_=numbered("in", space),
            out=numbered("out", out),
            k=numbered("k", kernel),
            stride=numbered("stride", window.strides),
            pad=numbered("pad", window.before),
            dilation=numbered("dilation", window.dilations),
            x_pitch=pitches("x_pitch", space),
        )


@dataclass(frozen=True, kw_only=True)
class Nests(Params):
    """Loops over what is kept around loops over what is reduced; names begin with k or r and the loop's number."""

    k: Annotated[Mapping[str, int], "of a loop over what is kept: its trips, and how far apart operands' elements lie"]
    r: Annotated[Mapping[str, int], "the same of a loop over what is reduced"]
