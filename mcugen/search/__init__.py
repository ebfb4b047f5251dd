# SPDX-License-Identifier: Apache-2.0
"""Program search: build the requested program or, if it exceeds the budget, the cheapest alternative that fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from mcugen.backends.cpu.pipeline import Kernels, lowered, planned
from mcugen.core.board import Board
from mcugen.core.limits import restart
from mcugen.core.options import GOALS, CompileOptions
from mcugen.hir.graph import Graph, Node
from mcugen.kernels.choose import ENOUGH, Cost, Limits
from mcugen.kernels.cost import cost_table
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Control, Program
from mcugen.memory.place import memory_of_arena
from mcugen.search.budget import (
    MIN_CODE_RATIO,
    Attempt,
    Budget,
    Fit,
    Use,
    cheapest,
    hoped_use,
    use_of,
    waits_when_placed,
)
from mcugen.search.budget import code_of as likely_code
from mcugen.search.channel_tiling import MIN_SAVED_PER_INSTRUCTION, in_portions
from mcugen.search.contention import of_arena
from mcugen.search.core_assignment import MAX_SHARED_RAM_RATIO, MIN_STACK_BYTES, Room, shared, shared_program
from mcugen.search.core_assignment import Build as Shared
from mcugen.search.core_partition import Forms, Side
from mcugen.search.frame_pipeline import pipelined_program
from mcugen.search.head_splitting import heads_apart
from mcugen.search.line_buffer_groups import Stretch, each_by_rows, ram_of, with_groups
from mcugen.search.line_buffer_tradeoff import grouped
from mcugen.search.line_buffering import Streaming, Streamings
from mcugen.search.rematerialization import recomputing
from mcugen.search.spatial_tiling import in_patches
from mcugen.search.weight_decompression import MAX_TRADE_RATIO, Codes, better_of, codes_of, in_tiles, with_codes
from mcugen.search.weight_staging import (
    beside_copies,
    copies_enough,
    copies_for,
    lying_in_ram,
    priced_copies,
    staged,
    waits_most,
)

AS_ASKED = "as asked"
"""Name of the step that builds the requested program."""

IN_RAM = "kernels chosen for weights in RAM"
"""Name of the step that chooses kernels for weights that start-up copies to RAM."""

IN_PART = "kernels chosen for some weights in RAM"
"""Name of the step that chooses kernels where start-up copies a part of the weights."""

MAX_RELATIVE_TIME = 0.97
"""Largest ratio of a replacement's estimated cycles to those of the program that it replaces, for `speed`.

The 3 % below 1 cover errors of the estimates.
"""

RAM_ESTIMATE_MARGIN = 1.1
"""Largest ratio of an estimated to a planned arena that still counts as a fit.

Estimates of the RAM of line-buffered groups may be up to 10 % too high.
"""

Build = Callable[[Graph, Board, CompileOptions], Program]
"""Builds a planned program of a graph for a board and options."""

Measure = Callable[[Program], int | None]
"""Returns the size in bytes of a program's code as the compiler builds it, or None where it cannot be built."""


@dataclass(frozen=True)
class Fallback:
    """An alternative way to build a program that exceeds its budget."""

    name: str
    """What the fallback does, as notes and errors say it."""
    serves: tuple[str, ...]
    """The limited memories that this fallback can reduce: `ram`, `flash`."""
    build: Build
    goal: str = ""
    """The goal that this fallback builds for, if a different goal is all that it changes."""
    in_rows: bool = False
    """Whether layers may be computed row by row, in line-buffered groups."""
    of_lessons: bool = False
    """Whether the fallback applies only to models that are trained on the device."""


