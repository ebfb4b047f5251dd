# SPDX-License-Identifier: Apache-2.0
"""Graphs inside operators: everyone who walks a graph descends into them."""

from __future__ import annotations

import numpy as np
import pytest

from mcugen.backends.cpu.pipeline import optimize
from mcugen.core.errors import ModelError, VerificationError
from mcugen.hir.graph import Graph
from mcugen.hir.interpreter import interpret
from mcugen.hir.printer import print_graph
from mcugen.hir.types import DType, TensorType
from mcugen.hir.verify import verify_graph
from mcugen.ops.control import Branch, Repeat, Walk
from mcugen.ops.pointwise import Binary, Unary

VECTOR = TensorType((3,))


def side(function: str) -> Graph:
    """x → f(x), by way of a negation that is negated."""
    graph = Graph(function)
    x = graph.add_input("x", VECTOR)
    twice = graph.add(Unary("Neg"), [graph.add(Unary("Neg"), [x]).output])
    graph.add_output("y", graph.add(Unary(function), [twice.output], names=["y"]).output)
    return graph


def branching() -> Graph:
    graph = Graph("main")
    cond, x = graph.add_input("cond", TensorType((), DType.BOOL)), graph.add_input("x", VECTOR)
    node = graph.add(Branch(side("Exp"), side("Abs")), [cond, x, x], ["if"], names=["z"])
    graph.add_output("z", node.output)
    return graph


def summing(types: tuple[TensorType, ...] = (VECTOR, VECTOR)) -> Graph:
    """s ← s + row, for the rows of a matrix from the last; every s is stacked along axis 1."""
    inner = Graph("body")
    inner.add_input("i", TensorType((), DType.INT64))
    state, row = inner.add_input("s", types[0]), inner.add_input("row", types[1])
    total = inner.add(Binary("Add"), [state, row], names=["total"]).output
    inner.add_output("s", total)
    inner.add_output("all", total)
    graph = Graph("main")
    inputs = [graph.add_input("s", VECTOR), graph.add_input("rows", TensorType((4, 3)))]
    op = Repeat(inner, 4, 1, (Walk(0, backwards=True),), (Walk(1),))
    node = graph.add(op, inputs, ["scan"], names=["last", "all"])
    for value in node.outputs:
        graph.add_output(value.name, value)
    return graph


def test_the_interpreter_takes_one_branch():
    x = np.asarray([-1, 0, 2], np.float32)
    for graph in (branching(), optimized(branching())):
        np.testing.assert_allclose(interpret(graph, {"cond": np.asarray(True), "x": x})["z"], np.exp(x), rtol=1e-6)
        np.testing.assert_array_equal(interpret(graph, {"cond": np.asarray(False), "x": x})["z"], np.abs(x))


def optimized(graph: Graph) -> Graph:
    optimize(graph)
    return graph


def test_the_interpreter_goes_step_by_step():
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    found = interpret(summing(), {"s": np.ones(3, np.float32), "rows": rows})
    sums = 1 + np.cumsum(rows[::-1], 0)
    np.testing.assert_array_equal(found["last"], sums[-1])
    np.testing.assert_array_equal(found["all"], sums.T)


def test_graphs_are_found_at_every_depth():
    inner = branching()
    outer = Graph("outer")
    cond, x = outer.add_input("cond", TensorType((), DType.BOOL)), outer.add_input("x", VECTOR)
    outer.add(Branch(inner, branching()), [cond, cond, x, cond, x])
    assert [g.name for g in outer.nested()] == ["outer", "main", "Exp", "Abs", "main", "Exp", "Abs"]


def test_the_dump_indents_bodies():
    lines = print_graph(summing()).splitlines()
    types = "3 float32, 3x4 float32"
    attributes = "{body=@0, steps=4, states=1, taken=(Walk(0, True),), stacked=(Walk(1),)}"
    assert f"  %last, %all = repeat(%s, %rows) {attributes} : {types}  # scan" in lines
    assert "    graph body {" in lines
    assert "      output all = %total" in lines


def test_the_verifier_descends():
    graph = branching()
    nodes = graph.nodes[0].op.bodies[1].nodes
    nodes.remove(nodes[0])
    with pytest.raises(VerificationError, match="is used before it is computed"):
        verify_graph(graph)


def test_bodies_must_expect_what_they_get():
    with pytest.raises(ModelError, match="repeat: inputs must have the types that its body expects"):
        summing((VECTOR, TensorType((1,))))


def test_passes_work_inside():
    """The stack of elementwise operators is one, within its branch."""
    graph = optimized(branching())
    assert [len(body.nodes) for body in graph.nodes[0].op.bodies] == [1, 1]
