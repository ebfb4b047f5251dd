# SPDX-License-Identifier: Apache-2.0
"""Terminal output of a calibration."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from mcugen.calibration.fit import Calibration
from mcugen.core.board import Board
from mcugen.core.errors import printable
from mcugen.reporting.listing import waits_text


def print_calibration(base: Board, calibration: Calibration, console: Console) -> None:
    """Print the changed parameters of a board, and the error of each layer before and after calibration."""
    facts = Table("", base.name, "calibrated")
    facts.add_row("core factor", f"{base.core_factor:g}", f"{calibration.board.core_factor:g}")
    for before, after in zip(base.memories, calibration.board.memories, strict=True):
        if before.access is not None and (before != after or base.wait_cycles(before, before.line_bytes)):
            facts.add_row(escape(before.name), waits_text(base, before), waits_text(calibration.board, after))
    facts.add_row("root mean square", f"{calibration.before:.1%}", f"{calibration.after:.1%}")
    console.print(facts)
    table = Table("model", "layer", *(Column(name, justify="right") for name in ("measured", "before", "after")))
    for left in calibration.residuals:
        names = (escape(printable(text)) for text in (left.layer.model, left.layer.name))
        table.add_row(*names, f"{left.layer.cycles:,}", f"{left.before:+.1%}", f"{left.after:+.1%}")
    console.print(table)
