# SPDX-License-Identifier: Apache-2.0
"""Writing of flatbuffers: tables, vectors and strings, appended in the order in which they are referred to."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

VECTOR_ALIGNMENT = 16
"""Alignment in bytes of the first element of each vector; the schema of TOSA demands 8 for the data of tensors."""


@dataclass(frozen=True)
class Scalar:
    """A number in a table.

    Attributes:
        kind: Format character of `struct`, such as "i" for int32.
        value: The number.
    """

    kind: str
    value: int | float | bool


@dataclass(frozen=True)
class Vector:
    """A vector of numbers.

    Attributes:
        kind: Format character of `struct`, such as "i" for int32.
        data: The elements in little-endian order.
    """

    kind: str
    data: bytes

    @staticmethod
    def of(kind: str, values: Sequence[int]) -> Vector:
        """Return a vector of the given numbers, whose kind is a format character of `struct`."""
        return Vector(kind, struct.pack(f"<{len(values)}{kind}", *values))


@dataclass(frozen=True)
class FlatTable:
    """A table.

    Attributes:
        fields: The fields by their number in the schema; None for an absent field.
    """

    fields: Sequence[Field | None]


Field: TypeAlias = Scalar | Vector | FlatTable | str | Sequence[FlatTable] | Sequence[str]
"""The value of a field of a table; sequences of tables or strings are vectors of offsets."""


def write_file(root: FlatTable, identifier: bytes) -> bytes:
    """Return the bytes of a flatbuffer file.

    Args:
        root: The root table.
        identifier: The four bytes that name the schema.
    """
    writer = _Writer(bytearray(4) + identifier)
    writer.put_reference(0, root)
    return bytes(writer.data)


@dataclass
class _Writer:
    """A file in the making; objects are appended, and the offsets that refer to them filled in."""

    data: bytearray

    def put_reference(self, at: int, target: Field) -> None:
        """Append an object, and write its offset at position `at`."""
        position = self._append(target)
        struct.pack_into("<I", self.data, at, position - at)

    def _append(self, target: Field) -> int:
        """Append an object, and return its position."""
        if isinstance(target, FlatTable):
            return self._append_table(target)
        if isinstance(target, Vector):
            size = struct.calcsize(target.kind)
            return self._append_vector(len(target.data) // size, target.data)
        if isinstance(target, str):
            text = target.encode()
            return self._append_vector(len(text), text + b"\0")
        assert not isinstance(target, Scalar)
        position = self._append_vector(len(target), bytes(4 * len(target)))
        items: list[FlatTable | str] = list(target)
        for index, item in enumerate(items):
            self.put_reference(position + 4 + 4 * index, item)
        return position

    def _append_vector(self, count: int, content: bytes) -> int:
        self._pad(4, VECTOR_ALIGNMENT)
        position = len(self.data)
        self.data += struct.pack("<I", count) + content
        return position

    def _append_table(self, table: FlatTable) -> int:
        """Append a table behind its vtable; the largest fields come first, so that each one is aligned."""
        present = [(number, field) for number, field in enumerate(table.fields) if field is not None]
        present.sort(key=lambda entry: -_size(entry[1]))
        offsets, end = [0] * len(table.fields), 4
        for number, field in present:
            size = _size(field)
            end = -(-end // size) * size
            offsets[number] = end
            end += size
        vtable = struct.pack(f"<{len(offsets) + 2}H", 2 * len(offsets) + 4, end, *offsets)
        self._pad(len(vtable), 8)
        begin = len(self.data)
        self.data += vtable
        position = len(self.data)
        self.data += struct.pack("<i", position - begin) + bytes(end - 4)
        for number, field in present:
            at = position + offsets[number]
            if isinstance(field, Scalar):
                struct.pack_into(f"<{field.kind}", self.data, at, field.value)
            else:
                self.put_reference(at, field)
        return position

    def _pad(self, head: int, alignment: int) -> None:
        """Append zeros so that what follows `head` further bytes is aligned."""
        self.data += bytes(-(len(self.data) + head) % alignment)


def _size(field: Field) -> int:
    return struct.calcsize(field.kind) if isinstance(field, Scalar) else 4
