# SPDX-License-Identifier: Apache-2.0
"""Kernels in plain C, for any CPU: of all shapes and types, the last resort of every weighted layer."""

from __future__ import annotations

import math

import numpy as np

from mcugen.hir.graph import Node
from mcugen.kernels.conv_shape import ConvShape, shape_of
from mcugen.kernels.reading_order import in_turn, overlaps, rows, windows
from mcugen.kernels.weighted import (
    BLOCK,
    emit_weighted,
    float_tensors,
    int8_tensors,
    int16_tensors,
    interleave,
    weights_of,
)
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Param


def depthwise(node: Node) -> bool:
    """one filter a channel"""
    return ConvShape.of(node).is_depthwise


def shared_channels(node: Node) -> bool:
    """filters of several channels"""
    return not ConvShape.of(node).is_depthwise


def single_row(node: Node) -> bool:
    """one output pixel that reads one input pixel"""
    shape = ConvShape.of(node)
    return shape.groups == 1 and shape.reads_pixels and node.output.type.count == shape.out_c


def emit_dense(node: Node, builder: Builder, kernel: Kernel) -> None:
    """A fully connected layer: weights interleaved by four channels."""
    weights = weights_of(node).reshape(len(weights_of(node)), -1)
    channels, depth = weights.shape
    params: dict[str, Param] = {"rows": node.output.type.count // channels, "depth": depth, "channels": channels}
    rest, shape = channels % BLOCK != 0, shape_of(node)
    order = windows(shape, in_turn(shape.out_h * shape.out_w, 1), last=1 if rest else BLOCK)
    code: dict[str, object] = {"rest": rest}
    emit_weighted(node, builder, kernel, interleave(weights), params, code=code, overlaps=overlaps(node, order))


def emit_conv(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Two pixels at a time, gathered unless they can be read where they lie."""
    shape, weights = ConvShape.of(node), weights_of(node)
    channels, depth = len(weights), math.prod(weights.shape[1:])
    per_group = weights.reshape(shape.groups, channels // shape.groups, depth)
    packed = np.concatenate([interleave(g) for g in per_group])
    direct = shape.groups == 1 and shape.reads_pixels
    params = shape.params() | {"depth": depth, "groups": shape.groups, "group_out": channels // shape.groups}
    params["group_in"] = weights.shape[-1]
    joined = shape.dilation_w == 1 and shape.groups == 1
    params |= {"direct": int(direct), "runs": 1 if joined else shape.k_w, "taps": shape.k_w if joined else 1}
    rest = channels // shape.groups % BLOCK != 0
    last = (1 if rest else BLOCK) if direct else 0
    emit_weighted(
        node,
        builder,
        kernel,
        packed,
        params,
        scratch=("patches", 0 if direct else 2 * depth),
        code={"rest": rest},
        baked=("groups",) if shape.groups == 1 else (),
        overlaps=overlaps(node, windows(shape, in_turn(shape.out_h * shape.out_w, 2), last)),
        variant="grouped" if shape.groups > 1 else "",
    )


def emit_depthwise(node: Node, builder: Builder, kernel: Kernel) -> None:
    """With a ring of padded rows where windows leave x; the taps of a small window are written out."""
    shape, weights = ConvShape.of(node), weights_of(node)
    unrolled, direct = shape.k_h * shape.k_w <= 25, shape.is_inside and not builder.any_size
    params = shape.params() | ring_params(shape, direct)
    order = windows(shape, in_turn(shape.out_h * shape.out_w, 1)) if direct else rows(shape)
    emit_weighted(
        node,
        builder,
        kernel,
        weights.reshape(len(weights), -1),
        params,
        scratch=("rows", ring_size(shape, direct)),
        code={"k_h": shape.k_h, "k_w": shape.k_w} if unrolled else {"k_h": 0, "k_w": 0},
        overlaps=overlaps(node, order),
        variant=f"{shape.k_h}x{shape.k_w}" if unrolled else "",
    )


def _padded_width(shape: ConvShape) -> int:
    """Pixels of a row that no tap leaves."""
    return max(shape.stride_w * (shape.out_w - 1) + shape.dilation_w * (shape.k_w - 1) + 1, shape.pad_w + shape.in_w)


def ring_params(shape: ConvShape, direct: bool) -> dict[str, Param]:
    """Pixels of a row in the ring, or of x if it is read where it lies (`direct`)."""
    return {"row_w": shape.in_w if direct else _padded_width(shape), "direct": int(direct)}


def ring_size(shape: ConvShape, direct: bool) -> int:
    """Elements of the padded rows under the kernel."""
    return 0 if direct else ((shape.k_h - 1) * shape.dilation_h + 1) * _padded_width(shape) * shape.in_c


DENSE: tuple[Kernel, ...] = (
    Kernel("dense_f32", when=(float_tensors,), emit=emit_dense, any_size=True),
    Kernel("dense_s8", when=(int8_tensors,), emit=emit_dense, any_size=True),
    Kernel("dense_s16", when=(int16_tensors,), emit=emit_dense, any_size=True),
)

DEPTHWISE: tuple[Kernel, ...] = (
    Kernel("depthwise_f32", when=(float_tensors, depthwise), emit=emit_depthwise, any_size=True),
    Kernel("depthwise_s16", when=(int16_tensors, depthwise), emit=emit_depthwise, any_size=True),
    Kernel("depthwise_s8", when=(int8_tensors, depthwise), emit=emit_depthwise, any_size=True),
)

CONV: tuple[Kernel, ...] = (
    Kernel("dense_f32", when=(float_tensors, single_row), emit=emit_dense, any_size=True),
    Kernel("dense_s16", when=(int16_tensors, single_row), emit=emit_dense, any_size=True),
    Kernel("dense_s8", when=(int8_tensors, single_row), emit=emit_dense, any_size=True),
    Kernel("conv2d_f32", when=(float_tensors, shared_channels), emit=emit_conv, any_size=True),
    Kernel("conv2d_s16", when=(int16_tensors, shared_channels), emit=emit_conv, any_size=True),
    Kernel("conv2d_s8", when=(int8_tensors, shared_channels), emit=emit_conv, any_size=True),
)
