# SPDX-License-Identifier: Apache-2.0
"""Verifier of the high-level IR. The pipeline runs it after every pass."""

from __future__ import annotations

import math
from itertools import chain
from typing import NoReturn

from mcugen.core.errors import ModelError, VerificationError
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.types import Layout, TensorType

NodeState = tuple[object, ...]
"""The objects on which the verification of a node depends: operator, operands, types and constants.

The node needs no new verification as long as all of these are the same objects.
"""


class Verifier:
    """A checker of HIR invariants for one graph, which passes change between the checks.

    A node's operator, operands, types and constants are immutable objects that can only be replaced. A node is verified
    again only if one of them was replaced since the last check. The verifier does not rely on passes to report their
    changes.
    """

    def __init__(self) -> None:
        self._sound: dict[Node, NodeState] = {}
        self._ends: NodeState = ()
        self._bodies: dict[Graph, Verifier] = {}

    def check(self, graph: Graph) -> None:
        """Verify all invariants of the HIR.

        Raises:
            VerificationError: An invariant does not hold; the message names the node.
        """
        facts_of, ends = {node: _facts(node) for node in graph.nodes}, _ends(graph)
        fresh = [node for node, facts in facts_of.items() if not _same(self._sound.get(node), facts)]
        order_kept = len(facts_of) == len(self._sound) and all(
            a is b for a, b in zip(facts_of, self._sound, strict=True)
        )
        if not order_kept or fresh or not _same(self._ends, ends):
            _check_structure(graph)
        for node in fresh:
            _check_constants(node)
            _check_types(node)
        bodies = [body for node in facts_of for body in node.op.bodies]
        self._bodies = {body: self._bodies.get(body, Verifier()) for body in bodies}
        for body, verifier in self._bodies.items():
            verifier.check(body)
        self._sound, self._ends = facts_of, ends


def verify_graph(graph: Graph) -> None:
    """Verify all invariants of the HIR once.

    Raises:
        VerificationError: An invariant does not hold; the message names the node.
    """
    Verifier().check(graph)


def _facts(node: Node) -> NodeState:
    """Return all objects that the checks of a node read."""
    values = [v for v in chain(node.inputs, node.outputs) if v is not None]
    named = chain.from_iterable((v.name, v.type, v.data, len(v.uses)) for v in values)
    return (node.op, node.inputs, node.outputs, *named)


def _ends(graph: Graph) -> NodeState:
    """Return the graph's inputs and outputs with names, types and numbers of uses."""
    return tuple(chain.from_iterable((v, v.name, v.type, len(v.uses)) for v in chain(graph.inputs, graph.outputs)))


def _same(before: NodeState | None, now: NodeState) -> bool:
    """Return whether both tuples hold identical objects. Arrays and types are compared by identity."""
    return (
        before is not None
        and len(before) == len(now)
        and all(a is b or (type(a) in (int, str) and a == b) for a, b in zip(before, now, strict=True))
    )


def _check_structure(graph: Graph) -> None:
    """Check that values are computed before they are used, know their uses, and have unique names."""
    known: set[Value] = set(graph.inputs)
    for node in graph.nodes:
        for index, value in enumerate(node.inputs):
            if value is not None:
                if (node, index) not in value.uses:
                    _fail(node.place, f"input %{value.name} does not know of its use")
                if value not in known and not value.is_constant:
                    _fail(node.place, f"input %{value.name} is used before it is computed")
        known.update(node.outputs)
    for value in graph.outputs:
        if value not in known and not value.is_constant:
            _fail("graph", f"output %{value.name} is computed by no node")
    live, names = set(graph.nodes), set[str]()
    for value in graph.values():
        if not all(user in live for user, _ in value.uses):
            _fail("graph", f"%{value.name} is used by a removed node")
        if value.name in names:
            _fail("graph", "two values share a name")
        names.add(value.name)


def _check_constants(node: Node) -> None:
    for value in node.inputs:
        if value is None or value.data is None:
            continue
        if value.data.shape != value.type.shape or value.data.dtype != value.type.dtype.numpy:
            _fail(node.place, f"constant %{value.name} holds {value.data.dtype}{value.data.shape}")


def _check_types(node: Node) -> None:
    for value, expected in zip(node.outputs, _inferred(node), strict=True):
        actual = value.type
        if actual.shape != expected.shape:
            _fail(node.place, f"%{value.name} has shape {actual.shape}, the operator gives {expected.shape}")
        layouts = {actual.layout, expected.layout} - {Layout.NONE}
        if len(layouts) > 1 and math.prod(actual.shape[1:]) != 1:  # one element an image is of either layout
            _fail(node.place, f"%{value.name} is {actual.layout}, the operator gives {expected.layout}")
        quant = actual.quant
        if quant is not None:
            channels = 1 if quant.axis is None else actual.shape[quant.axis]
            if len(quant.scale) != channels:
                _fail(node.place, f"%{value.name} has {len(quant.scale)} scales")
            if not all(s > 0 for s in quant.scale):
                _fail(node.place, f"%{value.name} has a scale that is not positive")
        elif expected.quant is None and actual.dtype != expected.dtype:
            _fail(node.place, f"%{value.name} is {actual.dtype.value}, the operator gives {expected.dtype.value}")
    if node.op.moves_data and node.outputs[0].type.quant is not None:
        quants = {v.type.quant for v in node.inputs[:1] if v is not None}
        if quants != {node.outputs[0].type.quant}:
            _fail(node.place, "a data movement changes quantization parameters")


def _inferred(node: Node) -> tuple[TensorType, ...]:
    try:
        return node.op.infer(*node.sig.inputs)
    except ModelError as error:  # the model is not to blame any more
        _fail(node.place, f"{error.rule}, {error.found}")


def _fail(place: str, message: str) -> NoReturn:
    raise VerificationError("the graph must be well formed", f"{place}: {message}", "report this as a bug of mcugen")
