# SPDX-License-Identifier: Apache-2.0
"""Files of runs that are no such files, and board files that say what was found."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcugen.calibration.files import board_text, read_runs
from mcugen.calibration.fit import Calibration, MeasuredLayer, Residual
from mcugen.core.board import SerialTiming, load_board
from mcugen.core.errors import UsageError

LAYER: dict[str, Any] = {"name": "conv", "op": "conv2d", "kernel": "conv2d_s8", "macs": 4, "cycles": 1000}
RUN: dict[str, Any] = {
    "board": "rp2350", "model": "net", "sha256": "ab" * 32, "options": "balanced", "clock_hz": 150_000_000,
    "cycles": 1000, "layers": [LAYER],
}  # fmt: skip


def write(folder: Path, document: object) -> Path:
    path = folder / "runs.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def runs(*runs: object) -> dict[str, object]:
    return {"format": "mcugen-runs", "version": 1, "runs": list(runs)}


def test_runs_are_read(tmp_path: Path):
    (run,) = read_runs(write(tmp_path, runs(RUN)))
    assert (run.model, run.clock_hz, run.layers[0].kernel, run.layers[0].cycles) == (
        "net",
        150_000_000,
        "conv2d_s8",
        1000,
    )


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "must be JSON"),
        ("[" * 100_000, "must be JSON"),
        ([], "must be of format 'mcugen-runs', version 1"),
        ({**runs(RUN), "version": 2}, "must be of format 'mcugen-runs', version 1"),
        (runs(), "'runs' must be a list of at least one run"),
        (runs(3), r"runs\[0\] must be an object"),
        (runs({**RUN, "cycles": None}), r"runs\[0\]\.cycles must be a whole number above 0\. found: None"),
        (runs({**RUN, "clock_hz": 1.5}), r"runs\[0\]\.clock_hz must be a whole number"),
        (runs({**RUN, "sha256": 4}), r"runs\[0\]\.sha256 must be a text"),
        (runs({**RUN, "layers": []}), r"runs\[0\]\.layers must be a list of at least one layer"),
        (
            runs(RUN, {**RUN, "layers": [{**LAYER, "cycles": -5}]}),
            r"runs\[1\]\.layers\[0\]\.cycles must be .* found: -5",
        ),
        (runs({**RUN, "cycles": True}), "must be a whole number above 0. found: True"),
    ],
)
def test_what_is_no_file_of_runs(tmp_path: Path, document: object, message: str):
    with pytest.raises(UsageError, match=message):
        read_runs(write(tmp_path, document))


def test_no_file(tmp_path: Path):
    with pytest.raises(UsageError, match="a file of runs must be readable"):
        read_runs(tmp_path / "none.json")


@pytest.mark.parametrize("name", ["rp2350", "stm32h743", "stm32l4r5", "corstone300"])
def test_the_board_file_says_what_was_found(tmp_path: Path, name: str):
    base = load_board(name)
    layer = MeasuredLayer('net"\n', "conv\n[[memories]]", 1000, 1.0)
    found = Calibration(replace(base, core_factor=1.125), (Residual(layer, -0.25, 0.01),), ("sram",))
    text = board_text(base, found, "2 runs\n")
    path = tmp_path / "mine.toml"
    path.write_text(text)
    mine = load_board(str(path))
    assert (mine.memories, mine.caches, mine.core_factor) == (base.memories, base.caches, 1.125)
    assert "-25.0%" in text and "1,000 cycles" in text and "waited for sram" in text
    assert len(tomllib.loads(text)["memories"]) == len(base.memories)
    assert mine.kits == () and mine.sources[-1].startswith("measured: 2 runs")


def test_serial_memory_is_written_as_such(tmp_path: Path):
    base = load_board("rp2350")
    memories = tuple(
        replace(m, access=replace(m.access, overhead_clocks=7)) if isinstance(m.access, SerialTiming) else m
        for m in base.memories
    )
    path = tmp_path / "mine.toml"
    path.write_text(
        board_text(
            base,
            Calibration(
                replace(base, memories=memories), (Residual(MeasuredLayer("net", "conv", 9, 1.0), 0.1, 0.0),), ()
            ),
            "a run",
        )
    )
    access = load_board(str(path)).memory("flash").access
    assert isinstance(access, SerialTiming) and access.overhead_clocks == 7
