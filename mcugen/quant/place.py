# SPDX-License-Identifier: Apache-2.0
"""Which nodes compute in integers, and which tensors share one scale."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from mcugen.errors import McugenError
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Signature
from mcugen.hir.types import DType, QuantParams, TensorType
from mcugen.quant.scheme import Scheme, activation_params
from mcugen.quant.weights import plain_codes


@dataclass(frozen=True)
class Placement:
    """`precision` by name of a node's first output (absent: it does not compute with reals).

    `groups` are the tensors that are stored in integers, in sets of equal scale and element type; `dtypes` holds
    that type by tensor. `reasons` tells why a node stays in float32.
    """

    precision: dict[str, DType]
    groups: list[tuple[str, ...]]
    dtypes: dict[str, DType]
    reasons: dict[str, str]


def place(graph: Graph, scheme: Scheme, wanted: Mapping[str, DType] | None = None) -> Placement:
    """Every node that has an integer form gets it, in `wanted[output]` or else the scheme's type.

    What only moves data goes along with its neighbours; an island of one cheap node between floats stays float.
    """
    nodes = [n for n in graph.nodes if any(v.type.dtype is DType.FLOAT32 for v in n.outputs)]
    precision: dict[Node, DType] = {}
    reasons: dict[str, str] = {}
    for node in (n for n in nodes if not n.op.moves_data):
        dtype = (wanted or {}).get(node.outputs[0].name, scheme.activations)
        precision[node] = dtype if dtype is not DType.FLOAT32 and has_integer_form(node, dtype) else DType.FLOAT32
        if precision[node] is DType.FLOAT32:
            reasons[node.outputs[0].name] = "as wanted" if dtype is DType.FLOAT32 else "no integer form"
    groups = _groups(graph, nodes)
    while stray := _stray(graph, precision, groups):
        for node in stray:
            precision[node] = DType.FLOAT32
            reasons[node.outputs[0].name] = "between float layers"
    stored = {key: _group_dtype(members, precision) for key, members in groups.items()}
    dtypes: dict[str, DType] = {
        v.name: dtype for key, dtype in stored.items() if dtype is not DType.FLOAT32 for v in groups[key]
    }
    for node in (n for n in nodes if n.op.moves_data):
        precision[node] = dtypes.get(node.outputs[0].name, DType.FLOAT32)
    named = {node.outputs[0].name: dtype for node, dtype in precision.items()}
    integer = [tuple(v.name for v in groups[key]) for key, dtype in stored.items() if dtype is not DType.FLOAT32]
    return Placement(named, integer, dtypes, reasons)


def has_integer_form(node: Node, dtype: DType) -> bool:
    """Whether the operator's own rule computes this node on tensors of that type."""
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
    return node.op.integer(scratch, sig, inputs) is not None


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
    if index in node.op.weight_axes:
        codes = plain_codes(node, scheme)
        scales = tuple(map(float, codes.scales))
        return scratch.constant(
            value.name, codes.weights, QuantParams(scales, 0, codes.axis if scheme.per_channel else None)
        )
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
    special = index in node.op.weight_axes or index == node.op.bias_input or index in node.op.real_inputs
    return not special and value.is_constant and value.type.dtype is DType.FLOAT32 and value.type.count > 1


def _groups(graph: Graph, nodes: Iterable[Node]) -> dict[Value, list[Value]]:
    """float32 activations joined by what only moves data, by a representative (union-find)."""
    parent: dict[Value, Value] = {}

    def root(value: Value) -> Value:
        while parent.setdefault(value, value) is not value:
            value = parent[value]
        return value

    for node in nodes:
        if node.op.moves_data:
            for value in (*_activations(node), *node.outputs):
                parent[root(value)] = root(node.outputs[0])
    groups: dict[Value, list[Value]] = {}
    for value in graph.values():
        if not value.is_constant and value.type.dtype is DType.FLOAT32:
            groups.setdefault(root(value), []).append(value)
    return groups


def _activations(node: Node) -> list[Value]:
    return [v for v in node.inputs if v is not None and not v.is_constant and v.type.dtype is DType.FLOAT32]


def _ends(members: Iterable[Value]) -> list[Node]:
    """The nodes that compute with a group's tensors: producers and readers, but for those that move data."""
    ends = [n for v in members for n in (v.producer, *v.users) if n is not None]
    return [n for n in dict.fromkeys(ends) if not n.op.moves_data]


def _group_dtype(members: Iterable[Value], precision: Mapping[Node, DType]) -> DType:
    """The widest integer type that a neighbour computes with; float32 where none computes in integers."""
    found = {precision.get(node, DType.FLOAT32) for node in _ends(members)}
    return next((d for d in (DType.INT16, DType.INT8) if d in found), DType.FLOAT32)


def _stray(graph: Graph, precision: Mapping[Node, DType], groups: Mapping[Value, list[Value]]) -> list[Node]:
    """Integer nodes without weights of which no neighbour is an integer node: converting costs more than it saves."""
    neighbours: dict[Node, set[Node]] = {}
    for members in groups.values():
        ends = [n for n in _ends(members) if precision.get(n, DType.FLOAT32) is not DType.FLOAT32]
        for node in ends:
            neighbours.setdefault(node, set()).update(n for n in ends if n is not node)
    return [n for n, others in neighbours.items() if not others and not n.op.weight_axes]
