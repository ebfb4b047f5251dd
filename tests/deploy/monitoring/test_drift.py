# SPDX-License-Identifier: Apache-2.0
"""Drift of inputs in the field: each kind is named, and samples without drift give no alarm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from onnx_models import Net
from shared_models import MODELS, SHARED, dataset

from mcugen.api.compilation import Compilation
from mcugen.codegen.monitor import Monitor, MonitoredTensor
from mcugen.core.options import CompileOptions
from mcugen.deploy.monitoring.drift import SnapshotDrift, Thresholds, compare_snapshot
from mcugen.deploy.monitoring.snapshots import MonitoredModel, Snapshot
from mcugen.driver.tasks import Judging
from mcugen.hir.types import DType
from mcugen.measurement.observations import Gauge, Observation, codes_of

RUNS = 100
"""Number of runs of a snapshot."""
Change = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""A function that changes real samples of an input, of shape (runs, ...)."""


def observed(tensor: MonitoredTensor, runs: np.ndarray) -> Observation:
    """Return the observation of stored samples, one for each run."""
    gauge = Gauge(tensor.center, tensor.edges, tensor.clip_low, tensor.clip_high, tensor.elements)
    codes = codes_of(runs, DType(tensor.dtype), tensor.unit)
    seen = [gauge.observe(sample, run) for run, sample in enumerate(codes)]
    return Observation(
        sum(one.squares for one in seen),
        tuple(map(sum, zip(*(one.sums for one in seen), strict=True))),
        sum(one.steps for one in seen),
        sum(one.count for one in seen),
        sum(one.clipped for one in seen),
        min(one.low for one in seen),
        max(one.high for one in seen),
        tuple(map(sum, zip(*(one.bins for one in seen), strict=True))),
    )


def drift_of(monitor: Monitor, inputs: dict[str, np.ndarray]) -> SnapshotDrift:
    """Return the drift of stored samples of all inputs, without the outputs."""
    tensors = tuple(tensor for tensor in monitor.tensors if tensor.is_input)
    model = MonitoredModel("net", "", replace(monitor, tensors=tensors, outputs=()))
    seen = tuple(observed(tensor, inputs[tensor.name]) for tensor in tensors)
    return compare_snapshot(Snapshot("s", model, 0, 0, 1, 1, RUNS, 0, 0, 0, 0, seen, (), ()), Thresholds())


MIN_DIVIDED = 60
"""Fewer samples of a model are not divided: they are the reference, and resamplings are of all of them."""


@cache
def monitored(model: str) -> tuple[Monitor, np.ndarray, MonitoredTensor]:
    """Return the monitor of a shared model with one half of its data as reference, and the other half as reals."""
    if not SHARED.is_dir():
        pytest.skip("needs ../shared")
    scale = 1 / 255 if "vww" in model else 1.0
    net = Compilation(MODELS / f"{model}.onnx", "nrf52840", CompileOptions("net"), judging=Judging(pixel_scale=scale))
    program = net.compiled.program
    endpoint = program.inputs[0]
    samples = [net.samples(dataset(model, split), program.inputs).inputs for split in ("calib", "eval")]
    arrays = np.stack([sample[endpoint.name] for part in samples for sample in part])
    if endpoint.quant is not None and arrays.dtype.kind != "f":
        arrays = (arrays.astype(np.float32) - endpoint.quant.zero_point) * endpoint.quant.scale[0]
    mixed = np.random.default_rng(1).permutation(len(arrays))
    known, field = (arrays[mixed[::2]], arrays[mixed[1::2]]) if len(arrays) > MIN_DIVIDED else (arrays, arrays)
    watched = Compilation(
        MODELS / f"{model}.onnx",
        "nrf52840",
        replace(CompileOptions("net"), monitor=True),
        judging=Judging(data={endpoint.name: known}),
    )
    monitor = watched.compiled.report.monitor
    assert monitor is not None
    return monitor, field, next(tensor for tensor in monitor.tensors if tensor.is_input)


def stored(tensor: MonitoredTensor, reals: np.ndarray) -> np.ndarray:
    """Return reals as the firmware stores them in the input."""
    dtype = DType(tensor.dtype)
    if dtype is DType.FLOAT32:
        return reals.astype(np.float32)
    return np.clip(np.rint(reals / tensor.scale) + tensor.zero_point, *dtype.limits).astype(dtype.numpy)


DRIFTS: dict[str, tuple[Change, str]] = {
    "brighter": (lambda x, r: x + 0.6 * x.std(), "shifted by +"),
    "darker": (lambda x, r: x - 0.6 * x.std(), "shifted by -"),
    "weaker": (lambda x, r: 0.6 * x, "scaled by 0."),
    "noise": (lambda x, r: x + r.normal(0, 0.5 * x.std(), x.shape), "noisy"),
    "broken": (lambda x, r: 0 * x + x.mean(), "stuck at one value"),
}
"""Changes of inputs, and what the alarm must begin with."""
WATCHED = (
    "autoencoder_ad_int8_qdq",
    "ds_cnn_kws_int8_qdq",
    "streaming_wakeword_int8_qdq",
    "resnet8_cifar10_int8_qdq",
    pytest.param("mobilenet_v1_025_vww_int8_qdq", marks=pytest.mark.slow),
    "mnist_cntk",
)


