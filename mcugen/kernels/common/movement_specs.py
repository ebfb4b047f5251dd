# SPDX-License-Identifier: Apache-2.0
"""Paddings and concatenations, as kernels see them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from mcugen.hir.types import TensorType


@dataclass(frozen=True)
class PaddedAxis:
    """One axis of a padding: its number of elements (`size`), and the numbers added `before` and `after` them."""

    size: int
    before: int
    after: int

    @property
    def grows(self) -> bool:
        """Return whether the padding adds elements to this axis."""
        return self.before + self.after > 0

    def of_runs(self, length: int) -> PaddedAxis:
        """Return the axis with each element replaced by a run of `length` adjacent elements.

        All three sizes are multiplied by `length`.
        """
        return PaddedAxis(length * self.size, length * self.before, length * self.after)


@dataclass(frozen=True, eq=False)
class PadSpec:
    """A padding with a constant: x gets `before` and `after` elements along each axis, all of them `value`."""

    x: TensorType
    before: tuple[int, ...]
    after: tuple[int, ...]
    value: float

    @cached_property
    def axes(self) -> list[PaddedAxis]:
        """Return the padding with the fewest axes, outermost first.

        An axis without padding is merged into the axis before it: each element of that axis then is a run of adjacent
        elements.
        """
        merged = list[PaddedAxis]()
        for axis in map(PaddedAxis, self.x.shape, self.before, self.after):
            if merged and not axis.grows:
                merged.append(merged.pop().of_runs(axis.size))
            elif axis.grows or axis.size > 1:
                merged.append(axis)
        return merged


@dataclass(frozen=True, eq=False)
class ConcatSpec:
    """A concatenation: tensors (`parts`) joined along one axis to y."""

    parts: tuple[TensorType, ...]
    y: TensorType
    axis: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Return three element counts of y: before the concatenation axis, along it, and behind it.

        The first and the last are products of the sizes of the axes before and behind the axis.
        """
        y = self.y.shape
        return math.prod(y[: self.axis]), y[self.axis], math.prod(y[self.axis + 1 :])
