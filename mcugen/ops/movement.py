# SPDX-License-Identifier: Apache-2.0
"""Operators that move elements without computing with them: reshape, transpose, slice, concat, pad, expand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import ClassVar

import numpy as np
from onnx import helper

from mcugen.core.errors import ModelError
from mcugen.core.limits import check_size
from mcugen.hir.crop import Box, Crop, broadcast_box, overlap_of, replaced, shape_of, shifted, whole
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import (
    Channels,
    ElementRun,
    IntegerForm,
    Operator,
    Partition,
    Permutation,
    RowForm,
    RowWindow,
    Shard,
    Signature,
    each_row,
    row_axis,
)
from mcugen.hir.traits import (
    Channelwise,
    Croppable,
    Expressible,
    Partitionable,
    Permutable,
    Quantizable,
    Rowwise,
    Simplifiable,
)
from mcugen.hir.types import Array, DType, Layout, QuantParams, Shape, TensorType, required
from mcugen.kernels.common.movement_specs import ConcatSpec, PadSpec
from mcugen.kernels.common.strided_loops import dense_strides
from mcugen.kernels.portable.movement import (
    TRANSPOSE,
    TRANSPOSE_INPLACE,
    CopyLoops,
    CopySide,
    TransposeSpec,
    emit_copy,
    emit_fill,
    transposes_matrices,
)
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import WORD, Access
from mcugen.lir.spec import HasKernels
from mcugen.numerics.fixedpoint import has_same_quantization, quantize
from mcugen.ops.onnx_node import NO_CODE_TEXT, OnnxNode, Refusal, onnx_operator

Permuted = tuple[Operator, tuple[Permutation | None, ...]]
"""An operator, and for each input the permutation to apply to it (None: none), as Permutable.permuted returns them."""


def compose(first: Permutation, then: Permutation) -> Permutation:
    """Return the permutation that equals transposing by `first`, then by `then`."""
    return tuple(first[axis] for axis in then)


def inverse(perm: Permutation) -> Permutation:
    """Return the permutation that undoes `perm`."""
    return tuple(int(i) for i in np.argsort(perm))


class Movement(Quantizable, Operator):
    """Base of data movements: one output with the element type and quantization of the first input."""

    moves_data: ClassVar[bool] = True

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return the operator itself, which also moves quantized elements; None if quantizations differ."""
        same = all(t is None or has_same_quantization(t, sig.output) for t in sig.inputs)
        return (self, inputs) if same else None


# -------------------------------------------------------------------------------------------------- reshape


class Reshape(Permutable, Channelwise, Croppable, Rowwise, Simplifiable, Expressible, Movement):
    """A reshape: the same elements in row-major order under another shape. It costs no instruction.

    Attributes:
        shape: Shape of the result.
    """

    mnemonic: ClassVar[str] = "reshape"
    shape: Shape = ()

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: that of the input with the new shape, which must have as many elements."""
        (x,) = required(inputs)
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
        """Compute the output by numpy.reshape."""
        return (arrays[0].reshape(self.shape),)

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Return the input of a reshape to its own shape, or one reshape for two consecutive ones; else None."""
        source = node.input(0)
        if source.type.shape == self.shape:
            return source
        if source.producer is not None and isinstance(source.producer.op, Reshape):
            return graph.add(self, [source.producer.input(0)], node.origin, before=node).output
        return None

    def permuted(self, sig: Signature, perm: Permutation) -> tuple[Operator, tuple[Permutation | None, ...]] | None:
        """Return the reshape that computes the output transposed by `perm`, and the permutation of the input.

        Return None if axes that the reshape splits or merges would not stay adjacent and in order.
        """
        x = sig.input(0).shape
        order = _in_runs(perm, [(target, source) for source, target in _runs(x, self.shape)])
        return None if order is None else (replace(self, shape=tuple(self.shape[a] for a in perm)), (order,))

    def carried(self, sig: Signature, perm: Permutation) -> Permutation | None:
        """Return the permutation by which the output is transposed if the input is transposed by `perm`.

        The reshape splits an axis into several, or merges several axes into one. Return None if such axes do not stay
        adjacent and in order.
        """
        return _in_runs(perm, _runs(sig.input(0).shape, self.shape))

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Return how to reshape row by row (for line-buffer fusion); None if impossible.

        Each row of the result must be a row of the input, a part of one row, or several whole rows.
        """
        x, y = sig.input(0).shape, self.shape
        if not x:
            return None
        source, target = (next((a for a, size in enumerate(shape) if size > 1), 0) for shape in (x, y))
        if target >= len(y) - 1 or max(x[source], y[target]) % min(x[source], y[target]):
            return None
        form = each_row(self, sig, [True]) if (source, x[source]) == (len(x) - 2, y[target]) else None
        step = form.rows if form else 1
        span, rows = step * max(x[source] // y[target], 1), step * max(y[target] // x[source], 1)
        band = replace(self, shape=(*y[:target], rows, *y[target + 1 :]))
        return RowForm(band, (RowWindow(source, span=span, stride=span),), target, rows=rows)

    def channels(self, sig: Signature) -> Channels | None:
        """Map each output channel to the input channel that it copies, for channel pruning.

        An output may have a multiple of the input's channels; the input channels then repeat. Return None if an output
        channel holds elements of several input channels.
        """
        x = sig.input(0).shape
        if not x or not self.shape or not x[-1] or self.shape[-1] % x[-1]:
            return None
        return Channels((np.arange(self.shape[-1]) % x[-1],), lambda count: Reshape((*self.shape[:-1], count)))

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return the reshape of some elements: any along kept axes, whole rows along axes that are split or merged."""
        x, y = node.input(0).type.shape, self.shape
        reads, writes = list(whole(x)), list(whole(y))
        for sources, targets in _runs(x, y):
            for box, axes, part in zip(
                (reads, writes), (sources, targets), _cropped_run(x, y, sources, targets, region), strict=True
            ):
                box[axes.start : axes.stop] = part
        return Crop(Reshape(shape_of(tuple(writes))), tuple(writes), (tuple(reads),))

    def onnx_form(self, sig: Signature) -> tuple[str, Mapping[str, object], Sequence[Array]] | None:
        """Return the ONNX node that computes the same: Reshape with the target shape as a constant."""
        return "Reshape", {}, [np.asarray(self.shape, np.int64)]

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit no instruction: the output uses the input's buffer."""
        builder.alias(node.output, node.input(0))


