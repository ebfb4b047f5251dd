# SPDX-License-Identifier: Apache-2.0
"""Pooling: onnxruntime, numpy and C agree over paddings, strides, dilations and rounding of sizes."""

from __future__ import annotations

import numpy as np
import pytest
from checks import SPREAD, Cases
from onnx_models import Net, check_everywhere, imported, operators, optimized

from mcugen.errors import ModelError, UnsupportedError

SHAPES = [(1, 3, 7, 9), (2, 6, 8, 5)]
WINDOWS = [
    {"kernel_shape": [2, 2], "strides": [2, 2]},
    {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]},
    {"kernel_shape": [3, 3], "pads": [2, 1, 0, 2]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"kernel_shape": [2, 4], "strides": [3, 2], "auto_pad": "SAME_LOWER"},
    {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    {"kernel_shape": [2, 3], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1},
    {"kernel_shape": [3, 2], "dilations": [2, 3], "strides": [1, 2]},
    {"kernel_shape": [2, 2], "dilations": [3, 2], "pads": [1, 1, 1, 1]},
]
WINDOWS_1D = [
    {"kernel_shape": [3], "strides": [2], "pads": [1, 1]},
    {"kernel_shape": [4], "strides": [3], "ceil_mode": 1},
    {"kernel_shape": [2], "dilations": [3], "pads": [1, 1]},
]
ZEROS = [(-128, 127), (127, -128), (3, -7)]
"""Zero points of input and output."""
PADDED = [w for w in WINDOWS + WINDOWS_1D if "pads" in w or "auto_pad" in w]


def _cases() -> list[tuple[tuple[int, ...], dict[str, object]]]:
    plane = [(shape, window) for shape in SHAPES for window in WINDOWS]
    return plane + [((2, 5, 11), window) for window in WINDOWS_1D]


def test_max_pool():
    cases = Cases()
    for shape, window in _cases():
        cases.add("MaxPool", shape, **window)
    cases.add("MaxPool", (1, 5, 6, 6), dtype=np.int8, **WINDOWS[2])
    cases.add("MaxPool", (1, 5, 6, 6), dtype=np.uint8, **WINDOWS[7])
    cases.check_float()


def test_average_pool():
    cases = Cases()
    for shape, window in _cases():
        cases.add("AveragePool", shape, **window)
    cases.check_float()


def test_average_pool_may_count_padding():
    cases = Cases()
    for window in PADDED:
        cases.add("AveragePool", (2, 5, 9, 8)[: 2 + len(window["kernel_shape"])], count_include_pad=1, **window)
    cases.check_float()


def test_global_pool():
    cases = Cases()
    for op_type in ("GlobalAveragePool", "GlobalMaxPool"):
        cases.add(op_type, (2, 5, 7, 3))
        cases.add(op_type, (1, 3, 11))
        cases.add(op_type, (1, 2, 3, 2, 3))
    cases.check_float()


def test_max_pool_int8():
    cases = Cases()
    for number, (shape, window) in enumerate(_cases()):
        zeros = ZEROS[number % 3]
        x = (0.05, zeros[0])
        y = x if number % 2 else (0.05 + SPREAD, zeros[1])
        cases.add_int8("MaxPool", shape, x, y, **window)
    cases.check_int8()


def test_average_pool_int8():
    cases = Cases()
    for number, (shape, window) in enumerate(_cases()):
        zeros = ZEROS[number % 3]
        cases.add_int8("AveragePool", shape, (0.05, zeros[0]), (0.05 - SPREAD, zeros[1]), **window)
    for number, window in enumerate(PADDED):
        shape, zeros = (2, 5, 9, 8)[: 2 + len(window["kernel_shape"])], ZEROS[number % 3]
        quants = (0.02, zeros[0]), (0.02 - SPREAD, zeros[1])
        cases.add_int8("AveragePool", shape, *quants, count_include_pad=1, **window)
    for zeros in ZEROS:
        cases.add_int8("GlobalAveragePool", (2, 5, 7, 7), (0.05, zeros[0]), (SPREAD, zeros[1]))
        cases.add_int8("GlobalMaxPool", (2, 5, 7, 7), (0.05, zeros[0]), (SPREAD, zeros[1]))
    cases.check_int8()


def test_ties_round_up():
    cases = Cases()
    cases.add_int8("AveragePool", (1, 4, 8, 8), (0.1, 5), (0.1, 5), kernel_shape=[2, 2], strides=[2, 2])
    cases.check_int8(share=0.25)


def test_pool_works_on_pixels():
    """Between convolutions no transposition is left; an average over everything is a reduction."""
    net = Net()
    x = net.input("x", 1, 3, 12, 12)
    for channels, depth in ((4, 3), (5, 4)):
        weights = net.const(np.random.default_rng(0).standard_normal((channels, depth, 3, 3)))
        x = net.op("MaxPool", net.op("Conv", x, weights), kernel_shape=[2, 2])
    x = net.op("AveragePool", x, kernel_shape=[6, 6])
    net.output(net.op("Flatten", x, out="y"))
    assert operators(optimized(net.model())) == [
        *("transpose", "conv", "max_pool", "conv", "max_pool"),
        *("reduce_mean", "reshape"),
    ]
    check_everywhere(net.model())


def _import(op_type: str, shape: tuple[int, ...], **attributes: object) -> None:
    cases = Cases()
    cases.add(op_type, shape, **attributes)
    imported(cases.net.model())


def test_refusals():
    with pytest.raises(UnsupportedError, match="one or two spatial axes"):
        _import("MaxPool", (1, 2, 4, 4, 4), kernel_shape=[2, 2, 2])
    with pytest.raises(UnsupportedError, match="every window must meet the input"):
        _import("AveragePool", (1, 1, 4), kernel_shape=[2], pads=[2, 0])
    net = Net()
    net.ops("MaxPool", net.input("x", 1, 1, 4, 4), outs=["y", "i"], kernel_shape=[2, 2])
    net.output("y")
    net.output("i", dtype=np.int64)
    with pytest.raises(UnsupportedError, match="only the values"):
        imported(net.model())


def test_a_kernel_larger_than_the_input_is_an_error():
    net = Net()
    net.op("MaxPool", net.input("x", 1, 1, 4), out="y", kernel_shape=[5])
    net.output("y", shape=(1, 1, 0))
    with pytest.raises(ModelError, match="the kernel must fit the input"):
        imported(net.model())
