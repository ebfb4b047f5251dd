# SPDX-License-Identifier: Apache-2.0
"""Cells of sortable tables in HTML reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TableCell:
    """A cell of a sortable table: its text, the number to sort by if any, and its CSS classes (`kind`)."""

    text: str
    value: float | None = None
    kind: str = ""


def number(value: float | None, text: str | None = None) -> TableCell:
    """Return a cell with a number; unknown numbers are sorted last."""
    if value is None:
        return TableCell("", float("-inf"))
    return TableCell(f"{value:,}" if text is None else text, value)


def words(text: str, *, is_long: bool = False) -> TableCell:
    """Return a cell with a text, which may be wrapped if `is_long`."""
    return TableCell(text, None, "text long" if is_long else "text")
