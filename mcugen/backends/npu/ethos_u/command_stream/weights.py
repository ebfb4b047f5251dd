# SPDX-License-Identifier: Apache-2.0
"""Weights and scales of convolutions: order of the weights in the compressed stream, and packets of bias and scale.

The NPU computes a convolution block by block, and the stream has the weights in the order in which the units of
multiplication take them. Source: the order in which Vela writes them, which its wheel's encoder follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mcugen.backends.npu.ethos_u.command_stream.arithmetic import Array
from mcugen.backends.npu.ethos_u.command_stream.operations import NpuConfiguration
from mcugen.backends.npu.ethos_u.command_stream.registers import Architecture

PACKET_BYTES = 10
"""Size of the packet of a channel: bias, multiplier, shift."""
PADDING = -1
"""Index of a weight of the stream that belongs to no tap."""
SUBKERNEL_SIZE = 8
"""Height and width of the parts into which larger kernels are split."""
U85_INTERLEAVE = 4
"""Number of consecutive channels that one weight decoder of an Ethos-U85 serves."""


@dataclass(frozen=True)
class WeightLayout:
    """The properties of a convolution that decide on the order of its weights.

    Attributes:
        accelerator: The NPU.
        shape: Output channels, height, width, input channels (1 for depthwise).
        block_depth: Output channels of a block.
        ifm_bits: Width of the input's elements.
        is_depthwise: Whether the convolution is depthwise.
        is_part_kernel_first: Whether taps come before channels.
        stride: Vertical and horizontal step of the window.
        dilation: Vertical and horizontal distance of taps.
        microblock: Height and width of the microblock (Ethos-U85).
        is_sparse: Whether two of each four weights are zero (Ethos-U85).
    """

    accelerator: NpuConfiguration
    shape: tuple[int, int, int, int]
    block_depth: int
    ifm_bits: int
    is_depthwise: bool
    is_part_kernel_first: bool
    stride: tuple[int, int]
    dilation: tuple[int, int]
    microblock: tuple[int, int]
    is_sparse: bool = False


@dataclass(frozen=True)
class ChannelScales:
    """Bias and scale of each output channel.

    Attributes:
        bias: Biases.
        multipliers: Multipliers.
        shifts: Right shifts.
    """

    bias: Array
    multipliers: Array
    shifts: Array


def stream_order(layout: WeightLayout, decoder: int) -> Array:
    """Return, for each weight that a decoder reads, its flat index in the order OHWI, or PADDING.

    Args:
        layout: The convolution.
        decoder: Number of the weight decoder.
    """
    is_u85 = layout.accelerator.architecture is Architecture.U85
    parts = list(u85_parts(layout, decoder) if is_u85 else u55_parts(layout, decoder))
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def fast_order(layout: WeightLayout) -> Array:
    """Return the order of the weights in the fast format of Ethos-U85: blocks of the decoders in turn.

    Args:
        layout: The convolution.
    """
    decoders = layout.accelerator.cores
    orders = [stream_order(layout, decoder) for decoder in range(decoders)]
    o_step = microblock_depth(layout)
    _, i_depth, tap_multiple = u85_input_blocks(layout, o_step)
    chunk = o_step * i_depth * tap_multiple // decoders
    return np.stack([order.reshape(-1, chunk) for order in orders], axis=1).reshape(-1)


def microblock_depth(layout: WeightLayout) -> int:
    """Return the number of output channels that an Ethos-U85 computes at once."""
    return layout.accelerator.macs // 8 // (layout.microblock[0] * layout.microblock[1])


def flat_indices(layout: WeightLayout, o: Array, y: Array, x: Array, i: Array, is_tap: Array | bool = True) -> Array:
    """Return flat OHWI indices of weights, PADDING for those outside of the shape, in one dimension."""
    outputs, height, width, inputs = layout.shape
    is_inside = is_tap & (o < outputs) & (i < inputs)
    return np.where(is_inside, ((o * height + y) * width + x) * inputs + i, PADDING).reshape(-1)


def axes(*ranges: Any) -> list[Array]:
    """Return one array for each range, each along an axis of its own."""
    arrays = [np.asarray(r, dtype=np.int64) for r in ranges]
    return [a.reshape([-1 if k == axis else 1 for k in range(len(arrays))]) for axis, a in enumerate(arrays)]


def round_up(value: int, multiple: int) -> int:
    """Return the next multiple that is not smaller."""
    return -(-value // multiple) * multiple


def u55_parts(layout: WeightLayout, core: int) -> Iterator[Array]:
    """Yield the weights of Ethos-U55 and U65 for each block of outputs, of inputs and of taps.

    The cores of an Ethos-U65-512 share the output channels: core 0 has the even ones.
    """
    outputs, inputs = layout.shape[0], layout.shape[3]
    cores = layout.accelerator.cores
    o_step = 4 if layout.accelerator.macs == 32 else 8
    i_step = 8
    own_outputs = -(-(outputs - core) // cores)
    own_block = -(-(layout.block_depth - core) // cores)
    is_16_bit = layout.ifm_bits == 16
    i_block = 16 if layout.is_part_kernel_first or is_16_bit else 32
    tap_multiple = 4 if layout.is_depthwise else 1
    if layout.is_part_kernel_first and not layout.is_depthwise:
        tap_multiple = 2 if is_16_bit else 4
    for o0 in range(0, own_outputs, own_block):
        o_blocks = range(0, min(own_block, own_outputs - o0), o_step)
        for i0 in range(0, 1 if layout.is_depthwise else inputs, i_block):
            for y0, x0, rows, columns in subkernels_by_rows(layout):
                taps = np.arange(round_up(rows * columns, tap_multiple))
                if layout.is_depthwise:
                    grid = axes([0], o_blocks, taps, [0], range(o_step), [0])
                elif layout.is_part_kernel_first:
                    depth = min(i_block, inputs - i0)
                    grid = axes(range(0, depth, i_step), o_blocks, taps, [0], range(o_step), range(i_step))
                else:
                    grid = axes([0], o_blocks, taps, range(0, i_block, i_step), range(o_step), range(i_step))
                outer, o_block, tap, inner, o_offset, i_offset = grid
                o = (o0 + o_block + o_offset) * cores + core
                i = i0 + outer + inner + i_offset
                y, x = y0 + tap // columns, x0 + tap % columns
                yield flat_indices(layout, o, y, x, i, tap // columns < rows)


def subkernels_by_rows(layout: WeightLayout) -> Iterator[tuple[int, int, int, int]]:
    """Yield first row, first column, height and width of the parts of a kernel, row by row."""
    _, height, width, _ = layout.shape
    step_y, step_x = SUBKERNEL_SIZE // layout.dilation[0], SUBKERNEL_SIZE // layout.dilation[1]
    for y in range(0, height, step_y):
        for x in range(0, width, step_x):
            yield y, x, min(step_y, height - y), min(step_x, width - x)


def subkernels_by_columns(layout: WeightLayout) -> Iterator[tuple[int, int, int, int]]:
    """Yield first row, first column, height and width of the parts of a kernel, column by column."""
    yield from sorted(subkernels_by_rows(layout), key=lambda part: (part[1], part[0]))


def u85_parts(layout: WeightLayout, decoder: int) -> Iterator[Array]:
    """Yield the weights of Ethos-U85; every other block of outputs takes the blocks of inputs backwards."""
    outputs, _, _, inputs = layout.shape
    decoders, macs = layout.accelerator.cores, layout.accelerator.macs
    o_step = microblock_depth(layout)
    is_16_bit = layout.ifm_bits == 16
    i_block, i_depth, tap_multiple = u85_input_blocks(layout, o_step)
    stride = (1, 1) if not (layout.is_part_kernel_first or layout.is_depthwise) else layout.stride
    i_step = 1 if layout.is_depthwise else 16 if layout.is_sparse else 8
    dw_padding = 0 if not is_16_bit and macs <= 256 else 2 if macs <= 512 else 6
    i_starts = list(range(0, 1 if layout.is_depthwise else inputs, i_block))
    o_offsets = [
        group + channel
        for group in range(decoder * U85_INTERLEAVE, o_step, U85_INTERLEAVE * decoders)
        for channel in range(U85_INTERLEAVE)
    ]
    for number, o0 in enumerate(range(0, outputs, layout.block_depth)):
        o_blocks = range(0, min(layout.block_depth, outputs - o0), o_step)
        for i0 in i_starts if number % 2 == 0 else reversed(i_starts):
            i_depth_here = 1 if layout.is_depthwise else min(i_block, inputs - i0)
            for part in subkernels_by_columns(layout):
                taps = np.array(serpentine_taps(part, stride), dtype=np.int64)
                num_padding = round_up(len(taps), tap_multiple) - len(taps)
                for outer in range(0, i_depth_here, i_depth):
                    tap, inner, o_offset, i_offset = axes(
                        range(len(taps)), range(0, i_depth, i_step), o_offsets, range(i_step)
                    )
                    y, x = taps[tap, 0], taps[tap, 1]
                    i = i0 + outer + inner + i_offset
                    for o_block in o_blocks:
                        indices = flat_indices(layout, o0 + o_block + o_offset, y, x, i)
                        if layout.is_depthwise:
                            rows, per_group = indices.reshape(len(taps), -1), dw_padding * o_step // decoders
                            yield pad_depthwise(rows, num_padding, tap_multiple, per_group)
                            continue
                        yield indices
                        yield np.full(num_padding * i_depth * o_step // decoders, PADDING, dtype=np.int64)


def u85_input_blocks(layout: WeightLayout, o_step: int) -> tuple[int, int, int]:
    """Return the input channels of a block and of a step, and the number of which taps are made a multiple."""
    if layout.is_depthwise:
        return 1, 1, 10
    is_16_bit = layout.ifm_bits == 16
    if layout.is_part_kernel_first:
        return 16, 8 if is_16_bit and not layout.is_sparse else 16, 10 if is_16_bit or layout.is_sparse else 5
    is_shallow = layout.ifm_bits == 32 or (layout.accelerator.macs <= 256 and o_step == 16 and not layout.is_sparse)
    depth = 32 if is_shallow else 128 if layout.is_sparse and layout.ifm_bits == 8 else 64
    return depth, depth, 1


def serpentine_taps(part: tuple[int, int, int, int], stride: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the taps of a part of a kernel as rows and columns, for each phase of the stride forth and back."""
    y0, x0, height, width = part
    taps = []
    for phase_y in range(stride[0]):
        for phase_x in range(stride[1]):
            columns = list(range(phase_x, width, stride[1]))
            for number, y in enumerate(range(phase_y, height, stride[0])):
                taps += [(y0 + y, x0 + x) for x in (columns if number % 2 == 0 else columns[::-1])]
    return taps


