# SPDX-License-Identifier: Apache-2.0
"""Reverse mode: from a result back to what it depends on, node by node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from mcugen.errors import shortened
from mcugen.hir.graph import Graph, Node, Value
from mcugen.ops.gradient.rule import Backward, rule_of
from mcugen.ops.onnx_node import Refusal


def gradients(graph: Graph, of: Value, by: Sequence[Value], seed: Value | None = None) -> list[Value]:
    """What the sum of the elements of `of` changes by with each element of values that it may depend on.

    With a `seed`, of the type of `of`: the sum of their products with its elements.
    Adds nodes at the end of the graph; a value that `of` does not depend on has a gradient of zeros. Refusal, which
    names the operator and what can be differentiated by nevertheless, where one on the way has no derivative.
    """
    way = _way(graph, of, by)
    _require_rules(graph, of, by, way)
    ones = np.ones(of.type.shape, of.type.dtype.numpy)
    found: dict[Value, Value] = {of: graph.constant(f"{of.name}.seed", ones) if seed is None else seed}
    varying = {*by, *(output for node in way for output in node.outputs)}
    for node in reversed(way):
        gradient = found.get(node.outputs[0])
        if gradient is not None:
            _step(graph, node, gradient, varying, found)
    zeros = (graph.constant(f"{v.name}.gradient", np.zeros(v.type.shape, v.type.dtype.numpy)) for v in by)
    return [found.get(value) or zero for value, zero in zip(by, zeros, strict=True)]


def _step(graph: Graph, node: Node, gradient: Value, varying: set[Value], found: dict[Value, Value]) -> None:
    """Adds to the gradients by a node's inputs, those that vary."""
    rule, back = rule_of(node.op), Backward(graph, node)
    assert rule is not None
    for index, part in rule(back, node, gradient).items():
        value = node.inputs[index] if index < len(node.inputs) else None
        made = part() if value in varying and value is not None and value.type.dtype.is_float else None
        if value is not None and made is not None:
            found[value] = back.add(found[value], made) if value in found else made


def _way(graph: Graph, of: Value, by: Iterable[Value]) -> list[Node]:
    """The nodes that lie between, in order."""
    varying = set(by)
    reached = []
    for node in graph.nodes:
        if any(v in varying for v in node.inputs) and _carries(node):
            varying.update(node.outputs)
            reached.append(node)
    wanted, way = {of}, []
    for node in reversed(reached):
        if any(v in wanted for v in node.outputs):
            wanted.update(v for v in node.inputs if v is not None and v in varying)
            way.append(node)
    return way[::-1]


def _carries(node: Node) -> bool:
    """Whether its results are reals: what is counted or compared changes in steps."""
    return any(output.type.dtype.is_float for output in node.outputs)


def _require_rules(graph: Graph, of: Value, by: Sequence[Value], way: Sequence[Node]) -> None:
    refused = [node for node in way if not _is_differentiable(node, of, way)]
    if not refused:
        return
    places = ", ".join(shortened(node.place, 60) for node in refused[:3])
    free = [v.name for v in by if not {*_way(graph, of, [v])}.intersection(refused)]
    names = ", ".join(f"'{shortened(name, 40)}'" for name in free[:5])
    remedy = f"train only what lies behind it: {names}" if free else "train nothing in front of it"
    raise Refusal("an operator on the way must have a derivative", places, remedy)


def _is_differentiable(node: Node, of: Value, way: Sequence[Node]) -> bool:
    """Whether there is a rule, and nothing but the first output counts."""
    used = set(way)
    others = any(output is of or used.intersection(output.users) for output in node.outputs[1:])
    return rule_of(node.op) is not None and not others
