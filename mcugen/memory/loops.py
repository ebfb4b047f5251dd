# SPDX-License-Identifier: Apache-2.0
"""How inner loops are to be written for a board: what its core and its memories reward, beside the CPU's features."""

from __future__ import annotations

from mcugen.board import Board, Memory
from mcugen.lir.kernel import PAIRED_LOADS, SHORT_LOOPS, WORD_WEIGHTS


def wished_loops(board: Board, weights: Memory, goal: str) -> frozenset[str]:
    """Names of mcugen.lir.kernel, for weights in this memory.

    Loads beside products take more instructions, and code, for less time: the goals `ram` and `flash` do without.
    """
    wishes = {
        PAIRED_LOADS: "dual_issue" in board.features and goal in ("balanced", "speed"),
        SHORT_LOOPS: goal == "flash",
        WORD_WEIGHTS: bool(board.wait_cycles(weights, 1)) and board.cache(weights, "data") is None,
    }
    return frozenset(wish for wish, is_rewarded in wishes.items() if is_rewarded)
