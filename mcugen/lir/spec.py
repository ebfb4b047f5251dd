# SPDX-License-Identifier: Apache-2.0
"""Specifications of layers for kernels: the result of the operator's `spec`, cached while the node stays the same."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from mcugen.hir.graph import Node
from mcugen.hir.operator import Operator

if TYPE_CHECKING:
    from mcugen.lir.kernel import Kernel

_SPECS: WeakKeyDictionary[Node, tuple[list[object], object]] = WeakKeyDictionary()
"""Specifications, with the objects that each was built from.

A specification refers to types and constants, but never to nodes or values, which it would keep alive.
"""


class HasKernels:
    """Trait of operators that several kernels can compute, one of which is chosen (mcugen.kernels.choose).

    Kernels that call libraries are registered by the operator's name (mcugen.kernels.families).

    Attributes:
        kernels: mcugen's own kernels of the operator, the preferred ones first; kernels that call libraries are not
            included.
    """

    kernels: ClassVar[tuple[Kernel, ...]] = ()

    def spec(self, node: Node) -> object:
        """Return the specification of a layer, from which kernels take types, constants, and derived values.

        By default, it is the node itself. Operators with more complex layers return an object of a class for such
        layers, such as ConvSpec.
        """
        return node


def own_kernels(op: Operator) -> tuple[Kernel, ...]:
    """Return mcugen's own kernels of an operator; an empty tuple for an operator without the trait HasKernels."""
    return op.kernels if isinstance(op, HasKernels) else ()


def spec_of(node: Node) -> Any:
    """Return the specification of a node for kernels (HasKernels.spec).

    The same object is returned until the node's operator, constants or types change.
    """
    if not isinstance(node.op, HasKernels):
        return node
    kept, made_of = _SPECS.get(node), _origins(node)
    if kept is not None and len(kept[0]) == len(made_of) and all(map(is_, kept[0], made_of)):
        return kept[1]
    spec = node.op.spec(node)
    if spec is not node:
        _SPECS[node] = made_of, spec
    return spec


def _origins(node: Node) -> list[object]:
    """Return the objects that a specification follows from."""
    origins: list[object] = [node.op, *(v.type for v in node.outputs)]
    for value in node.inputs:
        origins += (None, None) if value is None else (value.type, value.data)
    for body in node.op.bodies:  # Passes change bodies in place.
        origins += [origin for inner in body.nodes for origin in _origins(inner)]
    return origins
