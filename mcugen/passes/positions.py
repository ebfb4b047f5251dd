# SPDX-License-Identifier: Apache-2.0
"""Values that follow from one position: they are evaluated for each position, whatever operators compute them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from mcugen.core.errors import McugenError
from mcugen.hir.graph import Node, Value
from mcugen.hir.interpreter import evaluate_node
from mcugen.hir.types import Array
from mcugen.ops.attention import POSITION_TYPES

MAX_EVALUATED_ELEMENTS = 1 << 26
"""Largest number of elements, for all positions together, that a pass evaluates: about a second."""


WRAPPING_OPERATORS = frozenset({"mod", "bitwiseand", "abs", "where", "stack"})
"""Names of operators whose integer results may be positions within an axis for positions beyond it."""


def position_of(value: Value) -> Value | None:
    """Return the only integer, of one element, that a value follows from; None if it follows from others, too.

    The integer is an input of the graph if possible, else the result that is nearest to the value. No operator between
    the two wraps around, since values are evaluated at positions within an axis only.
    """
    for stop in (False, True):
        nodes = _ancestors(value, _is_position if stop else None)
        read = [value, *(v for node in nodes for v in node.inputs if v is not None)]
        results = {v for node in nodes for v in node.outputs}
        leaves = {v for v in read if v not in results and v.data is None}
        if len(leaves) == 1 and all(map(_is_position, leaves)) and not any(map(_hides_position, nodes)):
            return leaves.pop()
    return None


def _hides_position(node: Node) -> bool:
    """Return whether a node may wrap positions around, or runs bodies."""
    is_wrapped = node.op.name in WRAPPING_OPERATORS and node.outputs[0].type.dtype in POSITION_TYPES
    return bool(node.op.bodies) or is_wrapped


def _is_position(value: Value) -> bool:
    """Return whether a value is an integer of one element that is known at run time."""
    return value.type.count == 1 and value.type.dtype in POSITION_TYPES and value.data is None


def evaluate_each(value: Value, position: Value, count: int) -> Iterator[Array] | None:
    """Return the value at positions 0 to before `count`; None if there are too many elements to evaluate.

    Args:
        value: A value that follows from `position` alone.
        position: The input with the position.
        count: Number of positions.

    Returns:
        One array for each position. It ends early at a position without a result.
    """
    nodes = _ancestors(value, lambda v: v is position)
    elements = sum(v.type.count for node in nodes for v in node.outputs)
    return _results(value, position, nodes, count) if elements * count <= MAX_EVALUATED_ELEMENTS else None


def _results(value: Value, position: Value, nodes: list[Node], count: int) -> Iterator[Array]:
    for number in range(count):
        known: dict[Value, Array] = {position: np.full(position.type.shape, number, position.type.dtype.numpy)}
        try:
            for node in nodes:
                arrays = [known[v] if v.data is None else v.data for v in node.inputs if v is not None]
                known.update(zip(node.outputs, evaluate_node(node, arrays), strict=True))
        except McugenError:
            return
        yield known[value]


def _ancestors(value: Value, stops: Callable[[Value], bool] | None = None) -> list[Node]:
    """Return the nodes that compute a value, in the order in which they can be evaluated.

    Args:
        value: The value.
        stops: Returns whether a value other than `value` is taken as given; None to go back to the inputs.
    """
    order: dict[Node, None] = {}
    stack = [(value, False)]
    while stack:
        current, is_ready = stack.pop()
        node = current.producer
        if node is None or node in order or (stops is not None and current is not value and stops(current)):
            continue
        if is_ready:
            order[node] = None
        else:
            stack.append((current, True))
            stack += [(v, False) for v in node.inputs if v is not None]
    return list(order)
