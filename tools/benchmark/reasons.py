# SPDX-License-Identifier: Apache-2.0
"""Why a model, or a layer of it, takes more instructions a multiply-accumulate than it should."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from mcugen.driver.compiled import CompiledModel
from mcugen.hir.graph import Node
from mcugen.hir.layer_names import name_nodes
from mcugen.kernels.choose import fitting_kernels
from mcugen.kernels.cost import cost_table
from mcugen.ops.control import Repeat
from mcugen.reporting.figures import ReportedLayer
from mcugen.reporting.kernels import declared_kernels

MODEL_AIM, LAYER_AIM = 1.5, 2.5
"""Instructions a multiply-accumulate, of integers on a CPU that multiplies two at a time."""

SHARE = 0.03
"""Layers that take less of a model are not asked for."""

MAX_NAMED_OPERATORS = 3
"""Operators without products."""

FEW = 64
"""Products: what an output takes besides them shows."""


def excess_reasons(compiled: CompiledModel, layers: Sequence[ReportedLayer]) -> str:
    """Return sentences on what exceeds the targets; "" if nothing does, or the CPU has no SIMD instructions.

    For a model above its target, they also give the cost of products alone, and of large layers without products.
    """
    if not compiled.board.features & {"dsp", "mve"}:
        return ""
    total, macs = sum(layer.instructions or 0 for layer in layers), sum(layer.macs for layer in layers)
    large = [layer for layer in layers if (layer.instructions or 0) > SHARE * total]
    found: list[str] = list(_of_layers(compiled, large, LAYER_AIM))
    if macs and total > MODEL_AIM * macs:
        besides = _without_products(compiled, layers, total)
        products = _of_products(compiled, layers, total)
        found = [besides, products, *(found if besides else _of_layers(compiled, large, MODEL_AIM))]
    return " ".join(dict.fromkeys(sentence for sentence in found if sentence))


def _without_products(compiled: CompiledModel, layers: Sequence[ReportedLayer], total: int) -> str:
    """Return the share of layers without products, and the cost per element of the largest operators."""
    nodes, besides, elements = _nodes(compiled), Counter[str](), Counter[str]()
    borders = {value for value in (*compiled.graph.inputs, *compiled.graph.outputs) if value.type.dtype.is_float}
    for layer in (layer for layer in layers if not layer.macs):
        node = nodes.get(layer.name)
        ends = [v for v in (*node.inputs, *node.outputs) if v and not v.is_constant] if node else []
        op = f"{layer.op} at a float border" if borders.intersection(ends) else layer.op
        besides[op] += layer.instructions or 0
        elements[op] += max((value.type.count for value in ends), default=0)
    if not besides.total() > SHARE * total:
        return ""
    most = [(op, count) for op, count in besides.most_common(MAX_NAMED_OPERATORS) if count > SHARE * total]
    each = [
        f"{op} {count / total:.0%}: {count / elements[op]:.1f} instructions an element of {elements[op]:,}"
        for op, count in most
        if elements[op]
    ]
    largest = f" ({'; '.join(each)})" if each else ""
    return f"{besides.total() / total:.0%} is no product{largest}."


def _of_products(compiled: CompiledModel, layers: Sequence[ReportedLayer], total: int) -> str:
    """Return the cost of products if they alone exceed the target, and the share of layers with few per output."""
    nodes, weighted = _nodes(compiled), [layer for layer in layers if layer.macs]
    taken, macs = sum(layer.instructions or 0 for layer in weighted), sum(layer.macs for layer in weighted)
    if not taken > max(MODEL_AIM * macs, SHARE * total):
        return ""
    few = [layer for layer in weighted if layer.macs <= FEW * _results(nodes.get(layer.name))]
    share = sum(layer.instructions or 0 for layer in few) / taken
    small = f", {share:.0%} of it in {len(few)} of {len(weighted)} that have at most {FEW} products an output"
    return f"Layers with products take {taken / macs:.1f}{small if few else ''}."


def _results(node: Node | None) -> int:
    """Return the number of elements that products compute, in all steps of a loop."""
    if node is None:
        return 0
    inner = [part for body in node.op.bodies for part in body.nodes if part.op.macs(part.sig)] or [node]
    steps = node.op.steps if isinstance(node.op, Repeat) else 1
    return steps * sum(value.type.count for part in inner for value in part.outputs)


def _nodes(compiled: CompiledModel) -> dict[str, Node]:
    """Return the nodes by the names that layers have."""
    return {name: node for node, name in name_nodes(compiled.graph).items()}


def _of_layers(compiled: CompiledModel, layers: Sequence[ReportedLayer], aim: float) -> Iterator[str]:
    nodes = _nodes(compiled)
    needs = {kernel.name: kernel.needs for kernel in declared_kernels()}
    for layer in layers:
        taken = (layer.instructions or 0) / layer.macs if layer.macs else 0.0
        if taken > aim:
            node = nodes.get(layer.name)
            faster = node is not None and not needs.get(layer.kernel) and _has_faster(compiled, node, layer.kernel)
            yield f"{layer.kernel} {taken:.1f}: {_why(layer, node, faster)}."


def _has_faster(compiled: CompiledModel, node: Node, taken: str) -> bool:
    """Return whether portable C was chosen although a kernel for the CPU fits and is faster by its costs."""
    costs = cost_table(compiled.board.cpu)
    fitting = {kernel.name: kernel for kernel in fitting_kernels(node, compiled.board.features, any_size=False)}
    most = costs.instructions(node, fitting[taken]) if taken in fitting else math.inf
    return any(kernel.needs and costs.instructions(node, kernel) < most for kernel in fitting.values())


def _why(layer: ReportedLayer, node: Node | None, faster: bool) -> str:
    if faster:
        return "less code was chosen (`--optimize speed` takes a faster kernel)"
    if node is not None and isinstance(node.op, Repeat):
        each, products = (layer.instructions or 0) / node.op.steps, layer.macs / node.op.steps
        parts = len(node.op.body.nodes)
        return f"a step has {products:.0f} products in {parts} operators, and takes {each:.0f} instructions"
    if node is None or node.op.bodies:
        return "a step's elements are computed beside its products"
    outputs = sum(value.type.count for value in node.outputs)
    if layer.macs <= FEW * outputs:
        more = ((layer.instructions or 0) - layer.macs) / outputs
        return f"{layer.macs / outputs:.0f} products an output, which takes {more:.0f} instructions more"
    return f"only {outputs} outputs for what is prepared"
