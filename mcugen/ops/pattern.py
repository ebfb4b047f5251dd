# SPDX-License-Identifier: Apache-2.0
"""Tensors that are computed from positions: triangles, identity matrices, one-hot vectors, ranges, constants."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.hir.graph import Node, Value
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.types import Array, DType, Shape, TensorType, required
from mcugen.kernels.common.strided_loops import AxisWalk
from mcugen.kernels.portable.movement import emit_fill
from mcugen.kernels.portable.positions import (
    ONE_HOT,
    RANGE,
    TRILU,
    OneHotOptions,
    RangeOptions,
    RangeParams,
    TriluOptions,
    TriluParams,
)
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call
from mcugen.lir.traversal import Traversal, overlap
from mcugen.ops.conversion import Cast
from mcugen.ops.gather import require_integers
from mcugen.ops.movement import decided_shape, emit_expanded, onnx_dtype
from mcugen.ops.onnx_node import KNOWN_AT_COMPILE_TIME_TEXT, NUMBERS, OnnxNode, Refusal, onnx_operator

_LARGEST_TABLE = 1 << 24
"""Largest number of elements of EyeLike's matrix: no microcontroller has room for more, but a hostile model may ask."""


class Zeros(Operator):
    """A tensor of zeros that is filled at run time, where a constant would take its size in flash.

    Attributes:
        shape: Shape of the tensor.
        dtype: Element type of the tensor.
    """

    mnemonic: ClassVar[str] = "zeros"
    shape: Shape = ()
    dtype: DType = DType.FLOAT32

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: the attributes `shape` and `dtype`."""
        return (TensorType(self.shape, self.dtype),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output by numpy.zeros."""
        return (np.zeros(self.shape, self.dtype.numpy),)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a fill of the output with zeros."""
        emit_fill(node, builder, builder.buffer(node.output), np.zeros(1, self.dtype.numpy))


class Trilu(Operator):
    """y[r, c] = x[r, c] where c − r ≥ k, or c − r ≤ k, else 0, in the last two axes; k is input 1.

    Attributes:
        upper: Whether the elements with c − r ≥ k are kept; else those with c − r ≤ k.
    """

    mnemonic: ClassVar[str] = "trilu"
    upper: bool = True

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: that of x."""
        x, k = required(inputs)
        if x.rank < 2 or k.count != 1:
            raise ModelError(
                "trilu: the tensor must have rows and columns", f"{x.shape}, {k.shape}", "repair the model"
            )
        return (TensorType(x.shape, x.dtype),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output: a copy of x in which the elements on one side of the k-th diagonal are 0."""
        x, k = arrays
        rows, columns = x.shape[-2:]
        diagonal = np.clip(k.astype(np.int64).reshape(()), -rows, columns)
        distance = np.arange(columns) - np.arange(rows)[:, None]
        return (np.where(distance >= diagonal if self.upper else distance <= diagonal, x, np.zeros_like(x)),)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a loop over the elements of y."""
        x = node.input(0).type
        rows, columns = x.shape[-2:]
        operands = builder.operands(node, "x", "k")
        params = TriluParams(matrices=math.prod(x.shape[:-2]), rows=rows, columns=columns)
        options = TriluOptions(keeps=">=" if self.upper else "<=")
        variant = f"{'upper' if self.upper else 'lower'}_{x.dtype.tag}"
        near = overlap(x, node.output.type, Traversal.forward(x.count))
        builder.call(node, Call(TRILU, operands, [params], [options], overlaps=near, variant=variant))


class OneHot(Operator):
    """y[o, d, i] = values[1] if index[o, i] = d, else values[0].

    Negative indices count from the end; other indices outside give values[0] everywhere.

    Attributes:
        depth: Number of positions d.
        axis: Axis of d in y.
    """

    mnemonic: ClassVar[str] = "one_hot"
    depth: int = 0
    axis: int = 0

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: the shape of the indices with an axis of `depth` elements inserted."""
        index, values = required(inputs)
        if values.shape != (2,) or self.depth < 0:
            mismatch = f"values {values.shape}, depth {self.depth}"
            raise ModelError("one_hot: there must be two values and a depth", mismatch, "repair the model")
        return (TensorType((*index.shape[: self.axis], self.depth, *index.shape[self.axis :]), values.dtype),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output by comparing the indices with all positions."""
        index, values = arrays
        place = np.expand_dims(index, self.axis)
        if place.dtype.kind != "u":
            place = place.astype(np.int64) if place.dtype.kind == "i" else place
            place = np.where(place < 0, place + self.depth, place)
        steps = np.arange(self.depth).reshape([-1] + [1] * (index.ndim - self.axis))
        return (values[(place == steps).astype(np.int64)],)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a loop over the elements of y."""
        index, dtype = node.input(0).type, node.input(0).type.dtype
        wide = dtype.c if dtype.is_float else "int64_t" if dtype.limits[0] else "uint64_t"
        number = f"({wide})d"
        hit = f"v == {number}" + ("" if wide == "uint64_t" else f" || v == ({wide})(d - p->axis_size)")
        operands = builder.operands(node, "index", "values")
        before, behind = index.shape[: self.axis], index.shape[self.axis :]
        walk = AxisWalk(outer_size=math.prod(before), axis_size=self.depth, inner_size=math.prod(behind))
        variant = f"{node.output.type.dtype.tag}_{dtype.tag}"
        builder.call(node, Call(ONE_HOT, operands, [walk], [OneHotOptions(wide_t=wide, hit=hit)], variant=variant))


class Range(Operator):
    """y[i] = start + i · delta; start and delta are inputs. Integers wrap.

    Attributes:
        count: Number of elements of y.
    """

    mnemonic: ClassVar[str] = "range"
    count: int = 0

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: a vector of `count` elements."""
        start, delta = required(inputs)
        if start.count != 1 or delta.count != 1 or start.dtype is not delta.dtype:
            raise ModelError(
                "range: start and delta must be scalars of one type", f"{start}, {delta}", "repair the model"
            )
        return (TensorType((self.count,), start.dtype),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the range in numpy, in the element type."""
        start, delta = (a.reshape(()) for a in arrays)
        return (start + np.arange(self.count).astype(start.dtype) * delta,)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a loop over the elements of y."""
        dtype = node.output.type.dtype
        operands = builder.operands(node, "start", "delta")
        wide = dtype.c if dtype.is_float else "uint64_t" if dtype.nbytes == 8 else "uint32_t"
        options = RangeOptions(t=dtype.c, wide_t=wide)
        builder.call(node, Call(RANGE, operands, [RangeParams(count=self.count)], [options], variant=dtype.tag))


# --------------------------------------------------------------------------------------------------- import


@onnx_operator("Trilu", kernels=("trilu",), keeps_halves=True)
def _import_trilu(node: OnnxNode) -> list[Value]:
    k = require_integers(node, 1) if node.has(1) else node.constant("k", np.zeros(1, np.int64))
    return [node.emit(Trilu(bool(node.attr("upper", 1))), node.input(0), k)]


@onnx_operator("EyeLike", kernels=(KNOWN_AT_COMPILE_TIME_TEXT,), keeps_halves=True)
def _import_eye_like(node: OnnxNode) -> list[Value]:
    x = node.input(0).type
    code = node.attributes.get("dtype")
    dtype = x.dtype if code is None else onnx_dtype(node, int(code))
    if x.rank != 2 or x.count > _LARGEST_TABLE:
        raise Refusal(
            "EyeLike: the tensor must be a matrix that fits a microcontroller", f"{x.shape}", "use a constant"
        )
    rows, columns = x.shape
    eye = np.arange(columns) - np.arange(rows)[:, None] == node.attr("k", 0)
    return [node.graph.constant(f"{node.outputs[0]}.eye", eye.astype(dtype.numpy), dtype=dtype)]


@onnx_operator(
    "OneHot", kernels=("one_hot",), limits="a computed depth needs a declared output shape", keeps_halves=True
)
def _import_one_hot(node: OnnxNode) -> list[Value]:
    index, values = node.input(0), node.input(2)
    if index.type.dtype.is_narrow_float:
        index = node.emit(Cast(DType.FLOAT32), index, suffix="index")
    elif index.type.dtype is DType.BOOL:
        raise Refusal("OneHot: indices must be numbers", "bool", "cast them to int64")
    axis = normalized_new_axis(node, node.attr("axis", -1), index.type.rank)
    decided = decided_shape(node, 1)
    depth = decided[axis] if decided is not None and len(decided) > axis else node.whole(1, "the depth")
    return [node.emit(OneHot(depth, axis), index, values)]


def normalized_new_axis(node: OnnxNode, axis: int, rank: int) -> int:
    """Return the index at which an axis is inserted into a tensor of `rank` axes.

    Raises:
        Refusal: The axis is outside the result's rank.
    """
    node.require(
        -rank - 1 <= axis <= rank, "the axis must be one of the result's", f"{axis} of rank {rank + 1}", "repair it"
    )
    return axis % (rank + 1)


@onnx_operator("Range", types=NUMBERS, kernels=("range",), limits="computed bounds need a declared output shape")
def _import_range(node: OnnxNode) -> list[Value]:
    """Import Range. Its length is declared, or all inputs are constant."""
    decided = decided_shape(node, 0, 1, 2)
    if decided is None:
        parts = (("start", 0), ("limit", 1), ("delta", 2))
        start, limit, delta = (node.const(i, f"the {what}").reshape(-1)[:1].astype(np.float64) for what, i in parts)
        ends = np.concatenate([start, limit, delta])
        if len(ends) != 3 or not np.isfinite(ends).all() or delta == 0:
            rule = "Range: start, limit and delta must be finite numbers, and delta not 0"
            raise Refusal(rule, f"{ends.tolist()}", "repair the model")
        count = max(math.ceil(float((limit - start)[0] / delta[0])), 0)
    else:
        (count,) = decided
    return [node.emit(Range(count), node.input(0), node.input(2))]


@onnx_operator(
    "ConstantOfShape", kernels=("copy",), limits="a computed shape must be declared as the output's", keeps_halves=True
)
def _import_constant_of_shape(node: OnnxNode) -> list[Value]:
    value = np.asarray(node.attr("value", np.zeros(1, np.float32)))
    node.require(value.size == 1, "value must have one element", f"shape {value.shape}")
    value = value.reshape(())
    shape: Shape | None = decided_shape(node, 0)
    if shape is None:
        shape = tuple(node.ints("shape", 0) or ())
    stored = value.astype(DType.of(value).numpy)
    return [emit_expanded(node, node.graph.constant(f"{node.outputs[0]}.value", stored, dtype=DType.of(value)), shape)]
