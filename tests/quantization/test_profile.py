# SPDX-License-Identifier: Apache-2.0
"""Profiles: what ONNX Runtime computed, counted; and profiles as files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from float_models import conv_net, normal_samples, random_weights
from onnx_models import Net, onnxruntime_outputs

from mcugen.core.errors import ModelError, UsageError
from mcugen.frontend.onnx.load import load
from mcugen.hir.types import Array
from mcugen.quantization import profile as profiling
from mcugen.quantization.float_model import FloatModel, all_tensors, build_float_model
from mcugen.quantization.profile import (
    NUM_FOLDS,
    RANGE_HISTOGRAM_BINS,
    Profile,
    TensorProfile,
    fingerprint,
    histogram,
    merge_profiles,
    profile_model,
    profile_notes,
)
from mcugen.quantization.profile_file import read_profile, write_profile
from mcugen.quantization.samples import sort_samples


def fused(model: onnx.ModelProto, equalized: bool = True) -> FloatModel:
    return build_float_model(load(model).proto, "net", equalized=equalized)


def profiled(model: FloatModel, samples: list[dict[str, Array]]) -> Profile:
    return profile_model(model, samples, lambda done, total: None)


def profile_of(*samples: Array) -> TensorProfile:
    """By hand, in the most literal way."""
    low, high = min(float(s.min()) for s in samples), max(float(s.max()) for s in samples)
    counts, _ = np.histogram(
        np.concatenate([s.reshape(-1) for s in samples]).astype(np.float64), RANGE_HISTOGRAM_BINS, (low, high)
    )
    lows, highs = (tuple(float(f(s)) for s in samples) for f in (np.min, np.max))
    return TensorProfile(lows, highs, tuple(counts.tolist()), ())


def test_every_tensor_is_counted_as_onnxruntime_computes_it() -> None:
    model, samples = fused(conv_net()), sort_samples(normal_samples(conv_net(), 5))
    profile = profiled(model, samples)
    assert profile.samples == 5
    assert profile.tensors.keys() == {v.name for v in model.tensors} >= {"x", "relu6", "sum", "scores"}
    seen = [sample | onnxruntime_outputs(all_tensors(model), sample) for sample in samples]
    for name, tensor in profile.tensors.items():
        arrays = [tensors[name] for tensors in seen]
        assert tensor.lows == tuple(float(a.min()) for a in arrays)
        assert tensor.highs == tuple(float(a.max()) for a in arrays)
        assert sum(tensor.histogram) == sum(a.size for a in arrays)
        exact = np.sort(np.concatenate([a.reshape(-1) for a in arrays]))
        below = np.searchsorted(exact, tensor.edges[1:-1])
        assert np.abs(np.cumsum(tensor.histogram)[:-1] - below).max() <= 1  # at an edge, rounding decides
        means = np.mean([a.mean(axis=(0, *range(2, a.ndim)), dtype=np.float64) for a in arrays], axis=0)
        np.testing.assert_allclose(tensor.means, means, rtol=1e-6, atol=1e-9)


def test_progress_tells_both_passes() -> None:
    told: list[tuple[int, int]] = []
    profile_model(fused(conv_net()), normal_samples(conv_net(), 3), lambda done, total: told.append((done, total)))
    assert told == [(n, 6) for n in range(1, 7)]


@pytest.mark.parametrize(("value", "place"), [(np.nan, "'x'"), (np.inf, "'x'"), (1e30, "dense 'MatMul_y': 'y'")])
def test_activations_that_are_not_finite_are_refused(value: float, place: str) -> None:
    """The input, or what a layer makes of it."""
    net = Net()
    net.op("MatMul", net.input("x", 1, 8), net.const(random_weights(1, 8, 8) * 1e15), out="y")
    net.output("y")
    samples = normal_samples(net.model(), 3)
    samples[1]["x"][:] = value
    with pytest.raises(UsageError, match=f"{place} must be finite on every sample.*on sample 1"):
        profiled(fused(net.model()), samples)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_weights_that_are_not_finite_are_blamed_on_the_model(value: float) -> None:
    net, weights = Net(), random_weights(1, 8, 8)
    weights[3, 4] = value
    net.op("MatMul", net.input("x", 1, 8), net.const(weights, name="w"), out="y")
    net.output("y")
    with pytest.raises(
        ModelError, match=r"'y' must be finite to be quantized\. found: NaN or infinity in the constant"
    ):
        profiled(fused(net.model()), normal_samples(net.model(), 3))


def test_what_layers_compute_within_is_counted_too() -> None:
    net = Net()
    x = net.input("x", 3, 1, 4)
    weights = [net.const(random_weights(s, 1, 20, n)) for s, n in ((1, 4), (2, 5))]
    net.ops("LSTM", x, *weights, outs=["y"], hidden_size=5)
    net.output("y")
    model = fused(net.model())
    tensors = profiled(model, normal_samples(net.model(), 4)).tensors
    assert {"y.cell", "y.gates"} <= tensors.keys()
    assert tensors["y.cell"].high > tensors["y"].high > 0


def test_all_elements_equal() -> None:
    counts = histogram(np.full((2, 3), 7.0, np.float32), 7.0, 7.0)
    assert counts[0] == counts.sum() == 6 and len(counts) == RANGE_HISTOGRAM_BINS


def test_merged_profiles_are_those_of_all_data_together() -> None:
    random = np.random.default_rng(0)
    parts = [[random.normal(shift, 1, 4000) for _ in range(3)] for shift in (0.0, 2.0)]
    parts.append([np.full(100, 0.25)] * 3)
    merged = merge_profiles([profile_of(*samples) for samples in parts])
    whole = profile_of(*(np.concatenate(samples) for samples in zip(*parts, strict=True)))
    assert (merged.lows, merged.highs) == (whole.lows, whole.highs)
    assert sum(merged.histogram) == sum(whole.histogram)
    apart = np.abs(np.cumsum(merged.histogram) - np.cumsum(whole.histogram)).max()
    assert apart <= max(sorted(whole.histogram)[-2], 30)  # the elements of a bin or two have moved
    assert merge_profiles([whole]) is whole
    doubled = merge_profiles([whole, whole])
    assert doubled.histogram == tuple(2 * n for n in whole.histogram)


def test_folds_are_profiles_of_their_samples() -> None:
    """In the bins of all samples, of which each reaches to the end of its outermost ones."""
    model, samples = fused(conv_net()), sort_samples(normal_samples(conv_net(), 11))
    whole, parts = profiled(model, samples), [profiled(model, samples[start::NUM_FOLDS]) for start in range(NUM_FOLDS)]
    assert len(whole.folds) == NUM_FOLDS == 2
    for fold, part in zip(whole.folds, parts, strict=True):
        for name, tensor in fold.items():
            width = whole.tensors[name].edges[1] - whole.tensors[name].edges[0]
            wanted = part.tensors[name]
            assert wanted.low - width <= tensor.low <= wanted.low + 1e-6 * width
            assert wanted.high - 1e-6 * width <= tensor.high <= wanted.high + width
            assert len(tensor.lows) == len(wanted.lows) and sum(tensor.histogram) == sum(wanted.histogram)
            assert tensor.edges[1] - tensor.edges[0] == pytest.approx(width, rel=1e-3)
    sums = [sum(sum(fold[name].histogram) for fold in whole.folds) for name in whole.tensors]
    assert sums == [sum(tensor.histogram) for tensor in whole.tensors.values()]
    assert not profiled(model, samples[:9]).folds  # halves of so few say nothing


def test_samples_that_are_not_kept_are_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, samples = fused(conv_net()), normal_samples(conv_net(), 12)
    wanted = profiled(model, samples)
    for most in (0, 20_000):
        monkeypatch.setattr(profiling, "MAX_KEPT_PROFILE_ELEMENTS", most)
        assert profiled(model, samples) == wanted


def test_the_fingerprint_is_that_of_weights_and_shapes() -> None:
    model = conv_net()
    changed = conv_net()
    weights = onnx.numpy_helper.to_array(changed.graph.initializer[0]).copy()
    weights.flat[0] += 1
    changed.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weights, changed.graph.initializer[0].name))
    assert fingerprint(fused(model)) == fingerprint(fused(conv_net(opset=21)))
    assert fingerprint(fused(model)) != fingerprint(fused(changed))


@pytest.mark.parametrize(
    ("count", "different", "flat", "notes"),
    [
        (100, 100, 5, []),
        (100, 100, 6, ["6 of 100 calibration samples are constant"]),
        (100, 95, 0, []),
        (100, 94, 0, ["6 of 100 calibration samples are duplicates"]),
        (10, 10, 0, []),
        (9, 9, 0, ["calibrated by 9 samples:"]),
        (1, 1, 1, ["1 of 1 calibration samples are constant", "calibrated by 1 sample:"]),
        (20, 9, 0, ["11 of 20 calibration samples are duplicates", "calibrated by 9 different samples:"]),
        (20, 1, 0, ["19 of 20 calibration samples are duplicates", "calibrated by 1 different sample:"]),
    ],
)
def test_samples_that_say_little_are_told(count: int, different: int, flat: int, notes: list[str]) -> None:
    """Inputs of one number are always constant, and the results do not count."""
    net = Net()
    net.output(net.op("Mul", net.input("x", 1, 8), net.input("factor", 1), out="y"))
    highs = tuple(float(max(i, count - different) + 1) for i in range(count))
    tensor = TensorProfile(highs, highs, (), ())
    x = TensorProfile(tuple(h if i >= count - flat else -1.0 for i, h in enumerate(highs)), highs, (), ())
    found = profile_notes(fused(net.model()), Profile("", count, {"x": x, "factor": tensor, "y": tensor}))
    assert len(found) == len(notes)
    assert all(line.startswith(note) for line, note in zip(found, notes, strict=True))


# ------------------------------------------------------------------------------------------------------- files


@pytest.fixture(scope="module")
def model() -> FloatModel:
    return fused(conv_net())


@pytest.fixture(scope="module")
def profile(model: FloatModel) -> Profile:
    return profiled(model, normal_samples(conv_net(), 3))


def test_a_file_holds_all(tmp_path: Path, model: FloatModel, profile: Profile) -> None:
    write_profile(profile, tmp_path / "profile.json")
    assert read_profile(tmp_path / "profile.json", model) == profile


def test_a_profile_of_another_model_is_refused(tmp_path: Path, profile: Profile) -> None:
    net = Net()
    net.op("MatMul", net.input("x", 1, 8), net.const(random_weights(1, 8, 8)), out="y")
    net.output("y")
    write_profile(profile, tmp_path / "profile.json")
    with pytest.raises(UsageError, match=r"must be of the model to quantize.*run `mcugen profile`"):
        read_profile(tmp_path / "profile.json", fused(net.model()))


def _without_sum(document: dict[str, Any]) -> None:
    del document["tensors"]["sum"]


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "version 9": lambda d: d.update(version=9),
    "no 'sha256'": lambda d: d.update(sha256=1),
    "no count of 'samples'": lambda d: d.update(samples=True),
    "no 'tensors'": lambda d: d.update(tensors=[]),
    "tensor 'x' is no object": lambda d: d["tensors"].update(x=3),
    "tensor 'x' has no 'lows'": lambda d: d["tensors"]["x"].update(lows=[0, "1", 2]),
    "tensor 'x' has no 'highs'": lambda d: d["tensors"]["x"].update(highs=[10**400] * 3),
    "tensor 'x' has no 'means'": lambda d: d["tensors"]["x"].update(means=[float("nan")]),
    "tensor 'x' has not one": lambda d: d["tensors"]["x"].update(lows=[0.0]),
    "lows above highs": lambda d: d["tensors"]["x"].update(lows=[-1e9, 1e9, -1e9]),
    "'histogram' of 2048 counts": lambda d: d["tensors"]["x"].update(histogram=[1, 2]),
    "has no 'histogram'": lambda d: d["tensors"]["x"].update(histogram=[-1] * RANGE_HISTOGRAM_BINS),
    "nothing about tensor 'sum'": _without_sum,
}


@pytest.mark.parametrize("found", DAMAGES)
def test_a_damaged_profile_is_refused(tmp_path: Path, model: FloatModel, profile: Profile, found: str) -> None:
    path = tmp_path / "profile.json"
    write_profile(profile, path)
    document = json.loads(path.read_text())
    DAMAGES[found](document)
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=f"must be a profile.*{found}"):
        read_profile(path, model)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100000, b"9" * 5000])
def test_what_is_no_profile_is_refused(tmp_path: Path, model: FloatModel, content: bytes) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="must be a profile"):
        read_profile(path, model)
    with pytest.raises(UsageError, match=r"must be a profile.*No such file"):
        read_profile(tmp_path / "missing.json", model)


def test_the_edges_of_what_a_profile_may_hold(tmp_path: Path, model: FloatModel, profile: Profile) -> None:
    """The first version; bins of up to 2^53 elements, numbers of float32, one sample, tensors of one number."""
    path = tmp_path / "profile.json"
    write_profile(profile, path)
    document = json.loads(path.read_text())
    assert document["version"] == 1 and len(path.read_text().splitlines()) == len(profile.tensors) + 7
    document["samples"] = 1
    for entry in document["tensors"].values():
        entry.update(lows=[3.0], highs=[3.0], histogram=[2**53] + [0] * (RANGE_HISTOGRAM_BINS - 1))
    document["tensors"]["x"].update(means=[-9.9e38, 3])
    path.write_text(json.dumps(document))
    assert read_profile(path, model).tensors["x"] == TensorProfile(
        (3.0,), (3.0,), (2**53, *[0] * (RANGE_HISTOGRAM_BINS - 1)), (-9.9e38, 3.0)
    )
    x = document["tensors"]["x"]
    for changed in (
        {"histogram": [2**53 + 1] + [0] * (RANGE_HISTOGRAM_BINS - 1)},
        {"histogram": [0] * RANGE_HISTOGRAM_BINS},
        {"histogram": [True] + [0] * (RANGE_HISTOGRAM_BINS - 1)},
        {"means": [-1.1e39]},
        {"means": 3},
        {"highs": [2.9]},
    ):
        path.write_text(json.dumps(document | {"tensors": document["tensors"] | {"x": x | changed}}))
        with pytest.raises(UsageError, match="tensor 'x' has"):
            read_profile(path, model)
    for samples in (0, -1, 1.0):
        path.write_text(json.dumps(document | {"samples": samples}))
        with pytest.raises(UsageError, match="no count of 'samples'"):
            read_profile(path, model)
    rest = {name: tensor for name, tensor in document["tensors"].items() if name not in ("relu", "sum", "pool")}
    path.write_text(json.dumps(document | {"tensors": rest}))
    with pytest.raises(UsageError, match="nothing about tensor 'pool'"):
        read_profile(path, model)
