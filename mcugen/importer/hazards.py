# SPDX-License-Identifier: Apache-2.0
"""What ONNX's own C++ code does not survive: it is refused before that code sees it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import onnx

from mcugen.errors import DoesNotFitError, ModelError

MAX_RANK = 64
MAX_INLINED = 100_000
"""Nodes of a model with the bodies of its functions in the place of their calls."""


def check_hazards(model: onnx.ModelProto, place: str) -> None:
    """ModelError or DoesNotFitError for a model that would crash or hang ONNX's shape inference or its inliner."""
    opsets = {entry.domain: int(entry.version) for entry in model.opset_import}
    for function in model.functions:
        own = opsets | {entry.domain: int(entry.version) for entry in function.opset_import}
        _check_nodes(function.node, own, place)
    _check_nodes(model.graph.node, opsets, place)
    if model.functions:
        _check_calls(model, place)


def hazard(node: onnx.NodeProto, opset: int) -> str:
    """What is wrong with a node; "" for one that is safe."""
    if node.op_type == "Einsum":
        terms = [term for a in node.attribute for term in re.split(rb",|->", a.s)]
        if any(term.count(b"...") > 1 for term in terms):  # it would never return
            return "a term can have one ellipsis"
    named = [a for a in node.attribute if a.name == "batch_dims" or a.name.endswith(("axis", "axes"))]
    axes = [axis for a in named for axis in (a.i, *a.ints)]
    if any(abs(axis) > MAX_RANK for axis in axes):  # it is cut to 32 bits
        return f"axes must be at most {MAX_RANK}"
    parts = [a.i for a in node.attribute if a.name == "num_outputs" and node.op_type == "Split"]
    if parts and parts[0] != len(node.output):
        return "num_outputs must be the number of outputs"
    return _against_schema(node, opset)


def _against_schema(node: onnx.NodeProto, opset: int) -> str:
    """What shape inference takes for granted; the checker would look too late."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    if not onnx.defs.has(node.op_type, opset, domain):
        return ""
    schema = onnx.defs.get_schema(node.op_type, opset, domain)
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    if any(f.option == single and not name for f, name in zip(schema.inputs, node.input, strict=False)):
        return "every input that is not optional must be given"
    given = {a.name: a.type for a in node.attribute}
    absent = [name for name, a in schema.attributes.items() if a.required and name not in given]
    if absent:
        return f"attribute {absent[0]} must be given"
    wrong = [n for n, type_ in given.items() if n in schema.attributes and type_ != schema.attributes[n].type.value]
    return f"attribute {wrong[0]} must have its type" if wrong else ""


def _check_nodes(nodes: Sequence[onnx.NodeProto], opsets: Mapping[str, int], place: str) -> None:
    for node in nodes:
        for attribute in node.attribute:
            for graph in _graphs(attribute):
                _check_nodes(graph.node, opsets, place)
        standard = opsets.get("", opsets.get("ai.onnx", onnx.defs.onnx_opset_version()))
        reason = hazard(node, standard if node.domain in ("", "ai.onnx") else opsets.get(node.domain, 1))
        if reason:
            rule = f"{place}: {node.op_type} '{node.name}': {reason}"
            raise ModelError(rule, "others", "repair the model")


def _graphs(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def _check_calls(model: onnx.ModelProto, place: str) -> None:
    """Functions that call functions twice, and so on, grow without bounds when they are inlined."""
    bodies = {(f.domain, f.name): f for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(nodes: Sequence[onnx.NodeProto], within: tuple[tuple[str, str], ...]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in within or len(within) > MAX_RANK:
                raise ModelError(f"{place}: functions must not call themselves", node.op_type, "repair the model")
            if key in bodies and key not in sizes:
                sizes[key] = size(bodies[key].node, (*within, key))
            total += sizes.get(key, 1) + sum(size(g.node, within) for a in node.attribute for g in _graphs(a))
        return total

    count = size(model.graph.node, ())
    if count > MAX_INLINED:
        rule = f"{place}: functions must have at most {MAX_INLINED:,} nodes where they are called"
        raise DoesNotFitError(rule, f"{count:,}", "simplify the model")
