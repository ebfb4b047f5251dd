# SPDX-License-Identifier: Apache-2.0
"""Operators that select elements by indices: Gather and its variants, slices with computed starts, reversed sequences.

Indices that are computed can never lead out of the tensor: negative ones count from the end, and what still lies
outside is moved to the nearest element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.hir.crop import Box, Crop, hull_of
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import IntegerForm, Operator, Permutation, Signature
from mcugen.hir.traits import Croppable, Permutable, Simplifiable
from mcugen.hir.types import Array, DType, Layout, Shape, TensorType, required
from mcugen.kernels.common.strided_loops import AxisWalk, dense_strides, numbered
from mcugen.kernels.portable.gather import (
    GATHER,
    GATHER_ELEMENTS,
    REVERSE_SEQUENCE,
    SLICE_AT,
    GatherOptions,
    GatherParams,
    GatherRun,
    IndexCount,
    IndexedAxes,
    ReverseParams,
    SliceCount,
    SlicedAxes,
    SliceOptions,
)
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call
from mcugen.numerics.fixedpoint import has_same_quantization, quantize
from mcugen.ops.conversion import Dequantize, Quantize
from mcugen.ops.movement import (
    Movement,
    Permuted,
    Reshape,
    Slice,
    decided_shape,
    normalize_axes,
    normalize_axis,
    reversed_axis,
)
from mcugen.ops.onnx_node import OnnxNode, Refusal, onnx_operator


def positions(indices: Array, depth: int) -> Array:
    """Return the positions that indices refer to, as the C function mcugen_index computes them.

    Negative indices count from the end; all are clamped to the axis, whose number of elements is `depth`.
    """
    wide = indices.astype(np.int64)
    clipped: Array = np.clip(np.where(wide < 0, wide + depth, wide), 0, depth - 1)
    return clipped


def require_elements(name: str, depth: int, indices: TensorType) -> None:
    """Check that an axis with `depth` elements is not empty if there are indices.

    Args:
        name: Name of the operator, for the message.
        depth: Number of elements of the indexed axis.
        indices: Type of the indices.

    Raises:
        ModelError: There are indices, but no elements to choose from.
    """
    if indices.count and not depth:
        raise ModelError(f"{name}: indices need something to choose from", "an axis of size 0", "repair the model")


def require_integers(node: OnnxNode, index: int) -> Value:
    """Return input number `index` of a node, which holds indices.

    Raises:
        Refusal: The input is not of an integer type.
    """
    value = node.input(index)
    node.require(value.type.dtype.is_integer, "indices must be integers", value.type.dtype.value, "cast them to int64")
    return value


def index_type(depth: int) -> type[np.integer[Any]]:
    """Return the smallest integer type for constant indices of an axis with `depth` elements."""
    return np.uint8 if depth <= 2**8 else np.uint16 if depth <= 2**16 else np.int32


def checked_indices(node: OnnxNode, indices: Value, depths: Sequence[int]) -> Value:
    """Return constant indices without negative ones, in the smallest type; computed indices are returned unchanged.

    Args:
        node: Node that is imported.
        indices: The indices; their last axis has one index for each of `depths`.
        depths: Sizes of the axes that are indexed.

    Raises:
        Refusal: An index is out of range.
    """
    if indices.data is None or not indices.type.count:
        return indices
    limits = np.asarray(depths, np.int64)
    wide = indices.data.astype(np.int64)
    if ((wide < -limits) | (wide >= limits)).any():
        index_range = f"{wide.min()} to {wide.max()} of {', '.join(map(str, depths))}"
        raise Refusal(f"{node.op_type}: indices must lie within the axis", index_range, "repair the model")
    counted = np.where(wide < 0, wide + limits, wide).reshape(wide.shape)  # a scalar has become a vector
    return node.constant("indices", counted.astype(index_type(max(depths))))


class IndexedMovement(Movement):
    """Base of operators that copy elements of input 0 at the integer positions in input 1."""

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return the operator itself, which also moves quantized elements; None if the quantization would change."""
        return (self, inputs) if has_same_quantization(sig.input(0), sig.output) else None


