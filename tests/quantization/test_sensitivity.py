# SPDX-License-Identifier: Apache-2.0
"""What rounded tensors do to outputs, against numpy; the samples by which that is seen, counted by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from float_models import normal_samples, random_weights
from onnx_models import Net
from test_profile import fused

from mcugen.hir.types import Array, DType, QuantParams
from mcugen.quantization import sensitivity
from mcugen.quantization.profile import Profile, TensorProfile
from mcugen.quantization.sensitivity import OutputNoise

Params = list[list[QuantParams]]


def rounded(x: Array, params: QuantParams, dtype: DType) -> Array:
    """Element by element, saturating."""
    scale, low, high = np.float32(params.scale[0]), *(c - params.zero_point for c in dtype.limits)
    steps = np.clip((x.astype(np.float32) / scale).astype(np.float64), low, high)
    return np.rint(steps).astype(np.float32) * scale


# ------------------------------------------------------------------------------------------------- all together

W1, W2 = random_weights(1, 8, 6), random_weights(2, 6, 5)
GROUPS = [("x",), ("y",), ("z",)]
DTYPES = [DType.INT8, DType.INT16, DType.INT8]


def chain() -> onnx.ModelProto:
    """Two products of matrices, of which the first is an output, too."""
    net = Net()
    net.op("MatMul", net.input("x", 1, 8), net.const(W1), out="y")
    net.op("MatMul", "y", net.const(W2), out="z")
    net.output("z", "y")
    return net.model()


def chain_of(x: Array, quantize: Callable[[int, Array], Array]) -> dict[str, Array]:
    y = quantize(1, quantize(0, x) @ W1)
    return {"y": y, "z": quantize(2, y @ W2)}


def chain_noise(samples: Sequence[dict[str, Array]], places: Sequence[int], params: Params) -> float:
    """Of all groups in integers; a sample is judged by the parameters after those of its own fold."""
    noise, signal = {"y": 0.0, "z": 0.0}, {"y": 0.0, "z": 0.0}
    for sample, place in zip(samples, places, strict=True):
        exact = chain_of(sample["x"], lambda _, a: a)
        chosen = [each[(place + 1) % len(each)] for each in params]
        found = chain_of(sample["x"], lambda g, a, c=chosen: rounded(a, c[g], DTYPES[g]))  # type: ignore[misc]
        for name in noise:
            noise[name] += float(np.square(found[name].astype(np.float64) - exact[name]).sum())
            signal[name] += float(np.square(exact[name].astype(np.float64)).sum())
    return sum(noise[name] / signal[name] for name in noise) / 2


ONE: Params = [[QuantParams((0.04,), 3)], [QuantParams((0.001,), 0)], [QuantParams((0.05,), -9)]]
TWO: Params = [[*each, QuantParams((3 * each[0].scale[0],), 1)] for each in ONE]


@pytest.mark.parametrize("params", [ONE, TWO])
@pytest.mark.parametrize("count", [1, 7, 32])
def test_noise_of_all_groups_together(count: int, params: Params) -> None:
    samples = normal_samples(chain(), count)
    judge = OutputNoise(fused(chain()), GROUPS, samples)
    found = judge.joint_noise(params, DTYPES)
    assert found == pytest.approx(chain_noise(samples, range(count), params), rel=2e-3)
    assert judge.joint_noise(params, DTYPES, found) == found
    assert judge.joint_noise(params, DTYPES, found * (1 - 1e-6)) == math.inf


def test_few_of_many_samples_are_run_together() -> None:
    samples = normal_samples(chain(), 90)
    places = np.linspace(0, 89, 32).round().astype(int).tolist()
    found = OutputNoise(fused(chain()), GROUPS, samples).joint_noise(TWO, DTYPES)
    assert found == pytest.approx(chain_noise([samples[i] for i in places], places, TWO), rel=2e-3)


def test_no_more_samples_are_run_together_than_show_too_much_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    samples, runs = normal_samples(chain(), 30), list[int]()
    judge = OutputNoise(fused(chain()), GROUPS, samples)
    whole = judge.joint_noise(ONE, DTYPES)
    session, names = judge._whole or pytest.fail("no session")
    run = session.run

    def counted(*arguments: Any) -> dict[str, Array]:
        runs.append(1)
        return run(*arguments)

    monkeypatch.setattr(session, "run", counted)
    assert judge.joint_noise(ONE, DTYPES, whole * 1e-3) == math.inf and len(runs) == sensitivity.NUM_FIRST_SAMPLES
    runs.clear()
    assert (
        judge.joint_noise(ONE, DTYPES, whole * 0.6) == math.inf and 4 * sensitivity.NUM_FIRST_SAMPLES <= len(runs) < 28
    )
    assert all(name.startswith("mcugen.quantized.") for name in names)


def test_more_samples_at_once_are_run_until_there_is_too_much_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one group: four, then eight, then sixteen; what was run is not run again, and the worst come first."""
    samples, portions = normal_samples(chain(), 40), list[list[int]]()
    judge = OutputNoise(fused(chain()), [("x",)], samples)
    each = judge._map

    def noted(function: Any, things: Any) -> Any:
        portions.append([index for index, _ in things])
        return each(function, things)

    monkeypatch.setattr(judge, "_map", noted)
    params = ONE[0]
    whole = judge.noise(("x",), params, DType.INT8)
    assert portions == [list(range(4)), list(range(4, 12)), list(range(12, 28)), list(range(28, 40))]
    portions.clear()
    assert judge.noise(("x",), params, DType.INT8) == whole and not portions
    exact = [chain_of(s["x"], lambda _, a: a) for s in samples]
    quantized = [chain_of(rounded(s["x"], params[0], DType.INT8), lambda _, a: a) for s in samples]
    signal = {name: sum(np.square(e[name]).sum() for e in exact) for name in ("y", "z")}
    shares = [
        sum(np.square(q[n].astype(np.float64) - e[n]).sum() / signal[n] for n in signal)
        for q, e in zip(quantized, exact, strict=True)
    ]
    assert whole == pytest.approx(sum(shares) / 2, rel=1e-3)
    other = [QuantParams((0.3,), 0)]
    assert judge.noise(("x",), other, DType.INT8, limit=1e-9) == math.inf
    assert portions == [sorted(range(40), key=lambda i: -shares[i])[:4]]
    portions.clear()
    judge.noise(("x",), other, DType.INT8)
    assert [len(portion) for portion in portions] == [4, 8, 16, 8]  # the first four are known


