# SPDX-License-Identifier: Apache-2.0
"""Importers of quantized operators of domain com.microsoft, composed as dequantize → float operator → quantize.

Later passes convert these to integer operators; integer sums are imported as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from mcugen.hir.graph import Value
from mcugen.hir.types import Array, DType
from mcugen.ops.microsoft.attention import AttentionInputs, attend_with_past, plus, refuse
from mcugen.ops.microsoft.common import axes, composed, sliced, split_heads
from mcugen.ops.movement import Transpose, inverse, normalize_axis, reshaped, to_channels_last
from mcugen.ops.onnx_node import MICROSOFT, OnnxNode, Refusal, onnx_operator
from mcugen.ops.quantization import as_float, emit_dequantize, emit_quantize, products_bias

_CODES = (DType.INT8, DType.UINT8)

# --------------------------------------------------------------------------------- one scale a tensor: QLinear


def _quantized(node: OnnxNode, real: Value, scale_at: int, like: int) -> list[Value]:
    """Quantize by the scale and zero point at `scale_at`; without a zero point the type is that of input `like`."""
    return [emit_quantize(node, real, scale_at, default=node.input(like).type.dtype)]


def _unary(op_type: str) -> Callable[[OnnxNode], list[Value]]:
    def convert(node: OnnxNode) -> list[Value]:
        return _quantized(node, as_float(node, op_type, (emit_dequantize(node, node.input(0), 1, "x"),)), 3, 0)

    return convert


def _binary(op_type: str) -> Callable[[OnnxNode], list[Value]]:
    def convert(node: OnnxNode) -> list[Value]:
        a, b = emit_dequantize(node, node.input(0), 1, "a"), emit_dequantize(node, node.input(3), 4, "b")
        return _quantized(node, as_float(node, op_type, (a, b)), 6, 0)

    return convert


def _pool(op_type: str) -> Callable[[OnnxNode], list[Value]]:
    def convert(node: OnnxNode) -> list[Value]:
        x = emit_dequantize(node, node.input(0), 1, "x")
        return _quantized(node, _channels_last(node, lambda x: as_float(node, op_type, (x,)), x), 3, 0)

    return convert


def _channels_last(node: OnnxNode, operator: Callable[[Value], Value], x: Value) -> Value:
    """Apply a channels-first operator; transpose if the node's tensors have channels last."""
    if not node.attr("channels_last", 0):
        return operator(x)
    perm = to_channels_last(x.type.rank)
    return node.emit(Transpose(perm), operator(node.emit(Transpose(inverse(perm)), x, suffix="first")), suffix="last")


for _name, _kernels in (
    ("Sigmoid", ("elementwise",)),
    ("LeakyRelu", ("elementwise",)),
    ("ReduceMean", ("reduce", "average_pool_s8")),
):
    onnx_operator(f"QLinear{_name}", domain=MICROSOFT, kernels=_kernels)(_unary(_name))
for _name, _kernels in (("AveragePool", ("average_pool_s8",)), ("GlobalAveragePool", ("average_pool_s8", "reduce"))):
    onnx_operator(f"QLinear{_name}", domain=MICROSOFT, kernels=_kernels)(_pool(_name))
for _name, _kernels in (("Add", ("add_s8", "elementwise")), ("Mul", ("elementwise",))):
    onnx_operator(f"QLinear{_name}", domain=MICROSOFT, kernels=_kernels)(_binary(_name))


@onnx_operator("QLinearSoftmax", domain=MICROSOFT, kernels=("softmax_s8",))
def _import_softmax(node: OnnxNode) -> list[Value]:
    """Import QLinearSoftmax. Before opset 13 it normalizes over all axes from `axis` on."""
    x = emit_dequantize(node, node.input(0), 1, "x")
    shape, axis = x.type.shape, normalize_axis(node, int(node.attr("axis", -1)), x.type.rank)
    if int(node.attr("opset", 13)) >= 13:
        return _quantized(node, as_float(node, "Softmax", (x,), axis=axis), 3, 0)
    rows = reshaped(node, x, (math.prod(shape[:axis]), math.prod(shape[axis:])), "rows")
    return _quantized(node, reshaped(node, as_float(node, "Softmax", (rows,), axis=1), shape, "shaped"), 3, 0)


