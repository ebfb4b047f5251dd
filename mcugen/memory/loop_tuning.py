# SPDX-License-Identifier: Apache-2.0
"""Choice of tuning flags for a board: the variants of inner loops that its core and memories run fastest."""

from __future__ import annotations

from mcugen.core.board import Board, Memory
from mcugen.lir.kernel import MEMORY_FOR_SPEED, PAIRED_LOADS, SEPARATE_SUMS, SHORT_LOOPS, WORD_WEIGHTS

SLOW_FMA = frozenset({"cortex-m4", "cortex-m33"})
"""Cores on which a fused multiply-add (VFMA) takes 3 cycles, but separate VMUL and VADD take 2.

Source: mcugen.simulation.cortex_m.
"""


def tuning_flags(board: Board, weights: Memory, goal: str) -> frozenset[str]:
    """Return the tuning flags, which select variants of inner loops, for a board and a goal of the optimization.

    PAIRED_LOADS pairs products with loads for cores that issue two instructions at once. It takes more code, so the
    goals `ram` and `flash` do without it. SEPARATE_SUMS adds float products by separate instructions. It takes nearly
    twice the instructions, but fewer cycles on cores with a slow fused multiply-add (SLOW_FMA) if instruction fetches
    do not stall; only `speed` gets it here. `balanced` may get it later, when its slowdown is capped
    (mcugen.search.slowdown_cap). SHORT_LOOPS unrolls less for `flash`, MEMORY_FOR_SPEED allows kernels that take more
    memory for `speed`, and WORD_WEIGHTS loads four int8 weights at once if each load from their memory stalls.

    Args:
        board: The board.
        weights: The memory that holds the weights.
        goal: The goal of the optimization: `speed`, `ram`, `flash` or `balanced`.

    Returns:
        Names of flags, which mcugen.lir.kernel defines.
    """
    code = board.memory(board.code_memory)
    keeps_pace = not board.wait_cycles(code, 4) or board.cache(code, "instructions") is not None
    wishes = {
        PAIRED_LOADS: "dual_issue" in board.features and goal in ("balanced", "speed"),
        SEPARATE_SUMS: board.core in SLOW_FMA and goal == "speed" and keeps_pace,
        SHORT_LOOPS: goal == "flash",
        MEMORY_FOR_SPEED: goal == "speed",
        WORD_WEIGHTS: bool(board.wait_cycles(weights, 1)) and board.cache(weights, "data") is None,
    }
    return frozenset(wish for wish, is_rewarded in wishes.items() if is_rewarded)