def build_program(
    graph: Graph, board: Board, options: CompileOptions | None = None, code_of: Measure | None = None
) -> Fit:
    """Return the program for an optimized graph that serves the goal best within the budget and the board's memory.

    If the requested program does not fit, the FALLBACKS that may help are built, and the fastest that fits is chosen.
    If none surely fits, or only a slow one, `code_of` measures code by compiling it. DoesNotFitError names the nearest.
    """
    options = options or CompileOptions()
    budget, graph = Budget.of(options), each_by_rows(graph, options.by_rows, is_streamed_in=options.stream_input)

    def plan(variant: Graph, kernels: Mapping[Node, Kernel], target_arena: int) -> Program:
        restart()
        return planned(lowered(variant, board, options, kernels=kernels), target_arena)

    def attempt(name: str, build: Build, goal: str, adapted: CompileOptions, of: Graph = graph) -> Attempt:
        restart()
        use = use_of(program := build(of, board, adapted), board, options)
        if options.cores > 1:
            program = _on_two_cores(graph, program, board, options, plan, _room_for_two(program, use, board, adapted))
            use = use_of(program, board, options)
        result = Attempt(name, program, use, goal)
        return replace(result, copies=copies_for(result, board, options))

    def fallbacks(narrowed_budget: Budget) -> list[Attempt]:
        adapted = replace(options, max_ram=narrowed_budget.ram, max_flash=narrowed_budget.flash)
        steps = [step for step in FALLBACKS if set(step.serves) & set(narrowed_budget.limits)]
        steps = [step for step in steps if step.goal != options.optimize]  # The baseline has that goal.
        steps = [step for step in steps if graph.lesson is not None or not step.of_lessons]
        if options.weights_reader:
            steps = [step for step in steps if not step.in_rows]
        return _made(baseline, steps, lambda step: attempt(step.name, step.build, step.goal, adapted))

    def balanced() -> list[Attempt]:
        steps = [step for step in FALLBACKS if step.goal == GOALS[0] != options.optimize]
        return [attempt(step.name, step.build, step.goal, options) for step in steps]

    baseline = chosen = attempt(AS_ASKED, _as_asked, options.optimize, options)
    attempts = [baseline]
    if budget.excess(baseline.use):
        attempts += fallbacks(budget.narrowed(baseline.use))
        chosen = cheapest(attempts, budget, board, built=partial(_built, board=board, options=options, code_of=code_of))
    if (adapted := priced_copies(chosen, board, options)) is not None:
        priced = attempt(IN_PART, _as_asked, options.optimize, adapted)
        attempts += [priced] if priced.time < MAX_RELATIVE_TIME * chosen.time else []
    if adapted is not None or waits_most(chosen, board, options):
        narrowed_budget = beside_copies(chosen, board, options)  # The arena may leave no room for copies of weights.
        attempts += fallbacks(narrowed_budget) if narrowed_budget else balanced()
        chosen = cheapest([*attempts, chosen], budget, board)
    if (adapted := lying_in_ram(chosen, board, options)) is not None:
        chosen = _chosen_again(chosen, attempt, adapted, board, options)
        attempts.append(chosen)
    if options.optimize == "speed" and chosen.program.arena_size > memory_of_arena(board, options.place).room:
        attempts += balanced() if all(rival.goal != GOALS[0] for rival in attempts) else []  # It may fit faster memory.
        attempts = [staged(rival, board, options) for rival in [*attempts, chosen]]
        chosen = cheapest(attempts, budget, board, lambda rival: _placed_time(rival, board, options))
    else:
        chosen = staged(chosen, board, options)
    chosen = _divided(graph, chosen, baseline, attempt, board, options)
    return Fit(budget, chosen, baseline, _layer_by_layer(graph, chosen.program, board, options))


def _built(attempt: Attempt, board: Board, options: CompileOptions, code_of: Measure | None) -> Attempt:
    """Return the attempt with its code size measured, if the program may fit with its real code.

    The attempt keeps the likely size of its code where not even MIN_CODE_RATIO of that size would fit.
    """
    budget, likely = Budget.of(options), likely_code(attempt.program, board)
    if budget.excess(use_of(attempt.program, board, options, round(MIN_CODE_RATIO * likely))):
        return replace(attempt, use=use_of(attempt.program, board, options, likely))
    code = None if code_of is None else code_of(attempt.program)
    return attempt if code is None else replace(attempt, built=code, use=use_of(attempt.program, board, options, code))


