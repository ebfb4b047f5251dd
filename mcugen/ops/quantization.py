# SPDX-License-Identifier: Apache-2.0
"""Importers of quantized models: QuantizeLinear and DequantizeLinear, and QOperator forms, composed of these.

All quantized tensors become int8 inside: uint8 ones pass a FlipSign, which cancels between neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.hir.graph import Node, Value
from mcugen.hir.types import Array, DType, QuantParams, TensorType
from mcugen.numerics.fixedpoint import dequantize
from mcugen.numerics.window import Window
from mcugen.ops.conv import Conv, IntegerConv, conv_window, has_fast_kernel
from mcugen.ops.conversion import (
    SIGNED_COUNTERPART,
    Cast,
    Dequantize,
    FlipSign,
    Quantize,
    QuantizeBy,
    half,
    is_narrow,
    onnx_dtype,
)
from mcugen.ops.elementwise import emit_elementwise
from mcugen.ops.matmul import emit_matmul
from mcugen.ops.movement import Expand, Pad, Reshape, Slice, normalize_axis, reshaped
from mcugen.ops.onnx_node import BUILT_IN, MICROSOFT, OnnxNode, Refusal, onnx_operator
from mcugen.ops.packed import DequantizeBlocks, repeat_scales
from mcugen.ops.padding import PadWith
from mcugen.ops.pointwise import Binary, Clamp, Unary, Where
from mcugen.ops.weighted import fits_int16


def _is_known(node: OnnxNode, scale_at: int, *, whole: bool) -> bool:
    """Whether scale and zero point are constants of integer kernels: one a tensor (`whole`), or one a channel."""
    parameters = [node.input(i) for i in (scale_at, scale_at + 1) if node.has(i)]
    if any(v.data is None for v in parameters) or node.attr("block_size", 0):
        return False
    scale = node.input(scale_at).type
    return scale.count == 1 if whole else scale.rank <= 1 and all(v.type.count in (1, scale.count) for v in parameters)


def _params(node: OnnxNode, scale_at: int, axis: int, x: TensorType, what: str) -> tuple[Array, Array]:
    """Return scale and zero point of `x` as constants (zero points default to 0)."""
    scale = node.const(scale_at, f"{what} scale")
    zero = node.const(scale_at + 1, f"{what} zero point") if node.has(scale_at + 1) else np.zeros(scale.shape, np.uint8)
    if scale.size != 1 and x.shape[normalize_axis(node, axis, x.rank)] != scale.size:
        counts = f"{scale.size} scales for axis {axis} of {x.shape}"
        raise Refusal(f"{node.op_type}: scales must be one per tensor or one per channel", counts, "quantize again")
    if not scale.size or zero.size not in (1, scale.size):
        counts = f"{scale.size} scales, {zero.size} zero points"
        raise Refusal(
            f"{node.op_type}: there must be a scale, and a zero point for each or for all", counts, "quantize again"
        )
    _check_scales(node, scale)
    return scale, zero


def _check_scales(node: OnnxNode, scales: Array, may_be_zero: bool = False) -> None:
    """Refuse scales that are not positive and finite: no code stands for a number then.

    Args:
        may_be_zero: Whether a scale may be 0, which quantizers write for a block of zeros.
    """
    with np.errstate(invalid="ignore"):
        wrong = scales[~(np.isfinite(scales) & ((scales >= 0) if may_be_zero else (scales > 0)))]
    if wrong.size:
        raise Refusal(f"{node.op_type}: scales must be positive and finite", f"{wrong[0]}", "quantize again")


def _quant(scale: Array, zero_point: int, axis: int, rank: int) -> QuantParams:
    per_channel = scale.ndim == 1 and scale.size > 1
    return QuantParams(tuple(map(float, scale.reshape(-1))), zero_point, axis % rank if per_channel else None)


def emit_quantize(node: OnnxNode, real: Value, scale_at: int, default: DType = DType.UINT8) -> Value:
    """Add a QuantizeLinear whose scale and zero point are inputs of the node; return its output.

    Args:
        node: Node that is imported.
        real: Value that is quantized.
        scale_at: Index of the input with the scale; the zero point is the next one.
        default: Element type if no zero point is given.
    """
    dtype = _quantized_dtype(node, scale_at, default)
    fits = _is_known(node, scale_at, whole=True) and real.type.dtype is DType.FLOAT32
    if fits and is_narrow(dtype):
        return _emit_narrow_quantize(node, real, scale_at, dtype)
    if not fits or dtype not in (DType.INT8, DType.INT16, *SIGNED_COUNTERPART):
        return _emit_plain_quantize(node, real, scale_at, dtype)
    scale, zero = _params(node, scale_at, node.attr("axis", 1), real.type, "output")
    flipped = dtype in SIGNED_COUNTERPART
    quant = _quant(scale, int(zero.reshape(-1)[0]) - half(dtype) * flipped, 0, real.type.rank)
    out = TensorType(real.type.shape, SIGNED_COUNTERPART.get(dtype, dtype), quant, real.type.layout)
    if not flipped:
        return node.emit(Quantize(), real, types=[out])
    codes = node.emit(Quantize(), real, types=[out], suffix=_signed_suffix(dtype))
    return node.emit(FlipSign(), codes)


def _emit_narrow_quantize(node: OnnxNode, real: Value, scale_at: int, dtype: DType) -> Value:
    """Quantize to fewer than 8 bits: clamp the reals, then quantize to int8; a Cast gives the narrow type."""
    scale, zero = _params(node, scale_at, node.attr("axis", 1), real.type, "output")
    quant = _quant(scale, int(zero.reshape(-1)[0]), 0, real.type.rank)
    ends = (float(np.float32((end - quant.zero_point) * quant.scale[0])) for end in dtype.limits)
    clamped = node.emit(Clamp(*ends), real, suffix="clamped")
    out = TensorType(real.type.shape, DType.INT8, quant, real.type.layout)
    return node.emit(Cast(dtype), node.emit(Quantize(), clamped, types=[out], suffix="s8"))


def _before_narrowing(q: Value) -> Value:
    """Return the int8 tensor of which a narrower quantized tensor is a cast."""
    cast = q.producer
    narrowed = cast is not None and isinstance(cast.op, Cast) and is_narrow(q.type.dtype)
    return cast.input(0) if narrowed and cast is not None and cast.input(0).type.quant is not None else q


def _signed_suffix(dtype: DType) -> str:
    """Return the name suffix of a tensor that was converted to a signed type."""
    return "s8" if dtype is DType.UINT8 else "s16"


def _quantized_dtype(node: OnnxNode, scale_at: int, default: DType) -> DType:
    """Return the type of the zero point, else the attribute's, else `default`."""
    if node.has(scale_at + 1):
        return _code_dtype(node, scale_at + 1)
    number = int(node.attr("output_dtype", 0))
    return onnx_dtype(node, number) if number else default


