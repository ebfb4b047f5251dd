# SPDX-License-Identifier: Apache-2.0
"""Layers that share weights: they are in flash once in integers, too, and nobody's results are the worse for it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from float_models import normal_samples, quantizer_of, random_weights, sqnr
from onnx_models import Net, onnxruntime_outputs

from mcugen.driver.compiler import compile_model
from mcugen.frontend.onnx.load import load
from mcugen.hir.graph import Value
from mcugen.hir.types import DType, TensorType
from mcugen.quantization.assign import Assignment, assign_precisions
from mcugen.quantization.float_model import build_float_model
from mcugen.quantization.quantize import Quantization
from mcugen.quantization.scheme import Scheme
from mcugen.quantization.shared import ScaleGroups, layers_of_equal_weights

STEPS, UNITS = 12, 24


def encoder_weights(net: Net) -> list[str]:
    shapes = ((16, 1, 3, 3), (16,), (24, 16, 3, 3), (24, 8))
    return [net.const(random_weights(seed, *shape)) for seed, shape in enumerate(shapes, 1)]


def encoder(net: Net, x: str, weights: list[str], name: str) -> str:
    """Two convolutions with their activations, and a matrix."""
    a = net.op("Relu", net.op("Conv", x, weights[0], weights[1], strides=[2, 2], out=f"{name}_a"))
    b = net.op("Relu", net.op("Conv", a, weights[2], pads=[1] * 4, out=f"{name}_b"))
    return net.op("MatMul", net.op("Flatten", net.op("GlobalAveragePool", b)), weights[3], out=f"{name}_code")


def twins(scale: float = 1.0) -> onnx.ModelProto:
    """The distance of two images' codes by one encoder (Bromley et al. 1993); the second image is of other contrast."""
    net = Net()
    weights = encoder_weights(net)
    x, y = net.input("x", 1, 1, 13, 13), net.input("y", 1, 1, 13, 13)
    second = net.op("Mul", y, net.const(np.float32(scale))) if scale != 1 else y
    net.op("Sub", encoder(net, x, weights, "x"), encoder(net, second, weights, "y"), out="difference")
    net.output("difference")
    return net.model()


def one_encoder() -> onnx.ModelProto:
    net = Net()
    weights = encoder_weights(net)
    net.output(encoder(net, net.input("x", 1, 1, 13, 13), weights, "x"))
    return net.model()


def recurrence(steps: int = STEPS) -> onnx.ModelProto:
    """FastGRNN (Kusupati et al. 2018) written out, which is none of ONNX's recurrent operators."""
    net = Net()
    x = net.input("x", steps, 1, 8)
    w, u = net.const(random_weights(5, 8, UNITS) / 2), net.const(random_weights(6, UNITS, UNITS) / 2)
    gate, update = net.const(random_weights(7, UNITS)), net.const(random_weights(8, UNITS))
    h = ""
    for step in range(steps):
        at = net.op("Gather", x, net.const(step, np.int64), axis=0)
        c = net.op("MatMul", at, w)
        c = net.op("Add", c, net.op("MatMul", h, u)) if h else c
        z = net.op("Sigmoid", net.op("Add", c, gate))
        new = net.op("Tanh", net.op("Add", c, update))
        kept = net.op("Mul", net.op("Sub", net.const(np.float32(1)), z), new)
        h = net.op("Add", net.op("Mul", z, h), kept) if h else kept
    net.output(net.op("MatMul", h, net.const(random_weights(9, UNITS, 3)), out="y"))
    return net.model()


def quantized(model: onnx.ModelProto, scheme: Scheme | None = None) -> Quantization:
    return quantizer_of(model, scheme).quantize()


def db(model: onnx.ModelProto, found: Quantization, name: str) -> float:
    samples = normal_samples(model, 24, seed=1)
    by = [[onnxruntime_outputs(m, s)[name] for s in samples] for m in (model, found.proto)]
    return sqnr(*by)


def weights_in_flash(found: Quantization) -> int:
    return compile_model(found.proto, "nrf52840").program.weights_size


def test_twin_branches_are_in_flash_once() -> None:
    both, one = quantized(twins()), quantized(one_encoder())
    assert weights_in_flash(both) < 1.1 * weights_in_flash(one)
    assert db(twins(), both, "difference") > 21


@pytest.mark.parametrize("scheme", [Scheme(), Scheme(weights=DType.INT4)], ids=["8 bits", "4 bits"])
def test_layers_that_share_have_the_same_codes(scheme: Scheme) -> None:
    found = quantized(twins(), scheme)
    assert len(found.assignment.shared) == 3
    for first, second in found.assignment.shared:
        a, b = found.plan.layers[first], found.plan.layers[second]
        assert np.array_equal(a.weights, b.weights) and np.array_equal(a.scales, b.scales)
        assert (a.bias is None and b.bias is None) or np.array_equal(a.bias, b.bias)


def test_without_samples_too() -> None:
    made = quantizer_of(twins())
    made.samples = ()
    found = made.quantize()
    (first, second), *_ = found.assignment.shared
    assert np.array_equal(found.plan.layers[first].bias, found.plan.layers[second].bias)


