# SPDX-License-Identifier: Apache-2.0
"""x · scale + shift with constants by channel: a batch normalization that no layer with weights takes in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from mcugen.expressions.functions import CLAMP, REQUANTIZE, SHIFT_RIGHT
from mcugen.expressions.nodes import Binary, Convert, Expression, call
from mcugen.hir.graph import Graph, Value
from mcugen.hir.operator import IntegerForm, Signature
from mcugen.hir.traits import Clampable
from mcugen.hir.types import DType
from mcugen.kernels.elementwise import Scalars
from mcugen.numerics.fixedpoint import Range, clamp_range, is_quantized
from mcugen.ops.elementwise import Elementwise
from mcugen.ops.pointwise import clamped


@dataclass(frozen=True)
class Affine(Clampable, Elementwise):
    """y = x · scale + shift of reals, clamped; scale and shift are constants that broadcast to x."""

    mnemonic: ClassVar[str] = "affine"
    real_inputs: ClassVar[frozenset[int]] = frozenset({1, 2})
    clamp: Range | None = None

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Product, then sum."""
        x, scale, shift = args
        return clamped(x * scale + shift, self.clamp, scalar)

    def with_clamp(self, low: float, high: float) -> Self | None:
        """After the sum."""
        return None if self.clamp else replace(self, clamp=(low, high))

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """One factor and one sum by channel, of int8 in 32 bits; rounded once, half up. None: scales too far apart."""
        x, out = sig.input(0), sig.output
        scale, shift = (v.data if v is not None else None for v in inputs[1:])
        if scale is None or shift is None or not is_quantized(x) or not is_quantized(out):
            return None
        factor = scale.astype(np.float64) * (x.q.scale[0] / out.q.scale[0])
        start = shift.astype(np.float64) / out.q.scale[0] + out.q.zero_point - factor * x.q.zero_point
        wide = DType.INT16 in (x.dtype, out.dtype)
        room, most, fewest = (2**61, 44, 16) if wide else (2**31 - 1, 30, 14)
        reach = (np.abs(factor) * -x.dtype.limits[0] + np.abs(start)).max() + 1
        bits = min(most, math.floor(math.log2(room / reach)))
        bits = min(bits, math.floor(math.log2((2**31 - 1) / np.abs(factor).max())) if factor.any() else bits)
        if bits < fewest:
            return None
        type_ = np.int64 if wide else np.int32
        constants = {"factor": (factor * 2.0**bits, np.int32), "start": ((start + 0.5) * 2.0**bits, type_)}
        added = [graph.constant(f"{self.name}.{k}", np.rint(v).astype(t)) for k, (v, t) in constants.items()]
        return FixedAffine(bits, self.clamp), (inputs[0], *added)


@dataclass(frozen=True)
class FixedAffine(Clampable, Elementwise):
    """q = clamp((x · factor + start) >> bits) for codes x and constants by channel."""

    mnemonic: ClassVar[str] = "affine"
    bits: int = 0
    clamp: Range | None = None

    def without_clamp(self) -> Self | None:
        """The line alone, if it was clamped."""
        return replace(self, clamp=None) if self.clamp else None

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """In 32 bits where the constants have no more."""
        x, factor, start = args
        low, high = (scalar(v) for v in clamp_range(self.clamp, sig.output.q, sig.output.dtype))
        if sig.input(2).dtype is DType.INT64:
            value = call(REQUANTIZE, x, factor, start, scalar(self.bits))
        else:
            value = call(SHIFT_RIGHT, Binary("+", Binary("*", x, factor), start), scalar(self.bits))
        return Convert(sig.output.dtype, call(CLAMP, value, low, high))
