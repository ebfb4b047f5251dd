# SPDX-License-Identifier: Apache-2.0
"""Arithmetic, activations and comparisons: one table row or one class a function."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import IntegerForm, Signature
from mcugen.hir.types import Array, DType, TensorType
from mcugen.lir.builder import Builder, Kernel
from mcugen.lir.program import real_param
from mcugen.ops import helium
from mcugen.ops.conversion import Cast
from mcugen.ops.curves import Line, limited
from mcugen.ops.elementwise import Elementwise, Scalars, emit_elementwise, real_data
from mcugen.ops.fixedpoint import Range, Requantizer, clamp_range, is_quantized, largest_code, quantize, same_codes
from mcugen.ops.kernels import cmsis
from mcugen.ops.kernels.activations import dense_int8, emit_sum
from mcugen.ops.onnx_node import OnnxNode, Refusal, onnx_operator


def clamp_text(text: str, clamp: Range | None, scalar: Scalars, dtype: DType = DType.FLOAT32) -> str:
    """C text of a real number of type `dtype` clamped to `clamp`; infinite bounds cost nothing."""
    if clamp is None or clamp == (-math.inf, math.inf):
        return text
    low, high = (real_param(bound, dtype) for bound in clamp)
    suffix = "d" if dtype is DType.FLOAT64 else "f"
    if math.isinf(high):
        return f"mcugen_max{suffix}({text}, {scalar(low)})" if low else f"mcugen_relu{suffix}({text})"
    if math.isinf(low):
        return f"mcugen_min{suffix}({text}, {scalar(high)})"
    return f"mcugen_clamp{suffix}({text}, {scalar(low)}, {scalar(high)})"


def clamp_vector(value: str, clamp: Range | None, scalar: Scalars) -> str:
    """The same of four reals by Helium."""
    low, high = (
        None if math.isinf(bound) else scalar(real_param(bound, DType.FLOAT32))
        for bound in clamp or (-math.inf, math.inf)
    )
    return helium.clamped_reals(value, low, high)


# ---------------------------------------------------------------------------------------------- one operand


@dataclass(frozen=True)
class Clamp(Elementwise):
    """y = min(max(x, low), high): Relu, Relu6 and Clip."""

    mnemonic: ClassVar[str] = "clamp"
    low: float = -math.inf
    """A whole number (int) for integers, whose range may exceed that of float."""
    high: float = math.inf

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Clamps the reals; NaN stays NaN."""
        (x,) = arrays
        low, high = (None if math.isinf(bound) else x.dtype.type(bound) for bound in (self.low, self.high))
        bounded = x if low is None else np.maximum(x, low)
        return (bounded if high is None else np.minimum(bounded, high),)

    def expression(self, sig: Signature, args: Sequence[str], scalar: Scalars) -> str:
        """Comparison and selection."""
        dtype = sig.output.dtype
        if dtype.is_float:
            return clamp_text(args[0], (self.low, self.high), scalar, dtype)
        if math.isinf(self.low) and math.isinf(self.high):
            return args[0]
        lowest, highest = dtype.limits
        low = lowest if self.low <= lowest else int(self.low)
        high = highest if self.high >= highest else int(self.high)
        cast = "" if lowest or dtype.nbytes < 4 else f"({dtype.c})"  # C must not compare signed to unsigned
        least, most = cast + scalar(low), cast + scalar(high)
        return f"({dtype.c})({args[0]} < {least} ? {least} : {args[0]} > {most} ? {most} : {args[0]})"

    def vector(self, sig: Signature, args: Sequence[str], scalar: Scalars) -> str | None:
        """Of reals."""
        return clamp_vector(args[0], (self.low, self.high), scalar) if sig.output.dtype is DType.FLOAT32 else None


def _unsigned(dtype: DType) -> str:
    """The unsigned C type in which integers of that type wrap: at least 32 bits, else C would promote it to int."""
    return "uint64_t" if dtype.nbytes == 8 else "uint32_t"


@dataclass(frozen=True)
class Function:
    """One row of the table of functions: numpy reference; C for floats, for integers (and bool) where it exists.

    In the C text, {x} and {y} are operands, {a} and {b} attributes, {t} is the element type and {u} the unsigned
    type in which it wraps. {f} is the suffix of literals and of math.h for the float type, {s} that of mcugen.h.
    """

    reference: Callable[..., Array]
    c: str
    ints: str = ""
    unsigned: str = ""
    """For unsigned types where `ints` would ask whether they are negative."""
    tests: bool = False
    """Whether the result is a bool."""

    def text(self, dtype: DType) -> str:
        """The C text for operands of `dtype`, not yet filled in; "" where there is none."""
        if dtype.is_float:
            return self.c
        signed = dtype.is_integer and dtype.limits[0] < 0
        return self.ints if signed else self.unsigned or self.ints

    def expression(self, dtype: DType, operands: Sequence[str], constants: Sequence[str] = ()) -> str:
        """The C text of the function of operands of `dtype`."""
        double = dtype is DType.FLOAT64
        words = {
            "t": dtype.c,
            "u": _unsigned(dtype),
            "bits": 8 * dtype.nbytes,
            "f": "" if double else "f",
            "s": "d" if double else "f",
            "exp": "exp" if double else "mcugen_expf",
            "rsqrt2": "0.70710678118654752" if double else "0.70710678f",
            "sqrt2_pi": "0.79788456080286536" if double else "0.79788456f",
        }
        values = dict(zip("xy", operands, strict=False)) | dict(zip("ab", constants, strict=False))
        return self.text(dtype).format(**words, **values)


