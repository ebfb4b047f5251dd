# SPDX-License-Identifier: Apache-2.0
"""Placement of a program's data in a board's memories."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mcugen.core.board import Board, Memory
from mcugen.core.errors import DoesNotFitError, UsageError
from mcugen.core.options import AUTO_PLACE, Places
from mcugen.lir.program import Buffer, Program, Space, aligned
from mcugen.memory.areas import split_arena, split_arena_stall_cycles
from mcugen.memory.constant_stalls import saved_by_copies
from mcugen.memory.knapsack import most_valuable
from mcugen.memory.peak import busiest, largest, moments
from mcugen.memory.plan import Planned
from mcugen.memory.traffic import traffic

NO_PLACES = Places()
"""The choice of memories of a user who chose none: the board's defaults apply."""


@dataclass(frozen=True)
class Placement:
    """The memories of a board that hold a program's data.

    Attributes:
        arenas: The memory of each area of the arena, in order of the areas.
        weights: The non-volatile memory that holds the weights.
        copies: Constants that start-up code copies to RAM, each with the memory that it is copied to.
        names_arena: Whether the C code names the arena's memory: if the user chose it, or it is not the board's
            default.
        names_weights: Whether the C code names the memory of the weights: if the user chose it, or it is not the
            board's default.
    """

    arenas: tuple[Memory, ...]
    weights: Memory
    copies: Mapping[Buffer, Memory] = field(default_factory=dict)
    names_arena: bool = False
    names_weights: bool = False

    @property
    def memories(self) -> tuple[Memory, ...]:
        """Return all memories that hold data of the program, each once."""
        return tuple(dict.fromkeys((*self.arenas, *self.copies.values(), self.weights)))

    def copied_to(self, memory: Memory) -> int:
        """Return the bytes of weights, each with its aligned size, that start-up code copies to a memory."""
        return sum(aligned(b.nbytes) for b, other in self.copies.items() if other == memory)


def place(program: Program, board: Board, places: Places = NO_PLACES, *, most_spilled: float = math.inf) -> Placement:
    """Choose the memories of a program's data; if the arena is split over several memories, plan it again.

    Data without a user's choice goes to the board's default memory, or to the fastest one that is large enough. If no
    memory is large enough, or if an arena in several memories is faster, some buffers are moved to slower memories
    (spilled).

    Args:
        program: The planned program.
        board: The board.
        places: The user's choices.
        most_spilled: Largest total size in bytes of an arena that may be split over several memories without the user's
            request.

    Raises:
        DoesNotFitError: The memories are too small.
        UsageError: A memory does not exist, or is of the wrong kind.
    """
    weights = _weights_memory(program, board, places)
    copies = copies_of(program, board, places)
    room = _remaining_bytes(board, copies)
    for memory in room:
        if room[memory] < 0:
            excess_text = f"{memory.room - room[memory]:,} bytes, {-room[memory]:,} more than '{memory.name}' has"
            raise DoesNotFitError("copies of weights must fit in their memory", excess_text, "copy fewer of them")
    arenas = _arenas(program, board, places, room, most_spilled)
    return Placement(
        arenas,
        weights,
        copies,
        names_arena=bool(places.arena) or arenas != (board.memory(board.arena_memory),),
        names_weights=places.weights == weights.name or weights.name != board.weights_memory,
    )


MAX_CORE_IMAGE_CODE_BYTES = 24 * 1024
"""Assumed largest size in bytes of the code in a second core's firmware image, constants not included."""


def in_second_core_image(placement: Placement, program: Program, seen: Board) -> Placement:
    """Return the placement of data for the firmware image of a second core.

    The constants that the second core reads are put in its own image, instead of RAM copies shared with the first core.
    Otherwise `placement` is returned: if they do not fit in the image, or if reading them there would be slower.

    Args:
        placement: The placement of the first core's program.
        program: The program of both cores.
        seen: The board as the second core sees it.
    """
    image = seen.memory(seen.weights_memory)
    read = {o.buffer for instr in program.of_second_core() for o in instr.operands if o.buffer.space is Space.CONST}
    read_bytes = sum(aligned(b.nbytes) for b in read)
    names = {m.name: m for m in seen.memories}
    is_slower = any(names[m.name].speed < image.speed for m in placement.copies.values() if m.name in names)
    if is_slower or read_bytes + MAX_CORE_IMAGE_CODE_BYTES > image.room:
        return placement
    return replace(placement, copies={b: memory for b, memory in placement.copies.items() if b not in read})


