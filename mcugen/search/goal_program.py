# SPDX-License-Identifier: Apache-2.0
"""The program that serves a goal best, without a budget: kernels, line-buffered groups, tiles, compressed weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from mcugen.backends.cpu.pipeline import Kernels, lowered, plan_program
from mcugen.core.limits import restart_time_limit
from mcugen.core.options import GOALS
from mcugen.hir.graph import Graph
from mcugen.kernels.choose import Limits
from mcugen.lir.program import Program
from mcugen.search.budget import use_of
from mcugen.search.head_splitting import split_attention_heads
from mcugen.search.line_buffer_groups import GraphSegment, plan_ram_bytes, with_groups
from mcugen.search.line_buffer_tradeoff import with_useful_groups
from mcugen.search.line_buffering import Streamings
from mcugen.search.objective import TOLERANCES
from mcugen.search.plan import NO_CHANGES, BuiltProgram, GraphChanges, divided_layers
from mcugen.search.problem import SearchProblem
from mcugen.search.spatial_tiling import tile_columns
from mcugen.search.weight_decompression import (
    better_of,
    choose_compressed_constants,
    tile_for_decoding,
    with_compressed_constants,
)

MAX_SEARCH_WORK = 8_000
"""Limit of the search for the least RAM, in units of `counted_work`; it is reached after about ten seconds.

The best program found until then is used.
"""

WORK_PER_INSTRUCTION = 3
"""Time to lower and plan one instruction, relative to the time to evaluate one line-buffered group."""

MAX_PLANNED_GROUPINGS = 4
"""Number of divisions of a graph into line-buffered groups for which memory is planned, those with least RAM first.

Few are enough, as estimates of their RAM are right within a few percent.
"""

RAM_EXPONENT = 16
"""Exponent of RAM in the product time · RAM¹⁶ that the goal `ram` minimizes among programs with nearly the least RAM.

To save 1 % of RAM, a program may take a sixth more time.
"""

ARENA_ESTIMATE_RATIOS = (1.0, 1.05, 1.15)
"""Limits of RAM that are tried for the choice of faster kernels, as ratios to the planned arena.

Ratios above 1 can fit, as the planner overlaps buffers that the estimate counts separately.
"""


def build_for_goal(problem: SearchProblem, *, must_save_flash: bool = False) -> BuiltProgram:
    """Build a program for the goal of the options, with compressed weights where these serve the goal.

    Args:
        problem: The graph, board and options.
        must_save_flash: Whether to compress weights wherever that saves flash, to meet a flash limit.
    """
    board, options = problem.board, problem.options
    plain = _without_compression(problem)
    codes = choose_compressed_constants(plain.program, board, options, must_save=must_save_flash)
    tiled_graph = tile_for_decoding(problem.graph, plain.program, codes)
    whole = replace(
        plain, program=with_compressed_constants(plain.program, codes, board, options, must_save=must_save_flash)
    )
    if tiled_graph is None:
        return whole
    changes = GraphChanges(channel_tiles=divided_layers(problem.graph, tiled_graph))
    tiled = _without_compression(problem.with_graph(tiled_graph, changes))
    codes = choose_compressed_constants(tiled.program, board, options, must_save=must_save_flash)
    tiled = replace(
        tiled, program=with_compressed_constants(tiled.program, codes, board, options, must_save=must_save_flash)
    )
    is_whole_better = better_of([whole.program, tiled.program], board, options) is whole.program
    return whole if is_whole_better else tiled


def _without_compression(problem: SearchProblem) -> BuiltProgram:
    return GoalSearch(problem, streamings_of(problem)).program()


def streamings_of(problem: SearchProblem) -> Streamings:
    """Return a new cache of line-buffering searches for a problem's board and options."""
    return Streamings(problem.board, is_streamed_in=problem.options.stream_input)