_erf64 = np.vectorize(math.erf, otypes=[np.float64])


def _erf(x: Array) -> Array:
    result: Array = _erf64(x).astype(x.dtype)
    return result


def _gelu_tanh(x: Array) -> Array:
    result: Array = x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi).astype(x.dtype) * (x + x.dtype.type(0.044715) * x**3)))
    return result


_SOFTPLUS = "mcugen_max{s}({x}, 0.0{f}) + log1p{f}({exp}(-fabs{f}({x})))"

UNARY: dict[str, Function] = {
    "Abs": Function(np.abs, "fabs{f}({x})", "({t})({x} < 0 ? 0u - ({u}){x} : ({u}){x})", "{x}"),
    "Neg": Function(np.negative, "-{x}", "({t})(0u - ({u}){x})"),
    "Exp": Function(np.exp, "{exp}({x})"),
    "Log": Function(np.log, "log{f}({x})"),
    "Sqrt": Function(np.sqrt, "sqrt{f}({x})"),
    "Reciprocal": Function(np.reciprocal, "1.0{f} / {x}"),
    "Floor": Function(np.floor, "floor{f}({x})"),
    "Ceil": Function(np.ceil, "ceil{f}({x})"),
    "Round": Function(np.rint, "rint{f}({x})"),
    "Sign": Function(
        np.sign,
        "({x} > 0.0{f} ? 1.0{f} : {x} < 0.0{f} ? -1.0{f} : {x})",
        "({t})(({x} > 0) - ({x} < 0))",
        "({t})({x} > 0)",
    ),
    "Sin": Function(np.sin, "sin{f}({x})"),
    "Cos": Function(np.cos, "cos{f}({x})"),
    "Tan": Function(np.tan, "tan{f}({x})"),
    "Asin": Function(np.arcsin, "asin{f}({x})"),
    "Acos": Function(np.arccos, "acos{f}({x})"),
    "Atan": Function(np.arctan, "atan{f}({x})"),
    "Sinh": Function(np.sinh, "sinh{f}({x})"),
    "Cosh": Function(np.cosh, "cosh{f}({x})"),
    "Asinh": Function(np.arcsinh, "asinh{f}({x})"),
    "Acosh": Function(np.arccosh, "acosh{f}({x})"),
    "Atanh": Function(np.arctanh, "atanh{f}({x})"),
    "Erf": Function(_erf, "erf{f}({x})"),
    "Tanh": Function(np.tanh, "tanh{f}({x})"),
    "Sigmoid": Function(lambda x: 1 / (1 + np.exp(-x)), "1.0{f} / (1.0{f} + {exp}(-{x}))"),
    "Swish": Function(lambda x, a: x / (1 + np.exp(-a * x)), "{x} / (1.0{f} + {exp}(-{a} * {x}))"),
    "HardSwish": Function(
        lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
        "{x} * mcugen_clamp{s}({x} * (1.0{f} / 6.0{f}) + 0.5{f}, 0.0{f}, 1.0{f})",
    ),
    "Softplus": Function(lambda x: np.logaddexp(x, x.dtype.type(0)), _SOFTPLUS),
    "Softsign": Function(lambda x: x / (1 + np.abs(x)), "{x} / (1.0{f} + fabs{f}({x}))"),
    "Mish": Function(lambda x: x * np.tanh(np.logaddexp(x, x.dtype.type(0))), f"{{x}} * tanh{{f}}({_SOFTPLUS})"),
    "LeakyRelu": Function(lambda x, a: np.where(x < 0, a * x, x), "({x} < 0.0{f} ? {a} * {x} : {x})"),
    "Elu": Function(lambda x, a: np.where(x < 0, a * np.expm1(x), x), "({x} < 0.0{f} ? {a} * expm1{f}({x}) : {x})"),
    "Celu": Function(
        lambda x, a: np.where(x < 0, a * np.expm1(x / a), x), "({x} < 0.0{f} ? {a} * expm1{f}({x} / {a}) : {x})"
    ),
    "Selu": Function(
        lambda x, a, b: b * np.where(x < 0, a * np.expm1(x), x),
        "{b} * ({x} < 0.0{f} ? {a} * expm1{f}({x}) : {x})",
    ),
    "HardSigmoid": Function(
        lambda x, a, b: np.clip(a * x + b, 0, 1), "mcugen_clamp{s}({a} * {x} + {b}, 0.0{f}, 1.0{f})"
    ),
    "ThresholdedRelu": Function(lambda x, a: np.where(x > a, x, 0), "({x} > {a} ? {x} : 0.0{f})"),
    "Shrink": Function(
        lambda x, a, b: np.where(x < -a, x + b, np.where(x > a, x - b, 0)),
        "({x} < -{a} ? {x} + {b} : {x} > {a} ? {x} - {b} : 0.0{f})",
    ),
    "Gelu": Function(
        lambda x: x * 0.5 * (1 + _erf(x / np.sqrt(x.dtype.type(2)))),
        "{x} * 0.5{f} * (1.0{f} + erf{f}({x} * {rsqrt2}))",
    ),
    "GeluTanh": Function(
        _gelu_tanh, "{x} * 0.5{f} * (1.0{f} + tanh{f}({sqrt2_pi} * ({x} + 0.044715{f} * {x} * {x} * {x})))"
    ),
    "FiniteOrZero": Function(
        lambda x: np.where(np.isfinite(x), x, np.zeros_like(x)), "({x} - {x} == 0.0{f} ? {x} : 0.0{f})"
    ),
    "Not": Function(np.logical_not, "", "!{x}", tests=True),
    "BitwiseNot": Function(np.invert, "", "({t})~{x}"),
    "IsNaN": Function(np.isnan, "{x} != {x}", tests=True),
    "IsInf": Function(  # a and b: whether +inf and -inf count
        lambda x, a, b: (np.isposinf(x) & (a != 0)) | (np.isneginf(x) & (b != 0)),
        "({x} == {x} && {x} - {x} != 0.0{f} && ({x} > 0.0{f} ? {a} : {b}) > 0.0{f})",
        tests=True,
    ),
}

