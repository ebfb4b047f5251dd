# SPDX-License-Identifier: Apache-2.0
"""Operators that move elements without looking at them: reshape, transpose, slice, concat, pad, expand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import numpy as np
from onnx import helper

from mcugen.errors import ModelError
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Channels, IntegerForm, Operator, Permutation, RowForm, RowWindow, Signature
from mcugen.hir.types import Array, DType, Layout, QuantParams, Shape, TensorType
from mcugen.kernels import cmsis
from mcugen.limits import check_size
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Access, Buffer, Param, real_param
from mcugen.lir.traversal import Traversal, nested, overlap
from mcugen.numerics.fixedpoint import quantize, same_codes
from mcugen.ops.onnx_node import NO_CODE, OnnxNode, Refusal, onnx_operator

Permuted = tuple[Operator, tuple[Permutation | None, ...]]


def compose(first: Permutation, then: Permutation) -> Permutation:
    """The permutation that equals transposing by `first`, then by `then`."""
    return tuple(first[axis] for axis in then)


def inverse(perm: Permutation) -> Permutation:
    """The permutation that undoes `perm`."""
    return tuple(int(i) for i in np.argsort(perm))


@dataclass(frozen=True)
class Movement(Operator):
    """Base: one output with the element type and quantization of the first input."""

    moves_data: ClassVar[bool] = True

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """The same on integers, where nothing changes the scale."""
        same = all(t is None or same_codes(t, sig.output) for t in sig.inputs)
        return (self, inputs) if same else None


# -------------------------------------------------------------------------------------------------- reshape


@dataclass(frozen=True)
class Reshape(Movement):
    """The same elements in row-major order under another shape: free."""

    mnemonic: ClassVar[str] = "reshape"
    shape: Shape = ()

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Equal element counts."""
        (x,) = inputs
        assert x is not None
        if x.count != math.prod(self.shape) or min(self.shape, default=0) < 0:
            raise ModelError("reshape: element counts must be equal", f"{x.shape} to {self.shape}", "repair the model")
        return (x.with_shape(self.shape).with_quant(self._quant(x)),)

    def _quant(self, x: TensorType) -> QuantParams | None:
        """Per-channel parameters follow their axis; None if the new shape has no such axis."""
        if x.quant is None or x.quant.axis is None:
            return x.quant
        before, size = math.prod(x.shape[: x.quant.axis]), x.shape[x.quant.axis]
        axes = (i for i, s in enumerate(self.shape) if s == size and math.prod(self.shape[:i]) == before)
        axis = next(axes, None)
        return None if axis is None else replace(x.quant, axis=axis)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """numpy.reshape."""
        return (arrays[0].reshape(self.shape),)

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Drops a reshape to the same shape; merges two in a row."""
        source = node.input(0)
        if source.type.shape == self.shape:
            return source
        if source.producer is not None and isinstance(source.producer.op, Reshape):
            return graph.add(self, [source.producer.input(0)], node.origin, before=node).output
        return None

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Where the second axis of the result is the first one of the input that is not of size 1."""
        x, y = sig.input(0).shape, self.shape
        axis = next((a for a, size in enumerate(x) if size > 1), 0)
        if len(y) < 3 or y[0] != 1 or y[1] != x[axis]:
            return None
        return RowForm(replace(self, shape=(1, 1, *y[2:])), (RowWindow(axis),))

    def channels(self, sig: Signature) -> Channels | None:
        """Those of the input, perhaps several times in a row."""
        x = sig.input(0).shape
        if not x or not self.shape or not x[-1] or self.shape[-1] % x[-1]:
            return None
        return Channels((np.arange(self.shape[-1]) % x[-1],), lambda count: Reshape((*self.shape[:-1], count)))

    def onnx_form(self, sig: Signature) -> tuple[str, Mapping[str, object], Sequence[Array]] | None:
        """Reshape to these sizes."""
        return "Reshape", {}, [np.asarray(self.shape, np.int64)]

    def lower(self, node: Node, builder: Builder) -> None:
        """No instruction: the same buffer."""
        builder.alias(node.output, node.input(0))


