# SPDX-License-Identifier: Apache-2.0
"""Conversions between element types and between reals and quantized integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from onnx import helper

from mcugen.expressions import functions as fn
from mcugen.expressions import nodes
from mcugen.expressions.nodes import Constant, Convert, Expression, call
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.traits import Simplifiable
from mcugen.hir.types import Array, DType, QuantParams, TensorType
from mcugen.kernels.portable.borders import emit_quantization
from mcugen.kernels.portable.elementwise import Scalars
from mcugen.lir.builder import Builder
from mcugen.numerics.fixedpoint import dequantize, quantize
from mcugen.numerics.reciprocal import Reciprocal, WholeScale
from mcugen.numerics.tflite_arithmetic import rescaled_codes
from mcugen.ops.elementwise import Elementwise
from mcugen.ops.movement import Pad, Reshape
from mcugen.ops.onnx_node import OnnxNode, Refusal, onnx_operator


def cast(x: Array, dtype: DType) -> Array:
    """Convert an array as Cast does: reals are truncated and saturate (NaN gives 0), integers wrap.

    `dtype` is the new element type.
    """
    op, source = Cast(dtype), TensorType(x.shape, DType.of(x))
    return op.evaluate(Signature((source,), op.infer(source)), x)[0]


def is_narrow(dtype: DType) -> bool:
    """Return whether the type has fewer than 8 bits, such as int4."""
    return dtype.is_integer and dtype.limits[1] < 127


class Cast(Simplifiable, Elementwise):
    """Conversion to element type `to`: float to integer truncates and saturates, integers wrap, floats round.

    Attributes:
        to: The new element type.
        saturate: For float8: whether numbers that are too large become the largest finite one.
        rounding: For float8_e8m0: "up", "down" or "nearest".
    """

    mnemonic: ClassVar[str] = "cast"
    to: DType = DType.FLOAT32
    saturate: bool = True
    rounding: str = "up"

    def result_dtype(self, *dtypes: DType) -> DType:
        """Return the result's element type: the target type."""
        return self.to

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Return a cheaper equal value; None if there is none.

        Casts to the same type, and to float32 and back, are removed. Cast(Reshape(x)) becomes Reshape(Cast(x)) if x are
        the sums of a matrix product: the pass convert_qdq expects the cast directly behind the product.
        """
        x = node.input(0)
        if x.type.dtype is self.to:
            return x
        inner = x.producer
        if inner is not None and isinstance(inner.op, Reshape) and self.to is DType.INT32 and x.type.dtype.is_float:
            if graph.only_user(x) is not node:
                return None
            sums = graph.add(self, inner.inputs, node.origin, before=node)
            return graph.add(inner.op, [sums.output], inner.origin, before=node).output
        if inner is None or not isinstance(inner.op, Cast) or inner.op.to is not DType.FLOAT32:
            return None
        return inner.input(0) if self.to.is_narrow_float and inner.input(0).type.dtype is self.to else None

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return C's conversion, or helper calls for narrow floats and from float to integer."""
        (x,) = args
        if x.dtype.is_narrow_float:
            x = call(fn.WIDEN[x.dtype], x)
        if self.to is DType.BOOL:
            return Convert(self.to, x)
        if self.to is DType.FLOAT16 and x.dtype is DType.FLOAT64:
            return call(fn.DOUBLE_TO_HALF, x)
        if self.to.is_narrow_float:
            return call(self._narrowing(), x if x.dtype is DType.FLOAT32 else Convert(DType.FLOAT32, x))
        if x.dtype.is_float and self.to.is_integer:
            x = self._truncated(x, scalar)
        if is_narrow(self.to):
            low, high = self.to.limits
            return Convert(self.to, nodes.BinaryExpression("-", (x & (high - low)) ^ -low, Constant(-low, DType.INT32)))
        return Convert(self.to, x)

    def _narrowing(self) -> fn.Function:
        if self.to is DType.FLOAT8_E8M0:
            return fn.TO_POWER[self.rounding, self.saturate]
        return (fn.NARROW_SATURATED if self.saturate else fn.NARROW)[self.to]

    def _truncated(self, x: Expression, scalar: Scalars) -> Expression:
        if self.to is DType.UINT64:
            return call(fn.TRUNCATE_U64, x)
        low, high = DType.INT32.limits if is_narrow(self.to) else self.to.limits
        function = fn.TRUNCATE if high < 2**31 else fn.TRUNCATE_64
        function = fn.TRUNCATE_DOUBLE if x.dtype is DType.FLOAT64 else function
        return call(function, x, scalar(low), scalar(high))


