# SPDX-License-Identifier: Apache-2.0
"""Kernels for Helium, the vectors of Cortex-M55 and M85: products of int8, 16 an instruction."""

from __future__ import annotations

from mcugen.hir.graph import Node
from mcugen.lir.builder import Builder, Kernel
from mcugen.ops.kernels.helium_conv import (
    eight_channels,
    emit_columns,
    emit_conv,
    emit_eight_channels,
    emit_overwriting,
    overwriting,
    three_columns,
    ungrouped,
)
from mcugen.ops.kernels.helium_depthwise import (
    emit_depthwise,
    emit_large_depthwise,
    emit_small_depthwise,
    large_window,
    small_window,
)
from mcugen.ops.kernels.helium_layer import BLOCK, VECTOR, emit, int8_requantized, loop, pack_vectors
from mcugen.ops.kernels.portable import depthwise, single_row
from mcugen.ops.weighted import weights_of


def one_vector(node: Node) -> bool:
    """one row"""
    return node.output.type.count == len(weights_of(node))


def emit_row(node: Node, builder: Builder, kernel: Kernel) -> None:
    """One vector by a matrix: eight channels at a time."""
    rows = weights_of(node).reshape(len(weights_of(node)), -1)
    params, flags = loop(*divmod(rows.shape[1], VECTOR))
    emit(node, builder, kernel, pack_vectors(rows, 2 * BLOCK), params, flags, block=2 * BLOCK)


def emit_vectors(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Several vectors by a matrix: a pointwise convolution."""
    weights = weights_of(node)
    channels, depth = weights.shape
    params, flags = loop(*divmod(depth, VECTOR))
    params |= {"batch": 1, "image": 0, "rows": 1, "row_step": 0, "row_pixels": node.output.type.count // channels}
    params |= {"x_next": 2 * depth, "out_c": channels}
    emit(node, builder, kernel, pack_vectors(weights, BLOCK), params, {**flags, "mode": "direct"})


MVE = frozenset({"mve"})

DENSE: tuple[Kernel, ...] = (
    Kernel("dense_s8_mve", MVE, (int8_requantized, one_vector), emit_row),
    Kernel("conv2d_s8_mve", MVE, (int8_requantized,), emit_vectors),
)

CONV: tuple[Kernel, ...] = (
    Kernel("dense_s8_mve", MVE, (int8_requantized, single_row), emit_row),
    Kernel("conv2d_s8_mve_8", MVE, (int8_requantized, eight_channels), emit_eight_channels),
    Kernel("conv2d_s8_mve_columns", MVE, (int8_requantized, three_columns), emit_columns),
    Kernel("conv2d_s8_mve", MVE, (int8_requantized, ungrouped), emit_conv),
    Kernel("conv2d_s8_mve_inplace", MVE, (int8_requantized, overwriting), emit_overwriting),
)

DEPTHWISE: tuple[Kernel, ...] = (
    Kernel("depthwise_s8_mve_4x4", MVE, (int8_requantized, depthwise, small_window), emit_small_depthwise),
    Kernel("depthwise_s8_mve_8x8", MVE, (int8_requantized, depthwise, large_window), emit_large_depthwise),
    Kernel("depthwise_s8_mve", MVE, (int8_requantized, depthwise), emit_depthwise),
)
