# SPDX-License-Identifier: Apache-2.0
"""Generated passages of documents stand between markers `<!-- NAME:begin -->` and `<!-- NAME:end -->`."""

from __future__ import annotations


def replace_between_markers(text: str, name: str, content: str) -> str:
    """`text` with `content` between the markers of `name`; ValueError unless both are there, in order."""
    begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the text must have the markers {begin.strip()} and {end}")
    return f"{before}{begin}{content.rstrip()}\n{end}{after}"
