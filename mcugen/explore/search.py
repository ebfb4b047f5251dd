# SPDX-License-Identifier: Apache-2.0
"""Runs all combinations or, of very many, the most promising ones, and chooses the best."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

from mcugen.core.board import Board, load_board
from mcugen.core.cache import Store, user_store
from mcugen.core.errors import ConstraintError, UsageError
from mcugen.distributed.sharing import ONLY_THIS_PROCESS, Workers
from mcugen.evaluation.metrics import Metric, described
from mcugen.explore.demands import Demands, Prices, cost_vector, outcomes_on_front
from mcugen.explore.measure import cache_outcome, cached_outcome, measure_combination, outcome_cache_key
from mcugen.explore.point import AccuracyBaseline, Outcome, Point, replace_infinities
from mcugen.explore.prepare import ExplorationSubject
from mcugen.quantization.quantize import Progress, no_progress

MAX_RUNS = 120
"""Default largest number of combinations that are simulated.

If there are more combinations, only the most promising ones are simulated.
"""


def combinations(boards: Sequence[str], precisions: Sequence[str], goals: Sequence[str]) -> list[Point]:
    """Return all combinations of board, precision and goal, each once.

    The order is that of boards, then precisions and goals.

    Args:
        boards: Names of boards.
        precisions: Values of PRECISIONS, or MIXED.
        goals: Values of GOALS.
    """
    return [Point(*parts) for parts in dict.fromkeys(product(boards, precisions, goals))]


@dataclass(frozen=True)
class Explored:
    """The result of an exploration: the outcomes of all combinations, and the best of them."""

    model: str
    """Name of the model."""
    outcomes: tuple[Outcome, ...]
    """The outcome of each combination, in the order of the combinations."""
    demands: Demands
    """The limits that the user sets for combinations."""
    prices: Prices
    """Prices of boards, by which the cheapest board is found."""

    @property
    def baseline(self) -> AccuracyBaseline | None:
        """Return the metric with its float32 value, which all outcomes share; None without samples."""
        return next((outcome.baseline for outcome in self.outcomes if outcome.baseline), None)

    @property
    def metric(self) -> Metric | None:
        """Return the metric by which accuracy is measured; None without samples."""
        return described(self.baseline.metric) if self.baseline else None

    @cached_property
    def boards(self) -> dict[str, Board]:
        """Return the boards of all combinations by their names."""
        return {name: load_board(name) for name in dict.fromkeys(o.point.board for o in self.outcomes)}

    def missed(self, outcome: Outcome) -> list[str]:
        """Return the names of the limits that an outcome exceeds, such as "RAM"."""
        float32 = self.baseline.float32 if self.baseline else None
        return self.demands.missed(outcome, self.boards[outcome.point.board], self.metric, float32)

    @cached_property
    def meeting(self) -> list[Outcome]:
        """Return the outcomes that keep to all limits of the user."""
        return [outcome for outcome in self.outcomes if not self.missed(outcome)]

    @cached_property
    def front(self) -> list[Outcome]:
        """Return the Pareto front of the outcomes that keep to all limits of the user."""
        return outcomes_on_front(self.meeting, self.metric)

    @cached_property
    def cheapest(self) -> Outcome | None:
        """Return the outcome to recommend: the fastest one that keeps to the user's limits on the cheapest board.

        The result is None if no outcome keeps to all limits.
        """

        def cost(outcome: Outcome) -> tuple[float, ...]:
            return (*self.prices.rank(self.boards[outcome.point.board]), cost_vector(outcome, self.metric)[1])

        return min(self.meeting, key=cost, default=None)

    def require(self) -> None:
        """Check that some combination keeps to all limits of the user.

        Raises:
            ConstraintError: None does. The message has the first failure, or else the names of the limits that were
                exceeded.
        """
        if not self.meeting:
            refusals = [outcome.refusal.message for outcome in self.outcomes if outcome.refusal]
            problem = (
                refusals[0] if refusals else ", ".join(dict.fromkeys(w for o in self.outcomes for w in self.missed(o)))
            )
            remedy = "relax a limit, or add boards, precisions or goals"
            raise ConstraintError("a combination must meet all limits", f"none: {problem}", remedy)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON: the combinations with their figures, and which are on the Pareto front."""
        on_front, baseline = self.front, self.baseline
        cheapest = self.cheapest
        data = {
            "schema": 1,
            "model": self.model,
            "metric": vars(baseline) if baseline else None,
            "cheapest": None if cheapest is None else vars(cheapest.point),
            "points": [
                {
                    **vars(outcome.point),
                    **({} if outcome.figures is None else vars(outcome.figures)),
                    "refusal": vars(outcome.refusal) if outcome.refusal else None,
                    "misses": self.missed(outcome),
                    "front": outcome in on_front,
                    "simulated": outcome.simulated,
                    "report": None if outcome.report is None else outcome.report.to_json(),
                }
                for outcome in self.outcomes
            ],
        }
        document: dict[str, Any] = replace_infinities(data)
        return document


