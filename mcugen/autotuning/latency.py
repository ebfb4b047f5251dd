# SPDX-License-Identifier: Apache-2.0
"""`--max-latency` and `--max-cycles`: of the programs that are fast enough, choose the one that serves the goal best.

Time is measured by running a program in the simulator, in estimated cycles of the board (mcugen.simulation). Programs
between the requested and the fastest one are built by a limit on the estimated instructions of their kernels. The
search looks for the largest limit that meets the deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mcugen.core.board import Board
from mcugen.core.errors import DoesNotFitError, UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.memory.peak import shorten_name
from mcugen.reporting.figures import DeadlineFigures, Report, layer_title

MAX_TRIALS = 4
"""Number of programs that are measured between the requested and the fastest one."""

MIN_STEP_SHARE = 0.01
"""Least remaining share of instructions between two programs for which another trial is made."""

MAX_CPI_RATIO = 2.0
"""Assumed largest ratio of cycles per instruction of two precisions of a model: float32 stalls longer for results."""

NUM_NAMED_LAYERS = 3
"""Number of the slowest layers that messages name."""

Run = Callable[[CompiledModel], Report]
"""Runs a program on the board's simulator and returns its report, with cycles."""


@dataclass(frozen=True)
class Deadline:
    """The most cycles that a call may take on a board, and the option that set them."""

    cycles: int
    text: str

    @classmethod
    def of(cls, options: CompileOptions, board: Board) -> Deadline | None:
        """Return the deadline that the options set, or None.

        Raises:
            UsageError: If there are two deadlines, or one of less than a cycle.
        """
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
        """Return whether a program that ran was fast enough."""
        return _cycles(report) <= self.cycles

    def require(self, report: Report) -> None:
        """Raise an error that names the slowest layers if the program was not fast enough.

        Raises:
            DoesNotFitError: If the deadline is missed.
        """
        if not self.met_by(report):
            remedy = "allow more, use a faster board (mcugen boards), a smaller or a quantized model"
            measured = f"the least is {time_of(report)}"
            raise DoesNotFitError(f"a call must take {self.text} at most: {self.cycles:,} cycles", measured, remedy)


@dataclass(frozen=True)
class _Trial:
    """A program that ran, with the step that built it and its report."""

    step: str
    compiled: CompiledModel
    report: Report

    @property
    def instructions(self) -> float:
        """Return the estimated instructions; 0 where no layer has a choice of kernels."""
        return self.compiled.program.instructions_estimate or 0.0


@dataclass
class Pace:
    """Decides whether the fastest program of a model meets a deadline, with as few runs as possible."""

    deadline: Deadline
    run: Run
    missed: Report | None = None
    """Report of the last program that was too slow."""
    _cpi: float | None = None
    """Cycles per estimated instruction of the last program that ran."""

    def is_met_by(self, fastest: CompiledModel) -> bool:
        """Return whether a program meets the deadline, by its estimate where this is clear, else by a run.

        Raises:
            UsageError: If the time on this board cannot be measured.
        """
        instructions = fastest.program.instructions_estimate or 0.0
        if self._cpi is not None and MAX_CPI_RATIO * self._cpi * instructions <= self.deadline.cycles:
            return True
        report = self.run(fastest)
        self._cpi = _cycles(report) / max(instructions, 1.0)
        is_kept = self.deadline.met_by(report)
        self.missed = self.missed if is_kept else report
        return is_kept


def meet_deadline(
    deadline: Deadline, options: CompileOptions, make: Callable[[CompileOptions], CompiledModel], run: Run
) -> CompiledModel:
    """Return the model compiled to meet the deadline with the best value of the goal.

    Args:
        deadline: The most cycles of a call.
        options: The requested options.
        make: Compiles the model with given options.
        run: Runs a program in the simulator.

    Raises:
        DoesNotFitError: If the fastest program misses the deadline; the error says its time.
        UsageError: If the time on this board cannot be measured.
    """

    known: dict[tuple[object, ...], Report] = {}

    def attempt(step: str, trial_options: CompileOptions) -> _Trial:
        compiled = make(trial_options)
        program = compiled.program
        signature = (program.instructions_estimate, program.arena_size, program.weights_size, len(program.instrs))
        if signature not in known:
            known[signature] = run(compiled)
        return _Trial(step, compiled, known[signature])

    baseline = attempt("as asked", options)
    if deadline.met_by(baseline.report):
        return _report_deadline(baseline, baseline, deadline)
    fastest = attempt("all for speed", replace(options, optimize="speed"))
    deadline.require(min(baseline, fastest, key=lambda trial: _cycles(trial.report)).report)
    chosen, low, high = fastest, fastest.instructions, baseline.instructions
    share = _share(deadline, fastest, baseline)
    for _ in range(MAX_TRIALS):
        if high - low < MIN_STEP_SHARE * low:
            break
        limit = low + share * (high - low)
        step = f"kernels of {limit:,.0f} instructions at most, by estimate"
        between = attempt(step, replace(options, most_instructions=limit))
        if deadline.met_by(between.report):
            chosen, low = between, limit
        else:
            high = limit
        share = 0.5
    return _report_deadline(chosen, baseline, deadline)


def _share(deadline: Deadline, fast: _Trial, slow: _Trial) -> float:
    """Return where the deadline lies between two programs (0 to 1) if cycles grow with instructions, 5 % below that."""
    fast_cycles, slow_cycles = _cycles(fast.report), _cycles(slow.report)
    return min(max(0.95 * (deadline.cycles - fast_cycles) / max(slow_cycles - fast_cycles, 1), 0.05), 0.95)


def _report_deadline(chosen: _Trial, baseline: _Trial, deadline: Deadline) -> CompiledModel:
    """Return the program with a report that says how the deadline was met."""
    figures = DeadlineFigures(deadline.cycles, _cycles(chosen.report), _cycles(baseline.report), chosen.step)
    return replace(chosen.compiled, report=replace(chosen.compiled.report, deadline=figures))


def time_of(report: Report) -> str:
    """Return the time of a call as text, with the slowest layers."""
    return f"{_cycles(report):,} cycles, {1e3 * _cycles(report) / report.clock_hz:.4g} ms, of which {_slowest(report)}"


def _cycles(report: Report) -> int:
    if report.cycles_estimate is None:
        rule = "a deadline needs the time that a program takes on the board"
        raise UsageError(rule, report.cycles_note or f"board '{report.board}' is not simulated", "use another board")
    return report.cycles_estimate


def _slowest(report: Report) -> str:
    """Return the slowest layers as text, with their cycles."""
    slowest = sorted(report.layers, key=lambda layer: -(layer.cycles_estimate or 0))[:NUM_NAMED_LAYERS]
    titles = [shorten_name(layer_title(layer.name, layer.origin)) for layer in slowest]
    entries = [f"{layer.cycles_estimate or 0:,} '{title}'" for layer, title in zip(slowest, titles, strict=True)]
    return f"{', '.join(entries[:-1])} and {entries[-1]}" if len(entries) > 1 else entries[0]


def _positive(cycles: int, text: str) -> int:
    if cycles < 1:
        raise UsageError("a deadline must be at least a cycle", text, "e.g. --max-latency 20ms")
    return cycles