def _divided(
    graph: Graph,
    best: Attempt,
    baseline: Attempt,
    attempt: Callable[..., Attempt],
    board: Board,
    options: CompileOptions,
) -> Attempt:
    """Return the better of the chosen program and variants whose layers are tiled by output channels to fit a cache.

    For `speed`, the `balanced` kernels are tried as well, since these read weights less often.
    """
    budget, whole = Budget.of(options), best
    if budget.excess(baseline.use) or options.optimize not in (GOALS[0], "speed"):
        return best
    variants: list[tuple[Build, str]] = [(_as_asked, options.optimize)]
    if options.optimize == "speed" and best.waits > MIN_SAVED_PER_INSTRUCTION * best.instructions:
        variants.append((_for_goal(GOALS[0]), GOALS[0]))
    copying = options if options.optimize == "speed" or baseline.copies is None else baseline.copies.options
    for build, goal in variants:
        base = baseline.program if goal == baseline.goal else build(graph, board, options)
        if (divided := in_portions(graph, base, board, copying)) is not None:
            candidate = staged(attempt(AS_ASKED, build, goal, options, divided), board, options)
            fits = not budget.excess(candidate.use)
            may_be_asked_for = (
                best is whole and goal != baseline.goal
            )  # `balanced` could return this program, and must not be faster than `speed`.
            best = candidate if fits and _is_better(candidate, best, may_be_asked_for, board, options) else best
    return best


def _is_better(
    candidate: Attempt, incumbent: Attempt, any_gain_counts: bool, board: Board, options: CompileOptions
) -> bool:
    """Return whether the candidate clearly improves on what the goal minimizes.

    With `any_gain_counts`, any gain of speed is enough.
    """
    times = [_placed_time(attempt, board, options) for attempt in (candidate, incumbent)]
    if options.optimize == "speed":
        return times[0] < (1.0 if any_gain_counts else MAX_RELATIVE_TIME) * times[1]
    trades = [_trade(attempt, time) for attempt, time in zip((candidate, incumbent), times, strict=True)]
    saves_enough = times[0] <= times[1] or incumbent.use.ram > ENOUGH * board.total_ram  # Unused RAM has no value.
    return saves_enough and trades[0] < trades[1] + math.log(MAX_TRADE_RATIO)


def _trade(attempt: Attempt, time: float) -> float:
    """Return the `balanced` rank of an attempt, with its calls and copies: less is better."""
    ram = attempt.copies.ram if attempt.copies else attempt.use.ram
    return Cost(time, ram, attempt.use.flash).rank(GOALS[0])


def _layer_by_layer(graph: Graph, program: Program, board: Board, options: CompileOptions) -> float | None:
    """Return the estimated instructions without line buffering, or None if the program has no layers row by row."""
    if all(instr.control is not Control.STREAM for instr in program.instrs):
        return None
    return lowered(graph, board, replace(options, stream_input=False)).instructions_estimate


def _chosen_again(
    previous: Attempt,
    attempt: Callable[[str, Build, str, CompileOptions], Attempt],
    copy_options: CompileOptions,
    board: Board,
    options: CompileOptions,
) -> Attempt:
    """Return a program with kernels chosen for weights in RAM, or `previous` if that is not clearly faster.

    Where start-up copies do not leave enough room, the kernels are limited to as many bytes of weights as can be
    copied.
    """
    budget = Budget.of(options)
    retried = attempt(AS_ASKED, _as_asked, options.optimize, copy_options)
    narrowed_budget = (
        budget.narrowed(retried.use) if budget.excess(retried.use) else beside_copies(retried, board, options)
    )
    if narrowed_budget is not None:
        copy_options = replace(copy_options, max_ram=narrowed_budget.ram, max_flash=narrowed_budget.flash)
        retried = attempt(IN_RAM, _within_limits, "", copy_options)
    max_cycles = MAX_RELATIVE_TIME * placed_cycles(previous, board, options)
    is_faster = not budget.excess(retried.use) and placed_cycles(retried, board, options) < max_cycles
    return retried if is_faster else previous