def _emit_gather(node: Node, builder: Builder, outer: int, depths: Shape, run: int, shared: bool) -> None:
    """Emit y[o][j] = the run of x[o] at index[o][j] (index[j] if `shared`), where x[o] has `depths` runs."""
    x, index = node.input(0), node.input(1)
    known, strides = _lies_within(index, depths), [stride * run for stride in dense_strides(depths)]
    count = index.type.count // len(depths) // (1 if shared else outer)
    options = GatherOptions(
        t=x.type.dtype.c,
        index_t=index.type.dtype.c,
        depths=len(depths),
        single_element=run == 1,
        shared=shared,
        known=known,
    )
    call = Call(
        GATHER,
        builder.operands(node, "x", "index"),
        [
            GatherParams(outer_size=outer, num_indices=count, x_outer_stride=math.prod(depths) * run),
            IndexedAxes(stride=numbered("stride", strides), depth=numbered("depth", depths)),
            GatherRun(run_size=run if run > 1 else None),
        ],
        [options],
        variant=f"{x.type.dtype.tag}_{index.type.dtype.tag}",
    )
    builder.call(node, call)


def _lies_within(index: Value, depths: Shape) -> bool:
    """Return whether indices are constant and need no check."""
    if index.data is None:
        return False
    rows = index.data.reshape(-1, len(depths))
    return bool((rows >= 0).all() and (rows.astype(np.int64) < np.asarray(depths)).all())


