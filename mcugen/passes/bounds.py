# SPDX-License-Identifier: Apache-2.0
"""Interval analysis of integer networks: what each element lies between, whatever the input."""

from __future__ import annotations

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.types import Bounds, TensorType


def bounds_of(graph: Graph) -> dict[Value, Bounds]:
    """Of each quantized tensor, exact for sums of independent inputs: padding, rounding and saturation included."""
    found = {value: _limits(value.type) for value in graph.inputs if value.type.quant is not None}
    for node in graph.nodes:
        for value, bounds in zip(node.outputs, _results(node, found), strict=True):
            if value.type.quant is not None:
                found[value] = _limits(value.type) if bounds is None else _shaped(bounds, value.type)
    return found


def _results(node: Node, found: dict[Value, Bounds]) -> list[Bounds | None]:
    """What the operator makes of what is known of its inputs."""
    inputs = [(v.data, v.data) if v.data is not None else found.get(v) for v in node.inputs if v is not None]
    return list(node.op.bounds(node.sig, *inputs))


def _limits(type_: TensorType) -> Bounds:
    low, high = (np.broadcast_to(np.asarray(end, type_.dtype.numpy), type_.shape) for end in type_.dtype.limits)
    return low, high


def _shaped(bounds: Bounds, type_: TensorType) -> Bounds:
    low, high = (np.ascontiguousarray(end, type_.dtype.numpy).reshape(type_.shape) for end in bounds)
    return low, high
