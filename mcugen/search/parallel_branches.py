# SPDX-License-Identifier: Apache-2.0
"""Branches of a network that two cores can compute at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mcugen.hir.graph import Graph, Node, Value


@dataclass(frozen=True)
class BranchPair:
    """Two sets of nodes that two cores can compute at once: no node of one set needs a result of the other set.

    The nodes of both sets are in the graph's order.
    """

    first: tuple[Node, ...]
    """Nodes for the first core."""
    second: tuple[Node, ...]
    """Nodes for the second core."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes of both sets, those of the first set first."""
        return (*self.first, *self.second)


def branch_pairs(graph: Graph, time: Callable[[Node], float], pace: float) -> Iterator[BranchPair]:
    """Yield pairs of disjoint branches of the graph that two cores can compute at once in about equal time.

    Each side of a pair is a set of nodes. The branches of a pair end at the inputs of one node, or at the outputs of
    the graph.

    Args:
        graph: The graph to search.
        time: Returns the time of a node on the first core, in instructions.
        pace: Time of an instruction of the second core, relative to one of the first core.
    """
    needs = _needs(graph)
    meetings = [[v for v in node.inputs if v is not None and v.producer] for node in graph.nodes]
    for values in (*meetings, [v for v in graph.outputs if v.producer]):
        branches = _branches(graph, list(dict.fromkeys(values)), needs) if len(values) > 1 else []
        if len(branches) > 1:
            yield _even(graph, branches, time, pace)


def _needs(graph: Graph) -> dict[Node, frozenset[Node]]:
    """Return each node's ancestors, the node itself included."""
    needs: dict[Node, frozenset[Node]] = {}
    for node in graph.nodes:
        needed_by_inputs = [needs[v.producer] for v in node.inputs if v is not None and v.producer]
        needs[node] = frozenset({node}).union(*needed_by_inputs)
    return needs


def _branches(graph: Graph, values: Sequence[Value], needs: dict[Node, frozenset[Node]]) -> list[list[Node]]:
    """Return for each value the nodes that only this value needs, without values whose nodes have bodies."""
    branches = []
    for value in values:
        needed_elsewhere = frozenset[Node]().union(
            *(needs[v.producer] for v in values if v is not value and v.producer)
        )
        branch = needs[value.producer] - needed_elsewhere if value.producer else frozenset()
        if branch and not any(node.op.bodies for node in branch):
            branches.append([node for node in graph.nodes if node in branch])
    return branches


def _even(graph: Graph, branches: Sequence[list[Node]], time: Callable[[Node], float], pace: float) -> BranchPair:
    """Distribute branches over both cores: the longest first, each to the core that finishes it sooner."""
    parts, takes = (list[Node](), list[Node]()), [0.0, 0.0]
    for branch in sorted(branches, key=lambda nodes: -sum(map(time, nodes))):
        branch_time = sum(map(time, branch))
        core = int(takes[0] + branch_time > takes[1] + pace * branch_time)
        parts[core].extend(branch)
        takes[core] += branch_time * (pace if core else 1.0)
    first, second = (tuple(node for node in graph.nodes if node in part) for part in parts)
    return BranchPair(first, second)
