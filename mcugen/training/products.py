# SPDX-License-Identifier: Apache-2.0
"""Layers as products of int8 values: int32 sums forward, and gradients by inputs and by weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Operator
from mcugen.hir.types import DType, QuantParams, Shape, TensorType
from mcugen.ops.conv import Conv, IntegerConv
from mcugen.ops.conv_transpose import IntegerConvTranspose
from mcugen.ops.gradient.products import correlated
from mcugen.ops.gradient.rule import Backward
from mcugen.ops.matmul import Dense, MatMul
from mcugen.ops.movement import Reshape, Transpose
from mcugen.training.parameters import each_position

LONGEST_CODES = 2**31 - 1
"""Largest magnitude of int32 sums."""
UNIT_QUANT = QuantParams((1.0,), 0)
"""Quantization of integers whose scale is stored elsewhere."""


def codes_of(shape: Shape, dtype: DType) -> TensorType:
    """Return the type of symmetric quantized values with scale 1."""
    return TensorType(shape, dtype, UNIT_QUANT)


@dataclass(frozen=True)
class Emitter:
    """An emitter of nodes at the end of a graph, with the names of the ONNX nodes that they come from."""

    graph: Graph
    origin: Sequence[str] = ()

    def __call__(self, op: Operator, *inputs: Value, type_: TensorType | None = None) -> Value:
        """Add an operator and return its result, of type `type_` if that is given."""
        return self.graph.add(op, inputs, self.origin, types=[] if type_ is None else [type_]).output

    def reshaped(self, x: Value, shape: Shape) -> Value:
        """Return x in another shape."""
        return x if x.type.shape == shape else self(Reshape(shape), x)

    def turned(self, x: Value) -> Value:
        """Return the transpose of a matrix."""
        rows, columns = x.type.shape
        return self.reshaped(x, (columns, rows)) if 1 in (rows, columns) else self(Transpose((1, 0)), x)


@dataclass(frozen=True)
class Geometry:
    """A dense layer, or a convolution of one image channels first, from x to y by weights [C, …]."""

    op: Conv | Dense
    x: Shape
    y: Shape
    w: Shape

    @property
    def channels(self) -> int:
        """Return the number of output channels."""
        return self.w[0]

    @property
    def depth(self) -> int:
        """Return the number of weights of an output channel."""
        return math.prod(self.w[1:])

    @property
    def positions(self) -> int:
        """Return the number of output positions, which bounds the uses of each weight."""
        return math.prod(self.y) // self.channels

    @property
    def meeting(self) -> int:
        """Return the largest number of results that depend on one element of x."""
        groups = self.op.groups if isinstance(self.op, Conv) else 1
        return self.channels // groups * math.prod(self.w[2:])

    @property
    def is_matrix(self) -> bool:
        """Return whether the layer is a product of two matrices: windows of one position, and no groups."""
        if isinstance(self.op, Dense):
            return True
        return self.op.groups == math.prod(self.w[2:]) == 1 and self.op.window == each_position(self.op.window)

    def sums(self, emit: Emitter, x: Value, w: Value) -> Value:
        """Return the products of inputs and weights, int32 [C, positions]."""
        if self.is_matrix:
            return emit(MatMul(), self._weights(emit, w), self.columns(emit, x))
        assert isinstance(self.op, Conv)
        zeros = [emit.graph.constant("zero", np.full(1, zero, np.int8)) for zero in (x.type.q.zero_point, 0)]
        products = emit(IntegerConv(self.op.window, groups=self.op.groups), emit.reshaped(x, self.x), w, *zeros)
        return self.by_channel(emit, products)

    def by_inputs(self, emit: Emitter, error: Value, w: Value) -> Value:
        """Return the gradient by the inputs, int32 in the shape of x, from errors [C, positions] and weights."""
        if not self.is_matrix:
            assert isinstance(self.op, Conv)
            op = IntegerConvTranspose(self.op.window, self.x[2:], self.op.groups)
            return emit(op, emit.reshaped(error, self.y), w)
        rows = emit(MatMul(), emit.turned(error), self._weights(emit, w))
        return emit.reshaped(rows if isinstance(self.op, Dense) else emit.turned(rows), self.x)

    def by_weights(self, emit: Emitter, node: Node, error: Value, x: Value) -> Value:
        """Return the gradient by the weights of a convolution, int32 [C, depth].

        Args:
            emit: Adds operators.
            node: The layer.
            error: The errors [C, positions].
            x: The inputs of the layer.
        """
        shape = (self.channels, self.depth)
        assert isinstance(self.op, Conv)
        back = Backward(emit.graph, node)
        zeros = [emit.graph.constant("zero", np.full(1, zero, np.int8)) for zero in (x.type.q.zero_point, 0)]
        correlation = correlated(
            back,
            self.op,
            emit.reshaped(x, self.x),
            self.w[2:],
            emit.reshaped(error, self.y),
            lambda window, groups, images, filters: emit(IntegerConv(window, groups=groups), images, filters, *zeros),
        )
        return emit.reshaped(correlation, shape)

    def by_channel(self, emit: Emitter, y: Value) -> Value:
        """Return a tensor with the shape of y as [C, positions]."""
        if isinstance(self.op, Dense):
            return emit.turned(emit.reshaped(y, (self.positions, self.channels)))
        return emit.reshaped(y, (self.channels, self.positions))

    def as_result(self, emit: Emitter, rows: Value) -> Value:
        """Return rows in the shape of the output."""
        return emit.reshaped(emit.turned(rows) if isinstance(self.op, Dense) else rows, self.y)

    def _weights(self, emit: Emitter, w: Value) -> Value:
        return emit.reshaped(w, (self.channels, self.depth))

    def columns(self, emit: Emitter, x: Value) -> Value:
        """Return a tensor with the shape of x as [depth, positions], for a layer that is a matrix product."""
        if isinstance(self.op, Dense):
            return emit.turned(emit.reshaped(x, (self.positions, self.depth)))
        return emit.reshaped(x, (self.depth, self.positions))
