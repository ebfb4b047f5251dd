# SPDX-License-Identifier: Apache-2.0
"""Kernels that read images at positions given by data: grids, deformed taps, regions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from mcugen.hir.types import DType
from mcugen.lir.kernel import ByAxis, Kernel, Options, Params, Real, reads, scratch, writes

_FLOATS = (DType.FLOAT32, DType.FLOAT64)


class FloatTypeOptions(Options):
    """Template options in which kernels of float and double differ: the C type, and the suffix of functions."""

    t: Annotated[str, "C type of the elements"]
    f: Annotated[str, "suffix of functions and literals: f, or empty for double"]


class GridParams(Params):
    """Kernel parameters of GridSample with the sizes of images, and the number of sampled positions."""

    batch: Annotated[int, "images"]
    channels: Annotated[int, "planes of an image"]
    points: Annotated[int, "positions of an image"]
    plane_size: Annotated[int, "elements of a plane of y"]


class PlaneAxes(ByAxis):
    """Kernel parameters of GridSample with the size and the stride of each spatial axis of x."""

    in_size: Annotated[Mapping[str, int], "elements of x along the axis"]
    stride: Annotated[Mapping[str, int], "elements of x from one index along the axis to the next"]


class GridOptions(FloatTypeOptions):
    """Template options of GridSample: number of axes, interpolation, padding, and meaning of the positions.

    Positions are from -1 to 1 over the image. `steps` has the offsets of the elements that are interpolated, relative
    to the element before a position: none but (0,) for nearest.
    """

    rank: Annotated[int, "axes of a plane"]
    mode: Annotated[str, "nearest, linear or cubic"]
    padding: Annotated[str, "value outside the image: zeros, border or reflection"]
    align: Annotated[bool, "whether -1 and 1 are the centres of the outermost elements, not their edges"]
    steps: Annotated[tuple[int, ...], "offsets of the neighbours that are interpolated along an axis"]


GRID_SAMPLE = Kernel(
    "grid_sample",
    what="images interpolated at the positions of a grid",
    operands=(
        reads("x", "images, channels first", *_FLOATS),
        reads("grid", "positions from -1 to 1, last axis first", *_FLOATS),
        writes("y", "output", *_FLOATS),
    ),
    params=(GridParams, PlaneAxes),
    options=(GridOptions,),
)
"""Kernel that computes the ONNX operator GridSample."""


class DeformParams(Params):
    """Kernel parameters of DeformConv (a convolution with computed offsets of its taps): sizes of channel groups."""

    batch: Annotated[int, "images"]
    groups: Annotated[int, "groups of channels, each with its own filters"]
    offset_groups: Annotated[int, "groups of channels, each with its own offsets"]
    group_out_channels: Annotated[int, "output channels of a group"]
    filter_size: Annotated[int, "weights of a filter"]
    taps: Annotated[int, "taps of a channel"]
    channels_per_offset_group: Annotated[int, "channels that share offsets"]
    y_plane_size: Annotated[int, "elements of a plane of y"]


class DeformWindow(ByAxis):
    """Kernel parameters of DeformConv with the sizes of the window and the images, by axis."""

    in_size: Annotated[Mapping[str, int], "elements of x along the axis"]
    out_size: Annotated[Mapping[str, int], "elements of y along the axis"]
    kernel_size: Annotated[Mapping[str, int], "taps along the axis"]
    stride: Annotated[Mapping[str, int], "elements from window to window"]
    padding: Annotated[Mapping[str, int], "elements of padding before x"]
    dilation: Annotated[Mapping[str, int], "elements from tap to tap"]


class DeformOptions(FloatTypeOptions):
    """Template options of DeformConv: whether there is a bias, and a mask with a factor for each tap."""

    bias: Annotated[bool, "whether sums begin with a bias"]
    mask: Annotated[bool, "whether taps have factors"]


DEFORM_CONV = Kernel(
    "deform_conv",
    what="a convolution whose taps are moved by offsets: a patch is interpolated once for all filters",
    operands=(
        reads("x", "images, channels first", *_FLOATS),
        reads("w", "filters", *_FLOATS),
        reads("offset", "offsets of taps, by position", *_FLOATS),
        reads("bias", "bias by filter", *_FLOATS, optional=True),
        reads("mask", "factors of taps, by position", *_FLOATS, optional=True),
        writes("y", "output", *_FLOATS),
        scratch("patch", "interpolated inputs of the taps at a position", *_FLOATS),
    ),
    params=(DeformParams, DeformWindow),
    options=(DeformOptions,),
)
"""Kernel that computes the ONNX operator DeformConv."""


class RegionParams(Params):
    """Kernel parameters of RoiAlign and MaxRoiPool: sizes of images, and of regions of interest.

    A region is divided into rows of bins, each of which gives one element of y.
    """

    batch: Annotated[int, "images"]
    channels: Annotated[int, "planes of an image"]
    in_size0: Annotated[int, "rows of a plane"]
    in_size1: Annotated[int, "elements of a row"]
    num_regions: Annotated[int, "regions"]
    out_size0: Annotated[int, "rows of bins of a region"]
    out_size1: Annotated[int, "bins of a row"]


class RegionScale(Params):
    """Kernel parameter of RoiAlign and MaxRoiPool with the scale of a region's coordinates (spatial_scale of ONNX)."""

    scale: Annotated[Real, "elements of a plane per unit of a region's coordinates"]


class BinSamples(Params):
    """Kernel parameters of RoiAlign with the numbers of sampled points of a bin, along each axis.

    A region of interest is divided into bins, each of which gives one element of y.
    """

    samples: Annotated[int, "samples of a bin along an axis; 0: as many as the bin has elements"]
    max_samples: Annotated[int, "largest number of samples along an axis"]


class AlignOptions(FloatTypeOptions):
    """Template options of RoiAlign: how coordinates are read, and whether a bin is an average or a maximum.

    A region of interest is divided into bins; each is an average or maximum of sampled points.
    """

    half_pixel: Annotated[bool, "whether coordinates refer to edges of elements, whose centres are half a unit further"]
    max: Annotated[bool, "whether the result is the largest sample, instead of the average"]


ROI_ALIGN = Kernel(
    "roi_align",
    what="averages or maxima of samples, interpolated between elements, in bins of regions",
    operands=(
        reads("x", "images, channels first", *_FLOATS),
        reads("rois", "regions: left, top, right, bottom", *_FLOATS),
        reads("images", "number of each region's image", DType.INT64),
        writes("y", "output", *_FLOATS),
    ),
    params=(RegionParams, BinSamples, RegionScale),
    options=(AlignOptions,),
)
"""Kernel that computes the ONNX operator RoiAlign."""

MAX_ROI_POOL = Kernel(
    "max_roi_pool",
    what="the largest element in bins of regions, whose edges are rounded",
    operands=(
        reads("x", "images, channels first", *_FLOATS),
        reads("rois", "regions: number of the image, left, top, right, bottom", *_FLOATS),
        writes("y", "output", *_FLOATS),
    ),
    params=(RegionParams, RegionScale),
    options=(FloatTypeOptions,),
    example="""<ir_version: 10, opset_import: ["" : 18]>
    regions (float[1, 2, 5, 6] x, float[3, 5] rois) => (float[3, 2, 2, 3] y) {
        y = MaxRoiPool <pooled_shape = [2, 3], spatial_scale = 1.5> (x, rois)
    }""",
)
"""Kernel that computes the ONNX operator MaxRoiPool."""