# ------------------------------------------------------------------------------------------------- which samples


def profile(*tensors: tuple[Sequence[float], Sequence[float]]) -> Profile:
    made = {f"t{i}": TensorProfile(tuple(low), tuple(high), (1,), ()) for i, (low, high) in enumerate(tensors)}
    return Profile("", len(tensors[0][0]), made)


def stratified(count: int, num_spread: int, given: Profile | None) -> dict[int, float]:
    places, weights = sensitivity._choose_samples(count, num_spread, given)
    assert places == sorted(set(places)) and len(places) == len(weights)
    return dict(zip(places, weights, strict=True))


def test_without_a_profile_samples_are_spread() -> None:
    flat = profile(([0.0] * 30, [1.0] * 30))
    for given, count, num_spread in ((None, 50, 6), (flat, 50, 6), (flat, 30, 30), (flat, 30, 31)):
        places = np.linspace(0, count - 1, min(num_spread, count)).round().astype(int).tolist()
        assert stratified(count, num_spread, given) == dict.fromkeys(places, 1.0)


def test_samples_with_extremes_are_run_and_others_stand_for_more() -> None:
    """Of each tensor the four of the least lows and the four of the greatest highs."""
    random = np.random.default_rng(0)
    lows, highs = -random.uniform(1, 2, (2, 200)), random.uniform(1, 2, (2, 200))
    extreme = {int(i) for ends in (lows, -highs) for row in ends for i in sorted(range(200), key=row.__getitem__)[:4]}
    found = stratified(200, 60, profile(*zip(lows.tolist(), highs.tolist(), strict=True)))
    assert {place for place, weight in found.items() if weight == 1.0} == extreme
    others = [place for place in range(200) if place not in extreme]
    drawn = {others[k] for k in np.linspace(0, len(others) - 1, 60).round().astype(int)}
    assert found.keys() == extreme | drawn
    assert all(found[place] == pytest.approx(len(others) / 60) for place in drawn)
    assert sum(found.values()) == pytest.approx(200)


