# SPDX-License-Identifier: Apache-2.0
"""Kernels for Helium, the vectors of Cortex-M55 and M85: products of int8, 16 an instruction."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mcugen.hir.graph import Node
from mcugen.kernels.helium.conv import (
    eight_channels,
    emit_columns,
    emit_conv,
    emit_direct,
    emit_eight_channels,
    emit_overwriting,
    overwriting,
    three_columns,
    ungrouped,
)
from mcugen.kernels.helium.depthwise import (
    emit_depthwise,
    emit_large_depthwise,
    emit_small_depthwise,
    half_groups,
    large_patches,
    large_window,
    small_window,
)
from mcugen.kernels.helium.layer import BLOCK, VECTOR, block_products, emit, int8_requantized, loop, pack_vectors
from mcugen.kernels.portable import depthwise, single_row
from mcugen.kernels.weighted import weights_of
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.traversal import Traversal

Emit = Callable[[Node, Builder, Kernel], None]


def one_vector(node: Node) -> bool:
    """one row"""
    return node.output.type.count == len(weights_of(node))


def emit_row(node: Node, builder: Builder, kernel: Kernel) -> None:
    """One vector by a matrix: eight channels at a time."""
    rows = weights_of(node).reshape(len(weights_of(node)), -1)
    params, flags = loop(*divmod(rows.shape[1], VECTOR))
    order = Traversal.runs(np.zeros(len(rows), np.int64), 1)  # of which each, in plain C, reads all of x
    emit(node, builder, kernel, pack_vectors(rows, 2 * BLOCK), params, flags, block=2 * BLOCK, orders=[order])


def emit_vectors(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Several vectors by a matrix: a pointwise convolution."""
    channels, depth = weights_of(node).shape
    params, flags = loop(*divmod(depth, VECTOR))
    params |= {"batch": 1, "image": 0, "rows": 1, "row_step": 0, "row_pixels": node.output.type.count // channels}
    params |= {"x_next": 2 * depth, "out_c": channels}
    emit_direct(node, builder, kernel, params, flags)


def pair_products(node: Node) -> int:
    """Vectors of products by two pixels and four channels."""
    return block_products(node, 2, BLOCK)


def row_products(node: Node) -> int:
    """Vectors of products by eight channels."""
    return block_products(node, 1, 2 * BLOCK)


def _kernel(name: str, *when: Callable[[Node], bool], emit: Emit, extra: Callable[[Node], int] | None = None) -> Kernel:
    return Kernel(name, frozenset({"mve"}), (int8_requantized, *when), emit, extra)


DENSE: tuple[Kernel, ...] = (
    _kernel("dense_s8_mve", one_vector, emit=emit_row, extra=row_products),
    _kernel("conv2d_s8_mve", emit=emit_vectors, extra=pair_products),
)

CONV: tuple[Kernel, ...] = (
    _kernel("dense_s8_mve", single_row, emit=emit_row, extra=row_products),
    _kernel("conv2d_s8_mve_8", eight_channels, emit=emit_eight_channels),
    _kernel("conv2d_s8_mve_columns", three_columns, emit=emit_columns),
    _kernel("conv2d_s8_mve", ungrouped, emit=emit_conv, extra=pair_products),
    _kernel("conv2d_s8_mve_inplace", overwriting, emit=emit_overwriting, extra=pair_products),
)

DEPTHWISE: tuple[Kernel, ...] = (
    _kernel("depthwise_s8_mve_4x4", depthwise, small_window, emit=emit_small_depthwise, extra=half_groups),
    _kernel("depthwise_s8_mve_8x8", depthwise, large_window, emit=emit_large_depthwise, extra=large_patches),
    _kernel("depthwise_s8_mve", depthwise, emit=emit_depthwise),
)
