# SPDX-License-Identifier: Apache-2.0
"""Weights of 4 bits, two a byte: the same bits as with a byte each, in about half the flash."""

from __future__ import annotations

import pytest
from test_conv import WINDOWS, Case
from test_dsp_conv import CASES, ROWS, FourBits

PLAIN = ("conv2d_s4", "dense_s4", "depthwise_s4")
DSP = ("conv2d_s4_dsp", "dense_s4_dsp")
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


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["nrf52840"])
def test_dsp(board: str):
    layers = FourBits()
    for name, case in LOOPED.items():
        layers.add_case(name, case, relu=len(name) % 2 == 0, gain=0.8)
    for name, (shape, channels) in ROWS.items():
        layers.add(name, shape, layers.weights(channels, shape[1]), relu=channels % 2 == 0)
    layers.check(DSP, ("host", board))
