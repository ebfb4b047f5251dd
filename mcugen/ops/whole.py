# SPDX-License-Identifier: Apache-2.0
"""Whole numbers that integer networks in float tensors cut off between two layers, without division."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from mcugen.expressions import functions as fn
from mcugen.expressions.nodes import Convert, Expression, call
from mcugen.hir.operator import Signature
from mcugen.hir.types import DType
from mcugen.kernels.elementwise import Scalars
from mcugen.ops.elementwise import Elementwise

_WORD = 32
_MOST = 54
"""Bits behind the point with which zero points of bytes leave room in 64, beside products of 62 bits."""
_LARGEST = 2**31 - 128
"""The largest float32 below 2³¹: beyond, real numbers saturate as they become integers."""


@dataclass(frozen=True)
class Cut(Elementwise):
    """y = min(max((⌊x⌋ · multiplier + offset) >> shift, low), high) of whole x; of real x, 0 ≤ low.

    Without a multiplier it is ⌊x⌋ itself that is limited.
    As int32, or as codes of scale 1.
    """

    mnemonic: ClassVar[str] = "cut"
    low: int = 0
    high: int = 255
    multiplier: int | None = None
    offset: int = 0
    shift: int = 0

    def result_dtype(self, *dtypes: DType) -> DType:
        """int32 unless the node's type says otherwise."""
        return DType.INT32

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Below 0 it does not matter that reals are cut off towards it; codes get their zero point with the product."""
        out = sig.output
        zero = 0 if out.quant is None else out.q.zero_point
        (x,) = args
        y = call(fn.TRUNCATE, x, *map(scalar, DType.INT32.limits)) if x.dtype.is_float else x
        low, high = scalar(self.low + zero), scalar(self.high + zero)
        if self.multiplier is None:
            limited = call(fn.CLAMP, y, scalar(self.low), scalar(self.high))
            return Convert(out.dtype, limited + scalar(zero) if zero else limited)
        factors = (y, scalar(self.multiplier), scalar(self.offset + (zero << self.shift)))
        if self.shift < _WORD:
            return Convert(out.dtype, call(fn.CLAMP, call(fn.REQUANTIZE, *factors, scalar(self.shift)), low, high))
        y = call(fn.SHIFT_RIGHT, call(fn.REQUANTIZE_HIGH, *factors), scalar(self.shift - _WORD))
        return Convert(out.dtype, call(fn.CLAMP, y, low, high))


def cut(numerator: int, denominator: int, low: int, high: int) -> Cut | None:
    """y = min(max(⌊⌊x⌋ · numerator / denominator⌋, low), high) for every whole x and, if low ≥ 0, real one.

    None: no multiplier does.

    As with division by multiplication (Granlund and Montgomery 1994), right if each code begins where it should.
    """
    if low >= high or -(-max(high, -low) * denominator // numerator) > _LARGEST:
        return None
    if numerator == denominator:
        return Cut(low, high)
    steps = [(code, -(-code * denominator // numerator)) for code in range(low + 1, high + 1)]
    for shift in (*range(_WORD, _MOST + 1), *range(_WORD - 1, 0, -1)):
        multiplier = round(Fraction(numerator << shift, denominator))
        if multiplier >= 2**31:
            continue
        least = max((code << shift) - x * multiplier for code, x in steps)
        if all((x - 1) * multiplier + least < code << shift for code, x in steps):
            return Cut(low, high, multiplier, least, shift)
    return None
