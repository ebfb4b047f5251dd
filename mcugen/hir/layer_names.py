# SPDX-License-Identifier: Apache-2.0
"""The one name of each layer: reports, options, messages, hooks and generated C all call the layer by it.

A layer has the name of the ONNX node that it stems from, without what exporters add to names. A layer that stems from
several nodes has the name of the node whose operator it computes, or else of the last node. A layer without named nodes
has the name of its result. Names are unique within a model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mcugen.core.errors import UsageError, listed
from mcugen.hir.graph import Graph, Node
from mcugen.hir.names import Names

MAX_SHOWN_NAME_CHARACTERS = 40
"""Largest number of characters of a layer's name in a message."""

_ROLE = re.compile(r"\.[a-z]+$")
_NOISE = re.compile(
    r"(^(StatefulPartitionedCall/)+|_?output_\d+|_?(de)?quantizelinear|_raw_output_*\d*|_prequant|_dequant(?!ized)|_output)+",
    re.IGNORECASE,
)
"""Parts of names that exporters and quantizers add."""

_OPERATOR = re.compile(r":[A-Z]\w*$")
"""The ONNX operator at the end of a name that `frontend.onnx.module_names` made from a module of PyTorch."""

_DENSE_WORDS = ("dense", "matmul", "gemm", "linear", "fullyconnected", "times")
_WORDS_OF_OPERATORS: Mapping[str, tuple[str, ...]] = {
    "dense": _DENSE_WORDS,
    "packed_dense": _DENSE_WORDS,
    "reduce_mean": ("mean", "averagepool", "avgpool"),
    "average_pool": ("averagepool", "avgpool"),
    "clamp": ("clip", "relu"),
}
"""Words by which exporters name nodes of an operator, if these differ from the operator's own name."""

_LAYOUT_OPERATORS = frozenset({"transpose"})
"""Operators that passes add to change the layout of a tensor for another layer."""

_MOVEMENT_OPERATORS = frozenset({"concat", "gather", "pad", "reshape", "slice", "transpose"})
"""Operators that move data without computing: a module of PyTorch or Keras is better known by another of its layers."""

_ABSORBED_OPERATORS = frozenset({"add", "clamp", "div", "mul", "sub"})
"""Operators that passes fold into the layer before; the layer's result keeps a name that ends with them."""


@dataclass(frozen=True)
class LayerSource:
    """The facts about a layer from which its display name is made.

    Attributes:
        result: Name of the layer's first output.
        origin: Names of the ONNX nodes that the layer stems from, in their order.
        op: Name of its operator.
    """

    result: str
    origin: tuple[str, ...]
    op: str


def module_path(node: str) -> str:
    """Return the path of the module in a node's name that `frontend.onnx.module_names` made; "" for other names."""
    path = _OPERATOR.sub("", node)
    return path if path != node else ""


def tensor_name(text: str) -> str:
    """Return a readable name of a tensor or node, made from a name that an exporter wrote.

    Exporters join the names of fused nodes by semicolons: the first one is used, without the exporter's suffixes. The
    path of a PyTorch module stays as it is.
    """
    module = module_path(text)
    if module:
        return module
    role = _ROLE.search(text)
    name = text[: role.start()] if role else text
    first = name.split(";")[0] or name
    plain = _NOISE.sub("", first).rstrip("/")
    plain = plain if first.startswith("_") else plain.lstrip("_")
    return (plain or first) + (role.group() if role else "")


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _names_operator(node: str, op: str) -> bool:
    """Return whether the name of an ONNX node contains the name of an operator.

    The path of a PyTorch module does not count, as a module may be called `conv` and contain any operators.
    """
    words = _WORDS_OF_OPERATORS.get(op, (_letters(op),))
    operator = _OPERATOR.search(node)
    text = _letters(operator.group() if operator else node)
    return any(word in text for word in words if word)


def main_node(source: LayerSource) -> str:
    """Return the name of the ONNX node that a layer is named after, as spelled in the model.

    The result is "" if the layer stems from no ONNX node with a name.
    """
    nodes = [node for node in source.origin if node]
    named_after = [node for node in nodes if _names_operator(node, source.op)]
    if not named_after and source.op in _LAYOUT_OPERATORS:
        return next(iter(nodes), "")
    return next(reversed(named_after or nodes), "")


def computes_named_node(source: LayerSource) -> bool:
    """Return whether the ONNX node that a layer is named after seems to be of the layer's own operator.

    This is the case if the node's name contains the operator's name, such as "conv1/Conv" for a convolution.
    """
    return _names_operator(main_node(source), source.op)


def name_results(sources: Iterable[LayerSource]) -> dict[str, str]:
    """Return the display name of each layer, unique among the layers; the key is LayerSource.result.

    If several layers stem from one ONNX node, the node's name goes to the first layer that computes the node's
    operator, or else to the last layer. A module's name goes to a layer that computes rather than one that moves data.
    The names of the other layers are the node's name with their own operator appended: "conv1.transpose".
    """
    by_result = {source.result: source for source in sources}
    nodes = {result: main_node(source) for result, source in by_result.items()}
    is_own = {
        result: computes_named_node(source) and not (source.op in _MOVEMENT_OPERATORS and module_path(nodes[result]))
        for result, source in by_result.items()
    }
    names = {result: tensor_name(nodes[result] or result) for result in by_result}
    owners: dict[str, str] = {}
    for result, name in names.items():
        if not _is_auxiliary(by_result[result]) and (name not in owners or not is_own[owners[name]]):
            owners[name] = result
    used = Names(owners)
    return {
        result: name if owners.get(name) == result else used.take(f"{name}.{_suffix(by_result[result])}")
        for result, name in names.items()
    }


