# SPDX-License-Identifier: Apache-2.0
"""Functions that expressions may call, from the C library and from mcugen.h, each with its meaning in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
from onnx.numpy_helper import to_float8e8m0

from mcugen.hir.types import Array, DType


@dataclass(frozen=True)
class Function:
    """A function that expressions may call: its C symbols, and its meaning in numpy.

    Attributes:
        symbol: C name for integer and float arguments (for functions of vectors, the stem of a Helium intrinsic).
        reference: The same function in numpy; integer arguments are passed as int64.
        double: C name for double arguments; "" if it is `symbol`.
        result: Type of the result; None for that of the arguments.
        is_quick: Whether a call takes only a few instructions.
        is_monotone: Whether the function never decreases, or never increases, in each argument for any fixed values of
            the other ones.
    """

    symbol: str
    reference: Callable[..., Array] = field(repr=False, compare=False)
    double: str = ""
    result: DType | None = None
    is_quick: bool = False
    is_monotone: bool = False

    def name(self, dtype: DType) -> str:
        """Return the function's C name for arguments of this type."""
        return self.double if dtype is DType.FLOAT64 and self.double else self.symbol

    def header(self, dtype: DType) -> str:
        """Return the C header that declares the function for arguments of this type."""
        return "mcugen.h" if self.name(dtype).startswith("mcugen_") else "math.h"


def _libm(name: str, reference: Callable[..., Array], *, rises: bool = False, is_quick: bool = False) -> Function:
    return Function(f"{name}f", reference, name, is_quick=is_quick, is_monotone=rises)


_erf64 = np.vectorize(math.erf, otypes=[np.float64])


def _erf(x: Array) -> Array:
    return np.asarray(_erf64(x)).astype(x.dtype)


ABS = _libm("fabs", np.abs, is_quick=True)
"""The function fabs(x): absolute value of a real number."""
EXP = Function("mcugen_expf", np.exp, "exp", is_monotone=True)
"""Exponential, by mcugen's own implementation for float."""
EXPM1 = _libm("expm1", np.expm1, rises=True)
"""The function expm1(x) = exp(x) - 1 of a real number, precise near 0."""
LOG = Function("mcugen_logf", np.log, "log", is_monotone=True)
"""Natural logarithm, by mcugen's own implementation for float."""
LOG1P = _libm("log1p", np.log1p, rises=True)
"""The function log1p(x) = log(1 + x) of a real number, precise near 0."""
SQRT = _libm("sqrt", np.sqrt, rises=True)
"""The function sqrt(x) of a real number: square root."""
FLOOR = _libm("floor", np.floor, rises=True)
"""The function floor(x): largest whole number that is not above the real x."""
CEIL = _libm("ceil", np.ceil, rises=True)
"""The function ceil(x): smallest whole number that is not below the real x."""
RINT = _libm("rint", np.rint, rises=True)
"""The function rint(x): nearest whole number of a real x, halves to even."""
SIN = _libm("sin", np.sin)
"""The function sin(x) of a real number: sine."""
COS = _libm("cos", np.cos)
"""The function cos(x) of a real number: cosine."""
TAN = _libm("tan", np.tan)
"""The function tan(x) of a real number: tangent."""
ASIN = _libm("asin", np.arcsin, rises=True)
"""The function asin(x) of a real number: inverse sine."""
ACOS = _libm("acos", np.arccos, rises=True)  # it falls
"""The function acos(x) of a real number: inverse cosine."""
ATAN = _libm("atan", np.arctan, rises=True)
"""The function atan(x) of a real number: inverse tangent."""
SINH = _libm("sinh", np.sinh, rises=True)
"""The function sinh(x) of a real number: hyperbolic sine."""
COSH = _libm("cosh", np.cosh)
"""The function cosh(x) of a real number: hyperbolic cosine."""
TANH = Function("mcugen_tanhf", np.tanh, "tanh", is_monotone=True)
"""Hyperbolic tangent, by mcugen's own implementation for float."""
ASINH = _libm("asinh", np.arcsinh, rises=True)
"""The function asinh(x) of a real number: inverse hyperbolic sine."""
ACOSH = _libm("acosh", np.arccosh, rises=True)
"""The function acosh(x) of a real number: inverse hyperbolic cosine."""
ATANH = _libm("atanh", np.arctanh, rises=True)
"""The function atanh(x) of a real number: inverse hyperbolic tangent."""
ERF = _libm("erf", _erf, rises=True)
"""The function erf(x) of a real number: error function."""
FMOD = _libm("fmod", np.fmod)
"""Remainder of a division, with the sign of the dividend."""
POW = _libm("pow", np.power)
"""The function pow(x, y): power of real numbers."""


