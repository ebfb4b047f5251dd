# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen compile`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mcugen.cli.command import Model, takes_options
from mcugen.cli.commands.console import (
    print_trace,
    tell,
    tell_kept,
    tell_notes,
    tell_quantization,
    tell_warnings,
    watched,
    write_json,
)
from mcugen.core.errors import UsageError
from mcugen.driver.tasks import Teaching
from mcugen.options.arguments import CompilationTask, OutputOptions


@dataclass(frozen=True)
class PassOptions:
    """The options of `mcugen compile` that print what passes do.

    Attributes:
        dump_after: Name of the pass after which the graph is printed; "" for none.
        time_passes: Whether to print the time of each pass.
    """

    dump_after: str
    time_passes: bool


@takes_options
def compile_command(
    model: Model,
    *,
    board: str,
    output: Path | None,
    force: bool,
    task: CompilationTask,
    teaching: Teaching | None,
    passes: PassOptions,
    output_options: OutputOptions,
) -> None:
    """Compile a model to a folder of C source files."""
    from mcugen.api.compilation import Compilation
    from mcugen.driver.compilation_trace import CompilationTrace
    from mcugen.reporting.text import holds

    training = task.options.training
    if teaching is not None and not (training and training.needs_layer_search):
        remedy = "`mcugen report --lesson` shows what a model learns"
        raise UsageError("--lesson is for --train auto, which chooses the trained layers", "no --train auto", remedy)
    trace = CompilationTrace(passes.dump_after)
    net = Compilation.of(model, board, task, teaching=teaching, trace=trace)
    with watched(net, output_options.quiet):
        folder = net.write(output, force=force)
    compiled = net.compiled
    print_trace(trace, passes.time_passes)
    write_json(output_options.json_, compiled.report)
    tell_warnings(compiled.report.warnings)
    if output_options.quiet:
        return
    tell_notes(compiled.report.notes)
    ram, flash = compiled.report.ram, compiled.report.flash
    tell(
        f"{folder}: {len(compiled.bundle.files) + len(compiled.bundle.blobs)} files, arena {ram.arena:,} bytes, "
        f"weights {flash.weights:,} bytes, {compiled.report.model.macs:,} MACs"
    )
    tell_kept(folder)
    pipeline = compiled.report.input_pipeline
    if pipeline is not None:
        tell(f"input pipeline: {pipeline.state:,} bytes of state for each stream, {pipeline.tables:,} bytes of tables")
    for memory in compiled.report.memories if compiled.bundle.sections else ():
        tell(f"  {memory.name}: {memory.used:,} {holds(memory)}")
    if compiled.report.rows is not None:
        tell(f"{compiled.report.rows.layers} layers {compiled.report.rows}")
    if compiled.report.library_calls:
        tell(compiled.report.library_calls)
    report = compiled.report
    for choice in (report.budget, report.steps, report.tuning, report.deadline):
        if choice is not None:
            tell(str(choice))
    if compiled.quantization:
        tell_quantization(compiled.quantization)
