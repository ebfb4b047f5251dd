# SPDX-License-Identifier: Apache-2.0
"""`--max-step-cycles`: limit the time of each step of a run; layers that take longer are computed row by row.

The time of a step is measured by running it in the simulator, in estimated cycles of the board (mcugen.simulation).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mcugen.core.errors import DoesNotFitError, UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.memory.peak import shorten_name
from mcugen.reporting.figures import StepFigures, layer_title
from mcugen.search.line_buffering import undivided_layers

MAX_STEP_TRIALS = 4
"""Largest number of programs that are built: dividing some layers may change the kernels of further layers."""

Measure = Callable[[CompiledModel], tuple[int, ...]]
"""Runs a program and returns the cycles of each of its steps."""


def in_short_steps(
    options: CompileOptions, make: Callable[[CompileOptions], CompiledModel], measure: Measure
) -> CompiledModel:
    """Return the model compiled so that no step exceeds the limit, with the bounds in its header and report.

    Args:
        options: Options with the limit.
        make: Compiles the model with given options.
        measure: Runs a program and returns the cycles of its steps.

    Raises:
        DoesNotFitError: If the layer of the longest step cannot be divided; the error names it.
        UsageError: If there are two deadlines, or the time on this board cannot be measured.
    """
    limit = options.max_step_cycles or 0
    if limit < 1 or options.max_cycles is not None or options.max_latency is not None:
        problem = f"{options.max_step_cycles}" if limit < 1 else "--max-cycles or --max-latency besides"
        raise UsageError("--max-step-cycles must be positive, and the only deadline", problem, "leave one out")
    trial_options = replace(options, steps=True)
    for _ in range(MAX_STEP_TRIALS):
        compiled = make(trial_options)
        layer_steps = longest_steps(compiled, measure(compiled))
        names = [compiled.program.completing(layer).name for layer in compiled.program.layers()]
        slow = {name: cycles for name, cycles in zip(names, layer_steps, strict=True) if cycles > limit}
        if not slow:
            return with_steps(compiled, limit, layer_steps)
        undivided = undivided_layers(compiled.graph) | dict.fromkeys(trial_options.by_rows, "that is one row of it")
        undividable = slow.keys() & undivided.keys()
        if undividable:
            break
        trial_options = replace(trial_options, by_rows=trial_options.by_rows | slow.keys())
    worst = max(undividable or slow, key=slow.__getitem__)
    head = compiled.program.head(compiled.program.layers()[names.index(worst)])
    reason = undivided.get(worst, "dividing some layers made others slower")
    problem = f"layer '{shorten_name(layer_title(worst, head.origin))}' takes {slow[worst]:,}: {reason}"
    raise DoesNotFitError(f"a step must take {limit:,} cycles at most", problem, "allow more, or use a faster board")


def longest_steps(compiled: CompiledModel, cycles: tuple[int, ...]) -> list[int]:
    """Return for each layer the cycles of its longest step; 0 for a layer without steps."""
    longest = [0] * len(compiled.bundle.layers)
    for layer, step_cycles in zip(compiled.bundle.steps, cycles, strict=True):
        longest[layer] = max(longest[layer], step_cycles)
    return longest


def with_steps(compiled: CompiledModel, limit: int, layer_steps: list[int]) -> CompiledModel:
    """Return the model with the measured steps in its report and header.

    Args:
        compiled: The compiled model.
        limit: The limit of a step in cycles.
        layer_steps: Cycles of each layer's longest step.
    """
    by_rows = sorted(compiled.options.by_rows)
    figures = StepFigures(len(compiled.bundle.steps), limit, max(layer_steps, default=0), layer_steps, by_rows)
    report = replace(compiled.report, steps=figures)
    form = replace(compiled.draft.form, step_cycles=tuple(layer_steps))
    draft = compiled.draft._replace(form=form, report=report.to_json())
    return replace(compiled, report=report, draft=draft)
