# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen calibrate-board`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from mcugen.cli.command import takes_options
from mcugen.cli.commands.console import stdout, tell
from mcugen.core.board import load_board
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions

Board = Annotated[str, typer.Argument(help="a name of `mcugen boards`, or a .toml file: what was measured")]
"""Type of the argument that names the measured board."""


@takes_options
def calibrate_board(
    board: Board,
    *,
    from_: Path,
    model: list[Path],
    output: Path,
    options: CompileOptions,
    quiet: bool,
) -> None:
    """Write a board file whose cycle estimates fit your measurements; give the options of the measured firmware."""
    from mcugen.calibration.files import board_text, read_runs
    from mcugen.calibration.runs import calibrate_runs
    from mcugen.calibration.text import print_calibration
    from mcugen.codegen.write import write_text

    base = load_board(board)
    _check_output(board, base.name, output)
    measured = read_runs(from_)
    if not quiet:
        tell("estimating the layers that were measured")
    calibration = calibrate_runs(base, measured, model, options)
    write_text(output, board_text(base, calibration, f"{len(measured)} runs at {measured[0].clock_hz / 1e6:g} MHz"))
    for name in calibration.kept:
        tell(f"note: the measured layers do not determine the wait states of {name}, which keeps its old ones")
    if not quiet:
        print_calibration(base, calibration, stdout)


def _check_output(board: str, base: str, output: Path) -> None:
    """Raise UsageError if the new file cannot inherit from the board's file, which it names without a folder."""
    if output.suffix != ".toml" or output.stem == base:
        raise UsageError("-o must name a new board file", f"'{output}'", f"mine.toml, say, which inherits from {base}")
    if board.endswith(".toml") and _folder_of(output) != _folder_of(board):
        raise UsageError(
            "-o must lie beside the board file that it inherits from", f"'{output}'", str(Path(board).parent)
        )


def _folder_of(file: str | Path) -> str:
    """Return the absolute path of the folder that a file lies in, without links."""
    return os.path.realpath(Path(file).parent)
