# SPDX-License-Identifier: Apache-2.0
"""Operators that tf2onnx leaves under TensorFlow's names: beside Python's own functions."""

from __future__ import annotations

import math

import numpy as np
from onnx_models import Net, c_outputs, numpy_outputs


def test_keras_gelu() -> None:
    """x / 2 · erfc(-x / √2), as Keras' `gelu` arrives in ONNX's domain, which has no Erfc."""
    net = Net(15)
    x = net.input("x", 3, 40)
    tail = net.op("Erfc", net.op("Mul", net.op("Neg", x), net.const(math.sqrt(0.5))))
    net.output(net.op("Mul", net.op("Mul", net.const(0.5), x), tail, out="y"), shape=(3, 40))
    samples = np.linspace(-6, 6, 120, dtype=np.float32).reshape(3, 40)
    wanted = np.vectorize(lambda v: v / 2 * math.erfc(-v / math.sqrt(2)))(samples.astype(np.float64))
    model = net.plain_model()
    for outputs in (numpy_outputs, c_outputs):
        np.testing.assert_allclose(outputs(model, {"x": samples})["y"], wanted, rtol=1e-5, atol=1e-6)
