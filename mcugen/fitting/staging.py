# SPDX-License-Identifier: Apache-2.0
"""Weights in slow memory: copied to the arena while their layer runs, or to RAM at start, where that pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from mcugen.board import Board, Memory, Serial
from mcugen.fitting.budget import STACK, Attempt, Budget, use_of
from mcugen.fitting.everywhere import leaves_all_places, with_copies_everywhere
from mcugen.kernels.choose import ENOUGH, MOST_SLOWDOWN, Cost
from mcugen.lir.program import STAGE_WEIGHTS, Buffer, Control, Program, Space, aligned
from mcugen.lir.weights import is_read, with_staged_weights
from mcugen.memory.peak import busiest, moments
from mcugen.memory.place import copied_bytes, copies_of, hottest, memory_of_arena, memory_of_weights
from mcugen.memory.plan import Planned, plan_memory
from mcugen.memory.reading import COPY, Constant, constants_of, waits_for_constants
from mcugen.memory.verify_plan import verify_plan
from mcugen.options import AUTO_PLACE, GOALS, CompileOptions, Places

LEAST = 200
LEAST_SHARE = 0.001
"""Cycles that a copy must save, and their share of all instructions: it takes 20 to 50 bytes of code."""

TRIES = 6
"""So often memory is planned anew, with fewer copies, until it is no more than allowed."""


SURELY = 1.0
"""Of a program's instructions, the waits from which on `balanced` trades RAM for them: estimates of what a small cache
holds may be several times too high."""

PLANNED = 17 / 16
"""How many times the bytes that are in use at once an arena may take."""

LEAST_WAITS = 10_000
"""Cycles that `balanced` waits for weights at least before start-up copies them."""

MOST_COPIED = 2 / 3
"""Of the arena's memory, what copies of weights may take without being asked for."""


Gains = Mapping[range, Mapping[Buffer, float]]
"""Cycles that copies of constants save, by the instruction that reads them, or by the block that it is in."""


def with_copies(program: Program, board: Board, options: CompileOptions) -> CompileOptions:
    """Options that have start-up copy weights to RAM, from flash on a serial bus, where all of them fit: for `speed`,
    and for `balanced` where it were more than MOST_SLOWDOWN times as slow, and RAM stays under ENOUGH of the board's.

    What the user says of places, of budgets or of a file of weights, stands. Beyond that quarter `balanced` copies what
    it reads most often, as long as that is the better trade of time and RAM.
    """
    if leaves_all_places(board, options):
        return with_copies_everywhere(program, board, options)
    if not _may_copy(board, options) or any(instr.kernel == STAGE_WEIGHTS for instr in program.instrs):
        return options
    slow, fast = memory_of_weights(board, options.place), memory_of_arena(board, options.place)
    nbytes, room = _constant_bytes(program), _room_for_copies(program, board, options)
    if not nbytes:
        return options
    if options.optimize == "speed":
        return _copying(options, fast, nbytes) if nbytes <= room else options
    waits, instructions = waits_for_constants(program, board, slow), program.instructions_estimate or 0.0
    is_slow = waits > max((MOST_SLOWDOWN - 1) * instructions, LEAST_WAITS)
    if not is_slow or _stay_cached(board, (slow, nbytes), (fast, program.arena_size)):
        return options
    if nbytes <= room and nbytes + program.arena_size <= ENOUGH * board.total_ram:
        return _copying(options, fast, nbytes)
    return _best_trade(program, board, options, waits, room) if waits > SURELY * instructions else options


def _may_copy(board: Board, options: CompileOptions) -> bool:
    """Whether start-up may copy weights without being asked to."""
    said = options.place != Places() or options.max_ram is not None
    in_file = options.weights_blob or options.updatable or options.weights_reader
    is_serial = isinstance(memory_of_weights(board, options.place).access, Serial)
    return options.optimize in ("balanced", "speed") and is_serial and not said and not in_file


def trades_waits(program: Program, board: Board, options: CompileOptions) -> bool:
    """Whether what a program waits for flash on a serial bus may count against RAM."""
    waits = waits_for_constants(program, board, memory_of_weights(board, options.place))
    return _may_copy(board, options) and waits > SURELY * (program.instructions_estimate or 0.0)


