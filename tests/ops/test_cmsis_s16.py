# SPDX-License-Identifier: Apache-2.0
"""Layers of int16 activations by CMSIS-NN: within a step of our own kernels, to the bit by their own references."""

from __future__ import annotations

import numpy as np
import pytest
from cmsis_checks import check_library
from onnx_models import Net
from test_conv import WINDOWS, half, quantized_conv

SHORT: tuple[type, type] = (np.int16, np.int16)


class Layers:
    """A model of independent layers, each from reals of int16 codes to such."""

    def __init__(self) -> None:
        self.net = Net(opset=21)
        self.count = 0

    def input(self, *shape: int, scale: float = 1e-4) -> str:
        self.count += 1
        return self.net.dequantize(self.net.input(f"x{self.count}", *shape, dtype=np.int16), scale, 0, np.int16)

    def output(self, real: str, scale: float) -> None:
        self.count += 1
        self.net.output(self.net.quantize(real, scale, 0, np.int16, out=f"y{self.count}"), dtype=np.int16)

    def weights(self, *shape: int, scale: float | np.ndarray = 0.01, most: int = 127, axis: int = 0) -> str:
        codes = np.random.default_rng(self.count).integers(-most, most + 1, shape)
        scales = np.float32(scale)
        zeros = self.net.const(0 * scales, np.int8)
        attributes = {"axis": axis} if scales.ndim else {}
        return self.net.op(
            "DequantizeLinear", self.net.const(codes, np.int8), self.net.const(scales), zeros, **attributes
        )


@pytest.mark.qemu
@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
def test_windows(part: int, per_channel: bool) -> None:
    net = Net(opset=21)
    for name in half(part):
        quantized_conv(net, name, WINDOWS[name], per_channel, SHORT)
    groups = [WINDOWS[name][3].get("group", 1) == WINDOWS[name][0][1] > 1 for name in half(part)]
    grouped = [WINDOWS[name][3].get("group", 1) > 1 for name in half(part)]
    calls = {"cmsis_convolve_s16": grouped.count(False), "cmsis_depthwise_s16": groups.count(True)}
    check_library(net.model(), calls)
