# SPDX-License-Identifier: Apache-2.0
"""Rewrites for quantizers that place Quantize nodes elsewhere than mcugen's does, such as those of PyTorch."""

from __future__ import annotations

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.types import DType, QuantParams, TensorType
from mcugen.ops.conv import Conv
from mcugen.ops.conversion import Dequantize, Quantize
from mcugen.ops.matmul import Dense
from mcugen.ops.pointwise import Binary, Clamp
from mcugen.passes.rewrite import RewriteOutcome, Rewriting, pattern


@pattern(Clamp)
def clamp_before_rounding(graph: Graph, node: Node) -> RewriteOutcome:
    """Quantize(Clamp(Dequantize(Quantize(x)))) → Quantize(Clamp(x)), if both roundings are equal.

    Rounding is monotonic, so the order of clamp and rounding does not change the result. The clamp can then be folded
    into the layer before it. XNNPACKQuantizer of PyTorch rounds before and behind a Relu6.
    """
    rounding = _rounding_before(node.input(0))
    if rounding is None:
        return False
    if graph.only_user(rounding.output) is None or graph.only_user(node.input(0)) is not node:
        return "others read the rounded values"
    if not _is_rounded_as(graph, node.output, rounding.output.type):
        return "its result is rounded in another way"
    graph.rewrite(node, node.op, [rounding.input(0)])
    return True


clamp_first = Rewriting("clamp_first", clamp_before_rounding)
"""Pass that moves clamps before roundings, where the bits stay the same."""


@pattern(Binary)
def round_layer_of_sum(graph: Graph, node: Node) -> RewriteOutcome:
    """Quantize(layer + Dequantize(x)) → Quantize(Dequantize(Quantize(layer)) + Dequantize(x)), with int16 in between.

    The layer, a convolution or dense layer of integers, and the sum then have integer forms. The range of the int16
    values follows from the other types: where the layer exceeds this range, the sum saturates anyway. So results change
    by one step at most. X86InductorQuantizer of PyTorch does not round a layer before a residual sum.
    """
    if not isinstance(node.op, Binary) or node.op.function not in ("Add", "Sub"):
        return False
    layers = [_reads_integers(value) for value in node.inputs]
    if sum(layers) != 1:
        return False
    at = layers.index(True)
    layer, addend, stores = node.input(at), _stored_type(node.input(1 - at)), _quantized_types(graph, node.output)
    if addend is None or not stores:
        return "the other operand or the result has no single scale"
    if graph.only_user(layer) is not node:
        return "others read the layer's result"
    largest = _largest_of_layer(addend, stores)
    quant = QuantParams((largest / DType.INT16.limits[1],), 0)
    rounded = graph.add(Quantize(), [layer], node.origin, types=[_as(layer.type, DType.INT16, quant)], before=node)
    real = graph.add(Dequantize(), [rounded.output], node.origin, types=[layer.type], before=node)
    operands = [real.output if i == at else value for i, value in enumerate(node.inputs)]
    graph.rewrite(node, node.op, operands)
    return True


round_addends = Rewriting("round_addends", round_layer_of_sum)
"""Pass that rounds the results of integer layers to int16 before a sum that is quantized."""


def _rounding_before(value: Value) -> Node | None:
    """Return the Quantize whose result is dequantized to `value`; None for any other value."""
    dequantize = value.producer
    if dequantize is None or not isinstance(dequantize.op, Dequantize):
        return None
    rounding = dequantize.input(0).producer
    return rounding if rounding is not None and isinstance(rounding.op, Quantize) else None


def _is_rounded_as(graph: Graph, value: Value, type_: TensorType) -> bool:
    """Return whether all readers of a value round it to the given type."""
    return (
        bool(value.users)
        and not graph.is_output(value)
        and all(isinstance(user.op, Quantize) and user.output.type == type_ for user in value.users)
    )


def _reads_integers(value: Value | None) -> bool:
    """Return whether a float value is the result of a convolution or dense layer of dequantized operands."""
    layer = None if value is None else value.producer
    if layer is None or not isinstance(layer.op, Conv | Dense) or layer.output.type.dtype is not DType.FLOAT32:
        return False
    return all(map(_is_dequantized, (layer.input(0), layer.input(1))))


def _is_dequantized(value: Value) -> bool:
    return value.producer is not None and isinstance(value.producer.op, Dequantize)


def _stored_type(value: Value | None) -> TensorType | None:
    """Return the type of the integers behind a dequantized value, if they have one scale; else None."""
    if value is None or not _is_dequantized(value):
        return None
    assert value.producer is not None
    type_ = value.producer.input(0).type
    return type_ if type_.quant is not None and type_.quant.axis is None else None


def _quantized_types(graph: Graph, value: Value) -> list[TensorType]:
    """Return the types to which all readers of a value round it; empty if a reader needs real numbers."""
    types = [user.output.type for user in value.users if isinstance(user.op, Quantize)]
    has_one_scale = all(t.quant is not None and t.quant.axis is None for t in types)
    return types if has_one_scale and len(types) == len(value.users) and not graph.is_output(value) else []


def _largest_of_layer(addend: TensorType, stores: list[TensorType]) -> float:
    """Return the magnitude of a layer's result from which on the sum with any addend saturates."""
    return _largest(addend) + max(map(_largest, stores))


def _largest(type_: TensorType) -> float:
    """Return the largest magnitude of the real numbers that round to the integers of a type without saturation."""
    return float(max(abs(end - type_.q.zero_point) for end in type_.dtype.limits) + 1) * float(type_.q.scale[0])


def _as(type_: TensorType, dtype: DType, quant: QuantParams) -> TensorType:
    return TensorType(type_.shape, dtype, quant, type_.layout)
