# SPDX-License-Identifier: Apache-2.0
"""Ranges of activations: each method by what it promises, and the choice by the error that it really makes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from float_models import conv_net, normal_samples, random_weights
from onnx_models import Net
from onnxruntime.quantization.calibrate import HistogramCollector
from test_profile import fused, profile_of, profiled

from mcugen.core.options import RANGE_METHODS
from mcugen.evaluation.session import Session
from mcugen.hir.types import Array, DType, QuantParams
from mcugen.numerics.fixedpoint import dequantize, quantize
from mcugen.quantization import ranges, sensitivity
from mcugen.quantization.float_model import FloatModel
from mcugen.quantization.profile import RANGE_HISTOGRAM_BINS, Profile, TensorProfile
from mcugen.quantization.ranges import (
    KEPT_PERCENTAGE,
    RangeChoice,
    candidate_ranges,
    choose_ranges,
    expected_noise,
    round_outward,
)
from mcugen.quantization.scheme import Scheme, activation_params
from mcugen.quantization.sensitivity import OutputNoise, measured_tensors, saturated_tensors

INT8 = Scheme()


def drawn(draw: Callable[[np.random.Generator], Array], samples: int = 20) -> list[Array]:
    random = np.random.default_rng(0)
    return [draw(random) for _ in range(samples)]


DATA = {
    "normal": drawn(lambda r: r.normal(0, 1, 5000)),
    "heavy tails": drawn(lambda r: r.standard_t(4, 50_000)),
    "relu": drawn(lambda r: np.maximum(r.standard_t(4, 5000), 0)),
    "shifted": drawn(lambda r: r.normal(5, 1, 5000)),
    "negative": drawn(lambda r: -r.exponential(1, 5000)),
    "one outlier": [*drawn(lambda r: r.normal(0, 1, 5000)), np.array([400.0])],
    "constant": [np.full(50, 3.0)] * 3,
    "zero": [np.zeros(50)] * 3,
}


def true_noise(
    samples: list[Array], low: float, high: float, dtype: DType = DType.INT8, scheme: Scheme = INT8
) -> float:
    """Mean squared error of really rounding every element."""
    data, params = np.concatenate(samples), activation_params(low, high, dtype, scheme)
    return float(np.square(dequantize(quantize(data, params, dtype), params) - data).mean())


@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16])
@pytest.mark.parametrize("scheme", [INT8, Scheme(symmetric=True), Scheme(power_of_two=True)])
@pytest.mark.parametrize("name", DATA)
def test_every_method_keeps_zero_and_stays_within_what_was_seen(name: str, scheme: Scheme, dtype: DType) -> None:
    tensor = profile_of(*DATA[name])
    found = candidate_ranges(tensor, dtype, scheme)
    assert tuple(found) == RANGE_METHODS
    for method, (low, high) in found.items():
        assert low <= 0 <= high
        if method != "extrapolated":
            assert min(tensor.low, 0) <= low and high <= max(tensor.high, 0)
        params = activation_params(low, high, dtype, scheme)
        assert dequantize(quantize(np.zeros(1), params, dtype), params)[0] == 0


@pytest.mark.parametrize("name", ["normal", "heavy tails", "relu", "negative"])
def test_mse_has_the_least_true_error(name: str) -> None:
    samples = DATA[name]
    found = {m: true_noise(samples, *r) for m, r in candidate_ranges(profile_of(*samples), DType.INT8, INT8).items()}
    assert found["mse"] <= 1.01 * min(found.values())
    if name == "heavy tails":
        assert found["mse"] < 0.5 * found["minmax"]


@pytest.mark.parametrize("name", ["normal", "heavy tails", "relu", "shifted", "negative"])
def test_no_range_of_a_fine_grid_is_better_than_that_of_mse(name: str) -> None:
    tensor = profile_of(*DATA[name])
    low, high = candidate_ranges(tensor, DType.INT8, INT8)["mse"]
    best = expected_noise(tensor, activation_params(low, high, DType.INT8, INT8), DType.INT8)
    shares = np.linspace(0.05, 1, 40)
    lows, highs = min(tensor.low, 0) * shares, max(tensor.high, 0) * shares
    grid = [activation_params(a, b, DType.INT8, INT8) for a in np.unique(lows) for b in np.unique(highs)]
    assert best <= 1.02 * min(expected_noise(tensor, params, DType.INT8) for params in grid)


def test_symmetric_ranges_are_judged_as_such() -> None:
    """The negative end of ReLU6 shifted a little costs nothing where the codes are symmetric."""
    samples = drawn(lambda r: np.clip(r.normal(2, 2, 5000), -0.4, 6))
    scheme = Scheme(symmetric=True)
    low, high = candidate_ranges(profile_of(*samples), DType.INT8, scheme)["mse"]
    assert true_noise(samples, low, high, scheme=scheme) <= 1.01 * true_noise(samples, -0.4, 6, scheme=scheme)


@pytest.mark.parametrize("name", ["normal", "heavy tails", "relu", "one outlier"])
@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16])
def test_the_expected_error_is_nearly_the_true_one(name: str, dtype: DType) -> None:
    samples = DATA[name]
    tensor = profile_of(*samples)
    for low, high in ((tensor.low, tensor.high), (tensor.low / 2, tensor.high / 2)):
        expected = expected_noise(tensor, activation_params(low, high, dtype, INT8), dtype)
        true = true_noise(samples, low, high, dtype)
        zeros = np.mean(np.concatenate(samples) == 0)  # are exact, which a histogram cannot know
        assert 0.85 * true <= expected <= 1.2 * true / (1 - zeros)


def test_the_expected_error_of_a_uniform_signal() -> None:
    """6.02 dB a bit; none of a signal that is 0 throughout."""
    tensor = profile_of(np.linspace(-1, 1, 100_000))
    for dtype, bits, tolerance in ((DType.INT8, 8, 0.3), (DType.INT16, 16, 0.1)):
        noise = expected_noise(tensor, activation_params(-1, 1, dtype, INT8), dtype)
        assert 10 * math.log10(1 / 3 / noise) == pytest.approx(20 * bits * math.log10(2), abs=tolerance)
    zero = profile_of(np.zeros(10))
    assert expected_noise(zero, activation_params(0, 0, DType.INT8, INT8), DType.INT8) == 0


def test_moving_average_follows_the_samples() -> None:
    tensor = TensorProfile((-1.0, -1.0, -3.0), (2.0, 4.0, 4.0), (1,) * RANGE_HISTOGRAM_BINS, ())
    low, high = candidate_ranges(tensor, DType.INT8, INT8)["moving_average"]
    assert low == pytest.approx(-1.02)
    assert high == pytest.approx(2.02 + 0.01 * 1.98)


@pytest.mark.parametrize(
    ("method", "percent"), [("percentile", KEPT_PERCENTAGE), ("percentile99.9", 99.9), ("percentile99.5", 99.5)]
)
@pytest.mark.parametrize("name", ["normal", "heavy tails", "relu"])
def test_percentile_keeps_its_share(name: str, method: str, percent: float) -> None:
    tensor, data = profile_of(*DATA[name]), np.concatenate(DATA[name])
    low, high = candidate_ranges(tensor, DType.INT8, INT8)[method]
    width = float(tensor.edges[1] - tensor.edges[0])
    wanted = np.percentile(data, [(100 - percent) / 2, 100 - (100 - percent) / 2])
    assert [low, high] == pytest.approx(wanted.tolist(), abs=2 * width)
    outside = float(np.mean((data < low) | (data > high)))
    assert outside <= 1 - percent / 100 + 1e-9


@pytest.mark.parametrize("name", ["normal", "heavy tails"])
def test_entropy_finds_nearly_what_onnxruntime_finds(name: str) -> None:
    samples = DATA[name]
    found = candidate_ranges(profile_of(*samples), DType.INT8, Scheme(symmetric=True))["entropy"]
    data = np.concatenate(samples).astype(np.float32)
    most = float(np.abs(data).max())
    counts, edges = np.histogram(data, RANGE_HISTOGRAM_BINS, (-most, most))
    collector = HistogramCollector("entropy", True, RANGE_HISTOGRAM_BINS, 256, 99.99, None)
    wanted = collector.get_entropy_threshold((counts, edges, data.min(), data.max(), most), 256)
    assert max(-found[0], found[1]) == pytest.approx(float(max(-wanted[0], wanted[1])), rel=0.25)


def test_entropy_clips_a_lone_outlier_and_keeps_a_uniform_signal() -> None:
    outlier, uniform = profile_of(*DATA["one outlier"]), profile_of(np.linspace(-1, 1, 100_000))
    assert candidate_ranges(outlier, DType.INT8, INT8)["entropy"][1] < 100
    assert candidate_ranges(uniform, DType.INT8, INT8)["entropy"] == (-1, 1)


# ------------------------------------------------------------------------------------------------------ choice


def test_one_switch_quantizes_one_tensor_and_nothing_else() -> None:
    """Against the same model with that tensor rounded by numpy, its successors by ONNX Runtime."""
    net = Net()
    x = net.input("x", 1, 8)
    first, second = random_weights(1, 8, 8), random_weights(2, 8, 5)
    net.op("MatMul", net.op("MatMul", x, net.const(first), out="y"), net.const(second), out="z")
    net.output("z")
    model, samples = fused(net.model()), normal_samples(net.model(), 6)
    params = QuantParams((0.05,), -10)
    noise = signal = 0.0
    for sample in samples:
        real = sample["x"] @ first
        rounded = dequantize(quantize(real, params, DType.INT8), params)
        noise += float(np.square((rounded - real) @ second).sum())
        signal += float(np.square(real @ second).sum())
    judge = OutputNoise(model, [("x",), ("y",), ("z",)], samples)
    assert judge.noise(("y",), [params], DType.INT8) == pytest.approx(noise / signal, rel=1e-3)
    assert judge.noise(("z",), [QuantParams((1e-9,), 0)], DType.INT8) == pytest.approx(1, rel=1e-3)


def test_names_of_a_group_may_be_those_of_others_and_a_number() -> None:
    """As of GRUs of one model that are called h, h.1, h.2."""
    net = Net()
    for name in ("h", "h.1", "h.2", "h.3"):
        net.op("Tanh", net.input(f"x{name}", 1, 4), out=name)
    net.op("Sum", "h", "h.1", "h.2", "h.3", out="y")
    net.output("y")
    model = fused(net.model())
    group = ("h", "h.1", "h.2", "h.3")
    judge = OutputNoise(model, [group], normal_samples(net.model(), 3))
    assert 0 < judge.noise(group, [QuantParams((2.0**-12,), 0)], DType.INT16) < 1e-6


def test_noise_beyond_the_limit_is_infinite() -> None:
    model, samples = fused(conv_net()), normal_samples(conv_net(), 3 * sensitivity.NUM_FIRST_SAMPLES)
    judge, params = OutputNoise(model, [("x",)], samples), [QuantParams((0.05,), 0)]
    noise = judge.noise(("x",), params, DType.INT8)
    assert 0 < noise == judge.noise(("x",), params, DType.INT8, limit=noise)
    assert judge.noise(("x",), params, DType.INT8, limit=0.999 * noise) == math.inf


def test_what_a_group_has_no_part_in_stays_as_it_is() -> None:
    net = Net()
    net.op("Relu", net.input("x", 1, 8), out="r")
    net.ops("TopK", "r", net.const([3], np.int64), outs=["best", "places"])
    net.op("Gather", net.input("table", 8, 4), "places", out="found", axis=0)
    net.op("Add", net.op("Unsqueeze", "best", net.const([2], np.int64), out="column"), "found", out="sum")
    net.op("Neg", net.input("other", 1, 2), out="apart")
    net.output("sum", "apart")
    model, samples = fused(net.model()), normal_samples(net.model(), 4)
    groups: list[tuple[str, ...]] = [("table",), ("best", "column"), ("other",), ("r",)]
    judge, fine = OutputNoise(model, groups, samples), [QuantParams((2.0**-12,), 0)]
    assert all(0 < judge.noise(group, fine, DType.INT16) < 1e-6 for group in groups)


def test_a_divisor_that_is_rounded_to_zero_is_noise_without_end() -> None:
    net = Net()
    net.op("Div", net.input("x", 1, 4), net.input("divisor", 1, 4), out="ratio")
    net.output("ratio")
    model = fused(net.model())
    judge = OutputNoise(model, [("divisor",)], normal_samples(net.model(), 3))
    assert judge.noise(("divisor",), [QuantParams((100.0,), 0)], DType.INT8) == math.inf
    assert judge.noise(("divisor",), [QuantParams((0.001,), -128)], DType.INT16) < 1


def test_large_models_are_judged_by_fewer_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    model, samples = fused(conv_net()), normal_samples(conv_net(), 120)
    assert len(OutputNoise(model, [("x",)], samples).samples) == sensitivity.MAX_CANDIDATE_SAMPLES
    monkeypatch.setattr(sensitivity, "MAX_GROUP_RUN_MACS", 1000)
    few = OutputNoise(model, [("x",)], samples).samples
    assert len(few) == sensitivity.MIN_CANDIDATE_SAMPLES
    assert (few[0]["x"] == samples[0]["x"]).all() and (few[-1]["x"] == samples[-1]["x"]).all()


def test_saturated_outputs_are_judged_by_what_goes_in() -> None:
    model = fused(conv_net())
    assert measured_tensors(model) == ["logits"]
    assert saturated_tensors(model) == {"scores"}
    net = Net()
    x = net.input("x", 2, 4)
    net.op("Flatten", net.op("Sigmoid", x, out="s"), out="flat")
    net.op("Relu", x, out="r")
    net.op("ArgMax", x, out="best", axis=1)
    net.output("flat", "r")
    net.output("best", dtype=np.int64)
    assert measured_tensors(fused(net.model())) == ["x", "r"]


def test_masks_are_judged_by_themselves() -> None:
    """Each pixel's probability is read as it is: far logits are so, however they are clipped."""
    net = Net()
    net.op("Sigmoid", net.input("x", 1, 2, 4, 4), out="mask")
    net.op("Softmax", "x", out="classes", axis=1)
    net.output("mask", "classes")
    model = fused(net.model())
    assert measured_tensors(model) == ["mask", "x"]
    assert saturated_tensors(model) == {"mask", "classes"}


