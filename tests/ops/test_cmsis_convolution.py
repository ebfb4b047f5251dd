# SPDX-License-Identifier: Apache-2.0
"""Convolutions by CMSIS-NN: the same bits as by our own kernels."""

from __future__ import annotations

import numpy as np
import pytest
from cmsis_checks import BOARDS, calls_of, check_library
from cmsis_layers import quantized_conv
from onnx_models import Net
from test_conv import WINDOWS, Case, half
from test_conv import quantized_conv as quantized

from mcugen.core.board import load_board
from mcugen.core.options import CMSIS_NN, CompileOptions
from mcugen.driver.compiler import compile_model

pytestmark = pytest.mark.qemu

CONVOLVE = "cmsis_convolve_s8"


@pytest.mark.spread(6)
@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
def test_int8_windows(part: int, per_channel: bool) -> None:
    net = Net()
    for name in half(part):
        quantized(net, name, WINDOWS[name], per_channel)
    boards = BOARDS if per_channel else BOARDS[3:]
    check_library(net.model(), {CONVOLVE: len(half(part))}, boards=boards, kernels=(CONVOLVE,))


LINES: dict[str, Case] = {
    "same": ((1, 4, 9), 5, (3,), {"pads": [1, 1]}),
    "longer behind": ((2, 4, 9), 5, (4,), {"pads": [1, 2]}),
    "in one go": ((1, 4, 7), 3, (3,), {"strides": [2], "pads": [1, 1]}),
    "no padding": ((1, 8, 6), 3, (3,), {}),
    # Helium's way with lines is wrong for all of these, or refuses them.
    "longer before": ((1, 4, 9), 5, (4,), {"pads": [2, 1]}),
    "only before": ((1, 4, 9), 5, (4,), {"pads": [3, 0]}),
    "unread end": ((1, 4, 8), 3, (3,), {"strides": [2]}),
    "overhang of two": ((1, 4, 7), 3, (5,), {"strides": [2], "pads": [2, 2]}),
    "kernel over all": ((1, 4, 3), 3, (5,), {"pads": [2, 2]}),
    "wide padding": ((1, 4, 5), 3, (3,), {"pads": [3, 3]}),
    "dilated": ((1, 4, 9), 3, (3,), {"dilations": [2], "pads": [2, 2]}),
    "odd channels": ((1, 3, 9), 3, (3,), {"pads": [1, 1]}),
    "odd channels, by four": ((1, 3, 9), 3, (3,), {"strides": [4], "pads": [1, 1]}),
    "grouped": ((1, 8, 9), 6, (3,), {"group": 2, "pads": [1, 1]}),
}


def test_lines() -> None:
    net = Net()
    for name, case in LINES.items():
        quantized_conv(net, name, case, per_channel=True)
    check_library(net.model(), {CONVOLVE: len(LINES)}, boards=BOARDS[2:])


ENDS: dict[str, Case] = {
    "beyond the end": ((1, 4, 3, 3), 5, (1, 1), {"pads": [0, 0, 1, 1]}),
    "dilated pixel": ((1, 4, 3, 3), 5, (1, 1), {"dilations": [2, 2]}),
    "padded pixel": ((1, 4, 1, 1), 5, (1, 1), {"pads": [1, 1, 1, 1]}),
    "upright": ((1, 4, 9, 1), 5, (3, 1), {"pads": [1, 0, 1, 0]}),
    "row in an image": ((1, 4, 4, 5), 5, (1, 3), {"pads": [0, 1, 0, 1]}),
    "grouped pixel": ((1, 8, 1, 1), 6, (1, 1), {"group": 2}),
    "many weights": ((1, 130, 3, 3), 3, (3, 3), {"pads": [1, 1, 1, 1]}),
}


def test_ends_of_images() -> None:
    net = Net()
    for name, case in ENDS.items():
        quantized_conv(net, name, case, per_channel=False)
    check_library(net.model(), {CONVOLVE: len(ENDS)}, boards=BOARDS[2:])


def test_what_the_library_has_wrong_is_our_own() -> None:
    net = Net()
    quantized_conv(net, "padded line", ((1, 4, 1, 6), 5, (1, 3), {"pads": [1, 1, 1, 1]}), per_channel=True)
    check_library(net.model(), {})


def test_scratch_is_as_the_library_wants_it() -> None:
    net = Net()
    quantized_conv(net, "y", ((1, 3, 5, 5), 4, (3, 3), {}), per_channel=True)
    compiled = compile_model(net.model(), "host", CompileOptions(family=CMSIS_NN))
    (instr,) = calls_of(compiled.program)
    assert instr.params["scratch_bytes"] == 4 * 28
    for board, size in (("nrf52840", 4 * 28), ("corstone300", 4 * 32)):
        program = compile_model(net.model(), load_board(board), CompileOptions(family=CMSIS_NN)).program
        assert calls_of(program)[0].params["scratch_bytes"] == size


def test_shifts_are_stored_once() -> None:
    net = Net()
    for channels in (3, 9, 5):
        quantized_conv(net, f"y{channels}", ((1, 2, 3, 3), channels, (2, 2), {}), per_channel=True)
    program = compile_model(net.model(), "host", CompileOptions(family=CMSIS_NN)).program
    shifts = {o.buffer for i in calls_of(program) for o in i.operands if o.role == "shift"}
    assert [b.count for b in shifts] == [9]
    assert all(not np.any(b.data) for b in shifts)


def test_scales_above_one_are_shifted_to_the_left() -> None:
    net = Net()
    x = net.dequantize(net.input("x", 1, 2, 3, 3, dtype=np.int8), 1.0, 3, np.int8)
    codes = net.const(np.random.default_rng(3).integers(-3, 4, (4, 2, 2, 2)), np.int8)
    w = net.dequantize(codes, 1.0, 0, np.int8)
    net.output(net.quantize(net.op("Conv", x, w), 0.3, 5, np.int8, out="y"), dtype=np.int8)
    model = net.model()
    program = compile_model(model, "host", CompileOptions(family=CMSIS_NN)).program
    (shift,) = (o.buffer.data for i in calls_of(program) for o in i.operands if o.role == "shift")
    assert shift is not None and set(shift.tolist()) == {2}
    check_library(model, {CONVOLVE: 1}, boards=BOARDS[3:])
