# SPDX-License-Identifier: Apache-2.0
"""Heads that remember samples: what other libraries make of the same samples, errors that keep the state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from compilers import assert_accepted
from device import DIVERGED, OK, RATE, TARGET, Device
from onnx_models import Net
from sklearn.neighbors import KNeighborsClassifier
from test_training import convolutional

from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions, Training
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.types import Array

RNG = np.random.default_rng(11)
W, B = RNG.normal(0, 0.5, (6, 4)).astype(np.float32), RNG.normal(size=4).astype(np.float32)


def embedding() -> onnx.ModelProto:
    """A layer of four outputs."""
    net = Net()
    net.input("x", 1, 6)
    net.output(net.op("Gemm", "x", net.const(W), net.const(B)))
    return net.model()


def remembering(head: str) -> CompiledModel:
    return compile_model(embedding(), "host", CompileOptions(training=Training(head)))


def samples(count: int) -> Array:
    """Around one of three places in turn."""
    places = np.random.default_rng(3).normal(0, 2, (3, 6))
    return (places[np.arange(count) % 3] + RNG.normal(0, 0.7, (count, 6))).astype(np.float32)


def vectors(x: Array) -> Array:
    """What the model makes of them."""
    return x.astype(np.float64) @ W + B


def shown(head: str, folder: Path, x: Array, labels: Array, rate: float = 1e-9) -> Device:
    """A device that has seen samples."""
    device = Device(remembering(head), folder)
    for sample, label in zip(x, labels, strict=True):
        assert device.train(sample[None], int(label), rate)[0] == OK
    return device


def test_centroids_are_means(tmp_path: Path) -> None:
    x, new = samples(50), samples(9)
    labels = RNG.integers(0, 3, 50)
    device = shown("centroids:4", tmp_path, x, labels)
    means = np.stack([vectors(x)[labels == label].mean(0) for label in range(3)])
    np.testing.assert_allclose(device.learned("centroids")[:3], means, atol=1e-4)
    for sample in new:
        distances = ((vectors(sample[None]) - means) ** 2).sum(1)
        scores = device.run(sample[None])[0]
        np.testing.assert_allclose(-scores[:3], distances, rtol=1e-3, atol=1e-3)
        assert scores[3] < -1e38
        assert device.loss(sample[None], 1)[1] == pytest.approx(distances[1], rel=1e-3, abs=1e-3)


def test_centroids_follow_what_drifts(tmp_path: Path) -> None:
    x = samples(60)
    device = shown("centroids:1", tmp_path, x, np.zeros(60), rate=0.5)
    mean = vectors(x)[0]
    for vector in vectors(x)[1:]:
        mean += 0.5 * (vector - mean)
    np.testing.assert_allclose(device.learned("centroids")[0], mean, atol=1e-4)


@pytest.mark.parametrize("near", [1, 3])
def test_the_nearest_are_those_of_scikit_learn(tmp_path: Path, near: int) -> None:
    x, labels, new = samples(30), np.arange(30) % 3, samples(12)
    device = shown(f"nearest:3:20:{near}", tmp_path, x, labels)
    kept = KNeighborsClassifier(near).fit(vectors(x)[-20:], labels[-20:])
    found = np.concatenate([device.run(sample[None]) for sample in new])
    np.testing.assert_allclose(found, kept.predict_proba(vectors(new)), atol=1e-6)


def test_samples_that_are_not_there_have_no_vote(tmp_path: Path) -> None:
    x = samples(1)
    device = shown("nearest:3:5:3", tmp_path, x, np.asarray([2]))
    np.testing.assert_allclose(device.run(x)[0], [0, 0, 1 / 3], atol=1e-6)


def test_statistics_are_mean_and_covariance(tmp_path: Path) -> None:
    x, new = samples(200), samples(6)
    device = shown("statistics", tmp_path, x, np.zeros(200))
    mean, spread = vectors(x).mean(0), np.cov(vectors(x).T, bias=True) + np.eye(4) / 200
    np.testing.assert_allclose(device.learned("mean")[0], mean, atol=1e-4)
    for sample in new:
        away = vectors(sample[None])[0] - mean
        assert device.run(sample[None])[0] == pytest.approx(away @ np.linalg.solve(spread, away), rel=1e-2)


def test_a_prior_says_how_much_is_normal_at_first(tmp_path: Path) -> None:
    device, x = Device(remembering("statistics:4"), tmp_path), samples(1)
    assert device.run(x)[0] == pytest.approx((vectors(x) ** 2).sum() / 4, rel=1e-4)


@pytest.mark.parametrize("head", ["centroids:3", "nearest:3:4", "statistics"])
@pytest.mark.parametrize(
    ("x", "target", "rate", "status"),
    [
        (1.0, 3, 0.1, TARGET),
        (1.0, 0, -1.0, RATE),
        (np.nan, 0, 0.1, DIVERGED),
        (np.inf, 0, 0.1, DIVERGED),
        (1, 0, 0, OK),
    ],
)
def test_what_cannot_be_learned_keeps_the_state(
    tmp_path: Path, head: str, x: float, target: int, rate: float, status: int
) -> None:
    device = Device(remembering(head), tmp_path)
    before = device.state.copy()
    assert device.train(np.full((1, 6), x, np.float32), target, rate)[0] == status
    np.testing.assert_array_equal(device.state, before)


@pytest.mark.spread(2)
@pytest.mark.qemu
@pytest.mark.parametrize("board", ["host", "rp2040", "corstone300"])
def test_boards_remember_what_the_reference_does(tmp_path: Path, board: str) -> None:
    for head in ("centroids:3", "nearest:3:4:2", "statistics"):
        model = compile_model(embedding(), board, CompileOptions(training=Training(head)))
        asked = [{"x": sample[None], **told} for sample, told in zip(samples(8), _told(head), strict=True)]
        for here, there in zip(model.simulate(asked, measure=False).outputs, model.reference(asked), strict=True):
            for name in here:
                np.testing.assert_allclose(here[name], there[name], rtol=1e-3, atol=1e-4)
        if board == "host":
            folder = model.write(tmp_path / head.partition(":")[0])
            assert_accepted(folder, *(file.name for file in folder.glob("*.c")))


def _told(head: str) -> list[dict[str, Array]]:
    """Six lessons, then two samples."""
    classes = 1 if head == "statistics" else 3
    taught = [{"target": np.asarray([i % classes], np.int32), "rate": np.full(1, 0.01, np.float32)} for i in range(6)]
    return [*taught, {}, {}]


@pytest.mark.parametrize("head", ["centroids:0", "nearest:3:0", "nearest:3:4:5", "statistics:0"])
def test_numbers_that_make_no_sense_are_refused(head: str) -> None:
    with pytest.raises(UsageError, match="--train"):
        remembering(head)


@pytest.mark.parametrize("head", ["centroids:3", "statistics", "statistics@t0", "centroids:3@t0"])
def test_a_head_has_its_own_way_to_learn(head: str) -> None:
    with pytest.raises(UsageError, match="has its own way to learn"):
        compile_model(embedding(), "host", CompileOptions(training=Training(head, "mse")))
    assert Training(head).describe() == f"remembers {head}"


@pytest.mark.parametrize("quantized", [False, True])
def test_a_head_may_stand_behind_a_layer_before_the_last(tmp_path: Path, quantized: bool) -> None:
    model = convolutional(quantized)
    mean = next(node.output[0] for node in model.graph.node if node.op_type == "GlobalAveragePool")
    compiled = compile_model(model, "host", CompileOptions(training=Training(f"centroids:3@{mean}")))
    assert [e.shape for e in compiled.program.states if e.name.endswith("centroids")] == [(3, 6)]
    assert "dense" not in {node.op.name for node in compiled.graph.nodes}
    assert quantized == any(node.input(0).type.dtype.value == "int8" for node in compiled.graph.nodes)
    device, x = Device(compiled, tmp_path), RNG.normal(size=(1, 2, 8, 8)).astype(np.float32)
    assert device.train(x, 2, 1.0)[0] == OK
    assert device.run(x)[0].argmax() == 2 and device.run(x)[0, 2] == pytest.approx(0, abs=1e-3)


def test_a_layer_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="--train: the layer before a head must name a layer of the model"):
        remembering("centroids:3@nothing")
