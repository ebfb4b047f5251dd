# SPDX-License-Identifier: Apache-2.0
"""Transposed convolution, and Col2Im, which adds up overlapping blocks without the products."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, ClassVar

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import IntegerForm, Operator, RowForm, RowWindow, Signature
from mcugen.hir.traits import Clampable, Expressible, Quantizable, Rowwise, Simplifiable, Weighted
from mcugen.hir.types import (
    Array,
    DType,
    Layout,
    QuantParams,
    Shape,
    TensorType,
    are_halves,
    int8_multiples,
    required,
)
from mcugen.kernels.portable import few_output_channels
from mcugen.kernels.portable.direct_conv import ChannelGroups, spread_call
from mcugen.kernels.portable.transposed import CONV_TRANSPOSE_KERNELS, TransposedSpec
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import UPDATABLE, Kernel
from mcugen.lir.spec import HasKernels
from mcugen.numerics.fixedpoint import Range, is_quantized
from mcugen.numerics.sums import finish, largest_sums
from mcugen.numerics.window import Window
from mcugen.ops.conv import Conv
from mcugen.ops.conversion import Dequantize
from mcugen.ops.movement import Reshape, inverse, to_channels_last
from mcugen.ops.onnx_node import OnnxNode, onnx_operator
from mcugen.ops.spatial import Spatial, check_reach
from mcugen.ops.weighted import integer_weights

_FLOATS = (DType.FLOAT32, DType.FLOAT64)


class Scatter(Operator):
    """Base of operators that add each input position to several output positions (channels first).

    Input position i and kernel tap k contribute to output position i · stride − pad + k · dilation, where that exists.

    Attributes:
        window: Strides, padding and dilations.
        space: Spatial sizes of the output.
    """

    window: Window
    space: Shape = ()

    def _check_reach(self, x: Shape, kernel: Shape) -> None:
        """Positions must fit 32 bits."""
        w = self.window
        rows = zip(x, kernel, w.strides, w.dilations, w.before, strict=True)
        farthest = max(((n - 1) * s + (k - 1) * d + b for n, k, s, d, b in rows), default=0)
        if farthest >= 2**31 or min((*self.space, *x, *kernel), default=1) < 1:
            sizes = f"{kernel} on {x} to {self.space}"
            raise ModelError(f"{self.name}: the sizes must be positive and fit 32 bits", sizes, "repair the model")

    def _spread(self, parts: dict[tuple[int, ...], Array], kernel: Shape) -> Array:
        """Add the parts [N, C, *input space] of all kernel taps at their positions in the output."""
        first = next(iter(parts.values()))
        w = self.window
        rows = list(zip(first.shape[2:], kernel, w.strides, w.dilations, strict=True))
        sizes = [(n - 1) * s + (k - 1) * d + 1 for n, k, s, d in rows]
        whole = [max(size, b + out) for size, b, out in zip(sizes, w.before, self.space, strict=True)]
        y = np.zeros((*first.shape[:2], *whole), first.dtype)
        for tap, part in parts.items():
            at = [slice(k * d, k * d + (n - 1) * s + 1, s) for k, (n, _, s, d) in zip(tap, rows, strict=True)]
            y[(slice(None), slice(None), *at)] += part
        kept = [slice(b, b + out) for b, out in zip(w.before, self.space, strict=True)]
        return y[(slice(None), slice(None), *kept)]


class ConvTranspose(Quantizable, Weighted, Clampable, Expressible, Simplifiable, Scatter):
    """Transposed convolution (the gradient of a convolution), clamped.

    Inputs x [N, C, *space], w [C, O/groups, *kernel], optional bias [O].

    Attributes:
        groups: Number of groups of channels, as in ONNX.
        clamp: Limits of the result; None for no clamp.
    """

    mnemonic: ClassVar[str] = "conv_transpose"
    weight_axes: ClassVar[Mapping[int, int]] = {1: 1}
    bias_input: ClassVar[int | None] = 2
    groups: int = 1
    clamp: Range | None = None

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: the channels of the weights, and the spatial sizes in the attribute `space`."""
        x, w = required(inputs[:2])
        bias = inputs[2] if len(inputs) > 2 else None
        channels = w.shape[1] * self.groups
        fits = x.rank == w.rank == len(self.space) + 2 and self.groups > 0 and x.shape[1] % self.groups == 0
        if not fits or x.shape[1] != w.shape[0] or (bias is not None and bias.shape != (channels,)):
            mismatch = f"{x.shape} by {w.shape} in {self.groups} groups"
            raise ModelError("conv_transpose: channels must match the weights", mismatch, "repair the model")
        self._check_reach(x.shape[2:], w.shape[2:])
        return (TensorType((x.shape[0], channels, *self.space), x.dtype, layout=Layout.CHANNELS_FIRST),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Multiply all pixels by the weights of one kernel tap after the other, and add the results in place."""
        x, w = arrays[:2]
        kernel = w.shape[2:]
        grouped = x.reshape(x.shape[0], self.groups, -1, *x.shape[2:])
        filters = w.reshape(self.groups, -1, *w.shape[1:])
        parts: dict[tuple[int, ...], Array] = {}
        for tap in itertools.product(*map(range, kernel)):
            index: tuple[Any, ...] = (slice(None), slice(None), slice(None), *tap)
            part = np.einsum("ngc...,gco->ngo...", grouped, filters[index])
            parts[tap] = part.reshape(x.shape[0], -1, *x.shape[2:])
        y = self._spread(parts, kernel)
        if len(arrays) > 2:
            y = y + arrays[2].reshape(-1, *[1] * len(kernel))
        return (y if self.clamp is None else np.clip(y, *self.clamp).astype(x.dtype),)

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates: inputs · kernel size · output channels of a group."""
        return sig.input(0).count * math.prod(sig.input(1).shape[1:])

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Return, for stride 1, the equal convolution with the flipped kernel, which has faster kernels; else None."""
        x, w = node.input(0), node.input(1)
        if any(s != 1 for s in self.window.strides) or x.type.dtype is not DType.FLOAT32:
            return None
        window = self._turned_window(x.type.shape[2:], w.type.shape[2:])
        weights = self._turned_weights(graph, node, w) if window else None
        if window is None or weights is None:
            return None
        op = Conv(window, groups=self.groups, clamp=self.clamp)
        inputs = [x, weights, *node.inputs[2:]]
        return graph.add(op, inputs, node.origin, names=[f"{node.output.name}.turned"], before=node).output

    def _turned_window(self, x: Shape, kernel: Shape) -> Window | None:
        """Return the window of the equivalent convolution; None if its padding would be negative."""
        reach = [d * (k - 1) for d, k in zip(self.window.dilations, kernel, strict=True)]
        before = tuple(r - b for r, b in zip(reach, self.window.before, strict=True))
        after = tuple(out - n - b + r for out, n, b, r in zip(self.space, x, before, reach, strict=True))
        return replace(self.window, before=before, after=after) if min((*before, *after), default=0) >= 0 else None

    def _turned_weights(self, graph: Graph, node: Node, w: Value) -> Value | None:
        """Return weights as [O, C/groups, *kernel] with reversed taps; None for computed weights."""
        taps = tuple(range(2, w.type.rank))
        if w.data is not None:
            return graph.constant(f"{w.name}.turned", np.flip(swap_channels(w.data, self.groups), taps).copy(), of=[w])
        source = w.producer
        stored = source.input(0) if source is not None and isinstance(source.op, Dequantize) else None
        by_output = self._by_output(graph, stored) if stored is not None and stored.data is not None else None
        if source is None or by_output is None or by_output.data is None:
            return None
        data, type_ = np.flip(by_output.data, taps).copy(), by_output.type
        turned = graph.constant(f"{w.name}.turned", data, type_.quant, type_.dtype, of=[by_output])
        return graph.add(source.op, [turned], source.origin, before=node).output

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return the transposed convolution of quantized tensors, with its inputs; None if there is none.

        It exists for int8 or int16, one or two spatial axes and symmetric weights (zero point 0). Its weights are
        stored by output channel.
        """
        x, w = inputs[0], inputs[1]
        if x is None or w is None or x.type.rank > 4 or w.data is None or not is_quantized(sig.output):
            return None
        by_output = self._by_output(graph, w)
        form = None if by_output is None else integer_weights(graph, sig, [x, by_output, *inputs[2:]])
        return None if form is None else (TransposedConv(self.window, False, self.space, self.groups, self.clamp), form)

    def _by_output(self, graph: Graph, w: Value) -> Value | None:
        """Quantized weights as [O, C/groups, *kernel]; channels of all groups share the scales of the stored ones."""
        assert w.data is not None
        quant = w.type.quant
        if quant is None or quant.axis not in (None, 1):
            return None
        params = quant if quant.axis is None else QuantParams(quant.scale * self.groups, quant.zero_point, 0)
        return graph.constant(f"{w.name}.by_output", swap_channels(w.data, self.groups), params, of=[w])

    def onnx_form(self, sig: Signature) -> tuple[str, Mapping[str, object], Sequence[Array]] | None:
        """Return the ONNX node that computes the layer's real result: a ConvTranspose with a result of size `space`.

        The three parts are the operator's name, its attributes, and arrays to append to the inputs, of which there are
        none. The result is never None.
        """
        w = self.window
        rows = zip(sig.input(0).shape[2:], sig.input(1).shape[2:], w.strides, w.dilations, w.before, strict=True)
        full = [(n - 1) * s + (k - 1) * d + 1 - b for n, k, s, d, b in rows]
        excess = [f - out for f, out in zip(full, self.space, strict=True)]
        attributes: dict[str, object] = {
            "group": self.groups,
            "strides": list(w.strides),
            "dilations": list(w.dilations),
            "pads": [*w.before, *(max(e, 0) for e in excess)],
            "output_padding": [max(-e, 0) for e in excess],
        }
        return "ConvTranspose", attributes, ()

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to plain loops over rows of the output.

        Constant weights are stored as float16 or int8 where this loses nothing: each is widened once for a whole plane.
        """
        x, w = node.input(0).type, node.input(1).type
        operands = builder.operands(node, "x", "w", "bias")
        weights = node.input(1).data
        if weights is not None and UPDATABLE not in builder.features:
            constants = narrow_weights(weights, self.groups)
            operands |= {role: builder.const(f"{node.output.name}.{role}", array) for role, array in constants.items()}
        channels = ChannelGroups(
            batch=x.shape[0],
            groups=self.groups,
            group_in_channels=w.shape[0] // self.groups,
            group_out_channels=w.shape[1],
        )
        spaces = (x.shape[2:], self.space, w.shape[2:])
        builder.call(node, spread_call(operands, self.window, spaces, channels, self.clamp))


class IntegerConvTranspose(Scatter):
    """Transposed convolution with exact int32 sums: x int16 [N, C, *space], w int8 [C, O/groups, *kernel].

    The weights may be computed. The caller must know that the sums fit in 32 bits.

    Attributes:
        groups: Number of groups of channels, as in ONNX.
    """

    mnemonic: ClassVar[str] = "integer_conv_transpose"
    groups: int = 1

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: int32, the channels of the weights, and the spatial sizes of attribute `space`."""
        (out,) = ConvTranspose(self.window, self.space, self.groups).infer(*inputs)
        return (replace(out, dtype=DType.INT32),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the transposed convolution in exact integer sums."""
        (y,) = ConvTranspose(self.window, self.space, self.groups).evaluate(sig, *(a.astype(np.int64) for a in arrays))
        return (y.astype(np.int32),)

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates: inputs · kernel size · output channels of a group."""
        return sig.input(0).count * math.prod(sig.input(1).shape[1:])

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to the kernel that the float operator uses, with integer elements."""
        x, w = node.input(0).type, node.input(1).type
        operands = builder.operands(node, "x", "w")
        size, spaces = w.shape[0] // self.groups, (x.shape[2:], self.space, w.shape[2:])
        channels = ChannelGroups(
            batch=x.shape[0], groups=self.groups, group_in_channels=size, group_out_channels=w.shape[1]
        )
        builder.call(node, spread_call(operands, self.window, spaces, channels))


def swap_channels(weights: Array, groups: int) -> Array:
    """Return weights [C, O/groups, *kernel] of a transposed convolution in the order [O, C/groups, *kernel]."""
    grouped = weights.reshape(groups, -1, *weights.shape[1:]).swapaxes(1, 2)
    return np.ascontiguousarray(grouped.reshape(-1, *grouped.shape[2:]))


def narrow_weights(weights: Array, groups: int) -> dict[str, Array]:
    """Return float32 weights of a transposed convolution in fewer bytes, by the names of the kernel's operands.

    Args:
        weights: Weights, [C, O/groups, *kernel].
        groups: Number of groups of channels.

    Returns:
        `w` as int8 with a `scale` of each output channel; else `w` as float16; empty if both would change the weights
        or need more bytes.
    """
    if weights.dtype != np.float32:
        return {}
    by_output = swap_channels(weights, groups)
    multiples = int8_multiples(by_output.reshape(len(by_output), -1))
    if multiples is not None and weights.size > 2 * len(by_output):
        return {"w": swap_channels(multiples[0].reshape(by_output.shape), groups), "scale": multiples[1]}
    return {"w": weights.astype(np.float16)} if are_halves(weights) else {}


class TransposedConv(HasKernels, Rowwise, Spatial):
    """Transposed convolution of quantized x with symmetric weights: the integer form of ConvTranspose.

    Weights are [O, C/groups, *kernel], or [O, *kernel, C/groups] if channels last. Each output pixel is the sum over
    the input pixels that contribute to it. The padding at the end (`window.after`) is not used: the output's size
    decides it.

    Attributes:
        space: Spatial sizes of the output.
        groups: Number of groups of channels, as in ONNX.
        clamp: Limits of the real result; None for no clamp.
        multiplier_bits: Largest number of significant bits of requantization multipliers; 0 for no limit.
    """

    mnemonic: ClassVar[str] = "conv_transpose"
    kernels: ClassVar[tuple[Kernel, ...]] = (*few_output_channels.ONE_CHANNEL_CONV_TRANSPOSE, *CONV_TRANSPOSE_KERNELS)
    space: Shape = ()
    groups: int = 1
    clamp: Range | None = None
    multiplier_bits: int = field(default=0, kw_only=True)

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: the channels of the weights, and the spatial sizes in the attribute `space`."""
        x, w = required(inputs[:2])
        if self._last(x)[-1] != self._last(w)[-1] * self.groups:
            raise ModelError("conv_transpose: channels must match", f"{x.shape} by {w.shape}", "repair the model")
        channels = w.shape[0]
        if self.is_channels_last:
            return (TensorType((x.shape[0], *self.space, channels), DType.INT32, layout=Layout.CHANNELS_LAST),)
        return (TensorType((x.shape[0], channels, *self.space), DType.INT32, layout=Layout.CHANNELS_FIRST),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the transposed convolution in exact integer sums, and requantize them."""
        perm = to_channels_last(arrays[0].ndim)
        x, w = (a.astype(np.int64) for a in arrays[:2])
        if self.is_channels_last:
            x, w = x.transpose(inverse(perm)), w.transpose(inverse(perm))
        real = ConvTranspose(self.window, self.space, self.groups)
        (acc,) = real.evaluate(sig, x - sig.input(0).q.zero_point, swap_channels(w, self.groups))
        sizes = largest_sums(sig.input(0), arrays[1], arrays[2])
        sums = acc.transpose(perm) + arrays[2]
        y = finish(sums, sig, self.clamp, sizes, multiplier_bits=self.multiplier_bits)
        return (y if self.is_channels_last else y.transpose(inverse(perm)),)

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates: inputs · kernel size · output channels of a group."""
        w = sig.input(1)
        return sig.input(0).count * w.count // self._last(w)[-1] // self.groups

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Return how to compute the output row by row (for line-buffer fusion): `stride` output rows per step.

        A step reads the input rows that contribute to these output rows. Return None for channels-first tensors, for
        batches, and if no input row contributes.
        """
        x, w = sig.input(0), sig.input(1)
        if not self.is_channels_last or x.shape[0] != 1:
            return None
        stride, before, dilation = (row[0] for row in (self.window.strides, self.window.before, self.window.dilations))
        meets = [row + before - tap * dilation for row in range(stride) for tap in range(w.shape[1])]
        rows = [at // stride for at in meets if at % stride == 0]
        if not rows:
            return None
        first, last = min(rows), max(rows)
        window = replace(self.window, before=(before - stride * first, *self.window.before[1:]))
        op = replace(self, window=window, space=(stride, *self.space[1:]))
        reads = RowWindow(1, last - first + 1, 1, -first, x.q.zero_point, goes_on=True)
        return RowForm(op, (reads, *(None,) * (len(sig.inputs) - 1)), rows=stride)

    def spec(self, node: Node) -> TransposedSpec:
        """Return the layer's types, window, weights and clamp (channels last), from which kernels are chosen."""
        return TransposedSpec.of(node, self.window, self.groups, self.clamp)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a call of the first kernel in `kernels` that supports the layer; one spatial axis becomes two."""
        builder.lower(self.kernels, node)


class FoldColumns(Scatter):
    """y [N, C, *space] = the sum of overlapping blocks x [N, C, taps, positions]: the reverse of im2col (col2im).

    Attributes:
        kernel: Spatial sizes of a block, whose product is `taps`.
    """

    mnemonic: ClassVar[str] = "fold_columns"
    kernel: Shape = ()

    @property
    def _positions(self) -> Shape:
        """Return the number of blocks along each axis of the padded image."""
        return self.window.output(self.space, self.kernel)

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: an image [N, C, *space], whose spatial sizes are the attribute `space`."""
        (x,) = required(inputs)
        positions = self._positions
        self._check_reach(positions, self.kernel)
        if x.shape[2:] != (math.prod(self.kernel), math.prod(positions)):
            shapes = f"{x.shape[2:]}, not ({math.prod(self.kernel)}, {math.prod(positions)})"
            raise ModelError("fold_columns: blocks and positions must match the input", shapes, "repair the model")
        return (TensorType((*x.shape[:2], *self.space), x.dtype, layout=Layout.CHANNELS_FIRST),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the image by adding the blocks, one kernel tap after the other."""
        (x,) = arrays
        positions = self._positions
        taps = itertools.product(*map(range, self.kernel))
        parts = {tap: x[:, :, i].reshape(*x.shape[:2], *positions) for i, tap in enumerate(taps)}
        return (self._spread(parts, self.kernel),)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to the loops of the transposed convolution."""
        x = node.input(0).type
        operands = builder.operands(node, "x")
        channels = ChannelGroups(batch=x.shape[0], groups=x.shape[1], group_in_channels=1, group_out_channels=1)
        spaces = (self._positions, self.space, self.kernel)
        builder.call(node, spread_call(operands, self.window, spaces, channels))


# --------------------------------------------------------------------------------------------------- import


def _row(node: OnnxNode, key: str, rank: int, default: int) -> tuple[int, ...]:
    entries = tuple(int(v) for v in node.integers(key) or (default,) * rank)
    if len(entries) != rank:
        raise ModelError(f"{node.op_type}: {key} must have one entry an axis", f"{entries}", "repair the model")
    check_reach(node, entries)
    return entries


@onnx_operator("ConvTranspose", types=_FLOATS, kernels=("conv_transpose", *(k.name for k in TransposedConv.kernels)))
def _import_conv_transpose(node: OnnxNode) -> list[Value]:
    x, w = node.input(0), node.input(1)
    node.require_dtype(x, *_FLOATS)
    node.require_dtype(w, x.type.dtype)
    rank = x.type.rank - 2
    kernel, space = w.type.shape[2:], x.type.shape[2:]
    if rank < 1 or w.type.rank != x.type.rank or tuple(node.integers("kernel_shape") or kernel) != kernel:
        mismatch = f"{x.type.shape} by {w.type.shape}, kernel_shape {node.integers('kernel_shape')}"
        raise ModelError("ConvTranspose: the kernel must be that of the weights", mismatch, "repair the model")
    strides, dilations = _row(node, "strides", rank, 1), _row(node, "dilations", rank, 1)
    if min(strides + dilations) < 1:
        raise ModelError("ConvTranspose: strides and dilations must be positive", f"{strides}", "repair the model")
    more, pads = _row(node, "output_padding", rank, 0), _row(node, "pads", 2 * rank, 0)
    full = [
        s * (n - 1) + o + d * (k - 1) + 1 for n, k, s, d, o in zip(space, kernel, strides, dilations, more, strict=True)
    ]
    auto = node.attr("auto_pad", "NOTSET")
    output_shape = node.attr("output_shape", None)
    if output_shape or auto in ("SAME_UPPER", "SAME_LOWER"):
        # exporters also write batch and channels
        out = (
            tuple(int(v) for v in output_shape[-rank:])
            if output_shape
            else tuple(n * s for n, s in zip(space, strides, strict=True))
        )
        total = [max(f - o, 0) for f, o in zip(full, out, strict=True)]
        before = tuple(t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total)
    else:
        before = (0,) * rank if auto == "VALID" else pads[:rank]
        after = (0,) * rank if auto == "VALID" else pads[rank:]
        out = tuple(f - b - a for f, b, a in zip(full, before, after, strict=True))
    window = Window(strides, before, (0,) * rank, dilations)
    op = ConvTranspose(window, out, int(node.attr("group", 1)))
    return [node.emit(op, *(node.input(i) for i in range(3) if i < 2 or node.has(i)))]


@onnx_operator("Col2Im", types=_FLOATS, kernels=("conv_transpose",), limits="constant block_shape")
def _import_col2im(node: OnnxNode) -> list[Value]:
    x = node.input(0)
    node.require_dtype(x, *_FLOATS)
    kernel = tuple(node.ints("block_shape", 2) or ())
    declared = node.declared[0] if node.declared else None
    known = declared is not None and node.input(1).data is None
    space = declared.shape[2:] if known and declared is not None else tuple(node.ints("image_shape", 1) or ())
    rank, taps = len(kernel), math.prod(kernel)
    if not kernel or min(kernel) < 1 or len(space) != rank or x.type.rank != 3 or x.type.shape[1] % taps:
        mismatch = f"{x.type.shape}, blocks {kernel}, image {space}"
        raise ModelError("Col2Im: the input must hold blocks of the image", mismatch, "repair the model")
    strides, dilations = _row(node, "strides", rank, 1), _row(node, "dilations", rank, 1)
    pads = _row(node, "pads", 2 * rank, 0)
    if min(strides + dilations) < 1:
        raise ModelError("Col2Im: strides and dilations must be positive", f"{strides}", "repair the model")
    batch, rows, positions = x.type.shape
    apart = node.emit(Reshape((batch, rows // taps, taps, positions)), x, suffix="blocks")
    return [node.emit(FoldColumns(Window(strides, pads[:rank], pads[rank:], dilations), space, kernel), apart)]
