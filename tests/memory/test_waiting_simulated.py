# SPDX-License-Identifier: Apache-2.0
"""Estimated waits for activations beside those that the simulator counts, all of the arena in slow memory: SDRAM behind
a cache of 32 KB for data, PSRAM behind 16 KB for all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from mobile_networks import MCUNET_VWW, MOBILENET_V2_035, SCALE, Block, QuantizedNet, mobile_net, u_net
from onnx_models import Net, random_feeds
from shared_models import MODELS, SHARED

from mcugen.core.board import Board, load_board
from mcugen.core.options import CompileOptions, Places
from mcugen.driver.compiler import compile_model
from mcugen.memory.activation_stalls import arena_stall_cycles
from mcugen.simulation import simulate

MAX_ESTIMATE_RATIO = 1.5
"""Times that an estimate may be off, either way."""


def depthwise(size: int, channels: int) -> onnx.ModelProto:
    """One layer, which takes four channels of all pixels at a time: channels last, from the input to the output."""
    net = QuantizedNet((size, channels), size, is_integer=True)
    planes = net.op("Transpose", net.x, perm=[0, 3, 1, 2])
    y = net.conv(planes, channels, channels, 3, groups=channels)
    net.quantize(net.op("Transpose", y, perm=[0, 2, 3, 1]), SCALE, out="y")
    net.output("y", dtype=np.int8)
    return net.model("depthwise")


def transposed(rows: int, columns: int) -> onnx.ModelProto:
    net = Net()
    net.output(net.op("Transpose", net.input("x", rows, columns, dtype=np.int8), perm=[1, 0]), dtype=np.int8)
    return net.model("transposed")


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "depthwise 16x16 of 128": lambda: depthwise(16, 128),
    "depthwise 64x64 of 48": lambda: depthwise(64, 48),
    "depthwise 50x50 of 36": lambda: depthwise(50, 36),
    "60 x 900 turned": lambda: transposed(60, 900),
    "MobileNetV2 0.35": lambda: mobile_net((96, 96), MOBILENET_V2_035, is_integer=True),
    "MCUNet": lambda: mobile_net(is_integer=True),
    "expansion of 8": lambda: mobile_net((64, 64), [Block(8, 3, 24), *MCUNET_VWW[4:7]], is_integer=True),
    "U-Net": lambda: u_net(64, is_integer=True),
    "ResNet8": lambda: onnx.load(MODELS / "resnet8_cifar10_int8_qdq.onnx"),
    "VWW": lambda: onnx.load(MODELS / "mobilenet_v1_025_vww_int8_qdq.onnx"),
    "FrontNet": lambda: onnx.load(SHARED / "zoo" / "dory_frontnet_int.onnx"),
}
IN_CI = "depthwise 16x16 of 128"
SLOW = {"rt1060": "sdram", "rp2350_psram": "psram"}
"""Memories by board."""


@pytest.mark.qemu
@pytest.mark.shared
@pytest.mark.parametrize("board", [load_board(name) for name in SLOW], ids=lambda board: board.name)
@pytest.mark.parametrize("name", [n if n == IN_CI else pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS])
def test_estimates_are_near_what_is_simulated(name: str, board: Board) -> None:
    memory = board.memory(SLOW[board.name])
    options = CompileOptions(optimize="speed", place=Places(arena=(memory.name,)))
    found = compile_model(NETWORKS[name](), board, options)
    run = simulate(found.bundle, board, [random_feeds(found.model)], per_layer=False, cycles=True)
    assert run.cycles is not None
    simulated = sum(wait.read_cycles for wait in run.cycles.waits if wait.memory == memory.name)
    estimated = sum(arena_stall_cycles(found.program, board, memory).values())
    assert simulated / MAX_ESTIMATE_RATIO < estimated < MAX_ESTIMATE_RATIO * simulated
