# SPDX-License-Identifier: Apache-2.0
"""The program of a compilation: searched for the user's goal, then placed in the memories of the board."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from mcugen.core.board import Board
from mcugen.core.errors import DoesNotFitError, ToolMissingError, UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.drafts import bundle_of
from mcugen.driver.target import target_of
from mcugen.driver.variants import Variants
from mcugen.hir.graph import Graph
from mcugen.lir.formula import Symbol
from mcugen.lir.program import Program
from mcugen.memory.place import Placement, place
from mcugen.memory.plan import Planned
from mcugen.search.budget import Fit
from mcugen.search.problem import SearchProblem
from mcugen.search.program_search import ProgramSearch
from mcugen.search.slowdown_cap import SearchResult, SlowdownCap
from mcugen.search.trace import SearchTrace


def search_program(
    graph: Graph, variants: Variants, symbols: Sequence[Symbol], board: Board, trace: SearchTrace | None
) -> SearchResult:
    """Search the program for the target; where only code size decides, candidates are compiled for the board.

    Args:
        graph: The optimized graph.
        variants: The model with its options and target.
        symbols: Its symbolic sizes; there are no alternatives to the program for all of these.
        board: The board as the user named it.
        trace: Records the candidates, if given.
    """
    target, options = variants.board, variants.options
    if symbols:
        return SearchResult(variants.program(symbols), target, options)
    problem = SearchProblem(graph, target, options, trace=trace)
    fit = ProgramSearch(problem, partial(measure_code_bytes, board=board, options=options)).run()
    return SlowdownCap(graph, SearchResult(fit, target, options), partial(target_of, board), trace).result()


def measure_code_bytes(program: Program, board: Board, options: CompileOptions) -> int | None:
    """Return the bytes of a program's code as built for the board, or None where no compiler is available."""
    from mcugen.simulation.simulation import linked_sizes, roots_of

    if not board.qemu:
        return None
    saved_plan = Planned.of(program)
    try:
        return linked_sizes(bundle := bundle_of(program, board, options), board, roots_of(bundle), options.library).code
    except (DoesNotFitError, ToolMissingError, UsageError):
        return None
    finally:
        saved_plan.restore(program)


def place_program(search: SearchResult, options: CompileOptions) -> Placement:
    """Return the memories of the searched program; an arena in several memories is planned anew.

    Raises:
        DoesNotFitError: The memories are too small.
        UsageError: Functions that check the arena would have to check several.
    """
    program, max_spilled = search.fit.program, _max_spilled_bytes(search.fit, options)
    placement = place(program, search.board, options.place, most_spilled=max_spilled)
    if options.checked_arena and len(program.area_sizes) > 1:
        raise UsageError("--checked-arena takes one arena", "several", "leave out --place")
    return placement


def _max_spilled_bytes(fit: Fit, options: CompileOptions) -> float:
    """Return the bytes that an arena in several memories may take."""
    if not options.may_spill:
        return 0
    other_bytes = fit.chosen.use.ram - fit.program.arena_size
    return math.inf if options.max_ram is None else options.max_ram - other_bytes
