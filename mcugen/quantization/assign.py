# SPDX-License-Identifier: Apache-2.0
"""Which nodes compute in integers, and which tensors share one scale."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mcugen.core.errors import McugenError
from mcugen.evaluation.layers import APART, AS_WANTED, BETWEEN, NO_INTEGER_FORM
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Signature
from mcugen.hir.traits import Cell, Interpolating, Quantizable, bias_input, readers_behind, weight_axes
from mcugen.hir.types import DType, TensorType
from mcugen.quantization import shared
from mcugen.quantization.scheme import Scheme, activation_params
from mcugen.quantization.weights import plain_codes

MOST_APART = 4.0
"""Ratio of the ranges of a concatenation and a part that may still share a scale: it costs the part two bits."""

MOST_WIDER = 1.5
"""The same of an input and what is interpolated: sharing saves time alone, and costs half a bit."""


@dataclass(frozen=True)
class Assignment:
    """`precision` by name of a node's first output (absent: it does not compute with reals).

    `groups` are the tensors that are stored in integers, in sets of equal scale and element type; `dtypes` holds
    that type by tensor. `reasons` tells why a node stays in float32. `shared` are the layers of equal weights whose
    inputs and outputs have equal scales, by the names of their outputs.
    """

    precision: dict[str, DType]
    groups: list[tuple[str, ...]]
    dtypes: dict[str, DType]
    reasons: dict[str, str]
    shared: list[tuple[str, ...]]


def assign(
    graph: Graph,
    scheme: Scheme,
    wanted: Mapping[str, DType] | None = None,
    spans: Mapping[str, float] | None = None,
    states: Mapping[str, str] | None = None,
) -> Assignment:
    """Every node that has an integer form gets it, in `wanted[output]` or else the scheme's type.

    A layer that is wanted in INT32 computes with int16 activations and weights, and readers in float32 get its sums as
    reals that nothing rounds.

    What only moves data goes along with its neighbours; an island of one cheap node between floats stays float.
    `spans` are the lengths of the tensors' ranges, as far as known. A state is stored as an output and as the input
    that keeps it (`states`) alike.
    """
    return _Assigner(graph, scheme, wanted or {}, spans or {}, states or {}).assign()


class _Assigner:
    """The decisions while they are made."""

    def __init__(
        self,
        graph: Graph,
        scheme: Scheme,
        wanted: Mapping[str, DType],
        spans: Mapping[str, float],
        states: Mapping[str, str],
    ) -> None:
        inputs = {v.name: v for v in graph.inputs}
        outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
        self.states = [(outputs[output], inputs[kept]) for output, kept in states.items()]
        self.graph, self.scheme, self.wanted, self.spans = graph, scheme, wanted, spans
        self.nodes = [n for n in graph.nodes if any(v.type.dtype is DType.FLOAT32 for v in n.outputs)]
        self.precision: dict[Node, DType] = {}
        self.reasons: dict[str, str] = {}
        self.unrounded = {n for n in self.nodes if self.wanted.get(n.outputs[0].name) is DType.INT32}
        """Nodes whose sums are not rounded for readers in float32."""
        self.movers = {n for n in self.nodes if n.op.moves_data}
        """Nodes that work on any type: the neighbours decide."""
        self.shared: list[tuple[str, ...]] = []

    def assign(self) -> Assignment:
        """Computing nodes first, then what lies between them."""
        self._leave_wanted_moves()
        self._leave_mixed_joins()
        for node in (n for n in self.nodes if n not in self.movers and n not in self.precision):
            self._decide(node)
        groups = self._groups()
        while stray := self._stray(groups):
            for node in stray:
                self._leave(node, BETWEEN)
        stored = {key: self._dtype(members) for key, members in groups.items()}
        dtypes: dict[str, DType] = {
            v.name: dtype for key, dtype in stored.items() if dtype is not DType.FLOAT32 for v in groups[key]
        }
        for node in self.movers:
            self.precision[node] = dtypes.get(node.outputs[0].name, DType.FLOAT32)
        named = {node.outputs[0].name: self.precision[node] for node in self.nodes}
        integer = [tuple(v.name for v in groups[key]) for key, dtype in stored.items() if dtype is not DType.FLOAT32]
        return Assignment(named, integer, dtypes, self.reasons, self.shared)

    def _leave(self, node: Node, reason: str) -> None:
        self.precision[node] = DType.FLOAT32
        self.reasons[node.outputs[0].name] = reason

    def _decide(self, node: Node) -> None:
        dtype = self.wanted.get(node.outputs[0].name, self.scheme.activations)
        dtype = DType.INT16 if dtype is DType.INT32 else dtype
        if dtype is DType.FLOAT32:
            self._leave(node, AS_WANTED)
        elif not has_integer_form(node, dtype):
            self._leave(node, NO_INTEGER_FORM)
        else:
            self.precision[node] = dtype

    def _leave_wanted_moves(self) -> None:
        for node in [n for n in self.nodes if n in self.movers]:
            if self.wanted.get(node.outputs[0].name) is DType.FLOAT32:
                self.movers.remove(node)
                self._leave(node, AS_WANTED)

    def _leave_mixed_joins(self) -> None:
        """A concatenation of large and small numbers would round the small ones away, for nothing if none computes."""
        for node in [n for n in self.nodes if n in self.movers and self._small_parts(n)]:
            if node.outputs[0].name in self.wanted:
                continue
            if not any(weight_axes(reader.op) for reader in self._readers(node.outputs[0])):
                self.movers.remove(node)
                self._leave(node, APART)

    def _small_parts(self, node: Node) -> list[Value]:
        """The inputs whose range is too short to share the result's scale."""
        span, parts = self._span(node.outputs[0]), _activations(node)
        if span is None or len(parts) < 2:
            return []
        return [v for v in parts if (self._span(v) or span) * MOST_APART < span]

    def _span(self, value: Value) -> float | None:
        """The length of a tensor's range, at most; None if nobody has seen it."""
        known = self.spans.get(value.name)
        if known is not None or value.producer is None or not value.producer.op.moves_data:
            return known
        sources = [self._span(v) for v in _activations(value.producer)]
        return max((s for s in sources if s is not None), default=None) if None not in sources else None

    def _readers(self, value: Value) -> list[Node]:
        """The nodes that compute with a value, wherever it has been moved."""
        return readers_behind(value, self.movers.__contains__)

    def _alike(self, node: Node) -> list[Value]:
        """The tensors of a node that have one scale."""
        if node in self.movers:
            small = self._small_parts(node)
            return [*node.outputs, *(v for v in _activations(node) if v not in small)]
        if isinstance(node.op, Interpolating):
            return [node.input(0), node.output] if self._is_as_wide(node) else []
        return node.op.alike(node) if isinstance(node.op, Cell) and _is_cell(node) else []

    def _is_as_wide(self, node: Node) -> bool:
        """Whether input and output may share a scale: all compute in one type with ranges of much the same length."""
        x, y = node.input(0), node.output
        kinds = {self.precision.get(n, DType.FLOAT32) for n in self._ends((x, y))}
        wide, narrow = self._span(x), self._span(y)
        as_wide = wide is None or narrow is None or wide <= MOST_WIDER * narrow
        return len(kinds) == 1 and DType.FLOAT32 not in kinds and as_wide

    def _groups(self) -> dict[Value, list[Value]]:
        """float32 activations joined by what only moves data and the like, by a representative."""
        groups = shared.Groups(self._span)
        for node in self.nodes:
            alike = self._alike(node)
            for value in alike:
                groups.join(value, alike[0])
        for output, kept in self.states:
            groups.join(output, kept)
        integer = [n for n in self.nodes if self.precision.get(n, DType.FLOAT32) is not DType.FLOAT32]
        self.shared = shared.tie([n for n in self.nodes if n in self.movers or n in integer], groups)
        found: dict[Value, list[Value]] = {}
        for value in self.graph.values():
            if not value.is_constant and value.type.dtype is DType.FLOAT32:
                found.setdefault(groups.root(value), []).append(value)
        return found

    def _ends(self, members: Iterable[Value]) -> list[Node]:
        """The nodes that compute with a group's tensors: producers and readers, but for those that move data."""
        ends = [n for v in members for n in (v.producer, *v.users) if n is not None]
        return [n for n in dict.fromkeys(ends) if n not in self.movers]

    def _dtype(self, members: Sequence[Value]) -> DType:
        """Return the widest integer type that a neighbour computes with, or float32 if none computes in integers."""
        found = {self.precision.get(node, DType.FLOAT32) for node in self._ends(members)}
        rounding = [n for n in self._ends(members) if n not in self.unrounded or any(v in n.inputs for v in members)]
        if all(self.precision.get(node, DType.FLOAT32) is DType.FLOAT32 for node in rounding):
            return DType.FLOAT32
        return next((d for d in (DType.INT16, DType.INT8) if d in found), DType.FLOAT32)

    def _stray(self, groups: Mapping[Value, list[Value]]) -> list[Node]:
        """Integer nodes without weights that have no integer neighbour: converting costs more than it saves."""
        neighbours: dict[Node, set[Node]] = {}
        for members in groups.values():
            ends = [n for n in self._ends(members) if self.precision.get(n, DType.FLOAT32) is not DType.FLOAT32]
            for node in ends:
                neighbours.setdefault(node, set()).update(n for n in ends if n is not node)
        lonely = [n for n, others in neighbours.items() if not others and not weight_axes(n.op)]
        return [n for n in lonely if not _is_cell(n)]


