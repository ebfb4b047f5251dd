# SPDX-License-Identifier: Apache-2.0
"""What kernels know of a layer is made once, and anew when the operator, a type or a constant changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from mcugen.hir.graph import Graph, Node
from mcugen.hir.types import DType, TensorType
from mcugen.lir.kernel import Kernel
from mcugen.lir.spec import HasKernels, own_kernels, spec_of
from mcugen.ops.pointwise import Binary

OURS = Kernel("ours")


@dataclass(frozen=True)
class Chosen(Binary):
    """A sum with kernels, of which each spec is a new object."""

    kernels = (OURS,)

    def spec(self, node: Node) -> object:
        return [self.function]


def node_of(op: Binary) -> Node:
    graph = Graph("net")
    x = graph.add_input("x", TensorType((4,)))
    return graph.add(op, [x, graph.constant("w", np.ones(4, np.float32))], names=["y"])


def change_data(node: Node) -> None:
    node.input(1).data = np.ones(4, np.float32)


def change_input_type(node: Node) -> None:
    node.input(0).type = TensorType((4,), DType.FLOAT32)


def change_output_type(node: Node) -> None:
    node.output.type = TensorType((4,), DType.FLOAT32)


def change_operator(node: Node) -> None:
    node.op = Chosen("Add")


def drop_input(node: Node) -> None:
    node.set_input(1, None)


@pytest.mark.parametrize("change", [change_data, change_input_type, change_output_type, change_operator, drop_input])
def test_a_spec_is_that_of_what_it_was_made_of(change: Callable[[Node], None]):
    node = node_of(Chosen("Add"))
    spec = spec_of(node)
    assert spec == ["Add"]
    assert spec_of(node) is spec
    change(node)
    assert spec_of(node) is not spec
    assert spec_of(node) is spec_of(node)


def test_an_operator_without_a_choice_has_no_kernels():
    node = node_of(Binary("Add"))
    node.op = object()  # type: ignore[assignment]
    assert spec_of(node) is node
    assert own_kernels(node.op) == ()
    assert own_kernels(Chosen("Add")) == (OURS,)
    assert HasKernels().spec(node) is node


def test_a_kernel_declares_nothing_unless_it_says():
    told = Kernel("k")
    assert (told.any_size, told.spends, told.library, told.rounds, told.example) == (False, False, "", None, "")
    assert (told.extra_of(node_of(Chosen("Add"))), told.way_of(node_of(Chosen("Add")))) == (0, "")
    assert told.slowdown_of(node_of(Chosen("Add"))) == 1
    assert told.code_of(node_of(Chosen("Add"))) is None
    tells = Kernel("k", extra=len, way=lambda spec: spec[0], slowdown=lambda spec: 2.5, code=lambda spec: 40)
    node = node_of(Chosen("Add"))
    found = tells.extra_of(node), tells.way_of(node), tells.slowdown_of(node), tells.code_of(node)
    assert found == (1, "Add", 2.5, 40)
