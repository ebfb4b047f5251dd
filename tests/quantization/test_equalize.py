# SPDX-License-Identifier: Apache-2.0
"""Equalization changes no result, evens out channels, and keeps its hands off what is not homogeneous."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from float_models import normal_samples, random_weights
from onnx_models import Net, onnxruntime_outputs

from mcugen.backends.cpu.pipeline import fuse_float
from mcugen.frontend.onnx import import_model
from mcugen.hir.graph import Graph
from mcugen.hir.interpreter import interpret
from mcugen.hir.types import Array
from mcugen.hir.verify import verify_graph
from mcugen.ops.conv import Conv
from mcugen.quantization.equalize import equalize
from mcugen.quantization.float_model import build_float_model

CHANNELS = 6


def uneven(seed: int, *shape: int) -> Array:
    """Weights whose output channels differ by factors of up to a hundred."""
    factors = 10.0 ** np.random.default_rng(seed).uniform(-1, 1, (shape[0], *[1] * (len(shape) - 1)))
    return (random_weights(seed, *shape) * factors).astype(np.float32)


def depthwise_net(seed: int, between: str = "Relu") -> onnx.ModelProto:
    """1×1 convolution, a function, depthwise, ReLU, depthwise, pool, dense."""
    net = Net(17)
    x = net.input("x", 1, 3, 7, 7)
    y = net.op("Conv", x, net.const(uneven(seed, CHANNELS, 3, 1, 1)), net.const(random_weights(seed + 1, CHANNELS)))
    if between == "Relu6":
        y = net.op("Clip", y, net.const(0.0), net.const(6.0))
    elif between == "Add":
        z = net.op("Conv", x, net.const(uneven(seed + 5, CHANNELS, 3, 1, 1)), net.const(random_weights(7, CHANNELS)))
        y = net.op("Add", y, z)
    elif between == "MaxPool":
        y = net.op("MaxPool", y, kernel_shape=[2, 2], strides=[1, 1])
    elif between:
        y = net.op(between, y)
    for i in (2, 3):
        y = net.op("Conv", y, net.const(uneven(seed + i, CHANNELS, 1, 3, 3)), group=CHANNELS, pads=[1, 1, 1, 1])
        y = net.op("Relu", y)
    y = net.op("GlobalAveragePool", y)
    y = net.op("Flatten", y)
    net.op("Gemm", y, net.const(random_weights(seed + 4, 4, CHANNELS)), transB=1, out="y")
    net.output("y")
    return net.model()


def fused(model: onnx.ModelProto) -> Graph:
    graph = import_model(model, "model")
    fuse_float(graph)
    return graph


def weights(graph: Graph) -> list[Array]:
    """Of the convolutions, in order."""
    return [n.input(1).data for n in graph.nodes if isinstance(n.op, Conv) and n.input(1).data is not None]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("between", ["Relu", "LeakyRelu", "", "Add", "MaxPool"])
def test_the_weights_change_and_the_function_stays(between: str, seed: int) -> None:
    model = depthwise_net(seed, between)
    graph = fused(model)
    before = weights(graph)
    assert equalize(graph)
    verify_graph(graph)
    for sample in normal_samples(model, 3, seed):
        wanted, found = onnxruntime_outputs(model, sample)["y"], interpret(graph, sample)["y"]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    assert all(np.abs(a / b - 1).max() > 0.1 for a, b in zip(weights(graph), before, strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_pairs_meet_in_the_middle(seed: int) -> None:
    """Of a channel, the largest weights before and behind become equal."""
    graph = fused(depthwise_net(seed))
    assert equalize(graph)
    first, second, third = (np.abs(w).reshape(CHANNELS, -1).max(1) for w in weights(graph))
    np.testing.assert_allclose(first, second, rtol=0.01)
    np.testing.assert_allclose(second, third, rtol=0.01)


def assert_two_layers_become_equal(model: onnx.ModelProto) -> None:
    """Check that the channels of the first two convolutions become equally large, and that the results stay."""
    graph = fused(model)
    assert equalize(graph)
    first, second = (np.abs(w).reshape(CHANNELS, -1).max(1) for w in weights(graph)[:2])
    np.testing.assert_allclose(first, second, rtol=0.01)
    (sample,) = normal_samples(model, 1)
    np.testing.assert_allclose(
        interpret(graph, sample)["y"], onnxruntime_outputs(model, sample)["y"], rtol=1e-4, atol=1e-4
    )


def test_layers_between_transpositions_are_equalized() -> None:
    """As Keras' exporter writes them: bias and activation follow a transposition to channels last, which is undone."""
    net = Net(17)
    y = net.input("x", 1, 3, 7, 7)
    for index, (shape, groups) in enumerate((((CHANNELS, 3, 1, 1), 1), ((CHANNELS, 1, 3, 3), CHANNELS))):
        y = net.op("Conv", y, net.const(uneven(index, *shape)), group=groups)
        y = net.op("Add", net.op("Transpose", y, perm=[0, 2, 3, 1]), net.const(random_weights(index + 2, CHANNELS)))
        y = net.op("Transpose", net.op("Relu", y), perm=[0, 3, 1, 2])
    net.output(net.op("Conv", y, net.const(random_weights(5, 4, CHANNELS, 1, 1)), out="y"))
    assert_two_layers_become_equal(net.model())


