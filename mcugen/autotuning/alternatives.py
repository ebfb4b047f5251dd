# SPDX-License-Identifier: Apache-2.0
"""What a model would take by other options: the neighbours of a choice, by estimate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from mcugen.core.errors import McugenError
from mcugen.core.options import GOALS, CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import drafted, drafted_in_float
from mcugen.frontend.onnx.load import LoadedModel
from mcugen.lir.program import Program
from mcugen.quantization.quantize import Progress, Quantization
from mcugen.reporting.figures import Alternative
from mcugen.search.budget import likely_use

AS_IT_IS = "as it is"

MORE = 1.02
"""Times what the float32 form takes from which on a quantized program takes more: estimates are not exact."""


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


def notes_of_float_form(
    compiled: CompiledModel, quantization: Quantization, source: LoadedModel, precision: str
) -> list[str]:
    """Return a note if the quantized program takes more flash, RAM or time than the float32 form, by estimate.

    Both are drafted layer by layer for the board. Nothing is said where the float32 form does not fit the board, or
    cannot be compiled for it.

    Args:
        compiled: The compiled model, for its board and options.
        quantization: The quantized model.
        source: The float model.
        precision: The precision as the user knows it.
    """
    board, options = compiled.board, compiled.options
    if options.training is not None or compiled.program.symbols:
        return []
    try:
        (_, integer), real = drafted(quantization, board, options), drafted_in_float(source, board, options)
    except McugenError:
        return []
    uses = [likely_use(program, board, options) for program in (integer, real)]
    if uses[1].lacks:
        return []
    figures = (
        ("flash", "bytes", uses[0].flash, uses[1].flash),
        ("RAM", "bytes", uses[0].ram, uses[1].ram),
        _times(integer, real),
    )
    more = [f"{what} {a:,.0f} {unit}, not {b:,.0f}" for what, unit, a, b in figures if a and b and a > MORE * b]
    if not more:
        return []
    notes = "; ".join(more)
    return [f"the {precision} program takes more than the float32 one, by estimate: {notes} (--precision float32)"]


def _times(integer: Program, real: Program) -> tuple[str, str, float, float]:
    """Return the estimated time of both, by cycles where these are known, else by instructions; 0 is unknown."""
    if integer.cycles_estimate and real.cycles_estimate:
        return "time", "cycles", integer.cycles_estimate, real.cycles_estimate
    return "time", "instructions", integer.instructions_estimate or 0.0, real.instructions_estimate or 0.0
