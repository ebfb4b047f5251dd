# SPDX-License-Identifier: Apache-2.0
"""First and second moments of a layer's inputs: all that rounding its weights needs to know of the data."""

from __future__ import annotations

import numpy as np

from mcugen.hir.types import Array

UNCORRELATED = 1 / 3
"""Rows without correlations, by depth, that are thought to have been seen too: few samples show chance correlations."""

UNSEEN = 0.01
"""Variance that every input is thought to have, relative to the mean: what was never seen may come all the same."""


class Moments:
    """Sums over the rows that a layer reads (`Operator.unfolded`): x real, x̂ as the quantized layer gets them."""

    def __init__(self) -> None:
        self._count = 0
        self._real: Array | float = 0.0
        self._seen: Array | float = 0.0
        self._square: Array | float = 0.0

    def add(self, real: Array, seen: Array) -> None:
        """One sample: [groups, rows, depth] of both."""
        self._count += seen.shape[1]
        self._real = self._real + real.sum(1, np.float64)
        self._seen = self._seen + seen.sum(1, np.float64)
        seen = np.ascontiguousarray(seen, np.float64)  # float32 rounds otherwise on other CPUs
        self._square = self._square + seen.swapaxes(1, 2) @ seen

    @property
    def real(self) -> Array:
        """E[x]: [groups, depth]."""
        return np.asarray(self._real) / self._count

    @property
    def seen(self) -> Array:
        """E[x̂]: [groups, depth]."""
        return np.asarray(self._seen) / self._count

    def gram(self, centred: bool) -> Array:
        """E[x̂ x̂ᵀ], [groups, depth, depth], of x̂ − E[x̂] if centred (what the bias cannot mend).

        Correlations are shrunk as far as the rows are few, and no input is thought constant.
        """
        gram = np.asarray(self._square, np.float64) / self._count
        if centred:
            gram = gram - self.seen[:, :, None] * self.seen[:, None, :]
        depth = gram.shape[-1]
        kept = self._count / (self._count + UNCORRELATED * depth)
        gram *= kept + (1 - kept) * np.eye(depth)
        energy = np.trace(gram, axis1=1, axis2=2) / depth
        result: Array = gram + UNSEEN * energy[:, None, None] * np.eye(depth)
        return result
