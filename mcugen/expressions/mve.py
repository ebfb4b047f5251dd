# SPDX-License-Identifier: Apache-2.0
"""Printer of expressions as C with Helium intrinsics, four elements at a time: int32x4_t for integers, float32x4_t."""

from __future__ import annotations

from mcugen.expressions import functions as fn
from mcugen.expressions.c import Binding, c_text
from mcugen.expressions.intervals import bounds
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
    UnaryExpression,
)
from mcugen.hir.types import DType

TYPES = {DType.INT8: "int32x4_t", DType.INT16: "int32x4_t", DType.INT32: "int32x4_t", DType.FLOAT32: "float32x4_t"}
"""C type of a Helium vector of four elements, by element type; int8 and int16 are widened to int32."""

_ACCESS = {DType.INT8: ("b", "s32"), DType.INT16: ("h", "s32"), DType.INT32: ("w", "s32"), DType.FLOAT32: ("w", "f32")}


def load(dtype: DType, pointer: str) -> str:
    """Return the C intrinsic call that reads four adjacent elements from a pointer and widens them to 32 bits.

    Args:
        dtype: Type of the elements in memory.
        pointer: C expression of the pointer.
    """
    size, tag = _ACCESS[dtype]
    return f"vldr{size}q_{tag}({pointer})"


def load_few(dtype: DType, pointer: str) -> str:
    """Return the C intrinsic call that loads only the elements selected by the C predicate variable `few`.

    The other lanes become 0.

    Args:
        dtype: Type of the elements in memory.
        pointer: C expression of the pointer.
    """
    size, tag = _ACCESS[dtype]
    return f"vldr{size}q_z_{tag}({pointer}, few)"


def store(dtype: DType, pointer: str, value: str) -> tuple[str, str]:
    """Return two C statements that store a vector: for all four elements, and for those that predicate `few` selects.

    Args:
        dtype: Type of the elements in memory.
        pointer: C expression of the pointer.
        value: C expression of the vector.
    """
    size, tag = _ACCESS[dtype]
    return f"vstr{size}q_{tag}({pointer}, {value});", f"vstr{size}q_p_{tag}({pointer}, {value}, few);"


def spread(dtype: DType, value: str) -> str:
    """Return the C intrinsic call that fills all four lanes of a vector with one scalar.

    Args:
        dtype: Type of the scalar.
        value: C expression of the scalar.
    """
    return f"vdupq_n_{_ACCESS[dtype][1]}({value})"


_ARITHMETIC = {"+": "add", "-": "sub", "*": "mul"}


def helium_text(e: Expression) -> str:
    """Return the C text, with Helium intrinsics, of an expression whose value is a vector.

    One operand of an operation may be a scalar.

    Raises:
        NotImplementedError: Helium has no such operation.
    """
    match e:
        case Argument():
            return e.name
        case Constant() | Parameter():
            return spread(e.dtype, c_text(e))
        case BinaryExpression():
            return _binary(e)
        case Convert(DType.FLOAT32, operand) if not operand.dtype.is_float:
            return f"vcvtq_f32_s32({helium_text(operand)})"
        case Entry():
            return _entry(e)
        case Select(Compare("<", left, Constant() as right), yes, no) if e.dtype is DType.INT32:
            condition = f"vcmpltq_n_s32({helium_text(left)}, {c_text(right)})"
            return f"vpselq_s32({helium_text(yes)}, {helium_text(no)}, {condition})"
        case Select(Compare("<", left, Constant() as right), yes, no) if e.dtype is DType.FLOAT32:
            condition = _is_below(helium_text(left), c_text(right))
            return f"vpselq_f32({helium_text(yes)}, {helium_text(no)}, {condition})"
        case UnaryExpression("-", operand) if e.dtype is DType.FLOAT32:
            return f"vnegq_f32({helium_text(operand)})"
        case Shared():
            return helium_text(e.operand)
        case CallExpression():
            return _call(e)
    raise NotImplementedError(str(e))


