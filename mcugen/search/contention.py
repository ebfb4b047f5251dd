# SPDX-License-Identifier: Apache-2.0
"""How long two cores wait for each other in memories that both use.

A memory has banks that serve a request each at a time, and requests are taken to come at random: one finds the bank
that it needs busy with the other core's as often as that core uses it, divided by the banks, and waits half of what a
request takes on average (the mean residual service time of a queue with one server and requests of one length:
Kleinrock, Queueing Systems I, 1975). Of each core's time that is use times use, by twice the banks. Caches that both go
through have one port; waits behind them count by the memory. What one core evicts from a cache that the other needs is
not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping

from mcugen.core.board import Board, Memory

ACCESSES = 0.3
"""Of the arena's memory in a cycle, by cores without a data cache: loads and stores among instructions (assumed)."""

MISSES = 0.03
"""By cores with one (assumed)."""


def waited(first: float, other: float, banks: int = 1) -> float:
    """The share of their time by which two cores slow each other that use a memory for such shares of theirs."""
    return first * other / (2 * banks)


def of_arena(board: Board, memory: Memory) -> float:
    """The same of the memory that the arena lies in, while both compute."""
    others = board.other_kind
    ours = MISSES if board.cache(memory, "data") else ACCESSES
    same = next((m for m in others.memories if m.origin <= memory.origin < m.end), None) if others else memory
    if same is None:
        return 0.0
    theirs = MISSES if (others or board).cache(same, "data") else ACCESSES
    return waited(ours, theirs, memory.banks)


def of_stalls(first: Mapping[str, float], other: Mapping[str, float], banks: Mapping[str, int]) -> float:
    """The same of the memories with these banks, for which cores wait such shares of their time."""
    shared = sorted(first.keys() & other.keys() & banks.keys())
    return sum(waited(first[name], other[name], banks[name]) for name in shared)
