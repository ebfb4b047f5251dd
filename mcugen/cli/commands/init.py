# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen init`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from mcugen.cli.command import takes_options
from mcugen.cli.commands.console import stdout
from mcugen.core.board import load_board
from mcugen.core.errors import UsageError
from mcugen.options.arguments import TaskArguments
from mcugen.options.settings import FILE, MODEL, settings_kinds, settings_text


@takes_options
def init(
    model: Annotated[
        Path | None, typer.Argument(help="ONNX or .tflite file; else asked for", show_default=False)
    ] = None,
    *,
    board: str,
    task: TaskArguments,
    force: bool,
) -> None:
    """Write mcugen.toml with the model, its board and the given options, which all commands then read."""
    from mcugen.codegen.write import write_text

    path = Path(FILE)
    if path.exists() and not force:
        raise UsageError(f"{FILE} must not be there yet", "one", "give --force to replace it, or edit it")
    model = model or Path(_ask("the model, an ONNX or .tflite file"))
    if not model.is_file():
        raise UsageError(f"{model}: the model must be a file", "none", "give the path of an ONNX or .tflite file")
    board = board or _ask("the board, a name of `mcugen boards`")
    load_board(board)
    task.build()
    own = _relative_path(board) if board.endswith(".toml") else board
    values: dict[str, object] = {MODEL: _relative_path(model), "board": own}
    for name, value in task.given().items():
        values[name] = _relative_path(value) if isinstance(value, Path) else value
    refused = next((name for name in values if name not in settings_kinds()), None)
    if refused:
        raise UsageError(f"{FILE} cannot hold options that run or link code", f"--{refused}", "give it to each command")
    write_text(path, settings_text(values))
    stdout.print(f"{FILE} has {', '.join(values)}; next: mcugen report", highlight=False, markup=False, soft_wrap=True)


def _ask(what: str) -> str:
    """Return the user's answer at the terminal.

    Raises:
        UsageError: Standard input is not a terminal.
    """
    if not sys.stdin.isatty():
        raise UsageError(
            f"{what} must be given", "standard input is not a terminal", "mcugen init model.onnx --board nrf52840"
        )
    return str(typer.prompt(what, err=True))


def _relative_path(file: Path | str) -> str:
    """Return a path relative to the working directory, where the settings file is."""
    return Path(os.path.relpath(file)).as_posix()
