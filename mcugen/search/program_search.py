# SPDX-License-Identifier: Apache-2.0
"""Program search: build the requested program or, if it exceeds the budget, the fastest alternative that fits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mcugen.backends.cpu.pipeline import lowered
from mcugen.core.board import Board
from mcugen.core.errors import DoesNotFitError
from mcugen.core.limits import restart
from mcugen.core.options import GOALS, CompileOptions
from mcugen.hir.graph import Graph
from mcugen.lir.program import Control, Program
from mcugen.memory.place import memory_of_arena
from mcugen.search.budget import Fit, cheapest, code_of
from mcugen.search.channel_tiling import in_portions
from mcugen.search.cost_model import CodeMeasure, ProgramCostModel
from mcugen.search.goal_program import build_for_goal
from mcugen.search.line_buffer_groups import each_by_rows
from mcugen.search.metrics import AccuracyLevel, Metrics
from mcugen.search.objective import Budget, Objective
from mcugen.search.plan import BuiltProgram, GraphChanges, ProgramCandidate, divided_layers
from mcugen.search.problem import SearchProblem
from mcugen.search.trace import excess_of
from mcugen.search.transformations import BALANCED, TRANSFORMATIONS, KernelsWithinBudget, Transformation
from mcugen.search.two_core_program import TwoCoreSearch
from mcugen.search.weight_staging import (
    beside_copies,
    lying_in_ram,
    priced_copies,
    staged,
    waits_most,
)

AS_ASKED = "as asked"
"""Name of the requested program."""

IN_PART = "kernels chosen for some weights in RAM"
"""Name of the program whose kernels are chosen for weights of which start-up copies a part."""

WEIGHTS_IN_RAM = KernelsWithinBudget("kernels chosen for weights in RAM", ("ram", "flash"))
"""The transformation that chooses kernels for weights that start-up copies to RAM."""

REQUESTED_PROGRAM = "requested program"
WEIGHT_STAGING = "weight staging"
CHANNEL_TILING = "output-channel tiling"
"""Kinds of decisions in the trace, besides those of the transformations."""


@dataclass(frozen=True)
class Selection:
    """The candidates that later steps of a search choose among, and the one that is best so far."""

    chosen: ProgramCandidate
    candidates: tuple[ProgramCandidate, ...]


class ProgramSearch:
    """The search for the program that serves the goal best within the budget and the board's memory.

    If the requested program does not fit, the TRANSFORMATIONS that may help are tried, and the fastest candidate that
    fits is chosen. The work is bounded: each transformation yields a limited number of candidates.

    Args:
        problem: The optimized graph, the board and the options.
        measure_code: Measures code by compiling it, where no candidate surely fits, or only a slow one.
    """

    def __init__(self, problem: SearchProblem, measure_code: CodeMeasure | None = None) -> None:
        options = problem.options
        graph = each_by_rows(problem.graph, options.by_rows, is_streamed_in=options.stream_input)
        costs = ProgramCostModel(problem.board, options, measure_code)
        self._problem = replace(problem, graph=graph, search=problem.search_name, evaluator=costs)

    @property
    def _board(self) -> Board:
        return self._problem.board

    @property
    def _options(self) -> CompileOptions:
        return self._problem.options

    @property
    def _budget(self) -> Budget:
        return self._problem.budget

    @property
    def _objective(self) -> Objective:
        return self._problem.objective

    @property
    def _costs(self) -> ProgramCostModel:
        return self._problem.costs

    def run(self) -> Fit:
        """Return the chosen program and the requested one.

        Raises:
            DoesNotFitError: If no candidate fits; it names the nearest.
        """
        try:
            fit = self._search()
        except DoesNotFitError:
            self._close_trace(None, None)
            raise
        self._close_trace(fit.requested, fit.chosen)
        return fit

    def _search(self) -> Fit:
        baseline = self._evaluated(self._requested(self._options), REQUESTED_PROGRAM, self._options)
        selection = self._within_budget(Selection(baseline, (baseline,)))
        selection = self._with_room_for_copies(selection, baseline)
        selection = self._for_weights_in_ram(selection)
        chosen = self._with_staged_weights(selection)
        chosen = self._with_tiled_channels(chosen, baseline)
        return Fit(self._budget, chosen, baseline, self._layer_by_layer_instructions(chosen.program))

    # ------------------------------------------------------------------------------------------ Candidates

    def _requested(self, options: CompileOptions, name: str = AS_ASKED) -> ProgramCandidate:
        """Return the program of the requested goal, as built with the given options."""
        restart()
        built = build_for_goal(self._problem.with_options(options))
        return self._problem.candidate(name, built, self._options.optimize)

    def _evaluated(self, candidate: ProgramCandidate, kind: str, limits: CompileOptions) -> ProgramCandidate:
        """Return a built candidate with its two-core program, if the options ask for one, and its copies of weights.

        Args:
            candidate: The candidate, for one core.
            kind: The kind of decision that made it, for the trace.
            limits: Options with the limits of RAM and flash that it was built for.
        """
        built = candidate.built
        if self._options.cores > 1:
            use = self._costs.evaluate(built).use
            built = BuiltProgram(TwoCoreSearch(self._problem).program(built.program, use, limits), built.changes)
        return self._problem.recorded(self._problem.candidate(candidate.name, built, candidate.goal), kind)

    def _transformed(self, transformation: Transformation, limits: CompileOptions) -> ProgramCandidate:
        """Return the best candidate that a transformation proposes for the limits of some options."""
        restart()
        problem = self._problem.with_options(limits)
        proposals = list(transformation.propose(problem))
        best = min(proposals, key=lambda proposal: problem.objective.order(proposal.metrics))
        for proposal in (proposal for proposal in proposals if proposal is not best):
            reason = excess_of(proposal.use, problem.budget) or _comparison(proposal, best)
            self._problem.recorded(proposal, transformation.kind, f"Rejected: {reason}.")
        return self._evaluated(best, transformation.kind, limits)

    def _alternatives(self, baseline: ProgramCandidate, budget: Budget) -> tuple[ProgramCandidate, ...]:
        """Return the candidates of all transformations that may help to keep to a budget, in their order.

        If even the candidate for the least RAM or flash needs far more than the board has, only such candidates are
        built.
        """
        limits = replace(self._options, max_ram=budget.ram, max_flash=budget.flash)
        served = [step for step in TRANSFORMATIONS if set(step.serves) & set(budget.limits)]
        steps = [step for step in served if step.applies(self._problem)]
        first = [step for step in steps if step.goal and baseline.use.lacks]
        minimal = {step: self._transformed(step, limits) for step in first}
        # Recomputation may need less RAM than the program for the least RAM.
        is_trained = any(step.needs_training for step in steps)
        if not is_trained and any(self._exceeds_by_far(candidate) for candidate in (baseline, *minimal.values())):
            return tuple(minimal.values())
        return tuple(minimal[step] if step in minimal else self._transformed(step, limits) for step in steps)

    def _exceeds_by_far(self, candidate: ProgramCandidate) -> bool:
        """Return whether a program built for the least RAM or flash needs far more of that memory than there is."""
        use, margin = candidate.use, self._objective.tolerances.ram_estimate_margin
        usage = {"ram": (use.ram, use.ram_lacking), "flash": (use.flash, use.flash_lacking)}
        return any(
            candidate.goal == memory and nbytes > margin * (nbytes - lacking)
            for memory, (nbytes, lacking) in usage.items()
        )

    def _balanced(self) -> tuple[ProgramCandidate, ...]:
        """Return the program for `balanced`, unless that is the goal."""
        if self._options.optimize == BALANCED.goal:
            return ()
        return (self._transformed(BALANCED, self._options),)

    # ------------------------------------------------------------------------------------------ Steps of the search

    def _within_budget(self, selection: Selection) -> Selection:
        """Return the selection with alternatives to a requested program that exceeds its budget."""
        baseline = selection.chosen
        if not self._budget.excess(baseline.use):
            return selection
        alternatives = self._alternatives(baseline, self._budget.narrowed(baseline.use))
        candidates = (*selection.candidates, *alternatives)
        chosen = cheapest(candidates, self._budget, self._board, built=self._with_measured_code)
        return Selection(chosen, candidates)

    def _with_room_for_copies(self, selection: Selection, baseline: ProgramCandidate) -> Selection:
        """Return the selection with candidates that leave more RAM for copies of weights from slow flash."""
        board, options, chosen = self._board, self._options, selection.chosen
        candidates, charged = selection.candidates, priced_copies(chosen, board, options)
        if charged is not None:
            candidates = (*candidates, *self._with_charged_weights(charged, chosen))
        elif not waits_most(chosen, board, options):
            return selection
        budget = beside_copies(chosen, board, options)  # The arena may leave no room for copies of weights.
        candidates = (*candidates, *(self._alternatives(baseline, budget) if budget else self._balanced()))
        return Selection(cheapest([*candidates, chosen], self._budget, board), candidates)

    def _with_charged_weights(self, charged: CompileOptions, chosen: ProgramCandidate) -> Iterator[ProgramCandidate]:
        """Yield the candidate whose kernels are charged for the bytes of their weights, if it is clearly faster."""
        candidate = self._evaluated(self._requested(charged, IN_PART), WEIGHT_STAGING, charged)
        if self._objective.is_clearly_faster(candidate.metrics, chosen.metrics):
            yield candidate
        else:
            self._problem.rejected(candidate, f"not clearly faster than {_numbered(chosen)}")

    def _for_weights_in_ram(self, selection: Selection) -> Selection:
        """Return the selection with kernels chosen for weights in RAM, where start-up copies all of them."""
        in_ram = lying_in_ram(selection.chosen, self._board, self._options)
        if in_ram is None:
            return selection
        chosen = self._chosen_for_ram(selection.chosen, in_ram)
        return Selection(chosen, (*selection.candidates, chosen))

    def _chosen_for_ram(self, previous: ProgramCandidate, in_ram: CompileOptions) -> ProgramCandidate:
        """Return a program with kernels chosen for weights in RAM, or `previous` if that is not clearly faster.

        Where start-up copies do not leave enough room, the kernels are limited to as many bytes of weights as can be
        copied.
        """
        board, options, budget = self._board, self._options, self._budget
        candidate = self._evaluated(self._requested(in_ram), WEIGHT_STAGING, in_ram)
        excess = budget.excess(candidate.use)
        narrowed = budget.narrowed(candidate.use) if excess else beside_copies(candidate, board, options)
        if narrowed is not None:
            self._problem.rejected(candidate, "the copies of its weights leave too little RAM")
            limits = replace(in_ram, max_ram=narrowed.ram, max_flash=narrowed.flash)
            candidate = self._transformed(WEIGHTS_IN_RAM, limits)
        if budget.excess(candidate.use):
            return previous
        if self._objective.is_clearly_faster(self._placed(candidate), self._placed(previous)):
            return candidate
        self._problem.rejected(candidate, f"not clearly faster than {_numbered(previous)}, with copies of weights")
        return previous

    def _with_staged_weights(self, selection: Selection) -> ProgramCandidate:
        """Return the best candidate with its copies of weights before layers.

        For `speed`, a program for `balanced` is tried too where the arena exceeds its memory: it may fit faster memory.
        """
        board, chosen = self._board, selection.chosen
        arena_room = memory_of_arena(board, self._options.place).room
        if self._options.optimize != "speed" or chosen.program.arena_size <= arena_room:
            return self._staged(chosen)
        candidates = selection.candidates
        if all(candidate.goal != GOALS[0] for candidate in candidates):
            candidates = (*candidates, *self._balanced())
        with_copies = [self._staged(candidate) for candidate in (*candidates, chosen)]
        return cheapest(with_copies, self._budget, board, self._placed)

    def _staged(self, candidate: ProgramCandidate) -> ProgramCandidate:
        """Return a candidate with its copies of weights before layers, as far as the arena has room."""
        built = staged(candidate, self._board, self._options)
        if built is candidate.built:
            return candidate
        return self._problem.updated(replace(candidate, built=built, metrics=self._costs.evaluate(built)))

    def _with_tiled_channels(self, chosen: ProgramCandidate, baseline: ProgramCandidate) -> ProgramCandidate:
        """Return the better of the chosen program and variants whose layers are tiled by output channels.

        Tiles fit the cache of a slow memory. For `speed`, the `balanced` kernels are tried as well, since these read
        weights less often.
        """
        if self._budget.excess(baseline.use) or self._options.optimize not in (GOALS[0], "speed"):
            return chosen
        best = chosen
        for goal in self._tiled_goals(chosen):
            candidate = self._tiled(goal, baseline)
            if candidate is None:
                continue
            # `balanced` could return this program, and must not be faster than `speed`.
            any_gain_counts = best is chosen and goal != baseline.goal
            if not self._budget.excess(candidate.use) and self._is_better(candidate, best, any_gain_counts):
                best = candidate
            else:
                self._problem.rejected(candidate, f"tiles do not improve enough on {_numbered(best)}")
        return best

    def _tiled_goals(self, chosen: ProgramCandidate) -> list[str]:
        """Return the goals whose kernels are tried in tiles."""
        goal, min_stalls = self._options.optimize, self._objective.tolerances.min_saved_stalls_per_instruction
        has_stalls = chosen.metrics.stall_cycles > min_stalls * chosen.instructions
        return [goal, GOALS[0]] if goal == "speed" and has_stalls else [goal]

    def _tiled(self, goal: str, baseline: ProgramCandidate) -> ProgramCandidate | None:
        """Return the candidate with output-channel tiling and the kernels of a goal, or None if nothing is tiled."""
        problem, options, board = self._problem, self._options, self._board
        has_no_copies = options.optimize == "speed" or baseline.copies is None
        copying = options if has_no_copies or baseline.copies is None else baseline.copies.options
        whole = baseline.program if goal == baseline.goal else build_for_goal(problem.for_goal(goal)).program
        graph = in_portions(problem.graph, whole, board, copying)
        if graph is None:
            return None
        changes = GraphChanges(channel_tiles=divided_layers(problem.graph, graph))
        restart()
        built = build_for_goal(problem.with_graph(graph, changes).for_goal(goal))
        return self._staged(self._evaluated(problem.candidate(AS_ASKED, built, goal), CHANNEL_TILING, options))

    # ------------------------------------------------------------------------------------------ Comparisons

    def _is_better(self, candidate: ProgramCandidate, incumbent: ProgramCandidate, any_gain_counts: bool) -> bool:
        """Return whether the candidate clearly improves on what the goal minimizes.

        With `any_gain_counts`, any gain of speed is enough.
        """
        objective, placed, previous = self._objective, self._placed(candidate), self._placed(incumbent)
        if objective.goal == "speed":
            is_any_gain = any_gain_counts and placed.time < previous.time
            return is_any_gain or objective.is_clearly_faster(placed, previous)
        # Unused RAM has no value.
        may_be_slower = placed.time <= previous.time or not objective.has_ample_ram(incumbent.use.ram, self._board)
        max_ratio = objective.tolerances.max_trade_ratio
        return may_be_slower and objective.rank(placed) < objective.rank(previous) + math.log(max_ratio)

    def _placed(self, candidate: ProgramCandidate) -> Metrics:
        """Return the metrics of a candidate in the memories where everything would lie, with its copies."""
        return self._costs.evaluate(candidate.built, AccuracyLevel.PLACED)

    def _with_measured_code(self, candidate: ProgramCandidate) -> ProgramCandidate:
        """Return the candidate with its code size measured, if the program may fit with its real code.

        The candidate keeps the likely size of its code where not even the share min_code_ratio of that size would fit.
        """
        likely = code_of(candidate.program, self._board)
        min_code = round(self._objective.tolerances.min_code_ratio * likely)
        if self._budget.excess(self._costs.with_code(candidate.built, min_code).use):
            metrics = self._costs.with_code(candidate.built, likely)
        else:
            metrics = self._costs.evaluate(candidate.built, AccuracyLevel.BUILT)
        return self._problem.updated(replace(candidate, metrics=metrics))

    def _layer_by_layer_instructions(self, program: Program) -> float | None:
        """Return the estimated instructions without line buffering, or None if the program has no line buffers."""
        if all(instr.control is not Control.STREAM for instr in program.instrs):
            return None
        options = replace(self._options, stream_input=False)
        return lowered(self._problem.graph, self._board, options).instructions_estimate

    # ------------------------------------------------------------------------------------------ Trace

    def _close_trace(self, baseline: ProgramCandidate | None, chosen: ProgramCandidate | None) -> None:
        """Complete the verdicts in the trace, if there is one; None for both where no candidate fits."""
        trace, search = self._problem.trace, self._problem.search_name
        if trace is None:
            return
        if baseline is not None and chosen is not None:
            verdict = _verdict_of_chosen(chosen, baseline, bool(self._budget.excess(baseline.use)))
            trace.choose(chosen.number, verdict)
        trace.close(search, None if chosen is None else chosen.number, self._budget)


def build_program(
    graph: Graph, board: Board, options: CompileOptions | None = None, code_of: CodeMeasure | None = None
) -> Fit:
    """Return the program for an optimized graph that serves the goal best within the budget and the board's memory.

    Args:
        graph: The optimized graph.
        board: The board that the program must fit.
        options: The options of the compilation; the defaults if None.
        code_of: Measures code by compiling it; see ProgramSearch.

    Raises:
        DoesNotFitError: If no program fits.
    """
    return ProgramSearch(SearchProblem(graph, board, options or CompileOptions()), code_of).run()


def _comparison(proposal: ProgramCandidate, best: ProgramCandidate) -> str:
    """Return why a proposal that fits lost against the best proposal of its transformation."""
    if proposal.metrics.time == best.metrics.time:
        return "is as fast as the best candidate of this transformation"
    unit = "instructions" if best.metrics.cycles is None else "cycles"
    return f"takes {proposal.metrics.time:,.0f} {unit}, the best of this transformation {best.metrics.time:,.0f}"


def _numbered(candidate: ProgramCandidate) -> str:
    return f"number {candidate.number}"


def _verdict_of_chosen(chosen: ProgramCandidate, baseline: ProgramCandidate, is_too_large: bool) -> str:
    """Return why a candidate was chosen."""
    if chosen.number == baseline.number:
        return "Chosen: the requested program fits." if not is_too_large else "Chosen: fits with its measured code."
    if is_too_large:
        return "Chosen: the fastest candidate that fits."
    return f"Chosen: serves the goal better than the requested program, {_numbered(baseline)}."
