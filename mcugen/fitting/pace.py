# SPDX-License-Identifier: Apache-2.0
"""`balanced` beside `speed`: where both leave most of the board's memory free, it is not much slower."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from mcugen.board import Board
from mcugen.errors import DoesNotFitError
from mcugen.fitting import build_program, placed_cycles
from mcugen.fitting.budget import Fit
from mcugen.hir.graph import Graph
from mcugen.kernels.choose import ENOUGH, MOST_SLOWDOWN
from mcugen.lir.kernel import HALF_SEPARATE_SUMS, SEPARATE_SUMS
from mcugen.memory.place import copied_bytes
from mcugen.options import GOALS, CompileOptions
from mcugen.pipeline import Kernels

SURELY = 0.98
"""How many times MOST_SLOWDOWN estimates are at most: they err."""

Target = Callable[[CompileOptions], Board]
"""The board with what kernels are asked for by options."""


@dataclass(frozen=True)
class Made:
    """A program, for which board and by which options it was made: these may name another goal than the one asked."""

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
        copies = self.fit.taken.copies
        places = (copies.options if copies else self.options).place
        ram = self.fit.taken.use.ram + copied_bytes(self.fit.program, self.board, places)
        return ram <= ENOUGH * self.board.total_ram and self.fit.taken.use.flash <= ENOUGH * self.board.total_flash


def made(graph: Graph, target: Target, options: CompileOptions) -> Made:
    """A program for the goal as asked. DoesNotFitError as mcugen.fitting.build_program.

    Where what `speed` takes is small, `balanced` takes at most MOST_SLOWDOWN times its cycles, by estimate: what it
    would save serves nobody.
    """
    asked = _made(graph, target(options), options)
    if options.optimize != GOALS[0] or options.cores > 1 or options.weights_reader:
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
    return next((way for way in _ways(graph, asked, fast) if way.time <= most), asked)


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