@dataclass(frozen=True)
class GraphVariant:
    """A graph that the search derives from the problem's graph."""

    graph: Graph
    ram: int = 0
    """Estimated RAM in bytes; 0 without line-buffered groups."""
    changes: GraphChanges = NO_CHANGES
    """The changes by which it differs from the optimized graph of the model."""


@dataclass(frozen=True)
class _VariantProgram:
    """The planned program of a variant, with the kernels to choose from."""

    built: BuiltProgram
    variant: GraphVariant
    kernels: Kernels

    @property
    def program(self) -> Program:
        return self.built.program


@dataclass(frozen=True)
class GoalSearch:
    """The search for the program of a goal, with layers in line-buffered groups where these serve the goal."""

    problem: SearchProblem
    streamings: Streamings
    """Line-buffering searches of graphs, each cached, as several goals need the same one."""

    def program(self) -> BuiltProgram:
        """Return the best program for the goal."""
        options = self.problem.options
        candidates = self._variant_programs()
        best = least_ram(candidate.built for candidate in candidates)
        if options.optimize == GOALS[0] and not options.stream_input:
            program = with_useful_groups(self.problem, self.streamings, candidates[0].kernels, best.program)
            return replace(best, program=program)
        return self._least_ram(candidates, best) if options.optimize == "ram" else best

    def _variant_programs(self) -> list[_VariantProgram]:
        """Return the planned programs of the variants, without those that surely need more RAM than another."""
        programs = list[_VariantProgram]()
        for variant in graph_variants(self.problem, self.streamings):
            least_arena = min((other.program.arena_size for other in programs), default=math.inf)
            if variant.ram <= TOLERANCES.ram_estimate_margin * least_arena:
                programs.append(self._planned(variant, self._max_arena_ratio * least_arena))
            if counted_work(self.streamings, [other.program for other in programs]) > MAX_SEARCH_WORK:
                break
        return programs

    @property
    def _max_arena_ratio(self) -> float:
        """Return the largest ratio to the least arena at which a program is still a candidate."""
        return ARENA_ESTIMATE_RATIOS[1] if self.problem.options.optimize == "ram" else 1.0

    def _planned(self, variant: GraphVariant, max_arena: float) -> _VariantProgram:
        """Return the program of a variant; planning stops early if the arena exceeds `max_arena` bytes."""
        kernels = Kernels(variant.graph, self.problem.board, self.problem.options)
        program = lowered(variant.graph, self.problem.board, self.problem.options, kernels=kernels.within())
        return _VariantProgram(
            BuiltProgram(plan_program(program, max_bytes=max_arena), variant.changes), variant, kernels
        )

    def _least_ram(self, candidates: Sequence[_VariantProgram], smallest: BuiltProgram) -> BuiltProgram:
        """Return the program that serves `ram` best among variants that need nearly the least RAM."""
        restart_time_limit()
        balanced = GoalSearch(self.problem.for_goal(GOALS[0]), self.streamings).program()  # It may need less RAM.
        restart_time_limit()
        max_arena = self._max_arena_ratio * smallest.program.arena_size
        close = [candidate for candidate in candidates if candidate.program.arena_size <= max_arena]
        rivals = LeastRamRivals(self.problem, balanced, [candidate.built for candidate in close])
        for candidate in close:
            if counted_work(self.streamings, [rival.program for rival in rivals.built]) <= MAX_SEARCH_WORK:
                rivals.add(self._faster(candidate), candidate.variant.changes)
        best = rivals.best()
        self._record_rejected([*(other.built for other in candidates), *rivals.built, balanced], best)
        return best

    def _record_rejected(self, programs: Sequence[BuiltProgram], best: BuiltProgram) -> None:
        """Record the programs that lost against the best one in the trace, if there is one."""
        if self.problem.trace is None:
            return
        max_arena = TOLERANCES.max_ram_excess_ratio * min(built.program.arena_size for built in programs)
        for built in {id(built.program): built for built in programs if built.program is not best.program}.values():
            arena = built.program.arena_size
            if arena > max_arena:
                reason = f"needs an arena of {arena:,} bytes, where {best.program.arena_size:,} are enough"
            else:
                reason = "another program with nearly the least RAM has a better trade of time and RAM"
            candidate = self.problem.candidate("a variant for the least RAM", built)
            self.problem.recorded(candidate, "least RAM", f"Rejected: {reason}.")

    def _faster(self, candidate: _VariantProgram) -> Iterator[Program]:
        """Yield programs with faster kernels, for each ARENA_ESTIMATE_RATIOS, where a program leaves RAM unused."""
        board, options = self.problem.board, self.problem.options
        known = {candidate.program.instructions_estimate}
        for ratio in ARENA_ESTIMATE_RATIOS:
            limits = Limits(board.total_ram, board.total_flash, ram_in_use=int(ratio * candidate.program.arena_size))
            kernels = candidate.kernels.within(limits)
            faster = lowered(candidate.variant.graph, board, options, kernels=kernels)
            if faster.instructions_estimate not in known:
                known.add(faster.instructions_estimate)
                yield faster


