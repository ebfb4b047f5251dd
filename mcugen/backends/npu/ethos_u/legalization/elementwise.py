# SPDX-License-Identifier: Apache-2.0
"""Rules of elementwise operators: sums, products, extremes, linear functions per channel, and tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mcugen.backends.npu.ethos_u.legalization.rule import Legalization, int8_fault, quantized_fault
from mcugen.backends.npu.ethos_u.legalization.writer import (
    MAX_SHIFT,
    MIN_SHIFT,
    MULTIPLIER_LIMIT,
    TOSA_TYPES,
    SegmentWriter,
    rescale_constants,
    rescale_fault,
)
from mcugen.backends.npu.ethos_u.tosa.graph import Op, Tensor, TosaType
from mcugen.hir.graph import Node, Value
from mcugen.hir.operator import Signature
from mcugen.hir.types import DType, TensorType
from mcugen.numerics.curves import Line
from mcugen.numerics.fixedpoint import clamp_range, has_same_quantization
from mcugen.ops.conversion import Requantize
from mcugen.ops.elementwise import Elementwise, Linear, Lookup, Stack
from mcugen.ops.lines import FixedAffine
from mcugen.ops.pointwise import Binary, Clamp, FixedSum

INT8_VALUES = np.arange(-128, 128).astype(np.int8)
"""All int8 values in the order of TOSA's tables."""

MAX_SUM_FACTOR = 2 ** (31 - MIN_SHIFT)
"""Exclusive bound of the factors of a sum, which RESCALE applies with a shift of MIN_SHIFT."""

OPERAND_SHIFT = 19
"""Left shift of the operand with the larger factor in an int8 addition of one pass."""

MIN_WIDE_SHIFT = 17
"""Least shift with which RESCALE takes all int16 values."""

SHORT_FACTOR_BITS = 16
"""Vela 5.2 takes two different factors of at most so many bits for one pass of Ethos-U55 and U65, which applies only
the first of them. Longer factors take a pass each."""


@dataclass(frozen=True)
class SinglePassSum:
    """A sum as one addition of the NPU computes it: ((x · m0 + y · m1) · multiplier) >> shift, without zero points.

    Attributes:
        factors: The magnitudes of m0 and m1; the larger one is 2^OPERAND_SHIFT.
        multiplier: Multiplier of the sum.
        shift: Right shift of the product in bits.
    """

    factors: tuple[int, int]
    multiplier: int
    shift: int


