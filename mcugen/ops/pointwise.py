# SPDX-License-Identifier: Apache-2.0
"""Arithmetic, activations and comparisons: each function is one entry of a table, or one class."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from mcugen.expressions import functions as fn
from mcugen.expressions import nodes
from mcugen.expressions.nodes import (
    Constant,
    Convert,
    Expression,
    Shared,
    both,
    call,
    differ,
    either,
    equal,
    is_nan,
    select,
    unsigned_of,
)
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import FunctionFamily, IntegerForm, Signature
from mcugen.hir.traits import Clampable, Expressible, Saturating, Simplifiable
from mcugen.hir.types import Array, DType, QuantParams, TensorType
from mcugen.kernels.portable.activations import (
    BinarySpec,
    RowsOfInt8,
    dense_int8,
    emit_product,
    emit_saturating_sum,
    emit_sum,
)
from mcugen.kernels.portable.elementwise import Scalars
from mcugen.lir.builder import Builder
from mcugen.lir.program import real_param
from mcugen.lir.spec import HasKernels, spec_of
from mcugen.numerics.curves import Line, limited
from mcugen.numerics.fixedpoint import (
    DEFAULT_REQUANTIZE_SHIFT,
    Range,
    Requantizer,
    clamp_range,
    has_same_quantization,
    is_quantized,
    max_code_magnitude,
    quantize,
)
from mcugen.numerics.tflite_arithmetic import (
    SUM_FRACTION_BITS,
    DoubleRequantizer,
    rescaled_codes,
    rounds_as_tflite,
    sigmoid_codes,
    tanh_codes,
)
from mcugen.ops.conversion import Cast
from mcugen.ops.elementwise import Elementwise, emit_elementwise, real_data
from mcugen.ops.lines import affine_form, prelu_form
from mcugen.ops.onnx_node import OnnxNode, Refusal, onnx_operator


def clamped(x: Expression, clamp: Range | None, scalar: Scalars) -> Expression:
    """Return a real expression clamped to a range; NaN stays NaN.

    Args:
        x: The expression.
        clamp: The range; None, or an infinite bound, adds no code.
        scalar: Adds a number as a parameter of the kernel, and returns the C variable that holds it.
    """
    if clamp is None or clamp == (-math.inf, math.inf):
        return x
    low, high = (real_param(bound, x.dtype) for bound in clamp)
    if math.isinf(high):
        return call(fn.MAX, x, scalar(low)) if low else call(fn.RELU, x)
    if math.isinf(low):
        return call(fn.MIN, x, scalar(high))
    return call(fn.CLAMP_REAL, x, scalar(low), scalar(high))


def clamped_vector(x: Expression, clamp: Range | None, scalar: Scalars) -> Expression:
    """Return a vector of reals clamped to a range.

    Args:
        x: The expression of the vector.
        clamp: The range; None adds no code.
        scalar: Adds a bound as a parameter of the kernel, and returns the C variable that holds it.
    """
    low, high = clamp or (-math.inf, math.inf)
    if math.isfinite(low) and math.isfinite(high):
        return call(fn.CLAMP_REAL, x, scalar(real_param(low, x.dtype)), scalar(real_param(high, x.dtype)))
    if math.isfinite(low):
        return call(fn.MAX, x, scalar(real_param(low, x.dtype)))
    return call(fn.MIN, x, scalar(real_param(high, x.dtype))) if math.isfinite(high) else x


# ---------------------------------------------------------------------------------------------- one operand


class Clamp(Elementwise):
    """y = min(max(x, low), high), for ONNX's Relu, Clip and similar operators.

    Attributes:
        low: Lower limit. It is an int for integer x, whose range may exceed what float represents exactly.
        high: Upper limit, of the same type.
    """

    mnemonic: ClassVar[str] = "clamp"
    low: float = -math.inf
    high: float = math.inf

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return the clamp as an expression: two comparisons and selections."""
        (x,), dtype = args, sig.output.dtype
        if dtype.is_float:
            return clamped(x, (self.low, self.high), scalar)
        if math.isinf(self.low) and math.isinf(self.high):
            return x
        lowest, highest = dtype.limits
        ends: list[Expression] = [
            scalar(lowest if self.low <= lowest else int(self.low)),
            scalar(highest if self.high >= highest else int(self.high)),
        ]
        if not lowest and dtype.nbytes >= 4:  # C must not compare signed to unsigned
            ends = [Convert(dtype, end) for end in ends]
        low, high = ends
        return Convert(dtype, select(x < low, low, select(x > high, high, x)))

    def tflite_codes(self, d: Array, x: QuantParams, out: QuantParams) -> Array | None:
        """Return the results of TensorFlow Lite's RELU and RELU6; see `Elementwise.tflite_codes`."""
        scale = np.float32(x.scale[0]) / np.float32(out.scale[0])
        clamped: Array = np.clip(
            rescaled_codes(d, float(scale), out), *clamp_range((self.low, self.high), out, DType.INT8)
        )
        return clamped

    def vector(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression | None:
        """Return the clamp of a Helium vector of floats as an expression; None for quantized tensors."""
        return clamped_vector(args[0], (self.low, self.high), scalar) if sig.output.dtype is DType.FLOAT32 else None


@dataclass(frozen=True)
class PointwiseFunction:
    """A function of one or two operands in the tables UNARY_FUNCTIONS and BINARY_FUNCTIONS.

    Attributes:
        build: Returns the expression for the operands' elements and the attributes.
        floats: Whether the function exists for floats.
        integers: Whether the function exists for integers, and for bool where ONNX allows that.
        tests: Whether the result is a bool.
        vector: Returns the expression for vectors of four float32 (Helium); None if there is none.
    """

    build: Callable[..., Expression]
    floats: bool = True
    integers: bool = False
    tests: bool = False
    vector: Callable[..., Expression] | None = None

    def takes(self, dtype: DType) -> bool:
        """Return whether operands may have this element type."""
        return self.floats if dtype.is_float else self.integers


def _of_all(build: Callable[..., Expression], *, tests: bool = False) -> PointwiseFunction:
    return PointwiseFunction(build, integers=True, tests=tests)


def _of_integers(build: Callable[..., Expression], *, tests: bool = False) -> PointwiseFunction:
    return PointwiseFunction(build, floats=False, integers=True, tests=tests)


def _calls(function: fn.Function) -> PointwiseFunction:
    return PointwiseFunction(lambda x: call(function, x))


def _in_vectors(build: Callable[..., Expression], *, integers: bool = False) -> PointwiseFunction:
    """Return a function whose expression is the same in Helium and in plain C."""
    return PointwiseFunction(build, integers=integers, vector=build)


def _absolute(x: Expression) -> Expression:
    if x.dtype.is_float:
        return call(fn.ABS, x)
    if not x.dtype.limits[0]:
        return x
    unsigned = Convert(unsigned_of(x.dtype), x)
    return Convert(x.dtype, select(x < 0, nodes.BinaryExpression("-", Constant(0, unsigned.dtype), unsigned), unsigned))


def _sign(x: Expression) -> Expression:
    if x.dtype.is_float:
        return select(x > 0, 1, select(x < 0, -1, x))
    return Convert(x.dtype, (x > 0) - (x < 0) if x.dtype.limits[0] else x > 0)


def _exp(x: Expression) -> Expression:
    return call(fn.EXP, x)


def _expm1(x: Expression) -> Expression:
    return call(fn.EXPM1, x)


def _tanh(x: Expression) -> Expression:
    return call(fn.TANH, x)


def _softplus(x: Expression) -> Expression:
    return call(fn.MAX, x, 0) + call(fn.LOG1P, _exp(-_absolute(x)))


def _unit(x: Expression) -> Expression:
    return call(fn.CLAMP_REAL, x, 0, 1)


def _leaky(x: Expression, slope: Expression) -> Expression:
    return select(x < 0, slope * x, x)


def _logistic(x: Expression) -> Expression:
    """Return the logistic function of a vector."""
    return call(fn.SIGMOID, x)


def _irrational(value: float, x: Expression) -> Constant:
    """Return a constant with as many digits as the type can represent."""
    return Constant(round(value, 8) if x.dtype is DType.FLOAT32 else value, x.dtype)


def _erf_of_normal(x: Expression) -> Expression:
    return call(fn.ERF, x * _irrational(math.sqrt(0.5), x))


def _gelu_tanh(x: Expression) -> Expression:
    return x * 0.5 * (1 + _tanh(_irrational(math.sqrt(2 / math.pi), x) * (x + 0.044715 * x * x * x)))


def _is_infinite(x: Expression, positive: Expression, negative: Expression) -> Expression:
    """Return the test for infinities; `positive` and `negative` tell which of them count."""
    return both(both(equal(x, x), differ(x - x, 0)), select(x > 0, positive, negative) > 0)


UNARY_FUNCTIONS: dict[str, PointwiseFunction] = {
    "Abs": PointwiseFunction(_absolute, integers=True, vector=lambda x: call(fn.ABS, x)),
    "Neg": _in_vectors(lambda x: -x, integers=True),
    "Exp": _in_vectors(_exp),
    "Log": _calls(fn.LOG),
    "Sqrt": _calls(fn.SQRT),
    "Reciprocal": PointwiseFunction(lambda x: 1 / x),
    "Floor": _calls(fn.FLOOR),
    "Ceil": _calls(fn.CEIL),
    "Round": _calls(fn.RINT),
    "Sign": _of_all(_sign),
    "Sin": _calls(fn.SIN),
    "Cos": _calls(fn.COS),
    "Tan": _calls(fn.TAN),
    "Asin": _calls(fn.ASIN),
    "Acos": _calls(fn.ACOS),
    "Atan": _calls(fn.ATAN),
    "Sinh": _calls(fn.SINH),
    "Cosh": _calls(fn.COSH),
    "Asinh": _calls(fn.ASINH),
    "Acosh": _calls(fn.ACOSH),
    "Atanh": _calls(fn.ATANH),
    "Erf": _calls(fn.ERF),
    "Tanh": _in_vectors(_tanh),
    "Sigmoid": PointwiseFunction(lambda x: 1 / (1 + _exp(-x)), vector=_logistic),
    "Swish": PointwiseFunction(lambda x, a: x / (1 + _exp(-a * x)), vector=lambda x, a: x * _logistic(x * a)),
    "HardSwish": PointwiseFunction(
        lambda x: x * _unit(x * (Constant(1, x.dtype) / 6) + 0.5),
        vector=lambda x: x * _unit(x * _irrational(1 / 6, x) + 0.5),
    ),
    "Softplus": PointwiseFunction(_softplus),
    "Softsign": PointwiseFunction(lambda x: x / (1 + _absolute(x))),
    "Mish": PointwiseFunction(lambda x: x * _tanh(_softplus(x))),
    "LeakyRelu": _in_vectors(_leaky),
    "Elu": PointwiseFunction(lambda x, a: select(x < 0, a * _expm1(x), x)),
    "Celu": PointwiseFunction(lambda x, a: select(x < 0, a * _expm1(x / a), x)),
    "Selu": PointwiseFunction(lambda x, a, b: b * select(x < 0, a * _expm1(x), x)),
    "HardSigmoid": _in_vectors(lambda x, a, b: _unit(a * x + b)),
    "ThresholdedRelu": PointwiseFunction(lambda x, a: select(x > a, x, 0)),
    "Shrink": PointwiseFunction(lambda x, a, b: select(x < -a, x + b, select(x > a, x - b, 0))),
    "Gelu": PointwiseFunction(lambda x: x * 0.5 * (1 + _erf_of_normal(x))),
    "GeluTanh": _in_vectors(_gelu_tanh),
    "FiniteOrZero": PointwiseFunction(lambda x: select(equal(x - x, 0), x, 0)),
    "Not": _of_integers(lambda x: nodes.UnaryExpression("!", x), tests=True),
    "BitwiseNot": _of_integers(lambda x: Convert(x.dtype, ~x)),
    "IsNaN": PointwiseFunction(is_nan, tests=True),
    "IsInf": PointwiseFunction(_is_infinite, tests=True),
}
"""Functions of one operand, by ONNX operator: their expressions and the types that they are for."""

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


class Unary(FunctionFamily, Saturating, Elementwise):
    """y = f(x), where `function` is a key of UNARY_FUNCTIONS, with up to two attributes (`constants`).

    Attributes:
        constants: Values of the function's ONNX attributes, such as alpha.
    """

    functions: ClassVar[Collection[str]] = UNARY_FUNCTIONS
    constants: tuple[float, ...] = ()

    @property
    def saturates(self) -> bool:
        """Return whether the function is the sigmoid, which is flat at both ends of its range."""
        return self.function == "Sigmoid"

    def result_dtype(self, *dtypes: DType) -> DType:
        """Return the result's element type: the operand's type, or bool for tests."""
        return DType.BOOL if UNARY_FUNCTIONS[self.function].tests else dtypes[0]

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return the expression of the function's entry in UNARY_FUNCTIONS, with its constants as parameters."""
        (x,) = args
        return UNARY_FUNCTIONS[self.function].build(x, *self._parameters(x, scalar))

    def tflite_codes(self, d: Array, x: QuantParams, out: QuantParams) -> Array | None:
        """Return the results of TensorFlow Lite's LOGISTIC, TANH and LEAKY_RELU; see `Elementwise.tflite_codes`."""
        match self.function:
            case "Sigmoid":
                return sigmoid_codes(d, x, out)
            case "Tanh":
                return tanh_codes(d, x, out)
            case "LeakyRelu":
                scale = np.float32(x.scale[0]) / np.float32(out.scale[0])
                slope = np.float32(x.scale[0]) * np.float32(self.constants[0]) / np.float32(out.scale[0])
                return rescaled_codes(d, np.where(d < 0, np.float64(slope), np.float64(scale)), out)
        return None

    def vector(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression | None:
        """Return the function of a Helium vector of float32 as an expression; None if there is none."""
        build = UNARY_FUNCTIONS[self.function].vector if sig.output.dtype is DType.FLOAT32 else None
        return build(args[0], *self._parameters(args[0], scalar)) if build else None

    def _parameters(self, x: Expression, scalar: Scalars) -> list[Expression]:
        return [scalar(real_param(c, x.dtype)) for c in self.constants]


# --------------------------------------------------------------------------------------------- two operands


def _divide(x: Expression, y: Expression) -> Expression:
    """Return the quotient; integers are truncated toward 0, and a division by 0 gives 0."""
    if x.dtype.is_float:
        return x / y
    quotient = Convert(x.dtype, select(equal(y, 0), 0, x / y))
    if not x.dtype.limits[0]:
        return quotient
    return Convert(x.dtype, select(equal(y, -1), -x, quotient))  # the least integer over -1 overflows


def _remainder(x: Expression, y: Expression) -> Expression:
    """Return the remainder with the dividend's sign; integers modulo 0 give 0."""
    if x.dtype.is_float:
        return call(fn.FMOD, x, y)
    return Convert(x.dtype, select(_leaves_nothing(y), 0, x % y))


def _modulo(x: Expression, y: Expression) -> Expression:
    """Return the remainder with the divisor's sign; integers modulo 0 give 0."""
    if not x.dtype.is_float and not x.dtype.limits[0]:
        return _remainder(x, y)
    remainder = call(fn.FMOD, x, y) if x.dtype.is_float else x % y
    crosses = both(differ(remainder, 0), differ(x < 0, y < 0))
    moved = select(crosses, nodes.BinaryExpression("+", remainder, y), remainder)
    return moved if x.dtype.is_float else Convert(x.dtype, select(_leaves_nothing(y), 0, moved))


def _leaves_nothing(divisor: Expression) -> Expression:
    """Return whether an integer divisor is 0 or −1. C cannot divide the least integer by −1."""
    is_zero = equal(divisor, 0)
    return either(is_zero, equal(divisor, -1)) if divisor.dtype.limits[0] else is_zero


def _power(x: Expression, y: Expression) -> Expression:
    """For integers modulo the type's range; negative exponents give whole numbers, cut off."""
    if x.dtype.is_float:
        return call(fn.POW, x, y)
    return Convert(x.dtype, call(fn.POWER, Convert(DType.UINT64, x), Convert(DType.INT64, y)))


def _greatest(x: Expression, y: Expression) -> Expression:
    """Return the larger operand; NaN if one is NaN."""
    return select(either(x >= y, is_nan(x)) if x.dtype.is_float else x > y, x, y)


def _least(x: Expression, y: Expression) -> Expression:
    """Return the smaller operand; NaN if one is NaN."""
    return select(either(x <= y, is_nan(x)) if x.dtype.is_float else x < y, x, y)


def _is_no_shift(x: Expression, y: Expression) -> Expression:
    """Return whether a shift amount is negative or at least the number of bits."""
    all_bits = y >= Constant(8 * x.dtype.nbytes, y.dtype)
    return either(y < 0, all_bits) if y.dtype.limits[0] else all_bits


def _shifted_left(x: Expression, y: Expression) -> Expression:
    """Return x << y; 0 for negative amounts and for amounts of all bits."""
    unsigned = Convert(unsigned_of(x.dtype), x)
    return Convert(x.dtype, select(_is_no_shift(x, y), Constant(0, unsigned.dtype), unsigned << y))


def _shifted_right(x: Expression, y: Expression) -> Expression:
    """Return x >> y; for negative amounts and amounts of all bits only the sign remains."""
    if x.dtype.limits[0]:
        return Convert(x.dtype, select(_is_no_shift(x, y), select(x < 0, -1, 0), x >> y))
    unsigned = Convert(unsigned_of(x.dtype), x)
    return Convert(x.dtype, select(_is_no_shift(x, y), Constant(0, unsigned.dtype), unsigned >> y))


BINARY_FUNCTIONS: dict[str, PointwiseFunction] = {
    "Add": _in_vectors(lambda x, y: x + y, integers=True),
    "Sub": _in_vectors(lambda x, y: x - y, integers=True),
    "Mul": _in_vectors(lambda x, y: x * y, integers=True),
    "Div": _of_all(_divide),
    "Mod": _of_all(_modulo),
    "Fmod": _of_all(_remainder),
    "Pow": _of_all(_power),
    "Max": _of_all(_greatest),
    "Min": _of_all(_least),
    "PRelu": _in_vectors(_leaky, integers=True),
    "Equal": _of_all(equal, tests=True),
    "Greater": _of_all(lambda x, y: x > y, tests=True),
    "GreaterOrEqual": _of_all(lambda x, y: x >= y, tests=True),
    "Less": _of_all(lambda x, y: x < y, tests=True),
    "LessOrEqual": _of_all(lambda x, y: x <= y, tests=True),
    "And": _of_integers(both, tests=True),
    "Or": _of_integers(either, tests=True),
    "Xor": _of_integers(differ, tests=True),
    "BitwiseAnd": _of_integers(lambda x, y: Convert(x.dtype, x & y)),
    "BitwiseOr": _of_integers(lambda x, y: Convert(x.dtype, x | y)),
    "BitwiseXor": _of_integers(lambda x, y: Convert(x.dtype, x ^ y)),
    "ShiftLeft": _of_integers(_shifted_left),
    "ShiftRight": _of_integers(_shifted_right),
}
"""Functions of two operands, by ONNX operator: their expressions and the types that they are for."""
_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}
_SUM_SIGNS = {"Add": (1, 1), "Sub": (1, -1)}


def _reduced(terms: tuple[int, ...], shift: int) -> tuple[tuple[int, ...], int]:
    """Return terms and shift without the low bits that are 0 in all terms."""
    spare = min(shift, *((t & -t).bit_length() - 1 for t in terms if t))
    return tuple(t >> spare for t in terms), shift - spare


@dataclass(frozen=True)
class FixedSum:
    """q = (x · m0 + y · m1 + offset) >> shift: the sum of two quantized tensors, with one rounding, half up.

    Attributes:
        factors: The multipliers m0 and m1, of about 20 bits, or 31 bits if `wide`; of fewer bits if these are exact.
        offset: Constant term: zero points and the rounding term.
        shift: Right shift of the sum. It is so small that intermediate results of int8 tensors are at most 2^30.
        wide: Whether the sum needs 64 bits, which occurs only with int16 tensors.
    """

    factors: tuple[int, int]
    offset: int
    shift: int
    wide: bool

    @staticmethod
    def of(
        x: TensorType, y: TensorType, out: TensorType, signs: tuple[int, int], ratio_bits: int = 0
    ) -> FixedSum | None:
        """Return the fixed-point sum for these types; None if the factors would have too few bits.

        Args:
            x: Type of the first operand.
            y: Type of the second operand.
            out: Type of the result.
            signs: Factor 1 or −1 of each operand.
            ratio_bits: Number of fraction bits to which the ratio of the smaller to the larger factor is rounded, so
                that both are multiples of a short integer; 0 to round each factor for itself.
        """
        ratios = [sign * t.q.scale[0] / out.q.scale[0] for sign, t in zip(signs, (x, y), strict=True)]
        wide = any(t.dtype is DType.INT16 for t in (x, y, out))
        codes, room, max_shift, min_shift = (65536, 2**47, 32, 16) if wide else (256, 2**30 - 1, 30, 13)
        bound = codes * sum(map(abs, ratios)) + abs(out.q.zero_point) + 2
        shift = min(max_shift, math.floor(math.log2(room / bound)))
        if shift < min_shift:
            return None
        largest = max(map(abs, ratios))
        unit = max(round(largest * 2 ** (shift - ratio_bits)), 1) if ratio_bits else 1
        m0, m1 = (unit * round(r / largest * 2**ratio_bits) if ratio_bits else round(r * 2**shift) for r in ratios)
        offset = (out.q.zero_point << shift) + (1 << (shift - 1)) - x.q.zero_point * m0 - y.q.zero_point * m1
        (m0, m1, offset), shift = _reduced((m0, m1, offset), shift)
        wide = wide and codes // 2 * (abs(m0) + abs(m1)) + abs(offset) >= 2**31
        return FixedSum((m0, m1), offset, shift, wide)

    def expression(self, x: Expression, y: Expression, scalar: Scalars) -> Expression:
        """Return (x · m0 + y · m1 + offset) >> shift as an expression; it has 64-bit arithmetic if `wide`.

        Args:
            x: Element of the first tensor.
            y: Element of the second tensor.
            scalar: Adds a number as a parameter of the kernel, and returns the C variable that holds it.
        """
        if self.wide:
            up = 32 - self.shift  # the upper word of 64 bits costs least
            up = up if max(map(abs, self.factors)) << up < 2**31 else 0
            m0, m1 = (scalar(m << up) for m in self.factors)
            offset = _as_int64(scalar, self.offset << up)
            return call(fn.WEIGHTED_SUM, x, m0, y, m1, offset, self.shift + up)
        factors, start, shift = self._whole()
        left, right = (v if m == 1 else v * scalar(m) for v, m in zip((x, y), factors, strict=True))
        total = left + right + scalar(start) if start else left + right
        return call(fn.SHIFT_RIGHT, total, scalar(shift)) if shift else total

    def vector(self, x: Expression, y: Expression, scalar: Scalars) -> Expression | None:
        """Return the fixed-point sum for vectors of four elements in Helium operations; None if it needs 64 bits."""
        return None if self.wide else self.expression(x, y, scalar)

    def _whole(self) -> tuple[tuple[int, int], int, int]:
        """Return factors, offset and shift; shift 0 if the factors are integers, which need no rounding."""
        if any(m % (1 << self.shift) for m in self.factors):
            return self.factors, self.offset, self.shift
        return (self.factors[0] >> self.shift, self.factors[1] >> self.shift), self.offset >> self.shift, 0


def _rescaled(q: Expression, of: TensorType, out: TensorType, scalar: Scalars) -> Expression:
    """Return integers of quantized type `of` as integers of equal reals in type `out`."""
    return q if has_same_quantization(of, out) else Line.requantization(of, out).expression(q, scalar)


def _recoded(graph: Graph, value: Value | None, out: TensorType) -> Value | None:
    """Return a constant quantized as `out`; other tensors are returned unchanged."""
    if value is None or value.data is None or value.type.dtype is DType.BOOL:
        return value
    codes = np.asarray(quantize(real_data(value), out.q, out.dtype))
    return graph.constant(f"{value.name}.codes", codes, out.quant, of=[value])


def _coded(graph: Graph, value: Value | None) -> Value | None:
    """Return a float constant quantized to int16; other tensors are returned unchanged.

    It is used for slopes that the model does not quantize.
    """
    if value is None or value.data is None or value.type.dtype is not DType.FLOAT32:
        return value
    largest = float(np.abs(value.data).max(initial=0.0))
    if not math.isfinite(largest):
        return value
    quant = QuantParams((float(np.float32(largest / DType.INT16.limits[1])) or 1.0,), 0)
    return graph.constant(f"{value.name}.codes", quantize(value.data, quant, DType.INT16), quant, of=[value])


_SELECTIONS: Mapping[str, Callable[[Expression, Expression], Expression]] = {
    "Max": lambda x, y: call(fn.CLAMP, x, y, 32767),
    "Min": lambda x, y: call(fn.CLAMP, x, -32768, y),
}
"""The larger or smaller of two codes, as a clamp whose other end nothing reaches."""


class Binary(FunctionFamily, HasKernels, Clampable, Simplifiable, Expressible, Elementwise):
    """y = f(x0, x1), where `function` is a key of BINARY_FUNCTIONS; the real result may be clamped.

    Sums, differences and products of quantized tensors are computed in fixed point.

    Attributes:
        clamp: Limits of the real result; None for no clamp.
        ratio_bits: Number of fraction bits to which the ratio of the factors of a fixed-point sum is rounded; 0 to
            round each factor for itself. Accelerators that scale one operand by a power of two set it.
    """

    functions: ClassVar[Collection[str]] = BINARY_FUNCTIONS
    clamp: Range | None = None
    ratio_bits: int = field(default=0, kw_only=True)

    def result_dtype(self, *dtypes: DType) -> DType:
        """Return the result's element type: bool for comparisons, else the type of the operands."""
        return DType.BOOL if BINARY_FUNCTIONS[self.function].tests else dtypes[0]

    def fixed_sum(self, sig: Signature) -> FixedSum | None:
        """Return the fixed-point constants of a sum or difference of quantized tensors; None if impossible."""
        return FixedSum.of(sig.input(0), sig.input(1), sig.output, _SUM_SIGNS[self.function], self.ratio_bits)

    def spec(self, node: Node) -> BinarySpec:
        """Return the function, the types and the constants of integer arithmetic, from which kernels are chosen."""
        sig, function = node.sig, self.function
        spec = BinarySpec(function, sig.input(0), sig.input(1), sig.output, self.clamp)
        if not all(map(is_quantized, (spec.x0, spec.x1, spec.y))):
            return spec
        if function in _SUM_SIGNS and dense_int8(sig):
            spec = replace(spec, fixed_sum=self.fixed_sum(sig))
        if function == "Mul":
            spec = replace(spec, product=self.product(sig), largest_product=self.largest_product(sig))
        return spec

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to one loop; products of int8 tensors, and sums of int8 or int16 ones, have their own kernels."""
        if not self._emit_int8(node, builder) and not self._emit_int16(node, builder):
            super().lower(node, builder)

    def _emit_int8(self, node: Node, builder: Builder) -> bool:
        """Emit a dedicated kernel for quantized tensors and return True; return False if there is none."""
        sig, out = node.sig, node.output.type
        if not self.stands_alone(sig):
            return False
        if self.function == "Mul":
            return emit_product(node, builder, spec_of(node))
        fixed, limits = self.fixed_sum(sig), clamp_range(self.clamp, out.q, out.dtype)
        return fixed is not None and emit_sum(node, builder, fixed.factors, fixed.offset, fixed.shift, limits)

    def _emit_int16(self, node: Node, builder: Builder) -> bool:
        """Emit the fast kernel for a sum of int16 tensors with equal scales, if it applies."""
        sig, out = node.sig, node.output.type
        if (
            self.function != "Add"
            or rounds_as_tflite(out)
            or out.dtype is not DType.INT16
            or not all(map(is_quantized, (*sig.inputs, out)))
        ):
            return False
        fixed, limits = self.fixed_sum(sig), clamp_range(self.clamp, out.q, out.dtype)
        return fixed is not None and limits == out.dtype.limits and emit_saturating_sum(node, builder, fixed)

    def stands_alone(self, sig: Signature) -> bool:
        """Return whether the operator is kept out of a Stack: a sum or product of dense int8 tensors.

        Some CPUs have fast kernels for it, which a Stack (one loop for several operators) would not use.
        """
        is_int8 = all(is_quantized(t) for t in (*sig.inputs, sig.output)) and RowsOfInt8.of(sig) is not None
        return is_int8 and not rounds_as_tflite(sig.output) and self.function in (*_SUM_SIGNS, "Mul")

    def product(self, sig: Signature) -> Requantizer:
        """Return the requantizer that maps products of two quantized elements, less their zero points, to results."""
        scale = sig.input(0).q.scale[0] * sig.input(1).q.scale[0] / sig.output.q.scale[0]
        types = [sig.input(i).dtype for i in (0, 1)]
        sums = np.asarray([math.prod(map(max_code_magnitude, types))]) if DType.INT16 in types else None
        return Requantizer.of(scale, sig.output.q.zero_point, sums=sums)

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return fixed-point arithmetic for quantized tensors, else the expression of the entry in BINARY_FUNCTIONS."""
        x, y = args
        out = sig.output
        if out.quant is None:
            return _of_codes(sig, clamped(BINARY_FUNCTIONS[self.function].build(x, y), self.clamp, scalar))
        limits = clamp_range(self.clamp, out.q, out.dtype)
        return Convert(out.dtype, limited(self._fixed(sig, x, y, scalar), *limits, scalar))

    def vector(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression | None:
        """Return the expression for Helium vectors: sums and products of quantized values, and functions of reals.

        Return None for other functions, and for arithmetic that does not fit in vector lanes.
        """
        x, y = args
        out = sig.output
        if out.quant is None:
            build = BINARY_FUNCTIONS[self.function].vector if out.dtype is DType.FLOAT32 else None
            return clamped_vector(build(x, y), self.clamp, scalar) if build else None
        value = self._fixed_vector(sig, x, y, scalar)
        if value is None:
            return None
        low, high = clamp_range(self.clamp, out.q, out.dtype)
        return call(fn.CLAMP, value, scalar(low), scalar(high))

    def _fixed_vector(self, sig: Signature, x: Expression, y: Expression, scalar: Scalars) -> Expression | None:
        if rounds_as_tflite(sig.output):
            return None
        if self.function in _SUM_SIGNS:
            fixed = self.fixed_sum(sig)
            return fixed.vector(x, y, scalar) if fixed else None
        if self.function != "Mul":
            return None
        x, y = (v - scalar(t.q.zero_point) if t.q.zero_point else v for v, t in ((x, sig.input(0)), (y, sig.input(1))))
        return _requantized_vector(x * y, self.largest_product(sig), self.product(sig), scalar)

    def largest_product(self, sig: Signature) -> int:
        """Return an upper bound of the magnitude of a product of two quantized elements, less their zero points."""
        return math.prod(
            -2 * t.dtype.limits[0] if t.q.zero_point else -t.dtype.limits[0] for t in map(sig.input, (0, 1))
        )

    def _fixed(self, sig: Signature, x: Expression, y: Expression, scalar: Scalars) -> Expression:
        """Return the fixed-point expression before the clamp."""
        if self.function in _SELECTIONS:
            x, y = (_rescaled(v, sig.input(i), sig.output, scalar) for i, v in enumerate((x, y)))
            return _SELECTIONS[self.function](x, y)
        if rounds_as_tflite(sig.output):
            return self._tflite_arithmetic(sig, x, y, scalar)
        if self.function in _SUM_SIGNS:
            fixed = self.fixed_sum(sig)
            assert fixed is not None
            return fixed.expression(x, y, scalar)
        requantize = self.product(sig).for_high_word()
        zeros = [sig.input(i).q.zero_point for i in (0, 1)]
        x_real, y_real = (Shared(v + scalar(-zero)) if zero else v for v, zero in zip((x, y), zeros, strict=True))
        (factor, offset), shift = _reduced((int(requantize.multiplier[0]), requantize.offset), requantize.shift)
        max_product = self.largest_product(sig)
        if self.function == "Mul" and max_product * factor + abs(offset) < 2**31:
            return call(fn.SHIFT_RIGHT, x_real * y_real * scalar(factor) + scalar(offset), scalar(shift))
        value = _requantized_in_pieces(x_real * y_real, max_product, self.product(sig), scalar) or _requantized(
            x_real * y_real, max_product, requantize, scalar
        )
        if self.function == "Mul":
            return value
        return select(x_real < 0, value, _rescaled(x, sig.input(0), sig.output, scalar))

    def _tflite_arithmetic(self, sig: Signature, x: Expression, y: Expression, scalar: Scalars) -> Expression:
        """Return a sum, difference or product, each step of which rounds as in TensorFlow Lite's kernels."""
        a, b, out = sig.input(0).q, sig.input(1).q, sig.output.q
        x, y = (v + scalar(-of.zero_point) if of.zero_point else v for v, of in ((x, a), (y, b)))
        if self.function == "Mul":
            return _rounded_twice(x * y, a.scale[0] * b.scale[0] / out.scale[0], scalar) + scalar(out.zero_point)
        unit = 2 * max(a.scale[0], b.scale[0])
        x, y = (
            _rounded_twice(v * scalar(1 << SUM_FRACTION_BITS), of.scale[0] / unit, scalar) for v, of in ((x, a), (y, b))
        )
        total = x + y if self.function == "Add" else x - y
        return _rounded_twice(total, unit / (2**SUM_FRACTION_BITS * out.scale[0]), scalar) + scalar(out.zero_point)

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Return x for x + 0, x − 0, x · 1 and x / 1 (the sign of −0 may change); else None."""
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
        """Return the integer operator that replaces this one on quantized tensors, with its inputs, or None.

        If one operand is constant, it may be a lookup table or a linear function. For two tensors, sums, differences,
        products, selections such as a maximum, and PRelu have an integer operator; other functions have none.
        """
        if rounds_as_tflite(sig.output):
            is_int8 = all(is_quantized(t) and t.dtype is DType.INT8 for t in (*sig.inputs, sig.output) if t)
            return (self, inputs) if is_int8 and self.function in (*_SUM_SIGNS, "Mul") else None
        table = super().integer(graph, sig, inputs) or self._by_channel(graph, sig, inputs)
        if table is not None:
            return table
        if self.function in _SELECTIONS:
            return _selected(self, graph, sig, inputs)
        inputs = [_coded(graph, v) for v in inputs]
        sig = Signature(tuple(v.type if v else None for v in inputs), sig.outputs)
        if not all(map(is_quantized, (*sig.inputs, sig.output))):
            return None
        fits = self.function in _SUM_SIGNS and self.fixed_sum(sig) is not None
        return (self, inputs) if fits or self.function in ("Mul", "PRelu") else None

    def _by_channel(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return a line for each element of the constant operand, if it has few elements."""
        at = next((i for i, v in enumerate(inputs) if v is not None and v.is_constant), None)
        constant = None if at is None else inputs[at]
        if at is None or constant is None or 2 * constant.type.count > sig.output.count:
            return None
        x, numbers = 1 - at, real_data(constant)
        if sig.input(x).shape != sig.output.shape or not np.isfinite(numbers).all():
            return None
        if self.function == "PRelu":
            return prelu_form(self, graph, sig, inputs[0], numbers) if at == 1 else None
        line, turned = self.line(numbers, at), replace(sig, inputs=(sig.input(x),))
        return affine_form(self, graph, turned, inputs[x], *line, self.clamp) if line else None

    def line(self, constant: Array, at: int) -> tuple[Array, Array] | None:
        """Return scale and shift of the function x · scale + shift that the operator is with a constant operand.

        Args:
            constant: The constant operand.
            at: Index of the constant operand: 0 or 1.

        Returns:
            Scale and shift; None if the operator is no such function.
        """
        number, zero = constant.astype(np.float64), np.zeros(constant.shape)
        match self.function, at:
            case "Mul", _:
                return number, zero
            case "Div", 1 if constant.all():
                return 1 / number, zero
            case "Add", _:
                return zero + 1, number
            case "Sub", _:
                return (zero + 1, -number) if at == 1 else (zero - 1, number)
        return None

    def with_clamp(self, low: float, high: float) -> Self | None:
        """Return the operator with its result clamped to [low, high] if it is arithmetic; None for other functions."""
        if self.clamp is not None or self.function not in ("Add", "Sub", "Mul", "Div"):
            return None
        return type(self)(self.function, (low, high))

    def without_clamp(self) -> Self | None:
        """Return the function without its clamp; None if it has none."""
        return replace(self, clamp=None) if self.clamp else None

    def onnx_form(self, sig: Signature) -> tuple[str, Mapping[str, object], Sequence[Array]] | None:
        """Return the ONNX node that computes the same, for arithmetic in floats; None for other functions."""
        arithmetic = self.function in ("Add", "Sub", "Mul", "Div") and sig.output.dtype is DType.FLOAT32
        return (self.function, {}, ()) if arithmetic else None


def _rounded_twice(x: Expression, scale: float, scalar: Scalars) -> Expression:
    """Return x · scale, rounded twice as TensorFlow Lite does."""
    requantize = DoubleRequantizer.of(scale, 0)
    return call(fn.REQUANTIZE_TWICE, x, scalar(int(requantize.multiplier[0])), scalar(int(requantize.shift[0])))


def _selected(op: Elementwise, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
    """Return the integer form of an operator that returns elements of its operands: requantize, then select."""
    varying = (v for v in inputs if v is not None and v.data is None and v.type.dtype is not DType.BOOL)
    if not all(is_quantized(t) for t in (*(v.type for v in varying), sig.output)):
        return None
    return op, [_recoded(graph, v, sig.output) for v in inputs]


def _requantized(value: Expression, max_magnitude: int, requantize: Requantizer, scalar: Scalars) -> Expression:
    """Return the requantization of an int32 of at most `max_magnitude`, by the upper product word if it fits."""
    up, multiplier = 32 - requantize.shift, scalar(int(requantize.multiplier[0]))
    if up < 0:
        high = call(fn.REQUANTIZE_HIGH, value, multiplier, _as_int64(scalar, requantize.offset))
        return call(fn.SHIFT_RIGHT, high, scalar(-up))
    if max_magnitude << up < 2**31:
        return call(fn.SCALE, value * 2**up if up else value, multiplier, scalar(requantize.zero_point))
    offset = _as_int64(scalar, requantize.offset)
    return call(fn.REQUANTIZE, value, multiplier, offset, scalar(requantize.shift))


_PIECE = 15
"""Bits of the lower piece of a multiplier."""


def _requantized_in_pieces(
    value: Expression, max_magnitude: int, requantize: Requantizer, scalar: Scalars
) -> Expression | None:
    """Return the requantization by 32-bit products, for CPUs without longer ones; None if not applicable.

    (v · (h · 2^15 + l) + start · 2^15) >> 31 = (v · h + (v · l >> 15) + start) >> 16, as v · h and start are integers.
    """
    upper, lower = divmod(int(requantize.multiplier[0]), 1 << _PIECE)
    start, shift = requantize.offset >> _PIECE, requantize.shift - _PIECE
    reach = max_magnitude * max(upper + 1, lower) + abs(start) + 1
    if "thumb1" not in scalar.features or requantize.shift != DEFAULT_REQUANTIZE_SHIFT or reach >= 2**31:
        return None
    lower_part = call(fn.SHIFT_RIGHT, value * scalar(lower), _PIECE)
    return call(fn.SHIFT_RIGHT, value * scalar(upper) + lower_part + scalar(start), scalar(shift))


def _requantized_vector(
    value: Expression, max_magnitude: int, requantize: Requantizer, scalar: Scalars
) -> Expression | None:
    """Return the requantization by upper product words for vectors; None if 32 bits do not suffice."""
    up, multiplier = 32 - requantize.shift, int(requantize.multiplier[0])
    if up < 0:
        high = call(fn.MULTIPLY_HIGH, value, scalar(multiplier)) + scalar(requantize.offset >> 32)
        return call(fn.SHIFT_RIGHT, high, scalar(-up))
    if up == 0 or max_magnitude << up >= 2**31:
        return None
    value = value << up - 1 if up > 1 else value
    return call(fn.ROUNDED_DOUBLE_PRODUCT, value, scalar(multiplier), scalar(requantize.zero_point))


def _of_codes(sig: Signature, value: Expression) -> Expression:
    """Convert a result of quantized operands, which expressions hold as int32, to the result's type."""
    reads_codes = any(t is not None and t.quant is not None for t in sig.inputs)
    return Convert(sig.output.dtype, value) if reads_codes and sig.output.dtype.is_integer else value


def _as_int64(scalar: Scalars, value: int) -> Expression:
    return scalar(value) if abs(value) >= 2**31 else Convert(DType.INT64, scalar(value))


class Where(Simplifiable, Elementwise):
    """y = a where the condition is true, else b; the inputs are the condition, a and b."""

    mnemonic: ClassVar[str] = "where"

    def result_dtype(self, *dtypes: DType) -> DType:
        """Return the result's element type: the type of the branches."""
        return dtypes[1]

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return the integer operator that replaces this one on quantized tensors, with its inputs, or None.

        If only one of the three operands varies, it is a lookup table. Else it requantizes a and b to the output's
        scale, and selects.
        """
        return super().integer(graph, sig, inputs) or _selected(self, graph, sig, inputs)

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Return the selected branch if the condition is constant and the same for all elements; else None."""
        known = node.input(0).data
        if known is None or not (known.all() or not known.any()):
            return None
        chosen = node.input(1 if known.all() else 2)
        return chosen if chosen.type == node.output.type else None

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return the selection of a or b by the condition; quantized a and b are requantized to the output's scale."""
        condition, x, y = args
        if sig.output.quant is None:
            return _of_codes(sig, select(condition, x, y))
        x, y = (_rescaled(v, sig.input(i), sig.output, scalar) for i, v in ((1, x), (2, y)))
        return Convert(sig.output.dtype, select(condition, x, y))


# --------------------------------------------------------------------------------------------------- import


def _require_dtype(node: OnnxNode, row: PointwiseFunction, value: Value) -> None:
    if not row.takes(value.type.dtype):
        raise Refusal(
            f"{node.op_type}: the element type must be one that the kernel is written for",
            value.type.dtype.value,
            "cast to float32 before it",
        )


def _require_one_dtype(node: OnnxNode, values: Sequence[Value]) -> None:
    dtypes = list(dict.fromkeys(value.type.dtype.value for value in values))
    node.require(len(dtypes) <= 1, "the operands must have one element type", ", ".join(dtypes))


INTERNAL_FUNCTIONS = {"FiniteOrZero", "GeluTanh", "Fmod", "ShiftLeft", "ShiftRight"}
"""Functions that are not ONNX operators: importers compose ONNX operators of them."""
_SPECIAL = {*INTERNAL_FUNCTIONS, "PRelu", "Shrink", "Pow", "Mod"}
"""Rows that the importers below, one for all, are not for."""


@onnx_operator(*(name for name in UNARY_FUNCTIONS if name not in _SPECIAL), kernels=("elementwise",))
def _import_unary(node: OnnxNode) -> Sequence[Value]:
    x, function = node.input(0), node.op_type
    _require_dtype(node, UNARY_FUNCTIONS[function], x)
    if function == "Gelu" and node.attr("approximate", "none") == "tanh":
        function = "GeluTanh"
    return [node.emit(Unary(function, _constants(node, function)), x)]


def _constants(node: OnnxNode, function: str) -> tuple[float, ...]:
    return tuple(float(node.attr(key, default)) for key, default in _ALPHA_BETA.get(function, ()))


def _emit_binary(node: OnnxNode, function: str, values: Sequence[Value], suffix: str = "") -> Value:
    """Apply a binary function to the operands one after another; return a single operand unchanged."""
    for value in values:
        _require_dtype(node, BINARY_FUNCTIONS[function], value)
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


@onnx_operator(*(name for name in BINARY_FUNCTIONS if name not in _SPECIAL), kernels=("elementwise",))
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
        _require_dtype(node, BINARY_FUNCTIONS["Pow"], value)
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
    _require_dtype(node, BINARY_FUNCTIONS["Max"], x)
    if node.op_type == "Relu":
        return [node.emit(Clamp(low=0.0), x)]
    bounds = [node.optional(i) for i in (1, 2)]
    if any(b is not None and b.data is None for b in bounds):
        return [_clamp_by(node, x, bounds[0], bounds[1])]
    low, high = node.param("min", 1), node.param("max", 2)
    for name, bound in (("min", low), ("max", high)):
        if bound is not None and bound.size != 1:
            raise Refusal(f"Clip: {name} must have one element", f"shape {bound.shape}", "repair the model")
    numbers = [default if b is None else _number(b) for b, default in ((low, -math.inf), (high, math.inf))]
    return [node.emit(Clamp(low=min(numbers), high=numbers[1]), x)]  # where they cross, ONNX gives the upper one


def _number(array: Array) -> float:
    """Return the only element, as an int for integers."""
    (element,) = array.reshape(-1).tolist()
    return int(element) if array.dtype.kind in "iu" else float(element)


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


# ----------------------------------------------------------------------------------- what patterns ask of a value


def argument_of(value: Value, function: str) -> Value | None:
    """Return x if the value is computed as `function`(x), a function of UNARY_FUNCTIONS; else None."""
    node = value.producer
    return node.input(0) if node is not None and node.op == Unary(function) else None


def operands_of(value: Value, function: str) -> list[tuple[Value, Value]]:
    """Return the operands of the operator that computes a value, in both orders.

    Args:
        value: The value.
        function: "Add" or "Mul".

    Returns:
        Two pairs of operands; an empty list if another operator computes the value.
    """
    node = value.producer
    if node is None or node.op != Binary(function):
        return []
    left, right = node.input(0), node.input(1)
    return [(left, right), (right, left)]
