# SPDX-License-Identifier: Apache-2.0
"""Kernels that call a library: which nodes they can compute, and what they give where they round in their own way."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from mcugen.hir.graph import Graph, Node
from mcugen.hir.interpreter import Reference
from mcugen.lir.builder import Builder, Kernel, trial
from mcugen.lir.program import Program


def library_kernels(
    graph: Graph, features: frozenset[str], goal: str = "balanced", wanted: Collection[str] = ()
) -> dict[Node, Kernel]:
    """By node the first that fits, or for the goal `flash` the one of the smallest constants; `wanted` names first.

    In bodies only those that round as we do (see Kernel).
    """
    found = {}
    for node, is_outside in _nodes(graph):
        fitting = [k for k in _kernels(node) if k.fits(node, features) and (is_outside or k.evaluate is None)]
        fitting = [k for k in fitting if k.name in wanted] or fitting
        if fitting:
            sizes = [_constants(node, k, features) if goal == "flash" else 0 for k in fitting]
            found[node] = fitting[sizes.index(min(sizes))]
    return found


def references(graph: Graph, program: Program) -> dict[Node, Reference]:
    """For nodes of `graph` that `program`, made of it, computes with another rounding than the operator's reference."""
    used = {(instr.name, instr.kernel) for instr in program.instrs if instr.library}
    return {
        node: kernel.evaluate
        for node in graph.nodes
        for kernel in _kernels(node)
        if kernel.evaluate is not None and (node.outputs[0].name, kernel.name) in used
    }


def own_kernel(node: Node, features: frozenset[str]) -> Kernel | None:
    """The kernel of an operator without a choice, if it writes one instruction; its costs are by what it computes."""
    builder = Builder(Program("trial"), features)
    node.op.lower(node, builder)  # type: ignore[attr-defined]
    names = {instr.kernel for instr in builder.program.instrs}
    return Kernel(names.pop(), way=_own_way) if len(names) == 1 else None


def _own_way(node: Node) -> str:
    return f"{node.op.name}_{node.sig.input(0).dtype.value}"


def _nodes(graph: Graph) -> Iterator[tuple[Node, bool]]:
    """All nodes, and whether they are outside of bodies."""
    return ((node, part is graph) for part in graph.nested() for node in part.nodes)


def _constants(node: Node, kernel: Kernel, features: frozenset[str]) -> int:
    """Bytes of flash."""
    return trial(node, kernel, features).program.weights_size


def _kernels(node: Node) -> tuple[Kernel, ...]:
    return getattr(node.op, "library", ())
