# SPDX-License-Identifier: Apache-2.0
"""The name that a wrong word means: by spelling, by an abbreviation, or by a table of synonyms.

A wrong hint costs a user more than no hint, so a name is returned only if no other name is as near.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_MIN_PREFIX = 3
"""Least number of characters by which an abbreviation names something: two letters begin too many words."""
_CHARACTERS_PER_TYPO = 4
"""Characters of a word for each typing error that it may have, so that a short word has none: `ram` is not `rom`."""
_MAX_TYPOS = 2

_SEPARATORS = dict.fromkeys(map(ord, "-_. :"))


def folded(name: str) -> str:
    """Return a name without case and separators, for comparison."""
    return name.lower().translate(_SEPARATORS)


def nearest(word: str, names: Iterable[str], synonyms: Mapping[str, str] | None = None) -> str | None:
    """Return the name that a word stands for; None if no name, or more than one, is near.

    Args:
        word: The word; it may be a synonym, a name in other case or with other separators, a misspelling or an
            abbreviation.
        names: The names.
        synonyms: Names by synonyms for them; a name that is not among `names` is ignored.
    """
    known = {folded(name): name for name in names}
    key = folded(word)
    meant = {folded(other): name for other, name in (synonyms or {}).items()}.get(key)
    if meant is not None and folded(meant) in known:
        return known[folded(meant)]
    if key in known:
        return known[key]
    return nearest_spelling(word, known.values()) or _only(_abbreviated(key, known))


def nearest_spelling(word: str, names: Iterable[str]) -> str | None:
    """Return the name of which a word is a misspelling; None if no name, or more than one, is near.

    A different number is no misspelling, unless two digits are exchanged: `int4` is not `int8`.
    """
    key = folded(word)
    limit = min(len(key) // _CHARACTERS_PER_TYPO, _MAX_TYPOS)
    errors = {name: typos(key, folded(name)) for name in names if _is_one_number(key, folded(name))}
    fewest_errors = min(errors.values(), default=limit + 1)
    return _only([name for name, number in errors.items() if number == fewest_errors <= limit])


def _only(names: list[str]) -> str | None:
    return names[0] if len(set(names)) == 1 else None


def _abbreviated(key: str, known: Mapping[str, str]) -> list[str]:
    """Return the names that begin with a word; a number must be whole: `stm32u5` is not `stm32u575`."""
    longer = {other: name for other, name in known.items() if len(key) >= _MIN_PREFIX and other.startswith(key)}
    return [name for other, name in longer.items() if not (key[-1].isdigit() and other[len(key)].isdigit())]


def _is_one_number(word: str, name: str) -> bool:
    """Return whether two words have the same digits in order, or differ only by the exchange of two neighbours."""
    digits, name_digits = ([c for c in text if c.isdigit()] for text in (word, name))
    return digits == name_digits or (sorted(digits) == sorted(name_digits) and typos(word, name) == 1)


def typos(word: str, name: str) -> int:
    """Return the number of typing errors between two words.

    An error is a character too many, too few or wrong, or two neighbours that are exchanged.
    """
    before: list[int] = []
    row = list(range(len(name) + 1))
    for i, letter in enumerate(word, 1):
        before, above, row = row, before, [i]
        for j, other in enumerate(name, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other)))
            if i > 1 and j > 1 and (letter, word[i - 2]) == (name[j - 2], other):
                row[j] = min(row[j], above[j - 2] + 1)
    return row[-1]
