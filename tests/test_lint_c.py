# SPDX-License-Identifier: Apache-2.0
"""tools/lint_c.py: rules of MISRA C:2012 that generated C breaks, counted by cppcheck's add-on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mcugen.compiler import compile_model
from mcugen.options import CompileOptions

ROOT = Path(__file__).resolve().parents[1]
NEEDED = "needs cppcheck: sudo apt-get install cppcheck"
pytestmark = pytest.mark.skipif(shutil.which("cppcheck") is None, reason=NEEDED)

BOARDS = {"plain": "nrf52840", "m0": "rp2040", "m4": "nrf52840", "m55": "corstone300", "rv32": "gd32vf103"}
"""For whose code a CPU's macros are looked at."""


def lint(folder: Path, *arguments: str, cpu: str = "plain") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "lint_c.py"), str(folder), "--cpu", cpu, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


CASES = {
    "a shift of a signed number": ("return v << 2;", 1),
    "the same with a reason": ("/* cppcheck-suppress misra-c2012-10.1 ; below 2^29 */\n    return v << 2;", 0),
    "no rule": ("return v;", 0),
}


@pytest.mark.parametrize("case", CASES)
def test_a_required_rule_needs_a_reason(case: str, tmp_path: Path):
    body, code = CASES[case]
    text = f"#include <stdint.h>\nint32_t twice(int32_t v);\nint32_t twice(int32_t v)\n{{\n    {body}\n}}\n"
    (tmp_path / "net.c").write_text(text)
    done = lint(tmp_path, "--list")
    assert done.returncode == code, done.stderr
    assert ("10.1\tNAME.c" in done.stdout) == bool(code)


POINTERS = {
    "a pointer moves on": ("const int8_t *from = x;\n    for (; n > 0; --n, from += n) {\n    }\n    return *from;", 0),
    "a small number takes a large one": ("int8_t sum = 0;\n    sum += n;\n    return sum + x[0];", 1),
}


@pytest.mark.parametrize("case", POINTERS)
def test_only_numbers_have_essential_types(case: str, tmp_path: Path):
    body, code = POINTERS[case]
    head = "int32_t last(const int8_t *x, int32_t n)"
    (tmp_path / "net.c").write_text(f"#include <stdint.h>\n{head};\n{head}\n{{\n    {body}\n}}\n")
    done = lint(tmp_path, "--list")
    assert ("10.3\tNAME.c" in done.stdout) == bool(code), done.stdout


@pytest.mark.parametrize(
    "cpu", [pytest.param(c, marks=pytest.mark.slow if c[0] in "mr" and c != "m4" else ()) for c in BOARDS]
)
def test_the_digits_break_no_required_rule_without_a_reason(cpu: str, tmp_path: Path):
    digits = ROOT / "examples" / "digits" / "digits_int8.onnx"
    compile_model(digits, BOARDS[cpu], CompileOptions("digits")).write(tmp_path / "digits")
    done = lint(tmp_path / "digits", "--list", cpu=cpu)
    assert done.returncode == 0, done.stdout


def test_documented_deviations_are_those_of_the_code():
    sys.path.insert(0, str(ROOT / "tools"))
    from lint_c import deviation_table

    assert deviation_table() in (ROOT / "docs" / "misra.md").read_text()