def _of_reals(name: str, reference: Callable[..., Array]) -> Function:
    return Function(f"mcugen_{name}f", reference, f"mcugen_{name}d", is_quick=True, is_monotone=True)


def _at_least(x: Array, low: Array) -> Array:
    """Return the larger of x and low; NaN in x stays, as in C."""
    return np.asarray(np.where(x < low, low, x))


def _at_most(x: Array, high: Array) -> Array:
    return np.asarray(np.where(x > high, high, x))


def _positive(x: Array) -> Array:
    return _at_least(x, np.asarray(0, x.dtype))


def _clamped(x: Array, low: Array, high: Array) -> Array:
    """Clamp x; where low exceeds high, the lower limit wins."""
    return np.asarray(np.where(x < low, low, np.where(x > high, high, x)))


MAX = _of_reals("max", _at_least)
"""Larger of two real numbers; if the first one is NaN, the result is NaN."""
MIN = _of_reals("min", _at_most)
"""Smaller of two real numbers; if the first one is NaN, the result is NaN."""
RELU = _of_reals("relu", _positive)
"""The function max(x, 0) of a real number; NaN stays NaN."""
CLAMP_REAL = _of_reals("clamp", _clamped)
"""A real number x limited to [low, high]; NaN stays NaN."""


def _of_codes(name: str, reference: Callable[..., Array], *, is_quick: bool = True) -> Function:
    return Function(f"mcugen_{name}", reference, result=DType.INT32, is_quick=is_quick, is_monotone=True)


def _saturated(x: Array) -> Array:
    return np.asarray(np.clip(x, *DType.INT32.limits))


def rounded_twice(x: Array, multiplier: Array, shift: Array) -> Array:
    """Return x · multiplier / 2^(31 + shift) in int64, rounded twice as TensorFlow Lite does.

    The product ÷ 2^31 is rounded half up, and its quotient by 2^shift half away from zero. A negative shift is a left
    shift of x, which wraps around like an int32.

    Args:
        x: Numbers that fit int32.
        multiplier: Integers below 2^31.
        shift: Right shifts from −30 to 31.
    """
    left, right = np.maximum(np.negative(shift), 0), np.maximum(shift, 0).astype(np.int64)
    shifted = (((np.asarray(x, np.int64) << left) + 2**31) & (2**32 - 1)) - 2**31
    high = (shifted * multiplier + 2**30) >> 31
    remainder, half = high & ((1 << right) - 1), ((1 << right) - 1) >> 1
    rounded: Array = (high >> right) + (remainder > half + (high < 0))
    return rounded


CLAMP = _of_codes("clamp", lambda x, low, high: np.minimum(np.maximum(x, low), high))
"""Function that limits an int32 x to [low, high]."""
SATURATE = {
    8: _of_codes("saturate8", lambda x: np.clip(x, *DType.INT8.limits)),
    16: _of_codes("saturate16", lambda x: np.clip(x, *DType.INT16.limits)),
}
"""Functions that limit an int32 to the range of int8 or int16, by the number of bits (8 or 16)."""
SHIFT_RIGHT = _of_codes("shift_right", np.right_shift)
"""Function that shifts an int32 right by a number of bits, arithmetically."""
SCALE = _of_codes("scale", lambda x, m, zero: (x * m + (zero << 32) + (1 << 31)) >> 32)
"""Function that returns the rounded upper word of the 64-bit x · m, plus `zero`: (x · m + (zero << 32) + 2^31) >> 32.
"""
REQUANTIZE = _of_codes("requantize", lambda x, m, offset, shift: _saturated((x * m + offset) >> shift), is_quick=False)
"""Function that returns (x · m + offset) >> shift, computed in 64 bits and saturated to int32."""
REQUANTIZE_TWICE = _of_codes("requantize_twice", rounded_twice, is_quick=False)
"""The function `rounded_twice` of int32 numbers."""
REQUANTIZE_HIGH = _of_codes("requantize_high", lambda x, m, offset: (x * m + offset) >> 32)
"""Function that returns the upper 32 bits of x · m + offset, computed in 64 bits."""
WEIGHTED_SUM = _of_codes("weighted_sum", lambda x, m, y, n, offset, shift: (x * m + y * n + offset) >> shift)
"""Function that returns (x · m + y · n + offset) >> shift, computed in 64 bits."""
MULTIPLY_HIGH = Function("vmulh", lambda x, m: (x * m) >> 32, result=DType.INT32, is_monotone=True)
"""Function that returns the upper 32 bits of the 64-bit product x · m. For Helium vectors only."""
ROUNDED_DOUBLE_PRODUCT = Function(
    "vqrdmlash",
    lambda x, m, zero: _saturated((2 * x * m + (zero << 32) + (1 << 31)) >> 32),
    result=DType.INT32,
    is_monotone=True,
)
"""Function that returns the rounded upper word of 2 · x · m, plus an offset: VQRDMLASH, for Helium vectors only."""
INTERPOLATE = Function(
    "mcugen_interpolate",
    lambda low, high, at, bits, shift: (
        ((low << bits) + (high - low) * (at & ((1 << bits) - 1)) + (1 << (shift - 1))) >> shift
    ),
    result=DType.INT32,
)
"""Function that interpolates linearly between two adjacent table entries, with a rounding right shift.

The arguments are the two entries, the table position `at` (whose lower `bits` bits are the position between the
entries), `bits`, and the shift.
"""


