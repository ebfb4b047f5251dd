# SPDX-License-Identifier: Apache-2.0
"""Bounds-checked reading of FlexBuffers, in which .tflite files store the options of custom operators.

A FlexBuffer is read from its end: the last byte is the width of the root, the byte before it the root's type. Vectors
are found by offsets that lead backwards. Each position is checked, and the work is bounded by the number of bytes.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

MAX_DEPTH = 16
"""Largest number of vectors and maps within one another."""
_WIDTHS = (1, 2, 4, 8)
"""Possible widths of a number in bytes."""
_FLOATS = {2: "e", 4: "f", 8: "d"}
"""Format characters of `struct` for real numbers by their width."""


class FlexType(IntEnum):
    """Types of values in a FlexBuffer; typed vectors from VECTOR_INT2 on have a fixed length of 2, 3 or 4."""

    NULL = 0
    INT = 1
    UINT = 2
    FLOAT = 3
    KEY = 4
    STRING = 5
    INDIRECT_INT = 6
    INDIRECT_UINT = 7
    INDIRECT_FLOAT = 8
    MAP = 9
    VECTOR = 10
    VECTOR_INT = 11
    VECTOR_UINT = 12
    VECTOR_FLOAT = 13
    VECTOR_KEY = 14
    VECTOR_STRING = 15
    VECTOR_INT2 = 16
    VECTOR_FLOAT4 = 24
    BLOB = 25
    BOOL = 26
    VECTOR_BOOL = 36


class FlexBufferError(ValueError):
    """Raised for bytes that are no FlexBuffer."""


def read_flexbuffer(data: bytes | memoryview) -> Any:
    """Return the value in a FlexBuffer.

    Maps become dictionaries, vectors lists; texts, numbers, truth values and bytes become those of Python, null None.

    Raises:
        FlexBufferError: The bytes are no FlexBuffer.
    """
    return _Reader(memoryview(data)).root()


class _Reader:
    """The bytes of a FlexBuffer, read with checked positions."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self._budget = 2 * len(data) + 16
        """Number of values that may still be read; vectors may share bytes."""

    def root(self) -> Any:
        if len(self.data) < 3:
            raise FlexBufferError("a FlexBuffer of less than 3 bytes")
        width = self.data[-1]
        return self._value(len(self.data) - 2 - width, width, self.data[-2], 0)

    def _value(self, place: int, width: int, packed_type: int, depth: int) -> Any:
        """Return a value.

        Args:
            place: Position of the value, or of the offset that leads to it.
            width: Width of this number in bytes.
            packed_type: The type, above two bits for the width of what an offset leads to.
            depth: Number of vectors around the value.
        """
        self._budget -= 1
        if self._budget < 0 or depth > MAX_DEPTH:
            raise FlexBufferError("values that overlap or lie too deep")
        kind, inner = packed_type >> 2, _WIDTHS[packed_type & 3]
        if kind == FlexType.NULL:
            return None
        if kind in (FlexType.INT, FlexType.UINT, FlexType.FLOAT):
            return self._number(place, width, FlexType(kind))
        if kind == FlexType.BOOL:
            return bool(self._number(place, width, FlexType.UINT))
        target = self._target(place, width)
        if FlexType.INDIRECT_INT <= kind <= FlexType.INDIRECT_FLOAT:
            return self._number(target, inner, FlexType(kind - FlexType.INDIRECT_INT + FlexType.INT))
        if kind == FlexType.KEY:
            return self._key(target)
        if kind in (FlexType.STRING, FlexType.BLOB):
            content = bytes(self._slice(target, self._size(target, inner)))
            return content.decode("utf-8", "replace") if kind == FlexType.STRING else content
        if kind == FlexType.MAP:
            return self._map(target, inner, depth)
        return self._vector(target, inner, kind, depth)

    def _vector(self, start: int, width: int, kind: int, depth: int) -> list[Any]:
        """Return the elements of a vector, whose type says those of the elements unless it is VECTOR."""
        if FlexType.VECTOR_INT2 <= kind <= FlexType.VECTOR_FLOAT4:
            kind, count = FlexType.INT + (kind - FlexType.VECTOR_INT2) % 3, 2 + (kind - FlexType.VECTOR_INT2) // 3
        else:
            count = self._size(start, width)
            if FlexType.VECTOR_INT <= kind <= FlexType.VECTOR_STRING:
                kind = kind - FlexType.VECTOR_INT + FlexType.INT
            elif kind == FlexType.VECTOR_BOOL:
                kind = FlexType.BOOL
            elif kind != FlexType.VECTOR:
                raise FlexBufferError(f"type {kind}")
        self._slice(start, count * width)
        has_types = kind == FlexType.VECTOR
        types = list(self._slice(start + count * width, count)) if has_types else [kind << 2] * count
        return [self._value(start + n * width, width, packed, depth + 1) for n, packed in enumerate(types)]

    def _map(self, start: int, width: int, depth: int) -> dict[str, Any]:
        """Return the elements of a map, whose keys are a vector of their own."""
        keys_width = self._number(start - 2 * width, width, FlexType.UINT)
        keys = self._vector(self._target(start - 3 * width, width), keys_width, FlexType.VECTOR_KEY, depth)
        values = self._vector(start, width, FlexType.VECTOR, depth)
        if len(keys) != len(values):
            raise FlexBufferError(f"{len(keys)} keys of {len(values)} values")
        return dict(zip(keys, values, strict=True))

    def _key(self, start: int) -> str:
        """Return a key, which ends with a zero byte."""
        self._slice(start, 1)
        length = bytes(self.data[start : start + _MAX_KEY_BYTES]).find(0)
        if length < 0:
            raise FlexBufferError("a key without an end")
        return bytes(self.data[start : start + length]).decode("utf-8", "replace")

    def _size(self, start: int, width: int) -> int:
        """Return the number of elements of a vector that begins at a position."""
        return int(self._number(start - width, width, FlexType.UINT))

    def _target(self, place: int, width: int) -> int:
        """Return the position that the offset at a position leads to."""
        return place - int(self._number(place, width, FlexType.UINT))

    def _number(self, place: int, width: int, kind: FlexType) -> Any:
        if width not in _WIDTHS or (kind is FlexType.FLOAT and width not in _FLOATS):
            raise FlexBufferError(f"a number of {width} bytes")
        part = self._slice(place, width)
        if kind is FlexType.FLOAT:
            return struct.unpack(f"<{_FLOATS[width]}", part)[0]
        return int.from_bytes(part, "little", signed=kind is FlexType.INT)

    def _slice(self, start: int, size: int) -> memoryview:
        if start < 0 or size < 0 or start + size > len(self.data):
            raise FlexBufferError(f"{size:,} bytes at {start:,} of {len(self.data):,}")
        return self.data[start : start + size]


_MAX_KEY_BYTES = 256
"""Largest length of a key with its end."""
