# SPDX-License-Identifier: Apache-2.0
"""What gradients need of a run is computed once more, in place of keeping it all the while.

Chen et al., "Training deep nets with sublinear memory cost", 2016. Which results to give up is decided by what they
would take to compute again for each byte; how many, by plans of memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcugen.hir.graph import Graph, Node, Value
from mcugen.lir.lesson import phases


def recomputing(graph: Graph) -> Iterator[Graph]:
    """Graphs that keep less and less for the gradients, and compute more and more; none if all is needed."""
    order = _cheapest_first(graph)
    count = 1
    while count <= len(order):
        yield _without(graph, order[:count])
        count = 2 * count if count == len(order) or 2 * count <= len(order) else len(order)


@dataclass(frozen=True)
class _Kept:
    """Results of a run, or of the loss, that learning reads; and what reads them then."""

    values: list[Value]
    learning: frozenset[Node]

    @classmethod
    def of(cls, graph: Graph) -> _Kept:
        """In the order in which they are computed."""
        assert graph.lesson is not None
        runs, judges, learns = phases(graph, graph.lesson)
        learning = frozenset(learns)
        made = [value for node in (*runs, *judges) for value in node.outputs]
        return cls([value for value in made if learning.intersection(value.users)], learning)


def _cheapest_first(graph: Graph) -> list[Value]:
    """What could be given up, by the work that a byte of it costs if all else is kept."""
    kept = _Kept.of(graph)
    anchors, prices = set(kept.values), dict[Value, float]()
    for value in kept.values:
        chain = _chain(value, anchors - {value})
        if chain is not None and not graph.is_output(value):
            prices[value] = sum(_work(node) for node in chain) / value.type.nbytes
    return sorted(prices, key=lambda value: prices[value])


def _work(node: Node) -> int:
    """Products, and elements that are written."""
    return node.op.macs(node.sig) + sum(output.type.count for output in node.outputs)


def _chain(value: Value, anchors: set[Value]) -> list[Node] | None:
    """The nodes between what is there and a value, the last first; None if one of them is no plain operator."""
    found, todo = dict[Node, None](), [value]
    while todo:
        node = todo.pop().producer
        if node is None or node in found:
            continue
        if node.op.bodies:
            return None
        found[node] = None
        todo += [v for v in node.inputs if v is not None and v not in anchors]
    return list(found)


def _without(graph: Graph, given_up: list[Value]) -> Graph:
    """A graph in which learning computes these anew, from what is kept."""
    other = graph.copy()
    same = dict(zip(graph.values(), other.values(), strict=True))
    kept = _Kept.of(other)
    gone = {same[value] for value in given_up}
    anchors, again = set(kept.values) - gone, dict[Value, Value]()
    for value in (v for v in kept.values if v in gone):
        chain = _chain(value, anchors)
        if chain is None:
            continue
        for node in (n for n in other.nodes if n in set(chain) and n.outputs[0] not in again):
            inputs = [again.get(v, v) if v is not None else None for v in node.inputs]
            names, types = [f"{v.name}.again" for v in node.outputs], [v.type for v in node.outputs]
            made = other.add(node.op, inputs, node.origin, names=names, types=types)
            again.update(zip(node.outputs, made.outputs, strict=True))
        for user, places in value.indices().items():
            if user in kept.learning:
                user.read_at(places, again[value])
    other.sort()
    return other
