# SPDX-License-Identifier: Apache-2.0
"""Weights in slow memory: when to copy them to the arena during a call, or to RAM at start-up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import groupby

from mcugen.core.board import Board, Memory, SerialTiming
from mcugen.core.options import AUTO_PLACE, GOALS, CompileOptions, Places
from mcugen.lir.program import BEGIN_WEIGHTS, STAGE_WEIGHTS, TRANSFER_KERNELS, Buffer, Program, Space, aligned
from mcugen.lir.weights import with_staged_weights
from mcugen.memory.constant_stalls import COPY_CYCLES_PER_BYTE, constant_reads, constant_stall_cycles, saved_by_copies
from mcugen.memory.knapsack import most_valuable
from mcugen.memory.peak import busiest, moments
from mcugen.memory.place import (
    SPILL_RESERVE_BYTES,
    copied_bytes,
    copies_of,
    hottest,
    memory_of_arena,
    memory_of_weights,
)
from mcugen.memory.plan import Planned, plan_memory
from mcugen.memory.verify_plan import verify_plan
from mcugen.search.budget import STACK_RESERVE_BYTES, use_of
from mcugen.search.objective import TOLERANCES, Budget
from mcugen.search.plan import BuiltProgram, ProgramCandidate
from mcugen.search.ram_placement import leaves_all_places, with_copies_everywhere
from mcugen.search.weight_copies import ConstantCopy, Copies, by_readers, choose_copies_that_fit, gains_of, rank_of

MAX_STAGING_PLANS = 6
"""Largest number of memory plans that are tried, each with fewer copies than the one before."""


def with_copies(program: Program, board: Board, options: CompileOptions) -> CompileOptions:
    """Return options that make start-up code copy weights from flash on a serial bus to RAM, or the given options.

    `speed` copies as many weights as fit. `balanced` copies all weights if stalls would make it more than
    Tolerances.max_balanced_slowdown times as slow and RAM stays within the share Tolerances.ample_memory_fraction of
    the board's. Beyond that share, `balanced` copies the weights with the most reads, as long as time · RAM decreases.
    Placements, budgets and weight files that the user chose are kept.

    Args:
        program: The planned program.
        board: The board with its memories.
        options: The options of the compilation.
    """
    if leaves_all_places(board, options):
        return with_copies_everywhere(program, board, options)
    if not _may_copy(board, options) or any(instr.kernel in TRANSFER_KERNELS for instr in program.instrs):
        return options
    slow, fast = memory_of_weights(board, options.place), memory_of_arena(board, options.place)
    nbytes, room = _constant_bytes(program), _room_for_copies(program, board, options, program.arena_size)
    if not nbytes:
        return options
    if options.optimize == "speed":
        fits = nbytes <= room
        return _copying(options, fast, nbytes) if fits else _a_part(program, board, options, program.arena_size)
    waits = constant_stall_cycles(program, board, slow)
    if not _is_slow(waits, program):
        return options
    if nbytes <= room and nbytes + program.arena_size <= TOLERANCES.ample_memory_fraction * board.total_ram:
        return _copying(options, fast, nbytes)
    return _best_trade(program, board, options, waits, room)


def _is_slow(waits: float, program: Program) -> bool:
    """Return whether stalls make the program more than max_balanced_slowdown times as slow.

    A core takes at most one cycle per instruction. Instructions that are only roughly known count only where they are
    the larger part.
    """
    instructions = program.instructions_estimate or 0.0
    known = sum(program.layer_estimates.values())
    stalls = min((program.cycles_estimate or instructions) - instructions, 0.0)
    work = max(known + stalls, instructions - known)
    return waits > max((TOLERANCES.max_balanced_slowdown - 1) * work, TOLERANCES.min_stall_cycles)


def _may_copy(board: Board, options: CompileOptions) -> bool:
    """Return whether start-up may copy weights without being asked to."""
    said = options.place != Places() or options.max_ram is not None
    is_serial = isinstance(memory_of_weights(board, options.place).access, SerialTiming)
    return options.optimize in ("balanced", "speed") and is_serial and not said and not options.weights_in_file


def may_trade_stalls_for_ram(program: Program, board: Board, options: CompileOptions) -> bool:
    """Return whether weights may be copied from serial flash to RAM, and stalls for the flash slow the program down.

    Copies may be made for the goals `balanced` and `speed`, unless the user chose memories, a RAM limit, or a file of
    weights.

    Args:
        program: The planned program.
        board: The board with its memories.
        options: The options of the compilation.
    """
    waits = constant_stall_cycles(program, board, memory_of_weights(board, options.place))
    return _may_copy(board, options) and _is_slow(waits, program)


def _copying(options: CompileOptions, memory: Memory, nbytes: int) -> CompileOptions:
    return replace(options, place=Places(hot_weights=(memory.name, nbytes)))


def _constant_bytes(program: Program) -> int:
    """Return the bytes of copies of all constants."""
    return sum(aligned(b.nbytes) for b in program.buffers if b.space is Space.CONST)


def _room_for_copies(program: Program, board: Board, options: CompileOptions, arena: int) -> int:
    """Return the bytes for copies of constants in the arena's memory beside an arena of the given size."""
    memory = memory_of_arena(board, options.place)
    return int(min(TOLERANCES.max_copied_share * memory.room, _room(board, memory) - arena - program.state_size))


