# SPDX-License-Identifier: Apache-2.0
"""Quantized networks whose weights compress well."""

from __future__ import annotations

import numpy as np
import onnx
from onnx_models import Net


def coarse_weights(seed: int, *shape: int, spread: float = 4.0) -> np.ndarray:
    """Return int8 weights with the distribution that large scales cause: mostly small values, and a few large ones.

    Args:
        seed: Seed of the random numbers.
        *shape: Shape of the weights.
        spread: Scale of the Laplace distribution of the small values, in integers.
    """
    random = np.random.default_rng(seed)
    codes = np.rint(random.laplace(0, spread, shape))
    return np.where(random.random(shape) < 0.002, random.integers(-128, 128, shape), np.clip(codes, -127, 127)).astype(
        np.int8
    )


def compressible_network(channels: int = 24, spread: float = 4.0, side: int = 12) -> onnx.ModelProto:
    """Return a network whose int8 weights compress well.

    It has convolutions, depthwise and pointwise ones included, and a fully connected layer.

    Args:
        channels: Channels of the convolutions.
        spread: Spread of the weights, as in `coarse_weights`.
        side: Height and width of the input.
    """
    net = Net(21)
    x = net.fake(net.input("x", 1, 4, side, side), 0.05, 3)
    for number, (before, size, groups) in enumerate(
        ((4, 3, 1), (channels, 3, channels), (channels, 1, 1), (channels, 3, 1))
    ):
        codes = coarse_weights(number, channels, before // groups, size, size, spread=spread)
        weights = net.dequantize(net.const(codes, np.int8), 0.01)
        pads = [size // 2] * 4
        x = net.fake(net.op("Conv", x, weights, pads=pads, group=groups, out=f"c{number}"), 0.3, -5)
    flat = net.op("Flatten", net.fake(net.op("GlobalAveragePool", x), 0.3, -5), axis=1)
    rows = net.dequantize(net.const(coarse_weights(9, 10, channels, spread=spread), np.int8), 0.01)
    net.output(net.fake(net.op("Gemm", flat, rows, transB=1, out="d"), 1.0, 0))
    return net.model()
