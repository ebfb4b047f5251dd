# SPDX-License-Identifier: Apache-2.0
"""Arithmetic, activations and comparisons: one table row or one class a function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from mcugen.hir.graph import Graph, Value
from mcugen.hir.operator import IntegerForm, Signature
from mcugen.hir.types import Array, DType, QuantParams
from mcugen.ops.elementwise import Elementwise, Scalars, emit_elementwise
from mcugen.ops.fixedpoint import Requantizer, clamp_range
from mcugen.ops.onnx_node import OnnxNode, Refusal, onnx_operator

Range = tuple[float, float]


def clamp_text(text: str, clamp: Range | None, scalar: Scalars) -> str:
    """C text of a float clamped to `clamp`; infinite bounds cost nothing."""
    if clamp is None or clamp == (-math.inf, math.inf):
        return text
    low, high = clamp
    if math.isinf(high):
        return f"mcugen_maxf({text}, {scalar(low)})" if low else f"mcugen_reluf({text})"
    if math.isinf(low):
        return f"mcugen_minf({text}, {scalar(high)})"
    return f"mcugen_clampf({text}, {scalar(low)}, {scalar(high)})"


# ---------------------------------------------------------------------------------------------- one operand


@dataclass(frozen=True)
class Clamp(Elementwise):
    """y = min(max(x, low), high): Relu, Relu6 and Clip."""

    mnemonic: ClassVar[str] = "clamp"
    low: float = -math.inf
    high: float = math.inf

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Clamps the reals; NaN stays NaN."""
        (x,) = arrays
        return (np.clip(x, self._bound(self.low, x), self._bound(self.high, x)).astype(x.dtype),)

    @staticmethod
    def _bound(bound: float, x: Array) -> float | None:
        return None if math.isinf(bound) else bound

    def expression(self, sig: Signature, args: Sequence[str], scalar: Scalars) -> str:
        """Comparison and selection."""
        dtype = sig.output.dtype
        if dtype is DType.FLOAT32:
            return clamp_text(args[0], (self.low, self.high), scalar)
        if math.isinf(self.low) and math.isinf(self.high):
            return args[0]
        limits = np.iinfo(dtype.numpy)
        low = int(limits.min if self.low <= limits.min else self.low)
        high = int(limits.max if self.high >= limits.max else self.high)
        least, most = scalar(low), scalar(high)
        return f"({dtype.c})({args[0]} < {least} ? {least} : {args[0]} > {most} ? {most} : {args[0]})"


def _unsigned(dtype: DType) -> str:
    """The unsigned C type in which integers of that type wrap: at least 32 bits, else C would promote it to int."""
    return "uint64_t" if dtype.nbytes == 8 else "uint32_t"


_erf = np.vectorize(math.erf, otypes=[np.float32])


@dataclass(frozen=True)
class Function:
    """One row of the table of functions: numpy reference, C for float32 (and for integers where it exists)."""

    reference: Callable[..., Array]
    c: str
    ints: str = ""


