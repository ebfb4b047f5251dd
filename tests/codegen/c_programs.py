# SPDX-License-Identifier: Apache-2.0
"""Compiles generated folders and small C programs with the compilers of this computer."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from compilers import COMPILERS, command, run

from mcugen.codegen.bundle import Bundle

SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
"""Compiler flags for the address and undefined-behavior sanitizers, by which a program stops at the first error."""
TRAP = ["-fsanitize-undefined-trap-on-error"]
"""Compiler flag for sanitizers without messages, whose code doubles the time that gcc takes."""


def write(bundle: Bundle, folder: Path) -> Path:
    """Write the files of a bundle to a folder, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in bundle.files.items():
        (folder / name).write_text(text)
    return folder


def check_compiles(bundle: Bundle, folder: Path, *compilers: str) -> None:
    """Check that all C files of the folder, self-test included, compile without a warning."""
    write(bundle, folder)
    for compiler in compilers or COMPILERS:
        sources = sorted(name for name in bundle.files if name.endswith(".c"))
        run([*command(compiler), "-fsyntax-only", "-I.", *sources], folder)


def build_and_run(main: str, folder: Path, *sources: str, flags: tuple[str, ...] = ()) -> str:
    """Link a C program with these sources, run it, and return what it prints."""
    (folder / "test_main.c").write_text(main)
    build = [*command("gcc"), *flags, *SANITIZE, "-I.", "test_main.c", *sources, "-lm", "-o", "test_main"]
    run([*build, *TRAP], folder)
    if subprocess.run([folder / "test_main"], cwd=folder, capture_output=True).returncode == -signal.SIGILL:
        run(build, folder)
    return run([str(folder / "test_main")], folder)
