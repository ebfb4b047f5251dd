# SPDX-License-Identifier: Apache-2.0
"""First and second moments of a layer's inputs: all that rounding its weights needs to know of the data."""

from __future__ import annotations

import numpy as np

from mcugen.hir.types import Array

UNCORRELATED = 1 / 3
"""Rows without correlations, by depth, that are thought to have been seen too: few samples show chance correlations."""

UNSEEN = 0.01
"""Variance that every input is thought to have, relative to the mean: what was never seen may come all the same."""


ENOUGH, APART = 50, 0.01
"""Samples by which a mean is believed in full, if their own means vary by that share of the mean's square."""

LEAST_VARIANCE = 1e-3
"""Of all inputs together, relative to their energy, whatever rounding left of it where samples are much the same."""


class Moments:
    """Sums over the rows that a layer reads (`Operator.unfolded`): x real, x̂ as the quantized layer gets them.

    If `crossed`, also of their products, which `compensation` needs.
    """

    def __init__(self, crossed: bool = False) -> None:
        self._is_crossed = crossed
        self._samples = 0
        self._count = 0
        self._apart = 0.0
        self._real: Array | float = 0.0
        self._seen: Array | float = 0.0
        self._square: Array | float = 0.0
        self._cross: Array | float = 0.0

    def add(self, real: Array, seen: Array, samples: int = 1) -> None:
        """One sample, or the means of several: [groups, rows, depth] of both."""
        self._samples += samples
        self._count += seen.shape[1]
        seen = np.ascontiguousarray(seen, np.float64)  # float32 rounds otherwise on other CPUs
        total = seen.sum(1)
        self._apart += float(np.square(total / seen.shape[1]).sum())
        self._real = self._real + real.sum(1, np.float64)
        self._seen = self._seen + total
        self._square = self._square + seen.swapaxes(1, 2) @ seen
        if self._is_crossed:
            self._cross = self._cross + (real.astype(np.float64) - seen).swapaxes(1, 2) @ seen

    @property
    def real(self) -> Array:
        """E[x]: [groups, depth]."""
        return np.asarray(self._real) / self._count

    @property
    def seen(self) -> Array:
        """E[x̂]: [groups, depth]."""
        return np.asarray(self._seen) / self._count

    @property
    def trust(self) -> float:
        """The share of a mean error that a bias should mend: none by one sample, which says nothing of the next.

        A mean over n samples is off by an n-th of the variance between samples, and that of one sample is all that
        there is. However many rows a sample has, they are of one image, one voice, one machine; and so are samples
        that hardly differ.
        """
        mean = float(np.square(self.seen).sum())
        varies = self._apart / self._samples - mean >= APART * mean
        return 1.0 if self._samples >= ENOUGH and varies else 1 - 1 / self._samples

    def gram(self, centred: bool) -> Array:
        """E[x̂ x̂ᵀ], [groups, depth, depth]; if centred, without what the bias mends: `trust` of E[x̂] E[x̂]ᵀ.

        Correlations are shrunk as far as the rows are few, and no input is thought constant.
        """
        gram = np.asarray(self._square, np.float64) / self._count
        least = LEAST_VARIANCE * np.trace(gram, axis1=1, axis2=2)
        if centred:
            gram = gram - self.trust * self.seen[:, :, None] * self.seen[:, None, :]
        depth = gram.shape[-1]
        kept = self._count / (self._count + UNCORRELATED * depth)
        gram *= kept + (1 - kept) * np.eye(depth)
        energy = np.maximum(np.trace(gram, axis1=1, axis2=2), least) / depth
        result: Array = gram + UNSEEN * energy[:, None, None] * np.eye(depth)
        return result

    def compensation(self, centred: bool) -> Array:
        """A = E[(x − x̂) x̂ᵀ] G⁻¹, [groups, depth, depth]: by x̂, weights w + w A come nearest to what w gives by x.

        If centred, but for a constant, which the bias mends.
        """
        cross = np.asarray(self._cross, np.float64) / self._count
        if centred:
            cross = cross - (self.real - self.seen)[:, :, None] * self.seen[:, None, :]
        gram, depth = self.gram(centred), cross.shape[-1]
        kept = self._count / (self._count + UNCORRELATED * depth)
        is_dead = np.trace(gram, axis1=1, axis2=2)[:, None, None] == 0
        solved = np.linalg.solve(np.where(is_dead, np.eye(depth), gram), kept * cross.swapaxes(1, 2))
        result: Array = solved.swapaxes(1, 2)
        return result