def reshaped(node: OnnxNode, value: Value, shape: Shape, suffix: str = "") -> Value:
    """`value` in another shape; constants are reshaped at once."""
    if value.type.count != math.prod(shape):
        found = f"{value.type.shape} of '{value.name}' for {shape}"
        raise Refusal(f"{node.op_type}: an input must have another number of elements", found, "repair the model")
    if value.data is not None and value.type.quant is None:
        name = f"{node.outputs[0]}.{value.name}.reshaped"
        return node.graph.constant(name, value.data.reshape(shape), dtype=value.type.dtype)
    return node.emit(Reshape(shape), value, suffix=suffix or "reshaped")


# ------------------------------------------------------------------------------------------------ transpose


def turns_matrices(node: Node) -> bool:
    """two axes change places"""
    return _matrices(node) is not None


def turns_few_planes(node: Node) -> bool:
    """a few planes, turned in place"""
    planes = Planes.of(node)
    return planes is not None and 4 * planes.scratch(node.output.type.dtype) <= node.output.type.nbytes


def _matrices(node: Node) -> tuple[int, int, int] | None:
    """[batch, columns, rows] of the output from [batch, rows, columns], or None if it is another transposition."""
    x, shape = node.input(0).type.shape, node.output.type.shape
    source = [dense_strides(x)[axis] for axis in cast("Transpose", node.op).perm]
    dims = merge_walks(shape, source, dense_strides(shape))
    if not 2 <= len(dims) <= 3:
        return None
    (columns, *column_strides), (rows, *row_strides) = dims[-2:]
    if column_strides != [1, rows] or row_strides != [columns, 1]:
        return None
    return math.prod(size for size, _, _ in dims[:-2]), columns, rows


WRITTEN_OUT = 4
"""Planes that are interleaved by as many named pointers."""


def strided_elements(node: Node) -> int:
    """How many elements are not interleaved by named pointers, for the cost."""
    matrices = _matrices(node)
    assert matrices is not None
    return 0 if matrices[2] <= WRITTEN_OUT else node.output.type.count


def elements_of_many_planes(node: Node) -> int:
    """How many elements are not interleaved by named pointers, for the cost."""
    planes = Planes.of(node)
    assert planes is not None
    return 0 if planes.planes <= WRITTEN_OUT else node.output.type.count


