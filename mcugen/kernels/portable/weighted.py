# SPDX-License-Identifier: Apache-2.0
"""Kernels of weighted layers in portable C: fallbacks for all shapes and types on any CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np

from mcugen.hir.types import Array, DType
from mcugen.kernels.common.conv_shape import ConvGeometry, ConvShape
from mcugen.kernels.common.reading_order import in_turn, rows, windows
from mcugen.kernels.common.specs import ConvSpec, WeightedSpec
from mcugen.kernels.common.weighted_layers import (
    CHANNELS_PER_NIBBLE_WORD,
    INTERLEAVED_ROWS,
    ElementTypes,
    FloatLimits,
    FloatStore,
    IntegerStore,
    Requantization,
    element_types,
    float_tensors,
    four_bits,
    half_weights,
    int8_tensors,
    int16_tensors,
    interleave,
    interleave_nibbles,
    interleave_quarters,
    pack_adjacent_nibbles,
    pack_nibble_words,
    scaled_int8_weights,
    scaled_store,
    store_of,
    two_bits,
)
from mcugen.lir.kernel import UPDATABLE, Call, Kernel, Options, Params, Role, Site, reads, scratch, writes
from mcugen.lir.program import Buffer, Overlap


def is_depthwise(spec: ConvSpec) -> bool:
    """Require a depthwise convolution: each channel has its own filter.

    Return whether the convolution is depthwise, a condition of kernels (Kernel.when).
    """
    return spec.shape.is_depthwise


def depthwise(spec: ConvSpec) -> bool:
    """Require a depthwise convolution of all channels of a pixel in memory.

    Return whether the convolution is depthwise, and its pixels have no further channels in memory, as they have if the
    channels of a layer are divided between two cores.
    """
    return spec.shape.is_depthwise and spec.shape.pixel_channels is None


def is_not_depthwise(spec: ConvSpec) -> bool:
    """Require a convolution that is not depthwise.

    Return whether the convolution is not depthwise, a condition of kernels (Kernel.when).
    """
    return not spec.shape.is_depthwise


def is_single_pixel(spec: ConvSpec) -> bool:
    """Require one output pixel that reads one input pixel.

    Return whether the layer has one group of channels and one output pixel, which depends on one input pixel: a fully
    connected layer of one row.
    """
    shape = spec.shape
    return shape.groups == 1 and shape.reads_pixels and spec.y.count == shape.out_channels


class DenseSizes(Params):
    """Kernel parameters with the sizes of a fully connected layer."""

    rows: Annotated[int, "rows of x and y"]
    depth: Annotated[int, "elements of a row of x"]
    out_channels: Annotated[int, "elements of a row of y"]

    @staticmethod
    def of(spec: WeightedSpec) -> DenseSizes:
        """Return the kernel parameters with the sizes of a fully connected layer."""
        return DenseSizes(rows=spec.y.count // spec.channels, depth=spec.depth, out_channels=spec.channels)


class RestOptions(Options):
    """Template option of kernels that compute several output channels at a time: whether the last block is partial.

    A block is the channels that are computed together; a partial block has fewer channels.
    """

    has_tail_channels: Annotated[bool, "whether the last block of channels is partial"]


class Gathering(Params):
    """Kernel parameters of the im2col step, which copies the inputs under a window to a patch in scratch memory.

    The inputs under a row of the window are copied as runs: adjacent pixels that are copied together.
    """

    depth: Annotated[int, "products of a sum: bytes or elements of a patch"]
    groups: Annotated[int, "groups of channels"]
    group_out_channels: Annotated[int, "output channels of a group"]
    group_in_channels: Annotated[int, "input channels of a group"]
    reads_in_place: Annotated[int, "1 if the pixels of x are read in place, without im2col"]
    runs_per_kernel_row: Annotated[int, "runs of adjacent pixels in a row of the window"]
    taps_per_run: Annotated[int, "pixels of a run"]


class Lines(Params):
    """Kernel parameters of a convolution whose windows are read in x row by row, without an im2col copy.

    The elements of x under a row of the window are adjacent in memory.
    """

    kernel_row_size: Annotated[int, "adjacent elements of x under one row of the window"]
    kernel_row_gap: Annotated[int, "elements of x from the end of a row of the window to the start of the next row"]

    @staticmethod
    def of(shape: ConvShape) -> Lines | None:
        """Return the parameters of a convolution whose windows are read in x row by row, without an im2col copy.

        Returns:
            The parameters; None if windows extend beyond x, there are several groups of channels, the elements of a
            window row are not adjacent, or the window is a single pixel, for which no parameters are needed.
        """
        if not shape.is_inside or shape.groups > 1 or shape.dilation_width > 1 or shape.reads_pixels:
            return None
        line = shape.kernel_width * shape.in_channels
        return Lines(
            kernel_row_size=line, kernel_row_gap=shape.dilation_height * shape.in_width * shape.in_channels - line
        )


class WindowRows(RestOptions):
    """Template options of convolutions in plain C: how windows are read, and whether the last block is partial.

    A block is the output channels that are computed together. With `lines`, windows are read in x row by row; else they
    are copied to scratch memory (im2col), or are single pixels.
    """

    lines: Annotated[bool, "whether windows are read in x, row by row"]


class Ring(Params):
    """Kernel parameters of the ring buffer of padded input rows from which depthwise convolutions read windows."""

    row_pixels: Annotated[int, "pixels of a row in the ring buffer, or of x if it is read in place"]
    reads_in_place: Annotated[int, "1 if x is read in place, without a ring buffer"]
    pixel_channels: Annotated[
        int | None, "channels of a pixel of x and y in memory, if the layer computes only some of them"
    ] = None


class WindowOptions(Options):
    """Template options of the loops over the taps of a window, which are unrolled if the window is small."""

    kernel_height: Annotated[int, "rows of the window; 0: not unrolled"]
    kernel_width: Annotated[int, "columns of the window; 0: not unrolled"]


def weighted_call(
    spec: ConvSpec,
    site: Site,
    packed: Array,
    params: Sequence[Params],
    option: Options,
    overlaps: Sequence[Overlap],
    *,
    working: tuple[str, int] | None = None,
    variant: str = "",
) -> Call:
    """Return the kernel call of a layer whose weights, bias and multipliers (of integer layers) are separate operands.

    Parameters and options of the requantization or clamp are added to the given ones.

    Args:
        spec: The layer.
        site: Operands and CPU features of the call.
        packed: The weights in the order in which the kernel reads them.
        params: Parameters of the loops.
        option: Template options of the loops.
        overlaps: How far the output y may overlap the input x in memory.
        working: Operand name of the scratch buffer, and its number of elements of the input's type; None without a
            buffer.
        variant: Part of the C function's name.
    """
    store = scaled_store(spec) if scaled_int8_weights in site.kernel.when else store_of(spec)
    operands: dict[str, Buffer] = {"x": site.x, "w": site.const("weights", packed, _block_size(spec, site, packed))}
    operands |= {role: site.const(role, array) for role, array in store.constants.items()}
    operands["y"] = site.y
    if working:
        operands[working[0]] = site.scratch(working[0], spec.x.dtype, working[1])
    options = [element_types(spec, packed), option, store.options]
    variant = "_".join(part for part in (variant, store.variant) if part)
    return site.call(operands, [*params, store.params], options, overlaps=overlaps, variant=variant)


def emit_dense(spec: ConvSpec, site: Site) -> Call:
    """Return the call of a fully connected layer in C, which computes four output channels at a time.

    Loops: rows, blocks of four channels, inputs. Weights are packed as [block][depth][4]; the channels behind the last
    whole block follow as [channel][depth].
    """
    channels, shape = spec.channels, spec.shape
    size = DenseSizes(rows=spec.y.count // channels, depth=spec.depth, out_channels=channels)
    has_tail = channels % INTERLEAVED_ROWS != 0
    order = windows(shape, in_turn(shape.out_height * shape.out_width, 1), last=1 if has_tail else INTERLEAVED_ROWS)
    packed, free = _interleaved(spec.rows, site), spec.overlaps(order)
    return weighted_call(spec, site, packed, [size], RestOptions(has_tail_channels=has_tail), free)


def emit_dense_nibbles(spec: ConvSpec, site: Site) -> Call:
    """Return the call of a fully connected layer with 4-bit weights, eight output channels at a time.

    A 32-bit word holds the weights of eight channels for one input (pack_nibble_words).
    """
    has_tail = spec.channels % CHANNELS_PER_NIBBLE_WORD != 0
    shape = spec.shape
    order = windows(
        shape, in_turn(shape.out_height * shape.out_width, 1), last=1 if has_tail else CHANNELS_PER_NIBBLE_WORD
    )
    return weighted_call(
        spec,
        site,
        pack_nibble_words(spec.rows),
        [DenseSizes.of(spec)],
        RestOptions(has_tail_channels=has_tail),
        spec.overlaps(order),
    )


def _block_size(spec: ConvSpec, site: Site, packed: Array) -> int:
    """Return the elements of a packed block of four (or eight) output channels.

    The result is 0 if the weights have axes, or if groups of channels end with channels outside of blocks.
    """
    groups = spec.shape.groups
    if packed.ndim > 1 or (groups > 1 and spec.channels // groups % INTERLEAVED_ROWS):
        return 0
    if packed.dtype == np.uint32:  # A word holds the weights of eight channels.
        return spec.depth
    weights_per_element = 2 if four_bits in site.kernel.when else 4 if two_bits in site.kernel.when else 1
    return INTERLEAVED_ROWS * spec.depth // weights_per_element


def _interleaved(rows: Array, site: Site) -> Array:
    """Return weights interleaved by four channels, in the kernel's format: as they are, of 4 or 2 bits, or float16."""
    if four_bits in site.kernel.when:
        return interleave_nibbles(rows)
    if two_bits in site.kernel.when:
        return interleave_quarters(rows)
    return _as_stored(interleave(rows), site)


