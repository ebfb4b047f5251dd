# SPDX-License-Identifier: Apache-2.0
"""Weights of 4 bits by CMSIS-NN: the same bits as by our own kernels, in half the flash."""

from __future__ import annotations

import numpy as np
import pytest
from cmsis_checks import BOARDS, calls_of, check_library
from cmsis_layers import SMALL, WIDE, int4_dense, quantized_conv, quantized_dense
from onnx_models import Net
from test_conv import Case

from mcugen.core.board import load_board
from mcugen.core.options import CMSIS_NN, CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.kernels.cmsis_nn.common import pack_nibbles_in_order
from mcugen.lir.program import Space

pytestmark = pytest.mark.qemu

CONVOLUTIONS: dict[str, Case] = {
    "even": ((1, 4, 5, 5), 6, (3, 3), {"pads": [1, 1, 1, 1]}),
    "odd": ((1, 3, 5, 5), 5, (3, 3), {"strides": [2, 1], "pads": [1, 0, 1, 0]}),
    "odd filters of two": ((2, 3, 4, 4), 2, (1, 3), {}),
    "deep": ((1, 37, 3, 3), 9, (3, 3), {"pads": [1, 1, 1, 1]}),
    "pointwise": ((1, 8, 3, 3), 5, (1, 1), {}),
    "pointwise odd": ((2, 7, 3, 3), 5, (1, 1), {"strides": [2, 1]}),
    "line": ((1, 4, 9), 5, (3,), {"pads": [1, 1]}),
    "line odd": ((1, 3, 9), 5, (3,), {"strides": [4], "pads": [1, 2]}),
}

DEPTHWISE: dict[str, Case] = {
    "even": ((1, 8, 5, 5), 8, (3, 3), {"group": 8, "pads": [1, 1, 1, 1]}),
    "odd": ((2, 7, 5, 4), 7, (2, 3), {"group": 7}),
    "twice": ((1, 4, 5, 5), 8, (3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    "thrice": ((1, 4, 5, 5), 12, (3, 2), {"group": 4}),
    "dilated": ((1, 6, 6, 6), 6, (3, 3), {"group": 6, "dilations": [2, 2]}),
}


def test_convolutions() -> None:
    net = Net()
    for name, case in CONVOLUTIONS.items():
        quantized_conv(net, name, case, per_channel=True, weights=SMALL)
    check_library(net.model(), {"cmsis_convolve_s4": len(CONVOLUTIONS)}, boards=BOARDS, optimize="flash")


def test_depthwise() -> None:
    net = Net()
    for name, case in DEPTHWISE.items():
        quantized_conv(net, name, case, per_channel=True, weights=SMALL)
    check_library(net.model(), {"cmsis_depthwise_s4": len(DEPTHWISE)}, boards=BOARDS[2:3], optimize="flash")


def test_dense() -> None:
    net = Net()
    for depth, channels in ((2, 1), (5, 3), (16, 4), (37, 9), (66, 10)):
        quantized_dense(net, f"{depth} by {channels}", (1,), depth, channels, False, SMALL)
    quantized_dense(net, "per channel", (1,), 21, 6, True, SMALL)
    quantized_dense(net, "rows", (5,), 21, 6, False, SMALL)
    check_library(net.model(), {"cmsis_dense_s4": 5, "cmsis_convolve_s4": 2}, boards=BOARDS, optimize="flash")


@pytest.mark.parametrize("unsigned", [False, True], ids=["INT4", "UINT4"])
def test_weights_of_four_bits_in_the_model(unsigned: bool) -> None:
    net = Net(opset=21)
    int4_dense(net, "even", 1, 16, 6, unsigned)
    int4_dense(net, "odd", 1, 7, 3, unsigned)
    check_library(net.model(), {"cmsis_dense_s4": 2}, optimize="flash")


def test_wider_weights_groups_and_helium_take_eight_bits() -> None:
    net = Net()
    quantized_conv(net, "wide", CONVOLUTIONS["even"], per_channel=True, weights=WIDE)
    quantized_conv(net, "just too wide", CONVOLUTIONS["pointwise"], per_channel=True, weights=(-9, 9))
    quantized_conv(net, "grouped", ((1, 4, 5, 5), 6, (3, 3), {"group": 2}), per_channel=True, weights=SMALL)
    odd: Case = ((1, 3, 5, 5), 6, (3, 3), {"group": 3})
    quantized_conv(net, "odd groups", odd, per_channel=True, weights=SMALL)
    calls = {"cmsis_convolve_s8": 3, "cmsis_depthwise_s8": 1}
    check_library(net.model(), calls, boards=(), optimize="flash")
    net = Net()
    quantized_conv(net, "y", DEPTHWISE["even"], per_channel=True, weights=SMALL)
    options = CompileOptions(family=CMSIS_NN, optimize="flash")
    program = compile_model(net.model(), load_board("corstone300"), options).program
    assert [i.kernel for i in calls_of(program)] == ["cmsis_depthwise_s8"]


def test_the_goal_decides() -> None:
    net = Net()
    quantized_conv(net, "y", CONVOLUTIONS["deep"], per_channel=True, weights=SMALL)
    sizes, kernels = {}, {}
    for goal in ("flash", "speed"):
        program = compile_model(net.model(), "host", CompileOptions(family=CMSIS_NN, optimize=goal)).program
        sizes[goal] = sum(b.nbytes for b in program.buffers if b.space is Space.CONST)
        kernels[goal] = calls_of(program)[0].kernel
    assert kernels == {"flash": "cmsis_convolve_s4", "speed": "cmsis_convolve_s8"}
    assert sizes["speed"] - sizes["flash"] == 9 * 9 * 37 // 2


def test_two_weights_a_byte_the_first_in_the_lower_half() -> None:
    packed = pack_nibbles_in_order(np.array([[1, -2], [7, -8], [3, 0]], np.int8)[:, :1])
    np.testing.assert_array_equal(packed.view(np.uint8), [0x71, 0x03])
    np.testing.assert_array_equal(pack_nibbles_in_order(np.array([-1, -8], np.int8)).view(np.uint8), [0x8F])
