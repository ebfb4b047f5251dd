# SPDX-License-Identifier: Apache-2.0
"""Rules of layers with products: convolutions, transposed convolutions, dense layers and matrix products."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from mcugen.backends.npu.ethos_u.legalization.rule import Legalization, int8_fault, quantized_fault
from mcugen.backends.npu.ethos_u.legalization.writer import MAX_SHIFT, SegmentWriter, rescale_fault
from mcugen.backends.npu.ethos_u.tosa.flatbuffer import Scalar, Vector
from mcugen.backends.npu.ethos_u.tosa.graph import Op, Tensor, TosaType
from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType, Shape, TensorType
from mcugen.numerics.fixedpoint import Requantizer, clamp_range, is_quantized
from mcugen.numerics.sums import largest_sums, product_sums, requantizer
from mcugen.ops.conv import Conv
from mcugen.ops.conv_transpose import TransposedConv
from mcugen.ops.matmul import Dense, MatMul

MAX_KERNEL_HEIGHT, MAX_KERNEL_SIZE = 64, 4096
"""Largest height, and largest number of taps, of a convolution's kernel on the NPU."""

MAX_GROUPS = 64
"""Largest number of groups of several channels, each of which is a convolution of its own."""

MAX_STRIDE = 3
"""Largest stride of a convolution on the NPU."""

SHORT_MULTIPLIER_BITS = 15
"""Bits of the multipliers with which the NPU requantizes sums of more than 32 bits; on Ethos-U85, all sums of int16
tensors. Sums of 32 bits have multipliers of 31 bits, which Vela writes for int16 layers with int32 biases, too."""

MAX_WIDE_SUM = 2**39
"""Exclusive bound of the sums of int16 layers: Ethos-U55 has accumulators of 40 bits."""

MAX_WEIGHT_SUM = 127 * 65536
"""Largest sum of the magnitudes of an output channel's weights on the NPU."""

ChannelChoice = slice | Array
"""A choice of output channels: a range, or their numbers."""

NO_LOCAL_BOUND = Scalar("?", False)
"""Attribute of convolutions that only matters for floats."""


def is_int8(tensor: TensorType) -> bool:
    """Return whether a tensor is a quantized int8 tensor."""
    return tensor.dtype is DType.INT8 and is_quantized(tensor)


def weights_fault(node: Node) -> str:
    """Return why the NPU does not take the weights, bias and requantization of a layer; "" if it does."""
    has_sums = node.output.type.dtype is DType.INT32
    fault = quantized_fault(node) if not has_sums or not is_int8(node.input(0).type) else ""
    if fault:
        return fault
    w, bias = node.input(1), node.input(2) if len(node.inputs) > 2 else None
    if w.data is None or (bias is not None and bias.data is None):
        return "weights that are computed"
    if w.type.dtype is not DType.INT8:
        return f"{w.type.dtype.value} weights"
    sums = _largest(node)
    if np.abs(w.data.astype(np.int64)).reshape(len(w.data), -1).sum(1).max(initial=0) > MAX_WEIGHT_SUM:
        return "sums of too many weights"
    if has_sums:
        return ""
    if node.input(0).type.dtype is DType.INT16:
        return _wide_fault(node, sums)
    return rescale_fault(_requantizer(node), sums)


def _wide_fault(node: Node, sums: Array) -> str:
    """Return why the NPU does not compute an int16 layer, as a phrase; "" if it does.

    Args:
        node: The layer.
        sums: The largest magnitude of the accumulators, by channel.
    """
    requantize = _requantizer(node)
    if not _is_short(requantize):
        return rescale_fault(requantize, sums)
    fits = sums.max(initial=0) < MAX_WIDE_SUM and np.abs(_bias(node)).max(initial=0) < MAX_WIDE_SUM
    return "" if fits and requantize.shift <= MAX_SHIFT else "sums of more bits than an accumulator has"


def _is_short(requantize: Requantizer) -> bool:
    """Return whether the NPU applies the multipliers of a requantization to sums of more than 32 bits."""
    return bool((requantize.multiplier == requantize.shortened(SHORT_MULTIPLIER_BITS).multiplier).all())


def _requantizer(node: Node) -> Requantizer:
    op = node.op
    assert isinstance(op, Conv | TransposedConv | Dense)
    return requantizer(node.sig, _largest(node)).shortened(op.multiplier_bits)


def _largest(node: Node) -> Array:
    weights = node.input(1).data
    assert weights is not None
    return largest_sums(node.input(0).type, weights, _bias(node))


