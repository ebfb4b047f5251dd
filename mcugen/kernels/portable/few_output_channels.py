# SPDX-License-Identifier: Apache-2.0
"""Convolutions of quantized values to few output channels, as at the end of networks for masks, depths and images.

With few output channels, im2col does not pay: windows are read in place, one output channel and two pixels at a time,
so that each load of weights serves two pixels. A transposed convolution is divided into phases, one ordinary
convolution for each position of the output modulo the strides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Annotated, Any

import numpy as np

from mcugen.hir.types import Array, DType
from mcugen.kernels.common.conv_shape import ConvShape
from mcugen.kernels.common.reading_order import in_turn, windows
from mcugen.kernels.common.reading_order import rows as ring_rows
from mcugen.kernels.common.specs import ConvSpec
from mcugen.kernels.common.weighted_layers import CodeLimits
from mcugen.kernels.dsp import dsp_conv
from mcugen.kernels.portable.transposed import TransposedSpec, contributing_taps
from mcugen.kernels.portable.weighted import is_not_depthwise
from mcugen.kernels.scalar import scalar_conv
from mcugen.lir.kernel import CHECKED, Call, Kernel, Options, Params, Site, Trained, reads, scratch, writes
from mcugen.lir.program import Wide
from mcugen.lir.traversal import Traversal
from mcugen.numerics.sums import folded_bias


@dataclass(frozen=True)
class Phase:
    """The outputs of one channel at one position of y modulo the strides of a transposed convolution.

    A transposed convolution is the sum of phases, each an ordinary convolution with a part of the kernel: one phase per
    output channel and position modulo the strides. An ordinary convolution has one phase per output channel. A kernel
    advances through x in steps, and computes one output of every phase in each step.

    Attributes:
        top: First row of x under a window, relative to the row of x of the step.
        left: First pixel of x under a window, relative to the pixel of x of the step.
        weights: Weights of the phase, [rows, columns, channels of x].
        channel: Index of the output channel that the phase computes.
    """

    top: int
    left: int
    weights: Array
    channel: int


@dataclass(frozen=True)
class WindowPlan:
    """The plan by which a kernel for few output channels computes a layer: which windows it reads, and where.

    A transposed convolution is divided into phases, one for each output channel and position modulo the strides; each
    is an ordinary convolution. An ordinary convolution has one phase for each output channel. In a step, at one
    position of x, a kernel computes one output of every phase. Windows are read in x, or in a ring buffer of padded
    rows.

    Attributes:
        spec: The layer that is planned.
        phases: Phases, by row and column modulo the strides of y, and by channel.
        places: Rows and pixels of y that a step computes: the strides of a transposed convolution, else (1, 1).
        step: Distances in x between successive steps, in rows and in pixels: the strides of an ordinary convolution,
            else (1, 1).
        dilation: Distance in rows of x between adjacent rows of a window.
        is_dsp: Whether the plan is for the kernel for the DSP extension.
    """

    spec: ConvSpec
    phases: tuple[Phase, ...]
    places: tuple[int, int]
    step: tuple[int, int]
    dilation: int
    is_dsp: bool

    @staticmethod
    def of(spec: ConvSpec, is_dsp: bool) -> WindowPlan:
        """Return the plan by which a layer with few output channels is computed: which windows are read, and where.

        Args:
            spec: The layer.
            is_dsp: Whether the plan is for the kernel for the DSP extension.
        """
        shape = spec.shape
        if not isinstance(spec, TransposedSpec):
            shape = dsp_conv.flatten_pixels(shape)
            filters = spec.weights.reshape(spec.channels, shape.kernel_height, shape.kernel_width, shape.in_channels)
            phases = tuple(
                Phase(-shape.padding_top, -shape.padding_left, filter_weights, n)
                for n, filter_weights in enumerate(filters)
            )
            return WindowPlan(
                spec, phases, (1, 1), (shape.stride_height, shape.stride_width), shape.dilation_height, is_dsp
            )
        places = product(range(shape.stride_height), range(shape.stride_width), range(spec.channels))
        phases = tuple(_phase(spec, *place) for place in places)
        return WindowPlan(spec, phases, (shape.stride_height, shape.stride_width), (1, 1), 1, is_dsp)

    @property
    def shape(self) -> ConvShape:
        """Return the geometry of the layer as the kernel computes it.

        In a convolution whose outputs depend on one pixel each, all pixels are seen as one row; other geometries are
        unchanged.
        """
        return self.spec.shape if isinstance(self.spec, TransposedSpec) else dsp_conv.flatten_pixels(self.spec.shape)

    @property
    def steps(self) -> tuple[int, int]:
        """Return the number of steps of the kernel along the height and along the width of y.

        A step computes one pixel of y, or, in a transposed convolution, as many rows and pixels as the strides; the
        last step may exceed y.
        """
        (rows, columns), shape = self.places, self.shape
        return -(-shape.out_height // rows), -(-shape.out_width // columns)

    @cached_property
    def first(self) -> tuple[int, int]:
        """Return the row and the pixel of x at which the windows of the first step begin; negative in the padding.

        In a step, at one position of x, the kernel computes one output of each output channel (of a transposed
        convolution, also of each position modulo the strides).
        """
        return min(phase.top for phase in self.phases), min(phase.left for phase in self.phases)

    @property
    def span(self) -> tuple[int, int]:
        """Return how many rows and pixels of x the windows of one step cover together.

        In a step, at one position of x, the kernel computes one output of each output channel (of a transposed
        convolution, also of each position modulo the strides).
        """
        top, left = self.first
        rows = max(p.top - top + (p.weights.shape[0] - 1) * self.dilation + 1 for p in self.phases)
        return rows, max(p.left - left + p.weights.shape[1] for p in self.phases)

    @cached_property
    def is_padded(self) -> bool:
        """Return whether some windows leave x, so that the kernel copies rows of x to a ring buffer and pads them."""
        sizes = (self.shape.in_height, self.shape.in_width)
        ends = zip(self.first, self.span, self.steps, self.step, sizes, strict=True)
        return any(at < 0 or at + span + (steps - 1) * step > size for at, span, steps, step, size in ends)

    @property
    def single(self) -> bool:
        """Return whether all windows have one row, so that the elements of a window are adjacent in memory."""
        return all(len(phase.weights) == 1 for phase in self.phases)

    @property
    def unit(self) -> int:
        """Return the number of int8 elements that the kernel loads at once: 8 or 4.

        It is 8 if x has a multiple of 8 channels.
        """
        return 8 if self.shape.in_channels % 8 == 0 else 4

    @property
    def iteration_size(self) -> int:
        """Return the number of elements of a window that an iteration of the kernel's inner loop reads: 4, 8 or 16.

        It is the number that is loaded at once (`unit`), or, with the DSP extension, twice this number if that divides
        the row of every window.
        """
        doubled = all(phase.weights[0].size % (2 * self.unit) == 0 for phase in self.phases)
        return self.unit * (2 if doubled and self.is_dsp else 1)

    @property
    def margin(self) -> int:
        """Return the number of padding elements before those of x in each row of the ring buffer."""
        return max(-self.first[1], 0) * self.shape.in_channels

    @property
    def pitch(self) -> int:
        """Return the distance in elements between adjacent rows of the ring buffer, or of x if it is read in place."""
        shape, (_, left) = self.shape, self.first
        if not self.is_padded:
            return shape.in_width * shape.in_channels
        end = left + self.span[1] + (self.steps[1] - 1) * self.step[1]
        return self.margin + max(end, shape.in_width) * shape.in_channels

    @property
    def num_iterations(self) -> int:
        """Return the number of inner loop iterations per inference, for the cost model.

        An iteration multiplies `iteration_size` elements of two adjacent windows with weights.
        """
        images, (rows, columns) = self.shape.batch, self.steps
        return (
            images * rows * -(-columns // 2) * sum(phase.weights.size for phase in self.phases) // self.iteration_size
        )

    @property
    def traversal(self) -> Traversal:
        """Return the order in which the kernel reads x and writes y, which tells how far y may overlap x in memory."""
        if isinstance(self.spec, TransposedSpec):
            return self.spec.traversal(self.spec.windows, not self.is_padded)
        if self.is_padded:
            return ring_rows(self.shape)
        if self.spec.channels > 1:
            lines = np.arange(self.shape.batch * self.shape.out_height)
            image, line = np.divmod(lines, self.shape.out_height)
            first = (
                (image * self.shape.in_height + line * self.shape.stride_height)
                * self.shape.in_width
                * self.shape.in_channels
            )
            return Traversal.rereading(first, self.shape.out_width * self.shape.out_channels)
        pixels = np.arange(self.shape.out_height * self.shape.out_width).reshape(self.shape.out_height, -1)
        return windows(self.shape, np.concatenate([row[in_turn(self.shape.out_width, 2)] for row in pixels]))

    def table(self, multipliers: Array) -> Array:
        """Return the kernel's table of phases, in which each phase has a row of seven numbers.

        A phase is an output channel; in a transposed convolution, an output channel at one position modulo the strides.

        Args:
            multipliers: The requantization multipliers, by channel.

        Returns:
            int64 [phases, 7]: first row and first element of a window, relative to those of the first window of all
            phases; rows of a window; inner loop iterations per window row; index of the first weight; bias; multiplier.
        """
        spec, (top, left), start, entries = self.spec, self.first, 0, []
        for phase in self.phases:
            own = spec.integer_bias[phase.channel : phase.channel + 1]
            (bias,) = folded_bias(spec.sig, phase.weights[None], own)
            rows, size = len(phase.weights), phase.weights.size
            num_iterations = size // rows // self.iteration_size
            place = (phase.top - top, (phase.left - left) * self.shape.in_channels)
            entries.append((*place, rows, num_iterations, start, bias, multipliers[phase.channel]))
            start += size
        return np.array(entries, np.int64)

    def params(self) -> SingleRows:
        """Return the sizes and steps of the plan as parameters, which all kernels for few output channels have."""
        shape, (top, left) = self.shape, self.first
        return SingleRows(
            batch=shape.batch,
            in_height=shape.in_height,
            row_size=shape.in_width * shape.in_channels,
            out_height=shape.out_height,
            out_width=shape.out_width,
            out_channels=shape.out_channels,
            out_rows_per_step=self.places[0],
            out_pixels_per_step=self.places[1],
            copies_rows=int(self.is_padded),
            x_zero_point=self.spec.x.q.zero_point,
            ring_rows=self.span[0] if self.is_padded else shape.in_height,
            input_row_stride=self.pitch,
            ring_padding_left=self.margin,
            first_window_offset=self.margin + left * shape.in_channels,
            padding_top=-top,
            in_rows_per_step=self.step[0],
            dilation_height=self.dilation,
            window_stride=self.step[1] * shape.in_channels,
        )


def _phase(spec: TransposedSpec, row: int, column: int, channel: int) -> Phase:
    shape = spec.shape
    weights = spec.weights[channel].reshape(shape.kernel_height, shape.kernel_width, shape.in_channels)
    rows, columns = contributing_taps(shape, "height", row), contributing_taps(shape, "width", column)
    (top, height), (left, width) = _extent(rows), _extent(columns)
    phase_weights = np.zeros((height, width, shape.in_channels), weights.dtype)
    for ky, input_row in rows:
        for kx, input_column in columns:
            phase_weights[input_row - top, input_column - left] = weights[ky, kx]
    return Phase(top, left, phase_weights, channel)


def _extent(met: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the first of the inputs of some taps, and the number from the first to the last.

    The result is (0, 1) if no input contributing_taps the taps.
    """
    at = [position for _, position in met] or [0]
    return min(at), max(at) - min(at) + 1


