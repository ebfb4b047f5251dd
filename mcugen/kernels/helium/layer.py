# SPDX-License-Identifier: Apache-2.0
"""Parts shared by the kernels for Helium: conditions, packing of constants, parameters and calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np

from mcugen.hir.types import Array, DType
from mcugen.kernels.common.conv_shape import ConvShape
from mcugen.kernels.common.specs import ConvSpec
from mcugen.kernels.common.weighted_layers import DoubleRounding, four_bits, nine_bits
from mcugen.lir.kernel import Call, Options, Params, Role, Site, Trained, reads, writes
from mcugen.lir.program import Buffer
from mcugen.lir.traversal import Traversal
from mcugen.numerics.tflite_arithmetic import layer_requantizer, rounds_as_tflite

VECTOR = 16
"""Bytes of a Helium vector register, which is also the number of int8 products that one instruction adds up."""

TABLE_ORDER = "by blocks of channels: biases, then multipliers, if any"
"""Order of the elements of a RequantizationTable, for the declarations of kernels."""

CHANNELS_PER_BLOCK = 4
"""Output channels that a convolution computes together, for two pixels each (unroll factor)."""

UNROLL_FACTORS = (4, 3, 2, 1)
"""Possible unroll factors of the inner loop, in vectors; the first one that divides the number of vectors is used."""

MAX_INT16_RIGHT_SHIFT = 14
"""Largest right shift, in bits, of 32-bit intermediate results to int16 values."""

MAX_OUT_CHANNELS = 2**14
"""Largest number of output channels: results of up to four pixels are stored by 16-bit offsets."""


def is_int8_in_32_bits(spec: ConvSpec) -> bool:
    """Require int8 tensors and accumulators of 32 bits.

    Return whether the layer meets this condition of a kernel: x, weights and y are int8.
    """
    return spec.is_int8 and has_int8_products(spec)


def has_int8_products(spec: ConvSpec) -> bool:
    """Require int8 inputs and weights, accumulators of 32 bits, and requantized or int32 results.

    Return whether the layer meets this condition of a kernel.
    """
    codes = all(t.dtype is DType.INT8 and t.quant is not None for t in (spec.x, spec.w))
    if codes and spec.is_sums:
        return spec.channels <= MAX_OUT_CHANNELS
    if not codes or not spec.is_requantized or spec.largest_sum >= 2**31 or spec.channels > MAX_OUT_CHANNELS:
        return False
    if rounds_as_tflite(spec.y):
        return bool(layer_requantizer(spec.sig).shift.min() >= 0)
    left = 31 - spec.requantizer.shift
    return left >= -MAX_INT16_RIGHT_SHIFT and spec.largest_sum << max(left, 0) < 2**31


def has_nine_bit_products(spec: ConvSpec) -> bool:
    """Require int8 inputs, weights that are int8 plus an offset per channel, and accumulators of 32 bits.

    Return whether the layer meets this condition of a kernel for nine-bit weights.
    """
    if not nine_bits(spec) or spec.channels > MAX_OUT_CHANNELS:
        return False
    left = 31 - spec.requantizer.shift
    return left >= -MAX_INT16_RIGHT_SHIFT and spec.largest_sum << max(left, 0) < 2**31


def has_nine_bits(spec: ConvSpec) -> bool:
    """Return whether the weights need nine bits, because they are not int8.

    Such weights are stored as int8 after the channel's offset (ConvSpec.channel_offsets) is subtracted. The kernel adds
    the offset times the sum of the inputs.
    """
    return spec.w.dtype is not DType.INT8


def fits_27_bits(spec: ConvSpec) -> bool:
    """Require accumulators below 2²⁷ in magnitude.

    Return whether the layer meets this condition of a kernel. The kernel multiplies 4-bit weights without unpacking
    them, so that accumulators of even channels are 16 times as large, and still must fit 32 bits.
    """
    return spec.largest_sum < 2**27


def blocks_of(rows: Array, count: int) -> Array:
    """Return an array [N, …] as blocks of `count` entries, [blocks, count, …]; the last block is padded with zeros."""
    padded = np.pad(rows, [(0, -len(rows) % count)] + [(0, 0)] * (rows.ndim - 1))
    return padded.reshape(-1, count, *rows.shape[1:])


def pack_vectors(rows: Array, count: int, lanes: int = VECTOR) -> Array:
    """Pack weights for vector loads, in blocks of output channels.

    Each block is stored with a vector of every channel in turn:

        channel 0: k = 0 … lanes-1 | channel 1: k = 0 … lanes-1 | … | channel 0: k = lanes … 2·lanes-1 | …

    Args:
        rows: The weights, [out_channels, …, K].
        count: Output channels of a block.
        lanes: Elements of a vector.

    Returns:
        A flat array: each block is stored as […, ⌈K / lanes⌉, count, lanes], padded with zeros.
    """
    padded = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, -rows.shape[-1] % lanes)])
    blocks = blocks_of(padded.reshape(len(rows), -1, lanes), count)
    return np.ascontiguousarray(blocks.transpose(0, 2, 1, 3)).reshape(-1)


def pack_nibbles_apart(packed: Array, size: int) -> Array:
    """Pack 4-bit weights, two per byte: in each 2 · `size` weights, numbers i and i + `size` share a byte.

    The weight i is in the lower half of the byte.

    Args:
        packed: 4-bit weights, int8, in reading order.
        size: Distance of two weights that share a byte.
    """
    pairs = packed.reshape(-1, 2, size)
    both: Array = (pairs[:, 0] & 15 | pairs[:, 1] << 4).astype(np.int8).reshape(-1)
    return both


@dataclass(frozen=True, eq=False)
class RequantizationTable:
    """The table of biases and multipliers of a layer that a Helium kernel reads, by blocks of output channels.

    A block has the biases, then the 31-bit multipliers if results are requantized, then left shifts if results are
    rounded twice, then, with `nine_bits`, the offset of each channel's nine-bit weights.

    Attributes:
        spec: The layer whose accumulators the table requantizes.
        block: Number of output channels whose constants form one block of the table.
        order: Order of the channels within a block; None for the natural order.
        groups: Number of groups of a grouped convolution; each has its own blocks, one group after the other.
        apart: For 4-bit weights that the kernel unpacks before it multiplies: distance, in elements, of the two weights
            that share a byte. None for other weights.
        nibbles: Whether 4-bit weights are multiplied without being unpacked. Sums of even channels are then 16 times as
            large, and the table holds 16 times their biases.
        nine_bits: Whether weights have nine bits, stored as int8 values and an offset per channel.
    """

    spec: ConvSpec
    block: int = CHANNELS_PER_BLOCK
    order: Sequence[int] | None = None
    groups: int = 1
    apart: int | None = None
    nibbles: bool = False
    nine_bits: bool = False

    @cached_property
    def data(self) -> Array:
        """Return the table as a flat int32 array."""
        bias = self.spec.folded_bias
        columns = bias[:, None]
        if self.rounds_twice:
            twice = layer_requantizer(self.spec.sig)
            columns = np.stack(np.broadcast_arrays(bias, twice.multiplier, -twice.shift), 1)
        elif not self.spec.is_sums:
            columns = np.stack([bias, np.broadcast_to(self.spec.requantizer.multiplier, len(bias))], 1)
        if self.nine_bits:
            columns = np.concatenate([columns, self.spec.channel_offsets[:, None]], 1)
        blocks = np.concatenate([blocks_of(group, self.block) for group in np.split(columns, self.groups)])
        if self.nibbles:
            blocks[:, ::2, 0] *= 16
        table = blocks[:, list(self.order or range(self.block))].transpose(0, 2, 1)
        flat: Array = table.astype(np.int32).reshape(-1)
        return flat

    @property
    def rounds_twice(self) -> bool:
        """Return whether results are rounded twice, by left shifts of at most 0 that follow the multipliers."""
        return rounds_as_tflite(self.spec.y)

    @property
    def shift(self) -> int:
        """Return the left shift of accumulators before the multiplication; if negative, the right shift after it."""
        return 0 if self.spec.is_sums or self.rounds_twice else 31 - self.spec.requantizer.shift

    @property
    def zero(self) -> int:
        """Return the offset that is added to rounded products of accumulators and multipliers: y's zero point.

        Before a right shift, the zero point is shifted left, and a rounding term is added.
        """
        zero, right = self.spec.y.q.zero_point, max(-self.shift, 0)
        return (zero << right) + (1 << right >> 1)

    @property
    def blocks(self) -> int:
        """Return the number of blocks of output channels, the last of which may be partial."""
        return -(-self.spec.channels // self.block)

    @property
    def blocks_of_groups(self) -> int:
        """Return the number of blocks of channels of all groups."""
        return self.groups * -(-self.spec.channels // (self.groups * self.block))

    @property
    def nbytes(self) -> int:
        """Return the size in bytes of the part of the table that belongs to one group of a grouped convolution."""
        return int(self.data.nbytes) // self.groups

    @property
    def last(self) -> int:
        """Return the number of output channels in the last, perhaps partial, block of each group of channels."""
        return (self.spec.channels // self.groups - 1) % self.block + 1

    @property
    def codes(self) -> RequantizationParams:
        """Return the kernel parameters of the requantization: zero point, limits and shift."""
        low, high = (0, 0) if self.spec.is_sums else self.spec.limits
        return RequantizationParams(y_zero_point=self.zero, low=low, high=high, left_shift=self.shift)

    @property
    def flags(self) -> tuple[Options, ...]:
        """Return the template options that follow from the table: which steps of the requantization are needed."""
        ragged = TailChannelsOption(has_tail_channels=self.last < self.block)
        results = ResultOptions(y_t=self.spec.y.dtype.c, post_shifted=self.shift < 0)
        scaled = Shifted(pre_shifted=self.shift > 0)
        rounding = DoubleRounding(rounds_twice=self.rounds_twice)
        return ragged, Clamped(clamp=self.spec.is_clamped), scaled, results, rounding


# ------------------------------------------------------------------------------------------- declarations


class StackFrame(Params):
    """Base class of kernel parameters that assembly code copies to the stack as one block.

    They are the first members of the parameter struct; assembly reads them by position, in this order.

    Attributes:
        by_place: True: assembly reads the members by their offsets in the struct, and no C code by their names.
    """

    by_place: ClassVar[bool] = True


class RequantizationParams(Params):
    """Kernel parameters of the requantization of accumulators to int8 or int16."""

    y_zero_point: Annotated[Trained, "zero point of y"]
    low: Annotated[Trained, "lowest quantized value of y"]
    high: Annotated[Trained, "highest quantized value of y"]
    left_shift: Annotated[Trained, "left shift of sums before the product"]


class GemmFrame(StackFrame):
    """Parameters of the loop over two pixels by four output channels, in the order in which assembly code reads them.

    The table holds the requantization constants (RequantizationTable); in a grouped convolution, `table_bytes` is the
    size of one group's part of it.
    """

    y_zero_point: Annotated[Trained, "zero point of y; for right shifts, plus one half"]
    table_bytes: Annotated[int, "bytes of the table, or of the part of a group"]
    x_step_bytes: Annotated[int, "bytes of x from two pixels to the next two"]
    y_pair_stride: Annotated[int, "elements of y from two pixels to the next two"]
    inner_iterations: Annotated[int, "iterations of the inner loop"]
    iteration_gap_bytes: Annotated[
        int, "bytes of x from the end of an iteration to the start of the next, if they are not adjacent"
    ]
    left_shift: Annotated[Trained, "left shift of sums before the product; negative: right shift after the product"]
    tail_products: Annotated[int, "products beyond whole vectors of 16"]
    last_block_channels: Annotated[int, "output channels of the last block"]
    counter: Annotated[int, "space for a counter of the assembly code"]
    low: Annotated[Trained, "lowest quantized value of y"]
    high: Annotated[Trained, "highest quantized value of y"]


class Padding(Params):
    """Kernel parameter with the value of the padding before and after rows of x."""

    x_zero_point: Annotated[Trained, "zero point of x, the value of padding"]


class NineBits(Params):
    """Kernel parameter of nine-bit weights, which are stored as int8 values and an offset per output channel.

    The kernel adds the offset times the sum of the inputs to each accumulator. `products_per_sum` is the number of
    inputs in this sum, which is the number of products in an accumulator.
    """

    products_per_sum: Annotated[int, "products of a sum"]

    @staticmethod
    def of(spec: ConvSpec) -> list[Params]:
        """Return the parameters for nine-bit weights, as a list of one; an empty list for weights of eight bits."""
        return [NineBits(products_per_sum=spec.depth)] if has_nine_bits(spec) else []


class StripRows(Params):
    """Kernel parameters with the sizes of the strip: a buffer of the padded input rows that a row of y depends on."""

    strip_rows: Annotated[int, "rows of the strip of padded rows"]
    strip_row_stride: Annotated[int, "bytes from row to row of the strip"]


class TailChannelsOption(Options):
    """Template option: whether the last block of output channels is partial."""

    has_tail_channels: Annotated[bool, "whether the last block of channels is not full"]


class Clamped(Options):
    """Template option: whether results are limited further than by the output type."""

    clamp: Annotated[bool, "whether results are limited further than by their type"]


class Shifted(Options):
    """Template option: whether accumulators are shifted left before the multiplication of the requantization."""

    pre_shifted: Annotated[bool, "whether accumulators are shifted left before the multiplication"]


class ResultOptions(Options):
    """Template options of results: their C type, and whether rounded products are shifted right."""

    y_t: Annotated[str, "C type of the output; int32_t: sums are stored as they are"]
    post_shifted: Annotated[bool, "whether rounded products are shifted right after the multiplication"]


class LoopFlags(Options):
    """Template options of the inner loop over vectors of 16 products: unroll factor, several iterations, tail."""

    unroll: Annotated[int, "vectors of a loop iteration; 0: there are no whole vectors"]
    has_loop: Annotated[bool, "whether there are several iterations"]
    has_tail_vector: Annotated[bool, "whether products remain after the whole vectors"]
    nibbles: Annotated[bool, "whether each byte holds the weights of two channels"] = False


class UnpackedNibblesOption(Options):
    """Template option: whether weights have 4 bits and are unpacked before they are multiplied."""

    nibbles: Annotated[bool, "whether each byte holds two weights"]


class RowJumpOption(Options):
    """Template option: whether the inner loop skips bytes of x between two iterations."""

    has_row_jumps: Annotated[
        bool, "whether x is not adjacent between two iterations, so that a pointer jumps to the next row"
    ] = False


def operands(*more: Role, working: Sequence[Role] = (), results: Sequence[DType] = (DType.INT8,)) -> tuple[Role, ...]:
    """Declare the operands of a Helium kernel: x, weights, table, further constants, y, and scratch memory.

    The table holds biases and multipliers.

    Args:
        more: Further constant operands.
        working: Scratch operands.
        results: Possible element types of y.

    Returns:
        The declarations in the order of the C function's arguments.
    """
    return (
        reads("x", "input, channels last", DType.INT8),
        reads(
            "w",
            "weights by blocks of channels, in reading order, with zeros for what is missing",
            DType.INT8,
            holds=(1,),
        ),
        reads("table", TABLE_ORDER, DType.INT32, holds=(2,)),
        *more,
        writes("y", "output, channels last", *results),
        *working,
    )


# -------------------------------------------------------------------------------------------------- calls


@dataclass(frozen=True)
class VectorLoop:
    """The number of vectors, and the remaining products, of an inner loop over the products of one accumulator.

    Attributes:
        vectors: Number of whole vectors of 16 products.
        tail: Number of products that remain after the whole vectors.
    """

    vectors: int
    tail: int = 0

    @property
    def flags(self) -> LoopFlags:
        """Return the loop's template options, with the largest unroll factor that divides the number of vectors."""
        unroll = next((n for n in UNROLL_FACTORS if self.vectors and self.vectors % n == 0), 0)
        looped = unroll > 0 and self.vectors > unroll
        return LoopFlags(unroll=unroll, has_loop=looped, has_tail_vector=self.tail > 0)

    @property
    def num_iterations(self) -> int:
        """Return the number of iterations of the unrolled loop (see `flags`); 0 if there are no whole vectors."""
        return self.vectors // self.flags.unroll if self.flags.unroll else 0