def _cropped_run(x: Shape, y: Shape, sources: range, targets: range, region: Box) -> tuple[Box, Box]:
    """Return which elements of one run of axes a reshape reads and computes, if some elements are wanted.

    Args:
        x: Shape of the input.
        y: Shape of the output.
        sources: Axes of the input in the run.
        targets: Axes of the output in the run; they have as many elements.
        region: The wanted elements of the output.
    """
    inner, outer = ([axis for axis in axes if shape[axis] > 1] for axes, shape in ((sources, x), (targets, y)))
    reads, writes = ([range(shape[axis]) for axis in axes] for axes, shape in ((sources, x), (targets, y)))
    if not inner or not outer:
        return tuple(reads), tuple(writes)
    source, target = inner[0] - sources.start, outer[0] - targets.start
    rows = region[outer[0]]
    if len(inner) > 1 or len(outer) > 1:
        sizes = math.prod(x[inner[0] + 1 : sources.stop]), math.prod(y[outer[0] + 1 : targets.stop])
        both = math.lcm(*sizes)
        start, stop = rows[0] * sizes[1] // both * both, -(-(rows[-1] + 1) * sizes[1] // both) * both
        stop = min(stop, math.prod(y[outer[0] : targets.stop]))
        reads[source], writes[target] = (range(start // size, stop // size) for size in sizes)
    else:
        reads[source] = writes[target] = rows
    return tuple(reads), tuple(writes)


def reshaped(node: OnnxNode, value: Value, shape: Shape, suffix: str = "") -> Value:
    """Return `value` in another shape: a constant is reshaped at compile time, else a Reshape node is added.

    Args:
        node: The ONNX node that is imported.
        value: The tensor.
        shape: The new shape.
        suffix: End of the output's name; "" for the ONNX node's own output.
    """
    if value.type.count != math.prod(shape):
        shapes = f"{value.type.shape} of '{value.name}' for {shape}"
        raise Refusal(f"{node.op_type}: an input must have another number of elements", shapes, "repair the model")
    if value.data is not None and value.type.quant is None:
        name = f"{node.outputs[0]}.{suffix or 'reshaped'}"
        return node.graph.constant(name, value.data.reshape(shape), dtype=value.type.dtype, of=[value])
    return node.emit(Reshape(shape), value, suffix=suffix or "reshaped")


# ------------------------------------------------------------------------------------------------ transpose


def _runs(x: Shape, y: Shape) -> list[tuple[range, range]]:
    """Return the shortest runs of axes of both shapes with equal element counts.

    These are the axes that a reshape splits, merges or keeps.
    """
    runs: list[tuple[range, range]] = []
    i = j = 0
    while i < len(x) and j < len(y) and 0 not in x:
        starts, left, right = (i, j), x[i], y[j]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                left, i = left * x[i], i + 1
            else:
                right, j = right * y[j], j + 1
        runs.append((range(starts[0], i), range(starts[1], j)))
    if runs:  # what is left has length 1
        runs[-1] = range(runs[-1][0].start, len(x)), range(runs[-1][1].start, len(y))
    return runs


def _in_runs(order: Permutation, runs: Sequence[tuple[range, range]]) -> Permutation | None:
    """Translate an order of the first shape's axes into one of the second's, run by run; None if it splits a run."""
    of_first = {source.start: (source, target) for source, target in runs}
    translated: list[int] = []
    at = 0
    while at < len(order):
        source, target = of_first.get(order[at], (range(0), range(0)))
        if not source or tuple(order[at : at + len(source)]) != tuple(source):
            return None
        translated += target
        at += len(source)
    return tuple(translated)


class Transpose(HasKernels, Croppable, Rowwise, Partitionable, Simplifiable, Expressible, Movement):
    """y[i_perm[0], i_perm[1], …] = x[i_0, i_1, …] (ONNX Transpose).

    Attributes:
        perm: The axis of x that becomes each axis of y.
        whole: If one core transposes only some columns of a matrix by this operator, the number of elements from row to
            row of the whole matrix in memory; else None.
    """

    mnemonic: ClassVar[str] = "transpose"
    perm: Permutation = ()
    whole: int | None = field(default=None, kw_only=True)
    kernels: ClassVar[tuple[Kernel, ...]] = (TRANSPOSE, TRANSPOSE_INPLACE)

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: the permuted shape; the axis of per-channel scales is permuted, too."""
        (x,) = required(inputs)
        if sorted(self.perm) != list(range(x.rank)):
            raise ModelError("transpose: perm must name every axis once", f"{self.perm} of rank {x.rank}", "repair it")
        quant = x.quant
        if quant is not None and quant.axis is not None:
            quant = replace(quant, axis=self.perm.index(quant.axis))
        shape = tuple(x.shape[axis] for axis in self.perm)
        return (replace(x, shape=shape, quant=quant, layout=_turned(x.layout, self.perm)),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output by numpy.transpose."""
        return (arrays[0].transpose(self.perm),)

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Return a simpler equal value; None if there is none.

        Identities are removed, consecutive transposes merged, and a transpose that moves only axes of length 1 is a
        reshape.
        """
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
        """Return how to transpose one image row by row (for line-buffer fusion); None if impossible.

        Each output row consists of the input elements at one index of some axis: the axis that becomes the axis of
        rows.
        """
        axis = row_axis(sig.output.shape)
        if axis is None or len(self.perm) < 3 or self.perm[0] != 0 or sig.output.shape[0] != 1:
            return None
        return RowForm(self, (RowWindow(self.perm[axis]),), axis)

    def partitions(self, sig: Signature, inputs: Sequence[Value | None]) -> Sequence[Partition]:
        """Return the way to split the transposition of one matrix over cores: by columns, in parts of whole words."""
        batch, columns, rows = TransposeSpec(sig.input(0), sig.output, self.perm).matrices or (0, 0, 0)
        together = max(WORD // sig.output.dtype.nbytes, 1)
        if batch != 1 or columns % together:
            return ()

        def shard(start: int, stop: int) -> Shard:
            first, count = start * together, (stop - start) * together
            reads, writes = ElementRun(first, (rows, count), columns), ElementRun(first * rows, (count, rows))
            return Shard(Transpose((1, 0), whole=columns), (reads,), writes)

        return (Partition(columns // together, shard),)

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return the operator itself, which transposes some elements."""
        return Crop(self, region, (tuple(region[axis] for axis in inverse(self.perm)),))

    def onnx_form(self, sig: Signature) -> tuple[str, Mapping[str, object], Sequence[Array]] | None:
        """Return the ONNX node that computes the same: Transpose with attribute perm."""
        return "Transpose", {"perm": list(self.perm)}, ()

    def spec(self, node: Node) -> TransposeSpec:
        """Return the types and the permutation, from which kernels are chosen and emitted."""
        return TransposeSpec(node.input(0).type, node.output.type, self.perm, self.whole)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that transposes matrices, if two groups of axes swap, or else to a strided copy."""
        if not builder.any_size and transposes_matrices(self.spec(node)):
            builder.lower(self.kernels, node)
        else:
            emit_copy(
                node, builder, 0, node.output.type.shape, CopySide([self._strides(node)[axis] for axis in self.perm])
            )

    def _strides(self, node: Node) -> Sequence[int]:
        """Return the strides of the input in elements: some columns of a matrix lie as far apart as its rows."""
        return dense_strides(node.input(0).type.shape) if self.whole is None else (self.whole, 1)


def _turned(layout: Layout, perm: Permutation) -> Layout:
    rank = len(perm)
    if layout is Layout.CHANNELS_FIRST and perm == to_channels_last(rank):
        return Layout.CHANNELS_LAST
    if layout is Layout.CHANNELS_LAST and perm == inverse(to_channels_last(rank)):
        return Layout.CHANNELS_FIRST
    return Layout.NONE


def to_channels_last(rank: int) -> Permutation:
    """Return the permutation from NCHW to NHWC for a tensor of `rank` axes."""
    return (0, *range(2, rank), 1)


class Slice(Permutable, Channelwise, Croppable, Rowwise, Simplifiable, Expressible, Movement):
    """y[i] = x[start + i · step] on each axis; steps may be negative.

    Attributes:
        starts: First index of each axis.
        sizes: Number of elements of each axis: the shape of y.
        steps: Distance between the indices of each axis.
        prefers_source: True: ONNX exports copy the model's own node if possible, because one Split becomes many Slices.
    """

    mnemonic: ClassVar[str] = "slice"
    prefers_source: ClassVar[bool] = True
    starts: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: that of x with shape `sizes`; an axis with per-channel scales must be whole."""
        (x,) = required(inputs)
        return (x.with_shape(self.sizes, x.layout),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the slice by numpy indexing with ranges."""
        index = [s + np.arange(n) * k for s, n, k in zip(self.starts, self.sizes, self.steps, strict=True)]
        return (arrays[0][np.ix_(*index)],)

    def cut_axis(self, whole: Shape) -> int | None:
        """Return the only axis that the slice shortens; None if it shortens several or none."""
        cut = [axis for axis, (size, of) in enumerate(zip(self.sizes, whole, strict=True)) if size != of]
        return cut[0] if len(cut) == 1 else None

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Return the tensor itself for a slice of the whole tensor, or for a reversal of a reversal; else None."""
        if self.sizes != node.input(0).type.shape:
            return None
        source = node.input(0).producer
        if source is not None and source.op == self and source.input(0).type.shape == self.sizes:
            return source.input(0)
        return node.input(0) if all(s >= 0 for s in self.steps) else None

    def permuted(self, sig: Signature, perm: Permutation) -> Permuted | None:
        """Return the slice that computes the output transposed by `perm`, and the permutation of the input.

        The result always exists: starts, sizes and steps are permuted like the axes.
        """
        turned = [tuple(row[a] for a in perm) for row in (self.starts, self.sizes, self.steps)]
        return Slice(*turned), (perm,)

    def channels(self, sig: Signature) -> Channels | None:
        """Map each output channel to the input channel of the same index, for channel pruning.

        Return None if the slice leaves out channels or changes their order.
        """
        count = sig.input(0).shape[-1:]
        if self.sizes[-1:] != count or self.steps[-1:] != (1,):
            return None
        return Channels((np.arange(*count),), lambda count: replace(self, sizes=(*self.sizes[:-1], count)))

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Return how to slice one image row by row (for line-buffer fusion); None for other tensors."""
        if len(self.sizes) < 3 or sig.input(0).shape[0] != 1 or self.sizes[0] != 1 or self.steps[1] < 1:
            return None
        window = RowWindow(stride=self.steps[1], before=-self.starts[1])
        rows = [(row[0], value, *row[2:]) for row, value in ((self.starts, 0), (self.sizes, 1), (self.steps, 1))]
        return RowForm(Slice(*rows), (window,))

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return the slice of exactly the elements that it takes: it only reverses axes with negative steps."""
        sources = [
            range(start + rows[0] * step, start + rows[-1] * step + (1 if step > 0 else -1), rows.step * step)
            for start, step, rows in zip(self.starts, self.steps, region, strict=True)
        ]
        starts = tuple(0 if rows.step > 0 else len(rows) - 1 for rows in sources)
        steps = tuple(1 if rows.step > 0 else -1 for rows in sources)
        read = tuple(rows if rows.step > 0 else rows[::-1] for rows in sources)
        return Crop(Slice(starts, shape_of(read), steps), region, (read,))

    def onnx_form(self, sig: Signature) -> tuple[str, Mapping[str, object], Sequence[Array]] | None:
        """Return the ONNX node that computes the same: Slice with constant starts, ends, axes and steps.

        A reversed slice down to the first element has an end far below 0.
        """
        ends = [s + n * k for s, n, k in zip(self.starts, self.sizes, self.steps, strict=True)]
        ends = [e if e >= 0 else np.iinfo(np.int64).min for e in ends]
        return "Slice", {}, [np.asarray(row, np.int64) for row in (self.starts, ends, range(len(ends)), self.steps)]

    def is_run(self, x: TensorType) -> bool:
        """Return whether the slice's elements are contiguous in x, so that the output can be a part of x's buffer."""
        loops = CopyLoops.of(self.sizes, self._side(x).strides, dense_strides(self.sizes))
        return loops.run is not None and not loops.outer

    def _side(self, x: TensorType) -> CopySide:
        strides = dense_strides(x.shape)
        offset = sum(s * stride for s, stride in zip(self.starts, strides, strict=True))
        return CopySide([k * stride for k, stride in zip(self.steps, strides, strict=True)], offset)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a copy loop with the strides of the slice."""
        emit_copy(node, builder, 0, self.sizes, self._side(node.input(0).type))


class Expand(Permutable, Croppable, Simplifiable, Movement):
    """Broadcast x to a shape of the same rank.

    Attributes:
        shape: Shape of the result.
    """

    mnemonic: ClassVar[str] = "expand"
    shape: Shape = ()

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: that of the input with the target shape; only axes of length 1 may change."""
        (x,) = required(inputs)
        fits = all(n >= 0 and size in (1, n) for size, n in zip(x.shape, self.shape, strict=True))
        if not fits:
            raise ModelError("expand: shapes must broadcast", f"{x.shape} to {self.shape}", "repair the model")
        return (x.with_shape(self.shape, x.layout),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output by numpy.broadcast_to."""
        return (np.broadcast_to(arrays[0], self.shape),)

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Return x if its shape is the target shape already; else None."""
        return node.input(0) if node.input(0).type.shape == self.shape else None

    def permuted(self, sig: Signature, perm: Permutation) -> Permuted | None:
        """Return the expansion that computes the output transposed by `perm`, and the permutation of the input.

        The result always exists: the target shape is permuted, too.
        """
        return Expand(tuple(self.shape[a] for a in perm)), (perm,)

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return the expansion to some elements."""
        return Crop(Expand(shape_of(region)), region, (broadcast_box(region, node.input(0).type.shape),))

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a copy with stride 0 on broadcast axes."""
        x = node.input(0).type.shape
        walk = [0 if size == 1 else stride for size, stride in zip(x, dense_strides(x), strict=True)]
        emit_copy(node, builder, 0, self.shape, CopySide(walk))


def run_of(value: Value) -> tuple[Value, int]:
    """Return the tensor of which a value is a contiguous part, and the index of the part's first element.

    A value that is no part of another tensor is returned itself, with index 0.
    """
    node = _unshaped(value).producer
    if node is None or not isinstance(node.op, Slice):
        return value, 0
    op, shape = node.op, node.input(0).type.shape
    axis = op.cut_axis(shape)
    if axis is None or math.prod(op.sizes[:axis]) > 1 or set(op.steps) != {1}:
        return value, 0
    return _unshaped(node.input(0)), op.starts[axis] * dense_strides(shape)[axis]


def reversed_axis(shape: Shape, axis: int) -> Slice:
    """Return the Slice operator that reverses one axis of a tensor of this shape."""
    starts = [size - 1 if i == axis else 0 for i, size in enumerate(shape)]
    return Slice(tuple(starts), shape, tuple(-1 if i == axis else 1 for i in range(len(shape))))


def _unshaped(value: Value) -> Value:
    """Return the value before all reshapes."""
    while value.producer is not None and isinstance(value.producer.op, Reshape):
        value = value.producer.input(0)
    return value


class Concat(HasKernels, Permutable, Channelwise, Croppable, Rowwise, Simplifiable, Expressible, Movement):
    """Concatenation of tensors along one axis.

    Attributes:
        axis: Axis along which the tensors are joined.
    """

    mnemonic: ClassVar[str] = "concat"
    axis: int = 0

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: the sizes of the inputs add up along the axis; their other sizes must be equal."""
        types = [t for t in inputs if t is not None]
        rests = {(t.dtype, t.shape[: self.axis], t.shape[self.axis + 1 :]) for t in types}
        if len(rests) != 1:
            shapes = ", ".join(str(t.shape) for t in types)
            raise ModelError(f"concat: shapes must agree but on axis {self.axis}", shapes, "repair the model")
        shape = list(types[0].shape)
        shape[self.axis] = sum(t.shape[self.axis] for t in types)
        return (types[0].with_shape(tuple(shape), types[0].layout),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output by numpy.concatenate."""
        return (np.concatenate(arrays, self.axis),)

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Return the input of a concatenation of one part, or the tensor whose adjacent slices it joins; else None."""
        if len(node.inputs) == 1:
            return node.input(0)
        if math.prod(node.output.type.shape[: self.axis]) > 1:
            return None
        parts = [node.input(index) for index in range(len(node.inputs))]
        runs, counts = [run_of(part) for part in parts], [part.type.count for part in parts]
        whole, shape = runs[0][0], node.output.type.shape
        if whole is parts[0] or any(v is not whole for v, _ in runs) or sum(counts) != whole.type.count:
            return None
        begins = [begin for _, begin in runs]
        is_turned = begins[0] > 0 and shape[self.axis] == len(parts)
        if (begins[::-1] if is_turned else begins) != [0, *np.cumsum(counts)[:-1]]:
            return None
        value = graph.add(Reshape(shape), [whole], node.origin, before=node).output
        return (
            graph.add(reversed_axis(shape, self.axis), [value], node.origin, before=node).output if is_turned else value
        )

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return the concatenation of some elements, without the inputs that hold none of them."""
        reads, start = [], 0
        for value in node.inputs:
            size = 0 if value is None else value.type.shape[self.axis]
            part = shifted(overlap_of(region[self.axis], start, start + size), -start)
            reads.append(replaced(region, {self.axis: part}) if part else None)
            start += size
        return Crop(self, region, tuple(reads))

    def onnx_form(self, sig: Signature) -> tuple[str, Mapping[str, object], Sequence[Array]] | None:
        """Return the ONNX node that computes the same: Concat with attribute axis, and no further constants."""
        return "Concat", {"axis": self.axis}, ()

    def channels(self, sig: Signature) -> Channels | None:
        """Map each output channel to the input channel that it copies, for channel pruning.

        If the tensors are joined along the channel axis, the output channels are the channels of all inputs in order.
        Else each output channel has the index of its input channel.
        """
        all_of, last = np.arange(sig.output.shape[-1]), sig.output.rank - 1
        if self.axis != last:
            return Channels((all_of,) * len(sig.inputs), lambda _: self)
        ends = np.cumsum([t.shape[last] for t in sig.inputs if t is not None])
        starts = (0, *ends[:-1])
        sources = [np.where((s <= all_of) & (all_of < e), all_of - s, -1) for s, e in zip(starts, ends, strict=True)]
        return Channels(sources, lambda _: self)

    def permuted(self, sig: Signature, perm: Permutation) -> Permuted | None:
        """Return the concatenation that computes the output transposed by `perm`, and the permutation of each input.

        The result always exists: the axis moves with the transposition.
        """
        return Concat(perm.index(self.axis)), (perm,) * len(sig.inputs)

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Return how to concatenate row by row (for line-buffer fusion); None if impossible.

        The tensors must be images that are joined along columns or channels, so that an output row consists of one row
        of each.
        """
        is_image = sig.output.rank > 2 and sig.output.shape[0] == 1 and self.axis > 1
        return RowForm(self, (RowWindow(),) * len(sig.inputs)) if is_image else None

    def spec(self, node: Node) -> ConcatSpec:
        """Return the types and the axis of the concatenation, from which library kernels are chosen and emitted."""
        parts = tuple(node.input(index).type for index in range(len(node.inputs)))
        return ConcatSpec(parts, node.output.type, self.axis)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to one strided copy per part.

        The first part may be spread out in place, which saves most memory where it is the largest.
        """
        target = dense_strides(node.output.type.shape)
        parts = [node.input(index) for index in range(len(node.inputs))]
        starts = np.cumsum([0, *(part.type.shape[self.axis] for part in parts)]) * target[self.axis]
        order = list(range(len(parts)))
        if not builder.any_size and math.prod(node.output.type.shape[: self.axis]) > 1:
            order.sort(key=lambda index: (parts[index].is_constant, -parts[index].type.nbytes))
        for index in order:
            shape, side = parts[index].type.shape, CopySide(target, int(starts[index]))
            access = Access.OUT if index == order[0] else Access.INOUT
            emit_copy(node, builder, index, shape, CopySide.dense(shape), side, access)


class PaddingBase(Permutable, Simplifiable, Movement):
    """Base of operators that pad a tensor with further elements on its axes.

    Attributes:
        before: Number of elements added before each axis.
        after: Number of elements added after each axis.
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: that of the input with longer axes."""
        (x,) = required(inputs)
        shape = tuple(b + n + a for b, n, a in zip(self.before, x.shape, self.after, strict=True))
        return (x.with_shape(shape, x.layout),)

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Return the input if the padding adds no element; else None."""
        return None if any(self.before + self.after) else node.input(0)

    def permuted(self, sig: Signature, perm: Permutation) -> Permuted | None:
        """Return the padding that computes the output transposed by `perm`, and the permutation of the input.

        The result always exists: the amounts of padding are permuted like the axes.
        """
        before, after = (tuple(row[a] for a in perm) for row in (self.before, self.after))
        return replace(self, before=before, after=after), (perm,)


class Pad(HasKernels, Channelwise, Croppable, Rowwise, PaddingBase):
    """Surround a tensor with a constant.

    Attributes:
        value: The constant; a real number, even if the tensor is quantized.
    """

    mnemonic: ClassVar[str] = "pad"
    value: float = 0.0

    def stored(self, x: TensorType) -> Array:
        """Return the padding value as an array of one element of type `x`: quantized if `x` is a quantized type."""
        if x.quant is not None:
            return quantize(np.asarray([self.value]), x.quant, x.dtype)
        return np.asarray([self.value]).astype(x.dtype.numpy)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output by numpy.pad."""
        widths = list(zip(self.before, self.after, strict=True))
        return (np.pad(arrays[0], widths, constant_values=self.stored(sig.input(0))[0]),)

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Return how to pad one image row by row (for line-buffer fusion); None for other tensors.

        Each step makes one row longer. Rows outside of the image hold the constant.
        """
        x = sig.input(0)
        if x.rank < 3 or sig.output.shape[0] != 1 or x.shape[0] != 1:
            return None
        window = RowWindow(before=self.before[1], fill=self.stored(x)[0].item(), goes_on=self.after[1] > 0)
        before, after = ((0, 0, *row[2:]) for row in (self.before, self.after))
        return RowForm(Pad(before, after, self.value), (window,))

    def channels(self, sig: Signature) -> Channels | None:
        """Map each output channel to the input channel of the same index, for channel pruning.

        Return None if the padding adds channels.
        """
        is_around = any(self.before[-1:] + self.after[-1:]) or not sig.output.rank
        return None if is_around else Channels((np.arange(sig.output.shape[-1]),), lambda _: self)

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return the padding of some elements; axes of which only padding is wanted stay whole."""
        writes, reads, before, after = list(region), [], list(self.before), list(self.after)
        for axis, size in enumerate(node.input(0).type.shape):
            places = shifted(region[axis], -self.before[axis])
            read = overlap_of(places, 0, size)
            if read:
                before[axis] = places.index(read[0])
                after[axis] = len(places) - before[axis] - len(read)
            else:
                read, writes[axis] = range(size), range(node.output.type.shape[axis])
            reads.append(read)
        return Crop(Pad(tuple(before), tuple(after), self.value), tuple(writes), (tuple(reads),))

    def spec(self, node: Node) -> PadSpec:
        """Return the input's type, the padding of each axis and its value, from which library kernels are chosen."""
        x = node.input(0).type
        return PadSpec(x, self.before, self.after, self.stored(x)[0].item())

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a fill of the output with the constant, and a strided copy of the input into the middle."""
        x, y = node.input(0).type, node.output.type
        emit_fill(node, builder, builder.buffer(node.output), self.stored(x))
        target = dense_strides(y.shape)
        offset = sum(b * stride for b, stride in zip(self.before, target, strict=True))
        emit_copy(node, builder, 0, x.shape, CopySide.dense(x.shape), CopySide(target, offset), Access.INOUT)


# --------------------------------------------------------------------------------------------------- import


def normalize_axis(node: OnnxNode, axis: int, rank: int) -> int:
    """Return the axis as a non-negative index.

    Raises:
        Refusal: The axis is outside the rank.
    """
    node.require(-rank <= axis < rank, "the axis must be one of the tensor's", f"{axis} of rank {rank}")
    return axis % rank


def normalize_axes(node: OnnxNode, axes: Sequence[int], rank: int) -> list[int]:
    """Return axes as non-negative indices, in the given order.

    Raises:
        Refusal: An axis is outside the rank, or occurs twice.
    """
    normalized = [normalize_axis(node, int(axis), rank) for axis in axes]
    node.require(len(set(normalized)) == len(normalized), "every axis must be named once", f"{list(axes)}")
    return normalized


def decided_shape(node: OnnxNode, *indices: int) -> Shape | None:
    """Return the declared shape of a node's first output if the importer cannot compute the shape from constants.

    Args:
        node: Node that is imported.
        indices: Indices of the inputs that determine the shape.

    Returns:
        The shape by ONNX's shape inference; None if all of these inputs are constant, or if no complete shape is
        declared.
    """
    computed = any(node.has(i) and not node.input(i).is_constant for i in indices)
    declared = node.declared[0] if computed and node.declared else None
    return None if declared is None or min(declared.shape, default=0) < 0 else declared.shape


@onnx_operator(
    "Reshape", kernels=(NO_CODE_TEXT,), limits="a computed shape must be declared as the output's", keeps_halves=True
)
def _import_reshape(node: OnnxNode) -> list[Value]:
    x = node.input(0).type
    decided = decided_shape(node, 1)
    target_shape = list(decided) if decided is not None else node.ints("shape", 1) or []
    if decided is None and not node.attr("allowzero", 0):
        target_shape = [x.shape[i] if size == 0 and i < x.rank else size for i, size in enumerate(target_shape)]
    if -1 in target_shape:
        known_count = math.prod(s for s in target_shape if s != -1)
        target_shape[target_shape.index(-1)] = x.count // known_count if known_count else 0
    return [node.emit(Reshape(tuple(target_shape)), node.input(0))]


@onnx_operator("Flatten", kernels=(NO_CODE_TEXT,), keeps_halves=True)
def _import_flatten(node: OnnxNode) -> list[Value]:
    x = node.input(0).type
    axis = node.attr("axis", 1)
    axis = x.rank if axis == x.rank else normalize_axis(node, axis, x.rank)
    return [node.emit(Reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))), node.input(0))]


@onnx_operator(
    "Squeeze", kernels=(NO_CODE_TEXT,), limits="computed axes need a declared output shape", keeps_halves=True
)
def _import_squeeze(node: OnnxNode) -> list[Value]:
    shape = decided_shape(node, 1)
    if shape is None:
        input_shape, axes = node.input(0).type.shape, node.ints("axes", 1)
        if axes is None:
            axes = [i for i, size in enumerate(input_shape) if size == 1]
        drop = normalize_axes(node, axes, len(input_shape))
        shape = tuple(size for i, size in enumerate(input_shape) if i not in drop)
    return [node.emit(Reshape(shape), node.input(0))]


@onnx_operator(
    "Unsqueeze", kernels=(NO_CODE_TEXT,), limits="computed axes need a declared output shape", keeps_halves=True
)
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
    node.require(x.type.rank == 4, "the tensor must be a picture", f"shape {x.type.shape}")
    n, c, h, w = x.type.shape
    to_space = node.op_type == "DepthToSpace"
    if size < 1 or (c % size**2 if to_space else h % size or w % size):
        mismatch = f"blocks of {size} in {x.type.shape}"
        raise Refusal(f"{node.op_type}: the tensor must hold whole blocks", mismatch, "repair the model")
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
        shapes = ", ".join(str(p.type.shape) for p in parts[:8])
        raise Refusal(f"{node.op_type}: what is joined must have as many axes", shapes, "repair the model")
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
    """Return the sizes of the parts: as given, as declared, or equal except for the last one."""
    known = [t.shape[axis] for t in node.declared if t is not None and len(t.shape) > axis]
    if decided_shape(node, 1) is not None and len(known) == len(node.outputs):
        return known
    count, size = len(node.outputs), node.input(0).type.shape[axis]
    part_size = -(-size // count)
    return node.ints("split", 1) or [min(part_size, size - part_size * i) for i in range(count)]


@onnx_operator(
    "Expand", kernels=("copy",), limits="a computed shape must be declared as the output's", keeps_halves=True
)
def _import_expand(node: OnnxNode) -> list[Value]:
    target_shape = decided_shape(node, 1)
    if target_shape is None:
        target_shape = tuple(node.ints("shape", 1) or ())
    node.require(all(size >= 0 for size in target_shape), "sizes must not be negative", str(target_shape))
    check_size("Expand", node.outputs[0], math.prod(target_shape))
    return [emit_expanded(node, node.input(0), np.broadcast_shapes(node.input(0).type.shape, target_shape))]


def emit_expanded(node: OnnxNode, x: Value, shape: Shape) -> Value:
    """Broadcast `x` to `shape`, with which it must be compatible, and return the result."""
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
        shapes = f"{shape} to {decided}"
        raise Refusal("Tile: the declared shape must be a multiple of the input's", shapes, "repair the model")
    wide = node.emit(Expand(spread), reshaped(node, node.input(0), apart), suffix="spread")
    return [node.emit(Reshape(joined), wide)]


@onnx_operator("Identity", kernels=(NO_CODE_TEXT,), keeps_halves=True)
def _import_identity(node: OnnxNode) -> list[Value]:
    return [node.input(0)]


@onnx_operator("Dropout", kernels=(NO_CODE_TEXT,), limits="inference only", keeps_halves=True)
def _import_dropout(node: OnnxNode) -> list[Value]:
    """Import Dropout of inference: nothing is dropped, and the mask is true everywhere."""
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
    """Return the element type of an ONNX type number.

    Args:
        node: The ONNX node that is imported, for messages.
        code: The type number (TensorProto.DataType).

    Raises:
        Refusal: The type has no C counterpart.
    """
    try:
        return DType(helper.tensor_dtype_to_np_dtype(code).name)
    except (KeyError, ValueError) as error:
        rule = f"{node.op_type}: the target type must have a C counterpart"
        raise Refusal(rule, f"type {code} of ONNX", "use float32") from error
