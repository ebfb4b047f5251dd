# SPDX-License-Identifier: Apache-2.0
"""The tool that measures models which nobody tuned for."""

from __future__ import annotations

import numpy as np
import pytest
import zoo
from shared_models import SHARED

MODEL = SHARED / "zoo" / "esp_tcn_stream.onnx"


@pytest.mark.shared
@pytest.mark.qemu
@pytest.mark.skipif(not MODEL.is_file(), reason="../shared/zoo is absent")
def test_a_model_is_measured_as_given_and_quantized():
    rows = {kind: zoo._measured(MODEL, kind, "nrf52840") for kind in ("given", "int8")}
    assert not any(row.failure for row in rows.values())
    assert rows["int8"].arena < rows["given"].arena
    assert all(0 < row.least_arena <= row.arena and row.instructions > row.macs > 0 for row in rows.values())
    assert all(0 <= row.plain < 1 and row.slowest for row in rows.values())


@pytest.mark.shared
@pytest.mark.skipif(not MODEL.is_file(), reason="../shared/zoo is absent")
def test_samples_are_spread_around_the_recorded_ones():
    samples = zoo.spread_samples(MODEL)
    recorded = np.load(MODEL.with_suffix(".io.npz"))
    for index, (name, array) in enumerate(samples.items()):
        assert array.shape == (zoo.SAMPLES, *recorded[f"in0_{index}"].shape), name
        assert len(np.unique(array.reshape(zoo.SAMPLES, -1), axis=0)) == zoo.SAMPLES


def test_a_failure_is_a_row():
    row = zoo.Row("net", "given", "rp2040", failure="too large")
    assert row.cells()[-1] == "too large"
    assert len(row.cells()) == len(zoo.HEADINGS)