def _ratio(x: Array, scale: Array, *_: Array) -> Array:
    return np.asarray(x / scale)


RATIO = Function("mcugen_ratio", _ratio, is_quick=True)
"""The quotient x / scale, with the rounding of a float division, for quantization.

The arguments are x, scale, and the two parts of 1 / scale (`Reciprocal`), by which the division becomes
multiplications.
"""


def _rounded(x: Array, low: Array, high: Array) -> Array:
    """Round half to even and clamp; NaN gives the lower end."""
    return np.asarray(np.rint(np.clip(np.where(np.isnan(x), low, x), low, high)), np.int64)


def _code(dtype: DType) -> Callable[[Array, Array], Array]:
    low, high = dtype.limits
    return lambda ratio, zero: _rounded(ratio, low - zero, high - zero) + zero


def _code_of(dtype: DType) -> Callable[[Array, Array, Array, Array, Array], Array]:
    """Return the quantization to `dtype` by a scale given as significand (24 bits) and exponent of its float bits."""
    code = _code(dtype)
    return lambda x, significand, inverse, exponent, zero: code(
        x / np.ldexp(np.float32(significand), exponent - 150), zero
    )


ROUND = {8: _of_codes("round8", _code(DType.INT8)), 16: _of_codes("round16", _code(DType.INT16))}
"""Functions mcugen_round8 and mcugen_round16, by the number of bits.

They round a real ratio x / scale half to even, add the zero point, and saturate to int8 or int16.
"""
QUANTIZE_REAL = {
    8: Function("mcugen_quantize8", _code_of(DType.INT8), result=DType.INT32),
    16: Function("mcugen_quantize16", _code_of(DType.INT16), result=DType.INT32),
}
"""Functions that quantize a float in integer arithmetic on its bits, by the number of result bits; for CPUs without
FPU.

The scale is given as significand, inverse and exponent (`WholeScale`).
"""
QUANTIZE_BY = {
    8: Function("mcugen_quantize_by8", lambda x, scale, zero: _code(DType.INT8)(x / scale, zero), result=DType.INT32),
    16: Function(
        "mcugen_quantize_by16", lambda x, scale, zero: _code(DType.INT16)(x / scale, zero), result=DType.INT32
    ),
}
"""Functions that quantize a float by a scale and zero point computed at run time, by the number of result bits."""
REAL = Function(
    "mcugen_real",
    lambda v, significand, exponent: v.astype(np.float32) * np.ldexp(np.float32(significand), exponent - 150),
    result=DType.FLOAT32,
)
"""Function that dequantizes an integer of at most 8 bits, zero point subtracted, in integer arithmetic to a float.

The scale is given as significand and exponent (`WholeScale`). CPUs without an FPU use it.
"""
FUSED_RATIO = Function(
    "vfma", lambda x, inverse, rest: x / (1 / (inverse.astype(np.float64) + rest)).astype(np.float32)
)
"""The exact quotient x / scale by fused multiply-adds with the two parts of 1 / scale. For Helium vectors only."""
NEAREST = Function("vcvtn", lambda x: np.rint(x).astype(np.int64), result=DType.INT32, is_monotone=True)
"""Function that rounds a float to the nearest int32, halves to even. For Helium vectors only."""
MAX_NUMBER = Function("vmaxnm", lambda x, y: np.fmax(x, y), is_monotone=True)
"""Larger of two floats; if one is NaN, the other one. For Helium vectors only."""
MIN_NUMBER = Function("vminnm", lambda x, y: np.fmin(x, y), is_monotone=True)
"""Smaller of two floats; if one is NaN, the other one. For Helium vectors only."""


SIGMOID = Function("mcugen_sigmoid_four", lambda x: 1 / (1 + np.exp(-x)), is_monotone=True)
"""The logistic function 1 / (1 + exp(-x)) of a vector of four floats. For Helium vectors only."""


def _truncated(x: Array, low: Array, high: Array) -> Array:
    """Truncate toward zero and clamp; NaN gives 0."""
    whole = np.trunc(np.nan_to_num(x).astype(np.float64))
    inside = np.where((whole > float(low)) & (whole < float(high)), whole, 0).astype(np.asarray(low).dtype)
    return np.where(whole <= float(low), low, np.where(whole >= float(high), high, inside))


