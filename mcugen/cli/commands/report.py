# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen report`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import typer

from mcugen.cli.command import Model, command_text, takes_options
from mcugen.cli.commands.console import stdout, tell_notes, tell_warnings, watched, write_json
from mcugen.core.errors import UsageError
from mcugen.distributed.sharing import Workers
from mcugen.driver.tasks import Teaching
from mcugen.options.arguments import CompilationTask, OutputOptions


@dataclass(frozen=True)
class ReportOptions:
    """The options of `mcugen report` on its figures.

    Attributes:
        compare_layers: Whether to print the errors of all layers, in order.
        diverged: SQNR in dB below which a layer of a quantized model counts as diverged.
        wait_states: Wait states of flash in CPU cycles, in place of those in the board file.
        extreme_inputs: Whether to run extreme inputs too.
        html: File for the report as a page, if any.
    """

    compare_layers: bool
    diverged: float
    wait_states: int | None
    extreme_inputs: bool
    html: Path | None


@takes_options
def report(
    context: typer.Context,
    model: Model,
    *,
    board: str,
    task: CompilationTask,
    figures: ReportOptions,
    teaching: Teaching | None,
    sharing: Workers,
    output_options: OutputOptions,
) -> None:
    """Compile and build, run every sample under QEMU, and report accuracy, instructions, flash and RAM."""
    from mcugen.api.compilation import Compilation
    from mcugen.autotuning.latency import require_deadline
    from mcugen.codegen.write import write_text
    from mcugen.measurement.extremes import require_simulated, with_extremes
    from mcugen.reporting.figures import require_fit
    from mcugen.reporting.html import report_page
    from mcugen.reporting.text import print_report
    from mcugen.search.objective import Deadline

    if figures.compare_layers and not task.quantizing.is_wanted:
        remedy = "give --precision int8 --calibration SAMPLES.npz and the float model"
        raise UsageError("--compare-layers needs a model that mcugen quantizes", "none", remedy)
    net = Compilation.of(model, board, task, teaching=teaching, workers=sharing)
    if figures.extreme_inputs:
        require_simulated(net.target)
    with watched(net, output_options.quiet):
        result = net.report(diverged=figures.diverged, wait_states=figures.wait_states)
        if figures.extreme_inputs:
            result = with_extremes(net.compiled, result, net.progress)
        if teaching is not None:
            result = replace(result, learning=net.learned())
        if figures.html is not None:
            result = replace(result, alternatives=net.alternatives())
    compiled = net.compiled
    result = replace(result, command=command_text(context))
    write_json(output_options.json_, result)
    tell_warnings(result.warnings)
    if not output_options.quiet:
        tell_notes(result.notes)
    if figures.html is not None:
        write_text(figures.html, report_page(result))
    if output_options.json_ != "-":
        print_report(result, stdout, figures.compare_layers, output_options.wide)
    require_fit(result, compiled.board)
    deadline = Deadline.of(task.options, compiled.board)
    if deadline is not None:
        require_deadline(deadline, result)
