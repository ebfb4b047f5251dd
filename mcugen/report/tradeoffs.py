# SPDX-License-Identifier: Apache-2.0
"""What accuracy costs: the steps of a search for the least precise arithmetic that is precise enough."""

from __future__ import annotations

from dataclasses import dataclass

from mcugen.evaluation.metrics import Metric


@dataclass(frozen=True)
class Goal:
    """`metric` may fall `drop` short of `float32` (percentage points for shares), or must reach `least`."""

    metric: Metric
    float32: float
    drop: float | None = None
    least: float | None = None

    def holds(self, value: float) -> bool:
        """Whether a model with that value is good enough."""
        if self.least is not None:
            return self.metric.loss(value, self.least) <= 0
        assert self.drop is not None
        return self.metric.loss(value, self.float32) <= self.drop + 1e-9

    def __str__(self) -> str:
        if self.least is not None:
            return f"{self.metric.title} of {self.metric.show(self.least)} or better"
        unit = " percentage points" * (self.metric.unit == "%")
        return f"{self.metric.title} at most {self.drop:g}{unit} worse than {self.metric.show(self.float32)} of float32"


@dataclass(frozen=True)
class Tradeoff:
    """One model on the way: which layer was changed, and what came of it.

    `value` is the metric in ONNX Runtime, `confirmed` that of the generated code where it was asked for. Bytes of
    arena and weights are measured; `instructions` are counted where the goal held, else `is_estimate`: by the costs of
    kernels, or from multiply-accumulates. `kept` is False where the change was taken back.
    """

    layer: str
    precision: str
    value: float
    confirmed: float | None
    arena: int
    weights: int
    instructions: int
    is_estimate: bool
    holds: bool
    kept: bool
