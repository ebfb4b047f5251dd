# SPDX-License-Identifier: Apache-2.0
"""Softmax by CMSIS-NN: its own exponentials, at most one step from ours."""

from __future__ import annotations

import numpy as np
import pytest
from cmsis_checks import check_library
from test_fast_activations import Layers

from mcugen.core.options import CMSIS_NN, CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.hir.operator import Signature
from mcugen.hir.types import DType, QuantParams, TensorType
from mcugen.kernels.cmsis_nn.softmax import MAX_ROW_SIZE, LibrarySoftmax
from mcugen.numerics.softmax import FixedSoftmax

PROBABILITY = (1 / 256, -128)


@pytest.mark.qemu
def test_rows() -> None:
    """Remainders of the library's vectors, the longest row, scales of all sizes."""
    layers = Layers()
    for length, rows in ((1, 3), (2, 40), (3, 40), (10, 30), (16, 20), (67, 9), (MAX_ROW_SIZE, 2)):
        for scale in (3e-5, 0.004, 0.1, 0.7):
            x = layers.input(rows, length, quant=(scale, 9))
            layers.output(layers.net.op("Softmax", x, axis=-1), PROBABILITY)
    x = layers.input(2, 3, 5, 1, quant=(0.05, 0))
    layers.output(layers.net.op("Softmax", x, axis=2), PROBABILITY)
    check_library(layers.net.model(), {"cmsis_softmax_s8": layers.outputs})


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 10, 12, 33, 100, 256, MAX_ROW_SIZE])
def test_at_most_one_step_from_ours(length: int) -> None:
    """Uniform rows, narrow ones, and those of few high elements; ours are within half a step of the real softmax."""
    random = np.random.default_rng(length)
    for scale in (*np.geomspace(1e-6, 8.0, 24), 1 / 16, 2.0**-20 * (1 + 2**-23)):
        x = TensorType((600, length), DType.INT8, QuantParams((float(scale),), 0))
        y = TensorType((600, length), DType.INT8, QuantParams((1 / 256,), -128))
        codes = random.integers(-128, 128, (600, length))
        codes[200:400] //= random.integers(1, 64, (200, 1))
        codes[400:] = np.where(random.random((200, length)) < 0.1, 127, -128)
        codes = codes.astype(np.int8)
        ours, theirs = FixedSoftmax.of(Signature((x,), (y,)), 1), LibrarySoftmax.of(x)
        assert ours is not None
        assert theirs is not None
        found = theirs(codes).astype(int)
        assert np.abs(found - ours(codes, 1)).max() <= 1
        real = np.exp(scale * (codes - codes.max(1, keepdims=True).astype(float)))
        assert np.abs(found + 128 - np.minimum(256 * real / real.sum(1, keepdims=True), 255)).max() < 0.6


def test_parameters() -> None:
    """The scale in units of 2^-26, and the lowest difference above -31 there."""
    x = TensorType((1, 4), DType.INT8, QuantParams((0.5,), 0))
    assert LibrarySoftmax.of(x) == LibrarySoftmax(2**30, 26, -31)
    assert LibrarySoftmax.of(x.with_quant(QuantParams((0.1,), 0))) == LibrarySoftmax(round(0.8 * 2**31), 23, -248)
    assert LibrarySoftmax.of(x.with_quant(QuantParams((2.0**-28,), 0))) is None
    assert LibrarySoftmax.of(x.with_quant(QuantParams((16.0,), 0))) is None


def test_what_does_not_fit() -> None:
    """Other outputs, long rows, rows whose elements lie apart, logarithms, int16."""
    layers = Layers()
    for out in ((1 / 255, -128), (1 / 256, 0)):
        layers.output(layers.net.op("Softmax", layers.input(2, 9), axis=-1), out)
    layers.output(layers.net.op("Softmax", layers.input(1, MAX_ROW_SIZE + 1), axis=-1), PROBABILITY)
    layers.output(layers.net.op("Softmax", layers.input(7, 3), axis=0), PROBABILITY)
    layers.output(layers.net.op("LogSoftmax", layers.input(7, 3), axis=1), (0.1, 127))
    layers.output(layers.net.op("Softmax", layers.input(2, 9, dtype=np.int16), axis=-1), PROBABILITY)
    compiled = compile_model(layers.net.model(), "host", CompileOptions(family=CMSIS_NN))
    assert not [i for i in compiled.program.instrs if i.library]
