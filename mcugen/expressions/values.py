# SPDX-License-Identifier: Apache-2.0
"""Evaluation of expressions on numpy arrays, with the results of the generated C code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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
    promoted_type,
)
from mcugen.hir.types import Array, DType


def _divided(x: Array, y: Array) -> Array:
    """Divide; integers are truncated toward 0, and what C leaves undefined is 0."""
    if x.dtype.kind == "f":
        return np.asarray(x / y)
    divisor = np.where(y == 0, np.ones_like(y), y)
    remainder = np.fmod(x, divisor)
    return np.where(y == 0, 0, (x - remainder) // divisor).astype(x.dtype)


def _rest(x: Array, y: Array) -> Array:
    return np.asarray(np.fmod(x, np.where(y == 0, np.ones_like(y), y)))


def _shifted(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Return the shift with its amount clamped below the number of bits, since C leaves other shifts undefined."""
    return lambda x, y: function(x, np.clip(y, 0, 8 * x.dtype.itemsize - 1).astype(x.dtype))


_BINARY: Mapping[str, Callable[[Array, Array], Array]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": _divided,
    "%": _rest,
    "&": np.bitwise_and,
    "|": np.bitwise_or,
    "^": np.bitwise_xor,
    "<<": _shifted(np.left_shift),
    ">>": _shifted(np.right_shift),
}
_UNARY: Mapping[str, Callable[[Array], Array]] = {"-": np.negative, "~": np.invert, "!": np.logical_not}
_COMPARE: Mapping[str, Callable[[Array, Array], Array]] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
    "&&": np.logical_and,
    "||": np.logical_or,
}


def evaluate(expression: Expression, arrays: Mapping[str, Array]) -> Array:
    """Return the values of an expression as an array, with the results of the generated C code.

    Args:
        expression: The expression.
        arrays: Arrays of the arguments and tables, by name. Arrays of arguments broadcast.
    """
    return Evaluator(expression)(arrays)


class Evaluator:
    """An evaluator of one expression for many inputs, with the results of the generated C code.

    Data that depend only on the expression are prepared once. Subexpressions that occur several times are computed once
    per input.

    Args:
        expression: The expression.
    """

    def __init__(self, expression: Expression) -> None:
        parts = _parts(expression, {})
        read = [e for e in parts.values() if isinstance(e, Argument | Table)]
        computed = [e for e in parts.values() if not isinstance(e, Argument | Table)]
        places = {id(e): place for place, e in enumerate([*read, *computed])}
        self._read = [(e.name, _working(e.dtype)) for e in read]
        self._computed = [(_function(e), [places[id(operand)] for operand in e.operands]) for e in computed]
        self._result = places[id(expression)]

    def __call__(self, arrays: Mapping[str, Array]) -> Array:
        """Return the values for arrays of arguments and tables, given by name; they broadcast."""
        values = [arrays[name].astype(dtype, copy=False) for name, dtype in self._read]
        with np.errstate(all="ignore"):
            for function, operands in self._computed:
                values.append(function(*[values[place] for place in operands]))
        return values[self._result]


def _parts(e: Expression, parts: dict[int, Expression]) -> dict[int, Expression]:
    """Yield all parts of an expression, operands first."""
    if id(e) not in parts:
        for operand in e.operands:
            _parts(operand, parts)
        parts[id(e)] = e
    return parts


def apply(e: Expression, *operands: Array) -> Array:
    """Return the values of the topmost operation of `e`, given the values of its operands.

    They are computed in the types that C uses.

    Args:
        e: The expression; only its topmost operation is computed.
        *operands: Values of the expression's operands, in order.
    """
    return _function(e)(*operands)


def _function(e: Expression) -> Callable[..., Array]:
    """Return the function that computes an expression from its operands."""
    match e:
        case Constant() | Parameter():
            constant = np.asarray(e.value, _working(e.dtype))
            return lambda: constant
        case Entry():
            return lambda table, index: np.asarray(table[index])
        case UnaryExpression(operator):
            unary, dtype = _UNARY[operator], _working(e.dtype)
            return unary if operator == "!" else lambda x: unary(x.astype(dtype, copy=False))
        case BinaryExpression(operator):
            return _typed(_BINARY[operator], _working(e.dtype))
        case Compare(operator, left, right):
            return _typed(_COMPARE[operator], _working(promoted_type(left.dtype, right.dtype)))
        case Select():
            either = _working(e.dtype)
            return lambda condition, x, y: np.where(
                condition, x.astype(either, copy=False), y.astype(either, copy=False)
            )
        case Convert(to):
            return lambda x: to_compute_type(to, x.astype(to.numpy))
        case CallExpression(function):
            dtype = _working(e.dtype)
            return lambda *operands: np.asarray(function.reference(*operands)).astype(dtype, copy=False)
        case Shared():
            return lambda x: x
    raise NotImplementedError(type(e).__name__)


def _typed(function: Callable[[Array, Array], Array], dtype: np.dtype[Any]) -> Callable[[Array, Array], Array]:
    """Return the function with both operands converted to a type."""
    return lambda x, y: function(x.astype(dtype, copy=False), y.astype(dtype, copy=False))


def to_compute_type(dtype: DType, array: Array) -> Array:
    """Convert an array of elements of type `dtype` to the numpy type in which expressions are evaluated.

    Integers become int64, except uint32 and uint64: their arithmetic wraps, so they keep their type. Other types stay
    unchanged.

    Args:
        dtype: Type of the elements in the expression.
        array: The elements, of any numpy type.
    """
    return array.astype(_working(dtype), copy=False)


def _working(dtype: DType) -> np.dtype[Any]:
    """Return the numpy type that computes values of a type: int64 for integers that do not wrap."""
    exact = dtype.is_integer and dtype not in (DType.UINT32, DType.UINT64)
    return np.dtype(np.int64) if exact else dtype.numpy
