# SPDX-License-Identifier: Apache-2.0
"""The trade-off of accuracy and cost: the goal and the steps of a search for the lowest sufficient precision."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mcugen.evaluation.metrics import Judged, Metric, chance

MIN_CHANCE_SAMPLES = 100
"""Smallest number of samples for which a confidence interval is considered; with fewer, the measured value counts."""

NOTABLE_EXCESS = 1.0
"""Smallest excess over the allowed drop, in percentage points, that gives a warning.

The warning is for drops that are within the confidence interval, and so do not count as a miss of the goal.
"""


@dataclass(frozen=True)
class Goal:
    """An accuracy goal: the largest drop of a metric from the float model, or its smallest value.

    A drop within its confidence interval does not count, such as 2 of 400 samples.

    Attributes:
        metric: The metric.
        float32: Its value for the float model.
        drop: Largest drop, in the unit of the metric; in percentage points for shares. None if there is a `least`.
        least: Smallest value; None if there is a `drop`.
        others: Further goals that must be met.
    """

    metric: Metric
    float32: float
    drop: float | None = None
    least: float | None = None
    others: tuple[Goal, ...] = ()

    def holds(self, value: float, chance: float = 0.0) -> bool:
        """Return whether a value of the metric meets this goal, without `others`.

        Args:
            value: The value.
            chance: Half-width of the confidence interval of the value, as a share from 0 to 1.
        """
        if self.least is not None:
            return self.metric.loss(value, self.least) <= 0
        assert self.drop is not None
        return self.metric.loss(value, self.float32) <= self.drop + 100 * chance + 1e-9

    def met(self, judged: Judged) -> bool:
        """Return whether the outputs of a model on samples meet this goal and all `others`.

        Args:
            judged: The outputs of the model with those of the reference, and labels if known.
        """
        is_judged = self.least is None and len(judged.outputs) >= MIN_CHANCE_SAMPLES
        own = self.holds(self.metric.compute(judged), chance(self.metric, judged) if is_judged else 0.0)
        return own and all(goal.met(judged) for goal in self.others)

    def uncertainty_warning(self, value: float, chance: float, count: int) -> str:
        """Return a warning if a drop exceeds the goal but is within the confidence interval; "" otherwise.

        The warning states how many samples are needed, since the interval shrinks with the square root of their number.

        Args:
            value: The value of the metric.
            chance: Half-width of the confidence interval, as a share from 0 to 1.
            count: Number of samples.
        """
        beyond = 0.0 if self.drop is None else self.metric.loss(value, self.float32) - self.drop
        if beyond < NOTABLE_EXCESS or count < MIN_CHANCE_SAMPLES or not chance:
            return ""
        assert self.drop is not None
        lost, half = self.drop + beyond, 100 * chance
        needed = math.ceil(count * (half / beyond) ** 2)
        return (
            f"{count} samples are too few to show whether the drop is within {self.drop:g}: it is {lost:.2f} points, "
            f"{lost - half:.2f} to {lost + half:.2f} with 95 % confidence; about {needed} samples are needed"
        )

    def __str__(self) -> str:
        return "; and ".join([self._own, *map(str, self.others)])

    @property
    def _own(self) -> str:
        if self.least is not None:
            return f"{self.metric.title} of {self.metric.show(self.least)} or better"
        unit = " percentage points" * (self.metric.unit == "%")
        return f"{self.metric.title} at most {self.drop:g}{unit} worse than {self.metric.show(self.float32)} of float32"


@dataclass(frozen=True)
class Tradeoff:
    """One step of the precision search: a layer whose precision was changed, and the resulting model.

    Attributes:
        layer: Name of the layer.
        precision: Its new precision.
        value: Value of the accuracy metric in ONNX Runtime.
        chance: Half-width of its confidence interval, as a share from 0 to 1.
        confirmed: Value of the metric for the generated code; None if it was not measured.
        arena: Bytes of the arena; None, like the next two, if the model was not compiled because it missed the goal.
        weights: Bytes of the weights.
        instructions: Instructions of an inference.
        is_estimate: Whether the instructions are estimated instead of counted.
        holds: Whether the goal is met.
        kept: Whether the change was kept.
    """

    layer: str
    precision: str
    value: float
    chance: float
    confirmed: float | None
    arena: int | None
    weights: int | None
    instructions: int | None
    is_estimate: bool
    holds: bool
    kept: bool

    def shown(self, metric: Metric) -> str:
        """Return the value of the metric as text, with its confidence interval."""
        return metric.show(self.value) + (f" ±{100 * self.chance:.2f}" if self.chance else "")
