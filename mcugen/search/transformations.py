# SPDX-License-Identifier: Apache-2.0
"""Transformations: changes of one candidate program, and ways to need less RAM or flash than the requested program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from mcugen.backends.cpu.pipeline import Kernels, lowered, plan_program
from mcugen.core.board import Board
from mcugen.core.options import GOALS, CompileOptions
from mcugen.hir.graph import Graph
from mcugen.kernels.choose import Limits
from mcugen.lir.program import Program
from mcugen.search.budget import use_of
from mcugen.search.goal_program import (
    build_for_goal,
    least_ram,
    streamings_of,
)
from mcugen.search.graph_transformations import MAX_PLANNED_GROUPINGS, GraphVariant
from mcugen.search.graph_variants import graph_variants
from mcugen.search.line_buffer_groups import Grouping, plan_ram_bytes, with_groups
from mcugen.search.line_buffer_tradeoff import LINE_BUFFER_FUSION
from mcugen.search.line_buffering import Streamings
from mcugen.search.metrics import Use
from mcugen.search.objective import TOLERANCES
from mcugen.search.plan import BuiltProgram, GraphChanges, ProgramCandidate, added_layers
from mcugen.search.problem import SearchProblem
from mcugen.search.rematerialization import rematerialized_graphs

MAX_LIMIT_CORRECTIONS = 4
"""Largest number of times that kernels are chosen to meet one budget.

