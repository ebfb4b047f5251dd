# SPDX-License-Identifier: Apache-2.0
"""Kernels of libraries are found by the name and specification of a layer, in the package that the registry names."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest

from mcugen.core.options import AUTO, OWN
from mcugen.hir.graph import Graph, Node
from mcugen.hir.types import TensorType
from mcugen.kernels import families
from mcugen.kernels.families import LibraryLayer, library_kernels_of, load_families
from mcugen.kernels.portable.activations import BinarySpec
from mcugen.lir.kernel import Kernel
from mcugen.ops.pointwise import Binary

THEIRS = Kernel("theirs", library="theirs")


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> str:
    package = ModuleType("a_package_of_kernels")
    package.LAYERS = (LibraryLayer(("add",), BinarySpec, (THEIRS,)),)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(families.FAMILY_PACKAGES, "theirs", package.__name__)  # type: ignore[arg-type]
    return "theirs"


class Other(Binary):
    """An operator of the same name that tells kernels something else."""

    def spec(self, node: Node) -> object:  # type: ignore[override]
        return [self.function]


def node_of(op: Binary) -> Node:
    graph = Graph("net")
    x = graph.add_input("x", TensorType((4,)))
    return graph.add(op, [x, graph.constant("w", np.ones(4, np.float32))], names=["y"])


def test_kernels_are_of_layers_with_name_and_specification(family: str) -> None:
    assert library_kernels_of(node_of(Binary("Add")), family) == (THEIRS,)
    assert library_kernels_of(node_of(Binary("Mul")), family) == ()
    assert library_kernels_of(node_of(Other("Add")), family) == ()


def test_auto_takes_all_libraries_and_own_none(family: str) -> None:
    add = node_of(Binary("Add"))
    assert set(load_families(AUTO)) > set(load_families(family))
    assert THEIRS in library_kernels_of(add, AUTO) and len(library_kernels_of(add, AUTO)) > 1
    assert library_kernels_of(add, OWN) == ()