def _room_for_part(program: Program, board: Board, options: CompileOptions, arena: int) -> int:
    """Return the bytes for copies of some constants, beside everything else in that memory."""
    is_beside = memory_of_arena(board, options.place).name == board.data_memory
    return _room_for_copies(program, board, options, arena) - SPILL_RESERVE_BYTES * is_beside


def _a_part(program: Program, board: Board, options: CompileOptions, arena: int) -> CompileOptions:
    """Return options that copy the constants that save most cycles; unchanged if they save too little."""
    slow, fast = memory_of_weights(board, options.place), memory_of_arena(board, options.place)
    if fast.room < TOLERANCES.min_part_memory_bytes:
        return options
    saved = saved_by_copies(program, board, slow, fast)
    chosen = most_valuable(saved, _room_for_part(program, board, options, arena))
    if sum(saved[b] for b in chosen) <= TOLERANCES.min_copy_saving * (program.instructions_estimate or 0.0):
        return options
    return _copying(options, fast, sum(aligned(b.nbytes) for b in chosen))


def _a_quarter(program: Program, board: Board, options: CompileOptions) -> CompileOptions:
    """Return options for `balanced` that copy constants within the share ample_memory_fraction of the board's RAM."""
    slow, fast = memory_of_weights(board, options.place), memory_of_arena(board, options.place)
    room = _room_for_part(program, board, options, program.arena_size)
    max_bytes = int(min(TOLERANCES.ample_memory_fraction * board.total_ram - program.arena_size, room))
    chosen = most_valuable(saved_by_copies(program, board, slow, fast), max_bytes)
    return _copying(options, fast, sum(aligned(b.nbytes) for b in chosen)) if chosen else options


def _best_trade(program: Program, board: Board, options: CompileOptions, waits: float, room: int) -> CompileOptions:
    """Return options that copy as many of the most often read constants as give the best `balanced` rank."""
    slow, fast = memory_of_weights(board, options.place), memory_of_arena(board, options.place)
    saved = saved_by_copies(program, board, slow, fast)
    copy_size, best_rank, chosen = 0, rank_of(program, waits, program.arena_size), options
    for buffer in hottest(program):
        copy_size, waits = copy_size + aligned(buffer.nbytes), waits - saved[buffer]
        if copy_size > room:
            break
        if (rank := rank_of(program, waits, program.arena_size + copy_size)) < best_rank:
            best_rank, chosen = rank, _copying(options, fast, copy_size)
    return chosen


def copied_by(built: BuiltProgram, board: Board, options: CompileOptions) -> CompileOptions:
    """Return options whose placement contains the copies of constants that start-up code makes for a program.

    Args:
        built: The planned program; copies are chosen for it if it has none yet.
        board: The board with its memories.
        options: The options of the compilation.
    """
    chosen = built.copies.options if built.copies else options
    return with_copies(built.program, board, options) if chosen is options else chosen


