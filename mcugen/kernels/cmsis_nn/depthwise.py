# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's depthwise convolutions: arm_depthwise_conv_wrapper_s8 and, with weights of 4 bits, _s4."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from mcugen.hir.types import Array, DType
from mcugen.kernels.cmsis_nn.common import (
    SCRATCH,
    Scratch,
    ZeroPoints,
    has_small_axes,
    is_int8_layer,
    layer_constants,
    layer_operands,
    library_kernel,
    pack_nibbles_in_order,
    select_by_variant,
    with_scratch,
)
from mcugen.kernels.common.conv_shape import ConvGeometry, ConvShape
from mcugen.kernels.common.specs import ConvSpec
from mcugen.kernels.common.weighted_layers import CodeLimits, four_bits
from mcugen.lir.kernel import Call, Kernel, Params, Site

GATHERED_CHANNELS = 124
"""Largest number of channels that the library copies at a time to its im2col buffer, with Helium."""


def without_idle_dilation(shape: ConvShape) -> ConvShape:
    """Return the geometry with a dilation of 1 along axes that have a single tap.

    A larger dilation means the same there, but keeps CMSIS-NN from its fast functions.
    """
    h, w = (1 if taps == 1 else dilation for taps, dilation in zip(*_by_axis(shape), strict=True))
    return replace(shape, dilation_height=h, dilation_width=w)


def _by_axis(shape: ConvShape) -> tuple[tuple[int, int], tuple[int, int]]:
    return (shape.kernel_height, shape.kernel_width), (shape.dilation_height, shape.dilation_width)


def uses_fast_function(shape: ConvShape) -> bool:
    """Return whether CMSIS-NN computes a depthwise convolution by one of its fast functions.

    These have one output channel per input channel and no dilation.
    """
    return shape.out_channels == shape.in_channels and shape.dilation_height == shape.dilation_width == 1


def has_direct_function(shape: ConvShape) -> bool:
    """Return whether CMSIS-NN without Helium has a function for this 3×3 window and padding that reads x directly."""
    return shape.kernel_height == shape.kernel_width == 3 and max(shape.padding_top, shape.padding_left) <= 1


def depthwise_scratch_bytes(shape: ConvShape, features: frozenset[str], small: bool) -> int:
    """Return the bytes of scratch memory that CMSIS-NN needs for a depthwise convolution.

    The scratch memory holds one window as int16, or with Helium four windows of up to 124 channels. The slow function
    (see uses_fast_function) needs none.

    Args:
        shape: Geometry that without_idle_dilation returned.
        features: CPU features.
        small: Whether weights have 4 bits.
    """
    if not uses_fast_function(shape):
        return 0
    taps = shape.kernel_height * shape.kernel_width
    window = 2 * taps * shape.in_channels
    if small:
        return select_by_variant(features, window, window, 4 * taps * GATHERED_CHANNELS)
    return select_by_variant(features, 0, 0 if has_direct_function(shape) else window, 4 * taps * GATHERED_CHANNELS)


class ChannelMultiplier(Params):
    """Kernel parameter of a depthwise convolution: the number of output channels per input channel."""

    channel_multiplier: Annotated[int, "channels of y per channel of x"]


