# SPDX-License-Identifier: Apache-2.0
"""Traversal and renaming of ONNX nodes and the graphs in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx


def every_node(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes, each followed by the nodes of its subgraphs, recursively."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in graphs_of(attribute):
                yield from every_node(graph.node)


def graphs_of(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that an attribute holds."""
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def bodies_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the subgraphs of a node (of If, Loop or Scan), and recursively those of the nodes in them."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
            for inner in attribute.g.node:
                yield from bodies_of(inner)


def tensors_read(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names of the tensors that a node reads, including those that its subgraphs read from outside."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            body = attribute.g
            own = {n for inner in body.node for n in inner.output} | {v.name for v in body.input}
            own |= {t.name for t in body.initializer}
            inside = (name for inner in body.node for name in tensors_read(inner))
            yield from (name for name in (*inside, *(o.name for o in body.output)) if name not in own)


def rename_inputs(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Rename the tensors that a node and its subgraphs read, in place.

    In ONNX an inner name never hides an outer one, so that names may be replaced without regard to scopes.

    Args:
        node: The node.
        names: New name by old name; other tensors keep their names.
    """
    for index, name in enumerate(node.input):
        node.input[index] = names.get(name, name)
    for attribute in node.attribute:
        for inner in attribute.g.node:
            rename_inputs(inner, names)


def rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Rename the tensors that a node reads and writes, in place.

    Args:
        node: The node.
        names: New name by old name; other tensors keep their names.
    """
    rename_inputs(node, names)
    for index, name in enumerate(node.output):
        node.output[index] = names.get(name, name)
