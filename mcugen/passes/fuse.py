# SPDX-License-Identifier: Apache-2.0
"""Fusion in float, before ranges are measured: padding, scale, bias and activation go into the layer with weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.types import Array, DType, QuantParams, Shape
from mcugen.ops.conv import Conv
from mcugen.ops.conv_transpose import ConvTranspose
from mcugen.ops.conversion import Dequantize
from mcugen.ops.matmul import Dense, MatMul
from mcugen.ops.movement import Pad, Reshape, Transpose
from mcugen.ops.pointwise import Binary, Clamp


def fold_pad(graph: Graph) -> bool:
    """Conv(Pad(x, 0)) → Conv with larger window padding."""
    changed = False
    for node in list(graph.nodes):
        pad = node.input(0).producer if isinstance(node.op, Conv) else None
        if pad is None or not isinstance(pad.op, Pad) or pad.op.value != 0.0 or not isinstance(node.op, Conv):
            continue
        before, after = pad.op.before, pad.op.after
        if node.op.is_channels_last or any(before[:2] + after[:2]):
            continue
        window = node.op.window
        grown = replace(
            window,
            before=tuple(a + b for a, b in zip(window.before, before[2:], strict=True)),
            after=tuple(a + b for a, b in zip(window.after, after[2:], strict=True)),
        )
        graph.rewrite(node, replace(node.op, window=grown), [pad.input(0), *node.inputs[1:]], origin=pad.origin)
        changed = True
    return changed


def fuse_dense(graph: Graph) -> bool:
    """MatMul(x, W) with constant W [K, N] → Dense(x, Wᵀ)."""
    changed = False
    for node in list(graph.nodes):
        if node.op != MatMul() or node.input(1).type.rank != 2 or node.output.type.dtype is not DType.FLOAT32:
            continue
        weights = _transposed_constant(graph, node, node.input(1))
        if weights is not None:
            graph.rewrite(node, Dense(), [node.input(0), weights])
            changed = True
    return changed


def _transposed_constant(graph: Graph, node: Node, value: Value) -> Value | None:
    """Wᵀ of a float constant, or of a quantized one behind its Dequantize."""
    if value.data is not None:
        return graph.constant(f"{value.name}.t", np.ascontiguousarray(value.data.T))
    source = value.producer
    if source is None or not isinstance(source.op, Dequantize) or source.input(0).data is None:
        return None
    stored = source.input(0)
    assert stored.data is not None
    (type_,) = Transpose((1, 0)).infer(stored.type)
    turned = graph.constant(f"{stored.name}.t", np.ascontiguousarray(stored.data.T), type_.quant)
    return graph.add(Dequantize(), [turned], source.origin, before=node).output


def fold_scale(graph: Graph) -> bool:
    """(p · a) b and p · (a b) → a product with factor p, for positive constant scalars p: the scale of an attention."""
    changed = False
    for node in list(graph.nodes):
        if node in graph.nodes and isinstance(node.op, MatMul) and node.output.type.dtype.is_float:
            while (scaled := _absorb_scale(graph, node)) is not None:
                node, changed = scaled, True
    return changed


def _absorb_scale(graph: Graph, node: Node) -> Node | None:
    """The product that has taken in the scaling of its result or of an operand, if there is any."""
    assert isinstance(node.op, MatMul)
    after = graph.only_user(node.output)
    if after is not None and (found := _scaling(after)) is not None and found[0] is node.output:
        return _scaled_product(graph, after, node, node.inputs, found[1])
    for index in (0, 1):
        before = node.input(index).producer
        if before is None or graph.only_user(node.input(index)) is not node:
            continue
        if (found := _scaling(before)) is not None:
            inputs = [found[0], node.inputs[1]] if index == 0 else [node.inputs[0], found[0]]
            return _scaled_product(graph, node, node, inputs, found[1])
    return None


def _scaled_product(
    graph: Graph, end: Node, product: Node, inputs: Sequence[Value | None], factor: float
) -> Node | None:
    """`product`, times `factor`, in the place of `end`; None where the factor would be no sound float32."""
    assert isinstance(product.op, MatMul)
    total = product.op.factor * factor
    if not 1e-30 < total < 1e30:
        return None
    scaled = graph.rewrite(end, MatMul(total), inputs, types=[end.output.type], origin=product.origin)
    if end is not product:
        graph.remove(product)
    return scaled


def _scaling(node: Node) -> tuple[Value, float] | None:
    """What the node multiplies by a constant scalar, and by which."""
    if node.op not in (Binary("Mul"), Binary("Div")):
        return None
    for x, factor in (node.inputs, node.inputs[::-1]):
        assert x is not None and factor is not None
        number = _constant_data(factor)
        if number is not None and number.size == 1 and x.type.shape == node.output.type.shape and number.all():
            value = float(number.reshape(-1)[0])
            return x, value if node.op == Binary("Mul") else 1 / value
        if node.op == Binary("Div"):
            return None
    return None


def sink_reshape(graph: Graph) -> bool:
    """f(Reshape(Dense(x))) → Reshape(f(Dense(x))) where f knows just the last axis: bias and activation of each row.

    A matrix by which more than two axes are multiplied is applied to the rows of all of them.
    """
    changed = False
    for node in list(graph.nodes):
        if isinstance(node.op, Dense) and node.output.type.dtype is DType.FLOAT32:
            rows: Value | None = node.output
            while rows is not None and (rows := _sink_one(graph, rows)) is not None:
                changed = True
    return changed


def _sink_one(graph: Graph, rows: Value) -> Value | None:
    """Brings the only reader of the only reshape of `rows` before that; its result."""
    reshape = graph.only_user(rows)
    if reshape is None or not isinstance(reshape.op, Reshape):
        return None
    user = graph.only_user(reshape.output)
    if user is None or not isinstance(user.op, Binary | Clamp):
        return None
    shape, depth = user.output.type.shape, rows.type.shape[-1]
    if rows.type.rank != 2 or shape != reshape.output.type.shape or shape[-1:] != (depth,):
        return None
    operands = [rows if v is reshape.output else _as_row(graph, v, depth, user) for v in user.inputs]
    if any(v is None for v in operands):
        return None
    moved = graph.add(user.op, operands, user.origin, before=user)
    graph.rewrite(user, reshape.op, [moved.output], types=[user.output.type], origin=reshape.origin)
    graph.remove(reshape)
    return moved.output


def _as_row(graph: Graph, value: Value | None, depth: int, before: Node) -> Value | None:
    """A constant with one number, or one an index of the last axis, as [1, depth] or [1, 1]; None: it has others."""
    shape = (1, value.type.count) if value is not None else ()
    if value is None or _constant_data(value) is None or value.type.count not in (1, depth):
        return None
    if value.type.rank and value.type.shape[-1] != value.type.count:
        return None
    if value.data is not None:
        return graph.constant(f"{value.name}.row", value.data.reshape(shape))
    return _reshaped(graph, value, shape, before)


def _constant_data(value: Value) -> Array | None:
    """The numbers of a constant, or of a quantized one behind its Dequantize."""
    source = value.producer
    if source is None or not isinstance(source.op, Dequantize):
        return value.data
    stored = source.input(0).data
    return None if stored is None else source.op.evaluate(source.sig, stored)[0]


def fold_affine(graph: Graph) -> bool:
    """A constant per channel after Conv, ConvTranspose or Dense.

    Add: (w·x + b) + c → w·x + (b + c).   Mul: (w·x + b) · c → (c·w)·x + c·b.   Sub and Div likewise.
    Batch normalization is such a pair.
    """
    changed = False
    for node in list(graph.nodes):
        if node in graph.nodes and isinstance(node.op, Conv | ConvTranspose | Dense) and node.op.clamp is None:
            while (merged := _absorb_affine(graph, node)) is not None:
                node, changed = merged, True
    return changed


def _absorb_affine(graph: Graph, node: Node) -> Node | None:
    user = graph.only_user(node.output)
    if user is None or not isinstance(user.op, Binary) or user.op.clamp is not None:
        return None
    if node.output.type.dtype is not DType.FLOAT32:
        return None
    position = list(user.inputs).index(node.output)
    function, other = user.op.function, user.input(1 - position)
    if function not in ("Add", "Mul") and not (function in ("Sub", "Div") and position == 0):
        return None
    bias_only = function in ("Add", "Sub")
    constant = _per_channel(other, node)
    bias = _bias_data(node)
    if function == "Div" and constant is not None and not constant.all():
        return None
    if constant is None or bias is None or user.output.type.shape != node.output.type.shape:
        return None
    weights = node.input(1)
    keeps_codes = other.data is None and other.type.count == len(bias)
    if function == "Add" and not bias.any() and keeps_codes:
        new_bias: Value = _reshaped(graph, other, (len(bias),), user)  # keeps the quantized bias, exactly
    elif bias_only:
        total = bias + constant if function == "Add" else bias - constant
        new_bias = graph.constant(f"{node.output.name}.bias", total.astype(np.float32))
    else:
        if weights.data is None:
            return None
        factor = constant if function == "Mul" else 1.0 / constant
        weights = graph.constant(f"{weights.name}.scaled", _scaled_weights(node, weights.data, factor))
        new_bias = graph.constant(f"{node.output.name}.bias", (bias * factor).astype(np.float32))
    merged = graph.rewrite(user, node.op, [node.input(0), weights, new_bias], origin=node.origin)
    graph.remove(node)
    return merged


def _scaled_weights(node: Node, weights: Array, factor: Array) -> Array:
    """Times one factor an output channel."""
    kernel = (1,) * (weights.ndim - 2)
    if not isinstance(node.op, ConvTranspose):
        return (weights * factor.reshape(-1, 1, *kernel)).astype(np.float32)
    grouped = weights.reshape(node.op.groups, -1, *weights.shape[1:])  # [groups, C/groups, O/groups, *kernel]
    scaled = grouped * factor.reshape(node.op.groups, 1, -1, *kernel)
    return scaled.reshape(weights.shape).astype(np.float32)


def _channels(node: Node) -> int:
    """Output channels of a layer."""
    shape = node.input(1).type.shape
    return shape[1] * node.op.groups if isinstance(node.op, ConvTranspose) else shape[0]


def _per_channel(value: Value, node: Node) -> Array | None:
    """A constant as a vector over the output channels of `node` (float64), or None."""
    data = _constant_data(value)
    if data is None:
        return None
    channels = _channels(node)
    rank = node.output.type.rank
    axis = rank - 1 if isinstance(node.op, Dense) or getattr(node.op, "is_channels_last", False) else 1
    shape = (1,) * (rank - data.ndim) + data.shape
    if data.size == 1:
        return np.full(channels, float(data.reshape(-1)[0]))
    wanted = tuple(channels if a == axis else 1 for a in range(rank))
    return data.reshape(-1).astype(np.float64) if shape == wanted else None


def _bias_data(node: Node) -> Array | None:
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return np.zeros(_channels(node))
    data = node.input(2).data
    return None if data is None else data.astype(np.float64)


def _reshaped(graph: Graph, value: Value, shape: Shape, before: Node) -> Value:
    """A quantized constant behind its Dequantize, in a shape whose last axis alone is longer than 1."""
    source = value.producer
    assert source is not None
    stored = source.input(0)
    assert stored.data is not None
    quant = stored.type.q
    axis = None if quant.axis is None else len(shape) - 1
    data, params = stored.data.reshape(shape), QuantParams(quant.scale, quant.zero_point, axis)
    flat = graph.constant(f"{stored.name}.flat", data, params)
    return graph.add(Dequantize(), [flat], source.origin, before=before).output


def fold_clamp(graph: Graph) -> bool:
    """Clamp(layer) → layer that clamps: Relu, Relu6 and Clip vanish."""
    changed = False
    for node in list(graph.nodes):
        source = node.input(0).producer if isinstance(node.op, Clamp) else None
        if source is None or not isinstance(node.op, Clamp) or node.output.type.dtype is not DType.FLOAT32:
            continue
        if graph.only_user(node.input(0)) is not node:
            continue
        clamped = source.op.with_clamp(node.op.low, node.op.high)
        if clamped is not None:
            graph.rewrite(node, clamped, source.inputs, types=[node.output.type], origin=source.origin)
            graph.remove(source)
            changed = True
    return changed


def fold_transpose_into_dense(graph: Graph) -> bool:
    """Dense(Reshape(Transpose(x))) that flattens → Dense(Reshape(x)) with the weights' columns permuted."""
    changed = False
    for node in list(graph.nodes):
        flat = node.input(0).producer if isinstance(node.op, Dense) else None
        turn = flat.input(0).producer if flat is not None and isinstance(flat.op, Reshape) else None
        weights = node.input(1) if turn is not None else None
        if (
            flat is None
            or turn is None
            or not isinstance(turn.op, Transpose)
            or weights is None
            or weights.data is None
        ):
            continue
        x, perm = turn.input(0), turn.op.perm
        inner = turn.output.type.shape[1:]
        if perm[0] != 0 or flat.output.type.shape[-1] != int(np.prod(inner)):
            continue
        columns = weights.data.reshape(-1, *inner).transpose(0, *np.argsort(perm[1:]) + 1).reshape(weights.data.shape)
        turned = graph.constant(f"{weights.name}.columns", np.ascontiguousarray(columns), weights.type.quant)
        rows = graph.add(Reshape(flat.output.type.shape), [x], flat.origin, before=node)
        graph.rewrite(
            node,
            node.op,
            [rows.output, turned, *node.inputs[2:]],
            types=[node.output.type],
            origin=turn.origin,
        )
        changed = True
    return changed