def test_one_method_for_all_is_taken_where_single_choices_add_up_to_more_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here all of a chain clip what the first one alone would."""
    net = Net()
    y = net.op("Relu", net.input("x", 1, 1, 64, 64), out="y0")
    for i in range(1, 5):
        y = net.op("HardSwish", net.op("Conv", y, net.const(random_weights(i, 1, 1, 1, 1)), out=f"c{i}"), out=f"y{i}")
    net.output(y)
    model, samples = fused(net.model()), heavy_samples()
    profile = profiled(model, samples)
    groups = [(name,) for name in profile.tensors]

    def noise() -> tuple[float, set[str]]:
        dtypes = dict.fromkeys(profile.tensors, DType.INT8)
        found = choose_ranges(model, profile, groups, dtypes, INT8, samples, lambda *_: None)
        params = [[activation_params(found[n].low, found[n].high, DType.INT8, INT8)] for (n,) in groups]
        judge = OutputNoise(model, groups, samples)
        inner = {choice.method for name, choice in found.items() if name != y}
        return judge.joint_noise(params, [DType.INT8] * len(groups)), inner

    together, methods = noise()
    monkeypatch.setattr(ranges, "JOINT_METHODS", ())
    single, others = noise()
    assert len(methods) <= 2 < len(others), "but for candidates that hardly differ"
    assert together < single


def test_inputs_keep_their_extremes_where_clipping_gains_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside of the model the histogram decides between candidates that measure about the same: all, here."""
    monkeypatch.setattr(ranges, "EQUAL_NOISE_DIFFERENCE", 100.0)
    monkeypatch.setattr(ranges, "MAX_LIKELY_NOISE_RATIO", 100.0)
    found = chosen(INT8).choices
    assert found["x"].method in ("minmax", "extrapolated")
    assert found["relu"].method not in ("minmax", "extrapolated")


