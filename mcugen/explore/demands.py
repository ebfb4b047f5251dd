# SPDX-License-Identifier: Apache-2.0
"""Limits for combinations, and which of several is the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mcugen.core.board import Board
from mcugen.core.options import CompileOptions
from mcugen.evaluation.metrics import Metric
from mcugen.explore.point import Figures, Outcome
from mcugen.search.objective import pareto_front

COST_AXES: dict[str, Callable[[Figures], float | None]] = {
    "ms": lambda f: f.ms,
    "ram": lambda f: f.ram,
    "flash": lambda f: f.flash,
    "microjoules": lambda f: f.microjoules,
}
"""Costs that are compared in addition to accuracy: by name, a function from a combination's figures to the cost.

The function returns None if the cost is unknown.
"""


@dataclass(frozen=True)
class Demands:
    """The limits that the user sets for a combination of board, precision and goal; None means no limit."""

    ms: float | None = None
    """Largest accepted time of a call in milliseconds."""
    cycles: int | None = None
    """Largest accepted number of cycles of a call."""
    ram: int | None = None
    """Largest accepted RAM in bytes."""
    flash: int | None = None
    """Largest accepted flash in bytes."""
    microjoules: float | None = None
    """Largest accepted energy of a call in microjoules."""
    accuracy: float | None = None
    """Worst accepted value of the accuracy metric, in the unit of the metric; None for no limit."""
    drop: float | None = None
    """Largest accepted loss of the metric against float32, in percentage points for metrics that are shares."""

    @classmethod
    def of_options(cls, options: CompileOptions) -> Demands:
        """Return the limits of time and memory in the options of generated code.

        Args:
            options: The options, whose `max_latency` is in seconds.
        """
        milliseconds = None if options.max_latency is None else 1e3 * options.max_latency
        return cls(milliseconds, options.max_cycles, options.max_ram, options.max_flash)

    def missed(self, outcome: Outcome, board: Board, metric: Metric | None, float32: float | None) -> list[str]:
        """Return the names of the limits that a combination exceeds, such as "RAM"; an unknown figure exceeds a limit.

        For a combination that could not be compiled, the list has one element: the class name of the error.

        Args:
            outcome: The outcome of the combination.
            board: Its board, whose RAM and flash are limits too.
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


def cost_vector(outcome: Outcome, metric: Metric | None) -> tuple[float, ...]:
    """Return the accuracy and the costs of a combination as numbers of which less is better.

    The first number is the value of the metric, negated if more is better. The costs follow in the order of COST_AXES.
    Unknown numbers are infinite.

    Args:
        outcome: The outcome of the combination.
        metric: The metric of accuracy; None if unknown.
    """
    figures = outcome.figures
    assert figures is not None, "a combination that gave nothing has no figures"
    sign = 1 if metric is not None and metric.lower_is_better else -1
    error = None if figures.accuracy is None else sign * figures.accuracy
    costs = (error, *(axis(figures) for axis in COST_AXES.values()))
    return tuple(math.inf if cost is None else cost for cost in costs)


def outcomes_on_front(outcomes: Sequence[Outcome], metric: Metric | None) -> list[Outcome]:
    """Return the outcomes on the Pareto front, which no other outcome dominates.

    An outcome dominates another if it is better in at least one number of `cost_vector` and worse in none. Outcomes
    without figures are left out.

    Args:
        outcomes: The outcomes to compare.
        metric: The metric of accuracy; None if unknown.
    """
    return pareto_front([o for o in outcomes if o.figures is not None], lambda outcome: cost_vector(outcome, metric))


@dataclass(frozen=True)
class Prices:
    """The prices of boards, by which the cheapest board is found."""

    known: Mapping[str, float] = field(default_factory=dict)
    """Prices by board name, in any one currency, as the user gave them; absent boards rank behind all of these."""

    def rank(self, board: Board) -> tuple[float, ...]:
        """Return a sort key that orders boards from cheap to expensive.

        Boards with equal or unknown prices are ordered by RAM, flash and clock, which drive the price of a chip.
        """
        return (self.known.get(board.name, math.inf), board.total_ram, board.total_flash, board.clock_hz)
