# SPDX-License-Identifier: Apache-2.0
"""Names of files that come from elsewhere: from a browser, or from an archive."""

from __future__ import annotations

import re
from pathlib import Path

MAX_SAFE_CHARACTERS = 80
"""Largest number of characters of a name that `safe_name` returns."""


def safe_name(name: str) -> str:
    """Return the name of a file made safe for a file system, a shell and a page.

    Letters and digits of ASCII, `_`, `.` and `-` stay; other characters become `_`. No name begins with a dot or a
    dash, and none is empty. A long name keeps its end, so that its type stays.
    """
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "_", name.rpartition("/")[2]).lstrip(".-") or "file"
    if len(cleaned) <= MAX_SAFE_CHARACTERS:
        return cleaned
    suffix = Path(cleaned).suffix[:12]
    return cleaned[: MAX_SAFE_CHARACTERS - len(suffix)] + suffix
