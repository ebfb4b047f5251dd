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
from mcugen.kernels.common.weighted_layers import four_bits, nine_bits
from mcugen.lir.kernel import Call, Options, Params, Role, Site, Trained, reads, writes
from mcugen.lir.program import Buffer
from mcugen.lir.traversal import Traversal

VECTOR = 16
"""Bytes of a vector."""

CHANNELS_PER_BLOCK = 4
"""Output channels that a convolution computes together, for two pixels (unroll factor)."""

UNROLL_FACTORS = (4, 3, 2, 1)
"""Unroll factors of the inner loop, in vectors, the preferred one first."""

MAX_INT16_RIGHT_SHIFT = 14
"""Largest right shift of 32-bit intermediate results to int16 values."""

MAX_OUT_CHANNELS = 2**14
"""Most output channels: results are scattered by 16-bit offsets, over up to four pixels."""


def int8_requantized(spec: ConvSpec) -> bool:
    """Require int8 tensors, sums in 32 bits."""
    return spec.is_int8 and int8_products(spec)


def int8_products(spec: ConvSpec) -> bool:
    """Require int8 by int8 to codes, or to the sums themselves, in 32 bits."""
    codes = all(t.dtype is DType.INT8 and t.quant is not None for t in (spec.x, spec.w))
    if codes and spec.is_sums:
        return spec.channels <= MAX_OUT_CHANNELS
    if not codes or not spec.is_requantized or spec.largest_sum >= 2**31 or spec.channels > MAX_OUT_CHANNELS:
        return False
    left = 31 - spec.requantizer.shift
    return left >= -MAX_INT16_RIGHT_SHIFT and spec.largest_sum << max(left, 0) < 2**31


def nine_bit_products(spec: ConvSpec) -> bool:
    """Require int8 by weights that are int8 plus a number of their channel, to codes, in 32 bits."""
    if not nine_bits(spec) or spec.channels > MAX_OUT_CHANNELS:
        return False
    left = 31 - spec.requantizer.shift
    return left >= -MAX_INT16_RIGHT_SHIFT and spec.largest_sum << max(left, 0) < 2**31


def has_nine_bits(spec: ConvSpec) -> bool:
    """Return whether the weights have nine bits.

    Such weights are stored as int8 values that differ from them by a common part of each channel.
    """
    return spec.w.dtype is not DType.INT8


def short_sums(spec: ConvSpec) -> bool:
    """Require sums of 27 bits."""
    return spec.largest_sum < 2**27


def blocks_of(rows: Array, count: int) -> Array:
    """Return [N, …] as [blocks, `count`, …], with the last block padded with zeros."""
    padded = np.pad(rows, [(0, -len(rows) % count)] + [(0, 0)] * (rows.ndim - 1))
    return padded.reshape(-1, count, *rows.shape[1:])


def pack_vectors(rows: Array, count: int, lanes: int = VECTOR) -> Array:
    """Pack [N, …, K] as a flat array, padded with zeros.

    Each block of `count` channels is stored as […, K / `lanes`, `count`, `lanes`]: a vector of every channel in turn.

        channel 0: k = 0 … lanes-1 | channel 1: k = 0 … lanes-1 | … | channel 0: k = lanes … 2·lanes-1 | …

    Args:
        rows: The weights.
        count: Channels of a block.
        lanes: Elements of a vector.
    """
    padded = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, -rows.shape[-1] % lanes)])
    blocks = blocks_of(padded.reshape(len(rows), -1, lanes), count)
    return np.ascontiguousarray(blocks.transpose(0, 2, 1, 3)).reshape(-1)


def joined(packed: Array, size: int) -> Array:
    """Pack 4-bit weights: two neighbouring runs of `size` weights share bytes, the first one in the lower halves."""
    pairs = packed.reshape(-1, 2, size)
    both: Array = (pairs[:, 0] & 15 | pairs[:, 1] << 4).astype(np.int8).reshape(-1)
    return both