def _activations(node: Node) -> list[Value]:
    return [v for v in node.inputs if v is not None and not v.is_constant and v.type.dtype is DType.FLOAT32]


def has_integer_form(node: Node, dtype: DType) -> bool:
    """Whether the operator's own rule computes this node on tensors of that type, or several nodes do."""
    if _is_cell(node):
        return True
    scratch = Graph("trial")
    trial = Scheme(dtype)
    try:
        inputs = [_trial(scratch, node, i, trial) for i in range(len(node.inputs))]
    except McugenError:
        return False
    if len(node.outputs) != 1 or not any(v is not None and v.type.quant and not v.is_constant for v in inputs):
        return False
    out = TensorType(node.output.type.shape, dtype, activation_params(-1, 1, dtype, trial), node.output.type.layout)
    sig = Signature(tuple(v.type if v else None for v in inputs), (out,))
    return isinstance(node.op, Quantizable) and node.op.integer(scratch, sig, inputs) is not None


def _is_cell(node: Node) -> bool:
    return isinstance(node.op, Cell) and node.op.can_expand(node)


def _trial(scratch: Graph, node: Node, index: int, scheme: Scheme) -> Value | None:
    """Input `index` as it would be stored, with plausible parameters."""
    value = node.inputs[index]
    if value is None:
        return None
    if not value.is_constant:
        if value.type.dtype is not DType.FLOAT32:
            return Value(value.name, value.type)
        dtype = scheme.activations
        quant = activation_params(-1, 1, dtype, scheme)
        return Value(value.name, TensorType(value.type.shape, dtype, quant, value.type.layout))
    assert value.data is not None
    if index in weight_axes(node.op):
        codes = plain_codes(node, scheme)
        return scratch.constant(value.name, codes.weights, codes.quant)
    if not is_quantized_constant(node, index):
        return value
    return scratch.constant(
        value.name,
        np.zeros(value.type.shape, scheme.activations.numpy),
        activation_params(-1, 1, scheme.activations, scheme),
    )


def is_quantized_constant(node: Node, index: int) -> bool:
    """Whether constant input `index` is data to be stored like an activation (not weights, bias or parameters)."""
    value = node.input(index)
    real = node.op.real_inputs if isinstance(node.op, Quantizable) else ()
    special = index in weight_axes(node.op) or index == bias_input(node.op) or index in real
    if special or value.data is None or value.type.dtype is not DType.FLOAT32:
        return False
    return value.type.count > 1 and bool(np.isfinite(value.data).all())