def _copying(options: CompileOptions, memory: Memory, nbytes: int) -> CompileOptions:
    return replace(options, place=Places(hot_weights=(memory.name, nbytes)))


def _constant_bytes(program: Program) -> int:
    """Those that copies of all constants take."""
    return sum(aligned(b.nbytes) for b in program.buffers if b.space is Space.CONST)


def _room_for_copies(program: Program, board: Board, options: CompileOptions) -> int:
    """Bytes of the arena's memory that copies of constants may take."""
    memory = memory_of_arena(board, options.place)
    return int(min(MOST_COPIED * memory.room, _room(board, memory) - program.arena_size - program.state_size))


def _best_trade(program: Program, board: Board, options: CompileOptions, waits: float, room: int) -> CompileOptions:
    """As many of the constants that are read most often as serve `balanced` best."""
    slow, fast = memory_of_weights(board, options.place), memory_of_arena(board, options.place)
    each = dict.fromkeys((b for b in program.buffers if b.space is Space.CONST), 0.0)
    for constant in constants_of(program, board, slow):
        each[constant.buffer] += constant.waits(board, slow) or 0.0
    instructions, taken = program.instructions_estimate or 0.0, 0

    def rank() -> float:
        return Cost(instructions + waits, program.arena_size + taken, program.weights_size).rank(options.optimize)

    least, chosen = rank(), options
    for buffer in hottest(program):
        taken, waits = taken + aligned(buffer.nbytes), waits - each[buffer]
        if taken > room:
            break
        if rank() < least:
            least, chosen = rank(), _copying(options, fast, taken)
    return chosen


@dataclass(frozen=True)
class Copies:
    """Of constants: those that start-up makes, by the options, or those before layers."""

    options: CompileOptions
    held: Mapping[int, Sequence[Buffer]]
    """What is copied, by the first index of the instruction or block that reads it (Program.wholes)."""
    most: int
    """Bytes that the arena may take with these."""
    waits: float
    """Cycles that the CPU still waits for constants, by estimate."""
    ram: int
    """Bytes of the arena, and of start-up's copies."""

    def rank(self, program: Program) -> float:
        """As `balanced` sees it."""
        return Cost((program.instructions_estimate or 0.0) + self.waits, self.ram, program.weights_size).rank(GOALS[0])


def copies_for(attempt: Attempt, board: Board, options: CompileOptions) -> Copies:
    """What serves the goal best, by estimate.

    For `speed` the arena may grow as far as memory and budget allow, and for `balanced` as far as that is a better
    trade, if weights lie in flash on a serial bus; for other goals it may not, so that weights take room that other
    layers leave free.
    """
    program, chosen = attempt.program, with_copies(attempt.program, board, options)
    slow = memory_of_weights(board, options.place)
    copied = copies_of(program, board, chosen.place)
    waits = sum(c.waits(board, slow) or 0.0 for c in constants_of(program, board, slow) if c.buffer not in copied)
    ram = program.arena_size + copied_bytes(program, board, chosen.place)
    start = Copies(chosen, {}, program.arena_size, waits, ram)
    gains = _gains(program, board, options)
    is_trade = options.optimize == GOALS[0] and not leaves_all_places(board, options)
    is_settled = chosen is not options and not (is_trade and ram > ENOUGH * board.total_ram)
    if not gains or is_settled:
        return start
    total = waits_for_constants(program, board, slow)

    def before_layers(most: int) -> Copies:
        held = _side_by_side(program, gains, most)
        saved = sum(each[b] for whole, each in gains.items() for b in held.get(whole.start, ()))
        return Copies(options, held, most, total - saved, max(most, program.arena_size))

    if options.optimize != GOALS[0] or not trades_waits(program, board, options):
        return before_layers(_most_ram(attempt, board, options))
    room = program.arena_size + _room_for_copies(program, board, options)
    ways = [before_layers(most) for most in _levels(program, gains, room)]
    return min([start] * (chosen is not options) + ways, key=lambda way: way.rank(program))