@pytest.mark.parametrize("multiplier", [2, 3])
def test_several_outputs_of_a_channel_share_its_factor(multiplier: int) -> None:
    """As EEGNet and Keras' `depth_multiplier` have them: the largest of their weights counts."""
    net, outputs = Net(17), CHANNELS * multiplier
    y = net.op("Conv", net.input("x", 1, 3, 7, 7), net.const(uneven(1, CHANNELS, 3, 1, 1)))
    y = net.op("Conv", net.op("Relu", y), net.const(uneven(2, outputs, 1, 3, 3)), group=CHANNELS)
    net.output(net.op("Conv", y, net.const(random_weights(3, 4, outputs, 1, 1)), out="y"))
    assert_two_layers_become_equal(net.model())


@pytest.mark.parametrize("between", ["Relu6", "Sigmoid"])
def test_functions_that_are_not_homogeneous_separate(between: str) -> None:
    graph = fused(depthwise_net(0, between))
    first = weights(graph)[0]
    assert equalize(graph)  # the depthwise ones between them
    np.testing.assert_array_equal(weights(graph)[0], first)


def test_only_depthwise_readers_are_scaled() -> None:
    """Others would lose precision: their output channels read several inputs with one scale."""
    net = Net(17)
    y = net.input("x", 1, 3, 7, 7)
    y = net.op("Relu", net.op("Conv", y, net.const(uneven(0, 6, 3, 1, 1))))
    net.op("Conv", y, net.const(uneven(1, 4, 6, 1, 1)), out="y")
    net.output("y")
    graph = fused(net.model())
    assert not equalize(graph)


BETWEEN: dict[str, tuple[str, list[object], dict[str, object], bool]] = {
    "pad with 0": ("Pad", [[0, 0, 1, 0, 0, 0, 0, 1], 0.0], {}, True),
    "pad with 1": ("Pad", [[0, 0, 1, 0, 0, 0, 0, 1], 1.0], {}, False),
    "more channels": ("Pad", [[0, 1, 0, 0, 0, 0, 0, 0], 0.0], {}, False),
    "more channels behind": ("Pad", [[0, 0, 0, 0, 0, 1, 0, 0], 0.0], {}, False),
    "a part": ("Slice", [[1], [6], [2]], {}, True),
    "every second row": ("Slice", [[0], [7], [2], [2]], {}, True),
    "some channels": ("Slice", [[1], [6], [1]], {}, False),
    "channels backwards": ("Slice", [[-1], [-99], [1], [-1]], {}, False),
    "largest": ("MaxPool", [], {"kernel_shape": [2, 2]}, True),
    "mean": ("AveragePool", [], {"kernel_shape": [2, 2]}, True),
    "elu": ("Elu", [], {}, False),
    "relu": ("Relu", [], {}, True),
    "clipped below": ("Clip", [-1.0], {}, False),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_what_carries_scaled_channels_through(name: str) -> None:
    """A ReLU keeps it from being a part of the layer behind it; whatever is scaled, results stay."""
    op_type, operands, attributes, carries = BETWEEN[name]
    net = Net(17)
    y = net.op("Conv", net.input("x", 1, 3, 7, 7), net.const(uneven(0, CHANNELS, 3, 1, 1)))
    given = [net.const(o, np.int64) if isinstance(o, list) else net.const(o) for o in operands]
    y = net.op("Relu", net.op(op_type, y, *given, **attributes), out="r")
    channels = {"more channels": 7, "more channels behind": 7, "some channels": 5}.get(name, CHANNELS)
    net.op("Conv", y, net.const(uneven(1, channels, 1, 3, 3)), group=channels, out="y")
    net.output("y")
    graph = fused(net.model())
    (sample,) = normal_samples(net.model(), 1)
    first, before = weights(graph)[0], interpret(graph, sample)["y"]
    assert equalize(graph) is carries
    assert (weights(graph)[0].tolist() != first.tolist()) is carries
    np.testing.assert_allclose(interpret(graph, sample)["y"], before, rtol=1e-4, atol=1e-4 * np.abs(before).max())


def test_outputs_of_the_model_keep_their_scale() -> None:
    net = Net(17)
    y = net.op("Conv", net.input("x", 1, 3, 7, 7), net.const(uneven(0, 6, 3, 1, 1)), out="seen")
    net.op("Conv", y, net.const(uneven(1, 6, 1, 3, 3)), group=6, out="y")
    net.output("y")
    net.output("seen")
    assert not equalize(fused(net.model()))


def test_dead_channels_stay() -> None:
    model = depthwise_net(1)
    stored = next(t for t in model.graph.initializer if list(t.dims) == [CHANNELS, 3, 1, 1])
    array = onnx.numpy_helper.to_array(stored).copy()
    array[2] = 0
    stored.CopyFrom(onnx.numpy_helper.from_array(array, stored.name))
    graph = fused(model)
    assert equalize(graph)
    assert all(np.isfinite(w).all() for w in weights(graph))
    (sample,) = normal_samples(model, 1)
    np.testing.assert_allclose(interpret(graph, sample)["y"], onnxruntime_outputs(model, sample)["y"], rtol=1e-4)


def test_the_written_model_has_the_scaled_weights() -> None:
    model = depthwise_net(2)
    (sample,) = normal_samples(model, 1)
    proto = build_float_model(model, "model").proto
    plain = build_float_model(model, "model", equalized=False).proto
    found, wanted = (onnxruntime_outputs(p, sample)["y"] for p in (proto, plain))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert found.tobytes() != wanted.tobytes()
