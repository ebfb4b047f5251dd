# SPDX-License-Identifier: Apache-2.0
"""Program search: build the requested program and improve it, or find an alternative that fits the budget."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mcugen.backends.cpu.pipeline import lowered
from mcugen.core.board import Board
from mcugen.core.errors import DoesNotFitError
from mcugen.core.options import CompileOptions
from mcugen.hir.graph import Graph
from mcugen.lir.program import Control
from mcugen.search.budget import Fit
from mcugen.search.candidates import CandidateBuilder, Selection
from mcugen.search.cost_model import CodeMeasure, ProgramCostModel
from mcugen.search.line_buffer_groups import with_single_layer_groups
from mcugen.search.offloading import Offloading
from mcugen.search.plan import LayerPlacement
from mcugen.search.problem import SearchProblem
from mcugen.search.refinements import (
    BudgetAlternatives,
    ChannelTiling,
    CopiesBeforeLayers,
    KernelsForCopiedWeights,
    Refinement,
    RoomForCopies,
)
from mcugen.search.slowdown_cap import SlowdownCap
from mcugen.search.weight_staging import copied_by

REQUESTED_PROGRAM = "requested program"
"""Name, in the trace, of the kind of decision that led to the first candidate."""

REFINEMENTS: tuple[Refinement, ...] = (
    BudgetAlternatives(),
    RoomForCopies(),
    KernelsForCopiedWeights(),
    CopiesBeforeLayers(),
    ChannelTiling(),
    SlowdownCap(),
    Offloading(),
)
"""The refinements in the order in which they follow the requested program."""


@dataclass(frozen=True)
class SearchResult:
    """The result of a program search, with the board and options that the chosen program was built for."""

    fit: Fit
    """The chosen program and the requested one."""
    board: Board
    """The board whose CPU features include tuning flags: names by which variants of kernels are selected."""
    options: CompileOptions
    """The options of the search; their goal may differ from the requested one."""
    offloaded: Graph | None = None
    """The graph with segments that an accelerator computes; None if the CPU computes all of it."""
    placements: tuple[LayerPlacement, ...] = ()
    """Where each layer runs, and why; empty without an accelerator."""

    def placed(self, options: CompileOptions) -> CompileOptions:
        """Return the given options with a placement that makes start-up code copy this program's weights to RAM."""
        places = copied_by(self.fit.chosen.built, self.board, self.options).place
        return options if places == options.place else replace(options, place=places)


class ProgramSearch:
    """The search for the program that serves the goal best within the budget and the board's memory.

    The search first builds the program for the goal, then applies the REFINEMENTS in their order. The first refinement
    tries the TRANSFORMATIONS if that program does not fit. Each step builds a limited number of programs.

    Args:
        problem: The optimized graph, the board and the options.
        measure_code: Measures code by compiling it, if no candidate fits by estimate or only a slow one does; None to
            use estimates only.
    """

    def __init__(self, problem: SearchProblem, measure_code: CodeMeasure | None = None) -> None:
        options = problem.options
        graph = with_single_layer_groups(problem.graph, options.by_rows, is_streamed_in=options.stream_input)
        costs = ProgramCostModel(problem.board, options, measure_code)
        self._problem = replace(problem, graph=graph, search=problem.search_name, evaluator=costs)

    def run(self) -> SearchResult:
        """Run the search, and return the chosen program together with the requested one.

        Raises:
            DoesNotFitError: If no candidate fits; the message describes the one with the least excess.
        """
        selection = self.select()
        problem = selection.problem
        fit = Fit(problem.budget, selection.chosen, selection.requested, _layer_by_layer_instructions(selection))
        offloaded = problem.graph if problem.changes.offloaded else None
        return SearchResult(fit, problem.board, problem.options, offloaded, selection.placements)

    def select(self) -> Selection:
        """Run the search, and return the chosen program, the other candidates, and the problem that it was built for.

        Raises:
            DoesNotFitError: If no candidate fits; the message describes the one with the least excess.
        """
        try:
            selection = self._refined()
        except DoesNotFitError:
            self._close_trace(None)
            raise
        self._close_trace(selection)
        return selection

    def _refined(self) -> Selection:
        builder = CandidateBuilder(self._problem, _select_program)
        options = self._problem.options
        requested = builder.completed(builder.requested(options), REQUESTED_PROGRAM, options)
        selection = Selection(self._problem, requested, requested, (requested,))
        for refinement in REFINEMENTS:
            selection = refinement.refine(builder, selection)
        return selection

    def _close_trace(self, selection: Selection | None) -> None:
        """Complete the verdicts in the trace, if there is one; None stands for a search in which no candidate fits."""
        trace, search = self._problem.trace, self._problem.search_name
        if trace is None:
            return
        if selection is not None:
            trace.choose(selection.chosen.number, f"Chosen: {_reason_of_choice(selection)}.")
        trace.close(search, None if selection is None else selection.chosen.number, self._problem.budget)


def _select_program(problem: SearchProblem) -> Selection:
    """Run a search within a search; only the outermost search offloads segments."""
    return ProgramSearch(replace(problem, accelerator=None)).select()


def _layer_by_layer_instructions(selection: Selection) -> float | None:
    """Return the estimated instructions without line buffering, or None if the program has no line buffers."""
    problem = selection.problem
    if all(instr.control is not Control.STREAM for instr in selection.chosen.program.instrs):
        return None
    options = replace(problem.options, optimize=selection.requested.goal, stream_input=False)
    return lowered(problem.graph, problem.board, options).instructions_estimate


def _reason_of_choice(selection: Selection) -> str:
    """Return why a candidate was chosen, as a phrase."""
    if selection.reason:
        return selection.reason
    chosen, requested = selection.chosen, selection.requested
    is_too_large = bool(selection.problem.budget.excess(requested.use))
    if chosen.number == requested.number:
        return "fits with its measured code" if is_too_large else "the requested program fits"
    if is_too_large:
        return "the fastest candidate that fits"
    return f"serves the goal better than the requested program, number {requested.number}"
