# SPDX-License-Identifier: Apache-2.0
"""Sums of int16 tensors of one scale, two elements at a time with the DSP extension."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import Net, numpy_outputs, random_feeds

from mcugen.core.board import load_board
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.simulation import Setup, simulate

COUNTS = (1, 7, 8, 15, 96)


def sums(*counts: int, scale: float = 0.001) -> Net:
    """Of two inputs of 0.001 a code, in units of `scale`."""
    net = Net(21)
    for count in counts:
        a, b = (net.dequantize(net.input(f"{n}{count}", count, dtype=np.int16), 0.001, 0, np.int16) for n in "ab")
        y = net.quantize(net.op("Add", a, b), scale, 0, np.int16, out=f"y{count}")
        net.output(y, dtype=np.int16)
    return net


def compiled(net: Net, board: str) -> CompiledModel:
    return compile_model(net.model(), board)


@pytest.mark.parametrize(("board", "target"), [("nrf52840", "nrf52840"), ("nrf5340", "nrf5340"), ("nrf52840", "host")])
def test_bit_exact_and_limited(board: str, target: str):
    net = sums(*COUNTS)
    model, feeds = compiled(net, board), random_feeds(net.model())
    assert {i.kernel for i in model.program.instrs} == {"add_s16_dsp"}
    wanted = numpy_outputs(net.model(), feeds)
    assert any(np.abs(y.astype(np.int32)).max() >= 32767 for y in wanted.values())
    run = simulate(model.bundle, load_board(target), [feeds], measure=False, setup=Setup(sanitize=target == "host"))
    for name, y in wanted.items():
        np.testing.assert_array_equal(run.outputs[0][name], y)


def test_instructions():
    """Element by element it took six an element."""
    net = sums(960)
    run = simulate(compiled(net, "nrf52840").bundle, load_board("nrf52840"), [random_feeds(net.model())])
    assert run.instructions < 3 * 960


@pytest.mark.parametrize(("board", "scale"), [("nrf52840", 0.002), ("rp2040", 0.001), ("corstone300", 0.001)])
def test_others_stay_loops(board: str, scale: float):
    assert {i.kernel for i in compiled(sums(8, scale=scale), board).program.instrs} == {"elementwise"}