_ALPHA_BETA = {
    "LeakyRelu": (("alpha", 0.01),),
    "Elu": (("alpha", 1.0),),
    "Celu": (("alpha", 1.0),),
    "Selu": (("alpha", 1.6732632423543772), ("gamma", 1.0507009873554805)),
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
    "ThresholdedRelu": (("alpha", 1.0),),
    "Swish": (("alpha", 1.0),),
    "Shrink": (("lambd", 0.5), ("bias", 0.0)),
    "IsInf": (("detect_positive", 1), ("detect_negative", 1)),
}


@dataclass(frozen=True)
class Unary(Elementwise):
    """y = f(x), f a row of UNARY, with up to two attributes (a, b)."""

    function: str = field(default="", repr=False)
    constants: tuple[float, ...] = ()

    @classmethod
    def spelled(cls) -> Mapping[str, Mapping[str, object]]:
        """By function."""
        return {function.lower(): {"function": function} for function in UNARY}

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.lower()

    def result_dtype(self, *dtypes: DType) -> DType:
        """The operand's; bool for tests."""
        return DType.BOOL if UNARY[self.function].tests else dtypes[0]

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """The row's numpy reference."""
        (x,) = arrays
        constants = (x.dtype.type(c) for c in self.constants)
        return (np.asarray(UNARY[self.function].reference(x, *constants)).astype(sig.output.dtype.numpy),)

    def expression(self, sig: Signature, args: Sequence[str], scalar: Scalars) -> str:
        """The row's C text."""
        dtype = sig.input(0).dtype
        constants = [scalar(real_param(c, dtype)) for c in self.constants]
        return UNARY[self.function].expression(dtype, args, constants)


# --------------------------------------------------------------------------------------------- two operands

_WRAP = "({t})(({u}){x} {op} ({u}){y})"  # unsigned arithmetic wraps; signed overflow is undefined in C


def _wrapping(op: str) -> str:
    return _WRAP.replace("{op}", op)


def _divide(x: Array, y: Array) -> Array:
    """Cut off towards zero for integers, whose quotient by 0 is 0."""
    if x.dtype.kind == "f":
        ratio: Array = x / y
        return ratio
    divisor = np.where(y == 0, np.ones_like(y), y)
    floor, rest = x // divisor, x % divisor
    truncated: Array = np.where(y == 0, 0, floor + ((rest != 0) & ((x < 0) != (y < 0))))
    return truncated


def _remainder(truncating: bool) -> Callable[[Array, Array], Array]:
    """With the sign of the dividend (truncating) or of the divisor; integers modulo 0 are 0."""
    function = np.fmod if truncating else np.mod

    def remainder(x: Array, y: Array) -> Array:
        if x.dtype.kind == "f":
            return np.asarray(function(x, y))
        rest = function(x, np.where(y == 0, np.ones_like(y), y))
        return np.where(y == 0, np.zeros_like(rest), rest)

    return remainder


def _power(x: Array, y: Array) -> Array:
    """For integers modulo the type's range; negative exponents give whole numbers, cut off."""
    if x.dtype.kind == "f":
        return np.asarray(np.power(x, y))
    y = y.astype(np.int64)
    wrapped = np.power(x.astype(np.uint64), np.maximum(y, 0).astype(np.uint64)).astype(x.dtype)
    sign = np.where(y % 2 != 0, x, np.ones_like(x))
    inverse = np.where((x == 1) | ((x < 0) & (x + 1 == 0)), sign, np.zeros_like(x))
    return np.where(y < 0, inverse, wrapped)


def _shift(left: bool) -> Callable[[Array, Array], Array]:
    """By a negative amount or all bits only the sign is left, and of a shift to the left nothing."""
    function = np.left_shift if left else np.right_shift

    def shift(x: Array, y: Array) -> Array:
        inside = (y >= 0) & (y < 8 * x.dtype.itemsize)
        sign = np.zeros_like(x) if left else np.where(x < 0, ~np.zeros_like(x), np.zeros_like(x))
        return np.where(inside, function(x, np.where(inside, y, np.zeros_like(y))), sign)

    return shift


_REST = "({y} == 0 || {y} == -1 ? 0 : {x} % {y})"
_UNSIGNED_REST = "({t})({y} == 0 ? 0 : {x} % {y})"
_FLOORED = "({y} == 0 || {y} == -1 ? 0 : {x} % {y} != 0 && ({x} < 0) != ({y} < 0) ? {x} % {y} + {y} : {x} % {y})"
_FLOAT_FLOORED = (
    "(fmod{f}({x}, {y}) != 0.0{f} && ({x} < 0.0{f}) != ({y} < 0.0{f}) ? fmod{f}({x}, {y}) + {y} : fmod{f}({x}, {y}))"
)

