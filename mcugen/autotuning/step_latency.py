# SPDX-License-Identifier: Apache-2.0
"""`--max-step-cycles`: limit the time of each step of a run; layers that take longer are computed row by row.

The time of a step is measured by running it in the simulator, in estimated cycles of the board (mcugen.simulation).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mcugen.autotuning.simulated import Make, SimulatedCostModel, SimulatedSearch
from mcugen.core.errors import DoesNotFitError, UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.hir.layer_names import shorten_name
from mcugen.lir.layer_titles import titles_of
from mcugen.reporting.figures import StepFigures
from mcugen.search.line_buffering import reasons_against_own_group
from mcugen.search.metrics import AccuracyLevel, Metrics
from mcugen.search.objective import Objective
from mcugen.search.trace import SearchTrace

MAX_STEP_TRIALS = 4
"""Largest number of programs that are built until no step exceeds the limit.

Several may be needed: if some layers run row by row, kernels may change in other layers, which then exceed the limit.
"""

MeasureSteps = Callable[[CompiledModel], tuple[int, ...]]
"""A function that runs a compiled model in the simulator, and returns the cycles of each of its steps."""


class StepCostModel(SimulatedCostModel):
    """A cost model that measures the cycles of a compiled model's longest step.

    A step is what one call of the generated function NAME_step computes: a layer, or some rows of layers that are
    computed row by row.

    Args:
        measure_steps: Runs a program in the simulator and returns the cycles of each step.
    """

    def __init__(self, measure_steps: MeasureSteps) -> None:
        super().__init__(lambda compiled: compiled.report)
        self._measure_steps = measure_steps
        self.layer_steps: list[int] = []
        """Cycles of each layer's longest step, of the last program that ran."""

    def measure(self, candidate: CompiledModel, level: AccuracyLevel) -> Metrics:
        """Compute the metrics of a model that is not in the cache, with the cycles of its longest step.

        A step is what one call of the generated function NAME_step computes. The steps run in the simulator at any
        level; the other metrics are estimated.
        """
        estimate = super().measure(candidate, AccuracyLevel.ESTIMATED)
        self.layer_steps = longest_steps(candidate, self._measure_steps(candidate))
        return replace(estimate, step_cycles=max(self.layer_steps, default=0), level=level)


def compile_in_short_steps(
    options: CompileOptions, make: Make, measure_steps: MeasureSteps, trace: SearchTrace | None = None
) -> CompiledModel:
    """Compile the model so that no step takes more than `max_step_cycles`; layers that take longer run row by row.

    A step is what one call of the generated function NAME_step computes: a layer, or some rows of layers that are
    computed row by row. The measured cycles of steps are in the header and the report of the result.

    Args:
        options: Options with `max_step_cycles`.
        make: Compiles the model with given options.
        measure_steps: Runs a program in the simulator and returns the cycles of each step.
        trace: Records the candidates, if given.

    Raises:
        DoesNotFitError: If the layer of the longest step cannot be divided; the error names it.
        UsageError: If there are two deadlines, or the time on this board cannot be measured.
    """
    limit = options.max_step_cycles or 0
    if limit < 1 or options.max_cycles is not None or options.max_latency is not None:
        problem = f"{options.max_step_cycles}" if limit < 1 else "--max-cycles or --max-latency besides"
        raise UsageError("--max-step-cycles must be positive, and the only deadline", problem, "leave one out")
    objective = replace(Objective.of(options), max_step_cycles=limit)
    costs = StepCostModel(measure_steps)
    search = SimulatedSearch("--max-step-cycles", objective, make, costs, trace)
    trial_options = replace(options, steps=True)
    for _ in range(MAX_STEP_TRIALS):
        name = f"{len(trial_options.by_rows)} layers by rows" if trial_options.by_rows else "as asked"
        candidate = search.candidate(name, "line-buffer fusion", trial_options)
        compiled, layer_steps = candidate.compiled, costs.layer_steps
        if objective.is_in_time(candidate.metrics):
            search.choose(candidate, f"no step takes more than {limit:,} cycles")
            return with_steps(compiled, limit, layer_steps)
        search.reject(candidate, f"a step takes {candidate.metrics.step_cycles:,.0f} cycles")
        names = [compiled.program.completing(layer).name for layer in compiled.program.layers()]
        slow = {name: cycles for name, cycles in zip(names, layer_steps, strict=True) if cycles > limit}
        undivided = reasons_against_own_group(compiled.graph) | dict.fromkeys(
            trial_options.by_rows, "that is one row of it"
        )
        undividable = slow.keys() & undivided.keys()
        if undividable:
            break
        trial_options = replace(trial_options, by_rows=trial_options.by_rows | slow.keys())
    worst = max(undividable or slow, key=slow.__getitem__)
    reason = undivided.get(worst, "dividing some layers made others slower")
    problem = f"layer '{shorten_name(compiled.report.layers[names.index(worst)].name)}' takes {slow[worst]:,}: {reason}"
    raise DoesNotFitError(f"a step must take {limit:,} cycles at most", problem, "allow more, or use a faster board")


def longest_steps(compiled: CompiledModel, cycles: tuple[int, ...]) -> list[int]:
    """Return the cycles of the longest step of each layer of the program; 0 for a layer without steps.

    A step is what one call of the generated function NAME_step computes: a layer, or some rows of layers that are
    computed row by row.

    Args:
        compiled: The compiled model.
        cycles: Measured cycles of each step of the program, in order.
    """
    longest = [0] * len(compiled.bundle.layers)
    for layer, step_cycles in zip(compiled.bundle.steps, cycles, strict=True):
        longest[layer] = max(longest[layer], step_cycles)
    return longest


def with_steps(compiled: CompiledModel, limit: int, layer_steps: list[int]) -> CompiledModel:
    """Return the compiled model with the measured cycles of its steps in the report and the C header.

    A step is what one call of the generated function NAME_step computes: a layer, or some rows of layers that are
    computed row by row.

    Args:
        compiled: The compiled model.
        limit: The most cycles that a step may take.
        layer_steps: Cycles of each layer's longest step.
    """
    titles = titles_of(compiled.program)
    by_rows = [titles.get(name, name) for name in sorted(compiled.options.by_rows)]
    figures = StepFigures(len(compiled.bundle.steps), limit, max(layer_steps, default=0), layer_steps, by_rows)
    report = replace(compiled.report, steps=figures)
    form = replace(compiled.draft.form, step_cycles=tuple(layer_steps))
    draft = compiled.draft._replace(form=form, report=report.to_json())
    return replace(compiled, report=report, draft=draft)
