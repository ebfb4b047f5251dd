# SPDX-License-Identifier: Apache-2.0
"""Values and mutations for fuzzers: extreme numbers, unusual texts, changes of bytes and of JSON trees."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

INTS = (
    *(0, 1, -1, 2, 3, 7, 8, 16, 64, 127, 255, 1000, 2**22, 2**31 - 1, 2**31, -(2**31), 2**32, 2**62, 2**63 - 1),
    -(2**63),
)
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e-30, 1e30, 3.4e38, float("nan"), float("inf"), float("-inf"), 0.1)
WORDS = (
    *("", "x", "y", "w", "N", "0", "-1", "a" * 300, "b" * 5000, "\x1b[31m", "../../etc/passwd", "é\u202e", "%s%n"),
    *("[bold]", "x:y", "\n"),
)
DIGITS = (
    *("0", "1", "-1", "7", "1e9", "9" * 30, "9" * 5000, "0x10", "1.5", "nan", "inf", "-inf", "1e400", "", "²"),
    *("\u0661", "1_000", " 1"),
)


@dataclass(frozen=True)
class Maker:
    """Writer of the files of one fuzz input, with its random source."""

    random: Random
    folder: Path
    name: str

    def write(self, suffix: str, data: bytes) -> str:
        """Write a file and return its name."""
        file = f"{self.name}{suffix}"
        (self.folder / file).write_bytes(data)
        return file

    def damaged(self, data: bytes) -> bytes:
        """Return the bytes with one to four changes."""
        changed = bytearray(data)
        for _ in range(self.random.choice((1, 1, 2, 4))):
            change_bytes(changed, self.random)
        return bytes(changed)

    def changed(self, tree: Any) -> Any:
        """Return a copy of a JSON or TOML tree with one to three changes."""
        copy = deepcopy(tree)
        for _ in range(self.random.choice((1, 1, 2, 3))):
            _change_tree(copy, self.random)
        return copy


def change_bytes(data: bytearray, random: Random) -> None:
    """Change the bytes at a random place."""
    random.choice(_BYTES)(data, random)


def _flip(data: bytearray, random: Random) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _set(data: bytearray, random: Random) -> None:
    if data:
        data[random.randrange(len(data))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))


def _cut(data: bytearray, random: Random) -> None:
    del data[random.randrange(len(data) + 1) :]


def _remove(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data) + 1)
    del data[at : at + random.randrange(1, 9)]


def _insert(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = random.choice((bytes(random.randrange(1, 9)), random.randbytes(4), b"\xff" * 9, b"[" * 2000))


def _repeat(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data) + 1)
    part = data[at : at + random.randrange(1, 65)]
    data[at:at] = part * random.choice((1, 2, 50))


def _number(data: bytearray, random: Random) -> None:
    """Overwrite eight bytes by an extreme number."""
    if len(data) >= 8:
        at = random.randrange(len(data) - 7)
        data[at : at + 8] = struct.pack("<q", random.choice(INTS))


_BYTES: tuple[Callable[[bytearray, Random], None], ...] = (
    *(_flip, _flip, _set, _set, _cut, _remove, _insert, _repeat, _number),
)


VALUES = (
    *(None, True, False, -1, 0, 1, 2**31, 2**32, 2**63, 2**64, -(2**63), 10**4000, 1e-300, 1e39, 1e300, 0.5),
    *(float("nan"), float("inf"), -float("inf"), *WORDS, [], [[]], {}, [None], {"x": None}, {"": []}, [1] * 3000),
)
"""Values that JSON can hold, and TOML mostly too."""


def _change_tree(tree: Any, random: Random) -> None:
    """Change a random entry: give it another value or key, move it, or remove it."""
    places = list(_places(tree))
    if not places:
        return
    held, key = random.choice(places)
    kind = random.randrange(9)
    if kind == 0:
        del held[key]
    elif kind == 1:
        other, at = random.choice(places)
        held[key] = deepcopy(other[at])
    elif kind == 2 and isinstance(held, list):
        held.insert(key, deepcopy(held[key]))
    elif kind == 2:
        held[random.choice(WORDS)] = held.pop(key)
    elif kind < 5:
        held[key] = deepcopy(random.choice(VALUES))
    else:
        held[key] = _another(held[key], random)


def _another(value: Any, random: Random) -> Any:
    """Return a value of the same type, which passes schemas."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice((*INTS, value + 1, value - 1, value * 2))
    if isinstance(value, float):
        return random.choice(FLOATS)
    return random.choice(WORDS) if isinstance(value, str) else type(value)() if value else value


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield all entries, as pairs of container and key."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in pairs:
        yield tree, key
        yield from _places(value)
