# SPDX-License-Identifier: Apache-2.0
"""Kernels of pools, of means from sums of rows, and of unpooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType, Shape, TensorType
from mcugen.kernels.common.strided_loops import WindowWalk
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import SHORT_LOOPS, ByAxis, Call, Kernel, Options, Params, Real, Trained, reads, updates, writes
from mcugen.lir.program import Overlap, Wide
from mcugen.lir.traversal import Traversal, nested_positions, overlap
from mcugen.numerics.fixedpoint import Requantizer
from mcugen.numerics.tflite_arithmetic import AwayMean
from mcugen.numerics.window import Window


class WindowGeometry(Params):
    """Kernel parameters of a pool: sizes, strides and padding of a window that slides over rows and pixels.

    Tensors are channels last; with one spatial axis there is one row.
    """

    batch: Annotated[int, "images"]
    channels: Annotated[int, "elements of a pixel"]
    in_height: Annotated[int, "rows of x"]
    in_width: Annotated[int, "pixels of a row of x"]
    out_height: Annotated[int, "rows of y"]
    out_width: Annotated[int, "pixels of a row of y"]
    kernel_height: Annotated[int, "rows of the window"]
    kernel_width: Annotated[int, "columns of the window"]
    stride_height: Annotated[int, "rows from window to window"]
    stride_width: Annotated[int, "pixels from window to window"]
    padding_top: Annotated[int, "rows above x that the first window begins at"]
    padding_left: Annotated[int, "pixels before a row that the first window begins at"]


class DilationParams(Params):
    """Kernel parameters of dilated pool windows: dilation, and channels of a pixel if the layer covers only some.

    A layer covers only some channels if its channels are divided between two cores.
    """

    dilation_height: Annotated[int | None, "rows from tap to tap"] = None
    dilation_width: Annotated[int | None, "pixels from tap to tap"] = None
    pixel_channels: Annotated[
        int | None, "channels of a pixel of x and y in memory, if the layer computes only some of them"
    ] = None


@dataclass(frozen=True, eq=False)
class PoolSpec:
    """A pooling layer as its kernels see it: types, window and layout.

    Attributes:
        x: Type of the input, [N, (H,) W, C].
        y: Type of the output, [N, (H,) W, C].
        window: Strides, dilations and padding of the window.
        kernel: Number of taps of the window along each spatial axis.
        is_channels_last: Whether channels are the last axis of x and y.
        whole: Channels of a pixel of x and y in memory if the layer covers only some of them; None if it covers all.
    """

    x: TensorType
    y: TensorType
    window: Window
    kernel: Shape
    is_channels_last: bool = True
    whole: int | None = None

    @cached_property
    def geometry(self) -> WindowGeometry:
        """Return the sizes, strides and padding of the window as kernel parameters.

        With one spatial axis there is one row.
        """
        axes: dict[tuple[str, str], tuple[Sequence[int], int]] = {
            ("in_height", "in_width"): (self.x.shape[1:-1], 1),
            ("out_height", "out_width"): (self.y.shape[1:-1], 1),
            ("kernel_height", "kernel_width"): (self.kernel, 1),
            ("stride_height", "stride_width"): (self.window.strides, 1),
            ("padding_top", "padding_left"): (self.window.before, 0),
        }
        sizes: dict[str, int] = {}
        for (rows, columns), (values, missing) in axes.items():
            sizes[rows], sizes[columns] = values if len(values) == 2 else (missing, values[0])
        return WindowGeometry(batch=self.x.shape[0], channels=self.x.shape[-1], **sizes)

    @property
    def is_dilated(self) -> bool:
        """Return whether the window is dilated."""
        return max(self.window.dilations) > 1

    @property
    def dilation_params(self) -> DilationParams:
        """Return the kernel parameters of dilated windows, and of pixels with more channels than the layer covers."""
        by_h, by_w = (1, *self.window.dilations)[-2:] if self.is_dilated else (None, None)
        return DilationParams(dilation_height=by_h, dilation_width=by_w, pixel_channels=self.whole)

    def is_inside(self, any_size: bool) -> bool:
        """Return whether every window is known to be inside the input, so that no padding is read.

        Args:
            any_size: Whether sizes are known at run time only; the result is then False.
        """
        return not (any_size or self.window.leaves(self.x.shape[1:-1], self.kernel))

    def overlaps(self) -> list[Overlap]:
        """Return how far y may overlap x in memory, for the memory planner.

        The kernel is assumed to compute four channels of a pixel at a time. The list is empty if no overlap is allowed.
        """
        g, (by_h, by_w) = self.geometry, (1, *self.window.dilations)[-2:]
        rows = first_taps(g.out_height, g.stride_height, g.padding_top, by_h)
        columns = first_taps(g.out_width, g.stride_width, g.padding_left, by_w)
        pixels = nested_positions(np.arange(g.batch) * g.in_height * g.in_width, rows * g.in_width, columns)
        return overlap(self.x, self.y, Traversal.pixels(pixels * g.channels, g.channels, block=4))

    def variant(self, inside: bool) -> str:
        """Return the part of the C function's name that describes the window: dilated, inside, some of the channels.

        Args:
            inside: Whether no window extends beyond x.
        """
        return "_".join(["dilated"] * self.is_dilated + ["inside"] * inside + ["some"] * (self.whole is not None))


def first_taps(out: int, stride: int, pad: int, dilation: int) -> Array:
    """Return, for each output along an axis, the first position inside the input that its window reads, int [out].

    Args:
        out: Number of output positions along the axis.
        stride: Stride of the window.
        pad: Number of positions of padding before the input.
        dilation: Dilation of the window.
    """
    start = np.arange(out) * stride - pad
    return np.where(start < 0, start % dilation, start)


# ------------------------------------------------------------------------------------------------- maxima


class MaxOptions(Options):
    """Template options of a maximum pool: dilation, whether windows stay inside x, and element type."""

    dilated: Annotated[bool, "whether the window is dilated"]
    windows_inside: Annotated[bool, "whether no window leaves x"]
    x_t: Annotated[str, "C type of the elements"]


_POOL_OF_UINT16 = """<ir_version: 10, opset_import: ["": 21]>
example (uint16[1, 5, 6, 7] x) => (uint16[1, 5, 3, 4] y)
<float scale = {0.01}, uint16 zero = {30000}> {
  real = DequantizeLinear(x, scale, zero)
  largest = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(real)
  y = QuantizeLinear(largest, scale, zero)
}"""
"""Model that uses max_pool_u16: no MaxPool of ONNX has this element type."""


def _max_pool(name: str, *dtypes: DType, example: str = "") -> Kernel:
    return Kernel(
        name,
        what="the largest element under each window, channel by channel, four or more channels at a time",
        operands=(reads("x", "input, channels last", *dtypes), writes("y", "output, channels last", *dtypes)),
        params=(WindowGeometry, DilationParams),
        options=(MaxOptions,),
        example=example,
    )


_MAX_POOLS = (
    _max_pool("max_pool_f32", DType.FLOAT32),
    _max_pool("max_pool_s8", DType.INT8, DType.INT4, DType.INT2),
    _max_pool("max_pool_s16", DType.INT16),
    _max_pool("max_pool_u8", DType.UINT8, DType.UINT4, DType.UINT2),
    _max_pool("max_pool_u16", DType.UINT16, example=_POOL_OF_UINT16),
)
"""Kernels of maximum pools; integers of fewer than 8 bits take a byte each."""

MAX_POOL = {dtype: kernel for kernel in _MAX_POOLS for dtype in kernel.operands[0].types}
"""Kernels of maximum pools by element type."""


def call_max_pool(node: Node, builder: Builder, pool: PoolSpec) -> None:
    """Emit the kernel call of a maximum pool.

    Args:
        node: Node to lower.
        builder: Builder that receives the instruction.
        pool: Types and window of the pool.
    """
    inside = pool.is_inside(builder.any_size)
    call = Call(
        MAX_POOL[pool.y.dtype],
        {"x": builder.buffer(node.input(0)), "y": builder.buffer(node.output)},
        [pool.geometry, pool.dilation_params],
        [MaxOptions(dilated=pool.is_dilated, windows_inside=inside, x_t=pool.x.dtype.c)],
        overlaps=pool.overlaps(),
        variant=pool.variant(inside),
    )
    builder.call(node, call)


# ------------------------------------------------------------------------------------------------- means


class CountedPadding(Params):
    """Kernel parameters of an average pool whose divisor counts some taps in the padding, as zeros.

    They are the height and the width of x with the part of the padding whose taps count. They are None if no padding
    counts, or all windows have the same divisor.
    """

    counted_height: Annotated[
        int | None, "rows from the first row above x whose taps count to the last one below x"
    ] = None
    counted_width: Annotated[
        int | None, "pixels from the first one before a row of x whose taps count to the last one behind it"
    ] = None


class FloatMean(Params):
    """Kernel parameter of a mean of floats: 1 / number of taps; None if windows have different numbers."""

    scale: Annotated[float | None, "1 / number of taps, if all windows have the same number"] = None


class QuantizedMean(Params):
    """Kernel parameters that requantize a sum of quantized values to their quantized mean, with one rounding.

    If the number of summed elements varies, the multipliers are an operand of the kernel, and `multiplier` is None.
    """

    x_zero_point: Annotated[Trained, "zero point of x; 0 if means are rounded half away from zero"]
    y_zero_point: Annotated[Trained, "zero point of y"]
    requantize_offset: Annotated[
        Wide, "y_zero_point plus one half, at the scale of a product of a sum and a multiplier"
    ]
    multiplier: Annotated[
        Trained | None,
        "scale of x / scale of y / number of taps, times 2^shift, or the number of taps if means are rounded half away"
        " from zero; in a table if the number of taps varies",
    ] = None

    @staticmethod
    def of(requantize: Requantizer, x: TensorType, fixed: bool) -> QuantizedMean:
        """Return the parameters of a mean of quantized values.

        Args:
            requantize: Requantization of sums to means.
            x: Type of x.
            fixed: Whether all means have the same number of elements, so that there is a single multiplier.
        """
        multiplier = int(requantize.multiplier[0]) if fixed else None
        offset = Wide(requantize.offset)
        return QuantizedMean(
            x_zero_point=0 if isinstance(requantize, AwayMean) else x.q.zero_point,
            y_zero_point=requantize.zero_point,
            requantize_offset=offset,
            multiplier=multiplier,
        )


class AverageOptions(Options):
    """Template options of an average pool: dilation, divisor, and whether windows stay inside x.

    The divisor is the number of taps (elements under the window) that count in a mean.
    """

    dilated: Annotated[bool, "whether the window is dilated"]
    divisor: Annotated[str, "fixed: always the same; inside: number of taps in x; padded: of taps in x and padding"]
    windows_inside: Annotated[bool, "whether no window leaves x"]


class PoolSumOptions(Options):
    """Template options of the sums of an average pool of quantized values: size of sums, and unrolling.

    `single_block` is set under the tuning flag SHORT_LOOPS, which saves code.
    """

    sums_fit_16_bits: Annotated[bool, "whether sums fit 16 bits"]
    centered_sums_fit_16_bits: Annotated[bool, "whether sums less their zero points fit 16 bits too"]
    single_block: Annotated[bool, "whether only one block of channels is unrolled (SHORT_LOOPS)"]


class MeanOptions(Options):
    """Template options of the rounding of sums of quantized values to quantized means, half to even.

    A mean is the product of a sum and a multiplier with `shift` fraction bits.
    """

    y_t: Annotated[str, "C type of the means"]
    low: Annotated[int, "lowest quantized value of y"]
    high: Annotated[int, "highest quantized value of y"]
    shift: Annotated[int, "fraction bits of a product"]
    left_shift: Annotated[int, "left shift of a sum, after which the mean is the high word of its product"]
    ties_matter: Annotated[bool, "whether rounding half to even matters"]
    uses_upper_word: Annotated[
        bool, "whether sums shifted left fit 32 bits, so that the high word of a product is the mean"
    ]
    rounds_away: Annotated[bool, "whether means are quotients, rounded half away from zero as TensorFlow Lite does"]
    fits_32_bits: Annotated[bool, "whether results fit 32 bits before they are limited"]

    @staticmethod
    def of(requantize: Requantizer, area: int, x: DType, y: DType) -> MeanOptions:
        """Return the options for means of quantized values: limits of results, shifts, and which shortcuts are exact.

        Args:
            requantize: Requantization of sums to means.
            area: Largest number of elements of a sum.
            x: Element type of x.
            y: Element type of the means.
        """
        low, high = y.limits
        largest, up = area * 2 ** (8 * x.nbytes), 32 - requantize.shift
        max_product = largest * int(requantize.multiplier.max()) + abs(requantize.offset)
        return MeanOptions(
            y_t=y.c,
            low=low,
            high=high,
            shift=requantize.shift,
            left_shift=up,
            ties_matter=may_tie(requantize, largest),
            rounds_away=isinstance(requantize, AwayMean),
            uses_upper_word=up >= 0 and largest << up < 2**31,
            fits_32_bits=max_product >> requantize.shift < 2**31,
        )

    def of_any_size(self) -> MeanOptions:
        """Return options that hold for all sizes, for a pool whose sizes are known at run time only.

        They assume that ties occur, and that neither shifted sums nor results are known to fit 32 bits.
        """
        return replace(self, ties_matter=True, uses_upper_word=False, fits_32_bits=False)


def may_tie(requantize: Requantizer, largest: int) -> bool:
    """Return whether the exact mean for some sum is halfway between two results, so that rounding half to even matters.

    A tie needs enough factors of 2 in the product of the sum and a multiplier.

    Args:
        requantize: Requantization of sums to means.
        largest: Largest magnitude of a sum.
    """
    twos = max(int(m & -m).bit_length() - 1 for m in requantize.multiplier)
    return twos + largest.bit_length() - 1 >= requantize.shift - 1


AVERAGE_POOL_F32 = Kernel(
    "average_pool_f32",
    what="the mean of the elements under each window, channel by channel",
    operands=(
        reads("x", "input, channels last", DType.FLOAT32),
        writes("y", "output, channels last", DType.FLOAT32),
    ),
    params=(WindowGeometry, DilationParams, CountedPadding, FloatMean),
    options=(AverageOptions,),
)
"""Kernel of average pools of floats."""


def _average_pool(name: str, dtype: DType) -> Kernel:
    return Kernel(
        name,
        what="the mean of the values under each window, channel by channel: exact sums, one rounding, half to even",
        operands=(
            reads("x", "input, channels last", dtype),
            reads("multiplier", "the multiplier for each number of taps, from 1 on", DType.INT32, optional=True),
            writes("y", "output, channels last", DType.INT8, DType.INT16),
        ),
        params=(WindowGeometry, DilationParams, CountedPadding, QuantizedMean),
        options=(AverageOptions, PoolSumOptions, MeanOptions),
    )


AVERAGE_POOL = {
    DType.INT8: _average_pool("average_pool_s8", DType.INT8),
    DType.INT16: _average_pool("average_pool_s16", DType.INT16),
}
"""Kernels of average pools of quantized values, by input type."""


@dataclass(frozen=True, eq=False, kw_only=True)
class AverageSpec(PoolSpec):
    """An average pool as its kernels see it: types, window, and how the divisor is found.

    Attributes:
        divisor: How many taps the sum of a window is divided by: "fixed" (the same number in each window), "inside"
            (the taps in x) or "padded" (the taps in x and in counted padding).
        requantize: Requantization of sums to means: one multiplier for each possible number of taps, or a single one if
            the divisor is fixed; None for floats.
        counted: Kernel parameters with the padding whose taps count as elements in the divisor of the average.
        taps: Number of taps that count in each window, if the divisor is fixed.
        counts_padding: Whether taps in the padding count as elements in the divisor of the average.
    """

    divisor: str
    requantize: Requantizer | None
    counted: CountedPadding = field(default_factory=CountedPadding)
    taps: int = 0
    counts_padding: bool = False

    @property
    def is_fixed(self) -> bool:
        """Return whether the same number of taps counts in each window."""
        return self.divisor == "fixed"

    def variants(self, inside: bool) -> list[str]:
        """Return the parts of the C function's name that describe window and divisor.

        Args:
            inside: Whether no window extends beyond x.
        """
        window = self.variant(inside)
        return [window] * bool(window) + [self.divisor] * (not self.is_fixed)

    def options(self, inside: bool) -> AverageOptions:
        """Return the template options that describe the window and the divisor of the mean.

        Args:
            inside: Whether no window extends beyond x.
        """
        return AverageOptions(dilated=self.is_dilated, divisor=self.divisor, windows_inside=inside)


def call_average_pool(node: Node, builder: Builder, pool: AverageSpec) -> None:
    """Emit the kernel call of an average pool.

    Args:
        node: Node to lower.
        builder: Builder that receives the instruction.
        pool: Types, window and divisor of the pool.
    """
    if pool.requantize is not None:
        return _call_average_of_codes(node, builder, pool, pool.requantize.for_high_word())
    inside, mean = pool.is_inside(builder.any_size), FloatMean(scale=1.0 / pool.taps if pool.is_fixed else None)
    call = Call(
        AVERAGE_POOL_F32,
        {"x": builder.buffer(node.input(0)), "y": builder.buffer(node.output)},
        [pool.geometry, pool.dilation_params, pool.counted, mean],
        [pool.options(inside)],
        overlaps=pool.overlaps(),
        variant="_".join(pool.variants(inside)),
    )
    builder.call(node, call)


def _call_average_of_codes(node: Node, builder: Builder, pool: AverageSpec, requantize: Requantizer) -> None:
    x, y, inside = pool.x.dtype, pool.y.dtype, pool.is_inside(builder.any_size)
    operands = {"x": builder.buffer(node.input(0))}
    if not pool.is_fixed:
        table = requantize.multiplier.astype(np.int32)
        operands["multiplier"] = builder.const(f"{node.output.name}.multiplier", table)
    operands["y"] = builder.buffer(node.output)
    area = pool.geometry.kernel_height * pool.geometry.kernel_width
    few, fewer = (area < area_limit and not builder.any_size for area_limit in (2**8, 2**7))
    mean = MeanOptions.of(requantize, area, x, y)
    mean = mean.of_any_size() if builder.any_size else mean
    ties = ["away" if mean.rounds_away else "even"] * mean.ties_matter
    variant = pool.variants(inside) + ties + ["many"] * (not few and x is DType.INT8)
    call = Call(
        AVERAGE_POOL[x],
        operands,
        [pool.geometry, pool.dilation_params, pool.counted, QuantizedMean.of(requantize, pool.x, pool.is_fixed)],
        [
            pool.options(inside),
            PoolSumOptions(
                sums_fit_16_bits=few, centered_sums_fit_16_bits=fewer, single_block=SHORT_LOOPS in builder.features
            ),
            mean,
        ],
        overlaps=pool.overlaps(),
        variant="_".join(variant + [f"to_{y.tag}"] * (x is not y)),
    )
    builder.call(node, call)


# ------------------------------------------------------------------------------------- means by rows


class RowSize(Params):
    """Kernel parameters of a sum by channel over rows of an image: number of pixels, and channels of a pixel."""

    pixels: Annotated[int, "pixels of all rows"]
    channels: Annotated[int, "elements of a pixel"]


ACCUMULATE_ROWS = Kernel(
    "accumulate_rows_s8",
    what="adds the values of pixels, of one or several rows, to one sum per channel",
    operands=(reads("x", "pixels", DType.INT8), updates("acc", "a sum per channel", DType.INT32)),
    params=(RowSize,),
)
"""Kernel that adds rows of quantized values to sums by channel, for means that are computed row by row."""


class SumsSize(Params):
    """Kernel parameters of means from sums: number of sums, one per channel, and of values in each."""

    channels: Annotated[int, "sums, one per channel"]
    pixels_per_sum: Annotated[int, "quantized values that each sum adds up"]


AVERAGE_OF_SUMS = Kernel(
    "average_of_sums_s8",
    what="the mean of each channel from the sum of its values: one rounding, half to even",
    operands=(
        reads("acc", "a sum per channel", DType.INT32),
        writes("y", "a mean per channel", DType.INT8, DType.INT16),
    ),
    params=(SumsSize, QuantizedMean),
    options=(MeanOptions,),
)
"""Kernel that rounds sums by channel to quantized means."""


def call_row_sums(node: Node, builder: Builder) -> None:
    """Emit the call that adds the quantized values of one more row (input 0) to the sums by channel.

    The node's output holds the sums, which are updated in place.
    """
    x = node.input(0)
    channels = x.type.shape[-1]
    operands = {"x": builder.buffer(x), "acc": builder.buffer(node.output)}
    size = RowSize(pixels=x.type.count // channels, channels=channels)
    builder.call(node, Call(ACCUMULATE_ROWS, operands, [size]))


def call_mean_of_sums(node: Node, builder: Builder, requantize: Requantizer, count: int, x: TensorType) -> None:
    """Emit the call that rounds sums of quantized values to means, as an average pool does.

    Args:
        node: Node to lower.
        builder: Builder that receives the instruction.
        requantize: Requantization of sums to means.
        count: Number of values in each sum.
        x: Type of the values.
    """
    y, requantize = node.output.type, requantize.for_high_word()
    operands = {"acc": builder.buffer(node.input(0)), "y": builder.buffer(node.output)}
    params = [SumsSize(channels=y.shape[-1], pixels_per_sum=count), QuantizedMean.of(requantize, x, fixed=True)]
    options = [MeanOptions.of(requantize, count, x.dtype, y.dtype)]
    builder.call(node, Call(AVERAGE_OF_SUMS, operands, params, options))


# --------------------------------------------------------------------------------- any number of axes


class PoolPlanes(Params):
    """Kernel parameters of a pool in any number of axes, channels first: number and size of the planes of x."""

    planes: Annotated[int, "images times channels"]
    x_plane_size: Annotated[int, "elements of a plane of x"]


class DirectParams(ByAxis):
    """Kernel parameters of a pool in any number of axes: counted padding, indices of maxima, and p of an Lp norm.

    Taps (elements under the window) in the padding may count as zeros in the divisor of a mean. Mappings hold one
    parameter for each axis, whose name ends with the number of the axis.
    """

    counted_before: Annotated[Mapping[str, int], "elements before x whose taps count"] = field(default_factory=dict)
    counted_end: Annotated[Mapping[str, int], "index after the last element whose tap counts"] = field(
        default_factory=dict
    )
    index_stride: Annotated[Mapping[str, int], "difference of the flat indices of adjacent elements along the axis"] = (
        field(default_factory=dict)
    )
    power: Annotated[Real | None, "p of an Lp norm"] = None
    root: Annotated[Real | None, "1 / p"] = None


class DirectPoolOptions(Options):
    """Template options of a pool in any number of axes: number of axes, function, types and results.

    `widens` says whether elements of the padding under a window count in the divisor of a mean.
    """

    rank: Annotated[int, "number of axes"]
    function: Annotated[str, "max, average or lp"]
    t: Annotated[str, "C type of the elements"]
    f: Annotated[str, "suffix of the functions of math.h for the type"]
    widens: Annotated[bool, "whether taps in the padding count"]
    indices: Annotated[bool, "whether the positions of maxima are an output"]
    p_norm: Annotated[int, "p, if it is 1 or 2, else 0"]


POOL_DIRECT = Kernel(
    "pool_direct",
    what="the largest element, mean or Lp norm under each window of any number of axes, element by element",
    operands=(
        reads("x", "input, channels first"),
        writes("y", "output"),
        writes("indices", "flat index of each maximum in x", DType.INT64, optional=True),
    ),
    params=(PoolPlanes, WindowWalk, DirectParams),
    options=(DirectPoolOptions,),
)
"""Kernel of pools that no other kernel computes: any number of axes, channels first, any pooling function."""


# ------------------------------------------------------------------------------------------------- unpooling


class UnpoolParams(Params):
    """Kernel parameters of MaxUnpool: numbers of elements of input and output."""

    count: Annotated[int, "elements of x"]
    y_size: Annotated[int, "elements of y"]


UNPOOL = Kernel(
    "unpool",
    what="zeros, and the elements of x at the given flat indices; indices outside y are ignored",
    operands=(
        reads("x", "elements to place"),
        reads("indices", "flat index of each in y", DType.INT64),
        writes("y", "output"),
    ),
    params=(UnpoolParams,),
)
"""Kernel that computes the ONNX operator MaxUnpool."""
