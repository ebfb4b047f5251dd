# SPDX-License-Identifier: Apache-2.0
"""Linear functions of a quantized tensor with constants per channel, in integers with one rounding, half up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np

from mcugen.expressions.functions import CLAMP, REQUANTIZE, SHIFT_RIGHT
from mcugen.expressions.nodes import BinaryExpression, Convert, Expression, Shared, call, select
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import IntegerForm, Signature
from mcugen.hir.traits import Clampable
from mcugen.hir.types import Array, DType
from mcugen.kernels.portable.activations import emit_prelu
from mcugen.kernels.portable.elementwise import Scalars
from mcugen.lir.builder import Builder
from mcugen.numerics.curves import limited
from mcugen.numerics.fixedpoint import Range, clamp_range, is_quantized, max_code_magnitude
from mcugen.ops.elementwise import Elementwise

_FEWEST = 14
"""Bits of fraction of a line in 32 bits: with less, it is off by more than a hundredth of a code."""


class FixedAffine(Clampable, Elementwise):
    """q = clamp((x · factor + start) >> bits) for quantized x, with integer constants per channel.

    The factor and start are inputs 1 and 2.

    Attributes:
        bits: Right shift of the sum.
        clamp: Limits of the real result; None for no clamp.
    """

    mnemonic: ClassVar[str] = "affine"
    bits: int = 0
    clamp: Range | None = None

    @classmethod
    def spelled(cls) -> Mapping[str, Mapping[str, object]]:
        """Return no mnemonics, so that graph dumps print the class name of the operator.

        The mnemonic "affine" already stands for the float operator Affine.
        """
        return {}

    def without_clamp(self) -> Self | None:
        """Return the operator without its clamp; None if it has none."""
        return replace(self, clamp=None) if self.clamp else None

    def stands_alone(self, sig: Signature) -> bool:
        """Return True for int8 operators, which are then computed in a loop of their own.

        In a Stack (one loop for several operators), the constants of each channel would not stay in registers.
        """
        return sig.input(0).dtype is sig.output.dtype is DType.INT8

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return the linear function as an expression, in 32-bit arithmetic if the constants fit."""
        x, factor, start = args
        low, high = clamp_range(self.clamp, sig.output.q, sig.output.dtype)
        if sig.input(2).dtype is DType.INT64:
            value = call(REQUANTIZE, x, factor, start, scalar(self.bits))
        else:
            value = self._sum(args, scalar)
        return Convert(sig.output.dtype, limited(value, low, high, scalar))

    def vector(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression | None:
        """Return the linear function in Helium operations, for four 32-bit lanes."""
        if sig.input(2).dtype is DType.INT64:
            return None
        low, high = clamp_range(self.clamp, sig.output.q, sig.output.dtype)
        return call(CLAMP, self._sum(args, scalar), scalar(low), scalar(high))

    def _sum(self, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return (x · factor + start) >> bits, which never overflows."""
        x, factor, start = args
        return call(SHIFT_RIGHT, BinaryExpression("+", BinaryExpression("*", x, factor), start), scalar(self.bits))


class FixedPRelu(Elementwise):
    """PRelu of quantized x: q = clamp((d · (slope if d < 0 else factor) + start) >> bits) with d = x − zero point.

    The slopes, one integer per channel, are input 1; start has the rounding term and the output's zero point.

    Attributes:
        bits: Right shift of the product.
        factor: Integer factor of elements that are not negative.
    """

    mnemonic: ClassVar[str] = "prelu"
    bits: int = 0
    factor: int = 0

    @classmethod
    def spelled(cls) -> Mapping[str, Mapping[str, object]]:
        """Return no mnemonics, so that graph dumps print the class name of the operator.

        The mnemonic "prelu" already stands for the float operator.
        """
        return {}

    def stands_alone(self, sig: Signature) -> bool:
        """Return True for int8 operators, which are then computed in a loop of their own.

        In a Stack (one loop for several operators), the constants of each channel would not stay in registers.
        """
        return sig.input(0).dtype is sig.output.dtype is DType.INT8

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit an elementwise loop or, for many pixels, a kernel with a table of 256 values per channel."""
        if not emit_prelu(node, builder, self.factor, _start(node.sig, self.bits), self.bits):
            super().lower(node, builder)

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return the PRelu as an expression: one 32-bit product, with rounding and clamp."""
        out = sig.output
        return Convert(out.dtype, limited(self._sum(sig, args, scalar), *out.dtype.limits, scalar))

    def vector(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression | None:
        """Return the PRelu in Helium operations, for four 32-bit lanes."""
        return call(CLAMP, self._sum(sig, args, scalar), *map(scalar, sig.output.dtype.limits))

    def _sum(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        x, slope = args
        difference = Shared(x - scalar(sig.input(0).q.zero_point))
        product = BinaryExpression("*", difference, select(difference < 0, slope, scalar(self.factor)))
        return call(SHIFT_RIGHT, BinaryExpression("+", product, scalar(_start(sig, self.bits))), scalar(self.bits))


def affine_form(
    op: Elementwise, graph: Graph, sig: Signature, x: Value | None, scale: Array, shift: Array, clamp: Range | None
) -> IntegerForm | None:
    """Return the operator that computes x · scale + shift on quantized x, with its inputs (integer form).

    Return None if the scales of the channels are too far apart for one common shift.

    Args:
        op: The float operator that is replaced.
        graph: Graph to which constants are added.
        sig: Types that the integer operator reads and writes.
        x: Quantized input.
        scale: Real factors that broadcast to x.
        shift: Real terms that broadcast to x.
        clamp: Limits of the real result; None for no clamp.
    """
    tensor, out = sig.input(0), sig.output
    if not is_quantized(tensor) or not is_quantized(out):
        return None
    factor = scale.astype(np.float64) * (tensor.q.scale[0] / out.q.scale[0])
    start = shift.astype(np.float64) / out.q.scale[0] + out.q.zero_point - factor * tensor.q.zero_point
    wide = DType.INT16 in (tensor.dtype, out.dtype)
    room, max_bits, min_bits = (2**61, 44, 16) if wide else (2**31 - 1, 30, _FEWEST)
    reach = (np.abs(factor) * -tensor.dtype.limits[0] + np.abs(start)).max() + 1
    bits = min(max_bits, math.floor(math.log2(room / reach)))
    bits = min(bits, math.floor(math.log2((2**31 - 1) / np.abs(factor).max())) if factor.any() else bits)
    if bits < min_bits:
        return None
    type_ = np.int64 if wide else np.int32
    constants = {"factor": (factor * 2.0**bits, np.int32), "start": ((start + 0.5) * 2.0**bits, type_)}
    added = [graph.constant(f"{op.name}.{k}", np.rint(v).astype(t)) for k, (v, t) in constants.items()]
    return FixedAffine(bits, clamp), (x, *added)


def prelu_form(op: Elementwise, graph: Graph, sig: Signature, x: Value | None, slope: Array) -> IntegerForm | None:
    """Return the operator that computes a PRelu with constant slopes on int8 x, with its inputs (integer form).

    Args:
        op: The float operator that is replaced.
        graph: Graph to which constants are added.
        sig: Types that the integer operator reads and writes.
        x: Quantized input.
        slope: Factors of negative elements, which broadcast to x.

    Returns:
        The integer form; None if slopes or scales are too far apart for one common shift.
    """
    tensor, out = sig.input(0), sig.output
    if not all(is_quantized(t) and t.dtype is DType.INT8 for t in (tensor, out)):
        return None
    ratio = tensor.q.scale[0] / out.q.scale[0]
    reach = max_code_magnitude(DType.INT8) * (ratio * max(1.0, float(np.abs(slope).max(initial=0.0))) + 1) + 1
    bits = math.floor(math.log2((2**31 - 1) / reach)) if math.isfinite(reach) else 0
    if bits < _FEWEST:
        return None
    slopes = np.rint(slope.astype(np.float64) * ratio * 2.0**bits).astype(np.int32)
    return FixedPRelu(bits, round(ratio * 2.0**bits)), (x, graph.constant(f"{op.name}.slope", slopes))


def _start(sig: Signature, bits: int) -> int:
    """Return the result's zero point plus half a step, shifted left by `bits`."""
    return (sig.output.q.zero_point << bits) + (1 << (bits - 1))
