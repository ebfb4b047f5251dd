# SPDX-License-Identifier: Apache-2.0
"""What the CPU waits for constants, by the board's memories: an estimate, made from the program alone."""

from __future__ import annotations

from mcugen.board import Board, Memory
from mcugen.lir.program import Instr, Program, Space
from mcugen.memory.traffic import passes_of

POSITIONS = 4
"""A weight that was read serves so many products at most, as kernels have it."""

COPY = 1.0
"""Cycles that copying a byte takes at most, beside the waits of reading it, which it saves the layer."""


def readings(instr: Instr) -> int:
    """How often a layer goes through its constants."""
    is_held = instr.declaration is not None and instr.declaration.holds_weights
    return 1 if is_held else max(passes_of(instr) // POSITIONS, 1)


def saved_by_copy(board: Board, slow: Memory, fast: Memory, nbytes: int, times: int) -> float:
    """Cycles that a copy of constants saves, if they are gone through so many times; 0 where waits are unknown."""
    slow_waits, fast_waits = board.reading_again(slow, nbytes), board.reading_again(fast, nbytes)
    if slow_waits is None or fast_waits is None:
        return 0.0
    return (times - 1) * slow_waits - times * fast_waits - COPY * nbytes


def waits_for_constants(program: Program, board: Board, slow: Memory, fast: Memory) -> float:
    """Cycles that all instructions wait for their constants, where what pays is copied; 0 where waits are unknown."""
    total = 0.0
    for instr in program.instrs:
        for operand in instr.operands:
            nbytes, times = operand.buffer.nbytes, readings(instr)
            first = board.reading(slow, nbytes) if operand.buffer.space is Space.CONST else None
            if first is not None:
                again = (times - 1) * (board.reading_again(slow, nbytes) or 0)
                total += first + again - max(saved_by_copy(board, slow, fast, nbytes, times), 0.0)
    return total