def _placed_time(attempt: Attempt, board: Board, options: CompileOptions) -> float:
    """Return the instructions and stall cycles of an attempt in the memories where it would lie, with its copies."""
    places = (attempt.copies.options if attempt.copies else options).place
    return attempt.instructions + sum(waits_when_placed(attempt.program, board, places))


def placed_cycles(attempt: Attempt, board: Board, options: CompileOptions) -> float:
    """Return the estimated cycles of an attempt in the memories where it would lie, with its copies.

    These are the core's cycles, where the cost model knows them, or else its instructions, and the stall cycles of
    memory.

    Args:
        attempt: The planned program with its copies.
        board: The board with its memories.
        options: Options with the placement, used if the attempt has no copies.
    """
    stalls = (attempt.program.cycles_estimate or attempt.instructions) - attempt.instructions
    return _placed_time(attempt, board, options) + stalls


def _made(baseline: Attempt, steps: Sequence[Fallback], attempt: Callable[[Fallback], Attempt]) -> list[Attempt]:
    """Build the fallbacks in their order.

    If even the fallback for the least RAM or flash needs far more than the board has, only such fallbacks are built.
    """
    minimal = {step: attempt(step) for step in steps if step.goal and baseline.use.lacks}
    candidates = [baseline, *minimal.values()]
    is_taught = any(
        step.of_lessons for step in steps
    )  # Recomputation may need less RAM than the fallback for the least RAM.
    if not is_taught and any(
        _exceeds_by_far(candidate.use, candidate.goal) for candidate in candidates if candidate.goal
    ):
        return list(minimal.values())
    return [minimal[step] if step in minimal else attempt(step) for step in steps]


def _exceeds_by_far(use: Use, goal: str) -> bool:
    """Return whether a program built for the least RAM or flash needs far more of that memory than the board has."""
    usage = {"ram": (use.ram, use.ram_lacking), "flash": (use.flash, use.flash_lacking)}
    return any(
        goal == name and nbytes > RAM_ESTIMATE_MARGIN * (nbytes - lacks) for name, (nbytes, lacks) in usage.items()
    )


def _room_for_two(program: Program, use: Use, board: Board, options: CompileOptions) -> Room:
    """Return the RAM and flash that remain for the two-core form of a program."""
    max_flash = board.total_flash if options.max_flash is None else options.max_flash
    free_ram = memory_of_arena(board, options.place).room - MIN_STACK_BYTES - program.arena_size
    if options.max_ram is not None:
        free_ram = min(free_ram, options.max_ram - use.ram)
    return Room(free_ram, max_flash - use.flash, math.inf if options.optimize == "speed" else MAX_SHARED_RAM_RATIO)


def _on_two_cores(
    graph: Graph, whole: Program, board: Board, options: CompileOptions, build: Shared, room: Room
) -> Program:
    """Return the program for two cores: layers partitioned over both or, for throughput, a pipeline over two frames.

    `whole` is the program of one core. The constants may not grow where that would prevent copies to RAM at start-up.
    """
    forms = _forms(board, options)
    if not options.throughput:
        program = shared_program(graph, whole, forms, build, room)
        if copies_enough(whole, board, options) and not copies_enough(program, board, options):
            compact_forms = replace(forms, most_flash=1.0)
            program = shared_program(graph, whole, compact_forms, build, replace(room, flash=0))
        return program
    program, time = shared(graph, whole, forms, build, room)

    def lower(kernels: Mapping[Node, Kernel]) -> Program:
        return lowered(graph, board, options, kernels=kernels)

    limit = memory_of_arena(board, options.place).room
    limit = limit if room.ram is None else min(limit, whole.arena_size + max(room.ram, 0))
    return pipelined_program(graph, whole, forms, lower, limit, time) or program


