# SPDX-License-Identifier: Apache-2.0
"""Choice of library kernels, and reference implementations of those that round differently from the operators."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from mcugen.hir.graph import Graph, Node
from mcugen.hir.interpreter import Reference
from mcugen.kernels.cost import CostTable
from mcugen.kernels.families import library_kernels_of
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Program
from mcugen.lir.trial import trial


def library_kernels(
    graph: Graph, family: str, features: frozenset[str], costs: CostTable, goal: str, requested: Collection[str] = ()
) -> dict[Node, Kernel]:
    """Choose a kernel of a library, such as CMSIS-NN, for each node that one of its kernels can compute.

    For the goal "flash", the kernel with the smallest weights is chosen; for other goals, the fastest kernel by
    measured costs, or the first one if that was not measured. Within bodies (subgraphs of loops and branches), only
    kernels that round exactly as the operator's reference are allowed.

    Args:
        graph: The model.
        family: Name of the library, as in option --kernels, or "auto" for all libraries.
        features: CPU features, and tuning flags (names that select variants of kernels).
        costs: Cost model of the CPU.
        goal: The goal of the user's optimization, as in option --optimize.
        requested: Names of kernels that are preferred to all others.

    Returns:
        The kernel of each node; nodes that no library kernel fits are absent.
    """
    chosen = {}
    for node, is_outside in _nodes(graph):
        kernels = library_kernels_of(node, family)
        fitting = [k for k in kernels if k.fits(node, features) and (is_outside or k.evaluate is None)]
        fitting = [k for k in fitting if k.name in requested] or fitting
        if fitting:
            chosen[node] = _best(node, fitting, features, costs, goal)
    return chosen


def _best(node: Node, fitting: Sequence[Kernel], features: frozenset[str], costs: CostTable, goal: str) -> Kernel:
    """Return the kernel with the smallest weights for the goal `flash`, else the fastest measured one.

    If the first kernel was not measured, it is returned.
    """
    if goal == "flash":
        return min(fitting, key=lambda k: trial(node, k, features).program.weights_size)
    if not costs.knows(node, fitting[0]):
        return fitting[0]
    return min((k for k in fitting if costs.knows(node, k)), key=lambda k: costs.time(node, k))


def references(graph: Graph, program: Program) -> dict[Node, Reference]:
    """Return the numpy references of the nodes whose library kernel in `program` rounds differently from the operator.

    Args:
        graph: The model.
        program: The program that was lowered from `graph`.

    Returns:
        For each such node, the function that computes exactly what its kernel computes; other nodes are absent.
    """
    declarations = {instr.name: instr.declaration for instr in program.instrs if instr.library and instr.declaration}
    used = ((node, declarations.get(node.outputs[0].name)) for node in graph.nodes)
    return {node: kernel.evaluate for node, kernel in used if kernel is not None and kernel.evaluate is not None}


def lower_without_choice(node: Node, features: frozenset[str]) -> Builder:
    """Lower a single node by its operator's own lowering, without a choice of kernels, into a program of its own.

    Args:
        node: The node.
        features: CPU features, and tuning flags (names that select variants of kernels).

    Returns:
        The builder, whose program has the instructions of this node only.
    """
    builder = Builder(Program("trial"), features)
    node.op.lower(node, builder)  # type: ignore[attr-defined]
    return builder


def own_kernel(node: Node, features: frozenset[str]) -> Kernel | None:
    """Return a kernel that stands in the cost table for a node whose operator emits its kernel without a choice.

    Args:
        node: The node.
        features: CPU features, and tuning flags (names that select variants of kernels).

    Returns:
        A kernel that has only a name and a cost variant, "<operator>_<type of the first input>", under which the costs
        are found. None if the operator emits several kinds of kernels.
    """
    names = {instr.kernel for instr in lower_without_choice(node, features).program.instrs}
    first = next((v for v in node.inputs if v is not None), node.outputs[0])
    cost_key = f"{node.op.name}_{first.type.dtype.value}"
    return Kernel(names.pop(), way=lambda _: cost_key) if len(names) == 1 else None


def _nodes(graph: Graph) -> Iterator[tuple[Node, bool]]:
    """Yield all nodes, and whether each is outside of bodies."""
    return ((node, part is graph) for part in graph.nested() for node in part.nodes)
