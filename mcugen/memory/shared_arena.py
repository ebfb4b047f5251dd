# SPDX-License-Identifier: Apache-2.0
"""One arena for several models, in which models that never run together may overlap."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations

from mcugen.core.errors import VerificationError
from mcugen.lir.program import ALIGNMENT, aligned
from mcugen.memory.exact import Problem, solve

Pair = tuple[int, int]
"""Indices of two models, the lower one first."""


@dataclass(frozen=True)
class SharedArena:
    """The placement of several models' arenas in one common arena.

    Attributes:
        offsets: Start of each model's arena, in bytes from the start of the common arena.
        nbytes: Bytes of the common arena.
        bound: A lower bound of the bytes of any common arena for these models.
    """

    offsets: tuple[int, ...]
    nbytes: int
    bound: int


def join(sizes: Sequence[int], exclusive: Collection[Pair]) -> SharedArena:
    """Place the arenas of several models in the smallest common arena.

    Args:
        sizes: Bytes of each model's arena.
        exclusive: Pairs of models that never run at the same time, so that their arenas may overlap.
    """
    units = [max(aligned(size) // ALIGNMENT, 1) for size in sizes]
    together = [pair for pair in combinations(range(len(sizes)), 2) if pair not in exclusive]
    problem = Problem(units, {(a, b): [(1 - units[b], units[a] - 1)] for a, b in together})
    one_after_another = [sum(units[:index]) for index in range(len(units))]
    starts, bound = solve(problem, one_after_another, max(units))
    ends = [start + size for start, size in zip(starts, units, strict=True)]
    return SharedArena(tuple(start * ALIGNMENT for start in starts), max(ends) * ALIGNMENT, bound * ALIGNMENT)


def verify_shared_arena(shared_arena: SharedArena, sizes: Sequence[int], exclusive: Collection[Pair]) -> None:
    """Verify that a common arena holds all models' arenas, aligned, and that only `exclusive` pairs overlap.

    Args:
        shared_arena: The placement to verify.
        sizes: Bytes of each model's arena.
        exclusive: Pairs of models that never run at the same time.

    Raises:
        VerificationError: An arena is misplaced, or two arenas overlap that may be used at the same time.
    """
    owners: list[set[int]] = [set() for _ in range(shared_arena.nbytes // ALIGNMENT)]
    for model, (start, size) in enumerate(zip(shared_arena.offsets, sizes, strict=True)):
        if start % ALIGNMENT or start < 0 or start + size > shared_arena.nbytes:
            _fail(f"arena {model} at {start}: not aligned, or outside")
        for unit in range(start // ALIGNMENT, aligned(start + size) // ALIGNMENT):
            owners[unit].add(model)
    for met in {frozenset(owner) for owner in owners}:
        for pair in combinations(sorted(met), 2):
            if pair not in exclusive:
                _fail(f"arenas {pair[0]} and {pair[1]} share bytes, and may be used at the same time")


def _fail(fault: str) -> None:
    raise VerificationError(
        "in the shared arena, tensors that are in use together must not overlap", fault, "report this as a bug"
    )
