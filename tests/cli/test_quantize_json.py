# SPDX-License-Identifier: Apache-2.0
"""`mcugen quantize --json`: the facts of the text as one JSON object."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import mcugen
from onnx_models import Net


@pytest.fixture
def command(tmp_path: Path) -> tuple[str | Path, ...]:
    """Return the arguments that quantize two dense layers, the second one in float32."""
    random = np.random.default_rng(7)
    net = Net()
    weights = [net.const(random.normal(size=(16, 16)).astype(np.float32)) for _ in range(2)]
    hidden = net.op("Relu", net.op("MatMul", net.input("x", 4, 16), weights[0]))
    net.output(net.op("MatMul", hidden, weights[1]))
    onnx.save(net.model(), tmp_path / "net.onnx")
    np.savez(tmp_path / "samples.npz", x=random.normal(size=(12, 4, 16)).astype(np.float32))
    output = onnx.load(tmp_path / "net.onnx").graph.output[0].name
    return (
        *("quantize", tmp_path / "net.onnx", "--calibration", tmp_path / "samples.npz"),
        *("--layer", f"{output}=float32", "-o", tmp_path / "q.onnx"),
    )


def test_stdout_is_one_object_with_the_facts_of_the_text(command: tuple[str | Path, ...], tmp_path: Path) -> None:
    done = mcugen(*command, "--json", "-")
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    output = onnx.load(tmp_path / "net.onnx").graph.output[0].name
    assert summary["output"] == str(tmp_path / "q.onnx")
    assert summary["output_bytes"] == (tmp_path / "q.onnx").stat().st_size
    assert summary["precision"] == "int8"
    assert summary["description"] in done.err
    others = [layer for layer in summary["layers"] if layer["precision"] != "int8"]
    assert [(layer["name"], layer["precision"]) for layer in others] == [(f"MatMul_{output}", "float32")]
    assert len(summary["layers"]) > 1
    assert others[0]["reason"] in done.err
    assert others[0]["remedy"] in done.err
    assert f"SQNR {summary['estimate']['sqnr_db']:.1f} dB" in done.err
    assert summary["notes"]
    assert len(summary["calibration_sha256"]) == 64


def test_a_file_holds_what_stdout_does(command: tuple[str | Path, ...], tmp_path: Path) -> None:
    printed = mcugen(*command, "--json", "-", "--quiet")
    written = mcugen(*command, "--json", tmp_path / "q.json", "--quiet")
    assert (printed.code, written.code, written.out) == (0, 0, "")
    assert (tmp_path / "q.json").read_text() == printed.out


def test_without_json_stdout_is_empty(command: tuple[str | Path, ...]) -> None:
    done = mcugen(*command)
    assert (done.code, done.out) == (0, "")
