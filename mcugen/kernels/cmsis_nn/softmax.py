# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's softmax: arm_softmax_s8.

Callers of the library, such as the kernels of TensorFlow Lite, give it the input's scale as multiplier · 2^(shift − 31)
in units of 2^−26, so that differences have five integer bits, and the lowest difference that stays above −31 in these
units. The output has the scale 1/256 and the zero point −128.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType, TensorType
from mcugen.kernels.cmsis_nn.common import library_kernel
from mcugen.kernels.portable.softmax import SoftmaxSpec
from mcugen.lir.kernel import Call, Kernel, Params, Site, Trained, reads, writes
from mcugen.lir.spec import spec_of
from mcugen.numerics.fixedpoint import is_quantized

EXPONENT_FRACTION_BITS = 26
"""Fraction bits of the argument of the library's exponential: a scaled difference from the row's maximum."""

SUM_FRACTION = 19
"""Fraction bits of the library's fixed-point sum of a row's exponentials, each of which is at most 1."""

MAX_ROW_SIZE = 2 ** (28 - SUM_FRACTION) - 1
"""Largest number of elements of a row. Each exponential adds at most 2^SUM_FRACTION to the sum, which must stay below
2^28: the library shifts the quotients right by less than 32 bits."""


@dataclass(frozen=True)
class LibrarySoftmax:
    """The softmax of int8 rows, bit by bit as CMSIS-NN computes it.

    It divides exp(difference · multiplier · 2^(shift − 31 − EXPONENT_FRACTION_BITS)) by the sum of these exponentials
    over the row, where a difference is an element less the row's maximum.

    Attributes:
        multiplier: Integer multiplier, Q0.31, of the differences from the row's maximum.
        shift: Left shift of differences before the multiplication, in bits.
        diff_min: Lowest difference from the row's maximum that counts; elements with lower differences have the result
            0.
    """

    multiplier: int
    shift: int
    diff_min: int

    @staticmethod
    def of(x: TensorType) -> LibrarySoftmax | None:
        """Return CMSIS-NN's softmax for int8 inputs of this type; None if their scale does not fit its number format.

        The scale is too small or too large if `shift` would be outside of 0 to 30.
        """
        mantissa, shift = math.frexp(x.q.scale[0] * 2.0**EXPONENT_FRACTION_BITS)
        multiplier = round(mantissa * 2**31)
        if multiplier == 2**31:
            multiplier, shift = 2**30, shift + 1
        if not 0 <= shift <= 30:
            return None
        return LibrarySoftmax(multiplier, shift, -((31 << EXPONENT_FRACTION_BITS) >> shift))

    def __call__(self, x: Array) -> Array:
        """Return the softmax of int8 values along the last axis, int8."""
        diff = x.astype(np.int64) - x.max(-1, keepdims=True)
        counts = diff >= self.diff_min
        exponent = _times(np.where(counts, diff, 0) << self.shift, self.multiplier)
        e = np.where(counts, _exp(exponent), 0)
        total = _divided(e, 31 - SUM_FRACTION).sum(-1, keepdims=True)
        headroom = 32 - np.frexp(total.astype(np.float64))[1].astype(np.int64)
        scale = _one_over_one_plus((total << headroom) - 2**31)
        q = _divided(_times(scale, e), 54 - SUM_FRACTION - headroom) - 128
        result: Array = np.where(counts, np.clip(q, -128, 127), -128).astype(np.int8)
        return result


def _times(a: Array | int, b: Array | int) -> Array:
    """Return products of Q0.31 numbers, rounded half up."""
    product: Array = (np.asarray(a, np.int64) * b + 2**30) >> 31
    return product


def _divided(v: Array, exponent: Array | int) -> Array:
    """Return v / 2^exponent, ties away from 0."""
    half = np.where(np.asarray(exponent) > 0, 1 << np.maximum(np.asarray(exponent) - 1, 0), 0)
    quotient: Array = np.sign(v) * ((np.abs(v) + half) >> exponent)
    return quotient


_POWERS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
"""The exponential of -2^i / 4, · 2^31."""