def _binary(e: BinaryExpression) -> str:
    tag, left = _ACCESS[e.dtype][1], helium_text(e.left)
    number = c_text(e.right) if isinstance(e.right, Constant | Parameter) else None
    match e.operator, e.right:
        case "+", BinaryExpression("*", vector, Parameter() as factor) if tag == "s32":
            return f"vmlaq_n_s32({left}, {helium_text(vector)}, {c_text(factor)})"
        case "+" | "-" | "*" as sign, _:
            name = f"v{_ARITHMETIC[sign]}q"
            return (
                f"{name}_{tag}({left}, {helium_text(e.right)})"
                if number is None
                else f"{name}_n_{tag}({left}, {number})"
            )
        case "&", _:
            return f"vandq_s32({left}, {helium_text(e.right)})"
        case "<<", Constant():
            return f"vshlq_n_s32({left}, {number})"
        case ">>", Constant():
            return f"vshrq_n_s32({left}, {number})"
    raise NotImplementedError(str(e))


def _entry(e: Entry) -> str:
    """Gathered; a constant of the index goes to the address where the rest is not negative."""
    table, index = c_text(e.table), e.index
    match index:
        case BinaryExpression("+", rest, Constant() as constant) if _is_natural(rest):
            table, index = f"({table} + {c_text(constant)})", rest
    size, shifted = ("b", "") if e.dtype is DType.INT8 else ("h" if e.dtype is DType.INT16 else "w", "_shifted")
    return f"vldr{size}q_gather{shifted}_offset_s32({table}, vreinterpretq_u32_s32({helium_text(index)}))"


def _is_natural(e: Expression) -> bool:
    """Return whether it is never negative."""
    interval = bounds(e, {})
    return interval is not None and bool((interval[0] >= 0).all())


def _call(e: CallExpression) -> str:
    value, *parameters = e.arguments
    text, numbers = helium_text(value), [c_text(a, Binding.PREFIX) for a in parameters]
    match e.function:
        case fn.CLAMP:
            return "vminq_s32(vmaxq_s32({}, {}), {})".format(text, *map(helium_text, parameters))
        case fn.SHIFT_RIGHT:
            return f"vshlq_r_s32({text}, -{numbers[0]})"
        case fn.MULTIPLY_HIGH:
            return f"vmulhq_s32({text}, {helium_text(parameters[0])})"
        case fn.ROUNDED_DOUBLE_PRODUCT:
            return f"vqrdmlashq_n_s32({text}, {helium_text(parameters[0])}, {numbers[1]})"
        case fn.FUSED_RATIO:
            return f"vfmaq_n_f32(vmulq_n_f32({text}, {numbers[1]}), {text}, {numbers[0]})"
        case fn.NEAREST:
            return f"vcvtnq_s32_f32({text})"
        case fn.MAX_NUMBER:
            return f"vmaxnmq_f32({text}, {helium_text(parameters[0])})"
        case fn.MIN_NUMBER:
            return f"vminnmq_f32({text}, {helium_text(parameters[0])})"
        case fn.ABS:
            return f"vabsq_f32({text})"
        case fn.EXP:
            return f"mcugen_exp_four({text})"
        case fn.TANH:
            return f"mcugen_tanh_four({text})"
        case fn.SIGMOID:
            return f"{fn.SIGMOID.symbol}({text})"
        case fn.MAX:
            return _at_least(text, numbers[0])
        case fn.MIN:
            return _at_most(text, numbers[0])
        case fn.CLAMP_REAL:
            return _at_most(_at_least(text, numbers[0]), numbers[1])
    raise NotImplementedError(str(e))


def _at_least(value: str, low: str) -> str:
    """Reals no less than `low`; NaNs stay, as no comparison with them holds."""
    return f"vpselq_f32(vdupq_n_f32({low}), {value}, {_is_below(value, low)})"


def _is_below(value: str, number: str) -> str:
    """Return the predicate value < number."""
    # not vcmplt, which holds for a NaN (as the condition LT does): greater does not
    return f"vcmpgtq_f32(vdupq_n_f32({number}), {value})"


def _at_most(value: str, high: str) -> str:
    return f"vpselq_f32(vdupq_n_f32({high}), {value}, vcmpgtq_n_f32({value}, {high}))"
