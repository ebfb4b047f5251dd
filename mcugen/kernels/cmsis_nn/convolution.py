# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's convolutions: arm_convolve_wrapper_s8, and arm_convolve_wrapper_s4 with weights of 4 bits.

The wrappers choose by the shape: pointwise convolutions, rows of one line ("1 x n"), all others. With Helium the second
way is wrong for some paddings, and the first for pixels that lie beyond the right or lower end; `laid` says the same
convolution so that the library takes the general way, which is right for all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

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
from mcugen.lir.kernel import Call, Kernel, Options, Params, Site


def laid(shape: ConvShape, lines: bool = True) -> ConvShape:
    """Return the convolution in the form that the library should see.

    A dilation has no effect on a single tap, but keeps the library from its pointwise function. An image of one line is
    equivalent to the upright line; `lines` says whether the library may use its function for lines.
    """
    if shape.kernel_height == shape.kernel_width == 1:
        dilation = 1 if is_pointwise(shape) else 2
        return replace(shape, dilation_height=dilation, dilation_width=dilation)
    if shape.in_height == shape.kernel_height == shape.out_height == 1 and not (lines and _is_line(shape)):
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
    before, after = shape.padding_left, _line_end(shape)
    left, right = -(-before // shape.stride_width), -(-after // shape.stride_width)
    if shape.groups > 1 or shape.dilation_width > 1 or shape.stride_width * shape.in_channels % 4:
        return False
    if after not in (before, before + 1) or left + right > shape.out_width or shape.kernel_width > shape.in_width:
        return False
    apart = (left - 1) * shape.stride_width - before + shape.kernel_width <= shape.in_width
    first = (shape.out_width - right) * shape.stride_width - before
    filled = shape.stride_width == 1 or (after % shape.stride_width == 1 and (after == before or right == 1))
    return apart and first >= 0 and filled


def _line_end(shape: ConvShape) -> int:
    """Return how far the last window of a line extends beyond the line's end."""
    return (shape.out_width - 1) * shape.stride_width - shape.padding_left + shape.kernel_width - shape.in_width


def conv_scratch(shape: ConvShape, features: frozenset[str]) -> int:
    """Bytes for a shape as it was `laid`: two columns of int16 elements; with Helium four of int8, or a line's ends."""
    depth = shape.kernel_height * shape.kernel_width * shape.in_channels
    columns = 4 * (-(-depth // 4) * 4)
    mve = 4 * (-(-depth // 16) * 16)
    if shape.in_height == shape.kernel_height == 1 and shape.kernel_width > 1:
        after = _line_end(shape)
        mve = max(shape.kernel_width + shape.padding_left, shape.kernel_width - 1 + after) * shape.in_channels
    return by_variant(features, columns, columns, mve)


@dataclass(frozen=True, kw_only=True)
class FilterDepth(Params):
    """Parameters of a grouped convolution."""

    filter_channels: Annotated[int, "channels of a filter"]


@dataclass(frozen=True, kw_only=True)
class ConvOptions(Options):
    """Template options of a convolution."""

    direct: Annotated[bool, "whether the library reads x where it lies, and takes no memory"]


def emit_s8(spec: ConvSpec, site: Site) -> Call:
    """Weights [O, H, W, I] in their order; dense layers are pointwise convolutions of their rows."""
    return _emit(spec, site, laid(spec.shape), spec.weights)


def emit_s4(spec: ConvSpec, site: Site) -> Call:
    """Emit a convolution with two weights a byte."""
    return _emit(spec, site, laid(spec.shape, lines=False), packed_nibbles(spec.weights))


def _emit(spec: ConvSpec, site: Site, shape: ConvShape, packed: Array) -> Call:
    direct = is_pointwise(shape)
    size = None if direct else conv_scratch(shape, site.features)
    operands = {"x": site.x, **layer_constants(spec, site, packed, spec.integer_bias), "y": site.y}
    depth = FilterDepth(filter_channels=spec.weights.shape[-1])
    return site.call(
        operands if size is None else with_scratch(operands, site, size),
        [shape.geometry, depth, ZeroPoints.of(spec), CodeLimits.of(spec.limits), Scratch(scratch_bytes=size)],
        [ConvOptions(direct=direct)],
        variant="pointwise" if direct else "",
    )


def one_group(spec: ConvSpec) -> bool:
    """Require one group of channels."""
    return spec.shape.groups == 1


def no_padded_lines(spec: ConvSpec) -> bool:
    """Require no lines padded above or below."""
    shape = spec.shape
    return not (shape.in_height == shape.kernel_height == 1 and shape.kernel_width > 1 and shape.out_height > 1)


def way(spec: ConvSpec) -> str:
    """Return the library's function for this shape."""
    shape = laid(spec.shape)
    if is_pointwise(shape):
        return "pointwise"
    if shape.in_height == shape.kernel_height == 1 and shape.kernel_width > 1:
        return "line"
    return "groups" if shape.groups > 1 else "window"


def gatherings(spec: ConvSpec) -> int:
    """Return the number of channel runs that are copied one by one: those of each window and group."""
    shape = spec.shape
    return shape.batch * shape.out_height * shape.out_width * shape.kernel_height * shape.kernel_width * shape.groups


def _convolution(name: str, function: str, **more: Any) -> Kernel:
    return library_kernel(
        name,
        what=f"a convolution of int8 tensors: {function}",
        operands=(*layer_operands(DType.INT8, DType.INT32), replace(SCRATCH, optional=True)),
        params=(ConvGeometry, FilterDepth, ZeroPoints, CodeLimits, Scratch),
        options=(ConvOptions,),
        **more,
    )


CMSIS_CONV_S8: tuple[Kernel, ...] = (
    _convolution(
        "cmsis_convolve_s8",
        "arm_convolve_wrapper_s8",
        when=(int8_layer, no_padded_lines, small_axes),
        emit=emit_s8,
        way=way,
        extra=gatherings,
    ),
    _convolution(
        "cmsis_convolve_s4",
        "arm_convolve_wrapper_s4, two weights a byte",
        when=(int8_layer, four_bits, one_group, no_padded_lines, small_axes),
        emit=emit_s4,
    ),
)
