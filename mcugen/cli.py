# SPDX-License-Identifier: Apache-2.0
"""The command line: one function a command; results on stdout, progress and errors on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mcugen.board import load_board
from mcugen.codegen.write import replace_file, write_text
from mcugen.compiled import CompiledModel, stacked
from mcugen.compiler import compile_model
from mcugen.errors import McugenError, UsageError
from mcugen.hir.printer import print_graph
from mcugen.hir.types import Array
from mcugen.lir.printer import print_program
from mcugen.options import GOALS, CompileOptions
from mcugen.pipeline import Trace
from mcugen.plugins import load_plugin
from mcugen.report.accuracy import compare
from mcugen.report.figures import Report, measured, require_fit
from mcugen.report.listing import print_board, print_boards, print_model
from mcugen.report.operators import operator_table
from mcugen.report.samples import Samples, load_samples, random_samples
from mcugen.report.text import print_report
from mcugen.version import __version__

app = typer.Typer(
    help="Compiles ONNX neural networks to C for microcontrollers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
boards_app = typer.Typer(help="Boards that mcugen knows.", invoke_without_command=True)
app.add_typer(boards_app, name="boards")

T = TypeVar("T")

Model = Annotated[Path, typer.Argument(help="ONNX file", show_default=False)]
BoardName = Annotated[str, typer.Option("--board", "-b", help="a name of `mcugen boards`, or a .toml file")]
Name = Annotated[str, typer.Option(help="prefix of all C symbols; else the file's name", show_default=False)]
Dim = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        help="fixes a symbolic dimension: N=1; or gives the sizes that it may have when the code runs: T=1..64",
        show_default=False,
    ),
]
Bind = Annotated[
    list[str] | None,
    typer.Option("--bind", help="fixes an input at compile time: NAME=[1, 2] or NAME=file.npy", show_default=False),
]
State = Annotated[
    list[str] | None,
    typer.Option("--state", help="keeps OUTPUT for the next call's INPUT: h_out:h_in", show_default=False),
]
Plugin = Annotated[
    list[Path] | None, typer.Option("--plugin", help="Python file with operators of your own", show_default=False)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress, no summary")]
Json = Annotated[
    str,
    typer.Option("--json", help="write the report as JSON to a file, or - for stdout", show_default=False),
]
Optimize = Annotated[str, typer.Option(help=f"what matters most: {', '.join(GOALS)}")]
PixelScale = Annotated[float, typer.Option("--pixel-scale", help="factor of `x_uint8` samples for a float input")]


class Ir(StrEnum):
    """The intermediate representations."""

    HIR = "hir"
    LIR = "lir"


def _options(
    name: Name = "",
    dim: Dim = None,
    bind: Bind = None,
    state: State = None,
    optimize: Optimize = GOALS[0],
    plugin: Plugin = None,
) -> CompileOptions:
    """The options that all commands share which compile."""
    return CompileOptions(
        name, _dims(dim or []), _bound(bind or []), _states(state or []), tuple(plugin or ()), optimize
    )


def _takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the parameters of `_options` in place of its parameter `options`."""
    shared = signature(_options, eval_str=True).parameters

    @wraps(command)
    def call(**given: Any) -> None:
        command(options=_options(**{key: given.pop(key) for key in shared}), **given)

    parameters: list[Parameter] = []
    for parameter in signature(command, eval_str=True).parameters.values():
        parameters += shared.values() if parameter.name == "options" else [parameter]
    keyword_only = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in parameters]
    call.__signature__ = Signature(keyword_only)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


@app.command("compile")
@_takes_options
def compile_command(
    model: Model,
    *,
    board: BoardName,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="folder; else one called like the model", show_default=False)
    ] = None,
    options: CompileOptions,
    dump_after: Annotated[str, typer.Option(help="print the graph after this pass (or `all`) to stderr")] = "",
    time_passes: Annotated[bool, typer.Option("--time-passes", help="print seconds per pass to stderr")] = False,
    quiet: Quiet = False,
    json_: Json = "",
) -> None:
    """Writes a folder of C to paste into a project."""
    trace = Trace(dump_after)
    compiled = compile_model(model, board, options, trace)
    folder = compiled.write(output or Path(compiled.bundle.name))
    _print_trace(trace, time_passes)
    _write_json(json_, compiled.report)
    if not quiet:
        ram, flash = compiled.report.ram, compiled.report.flash
        stderr.print(
            f"{escape(str(folder))}: {len(compiled.bundle.files)} files, arena {ram.arena:,} bytes, "
            f"weights {flash.weights:,} bytes, {compiled.report.model.macs:,} MACs",
            highlight=False,
            soft_wrap=True,
        )


@app.command()
@_takes_options
def report(
    model: Model,
    *,
    board: BoardName,
    data: Annotated[Path | None, typer.Option(help="evaluation samples, .npz", show_default=False)] = None,
    options: CompileOptions,
    pixel_scale: PixelScale = 1.0,
    quiet: Quiet = False,
    json_: Json = "",
) -> None:
    """Compiles, builds, runs every sample under QEMU and reports accuracy, instructions, flash and RAM."""
    compiled = compile_model(model, board, options)
    samples = _samples(compiled, data, pixel_scale)
    count = len(samples.inputs)
    with _progress(quiet, f"{compiled.board.name}: running", count) as advance:
        run = compiled.simulate(samples.inputs, per_layer=True, progress=advance)
    with _progress(quiet, f"{compiled.reference_name}: running", count) as advance:
        reference = compiled.reference(samples.inputs, advance)
    accuracy = compare(compiled.program.outputs, run.outputs, reference, samples.labels, compiled.reference_name)
    result = measured(compiled.report, run, accuracy)
    _write_json(json_, result)
    if json_ != "-":
        print_report(result, stdout)
    require_fit(result, compiled.board)


