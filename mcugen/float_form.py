# SPDX-License-Identifier: Apache-2.0
"""Whether a quantized program takes more than the same model in float32, which small models may."""

from __future__ import annotations

from mcugen.compiled import CompiledModel
from mcugen.compiler import drafted, drafted_in_float
from mcugen.errors import McugenError
from mcugen.fitting.budget import likely_use
from mcugen.importer.load import LoadedModel
from mcugen.lir.program import Program
from mcugen.quant.quantize import Quantization

MORE = 1.02
"""Times what the float32 form takes from which on a quantized program takes more: estimates are not exact."""


def notes_of_float_form(compiled: CompiledModel, found: Quantization, source: LoadedModel, precision: str) -> list[str]:
    """Return a note if the quantized program takes more flash, RAM or time than the float32 form, by estimate.

    Both are drafted layer by layer for the board. Nothing is said where the float32 form does not fit the board, or
    cannot be compiled for it.

    Args:
        compiled: The compiled model, for its board and options.
        found: The quantized model.
        source: The float model.
        precision: The precision as the user knows it.
    """
    board, options = compiled.board, compiled.options
    if options.training is not None or compiled.program.symbols:
        return []
    try:
        (_, integer), real = drafted(found, board, options), drafted_in_float(source, board, options)
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
    told = "; ".join(more)
    return [f"the {precision} program takes more than the float32 one, by estimate: {told} (--precision float32)"]


def _times(integer: Program, real: Program) -> tuple[str, str, float, float]:
    """Return the estimated time of both, by cycles where these are known, else by instructions; 0 is unknown."""
    if integer.cycles_estimate and real.cycles_estimate:
        return "time", "cycles", integer.cycles_estimate, real.cycles_estimate
    return "time", "instructions", integer.instructions_estimate or 0.0, real.instructions_estimate or 0.0
