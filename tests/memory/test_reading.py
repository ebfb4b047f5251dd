# SPDX-License-Identifier: Apache-2.0
"""How often layers load their constants, as estimated from what kernels declare, against what the simulator saw."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx_models import Net, random_feeds

from mcugen.core.board import Cache, load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.lir.program import Instr, Program
from mcugen.memory.constant_stalls import constant_reads
from mcugen.simulation import simulate

NRF52840 = load_board("nrf52840")
"""No cache stands between its flash and data: each load is one access."""


def convolution(groups: int) -> onnx.ModelProto:
    """3 x 3 windows on 16 channels, of all or one of them each."""
    random, net = np.random.default_rng(5), Net()
    x = net.fake(net.input("x", 1, 16, 12, 12), 0.05, 0)
    codes = random.integers(-127, 128, (16, 16 // groups, 3, 3))
    y = net.op("Conv", x, net.dequantize(net.const(codes, np.int8), 0.003), pads=[1] * 4, group=groups)
    net.output(net.fake(y, 0.2, 4))
    return net.model()


def layer_of(program: Program, kernel: str) -> tuple[int, Instr]:
    """Number and head of the layer that a kernel computes."""
    heads = (program.head(layer) for layer in program.layers())
    return next((number, head) for number, head in enumerate(heads) if head.kernel == kernel)


def words_loaded(program: Program, head: Instr) -> float:
    """By estimate."""
    constants = constant_reads(program, NRF52840, NRF52840.memory("flash"))
    return sum(c.runs * c.passes * c.buffer.nbytes for c in constants if c.instr is head) / 4


@pytest.mark.spread(2)
@pytest.mark.qemu
@pytest.mark.parametrize(
    ("kernel", "groups"),
    [
        ("conv2d_s8", 1),
        ("conv2d_s8_dsp", 1),
        ("conv2d_s8_dsp16", 1),
        ("conv2d_s8_winograd_dsp", 1),
        ("conv2d_s8_winograd_fly_dsp_t4", 1),
        ("depthwise_s8", 16),
        ("depthwise_s8_3x3", 16),
    ],
)
def test_loads_are_those_that_the_simulator_sees(kernel: str, groups: int) -> None:
    model = convolution(groups)
    found = compile_model(model, NRF52840, CompileOptions("net", optimize="flash", kernels=(kernel,)))
    made = simulate(found.bundle, NRF52840, [random_feeds(model)], per_layer=True, cycles=True).cycles
    assert made is not None and made.layer_waits is not None
    number, head = layer_of(found.program, kernel)
    seen = sum(wait.reads for wait in made.layer_waits[number])
    assert 0.5 * seen < words_loaded(found.program, head) < 2 * seen


def test_a_cache_loses_what_its_sets_have_no_ways_for() -> None:
    """Gone through in turn: what leaves a way of each set to others stays; of what takes one too many nothing does."""
    cache = Cache("xip", ("flash",), "both", size=16384, line=8, ways=2)
    assert cache.evicted_share(8192) == 0
    assert cache.evicted_share(16384) == 0.5
    assert cache.evicted_share(24576) == 1 == cache.evicted_share(1 << 20)
    whole = replace(cache, ways=cache.size // cache.line)
    assert cache.evicted_share(20480) < whole.evicted_share(20480) == 1
    assert whole.evicted_share(16000) == 0
