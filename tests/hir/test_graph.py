# SPDX-License-Identifier: Apache-2.0
"""Editing a graph keeps values, uses, names and order consistent."""

from __future__ import annotations

import numpy as np
import pytest

from mcugen.core.errors import VerificationError
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.types import DType, QuantParams, TensorType
from mcugen.hir.verify import verify_graph
from mcugen.ops.pointwise import Binary, Clamp, Unary

EXP, NEG, ADD, RELU = Unary("Exp"), Unary("Neg"), Binary("Add"), Clamp(low=0.0)


@pytest.fixture
def chain() -> Graph:
    """x → exp → neg → output y."""
    graph = Graph("chain")
    x = graph.add_input("x", TensorType((2, 3)))
    exp = graph.add(EXP, [x], ["e"], names=["exp"])
    neg = graph.add(NEG, [exp.output], ["n"], names=["neg"])
    graph.add_output("y", neg.output)
    return graph


def uses_from_scratch(graph: Graph) -> dict[Value, list[tuple[Node, int]]]:
    found: dict[Value, list[tuple[Node, int]]] = {value: [] for value in graph.values()}
    for node in graph.nodes:
        for index, value in enumerate(node.inputs):
            if value is not None:
                found[value].append((node, index))
    return found


def assert_consistent(graph: Graph) -> None:
    for value, uses in uses_from_scratch(graph).items():
        assert sorted(value.uses, key=str) == sorted(uses, key=str)
    verify_graph(graph)


def names(graph: Graph) -> list[str]:
    return [node.output.name for node in graph.nodes]


def test_add_appends_and_infers(chain: Graph):
    node = chain.add(ADD, [chain.inputs[0], chain.nodes[0].output])
    assert chain.nodes[-1] is node
    assert node.output.type == TensorType((2, 3))
    assert node.output.producer is node
    assert_consistent(chain)


def test_add_before(chain: Graph):
    chain.add(RELU, [chain.inputs[0]], names=["relu"], before=chain.nodes[0])
    assert names(chain) == ["relu", "exp", "neg"]
    assert_consistent(chain)


def test_names_are_made_unique(chain: Graph):
    found = [chain.add(EXP, [chain.inputs[0]], names=["exp"]).output.name for _ in range(3)]
    assert found == ["exp.2", "exp.3", "exp.4"]
    assert chain.constant("x", np.zeros(1, np.float32)).name == "x.2"


def test_released_name_is_free_again(chain: Graph):
    chain.release_name(chain.nodes[1].output)
    assert chain.fresh_name("neg") == "neg"


def test_constant_knows_its_type(chain: Graph):
    quant = QuantParams((0.5,), 3)
    value = chain.constant("w", np.zeros((2, 4), np.int8), quant)
    assert value.type == TensorType((2, 4), DType.INT8, quant)
    assert value.is_constant
    assert value.producer is None


def test_a_value_read_twice_by_one_node(chain: Graph):
    node = chain.add(ADD, [chain.inputs[0], chain.inputs[0]])
    assert chain.inputs[0].users == [chain.nodes[0], node]
    assert [index for user, index in chain.inputs[0].uses if user is node] == [0, 1]
    assert_consistent(chain)


def test_set_input_moves_the_use(chain: Graph):
    exp, neg = chain.nodes
    neg.set_input(0, chain.inputs[0])
    assert exp.output.uses == {}
    assert chain.inputs[0].users == [exp, neg]
    assert_consistent(chain)


def test_optional_input_may_be_absent(chain: Graph):
    node = Node(NEG, [None, chain.inputs[0]], [Value("v", TensorType((2, 3)))], [])
    assert node.sig.inputs == (None, TensorType((2, 3)))
    node.set_input(1, None)
    assert chain.inputs[0].users == [chain.nodes[0]]


def test_replace_reaches_every_reader_and_the_output(chain: Graph):
    exp, neg = chain.nodes
    add = chain.add(ADD, [neg.output, neg.output])
    chain.add_output("z", add.output)
    chain.replace(neg.output, exp.output)
    assert add.inputs == (exp.output, exp.output)
    assert chain.outputs == [exp.output, add.output]
    assert chain.output_names == ["y", "z"]
    assert neg.output.uses == {}
    chain.remove(neg)
    assert_consistent(chain)


def test_remove_forgets_uses(chain: Graph):
    exp, neg = chain.nodes
    chain.replace(neg.output, exp.output)
    chain.remove(neg)
    assert names(chain) == ["exp"]
    assert exp.output.uses == {}
    assert_consistent(chain)


def test_rewrite_keeps_place_name_and_origins(chain: Graph):
    exp, neg = chain.nodes
    new = chain.rewrite(exp, RELU, [chain.inputs[0]], origin=["folded"])
    assert names(chain) == ["exp", "neg"]
    assert new.origin == ("folded", "e")
    assert neg.inputs == (new.output,)
    assert chain.inputs[0].users == [new]
    assert_consistent(chain)


def test_rewrite_of_an_output(chain: Graph):
    new = chain.rewrite(chain.nodes[1], RELU, [chain.nodes[0].output])
    assert chain.outputs == [new.output]
    assert_consistent(chain)


def test_only_user(chain: Graph):
    exp, neg = chain.nodes
    assert chain.only_user(chain.inputs[0]) is exp
    assert chain.only_user(exp.output) is neg
    assert chain.only_user(neg.output) is None  # the caller reads it
    chain.add(ADD, [exp.output, chain.inputs[0]])
    assert chain.only_user(exp.output) is None
    twice = chain.add(RELU, [chain.inputs[0]])
    chain.add(ADD, [twice.output, twice.output])
    assert chain.only_user(twice.output) is None


def test_values_come_once_inputs_first(chain: Graph):
    constant = chain.constant("k", np.ones((2, 3), np.float32))
    chain.add(ADD, [chain.nodes[0].output, constant], names=["sum"])
    assert [value.name for value in chain.values()] == ["x", "exp", "neg", "k", "sum"]


def test_editing_while_iterating_over_a_copy(chain: Graph):
    for node in list(chain.nodes):
        chain.rewrite(node, RELU, [node.input(0)])
    assert [node.op for node in chain.nodes] == [RELU, RELU]
    assert_consistent(chain)


def test_sort_restores_order_and_keeps_what_is_in_order(chain: Graph):
    exp, neg = chain.nodes
    first = chain.add(RELU, [chain.inputs[0]], names=["first"])
    neg.set_input(0, first.output)
    with pytest.raises(VerificationError, match="used before it is computed"):
        verify_graph(chain)
    chain.sort()
    assert chain.nodes == [exp, first, neg]
    chain.sort()
    assert chain.nodes == [exp, first, neg]
    assert_consistent(chain)


def test_sort_of_a_long_chain_does_not_recurse():
    graph = Graph("long")
    value = graph.add_input("x", TensorType((1,)))
    for _ in range(5000):
        value = graph.add(NEG, [value]).output
    graph.nodes = graph.nodes[::-1]
    graph.sort()
    assert graph.nodes[-1].output is value


def test_sort_misses_a_producer_outside_the_graph(chain: Graph):
    chain.nodes.remove(chain.nodes[0])
    with pytest.raises(VerificationError, match="every producer must be a node"):
        chain.sort()
