# SPDX-License-Identifier: Apache-2.0
"""The benchmark: its wrapping of another compiler's code, its arithmetic, and its tables."""

from __future__ import annotations

import math
import shutil
import sys
from pathlib import Path

import bench
import numpy as np
import pytest

from mcugen.board import load_board
from mcugen.codegen.bundle import Port
from mcugen.errors import UsageError, VerificationError
from mcugen.simulate import simulate

ROOT = Path(__file__).resolve().parents[1]


needs_emx = pytest.mark.skipif(
    not Path(sys.executable).with_name(bench.EMX).is_file() and shutil.which(bench.EMX) is None,
    reason="needs emx-onnx-cgen: pip install -e '.[bench]'",
)

CODE = """
extern const float tiny_emx_w[3];
static inline int unused(void) { return 0; }
void tiny_emx(const float x[restrict 1][3], float y[restrict 1][3]) {
    for (int i = 0; i < 3; ++i) {
        y[0][i] = x[0][i] * tiny_emx_w[i] + 0.5;
    }
}
"""
DATA = "const float tiny_emx_w[3] = { 1.0, 2.0, 4.0 };\n"
X = Port("x", "tiny_input_0", "float32", (1, 3), 12)
Y = Port("y", "tiny_output_0", "float32", (1, 3), 12)


def figures(**changes: int) -> object:
    values = {"instructions": 100, "code": 10, "weights": 30, "arena": 5, "static": 1, "stack": 2, "error": 0}
    return bench.Figures(**(values | changes))


def row(ours: object | None, theirs: object | None, note: str = "") -> object:
    return bench.Row("net", "board", "cortex-m0plus", bench.Outcome(ours, note), bench.Outcome(theirs))


def test_wrapped_code_runs_in_the_harness_despite_its_warnings():
    bundle = bench.wrap_emx("tiny", CODE, DATA, inputs=(X,), outputs=(Y,))
    assert bundle.arena_size == 32
    run = simulate(bundle, load_board("host"), [{"x": np.array([[1, 2, 3]], np.float32)}])
    np.testing.assert_array_equal(run.outputs[0]["y"], [[1.5, 4.5, 12.5]])


@pytest.mark.qemu
def test_weights_of_wrapped_code_are_sized():
    bundle = bench.wrap_emx("tiny", CODE, DATA, inputs=(X,), outputs=(Y,))
    run = simulate(bundle, load_board("nrf52840"), [{"x": np.zeros((1, 3), np.float32)}])
    found = bench.figures_of(bundle, run, 0.0)
    assert found.weights == 12
    assert found.ram == 32 + found.static + found.stack
    assert found.flash == 12 + found.code


@pytest.mark.parametrize("code", ["void other(int a) {\n", CODE.replace("float y[", "float z[1], float y[")])
def test_code_with_another_entry_is_refused(code: str):
    with pytest.raises(VerificationError, match="emx-onnx-cgen"):
        bench.wrap_emx("tiny", code, DATA, inputs=(X,), outputs=(Y,))


@needs_emx
def test_emx_computes_the_digits(tmp_path: Path):
    subject = bench.load_subject(ROOT / "examples" / "digits" / "digits_f32.onnx")
    bundle = bench.emx_bundle(subject.path, "digits_f32", tmp_path)
    assert [port.shape for port in (*bundle.inputs, *bundle.outputs)] == [(1, 1, 8, 8), (1, 10)]
    run = simulate(bundle, load_board("host"), [subject.sample])
    assert bench.largest_error(run.outputs[0], subject.reference) < bench.FLOAT_TOLERANCE


@pytest.mark.parametrize(
    ("ratio", "text", "style"),
    [(0.5, "0.50x", "green"), (1.0, "1.00x", "yellow"), (1.634, "1.63x", "red"), (0.0123, "0.012x", "green")],
)
def test_ratios(ratio: float, text: str, style: str):
    assert (bench.format_ratio(ratio), bench.ratio_style(ratio)) == (text, style)


def test_geometric_mean():
    assert bench.geometric_mean([0.5, None, 2.0]) == pytest.approx(1.0)
    assert bench.geometric_mean([None]) is None


def test_errors_are_relative_for_floats_and_in_steps_for_integers():
    floats = ({"y": np.array([100.0, 1.1])}, {"y": np.array([100.0, 1.0])})
    assert bench.largest_error(*floats) == pytest.approx(0.001)
    steps = ({"y": np.array([127], np.int8)}, {"y": np.array([-128], np.int8)})
    assert bench.largest_error(*steps) == 255
    assert bench.largest_error({"y": np.array([math.nan])}, {"y": np.array([1.0])}) == math.inf


def test_table_has_ratios_means_and_notes():
    rows = [row(figures(), figures(instructions=400)), row(None, figures(), "mcugen: no | such operator")]
    table = bench.comparison("t", "emx", rows, (bench.INSTRUCTIONS, bench.FLASH))
    assert table.rows[0] == ["net", "M0+", "100", "400", 0.25, "10 + 30", "10 + 30", 1.0, ""]
    assert table.rows[1][2:5] == ["-", "100", None]
    assert table.rows[2][:5] == ["geometric mean", "M0+", "", "", 0.25]
    text = bench.to_markdown(table)
    assert "| net | M0+ | 100 | 400 | **0.25x** |" in text
    assert "no \\| such operator" in text
    assert len({line.replace("\\|", "").count("|") for line in text.splitlines() if line.startswith("|")}) == 1
    assert bench.to_rich(table).row_count == 3


def test_failures_become_notes():
    def fail() -> object:
        raise UsageError("2 nodes are not:\n  - Foo 'a': not supported", "Foo", "something")

    assert bench.guarded(fail, "mcugen").note == "mcugen: Foo 'a': not supported"
    assert bench.guarded(lambda: 1 // 0, "mcugen").note.startswith("mcugen: ZeroDivisionError")


def test_recorded_figures_are_found_by_model_and_cpu():
    recorded = {
        "instructions": 9,
        "flash_code": bench.TFLM_HARNESS_CODE + 7,
        "model_bytes": 3,
        "arena": 4,
        "ram_static": 6,
        "stack": 1,
    }
    subject = bench.Subject(Path("net_int8_qdq.onnx"), {}, {})
    anchors = {"net": {"cortex-m0": recorded}}
    found = bench.measure_tflm(anchors, subject, load_board("rp2040")).figures
    assert (found.instructions, found.code, found.flash, found.ram) == (9, 7, 10, 7)
    assert bench.measure_tflm(anchors, subject, load_board("rt1060")).figures is None


def test_roomy_board_differs_in_memory_only():
    board = load_board("stm32f103")
    large = bench.roomy(board)
    assert large.memory(large.arena_memory).size > board.memory(board.arena_memory).size
    assert (large.name, large.cflags, large.features) == (board.name, board.cflags, board.features)
