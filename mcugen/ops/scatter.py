# SPDX-License-Identifier: Apache-2.0
"""Operators that write updates at given indices: ScatterElements, ScatterND, TensorScatter.

Later updates of the same place come after earlier ones. Indices can never lead out of the tensor (see gather.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import IntegerForm, Operator, Signature
from mcugen.hir.traits import Simplifiable
from mcugen.hir.types import Array, DType, Shape, TensorType, required
from mcugen.kernels.common.strided_loops import dense_strides, merge_walks, numbered
from mcugen.kernels.portable.scatter import (
    SCATTER_ELEMENTS,
    SCATTER_ND,
    TENSOR_SCATTER,
    PlacedAxes,
    ScatteredAxes,
    ScatterElementsOptions,
    ScatterElementsParams,
    ScatterOptions,
    ScatterParams,
    TensorScatterOptions,
    TensorScatterParams,
)
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call, Kernel, Options, Params
from mcugen.numerics.fixedpoint import has_same_quantization
from mcugen.ops.conversion import Cast
from mcugen.ops.gather import checked_indices, flat_positions, positions, require_elements, require_integers
from mcugen.ops.movement import Concat, Movement, Reshape, Slice, normalize_axis
from mcugen.ops.onnx_node import OnnxNode, Refusal, onnx_operator


@dataclass(frozen=True)
class ScatterReduction:
    """A function that combines an update with the element at its index, in numpy and as C text.

    Attributes:
        reference: The numpy function; None to overwrite.
        real: C statement for floats that combines *to with *from.
        integer: C statement for integers; {t} is the type, {u} its unsigned type.
        boolean: C statement for bools.
    """

    reference: Callable[..., Any] | None
    real: str
    integer: str
    boolean: str

    def step(self, dtype: DType) -> str:
        """Return the C statement that combines *to with *from for elements of a type."""
        text = self.real if dtype.is_float or dtype.is_narrow_float else self.boolean
        if dtype.is_integer:
            text = self.integer
        return text.format(t=dtype.c, u="uint64_t" if dtype.nbytes == 8 else "uint32_t")

    def apply(self, flat: Array, index: Array, updates: Array) -> None:
        """Combine updates with the elements of an array in place, one after the other.

        Args:
            flat: The array, in one dimension.
            index: Position of each update in `flat`.
            updates: The updates.
        """
        if self.reference is None:
            flat[index] = updates
        else:
            self.reference.at(flat, index, updates)  # type: ignore[attr-defined]


_PLAIN = "*to = *from;"
_WRAP = "*to = ({{t}})(({{u}})*to {0} ({{u}})*from);"  # unsigned arithmetic wraps; signed overflow is undefined in C

SCATTER_REDUCTIONS = {
    "none": ScatterReduction(None, _PLAIN, _PLAIN, _PLAIN),
    "add": ScatterReduction(np.add, "*to += *from;", _WRAP.format("+"), "*to = (uint8_t)(*to | *from);"),
    "mul": ScatterReduction(np.multiply, "*to *= *from;", _WRAP.format("*"), "*to = (uint8_t)(*to & *from);"),
    "max": ScatterReduction(
        np.maximum,
        "*to = *from > *to || *from != *from ? *from : *to;",
        "*to = *from > *to ? *from : *to;",
        "*to = (uint8_t)(*to | *from);",
    ),
    "min": ScatterReduction(
        np.minimum,
        "*to = *from < *to || *from != *from ? *from : *to;",
        "*to = *from < *to ? *from : *to;",
        "*to = (uint8_t)(*to & *from);",
    ),
}
"""Functions that combine an update with the element at its index, by ONNX's attribute `reduction`."""


def _types(inputs: tuple[TensorType | None, ...]) -> tuple[TensorType, TensorType, TensorType]:
    """Return the types of data, indices and updates; data and updates must have one element type."""
    x, index, updates = required(inputs)
    if x.dtype is not updates.dtype:
        dtypes = f"{updates.dtype.value} for {x.dtype.value}"
        raise ModelError("scatter: updates must have the element type of the tensor", dtypes, "repair the model")
    return x, index, updates


