# SPDX-License-Identifier: Apache-2.0
"""`--max-latency` and `--max-cycles`: of the programs that are fast enough, choose the one that serves the goal best.

Time is measured by running a program in the simulator, in estimated cycles of the board (mcugen.simulation). Programs
between the requested and the fastest one are built by a limit on the estimated instructions of their kernels. The
search looks for the largest limit that meets the deadline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mcugen.autotuning.simulated import SimulatedCandidate, SimulatedCostModel, SimulatedSearch, cycles_of
from mcugen.core.errors import DoesNotFitError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.hir.layer_names import shorten_name
from mcugen.reporting.figures import DeadlineFigures, Report
from mcugen.search.objective import TOLERANCES, Deadline

MAX_TRIALS = 4
"""Largest number of programs that are run to find the one that just meets a deadline.

They are slower than the fastest program and faster than the requested one, by estimate.
"""

NUM_NAMED_LAYERS = 3
"""Number of layers that a message about a missed deadline names: the slowest ones."""


def require_deadline(deadline: Deadline, report: Report) -> None:
    """Raise an error that names the slowest layers if the program of a report takes longer than the deadline.

    Raises:
        DoesNotFitError: If the deadline is missed.
        UsageError: If the time on this board cannot be measured.
    """
    if cycles_of(report) > deadline.cycles:
        remedy = "allow more, use a faster board (mcugen boards), a smaller or a quantized model"
        rule = f"a call must take {deadline.text} at most: {deadline.cycles:,} cycles"
        raise DoesNotFitError(rule, f"the least is {describe_time(report)}", remedy)


@dataclass
class DeadlineCheck:
    """A check whether a call of a model's fastest program meets a deadline; one check serves several models in turn.

    A program runs in the simulator unless earlier runs show that it is clearly fast enough.
    """

    deadline: Deadline
    """The largest accepted time of a call."""
    costs: SimulatedCostModel
    """The cost model that runs programs in the simulator."""
    missed: Report | None = None
    """The report of the last program that missed the deadline; None if none did."""
    _cpi: float | None = None
    """Cycles per estimated instruction of the last program that ran."""

    def is_met_by(self, fastest: CompiledModel) -> bool:
        """Return whether the fastest program of a model meets the deadline.

        The answer is yes without a run if the estimated cycles are clearly below the deadline. The estimate uses the
        cycles per instruction of the last run. Otherwise the program runs in the simulator.

        Raises:
            UsageError: If the time on this board cannot be measured.
        """
        instructions = fastest.program.instructions_estimate or 0.0
        if self._cpi is not None and TOLERANCES.max_cpi_ratio * self._cpi * instructions <= self.deadline.cycles:
            return True
        report = self.costs.report(fastest)
        cycles = cycles_of(report)
        self._cpi = cycles / max(instructions, 1.0)
        is_met = cycles <= self.deadline.cycles
        self.missed = self.missed if is_met else report
        return is_met


def meet_deadline(deadline: Deadline, options: CompileOptions, search: SimulatedSearch) -> CompiledModel:
    """Compile the model so that a call meets the deadline, and serve the user's goal as well as the deadline allows.

    Args:
        deadline: The largest accepted time of a call.
        options: The requested options.
        search: Builds and measures candidates.

    Raises:
        DoesNotFitError: If the fastest program misses the deadline; the error says its time.
        UsageError: If the time on this board cannot be measured.
    """
    baseline = search.candidate("as asked", "requested program", options)
    if not search.objective.is_in_time(baseline.metrics):
        fastest = search.candidate("all for speed", "other goal", replace(options, optimize="speed"))
        fastest_run = min(baseline, fastest, key=lambda candidate: candidate.metrics.time)
        require_deadline(deadline, search.costs.report(fastest_run.compiled))
        chosen = _best_in_time(deadline, options, search, (fastest, baseline))
    else:
        chosen = baseline
    search.choose(chosen, f"serves the goal best within {deadline.cycles:,} cycles")
    cycles, requested = (cycles_of(search.costs.report(c.compiled)) for c in (chosen, baseline))
    figures = DeadlineFigures(deadline.cycles, cycles, requested, chosen.name)
    return replace(chosen.compiled, report=replace(chosen.compiled.report, deadline=figures))


def _best_in_time(
    deadline: Deadline,
    options: CompileOptions,
    search: SimulatedSearch,
    ends: tuple[SimulatedCandidate, SimulatedCandidate],
) -> SimulatedCandidate:
    """Return the slowest candidate in time between the fastest and the requested one.

    Args:
        deadline: The most cycles of a call.
        options: The requested options.
        search: Builds and measures candidates.
        ends: The fastest candidate, which is in time, and the requested one, which is not.
    """
    chosen = ends[0]
    low, high = (candidate.compiled.program.instructions_estimate or 0.0 for candidate in ends)
    fast_cycles, slow_cycles = (candidate.metrics.time for candidate in ends)
    # The share where the deadline lies if cycles grow with instructions, less a margin.
    margin = TOLERANCES.deadline_margin
    share = margin * (deadline.cycles - fast_cycles) / max(slow_cycles - fast_cycles, 1)
    share = min(max(share, 1 - margin), margin)
    for _ in range(MAX_TRIALS):
        if high - low < TOLERANCES.min_trial_share * low:
            break
        limit = low + share * (high - low)
        name = f"kernels of {limit:,.0f} instructions at most, by estimate"
        between = search.candidate(name, "kernel choice", replace(options, most_instructions=limit))
        if search.objective.is_in_time(between.metrics):
            search.reject(chosen, "a slower program is in time")
            chosen, low = between, limit
        else:
            search.reject(between, f"takes {between.metrics.time:,.0f} cycles")
            high = limit
        share = 0.5
    return chosen


def describe_time(report: Report) -> str:
    """Return the cycles and milliseconds of a simulated call as text, with the slowest layers and their cycles."""
    cycles = cycles_of(report)
    return f"{cycles:,} cycles, {1e3 * cycles / report.clock_hz:.4g} ms, of which {_slowest(report)}"


def _slowest(report: Report) -> str:
    """Return the slowest layers as text, with their cycles."""
    slowest = sorted(report.layers, key=lambda layer: -(layer.cycles_estimate or 0))[:NUM_NAMED_LAYERS]
    titles = [shorten_name(layer.name) for layer in slowest]
    entries = [f"{layer.cycles_estimate or 0:,} '{title}'" for layer, title in zip(slowest, titles, strict=True)]
    return f"{', '.join(entries[:-1])} and {entries[-1]}" if len(entries) > 1 else entries[0]