def _bias(node: Node) -> Array:
    weights = node.input(1).data
    assert weights is not None
    bias = node.input(2).data if len(node.inputs) > 2 else None
    return np.zeros(len(weights), np.int64) if bias is None else bias.reshape(-1).astype(np.int64)


ALL_CHANNELS = np.s_[:]
"""All output channels of a layer."""


def finish_layer(
    node: Node,
    writer: SegmentWriter,
    accumulators: Tensor,
    clamp: tuple[float, float] | None,
    outputs: ChannelChoice = ALL_CHANNELS,
) -> Tensor:
    """Write the requantization of a layer with weights, and return its output in the shape of the accumulators.

    Layers with int32 results have none.

    Args:
        node: The layer.
        writer: The writer of its segment.
        accumulators: The int32 sums, channels last.
        clamp: Limits of the real result; None for no clamp.
        outputs: The output channel of each channel of the accumulators.
    """
    out = node.output.type
    if out.dtype is DType.INT32:
        return accumulators
    requantize = _requantizer(node)
    if not _is_short(requantize):
        accumulators = writer.as_int32(accumulators)
    if len(requantize.multiplier) > 1:
        requantize = replace(requantize, multiplier=requantize.multiplier[outputs])
    return writer.requantize(accumulators, requantize, out, clamp_range(clamp, out.q, out.dtype))


def as_image(shape: Shape) -> Shape:
    """Return the shape [N, H, W, C] of a channels-last tensor with one or two spatial axes."""
    return (shape[0], 1, *shape[1:]) if len(shape) == 3 else shape


def _pair(values: tuple[int, ...], missing: int) -> tuple[int, int]:
    """Return the vertical and horizontal number of a window that has one or two spatial axes."""
    return (missing, values[0]) if len(values) == 1 else (values[0], values[1])


# ---------------------------------------------------------------------------------------------- convolutions


def _conv_fault(node: Node) -> str:
    op, x, w = node.op, node.input(0).type, node.input(1).type
    assert isinstance(op, Conv)
    if not op.is_channels_last or op.whole is not None or not 3 <= x.rank <= 4:
        return "another layout than channels last with one or two spatial axes"
    if op.groups > MAX_GROUPS and not is_depthwise(op, x, w):
        return f"{op.groups} groups of several channels"
    kernel = as_image(w.shape)[1:3]
    if kernel[0] > MAX_KERNEL_HEIGHT or math.prod(kernel) > MAX_KERNEL_SIZE:
        return f"a kernel of {kernel[0]} x {kernel[1]}"
    if max(op.window.strides) > MAX_STRIDE and op.groups > 1:
        return f"groups with a stride of {max(op.window.strides)}"
    return weights_fault(node)


def is_depthwise(op: Conv, x: TensorType, w: TensorType) -> bool:
    """Return whether each output channel of a convolution reads one of several input channels."""
    return op.groups > 1 and op.groups == x.shape[-1] and w.shape[-1] == 1 and w.shape[0] % op.groups == 0


def _excess(node: Node) -> tuple[int, int]:
    """Return the rows and columns at the end of the padded input that no window reaches; TOSA demands none."""
    op, x, w = node.op, as_image(node.input(0).type.shape), as_image(node.input(1).type.shape)
    assert isinstance(op, Conv)
    window = op.window
    rows = zip(
        x[1:3],
        w[1:3],
        _pair(window.strides, 1),
        _pair(window.before, 0),
        _pair(window.after, 0),
        _pair(window.dilations, 1),
        as_image(node.output.type.shape)[1:3],
        strict=True,
    )
    height, width = (n + b + a - d * (k - 1) - 1 - (out - 1) * s for n, k, s, b, a, d, out in rows)
    return height, width


