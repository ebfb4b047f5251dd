# SPDX-License-Identifier: Apache-2.0
"""Kernels of transposed convolutions of quantized values.

In plain C, each output pixel gathers the input pixels that contribute to it. Kernels with fast matrix products divide
the layer into phases. A phase has the rows of y whose number modulo the vertical stride is the same; it is an ordinary
product of windows of x by a part of the kernel. One window produces as many adjacent pixels of y as the horizontal
stride, so that a row of y is written in one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType
from mcugen.kernels.common.conv_shape import ConvGeometry, ConvShape
from mcugen.kernels.common.loop_options import Loops
from mcugen.kernels.common.specs import ConvSpec
from mcugen.kernels.common.weighted_layers import INTERLEAVED_ROWS, CodeStore, int8_tensors, interleave
from mcugen.kernels.dsp import dsp_conv
from mcugen.kernels.helium import layer
from mcugen.kernels.portable.direct_conv import ChannelGroups
from mcugen.kernels.portable.weighted import DenseSizes, RestOptions
from mcugen.kernels.scalar import scalar_conv
from mcugen.lir.kernel import CHECKED, Call, Kernel, Options, Params, Role, Site, reads, scratch, writes
from mcugen.lir.program import Buffer
from mcugen.lir.traversal import Traversal
from mcugen.numerics.fixedpoint import Range, Requantizer
from mcugen.numerics.window import Window

_CODES = (DType.INT8, DType.INT16)


class SpreadGeometry(Params):
    """Kernel parameters with the geometry of a transposed convolution of x to y, channels last.

    With one spatial axis there is one row.
    """

    in_height: Annotated[int, "rows of x"]
    in_width: Annotated[int, "pixels of a row of x"]
    out_height: Annotated[int, "rows of y"]
    out_width: Annotated[int, "pixels of a row of y"]
    kernel_height: Annotated[int, "rows of the window"]
    kernel_width: Annotated[int, "columns of the window"]
    stride_height: Annotated[int, "rows of y from window to window"]
    stride_width: Annotated[int, "pixels of y from window to window"]
    dilation_height: Annotated[int, "rows of y from tap to tap"]
    dilation_width: Annotated[int, "pixels of y from tap to tap"]
    padding_top: Annotated[int, "rows above y that the first window begins at"]
    padding_left: Annotated[int, "pixels before a row of y that the first window begins at"]

    @classmethod
    def of(cls, shape: ConvShape) -> SpreadGeometry:
        """Return the geometry of a transposed convolution as kernel parameters.

        Args:
            shape: The geometry; strides, dilations and padding refer to y.
        """
        return cls(**{member.name: getattr(shape, member.name) for member in cls.declared()})


class SpreadTypes(Options):
    """Template options of a transposed convolution in plain C: element types and requantization."""

    x_t: Annotated[str, "C type of the input"]
    w_t: Annotated[str, "C type of the weights"]
    bias_t: Annotated[str, "C type of the bias"]
    y_t: Annotated[str, "C type of the output"]
    acc_t: Annotated[str, "C type of the sums"]
    shift: Annotated[int, "right shift of products with the multiplier"]
    has_tail_channels: Annotated[bool, "whether the number of channels is not a multiple of four"]


def transposed_call(spec: ConvSpec, site: Site) -> Call:
    """Return the call of the plain C kernel of transposed convolutions, which computes four output channels at a time.

    In each group of channels, the weights of four output channels for one input are adjacent.
    """
    shape, bias = spec.shape, spec.integer_bias
    group_out = spec.channels // shape.groups
    has_tail = group_out % INTERLEAVED_ROWS != 0
    packed = np.concatenate([interleave(group) for group in spec.weights.reshape(shape.groups, group_out, -1)])
    operands = {
        "x": site.x,
        "w": site.const("w", packed),
        "bias": site.const("bias", bias),
        "multiplier": site.const("multiplier", spec.multipliers),
        "y": site.y,
        "taps": site.scratch("taps", DType.INT32, 2 * shape.kernel_height * shape.kernel_width),
    }
    channels = ChannelGroups(
        batch=shape.batch, groups=shape.groups, group_in_channels=spec.weights.shape[-1], group_out_channels=group_out
    )
    types = SpreadTypes(
        x_t=spec.x.dtype.c,
        w_t=DType.of(spec.weights).c,
        bias_t=DType.of(bias).c,
        y_t=spec.y.dtype.c,
        acc_t=spec.acc.c,
        shift=spec.high_word.shift,
        has_tail_channels=has_tail,
    )
    variant = spec.x.dtype.tag + ("_long" if spec.acc is DType.INT64 else "")
    free = spec.overlaps(_pixels(shape, 1 if has_tail else INTERLEAVED_ROWS))
    params = [channels, SpreadGeometry.of(shape), CodeStore.of(spec)]
    return site.call(operands, params, [types], overlaps=free, variant=variant)


def _pixels(shape: ConvShape, last: int) -> Traversal:
    """Return the traversal pixel by pixel.

    The inputs of a pixel are read again for every few channels, the last `last` of which are written after all reads.
    """
    rows, columns = (_first_inputs(shape, axis) for axis in ("height", "width"))
    pixels = shape.in_height * shape.in_width
    none = (rows == shape.in_height)[:, None] | (columns == shape.in_width)
    first = np.where(none, pixels, rows[:, None] * shape.in_width + columns).reshape(-1)
    image = np.arange(shape.batch)[:, None] * pixels
    reads = (image + first).reshape(-1) * shape.in_channels
    ends = (np.arange(len(reads))[:, None] + 1) * shape.out_channels - np.array([last, 0])
    return Traversal(np.repeat(reads, 2), ends.reshape(-1))


def _first_inputs(shape: ConvShape, axis: str) -> Array:
    """Return, by output position along an axis, the first input that contributes to it; the axis' size if none does."""
    size, out, taps, stride, dilation, pad = shape.along(axis)
    at = np.arange(out)[:, None] + pad - np.arange(taps) * dilation
    first: Array = np.where((at >= 0) & (at % stride == 0) & (at < size * stride), at // stride, size).min(1)
    return first


CONV_TRANSPOSE_INT = Kernel(
    "conv_transpose_int",
    what="a transposed convolution of quantized values: finds the taps of a pixel, then four channels at a time",
    operands=(
        reads("x", "input, channels last", *_CODES),
        reads("w", "weights by four output channels, then the remaining channels one by one", *_CODES, holds=(1,)),
        reads("bias", "bias of each output channel", DType.INT32, DType.INT64, holds=(2,)),
        reads("multiplier", "requantization multiplier of each output channel", DType.INT32),
        writes("y", "output, channels last", *_CODES),
        scratch("taps", "offsets of the pixels that contribute, and their taps", DType.INT32),
    ),
    params=(ChannelGroups, SpreadGeometry, CodeStore),
    options=(SpreadTypes,),
    emit=transposed_call,
)
"""Kernel of transposed convolutions of quantized values in plain C, for any geometry with two spatial axes."""


# ------------------------------------------------------------------------------------------------- phases


@dataclass(frozen=True, eq=False)
class PhaseSpec(ConvSpec):
    """One phase of a transposed convolution, as a matrix product of windows of x and a part of the kernel.

    A phase is the rows of y whose number has one remainder modulo the vertical stride. A window gives the channels of
    `stride_width` adjacent pixels of y: these are the output channels of the phase.

    Attributes:
        codes: Requantization of the whole layer, with a multiplier for each output channel of the phase.
        first: First row of x of a window, relative to the row number of y divided by the vertical stride.
    """

    codes: Requantizer
    first: int

    @cached_property
    def requantizer(self) -> Requantizer:
        """Return the requantization of the whole transposed convolution, of which this is one phase.

        All phases (rows of y with one remainder modulo the vertical stride) must be rounded in the same way.
        """
        return self.codes


@dataclass(frozen=True, eq=False)
class TransposedSpec(ConvSpec):
    """The specification of a transposed convolution, channels last, which can be divided into ordinary matrix products.

    For kernels with fast matrix products, it gives the phases: one product for each remainder of y's row number modulo
    the vertical stride.
    """

    @staticmethod
    def of(node: Node, window: Window, groups: int, clamp: Range | None) -> TransposedSpec:
        """Return the specification of a node with inputs x, weights and a bias.

        Args:
            node: The node, channels last.
            window: Strides, dilations and padding.
            groups: Groups of channels.
            clamp: Range that results are clamped to, if any.
        """
        whole = ConvSpec.of(node, window, groups, clamp)
        return TransposedSpec(whole.x, whole.w, whole.y, whole.weights, whole.bias, clamp, whole.shape)

    @cached_property
    def columns(self) -> tuple[int, int]:
        """Return which columns of x a window covers, where a window gives `stride_width` adjacent pixels of y.

        Returns:
            The first column, relative to the window's number in the row of y, and the number of columns.
        """
        offsets = [
            at for place in range(self.shape.stride_width) for _, at in contributing_taps(self.shape, "width", place)
        ]
        first = min(offsets, default=0)
        return first, max(offsets, default=0) - first + 1

    @property
    def windows(self) -> int:
        """Return the number of windows of x from which a row of y is computed.

        Each gives `stride_width` adjacent pixels, the last one perhaps fewer.
        """
        return -(-self.shape.out_width // self.shape.stride_width)

    @property
    def has_partial_window(self) -> bool:
        """Return whether the last window of x for a row of y gives pixels beyond the end of the row.

        Each window gives `stride_width` adjacent pixels of y.
        """
        return self.shape.out_width % self.shape.stride_width != 0

    @cached_property
    def phases(self) -> tuple[PhaseSpec, ...]:
        """Return the phases of the layer, one for each remainder of y's row number modulo the vertical stride.

        A phase is a matrix product of windows of x and a part of the kernel. Groups of channels are merged into one
        group, with zero weights between them.
        """
        return tuple(self._phase(place) for place in range(self.shape.stride_height))

    def _phase(self, place: int) -> PhaseSpec:
        shape, (left, taps) = self.shape, self.columns
        weights = self._filled
        rows = contributing_taps(shape, "height", place)
        first = min((at for _, at in rows), default=0)
        span = max((at for _, at in rows), default=0) - first + 1
        phase_weights = np.zeros((shape.stride_width, shape.out_channels, span, taps, shape.in_channels), weights.dtype)
        for ky, row in rows:
            for pixel in range(shape.stride_width):
                for kx, column in contributing_taps(shape, "width", pixel):
                    phase_weights[pixel, :, row - first, column - left] = weights[:, ky, kx]
        packed = phase_weights.reshape(-1, *phase_weights.shape[2:])
        bias, codes = (np.tile(a, shape.stride_width) for a in (self.integer_bias, self._multipliers))
        line = ConvShape.of_rows(self.windows, packed[0].size, len(packed))
        codes_of = replace(self.requantizer, multiplier=codes)
        return PhaseSpec(self.x, self.w, self.y, packed, bias, self.clamp, line, codes_of, first)

    @property
    def _filled(self) -> Array:
        """Return the weights as [O, kernel_height, kernel_width, C], with zeros for input channels of other groups."""
        shape = self.shape
        grouped_weights = self.weights.reshape(
            shape.groups, -1, shape.kernel_height, shape.kernel_width, shape.in_channels // shape.groups
        )
        filled = np.zeros((*grouped_weights.shape[:-1], shape.groups, grouped_weights.shape[-1]), grouped_weights.dtype)
        for group, weights in enumerate(grouped_weights):
            filled[group, ..., group, :] = weights
        return filled.reshape(shape.out_channels, shape.kernel_height, shape.kernel_width, shape.in_channels)

    @property
    def _multipliers(self) -> Array:
        return np.broadcast_to(self.requantizer.multiplier, self.channels)

    @property
    def reads_pixels(self) -> bool:
        """Return whether each window is a single pixel of x, at the window's own position, and inside x.

        A window gives `stride_width` adjacent pixels of y. A kernel can then read the windows in x, without an im2col
        copy.
        """
        single = all(p.first == 0 and p.weights.shape[1] == 1 for p in self.phases) and self.columns == (0, 1)
        shape = self.shape
        inside = self.windows <= shape.in_width and shape.out_height <= shape.in_height * shape.stride_height
        return single and inside

    def traversal(self, at_once: int, rereads: bool) -> Traversal:
        """Return the order of reads and writes of a kernel that computes y row by row, from windows of x.

        The order tells how far y may overlap x in memory. Each window gives `stride_width` adjacent pixels of y.

        Args:
            at_once: Windows that are read together.
            rereads: Whether windows are read again while y is written.
        """
        shape, (left, taps) = self.shape, self.columns
        oy = np.arange(shape.out_height)[:, None]
        tops, spans = (np.array(by_place)[oy % shape.stride_height] for by_place in zip(*self._spans, strict=True))
        top, start = oy // shape.stride_height + tops, np.arange(0, self.windows, at_once)
        row, column = np.maximum(top, 0), np.maximum(start + left, 0)
        left_of_image = start + min(at_once, self.windows) - 1 + left + taps <= 0
        none = (top + spans <= 0) | (row >= shape.in_height) | (column >= shape.in_width) | left_of_image
        pixels = shape.in_height * shape.in_width
        first = np.where(none, pixels, row * shape.in_width + column).reshape(-1)
        ends = oy * shape.out_width + np.minimum((start + at_once) * shape.stride_width, shape.out_width)
        image = np.arange(shape.batch)[:, None]
        reads = (np.where(first < pixels, image * pixels + first, shape.batch * pixels)).reshape(-1) * shape.in_channels
        writes = ((image * shape.out_height * shape.out_width + ends.reshape(-1)) * shape.out_channels).reshape(-1)
        times = 2 if rereads else 1
        return Traversal(np.repeat(reads, times), np.repeat(writes, times))

    @property
    def _spans(self) -> list[tuple[int, int]]:
        return [(phase.first, phase.weights.shape[1]) for phase in self.phases]


def contributing_taps(shape: ConvShape, axis: str, place: int) -> list[tuple[int, int]]:
    """Return the taps of a transposed convolution that contribute to outputs at one position modulo the stride.

    With stride s, only the taps of one remainder modulo s meet an input at a given output position.

    Args:
        shape: Geometry of the convolution.
        axis: The spatial axis: "height" or "width".
        place: The output position along the axis modulo the stride.

    Returns:
        Pairs of a tap and the input position that it reads, relative to the output position divided by the stride.
    """
    _, _, taps, stride, dilation, pad = shape.along(axis)
    met = ((tap, place + pad - tap * dilation) for tap in range(taps))
    return [(tap, at // stride) for tap, at in met if at % stride == 0]


class PhaseRows(Params):
    """Kernel parameters of a transposed convolution in phases: sizes of x and y, numbers of phases and windows.

    A phase is the rows of y whose number has one remainder modulo the vertical stride. Each window of x gives as many
    adjacent pixels of a row of y as the horizontal stride.
    """

    images: Annotated[int, "images of x and y"]
    x_height: Annotated[int, "rows of an image of x"]
    x_width: Annotated[int, "pixels of a row of x"]
    x_channels: Annotated[int, "channels of a pixel of x"]
    y_height: Annotated[int, "rows of an image of y"]
    y_row_size: Annotated[int, "elements of a row of y"]
    phases: Annotated[int, "phases: rows of y per row of x"]
    windows_per_row: Annotated[int, "windows of a row"]


class PhasePatches(Params):
    """Kernel parameters of the im2col step of a transposed convolution, which copies windows of x to scratch memory.

    Each window gives several adjacent pixels of a row of y.
    """

    first_pixel: Annotated[int, "pixel of x at which the first window begins"]
    window_pixels: Annotated[int, "pixels of a row of a window"]
    max_windows: Annotated[int, "largest number of windows that are gathered at a time"]


class PhaseOptions(Options):
    """Template options of a transposed convolution in phases: how windows of x are read, and how rows of y are written.

    A phase is the rows of y whose number has one remainder modulo the vertical stride. A window of x gives several
    pixels of such a row; the last window may give pixels beyond the end of the row.
    """

    reads_in_place: Annotated[bool, "whether windows are pixels of x, which are read in place"]
    has_partial_rows: Annotated[
        bool, "whether rows are computed in scratch memory, because their last window exceeds the row"
    ]


MAX_GATHERED_BYTES = 1024
"""Largest size, in bytes, of the windows that are gathered at a time, unless the kernel's smallest number of windows
needs more."""


@dataclass(frozen=True)
class _Rows:
    """The phases of a layer as a kernel reads them: windows begin a multiple of `unit` bytes apart.

    The kernel takes `at_least` windows together; `rereads` says whether it reads them again while it writes.
    """

    spec: TransposedSpec
    unit: int
    at_least: int
    rereads: bool
    direct_unit: int = 1

    @property
    def is_direct(self) -> bool:
        """Return whether windows are pixels of x, which are read where they lie."""
        return self.spec.reads_pixels and self.spec.shape.in_channels % self.direct_unit == 0

    @property
    def pitches(self) -> list[int]:
        """Return the bytes from window to window, by phase."""
        if self.is_direct:
            return [self.spec.shape.in_channels] * len(self.spec.phases)
        return [-(-phase.depth // self.unit) * self.unit for phase in self.spec.phases]

    @property
    def most(self) -> int:
        """Return the windows that are gathered at a time."""
        fitting = MAX_GATHERED_BYTES // max(self.pitches) // self.at_least * self.at_least
        return min(max(fitting, self.at_least), self.spec.windows)

    def table(self, sizes: Sequence[int]) -> Array:
        """Return the table of phases.

        A row has the first row of the windows, their rows, the bytes from window to window, and where the weights
        begin.
        """
        starts = np.cumsum([0, *sizes[:-1]])
        rows = zip(self.spec.phases, self.pitches, starts, strict=True)
        return np.array([(p.first, p.weights.shape[1], pitch, start) for p, pitch, start in rows], np.int32)

    @property
    def params(self) -> list[Params]:
        """Return the parameters common to all kernels by phases."""
        spec, shape = self.spec, self.spec.shape
        rows = PhaseRows(
            images=shape.batch,
            x_height=shape.in_height,
            x_width=shape.in_width,
            x_channels=shape.in_channels,
            y_height=shape.out_height,
            y_row_size=shape.out_width * shape.out_channels,
            phases=shape.stride_height,
            windows_per_row=spec.windows,
        )
        first, taps = spec.columns
        return [
            rows,
            *([] if self.is_direct else [PhasePatches(first_pixel=first, window_pixels=taps, max_windows=self.most)]),
        ]

    @property
    def options(self) -> PhaseOptions:
        """Return the template options common to all kernels by phases."""
        return PhaseOptions(reads_in_place=self.is_direct, has_partial_rows=self.spec.has_partial_window)

    def working(self, site: Site) -> dict[str, Buffer]:
        """Return the working memory for windows, and for a row of y if it is cut."""
        buffers = {}
        if not self.is_direct:
            buffers["patches"] = site.scratch("patches", DType.INT8, self.most * max(self.pitches))
        if self.spec.has_partial_window:
            line = self.spec.windows * self.spec.shape.stride_width * self.spec.shape.out_channels
            buffers["line"] = site.scratch("line", DType.INT8, line)
        return buffers

    def call(self, site: Site, operands: dict[str, Buffer], params: list[Params], options: list[Options]) -> Call:
        """Return the call of the kernel.

        Args:
            site: Operands and CPU features of the call.
            operands: Buffers by role.
            params: Further parameters, in addition to those of phases.
            options: Further template options, in addition to those of phases.
        """
        at_once = self.at_least if self.is_direct else self.most
        free = self.spec.overlaps(self.spec.traversal(at_once, self.rereads and self.is_direct))
        variant = "_".join(["direct"] * self.is_direct + ["cut"] * self.spec.has_partial_window)
        return site.call(operands, [*params, *self.params], [*options, self.options], overlaps=free, variant=variant)


MAX_MERGED_GROUPS = 4
"""Largest number of groups of channels that are merged into one with zero weights between them: this is faster than a
loop over groups, with Helium and the DSP extension."""


def has_few_groups(spec: TransposedSpec) -> bool:
    """Require at most four groups of channels.

    Return whether the convolution has at most four groups of channels, a condition of kernels (Kernel.when).
    """
    return spec.shape.groups <= MAX_MERGED_GROUPS


def fits_packed_pairs(spec: TransposedSpec) -> bool:
    """Require sums of 24 bits in odd channels, and int8 weights of two channels that share 16 bits, in all phases.

    Return whether, in all phases (rows of y with one remainder modulo the vertical stride), the int8 weights of two
    output channels can be packed into 16 bits as a weighted sum, and the accumulators of odd channels fit 24 bits.
    """
    return all(dsp_conv.fits_packed_pairs(phase) for phase in spec.phases)


def _dsp_rows(spec: TransposedSpec) -> _Rows:
    return _Rows(spec, unit=8, at_least=2, rereads=False, direct_unit=8)


def emit_dsp(spec: TransposedSpec, site: Site) -> Call:
    """Return the call of a transposed convolution for the DSP extension, with weights packed phase by phase.

    A phase is the rows of y whose number has one remainder modulo the vertical stride.
    """
    rows, head = _dsp_rows(spec), spec.phases[0]
    streams, pitch = [], max(rows.pitches)
    for phase in spec.phases:
        padded = np.pad(phase.rows, ((0, 0), (0, -phase.depth % 8))).reshape(phase.channels, -1, dsp_conv.GROUP)
        words = dsp_conv.pack_weights(
            padded[:, :, dsp_conv.SXTB16_ORDER], dsp_conv.sum_conversion(phase, True), 2, True
        )
        streams.append(words.reshape(-1))
    shape = ConvShape.of_rows(spec.windows, pitch, head.channels)
    walk = dsp_conv.PixelWalk(
        runs_per_kernel_row=1,
        run_stride=0,
        loads_per_run=0,
        load_size=8,
        copies_rows=0,
        ring_rows=1,
        input_row_stride=0,
        ring_padding_left=0,
        first_window_offset=0,
        rows_per_pair=1,
        window_stride=0,
    )
    operands = {
        "x": site.x,
        "w": site.const("weights", np.concatenate(streams)),
        "phases": site.const("phases", rows.table([len(words) for words in streams])),
        "y": site.y,
        "patch": site.scratch("patch", DType.INT16, 2 * pitch),
        "table": site.scratch("table", DType.INT32, 2),
        **rows.working(site),
    }
    loop = dsp_conv.InnerLoop(x_zero_point=spec.x.q.zero_point, patch_bytes=0, inner_iterations=0)
    params = [shape.geometry, walk, dsp_conv.sum_conversion(head, True).params, loop]
    written = dsp_conv.UnrollOptions(x_t=spec.x.dtype.c, unrolled_patch=None, unrolled_steps=0, grouped=False)
    return rows.call(site, operands, params, [dsp_conv.StreamOptions.of(head), Loops.of(site), written])


def count_dsp_steps(spec: TransposedSpec) -> int:
    """Count the inner-loop steps per inference of the kernel for the DSP extension, for the cost model.

    A step multiplies four elements of two windows of x with the weights of two output channels.
    """
    rows = _dsp_rows(spec)
    return _blocks_of(spec, 2, 2) * sum(rows.pitches) // 4


def _blocks_of(spec: TransposedSpec, windows: int, channels: int) -> int:
    """Return the blocks of windows and channels of a phase."""
    rows = spec.shape.batch * -(-spec.shape.out_height // spec.shape.stride_height)
    return rows * -(-spec.windows // windows) * -(-spec.phases[0].channels // channels)


def _mve_rows(spec: TransposedSpec) -> _Rows:
    return _Rows(spec, unit=layer.VECTOR, at_least=2, rereads=True)


def emit_mve(spec: TransposedSpec, site: Site) -> Call:
    """Return the call of a transposed convolution for Helium, with weights and requantization tables phase by phase.

    A phase is the rows of y whose number has one remainder modulo the vertical stride.
    """
    rows, head = _mve_rows(spec), spec.phases[0]
    vectors, tables = [], [layer.RequantizationTable(phase) for phase in spec.phases]
    packed = [layer.pack_vectors(phase.rows, layer.CHANNELS_PER_BLOCK) for phase in spec.phases]
    loop = layer.VectorLoop(*divmod(spec.shape.in_channels, layer.VECTOR))
    if not rows.is_direct:
        vectors = [pitch // layer.VECTOR for pitch in rows.pitches]
        loop = layer.VectorLoop(int(np.gcd.reduce(vectors)))
    flags = loop.flags
    if vectors:
        flags = replace(flags, has_loop=max(vectors) > flags.unroll)
    frame = layer.gemm_frame(tables[0], loop, 2 * max(rows.pitches))
    operands = {
        "x": site.x,
        "w": site.const("weights", np.concatenate(packed)),
        "table": site.const("table", np.concatenate([table.data for table in tables])),
        "phases": site.const("phases", rows.table([len(part) for part in packed])),
        "y": site.y,
        **rows.working(site),
    }
    options = [flags, layer.RowJumpOption(), *(f for f in tables[0].flags if type(f) in site.kernel.options)]
    zero = [] if rows.is_direct else [layer.padding(head)]
    return rows.call(site, operands, [frame, _Channels(out_channels=head.channels), *zero], options)


def count_mve_steps(spec: TransposedSpec) -> int:
    """Count the inner-loop steps per inference of the kernel for Helium, for the cost model.

    A step multiplies 16 elements of two windows of x with the weights of four output channels.
    """
    return _blocks_of(spec, 2, layer.CHANNELS_PER_BLOCK) * sum(-(-phase.depth // layer.VECTOR) for phase in spec.phases)


class _Channels(Params):
    """Number of channels of a phase."""

    out_channels: Annotated[int, "elements that a window gives: channels of adjacent pixels of y"]


def _thumb_rows(spec: TransposedSpec) -> _Rows:
    return _Rows(spec, unit=1, at_least=1, rereads=True)


def emit_thumb1(spec: TransposedSpec, site: Site) -> Call:
    """Return the call of a transposed convolution for Thumb-1, with weights packed phase by phase.

    A phase is the rows of y whose number has one remainder modulo the vertical stride. Weights are packed for six
    output channels at a time.
    """
    rows, head = _thumb_rows(spec), spec.phases[0]
    packed, tails = zip(*(scalar_conv.pack_in_sixes(phase) for phase in spec.phases), strict=True)
    offset, codes = scalar_conv.thumb1_requantization(spec.requantizer, spec.largest_sum, spec.limits)
    operands = {
        "x": site.x,
        "w": site.const("weights", np.concatenate([part.reshape(-1) for part in packed])),
        "tails": site.const("tails", np.concatenate([part.reshape(-1) for part in tails])),
        "phases": site.const("phases", rows.table([part.size for part in packed])),
        "y": site.y,
        **rows.working(site),
    }
    size = DenseSizes(rows=0, depth=spec.shape.in_channels, out_channels=head.channels)
    zero = [] if rows.is_direct else [layer.padding(head)]
    tail_options = RestOptions(has_tail_channels=head.channels % 6 > 0)
    return rows.call(site, operands, [offset, size, *zero], [codes, tail_options])


def count_thumb1_steps(spec: TransposedSpec) -> int:
    """Count the inner-loop steps per inference of the kernel for Thumb-1, for the cost model.

    A step multiplies one element of a window of x with the weights of six output channels.
    """
    return _blocks_of(spec, 1, 6) * sum(phase.depth for phase in spec.phases)


_BY_VALUE = frozenset({CHECKED})
"""Tuning flag that kernels by phases lack: the table of phases holds addresses of weights and sizes of windows."""
_PHASES = reads("phases", "table of phases, by row of y modulo the stride (templates/kernels/phases.j2)", DType.INT32)
_WORKING: tuple[Role, ...] = (
    scratch("patches", "inputs under some windows", DType.INT8, optional=True),
    scratch("line", "a row of y, with the pixels of its last window beyond the row", DType.INT8, optional=True),
)
_BY_PHASES = "a transposed convolution as products of windows and parts of the kernel, a row at a time"

CONV_TRANSPOSE_KERNELS: tuple[Kernel, ...] = (
    Kernel(
        "conv_transpose_s8_dsp",
        what=f"{_BY_PHASES}: two windows by two channels; few groups are one, with zeros between them",
        operands=(
            reads("x", "input, channels last", DType.INT8),
            reads("w", "by phase and pair of channels: biases, packed weights, multipliers", DType.INT32, holds=(1, 2)),
            _PHASES,
            writes("y", "output, channels last", DType.INT8),
            scratch("patch", "two windows, widened", DType.INT16),
            scratch("table", "addresses of the two windows", DType.INT32),
            *_WORKING,
        ),
        params=(
            *(ConvGeometry, dsp_conv.PixelWalk, dsp_conv.HighWord, dsp_conv.InnerLoop),
            *(PhaseRows, PhasePatches),
        ),
        optional=(PhasePatches,),
        without=dsp_conv.UNUSED_GEOMETRY,
        options=(dsp_conv.StreamOptions, Loops, dsp_conv.UnrollOptions, PhaseOptions),
        needs=frozenset({"dsp"}),
        lacks=frozenset({"mve"}) | _BY_VALUE,
        when=(has_few_groups, int8_tensors, dsp_conv.fits_high_word, fits_packed_pairs),
        emit=emit_dsp,
        extra=count_dsp_steps,
    ),
    Kernel(
        "conv_transpose_s8_mve",
        what=f"{_BY_PHASES}: two windows by four channels; few groups are one, with zeros between them",
        operands=layer.operands(_PHASES, working=_WORKING),
        params=(layer.GemmFrame, _Channels, layer.Padding, PhaseRows, PhasePatches),
        optional=(layer.Padding, PhasePatches),
        options=(
            layer.LoopFlags,
            layer.RowJumpOption,
            layer.TailChannelsOption,
            layer.Clamped,
            layer.Shifted,
            layer.ResultOptions,
            PhaseOptions,
        ),
        needs=frozenset({"mve"}),
        lacks=_BY_VALUE,
        when=(has_few_groups, layer.is_int8_in_32_bits),
        emit=emit_mve,
        extra=count_mve_steps,
    ),
    Kernel(
        "conv_transpose_s8_thumb1",
        what=f"{_BY_PHASES}: a window by six channels",
        operands=(
            reads("x", "input, channels last", DType.INT8),
            reads("w", "weights + 128 in blocks of six channels, by phase", DType.UINT8, holds=(1,)),
            reads("tails", "biases and multipliers by six channels, by phase", DType.INT32, holds=(2,)),
            _PHASES,
            writes("y", "output, channels last", DType.INT8),
            *_WORKING,
        ),
        params=(scalar_conv.ThumbOffset, DenseSizes, layer.Padding, PhaseRows, PhasePatches),
        optional=(layer.Padding, PhasePatches),
        options=(scalar_conv.ThumbOptions, RestOptions, PhaseOptions),
        needs=frozenset({"thumb1"}),
        lacks=_BY_VALUE,
        when=(dsp_conv.ungrouped, scalar_conv.has_int8_tensors, scalar_conv.fits_32_bit_products),
        emit=emit_thumb1,
        extra=count_thumb1_steps,
    ),
    CONV_TRANSPOSE_INT,
)
"""Kernels of transposed convolutions of quantized values, in order of preference."""
