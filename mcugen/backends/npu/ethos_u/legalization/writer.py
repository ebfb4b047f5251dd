# SPDX-License-Identifier: Apache-2.0
"""Writing of HIR nodes to a TOSA graph: the tensors of values, and sequences of operations that several rules need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mcugen.backends.npu.ethos_u.tosa.flatbuffer import Scalar, Vector
from mcugen.backends.npu.ethos_u.tosa.graph import (
    IGNORE_NAN,
    SINGLE_ROUND,
    Op,
    Operand,
    Tensor,
    TosaGraph,
    TosaType,
)
from mcugen.hir.graph import Value
from mcugen.hir.types import Array, DType, Shape, TensorType
from mcugen.numerics.fixedpoint import Requantizer

TOSA_TYPES = {DType.INT8: TosaType.INT8, DType.INT16: TosaType.INT16, DType.INT32: TosaType.INT32}
"""TOSA's element type of each type that the NPU computes with."""

MIN_SHIFT, MAX_SHIFT = 2, 62
"""Least and largest right shift of TOSA's RESCALE."""

MULTIPLIER_LIMIT = 2**31
"""Exclusive bound of the multipliers of RESCALE."""


def rescale_constants(multiplier: Array, shift: int, bits: int = 31) -> tuple[Array, Array]:
    """Return multipliers and shifts of RESCALE that equal `multiplier` / 2^`shift` exactly, each per channel.

    A multiplier is doubled, and its shift increased by one, until it takes all bits: the NPU then keeps most bits of
    the sums. Longer multipliers, which must end with zeros, are halved. A multiplier of 0 stays.

    Args:
        multiplier: Integers from 0 to below MULTIPLIER_LIMIT.
        shift: Right shift in bits.
        bits: Number of bits of the multipliers.
    """
    lengths = np.array([int(m).bit_length() for m in multiplier])
    doublings = np.where(multiplier > 0, np.minimum(bits - lengths, MAX_SHIFT - shift), 0)
    raised = multiplier.astype(np.int64) << np.maximum(doublings, 0) >> np.maximum(-doublings, 0)
    return raised.astype(np.int32), (shift + doublings).astype(np.int8)


def rescale_fault(requantizer: Requantizer, largest: Array) -> str:
    """Return why RESCALE cannot compute a requantization, as a phrase; "" if it can.

    RESCALE takes shifts of 2 to 62 bits, and values whose magnitude is below 2^(shift − 1).

    Args:
        requantizer: The requantization; its multipliers may be per channel.
        largest: The largest magnitude of the accumulators, one for all or one per channel.
    """
    if not MIN_SHIFT <= requantizer.shift <= MAX_SHIFT:
        return f"a shift of {requantizer.shift} bits"
    _, shifts = rescale_constants(requantizer.multiplier, requantizer.shift)
    is_small = np.all(largest.astype(np.float64) < np.exp2(shifts.astype(np.float64) - 1))
    return "" if is_small and largest.max(initial=0) < 2**31 else "sums of more bits than a rescale takes"


