# SPDX-License-Identifier: Apache-2.0
"""Weights in slow memory: copied to the arena while their layer runs, or to RAM at start, where that pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mcugen.board import Board, Memory, Serial
from mcugen.fitting.budget import STACK, Attempt, Budget, use_of
from mcugen.kernels.choose import ENOUGH, MOST_SLOWDOWN
from mcugen.lir.program import STAGE_WEIGHTS, Buffer, Control, Program, Space, aligned
from mcugen.lir.weights import is_read, with_staged_weights
from mcugen.memory.peak import busiest, moments
from mcugen.memory.place import memory_of_arena, memory_of_weights
from mcugen.memory.plan import Planned, plan_memory
from mcugen.memory.reading import COPY, readings, saved_by_copy, waits_for_constants
from mcugen.memory.verify_plan import verify_plan
from mcugen.options import AUTO_PLACE, CompileOptions, Places

LEAST = 200
LEAST_SHARE = 0.001
"""Cycles that a copy must save, and their share of all instructions: it takes 20 to 50 bytes of code."""

TRIES = 6
"""So often memory is planned anew, with fewer copies, until it is no more than allowed."""


LEAST_WAITS = 10_000
"""Cycles that `balanced` waits for weights at least before start-up copies them."""

MOST_COPIED = 2 / 3
"""Of the arena's memory, what copies of weights may take without being asked for."""


def with_copies(program: Program, board: Board, options: CompileOptions) -> CompileOptions:
    """Options that have start-up copy weights to RAM, from flash on a serial bus, where all of them fit: for `speed`,
    and for `balanced` where it were more than MOST_SLOWDOWN times as slow, and RAM stays under ENOUGH of the board's.

    What the user says of places, of budgets or of a file of weights, stands.
    """
    said = options.place != Places() or options.max_ram is not None
    in_file = options.weights_blob or options.updatable or options.weights_reader
    if options.optimize not in ("balanced", "speed") or said or in_file:
        return options
    slow, fast = memory_of_weights(board, options.place), memory_of_arena(board, options.place)
    nbytes = sum(aligned(b.nbytes) for b in program.buffers if b.space is Space.CONST)
    left = _room(board, fast) - program.arena_size - program.state_size
    fits = nbytes <= min(MOST_COPIED * fast.room, left)
    if not isinstance(slow.access, Serial) or not nbytes or not fits:
        return options
    if options.optimize == "balanced":
        waits = waits_for_constants(program, board, slow)
        is_slow = waits > max((MOST_SLOWDOWN - 1) * (program.instructions_estimate or 0), LEAST_WAITS)
        is_cached = _stay_cached(board, (slow, nbytes), (fast, program.arena_size))
        if not is_slow or is_cached or nbytes + program.arena_size > ENOUGH * board.total_ram:
            return options
    return replace(options, place=Places(hot_weights=(fast.name, nbytes)))


def _stay_cached(board: Board, constants: tuple[Memory, int], arena: tuple[Memory, int]) -> bool:
    """Whether a cache holds all constants from one call to the next, with the arena if this goes through it as well:
    where they lie, and their bytes.

    One that code goes through, too, may not.
    """
    cache = board.cache(constants[0], "data")
    if cache is None or cache.holds == "both":
        return False
    return sum(nbytes for memory, nbytes in (constants, arena) if board.cache(memory, "data") is cache) <= cache.size


def time_of_copies(board: Board, options: CompileOptions, nbytes: int) -> int:
    """Cycles that start-up takes to copy so many bytes of weights, by estimate."""
    return round(COPY * nbytes) + (board.reading(memory_of_weights(board, options.place), nbytes) or 0)


