# SPDX-License-Identifier: Apache-2.0
"""The numpy specification of what a monitor's C code observes: codes, bins and sums, equal to the last bit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mcugen.codegen.monitor import MONITOR_BINS, MONITOR_PARTS, ObservedElements
from mcugen.hir.types import Array, DType

Codes = npt.NDArray[np.int64]
"""Codes of a tensor's elements: integers of at most 17 bits."""
MAX_CODE = 32767
"""Largest code of a float or of an integer of 32 bits, which are limited."""
NO_EDGE = 1 << 17
"""Edge that no code exceeds, for histograms with fewer bins."""


def codes_of(array: Array, dtype: DType, unit: int) -> Codes:
    """Return the codes of elements, as generated C computes them.

    Args:
        array: The elements.
        dtype: Their type.
        unit: Binary exponent of the unit of codes.
    """
    if dtype is DType.FLOAT32:
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32).astype(np.int64)
        shift = 150 + unit - ((bits >> 23) & 0xFF)
        mantissa = (bits & 0x7FFFFF) | 0x800000
        size = np.where(shift < 9, MAX_CODE, np.where(shift > 23, 0, mantissa >> np.clip(shift, 0, 31)))
        return np.where(bits >> 31, -size, size)
    return np.clip(array.astype(np.int64) >> unit, -MAX_CODE - 1, MAX_CODE) if unit else array.astype(np.int64)


def unit_of(dtype: DType, largest: float) -> int:
    """Return the binary exponent of the unit of codes, by which four times the largest magnitude is no limit.

    Args:
        dtype: Type of the elements.
        largest: Largest magnitude of an element in the samples.
    """
    if dtype.nbytes < 4:
        return 1 if dtype is DType.UINT16 else 0
    unit = int(np.ceil(np.log2(4 * max(largest, 2.0**-100) / MAX_CODE)))
    return int(np.clip(unit, -110, 110)) if dtype is DType.FLOAT32 else max(unit, 0)


def score_order(array: Array, dtype: DType) -> Codes:
    """Return integers with the order of scores, by which C finds the largest one."""
    if dtype is not DType.FLOAT32:
        return array.astype(np.int64)
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32).astype(np.int64)
    return np.where(bits >> 31, -(bits & 0x7FFFFFFF), bits)


def bins_of(codes: Codes, edges: tuple[int, ...]) -> Codes:
    """Return the number of elements in each bin of a histogram."""
    return np.bincount(np.searchsorted(edges, codes, side="left").reshape(-1), minlength=MONITOR_BINS)


def balanced_edges(codes: Codes) -> tuple[int, ...]:
    """Return edges of bins with about equally many elements; a value is never divided.

    The bin with the most elements is divided at its median until there are MONITOR_BINS, or each bin has one value.
    """
    values, counts = np.unique(codes, return_counts=True)
    total = np.concatenate([[0], np.cumsum(counts)])
    ranges = [(0, len(values))]
    while len(ranges) < MONITOR_BINS:
        wide = [r for r in ranges if r[1] - r[0] > 1]
        if not wide:
            break
        first, last = max(wide, key=lambda r: int(total[r[1]] - total[r[0]]))
        half = (total[first] + total[last]) / 2
        middle = first + 1 + int(np.argmin(np.abs(total[first + 1 : last] - half)))
        ranges.remove((first, last))
        ranges += [(first, middle), (middle, last)]
    edges = sorted(int(values[first - 1]) for first, _ in ranges if first)
    return (*edges, *[NO_EDGE] * (MONITOR_BINS - 1 - len(edges)))


@dataclass(frozen=True)
class Observation:
    """Sums over elements of a tensor, as mcugen_monitor_tensor has them.

    Attributes:
        squares: Sum of squared distances from the center.
        sums: Sums of distances from the center, for each part.
        steps: Sum of absolute differences of neighbors.
        count: Number of elements.
        clipped: Number of elements at or beyond the ends of the range.
        low: Smallest code.
        high: Largest code.
        bins: Number of elements in each bin.
    """

    squares: int
    sums: tuple[int, ...]
    steps: int
    count: int
    clipped: int
    low: int
    high: int
    bins: tuple[int, ...]


@dataclass(frozen=True)
class Gauge:
    """The settings by which elements of a tensor are observed; see mcugen.codegen.monitor.MonitoredTensor.

    Attributes:
        center: Code from which distances are summed.
        edges: Edges of the bins.
        clip_low: A code at or below this one counts as clipped.
        clip_high: A code at or above this one counts as clipped.
        elements: The elements that runs observe.
    """

    center: int
    edges: tuple[int, ...]
    clip_low: int
    clip_high: int
    elements: ObservedElements

    def observe(self, codes: Codes, run: int = 0) -> Observation:
        """Return the observation of one run.

        Args:
            codes: Codes of all elements of the tensor.
            run: Number of runs before this one, which chooses the observed elements.
        """
        at = self.elements
        samples = codes.reshape(at.rows, at.row_elements)
        positions = np.arange(run % at.stride, at.extent, at.stride)
        near = np.where(positions + 1 < at.extent, positions + 1, np.maximum(positions - 1, 0))
        near = near if at.extent > 1 else positions
        begins = np.arange(at.parts)[:, None] * at.part_elements
        seen, neighbors = (samples[:, begins + places * at.distance] for places in (positions, near))
        sums = (seen - self.center).sum(axis=(0, 2))
        return Observation(
            int(np.square(seen - self.center).sum()),
            (*map(int, sums), *[0] * (MONITOR_PARTS - at.parts)),
            int(np.abs(seen - neighbors).sum()),
            seen.size,
            int(((seen <= self.clip_low) | (seen >= self.clip_high)).sum()),
            int(seen.min(initial=2**31 - 1)),
            int(seen.max(initial=-(2**31))),
            tuple(map(int, bins_of(seen, self.edges))),
        )
