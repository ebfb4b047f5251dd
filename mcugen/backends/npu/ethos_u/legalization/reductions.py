# SPDX-License-Identifier: Apache-2.0
"""Rules of pools and reductions.

Means are sums of a depthwise convolution whose weights are 1: the NPU's own average pool rounds in another way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from mcugen.backends.npu.ethos_u.legalization.rule import Legalization, quantized_fault
from mcugen.backends.npu.ethos_u.legalization.weighted import (
    MAX_KERNEL_HEIGHT,
    MAX_KERNEL_SIZE,
    MAX_STRIDE,
    NO_LOCAL_BOUND,
)
from mcugen.backends.npu.ethos_u.legalization.writer import SegmentWriter, rescale_fault
from mcugen.backends.npu.ethos_u.tosa.flatbuffer import Scalar, Vector
from mcugen.backends.npu.ethos_u.tosa.graph import IGNORE_NAN, Op, Tensor, TosaType
from mcugen.hir.graph import Node
from mcugen.hir.types import Shape, TensorType
from mcugen.numerics.fixedpoint import Requantizer
from mcugen.numerics.sums import max_offset_magnitude
from mcugen.numerics.window import Window
from mcugen.ops.pool import AveragePool, MaxPool
from mcugen.ops.reduce import Reduce

MAX_POOL_HEIGHT, MAX_POOL_SIZE = 256, 65536
"""Largest height, and largest number of taps, of a maximum pool on the NPU."""

MAX_TIE_SHIFT = 24
"""Largest shift, after common factors of 2 are removed, with which ties are rounded to even by further operations."""


# ------------------------------------------------------------------------------------------------- windows


def _shape_fault(op: MaxPool | AveragePool, x: TensorType) -> str:
    if not op.is_channels_last or x.rank != 4:
        return "another layout than a channels-last image"
    if max(_narrow(op).strides) > MAX_STRIDE or set(op.window.dilations) != {1}:
        return f"strides of {op.window.strides}"
    excess = _excess(op, x.shape)
    if any(e > a for e, a in zip(excess, op.window.after, strict=True)) and any(op.window.after):
        return "rows that no window reaches"
    return ""


def _narrow(op: MaxPool | AveragePool) -> Window:
    """Return the window without the strides of axes along which a maximum pool has neighbouring windows."""
    window = op.window
    rows = zip(op.kernel, window.strides, window.before, window.after, strict=True)
    strides = (1 if isinstance(op, MaxPool) and k == s and not b and not a else s for k, s, b, a in rows)
    return replace(window, strides=tuple(strides))


def _excess(op: MaxPool | AveragePool, x: Shape) -> tuple[int, ...]:
    """Return the rows and columns at the end of the padded input that no window reaches."""
    window = op.window
    rows = zip(
        x[1:3], op.kernel, window.strides, window.before, window.after, window.output(x[1:3], op.kernel), strict=True
    )
    return tuple(n + b + a - k - (out - 1) * s for n, k, s, b, a, out in rows)


def _reached(op: MaxPool | AveragePool, x: Tensor, writer: SegmentWriter) -> tuple[Tensor, tuple[int, int, int, int]]:
    """Return the part of an image that windows reach, and the padding around it."""
    before, after = op.window.before, list(op.window.after)
    shape = list(x.shape)
    for axis, excess in enumerate(_excess(op, x.shape)):
        padding = min(after[axis], excess)
        after[axis] -= padding
        shape[1 + axis] -= excess - padding
    return writer.slice(x, (0, 0, 0, 0), tuple(shape)), (before[0], after[0], before[1], after[1])


def _max_fault(node: Node) -> str:
    op, x = node.op, node.input(0).type
    assert isinstance(op, MaxPool)
    if x.quant != node.output.type.quant or len(op.kernel) != 2:
        return "another scale of the result, or one spatial axis"
    if op.kernel[0] > MAX_POOL_HEIGHT or math.prod(op.kernel) > MAX_POOL_SIZE:
        return f"a window of {op.kernel}"
    return _shape_fault(op, x)


def _write_max(node: Node, writer: SegmentWriter) -> Tensor:
    op = node.op
    assert isinstance(op, MaxPool)
    x, pads = _reached(op, writer.tensor(node.input(0)), writer)
    kernel, strides = list(op.kernel), list(op.window.strides)
    for axis, stride in enumerate(strides):
        if stride > MAX_STRIDE:
            x = _group_maxima(writer, x, 1 + axis, stride)
            kernel[axis] = strides[axis] = 1
    attributes: list[Scalar | Vector] = [Vector.of("i", values) for values in (kernel, strides, pads)]
    attributes.append(IGNORE_NAN)
    return writer.graph.add(Op.MAX_POOL2D, [x], node.output.type.shape, x.dtype, attributes)


def _group_maxima(writer: SegmentWriter, x: Tensor, axis: int, count: int) -> Tensor:
    """Return the maxima of each `count` neighbours along an axis, whose length is a multiple of it."""
    before, behind, groups = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :]), x.shape[axis] // count
    shape = (*x.shape[:axis], groups, *x.shape[axis + 1 :])
    split = writer.reshape(x, (before * groups, 1, count, behind))
    attributes = [Scalar("i", 2), IGNORE_NAN]
    maxima = writer.graph.add(Op.REDUCE_MAX, [split], (before * groups, 1, 1, behind), x.dtype, attributes)
    return writer.reshape(maxima, shape)


# --------------------------------------------------------------------------------------------------- means


def mean_fault(requantizer: Requantizer, largest: int) -> str:
    """Return why a mean cannot be rounded to our bits, as a phrase; "" if it can.

    Args:
        requantizer: The requantization of the sums.
        largest: The largest magnitude of a sum.
    """
    if len(requantizer.multiplier) > 1:
        return "windows with different numbers of elements"
    if requantizer.ties_to_even and has_ties(requantizer, largest):
        factor, shift = _without_twos(requantizer)
        return "" if factor <= 127 and 1 <= shift <= MAX_TIE_SHIFT and factor * largest < 2**30 else "ties to even"
    return rescale_fault(requantizer, np.array([largest]))


def has_ties(requantizer: Requantizer, largest: int) -> bool:
    """Return whether a sum of at most magnitude `largest` can lie halfway between two results."""
    _, shift = _without_twos(requantizer)
    return shift >= 1 and 2 ** (shift - 1) <= largest


def _without_twos(requantizer: Requantizer) -> tuple[int, int]:
    """Return multiplier and shift without common factors of 2."""
    multiplier, shift = int(requantizer.multiplier[0]), requantizer.shift
    twos = min((multiplier & -multiplier).bit_length() - 1, shift) if multiplier else shift
    return multiplier >> twos, shift - twos


@dataclass(frozen=True)
class _Mean:
    """Sums under windows, requantized with ties to even where ties can occur.

    Attributes:
        requantizer: The requantization of the sums.
        largest: The largest magnitude of a sum.
        zero_point: Zero point of the input.
        out: Type of the result.
    """

    requantizer: Requantizer
    largest: int
    zero_point: int
    out: TensorType

    @property
    def _is_tied(self) -> bool:
        return self.requantizer.ties_to_even and has_ties(self.requantizer, self.largest)

    def write_sums(
        self,
        writer: SegmentWriter,
        x: Tensor,
        kernel: tuple[int, ...],
        attributes: list[Scalar | Vector],
        shape: Shape,
    ) -> Tensor:
        """Write the int32 sums; with ties, they are multiplied by the odd factor of the requantization."""
        factor = _without_twos(self.requantizer)[0] if self._is_tied else 1
        is_wide, channels = x.dtype is TosaType.INT16, x.shape[-1]
        dtype = TosaType.INT48 if is_wide else TosaType.INT32
        operands = [
            x,
            writer.graph.constant(np.full((*kernel, channels, 1), factor, np.int8)),
            writer.graph.constant(np.zeros(channels, np.int64 if is_wide else np.int32), dtype),
            writer.zero_point(self.zero_point, x.dtype),
            writer.zero_point(0, TosaType.INT8),
        ]
        attributes = [*attributes, NO_LOCAL_BOUND, Scalar("I", dtype)]
        return writer.as_int32(writer.graph.add(Op.DEPTHWISE_CONV2D, operands, shape, dtype, attributes))

    def finish(self, writer: SegmentWriter, sums: Tensor) -> Tensor:
        """Write the requantization of the sums."""
        limits = self.out.dtype.limits
        if not self._is_tied:
            return writer.requantize(sums, self.requantizer, self.out, limits)
        rounded = _rounded_to_even(writer, sums, _without_twos(self.requantizer)[1])
        return writer.narrow(rounded, 0, self.out, limits)


def _rounded_to_even(writer: SegmentWriter, x: Tensor, shift: int) -> Tensor:
    """Return x / 2^shift, rounded to nearest, ties to even, as int32.

    `up` and `down` are x / 2^shift with ties rounded up and down. They differ at ties only, where the even one is
    right: `up`, less 1 if `up` is odd.
    """
    int32 = TosaType.INT32
    zero = writer.integer(0)
    multiplier, shifts = np.array([1 << 30]), np.array([30 + shift])
    up = writer.rescale(x, multiplier, shifts, int32)
    negative = writer.binary(Op.SUB, zero, x, int32)
    down = writer.binary(Op.SUB, zero, writer.rescale(negative, multiplier, shifts, int32), int32)
    is_tie = writer.binary(Op.SUB, up, down, int32)
    half = writer.rescale(up, multiplier, np.array([31]), int32)  # ⌈up / 2⌉
    is_odd = writer.binary(Op.SUB, writer.binary(Op.ADD, half, half, int32), up, int32)
    return writer.binary(Op.SUB, up, writer.binary(Op.MUL, is_tie, is_odd, int32), int32)


def _window_attributes(pads: tuple[int, int, int, int], strides: tuple[int, int]) -> list[Scalar | Vector]:
    return [Vector.of("i", pads), Vector.of("i", strides), Vector.of("i", (1, 1))]


def _size_fault(kernel: tuple[int, ...]) -> str:
    is_large = kernel[0] > MAX_KERNEL_HEIGHT or math.prod(kernel) > MAX_KERNEL_SIZE
    return f"a window of {' x '.join(map(str, kernel))}" if is_large else ""


def _average_fault(node: Node) -> str:
    op, x = node.op, node.input(0).type
    assert isinstance(op, AveragePool)
    fault = quantized_fault(node) or _shape_fault(op, x) or _size_fault(op.kernel)
    return fault or mean_fault(op._requantizer(node.sig), math.prod(op.kernel) * max_offset_magnitude(x))


def _write_average(node: Node, writer: SegmentWriter) -> Tensor:
    op, source = node.op, node.input(0).type
    assert isinstance(op, AveragePool)
    x, pads = _reached(op, writer.tensor(node.input(0)), writer)
    height, width = op.kernel
    attributes = _window_attributes(pads, (op.window.strides[0], op.window.strides[1]))
    largest = math.prod(op.kernel) * max_offset_magnitude(source)
    mean = _Mean(op._requantizer(node.sig), largest, source.q.zero_point, node.output.type)
    sums = mean.write_sums(writer, x, (height, width), attributes, node.output.type.shape)
    return mean.finish(writer, sums)


# ---------------------------------------------------------------------------------------------- reductions


def _image_of(op: Reduce, x: Shape) -> Shape | None:
    """Return a shape [N, H, W, C] whose middle axes are the reduced ones; None if these are not adjacent."""
    axes = sorted(op.axes)
    if not axes or axes != list(range(axes[0], axes[-1] + 1)):
        return None
    reduced = [x[axis] for axis in axes]
    height = reduced[0] if len(reduced) > 1 else 1
    return (math.prod(x[: axes[0]]), height, math.prod(reduced) // height, math.prod(x[axes[-1] + 1 :]))


def _reduce_fault(node: Node) -> str:
    op, x = node.op, node.input(0).type
    assert isinstance(op, Reduce)
    image = _image_of(op, x.shape)
    if image is None:
        return "a reduction of axes that are not adjacent"
    if op.moves_data:
        return "" if x.quant == node.output.type.quant else "another scale of the result"
    fault = quantized_fault(node)
    requantizer = op._requantizer(node.sig)
    if fault or requantizer is None:
        return fault or f"no operation for {op.function}"
    return _size_fault(image[1:3]) or mean_fault(requantizer, image[1] * image[2] * max_offset_magnitude(x))


def _write_reduce(node: Node, writer: SegmentWriter) -> Tensor:
    op, source, out = node.op, node.input(0).type, node.output.type
    assert isinstance(op, Reduce)
    image = _image_of(op, source.shape)
    assert image is not None
    x = writer.reshape(writer.tensor(node.input(0)), image)
    if op.moves_data:
        kind = Op.REDUCE_MAX if op.function == "max" else Op.REDUCE_MIN
        for axis in (1, 2):
            shape = tuple(1 if a == axis else n for a, n in enumerate(x.shape))
            x = writer.graph.add(kind, [x], shape, x.dtype, [Scalar("i", axis), IGNORE_NAN])
        return writer.reshape(x, out.shape)
    requantizer = op._requantizer(node.sig)
    assert requantizer is not None
    largest = image[1] * image[2] * max_offset_magnitude(source)
    mean = _Mean(requantizer, largest, source.q.zero_point, out)
    sums = mean.write_sums(writer, x, image[1:3], _window_attributes((0, 0, 0, 0), (1, 1)), (image[0], 1, 1, image[3]))
    return writer.reshape(mean.finish(writer, sums), out.shape)


REDUCTIONS_LEGALIZATIONS = (
    Legalization(MaxPool, _max_fault, _write_max),
    Legalization(AveragePool, _average_fault, _write_average),
    Legalization(Reduce, _reduce_fault, _write_reduce),
)
"""The rules of this module."""