def staged(attempt: Attempt, board: Board, options: CompileOptions) -> Attempt:
    """The program with such copies, where they save cycles by the board's memories; the attempt itself if none do.

    For `speed` the arena may grow as far as memory and budget allow; for other goals it may not, so that weights take
    room that other layers leave free.
    """
    gains = _gains(attempt.program, board, with_copies(attempt.program, board, options))
    most = _most_ram(attempt, board, options) if gains else 0
    taken = [moment.nbytes for moment in moments(attempt.program)[1:]] if gains else []
    chosen: Mapping[int, Sequence[Buffer]] = {
        index: held
        for index, held in gains.items()
        if taken[index] + sum(aligned(b.nbytes) for b in held) <= most  # as far as buffers can lie side by side
    }
    if not chosen:
        return attempt
    before = Planned.of(attempt.program)  # it shares its buffers with what is tried
    for _ in range(TRIES):
        if not chosen:
            break
        program = with_staged_weights(attempt.program, chosen)
        plan_memory(program, most)
        if program.arena_size <= most and not Budget.of(options).excess(use_of(program, board, options)):
            return Attempt(attempt.step, _planned(program, attempt.program), use_of(program, board, options))
        chosen = _without_busiest(program, chosen)
    before.restore(attempt.program)
    return attempt


def _planned(program: Program, without: Program) -> Program:
    """With the least arena, which is checked; `without` copies it could not be less, as these are buffers more."""
    if program.arena_size > max(program.arena_bound, without.arena_size):
        plan_memory(program)
    program.area_bounds = [max(program.arena_bound, without.arena_bound)]
    verify_plan(program)
    return program


def _gains(program: Program, board: Board, options: CompileOptions) -> dict[int, list[Buffer]]:
    """The constants that are worth a copy, by the index of the instruction that reads them."""
    places = options.place
    is_told = bool(options.weights_reader or places.hot_weights) or program.handover is not None
    if options.optimize == "flash" or is_told:
        return {}
    slow, fast = memory_of_weights(board, places), memory_of_arena(board, places)
    least = max(LEAST, LEAST_SHARE * (program.instructions_estimate or 0))
    found, depth = {}, 0
    for index, instr in enumerate(program.instrs):
        depth += (instr.control not in (Control.NONE, Control.ELSE)) - 2 * (instr.control is Control.END)
        if depth or instr.control is not Control.NONE:
            continue
        passes = readings(instr, board, slow)
        constants = dict.fromkeys(o.buffer for o in instr.operands if is_read(o.buffer))
        times = options.times.get((instr.name, instr.kernel))
        if times is not None:
            held = list(constants) if times.plain - times.copied > LEAST else []
        else:
            held = [b for b in constants if saved_by_copy(board, slow, fast, b.nbytes, passes) > least]
        if held:
            found[index] = held
    return found


def _most_ram(attempt: Attempt, board: Board, options: CompileOptions) -> int:
    """Bytes that the arena may take."""
    places = options.place
    if options.optimize != "speed" or len(places.arena) > 1 or AUTO_PLACE in places.arena:
        return attempt.program.arena_size
    memory, budget = memory_of_arena(board, options.place), Budget.of(options)
    others = attempt.use.ram - attempt.program.arena_size
    room = _room(board, memory)
    return max(min(room, budget.ram or room) - others, attempt.program.arena_size)


def _room(board: Board, memory: Memory) -> int:
    """Bytes of a memory for models, beside the stack where there is no other."""
    return min(memory.room, board.total_ram - STACK)


def _without_busiest(program: Program, chosen: Mapping[int, Sequence[Buffer]]) -> dict[int, Sequence[Buffer]]:
    """Fewer copies: without those that lie there when most of the arena is in use, or else without the largest."""
    busy = set(busiest(moments(program)).buffers)
    copies = [i for i in program.instrs if i.kernel == STAGE_WEIGHTS]
    dropped = {i.operand("x").buffer for i in copies if i.operand("y").buffer in busy}
    fewer = {index: held for index, held in chosen.items() if dropped.isdisjoint(held)}
    if len(fewer) < len(chosen):
        return fewer
    largest = max(chosen, key=lambda index: sum(b.nbytes for b in chosen[index]))
    return {index: held for index, held in chosen.items() if index != largest}