@onnx_operator("QLinearConcat", domain=MICROSOFT, kernels=("copy",))
def _import_concat(node: OnnxNode) -> list[Value]:
    count = (len(node.inputs) - 2) // 3
    parts = [emit_dequantize(node, node.input(2 + 3 * i), 3 + 3 * i, f"part{i}") for i in range(count)]
    return _quantized(node, as_float(node, "Concat", parts), 0, 2)


@onnx_operator("QLinearWhere", domain=MICROSOFT, kernels=("elementwise",))
def _import_where(node: OnnxNode) -> list[Value]:
    x, y = emit_dequantize(node, node.input(1), 2, "x"), emit_dequantize(node, node.input(4), 5, "y")
    return _quantized(node, as_float(node, "Where", (node.input(0), x, y)), 7, 1)


@onnx_operator("NhwcMaxPool", domain=MICROSOFT, types=_CODES, kernels=("max_pool_s8", "max_pool_u8"))
def _import_max_pool(node: OnnxNode) -> list[Value]:
    x = node.input(0)
    perm = to_channels_last(x.type.rank)
    first = node.emit(Transpose(inverse(perm)), x, suffix="first")
    return [node.emit(Transpose(perm), as_float(node, "MaxPool", (first,)))]


# ------------------------------------------------------------------------------------------- products of codes


@onnx_operator("QLinearConv", domain=MICROSOFT, kernels=("depthwise_s8", "conv2d_s8", "conv_direct"))
def _import_conv(node: OnnxNode) -> list[Value]:
    x, w = emit_dequantize(node, node.input(0), 1, "x"), emit_dequantize(node, node.input(3), 4, "w")
    bias = products_bias(node, node.input(8), node.input(1), node.input(4)) if node.has(8) else None
    return _quantized(node, _channels_last(node, lambda x: as_float(node, "Conv", (x, w, bias)), x), 6, 0)


@onnx_operator("QGemm", domain=MICROSOFT, kernels=("dense_s8",))
@axes("_ _", "*", "*", "_ _")
def _import_gemm(node: OnnxNode) -> list[Value]:
    """alpha · (A B + C): C is in units of the products."""
    columns = 0 if node.attr("transB", 0) else 1
    a, b = emit_dequantize(node, node.input(0), 1, "a"), emit_dequantize(node, node.input(3), 4, "b", axis=columns)
    c = products_bias(node, node.input(6), node.input(1), node.input(4)) if node.has(6) else None
    real = as_float(node, "Gemm", (a, b, c), beta=node.attr("alpha", 1.0))
    return _quantized(node, real, 7, 0) if node.has(7) else [real]


@composed("MatMulIntegerToFloat", types=())
def _import_matmul_to_float(node: OnnxNode) -> list[Value]:
    a, b, a_zero, b_zero = (node.optional(i) for i in (0, 1, 4, 5))
    product = node.call("MatMulInteger", a, b, a_zero, b_zero)
    return [_scaled(node, product, node.input(2), node.input(3), 6)]


@composed("DynamicQuantizeMatMul")
def _import_dynamic_matmul(node: OnnxNode) -> list[Value]:
    """Import DynamicQuantizeMatMul: quantize A at run time, then multiply."""
    a, a_scale, a_zero = node.calls("DynamicQuantizeLinear", [node.input(0)], 3)
    product = node.call("MatMulInteger", a, node.input(1), a_zero, node.optional(3))
    return [_scaled(node, product, a_scale, node.input(2), 4)]


def _scaled(node: OnnxNode, product: Value, a_scale: Value, b_scale: Value, bias: int) -> Value:
    """Products of codes as reals, with a bias if there is one."""
    real = node.call("Cast", product, to=1)
    scaled = node.call("Mul", real, node.call("Mul", a_scale, b_scale))
    return plus(node, scaled, node.optional(bias))


