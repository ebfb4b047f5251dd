# SPDX-License-Identifier: Apache-2.0
"""Branches of the generated C that the tests take: what gcc counts is kept in a folder (tools/measure_coverage.py).

Programs are built in temporary folders. Beside each compiled file gcc leaves its notes, which go to the same path below
the folder; at its end a program leaves its counts there, as $GCOV_PREFIX says.
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
"""The folder; measured if it is set."""

Compile = Callable[[Compiler, Unit], None]


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
