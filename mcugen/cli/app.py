# SPDX-License-Identifier: Apache-2.0
"""The command line and its commands, each a module of `mcugen.cli.commands`.

Only the commands that need numpy and the compiler import them, so that help and lists of boards appear at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mcugen.cli.command import CommandApp, FirstCommand
from mcugen.cli.commands.calibrate import calibrate_board
from mcugen.cli.commands.compile import compile_command
from mcugen.cli.commands.diff import diff
from mcugen.cli.commands.doctor import doctor
from mcugen.cli.commands.evidence import evidence
from mcugen.cli.commands.explore import explore
from mcugen.cli.commands.export import export
from mcugen.cli.commands.init import init
from mcugen.cli.commands.inspect import inspect
from mcugen.cli.commands.link import link
from mcugen.cli.commands.listing import boards, measured, operators, show, version
from mcugen.cli.commands.monitor import monitor
from mcugen.cli.commands.profile import profile
from mcugen.cli.commands.quantize import quantize
from mcugen.cli.commands.report import report
from mcugen.cli.commands.run import run
from mcugen.cli.commands.ui import ui
from mcugen.cli.commands.update import update
from mcugen.cli.commands.validate import validate
from mcugen.cli.commands.view import view
from mcugen.cli.error_boundary import Commands, guarded
from mcugen.core.version import __version__

app = CommandApp(
    cls=Commands,
    no_args_is_help=True,
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
    no_settings: Annotated[bool, typer.Option("--no-settings", help="take nothing from mcugen.toml")] = False,
) -> None:
    """Compile neural networks to C for microcontrollers."""


CODE, REPORTS, MODELS, BOARDS = "Models to code", "Reports", "Models", "Boards and this computer"
"""Titles of the groups of commands in `mcugen --help`: code generation, reports, model files, and boards."""

app.command(cls=FirstCommand, rich_help_panel=CODE)(init)
app.command("compile", rich_help_panel=CODE)(compile_command)
app.command(rich_help_panel=CODE)(report)
app.command(rich_help_panel=CODE)(explore)
app.command(rich_help_panel=CODE)(run)
app.command(rich_help_panel=CODE)(export)
app.command(rich_help_panel=CODE)(link)
app.command(rich_help_panel=CODE)(update)
app.command(rich_help_panel=CODE)(ui)
app.command(rich_help_panel=REPORTS)(view)
app.command(rich_help_panel=REPORTS)(diff)
app.command(rich_help_panel=REPORTS)(evidence)
app.command(rich_help_panel=REPORTS)(monitor)
app.command(rich_help_panel=MODELS)(quantize)
app.command(rich_help_panel=MODELS)(profile)
app.command(rich_help_panel=MODELS)(inspect)
app.command(rich_help_panel=MODELS)(operators)
app.command(rich_help_panel=BOARDS)(validate)
app.command("calibrate-board", rich_help_panel=BOARDS)(calibrate_board)
app.command(rich_help_panel=BOARDS)(doctor)
app.command(rich_help_panel=BOARDS)(version)

boards_app = CommandApp(invoke_without_command=True)
boards_app.callback()(boards)
boards_app.command()(show)
boards_app.command()(measured)
app.add_typer(boards_app, name="boards", help="Boards that mcugen knows.", rich_help_panel=BOARDS)


def main() -> None:
    """Run the command line; a failure prints a message on stderr and exits with the code of its error class."""
    sys.exit(guarded(app))
