# SPDX-License-Identifier: Apache-2.0
"""Depthwise 3 x 3 windows on RISC-V: a column of inputs is loaded once for all outputs whose window it lies in."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import Net, assert_close, outputs_in_c, random_feeds

from mcugen.api.compilation import Compilation
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret

KERNEL = "depthwise_s8_planes"


def layers(sizes: list[tuple[int, int]], relu: bool, channels: int = 8) -> Net:
    """Layers beside each other, which share a function."""
    net, random = Net(), np.random.default_rng(3)
    for index, (height, width) in enumerate(sizes):
        x = net.dequantize(net.input(f"x{index}", 1, channels, height, width, dtype=np.int8), 0.02, 5)
        codes = random.integers(-127, 128, (channels, 1, 3, 3))
        w = net.op("DequantizeLinear", net.const(codes, np.int8), net.const(0.01), net.const(0, np.int8))
        y = net.op("Conv", x, w, net.const(random.normal(0, 1, channels)), pads=[1] * 4, group=channels)
        net.output(net.quantize(net.op("Relu", y) if relu else y, 0.05, 3, out=f"y{index}"), dtype=np.int8)
    return net


@pytest.mark.qemu
@pytest.mark.parametrize("relu", [False, True], ids=["whole range", "clamped"])
def test_lines_of_any_length(relu: bool):
    net = layers([*((5, width) for width in range(2, 10)), (9, 4), (2, 13)], relu)
    model = compile_model(net.model(), "rv32imc", CompileOptions(kernels=(KERNEL,)))
    assert KERNEL in {i.kernel for i in model.program.instrs}
    feeds = random_feeds(model.model)
    wanted = interpret(model.graph, feeds)
    (found,) = model.simulate([feeds], measure=False).outputs
    assert_close(found, wanted)
    assert_close(outputs_in_c(model, feeds), wanted)


@pytest.mark.qemu
def test_what_a_product_takes():
    net = layers([(24, 24), (12, 12)], relu=True, channels=16)
    taken = Compilation(net.model(), "rv32imc", CompileOptions(kernels=(KERNEL,))).report().layers
    each = [(layer.instructions or 0) / layer.macs for layer in taken if layer.kernel == KERNEL]
    print(each)
    assert each[0] <= 5.1 and each[1] <= 5.7
