# SPDX-License-Identifier: Apache-2.0
"""Each pass on the graphs of `text/`, and of `more/`, with one thing changed: what a guard is there for.

A value becomes an output or has another reader, a constant becomes an input or has other elements, operands change
places, an attribute, a scale or a type is another. Whatever the pass does, the graph is well formed and computes the
same; what it does is compared with `changed/PASS.txt`, which `pytest --update-golden` writes, and a person reads: how
many changes make no difference, and what becomes of the other graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace

import numpy as np
import pytest
from test_before_and_after import FILES, FOLDER, PASSES, graphs_of, samples

from mcugen.hir.graph import Graph, Node, Value, change_type
from mcugen.hir.interpreter import interpret
from mcugen.hir.operator import Operator
from mcugen.hir.parser import parse_graph
from mcugen.hir.types import Array, TensorType
from mcugen.hir.verify import verify_graph
from mcugen.ops.affine import Affine
from mcugen.ops.conv import Conv
from mcugen.ops.matmul import Dense
from mcugen.ops.movement import Reshape
from mcugen.ops.packed import DequantizeBlocks
from mcugen.ops.pointwise import Clamp
from mcugen.ops.whole import Cut
from mcugen.passes.rewrite import Log, Rewriting

Change = Callable[[Graph], None]
FUNCTIONS = {"Add": "Sub", "Sub": "Add", "Mul": "Div", "Div": "Mul", "Max": "Min", "Min": "Max", "Relu": "Neg"}


def changes(graph: Graph) -> Iterator[tuple[str, Change]]:
    """Yield names of changes, and the changes themselves: of any graph with the same text."""
    yield "nothing", lambda g: None
    for at, node in enumerate(graph.nodes):
        for number, value in enumerate(node.outputs):
            yield f"%{value.name} is seen", lambda g, at=at, n=number: g.add_output("seen", g.nodes[at].outputs[n])
            yield f"%{value.name} is read again", lambda g, at=at, n=number: _read_again(g, g.nodes[at], n)
            if value.type.quant is not None and value.type.quant.axis is None:
                for what, by in (
                    ("scale", {"scale": (value.type.quant.scale[0] * 2,)}),
                    ("zero point", {"zero_point": 3}),
                ):
                    yield (
                        f"%{value.name} has another {what}",
                        lambda g, at=at, n=number, by=by: _requantized(g, at, n, by),
                    )
        for number, value in enumerate(node.inputs):
            if value is not None and value.data is not None:
                yield f"%{value.name} is given", lambda g, at=at, n=number: _given(g, g.nodes[at], n)
                for what, change in ELEMENTS.items():
                    yield f"%{value.name} {what}", lambda g, at=at, n=number, c=change: _other(g, g.nodes[at], n, c)
        if len(node.inputs) > 1:
            yield f"operands of %{node.outputs[0].name} change places", lambda g, at=at: _swapped(g.nodes[at])
        for what, op in _other_operators(node.op):
            yield f"%{node.outputs[0].name} with {what}", lambda g, at=at, op=op: setattr(g.nodes[at], "op", op)


def _read_again(graph: Graph, node: Node, number: int) -> None:
    value = node.outputs[number]
    type_ = value.type.with_shape((value.type.count,))
    graph.add_output("again", graph.add(Reshape((value.type.count,)), [value], names=["again"], types=[type_]).output)


def _requantized(graph: Graph, at: int, number: int, by: dict[str, object]) -> None:
    value = graph.nodes[at].outputs[number]
    change_type(value, quant=replace(value.type.q, **by))


def _given(graph: Graph, node: Node, number: int) -> None:
    value = node.input(number)
    graph.replace(value, graph.add_input(f"{value.name}.given", value.type))


def _other(graph: Graph, node: Node, number: int, change: Callable[[Array], Array]) -> None:
    value = node.input(number)
    assert value.data is not None
    data = change(value.data.copy()).astype(value.data.dtype)
    if np.array_equal(data, value.data):
        raise ValueError("nothing changes")
    node.set_input(number, graph.constant(f"{value.name}.other", data, value.type.quant, value.type.dtype))


def _first(data: Array) -> Array:
    data.reshape(-1)[:1] += 1
    return data


ELEMENTS: dict[str, Callable[[Array], Array]] = {
    "has another first element": _first,
    "is doubled": lambda data: data * 2,
    "is negative": lambda data: -data,
    "is nought": np.zeros_like,
    "is one": np.ones_like,
}


TYPES = {"float64": (" float32", " float64"), "int16": (" int8", " int16"), "int64": (" int32", " int64")}
"""Other types in the place of all of one type."""


def _swapped(node: Node) -> None:
    first, second, *others = node.inputs
    for number, value in enumerate((second, first, *others)):
        node.set_input(number, value)


OF_ACCELERATORS = ("ratio_bits", "multiplier_bits", "is_short")
"""Fields that are set behind all passes, for layers that an accelerator computes."""


def _other_operators(op: Operator) -> Iterator[tuple[str, Operator]]:
    for field in (field for field in fields(op) if field.name not in OF_ACCELERATORS):
        for value in _other_values(getattr(op, field.name)):
            yield f"{field.name} {value}", replace(op, **{field.name: value})


def _other_values(value: object) -> Iterator[object]:
    match value:
        case bool():
            yield not value
        case int() | float():
            yield from (value + 1, -value, 0)
        case str():
            yield from (FUNCTIONS[name] for name in [value] if name in FUNCTIONS)
        case (int() | float(), *others):
            yield (value[0] + 1, *others)
            yield value[::-1]


def attempt(text: str, change: Change, name: str) -> str | None:
    """Return what a pass makes of a changed graph; None if that is no sound graph, or has no finite results."""
    log = Log()
    try:
        graph = parse_graph(text)
        graph.float16_weights = True
        change(graph)
        verify_graph(graph)
        assert all(map(_is_sensible, graph.nodes))
        given = samples(graph)
        with np.errstate(all="ignore"):
            expected = interpret(graph, given)
        assert all(np.isfinite(np.asarray(array, np.float64)).all() for array in expected.values())
    except Exception:  # whatever a change breaks
        return None
    pass_ = PASSES[name]
    changed = pass_(graph, log) if isinstance(pass_, Rewriting) else pass_(graph)
    verify_graph(graph)
    for key, array in interpret(graph, given).items():
        exact = not np.issubdtype(array.dtype, np.floating)
        largest = np.abs(np.asarray(expected[key], np.float64)).max(initial=1)
        np.testing.assert_allclose(array, expected[key], *((0, 1) if exact else (1e-3, 1e-4 * largest)))
    operators = " ".join(node.op.name for node in graph.nodes) if changed else "as it was"
    dropped = [f"{graph.dropped.channels} channels less"] if graph.dropped.channels else []
    return "; ".join([operators, *dropped, *(str(refusal) for refusal in log.refusals(graph))])


def _is_sensible(node: Node) -> bool:
    """Return whether the importer could give such a node: limits in order, constants where layers have them."""
    limits = (node.op.low, node.op.high) if isinstance(node.op, Clamp) else getattr(node.op, "clamp", None)
    if limits is not None and not (limits[0] < limits[1] and limits[0] < np.inf and limits[1] > -np.inf):
        return False
    if isinstance(node.op, Cut) and not (node.op.low < node.op.high and _has_codes(node.op, node.output.type)):
        return False
    if isinstance(node.op, DequantizeBlocks) and node.op.block <= 0:
        return False
    constants = node.inputs[1:] if isinstance(node.op, (Affine, Conv, Dense, DequantizeBlocks)) else ()
    return all(value is None or value.is_constant or _is_weight(value) for value in constants)


def _has_codes(op: Cut, type_: TensorType) -> bool:
    """Return whether all numbers of a cut have codes."""
    least, greatest = type_.dtype.limits
    zero = 0 if type_.quant is None else type_.quant.zero_point
    return bool(least <= op.low + zero and op.high + zero <= greatest)


def _is_weight(value: Value) -> bool:
    """Return whether it is a constant that is dequantized."""
    return value.producer is not None and value.producer.input(0).is_constant


@pytest.mark.parametrize("name", [path.stem for path in FILES])
def test_a_pass_on_changed_graphs(name: str, golden: Callable[[str, str], None]):
    lines = []
    for number, text in enumerate(graphs_of(name)):
        outcomes = [(what, attempt(text, change, name)) for what, change in changes(parse_graph(text))]
        outcomes += [(what, attempt(text.replace(*types), lambda g: None, name)) for what, types in TYPES.items()]
        usual = outcomes[0][1]
        other = [f"{number}: {what}: {outcome}\n" for what, outcome in outcomes if outcome not in (usual, None)]
        alike = sum(outcome == usual for _, outcome in outcomes)
        lines += [f"{number}: {alike} times: {usual}\n", *other]
    golden(str(FOLDER.with_name("changed") / f"{name}.txt"), "".join(lines))