def _stored_rows(spec: ConvSpec, site: Site) -> Array:
    """Return the weights [out_channels, depth], as int8 if the kernel multiplies sums by scales."""
    if scaled_int8_weights not in site.kernel.when:
        return spec.rows
    assert spec.scaled_int8_rows is not None
    return spec.scaled_int8_rows[0]


def _as_stored(weights: Array, site: Site) -> Array:
    """Return weights as float16 if the kernel reads these."""
    return weights.astype(np.float16) if half_weights in site.kernel.when else weights


def emit_conv(spec: ConvSpec, site: Site) -> Call:
    """Return the call of a convolution in plain C, two pixels by four output channels at a time.

    Windows are copied to scratch memory (im2col) unless they can be read in x. Loops: pairs of pixels, groups of
    channels, blocks of four channels, inputs. In each group, weights are packed as [block][depth][4]; the channels
    behind the last whole block follow as [channel][depth].
    """
    shape, weights, depth = spec.shape, spec.weights, spec.depth
    group_out = spec.channels // shape.groups
    grouped = _stored_rows(spec, site).reshape(shape.groups, group_out, depth)
    packed = np.concatenate([_interleaved(group, site) for group in grouped])
    direct, joined = shape.groups == 1 and shape.reads_pixels, shape.dilation_width == 1 and shape.groups == 1
    lines = None if site.any_size else Lines.of(shape)
    gathering = Gathering(
        depth=depth,
        groups=shape.groups,
        group_out_channels=group_out,
        group_in_channels=weights.shape[-1],
        reads_in_place=int(direct),
        runs_per_kernel_row=1 if joined else shape.kernel_width,
        taps_per_run=shape.kernel_width if joined else 1,
    )
    has_tail = group_out % INTERLEAVED_ROWS != 0
    last = (1 if has_tail else INTERLEAVED_ROWS) if direct or lines else 0
    free = spec.overlaps(windows(shape, in_turn(shape.out_height * shape.out_width, 2), last))
    patches = None if lines else ("patches", 0 if direct else 2 * depth)
    variant = "grouped" if shape.groups > 1 else "lines" if lines else ""
    params, options = (
        [shape.geometry, lines or gathering],
        WindowRows(has_tail_channels=has_tail, lines=lines is not None),
    )
    call = weighted_call(spec, site, packed, params, options, free, working=patches, variant=variant)
    return replace(call, baked=frozenset({"groups"} if shape.groups == 1 and not lines else ()))