def pad_depthwise(indices: Array, num_padding: int, multiple: int, group_padding: int) -> Array:
    """Return the weights of a depthwise part with its padding: for each `multiple` of taps, and for missing taps.

    Args:
        indices: Flat indices, one row for each tap.
        num_padding: Number of taps that are missing to the next multiple.
        multiple: Number of taps of a group.
        group_padding: Number of weights of padding behind each group.
    """
    missing = np.full((num_padding, indices.shape[1]), PADDING, dtype=np.int64)
    groups = np.concatenate([indices, missing]).reshape(-1, multiple * indices.shape[1])
    padding = np.full((len(groups), group_padding), PADDING, dtype=np.int64)
    return np.concatenate([groups, padding], axis=1).reshape(-1)


def arrange_weights(
    streams: Sequence[npt.NDArray[np.int16]], orders: Sequence[Array], shape: tuple[int, int, int, int]
) -> Array:
    """Return weights in the order OHWI from the streams of the decoders.

    Args:
        streams: Decompressed weights of each decoder, in the order of the stream.
        orders: The order of each stream.
        shape: Output channels, height, width, input channels.

    Raises:
        ValueError: A stream has fewer weights than its order.
    """
    weights = np.zeros(int(np.prod(shape)), dtype=np.int64)
    for stream, order in zip(streams, orders, strict=True):
        if len(stream) < len(order):
            raise ValueError(f"{len(stream)} weights of {len(order)}")
        is_weight = order != PADDING
        weights[order[is_weight]] = stream[: len(order)][is_weight]
    return weights.reshape(shape)


