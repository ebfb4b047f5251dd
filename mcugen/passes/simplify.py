# SPDX-License-Identifier: Apache-2.0
"""Cleaning: constants are folded, redundant nodes dropped, equal nodes merged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mcugen.hir.graph import Graph, Node, Value, WidenedWeights, change_type, constant_data, merged_sources
from mcugen.hir.interpreter import evaluate_node
from mcugen.hir.traits import Partial, Simplifiable, Stepwise
from mcugen.ops.conversion import Dequantize
from mcugen.ops.elementwise import Elementwise
from mcugen.ops.movement import Movement, Reshape, Slice, Transpose, run_of
from mcugen.ops.packed import DequantizeBlocks
from mcugen.passes.rewrite import RewriteOutcome, Rewriting, pattern

MIN_REPORTED_BYTES = 1024
"""Smallest size in bytes, as float32, of dequantized constant weights that the report mentions.

Below it, `fold_dequantized` makes the constant float without a record.
"""


@pattern()
def fold_constant(graph: Graph, node: Node) -> RewriteOutcome:
    """f(constants) → constant. Dequantize is not folded, so that constants stay quantized for their readers."""
    if isinstance(node.op, Dequantize | DequantizeBlocks):
        return False
    if not node.inputs or any(v is None or not v.is_constant for v in node.inputs):
        return False
    _replace_by_constants(graph, node)
    return True


@pattern(Elementwise)
def fold_statistics(graph: Graph, node: Node) -> RewriteOutcome:
    """f(Dequantize(constant), …) → f(constant, …), for constants with one number per channel, such as statistics.

    All inputs of f must be constants or dequantized constants; they become float constants, and f can then be folded.
    """
    if isinstance(node.op, Dequantize) or node.output.type.count > max(node.output.type.shape, default=1):
        return False
    reals = [v if v is None or v.is_constant else _dequantized(graph, v) for v in node.inputs]
    if None in reals or reals == list(node.inputs):
        return False
    graph.rewrite(node, node.op, reals, types=[node.output.type])
    return True


def _dequantized(graph: Graph, value: Value) -> Value | None:
    """Return the real numbers of a dequantized constant as a float constant; None if they are not known."""
    source = value.producer
    codes = source.input(0).data if source is not None and isinstance(source.op, Dequantize) else None
    if source is None or codes is None:
        return None
    (real,) = evaluate_node(source, [codes])
    return graph.constant(value.name, real, of=[source.input(0)])


@pattern(Movement)
def move_codes(graph: Graph, node: Node) -> RewriteOutcome:
    """Movement(Dequantize(constant)) → Dequantize(constant moved at compile time).

    A movement is an operator that only moves elements, such as Transpose. Constants with per-channel scales are moved
    only by Transpose and Reshape, if each scale still belongs to one index of an axis.
    """
    source = node.input(0).producer
    if len(node.inputs) != 1 or source is None or not isinstance(source.op, Dequantize):
        return False
    stored = source.input(0)
    if stored.data is None:
        return False
    if stored.type.q.axis is not None and not isinstance(node.op, Transpose | Reshape):
        return "each channel has a scale of its own"
    (type_,) = node.op.infer(stored.type)
    if type_.quant is None:
        return "scales along one axis would be mixed"
    moved = graph.add(node.op, [stored], node.origin, types=[type_], before=node)
    graph.rewrite(node, source.op, [moved.output])
    _replace_by_constants(graph, moved)
    return True


@pattern(Dequantize, DequantizeBlocks)
def fold_dequantized(graph: Graph, node: Node) -> RewriteOutcome:
    """Dequantize(constant) → float constant, if no integer operator reads it: weight-only quantization.

    Kernels that store int8 weights of float layers find values and scales again (int8_multiples).
    """
    real, codes = node.output.type, node.input(0).data
    if codes is None:
        return False
    if real.nbytes >= MIN_REPORTED_BYTES:
        few = codes.min() >= -8 and codes.max() <= 7
        stored_bytes = -(-real.count // 2) if few else real.count
        graph.widened[node.output.name] = WidenedWeights(real.nbytes, stored_bytes, merged_sources(node.inputs))
    _replace_by_constants(graph, node)
    return True


def _replace_by_constants(graph: Graph, node: Node) -> None:
    arrays = constant_data(node.inputs)
    for value, array in zip(node.outputs, evaluate_node(node, arrays), strict=True):
        graph.release_name(value)
        known = graph.constant(value.name, array, value.type.quant, value.type.dtype, of=node.inputs)
        graph.replace(value, known)
    graph.remove(node)


@pattern(Transpose)
def turn_blocks(graph: Graph, node: Node) -> RewriteOutcome:
    """Transpose(DequantizeBlocks(w, s)) → DequantizeBlocks(wᵀ, sᵀ): the constants are transposed at compile time."""
    source = node.input(0).producer
    if source is None or not isinstance(source.op, DequantizeBlocks) or node.op != Transpose((1, 0)):
        return False
    turned = [
        graph.constant(f"{v.name}.t", np.ascontiguousarray(v.data.T), of=[v])
        for v in source.inputs
        if v is not None and v.data is not None
    ]
    graph.rewrite(node, source.op.turned(), turned)
    return True


@pattern(Simplifiable)
def take_equal(graph: Graph, node: Node) -> RewriteOutcome:
    """f(x) → a cheaper value that equals it, if the operator's `simplify` returns one (`Simplifiable`)."""
    value = node.op.simplify(node, graph) if isinstance(node.op, Simplifiable) and len(node.outputs) == 1 else None
    if value is None:
        return False
    graph.replace(node.output, value)
    graph.remove(node)
    if graph.is_new(value.producer) or _is_part(value, node):
        graph.release_name(node.output)
        graph.rename(value, node.output.name)
    return True


