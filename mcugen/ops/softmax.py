# SPDX-License-Identifier: Apache-2.0
"""Softmax and its logarithm along one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import IntegerForm, Operator, Permutation, Signature
from mcugen.hir.types import Array, DType, TensorType
from mcugen.lir.builder import Builder
from mcugen.lir.program import Access, Buffer
from mcugen.ops.movement import axis_walk, normalize_axis
from mcugen.ops.onnx_node import OnnxNode, onnx_operator


@dataclass(frozen=True)
class FixedSoftmax:
    """Softmax of int8 in integers, one rounding, half up.

    e[k] = table[max − x[k]] = exp(scale_in · (x[k] − max)) · 2^bits; Σ e ≤ 2^31.
    r = ⌊numerator · 2^bits / Σ e⌋ < 2^31, with numerator = 2^(shift − bits) / scale_out of 31 bits.
    q = clamp((e[k] · r + (zero_point << shift) + 2^(shift−1)) >> shift).
    """

    table: tuple[int, ...]
    bits: int
    numerator: int
    shift: int
    zero_point: int

    @staticmethod
    def of(sig: Signature, axis: int) -> FixedSoftmax | None:
        """For these types, or None: rows so long that the table loses precision, scales of no softmax."""
        x, y = sig.input(0), sig.output
        if x.quant is None or y.quant is None or x.quant.axis is not None or x.shape[axis] > 4096:
            return None
        bits = min(30, 31 - math.ceil(math.log2(x.shape[axis])))
        gain = 1.0 / y.quant.scale[0]
        fraction = 30 - math.floor(math.log2(gain))
        numerator = round(gain * 2**fraction)
        if numerator == 2**31:
            numerator, fraction = 2**30, fraction - 1
        shift = bits + fraction
        if not 32 <= shift <= 54:
            return None
        table = np.rint(np.exp(-x.quant.scale[0] * np.arange(256)) * 2.0**bits)
        return FixedSoftmax(tuple(int(e) for e in table), bits, numerator, shift, y.quant.zero_point)

    @property
    def offset(self) -> int:
        """Zero point and rounding."""
        return (self.zero_point << self.shift) + (1 << (self.shift - 1))

    def __call__(self, x: Array, axis: int) -> Array:
        """The specification."""
        difference = x.max(axis, keepdims=True).astype(np.int64) - x
        e = np.asarray(self.table, np.int64)[difference]
        ratio = (self.numerator << self.bits) // e.sum(axis, keepdims=True)
        q: Array = np.clip((e * ratio + self.offset) >> self.shift, -128, 127).astype(np.int8)
        return q


@dataclass(frozen=True)
class Softmax(Operator):
    """y = exp(x − max) / Σ exp(x − max) along `axis`, or its logarithm."""

    axis: int = 0
    log: bool = False

    @property
    def name(self) -> str:
        """softmax or log_softmax."""
        return "log_softmax" if self.log else "softmax"

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """The input's shape."""
        (x,) = inputs
        assert x is not None
        return (TensorType(x.shape, x.dtype, layout=x.layout),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """In the type of the reals, or int8 in fixed point."""
        (x,) = arrays
        if sig.output.quant is not None:
            fixed = FixedSoftmax.of(sig, self.axis)
            assert fixed is not None
            return (fixed(x, self.axis),)
        centered = x - x.max(self.axis, keepdims=True)
        e = np.exp(centered)
        total = e.sum(self.axis, keepdims=True)
        return (centered - np.log(total) if self.log else e / total,)

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """int8 softmax by a table of exponentials."""
        types = (sig.input(0).dtype, sig.output.dtype)
        fits = not self.log and types == (DType.INT8, DType.INT8)
        return (self, inputs) if fits and FixedSoftmax.of(sig, self.axis) is not None else None

    def permuted(self, sig: Signature, perm: Permutation) -> tuple[Operator, tuple[Permutation | None, ...]] | None:
        """The axis follows."""
        return replace(self, axis=perm.index(self.axis)), (perm,)

    def lower(self, node: Node, builder: Builder) -> None:
        """Rows of `depth` elements, `inner` apart; the result may overwrite the input."""
        x = node.input(0).type
        params = axis_walk(x.shape, self.axis)
        operands: list[tuple[str, Access, Buffer]] = [("x", Access.IN, builder.buffer(node.input(0)))]
        fixed = FixedSoftmax.of(node.sig, self.axis)
        if fixed is not None:
            table = builder.const("softmax.exp_table", np.asarray(fixed.table, np.int32))
            operands.append(("exp_table", Access.IN, table))
            params |= {"numerator": fixed.numerator, "bits": fixed.bits, "offset": fixed.offset}
            params |= {"shift_more": fixed.shift - 32}
        operands.append(("y", Access.OUT, builder.buffer(node.output)))
        builder.emit(node, f"{self.name}_{x.dtype.tag}", operands, params, inplace=[("y", "x")])


@onnx_operator("Softmax", kernels=("softmax_f32", "softmax_f64", "softmax_s8"))
@onnx_operator("LogSoftmax", kernels=("log_softmax_f32", "log_softmax_f64"))
def _import_softmax(node: OnnxNode) -> list[Value]:
    node.require_dtype(node.input(0), DType.FLOAT32, DType.FLOAT64)
    axis = normalize_axis(node, node.attr("axis", -1), node.input(0).type.rank)
    return [node.emit(Softmax(axis, node.op_type == "LogSoftmax"), node.input(0))]
