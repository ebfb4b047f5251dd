# SPDX-License-Identifier: Apache-2.0
"""Statistics of a frame of samples, in integers, equal bit by bit to the C code of templates/pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

import numpy as np

from mcugen.hir.types import Array

_LENGTH = 2.0**-23  # samples count in 1/2^15, results have eight bits more
_RATIO = 2.0**-16

_WIDEST = 1 << 12
"""Deviations are shifted right until none is larger: the sum of fourth powers of 2^13 samples fits 63 bits."""


@dataclass(frozen=True)
class SampleMoments:
    """Sums, extremes and central moments of int16 samples.

    Scaled deviations are the differences between 16 times the samples and 16 times their mean, divided by a power of
    two where the sums of their powers would overflow.

    Attributes:
        count: Number of samples.
        total: Sum of the samples.
        squares: Sum of the squares of the samples.
        low: Smallest sample.
        high: Largest sample.
        second: Sum of the squares of the scaled deviations.
        third: Sum of the third powers of the scaled deviations.
        fourth: Sum of the fourth powers of the scaled deviations.
    """

    count: int
    total: int
    squares: int
    low: int
    high: int
    second: int
    third: int
    fourth: int

    @staticmethod
    def of(samples: Array) -> SampleMoments:
        """Return the moments of int16 samples [n]."""
        x = samples.astype(np.int64)
        n, total = len(x), int(x.sum())
        away = 16 * x - _quotient(16 * total, n)
        widest = int(np.abs(away).max())
        shift = 0
        while widest >> shift > _WIDEST:
            shift += 1
        d = np.sign(away) * (np.abs(away) >> shift)
        sums = [int((d**power).sum()) for power in (2, 3, 4)]
        return SampleMoments(n, total, int((x * x).sum()), int(x.min()), int(x.max()), *sums)

    @property
    def rms(self) -> int:
        """Return the root mean square of the samples, in units of 1/256 of a sample."""
        return isqrt((self.squares << 16) // self.count)

    @property
    def peak(self) -> int:
        """Return the largest magnitude of a sample."""
        return max(-self.low, self.high)

    @property
    def variance(self) -> int:
        """Return 16 times the mean square of the scaled deviations (`second` / `count`), rounded down to an integer."""
        return (self.second << 4) // self.count


def _quotient(a: int, b: int) -> int:
    """Return the quotient truncated toward zero, as in C."""
    return a // b if a >= 0 else -(-a // b)


def _deviation(m: SampleMoments) -> int:
    spread = (m.count * m.squares - m.total * m.total) // m.count
    return isqrt((spread << 16) // m.count)


def _crest(m: SampleMoments) -> int:
    return (m.peak << 24) // m.rms if m.rms else 0


def _skewness(m: SampleMoments) -> int:
    if not m.variance:
        return 0
    root = isqrt(m.variance << 12)  # in 1/256
    return _quotient(_quotient(_quotient(m.third, m.count) << 12, m.variance) << 16, root)


def _kurtosis(m: SampleMoments) -> int:
    if not m.variance:
        return 0
    return ((((m.fourth // m.count) << 15) // m.variance) << 9) // m.variance


@dataclass(frozen=True)
class Statistic:
    """A statistic of a frame of samples, such as its root mean square.

    Attributes:
        unit: Real value of one unit of the integer result.
        value: Computes the integer result.
    """

    unit: float
    value: Callable[[SampleMoments], int]


STATISTICS = {
    "mean": Statistic(_LENGTH, lambda m: _quotient(m.total << 8, m.count)),
    "rms": Statistic(_LENGTH, lambda m: m.rms),
    "std": Statistic(_LENGTH, _deviation),
    "peak": Statistic(_LENGTH, lambda m: m.peak << 8),
    "range": Statistic(_LENGTH, lambda m: (m.high - m.low) << 8),
    "crest": Statistic(_RATIO, _crest),
    "skewness": Statistic(_RATIO, _skewness),
    "kurtosis": Statistic(_RATIO, _kurtosis),
}
"""Statistics of a frame by the name that the keyword `stats` takes.

For the first five, samples are numbers from -1 to 1. crest is peak / rms. kurtosis is 3 for a normal distribution.
"""


def statistics(samples: Array, names: tuple[str, ...]) -> list[int]:
    """Return the named statistics of int16 samples [n], as integers in the units of STATISTICS."""
    moments = SampleMoments.of(samples)
    return [STATISTICS[name].value(moments) for name in names]
