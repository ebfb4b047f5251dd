# SPDX-License-Identifier: Apache-2.0
"""Operators whose output size depends on data: NonZero, Compress, Unique, NonMaxSuppression.

Shapes are fixed in a graph, so each of these operators is created for an assumed `size`, and its last output is the
actual one. The graph lists these outputs (`Graph.sizes`), and the program is merged from several assumed sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import ClassVar

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.hir.graph import ComputedSize, Node, Value
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.types import Array, DType, Shape, TensorType, required
from mcugen.kernels.common.strided_loops import AxisWalk, numbered
from mcugen.kernels.portable.dynamic import (
    COMPRESS,
    NONMAXSUPPRESSION,
    NONZERO,
    UNIQUE,
    CompressParams,
    NonZeroOptions,
    NonZeroParams,
    SuppressionOptions,
    SuppressionParams,
    UniqueOptions,
)
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call
from mcugen.ops.gather import emit_taken
from mcugen.ops.movement import normalize_axis, reshaped
from mcugen.ops.onnx_node import OnnxNode, Refusal, onnx_operator

_SIZE = TensorType((1,), DType.INT32)


class Dynamic(Operator):
    """Base of operators whose output size along one axis depends on data. The last output is the actual size.

    Attributes:
        size: Number of elements along this axis for which memory is planned.
    """

    size: int = 0

    def _sized(self, sig: Signature, *arrays: Array, size: int) -> tuple[Array, ...]:
        """Return results of the actual size, filled up with zeros or cut to the assumed size, and the size itself."""
        shapes = [t.shape for t in sig.outputs[:-1]]
        return (*map(_fitted, arrays, shapes), np.array([size], np.int32))


def _fitted(array: Array, shape: Shape) -> Array:
    result = np.zeros(shape, array.dtype)
    part = tuple(slice(min(n, m)) for n, m in zip(array.shape, shape, strict=True))
    result[part] = array[part]
    return result


def _emit(node: OnnxNode, make: Callable[[int], Operator], inputs: Sequence[Value | None], bound: int) -> list[Value]:
    """Add an operator whose results have at most `bound` entries; return its outputs without the size."""
    graph, names = node.graph, [name for name in node.outputs if name]
    if graph.sizes is None:
        place = "the body of a loop or branch"
        raise Refusal(f"{node.op_type}: the size of the result must not depend on data here", place, "move it out")
    symbol = names[0]
    results = graph.add(
        make(graph.assumed.get(symbol, bound)), inputs, (node.name or symbol,), names=[*names, f"{symbol}.size"]
    ).outputs
    graph.sizes[symbol] = ComputedSize(bound, results[-1])
    return list(results[:-1])


# ------------------------------------------------------------------------------------------------- non-zero


class NonZero(Dynamic):
    """y[axis][n] = index along `axis` of the n-th element of x that is not 0."""

    mnemonic: ClassVar[str] = "nonzero"

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the types of the outputs: one row of `size` indices per axis of x, and the number of indices."""
        (x,) = required(inputs)
        return TensorType((x.rank, self.size), DType.INT64), _SIZE

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output by numpy.nonzero."""
        positions = np.stack(np.nonzero(arrays[0]))
        return self._sized(sig, positions.astype(np.int64), size=positions.shape[1])

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that counts the elements that are not 0, then writes their indices."""
        x = node.input(0).type
        params = NonZeroParams(total=x.count, count=numbered("count", x.shape))
        operands = builder.operands(node, "x", outputs=("y", "count"))
        variant = f"{x.dtype.tag}_{x.rank}d"
        options = NonZeroOptions(rank=x.rank, x_t=x.dtype.c)
        builder.call(node, Call(NONZERO, operands, [params], [options], variant=variant))


@onnx_operator("NonZero", kernels=("nonzero",))
def _import_nonzero(node: OnnxNode) -> list[Value]:
    x = node.input(0)
    node.require(x.type.rank, "the input must have an axis", "a scalar", "reshape it to [1]")
    return _emit(node, NonZero, [x], x.type.count)


# ------------------------------------------------------------------------------------------------- compress


