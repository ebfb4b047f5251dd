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

_LARGEST = 2**31 - 128
"""The largest float32 below 2³¹: beyond, real numbers saturate as they become integers."""


@dataclass(frozen=True)
class Cut(Elementwise):
    """y = min(max((⌊x⌋ · multiplier + offset) >> (32 + shift), low), high) of real x, 0 ≤ low; or ⌊x⌋ itself, limited.

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
        """Below 0 it does not matter that numbers are cut off towards it; codes get their zero point with the product."""
        out = sig.output
        zero = 0 if out.quant is None else out.q.zero_point
        y = call(fn.TRUNCATE, args[0], *map(scalar, DType.INT32.limits))
        low, high = scalar(self.low + zero), scalar(self.high + zero)
        if self.multiplier is None:
            limited = call(fn.CLAMP, y, scalar(self.low), scalar(self.high))
            return Convert(out.dtype, limited + scalar(zero) if zero else limited)
        y = call(fn.REQUANTIZE_HIGH, y, scalar(self.multiplier), scalar(self.offset + (zero << (32 + self.shift))))
        return Convert(out.dtype, call(fn.CLAMP, call(fn.SHIFT_RIGHT, y, scalar(self.shift)), low, high))


def cut(numerator: int, denominator: int, low: int, high: int) -> Cut | None:
    """y = min(max(trunc(trunc(x) · numerator / denominator), low), high) for every real x, or None: no multiplier does.

    As with division by multiplication (Granlund and Montgomery 1994), which is right if each code begins where it should.
    """
    if not 0 <= low < high or -(-high * denominator // numerator) > _LARGEST:
        return None
    if numerator == denominator:
        return Cut(low, high)
    steps = [(code, -(-code * denominator // numerator)) for code in range(low + 1, high + 1)]
    for shift in range(31):
        multiplier = round(Fraction(numerator << (32 + shift), denominator))
        if multiplier >= 2**31:
            return None
        least = max((code << (32 + shift)) - x * multiplier for code, x in steps)
        if all((x - 1) * multiplier + least < code << (32 + shift) for code, x in steps):
            return Cut(low, high, multiplier, least, shift)
    return None
