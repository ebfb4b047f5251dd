# SPDX-License-Identifier: Apache-2.0
"""Files that a browser sends: their names, sizes and numbers are limited before anything reads them."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from mcugen.core.errors import UsageError, shortened
from mcugen.core.file_names import safe_name
from mcugen.core.limits import MAX_MODEL_BYTES
from mcugen.options.settings import MODEL
from mcugen.ui.project import MODELS, SAMPLES, SUFFIXES, Project

INCOMING = ".incoming"
"""Name of the folder, below that of samples, of uploads that are not complete."""
MAX_UPLOAD_DEPTH = 4
"""Largest number of folders in the path of an uploaded file."""

_DATA = re.compile(r"[._-]data$")
"""End of the name of a model's external data (docs/how-to/quantize.md)."""
SAMPLE_PARTS = (*SUFFIXES[SAMPLES], ".zip", ".png", ".jpg", ".jpeg", ".bmp", ".wav", ".csv")
"""Ends of the names of files that may be dropped as samples."""


@dataclass(frozen=True)
class UploadLimits:
    """Limits of uploads.

    Attributes:
        file_bytes: Largest size of one file, and of all files of one folder, in bytes.
        files: Largest number of files of one folder of samples, and of snapshots.
        models: Largest number of models in a project.
    """

    file_bytes: int = 1 << 30
    files: int = 20_000
    models: int = 200


class TooLargeError(UsageError):
    """A file or a folder exceeds the limits of uploads."""


async def receive_file(
    project: Project, folder: str, name: str, data: AsyncIterator[bytes], limits: UploadLimits
) -> None:
    """Store an uploaded model, snapshot or report; a model becomes that of the project, beside its external data.

    Args:
        project: The project.
        folder: MODELS or SNAPSHOTS.
        name: Name of the file in the browser.
        data: Its contents.
        limits: Limits of uploads.

    Raises:
        UsageError: The file does not belong there.
        TooLargeError: The file is too large, or there are too many.
    """
    safe, suffixes = safe_name(name), SUFFIXES[folder]
    has_suffix, is_model = Path(safe).suffix.lower() in suffixes, folder == MODELS
    if not has_suffix and not (is_model and _DATA.search(safe)):
        remedy = "export the network to ONNX" if is_model else "drop the files that devices and mcugen wrote"
        raise UsageError(f"{folder} must be files of {', '.join(suffixes)}", f"'{shortened(name, 80)}'", remedy)
    target, max_files = project.root / folder / safe, limits.models if is_model else limits.files
    if not target.exists() and len(project.files(folder)) >= max_files:
        raise TooLargeError(f"a project holds at most {max_files:,} {folder}", "one more", "remove some files")
    await _store(target, data, min(limits.file_bytes, MAX_MODEL_BYTES))
    if is_model and has_suffix:
        project.change({MODEL: f"{folder}/{safe}"})


async def receive_sample(
    project: Project, folder: str, path: str, data: AsyncIterator[bytes], limits: UploadLimits
) -> None:
    """Store a part of uploaded samples in a folder of incoming files.

    Args:
        project: The project.
        folder: Name of the samples, which all files of one drop share.
        path: Path of the file below the dropped folder, or its name.
        data: Its contents.
        limits: Limits of uploads.

    Raises:
        UsageError: The file cannot be a part of samples.
        TooLargeError: The files are too large, or too many.
    """
    parts = [safe_name(part) for part in path.split("/") if part not in ("", ".", "..")]
    if not parts or len(parts) > MAX_UPLOAD_DEPTH or Path(parts[-1]).suffix.lower() not in SAMPLE_PARTS:
        rule = f"samples must be files of {', '.join(SAMPLE_PARTS)}, in at most {MAX_UPLOAD_DEPTH - 1} folders"
        raise UsageError(rule, f"'{shortened(path, 80)}'", "drop an .npz file, or a folder of images or WAV files")
    place, known = _incoming(project, folder)
    if len(known) >= limits.files:
        raise TooLargeError(f"samples must be at most {limits.files:,} files", "more", "drop one .npz file")
    room = limits.file_bytes - sum(p.stat().st_size for p in known)
    await _store(place.joinpath(*parts), data, room)


def _incoming(project: Project, folder: str) -> tuple[Path, list[Path]]:
    """Return the folder of incoming files of a drop, which need not exist, and its files."""
    place = project.root / SAMPLES / INCOMING / safe_name(folder)
    return place, [path for path in place.rglob("*") if path.is_file()] if place.is_dir() else []


def finish_samples(project: Project, folder: str) -> str:
    """Return the path of the dropped samples of a name in the project: a file of arrays, or a folder to convert.

    Raises:
        UsageError: No file arrived.
    """
    place, files = _incoming(project, folder)
    if not files:
        raise UsageError("samples must have files", "none", "drop an .npz file, or a folder of images or WAV files")
    if len(files) == 1 and files[0].suffix.lower() in SUFFIXES[SAMPLES]:
        target = project.root / SAMPLES / files[0].name
        files[0].replace(target)
        shutil.rmtree(place)
        return f"{SAMPLES}/{target.name}"
    return place.relative_to(project.root).as_posix()


async def _store(target: Path, data: AsyncIterator[bytes], max_bytes: int) -> None:
    """Write the chunks of a file, which appears only when it is complete.

    Raises:
        TooLargeError: The file has more than `max_bytes` bytes.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    size = 0
    try:
        with part.open("wb") as file:
            async for chunk in data:
                size += len(chunk)
                if size > max_bytes:
                    remedy = "drop a smaller file, or allow more: --max-upload"
                    raise TooLargeError(f"an upload must have at most {max_bytes:,} bytes", "more", remedy)
                file.write(chunk)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