class SingleRows(Params):
    """Kernel parameters of convolutions with one to three output channels: sizes of x and y, and where rows are read.

    The kernel advances through x in steps. In a step, it computes one pixel of y, or, in a transposed convolution, as
    many rows and pixels of y as the strides. If windows extend beyond x, rows are read from a ring buffer with padding.
    """

    batch: Annotated[int, "images"]
    in_height: Annotated[int, "rows of x"]
    row_size: Annotated[int, "elements of a row of x"]
    out_height: Annotated[int, "rows of y"]
    out_width: Annotated[int, "pixels of a row of y"]
    out_channels: Annotated[int, "channels of a pixel of y; each has its own phases"]
    out_rows_per_step: Annotated[int, "rows of y that are computed in a step along the rows of x"]
    out_pixels_per_step: Annotated[int, "pixels of y that are computed in a step along a row of x"]
    copies_rows: Annotated[int, "1 if rows of x are copied to the ring buffer and padded"]
    x_zero_point: Annotated[Trained, "zero point of x, the value of padding"]
    ring_rows: Annotated[int, "rows of the ring buffer, or of x if that is read in place"]
    input_row_stride: Annotated[int, "elements from row to row of the ring buffer, or of x"]
    ring_padding_left: Annotated[int, "elements of a row of the ring buffer before those of x"]
    first_window_offset: Annotated[int, "elements of a row before the first window"]
    padding_top: Annotated[int, "rows above x that the first window begins at"]
    in_rows_per_step: Annotated[int, "rows of x from step to step"]
    dilation_height: Annotated[int, "rows of x from row to row of a window"]
    window_stride: Annotated[int, "elements of x from step to step within a row"]