class Compress(Dynamic):
    """y = the entries of x along `axis` for which the condition, the second input, is true."""

    mnemonic: ClassVar[str] = "compress"
    axis: int = 0

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the types of the two outputs: x with `size` entries along `axis`, and the actual number of entries."""
        (x,) = required(inputs[:1])
        return x.with_shape((*x.shape[: self.axis], self.size, *x.shape[self.axis + 1 :])), _SIZE

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output by numpy.compress."""
        x, condition = arrays
        kept = np.compress(condition.reshape(-1)[: x.shape[self.axis]], x, self.axis)
        return self._sized(sig, kept, size=kept.shape[self.axis])

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that copies entry by entry."""
        x, depth = node.input(0).type, node.input(0).type.shape[self.axis]
        inner = math.prod(x.shape[self.axis + 1 :])
        params = CompressParams(
            outer_size=math.prod(x.shape[: self.axis]),
            inner_size=inner,
            x_outer_stride=depth * inner,
            axis_size=min(depth, node.input(1).type.count),
        )
        operands = builder.operands(node, "x", "condition", outputs=("y", "count"))
        builder.call(node, Call(COMPRESS, operands, [params], variant=f"b{8 * x.dtype.nbytes}"))


@onnx_operator("Compress", kernels=("compress", "gather"), keeps_halves=True)
def _import_compress(node: OnnxNode) -> list[Value]:
    x, condition = node.input(0), node.input(1)
    node.require_dtype(condition, DType.BOOL)
    axis = node.attr("axis", None)
    if axis is None:
        x, axis = reshaped(node, x, (x.type.count,), "flat"), 0
    axis = normalize_axis(node, int(axis), x.type.rank)
    if condition.data is None:
        return _emit(node, lambda size: Compress(size, axis), [x, condition], x.type.shape[axis])
    chosen = np.flatnonzero(condition.data.reshape(-1)[: x.type.shape[axis]])  # a list of indices
    return [emit_taken(node, x, axis, node.constant("chosen", chosen.astype(np.int64)))]


# --------------------------------------------------------------------------------------------------- unique

_UNIQUE = ("y", "indices", "inverse", "counts")


class Unique(Dynamic):
    """The distinct entries of x along `axis`, with their first index, the inverse indices, and their counts.

    The inverse index of an entry of x is its position among the distinct entries. NaNs count as equal and come last.

    Attributes:
        axis: Axis along which entries are compared.
        is_sorted: Whether the distinct entries are sorted; else they are in the order of appearance.
        wanted: For each of the four results, whether it is an output.
    """

    mnemonic: ClassVar[str] = "unique"
    axis: int = 0
    is_sorted: bool = True
    wanted: tuple[bool, ...] = field(default=(True,) * 4, repr=False)

    def _chosen(self, results: Sequence[Array]) -> list[Array]:
        return [r for r, is_wanted in zip(results, self.wanted, strict=True) if is_wanted]

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the types of the outputs: `size` entries of x, the int64 vectors in `wanted`, and the actual size."""
        (x,) = required(inputs)
        shape = (*x.shape[: self.axis], self.size, *x.shape[self.axis + 1 :])
        lengths = (self.size, x.shape[self.axis], self.size)
        types = [x.with_shape(shape), *(TensorType((n,), DType.INT64) for n in lengths)]
        return (*(t for t, is_wanted in zip(types, self.wanted, strict=True) if is_wanted), _SIZE)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output by numpy.unique, and reorder the results if they are not sorted."""
        (x,) = arrays
        y, first, inverse, counts = np.unique(x, True, True, True, axis=self.axis if x.ndim > 1 else None)
        order = np.arange(len(first)) if self.is_sorted else np.argsort(first)
        place = np.argsort(order)
        results = [np.take(y, order, self.axis), first[order], place[inverse.reshape(-1)], counts[order]]
        return self._sized(sig, *self._chosen(results), size=len(first))

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that searches a list of first indices for each entry."""
        x = node.input(0).type
        roles = [role for role, is_wanted in zip(_UNIQUE, self.wanted, strict=True) if is_wanted]
        depth = x.shape[self.axis]
        operands = builder.operands(node, "x", outputs=(*roles, "count"))
        operands["first"] = builder.scratch(f"{node.outputs[0].name}.first", DType.INT32, depth)
        options = UniqueOptions(t=x.dtype.c, is_real=x.dtype.is_float, is_sorted=self.is_sorted, roles=roles)
        variant = f"{'sorted' if self.is_sorted else 'found'}_{x.dtype.tag}"
        builder.call(node, Call(UNIQUE, operands, [AxisWalk.of(x.shape, self.axis)], [options], variant=variant))


@onnx_operator("Unique", kernels=("unique",))
def _import_unique(node: OnnxNode) -> list[Value]:
    x, axis = node.input(0), node.attr("axis", None)
    if axis is None or x.type.rank == 1:
        x, axis = reshaped(node, x, (x.type.count,), "flat"), 0
    axis = normalize_axis(node, int(axis), x.type.rank)
    used_outputs = tuple(index < len(node.outputs) and bool(node.outputs[index]) for index in range(4))
    is_sorted = bool(node.attr("sorted", 1))
    results = iter(_emit(node, lambda size: Unique(size, axis, is_sorted, used_outputs), [x], x.type.shape[axis]))
    unused = node.constant("unused", np.zeros(1, np.int64))
    return [next(results) if name else unused for name in node.outputs]


# --------------------------------------------------------------------------------------- non-max suppression


