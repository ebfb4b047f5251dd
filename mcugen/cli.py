# SPDX-License-Identifier: Apache-2.0
"""The command line: which commands there are; each is a module of `mcugen.commands`.

numpy and the compiler are imported by the commands that need it, so that help and lists of boards come at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mcugen.boundary import Commands, guarded
from mcugen.cli_options import Program
from mcugen.commands.calibrate import calibrate_board
from mcugen.commands.compile import compile_command
from mcugen.commands.diff import diff
from mcugen.commands.explore import explore
from mcugen.commands.export import export
from mcugen.commands.inspect import inspect
from mcugen.commands.link import link
from mcugen.commands.listing import boards, operators, show, version
from mcugen.commands.profile import profile
from mcugen.commands.quantize import quantize
from mcugen.commands.report import report
from mcugen.commands.run import run
from mcugen.commands.update import update
from mcugen.commands.validate import validate
from mcugen.version import __version__

app = Program(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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


app.command("compile")(compile_command)
app.command()(export)
app.command()(link)
app.command()(report)
app.command()(diff)
app.command()(explore)
app.command()(run)
app.command()(validate)
app.command()(inspect)
app.command()(quantize)
app.command()(profile)
app.command("calibrate-board")(calibrate_board)
app.command()(update)
app.command()(operators)
app.command()(version)

boards_app = Program(invoke_without_command=True)
boards_app.callback()(boards)
boards_app.command()(show)
app.add_typer(boards_app, name="boards", help="Boards that mcugen knows.")


def main() -> None:
    """Runs the command line; every failure is one message on stderr and its own exit code."""
    sys.exit(guarded(app))
