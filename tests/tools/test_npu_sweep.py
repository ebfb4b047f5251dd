# SPDX-License-Identifier: Apache-2.0
"""The sweep over boards with an NPU: no program gets slower, on a representative part of the models."""

from __future__ import annotations

import npu_sweep
import pytest
from npu_sweep import Row, measured_row, merged_table, model_paths

from mcugen.backends.npu.ethos_u import vela

needs_vela = pytest.mark.skipif(not vela.is_installed(), reason="needs ethos-u-vela (pip install 'mcugen[ethos-u]')")

SWEPT = [
    ("ds_cnn_kws_int8.tflite", "corstone300", 8),
    ("ds_cnn_kws_int8.tflite", "alif_e7", 8),
    ("tflm_hello_world_int8.tflite", "corstone300", 1),
    ("tflm_mnist_lstm_int8.tflite", "ra8p1", 1),
    ("autoencoder_ad_int8_qdq.onnx", "corstone300", 1),
    ("esp_tcn_stream.onnx", "alif_e7", 1.2),
    ("deeploy_tinyvit.onnx", "ra8p1", 1.2),
]
"""Model, board and the least ratio of the cycles without and with the NPU."""


@needs_vela
@pytest.mark.shared
@pytest.mark.parametrize(("name", "board", "ratio"), SWEPT)
def test_programs_with_the_npu_are_not_slower(name: str, board: str, ratio: float):
    (path,) = model_paths([name])
    row = measured_row(path, board)
    assert not row.failure and not row.is_slower
    assert row.cpu_cycles >= ratio * row.mixed_cycles
    assert row.offloaded <= row.layers and (row.segments > 0) == (row.offloaded > 0)


def test_a_failure_is_a_row(tmp_path):
    path = tmp_path / "broken.tflite"
    path.write_bytes(b"no model")
    row = measured_row(path, "corstone300")
    assert row.failure and row.cells()[-1] == row.failure
    assert len(row.cells()) == len(npu_sweep.HEADINGS)


def test_rows_replace_those_of_the_same_model_and_board(tmp_path, monkeypatch: pytest.MonkeyPatch):
    document = tmp_path / "npu.md"
    monkeypatch.setattr(npu_sweep, "DOCUMENT", document)
    first, second = Row("a", "x", 10, 5, 1, 2, 3), Row("b", "x", 10, 10)
    document.write_text("<!-- npu-sweep:begin -->\n<!-- npu-sweep:end -->\n")
    table = merged_table([second.cells(), first.cells()])
    assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == ["| a", "| b"]
    document.write_text(f"<!-- npu-sweep:begin -->\n{table}\n<!-- npu-sweep:end -->\n")
    changed = merged_table([Row("a", "x", 20, 5, 1, 2, 3).cells()])
    assert "| 4.0 |" in changed and "| 2.0 |" not in changed and "| b | x |" in changed
