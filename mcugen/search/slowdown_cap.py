# SPDX-License-Identifier: Apache-2.0
"""Limit on the slowdown of `balanced` against `speed` on boards with ample memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from mcugen.backends.cpu.pipeline import Kernels
from mcugen.core.board import Board
from mcugen.core.errors import DoesNotFitError
from mcugen.core.options import GOALS, CompileOptions, Places
from mcugen.hir.graph import Graph
from mcugen.kernels.common.weighted_layers import INT4_RANGE
from mcugen.lir.kernel import HALF_SEPARATE_SUMS, SEPARATE_SUMS
from mcugen.memory.place import copied_bytes
from mcugen.memory.plan import Planned
from mcugen.search.budget import Fit
from mcugen.search.candidates import REQUESTED_CANDIDATE_NAME
from mcugen.search.cost_model import ProgramCostModel
from mcugen.search.metrics import AccuracyLevel
from mcugen.search.objective import TOLERANCES
from mcugen.search.problem import SearchProblem
from mcugen.search.program_search import ProgramSearch
from mcugen.search.refinements import CopiesBeforeLayers
from mcugen.search.trace import SearchTrace
from mcugen.search.weight_staging import copied_by, staged

SLOWDOWN_LIMIT_TEXT = f"{TOLERANCES.max_balanced_slowdown} times the cycles of `speed`"
"""The limit on the slowdown of `balanced` programs, as a phrase in verdicts of the trace."""

SCARCE_MEMORY_TEXT = f"more than {TOLERANCES.ample_memory_fraction:.0%} of the board's RAM or flash"
"""The use of memory above which memory is not ample, as a phrase in verdicts of the trace."""

BoardFactory = Callable[[CompileOptions], Board]
"""Returns the board as seen by options, with the CPU features that these enable."""


@dataclass(frozen=True)
class SearchResult:
    """The result of a program search, with the board and options that the program was built for."""

    fit: Fit
    """The chosen program and the requested one."""
    board: Board
    """The board, with tuning flags among its CPU features."""
    options: CompileOptions
    """The options of the search; their goal may differ from the requested one."""

    @property
    def time(self) -> float:
        """Return the estimated cycles per call, with stalls of the memories where weights and arena lie."""
        costs = ProgramCostModel(self.board, self.options)
        return costs.evaluate(self.fit.chosen.built, AccuracyLevel.PLACED).time

    @property
    def leaves_ample_memory(self) -> bool:
        """Return whether the program uses at most the share ample_memory_fraction of the board's RAM and flash."""
        use, share = self.fit.chosen.use, TOLERANCES.ample_memory_fraction
        ram = use.ram + copied_bytes(self.fit.program, self.board, self._copying.place)
        return ram <= share * self.board.total_ram and use.flash <= share * self.board.total_flash

    def placed(self, options: CompileOptions) -> CompileOptions:
        """Return the given options with the placement that makes start-up copy this program's weights."""
        places = self._copying.place
        return options if places == options.place else replace(options, place=places)

    @property
    def _copying(self) -> CompileOptions:
        return copied_by(self.fit.chosen.built, self.board, self.options)