BINARY: dict[str, Function] = {
    "Add": Function(np.add, "{x} + {y}", _wrapping("+")),
    "Sub": Function(np.subtract, "{x} - {y}", _wrapping("-")),
    "Mul": Function(np.multiply, "{x} * {y}", _wrapping("*")),
    "Div": Function(_divide, "{x} / {y}", "({t})({y} == 0 ? 0 : {x} / {y})"),
    "Mod": Function(_remainder(False), _FLOAT_FLOORED, f"({{t}}){_FLOORED}", _UNSIGNED_REST),
    "Fmod": Function(_remainder(True), "fmod{f}({x}, {y})", f"({{t}}){_REST}", _UNSIGNED_REST),
    "Pow": Function(_power, "pow{f}({x}, {y})", "({t})mcugen_power((uint64_t){x}, (int64_t){y})"),
    "Max": Function(np.maximum, "({x} >= {y} || {x} != {x} ? {x} : {y})", "({x} > {y} ? {x} : {y})"),
    "Min": Function(np.minimum, "({x} <= {y} || {x} != {x} ? {x} : {y})", "({x} < {y} ? {x} : {y})"),
    "PRelu": Function(
        lambda x, s: np.where(x < 0, s * x, x),
        "({x} < 0.0{f} ? {y} * {x} : {x})",
        "({x} < 0 ? ({t})(({u}){x} * ({u}){y}) : {x})",
    ),
    "Equal": Function(np.equal, "{x} == {y}", "{x} == {y}", tests=True),
    "Greater": Function(np.greater, "{x} > {y}", "{x} > {y}", tests=True),
    "GreaterOrEqual": Function(np.greater_equal, "{x} >= {y}", "{x} >= {y}", tests=True),
    "Less": Function(np.less, "{x} < {y}", "{x} < {y}", tests=True),
    "LessOrEqual": Function(np.less_equal, "{x} <= {y}", "{x} <= {y}", tests=True),
    "And": Function(np.logical_and, "", "{x} && {y}", tests=True),
    "Or": Function(np.logical_or, "", "{x} || {y}", tests=True),
    "Xor": Function(np.logical_xor, "", "{x} != {y}", tests=True),
    "BitwiseAnd": Function(np.bitwise_and, "", "({t})({x} & {y})"),
    "BitwiseOr": Function(np.bitwise_or, "", "({t})({x} | {y})"),
    "BitwiseXor": Function(np.bitwise_xor, "", "({t})({x} ^ {y})"),
    "ShiftLeft": Function(
        _shift(True),
        "",
        "({t})({y} < 0 || {y} >= {bits} ? 0u : ({u}){x} << {y})",
        "({t})({y} >= {bits} ? 0u : ({u}){x} << {y})",
    ),
    "ShiftRight": Function(
        _shift(False),
        "",
        "({t})({y} < 0 || {y} >= {bits} ? ({x} < 0 ? -1 : 0) : {x} >> {y})",
        "({t})({y} >= {bits} ? 0u : ({u}){x} >> {y})",
    ),
}
_VECTORS = {"Add": "vaddq_f32", "Sub": "vsubq_f32", "Mul": "vmulq_f32"}
_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}
_SUM_SIGNS = {"Add": (1, 1), "Sub": (1, -1)}


def _reduced(terms: tuple[int, ...], shift: int) -> tuple[tuple[int, ...], int]:
    """The same sum >> shift with as few bits as it takes: those that are 0 in all terms are dropped."""
    spare = min(shift, *((t & -t).bit_length() - 1 for t in terms if t))
    return tuple(t >> spare for t in terms), shift - spare


@dataclass(frozen=True)
class FixedSum:
    """q = (x·m0 + y·m1 + offset) >> shift: the sum of two quantized tensors, one rounding, half up.

    Of int8 tensors in 32 bits: the shift is the largest for which no intermediate exceeds 2^30 (libraries double it);
    the factors then carry some 20 bits. Where a tensor is int16 it is `wide`: 64 bits, and factors of 31, unless
    scales that differ by powers of two make do with less.
    """

    factors: tuple[int, int]
    offset: int
    shift: int
    wide: bool

    @staticmethod
    def of(x: TensorType, y: TensorType, out: TensorType, signs: tuple[int, int]) -> FixedSum | None:
        """For these types, or None where the inputs' unit is so much coarser that 8 bits of factor are lost."""
        ratios = [sign * t.q.scale[0] / out.q.scale[0] for sign, t in zip(signs, (x, y), strict=True)]
        wide = any(t.dtype is DType.INT16 for t in (x, y, out))
        codes, room, most, fewest = (65536, 2**47, 32, 16) if wide else (256, 2**30 - 1, 30, 13)
        bound = codes * sum(map(abs, ratios)) + abs(out.q.zero_point) + 2
        shift = min(most, math.floor(math.log2(room / bound)))
        if shift < fewest:
            return None
        m0, m1 = (round(r * 2**shift) for r in ratios)
        offset = (out.q.zero_point << shift) + (1 << (shift - 1)) - x.q.zero_point * m0 - y.q.zero_point * m1
        (m0, m1, offset), shift = _reduced((m0, m1, offset), shift)
        wide = wide and codes // 2 * (abs(m0) + abs(m1)) + abs(offset) >= 2**31
        return FixedSum((m0, m1), offset, shift, wide)

    def __call__(self, x: Array, y: Array) -> Array:
        """The specification."""
        q: Array = (x * self.factors[0] + y * self.factors[1] + self.offset) >> self.shift
        return q

    def text(self, x: str, y: str, scalar: Scalars) -> str:
        """The C expression."""
        if self.wide:
            up = 32 - self.shift  # the upper word of 64 bits costs least
            up = up if max(map(abs, self.factors)) << up < 2**31 else 0
            m0, m1 = (scalar(m << up) for m in self.factors)
            return f"mcugen_weighted_sum({x}, {m0}, {y}, {m1}, {_int64(scalar, self.offset << up)}, {self.shift + up})"
        factors, offset, shift = self._whole()
        terms = [v if m == 1 else f"{v} * {scalar(m)}" for v, m in zip((x, y), factors, strict=True)]
        total = " + ".join(terms + [scalar(offset)] * (offset != 0))
        return f"mcugen_shift_right({total}, {scalar(shift)})" if shift else total

    def vector(self, x: str, y: str, scalar: Scalars) -> str | None:
        """The same by Helium; None: 32 bits have no room for it."""
        factors, offset, shift = self._whole()
        return None if self.wide else helium.weighted_sum([(x, factors[0]), (y, factors[1])], offset, shift, scalar)

    def _whole(self) -> tuple[tuple[int, int], int, int]:
        """Factors, offset and shift; without a shift where factors are whole numbers, which need no rounding."""
        if any(m % (1 << self.shift) for m in self.factors):
            return self.factors, self.offset, self.shift
        return (self.factors[0] >> self.shift, self.factors[1] >> self.shift), self.offset >> self.shift, 0