TRUNCATE = Function("mcugen_truncate", _truncated, result=DType.INT32, is_monotone=True)
"""Function that truncates a float toward 0 and limits it to [low, high] as int32; NaN gives 0."""
TRUNCATE_64 = Function("mcugen_truncate64", _truncated, result=DType.INT64, is_monotone=True)
"""Function that truncates a float toward 0 and limits it to [low, high] as int64; NaN gives 0."""
TRUNCATE_DOUBLE = Function("", _truncated, "mcugen_truncate_double", result=DType.INT64, is_monotone=True)
"""Function that truncates a double toward 0 and limits it to [low, high] as int64; NaN gives 0."""
TRUNCATE_U64 = Function(
    "mcugen_truncate_u64",
    lambda x: _truncated(x, np.asarray(0, np.uint64), np.asarray(2**64 - 1, np.uint64)),
    result=DType.UINT64,
    is_monotone=True,
)
"""Function that truncates a real number toward 0 and limits it to the range of uint64; NaN gives 0."""


def _power(base: Array, exponent: Array) -> Array:
    """Return the power modulo 2^64; 1 / base^n is truncated toward 0."""
    wrapped = np.power(base, np.maximum(exponent, 0).astype(np.uint64))
    sign = np.where(exponent % 2 != 0, base, np.uint64(1))
    inverse = np.where((base == 1) | (base == np.uint64(2**64 - 1)), sign, np.uint64(0))
    return np.where(exponent < 0, inverse, wrapped)


POWER = Function("mcugen_power", _power, result=DType.UINT64)
"""Power of integers modulo 2^64; a negative exponent gives 1 / base^n, truncated toward 0."""


# --------------------------------------------------------------------------------------------- narrow floats

_C_NAMES: dict[DType, str] = {DType.FLOAT16: "half"}
"""Names of narrow floats in mcugen.h, where they differ from numpy's."""

NARROW_FLOATS = tuple(dtype for dtype in DType if dtype.is_narrow_float)
"""Float types of at most 16 bits."""

WIDEN: dict[DType, Function] = {
    dtype: Function(
        f"mcugen_{_C_NAMES.get(dtype, dtype.value)}_to_float", lambda x: x.astype(np.float32), result=DType.FLOAT32
    )
    for dtype in NARROW_FLOATS
}
"""Exact conversions from narrow floats to float32, by type."""


def _narrow(dtype: DType, *, saturates: bool = False, suffix: str = "") -> Function:
    def rounded(x: Array) -> Array:
        info = ml_dtypes.finfo(dtype.numpy)
        limited = np.clip(x, float(info.min), float(info.max)).astype(x.dtype) if saturates else x
        with np.errstate(over="ignore"):
            return limited.astype(dtype.numpy)

    return Function(f"mcugen_float_to_{_C_NAMES.get(dtype, dtype.value)}{suffix}", rounded, result=dtype)


NARROW: dict[DType, Function] = {dtype: _narrow(dtype) for dtype in NARROW_FLOATS}
"""Conversions from float32 to the nearest narrow float, ties to even, by type.

A number that is too large becomes infinity or NaN. In float4_e2m1, which has neither, it becomes the largest number.
"""

NARROW_SATURATED = NARROW | {
    dtype: _narrow(dtype, saturates=True, suffix="_saturated")
    for dtype in (DType.FLOAT8_E4M3FN, DType.FLOAT8_E4M3FNUZ, DType.FLOAT8_E5M2, DType.FLOAT8_E5M2FNUZ)
}
"""Conversions to narrow floats that turn large numbers and infinities into the largest finite number."""

DOUBLE_TO_HALF = Function("", NARROW[DType.FLOAT16].reference, "mcugen_double_to_half", result=DType.FLOAT16)
"""Conversion from double to the nearest float16."""


def _powers(mode: str, *, saturates: bool) -> Function:
    name = f"mcugen_float_to_{DType.FLOAT8_E8M0.value}_{mode}" + "_saturated" * saturates
    return Function(name, lambda x: to_float8e8m0(x, saturates, mode), result=DType.FLOAT8_E8M0)


ROUNDINGS = ("up", "down", "nearest")
"""Names of the rounding modes of conversions to float8_e8m0, as in ONNX."""

TO_POWER = {(mode, saturates): _powers(mode, saturates=saturates) for mode in ROUNDINGS for saturates in (False, True)}
"""Functions that convert magnitudes to float8_e8m0, whose values are powers of 2.

The key is the rounding mode (one of ROUNDINGS) and whether large numbers saturate. As in ONNX, 2^-127 is rounded up to
2^-126.
"""