UNARY: dict[str, Function] = {
    "Abs": Function(np.abs, "fabsf({x})", "({t})({x} < 0 ? 0u - ({u}){x} : ({u}){x})"),
    "Neg": Function(np.negative, "-{x}", "({t})(0u - ({u}){x})"),
    "Exp": Function(np.exp, "mcugen_expf({x})"),
    "Log": Function(np.log, "logf({x})"),
    "Sqrt": Function(np.sqrt, "sqrtf({x})"),
    "Reciprocal": Function(np.reciprocal, "1.0f / {x}"),
    "Floor": Function(np.floor, "floorf({x})"),
    "Ceil": Function(np.ceil, "ceilf({x})"),
    "Round": Function(np.rint, "rintf({x})"),
    "Sign": Function(np.sign, "({x} > 0.0f ? 1.0f : {x} < 0.0f ? -1.0f : {x})", "({t})(({x} > 0) - ({x} < 0))"),
    "Sin": Function(np.sin, "sinf({x})"),
    "Cos": Function(np.cos, "cosf({x})"),
    "Tan": Function(np.tan, "tanf({x})"),
    "Atan": Function(np.arctan, "atanf({x})"),
    "Erf": Function(_erf, "erff({x})"),
    "Tanh": Function(np.tanh, "tanhf({x})"),
    "Sigmoid": Function(lambda x: 1 / (1 + np.exp(-x)), "1.0f / (1.0f + mcugen_expf(-{x}))"),
    "HardSwish": Function(
        lambda x: x * np.clip(x / np.float32(6) + np.float32(0.5), 0, 1),
        "{x} * mcugen_clampf({x} * (1.0f / 6.0f) + 0.5f, 0.0f, 1.0f)",
    ),
    "Softplus": Function(
        lambda x: np.logaddexp(x, np.float32(0)), "mcugen_maxf({x}, 0.0f) + log1pf(mcugen_expf(-fabsf({x})))"
    ),
    "Softsign": Function(lambda x: x / (1 + np.abs(x)), "{x} / (1.0f + fabsf({x}))"),
    "Mish": Function(
        lambda x: x * np.tanh(np.logaddexp(x, np.float32(0))),
        "{x} * tanhf(mcugen_maxf({x}, 0.0f) + log1pf(mcugen_expf(-fabsf({x}))))",
    ),
    "LeakyRelu": Function(lambda x, a: np.where(x < 0, a * x, x), "({x} < 0.0f ? {a} * {x} : {x})"),
    "Elu": Function(lambda x, a: np.where(x < 0, a * np.expm1(x), x), "({x} < 0.0f ? {a} * expm1f({x}) : {x})"),
    "Celu": Function(
        lambda x, a: np.where(x < 0, a * np.expm1(x / a), x), "({x} < 0.0f ? {a} * expm1f({x} / {a}) : {x})"
    ),
    "Selu": Function(
        lambda x, a, b: b * np.where(x < 0, a * np.expm1(x), x),
        "{b} * ({x} < 0.0f ? {a} * expm1f({x}) : {x})",
    ),
    "HardSigmoid": Function(lambda x, a, b: np.clip(a * x + b, 0, 1), "mcugen_clampf({a} * {x} + {b}, 0.0f, 1.0f)"),
    "ThresholdedRelu": Function(lambda x, a: np.where(x > a, x, 0), "({x} > {a} ? {x} : 0.0f)"),
    "Gelu": Function(
        lambda x: x * np.float32(0.5) * (1 + _erf(x / np.sqrt(np.float32(2)))),
        "{x} * 0.5f * (1.0f + erff({x} * 0.70710678f))",
    ),
    "Not": Function(np.logical_not, "", "!{x}"),
}

_ALPHA_BETA = {
    "LeakyRelu": (("alpha", 0.01),),
    "Elu": (("alpha", 1.0),),
    "Celu": (("alpha", 1.0),),
    "Selu": (("alpha", 1.6732632423543772), ("gamma", 1.0507009873554805)),
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
    "ThresholdedRelu": (("alpha", 1.0),),
}


@dataclass(frozen=True)
class Unary(Elementwise):
    """y = f(x), f a row of UNARY, with up to two attributes (a, b)."""

    function: str = field(default="", repr=False)
    constants: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.lower()

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """The row's numpy reference."""
        constants = (np.float32(c) for c in self.constants)
        return (np.asarray(UNARY[self.function].reference(arrays[0], *constants)).astype(arrays[0].dtype),)

    def expression(self, sig: Signature, args: Sequence[str], scalar: Scalars) -> str:
        """The row's C text."""
        row, dtype = UNARY[self.function], sig.output.dtype
        constants = dict(zip("ab", map(scalar, self.constants), strict=False))
        return (row.c if dtype.is_float else row.ints).format(x=args[0], t=dtype.c, u=_unsigned(dtype), **constants)


# --------------------------------------------------------------------------------------------- two operands

_WRAP = "({t})(({u}){x} {op} ({u}){y})"  # unsigned arithmetic wraps; signed overflow is undefined in C


def _wrapping(op: str) -> str:
    return _WRAP.replace("{op}", op)


