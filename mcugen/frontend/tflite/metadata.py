# SPDX-License-Identifier: Apache-2.0
"""TensorFlow Lite metadata: class labels and the normalization of inputs, which tools of TensorFlow add to a file.

A buffer has the metadata as a flatbuffer of its own. Files that the metadata names are in a zip archive behind the
model. Metadata only describe the model, so damaged ones count as absent.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.core.limits import MAX_LABEL_CHARACTERS
from mcugen.frontend.tflite.flatbuffer import FlatBuffer, TableBase, numbers, position, scalar, tables, text
from mcugen.frontend.tflite.model import TfliteModel, TfliteTensor

MAX_LABELS_BYTES = 1_000_000
"""Largest size of a file of labels in bytes."""
_AXIS_LABELS = 2
"""Type of associated files with a label for each element of a tensor."""
_NORMALIZATION = 1
"""Number of NormalizationOptions in the union of process units."""


@dataclass(frozen=True)
class AssociatedFileTable(TableBase):
    """A file in the archive behind the model."""

    name: str = text(0)
    kind: int = scalar(2, "b")


@dataclass(frozen=True)
class NormalizationTable(TableBase):
    """The normalization (x - mean) / std of an input, with one number or one for each channel."""

    mean: tuple[float, ...] = numbers(0, "f")
    std: tuple[float, ...] = numbers(1, "f")


@dataclass(frozen=True)
class ProcessUnitTable(TableBase):
    """A step before or behind the model."""

    options_kind: int = scalar(0, "B")
    options: int | None = position(1)


@dataclass(frozen=True)
class TensorMetadataTable(TableBase):
    """Metadata of an input or output."""

    process_units: tuple[ProcessUnitTable, ...] = tables(4, ProcessUnitTable)
    files: tuple[AssociatedFileTable, ...] = tables(6, AssociatedFileTable)


@dataclass(frozen=True)
class SubgraphMetadataTable(TableBase):
    """Metadata of a subgraph; inputs and outputs have the order of the subgraph."""

    inputs: tuple[TensorMetadataTable, ...] = tables(2, TensorMetadataTable)
    outputs: tuple[TensorMetadataTable, ...] = tables(3, TensorMetadataTable)


@dataclass(frozen=True)
class ModelMetadataTable(TableBase):
    """The root of the metadata."""

    subgraphs: tuple[SubgraphMetadataTable, ...] = tables(3, SubgraphMetadataTable)


@dataclass(frozen=True)
class TfliteMetadata:
    """Labels and normalization that a file has in its metadata.

    Attributes:
        labels: Names of the classes of an output; () if there are none.
        preprocess: Normalization of the input, as the text of `--preprocess`; "" if there is none.
    """

    labels: tuple[str, ...] = ()
    preprocess: str = ""


def read_metadata(data: bytes, model: TfliteModel) -> TfliteMetadata:
    """Return the metadata of a file; absent or damaged parts are empty.

    Args:
        data: The bytes of the file.
        model: The model in these bytes.
    """
    if model.metadata is None:
        return TfliteMetadata()
    try:
        buffer = FlatBuffer(bytes(model.metadata), model.place)
        subgraphs = buffer.root(ModelMetadataTable).subgraphs
        if len(subgraphs) <= model.main.index:
            return TfliteMetadata()
        described = subgraphs[model.main.index]
        labels = _read_labels(data, described.outputs, model.main.outputs)
        return TfliteMetadata(labels, _read_normalization(buffer, described.inputs))
    except ModelError:
        return TfliteMetadata()


def _read_labels(
    data: bytes, outputs: Sequence[TensorMetadataTable], tensors: Sequence[TfliteTensor]
) -> tuple[str, ...]:
    """Return the labels of the first output that has one for each of its elements."""
    for output, tensor in zip(outputs, tensors, strict=False):
        for file in output.files:
            lines = _lines_of(data, file.name) if file.kind == _AXIS_LABELS else ()
            fits = 0 < len(lines) == tensor.count and max(map(len, lines)) <= MAX_LABEL_CHARACTERS
            if fits and any(line.strip() for line in lines):
                return lines
    return ()


def _lines_of(data: bytes, name: str) -> tuple[str, ...]:
    """Return the lines of a text file in the archive; () if it is absent, damaged or too large.

    The name only selects an entry of the archive: nothing is written, and no path is followed.
    """
    with suppress(zipfile.BadZipFile, zlib.error, KeyError, EOFError, OSError, RuntimeError, ValueError):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entry = archive.getinfo(name)
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                return ()
            with archive.open(entry) as file:
                content = file.read(MAX_LABELS_BYTES + 1)
        if len(content) <= MAX_LABELS_BYTES:
            lines = content.decode("utf-8-sig").rstrip("\r\n").split("\n")
            return tuple(line.removesuffix("\r") for line in lines)
    return ()


def _read_normalization(buffer: FlatBuffer, inputs: Sequence[TensorMetadataTable]) -> str:
    """Return the normalization of the only input as the text of `--preprocess`."""
    if len(inputs) != 1:
        return ""
    for unit in inputs[0].process_units:
        if unit.options_kind == _NORMALIZATION and unit.options is not None:
            known = buffer.read(NormalizationTable, unit.options)
            finite = np.isfinite([*known.mean, *known.std]).all() and all(std > 0 for std in known.std)
            if known.mean and known.std and finite and max(len(known.mean), len(known.std)) <= 4:
                texts = (";".join(f"{number:.9g}" for number in values) for values in (known.mean, known.std))
                return "mean={}, std={}".format(*texts)
    return ""
