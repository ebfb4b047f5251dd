# SPDX-License-Identifier: Apache-2.0
"""`mcugen calibrate-board`: runs as a board with other memory would have taken them, made by the simulator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import mcugen

from mcugen.calibration.runs import layer_estimates
from mcugen.core.board import Board, ParallelTiming, load_board
from mcugen.driver.compiler import compile_model

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits_int8.onnx"
FACTOR, WAIT_STATES = 1.08, 9


@pytest.fixture(scope="module")
def runs() -> Mapping[str, object]:
    """Of a board that is slower than its file says."""
    board = slower(load_board("stm32l4r5"))
    made = compile_model(DIGITS, "stm32l4r5")
    cycles = [round(estimate.cycles(1.0)) for estimate in layer_estimates(made, board)]
    layers = [
        {"name": layer.name, "kernel": layer.kernel, "cycles": count}
        for layer, count in zip(made.report.layers, cycles, strict=True)
    ]
    run = {
        "model": "digits",
        "sha256": made.report.model.sha256,
        "options": "balanced",
        "clock_hz": board.clock_hz,
        "cycles": sum(cycles),
        "layers": layers,
    }
    return {"format": "mcugen-runs", "version": 1, "runs": [run]}


def slower(board: Board) -> Board:
    access = ParallelTiming(WAIT_STATES, WAIT_STATES, board.clock_hz)
    memories = tuple(replace(m, access=access) if m.name == "flash" else m for m in board.memories)
    return replace(board, memories=memories, core_factor=FACTOR)


def calibrate(folder: Path, runs: object, *options: object):
    (folder / "runs.json").write_text(json.dumps(runs))
    given = ("--from", folder / "runs.json", "-o", folder / "mine.toml", "--model", DIGITS)
    return mcugen("calibrate-board", "nucleo-l4r5zi", *given, *options)


def test_a_slower_board_is_found_from_its_runs(tmp_path: Path, runs: Mapping[str, object]):
    done = calibrate(tmp_path, runs)
    assert done.code == 0, done.err
    mine = load_board(str(tmp_path / "mine.toml"))
    access = mine.memory("flash").access
    assert isinstance(access, ParallelTiming) and access.wait_states == WAIT_STATES
    assert mine.core_factor == pytest.approx(FACTOR, abs=0.01)
    assert "root mean square" in done.out and "9 / 16 bytes" in done.out
    assert (tmp_path / "mine.toml").read_text().count(" cycles  digits: ") == len(runs["runs"][0]["layers"])  # type: ignore[index]


def changed(runs: Mapping[str, object], **keys: object) -> dict[str, object]:
    (run,) = runs["runs"]  # type: ignore[misc]
    return {**runs, "runs": [{**run, **keys}]}


def test_runs_of_another_model(tmp_path: Path, runs: Mapping[str, object]):
    done = calibrate(tmp_path, changed(runs, sha256="0" * 64))
    assert done.code == 2
    assert "runs must be of the models that --model names. found: a run of 'digits', sha256 000000000000…" in done.err


def test_runs_of_other_code(tmp_path: Path, runs: Mapping[str, object]):
    (run,) = runs["runs"]  # type: ignore[misc]
    first, *others = run["layers"]
    for layers, found in (
        ([{**first, "kernel": "odd"}, *others], f"layer '{first['name']}' by odd, not '{first['name']}' by"),
        (others, f"{len(others)} layers, not {len(others) + 1}"),
    ):
        done = calibrate(tmp_path, changed(runs, layers=layers))
        assert done.code == 2
        assert found in " ".join(done.err.split()) and "the options of the firmware: balanced" in done.err
    assert not (tmp_path / "mine.toml").exists()


def test_runs_at_two_clocks(tmp_path: Path, runs: Mapping[str, object]):
    (run,) = runs["runs"]  # type: ignore[misc]
    done = calibrate(tmp_path, {**runs, "runs": [run, {**run, "clock_hz": 80_000_000}]})
    assert done.code == 2 and "runs must be at one clock of the CPU. found: 80 MHz, 120 MHz" in done.err


@pytest.mark.parametrize("name", ["mine.txt", "stm32l4r5.toml"])
def test_the_file_is_a_new_board_file(tmp_path: Path, runs: Mapping[str, object], name: str):
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    given = ("--from", tmp_path / "runs.json", "--model", DIGITS, "-o", tmp_path / name)
    done = mcugen("calibrate-board", "stm32l4r5", *given)
    assert done.code == 2 and "-o must name a new board file" in done.err
