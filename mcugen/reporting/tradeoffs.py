# SPDX-License-Identifier: Apache-2.0
"""What accuracy costs: the steps of a search for the least precise arithmetic that is precise enough."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mcugen.evaluation.metrics import Judged, Metric, chance

LEAST_JUDGED = 100
"""Samples whose chance says something: of fewer, each counts."""

NOTABLE_EXCESS = 1.0
"""Percentage points beyond what is allowed, from which on a drop that chance lets pass is told."""


@dataclass(frozen=True)
class Goal:
    """`metric` may fall `drop` short of `float32` (percentage points for shares), or must reach `least`.

    So must `others`. A drop is one beyond chance: 2 samples of 400 are none.
    """

    metric: Metric
    float32: float
    drop: float | None = None
    least: float | None = None
    others: tuple[Goal, ...] = ()

    def holds(self, value: float, chance: float = 0.0) -> bool:
        """Whether a model with that value is good enough, of which a share may be due to chance."""
        if self.least is not None:
            return self.metric.loss(value, self.least) <= 0
        assert self.drop is not None
        return self.metric.loss(value, self.float32) <= self.drop + 100 * chance + 1e-9

    def met(self, judged: Judged) -> bool:
        """Whether outputs are good enough by this goal and all others."""
        is_judged = self.least is None and len(judged.outputs) >= LEAST_JUDGED
        own = self.holds(self.metric.compute(judged), chance(self.metric, judged) if is_judged else 0.0)
        return own and all(goal.met(judged) for goal in self.others)

    def doubt(self, value: float, chance: float, count: int) -> str:
        """What `count` samples leave open of a drop that only `chance` lets pass, and how many would tell; or nothing.

        The interval narrows with the root of samples: so many are needed that it ends where what is allowed does.
        """
        beyond = 0.0 if self.drop is None else self.metric.loss(value, self.float32) - self.drop
        if beyond < NOTABLE_EXCESS or count < LEAST_JUDGED or not chance:
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
    """One model on the way: which layer was changed, and what came of it.

    `value` is the metric in ONNX Runtime, of which `chance` may be due to that; `confirmed` that of the generated code
    where it was asked for. Bytes of arena and weights are measured; `instructions` are counted where the goal held,
    else `is_estimate`: by the costs of kernels, or from multiply-accumulates. All three are None of a model that missed
    the goal without being compiled. `kept` is False where the change was taken back.
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
        """The metric for people, with what of it may be chance."""
        return metric.show(self.value) + (f" ±{100 * self.chance:.2f}" if self.chance else "")
