# SPDX-License-Identifier: Apache-2.0
"""Significant bits of floating-point numbers: which sums and products in float32 are exact."""

from __future__ import annotations

import numpy as np

from mcugen.hir.types import Array

MAX_SHORT_FACTOR_BITS = 12
"""Largest number of significant bits of a float factor that counts as short.

The product of a short factor and an integer below 2¹² is exact in float32.
"""


def has_digits(numbers: Array, digits: int) -> Array:
    """Return, for each number, whether at most `digits` significant bits represent it exactly."""
    mantissas = np.ldexp(np.frexp(numbers)[0], digits)
    return np.asarray(mantissas == np.rint(mantissas))


def is_float32(numbers: Array) -> Array:
    """Return, for each float64 number, whether float32 represents it exactly."""
    with np.errstate(over="ignore"):
        return np.asarray(numbers.astype(np.float32) == numbers)


def fits_float32(numbers: Array) -> bool:
    """Return whether all numbers are 0 or within the range of normal float32 numbers."""
    magnitudes, limits = np.abs(numbers), np.finfo(np.float32)
    return bool(((magnitudes == 0) | ((magnitudes >= limits.tiny) & (magnitudes <= limits.max))).all())
