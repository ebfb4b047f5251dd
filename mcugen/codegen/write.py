# SPDX-License-Identifier: Apache-2.0
"""Writes the generated folder: all of it or nothing."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from mcugen.codegen.bundle import Bundle
from mcugen.errors import OutputError, UsageError

_SELFTEST = "_selftest.c"
_COMMON = frozenset({"mcugen.h", "CMakeLists.txt"})
_OWN = (
    *("{}.h", "{}.c", "{}_weights.h", "{}_weights.c", "{}_weights.bin", "{}_memory.ld", "{}_selftest.c"),
    *("{}_report.json", "mcugen.{}.pdsc"),
)
"""What a model's files are called."""


def write_folder(bundle: Bundle, folder: Path) -> Path:
    """Replaces `folder` by the bundle's files, by renaming: readers see the old or the new, never a mixture."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: the output must be a folder", "a file", "choose another name with -o")
    foreign = _foreign(folder) if folder.is_dir() else []
    if foreign:
        raise UsageError(
            f"{folder}: an existing folder is replaced only if mcugen wrote it",
            f"'{foreign[0]}' in it",
            "choose another with -o",
        )
    try:
        _replace(bundle, folder)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"{folder}: the output must be writable", reason, "check space and permissions") from error
    return folder


def _foreign(folder: Path) -> list[str]:
    """Files in the folder that mcugen did not write: neither common to all models nor those of one in it."""
    found = sorted(path.name for path in folder.iterdir())
    models = [name.removesuffix(_SELFTEST) for name in found if name.endswith(_SELFTEST)]
    own = {file.format(model) for model in models for file in _OWN} | (_COMMON if models else set())
    return [name for name in found if name not in own]


def _replace(bundle: Bundle, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        fresh = staging / "new"
        fresh.mkdir()
        for name, text in sorted(bundle.files.items()):
            (fresh / name).write_text(text, encoding="utf-8", newline="\n")
        for name, data in sorted(bundle.blobs.items()):
            (fresh / name).write_bytes(data)
        if folder.is_dir():
            folder.replace(staging / "old")
        try:
            fresh.replace(folder)
        except OSError:
            with contextlib.suppress(OSError):
                (staging / "old").replace(folder)
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Replaces one text file as a whole."""
    replace_file(path, lambda file: file.write(text.encode()))


def replace_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Lets `write` fill a file beside `path`, then puts it in the place of `path`. OutputError if that fails."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
            staging = Path(file.name)
            try:
                write(file)
                file.flush()
                staging.chmod(0o644)
                staging.replace(path)
            except BaseException:
                staging.unlink(missing_ok=True)
                raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"{path}: the output must be writable", reason, "check space and permissions") from error
