# SPDX-License-Identifier: Apache-2.0
"""Names of operators in the text form of the high-level IR."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

from mcugen.hir.operator import Operator

AttributeValues = Mapping[str, object]
"""Values of an operator's attributes, by name."""


class MnemonicTable:
    """A table of the names (mnemonics) of operators in dumps, each with the operator class that it stands for.

    If two operators share a mnemonic, the second one is printed with the name of its class instead.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[type[Operator], AttributeValues]] = {}
        for family in _subclasses(Operator):
            self._known[family.__name__] = family, {}
            for word, implied in family.spelled().items():
                self._known.setdefault(word, (family, implied))

    def of(self, op: Operator) -> tuple[str, AttributeValues]:
        """Return the mnemonic of an operator, and the attribute values that the mnemonic implies."""
        family, implied = self._known.get(op.name, (None, {}))
        if family is type(op) and all(getattr(op, key) == value for key, value in implied.items()):
            return op.name, implied
        return type(op).__name__, {}

    def made(self, word: str, attributes: AttributeValues) -> Operator | None:
        """Return the operator that a mnemonic (`word`) and attribute values from a dump describe.

        Return None if the mnemonic or an attribute is unknown.
        """
        family, implied = self._known.get(word, (None, {}))
        if family is None or not attributes.keys() <= {f.name for f in fields(family)} - implied.keys():
            return None
        return family(**implied, **attributes)

    def family(self, word: str) -> type[Operator] | None:
        """Return the operator class that a mnemonic stands for; None if it is unknown."""
        return self._known.get(word, (None, {}))[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)


def _subclasses(family: type[Operator]) -> Iterator[type[Operator]]:
    for one in family.__subclasses__():
        yield one
        yield from _subclasses(one)
