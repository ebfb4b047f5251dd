# SPDX-License-Identifier: Apache-2.0
"""Models that ONNX's own code cannot handle although ONNX Runtime accepts them.

These are operators below their first opset, and domains without an import.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
from onnx import helper

from mcugen.core.errors import UnsupportedError
from mcugen.frontend.onnx.functions import (
    STANDARD_DOMAINS,
    first_version,
    restored_version,
    short_domain,
    unknown_attributes,
)
from mcugen.ops.onnx_node import Registry

_HIDDEN = "mcugen.hidden."
"""Prefix of domains that the checker, shape inference and the version converter do not know, and so ignore."""
_FATAL = {("ai.onnx.ml", "LabelEncoder"), ("ai.onnx.ml", "TreeEnsemble"), ("", "EyeLike"), ("", "RegexFullMatch")}
"""Operators whose shape inference ends the process if the type of an input is unknown."""


def import_domains(model: onnx.ModelProto) -> None:
    """Add imports for domains that nodes use without one: the newest version that ONNX knows, else version 1."""
    for owner in (model, *model.functions):
        known = {entry.domain for entry in owner.opset_import}
        known |= set(STANDARD_DOMAINS) if known.intersection(STANDARD_DOMAINS) else set()
        used = dict.fromkeys(node.domain for node in _nodes(owner))
        for domain in (d for d in used if d not in known and d not in STANDARD_DOMAINS):
            owner.opset_import.append(helper.make_opsetid(domain, _newest(domain)))


def _newest(domain: str) -> int:
    return max((s.since_version for s in onnx.defs.get_all_schemas() if s.domain == domain), default=1)


def hide_operators(model: onnx.ModelProto, registry: Registry) -> bool:
    """Give operators that ONNX's own code cannot handle another domain, so that it ignores them.

    Three kinds of operators are hidden from ONNX's checker and shape inference. The first are operators that only a
    later operator set or mcugen has. The second are operators that the model's operator set deprecates although a later
    set has them. The third are operators whose shape inference ends the process.

    Args:
        model: The model, changed in place.
        registry: The operators that mcugen can import.

    Returns:
        Whether any operator was hidden.

    Raises:
        UnsupportedError: An operator has attributes that its first definition does not have, so that its meaning
            differs from that definition.
    """
    has_hidden = False
    for owner in (model, *model.functions):
        opset = next((int(e.version) for e in owner.opset_import if e.domain in STANDARD_DOMAINS), 0)
        foreign = [node for node in _nodes(owner) if opset and _is_foreign(node, opset, registry)]
        for node in foreign:
            _check_attributes(node)
        fatal = [node for node in _nodes(owner) if (short_domain(node.domain), node.op_type) in _FATAL]
        for node in (*foreign, *fatal):
            node.domain = _HIDDEN + node.domain
        domains = {node.domain for node in (*foreign, *fatal)}
        _import_hidden(model, domains)
        if owner is not model:
            _import_hidden(owner, domains)
        has_hidden |= bool(domains)
    return has_hidden


def _import_hidden(owner: onnx.ModelProto | onnx.FunctionProto, domains: set[str]) -> None:
    """Import the domains that `owner` does not import yet; a model needs those of its functions, which are inlined."""
    known = {entry.domain for entry in owner.opset_import}
    owner.opset_import.extend(helper.make_opsetid(domain, 1) for domain in sorted(domains - known))


def shown_domain(domain: str) -> str:
    """Return the original domain of a node for messages.

    Args:
        domain: The domain in the model, which `hide_operators` may have changed.
    """
    return domain.removeprefix(_HIDDEN)


def _is_foreign(node: onnx.NodeProto, opset: int, registry: Registry) -> bool:
    if node.domain not in STANDARD_DOMAINS:
        return False
    if onnx.defs.has(node.op_type, opset):
        return restored_version(node.op_type, opset) > 0
    return ("", node.op_type) in registry.importers or first_version(node.op_type) > opset


def _check_attributes(node: onnx.NodeProto) -> None:
    first = first_version(node.op_type)
    strange = unknown_attributes(node, first)
    if strange:
        rule = f"{node.op_type} '{node.name}': below its opset it must be as opset {first} defines it"
        raise UnsupportedError(rule, f"attribute '{strange[0]}'", f"export with opset {first}")


def reveal_operators(model: onnx.ModelProto) -> None:
    """Give operators that `hide_operators` hid their domain again, in place.

    Functions that contain such operators must be inlined before.
    """
    for owner in (model, *model.functions):
        for node in _nodes(owner):
            node.domain = shown_domain(node.domain)
        kept = [entry for entry in owner.opset_import if not entry.domain.startswith(_HIDDEN)]
        del owner.opset_import[:]
        owner.opset_import.extend(kept)


def _nodes(owner: onnx.ModelProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yield every node of a model or function, including the nodes of graphs within it."""
    todo: list[Sequence[onnx.NodeProto]] = [owner.graph.node if isinstance(owner, onnx.ModelProto) else owner.node]
    while todo:
        for node in todo.pop():
            yield node
            todo += [g.node for a in node.attribute for g in (a.g, *a.graphs)]
