# SPDX-License-Identifier: Apache-2.0
"""Data that is sent to another computer, together with the files that it names by paths."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcugen.core.limits import open_regular


@dataclass(frozen=True)
class Parcel:
    """A pickled value together with the contents of the files whose paths it holds, to be sent to another computer.

    Attributes:
        data: The pickled value.
        files: For each file, FOLDER_NUMBER/NAME and its contents. Files with one number share a folder.
    """

    data: bytes
    files: tuple[tuple[str, bytes], ...]

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the value and the files, in hex."""
        digest = hashlib.sha256(self.data)
        for name, content in self.files:
            digest.update(f"{name}\n{len(content)}\n".encode())
            digest.update(content)
        return digest.hexdigest()


def pack_parcel(value: Any) -> Parcel:
    """Pickle a value together with all files and folders whose paths it holds.

    Raises:
        OSError: If a file cannot be read.
    """
    stream = io.BytesIO()
    packer = _Packer(stream)
    packer.dump(value)
    files = {name: _content(path) for name, path in packer.files.items()}
    return Parcel(stream.getvalue(), tuple(files.items()))


def _content(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read()


def unpack_parcel(parcel: Parcel, folder: Path) -> Any:
    """Restore the value of a parcel, with paths to its files, which are written below `folder`.

    Files that shared a folder share one again.
    """
    for name, content in parcel.files:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return _Unpacker(io.BytesIO(parcel.data), folder).load()


class UnpackedParcel:
    """The value of a received parcel, and the temporary folder of its files.

    The folder is deleted together with this object.
    """

    def __init__(self, parcel: Parcel) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mcugen-parcel-")
        self.value = unpack_parcel(parcel, Path(self._folder.name))


class _Packer(pickle.Pickler):
    """A pickler that replaces paths of existing files by the number of their folder and their name."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.files: dict[str, Path] = {}
        self._folders: list[Path] = []

    def persistent_id(self, value: Any) -> str | None:
        """Return the position of a path in the parcel; None for other values."""
        if not isinstance(value, Path) or not value.exists() or not value.name:
            return None
        folder = Path(os.path.realpath(value)).parent
        if folder not in self._folders:
            self._folders.append(folder)
        place = f"{self._folders.index(folder)}/{value.name}"
        inside = sorted(p for p in value.rglob("*") if p.is_file()) if value.is_dir() else [value]
        self.files |= {f"{place}/{p.relative_to(value)}" if p != value else place: p for p in inside}
        return place


class _Unpacker(pickle.Unpickler):
    """An unpickler that restores such positions as paths below a folder."""

    def __init__(self, stream: io.BytesIO, folder: Path) -> None:
        super().__init__(stream)
        self._folder = folder

    def persistent_load(self, place: Any) -> Path:
        """Return the path at which a file arrived."""
        return self._folder / str(place)