@dataclass(frozen=True, eq=False)
class RequantizationTable:
    """Requantization constants by blocks of `block` channels.

    A block has the biases, then the 31-bit multipliers if sums are requantized, then, with `nine_bits`, the common
    part of each channel's nine-bit weights. `order` is the order of the channels in a block. Each of `groups` groups
    of channels has its own blocks, one group after the other.

    4-bit weights share bytes with the weights `apart` positions on. If `apart` is None, they share bytes with weights
    of the next channel and are multiplied without being unpacked: with `nibbles`, sums of even channels are 16 times as
    large.
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
        """Return the table as flat int32."""
        bias = self.spec.folded_bias
        columns = bias[:, None]
        if not self.spec.is_sums:
            columns = np.stack([bias, np.broadcast_to(self.spec.requantizer.multiplier, len(bias))], 1)
        if self.nine_bits:
            columns = np.concatenate([columns, self.spec.common_parts[:, None]], 1)
        blocks = np.concatenate([blocks_of(group, self.block) for group in np.split(columns, self.groups)])
        if self.nibbles:
            blocks[:, ::2, 0] *= 16
        table = blocks[:, list(self.order or range(self.block))].transpose(0, 2, 1)
        flat: Array = table.astype(np.int32).reshape(-1)
        return flat

    @property
    def shift(self) -> int:
        """Return the left shift of sums before multiplication; negative: the right shift of results, as for int16."""
        return 0 if self.spec.is_sums else 31 - self.spec.requantizer.shift

    @property
    def zero(self) -> int:
        """Return the number added to products: y's zero point.

        Before a right shift, the zero point is shifted left, and a rounding term is added.
        """
        zero, right = self.spec.y.q.zero_point, max(-self.shift, 0)
        return (zero << right) + (1 << right >> 1)

    @property
    def blocks(self) -> int:
        """Return the number of blocks of channels, the last of which may be partial."""
        return -(-self.spec.channels // self.block)

    @property
    def nbytes(self) -> int:
        """Return the bytes of a group's part of the table."""
        return int(self.data.nbytes) // self.groups

    @property
    def last(self) -> int:
        """Return the channels of a group's last block."""
        return (self.spec.channels // self.groups - 1) % self.block + 1

    @property
    def codes(self) -> RequantizationParams:
        """Return the parameters that turn sums into quantized values."""
        low, high = (0, 0) if self.spec.is_sums else self.spec.limits
        return RequantizationParams(y_zero_point=self.zero, low=low, high=high, left_shift=self.shift)

    @property
    def flags(self) -> tuple[Options, ...]:
        """Return the template options: which steps of the requantization are needed."""
        ragged = Ragged(has_tail_channels=self.last < self.block)
        results = Results(y_t=self.spec.y.dtype.c, post_shifted=self.shift < 0)
        scaled = Shifted(pre_shifted=self.shift > 0)
        return ragged, Clamped(clamp=self.spec.is_clamped), scaled, results


# ------------------------------------------------------------------------------------------- declarations


@dataclass(frozen=True, kw_only=True)
class StackFrame(Params):
    """Parameters that assembly copies to the stack in one piece: they come first, in this order."""

    by_place: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class RequantizationParams(Params):
    """Parameters of requantization."""

    y_zero_point: Annotated[Trained, "zero point of y"]
    low: Annotated[Trained, "lowest quantized value of y"]
    high: Annotated[Trained, "highest quantized value of y"]
    left_shift: Annotated[Trained, "left shift of sums before the product"]


@dataclass(frozen=True, kw_only=True)
class GemmFrame(StackFrame):
    """Parameters of products of two pixels by four channels."""

    y_zero_point: Annotated[Trained, "zero point of y; for right shifts, plus one half"]
    table_bytes: Annotated[int, "bytes of the table, or of the part of a group"]
    x_step_bytes: Annotated[int, "bytes of x from two pixels to the next two"]
    y_pair_stride: Annotated[int, "elements of y from two pixels to the next two"]
    inner_iterations: Annotated[int, "iterations of the inner loop"]
    iteration_gap_bytes: Annotated[
        int, "bytes of x from the end of an iteration to the start of the next, if they are not adjacent"
    ]
    left_shift: Annotated[Trained, "left shift of sums before the product; negative: right shift after the product"]
    tail_products: Annotated[int, "products beyond whole vectors"]
    last_block_channels: Annotated[int, "output channels of the last block"]
    counter: Annotated[int, "space for a counter of the assembly code"]
    low: Annotated[Trained, "lowest quantized value of y"]
    high: Annotated[Trained, "highest quantized value of y"]


@dataclass(frozen=True, kw_only=True)
class Padding(Params):
    """Parameter of the padding beside rows."""

    x_zero_point: Annotated[Trained, "zero point of x, the value of padding"]


@dataclass(frozen=True, kw_only=True)
class NineBits(Params):
    """Parameter of nine-bit weights, stored as int8 values that differ from them by a common part of each channel."""

    products_per_sum: Annotated[int, "products of a sum"]

    @staticmethod
    def of(spec: ConvSpec) -> list[Params]:
        """Return the parameters for nine-bit weights; none for weights of eight bits."""
        return [NineBits(products_per_sum=spec.depth)] if has_nine_bits(spec) else []


@dataclass(frozen=True, kw_only=True)
class StripRows(Params):
    """Sizes of the strip: a buffer of padded rows under one row of y."""

    strip_rows: Annotated[int, "rows of the strip of padded rows"]
    strip_row_stride: Annotated[int, "bytes from row to row of the strip"]


@dataclass(frozen=True, kw_only=True)
class Ragged(Options):
    """Template option of blocks of channels."""

    has_tail_channels: Annotated[bool, "whether the last block of channels is partly filled"]


@dataclass(frozen=True, kw_only=True)
class Clamped(Options):
    """Template option of limits of results."""

    clamp: Annotated[bool, "whether results are clamped further than by their type"]


@dataclass(frozen=True, kw_only=True)
class Shifted(Options):
    """Template option of the scale of sums."""

    pre_shifted: Annotated[bool, "whether sums are shifted left before they are multiplied"]


@dataclass(frozen=True, kw_only=True)
class Results(Options):
    """Template options of the result type: quantized values of 8 or 16 bits, or the sums."""

    y_t: Annotated[str, "C type of the output; int32_t: sums are stored as they are"]
    post_shifted: Annotated[bool, "whether rounded products are shifted right"]


@dataclass(frozen=True, kw_only=True)
class LoopFlags(Options):
    """Template options of the inner loop over vectors of products."""

    unroll: Annotated[int, "unroll factor of the inner loop, in vectors; 0: no whole vector"]
    has_loop: Annotated[bool, "whether the inner loop has several iterations"]
    has_tail_vector: Annotated[bool, "whether a partly filled vector follows"]
    nibbles: Annotated[bool, "whether the weights of two channels share bytes"] = False


@dataclass(frozen=True, kw_only=True)
class Halves(Options):
    """Template option of weights that are unpacked before they are multiplied."""

    nibbles: Annotated[bool, "whether two weights share bytes"]


@dataclass(frozen=True, kw_only=True)
class Jump(Options):
    """Template option of the distance between inner loop iterations."""

    has_row_jumps: Annotated[bool, "whether the inputs of consecutive iterations are not adjacent"] = False


def operands(*more: Role, working: Sequence[Role] = (), results: Sequence[DType] = (DType.INT8,)) -> tuple[Role, ...]:
    """Return the operands of a kernel: x, weights, table, further constants, y, and working memory.

    Args:
        more: Further constants.
        working: Working memory.
        results: Possible element types of y.
    """
    return (
        reads("x", "input, channels last", DType.INT8),
        reads("w", "weights in reading order, with zeros for what is missing", DType.INT8),
        reads("table", "biases and multipliers, by blocks of channels", DType.INT32),
        *more,
        writes("y", "output, channels last", *results),
        *working,
    )


# -------------------------------------------------------------------------------------------------- calls


@dataclass(frozen=True)
class VectorLoop:
    """An inner loop over `vectors` vectors, some per iteration, and `tail` further products."""

    vectors: int
    tail: int = 0

    @property
    def flags(self) -> LoopFlags:
        """Return the loop's template options, with the largest unroll factor that divides the number of vectors."""
        unroll = next((n for n in UNROLL_FACTORS if self.vectors and self.vectors % n == 0), 0)
        looped = unroll > 0 and self.vectors > unroll
        return LoopFlags(unroll=unroll, has_loop=looped, has_tail_vector=self.tail > 0)

    @property
    def turns(self) -> int:
        """Return the number of iterations."""
        return self.vectors // self.flags.unroll if self.flags.unroll else 0


def gemm_frame(table: RequantizationTable, loop: VectorLoop, x_next: int) -> GemmFrame:
    """Return the parameters of products whose iterations read adjacent bytes of x.

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
        inner_iterations=loop.turns,
        iteration_gap_bytes=0,
        left_shift=codes.left_shift,
        tail_products=loop.tail,
        last_block_channels=table.last,
        counter=0,
        low=codes.low,
        high=codes.high,
    )


def block_products(spec: ConvSpec, pixels: int, channels: int) -> int:
    """Count vectors of products of a layer, for the cost model.

    Args:
        spec: The layer.
        pixels: Pixels of a block.
        channels: Channels of a block.
    """
    groups = spec.shape.groups
    blocks = -(-spec.y.count // spec.channels // pixels) * groups * -(-spec.channels // groups // channels)
    taps = spec.shape.kernel_height * spec.shape.kernel_width if groups > 1 else 1
    return blocks * taps * -(-spec.depth // taps // VECTOR)


def strip_of(shape: ConvShape) -> StripRows:
    """Return the sizes of the strip of padded rows."""
    extent = shape.stride_width * (shape.out_width - 1) + shape.dilation_width * (shape.kernel_width - 1) + 1
    pitch = max(extent, shape.padding_left + shape.in_width) * shape.in_channels
    return StripRows(strip_rows=(shape.kernel_height - 1) * shape.dilation_height + 1, strip_row_stride=pitch)


def padding(spec: ConvSpec) -> Padding:
    """Return the parameter of padding."""
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
    """Return the call of a kernel.

    Args:
        site: Operands and CPU features of the call.
        packed: int8 weights in reading order; they are packed to 4 bits if the kernel reads those.
        table: The requantization constants, by blocks of channels.
        params: Parameters in the order of the kernel's.
        options: Template options besides those of the table.
        working: Role and bytes of the working memory, if any.
        orders: Traversals of x and y, from which their allowed overlap follows.
        constants: Further constants by role.
    """
    packs = four_bits in site.kernel.when
    packed = joined(packed, table.apart or VECTOR) if packs else packed
    if packs and table.apart is None:
        table = replace(table, nibbles=True)
        options = [replace(o, nibbles=True) if isinstance(o, LoopFlags) else o for o in options]
    buffers: dict[str, Buffer] = {"x": site.x, "w": site.const("weights", packed)}
    buffers["table"] = site.const("table", table.data)
    buffers |= {role: site.const(role, data) for role, data in (constants or {}).items()}
    buffers["y"] = site.y
    if working:
        buffers[working[0]] = site.scratch(working[0], DType.INT8, working[1])
    free = table.spec.overlaps(*orders) if orders else []
    flags = [flag for flag in (Halves(nibbles=packs), *table.flags) if type(flag) in site.kernel.options]
    return site.call(buffers, params, [*options, *flags], overlaps=free)
