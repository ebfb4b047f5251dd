# SPDX-License-Identifier: Apache-2.0
"""Merging of parallel branches: convolutions and normalizations of one tensor whose sum one layer computes.

RepVGG (Ding et al. 2021), MobileOne (Vasu et al. 2023) and similar networks are trained with more layers than they
need: they add convolutions of several sizes and a batch normalization of the same tensor. Exporters write these
branches as they are unless the user asks for the deployed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from mcugen.hir.graph import Graph, Node, Value, constant_data
from mcugen.hir.types import Array, DType
from mcugen.numerics.window import Window
from mcugen.ops.affine import Affine
from mcugen.ops.conv import Conv
from mcugen.ops.pointwise import Binary
from mcugen.passes.rewrite import RewriteOutcome, pattern


@dataclass(frozen=True)
class _Branch:
    """A linear branch y = w ∗ x + bias in channels first: w [O, C/groups, *kernel], bias [O]."""

    x: Value
    weights: Array
    bias: Array
    groups: int
    window: Window

    @property
    def kernel(self) -> tuple[int, ...]:
        return self.weights.shape[2:]

    def takes(self, other: Self) -> Self | None:
        """Return the sum of both branches; None if the other kernel does not fit into this one, or the weights grow."""
        groups = min(self.groups, other.groups)
        places = self._places(other)
        if places is None or self.groups % groups or other.groups % groups:
            return None
        weights = _in_groups(self.weights, self.groups, groups)
        if weights.size > self.weights.size + other.weights.size:
            return None
        weights[np.ix_(*map(range, weights.shape[:2]), *places)] += _in_groups(other.weights, other.groups, groups)
        return type(self)(self.x, weights, self.bias + other.bias, groups, self.window)

    def _places(self, other: Self) -> list[list[int]] | None:
        """Return, by axis, the indices in this kernel at which the other's weights meet the same element of x."""
        ours, theirs = self.window, other.window
        places = []
        for axis, (size, count) in enumerate(zip(self.kernel, other.kernel, strict=True)):
            offsets = [k * theirs.dilations[axis] - theirs.before[axis] + ours.before[axis] for k in range(count)]
            if any(at % ours.dilations[axis] for at in offsets):
                return None
            places.append([at // ours.dilations[axis] for at in offsets])
            if not all(0 <= at < size for at in places[-1]):
                return None
        return places if ours.strides == theirs.strides else None


def _in_groups(weights: Array, groups: int, new_groups: int) -> Array:
    """Return the weights for a smaller number of groups, as float64: weights between former groups are 0."""
    share, rows_per_group = groups // new_groups, len(weights) // groups
    depth = weights.shape[1]
    result = np.zeros((len(weights), depth * share, *weights.shape[2:]))
    for group in range(groups):
        rows, first = slice(group * rows_per_group, (group + 1) * rows_per_group), group % share * depth
        result[rows, first : first + depth] = weights[rows]
    return result


@pattern(Binary)
def merge_branches(graph: Graph, node: Node) -> RewriteOutcome:
    """f(x) + g(x) → h(x), one convolution, for convolutions and normalizations f and g of the same tensor.

    The rewrite is made for float32 if nothing else reads f(x) or g(x), both have the shape of the sum, and h has no
    more weights than f and g together.
    """
    if not isinstance(node.op, Binary) or node.op.function != "Add" or node.output.type.dtype is not DType.FLOAT32:
        return False
    producers = [v.producer for v in node.inputs if v is not None and v.producer is not None]
    branches = _branches(producers)
    if len(branches) < 2 or branches[0].x is not branches[1].x:
        return False
    if any(graph.only_user(p.output) is not node for p in producers):
        return "others read a branch"
    if any(v is None or v.type.shape != node.output.type.shape for v in node.inputs):
        return "the branches have other shapes"
    large, small = sorted(branches, key=lambda b: (b.kernel, -b.groups), reverse=True)
    merged = large.takes(small)
    if merged is None:
        return "one layer would have more weights than both"
    weights, bias = (
        graph.constant(f"{node.output.name}.{name}", array.astype(np.float32), of=of)
        for name, array, of in (
            ("weight", merged.weights, [p.input(1) for p in producers]),
            ("bias", merged.bias, [bias for p in producers for bias in p.inputs[2:]]),
        )
    )
    op = Conv(merged.window, groups=merged.groups, clamp=node.op.clamp)
    origin = [name for p in producers for name in p.origin]
    graph.rewrite(node, op, [merged.x, weights, bias], origin=origin)
    for layer in producers:
        graph.remove(layer)
    return True


def _branches(nodes: Sequence[Node]) -> list[_Branch]:
    """Return the branches of these nodes; a normalization counts if some node is a convolution."""
    layers = {node: branch for node in nodes if (branch := _layer(node)) is not None}
    like = next(iter(layers.values()), None)
    lines = {node: branch for node in nodes if like is not None and (branch := _line(node, like)) is not None}
    return [branch for node in nodes if (branch := layers.get(node) or lines.get(node)) is not None]


def _layer(node: Node) -> _Branch | None:
    """Return the branch of a convolution, channels first, whose weights and bias are constants."""
    op, constants = node.op, node.inputs[1:]
    if not isinstance(op, Conv) or op.clamp is not None or op.is_channels_last:
        return None
    if any(v is not None and v.data is None for v in constants):
        return None
    weights, bias = [None if v is None else v.data for v in (*constants, None)][:2]
    assert weights is not None
    shift = np.zeros(len(weights)) if bias is None else bias.astype(np.float64)
    return _Branch(node.input(0), weights.astype(np.float64), shift, op.groups, op.window)


def _line(node: Node, like: _Branch) -> _Branch | None:
    """Return x · scale + shift with one constant a channel, as a convolution of one weight a channel."""
    if node.op != Affine():
        return None
    shape, space = node.output.type.shape, len(like.kernel)
    constant_shape = tuple(n if a == 1 else 1 for a, n in enumerate(shape))
    constants = constant_data(node.inputs[1:])
    if len(constants) < 2 or any(np.broadcast_shapes(a.shape, constant_shape) != constant_shape for a in constants):
        return None
    scale, shift = (np.broadcast_to(a, constant_shape).reshape(-1).astype(np.float64) for a in constants)
    window = Window((1,) * space, (0,) * space, (0,) * space, (1,) * space)
    return _Branch(node.input(0), scale.reshape(-1, *(1,) * (space + 1)), shift, shape[1], window)
