# SPDX-License-Identifier: Apache-2.0
"""float32 kernels in register blocks for CPUs with an FPU.

Four rows by four channels are computed together, in the FPU's 32 registers or in Helium's vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np

from mcugen.hir.types import Array, DType
from mcugen.kernels.common.conv_shape import ConvGeometry, ConvShape
from mcugen.kernels.common.loop_options import FloatLoops
from mcugen.kernels.common.reading_order import in_turn, rows, windows
from mcugen.kernels.common.specs import ConvSpec
from mcugen.kernels.common.weighted_layers import (
    INTERLEAVED_ROWS,
    FloatLimits,
    float_limits,
    float_tensors,
    half_weights,
)
from mcugen.kernels.portable.weighted import depthwise
from mcugen.lir.kernel import SHORT_LOOPS, UPDATABLE, Call, Kernel, Options, Params, Role, Site, reads, scratch, writes
from mcugen.lir.traversal import Traversal

ROWS_PER_BLOCK = 4
"""Number of rows (dense layers) or pixels (convolutions) of a register block of sums; the block has four output
channels."""


def has_one_group(spec: ConvSpec) -> bool:
    """Require that every output channel reads all input channels.

    Return whether the layer meets this condition of a kernel: it is no grouped or depthwise convolution.
    """
    return spec.shape.groups == 1


def has_single_window(spec: ConvSpec) -> bool:
    """Require one output pixel whose window covers all of the input.

    Return whether the layer meets this condition of a kernel, which computes the layer as a dense layer.
    """
    shape = spec.shape
    covers = (shape.kernel_height, shape.kernel_width) == (shape.in_height, shape.in_width) and not (
        shape.padding_top or shape.padding_left
    )
    return covers and shape.groups == 1 and spec.y.count == shape.out_channels


class DenseRows(Params):
    """Kernel parameters with the sizes of a float fully connected layer, whose input vectors are the rows of x."""

    rows: Annotated[int, "rows of x and y"]
    depth: Annotated[int, "elements of a row of x"]
    out_channels: Annotated[int, "elements of a row of y"]


class Patch(Params):
    """Kernel parameters of float convolutions: products per accumulator, and whether x is read without im2col."""

    depth: Annotated[int, "products of a sum"]
    reads_in_place: Annotated[int, "1 if the pixels of x are read in place, without im2col"]


class Blocks(Params):
    """Kernel parameters of a depthwise convolution's ring buffer of padded input rows, in blocks of four channels."""

    row_pixels: Annotated[int, "pixels of a row of the ring buffer, or of x"]
    channel_blocks: Annotated[int, "blocks of channels"]


class ClampOptions(Options):
    """Template option of the lower limit of float results: "relu" for 0 or none, "any" for another limit."""

    clamp: Annotated[str, "relu: a lower limit of 0 or none, so that the sign bit decides; any: another lower limit"]


class UpperLimit(Options):
    """Template option of float results: whether they have an upper limit, which the kernel must apply."""

    high: Annotated[bool, "whether results have an upper limit"]


class FpuDenseOptions(Options):
    """Template option of float fully connected layers: whether x has a single row (one input vector)."""

    single_row: Annotated[bool, "whether the layer has one row"]


class GroupOptions(Options):
    """Template options of depthwise loops that compute a group of adjacent outputs of a row together."""

    group: Annotated[int, "adjacent outputs of a row that are computed together"]
    kernel_height: Annotated[int, "rows of the window"]
    kernel_width: Annotated[int, "columns of the window"]
    stride: Annotated[int, "pixels from window to window"]
    dilation: Annotated[int, "pixels from tap to tap"]
    has_tail_channels: Annotated[bool, "whether the number of channels is not a multiple of four"]


def pack_float_blocks(weights: Array, bias: Array) -> Array:
    """Pack weights and biases as flat float32, by blocks of four output channels: the biases, then weights as [K][4].

        b0 b1 b2 b3 | w0[0] w1[0] w2[0] w3[0] | w0[1] w1[1] w2[1] w3[1] | …      (wn[k]: channel n, input k)

    Missing channels of the last block are zeros.

    Args:
        weights: The weights, [N, K]: output channels by inputs.
        bias: The biases, [N].
    """
    rows = np.column_stack([bias, weights]).astype(np.float32)
    missing = -len(rows) % INTERLEAVED_ROWS
    whole = np.concatenate([rows, np.zeros((missing, rows.shape[1]), np.float32)])
    return whole.reshape(-1, INTERLEAVED_ROWS, rows.shape[1]).transpose(0, 2, 1).reshape(-1)


