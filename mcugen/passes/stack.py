# SPDX-License-Identifier: Apache-2.0
"""Operator stacking (Glow): consecutive elementwise operators become one loop over the data."""

from __future__ import annotations

from mcugen.hir.graph import Graph, Node, Value
from mcugen.ops.conversion import Dequantize, Quantize
from mcugen.ops.elementwise import Elementwise, Stack, Step

MAX_STEPS = 16
"""Longer loops spill registers and gain nothing."""


def stack_unary(graph: Graph) -> bool:
    """Elementwise operators of one varying tensor in a row → one, so that on int8 they become a single table."""
    return _sweep(graph, single_input=True)


def stack_elementwise(graph: Graph) -> bool:
    """Elementwise(Elementwise(…)) → one Stack, where the inner result has no other reader and the same shape."""
    return _sweep(graph, single_input=False)


def _sweep(graph: Graph, single_input: bool) -> bool:
    changed = False
    for node in list(graph.nodes):
        while node in graph.nodes and (merged := _merge_one(graph, node, single_input)) is not None:
            node, changed = merged, True
    return changed


def _merge_one(graph: Graph, node: Node, single_input: bool) -> Node | None:
    if not _stackable(node, single_input):
        return None
    for value in node.inputs:
        source = value.producer if value is not None else None
        if value is None or source is None or not _stackable(source, single_input):
            continue
        if any(user is not node for user in value.users) or graph.is_output(value):
            continue
        if value.type.shape != node.output.type.shape or _value_in_tables(node, value):
            continue
        stack, inputs = _joined(source, node, value)
        if single_input and len({v for v in inputs if not v.is_constant}) > 1:
            continue
        if len(stack.steps) > MAX_STEPS:
            continue
        origin = source.origin
        merged = graph.rewrite(node, stack, inputs, types=[node.output.type], origin=origin)
        graph.remove(source)
        return merged
    return None


def _stackable(node: Node, single_input: bool) -> bool:
    if not isinstance(node.op, Elementwise):
        return False
    if not single_input:
        return True
    scalars = all(v.type.count == 1 for v in node.inputs if v is not None and v.is_constant)
    return scalars and not isinstance(node.op, Quantize | Dequantize)


def _value_in_tables(node: Node, value: Value) -> bool:
    assert isinstance(node.op, Elementwise)
    return any(node.inputs[i] is value for i in node.op.tables)


def _steps(node: Node) -> tuple[Step, ...]:
    assert isinstance(node.op, Elementwise)
    if isinstance(node.op, Stack):
        return node.op.steps
    return (Step(node.op, tuple(range(len(node.inputs))), node.output.type.dtype, node.output.type.quant),)


def _joined(source: Node, node: Node, link: Value) -> tuple[Stack, list[Value]]:
    """The steps of both over the union of their inputs; `link` becomes the inner result."""
    outer = [v for v in node.inputs if v is not None and v is not link]
    inputs = list(dict.fromkeys([*(v for v in source.inputs if v is not None), *outer]))
    inner_steps, outer_steps = _steps(source), _steps(node)
    result = len(inputs) + len(inner_steps) - 1

    def place(owner: Node, steps_before: int, index: int) -> int:
        """Where argument `index` of a step of `owner` is found in the joined stack."""
        count = len(owner.inputs)
        if index >= count:
            return len(inputs) + steps_before + index - count
        value = owner.inputs[index]
        assert value is not None
        return result if owner is node and value is link else inputs.index(value)

    steps = [Step(s.op, tuple(place(source, 0, a) for a in s.args), s.dtype, s.quant) for s in inner_steps]
    shift = len(inner_steps)
    steps += [Step(s.op, tuple(place(node, shift, a) for a in s.args), s.dtype, s.quant) for s in outer_steps]
    tables = frozenset(
        inputs.index(v)
        for owner in (source, node)
        for i, v in enumerate(owner.inputs)
        if isinstance(owner.op, Elementwise) and i in owner.op.tables and v is not None
    )
    return Stack(tuple(steps), tables), inputs
