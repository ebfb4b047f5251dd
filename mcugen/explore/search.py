# SPDX-License-Identifier: Apache-2.0
"""All combinations, or of very many those that promise most: what comes of them, and which is to be taken."""

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
from mcugen.distributed.sharing import ALONE, Workers
from mcugen.evaluation.metrics import Metric, described
from mcugen.explore.demands import Demands, Prices, front, vector
from mcugen.explore.measure import keep, key_of, known, measure
from mcugen.explore.point import Outcome, Point, Yardstick, finite
from mcugen.explore.prepare import Asked
from mcugen.quantization.quantize import Progress, no_progress

MOST_RUNS = 120
"""Default limit of simulated combinations."""


def combinations(boards: Sequence[str], precisions: Sequence[str], goals: Sequence[str]) -> list[Point]:
    """All, each once, in the order of the boards, then of precisions and goals."""
    return [Point(*parts) for parts in dict.fromkeys(product(boards, precisions, goals))]


@dataclass(frozen=True)
class Explored:
    """The outcomes of all combinations, in order, and what they are compared by."""

    model: str
    outcomes: tuple[Outcome, ...]
    demands: Demands
    prices: Prices

    @property
    def yardstick(self) -> Yardstick | None:
        """Return the measure of accuracy, which is the same for all."""
        return next((outcome.yardstick for outcome in self.outcomes if outcome.yardstick), None)

    @property
    def metric(self) -> Metric | None:
        """Return the metric of accuracy, if known."""
        return described(self.yardstick.metric) if self.yardstick else None

    @cached_property
    def boards(self) -> dict[str, Board]:
        """Return the boards by the names in combinations."""
        return {name: load_board(name) for name in dict.fromkeys(o.point.board for o in self.outcomes)}

    def missed(self, outcome: Outcome) -> list[str]:
        """Return the demands that a combination misses."""
        float32 = self.yardstick.float32 if self.yardstick else None
        return self.demands.missed(outcome, self.boards[outcome.point.board], self.metric, float32)

    @cached_property
    def meeting(self) -> list[Outcome]:
        """Return the outcomes that meet all demands."""
        return [outcome for outcome in self.outcomes if not self.missed(outcome)]

    @cached_property
    def front(self) -> list[Outcome]:
        """Return the Pareto front of the outcomes that meet all demands."""
        return front(self.meeting, self.metric)

    @cached_property
    def cheapest(self) -> Outcome | None:
        """On the cheapest board that meets the demands the fastest; None where none does."""

        def cost(outcome: Outcome) -> tuple[float, ...]:
            return (*self.prices.rank(self.boards[outcome.point.board]), vector(outcome, self.metric)[1])

        return min(self.meeting, key=cost, default=None)

    def require(self) -> None:
        """ConstraintError, with what the first of them says, if no combination meets the demands."""
        if not self.meeting:
            refusals = [outcome.refusal.message for outcome in self.outcomes if outcome.refusal]
            found = (
                refusals[0] if refusals else ", ".join(dict.fromkeys(w for o in self.outcomes for w in self.missed(o)))
            )
            remedy = "ask for less, or add boards, precisions or goals"
            raise ConstraintError("some combination must meet the demands", f"none: {found}", remedy)

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON: points in order, each with its figures, and whether it is on the front."""
        on_front, yardstick = self.front, self.yardstick
        cheapest = self.cheapest
        data = {
            "schema": 1,
            "model": self.model,
            "metric": vars(yardstick) if yardstick else None,
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
        found: dict[str, Any] = finite(data)
        return found


@dataclass
class Exploration:
    """Has workers run what is not in the store."""

    asked: Asked
    points: Sequence[Point]
    demands: Demands = field(default_factory=Demands)
    prices: Prices = field(default_factory=Prices)
    simulate: bool = True
    most_runs: int = MOST_RUNS
    workers: Workers = ALONE
    store: Store = field(kw_only=True)
    progress: Progress = no_progress

    def run(self) -> Explored:
        """Explore all points. If there are more than `most_runs`, estimate all of them and simulate the best."""
        if not self.simulate or len(self.points) <= self.most_runs:
            found = self._outcomes(self.points, self.simulate)
        else:
            found = self._outcomes(self.points, False)
            found |= self._outcomes(self._promising(self._explored(found)), True)
        return self._explored(found)

    def _explored(self, found: dict[Point, Outcome]) -> Explored:
        name = self.asked.options.name or self.asked.model.stem
        return Explored(name, tuple(found[point] for point in self.points), self.demands, self.prices)

    def _promising(self, estimated: Explored) -> list[Point]:
        """Return at most `most_runs` points: the Pareto front, then the front of the others, and so on."""
        chosen: list[Outcome] = []
        left = [outcome for outcome in estimated.outcomes if outcome.figures is not None]
        while left and len(chosen) < self.most_runs:
            best = front(left, estimated.metric)
            chosen += best
            left = [outcome for outcome in left if outcome not in best]
        return [outcome.point for outcome in chosen[: self.most_runs]]

    def _outcomes(self, points: Sequence[Point], simulate: bool) -> dict[Point, Outcome]:
        """Return the outcome of each point."""
        what = "simulating" if simulate else "estimating"
        keys = {point: key_of(self.asked, point, simulate) for point in points}
        found = {p: outcome for p, key in keys.items() if (outcome := known(key, self.store)) is not None}
        missing = _spread([point for point in points if point not in found])
        work = self._work(simulate)
        self.progress(what, len(found), len(points))
        for (point, key), outcome in self.workers.each_done(work, [(point, keys[point]) for point in missing]):
            found[point] = outcome
            keep(outcome, key, self.store)
            self.progress(what, len(found), len(points))
        return found

    def _work(self, simulate: bool) -> Callable[[tuple[Point, str]], Outcome]:
        """Return the function that a process runs.

        On a cluster it uses its own computer's store, and files that travel along.
        """
        if self.workers.cluster:
            return partial(_measured_elsewhere, self.asked, self.asked.beside, simulate)
        return partial(_measured, self.asked, simulate, self.store)


def _measured(asked: Asked, simulate: bool, store: Store, task: tuple[Point, str]) -> Outcome:
    point, _ = task
    return measure(asked, point, simulate, store)


def _measured_elsewhere(asked: Asked, _beside: Sequence[Path], simulate: bool, task: tuple[Point, str]) -> Outcome:
    """UsageError where something is not what it was on the computer that asked."""
    point, key = task
    if key_of(asked, point, simulate) != key:
        rule = "files that options name in texts (boards, pipelines, metrics), compilers and QEMU must be the same"
        found = f"others on {platform.node()} for {point}"
        raise UsageError(f"on the workers of a cluster {rule}", found, "see them by: mcugen doctor")
    return measure(asked, point, simulate, user_store("explore"))


def _spread(points: Sequence[Point]) -> list[Point]:
    """Return the points with one of each precision first, slowest precision ahead.

    The others then find their models quantized.
    """
    order = sorted(points, key=lambda point: point.precision == "float32")
    first = list({point.precision: point for point in reversed(order)}.values())[::-1]
    rest = sorted((p for p in points if p not in first), key=lambda point: point.precision != "float32")
    return [*first, *rest]
