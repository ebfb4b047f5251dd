# SPDX-License-Identifier: Apache-2.0
"""The program of a compilation: searched for the user's goal, then placed in the memories of the board."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from mcugen.core.board import Board
from mcugen.core.errors import DoesNotFitError, ToolMissingError, UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.accelerators import accelerator_of
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
from mcugen.search.program_search import ProgramSearch, SearchResult
from mcugen.search.trace import SearchTrace


def search_program(
    graph: Graph, variants: Variants, symbols: Sequence[Symbol], board: Board, trace: SearchTrace | None
) -> SearchResult:
    """Search the program that serves the goal best and fits the board.

    The estimated size of the code does not always tell whether a candidate fits. Such a candidate is built by the
    board's compiler to measure it.

    Args:
        graph: The optimized graph.
        variants: The model with its options and target.
        symbols: Its symbolic sizes. If there are any, one program serves all sizes, and nothing is searched.
        board: The board as the user named it.
        trace: Records the candidates; None to record nothing.
    """
    target, options = variants.board, variants.options
    if symbols:
        return SearchResult(variants.program(symbols), target, options)
    problem = SearchProblem(
        graph,
        target,
        options,
        trace=trace,
        board_for=partial(target_of, board),
        accelerator=accelerator_of(board, options),
    )
    return ProgramSearch(problem, partial(measure_code_bytes, board=board, options=options)).run()


def measure_code_bytes(program: Program, board: Board, options: CompileOptions) -> int | None:
    """Return the bytes of a program's code as the board's compiler builds it.

    The result is None if there is no such compiler, or if the program cannot be built.
    """
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
    """Choose the memories of the board in which arena, state and weights of the program lie.

    If the arena needs several memories, the program's memory plan is replaced by one for these.

    Raises:
        DoesNotFitError: If the memories are too small.
        UsageError: If --checked-arena is set and the arena lies in several memories.
    """
    program, max_spilled = search.fit.program, _max_spilled_bytes(search.fit, options)
    placement = place(program, search.board, options.place, most_spilled=max_spilled)
    npu = search.board.npu
    if npu is not None and program.is_offloaded:
        for memory in placement.arenas:
            if memory.name not in npu.reaches:
                rule = f"--npu {options.npu}: the arena must lie where the NPU reaches it"
                raise UsageError(rule, f"'{memory.name}'", f"--place arena={npu.activations.memory}")
    if options.checked_arena and len(program.area_sizes) > 1:
        raise UsageError("--checked-arena takes one arena", "several", "leave out --place")
    return placement


def _max_spilled_bytes(fit: Fit, options: CompileOptions) -> float:
    """Return the bytes that an arena in several memories may take."""
    if not options.may_spill:
        return 0
    other_bytes = fit.chosen.use.ram - fit.program.arena_size
    return math.inf if options.max_ram is None else options.max_ram - other_bytes
