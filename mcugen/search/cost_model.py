# SPDX-License-Identifier: Apache-2.0
"""The evaluation of candidates: one interface for estimates, built code and simulated cycles.

Every search asks `CostModel.evaluate` for the metrics of a candidate at an accuracy level, and compares them by the
Objective. A candidate is evaluated once for each level, since to build a program takes seconds and to simulate one
takes longer. The program search evaluates planned programs (ProgramCostModel), autotuning compiled models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Generic, TypeVar

from mcugen.core.board import Board
from mcugen.core.options import CompileOptions
from mcugen.lir.program import Program
from mcugen.memory.place import copied_bytes
from mcugen.search.budget import likely_code_bytes, max_code_bytes, placed_stall_cycles, use_of
from mcugen.search.metrics import AccuracyLevel, ErrorBounds, Metrics
from mcugen.search.objective import TOLERANCES
from mcugen.search.plan import BuiltProgram
from mcugen.search.weight_staging import copies_for

CodeMeasure = Callable[[Program], int | None]
"""Function that returns the size in bytes of a program's compiled code, or None if the code cannot be compiled here."""

Subject = TypeVar("Subject")


class CostModel(ABC, Generic[Subject]):
    """Base of cost models: returns the metrics of a search's candidates, and caches them for each accuracy level."""

    def __init__(self) -> None:
        self._known: dict[tuple[Hashable, AccuracyLevel], Metrics] = {}

    def evaluate(self, candidate: Subject, level: AccuracyLevel = AccuracyLevel.ESTIMATED) -> Metrics:
        """Return the metrics of a candidate at an accuracy level; candidates with equal keys have equal metrics."""
        key = self.key(candidate), level
        if key not in self._known:
            self._known[key] = self.measure(candidate, level)
        return self._known[key]

    @abstractmethod
    def key(self, candidate: Subject) -> Hashable:
        """Return a key for the cache: two candidates have equal keys only if their metrics are equal."""

    @abstractmethod
    def measure(self, candidate: Subject, level: AccuracyLevel) -> Metrics:
        """Compute the metrics of a candidate that is not in the cache, with the accuracy that `level` asks for."""


class ProgramCostModel(CostModel[BuiltProgram]):
    """Evaluates planned programs for a board and options by estimates and, if asked for, by building their code.

    Args:
        board: The board with its memories.
        options: The options of the compilation.
        measure_code: Returns the bytes of a program's compiled code; None to use estimates for the level BUILT too.
    """

    def __init__(self, board: Board, options: CompileOptions, measure_code: CodeMeasure | None = None) -> None:
        super().__init__()
        self._board, self._options, self._measure_code = board, options, measure_code

    def key(self, candidate: BuiltProgram) -> Hashable:
        """Return a cache key that covers the plan, sizes and copies of a program."""
        return candidate.key

    def with_copies(self, built: BuiltProgram) -> BuiltProgram:
        """Return a program with the copies of weights to RAM that serve the goal best.

        If copies were chosen for the program already, it is returned unchanged.
        """
        if built.copies is not None:
            return built
        return replace(built, copies=copies_for(built.program, self._board, self._options))

    def measure(self, candidate: BuiltProgram, level: AccuracyLevel) -> Metrics:
        """Compute the metrics of a program with the accuracy that `level` asks for.

        Stall cycles count as 0 before copies of weights are chosen.
        """
        if level is AccuracyLevel.BUILT:
            return self._built(candidate)
        program, copies, board = candidate.program, candidate.copies, self._board
        energy = None if program.is_offloaded else board.energy  # It is that of the CPU.
        places = copies.options.place if copies else self._options.place
        stalls = copies.waits if copies else 0.0
        if level is AccuracyLevel.PLACED:
            stalls = sum(placed_stall_cycles(program, board, places))
        cycles = None if program.cycles_estimate is None else program.cycles_estimate + stalls
        return Metrics(
            instructions=program.instructions_estimate or 0.0,
            cycles=cycles,
            stall_cycles=stalls,
            use=use_of(program, board, self._options),
            copied_bytes=copied_bytes(program, board, places) - copied_bytes(program, board, self._options.place),
            microjoules=None if cycles is None or energy is None else energy.microjoules(cycles),
            level=level,
        )

    def with_code(self, candidate: BuiltProgram, code_bytes: int) -> Metrics:
        """Return the estimated metrics of a program whose code takes `code_bytes` bytes."""
        use = use_of(candidate.program, self._board, self._options, code_bytes)
        return replace(self.evaluate(candidate), use=use)

    def after_staging(self, candidate: BuiltProgram, before: Metrics) -> Metrics:
        """Return the metrics of a program to which copies of weights were added; a measured code size is kept.

        Args:
            candidate: The program with the copies.
            before: The metrics of the program without them.
        """
        if before.code_bytes is None:
            return self.evaluate(candidate)
        return replace(self.with_code(candidate, before.code_bytes), code_bytes=before.code_bytes, level=before.level)

    def likely(self, candidate: BuiltProgram, level: AccuracyLevel = AccuracyLevel.ESTIMATED) -> Metrics:
        """Return the estimated metrics of a program with the likely size of its code, instead of an upper bound.

        Args:
            candidate: The program.
            level: ESTIMATED, or PLACED to include the stalls of the memories that the data are placed in.
        """
        code_bytes = likely_code_bytes(candidate.program, self._board)
        return replace(self.evaluate(candidate, level), use=self.with_code(candidate, code_bytes).use)

    def _built(self, candidate: BuiltProgram) -> Metrics:
        """Return the metrics with the built code, or those of the estimate where the code cannot be built."""
        code = None if self._measure_code is None else self._measure_code(candidate.program)
        if code is None:
            return self.evaluate(candidate)
        return replace(self.with_code(candidate, code), code_bytes=code, level=AccuracyLevel.BUILT)

    def with_errors(self, candidate: BuiltProgram, metrics: Metrics) -> Metrics:
        """Return the metrics with the largest possible relative error of each one, if a bound of the error is known.

        Args:
            candidate: The program.
            metrics: Its metrics, estimated or with its compiled code.
        """
        program = candidate.program
        is_measured = sum(program.layer_estimates.values()) == program.instructions_estimate
        cycles = 1 - TOLERANCES.cycle_estimate_margin if is_measured and not metrics.stall_cycles else None
        flash = 0.0
        if metrics.code_bytes is None:
            min_code = TOLERANCES.min_code_ratio * likely_code_bytes(program, self._board)
            flash = (max_code_bytes(program, self._board) - min_code) / max(metrics.flash, 1)
        errors = ErrorBounds(
            instructions=TOLERANCES.instruction_estimate_error if is_measured else None,
            cycles=cycles,
            stall_cycles=None if metrics.stall_cycles else 0.0,
            ram=0.0,
            flash=flash,
            microjoules=cycles,
        )
        return replace(metrics, errors=errors)
