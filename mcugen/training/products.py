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
from mcugen.training.parameters import unit_window

MAX_INT32_SUM = 2**31 - 1
"""Largest magnitude of a sum that int32 holds."""
UNIT_QUANT = QuantParams((1.0,), 0)
"""Quantization parameters of plain integers: scale 1 and zero point 0; their real scale is a separate value."""


def unscaled_integers(shape: Shape, dtype: DType) -> TensorType:
    """Return the type of an integer tensor of this shape that stores plain integers: scale 1 and zero point 0."""
    return TensorType(shape, dtype, UNIT_QUANT)


@dataclass(frozen=True)
class Emitter:
    """A callable that adds HIR nodes at the end of a graph and returns their results.

    Attributes:
        graph: The graph.
        origin: Names of the ONNX nodes that reports name as the origin of the added nodes.
    """

    graph: Graph
    origin: Sequence[str] = ()

    def __call__(self, op: Operator, *inputs: Value, type_: TensorType | None = None) -> Value:
        """Add an operator and return its result, of type `type_` if given, else of the inferred type."""
        return self.graph.add(op, inputs, self.origin, types=[] if type_ is None else [type_]).output

    def reshaped(self, x: Value, shape: Shape) -> Value:
        """Return `x` in the given shape; a Reshape is added only if `x` has another shape."""
        return x if x.type.shape == shape else self(Reshape(shape), x)

    def transposed(self, x: Value) -> Value:
        """Return the transpose of matrix `x`; for a single row or column a Reshape is added instead of a Transpose."""
        rows, columns = x.type.shape
        return self.reshaped(x, (columns, rows)) if 1 in (rows, columns) else self(Transpose((1, 0)), x)


@dataclass(frozen=True)
class Geometry:
    """The shapes of a dense layer, or of a convolution of one image with channels first.

    Attributes:
        op: The operator.
        x: Shape of the input.
        y: Shape of the output.
        w: Shape of the weights [C, …], with C output channels.
    """

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
        """Return the number of weights of each output channel."""
        return math.prod(self.w[1:])

    @property
    def positions(self) -> int:
        """Return the number of output positions: output elements for each channel."""
        return math.prod(self.y) // self.channels

    @property
    def fan_out(self) -> int:
        """Return the largest number of output elements that depend on one input element."""
        groups = self.op.groups if isinstance(self.op, Conv) else 1
        return self.channels // groups * math.prod(self.w[2:])

    @property
    def is_matrix(self) -> bool:
        """Return whether the layer is a product of two matrices.

        A dense layer is. A convolution is if its window has one element, stride 1 and no padding, and if it has no
        groups.
        """
        if isinstance(self.op, Dense):
            return True
        return self.op.groups == math.prod(self.w[2:]) == 1 and self.op.window == unit_window(self.op.window)

    def sums(self, emit: Emitter, x: Value, w: Value) -> Value:
        """Add the layer's product of input `x` and weights `w`, and return its int32 sums [C, positions]."""
        if self.is_matrix:
            return emit(MatMul(), self._weights(emit, w), self.columns(emit, x))
        assert isinstance(self.op, Conv)
        zeros = [emit.graph.constant("zero", np.full(1, zero, np.int8)) for zero in (x.type.q.zero_point, 0)]
        products = emit(IntegerConv(self.op.window, groups=self.op.groups), emit.reshaped(x, self.x), w, *zeros)
        return self.by_channel(emit, products)

    def by_inputs(self, emit: Emitter, error: Value, w: Value) -> Value:
        """Add the gradient of the loss with respect to the layer's input to the graph, and return it.

        Args:
            emit: Adds operators to the graph.
            error: The quantized gradient of the output, int16 [C, positions].
            w: The int8 weights.

        Returns:
            The int32 sums, in the shape of the layer's input.
        """
        if not self.is_matrix:
            assert isinstance(self.op, Conv)
            op = IntegerConvTranspose(self.op.window, self.x[2:], self.op.groups)
            return emit(op, emit.reshaped(error, self.y), w)
        rows = emit(MatMul(), emit.transposed(error), self._weights(emit, w))
        return emit.reshaped(rows if isinstance(self.op, Dense) else emit.transposed(rows), self.x)

    def by_weights(self, emit: Emitter, node: Node, error: Value, x: Value) -> Value:
        """Add the gradient of the loss with respect to a convolution's weights to the graph, and return it.

        Args:
            emit: Adds operators to the graph.
            node: The layer.
            error: The quantized gradient of the output, int16 [C, positions].
            x: The int8 inputs of the layer.

        Returns:
            The int32 sums [C, depth], where depth is the number of weights of an output channel.
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
        """Return `y`, which has the shape of the layer's output, as a matrix [C, positions]."""
        if isinstance(self.op, Dense):
            return emit.transposed(emit.reshaped(y, (self.positions, self.channels)))
        return emit.reshaped(y, (self.channels, self.positions))

    def reshape_to_output(self, emit: Emitter, rows: Value) -> Value:
        """Return a matrix `rows` [C, positions] in the shape of the layer's output; the inverse of `by_channel`."""
        return emit.reshaped(emit.transposed(rows) if isinstance(self.op, Dense) else rows, self.y)

    def _weights(self, emit: Emitter, w: Value) -> Value:
        return emit.reshaped(w, (self.channels, self.depth))

    def columns(self, emit: Emitter, x: Value) -> Value:
        """Return a value in the shape of the layer's input as a matrix [depth, positions].

        Call this only for a layer that is a product of two matrices (`is_matrix`). `depth` is the number of weights of
        an output channel, `positions` the number of output elements of a channel.

        Args:
            emit: Adds operators to the graph.
            x: The value.
        """
        if isinstance(self.op, Dense):
            return emit.transposed(emit.reshaped(x, (self.positions, self.depth)))
        return emit.reshaped(x, (self.depth, self.positions))
