# SPDX-License-Identifier: Apache-2.0
"""Weights by what layers read: means come out right, errors shrink, results are the same every time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from float_models import conv_net, normal_samples, random_weights, sqnr
from onnx_models import Net, onnxruntime_outputs

from mcugen.core.options import CompileOptions
from mcugen.frontend.onnx.load import load
from mcugen.hir.graph import Node
from mcugen.hir.interpreter import evaluate_node, interpret
from mcugen.hir.traits import Weighted, weight_axes
from mcugen.hir.types import Array, DType
from mcugen.quantization.moments import Moments
from mcugen.quantization.plan import Plan
from mcugen.quantization.profile import Profile, TensorProfile
from mcugen.quantization.quantize import Quantizer, create_quantizer, import_float_model
from mcugen.quantization.refine import quantize_weights
from mcugen.quantization.scheme import Scheme
from mcugen.quantization.weights import plain_codes, real_weights

PLAIN = Scheme(method="minmax", equalize=False, correct_bias=False, optimize_rounding=False)


def shifted(model: onnx.ModelProto, count: int = 16, seed: int = 0) -> list[dict[str, Array]]:
    """Inputs with a mean and correlations, as real ones have."""
    random = np.random.default_rng(seed)
    samples = normal_samples(model, count, seed)
    return [{n: (x / 4 + random.uniform(0, 4)).astype(np.float32) for n, x in s.items()} for s in samples]


def quantizer_by(model: onnx.ModelProto, scheme: Scheme) -> Quantizer:
    source = load(model)
    return create_quantizer(source, import_float_model(source, CompileOptions(), scheme), scheme, shifted(model))


def single_conv(groups: int) -> onnx.ModelProto:
    """A convolution without bias; its output is the model's."""
    net = Net(17)
    x = net.input("x", 1, 6, 9, 9)
    net.op("Conv", x, net.const(random_weights(1, 12, 6 // groups, 3, 3)), group=groups, pads=[1] * 4, out="y")
    net.output("y")
    return net.model()


def mean_error(model: onnx.ModelProto, scheme: Scheme) -> float:
    """Of the channels' means on the calibration data, relative to the error's size with plain rounding."""
    proto = quantizer_by(model, scheme).quantize().proto
    samples = shifted(model)
    errors = np.stack([onnxruntime_outputs(proto, s)["y"] - onnxruntime_outputs(model, s)["y"] for s in samples])
    return float(np.abs(errors.mean((0, 1, 3, 4))).max())


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_corrected_biases_leave_no_mean_error(groups: int) -> None:
    model = single_conv(groups)
    plain = mean_error(model, PLAIN)
    assert mean_error(model, dataclasses.replace(PLAIN, correct_bias=True)) < 0.2 * plain


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_rounding_by_error_is_better_than_to_nearest(groups: int) -> None:
    """With float outputs, so that the weights' errors are all there are."""
    model = single_conv(groups)
    quality = []
    for scheme in (PLAIN, dataclasses.replace(PLAIN, optimize_rounding=True)):
        made = quantizer_by(model, scheme)
        (node,) = made.model.graph.nodes
        node.input(1).data = real_weights(made.quantize().plan.layers["y"])
        tests = shifted(model, 8, seed=5)
        found = [interpret(made.model.graph, s)["y"] for s in tests]
        quality.append(sqnr([onnxruntime_outputs(model, s)["y"] for s in tests], found))
    assert quality[1] > quality[0] + 1


def test_codes_are_valid_and_the_same_every_time() -> None:
    model = conv_net()
    plans = [quantizer_by(model, Scheme(method="minmax")).quantize().plan for _ in range(2)]
    assert list(plans[0].layers) == ["relu6", "relu", "pointwise", "logits"]
    for name, codes in plans[0].layers.items():
        again = plans[1].layers[name]
        assert codes.weights.dtype == np.int8 and np.abs(codes.weights.astype(int)).max() <= 127
        assert codes.bias is not None and again.bias is not None and codes.bias.dtype == np.float32
        assert codes.weights.tobytes() == again.weights.tobytes() and codes.bias.tobytes() == again.bias.tobytes()


def test_the_techniques_together_bring_the_outputs_nearer() -> None:
    model = conv_net()
    tests = shifted(model, 20, seed=3)
    wanted = [onnxruntime_outputs(model, s)["scores"] for s in tests]
    quality = []
    for scheme in (PLAIN, dataclasses.replace(PLAIN, correct_bias=True, optimize_rounding=True)):
        proto = quantizer_by(model, scheme).quantize().proto
        quality.append(sqnr(wanted, [onnxruntime_outputs(proto, s)["scores"] for s in tests]))
    assert quality[1] > quality[0]


def plain_plan(made: Quantizer) -> Plan:
    scheme = dataclasses.replace(made.scheme, correct_bias=False, optimize_rounding=False)
    return dataclasses.replace(made, scheme=scheme).quantize().plan


def test_without_samples_the_profile_corrects_biases() -> None:
    """The means of the inputs are all that a constant error of the weights needs."""
    made = quantizer_by(single_conv(2), dataclasses.replace(PLAIN, correct_bias=True))
    means = np.mean([s["x"].mean((0, 2, 3)) for s in made.samples], 0)
    extremes = tuple(map(float, range(len(made.samples))))
    profile = Profile("", len(made.samples), {"x": TensorProfile(extremes, extremes, (), tuple(map(float, means)))})
    plan = dataclasses.replace(plain_plan(made), scheme=made.scheme)
    by_means = quantize_weights(made.model, plan, (), profile, lambda done, total: None).layers["y"]
    by_samples = quantize_weights(made.model, plan, made.samples, profile, lambda done, total: None).layers["y"]
    np.testing.assert_array_equal(by_means.weights, plain_codes(made.model.graph.nodes[0], made.scheme).weights)
    assert by_means.bias is not None and by_samples.bias is not None and np.abs(by_means.bias).max() > 0
    np.testing.assert_allclose(by_means.bias, by_samples.bias, atol=0.3 * np.abs(by_samples.bias).max())


HOLLOW: dict[str, Callable[[Array], list[Array]]] = {
    "one": lambda x: [x],
    "two": lambda x: [x, x[..., ::-1]],
    "repeated": lambda x: [x] * 20,
    "nearly repeated": lambda x: [x + 1e-3 * np.random.default_rng(i).standard_normal(x.shape) for i in range(20)],
    "a recording": lambda x: [x + 1e-3 * np.random.default_rng(i).standard_normal(x.shape) for i in range(60)],
    "zeros": lambda x: [0 * x],
    "many zeros": lambda x: [0 * x] * 20,
    "constants": lambda x: [np.full_like(x, i / 2) for i in range(10)],
    "zeros and one": lambda x: [0 * x] * 10 + [x],
}
"""Calibration samples that say little: of one like any other."""


@pytest.mark.spread(3)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", HOLLOW)
def test_samples_that_say_little_do_little_harm(kind: str, seed: int) -> None:
    """With the same ranges, weights by samples are about as good as those rounded to nearest, or better."""
    model = conv_net()
    source = load(model)
    fused = import_float_model(source, CompileOptions(), Scheme())
    samples = [{"x": x.astype(np.float32)} for x in HOLLOW[kind](shifted(model, 1, seed)[0]["x"])]
    tests = shifted(model, 40, seed=7)
    wanted = [interpret(fused.graph, s)["scores"] for s in tests]
    made = create_quantizer(source, fused, Scheme(), samples)
    quality = []
    for scheme in (Scheme(correct_bias=False, optimize_rounding=False), Scheme()):
        proto = dataclasses.replace(made, scheme=scheme).quantize().proto
        quality.append(sqnr(wanted, [onnxruntime_outputs(proto, s)["scores"] for s in tests]))
    assert quality[1] > quality[0] - 1.5


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_unfolded_inputs_give_a_layers_results_to_the_bit(groups: int) -> None:
    net = Net(17)
    x = net.input("x", 1, 6, 9, 8)
    weights = net.const(random_weights(1, 12, 6 // groups, 3, 2))
    how = {"group": groups, "pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2]}
    y = net.op("Relu", net.op("Conv", x, weights, net.const(random_weights(2, 12)), **how))
    net.op("MatMul", y, net.const(random_weights(3, 7, 5)), out="z")
    net.output("z")
    model = net.model()
    graph = import_float_model(load(model), CompileOptions(), Scheme(equalize=False)).graph
    found = []

    def compare(node: Node, arrays: list[Array]) -> None:
        if not weight_axes(node.op):
            return
        assert isinstance(node.op, Weighted)
        rows = node.op.unfolded(node.sig, arrays[0])
        assert rows is not None
        (wanted,) = evaluate_node(node, arrays)
        (got,) = evaluate_node(node, [rows, *arrays[1:]], lambda n, a: (node.op.of_unfolded(n.sig, *a),))
        found.append(np.array_equal(got, wanted))

    interpret(graph, shifted(model, 1)[0], compare)
    assert found == [True, True]


def test_codes_do_not_depend_on_how_many_rows_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model = conv_net()
    wanted = quantizer_by(model, Scheme()).quantize().proto
    monkeypatch.setattr("mcugen.quantization.refine.MAX_IM2COL_ELEMENTS", 1000)
    assert quantizer_by(model, Scheme()).quantize().proto == wanted


def test_repeated_samples_count_once() -> None:
    """Else a recording in twenty copies would be believed like twenty recordings."""
    model = conv_net()
    once = shifted(model, 3)
    source = load(model)
    scheme = Scheme(method="minmax")
    fused = import_float_model(source, CompileOptions(), scheme)
    plans = [create_quantizer(source, fused, scheme, samples).quantize().plan for samples in (once, once * 7)]
    for name, codes in plans[0].layers.items():
        again = plans[1].layers[name]
        assert codes.weights.tobytes() == again.weights.tobytes() and np.array_equal(codes.bias, again.bias)


def test_float_layers_keep_their_weights() -> None:
    made = quantizer_by(conv_net(), Scheme(method="minmax"))
    assert "pointwise" not in made.quantize({"pointwise": DType.FLOAT32}).plan.layers


def test_progress_ends_at_the_last_layer() -> None:
    made = quantizer_by(conv_net(), Scheme(method="minmax"))
    seen: list[tuple[int, int]] = []
    plan = dataclasses.replace(plain_plan(made), scheme=made.scheme)
    quantize_weights(made.model, plan, made.samples, made.profile, lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == len(seen)


def test_moments_are_the_same_whatever_the_order_of_sums() -> None:
    """Kernels of other CPUs add up in another order; codes must not depend on it."""
    rows = np.random.default_rng(0).normal(1, 1, (1, 5000, 40)).astype(np.float32)
    forward, backward = Moments(), Moments()
    forward.add(rows, rows)
    backward.add(rows[:, ::-1], rows[:, ::-1])
    np.testing.assert_allclose(forward.gram(True), backward.gram(True), atol=1e-12)
