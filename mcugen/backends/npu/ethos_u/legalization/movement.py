# SPDX-License-Identifier: Apache-2.0
"""Rules of operators that move data: the NPU copies int8 and int16 elements as they are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mcugen.backends.npu.ethos_u.legalization.rule import MAX_TOSA_RANK, Legalization
from mcugen.backends.npu.ethos_u.legalization.writer import SegmentWriter
from mcugen.backends.npu.ethos_u.tosa.flatbuffer import Scalar
from mcugen.backends.npu.ethos_u.tosa.graph import Op, Operand, Tensor
from mcugen.hir.graph import Node
from mcugen.hir.types import Shape
from mcugen.ops.movement import Concat, Expand, Pad, Reshape, Slice, Transpose
from mcugen.ops.resize import ResizeNearest

RESIZE_FACTORS = (2, 4, 8)
"""Factors by which the NPU enlarges an axis of an image."""

MAX_PERMUTED = 2**16
"""Largest product of the lengths of all axes but two of a transposed tensor."""


def _no_fault(node: Node) -> str:
    return ""


def _write_reshape(node: Node, writer: SegmentWriter) -> Tensor:
    return writer.reshape(writer.tensor(node.input(0)), node.output.type.shape or (1,))


def _transpose_fault(node: Node) -> str:
    op, shape = node.op, node.input(0).type.shape
    assert isinstance(op, Transpose)
    largest = math.prod(sorted(shape)[2:]) if len(shape) > 2 else 1
    return "" if op.whole is None and largest <= MAX_PERMUTED else "a transposition of long axes"


def _write_transpose(node: Node, writer: SegmentWriter) -> Tensor:
    op = node.op
    assert isinstance(op, Transpose)
    return writer.transpose(writer.tensor(node.input(0)), op.perm)


def _slice_fault(node: Node) -> str:
    op = node.op
    assert isinstance(op, Slice)
    if min(op.steps, default=1) < 1:
        return "a slice with negative steps"
    is_deep = sum(step > 1 for step in op.steps) + len(op.steps) > MAX_TOSA_RANK
    return "a slice with steps of a tensor of many axes" if is_deep else ""


def _write_slice(node: Node, writer: SegmentWriter) -> Tensor:
    """Write a slice; an axis with steps becomes two, of which the second one is cut to its first element."""
    op, x = node.op, writer.tensor(node.input(0))
    assert isinstance(op, Slice)
    spans = [size * step for size, step in zip(op.sizes, op.steps, strict=True)]
    starts = [max(min(start, n - span), 0) for start, n, span in zip(op.starts, x.shape, spans, strict=True)]
    missing = [max(span - n, 0) for n, span in zip(x.shape, spans, strict=True)]
    x = writer.pad(x, [width for behind in missing for width in (0, behind)], 0)
    x = writer.slice(x, starts, tuple(spans))
    split = [(size, step) for size, step in zip(op.sizes, op.steps, strict=True)]
    x = writer.reshape(x, tuple(n for size, step in split for n in ((size, step) if step > 1 else (size,))))
    firsts = [
        n
        for start, begin, step in zip(op.starts, starts, op.steps, strict=True)
        for n in ((0, start - begin) if step > 1 else (0,))
    ]
    x = writer.slice(x, firsts, tuple(n for size, step in split for n in ((size, 1) if step > 1 else (size,))))
    return writer.reshape(x, node.output.type.shape)


def _write_concat(node: Node, writer: SegmentWriter) -> Tensor:
    op, parts = node.op, [writer.tensor(v) for v in node.inputs if v is not None]
    assert isinstance(op, Concat)
    return writer.graph.add(Op.CONCAT, parts, node.output.type.shape, parts[0].dtype, [Scalar("i", op.axis)])


def _write_pad(node: Node, writer: SegmentWriter) -> Tensor:
    op, x = node.op, writer.tensor(node.input(0))
    assert isinstance(op, Pad)
    widths = [n for pair in zip(op.before, op.after, strict=True) for n in pair]
    fill = writer.graph.constant(op.stored(node.input(0).type))
    operands: list[Operand] = [x, writer.graph.sizes(widths), fill]
    return writer.graph.add(Op.PAD, operands, node.output.type.shape, x.dtype)


def _expand_fault(node: Node) -> str:
    return "" if node.input(0).type.rank == node.output.type.rank else "a broadcast to more axes"


def _write_expand(node: Node, writer: SegmentWriter) -> Tensor:
    x, shape = writer.tensor(node.input(0)), node.output.type.shape
    times = [to // max(n, 1) for to, n in zip(shape, x.shape, strict=True)]
    return writer.graph.add(Op.TILE, [x, writer.graph.sizes(times)], shape, x.dtype)


@dataclass(frozen=True)
class _Enlarged:
    """A resize that repeats rows and columns of images [N, H, W, C].

    Attributes:
        image: Shape of the input, with all axes before and behind the resized ones as N and C.
        factor: Number of repetitions of each row and column.
    """

    image: Shape
    factor: int


def _enlarged(node: Node) -> _Enlarged | None:
    """Return how images are enlarged; None for other resizes than those of two adjacent axes by one factor."""
    op, x = node.op, node.input(0).type.shape
    assert isinstance(op, ResizeNearest)
    changed = [axis for axis, row in enumerate(op.indices) if row is not None]
    if len(changed) != 2 or changed[1] != changed[0] + 1:
        return None
    factors = {len(op.indices[axis] or ()) // x[axis] for axis in changed}
    factor = factors.pop()
    repeats = [op.indices[axis] == tuple(map(int, np.repeat(np.arange(x[axis]), factor))) for axis in changed]
    if factors or factor not in RESIZE_FACTORS or not all(repeats):
        return None
    first, last = changed
    return _Enlarged((math.prod(x[:first]), x[first], x[last], math.prod(x[last + 1 :])), factor)


def _resize_fault(node: Node) -> str:
    return "" if _enlarged(node) else "a resize by other factors than 2, 4 or 8"


def _write_resize(node: Node, writer: SegmentWriter) -> Tensor:
    """Write a resize as repetitions of pixels, then of rows: Vela takes few forms of TOSA's RESIZE for U55 and U65."""
    enlarged = _enlarged(node)
    assert enlarged is not None
    (batch, height, width, channels), factor = enlarged.image, enlarged.factor
    y = _repeated(writer, writer.tensor(node.input(0)), batch * height * width, factor, channels)
    y = _repeated(writer, y, batch * height, factor, width * factor * channels)
    return writer.reshape(y, node.output.type.shape)


def _repeated(writer: SegmentWriter, x: Tensor, count: int, times: int, length: int) -> Tensor:
    """Return a tensor seen as `count` runs of `length` elements, in which each run is repeated."""
    runs = writer.reshape(x, (count, 1, length))
    return writer.graph.add(Op.TILE, [runs, writer.graph.sizes((1, times, 1))], (count, times, length), x.dtype)


MOVEMENT_LEGALIZATIONS = (
    Legalization(Reshape, _no_fault, _write_reshape),
    Legalization(Transpose, _transpose_fault, _write_transpose),
    Legalization(Slice, _slice_fault, _write_slice),
    Legalization(Concat, _no_fault, _write_concat),
    Legalization(Pad, _no_fault, _write_pad),
    Legalization(Expand, _expand_fault, _write_expand),
    Legalization(ResizeNearest, _resize_fault, _write_resize),
)
"""The rules of this module."""
