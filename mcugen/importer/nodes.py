# SPDX-License-Identifier: Apache-2.0
"""ONNX nodes and the graphs in them: which there are, and what their tensors are called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx


def every_node(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes, and those of their graphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from every_node(attribute.g.node)


def bodies_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the bodies of a node, and those of nodes in them, at every depth."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
            for inner in attribute.g.node:
                yield from bodies_of(inner)


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """The tensors that a node reads, its graphs' from outside among them."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            body = attribute.g
            own = {n for inner in body.node for n in inner.output} | {v.name for v in body.input}
            own |= {t.name for t in body.initializer}
            inside = (name for inner in body.node for name in reads(inner))
            yield from (name for name in (*inside, *(o.name for o in body.output)) if name not in own)


def rename_inputs(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Makes a node, its graphs included, read other tensors (ONNX lets no name be hidden by an inner one)."""
    for index, name in enumerate(node.input):
        node.input[index] = names.get(name, name)
    for attribute in node.attribute:
        for inner in attribute.g.node:
            rename_inputs(inner, names)


def rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Calls tensors otherwise, where they are read and where they are written."""
    rename_inputs(node, names)
    for index, name in enumerate(node.output):
        node.output[index] = names.get(name, name)
