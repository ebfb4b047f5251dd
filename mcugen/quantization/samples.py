# SPDX-License-Identifier: Apache-2.0
"""Preparation of calibration samples: without duplicates and outliers, in an order that depends on their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mcugen.hir.types import Array

Sample = Mapping[str, Array]
"""The inputs of one sample: an array by the name of each model input."""

MIN_OUTLIER_SAMPLES = 10
"""Smallest number of calibration samples for which outliers are searched and left out."""

OUTLIER_RATIO = 6.0
"""Smallest ratio of a sample's largest magnitude to that of the other samples for which the sample is an outlier."""
MAX_OUTLIER_SHARE = 0.02
"""Largest share of all samples that may count as outliers. One sample may count as an outlier whatever the share."""


def sort_samples(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples sorted by content, so that results do not depend on the order in which the user gives them."""
    return [sample for _, sample in number_samples(samples)]


def number_samples(samples: Sequence[Sample]) -> list[tuple[int, Sample]]:
    """Sort the samples by their content, and return each with its index in the given order.

    Samples are sorted by energy (sum of squares), so that samples at even distances represent all.
    """
    return sorted(enumerate(samples), key=lambda each: (_energy(each[1]), _digest(each[1]), each[0]))


def _energy(sample: Sample) -> float:
    """Return the sum of squares of all inputs."""
    return sum(float(np.square(sample[name], dtype=np.float64).sum()) for name in sorted(sample))


def distinct_samples(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples in order, without repetitions of equal samples."""
    return list({_digest(sample): sample for sample in reversed(samples)}.values())[::-1]


def split_in_halves(samples: Sequence[Sample]) -> tuple[list[int], list[int]]:
    """Split samples into two halves of alternating samples, and return the indices of each half.

    Equal samples are in the same half.
    """
    kinds: dict[bytes, int] = {}
    numbers = [kinds.setdefault(_digest(sample), len(kinds)) for sample in samples]
    even, odd = ([place for place, number in enumerate(numbers) if number % 2 == parity] for parity in (0, 1))
    return even, odd


def _digest(sample: Sample) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(sample):
        digest.update(np.ascontiguousarray(sample[name]).tobytes())
    return digest.digest()


def without_outliers(samples: Sequence[Sample]) -> tuple[list[Sample], list[str]]:
    """Return the samples without outliers, and a note for the user about each outlier.

    An outlier has a value whose magnitude exceeds that of all other samples by OUTLIER_RATIO. One broken element would
    widen the range of the whole tensor.
    """
    outliers = dict(_outliers(samples)) if len(samples) >= MIN_OUTLIER_SAMPLES else {}
    return [sample for index, sample in enumerate(samples) if index not in outliers], [
        note for _, note in sorted(outliers.items())
    ]


def _outliers(samples: Sequence[Sample]) -> Iterator[tuple[int, str]]:
    for name in samples[0]:
        reach = np.array([_reach(sample[name]) for sample in samples])
        order = np.argsort(-reach, kind="stable")
        for count in range(max(int(MAX_OUTLIER_SHARE * len(samples)), 1), 0, -1):
            last, usual = reach[order[count - 1]], reach[order[count]]
            if usual > 0 and OUTLIER_RATIO * usual < last:
                yield from ((int(i), _note(int(i), name, float(reach[i]), float(usual))) for i in order[:count])
                break


def _reach(array: Array) -> float:
    """Return the largest magnitude of an array of reals; 0 for an array of integers."""
    if array.dtype.kind != "f" or not array.size:
        return 0.0
    return float(np.abs(array).max())


def _note(index: int, name: str, reach: float, usual: float) -> str:
    what = f"calibration sample {index} is left out: '{name}' reaches {reach:.3g} there, {usual:.3g} in the others"
    return f"{what}; repair or remove it, or give more samples like it"
