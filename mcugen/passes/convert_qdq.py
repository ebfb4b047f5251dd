# SPDX-License-Identifier: Apache-2.0
"""Conversion of Quantize(op(Dequantize(x), …)) to integer operators, without float arithmetic in between.

Each operator's `integer` rule decides; where it has none, the float operator stays between its conversions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.traits import Quantizable
from mcugen.hir.types import Array, DType, Layout, QuantParams, TensorType
from mcugen.numerics.fixedpoint import dequantize, quantize
from mcugen.ops.conv import Conv
from mcugen.ops.conversion import Cast, Dequantize, Quantize, Requantize
from mcugen.ops.matmul import Dense, MatMul
from mcugen.ops.movement import Pad
from mcugen.ops.pointwise import Binary, Clamp
from mcugen.passes.rewrite import RewriteOutcome, Turns, pattern
from mcugen.passes.simplify import simplify


@pattern()
def move_as_stored(graph: Graph, node: Node) -> RewriteOutcome:
    """Movement(Dequantize(x)) → Dequantize(Movement(x)): data movements are applied to the quantized tensor.

    The next layer then reads the Dequantize directly, and can become an integer layer. The rewrite is made if x is no
    constant and has one scale for all channels. A Pad must pad with 0.
    """
    source = node.input(0).producer if node.op.moves_data and len(node.inputs) == 1 else None
    if source is None or not isinstance(source.op, Dequantize) or source.input(0).is_constant:
        return False
    stored = source.input(0)
    if stored.type.q.axis is not None:
        return "each channel has a scale of its own"
    if isinstance(node.op, Pad) and node.op.value != 0:
        return f"the padding {node.op.value} may have no code"
    moved = graph.add(node.op, [stored], node.origin, before=node)
    for old, new in zip(node.outputs, moved.outputs, strict=True):
        _read_instead(graph, old, new, source, node)
    graph.remove(node)
    return True


sink_dequantize = Turns("sink_dequantize", move_as_stored, simplify)
"""Pass that moves Dequantize nodes towards the outputs; a Dequantize that meets a Quantize cancels."""


def _read_instead(graph: Graph, real: Value, codes: Value, source: Node, before: Node) -> None:
    """Make readers of `real` read the dequantized `codes`, or `codes` itself if it is not quantized (a position)."""
    if codes.type.quant is not None:
        graph.release_name(real)
        origin = (*source.origin, *before.origin)
        node = graph.add(Dequantize(), [codes], origin, names=[real.name], types=[real.type], before=before)
        codes = node.output
    graph.replace(real, codes)


@pattern()
def convert_qdq(graph: Graph, node: Node) -> RewriteOutcome:
    """Quantize(f(Dequantize(x), …)) → f on integers, if the operator has an integer form (`Quantizable.integer`).

    If several Quantize nodes store the result in different types, each type gets its own operator: converting one
    quantized result to a finer or wider type would lose precision.
    """
    if isinstance(node.op, Quantize | Dequantize) or len(node.outputs) != 1:
        return False
    if any(v is not None and v.type.quant is not None and not v.is_constant for v in node.inputs):
        return False  # The operator reads the integers directly.
    inputs = [_stored(v) for v in node.inputs]
    if not any(v is not None and v.type.quant is not None and not v.is_constant for v in inputs):
        return False
    stores = _stores(graph, node)
    if stores is None:
        return "its result is read as a real number"
    converted = [_emit_integer(graph, node, inputs, alike) for alike in stores]
    if all(converted):
        graph.remove(node)
    return any(converted) or f"{node.op.name} has no integer form for these types"


def _emit_integer(graph: Graph, node: Node, inputs: Sequence[Value | None], stores: Sequence[Node]) -> bool:
    """Compute the result in the type of `stores`, for their readers; return False if there is no integer form."""
    out = stores[0].output.type
    if isinstance(stores[0].op, Cast):
        if not isinstance(node.op, Conv | Dense | MatMul) or not all(v is None or _counts(v) for v in inputs):
            return False
        out = TensorType(out.shape, DType.INT32, QuantParams((1.0,), 0))
    if node.op.moves_data:
        inputs = [_requantized(graph, node, v, out) for v in inputs]
    form = node.op.integer(graph, _signature(inputs, out), inputs) if isinstance(node.op, Quantizable) else None
    if form is None:
        return False
    op, operands = form
    graph.release_name(stores[0].output)
    result = graph.add(op, operands, node.origin, names=[stores[0].output.name], types=[out], before=node).output
    for store in stores:
        graph.replace(store.output, result)
        graph.remove(store)
    return True


def _signature(inputs: Sequence[Value | None], out: TensorType) -> Signature:
    return Signature(tuple(None if value is None else value.type for value in inputs), (out,))


@pattern()
def keep_sums(graph: Graph, node: Node) -> RewriteOutcome:
    """dense(Dequantize(x), Dequantize(w), b) → Cast(Σ x·w) · unit + b: a float result computed from exact integer sums.

    `unit` is the product of the scales of x and w. Integer weights are thus kept in a last layer, whose float result is
    not quantized. The rewrite also applies to a convolution whose result is added to another tensor before it is
    quantized. w and b must be constants.
    """
    return isinstance(node.op, (Conv, Dense)) and _from_sums(graph, node, node.op)


def _from_sums(graph: Graph, node: Node, whole: Conv | Dense) -> RewriteOutcome:
    inputs = [_stored(v) for v in node.inputs]
    if inputs[0] is node.input(0):
        return False
    x, w, bias = (*inputs, None)[:3]
    if x is None or w is None or x.type.quant is None or w.type.quant is None or not w.is_constant:
        return False
    if bias is not None and bias.data is None:
        return "its bias is computed"
    layer, clamp, name = whole.without_clamp() or whole, whole.clamp, node.output.name
    unit = x.type.q.scales * w.type.q.scales
    late = bias is not None and not _counts_in(bias, unit)
    operands = [x, w] if late else inputs
    out = replace(node.output.type, dtype=DType.INT32, quant=QuantParams((1.0,), 0))
    form = layer.integer(graph, _signature(operands, out), operands)
    if form is None:
        return f"{node.op.name} has no integer form for these types"
    result = graph.add(*form, node.origin, names=[f"{name}.sums"], types=[out], before=node).output
    steps: list[tuple[Operator, Array | None]] = [(Cast(DType.FLOAT32), None), (Binary("Mul"), unit.astype(np.float32))]
    if late:
        assert bias is not None and bias.data is not None
        real = bias.data if bias.type.quant is None else dequantize(bias.data, bias.type.q)
        steps.append((Binary("Add"), real))
    if clamp is not None:
        steps.append((Clamp(*clamp), None))
    graph.release_name(node.output)
    for number, (op, channels) in enumerate(steps):
        last = name if number == len(steps) - 1 else f"{name}.{op.name}"
        operand = [] if channels is None else [_by_channel(graph, f"{last}.channels", channels, node)]
        result = graph.add(op, [result, *operand], node.origin, names=[last], before=node).output
    graph.replace(node.output, result)
    graph.remove(node)
    return True


def _counts_in(bias: Value, unit: Array) -> bool:
    """Return whether a quantized bias has the scales of the sums of products."""
    return bias.type.quant is not None and np.allclose(bias.type.q.scales, unit, rtol=1e-5, atol=0)


def _by_channel(graph: Graph, name: str, numbers: Array, layer: Node) -> Value:
    """Return a constant with one number a channel of the layer's result (or one for all), shaped to broadcast to it."""
    rank = layer.output.type.rank
    behind = rank - 2 if layer.output.type.layout is Layout.CHANNELS_FIRST else 0
    return graph.constant(name, numbers.reshape(*[1] * (rank - 1 - behind), -1, *[1] * behind).astype(np.float32))


