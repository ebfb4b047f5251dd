# SPDX-License-Identifier: Apache-2.0
"""The command line with CMSIS-NN: what is said of it, and how it is given."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from cmsis_nn_library import library
from onnx_models import Net, random_feeds
from test_conv import quantized_conv

from mcugen.autotuning.precision import AccuracyDemand, PrecisionSearch
from mcugen.cli import app as cli
from mcugen.core.board import load_board
from mcugen.core.options import CMSIS_NN, CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.evaluation.metrics import METRICS
from mcugen.evaluation.samples import Samples
from mcugen.frontend.onnx.load import load
from mcugen.quantization.quantize import create_quantizer, import_float_model
from mcugen.quantization.scheme import Scheme
from mcugen.simulation import Setup, simulate

INCLUDE, LIB = "MCUGEN_CMSIS_NN_INCLUDE", "MCUGEN_CMSIS_NN_LIB"
BOARD = "nrf52840"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def mcugen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command line in this process, without a library in the environment."""
    monkeypatch.delenv(INCLUDE, raising=False)
    monkeypatch.delenv(LIB, raising=False)
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["mcugen", *map(str, arguments)])
        code: object = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        captured = capsys.readouterr()
        return int(str(code or 0)), captured.out, captured.err

    return call


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two convolutions of int8 side by side, transpositions around them; a function that the library does not have."""
    net = Net()
    for name in ("y", "z"):
        quantized_conv(net, name, ((1, 4, 9, 8), 6, (3, 3), {"pads": [1] * 4}), False)
    x = net.dequantize(net.input("e", 9, dtype=np.int8), 0.05, 0)
    net.output(net.quantize(net.op("Exp", x), 0.1, 0, out="f"), dtype=np.int8)
    path = tmp_path / "net.onnx"
    onnx.save(net.model(), path)
    return path


def test_compile_needs_no_library_and_says_which(mcugen: Run, model: Path, tmp_path: Path) -> None:
    code, _, said = mcugen("compile", model, "-b", BOARD, "--kernels", CMSIS_NN, "-o", tmp_path / "out")
    assert code == 0
    assert "6 of 7 layers call CMSIS-NN 7.x" in said
    assert f"Board {BOARD}; kernels cmsis-nn" in (tmp_path / "out" / "net.c").read_text()[:900]
    report = json.loads((tmp_path / "out" / "net_report.json").read_text())
    assert report["kernels"] == CMSIS_NN
    families = [layer["family"] for layer in report["layers"]]
    assert (families.count(CMSIS_NN), families.count("own")) == (6, 1)
    kernels = {layer["kernel"] for layer in report["layers"] if layer["family"] == CMSIS_NN}
    assert kernels == {"cmsis_convolve_s8", "cmsis_transpose_s8"}


def test_own_kernels_say_nothing_of_a_library(mcugen: Run, model: Path, tmp_path: Path) -> None:
    _, _, said = mcugen("compile", model, "-b", BOARD, "-o", tmp_path / "out")
    assert "CMSIS" not in said
    assert "CMSIS-NN" not in mcugen("inspect", model, "-b", BOARD)[1]


def test_inspect_says_the_family(mcugen: Run, model: Path) -> None:
    code, out, _ = mcugen("inspect", model, "-b", BOARD, "--kernels", CMSIS_NN)
    assert code == 0
    assert "cmsis-nn; 6 of 7 layers call" in out


@pytest.mark.parametrize("command", ["report", "run"])
def test_running_without_the_library_is_refused_before_a_build(
    mcugen: Run, model: Path, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # no compiler is asked for
    np.savez(tmp_path / "in.npz", **{n: a[None] for n, a in random_feeds(onnx.load(model)).items()})
    files = ("--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz") if command == "run" else ()
    code, _, said = mcugen(command, model, "-b", BOARD, "--kernels", CMSIS_NN, *files)
    assert code == 2
    assert "--cmsis-nn-include DIR and --cmsis-nn-lib FILE" in said


def test_one_of_both_is_refused(mcugen: Run, model: Path, tmp_path: Path) -> None:
    code, _, said = mcugen("report", model, "-b", BOARD, "--cmsis-nn-include", tmp_path)
    assert (code, "give --cmsis-nn-lib too" in said) == (2, True)
    code, _, said = mcugen("report", model, "-b", BOARD, "--cmsis-nn-lib", tmp_path)
    assert (code, "give --cmsis-nn-include too" in said) == (2, True)


@pytest.mark.qemu
def test_report_with_the_library(mcugen: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By options or by the environment; its code counts."""
    files, page, found = library(load_board(BOARD)), tmp_path / "report.html", tmp_path / "report.json"
    given = ("--cmsis-nn-include", files.include, "--cmsis-nn-lib", files.archive)
    command = ("report", model, "-b", BOARD, "--kernels", CMSIS_NN, "--json", found)
    code, out, said = mcugen(*command, "--html", page, *given)
    assert code == 0, said
    assert "cmsis_convolve_s8" in out and "layers call CMSIS-NN 7.x" in out
    assert "cmsis_convolve_s8" in page.read_text() and "layers call CMSIS-NN 7.x" in page.read_text()
    elsewhere = {"command": None, "alternatives": []}  # other options are for pages alone
    by_options = {**json.loads(found.read_text()), **elsewhere}
    assert by_options["accuracy"]["max_abs_error"] <= 1
    monkeypatch.setenv(INCLUDE, str(files.include))
    monkeypatch.setenv(LIB, str(files.archive))
    assert mcugen(*command)[0] == 0
    assert {**json.loads(found.read_text()), **elsewhere} == by_options


@pytest.mark.qemu
def test_the_code_of_the_library_is_in_flash(model: Path, tmp_path: Path) -> None:
    board = load_board(BOARD)
    compiled = compile_model(model, board, CompileOptions(family=CMSIS_NN))
    feeds = [random_feeds(onnx.load(model))]
    run = simulate(compiled.bundle, board, feeds, setup=Setup(library=library(board), workdir=tmp_path))
    assert run.sizes is not None
    listing = subprocess.run(
        ["arm-none-eabi-nm", "-S", tmp_path / "model.elf"], capture_output=True, text=True, check=True
    )
    sizes = [int(size, 16) for size in re.findall(r"^\w+ (\w+) . arm_\w+$", listing.stdout, re.M)]
    assert sizes and run.sizes.code > sum(sizes) > 100


@pytest.mark.qemu
def test_the_search_for_precision_runs_on_the_board_with_the_library() -> None:
    """The library is built for the board: nothing is linked for this computer."""
    net, rng = Net(), np.random.default_rng(0)
    y = net.op("Conv", net.input("x", 1, 4, 8, 8), net.const(rng.standard_normal((4, 4, 3, 3))), pads=[1] * 4)
    net.output(net.op("Relu", y, out="y"))
    source, board = load(net.model()), load_board(BOARD)
    fused = import_float_model(source, CompileOptions(), Scheme(), True)
    samples = Samples([{"x": rng.standard_normal((1, 4, 8, 8)).astype(np.float32)} for _ in range(6)], None)
    maker = create_quantizer(source, fused, Scheme(), samples.inputs, None)
    options = replace(CompileOptions(), family=CMSIS_NN, library=library(board))
    search = PrecisionSearch(maker, board, options, samples, AccuracyDemand(METRICS["sqnr"], min_sqnr=20))
    search.run()
    (step,) = search.steps
    assert step.holds and not step.is_estimate
    assert step.confirmed == pytest.approx(step.value, abs=1)
