# SPDX-License-Identifier: Apache-2.0
"""Kernels of resampling: nearest, linear along one or two axes, and by tables of weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from mcugen.hir.types import DType
from mcugen.kernels.common.strided_loops import AxisWalk
from mcugen.lir.kernel import ByAxis, Kernel, Options, Params, Trained, reads, writes

# -------------------------------------------------------------------------------------------------- nearest


class NearestRun(Params):
    """Kernel parameter of nearest-neighbour resizing: number of adjacent elements that are copied together.

    They are the elements at one index of all resized axes, along the axes behind these.
    """

    run_size: Annotated[int | None, "elements that are adjacent in x and y"] = None


class NearestAxes(ByAxis):
    """Kernel parameters of nearest-neighbour resizing: loops over y, one set for each loop.

    A loop covers a resized axis, whose indices in x come from a table, or several adjacent axes that keep their sizes.
    """

    count: Annotated[Mapping[str, int], "trip count of this loop"]
    stride: Annotated[Mapping[str, int], "stride of x in this loop, in elements"]
    places: Annotated[
        Mapping[str, int], "entries of x along this axis, if it has an index table: other indices count as 0"
    ]


class NearestOptions(Options):
    """Template options of nearest-neighbour resizing: element type, loops, and whether single elements are copied.

    An index table has, for each index of y along a resized axis, the index in x. A run is adjacent elements that are
    copied together, along the axes behind the last resized one.
    """

    x_t: Annotated[str, "C type of the elements"]
    axes: Annotated[list[str], "operand role of the index table of each loop; empty if the axis keeps its size"]
    depth: Annotated[int, "number of loops"]
    run: Annotated[bool, "whether runs are copied instead of elements"]


RESIZE_NEAREST = Kernel(
    "resize_nearest",
    what="for each position of an axis, the element at the index that a table has",
    operands=(
        reads("x", "input"),
        reads("index", "index in x of each position along an axis", optional=True, several=True),
        writes("y", "output"),
    ),
    params=(NearestRun, NearestAxes),
    options=(NearestOptions,),
)
"""Kernel of nearest-neighbour resizing along any axes."""

# --------------------------------------------------------------------------------------------------- linear


class LinearWalk(Params):
    """Kernel parameters of linear interpolation along one or two axes of x, called `first` and `last`.

    x and y are seen as [outer][first][middle][last][inner]; with one interpolated axis, as [outer][last][inner]. For
    each entry of an interpolated axis of y, a table has the position of the lower one of two neighbours along this axis
    of x.
    """

    outer_size: Annotated[int, "blocks of x"]
    x_block_size: Annotated[int, "elements of a block of x"]
    inner_size: Annotated[int, "elements from entry to entry of the last axis"]
    last_out_size: Annotated[int, "entries of the last axis of y"]
    last_step: Annotated[int, "elements to the next entry of the last axis of x; 0 if it has one entry"]
    last_positions: Annotated[int, "entries of x along the last axis; other positions in the table count as 0"]
    first_out_size: Annotated[int | None, "entries of the first axis of y"] = None
    first_stride: Annotated[int | None, "elements from entry to entry of the first axis of x"] = None
    first_step: Annotated[int | None, "elements to the next entry of the first axis of x; 0 if it has one entry"] = None
    first_positions: Annotated[
        int | None, "entries of x along the first axis; other positions in the table count as 0"
    ] = None
    middle_size: Annotated[int | None, "blocks between the first and the last axis"] = None
    middle_stride: Annotated[int | None, "elements of x from middle block to middle block"] = None


class LinearOptions(Options):
    """Template option of linear interpolation: whether two axes are interpolated, not one."""

    pair: Annotated[bool, "whether there are two axes"]


class Rescaling(Params):
    """Kernel parameters that requantize the weighted sum of quantized values in linear interpolation.

    y = ((sum − x_zero_point) · multiplier / 2^32 + requantize_offset) >> upper_word_fraction_bits.
    """

    multiplier: Annotated[Trained, "scale of x / scale of y, Q0.31 or more fraction bits"]
    requantize_offset: Annotated[Trained, "zero point of y plus one half, at the scale of the upper word of a product"]
    upper_word_fraction_bits: Annotated[Trained, "fraction bits of the upper word of a product, at least 1"]
    x_zero_point: Annotated[Trained | None, "zero point of x at the scale of sums; 0 for 16 bits"] = None


class CodesOptions(LinearOptions):
    """Template options of linear interpolation of quantized values: output type, limits, precision of weights.

    A weight is the share of a neighbour in an interpolated element, in fixed point.
    """

    y_t: Annotated[str, "C type of y"]
    low: Annotated[int, "lowest quantized value of y"]
    high: Annotated[int, "highest quantized value of y"]
    fine: Annotated[bool, "whether weights have 23 fraction bits, instead of 15"]


class ResizedRowOptions(Options):
    """Template options of linear interpolation of quantized values with Helium or the DSP extension, row by row.

    In the kernel's tables, positions in x then have 16 bits.
    """

    gathers: Annotated[bool, "whether inner_size is 1, so that Helium gathers single elements"] = False
    words: Annotated[bool, "whether rows are interpolated by the DSP extension"] = False
    narrow_channels: Annotated[
        int, "channels of a pixel if these are fewer than a word; 0: four channels at a time"
    ] = 0
    has_tail_channels: Annotated[bool, "whether the number of channels is not a multiple of four"] = False


_A = "of the first of two axes"
_OPERANDS = (
    reads("x", "input"),
    reads("a_low", f"lower position in x, {_A}", optional=True),
    reads("a_weight", f"weight of the entry after it, {_A}", optional=True),
    reads("b_low", "lower position in x, of the last axis"),
    reads("b_weight", "weight of the entry after it"),
    writes("y", "output"),
)


def _linear_int(name: str) -> Kernel:
    return Kernel(
        name,
        what="linear interpolation of quantized values in fixed point, with one rounding",
        operands=_OPERANDS,
        params=(LinearWalk, Rescaling),
        options=(CodesOptions, ResizedRowOptions),
    )


RESIZE_LINEAR = {
    DType.FLOAT32: Kernel(
        "resize_linear_f32",
        what="linear interpolation along one axis or two at once",
        operands=_OPERANDS,
        params=(LinearWalk,),
        options=(LinearOptions,),
    ),
    DType.INT8: _linear_int("resize_linear_s8"),
    DType.INT16: _linear_int("resize_linear_s16"),
}
"""Kernels of linear interpolation, by type of x."""


class LinearLaneOptions(LinearOptions):
    """Template options of linear interpolation whose weights have few fraction bits, such as sixteenths.

    A weight is the share of a neighbour in an interpolated element. Sums of int8 values times such weights fit 16 bits,
    so that two channels are computed in a word, or eight in a vector.
    """

    a_bits: Annotated[int, "fraction bits of the weights of the first of two axes"]
    b_bits: Annotated[int, "fraction bits of the weights of the last axis"]
    same: Annotated[bool, "whether x and y have the same scale and zero point: sums are rounded, not requantized"]


MAX_LANE_FRACTION_BITS = 8
"""Largest number of fraction bits of products of two weights, so that weighted sums of int8 values fit 16 bits."""

RESIZE_LINEAR_LANES = Kernel(
    "resize_linear_s8_lanes",
    what="exact linear interpolation of int8 values by weights of few bits: two channels per word, eight per vector",
    operands=_OPERANDS,
    params=(LinearWalk, Rescaling),
    optional=(Rescaling,),
    options=(LinearLaneOptions,),
    example="""<ir_version: 10, opset_import: ["": 21]>
