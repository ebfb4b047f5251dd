# SPDX-License-Identifier: Apache-2.0
"""Rule of softmax: tables of exponentials and inverses, and Newton's method on 32-bit words (`ShortSoftmax`).

The NPU has no division of sums, and Vela 5.2 rounds products of words that are shifted by more than 31 bits twice: the
CPU's results (`FixedSoftmax`) are out of reach.
"""

from __future__ import annotations

import math

import numpy as np

from mcugen.backends.npu.ethos_u.legalization.rule import MAX_AXIS, Legalization, int8_fault
from mcugen.backends.npu.ethos_u.legalization.writer import SegmentWriter, rescale_constants
from mcugen.backends.npu.ethos_u.tosa.flatbuffer import Scalar
from mcugen.backends.npu.ethos_u.tosa.graph import IGNORE_NAN, Op, Tensor, TosaType
from mcugen.hir.graph import Node
from mcugen.numerics.softmax import INVERSE_BITS, REFINEMENT_BITS, SUM_SHIFT, ShortSoftmax
from mcugen.ops.softmax import Softmax

NUM_NEIGHBOURS = 16
"""Number of neighbours along the last axis that the NPU processes at once."""


def _fault(node: Node) -> str:
    op, shape = node.op, node.output.type.shape
    assert isinstance(op, Softmax)
    fault = int8_fault(node)
    if fault:
        return fault
    if op.short(node.sig) is None:
        return "a logarithm, a mask, or rows of a length that the NPU does not take"
    if math.prod(shape[op.axis + 1 :]) > 1 or math.prod(shape[: op.axis]) > MAX_AXIS:
        return "a softmax along another axis than the last one"
    return "" if op.is_short else "softmax: the NPU rounds it differently"


def _write(node: Node, writer: SegmentWriter) -> Tensor:
    op, out = node.op, node.output.type
    assert isinstance(op, Softmax)
    short = op.short(node.sig)
    assert short is not None
    rows = out.count // short.length
    x = writer.reshape(writer.tensor(node.input(0)), (rows, short.length))
    largest = _row_maxima(writer, x)
    steps = writer.binary(Op.SUB, writer.widen(x, 0, 128), writer.widen(largest, 0, 128), TosaType.INT32)
    index = writer.shifted(steps, 0, TosaType.INT16)  # entry 256 of a table: x is the largest
    exponentials = _exponentials(writer, index, short.low)
    total = writer.row_sums(writer.widen(exponentials, 0))
    if short.refinement:
        refinements = writer.row_sums(writer.widen(_exponentials(writer, index, short.refinement), 0))
        total = writer.binary(
            Op.ADD, total, writer.shifted(refinements, REFINEMENT_BITS, TosaType.INT32), TosaType.INT32
        )
    factor = writer.reshape(_factor(writer, total, short), (rows, 1))
    products = writer.binary(Op.MUL, exponentials, factor, TosaType.INT32)
    return writer.reshape(writer.narrow(products, short.shift, out, out.dtype.limits), out.shape)


def _row_maxima(writer: SegmentWriter, x: Tensor) -> Tensor:
    """Return the maxima of the rows of an int8 tensor [rows, length] as [rows, 1].

    The NPU compares NUM_NEIGHBOURS elements at once: of long rows, the maxima at equal places of groups come first.
    """
    rows, length = x.shape
    if length >= 2 * NUM_NEIGHBOURS:
        x = writer.pad(x, (0, 0, 0, -length % NUM_NEIGHBOURS), -128)
        groups = writer.reshape(x, (1, rows, x.shape[1] // NUM_NEIGHBOURS, NUM_NEIGHBOURS))
        x = writer.graph.add(
            Op.REDUCE_MAX, [groups], (1, rows, 1, NUM_NEIGHBOURS), x.dtype, [Scalar("i", 2), IGNORE_NAN]
        )
        x = writer.reshape(x, (rows, NUM_NEIGHBOURS))
    return writer.graph.add(Op.REDUCE_MAX, [x], (rows, 1), x.dtype, [Scalar("i", 1), IGNORE_NAN])


def _exponentials(writer: SegmentWriter, index: Tensor, entries: tuple[int, ...]) -> Tensor:
    """Return the entries of a table for the differences max − x, as int16."""
    table = np.zeros(513, np.int16)
    table[1:257] = entries[::-1]
    return writer.table16(index, table)


def _factor(writer: SegmentWriter, total: Tensor, short: ShortSoftmax) -> Tensor:
    """Return the factor r of the exponentials of each row as int16."""
    centered = writer.binary(Op.SUB, total, writer.integer(short.center), TosaType.INT32)
    multiplier, shift = short.index_scale
    index = writer.rescale(centered, *rescale_constants(np.array([multiplier]), shift), TosaType.INT16)
    first = writer.table16(index, np.array(short.inverses, np.int16))
    inverse = writer.binary(
        Op.MUL, first, writer.graph.constant(np.array([1 << INVERSE_BITS], np.int16)), TosaType.INT32
    )
    for _ in range(short.steps):
        product = writer.product(total, inverse, SUM_SHIFT)
        error = writer.binary(Op.SUB, writer.integer(1 << 30), product, TosaType.INT32)
        inverse = writer.binary(Op.ADD, inverse, writer.product(inverse, error, 30), TosaType.INT32)
    return writer.rescale(
        inverse, *rescale_constants(np.array([short.numerator]), short.numerator_shift), TosaType.INT16
    )


SOFTMAX_LEGALIZATIONS = (Legalization(Softmax, _fault, _write),)
"""The rule of this module."""
