# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's convolutions: arm_convolve_wrapper_s8, and arm_convolve_wrapper_s4 with weights of 4 bits.

The wrappers choose by the shape: pointwise convolutions, rows of one line ("1 x n"), all others. With Helium the second
way is wrong for some paddings, and the first for pixels that lie beyond the right or lower end; `laid` says the same
convolution so that the library takes the general way, which is right for all.
"""

from __future__ import annotations

from dataclasses import replace

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
from mcugen.kernels.conv_shape import ConvShape, shape_of
from mcugen.kernels.weighted import bias_of, weights_of
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Access, Param

S8, S4 = "cmsis_convolve_s8", "cmsis_convolve_s4"


def laid(shape: ConvShape, lines: bool = True) -> ConvShape:
    """The same convolution for the library. `lines`: whether it may compute single lines in their own way.

    A dilation means nothing to one tap, but keeps the library from its pointwise way; an image that is one line means
    the same upright.
    """
    if shape.k_h == shape.k_w == 1:
        dilation = 1 if is_pointwise(shape) else 2
        return replace(shape, dilation_h=dilation, dilation_w=dilation)
    if shape.in_h == shape.k_h == shape.out_h == 1 and not (lines and _is_line(shape)):
        return shape.turned()
    return shape


def is_pointwise(shape: ConvShape) -> bool:
    """Whether it is computed without gathering."""
    return shape.reads_pixels and shape.groups == 1


def _is_line(shape: ConvShape) -> bool:
    """Whether the library computes a line in its own way, and rightly.

    Helium gathers the windows that begin before the line, and those that end behind it, in one go each: the former must
    not reach its end nor the latter its beginning, and the first of the latter must leave it by one element.
    """
    before, after = shape.pad_w, _line_end(shape)
    left, right = -(-before // shape.stride_w), -(-after // shape.stride_w)
    if shape.groups > 1 or shape.dilation_w > 1 or shape.stride_w * shape.in_c % 4:
        return False
    if after not in (before, before + 1) or left + right > shape.out_w or shape.k_w > shape.in_w:
        return False
    apart = (left - 1) * shape.stride_w - before + shape.k_w <= shape.in_w
    first = (shape.out_w - right) * shape.stride_w - before
    filled = shape.stride_w == 1 or (after % shape.stride_w == 1 and (after == before or right == 1))
    return apart and first >= 0 and filled


def _line_end(shape: ConvShape) -> int:
    """How far the last window of a line goes beyond its end."""
    return (shape.out_w - 1) * shape.stride_w - shape.pad_w + shape.k_w - shape.in_w


def conv_scratch(shape: ConvShape, builder: Builder) -> int:
    """Bytes for a shape as it was `laid`: two columns of int16 elements; with Helium four of int8, or a line's ends."""
    depth = shape.k_h * shape.k_w * shape.in_c
    columns = 4 * (-(-depth // 4) * 4)
    mve = 4 * (-(-depth // 16) * 16)
    if shape.in_h == shape.k_h == 1 and shape.k_w > 1:
        after = _line_end(shape)
        mve = max(shape.k_w + shape.pad_w, shape.k_w - 1 + after) * shape.in_c
    return by_variant(builder, columns, columns, mve)


def emit_conv(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Weights [O, H, W, I] in their order; dense layers are pointwise convolutions of their rows."""
    weights, bias, is_small = weights_of(node), bias_of(node), kernel.name == S4
    shape = laid(shape_of(node), lines=not is_small)
    assert bias is not None
    params: dict[str, Param] = shape.params() | {"w_c": weights.shape[-1]} | code_range(node)
    operands = [
        ("x", Access.IN, builder.buffer(node.input(0))),
        *layer_constants(node, builder, packed_nibbles(weights) if is_small else weights, bias),
        ("y", Access.OUT, builder.buffer(node.output)),
    ]
    direct = is_pointwise(shape)
    emit_call(
        node,
        builder,
        kernel,
        operands,
        params,
        scratch=None if direct else conv_scratch(shape, builder),
        code={"direct": direct},
        variant="pointwise" if direct else "",
    )


def one_group(node: Node) -> bool:
    """one group of channels"""
    return shape_of(node).groups == 1


def no_padded_lines(node: Node) -> bool:
    """no lines padded above or below"""
    shape = shape_of(node)
    return not (shape.in_h == shape.k_h == 1 and shape.k_w > 1 and shape.out_h > 1)


def way(node: Node) -> str:
    """Which of the library's functions it is, by the shape."""
    shape = laid(shape_of(node))
    if is_pointwise(shape):
        return "pointwise"
    if shape.in_h == shape.k_h == 1 and shape.k_w > 1:
        return "line"
    return "groups" if shape.groups > 1 else "window"


def gatherings(node: Node) -> int:
    """Runs of channels that are copied one after the other: those of each window and group."""
    shape = shape_of(node)
    return shape.batch * shape.out_h * shape.out_w * shape.k_h * shape.k_w * shape.groups


CONV: tuple[Kernel, ...] = (
    call(S8, (int8_layer, no_padded_lines, small_axes), emit_conv, way=way, extra=gatherings),
    call(S4, (int8_layer, small_weights, one_group, no_padded_lines, small_axes), emit_conv),
)
