# SPDX-License-Identifier: Apache-2.0
"""What layers of networks that nobody tuned for take on four CPUs: instructions a multiply-accumulate, or an element.

`pytest -s -m slow tests/test_untuned_layers.py` prints what they take today; the limits are some percent above that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest
from mobile_networks import SCALE
from onnx_models import Net

from mcugen.api.compilation import Compilation
from mcugen.core.board import load_board
from mcugen.hir.layer_names import name_results_of

pytestmark = [pytest.mark.slow, pytest.mark.qemu]

BOARDS = ("nrf52840", "corstone300", "rp2040", "rv32imc")
"""Cortex-M4, Cortex-M55, Cortex-M0+, RV32IMC: in this order below."""

Limits = tuple[float, float, float, float]

DEPTHWISE: dict[tuple[int, int, tuple[int, int], int, int], Limits] = {
    # channels, height (1: a line of width), window, stride, dilation
    (32, 24, (3, 3), 1, 1): (1.7, 0.52, 7.7, 5.2),
    (64, 12, (3, 3), 1, 1): (1.8, 0.57, 7.7, 5.8),
    (16, 48, (3, 3), 2, 1): (2.63, 0.83, 8.1, 7.1),
    (32, 24, (5, 5), 1, 1): (1.45, 0.61, 9.1, 4.1),
    (96, 10, (5, 5), 1, 1): (1.55, 0.85, 9.5, 5.1),
    (48, 20, (5, 5), 2, 1): (1.75, 0.96, 11.4, 5.9),
    (48, 20, (7, 7), 1, 1): (1.1, 0.35, 8.3, 3.5),
    (48, 20, (7, 7), 2, 1): (1.35, 0.53, 9.1, 4.8),
    (64, 1, (1, 9), 1, 1): (1.8, 0.78, 11.5, 4.6),
    (64, 1, (1, 13), 1, 2): (2.2, 0.55, 8.6, 6.0),
    (40, 1, (1, 17), 2, 1): (1.9, 0.6, 11.2, 6.4),
}
DENSE: dict[tuple[int, int, int], Limits] = {
    # rows, depth, channels
    (64, 64, 64): (0.86, 0.155, 2.7, 3.9),
    (49, 32, 96): (0.96, 0.2, 3.4, 4.3),
    (1, 640, 128): (0.9, 0.15, 5.9, 3.6),
}
PRODUCTS: dict[tuple[int, int, int, int], Limits] = {
    # batch, rows, depth, columns
    (4, 64, 64, 16): (0.92, 0.3, 5.3, 4.1),
    (4, 64, 16, 64): (1.17, 0.43, 6.3, 5.3),
    (2, 49, 32, 49): (1.12, 0.34, 5.5, 4.8),
}
TRANSPOSED: dict[tuple[int, int, int, int], Limits] = {
    # channels, height, channels of the result, window; stride 2
    (32, 8, 16, 2): (1.0, 0.2, 9.1, 5.5),
    (32, 8, 16, 4): (1.3, 0.26, 6.6, 4.3),
}
ELEMENTS: dict[str, Limits] = {
    "quantize": (7.6, 2.9, 65.3, 40.1),
    "dequantize": (4.4, 1.6, 46.0, 31.6),
    "softmax": (10.4, 5.9, 69.0, 29.2),
}


class Layers(Net):
    """Layers beside each other, each from an input of its own to an output of its own, which has the layer's name."""

    def __init__(self) -> None:
        super().__init__(21)
        self.random = np.random.default_rng(0)

    def codes(self, *shape: int) -> str:
        return self.dequantize(self.input(f"x{len(self.inputs)}", *shape, dtype=np.int8), SCALE)

    def weights(self, *shape: int, axis: int = 0) -> str:
        codes = self.random.normal(0, 40, shape).round().clip(-127, 127)
        scales = self.const(self.random.uniform(0.001, 0.003, shape[axis]))
        zeros = self.const([0] * shape[axis], np.int8)
        return self.op("DequantizeLinear", self.const(codes, np.int8), scales, zeros, axis=axis)

    def done(self, y: str, name: object, scale: float = SCALE, zero: int = -128) -> None:
        self.output(self.quantize(y, scale, zero, out=str(name)), dtype=np.int8)


