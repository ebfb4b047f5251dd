# SPDX-License-Identifier: Apache-2.0
"""Interval analysis of integer networks: bounds of each element that hold for every input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Operator
from mcugen.hir.traits import Clampable
from mcugen.hir.types import Bounds, TensorType
from mcugen.kernels.common.weighted_layers import clamp_of
from mcugen.numerics.fixedpoint import clamp_range


def bounds_of(graph: Graph) -> dict[Value, Bounds]:
    """Return the smallest and the largest possible value of each element of each quantized tensor.

    The bounds hold for the stored integers, and include padding, rounding and saturation. They are exact for sums of
    independent inputs. Tensors without known bounds are left out.
    """
    bounds_by_value = {value: _limits(value.type) for value in graph.inputs if value.type.quant is not None}
    for node in graph.nodes:
        for value, bounds in zip(node.outputs, _results(node, node.op, bounds_by_value), strict=True):
            if value.type.quant is not None:
                bounds_by_value[value] = _limits(value.type) if bounds is None else _shaped(bounds, value.type)
    return bounds_by_value


def drop_clamps(graph: Graph) -> bool:
    """Remove clamps of quantized values that bounds prove to have no effect; return whether any was removed.

    The saturation to the range of the integer type remains. Models with run-time sizes stay unchanged.
    """
    clampable = [(node, node.op.without_clamp()) for node in graph.nodes if isinstance(node.op, Clampable)]
    clamped = [(node, op) for node, op in clampable if op is not None and _is_narrow(node)]
    bounds_by_value = bounds_of(graph) if clamped and not graph.shapes_vary else {}
    needless = [(node, op) for node, op in clamped if _is_same(node, op, bounds_by_value)]
    for node, op in needless:
        graph.rewrite(node, op, node.inputs, types=[node.output.type])
    return bool(needless)


def _is_narrow(node: Node) -> bool:
    """Return whether a clamp limits more than the saturation of the integer type does."""
    out = node.output.type
    return out.quant is not None and clamp_range(clamp_of(node), out.quant, out.dtype) != out.dtype.limits


def _is_same(node: Node, op: Operator, bounds_by_value: Mapping[Value, Bounds]) -> bool:
    """Return whether an operator that differs from the node's only outside the node's bounds gives equal results."""
    known = bounds_by_value.get(node.output)
    bounds = _results(node, op, bounds_by_value)[0] if known else None
    if known is None or bounds is None:
        return False
    return all(np.array_equal(*ends) for ends in zip(known, _shaped(bounds, node.output.type), strict=True))


def _results(node: Node, op: Operator, bounds_by_value: Mapping[Value, Bounds]) -> Sequence[Bounds | None]:
    """Return the bounds of an operator's results if it took the place of the node's operator."""
    inputs = [(v.data, v.data) if v.data is not None else bounds_by_value.get(v) for v in node.inputs if v is not None]
    return op.bounds(node.sig, *inputs)


def _limits(type_: TensorType) -> Bounds:
    low, high = (np.broadcast_to(np.asarray(end, type_.dtype.numpy), type_.shape) for end in type_.dtype.limits)
    return low, high


def _shaped(bounds: Bounds, type_: TensorType) -> Bounds:
    low, high = (np.ascontiguousarray(end, type_.dtype.numpy).reshape(type_.shape) for end in bounds)
    return low, high
