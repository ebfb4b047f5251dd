# SPDX-License-Identifier: Apache-2.0
"""Results that are kept between runs, as files in the user's cache folder (XDG), each under a digest of its causes."""

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
"""Files of mcugen that results depend on."""


def cache_folder() -> Path:
    """Return $XDG_CACHE_HOME/mcugen, or ~/.cache/mcugen; without both a folder that is removed with this process.

    The folder may not be there yet.
    """
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(cache_home) if Path(cache_home).is_absolute() else Path.home() / ".cache") / "mcugen"
    except RuntimeError:  # a user without a home
        return _folder_of_process()


def user_store(name: str) -> Store:
    """Return a store that can be written: in the cache folder, or else in one that is removed with this process."""
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
    """Files by keys. Any number of processes may read and write at once: a file is whole or is not there."""

    folder: Path

    def path(self, key: str) -> Path:
        """Return the path of a cache entry, whether it exists or not."""
        return self.folder / key

    def read(self, key: str) -> bytes | None:
        """Return what was written under the key; None if nothing was."""
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
        """Write what can be made again, if it can be written: a full disk costs time the next time, and no result."""
        with suppress(OSError):
            self.write(key, data)

    @contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """One process at a time is in the block of one key, where the system has such locks."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.path(f"{key}.lock").open("wb") as file:
            if sys.platform != "win32":
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


@cache
def code_digest() -> str:
    """SHA-256 of mcugen itself, which has one version for many states while it is developed."""
    digest = hashlib.sha256(__version__.encode())
    roots = [Path(__file__).parents[1], *(resource_dir(name) for name in ("templates", "runtime_c", "boards"))]
    for root in roots:
        files = sorted(path for pattern in _CODE for path in root.rglob(pattern))
        for path in files:
            digest.update(f"{path.relative_to(root)}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
