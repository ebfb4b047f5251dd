# SPDX-License-Identifier: Apache-2.0
"""Layers as their kernels see them: types, constants, and quantities derived from these, computed once on demand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.operator import Signature
from mcugen.hir.types import Array, DType, TensorType, are_halves, int8_multiples
from mcugen.kernels.common.conv_shape import ConvShape
from mcugen.lir.program import Overlap
from mcugen.lir.traversal import Traversal, overlap
from mcugen.numerics.fixedpoint import Range, Requantizer, clamp_range
from mcugen.numerics.sums import folded_bias, largest_sums, product_sums, requantizer, sum_dtype
from mcugen.numerics.window import Window


@dataclass(frozen=True, eq=False)
class WeightedSpec:
    """A layer that sums products with constant weights (convolution or fully connected), as its kernels see it.

    Attributes:
        x: Type of the layer's input tensor.
        w: Type of the layer's weights.
        y: Type of the layer's output tensor.
        weights: Weights, [out_channels, ...]; quantized values in integer layers.
        bias: Bias, [out_channels], in units of the accumulators in integer layers; None if absent.
        clamp: Range that results are clamped to, in real numbers; None without a clamp.
    """

    x: TensorType
    w: TensorType
    y: TensorType
    weights: Array
    bias: Array | None
    clamp: Range | None

    @cached_property
    def sig(self) -> Signature:
        """Return the signature of the layer: types of the input x, the weights and the output y, without the bias."""
        return Signature((self.x, self.w), (self.y,))

    @property
    def channels(self) -> int:
        """Return the number of output channels."""
        return len(self.weights)

    @cached_property
    def rows(self) -> Array:
        """Return the weights as a matrix [out_channels, depth], one row for each output channel."""
        return self.weights.reshape(self.channels, -1)

    @cached_property
    def has_half_weights(self) -> bool:
        """Return whether float16 represents every weight of the layer exactly."""
        return are_halves(self.weights)

    @cached_property
    def scaled_int8_rows(self) -> tuple[Array, Array] | None:
        """Return the weights of a float layer as int8 [out_channels, depth] and float32 scales [out_channels].

        None if the weights are no products of these, but for float32 rounding.
        """
        return int8_multiples(self.rows)

    @property
    def depth(self) -> int:
        """Return the number of products per sum, which is the number of weights of an output channel."""
        return math.prod(self.weights.shape[1:])

    def overlaps(self, *orders: Traversal) -> list[Overlap]:
        """Return how far the output y may overlap the input x in memory, for the memory planner.

        The list is empty if no overlap is allowed.

        Args:
            orders: The orders in which the kernel may read x and write y; the overlap is safe for all of them.
        """
        return overlap(self.x, self.y, *orders)

    # ---------------------------------------------------------------------------------------- of integers

    @property
    def integer_bias(self) -> Array:
        """Return the bias of an integer layer, by output channel, in units of the accumulators."""
        assert self.bias is not None, "integer layers always have one"
        return self.bias

    @cached_property
    def largest_sums(self) -> Array:
        """Return an upper bound of the accumulator's magnitude for each output channel, [out_channels]."""
        return largest_sums(self.x, self.weights, self.integer_bias)

    @cached_property
    def largest_sum(self) -> int:
        """Return an upper bound of the magnitude of the accumulators of all output channels."""
        return int(self.largest_sums.max(initial=0))

    @property
    def acc(self) -> DType:
        """Return the type of the integer accumulators: int32, or int64 if 32 bits are too few."""
        return sum_dtype(self.largest_sums)

    @cached_property
    def folded_bias(self) -> Array:
        """Return the bias with x's zero point folded in: bias − zero_point · Σ weights, int64 by channel."""
        return folded_bias(self.sig, self.weights, self.integer_bias)

    @cached_property
    def channel_offsets(self) -> Array:
        """Return, for each output channel, the offset to subtract from its weights so that they fit int8.

        Weights of layers with zero points may have nine bits: they are unsigned 8-bit values less a zero point.

        Returns:
            int32 [out_channels], of the smallest possible magnitude; 0 for channels whose weights fit already.
        """
        low, high = DType.INT8.limits
        rows = self.rows.astype(np.int32)
        parts: Array = np.maximum(rows.max(1) - high, 0) + np.minimum(rows.min(1) - low, 0)
        return parts

    @cached_property
    def int8_rows(self) -> Array:
        """Return the weights as int8 [out_channels, depth], after an offset of each output channel is subtracted.

        The offsets (`channel_offsets`) are such that all weights fit int8; 0 for channels whose weights fit already.
        """
        rows: Array = (self.rows - self.channel_offsets[:, None]).astype(np.int8)
        return rows

    @property
    def is_requantized(self) -> bool:
        """Return whether the accumulators are requantized to the quantized values of y.

        False if the output is the int32 accumulators themselves, and for float layers.
        """
        return self.x.quant is not None and self.y.quant is not None and self.y.dtype is not DType.INT32

    @property
    def is_sums(self) -> bool:
        """Return whether the output holds the int32 accumulators themselves, without requantization.

        False for float layers, and if accumulators need 64 bits.
        """
        return self.x.quant is not None and self.y.dtype is DType.INT32 and self.acc is DType.INT32

    @cached_property
    def requantizer(self) -> Requantizer:
        """Return the requantization of accumulators to quantized values of y, with a multiplier per output channel."""
        return requantizer(self.sig, self.largest_sums)

    @cached_property
    def high_word(self) -> Requantizer:
        """Return the requantization of accumulators, rewritten to a right shift of 32 bits if an equal one exists.

        With a shift of 32 bits, a kernel's result is the high word of the 64-bit product of accumulator and multiplier.
        """
        return self.requantizer.for_high_word()

    @cached_property
    def multipliers(self) -> Array:
        """Return the requantization multiplier of each output channel, int32 [out_channels].

        They belong to `high_word`, the requantization whose right shift is 32 bits if possible.
        """
        return np.broadcast_to(self.high_word.multiplier, self.channels).astype(np.int32)

    @cached_property
    def limits(self) -> tuple[int, int]:
        """Return the lowest and the highest quantized value that y can have, by its type and the clamp."""
        low, high = clamp_range(self.clamp, self.y.q, self.y.dtype)
        return low, high

    @property
    def is_clamped(self) -> bool:
        """Return whether a clamp limits quantized results further than their type does; False for an int32 output."""
        return self.y.dtype is not DType.INT32 and self.limits != self.y.dtype.limits

    @property
    def is_int8(self) -> bool:
        """Return whether x, weights and y are all quantized int8."""
        return all(t.dtype is DType.INT8 and t.quant is not None for t in (self.x, self.w, self.y))

    # ------------------------------------------------------------------------------------------ of floats

    @cached_property
    def float_bias(self) -> Array:
        """Return the bias as float32 by channel; zeros if there is none."""
        return np.zeros(self.channels, np.float32) if self.bias is None else self.bias.astype(np.float32).reshape(-1)

    @property
    def float_limits(self) -> Range:
        """Return the range that results are clamped to; −∞ and ∞ without a clamp."""
        return self.clamp or (-math.inf, math.inf)


