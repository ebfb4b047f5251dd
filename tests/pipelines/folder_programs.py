# SPDX-License-Identifier: Apache-2.0
"""Programs around a generated folder, built with the sanitizers."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

STRICT = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror")
"""Compiler flags for the strictest warnings, which count as errors."""


def build_and_run(program: str, folder: Path, *flags: str) -> str:
    """Link a program with all C files of the folder, run it, and return what it prints."""
    (folder / "main.c").write_text(textwrap.dedent(program))
    checks = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    sources = sorted(path.name for path in folder.glob("*.c"))
    command = ["gcc", "-std=c99", *STRICT, *checks, *flags, *sources, "-lm", "-o", "program.out"]
    subprocess.run(command, cwd=folder, check=True)
    done = subprocess.run([folder / "program.out"], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout
