# SPDX-License-Identifier: Apache-2.0
"""Quantization without data: samples of a range, or such as batch normalizations saw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import mcugen
from float_models import random_weights, sqnr
from onnx_models import Net, onnxruntime_outputs

from mcugen.api.compilation import Compilation
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.tasks import Quantizing
from mcugen.frontend.onnx.load import load
from mcugen.hir.types import Array
from mcugen.quantization import synthetic
from mcugen.quantization.quantize import import_float_model
from mcugen.quantization.scheme import Scheme
from mcugen.quantization.synthetic import NUM_SYNTHETIC_SAMPLES, synthetic_samples


def images(seed: int, count: int) -> Array:
    """Smooth, of levels and contrasts of their own: most of 0 to 120."""
    random = np.random.default_rng(seed)
    coarse = random.normal(size=(count, 3, 4, 4)).repeat(4, 2).repeat(4, 3)
    levels = random.uniform(30, 90, (count, 1, 1, 1))
    return (levels + 15 * coarse + random.normal(size=(count, 3, 16, 16))).astype(np.float32)


def without_statistics() -> onnx.ModelProto:
    """Two convolutions, pooling, a dense layer; what the convolutions give are outputs, too."""
    net = Net(17)
    x = net.input("x", 1, 3, 16, 16)
    y = net.op("Conv", x, net.const(random_weights(1, 8, 3, 3, 3)), pads=[1, 1, 1, 1], out="first")
    net.output(y)
    return net.model()


def network(normalized: bool = True) -> onnx.ModelProto:
    """Convolution, batch normalization with the statistics of real images, dense layer."""
    exact = np.concatenate([onnxruntime_outputs(without_statistics(), {"x": x[None]})["first"] for x in images(0, 100)])
    net = Net(17)
    y = net.op(
        "Conv", net.input("x", 1, 3, 16, 16), net.const(random_weights(1, 8, 3, 3, 3)), pads=[1, 1, 1, 1], out="a"
    )
    if normalized:
        known = (np.ones(8), np.linspace(-1, 1, 8), exact.mean((0, 2, 3)), exact.var((0, 2, 3)))
        y = net.op("BatchNormalization", y, *map(net.const, known), out="b")
    y = net.op("Flatten", net.op("GlobalAveragePool", net.op("Relu", y), out="pool"), out="flat")
    net.op("Gemm", y, net.const(random_weights(2, 4, 8)), net.const(random_weights(3, 4)), transB=1, out="y")
    net.output("y")
    return net.model()


def made(model: onnx.ModelProto, wanted: str) -> tuple[Array, str]:
    source = load(model)
    samples, note = synthetic_samples(import_float_model(source, CompileOptions(), Scheme()), source.proto, wanted)
    return np.stack([sample["x"] for sample in samples]), note


def error_db(model: onnx.ModelProto, wanted: str) -> float:
    """Of real images, by a model that was quantized without any."""
    found = Compilation(model, quantizing=Quantizing(synthetic=wanted)).quantized
    samples = [{"x": x[None]} for x in images(1, 30)]
    outputs = ([onnxruntime_outputs(m, s)["y"] for s in samples] for m in (model, found.proto))
    return sqnr(*outputs)


def test_samples_of_a_range_fill_it() -> None:
    samples, note = made(network(), "-3..120")
    assert samples.shape == (NUM_SYNTHETIC_SAMPLES, 1, 3, 16, 16) and samples.dtype == np.float32
    assert samples.min() == pytest.approx(-3) and samples.max() == pytest.approx(120, rel=1e-6)
    assert "without data, by 64 synthetic samples with inputs of -3 to 120" in note
    steps = np.abs(np.diff(samples, axis=-1)).mean((1, 2, 3, 4)) / samples.std((1, 2, 3, 4))
    assert (steps[1::2] < 0.7 * steps[0::2].min()).mean() > 0.9  # every other one is smooth
    assert (made(network(), "-3..120")[0] == samples).all()


def test_samples_have_the_statistics_of_batch_normalizations() -> None:
    """Nearer to real ones than those of a wrong range; and outputs of real images have a smaller error so."""
    samples, note = made(network(), "statistics")
    assert "nearest to those of 1 batch normalization:" in note
    real = images(2, 100)
    found = [onnxruntime_outputs(without_statistics(), {"x": x})["first"] for x in samples]
    wanted = [onnxruntime_outputs(without_statistics(), {"x": x[None]})["first"] for x in real]
    means, deviations = ([f(np.concatenate(a), (0, 2, 3)) for a in (found, wanted)] for f in (np.mean, np.std))
    assert np.abs(means[0] - means[1]).max() < 0.5 * deviations[1].max()
    np.testing.assert_allclose(deviations[0], deviations[1], rtol=0.5)
    assert error_db(network(), "statistics") > max(error_db(network(), "-1..1"), 20)


def test_the_statistics_of_an_input_itself_are_those_of_the_samples() -> None:
    """As of raw columns of a table: no noise of one size has them."""
    mean, deviation = np.linspace(-50, 1000, 6), np.geomspace(0.01, 100, 6)
    net = Net(17)
    norm = map(net.const, (np.ones(6), np.zeros(6), mean, deviation**2))
    y = net.op("BatchNormalization", net.input("x", 1, 6), *norm)
    net.op("Gemm", y, net.const(random_weights(1, 3, 6)), transB=1, out="y")
    net.output("y")
    samples, _ = made(net.model(), "statistics")
    np.testing.assert_allclose((samples.mean((0, 1)) - mean) / deviation, 0, atol=0.2)
    np.testing.assert_allclose(samples.std((0, 1)) / deviation, 1, rtol=0.2)


def test_the_statistics_of_samples_are_those_of_channels() -> None:
    """Means and mean squares in units of what is wanted, for each channel."""
    random = np.random.default_rng(0)
    x = random.normal(3, 2, (2, 4, 5, 3)).astype(np.float32)
    mean, variance = np.array([1.0, 3.0, 3.0, 0.0]), np.array([4.0, 1.0, 0.25, 9.0])
    channels = zip(np.moveaxis(x, 1, 0), mean, variance, strict=True)
    centred = [[(float(e) - m) / v**0.5 for e in channel.ravel()] for channel, m, v in channels]
    wanted = [sum(c) / 30 for c in centred] + [sum(e * e for e in c) / 30 - 1 for c in centred]
    assert synthetic._mean_deviations(x, synthetic._Norm("x", mean, variance)).tolist() == pytest.approx(
        wanted, rel=1e-6
    )
    flat = synthetic._mean_deviations(x[:1, :, 0, 0], synthetic._Norm("x", mean, np.zeros(4)))
    assert (np.abs(flat[:4]) > 1e15).sum() >= 3  # a variance of 0 is taken for the least float32


def test_samples_are_chosen_so_that_their_mean_is_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, each once; of equal ones the first; the wildest are cut."""
    monkeypatch.setattr(synthetic, "NUM_SYNTHETIC_SAMPLES", 4)
    rows = np.random.default_rng(1).normal(0.3, 1, (9, 3))
    rows[2], rows[5] = 1e30, rows[1]
    left, total, wanted = list(range(9)), np.zeros(3), list[int]()
    while len(wanted) < 4:
        best = min(left, key=lambda i: float(((total + rows[i].clip(-1e6, 1e6)) ** 2).sum()))
        left.remove(best)
        total = total + rows[best]
        wanted.append(best)
    assert synthetic._choose_herd(rows) == wanted
    assert sorted(synthetic._choose_herd(np.full((4, 1), 2e6))) == [0, 1, 2, 3]
    assert synthetic._choose_herd(np.array([[1e9], [1e8], [2.0], [-1.0], [3.0], [1e7]]))[:2] == [3, 2]


def test_outputs_of_a_known_range_have_little_error() -> None:
    assert error_db(network(normalized=False), "0..120") > 20


@pytest.mark.parametrize("wanted", ["1..1", "2..1", "nan..1", "0..inf", "0", "0..1..2", "often"])
def test_what_is_no_range_is_refused(wanted: str) -> None:
    with pytest.raises(UsageError, match="--synthetic must be the range of inputs"):
        made(network(), wanted)


def test_what_says_nothing_of_inputs_is_refused() -> None:
    with pytest.raises(UsageError, match=r"a model without any.*LOW..HIGH"):
        made(network(normalized=False), "statistics")
    net = Net(17)
    net.op("Gather", net.const(random_weights(1, 4, 8)), net.input("x", 1, dtype=np.int64), out="y")
    net.output("y")
    with pytest.raises(UsageError, match="'x' of int64"):
        made(net.model(), "0..1")
    with pytest.raises(UsageError, match="leave out --synthetic"):
        Quantizing(synthetic="0..1", calibration="samples.npz")


def test_the_command_tells_that_there_was_no_data(tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "net.onnx")
    done = mcugen("quantize", tmp_path / "net.onnx", "--synthetic", "0..120", "-o", tmp_path / "q.onnx")
    assert done.code == 0 and (tmp_path / "q.onnx").exists(), done.err
    assert "calibrated without data, by 64 synthetic samples" in done.err
    assert "samples that are synthetic" in done.err
    done = mcugen("quantize", tmp_path / "net.onnx", "--synthetic", "1..0", "-o", tmp_path / "r.onnx")
    assert done.code == 2 and not (tmp_path / "r.onnx").exists()