def _forms(board: Board, options: CompileOptions) -> Forms:
    """Return the search for partitions of layers over the board's first two cores."""
    helper = board.helper
    assert helper is not None
    other_board = board.other_kind or board
    first = Side(board.features, cost_table(board.cpu, board.features), 1.0, helper.first_paces)
    second = Side(other_board.features, cost_table(other_board.cpu, other_board.features), helper.pace, helper.paces)
    return Forms(first, second, options.kernels, of_arena(board, memory_of_arena(board, options.place)))


def _as_asked(graph: Graph, board: Board, options: CompileOptions) -> Program:
    """Build the requested program."""
    return _with_codes(graph, board, options, must_save=False)


def _decoding(graph: Graph, board: Board, options: CompileOptions) -> Program:
    """Build the program with compressed weights wherever compression saves flash.

    Kernels of the requested goal are tried first, then those of `balanced` and `flash`. The flash limit is lifted for
    the choice of kernels, because that choice does not know the compressed sizes.
    """
    budget, attempts = Budget.of(options), list[Attempt]()
    for goal in dict.fromkeys((options.optimize, GOALS[0], "flash")):
        free = replace(options, optimize=goal, max_flash=None)
        program = _with_codes(graph, board, free, must_save=True)
        attempts.append(Attempt("", program, use_of(program, board, options)))
        if not budget.excess(attempts[-1].use):
            break
    return _best(attempts, budget)


def _with_codes(graph: Graph, board: Board, options: CompileOptions, *, must_save: bool) -> Program:
    """Build a program and compress its weights where that serves the goal, or where flash must be saved."""

    def coded(variant: Graph) -> tuple[Program, Codes]:
        program = _for_its_goal(variant, board, options, Streamings(board, is_streamed_in=options.stream_input))
        return program, codes_of(program, board, options, must_save=must_save)

    program, codes = coded(graph)
    tiled = in_tiles(graph, program, codes)
    whole = with_codes(program, codes, board, options, must_save=must_save)
    if tiled is None:
        return whole
    tiled_program = with_codes(*coded(tiled), board, options, must_save=must_save)
    return better_of([whole, tiled_program], board, options)


def _for_its_goal(graph: Graph, board: Board, options: CompileOptions, streamings: Streamings) -> Program:
    """Build the program for the goal of `options`, with layers in line-buffered groups where these serve the goal."""
    candidates: list[tuple[Program, Graph, Kernels]] = []
    farthest = ARENA_ESTIMATE_RATIOS[1] if options.optimize == "ram" else 1.0
    for variant, ram in _ways(graph, board, options, streamings):
        least_arena = min((program.arena_size for program, *_ in candidates), default=math.inf)
        if ram <= RAM_ESTIMATE_MARGIN * least_arena:
            kernels = Kernels(variant, board, options)
            program = lowered(variant, board, options, kernels=kernels.within())
            candidates.append((planned(program, most=farthest * least_arena), variant, kernels))
        if _work(streamings, [candidate_program for candidate_program, *_ in candidates]) > MAX_SEARCH_WORK:
            break
    program = _least(program for program, *_ in candidates)
    if options.optimize == GOALS[0] and not options.stream_input:
        return grouped(streamings, graph, candidates[0][2], options, program)
    if options.optimize != "ram":
        return program
    restart()
    balanced = _for_its_goal(
        graph, board, replace(options, optimize=GOALS[0]), streamings
    )  # It may happen to need less RAM.
    restart()
    close_candidates = [
        candidate for candidate in candidates if candidate[0].arena_size <= farthest * program.arena_size
    ]
    rivals = _Rivals(board, options, balanced, [candidate_program for candidate_program, *_ in close_candidates])
    for candidate_program, variant, kernels in close_candidates:
        if _work(streamings, rivals.programs) <= MAX_SEARCH_WORK:
            rivals.add(_faster(candidate_program, variant, kernels, board, options))
    return rivals.best()


MAX_SEARCH_WORK = 8_000
"""Limit of the search for the least RAM, in units of `_work`: about ten seconds; then the best program so far is used.
"""

