# SPDX-License-Identifier: Apache-2.0
"""Layers that share their weights: an unrolled recurrence, one head for maps of several sizes, or twin branches.

Their weights lie in flash once if everything that is derived from them is equal, multipliers and biases included. That
is so if the layers' inputs share a scale and their outputs share a scale. Therefore these tensors share a scale, and so
do the results of equal computations on them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from mcugen.hir.graph import Node, Value
from mcugen.hir.traits import weight_axes

MIN_SAVED_WEIGHT_BYTES = 256
"""Smallest number of bytes of flash that sharing weights between equal layers must save."""

MAX_SHARED_RANGE_RATIO = 2.0
"""Largest ratio of the ranges of two tensors that may share a scale: at 2, the narrower one loses one bit."""

RangeLength = Callable[[Value], float | None]
"""A function that returns the length (largest minus smallest value) of a tensor's range; None if it is unknown."""


class ScaleGroups:
    """A partition of tensors into sets that share a scale, whose sets can be merged (union-find).

    Args:
        span: Returns the length (largest minus smallest value) of a tensor's range; None if it is unknown.
    """

    def __init__(self, span: RangeLength) -> None:
        self._parent: dict[Value, Value] = {}
        self._span, self._spans = span, dict[Value, float | None]()

    def root(self, value: Value) -> Value:
        """Return the value that represents the group of `value`; it is the same for all values of a group."""
        while self._parent.setdefault(value, value) is not value:
            value = self._parent[value]
        return value

    def join(self, a: Value, b: Value) -> None:
        """Merge the groups of two values, so that all their tensors share a scale."""
        a, b = self.root(a), self.root(b)
        if a is not b:
            spans = [s for s in (self._length(a), self._length(b)) if s is not None]
            self._parent[a] = b
            self._spans[b] = max(spans, default=None)

    def join_if_similar(self, a: Value, b: Value) -> bool:
        """Merge the groups of two values if the ratio of their range lengths is at most MAX_SHARED_RANGE_RATIO.

        Returns:
            Whether the groups were separate and are merged now.
        """
        a, b = self.root(a), self.root(b)
        lengths = self._length(a) or 0.0, self._length(b) or 0.0
        if a is b or (min(lengths) > 0 and max(lengths) > MAX_SHARED_RANGE_RATIO * min(lengths)):
            return False
        self.join(a, b)
        return True

    def _length(self, root: Value) -> float | None:
        if root not in self._spans:
            self._spans[root] = self._span(root)
        return self._spans[root]


def layers_of_equal_weights(nodes: Iterable[Node]) -> list[list[Node]]:
    """Return sets of layers with equal operators, weights and biases.

    The result is empty if sharing all these weights saves less than MIN_SAVED_WEIGHT_BYTES.
    """
    by_key: dict[Hashable, list[Node]] = {}
    for node in nodes:
        if len(node.outputs) == 1 and weight_axes(node.op) and all(v is None or v.is_constant for v in node.inputs[1:]):
            same = by_key.setdefault((node.op, tuple(map(_key, node.inputs[1:]))), [])
            same.append(node)
    sets = [layers for layers in by_key.values() if len(layers) > 1]
    return sets if sum(map(_saved_bytes, sets)) >= MIN_SAVED_WEIGHT_BYTES else []


def _saved_bytes(layers: Sequence[Node]) -> int:
    (index,) = weight_axes(layers[0].op)
    return layers[0].input(index).type.count * (len(layers) - 1)


def _key(value: Value | None) -> Hashable:
    """Return what identifies a value: a constant's type and numbers, or the value itself."""
    if value is None or value.data is None:
        return value
    return value.type, hashlib.sha256(value.data.tobytes()).digest()


def join_equal_layers(nodes: Sequence[Node], groups: ScaleGroups) -> list[tuple[str, ...]]:
    """Make the inputs of layers with equal weights share a scale, and also their outputs.

    If equal operators then compute on tensors that share a scale, their results share a scale, too.

    Args:
        nodes: The nodes of the graph, in order.
        groups: The partition of tensors, which is changed.

    Returns:
        Sets of layers whose inputs share a scale and whose outputs share a scale, by the names of their outputs.
    """
    sets = layers_of_equal_weights(nodes)
    for first, *duplicates in sets:
        for node in duplicates:
            groups.join_if_similar(first.input(0), node.input(0))
            groups.join_if_similar(first.output, node.output)
    constants = {v: _key(v) for node in nodes for v in node.inputs if sets and v is not None and v.is_constant}
    while sets and _tie_results(nodes, groups, constants):
        pass
    tied: dict[Hashable, list[str]] = {}
    for number, layers in enumerate(sets):
        for node in layers:
            key = number, groups.root(node.input(0)), groups.root(node.output)
            tied.setdefault(key, []).append(node.output.name)
    return [tuple(names) for names in tied.values() if len(names) > 1]


def _tie_results(nodes: Iterable[Node], groups: ScaleGroups, constants: Mapping[Value, Hashable]) -> bool:
    """Join the results of equal operators on equal constants and on tensors that share scales.

    Return whether that changed the partition.
    """
    alike: dict[Hashable, Node] = {}
    changed = False
    for node in nodes:
        operands = tuple(None if v is None else constants.get(v) or groups.root(v) for v in node.inputs)
        first = alike.setdefault((node.op, operands), node)
        for a, b in zip(first.outputs, node.outputs, strict=True):
            changed |= groups.join_if_similar(a, b)
    return changed
