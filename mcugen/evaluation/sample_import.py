# SPDX-License-Identifier: Apache-2.0
"""Conversion of dropped folders and zip files of images, WAV files or arrays to one file of samples with labels."""

from __future__ import annotations

import csv
import io
import math
import shutil
import wave
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from mcugen.core.errors import UsageError, shortened
from mcugen.core.file_names import safe_name
from mcugen.core.limits import MAX_FILE_SAMPLES, MAX_PIXELS, MAX_SAMPLES_BYTES
from mcugen.core.packages import optional_package
from mcugen.evaluation.array_files import read_npy
from mcugen.evaluation.sample_files import ONLY_INPUT_NAME, RAW_PIXELS_NAME
from mcugen.hir.types import Array

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp")
_SOUNDS = (".wav",)
_ARRAYS = (".npy",)
_LABELS = "labels"
_FULL_SCALE = 32_768
"""Amplitude of an int16 sample that stands for 1.0."""


@dataclass(frozen=True)
class ImportedSamples:
    """Samples that were converted.

    Attributes:
        file: The .npz file.
        classes: Names of the classes by number; empty without labels.
        notes: What was converted, one sentence each.
    """

    file: Path
    classes: Sequence[str]
    notes: Sequence[str]


def import_samples(source: Path, target: Path, shape: Sequence[int]) -> ImportedSamples:
    """Convert a folder of dropped files to an .npz file, and remove the folder.

    Labels come from a CSV file of two columns (file name, label), else from the names of folders.

    Args:
        source: The folder; a single zip file in it is unpacked.
        target: The .npz file to write.
        shape: Shape of the model's input, by which images and sounds are read; () if unknown.

    Raises:
        UsageError: The files are no samples; the message names one.
    """
    files = list(source.rglob("*"))
    archives = [path for path in files if path.suffix.lower() == ".zip"]
    for archive in archives:
        _unpack(archive, source)
        archive.unlink()
    files = sorted(path for path in source.rglob("*") if path.is_file())
    tables = [path for path in files if path.suffix.lower() == ".csv"]
    samples, kinds = _of_one_kind([path for path in files if path not in tables])
    readers = {_IMAGES: _read_images, _SOUNDS: _read_sounds, _ARRAYS: _read_arrays}
    name, array, notes = readers[kinds](samples, shape)
    labels, classes, label_notes = _labels(source, samples, tables)
    arrays: dict[str, Any] = {name: array} if labels is None else {name: array, _LABELS: labels}
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    target.write_bytes(stream.getvalue())
    shutil.rmtree(source)
    return ImportedSamples(target, classes, [*notes, *label_notes])


def _unpack(archive: Path, folder: Path) -> None:
    """Extract the files of a zip archive under safe names.

    Raises:
        UsageError: The archive is damaged or too large.
    """
    rule = "a zip file of samples must be readable and of a limited size"
    try:
        with zipfile.ZipFile(archive) as opened:
            entries = [entry for entry in opened.infolist() if not entry.is_dir()]
            if len(entries) > MAX_FILE_SAMPLES or sum(entry.file_size for entry in entries) > MAX_SAMPLES_BYTES:
                raise UsageError(rule, f"{len(entries):,} files", "drop fewer or smaller files")
            for entry in entries:
                names = [name for name in PurePosixPath(entry.filename).parts if name not in ("/", "..")]
                parts = [safe_name(name) for name in names]
                is_hidden = any(name.startswith((".", "__MACOSX")) for name in names)
                if parts and not is_hidden and not entry.filename.lower().endswith(".zip"):
                    _extract(opened, entry, folder.joinpath(*parts))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        raise UsageError(rule, shortened(str(error), 200), "zip the folder again") from error


