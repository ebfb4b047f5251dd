# SPDX-License-Identifier: Apache-2.0
"""Whether a program fits a board, and in which of its memories the arena and the weights lie."""

from __future__ import annotations

from dataclasses import dataclass

from mcugen.board import Board, Memory
from mcugen.errors import DoesNotFitError
from mcugen.lir.program import Program, Space

CONTRIBUTORS = 3
"""How many of the largest buffers a refusal names."""


@dataclass(frozen=True)
class Placement:
    """The memories that hold the arena and the weights."""

    arena: Memory
    weights: Memory


def place(program: Program, board: Board) -> Placement:
    """The board's default memories, or else the fastest that are large enough. DoesNotFitError if none is."""
    peak = max(range(len(program.instrs)), key=lambda i: sum(b.nbytes for b in program.live_at(i)), default=0)
    busiest = [(b.name, b.nbytes) for b in program.live_at(peak)]
    weights = [(b.name, b.nbytes) for b in program.buffers if b.space is Space.CONST]
    return Placement(
        _memory(board, "ram", board.arena_memory, "arena", program.arena_size, busiest),
        _memory(board, "flash", board.weights_memory, "weights", program.weights_size, weights),
    )


def _memory(
    board: Board, kind: str, preferred: str, what: str, nbytes: int, contributors: list[tuple[str, int]]
) -> Memory:
    if board.memory(preferred).size >= nbytes:
        return board.memory(preferred)
    choices = [m for m in board.memories if m.kind == kind]
    fitting = [m for m in choices if m.size >= nbytes]
    if fitting:
        return min(fitting, key=lambda m: (m.speed, m.name))
    largest = max(choices, key=lambda m: m.size)
    named = sorted(contributors, key=lambda c: (-c[1], c[0]))[:CONTRIBUTORS]
    listing = ", ".join(f"'{name}' {size:,} bytes" for name, size in named)
    raise DoesNotFitError(
        f"the {what} must fit in one {kind} memory of board '{board.name}'",
        f"{nbytes:,} bytes, {nbytes - largest.size:,} more than '{largest.name}' has; largest: {listing}",
        "use a smaller or a quantized model, or a board with more memory",
    )
