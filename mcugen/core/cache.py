# SPDX-License-Identifier: Apache-2.0
"""A cache of results between runs: files in the user's cache folder (XDG), each named by a digest of its inputs."""

from __future__ import annotations

import atexit
import hashlib
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mcugen.core.limits import open_regular
from mcugen.core.resources import resource_dir
from mcugen.core.version import __version__

if sys.platform != "win32":
    import fcntl

_CODE = ("*.py", "*.j2", "*.c", "*.h", "*.toml", "*.json")
"""Patterns of mcugen's own files that cached results depend on."""


def cache_folder() -> Path:
    """Return the folder of cached results: $XDG_CACHE_HOME/mcugen, or ~/.cache/mcugen. It need not exist yet.

    If the user has no home folder, return a folder that is removed when this process ends.
    """
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(cache_home) if Path(cache_home).is_absolute() else Path.home() / ".cache") / "mcugen"
    except RuntimeError:  # The user has no home folder.
        return _folder_of_process()


def user_store(name: str) -> Store:
    """Return a writable store called `name`.

    It is a folder in the user's cache folder, or else a folder that is removed when this process ends.
    """
    folder = cache_folder() / name
    return Store(folder if _is_writable(folder) else _folder_of_process() / name)


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


@cache
def _folder_of_process() -> Path:
    folder = tempfile.mkdtemp(prefix="mcugen-cache-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@dataclass(frozen=True)
class Store:
    """A folder of cached files, each under a key. Several processes may use it at the same time.

    A reader finds either a complete file or none.
    """

    folder: Path

    def path(self, key: str) -> Path:
        """Return the path of the file that holds the data of a key, whether it exists or not."""
        return self.folder / key

    def read(self, key: str) -> bytes | None:
        """Return the data that was written under a key; None if there is none."""
        with suppress(OSError), open_regular(self.path(key)) as file:
            return file.read()
        return None

    def write(self, key: str, data: bytes) -> Path:
        """Store data under a key; of several writers the last one wins.

        Raises:
            OSError: The data cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self.path(key)
        fresh = target.with_name(f".{secrets.token_hex(8)}")
        try:
            fresh.write_bytes(data)
            fresh.replace(target)
        finally:
            fresh.unlink(missing_ok=True)
        return target

    def keep(self, key: str, data: bytes) -> None:
        """Store data under a key if possible: failures to write, such as a full disk, are ignored.

        This is for data that can be computed again.
        """
        with suppress(OSError):
            self.write(key, data)

    @contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Hold a file lock for `key` during a `with` block, so that one process at a time runs the block.

        On Windows there is no lock.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.path(f"{key}.lock").open("wb") as file:
            if sys.platform != "win32":
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


@cache
def code_digest() -> str:
    """Return the SHA-256 of mcugen's source files, for keys of cached results.

    The version number does not suffice: during development the code changes without it.
    """
    digest = hashlib.sha256(__version__.encode())
    roots = [Path(__file__).parents[1], *(resource_dir(name) for name in ("templates", "runtime_c", "boards"))]
    for root in roots:
        files = sorted(path for pattern in _CODE for path in root.rglob(pattern))
        for path in files:
            digest.update(f"{path.relative_to(root)}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
