# SPDX-License-Identifier: Apache-2.0
"""Names that no two things share: a name that is taken gets a number, the least that is free."""

from __future__ import annotations

from collections.abc import Iterable


class Names:
    """What is taken. Finding a free number takes no longer however many things want the same name."""

    def __init__(self, taken: Iterable[str] = (), separator: str = ".") -> None:
        self._taken = set(taken)
        self._separator = separator
        self._next: dict[str, int] = {}
        """By name: all its numbers below are taken. The name itself counts as number 1."""

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def add(self, name: str) -> None:
        """Takes a name as it is."""
        self._taken.add(name)

    def take(self, wanted: str) -> str:
        """`wanted`, numbered if it is taken."""
        number = self._next.get(wanted, 1)
        while (name := self._numbered(wanted, number)) in self._taken:
            number += 1
        self._next[wanted] = number
        self._taken.add(name)
        return name

    def release(self, name: str) -> None:
        """Makes a name free again, if it was taken."""
        self._taken.discard(name)
        self._next.pop(name, None)
        wanted, _, number = name.rpartition(self._separator)
        if number.isdecimal() and wanted in self._next:
            self._next[wanted] = min(self._next[wanted], max(int(number[:9]), 1))

    def copy(self) -> Names:
        """The same names, taken apart from these."""
        other = Names(self._taken, self._separator)
        other._next = dict(self._next)
        return other

    def _numbered(self, wanted: str, number: int) -> str:
        return wanted if number == 1 else f"{wanted}{self._separator}{number}"