def wide_net() -> onnx.ModelProto:
    """Its input has as many elements as clipping a few needs to be worth while."""
    net = Net()
    x = net.input("x", 1, 1, 64, 64)
    y = net.op("Conv", x, net.const(random_weights(1, 4, 1, 1, 1)), out="conv")
    y = net.op("MaxPool", net.op("Relu", y, out="relu"), kernel_shape=[2, 2], strides=[2, 2], out="pool")
    net.op("Sigmoid", net.op("Conv", y, net.const(random_weights(2, 2, 4, 1, 1)), out="logits"), out="scores")
    net.output("scores")
    return net.model()


def heavy_samples(count: int = 100, seed: int = 0) -> list[dict[str, Array]]:
    """Student's t: the greatest of so many elements is far from all others."""
    random = np.random.default_rng(seed)
    return [{"x": random.standard_t(4, (1, 1, 64, 64)).astype(np.float32)} for _ in range(count)]


@dataclass
class Chosen:
    """Ranges of `wide_net`, and what led to them."""

    model: FloatModel
    profile: Profile
    choices: dict[str, RangeChoice]


def chosen(scheme: Scheme, with_samples: bool = True) -> Chosen:
    model, samples = fused(wide_net()), heavy_samples()
    profile = profiled(model, samples)
    groups = [("x",), ("relu", "pool"), ("logits",), ("scores",)]
    dtypes = dict.fromkeys(profile.tensors, scheme.activations)
    told: list[tuple[int, int]] = []
    inputs = samples if with_samples else []
    found = choose_ranges(model, profile, groups, dtypes, scheme, inputs, lambda *step: told.append(step))
    assert told == [(n, 4) for n in range(1, 5)]
    assert found.keys() == profile.tensors.keys() == {n for group in groups for n in group}
    assert found["relu"] == found["pool"]
    return Chosen(model, profile, found)


