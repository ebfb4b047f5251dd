# SPDX-License-Identifier: Apache-2.0
"""Options of kernels whose inner loops are written as a board rewards it (mcugen.memory.loop_tuning)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

from mcugen.kernels.common.specs import ConvSpec
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import HALF_SEPARATE_SUMS, PAIRED_LOADS, SEPARATE_SUMS, WORD_WEIGHTS, Options, Site


@dataclass(frozen=True, kw_only=True)
class Loops(Options):
    """Of loops over products of 16 bits."""

    paired: Annotated[bool, "whether words are loaded one by one, beside products (PAIRED_LOADS)"]

    @staticmethod
    def of(site: Site) -> Loops:
        """On a board."""
        return Loops(paired=PAIRED_LOADS in site.features)


def sums_apart(features: Collection[str]) -> int:
    """Of two products of floats, how many are added by an instruction of their own."""
    return 2 if SEPARATE_SUMS in features else 1 if HALF_SEPARATE_SUMS in features else 0


@dataclass(frozen=True, kw_only=True)
class FloatLoops(Options):
    """Of loops over products of floats, in assembly."""

    separate: Annotated[int, "of two of them, how many are added by an instruction of their own (SEPARATE_SUMS)"]

    @staticmethod
    def of(wishes: Site | Builder) -> FloatLoops:
        """On a board."""
        return FloatLoops(separate=sums_apart(wishes.features))


@dataclass(frozen=True, kw_only=True)
class WeightLoads(Options):
    """Of layers of six channels at a time."""

    by_words: Annotated[bool, "whether weights are loaded by words (WORD_WEIGHTS), where all blocks begin at one"]

    @staticmethod
    def of(spec: ConvSpec, site: Site) -> WeightLoads:
        """Of a layer on a board."""
        return WeightLoads(by_words=WORD_WEIGHTS in site.features and spec.depth % 2 == 0)
