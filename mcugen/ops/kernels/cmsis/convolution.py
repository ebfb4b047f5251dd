# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's convolutions: arm_convolve_wrapper_s8."""

from __future__ import annotations

from mcugen.hir.graph import Node
from mcugen.lir.builder import Builder, Kernel
from mcugen.lir.program import Access, Param
from mcugen.ops.fixedpoint import clamp_range
from mcugen.ops.kernels.cmsis.common import by_variant, call, emit_call, int8_layer, multipliers, small_axes
from mcugen.ops.kernels.conv_shape import ConvShape
from mcugen.ops.kernels.portable import shared_channels
from mcugen.ops.weighted import bias_of, clamp_of, largest_sums_of, requantizer, weights_of


def conv_scratch(shape: ConvShape, builder: Builder) -> int:
    """Bytes: two columns of int16 elements, or with Helium four of int8; pointwise convolutions take none."""
    if shape.reads_pixels and shape.groups == 1:
        return 0
    depth = shape.k_h * shape.k_w * shape.in_c
    columns = 4 * (-(-depth // 4) * 4)
    return by_variant(builder, columns, columns, 4 * (-(-depth // 16) * 16))


def emit_conv(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Weights [O, H, W, I] as they are."""
    shape, weights, name = ConvShape.of(node), weights_of(node), node.output.name
    x, y = node.input(0).type, node.output.type
    multiplier, shift = multipliers(requantizer(node.sig, largest_sums_of(node)), shape.out_c)
    low, high = clamp_range(clamp_of(node), y.q, y.dtype)
    params: dict[str, Param] = shape.params() | {"w_c": weights.shape[-1]}
    params |= {"x_zero": x.q.zero_point, "y_zero": y.q.zero_point, "low": low, "high": high}
    bias = bias_of(node)
    assert bias is not None
    operands = [
        ("x", Access.IN, builder.buffer(node.input(0))),
        ("w", Access.IN, builder.const(f"{name}.weights", weights)),
        ("bias", Access.IN, builder.const(f"{name}.bias", bias)),
        ("multiplier", Access.IN, builder.const(f"{name}.multiplier", multiplier)),
        ("shift", Access.IN, builder.const(f"{name}.shift", shift)),
        ("y", Access.OUT, builder.buffer(node.output)),
    ]
    emit_call(node, builder, kernel, operands, params, scratch=conv_scratch(shape, builder))


CONV: tuple[Kernel, ...] = (call("cmsis_convolve_s8", (int8_layer, shared_channels, small_axes), emit_conv),)
