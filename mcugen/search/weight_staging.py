# SPDX-License-Identifier: Apache-2.0
"""Weights in slow memory: copied to the arena while their layer runs, or to RAM at start, where that pays."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import groupby

from mcugen.core.board import Board, Memory, Serial
from mcugen.core.options import AUTO_PLACE, GOALS, CompileOptions, Places
from mcugen.kernels.choose import ENOUGH, MOST_SLOWDOWN
from mcugen.lir.program import BEGIN_WEIGHTS, BRINGING, STAGE_WEIGHTS, Buffer, Program, Space, aligned
from mcugen.lir.weights import with_staged_weights
from mcugen.memory.constant_stalls import COPY, constants_of, saved_by_copies, waits_for_constants
from mcugen.memory.knapsack import most_valuable
from mcugen.memory.peak import busiest, moments
from mcugen.memory.place import BESIDE, copied_bytes, copies_of, hottest, memory_of_arena, memory_of_weights
from mcugen.memory.plan import Planned, plan_memory
from mcugen.memory.verify_plan import verify_plan
from mcugen.search.budget import STACK, Attempt, Budget, use_of
from mcugen.search.ram_placement import LEAST_SAVED, leaves_all_places, with_copies_everywhere
from mcugen.search.weight_copies import Copies, Gain, by_readers, gains_of, rank_of, side_by_side

TRIES = 6
"""So often memory is planned anew, with fewer copies, until it is no more than allowed."""

PLANNED = 17 / 16
"""How many times the bytes that are in use at once an arena may take."""

LEAST_WAITS = 10_000
"""Cycles that `balanced` waits for weights at least before start-up copies them."""

MOST_COPIED = 2 / 3
"""Of the arena's memory, what copies of weights may take without being asked for."""

LEAST_MEMORY = 64 * 1024
"""Bytes of the arena's memory in which a part of the weights is copied: most of a smaller one is the firmware's."""


def with_copies(program: Program, board: Board, options: CompileOptions) -> CompileOptions:
    """Options that have start-up copy weights to RAM, from flash on a serial bus: for `speed` as many as fit, and for
    `balanced` all where it were more than MOST_SLOWDOWN times as slow, and RAM stays under ENOUGH of the board's.

    What the user says of places, of budgets or of a file of weights, stands. Beyond that quarter `balanced` copies what
    it reads most often, as long as that is the better trade of time and RAM.
    """
    if leaves_all_places(board, options):
        return with_copies_everywhere(program, board, options)
    if not _may_copy(board, options) or any(instr.kernel in BRINGING for instr in program.instrs):
        return options
    slow, fast = memory_of_weights(board, options.place), memory_of_arena(board, options.place)
    nbytes, room = _constant_bytes(program), _room_for_copies(program, board, options, program.arena_size)
    if not nbytes:
        return options
    if options.optimize == "speed":
        fits = nbytes <= room
        return _copying(options, fast, nbytes) if fits else _a_part(program, board, options, program.arena_size)
    waits = waits_for_constants(program, board, slow)
    if not _is_slow(waits, program):
        return options
    if nbytes <= room and nbytes + program.arena_size <= ENOUGH * board.total_ram:
        return _copying(options, fast, nbytes)
    return _best_trade(program, board, options, waits, room)


def _is_slow(waits: float, program: Program) -> bool:
    """Whether it is more than MOST_SLOWDOWN times as slow for that; cores take a cycle an instruction, or less. What is
    known roughly counts only where it is the larger part.
    """
    instructions = program.instructions_estimate or 0.0
    known = sum(program.layer_estimates.values())
    stalls = min((program.cycles_estimate or instructions) - instructions, 0.0)
    work = max(known + stalls, instructions - known)
    return waits > max((MOST_SLOWDOWN - 1) * work, LEAST_WAITS)


def _may_copy(board: Board, options: CompileOptions) -> bool:
    """Whether start-up may copy weights without being asked to."""
    said = options.place != Places() or options.max_ram is not None
    is_serial = isinstance(memory_of_weights(board, options.place).access, Serial)
    return options.optimize in ("balanced", "speed") and is_serial and not said and not options.weights_in_file


