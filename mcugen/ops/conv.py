# SPDX-License-Identifier: Apache-2.0
"""Convolution: fast kernels for one or two spatial axes and constant weights, plain loops for all others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import ClassVar, Self

import numpy as np

from mcugen import kernels
from mcugen.core.errors import ModelError
from mcugen.hir.crop import Box, Crop, replaced, whole
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import (
    Channels,
    ElementRun,
    IntegerForm,
    Operator,
    Partition,
    Permutation,
    RowForm,
    Shard,
    Signature,
)
from mcugen.hir.traits import (
    Channelwise,
    Clampable,
    Columnwise,
    Croppable,
    Expressible,
    Paddable,
    Partitionable,
    Quantizable,
    Rowwise,
    Weighted,
    run_along,
)
from mcugen.hir.types import Array, Bounds, DType, Layout, Shape, TensorType, required
from mcugen.kernels.common.specs import ConvSpec, WeightedSpec
from mcugen.kernels.portable.direct_conv import Arithmetic, direct_call
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Buffer
from mcugen.lir.spec import HasKernels
from mcugen.numerics.fixedpoint import Range, is_quantized
from mcugen.numerics.sums import exact_product, finish, largest_sums, layer_bounds, real_product
from mcugen.numerics.window import Window
from mcugen.ops.movement import Permuted, reshaped, to_channels_last
from mcugen.ops.onnx_node import OnnxNode, Refusal, onnx_operator
from mcugen.ops.pointwise import Binary
from mcugen.ops.spatial import CHANNEL_SHARD_MULTIPLE, Spatial, shard_channels, window_of
from mcugen.ops.weighted import by_output_channels, have_channels_alone, integer_weights, rounds_by_channel


def unfold(window: Window, groups: int, x: Array, kernel: Shape) -> Array:
    """Return the im2col matrices of a channels-last array, [groups, positions, C/groups · taps].

    Args:
        window: Strides, padding and dilations.
        groups: Number of groups of channels.
        x: Input, [N, *space, C].
        kernel: Spatial sizes of the kernel.
    """
    patches = window.patches(x, kernel, 0)
    return patches.reshape(math.prod(patches.shape[: x.ndim - 1]), groups, -1).transpose(1, 0, 2)


def correlate(window: Window, groups: int, x: Array, w: Array) -> Array:
    """Compute a convolution of channels-last arrays without bias; float sums are rounded once, integers are exact.

    Args:
        window: Strides, padding and dilations.
        groups: Number of groups of channels.
        x: Input, [N, *space, C].
        w: Weights, [O, *kernel, C/groups].
    """
    kernel = w.shape[1:-1]
    sums = _products(unfold(window, groups, x, kernel), w)
    return sums.reshape(x.shape[0], *window.output(x.shape[1:-1], kernel), len(w))


def _products(rows: Array, w: Array) -> Array:
    """Multiply unfolded inputs by weights that have channels last; return [positions, outputs]."""
    # rows are [C, *kernel]: bring the weights to that order
    groups, depth = len(rows), rows.shape[-1]
    columns = np.moveaxis(w, -1, 1).reshape(groups, len(w) // groups, depth).transpose(0, 2, 1)
    product = real_product(rows, columns) if rows.dtype.kind == "f" else exact_product(rows, columns)
    return product.transpose(1, 0, 2).reshape(-1, len(w))


class Conv(
    HasKernels,
    Quantizable,
    Weighted,
    Clampable,
    Channelwise,
    Rowwise,
    Columnwise,
    Croppable,
    Partitionable,
    Paddable,
    Expressible,
    Spatial,
):
    """Convolution (ONNX Conv, which is a correlation), clamped. Inputs x, constant weights w, optional bias [O].

    Channels first: x [N, C, *space], w [O, C/groups, *kernel]; channels last: x [N, *space, C], w [O, *kernel,
    C/groups].

    Attributes:
        groups: Number of groups of channels, as in ONNX.
        clamp: Limits of the result; None for no clamp.
        whole: If one core computes only some output channels of a layer by this operator, the number of channels that a
            pixel of the layer has in memory; else None.
        multiplier_bits: Largest number of significant bits of requantization multipliers; 0 for no limit.
    """

    mnemonic: ClassVar[str] = "conv"
    kernels: ClassVar[tuple[Kernel, ...]] = kernels.CONV_KERNELS
    weight_axes: ClassVar[Mapping[int, int]] = {1: 0}
    bias_input: ClassVar[int | None] = 2
    groups: int = 1
    clamp: Range | None = None
    whole: int | None = None
    multiplier_bits: int = field(default=0, kw_only=True)

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: the spatial sizes follow from strides, padding, dilations and kernel size."""
        x, w = required(inputs[:2])
        xs, ws = self._last(x), self._last(w)
        if x.rank != w.rank or xs[-1] != ws[-1] * self.groups or ws[0] % self.groups:
            raise ModelError("conv: channels must match the weights", f"{x.shape} by {w.shape}", "repair the model")
        space = self.window.output(xs[1:-1], ws[1:-1])
        if min(space, default=1) < 1:
            raise ModelError("conv: the kernel must fit the input", f"{ws[1:-1]} on {xs[1:-1]}", "use a larger input")
        shape = (xs[0], *space, ws[0]) if self.is_channels_last else (xs[0], ws[0], *space)
        layout = Layout.CHANNELS_LAST if self.is_channels_last else Layout.CHANNELS_FIRST
        return (TensorType(shape, DType.INT32 if x.quant else DType.FLOAT32, layout=layout),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy, as im2col and a matrix product, in float32 or in exact integers."""
        x, w = arrays[:2]
        bias = arrays[2] if len(arrays) > 2 else np.zeros(1, x.dtype)
        quant = sig.input(0).quant
        if quant is not None:
            return (self._finish(sig, self._sums(x.astype(np.int64) - quant.zero_point, w), w, bias),)
        return (self._real(self._sums(x, w), bias),)

    def of_unfolded(self, sig: Signature, rows: Array, *constants: Array) -> Array:
        """Finish the convolution from its im2col matrix: multiply by the weights, add the bias, clamp.

        Args:
            sig: Types of inputs and output.
            rows: The matrix that `unfolded` returned.
            constants: Weights and, if present, bias.
        """
        x, (w, *bias) = sig.input(0), constants
        sums = _products(rows, w.transpose(to_channels_last(w.ndim)))
        return self._real(sums.reshape(x.shape[0], *self.window.output(x.shape[2:], w.shape[2:]), len(w)), *bias)

    def _real(self, sums: Array, *bias: Array) -> Array:
        """Add the bias and clamp."""
        y = sums + bias[0] if bias else sums
        return self._turned(y if self.clamp is None else np.clip(y, *self.clamp).astype(sums.dtype))

    def _sums(self, x: Array, w: Array) -> Array:
        """Return the sums of products, channels last."""
        perm = to_channels_last(x.ndim)
        x, w = (a if self.is_channels_last else a.transpose(perm) for a in (x, w))
        return correlate(self.window, self.groups, x, w)

    def _finish(self, sig: Signature, sums: Array, w: Array, bias: Array) -> Array:
        """Requantize the sums."""
        sizes = largest_sums(sig.input(0), w, bias)
        return self._turned(finish(sums + bias, sig, self.clamp, sizes, multiplier_bits=self.multiplier_bits))

    def _turned(self, y: Array) -> Array:
        """Transpose from channels last to the order of this operator's tensors."""
        return y if self.is_channels_last else y.transpose(np.argsort(to_channels_last(y.ndim)))

    def bounds(self, sig: Signature, *inputs: Bounds | None) -> Sequence[Bounds | None]:
        """Return bounds of the quantized output elements, from bounds of the accumulators; None for real outputs."""
        return layer_bounds(sig, inputs, self._sums, partial(self._finish, sig))

    def channels(self, sig: Signature) -> Channels | None:
        """Return on which input channels each output channel depends, so that channel pruning can remove channels.

        With one group, each output channel is a sum over all input channels. In a depthwise convolution with one filter
        per channel, each output channel depends on the input channel of the same index. Return None for other groups
        and for channels-first tensors.
        """
        x, w, out = sig.input(0), sig.input(1), np.arange(sig.output.shape[-1])
        if not self.is_channels_last:
            return None
        if self.groups == 1:
            leaves = self.window.leaves(x.shape[1:-1], w.shape[1:-1])
            return Channels((None, out, out), lambda _: self, sums=True, leaves=leaves)
        if self.groups == x.shape[-1] == len(out):
            return Channels((out, out, out), lambda count: replace(self, groups=count))
        return None

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return how to compute some positions of the output, and in float some channels of constant weights."""
        sig, axis = node.sig, (len(region) - 1 if self.is_channels_last else 1)
        x, w, is_real = sig.input(0), sig.input(1), node.input(0).type.quant is None
        if self.groups > 1 or not is_real or not all(v is None or v.is_constant for v in node.inputs[1:]):
            region = replaced(region, {axis: range(sig.output.shape[axis])})
        window, writes, reads = self._cropped(sig, self._last(w)[1:-1], region, dilates=True)
        reads = replaced(reads, {axis: range(x.shape[axis])})
        constants = tuple(None if t is None else (writes[axis], *whole(t.shape[1:])) for t in sig.inputs[1:])
        return Crop(replace(self, window=window), writes, (reads, *constants))

    def unfolded(self, sig: Signature, x: Array) -> Array | None:
        """Return the im2col matrix [groups, positions, depth] of a channels-first input x; None for channels last."""
        if self.is_channels_last:
            return None
        return unfold(self.window, self.groups, x.transpose(to_channels_last(x.ndim)), sig.input(1).shape[2:])

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates: outputs · kernel size · input channels of a group."""
        return sig.output.count * math.prod(sig.input(1).shape[1:])

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return the convolution of quantized tensors, for int8 or int16 and symmetric weights; else None.

        It comes with its inputs: x, the integer weights (zero point 0) and the int32 bias.
        """
        form = integer_weights(graph, sig, inputs)
        return None if form is None else (self, form)

    def padded(self, x: Value, before: Shape, after: Shape) -> Self | None:
        """Return the convolution with a larger padding, which replaces a separate padding of x by zeros.

        Args:
            x: The tensor without the separate padding.
            before: Zeros before x along each axis.
            after: Zeros behind x along each axis.

        Returns:
            The convolution; None if the padding cannot be merged.
        """
        space = self._around(before, after)
        return replace(self, window=self.window.padded(*space)) if space else None

    def without_clamp(self) -> Self | None:
        """Return the convolution without its clamp; None if it has none."""
        return replace(self, clamp=None) if self.clamp else None

    def onnx_form(self, sig: Signature) -> tuple[str, Mapping[str, object], Sequence[Array]] | None:
        """Return the ONNX node that computes the layer's real result: Conv with its attributes."""
        w = self.window
        return (
            "Conv",
            {
                "group": self.groups,
                "strides": list(w.strides),
                "dilations": list(w.dilations),
                "pads": [*w.before, *w.after],
            },
            (),
        )

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Return how to compute the convolution row by row (for line-buffer fusion), from rows with all padding.

        Return None for channels-first tensors and for batches.
        """
        return self._by_rows(sig, self.window.sides)

    def by_narrow_rows(self, sig: Signature) -> RowForm | None:
        """Return how to compute the convolution row by row if rows have no padding columns (for line-buffer fusion).

        Depthwise kernels pad the columns themselves; other convolutions keep the result of `by_rows`. Return None for
        channels-first tensors and for batches.
        """
        return self._by_rows(sig, (0, 0) if self.groups > 1 else self.window.sides)

    def _by_rows(self, sig: Signature, sides: tuple[int, int]) -> RowForm | None:
        x, w = sig.input(0), sig.input(1)
        if not self.is_channels_last or x.shape[0] != 1:
            return None
        axis = self._axis_of_rows(sig, w.shape[1:-1])
        window, sides = self.window.of_one_row(axis), (0, 0) if axis else sides
        if sides == window.sides:
            none = (0,) * len(window.strides)
            window = replace(window, before=none, after=none)
        rows = replace(self.window.rows(w.shape[1 + axis], x.quant.zero_point if x.quant else 0, axis), sides=sides)
        return RowForm(replace(self, window=window), (rows, *(None,) * (len(sig.inputs) - 1)), rows.axis, extends=True)

    def some_columns(self, sig: Signature, start: int, stop: int) -> tuple[Operator, int, int] | None:
        """Return the convolution that computes only the output columns `start` to before `stop`, for spatial tiling.

        Returns:
            The convolution, with the padding that its windows reach; the first input column that it reads; and the
            column after the last one. None if the columns cannot be computed alone.
        """
        return self._columns(sig, sig.input(1).shape[1:-1], start, stop)

    def partitions(self, sig: Signature, inputs: Sequence[Value | None]) -> Sequence[Partition]:
        """Return the ways to split the output over cores: by rows, pixels, output channels or depthwise channels."""
        x, w = sig.input(0), sig.input(1)
        if not self.is_channels_last or x.shape[0] != 1 or inputs[1] is None or inputs[1].data is None:
            return ()
        kernel = w.shape[1:-1]
        if sig.output.count == len(inputs[1].data) and self.groups == 1:
            return by_output_channels(self, sig, inputs)
        if self.groups == 1 and math.prod(kernel) == math.prod(self.window.strides) == 1 and not self._pads:
            return (self._pixels(sig),)
        alone = (
            self.groups == x.shape[-1] == sig.output.shape[-1] >= 2 * CHANNEL_SHARD_MULTIPLE
            and self.groups % CHANNEL_SHARD_MULTIPLE == 0
        )
        lanes = [self._lanes(sig)] if alone and rounds_by_channel(sig, inputs) else []
        return (*lanes, self._bands(sig, kernel), *self._upright(sig))

    def has_channels_alone(self, sig: Signature, inputs: Sequence[Value | None]) -> bool:
        """Return whether a convolution with only some of the output channels computes these channels exactly.

        Output-channel tiling then divides the layer. The result is True for channels-last tensors, one group of
        channels, and constant weights and biases.
        """
        return self.is_channels_last and self.groups == 1 and self.whole is None and have_channels_alone(sig, inputs)

    def _upright(self, sig: Signature) -> Sequence[Partition]:
        """Return partitions of a one-dimensional input by pixels, each seen as a row.

        Kernels that copy rows then copy some pixels instead of the whole line.
        """
        x, w, out = sig.input(0), sig.input(1), sig.output
        if math.prod((*x.shape[1:-2], *out.shape[1:-2], *w.shape[1:-2])) != 1 or w.shape[-2] == 1:
            return ()
        window = self.window.upright()
        if len(window.strides) != 2 or any((window.before[1], window.after[1])):
            return ()
        tensors = [replace(t, shape=(t.shape[0], t.shape[-2], 1, t.shape[-1])) for t in (x, w, out)]
        turned = Signature((*tensors[:2], *sig.inputs[2:]), tuple(tensors[2:]))
        bands = replace(self, window=window)._bands(turned, tensors[1].shape[1:-1])

        def shard(start: int, stop: int) -> Shard:
            band = bands.shard(start, stop)
            return replace(band, reads=(band.reads[0], ElementRun(0, tensors[1].shape), *band.reads[2:]))

        return (Partition(bands.length, shard),)

    def _lanes(self, sig: Signature) -> Partition:
        """Return the partition of a depthwise convolution by channels: some channels of all pixels."""
        x, w, out = sig.input(0), sig.input(1), sig.output

        def shard(start: int, stop: int) -> Shard:
            first, count = start * CHANNEL_SHARD_MULTIPLE, (stop - start) * CHANNEL_SHARD_MULTIPLE
            reads, writes = (shard_channels(t, start, stop) for t in (x, out))
            weights = run_along((self.groups, *w.shape[1:]), 0, first, first + count)
            op = replace(self, groups=count, whole=self.groups)
            return Shard(op, (reads, weights, ElementRun(first, (count,)))[: len(sig.inputs)], writes)

        return Partition(self.groups // CHANNEL_SHARD_MULTIPLE, shard)

    @property
    def _pads(self) -> bool:
        return any((*self.window.before, *self.window.after))

    def _pixels(self, sig: Signature) -> Partition:
        """Return the partition by pixels, as if all pixels stood in one line."""
        (deep, wide), space = (t.shape[-1] for t in (sig.input(0), sig.output)), sig.output.shape[1:-1]
        whole_inputs = (None,) * (len(sig.inputs) - 1)

        def line(channels: int, start: int, stop: int) -> ElementRun:
            return ElementRun(start * channels, (1, *(1,) * (len(space) - 1), stop - start, channels))

        return Partition(
            math.prod(space),
            lambda start, stop: Shard(self, (line(deep, start, stop), *whole_inputs), line(wide, start, stop)),
        )

    def spec(self, node: Node) -> ConvSpec:
        """Return the layer's types, window, weights and clamp (channels last), from which kernels are chosen."""
        return ConvSpec.of(node, self.window, self.groups, self.clamp).with_pixel_channels(self.whole)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a call of the first kernel in `kernels` that supports the layer."""
        builder.lower(self.kernels, node)


# --------------------------------------------------------------------------------------------------- direct


class DirectConv(Conv):
    """A channels-first convolution of floats or quantized values with any number of spatial axes.

    Its kernel is a plain loop. Weights of float convolutions may be computed by other layers.
    """

    mnemonic: ClassVar[str] = "direct_conv"
    kernels: ClassVar[tuple[Kernel, ...]] = ()

    @property
    def wants_channels_last(self) -> bool:
        """Return False: the only kernel is written for channels-first tensors, so channels last is not faster."""
        return False

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: the shape of a convolution's output with the input's element type."""
        (out,) = super().infer(*inputs)
        assert inputs[0] is not None
        return (replace(out, dtype=inputs[0].dtype),)

    def permuted(self, sig: Signature, perm: Permutation) -> Permuted | None:
        """Return None: no transposition can be moved across the operator, which has no channels-last form."""
        return None

    def partitions(self, sig: Signature, inputs: Sequence[Value | None]) -> Sequence[Partition]:
        """Return an empty tuple: one core computes the whole layer, which is never split over cores."""
        return ()

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return the layer on quantized tensors, for int8 or int16 and constant symmetric weights; else None.

        It comes with its inputs: x, the integer weights and the int32 bias.
        """
        form = integer_weights(graph, sig, inputs) if is_quantized(sig.output) else None
        return None if form is None else (self, form)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to plain loops for floats of any width or for quantized tensors."""
        x, w, out = node.input(0).type, node.input(1).type, node.output.type
        operands: dict[str, Buffer] = {}
        how = Arithmetic.of_reals(out.dtype, self.clamp)
        if out.quant is not None:
            weights, bias = (node.input(i).data for i in (1, 2))
            assert weights is not None
            spec = WeightedSpec(x, w, out, weights, bias, self.clamp)
            how = Arithmetic.of_codes(spec)
            operands["multiplier"] = builder.const(f"{node.output.name}.multiplier", spec.multipliers)
        inputs = builder.operands(node, "x", "w", "bias", outputs=())
        operands = inputs | operands | {"y": builder.buffer(node.output)}
        builder.call(node, direct_call(operands, (x, w, out), self.window, self.groups, how))


class IntegerConv(Spatial):
    """y = Σ (x − x_zero)(w − w_zero) in int32 (ONNX ConvInteger), channels first; padding adds nothing.

    The inputs are x, w, x_zero (one element) and w_zero (one element, or one per output channel).

    Attributes:
        groups: Number of groups of channels, as in ONNX.
    """

    mnemonic: ClassVar[str] = "integer_conv"
    groups: int = 1

    @property
    def wants_channels_last(self) -> bool:
        """Return False: the only kernel is written for channels-first tensors, so channels last is not faster."""
        return False

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: the shape of a convolution's output, as int32."""
        (out,) = DirectConv(self.window, groups=self.groups).infer(*inputs[:2])
        return (replace(out, dtype=DType.INT32),)

    def permuted(self, sig: Signature, perm: Permutation) -> Permuted | None:
        """Return None: no transposition can be moved across the operator, which has no channels-last form."""
        return None

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the convolution in exact integer sums, which wrap like int32."""
        x, w, x_zero, w_zero = (a.astype(np.int64) for a in arrays)
        x, w = x - x_zero.reshape(-1)[0], w - w_zero.reshape(-1, *[1] * (w.ndim - 1))
        perm = to_channels_last(x.ndim)
        y = correlate(self.window, self.groups, x.transpose(perm), w.transpose(perm))
        return (y.transpose(np.argsort(perm)).astype(np.int32),)

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates: outputs · kernel size · input channels of a group."""
        return sig.output.count * math.prod(sig.input(1).shape[1:])

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to plain loops with 32-bit sums."""
        types = (node.input(0).type, node.input(1).type, node.output.type)
        operands = builder.operands(node, "x", "w", "x_zero_point", "w_zero_point")
        how = Arithmetic.of_integers(node.input(3).type.count)
        builder.call(node, direct_call(operands, types, self.window, self.groups, how))


# --------------------------------------------------------------------------------------------------- import


@onnx_operator("Conv", types=(DType.FLOAT32, DType.FLOAT64), kernels=(*(k.name for k in Conv.kernels), "conv_direct"))
def _import_conv(node: OnnxNode) -> list[Value]:
    x, w = node.input(0), node.input(1)
    node.require_dtype(x, DType.FLOAT32, DType.FLOAT64)
    node.require_dtype(w, x.type.dtype)
    window, groups = conv_window(node), int(node.attr("group", 1))
    inputs = [node.input(i) for i in range(3) if i < 2 or node.has(i)]
    if node.has(2) and node.input(2).type.shape != w.type.shape[:1]:
        shapes = f"{node.input(2).type.shape} for weights {w.type.shape}"
        raise Refusal("Conv: the bias must have one element a channel", shapes, "repair the model")
    if x.type.rank > 4 or x.type.dtype is DType.FLOAT64 or not _is_fixed(w):
        return [node.emit(DirectConv(window, groups=groups), *inputs)]
    op = Conv(window, groups=groups)
    if not node.has(2):
        return [node.emit(op, x, w)]
    bias = node.input(2)
    if _is_fixed(bias):
        return [node.emit(op, x, w, bias)]
    column = reshaped(node, bias, (1, bias.type.count, *[1] * (x.type.rank - 2)))
    return [node.emit(Binary("Add"), node.emit(op, x, w, suffix="product"), column)]


def conv_window(node: OnnxNode) -> Window:
    """Return the window of an ONNX convolution, whose kernel size is that of the weights."""
    x, w = node.input(0).type, node.input(1).type
    kernel = w.shape[2:]
    if x.rank < 3 or x.rank != w.rank:
        mismatch = f"{x.shape} by {w.shape}"
        raise ModelError(f"{node.op_type}: tensors must have spatial axes", mismatch, "repair the model")
    if tuple(node.integers("kernel_shape") or kernel) != kernel:
        mismatch = f"kernel_shape {node.attr('kernel_shape', kernel)}, weights {w.shape}"
        raise Refusal(f"{node.op_type}: kernel_shape must be that of the weights", mismatch, "repair the model")
    return window_of(node, x.shape[2:], kernel)


def has_fast_kernel(node: OnnxNode) -> bool:
    """Return whether the kernels for constant weights support a convolution: one or two spatial axes."""
    return node.input(0).type.rank in (3, 4) and _is_fixed(node.input(1))


def _is_fixed(value: Value) -> bool:
    """Return whether it depends on constants alone (perhaps through a Dequantize that is not folded yet)."""
    producer = value.producer
    return value.is_constant or (producer is not None and all(v is None or _is_fixed(v) for v in producer.inputs))