class OffsetCodeLimits(CodeLimits):
    """Kernel parameters that requantize in plain C: limits of quantized results, and an offset.

    The offset is the zero point of y and the rounding term.
    """

    requantize_offset: Annotated[Wide, "zero point of y plus one half, at the scale of products before the right shift"]


class SingleOptions(Options):
    """Template options of kernels of convolutions with one to three output channels: how windows are loaded."""

    single_run: Annotated[bool, "whether a window is one run of adjacent elements"]
    unroll: Annotated[int, "elements of an inner loop iteration"]
    load_size: Annotated[int, "elements that are loaded together"]


class Shift(Options):
    """Template option of requantization in plain C: the right shift of accumulator · multiplier."""

    shift: Annotated[int, "right shift of products with the multiplier"]


# ---------------------------------------------------------------------------------------------- conditions


MAX_FEW_CHANNELS = 3
"""Largest number of output channels that these kernels compute: for four or more, kernels that use each load for
several channels are faster."""


def has_few_channels(spec: ConvSpec) -> bool:
    """Require one group of channels and at most three output channels.

    Return whether the convolution has one group of channels, and at most three output channels.
    """
    return spec.shape.groups == 1 and spec.channels <= MAX_FEW_CHANNELS


def has_odd_channels(spec: ConvSpec) -> bool:
    """Require an odd number of output channels.

    Return whether the layer has an odd number of output channels, a condition of kernels (Kernel.when).
    """
    return spec.channels % 2 == 1  # Pairs of channels share loads of inputs in another kernel.


