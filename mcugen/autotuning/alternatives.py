# SPDX-License-Identifier: Apache-2.0
"""Estimates of the RAM, flash and time of a model with other goals, options or precisions than the requested ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from mcugen.core.errors import DoesNotFitError, McugenError
from mcugen.core.options import GOALS, CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.drafts import draft_float_program, draft_program
from mcugen.frontend.onnx.load import LoadedModel
from mcugen.quantization.quantize import Progress, Quantization
from mcugen.reporting.figures import Alternative
from mcugen.search.cost_model import ProgramCostModel
from mcugen.search.objective import TOLERANCES
from mcugen.search.option_hints import INTEGER_IO_HINT, float_ends_at_peak, names_of_ends
from mcugen.search.plan import BuiltProgram

UNCHANGED_MODEL_NAME = "as it is"
"""Name, in tables of alternatives, of the model with the options that the user set."""


def without_deadlines(options: CompileOptions) -> CompileOptions:
    """Return the options without deadlines, tuning, stack bounds, self-tests and monitors, which all run the program.

    A model that is compiled with the returned options is only estimated, which is fast.
    """
    estimated = replace(options, tune=0, times={}, monitor=False)
    return replace(
        estimated, max_latency=None, max_cycles=None, max_step_cycles=None, stack_bound=False, self_test=0, plausible={}
    )


def other_goals(chosen: CompileOptions) -> list[tuple[str, CompileOptions]]:
    """Return, for each optimization goal but the chosen one, its name and the options to estimate the model for it."""
    return [(goal, replace(without_deadlines(chosen), optimize=goal)) for goal in GOALS if goal != chosen.optimize]


def compare_alternatives(
    compiled: CompiledModel, makes: Mapping[str, Callable[[], CompiledModel]], progress: Progress
) -> tuple[Alternative, ...]:
    """Return the estimated RAM, flash and instructions of a compiled model and of each alternative to it.

    An alternative is the same model compiled with other options, such as another optimization goal. If an alternative
    cannot be compiled, the result holds the reason in place of its figures.

    Args:
        compiled: The model with the options that the user set.
        makes: Functions without arguments that compile an alternative, by the name of the alternative.
        progress: Receives the number of finished alternatives.
    """
    alternatives = [Alternative(UNCHANGED_MODEL_NAME, *_estimates(compiled))]
    for count, (name, make) in enumerate(makes.items()):
        progress("other options", count, len(makes))
        try:
            alternatives.append(Alternative(name, *_estimates(make())))
        except McugenError as error:
            alternatives.append(Alternative(name, None, None, None, f"{error.rule}: {error.found}"))
    return tuple(alternatives)


def _estimates(compiled: CompiledModel) -> tuple[int, int, int | None]:
    """Return the bytes of RAM and of flash, and the instructions."""
    metrics = ProgramCostModel(compiled.board, compiled.options).likely(BuiltProgram(compiled.program))
    instructions = compiled.program.instructions_estimate
    return metrics.ram, metrics.flash, None if instructions is None else round(instructions)


def compare_with_float_program(
    compiled: CompiledModel, quantization: Quantization, source: LoadedModel, precision: str
) -> list[str]:
    """Return a note for the user if the quantized program is estimated to cost more than one in float32; else [].

    The note says by how much the quantized program takes more flash, RAM or time. For the estimate, both programs run
    layer by layer on the board. There is no note if the float32 program does not fit the board, or cannot be compiled
    for it.

    Args:
        compiled: The compiled model, for its board and options.
        quantization: The quantized model.
        source: The float model.
        precision: The precision of the quantized model, as the note names it.
    """
    board, options = compiled.board, compiled.options
    if options.training is not None or compiled.program.symbols:
        return []
    try:
        (_, integer), real = draft_program(quantization, board, options), draft_float_program(source, board, options)
    except McugenError:
        return []
    costs = ProgramCostModel(board, options)
    quantized, exact = (costs.likely(BuiltProgram(program)) for program in (integer, real))
    if exact.use.lacks:
        return []
    unit = "instructions" if quantized.cycles is None or exact.cycles is None else "cycles"
    figures = (
        ("flash", "bytes", quantized.flash, exact.flash),
        ("RAM", "bytes", quantized.ram, exact.ram),
        ("time", unit, *(getattr(metrics, unit) for metrics in (quantized, exact))),
    )
    excesses = [
        f"{label} {a:,.0f} {unit}, not {b:,.0f}"
        for label, unit, a, b in figures
        if a and b and a > TOLERANCES.min_reported_ratio * b
    ]
    if not excesses:
        return []
    notes = "; ".join(excesses)
    return [f"the {precision} program takes more than the float32 one, by estimate: {notes} (--precision float32)"]


def compare_with_integer_io(compiled: CompiledModel, make: Callable[[CompileOptions], CompiledModel]) -> CompiledModel:
    """Return the model with a note of the RAM that --integer-io would save.

    With this option, the caller passes and gets quantized values instead of floats. The model is returned unchanged
    unless float inputs or outputs take much of the arena when its use is largest.

    Args:
        compiled: The compiled model.
        make: Compiles the model with given options.
    """
    ends = float_ends_at_peak(compiled.program, compiled.options)
    if not ends or compiled.options.training is not None:
        return compiled
    try:
        arena = make(replace(without_deadlines(compiled.options), integer_io=True)).program.arena_size
    except McugenError:
        return compiled
    floats, report = compiled.program.arena_size, compiled.report
    notes = [note for note in report.notes if not note.startswith(INTEGER_IO_HINT)]
    if arena < floats:
        sizes = f"the arena takes {floats:,} bytes, and {arena:,} with it, {floats - arena:,} less"
        notes.append(f"{INTEGER_IO_HINT}: {names_of_ends(ends)}; {sizes}")
    report = replace(report, notes=tuple(notes))
    return replace(compiled, report=report, draft=compiled.draft._replace(report=report.to_json()))


def _compiles(options: CompileOptions, make: Callable[[CompileOptions], CompiledModel]) -> bool:
    try:
        make(options)
    except McugenError:
        return False
    return True


def refusal_with_integer_io(
    error: DoesNotFitError, options: CompileOptions, make: Callable[[CompileOptions], CompiledModel]
) -> DoesNotFitError:
    """Return an error that a model does not fit the board, with advice to use --integer-io if the model fits with it.

    With this option, the caller passes and gets quantized values instead of floats.

    Args:
        error: The error without that advice; it is returned if --integer-io does not help.
        options: The options of the compilation.
        make: Compiles the model with given options.
    """
    if options.integer_io or options.states or options.input_pipeline or options.training is not None:
        return error
    untimed = without_deadlines(options)
    if untimed != options and _compiles(untimed, make):
        return error  # The time is exceeded, not the memory.
    try:
        arena = make(replace(untimed, integer_io=True)).program.arena_size
    except McugenError:
        return error
    return DoesNotFitError(error.rule, error.found, f"--integer-io: the arena then takes {arena:,} bytes, which fits")
