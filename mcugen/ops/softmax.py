# SPDX-License-Identifier: Apache-2.0
"""Softmax and its logarithm along one axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import IntegerForm, Operator, Permutation, Signature
from mcugen.hir.types import Array, DType, TensorType
from mcugen.kernels import cmsis
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Access, Buffer, Param, Wide
from mcugen.lir.traversal import Traversal, overlap
from mcugen.numerics.fixedpoint import is_quantized
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

    def __call__(self, x: Array, axis: int, visible: Array | None = None) -> Array:
        """The specification, as int64; 0 for what is not visible."""
        seen = np.ones((), np.bool_) if visible is None else visible
        d = np.where(seen, x, np.iinfo(x.dtype).min).max(axis, keepdims=True).astype(np.int64) - x
        d, low = np.maximum(d, 0), np.asarray(self.low, np.int64)
        e = (np.asarray(self.high, np.int64)[d >> 8] * low[d & 255] + 2**31) >> 32 if self.high else low[d]
        return np.asarray(e * seen)

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
        if not is_quantized(x) or not is_quantized(y) or x.shape[axis] > _LONGEST:
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

    @property
    def params(self) -> dict[str, Param]:
        """Of the kernel."""
        return {
            "numerator": self.numerator,
            "bits": self.exp.bits,
            "offset": Wide(self.offset),
            "shift_more": self.shift - 32,
        }

    def __call__(self, x: Array, axis: int, visible: Array | None = None) -> Array:
        """The specification."""
        e = self.exp(x, axis, visible)
        ratio = (self.numerator << self.exp.bits) // e.sum(axis, keepdims=True)
        q: Array = np.clip((e * ratio + self.offset) >> self.shift, *self.dtype.limits).astype(self.dtype.numpy)
        return q


_LOG_BITS = 20
"""Fraction bits of logarithms."""

_LONGEST = 4096
"""Longer rows lose precision in the sum."""


def fixed_log2(v: Array) -> Array:
    """log2(v) · 2^20, cut off, for integers 1 ≤ v < 2^32: squaring the mantissa (Q1.31) gives a bit at a time."""
    whole = np.frexp(v.astype(np.float64))[1] - 1
    mantissa, y = v.astype(np.uint64) << (31 - whole).astype(np.uint64), whole.astype(np.int64)
    for _ in range(_LOG_BITS):
        square = mantissa * mantissa
        bit = square >> np.uint64(63)
        mantissa, y = square >> (np.uint64(31) + bit), 2 * y + bit.astype(np.int64)
    return y


@dataclass(frozen=True)
class FixedLogSoftmax:
    """The logarithm of softmax in integers, one rounding, half up.

    l = ((log2(Σ e) − bits · 2^20) · unit) >> unit_shift, with a unit of 31 bits: the logarithm, in codes · 2^shift.
    q = clamp(((x[k] − max) · slope − l + (zero_point << shift) + 2^(shift−1)) >> shift).
    """

    exp: FixedExp
    slope: int
    unit: int
    unit_shift: int
    shift: int
    zero_point: int
    dtype: DType

    @staticmethod
    def of(sig: Signature, axis: int) -> FixedLogSoftmax | None:
        """For these types, or None: long rows, an output so fine that all saturates."""
        x, y = sig.input(0), sig.output
        if not is_quantized(x) or not is_quantized(y) or x.shape[axis] > _LONGEST:
            return None
        ratio, unit = x.q.scale[0] / y.q.scale[0], math.log(2) / y.q.scale[0]
        if not 2.0**-16 < ratio < 2.0**16 or not 2.0**-16 < unit < 2.0**20:
            return None
        shift = 30 - max(math.floor(math.log2(ratio)), 0)
        unit_shift = 30 - math.floor(math.log2(unit)) - (shift - _LOG_BITS)
        slope, unit = round(ratio * 2**shift), round(unit * 2.0 ** (shift - _LOG_BITS + unit_shift))
        return FixedLogSoftmax(FixedExp.of(x, axis), slope, unit, unit_shift, shift, y.q.zero_point, y.dtype)

    @property
    def offset(self) -> int:
        """Zero point and rounding."""
        return (self.zero_point << self.shift) + (1 << (self.shift - 1))

    def __call__(self, x: Array, axis: int) -> Array:
        """The specification."""
        below = x.astype(np.int64) - x.max(axis, keepdims=True)
        log2 = fixed_log2(self.exp(x, axis).sum(axis, keepdims=True)) - (self.exp.bits << _LOG_BITS)
        base = self.offset - ((log2 * self.unit) >> self.unit_shift)
        q: Array = np.clip((below * self.slope + base) >> self.shift, *self.dtype.limits).astype(self.dtype.numpy)
        return q

    @property
    def params(self) -> dict[str, Param]:
        """Of the kernel."""
        return {
            "slope": self.slope,
            "log2_one": self.exp.bits << _LOG_BITS,
            "unit": self.unit,
            "unit_shift": self.unit_shift,
            "offset": self.offset,
            "shift": self.shift,
        }


@dataclass(frozen=True)
class Softmax(Operator):
    """y = exp(x − max) / Σ exp(x − max) along `axis`, or its logarithm.

    The softmax along the last axis may have a constant mask, bools whose shape is x's but for leading axes of
    length 1: what it hides counts as −∞.
    """

    library: ClassVar[tuple[Kernel, ...]] = cmsis.SOFTMAX
    axis: int = 0
    log: bool = False

    @classmethod
    def spelled(cls) -> Mapping[str, Mapping[str, object]]:
        """Two names."""
        return {"softmax": {"log": False}, "log_softmax": {"log": True}}

    @property
    def name(self) -> str:
        """softmax or log_softmax."""
        return "log_softmax" if self.log else "softmax"

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """The input's shape."""
        x = inputs[0]
        assert x is not None
        return (TensorType(x.shape, x.dtype, layout=x.layout),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """In the type of the reals, or in fixed point."""
        x, visible = arrays[0], arrays[1] if len(arrays) > 1 else None
        fixed = self._fixed(sig) if sig.output.quant is not None else None
        if isinstance(fixed, FixedSoftmax):
            return (fixed(x, self.axis, visible),)
        if fixed is not None:
            return (fixed(x, self.axis),)
        x = x if visible is None else np.where(visible, x, x.dtype.type(-np.inf))
        centered = x - x.max(self.axis, keepdims=True)
        e = np.exp(centered)
        total = e.sum(self.axis, keepdims=True)
        return (centered - np.log(total) if self.log else e / total,)

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """By tables of exponentials."""
        return (self, inputs) if self._fixed(sig) is not None else None

    def _fixed(self, sig: Signature) -> FixedSoftmax | FixedLogSoftmax | None:
        return FixedLogSoftmax.of(sig, self.axis) if self.log else FixedSoftmax.of(sig, self.axis)

    def permuted(self, sig: Signature, perm: Permutation) -> tuple[Operator, tuple[Permutation | None, ...]] | None:
        """The axis follows; with a mask it is the last."""
        return None if len(sig.inputs) > 1 else (replace(self, axis=perm.index(self.axis)), (perm,))

    def lower(self, node: Node, builder: Builder) -> None:
        """Rows of `depth` elements, `inner` apart."""
        x, y = node.input(0).type, node.output.type
        params = axis_walk(x.shape, self.axis)
        operands: list[tuple[str, Access, Buffer]] = [("x", Access.IN, builder.buffer(node.input(0)))]
        fixed, code = self._fixed(node.sig), dict[str, object](masked=len(node.inputs) > 1)
        if code["masked"]:
            operands.append(("visible", Access.IN, builder.buffer(node.input(1))))
            params["period"] = node.input(1).type.count // x.shape[self.axis]
        if fixed is not None:
            operands += fixed.exp.operands(builder)
            params |= fixed.params
            code |= {
                "y_t": y.dtype.c,
                "bits_y": 8 * y.dtype.nbytes,
                "low": y.dtype.limits[0],
                "high": y.dtype.limits[1],
            }
            code |= {"joined": params["inner"] == 1, "shift_more": params.get("shift_more", 0) != 0}
        operands.append(("y", Access.OUT, builder.buffer(node.output)))
        same, joined = x.dtype is y.dtype, params["inner"] == 1
        builder.emit(
            node,
            f"{self.name}_{x.dtype.tag}",
            operands,
            params,
            code=code,
            inplace=[("y", "x")] if same and not joined else [],
            overlaps=overlap(x, y, Traversal.forward(x.count)) if joined else [],
            variant="_".join(
                ["masked"] * (len(node.inputs) > 1)
                + ["apart"] * (not code.get("joined", True))
                + [f"to_{y.dtype.tag}"] * (not same)
            ),
        )


@onnx_operator("Softmax", kernels=("softmax_f32", "softmax_f64", "softmax_s8", "softmax_s16"))
@onnx_operator("LogSoftmax", kernels=("log_softmax_f32", "log_softmax_f64", "log_softmax_s8", "log_softmax_s16"))
def _import_softmax(node: OnnxNode) -> list[Value]:
    node.require_dtype(node.input(0), DType.FLOAT32, DType.FLOAT64)
    axis = normalize_axis(node, node.attr("axis", -1), node.input(0).type.rank)
    return [node.emit(Softmax(axis, node.op_type == "LogSoftmax"), node.input(0))]
