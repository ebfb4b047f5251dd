# SPDX-License-Identifier: Apache-2.0
"""From raw data to a class in one report: trained on what the pipeline gives, judged by what the firmware computes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import mcugen
from onnx_models import Net
from sklearn.neural_network import MLPClassifier

from mcugen.api.compilation import Compilation
from mcugen.core.errors import UsageError, VerificationError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.driver.tasks import Judging, Quantizing
from mcugen.hir.types import Array
from mcugen.measurement.evaluate import _with_input
from mcugen.pipelines import parse_pipeline

SOUND = "sound=4000, frame=128/128, mel=12:50:2000, dct=6, stack=8, mean=-20, std=10"


def recordings(count: int, seed: int) -> tuple[Array, Array]:
    """A low hum, a rising whistle, or noise, at any loudness; int16 [count, 1024] and their classes."""
    random, t = np.random.default_rng(seed), np.arange(1024) / 4000
    labels = random.integers(0, 3, count)
    phases, loudness = random.uniform(0, 6, count), 10 ** random.uniform(1.5, 4, count)
    hum, whistle = (np.sin(2 * np.pi * f * t + phases[:, None]) for f in (120, 300 + 2000 * t))
    noise = random.normal(0, 0.3, (count, 1024))
    chosen = np.choose(labels[:, None], [hum, whistle, 2 * noise]) + 0.1 * noise
    return np.clip(np.rint(chosen * loudness[:, None]), -32768, 32767).astype(np.int16), labels


def classifier(features: Array, labels: Array) -> Net:
    """A network of two layers, trained on features [n, 48]."""
    found = MLPClassifier((16,), random_state=0, max_iter=400).fit(features, labels)
    net = Net()
    x = net.op("Flatten", net.input("x", 1, 8, 6))
    for number, (weights, bias) in enumerate(zip(found.coefs_, found.intercepts_, strict=True)):
        x = net.op("Relu", x) if number else x
        x = net.op("Gemm", x, net.const(weights), net.const(bias))
    net.output(net.op("Identity", x, out="y"))
    return net


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model, the pipeline's file, and raw recordings."""
    folder = tmp_path_factory.mktemp("sound")
    raw, labels = recordings(300, 0)
    stages = parse_pipeline(SOUND)
    features = np.stack([stages.reals("raw", one, (48,)) for one in raw])
    (folder / "net.onnx").write_bytes(classifier(features, labels).model().SerializeToString())
    (folder / "pipeline.txt").write_text(SOUND.replace(", ", "\n") + "\n# as trained\n")
    np.savez(folder / "calibration.npz", x=raw[:60])
    raw, labels = recordings(40, 1)
    np.savez(folder / "eval.npz", x=raw, labels=labels)
    return folder


def report(folder: Path, board: str, *options: str) -> dict[str, object]:
    arguments = ["--input-pipeline", folder / "pipeline.txt", "--calibration", folder / "calibration.npz"]
    arguments += ["--data", folder / "eval.npz", "--json", "-", "--quiet"]
    done = mcugen("report", folder / "net.onnx", "--board", board, *map(str, arguments), *options)
    assert done.code == 0, done.err
    return dict(json.loads(done.out))


def test_from_samples_to_classes(trained: Path):
    found = report(trained, "host", "--integer-io")
    assert found["accuracy"]["metric"] == "top1"
    assert found["accuracy"]["target"] >= 0.95
    assert not any("--integer-io" in note for note in found["notes"])
    assert found["input_pipeline"]["verified"] == 40
    assert found["input_pipeline"]["pipeline"].startswith("sound=4000, frame=128/128, ")


@pytest.mark.qemu
def test_the_same_on_a_microcontroller(trained: Path):
    """The same class for every recording, to the bit; and what making the input takes."""
    found, here = report(trained, "nrf52840"), report(trained, "host")
    assert found["accuracy"] == here["accuracy"]
    assert any("--integer-io" in note for note in here["notes"])
    made = found["input_pipeline"]
    assert made["verified"] == 40
    assert 100_000 < made["instructions"] < 2_000_000
    assert made["state"] == here["input_pipeline"]["state"] > 4 * 48
    parts = [found["ram"][key] for key in ("arena", "static", "stack")]
    assert found["ram"]["total"] == sum(parts) + made["state"]


@pytest.mark.qemu
def test_images_on_a_microcontroller():
    net = Net()
    net.output(net.op("GlobalAveragePool", net.input("x", 1, 3, 16, 16), out="y"))
    options = CompileOptions("net", input_pipeline="image=rgb565, crop=center, scale=1/255")
    raw = np.random.default_rng(0).integers(0, 256, (3, 24, 40, 2), dtype=np.uint8)
    found = Compilation(net.model(), "nrf52840", options, judging=Judging(data={"x": raw})).report()
    assert found.input_pipeline is not None
    assert found.input_pipeline.verified == 3
    assert found.input_pipeline.instructions > 16 * 16 * 3
    assert found.accuracy is not None
    assert found.accuracy.max_abs_error < 1e-5