SIGNED_COUNTERPART = {DType.UINT8: DType.INT8, DType.UINT16: DType.INT16}
"""Signed counterpart of each unsigned quantized type."""

OTHER_SIGNEDNESS = {**SIGNED_COUNTERPART, **{signed: unsigned for unsigned, signed in SIGNED_COUNTERPART.items()}}
"""Signed type of each unsigned quantized type, and unsigned type of each signed one."""


def half(dtype: DType) -> int:
    """Return half the number of values of a quantized type, such as 128 for int8.

    It is the difference of zero points of the signed and the unsigned type.
    """
    return int(2 ** (8 * dtype.numpy.itemsize - 1))


class FlipSign(Simplifiable, Elementwise):
    """Convert between unsigned and signed quantized values (8 or 16 bits) that stand for equal real numbers.

    The operator inverts the top bit; the zero point moves by 128 or 32,768. It turns uint8 models into int8 models.
    """

    mnemonic: ClassVar[str] = "flip_sign"

    def result_dtype(self, *dtypes: DType) -> DType:
        """Return the signed type of an unsigned one, or the unsigned type of a signed one."""
        return OTHER_SIGNEDNESS[dtypes[0]]

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return x + h (to an unsigned type) or x − h (to a signed type) as an expression, with h = 128 or 32,768."""
        operator = "-" if sig.input(0).dtype in SIGNED_COUNTERPART else "+"
        return Convert(
            sig.output.dtype, nodes.BinaryExpression(operator, args[0], Constant(half(sig.output.dtype), DType.INT32))
        )

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Cancel two flips, also around a data movement: flip(move(flip(x))) → move(x)."""
        producer = node.input(0).producer
        if producer is None:
            return None
        if isinstance(producer.op, FlipSign):
            source = producer.input(0)
            return source if source.type.quant == node.output.type.quant else None
        alone = len(producer.inputs) == len(producer.outputs) == 1
        inner = producer.input(0).producer if producer.op.moves_data and alone else None
        if inner is None or not isinstance(inner.op, FlipSign) or inner.input(0).type.quant != node.output.type.quant:
            return None
        out = node.output.type
        op = _moving_flipped(producer.op, producer.input(0).type, out)
        return graph.add(op, [inner.input(0)], producer.origin, types=[out], before=node).output


def _moving_flipped(op: Operator, x: TensorType, flipped: TensorType) -> Operator:
    """Return the data movement `op` of `x` for the same codes with the sign flipped.

    Only Pad depends on what codes stand for: its value is a real number where the tensor has a scale, else a code.
    """
    if not isinstance(op, Pad):
        return op
    offset = half(x.dtype)
    code = int(op.stored(x)[0]) + (offset if flipped.dtype in SIGNED_COUNTERPART else -offset)
    real = code if flipped.quant is None else (code - flipped.quant.zero_point) * flipped.quant.scale[0]
    return replace(op, value=float(real))


