# SPDX-License-Identifier: Apache-2.0
"""Program search: build the requested program or, if it exceeds the budget, the fastest alternative that fits."""

from __future__ import annotations

from dataclasses import replace

from mcugen.backends.cpu.pipeline import lowered
from mcugen.core.board import Board
from mcugen.core.errors import DoesNotFitError
from mcugen.core.options import CompileOptions
from mcugen.hir.graph import Graph
from mcugen.lir.program import Control, Program
from mcugen.search.budget import Fit
from mcugen.search.candidates import CandidateBuilder
from mcugen.search.cost_model import CodeMeasure, ProgramCostModel
from mcugen.search.line_buffer_groups import with_single_layer_groups
from mcugen.search.plan import ProgramCandidate
from mcugen.search.problem import SearchProblem
from mcugen.search.refinements import REFINEMENTS, Selection

REQUESTED_PROGRAM = "requested program"
"""Name, in the trace, of the kind of decision that made the first candidate."""


class ProgramSearch:
    """The search for the program that serves the goal best within the budget and the board's memory.

    The search first builds the program for the goal, then applies the REFINEMENTS in their order. The first of them
    tries the TRANSFORMATIONS where that program does not fit. Each step builds a limited number of programs.

    Args:
        problem: The optimized graph, the board and the options.
        measure_code: Measures code by compiling it, where no candidate surely fits, or only a slow one.
    """

    def __init__(self, problem: SearchProblem, measure_code: CodeMeasure | None = None) -> None:
        options = problem.options
        graph = with_single_layer_groups(problem.graph, options.by_rows, is_streamed_in=options.stream_input)
        costs = ProgramCostModel(problem.board, options, measure_code)
        self._problem = replace(problem, graph=graph, search=problem.search_name, evaluator=costs)

    def run(self) -> Fit:
        """Search, and return the chosen program together with the requested one.

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
        problem = self._problem
        builder, options = CandidateBuilder(problem), problem.options
        requested = builder.completed(builder.requested(options), REQUESTED_PROGRAM, options)
        selection = Selection(requested, requested, (requested,))
        for refinement in REFINEMENTS:
            selection = refinement.refine(builder, selection)
        chosen = selection.chosen
        return Fit(problem.budget, chosen, requested, self._layer_by_layer_instructions(chosen.program))

    def _layer_by_layer_instructions(self, program: Program) -> float | None:
        """Return the estimated instructions without line buffering, or None if the program has no line buffers."""
        if all(instr.control is not Control.STREAM for instr in program.instrs):
            return None
        options = replace(self._problem.options, stream_input=False)
        return lowered(self._problem.graph, self._problem.board, options).instructions_estimate

    def _close_trace(self, baseline: ProgramCandidate | None, chosen: ProgramCandidate | None) -> None:
        """Complete the verdicts in the trace, if there is one; None for both where no candidate fits."""
        trace, search = self._problem.trace, self._problem.search_name
        if trace is None:
            return
        if baseline is not None and chosen is not None:
            verdict = _verdict_of_chosen(chosen, baseline, bool(self._problem.budget.excess(baseline.use)))
            trace.choose(chosen.number, verdict)
        trace.close(search, None if chosen is None else chosen.number, self._problem.budget)


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


def _verdict_of_chosen(chosen: ProgramCandidate, baseline: ProgramCandidate, is_too_large: bool) -> str:
    """Return why a candidate was chosen."""
    if chosen.number == baseline.number:
        return "Chosen: the requested program fits." if not is_too_large else "Chosen: fits with its measured code."
    if is_too_large:
        return "Chosen: the fastest candidate that fits."
    return f"Chosen: serves the goal better than the requested program, number {baseline.number}."
