# SPDX-License-Identifier: Apache-2.0
"""Operator stacking (Glow): consecutive elementwise operators become one loop over the data."""

from __future__ import annotations

from mcugen.hir.graph import Graph, Node, Value
from mcugen.ops.conversion import Dequantize, Quantize
from mcugen.ops.elementwise import Elementwise, Stack, Step
from mcugen.passes.rewrite import Outcome, pattern

MAX_STEPS = 16
"""Longer loops spill registers and gain nothing."""


@pattern(Elementwise)
def stack_unary(graph: Graph, node: Node) -> Outcome:
    """f(g(x)) → (f ∘ g)(x) where x alone varies, so that on int8 they become a single table."""
    return _stack(graph, node, single_input=True)


@pattern(Elementwise)
def stack_elementwise(graph: Graph, node: Node) -> Outcome:
    """f(g(…), …) → one Stack, where the inner result has no other reader and the same shape."""
    return _stack(graph, node, single_input=False)


def _stack(graph: Graph, node: Node, single_input: bool) -> Outcome:
    """Joins the first of its operands that can be."""
    if not _stackable(node, single_input):
        return False
    refused: Outcome = False
    for value in node.inputs:
        source = value.producer if value is not None else None
        if value is None or source is None or not _stackable(source, single_input):
            continue
        outcome = _join(graph, source, node, value, single_input)
        if outcome is True:
            return True
        refused = refused or f"{source.op.name}: {outcome}"
    return refused


def _join(graph: Graph, source: Node, node: Node, value: Value, single_input: bool) -> Outcome:
    """Makes one loop of both, in place of the second."""
    if any(user is not node for user in value.users) or graph.is_output(value):
        return "others read its result"
    if value.type.shape != node.output.type.shape:
        return "its result is broadcast"
    if _value_in_tables(node, value):
        return "its result is read as a table"
    stack, inputs = _joined(source, node, value)
    if single_input and len({v for v in inputs if not v.is_constant}) > 1:
        return "another operand varies, too"
    if len(stack.steps) > MAX_STEPS:
        return f"that would be more than {MAX_STEPS} steps"
    graph.rewrite(node, stack, inputs, types=[node.output.type], origin=source.origin)
    graph.remove(source)
    return True


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
