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
from mcugen.ops.matmul import Dense
from mcugen.ops.movement import Reshape
from mcugen.ops.reduce import Reduce
from mcugen.ops.weighted import finish, largest_sums

Mask = npt.NDArray[np.bool_]
"""A flag a channel."""

MULTIPLE = 8
"""Kernels are fast at multiples of some number of channels: some idle ones stay for that."""


def drop_idle_channels(graph: Graph) -> bool:
    """conv(conv(x)) with idle channels between → without them; what works channel by channel between loses them too."""
    kept = _kept_channels(graph, _idle_channels(graph))
    plan = [(v.producer, kept.get(v.producer.input(0)), mask) for v, mask in kept.items() if v.producer is not None]
    changed = False
    for node, read, written in plan:
        if not written.all() or (read is not None and not read.all()):
            _narrow(graph, node, read, written)
            changed = True
    return changed


def _is_weighted(node: Node) -> bool:
    """Whether every output channel is a sum over all input channels: a convolution, channels last, or dense layer."""
    op = node.op
    return (type(op) is Conv and op.is_channels_last and op.groups == 1) or type(op) is Dense


def _is_depthwise(node: Node) -> bool:
    op = node.op
    if type(op) is not Conv or not op.is_channels_last:
        return False
    return 1 < op.groups == node.sig.input(0).shape[-1] == node.output.type.shape[-1]


def _is_channelwise(node: Node) -> bool:
    """Whether every output channel is made of the one input channel, and the zero point of the zero point."""
    op, rank = node.op, len(node.sig.inputs[0].shape) if node.sig.inputs and node.sig.inputs[0] else 0
    if type(op) is Reshape:
        return op.shape[-1:] == node.sig.input(0).shape[-1:]
    return _is_depthwise(node) or (type(op) is Reduce and rank - 1 not in op.axes)


def _is_narrowable(node: Node) -> bool:
    """Whether it is one of both, on codes."""
    if not (_is_weighted(node) or _is_channelwise(node)):
        return False
    return node.sig.input(0).quant is not None and node.output.type.quant is not None


def _idle_channels(graph: Graph) -> dict[Value, Mask]:
    """Of what is narrowable, by what is known of its input; in order of computation."""
    idle: dict[Value, Mask] = {}
    for node in filter(_is_narrowable, graph.nodes):
        known = idle.get(node.input(0), np.zeros(node.sig.input(0).shape[-1], bool))
        idle[node.output] = _idle_outputs(node, known) if len(node.inputs) > 1 else known
    return idle


def _idle_outputs(node: Node, known: Mask) -> Mask:
    """Where no weight meets an input that is not idle, and the bias makes the zero point."""
    op, weights, bias = node.op, node.input(1).data, node.input(2).data
    assert isinstance(op, Conv | Dense) and weights is not None and bias is not None
    used = weights.reshape(len(weights), -1, weights.shape[-1]).any(1)
    used &= ~(known[:, None] if _is_depthwise(node) else known)
    rest = finish(bias.astype(np.int64), node.sig, op.clamp, largest_sums(node.sig.input(0), weights, bias))
    found: Mask = ~used.any(1) & (rest == node.output.type.q.zero_point)
    return found


def _kept_channels(graph: Graph, idle: dict[Value, Mask]) -> dict[Value, Mask]:
    """All but the idle ones that every reader can do without: found from the last tensor to the first."""
    kept: dict[Value, Mask] = {}
    for value, mask in reversed(idle.items()):
        dropped = mask & (not graph.is_output(value))
        for user, index in value.uses:
            if index or user.outputs[0] not in idle:
                dropped = dropped & False
            elif _is_channelwise(user):
                dropped = dropped & ~kept[user.output]
        kept[value] = _rounded(~dropped)
    return {value: _tied(value, kept) for value in idle}


def _tied(value: Value, kept: dict[Value, Mask]) -> Mask:
    """Of what works channel by channel, what its input keeps, which is no less; in order of computation."""
    node = value.producer
    assert node is not None
    if _is_channelwise(node):
        kept[value] = kept.get(node.input(0), np.ones_like(kept[value]))
    return kept[value]


def _rounded(kept: Mask) -> Mask:
    """With the first of the others up to a multiple."""
    missing = -int(kept.sum()) % MULTIPLE or (0 if kept.any() else MULTIPLE)
    grown = kept.copy()
    grown[np.flatnonzero(~kept)[:missing]] = True
    return grown


def _narrow(graph: Graph, node: Node, read: Mask | None, written: Mask) -> None:
    """The node from the channels `read` (None: all) to the channels `written`."""
    op, out, channels = node.op, node.output.type, int(written.sum())
    shape = (*out.shape[:-1], channels)
    constants: tuple[Value, ...] = ()
    if isinstance(op, Reshape):
        op = replace(op, shape=shape)
    elif isinstance(op, Conv | Dense):
        constants = _narrow_constants(graph, node, read, written)
        op = replace(op, groups=channels) if isinstance(op, Conv) and op.groups > 1 else op
    graph.rewrite(node, op, (node.input(0), *constants), types=[replace(out, shape=shape)])


def _narrow_constants(graph: Graph, node: Node, read: Mask | None, written: Mask) -> tuple[Value, Value]:
    """Weights and bias; those of one filter a channel have no axis of input channels."""
    weights, bias = node.input(1), node.input(2)
    assert weights.data is not None and bias.data is not None
    data, quant = weights.data[written], weights.type.q
    if read is not None and data.shape[-1] == len(read):
        data = data[..., read]
    if quant.axis is not None:
        quant = QuantParams(tuple(quant.scales[written].tolist()), quant.zero_point, quant.axis)
    return graph.constant(weights.name, data, quant), graph.constant(bias.name, bias.data[written])
