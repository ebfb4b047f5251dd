# SPDX-License-Identifier: Apache-2.0
"""Sums, products and extremes by CMSIS-NN: the same bits as by our own kernels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cmsis_checks import check_library
from test_fast_activations import Layers

from mcugen.core.options import CMSIS_NN, CompileOptions
from mcugen.driver.compiler import compile_model

COUNT = 301
"""Elements of most operands: all remainders of the library's blocks are in it, and codes of all kinds."""


def calls(layers: Layers, board: str = "host") -> list[str]:
    compiled = compile_model(layers.net.model(), board, CompileOptions(family=CMSIS_NN))
    return [i.kernel for i in compiled.program.instrs if i.library]


@pytest.mark.qemu
def test_sums() -> None:
    """Scales far apart, zero points at both ends, differences, clamps."""
    layers = Layers()
    ratios = [(0.02, 0.013), (0.5, 3e-4), (1.0, 1.0), (1e-3, 2e-3), (2.0, 40.0), (7e-4, 0.9), (0.25, 0.125)]
    ends = itertools.cycle([(-128, -128), (127, -128), (0, 127), (127, 127), (5, -7)])
    for index, ((first, second), zeros) in enumerate(zip(ratios, ends, strict=False)):
        for function in ("Add", "Sub"):
            pair = layers.input(COUNT, quant=(first, zeros[0])), layers.input(COUNT, quant=(second, zeros[1]))
            layers.output(layers.net.op(function, *pair), (max(first, second) * (0.6, 2)[index % 2], 20 * index - 60))
    for low, high in ((0.0, 9.0), (-1.0, 0.5)):
        total = layers.net.op("Add", layers.input(COUNT), layers.input(COUNT, quant=(0.03, -9)))
        limits = layers.net.const(low), layers.net.const(high)
        layers.output(layers.net.op("Clip", total, *limits), (0.04, -100))
    for count in (1, 2, 3, 4):
        layers.output(layers.net.op("Add", layers.input(count), layers.input(count)), (0.04, 0))
    check_library(layers.net.model(), {"cmsis_elementwise_add_s8": layers.outputs})


@pytest.mark.qemu
def test_products() -> None:
    """Results far coarser and finer than the product, which shifts to the left."""
    layers = Layers()
    for index, out in enumerate((1e-4, 0.001, 0.01, 0.02, 3.0)):
        for zeros in ((-128, 127), (0, 0), (127, 127)):
            pair = layers.input(COUNT, quant=(0.02, zeros[0])), layers.input(COUNT, quant=(0.5, zeros[1]))
            layers.output(layers.net.op("Mul", *pair), (out, 7 * index - 9))
    product = layers.net.op("Mul", layers.input(COUNT), layers.input(COUNT))
    layers.output(layers.net.op("Relu", product), (0.02, -20))
    check_library(layers.net.model(), {"cmsis_elementwise_mul_s8": layers.outputs})


@pytest.mark.qemu
def test_extremes() -> None:
    """Of one shape, and with every way to be broadcast along rows or columns."""
    layers = Layers()
    shapes = [((2, 3, 5, 7), (2, 3, 5, 7)), ((3, 5, 7), (1, 1, 7)), ((3, 5, 7), (3, 1, 1)), ((1, 7), (5, 1))]
    for first, second in shapes:
        for function in ("Max", "Min"):
            for pair in ((first, second), (second, first)):
                layers.output(layers.net.op(function, *(layers.input(*shape) for shape in pair)), (0.02, 3))
    layers.output(layers.net.op("Max", layers.input(2, 33), layers.input(1, 1)), (0.02, 3))
    kernels = {"cmsis_maximum_s8": len(shapes) * 2 + 1, "cmsis_minimum_s8": len(shapes) * 2}
    check_library(layers.net.model(), kernels)


def test_what_does_not_fit() -> None:
    """Broadcast sums, other types, scales of which codes would have to be made first, results too fine for 32 bits."""
    layers = Layers()
    layers.output(layers.net.op("Add", layers.input(3, 5, 7), layers.input(5, 1)), (0.04, 1))
    layers.output(layers.net.op("Mul", layers.input(3, 5), layers.input(1, 5)), (0.04, 1))
    pair = [layers.input(9, quant=(1e-4, 0), dtype=np.int16) for _ in range(2)]
    layers.output(layers.net.op("Add", *pair), (5e-4, 3))
    layers.output(layers.net.op("Max", layers.input(9), layers.input(9)), (0.03, 3))
    layers.output(layers.net.op("Max", layers.input(3, 5, 7), layers.input(3, 1, 7)), (0.02, 3))
    layers.output(layers.net.op("Mul", layers.input(9), layers.input(9)), (1e-8, 3))
    layers.output(layers.net.op("PRelu", layers.input(9), layers.input(9)), (0.02, 3))
    assert calls(layers) == []


def test_a_sum_may_overwrite_an_operand() -> None:
    """It is computed element by element, so no third tensor takes memory."""
    layers = Layers()
    for function in ("Add", "Mul", "Max"):
        layers.output(layers.net.op(function, layers.input(512), layers.input(512)), (0.02, 3))
    compiled = compile_model(layers.net.model(), "host", CompileOptions(family=CMSIS_NN))
    assert len(calls(layers)) == 3
    assert compiled.bundle.arena_size == 6 * 512