def trades_waits(program: Program, board: Board, options: CompileOptions) -> bool:
    """Whether what a program waits for flash on a serial bus may count against RAM."""
    waits = waits_for_constants(program, board, memory_of_weights(board, options.place))
    return _may_copy(board, options) and _is_slow(waits, program)


def _copying(options: CompileOptions, memory: Memory, nbytes: int) -> CompileOptions:
    return replace(options, place=Places(hot_weights=(memory.name, nbytes)))


def _constant_bytes(program: Program) -> int:
    """Those that copies of all constants take."""
    return sum(aligned(b.nbytes) for b in program.buffers if b.space is Space.CONST)


def _room_for_copies(program: Program, board: Board, options: CompileOptions, arena: int) -> int:
    """Bytes of the arena's memory that copies of constants may take beside an arena of so many bytes."""
    memory = memory_of_arena(board, options.place)
    return int(min(MOST_COPIED * memory.room, _room(board, memory) - arena - program.state_size))


def _room_for_part(program: Program, board: Board, options: CompileOptions, arena: int) -> int:
    """Bytes for copies of some constants, beside what else lies there."""
    is_beside = memory_of_arena(board, options.place).name == board.data_memory
    return _room_for_copies(program, board, options, arena) - BESIDE * is_beside


def _a_part(program: Program, board: Board, options: CompileOptions, arena: int) -> CompileOptions:
    """Copies of those constants that save most cycles beside an arena of so many bytes; none if not worth it."""
    slow, fast = memory_of_weights(board, options.place), memory_of_arena(board, options.place)
    if fast.room < LEAST_MEMORY:
        return options
    saved = saved_by_copies(program, board, slow, fast)
    chosen = most_valuable(saved, _room_for_part(program, board, options, arena))
    if sum(saved[b] for b in chosen) <= LEAST_SAVED * (program.instructions_estimate or 0.0):
        return options
    return _copying(options, fast, sum(aligned(b.nbytes) for b in chosen))


def _a_quarter(program: Program, board: Board, options: CompileOptions) -> CompileOptions:
    """The same for `balanced`, within ENOUGH of the board's RAM."""
    slow, fast = memory_of_weights(board, options.place), memory_of_arena(board, options.place)
    room = _room_for_part(program, board, options, program.arena_size)
    most = int(min(ENOUGH * board.total_ram - program.arena_size, room))
    chosen = most_valuable(saved_by_copies(program, board, slow, fast), most)
    return _copying(options, fast, sum(aligned(b.nbytes) for b in chosen)) if chosen else options


def _best_trade(program: Program, board: Board, options: CompileOptions, waits: float, room: int) -> CompileOptions:
    """As many of the constants that are read most often as serve `balanced` best."""
    slow, fast = memory_of_weights(board, options.place), memory_of_arena(board, options.place)
    saved = saved_by_copies(program, board, slow, fast)
    taken, least, chosen = 0, rank_of(program, waits, program.arena_size), options
    for buffer in hottest(program):
        taken, waits = taken + aligned(buffer.nbytes), waits - saved[buffer]
        if taken > room:
            break
        if (rank := rank_of(program, waits, program.arena_size + taken)) < least:
            least, chosen = rank, _copying(options, fast, taken)
    return chosen


def copied_by(attempt: Attempt, board: Board, options: CompileOptions) -> CompileOptions:
    """Options that have start-up make the copies that were chosen with a program, or that serve it as it came to be."""
    chosen = attempt.copies.options if attempt.copies else options
    return with_copies(attempt.program, board, options) if chosen is options else chosen


