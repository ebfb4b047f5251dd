# SPDX-License-Identifier: Apache-2.0
"""Rule of layer normalization: tables of powers and inverse roots, and products of 32-bit words (`ShortNormalize`)."""

from __future__ import annotations

import numpy as np

from mcugen.backends.npu.ethos_u.legalization.rule import MAX_AXIS, Legalization, int8_fault
from mcugen.backends.npu.ethos_u.legalization.writer import SegmentWriter, rescale_constants
from mcugen.backends.npu.ethos_u.tosa.graph import Op, Tensor, TosaType
from mcugen.hir.graph import Node, constant_data
from mcugen.numerics.normalize import ROOTS_CENTER, ROOTS_SCALE, ShortNormalize, inverse_roots, powers_of_zeros
from mcugen.ops.norm import Normalize


def short_normalize(node: Node) -> ShortNormalize | None:
    """Return the form of a layer normalization that the NPU computes; None if it has none."""
    op = node.op
    assert isinstance(op, Normalize)
    if any(v is not None and v.data is None for v in node.inputs[1:]):
        return None
    return op.short(node.sig, constant_data(node.inputs[1:]))


def _fault(node: Node) -> str:
    op = node.op
    assert isinstance(op, Normalize)
    fault = int8_fault(node)
    if fault:
        return fault
    short = short_normalize(node)
    if short is None or node.output.type.count // short.count > MAX_AXIS:
        return "a normalization of other elements than those of at most 1024 adjacent ones"
    return "" if op.is_short else "normalization: the NPU rounds it differently"


def _write(node: Node, writer: SegmentWriter) -> Tensor:
    out, short = node.output.type, short_normalize(node)
    assert short is not None
    rows, zero = out.count // short.count, 0 if short.centered else node.input(0).type.q.zero_point
    x = writer.reshape(writer.tensor(node.input(0)), (rows, short.count))
    wide, deviation = writer.widen(x, zero), writer.widen(x, zero, short.count)
    spread = writer.product(
        writer.row_sums(writer.product(wide, wide, 0)), writer.integer(short.count, 2), short.lower_bits
    )
    if short.centered:
        total = writer.row_sums(wide)
        spread = writer.binary(Op.SUB, spread, writer.product(total, total, short.lower_bits), TosaType.INT32)
        deviation = writer.binary(Op.SUB, deviation, writer.reshape(total, (rows, 1)), TosaType.INT32)
    if short.raise_bits:
        spread = writer.product(spread, writer.integer(1 << short.raise_bits, 2), 0)
    spread = writer.binary(Op.ADD, spread, writer.integer(short.epsilon), TosaType.INT32)
    root = writer.reshape(_inverse_root(writer, spread), (rows, 1))
    normal = writer.shifted(writer.product(deviation, root, short.shift), 0, TosaType.INT16)
    gain = writer.graph.constant(short.gain.astype(np.int16).reshape(1, -1))
    y = writer.binary(Op.MUL, normal, gain, TosaType.INT32)
    if short.bias.any():
        y = writer.binary(Op.ADD, y, writer.graph.constant(short.bias.astype(np.int32).reshape(1, -1)), TosaType.INT32)
    return writer.reshape(writer.narrow(y, short.bits, out, out.dtype.limits), out.shape)


def _inverse_root(writer: SegmentWriter, spread: Tensor) -> Tensor:
    """Return 2^29 / √spread of positive int32 numbers below 2^30, with 15 bits."""
    zeros = writer.graph.add(Op.CLZ, [spread], spread.shape, TosaType.INT32)
    index = writer.rescale(zeros, *rescale_constants(np.array([128 << 2]), 2), TosaType.INT16)
    powers = np.zeros(513, np.int16)
    powers[256:289] = powers_of_zeros()
    power = writer.table16(index, powers)
    scaled = writer.product(spread, writer.binary(Op.MUL, power, power, TosaType.INT32), 0)
    centered = writer.binary(Op.SUB, scaled, writer.integer(ROOTS_CENTER), TosaType.INT32)
    place = writer.rescale(centered, *rescale_constants(np.array([ROOTS_SCALE[0]]), ROOTS_SCALE[1]), TosaType.INT16)
    root = writer.table16(place, np.array(inverse_roots(), np.int16))
    return writer.binary(Op.MUL, power, root, TosaType.INT32)


NORMALIZATION_LEGALIZATIONS = (Legalization(Normalize, _fault, _write),)
"""The rule of this module."""
