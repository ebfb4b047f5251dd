# SPDX-License-Identifier: Apache-2.0
"""Integer networks kept in float tensors, as NEMO, QuantLab and DORY write them: whole numbers get the types they need.

A clamp of rounded numbers is a proof that what follows has 8 bits. Codes of scale 1 say the same to every later pass, so
layers become integer ones: their sums are exact, as those of floats were below 2²⁴. What stands between sums and the next
clamp stays as the file says, to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.types import Array, DType, QuantParams
from mcugen.ops.conv import Conv
from mcugen.ops.conversion import Cast, Dequantize, Quantize
from mcugen.ops.matmul import Dense
from mcugen.ops.pointwise import Binary, Clamp, Unary
from mcugen.ops.whole import cut
from mcugen.passes.rewrite import Outcome, Rewriting, pattern

_ROUNDED = (Unary("Floor"), Unary("Ceil"), Unary("Round"))
_CODES = 256


@pattern(Clamp)
def keep_clamped(graph: Graph, node: Node) -> Outcome:
    """Clamp(whole) → Dequantize(Quantize(Clamp(whole))) of scale 1, where a layer of whole weights reads it."""
    assert isinstance(node.op, Clamp)
    zero = _zero_point(node.op.low, node.op.high)
    x = node.output
    if zero is None or x.type.dtype is not DType.FLOAT32 or not _is_whole(node.input(0)):
        return False
    if any(isinstance(user.op, Quantize) for user in x.users) or not any(_reads_whole(user) for user in _readers(x)):
        return False
    behind = next(graph.nodes.behind(node), None)
    stored = replace(x.type, dtype=DType.INT8, quant=QuantParams((1.0,), zero))
    codes = graph.add(Quantize(), [x], node.origin, types=[stored], before=behind)
    real = graph.add(Dequantize(), [codes.output], node.origin, types=[x.type], before=behind)
    graph.replace(x, real.output)
    codes.set_input(0, x)
    return True


def _zero_point(low: float, high: float) -> int | None:
    """Of int8 codes that have a scale of 1 and all numbers within these limits; None: they are too far apart."""
    if not (np.isfinite([low, high]).all() and low == round(low) and high == round(high)):
        return None
    least, _ = DType.INT8.limits
    zero = 0 if least <= low and high <= DType.INT8.limits[1] else int(least - low)
    return zero if low <= 0 <= high - low < _CODES else None


def _is_whole(value: Value) -> bool:
    """Whether a tensor has whole numbers only, whatever is computed from."""
    node = value.producer
    if node is None:
        return False
    if isinstance(node.op, Cast):
        return node.input(0).type.dtype.is_integer
    return node.op in _ROUNDED or (isinstance(node.op, Clamp) and _is_whole(node.input(0)))


def _readers(value: Value) -> Iterator[Node]:
    """Those of a tensor's elements, however these are moved."""
    for user in value.users:
        if user.op.moves_data:
            for moved in user.outputs:
                yield from _readers(moved)
        else:
            yield user


def _reads_whole(node: Node) -> bool:
    return isinstance(node.op, Conv | Dense) and _codes_of(node.input(1)) is not None


def _codes_of(weights: Value) -> Array | None:
    """Whole weights as int8; None: they are others, or quantized already."""
    data = weights.data
    if data is None or weights.type.dtype is not DType.FLOAT32 or weights.type.quant is not None:
        return None
    low, high = DType.INT8.limits
    is_whole = bool((data == np.rint(data)).all() and data.min(initial=0) >= low and data.max(initial=0) <= high)
    return data.astype(np.int8) if is_whole else None


@pattern(Conv, Dense)
def keep_weights(graph: Graph, node: Node) -> Outcome:
    """layer(Dequantize(x), whole weights) → layer(Dequantize(x), Dequantize(weights)), both of scale 1."""
    codes = _codes_of(node.input(1))
    if codes is None or not _is_code(node.input(0)):
        return False
    stored = graph.constant(f"{node.input(1).name}.codes", codes, QuantParams((1.0,), 0))
    real = graph.add(Dequantize(), [stored], node.origin, types=[node.input(1).type], before=node)
    node.set_input(1, real.output)
    return True


def _is_code(value: Value) -> bool:
    """Whether a tensor comes from whole codes, however they were moved."""
    node = value.producer
    if node is None:
        return False
    if isinstance(node.op, Dequantize):
        return node.input(0).type.q.scale == (1.0,) and not node.input(0).is_constant
    return node.op.moves_data and all(v is not None and _is_code(v) for v in node.inputs)


recognize_whole = Rewriting("recognize_whole", keep_clamped, keep_weights)
"""Codes and weights."""


@pattern(Quantize, Clamp)
def recognize_cut(graph: Graph, node: Node) -> Outcome:
    """Clamp(Floor(x)) and Clamp(Cast(Cast(x) · a / b)) by whole limits, 0 or more → Cut: no division of 64 bits.

    Codes of scale 1 come from it as they are stored.
    """
    clamp = node.input(0).producer if isinstance(node.op, Quantize) else node
    if clamp is None or not isinstance(clamp.op, Clamp) or clamp.output.type.dtype is not DType.FLOAT32:
        return False
    stores = node.op is not clamp.op
    if stores and (node.output.type.q.scale != (1.0,) or graph.only_user(clamp.output) is not node):
        return False
    if not stores and any(isinstance(user.op, Quantize) for user in clamp.output.users):
        return False  # with that, then
    found = _fraction(graph, clamp.input(0))
    low, high = clamp.op.low, clamp.op.high
    if found is None or not np.isfinite([low, high]).all() or low != round(low) or high != round(high):
        return False
    x, numerator, denominator = found
    op = cut(numerator, denominator, int(low), int(high))
    if op is None:
        return "no multiplication gives the same"
    if stores:
        graph.rewrite(node, op, [x], types=[node.output.type])
    else:
        whole = graph.add(op, [x], node.origin, before=node)
        graph.rewrite(node, Cast(DType.FLOAT32), [whole.output], types=[node.output.type])
    return True


def _fraction(graph: Graph, value: Value) -> tuple[Value, int, int] | None:
    """x, a, b where a value is trunc(trunc(x) · a / b), or, as far as it is at least 0, ⌊x⌋."""
    node = value.producer
    if node is None or graph.only_user(value) is None:
        return None
    if node.op == Unary("Floor"):
        return node.input(0), 1, 1
    factors = {"Div": 1, "Mul": 1}
    value = node.input(0)
    for function in ("Div", "Mul"):
        inner = value.producer
        if inner is not None and inner.op == Binary(function) and graph.only_user(value) is not None:
            constant = inner.input(1).data
            if constant is None or constant.size != 1 or constant.reshape(-1)[0] <= 0:
                return None
            factors[function], value = int(constant.reshape(-1)[0]), inner.input(0)
    source = value.producer
    if source is None or source.op != Cast(DType.INT64) or source.input(0).type.dtype is not DType.FLOAT32:
        return None
    return source.input(0), factors["Mul"], factors["Div"]
