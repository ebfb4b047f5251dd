# SPDX-License-Identifier: Apache-2.0
"""Kernels that call a library: which nodes they can compute, and what they give where they round in their own way."""

from __future__ import annotations

from collections.abc import Iterator

from mcugen.hir.graph import Graph, Node
from mcugen.hir.interpreter import Reference
from mcugen.lir.builder import Builder, Kernel
from mcugen.lir.program import Program


def library_kernels(graph: Graph, features: frozenset[str]) -> dict[Node, Kernel]:
    """The first that fits, by node; in bodies only those that round as we do (see Kernel)."""
    found = ((node, is_outside, _fitting(node, features)) for node, is_outside in _nodes(graph))
    return {node: k for node, is_outside, k in found if k is not None and (is_outside or k.evaluate is None)}


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
    """A kernel of the name of the only instruction that an operator without a choice writes; None if it is not one."""
    builder = Builder(Program("trial"), features)
    node.op.lower(node, builder)  # type: ignore[attr-defined]
    names = {instr.kernel for instr in builder.program.instrs}
    return Kernel(names.pop()) if len(names) == 1 else None


def _nodes(graph: Graph) -> Iterator[tuple[Node, bool]]:
    """All nodes, and whether they are outside of bodies."""
    return ((node, part is graph) for part in graph.nested() for node in part.nodes)


def _fitting(node: Node, features: frozenset[str]) -> Kernel | None:
    return next((kernel for kernel in _kernels(node) if kernel.fits(node, features)), None)


def _kernels(node: Node) -> tuple[Kernel, ...]:
    return getattr(node.op, "library", ())
