# SPDX-License-Identifier: Apache-2.0
"""Commands that list what mcugen knows: `boards`, `operators`, `version`."""

from __future__ import annotations

from typing import Annotated

import typer

from mcugen.board import load_board
from mcugen.cli_options import Plugin
from mcugen.commands.console import stdout
from mcugen.version import __version__


def boards(
    context: typer.Context,
    like: Annotated[str, typer.Option(help="only those with this in name, CPU, kits or description")] = "",
    json_: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """Lists boards with CPU, clock, memory and kits; `show NAME` tells all of one."""
    from mcugen.report.listing import print_boards

    if context.invoked_subcommand is None:
        print_boards(stdout, json_, like)


def show(name: str, json_: Annotated[bool, typer.Option("--json", help="as JSON")] = False) -> None:
    """Prints one board in full."""
    from mcugen.report.listing import print_board

    print_board(load_board(name), stdout, json_)


def operators(plugin: Plugin = None) -> None:
    """Prints the table of supported ONNX operators (Markdown: docs/operators.md)."""
    from mcugen.plugins import registry_of
    from mcugen.report.operators import operator_table

    typer.echo(operator_table(registry_of(plugin or ())), nl=False)


def version() -> None:
    """Prints the version."""
    typer.echo(__version__)