def _divide(x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        ratio: Array = x / y
        return ratio
    divisor = np.where(y == 0, np.ones_like(y), y)
    floor, rest = x // divisor, x % divisor
    truncated: Array = np.where(y == 0, 0, floor + ((rest != 0) & ((x < 0) != (y < 0))))
    return truncated


BINARY: dict[str, Function] = {
    "Add": Function(np.add, "{x} + {y}", _wrapping("+")),
    "Sub": Function(np.subtract, "{x} - {y}", _wrapping("-")),
    "Mul": Function(np.multiply, "{x} * {y}", _wrapping("*")),
    "Div": Function(_divide, "{x} / {y}", "({t})({y} == 0 ? 0 : {x} / {y})"),
    "Pow": Function(np.power, "powf({x}, {y})"),
    "Max": Function(np.maximum, "({x} >= {y} || {x} != {x} ? {x} : {y})", "({x} > {y} ? {x} : {y})"),
    "Min": Function(np.minimum, "({x} <= {y} || {x} != {x} ? {x} : {y})", "({x} < {y} ? {x} : {y})"),
    "PRelu": Function(lambda x, s: np.where(x < 0, s * x, x), "({x} < 0.0f ? {y} * {x} : {x})"),
    "Equal": Function(np.equal, "{x} == {y}", "{x} == {y}"),
    "Greater": Function(np.greater, "{x} > {y}", "{x} > {y}"),
    "GreaterOrEqual": Function(np.greater_equal, "{x} >= {y}", "{x} >= {y}"),
    "Less": Function(np.less, "{x} < {y}", "{x} < {y}"),
    "LessOrEqual": Function(np.less_equal, "{x} <= {y}", "{x} <= {y}"),
    "And": Function(np.logical_and, "", "{x} && {y}"),
    "Or": Function(np.logical_or, "", "{x} || {y}"),
    "Xor": Function(np.logical_xor, "", "{x} != {y}"),
}
_COMPARISONS = {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor"}
_SUM_SIGNS = {"Add": (1, 1), "Sub": (1, -1)}


@dataclass(frozen=True)
class FixedSum:
    """q = (x·m0 + y·m1 + offset) >> shift: the sum of two int8 tensors in 32 bits, one rounding, half up.

    The shift is the largest for which no intermediate leaves int32; the factors then carry some 21 bits.
    """

    factors: tuple[int, int]
    offset: int
    shift: int

    @staticmethod
    def of(x: QuantParams, y: QuantParams, out: QuantParams, signs: tuple[int, int]) -> FixedSum | None:
        """For these scales, or None where the inputs' unit is so much coarser that 8 bits of factor are lost."""
        ratios = [sign * q.scale[0] / out.scale[0] for sign, q in zip(signs, (x, y), strict=True)]
        bound = 256 * sum(map(abs, ratios)) + abs(out.zero_point) + 2
        shift = min(30, math.floor(math.log2((2**31 - 1) / bound)))
        if shift < 14:
            return None
        m0, m1 = (round(r * 2**shift) for r in ratios)
        offset = (out.zero_point << shift) + (1 << (shift - 1)) - x.zero_point * m0 - y.zero_point * m1
        return FixedSum((m0, m1), offset, shift)


@dataclass(frozen=True)
class Binary(Elementwise):
    """y = f(x0, x1), f a row of BINARY; the real result may be clamped. On int8: add, sub and mul."""

    function: str = field(default="", repr=False)
    clamp: Range | None = None

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.lower()

    def result_dtype(self, *dtypes: DType) -> DType:
        """bool for comparisons."""
        return DType.BOOL if self.function in _COMPARISONS else dtypes[0]

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Float or wrapping integers by the table; quantized tensors in fixed point."""
        x, y = arrays
        out = sig.output
        if out.quant is not None:
            return (self._evaluate_fixed(sig, x, y),)
        result = np.asarray(BINARY[self.function].reference(x, y)).astype(out.dtype.numpy)
        return (result if self.clamp is None else np.clip(result, *self.clamp).astype(result.dtype),)

    def _evaluate_fixed(self, sig: Signature, x: Array, y: Array) -> Array:
        out = sig.output
        low, high = clamp_range(self.clamp, out.q, out.dtype)
        q: Array
        a, b = x.astype(np.int64), y.astype(np.int64)
        if self.function == "Mul":
            product = (a - sig.input(0).q.zero_point) * (b - sig.input(1).q.zero_point)
            q = self._product(sig)(product, low, high)
        else:
            fixed = self._sum(sig)
            assert fixed is not None
            q = (a * fixed.factors[0] + b * fixed.factors[1] + fixed.offset) >> fixed.shift
        return np.clip(q, low, high).astype(out.dtype.numpy)

    def _sum(self, sig: Signature) -> FixedSum | None:
        return FixedSum.of(sig.input(0).q, sig.input(1).q, sig.output.q, _SUM_SIGNS[self.function])

    def _product(self, sig: Signature) -> Requantizer:
        scale = sig.input(0).q.scale[0] * sig.input(1).q.scale[0] / sig.output.q.scale[0]
        return Requantizer.of(scale, sig.output.q.zero_point)

    def expression(self, sig: Signature, args: Sequence[str], scalar: Scalars) -> str:
        """Fixed point for quantized tensors, else the row's C text."""
        x, y = args
        out = sig.output
        if out.quant is None:
            text = BINARY[self.function]
            dtype = sig.input(0).dtype
            body = (text.c if dtype.is_float else text.ints).format(x=x, y=y, t=dtype.c, u=_unsigned(dtype))
            if self.function == "Div" and dtype.numpy.kind == "i":  # the least integer over -1 overflows
                body = f"({dtype.c})({y} == -1 ? ({dtype.c})(0u - ({_unsigned(dtype)}){x}) : {body})"
            return clamp_text(body, self.clamp, scalar)
        limits = ", ".join(scalar(v) for v in clamp_range(self.clamp, out.q, out.dtype))
        if self.function == "Mul":
            requantize = self._product(sig)
            zero = [scalar(-sig.input(i).q.zero_point) for i in (0, 1)]
            product = f"({x} + {zero[0]}) * ({y} + {zero[1]})"
            wide = f"mcugen_requantize({product}, {scalar(int(requantize.multiplier[0]))}, "
            value = f"{wide}{_int64(scalar, requantize.offset)}, {scalar(requantize.shift)})"
        else:
            fixed = self._sum(sig)
            assert fixed is not None
            m0, m1 = (scalar(m) for m in fixed.factors)
            value = f"mcugen_shift_right({x} * {m0} + {y} * {m1} + {scalar(fixed.offset)}, {scalar(fixed.shift)})"
        return f"({out.dtype.c})mcugen_clamp({value}, {limits})"

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Fixed point for add, sub, mul of two int8 tensors; a table where one operand is a constant scalar."""
        table = super().integer(graph, sig, inputs)
        if table is not None:
            return table
        quants = [t.quant for t in (*sig.inputs, sig.output) if t is not None]
        if any(q is None or q.axis is not None for q in quants):
            return None
        if any(t is not None and t.dtype is not DType.INT8 for t in (*sig.inputs, sig.output)):
            return None
        fits = self.function in _SUM_SIGNS and self._sum(sig) is not None
        return (self, inputs) if fits or self.function == "Mul" else None

    def with_clamp(self, low: float, high: float) -> Self | None:
        """Arithmetic results can be clamped in passing."""
        if self.clamp is not None or self.function not in ("Add", "Sub", "Mul", "Div"):
            return None
        return type(self)(self.function, (low, high))


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
        """numpy.where."""
        return (np.where(*arrays),)

    def expression(self, sig: Signature, args: Sequence[str], scalar: Scalars) -> str:
        """A selection."""
        return f"({args[0]} ? {args[1]} : {args[2]})"


# --------------------------------------------------------------------------------------------------- import


def _require_dtype(node: OnnxNode, row: Function, value: Value) -> None:
    text = row.c if value.type.dtype.is_float else row.ints
    if not text or value.type.dtype is DType.FLOAT64:
        raise Refusal(
            f"{node.op_type}: the element type must be one that the kernel is written for",
            value.type.dtype.value,
            "cast to float32 before it",
        )


@onnx_operator(*UNARY)
def _import_unary(node: OnnxNode) -> list[Value]:
    _require_dtype(node, UNARY[node.op_type], node.input(0))
    if node.op_type == "Gelu" and node.attr("approximate", "none") != "none":
        raise Refusal("Gelu: only the exact form is supported", "approximate='tanh'", "export with approximate='none'")
    constants = tuple(float(node.attr(key, default)) for key, default in _ALPHA_BETA.get(node.op_type, ()))
    return [node.emit(Unary(node.op_type, constants), node.input(0))]


@onnx_operator(*BINARY)
def _import_binary(node: OnnxNode) -> list[Value]:
    row = BINARY[node.op_type]
    values = [node.input(i) for i in range(len(node.inputs))]
    for value in values:
        _require_dtype(node, row, value)
    if node.op_type == "Pow" and values[1].type.count == 1 and values[1].data is not None:
        exponent = float(values[1].data.reshape(-1)[0])
        if exponent == 2.0:  # a multiplication is exact and needs no library
            return [node.emit(Binary("Mul"), values[0], values[0])]
    result = values[0]
    if len(values) == 1:
        return [node.emit(Clamp(), result)]
    for index, value in enumerate(values[1:], 1):
        last = index == len(values) - 1
        result = emit_elementwise(node, Binary(node.op_type), result, value, suffix="" if last else f"part{index}")
    return [result]


@onnx_operator("Sum")
def _import_sum(node: OnnxNode) -> Sequence[Value]:
    return _import_binary(replace(node, op_type="Add"))


@onnx_operator("Relu", "Clip")
def _import_clamp(node: OnnxNode) -> list[Value]:
    if node.op_type == "Relu":
        return [node.emit(Clamp(low=0.0), node.input(0))]
    low, high = node.param("min", 1), node.param("max", 2)
    bounds = [default if b is None else float(b) for b, default in ((low, -math.inf), (high, math.inf))]
    return [node.emit(Clamp(*bounds), node.input(0))]


@onnx_operator("Where")
def _import_where(node: OnnxNode) -> list[Value]:
    return [emit_elementwise(node, Where(), *(node.input(i) for i in range(3)))]
