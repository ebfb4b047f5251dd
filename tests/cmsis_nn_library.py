# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN for tests: the reference implementation in tests/cmsis_nn, or a real one.

The environment variables MCUGEN_CMSIS_NN_INCLUDE (its folder of headers) and MCUGEN_CMSIS_NN_LIB (a built archive, in
whose name "{cpu}" stands for a board's CPU: "lib/{cpu}/libcmsis-nn.a") name a real one.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from mcugen.codegen.libraries import LIBRARIES
from mcugen.core.board import Board
from mcugen.core.options import CMSIS_NN, LibraryFiles
from mcugen.simulation.toolchain import ARM, Compiler, Unit, find_program, host_compiler

SOURCES = Path(__file__).parent / "cmsis_nn"
"""Folder of the reference implementation of CMSIS-NN."""
INCLUDE, LIB = LIBRARIES[CMSIS_NN].variables
IS_REAL = INCLUDE in os.environ and LIB in os.environ
"""Whether the tests use a real CMSIS-NN instead of the reference implementation."""
_REAL = LibraryFiles(Path(os.environ.get(INCLUDE, "")), Path(os.environ.get(LIB, "")))

_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def library(board: Board, *macros: str) -> LibraryFiles:
    """Return the files of CMSIS-NN for a board's CPU.

    `macros` select the behavior of the reference implementation (tests/cmsis_nn/reference.h).
    """
    if not IS_REAL:
        return LibraryFiles(SOURCES / "include", _reference(board.cpu, board.cflags, macros))
    if macros or not _REAL.archive_for(board.cpu).exists():
        pytest.skip(f"no real CMSIS-NN for this: {_REAL.archive_for(board.cpu)} {' '.join(macros)}")
    return _REAL


@cache
def _reference(cpu: str, cflags: tuple[str, ...], macros: tuple[str, ...]) -> Path:
    """Built once for a CPU."""
    _FOLDERS.append(tempfile.TemporaryDirectory(prefix="cmsis-nn-"))
    folder = Path(_FOLDERS[-1].name)
    program, archiver = (host_compiler(), "ar") if cpu == "host" else ((find_program(ARM.gcc),), f"{ARM.name}-ar")
    flags = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-I", str(SOURCES / "include"), *cflags)
    units = [Unit(str(path), f"{path.stem}.o", ("-ffunction-sections",)) for path in sorted(SOURCES.glob("*.c"))]
    Compiler(program, (*flags, *(f"-D{macro}" for macro in macros)), folder).compile(units)
    objects = [unit.object for unit in units]
    subprocess.run([archiver, "rcs", "libcmsis-nn.a", *objects], cwd=folder, check=True)
    return folder / "libcmsis-nn.a"
