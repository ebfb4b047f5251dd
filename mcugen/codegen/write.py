# SPDX-License-Identifier: Apache-2.0
"""Atomic writing of the generated folder and of single files; a folder with files of other origin is never replaced.

Links are followed: their targets are replaced, and the links stay. A replaced file keeps its permissions.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

from mcugen.codegen.atomic import put_file, put_folder, restore, staging, write_synced
from mcugen.codegen.bundle import Bundle
from mcugen.core.errors import OutputError, UsageError
from mcugen.core.resources import runtime_headers

_SELFTEST = "_selftest.c"
_SHARED_KERNELS = "_kernels.c"
_OWN = (
    *(
        *("{}.h", "{}.c", "{}_kernels.h", "{}_weights.h", "{}_weights.c", "{}_weights.bin", "{}_memory.ld"),
        *("{}_selftest.c", "{}_validate.c", "{}_validate.h", "{}_input.c", "{}_input.h"),
    ),
    *("{}_kernels.c", "{}_report.json", "mcugen.{}.pdsc"),
)
"""Patterns of the file names of a model or a firmware."""


def write_folder(bundle: Bundle, folder: Path) -> Path:
    """Replace `folder` by the bundle's files atomically: readers see the old or the new folder, never a mixture.

    Raises:
        OutputError: The folder cannot be written.
        UsageError: Something is there that mcugen did not write.
    """
    target = Path(os.path.realpath(folder))
    if target in (Path.cwd(), target.parent):
        place = "the working directory" if target == Path.cwd() else "the root of all folders"
        raise UsageError(f"{folder}: the output must be a folder of its own", place, "name one in it")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with staging(target.parent) as fresh:
            restore(target)
            _require_own(target, folder)
            _fill(fresh, bundle, target)
            put_folder(fresh, target)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return folder


def _require_own(target: Path, folder: Path) -> None:
    """Raise UsageError if the target is not a folder, or has files that mcugen did not write."""
    if target.exists() and not target.is_dir():
        raise UsageError(f"{folder}: the output must be a folder", _kind(target), "choose another name with -o")
    foreign = _foreign(target) if target.is_dir() else []
    if foreign:
        rule = f"{folder}: an existing folder is replaced only if mcugen wrote it"
        raise UsageError(rule, f"'{foreign[0]}' in it", "choose another with -o")


def _foreign(folder: Path) -> list[str]:
    """Return the names in a folder that mcugen did not write: neither common files nor files of a model there."""
    names = sorted(path.name for path in folder.iterdir())
    marks = (_SELFTEST, _SHARED_KERNELS)
    models = [name.removesuffix(mark) for mark in marks for name in names if name.endswith(mark)]
    own = {file.format(model) for model in models for file in _OWN}
    own |= {"CMakeLists.txt", *runtime_headers()} if models else set()
    return [name for name in names if name not in own]


def _fill(fresh: Path, bundle: Bundle, target: Path) -> None:
    """Write the files; the folder gets the permissions of `target` if that exists."""
    fresh.mkdir()
    texts = {name: text.encode() for name, text in bundle.files.items()}
    for name, data in sorted({**texts, **bundle.blobs}.items()):
        write_synced(fresh / name, partial(_write, data))
    if target.is_dir():
        fresh.chmod(stat.S_IMODE(target.stat().st_mode))


def _write(data: bytes, file: IO[bytes]) -> None:
    file.write(data)


def write_text(path: Path, text: str) -> None:
    """Replace a text file atomically."""
    replace_file(path, partial(_write, text.encode()))


def replace_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a new file beside `path`, then replace `path` by it atomically. Character devices are written directly.

    Args:
        path: A file, a new name, or a character device such as /dev/null.
        write: Writes the contents.

    Raises:
        OutputError: The file cannot be written.
        UsageError: The path is something else, such as a pipe.
    """
    target = Path(os.path.realpath(path))
    try:
        known = path.stat() if path.exists() else None
        if known is not None and stat.S_ISCHR(known.st_mode):
            with path.open("wb") as file:
                write(file)
            return
        if known is not None and not (target.exists() and target.samefile(path)):  # /dev/fd names a deleted file.
            raise UsageError(f"{path}: the output must have a name", "a deleted file or a pipe", _REMEDY)
        if known is not None and not (stat.S_ISREG(known.st_mode) or stat.S_ISDIR(known.st_mode)):
            raise UsageError(f"{path}: the output must be a regular file or a new name", _kind(path), _REMEDY)
        with staging(target.parent) as fresh:
            write_synced(fresh, write, None if known is None else stat.S_IMODE(known.st_mode))
            put_file(fresh, target)
    except OSError as error:
        raise _unwritable(path, error) from error


_REMEDY = "name a file; JSON is printed by `--json -`"

_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a device",
}


def _kind(path: Path) -> str:
    """Return the kind of a path that is no folder, in words."""
    return _KINDS.get(stat.S_IFMT(path.stat().st_mode), "something else")


def _unwritable(path: Path, error: OSError) -> OutputError:
    is_fixed = error.errno in (errno.EBUSY, errno.EXDEV)  # A mount point, for example.
    remedy = "name a folder in it, or a new one" if is_fixed else "check space and permissions"
    return OutputError(f"{path}: the output must be writable", error.strerror or str(error), remedy)
