# SPDX-License-Identifier: Apache-2.0
"""Kernels for Helium, the vectors of Cortex-M55 and M85: products of int8, 16 an instruction."""

from __future__ import annotations

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType
from mcugen.lir.builder import Builder, Kernel
from mcugen.lir.program import Access, Param
from mcugen.ops.fixedpoint import clamp_range
from mcugen.ops.kernels.conv_shape import ConvShape
from mcugen.ops.weighted import bias_of, clamp_of, folded_bias, largest_sums, requantizer, weights_of

VECTOR = 16
"""Bytes of a vector."""

UNROLL = (4, 3, 2, 1)
"""Vectors that the inner loop may take in a turn."""


def int8_requantized(node: Node) -> bool:
    """int8 tensors, sums in 32 bits"""
    sig = node.sig
    if any(t.dtype is not DType.INT8 for t in (sig.input(0), sig.input(1), sig.output)):
        return False
    bias = bias_of(node)
    assert bias is not None
    sums = largest_sums(sig.input(0), weights_of(node), bias)
    return int(sums.max(initial=0)) << (31 - requantizer(sig, sums).shift) < 2**31


def ungrouped(node: Node) -> bool:
    """one group"""
    return ConvShape.of(node).groups == 1


def pointwise(node: Node) -> bool:
    """each output pixel reads one input pixel"""
    return ungrouped(node) and ConvShape.of(node).reads_pixels


def blocks_of(rows: Array, count: int) -> Array:
    """[N, …] → [blocks of `count`, count, …], the last block filled with zeros."""
    missing = -len(rows) % count
    padded = np.pad(rows, [(0, missing)] + [(0, 0)] * (rows.ndim - 1))
    return padded.reshape(-1, count, *rows.shape[1:])


def pack_vectors(rows: Array, count: int) -> Array:
    """[N, K] → flat, by blocks of `count` channels: [K / 16][count][16], with zeros for what is missing."""
    padded = np.pad(rows, [(0, 0), (0, -rows.shape[1] % VECTOR)])
    blocks = blocks_of(padded.reshape(len(rows), -1, VECTOR), count)
    return np.ascontiguousarray(blocks.transpose(0, 2, 1, 3)).reshape(-1)


def pack_table(node: Node, count: int) -> tuple[Array, int]:
    """By blocks of `count` channels: their biases, then multipliers of 31 bits; how far sums are shifted left first."""
    weights, bias = weights_of(node), bias_of(node)
    assert bias is not None
    requantize = requantizer(node.sig, largest_sums(node.sig.input(0), weights, bias))
    columns = np.stack([folded_bias(node.sig, weights, bias), np.broadcast_to(requantize.multiplier, len(weights))], 1)
    return blocks_of(columns, count).transpose(0, 2, 1).astype(np.int32).reshape(-1), 31 - requantize.shift


def store_params(node: Node) -> dict[str, Param]:
    """Zero point and limits of the output."""
    out = node.output.type
    low, high = clamp_range(clamp_of(node), out.q, out.dtype)
    return {"zero_point": out.q.zero_point, "low": low, "high": high}


def emit_pointwise(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Pixels are read where they lie."""
    shape, weights = ConvShape.of(node), weights_of(node)
    table, shift = pack_table(node, 4)
    vectors, tail = divmod(shape.in_c, VECTOR)
    unroll = next((n for n in UNROLL if vectors and vectors % n == 0), 0)
    whole = shape.stride_h == shape.stride_w == 1
    pixels = shape.out_h * shape.out_w
    params = {
        "batch": 1 if whole else shape.batch,
        "image": shape.in_h * shape.in_w * shape.in_c,
        "rows": 1 if whole else shape.out_h,
        "row_step": shape.stride_h * shape.in_w * shape.in_c,
        "row_pixels": shape.batch * pixels if whole else shape.out_w,
        "stride_w": shape.stride_w,
        "in_c": shape.in_c,
        "out_c": shape.out_c,
        "blocks": -(-shape.out_c // 4),
        "turns": vectors // unroll if unroll else 0,
        "jump": 0,
        "tail": tail,
        "shift": shift,
        **store_params(node),
    }
    flags = {
        "mode": "direct",
        "unroll": unroll,
        "looped": vectors > unroll,
        "tail": tail > 0,
        "jump": False,
        "ragged": shape.out_c % 4 > 0,
        "clamp": (params["low"], params["high"]) != (-128, 127),
        "shifted": shift > 0,
    }
    name = node.output.name
    operands = [
        ("x", Access.IN, builder.buffer(node.input(0))),
        ("w", Access.IN, builder.const(f"{name}.weights", pack_vectors(weights.reshape(len(weights), -1), 4))),
        ("table", Access.IN, builder.const(f"{name}.table", table)),
        ("y", Access.OUT, builder.buffer(node.output)),
    ]
    builder.emit(node, kernel, operands, params, code=flags)


CONV: tuple[Kernel, ...] = (
    Kernel("conv2d_s8_mve", frozenset({"mve"}), (int8_requantized, pointwise), emit_pointwise),
)
