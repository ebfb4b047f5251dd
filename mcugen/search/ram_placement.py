# SPDX-License-Identifier: Apache-2.0
"""Copies of weights to all RAM of a board, where the user leaves placement to the compiler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mcugen.core.board import Board, Memory
from mcugen.core.options import AUTO_PLACE, CompileOptions, Places
from mcugen.lir.program import Buffer, Program, aligned
from mcugen.memory.constant_stalls import saved_by_copies
from mcugen.memory.knapsack import most_valuable
from mcugen.memory.place import SPILL_RESERVE_BYTES, hottest, memory_of_weights, ram_by_speed
from mcugen.search.objective import TOLERANCES

AUTO_PLACES = Places(arena=(AUTO_PLACE,))
"""The placement of `--place auto`: all RAM may be used."""


@dataclass(frozen=True)
class CopiesEverywhere:
    """The weights that start-up code copies to one or more RAMs, and the cycles that the copies save."""

    bytes_by_memory: tuple[tuple[str, int], ...]
    """Names of memories, each with the bytes of copies in it."""
    cycles: float
    """Estimated cycles that the copies save per call."""


def leaves_all_places(board: Board, options: CompileOptions) -> bool:
    """Return whether `--place auto` is given and may make start-up code copy weights to any RAM of the board.

    With `--place auto`, the compiler chooses the memories of arena and weights.
    """
    return options.place == AUTO_PLACES and may_copy_everywhere(board, options)


def may_copy_everywhere(board: Board, options: CompileOptions) -> bool:
    """Return whether `--place auto` may make start-up code copy weights to RAM.

    It may not for the goal `ram`, for weights in a file, or if a second core of another kind reads the weights.
    """
    is_alike = options.cores == 1 or board.other_kind is None
    return options.optimize != "ram" and is_alike and not options.weights_in_file


def with_copies_everywhere(program: Program, board: Board, options: CompileOptions) -> CompileOptions:
    """Return options that make start-up code copy weights to each RAM, or `options` if that saves too few cycles.

    Args:
        program: The planned program.
        board: The board with its memories.
        options: The options of the compilation.
    """
    slow = memory_of_weights(board, options.place)
    copies = copies_everywhere(program, board, options, dict.fromkeys(hottest(program), slow))
    if copies.cycles <= TOLERANCES.min_copy_saving * (program.instructions_estimate or 0.0):
        return options
    return replace(options, place=replace(options.place, hot_weights=copies.bytes_by_memory))


def copies_everywhere(
    program: Program, board: Board, options: CompileOptions, lying: Mapping[Buffer, Memory]
) -> CopiesEverywhere:
    """Choose the weights to copy to each RAM that save the most cycles, within the bytes that the arena leaves free.

    The fastest RAM is filled first.

    Args:
        program: The planned program.
        board: The board with its memories.
        options: Options with the RAM limit.
        lying: For each constant, the memory that holds it if it is not copied.
    """
    remaining = hottest(program)
    copy_budget = math.inf if options.max_ram is None else options.max_ram - program.arena_size - program.state_size
    copies, total = list[tuple[str, int]](), 0.0
    for memory, room in _rooms(program, board):
        by_memory = {slow: saved_by_copies(program, board, slow, memory) for slow in dict.fromkeys(lying.values())}
        saved = {buffer: by_memory[slow][buffer] for buffer, slow in lying.items()}
        chosen = most_valuable({b: saved[b] for b in remaining}, int(min(room, copy_budget)))
        if chosen:
            nbytes = sum(aligned(b.nbytes) for b in chosen)
            copies.append((memory.name, nbytes))
            total, copy_budget = total + sum(saved[b] for b in chosen), copy_budget - nbytes
            remaining = [b for b in remaining if b not in chosen]
    return CopiesEverywhere(tuple(copies), total)


def _rooms(program: Program, board: Board) -> list[tuple[Memory, int]]:
    """Return each RAM, the fastest first, with the bytes that the arena and the firmware's own variables leave."""
    rooms, arena = list[tuple[Memory, int]](), program.arena_size + program.state_size
    for memory in ram_by_speed(board):
        room = memory.room - SPILL_RESERVE_BYTES
        arena_part = arena if arena <= room else 0
        arena -= arena_part
        rooms.append((memory, max(room - arena_part, 0)))
    return rooms
