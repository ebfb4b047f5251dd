# SPDX-License-Identifier: Apache-2.0
"""Recognition of recurrent layers that are unrolled: loops over cells in PyTorch, `unroll=True` in Keras.

Each step is recognized as a cell (`ops/cells.py`). Successive steps with the same weights are one layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.interpreter import evaluate_node
from mcugen.hir.types import Array
from mcugen.ops.cells import CellStep, RecurrentCell, hoist_projection, steps_to
from mcugen.ops.movement import Reshape, Slice

MIN_ROLLED_STEPS = 4
"""Smallest number of unrolled steps that are replaced by a recurrent layer."""
_MAX_COMPARED_NODES = 200
"""Largest number of nodes of a step that is evaluated for comparison."""
_SAMPLES = 4
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class TensorPart:
    """A slice of a tensor at one index of an axis.

    Attributes:
        whole: The tensor.
        axis: The axis.
        index: Position of the slice along the axis.
    """

    whole: Value
    axis: int
    index: int

    @property
    def count(self) -> int:
        """Return the number of elements of the slice."""
        return self.whole.type.count // self.whole.type.shape[self.axis]

    def shifted(self, by: int) -> TensorPart:
        """Return the slice `by` positions further along the axis."""
        return replace(self, index=self.index + by)


@dataclass(frozen=True)
class UnrolledLayer:
    """A recurrent layer that the model has in unrolled form, time step after time step.

    Attributes:
        found: The recurrent cell that all steps share.
        first: The slice of the input that the first step reads.
        stride: Distance between the slices of successive steps: 1, or −1 for a backward layer.
        initial: The initial states: h and, for an LSTM, c; None for a state of zeros.
        outputs: The hidden state h after each step.
        cell: The cell state c after the last step; None if the layer has no c.
    """

    found: RecurrentCell
    first: TensorPart
    stride: int
    initial: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    cell: Value | None

    @property
    def batch(self) -> int:
        """Return the number of sequences in a batch of the layer."""
        return self.first.count // int(self.found.w.shape[1])


def unrolled_layers(graph: Graph) -> list[UnrolledLayer]:
    """Return the unrolled recurrent layers of a graph; none of them reads another's result."""
    return [_layer(chain) for chain in _chains(graph) if len(chain) >= MIN_ROLLED_STEPS]


@dataclass(frozen=True)
class _Link:
    step: CellStep
    part: TensorPart

    def leads_to(self, other: _Link) -> bool:
        """Return whether the other is the step after this one."""
        return (
            other.step.before == self.step.after
            and other.part in (self.part.shifted(1), self.part.shifted(-1))
            and other.step.found.is_same(self.step.found)
        )


def _chains(graph: Graph) -> Iterator[list[_Link]]:
    """Yield consecutive steps, each of which reads the slice next to the previous one's."""
    links = dict[Value, _Link]()
    for node in graph.nodes:
        for value in node.outputs:
            for step in steps_to(value, part_of):
                if (part := part_of(step.x)) is not None:
                    links.setdefault(value, _Link(step, part))
    after = dict[Value, _Link]()
    for link in links.values():
        before = links.get(link.step.before[0])
        if before is not None and before.leads_to(link):
            after.setdefault(link.step.before[0], link)
    continued = {link.step.after[0] for link in after.values()}
    for start in (link for value, link in links.items() if value not in continued):
        chain = [start]
        while (following := after.get(chain[-1].step.after[0])) and _goes_on(graph, chain, following):
            chain.append(following)
        yield chain


def _goes_on(graph: Graph, chain: Sequence[_Link], link: _Link) -> bool:
    """Return whether a step continues a chain: same direction, and no other reader of c."""
    *_, last = chain
    turned = len(chain) > 1 and link.part.index - last.part.index != last.part.index - chain[-2].part.index
    cells = last.step.after[1:]
    return not turned and all(len(c.users) <= 2 and not graph.is_output(c) for c in cells)


def part_of(value: Value) -> TensorPart | None:
    """Return the slice of a tensor at one index of an axis that a value is; None if the value is no such slice.

    Axes of length 1 are ignored.
    """
    node = value.producer
    while node is not None and isinstance(node.op, Reshape) and _alike(node.output, node.input(0)):
        node = node.input(0).producer
    if node is None or not isinstance(node.op, Slice):
        return None
    op, axis = node.op, node.op.cut_axis(node.input(0).type.shape)
    if axis is None or op.sizes[axis] != 1 or any(s < 0 for s in op.steps) or not _alike(value, node.output):
        return None
    return TensorPart(node.input(0), axis, op.starts[axis])


def _alike(a: Value, b: Value) -> bool:
    """Return whether two values have the same shape, ignoring axes of length 1."""
    left, right = ([size for size in v.type.shape if size != 1] for v in (a, b))
    return left == right


def _layer(chain: Sequence[_Link]) -> UnrolledLayer:
    first, second = chain[0], chain[1]
    stride = second.part.index - first.part.index
    initial: tuple[Value | None, ...] = first.step.before
    outputs = [link.step.after[0] for link in chain]
    begin = first.part
    earlier = begin.shifted(-stride)
    size = begin.whole.type.shape[begin.axis]
    if 0 <= earlier.index < size and _starts(first, earlier):
        outputs.insert(0, first.step.before[0])
        initial, begin = (None,) * len(initial), earlier
    cell, whole = hoist_projection(first.step.found, begin.whole, begin.axis)
    initial = tuple(v if v is None or v.data is None or v.data.any() else None for v in initial)
    return UnrolledLayer(
        cell,
        replace(begin, whole=whole),
        stride,
        initial,
        tuple(outputs),
        chain[-1].step.after[1] if len(chain[-1].step.after) > 1 else None,
    )


def _starts(link: _Link, part: TensorPart) -> bool:
    """Return whether the step before `link` reads `part` and states of zeros, so that it is the first step.

    Exporters fold what zeros leave of a first step, so it is recognized by its numbers on random inputs.
    """
    random = np.random.default_rng(0)
    for _ in range(_SAMPLES):
        x = random.normal(0, 2, part.count)
        zeros = {v: np.zeros(v.type.shape, np.float32) for v in link.step.before}
        expected = _evaluated(link.step.after, zeros, link.part, x)
        initial_states = _evaluated(link.step.before, {}, part, x)
        if expected is None or initial_states is None:
            return False
        pairs = zip(expected, initial_states, strict=True)
        if not all(np.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE) for a, b in pairs):
            return False
    return True


def _evaluated(values: Sequence[Value], known: Mapping[Value, Array], part: TensorPart, x: Array) -> list[Array] | None:
    """Evaluate values from known values and one slice of x; None if they depend on anything else."""
    env, seen, nodes = dict(known), set[Node](), list[Node]()

    def reach(value: Value) -> bool:
        if value.data is not None or value in env:
            return True
        if part_of(value) == part:
            env[value] = x.astype(np.float32).reshape(value.type.shape)
            return True
        node = value.producer
        if (
            node is None or node.op.bodies or len(seen) > _MAX_COMPARED_NODES
        ):  # a whole network may be before the first step
            return False
        if node not in seen:
            seen.add(node)
            if not all(v is None or reach(v) for v in node.inputs):
                return False
            nodes.append(node)
        return True

    if not all(reach(v) for v in values):
        return None
    for node in nodes:
        arrays = [env[v] if v.data is None else v.data for v in node.inputs if v is not None]
        env |= dict(zip(node.outputs, evaluate_node(node, arrays), strict=True))
    return [env[v] if v.data is None else v.data for v in values]
