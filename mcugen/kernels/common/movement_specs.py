# SPDX-License-Identifier: Apache-2.0
"""Paddings and concatenations, as kernels see them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from mcugen.hir.types import TensorType


@dataclass(frozen=True)
class PaddedAxis:
    """Number of elements along an axis (`size`), and of those that are added `before` and `after` them."""

    size: int
    before: int
    after: int

    @property
    def grows(self) -> bool:
        """Return whether any elements are added."""
        return self.before + self.after > 0

    def of_runs(self, length: int) -> PaddedAxis:
        """Return the axis with each element replaced by a run of elements."""
        return PaddedAxis(length * self.size, length * self.before, length * self.after)


@dataclass(frozen=True, eq=False)
class PadSpec:
    """A padding with a constant: elements `before` and `after`, by axis, that are `value`."""

    x: TensorType
    before: tuple[int, ...]
    after: tuple[int, ...]
    value: float

    @cached_property
    def axes(self) -> list[PaddedAxis]:
        """Return as few axes as possible: elements of an axis without padding are one run of the axis before it."""
        merged = list[PaddedAxis]()
        for axis in map(PaddedAxis, self.x.shape, self.before, self.after):
            if merged and not axis.grows:
                merged.append(merged.pop().of_runs(axis.size))
            elif axis.grows or axis.size > 1:
                merged.append(axis)
        return merged


@dataclass(frozen=True, eq=False)
class ConcatSpec:
    """Parts joined along an axis."""

    parts: tuple[TensorType, ...]
    y: TensorType
    axis: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Return the sizes of y before the axis, along it, and behind it."""
        y = self.y.shape
        return math.prod(y[: self.axis]), y[self.axis], math.prod(y[self.axis + 1 :])
