# SPDX-License-Identifier: Apache-2.0
"""Terminal output of a calibration."""

from __future__ import annotations

from rich.console import Console

from mcugen.calibration.fit import Calibration
from mcugen.core.board import Board
from mcugen.reporting.listing import waits_text
from mcugen.reporting.tables import CellKind, TableColumn, TextTable, print_table


def print_calibration(base: Board, calibration: Calibration, console: Console) -> None:
    """Print the changed parameters of a board, and the error of each layer before and after calibration.

    Args:
        base: The board before the calibration.
        calibration: The result of the calibration.
        console: Output to print to.
    """
    print_table(parameter_table(base, calibration), console, hint="")
    print_table(residual_table(calibration), console, hint="")


def parameter_table(base: Board, calibration: Calibration) -> TextTable:
    """Return the table of the board parameters that calibration changed, before and after."""
    columns = (
        TableColumn("", CellKind.WORD),
        TableColumn(base.name, CellKind.WORD),
        TableColumn("calibrated", CellKind.WORD),
    )
    waits = [
        (before.name, waits_text(base, before), waits_text(calibration.board, after))
        for before, after in zip(base.memories, calibration.board.memories, strict=True)
        if before.access is not None and (before != after or base.wait_cycles(before, before.line_bytes))
    ]
    factor = ("core factor", f"{base.core_factor:g}", f"{calibration.board.core_factor:g}")
    return TextTable(
        columns, [factor, *waits, ("root mean square", f"{calibration.before:.1%}", f"{calibration.after:.1%}")]
    )


def residual_table(calibration: Calibration) -> TextTable:
    """Return the table of the layers' measured cycles and the errors of their estimates."""
    columns = (
        TableColumn("model", CellKind.NAME, 1),
        TableColumn("layer", CellKind.NAME),
        *(TableColumn(head) for head in ("measured", "before", "after")),
    )
    rows = [
        (left.layer.model, left.layer.name, f"{left.layer.cycles:,}", f"{left.before:+.1%}", f"{left.after:+.1%}")
        for left in calibration.residuals
    ]
    return TextTable(columns, rows)
