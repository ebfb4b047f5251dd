# SPDX-License-Identifier: Apache-2.0
"""Convolutions by CMSIS-NN: the same bits as by our own kernels."""

from __future__ import annotations

import pytest
from cmsis_checks import BOARDS, check_library
from onnx_models import Net
from test_conv import WINDOWS, half, quantized_conv


@pytest.mark.qemu
@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
def test_int8_windows(part: int, per_channel: bool) -> None:
    net = Net()
    for name in half(part):
        quantized_conv(net, name, WINDOWS[name], per_channel)
    check_library(net.model(), {"cmsis_convolve_s8": len(half(part))}, boards=BOARDS)