WORK_PER_INSTRUCTION = 3
"""Time to lower and plan one instruction, relative to the time to evaluate one line-buffered group."""


def _work(streamings: Streamings, programs: Iterable[Program]) -> int:
    """Return the counted work of a search: evaluated line-buffered groups, and instructions lowered and planned."""
    return streamings.looked_at + WORK_PER_INSTRUCTION * sum(len(program.instrs) for program in programs)


class _Rivals:
    """Candidates for `ram` that need nearly the least RAM, none of them more than the `balanced` program."""

    def __init__(self, board: Board, options: CompileOptions, balanced: Program, programs: Iterable[Program]) -> None:
        self._board, self._options, self._budget = board, options, Budget.of(options)
        self._balanced = balanced
        self.programs = list(programs)

    def add(self, programs: Iterable[Program]) -> None:
        """Plan further programs, and stop planning each one where it can no longer be the best."""
        for program in programs:
            self.programs.append(planned(program, most=self._most_useful(program)))

    def best(self) -> Program:
        """Return the candidate of the best trade of time and RAM among those that fit and need nearly the least RAM."""
        programs = [*self.programs, self._balanced]
        max_arena = min(MAX_RELATIVE_RAM * min(program.arena_size for program in programs), self._balanced.arena_size)
        return min((program for program in programs if program.arena_size <= max_arena), key=self._rank)

    def _most_useful(self, program: Program) -> float:
        """Return the largest arena, in bytes, with which a program can still be the best candidate."""
        least_arena = min(rival.arena_size for rival in (*self.programs, self._balanced))
        max_arena = min(MAX_RELATIVE_RAM * least_arena, self._balanced.arena_size)
        for other in self.programs:
            excess, _ = self._rank(other)
            if not excess:
                times = (_time(other) / _time(program)) ** (1 / RAM_EXPONENT)
                max_arena = min(max_arena, math.ceil(other.arena_size * max(times, 1.0)) - 1)
        return max_arena

    def _rank(self, program: Program) -> tuple[float, float]:
        """Return the excess over the budget, then the trade of time and RAM: less is better."""
        trade = math.log(_time(program)) + RAM_EXPONENT * math.log(max(program.arena_size, 1))
        return self._budget.excess(use_of(program, self._board, self._options)), trade


def _time(program: Program) -> float:
    return max(program.instructions_estimate or 0.0, 1.0)


MAX_RELATIVE_RAM = 1 + 1 / 64
"""Largest ratio of the arena of a `ram` program to the least arena found: the excess may be spent on speed."""

RAM_EXPONENT = 16
"""Weight of RAM in the trade of time and RAM of `ram` programs: its last hundredth may cost a sixth of the time."""


ARENA_ESTIMATE_RATIOS = (1.0, 1.05, 1.15)
"""Assumed ratios of the RAM that kernels may use by estimate to the planned arena, as the planner overlaps buffers."""


def _faster(
    program: Program, variant: Graph, kernels: Kernels, board: Board, options: CompileOptions
) -> Iterator[Program]:
    """Yield programs with faster kernels, for each ARENA_ESTIMATE_RATIOS, where a program leaves RAM unused."""
    known = {program.instructions_estimate}
    for factor in ARENA_ESTIMATE_RATIOS:
        limits = Limits(board.total_ram, board.total_flash, taken=int(factor * program.arena_size))
        faster = lowered(variant, board, options, kernels=kernels.within(limits))
        if faster.instructions_estimate not in known:
            known.add(faster.instructions_estimate)
            yield faster


def _least(programs: Iterable[Program]) -> Program:
    """Return the program with the least RAM, and the fastest of several with the same RAM."""
    return min(programs, key=lambda program: (program.arena_size, program.instructions_estimate or 0.0))


def _for_goal(goal: str) -> Build:
    """Return a build function that replaces the goal of the options by `goal`."""
    return lambda graph, board, options: _as_asked(graph, board, replace(options, optimize=goal))