def parse_scales(
    packets: list[bytes], channels: int, accelerator: NpuConfiguration, accumulator_bits: int
) -> ChannelScales:
    """Return bias and scale of each channel.

    Args:
        packets: Packets of each core; the cores of an Ethos-U65-512 take turns.
        channels: Number of channels.
        accelerator: The NPU.
        accumulator_bits: Width of the accumulators, which decides on the widths of bias and multiplier on Ethos-U85.

    Raises:
        ValueError: There are fewer packets than channels.
    """
    bias_bytes, scale_bytes = 5, 4
    if accelerator.architecture is Architecture.U85:
        bias_bytes, scale_bytes = (4, 4) if accumulator_bits == 32 else (6, 2)
    all_fields = np.zeros((3, channels), dtype=np.int64)
    for core, data in enumerate(packets):
        own = all_fields[:, core :: len(packets)]
        if len(data) < own.shape[1] * PACKET_BYTES:
            raise ValueError(f"{len(data)} bytes of scales for {own.shape[1]} channels")
        rows = np.frombuffer(data[: own.shape[1] * PACKET_BYTES], np.uint8).reshape(-1, PACKET_BYTES)
        end = bias_bytes + scale_bytes
        bias = little_endian(rows[:, :bias_bytes])
        sign = 1 << (8 * bias_bytes - 1)
        own[:] = (bias ^ sign) - sign, little_endian(rows[:, bias_bytes:end]), rows[:, end] & 63
    return ChannelScales(*all_fields)


def little_endian(digits: npt.NDArray[np.uint8]) -> Array:
    """Return the unsigned numbers whose bytes are the rows of an array, the lowest byte first."""
    return np.asarray(np.sum(digits.astype(np.int64) << (8 * np.arange(digits.shape[1])), axis=1))
