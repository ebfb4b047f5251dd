# SPDX-License-Identifier: Apache-2.0
"""The ways to make a program of a graph: as asked for, or, within a budget, the cheapest of several that fits."""

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
    MISJUDGED_CODE,
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
from mcugen.search.channel_tiling import LEAST_SAVED, in_portions
from mcugen.search.contention import of_arena
from mcugen.search.core_assignment import MOST_RAM, STACK, Room, shared, shared_program
from mcugen.search.core_assignment import Build as Shared
from mcugen.search.core_partition import Forms, Side
from mcugen.search.frame_pipeline import pipelined_program
from mcugen.search.head_splitting import heads_apart
from mcugen.search.line_buffer_groups import Stretch, each_by_rows, ram_of, with_groups
from mcugen.search.line_buffer_tradeoff import grouped
from mcugen.search.line_buffering import Streaming, Streamings
from mcugen.search.rematerialization import recomputing
from mcugen.search.spatial_tiling import in_patches
from mcugen.search.weight_decompression import SURELY_BETTER, Codes, better_of, codes_of, in_tiles, with_codes
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
IN_RAM = "kernels chosen for weights in RAM"
IN_PART = "kernels chosen for some weights in RAM"

SURELY = 0.97
"""How many times the cycles that were estimated kernels chosen for weights in RAM take at most: estimates err."""

NEARBY = 1.1
"""Estimates of the RAM of groups may be so much too high."""

Build = Callable[[Graph, Board, CompileOptions], Program]

Measure = Callable[[Program], int | None]
"""Bytes of a program's code as it is built; None where it cannot be."""


@dataclass(frozen=True)
class Fallback:
    """A way to make a program that keeps to a budget; it may help with RAM or flash, as `serves` says."""

    name: str
    serves: tuple[str, ...]
    build: Build
    goal: str = ""
    """Another goal than the one asked for, if it is just that."""
    in_rows: bool = False
    """Whether layers may be computed row by row."""
    of_lessons: bool = False
    """Whether it is for models that learn."""


def build_program(
    graph: Graph, board: Board, options: CompileOptions | None = None, code_of: Measure | None = None
) -> Fit:
    """Lowers an optimized graph and plans its memory, within the budget of `options` and what the board has.

    If the program as asked for exceeds that, of the FALLBACKS that fit the one with the fewest instructions is taken;
    if none does for sure, or at a price, the fastest that fits as `code_of` builds it. DoesNotFitError: how near.
    """
    options = options or CompileOptions()
    budget, graph = Budget.of(options), each_by_rows(graph, options.by_rows, is_streamed_in=options.stream_input)

    def by(way: Graph, kernels: Mapping[Node, Kernel], enough: int) -> Program:
        restart()
        return planned(lowered(way, board, options, kernels=kernels), enough)

    def attempt(name: str, build: Build, goal: str, within: CompileOptions, of: Graph = graph) -> Attempt:
        restart()
        use = use_of(program := build(of, board, within), board, options)
        if options.cores > 1:
            program = _on_two_cores(graph, program, board, options, by, _room_for_two(program, use, board, within))
            use = use_of(program, board, options)
        made = Attempt(name, program, use, goal)
        return replace(made, copies=copies_for(made, board, options))

    def serving(narrow: Budget) -> list[Attempt]:
        within = replace(options, max_ram=narrow.ram, max_flash=narrow.flash)
        steps = [step for step in FALLBACKS if set(step.serves) & set(narrow.limits)]
        steps = [step for step in steps if step.goal != options.optimize]  # that is what was asked for
        steps = [step for step in steps if graph.lesson is not None or not step.of_lessons]
        if options.weights_reader:
            steps = [step for step in steps if not step.in_rows]
        return _made(asked, steps, lambda step: attempt(step.name, step.build, step.goal, within))

    def balanced() -> list[Attempt]:
        steps = [step for step in FALLBACKS if step.goal == GOALS[0] != options.optimize]
        return [attempt(step.name, step.build, step.goal, options) for step in steps]

    asked = taken = attempt(AS_ASKED, _as_asked, options.optimize, options)
    attempts = [asked]
    if budget.excess(asked.use):
        attempts += serving(budget.narrowed(asked.use))
        taken = cheapest(attempts, budget, board, built=partial(_built, board=board, options=options, code_of=code_of))
    if (within := priced_copies(taken, board, options)) is not None:
        priced = attempt(IN_PART, _as_asked, options.optimize, within)
        attempts += [priced] if priced.time < SURELY * taken.time else []
    if within is not None or waits_most(taken, board, options):  # its arena may leave no room for copies of weights
        narrow = beside_copies(taken, board, options)
        attempts += serving(narrow) if narrow else balanced()
        taken = cheapest([*attempts, taken], budget, board)
    if (within := lying_in_ram(taken, board, options)) is not None:
        taken = _chosen_again(taken, attempt, within, board, options)
        attempts.append(taken)
    if options.optimize == "speed" and taken.program.arena_size > memory_of_arena(board, options.place).room:
        attempts += balanced() if all(each.goal != GOALS[0] for each in attempts) else []  # may lie in faster memory
        attempts = [staged(each, board, options) for each in [*attempts, taken]]
        taken = cheapest(attempts, budget, board, lambda each: _placed_time(each, board, options))
    else:
        taken = staged(taken, board, options)
    taken = _divided(graph, taken, asked, attempt, board, options)
    return Fit(budget, taken, asked, _layer_by_layer(graph, taken.program, board, options))


