# SPDX-License-Identifier: Apache-2.0
"""The trade-off of accuracy and cost: the steps of a search for the least precise arithmetic that is precise enough."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mcugen.evaluation.metrics import Judged, Metric, chance

MIN_CHANCE_SAMPLES = 100
"""Least number of samples for which chance is considered: with fewer, each sample counts."""

NOTABLE_EXCESS = 1.0
"""Percentage points beyond the allowed drop from which on a drop that only chance allows is reported."""


@dataclass(frozen=True)
class Goal:
    """An accuracy goal: `metric` may fall `drop` short of `float32`, or must reach `least`.

    `drop` is in percentage points for shares. The goals `others` must be met, too. Only drops beyond chance count: 2
    samples of 400 are none.
    """

    metric: Metric
    float32: float
    drop: float | None = None
    least: float | None = None
    others: tuple[Goal, ...] = ()

    def holds(self, value: float, chance: float = 0.0) -> bool:
        """Return whether a model with that value is good enough, if a share `chance` of it may be due to chance."""
        if self.least is not None:
            return self.metric.loss(value, self.least) <= 0
        assert self.drop is not None
        return self.metric.loss(value, self.float32) <= self.drop + 100 * chance + 1e-9

    def met(self, judged: Judged) -> bool:
        """Return whether outputs are good enough by this goal and all others."""
        is_judged = self.least is None and len(judged.outputs) >= MIN_CHANCE_SAMPLES
        own = self.holds(self.metric.compute(judged), chance(self.metric, judged) if is_judged else 0.0)
        return own and all(goal.met(judged) for goal in self.others)

    def doubt(self, value: float, chance: float, count: int) -> str:
        """Return a warning of a drop that only chance allows, with the number of samples that would decide; or "".

        The interval narrows with the root of samples: so many are needed that it ends where the allowed drop does.
        """
        beyond = 0.0 if self.drop is None else self.metric.loss(value, self.float32) - self.drop
        if beyond < NOTABLE_EXCESS or count < MIN_CHANCE_SAMPLES or not chance:
            return ""
        assert self.drop is not None
        lost, half = self.drop + beyond, 100 * chance
        needed = math.ceil(count * (half / beyond) ** 2)
        return (
            f"{count} samples do not tell whether the drop is within {self.drop:g}: it is {lost:.2f} points here, "
            f"{lost - half:.2f} to {lost + half:.2f} with 95 % confidence; if it is so, about {needed} samples show it"
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
    """One model of the search: the layer that was changed, and the result.

    `value` is the metric in ONNX Runtime, and `chance` how much of it may be due to chance; `confirmed` is the metric
    of the generated code where it was asked for. Bytes of arena and weights are measured; `instructions` are counted
    where the goal held, else `is_estimate`: by the costs of kernels, or from multiply-accumulates. All three are None
    for a model that missed the goal without being compiled. `kept` is False where the change was undone.
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
        """Return the metric as text, with the share that may be chance."""
        return metric.show(self.value) + (f" ±{100 * self.chance:.2f}" if self.chance else "")
