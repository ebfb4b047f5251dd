# SPDX-License-Identifier: Apache-2.0
"""Layers in groups, row by row, for `balanced`: where that is a much better trade of instructions for RAM."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from mcugen.backends.cpu.pipeline import Kernels, lowered, planned
from mcugen.core.board import Board
from mcugen.core.options import GOALS, OWN, CompileOptions
from mcugen.hir.graph import Graph
from mcugen.kernels.choose import ENOUGH, MOST_SLOWDOWN, SURROUNDINGS, Cost
from mcugen.lir.program import Program
from mcugen.memory.place import copied_bytes, memory_of_arena
from mcugen.search.budget import Attempt, use_of, waits_when_placed
from mcugen.search.line_buffer_groups import Stretch, ram_of, with_groups
from mcugen.search.line_buffering import Streamings
from mcugen.search.weight_staging import copies_for, trades_waits

LEAST_GAIN = 0.85
"""Instructions · RAM · flash of groups are at most so many times those of layers one by one: for less, layers stay
apart, in code and in reports."""

MOST_PLANS = 2
"""That are made into programs, of those that promise most."""


def grouped(streamings: Streamings, graph: Graph, kernels: Kernels, options: CompileOptions, plain: Program) -> Program:
    """The program with layers in groups if that reaches LEAST_GAIN, else `plain`, where they run one by one by some of
    the `kernels`.

    Where there is room for that, groups take at most MOST_SLOWDOWN times its instructions, and those of the fastest.
    """
    board = kernels.board
    if options.weights_reader or options.cores > 1 or options.kernels or options.family != OWN:
        return plain  # they are about layers
    most = LEAST_GAIN * (plain.arena_size + SURROUNDINGS[0]) - SURROUNDINGS[0]
    if most <= 0:  # little RAM in any case
        return plain
    streaming = streamings.of(streamings.ordered(graph))
    if streaming.borders > most or streaming.least > most:
        return plain
    waits = trades_waits(plain, board, options)
    spills = plain.arena_size > memory_of_arena(board, options.place).room  # into a slower memory, which counts
    before, copied = _cost(plain, board, options, waits=waits, spills=spills)
    has_room = before.ram <= ENOUGH * board.total_ram and not spills
    slowest = math.inf
    if has_room:
        slowest = min(MOST_SLOWDOWN * (plain.instructions_estimate or 0.0), kernels.slowest())
    best, least = plain, LEAST_GAIN
    for plan in _plans(streamings, streaming.graph, most):
        program = lowered(with_groups(streaming.graph, plan), board, options)
        after, _ = _cost(program, board, options)
        promised = replace(after, ram=ram_of(plan))
        if after.instructions > slowest or _trade(promised, before) >= least:
            continue
        after, copied_too = _cost(planned(program), board, options, waits=waits, spills=spills)
        found = _trade(*(replace(cost, ram=cost.ram - min(copied, copied_too)) for cost in (after, before)))
        if found <= least:
            best, least = program, found
    return best


def _plans(streamings: Streamings, graph: Graph, most: float) -> Iterator[list[Stretch]]:
    """Those that promise most: MOST_PLANS, and one where two rows are made at once, if kernels are faster at that."""
    for streaming, count in zip(streamings.with_pairs(graph), (MOST_PLANS, 1), strict=False):
        yield from sorted(streaming.plans(most), key=streaming.product)[:count]


def _cost(
    program: Program, board: Board, options: CompileOptions, *, waits: bool = False, spills: bool = False
) -> tuple[Cost, int]:
    """Of a program; once it is planned, with its `waits` for flash, and with copies of that, of which start-up makes so
    many bytes, and with those for an arena that `spills`.
    """
    use = use_of(program, board, options)
    instructions = program.instructions_estimate or 0.0
    if spills:
        instructions += waits_when_placed(program, board, options.place)[1]
    if not waits:
        return Cost(instructions, program.arena_size, use.flash), 0
    copies = copies_for(Attempt("", program, use), board, options)
    copied = copied_bytes(program, board, copies.options.place)
    return Cost(instructions + copies.waits, copies.ram, use.flash), copied


def _trade(after: Cost, before: Cost) -> float:
    """How many times as much `balanced` sees in it."""
    return math.exp(after.rank(GOALS[0]) - before.rank(GOALS[0]))
