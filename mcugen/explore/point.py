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
    """A combination: `precision` is one of PRECISIONS or MIXED, `optimize` one of GOALS."""

    board: str
    precision: str
    optimize: str

    def __str__(self) -> str:
        return f"{self.board}, {self.precision}, {self.optimize}"


@dataclass(frozen=True)
class Figures:
    """Cost and accuracy of a combination; None where unknown.

    `accuracy` is in the metric's unit, infinite if outputs are exact. `ram` and `flash` are bytes; before a run they
    lack the stack, and code is an estimate. `ms` and `microjoules` are for one call. They follow from cycles, estimated
    before a run, or with `by_instructions` from instructions at one cycle each, and are then lower bounds.
    """

    accuracy: float | None
    ms: float | None
    ram: int
    flash: int
    microjoules: float | None
    by_instructions: bool


@dataclass(frozen=True)
class PointFailure:
    """The reason why a combination has no figures."""

    kind: str
    """Name of the error's class (mcugen.core.errors)."""
    message: str

    @property
    def reason(self) -> str:
        """Return the message without its hint, since other combinations exist."""
        return self.message.partition(" try: ")[0]

    @classmethod
    def of(cls, error: McugenError) -> PointFailure:
        """Return the refusal that an error describes."""
        return cls(type(error).__name__, shortened(str(error)))


@dataclass(frozen=True)
class Yardstick:
    """The measure of accuracy: the metric's name, the float model's value, and the number of samples."""

    metric: str
    float32: float
    samples: int


@dataclass(frozen=True)
class Outcome:
    """The result for a combination: figures and a report, or a refusal.

    `simulated` says whether a run was requested.
    """

    point: Point
    figures: Figures | None
    report: Report | None
    refusal: PointFailure | None
    yardstick: Yardstick | None
    simulated: bool


def finite(value: Any) -> Any:
    """Return plain data for JSON that all programs read: infinite numbers become None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
