# SPDX-License-Identifier: Apache-2.0
"""Checks of nodes that would crash or hang ONNX's own C++ code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import onnx

from mcugen.core.errors import DoesNotFitError, ModelError, shortened
from mcugen.core.limits import (
    MAX_CONNECTIONS,
    MAX_MODEL_PORTS,
    MAX_NAME_CHARACTERS,
    MAX_NODE_PORTS,
    MAX_NODES,
    MAX_RANK,
    MAX_READERS,
)
from mcugen.frontend.onnx.functions import short_domain
from mcugen.frontend.onnx.nodes import every_node, graphs_of


def check_hazards(model: onnx.ModelProto, place: str) -> None:
    """Check that a model does not crash or hang ONNX's shape inference or its inliner.

    Args:
        model: The model.
        place: Name of the model for messages.

    Raises:
        ModelError: A node is invalid in a way that crashes ONNX's code.
        DoesNotFitError: The model exceeds a limit of `core.limits`.
    """
    _check_budget(model, place)
    for part in (model, *model.functions):
        for entry in part.opset_import:
            if not 0 <= entry.version < 1 << 31:  # ONNX's own code stores versions in 32 bits.
                version_text = f"version {entry.version} of domain '{entry.domain}'"
                raise ModelError(f"{place}: opsets must have a version", version_text, "repair the model")
    opsets = {entry.domain: int(entry.version) for entry in model.opset_import}
    for function in model.functions:
        own = opsets | {entry.domain: int(entry.version) for entry in function.opset_import}
        _check_nodes(function.node, own, place)
    _check_nodes(model.graph.node, opsets, place)
    if model.functions:
        _check_calls(model, place)


def hazard(node: onnx.NodeProto, opset: int) -> str:
    """Return what would make a node crash or hang ONNX's code, as text; "" for a safe node."""
    if node.op_type == "Einsum":
        terms = [term for a in node.attribute for term in re.split(rb",|->", a.s)]
        if any(term.count(b"...") > 1 for term in terms):  # ONNX's code would never return.
            return "a term can have one ellipsis"
    named = [a for a in node.attribute if a.name == "batch_dims" or a.name.endswith(("axis", "axes"))]
    axes = [axis for a in named for axis in (a.i, *a.ints)]
    if any(abs(axis) > MAX_RANK for axis in axes):  # ONNX's code truncates axes to 32 bits.
        return f"axes must be at most {MAX_RANK}"
    parts = [a.i for a in node.attribute if a.name == "num_outputs" and node.op_type == "Split"]
    if parts and parts[0] != len(node.output):
        return "num_outputs must be the number of outputs"
    if node.op_type in ("DictVectorizer", "CastMap"):  # Without the type of a map, ONNX's code reads invalid memory.
        return "maps must be tensors"
    return _against_schema(node, opset)


def _against_schema(node: onnx.NodeProto, opset: int) -> str:
    """Return the requirement of shape inference that a node violates, or ""; ONNX's checker would run too late."""
    domain = short_domain(node.domain)
    if not onnx.defs.has(node.op_type, opset, domain):
        return ""
    schema = onnx.defs.get_schema(node.op_type, opset, domain)
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    if any(f.option == single and not name for f, name in zip(schema.inputs, node.input, strict=False)):
        return "every input that is not optional must be given"
    attribute_types = {a.name: a.type for a in node.attribute}
    absent = [name for name, a in schema.attributes.items() if a.required and name not in attribute_types]
    if absent:
        return f"attribute {absent[0]} must be given"
    wrong = [
        n for n, type_ in attribute_types.items() if n in schema.attributes and type_ != schema.attributes[n].type.value
    ]
    return f"attribute {wrong[0]} must have its type" if wrong else ""


def _check_nodes(nodes: Sequence[onnx.NodeProto], opsets: Mapping[str, int], place: str) -> None:
    for node in nodes:
        for attribute in node.attribute:
            for graph in graphs_of(attribute):
                _check_nodes(graph.node, opsets, place)
        standard = opsets.get("", opsets.get("ai.onnx", onnx.defs.onnx_opset_version()))
        reason = hazard(node, standard if node.domain in ("", "ai.onnx") else opsets.get(node.domain, 1))
        if reason:
            rule = f"{place}: {node.op_type} '{node.name}': {reason}"
            raise ModelError(rule, "others", "repair the model")


def _check_budget(model: onnx.ModelProto, place: str) -> None:
    """Raise DoesNotFitError if a graph exceeds one of the limits, which no real model reaches."""
    graph = model.graph
    nodes = [n for body in (graph, *model.functions) for n in every_node(body.node)]
    readers = Counter(name for node in nodes for name in node.input if name)
    links = sum(len(node.input) + len(node.output) for node in nodes) + len(graph.initializer)
    widest = max(((max(len(n.input), len(n.output)), n.op_type) for n in nodes), default=(0, ""))
    ports = (graph.input, graph.output, graph.initializer)
    names = [v.name for values in ports for v in values] + [n for node in nodes for n in (node.name, *node.output)]
    longest = max(names, key=len, default="")
    initializers = {t.name for t in graph.initializer}
    inputs = sum(v.name not in initializers for v in graph.input)
    for what, limit, count, where in (
        ("nodes", MAX_NODES, len(nodes), ""),
        ("inputs and outputs of nodes", MAX_CONNECTIONS, links, ""),
        ("inputs", MAX_MODEL_PORTS, inputs, ""),
        ("outputs", MAX_MODEL_PORTS, len(graph.output), ""),
        ("inputs or outputs of a node", MAX_NODE_PORTS, *widest),
        ("readers of a tensor", MAX_READERS, *max(((n, name) for name, n in readers.items()), default=(0, ""))),
        ("characters in a name", MAX_NAME_CHARACTERS, len(longest), longest),
    ):
        if count > limit:
            named = f" ('{shortened(where, 100)}')" if where else ""
            raise DoesNotFitError(
                f"{place}: there must be at most {limit:,} {what}", f"{count:,}{named}", "simplify it"
            )


def _check_calls(model: onnx.ModelProto, place: str) -> None:
    """Raise an error if inlining would make the model too large: nested calls can grow it exponentially."""
    bodies = {(f.domain, f.name): f for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(nodes: Sequence[onnx.NodeProto], callers: tuple[tuple[str, str], ...]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in callers or len(callers) > MAX_RANK:
                raise ModelError(f"{place}: functions must not call themselves", node.op_type, "repair the model")
            if key in bodies and key not in sizes:
                sizes[key] = size(bodies[key].node, (*callers, key))
            total += sizes.get(key, 1) + sum(size(g.node, callers) for a in node.attribute for g in graphs_of(a))
        return total

    count = size(model.graph.node, ())
    if count > MAX_NODES:
        rule = f"{place}: functions must have at most {MAX_NODES:,} nodes where they are called"
        raise DoesNotFitError(rule, f"{count:,}", "simplify the model")
