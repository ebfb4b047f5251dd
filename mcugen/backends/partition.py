# SPDX-License-Identifier: Apache-2.0
"""Partitioning of a graph between the CPU and an accelerator."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mcugen.hir.graph import Graph, Node


def segments_of(graph: Graph, offloaded: Collection[Node]) -> list[list[Node]]:
    """Return the segments that an accelerator computes, each in one invocation, in order of execution.

    Nodes run in alternating stages: all nodes of the accelerator whose inputs are known, then all such nodes of the
    CPU, and so on. A segment is a stage of the accelerator, so that no path from one of its nodes to another leaves it.

    Args:
        graph: The graph.
        offloaded: The nodes that the accelerator computes.
    """
    waiting, computed = list(graph.nodes), set[Node]()
    segments, is_offloaded = list[list[Node]](), True
    while waiting:
        stage, waiting = _stage(waiting, computed, offloaded, is_offloaded)
        if stage and is_offloaded:
            segments.append(stage)
        is_offloaded = not is_offloaded
    return segments


def _stage(
    waiting: Sequence[Node], computed: set[Node], offloaded: Collection[Node], is_offloaded: bool
) -> tuple[list[Node], list[Node]]:
    """Return the nodes of a stage, which are added to `computed`, and the nodes that still wait."""
    stage, later = list[Node](), list[Node]()
    for node in waiting:  # The order is topological: one pass finds all nodes of the stage.
        producers = (value.producer for value in node.inputs if value is not None)
        is_ready = all(producer is None or producer in computed for producer in producers)
        if is_ready and (node in offloaded) == is_offloaded:
            stage.append(node)
            computed.add(node)
        else:
            later.append(node)
    return stage, later


def connected_parts(nodes: Sequence[Node]) -> list[list[Node]]:
    """Return the connected parts of some nodes, each in the given order.

    Two nodes are connected if one of them reads a result of the other.
    """
    part_of = {node: index for index, node in enumerate(nodes)}
    for node in nodes:
        for value in node.inputs:
            producer = value.producer if value is not None else None
            if producer in part_of:
                old, new = sorted((part_of[producer], part_of[node]), reverse=True)
                part_of = {n: new if part == old else part for n, part in part_of.items()}
    parts = dict[int, list[Node]]()
    for node in nodes:
        parts.setdefault(part_of[node], []).append(node)
    return list(parts.values())
