# SPDX-License-Identifier: Apache-2.0
"""Topological sorting of nodes: ONNX requires the order, graph editors violate it, and ONNX Runtime sorts."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import onnx

from mcugen.frontend.onnx.nodes import graphs_of


def sort_nodes(model: onnx.ModelProto) -> None:
    """Sort nodes topologically, keeping each as close to its place in the file as possible.

    A graph with a cycle is left as it is; ONNX's checker reports it.
    """
    todo = [model.graph]
    while todo:
        graph = todo.pop()
        order = _order(graph.node)
        if order != sorted(order):
            nodes = [graph.node[i] for i in order]
            del graph.node[:]
            graph.node.extend(nodes)
        todo += [body for node in graph.node for a in node.attribute for body in graphs_of(a)]


def _order(nodes: Sequence[onnx.NodeProto]) -> list[int]:
    """Return the indices of nodes in topological order (Kahn 1962), the lowest ready index first.

    If there is a cycle, return the indices in their original order.
    """
    producer = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    needed = [{producer[name] for name in _reads(node) if name in producer} for node in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for i, needs in enumerate(needed):
        for k in needs:
            readers[k].append(i)
    missing = [len(needs) for needs in needed]
    ready = [i for i, count in enumerate(missing) if not count]
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        for reader in readers[order[-1]]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, reader)
    return order if len(order) == len(nodes) else [*range(len(nodes))]


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, and the outer names that its bodies read."""
    yield from node.input
    for body in (body for a in node.attribute for body in graphs_of(a)):
        own_names = {v.name for v in (*body.input, *body.initializer)} | {
            n for inner in body.node for n in inner.output
        }
        read = [name for inner in body.node for name in _reads(inner)]
        yield from (name for name in (*read, *(v.name for v in body.output)) if name not in own_names)
