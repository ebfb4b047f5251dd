# SPDX-License-Identifier: Apache-2.0
"""`--kernels portable`: C without assembly, intrinsics and computed jumps, with the results of other kernels."""

from __future__ import annotations

import re

import numpy as np
import pytest
from command_line import mcugen
from export_packages import DIGITS, ROOT

from mcugen import Compilation
from mcugen.core.options import PORTABLE, CompileOptions

MACHINE_CODE = re.compile(r"\b(__asm__|asm|arm_mve|vld\w+q?_|naked)\b|goto \*")
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
CALIBRATION = ROOT / "examples" / "digits" / "calibration.npz"


def portable(board: str) -> Compilation:
    return Compilation(DIGITS, board, CompileOptions(family=PORTABLE))


@pytest.mark.parametrize("board", ["nrf52840", "rp2040", "rt1060", "corstone300", "esp32c3", "rp2350_riscv", "host"])
def test_the_model_s_files_have_no_machine_code(board: str) -> None:
    files = portable(board).compiled.bundle.files
    code = {file: COMMENT.sub("", text) for file, text in files.items() if file.endswith((".c", ".h"))}
    assert {
        file: found for file, text in code.items() if file != "mcugen.h" and (found := MACHINE_CODE.search(text))
    } == {}


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["nrf52840", "rp2040", "esp32c3"])
def test_the_results_are_those_of_the_boards_own_kernels(board: str) -> None:
    inputs = {"image": np.load(CALIBRATION)[np.load(CALIBRATION).files[0]][:4]}
    own, plain = (Compilation(DIGITS, board, CompileOptions(family=family)).run(inputs) for family in ("own", PORTABLE))
    assert own.keys() == plain.keys()
    for name, array in own.items():
        np.testing.assert_array_equal(plain[name], array)


def test_the_report_names_the_family(tmp_path) -> None:
    done = mcugen("compile", DIGITS, "--board", "nrf52840", "--kernels", "portable", "-o", tmp_path / "c")
    assert done.code == 0, done.err
    assert "kernels portable" in (tmp_path / "c" / "digits_int8.h").read_text()
