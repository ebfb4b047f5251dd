# SPDX-License-Identifier: Apache-2.0
"""The values of expressions in numpy: what C computes, of whole arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mcugen.expressions.nodes import (
    Argument,
    Binary,
    Call,
    Compare,
    Constant,
    Convert,
    Entry,
    Expression,
    Parameter,
    Select,
    Shared,
    Table,
    Unary,
    joined,
)
from mcugen.hir.types import Array, DType


def _divided(x: Array, y: Array) -> Array:
    """Integers towards zero; what C leaves undefined is 0."""
    if x.dtype.kind == "f":
        return np.asarray(x / y)
    divisor = np.where(y == 0, np.ones_like(y), y)
    rest = np.fmod(x, divisor)
    return np.where(y == 0, 0, (x - rest) // divisor).astype(x.dtype)


def _rest(x: Array, y: Array) -> Array:
    return np.asarray(np.fmod(x, np.where(y == 0, np.ones_like(y), y)))


def _shifted(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """By fewer than all bits; of other shifts, which C leaves undefined, nothing is asked."""
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
    """The values for arrays of arguments and tables by name, which broadcast."""
    with np.errstate(all="ignore"):
        return _Values(arrays).of(expression)


def apply(e: Expression, *operands: Array) -> Array:
    """The values of an expression by those of its operands, all of the types that compute."""
    match e:
        case Constant() | Parameter():
            return np.asarray(e.value, _working(e.dtype))
        case Entry():
            return np.asarray(operands[0][operands[1]])
        case Unary(operator):
            return _UNARY[operator](operands[0] if operator == "!" else working(e.dtype, operands[0]))
        case Binary(operator):
            return _BINARY[operator](*_as(e.dtype, *operands))
        case Compare(operator, left, right):
            return _COMPARE[operator](*_as(joined(left.dtype, right.dtype), *operands))
        case Select():
            return np.where(operands[0], *_as(e.dtype, *operands[1:]))
        case Convert(to):
            return working(to, operands[0].astype(to.numpy))
        case Call(function):
            return working(e.dtype, np.asarray(function.reference(*operands)))
        case Shared():
            return operands[0]
    raise NotImplementedError(type(e).__name__)


def working(dtype: DType, array: Array) -> Array:
    """An array of elements of that type, as they are computed with."""
    return _as(dtype, array)[0]


def _as(dtype: DType, *arrays: Array) -> list[Array]:
    return [array.astype(_working(dtype), copy=False) for array in arrays]


def _working(dtype: DType) -> np.dtype[Any]:
    """The type in which values of one are computed: integers that do not overflow in int64."""
    exact = dtype.is_integer and dtype not in (DType.UINT32, DType.UINT64)
    return np.dtype(np.int64) if exact else dtype.numpy


class _Values:
    """The values of parts are kept: some stand several times in an expression."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays
        self._known: dict[int, Array] = {}

    def of(self, e: Expression) -> Array:
        """As an array of the type that computes."""
        if isinstance(e, Argument | Table):
            return working(e.dtype, self._arrays[e.name])
        if id(e) not in self._known:
            self._known[id(e)] = apply(e, *map(self.of, e.operands))
        return self._known[id(e)]
