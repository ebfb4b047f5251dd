# SPDX-License-Identifier: Apache-2.0
"""Networks of a few integer convolutions."""

from __future__ import annotations

import numpy as np
import onnx
from onnx_models import Net


def convolutions(name: str = "node") -> onnx.ModelProto:
    """Return a network of three int8 convolutions, whose nodes are all called `name`."""
    net = Net()
    random = np.random.default_rng(0)
    x = net.fake(net.input("x", 1, 4, 24, 24), 0.05)
    for index in range(3):
        weights = net.dequantize(
            net.const(random.integers(-127, 128, (8, 4 if index == 0 else 8, 3, 3)), np.int8), 0.01
        )
        x = net.fake(net.op("Relu", net.op("Conv", x, weights, pads=[1, 1, 1, 1])), 0.05)
    net.output(x)
    model = net.model()
    for index, node in enumerate(model.graph.node):
        node.name = f"{name}{index}"
    return model
