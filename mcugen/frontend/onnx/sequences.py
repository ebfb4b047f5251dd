# SPDX-License-Identifier: Apache-2.0
"""Sequences of tensors with known length, which exporters use for split, chunk and unbind.

A sequence is a list of values under a name, and does not exist in the HIR. An optional tensor that is present is
imported as the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mcugen.hir.graph import Value
from mcugen.ops.movement import Concat, Slice, normalize_axis, reshaped
from mcugen.ops.onnx_node import OnnxNode, Refusal

MAX_SPLIT_PARTS = 1024
"""Largest number of parts into which SplitToSequence may split a tensor: each part becomes a node."""


@dataclass
class SequenceNode:
    """An ONNX node that reads or creates sequences, whose length must be known at compile time.

    Attributes:
        node: The node; inputs that are sequences are absent in it.
        inputs: The sequence at each input position; None for a tensor.
    """

    node: OnnxNode
    inputs: tuple[list[Value] | None, ...]

    def sequence(self, index: int = 0) -> list[Value]:
        """Return the sequence at input `index`.

        Raises:
            Refusal: The input is not a sequence.
        """
        items = self.inputs[index] if index < len(self.inputs) else None
        if items is None:
            raise Refusal(
                f"{self.node.op_type}: input {index} must be a sequence of known length", "none", "split into tensors"
            )
        return items

    def position(self, index: int, length: int, default: int) -> int:
        """Return the index into a sequence that a constant input holds, counted from 0.

        Args:
            index: The position of the input that holds the index.
            length: The length of the sequence.
            default: The result if the input is absent.

        Raises:
            Refusal: The index is not within the sequence.
        """
        if not self.node.has(index):
            return default
        place = self.node.whole(index, "the position")
        if not -length <= place < length:
            raise Refusal(f"{self.node.op_type}: the position must lie within", f"{place} of {length}", "repair it")
        return place % length


def _construct(s: SequenceNode) -> list[Value]:
    return [s.node.input(i) for i in range(len(s.node.inputs))]


def _insert(s: SequenceNode) -> list[Value]:
    items = list(s.sequence())
    place = len(items)
    if s.node.has(2):
        place = s.node.whole(2, "the position")
        place += len(items) if place < 0 else 0
        if not 0 <= place <= len(items):
            raise Refusal("SequenceInsert: the position must lie within", f"{place} of {len(items)}", "repair it")
    items.insert(place, s.node.input(1))
    return items


def _erase(s: SequenceNode) -> list[Value]:
    items = list(s.sequence())
    if not items:
        raise Refusal("SequenceErase: the sequence must have elements", "none", "repair the model")
    del items[s.position(1, len(items), len(items) - 1)]
    return items


def _at(s: SequenceNode) -> Value:
    items = s.sequence()
    return items[s.position(1, len(items), 0)]


def _split(s: SequenceNode) -> list[Value]:
    """Import SplitToSequence: split by sizes, or into parts of one size.

    The default size is 1; with keepdims=0, parts of the default size lose the axis.
    """
    node = s.node
    x = node.input(0)
    axis = normalize_axis(node, node.attr("axis", 0), x.type.rank)
    size = x.type.shape[axis]
    split = node.const(1, "the split") if node.has(1) else np.asarray(1)
    if split.ndim == 0:
        step = int(split)
        if step < 1:
            raise Refusal("SplitToSequence: the size must be positive", str(step), "repair the model")
        sizes = [min(step, size - start) for start in range(0, size, step)]
    else:
        sizes = [int(v) for v in split]
    if sum(sizes) != size or min(sizes, default=0) < 0:
        raise Refusal("SplitToSequence: the parts must sum up to the axis", f"{sizes} of {size}", "repair the model")
    if len(sizes) > MAX_SPLIT_PARTS:
        raise Refusal(f"SplitToSequence: at most {MAX_SPLIT_PARTS} parts", str(len(sizes)), "split into fewer")
    drop = not node.has(1) and not node.attr("keepdims", 1)
    parts, start = [], 0
    for number, part in enumerate(sizes):
        value = _part(node, x, axis, start, part, f"part{number}")
        flat = (*x.type.shape[:axis], *x.type.shape[axis + 1 :])
        parts.append(reshaped(node, value, flat, f"flat{number}") if drop else value)
        start += part
    return parts


def _part(node: OnnxNode, x: Value, axis: int, start: int, size: int, suffix: str) -> Value:
    starts, shape = [0] * x.type.rank, list(x.type.shape)
    starts[axis], shape[axis] = start, size
    if not math.prod(shape):
        return node.constant(suffix, np.empty(shape, x.type.dtype.numpy))
    return node.emit(Slice(tuple(starts), tuple(shape), (1,) * x.type.rank), x, suffix=suffix)


def _concat(s: SequenceNode) -> Value:
    node, parts = s.node, s.sequence()
    if not parts:
        raise Refusal("ConcatFromSequence: the sequence must have elements", "none", "repair the model")
    new = bool(node.attr("new_axis", 0))
    axis = normalize_axis(node, node.attr("axis", 0), parts[0].type.rank + new)
    if new:
        shapes = [(*p.type.shape[:axis], 1, *p.type.shape[axis:]) for p in parts]
        parts = [reshaped(node, p, shape, f"row{i}") for i, (p, shape) in enumerate(zip(parts, shapes, strict=True))]
    return node.emit(Concat(axis), *parts)


def _length(s: SequenceNode) -> Value:
    return s.node.constant("length", np.asarray(len(s.sequence()), np.int64))


def _has_element(s: SequenceNode) -> Value:
    there = any(s.node.has(i) for i in range(len(s.node.inputs))) or any(v is not None for v in s.inputs)
    return s.node.constant("there", np.asarray(there))


def _only(s: SequenceNode) -> Value | list[Value]:
    return s.inputs[0] if s.inputs and s.inputs[0] is not None else s.node.input(0)


SEQUENCE_OPERATORS: dict[str, Callable[[SequenceNode], Value | list[Value]]] = {
    "SequenceConstruct": _construct,
    "SequenceEmpty": lambda s: [],
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceAt": _at,
    "SequenceLength": _length,
    "SplitToSequence": _split,
    "ConcatFromSequence": _concat,
    "Optional": _only,
    "OptionalGetElement": _only,
    "OptionalHasElement": _has_element,
}
"""Importers of operators on sequences, by ONNX operator; each returns the operator's result, a value or a sequence.

`Scope` itself imports Identity of a sequence.
"""
