# SPDX-License-Identifier: Apache-2.0
"""Commands and the Python API take .tflite files wherever they take ONNX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import mcugen
from tflite_models import LiteModel, f32, i8, i32

import mcugen as api


def network() -> bytes:
    """Return a small network of floats for images."""
    random, model = np.random.default_rng(0), LiteModel()
    graph = model.graph
    x = graph.input(1, 8, 8, 3, name="image")
    weights, bias = graph.const(random.normal(size=(8, 3, 3, 3)) / 3), graph.const(random.normal(size=8))
    y, z = graph.tensor(1, 4, 4, 8, name="conv"), graph.tensor(1, 8, name="mean")
    graph.op("CONV_2D", [x, weights, bias], [y], 1, {0: i8(0), 1: i32(2), 2: i32(2), 3: i8(1)})
    graph.op("MEAN", [y, graph.const([1, 2], "int32")], [z], 27, {})
    logits, scores = graph.tensor(1, 4, name="logits"), graph.tensor(1, 4, name="scores")
    graph.op("FULLY_CONNECTED", [z, graph.const(random.normal(size=(4, 8)))], [logits], 8, {})
    graph.op("SOFTMAX", [logits], [scores], 9, {0: f32(1.0)})
    graph.output(scores)
    return model.data()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.tflite").write_bytes(network())
    samples = np.random.default_rng(1).normal(size=(24, 8, 8, 3)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", image=samples)
    return tmp_path


def test_inspect_shows_the_layers(folder: Path):
    done = mcugen("inspect", folder / "net.tflite")
    assert done.code == 0, done.err
    assert all(name in done.out for name in ("image", "conv", "logits", "scores"))


def test_compile_writes_a_folder(folder: Path):
    done = mcugen("compile", folder / "net.tflite", "--board", "rp2040", "-o", folder / "net", "--quiet")
    assert done.code == 0, done.err
    assert (folder / "net" / "net.c").is_file()


def test_quantize_writes_onnx(folder: Path):
    options = ("--calibration", folder / "samples.npz", "-o", folder / "net.onnx")
    done = mcugen("quantize", folder / "net.tflite", *options)
    assert done.code == 0, done.err
    assert any(node.op_type == "QuantizeLinear" for node in onnx.load(folder / "net.onnx").graph.node)


def test_the_api_takes_files_and_bytes(folder: Path):
    sample = np.load(folder / "samples.npz")["image"][:1]
    results = [api.compile(model).run({"image": sample})["scores"] for model in (folder / "net.tflite", network())]
    np.testing.assert_array_equal(*results)


def test_a_damaged_file_is_a_wrong_model(folder: Path):
    (folder / "net.tflite").write_bytes(network()[:200])
    done = mcugen("inspect", folder / "net.tflite")
    assert done.code == 3
    assert "must be a complete TensorFlow Lite model" in done.err


def test_an_unknown_operator_is_not_supported(folder: Path):
    model = LiteModel()
    model.graph.op("CUSTOM", [model.graph.input(2)], [model.graph.tensor(2, name="y")])
    (folder / "net.tflite").write_bytes(model.data())
    done = mcugen("inspect", folder / "net.tflite")
    assert done.code == 4
    assert "operator 0, CUSTOM 'y': operator not supported" in done.err
