# SPDX-License-Identifier: Apache-2.0
"""`--max-latency` and `--max-cycles`: of the programs that are fast enough, the one that serves the goal best.

What a program takes is what it took when it ran, in estimated cycles of the board (mcugen.simulation). The programs
between the one as asked for and the fastest are found by the most instructions that their kernels may take, by the
costs that kernels are chosen by: as many as just meet the deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mcugen.core.board import Board
from mcugen.core.errors import DoesNotFitError, UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.memory.peak import shortened
from mcugen.reporting.figures import DeadlineFigures, Report, layer_title

MOST_TRIALS = 4
"""Programs that are measured between the one as asked for and the fastest."""

LEAST_STEP = 0.01
"""Share of the instructions between two programs that is not worth another trial."""

FAR = 2.0
"""By how much cycles an instruction may differ between two precisions of a model: float32 waits longer for results."""

NAMED_LAYERS = 3

Run = Callable[[CompiledModel], Report]
"""Runs a program on the board's simulator: its report, with cycles."""


@dataclass(frozen=True)
class Deadline:
    """The most cycles that a call may take on a board, and the option that says so."""

    cycles: int
    text: str

    @classmethod
    def of(cls, options: CompileOptions, board: Board) -> Deadline | None:
        """What is asked for, if anything. UsageError for two deadlines, or one below a cycle."""
        if options.max_cycles is not None and options.max_latency is not None:
            raise UsageError("there can be one deadline", "--max-cycles and --max-latency", "leave one out")
        if options.max_latency is not None:
            text = f"--max-latency {1e3 * options.max_latency:g}ms"
            return cls(_positive(round(options.max_latency * board.clock_hz), text), text)
        if options.max_cycles is not None:
            text = f"--max-cycles {options.max_cycles:,}"
            return cls(_positive(options.max_cycles, text), text)
        return None

    def met_by(self, report: Report) -> bool:
        """Whether a program that ran was fast enough."""
        return _cycles(report) <= self.cycles

    def require(self, report: Report) -> None:
        """DoesNotFitError, with what takes longest, for a program that ran and was not fast enough."""
        if not self.met_by(report):
            remedy = "allow more, use a faster board (mcugen boards), a smaller or a quantized model"
            found = f"the least is {time_of(report)}"
            raise DoesNotFitError(f"a call must take {self.text} at most: {self.cycles:,} cycles", found, remedy)


@dataclass(frozen=True)
class _Trial:
    """A program, how it was made, and its report of a run."""

    step: str
    compiled: CompiledModel
    report: Report

    @property
    def instructions(self) -> float:
        """By the estimate that kernels are chosen by; 0 where no layer has a choice."""
        return self.compiled.program.instructions_estimate or 0.0


@dataclass
class Pace:
    """Tells of one model after the other whether its fastest program keeps a deadline, and runs as few as it can."""

    deadline: Deadline
    run: Run
    missed: Report | None = None
    """Of the last one that was too slow."""
    _cpi: float | None = None
    """Cycles an estimated instruction, of the last one that ran."""

    def is_kept_by(self, fastest: CompiledModel) -> bool:
        """By its price, where that is far from the deadline, or as it runs. UsageError: nothing is known of time."""
        instructions = fastest.program.instructions_estimate or 0.0
        if self._cpi is not None and FAR * self._cpi * instructions <= self.deadline.cycles:
            return True
        report = self.run(fastest)
        self._cpi = _cycles(report) / max(instructions, 1.0)
        is_kept = self.deadline.met_by(report)
        self.missed = self.missed if is_kept else report
        return is_kept


def within(
    deadline: Deadline, options: CompileOptions, make: Callable[[CompileOptions], CompiledModel], run: Run
) -> CompiledModel:
    """The model compiled so that a call takes no longer, with the least of what the goal is to save.

    DoesNotFitError says what the fastest takes; UsageError: nothing is known of the board's time.
    """

    known: dict[tuple[object, ...], Report] = {}

    def attempt(step: str, wanted: CompileOptions) -> _Trial:
        compiled = make(wanted)
        program = compiled.program
        same = (program.instructions_estimate, program.arena_size, program.weights_size, len(program.instrs))
        if same not in known:
            known[same] = run(compiled)
        return _Trial(step, compiled, known[same])

    asked = attempt("as asked", options)
    if deadline.met_by(asked.report):
        return _told(asked, asked, deadline)
    fastest = attempt("all for speed", replace(options, optimize="speed"))
    deadline.require(min(asked, fastest, key=lambda trial: _cycles(trial.report)).report)
    taken, low, high = fastest, fastest.instructions, asked.instructions
    share = _share(deadline, fastest, asked)
    for _ in range(MOST_TRIALS):
        if high - low < LEAST_STEP * low:
            break
        limit = low + share * (high - low)
        step = f"kernels of {limit:,.0f} instructions at most, by estimate"
        between = attempt(step, replace(options, most_instructions=limit))
        if deadline.met_by(between.report):
            taken, low = between, limit
        else:
            high = limit
        share = 0.5
    return _told(taken, asked, deadline)


def _share(deadline: Deadline, fast: _Trial, slow: _Trial) -> float:
    """Where between two programs the deadline lies, if cycles grow with instructions; a bit short of it."""
    fewest, most = _cycles(fast.report), _cycles(slow.report)
    return min(max(0.95 * (deadline.cycles - fewest) / max(most - fewest, 1), 0.05), 0.95)


def _told(taken: _Trial, asked: _Trial, deadline: Deadline) -> CompiledModel:
    """The program, whose report says how the deadline was met."""
    figures = DeadlineFigures(deadline.cycles, _cycles(taken.report), _cycles(asked.report), taken.step)
    return replace(taken.compiled, report=replace(taken.compiled.report, deadline=figures))


def time_of(report: Report) -> str:
    """The time of a call, and what takes longest of it."""
    return f"{_cycles(report):,} cycles, {1e3 * _cycles(report) / report.clock_hz:.4g} ms, of which {_slowest(report)}"


def _cycles(report: Report) -> int:
    if report.cycles_estimate is None:
        rule = "a deadline needs the time that a program takes on the board"
        raise UsageError(rule, report.cycles_note or f"board '{report.board}' is not simulated", "use another board")
    return report.cycles_estimate


def _slowest(report: Report) -> str:
    """The layers that take longest, with their cycles."""
    slowest = sorted(report.layers, key=lambda layer: -(layer.cycles_estimate or 0))[:NAMED_LAYERS]
    titles = [shortened(layer_title(layer.name, layer.origin)) for layer in slowest]
    each = [f"{layer.cycles_estimate or 0:,} '{title}'" for layer, title in zip(slowest, titles, strict=True)]
    return f"{', '.join(each[:-1])} and {each[-1]}" if len(each) > 1 else each[0]


def _positive(cycles: int, text: str) -> int:
    if cycles < 1:
        raise UsageError("a deadline must be at least a cycle", text, "e.g. --max-latency 20ms")
    return cycles
