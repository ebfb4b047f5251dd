# SPDX-License-Identifier: Apache-2.0
"""The command line: one function a command; results on stdout, progress and errors on stderr.

numpy and the compiler are imported by the commands that need it, so that help and lists of boards come at once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from mcugen.board import load_board
from mcugen.boundary import Commands, guarded
from mcugen.cli_options import (
    BoardName,
    Inspecting,
    Ir,
    Model,
    PixelScale,
    Plugin,
    Preprocess,
    Program,
    Quiet,
    Reporting,
    Telling,
    Watching,
    Without,
    takes_options,
    techniques,
)
from mcugen.errors import UsageError, printable, shortened
from mcugen.options import CompileOptions
from mcugen.tasks import Judging, Quantizing
from mcugen.version import __version__

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from mcugen.compilation import Compilation
    from mcugen.pipeline import Trace
    from mcugen.quant.quantize import Quantization
    from mcugen.report.figures import Report
    from mcugen.report.memory import MemoryMap

app = Program(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
boards_app = Program(help="Boards that mcugen knows.", invoke_without_command=True)
app.add_typer(boards_app, name="boards")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", help="print the version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Compiles ONNX neural networks to C for microcontrollers."""


@app.command("compile")
@takes_options
def compile_command(
    model: Model,
    *,
    board: BoardName,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="folder; else one called like the model", show_default=False)
    ] = None,
    options: CompileOptions,
    quantizing: Quantizing,
    judging: Judging,
    watching: Watching,
    telling: Telling,
) -> None:
    """Writes a folder of C to paste into a project."""
    from mcugen.compilation import Compilation
    from mcugen.pipeline import Trace
    from mcugen.report.text import holds

    trace = Trace(watching.dump_after)
    net = Compilation(model, board, options, quantizing, judging, trace=trace)
    with _watched(net, telling.quiet):
        folder = net.write(output)
    compiled = net.compiled
    _print_trace(trace, watching.time_passes)
    _write_json(telling.json_, compiled.report)
    if telling.quiet:
        return
    _tell_notes(compiled.report.notes)
    ram, flash = compiled.report.ram, compiled.report.flash
    _tell(
        f"{folder}: {len(compiled.bundle.files) + len(compiled.bundle.blobs)} files, arena {ram.arena:,} bytes, "
        f"weights {flash.weights:,} bytes, {compiled.report.model.macs:,} MACs"
    )
    for memory in compiled.report.memories if compiled.bundle.sections else ():
        _tell(f"  {memory.name}: {memory.used:,} {holds(memory)}")
    if compiled.report.rows is not None:
        _tell(f"{compiled.report.rows.layers} layers {compiled.report.rows}")
    if compiled.report.library_calls:
        _tell(compiled.report.library_calls)
    if compiled.report.budget is not None:
        _tell(str(compiled.report.budget))
    if compiled.quantization:
        _tell_quantization(compiled.quantization)


@app.command()
@takes_options
def report(
    model: Model,
    *,
    board: BoardName,
    options: CompileOptions,
    quantizing: Quantizing,
    judging: Judging,
    reporting: Reporting,
    telling: Telling,
) -> None:
    """Compiles, builds, runs every sample under QEMU and reports accuracy, instructions, flash and RAM."""
    from mcugen.codegen.write import write_text
    from mcugen.compilation import Compilation
    from mcugen.report.figures import require_fit
    from mcugen.report.html import report_page
    from mcugen.report.memory import memory_map
    from mcugen.report.text import print_report

    if reporting.compare_layers and not quantizing.is_wanted:
        remedy = "give --precision int8 --calibration SAMPLES.npz and the float model"
        raise UsageError("--compare-layers needs a model that mcugen quantizes", "none", remedy)
    net = Compilation(model, board, options, quantizing, judging)
    with _watched(net, telling.quiet):
        result = net.report(diverged=reporting.diverged, wait_states=reporting.wait_states)
    compiled = net.compiled
    _write_json(telling.json_, result)
    if not telling.quiet:
        _tell_notes(result.notes)
    if reporting.html is not None:
        write_text(reporting.html, report_page(result, memory_map(compiled.program, compiled.board.name)))
    if telling.json_ != "-":
        print_report(result, stdout, reporting.compare_layers)
    require_fit(result, compiled.board)


