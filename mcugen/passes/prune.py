# SPDX-License-Identifier: Apache-2.0
"""Pruning of channels that are constant for every input, or that nobody reads; results stay bit-exact.

A channel is an index of a tensor's last axis. Interval analysis proves constants. They go into the biases of layers
that sum over channels, unless a window leaves the input: padding adds nothing there, while a constant other than the
zero point would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import numpy.typing as npt

from mcugen.hir.graph import DroppedWork, Graph, Node, Value
from mcugen.hir.operator import Channels, Operator, Signature
from mcugen.hir.traits import Channelwise, bias_input, weight_axes
from mcugen.hir.types import Array, QuantParams, TensorType
from mcugen.numerics.sums import largest_sums, requantizer, sum_dtype
from mcugen.passes.bounds import bounds_of

Mask = npt.NDArray[np.bool_]
"""A boolean array with one flag for each channel."""

CHANNEL_MULTIPLE = 8
"""Multiple of channels for which kernels are fastest: pruning keeps some unread channels to reach a multiple of 8."""


def drop_channels(graph: Graph) -> bool:
    """Tensors with constant or unread channels → narrower tensors; constants move into the readers' biases.

    Channels are kept where that makes their number a multiple of CHANNEL_MULTIPLE. Return whether the graph changed.
    """
    before = _computed(graph)
    plan = _Plan(graph, {} if graph.shapes_vary else constant_channels(graph))
    while True:
        changes = {node: plan.change(node) for node in plan.links}
        inexact = {node for node, change in changes.items() if not plan.rounds_alike(node, change)}
        if not inexact:
            break
        plan = _Plan(graph, plan.fixed, plan.wide | inexact)
    different = [(node, change) for node, change in changes.items() if change.differs(node)]
    for node, change in different:
        change.apply(graph, node)
    after = _computed(graph)
    graph.dropped += DroppedWork(before.channels - after.channels, macs=before.macs - after.macs)
    return bool(different)


def _computed(graph: Graph) -> DroppedWork:
    """Return the channels and MACs of all layers: what would be dropped with the whole graph."""
    layers = [(node, macs) for node in graph.nodes if (macs := node.op.macs(node.sig)) and not node.op.bodies]
    return DroppedWork(sum(_width(node.outputs[0]) for node, _ in layers), macs=sum(macs for _, macs in layers))


def constant_channels(graph: Graph) -> dict[Value, Array]:
    """Return the channels of quantized tensors that hold one constant, whatever the model's input is.

    Returns:
        For each quantized tensor with known bounds, an array with one entry per channel (last axis): the stored integer
        that all elements of the channel have, or NaN for a channel that is not constant.
    """
    constants: dict[Value, Array] = {}
    for value, (low, high) in bounds_of(graph).items():
        if value.type.count and value.type.rank:
            rows = [end.reshape(-1, end.shape[-1]) for end in (low, high)]
            lows, highs = rows[0].min(0), rows[1].max(0)
            constants[value] = np.where(lows == highs, lows, np.nan)
    return constants


@dataclass
class _Plan:
    """A plan of the wanted and the kept channels of each computed tensor.

    `wanted` are the channels on whose elements outputs depend. `kept` are more, so that operators fit together and
    kernels are fast; the additional channels may hold anything.
    """

    graph: Graph
    fixed: Mapping[Value, Array]
    wide: set[Node] = field(default_factory=set)
    """Nodes that must stay as they are."""
    links: dict[Node, Channels] = field(init=False)
    wanted: dict[Value, Mask] = field(init=False)
    kept: dict[Value, Mask] = field(init=False)

    def __post_init__(self) -> None:
        node_links = ((node, self._link(node)) for node in self.graph.nodes if node not in self.wide)
        self.links = {node: link for node, link in node_links if link is not None}
        self.wanted = self._wanted()
        self.kept = {v: m | (v.producer not in self.links) for v, m in self.wanted.items()}
        while self._tie() or self._fill():
            pass

    @staticmethod
    def _link(node: Node) -> Channels | None:
        """Return how a node works on channels, or None; sums must be of codes, which are exact in any order."""
        if len(node.outputs) > 1 or not node.sig.output.count or not isinstance(node.op, Channelwise):
            return None
        link = node.op.channels(node.sig)
        return None if link is None or (link.sums and node.sig.input(0).quant is None) else link

    def _wanted(self) -> dict[Value, Mask]:
        """Return the channels on which outputs depend, propagated from the outputs back."""
        masks = {v: np.full(_width(v), self.graph.is_output(v)) for v in self.graph.values() if v.data is None}
        for node in reversed(self.graph.nodes):
            for index, value in enumerate(node.inputs):
                if value is not None and value.data is None:
                    masks[value] |= self._reads(node, index, masks)
        return masks

    def _reads(self, node: Node, index: int, masks: Mapping[Value, Mask]) -> Mask:
        """Return the channels of an input on which the wanted channels of the output depend."""
        link, value = self.links.get(node), node.input(index)
        if link is not None and link.sums and index == 0:
            weights = _constant(node, 1)[masks[node.output]]
            used: Mask = weights.reshape(-1, weights.shape[-1]).any(0) & np.isnan(self.folded(node))
            return used
        source = None if link is None else link.sources[index]
        if source is None:
            return np.ones(_width(value), bool)
        return _read(source, masks[node.output], _width(value))

    def folded(self, node: Node) -> Array:
        """Return the constants of input 0 that a sum over channels takes into its bias; NaN for other channels."""
        values = self.fixed.get(node.input(0), np.full(_width(node.input(0)), np.nan))
        return np.where(values == node.sig.input(0).q.zero_point, values, np.nan) if self.links[node].leaves else values

    def _tie(self) -> bool:
        """Make channelwise operators keep equal channels of inputs and output; return whether anything changed."""
        before = self._count()
        for node, link in chain(self.links.items(), reversed(self.links.items())):  # Changes travel both ways.
            for value, source in zip(node.inputs, link.sources, strict=False):
                if value is not None and value.data is None and source is not None:
                    self.kept[value] |= _read(source, self.kept[node.output], _width(value))
                    self.kept[node.output] |= (source >= 0) & self.kept[value][source]
        return self._count() > before

    def _fill(self) -> bool:
        """Round the number of sums up to a multiple of CHANNEL_MULTIPLE; return whether anything changed."""
        before = self._count()
        for kept in (self.kept[node.output] for node, link in self.links.items() if link.sums):
            missing = -max(int(kept.sum()), 1) % CHANNEL_MULTIPLE + (not kept.any())
            kept[np.flatnonzero(~kept)[:missing]] = True
        return self._count() > before

    def _count(self) -> int:
        return sum(int(mask.sum()) for mask in self.kept.values())

    def change(self, node: Node) -> _Change:
        """Return the replacement of a node that computes only the kept channels."""
        link, kept = self.links[node], self.kept[node.output]
        arrays = self._summed(node) if link.sums else {}
        constants: dict[int, tuple[Array, QuantParams | None]] = {}
        for index, (value, source) in enumerate(zip(node.inputs, link.sources, strict=False)):
            if value is None or value.data is None or source is None:
                continue
            axis = weight_axes(node.op).get(index, value.type.rank - 1)
            mask = _read(source, kept, value.type.shape[axis])
            constants[index] = arrays.get(index, value.data).compress(mask, axis), _quant(value.type, axis, mask)
        if link.sums:
            data, quant = constants[1]
            constants[1] = data[..., self.kept.get(node.input(0), slice(None))], quant
        out = node.output.type
        shape, axis = (*out.shape[:-1], int(kept.sum())), out.rank - 1
        type_ = replace(out, shape=shape, quant=_quant(out, axis, kept))
        return _Change(link.narrowed(shape[-1]) if shape != out.shape else node.op, constants, type_)

    def _summed(self, node: Node) -> dict[int, Array]:
        """Return weights and bias with constants folded and unwanted channels 0."""
        weights, bias, values = _constant(node, 1), _constant(node, 2), self.folded(node)
        folded, needed = ~np.isnan(values), self.wanted[node.output]
        zero_point = node.sig.input(0).q.zero_point
        steps = np.where(folded, values, zero_point).astype(np.int64) - zero_point
        sums = weights.reshape(len(weights), -1, len(values)).astype(np.int64).sum(1) @ steps + bias
        sums = np.where(needed, sums, 0)
        remaining = np.where(folded | ~needed.reshape(-1, *[1] * (weights.ndim - 1)), 0, weights)
        return {1: remaining.astype(weights.dtype), 2: sums.astype(sum_dtype(np.abs(sums)).numpy)}

    def rounds_alike(self, node: Node, change: _Change) -> bool:
        """Return whether multipliers and shift stay: they may depend on the largest scale or sum of all channels."""
        sig, out = node.sig, node.output.type
        if bias_input(node.op) is None or out.quant is None or sig.input(0).quant is None:
            return True
        if not change.differs(node):
            return True
        kept, needed = self.kept[node.output], self.wanted[node.output]
        (weights, quant), (bias, _) = change.constants[1], change.constants[2]
        reduced = Signature((sig.input(0), replace(sig.input(1), quant=quant)), (change.type,))
        before = requantizer(sig, largest_sums(sig.input(0), _constant(node, 1), _constant(node, 2)))
        after = requantizer(reduced, largest_sums(sig.input(0), weights, bias))
        old, new = (np.broadcast_to(r.multiplier, m.shape)[m] for r, m in ((before, kept), (after, kept[kept])))
        return before.shift == after.shift and bool((old == new)[needed[kept]].all())


@dataclass(frozen=True)
class _Change:
    """The replacement of a node: its operator, its constants by input, and the type of its output."""

    op: Operator
    constants: Mapping[int, tuple[Array, QuantParams | None]]
    type: TensorType

    def differs(self, node: Node) -> bool:
        """Return whether a constant or the type of the output differs from the node's."""
        same = all(np.array_equal(data, _constant(node, index)) for index, (data, _) in self.constants.items())
        return not same or self.type != node.output.type

    def apply(self, graph: Graph, node: Node) -> None:
        """Put the replacement in the node's place."""
        inputs = list(node.inputs)
        for index, (data, quant) in self.constants.items():
            old = node.input(index)
            dtype = old.type.dtype if data.dtype == old.type.dtype.numpy else None
            inputs[index] = graph.constant(old.name, data, quant, dtype, of=[old])
        graph.rewrite(node, self.op, inputs, types=[self.type])


def _width(value: Value) -> int:
    """Return the number of channels of a tensor; a scalar has one."""
    return value.type.shape[-1] if value.type.rank else 1


def _constant(node: Node, index: int) -> Array:
    data = node.input(index).data
    assert data is not None
    return data


def _read(source: Array, output_mask: Mask, width: int) -> Mask:
    """Return the channels of an input with `width` channels from which the wanted output channels are computed."""
    mask = np.zeros(width, bool)
    mask[source[output_mask & (source >= 0)]] = True
    return mask


def _quant(type_: TensorType, axis: int, mask: Mask) -> QuantParams | None:
    """Return the quantization parameters of the channels in a mask."""
    quant = type_.quant
    if quant is None or quant.axis != axis:
        return quant
    return replace(quant, scale=tuple(quant.scales[mask].tolist()))