def _code_dtype(node: OnnxNode, index: int) -> DType:
    """Return an input's element type in ONNX; narrow floats are held as float32."""
    declared_dtype = node.dtypes[index] if index < len(node.dtypes) else None
    return declared_dtype or node.input(index).type.dtype


def emit_dequantize(node: OnnxNode, q: Value, scale_at: int, suffix: str = "", axis: int = 0) -> Value:
    """Add a DequantizeLinear whose scale and zero point are inputs of the node; return its output.

    Args:
        node: Node that is imported.
        q: Value that is dequantized.
        scale_at: Index of the input with the scale; the zero point is the next one.
        suffix: End of the result's name.
        axis: Axis of per-channel scales.
    """
    if q.type.dtype is DType.FLOAT32:  # narrow floats, widened
        return _emit_plain_dequantize(node, q, scale_at, suffix, axis)
    q = _before_narrowing(q)
    blocks = _constant_blocks(node, q, scale_at, axis)
    if blocks is not None:
        return node.emit(*blocks, suffix=suffix)
    if not _is_known(node, scale_at, whole=q.data is None):
        return _emit_plain_dequantize(node, q, scale_at, suffix, axis)
    scale, zero = _params(node, scale_at, axis, q.type, q.name)
    if q.data is not None:
        return _dequantize_constant(node, q, scale, zero, axis, suffix)
    zero_point = int(zero.reshape(-1)[0])
    flipped = q.type.dtype in SIGNED_COUNTERPART
    quant = _quant(scale, zero_point - half(q.type.dtype) * flipped, 0, q.type.rank)
    if (q.type.dtype is DType.INT32 and zero_point) or not (flipped or _may_assume(q, quant)):
        return _emit_plain_dequantize(node, q, scale_at, suffix, axis)
    if SIGNED_COUNTERPART.get(q.type.dtype, q.type.dtype) is DType.INT16 and quant.zero_point:
        note = (
            "16-bit tensors whose zero point is not in the middle are computed as floats: quantize them symmetrically"
        )
        node.graph.notes += [note] * (note not in node.graph.notes)
    if flipped:
        q = node.emit(FlipSign(), q, suffix=f"{suffix}{_signed_suffix(q.type.dtype)}")
    assume_quant(q, quant, node)
    return node.emit(Dequantize(), q, suffix=suffix)


