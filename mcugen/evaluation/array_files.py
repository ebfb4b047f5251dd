# SPDX-License-Identifier: Apache-2.0
"""Reading of .npy and .npz files with bounded memory: only the wanted arrays, and no more bytes than the file has."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from mcugen.core.errors import UsageError
from mcugen.core.limits import MAX_SAMPLES_BYTES, open_regular
from mcugen.hir.types import Array

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""Readers of the header, by version; later versions are for fields with names in Unicode, which are not numbers."""

_SUFFIX = ".npy"


@dataclass(frozen=True)
class ArrayArchive(Mapping[str, Array]):
    """The arrays of an .npz file, each read on access; an array that cannot be read raises UsageError.

    Attributes:
        path: The file.
        names: Size in bytes of each array, by its name.
    """

    path: Path
    names: Mapping[str, int]

    def __getitem__(self, key: str) -> Array:
        size = self.names[key]
        try:
            with (
                open_regular(self.path) as whole,
                zipfile.ZipFile(whole) as archive,
                archive.open(_member(archive, key)) as file,
            ):
                return _array(file, size)
        except Exception as error:  # zip and numpy raise a dozen types for corrupt files
            raise _refused_archive(self.path, error, f"'{key}': ") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def _member(archive: zipfile.ZipFile, key: str) -> str:
    return f"{key}{_SUFFIX}" if f"{key}{_SUFFIX}" in archive.namelist() else key


def read_npz(path: Path) -> ArrayArchive:
    """Return the arrays of an .npz file; pickled objects are refused.

    Raises:
        UsageError: The file cannot be read.
    """
    try:
        with open_regular(path) as file:
            if file.read(6) == b"\x93NUMPY":
                raise ValueError("a single array")
            with zipfile.ZipFile(file) as archive:
                sizes = {info.filename.removesuffix(_SUFFIX): info.file_size for info in archive.infolist()}
    except Exception as error:  # as above
        raise _refused_archive(path, error) from error
    return ArrayArchive(path, sizes)


def read_npy(path: Path) -> Array:
    """Return the array of an .npy file.

    Raises:
        UsageError: The file cannot be read.
    """
    try:
        with open_regular(path) as file:
            return _array(file, path.stat().st_size)
    except Exception as error:  # as above
        reason = (isinstance(error, OSError) and error.strerror) or _reason(error)
        raise UsageError(f"{path}: an array must be in a readable .npy file", reason, "numpy.save writes it") from error


def _array(file: IO[bytes], size: int) -> Array:
    """Return the array of an open file of `size` bytes.

    Raises:
        ValueError: The header is not supported, or asks for more bytes than there are or may be.
    """
    read_header = _HEADERS.get(np.lib.format.read_magic(file))
    if read_header is None:
        raise ValueError("a format for other things than numbers")
    shape, _, dtype = read_header(file)
    needed = math.prod(shape) * dtype.itemsize
    if needed > size or any(length < 0 for length in shape):
        raise ValueError(f"{needed:,} bytes of elements by its header, {size:,} bytes in all")
    if needed > MAX_SAMPLES_BYTES:
        raise ValueError(f"{needed:,} bytes of elements, more than {MAX_SAMPLES_BYTES:,}")
    file.seek(0)
    return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def _refused_archive(path: Path, error: Exception, place: str = "") -> UsageError:
    if isinstance(error, OSError):
        rule, reason = "samples must be in a readable .npz file", error.strerror or "not an .npz file"
    else:
        rule, reason = "samples must be in an .npz file", _reason(error)
    return UsageError(f"{path}: {rule}", place + reason, "write it with numpy.savez")


def _reason(error: Exception) -> str:
    return str(error)[:120] or type(error).__name__
