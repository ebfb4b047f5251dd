# SPDX-License-Identifier: Apache-2.0
"""Object files by the bytes that they are made of: within one run of the tests nothing is compiled twice.

Every build has the same harness, and many tests build the same model.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from mcugen.simulation.toolchain import Compiler, Unit

Compile = Callable[[Compiler, Unit], None]

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">]', re.MULTILINE)


def cached(compile_unit: Compile, store: Path) -> Compile:
    """`compile_unit`, which looks into the folder `store` first. Failures are not kept."""

    def compile_once(compiler: Compiler, unit: Unit) -> None:
        if "--coverage" in unit.flags:  # gcc leaves notes beside the object, and counts go to where that was made
            compile_unit(compiler, unit)
            return
        kept = store / _key(compiler, unit)
        target = compiler.folder / unit.object
        if not kept.is_file():
            compile_unit(compiler, unit)
            _keep(target, kept)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(kept, target)

    return compile_once


def _key(compiler: Compiler, unit: Unit) -> str:
    """All that the object depends on, but for the system's headers: a run does not change those."""
    program = Path(compiler.program[0]).stat()
    flags = (*compiler.program, *compiler.flags, *unit.flags)
    digest = hashlib.sha256(repr((flags, unit.source, program.st_size, program.st_mtime_ns)).encode())
    for path in _files(compiler.folder, [unit.source, *_forced(flags)], _folders(flags)):
        digest.update(repr((path.name, path.stat().st_size)).encode() + path.read_bytes())
    return digest.hexdigest()


def _forced(flags: tuple[str, ...]) -> list[str]:
    return [value for flag, value in pairwise(flags) if flag == "-include"]


def _folders(flags: tuple[str, ...]) -> list[str]:
    return [value for flag, value in pairwise(flags) if flag in ("-I", "-isystem")]


def _files(folder: Path, names: list[str], folders: list[str]) -> Iterator[Path]:
    """The named files and what they include, each once, in the order met; without what no given folder has."""
    open_, seen = [folder / name for name in names], set()
    while open_:
        path = open_.pop(0)
        if path in seen:
            continue
        seen.add(path)
        yield path
        for name in map(os.fsdecode, _INCLUDE.findall(path.read_bytes())):
            places = [path.parent, *(folder / place for place in folders)]
            open_ += [place / name for place in places if (place / name).is_file()]


def _keep(made: Path, kept: Path) -> None:
    """Other workers see all of it or nothing."""
    with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as file:
        file.write(made.read_bytes())
    Path(file.name).replace(kept)
