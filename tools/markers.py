# SPDX-License-Identifier: Apache-2.0
"""Generated passages of documents stand between markers `<!-- NAME:begin -->` and `<!-- NAME:end -->`."""

from __future__ import annotations


def between_markers(text: str, name: str) -> str:
    """What is between the markers of `name`; ValueError unless both are there, in order."""
    return _parts(text, name)[1]


def replace_between_markers(text: str, name: str, content: str) -> str:
    """`text` with `content` between the markers of `name`; ValueError unless both are there, in order."""
    before, _, after = _parts(text, name)
    return f"{before}{content.rstrip()}\n{after}"


def _parts(text: str, name: str) -> tuple[str, str, str]:
    """What comes before, between and behind the markers, which are of the outer parts."""
    begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
    before, found, rest = text.partition(begin)
    between, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the text must have the markers {begin.strip()} and {end}")
    return before + begin, between, end + after
