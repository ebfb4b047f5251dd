# SPDX-License-Identifier: Apache-2.0
"""Limits for combinations, and which of several is the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mcugen.core.board import Board
from mcugen.evaluation.metrics import Metric
from mcugen.explore.point import Figures, Outcome
from mcugen.search.objective import pareto_front

COST_AXES: dict[str, Callable[[Figures], float | None]] = {
    "ms": lambda f: f.ms,
    "ram": lambda f: f.ram,
    "flash": lambda f: f.flash,
    "microjoules": lambda f: f.microjoules,
}
"""Figures of which less is better, besides accuracy."""


@dataclass(frozen=True)
class Demands:
    """The largest cost and the least accuracy of a combination; None means no limit.

    `accuracy` is a value of the metric. `drop` is how much worse than float32 it may be, in percentage points for
    shares.
    """

    ms: float | None = None
    cycles: int | None = None
    ram: int | None = None
    flash: int | None = None
    microjoules: float | None = None
    accuracy: float | None = None
    drop: float | None = None

    def missed(self, outcome: Outcome, board: Board, metric: Metric | None, float32: float | None) -> list[str]:
        """Return the demands that a combination misses, in a few words each; unknown figures count as missed.

        Args:
            outcome: The outcome of the combination.
            board: Its board, whose memory limits it as well.
            metric: The metric of accuracy, if known.
            float32: The value of the metric for the float model, if known.
        """
        figures = outcome.figures
        if figures is None:
            return [outcome.refusal.kind if outcome.refusal else "nothing known"]
        limits: list[tuple[str, float | None, float | None]] = [
            ("ms", figures.ms, self.ms),
            ("ms", figures.ms, None if self.cycles is None else 1e3 * self.cycles / board.clock_hz),
            ("RAM", figures.ram, _least(self.ram, board.total_ram)),
            ("flash", figures.flash, _least(self.flash, board.total_flash)),
            ("energy", figures.microjoules, self.microjoules),
        ]
        missed_limits = [
            label for label, value, limit in limits if limit is not None and (value is None or value > limit)
        ]
        for target, allowed in ((self.accuracy, 0.0), (float32, self.drop)):
            if target is not None and allowed is not None and not _near(metric, figures.accuracy, target, allowed):
                missed_limits.append("accuracy")
        return list(dict.fromkeys(missed_limits))


def _least(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)


def _near(metric: Metric | None, value: float | None, target: float, allowed: float) -> bool:
    if metric is None or value is None:
        return False
    return value == target or metric.loss(value, target) <= allowed + 1e-9


def vector(outcome: Outcome, metric: Metric | None) -> tuple[float, ...]:
    """Return all figures with signs such that less is better; unknown ones are infinite."""
    figures = outcome.figures
    assert figures is not None, "a combination that gave nothing has no figures"
    sign = 1 if metric is not None and metric.lower_is_better else -1
    error = None if figures.accuracy is None else sign * figures.accuracy
    costs = (error, *(axis(figures) for axis in COST_AXES.values()))
    return tuple(math.inf if cost is None else cost for cost in costs)


def front(outcomes: Sequence[Outcome], metric: Metric | None) -> list[Outcome]:
    """Return the Pareto front: the outcomes that are not dominated by another one."""
    return pareto_front([o for o in outcomes if o.figures is not None], lambda outcome: vector(outcome, metric))


@dataclass(frozen=True)
class Prices:
    """Prices of boards as given by the user; of two boards without a price, the smaller one counts as cheaper."""

    known: Mapping[str, float] = field(default_factory=dict)

    def rank(self, board: Board) -> tuple[float, ...]:
        """Return the rank of a board: by price, then by RAM, flash and clock, which determine prices of chips."""
        return (self.known.get(board.name, math.inf), board.total_ram, board.total_flash, board.clock_hz)
