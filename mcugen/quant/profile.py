# SPDX-License-Identifier: Apache-2.0
"""What was seen of each tensor while a model ran on calibration samples: independent of any quantization scheme."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TensorProfile:
    """`lows`, `highs`: extremes of each sample, in order; `histogram`: counts in equal bins over all of them.

    `means`: of each index of axis 1 (or of the last axis of a matrix), over samples and all other axes.
    """

    lows: tuple[float, ...]
    highs: tuple[float, ...]
    histogram: tuple[int, ...]
    means: tuple[float, ...]

    @property
    def low(self) -> float:
        """The least value."""
        return min(self.lows)

    @property
    def high(self) -> float:
        """The greatest value."""
        return max(self.highs)


@dataclass(frozen=True)
class Profile:
    """Of the model with this SHA-256, on so many samples."""

    sha256: str
    samples: int
    tensors: Mapping[str, TensorProfile]
