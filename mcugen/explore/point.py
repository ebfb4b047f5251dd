# SPDX-License-Identifier: Apache-2.0
"""A combination of board, precision and goal, and its outcome."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mcugen.core.errors import McugenError, shortened
from mcugen.reporting.figures import Report


@dataclass(frozen=True)
class Point:
    """A combination of board, precision and optimization goal for which a model is compiled."""

    board: str
    """Name of the board."""
    precision: str
    """Precision of the arithmetic: one of PRECISIONS, or MIXED."""
    optimize: str
    """Optimization goal, one of GOALS."""

    def __str__(self) -> str:
        return f"{self.board}, {self.precision}, {self.optimize}"


@dataclass(frozen=True)
class Figures:
    """Cost and accuracy of a model for one combination of board, precision and goal; None where unknown.

    Attributes:
        accuracy: Value of the metric, in its unit; infinite if outputs are exact.
        ms: Time of a call in milliseconds, from cycles that are measured, or estimated before a run.
        ram: Bytes of RAM; before a run without the stack.
        flash: Bytes of flash; before a run with an estimate of the code.
        microjoules: Energy of a call in microjoules, from the same cycles as `ms`.
        by_instructions: Whether cycles are unknown. Each instruction then counts as one cycle, so that `ms` and
            `microjoules` are lower bounds.
    """

    accuracy: float | None
    ms: float | None
    ram: int
    flash: int
    microjoules: float | None
    by_instructions: bool


@dataclass(frozen=True)
class PointFailure:
    """The reason why a model has no figures for a combination of board, precision and goal."""

    kind: str
    """Name of the error's class (mcugen.core.errors)."""
    message: str
    """The message of the error."""

    @property
    def reason(self) -> str:
        """Return the error message without its hint, which would not help: other combinations may succeed."""
        return self.message.partition(" try: ")[0]

    @classmethod
    def of(cls, error: McugenError) -> PointFailure:
        """Return the failure that an error of the compilation describes."""
        return cls(type(error).__name__, shortened(str(error)))


@dataclass(frozen=True)
class AccuracyBaseline:
    """The metric of accuracy that all combinations share, and its value for the float model."""

    metric: str
    """Name of the metric."""
    float32: float
    """The metric's value for the float model."""
    samples: int
    """Number of samples."""


@dataclass(frozen=True)
class Outcome:
    """The result of a model for one combination of board, precision and goal: figures and a report, or a failure."""

    point: Point
    """The combination."""
    figures: Figures | None
    """Cost and accuracy; None after a failure."""
    report: Report | None
    """The report of the compilation or of the run; None after a failure."""
    refusal: PointFailure | None
    """The failure; None if the model was compiled."""
    baseline: AccuracyBaseline | None
    """The accuracy metric and its value for the float model; None without samples."""
    simulated: bool
    """Whether a run in the simulator was requested; it may have failed."""


def replace_infinities(value: Any) -> Any:
    """Return a copy of JSON data with None for infinite numbers and NaN, which strict JSON does not allow."""
    if isinstance(value, dict):
        return {key: replace_infinities(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_infinities(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