class NonMaxSuppression(Dynamic):
    """Rows (batch, class, box) of the boxes that overlap no better box of their class by more than a threshold.

    Inputs are boxes [B, N, 4] and scores [B, C, N], then tensors of one element: the largest number of boxes of a
    class, the overlap threshold (intersection over union) and, optionally, the score threshold.

    Attributes:
        is_centered: Whether a box is given by centre and size; else by two corners.
    """

    mnemonic: ClassVar[str] = "nonmaxsuppression"
    is_centered: bool = False

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the types of the outputs: rows of three indices, and the actual number of rows."""
        return TensorType((self.size, 3), DType.INT64), _SIZE

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy: for each class, select the best remaining box again and again."""
        boxes, scores, max_boxes, overlap = arrays[:4]
        low = float(arrays[4].reshape(-1)[0]) if len(arrays) > 4 else -math.inf
        corners = _corners(boxes, self.is_centered)
        rows = []
        for batch, class_ in np.ndindex(*scores.shape[:2]):
            score = scores[batch, class_]
            left = (score > low) if len(arrays) > 4 else np.ones(len(score), bool)
            for _ in range(int(max_boxes.reshape(-1)[0])):
                if not left.any():
                    break
                best = int(np.argmax(np.where(left, score, -np.inf)))
                rows.append((batch, class_, best))
                left &= _overlap(corners[batch], best) <= overlap.reshape(-1)[0]
                left[best] = False
        selected = np.array(rows, np.int64).reshape(-1, 3)
        return self._sized(sig, selected, size=len(selected))

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that selects boxes without sorting."""
        boxes, scores = node.input(0).type, node.input(1).type
        params = SuppressionParams(batch=boxes.shape[0], classes=scores.shape[1], num_boxes=boxes.shape[1])
        roles = ("boxes", "scores", "most", "overlap", "least_score")
        operands = builder.operands(node, *roles, outputs=("y", "count"))
        operands["left"] = builder.scratch(f"{node.outputs[0].name}.left", DType.UINT8, boxes.shape[1])
        has_score = "least_score" in operands
        options = SuppressionOptions(is_centered=self.is_centered, has_score=has_score)
        variant = "_".join(["centered"] * self.is_centered + ["scored"] * has_score)
        builder.call(node, Call(NONMAXSUPPRESSION, operands, [params], [options], variant=variant))


def _corners(boxes: Array, is_centered: bool) -> Array:
    """[..., (low, low, high, high)]."""
    a, b = boxes[..., :2], boxes[..., 2:]
    if is_centered:
        return np.concatenate([a - b / 2, a + b / 2], -1)
    return np.concatenate([np.minimum(a, b), np.maximum(a, b)], -1)


def _overlap(corners: Array, chosen: int) -> Array:
    """Return the intersection over union of every box with one box."""
    one = corners[chosen]
    extent = np.minimum(corners[:, 2:], one[2:]) - np.maximum(corners[:, :2], one[:2])
    shared = extent.clip(0).prod(1)
    area = (corners[:, 2:] - corners[:, :2]).prod(1)
    union = area + area[chosen] - shared
    result: Array = np.where((shared > 0) & (union > 0), shared / np.where(union > 0, union, 1), 0)
    return result


@onnx_operator("NonMaxSuppression", kernels=("nonmaxsuppression",))
def _import_nonmaxsuppression(node: OnnxNode) -> list[Value]:
    boxes, scores = node.input(0), node.input(1)
    node.require_dtype(boxes, DType.FLOAT32)
    node.require_dtype(scores, DType.FLOAT32)
    b, s = boxes.type.shape, scores.type.shape
    if len(b) != 3 or len(s) != 3 or b[2] != 4 or (b[0], b[1]) != (s[0], s[2]):
        raise ModelError("NonMaxSuppression: boxes must be [B, N, 4], scores [B, C, N]", f"{b} and {s}", "repair it")
    max_boxes = node.input(2) if node.has(2) else node.constant("most", np.zeros(1, np.int64))
    overlap = node.input(3) if node.has(3) else node.constant("overlap", np.zeros(1, np.float32))
    score_threshold = [node.input(4)] if node.has(4) else []
    node.require_dtype(max_boxes, DType.INT64)
    for value in (overlap, *score_threshold):
        node.require_dtype(value, DType.FLOAT32)
    if any(v.type.count != 1 for v in (max_boxes, overlap, *score_threshold)):
        raise ModelError(
            "NonMaxSuppression: limits must be single numbers", f"{max_boxes.type.shape}", "repair the model"
        )
    limit = s[2] if max_boxes.data is None else min(max(int(max_boxes.data.reshape(-1)[0]), 0), s[2])
    bound = s[0] * s[1] * limit
    if not bound:
        return [node.constant("none", np.empty((0, 3), np.int64))]
    is_centered = bool(node.attr("center_point_box", 0))
    inputs = [boxes, scores, max_boxes, overlap, *score_threshold]
    return _emit(node, lambda size: NonMaxSuppression(size, is_centered), inputs, bound)