def test_of_equal_extremes_the_first_samples_count() -> None:
    assert stratified(6, 5, profile(([0.0] * 6, [0.0] * 6))) == dict.fromkeys(range(6), 1.0)
    found = stratified(100, 10, profile(([0.0] * 100, [1.0] * 100)))
    assert [place for place, weight in found.items() if weight == 1.0] == [0, 1, 2, 3]


@pytest.mark.parametrize(("num_spread", "most"), [(10, 10), (70, 64)])
def test_so_many_samples_are_extreme_at_most(num_spread: int, most: int) -> None:
    """Those of the most tensors come first."""
    random, tensors = np.random.default_rng(1), []
    for k in range(40):
        low, high = -random.uniform(1, 2, 500), random.uniform(1, 2, 500)
        low[[3 * k, 3 * k + 1]], high[[3 * k, 3 * k + 1]] = -9, 9
        low[[490, 491]], high[[490, 492]] = -99, 99
        tensors.append((low.tolist(), high.tolist()))
    found = stratified(500, num_spread, profile(*tensors))
    extreme = [place for place, weight in found.items() if weight == 1.0]
    assert len(extreme) == most and {490, 491, 492} <= set(extreme)


def test_weights_of_samples_count_in_noise_and_signal() -> None:
    samples = normal_samples(chain(), 300)
    values = np.stack([s["x"] for s in samples]).reshape(300, -1)
    seen = Profile("", 300, {"x": TensorProfile(tuple(values.min(1)), tuple(values.max(1)), (1,), ())})
    judge = OutputNoise(fused(chain()), [("x",)], samples, seen)
    noise, signal = {"y": 0.0, "z": 0.0}, {"y": 0.0, "z": 0.0}
    for place, weight in zip(judge.places, judge.weights, strict=True):
        x = samples[place]["x"]
        exact, found = (chain_of(a, lambda _, b: b) for a in (x, rounded(x, ONE[0][0], DType.INT8)))
        for name in noise:
            noise[name] += weight * float(np.square(found[name].astype(np.float64) - exact[name]).sum())
            signal[name] += weight * float(np.square(exact[name].astype(np.float64)).sum())
    wanted = sum(noise[name] / signal[name] for name in noise) / 2
    assert judge.noise(("x",), ONE[0], DType.INT8) == pytest.approx(wanted, rel=2e-3)
    assert len(set(judge.weights)) == 2


@pytest.mark.parametrize("most", [0, 10**9])
def test_kept_tensors_change_nothing(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = normal_samples(chain(), 5)
    wanted = OutputNoise(fused(chain()), GROUPS, samples).noise(("y",), ONE[1], DType.INT16)
    monkeypatch.setattr(sensitivity, "MAX_KEPT_SAMPLE_ELEMENTS", most)
    judge = OutputNoise(fused(chain()), GROUPS, samples)
    assert judge.noise(("y",), ONE[1], DType.INT16) == wanted
    assert (judge._kept is None) is (most == 0)


# ------------------------------------------------------------------------------------------------- what is judged


def test_outputs_of_nothing_and_of_integers_are_not_judged() -> None:
    net = Net(17)
    x = net.input("x", 2, 4)
    net.op("Relu", x, out="r")
    net.op("ArgMax", x, out="best", axis=1)
    net.output("r")
    net.output("best", dtype=np.int64)
    assert sensitivity.measured_tensors(fused(net.model())) == ["r"]


@pytest.mark.parametrize(("height", "width", "judged"), [(1, 1, ["x"]), (1, 2, ["y"]), (2, 1, ["y"])])
def test_masks_of_more_than_one_pixel_are_judged_by_themselves(height: int, width: int, judged: list[str]) -> None:
    net = Net(17)
    net.op("Sigmoid", net.input("x", 1, 3, height, width), out="y")
    net.output("y")
    model = fused(net.model())
    assert sensitivity.measured_tensors(model) == judged
    assert sensitivity.saturated_tensors(model) == {"y"}