def test_a_report_without_data_makes_a_sample_of_its_own(trained: Path):
    options = CompileOptions(input_pipeline=str(trained / "pipeline.txt"))
    found = Compilation(trained / "net.onnx", "host", options).report()
    assert found.input_pipeline is not None
    assert found.input_pipeline.verified == 1


def test_run_takes_raw_data(trained: Path):
    raw = np.load(trained / "eval.npz")["x"]
    net = Compilation(trained / "net.onnx", "host", CompileOptions(input_pipeline=SOUND))
    found = net.run({"x": raw[:3]})["y"]
    feed = net._input_feed(net.compiled.program.inputs)
    plain = Compilation(trained / "net.onnx", "host")
    expected = plain.run({"x": np.stack([feed.sample("raw", one) for one in raw[:3]])})["y"]
    np.testing.assert_array_equal(found, expected)


def test_another_input_than_numpys_is_found(trained: Path):
    """A report fails where the generated code makes another input."""
    options = CompileOptions(input_pipeline=SOUND)
    net = Compilation(trained / "net.onnx", "host", options)
    raw = net.samples({"x": np.load(trained / "eval.npz")["x"][:2]}, net.compiled.program.inputs)
    run = net.compiled.simulate(raw.fed(raw.inputs), measure=False)
    _with_input(net.compiled.report, net.compiled, raw.inputs, run)
    raw.inputs[1]["x"][0, 3, 2] += 1
    with pytest.raises(VerificationError, match="another input for sample 1"):
        _with_input(net.compiled.report, net.compiled, raw.inputs, run)


def test_compile_tells_what_the_pipeline_takes(trained: Path, tmp_path: Path):
    done = mcugen(
        *("compile", trained / "net.onnx", "--board", "nrf52840", "--input-pipeline", SOUND, "-o", tmp_path / "net")
    )
    assert done.code == 0
    assert "input pipeline: " in done.err
    files = {path.name for path in (tmp_path / "net").iterdir()}
    assert {"net_input.c", "net_input.h"} <= files
    assert "net_input.c" in (tmp_path / "net" / "CMakeLists.txt").read_text()
    assert "net_input.h" in (tmp_path / "net" / "mcugen.net.pdsc").read_text()
    told = json.loads((tmp_path / "net" / "net_report.json").read_text())["input_pipeline"]
    assert told["verified"] == 0
    assert f"#define NET_INPUT_STATE_BYTES {told['state']}u" in (tmp_path / "net" / "net_input.h").read_text()


def test_what_does_not_go_together_is_refused(trained: Path, tmp_path: Path):
    model = trained / "net.onnx"
    with pytest.raises(UsageError, match="--input-pipeline alone"):
        judging = Judging(data=trained / "eval.npz", pixel_scale=2.0)
        Compilation(model, "host", CompileOptions(input_pipeline=SOUND), judging=judging).report()
    with pytest.raises(UsageError, match="--input-pipeline alone"):
        quantizing = Quantizing(calibration=trained / "calibration.npz", preprocess="scale=2")
        _ = Compilation(model, "host", CompileOptions(input_pipeline=SOUND), quantizing).compiled
    with pytest.raises(UsageError, match="must lie in memory"):
        rows = Net()
        rows.output(rows.op("Conv", rows.input("x", 1, 1, 16, 16), rows.const(np.ones((1, 1, 3, 3))), out="y"))
        compile_model(rows.model(), "host", CompileOptions(input_pipeline="image=gray", stream_input=True))
    with pytest.raises(UsageError, match="must be readable"):
        compile_model(model, "host", CompileOptions(input_pipeline=str(tmp_path / "missing.txt")))
    two = Net()
    two.output(two.op("Add", two.input("a", 4), two.input("b", 4), out="y"))
    with pytest.raises(UsageError, match="one input"):
        compile_model(two.model(), "host", CompileOptions(input_pipeline="vibration=9, frame=2/2, stats=rms, stack=4"))


def test_text_of_a_pipeline_ends_no_comment(tmp_path: Path):
    net = Net()
    net.output(net.op("Relu", net.input("x", 1, 1, 4, 4), out="y"))
    (tmp_path / "p.txt").write_text("image=gray # */ int hostile; /*\n")
    bundle = compile_model(net.model(), options=CompileOptions("net", input_pipeline=str(tmp_path / "p.txt"))).bundle
    assert "hostile" not in "".join(bundle.files.values())


def test_precisions_are_chosen_on_what_the_pipeline_makes(trained: Path):
    """The search judges inputs, not raw data; the report behind it is from raw data again."""
    found = report(trained, "host", "--precision", "auto", "--max-accuracy-drop", "2")
    assert found["accuracy"]["target"] >= 0.95
    assert found["input_pipeline"]["verified"] == 40
    assert found["precision"] != "float32"


@pytest.mark.qemu
@pytest.mark.slow
def test_precisions_are_chosen_on_a_microcontroller(trained: Path):
    """Layers must be raised here, and what that costs is measured."""
    found = report(trained, "nrf52840", "--precision", "auto", "--min-sqnr", "45")
    assert found["precision"] not in ("int8", "float32")
    assert found["input_pipeline"]["verified"] == 40