def _rescaled(q: Array, of: TensorType, out: TensorType) -> Array:
    """Codes of `of` as codes of `out`."""
    return q if same_codes(of, out) else Line.requantization(of, out)(q)


def _rescaled_text(text: str, of: TensorType, out: TensorType, scalar: Scalars) -> str:
    """The C twin of _rescaled."""
    return text if same_codes(of, out) else Line.requantization(of, out).text(text, scalar)


def _recoded(graph: Graph, value: Value | None, out: TensorType) -> Value | None:
    """A constant of numbers as codes of `out`; other tensors stay."""
    if value is None or value.data is None or value.type.dtype is DType.BOOL:
        return value
    codes = np.asarray(quantize(real_data(value), out.q, out.dtype))
    return graph.constant(f"{value.name}.codes", codes, out.quant)


_SELECTIONS = {"Max": "mcugen_clamp({x}, {y}, 32767)", "Min": "mcugen_clamp({x}, -32768, {y})"}
"""C of codes."""


@dataclass(frozen=True)
class Binary(Elementwise):
    """y = f(x0, x1), f a row of BINARY; the real result may be clamped. On codes: see integer()."""

    library: ClassVar[tuple[Kernel, ...]] = cmsis.BINARY
    function: str = field(default="", repr=False)
    clamp: Range | None = None

    @classmethod
    def spelled(cls) -> Mapping[str, Mapping[str, object]]:
        """By function."""
        return {function.lower(): {"function": function} for function in BINARY}

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.lower()

    def result_dtype(self, *dtypes: DType) -> DType:
        """bool for comparisons."""
        return DType.BOOL if BINARY[self.function].tests else dtypes[0]

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Float or wrapping integers by the table; quantized tensors in fixed point."""
        x, y = arrays
        out = sig.output
        if out.quant is not None:
            return (self._evaluate_fixed(sig, x, y),)
        result = np.asarray(BINARY[self.function].reference(x, y)).astype(out.dtype.numpy)
        return (result if self.clamp is None else np.clip(result, *self.clamp).astype(result.dtype),)

    @property
    def is_monotone(self) -> bool:
        """Arithmetic and extremes of codes."""
        return self.function in ("Add", "Sub", "Mul", "Max", "Min")

    def _evaluate_fixed(self, sig: Signature, x: Array, y: Array) -> Array:
        out = sig.output
        low, high = clamp_range(self.clamp, out.q, out.dtype)
        q: Array
        a, b = x.astype(np.int64), y.astype(np.int64)
        if self.function in _SELECTIONS:
            q = BINARY[self.function].reference(_rescaled(a, sig.input(0), out), _rescaled(b, sig.input(1), out))
        elif self.function in _SUM_SIGNS:
            fixed = self.fixed_sum(sig)
            assert fixed is not None
            q = fixed(a, b)
        else:
            product = (a - sig.input(0).q.zero_point) * (b - sig.input(1).q.zero_point)
            q = self.product(sig)(product, low, high)
            if self.function == "PRelu":
                q = np.where(a < sig.input(0).q.zero_point, q, _rescaled(a, sig.input(0), out))
        return np.clip(q, low, high).astype(out.dtype.numpy)

    def fixed_sum(self, sig: Signature) -> FixedSum | None:
        """Of codes: how a sum or difference is computed, if it can be."""
        return FixedSum.of(sig.input(0), sig.input(1), sig.output, _SUM_SIGNS[self.function])

    def lower(self, node: Node, builder: Builder) -> None:
        """One loop; of int8 tensors of one shape, a sum has a kernel of its own."""
        sig, out = node.sig, node.output.type
        is_sum = out.quant is not None and self.function in _SUM_SIGNS and dense_int8(sig)
        fixed = self.fixed_sum(sig) if is_sum else None
        if fixed is None:
            return super().lower(node, builder)
        limits = clamp_range(self.clamp, out.q, out.dtype)
        emit_sum(node, builder, fixed.factors, fixed.offset, fixed.shift, limits)

    def product(self, sig: Signature) -> Requantizer:
        """From products of codes less their zero points to the result's codes."""
        scale = sig.input(0).q.scale[0] * sig.input(1).q.scale[0] / sig.output.q.scale[0]
        types = [sig.input(i).dtype for i in (0, 1)]
        sums = np.asarray([math.prod(map(largest_code, types))]) if DType.INT16 in types else None
        return Requantizer.of(scale, sig.output.q.zero_point, sums=sums)

    def expression(self, sig: Signature, args: Sequence[str], scalar: Scalars) -> str:
        """Fixed point for quantized tensors, else the row's C text."""
        x, y = args
        out = sig.output
        if out.quant is None:
            dtype = sig.input(0).dtype
            body = BINARY[self.function].expression(dtype, args)
            if self.function == "Div" and dtype.numpy.kind == "i":  # the least integer over -1 overflows
                body = f"({dtype.c})({y} == -1 ? ({dtype.c})(0u - ({_unsigned(dtype)}){x}) : {body})"
            return clamp_text(body, self.clamp, scalar, dtype)
        limits = clamp_range(self.clamp, out.q, out.dtype)
        return f"({out.dtype.c}){limited(self._fixed_text(sig, x, y, scalar), *limits, scalar)}"

    def vector(self, sig: Signature, args: Sequence[str], scalar: Scalars) -> str | None:
        """Sums and products of codes, and of reals."""
        x, y = args
        out = sig.output
        if out.quant is None:
            name = _VECTORS.get(self.function) if out.dtype is DType.FLOAT32 else None
            return name and clamp_vector(f"{name}({x}, {y})", self.clamp, scalar)
        value = self._fixed_vector(sig, x, y, scalar)
        return value and helium.limited(value, *clamp_range(self.clamp, out.q, out.dtype), scalar)

    def _fixed_vector(self, sig: Signature, x: str, y: str, scalar: Scalars) -> str | None:
        if self.function in _SUM_SIGNS:
            fixed = self.fixed_sum(sig)
            return fixed.vector(x, y, scalar) if fixed else None
        if self.function != "Mul":
            return None
        x, y = (
            f"vsubq_n_s32({v}, {scalar(t.q.zero_point)})" if t.q.zero_point else v
            for v, t in ((x, sig.input(0)), (y, sig.input(1)))
        )
        return helium.requantized(f"vmulq_s32({x}, {y})", self.largest_product(sig), self.product(sig), scalar)

    def largest_product(self, sig: Signature) -> int:
        """What is not exceeded by the magnitude of a product of codes less their zero points."""
        return math.prod(
            -2 * t.dtype.limits[0] if t.q.zero_point else -t.dtype.limits[0] for t in map(sig.input, (0, 1))
        )

    def _fixed_text(self, sig: Signature, x: str, y: str, scalar: Scalars) -> str:
        """The C twin of _evaluate_fixed, before the clamp."""
        if self.function in _SELECTIONS:
            x, y = (_rescaled_text(v, sig.input(i), sig.output, scalar) for i, v in enumerate((x, y)))
            return _SELECTIONS[self.function].format(x=x, y=y)
        if self.function in _SUM_SIGNS:
            fixed = self.fixed_sum(sig)
            assert fixed is not None
            return fixed.text(x, y, scalar)
        requantize = self.product(sig)
        zeros = [sig.input(i).q.zero_point for i in (0, 1)]
        x_real, y_real = (f"({v} + {scalar(-zero)})" if zero else v for v, zero in zip((x, y), zeros, strict=True))
        (factor, offset), shift = _reduced((int(requantize.multiplier[0]), requantize.offset), requantize.shift)
        most = self.largest_product(sig)
        if self.function == "Mul" and most * factor + abs(offset) < 2**31:
            return f"mcugen_shift_right({x_real} * {y_real} * {scalar(factor)} + {scalar(offset)}, {scalar(shift)})"
        value = _requantized_text(f"{x_real} * {y_real}", most, requantize, scalar)
        if self.function == "Mul":
            return value
        return f"({x_real} < 0 ? {value} : {_rescaled_text(x, sig.input(0), sig.output, scalar)})"

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """x + 0, x − 0, x · 1 and x / 1 are x (−0 may keep its sign)."""
        neutral = _NEUTRAL.get(self.function)
        if neutral is None or self.clamp is not None or node.output.type.quant is not None:
            return None
        for x, other in ((node.input(0), node.input(1)), (node.input(1), node.input(0))):
            same = x.type.shape == node.output.type.shape and x.type.quant is None and other.type.quant is None
            if same and other.data is not None and (other.data == neutral).all():
                return x
            if self.function in ("Sub", "Div"):
                return None
        return None

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Fixed point for two quantized tensors; a function of one where the other operand is a constant scalar."""
        table = super().integer(graph, sig, inputs)
        if table is not None:
            return table
        if self.function in _SELECTIONS:
            return _selected(self, graph, sig, inputs)
        if not all(map(is_quantized, (*sig.inputs, sig.output))):
            return None
        fits = self.function in _SUM_SIGNS and self.fixed_sum(sig) is not None
        return (self, inputs) if fits or self.function in ("Mul", "PRelu") else None

    def with_clamp(self, low: float, high: float) -> Self | None:
        """Arithmetic results can be clamped in passing."""
        if self.clamp is not None or self.function not in ("Add", "Sub", "Mul", "Div"):
            return None
        return type(self)(self.function, (low, high))

    def without_clamp(self) -> Self | None:
        """As before."""
        return replace(self, clamp=None) if self.clamp else None

    def onnx_form(self, sig: Signature) -> tuple[str, Mapping[str, object], Sequence[Array]] | None:
        """Arithmetic on reals; other functions are ONNX's in parts only."""
        arithmetic = self.function in ("Add", "Sub", "Mul", "Div") and sig.output.dtype is DType.FLOAT32
        return (self.function, {}, ()) if arithmetic else None


