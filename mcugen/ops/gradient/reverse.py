# SPDX-License-Identifier: Apache-2.0
"""Reverse-mode differentiation: gradients are propagated from a result back to its inputs, node by node."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from mcugen.core.errors import shortened
from mcugen.hir.graph import Graph, Node, Value
from mcugen.ops.gradient.rule import Backward, derivative_for, zeros
from mcugen.ops.onnx_node import Refusal
from mcugen.ops.pointwise import Binary


def gradients(
    graph: Graph, of: Value, by: Sequence[Value], seed: Value | None = None, *, strictly: bool = False
) -> list[Value]:
    """Return the gradient of the sum of the elements of `of` with respect to each value in `by`.

    The nodes that compute the gradients are appended to the graph. A value that does not influence `of` has a gradient
    of zeros.

    Args:
        graph: Graph to extend.
        of: Value to differentiate.
        by: Values to differentiate with respect to.
        seed: Factors of the elements of `of` in the sum, a tensor of the type of `of`; None for ones.
        strictly: Whether to refuse a value without a gradient (because it is counted or compared on the way to `of`).

    Returns:
        The gradients, in the order of `by`.

    Raises:
        Refusal: An operator on the way has no derivative; the message names it, and what can be trained nevertheless.
    """
    if seed is None:
        seed = graph.constant(f"{of.name}.seed", np.ones(of.type.shape, of.type.dtype.numpy))
    return gradients_of_several(graph, [(of, seed)], by, strictly=strictly)


def gradients_of_several(
    graph: Graph, seeded: Sequence[tuple[Value, Value]], by: Sequence[Value], *, strictly: bool = False
) -> list[Value]:
    """Return the gradient of the sum of value · seed, over all pairs of `seeded`, with respect to each value in `by`.

    Args:
        graph: Graph to which the gradient's nodes are appended.
        seeded: Pairs of a value to differentiate and its factors, a tensor of the same type.
        by: Values to differentiate with respect to.
        strictly: Whether to refuse a value without a gradient, instead of returning zeros for it.
    """
    of = list(dict.fromkeys(value for value, _ in seeded))
    path = _way(graph, of, by)
    _require_rules(graph, of, by, path)
    gradient_of: dict[Value, Value] = {}
    for value, seed in seeded:
        gradient_of[value] = (
            graph.add(Binary("Add"), [gradient_of[value], seed]).output if value in gradient_of else seed
        )
    varying = {*by, *(output for node in path for output in node.outputs)}
    for node in reversed(path):
        output_gradients = [gradient_of.get(output) for output in node.outputs]
        if any(output_gradients):
            _step(Backward(graph, node, varying), output_gradients, gradient_of)
    if strictly:
        _require_slopes(graph, by, path, gradient_of)
    return [gradient_of[v] if v in gradient_of else zero_gradient(graph, v) for v in by]


def _require_slopes(
    graph: Graph, by: Sequence[Value], path: Sequence[Node], gradient_of: Mapping[Value, Value]
) -> None:
    """Raise a Refusal if one of the values has no gradient; it names the operators that end the gradients."""
    silent = {value for value in by if value not in gradient_of}
    if not silent:
        return
    ends = [
        node for node in path if gradient_of.keys() & set(node.outputs) and not gradient_of.keys() & set(node.inputs)
    ]
    for node in graph.nodes:
        if silent.intersection(v for v in node.inputs if v is not None):
            silent.update(node.outputs)
            ends += [] if _carries(node) else [node]
    places = ", ".join(shortened(node.place, 60) for node in ends[:3]) or "no way to it"
    rule = "the trained values must change the loss continuously: steps have no slope"
    raise Refusal(rule, places, _behind([value.name for value in by if value in gradient_of]))


def _behind(names: Sequence[str]) -> str:
    """Return the hint that names what can be trained nevertheless."""
    listed = ", ".join(f"'{shortened(name, 40)}'" for name in names[:5])
    return f"train only what lies behind it: {listed}" if listed else "train nothing in front of it"


def zero_gradient(graph: Graph, value: Value) -> Value:
    """Return zeros of the shape of `value`: the gradient of a value that has no influence on the result."""
    return zeros(graph, f"{value.name}.gradient", value.type)


def _step(back: Backward, output_gradients: Sequence[Value | None], gradient_of: dict[Value, Value]) -> None:
    """Add a node's contributions to the gradients of its inputs."""
    node, derivative = back.node, derivative_for(back.node.op)
    assert derivative is not None
    for index, part in derivative.rule(back, node.op, node, output_gradients).items():
        value = node.inputs[index] if index < len(node.inputs) else None
        contribution = part() if value in back.varying and value is not None and value.type.dtype.is_float else None
        if value is not None and contribution is not None:
            gradient_of[value] = back.add(gradient_of[value], contribution) if value in gradient_of else contribution


def _way(graph: Graph, of: Iterable[Value], by: Iterable[Value]) -> list[Node]:
    """Return the nodes between `by` and `of`, in order."""
    varying = set(by)
    reached = []
    for node in graph.nodes:
        if any(v in varying for v in node.inputs) and _carries(node):
            varying.update(node.outputs)
            reached.append(node)
    needed_values, path = set(of), []
    for node in reversed(reached):
        if any(v in needed_values for v in node.outputs):
            needed_values.update(v for v in node.inputs if v is not None and v in varying)
            path.append(node)
    return path[::-1]


def _carries(node: Node) -> bool:
    """Return whether its results are reals: what is counted or compared changes in steps."""
    return any(output.type.dtype.is_float for output in node.outputs)


def _require_rules(graph: Graph, of: Collection[Value], by: Sequence[Value], path: Sequence[Node]) -> None:
    refused = [node for node in path if not _is_differentiable(node, of, path)]
    if not refused:
        return
    places = ", ".join(shortened(node.place, 60) for node in refused[:3])
    free = [v.name for v in by if not {*_way(graph, of, [v])}.intersection(refused)]
    raise Refusal("an operator on the way must have a derivative", places, _behind(free))


def _is_differentiable(node: Node, of: Collection[Value], path: Sequence[Node]) -> bool:
    """Return whether there is a rule for all outputs that count."""
    used, derivative = set(path), derivative_for(node.op)
    has_further_outputs = any(
        o.type.dtype.is_float and (o in of or used.intersection(o.users)) for o in node.outputs[1:]
    )
    return derivative is not None and (derivative.of_all or not has_further_outputs)