def _write_conv(node: Node, writer: SegmentWriter) -> Tensor:
    op, out = node.op, node.output.type
    assert isinstance(op, Conv)
    x = writer.reshape(writer.tensor(node.input(0)), as_image(node.input(0).type.shape))
    weights = node.input(1).data
    assert weights is not None
    weights = weights.reshape(as_image(weights.shape))
    window, excess = op.window, _excess(node)
    if max(window.strides) > MAX_STRIDE:
        return _write_wide_strides(node, writer, x, weights)
    before, after = _pair(window.before, 0), list(_pair(window.after, 0))
    reached = list(x.shape)
    for axis in range(2):  # TOSA takes no rows behind the last window: leave out padding, then rows of the input.
        padding = min(after[axis], excess[axis])
        after[axis] -= padding
        reached[1 + axis] -= excess[axis] - padding
    x = writer.slice(x, (0, 0, 0, 0), tuple(reached))
    pad = (before[0], after[0], before[1], after[1])
    attributes: list[Scalar | Vector] = [
        Vector.of("i", pad),
        Vector.of("i", _pair(window.strides, 1)),
        Vector.of("i", _pair(window.dilations, 1)),
    ]
    shape = as_image(out.shape)
    if is_depthwise(op, node.input(0).type, node.input(1).type):  # [O, H, W, 1] to [H, W, C, O / C]
        per_channel = len(weights) // op.groups
        weights = weights[..., 0].reshape(op.groups, per_channel, *weights.shape[1:3]).transpose(2, 3, 0, 1)
        y = _convolve(node, writer, Op.DEPTHWISE_CONV2D, x, weights, shape, attributes)
        return writer.reshape(finish_layer(node, writer, y, op.clamp), out.shape)
    parts, depth, count = list[Tensor](), weights.shape[-1], len(weights) // op.groups
    for group in range(op.groups):
        part = writer.slice(x, (0, 0, 0, group * depth), (*x.shape[:-1], depth))
        outputs = np.s_[group * count : (group + 1) * count]
        y = _convolve(node, writer, Op.CONV2D, part, weights[outputs], (*shape[:-1], count), attributes, outputs)
        parts.append(finish_layer(node, writer, y, op.clamp, outputs))
    return writer.reshape(writer.concat(parts, 3), out.shape)


