# SPDX-License-Identifier: Apache-2.0
"""`--max-weights` counts weights as the model has them; that kernels read wider ones is told."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mcugen.autotuning.precision import AccuracyDemand, PrecisionSearch
from mcugen.core.options import CompileOptions
from mcugen.evaluation.metrics import METRICS
from mcugen.reporting.tradeoffs import Tradeoff


def search(taken: int | None, share: float | None, goal: str) -> PrecisionSearch:
    """Whose program takes so many bytes of constants; with weights of 8 bits it were 1,000."""
    made = PrecisionSearch.__new__(PrecisionSearch)
    made.options = CompileOptions(optimize=goal)
    made.demand = AccuracyDemand(METRICS["sqnr"], max_weights=share)
    step = Tradeoff("", "int8", 30.0, 0.0, 30.0, 100, taken, 1000, is_estimate=False, holds=True, kept=True)
    made.steps = [step]
    vars(made)["_wide"] = SimpleNamespace(weights_size=1000)
    return made


@pytest.mark.parametrize(
    ("taken", "share", "goal", "tells"),
    [
        (900, 0.6, "balanced", True),
        (640, 0.6, "balanced", False),
        (900, None, "balanced", False),
        (900, 0.6, "flash", False),
    ],
)
def test_wider_constants_are_told(taken: int, share: float | None, goal: str, tells: bool) -> None:
    notes = search(taken, share, goal).excess_notes()
    assert len(notes) == tells
    assert all("--max-weights 60% is kept" in n and "take 90% of those with weights of 8 bits" in n for n in notes)
