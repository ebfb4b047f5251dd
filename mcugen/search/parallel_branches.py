# SPDX-License-Identifier: Apache-2.0
"""Which branches of a network two cores can compute side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mcugen.hir.graph import Graph, Node, Value


@dataclass(frozen=True)
class Pair:
    """Nodes of which neither part needs the other, in the graph's order."""

    first: tuple[Node, ...]
    second: tuple[Node, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Of both."""
        return (*self.first, *self.second)


def pairs(graph: Graph, time: Callable[[Node], float], pace: float) -> Iterator[Pair]:
    """Where branches meet, or end as outputs: those that only one of them needs, in two parts that take as long.

    `pace` is how many times as long the second core takes.
    """
    needs = _needs(graph)
    meetings = [[v for v in node.inputs if v is not None and v.producer] for node in graph.nodes]
    for values in (*meetings, [v for v in graph.outputs if v.producer]):
        branches = _branches(graph, list(dict.fromkeys(values)), needs) if len(values) > 1 else []
        if len(branches) > 1:
            yield _even(graph, branches, time, pace)


def _needs(graph: Graph) -> dict[Node, frozenset[Node]]:
    """Each node, and all that it needs."""
    found: dict[Node, frozenset[Node]] = {}
    for node in graph.nodes:
        before = [found[v.producer] for v in node.inputs if v is not None and v.producer]
        found[node] = frozenset({node}).union(*before)
    return found


def _branches(graph: Graph, values: Sequence[Value], needs: dict[Node, frozenset[Node]]) -> list[list[Node]]:
    """By value what it alone needs, if that are nodes without bodies."""
    found = []
    for value in values:
        others = frozenset[Node]().union(*(needs[v.producer] for v in values if v is not value and v.producer))
        own = needs[value.producer] - others if value.producer else frozenset()
        if own and not any(node.op.bodies for node in own):
            found.append([node for node in graph.nodes if node in own])
    return found


def _even(graph: Graph, branches: Sequence[list[Node]], time: Callable[[Node], float], pace: float) -> Pair:
    """The longest first, each to the core that is done with it sooner."""
    parts, takes = (list[Node](), list[Node]()), [0.0, 0.0]
    for branch in sorted(branches, key=lambda nodes: -sum(map(time, nodes))):
        each = sum(map(time, branch))
        core = int(takes[0] + each > takes[1] + pace * each)
        parts[core].extend(branch)
        takes[core] += each * (pace if core else 1.0)
    first, second = (tuple(node for node in graph.nodes if node in part) for part in parts)
    return Pair(first, second)
