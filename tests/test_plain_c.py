# SPDX-License-Identifier: Apache-2.0
"""-DMCUGEN_PLAIN_C: no assembly, no intrinsics, no computed jump, nothing that reads code, and the same bits."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plain_c import with_portable_twins
from targets import clang

from mcugen.core.board import Board, load_board
from mcugen.core.options import PORTABLE, CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.simulation.toolchain import ARM, RISCV

ROOT = Path(__file__).resolve().parents[1]
DIGITS = ROOT / "examples" / "digits" / "digits_int8.onnx"
PLAIN = {"twins": with_portable_twins, "option": lambda board: board}
"""Board of each way to plain C: by the define of the board's flags, or by `--kernels portable`."""
OPTIONS = {"twins": CompileOptions(), "option": CompileOptions(family=PORTABLE)}
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


def built(board: Board, folder: Path, compiler: list[str], options: CompileOptions = OPTIONS["twins"]) -> Path:
    """The digits' functions, by the board's flags and a compiler's."""
    compile_model(DIGITS, board, options).write(folder)
    run([*compiler, *board.cflags, "-std=c99", "-O2", "-Wall", "-Werror", "-c", "digits_int8.c"], folder)
    return folder / "digits_int8.o"


def without_system_headers(text: str) -> str:
    """Return preprocessed C without the lines of system headers, whose line markers have the flag 3."""
    lines, is_own = [], True
    for line in text.splitlines():
        if line.startswith("# "):
            is_own = "3" not in line.rpartition('"')[2].split()
        elif is_own:
            lines.append(line)
    return "\n".join(lines)


def computed_jumps(code: Path) -> list[str]:
    """Of Arm code."""
    return COMPUTED.findall(run([ARM.objdump, "-d", str(code)], code.parent))


@pytest.mark.spread(3)
@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("kind", PLAIN)
def test_nothing_but_c_is_left_with_the_same_bits(board: str, kind: str, tmp_path: Path):
    target = PLAIN[kind](load_board(board))
    compiled = compile_model(DIGITS, target, OPTIONS[kind])
    compiled.write(tmp_path)
    tool = next(tool for tool in (ARM, RISCV) if tool.name == target.toolchain)
    text = run([tool.gcc, *tool.library, *target.cflags, "-std=c99", "-E", "digits_int8.c"], tmp_path)
    own = without_system_headers(text)
    assert "digits_int8_run" in own
    assert not re.search(r"\basm\b|__asm|naked|arm_mve|\bv[a-z]+q_", own)
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
    for kind in PLAIN:
        code = built(PLAIN[kind](board), tmp_path / kind, compiler, OPTIONS[kind])
        assert not computed_jumps(code)
        assert not re.search(r"\[pc|\.word", run([ARM.objdump, "-d", str(code)], tmp_path))


@pytest.mark.qemu
def test_branch_target_identification_marks_plain_c(tmp_path: Path):
    """By clang, as gcc 12 has no such option for the Cortex-M."""
    board = load_board("corstone300")
    command = [option for option in clang(board) if not option.startswith("-mcpu")]
    flags = ["-march=armv8.1-m.main+mve.fp+pacbti", "-mbranch-protection=standard", "-mexecute-only"]
    code = built(replace(board, cflags=("-DMCUGEN_PLAIN_C",)), tmp_path, [*command, *flags], OPTIONS["option"])
    assert "pacbti" in run([ARM.objdump, "-d", str(code)], tmp_path)


def test_the_documented_board_file_is_that_of_the_figures(tmp_path: Path):
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "how-to" / "firmware.md").read_text(), re.S)
    (tmp_path / "plain.toml").write_text(text)
    board, twins = load_board(str(tmp_path / "plain.toml")), with_portable_twins(load_board("nrf52840"))
    assert (board.features, board.cflags, board.memories) == (frozenset(), twins.cflags, twins.memories)
