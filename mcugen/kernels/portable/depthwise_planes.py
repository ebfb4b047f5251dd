# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolution of any window in C: one channel at a time, several outputs of a line per pass.

Lines are rows or columns of the image (see depthwise.py). The lines under the window are copied to a strip, in which
the elements of one channel are adjacent, so that several outputs share loads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from mcugen.hir.types import DType
from mcugen.kernels.common.conv_shape import ConvShape
from mcugen.kernels.common.specs import ConvSpec
from mcugen.kernels.common.weighted_layers import (
    CodeLimits,
    four_bits,
    int8_tensors,
    int16_tensors,
    of_four_bits,
    pack_adjacent_nibbles,
)
from mcugen.kernels.portable.depthwise import (
    Strips,
    StripWalk,
    UpperWordParams,
    axes,
    biases_and_multipliers,
    fits_high_word,
    has_int8_results,
    high_word_offset,
    may_overwrite_input_of,
    strip_walk,
)
from mcugen.kernels.portable.weighted import is_depthwise
from mcugen.lir.kernel import Call, Kernel, Options, Params, Site, Trained, reads, scratch, writes

MAX_UNROLLED_PRODUCTS = 64
"""Largest number of products per pass for which the loop over the points of a window is unrolled."""

MAX_HELD_WEIGHTS = 9
"""Largest number of weights of a window that stay in registers."""