def _selected(op: Elementwise, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
    """The form of an operator each of whose results is an operand's element: that element in the result's codes."""
    varying = (v for v in inputs if v is not None and v.data is None and v.type.dtype is not DType.BOOL)
    if not all(is_quantized(t) for t in (*(v.type for v in varying), sig.output)):
        return None
    return op, [_recoded(graph, v, sig.output) for v in inputs]


def _requantized_text(text: str, most: int, requantize: Requantizer, scalar: Scalars) -> str:
    """C of the requantization of an int32 expression of at most that magnitude: by the upper word, if there is room."""
    up = 32 - requantize.shift
    multiplier = int(requantize.multiplier[0])
    if up < 0:
        high = f"mcugen_requantize_high({text}, {scalar(multiplier)}, {_int64(scalar, requantize.offset)})"
        return f"mcugen_shift_right({high}, {scalar(-up)})"
    if most << up < 2**31:
        text = f"{text} * {2**up}" if up else text
        return f"mcugen_scale({text}, {scalar(multiplier)}, {scalar(requantize.zero_point)})"
    wide = f"mcugen_requantize({text}, {scalar(multiplier)}"
    return f"{wide}, {_int64(scalar, requantize.offset)}, {scalar(requantize.shift)})"


def _int64(scalar: Scalars, value: int) -> str:
    return scalar(value) if abs(value) >= 2**31 else f"(int64_t){scalar(value)}"


@dataclass(frozen=True)
class Where(Elementwise):
    """y = condition ? x : y."""

    mnemonic: ClassVar[str] = "where"

    def result_dtype(self, *dtypes: DType) -> DType:
        """That of the branches."""
        return dtypes[1]

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """numpy.where; of quantized branches, in the output's parameters."""
        condition, x, y = arrays
        if sig.output.quant is None:
            return (np.where(condition, x, y),)
        x, y = (_rescaled(v, sig.input(i), sig.output) for i, v in ((1, x), (2, y)))
        return (np.where(condition, x, y).astype(sig.output.dtype.numpy),)

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """A table if it is a function of one tensor; else the same on codes."""
        return super().integer(graph, sig, inputs) or _selected(self, graph, sig, inputs)

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """A condition that is known everywhere the same."""
        known = node.input(0).data
        if known is None or not (known.all() or not known.any()):
            return None
        chosen = node.input(1 if known.all() else 2)
        return chosen if chosen.type == node.output.type else None

    def expression(self, sig: Signature, args: Sequence[str], scalar: Scalars) -> str:
        """A selection."""
        if sig.output.quant is None:
            return f"({args[0]} ? {args[1]} : {args[2]})"
        x, y = (_rescaled_text(args[i], sig.input(i), sig.output, scalar) for i in (1, 2))
        return f"({sig.output.dtype.c})({args[0]} ? {x} : {y})"


# --------------------------------------------------------------------------------------------------- import


def _require_dtype(node: OnnxNode, row: Function, value: Value) -> None:
    if not row.text(value.type.dtype):
        raise Refusal(
            f"{node.op_type}: the element type must be one that the kernel is written for",
            value.type.dtype.value,
            "cast to float32 before it",
        )


def _require_one_dtype(node: OnnxNode, values: Sequence[Value]) -> None:
    found = list(dict.fromkeys(value.type.dtype.value for value in values))
    if len(found) > 1:
        raise Refusal(f"{node.op_type}: the operands must have one element type", ", ".join(found), "repair the model")


INNER = {"FiniteOrZero", "GeluTanh", "Fmod", "ShiftLeft", "ShiftRight"}
"""Rows that are no ONNX operator, but what importers make of one."""
_SPECIAL = {*INNER, "PRelu", "Shrink", "Pow", "Mod"}
"""Rows that the importers below, one for all, are not for."""


@onnx_operator(*(name for name in UNARY if name not in _SPECIAL), kernels=("elementwise",))
def _import_unary(node: OnnxNode) -> Sequence[Value]:
    x, function = node.input(0), node.op_type
    _require_dtype(node, UNARY[function], x)
    if function == "Gelu" and node.attr("approximate", "none") == "tanh":
        function = "GeluTanh"
    return [node.emit(Unary(function, _constants(node, function)), x)]


def _constants(node: OnnxNode, function: str) -> tuple[float, ...]:
    return tuple(float(node.attr(key, default)) for key, default in _ALPHA_BETA.get(function, ()))


def _emit_binary(node: OnnxNode, function: str, values: Sequence[Value], suffix: str = "") -> Value:
    """A chain of applications of a row of BINARY; of one operand, the operand itself."""
    for value in values:
        _require_dtype(node, BINARY[function], value)
    _require_one_dtype(node, values)
    result = values[0]
    if len(values) == 1:
        return node.emit(Clamp(), result, suffix=suffix)
    for index, value in enumerate(values[1:], 1):
        part = suffix if index == len(values) - 1 else f"{suffix}part{index}"
        result = emit_elementwise(node, Binary(function), result, value, suffix=part)
    return result


def _operands(node: OnnxNode) -> list[Value]:
    return [node.input(i) for i in range(len(node.inputs))]


@onnx_operator(*(name for name in BINARY if name not in _SPECIAL), kernels=("elementwise",))
def _import_binary(node: OnnxNode) -> list[Value]:
    return [_emit_binary(node, node.op_type, _operands(node))]


@onnx_operator("Sum", kernels=("elementwise",))
def _import_sum(node: OnnxNode) -> Sequence[Value]:
    return [_emit_binary(node, "Add", _operands(node))]


@onnx_operator("Mean", kernels=("elementwise",))
def _import_mean(node: OnnxNode) -> list[Value]:
    values = _operands(node)
    total = _emit_binary(node, "Add", values, "sum")
    count = node.constant("count", np.asarray(len(values), total.type.dtype.numpy))
    return [emit_elementwise(node, Binary("Div"), total, count)]


@onnx_operator("Mod", kernels=("elementwise",))
def _import_mod(node: OnnxNode) -> list[Value]:
    return [_emit_binary(node, "Fmod" if node.attr("fmod", 0) else "Mod", _operands(node))]


@onnx_operator("PRelu", kernels=("elementwise",))
def _import_prelu(node: OnnxNode) -> list[Value]:
    x = node.input(0)
    if x.type.dtype.is_integer and x.type.dtype.limits[0] == 0:  # never negative
        return [node.emit(Clamp(), x)]
    return [_emit_binary(node, "PRelu", _operands(node))]


@onnx_operator("BitShift", kernels=("elementwise",))
def _import_shift(node: OnnxNode) -> list[Value]:
    function = "ShiftLeft" if node.attr("direction", "") == "LEFT" else "ShiftRight"
    return [_emit_binary(node, function, _operands(node))]


@onnx_operator("Pow", kernels=("elementwise",))
def _import_pow(node: OnnxNode) -> list[Value]:
    """Bases and exponents of different types: the result is the base's; integers to a real power go by double."""
    x, y = node.input(0), node.input(1)
    if y.data is not None and y.type.count == 1 and float(y.data.reshape(-1)[0]) == 2.0:
        return [_emit_binary(node, "Mul", (x, x))]  # a multiplication is exact and needs no library
    if x.type.dtype.is_float and y.type.dtype is not x.type.dtype:
        y = _converted(node, y, x.type.dtype, "exponent")
    elif y.type.dtype.is_float and not x.type.dtype.is_float:
        reals = [_converted(node, v, DType.FLOAT64, s) for v, s in ((x, "base"), (y, "exponent"))]
        return [node.emit(Cast(x.type.dtype), emit_elementwise(node, Binary("Pow"), *reals, suffix="real"))]
    for value in (x, y):
        _require_dtype(node, BINARY["Pow"], value)
    return [emit_elementwise(node, Binary("Pow"), x, y)]


def _converted(node: OnnxNode, value: Value, dtype: DType, suffix: str) -> Value:
    return value if value.type.dtype is dtype else node.emit(Cast(dtype), value, suffix=suffix)


@onnx_operator("Shrink", kernels=("elementwise",))
def _import_shrink(node: OnnxNode) -> Sequence[Value]:
    """Integers go by reals: the attributes are such."""
    x = node.input(0)
    if x.type.dtype.is_float:
        return _import_unary(node)
    real = node.emit(Cast(DType.FLOAT64 if x.type.dtype.nbytes > 2 else DType.FLOAT32), x, suffix="real")
    shrunk = node.emit(Unary("Shrink", _constants(node, "Shrink")), real, suffix="shrunk")
    return [node.emit(Cast(x.type.dtype), shrunk)]


@onnx_operator("Relu", "Clip", kernels=("elementwise",))
def _import_clamp(node: OnnxNode) -> list[Value]:
    x = node.input(0)
    _require_dtype(node, BINARY["Max"], x)
    if node.op_type == "Relu":
        return [node.emit(Clamp(low=0.0), x)]
    bounds = [node.input(i) if node.has(i) else None for i in (1, 2)]
    if any(b is not None and b.data is None for b in bounds):
        return [_clamp_by(node, x, bounds[0], bounds[1])]
    low, high = node.param("min", 1), node.param("max", 2)
    for name, bound in (("min", low), ("max", high)):
        if bound is not None and bound.size != 1:
            raise Refusal(f"Clip: {name} must have one element", f"shape {bound.shape}", "repair the model")
    numbers = [default if b is None else _number(b) for b, default in ((low, -math.inf), (high, math.inf))]
    return [node.emit(Clamp(low=min(numbers), high=numbers[1]), x)]  # where they cross, ONNX gives the upper one


def _number(array: Array) -> float:
    """The only element; int for integers."""
    (found,) = array.reshape(-1).tolist()
    return int(found) if array.dtype.kind in "iu" else float(found)


def _clamp_by(node: OnnxNode, x: Value, low: Value | None, high: Value | None) -> Value:
    """Clip whose bounds are computed."""
    if low is not None:
        x = _emit_binary(node, "Max", (x, low), "" if high is None else "above")
    return x if high is None else _emit_binary(node, "Min", (x, high))


@onnx_operator("Where", kernels=("elementwise",))
def _import_where(node: OnnxNode) -> list[Value]:
    values = _operands(node)
    _require_one_dtype(node, values[1:])
    return [emit_elementwise(node, Where(), *values)]
