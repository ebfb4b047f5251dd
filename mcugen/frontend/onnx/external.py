# SPDX-License-Identifier: Apache-2.0
"""Tensors whose elements are in files beside the model. Files outside the model's folder are never read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import onnx
from google.protobuf.message import Message

from mcugen.core.errors import DoesNotFitError, ModelError, shortened
from mcugen.core.limits import MAX_MODEL_BYTES, open_regular
from mcugen.frontend.onnx.formats import recognize_format

_HOLDERS = {
    *("ModelProto", "GraphProto", "FunctionProto", "TrainingInfoProto"),
    *("NodeProto", "AttributeProto", "SparseTensorProto", "TensorProto"),
}
"""Protobuf messages that are tensors, or may hold tensors."""
_MAX_DIGITS = 18


def external_tensors(message: Message) -> Iterator[onnx.TensorProto]:
    """Yield the tensors of a model, graph or node that refer to files, in the order of the file."""
    if isinstance(message, onnx.TensorProto):
        if message.data_location == onnx.TensorProto.EXTERNAL:
            yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.name in _HOLDERS:
            for item in [value] if isinstance(value, Message) else value:
                yield from external_tensors(item)


def load_external_data(model: onnx.ModelProto, path: Path) -> bytes:
    """Move the elements of external tensors into the model.

    Args:
        model: The model, changed in place.
        path: The file of the model, in whose folder the files must be.

    Returns:
        The SHA-256 digest (32 bytes) of the elements; b"" if there are no external tensors.

    Raises:
        ModelError: A file does not exist, or is outside the folder.
        DoesNotFitError: The elements have more than MAX_MODEL_BYTES.
    """
    digest, total = hashlib.sha256(), 0
    for tensor in external_tensors(model):
        data = _External(tensor, path).read(MAX_MODEL_BYTES - total)
        total += len(data)
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
        tensor.raw_data = data
    return digest.digest() if total else b""


def require_internal(model: onnx.ModelProto, place: str) -> None:
    """Check that a model in memory does not refer to files: it has no folder that they could be in.

    Args:
        model: The model.
        place: Name of the model for messages.

    Raises:
        ModelError: The model refers to a file.
    """
    tensor = next(external_tensors(model), None)
    if tensor is not None:
        rule = f"{place}: a model from memory must hold its tensors itself"
        remedy = "give the path of its file, or call onnx.load_external_data_for_model before"
        raise ModelError(rule, f"'{shortened(tensor.name, 80)}' is external", remedy)


class _External:
    """A reference to the elements of one tensor in a file."""

    def __init__(self, tensor: onnx.TensorProto, model: Path) -> None:
        self.name, self.model = shortened(tensor.name, 80), model
        self.entries: dict[str, str] = {entry.key: entry.value for entry in tensor.external_data}

    def read(self, max_bytes: int) -> bytes:
        """Return the bytes of the elements.

        Raises:
            DoesNotFitError: There are more than `max_bytes` bytes.
            ModelError: The file cannot be read, is too short, or is outside the model's folder.
        """
        file = self._file()
        try:
            size = file.stat().st_size
            offset = self._number("offset", 0)
            length = self._number("length", max(size - offset, 0))
            if offset + length > size:
                self._refuse(f"'{file.name}' has {size:,} bytes, {offset:,} + {length:,} are wanted", file)
            if length > max_bytes:
                rule = f"{self.model}: external data must have at most {MAX_MODEL_BYTES:,} bytes, to fit any board"
                raise DoesNotFitError(rule, f"'{self.name}' and others have more", "use a smaller model")
            with open_regular(file) as stream:
                stream.seek(offset)
                data = stream.read(length)
        except OSError as error:
            self._refuse(f"'{file.name}': {error.strerror}")
        if len(data) != length:
            self._refuse(f"'{file.name}' became shorter")
        return data

    def _file(self) -> Path:
        """Return the path of a regular file in the model's folder, or in the folder of the model that a link names."""
        location = self.entries.get("location", "")
        folders = {self.model.parent.resolve(), self.model.resolve().parent}
        try:
            file = (self.model.parent / location).resolve()
            inside = not Path(location).is_absolute() and any(file.is_relative_to(folder) for folder in folders)
            if inside and file.is_file():
                return file
        except (OSError, RuntimeError, ValueError):  # The name is too long or has a null byte, or links form a cycle.
            inside = True
        self._refuse(f"'{shortened(location, 80)}' {'is no file there' if inside else 'lies outside'}")

    def _number(self, key: str, default: int) -> int:
        text = self.entries.get(key, "")
        if not text:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
            self._refuse(f"{key} '{shortened(text, 40)}'")
        return int(text)

    def _refuse(self, fault: str, file: Path | None = None) -> NoReturn:
        known = recognize_format(file) if file else None
        remedy = known.remedy if known else "keep the .data file in the same folder"
        rule = f"{self.model}: external weights must lie beside the model"
        raise ModelError(rule, f"tensor '{self.name}': {fault}{f' ({known.name})' if known else ''}", remedy)