def _by_speed(memories: Iterable[Memory]) -> list[Memory]:
    """Return memories, fastest first; of equal ones, that at address 0 last, since it is meant for code."""
    return sorted(memories, key=lambda m: (m.speed, m.origin == 0, m.name))


def ram_by_speed(board: Board) -> list[Memory]:
    """Return all RAM memories of a board, the fastest first."""
    return _by_speed(m for m in board.memories if m.kind == "ram")


def _remaining_bytes(board: Board, copies: Mapping[Buffer, Memory]) -> dict[Memory, int]:
    """Return the bytes of each memory that copies of weights leave free; negative if the copies do not fit."""
    return {m: m.room - sum(aligned(b.nbytes) for b, other in copies.items() if other == m) for m in board.memories}


def ram_lacking(program: Program, board: Board, places: Places, may_spill: bool) -> tuple[int, str]:
    """Return the bytes of RAM that a program lacks on a board, and the names of the full memories as text.

    They are 0 and "" if the program fits. The check compares sizes only; `place` may fail for further reasons.

    Args:
        program: The planned program.
        board: The board.
        places: The user's choice of memories.
        may_spill: Whether the arena may be split over several memories.
    """
    room = _remaining_bytes(board, copies_of(program, board, places))
    memories = _arena_memories(board, places)
    arena = sum(program.area_sizes)
    available = sum(room[m] for m in memories) if places.arena or may_spill else max(room[m] for m in memories)
    where = " and ".join(f"'{m.name}'" for m in memories) if places.arena else ""
    return max((arena - available, where), *((-left, f"'{m.name}'") for m, left in room.items()), (0, ""))


def flash_lacking(program: Program, board: Board, places: Places) -> int:
    """Return by how many bytes a program's constants exceed the largest memory that may hold them; 0 if they fit.

    Args:
        program: The program.
        board: The board.
        places: The user's choice of memories.
    """
    return max(program.weights_size - max(m.room for m in weights_memories(board, places)), 0)


def check_places(board: Board, places: Places) -> None:
    """Check that the board has the memories that the user chose, and that they are of the right kind for their data.

    Raises:
        UsageError: A memory does not exist, or is of the wrong kind.
    """
    weights_memories(board, places)
    _arena_memories(board, places)
    for name, _ in places.hot:
        _ram(board, name, "hot-weights")


def _ram(board: Board, name: str, option: str) -> Memory:
    """Return a memory that must be writable."""
    memory = board.memory(name)
    if memory.kind != "ram":
        names = ", ".join(m.name for m in board.memories if m.kind == "ram")
        raise UsageError(f"--place {option} must name RAM of board '{board.name}'", f"'{name}'", f"one of {names}")
    return memory


# ------------------------------------------------------------------------------------------------------- weights


def weights_memories(board: Board, places: Places) -> list[Memory]:
    """Return the flash memories that may hold the weights, in order of preference.

    This is the flash memory that the user chose, or else the board's default memory followed by the other ones.
    """
    requested = board.memory(places.weights) if places.weights else None
    if requested is not None and requested.kind == "flash":
        return [requested]
    flash_memories = [m for m in board.memories if m.kind == "flash"]
    return list(dict.fromkeys((board.memory(board.weights_memory), *_by_speed(flash_memories))))


def _weights_memory(program: Program, board: Board, places: Places) -> Memory:
    """Return the memory that holds the weights without power."""
    choices = weights_memories(board, places)
    where = f"memory '{choices[0].name}'" if places.weights == choices[0].name else "one flash memory"
    fitting = [m for m in choices if m.room >= program.weights_size]
    if not fitting:
        roomiest = max(choices, key=lambda m: m.room)
        what = f"weights must fit in {where}"
        raise _refusal(what, program, board, program.weights_size, {roomiest: roomiest.room}, _constants(program))
    return fitting[0]


