# SPDX-License-Identifier: Apache-2.0
"""Advice for a model that quantization costs much is given only where it was tried and helps."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from float_models import random_weights
from onnx_models import Net

from mcugen.api.compilation import Compilation
from mcugen.driver.tasks import Judging, Quantizing
from mcugen.hir.types import Array
from mcugen.quantization.advice import MIN_ADVISED_GAIN_DB, MIN_DOUBLING_GAIN_DB

HELPS, DOES_NOT = "--precision int16x8 gives", "--precision int16x8 does not help"


def two_layers() -> onnx.ModelProto:
    """Two layers on 16 features."""
    net = Net(17)
    y = net.op("Relu", net.op("MatMul", net.input("x", 1, 16), net.const(random_weights(1, 16, 16))))
    net.output(net.op("MatMul", y, net.const(random_weights(2, 16, 3)), out="y"))
    return net.model()


def samples(count: int, seed: int = 0, scale: float = 1.0) -> dict[str, Array]:
    """Normal ones."""
    found = np.random.default_rng(seed).standard_normal((count, 16)) * scale
    return {"x": found.astype(np.float32)}


def notes_of(model: onnx.ModelProto, calibration: dict[str, Array], data: dict[str, Array], precision: str) -> str:
    """All that is told of a quantized model."""
    quantizing = Quantizing(precision, calibration)
    return "\n".join(Compilation(model, quantizing=quantizing, judging=Judging(data=data)).quantized.notes)


@pytest.fixture(autouse=True)
def no_rescue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers stay as they are asked for, so that quantization costs much."""
    monkeypatch.setattr("mcugen.api.compilation.rescue_layers", lambda _maker, wanted, **_: (dict(wanted), [], []))


def test_int16_is_advised_where_it_was_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quantized model is held to be bad below 100 dB here, as few small networks are really bad in int8 alone."""
    monkeypatch.setattr("mcugen.quantization.estimate.DIVERGED_DB", 100.0)
    told = notes_of(two_layers(), samples(40), samples(20, 1, 0.5), "int8")
    gain = re.search(rf"{HELPS} (-?[\d.]+) dB on 16 samples, not (-?[\d.]+)", told)
    assert "quantization costs much" in told and (gain is None) == (DOES_NOT in told), told
    if gain is not None:
        assert float(gain[1]) - float(gain[2]) >= MIN_ADVISED_GAIN_DB - 0.1 and "--precision auto" in told


def test_what_int16_cannot_help_says_so() -> None:
    """Evaluation samples far outside of the calibrated range saturate in any integer type."""
    told = notes_of(two_layers(), samples(40, 0, 0.02), samples(20, 1), "int8")
    assert DOES_NOT in told and HELPS not in told and "--precision float32" in told, told


def test_int16_is_not_advised_to_who_has_it() -> None:
    told = notes_of(two_layers(), samples(40, 0, 0.02), samples(20, 1), "int16x8")
    assert "quantization costs much" in told and "int16x8 gives" not in told and "float32 has no such error" in told


def test_more_samples_are_advised_with_what_they_gave() -> None:
    """One sample of eight tells the range of the evaluation nearly; eight equal ones tell no more than one."""
    growing = {"x": samples(8)["x"] * np.array([0.05] * 7 + [0.5], np.float32)[:, None]}
    told = notes_of(two_layers(), growing, samples(20, 1, 2), "int8")
    equal = notes_of(two_layers(), {"x": samples(1, 0, 0.02)["x"].repeat(8, 0)}, samples(20, 1), "int8")
    given = re.search(r"more samples help: 8 of them give (-?[\d.]+) dB, 4 give (-?[\d.]+)", told)
    assert given is None or float(given[1]) >= float(given[2]) + MIN_DOUBLING_GAIN_DB - 0.1
    assert "quantization costs much" in told and "more samples" not in equal


def test_nothing_is_advised_where_all_is_well() -> None:
    told = notes_of(two_layers(), samples(40), samples(20, 1), "int8")
    assert "int16x8" not in told and "more samples" not in told