def test_the_choice_has_the_least_measured_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "MAX_EQUAL_RANGE_DIFFERENCE", 0.0)  # all candidates are tried
    monkeypatch.setattr(ranges, "EQUAL_NOISE_DIFFERENCE", 0.0)
    monkeypatch.setattr(ranges, "JOINT_METHODS", ())
    found = chosen(INT8)
    judge = OutputNoise(found.model, [(name,) for name in found.choices], heavy_samples())
    for name in ("x", "logits"):
        of = [*found.profile.folds, found.profile.tensors]
        offered = [candidate_ranges(tensors[name], DType.INT8, INT8) for tensors in of]
        noises = {}
        for method in RANGE_METHODS:
            *params, whole = (activation_params(*map(round_outward, o[method]), DType.INT8, INT8) for o in offered)
            noises[method] = sum(judge.noise((name,), each, DType.INT8) for each in (params, [whole])) / 2
        assert found.choices[name].method == min(noises, key=noises.__getitem__)
        sqnr = found.choices[name].sqnr_db
        assert sqnr is not None
        assert 10 ** (-sqnr / 10) == pytest.approx(min(noises.values()), rel=1e-3)


def test_a_fold_is_judged_by_what_the_other_suggests() -> None:
    """Sample by sample, against numpy."""
    net = Net()
    net.op("Relu", net.input("x", 1, 8), out="y")
    net.output("y")
    samples, params = normal_samples(net.model(), 7), [QuantParams((0.05,), 0), QuantParams((0.3,), 0)]
    noise = signal = 0.0
    for index, sample in enumerate(samples):
        wanted, by_other = np.maximum(sample["x"], 0), params[1 - index % 2]
        noise += float(
            np.square(np.maximum(dequantize(quantize(sample["x"], by_other, DType.INT8), by_other), 0) - wanted).sum()
        )
        signal += float(np.square(wanted).sum())
    judge = OutputNoise(fused(net.model()), [("x",)], samples)
    assert judge.noise(("x",), params, DType.INT8) == pytest.approx(noise / signal, rel=1e-5)


