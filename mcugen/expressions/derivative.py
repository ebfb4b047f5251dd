# SPDX-License-Identifier: Apache-2.0
"""Symbolic derivatives of expressions, which are expressions themselves.

Where a function has a corner (a clamp at its ends, an absolute value at 0) the derivative is that of the flat side, or
of the left one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace

from mcugen.expressions import functions as fn
from mcugen.expressions.functions import Function
from mcugen.expressions.nodes import (
    Argument,
    BinaryExpression,
    CallExpression,
    Constant,
    Convert,
    Expression,
    Parameter,
    Select,
    Shared,
    UnaryExpression,
    both,
    call,
    select,
)


class NoDerivative(Exception):
    """Error that an expression calls a function without a derivative rule; the argument is the function's name."""


def derivative(e: Expression, by: Argument) -> Expression | None:
    """Return the derivative ∂e/∂by as an expression; None if it is 0 everywhere.

    Args:
        e: The expression.
        by: The argument to differentiate by.

    Raises:
        NoDerivative: `e` calls a function that has no derivative rule.
    """
    if e == by:
        return Constant(1, e.dtype)
    if not e.dtype.is_float or isinstance(e, Argument | Constant | Parameter):
        return None
    slopes = [derivative(operand, by) for operand in e.operands]
    if all(slope is None for slope in slopes):
        return None
    match e:
        case Shared():
            return slopes[0]
        case Convert(to):
            return Convert(to, _present(slopes[0]))
        case UnaryExpression("-"):
            return -_present(slopes[0])
        case BinaryExpression(operator):
            return _of_arithmetic(operator, e, slopes)
        case Select(condition):
            zero = Constant(0, e.dtype)
            return Select(condition, slopes[1] or zero, slopes[2] or zero)
        case CallExpression(function):
            return _of_call(function, e, slopes)
    raise NoDerivative(type(e).__name__)


def substituted(e: Expression, values: Mapping[Expression, Expression]) -> Expression:
    """Return a copy of an expression in which subexpressions are replaced.

    Args:
        e: The expression.
        values: The replacement of each subexpression that is to be replaced.
    """
    if e in values:
        return values[e]
    if isinstance(e, CallExpression):
        return CallExpression(e.function, tuple(substituted(a, values) for a in e.arguments))
    parts = {f.name: getattr(e, f.name) for f in fields(e)}
    new = {k: substituted(v, values) for k, v in parts.items() if isinstance(v, Expression)}
    return replace(e, **new) if new else e


Slopes = Sequence[Expression | None]
"""The partial derivatives of a function by each of its arguments, in order; None if a derivative is 0 everywhere."""


def _present(slope: Expression | None) -> Expression:
    assert slope is not None
    return slope


def _times(factor: Expression, slope: Expression | None) -> Expression | None:
    """Return factor · slope; None (zero) if the slope is None."""
    if slope is None:
        return None
    return factor if slope == Constant(1, slope.dtype) else factor * slope


def _plus(x: Expression | None, y: Expression | None) -> Expression | None:
    return x + y if x is not None and y is not None else x or y


def _of_arithmetic(operator: str, e: Expression, slopes: Slopes) -> Expression | None:
    """Return the derivative of a sum, difference, product or quotient of reals."""
    (x, y), (dx, dy) = e.operands, slopes
    match operator:
        case "+":
            return _plus(dx, dy)
        case "-":
            return _plus(dx, None if dy is None else -dy)
        case "*":
            return _plus(_times(y, dx), _times(x, dy))
        case "/":
            falling = _times(e, dy)
            return _present(_plus(dx, None if falling is None else -falling)) / y
    raise NoDerivative(operator)


def _of_call(function: Function, e: Expression, slopes: Slopes) -> Expression | None:
    """Return the derivative of a function call, by the chain rule."""
    x, *other_operands = e.operands
    if function in _STEPS:
        return None
    if function in _CHAIN:
        return _times(_CHAIN[function](x, e), slopes[0])
    zero = Constant(0, e.dtype)
    dx, *other_slopes = (slope or zero for slope in slopes)
    if function == fn.RELU:
        return select(x > 0, dx, zero)
    if function in (fn.MAX, fn.MIN):
        (y,), (dy,) = other_operands, other_slopes
        return select(x > y if function == fn.MAX else x < y, dx, dy)
    if function == fn.CLAMP_REAL and not any(slopes[1:]):
        low, high = other_operands
        return select(both(x > low, x < high), dx, zero)
    if function == fn.POW:
        return _of_power(e, slopes)
    raise NoDerivative(function.symbol)


def _of_power(e: Expression, slopes: Slopes) -> Expression | None:
    x, y = e.operands
    by_base = _times(y * call(fn.POW, x, y - 1), slopes[0])
    return _plus(by_base, _times(e * call(fn.LOG, x), slopes[1]))


_STEPS = (fn.FLOOR, fn.CEIL, fn.RINT)
"""Functions whose derivative is 0 except where they jump."""

_CHAIN: Mapping[Function, Callable[[Expression, Expression], Expression]] = {
    fn.ABS: lambda x, y: select(x > 0, 1, select(x < 0, Constant(-1, x.dtype), Constant(0, x.dtype))),
    fn.EXP: lambda x, y: y,
    fn.EXPM1: lambda x, y: y + 1,
    fn.LOG: lambda x, y: 1 / x,
    fn.LOG1P: lambda x, y: 1 / (1 + x),
    fn.SQRT: lambda x, y: Constant(0.5, x.dtype) / y,
    fn.SIN: lambda x, y: call(fn.COS, x),
    fn.COS: lambda x, y: -call(fn.SIN, x),
    fn.TAN: lambda x, y: 1 + y * y,
    fn.ASIN: lambda x, y: 1 / call(fn.SQRT, 1 - x * x),
    fn.ACOS: lambda x, y: Constant(-1, x.dtype) / call(fn.SQRT, 1 - x * x),
    fn.ATAN: lambda x, y: 1 / (1 + x * x),
    fn.SINH: lambda x, y: call(fn.COSH, x),
    fn.COSH: lambda x, y: call(fn.SINH, x),
    fn.ASINH: lambda x, y: 1 / call(fn.SQRT, 1 + x * x),
    fn.ACOSH: lambda x, y: 1 / call(fn.SQRT, x * x - 1),
    fn.ATANH: lambda x, y: 1 / (1 - x * x),
    fn.TANH: lambda x, y: 1 - y * y,
    fn.ERF: lambda x, y: Constant(2 / math.sqrt(math.pi), x.dtype) * call(fn.EXP, -(x * x)),
}
"""Derivative of each function as an expression of its argument and its value."""
