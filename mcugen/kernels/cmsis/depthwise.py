# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's depthwise convolutions: arm_depthwise_conv_wrapper_s8 and, with weights of 4 bits, _s4."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mcugen.hir.graph import Node
from mcugen.kernels.cmsis.common import (
    by_variant,
    call,
    code_range,
    emit_call,
    int8_layer,
    layer_constants,
    packed_nibbles,
    small_axes,
    small_weights,
)
from mcugen.kernels.conv_shape import ConvShape
from mcugen.kernels.weighted import bias_of, weights_of
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Access, Param

S8, S4 = "cmsis_depthwise_s8", "cmsis_depthwise_s4"

BLOCK = 124
"""Channels that Helium gathers at once."""


def plain(shape: ConvShape) -> ConvShape:
    """The same without dilations of a single tap, which keep the library from its fast ways."""
    h, w = (1 if taps == 1 else dilation for taps, dilation in zip(*_by_axis(shape), strict=True))
    return replace(shape, dilation_h=h, dilation_w=w)


def _by_axis(shape: ConvShape) -> tuple[tuple[int, int], tuple[int, int]]:
    return (shape.k_h, shape.k_w), (shape.dilation_h, shape.dilation_w)


def is_fast(shape: ConvShape) -> bool:
    """Whether the library takes one of its fast ways."""
    return shape.out_c == shape.in_c and shape.dilation_h == shape.dilation_w == 1


def is_near(shape: ConvShape) -> bool:
    """Whether the library, without Helium, has a function for just this window, which reads x where it lies."""
    return shape.k_h == shape.k_w == 3 and max(shape.pad_h, shape.pad_w) <= 1


def depthwise_scratch(shape: ConvShape, builder: Builder, small: bool) -> int:
    """Bytes: a window's elements as int16, or with Helium four windows of some channels; the slow way needs none."""
    if not is_fast(shape):
        return 0
    taps = shape.k_h * shape.k_w
    window = 2 * taps * shape.in_c
    if small:
        return by_variant(builder, window, window, 4 * taps * BLOCK)
    return by_variant(builder, 0, 0 if is_near(shape) else window, 4 * taps * BLOCK)


def emit_depthwise(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Weights [H, W, O]. Helium reads up to three channels beyond the last."""
    weights, bias, is_small = weights_of(node), bias_of(node), kernel.name == S4
    shape = plain(ConvShape.of(node))
    assert bias is not None
    turned = np.moveaxis(weights[..., 0].reshape(shape.out_c, shape.k_h, shape.k_w), 0, -1)
    params: dict[str, Param] = shape.params() | {"multiple": shape.out_c // shape.in_c} | code_range(node)
    packed = packed_nibbles(turned) if is_small else turned
    operands = [
        ("x", Access.IN, builder.buffer(node.input(0))),
        *layer_constants(node, builder, packed, bias, multiple=by_variant(builder, 1, 1, 4)),
        ("y", Access.OUT, builder.buffer(node.output)),
    ]
    emit_call(node, builder, kernel, operands, params, scratch=depthwise_scratch(shape, builder, is_small))


# ------------------------------------------------------------------------------- conditions


def one_channel_filters(node: Node) -> bool:
    """filters of one channel each"""
    shape = ConvShape.of(node)
    return 1 < shape.groups == shape.in_c


def near_windows(node: Node) -> bool:
    """windows that touch the image, their centres within it where the library counts on that"""
    shape = plain(ConvShape.of(node))
    last_h = (shape.out_h - 1) * shape.stride_h - shape.pad_h
    last_w = (shape.out_w - 1) * shape.stride_w - shape.pad_w
    touching = max(shape.pad_h - shape.k_h, shape.pad_w - shape.k_w, last_h - shape.in_h, last_w - shape.in_w) <= 0
    return not is_fast(shape) or (touching and (not is_near(shape) or last_w + 1 < shape.in_w))


def whole_bytes(node: Node) -> bool:
    """an even number of channels, unless the library is fast"""
    shape = plain(ConvShape.of(node))
    return shape.in_c % 2 == 0 or is_fast(shape)


HELIUM = frozenset({"mve"})
"""gcc 12 takes the predicates of 32-bit lanes for all ones in the library's function of 4 bits."""


def way(node: Node) -> str:
    """Which of the library's functions it is, by the shape."""
    shape = plain(ConvShape.of(node))
    if not is_fast(shape):
        return "any" if shape.out_c // shape.in_c % 4 else "fours"
    return "near" if is_near(shape) else "window"


DEPTHWISE: tuple[Kernel, ...] = (
    call(S8, (int8_layer, one_channel_filters, near_windows, small_axes), emit_depthwise, way=way),
    call(
        S4,
        (int8_layer, small_weights, one_channel_filters, near_windows, whole_bytes, small_axes),
        emit_depthwise,
        lacks=HELIUM,
    ),
)
"""Of convolutions."""
