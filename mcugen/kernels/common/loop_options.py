# SPDX-License-Identifier: Apache-2.0
"""Template options of kernels whose inner loops depend on tuning flags of the board (mcugen.memory.loop_tuning)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from mcugen.kernels.common.specs import ConvSpec
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import HALF_SEPARATE_SUMS, PAIRED_LOADS, SEPARATE_SUMS, WORD_WEIGHTS, Options, Site


class Loops(Options):
    """Template options of loops over 16-bit products, which follow from tuning flags of the board."""

    paired_loads: Annotated[bool, "whether words are loaded one by one, each beside a product (PAIRED_LOADS)"]

    @staticmethod
    def of(site: Site) -> Loops:
        """Return the loop options that the tuning flags among the CPU features select."""
        return Loops(paired_loads=PAIRED_LOADS in site.features)


def separate_sums_per_pair(features: Collection[str]) -> int:
    """Return how many of every two float products the tuning flags add by a separate instruction: 0, 1 or 2.

    The other products are added by a fused multiply-add.
    """
    return 2 if SEPARATE_SUMS in features else 1 if HALF_SEPARATE_SUMS in features else 0


class FloatLoops(Options):
    """Template options of loops over float products, in assembly."""

    separate_sums: Annotated[
        int, "how many of every two products are added by a separate instruction (SEPARATE_SUMS): 0, 1 or 2"
    ]

    @staticmethod
    def of(wishes: Site | Builder) -> FloatLoops:
        """Return the loop options that the tuning flags among the CPU features select."""
        return FloatLoops(separate_sums=separate_sums_per_pair(wishes.features))


class WeightLoads(Options):
    """Template options of kernels that compute six output channels at a time."""

    word_loads: Annotated[bool, "whether weights are loaded by words (WORD_WEIGHTS): all blocks then begin at a word"]

    @staticmethod
    def of(spec: ConvSpec, site: Site) -> WeightLoads:
        """Return the options for a layer: weights are loaded by words if the flag is set and the depth is even."""
        return WeightLoads(word_loads=WORD_WEIGHTS in site.features and spec.depth % 2 == 0)
