# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions for Helium: patches of one channel in a vector, or channels in lanes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from mcugen.hir.types import Array, DType
from mcugen.kernels.common.conv_shape import ConvShape
from mcugen.kernels.common.reading_order import by_image, rows
from mcugen.kernels.common.specs import ConvSpec
from mcugen.kernels.common.weighted_layers import four_bits
from mcugen.kernels.helium.layer import (
    VECTOR,
    RequantizationTable,
    StackFrame,
    blocks_of,
    call,
    has_nine_bits,
    padding,
    strip_of,
)
from mcugen.lir.kernel import Call, Options, Params, Site, Trained
from mcugen.lir.traversal import Traversal

MAX_COLUMNS_BYTES = 2048
"""Largest size of the buffer of transposed columns, in bytes, unless one row needs more."""


class TapPairs(Params):
    """Kernel parameters of the taps of a depthwise window, which are multiplied in pairs."""

    tap_pairs: Annotated[int, "pairs of taps; the weight of an odd last tap's partner is zero"]
    offset_limit: Annotated[int, "upper bound of the offsets of taps, in bytes"]


def emit_depthwise(spec: ConvSpec, site: Site) -> Call:
    """Emit a depthwise convolution with eight channels in the lanes of a vector.

    Two taps are multiplied at a time; an odd last tap is paired with a weight of zero. Weights are packed as [block of
    channels][tap][8].
    """
    shape, strip = spec.shape, strip_of(spec.shape)
    table = RequantizationTable(spec, 8, order=(0, 2, 4, 6, 1, 3, 5, 7), apart=8)
    ky, kx = np.divmod(np.arange(shape.kernel_height * shape.kernel_width), shape.kernel_width)
    offsets = ky * shape.dilation_height * strip.strip_row_stride + kx * shape.dilation_width * shape.in_channels
    even = len(offsets) % 2
    taps = np.pad(spec.rows, [(0, 0), (0, even)])
    packed = np.ascontiguousarray(blocks_of(taps, 8).transpose(0, 2, 1)).reshape(-1)
    return call(
        site,
        packed,
        table,
        [
            table.codes,
            padding(spec),
            shape.geometry,
            strip,
            TapPairs(tap_pairs=taps.shape[1] // 2, offset_limit=int(offsets.max()) + 1),
        ],
        [],
        working=("strip", strip.strip_rows * strip.strip_row_stride + VECTOR),
        orders=[rows(shape)],
        constants={"offsets": np.pad(offsets, (0, even)).astype(np.int32)},
    )


def has_no_smallest_weight(spec: ConvSpec) -> bool:
    """Require weights from −127: 16 bits do not hold the sum of two products of −128 and −128.

    Return whether the layer meets this condition of a kernel.
    """
    return int(spec.weights.min(initial=0)) > DType.INT8.limits[0]


def is_small_patch_window(spec: ConvSpec) -> bool:
    """Require a window of at most 4 x 4, and outputs by pairs of rows or with a vertical stride of 2.

    Return whether the layer meets this condition of a kernel. One of three cases must hold: the layer has windows of at
    most 3×3 with stride 1 and no dilation, so that the kernel computes pairs of output rows; the vertical stride is 2;
    or there is a single output row. In all cases, there must be no vertical dilation, a horizontal stride of at most 7,
    and output rows that 16-bit offsets can address.
    """
    shape = spec.shape
    if max(shape.kernel_height, shape.kernel_width) > 4 or shape.stride_width > 7 or shape.dilation_height > 1:
        return False
    if 4 * (shape.out_width + 1) * shape.out_channels >= 2**16:  # Results are scattered by 16-bit offsets.
        return False
    return _two_rows(shape) or shape.stride_height == 2 or shape.out_height == 1


def _two_rows(shape: ConvShape) -> bool:
    """Return whether a patch of 4×4 inputs holds the windows of 2×2 outputs."""
    simple = shape.stride_height == shape.stride_width == shape.dilation_height == shape.dilation_width == 1
    return simple and max(shape.kernel_height, shape.kernel_width) <= 3 and shape.out_height > 1


def pack_patches(weights: Array) -> Array:
    """Pack depthwise weights of up to 4×4 taps as a flat array [channels][4 columns][4 rows], padded with zeros.

    Args:
        weights: The weights, [channels, kernel_height, kernel_width].
    """
    padded = np.pad(weights, [(0, 0), (0, 4 - weights.shape[1]), (0, 4 - weights.shape[2])])
    return np.ascontiguousarray(padded.transpose(0, 2, 1)).reshape(-1)


@dataclass(frozen=True)
class Plane:
    """The geometry and strides of x and y for the depthwise kernel of 4×4 patches, which may exchange rows and columns.

    Attributes:
        shape: Geometry of the convolution, with rows and columns exchanged if the image is.
        x_row: Distance in bytes between adjacent rows of x.
        x_pixel: Distance in bytes between adjacent pixels of a row of x.
        y_row: Distance in bytes between adjacent rows of y.
        y_pixel: Distance in bytes between adjacent pixels of a row of y.
    """

    shape: ConvShape
    x_row: int
    x_pixel: int
    y_row: int
    y_pixel: int

    @staticmethod
    def of(shape: ConvShape) -> Plane:
        """Return the geometry of a depthwise convolution and the strides of x and y in bytes, as they are in memory.

        x and y are stored channels last; rows and columns are not exchanged.
        """
        channels = shape.in_channels
        return Plane(shape, shape.in_width * channels, channels, shape.out_width * channels, channels)

    def turned(self) -> Plane:
        """Return the geometry and strides with rows and columns of x and y exchanged.

        The depthwise kernel computes narrow images faster in this form.
        """
        return Plane(self.shape.transposed(), self.x_pixel, self.x_row, self.y_pixel, self.y_row)


@dataclass(frozen=True)
class PixelGroups:
    """Tiling of a row's output pixels into groups, and half groups for the remaining pixels.

    A group is `size` adjacent pixels that the kernel computes together; a half group has half as many. There are up to
    two half groups. The last half group overlaps the pixels before it, or is masked if the row has no other pixels.

    Attributes:
        size: Number of output pixels that form a group.
        count: Number of whole groups in a row of output pixels.
        halves: Number of half groups of pixels after the whole groups.
        mask: Predicate of the lanes of a half group that are stored, one bit per byte.
        overlap: Pixels by which the last half group overlaps the pixels before it.
        covered: Pixels of the row that groups and half groups cover, including masked ones.
    """

    size: int
    count: int
    halves: int
    mask: int
    overlap: int
    covered: int


def divide_row(shape: ConvShape, size: int) -> PixelGroups:
    """Return the tiling of a row of output pixels into groups, which are computed together, and half groups.

    Half groups have half as many pixels. They cover the pixels that remain after the whole groups.

    Args:
        shape: Geometry of the convolution.
        size: Output pixels of a group.
    """
    half = size // 2
    count, remaining_columns = divmod(shape.out_width, size)
    halves = -(-remaining_columns // half)
    covered = count * size + halves * half
    overlap = covered - shape.out_width if shape.out_width > half else 0
    mask = (1 << min(shape.out_width, half) * 16 // half) - 1
    return PixelGroups(size, count, halves, mask, overlap, covered - overlap)


class PatchesFrame(StackFrame):
    """Parameters of the depthwise kernel of 4×4 patches of one channel, in the order in which assembly code reads them.

    The columns are a scratch buffer of input columns of four rows each, transposed so that the four elements of a
    channel are adjacent. A group is the adjacent output pixels of a row that are computed together; a half group has
    half as many.
    """

    y_zero_point: Annotated[Trained, "zero point of y"]
    y_step_bytes: Annotated[int, "bytes of y from group to group of pixels"]
    pixel_groups: Annotated[int, "groups of pixels in a row"]
    half_groups: Annotated[int, "half groups of pixels after the groups"]
    columns_back_bytes: Annotated[int, "bytes of the columns back to the last half group"]
    y_back_bytes: Annotated[int, "bytes of y back to the last half group"]
    columns_row_step_bytes: Annotated[int, "bytes of the columns to the next row"]
    y_row_step_bytes: Annotated[int, "bytes of y to the next row"]
    left_shift: Annotated[Trained, "left shift of sums before the product"]
    low: Annotated[Trained, "lowest quantized value of y"]
    high: Annotated[Trained, "highest quantized value of y"]
    lane_stride_bytes: Annotated[int, "bytes of y from result to result of a vector"]
    second_row_bytes: Annotated[int, "bytes of y to the second of a pair of results"]


class HalfGroupMask(Params):
    """Kernel parameter with the predicate of the pixels that are stored in a partial half group at the end of a row.

    A group is the adjacent output pixels of a row that are computed together; a half group has half as many, whose
    results are in one vector.
    """

    half_mask: Annotated[int, "predicate of the lanes of a half group that are stored, one bit a byte"]


class Sections(Params):
    """Kernel parameters of the sections of the columns buffer, which holds transposed input columns of four rows each.

    A section holds the input columns that one or two rows of y depend on.
    """

    section_rows: Annotated[int, "rows of y in a section"]
    sections: Annotated[int, "sections that are held at a time"]
    section_bytes: Annotated[int, "bytes of a section"]
    padding_offset_bytes: Annotated[int, "bytes of all sections, after which the padding begins"]


class StrideParams(Params):
    """Kernel parameters with the strides, in bytes, in x, in the columns buffer and in y.

    The columns buffer holds transposed input columns of four rows each.
    """

    x_row_stride: Annotated[int, "bytes from row to row of x"]
    x_pixel_stride: Annotated[int, "bytes from pixel to pixel of x"]
    y_row_stride: Annotated[int, "bytes from row to row of y"]
    y_pixel_stride: Annotated[int, "bytes from pixel to pixel of y"]
    columns_rewind_bytes: Annotated[int, "bytes of the columns from the end of the last row to the next channel"]
    y_rewind_bytes: Annotated[int, "bytes of y from the end of the last row to the next channel"]
    image_stride_bytes: Annotated[int, "bytes from image to image of x"]


class PatchOptions(Options):
    """Template options of depthwise kernels that compute 4×4 patches: window steps, and groups of a row.

    A patch is 4×4 inputs of one channel, which a vector holds. With `both_rows`, it contains the windows of 2×2
    outputs. A group is the adjacent output pixels of a row that are computed together; a half group, for the end of a
    row, has half as many.
    """

    both_rows: Annotated[bool, "whether a patch holds two rows of results"]
    has_full_groups: Annotated[bool, "whether rows have whole groups of pixels"]
    has_masked_results: Annotated[bool, "whether some results are not stored"]
    stride_width: Annotated[int, "pixels from window to window"]
    dilation_width: Annotated[int, "pixels from tap to tap"]
    rewinds_last_half: Annotated[bool, "whether the last half group overlaps the pixels before it"]


class RecomputedTaps(Options):
    """Template options of the second pass, which recomputes channels whose weights do not fit int8: window size."""

    rows: Annotated[int, "height of the window, in taps"]
    columns: Annotated[int, "width of the window, in taps"]


def channels_beyond_int8(spec: ConvSpec) -> Array:
    """Return the indices of the output channels with a weight outside -128 to 127, in ascending order, as int32."""
    return np.flatnonzero(spec.channel_offsets).astype(np.int32)


def count_repaired_half_groups(spec: ConvSpec) -> int:
    """Count the half groups of output pixels of a layer with nine-bit weights, for the cost model.

    A half group is 4 output pixels of one channel, which are computed together. Channels with weights beyond int8 are
    computed a second time; this time is added as a number of half groups that take as long.
    """
    return count_half_groups(spec) + spec.y.count // spec.channels * len(channels_beyond_int8(spec)) * 20 // 16


def emit_small_depthwise(spec: ConvSpec, site: Site) -> Call:
    """Emit a depthwise convolution of up to 4×4 taps, which reads a 4×4 patch of one channel as one vector.

    The kernel first transposes the input: a column of four rows is stored channel by channel, four elements each. In
    narrow images, rows and columns are exchanged.
    """
    shape, table = spec.shape, RequantizationTable(spec, 1, apart=1)
    plane, weights = Plane.of(shape), spec.weights.reshape(shape.out_channels, shape.kernel_height, shape.kernel_width)
    same = (shape.in_height, shape.in_width) == (shape.out_height, shape.out_width)
    if same and _two_rows(shape) and 1 < shape.out_width < min(12, shape.out_height):
        plane, weights = plane.turned(), weights.transpose(0, 2, 1)
    s = plane.shape
    two, groups = _two_rows(s), divide_row(s, 4 if _two_rows(s) else 8)
    sections = sections_of(s, groups.covered)
    frame = _patches_frame(plane, groups, sections, table)
    full = s.out_width >= groups.size
    options = PatchOptions(
        both_rows=two,
        has_full_groups=full,
        has_masked_results=s.out_height % sections.section_rows > 0 or not full,
        stride_width=s.stride_width,
        dilation_width=s.dilation_width,
        rewinds_last_half=not full or groups.overlap > 0,
    )
    distances = StrideParams(
        x_row_stride=plane.x_row,
        x_pixel_stride=plane.x_pixel,
        y_row_stride=plane.y_row,
        y_pixel_stride=plane.y_pixel,
        columns_rewind_bytes=4 + frame.columns_row_step_bytes,
        y_rewind_bytes=1 + frame.y_row_step_bytes,
        image_stride_bytes=shape.in_height * shape.in_width * shape.in_channels,
    )
    forward = s is shape and shape.in_channels <= VECTOR
    constants, more = {}, []
    if has_nine_bits(spec):
        which = channels_beyond_int8(spec)
        constants["which"] = np.append(which, np.int32(shape.in_channels))
        constants["whole"] = weights[which].transpose(0, 2, 1).astype(np.int16)
        more = [RecomputedTaps(rows=weights.shape[1], columns=weights.shape[2])]
        weights = weights - spec.channel_offsets[:, None, None]
    kernel_call = call(
        site,
        pack_patches(weights.astype(np.int8)),
        table,
        [frame, padding(spec), s.geometry, HalfGroupMask(half_mask=groups.mask), sections, distances],
        [options, *more],
        working=("columns", sections.padding_offset_bytes + VECTOR),
        orders=[_sections_in_turn(shape, sections.section_rows, sections.sections)] if forward else [],
        constants=constants,
    )
    in_place = not forward and _patches_may_overwrite_input(shape)
    return replace(kernel_call, inplace=[("y", "x")] if in_place else [])


def _patches_frame(plane: Plane, groups: PixelGroups, sections: Sections, table: RequantizationTable) -> PatchesFrame:
    two, step, codes = _two_rows(plane.shape), 64 * plane.shape.stride_width, table.codes
    return PatchesFrame(
        y_zero_point=codes.y_zero_point,
        y_step_bytes=groups.size * plane.y_pixel,
        pixel_groups=groups.count,
        half_groups=groups.halves,
        columns_back_bytes=-step * groups.overlap,
        y_back_bytes=-plane.y_pixel * groups.overlap,
        columns_row_step_bytes=sections.section_bytes - step * groups.covered,
        y_row_step_bytes=sections.section_rows * plane.y_row - plane.y_pixel * groups.covered,
        left_shift=codes.left_shift,
        low=codes.low,
        high=codes.high,
        lane_stride_bytes=plane.y_pixel * (1 if two else 2),
        second_row_bytes=plane.y_row if two else plane.y_pixel,
    )


def count_half_groups(spec: ConvSpec) -> int:
    """Count the half groups of output pixels of a layer per inference, for the cost model.

    A half group is 4 output pixels of one channel, which are computed together. The pixels are 2×2 if the kernel
    computes pairs of rows, else they are adjacent in a row.
    """
    shape = spec.shape
    two = _two_rows(shape)
    rows = -(-shape.out_height // 2) if two else shape.out_height
    return shape.batch * shape.out_channels * rows * -(-shape.out_width // (2 if two else 4))


def sections_of(shape: ConvShape, covered: int) -> Sections:
    """Return the sizes of the columns buffer's sections, each of which holds the inputs of one or two rows of y.

    The buffer holds as many sections at a time as fit in MAX_COLUMNS_BYTES bytes, but at least one.

    Args:
        shape: Geometry of the convolution.
        covered: Pixels of an output row that are computed, including masked ones.
    """
    steps = 2 if _two_rows(shape) else 1
    extent = shape.stride_width * (shape.out_width - 1) + shape.dilation_width * (shape.kernel_width - 1) + 1
    width = max(extent, shape.padding_left + shape.in_width)
    read = max(width, (covered - 1) * shape.stride_width + 3 * shape.dilation_width + 1)
    count = max(1, min(MAX_COLUMNS_BYTES // (64 * width), shape.out_height // steps))
    return Sections(
        section_rows=steps,
        sections=count,
        section_bytes=64 * width,
        padding_offset_bytes=64 * (width * (count - 1) + read),
    )


def _sections_in_turn(shape: ConvShape, steps: int, sections: int) -> Traversal:
    """Return the traversal by sections of `steps` output rows, for each of which two more input rows are transposed.

    Up to `sections` sections are transposed at a time.
    """
    reads, finished_sections = [0], 0
    ends: list[int] = []
    while not ends or ends[-1] < shape.out_height:
        left = shape.out_height - (ends[-1] if ends else 0)
        finished_sections += min(max(left // steps, 1), sections)
        ends.append(min(finished_sections * steps, shape.out_height))
        reads.append(min(max(2 + 2 * finished_sections - shape.padding_top, 0), shape.in_height))
    row_in, row_out = shape.in_width * shape.in_channels, shape.out_width * shape.out_channels
    return by_image(shape, np.array(reads[:-1]) * row_in, np.array(ends) * row_out)


def _patches_may_overwrite_input(shape: ConvShape) -> bool:
    """Return whether outputs always end before the first input row that has not been transposed yet."""
    steps = 2 if _two_rows(shape) else 1
    ends = [
        (2 * step + 4 - shape.padding_top, min((step + 1) * steps, shape.out_height))
        for step in range(-(-shape.out_height // steps))
    ]
    return all(min(unread, shape.in_height) * shape.in_width >= end * shape.out_width for unread, end in ends)


def is_large_window(spec: ConvSpec) -> bool:
    """Require a window of at most 8 x 8 without dilation, and a horizontal stride of at most 7.

    Return whether the layer meets this condition of a kernel.
    """
    shape = spec.shape
    if (
        max(shape.kernel_height, shape.kernel_width) > 8
        or shape.stride_width > 7
        or max(shape.dilation_height, shape.dilation_width) > 1
    ):
        return False
    return 8 * shape.out_channels < 2**16  # Results are scattered by 16-bit offsets.


def count_patches(spec: ConvSpec) -> int:
    """Count the 4×4 patches of taps that are multiplied per inference, for all results, for the cost model."""
    return spec.y.count * -(-spec.shape.kernel_height // 4) * -(-spec.shape.kernel_width // 4)


class LargeFrame(StackFrame):
    """Parameters of depthwise windows of up to 2×2 patches, in the order in which assembly code reads them.

    A patch has 4×4 taps. The columns are a scratch buffer of input columns of four rows each, transposed so that the
    four elements of a channel are adjacent. A group is the adjacent output pixels of a row that are computed together;
    a half group has half as many.
    """

    y_zero_point: Annotated[Trained, "zero point of y"]
    y_step_bytes: Annotated[int, "bytes of y from group to group of pixels"]
    pixel_groups: Annotated[int, "groups of pixels in a row"]
    half_groups: Annotated[int, "half groups of pixels after the groups"]
    columns_back_bytes: Annotated[int, "bytes of the columns back to the last half group"]
    y_back_bytes: Annotated[int, "bytes of y back to the last half group"]
    columns_rewind_bytes: Annotated[int, "bytes of the columns from the end of a row to the next channel"]
    y_rewind_bytes: Annotated[int, "bytes of y from the end of a row to the next channel"]
    left_shift: Annotated[Trained, "left shift of sums before the product"]
    low: Annotated[Trained, "lowest quantized value of y"]
    high: Annotated[Trained, "highest quantized value of y"]
    lane_stride_bytes: Annotated[int, "bytes of y from result to result of a vector"]
    half_mask: Annotated[int, "predicate of the lanes of a half group that are stored, one bit a byte"]
    band_bytes: Annotated[int, "bytes of the columns of four rows"]


class ColumnsBufferParams(Params):
    """Kernel parameter with the place of the buffer of transposed input columns in scratch memory.

    The buffer follows the strip, a buffer of padded input rows, from which its columns of four rows each are
    transposed.
    """

    columns_offset_bytes: Annotated[int, "bytes from the start of the strip to the columns"]


class LargeOptions(Options):
    """Template options of depthwise kernels for windows of up to 8×8: number of 4×4 patches, and stride."""

    bands: Annotated[int, "patches of 4 x 4 taps below each other"]
    blocks: Annotated[int, "patches of 4 x 4 taps beside each other"]
    stride_width: Annotated[int, "pixels from window to window"]


def emit_large_depthwise(spec: ConvSpec, site: Site) -> Call:
    """Emit a depthwise convolution of up to 8×8 taps: sums over up to 2×2 patches of 4×4 inputs.

    Weights are packed as [channel][patch row][patch column][4 columns][4 rows].
    """
    shape, strip, table = spec.shape, strip_of(spec.shape), RequantizationTable(spec, 1, apart=1)
    bands, blocks, groups = -(-shape.kernel_height // 4), -(-shape.kernel_width // 4), divide_row(shape, 8)
    held = strip.strip_rows * strip.strip_row_stride
    read = max(strip.strip_row_stride // shape.in_channels, (groups.covered - 1) * shape.stride_width + 4 * blocks)
    columns = ColumnsBufferParams(columns_offset_bytes=held + -held % VECTOR + VECTOR)
    weights = spec.weights.reshape(shape.out_channels, shape.kernel_height, shape.kernel_width)
    padded = np.pad(weights, [(0, 0), (0, 4 * bands - shape.kernel_height), (0, 4 * blocks - shape.kernel_width)])
    patches = padded.reshape(-1, bands, 4, blocks, 4).transpose(0, 1, 3, 4, 2)
    return call(
        site,
        np.ascontiguousarray(patches).reshape(-1),
        table,
        [_large_frame(shape, groups, 64 * read, table), padding(spec), shape.geometry, strip, columns],
        [LargeOptions(bands=bands, blocks=blocks, stride_width=shape.stride_width)],
        working=("strip", columns.columns_offset_bytes + 64 * read * bands),
        orders=[rows(shape)],
    )


MAX_ROW_TAPS = 64
"""Largest number of taps of a one-dimensional window: four vectors of 16."""

MAX_SEGMENT_PIXELS = 64
"""Largest number of output pixels of a row whose inputs are held in planes at a time (PlaneSizes)."""


def is_row_window(spec: ConvSpec) -> bool:
    """Require a one-dimensional window of 2 to 64 taps, with a stride or a dilation above 1, but not both.

    Return whether the layer meets this condition of a kernel. A stride and a dilation that are both 1 meet it, too. The
    window must lie along a row or a column of pixels, and the stride must be at most 7.
    """
    shape = spec.shape.as_row()
    in_turn = shape.stride_height == 1 or shape.out_height == 1
    if shape.kernel_height > 1 or not in_turn or shape.in_height != shape.out_height or shape.padding_top:
        return False
    if (
        not 2 <= shape.kernel_width <= MAX_ROW_TAPS
        or shape.stride_width > 7
        or min(shape.stride_width, shape.dilation_width) > 1
    ):
        return False
    return 8 * shape.out_channels * shape.dilation_width < 2**16  # Results are scattered by 16-bit offsets.


def _vectors(shape: ConvShape) -> int:
    """Return the vectors of a window."""
    return -(-shape.kernel_width // VECTOR)


def _longest(shape: ConvShape) -> int:
    """Return the pixels of the longest of the undilated rows into which a dilated row is split."""
    return -(-shape.out_width // shape.dilation_width)


class PlaneSizes(Params):
    """Kernel parameters with the sizes of planes: scratch copies of a row's inputs, one for each of eight channels.

    The planes hold the inputs of a segment: up to 64 output pixels of a row.
    """

    segment_pixels: Annotated[int, "pixels of y that are computed at a time"]
    segment_window_pixels: Annotated[int, "pixels of x under the windows of a segment"]
    overlap_pixels: Annotated[int, "pixels of x that the windows of the next segment cover, too"]
    plane_stride_bytes: Annotated[int, "bytes from plane to plane"]

    @staticmethod
    def of(shape: ConvShape) -> PlaneSizes:
        """Return the sizes of the planes for a convolution along a row.

        Planes are scratch copies of a row's inputs, one for each of eight channels. A plane includes some elements
        behind its last window, which vector loads may read.
        """
        longest, stride = _longest(shape), shape.stride_width
        segment = min(MAX_SEGMENT_PIXELS, longest + -longest % 8)
        window = (segment - 1) * stride + shape.kernel_width
        pitch = (segment - 1) * stride + VECTOR * _vectors(shape)
        return PlaneSizes(
            segment_pixels=segment,
            segment_window_pixels=window,
            overlap_pixels=max(window - segment * stride, 0),
            plane_stride_bytes=pitch,
        )


class RowPhase(Params):
    """Kernel parameter of a dilated convolution of a row, which is computed as several interleaved undilated ones.

    With a dilation of d, every d-th pixel of x belongs to the same undilated row. `phase` is the number (0 to d − 1) of
    the undilated row in which the first window begins; None without dilation.
    """

    phase: Annotated[int | None, "number of the pixel between two taps with which the first output pixel begins"] = None


class LastVector(Params):
    """Kernel parameter with the bytes of weights in the last vector of a channel, which may be partial."""

    last_vector_bytes: Annotated[int, "bytes of the last vector of a channel"]


class RowLoopOptions(Options):
    """Template options of depthwise kernels for one-dimensional windows: vectors of taps, stride and dilation."""

    bands: Annotated[int, "vectors of taps"]
    stride_width: Annotated[int, "pixels from window to window"]
    dilation_width: Annotated[int, "pixels from tap to tap"]


def emit_row_depthwise(spec: ConvSpec, site: Site) -> Call:
    """Emit a depthwise convolution of one-dimensional windows of up to 64 taps, 16 taps of a channel per vector.

    A dilated row is split into as many interleaved undilated rows as there are pixels from tap to tap.
    """
    shape, table = spec.shape.as_row(), RequantizationTable(spec, 1, apart=1)
    bands, dilation, planes = _vectors(shape), shape.dilation_width, PlaneSizes.of(shape)
    phase = RowPhase(phase=-shape.padding_left % dilation if dilation > 1 else None)
    weights, packed = spec.weights.reshape(shape.out_channels, -1), four_bits in site.kernel.when
    weights = np.pad(weights, [(0, 0), (0, shape.kernel_width % 2 * packed)])
    last = (weights.shape[1] - VECTOR * (bands - 1)) // (1 + packed)
    kernel_call = call(
        site,
        weights.reshape(-1),
        table,
        [table.codes, padding(spec), shape.geometry, planes, phase, LastVector(last_vector_bytes=last)],
        [RowLoopOptions(bands=bands, stride_width=shape.stride_width, dilation_width=dilation)],
        working=("planes", 8 * planes.plane_stride_bytes),
    )
    return replace(kernel_call, inplace=[("y", "x")] if _rows_may_overwrite_input(shape) else [])


def _rows_may_overwrite_input(shape: ConvShape) -> bool:
    """Return whether each output lies where its row of taps has been read, and where no other one is.

    A dilated row is several rows, one for each pixel between two taps. The outputs of each must lie over its own
    inputs, in the first row of x and in the later ones, whose outputs lie `in_width - out_width` pixels farther before
    their inputs each time.
    """
    dilation, shift = shape.dilation_width, shape.in_width - shape.out_width
    reads_first = shift >= 0 and shape.padding_left <= (shape.kernel_width - 1) * dilation
    same_places = shape.padding_left % dilation == 0 and (shift % dilation == 0 or shape.batch * shape.out_height == 1)
    return reads_first and same_places


def count_row_instructions(spec: ConvSpec) -> int:
    """Estimate the instructions per inference of a depthwise convolution of one-dimensional windows.

    The kernel copies pixels to scratch memory, channel by channel, and computes eight output pixels of a channel at a
    time.
    """
    shape = spec.shape.as_row()
    planes, longest = PlaneSizes.of(shape), _longest(shape)
    pieces = -(-longest // planes.segment_pixels)
    copied_pixels = planes.segment_window_pixels + (pieces - 1) * (planes.segment_window_pixels - planes.overlap_pixels)
    channel = 16 * pieces + (16 * _vectors(shape) + 17) * -(-longest // 8)
    block = 300 * pieces + 6 * copied_pixels
    return (
        shape.batch
        * shape.out_height
        * shape.dilation_width
        * (-(-shape.in_channels // 8) * block + shape.in_channels * channel)
    )


def _large_frame(shape: ConvShape, groups: PixelGroups, band: int, table: RequantizationTable) -> LargeFrame:
    step, codes = 64 * shape.stride_width, table.codes
    return LargeFrame(
        y_zero_point=codes.y_zero_point,
        y_step_bytes=8 * shape.out_channels,
        pixel_groups=groups.count,
        half_groups=groups.halves,
        columns_back_bytes=-step * groups.overlap,
        y_back_bytes=-shape.out_channels * groups.overlap,
        columns_rewind_bytes=4 - step * groups.covered,
        y_rewind_bytes=1 - shape.out_channels * groups.covered,
        left_shift=codes.left_shift,
        low=codes.low,
        high=codes.high,
        lane_stride_bytes=2 * shape.out_channels,
        half_mask=groups.mask,
        band_bytes=band,
    )
