# SPDX-License-Identifier: Apache-2.0
"""Typed scalar expressions with C's meaning; Python's operators build them: x / (1 + absolute(x)).

Integers do not overflow (codes of quantized tensors are int32 and stay below), but for elements of integer tensors,
which wrap: sums, differences and products of such are computed in the unsigned type.
"""

from __future__ import annotations

from functools import cached_property
from typing import Union

from mcugen.core.frozen import FrozenByPosition
from mcugen.expressions.functions import Function
from mcugen.hir.types import DType

Operand = Union["Expression", int, float]
"""An operand of Python's operators on expressions; a number becomes a constant of the other operand's type."""


class Expression(FrozenByPosition):
    """Base class of typed scalar expressions, which compute one value; they are immutable and compared by value.

    Properties such as the type follow from the subexpressions. Each is computed on first use, then stored.
    """

    @cached_property
    def dtype(self) -> DType:
        """Return the type of the expression's value."""
        return _dtype(self)

    @cached_property
    def operands(self) -> tuple[Expression, ...]:
        """Return the subexpressions that this expression is computed from directly."""
        if isinstance(self, CallExpression):
            return self.arguments
        return tuple(value for value in vars(self).values() if isinstance(value, Expression))

    @cached_property
    def wraps(self) -> bool:
        """Return whether integer arithmetic on this expression may wrap (be computed modulo the range of its type).

        The arithmetic may wrap if the expression contains an integer argument that is not marked as exact
        (Argument.exact). Arguments of comparisons and functions do not count: arithmetic on the results of these never
        overflows.
        """
        if isinstance(self, Argument):
            return self.type.is_integer and not self.exact
        return not isinstance(self, Compare | CallExpression) and any(operand.wraps for operand in self.operands)

    def __add__(self, other: Operand) -> Expression:
        return _arithmetic("+", self, other)

    def __radd__(self, other: Operand) -> Expression:
        return _arithmetic("+", other, self)

    def __sub__(self, other: Operand) -> Expression:
        return _arithmetic("-", self, other)

    def __rsub__(self, other: Operand) -> Expression:
        return _arithmetic("-", other, self)

    def __mul__(self, other: Operand) -> Expression:
        return _arithmetic("*", self, other)

    def __rmul__(self, other: Operand) -> Expression:
        return _arithmetic("*", other, self)

    def __truediv__(self, other: Operand) -> Expression:
        return BinaryExpression("/", *_pair(self, other))

    def __rtruediv__(self, other: Operand) -> Expression:
        return BinaryExpression("/", *_pair(other, self))

    def __mod__(self, other: Operand) -> Expression:
        return BinaryExpression("%", *_pair(self, other))

    def __and__(self, other: Operand) -> Expression:
        return BinaryExpression("&", *_pair(self, other))

    def __or__(self, other: Operand) -> Expression:
        return BinaryExpression("|", *_pair(self, other))

    def __xor__(self, other: Operand) -> Expression:
        return BinaryExpression("^", *_pair(self, other))

    def __lshift__(self, other: Operand) -> Expression:
        return BinaryExpression("<<", *_pair(self, other))

    def __rshift__(self, other: Operand) -> Expression:
        return BinaryExpression(">>", *_pair(self, other))

    def __lt__(self, other: Operand) -> Expression:
        return Compare("<", *_pair(self, other))

    def __le__(self, other: Operand) -> Expression:
        return Compare("<=", *_pair(self, other))

    def __gt__(self, other: Operand) -> Expression:
        return Compare(">", *_pair(self, other))

    def __ge__(self, other: Operand) -> Expression:
        return Compare(">=", *_pair(self, other))

    def __neg__(self) -> Expression:
        if not self.wraps:
            return UnaryExpression("-", self)
        unsigned = unsigned_of(self.dtype)
        return Convert(self.dtype, BinaryExpression("-", Constant(0, unsigned), Convert(unsigned, self)))

    def __invert__(self) -> Expression:
        return UnaryExpression("~", self)


class Constant(Expression):
    """A number that is written into the code of a kernel, because all layers that use the kernel share it.

    Attributes:
        value: The number.
        type: Type of the number.
    """

    value: float
    type: DType


class Parameter(Expression):
    """A number of one layer, which is passed at run time: layers that differ only in it share one kernel.

    Attributes:
        name: C name of the parameter.
        value: The number.
        type: Type of the number.
    """

    name: str
    value: float
    type: DType


class Argument(Expression):
    """An element of an input, or an earlier result, which the C code has in a variable.

    Attributes:
        name: C name of the variable.
        type: Type of the value.
        exact: Whether integer arithmetic with the value is known not to overflow, as for quantized values; otherwise,
            it wraps.
    """

    name: str
    type: DType
    exact: bool = False


class Table(Expression):
    """A lookup table: an input that is read at computed indices.

    Attributes:
        name: C name of the array.
        type: Type of an entry.
    """

    name: str
    type: DType


class Entry(Expression):
    """The entry of a lookup table at an index.

    Attributes:
        table: The table.
        index: The index, from 0.
    """

    table: Expression
    index: Expression


class UnaryExpression(Expression):
    """A unary operation on one operand.

    Attributes:
        operator: "-" (negation), "~" (bitwise complement) or "!" (logical negation).
        operand: The operand.
    """

    operator: str
    operand: Expression


