# SPDX-License-Identifier: Apache-2.0
"""Operators that tf2onnx leaves under TensorFlow's names: beside Python's own functions."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx_models import Feeds, Net, c_outputs, imported, numpy_outputs

from mcugen.core.errors import ModelError


def check(model: onnx.ModelProto, feeds: Feeds, wanted: np.ndarray, relative: float) -> None:
    for outputs in (numpy_outputs, c_outputs):
        np.testing.assert_allclose(outputs(model, feeds)["y"], wanted, rtol=relative, atol=relative / 10)


def test_keras_gelu() -> None:
    """x / 2 · erfc(-x / √2), as Keras' `gelu` arrives in ONNX's domain, which has no Erfc."""
    net = Net(15)
    x = net.input("x", 3, 40)
    tail = net.op("Erfc", net.op("Mul", net.op("Neg", x), net.const(math.sqrt(0.5))))
    net.output(net.op("Mul", net.op("Mul", net.const(0.5), x), tail, out="y"), shape=(3, 40))
    samples = np.linspace(-6, 6, 120, dtype=np.float32).reshape(3, 40)
    wanted = np.vectorize(lambda v: v / 2 * math.erfc(-v / math.sqrt(2)))(samples.astype(np.float64))
    check(net.plain_model(), {"x": samples}, wanted, 1e-5)


@pytest.mark.parametrize(("op_type", "function"), [("Expm1", np.expm1), ("Log1p", np.log1p)])
def test_functions_near_zero(op_type: str, function: np.ufunc) -> None:
    net = Net(15)
    net.output(net.op(op_type, net.input("x", 5, 9), out="y"), shape=(5, 9))
    x = np.linspace(-0.9, 3, 45, dtype=np.float32).reshape(5, 9)
    check(net.plain_model(), {"x": x}, function(x.astype(np.float64)), 1e-5)


def test_bits_as_another_type() -> None:
    """As Keras' `argmax` tells -0 from 0."""
    net = Net(15)
    bits = net.op("Bitcast", net.input("x", 6), type=onnx.TensorProto.INT32)
    net.output(net.op("Cast", net.op("Less", bits, net.const(0, np.int32)), to=1, out="y"), shape=(6,))
    x = np.asarray([-0.0, 0.0, -1.0, 1.0, np.inf, -np.inf], np.float32)
    check(net.plain_model(), {"x": x}, np.signbit(x).astype(np.float32), 1e-6)


def test_buckets() -> None:
    net = Net(15)
    codes = net.op("Bucketize", net.input("x", 2, 4), boundaries=[-0.5, 0.0, 0.5])
    net.output(net.op("Cast", codes, to=1, out="y"), shape=(2, 4))
    x = np.asarray([[-1, -0.5, -0.1, 0], [0.4, 0.5, 0.6, 9]], np.float32)
    check(net.plain_model(), {"x": x}, np.digitize(x, [-0.5, 0.0, 0.5]), 1e-6)


def test_what_else_tf2onnx_leaves_names_a_remedy() -> None:
    """Grouped convolutions of Keras, for example: TensorFlow compiles these."""
    net = Net(15)
    net.output(net.op("StatefulPartitionedCall", net.input("x", 1, 4), out="y"), shape=(1, 4))
    model = net.plain_model()
    model.producer_name = "tf2onnx"
    with pytest.raises(ModelError, match=r"StatefulPartitionedCall.*try: tf2onnx left TensorFlow's operator.*PyTorch"):
        imported(model)
