# SPDX-License-Identifier: Apache-2.0
"""Estimates beside published measurements: what is left out is told, and what is missed is marked."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from against_hardware import MARKS, MODELS, TARGETS, Row, estimate_all, program_table
from hardware.measured import PROGRAMS, Measured
from hardware.networks import write_network

from mcugen.core.board import load_board
from mcugen.simulation.cycles import Cycles


def row(measured: int, estimate: int | None) -> Row:
    return Row(Measured("pico2", "ad", "plain", measured), Cycles(estimate, None, "no timing"))


def test_programs_without_sources_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert list(estimate_all(PROGRAMS, None, tmp_path)) == []
    (tmp_path / "tigris").mkdir()
    assert list(estimate_all(PROGRAMS[:4], tmp_path, tmp_path)) == []
    told = " ".join(capsys.readouterr().err.split())
    assert "TiGrIS, CMSIS-NN: left out, since --sources has no tigris, tigris-runtime, CMSIS-NN" in told
    assert "pico2: ts, TiGrIS, plain C: left out" in told
    assert "TFLM, CMSIS-NN: left out, since --sources has no tflite-micro" in told


def test_misses_are_marked_and_counted():
    lines = list(program_table([row(1000, 1050), row(1000, 860), row(1000, 700), row(1000, None)]))
    assert "| pico2 | ad | TiGrIS, plain C | 1,000 | 1,050 | 0 | +5.0% |" in lines
    assert [line for line in lines if "(miss)" in line] == [lines[4]]
    assert "no timing" in lines[5]
    assert lines[-1] == "Within 15%: 2 of 4; within 7%: 1."


def test_measured_boards_exist():
    assert {load_board(program.kit).name for program in PROGRAMS} == {"stm32f446", "stm32h753", "rp2350"}
    for kit, marks in MARKS.items():
        assert load_board(kit).kits
        assert len(marks) == len(TARGETS[kit]) == len(MODELS)


@pytest.mark.parametrize(("network", "macs"), [("ts", 4), ("ad", 10)])
def test_networks_are_quantized(tmp_path: Path, network: str, macs: int):
    model = onnx.load(write_network(network, tmp_path))  # type: ignore[arg-type]
    ops = [node.op_type for node in model.graph.node]
    assert ops.count("Conv") + ops.count("Gemm") == macs
    assert "QuantizeLinear" in ops
