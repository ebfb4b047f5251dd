# SPDX-License-Identifier: Apache-2.0
"""The verifier names each broken invariant, and the node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mcugen.core.errors import VerificationError
from mcugen.hir.graph import Graph, Value, change_type
from mcugen.hir.types import DType, QuantParams, TensorType
from mcugen.hir.verify import verify_graph
from mcugen.ops.conversion import Quantize
from mcugen.ops.movement import Reshape
from mcugen.ops.pointwise import Binary, Unary

INT8 = TensorType((2, 3), DType.INT8, QuantParams((0.5,), 1))


def sound_graph() -> Graph:
    """x → exp ("e") → quantize ("q") → reshape ("r") → output; w is added to x ("a") → output."""
    graph = Graph("sound")
    x = graph.add_input("x", TensorType((2, 3)))
    exp = graph.add(Unary("Exp"), [x], ["e"], names=["exp"])
    codes = graph.add(Quantize(), [exp.output], ["q"], names=["codes"], types=[INT8])
    flat = graph.add(Reshape((6,)), [codes.output], ["r"], names=["flat"])
    added = graph.add(Binary("Add"), [x, graph.constant("w", np.ones((2, 3), np.float32))], ["a"], names=["sum"])
    graph.add_output("y", flat.output)
    graph.add_output("z", added.output)
    return graph


def used_before_definition(graph: Graph) -> None:
    first, second, *others = graph.nodes
    graph.nodes = [second, first, *others]


def stale_use(graph: Graph) -> None:
    graph.inputs[0].uses.clear()


def use_of_a_removed_node(graph: Graph) -> None:
    exp = graph.nodes[0].output
    exp.uses[Graph("other").add(Unary("Neg"), [exp]), 0] = None


def removed_producer(graph: Graph) -> None:
    graph.nodes.remove(graph.nodes[0])


def uncomputed_output(graph: Graph) -> None:
    graph.add_output("more", Value("nowhere", TensorType((1,))))


def wrong_shape(graph: Graph) -> None:
    change_type(graph.nodes[0].output, shape=(3, 2))


def wrong_dtype(graph: Graph) -> None:
    change_type(graph.nodes[3].output, dtype=DType.INT32)


def duplicate_name(graph: Graph) -> None:
    graph.nodes[0].output.name = "x"


def constant_of_another_shape(graph: Graph) -> None:
    graph.nodes[3].input(1).data = np.ones((3, 2), np.float32)


def constant_of_another_type(graph: Graph) -> None:
    graph.nodes[3].input(1).data = np.ones((2, 3), np.float64)


def too_many_scales(graph: Graph) -> None:
    requantize(graph, QuantParams((0.5, 0.25), 1))


def scales_that_do_not_match_the_axis(graph: Graph) -> None:
    requantize(graph, QuantParams((0.5, 0.25), 1, axis=1))


def scale_of_zero(graph: Graph) -> None:
    requantize(graph, QuantParams((0.0,), 1))


def negative_scale(graph: Graph) -> None:
    requantize(graph, QuantParams((-1.0,), 1))


def scale_that_is_no_number(graph: Graph) -> None:
    requantize(graph, QuantParams((float("nan"),), 1))


def moved_data_changes_its_scale(graph: Graph) -> None:
    flat = graph.nodes[2].output
    flat.type = replace(flat.type, quant=QuantParams((0.25,), 1))


def requantize(graph: Graph, quant: QuantParams) -> None:
    for node in graph.nodes[1:3]:
        node.output.type = node.output.type.with_quant(quant)


BROKEN: list[tuple[Callable[[Graph], None], str]] = [
    (used_before_definition, r"quantize 'q': input %exp is used before it is computed"),
    (stale_use, r"exp 'e': input %x does not know of its use"),
    (use_of_a_removed_node, r"%exp is used by a removed node"),
    (removed_producer, r"quantize 'q': input %exp is used before it is computed"),
    (uncomputed_output, r"output %nowhere is computed by no node"),
    (wrong_shape, r"exp 'e': %exp has shape \(3, 2\), the operator gives \(2, 3\)"),
    (wrong_dtype, r"add 'a': %sum is int32, the operator gives float32"),
    (duplicate_name, r"two values share a name"),
    (constant_of_another_shape, r"add 'a': constant %w holds float32\(3, 2\)"),
    (constant_of_another_type, r"add 'a': constant %w holds float64\(2, 3\)"),
    (too_many_scales, r"quantize 'q': %codes has 2 scales"),
    (scales_that_do_not_match_the_axis, r"quantize 'q': %codes has 2 scales"),
    (scale_of_zero, r"quantize 'q': %codes has a scale that is not positive"),
    (negative_scale, r"quantize 'q': %codes has a scale that is not positive"),
    (scale_that_is_no_number, r"quantize 'q': %codes has a scale that is not positive"),
    (moved_data_changes_its_scale, r"reshape 'r': a data movement changes quantization parameters"),
]


def test_a_sound_graph_passes():
    verify_graph(sound_graph())


@pytest.mark.parametrize(("damage", "message"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_each_broken_invariant_is_named(damage: Callable[[Graph], None], message: str):
    graph = sound_graph()
    damage(graph)
    with pytest.raises(VerificationError, match=message) as error:
        verify_graph(graph)
    assert error.value.exit_code == 7
