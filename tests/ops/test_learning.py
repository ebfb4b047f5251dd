# SPDX-License-Identifier: Apache-2.0
"""ONNX's operators for training in models that say themselves how they learn."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx_models import Net

from mcugen.core.errors import UnsupportedError
from mcugen.driver.compiler import compile_model
from mcugen.ops.training import TRAINING


def small_network() -> onnx.ModelProto:
    """Convolution, pool and a dense layer, with the gradients by all weights."""
    net = Net()
    net.input("x", 1, 2, 6, 6)
    shapes = {"k": (3, 2, 3, 3), "b": (3,), "w": (27, 4)}
    for name, shape in shapes.items():
        net.input(name, *shape)
    hidden = net.op("Sigmoid", net.op("Conv", "x", "k", "b", pads=[1, 1, 1, 1]))
    pooled = net.op("MaxPool", hidden, kernel_shape=[2, 2], strides=[2, 2])
    logits = net.op("MatMul", net.op("Flatten", pooled), "w")
    net.op("SoftmaxCrossEntropyLoss", logits, net.input("t", 1, dtype=np.int64), out="loss")
    names = list(shapes)
    outs = net.ops("Gradient", *names, outs=[f"d{n}" for n in names], domain=TRAINING, xs=names, y="loss")
    net.output("loss", shape=[])
    for out, shape in zip(outs, shapes.values(), strict=True):
        net.output(out, shape=shape)
    return net.plain_model()


@pytest.mark.parametrize("board", ["host", pytest.param("nrf52840", marks=pytest.mark.qemu)])
def test_gradients_in_c_are_those_of_the_reference(board: str) -> None:
    model = compile_model(small_network(), board)
    rng = np.random.default_rng(2)
    feeds = {v.name: rng.normal(size=v.type.shape).astype(np.float32) for v in model.graph.inputs if v.name != "t"}
    feeds["t"] = np.asarray([2], np.int64)
    found = model.run({name: array[None] for name, array in feeds.items()}, sanitize=board == "host")
    for name, array in model.interpret(feeds).items():
        assert np.abs(array).max() > 0
        np.testing.assert_allclose(found[name][0], array, rtol=1e-4, atol=1e-5)


def test_another_program_than_onnxruntime_computes_what_that_has_no_kernels_for() -> None:
    model = compile_model(small_network())
    rng = np.random.default_rng(3)
    feeds = {v.name: np.asarray(rng.integers(0, 3, v.type.shape), v.type.dtype.numpy) for v in model.graph.inputs}
    run = model.reference_run([feeds])
    assert run.name != "ONNX Runtime"
    assert run.name in run.note or "numpy" in run.note


def test_what_belongs_to_a_tensor_has_its_shape() -> None:
    net = Net()
    inputs = [net.input("r"), net.input("t", dtype=np.int64), net.input("x", 3), net.input("g", 2), net.input("v", 3)]
    settings = {"alpha": 0.9, "beta": 1.0, "norm_coefficient": 0.0, "mode": "standard"}
    net.output(*net.ops("Momentum", *inputs, outs=["y", "z"], domain=TRAINING, **settings), shape=[3])
    with pytest.raises(UnsupportedError, match="what belongs to a tensor must have its shape"):
        compile_model(net.plain_model())