MAX_LIMIT_CORRECTIONS = 4
"""Largest number of kernel choices per budget, each with limits corrected by the error of the previous choice."""


def _within_limits(
    graph: Graph,
    board: Board,
    options: CompileOptions,
    measured: Callable[[Program, Board, CompileOptions], Use] = use_of,
) -> Program:
    """Build the program for the requested goal with kernels chosen within the budget.

    The choice of kernels knows neither the planner's overlaps nor the code of layers without a choice. Its limits are
    corrected by the difference between the budget and what the program uses, up to MAX_LIMIT_CORRECTIONS times.

    Args:
        graph: The optimized graph.
        board: The board that the program must fit.
        options: Options with the budget.
        measured: Returns the RAM and flash that a program uses.

    Returns:
        The fastest of the programs that fit, or the one with the least excess.
    """
    budget = Budget.of(options)
    limits = _limits(budget, board)
    streamings = Streamings(board, is_streamed_in=options.stream_input)
    variants = [(variant, Kernels(variant, board, options)) for variant, _ in _ways(graph, board, options, streamings)]
    tried: dict[Limits, Attempt] = {}
    while limits not in tried and len(tried) < MAX_LIMIT_CORRECTIONS:
        program = _least(
            planned(lowered(variant, board, options, kernels=kernels.within(limits))) for variant, kernels in variants
        )
        use = measured(program, board, options)
        tried[limits] = Attempt("", program, use)
        limits = Limits(
            limits.ram + (0 if budget.ram is None else budget.ram - use.ram),
            limits.flash + (0 if budget.flash is None else budget.flash - use.flash),
        )
    return _best(tried.values(), budget)


def _in_groups(graph: Graph, board: Board, options: CompileOptions) -> Program:
    """Build a program with as many line-buffered groups as the RAM limit requires, for the requested goal."""
    budget, streamings = Budget.of(options), Streamings(board, is_streamed_in=options.stream_input)
    limits, graph = _limits(budget, board), streamings.ordered(graph)
    attempts = []
    for plan in (plan for streaming in streamings.with_pairs(graph) for plan in _near(streaming, limits)):
        grouped_graph = with_groups(graph, plan, is_streamed_in=options.stream_input)
        kernels = Kernels(grouped_graph, board, options).within(limits)
        program = planned(lowered(grouped_graph, board, options, kernels=kernels))
        attempts.append(Attempt("", program, use_of(program, board, options)))
    return _best(attempts, budget)


def _near(streaming: Streaming, limits: Limits) -> list[list[Stretch]]:
    """Return the plans that may be the fastest within the limits, by their estimated RAM."""
    plans = list(streaming.plans())
    close_plans = [plan for plan in plans if ram_of(plan) <= RAM_ESTIMATE_MARGIN * limits.ram] or plans[:1] or [[]]
    return close_plans[-MAX_PLANNED_GROUPINGS:]


def _recomputed(graph: Graph, board: Board, options: CompileOptions) -> Program:
    """Build the program with as few recomputed results as the budget requires, or the one with the least excess."""
    budget, attempts = Budget.of(options), list[Attempt]()
    for recomputing_graph in recomputing(graph):
        program = _as_asked(recomputing_graph, board, options)
        attempts.append(Attempt("", program, use_of(program, board, options)))
        if not budget.excess(attempts[-1].use):
            break
    return _best(attempts, budget) if attempts else _as_asked(graph, board, options)


def _limits(budget: Budget, board: Board) -> Limits:
    """Return the limits of the budget, and the board's memory where the budget has no limit."""
    return Limits(budget.ram or board.total_ram, budget.flash or board.total_flash)


def _best(attempts: Iterable[Attempt], budget: Budget) -> Program:
    """Return the fastest program that fits the budget, or the one with the least excess."""
    return min(attempts, key=lambda a: (budget.excess(a.use), a.instructions)).program


