# SPDX-License-Identifier: Apache-2.0
"""What a combination must keep to, and which of several is the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mcugen.core.board import Board
from mcugen.evaluation.metrics import Metric
from mcugen.explore.point import Figures, Outcome

AXES: dict[str, Callable[[Figures], float | None]] = {
    "ms": lambda f: f.ms,
    "ram": lambda f: f.ram,
    "flash": lambda f: f.flash,
    "microjoules": lambda f: f.microjoules,
}
"""Figures of which less is better; beside them there is accuracy."""


@dataclass(frozen=True)
class Demands:
    """The most that a combination may take, the least that it must be worth; None is no limit.

    `accuracy` is a value of the metric, `drop` by how much it may be worse than float32 (percentage points of shares).
    """

    ms: float | None = None
    cycles: int | None = None
    ram: int | None = None
    flash: int | None = None
    microjoules: float | None = None
    accuracy: float | None = None
    drop: float | None = None

    def missed(self, outcome: Outcome, board: Board, metric: Metric | None, float32: float | None) -> list[str]:
        """What the combination misses, a few words each; what is not known is missed, too."""
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
        found = [what for what, value, most in limits if most is not None and (value is None or value > most)]
        for wanted, allowed in ((self.accuracy, 0.0), (float32, self.drop)):
            if wanted is not None and allowed is not None and not _near(metric, figures.accuracy, wanted, allowed):
                found.append("accuracy")
        return list(dict.fromkeys(found))


def _least(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)


def _near(metric: Metric | None, value: float | None, wanted: float, allowed: float) -> bool:
    if metric is None or value is None:
        return False
    return value == wanted or metric.loss(value, wanted) <= allowed + 1e-9


def vector(outcome: Outcome, metric: Metric | None) -> tuple[float, ...]:
    """All figures so that less is better; what is unknown is infinite."""
    figures = outcome.figures
    assert figures is not None, "a combination that gave nothing has no figures"
    sign = 1 if metric is not None and metric.lower_is_better else -1
    error = None if figures.accuracy is None else sign * figures.accuracy
    costs = (error, *(axis(figures) for axis in AXES.values()))
    return tuple(math.inf if cost is None else cost for cost in costs)


def front(outcomes: Sequence[Outcome], metric: Metric | None) -> list[Outcome]:
    """The Pareto front: those that no other beats in one figure without being worse in another."""
    known = [(outcome, vector(outcome, metric)) for outcome in outcomes if outcome.figures is not None]
    return [outcome for outcome, costs in known if not any(_beats(other, costs) for _, other in known)]


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


@dataclass(frozen=True)
class Prices:
    """What boards cost: as the user says; of two without a price the smaller one is held to be cheaper."""

    known: Mapping[str, float] = field(default_factory=dict)

    def rank(self, board: Board) -> tuple[float, ...]:
        """The cheapest first: by price, then by RAM, flash and clock, which chips are sold by."""
        return (self.known.get(board.name, math.inf), board.total_ram, board.total_flash, board.clock_hz)
