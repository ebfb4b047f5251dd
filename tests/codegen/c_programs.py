# SPDX-License-Identifier: Apache-2.0
"""Compiles generated folders and small C programs with the compilers of this computer."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mcugen.codegen.bundle import Bundle

STRICT = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror"]
COMPILERS = {
    "gcc": ["gcc", "-std=c99"],
    "clang": ["clang", "-std=c99"],
    "g++": ["g++", "-x", "c++", "-std=c++20"],  # the first with designated initializers
}
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def command(compiler: str) -> list[str]:
    """A compiler in its strictest mode; the test is skipped where it is not installed."""
    found = COMPILERS[compiler]
    if shutil.which(found[0]) is None:
        pytest.skip(f"needs {found[0]}")
    return [*found, *STRICT]


def run(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout[:2000]}{done.stderr[:4000]}"
    return done.stdout


def write(bundle: Bundle, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in bundle.files.items():
        (folder / name).write_text(text)
    return folder


def check_compiles(bundle: Bundle, folder: Path, *compilers: str) -> None:
    """All C files of the folder, self-test included, compile without a warning."""
    write(bundle, folder)
    for compiler in compilers or COMPILERS:
        sources = sorted(name for name in bundle.files if name.endswith(".c"))
        run([*command(compiler), "-fsyntax-only", "-I.", *sources], folder)


def build_and_run(main: str, folder: Path, *sources: str, flags: tuple[str, ...] = ()) -> str:
    """What a C program prints that is linked with these sources."""
    (folder / "test_main.c").write_text(main)
    run([*command("gcc"), *flags, *SANITIZE, "-I.", "test_main.c", *sources, "-lm", "-o", "test_main"], folder)
    return run([str(folder / "test_main")], folder)
