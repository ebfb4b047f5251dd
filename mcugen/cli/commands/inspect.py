# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mcugen.cli.command import Model, takes_options
from mcugen.cli.commands.console import stdout, tell_notes, tell_warnings, watched, write_json
from mcugen.core.errors import UsageError, printable
from mcugen.core.options import NPU_OFF
from mcugen.options.arguments import CompilationTask, Ir, OutputOptions

if TYPE_CHECKING:
    from mcugen.driver.command_listings import SegmentListings
    from mcugen.driver.compilation_trace import CompilationTrace


@dataclass(frozen=True)
class InspectOptions:
    """The options of `mcugen inspect` on what it shows.

    Attributes:
        ir: The intermediate representation to print, if any.
        memory: Whether to print the contents of the arena.
        svg: File for a picture of the arena, if any.
        html: File for a page with the graph, if any.
        passes: Names of the passes whose effects are printed, separated by commas.
        search: Whether to print the trace of the program search.
        npu_stream: Whether to print the commands of the NPU.
    """

    ir: Ir | None
    memory: bool
    svg: Path | None
    html: Path | None
    passes: str
    search: bool
    npu_stream: bool

    @property
    def watched_passes(self) -> Sequence[str]:
        """Return the names of the passes whose effects are printed."""
        return [name.strip() for name in self.passes.split(",")] if self.passes else ()


@takes_options
def inspect(
    model: Model,
    *,
    board: str,
    task: CompilationTask,
    views: InspectOptions,
    output_options: OutputOptions,
) -> None:
    """Print the graph, MACs, parameters and peak memory; or the memory map, or what passes or the search did."""
    from mcugen.api.compilation import Compilation
    from mcugen.codegen.write import write_text
    from mcugen.driver.command_listings import segment_listings, vela_listings
    from mcugen.driver.compilation_trace import CompilationTrace
    from mcugen.hir.printer import print_graph
    from mcugen.lir.printer import print_program
    from mcugen.reporting.drawing import draw
    from mcugen.reporting.listing import print_memory, print_model
    from mcugen.reporting.memory import memory_map
    from mcugen.reporting.network import network_page
    from mcugen.search.line_buffering import reasons_against_rows
    from mcugen.search.trace import SearchTrace

    shows_trace = bool(views.passes) or views.search
    _check_outputs(views, output_options)
    if views.npu_stream:
        written_by_vela = vela_listings(model)
        if written_by_vela is not None:
            _show_commands(written_by_vela, output_options.json_)
            return
        if task.options.npu == NPU_OFF:
            raise UsageError("--npu-stream needs code for an NPU", f"--npu {NPU_OFF}", "add --npu auto")
    trace = CompilationTrace(watched=views.watched_passes, search=SearchTrace() if views.search else None)
    net = Compilation.of(model, board, task, trace=trace)
    try:
        with watched(net, output_options.quiet):
            compiled = net.compiled
    finally:  # If the model is refused, the traces may show why.
        _show_trace(trace, bool(views.passes), output_options.json_)
    arena = memory_map(compiled.program, compiled.board.name, reasons_against_rows(compiled.graph))
    if not shows_trace and not views.npu_stream:
        write_json(output_options.json_, arena if views.memory else compiled.report)
    tell_warnings(compiled.report.warnings)
    if not output_options.quiet:
        tell_notes(compiled.report.notes)
    if views.svg is not None:
        write_text(views.svg, draw(arena))
    if views.html is not None:
        page = network_page(net.source.proto, compiled.graph, compiled.program, compiled.board.name)
        write_text(views.html, page)
    if views.ir is not None:
        typer.echo(print_graph(compiled.graph) if views.ir is Ir.HIR else print_program(compiled.program), nl=False)
    elif views.npu_stream:
        _show_commands(segment_listings(compiled), output_options.json_)
    elif output_options.json_ != "-" and views.memory:
        print_memory(arena, stdout, output_options.wide)
    elif output_options.json_ != "-" and not shows_trace:
        print_model(compiled.graph, compiled.program, compiled.report, stdout, output_options.wide)


def _check_outputs(views: InspectOptions, output_options: OutputOptions) -> None:
    """Raise UsageError if stdout would have to hold several results."""
    is_selected = {"--ir": views.ir is not None, "--memory": views.memory}
    is_selected |= {"--passes": bool(views.passes), "--search": views.search}
    is_selected |= {"--npu-stream": views.npu_stream}
    selected = [name for name in is_selected if is_selected[name]]
    if len(selected) > 1 or ("--ir" in selected and output_options.json_ == "-"):
        conflict = " and ".join([*selected, "--json -"][:2])
        raise UsageError("only one result can go to stdout", conflict, "give one of these options at a time")


def _show_commands(listings: SegmentListings, json_target: str) -> None:
    """Print the commands of the NPU, and write them as JSON to the given file ("-": stdout, without the text)."""
    write_json(json_target, listings)
    if json_target != "-":
        typer.echo(printable(str(listings)), nl=False)


def _show_trace(trace: CompilationTrace, has_passes: bool, json_target: str) -> None:
    """Print the effects of passes or the trace of the program search, and write it as JSON to the given file.

    Args:
        trace: The trace of the compilation.
        has_passes: Whether effects of passes were asked for.
        json_target: File of the JSON data; "-" for stdout, where nothing else is then printed.
    """
    from mcugen.reporting.search_table import print_search

    if has_passes:
        write_json(json_target, trace)
        if json_target != "-":
            typer.echo("\n".join(printable(str(effect)) for effect in trace.effects), nl=False)
    if trace.search is not None:
        write_json(json_target, trace.search)
        if json_target != "-":
            print_search(trace.search, stdout)
