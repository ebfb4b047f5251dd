# SPDX-License-Identifier: Apache-2.0
"""Generated files contain the runtime functions that they call, each behind a guard, and no others."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from compilers import STRICT
from export_packages import digits, tiny

from mcugen.codegen.runtime_functions import RuntimeFunction, runtime_functions, with_runtime_functions
from mcugen.core.resources import resource_dir

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
MAX_HEADER_LINES = 250
FUNCTION_NAMES = {name for function in runtime_functions() for name in function.defined}


def functions_in(text: str) -> list[RuntimeFunction]:
    return [function for function in runtime_functions() if f"#define {function.guard}\n" in text]


def words(text: str) -> set[str]:
    return set(re.findall(r"\bmcugen_\w+|\bMCUGEN_\w+", COMMENT.sub("", text)))


def test_the_functions_are_those_of_the_file() -> None:
    text = (resource_dir("runtime_c") / "functions.h").read_text()
    defined = re.findall(r"^(?:static|MCUGEN_ONCE)[^;{=]*?(mcugen_\w+)\(", text, re.MULTILINE)
    assert len(defined) > 100
    assert set(defined) <= FUNCTION_NAMES
    assert "".join(function.text for function in runtime_functions()).count("\n{\n") == text.count("\n{\n")


def test_each_function_stands_behind_those_that_it_calls() -> None:
    before: set[str] = set()
    for function in runtime_functions():
        before |= function.defined
        assert function.used & FUNCTION_NAMES <= before, function.guard


def test_guards_are_unique() -> None:
    guards = [function.guard for function in runtime_functions()]
    assert len(set(guards)) == len(guards)


@pytest.mark.parametrize("function", runtime_functions(), ids=lambda function: function.guard)
def test_each_function_compiles_with_what_it_calls_alone(function: RuntimeFunction, tmp_path: Path) -> None:
    header = (resource_dir("runtime_c") / "include" / "mcugen.h").read_text()
    caller = f'#include "mcugen.h"\n/* calls */\n#define USED {min(function.defined)}\n'
    texts = with_runtime_functions({"mcugen.h": header, "caller.h": caller})
    for name, text in {**texts, "main.c": '#include "caller.h"\n#include "caller.h"\nint unit;\n'}.items():
        (tmp_path / name).write_text(text)
    command = ["gcc", *STRICT, "-std=c99", "-fsyntax-only", "-I", tmp_path, tmp_path / "main.c"]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.parametrize("board", ["host", "nrf52840", "rp2040", "esp32c3", "corstone300"])
def test_files_contain_what_they_call_and_nothing_else(board: str) -> None:
    files = digits(board).bundle.files
    assert files["mcugen.h"].count("\n") <= MAX_HEADER_LINES
    everywhere = "".join(text for file, text in files.items() if file.endswith((".c", ".h")))
    contained = functions_in(everywhere)
    assert contained
    for function in contained:
        assert all(text.count(f"#define {function.guard}\n") <= 1 for text in files.values())
        callers = everywhere.replace("MCUGEN_UNUSED ", "").replace(function.text, "")
        assert words(callers) & function.defined, f"{function.guard} has a caller"
    for file in ("digits.c", "digits_selftest.c"):
        mine, header = functions_in(files[file]), functions_in(files["digits_kernels.h"])
        assert not {*mine} & {*header} or "digits_kernels.h" not in files[file]
    provided = {name for function in contained for name in function.defined}
    assert words(everywhere) & FUNCTION_NAMES <= provided


def test_files_that_have_their_functions_stay_as_they_are() -> None:
    files = digits("nrf52840").bundle.files
    assert with_runtime_functions(files) == dict(files)


def test_an_application_includes_the_headers_of_two_models(tmp_path: Path) -> None:
    for name in ("first", "second"):
        for file, text in tiny(name=name).bundle.files.items():
            if file.endswith(".h"):
                (tmp_path / file).write_text(text)
    includes = "".join(f'#include "{name}.h"\n' for name in ("first", "second", "first_kernels"))
    (tmp_path / "main.c").write_text(f"{includes}int unit;\n")
    subprocess.run(["gcc", "-std=c99", "-Wall", "-Werror", "-fsyntax-only", "main.c"], check=True, cwd=tmp_path)
