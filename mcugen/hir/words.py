# SPDX-License-Identifier: Apache-2.0
"""What operators are called in the text form of the high-level IR."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

from mcugen.hir.operator import Operator

Fields = Mapping[str, object]


class Words:
    """By its name each operator that has one to itself, and its class; what shares one goes by that of its class."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[type[Operator], Fields]] = {}
        for family in _subclasses(Operator):
            self._known[family.__name__] = family, {}
            for word, told in family.spelled().items():
                self._known.setdefault(word, (family, told))

    def of(self, op: Operator) -> tuple[str, Fields]:
        """The word for an operator, and the fields that the word tells."""
        family, told = self._known.get(op.name, (None, {}))
        if family is type(op) and all(getattr(op, key) == value for key, value in told.items()):
            return op.name, told
        return type(op).__name__, {}

    def made(self, word: str, given: Fields) -> Operator | None:
        """The operator of a word with these fields besides; None: the word is unknown, or has no such fields."""
        family, told = self._known.get(word, (None, {}))
        if family is None or not given.keys() <= {f.name for f in fields(family)} - told.keys():
            return None
        return family(**told, **given)

    def family(self, word: str) -> type[Operator] | None:
        """The class that a word means."""
        return self._known.get(word, (None, {}))[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)


def _subclasses(family: type[Operator]) -> Iterator[type[Operator]]:
    for one in family.__subclasses__():
        yield one
        yield from _subclasses(one)
