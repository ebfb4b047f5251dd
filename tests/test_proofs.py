# SPDX-License-Identifier: Apache-2.0
"""An abstract interpreter follows kernels for any weights and inputs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from onnx_models import Net
from proofs import FRAMA_C, integer_models, prove

from mcugen import CompiledModel, CompileOptions, compile_model, load_board

pytestmark = pytest.mark.skipif(FRAMA_C is None, reason="needs frama-c: sudo apt-get install frama-c-base")


def convolution(board: str) -> CompiledModel:
    """Two channels of 3x3, padded: bias, borders and rounding."""
    draw = np.random.default_rng(0)
    net = Net()
    scale, zero = net.const(0.02), net.const(0, np.int8)
    x = net.op("DequantizeLinear", net.input("x", 1, 2, 3, 3, dtype=np.int8), scale, zero)
    w = net.op("DequantizeLinear", net.const(draw.integers(-9, 9, (2, 2, 3, 3)), np.int8), scale, zero)
    bias = net.op("DequantizeLinear", net.const([5, -7], np.int32), net.const(0.0004), net.const(0, np.int32))
    y = net.op("Conv", x, w, bias, pads=[1, 1, 1, 1])
    net.op("QuantizeLinear", y, net.const(0.5), zero, out="y")
    net.output("y", dtype=np.int8)
    return compile_model(net.model(), load_board(board), CompileOptions(name="net"))


@pytest.mark.slow
def test_a_convolution_is_within_bounds_for_any_weights():
    found = prove(convolution("host"), 120)
    assert found.alarms == ()
    assert "conv2d_s8" in found.proven


@pytest.mark.slow
def test_what_is_wrong_raises_an_alarm():
    """A row of the output too many."""
    model = convolution("host")
    files = dict(model.bundle.files)
    assert files["net.c"].count(".out_h = 3,") == 1
    files["net.c"] = files["net.c"].replace(".out_h = 3,", ".out_h = 400,")
    found = prove(dataclasses.replace(model, given_bundle=dataclasses.replace(model.bundle, files=files)), 120)
    assert found.alarms


@pytest.mark.slow
def test_integer_kernels_are_within_bounds_for_any_weights():
    """Those that are not proven in time, or by intervals alone, are told in docs/safety.md."""
    unknown = {"softmax_s8", "softmax_s16", "log_softmax_s8", "normalize_int", "log_softmax_s16"}
    failed = {}
    for model in integer_models():
        found = prove(model, 60)
        for function, text in found.alarms or ():
            if not function.startswith(tuple(unknown)):
                failed[function] = text
    assert not failed
