# SPDX-License-Identifier: Apache-2.0
"""Cells of tables that a page's reader can sort."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """What is shown, and by what it is sorted where that is another number; `kind` are classes of its style."""

    text: str
    value: float | None = None
    kind: str = ""


def number(value: float | None, text: str | None = None) -> Cell:
    """A number, unknown ones last."""
    if value is None:
        return Cell("", float("-inf"))
    return Cell(f"{value:,}" if text is None else text, value)


def words(text: str, *, is_long: bool = False) -> Cell:
    """A text, on several lines if it is long."""
    return Cell(text, None, "text long" if is_long else "text")
