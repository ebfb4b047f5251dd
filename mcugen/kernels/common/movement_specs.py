# SPDX-License-Identifier: Apache-2.0
"""Paddings and concatenations, as kernels see them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from mcugen.hir.types import TensorType


@dataclass(frozen=True)
class PaddedAxis:
    """One axis of a padding.

    Attributes:
        size: Number of elements before the padding.
        before: Number of elements that the padding adds at the beginning.
        after: Number of elements that the padding adds at the end.
    """

    size: int
    before: int
    after: int

    @property
    def grows(self) -> bool:
        """Return whether the padding adds elements to this axis."""
        return self.before + self.after > 0

    def of_runs(self, length: int) -> PaddedAxis:
        """Return the axis after an inner axis of `length` elements without padding is merged into it.

        Each element is replaced by `length` adjacent elements: all three sizes are multiplied by `length`.
        """
        return PaddedAxis(length * self.size, length * self.before, length * self.after)


@dataclass(frozen=True, eq=False)
class PadSpec:
    """A padding with a constant, as its kernels see it.

    Attributes:
        x: Type of the input.
        before: Number of elements added at the beginning of each axis of x.
        after: Number of elements added at the end of each axis of x.
        value: Real value of the added elements.
    """

    x: TensorType
    before: tuple[int, ...]
    after: tuple[int, ...]
    value: float

    @cached_property
    def axes(self) -> list[PaddedAxis]:
        """Return the padding with as few axes as possible, as one loop for each axis, outermost first.

        An axis without padding is merged into the axis before it: one element of the merged axis stands for all
        adjacent elements of the axis without padding.
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
    """A concatenation of tensors along one axis, as its kernels see it.

    Attributes:
        parts: Types of the inputs, in order.
        y: Type of the output.
        axis: Axis along which the inputs are joined.
    """

    parts: tuple[TensorType, ...]
    y: TensorType
    axis: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Return the shape of y merged to three axes: those before the concatenation axis, this axis, those behind it.

        The first and the last size are products of the sizes of the axes, and are 1 if there are none.
        """
        y = self.y.shape
        return math.prod(y[: self.axis]), y[self.axis], math.prod(y[self.axis + 1 :])