The limits of each choice are corrected by the difference between the budget and what the previous program used.
"""


@dataclass(frozen=True)
class Transformation(ABC):
    """A way to change a program that does not fit its budget, which proposes candidates that may fit."""

    name: str
    """What the transformation does, as notes, errors and the trace say it."""
    serves: tuple[str, ...]
    """Names of the limited memories that it can reduce: `ram`, `flash` or both."""
    goal: str = ""
    """The goal that it builds for, if a different goal is its only change; else ""."""

    kind: ClassVar[str]
    """Name, in the trace, of the kind of decision that this transformation makes."""
    needs_training: ClassVar[bool] = False
    """Whether the transformation applies only to models that are trained on the device."""

    def applies(self, problem: SearchProblem) -> bool:
        """Return whether the transformation can be used for a problem and would change the requested program."""
        return self.goal != problem.options.optimize and (problem.graph.lesson is not None or not self.needs_training)

    @abstractmethod
    def propose(self, problem: SearchProblem) -> Iterator[ProgramCandidate]:
        """Yield candidates for a problem, at least one; the search keeps the one that serves the problem's budget best.

        Args:
            problem: The graph, the board, and options with the budget.
        """

    def candidate(self, problem: SearchProblem, built: BuiltProgram) -> ProgramCandidate:
        """Return a built program as a candidate with the name and goal of this transformation."""
        return problem.candidate(self.name, built, self.goal)


class CandidateTransformation(ABC):
    """A way to improve every candidate of a search before it is compared with other candidates."""

    kind: ClassVar[str]
    """Name, in the trace, of the kind of decision that this transformation makes."""
    advantage: ClassVar[str]
    """Why a candidate without this transformation is rejected, as a phrase for the trace."""

    @abstractmethod
    def propose(
        self, problem: SearchProblem, candidate: ProgramCandidate, limits: CompileOptions
    ) -> Iterator[BuiltProgram]:
        """Yield the improved program of a candidate, or nothing if the candidate should stay as it is.

        Args:
            problem: The graph, the board and the options.
            candidate: The candidate.
            limits: Options with the limits of RAM and flash that it was built for.
        """


@dataclass(frozen=True)
class ProgramForGoal(Transformation):
    """The transformation that builds the program for a goal other than the requested one, such as `ram`."""

    kind = "other goal"

    def applies(self, problem: SearchProblem) -> bool:
        """Return whether this transformation's goal is not the requested one, and the options allow a program for it.

        The goals `balanced` and `ram` may compute layers together row by row. They do not apply if a callback of the
        application reads the weights of one layer after the other.
        """
        uses_row_groups = self.goal in (GOALS[0], "ram")
        return super().applies(problem) and not (uses_row_groups and problem.options.weights_reader)

    def propose(self, problem: SearchProblem) -> Iterator[ProgramCandidate]:
        """Yield one candidate: the program for the goal of this transformation."""
        yield self.candidate(problem, build_for_goal(problem.for_goal(self.goal)))


@dataclass(frozen=True)
class KernelsWithinBudget(Transformation):
    """The transformation that chooses kernels for the requested goal within the budget.

    The limits of the choice are estimates: they include neither the overlaps of buffers that the planner finds nor the
    code of layers without a choice of kernels. They are corrected by the difference between the budget and what the
    program uses, up to MAX_LIMIT_CORRECTIONS times.
    """

    kind = "kernel choice"

    estimate: Callable[[Program, Board, CompileOptions], Use] = use_of
    """Returns the RAM and flash that a program uses."""

    def propose(self, problem: SearchProblem) -> Iterator[ProgramCandidate]:
        """Yield a program for the budget as limits, then one for each correction of these limits."""
        board, options, budget = problem.board, problem.options, problem.budget
        variants = [_VariantWithinLimits(problem, v) for v in graph_variants(problem, streamings_of(problem))]
        limits, tried = limits_of(problem), set[Limits]()
        while limits not in tried and len(tried) < MAX_LIMIT_CORRECTIONS:
            built = least_ram(variant.within(limits) for variant in variants)
            use = self.estimate(built.program, board, options)
            yield problem.candidate(self.name, built, use=use)
            tried.add(limits)
            limits = Limits(
                limits.ram + (0 if budget.ram is None else budget.ram - use.ram),
                limits.flash + (0 if budget.flash is None else budget.flash - use.flash),
            )


@dataclass(frozen=True)
class LineBufferFusion(Transformation):
    """The transformation to line-buffered groups: layers are computed together row by row, as RAM requires."""

    kind = LINE_BUFFER_FUSION

    def applies(self, problem: SearchProblem) -> bool:
        """Return whether the options allow layers to be computed row by row."""
        return super().applies(problem) and not problem.options.weights_reader

    def propose(self, problem: SearchProblem) -> Iterator[ProgramCandidate]:
        """Yield a program for each division into line-buffered groups that may be the fastest within the limits.

        A line-buffered group consists of layers that are computed together row by row, so that only a few rows of the
        tensors between them are in memory.
        """
        streamings, limits = streamings_of(problem), limits_of(problem)
        graph = streamings.ordered(problem.graph)
        groupings = _close_groupings(streamings, graph, limits)
        grouped_graphs = (with_groups(graph, g, is_streamed_in=problem.options.stream_input) for g in groupings)
        for grouped_graph in dict.fromkeys(grouped_graphs):  # Several groupings may have no groups.
            variant = _VariantWithinLimits(problem, GraphVariant(grouped_graph, changes=problem.changes))
            yield self.candidate(problem, variant.within(limits))


@dataclass(frozen=True)
class Rematerialization(Transformation):
    """The transformation that recomputes results which gradients need, instead of keeping them in memory.

    As few results are recomputed as the RAM limit allows.
    """

    kind = "rematerialization"
    needs_training = True

    def propose(self, problem: SearchProblem) -> Iterator[ProgramCandidate]:
        """Yield programs that recompute more and more results, up to the first that fits."""
        is_possible = False
        for graph in rematerialized_graphs(problem.graph):
            is_possible = True
            changes = GraphChanges(recomputed=added_layers(problem.graph, graph))
            candidate = self.candidate(problem, build_for_goal(problem.with_graph(graph, changes)))
            yield candidate
            if not problem.budget.excess(candidate.use):
                return
        if not is_possible:
            yield self.candidate(problem, build_for_goal(problem))


@dataclass(frozen=True)
class WeightDecompression(Transformation):
    """The transformation that stores weights compressed wherever that saves flash.

    Kernels of the requested goal are tried first, then those of `balanced` and `flash`. The flash limit is lifted for
    the choice of kernels, because that choice does not know the compressed sizes.
    """

    kind = "weight decompression"

    def propose(self, problem: SearchProblem) -> Iterator[ProgramCandidate]:
        """Yield a program with compressed weights for each of several goals, up to the first that fits."""
        options = problem.options
        for goal in dict.fromkeys((options.optimize, GOALS[0], "flash")):
            unlimited = problem.with_options(replace(options, optimize=goal, max_flash=None))
            candidate = self.candidate(problem, build_for_goal(unlimited, must_save_flash=True))
            yield candidate
            if not problem.budget.excess(candidate.use):
                return


class _VariantWithinLimits:
    """The programs of a variant of the graph with kernels within limits; equal choices of kernels are planned once."""

    def __init__(self, problem: SearchProblem, variant: GraphVariant) -> None:
        self._problem, self._variant = problem, variant
        self._kernels = Kernels(variant.graph, problem.board, problem.options)
        self._known = dict[tuple[str, ...], BuiltProgram]()

    def within(self, limits: Limits) -> BuiltProgram:
        """Return the planned program with the best kernels within the limits."""
        kernels = self._kernels.within(limits)
        key = tuple(kernel.name for kernel in kernels.values())
        if key not in self._known:
            board, options = self._problem.board, self._problem.options
            program = plan_program(lowered(self._variant.graph, board, options, kernels=kernels))
            self._known[key] = BuiltProgram(program, self._variant.changes)
        return self._known[key]


def _close_groupings(streamings: Streamings, graph: Graph, limits: Limits) -> list[Grouping]:
    """Return the groupings that may be the fastest within the limits, by their estimated RAM.

    All groups compute single rows, or two rows per step wherever this is faster.
    """
    max_ram = TOLERANCES.ram_estimate_margin * limits.ram
    close_groupings = list[Grouping]()
    for streaming in streamings.with_pairs(graph):
        plans = list(streaming.plans())
        fitting = [plan for plan in plans if plan_ram_bytes(plan) <= max_ram] or plans[:1] or [[]]
        close_groupings += fitting[-MAX_PLANNED_GROUPINGS:]
    return close_groupings


def limits_of(problem: SearchProblem) -> Limits:
    """Return the RAM and flash limits in bytes for the choice of kernels: the budget's, or else the board's sizes."""
    budget, board = problem.budget, problem.board
    return Limits(budget.ram or board.total_ram, budget.flash or board.total_flash)


BUDGET_KERNELS = "kernels chosen for the budget"
"""Name, in messages, of programs whose kernels were chosen within the limits of RAM and flash."""
