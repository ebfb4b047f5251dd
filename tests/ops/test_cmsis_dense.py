# SPDX-License-Identifier: Apache-2.0
"""Fully connected layers by CMSIS-NN: the same bits as by our own kernels."""

from __future__ import annotations

import numpy as np
import pytest
from cmsis_checks import BOARDS, calls_of, check_library
from cmsis_layers import WIDE, quantized_conv, quantized_dense
from onnx_models import Net

from mcugen.core.options import CMSIS_NN, CompileOptions
from mcugen.driver.compiler import compile_model

pytestmark = pytest.mark.qemu

DENSE = "cmsis_dense_s8"


@pytest.mark.spread(6)
@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
def test_few_rows(per_channel: bool) -> None:
    net = Net()
    for depth, channels in ((2, 1), (3, 2), (16, 4), (37, 9), (64, 10), (130, 5)):
        quantized_dense(net, f"{depth} by {channels}", (1,), depth, channels, per_channel, WIDE)
    quantized_dense(net, "three rows", (3,), 19, 7, per_channel, WIDE)
    check_library(net.model(), {DENSE: 7}, boards=BOARDS if per_channel else BOARDS[2:], kernels=(DENSE,))


def test_windows_as_large_as_the_image() -> None:
    net = Net()
    quantized_conv(net, "pixel", ((1, 9, 1, 1), 7, (1, 1), {}), per_channel=True)
    quantized_conv(net, "image", ((3, 5, 3, 4), 6, (3, 4), {}), per_channel=True)
    quantized_conv(net, "line", ((1, 5, 6), 6, (6,), {}), per_channel=False)
    check_library(net.model(), {DENSE: 3}, kernels=(DENSE,))


def test_rows_may_be_pixels() -> None:
    net = Net()
    for rows in ((2,), (5,), (2, 3)):
        quantized_dense(net, f"rows {rows}", rows, 19, 7, True, WIDE)
    check_library(net.model(), {"cmsis_convolve_s8": 3}, kernels=("cmsis_convolve_s8",))


def test_the_bias_is_what_helium_adds() -> None:
    """One constant is the bias, the zero point folded in, and the sums that Helium takes instead."""
    net = Net()
    quantized_dense(net, "y", (1,), 5, 3, True, WIDE)
    compiled = compile_model(net.model(), "host", CompileOptions(family=CMSIS_NN, kernels=(DENSE,)))
    (node,) = (n for n in compiled.graph.nodes if n.op.mnemonic == "dense")
    (instr,) = calls_of(compiled.program)
    weights, bias = node.input(1).data, node.input(2).data
    assert weights is not None and bias is not None
    zero = node.input(0).type.q.zero_point
    (folded,) = (o.buffer.data for o in instr.operands if o.role == "bias")
    np.testing.assert_array_equal(folded, bias - zero * weights.astype(int).sum(1))
    assert zero and not any(o.access.value == "scratch" for o in instr.operands)
