# SPDX-License-Identifier: Apache-2.0
"""Choice of tuning flags for a board: the forms of inner loops that its core and memories favor."""

from __future__ import annotations

from mcugen.core.board import Board, Memory
from mcugen.lir.kernel import PAIRED_LOADS, SEPARATE_SUMS, SHORT_LOOPS, SPENDING, WORD_WEIGHTS

SLOW_FMA = frozenset({"cortex-m4", "cortex-m33"})
"""Cores that take 3 cycles for VFMA, but 2 for separate VMUL and VADD (mcugen.simulation.cortex_m)."""


def tuning_flags(board: Board, weights: Memory, goal: str) -> frozenset[str]:
    """Return the tuning flags (names in mcugen.lir.kernel) for a goal, with the weights in memory `weights`.

    PAIRED_LOADS takes more code, so the goals `ram` and `flash` do without it. SEPARATE_SUMS takes nearly twice the
    instructions, but fewer cycles on cores with a slow fused multiply-add (SLOW_FMA) if instruction fetches do not
    stall; only `speed` gets it here. `balanced` may get it later, when its slowdown is capped
    (mcugen.search.slowdown_cap).

    Args:
        board: The board.
        weights: The memory that holds the weights.
        goal: The goal of the optimization: `speed`, `ram`, `flash` or `balanced`.
    """
    code = board.memory(board.code_memory)
    keeps_pace = not board.wait_cycles(code, 4) or board.cache(code, "instructions") is not None
    wishes = {
        PAIRED_LOADS: "dual_issue" in board.features and goal in ("balanced", "speed"),
        SEPARATE_SUMS: board.core in SLOW_FMA and goal == "speed" and keeps_pace,
        SHORT_LOOPS: goal == "flash",
        SPENDING: goal == "speed",
        WORD_WEIGHTS: bool(board.wait_cycles(weights, 1)) and board.cache(weights, "data") is None,
    }
    return frozenset(wish for wish, is_rewarded in wishes.items() if is_rewarded)
