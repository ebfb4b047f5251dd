# SPDX-License-Identifier: Apache-2.0
"""Recognition of matrices of a Fourier transform: rows of cosines and sines times a window, in the orders in use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mcugen.hir.types import Array

MIN_POINTS = 16
"""Least number of columns of a recognized matrix: shorter transforms gain nothing."""

MATRIX_TOLERANCE = 1e-5
"""Largest error of an element of a recognized matrix, relative to the largest one: -100 dB, as float32 rounds."""

_PROBED_ROWS = 9
"""Number of rows by which an order of rows is refused at first, as most matrices are no transforms."""


@dataclass(frozen=True, eq=False)
class FourierRows:
    """The rows of a matrix, each a sign times the real or imaginary part of a bin of a Fourier transform.

    Attributes:
        places: Place of each row in a spectrum [bins, 2] of real and imaginary parts.
        signs: 1 or -1 for each row.
    """

    places: Array
    signs: Array


@dataclass(frozen=True, eq=False)
class FourierMatrices:
    """Matrices that multiply the same frames, and equal rows of one windowed Fourier transform.

    Attributes:
        length: Number of points of the transform.
        window: Factor of each sample of a frame, as many as the matrices have columns.
        rows: What the rows of each matrix are.
    """

    length: int
    window: Array
    rows: tuple[FourierRows, ...]


@dataclass(frozen=True, eq=False)
class _Block:
    """Rows of a matrix that are one part, real or imaginary, of successive bins."""

    matrix: int
    rows: slice
    part: int
    first: int
    values: Array

    def terms(self, length: int, at: slice | Array = slice(None)) -> Array:
        """Return cos or -sin of the angles of some rows, as a transform of this length has them."""
        bins = (self.first + np.arange(len(self.values)))[at, None]
        turns = bins * np.arange(self.values.shape[1]) % length
        angles = 2 * np.pi * turns / length
        return np.cos(angles) if self.part == 0 else -np.sin(angles)

    def is_of(self, length: int) -> bool:
        """Return whether some rows are parts of a transform of this length, whatever the window is."""
        at = np.unique(np.linspace(0, len(self.values) - 1, _PROBED_ROWS).astype(int))
        values, terms = self.values[at], self.terms(length, at)
        weight = (terms * terms).sum(0)
        known = weight > len(at) / 8
        window = (values * terms).sum(0)[known] / weight[known]
        limit = MATRIX_TOLERANCE * np.abs(self.values).max()
        return bool(np.abs(values[:, known] - window * terms[:, known]).max(initial=0) <= limit)


def find_fourier_matrices(matrices: Sequence[Array]) -> FourierMatrices | None:
    """Return the transform of which all rows of the matrices are parts; None if they are something else.

    Each element is checked (MATRIX_TOLERANCE).

    Args:
        matrices: Float matrices [rows, samples of a frame] that multiply the same frames.
    """
    candidates = [_blocks_of(number, matrix.astype(np.float64)) for number, matrix in enumerate(matrices)]
    parts = [pair for pair in candidates if pair is not None]
    if not parts or len(parts) < len(candidates) or len({length for length, _ in parts}) > 1:
        return None
    length, blocks = parts[0][0], [block for _, group in parts for block in group]
    fit = _fit(length, blocks)
    if fit is None:
        return None
    window, signs = fit
    rows = []
    for number, matrix in enumerate(matrices):
        places, factors = np.zeros(len(matrix), np.int64), np.ones(len(matrix))
        for block, sign in zip(blocks, signs, strict=True):
            if block.matrix == number:
                places[block.rows] = 2 * (block.first + np.arange(len(block.values))) + block.part
                factors[block.rows] = sign
        rows.append(FourierRows(places, factors))
    return FourierMatrices(length, window, tuple(rows))


def _blocks_of(number: int, matrix: Array) -> tuple[int, list[_Block]] | None:
    """Return the length of the transform, and the blocks of a matrix; None if it is no transform."""
    count, samples = matrix.shape
    if samples < MIN_POINTS or count < 2 or not np.abs(matrix).max() > 0 or not np.isfinite(matrix).all():
        return None
    for rows in _orders(count):
        for first in (0, 1):
            blocks = [_Block(number, at, part, first, matrix[at]) for at, part in rows]
            for length in _lengths(len(blocks[0].values), first, samples):
                if all(block.is_of(length) for block in blocks):
                    return length, blocks
    return None


def _orders(count: int) -> Iterator[list[tuple[slice, int]]]:
    """Yield the orders of rows: parts alone, one after the other, and alternating."""
    yield from ([(slice(None), part)] for part in (0, 1))
    if count % 2 == 0:
        for part in (0, 1):
            yield [(slice(count // 2), part), (slice(count // 2, None), 1 - part)]
            yield [(slice(0, None, 2), part), (slice(1, None, 2), 1 - part)]


def _lengths(bins: int, first: int, samples: int) -> list[int]:
    """Return the lengths of a transform that may have these bins, and frames of so many samples."""
    last = first + bins - 1
    power = 1 << (samples - 1).bit_length()
    lengths = dict.fromkeys((2 * last, 2 * last + 1, 2 * last + 2, samples, power))
    return [length for length in lengths if length >= samples and length >= 2 * last]


def _fit(length: int, blocks: Sequence[_Block]) -> tuple[Array, list[int]] | None:
    """Return the window, and the sign of each block, that give all elements; None if there are none."""
    terms = [block.terms(length) for block in blocks]
    products = [(block.values * t).sum(0) for block, t in zip(blocks, terms, strict=True)]
    weights = [(t * t).sum(0) for t in terms]
    signs = [1 if float(products[0] @ product) >= 0 else -1 for product in products]
    weight = np.sum(weights, 0)
    window = np.where(weight > 0, np.sum([s * p for s, p in zip(signs, products, strict=True)], 0), 0)
    window = window / np.where(weight > 0, weight, 1)
    limit = MATRIX_TOLERANCE * max(np.abs(block.values).max() for block in blocks)
    for block, sign, t in zip(blocks, signs, terms, strict=True):
        if np.abs(block.values - sign * window * t).max() > limit:
            return None
    return window, signs