def depthwise(net: Layers, name: tuple[int, int, tuple[int, int], int, int]) -> None:
    channels, height, (k_h, k_w), stride, dilation = name
    width = 100 if height == 1 else height
    pads = [k_h // 2, dilation * (k_w // 2), k_h // 2, dilation * (k_w // 2)]
    strides, dilations = [stride if k_h > 1 else 1, stride], [1, dilation]
    w, bias = net.weights(channels, 1, k_h, k_w), net.const(net.random.normal(0, 0.3, channels))
    x = net.codes(1, channels, height, width)
    y = net.op("Conv", x, w, bias, group=channels, pads=pads, strides=strides, dilations=dilations)
    net.done(net.op("Relu", y), name)


def dense(net: Layers, name: tuple[int, int, int]) -> None:
    rows, depth, channels = name
    bias = net.const(net.random.normal(0, 0.3, channels))
    net.done(net.op("Relu", net.op("Gemm", net.codes(rows, depth), net.weights(channels, depth), bias, transB=1)), name)


def product(net: Layers, name: tuple[int, int, int, int]) -> None:
    batch, rows, depth, columns = name
    net.done(net.op("MatMul", net.codes(batch, rows, depth), net.codes(batch, depth, columns)), name, zero=0)


def transposed(net: Layers, name: tuple[int, int, int, int]) -> None:
    channels, height, results, window = name
    w = net.weights(channels, results, window, window, axis=1)
    y = net.op("ConvTranspose", net.codes(1, channels, height, height), w, strides=[2, 2], auto_pad="SAME_UPPER")
    net.done(net.op("Relu", y), name)


def elementwise(net: Layers, name: str) -> None:
    if name == "quantize":
        net.output(net.quantize(net.input("reals", 4096), 0.031, 3, out=name), dtype=np.int8)
    elif name == "dequantize":
        net.output(net.dequantize(net.input("codes", 4096, dtype=np.int8), 0.031, 3, out=name))
    else:
        net.done(net.op("Softmax", net.codes(64, 64), axis=-1), name, 1 / 256)


KINDS: tuple[tuple[Callable[..., None], dict[object, Limits]], ...] = (
    (depthwise, DEPTHWISE),  # type: ignore[arg-type]
    (dense, DENSE),  # type: ignore[arg-type]
    (product, PRODUCTS),  # type: ignore[arg-type]
    (transposed, TRANSPOSED),  # type: ignore[arg-type]
    (elementwise, ELEMENTS),  # type: ignore[arg-type]
)


def all_layers() -> onnx.ModelProto:
    net = Layers()
    for add, limits in KINDS:
        for name in limits:
            add(net, name)
    return net.model("layers")


@pytest.mark.parametrize("board", BOARDS)
def test_what_layers_take(board: str) -> None:
    target, index = load_board(board), BOARDS.index(board)
    memories = tuple(replace(memory, size=max(memory.size, 1 << 25)) for memory in target.memories)
    made = Compilation(all_layers(), replace(target, memories=memories))
    elements = {node.outputs[0].name: node.outputs[0].type.count for node in made.compiled.graph.nodes}
    titles = name_results_of(made.compiled.graph)
    taken = {layer.name: layer for layer in made.report().layers}
    above = {}
    for _, limits in KINDS:
        for name, most in limits.items():
            layer = taken[titles[str(name)]]
            each = (layer.instructions or 0) / (layer.macs or elements[str(name)])
            print(f"{board} {name} {layer.kernel}: {each:.2f}")
            if each > most[index]:
                above[name] = each
    assert not above
