# SPDX-License-Identifier: Apache-2.0
"""Idle channels: those of an integer tensor that hold its zero point whatever the input; nobody need compute them.

Training leaves filters without weights. If the bias makes no more of them than the zero point, products with such a
channel are 0, and so is padding: conv(x)[n] = conv(x without idle channels)[n].
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.types import QuantParams
from mcugen.ops.conv import Conv
from mcugen.ops.weighted import finish, largest_sums

Mask = npt.NDArray[np.bool_]
"""A flag a channel."""

MULTIPLE = 8
"""Kernels are fast at multiples of some number of channels: some idle ones stay for that."""


def drop_idle_channels(graph: Graph) -> bool:
    """conv(conv(x)) with idle channels between → without them; depthwise convolutions between lose them too."""
    kept = _kept_channels(graph, _idle_channels(graph))
    plan = [(v.producer, kept.get(v.producer.input(0)), mask) for v, mask in kept.items() if v.producer is not None]
    changed = False
    for node, read, written in plan:
        if not written.all() or (read is not None and not read.all()):
            _narrow(graph, node, read, written)
            changed = True
    return changed


def _is_narrowable(node: Node) -> bool:
    """Whether it is a convolution of codes, channels last: an ordinary or a depthwise one."""
    op = node.op
    if type(op) is not Conv or not op.is_channels_last or node.output.type.quant is None:
        return False
    return node.sig.input(0).quant is not None and (op.groups == 1 or _is_depthwise(node))


def _is_depthwise(node: Node) -> bool:
    assert isinstance(node.op, Conv)
    return 1 < node.op.groups == node.sig.input(0).shape[-1] == node.output.type.shape[-1]


def _idle_channels(graph: Graph) -> dict[Value, Mask]:
    """Of the outputs of convolutions, by what is known of their inputs."""
    idle: dict[Value, Mask] = {}
    for node in filter(_is_narrowable, graph.nodes):
        weights, bias = node.input(1).data, node.input(2).data
        assert weights is not None and bias is not None
        used = weights.reshape(len(weights), -1, weights.shape[-1]).any(1)
        known = idle.get(node.input(0), np.zeros(node.sig.input(0).shape[-1], bool))
        used &= ~(known[:, None] if _is_depthwise(node) else known)
        op = node.op
        assert isinstance(op, Conv)
        rest = finish(bias.astype(np.int64), node.sig, op.clamp, largest_sums(node.sig.input(0), weights, bias))
        idle[node.output] = ~used.any(1) & (rest == node.output.type.q.zero_point)
    return idle


def _kept_channels(graph: Graph, idle: dict[Value, Mask]) -> dict[Value, Mask]:
    """All but the idle ones that every reader can do without: found from the last tensor to the first."""
    kept: dict[Value, Mask] = {}
    for value, mask in reversed(idle.items()):
        dropped = mask & (not graph.is_output(value))
        for user, index in value.uses:
            if index or user.output not in idle:
                dropped = dropped & False
            elif _is_depthwise(user):
                dropped = dropped & ~kept[user.output]
        kept[value] = _rounded(~dropped)
    return {value: _tied(value, kept) for value in idle}


def _tied(value: Value, kept: dict[Value, Mask]) -> Mask:
    """Of a depthwise convolution what its input keeps, which is no less; in order of computation."""
    node = value.producer
    assert node is not None
    if _is_depthwise(node):
        kept[value] = kept.get(node.input(0), np.ones_like(kept[value]))
    return kept[value]


def _rounded(kept: Mask) -> Mask:
    """With the first of the others up to a multiple."""
    missing = -int(kept.sum()) % MULTIPLE or (0 if kept.any() else MULTIPLE)
    grown = kept.copy()
    grown[np.flatnonzero(~kept)[:missing]] = True
    return grown


def _narrow(graph: Graph, node: Node, read: Mask | None, written: Mask) -> None:
    """The convolution of the channels `read` (None: all) to the channels `written`."""
    op, weights, bias, out = node.op, node.input(1), node.input(2), node.output.type
    assert isinstance(op, Conv) and weights.data is not None and bias.data is not None
    data, quant, channels = weights.data[written], weights.type.q, int(written.sum())
    if op.groups > 1:
        op = replace(op, groups=channels)
    elif read is not None:
        data = data[..., read]
    if quant.axis is not None:
        quant = QuantParams(tuple(quant.scales[written].tolist()), quant.zero_point, quant.axis)
    constants = (graph.constant(weights.name, data, quant), graph.constant(bias.name, bias.data[written]))
    graph.rewrite(node, op, (node.input(0), *constants), types=[replace(out, shape=(*out.shape[:-1], channels))])