def has_whole_words(spec: ConvSpec) -> bool:
    """Require a multiple of four input channels.

    Return whether the number of input channels is a multiple of four, so that the int8 values of a pixel fill words.
    """
    return spec.shape.in_channels % 4 == 0


def has_adjacent_taps(spec: ConvSpec) -> bool:
    """Require window rows of adjacent pixels.

    Return whether the taps in a row of the window are adjacent pixels of x: the window has no horizontal dilation, or
    is one pixel wide, or the layer is a transposed convolution.
    """
    return isinstance(spec, TransposedSpec) or spec.shape.dilation_width == 1 or spec.shape.kernel_width == 1


def has_32_bit_sums(spec: ConvSpec) -> bool:
    """Require accumulators of 32 bits.

    Return whether the accumulators of the layer fit 32 bits, a condition of kernels (Kernel.when).
    """
    return spec.acc is DType.INT32


# --------------------------------------------------------------------------------------------------- calls


def emit(spec: ConvSpec, site: Site) -> Call:
    """Return the kernel call of a convolution or transposed convolution with one to three output channels.

    Weights are stored for one output channel after the other (of a transposed convolution, also for one output position
    modulo the strides after the other). They are int8, or widened to 16 bits for the DSP extension.
    """
    form = site.kernel.options[0]
    plan = WindowPlan.of(spec, form is dsp_conv.StreamOptions)
    weights = np.concatenate([phase.weights.reshape(-1) for phase in plan.phases])
    params: list[Params]
    options: list[Options]
    if form is dsp_conv.StreamOptions:
        sums = dsp_conv.sum_conversion(spec)
        assert sums.multiplier is not None
        fours = (weights.astype(np.int64) << sums.gain).reshape(-1, dsp_conv.GROUP)[:, dsp_conv.SXTB16_ORDER]
        weights = np.ascontiguousarray(fours.astype("<i2")).view("<i4").astype(np.int32).reshape(-1)
        table = plan.table(sums.multiplier)
        table[:, 4] //= 2
        table[:, 5] <<= sums.gain
        params, options = [sums.params], [dsp_conv.StreamOptions.of(spec)]
    elif form is scalar_conv.ThumbOptions:
        offset, option = scalar_conv.thumb1_requantization(spec.requantizer, spec.largest_sum, spec.limits)
        params, options = [offset], [option]
        table = plan.table(np.broadcast_to(spec.requantizer.multiplier, spec.channels))
    else:
        codes = OffsetCodeLimits(requantize_offset=Wide(spec.high_word.offset), **vars(CodeLimits.of(spec.limits)))
        params, options, table = [codes], [Shift(shift=spec.high_word.shift)], plan.table(spec.multipliers)
    operands = {
        "x": site.x,
        "w": site.const("weights", weights),
        "phases": site.const("phases", table.astype(np.int32)),
        "y": site.y,
        "ring": site.scratch("ring", DType.INT8, plan.span[0] * plan.pitch if plan.is_padded else 0),
    }
    if not plan.single:
        operands["table"] = site.scratch("table", DType.INT32, max(len(phase.weights) for phase in plan.phases))
    params = [plan.params(), *params]
    options.append(SingleOptions(single_run=plan.single, unroll=plan.iteration_size, load_size=plan.unit))
    clamped = form is dsp_conv.StreamOptions and spec.is_clamped
    variant = "_".join([f"{plan.iteration_size}", *["single"] * plan.single, *["clamped"] * clamped])
    return site.call(operands, params, options, overlaps=spec.overlaps(plan.traversal), variant=variant)


