# SPDX-License-Identifier: Apache-2.0
"""`balanced` beside `speed`: where both leave most of the board's memory free, it is not much slower."""

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

SURELY = 0.985
"""How many times MOST_SLOWDOWN estimates are at most: they err."""

Target = Callable[[CompileOptions], Board]
"""The board with what kernels are asked for by options."""


class Made(NamedTuple):
    """A program, for which board it was made, and by which options: these may name another goal than the one asked."""

    fit: Fit
    board: Board
    options: CompileOptions

    @property
    def time(self) -> float:
        """Cycles, by estimate, with waits for the memories where all lies."""
        return placed_cycles(self.fit.taken, self.board, self.options)

    @property
    def is_small(self) -> bool:
        """Whether it takes no more than ENOUGH of RAM and of flash."""
        use, places = self.fit.taken.use, self._copying.place
        ram = use.ram + copied_bytes(self.fit.program, self.board, places)
        return ram <= ENOUGH * self.board.total_ram and use.flash <= ENOUGH * self.board.total_flash

    def placed(self, options: CompileOptions) -> CompileOptions:
        """The options asked for, with the copies that start-up makes."""
        places = self._copying.place
        return options if places == options.place else replace(options, place=places)

    @property
    def _copying(self) -> CompileOptions:
        return copied_by(self.fit.taken, self.board, self.options)


def keeping_pace(graph: Graph, asked: Made, target: Target) -> Made:
    """What was asked for; or, where what `speed` takes is small, what takes at most MOST_SLOWDOWN times its cycles, by
    estimate, if `balanced` was: what it would save serves nobody. What the user says of places stands; so does what was
    found for a budget, and weights that came in few bits take no more bytes.
    """
    options = asked.options
    if options.optimize != GOALS[0] or options.cores > 1 or options.weights_reader or options.place != Places():
        return asked
    if asked.fit.budget.excess(asked.fit.asked.use):
        return asked
    for_speed = replace(options, optimize="speed")
    board = target(for_speed)
    if asked.time <= SURELY * Kernels(graph, board, for_speed).slowest():
        return asked
    try:
        fast = _made(graph, board, for_speed)
    except DoesNotFitError:
        return asked
    if not fast.is_small:
        return asked
    most = SURELY * MOST_SLOWDOWN * fast.time
    nbytes = asked.fit.program.weights_size if _in_few_bits(graph) else math.inf
    ways = (way for way in _ways(graph, asked, fast) if way.fit.program.weights_size <= nbytes)
    return next((way for way in ways if way.time <= most), asked)


def _in_few_bits(graph: Graph) -> bool:
    """Whether weights came in 4 bits or fewer: who has them so wants them small, and kernels in a hurry widen them."""
    low, high = NIBBLES
    weights = [v.data for node in graph.nodes for v in node.inputs if v is not None and v.type.rank > 1]
    codes = [w for w in weights if w is not None and w.dtype == np.int8]
    return any(low <= w.min(initial=0) and w.max(initial=0) <= high for w in codes)


def _ways(graph: Graph, asked: Made, fast: Made) -> Iterator[Made]:
    """From what was asked for to the fastest: with its kernels and copies, but loops of few instructions first."""
    yield asked
    features = asked.board.features
    yield _made(graph, replace(fast.board, features=features), fast.options)
    if SEPARATE_SUMS in fast.board.features:
        yield _made(graph, replace(fast.board, features=features | {HALF_SEPARATE_SUMS}), fast.options)
    yield fast


def _made(graph: Graph, board: Board, options: CompileOptions) -> Made:
    return Made(build_program(graph, board, options), board, options)
