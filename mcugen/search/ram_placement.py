# SPDX-License-Identifier: Apache-2.0
"""Weights in all RAM of a board: which copies start-up makes where the user leaves all places to the compiler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mcugen.core.board import Board, Memory
from mcugen.core.options import AUTO_PLACE, CompileOptions, Places
from mcugen.lir.program import Buffer, Program, aligned
from mcugen.memory.constant_stalls import saved_by_copies
from mcugen.memory.knapsack import most_valuable
from mcugen.memory.place import BESIDE, hottest, memory_of_weights, ram_by_speed

ANYWHERE = Places(arena=(AUTO_PLACE,))
"""`--place auto`: the user says nothing but that all RAM may be used."""

LEAST_SAVED = 0.01
"""Of a call's instructions, cycles that all copies must save."""


@dataclass(frozen=True)
class CopiesEverywhere:
    """Of weights, to each RAM: its name, and how many bytes."""

    bytes_by_memory: tuple[tuple[str, int], ...]
    cycles: float
    """That they save a call, by estimate."""


def leaves_all_places(board: Board, options: CompileOptions) -> bool:
    """Whether weights may be copied to any RAM."""
    return options.place == ANYWHERE and may_copy_everywhere(board, options)


def may_copy_everywhere(board: Board, options: CompileOptions) -> bool:
    """Whether `--place auto` copies weights: not for the least RAM, nor where another kind of core reads them."""
    is_alike = options.cores == 1 or board.other_kind is None
    return options.optimize != "ram" and is_alike and not options.weights_in_file


def with_copies_everywhere(program: Program, board: Board, options: CompileOptions) -> CompileOptions:
    """Options that have start-up copy to each RAM what saves cycles there; the same options if that is not worth it."""
    slow = memory_of_weights(board, options.place)
    found = copies_everywhere(program, board, options, dict.fromkeys(hottest(program), slow))
    if found.cycles <= LEAST_SAVED * (program.instructions_estimate or 0.0):
        return options
    return replace(options, place=replace(options.place, hot_weights=found.bytes_by_memory))


def copies_everywhere(
    program: Program, board: Board, options: CompileOptions, lying: Mapping[Buffer, Memory]
) -> CopiesEverywhere:
    """Copies to each RAM beside the arena, the fastest first, of the weights that save most cycles there; `lying` tells
    where all weights lie without them.
    """
    left = hottest(program)
    most = math.inf if options.max_ram is None else options.max_ram - program.arena_size - program.state_size
    copies, total = list[tuple[str, int]](), 0.0
    for memory, room in _rooms(program, board):
        by_memory = {slow: saved_by_copies(program, board, slow, memory) for slow in dict.fromkeys(lying.values())}
        saved = {buffer: by_memory[slow][buffer] for buffer, slow in lying.items()}
        chosen = most_valuable({b: saved[b] for b in left}, int(min(room, most)))
        if chosen:
            nbytes = sum(aligned(b.nbytes) for b in chosen)
            copies.append((memory.name, nbytes))
            total, most = total + sum(saved[b] for b in chosen), most - nbytes
            left = [b for b in left if b not in chosen]
    return CopiesEverywhere(tuple(copies), total)


def _rooms(program: Program, board: Board) -> list[tuple[Memory, int]]:
    """Each RAM, the fastest first, and the bytes that the arena and the firmware's own variables leave."""
    rooms, arena = list[tuple[Memory, int]](), program.arena_size + program.state_size
    for memory in ram_by_speed(board):
        room = memory.room - BESIDE
        taken = arena if arena <= room else 0
        arena -= taken
        rooms.append((memory, max(room - taken, 0)))
    return rooms
