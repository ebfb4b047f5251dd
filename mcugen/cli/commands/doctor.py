# SPDX-License-Identifier: Apache-2.0
"""`mcugen doctor`."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING, Annotated

import typer

from mcugen.cli.commands.console import stdout
from mcugen.core.board import load_board
from mcugen.core.version import __version__

if TYPE_CHECKING:
    from mcugen.simulation.installed import Tool

PROGRAM = "mcugen"


def doctor(
    board: Annotated[
        str, typer.Option("--board", "-b", help="look for what this board needs; exit code 8 if it is not there")
    ] = "",
    json_: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """Says what is installed of what mcugen works with, and the command that installs what is missing."""
    from mcugen.simulation.installed import install_command, require, tools

    found = tools(load_board(board) if board else None)
    packages = _packages()
    missing = [tool for tool in found if not tool.is_there]
    commands = [command for command in (install_command(missing), _pip(packages)) if command]
    if json_:
        data = {
            "mcugen": __version__,
            "python": platform.python_version(),
            "packages": packages,
            "tools": [asdict(tool) for tool in found],
            "install": commands,
        }
        typer.echo(json.dumps(data, indent=2))
    else:
        _print(found, packages, commands)
    if board:
        require(found)


def _packages() -> dict[str, str | None]:
    """Versions of the Python packages that mcugen imports; None where one is missing."""
    names = [_name(line) for line in requires(PROGRAM) or () if "extra ==" not in line]
    return {name: _version(name) for name in names}


def _name(requirement: str) -> str:
    """Of a package, without versions and conditions."""
    end = next((i for i, c in enumerate(requirement) if not (c.isalnum() or c in "-_.")), len(requirement))
    return requirement[:end]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _pip(packages: Mapping[str, str | None]) -> str:
    """The command that installs the missing ones; "" if none is."""
    missing = [name for name, found in packages.items() if found is None]
    return f"pip install {' '.join(missing)}" if missing else ""


def _print(found: Sequence[Tool], packages: Mapping[str, str | None], commands: Sequence[str]) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from mcugen.core.errors import printable

    table = Table("", "what", "for", "version", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_row("✓", "mcugen", "", f"{__version__}, Python {platform.python_version()}")
    for name, known in packages.items():
        table.add_row("✓" if known else "✗", escape(name), "mcugen", escape(known or "missing"))
    for tool in found:
        known = printable(tool.version) or "missing"
        table.add_row("✓" if tool.is_there else "✗", escape(tool.name), escape(tool.purpose), escape(known))
    stdout.print(table)
    for command in commands:
        stdout.print(f"to install what is missing: {escape(command)}", highlight=False, soft_wrap=True)
    if not commands:
        stdout.print("nothing is missing", highlight=False)
