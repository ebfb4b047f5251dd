# SPDX-License-Identifier: Apache-2.0
"""Damaged .tflite files are refused by errors of mcugen, in little time and memory."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from fuzz_tflite import run
from tflite_models import LiteModel, Number, Numbers, converted, f32, i8

from mcugen.core.errors import DoesNotFitError, McugenError, ModelError, UnsupportedError


def dense() -> LiteModel:
    model = LiteModel()
    x, w = model.graph.input(1, 4, name="x"), model.graph.const(np.ones((3, 4)), name="w")
    y = model.graph.tensor(1, 3, name="y")
    model.graph.op("FULLY_CONNECTED", [x, w, -1], [y], 8, {})
    model.graph.output(y)
    return model


@pytest.mark.parametrize("part", range(6))
def test_mutated_files(part: int):
    faults = {seed: fault for seed in range(500 * part, 500 * (part + 1)) if (fault := run(seed)[1])}
    assert not faults


def test_each_truncation():
    data = dense().data()
    for size in range(len(data) - 1):
        try:
            converted(data[:size])
        except McugenError as error:
            assert error.exit_code in (3, 4, 5)


def test_each_number_at_its_extremes():
    data = dense().data()
    for place in range(0, len(data) - 4, 4):
        for number in (0, 1, 2**31 - 1, 2**31, 2**32 - 1, len(data), place):
            changed = data[:place] + struct.pack("<I", number) + data[place + 4 :]
            try:
                converted(changed)
            except McugenError as error:
                assert error.exit_code in (3, 4, 5)


def changed(tensor: int, field: int, value: object) -> LiteModel:
    model = dense()
    model.graph.tensors[tensor][field] = value
    return model


@pytest.mark.parametrize(
    ("tensor", "field", "value"),
    [
        pytest.param(0, 0, Numbers("i", [1, -4]), id="a negative size"),
        pytest.param(0, 0, Numbers("i", [1] * 100), id="a rank of 100"),
        pytest.param(1, 0, Numbers("i", [3, 5]), id="another size than the bytes"),
        pytest.param(1, 2, Number("I", 77), id="no such buffer"),
    ],
)
def test_wrong_tensors(tensor: int, field: int, value: Number | Numbers):
    model = dense()
    model.graph.tensors[tensor][field] = value
    with pytest.raises(ModelError):
        converted(model.data())


def test_an_input_of_an_unknown_type():
    model = dense()
    model.graph.tensors[0][1] = i8(99)
    with pytest.raises(UnsupportedError, match="type 99 of 'x'"):
        converted(model.data())


def test_scales_that_are_not_numbers():
    for scale in (0.0, -1.0, float("inf"), float("nan")):
        model = LiteModel()
        x = model.graph.input(2, dtype="int8", scale=scale)
        model.graph.output(x)
        with pytest.raises(ModelError, match="scales or zero points"):
            converted(model.data())


def test_a_huge_tensor_takes_no_memory():
    model = LiteModel()
    x, y = model.graph.input(2**15, 2**15), model.graph.tensor(2**15, 2**15)
    model.graph.op("ABS", [x], [y])
    model.graph.output(y)
    with pytest.raises(DoesNotFitError, match="at most 4,194,304 elements"):
        converted(model.data())


def test_tables_that_share_their_bytes_are_counted():
    """A file of 200 kB with 50,000 operators that are one table, which has 20,000 inputs, would need gigabytes."""
    model = dense()
    operator = {**model.graph.operators[0], 1: Numbers("i", [0] * 20_000)}
    model.graph.operators = [operator] * 50_000
    data = model.data()
    assert len(data) < 300_000
    with pytest.raises(ModelError, match="tables or vectors that overlap"):
        converted(data)


def test_constants_that_share_their_bytes_are_counted():
    model = LiteModel()
    buffer = model.buffer(bytes(1 << 22))
    for _ in range(64):
        w, y = model.graph.tensor(1 << 20, buffer=buffer), model.graph.tensor(1 << 20)
        model.graph.op("ABS", [w], [y])
        model.graph.output(y)
    with pytest.raises(DoesNotFitError, match="constants must not be much larger than the file"):
        converted(model.data())


def test_options_of_another_operator_are_refused():
    model = dense()
    model.graph.operators[0][3] = Number("B", 9)
    model.graph.operators[0][4] = {0: f32(1.0)}
    with pytest.raises(ModelError, match="options of another operator"):
        converted(model.data())


def test_an_unknown_activation_is_refused():
    model = dense()
    model.graph.operators[0][4] = {0: i8(77)}
    with pytest.raises(ModelError, match="activation function 77"):
        converted(model.data())


@pytest.mark.parametrize("data", [b"", b"TFL3", b"\0\0\0\0TFL3", b"\xff" * 4 + b"TFL3" + b"\xff" * 64])
def test_hardly_any_file(data: bytes):
    with pytest.raises(ModelError):
        converted(data)
