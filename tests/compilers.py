# SPDX-License-Identifier: Apache-2.0
"""Runs the compilers of this computer in their strictest mode."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from rotation import in_turn

from mcugen.codegen.bundle import Bundle

STRICT = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror")
"""Compiler flags for the strictest warnings, which count as errors."""
COMPILERS = {
    "gcc": ("gcc", "-std=c99"),
    "clang": ("clang", "-std=c99"),
    "g++": ("g++", "-x", "c++", "-std=c++20"),  # the first with designated initializers
}
"""Command of each compiler that generated code must satisfy, by name."""
OTHERS = ("clang", "g++")
"""Names of the compilers that check files which a build has compiled by gcc already."""
_HEADERS = ("math", "stddef", "stdint", "string", "stdlib", "stdio")


def command(compiler: str) -> list[str]:
    """Return the command of a compiler; skip the test if it is not installed."""
    found = COMPILERS[compiler]
    if shutil.which(found[0]) is None:
        pytest.skip(f"needs {found[0]}")
    return [*found, *STRICT, *(_headers_of_cpp() if compiler == "g++" else ())]


def assert_accepted(folder: Path, *sources: str, by: Sequence[str] = tuple(COMPILERS), flags: Sequence[str] = ()):
    """Check that the installed compilers do not warn of the files in the folder."""
    for compiler in by:
        if shutil.which(COMPILERS[compiler][0]):
            run([*command(compiler), *flags, "-fsyntax-only", "-I.", *sources], folder)


def assert_accepted_in_turn(bundle: Bundle, *flags: str) -> None:
    """Check every second model's code by clang or g++, in rotation.

    In the sweep, both check each kernel (test_portability.py) and each model.
    """
    source = f"{bundle.name}.c"
    with tempfile.TemporaryDirectory(prefix="mcugen-") as place:
        for name in (source, *bundle.headers):
            (Path(place) / name).write_text(bundle.files[name])
        for by in in_turn([*([other] for other in OTHERS), *([] for _ in OTHERS)], bundle.files[source].encode()):
            assert_accepted(Path(place), source, by=by, flags=flags)


def run(arguments: Sequence[str], folder: Path) -> str:
    """Run a program in a folder, and return its output; fail if its exit code is not 0."""
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout[:2000]}{done.stderr[:4000]}"
    return done.stdout


@cache
def _headers_of_cpp() -> tuple[str, ...]:
    """Options that bring C's headers, read once: <math.h> alone is 20,000 lines there, and takes a quarter of a second.

    That a file includes what it needs is seen by the others.
    """
    folder = Path(tempfile.mkdtemp(prefix="mcugen-headers-"))
    atexit.register(shutil.rmtree, folder)
    header = folder / "c.h"
    header.write_text("".join(f"#include <{name}.h>\n" for name in _HEADERS))
    name, *options = COMPILERS["g++"]
    as_header = ["c++-header" if option == "c++" else option for option in options]
    run([name, *as_header, *STRICT, str(header), "-o", f"{header}.gch"], folder)
    return ("-include", str(header), "-Winvalid-pch")
