# SPDX-License-Identifier: Apache-2.0
"""Tasks beside classification: quantized networks reach the metric of the float ones, with default options."""

from __future__ import annotations

from functools import cache

import pytest
from task_networks import TASKS, Task, Trial
from task_study import judged, outputs_of, quantized

TOLERANCE = {"R²": 0.005, "AUC": 0.005, "accuracy": 0.01}
"""By how much a metric may be worse than the float network's."""

QUICK = [task for task in TASKS if task.metric in {"R²", "AUC"} and "autoencoder" not in task.name]
SPOKEN = [task for task in TASKS if task.metric == "accuracy"]


@cache
def trial_of(task: Task) -> Trial:
    """Train each network once for all precisions."""
    return task.make()


@pytest.mark.parametrize("precision", ["int8", "int16x8"])
@pytest.mark.parametrize(
    "task",
    [*QUICK, *(pytest.param(task, marks=pytest.mark.slow) for task in SPOKEN)],
    ids=lambda task: task.name.replace(" ", "_"),
)
def test_quantized_networks_reach_the_metric_of_float(task, precision):
    trial = trial_of(task)
    exact = judged(trial, outputs_of(trial, trial.model)).value
    found = judged(trial, outputs_of(trial, quantized(trial, precision))).value
    assert found >= exact - TOLERANCE[task.metric]
