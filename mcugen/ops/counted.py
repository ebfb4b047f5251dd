# SPDX-License-Identifier: Apache-2.0
"""Analysis of loops whose condition depends on the step number alone: number of steps, and slices that they read.

tf2onnx exports TensorFlow's `while` in this form: with a counter, a condition on it, and rows gathered by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.interpreter import evaluate_node
from mcugen.hir.types import Array, DType
from mcugen.ops.conversion import Cast
from mcugen.ops.gather import Gather

MAX_EVALUATED_OPERATORS = 50_000
"""Largest number of operators, over all steps, that are evaluated at compile time to know a loop's counters; each takes
about 10 µs."""


@dataclass(frozen=True)
class LoopState:
    """A state that a loop carries from one step to the next.

    Attributes:
        read: The value that the body reads.
        first: The initial elements; None if they are not known at compile time.
        after: The value that the body computes for the next step.
    """

    read: Value
    first: Array | None
    after: Value


@dataclass(frozen=True)
class LoopCounters:
    """The number of steps of a loop, and the values of its counters, all known at compile time.

    A counter is a state whose value depends on the step number only.

    Attributes:
        steps: The number of steps that run.
        last: The final value of each counter, by the value that the body reads.
        numbers: Counters that equal the step number in each step.
    """

    steps: int
    last: Mapping[Value, Array]
    numbers: frozenset[Value]


def counted(
    graph: Graph, step: Value, states: Iterable[LoopState], cond: Value | None, max_steps: int
) -> LoopCounters | None:
    """Compute the number of steps of a loop and the final values of its counters at compile time.

    Args:
        graph: Body of the loop.
        step: The step number inside the body.
        states: States of the loop.
        cond: The condition to continue, as the body computes it; None if there is none.
        max_steps: Upper bound of the number of steps.

    Returns:
        The counters; None if the condition depends on more than the step number, or if the evaluation takes more than
        MAX_EVALUATED_OPERATORS operators.
    """
    counters = [s for s in states if s.first is not None and s.first.size == 1]
    while True:
        known = _following(graph, {step, *(s.read for s in counters)})
        kept = [s for s in counters if s.after.is_constant or s.after in known]
        if len(kept) == len(counters):
            break
        counters = kept
    if cond is not None and not cond.is_constant and cond not in known:
        return None
    nodes = _needed([n for n in graph.nodes if n.outputs[0] in known], [*(s.after for s in counters), cond])
    if max_steps * (1 + len(nodes)) > MAX_EVALUATED_OPERATORS:
        return None
    return _played(nodes, step, counters, cond, max_steps)


def _following(graph: Graph, known: set[Value]) -> set[Value]:
    """Return `known` and all values that are computed only from known values and constants."""
    known = set(known)
    for node in graph.nodes:
        if not node.op.bodies and all(v is None or v.is_constant or v in known for v in node.inputs):
            known |= set(node.outputs)
    return known


def _needed(nodes: list[Node], values: Iterable[Value | None]) -> list[Node]:
    """Return the nodes, in order, that the values are computed by."""
    needed_values, needed_nodes = set(values), list[Node]()
    for node in reversed(nodes):
        if needed_values.intersection(node.outputs):
            needed_values |= set(node.inputs)
            needed_nodes.insert(0, node)
    return needed_nodes


def _played(
    nodes: list[Node], step: Value, counters: list[LoopState], cond: Value | None, max_steps: int
) -> LoopCounters:
    """Evaluate the nodes step by step, as long as the condition holds, and return the steps and counters."""
    now = {s.read: s.first for s in counters if s.first is not None}
    numbers, steps, goes_on = set(now), 0, True
    while goes_on and steps < max_steps:
        numbers = {
            v for v in numbers if np.issubdtype(now[v].dtype, np.integer) and int(now[v].reshape(-1)[0]) == steps
        }
        env: dict[Value, Array] = {step: np.asarray(steps, np.int64), **now}

        def array(value: Value, env: dict[Value, Array] = env) -> Array:
            return env[value] if value.data is None else value.data

        for node in nodes:
            results = evaluate_node(node, [array(v) for v in node.inputs if v is not None])
            env |= dict(zip(node.outputs, results, strict=True))
        now = {s.read: array(s.after) for s in counters}
        steps, goes_on = steps + 1, cond is None or bool(array(cond).any())
    return LoopCounters(steps, now, frozenset(v for v in numbers if not v.type.rank))


def as_number(graph: Graph, step: Value, dtype: DType) -> Value:
    """Return a loop's step number, converted to the element type of a counter that equals it.

    Args:
        graph: Body of the loop, to which a cast is added if necessary.
        step: The step number inside the body.
        dtype: Element type of the counter.
    """
    return (
        step
        if dtype is step.type.dtype
        else graph.add(Cast(dtype), [step], before=next(iter(graph.nodes), None)).output
    )


def rows_by_number(graph: Graph, step: Value, steps: int) -> list[tuple[Node, int]]:
    """Return the nodes of a loop body that gather, in step k, slice k of a tensor from outside of the body.

    Args:
        graph: Body of the loop.
        step: The step number inside the body.
        steps: Number of steps of the loop.

    Returns:
        Each node with the axis along which it gathers.
    """
    return [
        (node, node.op.axis)
        for node in graph.nodes
        if isinstance(node.op, Gather)
        and node.input(0) in graph.inputs
        and node.input(0).type.shape[node.op.axis] == steps
        and _is_number(node.input(1), step)
    ]


def _is_number(value: Value, step: Value) -> bool:
    source = value.producer
    return value is step or (source is not None and isinstance(source.op, Cast) and source.input(0) is step)
