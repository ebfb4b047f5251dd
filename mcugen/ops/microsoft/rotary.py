# SPDX-License-Identifier: Apache-2.0
"""Rotary position embeddings: pairs of elements of a head are rotated by angles that grow with the token's position."""

from __future__ import annotations

import numpy as np

from mcugen.hir.graph import Value
from mcugen.hir.types import Array
from mcugen.ops.microsoft.common import axes, composed, merge_heads, shaped, split_heads
from mcugen.ops.onnx_node import OnnxNode, Refusal


def rotate(
    node: OnnxNode, x: Value, positions: Value | Array, cos: Value, sin: Value, interleaved: str = "interleaved"
) -> Value:
    """Return x with rotary position embedding applied to the first 2 · R elements of each head.

    Args:
        node: The node that is imported.
        x: Queries or keys, (B, N, S, H): batch, heads, tokens, size of a head.
        positions: Position of each token, (B, S) or (1, S).
        cos: Table of cosines, (positions, R).
        sin: Table of sines, (positions, R).
        interleaved: Name of the attribute that tells whether paired elements are adjacent.
    """
    factors = [_by_head(node, node.call("Gather", cache, positions)) for cache in (cos, sin)]
    return _turned(node, x, factors[0], factors[1], bool(node.attr(interleaved, 0)))


def _by_head(node: OnnxNode, angles: Value) -> Value:
    """(B, S, R) → (B, 1, S, R)."""
    batch, length, pairs = angles.type.shape
    return shaped(node, angles, batch, 1, length, pairs)


def _turned(node: OnnxNode, x: Value, cos: Value, sin: Value, interleaved: bool) -> Value:
    """Rotate pairs: (a, b) → (a · cos − b · sin, b · cos + a · sin).

    The pairs are neighbors if `interleaved`, else the two halves of the rotated part.
    """
    pairs, size = cos.type.shape[-1], x.type.shape[-1]
    node.require(2 * pairs <= size, "angles must be those of a head", f"{pairs} for {size}")
    span, step = (2 * pairs, 2) if interleaved else (pairs, 1)
    a = _slice(node, x, 0, span, step)
    b = _slice(node, x, 1 if interleaved else pairs, 2 * pairs, step)
    first = node.call("Sub", node.call("Mul", a, cos), node.call("Mul", b, sin))
    second = node.call("Add", node.call("Mul", b, cos), node.call("Mul", a, sin))
    if interleaved:
        columns = [shaped(node, part, *part.type.shape, 1) for part in (first, second)]
        turned = shaped(node, node.call("Concat", *columns, axis=-1), *first.type.shape[:-1], 2 * pairs)
    else:
        turned = node.call("Concat", first, second, axis=-1)
    return turned if 2 * pairs == size else node.call("Concat", turned, _slice(node, x, 2 * pairs, size, 1), axis=-1)


def _slice(node: OnnxNode, x: Value, start: int, end: int, step: int) -> Value:
    """Slice the last axis."""
    return node.call("Slice", x, *(np.array([number], np.int64) for number in (start, end, -1, step)))


def _by_heads(node: OnnxNode, x: Value, cos: Value) -> Value:
    """(B, S, N · H) → (B, N, S, H)."""
    heads = int(node.attr("num_heads", 0)) or x.type.shape[2] // max(2 * cos.type.shape[1], 1)
    return split_heads(node, x, heads)


def _rotated(node: OnnxNode, cos: Value, sin: Value) -> Value:
    """Rotate the input, of rank 3 or 4, by angles (B, 1, S, R)."""
    x = node.input(0)
    interleaved = bool(node.attr("interleaved", 0))
    if x.type.rank == 4:
        return _turned(node, x, cos, sin, interleaved)
    return merge_heads(node, _turned(node, _by_heads(node, x, node.input(2)), cos, sin, interleaved))


def _length(x: Value) -> int:
    return x.type.shape[1 if x.type.rank == 3 else 2]


@composed("RotaryEmbedding")
@axes("B S D|B N S E", "1|B S", "M R", "M R")
def _import_rotary(node: OnnxNode) -> list[Value]:
    """Positions are given each, or the first of them. ONNX Runtime's CPU knows neither a scale nor packed batches."""
    positions = node.input(1)
    if positions.type.count == 1 and positions.type.rank < 2:
        steps = np.arange(_length(node.input(0))).astype(np.int64)[None]
        positions = node.call("Add", positions, steps)
    angles = [_by_head(node, node.call("Gather", node.input(i), positions)) for i in (2, 3)]
    return [_rotated(node, *angles)]


@composed("MRotaryEmbedding")
@axes("B S D|B N S E", "3 B S", "M R", "M R")
def _import_sections(node: OnnxNode) -> list[Value]:
    """Import the form in which each of three positions (time, row, column) gives the angles of a section of pairs."""
    owner = _sections(node)
    angles = [_mixed(node, node.input(i), owner) for i in (2, 3)]
    return [_rotated(node, *angles)]


def _sections(node: OnnxNode) -> Array:
    """For each pair: which of the three positions turns it."""
    sizes = node.integers("mrope_section")
    pairs = node.input(2).type.shape[1]
    if len(sizes) != 3 or sum(sizes) != pairs or min(sizes) < 0:
        raise Refusal(f"{node.op_type}: sections must cover all pairs", f"{sizes} of {pairs}", "repair the model")
    if not node.attr("mrope_layout", 0):
        return np.repeat(np.arange(3), sizes)
    owner = np.zeros(pairs, np.int64)
    for stream in (1, 2):
        owner[stream : 3 * sizes[stream] : 3] = stream
    return owner


def _mixed(node: OnnxNode, cache: Value, owner: Array) -> Value:
    """(B, 1, S, R): rows of the cache by the positions (3, B, S), each column by its owner's."""
    rows = node.call("Gather", cache, node.input(1))
    _, batch, length, pairs = rows.type.shape
    streams = [
        node.call(
            "Reshape", node.call("Gather", rows, np.array([i], np.int64), axis=0), np.array([batch, 1, length, pairs])
        )
        for i in range(3)
    ]
    mixed = streams[0]
    for stream in (1, 2):
        if (owner == stream).any():
            mixed = node.call("Where", owner == stream, streams[stream], mixed)
    return mixed
