# SPDX-License-Identifier: Apache-2.0
"""Bounds-checked reading of flatbuffers into dataclasses that declare the fields of their tables.

The `flatbuffers` package has no verifier for Python: a damaged file makes it raise any exception, or read outside of a
table. Here each offset is checked, and the work is bounded by the size of the file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar, TypeVar

import numpy as np

from mcugen.core.errors import ModelError

_READS_PER_BYTE = 8
"""Largest number of bytes that are read for each byte of the file, whose vectors may share bytes."""
_SPARE_READS = 1 << 16
"""Number of bytes that may be read in addition, for small files."""
REMEDY = "copy or export the file again"
"""Advice on a damaged file."""


class TableBase:
    """Base of the dataclasses that declare a table.

    A subclass of a declared table may have the same fields at other numbers: it lists them in ORDER.
    """

    UNION: ClassVar[int] = 0
    """Number of the table in the union of operators' options."""
    ORDER: ClassVar[str] = ""
    """Names of the fields by their numbers, with spaces between them; "" for the declared numbers."""


TableT = TypeVar("TableT", bound=TableBase)


@dataclass(frozen=True)
class _Stored:
    """The storage of a field: its number in the table, and its kind, as `FlatBuffer._read_field` knows it."""

    number: int
    kind: str
    table: type[TableBase] | None = None


def scalar(number: int, kind: str = "i", default: Any = 0) -> Any:
    """Declare a number, whose kind is a format character of `struct`."""
    return field(default=default, metadata={"stored": _Stored(number, kind)})


def numbers(number: int, kind: str = "i") -> Any:
    """Declare a vector of numbers, which is read as a tuple; its kind is a format character of `struct`."""
    return field(default=(), metadata={"stored": _Stored(number, f"[{kind}")})


def content(number: int) -> Any:
    """Declare a vector of bytes, which is not copied."""
    return field(default=memoryview(b""), metadata={"stored": _Stored(number, "bytes")})


def text(number: int) -> Any:
    """Declare a string."""
    return field(default="", metadata={"stored": _Stored(number, "text")})


def table(number: int, kind: type[TableBase]) -> Any:
    """Declare a table, None if it is absent."""
    return field(default=None, metadata={"stored": _Stored(number, "table", kind)})


def tables(number: int, kind: type[TableBase]) -> Any:
    """Declare a vector of tables."""
    return field(default=(), metadata={"stored": _Stored(number, "tables", kind)})


def position(number: int) -> Any:
    """Declare a table whose kind is known later: its position, None if it is absent."""
    return field(default=None, metadata={"stored": _Stored(number, "position")})


@cache
def _stored_fields(kind: Any) -> tuple[tuple[str, _Stored], ...]:
    stored = {declared.name: declared.metadata["stored"] for declared in fields(kind)}
    if kind.ORDER:
        return tuple((name, replace(stored[name], number=number)) for number, name in enumerate(kind.ORDER.split()))
    return tuple(stored.items())


class FlatBuffer:
    """The bytes of a flatbuffer, read with checked offsets."""

    def __init__(self, data: bytes, place: str) -> None:
        """Keep the bytes; `place` is the name of the file for messages."""
        self.data = memoryview(data)
        self.place = place
        self._budget = _READS_PER_BYTE * len(data) + _SPARE_READS

    def root(self, kind: type[TableT]) -> TableT:
        """Return the table at the beginning of the file."""
        return self.read(kind, self._target(0))

    def read(self, kind: type[TableT], start: int) -> TableT:
        """Return the table at a position; absent fields have their defaults.

        Raises:
            ModelError: An offset leads outside of the file, or the file's tables overlap too much.
        """
        layout = start - self._number("i", start)
        size = self._number("H", layout)
        self._spend(size)
        values: dict[str, Any] = {}
        declared: Any = kind
        for name, stored in _stored_fields(declared):
            entry = 4 + 2 * stored.number
            offset = self._number("H", layout + entry) if entry + 2 <= size else 0
            if offset:
                values[name] = self._read_field(stored, start + offset)
        return kind(**values)

    def damaged(self, what: str) -> ModelError:
        """Return the error for a file that is not a valid flatbuffer."""
        return ModelError(f"{self.place}: the file must be a complete TensorFlow Lite model", what, REMEDY)

    def slice(self, start: int, size: int) -> memoryview:
        """Return bytes of the file by their absolute position."""
        if start < 0 or size < 0 or start + size > len(self.data):
            raise self.damaged(f"{size:,} bytes at {start:,} of a file of {len(self.data):,}")
        return self.data[start : start + size]

    def _read_field(self, stored: _Stored, place: int) -> Any:
        if len(stored.kind) == 1:
            return self._number(stored.kind, place)
        target = self._target(place)
        if stored.kind == "position":
            return target
        if stored.kind == "table":
            assert stored.table is not None
            return self.read(stored.table, target)
        count = self._number("I", target)
        if stored.kind == "tables":
            assert stored.table is not None
            self.slice(target + 4, 4 * count)
            self._spend(4 * count)
            return tuple(self.read(stored.table, self._target(target + 4 + 4 * n)) for n in range(count))
        if stored.kind == "bytes":
            return self.slice(target + 4, count)
        kind = "B" if stored.kind == "text" else stored.kind[1]
        size = count * struct.calcsize(f"<{kind}")
        part = self.slice(target + 4, size)
        self._spend(size)
        if stored.kind == "text":
            return bytes(part).decode("utf-8", "replace")
        return tuple(np.frombuffer(part, np.dtype(f"<{_NUMPY_KINDS.get(kind, kind)}")).tolist())

    def _target(self, place: int) -> int:
        """Return the position that the offset at a position leads to."""
        offset: int = self._number("I", place)
        return place + offset

    def _number(self, kind: str, place: int) -> Any:
        form = f"<{kind}"
        return struct.unpack(form, self.slice(place, struct.calcsize(form)))[0]

    def _spend(self, size: int) -> None:
        self._budget -= size + 8
        if self._budget < 0:
            raise self.damaged("tables or vectors that overlap")


_NUMPY_KINDS = {"i": "i4", "q": "i8", "f": "f4", "I": "u4", "H": "u2", "B": "u1", "b": "i1"}
"""Names of number types in numpy by their format characters of `struct`."""