# ------------------------------------------------------------------------------------- layers of constant codes


def _reals(node: OnnxNode, index: int, scale_at: int, zero_at: int) -> Array:
    """Dequantize a constant; scales and zero points are scalars or follow its last axis."""
    codes, scale = node.const(index, "codes").astype(np.float32), node.const(scale_at, "scales")
    zero = node.const(zero_at, "zero points") if node.has(zero_at) else np.zeros((), np.float32)
    _check_counts(node, (1, codes.shape[-1]), scale, zero)
    return np.asarray((codes - zero.astype(np.float32).reshape(-1)) * scale.reshape(-1), np.float32)


def _check_counts(node: OnnxNode, counts: tuple[int, int], *params: Array) -> None:
    """Refuses scales and zero points that are neither as many as tensors, nor as channels."""
    wrong = next((p.shape for p in params if p.size not in counts), None)
    if wrong is not None:
        rule = f"{node.op_type}: there must be a scale and a zero point a tensor or a channel"
        raise Refusal(rule, f"shape {wrong}, not {counts[0]} or {counts[1]} numbers", "quantize again")


@composed("DynamicQuantizeLSTM", limits="constant weights; inputs and states are not rounded to 8 bits")
@axes("S B I", "D I W", "D H W")
def _import_lstm(node: OnnxNode) -> Sequence[Value | None]:
    """LSTM with these weights (directions, inputs, 4 · hidden): ONNX Runtime rounds what they are multiplied with."""

    def weights(index: int, scale_at: int) -> Array:
        codes = node.const(index, "weights").astype(np.float32)
        scale, zero = (node.const(i, "scales and zero points").astype(np.float32) for i in (scale_at, scale_at + 1))
        _check_counts(node, (len(codes), len(codes) * codes.shape[2]), scale, zero)
        shape = (len(codes), 1, -1)
        return ((codes - zero.reshape(shape)) * scale.reshape(shape)).transpose(0, 2, 1)

    optional_inputs = [node.optional(i) for i in range(3, 8)]
    inputs = [node.input(0), weights(1, 8), weights(2, 10), *optional_inputs]
    return node.calls("LSTM", inputs, len(node.outputs), **node.attributes_of("LSTM"))


@composed("QEmbedLayerNormalization", types=(), limits="constant tables, scales and zero points")
@axes("*", "*", "_ D", "_ D", "_ D", "D", "D")
def _import_embeddings(node: OnnxNode) -> Sequence[Value | None]:
    """EmbedLayerNormalization of dequantized tables."""
    tables = [_reals(node, i, i + 6, i + 11) if node.has(i) else None for i in range(2, 7)]
    ids = [node.input(0), node.optional(1)]
    mask = node.optional(7)
    inputs, count = [*ids, *tables, mask], len(node.outputs)
    attributes = {key: node.attr(key, default) for key, default in (("epsilon", 1e-12), ("mask_index_type", 0))}
    return node.calls("EmbedLayerNormalization", inputs, count, MICROSOFT, **attributes)


@composed("QAttention", types=(), limits="no rotation, no buffer for past and present")
@axes("B S D", "D W", "W", "*", "*", "*", "*", "*", "2 B N P E")
def _import_attention(node: OnnxNode) -> Sequence[Value | None]:
    """Import QAttention: integer projections, then Attention in float32."""
    refuse(node, [], ["do_rotary", "past_present_share_buffer"], "past and present must be tensors of their own")
    x, heads = node.input(0), int(node.attr("num_heads", 0))
    zeros = [node.optional(i) for i in (6, 7)]
    product = node.call("MatMulInteger", x, node.input(1), *zeros)
    projected = _scaled(node, product, node.input(3), node.input(4), 2)
    width = projected.type.shape[2] // 3
    q, k, v = (split_heads(node, sliced(node, projected, 2, i * width, (i + 1) * width), heads) for i in range(3))
    return attend_with_past(node, AttentionInputs(q, k, v), node.optional(8), 5)