def copies_for(program: Program, board: Board, options: CompileOptions) -> Copies:
    """Return the copies of constants that serve the goal best, by estimate.

    For `speed` the arena may grow as far as memory and budget allow. For `balanced` it may grow as long as time · RAM
    decreases, if weights lie in flash on a serial bus. Other goals only use bytes of the arena that are free while a
    layer runs. `balanced` uses start-up copies within the share Tolerances.ample_memory_fraction of RAM instead, if
    these make it faster by more than the factor Tolerances.max_balanced_slowdown.

    Args:
        program: The planned program.
        board: The board with its memories.
        options: The options of the compilation.
    """
    chosen = with_copies(program, board, options)
    gains, instructions = gains_of(program, board, options), program.instructions_estimate or 0.0
    start = _beside(program, board, chosen, (), program.arena_size)
    is_trade = options.optimize == GOALS[0] and not leaves_all_places(board, options)
    is_enough = start.ram <= TOLERANCES.ample_memory_fraction * board.total_ram and not _is_slow(start.waits, program)
    is_part = copies_a_part(program, board, options, chosen)
    if chosen is not options and (is_enough or not is_trade) and not is_part:
        return start
    is_trade &= may_trade_stalls_for_ram(program, board, options)
    if not gains and not is_trade:
        return start

    def before_layers(max_arena: int) -> Copies:
        return _beside(program, board, options, gains, max_arena)

    if not is_trade:
        max_arena = _most_ram(program, board, options)
        if not is_part:
            return before_layers(max_arena)
        parts = [(_a_part(program, board, options, size), size) for size in _levels(program, gains, max_arena)]
        candidates = [
            start,
            before_layers(max_arena),
            *(_beside(program, board, part, gains, size) for part, size in parts),
        ]
        return min(candidates, key=lambda way: way.waits)
    room = program.arena_size + _room_for_copies(program, board, options, program.arena_size)
    candidates = [start] * (chosen is not options) + [
        before_layers(max_arena) for max_arena in _levels(program, gains, room)
    ]
    part = _beside(program, board, _a_quarter(program, board, options), gains, program.arena_size)
    if not gains:  # Copies before layers save nothing.
        candidates.append(part)
    best = min(_fast_enough(candidates, board, instructions), key=lambda way: way.rank(program))
    return best if instructions + best.waits <= TOLERANCES.max_balanced_slowdown * (instructions + part.waits) else part


def _beside(
    program: Program, board: Board, options: CompileOptions, gains: Sequence[ConstantCopy], max_arena: int
) -> Copies:
    """Return the start-up copies of the options, and the other copies before layers that fit `max_arena` bytes."""
    slow, is_copied = memory_of_weights(board, options.place), bool(options.place.hot or not gains)
    copied = (
        copies_of(program, board, options.place) if is_copied else {}
    )  # A constant of `gains` may lie in a slow RAM.
    reads = (c for c in constant_reads(program, board, slow) if c.buffer not in copied)
    waits = sum(c.stall_cycles(board, slow) or 0.0 for c in reads)
    kept_gains = choose_copies_that_fit(
        program, [gain for gain in gains if gain.copy.constant not in copied], max_arena
    )
    ram = max(max_arena, program.arena_size) + copied_bytes(program, board, options.place)
    return Copies(options, kept_gains, max_arena, waits - sum(gain.cycles for gain in kept_gains), ram)


def copies_enough(program: Program, board: Board, options: CompileOptions) -> bool:
    """Return whether start-up code copies some constants to RAM; for the goal `speed`, whether it copies all constants.

    Args:
        program: The planned program.
        board: The board with its memories.
        options: The options of the compilation.
    """
    chosen = with_copies(program, board, options)
    return bool(chosen.place.hot) and not copies_a_part(program, board, options, chosen)


def copies_a_part(program: Program, board: Board, options: CompileOptions, chosen: CompileOptions) -> bool:
    """Return whether, for the goal `speed`, start-up code copies only some constants because there is no room for all.

    Args:
        program: The planned program.
        board: The board with its memories.
        options: The options that the user set.
        chosen: The options with the chosen copies.
    """
    is_free = chosen is not options and not leaves_all_places(board, options)
    return is_free and options.optimize == "speed" and not _lie_in(copies_of(program, board, chosen.place), program)


