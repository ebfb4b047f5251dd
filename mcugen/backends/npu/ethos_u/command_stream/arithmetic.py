# SPDX-License-Identifier: Apache-2.0
"""Scaling and rounding of accumulators.

Source: Arm's register descriptions name the modes; the formulas are those by which Vela folds constants, and they give
TensorFlow Lite's results (double rounding) and TOSA's (natural rounding).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mcugen.backends.npu.ethos_u.command_stream.operations import FixedPointScale, RoundingMode

Array = npt.NDArray[Any]
"""An array of integers of 64 bits."""
EXACT_LIMIT = 1 << 62
"""Products below it are computed in 64 bits; larger ones in integers of any size."""


def scale(values: Array, scaling: FixedPointScale) -> Array:
    """Return `values` · multiplier / 2^shift, rounded as `scaling` says.

    Args:
        values: Integers of 64 bits, of any shape.
        scaling: One multiplier and shift for all of them.
    """
    multipliers, shifts = np.array([scaling.multiplier]), np.array([scaling.shift])
    return scale_channels(values, multipliers, shifts, scaling.rounding, scaling.left_shift)


def scale_channels(
    values: Array, multipliers: Array, shifts: Array, rounding: RoundingMode, left_shift: int = 0
) -> Array:
    """Return values scaled by a multiplier and a shift for each element of the last axis.

    Args:
        values: Integers of 64 bits, of any shape.
        multipliers: Multipliers that can be broadcast to `values`.
        shifts: Right shifts, 0 to 63, that can be broadcast to `values`.
        rounding: RoundingMode of the quotient.
        left_shift: Additional bits of the operands in the formula of double rounding.
    """
    if values.size == 0:
        return values
    largest = int(np.abs(values).max()) * int(np.abs(multipliers).max())
    if largest + (1 << int(shifts.max())) >= EXACT_LIMIT:
        values, multipliers, shifts = (a.astype(object) for a in (values, multipliers, shifts))
    products = values * multipliers
    rounded = products + rounding_terms(products, shifts, rounding, left_shift)
    return np.asarray(rounded >> shifts).astype(np.int64)


def rounding_terms(products: Array, shifts: Array, rounding: RoundingMode, left_shift: int) -> Array:
    """Return what is added to products before they are shifted right, so that the shift rounds them.

    Args:
        products: The products, whose sign some modes depend on.
        shifts: Right shifts.
        rounding: The mode.
        left_shift: Additional bits of the operands in the formula of double rounding.
    """
    one = shifts * 0 + 1
    half = np.where(shifts > 0, one << np.maximum(shifts - 1, 0), 0 * one)
    is_negative = products < 0
    second = np.where(shifts > 31 - left_shift, one << (30 - left_shift), 0 * one)
    if rounding is RoundingMode.DOUBLE_SYMMETRIC:
        return half + np.where(is_negative, -second, second)
    if rounding is RoundingMode.DOUBLE_ASYMMETRIC:
        return half + second
    if rounding is RoundingMode.SYMMETRIC:
        return np.where(is_negative & (shifts > 0), half - 1, half)
    if rounding is RoundingMode.TOWARDS_ZERO:
        return np.where(is_negative, (one << shifts) - 1, 0 * one)
    if rounding is RoundingMode.DOWN:
        return 0 * half
    return half


def divide(sums: Array, counts: Array) -> Array:
    """Return sums divided by counts, with ties away from zero.

    The NPU multiplies by a reciprocal that is slightly too large, so that natural rounding takes ties away from zero.
    A count of 0 (a window of padding alone) leaves the sum, which is 0.
    """
    counts = np.maximum(counts, 1)
    return np.asarray(np.sign(sums) * ((2 * np.abs(sums) + counts) // (2 * counts)))
