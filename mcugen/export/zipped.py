# SPDX-License-Identifier: Apache-2.0
"""Reproducible zip archives, whose bytes depend only on the names and contents of their files."""

from __future__ import annotations

import io
import zipfile

from mcugen.codegen.install import Files

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The oldest date of a zipped file."""


def zip_files(files: Files, top: str = "") -> bytes:
    """Return the bytes of a zip archive, which depend only on the names and contents of its files.

    Args:
        files: The files by path.
        top: Text that is put before all paths, such as the name of a folder with a slash.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in sorted(files.items()):
            entry = zipfile.ZipInfo(top + path, _EPOCH)
            entry.compress_type, entry.external_attr, entry.create_system = zipfile.ZIP_DEFLATED, 0o100644 << 16, 3
            archive.writestr(entry, content)
    return buffer.getvalue()
