# SPDX-License-Identifier: Apache-2.0
"""Limit on the slowdown of `balanced` against `speed` on boards with ample memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mcugen.backends.cpu.pipeline import Kernels
from mcugen.core.errors import DoesNotFitError
from mcugen.core.options import GOALS, Places
from mcugen.hir.graph import Graph
from mcugen.kernels.common.weighted_layers import INT4_RANGE
from mcugen.lir.kernel import HALF_SEPARATE_SUMS, SEPARATE_SUMS
from mcugen.memory.place import copied_bytes
from mcugen.memory.plan import Planned
from mcugen.search.candidates import REQUESTED_CANDIDATE_NAME, CandidateBuilder, Selection
from mcugen.search.metrics import AccuracyLevel
from mcugen.search.objective import TOLERANCES
from mcugen.search.problem import SearchProblem
from mcugen.search.refinements import CopiesBeforeLayers, Refinement
from mcugen.search.weight_staging import copied_by, staged

SLOWDOWN_LIMIT_TEXT = f"{TOLERANCES.max_balanced_slowdown} times the cycles of `speed`"
"""The largest slowdown of `balanced` programs against the `speed` program, as a phrase in verdicts of the trace."""

SCARCE_MEMORY_TEXT = f"more than {TOLERANCES.ample_memory_fraction:.0%} of the board's RAM or flash"
"""The use of memory above which memory counts as scarce, as a phrase in verdicts of the trace."""


class SlowdownCap(Refinement):
    """The search step that replaces a `balanced` program that is much slower than `speed`, if memory is ample.

    Memory is ample if the `speed` program leaves most of it free: then the bytes that `balanced` saves have no use.
    Programs that were chosen for a budget, or whose memories the user chose, are kept. If the model has weights of at
    most 4 bits, the replacement may not take more bytes of weights.
    """

    kind = "slowdown cap"

    def refine(self, builder: CandidateBuilder, selection: Selection) -> Selection:
        """Choose the first program that takes at most max_balanced_slowdown times the cycles of the `speed` program.

        The program chosen so far is tried first, then faster ones. It is kept if no program is both small and fast
        enough, if memory is scarce, or if the user set a budget or chose memories.
        """
        problem = builder.problem
        if problem.board_for is None or not _is_free(selection):
            return selection
        options = replace(problem.options, optimize="speed")
        board = problem.board_for(options)
        slowest = Kernels(problem.graph, board, options).slowest()
        if _time(selection) <= TOLERANCES.cycle_estimate_margin * slowest:
            return selection
        speed_problem = replace(problem, board=board, options=options, search="speed, to limit the slowdown")
        try:
            fastest = builder.run_search(speed_problem)
        except DoesNotFitError:
            return selection
        if not _leaves_ample_memory(fastest):
            problem.rejected(fastest.chosen, f"uses {SCARCE_MEMORY_TEXT}")
            reason = f"serves `balanced`; a faster program for `speed` would use {SCARCE_MEMORY_TEXT}"
            return replace(selection, reason=reason)
        return _first_within_cap(builder, selection, fastest)


def _is_free(selection: Selection) -> bool:
    """Return whether the chosen program is one for `balanced` that was chosen without constraints."""
    options, budget = selection.problem.options, selection.problem.budget
    is_free = options.cores == 1 and not options.weights_reader and options.place == Places()
    return options.optimize == GOALS[0] and is_free and not budget.excess(selection.requested.use)


def _time(selection: Selection) -> float:
    """Return the estimated cycles per call, with stalls of the memories where weights and arena lie."""
    return selection.problem.costs.evaluate(selection.chosen.built, AccuracyLevel.PLACED).time


def _leaves_ample_memory(selection: Selection) -> bool:
    """Return whether the program uses at most the share ample_memory_fraction of the board's RAM and flash."""
    chosen, board, share = selection.chosen, selection.problem.board, TOLERANCES.ample_memory_fraction
    places = copied_by(chosen.built, board, selection.problem.options).place
    ram = chosen.use.ram + copied_bytes(chosen.program, board, places)
    return ram <= share * board.total_ram and chosen.use.flash <= share * board.total_flash


