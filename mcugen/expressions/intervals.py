# SPDX-License-Identifier: Apache-2.0
"""Interval arithmetic of expressions. The bounds are exact if each argument occurs once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from mcugen.expressions.nodes import (
    Argument,
    BinaryExpression,
    CallExpression,
    Compare,
    Constant,
    Convert,
    Entry,
    Expression,
    Parameter,
    Select,
    Shared,
    Table,
    UnaryExpression,
)
from mcugen.expressions.values import apply, to_compute_type
from mcugen.hir.types import Array, Bounds, DType


def bounds(expression: Expression, arguments: Mapping[str, Bounds]) -> Bounds | None:
    """Return a lower and an upper bound of an expression's values, each as an array; None if no bounds are known.

    Args:
        expression: The expression.
        arguments: Lower and upper bounds of arguments and tables, as two arrays, by name. An argument without bounds
            can have any value of its type. For a constant, both bounds are the same array.
    """
    if isinstance(expression, Argument | Table):
        return _given(expression.dtype, arguments.get(expression.name))
    inner = [bounds(operand, arguments) for operand in expression.operands]
    match expression, inner:
        case Compare() | UnaryExpression("!"), _:
            return _limits(DType.BOOL)
        case Select(), [_, (_, _) as yes, (_, _) as no]:
            return np.minimum(yes[0], no[0]), np.maximum(yes[1], no[1])
        case Entry(_, Convert(DType.UINT8, code)), [(least, most), _] if (
            least is most and len(least) == NUM_BYTE_VALUES
        ):
            return _entries_of_codes(least, bounds(code, arguments))
        case Entry(), [(least, most) as table, (_, _) as index] if least is most:
            return _entries(table[0], index)
        case Convert(to), [(low, high)] if to.is_integer and not _fits(to, low, high):
            return _limits(to)
        case BinaryExpression("&"), [_, (least, most)] if least is most and (least >= 0).all():
            return np.zeros_like(least), least
    known = [ends for ends in inner if ends is not None]
    return _corners(expression, known) if len(known) == len(inner) and _is_monotone(expression) else None


def _is_monotone(e: Expression) -> bool:
    """Return whether it rises or falls with each operand, whatever the others."""
    match e:
        case CallExpression(function):
            return function.is_monotone
        case BinaryExpression(operator):
            return operator in ("+", "-", "*", "<<", ">>")
    return isinstance(e, Constant | Parameter | Shared | Convert | UnaryExpression)


def _corners(e: Expression, known: Sequence[Bounds]) -> Bounds:
    """Return the extremes over all combinations of the operands' bounds."""
    ends = [(low,) if low is high else (low, high) for low, high in known]
    with np.errstate(all="ignore"):
        results = [apply(e, *arrays) for arrays in product(*ends)]
    if len(results) == 1:
        return results[0], results[0]
    return np.minimum.reduce(results), np.maximum.reduce(results)


def _given(dtype: DType, ends: Bounds | None) -> Bounds | None:
    if ends is None:
        return _limits(dtype)
    low, high = (to_compute_type(dtype, end) for end in ends)
    return (low, low) if ends[0] is ends[1] else (low, high)


def _limits(dtype: DType) -> Bounds | None:
    if dtype is DType.BOOL:
        return np.asarray(False), np.asarray(True)
    if not dtype.is_integer:
        return None
    low, high = (np.asarray(limit, np.uint64 if limit >= 2**63 else np.int64) for limit in dtype.limits)
    return low, high


def _fits(dtype: DType, low: Array, high: Array) -> bool:
    min_value, max_value = dtype.limits
    return bool(int(low.min()) >= min_value and int(high.max()) <= max_value)


NUM_BYTE_VALUES = 256
"""Number of values of a byte, and so of entries in a table that is indexed by a byte."""


def _entries_of_codes(table: Array, codes: Bounds | None) -> Bounds | None:
    """Return the extremes of a table indexed by the bytes of int8 values; entries of negative values come last."""
    low, high = DType.INT8.limits
    if codes is None or not _fits(DType.INT8, *codes):
        codes = np.asarray(low), np.asarray(high)
    return _entries(np.roll(table, -low), (codes[0] - low, codes[1] - low))


def _entries(table: Array, index: Bounds) -> Bounds | None:
    """Return the extremes of the entries between two indices, by a sparse table of extremes of 2^level entries."""
    first, last = index
    if (first < 0).any() or (last >= len(table)).any():
        return None
    levels = [(table, table)]
    while (step := 1 << len(levels) - 1) < len(table):
        beyond = np.minimum(np.arange(len(table)) + step, len(table) - 1)
        (lows, highs) = levels[-1]
        levels.append((np.minimum(lows, lows[beyond]), np.maximum(highs, highs[beyond])))
    level = np.frexp(last - first + 1)[1] - 1
    again = last - (1 << level) + 1
    lows, highs = (np.stack(ends) for ends in zip(*levels, strict=True))
    return np.minimum(lows[level, first], lows[level, again]), np.maximum(highs[level, first], highs[level, again])