def _is_auxiliary(source: LayerSource) -> bool:
    """Return whether a layer changes the layout of a tensor for the nodes that it stems from."""
    is_named = any(_names_operator(node, source.op) for node in source.origin)
    return source.op in _LAYOUT_OPERATORS and any(source.origin) and not is_named


def _suffix(source: LayerSource) -> str:
    """Return what a further layer of a node does, as the last part of the layer's name: its role or its operator."""
    role = _ROLE.search(source.result)
    if role and role.group()[1:] not in _ABSORBED_OPERATORS:
        return role.group()[1:]
    return "elementwise" if "+" in source.op else source.op


def number_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names in order, with a number appended to the second and each further occurrence of a name.

    This makes names unique, for example those of the tiles of one layer.
    """
    listed_names = list(names)
    used, seen_names = Names(listed_names), set[str]()
    numbered = []
    for name in listed_names:
        numbered.append(used.take(name) if name in seen_names else name)
        seen_names.add(name)
    return tuple(numbered)


def name_nodes(graph: Graph) -> dict[Node, str]:
    """Return the display name of each node of a graph, by the rule of `name_results`."""
    names = name_results(source_of(node) for node in graph.nodes)
    return {node: names[node.outputs[0].name] for node in graph.nodes}


def name_results_of(graph: Graph) -> dict[str, str]:
    """Return the display name of every layer of a graph and its nested graphs; the key is the layer's first output."""
    names: dict[str, str] = {}
    for part in graph.nested():
        names |= name_results(source_of(node) for node in part.nodes)
    return names


def source_of(node: Node) -> LayerSource:
    """Return the facts from which the display name of a node is made."""
    return LayerSource(node.outputs[0].name, node.origin, node.op.name)


def shorten_name(name: str, max_characters: int = MAX_SHOWN_NAME_CHARACTERS) -> str:
    """Return a name of at most `max_characters`; in a longer name, the middle is replaced by an ellipsis.

    Names begin with a position in the model and end with an operation or a number, so both ends tell names apart.
    """
    return _cut(name, max_characters, (max_characters - 1) // 3)


def shorten_names(names: Iterable[str], max_characters: int) -> dict[str, str]:
    """Return each name with its text of at most `max_characters`, so that different names have different texts.

    Where `shorten_name` gives several names one text, the ellipsis moves to where it leaves a part that tells them
    apart. Names that differ only in parts too far from each other keep one text.
    """
    shortened = {name: shorten_name(name, max_characters) for name in names}
    texts = Counter(shortened.values())
    for name in [name for name, text in shortened.items() if texts[text] > 1]:
        for head in sorted(range(max_characters), key=lambda head: abs(head - max_characters // 3)):
            text = _cut(name, max_characters, head)
            text_by_other = {other: other_text for other, other_text in shortened.items() if other != name}
            if all(text not in (shown, _cut(other, max_characters, head)) for other, shown in text_by_other.items()):
                shortened[name] = text
                break
    return shortened


def _cut(name: str, max_characters: int, head: int) -> str:
    """Return a name of at most `max_characters`, of which the first `head` precede the ellipsis."""
    if len(name) <= max_characters:
        return name
    tail = max(max_characters - 1 - head, 0)
    return f"{name[: max(head, 0)]}…{name[len(name) - tail :]}"[:max_characters]


def find_layer(
    graph: Graph,
    text: str,
    option: str,
    is_candidate: Callable[[Node], bool] = lambda node: True,
    rule: str = "must name a layer of the model",
) -> Node:
    """Return the layer that the user calls `text`: by its display name, outputs, ONNX nodes, or a part of these.

    Args:
        graph: The graph with the layers.
        text: What the user wrote.
        option: The command-line option that names the layer, for messages.
        is_candidate: Returns whether the option may name a given node.
        rule: What the option demands, as a phrase for the message if no layer has such a name.

    Raises:
        UsageError: No candidate has such a name, or several have; the message lists the candidates.
    """
    names = {node: name for node, name in name_nodes(graph).items() if is_candidate(node)}
    aliases = {node: (*(v.name for v in node.outputs), *filter(None, node.origin)) for node in names}
    matches = (
        [node for node, name in names.items() if name == text]
        or [node for node, known in aliases.items() if text in known]
        or _by_part(text, {node: (name,) for node, name in names.items()})
        or _by_part(text, aliases)
    )
    if len(matches) == 1:
        return matches[0]
    if matches:
        candidates = listed(f"'{names[node]}'" for node in matches)
        raise UsageError(f"{option}: '{text}' must be part of one layer's name", candidates, "write more of the name")
    known_names = listed(f"'{name}'" for name in names.values())
    raise UsageError(f"{option} {rule}", f"'{text}'", f"one of: {known_names}")


def _by_part(text: str, names: Mapping[Node, Sequence[str]]) -> list[Node]:
    """Return the nodes with a name that contains the text; where it is a whole word of some, only these."""
    if not text:
        return []
    part = re.escape(text)
    for pattern in (rf"(?<![A-Za-z0-9]){part}(?![A-Za-z0-9])", part):
        search = re.compile(pattern, re.IGNORECASE).search
        matches = [node for node, known in names.items() if any(map(search, known))]
        if matches:
            return matches
    return []