def memory_of_weights(board: Board, places: Places) -> Memory:
    """Return the preferred memory from which weights are read at run time, except weights that are copied elsewhere.

    It is the memory that the user chose, or the board's default.
    """
    requested = board.memory(places.weights) if places.weights else None
    return requested if requested and requested.kind == "ram" else weights_memories(board, places)[0]


def memory_of_arena(board: Board, places: Places) -> Memory:
    """Return the preferred memory of the arena: the first one that the user chose, or the board's default."""
    named = [name for name in places.arena if name != AUTO_PLACE]
    return board.memory(named[0] if named else board.arena_memory)


def copied_bytes(program: Program, board: Board, places: Places) -> int:
    """Return the bytes of RAM that start-up code fills with copies of weights, as the user asks.

    Args:
        program: The program.
        board: The board.
        places: The user's choice of memories.
    """
    return sum(aligned(buffer.nbytes) for buffer in copies_of(program, board, places))


def copies_of(program: Program, board: Board, places: Places) -> dict[Buffer, Memory]:
    """Return the constants that start-up code copies to RAM, each with the memory of its copy.

    The user asks for them by `--hot-weights` (a number of bytes) or by a RAM as memory of the weights. Hot weights are
    those that save the most cycles in RAM. If the board file has no timing, or nothing is saved, they are those with
    the most reads per byte.
    """
    copies: dict[Buffer, Memory] = {}
    left = hottest(program) if places.hot else []
    for name, allowed in places.hot:
        memory = _ram(board, name, "hot-weights")
        saved = saved_by_copies(program, board, weights_memories(board, places)[0], memory)
        chosen = most_valuable({b: saved[b] for b in left}, allowed)
        chosen += fitting((b for b in left if b not in chosen), allowed - sum(aligned(b.nbytes) for b in chosen))
        copies |= dict.fromkeys(chosen, memory)
        left = [b for b in left if b not in copies]
    if places.weights and board.memory(places.weights).kind == "ram":
        memory = board.memory(places.weights)
        copies |= {b: memory for b in _constants(program) if b not in copies}
    return copies


def fitting(buffers: Iterable[Buffer], nbytes: int) -> list[Buffer]:
    """Return buffers that fit in `nbytes` together, chosen greedily in the given order.

    A buffer whose aligned size exceeds the remaining bytes is skipped.
    """
    chosen = list[Buffer]()
    for buffer in buffers:
        if aligned(buffer.nbytes) <= nbytes:
            chosen.append(buffer)
            nbytes -= aligned(buffer.nbytes)
    return chosen


def hottest(program: Program) -> list[Buffer]:
    """Return the constants of a program in descending order of the number of reads per byte."""
    reads = traffic(program)
    return sorted(_constants(program), key=lambda b: (-reads[b] / b.nbytes, b.name))


def _constants(program: Program) -> list[Buffer]:
    """Return the constants that may be copied to RAM: all but those that an accelerator reads where they are."""
    fixed = {o.buffer for instr in program.instrs if instr.is_offloaded for o in instr.operands}
    return [b for b in program.buffers if b.space is Space.CONST and b.nbytes and b not in fixed]


# --------------------------------------------------------------------------------------------------------- arena


def _arena_memories(board: Board, places: Places) -> list[Memory]:
    """Return the requested memories, or all: the board's default first, or for AUTO_PLACE the fastest."""
    if places.arena and AUTO_PLACE not in places.arena:
        return list(dict.fromkeys(_ram(board, name, "arena") for name in places.arena))
    rams = ram_by_speed(board)
    return rams if places.arena else list(dict.fromkeys((board.memory(board.arena_memory), *rams)))


def _arenas(
    program: Program, board: Board, places: Places, room: Mapping[Memory, int], most_spilled: float
) -> tuple[Memory, ...]:
    """Return the memory of each area: several if requested, or if one is too small and several are faster."""
    memories = _arena_memories(board, places)
    if not places.arena:
        return _by_default(program, board, room, memories, most_spilled)
    for memory in memories:  # One area is simpler than several of equal speed.
        if memory.speed == memories[0].speed and program.arena_size <= room[memory]:
            return (memory,)
    needed, busiest_buffers = program.arena_size, busiest(moments(program)).buffers
    used = split_arena(program, board, {m: room[m] for m in memories}) if len(memories) > 1 else None
    if used is None:
        where = "the memories" if len(memories) > 1 else "memory"
        what = f"arena must fit in {where} {' and '.join(repr(m.name) for m in memories)}"
        raise _refusal(what, program, board, needed, {m: room[m] for m in memories}, busiest_buffers)
    return used