def emit_depthwise(spec: ConvSpec, site: Site) -> Call:
    """Return the call of a depthwise convolution in plain C, with a ring buffer of padded rows where windows leave x.

    The taps of a window of at most 25 are unrolled.
    """
    shape = spec.shape
    unrolled, direct = shape.kernel_height * shape.kernel_width <= 25, reads_in_place(shape) and not site.any_size
    options = WindowOptions(
        kernel_height=shape.kernel_height if unrolled else 0, kernel_width=shape.kernel_width if unrolled else 0
    )
    order = windows(shape, in_turn(shape.out_height * shape.out_width, 1)) if direct else rows(shape)
    variant = f"{shape.kernel_height}x{shape.kernel_width}" if unrolled else ""
    params, ring = [shape.geometry, ring_of(shape, direct)], ("rows", ring_size(shape, direct))
    taps = _stored_rows(spec, site)
    if four_bits in site.kernel.when:
        taps = pack_adjacent_nibbles(taps)
    taps = _as_stored(taps, site)
    return weighted_call(spec, site, taps, params, options, spec.overlaps(order), working=ring, variant=variant)


def _padded_width(shape: ConvShape) -> int:
    """Return the pixels of a padded row, which no tap leaves."""
    return max(
        shape.stride_width * (shape.out_width - 1) + shape.dilation_width * (shape.kernel_width - 1) + 1,
        shape.padding_left + shape.in_width,
    )


