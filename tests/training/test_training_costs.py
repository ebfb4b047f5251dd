# SPDX-License-Identifier: Apache-2.0
"""What learning takes beside inference: RAM of the keyword network and of MobileNetV2, instructions of a step."""

from __future__ import annotations

import pytest
from mobile_networks import MOBILENET_V2_035, mobile_net
from training_costs import SHARED, costs

KB = 1024


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared")
def test_the_keyword_networks_last_layer() -> None:
    found = costs(SHARED / "ds_cnn_kws_int8_qdq.onnx", "nrf52840", "last:1")
    assert found.arena + found.state - found.arena_of_inference <= 16 * KB
    assert found.step <= 3 * found.inference


@pytest.mark.slow
@pytest.mark.qemu
def test_the_last_blocks_of_mobilenet_v2() -> None:
    found = costs(mobile_net((96, 96), MOBILENET_V2_035, head=1280), "stm32h743", "last:1,bias:12")
    assert found.arena + found.state <= 192 * KB
    assert found.is_proven
