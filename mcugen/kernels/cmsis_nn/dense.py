# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's fully connected layers: arm_fully_connected_wrapper_s8 and, with weights of 4 bits, _s4.

With Helium the library adds precomputed sums instead of the bias and the input's offset, and elsewhere these instead of
the sums. An offset of 0, and a bias with the zero point folded in, which is just those sums, serve both alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from mcugen.hir.types import DType
from mcugen.kernels.cmsis_nn.common import (
    MOST_SHIFTED,
    ZeroPoints,
    int8_layer,
    layer_constants,
    layer_operands,
    library_kernel,
    packed_nibbles,
    small_axes,
)
from mcugen.kernels.cmsis_nn.convolution import CMSIS_CONV_S8
from mcugen.kernels.common.specs import ConvSpec
from mcugen.kernels.common.weighted_layers import CodeLimits, four_bits
from mcugen.kernels.portable.weighted import DenseSizes
from mcugen.lir.kernel import Call, Kernel, Options, Site
from mcugen.numerics.sums import requantizer

MANY_ROWS = 4
"""Least number of rows for which a pointwise convolution takes fewer instructions than a fully connected layer."""


@dataclass(frozen=True, kw_only=True)
class DenseOptions(Options):
    """Template options of a fully connected layer."""

    per_channel: Annotated[bool, "whether channels have multipliers of their own"]


def emit_s8(spec: ConvSpec, site: Site) -> Call:
    """Weights [N, K] in their order; one multiplier where all channels have the same."""
    one = one_multiplier(spec)
    constants = layer_constants(spec, site, spec.weights, spec.folded_bias, per_tensor=one)
    return site.call(
        {"x": site.x, **constants, "y": site.y},
        [DenseSizes.of(spec), ZeroPoints.of(spec), CodeLimits.of(spec.limits)],
        [DenseOptions(per_channel=not one)],
        variant="" if one else "per_channel",
    )


def emit_s4(spec: ConvSpec, site: Site) -> Call:
    """Two weights a byte, one multiplier."""
    constants = layer_constants(spec, site, packed_nibbles(spec.weights), spec.folded_bias, per_tensor=True)
    params = [DenseSizes.of(spec), ZeroPoints.of(spec), CodeLimits.of(spec.limits)]
    return site.call({"x": site.x, **constants, "y": site.y}, params)


# ------------------------------------------------------------------------------- conditions


def few_rows(spec: ConvSpec) -> bool:
    """Require a window as large as the image, or few rows."""
    shape = spec.shape
    if spec.weights.ndim == 2:
        return shape.out_width < MANY_ROWS
    whole = (shape.kernel_height, shape.kernel_width) == (
        shape.in_height,
        shape.in_width,
    ) and shape.out_height == shape.out_width == 1
    return whole and shape.groups == 1 and shape.is_inside


def one_multiplier(spec: ConvSpec) -> bool:
    """Require one scale for all channels."""
    return len(set(requantizer(spec.sig).multiplier.tolist())) == 1


def short_sums(spec: ConvSpec) -> bool:
    """Require sums of 32 bits with the zero point folded into the bias."""
    sums = np.abs(spec.folded_bias) + 128 * np.abs(spec.rows.astype(np.int64)).sum(1)
    return int(sums.max(initial=0)) << (31 - requantizer(spec.sig).shift) < MOST_SHIFTED


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
        when=(int8_layer, few_rows, short_sums, small_axes),
        emit=emit_s8,
    ),
    _dense(
        "cmsis_dense_s4",
        "arm_fully_connected_s4, two weights a byte",
        when=(int8_layer, four_bits, few_rows, one_multiplier, short_sums, small_axes),
        emit=emit_s4,
    ),
)
"""Kernels of fully connected layers, also for convolutions."""

CMSIS_DENSE_S8: tuple[Kernel, ...] = (*CMSIS_ROW_S8, *CMSIS_CONV_S8)
"""Kernels of fully connected layers; several rows are pixels of a convolution."""
