# SPDX-License-Identifier: Apache-2.0
"""A pipeline over frames: where a program is cut so that two cores, each with a part, take the least time a frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from mcugen.hir.graph import Graph, Node
from mcugen.lir.frames import crossing, cut, early_states, may_cut
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Control, Program
from mcugen.memory.plan import plan_memory
from mcugen.memory.verify_plan import verify_plan
from mcugen.search.core_assignment import LEAST_GAIN, kernels_of
from mcugen.search.core_partition import PER_BYTE, Forms

MOST_CUTS = 12
"""Places to cut that are tried, the fastest first."""

Lower = Callable[[Mapping[Node, Kernel]], Program]
"""The program of the graph by these kernels, without a plan."""


@dataclass(frozen=True)
class _Cut:
    """Before node number `at`: the time of a frame, in instructions of the first core, and the kernels of all nodes."""

    at: int
    time: float
    kernels: Mapping[Node, Kernel]


def pipelined_program(
    graph: Graph, whole: Program, forms: Forms, lower: Lower, limit: int, time: float
) -> Program | None:
    """The pipeline with the least time a frame, if that is below `time` by LEAST_GAIN, within `limit` bytes of arena.

    None where there is no such cut: through layers row by row, or through a state.
    """
    if any(instr.control is Control.STREAM for instr in whole.instrs) or graph.lesson is not None:
        return None
    kernels, time = kernels_of(graph, whole, forms.first.features), (1 - LEAST_GAIN) * time
    faster = (each for each in sorted(_cuts(graph, kernels, forms), key=lambda each: each.time) if each.time < time)
    for each in islice(faster, MOST_CUTS):
        program = lower(each.kernels)
        early_states(program)
        behind = {v.name for node in graph.nodes[each.at :] for v in node.outputs}
        at = next((i for i, instr in enumerate(program.instrs) if instr.name in behind), 0)
        if not may_cut(program, at):
            continue
        crossed = sum(buffer.nbytes for buffer in crossing(program, at))
        if not crossed or each.time + PER_BYTE * crossed >= time:
            continue
        cut(program, at)
        plan_memory(program)
        if program.arena_size <= limit:
            verify_plan(program)
            return program
    return None


def _cuts(graph: Graph, kernels: Mapping[str, Kernel], forms: Forms) -> Iterator[_Cut]:
    """Before each node but the first, what crosses aside."""
    first, other = forms.first, forms.other
    nodes = [node for node in graph.nodes if node.outputs]
    wanted = [kernels.get(node.outputs[0].name) for node in nodes]
    theirs = [other.nearest(node, kernel) for node, kernel in zip(nodes, wanted, strict=True)]
    ours_take = [first.time(node, kernel) for node, kernel in zip(nodes, wanted, strict=True)]
    theirs_take = [other.time(node, kernel) for node, kernel in zip(nodes, theirs, strict=True)]
    for at in range(1, len(nodes)):
        chosen = zip(nodes, [*wanted[:at], *theirs[at:]], strict=True)
        time = forms.both(sum(ours_take[:at]), sum(theirs_take[at:]))
        yield _Cut(at, time, {node: kernel for node, kernel in chosen if kernel})
