# SPDX-License-Identifier: Apache-2.0
"""Operator stacking (Glow): consecutive elementwise operators become one loop over the data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Signature
from mcugen.hir.types import Array, DType
from mcugen.numerics.curves import INT8_TABLE_ORDER
from mcugen.ops.conversion import Dequantize, Quantize
from mcugen.ops.elementwise import Elementwise, Lookup, Stack, Step
from mcugen.ops.pool import MaxPool
from mcugen.passes.rewrite import RewriteOutcome, pattern

MAX_STEPS = 16
"""Largest number of elementwise operators in one loop: longer loops spill registers and gain nothing."""


@pattern(Elementwise)
def stack_unary(graph: Graph, node: Node) -> RewriteOutcome:
    """f(g(x)) → (f ∘ g)(x) if all other operands are constant, so that on int8 both become a single lookup table.

    f and g are elementwise functions; one stacked operator (Stack) replaces both.
    """
    return _stack(graph, node, single_input=True)


@pattern(Elementwise)
def stack_elementwise(graph: Graph, node: Node) -> RewriteOutcome:
    """f(g(…), …) → one Stack, if the inner result has no other reader and the same shape.

    A Stack computes several elementwise operators in one loop, at most MAX_STEPS of them.
    """
    return _stack(graph, node, single_input=False)


@pattern(Elementwise)
def tabulate(graph: Graph, node: Node) -> RewriteOutcome:
    """f(g(x), h(x)) → table[x] if the result depends on one int8 tensor x only: SiLU and GELU of quantizers.

    f, g and h are elementwise, the result is int8, and all other operands are lookup tables or single numbers.
    Quantizers write functions such as SiLU and GELU as several nodes like this.
    """
    read = dict.fromkeys(_varying(node))
    if node.output.type.dtype is not DType.INT8 or not _has_scalars(node):
        return False
    for x in dict.fromkeys(x for value in read if value.producer for x in _varying(value.producer)):
        steps = [v.producer for v in read if v is not x and v.producer and _is_function(v.producer, x)]
        if not steps or len(steps) + (x in read) < len(read):
            continue
        codes = {x: INT8_TABLE_ORDER}
        for step in (*steps, node):
            codes[step.output] = _evaluated(step, codes)
        of = "+".join(step.op.of if isinstance(step.op, Lookup) else step.op.name for step in (*steps, node))
        table = graph.constant(f"{node.output.name}.table", codes[node.output])
        origin = [place for step in steps for place in step.origin]
        graph.rewrite(node, Lookup(of), [x, table], types=[node.output.type], origin=origin)
        return True
    return False


@pattern(MaxPool)
def pool_first(graph: Graph, node: Node) -> RewriteOutcome:
    """MaxPool(f(x)) → f(MaxPool(x)) if f is non-decreasing on int8: f then runs on fewer elements.

    f is elementwise with int8 input and output and constants at most for each channel; only the pool may read its
    result.
    """
    source, pool_output = node.input(0).producer, node.output
    if source is None or not isinstance(source.op, Elementwise) or pool_output.type.dtype is not DType.INT8:
        return False
    varying = list(dict.fromkeys(_varying(source)))
    if len(varying) != 1 or pool_output.type.count >= source.output.type.count:
        return False
    x = varying[0]
    if x.type.dtype is not DType.INT8 or x.type.shape != source.output.type.shape:
        return False
    if graph.only_user(source.output) is not node:
        return "others read the function's result"
    if not _never_falls(source, x):
        return "the function falls somewhere, or has other constants for each place"
    type_ = x.type.with_shape(pool_output.type.shape, pool_output.type.layout)
    pooled = graph.add(node.op, [x], node.origin, types=[type_], before=node).output
    inputs = [pooled if v is x else v for v in source.inputs]
    graph.rewrite(node, source.op, inputs, types=[pool_output.type], origin=source.origin)
    graph.remove(source)
    return True


def _never_falls(node: Node, x: Value) -> bool:
    """Return whether the function is monotone in x, checked by all codes channel by channel."""
    assert isinstance(node.op, Elementwise)
    channels = x.type.shape[-1]
    codes, arrays, types = np.arange(-128, 128, dtype=np.int8)[:, None], [], []
    for i, value in enumerate(node.inputs):
        if value is None:
            return False
        array = codes if value.data is None else value.data
        if i not in node.op.tables and value.data is not None:
            if array.size not in (1, channels) or array.shape[-1:] not in ((), (1,), (channels,)):
                return False
            array = array.reshape(1, -1)
        arrays.append(array)
        types.append(value.type.with_shape(array.shape))
    (results,) = node.op.evaluate(Signature(tuple(types), (node.output.type,)), *arrays)
    return bool((results[1:] >= results[:-1]).all())


def _varying(node: Node) -> list[Value]:
    """Return the inputs that are not constants."""
    return [v for v in node.inputs if v is not None and not v.is_constant]


def _has_scalars(node: Node) -> bool:
    """Return whether all constants are tables or single numbers."""
    assert isinstance(node.op, Elementwise)
    return all(
        v is not None and (not v.is_constant or v.type.count == 1 or i in node.op.tables)
        for i, v in enumerate(node.inputs)
    )


def _is_function(node: Node, x: Value) -> bool:
    """Return whether a node computes each element from the same element of x only, an int8 tensor with one scale."""
    if not isinstance(node.op, Elementwise) or set(_varying(node)) != {x} or not _has_scalars(node):
        return False
    return x.type.dtype is DType.INT8 and x.type.quant is not None and x.type.quant.axis is None


def _evaluated(node: Node, codes: Mapping[Value, Array]) -> Array:
    """Return a node's results for some elements of its inputs."""
    assert isinstance(node.op, Elementwise)
    arrays, types = [], []
    for i, value in enumerate(node.inputs):
        assert value is not None
        array = codes[value] if value.data is None else value.data
        arrays.append(array if i in node.op.tables else array.reshape(-1))
        types.append(value.type.with_shape(arrays[-1].shape))
    (results,) = node.op.evaluate(Signature(tuple(types), (node.output.type,)), *arrays)
    return results


