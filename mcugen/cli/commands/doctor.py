# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen doctor`."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import typer

from mcugen.cli.command import takes_options
from mcugen.cli.commands.console import stdout
from mcugen.core.board import load_board
from mcugen.core.packages import EXTRAS, PROGRAM, requirements_of
from mcugen.core.version import __version__

if TYPE_CHECKING:
    from mcugen.simulation.installed import Tool


@takes_options
def doctor(
    board: str,
    json_: bool,
) -> None:
    """Show which tools and packages are installed, and the commands that install missing ones."""
    from mcugen.simulation.installed import install_command, require, tools

    known_tools = tools(load_board(board) if board else None)
    extra_of = _extras()
    packages = {name: _version(name) for name in extra_of}
    missing = [tool for tool in known_tools if not tool.is_there]
    commands = [command for command in (install_command(missing), _pip(packages, extra_of)) if command]
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
        _print(known_tools, packages, extra_of, commands)
    if board:
        require(known_tools)


def _extras() -> dict[str, str]:
    """Return the Python packages that mcugen imports, each with the first extra that installs it, "" for none."""
    extra_of = dict[str, str]()
    for name, extra in requirements_of(PROGRAM):
        if name != PROGRAM and extra in ("", *EXTRAS):
            extra_of.setdefault(name, extra)
    return extra_of


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _pip(packages: Mapping[str, str | None], extra_of: Mapping[str, str]) -> str:
    """Return the command that installs the missing packages; "" if none is missing."""
    missing = [name for name, version_text in packages.items() if version_text is None]
    extras = sorted({extra_of[name] for name in missing if extra_of[name]})
    names = [name for name in missing if not extra_of[name]] + [f"'{PROGRAM}[{','.join(extras)}]'"] * bool(extras)
    return f"pip install {' '.join(names)}" if names else ""


def _print(
    known_tools: Sequence[Tool],
    packages: Mapping[str, str | None],
    extra_of: Mapping[str, str],
    commands: Sequence[str],
) -> None:
    from rich.markup import escape

    from mcugen.reporting.tables import CellKind, TableColumn, TextTable, print_table

    columns = (
        TableColumn("", CellKind.WORD),
        TableColumn("what", CellKind.WORD),
        TableColumn("for", CellKind.TEXT),
        TableColumn("version", CellKind.TEXT),
    )
    rows = [("✓", "mcugen", "", f"{__version__}, Python {platform.python_version()}")]
    for name, known in packages.items():
        rows.append(("✓" if known else "✗", name, EXTRAS.get(extra_of[name], PROGRAM), known or "missing"))
    rows += [
        ("✓" if tool.is_there else "✗", tool.name, tool.purpose, tool.version or "missing") for tool in known_tools
    ]
    print_table(TextTable(columns, rows), stdout)
    for command in commands:
        stdout.print(f"to install what is missing: {escape(command)}", highlight=False, soft_wrap=True)
    if not commands:
        stdout.print("nothing is missing", highlight=False)
