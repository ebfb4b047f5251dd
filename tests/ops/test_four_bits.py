# SPDX-License-Identifier: Apache-2.0
"""Weights of 4 bits, two a byte: the same bits as with a byte each, in about half the flash."""

from __future__ import annotations

import numpy as np
import pytest
from test_conv import WINDOWS, Case
from test_dsp_conv import CASES, ROWS, FourBits, TwoBits

PLAIN = ("conv2d_s4", "dense_s4", "depthwise_s4")
DSP = ("conv2d_s4_dsp", "dense_s4_dsp")
FOURS = ("conv2d_s4_dsp_fours", "dense_s4_dsp")
SCALAR = {
    "rp2040": ("conv2d_s4_thumb1", "dense_s4_thumb1"),
    "stm32f103": ("conv2d_s4_thumb2", "dense_s4_thumb2", "dense_s4"),
    "esp32c3": ("conv2d_s4_rv32", "dense_s4"),
}
"""By board."""
MVE = ("conv2d_s4_mve", "dense_s4_mve")
DEPTHWISE: dict[str, Case] = {
    "depthwise": ((1, 5, 6, 5), 5, (3, 3), {"group": 5, "pads": [1, 1, 1, 1]}),
    "depthwise, even taps": ((1, 4, 6, 6), 4, (2, 2), {"group": 4}),
    "depthwise, looped": ((1, 3, 9, 9), 3, (7, 5), {"group": 3, "pads": [3, 2, 3, 2]}),
}
LOOPED = {name: case for name, case in CASES.items() if name != "groups of single channels"}


def test_plain_c():
    layers = FourBits()
    for name, case in (WINDOWS | DEPTHWISE).items():
        layers.add_case(name, case)
    for name, (shape, channels) in ROWS.items():
        layers.add(name, shape, layers.weights(channels, shape[1]))
        layers.add(f"{name}, thrice", (3, shape[1]), layers.weights(channels, shape[1]))
    layers.check(PLAIN, ("host",))


def test_two_bits_of_plain_c():
    """Four weights a byte."""
    layers = TwoBits()
    for name, case in WINDOWS.items():
        layers.add_case(name, case)
    layers.check(("conv2d_s2", "depthwise_s4"), ("host",))


@pytest.mark.qemu
@pytest.mark.parametrize("kernels", [DSP, FOURS], ids=lambda k: k[0])
@pytest.mark.parametrize("board", ["nrf52840"])
def test_dsp(board: str, kernels: tuple[str, ...]):
    layers = FourBits()
    for name, case in LOOPED.items():
        layers.add_case(name, case, relu=len(name) % 2 == 0, gain=0.8)
    for name, (shape, channels) in ROWS.items():
        layers.add(name, shape, layers.weights(channels, shape[1]), relu=channels % 2 == 0)
    layers.check(kernels, ("host", board))


@pytest.mark.qemu
def test_results_of_16_bits():
    """As gates and the layers before others of 16 bits have them: sums raised by several bits, or as they are."""
    layers = FourBits(result=np.int16)
    for name, case in LOOPED.items():
        layers.add_case(name, case, relu=len(name) % 2 == 0, gain=400.0 if len(name) % 3 else 30.0)
    for name, (shape, channels) in ROWS.items():
        layers.add(name, shape, layers.weights(channels, shape[1]), relu=channels % 2 == 0, gain=400.0)
    for kernels in (DSP, FOURS):
        layers.check(kernels, ("host", "nrf52840"))
    layers.check(MVE, ("host", "corstone300"), made_for=("corstone300", "balanced"))


@pytest.mark.parametrize("board", ["host", pytest.param("nrf52840", marks=pytest.mark.qemu)])
def test_short_loops(board: str):
    layers = FourBits()
    for name in ("one channel, tall kernel", "odd rows and columns", "long", "one channel out", "loop of whole rounds"):
        layers.add_case(name, LOOPED[name], relu=name == "long", gain=0.8)
    layers.check(("conv2d_s4_dsp_short",), (board,), made_for=("nrf52840", "flash"))


@pytest.mark.parametrize("board", ["host", *(pytest.param(b, marks=pytest.mark.qemu) for b in ("rp2040", "stm32f103"))])
def test_one_channel_at_a_time(board: str):
    """Taps of a channel are taken apart once; on a Cortex-M0+ strips hold words."""
    layers = FourBits()
    for name, case in DEPTHWISE.items():
        layers.add_case(name, case, relu=name == "depthwise")
    layers.check(("depthwise_s4_planes",), (board,), made_for=(board, "balanced"))


@pytest.mark.qemu
def test_helium():
    layers = FourBits()
    for name, case in LOOPED.items():
        layers.add_case(name, case, relu=len(name) % 2 == 0, gain=0.8)
    for name, (shape, channels) in ROWS.items():
        layers.add(name, shape, layers.weights(channels, shape[1]), relu=channels % 2 == 0)
    layers.check(MVE, ("host", "corstone300"), made_for=("corstone300", "balanced"))


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "board", [pytest.param(b, marks=pytest.mark.riscv if b == "esp32c3" else pytest.mark.qemu) for b in SCALAR]
)
def test_one_product_at_a_time(board: str):
    layers = FourBits()
    for name, case in LOOPED.items():
        if "group" not in case[3]:
            layers.add_case(name, case, relu=len(name) % 2 == 0, gain=0.8)
    for name, (shape, channels) in ROWS.items():
        layers.add(name, shape, layers.weights(channels, shape[1]), relu=channels % 2 == 0)
        layers.add(f"{name}, thrice", (3, shape[1]), layers.weights(channels, shape[1]))
    layers.add("a long row", (1, 4200), layers.weights(9, 4200))
    layers.check(SCALAR[board], ("host", board), made_for=(board, "balanced"))