def emit_transpose(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Element by element, in the order of the output."""
    matrices = _matrices(node)
    assert matrices is not None
    batch, columns, rows = matrices
    dtype = node.output.type.dtype
    few = 1 < rows <= WRITTEN_OUT
    params: dict[str, Param] = {"batch": batch, "columns": columns}
    if not few:
        params["rows"] = rows
    walks = (np.arange(batch) * rows * columns, np.arange(columns), np.arange(rows) * columns)
    builder.emit(
        node,
        kernel,
        [("x", Access.IN, builder.buffer(node.input(0))), ("y", Access.OUT, builder.buffer(node.output))],
        params,
        code={"x_t": dtype.c, "inner": rows if few else 0},
        overlaps=overlap(node.input(0).type, node.output.type, Traversal.runs(nested(*walks), 1)),
        variant=f"b{8 * dtype.nbytes}" + (f"_{rows}" if few else ""),
    )


@dataclass(frozen=True)
class Planes:
    """Images of few planes that are turned in place: of each plane, `lines` runs of `width` elements.

    `inverse`: pixels become planes.
    """

    batch: int
    planes: int
    lines: int
    width: int
    inverse: bool

    SHORTEST: ClassVar[int] = 64
    """Bytes of a run at least: it takes some 60 instructions besides."""

    @staticmethod
    def of(node: Node) -> Planes | None:
        """As the transposition has them, with runs of words if possible; None where it turns no matrices."""
        matrices = _matrices(node)
        if matrices is None:
            return None
        batch, columns, rows = matrices
        planes, pixels = min(rows, columns), max(rows, columns)
        nbytes = node.output.type.dtype.nbytes
        widths = [n for n in range(-(-Planes.SHORTEST // nbytes), pixels // 4 + 1) if pixels % n == 0] or [pixels]
        width = next((n for n in widths if n * nbytes % 4 == 0), widths[0])
        return Planes(batch, planes, pixels // width, width, columns < rows)

    @property
    def runs(self) -> int:
        """Of an image."""
        return self.planes * self.lines

    def scratch(self, dtype: DType) -> int:
        """Bytes of a run of all planes, and of a bit for each run."""
        return self.planes * self.width * dtype.nbytes + -(-self.runs // 8)


def emit_in_place(node: Node, builder: Builder, kernel: Kernel) -> None:
    """First runs change places, then pixels do within one of them at a time; or, to planes, the other way round."""
    planes, dtype = Planes.of(node), node.output.type.dtype
    assert planes is not None
    few = 1 < planes.planes <= WRITTEN_OUT
    name, line = node.output.name, planes.planes * planes.width
    builder.emit(
        node,
        kernel,
        [
            ("x", Access.IN, builder.buffer(node.input(0))),
            ("y", Access.OUT, builder.buffer(node.output)),
            ("line", Access.SCRATCH, builder.scratch(f"{name}.line", dtype, line)),
            ("done", Access.SCRATCH, builder.scratch(f"{name}.done", DType.UINT8, -(-planes.runs // 8))),
        ],
        {name: getattr(planes, name) for name in ("batch", "planes", "lines", "width")},
        code={"x_t": dtype.c, "inner": planes.planes if few else 0, "inverse": planes.inverse},
        inplace=[("y", "x")],
        variant=f"b{8 * dtype.nbytes}" + (f"_{planes.planes}" if few else "") + "_inverse" * planes.inverse,
    )


@dataclass(frozen=True)
class Transpose(Movement):
    """y[i_perm[0], i_perm[1], …] = x[i_0, i_1, …] (ONNX Transpose)."""

    mnemonic: ClassVar[str] = "transpose"
    perm: Permutation = ()
    kernels: ClassVar[tuple[Kernel, ...]] = (
        Kernel("transpose", when=(turns_matrices,), emit=emit_transpose, extra=strided_elements),
        Kernel("transpose_inplace", when=(turns_few_planes,), emit=emit_in_place, extra=elements_of_many_planes),
    )
    library: ClassVar[tuple[Kernel, ...]] = cmsis.TRANSPOSE

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Permuted shape; per-channel axes follow."""
        (x,) = inputs
        assert x is not None
        if sorted(self.perm) != list(range(x.rank)):
            raise ModelError("transpose: perm must name every axis once", f"{self.perm} of rank {x.rank}", "repair it")
        quant = x.quant
        if quant is not None and quant.axis is not None:
            quant = replace(quant, axis=self.perm.index(quant.axis))
        shape = tuple(x.shape[axis] for axis in self.perm)
        return (replace(x, shape=shape, quant=quant, layout=_turned(x.layout, self.perm)),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """numpy.transpose."""
        return (arrays[0].transpose(self.perm),)

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Drops identities, merges two in a row, and becomes a reshape when only axes of length 1 move."""
        source = node.input(0)
        if self.perm == tuple(range(len(self.perm))):
            return source
        real = [axis for axis in self.perm if source.type.shape[axis] != 1]
        if real == sorted(real):
            if source.type.shape == node.output.type.shape:  # then it is of either layout
                source.type = source.type.with_shape(source.type.shape)
                return source
            return graph.add(Reshape(node.output.type.shape), [source], node.origin, before=node).output
        if source.producer is not None and isinstance(source.producer.op, Transpose):
            merged = Transpose(compose(source.producer.op.perm, self.perm))
            return graph.add(merged, [source.producer.input(0)], node.origin, before=node).output
        return None

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Rows of one image: of the axis that becomes the second."""
        is_image = len(self.perm) > 2 and self.perm[0] == 0 and sig.output.shape[0] == 1
        return RowForm(self, (RowWindow(self.perm[1]),)) if is_image else None

    def onnx_form(self, sig: Signature) -> tuple[str, Mapping[str, object], Sequence[Array]] | None:
        """Transpose."""
        return "Transpose", {"perm": list(self.perm)}, ()

    def lower(self, node: Node, builder: Builder) -> None:
        """Two merged axes that change places, or a strided copy."""
        if not builder.any_size and turns_matrices(node):
            builder.lower(self.kernels, node)
        else:
            source = [dense_strides(node.input(0).type.shape)[axis] for axis in self.perm]
            emit_copy(node, builder, 0, node.output.type.shape, source, 0)


def _turned(layout: Layout, perm: Permutation) -> Layout:
    rank = len(perm)
    if layout is Layout.CHANNELS_FIRST and perm == to_channels_last(rank):
        return Layout.CHANNELS_LAST
    if layout is Layout.CHANNELS_LAST and perm == inverse(to_channels_last(rank)):
        return Layout.CHANNELS_FIRST
    return Layout.NONE


def to_channels_last(rank: int) -> Permutation:
    """NCHW → NHWC for any number of spatial axes."""
    return (0, *range(2, rank), 1)


def dense_strides(shape: Shape) -> list[int]:
    """Row-major strides in elements."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def axis_walk(shape: Shape, axis: int) -> dict[str, Param]:
    """Kernel parameters to walk one axis: `outer` blocks of `depth` elements that lie `inner` apart."""
    return {"outer": math.prod(shape[:axis]), "depth": shape[axis], "inner": math.prod(shape[axis + 1 :])}


# -------------------------------------------------------------------------------------------- strided copies


def emit_copy(
    node: Node,
    builder: Builder,
    index: int,
    shape: Shape,
    source: Sequence[int],
    source_offset: int,
    target: Sequence[int] | None = None,
    target_offset: int = 0,
    access: Access = Access.OUT,
) -> None:
    """y[target_offset + Σ i·target] = x[source_offset + Σ i·source] for all i in `shape`; strides in elements.

    One run is a move: no call, where both can lie in one place.
    """
    target = dense_strides(shape) if target is None else target
    dims = merge_walks(shape, source, target)
    x, y = node.input(index).type, node.output.type
    contiguous = dims[-1][1] == dims[-1][2] == 1
    outer = dims[:-1] if contiguous else dims
    x_buffer, y_buffer = builder.buffer(node.input(index)), builder.buffer(node.output)
    if contiguous and not outer and not builder.any_size:
        at = {"x_at": source_offset * x.dtype.nbytes, "y_at": target_offset * y.dtype.nbytes}
        builder.move(node, x_buffer, y_buffer, "", **at, nbytes=math.prod(shape) * y.dtype.nbytes)
        return
    params: dict[str, Param] = {"x_offset": source_offset, "y_offset": target_offset}
    for axis, (size, xs, ys) in enumerate(outer):
        params |= {f"d{axis}": size, f"x_s{axis}": xs, f"y_s{axis}": ys}
    if contiguous:
        params["run"] = dims[-1][0] * y.dtype.nbytes
    reads = source_offset + nested(*(np.arange(size) * stride for size, stride, _ in outer))
    order = Traversal.rereading(reads, dims[-1][0]) if contiguous else Traversal.runs(reads, 1)
    from_start = access is Access.OUT and not target_offset and list(target) == dense_strides(shape)
    builder.emit(
        node,
        "copy",
        [("x", Access.IN, x_buffer), ("y", access, y_buffer)],
        params,
        overlaps=overlap(x, y, order) if from_start and not node.input(index).is_constant else [],
        code={"rank": len(outer), "contiguous": contiguous, "x_t": x.dtype.c},
        variant=f"{'runs' if contiguous else 'b' + str(8 * x.dtype.nbytes)}_{len(outer)}d",
    )


def merge_walks(shape: Shape, source: Sequence[int], target: Sequence[int]) -> list[tuple[int, int, int]]:
    """(size, source stride, target stride) per dimension, neighbours merged where one walk covers both."""
    dims: list[tuple[int, int, int]] = []
    for size, xs, ys in zip(shape, source, target, strict=True):
        if size == 1:
            continue
        if dims and dims[-1][1] == size * xs and dims[-1][2] == size * ys:
            dims[-1] = (dims[-1][0] * size, xs, ys)
        else:
            dims.append((size, xs, ys))
    return dims or [(1, 1, 1)]


@dataclass(frozen=True)
class Slice(Movement):
    """y[i] = x[start + i·step] per axis; steps may be negative."""

    mnemonic: ClassVar[str] = "slice"
    starts: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """The sizes; per-channel axes must be whole."""
        (x,) = inputs
        assert x is not None
        return (x.with_shape(self.sizes, x.layout),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Indexing by ranges."""
        index = [s + np.arange(n) * k for s, n, k in zip(self.starts, self.sizes, self.steps, strict=True)]
        return (arrays[0][np.ix_(*index)],)

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """The whole tensor."""
        whole = self.sizes == node.input(0).type.shape and all(s >= 0 for s in self.steps)
        return node.input(0) if whole else None

    def permuted(self, sig: Signature, perm: Permutation) -> Permuted | None:
        """Axes change places."""
        turned = [tuple(row[a] for a in perm) for row in (self.starts, self.sizes, self.steps)]
        return Slice(*turned), (perm,)

    def channels(self, sig: Signature) -> Channels | None:
        """All, of part of the positions."""
        count = sig.input(0).shape[-1:]
        if self.sizes[-1:] != count or self.steps[-1:] != (1,):
            return None
        return Channels((np.arange(*count),), lambda count: replace(self, sizes=(*self.sizes[:-1], count)))

    def lower(self, node: Node, builder: Builder) -> None:
        """A strided copy."""
        strides = dense_strides(node.input(0).type.shape)
        offset = sum(s * stride for s, stride in zip(self.starts, strides, strict=True))
        walk = [k * stride for k, stride in zip(self.steps, strides, strict=True)]
        emit_copy(node, builder, 0, self.sizes, walk, offset)


@dataclass(frozen=True)
class Expand(Movement):
    """Broadcasting to `shape` (of the input's rank)."""

    mnemonic: ClassVar[str] = "expand"
    shape: Shape = ()

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """The shape, to which sizes other than 1 must be equal."""
        (x,) = inputs
        assert x is not None
        fits = all(n >= 0 and size in (1, n) for size, n in zip(x.shape, self.shape, strict=True))
        if not fits:
            raise ModelError("expand: shapes must broadcast", f"{x.shape} to {self.shape}", "repair the model")
        return (x.with_shape(self.shape, x.layout),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """numpy.broadcast_to."""
        return (np.broadcast_to(arrays[0], self.shape),)

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """To the same shape."""
        return node.input(0) if node.input(0).type.shape == self.shape else None

    def permuted(self, sig: Signature, perm: Permutation) -> Permuted | None:
        """Axes change places."""
        return Expand(tuple(self.shape[a] for a in perm)), (perm,)

    def lower(self, node: Node, builder: Builder) -> None:
        """A copy with stride 0 where broadcast."""
        x = node.input(0).type.shape
        walk = [0 if size == 1 else stride for size, stride in zip(x, dense_strides(x), strict=True)]
        emit_copy(node, builder, 0, self.shape, walk, 0)


@dataclass(frozen=True)
class Concat(Movement):
    """Joins tensors along one axis."""

    mnemonic: ClassVar[str] = "concat"
    library: ClassVar[tuple[Kernel, ...]] = cmsis.CONCAT
    axis: int = 0

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Equal shapes but for the axis."""
        types = [t for t in inputs if t is not None]
        rests = {(t.dtype, t.shape[: self.axis], t.shape[self.axis + 1 :]) for t in types}
        if len(rests) != 1:
            found = ", ".join(str(t.shape) for t in types)
            raise ModelError(f"concat: shapes must agree but on axis {self.axis}", found, "repair the model")
        shape = list(types[0].shape)
        shape[self.axis] = sum(t.shape[self.axis] for t in types)
        return (types[0].with_shape(tuple(shape), types[0].layout),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """numpy.concatenate."""
        return (np.concatenate(arrays, self.axis),)

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """A single part."""
        return node.input(0) if len(node.inputs) == 1 else None

    def channels(self, sig: Signature) -> Channels | None:
        """Those of the parts."""
        all_of, last = np.arange(sig.output.shape[-1]), sig.output.rank - 1
        if self.axis != last:
            return Channels((all_of,) * len(sig.inputs), lambda _: self)
        ends = np.cumsum([t.shape[last] for t in sig.inputs if t is not None])
        starts = (0, *ends[:-1])
        sources = [np.where((s <= all_of) & (all_of < e), all_of - s, -1) for s, e in zip(starts, ends, strict=True)]
        return Channels(sources, lambda _: self)

    def permuted(self, sig: Signature, perm: Permutation) -> Permuted | None:
        """The axis follows."""
        return Concat(perm.index(self.axis)), (perm,) * len(sig.inputs)

    def lower(self, node: Node, builder: Builder) -> None:
        """One strided copy a part."""
        target = dense_strides(node.output.type.shape)
        offset = 0
        for index, value in enumerate(node.inputs):
            assert value is not None
            shape = value.type.shape
            access = Access.INOUT if index else Access.OUT
            emit_copy(node, builder, index, shape, dense_strides(shape), 0, target, offset, access)
            offset += shape[self.axis] * target[self.axis]


@dataclass(frozen=True)
class Pad(Movement):
    """Surrounds a tensor with a constant; `value` is real, in the tensor's own unit."""

    mnemonic: ClassVar[str] = "pad"
    library: ClassVar[tuple[Kernel, ...]] = cmsis.PAD
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    value: float = 0.0

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Every axis grows."""
        (x,) = inputs
        assert x is not None
        shape = tuple(b + n + a for b, n, a in zip(self.before, x.shape, self.after, strict=True))
        return (x.with_shape(shape, x.layout),)

    def stored(self, x: TensorType) -> Array:
        """The constant as an element of a tensor's type."""
        if x.quant is not None:
            return quantize(np.asarray([self.value]), x.quant, x.dtype)
        return np.asarray([self.value]).astype(x.dtype.numpy)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """numpy.pad with a constant."""
        widths = list(zip(self.before, self.after, strict=True))
        return (np.pad(arrays[0], widths, constant_values=self.stored(sig.input(0))[0]),)

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Nothing to add."""
        return None if any(self.before + self.after) else node.input(0)

    def permuted(self, sig: Signature, perm: Permutation) -> Permuted | None:
        """Axes change places."""
        rows = [tuple(row[a] for a in perm) for row in (self.before, self.after)]
        return Pad(rows[0], rows[1], self.value), (perm,)

    def channels(self, sig: Signature) -> Channels | None:
        """Around positions, not channels."""
        is_around = any(self.before[-1:] + self.after[-1:]) or not sig.output.rank
        return None if is_around else Channels((np.arange(sig.output.shape[-1]),), lambda _: self)

    def lower(self, node: Node, builder: Builder) -> None:
        """Fill, then a strided copy into the middle."""
        x, y = node.input(0).type, node.output.type
        emit_fill(node, builder, builder.buffer(node.output), self.stored(x))
        target = dense_strides(y.shape)
        offset = sum(b * stride for b, stride in zip(self.before, target, strict=True))
        emit_copy(node, builder, 0, x.shape, dense_strides(x.shape), 0, target, offset, Access.INOUT)


def emit_fill(node: Node, builder: Builder, buffer: Buffer, value: Array) -> None:
    """Sets every element of `buffer` to `value` (one element of its type)."""
    dtype = DType.of(value)
    bits = value.view(np.uint16) if dtype.is_half else value
    number: Param = real_param(float(value[0]), dtype) if dtype.is_float else int(bits[0])
    builder.emit(
        node,
        "fill",
        [("y", Access.OUT, buffer)],
        {"count": buffer.count, "value": number},
        code={"ctype": dtype.c},
        variant=dtype.tag,
    )


# --------------------------------------------------------------------------------------------------- import


def normalize_axis(node: OnnxNode, axis: int, rank: int) -> int:
    """A non-negative axis; Refusal outside the rank."""
    if not -rank <= axis < rank:
        raise Refusal(
            f"{node.op_type}: the axis must be one of the tensor's",
            f"{axis} of rank {rank}",
            "repair the model",
        )
    return axis % rank


def normalize_axes(node: OnnxNode, axes: Sequence[int], rank: int) -> list[int]:
    """Non-negative axes in the given order; Refusal where one is outside the rank or named twice."""
    found = [normalize_axis(node, int(axis), rank) for axis in axes]
    if len(set(found)) != len(found):
        raise Refusal(f"{node.op_type}: every axis must be named once", f"{list(axes)}", "repair the model")
    return found


def decided_shape(node: OnnxNode, *indices: int) -> Shape | None:
    """The declared shape of the first output if one of these inputs, which decide it, is computed; else None."""
    computed = any(node.has(i) and not node.input(i).is_constant for i in indices)
    declared = node.declared[0] if computed and node.declared else None
    return None if declared is None or min(declared.shape, default=0) < 0 else declared.shape


@onnx_operator(
    "Reshape", kernels=(NO_CODE,), limits="a computed shape must be declared as the output's", keeps_halves=True
)
def _import_reshape(node: OnnxNode) -> list[Value]:
    x = node.input(0).type
    decided = decided_shape(node, 1)
    wanted = list(decided) if decided is not None else node.ints("shape", 1) or []
    if decided is None and not node.attr("allowzero", 0):
        wanted = [x.shape[i] if size == 0 and i < x.rank else size for i, size in enumerate(wanted)]
    if -1 in wanted:
        rest = math.prod(s for s in wanted if s != -1)
        wanted[wanted.index(-1)] = x.count // rest if rest else 0
    return [node.emit(Reshape(tuple(wanted)), node.input(0))]


@onnx_operator("Flatten", kernels=(NO_CODE,), keeps_halves=True)
def _import_flatten(node: OnnxNode) -> list[Value]:
    x = node.input(0).type
    axis = node.attr("axis", 1)
    axis = x.rank if axis == x.rank else normalize_axis(node, axis, x.rank)
    return [node.emit(Reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))), node.input(0))]


@onnx_operator("Squeeze", kernels=(NO_CODE,), limits="computed axes need a declared output shape", keeps_halves=True)
def _import_squeeze(node: OnnxNode) -> list[Value]:
    shape = decided_shape(node, 1)
    if shape is None:
        given, axes = node.input(0).type.shape, node.ints("axes", 1)
        if axes is None:
            axes = [i for i, size in enumerate(given) if size == 1]
        drop = normalize_axes(node, axes, len(given))
        shape = tuple(size for i, size in enumerate(given) if i not in drop)
    return [node.emit(Reshape(shape), node.input(0))]


@onnx_operator("Unsqueeze", kernels=(NO_CODE,), limits="computed axes need a declared output shape", keeps_halves=True)
def _import_unsqueeze(node: OnnxNode) -> list[Value]:
    shape = decided_shape(node, 1)
    if shape is None:
        sizes, axes = list(node.input(0).type.shape), node.ints("axes", 1) or []
        for axis in sorted(normalize_axes(node, axes, len(sizes) + len(axes))):
            sizes.insert(axis, 1)
        shape = tuple(sizes)
    return [node.emit(Reshape(shape), node.input(0))]


@onnx_operator("Transpose", kernels=("transpose", "transpose_inplace", "copy"), keeps_halves=True)
def _import_transpose(node: OnnxNode) -> list[Value]:
    rank = node.input(0).type.rank
    return [node.emit(Transpose(tuple(node.attr("perm", range(rank)[::-1]))), node.input(0))]


@onnx_operator("DepthToSpace", "SpaceToDepth", kernels=("copy",), keeps_halves=True)
def _import_blocks(node: OnnxNode) -> list[Value]:
    """Axes split, exchanged and joined. The channels of a block lie before those of the picture (DCR), or behind."""
    x, size = node.input(0), int(node.attr("blocksize", 0))
    if x.type.rank != 4:
        raise Refusal(f"{node.op_type}: the tensor must be a picture", f"shape {x.type.shape}", "repair the model")
    n, c, h, w = x.type.shape
    to_space = node.op_type == "DepthToSpace"
    if size < 1 or (c % size**2 if to_space else h % size or w % size):
        found = f"blocks of {size} in {x.type.shape}"
        raise Refusal(f"{node.op_type}: the tensor must hold whole blocks", found, "repair the model")
    behind = node.attr("mode", "DCR") == "CRD"
    if to_space:
        c //= size**2
        apart = (n, c, size, size, h, w) if behind else (n, size, size, c, h, w)
        order, shape = (0, 1, 4, 2, 5, 3) if behind else (0, 3, 4, 1, 5, 2), (n, c, h * size, w * size)
    else:
        apart = (n, c, h // size, size, w // size, size)
        order = (0, 1, 3, 5, 2, 4) if behind else (0, 3, 5, 1, 2, 4)
        shape = (n, c * size**2, h // size, w // size)
    blocks = node.emit(Transpose(order), node.emit(Reshape(apart), x, suffix="blocks"), suffix="turned")
    return [node.emit(Reshape(shape), blocks)]


@onnx_operator("Concat", kernels=("move", "copy"), keeps_halves=True)
def _import_concat(node: OnnxNode) -> list[Value]:
    parts = [node.input(i) for i in range(max(len(node.inputs), 1))]
    parts = [p for p in parts if p.type.count] or parts
    if len({p.type.rank for p in parts}) > 1:
        found = ", ".join(str(p.type.shape) for p in parts[:8])
        raise Refusal(f"{node.op_type}: what is joined must have as many axes", found, "repair the model")
    return [node.emit(Concat(normalize_axis(node, node.attr("axis", 1), parts[0].type.rank)), *parts)]


@onnx_operator(
    "Split", kernels=("move", "copy"), limits="computed sizes need declared output shapes", keeps_halves=True
)
def _import_split(node: OnnxNode) -> list[Value]:
    x = node.input(0)
    axis = normalize_axis(node, node.attr("axis", 0), x.type.rank)
    size, sizes = x.type.shape[axis], _split_sizes(node, axis)
    if len(sizes) != len(node.outputs) or sum(sizes) != size or min(sizes) < 0:
        raise Refusal("Split: the parts must sum up to the axis", f"{sizes} of {size}", "repair the model")
    results, start = [], 0
    for index, part in enumerate(sizes):
        starts, shape = [0] * x.type.rank, list(x.type.shape)
        starts[axis], shape[axis] = start, part
        op = Slice(tuple(starts), tuple(shape), (1,) * x.type.rank)
        results.append(node.emit(op, x, suffix=f"part{index}"))
        start += part
    return results


def _split_sizes(node: OnnxNode, axis: int) -> list[int]:
    """Given, declared, or equal but for the last."""
    known = [t.shape[axis] for t in node.declared if t is not None and len(t.shape) > axis]
    if decided_shape(node, 1) is not None and len(known) == len(node.outputs):
        return known
    count, size = len(node.outputs), node.input(0).type.shape[axis]
    each = -(-size // count)
    return node.ints("split", 1) or [min(each, size - each * i) for i in range(count)]


@onnx_operator(
    "Expand", kernels=("copy",), limits="a computed shape must be declared as the output's", keeps_halves=True
)
def _import_expand(node: OnnxNode) -> list[Value]:
    wanted = decided_shape(node, 1)
    if wanted is None:
        wanted = tuple(node.ints("shape", 1) or ())
    if any(size < 0 for size in wanted):
        raise Refusal("Expand: sizes must not be negative", str(wanted), "repair the model")
    check_size("Expand", node.outputs[0], math.prod(wanted))
    return [emit_expanded(node, node.input(0), np.broadcast_shapes(node.input(0).type.shape, wanted))]


def emit_expanded(node: OnnxNode, x: Value, shape: Shape) -> Value:
    """Adds the broadcast of `x` to `shape`, to which it must fit."""
    return node.emit(Expand(tuple(shape)), reshaped(node, x, (1,) * (len(shape) - x.type.rank) + x.type.shape))


@onnx_operator("Tile", kernels=("copy",), limits="computed repeats need a declared output shape", keeps_halves=True)
def _import_tile(node: OnnxNode) -> list[Value]:
    """Every axis becomes (repeat, size): reshape, expand, reshape."""
    shape, decided = node.input(0).type.shape, decided_shape(node, 1)
    if decided is not None:
        repeats = [tiled // size if size else 1 for tiled, size in zip(decided, shape, strict=True)]
    else:
        repeats = node.ints("repeats", 1) or []
    apart = tuple(v for s in shape for v in (1, s))
    spread = tuple(v for s, r in zip(shape, repeats, strict=True) for v in (r, s))
    joined = tuple(s * r for s, r in zip(shape, repeats, strict=True))
    if decided is not None and decided != joined:
        found = f"{shape} to {decided}"
        raise Refusal("Tile: the declared shape must be a multiple of the input's", found, "repair the model")
    wide = node.emit(Expand(spread), reshaped(node, node.input(0), apart), suffix="spread")
    return [node.emit(Reshape(joined), wide)]


@onnx_operator("Identity", kernels=(NO_CODE,), keeps_halves=True)
def _import_identity(node: OnnxNode) -> list[Value]:
    return [node.input(0)]


@onnx_operator("Dropout", kernels=(NO_CODE,), limits="inference only", keeps_halves=True)
def _import_dropout(node: OnnxNode) -> list[Value]:
    """Nothing is dropped outside of training; the mask is all true."""
    x = node.input(0)
    training = node.has(2) and bool(np.any(node.const(2, "whether it is training")))
    if training and (not node.has(1) or node.const(1, "the ratio").any()):
        raise Refusal(
            "Dropout: the model must not be in training mode", "training_mode is true", "export for inference"
        )
    if len(node.outputs) == 1:
        return [x]
    kept = node.constant("kept", np.ones((1,) * x.type.rank, np.bool_))
    return [x, node.emit(Expand(x.type.shape), kept, suffix="mask")]


def onnx_dtype(node: OnnxNode, code: int) -> DType:
    """The element type of a number of ONNX's enumeration; Refusal where C has none."""
    try:
        return DType(helper.tensor_dtype_to_np_dtype(code).name)
    except (KeyError, ValueError) as error:
        rule = f"{node.op_type}: the target type must have a C counterpart"
        raise Refusal(rule, f"type {code} of ONNX", "use float32") from error