def gemm_frame(table: RequantizationTable, loop: VectorLoop, x_next: int) -> GemmFrame:
    """Return the parameters of a loop of two pixels by four output channels that reads adjacent bytes of x.

    Args:
        table: The requantization constants.
        loop: The inner loop.
        x_next: Bytes of x from two pixels to the next two.
    """
    codes = table.codes
    return GemmFrame(
        y_zero_point=codes.y_zero_point,
        table_bytes=table.nbytes,
        x_step_bytes=x_next,
        y_pair_stride=2 * table.spec.channels,
        inner_iterations=loop.num_iterations,
        iteration_gap_bytes=0,
        left_shift=codes.left_shift,
        tail_products=loop.tail,
        last_block_channels=table.last,
        counter=0,
        low=codes.low,
        high=codes.high,
    )


def count_vector_steps(spec: ConvSpec, pixels: int, channels: int) -> int:
    """Count the inner-loop steps of a layer per inference, for the cost model.

    A step multiplies 16 inputs for each of the `pixels` · `channels` results that are computed together.

    Args:
        spec: The layer.
        pixels: Output pixels that are computed together.
        channels: Output channels that are computed together.
    """
    groups = spec.shape.groups
    blocks = -(-spec.y.count // spec.channels // pixels) * groups * -(-spec.channels // groups // channels)
    taps = spec.shape.kernel_height * spec.shape.kernel_width if groups > 1 else 1
    return blocks * taps * -(-spec.depth // taps // VECTOR)


def strip_of(shape: ConvShape) -> StripRows:
    """Return the sizes of the strip: a scratch buffer of the padded input rows that a row of y depends on."""
    extent = shape.stride_width * (shape.out_width - 1) + shape.dilation_width * (shape.kernel_width - 1) + 1
    pitch = max(extent, shape.padding_left + shape.in_width) * shape.in_channels
    return StripRows(strip_rows=(shape.kernel_height - 1) * shape.dilation_height + 1, strip_row_stride=pitch)


def padding(spec: ConvSpec) -> Padding:
    """Return the kernel parameter with the value of a layer's padding: x's zero point."""
    return Padding(x_zero_point=spec.x.q.zero_point)


def call(
    site: Site,
    packed: Array,
    table: RequantizationTable,
    params: Sequence[Params],
    options: Sequence[Options],
    *,
    working: tuple[str, int] | None = None,
    orders: Sequence[Traversal] = (),
    constants: Mapping[str, Array] | None = None,
) -> Call:
    """Return the call of a Helium kernel that computes a layer.

    Args:
        site: Operands and CPU features of the call.
        packed: int8 weights in reading order; they are packed to 4 bits here if the kernel reads 4-bit weights.
        table: The requantization constants, by blocks of channels.
        params: Parameters in the order of the kernel's declaration.
        options: Further template options, in addition to those that follow from the table.
        working: Name and bytes of the scratch operand, if any.
        orders: The orders in which the kernel may read x and write y, from which their allowed overlap follows.
        constants: Further constant operands by name.
    """
    packs = four_bits in site.kernel.when
    packed = pack_nibbles_apart(packed, table.apart or VECTOR) if packs else packed
    if packs and table.apart is None:
        table = replace(table, nibbles=True)
        options = [replace(o, nibbles=True) if isinstance(o, LoopFlags) else o for o in options]
    blocks = table.blocks_of_groups
    row_size = 0 if packed.ndim > 1 or packed.size % blocks else packed.size // blocks
    buffers: dict[str, Buffer] = {"x": site.x, "w": site.const("weights", packed, row_size)}
    buffers["table"] = site.const("table", table.data, table.data.size // blocks)
    buffers |= {role: site.const(role, data) for role, data in (constants or {}).items()}
    buffers["y"] = site.y
    if working:
        buffers[working[0]] = site.scratch(working[0], DType.INT8, working[1])
    free = table.spec.overlaps(*orders) if orders else []
    flags = [flag for flag in (UnpackedNibblesOption(nibbles=packs), *table.flags) if type(flag) in site.kernel.options]
    return site.call(buffers, params, [*options, *flags], overlaps=free)
