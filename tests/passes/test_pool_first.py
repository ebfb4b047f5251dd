# SPDX-License-Identifier: Apache-2.0
"""Functions that never fall change places with max pooling: fewer elements, the same codes."""

from __future__ import annotations

import numpy as np
import pytest
from checks import outputs_in_c
from onnx_models import Net

from mcugen.api.compilation import Compilation
from mcugen.driver.tasks import Quantizing
from mcugen.hir.interpreter import interpret

random = np.random.default_rng(4)


def quantized(function: str, **attributes: float) -> Compilation:
    """Convolution, function, max pooling, in int8."""
    net = Net()
    x = net.op("Conv", net.input("x", 1, 3, 9, 9), net.const(random.standard_normal((8, 3, 3, 3)).astype(np.float32)))
    slopes = [net.const(np.linspace(0.1, 0.6, 8, dtype=np.float32).reshape(8, 1, 1))] * (function == "PRelu")
    net.output(net.op("MaxPool", net.op(function, x, *slopes, **attributes), kernel_shape=[3, 3], strides=[2, 2]))
    samples = {"x": random.standard_normal((8, 3, 9, 9)).astype(np.float32)}
    return Compilation(net.model(), quantizing=Quantizing(calibration=samples))


def places(net: Compilation) -> list[str]:
    """The operators that compute, in their order."""
    return [n.op.name for n in net.compiled.graph.nodes if n.op.name not in ("quantize", "dequantize", "transpose")]


@pytest.mark.parametrize("function", ["PRelu", "LeakyRelu", "Tanh"])
def test_what_never_falls_comes_behind(function: str):
    net = quantized(function)
    order = places(net)
    assert order.index("max_pool") == 1 and len(order) == 3
    sample = {"x": random.standard_normal((1, 3, 9, 9)).astype(np.float32)}
    found = outputs_in_c(net.compiled, sample)
    for name, array in interpret(net.compiled.graph, sample).items():
        np.testing.assert_array_equal(found[name], array)


def test_what_falls_stays():
    """HardSwish falls before it rises."""
    assert places(quantized("HardSwish"))[-1] == "max_pool"