def copies_for(attempt: Attempt, board: Board, options: CompileOptions) -> Copies:
    """What serves the goal best, by estimate.

    For `speed` the arena may grow as far as memory and budget allow, and for `balanced` as far as that is a better
    trade, if weights lie in flash on a serial bus; for other goals it may not, so that weights take room that other
    layers leave free. Where all that is more than MOST_SLOWDOWN times as slow for `balanced` as copies that start-up
    makes within ENOUGH of the RAM, it makes these.
    """
    program, chosen = attempt.program, with_copies(attempt.program, board, options)
    gains, instructions = gains_of(program, board, options), program.instructions_estimate or 0.0
    start = _beside(program, board, chosen, (), program.arena_size)
    is_trade = options.optimize == GOALS[0] and not leaves_all_places(board, options)
    is_enough = start.ram <= ENOUGH * board.total_ram and not _is_slow(start.waits, program)
    is_part = copies_a_part(program, board, options, chosen)
    if chosen is not options and (is_enough or not is_trade) and not is_part:
        return start
    is_trade &= trades_waits(program, board, options)
    if not gains and not is_trade:
        return start

    def before_layers(most: int) -> Copies:
        return _beside(program, board, options, gains, most)

    if not is_trade:
        most = _most_ram(attempt, board, options)
        if not is_part:
            return before_layers(most)
        parts = [(_a_part(program, board, options, size), size) for size in _levels(program, gains, most)]
        ways = [start, before_layers(most), *(_beside(program, board, part, gains, size) for part, size in parts)]
        return min(ways, key=lambda way: way.waits)
    room = program.arena_size + _room_for_copies(program, board, options, program.arena_size)
    ways = [start] * (chosen is not options) + [before_layers(most) for most in _levels(program, gains, room)]
    part = _beside(program, board, _a_quarter(program, board, options), gains, program.arena_size)
    if not gains:  # copies before layers serve nothing
        ways.append(part)
    best = min(_fast_enough(ways, board, instructions), key=lambda way: way.rank(program))
    return best if instructions + best.waits <= MOST_SLOWDOWN * (instructions + part.waits) else part


def _beside(program: Program, board: Board, options: CompileOptions, gains: Sequence[Gain], most: int) -> Copies:
    """Those that start-up makes, by the options, and of the others before layers what fits an arena of `most` bytes."""
    slow, is_copied = memory_of_weights(board, options.place), bool(options.place.hot or not gains)
    copied = copies_of(program, board, options.place) if is_copied else {}  # what gains copies may lie in a slow RAM
    waits = sum(c.waits(board, slow) or 0.0 for c in constants_of(program, board, slow) if c.buffer not in copied)
    taken = side_by_side(program, [gain for gain in gains if gain.copy.constant not in copied], most)
    ram = max(most, program.arena_size) + copied_bytes(program, board, options.place)
    return Copies(options, taken, most, waits - sum(gain.cycles for gain in taken), ram)


def copies_enough(program: Program, board: Board, options: CompileOptions) -> bool:
    """Whether start-up copies constants, and for `speed` all."""
    chosen = with_copies(program, board, options)
    return bool(chosen.place.hot) and not copies_a_part(program, board, options, chosen)


def copies_a_part(program: Program, board: Board, options: CompileOptions, chosen: CompileOptions) -> bool:
    """Whether start-up copies some constants for `speed`, by `chosen` options, as it has no room for all."""
    is_free = chosen is not options and not leaves_all_places(board, options)
    return is_free and options.optimize == "speed" and not _lie_in(copies_of(program, board, chosen.place), program)


def _lie_in(copies: Collection[Buffer], program: Program) -> bool:
    """Whether all constants are among these."""
    return all(b in copies for b in program.buffers if b.space is Space.CONST and b.nbytes)


def _fast_enough(ways: Sequence[Copies], board: Board, instructions: float) -> Sequence[Copies]:
    """Those that are not more than MOST_SLOWDOWN times as slow as one that takes no more than ENOUGH of the RAM."""
    small = [instructions + way.waits for way in ways if way.ram <= ENOUGH * board.total_ram]
    most = MOST_SLOWDOWN * min(small, default=math.inf)
    return [way for way in ways if instructions + way.waits <= most]


def _levels(program: Program, gains: Sequence[Gain], room: int) -> list[int]:
    """Sizes of the arena with room for all copies of an instruction or block, and the size that it has.

    Plans take some percent more than what lies side by side.
    """
    taken = [moment.nbytes for moment in moments(program)[1:]]
    needed = []
    for _, group in groupby(gains, key=lambda gain: gain.whole):
        copies = list(group)
        nbytes = sum({gain.copy.constant: gain.nbytes for gain in copies}.values())
        busiest = max(taken[index] for gain in copies for index in gain.span)
        needed.append(aligned(int(PLANNED * (busiest + nbytes))))
    return sorted({program.arena_size, *(most for most in needed if program.arena_size < most <= room)})


