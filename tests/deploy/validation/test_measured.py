# SPDX-License-Identifier: Apache-2.0
"""Shared measurements: what is in a file, which files are refused and how, and the table beside the estimates."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from browser import CHARTS_ARE_DRAWN, needs_chromium, opened
from command_line import mcugen

from mcugen.core.board import load_board
from mcugen.core.errors import UsageError, VerificationError
from mcugen.core.resources import resource_dir
from mcugen.deploy.measured.contribution import (
    MAX_FILE_BYTES,
    SharedMeasurement,
    measurement_of,
    measurement_schema,
    measurement_text,
    read_measurement,
    read_measurements,
    require_shareable,
)
from mcugen.deploy.measured.table import NO_MEASUREMENTS, measurement_page, measurement_table
from mcugen.deploy.validation.device import Identity
from mcugen.deploy.validation.figures import (
    CycleRange,
    LayerCheck,
    LinkStatistics,
    SimulatedFigures,
    ValidationReport,
    Verdict,
)
from mcugen.reporting.figures import ModelFigures

SECRETS = ("/home/ann", "ann_layer", "secret_model", "/dev/ttyACM7", "0672FF485550755187", "C:\\Users")
"""Texts of a user that stand in the report below, and may not be in a shared file."""


def report(**changes: Any) -> ValidationReport:
    """Return a validation report that names a user's paths wherever it may."""
    identity = Identity(
        name="secret_model",
        version="0.2.0",
        options="preprocess /home/ann/scale.py",
        compiler="gcc 13.2.1 20231009 (built by ann in /home/ann/gcc)",
        flags="optimized, FPU, DSP, /home/ann/flags",
        counter="DWT",
        has_layers=True,
        is_big_endian=False,
        frame=256,
        arena=1024,
        clock_hz=180_000_000,
        sha256="ab" * 32,
        code="cd" * 16,
    )
    layers = [LayerCheck("ann_layer", ["ann_layer"], "conv", "conv2d_s8_dsp", 900, "exact", 600, 400, 550, 100, 90)]
    figures = {
        "model": ModelFigures("secret_model", "ab" * 32, 900, 100, 0, 0),
        "board": "stm32f446",
        "cpu": "cortex-m4",
        "precision": "int8",
        "firmware": identity,
        "samples": 1,
        "accuracy": None,
        "outputs": Verdict.EXACT.value,
        "different_samples": 0,
        "layer_samples": 1,
        "difference": None,
        "constants_differ": [],
        "cycles": CycleRange("cycles", "DWT", 1000, 990, 1010, 180_000_000, 0.006),
        "instructions_estimate": 800,
        "stack": 200,
        "simulated": SimulatedFigures(800, 950, "/home/ann/board.toml", 190),
        "wire": LinkStatistics("/dev/ttyACM7 0672FF485550755187", 115_200, 1, 1, 1, 0, 0, 0, 0.1),
        "layers": layers,
        "notes": ("C:\\Users",),
    }
    return ValidationReport(**{**figures, **changes})


@pytest.fixture
def measurement() -> SharedMeasurement:
    return measurement_of(report())


