# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's fully connected layers: arm_fully_connected_wrapper_s8 and, with weights of 4 bits, _s4.

With Helium, the library adds precomputed sums; elsewhere it adds the bias and the input's offset instead. An offset of
0 and a bias with the zero point folded in, which equals those sums, serve both variants.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from mcugen.hir.types import DType
from mcugen.kernels.cmsis_nn.common import (
    SHIFTED_SUM_LIMIT,
    ZeroPoints,
    has_small_axes,
    is_int8_layer,
    layer_constants,
    layer_operands,
    library_kernel,
    pack_nibbles_in_order,
)
from mcugen.kernels.cmsis_nn.convolution import CMSIS_CONV_S8
from mcugen.kernels.common.specs import ConvSpec
from mcugen.kernels.common.weighted_layers import CodeLimits, four_bits
from mcugen.kernels.portable.weighted import DenseSizes
from mcugen.lir.kernel import Call, Kernel, Options, Site
from mcugen.numerics.sums import requantizer

MIN_POINTWISE_ROWS = 4
"""Smallest number of rows for which a pointwise convolution takes fewer instructions than a fully connected layer."""


class DenseOptions(Options):
    """Template option of a fully connected layer: whether each channel has its own requantization multiplier."""

    per_channel: Annotated[bool, "whether each channel has its own multiplier"]


def emit_s8(spec: ConvSpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's int8 fully connected layer; weights keep their order [N, K].

    A requantization multiplier that all channels share is stored once.
    """
    one = has_one_multiplier(spec)
    constants = layer_constants(spec, site, spec.weights, spec.folded_bias, per_tensor=one)
    return site.call(
        {"x": site.x, **constants, "y": site.y},
        [DenseSizes.of(spec), ZeroPoints.of(spec), CodeLimits.of(spec.limits)],
        [DenseOptions(per_channel=not one)],
        variant="" if one else "per_channel",
    )


def emit_s4(spec: ConvSpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's fully connected layer with 4-bit weights and one requantization multiplier.

    The weights are packed two per byte.
    """
    constants = layer_constants(spec, site, pack_nibbles_in_order(spec.weights), spec.folded_bias, per_tensor=True)
    params = [DenseSizes.of(spec), ZeroPoints.of(spec), CodeLimits.of(spec.limits)]
    return site.call({"x": site.x, **constants, "y": site.y}, params)


# ------------------------------------------------------------------------------- conditions


def has_few_rows(spec: ConvSpec) -> bool:
    """Require a window as large as the image, or a dense layer of at most 3 rows.

    Return whether the layer meets this condition of a kernel. The rows are the input vectors; a convolution whose
    window covers the image is equivalent to a dense layer.
    """
    shape = spec.shape
    if spec.weights.ndim == 2:
        return shape.out_width < MIN_POINTWISE_ROWS
    whole = (shape.kernel_height, shape.kernel_width) == (
        shape.in_height,
        shape.in_width,
    ) and shape.out_height == shape.out_width == 1
    return whole and shape.groups == 1 and shape.is_inside


def has_one_multiplier(spec: ConvSpec) -> bool:
    """Require the same multiplier in all channels.

    Return whether the layer meets this condition of a kernel: all output channels are requantized by one multiplier.
    """
    return len(set(requantizer(spec.sig).multiplier.tolist())) == 1


def fits_folded_bias(spec: ConvSpec) -> bool:
    """Require accumulators of 32 bits that start with the zero point folded into the bias.

    Return whether the layer meets this condition of a kernel. CMSIS-NN starts each accumulator with the bias minus the
    input's zero point times the sum of the weights. After the left shift of the requantization, accumulators must be
    below SHIFTED_SUM_LIMIT.
    """
    sums = np.abs(spec.folded_bias) + 128 * np.abs(spec.rows.astype(np.int64)).sum(1)
    return int(sums.max(initial=0)) << (31 - requantizer(spec.sig).shift) < SHIFTED_SUM_LIMIT


def _dense(name: str, function: str, **more: Any) -> Kernel:
    return library_kernel(
        name,
        what=f"a fully connected layer of int8 tensors: {function}",
        operands=layer_operands(DType.INT8, DType.INT32),
        params=(DenseSizes, ZeroPoints, CodeLimits),
        without=frozenset({"x_zero_point"}),
        **more,
    )


CMSIS_ROW_S8: tuple[Kernel, ...] = (
    _dense(
        "cmsis_dense_s8",
        "arm_fully_connected_wrapper_s8",
        options=(DenseOptions,),
        when=(is_int8_layer, has_few_rows, fits_folded_bias, has_small_axes),
        emit=emit_s8,
    ),
    _dense(
        "cmsis_dense_s4",
        "arm_fully_connected_s4, two weights per byte",
        when=(is_int8_layer, four_bits, has_few_rows, has_one_multiplier, fits_folded_bias, has_small_axes),
        emit=emit_s4,
    ),
)
"""CMSIS-NN's fully connected kernels for int8 layers with at most three rows, and for convolutions whose single window
covers the whole image; in order of preference."""

CMSIS_DENSE_S8: tuple[Kernel, ...] = (*CMSIS_ROW_S8, *CMSIS_CONV_S8)
"""CMSIS-NN's kernels of int8 fully connected layers, in order of preference.

Layers with several rows are computed as a pointwise convolution whose pixels are the rows.
"""
