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
    """A C function. `symbol` is that of integers and float, `double` that of double."""

    symbol: str
    reference: Callable[..., Array] = field(repr=False, compare=False)
    """The same in numpy: integers come as int64."""
    double: str = ""
    result: DType | None = None
    """Its type; None: that of the arguments."""
    is_quick: bool = False
    """Whether it takes a few instructions."""
    is_monotone: bool = False
    """Whether it rises or falls with each argument, whatever the others."""

    def name(self, dtype: DType) -> str:
        """Return the C name for arguments of this type."""
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
EXP = Function("mcugen_expf", np.exp, "exp", is_monotone=True)
EXPM1 = _libm("expm1", np.expm1, rises=True)
LOG = Function("mcugen_logf", np.log, "log", is_monotone=True)
LOG1P = _libm("log1p", np.log1p, rises=True)
SQRT = _libm("sqrt", np.sqrt, rises=True)
FLOOR = _libm("floor", np.floor, rises=True)
CEIL = _libm("ceil", np.ceil, rises=True)
RINT = _libm("rint", np.rint, rises=True)
SIN = _libm("sin", np.sin)
COS = _libm("cos", np.cos)
TAN = _libm("tan", np.tan)
ASIN = _libm("asin", np.arcsin, rises=True)
ACOS = _libm("acos", np.arccos, rises=True)  # it falls
ATAN = _libm("atan", np.arctan, rises=True)
SINH = _libm("sinh", np.sinh, rises=True)
COSH = _libm("cosh", np.cosh)
TANH = Function("mcugen_tanhf", np.tanh, "tanh", is_monotone=True)
ASINH = _libm("asinh", np.arcsinh, rises=True)
ACOSH = _libm("acosh", np.arccosh, rises=True)
ATANH = _libm("atanh", np.arctanh, rises=True)
ERF = _libm("erf", _erf, rises=True)
FMOD = _libm("fmod", np.fmod)
POW = _libm("pow", np.power)


def _of_reals(name: str, reference: Callable[..., Array]) -> Function:
    return Function(f"mcugen_{name}f", reference, f"mcugen_{name}d", is_quick=True, is_monotone=True)


def _at_least(x: Array, low: Array) -> Array:
    """NaN stays, as in C."""
    return np.asarray(np.where(x < low, low, x))


def _at_most(x: Array, high: Array) -> Array:
    return np.asarray(np.where(x > high, high, x))


def _positive(x: Array) -> Array:
    return _at_least(x, np.asarray(0, x.dtype))


def _clamped(x: Array, low: Array, high: Array) -> Array:
    """Clamp x; where low exceeds high, the lower limit wins."""
    return np.asarray(np.where(x < low, low, np.where(x > high, high, x)))


MAX = _of_reals("max", _at_least)
MIN = _of_reals("min", _at_most)
RELU = _of_reals("relu", _positive)
CLAMP_REAL = _of_reals("clamp", _clamped)


def _of_codes(name: str, reference: Callable[..., Array], *, is_quick: bool = True) -> Function:
    return Function(f"mcugen_{name}", reference, result=DType.INT32, is_quick=is_quick, is_monotone=True)


def _saturated(x: Array) -> Array:
    return np.asarray(np.clip(x, *DType.INT32.limits))


CLAMP = _of_codes("clamp", lambda x, low, high: np.minimum(np.maximum(x, low), high))
SATURATE = {
    8: _of_codes("saturate8", lambda x: np.clip(x, *DType.INT8.limits)),
    16: _of_codes("saturate16", lambda x: np.clip(x, *DType.INT16.limits)),
}
SHIFT_RIGHT = _of_codes("shift_right", np.right_shift)
SCALE = _of_codes("scale", lambda x, m, zero: (x * m + (zero << 32) + (1 << 31)) >> 32)
REQUANTIZE = _of_codes("requantize", lambda x, m, offset, shift: _saturated((x * m + offset) >> shift), is_quick=False)
REQUANTIZE_HIGH = _of_codes("requantize_high", lambda x, m, offset: (x * m + offset) >> 32)
WEIGHTED_SUM = _of_codes("weighted_sum", lambda x, m, y, n, offset, shift: (x * m + y * n + offset) >> shift)
MULTIPLY_HIGH = Function("vmulh", lambda x, m: (x * m) >> 32, result=DType.INT32, is_monotone=True)
"""Upper word of a 64-bit product. For vectors only."""
ROUNDED_DOUBLE_PRODUCT = Function(
    "vqrdmlash",
    lambda x, m, zero: _saturated((2 * x * m + (zero << 32) + (1 << 31)) >> 32),
    result=DType.INT32,
    is_monotone=True,
)
"""Rounded upper word of a doubled product, plus an offset. For vectors only."""
INTERPOLATE = Function(
    "mcugen_interpolate",
    lambda low, high, at, bits, shift: (
        ((low << bits) + (high - low) * (at & ((1 << bits) - 1)) + (1 << (shift - 1))) >> shift
    ),
    result=DType.INT32,
)


def _ratio(x: Array, scale: Array, *_: Array) -> Array:
    return np.asarray(x / scale)


RATIO = Function("mcugen_ratio", _ratio, is_quick=True)
"""x / scale by scale, its inverse and the rest of that: see mcugen.numerics.reciprocal."""


