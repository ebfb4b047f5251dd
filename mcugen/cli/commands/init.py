# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen init`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from mcugen.cli.arguments import Arguments
from mcugen.cli.command import takes_options
from mcugen.cli.commands.console import stdout
from mcugen.cli.option_table import settings_kinds
from mcugen.cli.settings import FILE, MODEL, settings_text
from mcugen.core.board import load_board
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.tasks import Judging, Quantizing


@takes_options
def init(
    model: Annotated[Path | None, typer.Argument(help="ONNX file; else asked for", show_default=False)] = None,
    *,
    board: str,
    options: Arguments[CompileOptions],
    quantizing: Arguments[Quantizing],
    judging: Arguments[Judging],
    force: bool,
) -> None:
    """Write mcugen.toml with the model, its board and the given options, which all commands then read."""
    from mcugen.codegen.write import write_text

    path = Path(FILE)
    if path.exists() and not force:
        raise UsageError(f"{FILE} must not be there yet", "one", "give --force to replace it, or edit it")
    model = model or Path(_asked("the model, an ONNX file"))
    if not model.is_file():
        raise UsageError(f"{model}: the model must be a file", "none", "give the path of an ONNX file")
    board = board or _asked("the board, a name of `mcugen boards`")
    load_board(board)
    for arguments in (options, quantizing, judging):
        arguments.build()
    own = _beside(board) if board.endswith(".toml") else board
    values: dict[str, object] = {MODEL: _beside(model), "board": own}
    given = options.given() | quantizing.given() | judging.given()
    values |= {name: _beside(value) if isinstance(value, Path) else value for name, value in given.items()}
    refused = next((name for name in values if name not in settings_kinds()), None)
    if refused:
        raise UsageError(f"{FILE} cannot hold what runs or links code", f"--{refused}", "give it to each command")
    write_text(path, settings_text(values))
    stdout.print(f"{FILE} has {', '.join(values)}; next: mcugen report", highlight=False, markup=False, soft_wrap=True)


def _asked(what: str) -> str:
    """Return the user's answer at the terminal.

    Raises:
        UsageError: Standard input is not a terminal.
    """
    if not sys.stdin.isatty():
        raise UsageError(f"{what} must be given", "nobody to ask", "mcugen init model.onnx --board nrf52840")
    return str(typer.prompt(what, err=True))


def _beside(file: Path | str) -> str:
    """Return a path relative to the working directory, where the settings file is."""
    return Path(os.path.relpath(file)).as_posix()