def _exp(v: Array) -> Array:
    """Return exp(v / 2^EXPONENT_FRACTION_BITS) · 2^31 for v ≤ 0.

    The result is a polynomial of v modulo 1/4, times the powers of e that make up the rest of v.
    """
    quarter = 1 << (EXPONENT_FRACTION_BITS - 2)
    residue = (v & (quarter - 1)) - quarter
    remainder = residue - v
    x = (residue << 5) + 2**28  # around −1/8
    square = _times(x, x)
    cube = _divided(_times(square, square), 2) + _times(square, x)
    terms = x + _divided(_times(cube, _THIRD) + square, 1)
    e = _EIGHTH + _times(_EIGHTH, terms)
    for i, power in enumerate(_POWERS):
        e = np.where(remainder & (quarter << i), _times(e, power), e)
    return np.where(v == 0, 2**31 - 1, e)


_EIGHTH, _THIRD = 1895147668, 715827883
"""The exponential of -1/8, and 1/3; · 2^31."""


def _one_over_one_plus(v: Array) -> Array:
    """Return 2^31 / (1 + v / 2^31) for 0 ≤ v < 2^31, by three steps of Newton's method from 48/17 − 32/17 · d."""
    d = (v + 2**31) >> 1  # half of 1 + v / 2^31
    x = 1515870810 + _times(d, -1010580540)  # with 29 bits behind the point
    for _ in range(3):
        x = x + _saturated(_times(x, 2**29 - _times(d, x)) << 2)
    return _saturated(x << 1)


def _saturated(v: Array) -> Array:
    return np.clip(v, -(2**31), 2**31 - 1)


# ------------------------------------------------------------------------------------------------- the kernel


def has_int8_rows(spec: SoftmaxSpec) -> bool:
    """Require int8 rows of up to 511 adjacent elements, and results in steps of 1/256 from 0 (zero point −128).

    Return whether the layer meets this condition of a kernel.
    """
    x, y = spec.x, spec.y
    if spec.log or spec.mask is not None or not is_quantized(x) or not is_quantized(y):
        return False
    is_codes = x.dtype is y.dtype is DType.INT8 and y.q.zero_point == -128 and abs(256 * y.q.scale[0] - 1) < 1e-3
    return (
        is_codes
        and spec.walk.inner_size == 1
        and spec.walk.axis_size <= MAX_ROW_SIZE
        and LibrarySoftmax.of(x) is not None
    )


def softmax(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """Return the softmax along the operator's axis, bit by bit as CMSIS-NN computes it."""
    (x,), fixed = arrays, LibrarySoftmax.of(node.sig.input(0))
    assert fixed is not None
    spec: SoftmaxSpec = spec_of(node)
    return (fixed(x.reshape(-1, spec.walk.axis_size)).reshape(x.shape),)


class SoftmaxRows(Params):
    """Kernel parameters of a softmax: number and size of rows, and the fixed-point scale of x (LibrarySoftmax)."""

    rows: Annotated[int, "rows"]
    row_size: Annotated[int, "elements of a row"]
    multiplier: Annotated[Trained, "scale of x, Q0.31, together with `shift`"]
    shift: Annotated[Trained, "left shift of differences from the maximum"]
    diff_min: Annotated[Trained, "lowest difference from the maximum that counts"]


def emit_softmax(spec: SoftmaxSpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's softmax of int8 rows."""
    fixed, depth = LibrarySoftmax.of(spec.x), spec.walk.axis_size
    assert fixed is not None
    scale = {"multiplier": fixed.multiplier, "shift": fixed.shift, "diff_min": fixed.diff_min}
    return site.call({"x": site.x, "y": site.y}, [SoftmaxRows(rows=spec.x.count // depth, row_size=depth, **scale)])


CMSIS_SOFTMAX: tuple[Kernel, ...] = (
    library_kernel(
        "cmsis_softmax_s8",
        what="probabilities of int8 rows in steps of 1/256: arm_softmax_s8",
        operands=(reads("x", "input", DType.INT8), writes("y", "output", DType.INT8)),
        params=(SoftmaxRows,),
        when=(has_int8_rows,),
        emit=emit_softmax,
        evaluate=softmax,
    ),
)
"""CMSIS-NN's kernels of int8 softmax."""
