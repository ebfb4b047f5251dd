# SPDX-License-Identifier: Apache-2.0
"""Cleaning: constants folded, nodes that compute nothing new dropped, equal nodes merged, dead ones removed."""

from __future__ import annotations

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.interpreter import evaluate_node
from mcugen.ops.conversion import Dequantize
from mcugen.ops.movement import Movement, Reshape, Transpose


def fold_constants(graph: Graph) -> bool:
    """Node of constants → constant. Quantized weights stay so: Movement(Dequantize(w)) → Dequantize(Movement(w))."""
    changed = False
    for node in list(graph.nodes):
        if isinstance(node.op, Dequantize) or not node.inputs:
            continue
        if all(v is not None and v.is_constant for v in node.inputs):
            _replace_by_constants(graph, node)
            changed = True
        elif isinstance(node.op, Movement) and _move_before_dequantize(graph, node):
            changed = True
    return changed


def fold_dequantized(graph: Graph) -> bool:
    """Dequantize(constant) → float constant: what no integer operator has taken is weight-only quantization."""
    changed = False
    for node in list(graph.nodes):
        if isinstance(node.op, Dequantize) and node.input(0).is_constant:
            _replace_by_constants(graph, node)
            changed = True
    return changed


def _replace_by_constants(graph: Graph, node: Node) -> None:
    arrays = [v.data for v in node.inputs if v is not None and v.data is not None]
    for value, array in zip(node.outputs, evaluate_node(node, arrays), strict=True):
        graph.release_name(value)
        graph.replace(value, graph.constant(value.name, array, value.type.quant, value.type.dtype))
    graph.remove(node)


def _move_before_dequantize(graph: Graph, node: Node) -> bool:
    source = node.input(0).producer
    if len(node.inputs) != 1 or source is None or not isinstance(source.op, Dequantize):
        return False
    stored = source.input(0)
    if stored.data is None or (stored.type.q.axis is not None and not isinstance(node.op, Transpose | Reshape)):
        return False
    (type_,) = node.op.infer(stored.type)
    if type_.quant is None:
        return False
    moved = graph.add(node.op, [stored], node.origin, types=[type_], before=node)
    graph.rewrite(node, source.op, [moved.output])
    _replace_by_constants(graph, moved)
    return True


def simplify(graph: Graph) -> bool:
    """Node → a value that equals its output, as the operator itself knows (`Operator.simplify`)."""
    changed, present = False, set(graph.nodes)
    for node in list(graph.nodes):
        value = node.op.simplify(node, graph) if len(node.outputs) == 1 else None
        if value is not None:
            graph.replace(node.output, value)
            graph.remove(node)
            if value.producer is not None and value.producer not in present:  # made in its place: it has its name
                graph.release_name(node.output)
                graph.rename(value, node.output.name)
            changed = True
    return remove_dead_code(graph) or changed


def remove_dead_code(graph: Graph) -> bool:
    """Node whose outputs nobody reads → nothing; one of whose outputs, → the operator without it, if there is one."""
    changed = False
    for node in reversed(list(graph.nodes)):
        wanted = [bool(v.uses) or graph.is_output(v) for v in node.outputs]
        if not any(wanted):
            graph.remove(node)
        elif all(wanted) or not _keep_outputs(graph, node, wanted):
            continue
        changed = True
    return changed


def _keep_outputs(graph: Graph, node: Node, wanted: list[bool]) -> bool:
    op = node.op.keeping(wanted)
    if op is None:
        return False
    kept = [v for v, is_wanted in zip(node.outputs, wanted, strict=True) if is_wanted]
    for value in kept:
        graph.release_name(value)
    names, types = [v.name for v in kept], [v.type for v in kept]
    smaller = graph.add(op, node.inputs, node.origin, names=names, types=types, before=node)
    for old, new in zip(kept, smaller.outputs, strict=True):
        graph.replace(old, new)
    graph.remove(node)
    return True


def merge_equal_nodes(graph: Graph) -> bool:
    """Common subexpressions: two nodes with equal operator, inputs and types → one."""
    seen: dict[object, Node] = {}
    changed = False
    for node in list(graph.nodes):
        key = (type(node.op), node.op, tuple(_identity(v) for v in node.inputs), node.sig.outputs)
        first = seen.setdefault(key, node)
        if first is node:
            continue
        for old, new in zip(node.outputs, first.outputs, strict=True):
            graph.replace(old, new)
        graph.remove(node)
        changed = True
    return changed


def _identity(value: Value | None) -> object:
    if value is None or value.data is None:
        return value
    return (value.type, value.data.tobytes())
