# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's fully connected layers: arm_fully_connected_wrapper_s8 and, with weights of 4 bits, _s4.

With Helium the library adds precomputed sums instead of the bias and the input's offset, and elsewhere these instead of
the sums. An offset of 0, and a bias with the zero point folded in, which is just those sums, serve both alike.
"""

from __future__ import annotations

import numpy as np

from mcugen.hir.graph import Node
from mcugen.kernels.cmsis.common import (
    MOST_SHIFTED,
    call,
    code_range,
    emit_call,
    int8_layer,
    layer_constants,
    packed_nibbles,
    small_axes,
    small_weights,
)
from mcugen.kernels.cmsis.convolution import CONV
from mcugen.kernels.conv_shape import ConvShape, shape_of
from mcugen.kernels.weighted import folded_bias_of, weights_of
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Access, Param
from mcugen.numerics.sums import requantizer

S8, S4 = "cmsis_dense_s8", "cmsis_dense_s4"


MANY_ROWS = 4
"""What fully connected layers take more instructions for than pointwise convolutions."""


def emit_dense(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Weights [N, K] in their order; one multiplier where all channels have the same."""
    weights, is_small = weights_of(node), kernel.name == S4
    channels = len(weights)
    params: dict[str, Param] = {
        "rows": node.output.type.count // channels,
        "depth": weights[0].size,
        "channels": channels,
        **code_range(node),
    }
    del params["x_zero"]
    one = one_multiplier(node)
    packed = packed_nibbles(weights) if is_small else weights
    operands = [
        ("x", Access.IN, builder.buffer(node.input(0))),
        *layer_constants(node, builder, packed, folded_bias_of(node), per_tensor=one),
        ("y", Access.OUT, builder.buffer(node.output)),
    ]
    code, variant = ({}, "") if is_small else ({"per_channel": not one}, "" if one else "per_channel")
    emit_call(node, builder, kernel, operands, params, code=code, variant=variant)


# ------------------------------------------------------------------------------- conditions


def few_rows(node: Node) -> bool:
    """a window as large as the image, or few rows"""
    if weights_of(node).ndim == 2:
        return shape_of(node).out_w < MANY_ROWS
    shape = ConvShape.of(node)
    whole = (shape.k_h, shape.k_w) == (shape.in_h, shape.in_w) and shape.out_h == shape.out_w == 1
    return whole and shape.groups == 1 and shape.is_inside


def one_multiplier(node: Node) -> bool:
    """one scale for all channels"""
    return len(set(requantizer(node.sig).multiplier.tolist())) == 1


def short_sums(node: Node) -> bool:
    """sums of 32 bits with the zero point folded into the bias"""
    weights, shift = weights_of(node).astype(np.int64), requantizer(node.sig).shift
    sums = np.abs(folded_bias_of(node)) + 128 * np.abs(weights.reshape(len(weights), -1)).sum(1)
    return int(sums.max(initial=0)) << (31 - shift) < MOST_SHIFTED


ROW: tuple[Kernel, ...] = (
    call(S8, (int8_layer, few_rows, short_sums, small_axes), emit_dense),
    call(S4, (int8_layer, small_weights, few_rows, one_multiplier, short_sums, small_axes), emit_dense),
)
"""Of fully connected layers and of convolutions."""

DENSE: tuple[Kernel, ...] = (*ROW, *CONV)
"""Of fully connected layers: rows are pixels where they are several."""
