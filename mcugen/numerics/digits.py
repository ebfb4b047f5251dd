# SPDX-License-Identifier: Apache-2.0
"""Binary digits of floating-point numbers: which sums and products of them are exact."""

from __future__ import annotations

import numpy as np

from mcugen.hir.types import Array

FEW_DIGITS = 12
"""Binary digits of a factor: a product of whole numbers below 2¹² with it is exact in float32."""


def has_digits(numbers: Array, digits: int) -> Array:
    """Return where numbers have at most `digits` significant binary digits."""
    mantissas = np.ldexp(np.frexp(numbers)[0], digits)
    return np.asarray(mantissas == np.rint(mantissas))


def is_float32(numbers: Array) -> Array:
    """Return where float64 numbers are float32 numbers."""
    with np.errstate(over="ignore"):
        return np.asarray(numbers.astype(np.float32) == numbers)


def fits_float32(numbers: Array) -> bool:
    """Return whether all numbers are 0 or in the range of normal float32 numbers."""
    magnitudes, limits = np.abs(numbers), np.finfo(np.float32)
    return bool(((magnitudes == 0) | ((magnitudes >= limits.tiny) & (magnitudes <= limits.max))).all())
