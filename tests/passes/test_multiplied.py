# SPDX-License-Identifier: Apache-2.0
"""Convolutions of several filters a channel (a depth multiplier): parted, the same codes for fewer instructions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx_models import Net, assert_close, check_quantized, operators, optimized, random_feeds

from mcugen.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.ops.conv import Conv
from mcugen.options import CompileOptions

STEP = 0.05


def multiplied(
    channels: int, filters: int, size: tuple[int, ...], kernel: tuple[int, ...], classes: int = 6, **how: object
) -> onnx.ModelProto:
    """Filters by channel, quantized one by one, an activation, a layer of pixels."""
    net, random = Net(17), np.random.default_rng(3)

    def weights(*shape: int) -> str:
        scales = random.uniform(0.5, 1.0, shape[0]) / (60 * np.sqrt(np.prod(shape[1:])))
        codes = net.const(random.integers(-127, 128, shape), np.int8)
        return net.op("DequantizeLinear", codes, net.const(scales), net.const([0] * shape[0], np.int8), axis=0)

    x = net.dequantize(net.input("x", 1, channels, *size, dtype=np.int8), STEP, 4)
    bias = net.const(random.normal(0, 0.2, channels * filters))
    y = net.op("Conv", x, weights(channels * filters, 1, *kernel), bias, group=channels, **how)
    y = net.fake(net.op("Relu", y), STEP, -128)
    y = net.op("Conv", y, weights(classes, channels * filters, *(1 for _ in kernel)))
    net.output(net.quantize(y, STEP, 1, out="y"), dtype=np.int8)
    return net.model()


def filters_of(model: onnx.ModelProto) -> list[int]:
    """By convolution with groups: filters a channel."""
    ops = [(node.op, node.output.type.shape[-1]) for node in optimized(model).nodes]
    return [outputs // op.groups for op, outputs in ops if isinstance(op, Conv) and op.groups > 1]


@pytest.mark.parametrize(
    ("channels", "filters", "size", "kernel", "how"),
    [
        (8, 2, (9, 7), (3, 3), {"pads": [1, 1, 1, 1]}),
        (4, 3, (9, 8), (2, 5), {"pads": [0, 2, 1, 2], "strides": [2, 2]}),
        (12, 8, (6, 6), (3, 3), {"dilations": [2, 2], "pads": [2, 2, 2, 2]}),
        (16, 2, (40,), (9,), {"pads": [8, 0]}),
    ],
)
def test_each_filter_is_a_layer(
    channels: int, filters: int, size: tuple[int, ...], kernel: tuple[int, ...], how: dict[str, object]
) -> None:
    model = multiplied(channels, filters, size, kernel, **how)
    assert filters_of(model) == [1] * filters
    check_quantized(model)


@pytest.mark.parametrize(
    ("channels", "filters", "size", "kernel"),
    [(8, 2, (8, 20), (8, 1)), (6, 2, (9, 9), (3, 3)), (4, 9, (9, 9), (3, 3))],
    ids=["no columns to share", "channels that fill no words", "many filters"],
)
def test_not_where_little_is_gained(
    channels: int, filters: int, size: tuple[int, ...], kernel: tuple[int, ...]
) -> None:
    model = multiplied(channels, filters, size, kernel)
    assert filters_of(model) == [filters] and "concat" not in operators(optimized(model))
    check_quantized(model)


@pytest.mark.parametrize(("board", "most"), [("nrf52840", 2.6), ("corstone300", 1.2), ("rp2040", 19), ("rv32imc", 9)])
def test_few_instructions(board: str, most: float) -> None:
    """A multiply-accumulate of 20 x 20 pixels, their layer of pixels beside them; 3.5, 3.0, 32 and 20 in one layer."""
    model = multiplied(8, 2, (20, 20), (3, 3), pads=[1, 1, 1, 1])
    compiled = compile_model(model, board)
    feeds = random_feeds(model)
    run = compiled.simulate([feeds])
    assert_close(run.outputs[0], interpret(compiled.graph, feeds))
    assert run.instructions is not None and run.instructions < most * 20 * 20 * 16 * (9 + 6)


def test_rows_still_take_little_ram() -> None:
    """What is interleaved row by row stops no group."""
    model = multiplied(8, 2, (24, 24), (3, 3), classes=4, pads=[1, 1, 1, 1])
    compiled = compile_model(model, "nrf52840", CompileOptions(optimize="ram"))
    assert compiled.program.arena_size < 8 * 24 * 24 + 4 * 24 * 24
