# SPDX-License-Identifier: Apache-2.0
"""A pipeline over two frames: where to cut a program so that two cores take the least time per frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from mcugen.hir.graph import Graph, Node
from mcugen.lir.frames import crossing, cut, may_cut, update_states_early
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Control, Program
from mcugen.memory.plan import plan_memory
from mcugen.memory.verify_plan import verify_plan
from mcugen.search.core_assignment import kernels_of
from mcugen.search.core_partition import INSTRUCTIONS_PER_COPIED_BYTE, PartitionSearch
from mcugen.search.objective import TOLERANCES

MAX_CUTS_TRIED = 12
"""Largest number of positions of the cut between the two cores' parts that are tried, the fastest by estimate first."""

Lower = Callable[[Mapping[Node, Kernel]], Program]
"""Lowers the graph with the given kernels to a program without a memory plan."""


@dataclass(frozen=True)
class _Cut:
    """A cut before node number `at`, with its time per frame and the kernels of all nodes.

    The time is in instructions of the first core.
    """

    at: int
    time: float
    kernels: Mapping[Node, Kernel]


def pipelined_program(
    graph: Graph, whole: Program, partition_search: PartitionSearch, lower: Lower, limit: int, time: float
) -> Program | None:
    """Return the program of a two-core pipeline: each core computes one part of the layers, for two frames at once.

    A frame is the input of one call. The cut with the least time per frame is chosen.

    Args:
        graph: The optimized graph.
        whole: The program of one core.
        partition_search: The two cores and their costs.
        lower: Lowers the graph with given kernels.
        limit: Largest arena in bytes.
        time: Time per frame without a pipeline, in instructions of the first core.

    Returns:
        The program, or None if no cut is valid and saves the share Tolerances.min_two_core_saving of `time`. No cut is
        valid in programs with layers row by row or with training, nor where a state would cross the cut.
    """
    if any(instr.control is Control.STREAM for instr in whole.instrs) or graph.lesson is not None:
        return None
    kernels, time = (
        kernels_of(graph, whole, partition_search.first.features),
        (1 - TOLERANCES.min_two_core_saving) * time,
    )
    faster = (
        candidate
        for candidate in sorted(_cuts(graph, kernels, partition_search), key=lambda candidate: candidate.time)
        if candidate.time < time
    )
    for candidate in islice(faster, MAX_CUTS_TRIED):
        program = lower(candidate.kernels)
        update_states_early(program)
        outputs_behind = {v.name for node in graph.nodes[candidate.at :] for v in node.outputs}
        at = next((i for i, instr in enumerate(program.instrs) if instr.name in outputs_behind), 0)
        if not may_cut(program, at):
            continue
        crossed = sum(buffer.nbytes for buffer in crossing(program, at))
        if not crossed or candidate.time + INSTRUCTIONS_PER_COPIED_BYTE * crossed >= time:
            continue
        cut(program, at)
        plan_memory(program)
        if program.arena_size <= limit:
            verify_plan(program)
            return program
    return None


def _cuts(graph: Graph, kernels: Mapping[str, Kernel], partition_search: PartitionSearch) -> Iterator[_Cut]:
    """Yield the cuts before each node but the first, without the time to move what crosses."""
    first, other = partition_search.first, partition_search.other
    nodes = [node for node in graph.nodes if node.outputs]
    first_kernels = [kernels.get(node.outputs[0].name) for node in nodes]
    other_kernels = [
        other.preferred_or_fastest(node, kernel) for node, kernel in zip(nodes, first_kernels, strict=True)
    ]
    first_times = [first.time(node, kernel) for node, kernel in zip(nodes, first_kernels, strict=True)]
    other_times = [other.time(node, kernel) for node, kernel in zip(nodes, other_kernels, strict=True)]
    for at in range(1, len(nodes)):
        chosen = zip(nodes, [*first_kernels[:at], *other_kernels[at:]], strict=True)
        time = partition_search.parallel_time(sum(first_times[:at]), sum(other_times[at:]))
        yield _Cut(at, time, {node: kernel for node, kernel in chosen if kernel})