def _ignore_outcome(outcome: Outcome) -> None:
    """Take an outcome and do nothing with it."""


@dataclass
class Exploration:
    """An exploration of combinations of board, precision and goal: `run` compiles and simulates them."""

    asked: ExplorationSubject
    """The model, and the options that all combinations share."""
    points: Sequence[Point]
    """The combinations to explore."""
    demands: Demands = field(default_factory=Demands)
    """The limits that the user sets for combinations."""
    prices: Prices = field(default_factory=Prices)
    """Prices of boards, by which the cheapest board is found."""
    simulate: bool = True
    """Whether combinations run in the simulator; else their cost is estimated."""
    max_runs: int = MAX_RUNS
    """Largest number of combinations that are simulated."""
    workers: Workers = ONLY_THIS_PROCESS
    """The processes on which combinations are compiled and simulated."""
    store: Store = field(kw_only=True)
    """The cache of outcomes and quantized models."""
    progress: Progress = no_progress
    """Callback that receives the number of finished combinations."""
    arrived: Callable[[Outcome], None] = _ignore_outcome
    """Callback that receives each outcome as soon as it is known, in any order."""

    def run(self) -> Explored:
        """Return the outcomes of all combinations, from the cache or computed now.

        If there are more than `max_runs`, all are estimated and only those nearest to the Pareto front are simulated.
        """
        if not self.simulate or len(self.points) <= self.max_runs:
            outcomes = self._outcomes(self.points, self.simulate)
        else:
            outcomes = self._outcomes(self.points, False)
            outcomes |= self._outcomes(self._promising(self._explored(outcomes)), True)
        return self._explored(outcomes)

    def _explored(self, outcomes: dict[Point, Outcome]) -> Explored:
        name = self.asked.options.name or self.asked.model.stem
        return Explored(name, tuple(outcomes[point] for point in self.points), self.demands, self.prices)

    def _promising(self, estimated: Explored) -> list[Point]:
        """Return at most `max_runs` points: the Pareto front, then the front of the remaining points, and so on."""
        chosen: list[Outcome] = []
        remaining = [outcome for outcome in estimated.outcomes if outcome.figures is not None]
        while remaining and len(chosen) < self.max_runs:
            best = outcomes_on_front(remaining, estimated.metric)
            chosen += best
            remaining = [outcome for outcome in remaining if outcome not in best]
        return [outcome.point for outcome in chosen[: self.max_runs]]

    def _outcomes(self, points: Sequence[Point], simulate: bool) -> dict[Point, Outcome]:
        """Return the outcome of each point, from the store or measured now."""
        task = "simulating" if simulate else "estimating"
        keys = {point: outcome_cache_key(self.asked, point, simulate) for point in points}
        outcomes = {p: outcome for p, key in keys.items() if (outcome := cached_outcome(key, self.store)) is not None}
        missing = _spread([point for point in points if point not in outcomes])
        work = self._work(simulate)
        for outcome in outcomes.values():
            self.arrived(outcome)
        self.progress(task, len(outcomes), len(points))
        for (point, key), outcome in self.workers.run_tasks(work, [(point, keys[point]) for point in missing]):
            outcomes[point] = outcome
            cache_outcome(outcome, key, self.store)
            self.arrived(outcome)
            self.progress(task, len(outcomes), len(points))
        return outcomes

    def _work(self, simulate: bool) -> Callable[[tuple[Point, str]], Outcome]:
        """Return the function that a process runs.

        On a cluster it uses the store of the worker's computer, and files that are sent along.
        """
        if self.workers.cluster:
            return partial(_measured_elsewhere, self.asked, self.asked.beside, simulate)
        return partial(_measured, self.asked, simulate, self.store)


def _measured(subject: ExplorationSubject, simulate: bool, store: Store, task: tuple[Point, str]) -> Outcome:
    point, _ = task
    return measure_combination(subject, point, simulate, store)


def _measured_elsewhere(
    subject: ExplorationSubject, _beside: Sequence[Path], simulate: bool, task: tuple[Point, str]
) -> Outcome:
    """Return the outcome of a point on another computer.

    Raises:
        UsageError: If files or tools differ from those of the computer that sent the task.
    """
    point, key = task
    if outcome_cache_key(subject, point, simulate) != key:
        rule = "files that options name in texts (boards, pipelines, metrics), compilers and QEMU must be the same"
        problem = f"others on {platform.node()} for {point}"
        raise UsageError(f"on the workers of a cluster {rule}", problem, "see them by: mcugen doctor")
    return measure_combination(subject, point, simulate, user_store("explore"))


def _spread(points: Sequence[Point]) -> list[Point]:
    """Return the points with one of each precision first, the slowest precision ahead.

    Later points then find their models quantized.
    """
    order = sorted(points, key=lambda point: point.precision == "float32")
    first = list({point.precision: point for point in reversed(order)}.values())[::-1]
    remaining = sorted((p for p in points if p not in first), key=lambda point: point.precision != "float32")
    return [*first, *remaining]
