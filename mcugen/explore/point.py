# SPDX-License-Identifier: Apache-2.0
"""A combination of board, precision and goal, and what came of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mcugen.errors import McugenError, shortened
from mcugen.report.figures import Report


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
    """What a combination costs and is worth; None where that is unknown.

    `accuracy` is in the metric's unit, infinite where outputs are exact. `ram` and `flash` are bytes; before anything
    ran they lack the stack, and code is an estimate. `ms` and `microjoules` are of one call: by cycles, or, where those
    are not known, `by_instructions`, each taken for one cycle: then they are less than they will be.
    """

    accuracy: float | None
    ms: float | None
    ram: int
    flash: int
    microjoules: float | None
    by_instructions: bool


@dataclass(frozen=True)
class Refusal:
    """Why a combination gave nothing."""

    kind: str
    """The error's class (mcugen.errors)."""
    message: str

    @property
    def reason(self) -> str:
        """What must hold and what was found, without a remedy: there are other combinations."""
        return self.message.partition(" try: ")[0]

    @classmethod
    def of(cls, error: McugenError) -> Refusal:
        """What an error says."""
        return cls(type(error).__name__, shortened(str(error)))


@dataclass(frozen=True)
class Yardstick:
    """What accuracy is measured by: the metric's name, the float model's value, on how many samples."""

    metric: str
    float32: float
    samples: int


@dataclass(frozen=True)
class Outcome:
    """What came of a combination: figures and a report, or a refusal. `simulated`: it ran, or was to."""

    point: Point
    figures: Figures | None
    report: Report | None
    refusal: Refusal | None
    yardstick: Yardstick | None
    simulated: bool


def finite(value: Any) -> Any:
    """Plain data for JSON that all programs read: infinite numbers are None."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
