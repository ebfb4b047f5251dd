# SPDX-License-Identifier: Apache-2.0
"""Whether a model fits each of several boards, with the bytes that it needs and that the board has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from mcugen.core.board import Board
from mcugen.core.errors import ConstraintError, shortened
from mcugen.explore.point import Outcome
from mcugen.explore.search import Explored
from mcugen.reporting.tables import CellKind, TableColumn, TextTable, print_table

_MAX_REASON_CHARACTERS = 160
"""Largest number of characters of a reason in the table; JSON has all."""


@dataclass(frozen=True)
class BoardFit:
    """Whether a model fits one board. Bytes are estimates without the stack; None if the model cannot be compiled.

    Attributes:
        board: Name of the board.
        fits: Whether the model fits.
        ram_needed: Bytes of RAM that the model needs.
        ram_available: Bytes of RAM of the board.
        flash_needed: Bytes of flash that the model needs.
        flash_available: Bytes of flash of the board.
        reason: The memories that are too small, or why the model cannot be compiled; "" if it fits.
    """

    board: str
    fits: bool
    ram_needed: int | None
    ram_available: int
    flash_needed: int | None
    flash_available: int
    reason: str


def board_fits(explored: Explored) -> list[BoardFit]:
    """Return whether the model fits, for each board of an exploration with exactly one combination per board."""
    return [_board_fit(outcome, explored.boards[outcome.point.board]) for outcome in explored.outcomes]


def _board_fit(outcome: Outcome, board: Board) -> BoardFit:
    ram, flash = (None, None) if outcome.figures is None else (outcome.figures.ram, outcome.figures.flash)
    sizes = (("RAM", (ram or 0) - board.total_ram), ("flash", (flash or 0) - board.total_flash))
    missing = [f"{excess:,} bytes of {kind} too few" for kind, excess in sizes if excess > 0]
    reason = "; ".join(missing) if outcome.refusal is None else outcome.refusal.reason
    fits = outcome.figures is not None and not missing
    return BoardFit(board.name, fits, ram, board.total_ram, flash, board.total_flash, reason)


def print_fits(model: str, fits: Sequence[BoardFit], console: Console) -> None:
    """Print a line for each board: whether the model fits, bytes needed and available, and the reason if not."""
    print_table(fit_table(model, fits), console, hint="--json has all")


def fit_table(model: str, fits: Sequence[BoardFit]) -> TextTable:
    """Return the table that `print_fits` prints: a row for each board, with whether the model fits it.

    Args:
        model: Name of the model, for the title.
        fits: The results by board.
    """
    number = sum(fit.fits for fit in fits)
    columns = (
        *(TableColumn(head, CellKind.WORD) for head in ("board", "fits")),
        *(TableColumn(head) for head in ("RAM", "of", "flash", "of")),
        TableColumn("reason", CellKind.TEXT),
    )
    rows = [
        (
            fit.board,
            "yes" if fit.fits else "no",
            *map(_bytes, (fit.ram_needed, fit.ram_available, fit.flash_needed, fit.flash_available)),
            shortened(fit.reason, _MAX_REASON_CHARACTERS),
        )
        for fit in fits
    ]
    title = f"{model} fits {number} of {len(fits)} boards (estimates without the stack)"
    return TextTable(columns, rows, title, [None if fit.fits else "dim" for fit in fits])


def _bytes(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def fits_to_json(explored: Explored, fits: Sequence[BoardFit]) -> dict[str, Any]:
    """Return the JSON data of an exploration, with an entry for each board under the key "boards"."""
    return {**explored.to_json(), "boards": [asdict(fit) for fit in fits]}


def require_fit(fits: Sequence[BoardFit]) -> None:
    """Check that the model fits at least one board.

    Raises:
        ConstraintError: It fits none; the message has the reason of the board that has the most flash.
    """
    if not any(fit.fits for fit in fits):
        roomiest = max(fits, key=lambda fit: fit.flash_available)
        remedy = "quantize the model, use a smaller one, or list more boards"
        raise ConstraintError("the model must fit a board", f"none; {roomiest.board}: {roomiest.reason}", remedy)
