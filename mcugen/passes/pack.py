# SPDX-License-Identifier: Apache-2.0
"""Weights that no integer layer took stay codes of few bits where a kernel reads them so."""

from __future__ import annotations

from mcugen.hir.graph import Graph, Node, Value
from mcugen.ops.conversion import Dequantize
from mcugen.ops.matmul import Dense
from mcugen.ops.packed import PackedDense, packed_operands
from mcugen.passes.rewrite import Outcome, pattern


@pattern(Dense)
def keep_packed(graph: Graph, node: Node) -> Outcome:
    """Dense(x, dequantized constant) → PackedDense of the codes: of reals, or of codes to reals."""
    assert isinstance(node.op, Dense)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    form = packed_operands(graph, [node.input(0), node.input(1), _stored(bias)])
    if form is None:
        return "its weights are no codes, or would save nothing"
    group, operands = form
    op = PackedDense(group, node.op.clamp)
    x = _stored(node.input(0))
    if x is None or x.type.quant is None or x.is_constant or not op.takes(x, operands[0]):
        x = node.input(0)
    graph.rewrite(node, op, [x, *operands], types=[node.output.type])
    return True


def _stored(value: Value | None) -> Value | None:
    """The codes behind a dequantized value, else the value itself."""
    source = None if value is None else value.producer
    return source.input(0) if source is not None and isinstance(source.op, Dequantize) else value
