# SPDX-License-Identifier: Apache-2.0
"""-DMCUGEN_PLAIN_C: no assembly, no intrinsics, no computed jump, nothing that reads code, and the same bits."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plain_c import with_portable_kernels, with_portable_twins
from targets import clang

from mcugen.core.board import Board, load_board
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.simulation.toolchain import ARM, RISCV

ROOT = Path(__file__).resolve().parents[1]
DIGITS = ROOT / "examples" / "digits" / "digits_int8.onnx"
COMPUTED = re.compile(r"\t(tb[bh]\b|(?:ldr|add|mov)(?:\.[nw])?\s+pc,|bx\s+(?!lr)|blx\s+r)")
BOARDS = [
    *(pytest.param(board, marks=pytest.mark.qemu) for board in ("rp2040", "nrf52840", "corstone300")),
    pytest.param("rv32imc", marks=pytest.mark.riscv),
]


def run(command: list[str], folder: Path) -> str:
    """What it prints; it must succeed."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def built(board: Board, folder: Path, compiler: list[str]) -> Path:
    """The digits' functions, by the board's flags and a compiler's."""
    compile_model(DIGITS, board).write(folder)
    run([*compiler, *board.cflags, "-std=c99", "-O2", "-Wall", "-Werror", "-c", "digits_int8.c"], folder)
    return folder / "digits_int8.o"


def computed_jumps(code: Path) -> list[str]:
    """Of Arm code."""
    return COMPUTED.findall(run([ARM.objdump, "-d", str(code)], code.parent))


@pytest.mark.spread(3)
@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("kind", [with_portable_twins, with_portable_kernels])
def test_nothing_but_c_is_left_with_the_same_bits(board: str, kind, tmp_path: Path):
    target = kind(load_board(board))
    compiled = compile_model(DIGITS, target)
    compiled.write(tmp_path)
    tool = next(tool for tool in (ARM, RISCV) if tool.name == target.toolchain)
    text = run([tool.gcc, *tool.library, *target.cflags, "-std=c99", "-E", "digits_int8.c"], tmp_path)
    assert "digits_int8_run" in text
    assert not re.search(r"\basm\b|__asm|naked|arm_mve", text)
    assert_equal_outputs(compiled, compile_model(DIGITS, board))


def assert_equal_outputs(one: CompiledModel, other: CompiledModel) -> None:
    """In the simulator, for a random sample."""
    draw = np.random.default_rng(0)
    sample = {e.name: draw.normal(size=e.shape).astype(e.dtype.numpy) for e in one.program.inputs}
    found, expected = (model.simulate([sample]).outputs[0] for model in (one, other))
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.qemu
def test_computed_jumps_are_in_assembly_alone(tmp_path: Path):
    """gcc of Arm takes no literals from code with -mpure-code, and the assembly that is left has none either."""
    board = load_board("nrf52840")
    compiler = [ARM.gcc, "-mpure-code"]
    assert computed_jumps(built(board, tmp_path / "own", compiler))
    for kind in (with_portable_twins, with_portable_kernels):
        code = built(kind(board), tmp_path / kind.__name__, compiler)
        assert not computed_jumps(code)
        assert not re.search(r"\[pc|\.word", run([ARM.objdump, "-d", str(code)], tmp_path))


@pytest.mark.qemu
def test_branch_target_identification_marks_plain_c(tmp_path: Path):
    """By clang, as gcc 12 has no such option for the Cortex-M."""
    board = with_portable_kernels(load_board("corstone300"))
    command = [option for option in clang(board) if not option.startswith("-mcpu")]
    flags = ["-march=armv8.1-m.main+mve.fp+pacbti", "-mbranch-protection=standard", "-mexecute-only"]
    code = built(replace(board, cflags=("-DMCUGEN_PLAIN_C",)), tmp_path, [*command, *flags])
    assert "pacbti" in run([ARM.objdump, "-d", str(code)], tmp_path)


def test_the_documented_board_file_is_that_of_the_figures(tmp_path: Path):
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "how-to" / "firmware.md").read_text(), re.S)
    (tmp_path / "plain.toml").write_text(text)
    board, expected = load_board(str(tmp_path / "plain.toml")), with_portable_kernels(load_board("nrf52840"))
    assert (board.features, board.cflags, board.memories) == (expected.features, expected.cflags, expected.memories)