def counted_work(streamings: Streamings, programs: Iterable[Program]) -> int:
    """Return the work of a search so far, in units of one evaluated line-buffered group (see MAX_SEARCH_WORK).

    Each instruction that was lowered and planned counts as WORK_PER_INSTRUCTION units.

    Args:
        streamings: The line-buffering searches.
        programs: The programs that were lowered and planned.
    """
    return streamings.looked_at + WORK_PER_INSTRUCTION * sum(len(program.instrs) for program in programs)


@dataclass
class LeastRamRivals:
    """The candidates for the goal `ram` that need nearly the least RAM, and the choice among them."""

    problem: SearchProblem
    balanced: BuiltProgram
    """The program for `balanced`: no candidate with a larger arena is chosen."""
    built: list[BuiltProgram] = field(default_factory=list)
    """The candidates, with memory plans."""

    def add(self, programs: Iterable[Program], changes: GraphChanges) -> None:
        """Plan memory for more programs and add them; planning of a program ends early once it cannot be the best.

        Args:
            programs: The lowered programs.
            changes: The changes of the graph that they were lowered from.
        """
        for program in programs:
            self.built.append(BuiltProgram(plan_program(program, max_bytes=self._max_useful_arena(program)), changes))

    def best(self) -> BuiltProgram:
        """Return the candidate with the least product time · RAM¹⁶ among those that need nearly the least RAM.

        Candidates that exceed the budget come last.
        """
        rivals = [*self.built, self.balanced]
        max_arena = self._max_arena(rivals)
        return min(
            (rival for rival in rivals if rival.program.arena_size <= max_arena),
            key=lambda rival: self._rank(rival.program),
        )

    def _max_arena(self, rivals: Sequence[BuiltProgram]) -> float:
        least_arena = min(rival.program.arena_size for rival in rivals)
        return min(TOLERANCES.max_ram_excess_ratio * least_arena, self.balanced.program.arena_size)

    def _max_useful_arena(self, program: Program) -> float:
        """Return the largest arena, in bytes, with which a program can still be the best candidate."""
        max_arena = self._max_arena([*self.built, self.balanced])
        for other in (rival.program for rival in self.built):
            excess, _ = self._rank(other)
            if not excess:
                ratio = (_time(other) / _time(program)) ** (1 / RAM_EXPONENT)
                max_arena = min(max_arena, math.ceil(other.arena_size * max(ratio, 1.0)) - 1)
        return max_arena

    def _rank(self, program: Program) -> tuple[float, float]:
        """Return the excess over the budget, then the trade of time and RAM: less is better."""
        trade = math.log(_time(program)) + RAM_EXPONENT * math.log(max(program.arena_size, 1))
        return self.problem.budget.excess(use_of(program, self.problem.board, self.problem.options)), trade


def _time(program: Program) -> float:
    return max(program.instructions_estimate or 0.0, 1.0)


