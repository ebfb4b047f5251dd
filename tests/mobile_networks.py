# SPDX-License-Identifier: Apache-2.0
"""Builders of int8 networks for microcontrollers, with explicit Pads as in exports of TFLite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx_models import Net

SCALE = 0.05
"""Scale of all activations."""


@dataclass(frozen=True)
class Block:
    """An inverted residual block: expansion of the channels, a depthwise convolution, and projection to `channels`."""

    expansion: int
    kernel: int
    channels: int
    stride: int = 1


MCUNET_VWW = (
    Block(1, 3, 8),
    Block(6, 7, 16, 2),
    Block(6, 3, 16),
    Block(6, 5, 16),
    Block(6, 7, 24, 2),
    Block(6, 5, 24),
    Block(6, 5, 40, 2),
    Block(6, 7, 40),
    Block(6, 5, 48),
    Block(6, 7, 96, 2),
    Block(6, 5, 96),
    Block(6, 5, 160),
)
"""Blocks as in the networks of MCUNet (Lin et al., 2020)."""


MOBILENET_V2_035 = (
    Block(1, 3, 8),
    *(Block(6, 3, 8, 2), Block(6, 3, 8)),
    *(Block(6, 3, 16, 2), Block(6, 3, 16), Block(6, 3, 16)),
    *(Block(6, 3, 24, 2), Block(6, 3, 24), Block(6, 3, 24), Block(6, 3, 24)),
    *(Block(6, 3, 32), Block(6, 3, 32), Block(6, 3, 32)),
    *(Block(6, 3, 56, 2), Block(6, 3, 56), Block(6, 3, 56)),
    Block(6, 3, 112),
)
"""MobileNetV2 of width 0.35 (Sandler et al., 2018); its head has 1280 channels."""


class QuantizedNet(Net):
    """A network whose tensors stand between QuantizeLinear and DequantizeLinear.

    Methods take and return the names of the dequantized tensors.
    """

    def __init__(self, size: tuple[int, int], channels: int = 3, *, is_integer: bool = False, seed: int = 0) -> None:
        super().__init__()
        self.random = np.random.default_rng(seed)
        shape = (1, channels, *size)
        if is_integer:
            self.x = self.dequantize(self.input("x", *shape, dtype=np.int8), SCALE)
        else:
            self.x = self.fake(self.input("x", *shape), SCALE)

    def weights(self, *shape: int) -> str:
        """Return int8 weights with a scale per output channel, such that a layer keeps the variance of its input."""
        codes = self.random.integers(-127, 128, shape).astype(np.int8)
        scales = self.random.uniform(0.8, 1.2, shape[0]) / (73 * np.sqrt(np.prod(shape[1:])))
        scale = self.const(scales.astype(np.float32))
        zeros = self.const([0] * shape[0], np.int8)
        return self.op("DequantizeLinear", self.const(codes, np.int8), scale, zeros, axis=0)

    def conv(
        self, x: str, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, *, relu: bool = True
    ) -> str:
        """Add a convolution as TFLite writes it: SAME padding in the window for stride 1, else a separate Pad."""
        pads = [kernel // 2] * 4
        if stride > 1 and kernel > 1:
            widths = self.const([0, 0, *pads[:2], 0, 0, *pads[2:]], np.int64)
            x, pads = self.fake(self.op("Pad", x, widths), SCALE), [0] * 4
        w = self.weights(outputs, inputs // groups, kernel, kernel)
        bias = self.const(self.random.normal(0, 0.3, outputs))
        y = self.op("Conv", x, w, bias, strides=[stride] * 2, pads=pads, group=groups)
        return self.fake(self.op("Clip", y, self.const(0.0), self.const(6.0)) if relu else y, SCALE)

    def inverted_residual(self, x: str, inputs: int, block: Block) -> str:
        """Add expansion, depthwise convolution, projection and sum."""
        wide = inputs * block.expansion
        y = x if block.expansion == 1 else self.conv(x, inputs, wide, 1)
        y = self.conv(y, wide, wide, block.kernel, block.stride, wide)
        y = self.conv(y, wide, block.channels, 1, relu=False)
        return y if block.stride > 1 or inputs != block.channels else self.fake(self.op("Add", x, y), SCALE)


def mobile_net(
    size: tuple[int, int] = (80, 80),
    blocks: Sequence[Block] = MCUNET_VWW,
    *,
    first: int = 16,
    head: int = 0,
    classes: int = 2,
    is_integer: bool = False,
) -> onnx.ModelProto:
    """Return a network of inverted residual blocks over an image of three channels.

    Args:
        size: Height and width of the image.
        blocks: The blocks.
        first: Channels of the first convolution.
        head: Channels of the last convolution, before the mean over pixels; 0 for none.
        classes: Number of classes.
        is_integer: Whether input and output are int8 instead of float32.
    """
    net = QuantizedNet(size, is_integer=is_integer)
    y, channels = net.conv(net.x, 3, first, 3, 2), first
    for block in blocks:
        y = net.inverted_residual(y, channels, block)
        channels = block.channels
    if head:
        y, channels = net.conv(y, channels, head, 1), head
    mean = net.fake(net.op("GlobalAveragePool", y), SCALE)
    flat = net.op("Flatten", mean)
    net.op("Gemm", flat, net.weights(classes, channels), transB=1, out="scores")
    net.quantize("scores", SCALE, out="y")
    net.output("y", dtype=np.int8)
    return net.model("mobile")


def u_net(size: int = 32, widths: Sequence[int] = (16, 32, 64), *, is_integer: bool = False) -> onnx.ModelProto:
    """Return a U-Net: down by pooling, up by transposed convolutions, with concatenations between the two."""
    net = QuantizedNet((size, size), is_integer=is_integer)
    y, channels, skips = net.x, 3, []
    for width in widths[:-1]:
        y = net.conv(net.conv(y, channels, width, 3), width, width, 3)
        skips.append((y, width))
        y, channels = net.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]), width
    y = net.conv(net.conv(y, channels, widths[-1], 3), widths[-1], widths[-1], 3)
    channels = widths[-1]
    for skip, width in reversed(skips):
        w = net.op(
            "DequantizeLinear",
            net.const(net.random.integers(-127, 128, (channels, width, 2, 2)), np.int8),
            net.const(0.5 / (73 * np.sqrt(channels))),
            net.const(0, np.int8),
        )
        up = net.fake(net.op("ConvTranspose", y, w, kernel_shape=[2, 2], strides=[2, 2]), SCALE)
        y = net.fake(net.op("Concat", up, skip, axis=1), SCALE)
        y, channels = net.conv(net.conv(y, 2 * width, width, 3), width, width, 3), width
    y = net.conv(y, channels, 1, 1, relu=False)
    if is_integer:
        net.quantize(y, SCALE, out="y")
        net.output("y", dtype=np.int8)
    else:
        net.output(y)
    return net.model("u_net")