class BinaryExpression(Expression):
    """An arithmetic operation, bit operation or shift of two operands.

    Attributes:
        operator: One of + - * / % & | ^ << >>; integer division truncates toward 0.
        left: The left operand.
        right: The right operand.
    """

    operator: str
    left: Expression
    right: Expression


class Compare(Expression):
    """A comparison or a logical operation of two operands; the type is bool.

    With NaN, only != is true.

    Attributes:
        operator: One of < <= > >= == != && ||.
        left: The left operand.
        right: The right operand.
    """

    operator: str
    left: Expression
    right: Expression


class Select(Expression):
    """A conditional expression.

    Attributes:
        condition: The condition.
        yes: The value where the condition holds.
        no: The value where it does not hold.
    """

    condition: Expression
    yes: Expression
    no: Expression


class Convert(Expression):
    """A conversion to another type as in C: integers wrap, reals (which must fit) truncate, a bool is x ≠ 0.

    Attributes:
        to: The type of the result.
        operand: The expression to convert.
    """

    to: DType
    operand: Expression


class CallExpression(Expression):
    """A call of a function of the C library or of mcugen.h.

    Attributes:
        function: The function.
        arguments: Its arguments, in order.
    """

    function: Function
    arguments: tuple[Expression, ...]


class Shared(Expression):
    """A subexpression that occurs several times in an expression and that the C code computes only once.

    Attributes:
        operand: The subexpression.
    """

    operand: Expression


def _dtype(e: Expression) -> DType:
    match e:
        case Constant() | Parameter() | Argument() | Table():
            return e.type
        case Compare() | UnaryExpression("!"):
            return DType.BOOL
        case Convert(to):
            return to
        case Select(_, yes, no) if yes.dtype is no.dtype:
            return yes.dtype
        case CallExpression(Function(result=DType() as result)):
            return result
        case Shared() | Entry():
            return e.operands[0].dtype
        case BinaryExpression("<<" | ">>"):
            return promoted_type(e.left.dtype)
        case Select():
            return promoted_type(e.yes.dtype, e.no.dtype)
    return promoted_type(*(operand.dtype for operand in e.operands))


def promoted_type(*dtypes: DType) -> DType:
    """Return the type in which C computes an operation on operands of these types: at least int32."""
    order = (DType.FLOAT64, DType.FLOAT32, DType.UINT64, DType.INT64, DType.UINT32)
    return next((dtype for dtype in order if dtype in dtypes), DType.INT32)


def unsigned_of(dtype: DType) -> DType:
    """Return the unsigned type in which wrapping arithmetic on integers of type `dtype` is computed.

    It has at least 32 bits, since C promotes narrower types to int.
    """
    return DType.UINT64 if dtype.nbytes == 8 else DType.UINT32


def as_expression(value: Operand, like: DType) -> Expression:
    """Return a number as a constant expression; an expression is returned unchanged.

    Args:
        value: The number or expression.
        like: Type of the other operand: the constant has this type if it is a float type, else C's int.
    """
    if isinstance(value, Expression):
        return value
    return Constant(value, like if like.is_float else DType.INT32)


def _pair(left: Operand, right: Operand) -> tuple[Expression, Expression]:
    like = (left if isinstance(left, Expression) else right).dtype  # type: ignore[union-attr]
    return as_expression(left, like), as_expression(right, like)


def _arithmetic(operator: str, left: Operand, right: Operand) -> Expression:
    left, right = _pair(left, right)
    wrapping = next((e.dtype for e in (left, right) if e.wraps), None)
    if wrapping is None:
        return BinaryExpression(operator, left, right)
    unsigned = unsigned_of(wrapping)  # signed overflow is undefined in C
    return Convert(wrapping, BinaryExpression(operator, Convert(unsigned, left), Convert(unsigned, right)))


def equal(left: Operand, right: Operand) -> Expression:
    """Return the expression that is true if both operands are equal."""
    return Compare("==", *_pair(left, right))


def differ(left: Operand, right: Operand) -> Expression:
    """Return the expression that is true if the operands are not equal, or if one is NaN."""
    return Compare("!=", *_pair(left, right))


def is_nan(x: Expression) -> Expression:
    """Return the expression that is true if x is NaN."""
    return Compare("!=", x, x)


def both(left: Expression, right: Expression) -> Expression:
    """Return the logical AND of two truth values, as an expression."""
    return Compare("&&", left, right)


def either(left: Expression, right: Expression) -> Expression:
    """Return the logical OR of two truth values, as an expression."""
    return Compare("||", left, right)


def select(condition: Expression, yes: Operand, no: Operand) -> Expression:
    """Return the expression of `yes` where the condition holds, else `no`."""
    like = next((v.dtype for v in (yes, no) if isinstance(v, Expression)), DType.INT32)
    return Select(condition, as_expression(yes, like), as_expression(no, like))


def call(function: Function, *arguments: Operand) -> Expression:
    """Return an expression that calls a function.

    Args:
        function: The function.
        *arguments: Its arguments; numbers become constants of the first expression's type.
    """
    like = next(a.dtype for a in arguments if isinstance(a, Expression))
    return CallExpression(function, tuple(as_expression(a, like) for a in arguments))