FALLBACKS: tuple[Fallback, ...] = (
    Fallback("kernels chosen for the budget", ("ram", "flash"), _within_limits),
    Fallback("kernels chosen for the budget", ("flash",), partial(_within_limits, measured=hoped_use)),
    Fallback("layers in groups, row by row", ("ram",), _in_groups, in_rows=True),
    Fallback("a balance of time and memory", ("ram", "flash"), _for_goal(GOALS[0]), GOALS[0], in_rows=True),
    Fallback("results of a run computed again for gradients", ("ram",), _recomputed, of_lessons=True),
    Fallback("weights by a code", ("flash",), _decoding),
    Fallback("all for the least RAM", ("ram",), _for_goal("ram"), "ram", in_rows=True),
    Fallback("all for the least flash", ("flash",), _for_goal("flash"), "flash"),
)
"""Alternatives that are built if the requested program is too large."""


MAX_PLANNED_GROUPINGS = 4
"""Number of divisions into line-buffered groups that are planned: their RAM estimates are right within a few percent.
"""


def _ways(graph: Graph, board: Board, options: CompileOptions, streamings: Streamings) -> Iterator[tuple[Graph, int]]:
    """Yield variants of the graph with line-buffered groups and the estimated RAM of each, 0 for an ungrouped graph.

    Goals other than `ram` yield the graph as it is. Where the caller passes the input row by row, the first layers are
    a group for every goal.
    """
    is_streamed_in = options.stream_input
    if options.optimize != "ram" and not is_streamed_in:
        yield graph, 0
        return
    divided = heads_apart(graph) if options.optimize == "ram" else graph
    in_bodies = streamings.bodies_in_groups(divided) if options.optimize == "ram" else divided
    for ordered_graph in dict.fromkeys(streamings.ordered(variant) for variant in (in_bodies, divided, graph)):
        yield from _ways_by_rows(ordered_graph, options, streamings)


MAX_PATCHED_RAM_RATIO = 0.97
"""Spatial tiling is used only where it reduces the estimated RAM to at most this share."""


def _ways_by_rows(graph: Graph, options: CompileOptions, streamings: Streamings) -> Iterator[tuple[Graph, int]]:
    """Yield the grouped variants of one graph.

    For the least RAM, the group that needs most RAM is also tiled spatially, as long as tiling reduces the RAM.
    """
    plans = _plans(graph, options, streamings)
    in_groups = _by_plans(graph, plans, options)
    yield from in_groups
    if not in_groups or not options.stream_input:
        yield graph, 0
    while options.optimize == "ram" and plans and (patched := _patched(graph, plans[0])):
        previous_ram, graph, plans = ram_of(plans[0]), patched, _plans(patched, options, streamings)
        if not plans or ram_of(plans[0]) > MAX_PATCHED_RAM_RATIO * previous_ram:
            return
        yield from _by_plans(graph, plans, options)


def _plans(graph: Graph, options: CompileOptions, streamings: Streamings) -> list[list[Stretch]]:
    """Return the most promising divisions of a graph into stretches."""
    streaming = streamings.of(graph)
    if options.optimize == "ram":
        return list(islice(streaming.plans(), MAX_PLANNED_GROUPINGS))
    return sorted(streaming.plans(), key=streaming.product)[:1]


def _by_plans(graph: Graph, plans: Sequence[Sequence[Stretch]], options: CompileOptions) -> list[tuple[Graph, int]]:
    """Return the graphs with line-buffered groups and their estimated RAM, without plans that have no groups."""
    grouped_graphs = [(with_groups(graph, plan, is_streamed_in=options.stream_input), ram_of(plan)) for plan in plans]
    return [(grouped_graph, ram) for grouped_graph, ram in grouped_graphs if grouped_graph is not graph]


def _patched(graph: Graph, plan: Sequence[Stretch]) -> Graph | None:
    """Return the graph with spatial tiling of the group that needs most RAM, or None if the group cannot be tiled."""
    busiest = max(plan, key=lambda stretch: stretch.ram)
    return in_patches(graph, graph.nodes[busiest.first : busiest.end]) if busiest.op else None
