# SPDX-License-Identifier: Apache-2.0
"""Compiled models as candidates of a search: built with changed options, and measured in the board's simulator.

The searches of autotuning (`--max-latency`, `--max-step-cycles`, `--tune`, `--precision auto`) compare programs by what
they cost when they run. They share cost model, objective and trace with the program search (mcugen.search).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.reporting.figures import Report
from mcugen.search.cost_model import CostModel, ProgramCostModel
from mcugen.search.metrics import AccuracyLevel, Metrics
from mcugen.search.objective import Objective
from mcugen.search.plan import BuiltProgram, ProgramCandidate, ProgramPlan
from mcugen.search.trace import SearchTrace, TraceEntry

Make = Callable[[CompileOptions], CompiledModel]
"""A function that compiles the user's model with given options."""

Run = Callable[[CompiledModel], Report]
"""A function that runs a compiled model on the board's simulator, and returns its report with cycles."""


class SimulatedCostModel(CostModel[CompiledModel]):
    """A cost model that runs compiled models in the simulator for metrics of level SIMULATED, and estimates all others.

    Equal programs run once.

    Args:
        run: Runs a program in the simulator and returns its report.
    """

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run
        self._reports = dict[Hashable, Report]()

    def key(self, candidate: CompiledModel) -> Hashable:
        """Return a key for the cache of metrics: equal programs in the C code of one goal run only once."""
        return BuiltProgram(candidate.program).key, candidate.options.optimize

    def report(self, candidate: CompiledModel) -> Report:
        """Return the report of a simulated run of a model; the model runs only if no equal program has run before.

        Raises:
            UsageError: If the time on this board cannot be measured.
        """
        self.evaluate(candidate, AccuracyLevel.SIMULATED)
        return self._reports[self.key(candidate)]

    def measure(self, candidate: CompiledModel, level: AccuracyLevel) -> Metrics:
        """Compute the metrics of a model that is not in the cache.

        The model runs in the simulator if `level` is SIMULATED; otherwise the metrics are estimated.
        """
        estimate = ProgramCostModel(candidate.board, candidate.options).evaluate(BuiltProgram(candidate.program))
        if level is not AccuracyLevel.SIMULATED:
            return estimate
        report = self._reports[self.key(candidate)] = self._run(candidate)
        cycles_of(report)
        return simulated_metrics(report, estimate)


def simulated_metrics(report: Report, estimate: Metrics) -> Metrics:
    """Return the metrics of a simulated run; figures that the run lacks, such as RAM, come from the estimate.

    Args:
        report: The report of the run.
        estimate: The estimated metrics of the program.
    """
    return replace(
        estimate,
        instructions=estimate.instructions if report.instructions is None else report.instructions,
        cycles=report.cycles_estimate,
        stall_cycles=sum(stall.cycles for stall in report.stalls or ()),
        microjoules=report.microjoules_estimate,
        level=AccuracyLevel.SIMULATED,
    )


def cycles_of(report: Report) -> int:
    """Return the cycles of one call, as measured in the run of a report.

    Raises:
        UsageError: If the report has no measured cycles.
    """
    if report.cycles_estimate is None:
        rule = "a deadline needs a timing model of the board"
        raise UsageError(rule, report.cycles_note or f"board '{report.board}' is not simulated", "use another board")
    return report.cycles_estimate


@dataclass(frozen=True)
class SimulatedCandidate:
    """A compiled model that a search considers, with its simulated cost."""

    name: str
    """Name of the candidate in messages."""
    compiled: CompiledModel
    """The compiled model."""
    metrics: Metrics
    """RAM, flash, cycles and other costs of one call of the candidate, from the simulated run."""
    number: int | None = None
    """Number of the candidate in the search trace; None if it is not recorded there."""


@dataclass
class SimulatedSearch:
    """A search among models compiled with different options; its methods compile, simulate and record candidates."""

    name: str
    """The option that started the search, such as `--tune`, for the trace."""
    objective: Objective
    """The goal and the limits by which candidates are compared."""
    make: Make
    """Compiles the model with given options."""
    costs: SimulatedCostModel
    """The cost model that runs candidates in the simulator."""
    trace: SearchTrace | None = field(default=None, repr=False)
    """Records the candidates, and which were chosen or rejected for which reason; None to record nothing."""

    def candidate(self, name: str, transformation: str, options: CompileOptions) -> SimulatedCandidate:
        """Compile the model with the given options, simulate it, record it, and return it as a candidate.

        Args:
            name: Name of the candidate in messages.
            transformation: The kind of decision by which the candidate differs from the requested program, for the
                trace.
            options: The options to compile with.
        """
        compiled = self.make(options)
        metrics = self.costs.evaluate(compiled, AccuracyLevel.SIMULATED)
        number = None
        if self.trace is not None:
            planned = ProgramCandidate(name, BuiltProgram(compiled.program), metrics)
            plan = ProgramPlan.of(planned, compiled.board, compiled.options)
            number = self.trace.record(TraceEntry(0, self.name, name, transformation, plan, metrics))
        return SimulatedCandidate(name, compiled, metrics, number)

    def reject(self, candidate: SimulatedCandidate, reason: str) -> None:
        """Record in the trace, if there is one, that a candidate was rejected.

        Args:
            candidate: The candidate.
            reason: Why it was rejected, as text without a period at its end.
        """
        if self.trace is not None:
            self.trace.judge(candidate.number, f"Rejected: {reason}.")

    def choose(self, candidate: SimulatedCandidate, reason: str) -> None:
        """Record in the trace, if there is one, that a candidate is the result of the search, and the reason."""
        if self.trace is not None:
            self.trace.choose(candidate.number, f"Chosen: {reason}.")
            self.trace.close(self.name, candidate.number, self.objective.budget)
