# SPDX-License-Identifier: Apache-2.0
"""Upgrade of models to a newer operator set of ONNX, by the rules in `upgrade_rules`.

ONNX's version converter is not used: it aligns operands of opset 6 wrongly, lacks adapters for a dozen operators, and
ignores functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import onnx
import onnx.shape_inference
from onnx import helper

from mcugen.core.errors import ModelError
from mcugen.frontend.onnx.foreign import shown_domain
from mcugen.frontend.onnx.functions import STANDARD_DOMAINS, first_version, restored_version
from mcugen.frontend.onnx.nodes import every_node, graphs_of
from mcugen.frontend.onnx.upgrade_rules import NodeUpgrade, Rule, rules_between
from mcugen.hir.names import Names

OLDEST_OPSET = 6
"""Oldest version of ONNX's operator set that a model may have."""
IMPORTED_OPSET = 13
"""Version of ONNX's operator set that older models are upgraded to: importer and quantizer know it and newer ones."""

_TAG = re.compile(r"mcugen\.opset(\d{1,2})\.(.*)", re.DOTALL)
"""Pattern of the domain of a marked node, from a function of another operator set: number of the set, own domain."""


def standard_opset(owner: onnx.ModelProto | onnx.FunctionProto) -> int | None:
    """Return the version of ONNX's own operator set that a model or function imports; None if it imports none."""
    return next((int(e.version) for e in owner.opset_import if e.domain in STANDARD_DOMAINS), None)


def tag_functions(model: onnx.ModelProto, opset: int, place: str) -> None:
    """Mark the nodes of functions that import another operator set than the model, in place.

    A marked node has a domain that names its own operator set. The functions can then be inlined although the sets
    differ; `upgrade` converts the nodes and removes the marks.

    Args:
        model: The model.
        opset: The operator set of the model.
        place: The file or model, for messages.

    Raises:
        ModelError: The operator set of a function is too old.
    """
    tags: dict[str, None] = {}
    for function in model.functions:
        own = standard_opset(function)
        if own is None or own == opset:
            continue
        if own < OLDEST_OPSET:
            rule = f"{place}: the opset must be {OLDEST_OPSET} or later in function '{function.name}', too"
            raise ModelError(rule, f"opset {own}", "export with another opset")
        for node in every_node(function.node):
            if shown_domain(node.domain) in STANDARD_DOMAINS:
                node.domain = f"mcugen.opset{own}.{node.domain}"
                tags[node.domain] = None
        _set_opset(function, opset)
        function.opset_import.extend(helper.make_opsetid(domain, 1) for domain in tags)
    if tags and standard_opset(model) is None:
        model.opset_import.append(helper.make_opsetid("", opset))
    model.opset_import.extend(helper.make_opsetid(domain, 1) for domain in tags)


def upgrade(model: onnx.ModelProto, opset: int, place: str) -> onnx.ModelProto:
    """Return the model in ONNX's operator set `opset`, or in the newest set of any of its nodes if that is newer.

    Bodies of control flow are upgraded too. An operator that ONNX added after the model's operator set is read as
    defined by the first set that has it: ONNX Runtime supported some operators, such as LayerNormalization, before ONNX
    did, and exporters wrote them.

    Args:
        model: A checked model without functions.
        opset: The operator set to upgrade to.
        place: The file or model, for messages.

    Raises:
        ModelError: ONNX cannot infer the types of the model.
        UnsupportedError: A node has no equivalent in a newer operator set.
    """
    own = standard_opset(model)
    if own is None:
        return model
    nodes = [*every_node(model.graph.node)]
    opsets = [_opset_of(node, own) for node in nodes if _is_standard(node)]
    restored = [restored_version(node.op_type, _opset_of(node, own)) for node in nodes if _is_standard(node)]
    target = max(opset, own, *opsets, *restored)
    if own == target and set(opsets) <= {own}:
        return model
    result = _with_types(model, place)
    names = Names(name for node in nodes for name in (*node.input, *node.output))
    _GraphUpgrade(own, target, names).run(result.graph)
    kept = [entry for entry in result.opset_import if not _TAG.fullmatch(entry.domain)]
    del result.opset_import[:]
    result.opset_import.extend(kept)
    _set_opset(result, target)
    return result


