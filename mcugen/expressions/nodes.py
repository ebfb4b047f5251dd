# SPDX-License-Identifier: Apache-2.0
"""Typed scalar expressions with C's meaning; Python's operators build them: x / (1 + absolute(x)).

Integers do not overflow (codes of quantized tensors are int32 and stay below), but for elements of integer tensors,
which wrap: sums, differences and products of such are computed in the unsigned type.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Union

from mcugen.expressions.functions import Function
from mcugen.hir.types import DType

Operand = Union["Expression", int, float]
"""Python's numbers become constants of the type of what they meet."""


@dataclass(frozen=True)
class Expression:
    """One value of type `dtype`.

    What it says of itself it finds out once: that depends on all that it is computed from.
    """

    @cached_property
    def dtype(self) -> DType:
        """The type of the value."""
        return _dtype(self)

    @cached_property
    def operands(self) -> tuple[Expression, ...]:
        """Return the expressions that this one is computed from."""
        if isinstance(self, CallExpression):
            return self.arguments
        return tuple(value for value in vars(self).values() if isinstance(value, Expression))

    @cached_property
    def wraps(self) -> bool:
        """Whether arithmetic with it is modulo the range of its type; truths and what functions return never do."""
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


@dataclass(frozen=True)
class Constant(Expression):
    """A number that is the same in all layers."""

    value: float
    type: DType


@dataclass(frozen=True)
class Parameter(Expression):
    """A number of the layer: code is shared by layers that differ only in it."""

    name: str
    value: float
    type: DType


@dataclass(frozen=True)
class Argument(Expression):
    """An element of an input, or an earlier result. Codes are `exact`; elements of integer tensors wrap."""

    name: str
    type: DType
    exact: bool = False


@dataclass(frozen=True)
class Table(Expression):
    """An input that is read at computed places; its type is that of an entry."""

    name: str
    type: DType


@dataclass(frozen=True)
class Entry(Expression):
    """The entry of a table at an index."""

    table: Expression
    index: Expression


@dataclass(frozen=True)
class UnaryExpression(Expression):
    """Negation, of a sign (-), of bits (~), of a truth (!)."""

    operator: str
    operand: Expression


@dataclass(frozen=True)
class BinaryExpression(Expression):
    """Arithmetic (+ - * / %), bits (& | ^), shifts (<< >>). Integers are divided towards zero."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Compare(Expression):
    """< <= > >= == !=, of which only the last holds with NaN; && and || of truths."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Select(Expression):
    """One of two values."""

    condition: Expression
    yes: Expression
    no: Expression


@dataclass(frozen=True)
class Convert(Expression):
    """C's conversion: integers modulo the range, reals (which must fit) cut off, a bool is what is not 0."""

    to: DType
    operand: Expression


@dataclass(frozen=True)
class CallExpression(Expression):
    """A function of the C library or of mcugen.h."""

    function: Function
    arguments: tuple[Expression, ...]


@dataclass(frozen=True)
class Shared(Expression):
    """A part that stands several times in an expression."""

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
            return joined(e.left.dtype)
        case Select():
            return joined(e.yes.dtype, e.no.dtype)
    return joined(*(operand.dtype for operand in e.operands))


def joined(*dtypes: DType) -> DType:
    """C's usual arithmetic conversions; what is narrower than int32 becomes that."""
    order = (DType.FLOAT64, DType.FLOAT32, DType.UINT64, DType.INT64, DType.UINT32)
    return next((dtype for dtype in order if dtype in dtypes), DType.INT32)


def unsigned_of(dtype: DType) -> DType:
    """Return the unsigned type for wrapping arithmetic: at least 32 bits, since C promotes narrower types to int."""
    return DType.UINT64 if dtype.nbytes == 8 else DType.UINT32


def as_expression(value: Operand, like: DType) -> Expression:
    """Return a number as a constant: of the type `like` if that is real, else of C's int."""
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
    """Whether both are equal."""
    return Compare("==", *_pair(left, right))


def differ(left: Operand, right: Operand) -> Expression:
    """Whether they are not equal, or one is NaN."""
    return Compare("!=", *_pair(left, right))


def is_nan(x: Expression) -> Expression:
    """Whether it is no number."""
    return Compare("!=", x, x)


def both(left: Expression, right: Expression) -> Expression:
    """Whether both hold."""
    return Compare("&&", left, right)


def either(left: Expression, right: Expression) -> Expression:
    """Whether one holds."""
    return Compare("||", left, right)


def select(condition: Expression, yes: Operand, no: Operand) -> Expression:
    """`yes` where the condition holds, else `no`."""
    like = next((v.dtype for v in (yes, no) if isinstance(v, Expression)), DType.INT32)
    return Select(condition, as_expression(yes, like), as_expression(no, like))


def call(function: Function, *arguments: Operand) -> Expression:
    """Return a function call; numbers become constants of the first expression's type."""
    like = next(a.dtype for a in arguments if isinstance(a, Expression))
    return CallExpression(function, tuple(as_expression(a, like) for a in arguments))