def _stores(graph: Graph, node: Node) -> list[list[Node]] | None:
    """Return the Quantize nodes (or casts to int32) that are the only readers of the node's output, by type."""
    users = node.output.users
    if graph.is_output(node.output) or not users:
        return None
    if not all(isinstance(u.op, Quantize) or (isinstance(u.op, Cast) and u.op.to is DType.INT32) for u in users):
        return None
    alike: dict[object, list[Node]] = {}
    for user in users:
        alike.setdefault((type(user.op), user.output.type.with_shape(())), []).append(user)
    if len(alike) > 1 and any(isinstance(u.op, Cast) for u in users):
        return None
    return list(alike.values())


def _counts(value: Value) -> bool:
    """Return whether the reals are whole numbers (scale 1), so that a cast of their products is exact."""
    return value.type.quant is None or set(value.type.quant.scale) == {1.0}


def _stored(value: Value | None) -> Value | None:
    """Return the integers behind a dequantized value, else the value itself."""
    if value is None or value.producer is None or not isinstance(value.producer.op, Dequantize):
        return value
    return value.producer.input(0)


def _requantized(graph: Graph, node: Node, value: Value | None, out: TensorType) -> Value | None:
    """Return an input of a data movement in the output's scale and type, if there is an integer form."""
    if value is not None and value.data is not None and value.type.dtype is DType.FLOAT32:
        return graph.constant(f"{value.name}.codes", quantize(value.data, out.q, out.dtype), out.quant, of=[value])
    if value is None or value.type.quant is None or (value.type.quant, value.type.dtype) == (out.quant, out.dtype):
        return value
    type_ = TensorType(value.type.shape, out.dtype, out.quant, value.type.layout)
    form = Requantize().integer(graph, Signature((value.type,), (type_,)), [value])
    if form is None:
        return value
    return graph.add(form[0], form[1], node.origin, types=[type_], before=node).output