def _built(made: Attempt, board: Board, options: CompileOptions, code_of: Measure | None) -> Attempt:
    """With the code that it has, where it may fit by that, as a compiler tells; else with as much as is likely."""
    budget, likely = Budget.of(options), likely_code(made.program, board)
    if budget.excess(use_of(made.program, board, options, round(MISJUDGED_CODE * likely))):
        return replace(made, use=use_of(made.program, board, options, likely))
    code = None if code_of is None else code_of(made.program)
    return made if code is None else replace(made, built=code, use=use_of(made.program, board, options, code))


def _divided(
    graph: Graph, taken: Attempt, asked: Attempt, attempt: Callable[..., Attempt], board: Board, options: CompileOptions
) -> Attempt:
    """With layers in portions that a cache holds, instead of what was `taken` where that is a better trade of time and
    memory, or faster if speed is the goal: then `balanced` kernels, too, as they read weights less often.
    """
    budget, whole = Budget.of(options), taken
    if budget.excess(asked.use) or options.optimize not in (GOALS[0], "speed"):
        return taken
    ways: list[tuple[Build, str]] = [(_as_asked, options.optimize)]
    if options.optimize == "speed" and taken.waits > LEAST_SAVED * taken.instructions:
        ways.append((_for_goal(GOALS[0]), GOALS[0]))
    copying = options if options.optimize == "speed" or asked.copies is None else asked.copies.options
    for build, goal in ways:
        base = asked.program if goal == asked.goal else build(graph, board, options)
        if (divided := in_portions(graph, base, board, copying)) is not None:
            made = staged(attempt(AS_ASKED, build, goal, options, divided), board, options)
            fits = not budget.excess(made.use)
            may_be_asked_for = taken is whole and goal != asked.goal  # as `balanced`, which must not be the faster one
            taken = made if fits and _is_better(made, taken, may_be_asked_for, board, options) else taken
    return taken


def _is_better(made: Attempt, taken: Attempt, at_all: bool, board: Board, options: CompileOptions) -> bool:
    """Whether it takes surely, or `at_all`, less of what the goal counts."""
    times = [_placed_time(attempt, board, options) for attempt in (made, taken)]
    if options.optimize == "speed":
        return times[0] < (1.0 if at_all else SURELY) * times[1]
    trades = [_trade(attempt, time) for attempt, time in zip((made, taken), times, strict=True)]
    saves_enough = times[0] <= times[1] or taken.use.ram > ENOUGH * board.total_ram  # else RAM serves nobody
    return saves_enough and trades[0] < trades[1] + math.log(SURELY_BETTER)


def _trade(attempt: Attempt, time: float) -> float:
    """How `balanced` sees all that an attempt takes, calls and copies too: less is better."""
    ram = attempt.copies.ram if attempt.copies else attempt.use.ram
    return Cost(time, ram, attempt.use.flash).rank(GOALS[0])


