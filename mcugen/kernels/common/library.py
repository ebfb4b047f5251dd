# SPDX-License-Identifier: Apache-2.0
"""Kernels that call a library: which nodes they can compute, and what they give where they round in their own way."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from mcugen.hir.graph import Graph, Node
from mcugen.hir.interpreter import Reference
from mcugen.kernels.cost import CostTable
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Program
from mcugen.lir.spec import library_kernels_of
from mcugen.lir.trial import trial


def library_kernels(
    graph: Graph, features: frozenset[str], costs: CostTable, goal: str, wanted: Collection[str] = ()
) -> dict[Node, Kernel]:
    """Of the kernels that fit a node, the first, unless another serves the goal better; `wanted` names before others.

    In bodies only those that round as we do (see Kernel).
    """
    found = {}
    for node, is_outside in _nodes(graph):
        fitting = [k for k in _kernels(node) if k.fits(node, features) and (is_outside or k.evaluate is None)]
        fitting = [k for k in fitting if k.name in wanted] or fitting
        if fitting:
            found[node] = _best(node, fitting, features, costs, goal)
    return found


def _best(node: Node, fitting: Sequence[Kernel], features: frozenset[str], costs: CostTable, goal: str) -> Kernel:
    """That of the smallest constants for the goal `flash`, else of the fewest instructions as far as measured."""
    if goal == "flash":
        return min(fitting, key=lambda k: trial(node, k, features).program.weights_size)
    if not costs.knows(node, fitting[0]):
        return fitting[0]
    return min((k for k in fitting if costs.knows(node, k)), key=lambda k: costs.time(node, k))


def references(graph: Graph, program: Program) -> dict[Node, Reference]:
    """For nodes of `graph` that `program`, made of it, computes with another rounding than the operator's reference."""
    used = {(instr.name, instr.kernel) for instr in program.instrs if instr.library}
    return {
        node: kernel.evaluate
        for node in graph.nodes
        for kernel in _kernels(node)
        if kernel.evaluate is not None and (node.outputs[0].name, kernel.name) in used
    }


def alone(node: Node, features: frozenset[str]) -> Builder:
    """A node as its operator writes it, without a choice of kernels."""
    builder = Builder(Program("trial"), features)
    node.op.lower(node, builder)  # type: ignore[attr-defined]
    return builder


def own_kernel(node: Node, features: frozenset[str]) -> Kernel | None:
    """The kernel of an operator without a choice, if it writes one instruction; its costs are by what it computes."""
    names = {instr.kernel for instr in alone(node, features).program.instrs}
    first = next((v for v in node.inputs if v is not None), node.outputs[0])
    way = f"{node.op.name}_{first.type.dtype.value}"
    return Kernel(names.pop(), way=lambda _: way) if len(names) == 1 else None


def _nodes(graph: Graph) -> Iterator[tuple[Node, bool]]:
    """All nodes, and whether they are outside of bodies."""
    return ((node, part is graph) for part in graph.nested() for node in part.nodes)


def _kernels(node: Node) -> tuple[Kernel, ...]:
    return library_kernels_of(node.op)
