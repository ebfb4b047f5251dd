# SPDX-License-Identifier: Apache-2.0
"""Networks that learn on the device: ONNX's operators for training, and states that hold what was learned."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import Net

from mcugen import CompileOptions, compile_model
from mcugen.errors import UnsupportedError
from mcugen.ops.training import TRAINING

LEARNING = Path(__file__).parents[2] / "examples" / "learning"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch):
    """The scripts of examples/learning."""
    monkeypatch.syspath_prepend(str(LEARNING))
    import learn

    yield learn
    for name in ("learn", "make_learning"):
        sys.modules.pop(name, None)


def with_weights() -> onnx.ModelProto:
    """The example's model, which tells its weights, too."""
    model = onnx.load(LEARNING / "learning.onnx")
    for name, first, shape in (("w2", "dw", [10, 48]), ("b2", "db", [10])):
        model.graph.node.append(helper.make_node("Add", [name, f"{first}_new"], [f"{name}_new"]))
        model.graph.output.append(helper.make_tensor_value_info(f"{name}_new", TensorProto.FLOAT, shape))
    return model


def test_the_device_learns_the_weights_that_numpy_learns(example) -> None:
    data = np.load(LEARNING / "lesson.npz")
    images, labels = data["images"], data["labels"]
    model = compile_model(with_weights(), "host", CompileOptions(states=example.STATES))
    run = model.simulate(example.calls(images, labels, example.LESSON_RATE), measure=False, sanitize=True)
    wanted = example.learned(example.known_weights(), images, labels)
    assert np.abs(wanted.w2[8:]).max() > 0.1
    np.testing.assert_allclose(run.outputs[-1]["w2_new"], wanted.w2, atol=1e-5)
    np.testing.assert_allclose(run.outputs[-1]["b2_new"], wanted.b2, atol=1e-5)


def test_it_learns_new_digits_and_keeps_the_known_ones(example) -> None:
    data = np.load(LEARNING / "lesson.npz")
    exam = example.calls(data["eval_images"], data["eval_labels"], 0)
    lesson = example.calls(data["images"], data["labels"], example.LESSON_RATE)
    run = example.compiled("host").simulate([*exam, *lesson, *exam], measure=False)
    scores = [o["scores"] for o in run.outputs]
    known, new = example.accuracies(scores[: len(exam)], data["eval_labels"])
    later_known, later_new = example.accuracies(scores[-len(exam) :], data["eval_labels"])
    assert known > 0.95 and new == 0
    assert later_known > known - 0.05 and later_new > 0.75


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["rp2040", "nrf52840", "corstone300"])
def test_targets_learn_as_the_host_does(example, board: str) -> None:
    data = np.load(LEARNING / "lesson.npz")
    lesson = example.calls(data["images"][:40], data["labels"][:40], example.LESSON_RATE)
    outputs = [example.compiled(b).simulate(lesson, measure=False).outputs for b in (board, "host")]
    for here, there in zip(*outputs, strict=True):
        np.testing.assert_allclose(here["scores"], there["scores"], atol=1e-5)


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


def test_numpy_is_the_reference_of_what_onnxruntime_has_no_kernels_for() -> None:
    assert compile_model(small_network()).reference_name == "numpy"


def test_what_belongs_to_a_tensor_has_its_shape() -> None:
    net = Net()
    inputs = [net.input("r"), net.input("t", dtype=np.int64), net.input("x", 3), net.input("g", 2), net.input("v", 3)]
    settings = {"alpha": 0.9, "beta": 1.0, "norm_coefficient": 0.0, "mode": "standard"}
    net.output(*net.ops("Momentum", *inputs, outs=["y", "z"], domain=TRAINING, **settings), shape=[3])
    with pytest.raises(UnsupportedError, match="what belongs to a tensor must have its shape"):
        compile_model(net.plain_model())
