# SPDX-License-Identifier: Apache-2.0
"""Coverage of the generated C by the tests: gcc's counts of branches are kept in a folder (tools/measure_coverage.py).

Programs are built in temporary folders. gcc leaves notes beside each compiled file, which are copied to the same path
below the folder of the counts. A program that ends writes its counts there, as $GCOV_PREFIX tells it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mcugen.simulation import build
from mcugen.simulation.toolchain import Compiler, Unit

VARIABLE = "MCUGEN_C_COVERAGE"
"""Name of the environment variable with the folder of the counts; nothing is counted unless it is set."""

Compile = Callable[[Compiler, Unit], None]
"""A function that compiles one C file by a compiler."""


def measure(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Programs for this computer are built to count branches, without sanitizers, whose branches none should take."""
    patch.setenv("CC", "gcc --coverage")
    patch.setenv("GCOV_PREFIX", str(folder))
    patch.setattr(build, "_CHECKS", dict.fromkeys(build.Checks, ("-O0",)))
    patch.setattr(build, "_JOINED", ())
    patch.setattr(Compiler, "_compile", _with_notes(Compiler._compile, folder))


def _with_notes(compile_unit: Compile, folder: Path) -> Compile:
    def compile_and_keep(compiler: Compiler, unit: Unit) -> None:
        compile_unit(compiler, unit)
        made = Path(os.path.realpath(compiler.folder / unit.object))
        notes = made.with_suffix(".gcno")
        if notes.is_file() and "model" in made.parts:
            kept = folder / notes.relative_to("/")
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(notes, kept)
            source = compiler.folder / unit.source
            for text in (source, *source.parent.glob("*_kernels.h")):
                shutil.copyfile(text, kept.with_suffix(".c") if text is source else kept.parent / text.name)

    return compile_and_keep
