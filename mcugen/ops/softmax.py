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
from mcugen.ops.fixedpoint import is_quantized
from mcugen.ops.movement import axis_walk, normalize_axis
from mcugen.ops.onnx_node import OnnxNode, onnx_operator


@dataclass(frozen=True)
class FixedExp:
    """e = exp(−scale · d) · 2^bits for d = max − x[k] ≥ 0 along a row, so that Σ e ≤ 2^31.

    Of int8, e = low[d]. Of int16, e = (high[d >> 8] · low[d & 255] + 2^31) >> 32, with high in units of 2^−30.
    """

    low: tuple[int, ...]
    high: tuple[int, ...]
    bits: int

    @staticmethod
    def of(x: TensorType, axis: int) -> FixedExp:
        """For rows along `axis` of a quantized tensor."""
        room = 31 - math.ceil(math.log2(x.shape[axis]))
        codes, scale = np.arange(256), x.q.scale[0]
        if x.dtype is DType.INT8:
            bits = min(30, room)
            return FixedExp(_whole(np.exp(-scale * codes) * 2.0**bits), (), bits)
        bits = min(28, room)
        low, high = np.exp(-scale * codes) * 2.0 ** (bits + 2), np.exp(-scale * 256 * codes) * 2.0**30
        return FixedExp(_whole(low), _whole(high), bits)

    def __call__(self, x: Array, axis: int) -> Array:
        """The specification, as int64."""
        d = x.max(axis, keepdims=True).astype(np.int64) - x
        low = np.asarray(self.low, np.int64)
        if not self.high:
            return np.asarray(low[d])
        return np.asarray((np.asarray(self.high, np.int64)[d >> 8] * low[d & 255] + 2**31) >> 32)

    def operands(self, builder: Builder) -> list[tuple[str, Access, Buffer]]:
        """The tables as a kernel takes them."""
        tables = {"exp_table": self.low} | ({"exp_high": self.high} if self.high else {})
        return [
            (role, Access.IN, builder.const(f"softmax.{role}", np.asarray(table, np.int32)))
            for role, table in tables.items()
        ]


def _whole(reals: Array) -> tuple[int, ...]:
    return tuple(int(e) for e in np.rint(reals))


@dataclass(frozen=True)
class FixedSoftmax:
    """Softmax in integers, one rounding, half up.

    e[k] = exp(scale_in · (x[k] − max)) · 2^bits by tables; Σ e ≤ 2^31.
    r = ⌊numerator · 2^bits / Σ e⌋ < 2^31, with numerator = 2^(shift − bits) / scale_out of 31 bits.
    q = clamp((e[k] · r + (zero_point << shift) + 2^(shift−1)) >> shift).
    """

    exp: FixedExp
    numerator: int
    shift: int
    zero_point: int
    dtype: DType

    @staticmethod
    def of(sig: Signature, axis: int) -> FixedSoftmax | None:
        """For these types, or None: rows so long that the table loses precision, scales of no softmax."""
        x, y = sig.input(0), sig.output
        if not is_quantized(x) or not is_quantized(y) or x.shape[axis] > 4096:
            return None
        exp = FixedExp.of(x, axis)
        gain = 1.0 / y.q.scale[0]
        fraction = 30 - math.floor(math.log2(gain))
        numerator = round(gain * 2**fraction)
        if numerator == 2**31:
            numerator, fraction = 2**30, fraction - 1
        shift = exp.bits + fraction
        if not 32 <= shift <= 54:
            return None
        return FixedSoftmax(exp, numerator, shift, y.q.zero_point, y.dtype)

    @property
    def offset(self) -> int:
        """Zero point and rounding."""
        return (self.zero_point << self.shift) + (1 << (self.shift - 1))

    def __call__(self, x: Array, axis: int) -> Array:
        """The specification."""
        e = self.exp(x, axis)
        ratio = (self.numerator << self.exp.bits) // e.sum(axis, keepdims=True)
        q: Array = np.clip((e * ratio + self.offset) >> self.shift, *self.dtype.limits).astype(self.dtype.numpy)
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
        """In the type of the reals, or in fixed point."""
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
        """Softmax by tables of exponentials."""
        return (self, inputs) if not self.log and FixedSoftmax.of(sig, self.axis) is not None else None

    def permuted(self, sig: Signature, perm: Permutation) -> tuple[Operator, tuple[Permutation | None, ...]] | None:
        """The axis follows."""
        return replace(self, axis=perm.index(self.axis)), (perm,)

    def lower(self, node: Node, builder: Builder) -> None:
        """Rows of `depth` elements, `inner` apart; the result may overwrite an input of its type."""
        x, y = node.input(0).type, node.output.type
        params = axis_walk(x.shape, self.axis)
        operands: list[tuple[str, Access, Buffer]] = [("x", Access.IN, builder.buffer(node.input(0)))]
        fixed, code = FixedSoftmax.of(node.sig, self.axis), dict[str, object]()
        if fixed is not None:
            operands += fixed.exp.operands(builder)
            params |= {"numerator": fixed.numerator, "bits": fixed.exp.bits, "offset": fixed.offset}
            params |= {"shift_more": fixed.shift - 32}
            code |= {"y_t": y.dtype.c, "low": y.dtype.limits[0], "high": y.dtype.limits[1]}
        operands.append(("y", Access.OUT, builder.buffer(node.output)))
        same = x.dtype is y.dtype
        builder.emit(
            node,
            f"{self.name}_{x.dtype.tag}",
            operands,
            params,
            code=code,
            inplace=[("y", "x")] * same,
            variant="" if same else f"to_{y.dtype.tag}",
        )


@onnx_operator("Softmax", kernels=("softmax_f32", "softmax_f64", "softmax_s8", "softmax_s16"))
@onnx_operator("LogSoftmax", kernels=("log_softmax_f32", "log_softmax_f64"))
def _import_softmax(node: OnnxNode) -> list[Value]:
    node.require_dtype(node.input(0), DType.FLOAT32, DType.FLOAT64)
    axis = normalize_axis(node, node.attr("axis", -1), node.input(0).type.rank)
    return [node.emit(Softmax(axis, node.op_type == "LogSoftmax"), node.input(0))]