def _call(
    node: Node, builder: Builder, kernel: Kernel, params: Sequence[Params], option: Options, variant: str
) -> None:
    """Emit a kernel whose output may replace its first input in memory."""
    values = (*(node.input(i) for i in range(3)), node.output)
    operands = {role.name: builder.buffer(v) for role, v in zip(kernel.operands, values, strict=True)}
    builder.call(node, Call(kernel, operands, params, [option], inplace=[("y", "x")], variant=variant))


class ScatterElements(Operator):
    """y = x, then y[.., index[i], ..] ∘= updates[i] for all i in order, with the index along `axis`.

    ∘ is the `reduction` of ONNX (none, add, mul, max or min), where "none" overwrites.
    """

    mnemonic: ClassVar[str] = "scatter_elements"
    axis: int = 0
    reduction: str = "none"

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: that of x, the tensor that is updated."""
        x, index, updates = _types(inputs)
        fits = x.rank == index.rank and all(
            n <= size or axis == self.axis for axis, (n, size) in enumerate(zip(index.shape, x.shape, strict=True))
        )
        if not fits or index.shape != updates.shape:
            shapes = f"{x.shape}, {index.shape}, {updates.shape}"
            raise ModelError("scatter_elements: indices must fit the tensor", shapes, "repair the model")
        require_elements(self.name, x.shape[self.axis], index)
        return (TensorType(x.shape, x.dtype, layout=x.layout),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy: combine one update after the other with x, at row-major positions."""
        x, index, updates = arrays
        y = x.copy()
        grid: list[Array] = list(np.indices(index.shape))
        grid[self.axis] = positions(index, x.shape[self.axis])
        strides = dense_strides(x.shape)
        flat = sum(g * stride for g, stride in zip(grid, strides, strict=True))
        SCATTER_REDUCTIONS[self.reduction].apply(y.reshape(-1), np.asarray(flat).reshape(-1), updates.reshape(-1))
        return (y,)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to loops over the indices."""
        x, index = node.input(0).type, node.input(1).type
        strides = dense_strides(x.shape)
        params = ScatterElementsParams(x_size=x.count, axis_size=x.shape[self.axis], stride=strides[self.axis])
        strides[self.axis] = 0
        sizes, _, steps = zip(*merge_walks(index.shape, dense_strides(index.shape), strides), strict=True)
        axes = ScatteredAxes(count=numbered("count", sizes), y_stride=numbered("y_stride", steps))
        step = SCATTER_REDUCTIONS[self.reduction].step(x.dtype)
        options = ScatterElementsOptions(t=x.dtype.c, rank=len(sizes), reduction=self.reduction, step=step)
        variant = f"{self.reduction}_{x.dtype.tag}_{index.dtype.tag}"
        _call(node, builder, SCATTER_ELEMENTS, [params, axes], options, variant)


MIN_CONCAT_SHARE = 1 / 16
"""Smallest share of a tensor that a scatter must write to be replaced by a Concat of slices.