@dataclass(frozen=True, eq=False)
class ConvSpec(WeightedSpec):
    """A convolution as its kernels see it, channels last.

    A fully connected layer is a 1×1 convolution over a row of pixels.

    Attributes:
        shape: Geometry of the convolution.
    """

    shape: ConvShape

    @staticmethod
    def of(node: Node, window: Window, groups: int, clamp: Range | None) -> ConvSpec:
        """Return the specification, for kernels, of a convolution node with inputs x, weights and perhaps a bias.

        If a single window covers the whole input, and the input has one row or one column, the specification is that of
        a fully connected layer.

        Args:
            node: The node, channels last.
            window: Strides, dilations and padding.
            groups: Groups of channels.
            clamp: Range that results are clamped to, if any.
        """
        x, w, y = node.input(0).type, node.input(1).type, node.output.type
        shape = ConvShape.of_layer(x.shape, w.shape, y.shape, window, groups)
        weights, bias = _constants(node)
        if shape.is_one_window:
            ones = (1,) * (x.rank - 1)
            x, w = replace(x, shape=(*ones, x.count)), replace(w, shape=(len(weights), *ones[1:], x.count))
            weights, shape = weights.reshape(w.shape), ConvShape.of_rows(1, x.count, len(weights))
        return ConvSpec(x, w, y, weights, bias, clamp, shape)

    def with_pixel_channels(self, whole: int | None) -> ConvSpec:
        """Return the specification for tensors whose pixels have more channels in memory than the layer covers.

        This is so if the channels of a layer are divided between two cores: each core computes some channels of each
        pixel.

        Args:
            whole: Channels of a pixel in memory; None if the layer covers all.
        """
        return replace(self, shape=replace(self.shape, pixel_channels=whole))

    @staticmethod
    def of_rows(node: Node, clamp: Range | None) -> ConvSpec:
        """Return the specification of a fully connected layer, as a 1×1 convolution whose pixels are the rows of x.

        Args:
            node: The node, with weights [channels, depth].
            clamp: Range that results are clamped to, if any.
        """
        x, w, y = node.input(0).type, node.input(1).type, node.output.type
        channels, depth = w.shape
        return ConvSpec(x, w, y, *_constants(node), clamp, ConvShape.of_rows(y.count // channels, depth, channels))


def _constants(node: Node) -> tuple[Array, Array | None]:
    """Return weights (input 1) and bias (input 2, may be absent) of a node."""
    weights, bias = node.input(1).data, node.inputs[2] if len(node.inputs) > 2 else None
    assert weights is not None, "weights must be constant"
    return weights, None if bias is None else bias.data


@dataclass(frozen=True, eq=False)
class MatMulSpec:
    """A matrix product of two activations as its kernels see it: y[b, m, n] = factor · Σ_k a[b, m, k] · b[b, k, n].

    Attributes:
        a: Type of the left matrices, [..., m, k].
        b: Type of the right matrices, [..., k, n].
        y: Type of the result, [..., m, n].
        factor: Real factor that every sum of products is multiplied by.
    """

    a: TensorType
    b: TensorType
    y: TensorType
    factor: float = 1.0

    @cached_property
    def sig(self) -> Signature:
        """Return the signature of the product: types of the inputs a and b, and of the output y."""
        return Signature((self.a, self.b), (self.y,))

    @property
    def batch(self) -> int:
        """Return the number of matrix products, the product of all axes of a but the last two."""
        return math.prod(self.a.shape[:-2])

    @property
    def rows(self) -> int:
        """Return the number of rows of a and y (m)."""
        return self.a.shape[-2]

    @property
    def depth(self) -> int:
        """Return the number of products per sum (k)."""
        return self.a.shape[-1]

    @property
    def columns(self) -> int:
        """Return the number of columns of b and y (n)."""
        return self.b.shape[-1]

    @cached_property
    def largest_sums(self) -> Array:
        """Return an upper bound of the magnitude of the integer accumulators, as an array of one number."""
        return product_sums(self.sig)

    @property
    def acc(self) -> DType:
        """Return the type of the integer accumulators: int32, or int64 if 32 bits are too few."""
        return sum_dtype(self.largest_sums)

    @cached_property
    def requantizer(self) -> Requantizer:
        """Return the requantization of accumulators to quantized values of y: one multiplier, shift and zero point."""
        return requantizer(self.sig, self.largest_sums, self.factor, by_weights=False)

    def overlaps(self) -> list[Overlap]:
        """Return how far the output y may overlap the inputs a and b in memory, for the memory planner.

        A kernel reads all elements of a pair of matrices before it writes the last element of their product. The list
        is empty if no overlap is allowed.
        """
        return [
            allowed
            for role, read in (("a", self.a), ("b", self.b))
            for allowed in overlap(read, self.y, self._by_matrix(read), into=role)
        ]

    def _by_matrix(self, read: TensorType) -> Traversal:
        starts = np.arange(math.prod(self.y.shape[:-2])) * math.prod(read.shape[-2:])
        return Traversal.rereading(starts, math.prod(self.y.shape[-2:]))
