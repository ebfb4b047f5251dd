# SPDX-License-Identifier: Apache-2.0
"""First and second moments of a layer's inputs: all that the rounding of its weights needs to know of the samples."""

from __future__ import annotations

import numpy as np

from mcugen.hir.types import Array

VIRTUAL_ROWS_PER_DEPTH = 1 / 3
"""Number of virtual rows with uncorrelated inputs that are added to the sums, divided by the length of a row.

They reduce the correlations that few samples show by chance.
"""

ASSUMED_VARIANCE = 0.01
"""Variance that is added to every input of a layer, as a share of the mean variance of its inputs.

Later data may have values that the samples lack.
"""


FULL_TRUST_SAMPLES = 50
"""Smallest number of samples for which the bias cancels a layer's whole mean error, not a share (`Moments.trust`)."""

FULL_TRUST_VARIANCE = 0.01
"""Smallest variance of the samples' means, divided by the squared mean, for which the bias corrects the whole error.

With less, the samples hardly differ, and even FULL_TRUST_SAMPLES of them do not show the mean of other data.
"""

MIN_RELATIVE_VARIANCE = 1e-3
"""Lower bound of the total variance of a layer's inputs, divided by their energy (sum of squares).

If samples hardly differ, rounding errors may make the computed variance smaller than that, or negative.
"""


class Moments:
    """The first and second moments of a layer's inputs, summed up sample by sample.

    From them, weights are rounded with the least error at the layer's output, and biases are corrected. A row is an
    im2col patch of `depth` inputs of one group of channels: x in the float model, x̂ in the quantized one. E is the
    mean over all rows. If created with `crossed`, the sums also include E[(x − x̂) x̂ᵀ], which `compensation` needs to
    cancel errors of earlier layers.
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
        """Add input rows (im2col patches) of the layer to the sums.

        Args:
            real: The rows in the float model, [groups, rows, depth].
            seen: The same rows in the quantized model.
            samples: Number of samples that the rows come from, or that each row is a mean of. It affects only `trust`;
                the number of samples does not change the weight of a row.
        """
        self._samples += samples
        self._count += seen.shape[1]
        seen = np.ascontiguousarray(seen, np.float64)  # Sums in float32 round differently on other CPUs.
        total = seen.sum(1)
        self._apart += float(np.square(total / seen.shape[1]).sum())
        self._real = self._real + real.sum(1, np.float64)
        self._seen = self._seen + total
        self._square = self._square + seen.swapaxes(1, 2) @ seen
        if self._is_crossed:
            self._cross = self._cross + (real.astype(np.float64) - seen).swapaxes(1, 2) @ seen

    @property
    def float_mean(self) -> Array:
        """Return E[x], the mean of the layer's input rows (im2col patches) in the float model, [groups, depth].

        `groups` are the groups of channels, `depth` is the number of inputs in a patch.
        """
        return np.asarray(self._real) / self._count

    @property
    def quantized_mean(self) -> Array:
        """Return E[x̂], the mean of the layer's input rows (im2col patches) in the quantized model, [groups, depth].

        `groups` are the groups of channels, `depth` is the number of inputs in a patch.
        """
        return np.asarray(self._seen) / self._count

    @property
    def trust(self) -> float:
        """Return the share of the mean error that the bias should correct, from 0 to 1.

        With n samples it is 1 − 1/n, because the error of a mean over n samples is one n-th of the variance between
        samples. Many rows of one sample do not help, because they come from one image, one voice or one machine. The
        share is 1 from FULL_TRUST_SAMPLES on, if the samples differ enough.
        """
        mean = float(np.square(self.quantized_mean).sum())
        varies = self._apart / self._samples - mean >= FULL_TRUST_VARIANCE * mean
        return 1.0 if self._samples >= FULL_TRUST_SAMPLES and varies else 1 - 1 / self._samples

    def gram(self, centred: bool) -> Array:
        """Return G = E[x̂ x̂ᵀ], the second moments of the quantized inputs in a patch, [groups, depth, depth].

        Correlations are reduced if there are few rows, and a small variance is added to every input (ASSUMED_VARIANCE).

        Args:
            centred: Whether to subtract the part that the bias corrects: `trust` times E[x̂] E[x̂]ᵀ.
        """
        gram = np.asarray(self._square, np.float64) / self._count
        min_energy = MIN_RELATIVE_VARIANCE * np.trace(gram, axis1=1, axis2=2)
        if centred:
            gram = gram - self.trust * self.quantized_mean[:, :, None] * self.quantized_mean[:, None, :]
        depth = gram.shape[-1]
        kept = self._count / (self._count + VIRTUAL_ROWS_PER_DEPTH * depth)
        gram *= kept + (1 - kept) * np.eye(depth)
        energy = np.maximum(np.trace(gram, axis1=1, axis2=2), min_energy) / depth
        result: Array = gram + ASSUMED_VARIANCE * energy[:, None, None] * np.eye(depth)
        return result

    def compensation(self, centred: bool) -> Array:
        """Return A = E[(x − x̂) x̂ᵀ] G⁻¹, [groups, depth, depth], where G is `gram(centred)`.

        The weights w + w A on the quantized input x̂ give nearly what the weights w give on the float input x.

        Args:
            centred: Whether means are subtracted first, so that the bias corrects constant errors.
        """
        cross = np.asarray(self._cross, np.float64) / self._count
        if centred:
            cross = cross - (self.float_mean - self.quantized_mean)[:, :, None] * self.quantized_mean[:, None, :]
        gram, depth = self.gram(centred), cross.shape[-1]
        kept = self._count / (self._count + VIRTUAL_ROWS_PER_DEPTH * depth)
        is_dead = np.trace(gram, axis1=1, axis2=2)[:, None, None] == 0
        solved = np.linalg.solve(np.where(is_dead, np.eye(depth), gram), kept * cross.swapaxes(1, 2))
        result: Array = solved.swapaxes(1, 2)
        return result
