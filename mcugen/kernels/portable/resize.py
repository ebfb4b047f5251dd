# SPDX-License-Identifier: Apache-2.0
"""Kernels of resampling: nearest, linear along one or two axes, and by tables of weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from mcugen.hir.types import DType
from mcugen.kernels.common.strided_loops import AxisWalk
from mcugen.lir.kernel import ByAxis, Kernel, Options, Params, Trained, reads, writes

# -------------------------------------------------------------------------------------------------- nearest


@dataclass(frozen=True, kw_only=True)
class NearestRun(Params):
    """Size of a run that no index table concerns."""

    run_size: Annotated[int | None, "elements that are adjacent in x and y"] = None


@dataclass(frozen=True, kw_only=True)
class NearestAxes(ByAxis):
    """Loops over y."""

    d: Annotated[Mapping[str, int], "trips of this loop"]
    s: Annotated[Mapping[str, int], "elements of x from entry to entry of this axis"]
    places: Annotated[Mapping[str, int], "entries of x along this axis, where a table has places: others count as 0"]


@dataclass(frozen=True, kw_only=True)
class NearestOptions(Options):
    """Template options of the loops."""

    x_t: Annotated[str, "C type of the elements"]
    axes: Annotated[list[str], "by loop, the table of indices, or nothing where the axis stays"]
    depth: Annotated[int, "loops"]
    run: Annotated[bool, "whether runs are copied instead of elements"]


RESIZE_NEAREST = Kernel(
    "resize_nearest",
    what="the element at an index that a table has for each position of an axis",
    operands=(
        reads("x", "input"),
        reads("index", "places in x along an axis", optional=True, several=True),
        writes("y", "output"),
    ),
    params=(NearestRun, NearestAxes),
    options=(NearestOptions,),
)

# --------------------------------------------------------------------------------------------------- linear


@dataclass(frozen=True, kw_only=True)
class LinearWalk(Params):
    """Sizes of [outer][a][middle][b][inner], of which axes a and b are interpolated.

    With one axis, the sizes are those of [outer][b][inner].
    """

    outer_size: Annotated[int, "blocks of x"]
    x_block_size: Annotated[int, "elements of a block of x"]
    inner_size: Annotated[int, "elements from entry to entry of the last axis"]
    last_out_size: Annotated[int, "entries of the last axis of y"]
    last_step: Annotated[int, "elements to the next entry of the last axis of x; 0 if it has one entry"]
    last_positions: Annotated[int, "entries that the table of the last axis may refer to: other positions count as 0"]
    first_out_size: Annotated[int | None, "entries of the first axis of y"] = None
    first_stride: Annotated[int | None, "elements from entry to entry of the first axis of x"] = None
    first_step: Annotated[int | None, "elements to the next entry of the first axis of x; 0 if it has one entry"] = None
    first_positions: Annotated[
        int | None, "entries that the table of the first axis may refer to: other positions count as 0"
    ] = None
    middle_size: Annotated[int | None, "blocks between the first and the last axis"] = None
    middle_stride: Annotated[int | None, "elements from such block to block of x"] = None


@dataclass(frozen=True, kw_only=True)
class LinearOptions(Options):
    """Template option of linear interpolation."""

    pair: Annotated[bool, "whether there are two axes"]


@dataclass(frozen=True, kw_only=True)
class Rescaling(Params):
    """Parameters from the weighted sum of quantized values to y.

    y = ((sum - x_zero_point) · multiplier / 2^32 + offset) >> shift_more.
    """

    multiplier: Annotated[Trained, "scale of x / scale of y, Q0.31 or more fraction bits"]
    requantize_offset: Annotated[Trained, "zero point of y plus one half, at the scale of the upper word of a product"]
    upper_word_fraction_bits: Annotated[Trained, "fraction bits of the upper word of a product, at least 1"]
    x_zero_point: Annotated[Trained | None, "zero point of x at the scale of sums; 0 for 16 bits"] = None


@dataclass(frozen=True, kw_only=True)
class CodesOptions(LinearOptions):
    """Template options of linear interpolation of quantized values."""

    y_t: Annotated[str, "C type of y"]
    low: Annotated[int, "the least code"]
    high: Annotated[int, "the largest code"]
    fine: Annotated[bool, "whether weights have 23 bits behind the point, not 15"]


@dataclass(frozen=True, kw_only=True)
class ResizedRowOptions(Options):
    """Template options of rows of quantized values on CPUs with vectors or the DSP extension.

    Places have 16 bits then.
    """

    gathers: Annotated[bool, "whether entries of the last axis are elements, which Helium gathers"] = False
    words: Annotated[bool, "whether the DSP extension takes rows"] = False
    narrow_channels: Annotated[
        int, "channels of their pixels, if these fill no word; else 0: it takes four at a time"
    ] = 0
    has_tail_channels: Annotated[bool, "whether some are left then"] = False


_A = "of the first of two axes"
_OPERANDS = (
    reads("x", "input"),
    reads("a_low", f"places in x, {_A}", optional=True),
    reads("a_weight", f"what the entry behind it counts for, {_A}", optional=True),
    reads("b_low", "places in x, of the last axis"),
    reads("b_weight", "what the entry behind it counts for"),
    writes("y", "output"),
)


def _linear_int(name: str) -> Kernel:
    return Kernel(
        name,
        what="linear interpolation of codes in fixed point, with one rounding",
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


@dataclass(frozen=True, kw_only=True)
class LinearLaneOptions(LinearOptions):
    """Template options of linear interpolation with weights of few bits, such as sixteenths."""

    a_bits: Annotated[int, "bits of weights of the first of two axes behind the point"]
    b_bits: Annotated[int, "bits of weights of the last axis behind the point"]
    same: Annotated[bool, "whether codes of x and y mean the same: sums are rounded, not requantized"]


MOST_LANE_BITS = 8
"""Most bits behind the point of products of weights, so that sums of quantized values have 16 bits."""

RESIZE_LINEAR_LANES = Kernel(
    "resize_linear_s8_lanes",
    what="linear interpolation of codes by weights of few bits, exact: two channels a word, eight a vector",
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

# -------------------------------------------------------------------------------------------------- weights


@dataclass(frozen=True, kw_only=True)
class ResampleParams(Params):
    """Sizes of y and of the table."""

    out_size: Annotated[int, "entries of y along the axis"]
    taps: Annotated[int, "weights of an entry"]
    num_starts: Annotated[int, "first neighbours that a table entry may refer to: others count as 0"]


@dataclass(frozen=True, kw_only=True)
class ResampleOptions(Options):
    """Template option of the element type."""

    t: Annotated[str, "C type of the elements"]


RESAMPLE = Kernel(
    "resample",
    what="sums of neighbours along one axis by a table of weights: any interpolation, axis by axis",
    operands=(
        reads("x", "input", DType.FLOAT32, DType.FLOAT64),
        reads("start", "the first neighbour of each entry"),
        reads("w", "their weights"),
        writes("y", "output"),
    ),
    params=(AxisWalk, ResampleParams),
    options=(ResampleOptions,),
)
