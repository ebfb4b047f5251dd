# SPDX-License-Identifier: Apache-2.0
"""Import of quantized models: QuantizeLinear/DequantizeLinear, and QOperator forms spelled out as those.

All quantized tensors become int8 inside: uint8 ones pass a FlipSign, which cancels between neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from onnx import helper

from mcugen.errors import ModelError
from mcugen.hir.graph import Value
from mcugen.hir.types import Array, DType, QuantParams, TensorType
from mcugen.ops.conv import IntegerConv, conv_window, has_fast_kernel
from mcugen.ops.conversion import Cast, Dequantize, FlipSign, Quantize
from mcugen.ops.fixedpoint import dequantize
from mcugen.ops.movement import Pad
from mcugen.ops.onnx_node import IMPORTERS, OnnxNode, Refusal, onnx_operator


def _params(node: OnnxNode, scale_at: int, axis: int, rank: int, what: str) -> tuple[Array, Array]:
    """Scale and zero point as constants of equal shape (zero points default to 0)."""
    scale = node.const(scale_at, f"{what} scale")
    zero = node.const(scale_at + 1, f"{what} zero point") if node.has(scale_at + 1) else np.zeros(scale.shape, np.uint8)
    one_each = scale.ndim <= 1 and scale.size > 0 and zero.size in (1, scale.size)
    if not one_each or (scale.size > 1 and not -rank <= axis < rank):
        raise Refusal(
            f"{node.op_type}: scales must be one per tensor or one per channel",
            f"scale of shape {scale.shape}",
            "quantize per tensor or per channel",
        )
    if not (np.isfinite(scale) & (scale > 0)).all():
        raise Refusal(f"{node.op_type}: scales must be positive and finite", f"{scale.min()}", "quantize again")
    return scale, zero


def _quant(scale: Array, zero_point: int, axis: int, rank: int) -> QuantParams:
    per_channel = scale.ndim == 1 and scale.size > 1
    return QuantParams(tuple(map(float, scale.reshape(-1))), zero_point, axis % rank if per_channel else None)


def emit_quantize(node: OnnxNode, real: Value, scale_at: int, suffix: str = "") -> Value:
    """QuantizeLinear by the scale and zero point at inputs `scale_at`, `scale_at + 1`."""
    scale, zero = _params(node, scale_at, node.attr("axis", 1), real.type.rank, "output")
    dtype = DType.of(zero)
    if not node.has(scale_at + 1) and node.attr("output_dtype", 0):
        dtype = DType(helper.tensor_dtype_to_np_dtype(node.attr("output_dtype", 0)).name)
    if scale.size > 1 or dtype not in (DType.INT8, DType.UINT8, DType.INT16):
        found = f"{dtype.value}, {scale.size} scales"
        raise Refusal(
            f"{node.op_type}: activations must be quantized per tensor to 8 bits",
            found,
            "quantize per tensor",
        )
    flipped = dtype is DType.UINT8
    quant = _quant(scale, int(zero.reshape(-1)[0]) - 128 * flipped, 0, real.type.rank)
    out = TensorType(real.type.shape, DType.INT8 if flipped else dtype, quant, real.type.layout)
    if not flipped:
        return node.emit(Quantize(), real, types=[out], suffix=suffix)
    return node.emit(FlipSign(), node.emit(Quantize(), real, types=[out], suffix="s8"), suffix=suffix)


def emit_dequantize(node: OnnxNode, q: Value, scale_at: int, suffix: str = "", axis: int = 0) -> Value:
    """DequantizeLinear of `q` by the scale and zero point at inputs `scale_at`, `scale_at + 1`."""
    scale, zero = _params(node, scale_at, axis, q.type.rank, q.name)
    if q.data is not None:
        return _dequantize_constant(node, q, scale, zero, axis, suffix)
    if scale.size > 1:
        raise Refusal(
            f"{node.op_type}: activations must be quantized per tensor",
            f"{scale.size} scales",
            "quantize again",
        )
    zero_point = int(zero.reshape(-1)[0])
    if q.type.dtype is DType.UINT8:
        q, zero_point = node.emit(FlipSign(), q, suffix=f"{suffix}s8"), zero_point - 128
    assume_quant(q, _quant(scale, zero_point, 0, q.type.rank), node)
    return node.emit(Dequantize(), q, suffix=suffix)


def _dequantize_constant(node: OnnxNode, q: Value, scale: Array, zero: Array, axis: int, suffix: str) -> Value:
    """Weights stay quantized constants behind a Dequantize, for integer kernels to find."""
    data, rank = q.type, q.type.rank
    assert q.data is not None
    stored, zeros = q.data, zero.astype(np.int64).reshape(-1)
    if stored.dtype == np.uint8:
        stored, zeros = (stored ^ np.uint8(128)).view(np.int8), zeros - 128
    if (zeros != zeros[0]).any():
        shape = [1] * rank
        shape[axis] = -1
        stored, zeros = (
            (stored.astype(np.int16) - zeros.reshape(shape)).astype(np.int16),
            np.zeros(1, np.int64),
        )
    quant = _quant(scale, int(zeros[0]), axis, max(data.rank, 1))
    if stored.dtype.name not in ("int8", "int16", "int32"):
        return node.constant(suffix or "real", dequantize(stored, quant))
    return node.emit(Dequantize(), node.constant(f"{suffix}q", stored, quant), suffix=suffix)


def assume_quant(value: Value, quant: QuantParams, node: OnnxNode) -> None:
    """Learns the scale of an integer tensor from its reader, through the data movements before it."""
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


@onnx_operator("QuantizeLinear")
def _import_quantize(node: OnnxNode) -> list[Value]:
    return [emit_quantize(node, node.input(0), 1)]


@onnx_operator("DequantizeLinear")
def _import_dequantize(node: OnnxNode) -> list[Value]:
    return [emit_dequantize(node, node.input(0), 1, axis=node.attr("axis", 1))]


# ------------------------------------------------------------------------------------------------ QOperator


def _as_float(node: OnnxNode, op_type: str, inputs: Sequence[Value | None]) -> Value:
    """Imports the float operator of the same attributes on dequantized inputs."""
    inner = OnnxNode(
        node.graph,
        "",
        op_type,
        node.name,
        tuple(inputs),
        (f"{node.outputs[0]}.real",),
        node.attributes,
        node.opset,
    )
    (result,) = IMPORTERS["", op_type](inner)
    return result


def _bias(node: OnnxNode, bias: Value, x_scale: Array, w_scale: Array, axis: int = 0) -> Value:
    """An int32 bias, whose scale is by definition that of the products."""
    scale = (x_scale.astype(np.float64).reshape(-1) * w_scale.astype(np.float64).reshape(-1)).astype(np.float32)
    quant = _quant(scale, 0, axis, max(bias.type.rank, 1))
    if bias.data is None:
        assume_quant(bias, quant, node)
        return node.emit(Dequantize(), bias, suffix="bias")
    return node.emit(Dequantize(), node.constant("biasq", bias.data, quant), suffix="bias")


@onnx_operator("QLinearConv")
def _import_qlinear_conv(node: OnnxNode) -> list[Value]:
    if node.const(4, "weight scale").size > 1:
        node.const(3, "weights with a scale for each channel")
    x, w = emit_dequantize(node, node.input(0), 1, "x"), emit_dequantize(node, node.input(3), 4, "w")
    scales = node.const(1, "input scale"), node.const(4, "weight scale")
    bias = _bias(node, node.input(8), *scales) if node.has(8) else None
    return [emit_quantize(node, _as_float(node, "Conv", (x, w, bias)), 6)]


@onnx_operator("QLinearMatMul")
def _import_qlinear_matmul(node: OnnxNode) -> list[Value]:
    a, b = emit_dequantize(node, node.input(0), 1, "a"), emit_dequantize(node, node.input(3), 4, "b", axis=-1)
    return [emit_quantize(node, _as_float(node, "MatMul", (a, b)), 6)]


_MS = "com.microsoft"


@onnx_operator("QGemm", domain=_MS)
def _import_qgemm(node: OnnxNode) -> list[Value]:
    columns = 0 if node.attr("transB", 0) else 1
    a, b = emit_dequantize(node, node.input(0), 1, "a"), emit_dequantize(node, node.input(3), 4, "b", axis=columns)
    c = _bias(node, node.input(6), node.const(1, "scale"), node.const(4, "scale")) if node.has(6) else None
    real = _as_float(node, "Gemm", (a, b, c))
    return [emit_quantize(node, real, 7) if node.has(7) else real]


def _qlinear_unary(op_type: str) -> Callable[[OnnxNode], list[Value]]:
    def convert(node: OnnxNode) -> list[Value]:
        return [emit_quantize(node, _as_float(node, op_type, (emit_dequantize(node, node.input(0), 1, "x"),)), 3)]

    return convert


def _qlinear_binary(op_type: str) -> Callable[[OnnxNode], list[Value]]:
    def convert(node: OnnxNode) -> list[Value]:
        a, b = emit_dequantize(node, node.input(0), 1, "a"), emit_dequantize(node, node.input(3), 4, "b")
        return [emit_quantize(node, _as_float(node, op_type, (a, b)), 6)]

    return convert


for _name, _float in (
    ("QLinearSigmoid", "Sigmoid"),
    ("QLinearLeakyRelu", "LeakyRelu"),
    ("QLinearSoftmax", "Softmax"),
    ("QLinearAveragePool", "AveragePool"),
    ("QLinearGlobalAveragePool", "GlobalAveragePool"),
):
    onnx_operator(_name, domain=_MS)(_qlinear_unary(_float))
for _name, _float in (("QLinearAdd", "Add"), ("QLinearMul", "Mul")):
    onnx_operator(_name, domain=_MS)(_qlinear_binary(_float))


@onnx_operator("QLinearConcat", domain=_MS)
def _import_qlinear_concat(node: OnnxNode) -> list[Value]:
    count = (len(node.inputs) - 2) // 3
    parts = [emit_dequantize(node, node.input(2 + 3 * i), 3 + 3 * i, f"part{i}") for i in range(count)]
    return [emit_quantize(node, _as_float(node, "Concat", parts), 0)]


def _integer_operand(node: OnnxNode, index: int, zero_at: int, suffix: str) -> Value:
    """An operand of ConvInteger or MatMulInteger as reals: x − zero_point, exact in float32."""
    value = node.input(index)
    zero = node.const(zero_at, "zero point") if node.has(zero_at) else np.zeros((), value.type.dtype.numpy)
    if zero.size > 1:
        raise Refusal(f"{node.op_type}: zero points must be one per tensor", f"{zero.size}", "quantize per tensor")
    unit = node.constant(f"{suffix}one", np.ones((), np.float32))
    operand = replace(node, inputs=(value, unit, node.constant(f"{suffix}zero", zero.reshape(()))))
    return emit_dequantize(operand, value, 1, suffix)


@onnx_operator("ConvInteger")
def _import_conv_integer(node: OnnxNode) -> list[Value]:
    """Constant weights with constant zero points, one a tensor, go the way of MatMulInteger."""
    zeros = [node.inputs[i] for i in (2, 3) if node.has(i)]
    if has_fast_kernel(node) and all(z is not None and z.is_constant and z.type.count == 1 for z in zeros):
        return list(_import_integer_product(node))
    node.require_dtype(node.input(0), DType.INT8, DType.UINT8)
    node.require_dtype(node.input(1), DType.INT8, DType.UINT8)
    channels = node.input(1).type.shape[0]
    zeros = [
        node.input(i) if node.has(i) else node.constant(f"zero{i}", np.zeros(1, node.input(i - 2).type.dtype.numpy))
        for i in (2, 3)
    ]
    counts = [z.type.count for z in zeros if z is not None]
    if counts[0] != 1 or counts[1] not in (1, channels):
        raise ModelError(
            "ConvInteger: zero points must be one a tensor, or one an output channel", f"{counts}", "repair the model"
        )
    op = IntegerConv(conv_window(node), groups=int(node.attr("group", 1)))
    return [node.emit(op, node.input(0), node.input(1), *zeros)]


@onnx_operator("MatMulInteger")
def _import_integer_product(node: OnnxNode) -> list[Value]:
    """y = Σ (x − zx)(w − zw), int32: the float operator at scale 1, then a cast; convert_qdq makes it integer."""
    x, w = _integer_operand(node, 0, 2, "x"), _integer_operand(node, 1, 3, "w")
    real = _as_float(node, node.op_type.removesuffix("Integer"), (x, w))
    return [node.emit(Cast(DType.INT32), real)]