def test_outputs_that_saturate_keep_their_range() -> None:
    for scheme in (INT8, Scheme(method="entropy")):
        found = chosen(scheme)
        scores = found.choices["scores"]
        assert (scores.method, scores.low, scores.high) == (
            "minmax",
            0.0,
            round_outward(found.profile.tensors["scores"].high),
        )


@pytest.mark.parametrize("with_samples", [True, False])
def test_what_is_chosen_beats_min_max_on_other_samples(with_samples: bool) -> None:
    found, plain = chosen(INT8, with_samples), chosen(Scheme(method="minmax"))
    judge = OutputNoise(found.model, [("x",)], heavy_samples(40, seed=5))
    noises = [
        judge.noise(("x",), [activation_params(c.low, c.high, DType.INT8, INT8)], DType.INT8)
        for c in (found.choices["x"], plain.choices["x"])
    ]
    assert found.choices["x"].method != "minmax"
    assert noises[0] < 0.6 * noises[1]
    assert (found.choices["x"].sqnr_db is not None) == with_samples


def test_no_method_clips_heavy_tails_better_by_2_db() -> None:
    """Percentiles and entropies as others have them among them, on samples that chose nothing."""
    found = chosen(INT8)
    judge = OutputNoise(found.model, [("x",)], heavy_samples(40, seed=5))
    spans = [*candidate_ranges(found.profile.tensors["x"], DType.INT8, INT8).values()]
    spans.append((found.choices["x"].low, found.choices["x"].high))
    *others, own = (judge.noise(("x",), [activation_params(*r, DType.INT8, INT8)], DType.INT8) for r in spans)
    assert own <= 10**0.2 * min(others)


@pytest.mark.parametrize("method", RANGE_METHODS)
def test_a_method_can_be_forced(method: str) -> None:
    found = chosen(Scheme(method=method))
    ends = candidate_ranges(found.profile.tensors["x"], DType.INT8, INT8)[method]
    assert (found.choices["x"].low, found.choices["x"].high) == (round_outward(ends[0]), round_outward(ends[1]))
    assert {c.method for name, c in found.choices.items() if name != "scores"} == {method}


