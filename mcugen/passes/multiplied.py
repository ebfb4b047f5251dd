# SPDX-License-Identifier: Apache-2.0
"""Several filters a channel, as DepthwiseConv2D and SeparableConv2D of Keras have them with a depth multiplier."""

from __future__ import annotations

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.types import DType
from mcugen.ops.conv import Conv
from mcugen.ops.movement import Concat, Reshape, Transpose
from mcugen.ops.spatial import LANES
from mcugen.passes.prune import quant_of_some
from mcugen.passes.rewrite import Outcome, pattern

MOST_FILTERS = 8
"""A channel: each pass over the pixels takes one of all channels."""

LEAST_COLUMNS = 3
"""Of a window: kernels of one filter a channel gain where windows of neighbours share pixels (measured: three columns
take 0.3 to 0.6 of the instructions on Cortex-M0+, M4 and M55; a window of eight rows by one takes 1.2 on M4)."""


@pattern(Conv)
def part_filters(graph: Graph, node: Node) -> Outcome:
    """m filters of each channel → m convolutions of one filter each, whose channels are interleaved."""
    filters = _filters(node)
    if filters is None:
        return False
    op, out, groups = node.op, node.output, node.input(0).type.shape[-1]
    parts = [
        graph.add(
            op,
            [node.input(0), *(v and _some(graph, v, first, filters) for v in node.inputs[1:])],
            node.origin,
            names=[f"{out.name}.filter{first}"],
            types=[out.type.with_shape((*out.type.shape[:-1], groups), out.type.layout)],
            before=node,
        ).output
        for first in range(filters)
    ]
    joined = graph.add(Concat(out.type.rank - 1), parts, node.origin, before=node).output
    by_filter = (*out.type.shape[:-1], filters, groups)
    apart = graph.add(Reshape(by_filter), [joined], node.origin, before=node).output
    last = out.type.rank
    turned = Transpose((*range(last - 1), last, last - 1))
    mixed = graph.add(turned, [apart], node.origin, before=node).output
    graph.rewrite(node, Reshape(out.type.shape), [mixed], types=[out.type])
    return True


def _filters(node: Node) -> int | None:
    """How many filters each channel has, where parting them pays: of int8 codes, channels last."""
    op, x, w = node.op, node.input(0).type, node.input(1)
    groups, codes = x.shape[-1], (x, w.type, node.output.type)
    if type(op) is not Conv or not op.is_channels_last or op.groups != groups or w.data is None:
        return None
    if any(t.dtype is not DType.INT8 or t.quant is None for t in codes) or w.type.shape[-2] < LEAST_COLUMNS:
        return None
    filters = len(w.data) // groups
    return filters if 1 < filters <= MOST_FILTERS and groups % LANES == 0 else None


def _some(graph: Graph, value: Value, first: int, step: int) -> Value:
    """Every so many channels of weights, or of a bias."""
    assert value.data is not None
    mask = np.arange(len(value.data)) % step == first
    quant = quant_of_some(value.type, 0, mask)
    return graph.constant(f"{value.name}.filter{first}", value.data[mask], quant, value.type.dtype)