def reads_in_place(shape: ConvShape) -> bool:
    """Return whether a kernel can read windows in x, without copies of its rows in a ring buffer with padding.

    This is so if no window extends beyond x, and the layer covers all channels that pixels have in memory.
    """
    return shape.is_inside and shape.pixel_channels is None


def ring_of(shape: ConvShape, direct: bool) -> Ring:
    """Return the kernel parameters of the ring buffer, which holds the input rows under a window, with padding.

    Args:
        shape: Geometry of the convolution.
        direct: Whether x is read in place, without a ring buffer; the parameters then describe x.
    """
    return Ring(
        row_pixels=shape.in_width if direct else _padded_width(shape),
        reads_in_place=int(direct),
        pixel_channels=shape.pixel_channels,
    )


def ring_size(shape: ConvShape, direct: bool) -> int:
    """Return the number of elements of the ring buffer, which holds the input rows under a window, with padding.

    Args:
        shape: Geometry of the convolution.
        direct: Whether x is read in place, without a ring buffer; the result is then 0.
    """
    return (
        0
        if direct
        else ((shape.kernel_height - 1) * shape.dilation_height + 1) * _padded_width(shape) * shape.in_channels
    )


_FLOAT = DType.FLOAT32
_CODES = (DType.INT8, DType.INT16)
_STORED = (*_CODES, DType.INT32)
_SUMS = (DType.INT32, DType.INT64)


_REALS = ("f32", "f16", "f32_w8")


_FOUR_CHANNELS = "by four output channels: their weights of each input in turn; then the remaining channels, one by one"
_BY_CHANNEL = "by channel, tap after tap"


def _operands(kind: str, order: str, *working: Role) -> tuple[Role, ...]:
    """Return the operands of a kernel: x, weights, bias, multiplier (of integers), y, and working memory.

    Args:
        kind: Types of inputs and weights.
        order: Order of the weights.
        working: Scratch operands.
    """
    is_float = kind in _REALS
    codes = (_FLOAT,) if is_float else _CODES
    narrow_types = {"s4": DType.UINT8, "s2": DType.UINT8, "f16": DType.FLOAT16, "f32_w8": DType.INT8}
    stored = (narrow_types[kind],) if kind in narrow_types else codes
    return (
        reads("x", "input, channels last", *codes),
        reads("w", f"weights {order}{_PACKED.get(kind, '')}", *stored, holds=(1,)),
        reads("bias", "bias of each channel", *((_FLOAT,) if is_float else _SUMS), holds=(2,)),
        *((reads("scale", "scale of the weights of each channel", _FLOAT),) if kind == "f32_w8" else ()),
        *(
            ()
            if is_float
            else (reads("multiplier", "requantization multiplier of each channel", DType.INT32, optional=True),)
        ),
        writes("y", "output, channels last", *((_FLOAT,) if is_float else _STORED)),
        *working,
    )


def _store(is_float: bool) -> tuple[type[FloatLimits | Requantization], type[FloatStore | IntegerStore]]:
    """Return the types of parameters and options that describe how sums are stored."""
    return (FloatLimits, FloatStore) if is_float else (Requantization, IntegerStore)


_TENSORS: Mapping[str, tuple[Callable[[ConvSpec], bool], ...]] = {
    "f32": (float_tensors,),
    "s8": (int8_tensors,),
    "s16": (int16_tensors,),
    "s4": (int8_tensors, four_bits),
    "s2": (int8_tensors, two_bits),
    "f16": (float_tensors, half_weights),
    "f32_w8": (float_tensors, scaled_int8_weights),
}

_LACKS: Mapping[str, frozenset[str]] = dict.fromkeys(("s4", "s2", "f16", "f32_w8"), frozenset({UPDATABLE}))
"""Tuning flags that kernels with narrow weights lack: updated weights may need more bits."""

_PACKED = {"s4": "; two 4-bit weights per byte, each plus 8", "s2": "; four 2-bit weights per byte, each plus 2"}
"""Packing of narrow weights, by kind of kernel."""

_STORED_SO = {
    "s4": ", two weights per byte",
    "s2": ", four weights per byte",
    "f16": ", weights of 16 bits, widened as they are read",
    "f32_w8": ", int8 weights with a scale per channel",
}