def test_what_is_computed_alike_of_shared_tensors_shares_too() -> None:
    """The sum of the gates of all steps, their tables, and the state."""
    model = recurrence()
    found = quantized(model)
    assert weights_in_flash(found) < 2 * weights_in_flash(quantized(recurrence(2)))
    assert db(model, found, "y") > 25


def assigned(model: onnx.ModelProto, spans: dict[str, float]) -> Assignment:
    return assign_precisions(build_float_model(load(model).proto, "net").graph, Scheme(), None, spans)


def test_ranges_that_are_far_apart_stay_apart() -> None:
    near = assigned(twins(), {"x": 2.0, "y": 3.0})
    far = assigned(twins(), {"x": 2.0, "y": 5.0})
    assert any({"x", "y"} <= set(group) for group in near.groups)
    assert not any({"x", "y"} <= set(group) for group in far.groups)
    assert len(near.shared) == 3 and len(far.shared) == 2  # behind the first layer, both are thought to be alike


def test_both_branches_are_served_though_one_sees_nothing() -> None:
    """Weights are rounded, and biases corrected, by what all layers read that share them."""
    model = twins()
    made = quantizer_of(model)
    blind = [{**s, "x": np.zeros_like(s["x"])} for s in normal_samples(model)]
    made.samples = blind
    found = made.quantize()
    assert db(model, found, "difference") > 20


def test_small_layers_keep_their_own_scales() -> None:
    net = Net()
    w = net.const(random_weights(1, 4, 4, 1, 1))
    x = net.input("x", 1, 4, 6, 6)
    a = net.op("Conv", x, w, out="a")
    net.output(net.op("Conv", net.op("Relu", a), w, out="b"))
    assert not assigned(net.model(), {}).shared


def test_other_layers_are_not_touched() -> None:
    """Equal operators on one tensor's parts are no reason to tie what they compute, where no weights are shared."""
    net = Net()
    x = net.input("x", 1, 8, 6, 6)
    a, b = net.ops("Split", x, net.const([4, 4], np.int64), outs=["a", "b"], axis=1)
    parts = [net.op("Sigmoid", v, out=f"s{v}") for v in (a, b)]
    layers = [net.op("Conv", v, net.const(random_weights(i, 8, 4, 3, 3))) for i, v in enumerate(parts)]
    net.output(net.op("Add", *layers))
    groups = assigned(net.model(), {}).groups
    assert not any({"sa", "sb"} <= set(group) for group in groups)


def test_groups_grow_by_ranges_of_like_length() -> None:
    lengths = {"a": 1.0, "b": 2.0, "c": 4.01, "d": None, "e": 100.0, "f": 0.0}
    a, b, c, d, e, f = (Value(name, TensorType((1,))) for name in lengths)
    groups = ScaleGroups(lambda value: lengths[value.name])
    assert groups.join_if_similar(a, b) and not groups.join_if_similar(a, b) and groups.root(a) is groups.root(b)
    assert not groups.join_if_similar(a, c) and groups.root(c) is c  # the group is 2 long by now
    assert groups.join_if_similar(d, c) and groups.root(c) is groups.root(d)
    groups.join(c, e)
    groups.join(e, c)
    assert groups.root(d) is groups.root(e) is not groups.root(a)
    assert not groups.join_if_similar(b, d)  # of which e makes 100
    assert groups.join_if_similar(f, a) and groups.root(f) is groups.root(b)
    assert not groups.join_if_similar(f, e)


@pytest.mark.parametrize(
    ("shape", "layers", "bias", "is_shared"),
    [
        ((16, 16), 2, 1.0, True),
        ((15, 17), 2, 1.0, False),
        ((8, 16), 3, 1.0, True),
        ((8, 16), 2, 1.0, False),
        ((16, 16), 1, 1.0, False),
        ((16, 16), 2, 2.0, False),
    ],
)
def test_sharing_saves_256_bytes(shape: tuple[int, int], layers: int, bias: float, is_shared: bool) -> None:
    """A square root between layers that share no weights is no layer of equal weights."""
    net = Net()
    weights, one = net.const(random_weights(1, *shape)), net.const(np.ones(shape[1]))
    last = one if bias == 1 else net.const(np.full(shape[1], bias))
    for i in range(layers):
        net.op("Gemm", net.input(f"x{i}", 1, shape[0]), weights, last if i == layers - 1 else one, out=f"y{i}")
    net.op("Gemm", net.op("Sqrt", "y0"), net.const(random_weights(2, shape[1], 40)), net.const(np.ones(40)), out="z")
    net.output("z", *(f"y{i}" for i in range(layers)))
    found = layers_of_equal_weights(build_float_model(load(net.model()).proto, "net").graph.nodes)
    assert [[n.output.name for n in each] for each in found] == [[f"y{i}" for i in range(layers)]] * is_shared


def test_steps_of_a_recurrence_share_all_scales() -> None:
    """More steps add no groups; the first two differ from the others, as there is no state before."""
    few, many = (assigned(recurrence(steps), {}) for steps in (4, 6))
    assert len(few.groups) == len(many.groups)
    assert [len(names) for names in few.shared] == [4, 3] and [len(names) for names in many.shared] == [6, 5]
