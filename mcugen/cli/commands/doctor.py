# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen doctor`."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING

import typer

from mcugen.cli.command import takes_options
from mcugen.cli.commands.console import stdout
from mcugen.core.board import load_board
from mcugen.core.version import __version__

if TYPE_CHECKING:
    from mcugen.simulation.installed import Tool

PROGRAM = "mcugen"


@takes_options
def doctor(
    board: str,
    json_: bool,
) -> None:
    """Show which tools and packages are installed, and the commands that install missing ones."""
    from mcugen.simulation.installed import install_command, require, tools

    known_tools = tools(load_board(board) if board else None)
    packages = _packages()
    missing = [tool for tool in known_tools if not tool.is_there]
    commands = [command for command in (install_command(missing), _pip(packages)) if command]
    if json_:
        data = {
            "mcugen": __version__,
            "python": platform.python_version(),
            "packages": packages,
            "tools": [asdict(tool) for tool in known_tools],
            "install": commands,
        }
        typer.echo(json.dumps(data, indent=2))
    else:
        _print(known_tools, packages, commands)
    if board:
        require(known_tools)


def _packages() -> dict[str, str | None]:
    """Return the versions of the Python packages that mcugen imports; None for a missing package."""
    names = [_name(line) for line in requires(PROGRAM) or () if "extra ==" not in line]
    return {name: _version(name) for name in names}


def _name(requirement: str) -> str:
    """Return the name of the package in a requirement, without versions and conditions."""
    end = next((i for i, c in enumerate(requirement) if not (c.isalnum() or c in "-_.")), len(requirement))
    return requirement[:end]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _pip(packages: Mapping[str, str | None]) -> str:
    """Return the command that installs the missing packages; "" if none is missing."""
    missing = [name for name, version_text in packages.items() if version_text is None]
    return f"pip install {' '.join(missing)}" if missing else ""


def _print(known_tools: Sequence[Tool], packages: Mapping[str, str | None], commands: Sequence[str]) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from mcugen.core.errors import printable

    table = Table("", "what", "for", "version", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_row("✓", "mcugen", "", f"{__version__}, Python {platform.python_version()}")
    for name, known in packages.items():
        table.add_row("✓" if known else "✗", escape(name), "mcugen", escape(known or "missing"))
    for tool in known_tools:
        known = printable(tool.version) or "missing"
        table.add_row("✓" if tool.is_there else "✗", escape(tool.name), escape(tool.purpose), escape(known))
    stdout.print(table)
    for command in commands:
        stdout.print(f"to install what is missing: {escape(command)}", highlight=False, soft_wrap=True)
    if not commands:
        stdout.print("nothing is missing", highlight=False)