def _write_wide_strides(node: Node, writer: SegmentWriter, x: Tensor, weights: Array) -> Tensor:
    """Write a convolution of wide strides: what lies under one stride becomes channels, so that the stride is 1."""
    op, out = node.op, node.output.type
    assert isinstance(op, Conv)
    window, shape, zero = op.window, as_image(out.shape), node.input(0).type.q.zero_point
    strides, dilations, before = _pair(window.strides, 1), _pair(window.dilations, 1), _pair(window.before, 0)
    kernel = [(k - 1) * d + 1 for k, d in zip(weights.shape[1:3], dilations, strict=True)]
    taps = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
    spread = np.zeros((len(weights), taps[0] * strides[0], taps[1] * strides[1], weights.shape[-1]), np.int8)
    spread[:, : kernel[0] : dilations[0], : kernel[1] : dilations[1]] = weights
    sizes = [(n - 1 + t) * s for n, t, s in zip(shape[1:3], taps, strides, strict=True)]
    reached = [min(n, size - b) for n, size, b in zip(x.shape[1:3], sizes, before, strict=True)]
    x = writer.slice(x, (0, 0, 0, 0), (x.shape[0], *reached, x.shape[3]))
    after = [size - b - n for size, b, n in zip(sizes, before, reached, strict=True)]
    x = writer.pad(x, (0, 0, before[0], after[0], before[1], after[1], 0, 0), zero)
    (batch, height, width, channels), (down, right) = x.shape, strides
    x = writer.reshape(x, (batch, height // down, down, width // right, right * channels))
    if down > 1:
        x = writer.transpose(x, (0, 1, 3, 2, 4))
    x = writer.reshape(x, (batch, height // down, width // right, down * right * channels))
    split = spread.reshape(-1, taps[0], down, taps[1], right * channels).transpose(0, 1, 3, 2, 4)
    ones = Vector.of("i", (1, 1))
    attributes: list[Scalar | Vector] = [Vector.of("i", (0, 0, 0, 0)), ones, ones]
    y = _convolve(node, writer, Op.CONV2D, x, split.reshape(len(spread), *taps, -1), shape, attributes)
    return writer.reshape(finish_layer(node, writer, y, op.clamp), out.shape)


def _convolve(
    node: Node,
    writer: SegmentWriter,
    kind: Op,
    x: Tensor,
    weights: Array,
    shape: Shape,
    attributes: list[Scalar | Vector],
    outputs: ChannelChoice = ALL_CHANNELS,
) -> Tensor:
    """Write a convolution and return its int32 sums."""
    is_wide, bias = x.dtype is TosaType.INT16, _bias(node)[outputs]
    sums = TosaType.INT48 if is_wide else TosaType.INT32
    operands = [
        x,
        writer.graph.constant(np.ascontiguousarray(weights)),
        writer.graph.constant(bias, sums) if is_wide else writer.graph.constant(bias.astype(np.int32)),
        writer.zero_point(node.input(0).type.q.zero_point, x.dtype),
        writer.zero_point(0, TosaType.INT8),
    ]
    return writer.graph.add(kind, operands, shape, sums, [*attributes, NO_LOCAL_BOUND, Scalar("I", sums)])


# --------------------------------------------------------------------------------------- transposed convolutions


@dataclass(frozen=True)
class _Phases:
    """Some outputs of one axis of a transposed convolution, as channels of a convolution of stride 1.

    Output q · stride + p − before, in which p is a phase, is the sum over the weights t of x[q + offset] · w[t] with
    offset = (p − t) / stride, where that is an integer.

    Attributes:
        taps: The weight t of each phase and offset [phases, offsets]; −1 for none.
        first: The first offset.
        size: Number of elements of x.
        count: Number of results q.
    """

    taps: Array
    first: int
    size: int
    count: int

    @staticmethod
    def of(size: int, kernel: int, stride: int, count: int, phases: range) -> _Phases:
        """Return the outputs of these phases.

        Args:
            size: Number of elements of x.
            kernel: Number of weights, with the gaps of a dilation.
            stride: Distance of the outputs of neighbouring inputs.
            count: Number of results q.
            phases: The phases.
        """
        tap_of = {(p, (p - t) // stride): t for p in phases for t in range(kernel) if (p - t) % stride == 0}
        offsets = [offset for _, offset in tap_of] or [0]
        span = range(min(offsets), max(offsets) + 1)
        taps = np.array([[tap_of.get((p, offset), -1) for offset in span] for p in phases])
        return _Phases(taps, span[0], size, count)

    @property
    def read(self) -> range:
        """Return the elements of x that are read."""
        return range(max(self.first, 0), min(self.count + self.first + self.taps.shape[1] - 1, self.size))

    @property
    def padding(self) -> tuple[int, int]:
        """Return the padding before and behind the elements that are read."""
        return max(-self.first, 0), self.count + self.first + self.taps.shape[1] - 1 - self.read.stop


def _phases(node: Node) -> tuple[list[_Phases], _Phases]:
    """Return each vertical phase of a transposed convolution, and all horizontal ones together."""
    op, x, w = node.op, as_image(node.input(0).type.shape), as_image(node.input(1).type.shape)
    assert isinstance(op, TransposedConv)
    strides, dilations = _pair(op.window.strides, 1), _pair(op.window.dilations, 1)
    (down, right), before, space = strides, _pair(op.window.before, 0), as_image(node.output.type.shape)[1:3]
    height, width = ((k - 1) * d + 1 for k, d in zip(w[1:3], dilations, strict=True))
    counts = [-(-length // stride) for length, stride in zip(space, strides, strict=True)]
    rows = [_Phases.of(x[1], height, down, counts[0], range(p, p + 1)) for p in range(before[0], before[0] + down)]
    return rows, _Phases.of(x[2], width, right, counts[1], range(before[1], before[1] + right))


def _transposed_fault(node: Node) -> str:
    op, x = node.op, node.input(0).type
    assert isinstance(op, TransposedConv)
    if not op.is_channels_last or not 3 <= x.rank <= 4 or op.groups > MAX_GROUPS:
        return "another form than channels last with one or two spatial axes"
    rows, columns = _phases(node)
    height, width = max(row.taps.shape[1] for row in rows), columns.taps.shape[1]
    if height * width > MAX_KERNEL_SIZE or height > MAX_KERNEL_HEIGHT:
        return "a large kernel"
    if not all(phases.read for phases in (*rows, columns)):
        return "outputs that no input reaches"
    return weights_fault(node)


def _spread_weights(node: Node) -> Array:
    """Return weights [O, H, W, C / groups] with the gaps of a dilation, and with a row and a column of zeros behind."""
    op, w = node.op, node.input(1).data
    assert isinstance(op, TransposedConv) and w is not None
    w = w.reshape(as_image(w.shape))
    down, right = _pair(op.window.dilations, 1)
    height, width = (w.shape[1] - 1) * down + 1, (w.shape[2] - 1) * right + 1
    spread: Array = np.zeros((len(w), height + 1, width + 1, w.shape[-1]), np.int8)
    spread[:, :height:down, :width:right] = w
    return spread


def _write_transposed(node: Node, writer: SegmentWriter) -> Tensor:
    """Write a transposed convolution as convolutions of stride 1, one for each vertical phase and group.

    The horizontal phases are further output channels, which lie in memory as columns.
    """
    op, out = node.op, node.output.type
    assert isinstance(op, TransposedConv)
    x, weights = writer.reshape(writer.tensor(node.input(0)), as_image(node.input(0).type.shape)), _spread_weights(node)
    (batch, height, width, channels), ones = as_image(out.shape), Vector.of("i", (1, 1))
    count, depth, (lines, columns) = channels // op.groups, x.shape[3] // op.groups, _phases(node)
    step, num_rows, num_columns = len(columns.taps), lines[0].count, columns.count
    rows = list[Tensor]()
    for line in lines:
        attributes: list[Scalar | Vector] = [Vector.of("i", (*line.padding, *columns.padding)), ones, ones]
        parts = list[Tensor]()
        for group in range(op.groups):
            size = (batch, len(line.read), len(columns.read), depth)
            part = writer.slice(x, (0, line.read.start, columns.read.start, group * depth), size)
            outputs = np.arange(group * count, (group + 1) * count)
            chosen = weights[outputs][:, line.taps[0]][:, :, columns.taps].transpose(2, 0, 1, 3, 4)
            outputs = np.tile(outputs, step)
            y = _convolve(
                node,
                writer,
                Op.CONV2D,
                part,
                chosen.reshape(-1, *chosen.shape[2:]),
                (batch, num_rows, num_columns, len(outputs)),
                [*attributes],
                outputs,
            )
            y = finish_layer(node, writer, y, op.clamp, outputs)
            parts.append(writer.reshape(y, (batch * num_rows, num_columns * step, 1, count)))
        rows.append(writer.reshape(writer.concat(parts, 3), (batch * num_rows, 1, num_columns * step * channels)))
    y = writer.reshape(writer.concat(rows, 1), (batch, num_rows * len(lines), num_columns * step, channels))
    return writer.reshape(writer.slice(y, (0, 0, 0, 0), (batch, height, width, channels)), out.shape)


# ------------------------------------------------------------------------------------------- matrix products


def _write_dense(node: Node, writer: SegmentWriter) -> Tensor:
    """Write a dense layer as a 1 x 1 convolution, whose pixels are the rows of x."""
    op, x, out = node.op, node.input(0).type, node.output.type
    assert isinstance(op, Dense)
    rows, depth = x.count // x.shape[-1], x.shape[-1]
    weights = node.input(1).data
    assert weights is not None
    pixels = writer.reshape(writer.tensor(node.input(0)), (1, 1, rows, depth))
    attributes = [Vector.of("i", (0, 0, 0, 0)), Vector.of("i", (1, 1)), Vector.of("i", (1, 1))]
    y = _convolve(
        node,
        writer,
        Op.CONV2D,
        pixels,
        weights.reshape(-1, 1, 1, depth),
        (1, 1, rows, out.shape[-1]),
        [*attributes],
    )
    return writer.reshape(finish_layer(node, writer, y, op.clamp), out.shape)


def _matmul_fault(node: Node) -> str:
    op = node.op
    assert isinstance(op, MatMul)
    fault = int8_fault(node)
    if fault or node.input(0).is_constant or node.input(1).is_constant:
        return fault or "a constant operand"
    sums = product_sums(node.sig)
    return rescale_fault(requantizer(node.sig, sums, op.factor, by_weights=False), sums)


def _write_matmul(node: Node, writer: SegmentWriter) -> Tensor:
    op, out = node.op, node.output.type
    assert isinstance(op, MatMul)
    operands, zeros = [], []
    for index in (0, 1):
        value = node.input(index)
        shape = (math.prod(value.type.shape[:-2]), *value.type.shape[-2:])
        operands.append(writer.reshape(writer.tensor(value), shape))
        zeros.append(writer.zero_point(value.type.q.zero_point, TosaType.INT8))
    shape = (operands[0].shape[0], *out.shape[-2:])
    y = writer.graph.add(Op.MATMUL, [*operands, *zeros], shape, TosaType.INT32)
    requantize = requantizer(node.sig, product_sums(node.sig), op.factor, by_weights=False)
    return writer.reshape(writer.requantize(y, requantize, out, out.dtype.limits), out.shape)


WEIGHTED_LEGALIZATIONS = (
    Legalization(Conv, _conv_fault, _write_conv),
    Legalization(TransposedConv, _transposed_fault, _write_transposed),
    Legalization(Dense, weights_fault, _write_dense),
    Legalization(MatMul, _matmul_fault, _write_matmul),
)
"""The rules of this module."""
