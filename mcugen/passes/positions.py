# SPDX-License-Identifier: Apache-2.0
"""Values that follow from one position: they are evaluated for each position, whatever operators compute them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from mcugen.core.errors import McugenError
from mcugen.hir.graph import Node, Value
from mcugen.hir.interpreter import evaluate_node
from mcugen.hir.types import Array
from mcugen.ops.attention import POSITION_TYPES

MAX_EVALUATED_ELEMENTS = 1 << 26
"""Largest number of elements, for all positions together, that a pass evaluates: about a second."""


def positions_of(value: Value) -> Iterator[Value]:
    """Yield the integers, of one element, that a value follows from alone: an input of the graph, then a result.

    The result is the one that is nearest to the value. Whoever asks must evaluate the value beyond an axis, too: where
    operators between the input and the value wrap positions around, only the nearest result counts entries of an axis.
    """
    yielded: Value | None = None
    for stop in (False, True):
        nodes = _ancestors(value, _is_position if stop else None)
        read = [value, *(v for node in nodes for v in node.inputs if v is not None)]
        results = {v for node in nodes for v in node.outputs}
        leaves = {v for v in read if v not in results and v.data is None}
        if len(leaves) == 1 and all(map(_is_position, leaves)) and not any(node.op.bodies for node in nodes):
            (leaf,) = leaves
            if leaf is not yielded:
                yielded = leaf
                yield leaf


def follows_from_position(value: Value) -> bool:
    """Return whether a value follows from one integer of one element alone."""
    return next(positions_of(value), None) is not None


def _is_position(value: Value) -> bool:
    """Return whether a value is an integer of one element that is known at run time."""
    return value.type.count == 1 and value.type.dtype in POSITION_TYPES and value.data is None


def probes(count: int) -> tuple[int, ...]:
    """Return positions at which to evaluate a value: all of an axis with `count` entries, then some outside of it.

    Those outside tell whether positions wrap around, are limited, or count from the end of the axis.
    """
    behind = (count, count + 1, count + count // 2, 2 * count - 1, 2 * count, 2 * count + 1)
    far = (1 << bits for bits in range(count.bit_length(), 31))
    negative = (-1, -(count // 2) - 1, -count, -count - 1, -2 * count)
    return tuple(dict.fromkeys((*range(count), *behind, *far, *negative)))


def evaluate_each(value: Value, position: Value, numbers: Sequence[int]) -> Iterator[Array | None] | None:
    """Return the value at positions; None if there are too many elements to evaluate.

    Args:
        value: A value that follows from `position` alone.
        position: The integer with the position.
        numbers: The positions.

    Returns:
        One array for each position; None where there is no result.
    """
    nodes = _ancestors(value, lambda v: v is position)
    elements = sum(v.type.count for node in nodes for v in node.outputs)
    return _results(value, position, nodes, numbers) if elements * len(numbers) <= MAX_EVALUATED_ELEMENTS else None


def _results(value: Value, position: Value, nodes: list[Node], numbers: Sequence[int]) -> Iterator[Array | None]:
    for number in numbers:
        known: dict[Value, Array] = {position: np.full(position.type.shape, number, position.type.dtype.numpy)}
        try:
            for node in nodes:
                arrays = [known[v] if v.data is None else v.data for v in node.inputs if v is not None]
                known.update(zip(node.outputs, evaluate_node(node, arrays), strict=True))
        except McugenError:
            yield None
        else:
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