A scatter that writes less may be faster in place.
"""


class ScatterND(Simplifiable, Operator):
    """y = x, then y[index[j, 0], index[j, 1], …] ∘= updates[j] for all j in order; ∘ is the `reduction`.

    It is one of ONNX: none (overwrite), add, mul, max or min.
    """

    mnemonic: ClassVar[str] = "scatter_nd"
    reduction: str = "none"

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: that of x, the tensor that is updated."""
        x, index, updates = _types(inputs)
        depths = x.shape[: index.shape[-1]] if index.rank else ()
        fits = 0 < len(depths) == index.shape[-1] and updates.shape == index.shape[:-1] + x.shape[len(depths) :]
        if not fits:
            shapes = f"{x.shape}, {index.shape}, {updates.shape}"
            raise ModelError("scatter_nd: indices and updates must fit the tensor", shapes, "repair the model")
        require_elements(self.name, math.prod(depths), index)
        return (TensorType(x.shape, x.dtype),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy: combine contiguous elements of x with one update after the other."""
        x, index, updates = arrays
        y = x.copy()
        depths = x.shape[: index.shape[-1]]
        flat = flat_positions(index, depths).reshape(-1)
        SCATTER_REDUCTIONS[self.reduction].apply(y.reshape(math.prod(depths), -1), flat, updates.reshape(len(flat), -1))
        return (y,)

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Return a Concat of slices for a scatter to a box, as exporters write x[:, 2:4] = updates; else None."""
        x, updates = node.input(0), node.input(2)
        index = node.input(1).data
        box = _box(index, x.type.shape) if self.reduction == "none" and index is not None else None
        if box is None or math.prod(size for _, size in box) < MIN_CONCAT_SHARE * x.type.count:
            return None
        shape = tuple(size for _, size in box)
        part = graph.add(Reshape(shape), [updates], node.origin, before=node).output
        return _with_part(graph, node, x, part, list(enumerate(box)))

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that combines, for each index, contiguous elements of x with those of the update."""
        x, index = node.input(0).type, node.input(1).type
        depths = x.shape[: index.shape[-1]]
        run = math.prod(x.shape[len(depths) :])
        params = ScatterParams(x_size=x.count, num_updates=index.count // len(depths), run_size=run)
        strides = [stride * run for stride in dense_strides(depths)]
        axes = PlacedAxes(depth=numbered("depth", depths), stride=numbered("stride", strides))
        step = SCATTER_REDUCTIONS[self.reduction].step(x.dtype)
        options = ScatterOptions(t=x.dtype.c, depths=len(depths), reduction=self.reduction, step=step)
        variant = f"{self.reduction}_{x.dtype.tag}_{index.dtype.tag}"
        _call(node, builder, SCATTER_ND, [params, axes], options, variant)


def _box(index: Array, shape: Shape) -> list[tuple[int, int]] | None:
    """Return start and length on each axis, if the indices enumerate a box in order; else None."""
    depth = index.shape[-1]
    places = index.reshape(-1, depth).astype(np.int64)
    places = np.where(places < 0, places + np.array(shape[:depth]), places)
    first, last = places.min(0), places.max(0)
    sizes = last - first + 1
    if math.prod(sizes.tolist()) != len(places):
        return None
    if not np.array_equal(places, first + np.indices(sizes).reshape(depth, -1).T):
        return None
    return [*zip(first.tolist(), sizes.tolist(), strict=True), *((0, size) for size in shape[depth:])]


def _with_part(graph: Graph, node: Node, x: Value, part: Value, box: Sequence[tuple[int, tuple[int, int]]]) -> Value:
    """Return x with a box of it replaced by `part`.

    For each axis of the box, it concatenates the slices before, in and behind the box.
    """
    shape = x.type.shape
    partial = [(axis, place) for axis, place in box if place[1] < shape[axis]]
    if not partial:
        return part

    def cut(axis: int, first: int, size: int) -> Value:
        starts, sizes = [0] * len(shape), list(shape)
        starts[axis], sizes[axis] = first, size
        slice_ = Slice(tuple(starts), tuple(sizes), (1,) * len(shape))
        return graph.add(slice_, [x], node.origin, before=node).output

    (axis, (first, size)), *remaining_box = partial
    middle = _with_part(graph, node, cut(axis, first, size), part, remaining_box) if remaining_box else part
    end = first + size
    before = [cut(axis, 0, first)] if first else []
    behind = [cut(axis, end, shape[axis] - end)] if end < shape[axis] else []
    parts = [*before, middle, *behind]
    return graph.add(Concat(axis), parts, node.origin, before=node).output


def _samples(x: TensorType, axis: int) -> int:
    """Return the number of samples that are updated at a position each: one, if the positions are the first axis."""
    return x.shape[0] if axis else 1


class TensorScatter(Movement):
    """y = x, then y[b, m, first[b] + s] = updates[b, m, s], for example to append keys to a cache.

    Attributes:
        axis: Axis of the positions s; 0 if the tensors have no axis b.
        circular: Whether positions beyond the end of the axis wrap to its start.
    """

    mnemonic: ClassVar[str] = "tensor_scatter"
    axis: int = 1
    circular: bool = False

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: that of x, the tensor that is updated."""
        x, first, updates = _types(inputs)
        rests = [t.shape[: self.axis] + t.shape[self.axis + 1 :] for t in (x, updates)]
        fits = x.rank == updates.rank and rests[0] == rests[1] and updates.shape[self.axis] <= x.shape[self.axis]
        if not fits or first.count != _samples(x, self.axis):
            shapes = f"{x.shape}, {first.shape}, {updates.shape}"
            raise ModelError("tensor_scatter: updates must fit the tensor", shapes, "repair the model")
        return (TensorType(x.shape, x.dtype, x.quant),)

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return the operator itself, which also moves quantized elements; None if quantizations differ."""
        same = all(has_same_quantization(sig.input(i), sig.output) for i in (0, 2))
        return (self, inputs) if same else None

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy: write the updates of one sample of the batch after the other."""
        x, first, updates = arrays
        y = x.copy()
        depth, count = x.shape[self.axis], updates.shape[self.axis]
        if self.axis == 0:
            x, updates = x[None], updates[None]
            y = y.reshape(x.shape)
        for b, write_index in enumerate(first.reshape(-1).astype(np.int64)):
            start = write_index % depth if self.circular else np.clip(write_index, 0, depth - count)
            axis = max(self.axis - 1, 0)
            rows = np.moveaxis(y[b], axis, 0)
            rows[(start + np.arange(count)) % depth] = np.moveaxis(updates[b], axis, 0)
        return (y.reshape(sig.output.shape),)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that copies contiguous elements, those of all axes behind `axis`, at once."""
        x, updates = node.input(0).type, node.input(2).type
        params = TensorScatterParams(
            x_size=x.count,
            batch=_samples(x, self.axis),
            middle_size=math.prod(x.shape[1 : self.axis]),
            axis_size=x.shape[self.axis],
            updates_axis_size=updates.shape[self.axis],
            run_size=math.prod(x.shape[self.axis + 1 :]),
        )
        options = TensorScatterOptions(circular=self.circular)
        _call(node, builder, TENSOR_SCATTER, [params], options, x.dtype.tag)


# --------------------------------------------------------------------------------------------------- import


def _reduction(node: OnnxNode) -> str:
    reduction = str(node.attr("reduction", "none"))
    node.require(
        reduction in SCATTER_REDUCTIONS, f"the reduction must be one of {', '.join(SCATTER_REDUCTIONS)}", reduction
    )
    return reduction


def _emit_scatter(node: OnnxNode, op: ScatterElements | ScatterND, depths: Shape) -> list[Value]:
    """Add the operator. Reductions of 16-bit floats are computed in float32."""
    x, updates = node.input(0), node.input(2)
    index = checked_indices(node, require_integers(node, 1), depths)
    op.infer(x.type, index.type, updates.type)
    if not index.type.count or not updates.type.count:
        return [x]
    half = x.type.dtype
    if op.reduction == "none" or not half.is_narrow_float:
        return [node.emit(op, x, index, updates)]
    x, updates = (node.emit(Cast(DType.FLOAT32), v, suffix=f"{v.name}.wide") for v in (x, updates))
    return [node.emit(Cast(half), node.emit(op, x, index, updates, suffix="wide"))]


@onnx_operator("ScatterElements", "Scatter", kernels=("scatter_elements",), keeps_halves=True)
def _import_scatter_elements(node: OnnxNode) -> list[Value]:
    shape = node.input(0).type.shape
    axis = normalize_axis(node, node.attr("axis", 0), len(shape))
    return _emit_scatter(node, ScatterElements(axis, _reduction(node)), shape[axis : axis + 1])


@onnx_operator("ScatterND", kernels=("scatter_nd",), keeps_halves=True)
def _import_scatter_nd(node: OnnxNode) -> list[Value]:
    data, index = node.input(0).type, node.input(1).type
    if not 1 <= (index.shape[-1] if index.shape else 0) <= data.rank:
        shapes = f"indices {index.shape}, data {data.shape}"
        raise Refusal("ScatterND: the last axis of the indices must hold one for each of the first axes", shapes)
    depths = data.shape[: index.shape[-1]]
    return _emit_scatter(node, ScatterND(_reduction(node)), depths)


@onnx_operator("TensorScatter", kernels=("tensor_scatter",), keeps_halves=True)
def _import_tensor_scatter(node: OnnxNode) -> list[Value]:
    x, updates, mode = node.input(0), node.input(1), node.attr("mode", "linear")
    axis = normalize_axis(node, node.attr("axis", -2), x.type.rank)
    if mode not in ("linear", "circular") or axis == 0:
        mismatch = f"mode '{mode}', axis {axis}"
        raise Refusal("TensorScatter: it must be linear or circular on an axis behind the batch", mismatch, "repair it")
    first = require_integers(node, 2) if node.has(2) else node.constant("first", np.zeros(x.type.shape[0], np.int64))
    op = TensorScatter(axis, mode == "circular")
    op.infer(x.type, first.type, updates.type)
    return [node.emit(op, x, first, updates) if updates.type.count else x]
