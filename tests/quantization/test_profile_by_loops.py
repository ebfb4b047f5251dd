# SPDX-License-Identifier: Apache-2.0
"""Profiles against loops over elements, bins and samples."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from float_models import random_weights
from onnx_models import Net
from test_profile import fused

from mcugen.hir.types import Array
from mcugen.quantization import profile as profiling
from mcugen.quantization.profile import (
    RANGE_HISTOGRAM_BINS,
    Profile,
    TensorProfile,
    histogram,
    internal_tensors,
    merge_profiles,
)

Counts = dict[int, int]


def filled(counts: Array) -> Counts:
    return {int(i): int(counts[i]) for i in np.flatnonzero(counts)}


@pytest.mark.parametrize(("low", "high"), [(-1.0, 3.0), (0.0, 1.0), (-5.0, -2.0)])
def test_a_histogram_has_equal_bins(low: float, high: float) -> None:
    width = (high - low) / RANGE_HISTOGRAM_BINS
    values = [low + width * (k + 0.5) for k in (0, 1, 1, 700, 700, 700, RANGE_HISTOGRAM_BINS - 1)] + [low, high]
    found = histogram(np.asarray(values).reshape(3, 3), low, high)
    assert len(found) == RANGE_HISTOGRAM_BINS and filled(found) == {0: 2, 1: 2, 700: 3, RANGE_HISTOGRAM_BINS - 1: 2}


def profile(low: float, high: float, counts: Counts) -> TensorProfile:
    return TensorProfile(
        (low, low + (high - low) / 2),
        (high, high),
        tuple(counts.get(k, 0) for k in range(RANGE_HISTOGRAM_BINS)),
        (1.0,),
    )


def test_merged_profiles_have_the_elements_of_all() -> None:
    """Bins of one are spread over those of all: here each covers two, or four."""
    narrow, wide = (
        profile(0.0, 1.0, {0: 8, 5: 4, RANGE_HISTOGRAM_BINS - 1: 2}),
        profile(-2.0, 2.0, {7: 3, RANGE_HISTOGRAM_BINS - 1: 9}),
    )
    merged = merge_profiles([narrow, wide])
    assert (merged.lows, merged.highs, merged.means) == ((-2.0, 0.0), (2.0, 2.0), ())
    middle = RANGE_HISTOGRAM_BINS // 2
    wanted = {7: 3, RANGE_HISTOGRAM_BINS - 1: 9, middle: 8, middle + 1: 4, middle + RANGE_HISTOGRAM_BINS // 4 - 1: 2}
    assert filled(np.asarray(merged.histogram)) == wanted


def test_bins_that_are_split_keep_all_elements() -> None:
    coarse = TensorProfile((0.0,), (2.0,), (4, 8), ())
    merged = merge_profiles([coarse, TensorProfile((0.0,), (2.0,), (0, 1), ())])
    counts = np.asarray(merged.histogram)
    assert counts.sum() == 13 and counts[: RANGE_HISTOGRAM_BINS // 2].sum() == 4
    edges = [round(4 * k / (RANGE_HISTOGRAM_BINS / 2)) for k in range(RANGE_HISTOGRAM_BINS // 2 + 1)]
    assert counts[: RANGE_HISTOGRAM_BINS // 2].tolist() == np.diff(edges).tolist()


def test_equal_elements_are_merged_into_their_bin() -> None:
    constant = TensorProfile((0.5,), (0.5,), (6, *[0] * (RANGE_HISTOGRAM_BINS - 1)), ())
    merged = merge_profiles(
        [constant, TensorProfile((-1.0,), (1.0,), tuple([1] + [0] * (RANGE_HISTOGRAM_BINS - 1)), ())]
    )
    assert filled(np.asarray(merged.histogram)) == {0: 1, RANGE_HISTOGRAM_BINS * 3 // 4: 6}


@pytest.mark.parametrize("shape", [(5,), (2, 5), (1, 3, 4), (2, 3, 2, 2), ()])
def test_extremes_and_means_of_samples(shape: tuple[int, ...]) -> None:
    random, found = np.random.default_rng(0), profiling._Extremes()
    samples = [random.normal(0, 3, shape).astype(np.float32) for _ in range(4)]
    for sample in samples:
        found.add(sample)
    axis = 1 if len(shape) > 1 else 0
    channels = shape[axis] if shape else 1
    sums, counts = [0.0] * channels, [0] * channels
    for sample in samples:
        for index, element in np.ndenumerate(sample):
            channel = index[axis] if shape else 0
            sums[channel] += float(element)
            counts[channel] += 1
    made = found.profile(np.arange(3))
    assert made.histogram == (0, 1, 2)
    assert made.means == pytest.approx([s / n for s, n in zip(sums, counts, strict=True)], abs=1e-9)
    assert made.lows == tuple(float(s.min()) for s in samples) and made.highs == tuple(float(s.max()) for s in samples)


def test_a_fold_reaches_to_the_ends_of_its_bins() -> None:
    whole = profiling._Extremes([-8.0, -1.0, -3.0, -1.0, -2.0], [4.0, 8.0, 2.0, 7.0, 1.0])
    counts = np.zeros((2, RANGE_HISTOGRAM_BINS), np.int64)
    counts[0, 3], counts[0, 1500], counts[0, 9] = 5, 1, 4
    counts[1, [1000, RANGE_HISTOGRAM_BINS - 1]] = 2, 3
    edge = 16 / RANGE_HISTOGRAM_BINS
    even, odd = (whole.fold(k, counts[k]) for k in (0, 1))
    assert even.lows == (-8 + 3 * edge, -3.0, -2.0) and even.highs == (-8 + 1501 * edge, 2.0, 1.0)
    assert even.histogram == tuple(counts[0, 3:1501].tolist()) and even.means == ()
    assert odd.lows == (-8 + 1000 * edge, -8 + 1000 * edge) and odd.highs == (8.0, 7.0)
    assert sum(odd.histogram) == 5 and len(odd.histogram) == RANGE_HISTOGRAM_BINS - 1000


def test_what_a_profile_tells() -> None:
    tensor = TensorProfile((-1.0, -2.0), (3.0, 2.0), (1, 0, 4, 0), ())
    assert (tensor.low, tensor.high) == (-2.0, 3.0)
    assert tensor.edges.tolist() == [-2.0, -0.75, 0.5, 1.75, 3.0] and tensor.counts.tolist() == [1, 0, 4, 0]
    middles, counts = tensor.filled_bins
    assert middles.tolist() == [-1.375, 1.125] and counts.tolist() == [1.0, 4.0]


@pytest.mark.parametrize(
    ("lows", "highs", "distinct"),
    [
        ((1.0, 1.0, 1.0), (2.0, 2.0, 2.0), 1),
        ((1.0, 0.0, 1.0), (2.0, 2.0, 2.0), 2),
        ((1.0, 1.0, 1.0), (2.0, 3.0, 4.0), 3),
    ],
)
def test_samples_differ_by_an_extreme_of_some_tensor(
    lows: tuple[float, ...], highs: tuple[float, ...], distinct: int
) -> None:
    same = TensorProfile((0.0,) * 3, (1.0,) * 3, (), ())
    assert Profile("", 3, {"a": same, "b": TensorProfile(lows, highs, (), ())}).distinct == distinct
    assert Profile("", 0, {}).distinct == Profile("", 0, {"a": TensorProfile((), (), (), ())}).distinct == 1


# ------------------------------------------------------------------------------------------------- within layers


def recurrent(tail: str) -> onnx.ModelProto:
    """An LSTM of the input, or of what a layer before it makes, with its first states given or not."""
    net = Net(17)
    x = net.input("x", 3, 1, 4)
    if tail == "behind":
        x = net.op("Tanh", x, out="before")
    weights = [net.const(random_weights(s, 1, 20, n)) for s, n in ((1, 4), (2, 5))]
    more = ["", "", net.input("h", 1, 1, 5), net.input("c", 1, 1, 5)] if tail == "states" else []
    net.ops("LSTM", x, *weights, *more, outs=["y"], hidden_size=5)
    net.output("y")
    return net.model()


@pytest.mark.parametrize("tail", ["", "behind", "states"])
def test_tensors_within_layers_do_not_depend_on_what_is_known(tail: str) -> None:
    """Known inputs of the layer are used; where one is missing, all of the model is computed."""
    model, random = fused(recurrent(tail)), np.random.default_rng(0)
    samples = [
        {v.name: random.standard_normal(v.type.shape).astype(np.float32) for v in model.graph.inputs} for _ in range(3)
    ]
    known = [dict(s) for s in samples]
    if tail == "behind":
        for tensors in known:
            tensors["before"] = np.tanh(tensors["x"])
    by_known, by_model = internal_tensors(model, samples, known), internal_tensors(model, samples, [{}] * 3)
    assert len(by_known) == len(by_model) == 3
    for some, others in zip(by_known, by_model, strict=True):
        assert some.keys() == others.keys() and {"y.cell", "y.gates"} <= some.keys()
        for name, array in some.items():
            np.testing.assert_allclose(array, others[name], atol=1e-6)
    flat = [{name: array.reshape(-1) for name, array in tensors.items()} for tensors in known]
    for some, others in zip(internal_tensors(model, samples, flat), by_known, strict=True):
        assert all((some[name] == others[name]).all() for name in others)
