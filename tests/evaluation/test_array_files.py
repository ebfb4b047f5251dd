# SPDX-License-Identifier: Apache-2.0
"""Arrays of files: nothing is read that nobody asked for, nor more than a file has."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from mcugen.core.errors import UsageError
from mcugen.evaluation.array_files import read_npy, read_npz


def claimed(shape: str, kind: str = "<f4", size: int = 64) -> bytes:
    """Zeros behind a header that says something else."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + bytes(size)


def saved(array: object) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array))
    return file.getvalue()


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return path


def test_arrays_are_those_that_numpy_wrote(tmp_path: Path):
    transposed = np.asfortranarray(np.arange(6, dtype=np.int8).reshape(2, 3))
    arrays = {"x": np.arange(6.0).reshape(2, 3), "y": transposed, "z": np.zeros((0, 4))}
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    found = read_npz(tmp_path / "a.npz")
    assert list(found) == ["x", "y", "z"] and len(found) == 3
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())
    assert found["y"].dtype == np.int8
    np.save(tmp_path / "x.npy", arrays["y"])
    assert np.array_equal(read_npy(tmp_path / "x.npy"), arrays["y"])


def test_members_that_nobody_asks_for_are_not_read(tmp_path: Path):
    bomb = claimed("(1073741824,)", "<f8", 1 << 20)
    file = archive(tmp_path / "a.npz", x=saved([1, 2]), bomb=bomb, text=b"no array")
    assert read_npz(file)["x"].tolist() == [1, 2]
    for name in ("bomb", "text"):
        with pytest.raises(UsageError, match=f"a.npz: samples must be in an .npz file. found: '{name}': "):
            read_npz(file)[name]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (claimed("(1125899906842624,)"), "4,503,599,627,370,496 bytes of elements by its header"),
        (claimed("(4611686018427387904, 4611686018427387904)"), "by its header"),
        (claimed("(-1, -4)"), "by its header"),
        (claimed("(-3,)"), "by its header"),
        (claimed("(1,)", "|O"), "allow_pickle"),
        (claimed("(" * 3000), "must be in a readable .npy file"),
        (claimed("(1,)", "nonsense"), "must be in a readable .npy file"),
        (b"", "must be in a readable .npy file"),
        (b"\x93NUMPY\x03\x00" + bytes(100), "other things than numbers"),
        (saved([1, 2])[:-1], "must be in a readable .npy file"),
    ],
)
def test_files_that_are_not_what_they_say(data: bytes, found: str, tmp_path: Path):
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(UsageError, match=found):
        read_npy(tmp_path / "a.npy")


def test_an_array_beyond_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mcugen.evaluation.array_files.MAX_SAMPLES_BYTES", 100)
    (tmp_path / "a.npy").write_bytes(saved(np.zeros(13)))
    with pytest.raises(UsageError, match="104 bytes of elements, more than 100"):
        read_npy(tmp_path / "a.npy")