@dataclass
class SegmentWriter:
    """A writer of a segment's nodes to a TOSA graph.

    Attributes:
        graph: The TOSA graph.
        tensors: The TOSA tensor of each HIR value that was written or is an input.
    """

    graph: TosaGraph = field(default_factory=TosaGraph)
    tensors: dict[Value, Tensor] = field(default_factory=dict)

    def input(self, value: Value) -> None:
        """Declare a value as an input of the segment."""
        self.tensors[value] = self.graph.add_input(value.type.shape or (1,), TOSA_TYPES[value.type.dtype])

    def tensor(self, value: Value) -> Tensor:
        """Return the TOSA tensor of a value; constants are written on first use. Scalars have one axis of length 1."""
        if value not in self.tensors:
            assert value.data is not None, f"{value.name} has not been written"
            self.tensors[value] = self.graph.constant(value.data.reshape(value.type.shape or (1,)))
        return self.tensors[value]

    def reshape(self, x: Tensor, shape: Shape) -> Tensor:
        """Return a tensor in another shape; no operation is written if it has that shape."""
        if x.shape == shape:
            return x
        if x.data is not None:
            return self.graph.constant(x.data.reshape(shape), x.dtype)
        return self.graph.add(Op.RESHAPE, [x, self.graph.sizes(shape)], shape, x.dtype)

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        """Return a tensor with permuted axes; entry i of `perm` is the axis of x that becomes axis i."""
        shape = tuple(x.shape[axis] for axis in perm)
        return self.graph.add(Op.TRANSPOSE, [x], shape, x.dtype, [Vector.of("i", tuple(perm))])

    def slice(self, x: Tensor, starts: Sequence[int], shape: Shape) -> Tensor:
        """Return the part of a tensor that begins at `starts` and has the given shape."""
        if x.shape == shape:
            return x
        return self.graph.add(Op.SLICE, [x, self.graph.sizes(starts), self.graph.sizes(shape)], shape, x.dtype)

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """Return tensors one behind the other along an axis; no operation is written for a single one."""
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.graph.add(Op.CONCAT, parts, tuple(shape), parts[0].dtype, [Scalar("i", axis)])

    def pad(self, x: Tensor, widths: Sequence[int], value: int) -> Tensor:
        """Return a tensor with padding; `widths` has the elements before and behind it of each axis."""
        if not any(widths):
            return x
        before, after = widths[::2], widths[1::2]
        shape = tuple(n + b + a for n, b, a in zip(x.shape, before, after, strict=True))
        operands: list[Operand] = [x, self.graph.sizes(widths), self.zero_point(value, x.dtype)]
        return self.graph.add(Op.PAD, operands, shape, x.dtype)

    def zero_point(self, value: int, dtype: TosaType) -> Tensor:
        """Return a constant with a zero point, as operators take it."""
        arrays = {TosaType.INT8: np.int8, TosaType.INT16: np.int16, TosaType.INT32: np.int32}
        if dtype is TosaType.INT48:
            return self.graph.constant(np.array([value], np.int64), TosaType.INT48)
        return self.graph.constant(np.array([value], arrays[dtype]))

    def rescale(
        self,
        x: Tensor,
        multiplier: Array,
        shift: Array,
        dtype: TosaType,
        *,
        zero_points: tuple[int, int] = (0, 0),
    ) -> Tensor:
        """Return clamp(((x − zero point) · multiplier + 2^(shift − 1)) >> shift + zero point).

        Args:
            x: The tensor.
            multiplier: Multipliers below 2^31, or below 2^15 if x is int48: one, or one per channel of the last axis.
            shift: Right shifts of 2 to 62 bits, as many as multipliers.
            dtype: Element type of the result, to which the result is clamped.
            zero_points: Zero points of x and of the result; only int8 tensors have one.
        """
        is_wide = x.dtype is TosaType.INT48  # whose multipliers have 16 bits
        attributes = [Scalar("?", not is_wide), SINGLE_ROUND, Scalar("?", len(multiplier) > 1), Scalar("?", False)]
        operands = [
            x,
            self.graph.constant(multiplier.astype(np.int16 if is_wide else np.int32)),
            self.graph.constant(shift.astype(np.int8)),
            self.zero_point(zero_points[0], x.dtype),
            self.zero_point(zero_points[1], dtype),
        ]
        return self.graph.add(Op.RESCALE, operands, x.shape, dtype, [*attributes, Scalar("?", False)])

    def requantize(self, x: Tensor, requantizer: Requantizer, out: TensorType, limits: tuple[int, int]) -> Tensor:
        """Return int8 or int16 values of accumulators: requantized, rounded half up, and clamped to `limits`.

        Accumulators of int48 give int16 values; their multipliers must have at most 15 significant bits.
        """
        is_wide = x.dtype is TosaType.INT48
        multiplier, shift = rescale_constants(requantizer.multiplier, requantizer.shift, 15 if is_wide else 31)
        channels = x.shape[-1]
        if len(multiplier) > 1 and (multiplier == multiplier[0]).all() and (shift == shift[0]).all():
            multiplier, shift = multiplier[:1], shift[:1]
        assert len(multiplier) in (1, channels)
        y = self.rescale(x, multiplier, shift, TOSA_TYPES[out.dtype], zero_points=(0, out.q.zero_point))
        return self.clamp(y, limits)

    def clamp(self, x: Tensor, limits: tuple[int, int]) -> Tensor:
        """Return a tensor clamped to [low, high]; no operation is written if the type has these limits."""
        size = 1 if x.dtype is TosaType.INT8 else 2
        if limits == (-(1 << (8 * size - 1)), (1 << (8 * size - 1)) - 1):
            return x
        ends = [Vector("B", int(end).to_bytes(size, "little", signed=True)) for end in limits]
        return self.graph.add(Op.CLAMP, [x], x.shape, x.dtype, [*ends, IGNORE_NAN])

    def widen(self, x: Tensor, zero_point: int, factor: int = 1) -> Tensor:
        """Return (x − zero point) · factor as int32, exactly.

        Args:
            x: An int8 or int16 tensor.
            zero_point: Zero point of x; 0 unless it is int8.
            factor: A factor from 0 to below 2^29.
        """
        multiplier, shift = rescale_constants(np.array([factor << MIN_SHIFT]), MIN_SHIFT)
        return self.rescale(x, multiplier, shift, TosaType.INT32, zero_points=(zero_point, 0))

    def shifted(self, x: Tensor, shift: int, dtype: TosaType) -> Tensor:
        """Return x / 2^shift, rounded half up, and clamped to the element type of the result.

        Args:
            x: An int32 tensor, or the int32 results of a table.
            shift: A right shift in bits.
            dtype: Element type of the result.
        """
        return self.rescale(x, *rescale_constants(np.array([1 << MIN_SHIFT]), shift + MIN_SHIFT), dtype)

    def table16(self, x: Tensor, entries: Array) -> Tensor:
        """Return a function of an int16 tensor as int16, interpolated between 513 entries; they are 128 apart."""
        y = self.graph.add(Op.TABLE, [x, self.graph.constant(entries.astype(np.int16))], x.shape, TosaType.INT32)
        return self.shifted(y, 7, TosaType.INT16)

    def as_int32(self, x: Tensor) -> Tensor:
        """Return int48 sums that fit in int32 as such; other tensors are returned unchanged."""
        if x.dtype is not TosaType.INT48:
            return x
        return self.rescale(x, np.array([1 << 14]), np.array([14]), TosaType.INT32)

    def row_sums(self, x: Tensor) -> Tensor:
        """Return the sums of the rows of an int32 tensor [rows, count] as [1, rows]."""
        rows = x.shape[0]
        sums = self.graph.add(Op.REDUCE_SUM, [x], (rows, 1), TosaType.INT32, [Scalar("i", 1)])
        return self.reshape(sums, (1, rows))

    def product(self, x: Tensor, y: Tensor, shift: int) -> Tensor:
        """Return x · y / 2^shift of int32 tensors of one rank, rounded half up.

        Vela 5.2 rounds twice if the shift exceeds 31.
        """
        shape = tuple(map(int, np.broadcast_shapes(x.shape, y.shape)))
        operands = [x, y, self.graph.constant(np.array([shift], np.int8))]
        return self.graph.add(Op.MUL, operands, shape, TosaType.INT32)

    def narrow(
        self, x: Tensor, shift: int, out: TensorType, limits: tuple[int, int], multiplier_of_x: int = 1
    ) -> Tensor:
        """Return int8 or int16 values of int32 numbers: x · multiplier / 2^shift, rounded half up, and clamped.

        The zero point of the result is added before the clamp.

        Args:
            x: The int32 numbers.
            shift: A right shift in bits.
            out: Type of the result.
            limits: Least and largest result.
            multiplier_of_x: A multiplier from 1 to below 2^29.
        """
        multiplier, shifts = rescale_constants(np.array([multiplier_of_x << MIN_SHIFT]), shift + MIN_SHIFT)
        y = self.rescale(x, multiplier, shifts, TOSA_TYPES[out.dtype], zero_points=(0, out.q.zero_point))
        return self.clamp(y, limits)

    def binary(self, op: Op, x: Tensor, y: Tensor, dtype: TosaType) -> Tensor:
        """Return an elementwise operation of two tensors, which broadcast to each other."""
        rank = max(len(x.shape), len(y.shape))
        x, y = (self.reshape(t, (1,) * (rank - len(t.shape)) + t.shape) for t in (x, y))
        shape = tuple(map(int, np.broadcast_shapes(x.shape, y.shape)))
        operands = [x, y]
        if op is Op.MUL:
            operands.append(self.graph.constant(np.zeros(1, np.int8)))
        attributes = [IGNORE_NAN] if op in (Op.MAXIMUM, Op.MINIMUM) else []
        return self.graph.add(op, operands, shape, dtype, attributes)

    def integer(self, value: int, rank: int = 1) -> Tensor:
        """Return a constant int32 with axes of length 1."""
        return self.graph.constant(np.full((1,) * rank, value, np.int32))
