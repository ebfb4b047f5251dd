# SPDX-License-Identifier: Apache-2.0
"""Memory use over time of byte ranges that may overlap."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import accumulate, pairwise
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
"""Type of the keys that identify byte ranges."""

Span = tuple[int, int, int]
"""A byte range: number of the region, first byte, and the byte after the last one."""

Life = tuple[int, int]
"""Live range of a byte range: the first and the last moment at which it is in use."""


def bytes_at(spans: Mapping[Key, Span], live_ranges: Mapping[Key, Life], moments: int) -> list[int]:
    """Return the bytes of memory in use at each moment; bytes that several spans share count once.

    A moment is an instruction, or −1 before the first one. The running time grows with the number of spans, and with
    the number of spans that share the same bytes.

    Args:
        spans: The byte ranges, each by a key that identifies it: number of its region of memory, first byte, and the
            byte after the last one.
        live_ranges: The first and the last moment at which each byte range is in use, from −1 to `moments`, by the same
            keys.
        moments: The last moment.

    Returns:
        The bytes at the moments from 0 to `moments`, followed by those at moment −1, so that index −1 selects them.
    """
    changes = defaultdict[int, int](int)
    for nbytes, (first, last) in _stays(spans, live_ranges):
        changes[first] += nbytes
        changes[last + 1] -= nbytes
    before, *totals = accumulate(changes[moment] for moment in range(-1, moments + 1))
    return [*totals, before]


def _stays(spans: Mapping[Key, Span], live_ranges: Mapping[Key, Life]) -> Iterator[tuple[int, Life]]:
    """Yield disjoint byte ranges, each with a time in which it is in use."""
    regions: dict[int, list[Key]] = defaultdict(list)
    for key, (region, start, end) in spans.items():
        if start < end:
            regions[region].append(key)
    for keys in regions.values():
        begin, stop = defaultdict[int, list[Key]](list), defaultdict[int, list[Key]](list)
        for key in keys:
            begin[spans[key][1]].append(key)
            stop[spans[key][2]].append(key)
        covering: dict[Key, None] = {}
        for low, high in pairwise(sorted(begin.keys() | stop.keys())):
            for key in stop[low]:
                del covering[key]
            covering.update(dict.fromkeys(begin[low]))
            for life in _merge_lives(live_ranges[key] for key in covering):
                yield high - low, life


def _merge_lives(live_ranges: Iterable[Life]) -> Iterator[Life]:
    """Merge overlapping lives."""
    reached: Life | None = None
    for first, last in sorted(live_ranges):
        if reached is not None and first <= reached[1]:
            reached = reached[0], max(reached[1], last)
        else:
            if reached is not None:
                yield reached
            reached = first, last
    if reached is not None:
        yield reached
