# SPDX-License-Identifier: Apache-2.0
"""Calibration samples as quantization takes them: each once, in an order of their own, without strays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mcugen.hir.types import Array

Sample = Mapping[str, Array]

LEAST_JUDGED = 10
"""Samples among which one may be thought a stray."""

STRAY = 6.0
"""A stray sample reaches so many times as far from 0 as all that are none,"""
MOST_STRAYS = 0.02
"""and at most so many are strays, or one."""


def in_own_order(samples: Sequence[Sample]) -> list[Sample]:
    """By what they hold: what follows from them does not depend on the order in which they came."""
    return [sample for _, sample in numbered(samples)]


def numbered(samples: Sequence[Sample]) -> list[tuple[int, Sample]]:
    """In that order, each with its place in the given one: by energy, so that any few evenly taken are of all kinds."""
    return sorted(enumerate(samples), key=lambda each: (_energy(each[1]), _digest(each[1]), each[0]))


def _energy(sample: Sample) -> float:
    """Of all inputs, of which none is a state."""
    return sum(float(np.square(sample[name], dtype=np.float64).sum()) for name in sorted(sample))


def distinct(samples: Sequence[Sample]) -> list[Sample]:
    """Each sample once, in order: a repeated one tells nothing new."""
    return list({_digest(sample): sample for sample in reversed(samples)}.values())[::-1]


def halves(samples: Sequence[Sample]) -> tuple[list[int], list[int]]:
    """Places of every second sample, and of the others; equal ones are all in one half."""
    kinds: dict[bytes, int] = {}
    numbers = [kinds.setdefault(_digest(sample), len(kinds)) for sample in samples]
    even, odd = ([place for place, number in enumerate(numbers) if number % 2 == rest] for rest in (0, 1))
    return even, odd


def _digest(sample: Sample) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(sample):
        digest.update(np.ascontiguousarray(sample[name]).tobytes())
    return digest.digest()


def without_strays(samples: Sequence[Sample]) -> tuple[list[Sample], list[str]]:
    """The samples but for those few that reach far beyond all others, and a note for each that is left out.

    One broken element would stretch the ranges of all.
    """
    found = dict(_strays(samples)) if len(samples) >= LEAST_JUDGED else {}
    return [sample for index, sample in enumerate(samples) if index not in found], [
        note for _, note in sorted(found.items())
    ]


def _strays(samples: Sequence[Sample]) -> Iterator[tuple[int, str]]:
    for name in samples[0]:
        reach = np.array([_reach(sample[name]) for sample in samples])
        order = np.argsort(-reach, kind="stable")
        for count in range(max(int(MOST_STRAYS * len(samples)), 1), 0, -1):
            last, usual = reach[order[count - 1]], reach[order[count]]
            if usual > 0 and STRAY * usual < last:
                yield from ((int(i), _note(int(i), name, float(reach[i]), float(usual))) for i in order[:count])
                break


def _reach(array: Array) -> float:
    """The largest magnitude of reals; 0 of what counts."""
    if array.dtype.kind != "f" or not array.size:
        return 0.0
    return float(np.abs(array).max())


def _note(index: int, name: str, reach: float, usual: float) -> str:
    what = f"calibration sample {index} is left out: '{name}' reaches {reach:.3g} there, {usual:.3g} in the others"
    return f"{what}; repair or remove it, or give more samples like it"
