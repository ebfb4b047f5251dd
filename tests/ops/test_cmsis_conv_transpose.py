# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions by CMSIS-NN: the same bits as by our own kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cmsis_checks import check_library
from onnx_models import Net
from test_conv_transpose import CASES as WINDOWS
from test_conv_transpose import is_turned

from mcugen.core.options import AUTO, CompileOptions
from mcugen.driver.compiler import compile_model

CALL = "cmsis_transpose_conv_s8"
Case = tuple[tuple[int, ...], int, tuple[int, ...], dict[str, Any]]
CASES: list[Case] = [
    *(c for c in WINDOWS if len(c[0]) < 5 and {"group", "dilations"}.isdisjoint(c[3]) and not is_turned(c[3])),
    ((1, 17, 4, 3), 5, (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),  # by a convolution, as all with 17 channels
    ((2, 17, 3, 3), 4, (2, 3), {"strides": [1, 2], "pads": [0, 2, 0, 1], "output_padding": [0, 1]}),
    ((1, 17, 3, 3), 2, (1, 2), {"pads": [0, 2, 0, 0]}),  # padding as wide as the kernel
    ((1, 17, 3, 2), 2, (4, 3), {"strides": [3, 3], "pads": [1, 1, 1, 1]}),  # strides too far for that
    ((1, 3, 4, 4), 6, (4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((1, 3, 3, 7), 2, (2, 2), {"strides": [1, 3], "output_padding": [0, 1]}),
    ((1, 17, 9), 3, (3,), {"strides": [2], "pads": [1, 0]}),
]

OTHERS: list[Case] = [
    ((1, 4, 3, 4), 2, (3, 3), {"strides": [1, 2], "group": 2}),
    ((1, 2, 4, 4), 2, (3, 2), {"strides": [2, 1], "dilations": [2, 3]}),
    ((1, 2, 4, 4), 2, (2, 2), {"strides": [2, 2], "pads": [0, 0, 1, 0]}),  # would write a row behind the output
    ((1, 2, 1, 3), 2, (5, 2), {"strides": [1, 2], "pads": [2, 0, 2, 0]}),  # more padding than rows
]


def layers(cases: list[Case], per_channel: bool) -> Net:
    net = Net(21)
    random = np.random.default_rng(3)
    for number, (shape, channels, kernel, attributes) in enumerate(cases):
        zero_point = (7, -128, 127)[number % 3]
        x = net.dequantize(net.input(f"x{number}", *shape, dtype=np.int8), 0.05, zero_point)
        scales = random.uniform(0.002, 0.009, channels if per_channel else ()).astype(np.float32)
        codes = net.const(random.integers(-127, 128, (shape[1], channels, *kernel)), np.int8)
        symmetric = net.const(np.zeros(scales.shape), np.int8)
        w = net.op("DequantizeLinear", codes, net.const(scales), symmetric, axis=1)
        bias = [net.const(random.standard_normal(channels * attributes.get("group", 1)))] if number % 2 else []
        y = net.op("ConvTranspose", x, w, *bias, **attributes)
        y = net.op("Relu", y) if number % 4 == 1 else y
        net.output(net.quantize(y, 0.1013, -9, out=f"y{number}"), dtype=np.int8)
    return net


@pytest.mark.spread(6)
@pytest.mark.qemu
@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
def test_int8_windows(per_channel: bool) -> None:
    check_library(layers(CASES, per_channel).model(), {CALL: len(CASES)})


def test_windows_that_the_library_cannot_do_stay_ours() -> None:
    check_library(layers(OTHERS, True).model(), {}, boards=())


OWN = {"corstone300": "conv_transpose_s8_mve", "nrf52840": "conv_transpose_s8_dsp"}


@pytest.mark.parametrize("board", OWN)
def test_auto_leaves_it_where_ours_takes_fewer_instructions(board: str) -> None:
    """By the committed costs."""
    case: Case = ((1, 32, 8, 8), 16, (4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]})
    model = compile_model(layers([case], True).model(), board, CompileOptions(family=AUTO))
    assert [i.kernel for i in model.program.instrs if i.op == "conv_transpose"] == [OWN[board]]