def _stack(graph: Graph, node: Node, single_input: bool) -> RewriteOutcome:
    """Join a node with the first of its operands' producers that can be joined."""
    if not _stackable(node, single_input):
        return False
    refused: RewriteOutcome = False
    for value in node.inputs:
        source = value.producer if value is not None else None
        if value is None or source is None or not _stackable(source, single_input):
            continue
        outcome = _join(graph, source, node, value, single_input)
        if outcome is True:
            return True
        refused = refused or f"{source.op.name}: {outcome}"
    return refused


def _join(graph: Graph, source: Node, node: Node, value: Value, single_input: bool) -> RewriteOutcome:
    """Replace the second node by one loop that computes both."""
    if any(user is not node for user in value.users) or graph.is_output(value):
        return "others read its result"
    if value.type.shape != node.output.type.shape:
        return "its result is broadcast"
    if _value_in_tables(node, value):
        return "its result is read as a table"
    if _stands_alone(source) and _stands_alone(node):
        return "each has a kernel of its own"
    stack, inputs = _joined(source, node, value)
    if single_input and len({v for v in inputs if not v.is_constant}) > 1:
        return "another operand varies, too"
    if len(stack.steps) > MAX_STEPS:
        return f"that would be more than {MAX_STEPS} steps"
    graph.rewrite(node, stack, inputs, types=[node.output.type], origin=source.origin)
    graph.remove(source)
    return True


def _stands_alone(node: Node) -> bool:
    return isinstance(node.op, Elementwise) and node.op.stands_alone(node.sig)


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
    """Return the steps of both over the union of their inputs; `link` becomes the inner result."""
    outer = [v for v in node.inputs if v is not None and v is not link]
    inputs = list(dict.fromkeys([*(v for v in source.inputs if v is not None), *outer]))
    inner_steps, outer_steps = _steps(source), _steps(node)
    result = len(inputs) + len(inner_steps) - 1

    def place(owner: Node, steps_before: int, index: int) -> int:
        """Return where argument `index` of a step of `owner` is in the joined stack."""
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
