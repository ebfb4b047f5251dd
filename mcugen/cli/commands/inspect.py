# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen inspect`."""

from __future__ import annotations

from pathlib import Path

import typer

from mcugen.cli.arguments import Ir, Telling
from mcugen.cli.command import Model, takes_options
from mcugen.cli.commands.console import stdout, tell_notes, tell_warnings, watched, write_json
from mcugen.core.errors import UsageError, printable
from mcugen.core.options import CompileOptions
from mcugen.driver.tasks import Judging, Quantizing


@takes_options
def inspect(
    model: Model,
    *,
    board: str,
    options: CompileOptions,
    quantizing: Quantizing,
    judging: Judging,
    ir: Ir | None,
    memory: bool,
    svg: Path | None,
    html: Path | None,
    passes: str,
    telling: Telling,
) -> None:
    """Print the graph, MACs, parameters and peak activation memory; or the memory map, or the effects of passes."""
    from mcugen.api.compilation import Compilation
    from mcugen.codegen.write import write_text
    from mcugen.driver.compilation_trace import CompilationTrace
    from mcugen.hir.printer import print_graph
    from mcugen.lir.printer import print_program
    from mcugen.reporting.drawing import draw
    from mcugen.reporting.listing import print_memory, print_model
    from mcugen.reporting.memory import memory_map
    from mcugen.reporting.network import network_page
    from mcugen.search.line_buffering import whole_layers

    selected = [name for name, is_selected in (("--ir", ir), ("--memory", memory), ("--passes", passes)) if is_selected]
    if len(selected) > 1 or (ir is not None and telling.json_ == "-"):
        conflict = " and ".join([*selected, "--json -"][:2])
        raise UsageError("stdout can hold one result", conflict, "ask for one after the other")
    trace = CompilationTrace(watched=[name.strip() for name in passes.split(",")] if passes else ())
    net = Compilation(model, board, options, quantizing, judging, trace=trace)
    try:
        with watched(net, telling.quiet):
            compiled = net.compiled
    finally:  # If the model is refused, the effects of passes may show why.
        if passes:
            write_json(telling.json_, trace)
        if passes and telling.json_ != "-":
            typer.echo("\n".join(printable(str(effect)) for effect in trace.effects), nl=False)
    arena = memory_map(compiled.program, compiled.board.name, whole_layers(compiled.graph))
    if not passes:
        write_json(telling.json_, arena if memory else compiled.report)
    tell_warnings(compiled.report.warnings)
    if not telling.quiet:
        tell_notes(compiled.report.notes)
    if svg is not None:
        write_text(svg, draw(arena))
    if html is not None:
        page = network_page(net.source.proto, compiled.graph, compiled.program, compiled.board.name)
        write_text(html, page)
    if ir is not None:
        typer.echo(print_graph(compiled.graph) if ir is Ir.HIR else print_program(compiled.program), nl=False)
    elif telling.json_ != "-" and memory:
        print_memory(arena, stdout)
    elif telling.json_ != "-" and not passes:
        print_model(compiled.graph, compiled.program, compiled.report, stdout)
