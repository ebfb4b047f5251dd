# SPDX-License-Identifier: Apache-2.0
"""What the CPU waits for constants, by the board's memories: an estimate, made from the program alone."""

from __future__ import annotations

from mcugen.board import Board, Memory
from mcugen.lir.program import Instr, Program, Space
from mcugen.memory.traffic import loads_in_pass, passes_of

COPY = 1.0
"""Cycles that copying a byte takes at most, beside the waits of reading it, which it saves the layer."""


def readings(instr: Instr, board: Board, memory: Memory) -> float:
    """How often a layer reads its constants: word by word, or by lines where a cache serves several loads at once."""
    loads = loads_in_pass(instr)
    if board.cache(memory, "data") is not None:
        loads = min(loads, 1.0)
    return max(loads * passes_of(instr), 1.0)


def saved_by_copy(board: Board, slow: Memory, fast: Memory, nbytes: int, times: float) -> float:
    """Cycles that a copy of constants saves, if they are gone through so many times; 0 where waits are unknown."""
    slow_waits, fast_waits = board.reading_again(slow, nbytes), board.reading_again(fast, nbytes)
    if slow_waits is None or fast_waits is None:
        return 0.0
    return (times - 1) * slow_waits - times * fast_waits - COPY * nbytes


def waits_for_constants(program: Program, board: Board, slow: Memory, fast: Memory | None = None) -> float:
    """Cycles that all instructions wait for their constants; 0 where waits are unknown.

    What pays is thought to be copied to a `fast` memory, if there is one.
    """
    total = 0.0
    for instr in program.instrs:
        for operand in instr.operands:
            nbytes, times = operand.buffer.nbytes, readings(instr, board, slow)
            first = board.reading(slow, nbytes) if operand.buffer.space is Space.CONST else None
            if first is not None:
                again = (times - 1) * (board.reading_again(slow, nbytes) or 0)
                saved = saved_by_copy(board, slow, fast, nbytes, times) if fast else 0.0
                total += first + again - max(saved, 0.0)
    return total
