# SPDX-License-Identifier: Apache-2.0
"""Reads and replaces generated passages of documents, between `<!-- NAME:begin -->` and `<!-- NAME:end -->`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def between_markers(text: str, name: str) -> str:
    """Return the text between the markers of `name`; raise ValueError unless both exist, in order."""
    return _parts(text, name)[1]


def replace_between_markers(text: str, name: str, content: str) -> str:
    """Return `text` with `content` between the markers of `name`; raise ValueError unless both exist, in order."""
    before, _, after = _parts(text, name)
    return f"{before}{content.rstrip()}\n{after}"


def rewrite_passage(document: Path, name: str, content: str) -> None:
    """Write `content` between the markers of `name` in a document."""
    document.write_text(replace_between_markers(document.read_text(), name, content))


def _parts(text: str, name: str) -> tuple[str, str, str]:
    """Return the text before, between and behind the markers; the outer parts include the markers."""
    begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
    before, found, rest = text.partition(begin)
    between, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the text must have the markers {begin.strip()} and {end}")
    return before + begin, between, end + after


def markdown_table(rows: Sequence[Sequence[str]], text_columns: int | None = None) -> str:
    """Return a table with the first row as heading; columns after `text_columns` are aligned to the right."""
    width = len(rows[0])
    left = width if text_columns is None else text_columns
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * left + "--:|" * (width - left), *lines[1:]])