net (int8[1, 4, 5, 8] x) => (int8[1, 8, 10, 8] y)
<float s = {0.05}, int8 z = {3}, float[4] scales = {1.0, 2.0, 2.0, 1.0}> {
  real = DequantizeLinear(x, s, z)
  large = Resize<mode = "linear">(real, , scales)
  y = QuantizeLinear(large, s, z)
}""",
)
"""Kernel of exact linear interpolation of int8 images whose interpolation weights have few fraction bits."""

# -------------------------------------------------------------------------------------------------- weights


class ResampleParams(Params):
    """Kernel parameters of resampling along one axis by a table of weights: sizes of y and of the table.

    y[j] = sum over k of w[j, k] · x[start[j] + k], for `taps` weights k of each entry j.
    """

    out_size: Annotated[int, "entries of y along the axis"]
    taps: Annotated[int, "weights of each entry of y"]
    num_starts: Annotated[int, "number of possible first neighbours; other values in the table count as 0"]


class ResampleOptions(Options):
    """Template option of resampling by a table of weights: the element type."""

    t: Annotated[str, "C type of the elements"]


RESAMPLE = Kernel(
    "resample",
    what="weighted sums of adjacent entries along one axis by a table of weights, for any interpolation",
    operands=(
        reads("x", "input", DType.FLOAT32, DType.FLOAT64),
        reads("start", "first entry of x that each entry of y reads"),
        reads("w", "weights of the entries that each entry of y reads"),
        writes("y", "output"),
    ),
    params=(AxisWalk, ResampleParams),
    options=(ResampleOptions,),
)
"""Kernel of float resampling along one axis, with any interpolation (a table of weights for each output)."""