def _first_within_cap(builder: CandidateBuilder, requested: Selection, fastest: Selection) -> Selection:
    """Return the first program, from the requested one to the fastest, that is fast and small enough."""
    problem = requested.problem
    max_time = TOLERANCES.cycle_estimate_margin * TOLERANCES.max_balanced_slowdown * _time(fastest)
    max_weights = requested.chosen.program.weights_size if _has_few_bits(problem.graph) else math.inf
    problem.rejected(fastest.chosen, "faster than the limit on the slowdown asks for")
    for selection in _from_small_to_fast(builder, requested, fastest):
        if selection.chosen.program.weights_size > max_weights:
            problem.rejected(selection.chosen, "stores weights that came in few bits in more bytes")
        elif _time(selection) > max_time:
            problem.rejected(selection.chosen, f"memory is ample, and it takes more than {SLOWDOWN_LIMIT_TEXT}")
        else:
            return replace(selection, reason=f"takes at most {SLOWDOWN_LIMIT_TEXT}")
    return replace(requested, reason=f"no program that takes at most {SLOWDOWN_LIMIT_TEXT} is small enough")


def _from_small_to_fast(builder: CandidateBuilder, requested: Selection, fastest: Selection) -> Iterator[Selection]:
    """Yield programs from the requested one to the fastest one, those with fewer instructions in loops first."""
    yield requested
    features, speed = requested.problem.board.features, fastest.problem
    board = replace(speed.board, features=features)
    small = builder.run_search(replace(speed, board=board, search="speed, with small loops"))
    yield from _with_copies(requested, small)
    yield small
    if SEPARATE_SUMS in speed.board.features:
        board = replace(speed.board, features=features | {HALF_SEPARATE_SUMS})
        name = "speed, with loops of half as many separate sums"
        yield builder.run_search(replace(speed, board=board, search=name))
    yield fastest


def _with_copies(requested: Selection, small: Selection) -> Iterator[Selection]:
    """Yield the requested kernels with the copies of weights that `speed` makes, if that is as fast as `small`.

    Stall cycles for weights in flash may be all that makes the requested program slow. Its kernels take less flash.
    """
    before = requested.chosen
    if before.copies is None or before.copies.gains:
        return
    saved_plan = Planned.of(before.program)
    name, board, options = "balanced, with the copies of speed", requested.problem.board, small.problem.options
    problem = SearchProblem(requested.problem.graph, board, options, search=name, trace=requested.problem.trace)
    candidate = problem.candidate(REQUESTED_CANDIDATE_NAME, replace(before.built, copies=None))
    candidate = problem.candidate(REQUESTED_CANDIDATE_NAME, staged(candidate, board, options))
    selection = replace(requested, problem=problem, chosen=problem.recorded(candidate, CopiesBeforeLayers.kind))
    is_as_fast = TOLERANCES.cycle_estimate_margin * _time(selection) <= _time(small)
    if is_as_fast and candidate.use.flash <= small.chosen.use.flash:
        yield selection
    else:
        problem.rejected(selection.chosen, "slower than the program for `speed` with small loops, or takes more flash")
    saved_plan.restore(before.program)  # It was not taken.


def _has_few_bits(graph: Graph) -> bool:
    """Return whether weights came in 4 bits or fewer: small weights are then wanted, and fast kernels widen them."""
    low, high = INT4_RANGE
    nodes = [node for part in graph.nested() for node in part.nodes]
    weights = [v.data for node in nodes for v in node.inputs if v is not None and v.type.rank > 1]
    int8_weights = [w for w in weights if w is not None and w.dtype == np.int8]
    return any(low <= w.min(initial=0) and w.max(initial=0) <= high for w in int8_weights)
