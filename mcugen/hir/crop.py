# SPDX-License-Identifier: Apache-2.0
"""Boxes of tensors: the elements that are read, as one arithmetic progression of indices along each axis.

A progression is a Python `range` with a positive step. Intervals, last steps and strides are progressions; a union is
replaced by the smallest progression that contains both sets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcugen.hir.types import Array, Shape

if TYPE_CHECKING:
    from mcugen.hir.operator import Operator

Box = tuple[range, ...]
"""The elements of a tensor whose index along each axis lies in the progression of that axis."""


@dataclass(frozen=True)
class Crop:
    """A way to compute only some elements of an operator's output.

    Attributes:
        op: The operator that computes these elements from the elements in `reads`.
        writes: The elements of the original output that `op` computes; at least the wanted ones.
        reads: For each input, the elements of the original input that `op` reads; None for an absent input, and for an
            input that `op` does not have any more.
        constants: New elements of constant inputs, by index; other constants are cropped to `reads`.
    """

    op: Operator
    writes: Box
    reads: tuple[Box | None, ...]
    constants: Mapping[int, Array] = field(default_factory=dict)


def whole(shape: Shape) -> Box:
    """Return the box of all elements of a tensor of this shape."""
    return tuple(map(range, shape))


def shape_of(box: Box) -> Shape:
    """Return the numbers of indices along each axis."""
    return tuple(map(len, box))


def hull(first: range, second: range) -> range:
    """Return the smallest progression that contains two progressions."""
    if not first or not second:
        return first or second
    step = math.gcd(_distance(first), _distance(second), first[0] - second[0]) or 1
    return range(min(first[0], second[0]), max(first[-1], second[-1]) + 1, step)


def hull_of(indices: Iterable[int]) -> range:
    """Return the smallest progression that contains these indices, in any order; empty if there are none."""
    numbers = sorted(set(indices))
    step = math.gcd(*(n - numbers[0] for n in numbers)) if len(numbers) > 1 else 1
    return range(numbers[0], numbers[-1] + 1, step) if numbers else range(0)


def join(first: Box, second: Box) -> Box:
    """Return the smallest box that contains two boxes of one tensor."""
    if 0 in shape_of(first) or 0 in shape_of(second):
        return second if 0 in shape_of(first) else first
    return tuple(map(hull, first, second))


def contiguous(indices: range) -> range:
    """Return all indices from the first to the last one."""
    return range(indices[0], indices[-1] + 1) if indices else range(0)


def within(inner: range, outer: range) -> range:
    """Return the positions of a progression's indices in another progression that contains it."""
    if not inner:
        return range(0)
    step = max(_distance(inner) // outer.step, 1)
    first = (inner[0] - outer[0]) // outer.step
    return range(first, first + (len(inner) - 1) * step + 1, step)


def overlap_of(progression: range, start: int, stop: int) -> range:
    """Return the indices of a progression from `start` to before `stop`."""
    first = max(-(-(start - progression.start) // progression.step), 0)
    last = min((stop - 1 - progression.start) // progression.step, len(progression) - 1)
    return progression[first : last + 1] if last >= first else range(0)


def shifted(progression: range, distance: int) -> range:
    """Return a progression with `distance` added to each index."""
    return range(progression.start + distance, progression.stop + distance, progression.step)


def broadcast_box(region: Box, shape: Shape) -> Box:
    """Return the elements of an operand that a part of an elementwise result depends on.

    Args:
        region: The part of the result.
        shape: The operand's shape, which broadcasts to that of the result as in numpy.
    """
    aligned = region[len(region) - len(shape) :]
    return tuple(range(1) if size == 1 else axis for axis, size in zip(aligned, shape, strict=True))


def replaced(box: Box, axes: Mapping[int, range] | Sequence[tuple[int, range]]) -> Box:
    """Return a box with other progressions along some axes."""
    new_axes = dict(axes)
    return tuple(new_axes.get(axis, indices) for axis, indices in enumerate(box))


def _distance(progression: range) -> int:
    """Return the step of a progression; 0 if it has only one index."""
    return progression.step if len(progression) > 1 else 0