def _extract(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path) -> None:
    """Write one file of an archive; its header's size is the most that is read."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(entry) as stream:
        target.write_bytes(stream.read(entry.file_size + 1)[: entry.file_size])


def _of_one_kind(files: Sequence[Path]) -> tuple[list[Path], tuple[str, ...]]:
    """Return the samples and the suffixes of their kind.

    Raises:
        UsageError: There are no files, or files of several kinds.
    """
    rule, remedy = "dropped samples must be images, WAV files or .npy files, all of one kind", "drop one kind at a time"
    for suffixes in (_IMAGES, _SOUNDS, _ARRAYS):
        if files and files[0].suffix.lower() in suffixes:
            strange = next((path for path in files if path.suffix.lower() not in suffixes), None)
            if strange is not None:
                raise UsageError(rule, f"'{files[0].name}' and '{strange.name}'", remedy)
            return list(files), suffixes
    raise UsageError(rule, f"'{files[0].name}'" if files else "no file", remedy)


def _read_images(files: Sequence[Path], shape: Sequence[int]) -> tuple[str, Array, list[str]]:
    """Return images as bytes [samples, height, width, channels], in the size of the first one or of the input."""
    with optional_package("report", "samples of images"):
        from PIL import Image

    Image.MAX_IMAGE_PIXELS = MAX_PIXELS
    channels, size, images, sizes = _channels(shape), None, [], Counter[tuple[int, int]]()
    for path in files:
        try:
            with Image.open(path) as image:
                sizes[image.size] += 1
                size = size or _image_size(shape) or image.size
                images.append(np.asarray(image.convert("L" if channels == 1 else "RGB").resize(size), np.uint8))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise UsageError(f"{path.name}: must be an image", shortened(str(error), 200), "leave it out") from error
    assert size is not None
    array = np.stack(images)
    notes = [f"{len(images):,} images"]
    if list(sizes) != [size]:
        text = ", ".join(f"{w} x {h}" for (w, h), _ in sizes.most_common(3))
        notes.append(
            f"images were resized from {text} to {size[0]} x {size[1]} pixels; resize them alike on the device"
        )
    return RAW_PIXELS_NAME, array[..., np.newaxis] if channels == 1 else array, notes


def _channels(shape: Sequence[int]) -> int:
    """Return the number of channels of images for an input: 3, or 1 for gray images."""
    return 3 if not shape or 3 in (shape[-1], *shape[1:2]) else 1


def _image_size(shape: Sequence[int]) -> tuple[int, int] | None:
    """Return width and height of an input of images [1, C, H, W] or [1, H, W, C]; None for other shapes."""
    if len(shape) != 4:
        return None
    height, width = shape[2:] if shape[1] in (1, 3) and shape[-1] not in (1, 3) else shape[1:3]
    return width, height


def _read_sounds(files: Sequence[Path], shape: Sequence[int]) -> tuple[str, Array, list[str]]:
    """Return the first channel of WAV files, cut or filled with zeros to the most frequent length.

    Samples are reals from -1 to 1 if the model takes sound itself; otherwise int16, as input pipelines take them.
    """
    signals, rates = [], Counter[int]()
    for path in files:
        try:
            with wave.open(str(path)) as sound:
                if sound.getsampwidth() != 2:
                    raise UsageError(f"{path.name}: must have samples of 16 bits", f"{8 * sound.getsampwidth()} bits")
                rates[sound.getframerate()] += 1
                frames = np.frombuffer(sound.readframes(sound.getnframes()), "<i2")
                signals.append(frames.reshape(-1, sound.getnchannels())[:, 0])
        except (wave.Error, EOFError, OSError, ValueError) as error:
            raise UsageError(f"{path.name}: must be a WAV file", shortened(str(error), 200), "leave it out") from error
    count = math.prod(shape) if shape else 0
    takes_sound = any(len(signal) == count for signal in signals)
    length = count if takes_sound else Counter(map(len, signals)).most_common(1)[0][0]
    array = np.zeros((len(signals), length), np.int16)
    for row, signal in zip(array, signals, strict=True):
        row[: len(signal)] = signal[:length]
    notes = [f"{len(signals):,} sounds of {length:,} samples at {', '.join(f'{rate:,} Hz' for rate in sorted(rates))}"]
    if any(len(signal) != length for signal in signals):
        notes.append("longer sounds were cut, shorter ones filled with zeros")
    if takes_sound:
        return ONLY_INPUT_NAME, (array / _FULL_SCALE).astype(np.float32), notes
    notes.append("the model's input has another size: choose an input pipeline that computes it from sound")
    return ONLY_INPUT_NAME, array, notes


def _read_arrays(files: Sequence[Path], shape: Sequence[int]) -> tuple[str, Array, list[str]]:
    """Return the arrays of .npy files, one sample each, which must have equal shapes."""
    arrays = [read_npy(path) for path in files]
    strange = next((i for i, array in enumerate(arrays) if array.shape != arrays[0].shape), None)
    if strange is not None:
        shapes = f"{arrays[0].shape} in '{files[0].name}', {arrays[strange].shape} in '{files[strange].name}'"
        raise UsageError("samples must have equal shapes", shapes, "cut or fill them to one shape")
    return ONLY_INPUT_NAME, np.stack(arrays), [f"{len(arrays):,} arrays"]


def _labels(
    source: Path, samples: Sequence[Path], tables: Sequence[Path]
) -> tuple[Array | None, Sequence[str], Sequence[str]]:
    """Return the class number of each sample, the names of the classes, and notes; None without labels."""
    if tables:
        by_name = _read_table(tables[0])
        missing = next((path.name for path in samples if path.name not in by_name), None)
        if missing is not None:
            remedy = "write a row 'file name,label' for each sample"
            raise UsageError(f"{tables[0].name}: each sample must have a label", f"none of '{missing}'", remedy)
        names = [by_name[path.name] for path in samples]
    else:
        names = [path.parent.name if path.parent != source else "" for path in samples]
    classes = sorted(set(names))
    if len(classes) < 2:
        return None, (), ["no labels: files in one folder a class, or a CSV file, give them"]
    if all(name.isdecimal() and len(name) < 7 for name in classes):
        return np.array([int(name) for name in names], np.int64), (), [f"labels are the numbers in {_where(tables)}"]
    numbers = {name: number for number, name in enumerate(classes)}
    listing = ", ".join(f"{number} {name}" for name, number in list(numbers.items())[:12])
    note = f"classes are numbered by name ({listing}{', …' * (len(classes) > 12)}): compare with the model's order"
    return np.array([numbers[name] for name in names], np.int64), classes, [note]


def _where(tables: Sequence[Path]) -> str:
    return tables[0].name if tables else "the names of folders"


def _read_table(path: Path) -> Mapping[str, str]:
    """Return the labels of a CSV file by file name; a first row that names no sample is harmless."""
    try:
        rows = list(csv.reader(io.StringIO(path.read_text("utf-8-sig"))))
    except (ValueError, csv.Error, OSError) as error:
        raise UsageError(f"{path.name}: labels must be CSV", shortened(str(error), 200), "") from error
    return {safe_name(row[0]): row[1].strip() for row in rows if len(row) >= 2}
