# SPDX-License-Identifier: Apache-2.0
"""Pad in all its modes: a constant, an element that is computed, or the tensor's own elements."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from mcugen.hir.crop import Box, Crop, replaced, whole
from mcugen.hir.graph import Node, Value
from mcugen.hir.operator import Operator, Permutation, Signature
from mcugen.hir.traits import Croppable, Permutable
from mcugen.hir.types import Array, Shape, TensorType, required
from mcugen.kernels.common.strided_loops import dense_strides, numbered
from mcugen.kernels.portable.movement import CopySide, emit_copy
from mcugen.kernels.portable.padding import EXTEND, FILL_WITH, Count, ExtendOptions, ExtendWalk, Extension
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call
from mcugen.lir.program import Access
from mcugen.lir.traversal import overlap
from mcugen.numerics.fixedpoint import dequantize
from mcugen.ops.gather import index_type
from mcugen.ops.movement import Pad, PaddingBase, Permuted, Slice, emit_expanded, normalize_axes, reshaped
from mcugen.ops.onnx_node import OnnxNode, Refusal, onnx_operator

_MODES = ("constant", "reflect", "edge", "wrap")
_LARGEST_AXIS = 1 << 24
"""Largest number of elements of a padded axis: no microcontroller has room for more, but a hostile model may ask."""


class PadWith(Permutable, Operator):
    """Surround a tensor with the only element of input 1, which is computed at run time.

    Attributes:
        before: Number of elements added before each axis.
        after: Number of elements added after each axis.
    """

    mnemonic: ClassVar[str] = "pad_with"
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: that of the input with longer axes."""
        (x,) = required(inputs[:1])
        shape = tuple(b + n + a for b, n, a in zip(self.before, x.shape, self.after, strict=True))
        return (TensorType(shape, x.dtype, layout=x.layout),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output by numpy.pad."""
        x, value = arrays
        widths = list(zip(self.before, self.after, strict=True))
        return (np.pad(x, widths, constant_values=value.reshape(-1)[0]),)

    def permuted(self, sig: Signature, perm: Permutation) -> Permuted | None:
        """Return the padding that computes the output transposed by `perm`, and the permutation of the input.

        The result always exists: the amounts of padding are permuted like the axes.
        """
        rows = [tuple(row[a] for a in perm) for row in (self.before, self.after)]
        return PadWith(rows[0], rows[1]), (perm, None)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a fill of the output with the element, and a strided copy of the input into the middle."""
        x, y = node.input(0).type, builder.buffer(node.output)
        call = Call(
            FILL_WITH, {"value": builder.buffer(node.input(1)), "y": y}, [Count(count=y.count)], variant=x.dtype.tag
        )
        builder.call(node, call)
        target = dense_strides(node.output.type.shape)
        offset = sum(b * stride for b, stride in zip(self.before, target, strict=True))
        emit_copy(node, builder, 0, x.shape, CopySide.dense(x.shape), CopySide(target, offset), Access.INOUT)


class Extend(Croppable, PaddingBase):
    """Surround a tensor with its own elements.

    Attributes:
        mode: ONNX's mode: "edge" (the nearest element), "reflect" (mirrored) or "wrap" (from the other end).
    """

    mnemonic: ClassVar[str] = "extend"
    mode: str = "edge"

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output by numpy.pad."""
        widths = list(zip(self.before, self.after, strict=True))
        return (np.pad(arrays[0], widths, mode=self.mode),)  # type: ignore[call-overload]

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return the operator itself for some elements of the axes that it does not pad; padded axes stay whole."""
        padded = [axis for axis, widths in enumerate(zip(self.before, self.after, strict=True)) if any(widths)]
        x, y = (whole(value.type.shape) for value in (node.input(0), node.output))
        writes, read = (replaced(region, [(axis, box[axis]) for axis in padded]) for box in (y, x))
        return Crop(self, writes, (read,))

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to one loop for each padded axis, with a table of source positions; other axes are merged."""
        x, y = node.input(0).type, node.output.type
        operands, loops = {"x": builder.buffer(node.input(0))}, Extension()
        for axis, (size, stride) in enumerate(zip(x.shape, dense_strides(x.shape), strict=True)):
            widths = self.before[axis], self.after[axis]
            if not any(widths):
                loops.keep(size, stride)
                continue
            table = np.pad(np.arange(size), widths, mode=self.mode)  # type: ignore[call-overload]
            loops.grow(table, stride)
            buffer = builder.const(f"{node.output.name}.axis{axis}", table.astype(index_type(size)))
            operands[f"at{len(loops.tables) - 1}"] = buffer
        axes = "".join("t" if grows else "r" for grows in loops.grows)
        call = Call(
            EXTEND,
            operands | {"y": builder.buffer(node.output)},
            [
                ExtendWalk(
                    count=numbered("count", loops.counts), stride=numbered("stride", loops.strides), places=loops.places
                )
            ],
            [ExtendOptions(t=x.dtype.c, grows=loops.grows, mode=self.mode)],
            overlaps=overlap(x, y, loops.order()),
            variant=f"{x.dtype.tag}_{axes}",
        )
        builder.call(node, call)


@onnx_operator("Pad", kernels=("fill", "fill_with", "extend", "copy"), limits="constant widths", keeps_halves=True)
def _import_pad(node: OnnxNode) -> list[Value]:
    x, mode = node.input(0), node.attr("mode", "constant")
    node.require(mode in _MODES, f"the mode must be one of {', '.join(_MODES)}", f"'{mode}'", "use zero padding")
    before, after = _widths(node, x.type.rank)
    if min(before + after, default=0) < 0:
        x = _cropped(node, x, before, after)
    grow = [tuple(max(p, 0) for p in side) for side in (before, after)]
    return [_padded(node, x, grow[0], grow[1]) if mode == "constant" else _extended(node, x, grow[0], grow[1], mode)]


def _widths(node: OnnxNode, rank: int) -> tuple[list[int], list[int]]:
    """Return the numbers of elements to add before and after each axis; negative numbers crop."""
    pads, declared_axes = node.ints("pads", 1) or [], node.ints("axes", 3)
    axes = normalize_axes(node, range(rank) if declared_axes is None else declared_axes, rank)
    node.require(len(pads) == 2 * len(axes), "there must be two widths per axis", f"{len(pads)} for {len(axes)} axes")
    before, after = [0] * rank, [0] * rank
    for index, axis in enumerate(axes):
        before[axis], after[axis] = pads[index], pads[index + len(axes)]
    return before, after


def _cropped(node: OnnxNode, x: Value, before: list[int], after: list[int]) -> Value:
    starts = tuple(max(-b, 0) for b in before)
    sizes = tuple(n - s - max(-a, 0) for n, s, a in zip(x.type.shape, starts, after, strict=True))
    node.require(min(sizes) >= 0, "no more must be cropped than there is", f"sizes {sizes}")
    return node.emit(Slice(starts, sizes, (1,) * len(sizes)), x, suffix="cropped")


def _padded(node: OnnxNode, x: Value, before: Shape, after: Shape) -> Value:
    """Constant mode. A value that a float32 parameter cannot hold, or that is computed, is an operand."""
    data = np.asarray(node.attr("value", 0.0)).astype(x.type.dtype.numpy)
    if node.has(2):
        padding_value = node.input(2)
        if padding_value.type.count != 1 or padding_value.type.dtype is not x.type.dtype:
            mismatch = f"{padding_value.type} for {x.type.dtype.value}"
            raise Refusal("Pad: the padding value must be one element of the tensor's type", mismatch, "cast it")
        if padding_value.data is None or not x.type.count or not _fits_float(padding_value.data):
            return _padded_with(node, x, before, after, padding_value)
        data = padding_value.data
    quant = x.type.quant
    if not x.type.count or (quant is not None and quant.axis is not None):
        return _padded_with(node, x, before, after, node.constant("value", data))
    real = data if quant is None else dequantize(data, quant)
    return node.emit(Pad(before, after, float(real.reshape(-1)[0])), x)


def _fits_float(data: Array) -> bool:
    """Return whether the element survives a conversion to float32 and back (NaN does)."""
    value = data.reshape(-1)[:1]
    return bool(value.dtype.kind in "fV" and value.dtype.itemsize <= 4) or abs(int(value[0])) < 2**24


def _padded_with(node: OnnxNode, x: Value, before: Shape, after: Shape, value: Value) -> Value:
    if x.type.count:
        return node.emit(PadWith(before, after), x, value)
    shape = tuple(b + n + a for b, n, a in zip(before, x.type.shape, after, strict=True))
    return emit_expanded(node, reshaped(node, value, ()), shape)


def _extended(node: OnnxNode, x: Value, before: Shape, after: Shape, mode: str) -> Value:
    """Modes that repeat elements, of which there must be some."""
    sizes = [b + n + a for b, n, a in zip(before, x.type.shape, after, strict=True)]
    if max(sizes, default=0) > _LARGEST_AXIS or not x.type.count:
        shapes = f"{x.type.shape} to {tuple(sizes)}"
        raise Refusal(f"Pad: an axis must have 1 to {_LARGEST_AXIS:,} elements", shapes, "pad less")
    return node.emit(Extend(before, after, mode), x)
