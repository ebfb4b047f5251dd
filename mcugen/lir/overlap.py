# SPDX-License-Identifier: Apache-2.0
"""Overlap in memory of an output with an input that is still being read while the output is written."""

from __future__ import annotations

from collections.abc import Iterable


def min_lead_bytes(steps: Iterable[tuple[int, int]]) -> int:
    """Return the `lead` of an Overlap: the fewest bytes by which an output must begin before an input it overlaps.

    The kernel goes forward through both. The overlap is safe if no write reaches a byte that is read later: output +
    written <= input + unread. A negative result means that the output may begin within the input.

    Args:
        steps: For each write except those after the last read: the end of what is written so far, from the start of the
            output, and the first byte read afterwards, from the start of the input.
    """
    return max(written - unread for written, unread in steps)


def extent(into: int, out: int, lead: int) -> int:
    """Return the fewest bytes that an input and an output take together if they overlap with this `lead`.

    `into` and `out` are the bytes of input and output.
    """
    return min(into + out, max(out, into + lead) if lead > 0 else max(into, out))
