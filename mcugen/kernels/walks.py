# SPDX-License-Identifier: Apache-2.0
"""How kernels walk through tensors: strides, loops that are one, and an axis between those before and behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from mcugen.hir.types import Shape
from mcugen.lir.kernel import Params


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