def _constant_blocks(
    node: OnnxNode, q: Value, scale_at: int, axis: int
) -> tuple[DequantizeBlocks, Value, Value] | None:
    """Return a constant matrix with a scale a block and its zero points subtracted, for layers with packed weights.

    None: there is no such matrix, or 16 bits do not hold an element less its zero point.
    """
    block, scale = int(node.attr("block_size", 0)), node.input(scale_at).data
    zero = node.input(scale_at + 1).data if node.has(scale_at + 1) else np.zeros((), np.int64)
    if block < 1 or q.data is None or q.type.rank != 2 or scale is None or zero is None or scale.dtype != np.float32:
        return None
    axis = normalize_axis(node, axis, 2)
    shape = tuple(-(-size // block) if a == axis else size for a, size in enumerate(q.type.shape))
    if scale.shape != shape or zero.shape not in ((), shape) or not (np.isfinite(scale) & (scale > 0)).all():
        return None
    zeros = repeat_scales(zero, axis, block, q.type.shape[axis]) if zero.ndim else zero
    codes = q.data.astype(np.int64) - zeros.astype(np.int64)
    if not fits_int16(codes):
        return None
    return (
        DequantizeBlocks(axis, block),
        node.constant("codes", codes.astype(np.int16), of=[q]),
        node.constant("scales", scale, of=[node.input(scale_at)]),
    )


# --------------------------------------------------------------------- conversions as plain real arithmetic


def _emit_plain_quantize(node: OnnxNode, real: Value, scale_at: int, dtype: DType) -> Value:
    """Quantize with any scales, computed ones too: saturate(round(x / scale) + zero_point)."""
    if not (dtype.is_integer or dtype.is_narrow_float):
        raise Refusal(f"{node.op_type}: the quantized type must be an integer", dtype.value, "quantize to int8")
    if (scales := node.input(scale_at).data) is not None:
        _check_scales(node, scales)
    real = _as_real(node, real, "x")
    axis = node.attr("axis", 1)
    scale = _spread(node, _as_real(node, node.input(scale_at), "scale"), real.type, axis, "scale")
    if not scale.type.rank and dtype in (DType.INT8, DType.UINT8, DType.INT16):
        zero_point = (
            node.input(scale_at + 1) if node.has(scale_at + 1) else node.constant("zero", np.zeros((), dtype.numpy))
        )
        zero = reshaped(node, zero_point, (), "zero.scalar")
        return emit_elementwise(node, QuantizeBy(dtype), real, scale, zero)
    steps = emit_elementwise(node, Binary("Div"), real, scale, suffix="ratio")
    if dtype.is_integer:
        steps = node.emit(Unary("Round"), steps, suffix="rounded")
    if node.has(scale_at + 1):
        zero = _spread(node, _as_real(node, node.input(scale_at + 1), "zero"), real.type, axis, "zero")
        steps = emit_elementwise(node, Binary("Add"), steps, zero, suffix="shifted")
    if dtype.is_narrow_float:
        return node.emit(Cast(dtype, bool(node.attr("saturate", 1))), steps)
    low, high = dtype.limits
    steps = node.emit(Clamp(float(low), float(high)), steps, suffix="saturated")
    return node.emit(Cast(dtype), steps)


def _emit_plain_dequantize(node: OnnxNode, q: Value, scale_at: int, suffix: str, axis: int) -> Value:
    """Dequantize with any scales, computed ones too: (q − zero_point) · scale."""
    if (scales := node.input(scale_at).data) is not None:
        _check_scales(node, scales, may_be_zero=bool(node.attr("block_size", 0)))
    real = _as_real(node, q, f"{suffix}codes")
    scale = _spread(node, _as_real(node, node.input(scale_at), f"{suffix}scale"), q.type, axis, f"{suffix}scale")
    if node.has(scale_at + 1):
        zero = _as_real(node, node.input(scale_at + 1), f"{suffix}zero")
        zero = _spread(node, zero, q.type, axis, f"{suffix}zero")
        real = emit_elementwise(node, Binary("Sub"), real, zero, suffix=f"{suffix}centered")
    return emit_elementwise(node, Binary("Mul"), real, scale, suffix=suffix)


def _as_real(node: OnnxNode, value: Value, suffix: str) -> Value:
    """Return the numbers of an integer tensor as float32."""
    if value.type.dtype is DType.FLOAT32:
        return value
    return node.emit(Cast(DType.FLOAT32), value, suffix=f"{suffix}.real")


def _spread(node: OnnxNode, param: Value, x: TensorType, axis: int, suffix: str) -> Value:
    """Return a scale or zero point (per tensor, channel or block) in a shape that broadcasts against `x`."""
    if param.type.count == 1:
        return reshaped(node, param, (), f"{suffix}.scalar")
    axis = normalize_axis(node, axis, x.rank)
    block, size = int(node.attr("block_size", 0)), x.shape[axis]
    if not block:
        if param.type.shape != (size,):
            mismatch = f"{param.type.shape} for axis {axis} of {x.shape}"
            raise Refusal(
                f"{node.op_type}: scales must be one per tensor, channel or block", mismatch, "quantize again"
            )
        return reshaped(node, param, (size, *(1,) * (x.rank - axis - 1)), f"{suffix}.channels")
    head, tail = x.shape[:axis], x.shape[axis + 1 :]
    blocks = -(-size // max(block, 1))
    if block < 1 or param.type.shape != (*head, blocks, *tail):
        mismatch = f"{param.type.shape} for blocks of {block} on axis {axis} of {x.shape}"
        raise Refusal(f"{node.op_type}: scales must be one per block", mismatch, "quantize again")
    apart = reshaped(node, param, (*head, blocks, 1, *tail), f"{suffix}.blocks")
    wide = node.emit(Expand((*head, blocks, block, *tail)), apart, suffix=f"{suffix}.repeated")
    flat = node.emit(Reshape((*head, blocks * block, *tail)), wide, suffix=f"{suffix}.flat")
    return node.emit(Slice((0,) * x.rank, x.shape, (1,) * x.rank), flat, suffix=f"{suffix}.spread")


# -------------------------------------------------------------------------------------- what integers mean


def _dequantize_constant(node: OnnxNode, q: Value, scale: Array, zero: Array, axis: int, suffix: str) -> Value:
    """Add constant weights as quantized constants behind a Dequantize, where integer kernels look for them."""
    data, rank = q.type, q.type.rank
    assert q.data is not None
    stored, zeros = q.data, zero.astype(np.int64).reshape(-1)
    if stored.dtype == np.uint8:
        stored, zeros = (stored ^ np.uint8(128)).view(np.int8), zeros - 128
    if (zeros != zeros[0]).any():
        shape = [1] * rank
        shape[axis] = -1
        stored, zeros = stored.astype(np.int64) - zeros.reshape(shape), np.zeros(1, np.int64)
        stored = stored.astype(np.int16) if fits_int16(stored) else stored
    quant = _quant(scale, int(zeros[0]), axis, max(data.rank, 1))
    if stored.dtype.name not in ("int8", "int16", "int32"):
        return node.constant(suffix or "real", dequantize(stored, quant), of=[q])
    return node.emit(Dequantize(), node.constant(f"{suffix}q", stored, quant, of=[q]), suffix=suffix)


def _may_assume(value: Value, quant: QuantParams) -> bool:
    """Whether nobody reads the tensor, or what it was moved from, with another scale; nor was it computed of codes."""
    if value.type.quant is not None:
        return value.type.quant == quant
    producer = value.producer
    if producer is None:
        return True
    if isinstance(producer.op, Binary | Where):  # of scaled tensors they compute other codes
        return False
    return not producer.op.moves_data or _may_assume(producer.input(0), quant)


def assume_quant(value: Value, quant: QuantParams, node: OnnxNode) -> None:
    """Give an integer tensor the scale and zero point with which a node reads it.

    If an operator that only moves data, such as Reshape, computes the tensor, the operator's input gets the same scale
    and zero point.

    Args:
        value: The integer tensor.
        quant: Scale and zero point.
        node: The node that reads the tensor.

    Raises:
        Refusal: The tensor has another scale or zero point.
    """
    if value.type.quant == quant:
        return
    if value.type.quant is not None:
        raise Refusal(
            f"{node.op_type}: a tensor must have one scale and zero point",
            f"'{value.name}' is read with {quant} and has {value.type.quant}",
            "quantize again",
        )
    value.type = replace(value.type, quant=quant)
    producer = value.producer
    if producer is None or not producer.op.moves_data:
        return
    if isinstance(producer.op, Pad):  # its value was a code until now
        real = (producer.op.value - quant.zero_point) * quant.scale[0]
        producer.op = replace(producer.op, value=real)
    assume_quant(producer.input(0), quant, node)


def learn_quant(value: Value) -> None:
    """Set the quantization of a uint8 model input or output, if it follows from the int8 tensors next to it.

    Tensors between both that only move data get the same quantization.
    """
    moved, flipped = [value], set[Value]()
    for tensor in moved:
        node = tensor.producer
        if node is not None and isinstance(node.op, FlipSign):
            flipped.add(node.input(0))
        elif node is not None and _only_moves(node):
            moved += [node.input(0)] * (node.input(0) not in moved)
        elif node is not None:
            return
        for user in tensor.users:
            if isinstance(user.op, FlipSign):
                flipped.add(user.output)
            elif _only_moves(user):
                moved += [user.output] * (user.output not in moved)
            else:
                return
    known = {tensor.type.quant for tensor in flipped}
    quant = known.pop() if len(known) == 1 else None
    if quant is None or any(t.type.dtype is not DType.UINT8 or t.type.quant is not None for t in moved):
        return
    for tensor in moved:
        tensor.type = replace(tensor.type, quant=replace(quant, zero_point=quant.zero_point + 128))


def _only_moves(node: Node) -> bool:
    """Return whether its results are elements of its only input."""
    return node.op.moves_data and not isinstance(node.op, Pad) and len(node.outputs) == len(node.inputs) == 1


@onnx_operator("QuantizeLinear", domain=MICROSOFT, kernels=("quantize_s8_fpu", "elementwise"))
@onnx_operator("QuantizeLinear", kernels=("quantize_s8_fpu", "elementwise"), limits="no float6")
def _import_quantize(node: OnnxNode) -> list[Value]:
    return [emit_quantize(node, node.input(0), 1)]


@onnx_operator("DequantizeLinear", domain=MICROSOFT, kernels=("dequantize_s8_fpu", "elementwise"))
@onnx_operator("DequantizeLinear", kernels=("dequantize_s8_fpu", "elementwise"), limits="no float6")
def _import_dequantize(node: OnnxNode) -> list[Value]:
    real = emit_dequantize(node, node.input(0), 1, axis=node.attr("axis", 1))
    number = int(node.attr("output_dtype", 0))
    dtype = onnx_dtype(node, number) if number else DType.FLOAT32
    return [node.emit(Cast(dtype), real, suffix="narrow") if dtype.is_narrow_float else real]


# ------------------------------------------------------------------------------------------------ QOperator


def as_float(node: OnnxNode, op_type: str, inputs: Sequence[Value | None], **attributes: object) -> Value:
    """Import the float operator `op_type` for a quantized node, on dequantized inputs; return its output.

    Args:
        node: The quantized node, whose attributes are used, too.
        op_type: ONNX operator.
        inputs: Dequantized inputs.
        attributes: Further attributes.
    """
    inner = OnnxNode(
        node.graph,
        "",
        op_type,
        node.name,
        tuple(inputs),
        (f"{node.outputs[0]}.real",),
        {**node.attributes, **attributes},
        node.opset,
    )
    (result,) = BUILT_IN.importers["", op_type](inner)
    assert result is not None
    return result


def products_bias(node: OnnxNode, bias: Value, x_scale: Value, w_scale: Value) -> Value:
    """Return the real value of an int32 bias, whose scale is the input's scale times the weights' scale.

    Args:
        node: Node that is imported.
        bias: The bias, int32.
        x_scale: Scale of the input.
        w_scale: Scale of the weights.
    """
    if x_scale.data is None or w_scale.data is None:
        unit = emit_elementwise(node, Binary("Mul"), x_scale, w_scale, suffix="bias.scale")
        return emit_elementwise(node, Binary("Mul"), _as_real(node, bias, "bias"), unit, suffix="bias")
    unit64 = x_scale.data.astype(np.float64).reshape(-1) * w_scale.data.astype(np.float64).reshape(-1)
    quant = _quant(unit64.astype(np.float32), 0, 0, max(bias.type.rank, 1))
    if bias.data is None:
        assume_quant(bias, quant, node)
        return node.emit(Dequantize(), bias, suffix="bias")
    return node.emit(Dequantize(), node.constant("biasq", bias.data, quant, of=[bias]), suffix="bias")


@onnx_operator("QLinearConv", kernels=("depthwise_s8", "conv2d_s8", "conv_direct"))
def _import_qlinear_conv(node: OnnxNode) -> list[Value]:
    x, w = emit_dequantize(node, node.input(0), 1, "x"), emit_dequantize(node, node.input(3), 4, "w")
    bias = products_bias(node, node.input(8), node.input(1), node.input(4)) if node.has(8) else None
    return [emit_quantize(node, as_float(node, "Conv", (x, w, bias)), 6)]


@onnx_operator("QLinearMatMul", kernels=("dense_s8", "matmul_s8", "matmul_int"))
def _import_qlinear_matmul(node: OnnxNode) -> list[Value]:
    whole = (True, node.input(3).data is None, True)
    if all(_is_known(node, at, whole=one) for at, one in zip((1, 4, 6), whole, strict=True)):
        a, b = emit_dequantize(node, node.input(0), 1, "a"), emit_dequantize(node, node.input(3), 4, "b", axis=-1)
        return [emit_quantize(node, as_float(node, "MatMul", (a, b)), 6)]
    acc = _emit_integer_matmul(node, (0, 2), (3, 5))
    a_scale, b_scale = _per_row(node, node.input(1), "a.scale"), node.input(4)
    unit = emit_elementwise(node, Binary("Mul"), a_scale, b_scale, suffix="unit")
    real = emit_elementwise(node, Binary("Mul"), _as_real(node, acc, "sum"), unit, suffix="real")
    return [emit_quantize(node, real, 6)]


def _integer_operand(node: OnnxNode, index: int, zero_at: int, suffix: str) -> Value:
    """Return an operand of ConvInteger or MatMulInteger as reals, x − zero_point, exact in float32."""
    value = node.input(index)
    unit = node.constant(f"{suffix}one", np.ones((), np.float32))
    absent = np.zeros((), value.type.dtype.numpy)
    zero = node.input(zero_at) if node.has(zero_at) else node.constant(f"{suffix}zero", absent)
    operand = replace(node, inputs=(value, unit, reshaped(node, zero, (), f"{suffix}zero")))
    return emit_dequantize(operand, value, 1, suffix)


@onnx_operator("ConvInteger", types=(DType.INT8, DType.UINT8), kernels=("depthwise_s8", "conv2d_s8", "conv_direct"))
def _import_conv_integer(node: OnnxNode) -> list[Value]:
    """Constant weights with constant zero points, one a tensor, go the way of MatMulInteger."""
    present_zero_points = [node.input(i) for i in (2, 3) if node.has(i)]
    if has_fast_kernel(node) and all(z.is_constant and z.type.count == 1 for z in present_zero_points):
        return list(_import_integer_product(node))
    node.require_dtype(node.input(0), DType.INT8, DType.UINT8)
    node.require_dtype(node.input(1), DType.INT8, DType.UINT8)
    channels = node.input(1).type.shape[0]
    zeros = [
        node.input(i) if node.has(i) else node.constant(f"zero{i}", np.zeros(1, node.input(i - 2).type.dtype.numpy))
        for i in (2, 3)
    ]
    counts = [z.type.count for z in zeros]
    if counts[0] != 1 or counts[1] not in (1, channels):
        raise ModelError(
            "ConvInteger: zero points must be one a tensor, or one an output channel", f"{counts}", "repair the model"
        )
    if has_fast_kernel(node):
        weights = _centered_weights(node, zeros[1])
        if weights is not None:
            return [_emit_centered_conv(node, zeros[0], weights)]
    op = IntegerConv(conv_window(node), groups=int(node.attr("group", 1)))
    return [node.emit(op, node.input(0), node.input(1), *zeros)]


def _centered_weights(node: OnnxNode, zero: Value) -> Array | None:
    """Return constant weights of a ConvInteger minus their zero points; None if sums with int16 exceed 32 bits."""
    w = node.input(1).data
    if w is None or zero.data is None:
        return None
    centered = w.astype(np.int64) - zero.data.astype(np.int64).reshape(-1, *[1] * (w.ndim - 1))
    sums = np.abs(centered).reshape(len(centered), -1).sum(1)
    return centered if sums.max(initial=0) < 2**16 else None


def _emit_centered_conv(node: OnnxNode, zero: Value, weights: Array) -> Value:
    """Add Σ (x − zx)(w − zw): by _emit_padded_conv if the weights fit int8, else by an int16 convolution."""
    unit = QuantParams((1.0,), 0)
    padded_conv = _emit_padded_conv(node, zero, weights) if _is_int8(weights) else None
    if padded_conv is not None:
        return padded_conv
    wide = node.emit(Cast(DType.INT32), node.input(0), suffix="x.wide")
    offset = node.emit(Cast(DType.INT32), reshaped(node, zero, (), "x.zero.scalar"), suffix="x.zero.wide")
    centered = emit_elementwise(node, Binary("Sub"), wide, offset, suffix="x.centered")
    codes = node.emit(Cast(DType.INT16), centered, suffix="x.codes")
    assume_quant(codes, unit, node)
    w = node.constant("w.codes", weights.astype(np.int16), unit, of=[node.input(1)])
    bias = node.constant("bias", np.zeros(len(weights), np.int32))
    op = Conv(conv_window(node), groups=int(node.attr("group", 1)))
    (out,) = op.infer(codes.type, w.type)
    return node.emit(op, codes, w, bias, types=[replace(out, quant=unit)], suffix="sum")


def _emit_padded_conv(node: OnnxNode, zero: Value, weights: Array) -> Value | None:
    """Add Σ x·w − zx · Σ w for an x that is padded with zx, so that int8 suffices; None if x has another scale."""
    window, unit = conv_window(node), QuantParams((1.0,), 0)
    padded = replace(node, inputs=(_zero_padded(node, zero, window),))
    real = _integer_operand(padded, 0, 1, "x").producer
    if real is None or not isinstance(real.op, Dequantize):
        return None
    codes, w = real.input(0), node.constant("w.codes", weights.astype(np.int8), unit, of=[node.input(1)])
    none = (0,) * len(window.before)
    op = Conv(replace(window, before=none, after=none), groups=int(node.attr("group", 1)))
    (out,) = op.infer(codes.type, w.type)
    bias = node.constant("bias", np.zeros(len(weights), np.int32))
    total = node.emit(op, codes, w, bias, types=[replace(out, quant=unit)], suffix="products")
    wide = node.emit(Cast(DType.INT32), reshaped(node, zero, (), "x.zero.scalar"), suffix="x.zero.wide")
    sums = weights.reshape(len(weights), -1).sum(1).astype(np.int32).reshape(1, -1, *[1] * len(none))
    offset = emit_elementwise(node, Binary("Mul"), wide, node.constant("columns", sums), suffix="offset")
    return emit_elementwise(node, Binary("Sub"), total, offset, suffix="sum")


def _zero_padded(node: OnnxNode, zero: Value, window: Window) -> Value:
    """Return x with explicit padding that represents 0."""
    if not any((*window.before, *window.after)):
        return node.input(0)
    before, after = ((0, 0, *widths) for widths in (window.before, window.after))
    return node.emit(PadWith(before, after), node.input(0), zero, suffix="x.padded")


@onnx_operator("MatMulInteger", kernels=("dense_s8", "matmul_s8", "matmul_int"))
def _import_integer_product(node: OnnxNode) -> list[Value]:
    """y = Σ (x − zx)(w − zw), int32: the float operator at scale 1, then a cast; convert_qdq makes it integer.

    Zero points that are computed, or several, are subtracted beforehand; matrices are then plain integers.
    """
    zeros = [node.input(i) for i in (2, 3) if node.has(i)]
    if node.op_type == "MatMulInteger" and any(z.data is None or z.type.count > 1 for z in zeros):
        weights = _whole_weights(node)
        return [_emit_integer_matmul(node, (0, 2), (1, 3)) if weights is None else _emit_weighted_sums(node, *weights)]
    x, w = _integer_operand(node, 0, 2, "x"), _integer_operand(node, 1, 3, "w")
    real = as_float(node, node.op_type.removesuffix("Integer"), (x, w))
    return [node.emit(Cast(DType.INT32), real)]


def _whole_weights(node: OnnxNode) -> tuple[Array, Array] | None:
    """Constant weights of a MatMulInteger as int64 [K, N]; their zero point, or one a column. None: not constant."""
    w, zero = node.input(1), node.input(3).data if node.has(3) else np.zeros((), np.int64)
    has_8_bit_operands = {node.input(0).type.dtype, w.type.dtype} <= {DType.INT8, DType.UINT8}
    if w.data is None or w.type.rank != 2 or zero is None or not has_8_bit_operands or node.input(0).type.rank < 2:
        return None
    return w.data.astype(np.int64), zero.astype(np.int64).reshape(-1)


def _emit_weighted_sums(node: OnnxNode, w: Array, zero: Array) -> Value:
    """Add Σ (x − zx)(w − zw) as Σ x·v + (c − zw) · Σ x − zx · Σ (w − zw), with v = w − c in int8: a dense layer."""
    center = zero if _is_int8(w - zero) else np.asarray([128 * (node.input(1).type.dtype is DType.UINT8)])
    codes = node.constant("w.codes", (w - center).astype(np.int8), QuantParams((1.0,), 0), of=[node.input(1)])
    x = replace(node, inputs=(node.input(0), node.input(1)))
    real = as_float(node, "MatMul", (_integer_operand(x, 0, 2, "x"), node.emit(Dequantize(), codes, suffix="w")))
    total = node.emit(Cast(DType.INT32), real, suffix="products")
    if (center != zero).any():
        wide = node.emit(Cast(DType.INT32), node.input(0), suffix="x.wide")
        sums = node.call("ReduceSum", wide, np.asarray([-1], np.int64), keepdims=1)
        center_offset = node.constant("rest", np.broadcast_to(center - zero, w.shape[1:]).astype(np.int32))
        product = emit_elementwise(node, Binary("Mul"), sums, center_offset, suffix="rest.product")
        total = emit_elementwise(node, Binary("Add"), total, product, suffix="whole")
    if not node.has(2):
        return total
    x_zero = node.emit(Cast(DType.INT32), _per_row(node, node.input(2), "x.zero"), suffix="x.zero.wide")
    columns = node.constant("columns", (w - zero).sum(0).astype(np.int32))
    offset = emit_elementwise(node, Binary("Mul"), x_zero, columns, suffix="offset")
    return emit_elementwise(node, Binary("Sub"), total, offset, suffix="sum")


def _is_int8(codes: Array) -> bool:
    return bool(codes.min(initial=0) >= -128 and codes.max(initial=0) <= 127)


def _emit_integer_matmul(node: OnnxNode, a: tuple[int, int], b: tuple[int, int]) -> Value:
    """Add Σ (a − za)(b − zb) in int32, with inputs for each matrix and its zero point."""

    def centered(index: int, zero_at: int, suffix: str, rows: bool) -> Value:
        codes = node.emit(Cast(DType.INT32), node.input(index), suffix=f"{suffix}.wide")
        if not node.has(zero_at):
            return codes
        zero = _per_row(node, node.input(zero_at), f"{suffix}.zero") if rows else node.input(zero_at)
        zero = node.emit(Cast(DType.INT32), zero, suffix=f"{suffix}.zero.wide")
        return emit_elementwise(node, Binary("Sub"), codes, zero, suffix=f"{suffix}.centered")

    return emit_matmul(node, centered(*a, "a", True), centered(*b, "b", False), "sum")


def _per_row(node: OnnxNode, param: Value, suffix: str) -> Value:
    """Return a vector with one parameter for each row of the left matrix as a column."""
    vector = param.type.rank == 1 and param.type.count > 1
    return reshaped(node, param, (param.type.count, 1), f"{suffix}.column") if vector else param
