# SPDX-License-Identifier: Apache-2.0
"""Assignment of precisions: which nodes compute in integers, and which tensors share one scale."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mcugen.core.errors import McugenError
from mcugen.evaluation.layers import BETWEEN_FLOAT_LAYERS, NO_INTEGER_FORM, REQUESTED_REAL, UNEQUAL_RANGES
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Signature
from mcugen.hir.traits import Cell, Interpolating, Quantizable, bias_input, readers_behind, weight_axes
from mcugen.hir.types import DType, TensorType
from mcugen.quantization import shared
from mcugen.quantization.scheme import Scheme, activation_params
from mcugen.quantization.weights import plain_codes

MAX_CONCAT_RANGE_RATIO = 4.0
"""Largest ratio of a concatenation's range to the range of one of its inputs for which both share a scale.

At this ratio the input loses two of its bits.
"""

MAX_INTERPOLATION_RANGE_RATIO = 1.5
"""Largest ratio between the ranges of an interpolation's input and output for which both share a scale.

Sharing saves the time of a requantization, and costs the output half a bit at this ratio.
"""


@dataclass(frozen=True)
class Assignment:
    """The precision of each node, and the groups of tensors that share a scale.

    Attributes:
        precision: The type that a node computes in, by the name of its first output. Nodes that do not compute with
            reals are absent.
        groups: The tensors that are stored as integers, in sets of equal scale and element type.
        dtypes: The element type of each stored tensor, by name.
        reasons: Why a node stays in float32, by the name of its first output.
        shared: Sets of layers with equal weights whose inputs share a scale and whose outputs share a scale, by the
            names of the layers' outputs.
    """

    precision: dict[str, DType]
    groups: list[tuple[str, ...]]
    dtypes: dict[str, DType]
    reasons: dict[str, str]
    shared: list[tuple[str, ...]]


def assign_precisions(
    graph: Graph,
    scheme: Scheme,
    precisions: Mapping[str, DType] | None = None,
    spans: Mapping[str, float] | None = None,
    states: Mapping[str, str] | None = None,
    unrounded: Collection[str] = (),
) -> Assignment:
    """Return the precision of each node, and the groups of tensors that share a scale.

    Every node that integer kernels can compute gets an integer type. A layer whose precision is INT32 computes with
    int16 activations and int16 weights, and float32 readers get its sums unrounded. A node that only moves data takes
    the type of its neighbours. A cheap node without weights stays in float32 if no neighbour computes in integers. A
    state has the same type and scale as an output and as an input of the model.

    Args:
        graph: The float graph.
        scheme: The scheme, whose activation type is the default of all nodes.
        precisions: The precisions that override the default, by the name of a node's first output.
        spans: The length (largest minus smallest value) of each tensor's range, as far as it is known.
        states: The input that keeps a state from one call to the next, by the output that gives the state.
        unrounded: Names of the results of layers whose float32 readers get the int32 sums as reals, without rounding to
            the activation type.
    """
    return _Assigner(graph, scheme, precisions or {}, spans or {}, states or {}, unrounded).assign()


class _Assigner:
    """The decisions of one assignment while they are made."""

    def __init__(
        self,
        graph: Graph,
        scheme: Scheme,
        precisions: Mapping[str, DType],
        spans: Mapping[str, float],
        states: Mapping[str, str],
        unrounded: Collection[str],
    ) -> None:
        inputs = {v.name: v for v in graph.inputs}
        outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
        self.states = [(outputs[output], inputs[kept]) for output, kept in states.items()]
        self.graph, self.scheme, self.wanted, self.spans = graph, scheme, precisions, spans
        self.nodes = [n for n in graph.nodes if any(v.type.dtype is DType.FLOAT32 for v in n.outputs)]
        self.precision: dict[Node, DType] = {}
        self.reasons: dict[str, str] = {}
        self.unrounded = {
            n for n in self.nodes if n.outputs[0].name in unrounded or precisions.get(n.outputs[0].name) is DType.INT32
        }
        """Nodes whose sums are not rounded for readers in float32."""
        self.movers = {n for n in self.nodes if n.op.moves_data}
        """Nodes that only move data: their neighbours decide which type they have."""
        self.shared: list[tuple[str, ...]] = []

    def assign(self) -> Assignment:
        """Assign the computing nodes first, then the nodes that move data between them."""
        self._fix_requested_moves()
        self._leave_mixed_joins()
        for node in (n for n in self.nodes if n not in self.movers and n not in self.precision):
            self._decide(node)
        groups = self._groups()
        while stray := self._stray(groups):
            for node in stray:
                self._leave(node, BETWEEN_FLOAT_LAYERS)
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
            self._leave(node, REQUESTED_REAL)
        elif not has_integer_form(node, dtype):
            self._leave(node, NO_INTEGER_FORM)
        else:
            self.precision[node] = dtype

    def _fix_requested_moves(self) -> None:
        for node in [n for n in self.nodes if n in self.movers]:
            if self.wanted.get(node.outputs[0].name) is DType.FLOAT32:
                self.movers.remove(node)
                self._leave(node, REQUESTED_REAL)

    def _leave_mixed_joins(self) -> None:
        """Leave concatenations of large and small numbers in float32 if no layer with weights reads them.

        A common scale would round the small numbers away, and no computation would become faster.
        """
        for node in [n for n in self.nodes if n in self.movers and self._small_parts(n)]:
            if node.outputs[0].name in self.wanted:
                continue
            if not any(weight_axes(reader.op) for reader in readers_behind(node.outputs[0], self.movers.__contains__)):
                self.movers.remove(node)
                self._leave(node, UNEQUAL_RANGES)

    def _small_parts(self, node: Node) -> list[Value]:
        """Return the inputs whose range is too short to share the output's scale."""
        span, inputs = self._span(node.outputs[0]), _activations(node)
        if span is None or len(inputs) < 2:
            return []
        return [v for v in inputs if (self._span(v) or span) * MAX_CONCAT_RANGE_RATIO < span]

    def _span(self, value: Value) -> float | None:
        """Return an upper bound of the length of a tensor's range; None if it is unknown."""
        known = self.spans.get(value.name)
        if known is not None or value.producer is None or not value.producer.op.moves_data:
            return known
        sources = [self._span(v) for v in _activations(value.producer)]
        return max((s for s in sources if s is not None), default=None) if None not in sources else None

    def _alike(self, node: Node) -> list[Value]:
        """Return the tensors of a node that must share one scale."""
        if node in self.movers:
            narrow_inputs = self._small_parts(node)
            return [*node.outputs, *(v for v in _activations(node) if v not in narrow_inputs)]
        if isinstance(node.op, Interpolating):
            return [node.input(0), node.output] if self._is_as_wide(node) else []
        return node.op.outputs_of_one_scale(node) if isinstance(node.op, Cell) and _is_cell(node) else []

    def _is_as_wide(self, node: Node) -> bool:
        """Return whether input and output of an interpolation may share a scale.

        All nodes around both tensors must compute in the same integer type, and the ranges must be of similar length.
        """
        x, y = node.input(0), node.output
        kinds = {self.precision.get(n, DType.FLOAT32) for n in self._ends((x, y))}
        input_span, output_span = self._span(x), self._span(y)
        as_wide = input_span is None or output_span is None or input_span <= MAX_INTERPOLATION_RANGE_RATIO * output_span
        return len(kinds) == 1 and DType.FLOAT32 not in kinds and as_wide

    def _groups(self) -> dict[Value, list[Value]]:
        """Return the float32 activations in groups that share a scale, each group by a representative.

        Nodes that move data, interpolations, recurrent layers, states and shared weights join tensors.
        """
        groups = shared.ScaleGroups(self._span)
        for node in self.nodes:
            alike = self._alike(node)
            for value in alike:
                groups.join(value, alike[0])
        for output, kept in self.states:
            groups.join(output, kept)
        integer = [n for n in self.nodes if self.precision.get(n, DType.FLOAT32) is not DType.FLOAT32]
        self.shared = shared.join_equal_layers([n for n in self.nodes if n in self.movers or n in integer], groups)
        members: dict[Value, list[Value]] = {}
        for value in self.graph.values():
            if not value.is_constant and value.type.dtype is DType.FLOAT32:
                members.setdefault(groups.root(value), []).append(value)
        return members

    def _ends(self, members: Iterable[Value]) -> list[Node]:
        """Return the producers and readers of a group's tensors that compute, that is, do not only move data."""
        ends = [n for v in members for n in (v.producer, *v.users) if n is not None]
        return [n for n in dict.fromkeys(ends) if n not in self.movers]

    def _dtype(self, members: Sequence[Value]) -> DType:
        """Return the widest integer type that a neighbour computes with, or float32 if none computes in integers."""
        dtypes = {self.precision.get(node, DType.FLOAT32) for node in self._ends(members)}
        rounding = [n for n in self._ends(members) if n not in self.unrounded or any(v in n.inputs for v in members)]
        if all(self.precision.get(node, DType.FLOAT32) is DType.FLOAT32 for node in rounding):
            return DType.FLOAT32
        return next((d for d in (DType.INT16, DType.INT8) if d in dtypes), DType.FLOAT32)

    def _stray(self, groups: Mapping[Value, list[Value]]) -> list[Node]:
        """Return integer nodes without weights that have no integer neighbour: converting costs more than they save."""
        neighbours: dict[Node, set[Node]] = {}
        for members in groups.values():
            integer_nodes = [
                n for n in self._ends(members) if self.precision.get(n, DType.FLOAT32) is not DType.FLOAT32
            ]
            for node in integer_nodes:
                neighbours.setdefault(node, set()).update(n for n in integer_nodes if n is not node)
        isolated = [n for n, adjacent in neighbours.items() if not adjacent and not weight_axes(n.op)]
        return [n for n in isolated if not _is_cell(n)]


def _activations(node: Node) -> list[Value]:
    return [v for v in node.inputs if v is not None and not v.is_constant and v.type.dtype is DType.FLOAT32]


def has_integer_form(node: Node, dtype: DType) -> bool:
    """Return whether integer kernels can compute a node on tensors of type `dtype`, as one node or as several."""
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
    """Return input `index` as it would be stored, with plausible quantization parameters."""
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
    """Return whether a constant input of a node is quantized like an activation.

    Weights, biases and parameters of operators are stored otherwise, and so are constants of a single element.

    Args:
        node: The node.
        index: The position of the input.
    """
    value = node.input(index)
    real_inputs = node.op.real_inputs if isinstance(node.op, Quantizable) else ()
    is_parameter = index in weight_axes(node.op) or index == bias_input(node.op) or index in real_inputs
    if is_parameter or value.data is None or value.type.dtype is not DType.FLOAT32:
        return False
    return value.type.count > 1 and bool(np.isfinite(value.data).all())