def least_ram(programs: Iterable[BuiltProgram]) -> BuiltProgram:
    """Return the program with the least RAM, and the fastest of several with the same RAM."""
    return min(programs, key=lambda built: (built.program.arena_size, built.program.instructions_estimate or 0.0))


def graph_variants(problem: SearchProblem, streamings: Streamings) -> Iterator[GraphVariant]:
    """Yield variants of the graph with line-buffered groups, and the graph without groups.

    Goals other than `ram` yield the graph as it is. Where the caller passes the input row by row, the first layers are
    a group for every goal.

    Args:
        problem: The graph with its options.
        streamings: The line-buffering searches.
    """
    graph, options = problem.graph, problem.options
    if options.optimize != "ram" and not options.stream_input:
        yield GraphVariant(graph, changes=problem.changes)
        return
    divided = split_attention_heads(graph) if options.optimize == "ram" else graph
    in_bodies = streamings.bodies_in_groups(divided) if options.optimize == "ram" else divided
    split = problem.changes.merged(GraphChanges(split_heads=divided_layers(graph, divided)))
    ordered = dict[Graph, GraphChanges]()
    for variant, changes in ((in_bodies, split), (divided, split), (graph, problem.changes)):
        ordered.setdefault(streamings.ordered(variant), changes)
    for variant, changes in ordered.items():
        yield from _RowVariants(problem, streamings).of(GraphVariant(variant, changes=changes))


@dataclass(frozen=True)
class _RowVariants:
    """The variants of one graph with line-buffered groups and, for the least RAM, with spatial tiling."""

    problem: SearchProblem
    streamings: Streamings

    def of(self, variant: GraphVariant) -> Iterator[GraphVariant]:
        """Yield the grouped variants of one graph.

        For the least RAM, the group that needs most RAM is also tiled spatially, as long as tiling reduces the RAM.
        """
        plans = self._plans(variant.graph)
        in_groups = self._grouped(variant, plans)
        yield from in_groups
        if not in_groups or not self.problem.options.stream_input:
            yield replace(variant, ram=0)
        while self.problem.options.optimize == "ram" and plans and (tiled := _tiled(variant, plans[0])):
            previous_ram, variant, plans = plan_ram_bytes(plans[0]), tiled, self._plans(tiled.graph)
            if not plans or plan_ram_bytes(plans[0]) > TOLERANCES.max_patched_ram_ratio * previous_ram:
                return
            yield from self._grouped(variant, plans)

    def _plans(self, graph: Graph) -> list[list[GraphSegment]]:
        """Return the most promising partitions of a graph into segments."""
        streaming = self.streamings.of(graph)
        if self.problem.options.optimize == "ram":
            return list(islice(streaming.plans(), MAX_PLANNED_GROUPINGS))
        return sorted(streaming.plans(), key=streaming.product)[:1]

    def _grouped(self, variant: GraphVariant, plans: Sequence[Sequence[GraphSegment]]) -> list[GraphVariant]:
        """Return the variants with line-buffered groups, without plans that have no groups."""
        is_streamed_in = self.problem.options.stream_input
        graphs = [
            (with_groups(variant.graph, plan, is_streamed_in=is_streamed_in), plan_ram_bytes(plan)) for plan in plans
        ]
        return [GraphVariant(graph, ram, variant.changes) for graph, ram in graphs if graph is not variant.graph]


def _tiled(variant: GraphVariant, plan: Sequence[GraphSegment]) -> GraphVariant | None:
    """Return the variant with spatial tiling of the group that needs most RAM, or None if it cannot be tiled."""
    busiest = max(plan, key=lambda segment: segment.ram)
    nodes = variant.graph.nodes[busiest.first : busiest.end]
    tiled_graph = tile_columns(variant.graph, nodes) if busiest.op else None
    if tiled_graph is None:
        return None
    changes = GraphChanges(spatial_tiles=divided_layers(variant.graph, tiled_graph))
    return GraphVariant(tiled_graph, changes=variant.changes.merged(changes))
