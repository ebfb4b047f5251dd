# SPDX-License-Identifier: Apache-2.0
"""Template options of kernels whose inner loops depend on tuning flags of the board (mcugen.memory.loop_tuning)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from mcugen.kernels.common.specs import ConvSpec
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import HALF_SEPARATE_SUMS, PAIRED_LOADS, SEPARATE_SUMS, WORD_WEIGHTS, Options, Site


class Loops(Options):
    """Template option of inner loops over products of 16-bit values: whether words are loaded one by one.

    If so, each load of a word is paired with a product, for CPUs that execute both in one cycle; else several words are
    loaded by one instruction.
    """

    paired_loads: Annotated[bool, "whether words are loaded one by one, each beside a product (PAIRED_LOADS)"]

    @staticmethod
    def of(site: Site) -> Loops:
        """Return the option for a call: words are loaded one by one if the site's features include PAIRED_LOADS.

        PAIRED_LOADS is a tuning flag for CPUs that execute a load and a product in one cycle.
        """
        return Loops(paired_loads=PAIRED_LOADS in site.features)


def separate_sums_per_pair(features: Collection[str]) -> int:
    """Return how many of every two float products are added by a separate instruction, not by a fused multiply-add.

    The tuning flags SEPARATE_SUMS (2) and HALF_SEPARATE_SUMS (1) decide; without them, the result is 0. They are set
    for cores on which a fused multiply-add is slower than a product and a sum.

    Args:
        features: CPU features and tuning flags.
    """
    return 2 if SEPARATE_SUMS in features else 1 if HALF_SEPARATE_SUMS in features else 0


class FloatLoops(Options):
    """Template option of float loops in assembly: how many of two products are added by separate instructions.

    The other products are added by fused multiply-add instructions, which are slower on some cores.
    """

    separate_sums: Annotated[
        int, "how many of every two products are added by a separate instruction (SEPARATE_SUMS): 0, 1 or 2"
    ]

    @staticmethod
    def of(wishes: Site | Builder) -> FloatLoops:
        """Return how many of every two float products are added by a separate instruction, as a template option.

        The tuning flags SEPARATE_SUMS (2) and HALF_SEPARATE_SUMS (1) of the board decide; without them, the number is
        0.

        Args:
            wishes: The call site, or the builder of the program, whose features include the tuning flags.
        """
        return FloatLoops(separate_sums=separate_sums_per_pair(wishes.features))


class WeightLoads(Options):
    """Template option of kernels that compute six output channels at a time: whether weights are loaded by words.

    If so, four int8 weights are loaded at a time, instead of one, for memories on which each load stalls.
    """

    word_loads: Annotated[bool, "whether weights are loaded by words (WORD_WEIGHTS): all blocks then begin at a word"]

    @staticmethod
    def of(spec: ConvSpec, site: Site) -> WeightLoads:
        """Return the option for a layer: whether four int8 weights are loaded at a time, as one word.

        Words are loaded if the tuning flag WORD_WEIGHTS is among the site's features, and an output channel has an even
        number of weights.
        """
        return WeightLoads(word_loads=WORD_WEIGHTS in site.features and spec.depth % 2 == 0)
