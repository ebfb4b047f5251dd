# SPDX-License-Identifier: Apache-2.0
"""The committed example is what its README says: sound models, honest data, good accuracy."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from mcugen.evaluation.session import Session

DIGITS = Path(__file__).parents[1] / "examples" / "digits"
MODELS = ("digits_f32.onnx", "digits_int8.onnx")

PACKAGES = {"torch": "onnxscript", "keras": "onnxscript", "sklearn": "skl2onnx", "xgboost": "onnxmltools"}
PACKAGES["lightgbm"] = "onnxmltools"
"""Package that converts the models of each framework."""


@pytest.mark.parametrize("framework", PACKAGES)
def test_each_front_end_compiles_its_example(framework: str, tmp_path: Path) -> None:
    for package in (framework, PACKAGES[framework]):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    program = str(DIGITS.parent / "front_ends" / "compile_each.py")
    done = subprocess.run(
        [sys.executable, program, str(tmp_path), framework], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{framework}: ")
    assert list((tmp_path / framework).glob("*.h"))


def load(name: str) -> dict[str, np.ndarray]:
    with np.load(DIGITS / name) as arrays:
        return dict(arrays)


def accuracy(model: str) -> float:
    data = load("eval.npz")
    session = Session(onnx.load(DIGITS / model))
    found = [session.run(["scores"], {"image": image[None]})["scores"].argmax() for image in data["image"]]
    return float(np.mean(found == data["labels"]))


def shape(value: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


@pytest.mark.parametrize("name", MODELS)
def test_model_is_valid_and_has_the_documented_interface(name: str) -> None:
    model = onnx.load(DIGITS / name)
    onnx.checker.check_model(model, full_check=True)
    assert [(value.name, shape(value)) for value in model.graph.input] == [("image", [1, 1, 8, 8])]
    assert [(value.name, shape(value)) for value in model.graph.output] == [("scores", [1, 10])]


def test_float_model_leaves_batchnorm_to_the_compiler() -> None:
    ops = [node.op_type for node in onnx.load(DIGITS / "digits_f32.onnx").graph.node]
    assert ops.count("BatchNormalization") == ops.count("Conv") == 7


def test_int8_model_is_quantized_from_input_to_output() -> None:
    graph = onnx.load(DIGITS / "digits_int8.onnx").graph
    made_by = {output: node.op_type for node in graph.node for output in node.output}
    computing = [node for node in graph.node if node.op_type not in ("QuantizeLinear", "DequantizeLinear")]
    assert computing
    assert {made_by[name] for node in computing for name in node.input} == {"DequantizeLinear"}
    assert made_by["scores"] == "DequantizeLinear"


def test_accuracy() -> None:
    float32, int8 = (accuracy(model) for model in MODELS)
    assert float32 >= 0.98
    assert abs(float32 - int8) <= 0.01 + 1e-9


@pytest.mark.parametrize(("name", "samples"), [("calibration.npz", 100), ("eval.npz", 300)])
def test_data_have_the_documented_shape(name: str, samples: int) -> None:
    image = load(name)["image"]
    assert (image.shape, image.dtype) == ((samples, 1, 8, 8), np.float32)
    assert image.min() >= 0
    assert image.max() <= 1


def test_labels() -> None:
    labels = load("eval.npz")["labels"]
    assert (labels.shape, labels.dtype) == ((300,), np.int64)
    assert set(labels) == set(range(10))


def test_calibration_and_evaluation_are_disjoint() -> None:
    calibration, evaluation = (
        {image.tobytes() for image in load(name)["image"]} for name in ("calibration.npz", "eval.npz")
    )
    assert len(calibration) == 100
    assert len(evaluation) == 300
    assert not calibration & evaluation
