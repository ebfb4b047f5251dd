# SPDX-License-Identifier: Apache-2.0
"""Rows of three taps, one filter a channel, where inputs pass by in registers: the bits of the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx_models import Net
from test_depthwise import VALUES, Layer, check, compiled

from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.hir.traits import partitions
from mcugen.search import core_partition

KERNEL = "depthwise_s8_line"
LINES = [
    *(Layer(1, w, 5, (1, 3), pads=(0, 1, 0, 1)) for w in (2, 3, 4, 9)),
    *(
        Layer(1, 12, 8, (1, 3), pads=(0, before, 0, after))
        for before, after in ((2, 0), (0, 2), (0, 0), (1, 0), (2, 3))
    ),
    *(Layer(1, w, 4, (1, 3), dilations=(1, d), pads=(0, d, 0, d)) for w, d in ((9, 2), (13, 4), (8, 4))),
    Layer(1, 24, 32, (1, 3), dilations=(1, 2), pads=(0, 4, 0, 0), batch=2),
    Layer(20, 1, 12, (3, 1), pads=(2, 0, 0, 0)),
    Layer(6, 7, 5, (1, 3), pads=(0, 1, 0, 1)),
    *(replace(layer, kernel=(1, 3), pads=(0, 1, 0, 1)) for layer in VALUES),
]


def test_plain_c():
    check(LINES, KERNEL, "nrf52840", on_board=False)


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["nrf52840", "rt1060", "rp2040", "rv32imc"])
def test_on_every_cpu(board: str):
    check(LINES, KERNEL, board, on_board=True)


@pytest.mark.parametrize("on_board", [False, pytest.param(True, marks=pytest.mark.qemu)])
def test_some_channels_of_pixels(on_board: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions for two cores, which skip the other's channels."""
    monkeypatch.setattr(
        core_partition, "partitions", lambda *of: [d for d in partitions(*of) if d.shard(0, 1).writes.pitch]
    )
    layers = [Layer(1, 15, 20, (1, 3)), Layer(1, 31, 8, (1, 3), dilations=(1, 2), pads=(0, 2, 0, 2))]
    check([replace(one, pads=(0, 2, 0, 2)) for one in layers], KERNEL, "rp2040", on_board, two_cores=True)


def test_a_row_that_keeps_its_length_is_overwritten():
    (instr,) = (i for i in compiled([LINES[1]], KERNEL, "nrf52840").program.instrs if i.macs)
    assert ("y", "x") in instr.inplace


@pytest.mark.parametrize(
    "layer",
    [
        Layer(1, 20, 5, (1, 3), dilations=(1, 2), pads=(0, 3, 0, 1)),  # pixels that meet are no sequence of x
        Layer(1, 20, 5, (1, 3), stride=2, pads=(0, 1, 0, 1)),
        Layer(1, 20, 5, (1, 4), pads=(0, 1, 0, 2)),
        Layer(1, 20, 5, (1, 3), dilations=(1, 11), pads=(0, 11, 0, 11)),
        Layer(8, 8, 5, (3, 3)),
    ],
)
def test_other_windows_are_left_to_others(layer: Layer):
    net = Net(opset=21)
    layer.add(net, "y", np.int8)
    with pytest.raises(UsageError, match=KERNEL):
        compile_model(net.model(), "nrf52840", CompileOptions(kernels=(KERNEL,)))
