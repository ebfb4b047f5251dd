# SPDX-License-Identifier: Apache-2.0
"""Cells of sortable tables in HTML reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TableCell:
    """A cell of a sortable HTML table.

    Attributes:
        text: The text to show.
        value: Number by which rows are sorted; None to sort the cell by its text.
        kind: CSS classes of the cell, separated by spaces; "" for none.
    """

    text: str
    value: float | None = None
    kind: str = ""


def number(value: float | None, text: str | None = None) -> TableCell:
    """Return a table cell with a number, by which rows are sorted; unknown numbers (None) are sorted last.

    Args:
        value: The number; None if unknown.
        text: The text to show; None to format the number.
    """
    if value is None:
        return TableCell("", float("-inf"))
    return TableCell(f"{value:,}" if text is None else text, value)


def words(text: str, *, is_long: bool = False) -> TableCell:
    """Return a table cell with a text; with `is_long`, the text may be wrapped."""
    return TableCell(text, None, "text long" if is_long else "text")