def _layer_by_layer(graph: Graph, program: Program, board: Board, options: CompileOptions) -> float | None:
    """Instructions, by estimate, of a program with layers row by row if there were none; None where there are none."""
    if all(instr.control is not Control.STREAM for instr in program.instrs):
        return None
    return lowered(graph, board, replace(options, stream_input=False)).instructions_estimate


def _chosen_again(
    taken: Attempt,
    attempt: Callable[[str, Build, str, CompileOptions], Attempt],
    within: CompileOptions,
    board: Board,
    options: CompileOptions,
) -> Attempt:
    """With kernels chosen `within` options by which start-up copies weights, as many bytes of them as leave room for
    that; what was `taken` before where these are not surely faster.
    """
    budget = Budget.of(options)
    again = attempt(AS_ASKED, _as_asked, options.optimize, within)
    narrow = budget.narrowed(again.use) if budget.excess(again.use) else beside_copies(again, board, options)
    if narrow is not None:
        within = replace(within, max_ram=narrow.ram, max_flash=narrow.flash)
        again = attempt(IN_RAM, _within_limits, "", within)
    most = SURELY * placed_cycles(taken, board, options)
    is_faster = not budget.excess(again.use) and placed_cycles(again, board, options) < most
    return again if is_faster else taken


def _placed_time(attempt: Attempt, board: Board, options: CompileOptions) -> float:
    """Of an attempt in the memories where it would lie, with its copies."""
    places = (attempt.copies.options if attempt.copies else options).place
    return attempt.instructions + sum(waits_when_placed(attempt.program, board, places))


def placed_cycles(attempt: Attempt, board: Board, options: CompileOptions) -> float:
    """Instructions of an attempt in the memories where it would lie, with its copies, and waits for these: as cycles of
    the core where they are known.
    """
    stalls = (attempt.program.cycles_estimate or attempt.instructions) - attempt.instructions
    return _placed_time(attempt, board, options) + stalls


def _made(asked: Attempt, steps: Sequence[Fallback], attempt: Callable[[Fallback], Attempt]) -> list[Attempt]:
    """Programs by these steps, in their order; where the board has far too little for the least that there is, only
    that.
    """
    leasts = {step: attempt(step) for step in steps if step.goal and asked.use.lacks}
    found = [asked, *leasts.values()]
    is_taught = any(step.of_lessons for step in steps)  # may take less than what is made for the least RAM
    if not is_taught and any(_exceeds_by_far(each.use, each.goal) for each in found if each.goal):
        return list(leasts.values())
    return [leasts[step] if step in leasts else attempt(step) for step in steps]


def _exceeds_by_far(use: Use, goal: str) -> bool:
    """Whether what is made for the least of something takes far more of it than the board has."""
    taken = {"ram": (use.ram, use.ram_lacking), "flash": (use.flash, use.flash_lacking)}
    return any(goal == name and nbytes > NEARBY * (nbytes - lacks) for name, (nbytes, lacks) in taken.items())


def _room_for_two(program: Program, use: Use, board: Board, options: CompileOptions) -> Room:
    """What a program leaves to its form for two cores."""
    most = board.total_flash if options.max_flash is None else options.max_flash
    left = memory_of_arena(board, options.place).room - STACK - program.arena_size
    if options.max_ram is not None:
        left = min(left, options.max_ram - use.ram)
    return Room(left, most - use.flash, math.inf if options.optimize == "speed" else MOST_RAM)


def _on_two_cores(
    graph: Graph, whole: Program, board: Board, options: CompileOptions, build: Shared, room: Room
) -> Program:
    """Layers shared, or, for throughput, parts of two frames at once, if that takes less time a frame.

    With no more constants than one core has, where start-up could not copy more to RAM.
    """
    forms = _forms(board, options)
    if not options.throughput:
        program = shared_program(graph, whole, forms, build, room)
        if copies_enough(whole, board, options) and not copies_enough(program, board, options):
            least = replace(forms, most_flash=1.0)
            program = shared_program(graph, whole, least, build, replace(room, flash=0))
        return program
    program, time = shared(graph, whole, forms, build, room)

    def lower(kernels: Mapping[Node, Kernel]) -> Program:
        return lowered(graph, board, options, kernels=kernels)

    limit = memory_of_arena(board, options.place).room
    limit = limit if room.ram is None else min(limit, whole.arena_size + max(room.ram, 0))
    return pipelined_program(graph, whole, forms, lower, limit, time) or program