def _rounded(x: Array, low: Array, high: Array) -> Array:
    """Half to even; NaN gives the lower end."""
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
"""A ratio as a code: rounded half to even, plus a zero point."""
QUANTIZE_REAL = {
    8: Function("mcugen_quantize8", _code_of(DType.INT8), result=DType.INT32),
    16: Function("mcugen_quantize16", _code_of(DType.INT16), result=DType.INT32),
}
"""Quantization of a real number in integer arithmetic on its bits, by the number of result bits."""
QUANTIZE_BY = {
    8: Function("mcugen_quantize_by8", lambda x, scale, zero: _code(DType.INT8)(x / scale, zero), result=DType.INT32),
    16: Function(
        "mcugen_quantize_by16", lambda x, scale, zero: _code(DType.INT16)(x / scale, zero), result=DType.INT32
    ),
}
"""Quantization of a real number by a computed scale, by the number of result bits."""
REAL = Function(
    "mcugen_real",
    lambda v, significand, exponent: v.astype(np.float32) * np.ldexp(np.float32(significand), exponent - 150),
    result=DType.FLOAT32,
)
"""A code less its zero point, of at most eight bits, times a scale as QUANTIZE_REAL has it."""
FUSED_RATIO = Function(
    "vfma", lambda x, inverse, rest: x / (1 / (inverse.astype(np.float64) + rest)).astype(np.float32)
)
"""Exact quotient by multiplications with the inverse. For vectors only, as are the functions that follow."""
NEAREST = Function("vcvtn", lambda x: np.rint(x).astype(np.int64), result=DType.INT32, is_monotone=True)
MAX_NUMBER = Function("vmaxnm", lambda x, y: np.fmax(x, y), is_monotone=True)
"""The number where the other is NaN."""
MIN_NUMBER = Function("vminnm", lambda x, y: np.fmin(x, y), is_monotone=True)


SIGMOID = Function("mcugen_sigmoid_four", lambda x: 1 / (1 + np.exp(-x)), is_monotone=True)


def _truncated(x: Array, low: Array, high: Array) -> Array:
    """Truncate toward zero and clamp; NaN gives 0."""
    whole = np.trunc(np.nan_to_num(x).astype(np.float64))
    inside = np.where((whole > float(low)) & (whole < float(high)), whole, 0).astype(np.asarray(low).dtype)
    return np.where(whole <= float(low), low, np.where(whole >= float(high), high, inside))


TRUNCATE = Function("mcugen_truncate", _truncated, result=DType.INT32, is_monotone=True)
TRUNCATE_64 = Function("mcugen_truncate64", _truncated, result=DType.INT64, is_monotone=True)
TRUNCATE_DOUBLE = Function("", _truncated, "mcugen_truncate_double", result=DType.INT64, is_monotone=True)
TRUNCATE_U64 = Function(
    "mcugen_truncate_u64",
    lambda x: _truncated(x, np.asarray(0, np.uint64), np.asarray(2**64 - 1, np.uint64)),
    result=DType.UINT64,
    is_monotone=True,
)


def _power(base: Array, exponent: Array) -> Array:
    """Modulo 2^64; 1 / base^-exponent is cut off to a whole number."""
    wrapped = np.power(base, np.maximum(exponent, 0).astype(np.uint64))
    sign = np.where(exponent % 2 != 0, base, np.uint64(1))
    inverse = np.where((base == 1) | (base == np.uint64(2**64 - 1)), sign, np.uint64(0))
    return np.where(exponent < 0, inverse, wrapped)


POWER = Function("mcugen_power", _power, result=DType.UINT64)


# --------------------------------------------------------------------------------------------- narrow floats

_C_NAMES: dict[DType, str] = {DType.FLOAT16: "half"}
"""Names of narrow floats in mcugen.h, where they differ from numpy's."""

NARROW_FLOATS = tuple(dtype for dtype in DType if dtype.is_narrow_float)

WIDEN: dict[DType, Function] = {
    dtype: Function(
        f"mcugen_{_C_NAMES.get(dtype, dtype.value)}_to_float", lambda x: x.astype(np.float32), result=DType.FLOAT32
    )
    for dtype in NARROW_FLOATS
}
"""float32 numbers of narrow ones: exact."""


def _narrow(dtype: DType, *, saturates: bool = False, suffix: str = "") -> Function:
    def rounded(x: Array) -> Array:
        info = ml_dtypes.finfo(dtype.numpy)
        limited = np.clip(x, float(info.min), float(info.max)).astype(x.dtype) if saturates else x
        with np.errstate(over="ignore"):
            return limited.astype(dtype.numpy)

    return Function(f"mcugen_float_to_{_C_NAMES.get(dtype, dtype.value)}{suffix}", rounded, result=dtype)


NARROW: dict[DType, Function] = {dtype: _narrow(dtype) for dtype in NARROW_FLOATS}
"""The nearest narrow float, ties to even: an infinity, or NaN, where there is none; float4_e2m1's end."""

NARROW_SATURATED = NARROW | {
    dtype: _narrow(dtype, saturates=True, suffix="_saturated")
    for dtype in (DType.FLOAT8_E4M3FN, DType.FLOAT8_E4M3FNUZ, DType.FLOAT8_E5M2, DType.FLOAT8_E5M2FNUZ)
}
"""Conversions to narrow floats that turn large numbers and infinities into the largest finite number."""

DOUBLE_TO_HALF = Function("", NARROW[DType.FLOAT16].reference, "mcugen_double_to_half", result=DType.FLOAT16)


def _powers(mode: str, *, saturates: bool) -> Function:
    name = f"mcugen_float_to_{DType.FLOAT8_E8M0.value}_{mode}" + "_saturated" * saturates
    return Function(name, lambda x: to_float8e8m0(x, saturates, mode), result=DType.FLOAT8_E8M0)


ROUNDINGS = ("up", "down", "nearest")

TO_POWER = {(mode, saturates): _powers(mode, saturates=saturates) for mode in ROUNDINGS for saturates in (False, True)}
"""float8_e8m0 of magnitudes, by how they are rounded; as ONNX has it, 2^-127 goes up to 2^-126."""