class Gather(Permutable, Croppable, Simplifiable, IndexedMovement):
    """y[o, j, i] = x[o, index[j], i], with o for the axes before `axis` and i for those behind it.

    j stands for all axes of the indices, of which there may be none.
    """

    mnemonic: ClassVar[str] = "gather"
    axis: int = 0

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: the shape of x with the indices' shape in place of the axis."""
        x, index = required(inputs)
        require_elements(self.name, x.shape[self.axis], index)
        shape = (*x.shape[: self.axis], *index.shape, *x.shape[self.axis + 1 :])
        return (x.with_shape(shape, x.layout if index.rank == 1 else Layout.NONE),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output by numpy.take."""
        x, index = arrays
        return (np.take(x, positions(index, x.shape[self.axis]), self.axis),)

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Rewrite Gather(Dequantize(table), index) → Dequantize(Gather(table, index)), to keep tables quantized.

        A constant table of reals whose gathered elements are quantized is quantized before, which gives the same bits.
        """
        source = node.input(0).producer
        if source is None:
            return self._quantized_first(node, graph)
        if not isinstance(source.op, Dequantize):
            return None
        table = source.input(0)
        if not table.is_constant or table.type.q.axis is not None:
            return None
        gathered = graph.add(self, [table, node.input(1)], node.origin, before=node)
        types = [node.output.type]
        return graph.add(source.op, [gathered.output], source.origin, types=types, before=node).output

    def _quantized_first(self, node: Node, graph: Graph) -> Value | None:
        """Return the dequantized gather of a quantized table; None if no Quantize alone reads the gathered elements."""
        table, reader = node.input(0), graph.only_user(node.output)
        if table.data is None or reader is None or not isinstance(reader.op, Quantize):
            return None
        quantized = reader.output.type
        if quantized.quant is None or quantized.quant.axis is not None or node.output.type.dtype is not DType.FLOAT32:
            return None
        codes = quantize(table.data, quantized.q, quantized.dtype)
        constant = graph.constant(f"{table.name}.quantized", codes, quantized.quant, of=[table])
        gathered = graph.add(self, [constant, node.input(1)], node.origin, before=node)
        types = [node.output.type]
        return graph.add(Dequantize(), [gathered.output], node.origin, types=types, before=node).output

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return the gather of some elements; with constant indices, it reads no element that none of them names."""
        size, index = node.input(0).type.shape[self.axis], node.input(1)
        end = self.axis + index.type.rank
        box, read, constants = region[self.axis : end], range(size), dict[int, Array]()
        if index.data is not None:
            places = positions(index.data, size)[np.ix_(*box)] if box else positions(index.data, size)
            read = hull_of(places.reshape(-1).tolist())
            constants[1] = ((places - read.start) // read.step).astype(index.data.dtype)
        return Crop(self, region, ((*region[: self.axis], read, *region[end:]), box), constants)

    def permuted(self, sig: Signature, perm: Permutation) -> Permuted | None:
        """Return the gather that computes the output transposed by `perm`, and the permutation of x; the indices stay.

        Return None if the indices do not have exactly one axis.
        """
        return (Gather(perm.index(self.axis)), (perm, None)) if sig.input(1).rank == 1 else None

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a gather kernel that uses the same indices for all elements before the axis."""
        walk = AxisWalk.of(node.input(0).type.shape, self.axis)
        _emit_gather(node, builder, walk.outer_size, (walk.axis_size,), walk.inner_size, shared=True)


class GatherND(IndexedMovement):
    """y[b, j] = x[b, index[b, j, 0], index[b, j, 1], …], with b for the first `batch` axes."""

    mnemonic: ClassVar[str] = "gather_nd"
    batch: int = 0

    def _depths(self, x: TensorType, index: TensorType) -> Shape:
        """Sizes of the axes that are indexed."""
        return x.shape[self.batch : self.batch + index.shape[-1]]

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: the axes of the indices without the last one, then x's axes that stay.

        The last axis of the indices addresses x's axes behind the batch; the axes after these stay.
        """
        x, index = required(inputs)
        depths, batch = self._depths(x, index), self.batch
        fits = 0 <= batch < index.rank and x.shape[:batch] == index.shape[:batch] and len(depths) > 0
        if not fits or len(depths) != index.shape[-1]:
            shapes = f"{x.shape}, {index.shape}, {batch} batch axes"
            raise ModelError("gather_nd: indices must fit the tensor", shapes, "repair the model")
        require_elements(self.name, math.prod(depths), index)
        return (x.with_shape((*index.shape[:-1], *x.shape[batch + len(depths) :])),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy, by gathering contiguous runs of x at row-major positions."""
        x, index = arrays
        depths = self._depths(sig.input(0), sig.input(1))
        outer = math.prod(x.shape[: self.batch])
        flat = flat_positions(index, depths).reshape(outer, -1)
        runs = x.reshape(outer, math.prod(depths), -1)
        return (runs[np.arange(outer)[:, None], flat].reshape(sig.output.shape),)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a gather kernel that has separate indices for each batch element."""
        x = node.input(0).type
        depths = self._depths(x, node.input(1).type)
        run = math.prod(x.shape[self.batch + len(depths) :])
        _emit_gather(node, builder, math.prod(x.shape[: self.batch]), depths, run, shared=False)


def flat_positions(index: Array, depths: Shape) -> Array:
    """Return the row-major positions that the last axis of `index` describes, without that axis.

    `depths` are the sizes of the indexed axes.
    """
    strides = dense_strides(depths)
    parts = [positions(index[..., d], depth) * strides[d] for d, depth in enumerate(depths)]
    total: Array = np.sum(parts, axis=0)
    return total


class GatherElements(Permutable, IndexedMovement):
    """y[o, k, i] = x[o, index[o, k, i], i]; x and the indices have equal shapes except along `axis`."""

    mnemonic: ClassVar[str] = "gather_elements"
    axis: int = 0

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: the shape of the indices with the element type of x."""
        x, index = required(inputs)
        rests = [t.shape[: self.axis] + t.shape[self.axis + 1 :] for t in (x, index)]
        if x.rank != index.rank or rests[0] != rests[1]:
            shapes = f"{x.shape}, {index.shape}"
            raise ModelError("gather_elements: indices must fit the tensor", shapes, "repair the model")
        require_elements(self.name, x.shape[self.axis], index)
        return (x.with_shape(index.shape, x.layout),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output by numpy.take_along_axis."""
        x, index = arrays
        return (np.take_along_axis(x, positions(index, x.shape[self.axis]), self.axis),)

    def permuted(self, sig: Signature, perm: Permutation) -> Permuted | None:
        """Return the operator that computes the output transposed by `perm`, and the permutations of x and indices.

        The result always exists: the axis moves with the transposition.
        """
        return GatherElements(perm.index(self.axis)), (perm, perm)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that gathers element by element."""
        x, index = node.input(0), node.input(1)
        call = Call(
            GATHER_ELEMENTS,
            builder.operands(node, "x", "index"),
            [AxisWalk.of(x.type.shape, self.axis), IndexCount(num_indices=index.type.shape[self.axis])],
            variant=f"{x.type.dtype.tag}_{index.type.dtype.tag}",
        )
        builder.call(node, call)


class ReverseSequence(IndexedMovement):
    """y[t, b] = x[n − 1 − t, b] for t < n = length[b], else x[t, b]: the start of each sequence is reversed.

    The lengths are input 1.

    Attributes:
        times: Axis of the time t, 0 or 1; the other of these axes is that of the sequences b.
    """

    mnemonic: ClassVar[str] = "reverse_sequence"
    times: int = 0

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: that of the input."""
        x, length = required(inputs)
        if x.rank < 2 or length.shape != (x.shape[1 - self.times],):
            shapes = f"{x.shape}, {length.shape}"
            raise ModelError("reverse_sequence: there must be one length per batch", shapes, "repair the model")
        return (x,)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy, by reversing one sequence of the batch after the other."""
        x = np.moveaxis(arrays[0], self.times, 0)
        y = x.copy()
        for batch, length in enumerate(np.clip(arrays[1].astype(np.int64), 0, len(x))):
            y[:length, batch] = x[:length, batch][::-1]
        return (np.moveaxis(y, 0, self.times),)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that moves contiguous runs of the axes behind time and batch."""
        x = node.input(0).type
        run = math.prod(x.shape[2:])
        strides = (x.shape[1] * run, run)
        params = ReverseParams(
            axis_size=x.shape[self.times],
            batch=x.shape[1 - self.times],
            axis_stride=strides[self.times],
            batch_stride=strides[1 - self.times],
            run_size=run,
        )
        operands = builder.operands(node, "x", "length")
        builder.call(node, Call(REVERSE_SEQUENCE, operands, [params], variant=x.dtype.tag))


class SliceAt(Operator):
    """A slice at run-time positions: y[i] = x[starts[n] + i·steps[n]] on axis axes[n].

    Starts, axes and steps are inputs.

    Attributes:
        sizes: Shape of the result.
    """

    mnemonic: ClassVar[str] = "slice_at"
    sizes: Shape = ()

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: the shape `sizes` with the element type of x."""
        x, *rows = inputs
        assert x is not None
        small = len(self.sizes) == x.rank and all(n <= size for n, size in zip(self.sizes, x.shape, strict=True))
        if not small or len({t.shape for t in rows if t is not None}) != 1:
            shapes = f"{x.shape} to {self.sizes}, {', '.join(str(t.shape) for t in rows if t is not None)} parameters"
            raise ModelError("slice: the result must fit into the tensor", shapes, "repair the model")
        return (TensorType(self.sizes, x.dtype),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the slice by numpy indexing with ranges that are clamped to the tensor."""
        x, starts, axes, steps = arrays
        index = [np.arange(size) for size in self.sizes]
        for start, axis, step in zip(
            starts.reshape(-1), positions(axes.reshape(-1), x.ndim), steps.reshape(-1), strict=True
        ):
            depth = x.shape[axis]
            walk = np.arange(self.sizes[axis]) * int(np.clip(int(step), -depth, depth))
            index[axis] = np.clip(int(positions(start, depth)) + walk, 0, depth - 1)
        return (x[np.ix_(*index)],)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to nested loops over all axes."""
        x = node.input(0).type
        axes = SlicedAxes(
            size=numbered("size", x.shape),
            stride=numbered("stride", dense_strides(x.shape)),
            count=numbered("count", self.sizes),
        )
        operands = builder.operands(node, "x", "starts", "axes", "steps")
        params = [SliceCount(count=node.input(1).type.count), axes]
        options = SliceOptions(rank=x.rank)
        builder.call(node, Call(SLICE_AT, operands, params, [options], variant=f"{x.dtype.tag}_{x.rank}d"))


# --------------------------------------------------------------------------------------------------- import


def emit_taken(node: OnnxNode, x: Value, axis: int, indices: Value) -> Value:
    """Add a node that takes entries of x along an axis, and return its output.

    The node is a Slice if the indices are constant and evenly spaced, else a Gather.

    Args:
        node: Node that is imported.
        x: Tensor to take from.
        axis: Axis of the indices.
        indices: The indices.
    """
    indices = checked_indices(node, indices, x.type.shape[axis : axis + 1])
    flat = [] if indices.data is None else [int(i) for i in indices.data.reshape(-1)]
    step = flat[1] - flat[0] if len(flat) > 1 else 1
    if not flat or step == 0 or any(b - a != step for a, b in pairwise(flat)):
        return node.emit(Gather(axis), x, indices)
    starts, sizes, steps = [0] * x.type.rank, list(x.type.shape), [1] * x.type.rank
    starts[axis], sizes[axis], steps[axis] = flat[0], len(flat), step
    part = node.emit(Slice(tuple(starts), tuple(sizes), tuple(steps)), x, suffix="part")
    shape = (*x.type.shape[:axis], *indices.type.shape, *x.type.shape[axis + 1 :])
    return node.emit(Reshape(shape), part)


@onnx_operator("Gather", kernels=("gather", "copy"), keeps_halves=True)
def _import_gather(node: OnnxNode) -> list[Value]:
    x = node.input(0)
    return [emit_taken(node, x, normalize_axis(node, node.attr("axis", 0), x.type.rank), require_integers(node, 1))]


@onnx_operator("GatherND", kernels=("gather",), keeps_halves=True)
def _import_gather_nd(node: OnnxNode) -> list[Value]:
    x, indices, batch = node.input(0), require_integers(node, 1), int(node.attr("batch_dims", 0))
    depths = x.type.shape[batch : batch + indices.type.shape[-1]] if batch >= 0 else ()
    if len(depths) == indices.type.shape[-1]:
        indices = checked_indices(node, indices, depths)
    return [node.emit(GatherND(batch), x, indices)]


@onnx_operator("GatherElements", kernels=("gather_elements",), keeps_halves=True)
def _import_gather_elements(node: OnnxNode) -> list[Value]:
    """Import GatherElements. The indices may be shorter than x on any axis; the rest of x is not read."""
    x, indices = node.input(0), require_integers(node, 1)
    axis = normalize_axis(node, node.attr("axis", 0), x.type.rank)
    indices = checked_indices(node, indices, x.type.shape[axis : axis + 1])
    if indices.type.rank != x.type.rank:
        ranks = f"{indices.type.rank} axes, the data has {x.type.rank}"
        raise Refusal("GatherElements: the indices must have as many axes as the data", ranks, "repair the model")
    pairs = enumerate(zip(x.type.shape, indices.type.shape, strict=True))
    sizes = tuple(size if a == axis else min(size, index_size) for a, (size, index_size) in pairs)
    if sizes != x.type.shape:
        x = node.emit(Slice((0,) * len(sizes), sizes, (1,) * len(sizes)), x, suffix="part")
    return [node.emit(GatherElements(axis), x, indices)]


@onnx_operator("ReverseSequence", kernels=("reverse_sequence",), keeps_halves=True)
def _import_reverse_sequence(node: OnnxNode) -> list[Value]:
    batch, times = node.attr("batch_axis", 1), node.attr("time_axis", 0)
    if {batch, times} != {0, 1}:
        axes = f"batch_axis {batch}, time_axis {times}"
        raise Refusal("ReverseSequence: the axes must be 0 and 1", axes, "transpose before it")
    x, lens = node.input(0), require_integers(node, 1)
    if lens.data is not None and (lens.data == x.type.shape[times]).all():
        return [node.emit(reversed_axis(x.type.shape, times), x)]
    return [node.emit(ReverseSequence(times), x, lens)]


@onnx_operator(
    "Slice",
    kernels=("move", "copy", "slice_at"),
    limits="computed starts, axes and steps need a declared output shape",
    keeps_halves=True,
)
def _import_slice(node: OnnxNode) -> list[Value]:
    x = node.input(0)
    decided = decided_shape(node, 1, 2, 3, 4)
    if decided is not None:
        return [_slice_at(node, x, decided)]
    shape = x.type.shape
    starts, ends = node.ints("starts", 1) or [], node.ints("ends", 2) or []
    declared_axes, steps = node.ints("axes", 3), node.ints("steps", 4) or [1] * len(starts)
    axes = normalize_axes(node, range(len(starts)) if declared_axes is None else declared_axes, len(shape))
    first, sizes, walk = [0] * len(shape), list(shape), [1] * len(shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        indices = range(shape[axis])[slice(start, end, step)]
        first[axis], sizes[axis], walk[axis] = indices.start, len(indices), indices.step
    return [node.emit(Slice(tuple(first), tuple(sizes), tuple(walk)), x)]


def _slice_at(node: OnnxNode, x: Value, shape: Shape) -> Value:
    """Return a slice whose position is computed and whose shape is declared."""
    starts = require_integers(node, 1)
    count = starts.type.count
    node.require(count <= x.type.rank, "every axis must be named once", f"{count} starts for rank {x.type.rank}")
    axes = node.input(3) if node.has(3) else node.constant("axes", np.arange(count))
    steps = node.input(4) if node.has(4) else node.constant("steps", np.ones(count, np.int64))
    if axes.data is not None:
        normalize_axes(node, axes.data.reshape(-1).tolist(), x.type.rank)
    return node.emit(SliceAt(shape), x, starts, axes, steps)
