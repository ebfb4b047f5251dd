# SPDX-License-Identifier: Apache-2.0
"""Unique names: a name that is in use gets the least free number as a suffix."""

from __future__ import annotations

from collections.abc import Iterable


class Names:
    """A set of names in use, which finds unused names by appending a number."""

    def __init__(self, used: Iterable[str] = (), separator: str = ".") -> None:
        self._taken = set(used)
        self._separator = separator
        self._next: dict[str, int] = {}
        """For each name: all of its numbers below this one are in use. The name without a number counts as number 1."""

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def add(self, name: str) -> None:
        """Mark a name as used, so that `take` does not return it."""
        self._taken.add(name)

    def take(self, preferred: str) -> str:
        """Reserve an unused name and return it: `preferred`, with a number appended if it is in use."""
        number = self._next.get(preferred, 1)
        while (name := self._numbered(preferred, number)) in self._taken:
            number += 1
        self._next[preferred] = number
        self._taken.add(name)
        return name

    def release(self, name: str) -> None:
        """Make a used name available again, so that `take` can return it."""
        self._taken.discard(name)
        self._next.pop(name, None)
        base, _, number = name.rpartition(self._separator)
        if number.isdecimal() and base in self._next:
            self._next[base] = min(self._next[base], max(int(number[:9]), 1))

    def copy(self) -> Names:
        """Return an independent copy of this set of used names."""
        other = Names(self._taken, self._separator)
        other._next = dict(self._next)
        return other

    def _numbered(self, base: str, number: int) -> str:
        return base if number == 1 else f"{base}{self._separator}{number}"