def _lie_in(copies: Collection[Buffer], program: Program) -> bool:
    """Return whether all constants of the program are among the copies."""
    return all(b in copies for b in program.buffers if b.space is Space.CONST and b.nbytes)


def _fast_enough(candidates: Sequence[Copies], board: Board, instructions: float) -> Sequence[Copies]:
    """Return the candidates that are fast enough against those in ample memory.

    They are at most max_balanced_slowdown times as slow as the fastest one within the share ample_memory_fraction of
    RAM.
    """
    small = [
        instructions + candidate.waits
        for candidate in candidates
        if candidate.ram <= TOLERANCES.ample_memory_fraction * board.total_ram
    ]
    max_time = TOLERANCES.max_balanced_slowdown * min(small, default=math.inf)
    return [candidate for candidate in candidates if instructions + candidate.waits <= max_time]


def _levels(program: Program, gains: Sequence[ConstantCopy], room: int) -> list[int]:
    """Return sizes of the arena to try: its own size, and those with room for all copies of one instruction or block.

    Plans take some percent more than the bytes that are live at once.
    """
    live_bytes = [moment.nbytes for moment in moments(program)[1:]]
    needed = []
    for _, group in groupby(gains, key=lambda gain: gain.whole):
        copies = list(group)
        nbytes = sum({gain.copy.constant: gain.nbytes for gain in copies}.values())
        busiest = max(live_bytes[index] for gain in copies for index in gain.span)
        needed.append(aligned(int(TOLERANCES.planned_arena_ratio * (busiest + nbytes))))
    return sorted({program.arena_size, *(size for size in needed if program.arena_size < size <= room)})


def is_slowed_by_stalls(candidate: ProgramCandidate, board: Board, options: CompileOptions) -> bool:
    """Return whether stalls for flash on a serial bus make a candidate, with its copies, too slow.

    Too slow is more than Tolerances.max_balanced_slowdown times as slow as without stalls.

    Args:
        candidate: The planned program with its copies.
        board: The board with its memories.
        options: The options of the compilation.
    """
    return _may_copy(board, options) and _is_slow(candidate.metrics.stall_cycles, candidate.program)


def budget_beside_copies(candidate: ProgramCandidate, board: Board, options: CompileOptions) -> Budget | None:
    """Return a smaller budget for the program that would leave enough RAM for start-up code to copy all constants.

    Return None if there is no such budget, or if the program leaves enough RAM already. To make the copies smaller, the
    budget may also exclude kernels that use more flash for speed (Kernel.spends).

    Args:
        candidate: The planned program.
        board: The board with its memories.
        options: The options of the compilation.
    """
    memory, nbytes, use = memory_of_arena(board, options.place), _constant_bytes(candidate.program), candidate.use
    budget, max_copied = Budget.of(options), int(TOLERANCES.max_copied_share * memory.room)
    if nbytes > max_copied:
        if not any(instr.declaration and instr.declaration.spends for instr in candidate.program.instrs):
            return None
        budget, nbytes = replace(budget, flash=use.flash - (nbytes - max_copied)), max_copied
    free_ram = _room(board, memory) - nbytes
    if free_ram <= 0 or (free_ram >= use.ram and budget.flash is None):
        return None
    return replace(budget, ram=free_ram)


def options_for_weights_in_ram(
    candidate: ProgramCandidate, board: Board, options: CompileOptions
) -> CompileOptions | None:
    """Return options by which kernels are chosen as if all weights were in RAM.

    Return None if some weights stay in flash, or if the goal is not `speed`. If start-up code copies weights to several
    memories, the slowest of them counts.

    Args:
        candidate: The planned program with its copies.
        board: The board with its memories.
        options: The options of the compilation.
    """
    if options.optimize != "speed" or candidate.copies is None or options.place.weights:
        return None
    copies = copies_of(candidate.program, board, candidate.copies.options.place)
    if not copies or not _lie_in(copies, candidate.program):
        return None
    slowest = max(copies.values(), key=lambda memory: memory.speed)
    return replace(options, place=Places(options.place.arena, slowest.name))


