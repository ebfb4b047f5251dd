# SPDX-License-Identifier: Apache-2.0
"""Importers of block-quantized weights of few bits, and of int16 products, of domain com.microsoft."""

from __future__ import annotations

import numpy as np

from mcugen.hir.graph import Value
from mcugen.hir.types import Array, DType
from mcugen.ops.microsoft.common import axes, composed
from mcugen.ops.movement import Transpose, normalize_axis
from mcugen.ops.onnx_node import OnnxNode, Refusal
from mcugen.ops.packed import DequantizeBlocks, repeat_scales


def _fields(packed: Array, bits: int) -> Array:
    """Numbers of `bits` bits from bytes along the last axis, those of the lower bits first."""
    parts = [(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*packed.shape[:-1], packed.shape[-1] * len(parts))


def _bytes(node: OnnxNode, index: int) -> Array:
    """Packed weights or zero points."""
    packed = node.const(index, "what is packed")
    node.require_dtype(node.input(index), DType.UINT8)
    return packed


def _bits(node: OnnxNode) -> int:
    bits = int(node.attr("bits", 4))
    node.require(bits in (2, 4, 8), "weights must have 2, 4 or 8 bits", f"{bits}", "quantize again")
    return bits


@composed("MatMulNBits", limits="constant weights, no g_idx")
@axes("... K", "N Z Y", "*", "*", "*", "N")
def _import_few_bits(node: OnnxNode) -> list[Value]:
    """Import MatMulNBits. The product is computed in float32, whatever accuracy_level allows."""
    if node.has(4) or node.attr("weight_prepacked", 0):
        raise Refusal("MatMulNBits: weights must lie as ONNX Runtime documents", "g_idx or prepacked", "export again")
    bits, rows, columns, block = (
        _bits(node),
        int(node.attr("K", 0)),
        int(node.attr("N", 0)),
        int(node.attr("block_size", 0)),
    )
    blocks = node.input(1).type.shape[1]
    expected_shapes = (columns, blocks, block * bits // 8), (columns * blocks,)
    actual_shapes = node.input(1).type.shape, (node.input(2).type.count,)
    if actual_shapes != expected_shapes or not 0 < rows <= blocks * block:
        raise Refusal(
            "MatMulNBits: weights and scales must be those of N, K and block_size", f"{actual_shapes}", "quantize again"
        )
    codes = _fields(_bytes(node, 1), bits)
    scales = node.const(2, "scales").astype(np.float32).reshape(columns, -1, 1)
    centered = codes.reshape(columns, -1, block).astype(np.float32) - _zeros(node, bits, columns, scales)
    product = node.call("MatMul", node.input(0), _by_blocks(node, centered, scales[:, :, 0], rows))
    return [node.call("Add", product, node.input(5)) if node.has(5) else product]


def _by_blocks(node: OnnxNode, codes: Array, scales: Array, rows: int) -> Value:
    """Return the matrix [K, N] of centered quantized weights (N, blocks, block), packed if they are integers."""
    flat, block = codes.reshape(len(codes), -1)[:, :rows], codes.shape[2]
    scales = scales[:, : -(-rows // block)]
    if (flat != np.rint(flat)).any() or not (np.isfinite(scales) & (scales > 0)).all():
        return node.constant(
            "weights", np.ascontiguousarray((flat * repeat_scales(scales, 1, block, rows)).T), of=[node.input(1)]
        )
    operands = [
        node.constant("codes", flat.astype(np.int16), of=[node.input(1)]),
        node.constant("scales", np.ascontiguousarray(scales), of=[node.input(2)]),
    ]
    real = node.emit(DequantizeBlocks(1, block), *operands, suffix="weights")
    return node.emit(Transpose((1, 0)), real, suffix="turned")


def _zeros(node: OnnxNode, bits: int, columns: int, scales: Array) -> Array:
    """Zero points a block: (N, blocks, 1)."""
    if not node.has(3):
        return np.full((1, 1, 1), 1 << (bits - 1), np.float32)
    zeros, blocks = node.const(3, "zero points"), scales.shape[1]
    packed = zeros.dtype == np.uint8
    if zeros.size != columns * (-(-blocks * bits // 8) if packed else blocks):
        raise Refusal("MatMulNBits: there must be a zero point a block", f"{zeros.shape}", "quantize again")
    if packed:
        zeros = _fields(zeros.reshape(columns, -1), bits)[:, : scales.shape[1]]
    return zeros.reshape(columns, -1, 1).astype(np.float32)


_FP4 = np.array([0, 0.005208333333, 2 / 3, 1, 1 / 3, 0.5, 1 / 6, 0.25], np.float32)
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_BNB4 = (np.concatenate([_FP4, -_FP4]), np.array(_NF4, np.float32))


@composed("MatMulBnb4", limits="constant weights")
@axes("... K")
def _import_bnb4(node: OnnxNode) -> list[Value]:
    """Codes of 4 bits, the upper ones of a byte first, are places in a table; blocks have a scale."""
    rows, columns = int(node.attr("K", 0)), int(node.attr("N", 0))
    packed, scales = _bytes(node, 1).reshape(-1), node.const(2, "scales").astype(np.float32).reshape(-1)
    table, block = int(node.attr("quant_type", 0)), int(node.attr("block_size", 0))
    if (
        table not in (0, 1)
        or block < 1
        or min(2 * packed.size, scales.size * block) < rows * columns
        or min(rows, columns) < 1
    ):
        sizes = f"{packed.size} bytes, {scales.size} scales for {rows} x {columns}"
        raise Refusal("MatMulBnb4: weights and scales must be those of N, K and block_size", sizes, "quantize again")
    codes = np.stack([packed >> 4, packed & 15], -1).reshape(-1)[: rows * columns]
    weights = _BNB4[table][codes] * scales[np.arange(codes.size) // block]
    matrix = weights.reshape(columns, rows)
    return [node.call("MatMul", node.input(0), np.ascontiguousarray(matrix.T if node.attr("transB", 1) else matrix))]


@composed("GatherBlockQuantized", types=(), limits="constant data and scales, no float8 or float4")
@axes("... _", "*", "... _", "... _")
def _import_gather(node: OnnxNode) -> list[Value]:
    """Rows of the dequantized table."""
    data, scales, stored = node.const(0, "data"), node.const(2, "scales").astype(np.float32), node.input(0).type.dtype
    bits = _bits(node)
    if stored is DType.UINT8:
        data = _fields(data, bits)
    rank = data.ndim
    axis = normalize_axis(node, int(node.attr("quantize_axis", 1)), rank)
    gathered = normalize_axis(node, int(node.attr("gather_axis", 0)), rank)
    zero: Array = np.asarray(1 << (bits - 1) if stored is DType.UINT8 else 0)
    if node.has(3):
        packed = stored is DType.UINT8
        zero = _fields(_bytes(node, 3), bits)[..., : scales.shape[-1]] if packed else node.const(3, "zero points")
    block, size = int(node.attr("block_size", 128)), data.shape[axis]
    parts = tuple(-(-n // max(block, 1)) if a == axis else n for a, n in enumerate(data.shape))
    if block < 1 or scales.shape != parts or (node.has(3) and zero.shape != parts):
        shapes = f"scales {scales.shape} of blocks of {block} of {data.shape}"
        raise Refusal("GatherBlockQuantized: there must be a scale a block", shapes, "quantize again")

    def spread(array: Array) -> Array:
        return array.take(np.arange(size) // block, axis) if array.ndim else array

    table = (data.astype(np.float32) - spread(zero.astype(np.float32))) * spread(scales)
    return [node.call("Gather", table, node.input(1), axis=gathered)]


@composed("MatMulInteger16", types=())
@axes("... _", "... _")
def _import_integer16(node: OnnxNode) -> list[Value]:
    return [node.call("MatMul", *(node.call("Cast", node.input(i), to=6) for i in (0, 1)))]
