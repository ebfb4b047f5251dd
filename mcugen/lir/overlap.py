# SPDX-License-Identifier: Apache-2.0
"""Overlap in memory of an output with an input that is still being read while the output is written."""

from __future__ import annotations

from collections.abc import Iterable


def min_lead_bytes(steps: Iterable[tuple[int, int]]) -> int:
    """Return the fewest bytes by which an output must begin before an input that it overlaps (`lead` of an Overlap).

    The kernel advances through both from low to high addresses. The overlap is safe if no write reaches a byte that is
    read later: output + written <= input + unread. A negative result means that the output may begin within the input.

    Args:
        steps: For each write except those after the last read: the end of what is written so far, in bytes from the
            start of the output, and the first byte read afterwards, in bytes from the start of the input.
    """
    return max(written - unread for written, unread in steps)


def extent(into: int, out: int, lead: int) -> int:
    """Return the fewest bytes that an input and an output take together if they overlap with this `lead`.

    Args:
        into: Bytes of the input.
        out: Bytes of the output.
        lead: Fewest bytes by which the output must begin before the input (see Overlap).
    """
    return min(into + out, max(out, into + lead) if lead > 0 else max(into, out))