def _with_types(model: onnx.ModelProto, place: str) -> onnx.ModelProto:
    """Return the model with the types that ONNX infers."""
    try:
        return onnx.shape_inference.infer_shapes(model)
    except Exception as error:  # ONNX raises about a dozen exception types without a common base.
        reason = str(error).strip().split("\n")[0][:300]
        raise ModelError(f"{place}: the model must be valid ONNX", reason, "export the model again") from error


def _opset_of(node: onnx.NodeProto, own: int) -> int:
    """Return the operator set of a node of a model that imports `own`."""
    tag = _TAG.fullmatch(node.domain)
    return int(tag[1]) if tag else own


def _is_standard(node: onnx.NodeProto) -> bool:
    """Return whether the operator of a node, which may be marked or hidden, is in ONNX's own domain."""
    tag = _TAG.fullmatch(node.domain)
    return shown_domain(tag[2] if tag else node.domain) in STANDARD_DOMAINS


def _set_opset(owner: onnx.ModelProto | onnx.FunctionProto, opset: int) -> None:
    for entry in owner.opset_import:
        if entry.domain in STANDARD_DOMAINS:
            entry.version = opset


@dataclass
class _GraphUpgrade:
    """An in-place upgrade of the nodes of graphs, from operator set `own` to `target`."""

    own: int
    target: int
    names: Names
    types: Mapping[str, onnx.TypeProto] = field(default_factory=dict)
    """Types of the tensors of the enclosing graphs, by name."""
    constants: Mapping[str, onnx.TensorProto] = field(default_factory=dict)

    def run(self, graph: onnx.GraphProto) -> None:
        """Upgrade a graph and the bodies in it."""
        scope = self._scope(graph)
        upgraded: list[onnx.NodeProto] = []
        for node in graph.node:
            for body in (body for attribute in node.attribute for body in graphs_of(attribute)):
                scope.run(body)
            upgraded += scope.replacements(node)
        if any(new is not old for new, old in zip_longest(upgraded, graph.node)):
            del graph.node[:]
            graph.node.extend(upgraded)

    def _scope(self, graph: onnx.GraphProto) -> _GraphUpgrade:
        """Return the upgrade for the nodes of a graph, with the types and constants of that graph's tensors."""
        infos = {info.name: info.type for info in (*graph.input, *graph.value_info, *graph.output)}
        stored = {tensor.name: tensor for tensor in graph.initializer}
        types = {name: helper.make_tensor_type_proto(t.data_type, t.dims) for name, t in stored.items()}
        computed = {
            node.output[0]: attribute.t
            for node in graph.node
            if node.op_type == "Constant" and node.domain in STANDARD_DOMAINS
            for attribute in node.attribute
            if attribute.name == "value"
        }
        return replace(self, types={**self.types, **infos, **types}, constants={**self.constants, **stored, **computed})

    def replacements(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return the nodes that replace a node: the node itself if no rule applies."""
        if not _is_standard(node):
            return [node]
        opset = _opset_of(node, self.own)
        node.domain = _TAG.sub(r"\2", node.domain)
        if not onnx.defs.has(node.op_type, opset):
            opset = max(opset, first_version(node.op_type))
        nodes = [node]
        for rules in rules_between(opset, self.target):
            nodes = [new for old in nodes for new in self._apply(rules, old)]
        return nodes

    def _apply(self, rules: Mapping[str, Rule], node: onnx.NodeProto) -> list[onnx.NodeProto]:
        rule = rules.get(node.op_type)
        if rule is None:
            return [node]
        rewrite = NodeUpgrade(node, self.types, self.names, self.constants)
        rule(rewrite)
        return rewrite.nodes