def priced_copies(candidate: ProgramCandidate, board: Board, options: CompileOptions) -> CompileOptions | None:
    """Return options by which kernels with fewer bytes of weights are preferred, to leave RAM for copies of weights.

    This is for the goal `speed`, if RAM has room for copies of some constants only. The options set a price per byte of
    weights that the choice of kernels adds to its cost: the most cycles per byte that a copy of a constant without room
    would save. Return None if start-up code copies all constants, or none.

    Args:
        candidate: The planned program with its copies.
        board: The board with its memories.
        options: The options of the compilation.
    """
    program, chosen = candidate.program, candidate.copies.options if candidate.copies else options
    if not copies_a_part(program, board, options, chosen):
        return None
    copied = copies_of(program, board, chosen.place)
    saved = saved_by_copies(
        program, board, memory_of_weights(board, options.place), memory_of_arena(board, options.place)
    )
    return replace(options, copy_price=max(saved[b] / b.nbytes for b in saved if b.nbytes and b not in copied))


def startup_copy_cycles(board: Board, options: CompileOptions, nbytes: int) -> int:
    """Return the estimated cycles that start-up takes to copy weights from their memory to RAM.

    Args:
        board: The board with its memories.
        options: Options with the placement of weights.
        nbytes: Bytes to copy.
    """
    return round(COPY_CYCLES_PER_BYTE * nbytes) + (
        board.sequential_read_cycles(memory_of_weights(board, options.place), nbytes) or 0
    )


def staged(candidate: ProgramCandidate, board: Board, options: CompileOptions) -> BuiltProgram:
    """Return a candidate's program with calls that copy constants to the arena before the layers that read them.

    As many of the chosen copies are made as the arena has room for; the program is unchanged if none fits.

    Args:
        candidate: The planned program with its chosen copies.
        board: The board with its memories.
        options: Options with the limits of RAM and flash.
    """
    copies = candidate.copies
    if copies is None or not copies.gains:
        return candidate.built
    chosen, max_arena = copies.gains, copies.max_arena
    saved_plan = Planned.of(candidate.program)  # The tried programs share its buffers.
    for _ in range(MAX_STAGING_PLANS):
        if not chosen:
            break
        program = with_staged_weights(candidate.program, by_readers(chosen))
        plan_memory(program, max_arena)
        use = use_of(program, board, copies.options)
        if program.arena_size <= max_arena and not Budget.of(options).excess(use):
            program = _planned(program, candidate.program)
            return replace(candidate.built, program=program, copies=copies.keeping(chosen))
        chosen = _without_busiest(program, chosen)
    saved_plan.restore(candidate.program)
    return replace(candidate.built, copies=copies.keeping(()))


def _planned(program: Program, without: Program) -> Program:
    """Return the program with the least arena, and verify its plan.

    `without` is the program without copies: its arena is a lower bound, as copies only add buffers.
    """
    if program.arena_size > max(program.arena_bound, without.arena_size):
        plan_memory(program)
    program.area_bounds = [max(program.arena_bound, without.arena_bound)]
    verify_plan(program)
    return program


def _most_ram(program: Program, board: Board, options: CompileOptions) -> int:
    """Return the largest arena in bytes."""
    places = options.place
    if options.optimize != "speed" or len(places.arena) > 1 or AUTO_PLACE in places.arena:
        return program.arena_size
    memory, budget = memory_of_arena(board, options.place), Budget.of(options)
    other_bytes = program.state_size + copied_bytes(program, board, places)
    room = _room(board, memory)
    return max(min(room, budget.ram or room) - other_bytes, program.arena_size)


def _room(board: Board, memory: Memory) -> int:
    """Return the bytes of a memory for models, without the stack where that memory must hold it."""
    return min(memory.room, board.total_ram - STACK_RESERVE_BYTES)


def _without_busiest(program: Program, chosen: Sequence[ConstantCopy]) -> list[ConstantCopy]:
    """Return fewer copies: without those that are live at the peak, or else without the largest."""
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
