# SPDX-License-Identifier: Apache-2.0
"""Whether a program fits a board, and in which of its memories the arena and the weights lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mcugen.board import Board, Memory
from mcugen.errors import DoesNotFitError
from mcugen.lir.program import Buffer, Program, Space

CONTRIBUTORS = 3
"""How many of the largest buffers a refusal names."""


@dataclass(frozen=True)
class Placement:
    """The memories that hold the arena and the weights."""

    arena: Memory
    weights: Memory


def place(program: Program, board: Board) -> Placement:
    """The board's default memories, or else the fastest that are large enough. DoesNotFitError if none is."""
    return Placement(
        _memory(board, "ram", board.arena_memory, "arena", program.arena_size, lambda: _busiest(program)),
        _memory(board, "flash", board.weights_memory, "weights", program.weights_size, lambda: _constants(program)),
    )


def _busiest(program: Program) -> list[Buffer]:
    """The buffers alive at the instruction with the most live bytes."""
    live = (list(program.live_at(i)) for i in range(max(len(program.instrs), 1)))
    return max(live, key=lambda buffers: sum(b.nbytes for b in buffers))


def _constants(program: Program) -> list[Buffer]:
    return [b for b in program.buffers if b.space is Space.CONST]


def _memory(
    board: Board, kind: str, preferred: str, what: str, nbytes: int, contributors: Callable[[], list[Buffer]]
) -> Memory:
    if board.memory(preferred).size >= nbytes:
        return board.memory(preferred)
    choices = [m for m in board.memories if m.kind == kind]
    fitting = [m for m in choices if m.size >= nbytes]
    if fitting:
        return min(fitting, key=lambda m: (m.speed, m.name))
    largest = max(choices, key=lambda m: m.size)
    named = sorted(contributors(), key=lambda b: (-b.nbytes, b.name))[:CONTRIBUTORS]
    listing = ", ".join(f"'{b.name}' {b.nbytes:,} bytes" for b in named)
    raise DoesNotFitError(
        f"the {what} must fit in one {kind} memory of board '{board.name}'",
        f"{nbytes:,} bytes, {nbytes - largest.size:,} more than '{largest.name}' has; largest: {listing}",
        "use a smaller or a quantized model, or a board with more memory",
    )