def pack_half_blocks(weights: Array, in_pairs: bool = True) -> Array:
    """Pack weights as flat float16, in blocks of four output channels; missing channels of the last block are zeros.

    Args:
        weights: The weights, [N, K]: output channels by inputs.
        in_pairs: Whether a word holds two adjacent weights of a channel, as the instructions VCVTB and VCVTT read them:
            the whole eights of K are then stored as [K / 2][4][2], the remaining weights as [K % 8][4]. Otherwise, a
            block is [K][4].
    """
    missing, whole = -len(weights) % INTERLEAVED_ROWS, weights.shape[1] // 8 * 8 if in_pairs else 0
    rows = np.concatenate([weights, np.zeros((missing, weights.shape[1]), np.float32)]).astype(np.float16)
    blocks = rows.reshape(-1, INTERLEAVED_ROWS, weights.shape[1])
    pairs = blocks[:, :, :whole].reshape(len(blocks), INTERLEAVED_ROWS, -1, 2).transpose(0, 2, 1, 3)
    tail = blocks[:, :, whole:].transpose(0, 2, 1)
    return np.concatenate([part.reshape(len(blocks), -1) for part in (pairs, tail)], axis=1).reshape(-1)


def emit_dense(spec: ConvSpec, site: Site) -> Call:
    """Emit a float fully connected layer, which computes four rows of x by four output channels at a time.

    Loops: blocks of four rows, blocks of four channels, inputs; 16 sums stay in registers. If x has several rows, each
    block of four rows is first copied, interleaved, to scratch memory.
    """
    channels, depth = spec.channels, spec.depth
    rows = spec.y.count // channels
    size, single = DenseRows(rows=rows, depth=depth, out_channels=channels), rows == 1
    whole, shape = rows // ROWS_PER_BLOCK * ROWS_PER_BLOCK, spec.shape
    fours, ones = windows(shape, in_turn(whole, ROWS_PER_BLOCK)), np.arange(whole, rows)[:, None]
    order = fours + windows(shape, ones, last=channels % INTERLEAVED_ROWS or INTERLEAVED_ROWS)
    options = [clamp_options(*spec.float_limits), FpuDenseOptions(single_row=single)]
    return _call(spec, site, size, ("patch", 0 if single else ROWS_PER_BLOCK * depth), options, order)


def emit_conv(spec: ConvSpec, site: Site) -> Call:
    """Emit a float convolution: the windows of four pixels are gathered by im2col and interleaved in scratch memory.

    The last pixels of an image are gathered one by one. The scratch memory also holds a pixel of zeros, for padding.
    """
    shape, depth = spec.shape, spec.depth
    pixels = np.arange(shape.out_height * shape.out_width)
    whole = len(pixels) // ROWS_PER_BLOCK * ROWS_PER_BLOCK
    blocks = np.concatenate([pixels[:whole].reshape(-1, ROWS_PER_BLOCK), np.tile(pixels[whole:, None], ROWS_PER_BLOCK)])
    params, patch = (
        Patch(depth=depth, reads_in_place=int(_is_direct(shape))),
        ("patch", ROWS_PER_BLOCK * depth + shape.in_channels),
    )
    return _call(spec, site, params, patch, [clamp_options(*spec.float_limits)], windows(shape, blocks))


def count_separate_gathers(spec: ConvSpec) -> int:
    """Count the groups of four pixels per inference whose windows im2col must gather one by one, for the cost model.

    The pixels of such a group are in two rows, or some of their windows leave the input at a side. The last pixels of
    an image are not counted: their work is about proportional to their elements.
    """
    shape = spec.shape
    if _is_direct(shape):
        return 0
    columns = np.arange(0, shape.out_height * shape.out_width - ROWS_PER_BLOCK + 1, ROWS_PER_BLOCK) % shape.out_width
    left = columns * shape.stride_width - shape.padding_left
    is_inside = (left >= 0) & (left + (ROWS_PER_BLOCK - 1) * shape.stride_width + shape.kernel_width <= shape.in_width)
    is_near = is_inside & (columns + ROWS_PER_BLOCK <= shape.out_width) & (shape.dilation_width == 1)
    return shape.batch * int(np.count_nonzero(~is_near))


def _is_direct(shape: ConvShape) -> bool:
    """Return whether pixels are read in x, without gathering."""
    return shape.reads_pixels and shape.stride_height == shape.stride_width == 1