MIN_PLACEMENT_GAIN = 0.01
"""Smallest share of an inference's estimated cycles that splitting the arena over several memories must save."""

SPILL_RESERVE_BYTES = 8192
"""Bytes of the data memory left free for stack and variables, if the arena spills into it without the user's choice."""


def _by_default(
    program: Program, board: Board, room: Mapping[Memory, int], rams: Sequence[Memory], most_spilled: float
) -> tuple[Memory, ...]:
    """Return the board's default memory for the arena, or a fallback where it is too small.

    The fallbacks are the default with slower memories, one slower memory if that is hardly worse, and all RAM.
    """
    own, needed = board.memory(board.arena_memory), program.arena_size
    whole = next((memory for memory in rams if needed <= room[memory]), None)
    if whole is not None and (whole.speed <= own.speed or most_spilled < needed):
        return (whole,)
    busiest_buffers, before = busiest(moments(program)).buffers, Planned.of(program)
    used = _spill_memories(program, board, room, rams, whole) if needed <= most_spilled else None
    if whole is None:
        if used is None:
            raise _refusal_of_all(program, board, needed, {m: room[m] for m in rams}, busiest_buffers)
        return used
    if used is None:
        return (whole,)
    waits, kept, is_too_large = (
        split_arena_stall_cycles(program, board, used),
        Planned.of(program),
        program.arena_size > most_spilled,
    )
    before.restore(program)
    saved = split_arena_stall_cycles(program, board, (whole,)) - waits
    if is_too_large or saved <= MIN_PLACEMENT_GAIN * (program.instructions_estimate or 0):
        return (whole,)
    kept.restore(program)
    return used


def _spill_memories(
    program: Program, board: Board, room: Mapping[Memory, int], rams: Sequence[Memory], whole: Memory | None
) -> tuple[Memory, ...] | None:
    """Return the default memory with slower ones, or all memories, unless one of them has room for everything."""
    own = board.memory(board.arena_memory)
    free = {m: max(room[m] - SPILL_RESERVE_BYTES * (m.name == board.data_memory), 0) for m in rams}
    slower = {m: free[m] for m in (own, *(m for m in rams if m.speed >= own.speed))}
    memories = split_arena(program, board, slower) if len(slower) > 1 else None
    if memories is None and whole is None and len(free) > len(slower):
        memories = split_arena(program, board, free)
    return memories


# ------------------------------------------------------------------------------------------------------ refusals


def _refusal_of_all(
    program: Program, board: Board, nbytes: int, room: Mapping[Memory, int], contributors: Sequence[Buffer]
) -> DoesNotFitError:
    """Return the error for an arena that fits neither in one RAM memory nor in several."""
    if len(room) == 1:
        return _refusal("arena must fit in one RAM memory", program, board, nbytes, room, contributors)
    has_room = max(b.nbytes for b in contributors) <= max(room.values()) and nbytes <= sum(room.values())
    remedy = "let it take all RAM with --place auto, or " if has_room else "compute by rows with --optimize ram, or "
    return _refusal("arena must fit in the RAM memories", program, board, nbytes, room, contributors, remedy)


def _refusal(
    what: str,
    program: Program,
    board: Board,
    nbytes: int,
    room: Mapping[Memory, int],
    contributors: Sequence[Buffer],
    remedy: str = "",
) -> DoesNotFitError:
    """Return the error for data that do not fit.

    Args:
        what: What must lie where.
        program: The program.
        board: The board.
        nbytes: Bytes needed.
        room: Bytes available in each memory.
        contributors: Buffers to name.
        remedy: Hint.
    """
    if len(room) == 1:
        more = "".join(f"{nbytes - n:,} more than '{m.name}' has" for m, n in room.items())
    else:
        more = " and ".join(f"'{m.name}' has {n:,}" for m, n in room.items())
    return DoesNotFitError(
        f"the {what} of board '{board.name}'",
        f"{nbytes:,} bytes, {more}; largest: {largest(program, contributors)}",
        f"{remedy}use a smaller or a quantized model, or a board with more memory",
    )
