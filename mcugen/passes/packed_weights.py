# SPDX-License-Identifier: Apache-2.0
"""Packing of weights outside integer layers: they stay quantized values of few bits if a kernel reads them so."""

from __future__ import annotations

from mcugen.hir.graph import Graph, Node, Value
from mcugen.ops.conv import Conv
from mcugen.ops.conversion import Dequantize
from mcugen.ops.matmul import Dense
from mcugen.ops.movement import Transpose, inverse, to_channels_last
from mcugen.ops.packed import PackedDense, packed_operands
from mcugen.passes.rewrite import RewriteOutcome, pattern


@pattern(Dense, Conv)
def keep_packed(graph: Graph, node: Node) -> RewriteOutcome:
    """Dense(x, dequantized constant) → PackedDense(x, stored integers), for real x or for quantized x with real output.

    The weights then stay integers in flash. A convolution with a 1×1 kernel becomes a PackedDense between two
    transpositions. Weights stay as they are if packing would save nothing.
    """
    assert isinstance(node.op, Dense | Conv)
    if isinstance(node.op, Conv) and not _reads_pixels(node):
        return "its window is more than a pixel"
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    form = packed_operands(graph, [node.input(0), node.input(1), _stored(bias)])
    if form is None:
        return "its weights are no codes, or would save nothing"
    group, operands = form
    op = PackedDense(group, node.op.clamp)
    x = _stored(node.input(0))
    if x is None or x.type.quant is None or x.is_constant or not op.takes(x, operands[0]):
        x = node.input(0)
    if isinstance(node.op, Dense):
        graph.rewrite(node, op, [x, *operands], types=[node.output.type])
        return True
    perm = to_channels_last(node.output.type.rank)
    last = graph.add(Transpose(perm), [x], node.origin, before=node)
    pixels = graph.add(op, [last.output, *operands], node.origin, before=node)
    graph.rewrite(node, Transpose(inverse(perm)), [pixels.output], types=[node.output.type])
    return True


def _reads_pixels(node: Node) -> bool:
    """Return whether a convolution, channels first, multiplies each pixel by one matrix."""
    assert isinstance(node.op, Conv)
    window, weights = node.op.window, node.input(1).type
    plain = set(window.strides) == {1} and not any((*window.before, *window.after))
    return plain and node.op.groups == 1 and not node.op.is_channels_last and set(weights.shape[2:]) == {1}


def _stored(value: Value | None) -> Value | None:
    """Return the quantized values behind a dequantized value, else the value itself."""
    source = None if value is None else value.producer
    return source.input(0) if source is not None and isinstance(source.op, Dequantize) else value