@app.command()
@takes_options
def run(
    model: Model,
    *,
    board: BoardName,
    inputs: Annotated[Path, typer.Option(help="samples, .npz", show_default=False)],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="where to write the outputs, .npz", show_default=False)
    ],
    options: CompileOptions,
    quantizing: Quantizing,
    judging: Judging,
    quiet: Quiet = False,
) -> None:
    """Runs the generated code on samples and writes what it returned."""
    import numpy as np

    from mcugen.codegen.write import replace_file
    from mcugen.compilation import Compilation

    net = Compilation(model, board, options, quantizing, judging)
    with _watched(net, quiet):
        arrays = net.run(inputs)
    if not quiet:
        _tell_notes(net.notes)
    replace_file(output, lambda file: np.savez(file, allow_pickle=False, **arrays))


@app.command()
@takes_options
def inspect(
    model: Model,
    *,
    board: BoardName = "host",
    options: CompileOptions,
    quantizing: Quantizing,
    judging: Judging,
    inspecting: Inspecting,
    telling: Telling,
) -> None:
    """Prints the graph, MACs, parameters and peak activation memory; or the memory map, or what passes did."""
    from mcugen.codegen.write import write_text
    from mcugen.compilation import Compilation
    from mcugen.fitting.streaming import whole_layers
    from mcugen.hir.printer import print_graph
    from mcugen.lir.printer import print_program
    from mcugen.pipeline import Trace
    from mcugen.report.drawing import draw
    from mcugen.report.listing import print_memory, print_model
    from mcugen.report.memory import memory_map

    ir, memory, passes = inspecting.ir, inspecting.memory, inspecting.passes
    asked = [name for name, wanted in (("--ir", ir), ("--memory", memory), ("--passes", passes)) if wanted]
    if len(asked) > 1 or (ir is not None and telling.json_ == "-"):
        found = " and ".join([*asked, "--json -"][:2])
        raise UsageError("stdout can hold one result", found, "ask for one after the other")
    trace = Trace(watched=[name.strip() for name in passes.split(",")] if passes else ())
    net = Compilation(model, board, options, quantizing, judging, trace=trace)
    try:
        with _watched(net, telling.quiet):
            compiled = net.compiled
    finally:  # what passes did to a model that is refused later may well say why
        if passes:
            _write_json(telling.json_, trace)
        if passes and telling.json_ != "-":
            typer.echo("\n".join(printable(str(effect)) for effect in trace.effects), nl=False)
    arena = memory_map(compiled.program, compiled.board.name, whole_layers(compiled.graph))
    if not passes:
        _write_json(telling.json_, arena if memory else compiled.report)
    if not telling.quiet:
        _tell_notes(compiled.report.notes)
    if inspecting.svg is not None:
        write_text(inspecting.svg, draw(arena))
    if ir is not None:
        typer.echo(print_graph(compiled.graph) if ir is Ir.HIR else print_program(compiled.program), nl=False)
    elif telling.json_ != "-" and memory:
        print_memory(arena, stdout)
    elif telling.json_ != "-" and not passes:
        print_model(compiled.graph, compiled.program, compiled.report, stdout)


@app.command()
@takes_options
def quantize(
    model: Model,
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="the QDQ model, .onnx", show_default=False)],
    options: CompileOptions,
    quantizing: Quantizing,
    judging: Judging,
    quiet: Quiet = False,
) -> None:
    """Writes the quantized model as standard ONNX, which ONNX Runtime runs with the same result."""
    from mcugen.codegen.write import replace_file
    from mcugen.compilation import Compilation

    net = Compilation(model, "host", options, quantizing, judging)
    with _watched(net, quiet):
        quantized = net.quantized
    data = quantized.proto.SerializeToString(deterministic=True)
    replace_file(output, lambda file: file.write(data))
    if not quiet:
        _tell_notes(quantized.notes)
        _tell(f"{output}: {quantized.describe()}")
        _tell_quantization(quantized)


@app.command()
@takes_options
def profile(
    model: Model,
    *,
    calibration: Annotated[Path, typer.Option(help="samples, as for compile", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="the profile, .json", show_default=False)],
    options: CompileOptions,
    preprocess: Preprocess = "",
    pixel_scale: PixelScale = 1.0,
    without: Without = None,
    quiet: Quiet = False,
) -> None:
    """Writes what tensors are like on samples, for --profile: it serves every precision and scheme."""
    from mcugen.compilation import Compilation
    from mcugen.quant.profile_file import write_profile
    from mcugen.quant.scheme import Scheme

    scheme = Scheme(equalize=techniques(without)["equalize"])
    quantizing = Quantizing(calibration=calibration, preprocess=preprocess, scheme=scheme)
    net = Compilation(model, "host", options, quantizing, Judging(pixel_scale=pixel_scale))
    with _watched(net, quiet):
        made, notes = net.profile()
    if not quiet:
        _tell_notes(notes)
    write_profile(made, output)


