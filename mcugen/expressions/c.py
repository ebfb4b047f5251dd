# SPDX-License-Identifier: Apache-2.0
"""Printer of expressions as C text, with as few parentheses as C, compiler warnings and clang-format allow."""

from __future__ import annotations

from enum import IntEnum

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
from mcugen.hir.types import DType


class Binding(IntEnum):
    """Precedence of C operators; operators with a higher value bind more tightly.

    Comparisons, bit operations and shifts are not nested without parentheses, because compilers warn about that.

    Attributes:
        SELECT: The conditional operator ?:.
        OR: Logical OR.
        AND: Logical AND.
        BITS: Bit operations and shifts.
        COMPARE: Comparisons.
        SUM: Additions and subtractions.
        PRODUCT: Multiplications, divisions and remainders.
        PREFIX: Unary operators and conversions.
        WHOLE: Names, numbers, calls and indexing, which never need parentheses.
    """

    SELECT = 0
    OR = 1
    AND = 2
    BITS = 3
    COMPARE = 4
    SUM = 5
    PRODUCT = 6
    PREFIX = 7
    WHOLE = 8


_BINDING = {"||": Binding.OR, "&&": Binding.AND, "+": Binding.SUM, "-": Binding.SUM}
_BINDING |= dict.fromkeys("*/%", Binding.PRODUCT) | dict.fromkeys(("&", "|", "^", "<<", ">>"), Binding.BITS)


def c_text(expression: Expression, outer: Binding = Binding.OR) -> str:
    """Return the C text of an expression that is an operand of an operator with precedence `outer`.

    The text is in parentheses if its own precedence is lower than `outer`.
    """
    text, binding = _text(expression)
    return text if binding >= outer else f"({text})"


def c_value(expression: Expression) -> str:
    """Return the C text of an expression whose value is stored in a variable or array.

    The result of a comparison or logical operator becomes the number 0 or 1, by a conditional expression.
    """
    text = c_text(expression)
    return f"{text} ? 1 : 0" if _is_truth(expression) else text


def _is_truth(e: Expression) -> bool:
    """Return whether C has a truth value there, and no number that stands for one."""
    return isinstance(e, Compare) or (isinstance(e, UnaryExpression) and e.operator == "!")


def _condition(e: Expression, outer: Binding = Binding.OR) -> str:
    """Return the C expression for a place that needs a truth value."""
    if _is_truth(e) or (isinstance(e, Convert) and e.to is DType.BOOL):
        return c_text(e, outer)
    text = f"{c_text(e, Binding.SUM)} != {_constant(0, DType.UINT32 if e.dtype is DType.BOOL else e.dtype)}"
    return text if outer <= Binding.COMPARE else f"({text})"


def _text(e: Expression) -> tuple[str, Binding]:
    match e:
        case Constant():
            return _constant(e.value, e.type), Binding.PREFIX if e.value < 0 else Binding.WHOLE
        case Parameter() | Argument() | Table():
            return e.name, Binding.WHOLE
        case Entry():
            return f"{c_text(e.table, Binding.WHOLE)}[{c_text(e.index)}]", Binding.WHOLE
        case UnaryExpression(operator="!"):
            return f"!{_condition(e.operand, Binding.PREFIX)}", Binding.PREFIX
        case UnaryExpression():
            text = c_text(e.operand, Binding.PREFIX)
            return f"{e.operator}({text})" if text.startswith("-") else f"{e.operator}{text}", Binding.PREFIX
        case Compare():
            binding = _BINDING.get(e.operator, Binding.COMPARE)
            if binding < Binding.COMPARE:
                return f"{_condition(e.left, binding)} {e.operator} {_condition(e.right, binding)}", binding
            inner = Binding.SUM
            return f"{c_text(e.left, inner)} {e.operator} {c_text(e.right, Binding(inner))}", binding
        case BinaryExpression():
            return _binary(e)
        case Select():
            return f"{_condition(e.condition)} ? {c_text(e.yes)} : {c_text(e.no)}", Binding.SELECT
        case Convert():
            return _cast(e)
        case CallExpression():
            name = e.function.name(promoted_type(*(a.dtype for a in e.arguments)))
            return f"{name}({', '.join(map(c_text, e.arguments))})", Binding.WHOLE
        case Shared():
            return c_text(e.operand, Binding.WHOLE), Binding.WHOLE
    raise NotImplementedError(type(e).__name__)


def _binary(e: BinaryExpression) -> tuple[str, Binding]:
    binding = _BINDING[e.operator]
    if e.operator == "*" and c_text(e.right) == "1":
        return _text(e.left)
    if e.operator == ">>" and e.left.dtype is DType.INT32:
        return f"mcugen_shift_right({c_text(e.left)}, {c_text(e.right)})", Binding.WHOLE
    if binding is Binding.BITS:
        return f"{c_text(e.left, Binding.PREFIX)} {e.operator} {c_text(e.right, Binding.PREFIX)}", binding
    return f"{c_text(e.left, binding)} {e.operator} {c_text(e.right, Binding(binding + 1))}", binding


def _cast(e: Convert) -> tuple[str, Binding]:
    operand, binding = _text(e.operand)
    if e.to is DType.BOOL:
        return f"({c_text(e.operand, Binding.SUM)} != 0)", Binding.WHOLE
    if binding >= Binding.PREFIX:
        return f"({e.to.c}){operand}", Binding.PREFIX
    if e.to is e.operand.dtype and e.to.nbytes >= 4:
        return operand, binding
    if (e.operand.dtype, e.to) in _OF_COMPOSITES:
        return f"{_OF_COMPOSITES[e.operand.dtype, e.to]}({operand})", Binding.WHOLE
    signed = _SIGNED.get(e.operand.dtype)
    if signed is not None and e.to.is_integer and e.to.limits[0]:
        return _cast(Convert(e.to, Convert(signed, e.operand)))
    return f"({e.to.c})({operand})", Binding.PREFIX


_SIGNED = {DType.UINT32: DType.INT32, DType.UINT64: DType.INT64}
_OF_COMPOSITES = {
    (DType.INT32, DType.FLOAT32): "mcugen_to_float",
    (DType.UINT32, DType.INT32): "mcugen_signed",
    (DType.UINT64, DType.INT64): "mcugen_signed_long",
}
"""Conversion functions for sums, products and selections, which MISRA C does not cast to another kind of number."""


def _constant(value: float, dtype: DType) -> str:
    if dtype.is_float:
        return f"{float(value)!r}{'f' if dtype is DType.FLOAT32 else ''}"
    return f"{value}{'u' if dtype in (DType.UINT32, DType.UINT64) else ''}"
