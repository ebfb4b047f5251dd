# SPDX-License-Identifier: Apache-2.0
"""Uploaded files: hostile names stay in the project, and nothing exceeds the limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mcugen.core.errors import UsageError
from mcugen.core.file_names import MAX_SAFE_CHARACTERS, safe_name
from mcugen.ui.project import MODELS, Project
from mcugen.ui.uploads import TooLargeError, UploadLimits, finish_samples, receive_file, receive_sample

LIMITS = UploadLimits(file_bytes=100, files=3, models=2)


async def chunks(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 7):
        yield data[start : start + 7]


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "name",
    [
        *("../../etc/passwd", "..", "...", "/", "", ".ssh", "-rf", "a b.onnx", "a\x00b.onnx", "x" * 500 + ".onnx"),
        *('"><img src=x onerror=alert(1)>.onnx', "$(id).onnx", "`id`", "ü.onnx", "a\\b.onnx", "\u202egpj.onnx"),
    ],
)
def test_names_are_safe(name: str) -> None:
    safe = safe_name(name)
    assert safe and len(safe) <= MAX_SAFE_CHARACTERS and safe[0] not in ".-"
    assert set(safe) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert safe_name(safe) == safe
    assert not name.endswith(".onnx") or safe.endswith("onnx")


def test_a_model_is_chosen_once_it_is_complete(tmp_path: Path) -> None:
    project = Project(tmp_path)
    asyncio.run(receive_file(project, MODELS, "../a/net 1.onnx", chunks(b"x" * 100), LIMITS))
    asyncio.run(receive_file(project, MODELS, "net_1.onnx.data", chunks(b"x"), LIMITS))
    assert project.settings() == {"model": "models/net_1.onnx"}
    assert files(tmp_path) == ["mcugen.toml", "models/net_1.onnx", "models/net_1.onnx.data"]


@pytest.mark.parametrize("name", ["plugin.py", "board.toml", "net.pt", "net.keras", "net", "net.onnx.py", "a.so"])
def test_other_files_are_no_models(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"models must be files of \.onnx"):
        asyncio.run(receive_file(Project(tmp_path), MODELS, name, chunks(b"x"), LIMITS))
    assert files(tmp_path) == []


def test_a_file_over_the_limit_leaves_nothing(tmp_path: Path) -> None:
    project = Project(tmp_path)
    for receive in (receive_file(project, MODELS, "n.onnx", chunks(b"x" * 101), LIMITS),
                    receive_sample(project, "s", "s/a.npz", chunks(b"x" * 101), LIMITS)):  # fmt: skip
        with pytest.raises(TooLargeError, match="at most 100 bytes"):
            asyncio.run(receive)
    assert files(tmp_path) == []


def test_files_are_limited_in_number_and_together(tmp_path: Path) -> None:
    project = Project(tmp_path)
    for number in range(2):
        asyncio.run(receive_file(project, MODELS, f"{number}.onnx", chunks(b"x"), LIMITS))
    with pytest.raises(TooLargeError, match="at most 2 models"):
        asyncio.run(receive_file(project, MODELS, "3.onnx", chunks(b"x"), LIMITS))
    asyncio.run(receive_file(project, MODELS, "1.onnx", chunks(b"y"), LIMITS))  # a new version of a known one
    asyncio.run(receive_sample(project, "s", "s/a.png", chunks(b"x" * 60), LIMITS))
    with pytest.raises(TooLargeError, match="at most 40 bytes"):
        asyncio.run(receive_sample(project, "s", "s/b.png", chunks(b"x" * 60), LIMITS))
    for name in "bc":
        asyncio.run(receive_sample(project, "s", f"s/{name}.png", chunks(b"x"), LIMITS))
    with pytest.raises(TooLargeError, match="at most 3 files"):
        asyncio.run(receive_sample(project, "s", "s/d.png", chunks(b"x"), LIMITS))


def test_paths_of_samples_stay_below_their_folder(tmp_path: Path) -> None:
    project = Project(tmp_path)
    asyncio.run(receive_sample(project, "../../s", "../../../a/../b/x.png", chunks(b"x"), LIMITS))
    assert files(tmp_path) == ["samples/.incoming/s/a/b/x.png"]
    for path in ("x.py", "x", "a/b/c/d/e/x.png", "", "..", "x.png/"):
        if path != "x.png/":
            with pytest.raises(UsageError, match="samples must be files of"):
                asyncio.run(receive_sample(project, "s", path, chunks(b"x"), LIMITS))
    assert finish_samples(project, "../../s") == "samples/.incoming/s"
    with pytest.raises(UsageError, match="samples must have files"):
        finish_samples(project, "other")


def test_a_file_of_arrays_is_taken_as_it_is(tmp_path: Path) -> None:
    project = Project(tmp_path)
    asyncio.run(receive_sample(project, "calib", "calib.npz", chunks(b"x"), LIMITS))
    assert finish_samples(project, "calib") == "samples/calib.npz"
    assert files(tmp_path) == ["samples/calib.npz"]
