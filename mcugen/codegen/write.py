# SPDX-License-Identifier: Apache-2.0
"""Writes the generated folder: all of it or nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from mcugen.codegen.bundle import Bundle
from mcugen.errors import OutputError, UsageError

_MARK = "mcugen.h"
"""A folder that holds it is one of ours, and may be replaced."""


def write_folder(bundle: Bundle, folder: Path) -> Path:
    """Replaces `folder` by the bundle's files, by renaming: readers see the old or the new, never a mixture."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: the output must be a folder", "a file", "choose another name with -o")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _MARK).is_file():
        raise UsageError(
            f"{folder}: an existing folder is replaced only if mcugen wrote it", "other files in it", "choose another with -o"
        )
    try:
        _replace(bundle, folder)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"{folder}: the output must be writable", reason, "check space and permissions") from error
    return folder


def _replace(bundle: Bundle, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        fresh = staging / "new"
        fresh.mkdir()
        for name, text in sorted(bundle.files.items()):
            (fresh / name).write_text(text, encoding="utf-8", newline="\n")
        if folder.is_dir():
            os.replace(folder, staging / "old")
        try:
            os.replace(fresh, folder)
        except OSError:
            with contextlib.suppress(OSError):
                os.replace(staging / "old", folder)
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
