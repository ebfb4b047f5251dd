# SPDX-License-Identifier: Apache-2.0
"""Text form of the high-level IR: one line a node, stable, made to be read and compared."""

from __future__ import annotations

import json

from mcugen.hir.graph import Graph, Node, Value


def _name(value: Value | None) -> str:
    if value is None:
        return "-"
    if value.data is not None and value.type.count == 1 and value.type.quant is None:
        return str(value.data.reshape(-1)[0])
    return "%" + quoted(value.name)


def quoted(name: str) -> str:
    """A name from a model as it stands in dumps: as it is if plain, else as a JSON string."""
    plain = name.isascii() and name.replace(".", "").replace("_", "").replace("/", "").isalnum()
    return name if plain else json.dumps(name)


def _print_node(node: Node, indent: str) -> str:
    results = ", ".join(_name(v) for v in node.outputs)
    types = ", ".join(str(v.type) for v in node.outputs)
    attributes = node.op.attributes()
    operands = ", ".join(_name(v) for v in node.inputs)
    origin = f"  # {', '.join(map(quoted, node.origin))}" if node.origin else ""
    line = f"  {results} = {node.op.name}({operands}){' {' + attributes + '}' if attributes else ''} : {types}{origin}"
    bodies = (print_graph(body, f"{indent}    ").rstrip("\n") for body in node.op.bodies)
    return "\n".join([indent + line, *bodies])


def print_graph(graph: Graph, indent: str = "") -> str:
    """The whole graph: inputs, constants with their types, nodes (their bodies below them), outputs."""
    constants = [v for v in graph.values() if v.is_constant and (v.type.count > 1 or v.type.quant)]
    lines = [f"{indent}graph {quoted(graph.name)} {{"]
    lines += [f"{indent}  input {_name(v)} : {v.type}" for v in graph.inputs]
    lines += [f"{indent}  const {_name(v)} : {v.type}" for v in constants]
    lines += [_print_node(node, indent) for node in graph.nodes]
    outputs = zip(graph.output_names, graph.outputs, strict=True)
    lines += [f"{indent}  output {quoted(name)} = {_name(value)}" for name, value in outputs]
    return "\n".join([*lines, f"{indent}}}", ""])
