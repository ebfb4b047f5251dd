# SPDX-License-Identifier: Apache-2.0
"""Refinements: decisions that follow the requested program; each one changes what the previous ones chose."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from mcugen.core.limits import restart_time_limit
from mcugen.core.options import GOALS, CompileOptions
from mcugen.memory.place import memory_of_arena
from mcugen.search.budget import cheapest
from mcugen.search.candidates import REQUESTED_CANDIDATE_NAME, CandidateBuilder, Selection
from mcugen.search.channel_tiling import tile_output_channels
from mcugen.search.goal_program import build_for_goal
from mcugen.search.plan import GraphChanges, ProgramCandidate, divided_layers
from mcugen.search.transformations import KernelsWithinBudget
from mcugen.search.weight_staging import (
    budget_beside_copies,
    is_slowed_by_stalls,
    options_for_weights_in_ram,
    priced_copies,
)

KERNELS_FOR_COPIED_PART = "kernels chosen for some weights in RAM"
"""Name, in messages, of the program whose kernels were chosen for start-up copies of only some weights to RAM."""

WEIGHTS_IN_RAM = KernelsWithinBudget("kernels chosen for weights in RAM", ("ram", "flash"))
"""The transformation that chooses kernels within limits, if start-up code copies all weights to RAM."""


class Refinement(ABC):
    """A step of the program search: it may replace the program chosen so far, or add copies of weights to it."""

    kind: ClassVar[str]
    """Name, in the trace, of the kind of decision that this step makes, such as "weight staging"."""

    @abstractmethod
    def refine(self, builder: CandidateBuilder, selection: Selection) -> Selection:
        """Return the selection after this step, with the best program so far.

        Args:
            builder: Builds, evaluates and records candidates.
            selection: The result of the previous step.

        Raises:
            DoesNotFitError: If no candidate fits.
        """


class BudgetAlternatives(Refinement):
    """The search step for programs over budget: it chooses the fastest candidate that fits.

    A budget consists of the limits of RAM and flash. The candidates come from the registered TRANSFORMATIONS.
    """

    kind = "budget"

    def refine(self, builder: CandidateBuilder, selection: Selection) -> Selection:
        """Choose the fastest program that fits among the requested one and the results of the transformations.

        The selection is unchanged if the requested program fits.
        """
        requested, budget = selection.requested, builder.budget
        if not budget.excess(requested.use):
            return selection
        alternatives = builder.alternatives(requested, budget.narrowed(requested.use))
        candidates = (*selection.candidates, *alternatives)
        return selection.choosing(
            cheapest(candidates, budget, builder.board, built=builder.with_built_code), *alternatives
        )


class RoomForCopies(Refinement):
    """The search step that tries programs with less RAM, to leave room for copies of weights from slow flash."""

    kind = "weight staging"

    def refine(self, builder: CandidateBuilder, selection: Selection) -> Selection:
        """Add programs that need less RAM, if the chosen one stalls for its weights, and choose the fastest.

        The RAM that they leave free holds copies of weights.
        """
        board, options, chosen = builder.board, builder.options, selection.chosen
        more, charged = tuple[ProgramCandidate, ...](), priced_copies(chosen, board, options)
        if charged is not None:
            more = tuple(self._with_charged_weights(builder, charged, chosen))
        elif not is_slowed_by_stalls(chosen, board, options):
            return selection
        budget = budget_beside_copies(chosen, board, options)  # The arena may leave no room for copies of weights.
        more += builder.alternatives(selection.requested, budget) if budget else builder.balanced()
        return selection.choosing(cheapest([*selection.candidates, *more, chosen], builder.budget, board), *more)

    def _with_charged_weights(
        self, builder: CandidateBuilder, charged: CompileOptions, chosen: ProgramCandidate
    ) -> Iterator[ProgramCandidate]:
        """Yield the candidate whose kernels are charged for the bytes of their weights, if it is clearly faster."""
        candidate = builder.completed(builder.requested(charged, KERNELS_FOR_COPIED_PART), self.kind, charged)
        if builder.objective.is_clearly_faster(candidate.metrics, chosen.metrics):
            yield candidate
        else:
            builder.problem.rejected(candidate, f"not clearly faster than {_numbered(chosen)}")


class KernelsForCopiedWeights(Refinement):
    """The search step that chooses kernels again if start-up code copies all weights to RAM.

    Other kernels may be faster if weights are read from RAM.
    """

    kind = "weight staging"

    def refine(self, builder: CandidateBuilder, selection: Selection) -> Selection:
        """Choose the program with kernels for weights in RAM if it is clearly faster."""
        in_ram = options_for_weights_in_ram(selection.chosen, builder.board, builder.options)
        if in_ram is None:
            return selection
        chosen = self._chosen_for_ram(builder, selection.chosen, in_ram)
        return selection.choosing(chosen, chosen)

    def _chosen_for_ram(
        self, builder: CandidateBuilder, previous: ProgramCandidate, in_ram: CompileOptions
    ) -> ProgramCandidate:
        """Return a program with kernels chosen for weights in RAM, or `previous` if that is not clearly faster.

        Where start-up copies do not leave enough room, the kernels are limited to as many bytes of weights as can be
        copied.
        """
        budget, problem = builder.budget, builder.problem
        candidate = builder.completed(builder.requested(in_ram), self.kind, in_ram)
        excess = budget.excess(candidate.use)
        narrowed = (
            budget.narrowed(candidate.use)
            if excess
            else budget_beside_copies(candidate, builder.board, builder.options)
        )
        if narrowed is not None:
            problem.rejected(candidate, "the copies of its weights leave too little RAM")
            limits = replace(in_ram, max_ram=narrowed.ram, max_flash=narrowed.flash)
            candidate = builder.transformed(WEIGHTS_IN_RAM, limits)
        if budget.excess(candidate.use):
            return previous
        if builder.objective.is_clearly_faster(builder.placed(candidate), builder.placed(previous)):
            return candidate
        problem.rejected(candidate, f"not clearly faster than {_numbered(previous)}, with copies of weights")
        return previous


class CopiesBeforeLayers(Refinement):
    """The search step that adds copies of weights from slow memory to the arena, before the layers that read them."""

    kind = "weight staging"

    def refine(self, builder: CandidateBuilder, selection: Selection) -> Selection:
        """Add copies of weights to the chosen program, and return the selection with the result.

        A copy goes from slow memory to the arena, before the layer that reads the weights. For `speed`, if the arena
        exceeds its memory, copies are added to all candidates and the fastest is chosen. A program for `balanced` is
        then a candidate too, as its smaller arena may fit faster memory.
        """
        board, chosen = builder.board, selection.chosen
        arena_room = memory_of_arena(board, builder.options.place).room
        if builder.options.optimize != "speed" or chosen.program.arena_size <= arena_room:
            return selection.choosing(builder.staged(chosen))
        candidates = selection.candidates
        if all(candidate.goal != GOALS[0] for candidate in candidates):
            candidates = (*candidates, *builder.balanced())
        with_copies = [builder.staged(candidate) for candidate in (*candidates, chosen)]
        return selection.choosing(cheapest(with_copies, builder.budget, board, builder.placed))


class ChannelTiling(Refinement):
    """The search step that tiles layers by output channels, so that the weights of a tile stay in the data cache."""

    kind = "output-channel tiling"

    def refine(self, builder: CandidateBuilder, selection: Selection) -> Selection:
        """Choose the program with layers in tiles of output channels if it serves `balanced` or `speed` better.

        The weights of a tile stay in the data cache. For `speed`, the `balanced` kernels are tried as well, since these
        read weights less often.
        """
        requested, best = selection.requested, selection.chosen
        if builder.budget.excess(requested.use) or builder.options.optimize not in (GOALS[0], "speed"):
            return selection
        for goal in self._goals(builder, selection.chosen):
            candidate = self._tiled(builder, goal, requested)
            if candidate is None:
                continue
            # `balanced` could return this program, and must not be faster than `speed`.
            any_gain_counts = best is selection.chosen and goal != requested.goal
            if not builder.budget.excess(candidate.use) and _is_better(builder, candidate, best, any_gain_counts):
                best = candidate
            else:
                builder.problem.rejected(candidate, f"tiles do not improve enough on {_numbered(best)}")
        return selection.choosing(best)

    def _goals(self, builder: CandidateBuilder, chosen: ProgramCandidate) -> list[str]:
        """Return the goals whose kernels are tried in tiles."""
        goal, min_stalls = builder.options.optimize, builder.objective.tolerances.min_saved_stalls_per_instruction
        has_stalls = chosen.metrics.stall_cycles > min_stalls * chosen.instructions
        return [goal, GOALS[0]] if goal == "speed" and has_stalls else [goal]

    def _tiled(self, builder: CandidateBuilder, goal: str, requested: ProgramCandidate) -> ProgramCandidate | None:
        """Return the candidate with tiles and the kernels of a goal, or None if nothing is tiled."""
        problem, options = builder.problem, builder.options
        has_no_copies = options.optimize == "speed" or requested.copies is None
        copying = options if has_no_copies or requested.copies is None else requested.copies.options
        whole = requested.program if goal == requested.goal else build_for_goal(problem.for_goal(goal)).program
        graph = tile_output_channels(problem.graph, whole, builder.board, copying)
        if graph is None:
            return None
        changes = GraphChanges(channel_tiles=divided_layers(problem.graph, graph))
        restart_time_limit()
        built = build_for_goal(problem.with_graph(graph, changes).for_goal(goal))
        return builder.staged(
            builder.completed(problem.candidate(REQUESTED_CANDIDATE_NAME, built, goal), self.kind, options)
        )


def _is_better(
    builder: CandidateBuilder, candidate: ProgramCandidate, incumbent: ProgramCandidate, any_gain_counts: bool
) -> bool:
    """Return whether the candidate clearly improves on what the goal minimizes.

    With `any_gain_counts`, any gain of speed is enough.
    """
    objective, placed, previous = builder.objective, builder.placed(candidate), builder.placed(incumbent)
    if objective.goal == "speed":
        is_any_gain = any_gain_counts and placed.time < previous.time
        return is_any_gain or objective.is_clearly_faster(placed, previous)
    # Unused RAM has no value.
    may_be_slower = placed.time <= previous.time or not objective.has_ample_ram(incumbent.use.ram, builder.board)
    max_ratio = objective.tolerances.max_trade_ratio
    return may_be_slower and objective.rank(placed) < objective.rank(previous) + math.log(max_ratio)


def _numbered(candidate: ProgramCandidate) -> str:
    return f"number {candidate.number}"