@dataclass(frozen=True)
class PlaneStrips(Strips):
    """A division of a depthwise convolution into strips, each a few adjacent lines of one channel.

    Lines are rows or columns of the image, points are the pixels of a line. A strip is a copy of input lines in scratch
    memory. A pass is an iteration in which a kernel computes several adjacent outputs of one line from the strip.

    Attributes:
        has_few_registers: Whether the CPU has few registers (Thumb-1).
    """

    has_few_registers: bool = False

    @property
    def points_per_pass(self) -> int:
        """Return the number of adjacent outputs of a line (row or column) that the kernel computes together.

        It is 1 if a line has one output; 2 if it has two, or the CPU has few registers; else 3 or 4, whichever is
        cheaper, as outputs beyond the end of the line are computed and discarded.
        """
        offered = (2,) if self.has_few_registers or self.points.out == 2 else (4, 3)
        return min(offered, key=lambda count: -(-self.points.out // count) * (count + 2)) if self.points.out > 1 else 1

    @property
    def passes_per_line(self) -> int:
        """Return the number of passes that compute one line (row or column) of y.

        A pass is an iteration that computes several adjacent outputs of a line together.
        """
        return -(-self.points.out // self.points_per_pass)

    @property
    def is_looped(self) -> bool:
        """Return whether the kernel loops over the taps of a line (row or column) of the window (not unrolled)."""
        return self.points_per_pass * self.points.taps > MAX_UNROLLED_PRODUCTS

    @property
    def loads_per_pass(self) -> int:
        """Return the number of elements of one input line (row or column) that are loaded in a pass.

        A pass is an iteration that computes several adjacent outputs of a line together.
        """
        s, d = self.points.stride, self.points.dilation
        if self.is_looped:
            return self.points_per_pass * self.points.taps
        return len({i * s + j * d for i in range(self.points_per_pass) for j in range(self.points.taps)})

    @property
    def pitch(self) -> int:
        """Return the distance, in elements, between the beginnings of adjacent lines in the strip buffer.

        The buffer holds copies of input lines (rows or columns) of one channel. The last pass over a line may compute
        outputs beyond its end, which are discarded; the distance includes the elements that these outputs read.
        """
        p = self.points
        read = (self.passes_per_line * self.points_per_pass - 1) * p.stride + (p.taps - 1) * p.dilation + 1
        return max(read, p.pad + p.size)

    @property
    def span(self) -> int:
        """Return the number of input lines (rows or columns) from the first to the last one of a window."""
        return (self.lines.taps - 1) * self.lines.dilation + 1

    @property
    def strip_lines(self) -> int:
        """Return the number of input lines (rows or columns) that the strip buffer holds.

        It holds the lines of up to two windows one after the other, so that the kernel rarely moves lines within the
        buffer.
        """
        return min(2 * self.span, self.lines.extent)

    @property
    def lines_per_strip(self) -> int:
        """Return the number of output lines (rows or columns) computed from one strip, a copy of input lines."""
        return (self.strip_lines - self.span) // self.lines.stride + 1

    @property
    def holds_all_weights(self) -> bool:
        """Return whether all weights of a channel stay in registers, so that the loops over the window are unrolled."""
        return not self.has_few_registers and self.lines.taps * self.points.taps <= MAX_HELD_WEIGHTS

    @property
    def is_three_by_three(self) -> bool:
        """Return whether windows are 3×3, with stride 1 and dilation 1 along a line (row or column) of the image."""
        return (self.lines.taps, self.points.taps, self.points.dilation, self.points.stride) == (3, 3, 1, 1)

    def instructions(self) -> float:
        """Estimate the instructions per channel and image if the layer is computed by these strips.

        A strip is a copy of a few adjacent rows or columns of the image; the estimate includes the copies.
        """
        copied = self.lines.extent * (20 + 4 * self.points.size)
        products = 2 * self.points_per_pass * self.points.taps
        again = 1 if self.holds_all_weights else 4 + self.points.taps
        block = self.lines.taps * (self.loads_per_pass + again + products) + 12 * self.points_per_pass + 6
        return 50 + copied + self.lines.out * (20 + self.passes_per_line * block)

    def may_overwrite_input(self) -> bool:
        """Return whether the output y may occupy the same memory as the input x.

        This is so if no line (row or column) of y is stored over a line of x that is still to be read.
        """
        return may_overwrite_input_of(self, 1, self.span, self.lines.stride)


def choose_plane_strips(shape: ConvShape, has_few_registers: bool) -> PlaneStrips:
    """Choose whether a depthwise layer is computed by strips of rows or of columns of each channel.

    A strip is a copy of a few adjacent rows or columns. The division into strips with fewer instructions is returned.

    Args:
        shape: Geometry of the convolution.
        has_few_registers: Whether the CPU has few registers (Thumb-1).
    """
    height, width = axes(shape)
    tilings = (
        PlaneStrips(height, width, False, has_few_registers),
        PlaneStrips(width, height, True, has_few_registers),
    )
    return min(tilings, key=PlaneStrips.instructions)


class PlaneWindow(Params):
    """Kernel parameters of the strip, a buffer with copies of input lines of one channel, and of windows over it.

    Lines are rows or columns of the image.
    """

    strip_line_stride: Annotated[int, "elements from line to line of the strip"]
    strip_lines: Annotated[int, "lines of the strip"]
    out_lines_per_strip: Annotated[int, "lines of y that are computed from a strip"]
    kernel_span_lines: Annotated[int, "lines from the first to the last line of a window"]
    kernel_lines: Annotated[int, "lines of the window that have taps"]
    line_stride: Annotated[int, "lines from window to window"]
    tap_line_stride: Annotated[int, "elements of the strip from tap to tap in adjacent lines of the window"]


class PlaneOptions(Options):
    """Template options of depthwise kernels that compute several adjacent outputs of one channel per pass.

    Lines are rows (or columns) of the image, and points are the pixels of a line. A pass is an iteration that computes
    `points_per_pass` outputs of a line. The kernel reads a strip, which is a copy of the input lines of one channel.
    """

    x_t: Annotated[str, "C type of the input"]
    w_t: Annotated[str, "C type of the weights"]
    y_t: Annotated[str, "C type of the output"]
    strip_t: Annotated[str, "C type of the strip"]
    post_shifted: Annotated[bool, "whether the high words of products are shifted right"]
    gain: Annotated[int, "left shift of accumulators, so that the high word of a product is the result"]
    points_per_pass: Annotated[int, "points of y that are computed per pass"]
    has_point_loop: Annotated[bool, "whether there is a loop over the points of a window"]
    k_lines: Annotated[int, "lines of the window if all weights are held in registers; 0: a loop"]
    k_points: Annotated[int, "points of a line of the window"]
    stride: Annotated[int, "points from window to window"]
    dilation: Annotated[int, "points from tap to tap"]
    clamp: Annotated[bool, "whether results are limited further than by their type"]
    sliding: Annotated[bool, "whether 3 x 3 windows slide along a line, so that registers hold their inputs"]


def input_is_read(spec: ConvSpec) -> bool:
    """Require that not all windows are padding alone.

    Return whether at least one window reads an element of x, not only padding.
    """
    return all(axis.pad < axis.extent for axis in axes(spec.shape.as_row()))


def emit_planes(spec: ConvSpec, site: Site) -> Call:
    """Return the call of a kernel that computes a depthwise convolution channel by channel, weights in natural order.

    Lines are rows or columns of the image. The kernel copies a few input lines of a channel to a strip in scratch
    memory. Loops: images, channels, strips, output lines, blocks of adjacent outputs, taps; the outputs of a block
    share loads of inputs. The strip has 32-bit words in place of bytes on CPUs that load only words at fixed offsets
    (Thumb-1).
    """
    shape, has_few_registers, more = spec.shape.as_row(), "thumb1" in site.features, spec.high_word.shift - 32
    tiling = choose_plane_strips(shape, has_few_registers)
    weights = spec.weights.reshape(-1, shape.kernel_height, shape.kernel_width)
    strip = DType.INT32 if has_few_registers else spec.x.dtype
    weights = weights.transpose(0, 2, 1) if tiling.columns else weights
    packed = four_bits in site.kernel.when
    operands = {
        "x": site.x,
        "w": site.const("weights", pack_adjacent_nibbles(weights.reshape(len(weights), -1)) if packed else weights),
        "table": biases_and_multipliers(spec, site),
        "y": site.y,
        "strip": site.scratch("strip", strip, tiling.strip_lines * tiling.pitch),
    }
    if packed:
        operands["taps"] = site.scratch("taps", DType.INT8, shape.kernel_height * shape.kernel_width)
    window = PlaneWindow(
        strip_line_stride=tiling.pitch,
        strip_lines=tiling.strip_lines,
        out_lines_per_strip=tiling.lines_per_strip,
        kernel_span_lines=tiling.span,
        kernel_lines=tiling.lines.taps,
        line_stride=tiling.lines.stride,
        tap_line_stride=tiling.lines.dilation * tiling.pitch,
    )
    options = PlaneOptions(
        x_t=spec.x.dtype.c,
        w_t=DType.INT8.c if packed else DType.of(spec.weights).c,
        y_t=spec.y.dtype.c,
        strip_t=strip.c,
        post_shifted=more > 0,
        gain=max(-more, 0),
        points_per_pass=tiling.points_per_pass,
        has_point_loop=tiling.is_looped,
        k_lines=tiling.lines.taps if tiling.holds_all_weights else 0,
        k_points=tiling.points.taps,
        stride=tiling.points.stride,
        dilation=tiling.points.dilation,
        clamp=spec.is_clamped,
        sliding="rv32" in site.features and tiling.is_three_by_three,
    )
    ending = UpperWordParams(upper_word_offset=high_word_offset(spec), right_shift=more if more > 0 else None)
    inplace = [("y", "x")] if spec.x.dtype is spec.y.dtype and tiling.may_overwrite_input() else []
    params = [strip_walk(spec, shape, tiling), window, CodeLimits.of(spec.limits), ending]
    return site.call(operands, params, [options], inplace=inplace, variant=_variant(tiling))


def _variant(tiling: PlaneStrips) -> str:
    return f"{tiling.lines.taps}x{tiling.points.taps}" if tiling.holds_all_weights else str(tiling.points.taps)


def count_plane_instructions(spec: ConvSpec) -> int:
    """Estimate the instructions per inference of a depthwise layer that is computed channel by channel.

    The estimate is for CPUs with enough registers, as a term of the cost model.
    """
    shape = spec.shape.as_row()
    return round(shape.batch * shape.in_channels * choose_plane_strips(shape, has_few_registers=False).instructions())


def plane_variant(spec: ConvSpec) -> str:
    """Return the kernel's variant in the cost table; variants differ in the C code that compilers generate.

    The variant is "looped" if not all weights of a channel stay in registers. If all do, it is "line" for a window of
    one line (row or column of the image), and "held" for a window of several lines.
    """
    tiling = choose_plane_strips(spec.shape.as_row(), has_few_registers=False)
    if not tiling.holds_all_weights:
        return "looped"
    return "held" if tiling.lines.taps > 1 else "line"


class LineWalk(Params):
    """Kernel parameters of a depthwise convolution whose window is a row of three taps: sizes, strides and padding."""

    rows: Annotated[int, "rows of x and y, of all images"]
    channels: Annotated[int, "channels"]
    pixel_stride: Annotated[int, "elements from pixel to pixel"]
    in_width: Annotated[int, "pixels of a row of x"]
    out_width: Annotated[int, "pixels of a row of y"]
    dilation: Annotated[int, "pixels from tap to tap"]
    padding_taps: Annotated[int, "taps of the first window before a row of x"]
    x_zero_point: Annotated[Trained, "zero point of x, the value of padding"]


class LineOptions(Options):
    """Template options of depthwise kernels whose window is a row of three taps: C types, shifts and clamp.

    Results are the high words of 64-bit products of accumulators and multipliers, perhaps shifted right.
    """

    w_t: Annotated[str, "C type of the weights"]
    y_t: Annotated[str, "C type of the output"]
    post_shifted: Annotated[bool, "whether the high words of products are shifted right"]
    gain: Annotated[int, "left shift of weights and biases, so that the high word of a product is the result"]
    clamp: Annotated[bool, "whether results are limited further than by their type"]


def is_row_of_three(spec: ConvSpec) -> bool:
    """Require a row of three taps with stride 1, int8 results, and rows of at least twice the dilation.

    Return whether the window is a row of three taps with stride 1, results are int8, rows of x and y have at least
    twice as many pixels as the dilation, and the padding before a row is 0, 1 or 2 times the dilation. Images of one
    column count as rows.
    """
    shape = spec.shape.as_row()
    is_row = (
        shape.kernel_height == shape.stride_height == shape.stride_width == 1
        and not shape.padding_top
        and shape.in_height == shape.out_height
    )
    near = shape.padding_left <= 2 * shape.dilation_width and shape.padding_left % shape.dilation_width == 0
    long = min(shape.in_width, shape.out_width) >= 2 * shape.dilation_width
    return is_row and shape.kernel_width == 3 and near and long and has_int8_results(spec)


def emit_line(spec: ConvSpec, site: Site) -> Call:
    """Return the call of a kernel that computes a depthwise convolution with rows of three taps, channel by channel.

    Loops: rows, pixels modulo the dilation, channels, pixels; the three inputs of a window slide through registers. If
    the rows of x and y have the same length, y may be x: the kernel reads inputs before it overwrites them.
    """
    shape, more = spec.shape.as_row(), spec.high_word.shift - 32
    operands = {
        "x": site.x,
        "w": site.const("weights", spec.weights.reshape(-1, 3)),
        "table": biases_and_multipliers(spec, site),
        "y": site.y,
    }
    walk = LineWalk(
        rows=shape.batch * shape.in_height,
        channels=shape.in_channels,
        pixel_stride=shape.pixel,
        in_width=shape.in_width,
        out_width=shape.out_width,
        dilation=shape.dilation_width,
        padding_taps=shape.padding_left // shape.dilation_width,
        x_zero_point=spec.x.q.zero_point,
    )
    options = LineOptions(
        w_t=DType.of(spec.weights).c,
        y_t=spec.y.dtype.c,
        post_shifted=more > 0,
        gain=max(-more, 0),
        clamp=spec.is_clamped,
    )
    ending = UpperWordParams(upper_word_offset=high_word_offset(spec), right_shift=more if more > 0 else None)
    inplace = [("y", "x")] if shape.in_width == shape.out_width else []
    return site.call(operands, [walk, CodeLimits.of(spec.limits), ending], [options], inplace=inplace)


def count_sequences(spec: ConvSpec) -> int:
    """Count the sequences of pixels that a depthwise kernel with a row of three taps computes, for the cost model.

    With dilation d, a row of a channel is computed as d sequences of pixels that are d apart. The cost model multiplies
    the count by a measured fixed cost per sequence.
    """
    shape = spec.shape.as_row()
    return shape.batch * shape.in_height * shape.in_channels * shape.dilation_width


_CODES = (DType.INT8, DType.INT16)


def _planes(name: str, tensors: Callable[[ConvSpec], bool]) -> Kernel:
    return Kernel(
        name,
        what="any window of one filter per channel, channel by channel from a strip of its lines",
        operands=(
            reads("x", "input, channels last", *_CODES),
            reads("w", "weights by channel, tap after tap", *_CODES, holds=(1,)),
            reads("table", "bias and multiplier by channel", DType.INT32, holds=(2,)),
            writes("y", "output, channels last", *_CODES),
            scratch("strip", "lines of one channel, padded", *_CODES, DType.INT32),
        ),
        params=(StripWalk, PlaneWindow, CodeLimits, UpperWordParams),
        without=frozenset({"strip_points"}),
        options=(PlaneOptions,),
        when=(tensors, is_depthwise, fits_high_word, input_is_read),
        loads=0.0,
        emit=emit_planes,
        extra=count_plane_instructions,
        way=plane_variant,
    )


DEPTHWISE_PLANES: tuple[Kernel, ...] = (
    Kernel(
        "depthwise_s8_line",
        what="a row of three taps, channel by channel, read in place, with a window of inputs in registers",
        operands=(
            reads("x", "input, channels last", DType.INT8),
            reads("w", "weights by channel, tap after tap", *_CODES, holds=(1,)),
            reads("table", "bias and multiplier by channel", DType.INT32, holds=(2,)),
            writes("y", "output, channels last", DType.INT8),
        ),
        params=(LineWalk, CodeLimits, UpperWordParams),
        options=(LineOptions,),
        lacks=frozenset({"mve"}),
        when=(int8_tensors, is_depthwise, fits_high_word, is_row_of_three),
        loads=0.0,
        emit=emit_line,
        extra=count_sequences,
    ),
    _planes("depthwise_s8_planes", int8_tensors),
    _planes("depthwise_s16_planes", int16_tensors),
    of_four_bits(
        _planes("depthwise_s8_planes", int8_tensors),
        operands=(
            reads("x", "input, channels last", DType.INT8),
            reads("w", "weights by channel, two 4-bit weights per byte, each plus 8", DType.UINT8, holds=(1,)),
            reads("table", "bias and multiplier by channel", DType.INT32, holds=(2,)),
            writes("y", "output, channels last", *_CODES),
            scratch("strip", "lines of one channel, padded", *_CODES, DType.INT32),
            scratch("taps", "the weights of one channel", DType.INT8),
        ),
    ),
)
"""Depthwise kernels in C, one channel at a time, in order of preference."""
