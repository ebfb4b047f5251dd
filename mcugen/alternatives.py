# SPDX-License-Identifier: Apache-2.0
"""What a model would take by other options: the neighbours of a choice, by estimate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from mcugen.compiled import CompiledModel
from mcugen.errors import McugenError
from mcugen.fitting.budget import likely_use
from mcugen.options import GOALS, CompileOptions
from mcugen.quant.quantize import Progress
from mcugen.report.figures import Alternative

AS_IT_IS = "as it is"


def without_deadlines(options: CompileOptions) -> CompileOptions:
    """For an estimate: nothing is measured to be fast enough."""
    estimated = replace(options, tune=0, times={})
    return replace(
        estimated, max_latency=None, max_cycles=None, max_step_cycles=None, stack_bound=False, self_test=0, plausible={}
    )


def other_goals(taken: CompileOptions) -> list[tuple[str, CompileOptions]]:
    """Those that were not taken, with the options as they would be."""
    return [(goal, replace(without_deadlines(taken), optimize=goal)) for goal in GOALS if goal != taken.optimize]


def compared(
    compiled: CompiledModel, makes: Mapping[str, Callable[[], CompiledModel]], progress: Progress
) -> tuple[Alternative, ...]:
    """A model as it is, then each that can be made by its name."""
    found = [Alternative(AS_IT_IS, *_estimates(compiled))]
    for done, (name, make) in enumerate(makes.items()):
        progress("other options", done, len(makes))
        try:
            found.append(Alternative(name, *_estimates(make())))
        except McugenError as error:
            found.append(Alternative(name, None, None, None, f"{error.rule}: {error.found}"))
    return tuple(found)


def _estimates(compiled: CompiledModel) -> tuple[int, int, int | None]:
    """Bytes of RAM and of flash, and instructions."""
    program = compiled.program
    use, instructions = likely_use(program, compiled.board, compiled.options), program.instructions_estimate
    return use.ram, use.flash, None if instructions is None else round(instructions)
