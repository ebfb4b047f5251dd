# SPDX-License-Identifier: Apache-2.0
"""Which kernel computes each node, where several fit."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from mcugen.errors import UsageError
from mcugen.hir.graph import Graph, Node
from mcugen.lir.builder import Kernel


def nodes_of(graph: Graph) -> Iterator[Node]:
    """All nodes, those of bodies included."""
    for node in graph.nodes:
        for body in node.op.bodies:
            yield from nodes_of(body)
        yield node


def kernels_of(node: Node, features: frozenset[str]) -> list[Kernel]:
    """The kernels that fit a node on a CPU with `features`, the preferred ones first."""
    return [k for k in getattr(node.op, "kernels", ()) if k.fits(node, features)]


def choose_kernels(graph: Graph, features: frozenset[str], wanted: Collection[str] = ()) -> dict[Node, Kernel]:
    """A kernel for each node that has several; of the names `wanted` wherever one fits.

    UsageError for a wanted kernel that fits nowhere.
    """
    fitting = {node: found for node in nodes_of(graph) if (found := kernels_of(node, features))}
    missing = set(wanted) - {k.name for found in fitting.values() for k in found}
    if missing:
        known = sorted({k.name for found in fitting.values() for k in found})
        raise UsageError(
            "a wanted kernel must fit some layer", ", ".join(sorted(missing)), f"one of: {', '.join(known)}"
        )
    return {node: next((k for k in found if k.name in wanted), found[0]) for node, found in fitting.items()}
