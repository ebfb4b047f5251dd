# SPDX-License-Identifier: Apache-2.0
"""Limit on the slowdown of `balanced` against `speed` on boards with ample memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from mcugen.backends.cpu.pipeline import Kernels
from mcugen.core.board import Board
from mcugen.core.errors import DoesNotFitError
from mcugen.core.options import GOALS, CompileOptions, Places
from mcugen.hir.graph import Graph
from mcugen.kernels.choose import ENOUGH, MOST_SLOWDOWN
from mcugen.kernels.common.weighted_layers import NIBBLES
from mcugen.lir.kernel import HALF_SEPARATE_SUMS, SEPARATE_SUMS
from mcugen.memory.place import copied_bytes
from mcugen.search import build_program, placed_cycles
from mcugen.search.budget import Fit
from mcugen.search.weight_staging import copied_by

ESTIMATE_MARGIN = 0.985
"""Safety factor on MOST_SLOWDOWN: cycle estimates are up to 1.5 % too low (make costs, 2026-11)."""

Target = Callable[[CompileOptions], Board]
"""Returns the board as seen by options, with the CPU features that these enable."""


class Made(NamedTuple):
    """A program with the board and options that it was built for.

    The options may name a goal other than the requested one.
    """

    fit: Fit
    board: Board
    options: CompileOptions

    @property
    def time(self) -> float:
        """Return the estimated cycles, with stall cycles of the memories where everything lies."""
        return placed_cycles(self.fit.taken, self.board, self.options)

    @property
    def is_small(self) -> bool:
        """Return whether the program uses at most the share ENOUGH of the board's RAM and of its flash."""
        use, places = self.fit.taken.use, self._copying.place
        ram = use.ram + copied_bytes(self.fit.program, self.board, places)
        return ram <= ENOUGH * self.board.total_ram and use.flash <= ENOUGH * self.board.total_flash

    def placed(self, options: CompileOptions) -> CompileOptions:
        """Return the given options with the copies that start-up makes for this program."""
        places = self._copying.place
        return options if places == options.place else replace(options, place=places)

    @property
    def _copying(self) -> CompileOptions:
        return copied_by(self.fit.taken, self.board, self.options)


def keeping_pace(graph: Graph, requested: Made, target: Target) -> Made:
    """Return a program for `balanced` that is at most MOST_SLOWDOWN times slower than `speed`, where memory is ample.

    Memory is ample where the `speed` program is small (see Made.is_small): then the bytes that `balanced` saves are of
    no use. Explicit placements and programs chosen for a budget are kept. Weights that came in few bits take no more
    bytes.

    Args:
        graph: The optimized graph.
        requested: The program that the search built for the requested goal.
        target: Returns the board as seen by a set of options.

    Returns:
        `requested`, or the first faster program within the cap.
    """
    options = requested.options
    if options.optimize != GOALS[0] or options.cores > 1 or options.weights_reader or options.place != Places():
        return requested
    if requested.fit.budget.excess(requested.fit.asked.use):
        return requested
    for_speed = replace(options, optimize="speed")
    board = target(for_speed)
    if requested.time <= ESTIMATE_MARGIN * Kernels(graph, board, for_speed).slowest():
        return requested
    try:
        fast = _made(graph, board, for_speed)
    except DoesNotFitError:
        return requested
    if not fast.is_small:
        return requested
    max_time = ESTIMATE_MARGIN * MOST_SLOWDOWN * fast.time
    nbytes = requested.fit.program.weights_size if _in_few_bits(graph) else math.inf
    candidates = (
        candidate for candidate in _ways(graph, requested, fast) if candidate.fit.program.weights_size <= nbytes
    )
    return next((candidate for candidate in candidates if candidate.time <= max_time), requested)


def _in_few_bits(graph: Graph) -> bool:
    """Return whether weights came in 4 bits or fewer: small weights are then wanted, and fast kernels widen them."""
    low, high = NIBBLES
    weights = [v.data for node in graph.nodes for v in node.inputs if v is not None and v.type.rank > 1]
    codes = [w for w in weights if w is not None and w.dtype == np.int8]
    return any(low <= w.min(initial=0) and w.max(initial=0) <= high for w in codes)


def _ways(graph: Graph, requested: Made, fast: Made) -> Iterator[Made]:
    """Yield candidates from the requested program to the fastest one, those with fewer instructions in loops first."""
    yield requested
    features = requested.board.features
    yield _made(graph, replace(fast.board, features=features), fast.options)
    if SEPARATE_SUMS in fast.board.features:
        yield _made(graph, replace(fast.board, features=features | {HALF_SEPARATE_SUMS}), fast.options)
    yield fast


def _made(graph: Graph, board: Board, options: CompileOptions) -> Made:
    """Build a program for a board and options."""
    return Made(build_program(graph, board, options), board, options)