@app.command()
@_takes_options
def run(
    model: Model,
    *,
    board: BoardName,
    inputs: Annotated[Path, typer.Option(help="samples, .npz", show_default=False)],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="where to write the outputs, .npz", show_default=False)
    ],
    options: CompileOptions,
    pixel_scale: PixelScale = 1.0,
    quiet: Quiet = False,
) -> None:
    """Runs the generated code on samples and writes what it returned."""
    compiled = compile_model(model, board, options)
    samples = load_samples(inputs, compiled.program.inputs, pixel_scale)
    with _progress(quiet, f"{compiled.board.name}: running", len(samples.inputs)) as advance:
        results = compiled.simulate(samples.inputs, measure=False, progress=advance).outputs
    arrays = stacked(results)
    replace_file(output, lambda file: np.savez(file, allow_pickle=False, **arrays))


@app.command()
@_takes_options
def inspect(
    model: Model,
    *,
    board: BoardName = "host",
    options: CompileOptions,
    ir: Annotated[Ir | None, typer.Option(help="dump an intermediate representation", show_default=False)] = None,
    json_: Json = "",
) -> None:
    """Prints the graph, MACs, parameters and peak activation memory."""
    if ir is not None and json_ == "-":
        raise UsageError("stdout can hold one result", "--ir and --json -", "write the JSON to a file")
    compiled = compile_model(model, board, options)
    _write_json(json_, compiled.report)
    if ir is not None:
        typer.echo(print_graph(compiled.graph) if ir is Ir.HIR else print_program(compiled.program), nl=False)
    elif json_ != "-":
        print_model(compiled.graph, compiled.program, compiled.report, stdout)


@boards_app.callback()
def boards(context: typer.Context, json_: Annotated[bool, typer.Option("--json", help="as JSON")] = False) -> None:
    """Lists boards with CPU, ISA extensions, memories and QEMU machine."""
    if context.invoked_subcommand is None:
        print_boards(stdout, json_)


@boards_app.command()
def show(name: str, json_: Annotated[bool, typer.Option("--json", help="as JSON")] = False) -> None:
    """Prints one board in full."""
    print_board(load_board(name), stdout, json_)


@app.command()
def operators(plugin: Plugin = None) -> None:
    """Prints the table of supported ONNX operators (Markdown: docs/operators.md)."""
    for file in plugin or ():
        load_plugin(file)
    typer.echo(operator_table(), nl=False)


@app.command()
def version() -> None:
    """Prints the version."""
    typer.echo(__version__)


stdout = Console()
stderr = Console(stderr=True)


def main() -> None:
    """Runs the command line; every expected failure is one message on stderr and its own exit code."""
    try:
        app()
    except McugenError as error:
        stderr.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(0)


def _dims(texts: list[str]) -> dict[str, int | tuple[int, int]]:
    """Sizes of symbolic dimensions, or ranges of sizes."""
    dims: list[tuple[str, int | tuple[int, int]]] = []
    for text in texts:
        key, _, size = text.rpartition("=")
        ends = size.split("..")
        if not key or len(ends) > 2 or not all(end.isascii() and end.isdecimal() and int(end) for end in ends):
            examples = "e.g. --dim batch=1, or --dim T=1..64"
            raise UsageError("--dim must read NAME=SIZE or NAME=LOW..HIGH with positive sizes", f"'{text}'", examples)
        dims.append((key, int(ends[0]) if len(ends) == 1 else (int(ends[0]), int(ends[1]))))
    return _named_once("--dim", dims)


def _bound(texts: list[str]) -> dict[str, Array]:
    """Values of inputs: numbers as JSON, or .npy files."""
    values = []
    for text in texts:
        name, _, value = text.partition("=")
        try:
            array = np.load(value, allow_pickle=False) if value.endswith(".npy") else np.asarray(json.loads(value))
        except (OSError, ValueError) as error:
            reason = f"'{text}': {str(error)[:80]}"
            raise UsageError("--bind must read NAME=VALUE, a value as JSON or a .npy file", reason) from error
        if not name or array.dtype.kind not in "fiub":
            raise UsageError("--bind must read NAME=VALUE with numbers", f"'{text}'", 'e.g. --bind "axes=[1, 2]"')
        values.append((name, array))
    return _named_once("--bind", values)


def _states(texts: list[str]) -> dict[str, str]:
    """Inputs by the outputs that they keep."""
    pairs = []
    for text in texts:
        output, _, kept = text.rpartition(":")
        if not output or not kept:
            raise UsageError("--state must read OUTPUT:INPUT", f"'{text}'", "e.g. --state h_out:h_in")
        pairs.append((output, kept))
    return _named_once("--state", pairs)


def _named_once(option: str, pairs: Sequence[tuple[str, T]]) -> dict[str, T]:
    """UsageError where an option is given twice for one name."""
    named = dict(pairs)
    if len(named) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"{option} must be given once for each name", f"'{twice}' twice", "leave one out")
    return named


def _samples(compiled: CompiledModel, data: Path | None, pixel_scale: float) -> Samples:
    if data is None:
        return random_samples(compiled.program.inputs)
    return load_samples(data, compiled.program.inputs, pixel_scale)


def _write_json(target: str, result: Report) -> None:
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
def _progress(quiet: bool, what: str, total: int) -> Iterator[Callable[[int], None] | None]:
    if quiet:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True) as bar:
        task = bar.add_task(escape(what), total=total)
        yield lambda done: bar.update(task, completed=done)
