# SPDX-License-Identifier: Apache-2.0
"""How far an output may lie over the input that is read while it is written."""

from __future__ import annotations

from collections.abc import Iterable


def least_lead(steps: Iterable[tuple[int, int]]) -> int:
    """The fewest bytes by which an output must begin before its input, for a kernel that goes forward through both.

    `steps` tell, for each write but those after the last read: where what has been written by then ends, from the
    start of the output, and where the first byte begins that is read afterwards, from the start of the input. The
    output is safe if no write ever reaches that byte: output + written <= input + unread. Below 0, it may begin within
    the input.
    """
    return max(written - unread for written, unread in steps)


def extent(into: int, out: int, lead: int) -> int:
    """Bytes that an input of `into` bytes and an output of `out` bytes take together at best; see Overlap."""
    return min(into + out, max(out, into + lead) if lead > 0 else max(into, out))