def num_iterations(spec: ConvSpec) -> int:
    """Count the inner loop iterations per inference of the plain C kernel for few output channels (cost model)."""
    plan = WindowPlan.of(spec, is_dsp=False)
    return plan.num_iterations


def _kernels(
    name: str, what: str, *when: Callable[[Any], bool], with_dsp: tuple[Callable[[Any], bool], ...] = ()
) -> tuple[Kernel, ...]:
    """Return the kernels for the DSP extension (under the conditions `with_dsp` too), for Thumb-1, and in plain C."""
    plain = Kernel(
        f"{name}_s8_one",
        what=f"{what} to few channels, one channel by two pixels at a time, read in place",
        operands=(
            reads("x", "input, channels last", DType.INT8),
            reads("w", "weights by phase (one channel at one position modulo the strides)", DType.INT8, holds=(1,)),
            reads("phases", "table of phases (templates/kernels/one_channel.j2)", DType.INT32, holds=(2,)),
            writes("y", "output", DType.INT8),
            scratch("ring", "padded rows of x", DType.INT8),
            scratch("table", "addresses of the rows of a window, if there are several", DType.INT32, optional=True),
        ),
        params=(SingleRows, OffsetCodeLimits),
        options=(Shift, SingleOptions),
        lacks=frozenset({CHECKED}),  # The table holds addresses and sizes.
        when=(
            *when,
            has_few_channels,
            has_whole_words,
            has_adjacent_taps,
            scalar_conv.has_int8_tensors,
            has_32_bit_sums,
        ),
        loads=1.0,
        emit=emit,
        extra=num_iterations,
    )
    x, _, *remaining_operands = plain.operands
    dsp = replace(
        plain,
        name=f"{name}_s8_dsp_one",
        what=f"{plain.what}, weights widened to 16 bits",
        operands=(
            x,
            reads("w", "16-bit weights by phase, in groups of four inputs", DType.INT32, holds=(1,)),
            *remaining_operands,
        ),
        params=(SingleRows, dsp_conv.HighWord),
        options=(dsp_conv.StreamOptions, SingleOptions),
        needs=frozenset({"dsp"}),
        when=(*plain.when[:-1], dsp_conv.fits_high_word_of_scaled_weights, *with_dsp),
        loads=0.25,
    )
    thumb1 = replace(
        plain,
        name=f"{name}_s8_thumb1_one",
        params=(SingleRows, scalar_conv.ThumbOffset),
        options=(scalar_conv.ThumbOptions, SingleOptions),
        needs=frozenset({"thumb1"}),
        when=(*plain.when[:-1], scalar_conv.fits_32_bit_products),
    )
    return (dsp, thumb1, plain)


ONE_CHANNEL_CONV = _kernels(
    "conv2d", "a convolution", is_not_depthwise, dsp_conv.has_several_pixels, with_dsp=(has_odd_channels,)
)
"""Kernels of convolutions with one to three output channels, in order of preference."""

ONE_CHANNEL_CONV_TRANSPOSE = _kernels("conv_transpose", "a transposed convolution")
"""Kernels of transposed convolutions with one to three output channels, in order of preference."""
