# SPDX-License-Identifier: Apache-2.0
"""Trained parameters: graph inputs that replace the constant weights and biases of layers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.interpreter import evaluate_node
from mcugen.hir.operator import Operator
from mcugen.hir.types import Array, DType, Shape, TensorType
from mcugen.numerics.window import Window
from mcugen.ops.conv import Conv, DirectConv
from mcugen.ops.conv_transpose import ConvTranspose
from mcugen.ops.conversion import Cast, Dequantize
from mcugen.ops.learning import MAX_TRAINED_WEIGHT, CodedProduct
from mcugen.ops.matmul import CodedDense, DirectDense, MatMul
from mcugen.ops.movement import Reshape, Transpose
from mcugen.ops.pointwise import Binary
from mcugen.ops.recurrent import B, R, Recurrent, W
from mcugen.ops.scatter import ScatterND
from mcugen.training.layers import TrainableLayer, layer_name


@dataclass(frozen=True)
class TrainedParameter:
    """A tensor of a layer that is trained.

    Attributes:
        value: The float tensor: an input of the graph, or dequantized from int8 weights.
        layer: Name of its layer.
        first: Initial values; int8 if `coded` is given.
        coded: For int8 weights, the graph input that holds them and the value of their scales; else None.
    """

    value: Value
    layer: str
    first: Array
    coded: tuple[Value, Value] | None = None

    @property
    def kept(self) -> Value:
        """Return the graph input that holds the parameter: its int8 weights, or else the float tensor."""
        return self.value if self.coded is None else self.coded[0]


def add_parameters(graph: Graph, layers: Iterable[TrainableLayer], *, coded: bool = False) -> list[TrainedParameter]:
    """Replace the constants of layers by trained parameters, in place, and return the parameters in order.

    Args:
        graph: The graph.
        layers: The layers to train.
        coded: Whether weight matrices and convolution kernels are kept as int8.
    """
    return [parameter for layer in layers for parameter in _of_layer(graph, layer, coded)]


def _of_layer(graph: Graph, layer: TrainableLayer, coded: bool) -> Iterator[TrainedParameter]:
    if isinstance(layer.node.op, Recurrent):
        yield from _of_recurrent(graph, layer)
        return
    node, bias = layer.node, _bias(graph, layer.node) if layer.bias else None
    if bias is not None:
        yield bias
    if layer.weights:
        assert bias is not None
        first = float_values(node.inputs[1])
        weights = _coded(graph, node, first) if coded else _parameter(graph, node, "weights", first)
        yield weights
        graph.rewrite(node, _direct(node.op), [node.inputs[0], weights.value, bias.value])
        return
    if layer.rank:
        adapter = _adapter(graph, node, layer.rank)
        yield from adapter
        node = _add_adapter(graph, node, *(parameter.value for parameter in adapter))
    if layer.channels:
        changes = _changes(graph, node, layer.channels)
        yield changes
        node = _add_changes(graph, node, layer.channels, changes.value)
    if bias is not None:
        _add_behind(graph, node, bias.value)


def _of_recurrent(graph: Graph, layer: TrainableLayer) -> Iterator[TrainedParameter]:
    """Replace constants of a recurrent layer by parameters."""
    node, roles = layer.node, {W: "weights", R: "recurrence", B: "bias"}
    for index in (W, R, B) if layer.weights else (B,):
        if len(node.inputs) > index and node.inputs[index] is not None:
            parameter = _parameter(graph, node, roles[index], float_values(node.inputs[index]))
            node.set_input(index, parameter.value)
            yield parameter


def _bias(graph: Graph, node: Node) -> TrainedParameter:
    return _parameter(graph, node, "bias", bias_of(node))


def bias_of(node: Node) -> Array:
    """Return the biases of a layer by output channel; zeros if it has none."""
    if len(node.inputs) > 2:
        return float_values(node.inputs[2]).reshape(-1)
    return np.zeros(node.input(1).type.shape[0], np.float32)


def _adapter(graph: Graph, node: Node, rank: int) -> tuple[TrainedParameter, TrainedParameter]:
    """Return the two matrices of an adapter (Hu et al., "LoRA", 2021); the second is 0 at first and has no effect.

    The directions of the first matrix are random, but equal for layers of equal shape.
    """
    down, up = initial_adapter(node.input(1).type.shape, rank)
    return _parameter(graph, node, "adapter.down", down), _parameter(graph, node, "adapter.up", up)


def initial_adapter(weights: Shape, rank: int) -> tuple[Array, Array]:
    """Return the initial matrices of an adapter: random [rank, …] and zero [C, rank, …], for weights [C, …]."""
    channels, *patch = weights
    bound = 1 / np.sqrt(np.prod(patch))
    down = np.random.default_rng([channels, *patch, rank]).uniform(-bound, bound, (rank, *patch)).astype(np.float32)
    return down, np.zeros((channels, rank, *(1 for _ in patch[1:])), np.float32)


def _add_adapter(graph: Graph, node: Node, down: Value, up: Value) -> Node:
    """Replace a layer by Layer(x) + up·(down·x), and return the node that computes Layer(x)."""
    types, x = [node.output.type], node.input(0)
    layer = graph.add(node.op, node.inputs, node.origin, types=types, before=node)
    down_layer = graph.add(_direct(node.op), [x, down], node.origin, before=node)
    up_layer = graph.add(_pointwise(node.op), [down_layer.output, up], node.origin, before=node)
    graph.rewrite(node, Binary("Add"), [layer.output, up_layer.output], types=types)
    return layer


def _changes(graph: Graph, node: Node, channels: Sequence[int]) -> TrainedParameter:
    """Return a parameter that is added to the weights of some output channels, initially 0."""
    shape = (len(channels), *node.input(1).type.shape[1:])
    return _parameter(graph, node, "channels", np.zeros(shape, np.float32))


def _add_changes(graph: Graph, node: Node, channels: Sequence[int], changes: Value) -> Node:
    """Replace a layer by Layer(x) with changes·x added to some channels, and return the node that computes Layer(x)."""
    types, x, count = [node.output.type], node.input(0), node.input(1).type.shape[0]
    layer = graph.add(node.op, node.inputs, node.origin, types=types, before=node)
    change_terms = graph.add(_direct(node.op), [x, changes], node.origin, before=node).output
    index = graph.constant(f"{layer_name(node)}.channels", np.asarray(channels, np.int64).reshape(-1, 1))
    rows, more = (
        graph.add(Reshape((n, v.type.count // n)), [v], node.origin, before=node).output
        for v, n in ((layer.output, count), (change_terms, len(channels)))
    )
    total = graph.add(ScatterND("add"), [rows, index, more], node.origin, before=node).output
    graph.rewrite(node, Reshape(node.output.type.shape), [total], types=types)
    return layer


def _direct(op: Operator) -> Operator:
    """Return the operator of a layer for weights that are not constant."""
    if isinstance(op, Conv):
        return DirectConv(op.window, groups=op.groups)
    return DirectDense()


def _pointwise(op: Operator) -> Operator:
    """Return the operator of a layer on single positions, for weights that are not constant."""
    return DirectConv(unit_window(op.window)) if isinstance(op, Conv) else DirectDense()


def _parameter(graph: Graph, node: Node, role: str, first: Array) -> TrainedParameter:
    type_ = TensorType(first.shape, DType.FLOAT32)
    layer = layer_name(node)
    return TrainedParameter(graph.add_input(f"{layer}.{role}", type_), layer, first)


TRAINED_WEIGHT_HEADROOM = 1.25
"""Quantization range of trained int8 weights divided by the largest initial weight, so that weights can grow."""


def code_scales(first: Array) -> Array:
    """Return the scale of int8 weights for each output channel, [C], with room for training.

    Channels whose weights are smaller than the mean get the mean scale, so that their weights can grow.

    Args:
        first: The initial float weights, [C, …].
    """
    flat = np.abs(first).reshape(len(first), -1).max(1).astype(np.float64)
    scales: Array = (TRAINED_WEIGHT_HEADROOM * np.maximum(flat, flat.mean() or 1.0) / MAX_TRAINED_WEIGHT).astype(
        np.float32
    )
    return scales


def coded_weights(first: Array, scales: Array | float) -> Array:
    """Return float weights as int8: divided by `scales`, rounded, and limited to the range of int8."""
    codes: Array = np.clip(np.rint(first / scales), -MAX_TRAINED_WEIGHT, MAX_TRAINED_WEIGHT).astype(np.int8)
    return codes


def _coded(graph: Graph, node: Node, first: Array) -> TrainedParameter:
    """Return a parameter with weights = codes · scale, where each channel has a scale."""
    scale = code_scales(first)
    columns = scale.reshape(-1, *(1 for _ in first.shape[1:]))
    codes = coded_weights(first, columns)
    layer = layer_name(node)
    kept = graph.add_input(f"{layer}.weights", TensorType(codes.shape, DType.INT8))
    scales = graph.constant(f"{layer}.scales", columns)
    real = graph.add(Cast(DType.FLOAT32), [kept], node.origin, before=node).output
    value = graph.add(Binary("Mul"), [real, scales], node.origin, before=node).output
    return TrainedParameter(value, layer, codes, (kept, scales))


def read_int8_weights(graph: Graph, parameters: Iterable[TrainedParameter], back: Iterable[Node]) -> None:
    """Make matrix products read int8 weights directly, in place of weights that are dequantized first.

    Convolutions with windows of more than one position keep float weights. Call this after the gradients were added.

    Args:
        graph: The graph, changed in place.
        parameters: The trained parameters.
        back: The nodes of the backward pass. Their products with int8 weights that are not trained are rewritten, too.
    """
    for parameter in parameters:
        if parameter.coded is not None:
            codes, scales = parameter.coded
            assert scales.data is not None
            for node in parameter.value.users:
                _read_codes(graph, node, parameter.value, codes, scales.data)
    for node in back:
        weights = node.inputs[1] if len(node.inputs) > 1 else None
        source = weights.producer if weights is not None else None
        if source is not None and isinstance(source.op, Dequantize) and is_symmetric(type_ := source.input(0).type):
            channel_scales = np.broadcast_to(type_.q.scales, type_.shape[:1]).astype(np.float32)
            _read_codes(graph, node, source.output, source.input(0), channel_scales)


def is_symmetric(codes: TensorType) -> bool:
    """Return whether a tensor type is int8 with zero point 0, and with one scale or one for each output channel."""
    return codes.dtype is DType.INT8 and codes.q.zero_point == 0 and codes.q.axis in (None, 0)


def _read_codes(graph: Graph, node: Node, weights: Value, codes: Value, scales: Array) -> None:
    """Rewrite a product with weights (C by K) to read int8 values, in the layer or in its gradient.

    Args:
        graph: The graph, changed in place.
        node: The product.
        weights: The float weights.
        codes: The int8 weights.
        scales: The scale of each of the C channels.
    """
    products, patch = _Products(graph, node), codes.type.shape[1:]
    scale = graph.constant(f"{weights.name}.scale", scales.reshape(-1))
    op, x = node.op, node.input(0)
    is_pixelwise = x.type.rank > 2 and x.type.shape[0] == 1 and math.prod(patch[1:]) == 1
    if type(op) is DirectDense and node.inputs[1] is weights:
        graph.rewrite(node, CodedDense(), [x, codes, scale, node.inputs[2]])
    elif op == MatMul() and node.inputs[1] is weights and x.type.rank == len(patch) + 1:
        graph.replace(node.output, products.back(x, codes, scale))
    elif is_pixelwise and type(op) is DirectConv and op.groups == 1 and op.window == unit_window(op.window):
        rows = products.add(CodedDense(), products.rows(x), products.matrix(codes), scale, node.input(2))
        graph.replace(node.output, products.pixels(rows, node.output.type))
    elif is_pixelwise and type(op) is ConvTranspose and op.groups == 1 and op.window == unit_window(op.window):
        rows = products.back(products.rows(x), products.matrix(codes), scale)
        graph.replace(node.output, products.pixels(rows, node.output.type))


def unit_window(window: Window) -> Window:
    """Return a window of size 1 and stride 1 without padding, over as many axes as `window` has."""
    once, none = tuple(1 for _ in window.strides), tuple(0 for _ in window.strides)
    return Window(once, none, none, once)


@dataclass(frozen=True)
class _Products:
    """A builder that adds matrix products before a node."""

    graph: Graph
    node: Node

    def add(self, op: Operator, *inputs: Value) -> Value:
        """Add an operator and return its result."""
        return self.graph.add(op, inputs, self.node.origin, before=self.node).output

    def matrix(self, codes: Value) -> Value:
        """Return weights as a matrix of C by K."""
        shape = (codes.type.shape[0], math.prod(codes.type.shape[1:]))
        return codes if codes.type.shape == shape else self.add(Reshape(shape), codes)

    def rows(self, x: Value) -> Value:
        """Return the pixels of an image with channels first as rows."""
        _, channels, *space = x.type.shape
        return self.add(Transpose((1, 0)), self.add(Reshape((channels, math.prod(space))), x))

    def pixels(self, rows: Value, type_: TensorType) -> Value:
        """Return rows as an image of this type."""
        return self.add(Reshape(type_.shape), self.add(Transpose((1, 0)), rows))

    def back(self, rows: Value, codes: Value, scale: Value) -> Value:
        """Return the product of rows of C numbers with codes · scale."""
        row = self.add(Reshape((1, scale.type.count)), scale)
        return self.add(CodedProduct(), self.add(Binary("Mul"), rows, row), codes)


def float_values(value: Value | None) -> Array:
    """Return the float values of a constant, or of a constant that is dequantized."""
    assert value is not None
    if value.data is not None:
        return value.data.astype(np.float32)
    source = value.producer
    assert source is not None
    stored = source.input(0).data
    assert stored is not None
    return evaluate_node(source, [stored])[0]


def _add_behind(graph: Graph, node: Node, bias: Value) -> None:
    """Replace a layer by one without a bias and an addition of the bias."""
    type_, channels = node.output.type, bias.type.count
    layer = graph.add(node.op, node.inputs[:2], node.origin, types=[type_], before=node)
    axis = 1 if isinstance(node.op, Conv) else type_.rank - 1
    shape = tuple(channels if a == axis else 1 for a in range(type_.rank))
    column = graph.add(Reshape(shape), [bias], node.origin, before=node)
    graph.rewrite(node, Binary("Add"), [layer.output, column.output], types=[type_])