def test_a_file_has_figures_and_no_names(measurement: SharedMeasurement, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(measurement_text(measurement))
    text = path.read_text()
    assert not any(secret in text for secret in SECRETS)
    assert read_measurement(path) == measurement
    assert (measurement.board, measurement.cpu, measurement.clock_hz) == ("stm32f446", "cortex-m4", 180_000_000)
    assert (measurement.compiler, measurement.flags) == ("gcc 13.2.1", ["optimized", "FPU", "DSP"])
    assert (measurement.cycles, measurement.cycles_estimate, measurement.sha256) == (1000, 950, "ab" * 32)
    assert [asdict(layer) for layer in measurement.layers] == [
        {"op": "conv", "kernel": "conv2d_s8_dsp", "macs": 900, "cycles": 600, "cycles_estimate": 550}
    ]


@pytest.mark.parametrize("compiler", ["armclang 6.2 for ann", "gcc /home/ann", "", "gcc 1e9"])
def test_an_unknown_compiler_is_not_named(compiler: str) -> None:
    firmware = replace(report().firmware, compiler=compiler)
    assert measurement_of(report(firmware=firmware)).compiler in ("unknown", "gcc 1")


def test_what_was_not_measured_is_refused() -> None:
    with pytest.raises(VerificationError, match="cycles of an inference"):
        measurement_of(report(cycles=None))
    with pytest.raises(VerificationError, match="cycles of an inference"):
        measurement_of(report(cycles=replace(report().cycles, unit="instructions")))  # type: ignore[type-var]


def test_a_firmware_that_tells_nonsense_is_refused() -> None:
    with pytest.raises(UsageError, match="--share") as raised:
        measurement_text(measurement_of(report(firmware=replace(report().firmware, version="0.2.0 /home/ann"))))
    assert "mcugen" in raised.value.found


def test_only_boards_of_mcugen_and_real_ports_can_be_shared(tmp_path: Path) -> None:
    own = tmp_path / "ann.toml"
    own.write_text('inherits = "stm32f446"\ndescription = "mine"\n')
    for board, port in [
        (load_board(str(own)), "COM3"),
        (load_board("host"), "COM3"),
        (load_board("rp2350"), "simulator"),
    ]:
        with pytest.raises(UsageError, match="--share is for"):
            require_shareable(board, port)
    require_shareable(load_board("pico2"), "COM3")


def test_the_command_refuses_a_simulated_board_before_it_compiles(tmp_path: Path) -> None:
    done = mcugen("validate", "missing.onnx", "--board", "pico2", "--port", "simulator", "--share", tmp_path / "a.json")
    assert done.code == 2
    assert "--share is for cycles of real boards" in done.err


def changed(measurement: SharedMeasurement, **changes: Any) -> str:
    return json.dumps({**asdict(measurement), **changes})


LAYER = {"op": "conv", "kernel": "k", "macs": 1, "cycles": 1, "cycles_estimate": 1}
HOSTILE: dict[str, Any] = {
    "an unknown key": {"name": "Ann"},
    "another format": {"format": "mcugen-runs"},
    "a later version": {"version": 2},
    "a boolean version": {"version": True},
    "an unknown board": {"board": "ann_board"},
    "a path as board": {"board": "../../etc/passwd"},
    "another CPU": {"cpu": "cortex-m7"},
    "a script as CPU": {"cpu": "<script>alert(1)</script>"},
    "no clock": {"clock_hz": 0},
    "a text as clock": {"clock_hz": "180000000"},
    "a float as clock": {"clock_hz": 1.8e8},
    "an unknown counter": {"counter": "none"},
    "a long compiler": {"compiler": "gcc " + "9" * 300},
    "control characters": {"compiler": "gcc 1\u001b[31m"},
    "an unknown flag": {"flags": ["-I/home/ann"]},
    "many flags": {"flags": ["FPU"] * 100},
    "a short hash": {"sha256": "ab"},
    "a hash in capitals": {"sha256": "AB" * 32},
    "a wrong verdict": {"verdict": "different"},
    "no cycles": {"cycles": 0},
    "negative cycles": {"cycles": -1},
    "huge cycles": {"cycles": 10**40},
    "null cycles": {"cycles": None},
    "no layers": {"layers": []},
    "layers that are no list": {"layers": {"0": LAYER}},
    "a named layer": {"layers": [{**LAYER, "name": "ann"}]},
    "a kernel that is markup": {"layers": [{**LAYER, "kernel": "<b>"}]},
    "layers longer than the inference": {"layers": [{**LAYER, "cycles": 5000}]},
    "too many layers": {"layers": [LAYER] * 10_001},
}
"""Changes of a measurement that make it wrong, by what they are."""


@pytest.mark.parametrize("what", HOSTILE)
def test_a_wrong_file_is_refused_with_one_message(what: str, measurement: SharedMeasurement, tmp_path: Path) -> None:
    path = tmp_path / "contribution.json"
    path.write_text(changed(measurement, **HOSTILE[what]))
    with pytest.raises(UsageError) as raised:
        read_measurement(path)
    text = str(raised.value)
    assert "contribution.json" in text
    assert len(text) < 600
    assert "\u001b" not in text
    (key,) = HOSTILE[what]
    assert key in text or key in ("cpu", "layers", "board")


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 100_000, b'{"cycles": NaN}', b" " * (MAX_FILE_BYTES + 1)],
    ids=["empty", "list", "null", "cut", "binary", "nested", "nan", "long"],
)
def test_other_data_are_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a\u001b.json"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="must") as raised:
        read_measurement(path)
    assert "\u001b" not in str(raised.value)


def test_a_missing_key_is_named(measurement: SharedMeasurement, tmp_path: Path) -> None:
    for key in asdict(measurement):
        data = asdict(measurement)
        del data[key]
        path = tmp_path / "a.json"
        path.write_text(json.dumps(data))
        with pytest.raises(UsageError, match=key):
            read_measurement(path)


def test_a_folder_is_read_in_order_and_without_copies(measurement: SharedMeasurement, tmp_path: Path) -> None:
    for number, cycles in enumerate((1000, 2000)):
        (tmp_path / f"{number}.json").write_text(changed(measurement, cycles=cycles))
    (tmp_path / "README.md").write_text("not a measurement")
    assert [one.cycles for one in read_measurements(tmp_path)] == [1000, 2000]
    (tmp_path / "2.json").write_text(changed(measurement))
    with pytest.raises(UsageError, match="in one file"):
        read_measurements(tmp_path)
    with pytest.raises(UsageError, match="readable"):
        read_measurements(tmp_path / "missing")


def test_all_measurements_of_the_repository_are_right() -> None:
    read_measurements(resource_dir("boards") / "measured")


def test_an_empty_folder_says_so(tmp_path: Path) -> None:
    assert "no measurements yet" in mcugen("boards", "measured", tmp_path).out
    assert measurement_table([]).startswith("No measurements yet")
    assert NO_MEASUREMENTS.split(":")[0] in measurement_page([])


def test_the_table_has_measured_and_estimated_cycles(measurement: SharedMeasurement, tmp_path: Path) -> None:
    others = [
        replace(measurement, board="rp2350", cpu="cortex-m33", cycles=2000),
        replace(measurement, cycles_estimate=None),
    ]
    table = measurement_table([measurement, *others])
    assert "| stm32f446 | abababababab | int8 | 180 | 1,000 | 950 | -5.0% | gcc 13.2.1 | 0.2.0 |" in table
    assert "| 2,000 | 950 | -52.5% |" in table
    (tmp_path / "a.json").write_text(measurement_text(measurement))
    done = mcugen("boards", "measured", tmp_path, "--json")
    assert json.loads(done.out) == [asdict(measurement)]
    assert "-5.0%" in mcugen("boards", "measured", tmp_path).out


def test_the_schema_forbids_further_keys() -> None:
    schema = measurement_schema()
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["SharedLayer"]["additionalProperties"] is False
    assert set(schema["required"]) == set(schema["properties"])


@needs_chromium
def test_the_page_plots_estimates_against_measurements(measurement: SharedMeasurement, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(measurement_page([measurement, replace(measurement, cycles=3000)]))
    with opened(page) as browser:
        browser.wait(CHARTS_ARE_DRAWN)
        assert browser.run("return document.querySelectorAll('.mark-symbol path').length") >= 4
        assert browser.errors == []