def _levels(program: Program, gains: Gains, room: int) -> list[int]:
    """Sizes of the arena with room for all copies of an instruction or block, and the size that it has.

    Plans take some percent more than what lies side by side.
    """
    taken = [moment.nbytes for moment in moments(program)[1:]]
    needed = [
        aligned(int(PLANNED * (max(taken[index] for index in whole) + sum(aligned(b.nbytes) for b in saved))))
        for whole, saved in gains.items()
    ]
    return sorted({program.arena_size, *(most for most in needed if program.arena_size < most <= room)})


def waits_most(attempt: Attempt, board: Board, options: CompileOptions) -> bool:
    """Whether a program, with its copies, is more than MOST_SLOWDOWN times as slow for flash on a serial bus."""
    return _may_copy(board, options) and attempt.waits > max((MOST_SLOWDOWN - 1) * attempt.instructions, LEAST_WAITS)


def left_beside_copies(attempt: Attempt, board: Board, options: CompileOptions) -> int | None:
    """Bytes of RAM that start-up's copies of all constants would leave; None if they leave none, or enough."""
    memory, nbytes = memory_of_arena(board, options.place), _constant_bytes(attempt.program)
    left = _room(board, memory) - nbytes
    return left if nbytes <= MOST_COPIED * memory.room and 0 < left < attempt.use.ram else None


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
    """The program with such copies, where they save cycles by the board's memories; the attempt itself if none do."""
    copies = copies_for(attempt, board, options)
    chosen, most = copies.held, copies.most
    if not chosen:
        return attempt
    before = Planned.of(attempt.program)  # it shares its buffers with what is tried
    for _ in range(TRIES):
        if not chosen:
            break
        program = with_staged_weights(attempt.program, chosen)
        plan_memory(program, most)
        if program.arena_size <= most and not Budget.of(options).excess(use_of(program, board, options)):
            return replace(attempt, program=_planned(program, attempt.program), use=use_of(program, board, options))
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


def _side_by_side(program: Program, gains: Gains, most: int) -> dict[int, Sequence[Buffer]]:
    """What fits if the arena takes at most so much, as far as buffers can lie side by side: those that gain most for
    their bytes.
    """
    taken = [moment.nbytes for moment in moments(program)[1:]] if gains else []
    found: dict[int, Sequence[Buffer]] = {}
    for whole, saved in gains.items():
        room, held = most - max(taken[index] for index in whole), list[Buffer]()
        for buffer in sorted(saved, key=lambda b: -saved[b] / b.nbytes):
            if aligned(buffer.nbytes) <= room:
                held.append(buffer)
                room -= aligned(buffer.nbytes)
        if held:
            found[whole.start] = [buffer for buffer in saved if buffer in held]
    return found


def _gains(program: Program, board: Board, options: CompileOptions) -> Gains:
    """Of the constants that are worth a copy."""
    places = options.place
    is_told = bool(options.weights_reader or places.hot_weights) or program.handover is not None
    if options.optimize == "flash" or is_told:
        return {}
    memories = memory_of_weights(board, places), memory_of_arena(board, places)
    least = max(LEAST, LEAST_SHARE * (program.instructions_estimate or 0))
    found = {}
    for whole, constants in groupby(constants_of(program, board, memories[0]), key=lambda constant: constant.whole):
        if program.instrs[whole.start].control in (Control.IF, Control.FORK):
            continue  # it may not run; the other core reads them as well
        if saved := _worth_a_copy(list(constants), board, memories, options, least):
            found[whole] = saved
    return found


def _worth_a_copy(
    constants: Sequence[Constant], board: Board, memories: tuple[Memory, Memory], options: CompileOptions, least: float
) -> dict[Buffer, float]:
    """Of the constants of an instruction or a block, what copies save: more than `least` cycles each."""
    saved = dict.fromkeys((c.buffer for c in constants if is_read(c.buffer)), 0.0)
    for constant in constants:
        if constant.buffer in saved:
            saved[constant.buffer] += constant.saved_by_copy(board, *memories)
    instr = constants[0].instr
    times = options.times.get((instr.name, instr.kernel))
    if times is not None:
        return saved if times.plain - times.copied > LEAST else {}
    return {buffer: cycles for buffer, cycles in saved.items() if cycles > least}


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
