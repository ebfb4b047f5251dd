# SPDX-License-Identifier: Apache-2.0
"""Fusion in float, before ranges are measured: layers with weights absorb padding, scale, bias and activation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mcugen.hir.graph import Graph, Node, Value, constant_data
from mcugen.hir.operator import Permutation
from mcugen.hir.traits import Clampable, Paddable
from mcugen.hir.types import Array, DType, QuantParams, Shape
from mcugen.numerics.digits import MAX_SHORT_FACTOR_BITS, has_digits, is_float32
from mcugen.ops.conv import Conv
from mcugen.ops.conv_transpose import ConvTranspose
from mcugen.ops.conversion import Dequantize
from mcugen.ops.matmul import Dense, DirectDense, MatMul
from mcugen.ops.movement import Concat, Pad, Reshape, Slice, Transpose, inverse
from mcugen.ops.packed import DequantizeBlocks
from mcugen.ops.pointwise import Binary, Clamp, operands_of
from mcugen.ops.spatial import Spatial
from mcugen.passes.rewrite import RewriteOutcome, pattern

_ALL_DIGITS = 2**24
"""Largest whole number up to which every whole number is exact in float32."""
_BYTES = 256


@pattern(Paddable)
def fold_pad(graph: Graph, node: Node) -> RewriteOutcome:
    """f(Pad(x, 0)) → f with larger window padding, for convolutions and pools f.

    The padding value must be the real number 0, which is the zero point in a quantized x. Only spatial axes may be
    padded. In addition, a max pool needs an x without negative elements, and every window of a pool must still contain
    an element of x. An average pool counts the added zeros as elements.
    """
    pad = node.input(0).producer
    if not isinstance(node.op, Paddable) or pad is None or not isinstance(pad.op, Pad):
        return False
    if pad.op.value != 0.0:
        return f"it pads with {pad.op.value}"
    grown = node.op.padded(pad.input(0), pad.op.before, pad.op.after)
    if grown is None:
        return "the window cannot take in the padding"
    graph.rewrite(node, grown, [pad.input(0), *node.inputs[1:]], types=[node.output.type], origin=pad.origin)
    return True


@pattern(Slice)
def fold_crop(graph: Graph, node: Node) -> RewriteOutcome:
    """Slice(ConvTranspose(x, w)) → ConvTranspose with larger padding, if only borders are cut off."""
    layer = node.input(0).producer
    if layer is None or not isinstance(layer.op, ConvTranspose):
        return False
    if len(layer.output.users) > 1 or layer.output in graph.outputs:
        return "the whole result is read, too"
    assert isinstance(node.op, Slice)
    starts, sizes, shape = node.op.starts, node.op.sizes, layer.output.type.shape
    if any(step != 1 for step in node.op.steps) or (starts[:2], sizes[:2]) != ((0, 0), shape[:2]):
        return "it does more than cut off borders"
    window = layer.op.window
    before = tuple(pad + start for pad, start in zip(window.before, starts[2:], strict=True))
    cropped = replace(layer.op, window=replace(window, before=before), space=sizes[2:])
    graph.rewrite(node, cropped, layer.inputs, types=[node.output.type], origin=layer.origin)
    return True


@pattern(MatMul)
def fuse_dense(graph: Graph, node: Node) -> RewriteOutcome:
    """MatMul(x, W) with constant W [K, N] → Dense(x, Wᵀ).

    The product must be in float32 and have no factor. W may also be a quantized constant behind its Dequantize.
    """
    if not _is_constant(node.input(1)) or node.output.type.dtype is not DType.FLOAT32:
        return False
    if node.input(1).type.rank != 2:
        return "there is a matrix for each sample"
    if node.op != MatMul():
        return "the product is scaled"
    graph.rewrite(node, Dense(), [node.input(0), _transposed_constant(graph, node, node.input(1))])
    return True


def _transposed_constant(graph: Graph, node: Node, value: Value) -> Value:
    """Return Wᵀ of a float constant, or of a quantized one behind its Dequantize."""
    if value.data is not None:
        return graph.constant(f"{value.name}.t", np.ascontiguousarray(value.data.T), of=[value])
    source = value.producer
    assert source is not None
    if isinstance(source.op, DequantizeBlocks):
        return graph.add(Transpose((1, 0)), [value], source.origin, before=node).output
    stored = source.input(0)
    assert stored.data is not None
    (type_,) = Transpose((1, 0)).infer(stored.type)
    turned = graph.constant(f"{stored.name}.t", np.ascontiguousarray(stored.data.T), type_.quant, of=[stored])
    return graph.add(Dequantize(), [turned], source.origin, before=node).output


@pattern(MatMul)
def fold_scale(graph: Graph, node: Node) -> RewriteOutcome:
    """(p · a) b and p · (a b) → MatMul(a, b) with factor p, for positive constant scalars p, as in attention.

    Nothing else may read the scaled operand or the unscaled product. A division by p is treated alike.
    """
    if not node.output.type.dtype.is_float:
        return False
    after = graph.only_user(node.output)
    if after is not None and (scaling := _scaling(after)) is not None and scaling[0] is node.output:
        return _scaled_product(graph, after, node, node.inputs, scaling[1])
    shared = False
    for index in (0, 1):
        before = node.input(index).producer
        if before is None or (scaling := _scaling(before)) is None:
            continue
        if graph.only_user(node.input(index)) is node:
            inputs = [scaling[0], node.inputs[1]] if index == 0 else [node.inputs[0], scaling[0]]
            return _scaled_product(graph, node, node, inputs, scaling[1])
        shared = True
    return "others read the scaled operand" if shared else False


def _scaled_product(
    graph: Graph, end: Node, product: Node, inputs: Sequence[Value | None], factor: float
) -> RewriteOutcome:
    """Replace `end` by `product` with its factor times `factor`; refuse factors that float32 cannot hold."""
    assert isinstance(product.op, MatMul)
    total = product.op.factor * factor
    if not 1e-30 < total < 1e30:
        return "the factor would be no sound float32"
    graph.rewrite(end, MatMul(total), inputs, types=[end.output.type], origin=product.origin)
    if end is not product:
        graph.remove(product)
    return True


def _scaling(node: Node) -> tuple[Value, float] | None:
    """Return x and p if the node computes p · x for a constant scalar p."""
    is_product = node.op == Binary("Mul")
    if not is_product and node.op != Binary("Div"):
        return None
    for x, factor in operands_of(node.output, "Mul") or [(node.input(0), node.input(1))]:
        number = _constant_data(factor)
        if number is not None and number.size == 1 and x.type.shape == node.output.type.shape and number.all():
            value = float(number.reshape(-1)[0])
            return x, value if is_product else 1 / value
    return None


@pattern(Dense)
def sink_reshape(graph: Graph, node: Node) -> RewriteOutcome:
    """f(Reshape(Dense(x))) → Reshape(f(Dense(x))) if f depends on the last axis only, as bias and activation do.

    f can then be folded into the Dense layer. A matrix product over more than two axes is imported as such a Dense
    layer, on the rows of all leading axes, between two reshapes.
    """
    if node.output.type.dtype is not DType.FLOAT32:
        return False
    outcome, sunk = _sink_one(graph, node.output), False
    while isinstance(outcome, Value):
        outcome, sunk = _sink_one(graph, outcome), True
    return sunk or outcome


def _sink_one(graph: Graph, rows: Value) -> Value | RewriteOutcome:
    """Move the only reader of the only reshape of `rows` before the reshape.

    Returns:
        The result of the moved reader, or the reason why it was not moved.
    """
    reshape = graph.only_user(rows)
    if reshape is None or not isinstance(reshape.op, Reshape):
        return False
    user = graph.only_user(reshape.output)
    if user is None or not isinstance(user.op, Binary | Clamp):
        return False
    shape, depth = user.output.type.shape, rows.type.shape[-1]
    if rows.type.rank != 2 or shape != reshape.output.type.shape or shape[-1:] != (depth,):
        return f"the reshape before {user.op.name} does not keep the rows"
    operands = [rows if v is reshape.output else _as_row(graph, v, depth, user) for v in user.inputs]
    if any(v is None for v in operands):
        return f"{user.op.name} differs from row to row"
    moved = graph.add(user.op, operands, user.origin, before=user)
    graph.rewrite(user, reshape.op, [moved.output], types=[user.output.type], origin=reshape.origin)
    graph.remove(reshape)
    return moved.output


def _as_row(graph: Graph, value: Value | None, depth: int, before: Node) -> Value | None:
    """Return a constant with one number, or one an index of the last axis, as [1, 1] or [1, depth]; else None."""
    shape = (1, value.type.count) if value is not None else ()
    if value is None or _constant_data(value) is None or value.type.count not in (1, depth):
        return None
    if value.type.rank and value.type.shape[-1] != value.type.count:
        return None
    if value.data is not None:
        return graph.constant(f"{value.name}.row", value.data.reshape(shape), of=[value])
    return _reshaped(graph, value, shape, before)


@pattern(Conv, ConvTranspose)
def sink_layer_transpose(graph: Graph, node: Node) -> RewriteOutcome:
    """f(Transpose(Conv(x)), c) → Transpose(f(Conv(x), c')) if c is a constant per channel, for bias and activation f.

    f can then be folded into the convolution. Keras' exporter writes bias and normalization behind a transposition to
    channels last.
    """
    if node.output.type.dtype is not DType.FLOAT32:
        return False
    outcome, sunk = _sink_one_transpose(graph, node.output), False
    while isinstance(outcome, Value):
        outcome, sunk = _sink_one_transpose(graph, outcome), True
    return sunk or outcome


def _sink_one_transpose(graph: Graph, pixels: Value) -> Value | RewriteOutcome:
    """Move the only reader of the only transposition of `pixels` before the transposition.

    Returns:
        The result of the moved reader, or the reason why it was not moved.
    """
    turn = graph.only_user(pixels)
    user = graph.only_user(turn.output) if turn is not None and isinstance(turn.op, Transpose) else None
    if turn is None or user is None or not isinstance(turn.op, Transpose) or not isinstance(user.op, Binary | Clamp):
        return False
    perm = inverse(turn.op.perm)
    operands = [pixels if v is turn.output else _turned_constant(graph, v, perm) for v in user.inputs]
    if any(v is None for v in operands) or user.output.type.shape != turn.output.type.shape:
        return f"{user.op.name} has no constant per channel"
    moved = graph.add(user.op, operands, user.origin, before=user)
    graph.rewrite(user, turn.op, [moved.output], types=[user.output.type], origin=turn.origin)
    graph.remove(turn)
    return moved.output


def _turned_constant(graph: Graph, value: Value | None, perm: Permutation) -> Value | None:
    """Return a constant with one number a channel, which is axis 1 after the transposition, transposed; else None."""
    if value is None or value.data is None or value.type.rank > len(perm):
        return None
    turned = value.data.reshape((1,) * (len(perm) - value.type.rank) + value.type.shape).transpose(perm)
    if turned.size != turned.shape[1]:
        return None
    return graph.constant(f"{value.name}.turned", np.ascontiguousarray(turned), of=[value])


def _constant_data(value: Value) -> Array | None:
    """Return the numbers of a constant, or of a quantized constant behind its Dequantize."""
    source = value.producer
    if source is None or not _is_constant(value):
        return value.data
    return source.op.evaluate(source.sig, *constant_data(source.inputs))[0]


def _is_constant(value: Value) -> bool:
    """Return whether the numbers are known: a constant, or a quantized constant behind its Dequantize."""
    source = value.producer
    if source is not None and isinstance(source.op, Dequantize | DequantizeBlocks):
        return source.input(0).is_constant
    return value.is_constant


@pattern(Binary, Clamp)
def sink_concat(graph: Graph, node: Node) -> RewriteOutcome:
    """f(Concat(a, b)) → Concat(f(a), f(b)) if f is an activation, or a constant per channel, that layers absorb.

    f is a clamp, or an addition, subtraction, multiplication or division with a constant per channel. The rewrite is
    made for float32 if f is the only reader of the concatenation, and each part is computed by a layer with weights
    that has no other reader.
    """
    position = next((i for i, v in enumerate(node.inputs) if v is not None and _is_joined(v)), None)
    if position is None or node.output.type.dtype is not DType.FLOAT32:
        return False
    joined = node.input(position)
    concat = joined.producer
    constants = None if len(node.inputs) == 1 else node.input(1 - position)
    if concat is None or (constants is not None and (constants.data is None or not _is_affine(node, position))):
        return False
    if graph.only_user(joined) is not node:
        return "others read all parts"
    layers = [_layer_before(graph, v, concat) for v in concat.inputs]
    if None in layers or joined.type.shape != node.output.type.shape:
        return "some part is no layer's own"
    operands = [[v] for v in concat.inputs]
    if constants is not None:
        rows = _split(graph, constants, concat)
        if any(layer is None or _per_channel(v, layer) is None for v, layer in zip(rows, layers, strict=True)):
            return "the constant is none per channel"
        operands = [[v, row] if position == 0 else [row, v] for (v,), row in zip(operands, rows, strict=True)]
    parts = [graph.add(node.op, inputs, node.origin, before=concat).output for inputs in operands]
    graph.rewrite(node, concat.op, parts, origin=concat.origin)
    graph.remove(concat)
    return True


def _is_joined(value: Value) -> bool:
    return value.producer is not None and isinstance(value.producer.op, Concat)


def _is_affine(node: Node, position: int) -> bool:
    """Return whether a layer could absorb the node's function of its operand at `position` and a constant."""
    op = node.op
    return (
        isinstance(op, Binary)
        and op.clamp is None
        and op.function in (("Add", "Mul", "Sub", "Div"), ("Add", "Mul"))[position]
    )


def _layer_before(graph: Graph, value: Value | None, reader: Node) -> Node | None:
    """Return the layer behind a value that only `reader` reads; the layer can absorb all constants in between."""
    while value is not None and graph.only_user(value) is reader:
        layer, reader = _layer(value), value.producer or reader
        if layer is not None:
            return layer if layer.op.clamp is None else None  # type: ignore[attr-defined]
        position = next((i for i, v in enumerate(reader.inputs) if v is not None and v.data is None), 0)
        value = reader.input(position) if reader is value.producer and _is_affine(reader, position) else None
    return None


def _split(graph: Graph, constant: Value, concat: Node) -> list[Value]:
    """Return the part of a constant that meets each input of a concatenation."""
    assert constant.data is not None and isinstance(concat.op, Concat)
    axis, sizes = concat.op.axis, [v.type.shape[concat.op.axis] for v in concat.inputs if v is not None]
    data = constant.data.reshape((1,) * (concat.output.type.rank - constant.data.ndim) + constant.data.shape)
    if data.shape[axis] == 1:
        return [constant] * len(sizes)
    parts = np.split(data, np.cumsum(sizes)[:-1], axis)
    return [graph.constant(f"{constant.name}.part", part, of=[constant]) for part in parts]


@pattern(Binary)
def fold_affine(graph: Graph, node: Node) -> RewriteOutcome:
    """Conv, ConvTranspose or Dense, then a constant per channel → the layer with other weights and bias.

    Add: (w·x + b) + c → w·x + (b + c).   Mul: (w·x + b) · c → (c·w)·x + c·b.   Sub and Div are treated alike. Batch
    normalization is such a Mul and Add.

    The rewrite is made for float32 if nothing else reads the layer's result, no activation is between or behind, and
    sums that are exact for integer inputs stay exact.
    """
    layer = next((p for v in node.inputs if (p := _layer(v)) is not None), None)
    if layer is None or not isinstance(node.op, Binary) or layer.output.type.dtype is not DType.FLOAT32:
        return False
    position = list(node.inputs).index(layer.output)
    function, other = node.op.function, node.input(1 - position)
    if function not in ("Add", "Mul", "Sub", "Div") or not _is_constant(other):
        return False
    if function in ("Sub", "Div") and position == 1:
        return "the layer's result is the second operand"
    if graph.only_user(layer.output) is not node:
        return "others read the layer's result"
    if node.op.clamp is not None or layer.op.clamp is not None:  # type: ignore[attr-defined]
        return "there is an activation between or behind"
    constant, bias = _per_channel(other, layer), _bias_data(layer)
    if constant is None or node.output.type.shape != layer.output.type.shape:
        return "the constant is none per channel"
    if bias is None or (function in ("Mul", "Div") and layer.input(1).data is None):
        return "weights or bias are no float constants"
    if function == "Div" and not constant.all():
        return "it divides by 0"
    if _is_exact_apart(layer, node.op, constant, bias):
        return "sums of whole numbers are exact as they are, and would not be"
    weights, new_bias = _absorbed(graph, layer, node, other, constant, bias)
    graph.rewrite(node, layer.op, [layer.input(0), weights, new_bias], origin=layer.origin)
    graph.remove(layer)
    return True


def _is_exact_apart(layer: Node, op: Binary, constant: Array, bias: Array) -> bool:
    """Return whether float32 sums of the layer are exact for whole inputs, but not after absorbing the constant.

    If the sums are already rounded, their error is about 2⁻²⁴ · Σ |w · x|, and rounded weights and biases add as much.
    """
    weights = layer.input(1).data
    if weights is None:
        return False
    rows = _rows(layer, weights)
    if op.function in ("Add", "Sub"):
        total = bias + constant if op.function == "Add" else bias - constant
        is_rounded = (bias != 0) & ~is_float32(total)
        return bool(is_rounded.any()) and _are_steps(rows)
    if op.function == "Mul" and all((numbers == np.rint(numbers)).all() for numbers in (rows, constant, bias)):
        largest_sum = np.abs(rows).sum(1).max(initial=0) * _BYTES
        return bool(largest_sum < _ALL_DIGITS <= largest_sum * np.abs(constant).max(initial=0))
    factor = 1 / constant if op.function == "Div" else constant
    is_rounded = (np.count_nonzero(rows, 1) + (bias != 0) > 1) & ~has_digits(factor, MAX_SHORT_FACTOR_BITS)
    return bool(is_rounded.any()) and _are_steps(rows)


def _are_steps(weights: Array) -> bool:
    """Return whether all numbers are multiples of a power of 2 and at most 256 times as large: differences, say."""
    largest = np.abs(weights).max(initial=0.0)
    steps = np.ldexp(weights.astype(np.float64), 8 - int(np.frexp(largest)[1]))
    return bool(np.isfinite(largest) and (steps == np.rint(steps)).all())


def _rows(layer: Node, weights: Array) -> Array:
    """Return the weights as one row for each output channel."""
    if isinstance(layer.op, ConvTranspose):
        grouped = weights.reshape(layer.op.groups, -1, *weights.shape[1:])
        return grouped.swapaxes(1, 2).reshape(_channels(layer), -1)
    return weights.reshape(len(weights), -1)


def _layer(value: Value | None) -> Node | None:
    """Return the layer with weights and bias that computes a value."""
    node = None if value is None else value.producer
    return node if node is not None and isinstance(node.op, Conv | ConvTranspose | Dense) else None


def _absorbed(graph: Graph, layer: Node, node: Node, other: Value, constant: Array, bias: Array) -> tuple[Value, Value]:
    """Return the weights and bias of a layer that also computes `node`'s function of its result and a constant."""
    assert isinstance(node.op, Binary)
    function, weights = node.op.function, layer.input(1)
    if function == "Add" and not bias.any() and other.data is None and other.type.count == len(bias):
        return weights, _reshaped(graph, other, (len(bias),), node)  # This keeps the quantized bias exactly.
    if function in ("Add", "Sub"):
        total = bias + constant if function == "Add" else bias - constant
        return weights, graph.constant(
            f"{layer.output.name}.bias", total.astype(np.float32), of=[*layer.inputs[2:], other]
        )
    assert weights.data is not None
    factor = constant if function == "Mul" else 1.0 / constant
    scaled = _scaled_weights(layer, weights.data, factor)
    new_weights = graph.constant(f"{weights.name}.scaled", scaled, of=[weights, other])
    new_bias = (bias * factor).astype(np.float32)
    return new_weights, graph.constant(f"{layer.output.name}.bias", new_bias, of=[*layer.inputs[2:], other])


def _scaled_weights(node: Node, weights: Array, factor: Array) -> Array:
    """Return weights multiplied by one factor for each output channel."""
    kernel = (1,) * (weights.ndim - 2)
    if not isinstance(node.op, ConvTranspose):
        return (weights * factor.reshape(-1, 1, *kernel)).astype(np.float32)
    grouped = weights.reshape(node.op.groups, -1, *weights.shape[1:])  # [groups, C/groups, O/groups, *kernel]
    scaled = grouped * factor.reshape(node.op.groups, 1, -1, *kernel)
    return scaled.reshape(weights.shape).astype(np.float32)


def _channels(node: Node) -> int:
    """Return the number of output channels of a layer."""
    shape = node.input(1).type.shape
    return shape[1] * node.op.groups if isinstance(node.op, ConvTranspose) else shape[0]


def _per_channel(value: Value, node: Node) -> Array | None:
    """Return a constant as a vector over the output channels of `node` (float64), or None if it is no such vector."""
    data = _constant_data(value)
    if data is None:
        return None
    channels = _channels(node)
    rank = node.output.type.rank
    is_last = isinstance(node.op, Dense) or (isinstance(node.op, Spatial) and node.op.is_channels_last)
    axis = rank - 1 if is_last else 1
    shape = (1,) * (rank - data.ndim) + data.shape
    if data.size == 1:
        return np.full(channels, float(data.reshape(-1)[0]))
    channel_shape = tuple(channels if a == axis else 1 for a in range(rank))
    return data.reshape(-1).astype(np.float64) if shape == channel_shape else None


def _bias_data(node: Node) -> Array | None:
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return np.zeros(_channels(node))
    data = node.input(2).data
    return None if data is None else data.astype(np.float64)


def _reshaped(graph: Graph, value: Value, shape: Shape, before: Node) -> Value:
    """Return a dequantized constant in another shape, of which only the last axis may be longer than 1."""
    source = value.producer
    assert source is not None
    stored = source.input(0)
    assert stored.data is not None
    quant = stored.type.q
    axis = None if quant.axis is None else len(shape) - 1
    data, params = stored.data.reshape(shape), QuantParams(quant.scale, quant.zero_point, axis)
    flat = graph.constant(f"{stored.name}.flat", data, params, of=[stored])
    return graph.add(Dequantize(), [flat], source.origin, before=before).output


@pattern(Clamp)
def fold_clamp(graph: Graph, node: Node) -> RewriteOutcome:
    """Clamp(layer(x)) → layer(x) with a clamp of its own: Relu, Relu6 and Clip cost nothing.

    The rewrite is made for float32 if the layer can clamp (`Clampable`), has no clamp yet, and nothing else reads its
    result.
    """
    source, clamp = node.input(0).producer, node.op
    if source is None or not isinstance(clamp, Clamp) or node.output.type.dtype is not DType.FLOAT32:
        return False
    clamped = source.op.with_clamp(clamp.low, clamp.high) if isinstance(source.op, Clampable) else None
    if clamped is None:
        return f"{source.op.name} takes no activation, or has one"
    if graph.only_user(node.input(0)) is not node:
        return "others read the layer's result"
    graph.rewrite(node, clamped, source.inputs, types=[node.output.type], origin=source.origin)
    graph.remove(source)
    return True


@pattern(MatMul)
def fold_transpose_into_row(graph: Graph, node: Node) -> RewriteOutcome:
    """MatMul(x, Wᵀ) of one row of float32 → DirectDense(x, W), which reads W without a transposition."""
    x, turn = node.input(0), node.input(1).producer
    if turn is None or not isinstance(turn.op, Transpose) or node.output.type.dtype is not DType.FLOAT32:
        return False
    if x.type.shape[:-1] != (1,):
        return "there are several rows"
    if node.op != MatMul():
        return "the product is scaled"
    graph.rewrite(node, DirectDense(), [x, turn.input(0)], types=[node.output.type], origin=turn.origin)
    return True


@pattern(Dense)
def fold_transpose_into_dense(graph: Graph, node: Node) -> RewriteOutcome:
    """Dense(Reshape(Transpose(x))) that flattens → Dense(Reshape(x)) with the weights' columns permuted.

    The weights must be a float or integer constant. The transposition must keep axis 0, and the reshape must flatten
    all other axes.
    """
    flat, weights = node.input(0).producer, node.input(1)
    turn = flat.input(0).producer if flat is not None and isinstance(flat.op, Reshape) else None
    if flat is None or turn is None or not isinstance(turn.op, Transpose):
        return False
    x, perm = turn.input(0), turn.op.perm
    inner = turn.output.type.shape[1:]
    if weights.data is None:
        return "the weights are no constant"
    if perm[0] != 0 or flat.output.type.shape[-1] != int(np.prod(inner)):
        return "the reshape does not flatten whole samples"
    columns = weights.data.reshape(-1, *inner).transpose(0, *np.argsort(perm[1:]) + 1).reshape(weights.data.shape)
    turned = graph.constant(f"{weights.name}.columns", np.ascontiguousarray(columns), weights.type.quant, of=[weights])
    rows = graph.add(Reshape(flat.output.type.shape), [x], flat.origin, before=node)
    inputs = [rows.output, turned, *node.inputs[2:]]
    graph.rewrite(node, node.op, inputs, types=[node.output.type], origin=turn.origin)
    return True
