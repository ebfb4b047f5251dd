# SPDX-License-Identifier: Apache-2.0
"""Samples and labels that cannot be meant as they are: each is a warning with its figure and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import mcugen
from float_models import conv_net, random_weights
from onnx_models import Net

from mcugen.api.compilation import Compilation
from mcugen.driver.tasks import Judging, Quantizing
from mcugen.hir.types import Array

Arrays = dict[str, Array]


def normal(count: int = 40, seed: int = 0, scale: float = 1.0) -> Array:
    """Samples for `conv_net`."""
    return (np.random.default_rng(seed).standard_normal((count, 3, 8, 8)) * scale).astype(np.float32)


def raw_bytes(count: int = 40, seed: int = 0) -> Array:
    """The same as raw bytes."""
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 8, 8)).astype(np.float32)


def image_net(trained_on: float = 1.0, first: str = "", bias: float = 0.5) -> onnx.ModelProto:
    """A network for images whose first layer expects numbers up to `trained_on`; `first` is an operator before it."""
    net = Net(17)
    x = net.input("x", 1, 3, 8, 8)
    if first == "Div":
        x = net.op("Div", x, net.const(255.0))
    if first == "BatchNormalization":
        norm = [np.ones(3), np.zeros(3), np.full(3, 120.0), np.full(3, 4000.0)]
        x = net.op("BatchNormalization", x, *[net.const(v) for v in norm])
    weights = random_weights(1, 8, 3, 3, 3) / np.float32(trained_on)
    given = [net.const(np.full(8, bias, np.float32))] if bias else []
    y = net.op("Conv", x, net.const(weights), *given, pads=[1, 1, 1, 1], out="conv")
    y = net.op("Flatten", net.op("GlobalAveragePool", net.op("Relu", y)))
    net.output(net.op("Gemm", y, net.const(random_weights(2, 8, 5)), net.const(random_weights(3, 5)), out="y"))
    return net.model()


@dataclass(frozen=True)
class Case:
    """What is given, and what the only warning must say; nothing for data that are well."""

    calibration: Arrays
    data: Arrays | None = None
    model: Callable[[], onnx.ModelProto] = conv_net
    said: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)


def labelled(labels: Array) -> Arrays:
    """Evaluation data of 40 samples."""
    return {"x": normal(seed=1), "labels": labels}


CLASSES = np.arange(40) % 5

FAULTS = {
    "labels too large": Case({"x": normal()}, labelled(CLASSES + 1), said=("8 of 40 labels", "5 classes", "0 to 4")),
    "negative labels": Case({"x": normal()}, labelled(CLASSES - 1), said=("8 of 40 labels are negative",)),
    "other scale": Case({"x": normal(scale=0.01)}, {"x": normal(seed=1)}, said=("% of the elements of 'x'", "range")),
    "bytes instead of shares": Case(
        {"x": raw_bytes() / np.float32(255)},
        {"x": raw_bytes(seed=1)},
        image_net,
        said=("9", "% of the elements of 'x'", "reach from 0 to 255", "0 to 1"),
    ),
    "shares instead of bytes": Case(
        {"x": raw_bytes()},
        {"x": raw_bytes(seed=1) / np.float32(255)},
        lambda: image_net(255),
        said=("cover 0.39 % of the range",),
    ),
    "raw bytes": Case({"x": raw_bytes()}, None, image_net, said=("whole numbers from 0 to 255", "scale=1/255")),
    "raw bytes without bias": Case({"x": raw_bytes()}, None, lambda: image_net(bias=0), said=("raw bytes",)),
    "repeated": Case(
        {"x": normal()[np.arange(40) // 2]}, said=("20 of 40 calibration samples are duplicates", "differ")
    ),
    "constant": Case(
        {"x": np.concatenate([normal(30), np.ones((10, 3, 8, 8), np.float32) * np.arange(10)[:, None, None, None]])},
        said=("10 of 40 calibration samples are constant", "recorded"),
    ),
}

WELL = {
    "usual": Case({"x": normal()}, labelled(CLASSES)),
    "one sample": Case({"x": normal(1)}, {"x": normal(seed=1)}),
    "one evaluation sample that is quiet": Case({"x": normal()}, {"x": normal(1, 1, 0.001)}),
    "a little wider": Case({"x": normal()}, {"x": normal(seed=1, scale=1.2)}),
    "some extremes": Case({"x": normal()}, {"x": np.concatenate([normal(39, 1), normal(1, 2, 100)])}),
    "no labels at all": Case({"x": normal()}, labelled(-np.ones(40, np.int64))),
    "bytes that a network expects": Case({"x": raw_bytes()}, None, lambda: image_net(255)),
    "bytes that Div scales": Case({"x": raw_bytes()}, None, lambda: image_net(first="Div", bias=0)),
    "bytes that are normalized": Case({"x": raw_bytes()}, None, lambda: image_net(first="BatchNormalization")),
    "bytes that are scaled": Case({"x": raw_bytes()}, None, image_net, options={"preprocess": "scale=1/255"}),
    "few levels": Case({"x": raw_bytes() % 8}, None, image_net),
}


def warnings_of(case: Case) -> tuple[str, ...]:
    """The warnings of quantization."""
    quantizing = Quantizing(calibration=case.calibration, **case.options)
    net = Compilation(case.model(), quantizing=quantizing, judging=Judging(data=case.data))
    return net.quantized.warnings


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_one_warning(name: str) -> None:
    (warning,) = warnings_of(FAULTS[name])
    assert all(part in warning for part in FAULTS[name].said), warning
    assert "; " in warning  # what to do


@pytest.mark.parametrize("name", WELL)
def test_there_is_no_false_alarm(name: str) -> None:
    assert warnings_of(WELL[name]) == ()


def test_labels_say_which_scale_is_right() -> None:
    """A network without biases classifies bytes and shares of 1 alike: then nothing is wrong with bytes."""
    weights = random_weights(1, 64, 4)
    weights -= weights.mean(0)
    net = Net(17)
    net.output(net.op("MatMul", net.input("x", 1, 64), net.const(weights), out="y"))
    samples = raw_bytes().reshape(40, -1)[:, :64]
    classes = (samples @ weights).argmax(1)
    assert len(set(classes)) > 1
    (warning,) = warnings_of(Case({"x": samples}, None, net.model))
    assert "raw bytes" in warning
    assert warnings_of(Case({"x": samples, "labels": classes}, None, net.model)) == ()


def test_an_input_that_never_changes_is_told() -> None:
    net = Net(17)
    x, other = net.input("x", 1, 8), net.input("other", 1, 8)
    y = net.op("Add", net.op("MatMul", x, net.const(random_weights(1, 8, 8))), other)
    net.output(net.op("MatMul", y, net.const(random_weights(2, 8, 4)), out="y"))
    random = np.random.default_rng(0)
    changing = random.standard_normal((20, 8)).astype(np.float32)
    (warning,) = warnings_of(Case({"x": changing, "other": np.repeat(changing[:1], 20, 0)}, None, net.model))
    assert "'other' is the same in all 20" in warning and "--bind" in warning
    assert warnings_of(Case({"x": changing, "other": changing[::-1].copy()}, None, net.model)) == ()


@pytest.mark.parametrize("command", ["compile", "report", "quantize"])
def test_commands_warn_even_if_quiet(command: str, tmp_path: Path) -> None:
    onnx.save(conv_net(), tmp_path / "net.onnx")
    np.savez(tmp_path / "calibration.npz", x=normal(scale=0.01))
    np.savez(tmp_path / "data.npz", x=normal(4, seed=1), labels=np.array([0, 1, 2, 9]))
    given = [tmp_path / "net.onnx", "--calibration", tmp_path / "calibration.npz", "--data", tmp_path / "data.npz"]
    board = [] if command == "quantize" else ["-b", "host", "--json", "-"]
    target = {"compile": ["-o", tmp_path / "out"], "quantize": ["-o", tmp_path / "q.onnx"], "report": []}[command]
    done = mcugen(command, *given, *board, *target, "--quiet")
    lines = [line for line in done.err.splitlines() if line.strip()]
    assert done.code == 0
    assert len(lines) == 2 and all(line.startswith("warning: ") for line in lines), lines
    if board:
        assert [f"warning: {text}" for text in json.loads(done.out)["warnings"]] == lines


def test_a_model_that_came_quantized_is_asked_for_its_range() -> None:
    net = Net(17)
    x = net.dequantize(net.quantize(net.input("x", 1, 16), 1 / 127, 0), 1 / 127, 0)
    net.output(net.op("Relu", x, out="y"))
    samples = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    for scale, count in ((30.0, 1), (0.3, 0)):
        report = Compilation(net.model()).report({"x": samples * np.float32(scale)})
        assert len(report.warnings) == count, report.warnings
