# SPDX-License-Identifier: Apache-2.0
"""Outputs that are read as numbers: ranges reach further than the calibration samples, and use all of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from float_models import sqnr
from onnx_models import Net, onnxruntime_outputs

from mcugen.api.compilation import Compilation
from mcugen.core.options import PRECISIONS
from mcugen.driver.tasks import Quantizing
from mcugen.hir.types import Array, DType
from mcugen.quantization.profile import TensorProfile
from mcugen.quantization.ranges import (
    EXPECTED_SAMPLES,
    INT16_HEADROOM,
    MAX_RANGE_GROWTH,
    MIN_EXTRAPOLATION_SAMPLES,
    candidate_ranges,
)
from mcugen.quantization.scheme import Scheme

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "quantization"
MIN_SQNR_DB = {("int8", 100): 28.5, ("int8", 1000): 36.0, ("int16x8", 100): 45.0, ("int16x8", 1000): 45.0}


def network(seed: int, widths: tuple[int, ...], activation: str) -> onnx.ModelProto:
    random = np.random.default_rng(seed)
    net = Net()
    x = net.input("x", 1, widths[0])
    for index, (depth, width) in enumerate(pairwise(widths)):
        weights = net.const(random.standard_normal((depth, width)) / np.sqrt(depth))
        is_last = index == len(widths) - 2
        x = net.op("Gemm", x, weights, net.const(random.standard_normal(width) / 10), out="o" if is_last else "")
        x = x if is_last else net.op(activation, x)
    net.output(x)
    return net.model()


def quantized_db(
    model: onnx.ModelProto, calibration: Array, evaluation: Array, precision: str, method: str = ""
) -> float:
    """Return the SQNR of the quantized model on the evaluation samples, in dB."""
    scheme = Scheme(DType(PRECISIONS[precision]), method=method)
    quantizing = Quantizing(calibration={"x": calibration}, precision=precision, scheme=scheme)
    made = Compilation(model, quantizing=quantizing).quantized
    exact, found = (
        np.concatenate([onnxruntime_outputs(each, {"x": x[None]})["o"] for x in evaluation])
        for each in (model, made.proto)
    )
    return sqnr(exact, found)


NETWORKS = [((8, 32, 1), "Relu"), ((12, 24, 1), "Tanh"), ((6, 32, 32, 2), "Relu"), ((16, 64, 8), "Relu")]


@pytest.mark.parametrize("precision", ["int8", "int16x8"])
@pytest.mark.parametrize(("count", "gain_db"), [(100, 4.0), (1000, 0.5)])
def test_new_samples_are_clipped_less_than_by_their_extremes(count: int, gain_db: float, precision: str):
    """On the average of some networks; the next samples reach further than those that were seen."""
    gains = []
    for seed, (widths, activation) in enumerate(NETWORKS):
        samples = np.random.default_rng(seed).standard_normal((count + 200, widths[0])).astype(np.float32)
        model, split = network(seed, widths, activation), (samples[:count], samples[count:])
        gains.append(quantized_db(model, *split, precision) - quantized_db(model, *split, precision, "minmax"))
    assert np.mean(gains) >= gain_db
    assert min(gains) >= -3.5


@pytest.mark.shared
@pytest.mark.parametrize(("precision", "count"), MIN_SQNR_DB)
def test_the_regression_that_was_clipped(precision: str, count: int):
    if not CASES.exists():
        pytest.skip(f"needs {CASES}")
    model = onnx.load(CASES / "regression.onnx")
    with np.load(CASES / "regression_eval.npz") as file:
        evaluation = file["x"]
    with np.load(CASES / "regression_calib100.npz") as file:
        calibration = file["x"]
    if count > len(calibration):
        calibration = np.random.default_rng(0).standard_normal((count, evaluation.shape[1])).astype(np.float32)
    assert quantized_db(model, calibration, evaluation, precision) >= MIN_SQNR_DB[precision, count]


def profile_of_maxima(maxima: Array) -> TensorProfile:
    return TensorProfile((0.0,) * len(maxima), tuple(map(float, maxima)), (1,) * 2048, ())


@pytest.mark.parametrize("count", [20, 100, 500])
def test_extrapolated_ranges_hold_what_more_samples_reach(count: int):
    """Of exponential maxima, the expected maximum of n is the n-th harmonic number."""
    found = []
    for seed in range(200):
        maxima = np.random.default_rng(seed).exponential(size=count)
        _, high = candidate_ranges(profile_of_maxima(maxima), DType.INT8, Scheme())["extrapolated"]
        assert high >= maxima.max()
        found.append(high)
    expected = (1 / np.arange(1, min(EXPECTED_SAMPLES, MAX_RANGE_GROWTH * count) + 1)).sum()
    assert np.mean(found) == pytest.approx(expected, rel=0.1)


def test_bounds_are_kept_and_int16_has_headroom():
    profile = profile_of_maxima(np.full(100, 6.0))
    assert candidate_ranges(profile, DType.INT8, Scheme())["extrapolated"] == (0.0, 6.0)
    assert candidate_ranges(profile, DType.INT16, Scheme())["extrapolated"] == (0.0, 6.0 * INT16_HEADROOM)
    few = profile_of_maxima(np.arange(1.0, MIN_EXTRAPOLATION_SAMPLES))
    assert candidate_ranges(few, DType.INT8, Scheme())["extrapolated"] == (0.0, MIN_EXTRAPOLATION_SAMPLES - 1.0)


def test_ranges_are_of_all_samples():
    """The extreme sample is one of those that are held out to judge by, wherever it stands."""
    model = network(1, (8, 16, 1), "Relu")
    samples = np.random.default_rng(0).uniform(-1, 1, (40, 8)).astype(np.float32)
    samples[:, 0] = np.linspace(0, 0.1, 40)
    for place in range(40):
        wider = samples.copy()
        wider[place, 1] = 3.0
        made = Compilation(
            model, quantizing=Quantizing(calibration={"x": wider}, scheme=Scheme(method="minmax"))
        ).quantized
        assert made.plan.activations["x"].high >= 3.0
