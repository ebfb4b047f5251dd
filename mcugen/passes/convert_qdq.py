# SPDX-License-Identifier: Apache-2.0
"""Quantize(op(Dequantize(x), …)) → op on integers: islands of float arithmetic between conversions vanish.

Each operator's `integer` rule decides; where it has none, the float operator stays between its conversions.
"""

from __future__ import annotations

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Signature
from mcugen.hir.types import DType, QuantParams, TensorType
from mcugen.ops.conv import Conv
from mcugen.ops.conversion import Cast, Dequantize, Quantize, Requantize
from mcugen.ops.matmul import Dense, MatMul
from mcugen.ops.movement import Pad


def sink_dequantize(graph: Graph) -> bool:
    """Movement(Dequantize(x)) → Dequantize(Movement(x)): data move as they are stored, and the next layer sees them."""
    changed = False
    for node in list(graph.nodes):
        source = node.input(0).producer if node.op.moves_data and len(node.inputs) == 1 else None
        if source is None or not isinstance(source.op, Dequantize) or source.input(0).is_constant:
            continue
        stored = source.input(0)
        if stored.type.q.axis is not None or (isinstance(node.op, Pad) and node.op.value != 0):
            continue  # a padding value other than 0 may have no code
        moved = graph.add(node.op, [stored], node.origin, before=node)
        graph.rewrite(node, Dequantize(), [moved.output], types=[node.output.type], origin=source.origin)
        changed = True
    return changed


def convert_qdq(graph: Graph) -> bool:
    """One sweep in topological order."""
    changed = False
    for node in list(graph.nodes):
        if not isinstance(node.op, Quantize | Dequantize) and len(node.outputs) == 1:
            changed |= _convert(graph, node)
    return changed


def _convert(graph: Graph, node: Node) -> bool:
    stores = _stores(graph, node)
    if stores is None:
        return False
    if any(v is not None and v.type.quant is not None and not v.is_constant for v in node.inputs):
        return False  # it reads the integers themselves
    inputs = [_stored(v) for v in node.inputs]
    if not any(v is not None and v.type.quant is not None and not v.is_constant for v in inputs):
        return False
    out = stores[0].output.type
    if isinstance(stores[0].op, Cast):
        if not isinstance(node.op, Conv | Dense | MatMul) or not all(v is None or _counts(v) for v in inputs):
            return False
        out = TensorType(out.shape, DType.INT32, QuantParams((1.0,), 0))
    if node.op.moves_data:
        inputs = [_requantized(graph, node, v, out) for v in inputs]
    sig = Signature(tuple(v.type if v else None for v in inputs), (out,))
    form = node.op.integer(graph, sig, inputs)
    if form is None:
        return False
    op, operands = form
    graph.release_name(stores[0].output)
    new = graph.add(op, operands, node.origin, names=[stores[0].output.name], types=[out], before=node)
    for store in stores:
        graph.replace(store.output, new.output)
        graph.remove(store)
    graph.remove(node)
    return True


def _stores(graph: Graph, node: Node) -> list[Node] | None:
    """The Quantize nodes (or casts to int32) that are the only readers of the node's output, all alike."""
    if graph.is_output(node.output):
        return None
    users = node.output.users
    alike = len({(type(u.op), u.outputs[0].type.with_shape(())) for u in users}) == 1
    fits = all(isinstance(u.op, Quantize) or (isinstance(u.op, Cast) and u.op.to is DType.INT32) for u in users)
    return users if users and alike and fits else None


def _counts(value: Value) -> bool:
    """Whether the reals are whole numbers (scale 1), so that a cast of their products is exact."""
    return value.type.quant is None or set(value.type.quant.scale) == {1.0}


def _stored(value: Value | None) -> Value | None:
    """The integers behind a dequantized value, else the value itself."""
    if value is None or value.producer is None or not isinstance(value.producer.op, Dequantize):
        return value
    return value.producer.input(0)


def _requantized(graph: Graph, node: Node, value: Value | None, out: TensorType) -> Value | None:
    """Brings an input of a data movement to the output's scale."""
    if value is None or value.type.quant is None or (value.type.quant, value.type.dtype) == (out.quant, out.dtype):
        return value
    type_ = TensorType(value.type.shape, out.dtype, out.quant, value.type.layout)
    form = Requantize().integer(graph, Signature((value.type,), (type_,)), [value])
    if form is None:
        return value
    return graph.add(form[0], form[1], node.origin, types=[type_], before=node).output