ORDERS = {
    "autoencoder_ad_int8_qdq": (-1, "swapped parts 3,2,1,0"),
    "ds_cnn_kws_int8_qdq": (-1, "swapped parts 1,0"),
    "streaming_wakeword_int8_qdq": (2, "swapped parts 3,2,1,0"),
    "resnet8_cifar10_int8_qdq": (2, "swapped parts 2,1,0"),
    "mobilenet_v1_025_vww_int8_qdq": (2, "swapped parts 2,1,0"),
    "mnist_cntk": (-2, "swapped parts 3,2,1,0"),
}
"""Axis of the samples that is reversed, and the name of that, by model: channels, coefficients, rows, time."""


def changed(model: str, kind: str) -> SnapshotDrift:
    """Return the drift of samples of a model after a change."""
    monitor, field, tensor = monitored(model)
    random = np.random.default_rng(2)
    runs = field[np.arange(RUNS) % len(field)]
    if kind in DRIFTS:
        runs = DRIFTS[kind][0](field[random.choice(len(field), RUNS)], random)
    elif kind == "stronger":
        runs = 1.5 * runs
    elif kind == "reversed":
        runs = np.flip(runs, ORDERS[model][0])
    else:
        order = np.random.default_rng(3).permutation(field[0].size)
        runs = runs.reshape(RUNS, -1)[:, order].reshape(runs.shape)
    return drift_of(monitor, {tensor.name: stored(tensor, runs)})


@pytest.mark.parametrize("model", WATCHED)
@pytest.mark.parametrize("kind", DRIFTS)
def test_each_drift_is_named(model: str, kind: str):
    drift = changed(model, kind)
    assert [name.startswith(DRIFTS[kind][1]) for name in drift.tensors[0].names[:1]] == [True], drift.alarms
    assert len(drift.alarms) == 1 and f"input '{drift.tensors[0].name}'" in drift.alarms[0]


@pytest.mark.parametrize("model", WATCHED)
def test_a_gain_is_named_even_if_values_are_clipped(model: str):
    drift = changed(model, "stronger")
    assert [name.startswith("scaled by 1.") for name in drift.tensors[0].names] == [True], drift.alarms


@pytest.mark.parametrize("model", WATCHED)
def test_swapped_channels_and_reversed_signals_are_named(model: str):
    assert changed(model, "reversed").tensors[0].names == (ORDERS[model][1],)


@pytest.mark.parametrize("model", WATCHED)
def test_elements_in_another_order_are_named(model: str):
    assert "another order" in changed(model, "permuted").alarms[0]


def false_alarms(model: str) -> list[tuple[str, ...]]:
    """Return the alarms among 100 resamplings without drift."""
    monitor, field, tensor = monitored(model)
    random = np.random.default_rng(4)
    alarms = [
        drift_of(monitor, {tensor.name: stored(tensor, field[random.choice(len(field), RUNS)])}).alarms
        for _ in range(100)
    ]
    return [found for found in alarms if found]


@pytest.mark.parametrize("model", WATCHED)
def test_resamplings_without_drift_give_no_alarm(model: str):
    assert len(false_alarms(model)) <= 5, false_alarms(model)


def two_inputs() -> Net:
    """Return a network with two inputs of the same shape."""
    net = Net()
    net.output(net.op("Add", net.input("speed", 1, 64), net.input("load", 1, 64)))
    return net


def signals(count: int, seed: int) -> dict[str, np.ndarray]:
    """Return two signals that differ in mean and spread."""
    random = np.random.default_rng(seed)
    walks = random.normal(size=(2, count, 1, 64)).cumsum(-1)
    return {"speed": np.float32(0.3 * walks[0] + 40), "load": np.float32(2.0 * walks[1] - 5)}


def test_swapped_inputs_are_named():
    net = Compilation(
        two_inputs().model(), "host", CompileOptions("net", monitor=True), judging=Judging(data=signals(200, 1))
    )
    monitor = net.compiled.report.monitor
    assert monitor is not None
    now = signals(RUNS, 2)
    assert drift_of(monitor, now).alarms == ()
    drift = drift_of(monitor, {"speed": now["load"], "load": now["speed"]})
    assert {t.name: t.names for t in drift.tensors} == {
        "speed": ("swapped with 'load'",),
        "load": ("swapped with 'speed'",),
    }


def test_few_runs_are_not_compared():
    monitor, field, tensor = monitored("autoencoder_ad_int8_qdq")
    model = MonitoredModel("net", "", replace(monitor, tensors=(tensor,), outputs=()))
    seen = (observed(tensor, stored(tensor, field[:7] * 0)),)
    drift = compare_snapshot(Snapshot("s", model, 0, 0, 1, 1, 7, 2, 0, 1, 3, seen, (), ()), Thresholds())
    assert [alarm.split()[0] for alarm in drift.alarms] == ["1", "3", "2"], "only failures are told"
