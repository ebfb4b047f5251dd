# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's convolutions: arm_convolve_wrapper_s8, and arm_convolve_wrapper_s4 with weights of 4 bits.

The wrappers choose an algorithm by the shape: one for pointwise convolutions, one for images of one row ("1 x n"), one
for all others. With Helium, the second one is wrong for some paddings, and the first one if pixels beyond the right or
lower end are read. `for_library` describes such a convolution so that the library takes the general algorithm, which is
always right.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

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
from mcugen.kernels.common.weighted_layers import CodeLimits, four_bits, has_one_group
from mcugen.lir.kernel import Call, Kernel, Options, Params, Site


def for_library(shape: ConvShape, lines: bool = True) -> ConvShape:
    """Return an equivalent geometry for which CMSIS-NN chooses an algorithm whose results are right.

    CMSIS-NN has errors in some special cases. A dilation has no effect on a single tap, but keeps CMSIS-NN from its
    pointwise function. An image of one row is equivalent to an image of one column, which keeps CMSIS-NN from its
    function for rows.

    Args:
        shape: Geometry of the convolution.
        lines: Whether CMSIS-NN may use its function for images of one row where its results are right.
    """
    if shape.kernel_height == shape.kernel_width == 1:
        dilation = 1 if is_pointwise(shape) else 2
        return replace(shape, dilation_height=dilation, dilation_width=dilation)
    if shape.in_height == shape.kernel_height == shape.out_height == 1 and not (lines and _is_line(shape)):
        return shape.transposed()
    return shape


def is_pointwise(shape: ConvShape) -> bool:
    """Return whether each output reads one pixel of x, so that CMSIS-NN reads x without im2col."""
    return shape.reads_pixels and shape.groups == 1


def _is_line(shape: ConvShape) -> bool:
    """Return whether the library's function for images of one row is used, and is right.

    With Helium, it gathers all windows that begin before the row at once, and all windows that end behind it at once.
    The former must not reach the row's end nor the latter its beginning, and the first of the latter must exceed the
    row by one element.
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


def conv_scratch_bytes(shape: ConvShape, features: frozenset[str]) -> int:
    """Return the bytes of scratch memory that CMSIS-NN needs for a convolution.

    These are two im2col columns of int16; with Helium four columns of int8, or the padded ends of a row.

    Args:
        shape: Geometry that for_library returned.
        features: CPU features.
    """
    depth = shape.kernel_height * shape.kernel_width * shape.in_channels
    columns = 4 * (-(-depth // 4) * 4)
    mve = 4 * (-(-depth // 16) * 16)
    if shape.in_height == shape.kernel_height == 1 and shape.kernel_width > 1:
        after = _line_end(shape)
        mve = max(shape.kernel_width + shape.padding_left, shape.kernel_width - 1 + after) * shape.in_channels
    return select_by_variant(features, columns, columns, mve)


class FilterDepth(Params):
    """Kernel parameter with the input channels that each filter reads: all of x's, or those of one group."""

    filter_channels: Annotated[int, "input channels of a filter"]


class ConvOptions(Options):
    """Template option of a convolution: whether CMSIS-NN reads x without im2col, and so needs no scratch memory."""

    direct: Annotated[bool, "whether the library reads x without im2col, and needs no scratch memory"]


def emit_s8(spec: ConvSpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's int8 convolution; a dense layer is computed as a pointwise convolution.

    Weights keep their order [O, H, W, I].
    """
    return _emit(spec, site, for_library(spec.shape), spec.weights)


def emit_s4(spec: ConvSpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's convolution with 4-bit weights, which are packed two per byte."""
    return _emit(spec, site, for_library(spec.shape, lines=False), pack_nibbles_in_order(spec.weights))


def _emit(spec: ConvSpec, site: Site, shape: ConvShape, packed: Array) -> Call:
    direct = is_pointwise(shape)
    size = None if direct else conv_scratch_bytes(shape, site.features)
    operands = {"x": site.x, **layer_constants(spec, site, packed, spec.integer_bias), "y": site.y}
    depth = FilterDepth(filter_channels=spec.weights.shape[-1])
    return site.call(
        operands if size is None else with_scratch(operands, site, size),
        [shape.geometry, depth, ZeroPoints.of(spec), CodeLimits.of(spec.limits), Scratch(scratch_bytes=size)],
        [ConvOptions(direct=direct)],
        variant="pointwise" if direct else "",
    )


def has_no_padded_rows(spec: ConvSpec) -> bool:
    """Require no image of one row that is padded above or below.

    Return whether the layer meets this condition of a kernel: CMSIS-NN's function for images of one row ignores
    vertical padding.
    """
    shape = spec.shape
    return not (shape.in_height == shape.kernel_height == 1 and shape.kernel_width > 1 and shape.out_height > 1)


def conv_algorithm(spec: ConvSpec) -> str:
    """Return the algorithm by which CMSIS-NN computes a convolution; the cost model has separate costs for each.

    It is "pointwise" (x is read without im2col), "line" (images and windows of one row), "groups" (several groups of
    channels) or "window" (any other convolution, by im2col).
    """
    shape = for_library(spec.shape)
    if is_pointwise(shape):
        return "pointwise"
    if shape.in_height == shape.kernel_height == 1 and shape.kernel_width > 1:
        return "line"
    return "groups" if shape.groups > 1 else "window"


def count_gathered_taps(spec: ConvSpec) -> int:
    """Return the number of copies that im2col makes per inference, for the cost model.

    There is one copy for each tap of each window and group of channels.
    """
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
        when=(is_int8_layer, has_no_padded_rows, has_small_axes),
        emit=emit_s8,
        way=conv_algorithm,
        extra=count_gathered_taps,
    ),
    _convolution(
        "cmsis_convolve_s4",
        "arm_convolve_wrapper_s4, two weights per byte",
        when=(is_int8_layer, four_bits, has_one_group, has_no_padded_rows, has_small_axes),
        emit=emit_s4,
    ),
)
"""CMSIS-NN's kernels of int8 convolutions, in order of preference."""