def emit_depthwise(spec: ConvSpec, site: Site) -> Call:
    """Emit a float depthwise convolution over a ring buffer of padded rows, laid out as [block of channels][column][4].

    Several adjacent outputs of a row are computed together.
    """
    shape = spec.shape
    extent = shape.stride_width * (shape.out_width - 1) + shape.dilation_width * (shape.kernel_width - 1) + 1
    blocks = Blocks(
        row_pixels=max(extent, shape.padding_left + shape.in_width),
        channel_blocks=-(-shape.in_channels // INTERLEAVED_ROWS),
    )
    ring = (
        ((shape.kernel_height - 1) * shape.dilation_height + 1)
        * blocks.row_pixels
        * blocks.channel_blocks
        * INTERLEAVED_ROWS
    )
    options = GroupOptions(
        group=min(shape.out_width, SHARED_GROUP) if SHORT_LOOPS in site.features else _group(shape),
        kernel_height=shape.kernel_height,
        kernel_width=shape.kernel_width,
        stride=shape.stride_width,
        dilation=shape.dilation_width,
        has_tail_channels=shape.in_channels % INTERLEAVED_ROWS != 0,
    )
    call = _call(spec, site, blocks, ("rows", ring), [options], rows(shape))
    return replace(call, variant=f"{shape.kernel_height}x{shape.kernel_width}")


SHARED_GROUP = 3
"""Number of adjacent outputs of a row that are computed together under SHORT_LOOPS, whatever the width of rows.

Layers of several widths then share one C function.
"""


def _group(shape: ConvShape) -> int:
    """Return how many neighbouring outputs to compute together for the fewest instructions.

    Groups may overlap at the end.
    """

    def instructions(group: int) -> int:
        taps_held = 7 - group
        loads = sum(
            1
            + len({i * shape.stride_width + t * shape.dilation_width for i in range(group) for t in range(first, end)})
            for first in range(0, shape.kernel_width, taps_held)
            for end in [min(first + taps_held, shape.kernel_width)]
        )
        return -(-shape.out_width // group) * (
            shape.kernel_height * (loads + group * shape.kernel_width) + 5 * group + 8
        )

    return min(range(1, min(shape.out_width, 5) + 1), key=instructions)


def _call(
    spec: ConvSpec, site: Site, params: Params, working: tuple[str, int], options: Sequence[Options], order: Traversal
) -> Call:
    """Return the call of a layer whose packed weights include the bias, or have float16 elements and a bias apart.

    Args:
        spec: The layer.
        site: Operands and CPU features of the call.
        params: Further parameters, in addition to geometry and limits.
        working: Role and number of elements of the working memory.
        options: Further template options, in addition to those of the upper limit and the loops.
        order: The traversal of x and y.
    """
    role, count = working
    if half_weights in site.kernel.when:
        bias = np.concatenate([spec.float_bias, np.zeros(-spec.channels % INTERLEAVED_ROWS)]).astype(np.float32)
        constants = {
            "w": site.const("weights", pack_half_blocks(spec.rows, role == "patch"), INTERLEAVED_ROWS * spec.depth),
            "bias": site.const("bias", bias),
        }
    else:
        packed = pack_float_blocks(spec.rows, spec.float_bias)
        constants = {"w": site.const("weights", packed, INTERLEAVED_ROWS * (spec.depth + 1))}
    operands = {"x": site.x, **constants, "y": site.y}
    if count:
        operands[role] = site.scratch(role, spec.x.dtype, count)
    limits = float_limits(spec)
    geometry = [spec.shape.geometry] if ConvGeometry in site.kernel.params else []
    upper = UpperLimit(high=limits.high is not None)
    loops = [FloatLoops.of(site)] if FloatLoops in site.kernel.options else []
    return site.call(operands, [*geometry, params, limits], [*options, upper, *loops], overlaps=spec.overlaps(order))


def count_padding_products(spec: ConvSpec) -> int:
    """Count the multiply-accumulates with the zero weights that pad blocks of output channels, for the cost model.

    Four rows of x are multiplied by one block of four output channels at a time. Each remaining row is multiplied by
    two blocks at a time. Zero weights fill the last block, or the last two.
    """
    channels = spec.channels
    count = spec.y.count // channels
    single = count % ROWS_PER_BLOCK
    return spec.depth * (
        single * (-channels % (2 * INTERLEAVED_ROWS)) + (count - single) * (-channels % INTERLEAVED_ROWS)
    )


def clamp_options(low: float, high: float) -> ClampOptions:
    """Return the template option for results limited to [low, high]; −∞ and ∞ mean no limit."""
    return ClampOptions(clamp="relu" if low == 0 or (math.isinf(low) and math.isinf(high)) else "any")


def fits_load_offsets(spec: ConvSpec) -> bool:
    """Require windows whose columns, for five adjacent outputs, are within the immediate offsets of vector loads.

    Return whether the layer meets this condition of a kernel: these columns are less than 32 pixels apart.
    """
    shape = spec.shape
    return 4 * shape.stride_width + (shape.kernel_width - 1) * shape.dilation_width < 32


def _operands(*working: Role) -> tuple[Role, ...]:
    return (
        reads("x", "input, channels last", DType.FLOAT32),
        reads(
            "w", "by four channels: their biases, then their weights of each input in turn", DType.FLOAT32, holds=(1, 2)
        ),
        writes("y", "output, channels last", DType.FLOAT32),
        *working,
    )


def _half_operands(working: Role, order: str = ", of whole eights in pairs") -> tuple[Role, ...]:
    return (
        reads("x", "input, channels last", DType.FLOAT32),
        reads("w", f"weights by blocks of four channels{order}", DType.FLOAT16, holds=(1,)),
        reads("bias", "bias of each channel, by blocks of four", DType.FLOAT32, holds=(2,)),
        writes("y", "output, channels last", DType.FLOAT32),
        working,
    )


def _patch(optional: bool) -> Role:
    return scratch("patch", "four rows, interleaved", DType.FLOAT32, optional=optional)


_DENSE = Kernel(
    "dense_f32_fpu",
    what="four rows by four channels in registers or vectors",
    operands=_operands(_patch(optional=True)),
    params=(DenseRows, FloatLimits),
    options=(ClampOptions, FpuDenseOptions, UpperLimit, FloatLoops),
    needs=frozenset({"fpu"}),
    when=(float_tensors,),
    emit=emit_dense,
    extra=count_padding_products,
)

_WIDENED = ", weights of 16 bits, widened by Helium as they are read"

_HALF_DENSE = replace(
    _DENSE,
    name="dense_f16_mve",
    what=_DENSE.what + _WIDENED,
    operands=_half_operands(_patch(optional=True)),
    options=(ClampOptions, FpuDenseOptions, UpperLimit),
    needs=frozenset({"mve_float"}),
    when=(float_tensors, half_weights),
    lacks=frozenset({UPDATABLE}),
)

FPU_DENSE: tuple[Kernel, ...] = (_DENSE, _HALF_DENSE)
"""Float kernels of fully connected layers for an FPU or Helium, in order of preference."""

_RING = scratch("rows", "a ring of padded rows", DType.FLOAT32)

_DEPTHWISE = Kernel(
    "depthwise_f32_mve",
    what="one filter per channel, several pixels of four channels in vectors",
    operands=_operands(_RING),
    params=(ConvGeometry, Blocks, FloatLimits),
    without=frozenset({"kernel_height", "kernel_width", "stride_width", "dilation_width"}),
    options=(GroupOptions, UpperLimit),
    needs=frozenset({"mve_float"}),
    when=(float_tensors, depthwise, fits_load_offsets),
    emit=emit_depthwise,
)

FPU_DEPTHWISE: tuple[Kernel, ...] = (
    _DEPTHWISE,
    replace(
        _DEPTHWISE,
        name="depthwise_f16_mve",
        what=_DEPTHWISE.what + _WIDENED,
        operands=_half_operands(_RING, ", by tap"),
        when=(float_tensors, half_weights, depthwise, fits_load_offsets),
        lacks=frozenset({UPDATABLE}),
    ),
)
"""Float kernels of depthwise convolutions for Helium, in order of preference."""

_CONV = Kernel(
    "conv2d_f32_fpu",
    what="four pixels by four channels in registers or vectors",
    operands=_operands(_patch(optional=False)),
    params=(ConvGeometry, Patch, FloatLimits),
    options=(ClampOptions, UpperLimit, FloatLoops),
    needs=frozenset({"fpu"}),
    when=(float_tensors, has_one_group),
    emit=emit_conv,
    extra=count_separate_gathers,
)

FPU_CONV: tuple[Kernel, ...] = (
    replace(_DENSE, when=(float_tensors, has_single_window)),
    replace(_HALF_DENSE, when=(float_tensors, half_weights, has_single_window)),
    _CONV,
    replace(
        _CONV,
        name="conv2d_f16_mve",
        what=_CONV.what + _WIDENED,
        operands=_half_operands(_patch(optional=False)),
        options=(ClampOptions, UpperLimit),
        needs=frozenset({"mve_float"}),
        when=(float_tensors, half_weights, has_one_group),
        lacks=frozenset({UPDATABLE}),
    ),
)
"""Float kernels of convolutions for an FPU or Helium, in order of preference."""