def _is_part(value: Value, node: Node) -> bool:
    """Return whether an importer made a value on the way to a node's result, as the product of a Gemm before its bias.

    If the last step changes nothing, the value is the result that the model names, and quantization must find it.
    """
    return (
        value.producer is not None
        and value.producer.origin == node.origin
        and value.name.startswith((f"{node.output.name}.", f"{node.output.name}/"))
    )


@pattern()
def drop_outputs(graph: Graph, node: Node) -> RewriteOutcome:
    """f(x) with unread outputs → f(x) without these outputs, if f can omit them (`Partial`)."""
    if len(node.outputs) == 1:
        return False
    needed: Sequence[bool] = [bool(v.uses) or graph.is_output(v) for v in node.outputs]
    if isinstance(node.op, Partial):
        needed = node.op.computed(needed)
    if all(needed):
        return False
    op = node.op.keeping(needed) if isinstance(node.op, Partial) else None
    if op is None:
        return "it computes all of its outputs at once"
    kept = [v for v, is_needed in zip(node.outputs, needed, strict=True) if is_needed]
    for value in kept:
        graph.release_name(value)
    names, types = [v.name for v in kept], [v.type for v in kept]
    smaller = graph.add(op, node.inputs, node.origin, names=names, types=types, before=node)
    for old, new in zip(kept, smaller.outputs, strict=True):
        graph.replace(old, new)
    graph.remove(node)
    return True


@pattern(Slice)
def take_state(graph: Graph, node: Node) -> RewriteOutcome:
    """Slice of the last step of a loop's stacked output → the loop's final state, if nobody else reads the output.

    The operator must have the trait `Stepwise`, as loops and recurrent layers have.
    """
    whole, begin = run_of(node.output)
    source, reader = whole.producer, graph.only_user(whole)
    while reader is not None and isinstance(reader.op, Reshape):
        reader = graph.only_user(reader.output)
    if source is None or not isinstance(source.op, Stepwise) or reader is not node:
        return False
    if source.op.last_part(source, whole) != (begin, node.output.type.count):
        return False
    state = source.op.last_state(source, graph, whole)
    change_type(state, quant=whole.type.quant)  # States have no quantization of their own.
    reshaped = graph.add(Reshape(node.output.type.shape), [state], node.origin, before=node)
    graph.replace(node.output, reshaped.output)
    graph.remove(node)
    return True


take_states = Rewriting("take_states", take_state, take_equal, drop_outputs)
"""Pass that replaces the last time step of stacked outputs by final states, and drops outputs that nobody reads."""

simplify = Rewriting("simplify", take_equal, drop_outputs, fold_constant, fold_statistics, move_codes, turn_blocks)
"""Pass that folds constants, replaces nodes by cheaper equal values, and drops unread outputs."""


def merge_equal_nodes(graph: Graph) -> bool:
    """Merge common subexpressions: nodes with equal operator, inputs and types become one node.

    Return whether any nodes were merged.
    """
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
