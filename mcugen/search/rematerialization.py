# SPDX-License-Identifier: Apache-2.0
"""Rematerialization: results of the forward run that gradients need are recomputed instead of kept.

Chen et al., "Training deep nets with sublinear memory cost", 2016. Results are given up in the order of the work to
recompute them, per byte. How many are given up is decided by planning memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcugen.hir.graph import Graph, Node, Value
from mcugen.lir.lesson import phases


def rematerialized_graphs(graph: Graph) -> Iterator[Graph]:
    """Yield copies of a training graph that recompute results for the gradients, instead of keeping them in memory.

    The copies recompute 1, 2, 4, … and at last all possible results; those that take the least work per saved byte come
    first. Nothing is yielded if no result can be recomputed.
    """
    order = _cheapest_first(graph)
    count = 1
    while count <= len(order):
        yield _without(graph, order[:count])
        count = 2 * count if count == len(order) or 2 * count <= len(order) else len(order)


@dataclass(frozen=True)
class _Kept:
    """Results of the forward run or of the loss that the backward part reads, and the nodes of that part."""

    values: list[Value]
    learning: frozenset[Node]

    @classmethod
    def of(cls, graph: Graph) -> _Kept:
        """Return the kept values of a graph in the order in which they are computed."""
        assert graph.lesson is not None
        runs, judges, learns = phases(graph, graph.lesson)
        learning = frozenset(learns)
        computed = [value for node in (*runs, *judges) for value in node.outputs]
        return cls([value for value in computed if learning.intersection(value.users)], learning)


def _cheapest_first(graph: Graph) -> list[Value]:
    """Return the values that could be given up, sorted by the work to recompute a byte if all others are kept."""
    kept = _Kept.of(graph)
    anchors, prices = set(kept.values), dict[Value, float]()
    for value in kept.values:
        chain = _chain(value, anchors - {value})
        if chain is not None and not graph.is_output(value):
            prices[value] = sum(_work(node) for node in chain) / value.type.nbytes
    return sorted(prices, key=lambda value: prices[value])


def _work(node: Node) -> int:
    """Return the multiply-accumulates and written elements of a node."""
    return node.op.macs(node.sig) + sum(output.type.count for output in node.outputs)


def _chain(value: Value, anchors: set[Value]) -> list[Node] | None:
    """Return the nodes that recompute a value from the anchors, the last first; None if one of them has bodies."""
    nodes, todo = dict[Node, None](), [value]
    while todo:
        node = todo.pop().producer
        if node is None or node in nodes:
            continue
        if node.op.bodies:
            return None
        nodes[node] = None
        todo += [v for v in node.inputs if v is not None and v not in anchors]
    return list(nodes)


def _without(graph: Graph, given_up: list[Value]) -> Graph:
    """Return a copy of the graph in which the backward part recomputes the given values from those that are kept."""
    copy = graph.copy()
    copy_of = dict(zip(graph.values(), copy.values(), strict=True))
    kept = _Kept.of(copy)
    dropped = {copy_of[value] for value in given_up}
    anchors, replacements = set(kept.values) - dropped, dict[Value, Value]()
    for value in (v for v in kept.values if v in dropped):
        chain = _chain(value, anchors)
        if chain is None:
            continue
        for node in (n for n in copy.nodes if n in set(chain) and n.outputs[0] not in replacements):
            inputs = [replacements.get(v, v) if v is not None else None for v in node.inputs]
            names, types = [f"{v.name}.again" for v in node.outputs], [v.type for v in node.outputs]
            recomputed = copy.add(node.op, inputs, node.origin, names=names, types=types)
            replacements.update(zip(node.outputs, recomputed.outputs, strict=True))
        for user, places in value.indices().items():
            if user in kept.learning:
                user.read_at(places, replacements[value])
    copy.sort()
    return copy
