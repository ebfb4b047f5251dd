# SPDX-License-Identifier: Apache-2.0
"""Padding, transposition and concatenation by CMSIS-NN, where our own kernels would copy with strides."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cmsis_checks import check_library
from test_fast_activations import Layers

from mcugen.core.options import CMSIS_NN, CompileOptions
from mcugen.driver.compiler import compile_model

QUANT = (0.02, 3)


@pytest.mark.qemu
def test_padding() -> None:
    """Each axis and all of them, with zero and other values; axes that merge."""
    layers = Layers()
    pads = [(0, 1, 0, 0), (0, 0, 2, 0), (0, 0, 0, 3), (1, 0, 2, 0), (0, 2, 1, 0), (1, 2, 3, 1)]
    for index, before in enumerate(pads):
        after = [b and (b + index) % 3 for b in before]
        widths = layers.net.const([*before, *after], np.int64)
        value = layers.net.const(0.3 * index - 0.5)
        layers.output(layers.net.op("Pad", layers.input(2, 3, 5, 4), widths, value), QUANT)
    widths = layers.net.const([0, 0, 1, 0, 0, 0, 0, 1, 1, 0], np.int64)  # five axes, of which two are runs
    layers.output(layers.net.op("Pad", layers.input(2, 3, 2, 5, 4), widths), QUANT)
    check_library(layers.net.model(), {"cmsis_pad_s8": layers.outputs})


@pytest.mark.qemu
def test_transpositions() -> None:
    """All orders of three and four axes, matrices of all remainders, and more axes that stay side by side."""
    layers = Layers()
    orders = [*itertools.permutations(range(3)), *itertools.permutations(range(4))]
    for order in orders:
        if list(order) != sorted(order):
            layers.output(layers.net.op("Transpose", layers.input(*(2, 3, 5, 9)[: len(order)]), perm=order), QUANT)
    for shape in ((1, 3, 13), (1, 8, 17), (1, 16, 3), (5, 1, 31)):
        layers.output(layers.net.op("Transpose", layers.input(*shape), perm=[2, 1, 0]), QUANT)
    layers.output(layers.net.op("Transpose", layers.input(2, 3, 2, 5, 4), perm=[0, 3, 4, 1, 2]), QUANT)
    check_library(layers.net.model(), {"cmsis_transpose_s8": layers.outputs})


@pytest.mark.qemu
def test_concatenations() -> None:
    """A call for each part: of channels, and of axes with others behind them."""
    layers = Layers()
    for axis, sizes in ((3, (1, 16, 5)), (2, (3, 1)), (1, (2, 2, 1))):
        shape = [2, 3, 4, 5]
        parts = [layers.input(*(size if a == axis else n for a, n in enumerate(shape))) for size in sizes]
        layers.output(layers.net.op("Concat", *parts, axis=axis), QUANT)
    check_library(layers.net.model(), {"cmsis_concatenation_s8": 8})


def test_what_lies_in_one_run_is_not_copied() -> None:
    """The planner gives it one place with what it becomes a part of; other types and more axes do not fit."""
    layers = Layers()
    parts = [layers.net.op("Neg", layers.input(1, n, 8)) for n in (3, 4)]
    layers.output(layers.net.op("Concat", *parts, axis=1), QUANT)
    widths = layers.net.const([0, 1, 0, 0, 2, 0], np.int64)
    layers.output(layers.net.op("Pad", layers.input(1, 3, 8), widths), QUANT)
    short = [layers.input(2, n, dtype=np.int16) for n in (3, 4)]
    layers.output(layers.net.op("Concat", *short, axis=1), (0.02, 0), np.int16)
    axes = layers.input(2, 3, 2, 3, 2)
    layers.output(layers.net.op("Transpose", axes, perm=[4, 3, 2, 1, 0]), QUANT)
    layers.output(layers.net.op("Transpose", layers.input(3, 9363), perm=[1, 0]), QUANT)
    layers.output(layers.net.op("Pad", axes, layers.net.const([1] * 10, np.int64)), QUANT)
    compiled = compile_model(layers.net.model(), "host", CompileOptions(family=CMSIS_NN))
    assert not [i for i in compiled.program.instrs if i.library]
