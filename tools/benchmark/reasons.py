# SPDX-License-Identifier: Apache-2.0
"""Why a model, or a layer of it, takes more instructions a multiply-accumulate than it should."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from mcugen.compiled import CompiledModel
from mcugen.hir.graph import Node
from mcugen.kernels.choose import fitting_kernels
from mcugen.kernels.cost import cost_table
from mcugen.report.figures import Layer
from mcugen.report.kernels import declared_kernels

MODEL_AIM, LAYER_AIM = 1.5, 2.5
"""Instructions a multiply-accumulate, of integers on a CPU that multiplies two at a time."""

SHARE = 0.03
"""Layers that take less of a model are not asked for."""

FEW = 64
"""Products: what an output takes besides them shows."""


def reasons(compiled: CompiledModel, layers: Sequence[Layer]) -> str:
    """Sentences on what lies above the aims; none if nothing does, or if the CPU has no such instructions."""
    if not compiled.board.features & {"dsp", "mve"}:
        return ""
    total, macs = sum(layer.instructions or 0 for layer in layers), sum(layer.macs for layer in layers)
    large = [layer for layer in layers if (layer.instructions or 0) > SHARE * total]
    found = list(_of_layers(compiled, large, LAYER_AIM))
    if macs and total > MODEL_AIM * macs:
        besides = _without_products(layers, total)
        found = [besides, *found] if besides or found else list(_of_layers(compiled, large, MODEL_AIM))
    return " ".join(dict.fromkeys(sentence for sentence in found if sentence))


def _without_products(layers: Sequence[Layer], total: int) -> str:
    """What takes no part in products."""
    besides = Counter[str]()
    for layer in layers:
        besides[layer.op] += 0 if layer.macs else layer.instructions or 0
    if not besides.total() > SHARE * total:
        return ""
    most = ", ".join(f"{op} {count / total:.0%}" for op, count in besides.most_common(3) if count > SHARE * total)
    return f"{besides.total() / total:.0%} is no product{f' ({most})' if most else ''}."


def _of_layers(compiled: CompiledModel, layers: Sequence[Layer], aim: float) -> Iterator[str]:
    nodes = {node.outputs[0].name: node for node in compiled.graph.nodes}
    needs = {kernel.name: kernel.needs for kernel in declared_kernels()}
    for layer in layers:
        taken = (layer.instructions or 0) / layer.macs if layer.macs else 0.0
        if taken > aim:
            node = nodes.get(layer.name)
            faster = node is not None and not needs.get(layer.kernel) and _has_faster(compiled, node, layer.kernel)
            yield f"{layer.kernel} {taken:.1f}: {_why(layer, node, faster)}."


def _has_faster(compiled: CompiledModel, node: Node, taken: str) -> bool:
    """Whether plain C was taken where a kernel for the CPU fits, and is faster by its costs."""
    costs = cost_table(compiled.board.cpu)
    fitting = {kernel.name: kernel for kernel in fitting_kernels(node, compiled.board.features, any_size=False)}
    most = costs.instructions(node, fitting[taken]) if taken in fitting else math.inf
    return any(kernel.needs and costs.instructions(node, kernel) < most for kernel in fitting.values())


def _why(layer: Layer, node: Node | None, faster: bool) -> str:
    if faster:
        return "less code was chosen (`--optimize speed` takes a faster kernel)"
    if node is None or node.op.bodies:
        return "a step's elements are computed beside its products"
    outputs = sum(value.type.count for value in node.outputs)
    if layer.macs <= FEW * outputs:
        more = ((layer.instructions or 0) - layer.macs) / outputs
        return f"{layer.macs / outputs:.0f} products an output, which takes {more:.0f} instructions more"
    return f"only {outputs} outputs for what is prepared"