def _forms(board: Board, options: CompileOptions) -> Forms:
    """Of layers that the board's first two cores share."""
    helper = board.helper
    assert helper is not None
    other = board.other_kind or board
    first = Side(board.features, cost_table(board.cpu, board.features), 1.0, helper.first_paces)
    second = Side(other.features, cost_table(other.cpu, other.features), helper.pace, helper.paces)
    return Forms(first, second, options.kernels, of_arena(board, memory_of_arena(board, options.place)))


def _as_asked(graph: Graph, board: Board, options: CompileOptions) -> Program:
    return _with_codes(graph, board, options, must_save=False)


def _decoding(graph: Graph, board: Board, options: CompileOptions) -> Program:
    """With weights by a code wherever that is shorter: kernels of the goal as asked, or of one that takes less flash.

    What kernels are chosen by knows nothing of codes: it has no limit.
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
    """For its goal, with weights decoded before their layers where that serves it, or saves flash that `must` be."""

    def coded(way: Graph) -> tuple[Program, Codes]:
        made = _for_its_goal(way, board, options, Streamings(board, is_streamed_in=options.stream_input))
        return made, codes_of(made, board, options, must_save=must_save)

    made, codes = coded(graph)
    tiled = in_tiles(graph, made, codes)
    whole = with_codes(made, codes, board, options, must_save=must_save)
    if tiled is None:
        return whole
    other = with_codes(*coded(tiled), board, options, must_save=must_save)
    return better_of([whole, other], board, options)


def _for_its_goal(graph: Graph, board: Board, options: CompileOptions, streamings: Streamings) -> Program:
    found: list[tuple[Program, Graph, Kernels]] = []
    farthest = MISJUDGED[1] if options.optimize == "ram" else 1.0
    for way, ram in _ways(graph, board, options, streamings):
        least = min((program.arena_size for program, *_ in found), default=math.inf)
        if ram <= NEARBY * least:
            kernels = Kernels(way, board, options)
            program = lowered(way, board, options, kernels=kernels.within())
            found.append((planned(program, most=farthest * least), way, kernels))
        if _work(streamings, [made for made, *_ in found]) > MOST_WORK:
            break
    program = _least(program for program, *_ in found)
    if options.optimize == GOALS[0] and not options.stream_input:
        return grouped(streamings, graph, found[0][2], options, program)
    if options.optimize != "ram":
        return program
    restart()
    balanced = _for_its_goal(graph, board, replace(options, optimize=GOALS[0]), streamings)  # by chance it takes less
    restart()
    near = [each for each in found if each[0].arena_size <= farthest * program.arena_size]
    rivals = _Rivals(board, options, balanced, [made for made, *_ in near])
    for made, way, kernels in near:
        if _work(streamings, rivals.programs) <= MOST_WORK:
            rivals.add(_faster(made, way, kernels, board, options))
    return rivals.best()


MOST_WORK = 8_000
"""What is tried for the least RAM, by count: some ten seconds. Then the best so far is taken."""

PER_INSTRUCTION = 3
"""How many times as long it takes to lower and to plan one as to see what a group of layers takes."""


def _work(streamings: Streamings, programs: Iterable[Program]) -> int:
    """What it took to find programs: groups of layers that were looked at, and their instructions."""
    return streamings.looked_at + PER_INSTRUCTION * sum(len(program.instrs) for program in programs)


class _Rivals:
    """Programs with nearly the least RAM, of which none takes more than `balanced`."""

    def __init__(self, board: Board, options: CompileOptions, balanced: Program, programs: Iterable[Program]) -> None:
        self._board, self._options, self._budget = board, options, Budget.of(options)
        self._balanced = balanced
        self.programs = list(programs)

    def add(self, programs: Iterable[Program]) -> None:
        """Plans more of them, as far as they could be the best."""
        for program in programs:
            self.programs.append(planned(program, most=self._most_useful(program)))

    def best(self) -> Program:
        """What fits, and of that the best trade of time and RAM."""
        programs = [*self.programs, self._balanced]
        most = min(NEARLY * min(made.arena_size for made in programs), self._balanced.arena_size)
        return min((made for made in programs if made.arena_size <= most), key=self._rank)

    def _most_useful(self, program: Program) -> float:
        """With more bytes of RAM than that, another one is nearer to the least, or a trade as good with no more RAM."""
        least = min(made.arena_size for made in (*self.programs, self._balanced))
        most = min(NEARLY * least, self._balanced.arena_size)
        for other in self.programs:
            excess, _ = self._rank(other)
            if not excess:
                times = (_time(other) / _time(program)) ** (1 / LAST_BYTES)
                most = min(most, math.ceil(other.arena_size * max(times, 1.0)) - 1)
        return most

    def _rank(self, program: Program) -> tuple[float, float]:
        trade = math.log(_time(program)) + LAST_BYTES * math.log(max(program.arena_size, 1))
        return self._budget.excess(use_of(program, self._board, self._options)), trade


def _time(program: Program) -> float:
    return max(program.instructions_estimate or 0.0, 1.0)


NEARLY = 1 + 1 / 64
"""How many times the least RAM `ram` may take for time's sake."""

