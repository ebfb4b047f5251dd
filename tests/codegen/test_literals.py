# SPDX-License-Identifier: Apache-2.0
"""Literals: C reads back every number to the last bit, without a warning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from c_programs import build_and_run
from hypothesis import given
from hypothesis import strategies as st

from mcugen.codegen.literals import c_float, c_int, c_param, c_param_type, c_rows
from mcugen.core.resources import resource_dir
from mcugen.hir.types import DType

SPECIAL_FLOATS = [
    *(
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.1,
        1 / 3,
        0.5,
        100.0,
        1e6,
        9999999.0,
        1e7,
        12345678.0,
        1e-5,
        1.5e-5,
        1e10,
        -2.5e20,
    ),
    *(
        np.finfo(np.float32).max,
        np.finfo(np.float32).tiny,
        1e-45,
        -1e-45,
        1.1754942e-38,
        16777216.0,
        16777217.0,
    ),
    *(np.inf, -np.inf, np.nan),
]
INTEGERS: dict[type, list[int]] = {
    np.int8: [-128, -1, 0, 127],
    np.uint8: [0, 255],
    np.int16: [-(2**15), 2**15 - 1],
    np.uint16: [0, 2**16 - 1],
    np.int32: [-(2**31), -(2**31) + 1, -1, 0, 2**31 - 1],
    np.uint32: [0, 2**31, 2**32 - 1],
    np.int64: [-(2**63), -(2**63) + 1, -(2**31) - 1, -(2**31), 2**31, 2**63 - 1],
    np.uint64: [0, 2**63 - 1, 2**63, 2**64 - 1],
    np.bool_: [0, 1],
}


def read_back(folder: Path, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The arrays as a C program has them that was compiled from their literals."""
    definitions, prints = [], []
    for index, array in enumerate(arrays):
        rows = "\n".join(c_rows(array))
        definitions.append(f"static const {DType.of(array).c} a{index}[{array.size}] = {{\n{rows}\n}};\n")
        prints.append(f"    dump(a{index}, sizeof a{index});\n")
    main = (
        '#include <math.h>\n#include <stdio.h>\n#include "mcugen.h"\n'
        + "".join(definitions)
        + "static void dump(const void *data, size_t size)\n{\n    const unsigned char *byte = data;\n    size_t i;\n"
        + '    for (i = 0; i < size; ++i) {\n        printf("%02x", byte[i]);\n    }\n    printf("\\n");\n}\n'
        + "int main(void)\n{\n"
        + "".join(prints)
        + "    return 0;\n}\n"
    )
    include = resource_dir("runtime_c") / "include"
    lines = build_and_run(main, folder, flags=(f"-I{include}",)).splitlines()
    return [np.frombuffer(bytes.fromhex(line), a.dtype) for line, a in zip(lines, arrays, strict=True)]


def test_arrays_round_trip(tmp_path: Path):
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**32, 3000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    arrays = [np.array(SPECIAL_FLOATS, np.float32), bits[~np.isnan(bits)]]
    arrays += [np.array(values, dtype) for dtype, values in INTEGERS.items()]
    for array, found in zip(arrays, read_back(tmp_path, arrays), strict=True):
        finite = array == array
        np.testing.assert_array_equal(found[finite].view(np.uint8), array[finite].view(np.uint8))
        assert (found[~finite] != found[~finite]).all()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0f"),
        (-0.0, "-0.0f"),
        (1.0, "1.0f"),
        (0.1, "0.1f"),
        (100.0, "100.0f"),
        (1e10, "1e10f"),
        (1.25e-10, "1.25e-10f"),
        (float("nan"), "NAN"),
        (float("inf"), "INFINITY"),
        (float("-inf"), "MCUGEN_MINUS_INFINITY"),
    ],
)
def test_floats_are_short(value: float, text: str):
    assert c_float(value) == text


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_floats_are_c_and_exact(value: float):
    text = c_float(value)
    assert text.endswith("f")
    assert "." in text or "e" in text
    assert np.float32(text.removesuffix("f")) == np.float32(value)
    assert len(text) <= len(repr(float(np.float32(value)))) + 3


def test_many_floats_are_written_as_each_is():
    random = np.random.default_rng(0)
    magnitudes = np.append(10.0 ** random.uniform(-46, 38, 5000), 10.0 ** np.arange(-45, 38))
    near = [np.nextafter(magnitudes.astype(np.float32), np.float32(end)) for end in (0, np.inf)]
    numbers = np.concatenate([magnitudes.astype(np.float32), *near, SPECIAL_FLOATS], dtype=np.float32)
    for array in (numbers, -numbers, np.repeat(numbers, 3)):
        assert " ".join(c_rows(array)) == " ".join(f"{c_float(float(v))}," for v in array)


@pytest.mark.parametrize(
    ("value", "text", "ctype"),
    [
        (5, "5", "int32_t"),
        (-(2**31), "(-2147483647 - 1)", "int32_t"),
        (2**31, "INT64_C(2147483648)", "int64_t"),
        (-(2**63), "(-INT64_C(9223372036854775807) - 1)", "int64_t"),
        (0.5, "0.5f", "float"),
    ],
)
def test_parameters(value: float, text: str, ctype: str):
    assert (c_param(value), c_param_type(value)) == (text, ctype)


def test_unsigned_beyond_int64():
    assert c_int(2**64 - 1) == "UINT64_C(18446744073709551615)"


def test_rows_keep_their_width():
    rows = list(c_rows(np.arange(1000, dtype=np.int32), width=40))
    assert max(map(len, rows)) <= 40
    assert [int(text) for text in "".join(rows).split(",") if text] == list(range(1000))
    assert list(c_rows(np.zeros(0, np.float32))) == []
