# SPDX-License-Identifier: Apache-2.0
"""Atomic writing of the generated folder and of single files; the user's files in a folder are kept.

Links are followed: their targets are replaced, and the links stay. A replaced file keeps its permissions.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from mcugen.codegen.atomic import put_file, put_folder, restore, staging, write_synced
from mcugen.codegen.bundle import Bundle
from mcugen.codegen.install import MANIFEST, Files, holds_only_unedited, install, manifest
from mcugen.core.errors import OutputError, UsageError


def write_folder(bundle: Bundle, folder: Path, *, force: bool = False) -> Path:
    """Write the bundle's files to a folder.

    A folder that contains only files by mcugen is replaced atomically: readers see the old or the new folder, never a
    mixture. In any other folder, files are replaced one by one, and the user's files stay.

    Args:
        bundle: The files.
        folder: The folder, which may exist.
        force: Whether files that were edited, or that mcugen did not write, are overwritten.

    Returns:
        The folder.

    Raises:
        OutputError: The folder cannot be written; or, without `force`, a file to write was edited or was not written by
            mcugen. The folder is then unchanged.
        UsageError: The path is no folder, or it is the working directory.
    """
    target = _require_folder(folder)
    files: Files = {**bundle.files, **bundle.blobs}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with staging(target.parent) as fresh:
            restore(target)
            is_ours = holds_only_unedited(target, files, bundle.name, folder, force=force)
            if is_ours:
                _fill(fresh, files, bundle.name, target)
                put_folder(fresh, target)
    except OSError as error:
        raise _unwritable(folder, error) from error
    if not is_ours:
        install(files, folder, bundle.name, force=force, any_package=True)
    return folder


def _require_folder(folder: Path) -> Path:
    """Return the path of a folder without links.

    Raises:
        UsageError: The path is no folder, or the working directory.
    """
    target = Path(os.path.realpath(folder))
    if target in (Path.cwd(), target.parent):
        place = "the working directory" if target == Path.cwd() else "the root of all folders"
        raise UsageError(f"{folder}: the output must be a folder of its own", place, "name one in it")
    if target.exists() and not target.is_dir():
        raise UsageError(f"{folder}: the output must be a folder", _kind(target), "choose another name with -o")
    return target


def check_folder(folder: Path) -> None:
    """Check that `write_folder` could write to a folder; called before any long work.

    Raises:
        OutputError: The folder cannot be written.
        UsageError: The path is no folder, or it is the working directory.
    """
    try:
        check_writable(_require_folder(folder).parent)
    except OSError as error:
        raise _unwritable(folder, error) from error


def check_writable(folder: Path, output: Path | None = None) -> None:
    """Check that files can be written to a folder that exists, or that can be created.

    Args:
        folder: The folder.
        output: The file or folder to write, for messages; by default the folder.

    Raises:
        OutputError: The folder, or the nearest existing one above it, is no folder or cannot be written.
    """
    existing = folder
    while not (existing.exists() or existing == existing.parent):
        existing = existing.parent
    rule = f"{output or folder}: the output must be writable"
    name = "--output FOLDER for another folder" if output is None else "a file in another folder"
    if not existing.is_dir():
        raise OutputError(rule, f"'{existing}' is {_kind(existing)}", f"give {name}")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise OutputError(rule, f"no permission to write to '{existing}'", f"check its permissions, or give {name}")


def _fill(fresh: Path, files: Files, package: str, target: Path) -> None:
    """Write the files and their manifest; the folder gets the permissions of `target` if that exists."""
    fresh.mkdir()
    for name, content in sorted({**files, MANIFEST: manifest(files, package)}.items()):
        data = content.encode() if isinstance(content, str) else content
        write_synced(fresh / name, partial(_write, data))
    if target.is_dir():
        fresh.chmod(stat.S_IMODE(target.stat().st_mode))


def _write(data: bytes, file: IO[bytes]) -> None:
    file.write(data)


def write_text(path: Path, text: str) -> None:
    """Write a text file; readers see either the old or the new contents.

    Args:
        path: The file, which may exist.
        text: The new contents.
    """
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
        known = _replaceable(path, target)
        if known is not None and stat.S_ISCHR(known.st_mode):
            with path.open("wb") as file:
                write(file)
            return
        with staging(target.parent) as fresh:
            write_synced(fresh, write, None if known is None else stat.S_IMODE(known.st_mode))
            put_file(fresh, target)
    except OSError as error:
        raise _unwritable(path, error) from error


def _replaceable(path: Path, target: Path) -> os.stat_result | None:
    """Return the status of a path that `replace_file` may replace or write to; None for a new name.

    Raises:
        UsageError: The path is something else, such as a pipe.
    """
    known = path.stat() if path.exists() else None
    if known is None or stat.S_ISCHR(known.st_mode):
        return known
    if not (target.exists() and target.samefile(path)):  # /dev/fd names a deleted file.
        raise UsageError(f"{path}: the output must have a name", "a deleted file or a pipe", _REMEDY)
    if not (stat.S_ISREG(known.st_mode) or stat.S_ISDIR(known.st_mode)):
        raise UsageError(f"{path}: the output must be a regular file or a new name", _kind(path), _REMEDY)
    return known


def check_file(path: Path, may_be_in: Sequence[Path | None] = ()) -> None:
    """Check that `replace_file` could write to a path; called before any long work.

    Args:
        path: The path.
        may_be_in: Folders that are created before the file; None for one in the working directory whose name is not
            known yet.

    Raises:
        OutputError: The path is a folder, or is in a folder that does not exist or cannot be written.
        UsageError: The path is something else that is no file, such as a pipe.
    """
    target = Path(os.path.realpath(path))
    try:
        known = _replaceable(path, target)
    except OSError as error:
        raise _unwritable(path, error) from error
    if known is not None and stat.S_ISCHR(known.st_mode):
        return
    if target.is_dir():
        raise OutputError(f"{path}: the output must be a file", "a folder", "name a file in it")
    if target.parent.exists():
        check_writable(target.parent, path)
    elif not any(_is_at(target.parent, folder) for folder in may_be_in):
        raise OutputError(f"{path}: the output must be writable", f"no folder '{path.parent}'", "create the folder")


def _is_at(place: Path, folder: Path | None) -> bool:
    """Return whether a path is a folder, or could be one in the working directory whose name is not known."""
    return place.parent == Path.cwd() if folder is None else place == Path(os.path.realpath(folder))


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