LAST_BYTES = 16
"""RAM counts so many times then: its last hundredth may cost a sixth of the time."""


MISJUDGED = (1.0, 1.05, 1.15)
"""How many times the RAM of a program its layers may be estimated to take."""


def _faster(program: Program, way: Graph, kernels: Kernels, board: Board, options: CompileOptions) -> Iterator[Program]:
    """Programs with faster kernels where a program leaves RAM unused, as far as that can be estimated."""
    known = {program.instructions_estimate}
    for factor in MISJUDGED:
        limits = Limits(board.total_ram, board.total_flash, taken=int(factor * program.arena_size))
        faster = lowered(way, board, options, kernels=kernels.within(limits))
        if faster.instructions_estimate not in known:
            known.add(faster.instructions_estimate)
            yield faster


def _least(programs: Iterable[Program]) -> Program:
    """Of those with the least RAM the fastest, the first of several."""
    return min(programs, key=lambda program: (program.arena_size, program.instructions_estimate or 0.0))


def _for_goal(goal: str) -> Build:
    """As asked, but made for another goal."""
    return lambda graph, board, options: _as_asked(graph, board, replace(options, optimize=goal))


CORRECTIONS = 4
"""How often kernels are chosen anew, with what the choice misjudged."""


def _within_limits(
    graph: Graph,
    board: Board,
    options: CompileOptions,
    measured: Callable[[Program, Board, CompileOptions], Use] = use_of,
) -> Program:
    """The goal as asked, but kernels chosen within the budget, by what a program takes as `measured`.

    The choice knows nothing of the planner's tricks, nor of code without a choice: by what it misjudged, its limits
    are moved. Of what that gives, the best is taken: what fits with the fewest instructions, or fits least badly.
    """
    budget = Budget.of(options)
    limits = _limits(budget, board)
    streamings = Streamings(board, is_streamed_in=options.stream_input)
    ways = [(way, Kernels(way, board, options)) for way, _ in _ways(graph, board, options, streamings)]
    tried: dict[Limits, Attempt] = {}
    while limits not in tried and len(tried) < CORRECTIONS:
        program = _least(planned(lowered(way, board, options, kernels=kernels.within(limits))) for way, kernels in ways)
        use = measured(program, board, options)
        tried[limits] = Attempt("", program, use)
        limits = Limits(
            limits.ram + (0 if budget.ram is None else budget.ram - use.ram),
            limits.flash + (0 if budget.flash is None else budget.flash - use.flash),
        )
    return _best(tried.values(), budget)


def _in_groups(graph: Graph, board: Board, options: CompileOptions) -> Program:
    """As many layers in groups as it takes, with kernels for the goal as asked."""
    budget, streamings = Budget.of(options), Streamings(board, is_streamed_in=options.stream_input)
    limits, graph = _limits(budget, board), streamings.ordered(graph)
    attempts = []
    for plan in (plan for streaming in streamings.with_pairs(graph) for plan in _near(streaming, limits)):
        way = with_groups(graph, plan, is_streamed_in=options.stream_input)
        kernels = Kernels(way, board, options).within(limits)
        program = planned(lowered(way, board, options, kernels=kernels))
        attempts.append(Attempt("", program, use_of(program, board, options)))
    return _best(attempts, budget)