class Quantize(Simplifiable, Elementwise):
    """q = saturate(round_half_even(x / scale) + zero_point), with scale and zero point from the output's type."""

    mnemonic: ClassVar[str] = "quantize"

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Return a cheaper equal value; None if there is none.

        Quantize(Dequantize(q)) becomes Requantize(q). Quantize(Reshape(x)) becomes Reshape(Quantize(x)), because the
        pass convert_qdq expects the Quantize directly behind the operator that computes x.
        """
        mover = node.input(0).producer
        if mover is None:
            return None
        if isinstance(mover.op, Dequantize):
            return _requantized(graph, node, mover.input(0))
        if not isinstance(mover.op, Reshape) or graph.only_user(node.input(0)) is not node:
            return None
        x, out = mover.input(0), node.output.type
        q = graph.add(self, [x], node.origin, types=[out.with_shape(x.type.shape, x.type.layout)], before=node)
        return graph.add(mover.op, [q.output], mover.origin, types=[out], before=node).output

    def result_dtype(self, *dtypes: DType) -> DType:
        """Return the result's element type: int8; the node's output type overrides it."""
        return DType.INT8

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the quantized values in numpy, with one scale or, for constants, one scale per channel."""
        return (quantize(arrays[0], sig.output.q, sig.output.dtype),)

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return a float division and rounding for CPUs with an FPU, else the same result in integer arithmetic."""
        (x,), dtype, quant = args, sig.output.dtype, sig.output.q
        zero, bits = quant.zero_point, 8 * dtype.nbytes
        whole = None if "fpu" in scalar.features else WholeScale.of(quant.scale[0])
        if whole is not None:
            parts = (whole.significand, whole.inverse, whole.exponent, zero)
            return Convert(dtype, call(fn.QUANTIZE_REAL[bits], x, *map(scalar, parts)))
        return Convert(dtype, call(fn.ROUND[bits], _ratio(x, sig.output, scalar), scalar(zero)))

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel for contiguous blocks of elements, or to a loop over the elements."""
        if not emit_quantization(node, builder, node.output.type):
            super().lower(node, builder)

    def vector(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression | None:
        """Return the expression for float vectors, if multiplications can replace the division exactly."""
        out = sig.output
        reciprocal = Reciprocal.of(out.q.scale[0], _most(out))
        if reciprocal is None:
            return None
        zero, (low, high) = out.q.zero_point, out.dtype.limits
        ratio = call(fn.FUSED_RATIO, args[0], scalar(reciprocal.inverse), scalar(reciprocal.rest))
        number = call(fn.MAX_NUMBER, ratio, scalar(float(low - zero)))
        return call(fn.NEAREST, call(fn.MIN_NUMBER, number, scalar(float(high - zero)))) + scalar(zero)


def _ratio(x: Expression, out: TensorType, scalar: Scalars) -> Expression:
    """x / scale."""
    scale = out.q.scale[0]
    reciprocal = Reciprocal.of(scale, _most(out))
    if reciprocal is None:
        return x / scalar(float(scale))
    return call(fn.RATIO, x, scalar(float(scale)), scalar(reciprocal.inverse), scalar(reciprocal.rest))


def _most(out: TensorType) -> int:
    """Return the largest magnitude of a quantized value minus the zero point."""
    return max(abs(limit - out.q.zero_point) for limit in out.dtype.limits)


class QuantizeBy(Elementwise):
    """q = saturate(round_half_even(x / scale) + zero_point), with scale and zero point computed at run time.

    They are the second and third input. NaN gives the lowest quantized value.

    Attributes:
        to: Element type of the result: int8, uint8 or int16.
    """

    mnemonic: ClassVar[str] = "quantize_by"
    to: DType = DType.INT8

    def result_dtype(self, *dtypes: DType) -> DType:
        """Return the result's element type, the target type: int8, uint8 or int16."""
        return self.to

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return the quantization of x as an expression.

        For uint8, x is quantized to int8 with the zero point minus 128, and 128 is added to the result.
        """
        x, scale, zero = args
        offset = Constant(128 if self.to is DType.UINT8 else 0, DType.INT32)
        signed = nodes.BinaryExpression("-", Convert(DType.INT32, zero), offset)
        return Convert(
            self.to, nodes.BinaryExpression("+", call(fn.QUANTIZE_BY[8 * self.to.nbytes], x, scale, signed), offset)
        )


class Dequantize(Elementwise):
    """x = (q − zero_point) · scale, with scale and zero point from the input's type."""

    mnemonic: ClassVar[str] = "dequantize"

    def result_dtype(self, *dtypes: DType) -> DType:
        """Return the result's element type: float32."""
        return DType.FLOAT32

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the real values in numpy, with one scale or, for constants, one scale per channel."""
        return (dequantize(arrays[0], sig.input(0).q),)

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return (q − zero point) · scale as an expression: a subtraction in int32 and a multiplication.

        The multiplication is in float. For int8 on a CPU without FPU, it uses integers if the scale permits that.
        """
        quant = sig.input(0).q
        centered = args[0] - scalar(quant.zero_point)
        whole = None if "fpu" in scalar.features else WholeScale.of(quant.scale[0])
        if sig.input(0).dtype is DType.INT8 and whole is not None:
            return call(fn.REAL, centered, scalar(whole.significand), scalar(whole.exponent))
        return Convert(DType.FLOAT32, centered) * scalar(float(quant.scale[0]))

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel for contiguous blocks of elements, or to a loop over the elements."""
        if not emit_quantization(node, builder, node.input(0).type):
            super().lower(node, builder)

    def vector(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression | None:
        """Return the expression for Helium vectors: int8 or int16 lanes become floats, multiplied by the scale.

        Return None for other element types, and for one scale per channel.
        """
        quant = sig.input(0).q
        if sig.input(0).dtype not in (DType.INT8, DType.INT16) or len(quant.scale) > 1:
            return None
        return Convert(DType.FLOAT32, args[0] - scalar(quant.zero_point)) * scalar(float(quant.scale[0]))


class Requantize(Elementwise):
    """Convert an int8 tensor to another scale and zero point; real values stay equal, except for rounding."""

    mnemonic: ClassVar[str] = "requantize"

    def result_dtype(self, *dtypes: DType) -> DType:
        """Return the result's element type: int8."""
        return DType.INT8

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy: dequantize, then quantize; arrays of real numbers are returned unchanged.

        Real arrays occur when the operator is evaluated to fill a lookup table.
        """
        if sig.input(0).quant is None:
            return (arrays[0],)
        return (quantize(dequantize(arrays[0], sig.input(0).q), sig.output.q, sig.output.dtype),)

    def tflite_codes(self, d: Array, x: QuantParams, out: QuantParams) -> Array | None:
        """Return the results of TensorFlow Lite's QUANTIZE; see `Elementwise.tflite_codes`."""
        return rescaled_codes(d, x.scale[0] / out.scale[0], out)


def _requantized(graph: Graph, node: Node, stored: Value) -> Value | None:
    """Return `stored` in the quantization of `node`, a Quantize behind a Dequantize: unchanged, or by a table."""
    out = node.output.type
    if stored.type.quant == out.quant and stored.type.dtype is out.dtype:
        return stored
    form = Requantize().integer(graph, Signature((stored.type,), (out,)), [stored])
    return None if form is None else graph.add(form[0], form[1], node.origin, types=[out], before=node).output


@onnx_operator("Cast", "CastLike", kernels=("elementwise",), keeps_halves=True)
def _import_cast(node: OnnxNode) -> list[Value]:
    saturates, rounding = bool(node.attr("saturate", 1)), str(node.attr("round_mode", "up"))
    if rounding not in fn.ROUNDINGS:
        raise Refusal(f"{node.op_type}: round_mode must be one of {', '.join(fn.ROUNDINGS)}", rounding, "choose one")
    x, op = node.input(0), Cast(_target(node), saturates, rounding)
    if x.data is None or x.type.quant is not None:
        return [node.emit(op, x)]
    # of CastLike, where the tensor whose type it takes is computed: the importer cannot fold it
    (data,) = op.evaluate(Signature((x.type,), op.infer(x.type)), x.data)
    return [node.graph.constant(node.outputs[0], data, dtype=op.to)]


def _target(node: OnnxNode) -> DType:
    if node.op_type == "CastLike":
        like = node.dtypes[1]
        assert like is not None
        return like
    return onnx_dtype(node, int(node.attr("to", 1)))


def onnx_dtype(node: OnnxNode, number: int) -> DType:
    """Return the element type of an ONNX type number.

    Raises:
        Refusal: The type has no C counterpart.
    """
    try:
        return DType(helper.tensor_dtype_to_np_dtype(number).name)
    except (ValueError, KeyError) as error:
        cause = str(error)
        raise Refusal(f"{node.op_type}: the type must have a C counterpart", cause, "cast to float32") from error