def waits_most(attempt: Attempt, board: Board, options: CompileOptions) -> bool:
    """Whether a program, with its copies, is more than MOST_SLOWDOWN times as slow for flash on a serial bus."""
    return _may_copy(board, options) and _is_slow(attempt.waits, attempt.program)


def beside_copies(attempt: Attempt, board: Board, options: CompileOptions) -> Budget | None:
    """A narrower budget, with which start-up could copy all constants to RAM; None if there is none, or enough of it.

    What kernels spend on time (Kernel.spends) may be saved for that.
    """
    memory, nbytes, use = memory_of_arena(board, options.place), _constant_bytes(attempt.program), attempt.use
    budget, most = Budget.of(options), int(MOST_COPIED * memory.room)
    if nbytes > most:
        if not any(instr.declaration and instr.declaration.spends for instr in attempt.program.instrs):
            return None
        budget, nbytes = replace(budget, flash=use.flash - (nbytes - most)), most
    left = _room(board, memory) - nbytes
    if left <= 0 or (left >= use.ram and budget.flash is None):
        return None
    return replace(budget, ram=left)


def lying_in_ram(attempt: Attempt, board: Board, options: CompileOptions) -> CompileOptions | None:
    """Options by which kernels for `speed` are priced with their weights where start-up has copied them, in the slowest
    of several memories; None where some stay in flash.
    """
    if options.optimize != "speed" or attempt.copies is None or options.place.weights:
        return None
    copies = copies_of(attempt.program, board, attempt.copies.options.place)
    if not copies or not _lie_in(copies, attempt.program):
        return None
    slowest = max(copies.values(), key=lambda memory: memory.speed)
    return replace(options, place=Places(options.place.arena, slowest.name))


def priced_copies(attempt: Attempt, board: Board, options: CompileOptions) -> CompileOptions | None:
    """Options by which kernels for `speed` are priced where start-up copies a part of their weights: each byte of these
    takes room that would save so many cycles elsewhere, those of the first constant that is left out. None where no
    part is copied.
    """
    program, chosen = attempt.program, attempt.copies.options if attempt.copies else options
    if not copies_a_part(program, board, options, chosen):
        return None
    copied = copies_of(program, board, chosen.place)
    saved = saved_by_copies(
        program, board, memory_of_weights(board, options.place), memory_of_arena(board, options.place)
    )
    return replace(options, copy_price=max(saved[b] / b.nbytes for b in saved if b.nbytes and b not in copied))


def time_of_copies(board: Board, options: CompileOptions, nbytes: int) -> int:
    """Cycles that start-up takes to copy so many bytes of weights, by estimate."""
    return round(COPY * nbytes) + (board.reading(memory_of_weights(board, options.place), nbytes) or 0)


def staged(attempt: Attempt, board: Board, options: CompileOptions) -> Attempt:
    """The program with its copies before layers, where the plan of its memory has room; the attempt itself if none."""
    copies = attempt.copies
    if copies is None or not copies.gains:
        return attempt
    chosen, most = copies.gains, copies.most
    before = Planned.of(attempt.program)  # it shares its buffers with what is tried
    for _ in range(TRIES):
        if not chosen:
            break
        program = with_staged_weights(attempt.program, by_readers(chosen))
        plan_memory(program, most)
        use = use_of(program, board, copies.options)
        if program.arena_size <= most and not Budget.of(options).excess(use):
            program = _planned(program, attempt.program)
            kept = replace(copies, gains=chosen)
            return replace(attempt, program=program, use=use_of(program, board, options), copies=kept)
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


def _without_busiest(program: Program, chosen: Sequence[Gain]) -> list[Gain]:
    """Fewer copies: without those that lie there when most of the arena is in use, or else without the largest."""
    busy = set(busiest(moments(program)).buffers)
    copies = [i for i in program.instrs if i.kernel in (STAGE_WEIGHTS, BEGIN_WEIGHTS)]
    dropped = {i.operand("x").buffer for i in copies if i.operand("y").buffer in busy}
    readers = {gain.whole for gain in chosen if gain.copy.constant in dropped}
    if not readers:
        totals = Counter[range]()
        for gain in chosen:
            totals[gain.whole] += gain.nbytes
        readers = {max(totals, key=totals.__getitem__)}
    return [gain for gain in chosen if gain.whole not in readers]
