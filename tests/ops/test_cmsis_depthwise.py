# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions by CMSIS-NN: the same bits as by our own kernels."""

from __future__ import annotations

import pytest
from cmsis_checks import BOARDS, calls_of, check_library
from cmsis_layers import quantized_conv
from onnx_models import Net
from test_conv import Case

from mcugen.core.board import load_board
from mcugen.core.options import CMSIS_NN, CompileOptions
from mcugen.driver.compiler import compile_model

pytestmark = pytest.mark.qemu

WINDOWS: dict[str, Case] = {
    "3x3": ((1, 9, 5, 6), 9, (3, 3), {"group": 9, "pads": [1, 1, 1, 1]}),
    "3x3 strided": ((1, 6, 7, 8), 6, (3, 3), {"group": 6, "strides": [2, 2], "pads": [0, 0, 1, 1]}),
    "3x3 padded by two": ((1, 5, 5, 5), 5, (3, 3), {"group": 5, "pads": [2, 2, 2, 2]}),
    "3x3 on a column": ((1, 5, 4, 1), 5, (3, 3), {"group": 5, "pads": [1, 1, 1, 1]}),
    "large": ((1, 7, 9, 9), 7, (5, 4), {"group": 7, "pads": [2, 1, 2, 2], "strides": [1, 2]}),
    "more channels than a block": ((1, 130, 3, 4), 130, (2, 2), {"group": 130}),
    "dilated": ((1, 6, 9, 9), 6, (3, 3), {"group": 6, "dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    "dilated row": ((1, 6, 1, 9), 6, (1, 3), {"group": 6, "dilations": [2, 2]}),
    "dilation of nothing": ((1, 6, 4, 9), 6, (1, 3), {"group": 6, "dilations": [2, 1]}),
    "batch": ((3, 5, 5, 4), 5, (2, 2), {"group": 5, "pads": [1, 1, 0, 0]}),
    "line": ((2, 5, 9), 5, (4,), {"group": 5, "pads": [2, 1]}),
    "twice": ((1, 5, 5, 5), 10, (3, 3), {"group": 5, "pads": [1, 1, 1, 1]}),
    "eight times": ((1, 5, 5, 5), 40, (3, 3), {"group": 5, "pads": [1, 1, 1, 1]}),
    "four times": ((2, 3, 5, 5), 12, (3, 2), {"group": 3, "strides": [2, 1]}),
    "one pixel a window": ((1, 8, 3, 3), 8, (1, 1), {"group": 8}),
}


@pytest.mark.spread(6)
@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
def test_int8(per_channel: bool) -> None:
    net = Net()
    for name, case in WINDOWS.items():
        quantized_conv(net, name, case, per_channel)
    boards = BOARDS if per_channel else ()
    check_library(net.model(), {"cmsis_depthwise_s8": len(WINDOWS)}, boards=boards, kernels=("cmsis_depthwise_s8",))


GROUPED: dict[str, Case] = {
    "centre beyond the end": ((1, 4, 5, 5), 4, (3, 3), {"group": 4, "pads": [0, 0, 0, 2]}),
    "windows above the image": ((1, 4, 3, 3), 4, (2, 2), {"group": 4, "pads": [3, 0, 0, 0]}),
    "windows below the image": ((1, 4, 3, 3), 4, (2, 2), {"group": 4, "pads": [0, 0, 4, 0]}),
    "one channel": ((1, 1, 5, 5), 12, (3, 3), {}),
}


def test_what_depthwise_functions_have_wrong_are_groups() -> None:
    net = Net()
    for name, case in GROUPED.items():
        quantized_conv(net, name, case, per_channel=True)
    check_library(net.model(), {"cmsis_convolve_s8": len(GROUPED)})


@pytest.mark.parametrize(
    ("board", "scratch"),
    [("stm32f103", [0, 0, 0]), ("nrf52840", [0, 2 * 4 * 5 * 5, 0]), ("corstone300", [4 * 124 * 9, 4 * 124 * 25, 0])],
)
def test_scratch(board: str, scratch: list[int]) -> None:
    net = Net()
    for name, kernel, dilation in (("near", 3, 1), ("large", 5, 1), ("dilated", 3, 2)):
        attributes = {"group": 4, "dilations": [dilation] * 2}
        quantized_conv(net, name, ((1, 4, 6, 6), 4, (kernel, kernel), attributes), per_channel=True)
    options = CompileOptions(family=CMSIS_NN, kernels=("cmsis_depthwise_s8",))
    program = compile_model(net.model(), load_board(board), options).program
    sizes = {i.name: i.params["scratch_bytes"] for i in calls_of(program)}
    assert [sizes[name] for name in ("near", "large", "dilated")] == scratch
