# SPDX-License-Identifier: Apache-2.0
"""Results of elementwise operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from mcugen.backends.npu.ethos_u.command_stream.arithmetic import Array, scale, scale_channels
from mcugen.backends.npu.ethos_u.command_stream.errors import UndocumentedOperation
from mcugen.backends.npu.ethos_u.command_stream.operations import ElementwiseMode, ElementwiseOperation, FixedPointScale

WORD_BITS = 32
"""Width of the operands of shifts and of the count of leading zeros."""
WORD_MASK = (1 << WORD_BITS) - 1
"""All bits of a word."""


def compute_elementwise(operation: ElementwiseOperation, ifm: Array, ifm2: Array | None) -> Array:
    """Return the results of an elementwise operation after the scaling of the output.

    Args:
        operation: The operation.
        ifm: First map without its zero point.
        ifm2: Second map without its zero point; None for operations of one operand.

    Raises:
        UndocumentedOperation: The interpreter does not know the operation.
    """
    mode = operation.mode
    if mode not in ELEMENTWISE_FUNCTIONS:
        raise UndocumentedOperation("the interpreter knows no elementwise operation of this mode", mode.name)
    if mode is ElementwiseMode.LEAKY_RELU:
        positive, negative = scale(ifm, operation.ifm_scaling), scale(ifm, operation.ifm2_scaling)
        return scale(np.where(ifm < 0, negative, positive), operation.scaling)
    a = scale(ifm, operation.ifm_scaling)
    b = scale(ifm2, operation.ifm2_scaling) if ifm2 is not None else np.zeros_like(a)
    first, second = (b, a) if operation.is_reversed else (a, b)
    if mode is ElementwiseMode.SHIFT_RIGHT:
        return shift_right(first, second, operation.scaling)
    results = ELEMENTWISE_FUNCTIONS[mode](first, second)
    return scale(results, output_scaling(operation))


def output_scaling(operation: ElementwiseOperation) -> FixedPointScale:
    """Return the scaling of the results.

    A product of operands of 32 bits is only shifted: the NPU ignores the multiplier.
    """
    scaling = operation.scaling
    if operation.mode is ElementwiseMode.MUL and operation.ifm.type.bits == WORD_BITS:
        return FixedPointScale(1, scaling.shift, scaling.rounding)
    return scaling


def shift_right(values: Array, shifts: Array, scaling: FixedPointScale) -> Array:
    """Return values shifted right by as many bits as the second operand says, rounded as the results are."""
    check_shifts(shifts)
    return scale_channels(values, np.ones_like(shifts), shifts, scaling.rounding)


def shift_left(values: Array, shifts: Array) -> Array:
    """Return values shifted left by as many bits as the second operand says."""
    check_shifts(shifts)
    return values << shifts


def shift_right_logical(values: Array, shifts: Array) -> Array:
    """Return 32-bit words shifted right by as many bits as the second operand says, with zeros from the left."""
    check_shifts(shifts)
    shifted = (values & WORD_MASK) >> shifts
    return np.where(shifted >> WORD_BITS - 1 == 1, shifted - (1 << WORD_BITS), shifted)


def check_shifts(shifts: Array) -> None:
    """Raise UndocumentedOperation if a shift is negative or of as many bits as a word has."""
    if shifts.min() < 0 or shifts.max() >= WORD_BITS:
        detail = f"{int(shifts.min())} to {int(shifts.max())} bits"
        raise UndocumentedOperation("the interpreter shifts by 0 to 31 bits", detail)


def divide_words(dividends: Array, divisors: Array) -> Array:
    """Return quotients rounded towards zero."""
    if (divisors == 0).any():
        raise UndocumentedOperation("the interpreter divides by numbers other than 0", "0")
    quotients = np.abs(dividends) // np.abs(divisors)
    return np.asarray(np.sign(dividends) * np.sign(divisors) * quotients)


def count_leading_zeros(values: Array, _: Array) -> Array:
    """Return the number of zero bits above the highest one bit of 32-bit words."""
    words = values & WORD_MASK
    return WORD_BITS - np.frexp(words.astype(np.float64))[1].astype(np.int64)


ELEMENTWISE_FUNCTIONS: Mapping[ElementwiseMode, Callable[[Array, Array], Array]] = {
    ElementwiseMode.MUL: np.multiply,
    ElementwiseMode.ADD: np.add,
    ElementwiseMode.SUB: np.subtract,
    ElementwiseMode.MIN: np.minimum,
    ElementwiseMode.MAX: np.maximum,
    ElementwiseMode.LEAKY_RELU: lambda a, _: a,
    ElementwiseMode.ABS: lambda a, _: np.abs(a),
    ElementwiseMode.COUNT_LEADING_ZEROS: count_leading_zeros,
    ElementwiseMode.SHIFT_RIGHT: lambda a, _: a,
    ElementwiseMode.SHIFT_LEFT: shift_left,
    ElementwiseMode.LOGICAL_SHIFT_RIGHT: shift_right_logical,
    ElementwiseMode.DIV: divide_words,
    ElementwiseMode.EQUAL: lambda a, b: (a == b).astype(np.int64),
    ElementwiseMode.NOT_EQUAL: lambda a, b: (a != b).astype(np.int64),
    ElementwiseMode.GREATER_EQUAL: lambda a, b: (a >= b).astype(np.int64),
    ElementwiseMode.GREATER: lambda a, b: (a > b).astype(np.int64),
    ElementwiseMode.AND: np.bitwise_and,
    ElementwiseMode.OR: np.bitwise_or,
    ElementwiseMode.XOR: np.bitwise_xor,
    ElementwiseMode.NOT: lambda a, _: ~a,
    ElementwiseMode.AND_NOT: lambda a, b: a & ~b,
}
"""The operations of the interpreter; leaky ReLU and shifts to the right scale their operands themselves."""