def single_pass_sum(fixed: FixedSum) -> SinglePassSum | None:
    """Return the same sum in a form that the NPU computes in one pass; None if it has no such form."""
    magnitudes = [abs(m) for m in fixed.factors]
    twos = (max(magnitudes) & -max(magnitudes)).bit_length() - 1
    unit, raise_bits = max(magnitudes) >> twos, OPERAND_SHIFT - twos
    if raise_bits < 0 or any(m % unit for m in magnitudes) or fixed.shift + raise_bits > MAX_SHIFT - MIN_SHIFT:
        return None
    m0, m1 = ((m // unit) << raise_bits for m in magnitudes)
    return SinglePassSum((m0, m1), unit, fixed.shift + raise_bits)


def _in_passes(fixed: FixedSum) -> SinglePassSum:
    """Return a sum whose factors take a pass each: they are lengthened until Vela does not take them for short ones."""
    spare = max(SHORT_FACTOR_BITS + 1 - max(map(abs, fixed.factors)).bit_length(), 0)
    m0, m1 = (abs(m) << spare for m in fixed.factors)
    return SinglePassSum((m0, m1), 1, fixed.shift + spare)


def wide_sum(fixed: FixedSum) -> SinglePassSum | None:
    """Return a sum of int16 tensors with factors of 15 bits, which fits in 32 bits; None if it has no such form."""
    magnitudes = [abs(m) for m in fixed.factors]
    twos = (max(magnitudes) & -max(magnitudes)).bit_length() - 1
    unit = max(magnitudes) >> twos
    if any(m % unit for m in magnitudes) or max(magnitudes) // unit >= 2**15:
        unit = 1
    m0, m1 = (m // unit for m in magnitudes)
    is_short = max(m0, m1) < 2**15 and m0 + m1 < 2**16 and 1 <= fixed.shift <= MAX_SHIFT - MIN_SHIFT
    scaled = SinglePassSum((m0, m1), unit, fixed.shift)
    fits = is_short and unit << MIN_SHIFT < MULTIPLIER_LIMIT
    if not fits:
        return None
    _, shifts = rescale_constants(np.array([unit << MIN_SHIFT]), fixed.shift + MIN_SHIFT)
    return scaled if (m0 + m1) << 15 <= 1 << (int(shifts[0]) - 1) else None


def _write_wide_sum(
    writer: SegmentWriter, operands: tuple[Tensor, Tensor], fixed: FixedSum, out: TensorType, limits: tuple[int, int]
) -> Tensor:
    scaled = wide_sum(fixed)
    assert scaled is not None
    wide = [
        writer.widen(t, 0) if m == 1 else writer.binary(Op.MUL, t, _constant16(writer, m, len(t.shape)), TosaType.INT32)
        for t, m in zip(operands, scaled.factors, strict=True)
    ]
    total = writer.binary(Op.SUB if fixed.factors[1] < 0 else Op.ADD, wide[0], wide[1], TosaType.INT32)
    return writer.narrow(total, scaled.shift, out, limits, scaled.multiplier)


def _constant16(writer: SegmentWriter, value: int, rank: int) -> Tensor:
    return writer.graph.constant(np.full((1,) * rank, value, np.int16))


def _varying(node: Node) -> list[Value]:
    return [v for v in node.inputs if v is not None and not v.is_constant]


# --------------------------------------------------------------------------------------------- two operands


def _binary_fault(node: Node) -> str:
    op, sig = node.op, node.sig
    assert isinstance(op, Binary)
    if len(_varying(node)) == 1 and _is_tabulated(node):
        return ""
    if op.function in ("Max", "Min"):
        same = all(has_same_quantization(sig.input(i), sig.output) for i in (0, 1))
        return "" if same and op.clamp is None else "operands of another scale than the result"
    fault = quantized_fault(node)
    if fault:
        return fault
    if any(v is not None and v.type.dtype is not node.output.type.dtype for v in node.inputs):
        return "operands of another type than the result"
    if op.function in ("Add", "Sub") and node.output.type.dtype is DType.INT16:
        fixed = op.fixed_sum(sig)
        return "" if fixed and wide_sum(fixed) else "int16: sums with factors of more than 15 bits"
    if op.function in ("Add", "Sub"):
        fixed = op.fixed_sum(sig)
        if fixed is None or fixed.wide or fixed.shift < 1 or max(map(abs, fixed.factors)) >= MAX_SUM_FACTOR:
            return "scales that are too far apart"
        return ""
    if op.function == "Mul":
        return rescale_fault(op.product(sig), np.array([op.largest_product(sig)]))
    return f"no operation for {op.function}"


def _write_binary(node: Node, writer: SegmentWriter) -> Tensor:
    op, out = node.op, node.output.type
    assert isinstance(op, Binary)
    if len(_varying(node)) == 1 and _is_tabulated(node):
        return _write_table(node, writer)
    x, y = (writer.tensor(node.input(i)) for i in (0, 1))
    limits = clamp_range(op.clamp, out.q, out.dtype)
    if op.function in ("Max", "Min"):
        kind = Op.MAXIMUM if op.function == "Max" else Op.MINIMUM  # TOSA compares words
        zero = out.q.zero_point
        chosen = writer.binary(kind, writer.widen(x, zero), writer.widen(y, zero), TosaType.INT32)
        return writer.narrow(chosen, 0, out, limits)
    zeros = [node.sig.input(i).q.zero_point for i in (0, 1)]
    if op.function == "Mul":
        wide = [writer.widen(t, zero) for t, zero in zip((x, y), zeros, strict=True)]
        product = writer.binary(Op.MUL, wide[0], wide[1], TosaType.INT32)
        return writer.requantize(product, op.product(node.sig), out, limits)
    fixed = op.fixed_sum(node.sig)
    assert fixed is not None
    if out.dtype is DType.INT16:
        return _write_wide_sum(writer, (x, y), fixed, out, limits)
    scaled = single_pass_sum(fixed) or _in_passes(fixed)
    wide = [writer.widen(t, z, m) for t, z, m in zip((x, y), zeros, scaled.factors, strict=True)]
    total = writer.binary(Op.SUB if fixed.factors[1] < 0 else Op.ADD, wide[0], wide[1], TosaType.INT32)
    return writer.narrow(total, scaled.shift, out, limits, scaled.multiplier)


# ---------------------------------------------------------------------------------------------- one operand


def _is_tabulated(node: Node) -> bool:
    """Return whether a node is a function of one int8 tensor and constants of one element, with an int8 result."""
    varying = _varying(node)
    op = node.op
    tables = op.tables if isinstance(op, Elementwise) else frozenset()
    scalars = all(
        v is None or not v.is_constant or v.type.count == 1 or index in tables for index, v in enumerate(node.inputs)
    )
    types = [v.type for v in varying[:1]] + [node.output.type]
    is_int8 = all(t.dtype is DType.INT8 for t in types)
    return is_int8 and len(varying) == 1 and scalars and varying[0].type.shape == node.output.type.shape


def _table_fault(node: Node) -> str:
    if any(v.type.dtype is DType.INT16 for v in (*_varying(node), node.output)):
        return "int16: the NPU has no table for our interpolation"
    return "" if _is_tabulated(node) else "more than a function of one int8 tensor"


def _write_table(node: Node, writer: SegmentWriter) -> Tensor:
    """Write a function of one int8 tensor as a table, whose entries the operator's numpy form computes."""
    (varying,) = _varying(node)
    rank = node.output.type.rank
    codes = INT8_VALUES.reshape((256, *[1] * (rank - 1)) if rank else (256,))
    inputs = [None if v is None else codes if v is varying else v.data for v in node.inputs]
    shape = codes.shape
    types = tuple(None if v is None else v.type.with_shape(shape) if v is varying else v.type for v in node.inputs)
    sig = Signature(types, (node.output.type.with_shape(shape),))
    (entries,) = node.op.evaluate(sig, *(a for a in inputs if a is not None))
    table = writer.graph.constant(entries.reshape(256).astype(np.int8))
    x = writer.tensor(varying)
    return writer.graph.add(Op.TABLE, [x, table], x.shape, TosaType.INT8)


def _affine_fault(node: Node) -> str:
    op, factor, start = node.op, node.input(1), node.input(2)
    assert isinstance(op, FixedAffine)
    fault = int8_fault(node)
    if fault:
        return fault
    if factor.data is None or start.data is None or start.type.dtype is not DType.INT32 or op.bits < 1:
        return "constants of more than 32 bits"
    return ""


def _write_affine(node: Node, writer: SegmentWriter) -> Tensor:
    """Write (x · factor + start) >> bits: RESCALE adds half a step itself, and the zero point behind the shift."""
    op, out = node.op, node.output.type
    assert isinstance(op, FixedAffine)
    factor, start = node.input(1).data, node.input(2).data
    assert factor is not None and start is not None
    offset = start.astype(np.int64) - (1 << (op.bits - 1)) - (out.q.zero_point << op.bits)
    x = writer.widen(writer.tensor(node.input(0)), 0)
    shape = [a.shape or (1,) for a in (factor, offset)]
    product = writer.binary(Op.MUL, x, writer.graph.constant(factor.astype(np.int32).reshape(shape[0])), x.dtype)
    total = writer.binary(Op.ADD, product, writer.graph.constant(offset.astype(np.int32).reshape(shape[1])), x.dtype)
    return writer.narrow(total, op.bits, out, clamp_range(op.clamp, out.q, out.dtype))


def _zero_point(line: Line) -> int:
    """Return the zero point by which a line is a RESCALE: the constant term, rounded to nearest."""
    return line.offset >> line.shift


def _linear_fault(node: Node) -> str:
    op, out = node.op, node.output.type
    assert isinstance(op, Linear)
    line, zero = op.line, _zero_point(op.line)
    if line.slope < 0 or not MIN_SHIFT <= line.shift <= MAX_SHIFT:
        return "a linear function with a negative slope, or a large one"
    _, shifts = rescale_constants(np.array([line.slope]), line.shift)
    if int(shifts[0]) < MIN_WIDE_SHIFT:
        return "a linear function with a large slope"
    low, high = node.input(0).type.dtype.limits
    products = np.arange(low, high + 1) * line.slope
    rounded = zero + ((products + (1 << (line.shift - 1))) >> line.shift)
    exact = (products + line.offset) >> line.shift
    is_equal = np.array_equal(*(np.clip(y, line.low, line.high) for y in (rounded, exact)))
    return "" if is_equal and not (zero and out.dtype is DType.INT16) else "a linear function with a constant term"


def _write_linear(node: Node, writer: SegmentWriter) -> Tensor:
    op, out = node.op, node.output.type
    assert isinstance(op, Linear)
    line, x = op.line, writer.tensor(node.input(0))
    multiplier, shift = rescale_constants(np.array([line.slope]), line.shift)
    y = writer.rescale(x, multiplier, shift, TOSA_TYPES[out.dtype], zero_points=(0, _zero_point(line)))
    return writer.clamp(y, (line.low, line.high))


ELEMENTWISE_LEGALIZATIONS = (
    Legalization(Linear, _linear_fault, _write_linear),
    Legalization(Binary, _binary_fault, _write_binary),
    Legalization(FixedAffine, _affine_fault, _write_affine),
    *(Legalization(operator, _table_fault, _write_table) for operator in (Lookup, Requantize, Clamp, Stack)),
)
"""The rules of this module."""
