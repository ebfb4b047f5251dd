# SPDX-License-Identifier: Apache-2.0
"""Printer of the text form of the high-level IR: one line a node, stable, meant to be compared.

`parser` reads the text back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Operator
from mcugen.hir.types import Array, DType, Layout, QuantParams, Rounding, TensorType
from mcugen.hir.words import MnemonicTable

MAX_PRINTED_ELEMENTS = 16
"""Largest number of elements that are printed; of longer constants and lists of scales, only a digest is printed."""


def print_graph(graph: Graph) -> str:
    """Return the text of a whole graph: inputs, constants, nodes and outputs.

    A node that contains graphs, such as a loop, is followed by the text of these graphs.
    """
    return "\n".join([*_graph_lines(graph, "", MnemonicTable()), ""])


def quoted(name: str) -> str:
    """Return a name from a model as dumps show it: unchanged if it is plain, else as a JSON string."""
    plain = name.isascii() and name.replace(".", "").replace("_", "").replace("/", "").isalnum()
    return name if plain else json.dumps(name)


def _graph_lines(graph: Graph, indent: str, words: MnemonicTable) -> list[str]:
    outputs = zip(graph.output_names, graph.outputs, strict=True)
    sizes = (graph.sizes or {}).items()
    lines = [
        *(f"input {_name(v)} : {_type(v.type)}" for v in graph.inputs),
        *(f"const {_name(v)} : {_type(v.type)} = {_data(v.data)}" for v in graph.values() if v.data is not None),
        *["shapes vary"] * graph.shapes_vary,
        *(f"assumed {quoted(symbol)} = {size}" for symbol, size in graph.assumed.items()),
        *(line for node in graph.nodes for line in _node_lines(node, words)),
        *(f"size {quoted(symbol)} = {_name(size.value)} at most {size.high}" for symbol, size in sizes),
        *(f"output {quoted(name)} = {_name(value)}" for name, value in outputs),
    ]
    return [f"{indent}graph {quoted(graph.name)} {{", *(f"{indent}  {line}" for line in lines), f"{indent}}}"]


def _node_lines(node: Node, words: MnemonicTable) -> list[str]:
    results = ", ".join(_name(v) for v in node.outputs)
    types = ", ".join(_type(v.type) for v in node.outputs)
    operands = ", ".join(_name(v) for v in node.inputs)
    origin = f"  # {', '.join(map(quoted, node.origin))}" if node.origin else ""
    word, attributes = _operator(node.op, words, node.op.bodies)
    line = f"{results} = {word}({operands}){attributes and ' '}{attributes} : {types}{origin}"
    return [line, *(text for body in node.op.bodies for text in _graph_lines(body, "  ", words))]


def _name(value: Value | None) -> str:
    return "-" if value is None else "%" + quoted(value.name)


# ---------------------------------------------------------------------------------------------- operators


def _operator(op: Operator, words: MnemonicTable, bodies: tuple[Graph, ...] = ()) -> tuple[str, str]:
    """Return the name of an operator, and the text of the attributes that neither the name nor a default implies."""
    word, implied = words.of(op)
    shown = [f for f in fields(op) if f.name not in implied and not _is_default(f, getattr(op, f.name))]
    text = ", ".join(f"{f.name}={_attribute(getattr(op, f.name), words, bodies)}" for f in shown)
    return word, f"{{{text}}}" if text else ""


def _attribute(value: object, words: MnemonicTable, bodies: tuple[Graph, ...]) -> str:
    if isinstance(value, Graph):
        return f"@{bodies.index(value)}"
    if isinstance(value, Operator):
        return "".join(_operator(value, words))
    if isinstance(value, DType | Layout):
        return str(value.value)
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, tuple):
        items = [_attribute(item, words, bodies) for item in value]
        return f"({', '.join(items)}{',' * (len(items) == 1)})"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(_attribute(item, words, bodies) for item in value))}}}"
    if is_dataclass(value):
        shown = list(fields(value))
        while shown and _is_default(shown[-1], getattr(value, shown[-1].name)):
            shown.pop()
        items = [_attribute(getattr(value, f.name), words, bodies) for f in shown]
        return f"{type(value).__name__}({', '.join(items)})"
    if isinstance(value, str):
        return json.dumps(value)
    return repr(value.item() if isinstance(value, np.generic) else value)


def _is_default(field: Field[object], value: object) -> bool:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return default is not MISSING and type(default) is type(value) and default == value


# ------------------------------------------------------------------------------------- types and constants


def _type(type_: TensorType) -> str:
    """Return the exact text of a type (`str` rounds scales)."""
    shape = "x".join(map(str, type_.shape)) if type_.shape else "scalar"
    quant = f"({_quant(type_.quant)})" if type_.quant else ""
    return " ".join(filter(None, (shape, type_.dtype.value + quant, type_.layout.value)))


def _quant(quant: QuantParams) -> str:
    rounding = "" if quant.rounding is Rounding.EXACT else f", {quant.rounding.value}"
    return f"{_scales(quant)}, {quant.zero_point}{rounding}"


def _scales(quant: QuantParams) -> str:
    if quant.axis is None:
        return _real(quant.scale[0])
    return f"{_listed(map(_real, quant.scale), quant.scales, quant.scale)} on axis {quant.axis}"


def _real(number: float) -> str:
    """Return the shortest text that is exact in float32; other numbers get the suffix d."""
    return str(np.float32(number)) if float(np.float32(number)) == number else f"{number!r}d"


def _data(data: Array) -> str:
    numbers = (str(number) for number in data.reshape(-1)[: MAX_PRINTED_ELEMENTS + 1])
    return next(numbers) if data.ndim == 0 else _listed(numbers, data, data)


def _listed(texts: Iterable[str], data: Array, source: object) -> str:
    """Return all numbers, or a digest. Data parsed from a digest print as that digest."""
    digest = getattr(source, "digest", "")
    if digest or data.size > MAX_PRINTED_ELEMENTS:
        return digest or "#" + hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest()[:12]
    return f"[{', '.join(texts)}]"