@dataclass(frozen=True)
class SlowdownCap:
    """The transformation that replaces a slow `balanced` program where memory is ample.

    Memory is ample where the `speed` program leaves most of it free (SearchResult.leaves_ample_memory): then the bytes
    that `balanced` saves are of no use. Programs with a placement by the user or chosen for a budget are kept. If the
    model has weights of at most 4 bits, the replacement may not take more bytes of weights.
    """

    graph: Graph
    requested: SearchResult
    """The result of the search for the requested goal."""
    board_for: BoardFactory
    trace: SearchTrace | None = None
    """Records the candidates of the searches, if given."""

    @property
    def applies(self) -> bool:
        """Return whether the requested program is one for `balanced` that was chosen without constraints."""
        options, fit = self.requested.options, self.requested.fit
        is_free = options.cores == 1 and not options.weights_reader and options.place == Places()
        return options.optimize == GOALS[0] and is_free and not fit.budget.excess(fit.requested.use)

    def result(self) -> SearchResult:
        """Return the first program that takes at most max_balanced_slowdown times the cycles of the `speed` program.

        The requested program is tried first, then faster ones. It is also returned if no program is small and fast
        enough, or if the cap does not apply.
        """
        if not self.applies:
            return self.requested
        options = replace(self.requested.options, optimize="speed")
        board = self.board_for(options)
        slowest = Kernels(self.graph, board, options).slowest()
        if self.requested.time <= TOLERANCES.cycle_estimate_margin * slowest:
            return self.requested
        try:
            fastest = self._searched(board, options, "speed, to limit the slowdown")
        except DoesNotFitError:
            return self.requested
        if not fastest.leaves_ample_memory:
            self._reject(fastest, f"uses {SCARCE_MEMORY_TEXT}")
            self._choose(
                self.requested, f"serves `balanced`; a faster program for `speed` would use {SCARCE_MEMORY_TEXT}"
            )
            return self.requested
        return self._first_within_cap(fastest)

    def _first_within_cap(self, fastest: SearchResult) -> SearchResult:
        """Return the first result, from the requested one to the fastest, that is fast and small enough."""
        max_time = TOLERANCES.cycle_estimate_margin * TOLERANCES.max_balanced_slowdown * fastest.time
        is_small = _has_few_bits(self.graph)
        max_weights = self.requested.fit.program.weights_size if is_small else math.inf
        self._reject(fastest, "faster than the limit on the slowdown asks for")
        for result in self._results(fastest):
            if result.fit.program.weights_size > max_weights:
                self._reject(result, "stores weights that came in few bits in more bytes")
            elif result.time > max_time:
                self._reject(result, f"memory is ample, and it takes more than {SLOWDOWN_LIMIT_TEXT}")
            else:
                self._choose(result, f"takes at most {SLOWDOWN_LIMIT_TEXT}")
                return result
        self._choose(self.requested, f"no program that takes at most {SLOWDOWN_LIMIT_TEXT} is small enough")
        return self.requested

    def _results(self, fastest: SearchResult) -> Iterator[SearchResult]:
        """Yield results from the requested one to the fastest one, those with fewer instructions in loops first."""
        yield self.requested
        features = self.requested.board.features
        small = self._searched(replace(fastest.board, features=features), fastest.options, "speed, with small loops")
        yield from self._with_copies(small)
        yield small
        if SEPARATE_SUMS in fastest.board.features:
            board = replace(fastest.board, features=features | {HALF_SEPARATE_SUMS})
            yield self._searched(board, fastest.options, "speed, with loops of half as many separate sums")
        yield fastest

    def _with_copies(self, small: SearchResult) -> Iterator[SearchResult]:
        """Yield the requested kernels with the copies of weights that `speed` makes, if that is as fast as `small`.

        Stall cycles for weights in flash may be all that makes the requested program slow. Its kernels take less flash.
        """
        fit, board, options = self.requested.fit, self.requested.board, small.options
        before = fit.chosen
        if before.copies is None or before.copies.gains:
            return
        saved_plan = Planned.of(before.program)
        name = "balanced, with the copies of speed"
        problem = SearchProblem(self.graph, board, options, search=name, trace=self.trace)
        candidate = problem.candidate(REQUESTED_CANDIDATE_NAME, replace(before.built, copies=None))
        candidate = problem.candidate(REQUESTED_CANDIDATE_NAME, staged(candidate, board, options))
        result = SearchResult(replace(fit, chosen=problem.recorded(candidate, CopiesBeforeLayers.kind)), board, options)
        is_as_fast = TOLERANCES.cycle_estimate_margin * result.time <= small.time
        if is_as_fast and candidate.use.flash <= small.fit.chosen.use.flash:
            yield result
        else:
            self._reject(result, "slower than the program for `speed` with small loops, or takes more flash")
        saved_plan.restore(before.program)  # It was not taken.

    def _searched(self, board: Board, options: CompileOptions, name: str) -> SearchResult:
        """Return the result of a search for a board and options."""
        problem = SearchProblem(self.graph, board, options, search=name, trace=self.trace)
        return SearchResult(ProgramSearch(problem).run(), board, options)

    # ------------------------------------------------------------------------------------------ Trace

    def _reject(self, result: SearchResult, reason: str) -> None:
        if self.trace is not None:
            self.trace.judge(result.fit.chosen.number, f"Rejected: {reason}.")

    def _choose(self, result: SearchResult, reason: str) -> None:
        if self.trace is not None:
            self.trace.choose(result.fit.chosen.number, f"Chosen: {reason}.")


def _has_few_bits(graph: Graph) -> bool:
    """Return whether weights came in 4 bits or fewer: small weights are then wanted, and fast kernels widen them."""
    low, high = INT4_RANGE
    weights = [v.data for node in graph.nodes for v in node.inputs if v is not None and v.type.rank > 1]
    int8_weights = [w for w in weights if w is not None and w.dtype == np.int8]
    return any(low <= w.min(initial=0) and w.max(initial=0) <= high for w in int8_weights)
