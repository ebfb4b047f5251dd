# SPDX-License-Identifier: Apache-2.0
"""Convolutions to few channels, transposed or not: their plain C on this computer, their assembly under QEMU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx_models import Net, numpy_outputs, random_feeds
from shared_models import roomy

from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model

# (operator, input shape, kernel, attributes): to one, two and three channels in turn
CASES: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("Conv", (1, 16, 5, 4), (1, 1), {}),
    ("Conv", (2, 8, 3, 3), (1, 1), {}),
    ("Conv", (1, 12, 5, 5), (1, 1), {"strides": [2, 2]}),
    ("Conv", (1, 24, 6, 7), (3, 3), {"pads": [1, 1, 1, 1]}),
    ("Conv", (2, 4, 9, 8), (3, 3), {"pads": [1, 0, 1, 2], "strides": [2, 3]}),
    ("Conv", (1, 16, 9, 5), (3, 1), {"dilations": [3, 1], "pads": [2, 0, 3, 0]}),
    ("Conv", (1, 8, 7, 6), (2, 3), {}),
    ("Conv", (1, 20, 31), (5,), {"pads": [2, 2]}),
    ("Conv", (1, 4, 12, 3), (2, 3), {"strides": [5, 1]}),
    ("ConvTranspose", (1, 8, 3, 4), (2, 2), {"strides": [2, 2]}),
    ("ConvTranspose", (2, 16, 3, 3), (4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("ConvTranspose", (1, 20, 3, 5), (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    ("ConvTranspose", (1, 4, 3, 3), (2, 2), {"strides": [3, 3], "dilations": [2, 1]}),
    ("ConvTranspose", (1, 24, 2, 5), (3, 4), {"strides": [3, 2], "output_shape": [8, 11]}),
    ("ConvTranspose", (1, 12, 19), (8,), {"strides": [4], "pads": [2, 2]}),
    ("ConvTranspose", (1, 8, 6, 4), (1, 2), {"strides": [2, 3], "pads": [3, 3, 1, 0]}),
]


def _model() -> Net:
    net, random = Net(21), np.random.default_rng(7)
    for number, (kind, shape, kernel, attributes) in enumerate(CASES):
        x = net.dequantize(net.input(f"x{number}", *shape, dtype=np.int8), 0.05, (3, -128, 127)[number % 3])
        out, axis = 1 + number % 3 * (number % 2), int(kind == "ConvTranspose")
        size = (shape[1], out, *kernel) if axis else (out, shape[1], *kernel)
        codes, scales = net.const(random.integers(-127, 128, size), np.int8), random.uniform(0.005, 0.015, out)
        zeros = net.const(np.zeros(out), np.int8)
        w = net.op("DequantizeLinear", codes, net.const(scales), zeros, axis=axis)
        y = net.op(kind, x, w, net.const(random.standard_normal(out)), **attributes)
        y = net.op("Relu", y) if number % 4 == 1 else y
        net.output(net.quantize(y, (0.7013, 4.0, 0.1)[number % 3], -9, out=f"y{number}"), dtype=np.int8)
    return net


@pytest.mark.parametrize(
    ("form", "target", "host"),
    [
        ("s8_one", "nrf52840", True),
        ("s8_dsp_one", "nrf52840", True),
        pytest.param("s8_dsp_one", "nrf52840", False, marks=pytest.mark.qemu),
        ("s8_thumb1_one", "rp2040", True),
        pytest.param("s8_thumb1_one", "rp2040", False, marks=pytest.mark.qemu),
    ],
    ids=["plain", "twin", "assembly", "twin of Thumb-1", "Thumb-1"],
)
def test_bits(form: str, target: str, host: bool):
    """The same bits as numpy, in plain C under the sanitizers and not, in place and not."""
    model, board = _model().model(), roomy(target)
    board = replace(board, qemu="") if host else board
    kernels = (f"conv2d_{form}", f"conv_transpose_{form}")
    compiled = compile_model(model, board, CompileOptions(kernels=kernels))
    found = [i.kernel for i in compiled.program.instrs if i.macs]
    wanted = [kernels[kind == "ConvTranspose"] for kind, *_ in CASES]
    others = [(a, b) for a, b in zip(found, wanted, strict=True) if a != b]
    assert [b for _, b in others] == ["conv2d_s8_dsp_one"] * (2 * (form == "s8_dsp_one"))  # of two channels each
    feeds = random_feeds(model)
    (outputs,) = compiled.simulate([feeds], measure=False, sanitize=host).outputs
    for name, codes in numpy_outputs(model, feeds).items():
        np.testing.assert_array_equal(outputs[name].reshape(codes.shape), codes, err_msg=name)
