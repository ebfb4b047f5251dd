# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's depthwise convolutions: arm_depthwise_conv_wrapper_s8 and, with weights of 4 bits, _s4."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from mcugen.hir.types import Array, DType
from mcugen.kernels.cmsis_nn.common import (
    SCRATCH,
    Scratch,
    ZeroPoints,
    by_variant,
    int8_layer,
    layer_constants,
    layer_operands,
    library_kernel,
    packed_nibbles,
    small_axes,
    with_scratch,
)
from mcugen.kernels.common.conv_shape import ConvGeometry, ConvShape
from mcugen.kernels.common.specs import ConvSpec
from mcugen.kernels.common.weighted_layers import CodeLimits, four_bits
from mcugen.lir.kernel import Call, Kernel, Params, Site

GATHERED_CHANNELS = 124
"""Channels that Helium gathers at once."""


def plain(shape: ConvShape) -> ConvShape:
    """Return the convolution without dilations of single taps, which keep the library from its fast functions."""
    h, w = (1 if taps == 1 else dilation for taps, dilation in zip(*_by_axis(shape), strict=True))
    return replace(shape, dilation_height=h, dilation_width=w)


def _by_axis(shape: ConvShape) -> tuple[tuple[int, int], tuple[int, int]]:
    return (shape.kernel_height, shape.kernel_width), (shape.dilation_height, shape.dilation_width)


def is_fast(shape: ConvShape) -> bool:
    """Whether the library takes one of its fast ways."""
    return shape.out_channels == shape.in_channels and shape.dilation_height == shape.dilation_width == 1


def is_near(shape: ConvShape) -> bool:
    """Whether the library, without Helium, has a function for just this window, which reads x where it lies."""
    return shape.kernel_height == shape.kernel_width == 3 and max(shape.padding_top, shape.padding_left) <= 1


def depthwise_scratch(shape: ConvShape, features: frozenset[str], small: bool) -> int:
    """Bytes: a window's elements as int16, or with Helium four windows of some channels; the slow way needs none."""
    if not is_fast(shape):
        return 0
    taps = shape.kernel_height * shape.kernel_width
    window = 2 * taps * shape.in_channels
    if small:
        return by_variant(features, window, window, 4 * taps * GATHERED_CHANNELS)
    return by_variant(features, 0, 0 if is_near(shape) else window, 4 * taps * GATHERED_CHANNELS)


@dataclass(frozen=True, kw_only=True)
class Multiplicity(Params):
    """Parameters of a depthwise convolution with several outputs per input channel."""

    channel_multiplier: Annotated[int, "channels of y per channel of x"]


def emit_s8(spec: ConvSpec, site: Site) -> Call:
    """Weights [H, W, O]."""
    return _emit(spec, site, _turned(spec), small=False)


def emit_s4(spec: ConvSpec, site: Site) -> Call:
    """Emit a depthwise convolution with two weights a byte."""
    return _emit(spec, site, packed_nibbles(_turned(spec)), small=True)


def _turned(spec: ConvSpec) -> Array:
    shape = spec.shape
    return np.moveaxis(spec.weights[..., 0].reshape(shape.out_channels, shape.kernel_height, shape.kernel_width), 0, -1)


def _emit(spec: ConvSpec, site: Site, packed: Array, small: bool) -> Call:
    """Helium reads up to three channels beyond the last."""
    shape, multiple = plain(spec.shape), by_variant(site.features, 1, 1, 4)
    constants = layer_constants(spec, site, packed, spec.integer_bias, multiple=multiple)
    size = depthwise_scratch(shape, site.features, small)
    by_channel = Multiplicity(channel_multiplier=shape.out_channels // shape.in_channels)
    return site.call(
        with_scratch({"x": site.x, **constants, "y": site.y}, site, size),
        [shape.geometry, by_channel, ZeroPoints.of(spec), CodeLimits.of(spec.limits), Scratch(scratch_bytes=size)],
    )


# ------------------------------------------------------------------------------- conditions


def one_channel_filters(spec: ConvSpec) -> bool:
    """Require filters of one channel each."""
    return 1 < spec.shape.groups == spec.shape.in_channels


def near_windows(spec: ConvSpec) -> bool:
    """Require windows that touch the image, their centres within it where the library counts on that."""
    shape = plain(spec.shape)
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
    return not is_fast(shape) or (touching and (not is_near(shape) or last_w + 1 < shape.in_width))


def whole_bytes(spec: ConvSpec) -> bool:
    """Require an even number of channels, unless the library is fast."""
    shape = plain(spec.shape)
    return shape.in_channels % 2 == 0 or is_fast(shape)


HELIUM = frozenset({"mve"})
"""gcc 12 takes the predicates of 32-bit lanes for all ones in the library's function of 4 bits."""


def way(spec: ConvSpec) -> str:
    """Return the library's function for this shape."""
    shape = plain(spec.shape)
    if not is_fast(shape):
        return "any" if shape.out_channels // shape.in_channels % 4 else "fours"
    return "near" if is_near(shape) else "window"


def _depthwise(name: str, function: str, **more: Any) -> Kernel:
    return library_kernel(
        name,
        what=f"a convolution of each channel of int8 tensors: {function}",
        operands=(*layer_operands(DType.INT8, DType.INT32), SCRATCH),
        params=(ConvGeometry, Multiplicity, ZeroPoints, CodeLimits, Scratch),
        **more,
    )


CMSIS_DEPTHWISE_S8: tuple[Kernel, ...] = (
    _depthwise(
        "cmsis_depthwise_s8",
        "arm_depthwise_conv_wrapper_s8",
        when=(int8_layer, one_channel_filters, near_windows, small_axes),
        emit=emit_s8,
        way=way,
    ),
    _depthwise(
        "cmsis_depthwise_s4",
        "arm_depthwise_conv_wrapper_s4, two weights a byte",
        when=(int8_layer, four_bits, one_channel_filters, near_windows, whole_bytes, small_axes),
        emit=emit_s4,
        lacks=HELIUM,
    ),
)
"""Kernels of depthwise convolutions."""
