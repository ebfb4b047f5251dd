# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's sigmoid and tanh of int16, which interpolate linearly between entries of one table."""

from __future__ import annotations

from functools import cache

import numpy as np

from mcugen.hir.types import Array

_STEPS = 24
"""Entries of the library's table for each unit of a sigmoid's argument."""


@cache
def _table() -> Array:
    """Return the library's table: 65536 · σ(i / 24), raised by half the interpolation error in mid-segment."""
    at = np.arange(0, 256.5, 0.5) / _STEPS
    exact = 2.0**16 / (1 + np.exp(-at))
    ends, middles = exact[::2], exact[1::2]
    table: Array = np.rint(ends[:-1] + (middles - (ends[:-1] + ends[1:]) / 2) / 2).astype(np.int64)
    table[-1] = 2**16 - 1
    return table


def sigmoid(x: Array, left: int) -> Array:
    """Return the sigmoid of int16 values, bit by bit as CMSIS-NN computes it.

    Args:
        x: Arguments, int16, in units of 2^(left − 12).
        left: Left shift of the arguments to 12 fraction bits; negative for a right shift.

    Returns:
        Results in units of 2^−15.
    """
    at = _scaled(x, left)
    line = _line(np.abs(at), 9, 0x7FFF << 10)
    return np.asarray(np.where(at >= 0, line + 512, 2**25 - line + 511) >> 10)


def tanh(x: Array, left: int) -> Array:
    """Return the hyperbolic tangent of int16 values, bit by bit as CMSIS-NN computes it: 2 σ(2x) − 1.

    Args:
        x: Arguments, int16, in units of 2^(left − 12).
        left: Left shift of the arguments to 12 fraction bits; negative for a right shift.

    Returns:
        Results in units of 2^−15.
    """
    at = _scaled(x, left)
    line = _line(np.abs(at), 8, 0xFFFF << 8) - 2**23
    return np.asarray(np.where(at >= 0, line + 128, 127 - line) >> 8)


def _scaled(x: Array, left: int) -> Array:
    """Return arguments in units of 3 / 2^12: table entries are 512 units apart for sigmoid, 256 for tanh."""
    scaled = (x.astype(np.int64) * 3 * 2 ** max(left, 0) + (2 ** (-left - 1) if left < 0 else 0)) >> max(-left, 0)
    return np.asarray(scaled)


def _line(at: Array, bits: int, end_value: int) -> Array:
    """Interpolate between entries 2^`bits` steps apart, in 2^-`bits` of their unit; `end_value` beyond the last."""
    table, index, fraction = _table(), np.minimum(at >> bits, 254), at & ((1 << bits) - 1)
    inside = (table[index] << bits) + fraction * (table[index + 1] - table[index])
    return np.asarray(np.where(at >> bits >= 255, end_value, inside))