def _dense(kind: str) -> Kernel:
    if kind == "s4":
        return _DENSE_NIBBLES
    is_float = kind in _REALS
    params, options = _store(is_float)
    return Kernel(
        f"dense_{kind}",
        what="rows by a matrix, four channels at a time" + _STORED_SO.get(kind, ""),
        operands=_operands(kind, _FOUR_CHANNELS),
        params=(DenseSizes, params),
        without=frozenset() if is_float else frozenset({"x_zero_point"}),
        options=(ElementTypes, RestOptions, options),
        when=_TENSORS[kind],
        lacks=_LACKS.get(kind, frozenset()),
        emit=emit_dense,
        any_size=True,
        as_tflite=kind == "s8",
    )


def count_nibble_instructions(spec: ConvSpec) -> int:
    """Estimate the instructions per inference of the fully connected kernel for 4-bit weights on 32-bit CPUs.

    For each row of x, they are 20 per input and block of eight output channels, 60 per 16 inputs and block, and 7 per
    input and remaining channel.
    """
    blocks, remaining_channels = divmod(spec.channels, CHANNELS_PER_NIBBLE_WORD)
    row = blocks * (20 * spec.depth + 60 * -(-spec.depth // 16)) + remaining_channels * 7 * spec.depth
    return spec.y.count // spec.channels * row


_DENSE_NIBBLES = Kernel(
    "dense_s4",
    what="rows by a matrix, eight channels at a time, two in the halves of a word; two weights per byte",
    operands=tuple(
        replace(
            role,
            meaning="weights by eight output channels: a word of eight 4-bit weights, each plus 8, for each input; "
            "then the remaining channels, eight inputs per word",
            types=(DType.UINT32,),
        )
        if role.name == "w"
        else role
        for role in _operands("s4", _FOUR_CHANNELS)
    ),
    params=(DenseSizes, Requantization),
    without=frozenset({"x_zero_point", "max_int32_products", "y_zero_point"}),
    options=(ElementTypes, RestOptions, IntegerStore),
    when=_TENSORS["s4"],
    lacks=_LACKS["s4"],
    emit=emit_dense_nibbles,
    extra=count_nibble_instructions,
    any_size=True,
)


def _conv(kind: str) -> Kernel:
    is_float = kind in _REALS
    params, options = _store(is_float)
    return Kernel(
        f"conv2d_{kind}",
        what="two pixels by four channels of any convolution; inputs under a window are gathered"
        + _STORED_SO.get(kind, ""),
        operands=_operands(kind, _FOUR_CHANNELS, scratch("patches", "inputs under two windows", optional=True)),
        params=(ConvGeometry, Gathering, Lines, params),
        optional=(Gathering, Lines),
        without=frozenset({"kernel_width", *["x_zero_point"] * (kind == "s16")}),
        options=(ElementTypes, WindowRows, options),
        when=(*_TENSORS[kind], is_not_depthwise),
        lacks=_LACKS.get(kind, frozenset()),
        loads=0.5 if is_float else 2.0,
        sweeps=0.5,
        emit=emit_conv,
        any_size=True,
        as_tflite=kind == "s8",
    )


def _depthwise(kind: str) -> Kernel:
    is_float = kind in _REALS
    params, options = _store(is_float)
    return Kernel(
        f"depthwise_{kind}",
        what="one filter per channel, from a ring of padded rows where windows leave the input"
        + _STORED_SO.get(kind, ""),
        operands=_operands(kind, _BY_CHANNEL, scratch("rows", "a ring of padded rows")),
        params=(ConvGeometry, Ring, params),
        without=frozenset(["x_zero_point"] * (kind == "s16")),
        options=(ElementTypes, WindowOptions, options),
        when=(*_TENSORS[kind], is_depthwise),
        lacks=_LACKS.get(kind, frozenset()),
        loads=1.0 if is_float else 4.0,
        emit=emit_depthwise,
        any_size=True,
        as_tflite=kind == "s8",
    )


PORTABLE_DENSE: tuple[Kernel, ...] = tuple(map(_dense, ("f32", "s8", "s16", "s4", "f16")))
"""Kernels of fully connected layers in C, one for each type of input and weights."""

PORTABLE_DEPTHWISE: tuple[Kernel, ...] = tuple(map(_depthwise, ("f32", "s16", "s8", "s4", "f16", "f32_w8")))
"""Kernels of depthwise convolutions in C, one for each type of input and weights."""

PORTABLE_CONV: tuple[Kernel, ...] = (
    *(
        replace(kernel, when=(*kernel.when, is_single_pixel))
        for kernel in map(_dense, ("f32", "s16", "s8", "s4", "f16"))
    ),
    *map(_conv, ("f32", "s16", "s8", "s4", "s2", "f16", "f32_w8")),
)
"""Kernels of convolutions in C, in order of preference: fully connected kernels for a single output pixel, then kernels
for any window."""