def _near(streaming: Streaming, limits: Limits) -> list[list[Stretch]]:
    """The plans that may be the fastest within limits."""
    plans = list(streaming.plans())
    near = [plan for plan in plans if ram_of(plan) <= NEARBY * limits.ram] or plans[:1] or [[]]
    return near[-MOST_WAYS:]


def _recomputed(graph: Graph, board: Board, options: CompileOptions) -> Program:
    """As asked, with as little computed twice as it takes, or else the least RAM of these ways."""
    budget, attempts = Budget.of(options), list[Attempt]()
    for way in recomputing(graph):
        program = _as_asked(way, board, options)
        attempts.append(Attempt("", program, use_of(program, board, options)))
        if not budget.excess(attempts[-1].use):
            break
    return _best(attempts, budget) if attempts else _as_asked(graph, board, options)


def _limits(budget: Budget, board: Board) -> Limits:
    """Of the budget, where it has some, else of the board."""
    return Limits(budget.ram or board.total_ram, budget.flash or board.total_flash)


def _best(attempts: Iterable[Attempt], budget: Budget) -> Program:
    """What fits with the fewest instructions, or fits least badly."""
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
"""What is tried where a program as asked for is too large."""


MOST_WAYS = 4
"""Of grouping layers, that are planned: estimates of their RAM are right within some percent."""


def _ways(graph: Graph, board: Board, options: CompileOptions, streamings: Streamings) -> Iterator[tuple[Graph, int]]:
    """The graph; for the least RAM with layers in groups, in the ways that promise most, with estimates of that.

    Where the caller hands over the input row by row, the first layers are a group in any case.
    """
    is_streamed_in = options.stream_input
    if options.optimize != "ram" and not is_streamed_in:
        yield graph, 0
        return
    divided = heads_apart(graph) if options.optimize == "ram" else graph
    in_bodies = streamings.bodies_in_groups(divided) if options.optimize == "ram" else divided
    for each in dict.fromkeys(streamings.ordered(way) for way in (in_bodies, divided, graph)):
        yield from _ways_by_rows(each, options, streamings)


PATCHES_GAIN = 0.97
"""Layers are computed in patches where by estimate a program takes at most so many times the RAM."""


def _ways_by_rows(graph: Graph, options: CompileOptions, streamings: Streamings) -> Iterator[tuple[Graph, int]]:
    """Those of one graph; for the least RAM also with what needs most of it in patches, as long as that helps."""
    plans = _plans(graph, options, streamings)
    in_groups = _by_plans(graph, plans, options)
    yield from in_groups
    if not in_groups or not options.stream_input:
        yield graph, 0
    while options.optimize == "ram" and plans and (patched := _patched(graph, plans[0])):
        before, graph, plans = ram_of(plans[0]), patched, _plans(patched, options, streamings)
        if not plans or ram_of(plans[0]) > PATCHES_GAIN * before:
            return
        yield from _by_plans(graph, plans, options)


def _plans(graph: Graph, options: CompileOptions, streamings: Streamings) -> list[list[Stretch]]:
    """Those that promise most."""
    streaming = streamings.of(graph)
    if options.optimize == "ram":
        return list(islice(streaming.plans(), MOST_WAYS))
    return sorted(streaming.plans(), key=streaming.product)[:1]


def _by_plans(graph: Graph, plans: Sequence[Sequence[Stretch]], options: CompileOptions) -> list[tuple[Graph, int]]:
    """The graph with groups by those plans that have any."""
    ways = [(with_groups(graph, plan, is_streamed_in=options.stream_input), ram_of(plan)) for plan in plans]
    return [(way, ram) for way, ram in ways if way is not graph]


def _patched(graph: Graph, plan: Sequence[Stretch]) -> Graph | None:
    """With the busiest group in patches, if there is such a form of it."""
    busiest = max(plan, key=lambda stretch: stretch.ram)
    return in_patches(graph, graph.nodes[busiest.first : busiest.end]) if busiest.op else None
