# SPDX-License-Identifier: Apache-2.0
"""The firmware on boards in QEMU, its serial line on a pseudo-terminal or a socket, the real command behind it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import mcugen
from onnx_models import Net
from serial_lines import Noise, Resets, on_socket, on_terminal

from mcugen.api.compilation import Compilation
from mcugen.calibration.files import read_runs
from mcugen.core.options import CompileOptions
from mcugen.deploy.validation.session import SIMULATOR_PORT, ValidationSetup, validate_model
from mcugen.driver.compiler import compile_model
from mcugen.driver.tasks import Judging
from mcugen.simulation.build import build_wire_target
from mcugen.simulation.execute import qemu_program
from mcugen.simulation.machines import find_machine

DIGITS = Path(__file__).resolve().parents[3] / "examples" / "digits"
MODEL = DIGITS / "digits_int8.onnx"
PATIENCE = 120
"""Seconds: this computer may be busy."""

CALL = 10
"""Instructions that calling the run function through the firmware may take, and calling it in the report may not."""

HOOK = 16
"""Bytes that the hooks of the firmware and of the simulator may take more or less than each other."""


def firmware(board: str, folder: Path) -> list[str]:
    """The command that is the board; its clock follows its instructions."""
    compiled = compile_model(MODEL, board, CompileOptions(validation=True))
    machine = find_machine(compiled.board)
    image = build_wire_target(compiled.bundle, compiled.board, machine, folder)
    return list(qemu_program(image, machine, count_instructions=True, serial="stdio").command)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Ten of the samples of the example."""
    with np.load(DIGITS / "eval.npz") as arrays:
        np.savez(tmp_path / "data.npz", **{name: array[:10] for name, array in arrays.items()})
    return tmp_path / "data.npz"


def result_of(command: str, board: str, data: Path, *more: object) -> dict:
    shared = ("--board", board, "--data", data, "--pixel-scale", 1 / 16, "--json", "-", "--quiet")
    done = mcugen(command, MODEL, *shared, *more)
    assert done.code == 0, done.err
    return dict(json.loads(done.out))


BOARDS = [
    pytest.param("stm32f411", marks=pytest.mark.qemu, id="Cortex-M4"),
    pytest.param("esp32c3", marks=pytest.mark.riscv, id="RV32"),
    pytest.param("rp2040", marks=[pytest.mark.qemu, pytest.mark.slow], id="Cortex-M0+"),
    pytest.param("nrf5340", marks=[pytest.mark.qemu, pytest.mark.slow], id="Cortex-M33"),
    pytest.param("corstone300", marks=[pytest.mark.qemu, pytest.mark.slow], id="Cortex-M55"),
]


@pytest.mark.spread(2)
@pytest.mark.parametrize("board", BOARDS)
def test_a_board_on_a_wire_says_what_the_report_says(board: str, data: Path):
    """Bits of outputs and layers, accuracy, instructions and stack."""
    runs = data.with_name("runs.json")
    options = ("--port", "simulator", "--timeout", PATIENCE, "--runs", runs, "--simulate")
    found = result_of("validate", board, data, *options)
    report = result_of("report", board, data)
    assert found["accuracy"] == report["accuracy"]
    assert (found["outputs"], found["different_samples"], found["layer_samples"]) == ("exact", 0, 8)
    assert {layer["verdict"] for layer in found["layers"]} == {"exact"}
    assert found["constants_differ"] == []
    assert found["cycles"]["first"] == pytest.approx(report["instructions"], abs=CALL)
    assert found["stack"] == pytest.approx(report["ram"]["stack"], abs=32)
    assert found["wire"]["damaged"] == 0  # a busy computer starts the machine late, so that a request may be lost
    ours = sum(layer["cycles"] for layer in found["layers"])
    theirs = sum(layer["instructions"] for layer in report["layers"])
    assert ours == pytest.approx(theirs, rel=0.01)  # the compiler may inline otherwise where the hooks are
    stacks = [layer["stack"] for layer in found["layers"]]
    assert stacks == pytest.approx([layer["stack_simulated"] for layer in found["layers"]], abs=HOOK)
    assert max(stacks) == pytest.approx(found["stack"], abs=32)
    assert len(set(stacks)) > 2  # of each layer, not of those before it too
    (run,) = read_runs(runs)  # as calibrate-board takes them
    assert run.cycles == found["cycles"]["first"]
    assert [layer.cycles for layer in run.layers] == [layer["cycles"] for layer in found["layers"]]


@pytest.mark.slow
@pytest.mark.qemu
def test_a_pseudo_terminal_with_noise_and_resets(data: Path, tmp_path: Path):
    device = firmware("stm32f411", tmp_path)

    class Trouble(Noise, Resets):
        """Both."""

        def __init__(self) -> None:
            Noise.__init__(self, lambda r, byte: [byte ^ 1 << r.randrange(8)], 4000)
            self.every, self.times, self.sent = 2500, 1, 0

        def to_board(self, data: bytes) -> bytes:
            self.sent += len(data)
            return Noise.to_board(self, data)

        to_host = Noise.to_board

    trouble = Trouble()
    with on_terminal(device, trouble) as port:
        found = result_of("validate", "stm32f411", data, "--port", port, "--timeout", PATIENCE)
    assert (found["outputs"], found["different_samples"], found["difference"]) == ("exact", 0, None)
    assert found["wire"]["resets"] == 1
    assert trouble.count > 0


@pytest.mark.slow
@pytest.mark.qemu
def test_ten_thousand_frames_without_a_lost_one(tmp_path: Path):
    """The time that they take at 115,200 baud follows from their bytes."""
    with np.load(DIGITS / "eval.npz") as arrays:
        many = {name: np.concatenate([array] * 4) for name, array in arrays.items()}
    np.savez(tmp_path / "many.npz", **many)
    with on_socket(firmware("stm32f411", tmp_path)) as port:
        found = result_of("validate", "stm32f411", tmp_path / "many.npz", "--port", port, "--timeout", PATIENCE)
    wire = found["wire"]
    assert wire["frames"] > 10_000
    assert wire["lost"] == wire["damaged"] == wire["resets"] == 0
    assert wire["seconds"] == pytest.approx((wire["sent"] + wire["received"]) * 10 / 115_200, abs=1e-3)
    assert found["outputs"] == "exact"


@pytest.mark.qemu
def test_an_input_of_raw_data_comes_made_to_board_and_simulator():
    net = Net()
    net.output(net.op("GlobalAveragePool", net.input("x", 1, 3, 8, 8), out="y"))
    options = CompileOptions("net", input_pipeline="image=rgb565, crop=center, scale=1/255", validation=True)
    raw = np.random.default_rng(0).integers(0, 256, (2, 24, 40, 2), dtype=np.uint8)
    made = Compilation(net.model(), "nrf52840", options, judging=Judging(data={"x": raw}))
    found = validate_model(made, ValidationSetup(SIMULATOR_PORT, patience=PATIENCE, simulates=True))
    assert (found.outputs, found.samples) == ("exact", 2)
    (layer,) = found.layers
    assert layer.stack is not None and layer.stack_simulated is not None
    assert layer.stack == pytest.approx(layer.stack_simulated, abs=HOOK)
