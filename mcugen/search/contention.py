# SPDX-License-Identifier: Apache-2.0
"""Contention of two cores for memories that both use.

A memory has banks that serve one request at a time, and requests are assumed to come at random. A request finds its
bank busy as often as the other core uses the memory, divided by the number of banks. It then waits half the duration of
a request on average: the mean residual service time of a queue with one server and requests of constant length
(Kleinrock, Queueing Systems I, 1975). The share of each core's time lost is the product of both uses, divided by twice
the number of banks.

Caches that both cores go through have one port; stalls behind them count by the memory. Evictions by one core of lines
that the other core needs are not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping

from mcugen.core.board import Board, Memory

ACCESSES_PER_CYCLE = 0.3
"""Accesses to the arena's memory per cycle of a core without data cache: loads and stores among instructions.

The value is assumed; no board was at hand to compare with (docs/explanation/two_cores.md).
"""

MISSES_PER_CYCLE = 0.03
"""Accesses to the arena's memory per cycle of a core with a data cache, which are its cache misses.

The value is assumed, like ACCESSES_PER_CYCLE.
"""


def contention_share(first: float, other: float, banks: int = 1) -> float:
    """Return the share (0 to 1) of its time that each of two cores loses by waiting for the other at one memory.

    Args:
        first: Share of its time that the first core uses the memory.
        other: Share of its time that the second core uses it.
        banks: Number of banks of the memory, to which accesses at the same time do not conflict.
    """
    return first * other / (2 * banks)


def arena_contention(board: Board, memory: Memory) -> float:
    """Return the share (0 to 1) of its time that each core waits for the arena's memory while both cores compute.

    The share is 0 if the second core cannot access that memory.

    Args:
        board: The board with the accesses of its cores and the banks of its memories.
        memory: The memory that holds the arena.
    """
    other_board = board.other_kind
    first_use = MISSES_PER_CYCLE if board.cache(memory, "data") else ACCESSES_PER_CYCLE
    shared_memory = (
        next((m for m in other_board.memories if m.origin <= memory.origin < m.end), None) if other_board else memory
    )
    if shared_memory is None:
        return 0.0
    other_use = MISSES_PER_CYCLE if (other_board or board).cache(shared_memory, "data") else ACCESSES_PER_CYCLE
    return contention_share(first_use, other_use, memory.banks)


def contention_of_stalls(first: Mapping[str, float], other: Mapping[str, float], banks: Mapping[str, int]) -> float:
    """Return the share (0 to 1) of its time that each core loses to contention, summed over the memories both read.

    Args:
        first: For each memory by name, the share of its time that the first core stalls for the memory.
        other: For each memory by name, the share of its time that the other core stalls for the memory.
        banks: Number of banks of each memory, by name.
    """
    shared = sorted(first.keys() & other.keys() & banks.keys())
    return sum(contention_share(first[name], other[name], banks[name]) for name in shared)
