# SPDX-License-Identifier: Apache-2.0
"""The remaining time of tasks, by the pace of their finished steps."""

from __future__ import annotations

MIN_STEPS_FOR_ESTIMATE = 2
"""Least number of steps of a task that must be finished before its remaining time is estimated."""


class Pace:
    """An estimate of the remaining time of tasks, which may start again."""

    def __init__(self) -> None:
        self._began: dict[str, tuple[float, int]] = {}
        self._last: dict[str, int] = {}

    def seconds_left(self, what: str, finished: int, total: int, now: float) -> float | None:
        """Return the remaining seconds of a task at the pace since it last began; None if too few steps are done.

        Args:
            what: Name of the task.
            finished: Number of finished steps.
            total: Number of all steps.
            now: The present time in seconds, by any monotonic clock.
        """
        if what not in self._began or finished < self._last[what]:
            self._began[what] = now, finished
        self._last[what] = finished
        began, first = self._began[what]
        steps = finished - first
        return (total - finished) * (now - began) / steps if steps >= MIN_STEPS_FOR_ESTIMATE else None
