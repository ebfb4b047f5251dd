# SPDX-License-Identifier: Apache-2.0
"""A request to turn a network over a window of time into one that takes only the new steps in each call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mcugen.hir.types import Array


@dataclass(frozen=True)
class WindowStream:
    """A division of the first input of a graph into time steps.

    Attributes:
        steps: Number of new steps in a call.
        axis: Axis that counts the steps; None until it is found out.
        window: Number of steps of a whole window; 0 as long as the graph takes whole windows.
    """

    steps: int
    axis: int | None = None
    window: int = 0

    def calls(self, window: Array) -> list[Array]:
        """Return the new steps of each call, from the last whole calls' steps of a window."""
        assert self.axis is not None
        count = window.shape[self.axis] // self.steps
        first = window.shape[self.axis] - count * self.steps
        return np.split(np.take(window, range(first, window.shape[self.axis]), self.axis), count, self.axis)
