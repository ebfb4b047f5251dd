# SPDX-License-Identifier: Apache-2.0
"""What the command line does, from Python."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import mcugen
from onnx_models import Net

from mcugen.api.compilation import Compilation
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.driver.tasks import Judging, Quantizing
from mcugen.quantization.estimate import estimate_loss
from mcugen.quantization.quantize import Quantization
from mcugen.quantization.samples import Sample

DIGITS = Path(__file__).parents[2] / "examples" / "digits"
MODEL, CALIBRATION, EVAL = (DIGITS / name for name in ("digits_f32.onnx", "calibration.npz", "eval.npz"))


def arrays(path: Path, count: int) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: array[:count] for name, array in file.items()}


def test_three_lines_do_what_the_command_line_does(tmp_path: Path):
    samples = tmp_path / "few.npz"
    np.savez(samples, **arrays(EVAL, 40))
    net = Compilation(MODEL, quantizing=Quantizing(calibration=CALIBRATION))
    folder, report = net.write(tmp_path / "python"), net.report(samples)
    options = ["--calibration", CALIBRATION, "--board", "host", "--quiet"]
    assert mcugen("compile", MODEL, *options, "-o", tmp_path / "shell").code == 0
    done = mcugen("report", MODEL, *options, "--data", samples, "--json", "-")
    written = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert written == {path.name: path.read_bytes() for path in (tmp_path / "shell").iterdir()}
    assert json.loads(done.out)["accuracy"] == json.loads(json.dumps(report.to_json()))["accuracy"]


def test_what_learned_nothing_is_judged_once(monkeypatch: pytest.MonkeyPatch):
    judged: list[Quantization] = []

    def counted(quantized: Quantization, samples: Sequence[Sample], kind: str) -> Quantization:
        judged.append(quantized)
        return estimate_loss(quantized, samples, kind)

    monkeypatch.setattr("mcugen.api.compilation.estimate_loss", counted)
    net = Compilation(MODEL, quantizing=Quantizing(calibration=CALIBRATION, finetune=1))
    assert net.quantized.estimate is not None and len(judged) == 1
    assert [note for note in net.quantized.notes if note.startswith("not fine-tuned: ")]


def test_samples_may_be_arrays():
    few = arrays(EVAL, 8)
    by_arrays = Compilation(MODEL, quantizing=Quantizing(calibration=arrays(CALIBRATION, 64)), judging=Judging(few))
    scores = by_arrays.run({"image": few["image"]})["scores"]
    assert (scores.reshape(8, -1).argmax(1) == few["labels"]).mean() >= 0.75
    assert by_arrays.report().accuracy is not None
    with pytest.raises(UsageError, match="there must be an array 'image'"):
        by_arrays.run({"picture": few["image"]})


def test_without_data_the_first_sample_that_calibrated_is_run():
    """A random one is unlike all that ranges were taken from: its input alone would be clipped by a third."""
    given = arrays(CALIBRATION, 64)
    report = Compilation(MODEL, quantizing=Quantizing(calibration=given)).report()
    by_itself = Compilation(MODEL, quantizing=Quantizing(calibration=given), judging=Judging(arrays(CALIBRATION, 1)))
    assert report.accuracy is not None and report.accuracy.samples == 1
    assert report.accuracy.sqnr_db == by_itself.report().accuracy.sqnr_db
    assert [note for note in report.notes if "a sample of --calibration" in note]
    assert not Compilation(MODEL).report().notes


def test_a_model_as_it_is_needs_no_samples():
    net = Compilation(MODEL, options=CompileOptions(name="plain"))
    assert net.compiled.bundle.name == "plain"
    with pytest.raises(UsageError, match="quantization needs samples"):
        _ = net.quantized


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"precision": "int7"}, "--precision must be known"),
        ({"precision": "int8"}, "quantization needs samples"),
        ({"precision": "float32", "profile": "p.json"}, "samples are for quantization"),
        ({"layers": {"y": "int16"}}, "samples are for quantization"),
    ],
)
def test_contradictions(given: dict[str, object], message: str):
    with pytest.raises(UsageError, match=message):
        Quantizing(**given)  # type: ignore[arg-type]


def _of_nothing() -> Net:
    """An input that holds nothing is no argument of C."""
    net = Net()
    net.output(net.op("Concat", net.input("x", 2, 3), net.input("none", 0, 3), axis=0))
    return net


def _of_constants() -> Net:
    net = Net()
    net.output(net.op("Identity", net.const([0.25, 0.75])))
    return net


@pytest.mark.parametrize("net", [_of_nothing(), _of_constants()], ids=["an input without elements", "no input"])
def test_there_may_be_nothing_to_give(net: Net, tmp_path: Path):
    onnx.save(net.model(), tmp_path / "net.onnx")
    accuracy = Compilation(tmp_path / "net.onnx").report().accuracy
    assert accuracy is not None and accuracy.max_abs_error == 0


@pytest.mark.parametrize(("value", "told"), [(np.nan, ["constants hold NaN, so results may be NaN too"]), (np.inf, [])])
def test_weights_that_are_no_numbers_are_told(value: float, told: list[str]):
    net = Net()
    net.output(net.op("Mul", net.input("x", 2), net.const([1.0, value], name="w")))
    notes = compile_model(net.model()).report.notes
    assert [note.partition(":")[0] for note in notes] == told
