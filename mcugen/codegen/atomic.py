# SPDX-License-Identifier: Apache-2.0
"""Atomic file writes: readers see the old or the new file or folder, even if the writing is interrupted."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from mcugen.core.errors import OutputError

if sys.platform != "win32":
    import fcntl

_STAGED = re.compile(r"\.mcugen-[0-9a-f]{16}")
"""Temporary names of files and folders that are being written."""

LOCK_SECONDS = 60.0
"""Seconds to wait for the lock of a folder that another process writes to, before an error is raised."""

_RENAME_EXCHANGE = 2
"""Linux's RENAME_EXCHANGE; RENAME_SWAP of macOS is the same number."""
_NO_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM}
"""Error numbers by which systems and file systems say that they cannot exchange names."""


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """Lock `folder`, and yield a temporary path in it for a file or folder that will replace another.

    The path is removed at the end of the block. Only one writer works in a folder at a time. Temporary files of killed
    writers are removed, unless the system has no file locks: then they might belong to an active writer.

    Raises:
        OutputError: Another writer holds the folder for longer than LOCK_SECONDS.
    """
    with _locked(folder) as is_alone:
        for path in folder.iterdir() if is_alone else ():
            if _STAGED.fullmatch(path.name):
                _remove(path)
        fresh = folder / f".mcugen-{secrets.token_hex(8)}"
        try:
            yield fresh
        finally:
            _remove(fresh)


def write_synced(path: Path, write: Callable[[IO[bytes]], object], mode: int | None = None) -> None:
    """Create a new file with contents that a function writes, and sync the file to the disk.

    Args:
        path: A path that does not exist.
        write: Writes the contents to the open file.
        mode: Permission bits of the file; None for those that the umask gives.
    """
    with path.open("xb") as file:
        if mode is not None:
            path.chmod(mode)
        write(file)
        file.flush()
        os.fsync(file.fileno())


def put_file(fresh: Path, target: Path) -> None:
    """Move a file to another name in the same folder, replacing a file that is there.

    Args:
        fresh: The file to move.
        target: The new path.
    """
    fresh.replace(target)
    _sync_folder(target.parent)


def put_folder(fresh: Path, target: Path) -> None:
    """Move a folder to another name in the same parent folder, replacing a folder that is there.

    Args:
        fresh: The folder to move. The replaced folder may remain at this path.
        target: The new path.
    """
    _sync_folder(fresh)
    if not target.exists():
        fresh.rename(target)
    elif not exchange(fresh, target):
        _put_by_two_renames(fresh, target)
    _sync_folder(target.parent)


def _put_by_two_renames(fresh: Path, target: Path) -> None:
    """Replace `target` by two renames; if the process is killed between them, `restore` repairs the state."""
    try:
        target.rename(_aside(target))
        fresh.rename(target)
    finally:
        restore(target)


def restore(target: Path) -> None:
    """Repair an interrupted replacement: move the old file or folder back to `target` if the new one is missing.

    A writer leaves this state if it is killed after it moved the old one away and before it put the new one in place.
    """
    aside = _aside(target)
    if target.exists():
        _remove(aside)
    elif aside.exists():
        aside.rename(target)


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.mcugen-old")


def exchange(a: Path, b: Path) -> bool:
    """Exchange the names of two existing files or folders atomically.

    Args:
        a: One of the paths.
        b: The other path.

    Returns:
        True if they were exchanged; False if the operating system or file system cannot do that.

    Raises:
        OSError: The exchange failed for another reason.
    """
    here, names = ctypes.c_int(-100), (os.fsencode(a), os.fsencode(b))  # AT_FDCWD
    arguments: tuple[object, ...]
    if sys.platform == "linux":
        function, arguments = "renameat2", (here, names[0], here, names[1])
    elif sys.platform == "darwin":
        function, arguments = "renamex_np", names
    else:
        return False
    call = getattr(ctypes.CDLL(None, use_errno=True), function, None)
    if call is None:  # The C library is too old.
        return False
    if call(*arguments, ctypes.c_uint(_RENAME_EXCHANGE)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(b))


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Yield whether this process holds the lock of a folder; False if the folder cannot be locked.

    The lock ends with its process.
    """
    if sys.platform == "win32":
        yield False
        return
    with contextlib.ExitStack() as stack:
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, handle)
            _lock(handle, folder)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                raise
            yield False  # Some network file systems have no locks, and some folders may not be listed.
            return
        yield True


def _lock(handle: int, folder: Path) -> None:
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                rule = f"{folder}: one program at a time can write there"
                raise OutputError(rule, "another program that holds a lock", "wait, or choose another folder") from None
        time.sleep(0.01)


def _remove(path: Path) -> None:
    """Remove a file or folder, as far as possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Sync the folder's list of names to the disk, on systems that can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
