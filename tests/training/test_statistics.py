# SPDX-License-Identifier: Apache-2.0
"""Batch normalization whose running statistics change while a model learns."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from device import OK, Device, Flash
from onnx_models import Net

from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions, Training
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.types import Array
from mcugen.ops.onnx_node import Refusal

EPSILON, MOMENTUM = 0.01, 0.8
PYTHON = Path(__file__).parents[2] / "build" / "train-pytorch" / "bin" / "python"
NORM = ("scale", "shift", "mean", "variance")


def weights() -> dict[str, Array]:
    """Of two pointwise convolutions, each with a normalization, and of a dense layer."""
    rng = np.random.default_rng(11)
    shapes = {"w1": (4, 3), "w2": (5, 4), "b2": (5,), "dense": (3, 5), "bias": (3,)}
    found = {name: rng.normal(0, 0.6, shape) for name, shape in shapes.items()}
    for layer, channels in (("1", 4), ("2", 5)):
        found |= {f"{role}{layer}": rng.normal(0, 0.5, channels) for role in ("shift", "mean")}
        found |= {f"{role}{layer}": rng.uniform(0.5, 2, channels) for role in ("scale", "variance")}
    return {name: a.astype(np.float32) for name, a in found.items()}


def network(given: dict[str, Array], shape: tuple[int, ...] = (1, 3, 4, 5)) -> onnx.ModelProto:
    """Convolution, normalization, ReLU, twice; a mean, scores."""
    net = Net()
    x, kernel = net.input("x", *shape), (1,) * (len(shape) - 2)
    for layer in "12":
        w = given[f"w{layer}"]
        bias = [net.const(given["b2"])] if layer == "2" else []
        x = net.op("Conv", x, net.const(w.reshape(*w.shape, *kernel)), *bias)
        norm = [net.const(given[role + layer]) for role in NORM]
        x = net.op("Relu", net.op("BatchNormalization", x, *norm, epsilon=EPSILON, momentum=MOMENTUM))
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    net.output(net.op("Gemm", x, net.const(given["dense"]), net.const(given["bias"]), transB=1))
    return net.model()


def learning(layers: str, board: str = "host", **asked: str) -> CompiledModel:
    training = Training(layers, statistics="updated", **asked)  # type: ignore[arg-type]
    return compile_model(network(weights()), board, CompileOptions(training=training))


class Reference:
    """In float64: the last two layers and the normalization between them learn."""

    def __init__(self) -> None:
        self.of = {name: a.astype(np.float64) for name, a in weights().items()}

    def _front(self, x: Array) -> Array:
        """What the second convolution gives, of rows of pixels."""
        p = self.of
        rows = x.reshape(3, -1).T.astype(np.float64) @ p["w1"].T
        rows = (rows - p["mean1"]) / np.sqrt(p["variance1"] + EPSILON) * p["scale1"] + p["shift1"]
        self.read = np.maximum(rows, 0)
        return np.asarray(self.read @ p["w2"].T + p["b2"])

    def _end(self, n: Array) -> Array:
        p = self.of
        self.normal = n * p["scale2"] + p["shift2"]
        self.mean = np.maximum(self.normal, 0).mean(0)
        return np.asarray(p["dense"] @ self.mean + p["bias"])

    def run(self, x: Array) -> Array:
        """Scores, by running statistics."""
        p = self.of
        return self._end((self._front(x) - p["mean2"]) / np.sqrt(p["variance2"] + EPSILON))

    def train(self, x: Array, target: int, rate: float) -> None:
        """One step, by those of the sample."""
        p, y = self.of, self._front(x)
        mean, variance = y.mean(0), y.var(0)
        n = (y - mean) / np.sqrt(variance + EPSILON)
        scores = self._end(n)
        error = np.exp(scores - scores.max())
        error = error / error.sum() - (np.arange(3) == target)
        back = np.where(self.normal > 0, p["dense"].T @ error / len(y), 0)
        by_n = back * p["scale2"]
        by_y = (by_n - by_n.mean(0) - n * (by_n * n).mean(0)) / np.sqrt(variance + EPSILON)
        slopes = {"dense": np.outer(error, self.mean), "bias": error, "w2": by_y.T @ self.read}
        slopes |= {"scale2": (back * n).sum(0), "shift2": back.sum(0)}
        for name, slope in slopes.items():
            p[name] = p[name] - rate * slope
        p["mean2"] = MOMENTUM * p["mean2"] + (1 - MOMENTUM) * mean
        p["variance2"] = MOMENTUM * p["variance2"] + (1 - MOMENTUM) * variance


def samples(count: int) -> list[Array]:
    return list(np.random.default_rng(3).normal(0.5, 2, (count, 1, 3, 4, 5)).astype(np.float32))


def test_running_statistics_follow_the_samples_as_numpy_has_it(tmp_path: Path) -> None:
    model, reference = learning("last:2"), Reference()
    device = Device(model, tmp_path)
    for index, x in enumerate(samples(8)):
        np.testing.assert_allclose(device.run(x).ravel(), reference.run(x), rtol=1e-4, atol=1e-5)
        before, scores = reference.run(x), device.loss(x, index % 3)
        expected = np.log(np.exp(before - before.max()).sum()) + before.max() - before[index % 3]
        np.testing.assert_allclose(scores, (OK, expected), rtol=1e-4)
        status, loss = device.train(x, index % 3, 0.1)
        assert status == OK
        np.testing.assert_allclose(loss, expected, rtol=1e-4)
        reference.train(x, index % 3, 0.1)
        for name in ("mean", "variance", "scale"):
            np.testing.assert_allclose(device.learned(f".{name}"), reference.of[f"{name}2"], rtol=1e-4, atol=1e-6)
    names = [e.name for e in model.program.states]
    assert sum(name.endswith(".variance") for name in names) == 1  # that in front of what learns is folded
    assert sum(name.endswith(".bias") for name in names) == 2  # a bias that is normalized away does not learn
    first = weights()
    assert np.abs(reference.of["variance2"] - first["variance2"]).min() > 0.05


def test_statistics_are_stored_forgotten_and_frozen_like_weights(tmp_path: Path) -> None:
    model = learning("last:2")
    assert model.graph.lesson is not None
    everything = [1] * len(model.graph.lesson.layers)
    device, flash = Device(model, tmp_path), Flash(4096)
    x = samples(1)[0]
    first = {role: device.learned(f".{role}").copy() for role in ("mean", "variance")}
    for rate, frozen in ((0.0, None), (0.1, everything)):
        assert device.train(x, 1, rate, frozen)[0] == OK
        for role, before in first.items():
            np.testing.assert_array_equal(device.learned(f".{role}"), before)
    assert device.train(x, 1, 0.1)[0] == OK
    learned = device.learned(".mean").copy()
    assert np.abs(learned - first["mean"]).max() > 0.01
    assert device.store(flash) == OK
    device.reset()
    np.testing.assert_array_equal(device.learned(".mean"), first["mean"])
    assert device.load(flash) == OK
    np.testing.assert_array_equal(device.learned(".mean"), learned)


@pytest.mark.parametrize(
    ("layers", "optimizer", "count"),
    [
        ("last:1,bias:2", "momentum", 1),
        pytest.param("last:3", "adam", 2, marks=pytest.mark.slow),
        pytest.param("bias", "sgd", 2, marks=pytest.mark.slow),
    ],
)
def test_any_layers_learn_between_normalizations(layers: str, optimizer: str, count: int) -> None:
    model = learning(layers, optimizer=optimizer)
    assert sum(e.name.endswith(".mean") for e in model.program.states if e.buffer.count in (4, 5)) >= count
    lesson = model.bundle.lesson
    assert lesson is not None
    more = {"target": np.asarray([1], np.int32), "rate": np.full(lesson.rate.shape, 0.02, np.float32)}
    given = [{"x": samples(1)[0], **more}] * 20
    found = model.simulate(given, measure=False, sanitize=True).outputs
    losses = [float(o["loss"][0]) for o in found]
    assert losses[-1] < 0.9 * losses[0]
    for here, there in zip(found[:4], model.reference(given[:4]), strict=True):
        np.testing.assert_allclose(here["loss"], there["loss"], rtol=1e-3)


def test_statistics_that_cannot_change_are_refused() -> None:
    with pytest.raises(Refusal, match="must stand behind the first trained layer"):
        learning("last:1")
    with pytest.raises(UsageError, match="--train-weights float32, or --statistics frozen"):
        learning("last:2", precision="int8")
    with pytest.raises(UsageError, match="--statistics must be known"):
        compile_model(network(weights()), "host", CompileOptions(training=Training("last:2", statistics="often")))
    with pytest.raises(UsageError, match="leave these options out"):
        learning("centroids:3")
    with pytest.raises(Refusal, match="none of several elements a channel"):
        options = CompileOptions(training=Training("last:2", statistics="updated"))
        compile_model(network(weights(), (1, 3, 1)), "host", options)


@pytest.mark.slow
def test_running_statistics_are_those_of_pytorch(tmp_path: Path) -> None:
    """But for the running variance, of which PyTorch divides by one element less, as ONNX does not."""
    if not PYTHON.exists():
        pytest.skip("needs what `make tutorial` installs")
    given, taught, rate = weights(), samples(8), 0.1
    device = Device(learning("last:2"), tmp_path)
    for index, x in enumerate(taught):
        assert device.train(x, index % 3, rate)[0] == OK
    np.savez(tmp_path / "weights.npz", **given)  # type: ignore[arg-type]
    np.savez(tmp_path / "samples.npz", x=np.stack(taught), epsilon=EPSILON, share=1 - MOMENTUM, rate=rate)
    files = [tmp_path / name for name in ("weights.npz", "samples.npz", "learned.npz")]
    subprocess.run([PYTHON, Path(__file__).parent / "torch_statistics.py", *files], check=True)
    learned = dict(np.load(files[2]))
    kept = MOMENTUM ** len(taught) * given["variance2"]
    learned["variance2"] = kept + (learned["variance2"] - kept) * (1 - 1 / (4 * 5))
    for name, role in {"mean2": ".mean", "variance2": ".variance", "scale2": ".scale"}.items():
        np.testing.assert_allclose(device.learned(role), learned[name], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(device.learned(".weights").reshape(5, 4), learned["w2"], rtol=1e-4, atol=1e-5)