@boards_app.callback()
def boards(context: typer.Context, json_: Annotated[bool, typer.Option("--json", help="as JSON")] = False) -> None:
    """Lists boards with CPU, ISA extensions, memories and QEMU machine."""
    from mcugen.report.listing import print_boards

    if context.invoked_subcommand is None:
        print_boards(stdout, json_)


@boards_app.command()
def show(name: str, json_: Annotated[bool, typer.Option("--json", help="as JSON")] = False) -> None:
    """Prints one board in full."""
    from mcugen.report.listing import print_board

    print_board(load_board(name), stdout, json_)


@app.command()
def operators(plugin: Plugin = None) -> None:
    """Prints the table of supported ONNX operators (Markdown: docs/operators.md)."""
    from mcugen.plugins import registry_of
    from mcugen.report.operators import operator_table

    typer.echo(operator_table(registry_of(plugin or ())), nl=False)


@app.command()
def version() -> None:
    """Prints the version."""
    typer.echo(__version__)


MOST_ISLANDS = 10
"""Operators left in float32 that are named after a compilation."""

MOST_NOTES = 12
LONGEST_NOTE = 600
"""Notes, and characters of each, that are printed."""

stdout = Console()
stderr = Console(stderr=True)


def main() -> None:
    """Runs the command line; every failure is one message on stderr and its own exit code."""
    sys.exit(guarded(app))


@contextmanager
def _watched(net: Compilation, quiet: bool) -> Iterator[None]:
    """Shows what a compilation does; and, wherever that ends, the way to the precisions that it chose."""
    from mcugen.report.text import print_tradeoffs

    try:
        with _steps(quiet) as net.progress:
            yield
    finally:
        if not quiet and net.search is not None and net.search.steps:
            print_tradeoffs(net.search.goal, net.search.steps, stderr)


def _tell(text: str) -> None:
    """A line for people; the text may hold names of an untrusted model."""
    stderr.print(escape(printable(shortened(text))), highlight=False, soft_wrap=True)


def _tell_notes(notes: Sequence[str]) -> None:
    """On stderr; the JSON has them, too."""
    told = list(dict.fromkeys(notes))
    for note in told[:MOST_NOTES]:
        _tell(f"note: {shortened(note, LONGEST_NOTE)}")
    if len(told) > MOST_NOTES:
        _tell(f"and {len(told) - MOST_NOTES:,} more notes: --json has them all")


def _tell_quantization(quantized: Quantization) -> None:
    """What it cost, what stays in float32, and why."""
    if quantized.estimate is not None:
        _tell(f"quantized: {quantized.estimate}")
    reasons = list(quantized.assignment.reasons.items())
    for name, reason in reasons[:MOST_ISLANDS]:
        _tell(f"  float32: '{name}' ({reason})")
    if len(reasons) > MOST_ISLANDS:
        _tell(f"  and {len(reasons) - MOST_ISLANDS} more: see `mcugen report --compare-layers`")


def _write_json(target: str, result: Report | MemoryMap | Trace) -> None:
    from mcugen.codegen.write import write_text

    if target == "-":
        typer.echo(json.dumps(result.to_json(), indent=2))
    elif target:
        write_text(Path(target), json.dumps(result.to_json(), indent=2) + "\n")


def _print_trace(trace: Trace, time_passes: bool) -> None:
    for name, text in trace.dumps:
        typer.echo(f"after {name}:\n{text}", err=True)
    for name, seconds in trace.seconds if time_passes else ():
        typer.echo(f"{seconds:8.4f} s  {name}", err=True)


@contextmanager
def _steps(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Several things to do, one after the other, a bar each."""
    from mcugen.quant.quantize import no_progress

    if quiet:
        yield no_progress
        return
    with ExitStack() as stack:
        bars: list[Progress] = []
        tasks: dict[str, TaskID] = {}

        def advance(what: str, done: int, total: int) -> None:
            if not bars:  # where nothing takes long, nothing is shown
                bars.append(stack.enter_context(_bars()))
            if what not in tasks:
                tasks[what] = bars[0].add_task(escape(what), total=total)
            bars[0].update(tasks[what], completed=done, total=total)

        yield advance


def _bars() -> Progress:
    """On stderr, and gone when all is done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=stderr, transient=True)
