# SPDX-License-Identifier: Apache-2.0
"""Projections of recurrent layers for all steps at once: one matrix product before a loop instead of one in each step.

An accelerator then reads their weights once, in one invocation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mcugen.hir.graph import Graph, Node, Value
from mcugen.ops.control import Repeat, Walk
from mcugen.ops.matmul import Dense


def hoist_projections(graph: Graph) -> Graph | None:
    """Return a copy of a graph whose loops get the projections of their inputs from dense layers before them.

    A projection is a dense layer that reads one step's slice of a tensor; it computes the same bits for all steps.
    Loops that may end early keep theirs.

    Returns:
        The copy; None if no loop has a projection.
    """
    copy, is_changed = graph.copy(), False
    for node in list(copy.nodes):
        if isinstance(node.op, Repeat) and not node.op.conditional:
            is_changed |= _hoist(copy, node, node.op)
    return copy if is_changed else None


def _hoist(graph: Graph, loop: Node, op: Repeat) -> bool:
    """Hoist the projections of one loop, and return whether there are any."""
    body = op.body.copy()
    first = 1 + op.states
    formals, wholes = body.inputs[first : first + len(op.taken)], list(loop.inputs[op.states :])
    projections = [
        (dense, whole, walk)
        for formal, whole, walk in zip(formals, wholes, op.taken, strict=False)
        if _has_type_of(whole, formal)
        for dense in _projections(formal, walk)
    ]
    if not projections:
        return False
    walks, slices = list(op.taken), list(formals)
    operands = wholes[: len(walks)]
    for dense, whole, walk in projections:
        operands.append(_projected(graph, loop, dense, whole, walk, op.steps))
        walks.append(walk)
        slices.append(Value(body.fresh_name(f"{dense.output.name}.part"), dense.output.type))
        body.replace(dense.output, slices[-1])
        body.remove(dense)
    kept = [i for i, part in enumerate(slices) if part.uses or body.is_output(part)]
    body.inputs = [*body.inputs[:first], *(slices[i] for i in kept), *body.inputs[first + len(op.taken) :]]
    inputs = [*loop.inputs[: op.states], *(operands[i] for i in kept), *wholes[len(op.taken) :]]
    _replace(graph, loop, replace(op, body=body, taken=tuple(walks[i] for i in kept)), inputs)
    return True


def _has_type_of(whole: Value | None, part: Value) -> bool:
    """Return whether a tensor has the quantization of the slice that a loop's body reads.

    A tensor that only the loop reads gets it: types of bodies do not depend on the graph around them.
    """
    assert whole is not None
    if whole.type.quant is None and len(whole.users) == 1:
        whole.type = replace(whole.type, quant=part.type.quant)
    return whole.type.quant == part.type.quant


def _projections(part: Value, walk: Walk) -> Iterator[Node]:
    """Yield the dense layers that read one step's slice of a tensor, whose last axis is not that of the steps."""
    for user in part.users:
        constants = (value for value in user.inputs[1:] if value is not None)
        is_projection = isinstance(user.op, Dense) and user.input(0) is part and all(v.is_constant for v in constants)
        if is_projection and walk.axis < part.type.rank:
            yield user


def _projected(graph: Graph, loop: Node, dense: Node, whole: Value | None, walk: Walk, steps: int) -> Value:
    """Add the dense layer of a loop's body for the slices of all steps before the loop, and return its output."""
    constants = [
        graph.constant(value.name, value.data, value.type.quant, value.type.dtype, of=[value])
        for value in dense.inputs[1:]
        if value is not None and value.data is not None
    ]
    result = dense.output.type
    return graph.add(
        dense.op,
        [whole, *constants],
        dense.origin,
        names=[dense.output.name],
        types=[result.with_shape(walk.whole(result.shape, steps))],
        before=loop,
    ).output


def _replace(graph: Graph, old: Node, op: Repeat, inputs: list[Value | None]) -> None:
    """Replace a node by one with another operator and other inputs, whose outputs have the same names and types."""
    for value in old.outputs:
        graph.release_name(value)
    names, types = [v.name for v in old.outputs], [v.type for v in old.outputs]
    new = graph.add(op, inputs, old.origin, names=names, types=types, before=old)
    for before, after in zip(old.outputs, new.outputs, strict=True):
        graph.replace(before, after)
    graph.remove(old)
