# SPDX-License-Identifier: Apache-2.0
"""The benchmark: its wrapping of another compiler's code, its arithmetic, and its tables."""

from __future__ import annotations

import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmark.details import by_goal, by_layer, by_unit
from benchmark.emx import EMX, emx_bundle, wrap_emx
from benchmark.figures import NONE, Figures, LayerFigures, Outcome, Row
from benchmark.measure import Job, figures_of, guarded, measure_mcugen, roomy
from benchmark.recorded import TFLM_HARNESS_CODE, Study, Tflm, tables
from benchmark.results import Results
from benchmark.subjects import FLOAT_TOLERANCE, largest_error, load_subject
from benchmark.tables import (
    FLASH,
    INSTRUCTIONS,
    comparison,
    format_ratio,
    geometric_mean,
    ratio_style,
    to_markdown,
    to_rich,
)

from mcugen.codegen.bundle import Port
from mcugen.core.board import load_board
from mcugen.core.errors import UsageError, VerificationError
from mcugen.simulation import simulate

ROOT = Path(__file__).resolve().parents[2]


needs_emx = pytest.mark.skipif(
    not Path(sys.executable).with_name(EMX).is_file() and shutil.which(EMX) is None,
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


def figures(**changes: int) -> Figures:
    values = {"instructions": 100, "code": 10, "weights": 30, "arena": 5, "static": 1, "stack": 2, "error": 0}
    return Figures(**(values | changes))


def row(ours: Figures | None, theirs: Figures | None, note: str = "") -> Row:
    return Row("net", "board", "cortex-m0plus", Outcome(ours, note), Outcome(theirs))


def test_wrapped_code_runs_in_the_harness_despite_its_warnings():
    bundle = wrap_emx("tiny", CODE, DATA, inputs=(X,), outputs=(Y,))
    assert bundle.arena_size == 32
    run = simulate(bundle, load_board("host"), [{"x": np.array([[1, 2, 3]], np.float32)}])
    np.testing.assert_array_equal(run.outputs[0]["y"], [[1.5, 4.5, 12.5]])


@pytest.mark.qemu
def test_weights_of_wrapped_code_are_sized():
    bundle = wrap_emx("tiny", CODE, DATA, inputs=(X,), outputs=(Y,))
    run = simulate(bundle, load_board("nrf52840"), [{"x": np.zeros((1, 3), np.float32)}])
    found = figures_of(bundle, run, 0.0)
    assert found.weights == 12
    assert found.ram == 32 + found.static + found.stack
    assert found.flash == 12 + found.code


@pytest.mark.parametrize("code", ["void other(int a) {\n", CODE.replace("float y[", "float z[1], float y[")])
def test_code_with_another_entry_is_refused(code: str):
    with pytest.raises(VerificationError, match="emx-onnx-cgen"):
        wrap_emx("tiny", code, DATA, inputs=(X,), outputs=(Y,))


@needs_emx
def test_emx_computes_the_digits(tmp_path: Path):
    subject = load_subject(ROOT / "examples" / "digits" / "digits_f32.onnx")
    bundle = emx_bundle(subject.path, "digits_f32", tmp_path)
    assert [port.shape for port in (*bundle.inputs, *bundle.outputs)] == [(1, 1, 8, 8), (1, 10)]
    run = simulate(bundle, load_board("host"), [subject.sample])
    assert largest_error(run.outputs[0], subject.reference) < FLOAT_TOLERANCE


@pytest.mark.parametrize(
    ("ratio", "text", "style"),
    [(0.5, "0.50x", "green"), (1.0, "1.00x", "yellow"), (1.634, "1.63x", "red"), (0.0123, "0.012x", "green")],
)
def test_ratios(ratio: float, text: str, style: str):
    assert (format_ratio(ratio), ratio_style(ratio)) == (text, style)


def test_geometric_mean():
    assert geometric_mean([0.5, None, 2.0]) == pytest.approx(1.0)
    assert geometric_mean([None]) is None


def test_errors_are_relative_for_floats_and_in_steps_for_integers():
    floats = ({"y": np.array([100.0, 1.1])}, {"y": np.array([100.0, 1.0])})
    assert largest_error(*floats) == pytest.approx(0.001)
    steps = ({"y": np.array([127], np.int8)}, {"y": np.array([-128], np.int8)})
    assert largest_error(*steps) == 255
    assert largest_error({"y": np.array([math.nan])}, {"y": np.array([1.0])}) == math.inf


def test_table_has_ratios_means_and_notes():
    rows = [row(figures(), figures(instructions=400)), row(None, figures(), "mcugen: no | such operator")]
    table = comparison("t", "emx", rows, (INSTRUCTIONS, FLASH))
    assert table.rows[0] == ["net", "M0+", "100", "400", 0.25, "10 + 30", "10 + 30", 1.0, ""]
    assert table.rows[1][2:5] == ["-", "100", None]
    assert table.rows[2][:5] == ["geometric mean", "M0+", "", "", 0.25]
    assert len(comparison("t", "emx", rows[1:], (INSTRUCTIONS,)).rows) == 1  # nothing to compare
    text = to_markdown(table)
    assert "| net | M0+ | 100 | 400 | **0.25x** |" in text
    assert "no \\| such operator" in text
    assert len({line.replace("\\|", "").count("|") for line in text.splitlines() if line.startswith("|")}) == 1
    assert to_rich(table).row_count == 3


def test_failures_become_notes():
    def fail() -> Outcome:
        raise UsageError("2 nodes are not:\n  - Foo 'a': not supported", "Foo", "something")

    assert guarded(fail, "mcugen").note == "mcugen: Foo 'a': not supported"
    assert guarded(lambda: 1 // 0, "mcugen").note.startswith("mcugen: ZeroDivisionError")


RECORDED = {
    "net": {
        "cortex-m4": {
            "instructions": 50,
            "flash_code": TFLM_HARNESS_CODE + 7,
            "model_bytes": 3,
            "arena": 4,
            "ram_static": 6,
            "stack": 1,
            "layers": [
                {"op": "CONV_2D", "macs": 100, "instructions": 20},
                {"op": "ADD", "macs": 0, "instructions": 7},
                {"op": "CONV_2D", "macs": 100, "instructions": 23},
            ],
        }
    }
}
STUDY = """
| layer | MACs | **ours m4 = m7** | est. cyc/MAC CMSIS O2 -> ours | **ours m55** |
|---|---|---|---|---|
| c3x3_2_5_4x4 | 100 | **0.500 (direct 0.698)** | 2.87 -> 0.75 | **0.1** |
| r_pw_3_4_s2 | 100 | **0.750** | 2.87 -> 0.75 | **0.1** |
| v_dw_16_48_s2 | 90 | **1.5** | 2.87 -> 0.75 | - |
| add_4x4x4 | 64 | **5.0** | - | **2.0** |

| model | MACs | ours m4/m7 | est. Mcycles M4 CMSIS -> ours | ours m55 |
|---|---|---|---|---|
| AD | 0.1 M | **0.191 M** | 0.72 -> 0.40 (1.8x) | **0.040 M** |

| layer of something else | MACs |
|---|---|
| pw_1_1_1 | 1 |
"""


def layer(op: str, macs: int, instructions: int, channels: int = 5) -> LayerFigures:
    return LayerFigures(f"{op}{macs}", op, f"{op}_kernel", (1, 4, 4, channels), 64, channels, macs, instructions, 2)


def test_recorded_figures_are_found_by_model_and_cpu():
    tflm = Tflm(RECORDED)
    found = tflm.figures("net_int8_qdq", "cortex-m4")
    assert found is not None
    assert (found.instructions, found.code, found.flash, found.ram) == (50, 7, 10, 7)
    assert tflm.figures("net_int8_qdq", "cortex-m7") is None
    assert Tflm().figures("net", "cortex-m4") is None


def test_recorded_layers_are_matched_by_products_and_in_order():
    ours = [
        layer("conv", 100, 1),
        layer("conv", 100, 1),
        layer("conv", 100, 1),
        layer("softmax", 0, 1),
        layer("add", 0, 1),
    ]
    assert Tflm(RECORDED).layers("net", "cortex-m4", ours) == [20, 23, None, None, 7]
    assert Tflm(RECORDED).layers("net", "cortex-m3", ours[:1]) == [None]


def test_study_is_read_from_its_tables():
    study = Study.parse(STUDY)
    assert study.layer(layer("conv", 100, 1), "cortex-m4") == 50
    assert study.layer(layer("conv", 100, 1, channels=4), "cortex-m33") == 75
    assert study.layer(layer("conv", 90, 1, channels=16), "cortex-m7") == 135
    assert study.layer(layer("conv", 90, 1, channels=16), "cortex-m55") is None
    assert study.layer(layer("add", 0, 1), "cortex-m55") == 2 * 64
    assert study.layer(layer("conv", 100, 1), "cortex-m3") is None
    assert study.instructions("autoencoder_ad_int8_qdq", "cortex-m55") == pytest.approx(40_000)
    assert study.cycles("autoencoder_ad") == pytest.approx((720_000, 400_000))
    assert study.cycles("another") == (None, None)
    assert len(tables(STUDY, "layer")) == 4


@pytest.mark.shared
def test_study_knows_every_layer_with_products_of_the_models():
    study = Study.load()
    assert len(study.layer_cells) > 40
    assert study.instructions("resnet8_cifar10", "cortex-m4") == pytest.approx(5.963e6)
    assert study.layer(layer("conv", 2_359_296, 1, channels=32), "cortex-m4") == pytest.approx(0.356 * 2_359_296)


def test_details_set_layers_and_goals_beside_what_was_recorded():
    layers = (layer("conv", 100, 30), layer("add", 0, 14), layer("softmax", 0, 5))
    m4 = Row("net", "board", "cortex-m4", Outcome(figures(cycles=64), "", layers), NONE, "balanced", 100, 64_000)
    m3 = Row("net", "other", "cortex-m3", Outcome(figures(), "", layers[1:]), NONE, "balanced", 100, 1)
    tflm, study = Tflm(RECORDED), Study.parse(STUDY)

    goals = by_goal("net", [m4, m3], tflm, study)
    assert {len(line) for line in goals.rows} == {len(goals.columns)}
    assert goals.rows[0][:5] == ["M4", "balanced", "100", "1.000", 2.0]
    assert goals.rows[0][6:10] == ["64", None, None, "1.00"]
    assert goals.rows[1][4] is None

    table = by_layer("net", [m4, m3], tflm, study)
    assert table.columns[3:] == (
        *("M4\nkernel", "M4\ninstructions", "M4\n/MAC", "M4\ncycles", "M4\nby TFLM", "M4\nby study"),
        "M3\ninstructions",
    )
    assert table.rows[0] == ["conv", "4x4x5", "100", "conv_kernel", "30", "0.300", "2", 1.5, 0.6, None]
    assert table.rows[1][3:] == ["add_kernel", "14", "", "2", 2.0, 14 / 320, "14"]
    assert table.rows[2][-3:] == [None, None, "5"]


def test_shares_of_units():
    found = replace(layer("conv", 100, 200), units={"multiply": 120, "memory": 50, "branch": 30})
    rows = [Row("net", "board", cpu, Outcome(figures(), "", (found,)), NONE) for cpu in ("cortex-m4", "cortex-m7")]
    table = by_unit("net", rows)
    assert table.columns[3:] == ("products", "loads,\nstores", "branches")
    assert table.rows == [["conv", "4x4x5", "200", "60 %", "25 %", "15 %"]]
    assert not by_unit("net", rows[1:]).rows


@pytest.mark.qemu
def test_a_job_measures_goals_layers_and_cycles():
    job = Job(ROOT / "examples" / "digits" / "digits_int8.onnx", "nrf52840", ("balanced", "flash"), "-O2", False)
    balanced, flash = job.rows()
    assert (balanced.goal, flash.goal, balanced.clock_hz) == ("balanced", "flash", 64_000_000)
    found = balanced.mcugen
    assert found.figures is not None and found.figures.cycles is not None
    assert found.figures.cycles > found.figures.instructions > 0
    assert sum(layer.macs for layer in found.layers) == balanced.macs == 113_248
    assert all(layer.instructions and layer.cycles and layer.channels for layer in found.layers)
    results = Results("bench", {}, "", "", [], [balanced, flash], {}, Tflm(), Study())
    assert [len(table.rows) for table in results.tables()] == [1, 2, len(found.layers), len(found.layers)]
    for layer in found.layers:
        assert abs(sum(layer.units.values()) - layer.instructions) <= 5  # the hook
    assert {row["goal"] for row in results.to_json()["int8"]} == {"balanced", "flash"}


@pytest.mark.qemu
def test_small_boards_get_room_and_a_note():
    subject = load_subject(ROOT / "examples" / "digits" / "digits_f32.onnx")
    board = load_board("stm32f103")
    small = replace(board, memories=tuple(replace(m, size=4096) for m in board.memories))
    found = measure_mcugen(subject, small, "balanced")
    assert found.figures is not None and found.note == "too large for stm32f103"


def test_roomy_board_differs_in_memory_only():
    board = load_board("stm32f103")
    large = roomy(board)
    assert large.memory(large.arena_memory).size > board.memory(board.arena_memory).size
    assert (large.name, large.cflags, large.features) == (board.name, board.cflags, board.features)
