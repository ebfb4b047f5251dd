# SPDX-License-Identifier: Apache-2.0
"""What learning takes beside inference: RAM of the keyword network and of MobileNetV2, instructions of a step."""

from __future__ import annotations

import pytest
from mobile_networks import MOBILENET_V2_035, mobile_net
from training_costs import KB, LAST_BLOCK, SHARED, costs

from mcugen.core.options import Training


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared")
def test_the_keyword_networks_last_layer() -> None:
    found = costs(SHARED / "ds_cnn_kws_int8_qdq.onnx", "nrf52840", Training("last:1"))
    assert found.arena + found.state - found.arena_of_inference <= 16 * KB
    assert found.step <= 3 * found.inference


@pytest.mark.slow
@pytest.mark.qemu
def test_the_last_blocks_of_mobilenet_v2() -> None:
    found = costs(mobile_net((96, 96), MOBILENET_V2_035, head=1280), "stm32h743", Training("last:1,bias:12"))
    assert found.arena + found.state <= 192 * KB
    assert found.is_proven


@pytest.mark.slow
@pytest.mark.qemu
def test_all_weights_of_the_last_block_of_mobilenet_v2() -> None:
    """Expansion, depthwise convolution, projection and classifier, all weights and biases."""
    network, training = mobile_net((96, 96), MOBILENET_V2_035, head=1280), f"last:1,{LAST_BLOCK}"
    found = costs(network, "stm32h743", Training(training, precision="int8"), 192 * KB)
    assert found.arena + found.state <= 192 * KB
    assert found.is_proven
