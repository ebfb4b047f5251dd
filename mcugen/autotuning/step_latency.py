# SPDX-License-Identifier: Apache-2.0
"""`--max-step-cycles`: no step of a run takes longer on the board; a layer that would is computed row by row.

What a step takes is what it took when it ran, in estimated cycles of the board (mcugen.simulation).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mcugen.core.errors import DoesNotFitError, UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.memory.peak import shortened
from mcugen.reporting.figures import StepFigures, layer_title
from mcugen.search.line_buffering import undivided_layers

MOST_TRIALS = 4
"""Programs that are made, one after the other: other kernels may be chosen where layers are divided."""

Measure = Callable[[CompiledModel], tuple[int, ...]]
"""Runs a program: the cycles of each of its steps."""


def in_short_steps(
    options: CompileOptions, make: Callable[[CompileOptions], CompiledModel], measure: Measure
) -> CompiledModel:
    """The model compiled so that no step takes longer than `options` allow, whose header and report tell the bounds.

    DoesNotFitError names the layer of the longest step, where that cannot be divided; UsageError: two deadlines, or
    nothing is known of the board's time.
    """
    limit = options.max_step_cycles or 0
    if limit < 1 or options.max_cycles is not None or options.max_latency is not None:
        found = f"{options.max_step_cycles}" if limit < 1 else "--max-cycles or --max-latency besides"
        raise UsageError("--max-step-cycles must be positive, and the only deadline", found, "leave one out")
    wanted = replace(options, steps=True)
    for _ in range(MOST_TRIALS):
        compiled = make(wanted)
        each = longest_steps(compiled, measure(compiled))
        names = [compiled.program.completing(layer).name for layer in compiled.program.layers()]
        slow = {name: cycles for name, cycles in zip(names, each, strict=True) if cycles > limit}
        if not slow:
            return with_steps(compiled, limit, each)
        undivided = undivided_layers(compiled.graph) | dict.fromkeys(wanted.by_rows, "that is one row of it")
        stuck = slow.keys() & undivided.keys()
        if stuck:
            break
        wanted = replace(wanted, by_rows=wanted.by_rows | slow.keys())
    worst = max(stuck or slow, key=slow.__getitem__)
    head = compiled.program.head(compiled.program.layers()[names.index(worst)])
    reason = undivided.get(worst, "dividing some layers made others slower")
    found = f"layer '{shortened(layer_title(worst, head.origin))}' takes {slow[worst]:,}: {reason}"
    raise DoesNotFitError(f"a step must take {limit:,} cycles at most", found, "allow more, or use a faster board")


def longest_steps(compiled: CompiledModel, cycles: tuple[int, ...]) -> list[int]:
    """Of each layer the longest step in cycles, by those of all steps; 0 for a layer that takes none."""
    found = [0] * len(compiled.bundle.layers)
    for layer, taken in zip(compiled.bundle.steps, cycles, strict=True):
        found[layer] = max(found[layer], taken)
    return found


def with_steps(compiled: CompiledModel, limit: int, each: list[int]) -> CompiledModel:
    """The same, with what its steps take."""
    by_rows = sorted(compiled.options.by_rows)
    figures = StepFigures(len(compiled.bundle.steps), limit, max(each, default=0), each, by_rows)
    report = replace(compiled.report, steps=figures)
    form = replace(compiled.draft.form, step_cycles=tuple(each))
    draft = compiled.draft._replace(form=form, report=report.to_json())
    return replace(compiled, report=report, draft=draft)
