# SPDX-License-Identifier: Apache-2.0
"""The program that serves a goal best, without a budget: kernels, line-buffered groups, tiles, compressed weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from mcugen.backends.cpu.pipeline import Kernels, lowered, plan_program
from mcugen.core.limits import restart_time_limit
from mcugen.core.options import GOALS
from mcugen.kernels.choose import Limits
from mcugen.lir.program import Program
from mcugen.search.budget import use_of
from mcugen.search.graph_transformations import GraphVariant
from mcugen.search.graph_variants import graph_variants
from mcugen.search.line_buffer_tradeoff import with_useful_groups
from mcugen.search.line_buffering import Streamings
from mcugen.search.objective import TOLERANCES
from mcugen.search.plan import BuiltProgram, GraphChanges, divided_layers
from mcugen.search.problem import SearchProblem
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
"""Work to lower and plan one instruction, in units of one evaluated line-buffered group (see MAX_SEARCH_WORK)."""

RAM_EXPONENT = 16
"""Exponent of RAM in the product time · RAM¹⁶ that the goal `ram` minimizes among programs with nearly the least RAM.

A program may therefore take a sixth (16 %) more time to save 1 % of RAM.
"""

ARENA_ESTIMATE_RATIOS = (1.0, 1.05, 1.15)
"""Limits of estimated RAM that are tried when faster kernels are chosen, as ratios to the bytes of the planned arena.

Programs with ratios above 1 can fit, as the planner overlaps buffers that the estimate counts separately.
"""


def build_for_goal(problem: SearchProblem, *, must_save_flash: bool = False) -> BuiltProgram:
    """Build a program for the goal of the options, with compressed weights if they serve the goal.

    Args:
        problem: The graph, board and options.
        must_save_flash: Whether to compress all weights for which that saves flash, to meet a flash limit.
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
    """Return a new, empty cache of searches for line-buffered groups, for a problem's board and options.

    A line-buffered group consists of layers that are computed together row by row, so that only a few rows of the
    tensors between them are in memory.
    """
    return Streamings(problem.board, is_streamed_in=problem.options.stream_input)


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
    """The search for the program of a goal, with line-buffered groups of layers if they serve the goal.

    A line-buffered group is computed row by row, so that only a few rows of the tensors between its layers are live.
    """

    problem: SearchProblem
    """The graph, the board, and the options with the goal."""
    streamings: Streamings
    """Cached searches for the line-buffered groups of graphs, since several goals need the same searches."""

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
        return TOLERANCES.max_close_arena_ratio if self.problem.options.optimize == "ram" else 1.0

    def _planned(self, variant: GraphVariant, max_arena: float) -> _VariantProgram:
        """Return the program of a variant; planning stops early if the arena exceeds `max_arena` bytes."""
        kernels = Kernels(variant.graph, self.problem.board, self.problem.options)
        program = lowered(variant.graph, self.problem.board, self.problem.options, kernels=kernels.within())
        built = BuiltProgram(plan_program(program, max_bytes=max_arena), variant.changes, kind=variant.kind)
        return _VariantProgram(built, variant, kernels)

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
                rivals.add(self._faster(candidate), candidate.variant)
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
            self.problem.recorded(candidate, built.kind or "least RAM", f"Rejected: {reason}.")

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
    """Return the work of a search so far, by which the search is cut short at MAX_SEARCH_WORK.

    The unit is the evaluation of one line-buffered group (layers that are computed together row by row). Each
    instruction that was lowered and planned counts as WORK_PER_INSTRUCTION units.

    Args:
        streamings: The searches for line-buffered groups.
        programs: The programs that were lowered and planned.
    """
    return streamings.looked_at + WORK_PER_INSTRUCTION * sum(len(program.instrs) for program in programs)


@dataclass
class LeastRamRivals:
    """The candidates for the goal `ram` that need nearly the least RAM, and the choice of the best one."""

    problem: SearchProblem
    """The graph, the board and the options."""
    balanced: BuiltProgram
    """The program for the goal `balanced`; no candidate with a larger arena is chosen."""
    built: list[BuiltProgram] = field(default_factory=list)
    """The candidates, with memory plans."""

    def add(self, programs: Iterable[Program], variant: GraphVariant) -> None:
        """Plan memory for more programs and add them; planning of a program ends early once it cannot be the best.

        Args:
            programs: The lowered programs.
            variant: The variant of the graph that they were lowered from.
        """
        for program in programs:
            planned = plan_program(program, max_bytes=self._max_useful_arena(program))
            self.built.append(BuiltProgram(planned, variant.changes, kind=variant.kind))

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