@pytest.mark.parametrize("end", [0.0, 1.0, -6.0, 2.3223814694210887, -14.43, 3e-9, 1e30])
def test_ends_are_steady(end: float) -> None:
    """Nothing is cut off, little is added, and float kernels that round otherwise find the same."""
    found = round_outward(end)
    assert abs(end) <= abs(found) * (1 + 2e-5) <= abs(end) * 1.002
    assert math.copysign(1, found) == math.copysign(1, end)
    assert {round_outward(end * (1 + ulps * 2**-23)) for ulps in range(-3, 4)} == {found}
    if end in (0.0, 1.0, -6.0):
        assert found == end


def test_ranges_are_the_same_where_floats_round_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on another CPU: all that ONNX Runtime gives is moved by a bit or none."""
    wanted, run = chosen(INT8), Session.run
    random = np.random.default_rng(0)

    def rounded_otherwise(session: Session, *arguments: Any) -> dict[str, Array]:
        found = run(session, *arguments)
        return {n: (a * (1 + random.integers(-1, 2, a.shape) * 2.0**-23)).astype(a.dtype) for n, a in found.items()}

    monkeypatch.setattr(Session, "run", rounded_otherwise)
    found = chosen(INT8)
    assert {n: (c.method, c.low, c.high) for n, c in found.choices.items()} == {
        n: (c.method, c.low, c.high) for n, c in wanted.choices.items()
    }


# ---------------------------------------------------------------------------------------- extremes of few samples


@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16])
@pytest.mark.parametrize(
    ("count", "peaks"), [(9, 0), (19, 0), (20, 4), (24, 5), (100, 10), (400, 20), (1999, 45), (2000, 0)]
)
def test_extremes_of_more_samples(count: int, peaks: int, dtype: DType) -> None:
    """The mean excess of the greatest maxima over the next one tells by how much 2000, or 16 times as many, exceed."""
    random = np.random.default_rng(count)
    highs, lows = random.exponential(1, count) + 3, -random.exponential(2, count) - 1
    wanted = []
    for maxima in (-lows, highs):
        ordered = np.sort(maxima)[::-1]
        end = ordered[0]
        if peaks:
            excess = (ordered[:peaks] - ordered[peaks]).mean()
            growth = min(2000 / count, 16)
            end = max(end, ordered[peaks] + excess * (math.log(peaks) + math.log(growth) + 0.5772156649015329))
        wanted.append(end * (1.25 if dtype is DType.INT16 else 1))
    tensor = TensorProfile(tuple(lows.tolist()), tuple(highs.tolist()), (1,) * RANGE_HISTOGRAM_BINS, ())
    found = candidate_ranges(tensor, dtype, INT8)["extrapolated"]
    assert found == pytest.approx((-wanted[0], wanted[1]), rel=1e-9)
    positive = TensorProfile((0.0,) * count, tuple(highs.tolist()), (1,) * RANGE_HISTOGRAM_BINS, ())
    assert candidate_ranges(positive, dtype, INT8)["extrapolated"] == pytest.approx((0, wanted[1]), rel=1e-9)
    bounded = TensorProfile((0.0,) * count, (6.0,) * count, (1,) * RANGE_HISTOGRAM_BINS, ())
    assert candidate_ranges(bounded, dtype, INT8)["extrapolated"][1] == (7.5 if dtype is DType.INT16 else 6)


@pytest.mark.parametrize(
    ("count", "margin"), [(1, 1.0), (3, 1 / 3), (4, 1 / 4), (5, 1 / 25), (9, 1 / 81), (10, 0.0), (12, 0.0)]
)
def test_ranges_by_few_samples_are_wider(count: int, margin: float) -> None:
    net = Net()
    net.op("Tanh", net.input("x", 1, 16), out="y")
    net.output("y")
    model = fused(net.model())
    profile = profiled(model, normal_samples(net.model(), count))
    dtypes = dict.fromkeys(profile.tensors, DType.INT8)
    found = choose_ranges(model, profile, [("x",), ("y",)], dtypes, INT8, [], lambda *_: None)["x"]
    low, high = candidate_ranges(profile.tensors["x"], DType.INT8, INT8)[found.method]
    assert (found.low, found.high) == pytest.approx((low * (1 + margin), high * (1 + margin)), rel=2e-3)
    assert found.sqnr_db is None
