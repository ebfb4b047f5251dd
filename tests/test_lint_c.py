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

MOST = 21
"""Lines of the digits network in plain C that break required rules; it may only fall: lower this where it did."""


def lint(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "lint_c.py"), str(folder), "--cpu", "plain", *arguments]
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


def test_lines_that_break_required_rules_do_not_grow(tmp_path: Path):
    digits = ROOT / "examples" / "digits" / "digits_int8.onnx"
    compile_model(digits, options=CompileOptions("digits")).write(tmp_path / "digits")
    found = int(lint(tmp_path / "digits").stderr.split()[0])
    assert found <= MOST


def test_documented_deviations_are_those_of_the_code():
    sys.path.insert(0, str(ROOT / "tools"))
    from lint_c import deviation_table

    assert deviation_table() in (ROOT / "docs" / "misra.md").read_text()
