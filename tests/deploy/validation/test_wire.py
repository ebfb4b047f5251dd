# SPDX-License-Identifier: Apache-2.0
"""The real command and the real firmware, built for this computer with the sanitizers, and faults on the line."""

from __future__ import annotations

import json
import random
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import Done, mcugen
from onnx_models import Net
from serial_lines import Chatter, Fault, Noise, Resets, Rubbish, Silence, WrongBaud, on_socket, on_terminal

from mcugen.codegen.bundle import Bundle
from mcugen.codegen.install import MANIFEST
from mcugen.core.options import CompileOptions
from mcugen.deploy.validation.figures import ValidationReport, Verdict
from mcugen.deploy.validation.session import ValidationSetup
from mcugen.deploy.validation.session import validate as run_validation
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.evaluation.metrics import METRICS
from mcugen.evaluation.samples import Samples
from mcugen.simulation.build import Checks, build_wire_host
from mcugen.simulation.execute import host_program

SAMPLES = 5
PATIENCE = 30
"""Seconds: this computer may be busy."""


def small(seed: int = 0) -> onnx.ModelProto:
    """Two integer layers and a sum, with reals at their ends."""
    numbers = np.random.default_rng(seed)
    net = Net(20)
    x = net.fake(net.input("x", 1, 3, 6, 6), 1 / 64)
    for channels, depth in ((4, 3), (4, 4)):
        weights = net.dequantize(net.const(numbers.integers(-60, 60, (channels, depth, 3, 3)), np.int8), 1 / 64)
        x = net.fake(net.op("Relu", net.op("Conv", x, weights, pads=[1, 1, 1, 1])), 1 / 16)
    net.fake(net.op("GlobalAveragePool", x), 1 / 32, out="y")
    net.output("y")
    return net.model()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a model, and samples of it."""
    folder = tmp_path_factory.mktemp("wire")
    onnx.save(small(), folder / "small.onnx")
    np.savez(folder / "data.npz", x=np.random.default_rng(1).standard_normal((SAMPLES, 1, 3, 6, 6)).astype(np.float32))
    return folder


@pytest.fixture(scope="module")
def compiled(folder: Path) -> CompiledModel:
    return compile_model(folder / "small.onnx", "host", CompileOptions(validation=True))


def firmware(bundle: Bundle, folder: Path, checks: Checks = Checks.TELL) -> list[str]:
    return list(host_program(build_wire_host(bundle, folder, checks)).command)


@pytest.fixture(scope="module")
def device(compiled: CompiledModel, folder: Path) -> list[str]:
    """The command that is the board."""
    return firmware(compiled.bundle, folder / "device")


def validate(folder: Path, port: str, *more: object, patience: float = PATIENCE) -> Done:
    arguments = ("--board", "host", "--data", folder / "data.npz", "--port", port, "--timeout", patience)
    return mcugen("validate", folder / "small.onnx", *arguments, "--json", "-", *more)


def right(done: Done) -> dict:
    """The figures of a validation that found all as it must be."""
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert (result["outputs"], result["different_samples"], result["difference"]) == ("exact", 0, None)
    assert result["samples"] == result["layer_samples"] == SAMPLES
    assert [layer["verdict"] for layer in result["layers"]] == ["exact"] * len(result["layers"])
    assert len(result["layers"]) >= 4
    assert result["accuracy"]["agreement"] == 1.0
    return dict(result)


# -------------------------------------------------------------------------------------------------------- good lines


def test_what_is_known_so_far_is_told(compiled: CompiledModel, folder: Path, device: list[str]):
    with np.load(folder / "data.npz") as arrays:
        samples = Samples([{"x": sample} for sample in arrays["x"]], None)
    reports: list[ValidationReport] = []
    with on_terminal(device) as port:
        last = run_validation(
            compiled, samples, METRICS["sqnr"], ValidationSetup(port, patience=PATIENCE), observer=reports.append
        )
    assert [report.samples for report in reports] == [*range(1, SAMPLES + 1), *[SAMPLES] * SAMPLES]
    assert [report.layer_samples for report in reports] == [*[0] * SAMPLES, *range(1, SAMPLES + 1)]
    assert {layer.verdict for layer in reports[0].layers} == {Verdict.UNKNOWN}
    assert reports[-1].layers == last.layers and last.outputs == Verdict.EXACT
    assert reports[-1].accuracy is None and last.accuracy is not None


def test_all_is_equal_on_a_terminal(folder: Path, device: list[str], tmp_path: Path):
    with on_terminal(device) as port:
        done = validate(folder, port, "--html", tmp_path / "page.html", "--runs", tmp_path / "runs.json")
    result = right(done)
    assert result["wire"]["lost"] == result["wire"]["damaged"] == result["wire"]["resets"] == 0
    wire = result["wire"]
    assert wire["seconds"] == pytest.approx((wire["sent"] + wire["received"]) * 10 / 115_200, abs=1e-3)
    assert result["firmware"]["compiler"].startswith(("gcc", "clang"))
    assert "bit-exact" in (tmp_path / "page.html").read_text()
    runs = json.loads((tmp_path / "runs.json").read_text())
    assert [layer["name"] for layer in runs["runs"][0]["layers"]] == [layer["name"] for layer in result["layers"]]


def test_the_table_names_what_was_found(folder: Path):
    arguments = ("--board", "host", "--data", folder / "data.npz", "--port", "simulator", "--quiet")
    done = mcugen("validate", folder / "small.onnx", *arguments)
    assert done.code == 0, done.err
    assert re.search(r"outputs\W+bit-exact", done.out)
    assert "frames" in done.out and "0 lost" in done.out


def test_runs_are_added_to_a_file_of_runs_alone(folder: Path, tmp_path: Path):
    file = tmp_path / "runs.json"
    for _ in range(2):
        right(validate(folder, "simulator", "--runs", file))
    assert len(json.loads(file.read_text())["runs"]) == 2


@pytest.mark.parametrize("text", ["[]", "[" * 100_000, "{", '{"format": "mcugen-runs", "version": 1}'])
def test_a_file_of_something_else_is_refused_before_the_board_runs(folder: Path, tmp_path: Path, text: str):
    file = tmp_path / "runs.json"
    file.write_text(text)
    done = validate(folder, "/dev/null/none", "--runs", file)
    assert (done.code, "--runs must be a file of runs, or a new one" in done.err) == (2, True)
    assert file.read_text() == text


# -------------------------------------------------------------------------------------------------------- bad lines

CHANGES = {
    "dropped": lambda _, byte: [],
    "doubled": lambda _, byte: [byte, byte],
    "flipped": lambda r, byte: [byte ^ 1 << r.randrange(8)],
    "inserted": lambda r, byte: [byte, *(r.randrange(256) for _ in range(r.randrange(40)))],
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("what", CHANGES)
def test_noise_costs_time_and_nothing_else(what: str, folder: Path, device: list[str]):
    noise = Noise(CHANGES[what], 1500, random.Random(what))
    with on_socket(device, noise) as port:
        result = right(validate(folder, port))
    assert noise.count > 1
    assert result["wire"]["damaged"] + result["wire"]["lost"] > 0


def test_a_console_on_the_same_line_does_no_harm(folder: Path, device: list[str]):
    with on_socket(device, Chatter()) as port:
        right(validate(folder, port))


def test_after_a_reset_it_goes_on_with_the_sample_that_was_on_its_way(folder: Path, device: list[str]):
    with on_socket(device, Resets(3000, 3)) as port:
        result = right(validate(folder, port))
    assert result["wire"]["resets"] == 3


def test_a_board_that_always_resets_is_named(folder: Path, device: list[str]):
    with on_socket(device, Resets(700, -1)) as port:
        done = validate(folder, port)
    assert done.code == 10
    assert "must not restart" in done.err and "sample 0" in done.err
    assert done.out == ""


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Silence(0), "nothing at all"),
        (Silence(2500), "silent for 2 s after"),
        (WrongBaud(), "--baud"),
        (Rubbish(), "none of them an answer"),
    ],
    ids=["from the first", "in the middle", "wrong baud", "rubbish"],
)
def test_silence_is_an_error_in_time(fault: Fault, words: str, folder: Path, device: list[str]):
    begin = time.monotonic()
    with on_socket(device, fault) as port:
        done = validate(folder, port, patience=2)
    assert done.code == 10
    assert words in done.err.replace("\n", " ")
    assert done.out == ""
    assert time.monotonic() - begin < 60


def test_a_port_that_is_not_there(folder: Path):
    assert validate(folder, "/dev/no-such-port").code == 10
    assert validate(folder, "socket://127.0.0.1:1").code == 10
    assert validate(folder, "socket://nowhere").code == 2
    assert validate(folder, "wrong://port").code == 2


def test_a_line_that_is_cut(folder: Path, device: list[str]):
    with on_socket(["true"]) as port:
        done = validate(folder, port, patience=2)
    assert done.code == 10


# -------------------------------------------------------------------------------------------------------- other code


def test_another_model_is_not_measured(folder: Path, tmp_path: Path):
    onnx.save(small(7), tmp_path / "small.onnx")
    other = compile_model(tmp_path / "small.onnx", "host", CompileOptions(validation=True))
    with on_socket(firmware(other.bundle, tmp_path / "device", Checks.NONE)) as port:
        done = validate(folder, port)
    assert done.code == 10
    assert "must run this model" in done.err and other.report.model.sha256[:16] in done.err


def test_other_code_of_the_same_model_is_not_measured(folder: Path, tmp_path: Path):
    other = compile_model(folder / "small.onnx", "host", CompileOptions(validation=True, optimize="ram"))
    with on_socket(firmware(other.bundle, tmp_path / "device", Checks.NONE)) as port:
        done = validate(folder, port)
    assert done.code == 10
    assert "optimize ram" in done.err


def changed(bundle: Bundle, file: str, before: str, after: str) -> Bundle:
    assert before in bundle.files[file]
    return replace(bundle, files={**bundle.files, file: bundle.files[file].replace(before, after, 1)})


def behind_layer_2(bundle: Bundle, statement: str) -> Bundle:
    """With a statement behind the first convolution, whose result is {y}."""
    end = "    MCUGEN_ON_LAYER(&small_model, 2);"
    call = re.search(rf"(conv\w+),\s+\w+_patches\);\n{re.escape(end)}", bundle.files["small.c"])
    assert call is not None
    return changed(bundle, "small.c", end, f"    {statement.format(y=call[1])}\n{end}")


def test_the_first_layer_that_differs_is_named_with_its_values(compiled: CompiledModel, folder: Path, tmp_path: Path):
    wrong = behind_layer_2(compiled.bundle, "{y}[5] ^= 1;")
    with on_socket(firmware(wrong, tmp_path / "device", Checks.NONE)) as port:
        done = validate(folder, port)
    result = json.loads(done.out)
    difference = result["difference"]
    assert done.code == 7
    assert (difference["layer"], difference["element"], difference["count"]) == (2, 5, 1)
    assert abs(difference["board"] - difference["reference"]) == 1
    assert difference["is_repeatable"] and difference["causes"]
    assert [layer["verdict"] for layer in result["layers"]][:3] == ["exact", "exact", "different"]
    assert "layer 2" in done.err


def test_a_board_that_computes_differently_each_time(compiled: CompiledModel, folder: Path, tmp_path: Path):
    wrong = behind_layer_2(compiled.bundle, "{{ static uint8_t run; {y}[9] = (int8_t)(run++ & 63u); }}")
    with on_socket(firmware(wrong, tmp_path / "device", Checks.NONE)) as port:
        done = validate(folder, port)
    difference = json.loads(done.out)["difference"]
    assert done.code == 7
    assert difference["layer"] == 2 and not difference["is_repeatable"]
    assert "a second run gave other results" in difference["causes"][0]


def test_weights_that_are_others_are_named(compiled: CompiledModel, folder: Path, tmp_path: Path):
    text = compiled.bundle.files["small_weights.c"]
    array = re.search(r"const int8_t (small_\w+)\[\d+\] = \{\n\s+(-?\d+),", text)
    assert array is not None
    number = (int(array[2]) + 1) % 100
    wrong = changed(compiled.bundle, "small_weights.c", array[0], array[0].replace(f"{array[2]},", f"{number},"))
    with on_socket(firmware(wrong, tmp_path / "device", Checks.NONE)) as port:
        done = validate(folder, port)
    result = json.loads(done.out)
    assert done.code == 7
    assert len(result["constants_differ"]) == 1
    assert "the weights on the board are others" in result["difference"]["causes"][0]


def test_a_run_function_that_fails(compiled: CompiledModel, folder: Path, tmp_path: Path):
    wrong = changed(compiled.bundle, "small.c", "    return MCUGEN_OK;", "    return MCUGEN_ERROR_ALIGNMENT;")
    with on_socket(firmware(wrong, tmp_path / "device", Checks.NONE)) as port:
        done = validate(folder, port)
    assert done.code == 7
    assert "MCUGEN_ERROR_ALIGNMENT" in done.err


def test_a_firmware_without_hooks_tells_outputs(compiled: CompiledModel, folder: Path, tmp_path: Path):
    plain = changed(compiled.bundle, "small_validate.c", "_VALIDATE_LAYERS 1", "_VALIDATE_LAYERS 0")
    with on_socket(firmware(plain, tmp_path / "device")) as port:
        done = validate(folder, port)
    result = json.loads(done.out)
    assert done.code == 0, done.err
    assert (result["outputs"], result["layer_samples"]) == ("exact", 0)
    assert any("without hooks" in note for note in result["notes"])


def test_small_frames(compiled: CompiledModel, folder: Path, tmp_path: Path):
    tight = changed(compiled.bundle, "small_validate.c", "_VALIDATE_FRAME 256", "_VALIDATE_FRAME 64")
    with on_socket(firmware(tight, tmp_path / "device")) as port:
        result = right(validate(folder, port))
    assert result["firmware"]["frame"] == 64


# -------------------------------------------------------------------------------------------------------- compiling


def test_the_files_beside_change_no_other(compiled: CompiledModel, folder: Path, tmp_path: Path):
    plain = compile_model(folder / "small.onnx", "host").bundle.files
    beside = {"small_validate.c", "small_validate.h"}
    with_files = compiled.bundle.files
    assert with_files.keys() - plain.keys() == beside
    assert all(plain[name] == with_files[name] for name in plain if not name.endswith(".pdsc"))
    for command in (("compile", "--validation", "-o"), ("validate", "--write")):
        done = mcugen(command[0], folder / "small.onnx", "--board", "host", *command[1:], tmp_path / "out", "--quiet")
        assert done.code == 0, done.err
        assert {p.name for p in (tmp_path / "out").iterdir()} == {*with_files, MANIFEST}


def test_a_port_must_be_named(folder: Path):
    assert mcugen("validate", folder / "small.onnx", "--board", "host").code == 2
