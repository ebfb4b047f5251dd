# SPDX-License-Identifier: Apache-2.0
"""The candidates of a program search: built by the registered transformations, evaluated and recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mcugen.core.board import Board
from mcugen.core.limits import restart_time_limit
from mcugen.core.options import GOALS, CompileOptions
from mcugen.search.budget import likely_code_bytes, optimistic_use
from mcugen.search.cost_model import ProgramCostModel
from mcugen.search.goal_program import build_for_goal
from mcugen.search.line_buffer_tradeoff import GROUPED
from mcugen.search.metrics import AccuracyLevel, Metrics
from mcugen.search.objective import Budget, Objective
from mcugen.search.plan import LayerPlacement, ProgramCandidate
from mcugen.search.problem import SearchProblem
from mcugen.search.trace import excess_of
from mcugen.search.transformations import (
    BUDGET_KERNELS,
    CandidateTransformation,
    KernelsWithinBudget,
    LineBufferFusion,
    ProgramForGoal,
    Rematerialization,
    Transformation,
    WeightDecompression,
)
from mcugen.search.two_core_program import CoreAssignment
from mcugen.search.weight_staging import staged

REQUESTED_CANDIDATE_NAME = "as asked"
"""Name, in messages, of the program for the requested goal without changes to fit a budget."""


BALANCED = ProgramForGoal("a balance of time and memory", ("ram", "flash"), GOALS[0])
"""The transformation that builds the program for the goal `balanced`; TRANSFORMATIONS contains it too."""

TRANSFORMATIONS: tuple[Transformation, ...] = (
    KernelsWithinBudget(BUDGET_KERNELS, ("ram", "flash")),
    KernelsWithinBudget(BUDGET_KERNELS, ("flash",), estimate=optimistic_use),
    LineBufferFusion(GROUPED, ("ram",)),
    BALANCED,
    Rematerialization("results of a run computed again for gradients", ("ram",)),
    WeightDecompression("weights by a code", ("flash",)),
    ProgramForGoal("all for the least RAM", ("ram",), "ram"),
    ProgramForGoal("all for the least flash", ("flash",), "flash"),
)
"""The transformations in the order in which they are tried if the requested program is too large."""

CANDIDATE_TRANSFORMATIONS: tuple[CandidateTransformation, ...] = (CoreAssignment(),)
"""The transformations that are applied, in this order, to every candidate before it is compared with others."""


@dataclass(frozen=True)
class Selection:
    """The state of a program search between two refinements, or its result."""

    problem: SearchProblem
    """The problem that the programs were built for."""
    requested: ProgramCandidate
    """The program for the goal of the options, without a budget."""
    chosen: ProgramCandidate
    """The best program so far."""
    candidates: tuple[ProgramCandidate, ...]
    """All programs that later refinements may choose again."""
    reason: str = ""
    """Why the best program was chosen, as a phrase for the trace; "" if the last refinement gives no reason of its
    own."""
    placements: tuple[LayerPlacement, ...] = ()
    """Where each layer runs, and why; empty without an accelerator."""

    def choosing(self, chosen: ProgramCandidate, *more: ProgramCandidate) -> Selection:
        """Return the selection with `chosen` as the best program, and with `more` added to the candidates."""
        return replace(self, chosen=chosen, candidates=(*self.candidates, *more))


@dataclass(frozen=True)
class CandidateBuilder:
    """The builder of one search's candidates: it builds, evaluates and records programs."""

    problem: SearchProblem
    """The graph, the board and the options of the search."""
    run_search: Callable[[SearchProblem], Selection]
    """Runs a further search, for another board or other options."""

    @property
    def board(self) -> Board:
        """Return the board that programs must fit."""
        return self.problem.board

    @property
    def options(self) -> CompileOptions:
        """Return the options of the compilation."""
        return self.problem.options

    @property
    def objective(self) -> Objective:
        """Return the objective of the search: goal, limits of RAM and flash, and tolerances of comparisons."""
        return self.problem.objective

    @property
    def budget(self) -> Budget:
        """Return the limits of RAM and flash that the user set."""
        return self.problem.budget

    @property
    def costs(self) -> ProgramCostModel:
        """Return the cost model that evaluates the candidates of the search."""
        return self.problem.costs

    def requested(self, options: CompileOptions, name: str = REQUESTED_CANDIDATE_NAME) -> ProgramCandidate:
        """Build the program for the goal of `options`, and return it as a candidate with a name for messages."""
        restart_time_limit()
        built = build_for_goal(self.problem.with_options(options))
        return self.problem.candidate(name, built, self.options.optimize)

    def completed(self, candidate: ProgramCandidate, kind: str, limits: CompileOptions) -> ProgramCandidate:
        """Improve a candidate by the CANDIDATE_TRANSFORMATIONS, record it in the trace, and return it.

        These transformations, such as the use of a second core, are tried for every candidate before candidates are
        compared.

        Args:
            candidate: The candidate.
            kind: The kind of decision that led to the candidate, as the trace names it.
            limits: Options with the limits of RAM and flash that the candidate was built for.
        """
        problem = self.problem
        candidate = problem.candidate(candidate.name, candidate.built, candidate.goal)
        for transformation in CANDIDATE_TRANSFORMATIONS:
            for built in transformation.propose(problem, candidate, limits):
                problem.recorded(candidate, kind, f"Rejected: {transformation.advantage}.")
                candidate, kind = problem.candidate(candidate.name, built, candidate.goal), transformation.kind
        return problem.recorded(candidate, kind)

    def transformed(self, transformation: Transformation, limits: CompileOptions) -> ProgramCandidate:
        """Return the best candidate that a transformation proposes, with the RAM and flash limits of `limits`."""
        restart_time_limit()
        problem = self.problem.with_options(limits)
        proposals = list(transformation.propose(problem))
        best = min(proposals, key=lambda proposal: problem.objective.order(proposal.metrics))
        for proposal in (proposal for proposal in proposals if proposal is not best):
            reason = excess_of(proposal.use, problem.budget) or _comparison(proposal, best)
            self.problem.recorded(proposal, transformation.kind, f"Rejected: {reason}.")
        return self.completed(best, transformation.kind, limits)

    def alternatives(self, baseline: ProgramCandidate, budget: Budget) -> tuple[ProgramCandidate, ...]:
        """Return the candidates of all transformations that may help to keep to a budget.

        They are in the order of TRANSFORMATIONS. If even the candidate for the least RAM or flash needs far more than
        the board has, only the candidates for the least RAM and flash are built.

        Args:
            baseline: The requested program, which exceeds the budget.
            budget: The limits to keep to.
        """
        limits = replace(self.options, max_ram=budget.ram, max_flash=budget.flash)
        served = [step for step in TRANSFORMATIONS if set(step.serves) & set(budget.limits)]
        steps = [step for step in served if step.applies(self.problem)]
        first = [step for step in steps if step.goal and baseline.use.lacks]
        minimal = {step: self.transformed(step, limits) for step in first}
        # Recomputation may need less RAM than the program for the least RAM.
        is_trained = any(step.needs_training for step in steps)
        if not is_trained and any(self._exceeds_by_far(candidate) for candidate in (baseline, *minimal.values())):
            return tuple(minimal.values())
        return tuple(minimal[step] if step in minimal else self.transformed(step, limits) for step in steps)

    def _exceeds_by_far(self, candidate: ProgramCandidate) -> bool:
        """Return whether a program built for the least RAM or flash needs far more of that memory than there is."""
        use, margin = candidate.use, self.objective.tolerances.ram_estimate_margin
        usage = {"ram": (use.ram, use.ram_lacking), "flash": (use.flash, use.flash_lacking)}
        return any(
            candidate.goal == memory and nbytes > margin * (nbytes - lacking)
            for memory, (nbytes, lacking) in usage.items()
        )

    def balanced(self) -> tuple[ProgramCandidate, ...]:
        """Return the candidate for the goal `balanced`; an empty tuple if that is the requested goal."""
        if self.options.optimize == BALANCED.goal:
            return ()
        return (self.transformed(BALANCED, self.options),)

    def staged(self, candidate: ProgramCandidate) -> ProgramCandidate:
        """Return a candidate that copies chosen weights to the arena before the layers that read them run.

        Copies are added as far as the arena has room; without room, the candidate is unchanged.
        """
        built = staged(candidate, self.board, self.options)
        if built is candidate.built:
            return candidate
        metrics = self.costs.after_staging(built, candidate.metrics)
        return self.problem.updated(replace(candidate, built=built, metrics=metrics))

    def placed(self, candidate: ProgramCandidate) -> Metrics:
        """Return the metrics of a candidate, with the stall cycles of the memories that its data are placed in."""
        return self.costs.evaluate(candidate.built, AccuracyLevel.PLACED)

    def with_built_code(self, candidate: ProgramCandidate) -> ProgramCandidate:
        """Return the candidate with its code size measured by compiling it, if that may show that the program fits.

        If the program would exceed its limits even with the share Tolerances.min_code_ratio of its estimated code, the
        candidate is returned with the likely size of its code instead.
        """
        likely = likely_code_bytes(candidate.program, self.board)
        min_code = round(self.objective.tolerances.min_code_ratio * likely)
        if self.budget.excess(self.costs.with_code(candidate.built, min_code).use):
            metrics = self.costs.with_code(candidate.built, likely)
        else:
            metrics = self.costs.evaluate(candidate.built, AccuracyLevel.BUILT)
        return self.problem.updated(replace(candidate, metrics=metrics))


def _comparison(proposal: ProgramCandidate, best: ProgramCandidate) -> str:
    """Return why a proposal that fits lost against the best proposal of its transformation."""
    if proposal.metrics.time == best.metrics.time:
        return "is as fast as the best candidate of this transformation"
    unit = "instructions" if best.metrics.cycles is None else "cycles"
    return f"takes {proposal.metrics.time:,.0f} {unit}, the best of this transformation {best.metrics.time:,.0f}"
