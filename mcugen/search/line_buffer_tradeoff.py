# SPDX-License-Identifier: Apache-2.0
"""Line-buffered groups for `balanced`, where they trade few instructions for much RAM."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from mcugen.backends.cpu.pipeline import Kernels, lowered, plan_program
from mcugen.core.board import Board
from mcugen.core.options import GOALS, OWN_FAMILIES, CompileOptions
from mcugen.hir.graph import Graph
from mcugen.kernels.choose import RANK_OFFSET_BYTES, Cost
from mcugen.lir.program import Program
from mcugen.memory.place import copied_bytes, memory_of_arena
from mcugen.search.budget import placed_stall_cycles, use_of
from mcugen.search.line_buffer_groups import GraphSegment, plan_ram_bytes, with_groups
from mcugen.search.line_buffering import Streamings
from mcugen.search.metrics import Use
from mcugen.search.objective import TOLERANCES
from mcugen.search.plan import BuiltProgram
from mcugen.search.problem import SearchProblem
from mcugen.search.weight_staging import copies_for, may_trade_stalls_for_ram

GROUPED = "layers in groups, row by row"
"""Name, in notes, errors and the trace, of a program with line-buffered groups: layers computed together row by row."""

LINE_BUFFER_FUSION = "line-buffer fusion"
"""Name of this kind of decision in the trace of the search."""

MAX_BUILT_PLANS = 2
"""Number of divisions into line-buffered groups, the most promising by estimate, that are lowered and evaluated."""


def with_useful_groups(problem: SearchProblem, streamings: Streamings, kernels: Kernels, plain: Program) -> Program:
    """Return the program for `balanced` with line-buffered groups if these save enough, else `plain`.

    A line-buffered group consists of layers that are computed together row by row. Groups save enough if time · RAM ·
    flash is at most Tolerances.max_grouped_trade_ratio times that of `plain`. If RAM is ample, groups may take at most
    Tolerances.max_balanced_slowdown times the instructions of `plain`. They must also keep to the limit of `balanced`
    on this board (Kernels.slowest).

    Args:
        problem: The graph, board and options.
        streamings: Caches the searches for line-buffered groups.
        kernels: Selects the kernels.
        plain: The planned program without groups.
    """
    board, options = problem.board, problem.options
    if options.weights_reader or options.cores > 1 or options.kernels or options.family not in OWN_FAMILIES:
        return plain  # Those options address single layers.
    max_ram = TOLERANCES.max_grouped_trade_ratio * (plain.arena_size + RANK_OFFSET_BYTES[0]) - RANK_OFFSET_BYTES[0]
    if max_ram <= 0:  # The program takes little RAM in any case.
        return plain
    streaming = streamings.of(streamings.ordered(problem.graph))
    if streaming.borders > max_ram or streaming.least > max_ram:
        return plain
    waits = may_trade_stalls_for_ram(plain, board, options)
    spills = plain.arena_size > memory_of_arena(board, options.place).room  # It then lies in a slower memory too.
    plain_cost, copied = _cost(plain, board, options, waits=waits, spills=spills)
    has_room = plain_cost.ram <= TOLERANCES.ample_memory_fraction * board.total_ram and not spills
    slowest = math.inf
    if has_room:
        slowest = min(TOLERANCES.max_balanced_slowdown * (plain.instructions_estimate or 0.0), kernels.slowest())
    best, best_trade = plain, TOLERANCES.max_grouped_trade_ratio
    for plan in _plans(streamings, streaming.graph, max_ram):
        program = lowered(with_groups(streaming.graph, plan), board, options)
        plan_cost, _ = _cost(program, board, options)
        promised = replace(plan_cost, ram=plan_ram_bytes(plan))
        if plan_cost.instructions > slowest:
            limit = f"{slowest:,.0f} instructions are the limit for `balanced` where RAM is ample"
            _note(problem, program, promised, f"takes {plan_cost.instructions:,.0f} instructions; {limit}")
            continue
        if (trade := _trade(promised, plain_cost)) >= best_trade:
            _note(problem, program, promised, _no_trade(trade, best_trade))
            continue
        plan_cost, copied_too = _cost(plan_program(program), board, options, waits=waits, spills=spills)
        trade = _trade(*(replace(cost, ram=cost.ram - min(copied, copied_too)) for cost in (plan_cost, plain_cost)))
        if trade <= best_trade:
            best, best_trade = program, trade
        else:
            _note(problem, program, plan_cost, _no_trade(trade, best_trade))
    return best


def _no_trade(trade: float, max_trade: float) -> str:
    """Return why line-buffered groups are rejected, by the ratio of the `balanced` products."""
    return f"time * RAM * flash is {trade:.2f} of that with layers one by one; less than {max_trade:.2f} is needed"


def _note(problem: SearchProblem, program: Program, cost: Cost, reason: str) -> None:
    """Record a rejected program with line-buffered groups in the trace."""
    if problem.trace is not None:
        built = BuiltProgram(program, problem.changes)
        candidate = problem.candidate(GROUPED, built, use=Use(cost.ram, cost.flash))
        problem.recorded(candidate, LINE_BUFFER_FUSION, f"Rejected: {reason}.")


def _plans(streamings: Streamings, graph: Graph, max_ram: float) -> Iterator[list[GraphSegment]]:
    """Yield the MAX_BUILT_PLANS most promising plans, and one that computes two rows at once if that is faster."""
    for streaming, count in zip(streamings.with_pairs(graph), (MAX_BUILT_PLANS, 1), strict=False):
        yield from sorted(streaming.plans(max_ram), key=streaming.product)[:count]


def _cost(
    program: Program, board: Board, options: CompileOptions, *, waits: bool = False, spills: bool = False
) -> tuple[Cost, int]:
    """Return the cost of a program, and the bytes that start-up copies.

    Args:
        program: A program, planned if `waits` or `spills` is set.
        board: The board that it runs on.
        options: Options with the placement.
        waits: Whether stall cycles of flash count, and copies of constants that avoid them.
        spills: Whether stall cycles of an arena in slower memory count.
    """
    use = use_of(program, board, options)
    instructions = program.instructions_estimate or 0.0
    if spills:
        instructions += placed_stall_cycles(program, board, options.place)[1]
    if not waits:
        return Cost(instructions, program.arena_size, use.flash), 0
    copies = copies_for(program, board, options)
    copied = copied_bytes(program, board, copies.options.place)
    return Cost(instructions + copies.waits, copies.ram, use.flash), copied


def _trade(cost: Cost, baseline: Cost) -> float:
    """Return the ratio of the `balanced` products (time · RAM · flash) of two costs: less is better."""
    return math.exp(cost.rank(GOALS[0]) - baseline.rank(GOALS[0]))