def emit_s8(spec: ConvSpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's depthwise convolution with int8 weights, in the order [H, W, O]."""
    return _emit(spec, site, _turned(spec), small=False)


def emit_s4(spec: ConvSpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's depthwise convolution with 4-bit weights, which are packed two per byte."""
    return _emit(spec, site, pack_nibbles_in_order(_turned(spec)), small=True)


def _turned(spec: ConvSpec) -> Array:
    shape = spec.shape
    return np.moveaxis(spec.weights[..., 0].reshape(shape.out_channels, shape.kernel_height, shape.kernel_width), 0, -1)


def _emit(spec: ConvSpec, site: Site, packed: Array, small: bool) -> Call:
    """Emit a depthwise convolution, with padded constants: Helium reads up to three channels beyond the last."""
    shape, multiple = without_idle_dilation(spec.shape), select_by_variant(site.features, 1, 1, 4)
    constants = layer_constants(spec, site, packed, spec.integer_bias, multiple=multiple)
    size = depthwise_scratch_bytes(shape, site.features, small)
    by_channel = ChannelMultiplier(channel_multiplier=shape.out_channels // shape.in_channels)
    return site.call(
        with_scratch({"x": site.x, **constants, "y": site.y}, site, size),
        [shape.geometry, by_channel, ZeroPoints.of(spec), CodeLimits.of(spec.limits), Scratch(scratch_bytes=size)],
    )


# ------------------------------------------------------------------------------- conditions


def has_one_channel_filters(spec: ConvSpec) -> bool:
    """Require that each filter reads one input channel, of several.

    Return whether the layer meets this condition of a kernel: it is a depthwise convolution.
    """
    return 1 < spec.shape.groups == spec.shape.in_channels


def has_reachable_windows(spec: ConvSpec) -> bool:
    """Require windows that touch the image; where the library assumes it, window centres inside the image.

    Return whether the layer meets this condition of a kernel. CMSIS-NN's fast functions need windows that touch the
    image. Its function for 3×3 windows (has_direct_function) also needs each window's centre to be inside the image's
    right border. Its slow function handles any window.
    """
    shape = without_idle_dilation(spec.shape)
    last_h = (shape.out_height - 1) * shape.stride_height - shape.padding_top
    last_w = (shape.out_width - 1) * shape.stride_width - shape.padding_left
    touching = (
        max(
            shape.padding_top - shape.kernel_height,
            shape.padding_left - shape.kernel_width,
            last_h - shape.in_height,
            last_w - shape.in_width,
        )
        <= 0
    )
    return not uses_fast_function(shape) or (
        touching and (not has_direct_function(shape) or last_w + 1 < shape.in_width)
    )


def has_even_channels(spec: ConvSpec) -> bool:
    """Require an even number of channels, unless one of the library's fast functions is used.

    Return whether the layer meets this condition of a kernel. It does if the number of input channels is even, or if
    CMSIS-NN computes the layer by a fast function (uses_fast_function).
    """
    shape = without_idle_dilation(spec.shape)
    return shape.in_channels % 2 == 0 or uses_fast_function(shape)


MISCOMPILED_FEATURES = frozenset({"mve"})
"""CPU features with which the library's depthwise function for 4-bit weights is not used: gcc 12 compiles it wrongly
for Helium (it takes the predicates of 32-bit lanes for all ones)."""


def depthwise_function(spec: ConvSpec) -> str:
    """Return the function by which CMSIS-NN computes a depthwise convolution; the cost model has costs for each.

    The slow functions are "fours" (four outputs, or a multiple, per input channel) and "any" (any other number). The
    fast ones are "near" (3×3 windows that are read in x, without Helium) and "window" (windows that are gathered).
    """
    shape = without_idle_dilation(spec.shape)
    if not uses_fast_function(shape):
        return "any" if shape.out_channels // shape.in_channels % 4 else "fours"
    return "near" if has_direct_function(shape) else "window"


def _depthwise(name: str, function: str, **more: Any) -> Kernel:
    return library_kernel(
        name,
        what=f"a convolution of each channel of int8 tensors: {function}",
        operands=(*layer_operands(DType.INT8, DType.INT32), SCRATCH),
        params=(ConvGeometry, ChannelMultiplier, ZeroPoints, CodeLimits, Scratch),
        **more,
    )


CMSIS_DEPTHWISE_S8: tuple[Kernel, ...] = (
    _depthwise(
        "cmsis_depthwise_s8",
        "arm_depthwise_conv_wrapper_s8",
        when=(is_int8_layer, has_one_channel_filters, has_reachable_windows, has_small_axes),
        emit=emit_s8,
        way=depthwise_function,
    ),
    _depthwise(
        "cmsis_depthwise_s4",
        "arm_depthwise_conv_wrapper_s4, two weights per byte",
        when=(
            is_int8_layer,
            four_bits,
            has_one_channel_filters,
            has_reachable_windows,
            has_even_channels,
            has_small_axes,
        ),
        emit=emit_s4,
        lacks=MISCOMPILED_FEATURES,
    ),
)
"""CMSIS-NN's kernels of int8 depthwise convolutions, in order of preference."""
