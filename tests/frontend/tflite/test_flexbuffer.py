# SPDX-License-Identifier: Apache-2.0
"""FlexBuffers are read as the package `flatbuffers` writes them; damaged ones are refused."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from tflite_models import flexbuffer

from mcugen.frontend.tflite.flexbuffer import FlexBufferError, read_flexbuffer

VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    200,
    -70000,
    2**40,
    0.5,
    0.1,
    "a text",
    "",
    b"bytes",
    [],
    [1, 2, 3],
    [1, -2.5, "x", None, [True, [7]]],
    {},
    {"b": 1, "a": -300, "long_name_of_a_key": {"inner": [0.25, "y"], "flag": False}},
]


def narrow(options: dict[str, int]) -> bytes:
    """Return a map of small numbers, with one byte for each number and offset."""
    out, keys = bytearray(), []
    for key in sorted(options):
        keys.append(len(out))
        out += key.encode() + b"\0"
    out.append(len(keys))
    places = len(out)
    for place in keys:
        out.append(len(out) - place)
    out += bytes([len(out) - places, 1, len(keys)])
    start = len(out)
    out += bytes(options[key] & 255 for key in sorted(options)) + bytes([1 << 2] * len(options))
    return bytes(out + bytes([len(out) - start, 9 << 2, 1]))


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_as_the_package_writes_them(value: Any):
    flexbuffers = pytest.importorskip("flatbuffers.flexbuffers", reason="needs the package flatbuffers")
    assert read_flexbuffer(bytes(flexbuffers.Dumps(value))) == value


def test_maps_of_wide_and_narrow_numbers():
    assert read_flexbuffer(flexbuffer({"b": 7, "a": -2.5, "c": True})) == {"a": -2.5, "b": 7, "c": True}
    assert read_flexbuffer(narrow({"y": 3, "x": -4})) == {"x": -4, "y": 3}


@pytest.mark.parametrize(
    ("data", "value"),
    [
        pytest.param(bytes([3, 1, 2, 3, 3, 11 << 2, 1]), [1, 2, 3], id="a vector of numbers"),
        pytest.param(bytes([1, 255, 2, 16 << 2, 1]), [1, -1], id="a pair"),
        pytest.param(bytes([2, 1, 0, 2, 36 << 2, 1]), [True, False], id="a vector of truth values"),
        pytest.param(b"\x03abc\0" + bytes([4, 5 << 2, 1]), "abc", id="a text"),
        pytest.param(b"\0\0" + struct.pack("<f", 1.5) + bytes([4, 8 << 2 | 2, 1]), 1.5, id="a number elsewhere"),
    ],
)
def test_types_by_their_bytes(data: bytes, value: Any):
    assert read_flexbuffer(data) == value


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(bytes([5, 4, 3]), id="a width of 3"),
        pytest.param(bytes([9, 11 << 2, 1]), id="an offset before the beginning"),
        pytest.param(bytes([200, 1, 2, 2, 11 << 2, 1]), id="too many elements"),
        pytest.param(bytes([0, 5, 3 << 2, 1]), id="a real number of one byte"),
        pytest.param(bytes([1, 0, 40, 2, 10 << 2, 1]), id="a vector within itself"),
        pytest.param(bytes([1, 0, 2, 60 << 2, 1]), id="an unknown type"),
        pytest.param(b"abc" + bytes([3, 4 << 2, 1]), id="a key without an end"),
    ],
)
def test_damaged_bytes_are_refused(data: bytes):
    with pytest.raises(FlexBufferError):
        read_flexbuffer(data)


def test_each_truncation_and_each_byte():
    whole = flexbuffer({"fft_length": 512, "T": 7, "scale": 0.5})
    for place in range(len(whole)):
        for data in (whole[:place], *(whole[:place] + bytes([b]) + whole[place + 1 :] for b in (0, 1, 8, 127, 255))):
            try:
                read_flexbuffer(data)
            except FlexBufferError:
                continue
