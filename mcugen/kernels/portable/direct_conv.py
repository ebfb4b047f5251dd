# SPDX-License-Identifier: Apache-2.0
"""Convolutions and transposed convolutions of any number of dimensions, channels first, as plain loop nests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from mcugen.hir.types import DType, Shape, TensorType
from mcugen.kernels.common.specs import WeightedSpec
from mcugen.kernels.common.strided_loops import WindowWalk, outer_strides
from mcugen.kernels.common.weighted_layers import INTERLEAVED_ROWS, CodeStore
from mcugen.kernels.portable.weighted import DenseSizes
from mcugen.lir.kernel import ByAxis, Call, Kernel, Options, Params, Real, reads, writes
from mcugen.lir.program import Buffer, real_param
from mcugen.numerics.fixedpoint import Range
from mcugen.numerics.window import Window

_FLOATS = (DType.FLOAT32, DType.FLOAT64)


class ChannelGroups(Params):
    """Kernel parameters of a convolution: number of images, and sizes of the groups of channels."""

    batch: Annotated[int, "images"]
    groups: Annotated[int, "groups of channels"]
    group_in_channels: Annotated[int, "input channels of a group"]
    group_out_channels: Annotated[int, "output channels of a group"]


class RealLimits(Params):
    """Kernel parameters with the limits that float results are clamped to, as float or double."""

    low: Annotated[Real, "lowest result"]
    high: Annotated[Real, "highest result"]

    @classmethod
    def of(cls, limits: Range, dtype: DType) -> RealLimits:
        """Return the parameters for results of a float type.

        Args:
            limits: The lowest and the highest result.
            dtype: Type of the results.
        """
        low, high = (real_param(limit, dtype) for limit in limits)
        return cls(low=low, high=high)


# ------------------------------------------------------------------------------------------------ convolution


class ZeroStep(Params):
    """Kernel parameter of convolutions whose weights have zero points as an operand: their stride."""

    w_zero_point_stride: Annotated[
        int, "elements from zero point to zero point of a channel; 0 if all channels have the same"
    ]


class FilterPlanes(Params):
    """Kernel parameters of a direct convolution, channels first: elements of an input channel and of its filter."""

    x_plane_size: Annotated[int, "elements of a channel of x"]
    filter_taps: Annotated[int, "weights of a filter for one input channel"]


class FilterStrides(ByAxis):
    """Kernel parameters of a direct convolution: strides of a filter along its spatial axes, one for each axis."""

    w_stride: Annotated[Mapping[str, int], "weights from one index along the axis to the next"]


class DirectOptions(Options):
    """Template options of a direct convolution: element types, and requantization or clamp."""

    acc_t: Annotated[str, "C type of the sums"]
    x_t: Annotated[str, "C type of the input"]
    w_t: Annotated[str, "C type of the weights"]
    y_t: Annotated[str, "C type of the output"]
    rank: Annotated[int, "spatial axes"]
    bias: Annotated[bool, "whether sums begin with a bias"]
    integer: Annotated[bool, "whether zero points are operands, and sums wrap around"]
    clamp: Annotated[bool, "whether float results are limited"]
    shift: Annotated[int, "right shift of products with the multiplier; 0: results are not requantized"]


CONV_DIRECT = Kernel(
    "conv_direct",
    what="a convolution in any number of dimensions, channels first, output by output",
    operands=(
        reads("x", "input, channels first"),
        reads("w", "filters"),
        reads("bias", "bias by output channel", optional=True),
        reads("x_zero_point", "zero point of x", optional=True),
        reads("w_zero_point", "zero point of the weights, one or by output channel", optional=True),
        reads("multiplier", "requantization multiplier of each output channel", DType.INT32, optional=True),
        writes("y", "output, channels first"),
    ),
    params=(RealLimits, CodeStore, ZeroStep, ChannelGroups, FilterPlanes, WindowWalk, FilterStrides),
    optional=(RealLimits, CodeStore, ZeroStep),
    options=(DirectOptions,),
)
"""Kernel of convolutions that no other kernel computes: any number of axes, types or non-constant weights."""


@dataclass(frozen=True)
class Arithmetic:
    """The number format of a direct convolution: the C type of its sums, and how sums become results.

    Attributes:
        acc: C type of the sums of products.
        params: Kernel parameters of the results: RealLimits for clamped floats, CodeStore for requantized values,
            ZeroStep for plain integers; None for unclamped floats.
        shift: Right shift of accumulator · requantization multiplier; 0 without requantization.
    """

    acc: str
    params: RealLimits | CodeStore | ZeroStep | None = None
    shift: int = 0

    @staticmethod
    def of_reals(dtype: DType, clamp: Range | None) -> Arithmetic:
        """Return the number format of a direct convolution of floats: sums have the type of the elements.

        Args:
            dtype: Element type.
            clamp: Range that results are clamped to; None without a clamp.
        """
        return Arithmetic(dtype.c, RealLimits.of(clamp, dtype) if clamp else None)

    @staticmethod
    def of_codes(spec: WeightedSpec) -> Arithmetic:
        """Return the number format of a direct convolution of quantized values, whose accumulators are requantized.

        Args:
            spec: The layer.
        """
        return Arithmetic(spec.acc.c, CodeStore.of(spec), spec.high_word.shift)

    @staticmethod
    def of_integers(zeros: int) -> Arithmetic:
        """Return the number format of a direct convolution of plain integers, whose 32-bit sums wrap around.

        Args:
            zeros: Number of zero points of the weights: 1, or one for each output channel.
        """
        return Arithmetic("uint32_t", ZeroStep(w_zero_point_stride=int(zeros > 1)))


def direct_call(
    operands: Mapping[str, Buffer],
    types: tuple[TensorType, TensorType, TensorType],
    window: Window,
    groups: int,
    how: Arithmetic,
) -> Call:
    """Return the kernel call of a convolution in any number of dimensions, as plain loops (kernel conv_direct).

    Args:
        operands: Buffers by role.
        types: Types of x, weights and y, channels first.
        window: Strides, dilations and padding.
        groups: Number of groups of channels.
        how: Number format of the sums and results.
    """
    x, w, y = types
    kernel = w.shape[2:]
    channels = ChannelGroups(
        batch=x.shape[0], groups=groups, group_in_channels=w.shape[1], group_out_channels=y.shape[1] // groups
    )
    planes = FilterPlanes(x_plane_size=math.prod(x.shape[2:]), filter_taps=math.prod(kernel))
    walk = WindowWalk.of(window, x.shape[2:], y.shape[2:], kernel)
    options = DirectOptions(
        acc_t=how.acc,
        x_t=x.dtype.c,
        w_t=w.dtype.c,
        y_t=y.dtype.c,
        rank=len(kernel),
        bias="bias" in operands,
        integer=isinstance(how.params, ZeroStep),
        clamp=isinstance(how.params, RealLimits),
        shift=how.shift,
    )
    params = [
        *filter(None, [how.params]),
        channels,
        planes,
        walk,
        FilterStrides(w_stride=outer_strides("w_stride", kernel)),
    ]
    variant = f"{len(kernel)}d_{x.dtype.tag}" + (f"_{w.dtype.tag}" if w.dtype is not x.dtype else "")
    return Call(CONV_DIRECT, operands, params, [options], variant=variant)


# ------------------------------------------------------------------------------------------------------ dense


class DenseDirectOptions(Options):
    """Template options of a fully connected layer whose weights are not constant: computed, or trained on the device.

    Int8 weights (`codes`) have a scale for each output channel, by which sums are multiplied.
    """

    bias: Annotated[bool, "whether sums begin with a bias"]
    has_tail_channels: Annotated[bool, "whether the number of channels is not a multiple of four"]
    codes: Annotated[bool, "whether weights are int8, and sums are scaled by channel"]


DENSE_DIRECT = Kernel(
    "dense_direct",
    what="a fully connected layer whose weights are computed or trained: four channels at a time, weights not packed",
    operands=(
        reads("x", "input", DType.FLOAT32),
        reads("w", "weights, a row for each output channel", DType.FLOAT32, DType.INT8),
        reads("scale", "scale of int8 weights, by output channel", DType.FLOAT32, optional=True),
        reads("bias", "bias by output channel", DType.FLOAT32, optional=True),
        writes("y", "output", DType.FLOAT32),
    ),
    params=(DenseSizes,),
    options=(DenseDirectOptions,),
    example="""<ir_version: 10, opset_import: ["": 21]>
    net (float[1, 9] x, float[8, 9] v, float[6, 8] w, float[6] b) => (float[1, 6] y)
    { h = Gemm<transB = 1>(x, v)  y = Gemm<transB = 1>(h, w, b) }""",
)
"""Kernel of float fully connected layers whose weights are not constant."""


def dense_call(operands: Mapping[str, Buffer], rows: int, depth: int, channels: int) -> Call:
    """Return the kernel call of a fully connected layer whose weights are not constant (kernel dense_direct).

    Args:
        operands: Buffers by role: x, w, y and perhaps bias; also `scale` if weights are int8.
        rows: Rows of x and y.
        depth: Elements of a row of x.
        channels: Elements of a row of y.
    """
    codes = "scale" in operands
    options = DenseDirectOptions(
        bias="bias" in operands, has_tail_channels=channels % INTERLEAVED_ROWS != 0, codes=codes
    )
    params, variant = [DenseSizes(rows=rows, depth=depth, out_channels=channels)], "f32_w8" if codes else "f32"
    return Call(DENSE_DIRECT, operands, params, [options], variant=variant)


# --------------------------------------------------------------------------------------- transposed convolution


class SpreadPlanes(Params):
    """Kernel parameters of a transposed convolution, channels first: sizes of a channel of x, y and filter."""

    x_plane_size: Annotated[int, "elements of a channel of x"]
    y_plane_size: Annotated[int, "elements of a channel of y"]
    filter_taps: Annotated[int, "weights of a filter per channel"]


class OutputStrides(ByAxis):
    """Kernel parameters of a transposed convolution with the strides of y along its spatial axes."""

    y_stride: Annotated[Mapping[str, int], "elements of y from one index along the axis to the next"]


class SpreadOptions(Options):
    """Template options of a transposed convolution in any number of axes, or of the ONNX operator Col2Im.

    Col2Im (`columns`) adds up blocks that overlap in y, as a transposed convolution does with the products of each
    input element and all taps. Its input holds these products, so that there are no weights.
    """

    x_t: Annotated[str, "C type of the input"]
    w_t: Annotated[str, "C type of the weights"]
    y_t: Annotated[str, "C type of the output, and of sums"]
    rank: Annotated[int, "spatial axes"]
    bias: Annotated[bool, "whether sums begin with a bias"]
    columns: Annotated[bool, "whether x holds the products of each tap, so that there are no weights"]
    clamp: Annotated[bool, "whether results are limited"]
    scale: Annotated[bool, "whether weights are multiplied by the scale of their output channel"]


DIRECT_CONV_TRANSPOSE = Kernel(
    "conv_transpose",
    what="a transposed convolution in any number of dimensions, channels first; or a sum of overlapping blocks",
    operands=(
        reads("x", "input, channels first", *_FLOATS, DType.INT16),
        reads("w", "filters", *_FLOATS, DType.FLOAT16, DType.INT8, optional=True),
        reads("scale", "scale of int8 filters of a float layer, by output channel", DType.FLOAT32, optional=True),
        reads("bias", "bias by output channel", *_FLOATS, optional=True),
        writes("y", "output, channels first", *_FLOATS, DType.INT32),
    ),
    params=(ChannelGroups, RealLimits, SpreadPlanes, WindowWalk, OutputStrides),
    optional=(RealLimits,),
    options=(SpreadOptions,),
)
"""Kernel of float transposed convolutions in any number of axes, and of Col2Im."""


def spread_call(
    operands: Mapping[str, Buffer],
    window: Window,
    spaces: tuple[Shape, Shape, Shape],
    channels: ChannelGroups,
    clamp: Range | None = None,
) -> Call:
    """Return the kernel call of a transposed convolution in any number of dimensions, or of the ONNX operator Col2Im.

    Args:
        operands: Buffers by role: x, w, y and perhaps scale and bias. Without w, x holds the products of its elements
            and the taps, which are only added up (Col2Im).
        window: Strides, dilations and padding.
        spaces: Spatial sizes of x, y and the kernel.
        channels: Number of images, and groups of channels.
        clamp: Range that float results are clamped to; None without a clamp.
    """
    dtype, (space, out, kernel) = operands["y"].dtype, spaces
    x_t, w_t = (operands.get(role, operands["y"]).dtype.c for role in ("x", "w"))
    planes = SpreadPlanes(x_plane_size=math.prod(space), y_plane_size=math.prod(out), filter_taps=math.prod(kernel))
    limits = [RealLimits.of(clamp, dtype)] if clamp else []
    walk, strides = WindowWalk.of(window, space, out, kernel), OutputStrides(y_stride=outer_strides("y_stride", out))
    options = SpreadOptions(
        x_t=x_t,
        w_t=w_t,
        y_t=dtype.c,
        rank=len(kernel),
        bias="bias" in operands,
        columns="w" not in operands,
        clamp=bool(clamp),
        scale="scale" in operands,
    )
    params = [channels, *limits, planes, walk, strides]
    ordered = {role: operands[role] for role in ("x", "w", "scale", "bias", "y") if role in operands}
    variant = f"{len(kernel)}d_{dtype.tag}"
    if "w" in operands and operands["w"].dtype.is_narrow_float:
        variant += "_f16"
    elif "scale" in operands:
        variant += "_w8"
    return Call(DIRECT_CONV_TRANSPOSE, ordered, params, [options], variant=variant)
