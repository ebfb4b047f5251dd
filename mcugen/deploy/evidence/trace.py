# SPDX-License-Identifier: Apache-2.0
"""Traceability between nodes of the ONNX model and layers, functions, lines and constants of the C code."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx

from mcugen.codegen.bundle import Bundle
from mcugen.deploy.evidence.sources import CallLines, SourceFunction, layer_call_lines, parse_functions
from mcugen.reporting.figures import ReportedLayer


@dataclass(frozen=True)
class TracedNode:
    """A node of the ONNX model, and how the generated code contains it.

    Attributes:
        name: Its name.
        operator: Its operator.
        how: How the code contains the node: "named" (a layer has the node as an origin), "absorbed" (the nearest layers
            along the graph compute or contain its result), or "gone" (no layer depends on it).
        layers: Numbers of the layers that contain the node; empty for "gone".
    """

    name: str
    operator: str
    how: str
    layers: tuple[int, ...]


@dataclass(frozen=True)
class TracedLayer:
    """A layer of the generated code.

    Attributes:
        number: Its number.
        title: Its name in the code.
        operator: Its operator.
        kernel: Its kernel.
        nodes: Names of its ONNX nodes.
        lines: Places of its calls, as FILE:FIRST-LAST.
        functions: Functions that it calls, directly or indirectly.
        constants: Arrays of constants that it reads.
    """

    number: int
    title: str
    operator: str
    kernel: str
    nodes: tuple[str, ...]
    lines: tuple[str, ...]
    functions: tuple[str, ...]
    constants: tuple[str, ...]


@dataclass(frozen=True)
class TracedFunction:
    """A C function and the layers that call it.

    Attributes:
        name: Name of the function.
        lines: Its definitions, as FILE:FIRST-LAST.
        layers: Numbers of the layers that call it, directly or indirectly; none for functions of the interface.
    """

    name: str
    lines: str
    layers: tuple[int, ...]


@dataclass(frozen=True)
class TracedConstant:
    """A constant array in the C code.

    Attributes:
        name: Name of the array.
        ctype: C type of its elements.
        elements: Number of its elements.
        line: Its place, as FILE:LINE.
        layers: Numbers of the layers that read it.
    """

    name: str
    ctype: str
    elements: int
    line: str
    layers: tuple[int, ...]


@dataclass(frozen=True)
class TraceabilityMatrix:
    """The traceability between the ONNX model and the generated code, in both directions.

    Attributes:
        nodes: Each node of the model, with the layers that contain it.
        layers: Each layer, with its nodes, lines, functions and constants.
        functions: Each C function, with the layers that call it.
        constants: Each array of constants, with the layers that read it.
    """

    nodes: tuple[TracedNode, ...]
    layers: tuple[TracedLayer, ...]
    functions: tuple[TracedFunction, ...]
    constants: tuple[TracedConstant, ...]


def trace(model: onnx.ModelProto, bundle: Bundle, layers: Sequence[ReportedLayer]) -> TraceabilityMatrix:
    """Return the traceability between a model and its generated files.

    Args:
        model: The checked model.
        bundle: Its generated files.
        layers: The layers of its report, in the order of the code.
    """
    texts = {name: bundle.files[name] for name in (*bundle.sources, *bundle.headers)}
    places = layer_call_lines(f"{bundle.name}.c", bundle.files[f"{bundle.name}.c"])
    defined = parse_functions(texts)
    arrays = _arrays(bundle)
    traced = tuple(
        _layer(number, layer, places.get(number, []), defined, arrays) for number, layer in enumerate(layers)
    )
    return TraceabilityMatrix(
        tuple(_nodes(model, traced)),
        traced,
        tuple(
            TracedFunction(f.name, _lines(f), tuple(t.number for t in traced if f"{f.name} {_lines(f)}" in t.functions))
            for f in defined
        ),
        tuple(
            TracedConstant(name, ctype, count, line, tuple(t.number for t in traced if name in t.constants))
            for name, (ctype, count, line) in arrays.items()
        ),
    )


def _lines(where: SourceFunction | CallLines) -> str:
    return f"{where.file}:{where.first}-{where.last}"


_ARRAY = re.compile(r"^(?:\w+ )?const (\w+) (\w+)\[(\d+)\]", re.M)


def _arrays(bundle: Bundle) -> dict[str, tuple[str, int, str]]:
    """Return the C type, number of elements and place (file:line) of each array of constants, by name."""
    return {
        match[2]: (match[1], int(match[3]), f"{file}:{text.count(chr(10), 0, match.start()) + 1}")
        for file, text in sorted(bundle.files.items())
        if file in bundle.sources
        for match in _ARRAY.finditer(text)
    }


def _layer(
    number: int,
    layer: ReportedLayer,
    places: Sequence[CallLines],
    defined: Sequence[SourceFunction],
    arrays: Iterable[str],
) -> TracedLayer:
    words = frozenset().union(*(place.words for place in places))
    reached = _reachable_functions(words, defined)
    read = words.union(*(function.words for function in reached))
    return TracedLayer(
        number,
        layer.name,
        layer.op,
        layer.kernel,
        tuple(layer.origin),
        tuple(map(_lines, places)),
        tuple(f"{function.name} {_lines(function)}" for function in reached),
        tuple(name for name in arrays if name in read),
    )


def _reachable_functions(words: Iterable[str], defined: Sequence[SourceFunction]) -> list[SourceFunction]:
    """Return the functions of these names, and the functions that they name, in the order of the files."""
    by_name: dict[str, list[SourceFunction]] = {}
    for function in defined:
        by_name.setdefault(function.name, []).append(function)
    todo, reached = deque(words), set[SourceFunction]()
    while todo:
        for function in by_name.get(todo.popleft(), ()):
            if function not in reached:
                reached.add(function)
                todo.extend(function.words)
    return sorted(reached)


def _nodes(model: onnx.ModelProto, layers: Sequence[TracedLayer]) -> Iterable[TracedNode]:
    """Yield the graph's nodes in order, with their layers; nodes of subgraphs belong to the node with the subgraph."""
    nodes = list(model.graph.node)
    by_origin: dict[str, list[int]] = {}
    for layer in layers:
        for name in dict.fromkeys(layer.nodes):
            by_origin.setdefault(name, []).append(layer.number)
    named = [sorted({n for key in (node.name, *node.output) if key for n in by_origin.get(key, ())}) for node in nodes]
    readers: dict[str, list[int]] = {}
    for at, node in enumerate(nodes):
        for name in node.input:
            readers.setdefault(name, []).append(at)
    writers = {name: at for at, node in enumerate(nodes) for name in node.output}
    after = [[r for name in node.output for r in readers.get(name, ())] for node in nodes]
    before = [[writers[name] for name in node.input if name in writers] for node in nodes]
    for at, node in enumerate(nodes):
        title = node.name or next(iter(node.output), "")
        near = named[at] or _nearest(at, before, named) or _nearest(at, after, named)
        how = "named" if named[at] else "absorbed" if near else "gone"
        yield TracedNode(title, node.op_type, how, tuple(near))


def _nearest(at: int, neighbors: Sequence[Sequence[int]], named: Sequence[Sequence[int]]) -> list[int]:
    """Return the layers of the nearest nodes that have any."""
    seen, todo, layers = {at}, deque(neighbors[at]), set[int]()
    while todo:
        node = todo.popleft()
        if node in seen:
            continue
        seen.add(node)
        layers.update(named[node])
        if not named[node]:
            todo.extend(neighbors[node])
    return sorted(layers)


def find_untraced(traced: TraceabilityMatrix) -> Mapping[str, tuple[str, ...]]:
    """Return the names of what the traceability matrix fails to connect, by kind.

    The kinds are layers without lines of code, constants that no layer reads, and ONNX nodes without layers.
    """
    return {
        "layers": tuple(layer.title for layer in traced.layers if not layer.lines),
        "constants": tuple(constant.name for constant in traced.constants if not constant.layers),
        "nodes": tuple(node.name for node in traced.nodes if not node.layers),
    }
