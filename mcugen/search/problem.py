# SPDX-License-Identifier: Apache-2.0
"""The problem of a program search: an optimized graph, a board and options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from mcugen.backends.accelerator import Accelerator
from mcugen.core.board import Board
from mcugen.core.options import CompileOptions
from mcugen.hir.graph import Graph
from mcugen.search.cost_model import ProgramCostModel
from mcugen.search.metrics import Metrics, Use
from mcugen.search.objective import Budget, Objective
from mcugen.search.plan import NO_CHANGES, BuiltProgram, GraphChanges, ProgramCandidate, ProgramPlan
from mcugen.search.trace import SearchTrace, TraceEntry

BoardFactory = Callable[[CompileOptions], Board]
"""Function that returns the board for given options, with the CPU features and tuning flags that these enable."""


@dataclass(frozen=True)
class SearchProblem:
    """The input of a program search: a graph, a board and options, with the trace that records the search."""

    graph: Graph
    """The graph to build a program for, already optimized."""
    board: Board
    """The board with its memories, CPU features and costs."""
    options: CompileOptions
    """The options, with the goal and the limits of RAM and flash."""
    changes: GraphChanges = NO_CHANGES
    """The changes by which `graph` differs from the optimized graph of the model."""
    search: str = ""
    """Name of the search in the trace; "" for the name of the goal."""
    trace: SearchTrace | None = field(default=None, repr=False, compare=False)
    """Records the candidates; None for no record."""
    board_for: BoardFactory | None = field(default=None, repr=False, compare=False)
    """Returns the board for other options; None if no programs for other goals are to be compared."""
    accelerator: Accelerator | None = field(default=None, repr=False, compare=False)
    """The accelerator to which segments of the graph may be offloaded; None for none."""
    evaluator: ProgramCostModel | None = field(default=None, repr=False, compare=False)
    """The cost model of the search; None stands for a new one of the board and options."""

    @property
    def costs(self) -> ProgramCostModel:
        """Return the cost model of the search; problems derived from this one use the same cost model."""
        return self.evaluator or ProgramCostModel(self.board, self.options)

    @property
    def objective(self) -> Objective:
        """Return the objective of the search: goal, limits of RAM and flash, and tolerances of comparisons."""
        return Objective.of(self.options)

    @property
    def budget(self) -> Budget:
        """Return the limits of RAM and flash that the user's options set."""
        return Budget.of(self.options)

    def with_options(self, options: CompileOptions) -> SearchProblem:
        """Return this problem with the given options in place of its own."""
        return replace(self, options=options)

    def for_goal(self, goal: str) -> SearchProblem:
        """Return this problem with the option `optimize` set to a goal."""
        return replace(self, options=replace(self.options, optimize=goal))

    def with_graph(self, graph: Graph, changes: GraphChanges) -> SearchProblem:
        """Return this problem with a changed graph in place of its own.

        Args:
            graph: The changed graph.
            changes: The changes that turned this problem's graph into it.
        """
        return replace(self, graph=graph, changes=self.changes.merged(changes))

    def candidate(self, name: str, built: BuiltProgram, goal: str = "", use: Use | None = None) -> ProgramCandidate:
        """Choose copies of weights for a built program, estimate its cost, and return both as a candidate.

        Args:
            name: Name of the candidate in messages.
            built: The planned program.
            goal: The goal that it was built for, if that is all that its transformation changes; else "".
            use: The RAM and flash to compare with the budget; None for those of the estimated metrics.
        """
        costs = self.costs
        built = costs.with_copies(built)
        metrics = costs.evaluate(built)
        return ProgramCandidate(name, built, metrics if use is None else replace(metrics, use=use), goal)

    @property
    def search_name(self) -> str:
        """Return the name of the search in the trace."""
        return self.search or self.options.optimize

    def recorded(self, candidate: ProgramCandidate, transformation: str, verdict: str = "") -> ProgramCandidate:
        """Record a candidate in the trace and return it with its number there; without a trace, return it unchanged.

        Args:
            candidate: The candidate.
            transformation: The kind of transformation that proposed it.
            verdict: Why it was rejected, as a sentence, if that is known already; else "".
        """
        if self.trace is None:
            return candidate
        entry = TraceEntry(
            0, self.search_name, candidate.name, transformation, *self._evaluation(candidate), verdict=verdict
        )
        return replace(candidate, number=self.trace.record(entry))

    def updated(self, candidate: ProgramCandidate) -> ProgramCandidate:
        """Update the trace entry of a candidate that was evaluated again, if it has one, and return the candidate."""
        if self.trace is not None:
            self.trace.update(candidate.number, *self._evaluation(candidate))
        return candidate

    def rejected(self, candidate: ProgramCandidate, reason: str) -> None:
        """Record in the trace, if there is one, why a candidate was rejected.

        `reason` is a phrase without a period.
        """
        if self.trace is not None:
            self.trace.judge(candidate.number, f"Rejected: {reason}.")

    def _evaluation(self, candidate: ProgramCandidate) -> tuple[ProgramPlan, Metrics]:
        plan = ProgramPlan.of(candidate, self.board, self.options)
        return plan, self.costs.with_errors(candidate.built, candidate.metrics)
