# SPDX-License-Identifier: Apache-2.0
"""The demo's model from end to end: every board, the report, the folder."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mcugen.core.board import board_names, load_board
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.evaluation.samples import load_samples

DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits"
BOARDS = [name for name in board_names() if name != "host"]

REPORT_KEYS = {
    "": {
        *("model", "board", "cpu", "precision", "kernels", "instructions", "instructions_per_mac"),
        *("instructions_estimate", "cycles_estimate", "cycles_note", "milliseconds_estimate", "clock_hz"),
        *("stalls", "microjoules_estimate", "cycles", "ms", "deadline", "basis", "steps", "tuning"),
        *("flash", "ram", "memories", "budget", "rows", "accuracy", "quantization"),
        *("quantization_estimate", "layers", "notes", "input_pipeline"),
        *("varies", "stack_bound", "buffers", "samples", "command", "learning", "alternatives", "two_cores"),
        *("monitor", "self_test", "plausible", "instruction_range", "first_part", "warnings"),
        *("other_precisions", "self_test_input", "weight_copies", "accelerator"),
    },
    "model": {"name", "sha256", "macs", "parameters", "dropped_channels", "dropped_macs", "dropped_elements"},
    "flash": {"code", "weights", "total", "functions"},
    "ram": {"arena", "arena_bound", "state", "io", "copies", "static", "stack", "total"},
    "accuracy": {
        *("metric", "reference", "samples", "float32", "quantized", "target"),
        *("agreement", "max_abs_error", "sqnr_db", "beside"),
    },
}
LAYER_KEYS = {
    *("name", "origin", "op", "kernel", "macs", "instructions", "cycles_estimate", "flash", "ram"),
    *("cycles", "ms", "stalls", "microjoules_estimate"),
}


def few(model: CompiledModel, count: int = 5) -> list[dict[str, np.ndarray]]:
    return load_samples(DIGITS / "eval.npz", model.program.inputs).inputs[:count]


def integer_layers(model: CompiledModel) -> set[str]:
    return {instr.op for instr in model.program.instrs if instr.operands[0].buffer.dtype.value == "int8"}


def test_int8_twin_is_computed_in_integers() -> None:
    model = compile_model(DIGITS / "digits_int8.onnx")
    assert {"conv", "reduce_mean", "dense", "softmax"} <= integer_layers(model)
    assert model.report.precision == "int8"


@pytest.mark.spread(17)
@pytest.mark.qemu
@pytest.mark.parametrize("board", BOARDS)
def test_every_board_gives_the_same_bytes(board: str) -> None:
    host = compile_model(DIGITS / "digits_int8.onnx")
    wanted = host.simulate(few(host), measure=False).outputs
    model = compile_model(DIGITS / "digits_int8.onnx", board)
    run = model.simulate(few(model))
    assert [o["scores"].tobytes() for o in run.outputs] == [o["scores"].tobytes() for o in wanted]
    assert run.instructions and run.stack and run.sizes
    assert run.stack < 1024 and run.sizes.code < 16384 and run.sizes.static_ram == 0


@pytest.mark.qemu
def test_m0_code_runs_on_a_true_cortex_m0() -> None:
    """The boards' M0+ runs on a Cortex-M3 for its RAM; this machine has no instruction of a later CPU."""
    board = dataclasses.replace(load_board("rp2040"), qemu="microbit")
    model = compile_model(DIGITS / "digits_int8.onnx", board)
    host = compile_model(DIGITS / "digits_int8.onnx")
    found = model.simulate(few(model), measure=False).outputs
    wanted = host.simulate(few(host), measure=False).outputs
    assert all(f["scores"].tobytes() == w["scores"].tobytes() for f, w in zip(found, wanted, strict=True))


@pytest.mark.qemu
def test_report_measures_what_the_demo_shows() -> None:
    command = [Path(sys.executable).with_name("mcugen"), "report", DIGITS / "digits_int8.onnx", "--board", "rt1060"]
    done = subprocess.run(
        [*command, "--data", DIGITS / "eval.npz", "--json", "-"], capture_output=True, text=True, check=True
    )
    report = json.loads(done.stdout)
    for key, wanted in REPORT_KEYS.items():
        assert set(report[key] if key else report) == wanted
    assert all(set(layer) >= LAYER_KEYS for layer in report["layers"])
    accuracy, flash, ram = report["accuracy"], report["flash"], report["ram"]
    assert accuracy["samples"] == 300 and accuracy["target"] >= 0.98 and accuracy["agreement"] >= 0.99
    assert flash["total"] == flash["code"] + flash["weights"]
    assert ram["total"] == ram["arena"] + ram["io"] + ram["static"] + ram["stack"]
    assert report["model"]["macs"] == sum(layer["macs"] for layer in report["layers"])
    per_layer = sum(layer["instructions"] for layer in report["layers"])
    assert abs(per_layer - report["instructions"]) < 0.02 * report["instructions"]
    assert report["instructions_per_mac"] == pytest.approx(report["instructions"] / report["model"]["macs"], abs=1e-4)


@pytest.mark.parametrize("name", ["digits_f32", "digits_int8"])
def test_self_test_passes_on_the_host(name: str, tmp_path: Path) -> None:
    folder = compile_model(DIGITS / f"{name}.onnx").write(tmp_path / "model")
    (tmp_path / "main.c").write_text(
        f'#include "{name}.h"\nint main(void) {{ return {name}_selftest({name}_default_arena()); }}\n'
    )
    sources = [tmp_path / "main.c", *folder.glob("*.c")]
    subprocess.run(["gcc", "-std=c99", "-I", folder, *sources, "-o", tmp_path / "main", "-lm"], check=True)
    assert subprocess.run([tmp_path / "main"]).returncode == 0


def test_float_twins_agree() -> None:
    samples = load_samples(DIGITS / "eval.npz", compile_model(DIGITS / "digits_f32.onnx").program.inputs)
    stacked = {"image": np.stack([s["image"] for s in samples.inputs])}
    scores = [compile_model(DIGITS / f"digits_{k}.onnx").run(stacked)["scores"] for k in ("f32", "int8")]
    classes = [s.reshape(len(s), -1).argmax(1) for s in scores]
    assert samples.labels is not None
    assert (classes[0] == samples.labels).mean() >= 0.98
    assert (classes[0] == classes[1]).mean() >= 0.98
