# SPDX-License-Identifier: Apache-2.0
"""Layers as their kernels know them: types, constants, and what follows from these, computed once, when asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.operator import Signature
from mcugen.hir.types import Array, DType, TensorType, are_halves
from mcugen.kernels.common.conv_shape import ConvShape
from mcugen.lir.program import Overlap
from mcugen.lir.traversal import Traversal, overlap
from mcugen.numerics.fixedpoint import Range, Requantizer, clamp_range
from mcugen.numerics.sums import folded_bias, largest_sums, product_sums, requantizer, sum_dtype
from mcugen.numerics.window import Window


@dataclass(frozen=True, eq=False)
class WeightedSpec:
    """A layer that sums products with constant weights, whose axis 0 counts output channels."""

    x: TensorType
    w: TensorType
    y: TensorType
    weights: Array
    bias: Array | None
    clamp: Range | None
    """Of real results."""

    @cached_property
    def sig(self) -> Signature:
        """Its types."""
        return Signature((self.x, self.w), (self.y,))

    @property
    def channels(self) -> int:
        """Of the output."""
        return len(self.weights)

    @cached_property
    def rows(self) -> Array:
        """The weights as [channels, depth]."""
        return self.weights.reshape(self.channels, -1)

    @cached_property
    def has_half_weights(self) -> bool:
        """Whether float16 holds each weight as it is."""
        return are_halves(self.weights)

    @property
    def depth(self) -> int:
        """Products of a sum."""
        return math.prod(self.weights.shape[1:])

    def overlaps(self, *orders: Traversal) -> list[Overlap]:
        """How far y may lie over x for a kernel that goes so."""
        return overlap(self.x, self.y, *orders)

    # ---------------------------------------------------------------------------------------- of integers

    @property
    def integer_bias(self) -> Array:
        """In units of the sums."""
        assert self.bias is not None, "integer layers always have one"
        return self.bias

    @cached_property
    def largest_sums(self) -> Array:
        """What no accumulator exceeds, by output channel."""
        return largest_sums(self.x, self.weights, self.integer_bias)

    @cached_property
    def largest_sum(self) -> int:
        """The largest of them."""
        return int(self.largest_sums.max(initial=0))

    @property
    def acc(self) -> DType:
        """The type of accumulators."""
        return sum_dtype(self.largest_sums)

    @cached_property
    def folded_bias(self) -> Array:
        """By channel, int64: the bias less what the zero point of x adds to the sums."""
        return folded_bias(self.sig, self.weights, self.integer_bias)

    @cached_property
    def common_parts(self) -> Array:
        """By channel, int32: the least that all its weights can be less by to be int8; 0 where they are."""
        low, high = DType.INT8.limits
        rows = self.rows.astype(np.int32)
        parts: Array = np.maximum(rows.max(1) - high, 0) + np.minimum(rows.min(1) - low, 0)
        return parts

    @cached_property
    def byte_rows(self) -> Array:
        """The weights as int8 [channels, depth], less their common parts."""
        rows: Array = (self.rows - self.common_parts[:, None]).astype(np.int8)
        return rows

    @property
    def is_requantized(self) -> bool:
        """Whether sums become codes: y has a scale, and is not the sums themselves."""
        return self.x.quant is not None and self.y.quant is not None and self.y.dtype is not DType.INT32

    @property
    def is_sums(self) -> bool:
        """Whether the sums of codes are the result, and 32 bits hold them."""
        return self.x.quant is not None and self.y.dtype is DType.INT32 and self.acc is DType.INT32

    @cached_property
    def requantizer(self) -> Requantizer:
        """From sums to codes."""
        return requantizer(self.sig, self.largest_sums)

    @cached_property
    def high_word(self) -> Requantizer:
        """The same, by the upper words of products where that can be."""
        return self.requantizer.for_high_word()

    @cached_property
    def multipliers(self) -> Array:
        """Of `high_word`, int32 by channel."""
        return np.broadcast_to(self.high_word.multiplier, self.channels).astype(np.int32)

    @cached_property
    def limits(self) -> tuple[int, int]:
        """The lowest and the highest code of y."""
        low, high = clamp_range(self.clamp, self.y.q, self.y.dtype)
        return low, high

    @property
    def is_clamped(self) -> bool:
        """Whether they are narrower than its type; sums never are."""
        return self.y.dtype is not DType.INT32 and self.limits != self.y.dtype.limits

    @property
    def is_int8(self) -> bool:
        """Whether tensors and weights are int8 codes."""
        return all(t.dtype is DType.INT8 and t.quant is not None for t in (self.x, self.w, self.y))

    # ------------------------------------------------------------------------------------------ of floats

    @cached_property
    def float_bias(self) -> Array:
        """float32 by channel, of zeros if there is none."""
        return np.zeros(self.channels, np.float32) if self.bias is None else self.bias.astype(np.float32).reshape(-1)

    @property
    def float_limits(self) -> Range:
        """What results are clamped to, −∞ and ∞ if to nothing."""
        return self.clamp or (-math.inf, math.inf)


@dataclass(frozen=True, eq=False)
class ConvSpec(WeightedSpec):
    """A convolution, channels last; a fully connected layer is one of pixels in a row."""

    shape: ConvShape

    @staticmethod
    def of(node: Node, window: Window, groups: int, clamp: Range | None) -> ConvSpec:
        """Of a node with inputs x, weights and perhaps a bias. A line that is one window is a dense layer."""
        x, w, y = node.input(0).type, node.input(1).type, node.output.type
        shape = ConvShape.of_layer(x.shape, w.shape, y.shape, window, groups)
        weights, bias = _constants(node)
        if shape.is_one_window:
            ones = (1,) * (x.rank - 1)
            x, w = replace(x, shape=(*ones, x.count)), replace(w, shape=(len(weights), *ones[1:], x.count))
            weights, shape = weights.reshape(w.shape), ConvShape.of_rows(1, x.count, len(weights))
        return ConvSpec(x, w, y, weights, bias, clamp, shape)

    def some_of(self, whole: int | None) -> ConvSpec:
        """The same of some channels of pixels that have so many."""
        return replace(self, shape=replace(self.shape, whole_c=whole))

    @staticmethod
    def of_rows(node: Node, clamp: Range | None) -> ConvSpec:
        """Of a fully connected layer: each row of x is a pixel."""
        x, w, y = node.input(0).type, node.input(1).type, node.output.type
        channels, depth = w.shape
        return ConvSpec(x, w, y, *_constants(node), clamp, ConvShape.of_rows(y.count // channels, depth, channels))


def _constants(node: Node) -> tuple[Array, Array | None]:
    """Weights and bias of a node whose inputs 1 and 2 they are."""
    weights, bias = node.input(1).data, node.inputs[2] if len(node.inputs) > 2 else None
    assert weights is not None, "weights must be constant"
    return weights, None if bias is None else bias.data


@dataclass(frozen=True, eq=False)
class MatMulSpec:
    """A product of two activations: y[b, m, n] = factor · Σ_k a[b, m, k] · b[b, k, n]."""

    a: TensorType
    b: TensorType
    y: TensorType
    factor: float = 1.0

    @cached_property
    def sig(self) -> Signature:
        """Its types."""
        return Signature((self.a, self.b), (self.y,))

    @property
    def batch(self) -> int:
        """Products of matrices."""
        return math.prod(self.a.shape[:-2])

    @property
    def rows(self) -> int:
        """Of a, and of y."""
        return self.a.shape[-2]

    @property
    def depth(self) -> int:
        """Products of a sum."""
        return self.a.shape[-1]

    @property
    def columns(self) -> int:
        """Of b, and of y."""
        return self.b.shape[-1]

    @cached_property
    def largest_sums(self) -> Array:
        """What no accumulator of integers exceeds (one number)."""
        return product_sums(self.sig)

    @property
    def acc(self) -> DType:
        """The type of accumulators of integers."""
        return sum_dtype(self.largest_sums)

    @cached_property
    def requantizer(self) -> Requantizer:
        """From sums to codes."""
        return requantizer(self.sig, self.largest_sums, self.factor, by_weights=False)

    def overlaps(self) -> list[Overlap]:
        """How far y may lie over a and b: all of a batch's matrices are read until the last of their product is
        written."""
        return [
            each
            for role, read in (("a", self.a), ("b", self.b))
            for each in overlap(read, self.y, self._by_matrix(read), into=role)
        ]

    def _by_matrix(self, read: TensorType) -> Traversal:
        starts = np.arange(math.prod(self.y.shape[:-2])) * math.prod(read.shape[-2:])
        return Traversal.rereading(starts, math.prod(self.y.shape[-2:]))
