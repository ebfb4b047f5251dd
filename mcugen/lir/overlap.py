# SPDX-License-Identifier: Apache-2.0
"""Overlap of an output with an input that is still being read while the output is written."""

from __future__ import annotations

from collections.abc import Iterable


def min_lead_bytes(steps: Iterable[tuple[int, int]]) -> int:
    """Return the smallest number of bytes by which an output must begin before an input that it may overlap.

    The kernel goes forward through both. The overlap is safe if no write reaches a byte that is read later: output +
    written <= input + unread. A negative result means that the output may begin within the input.

    Args:
        steps: For each write except those after the last read: the end of what is written so far, from the start of the
            output, and the first byte read afterwards, from the start of the input.
    """
    return max(written - unread for written, unread in steps)


def extent(into: int, out: int, lead: int) -> int:
    """Return the fewest bytes that an input of `into` and an output of `out` bytes take with this Overlap.lead."""
    return min(into + out, max(out, into + lead) if lead > 0 else max(into, out))
