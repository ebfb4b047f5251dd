# SPDX-License-Identifier: Apache-2.0
"""Cache of object files, keyed by the contents of their sources: a run of the tests compiles nothing twice.

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
"""A function that compiles one C file by a compiler."""

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">]', re.MULTILINE)


def cached(compile_unit: Compile, store: Path) -> Compile:
    """Return `compile_unit` with a cache in the folder `store`. Failures are not cached."""

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
    """Return a digest of all that the object depends on, except system headers, which a run does not change."""
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
    """Yield the named files and those that they include, each once; files that no given folder has are left out."""
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
    """Copy the object into the cache at once, so that other workers see all of it or nothing."""
    with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as file:
        file.write(made.read_bytes())
    Path(file.name).replace(kept)
